//! JSON that others have written: bounded, shallow, and without duplicate members.
//!
//! The model's parser takes the last of duplicate members. Another program may take the first: it would read another
//! token under the same signature. So a text with duplicates is rejected. Outside strings, each member of a valid text has
//! one colon. If the text has more colons than the value has members, some were duplicates.
//!
//! **Invariant:** the length is checked first, the depth before the parser runs, and the work is linear.

use concord_model::{
    document::{self, DocumentError},
    unseen::is_unseen,
};
use serde_json::{Map, Value};

/// Bytes of a foreign text that a message shows.
const SHOWN_BYTES_MAX: usize = 160;

/// Why a text is not the JSON object that it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// It has more bytes than the limit.
    #[error("the text is longer than {0} bytes")]
    TooLong(usize),
    /// It is not JSON, is nested too deep, or has a member name that is reserved.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// An object in it has two members of one name.
    #[error("a member occurs twice")]
    Duplicate,
    /// It is another value than an object.
    #[error("the text is not a JSON object")]
    NotAnObject,
}

/// The object of a text.
///
/// # Errors
/// When the text is too long, too deep, no JSON, no object, or has a duplicate member.
pub(crate) fn object(
    text: &[u8],
    bytes_max: usize,
    depth_max: usize,
) -> Result<Map<String, Value>, JsonError> {
    if text.len() > bytes_max {
        return Err(JsonError::TooLong(bytes_max));
    }
    let value = document::parse(text, depth_max)?;
    if colons(text) != members(&value) {
        return Err(JsonError::Duplicate);
    }
    if let Value::Object(object) = value { Ok(object) } else { Err(JsonError::NotAnObject) }
}

/// The colons outside the strings of a valid JSON text.
fn colons(text: &[u8]) -> usize {
    let (mut found, mut is_inside, mut is_escaped) = (0, false, false);
    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => is_inside = !is_inside,
            b':' if !is_inside => found += 1,
            _ => {}
        }
    }
    found
}

/// The members of all objects in a value. It is as shallow as the parser has let it be.
fn members(value: &Value) -> usize {
    match value {
        Value::Object(object) => object.len() + object.values().map(members).sum::<usize>(),
        Value::Array(items) => items.iter().map(members).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// A foreign text as a message shows it: cut, and with escapes for what a reader would not see.
pub(crate) fn shown(text: &str) -> String {
    let mut shown = String::new();
    for character in text.chars() {
        if shown.len() >= SHOWN_BYTES_MAX {
            shown.push('…');
            break;
        }
        if is_unseen(character) {
            shown.extend(character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// A claim or a member as a message shows it.
pub(crate) fn shown_value(value: Option<&Value>) -> String {
    value.map_or_else(|| "absent".to_owned(), |value| shown(&value.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Map<String, Value>, JsonError> {
        object(text.as_bytes(), 1000, 4)
    }

    #[test]
    fn duplicate_members_are_rejected_at_every_level_and_in_every_spelling() {
        for text in [
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"b":{"a":1,"a":2}}"#,
            r#"{"b":[{"a":1,"c":{},"a":2}]}"#,
            "{\"a\" :1,\"b:\":\":\",\"a\"\t: 3}",
        ] {
            assert_eq!(read(text), Err(JsonError::Duplicate), "{text}");
        }
        for text in [r#"{"a":{"a":{"a":1}}}"#, r#"{"a:":":\":","b":[":",{"a":"\\"}]}"#, "{}", r#"{"":1}"#] {
            assert!(read(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn only_short_and_shallow_objects_are_read() {
        assert_eq!(read(&format!("{{}}{}", " ".repeat(999))), Err(JsonError::TooLong(1000)));
        assert_eq!(read(r#"{"a":[[[[]]]]}"#), Err(JsonError::Document(DocumentError::TooDeep(4))));
        for text in ["[]", "null", "1", r#""{}""#] {
            assert_eq!(read(text), Err(JsonError::NotAnObject), "{text}");
        }
    }

    #[test]
    fn a_shown_text_is_short_and_seen() {
        assert_eq!(shown("a\u{202e}b\n"), "a\\u{202e}b\\u{a}");
        assert!(shown(&"ä".repeat(1000)).len() < SHOWN_BYTES_MAX + 8);
        assert_eq!(shown_value(None), "absent");
    }
}
