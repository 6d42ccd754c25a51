//! JSON values as Java properties: one name for each value that has no values in it.
//!
//! Names are those that Spring reads: `db.host`, `servers[0].port`. What a name can't say, because another value has it
//! too (`{"a.b": 1, "a": {"b": 2}}`), is an error.
//!
//! The text is what `java.util.Properties.store` writes: ASCII, with `\uXXXX` for every other character.

use std::{collections::BTreeSet, fmt::Write as _};

use serde_json::{Map, Value};

/// What a value takes that is no text, and what is around a name and a value.
const PAIR_BYTES: usize = 16;

/// Why values can't be written as properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotFlat {
    /// Two values have this name.
    Repeated(String),
    /// The names and values would have more bytes than they may. Each name repeats those of all objects around its value.
    TooLarge,
}

/// The values of an object by their names, in order: scalars as they are, an empty list and `null` as an empty text. An
/// empty object has no value. In all they have at most so many bytes.
///
/// # Errors
/// If two values have one name, or there are too many bytes.
pub fn flat(members: &Map<String, Value>, bytes_max: usize) -> Result<Vec<(String, Value)>, NotFlat> {
    let mut flattening = Flattening { found: Vec::new(), left: bytes_max };
    for (name, value) in members {
        flattening.add(name.clone(), value)?;
    }
    let found = flattening.found;
    let mut names = BTreeSet::new();
    match found.iter().find(|(name, _)| !names.insert(name.as_str())) {
        Some((name, _)) => Err(NotFlat::Repeated(name.clone())),
        None => Ok(found),
    }
}

struct Flattening {
    found: Vec<(String, Value)>,
    /// Bytes that there may be more.
    left: usize,
}

impl Flattening {
    fn add(&mut self, name: String, value: &Value) -> Result<(), NotFlat> {
        let bytes = name.len() + value.as_str().map_or(PAIR_BYTES, str::len);
        self.left = self.left.checked_sub(bytes).ok_or(NotFlat::TooLarge)?;
        match value {
            Value::Object(members) => {
                for (below, value) in members {
                    // A member that is an index of its own kind needs no point, as in `a[0]`.
                    let point = if below.starts_with('[') { "" } else { "." };
                    self.add(format!("{name}{point}{below}"), value)?;
                }
            }
            Value::Array(items) if !items.is_empty() => {
                for (place, item) in items.iter().enumerate() {
                    self.add(format!("{name}[{place}]"), item)?;
                }
            }
            Value::Array(_) | Value::Null => self.found.push((name, Value::String(String::new()))),
            Value::Bool(_) | Value::Number(_) | Value::String(_) => self.found.push((name, value.clone())),
        }
        Ok(())
    }
}

/// The text of an object's properties, one on each line; at most so many bytes, counted before characters are escaped.
///
/// # Errors
/// If two values have one name, or there are too many bytes.
pub fn write(members: &Map<String, Value>, bytes_max: usize) -> Result<String, NotFlat> {
    let mut text = String::new();
    for (name, value) in flat(members, bytes_max)? {
        escape(&mut text, &name, true);
        text.push('=');
        match &value {
            Value::String(value) => escape(&mut text, value, false),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                text.push_str(&value.to_string());
            }
        }
        text.push('\n');
    }
    Ok(text)
}

/// Writes a name or a value. A space ends a name, and the first ones of a value are skipped by readers.
fn escape(out: &mut String, text: &str, is_name: bool) {
    let mut is_first = true;
    for unit in text.encode_utf16() {
        match u8::try_from(unit) {
            Ok(b' ') if is_name || is_first => out.push_str("\\ "),
            Ok(b'\t') => out.push_str("\\t"),
            Ok(b'\n') => out.push_str("\\n"),
            Ok(b'\r') => out.push_str("\\r"),
            Ok(0x0c) => out.push_str("\\f"),
            Ok(byte @ (b'\\' | b'=' | b':' | b'#' | b'!')) => out.extend(['\\', char::from(byte)]),
            Ok(byte @ b' '..=b'~') => out.push(char::from(byte)),
            // Writing to a text can't fail.
            Ok(_) | Err(_) => drop(write!(out, "\\u{unit:04X}")),
        }
        is_first = is_first && unit == u16::from(b' ');
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn members(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(members) => members,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                Map::new()
            }
        }
    }

    #[test]
    fn values_have_the_names_that_spring_reads() {
        let value =
            json!({"db": {"host": "a", "ports": [1, {"x": true}], "none": null, "e": {}, "l": []}, "n": 1.5});
        let expected = "db.host=a\ndb.ports[0]=1\ndb.ports[1].x=true\ndb.none=\ndb.l=\nn=1.5\n";
        assert_eq!(write(&members(value), 1000).unwrap(), expected);
    }

    #[test]
    fn a_name_that_two_values_have_is_an_error() {
        let value = members(json!({"a.b": 1, "a": {"b": 2}}));
        assert_eq!(write(&value, 1000), Err(NotFlat::Repeated("a.b".into())));
    }

    #[test]
    fn names_that_repeat_a_long_one_are_bounded() {
        let value = members(json!({"x".repeat(1000): vec![1; 1000]}));
        assert_eq!(write(&value, 100_000), Err(NotFlat::TooLarge));
        assert!(write(&value, 2_000_000).is_ok());
    }

    #[test]
    fn numbers_keep_their_digits() {
        let value: Value = serde_json::from_str(r#"{"a": 1.50, "b": 1E400}"#).unwrap();
        let text = write(&members(value), 1000).unwrap();
        assert_eq!(text, "a=1.50\nb=1e+400\n");
    }

    #[test]
    fn what_ends_a_name_or_a_value_is_escaped() {
        let value = json!({"a b=c:#!\\": "  x y\n\t\r\u{c}=:#!\\", "ü": "😀\u{1}"});
        let expected =
            "a\\ b\\=c\\:\\#\\!\\\\=\\ \\ x y\\n\\t\\r\\f\\=\\:\\#\\!\\\\\n\\u00FC=\\uD83D\\uDE00\\u0001\n";
        assert_eq!(write(&members(value), 1000).unwrap(), expected);
    }
}
