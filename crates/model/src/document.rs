//! A JSON text from a client: bounded before it is parsed, then stored as it was written.
//!
//! One scan over the bytes precedes the parser. It counts the depth, because the parser is recursive and would exhaust
//! the stack first. It checks member names, because `serde_json` would read `{"$serde_json::private::Number": "1"}` as
//! the number 1. A text that passes the scan is shallow and holds no such name, so the parsed value is that of the
//! text.
//!
//! Numbers keep their digits and are never expanded: `1e999999999` takes a dozen bytes here and everywhere. The only
//! change to their text is an explicit sign of the exponent (`1e400` becomes `1e+400`).
//!
//! **Invariant:** the value of a document is not deeper than the limit and holds no reserved member name.

use std::{borrow::Cow, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// The prefix of the member names that `serde_json` uses for its own types.
const RESERVED: &str = "$serde_json::private::";

/// A validated JSON text with its value. `text` is the compact rendering of `value`.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// The text: what is stored and returned.
    pub text: Arc<str>,
    /// The parsed value; not stored.
    pub value: Value,
}

/// Why a text is no document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// Not JSON; the byte offset of the error.
    #[error("{msg}")]
    Syntax {
        /// Byte offset.
        offset: usize,
        /// What is wrong.
        msg: String,
    },
    /// Nested deeper than the limit.
    #[error("the JSON text is nested deeper than {0} levels")]
    TooDeep(usize),
    /// A member name that `serde_json` uses internally.
    #[error("the member name `{0}` is reserved")]
    Reserved(String),
}

/// Whether no member of data has this name.
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    name.starts_with(RESERVED)
}

/// Parses a text: depth and reserved names are checked first; the last of duplicate members wins.
///
/// A scalar has depth 0, `[]` has depth 1.
///
/// # Errors
/// When the text is no JSON value, is nested deeper than `depth_max`, or holds a reserved member name.
pub fn parse(bytes: &[u8], depth_max: usize) -> Result<Value, DocumentError> {
    let text = std::str::from_utf8(bytes).map_err(|error| DocumentError::Syntax {
        offset: error.valid_up_to(),
        msg: "the text is not UTF-8".into(),
    })?;
    scan(text, depth_max)?;
    serde_json::from_str(text).map_err(|error| DocumentError::Syntax {
        offset: offset_of(text, error.line(), error.column()),
        msg: without_position(&error.to_string()),
    })
}

impl Document {
    /// The document of a value that [`parse`] returned, or of a part of it.
    #[must_use]
    pub fn new(value: Value) -> Self {
        // The same text as `to_string` gives, without a formatter between the writer and the buffer.
        let text = serde_json::to_string(&value).expect("a JSON value is always JSON text");
        Self { text: text.into(), value }
    }

    /// The document of a value that was computed here (by a patch), checked as [`parse`] checks a text.
    ///
    /// # Errors
    /// When it is nested deeper than `depth_max` or holds a reserved member name.
    pub fn checked(value: Value, depth_max: usize) -> Result<Self, DocumentError> {
        let document = Self::new(value);
        scan(&document.text, depth_max)?;
        Ok(document)
    }
}

impl Document {
    /// Parses the text of a document that another node has sent.
    ///
    /// # Errors
    /// As for [`parse`].
    pub fn parse_received(&mut self, depth_max: usize) -> Result<(), DocumentError> {
        self.value = parse(self.text.as_bytes(), depth_max)?;
        Ok(())
    }
}

/// Between nodes it is its text.
impl Serialize for Document {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

/// The value is null until [`Document::parse_received`]: the bounds of a text are those of the node that receives it,
/// and one text that exceeds them must not spoil the others of its call.
impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self { text: String::deserialize(deserializer)?.into(), value: Value::Null })
    }
}

/// Checks the depth and the member names. It leaves syntax errors to the parser: it only has to see every bracket and
/// every name of a text that the parser accepts.
fn scan(text: &str, depth_max: usize) -> Result<(), DocumentError> {
    let bytes = text.as_bytes();
    // A reserved name is written literally or with an escape; most texts have neither.
    let suspect = text.contains(RESERVED) || bytes.contains(&b'\\');
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                if depth > depth_max {
                    return Err(DocumentError::TooDeep(depth_max));
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => {
                let Some(end) = string_end(bytes, at + 1) else {
                    return Ok(());
                };
                if suspect {
                    check_name(text, at, end)?;
                }
                at = end;
            }
            _ => {}
        }
        at += 1;
    }
    Ok(())
}

/// The offset of the quote that ends the string whose content begins at `from`.
fn string_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Rejects the string between the quotes at `start` and `end` when it is a reserved member name.
fn check_name(text: &str, start: usize, end: usize) -> Result<(), DocumentError> {
    let after = text.as_bytes()[end + 1..].iter().find(|b| !b" \t\r\n".contains(b));
    let inner = &text[start + 1..end];
    if after != Some(&b':') || !(inner.starts_with(RESERVED) || inner.contains('\\')) {
        return Ok(());
    }
    let name = if inner.contains('\\') {
        // A name that does not decode is no JSON: the parser reports it with its offset.
        serde_json::from_str::<String>(&text[start..=end]).map_or(Cow::Borrowed(""), Cow::Owned)
    } else {
        Cow::Borrowed(inner)
    };
    if name.starts_with(RESERVED) {
        return Err(DocumentError::Reserved(name.chars().take(100).collect()));
    }
    Ok(())
}

/// The byte offset of a line (from 1) and a column (bytes, from 1; 0 at a line's start).
fn offset_of(text: &str, line: usize, column: usize) -> usize {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    (before + column.saturating_sub(1)).min(text.len())
}

/// The parser's message without line and column, which the offset replaces.
fn without_position(msg: &str) -> String {
    msg.rsplit_once(" at line ").map_or(msg, |(what, _)| what).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn syntax_offset(text: &[u8]) -> usize {
        match parse(text, 64) {
            Err(DocumentError::Syntax { offset, .. }) => offset,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn numbers_and_strings_round_trip_as_they_were_written() {
        for text in [
            "123456789012345678901234567890",
            "7.0",
            "-0.0",
            "-0",
            "1e400",
            "1E+400",
            "1e999999999",
            "-1e-999999999",
            "0.1000",
            r#""a\u0000b""#,
            r#"{"b":1,"a":[true,null,"ä€𝄞"]}"#,
        ] {
            let document = Document::new(parse(text.as_bytes(), 64).unwrap());
            // The parser makes the sign of an exponent explicit.
            assert_eq!(
                &*document.text,
                text.replace("1E", "1e").replace("1e4", "1e+4").replace("e9", "e+9"),
                "{text}"
            );
        }
        assert_eq!(parse(br#""\u0000""#, 0).unwrap(), Value::String("\0".into()));
    }

    #[test]
    fn the_last_of_equal_names_wins_at_the_position_of_the_first() {
        let value = parse(br#"{"a":1,"b":2,"a":3}"#, 64).unwrap();
        assert_eq!(value.to_string(), r#"{"a":3,"b":2}"#);
    }

    #[test]
    fn depth_is_rejected_before_parsing() {
        let nested = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(parse(nested(64).as_bytes(), 64).is_ok());
        assert_eq!(parse(nested(65).as_bytes(), 64), Err(DocumentError::TooDeep(64)));
        assert_eq!(parse(nested(200).as_bytes(), 64), Err(DocumentError::TooDeep(64)));
        assert_eq!(parse("[".repeat(1_000_000).as_bytes(), 64), Err(DocumentError::TooDeep(64)));
        assert_eq!(parse(r#"{"a":"#.repeat(1_000_000).as_bytes(), 64), Err(DocumentError::TooDeep(64)));
        let siblings = format!("[{}]", vec!["[]"; 1000].join(","));
        assert!(parse(siblings.as_bytes(), 2).is_ok());
        assert!(parse(br#"["[[[[[[[[", "\"[[[[[[[["]"#, 1).is_ok());
    }

    #[test]
    fn a_syntax_error_names_its_byte() {
        assert_eq!(syntax_offset(b""), 0);
        assert_eq!(syntax_offset(b"{\"a\": x}"), 6);
        assert_eq!(syntax_offset("{\"ä\": x}".as_bytes()), 7);
        assert_eq!(syntax_offset(b"{\n \"a\": 1,\n x}"), 12);
        assert_eq!(syntax_offset(b"1 2"), 2);
        assert_eq!(syntax_offset(b"[1]]"), 3);
        assert_eq!(syntax_offset(b"\"a\xff\""), 2);
        assert_eq!(syntax_offset(b"{\"a\":1"), 5);
        for text in
            ["{'a':1}", "[1,]", "nul", "01", "NaN", "\"\t\"", r#""\ud800""#, r#""\udc00x""#, "\u{feff}1"]
        {
            syntax_offset(text.as_bytes());
        }
    }

    #[test]
    fn a_reserved_name_is_rejected_in_every_spelling() {
        for text in [
            r#"{"$serde_json::private::Number":"1"}"#,
            r#"{"$serde_json::private::RawValue":"1"}"#,
            r#"{"$serde_json::private::other":1}"#,
            r#"[[{"a":1,"$serde_json::private::Number"  : "1"}]]"#,
            r#"{"\u0024serde_json::private::Number":"1"}"#,
            r#"{"$serde_json\u003a:privat\u0065::Number":"1"}"#,
            "{\"$serde_json::private::Number\"\n\t:\"1\"}",
        ] {
            let got = parse(text.as_bytes(), 64);
            assert!(matches!(got, Err(DocumentError::Reserved(_))), "{text}: {got:?}");
        }
    }

    #[test]
    fn a_reserved_text_that_is_no_name_is_data() {
        for text in [
            r#"{"a":"$serde_json::private::Number"}"#,
            r#"["$serde_json::private::Number"]"#,
            r#"{"x$serde_json::private::Number":"1"}"#,
            r#"{"a\\u0024":"\"$serde_json::private::Number\":1"}"#,
        ] {
            assert_eq!(parse(text.as_bytes(), 64).unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_hundred_thousand_members_are_read() {
        let members: Vec<_> = (0..100_000).map(|n| format!("\"k{n}\":{n}")).collect();
        assert!(parse(format!("{{{}}}", members.join(",")).as_bytes(), 64).is_ok());
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes, 64);
        }

        #[test]
        fn json_like_texts_round_trip(text in r#"[\[\]{}:,"\\u0123e.+\-a$ ]{0,60}"#) {
            if let Ok(value) = parse(text.as_bytes(), 64) {
                let document = Document::new(value);
                prop_assert_eq!(&*document.text, document.value.to_string());
                let again = parse(document.text.as_bytes(), 64).unwrap();
                prop_assert_eq!(&again, &document.value);
                prop_assert_eq!(Document::new(again).text, document.text);
            }
        }

        #[test]
        fn numbers_keep_their_text(text in r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?(e[+-][0-9]{1,9})?") {
            let value = parse(text.as_bytes(), 64).unwrap();
            prop_assert_eq!(value.to_string(), text);
        }
    }
}
