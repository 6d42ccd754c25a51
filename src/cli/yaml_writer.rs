//! JSON values as YAML, in blocks.
//!
//! **Invariant:** reading the output gives the same value: numbers keep their digits, members their order, and strings
//! that YAML could read as something else are quoted. Quoted strings are JSON strings, which YAML reads the same way.

use serde_json::{Map, Value};

/// The longest name that YAML reads before a colon; a longer one needs its own line.
const NAME_BYTES_MAX: usize = 1000;

/// A value as a document.
pub(super) fn write(value: &Value) -> String {
    let mut out = String::new();
    match Block::of(value) {
        Block::Members(object) => members(&mut out, object, 0),
        Block::Elements(array) => elements(&mut out, array, 0),
        Block::Inline(text) => {
            out.push_str(&text);
            out.push('\n');
        }
    }
    out
}

fn indent(out: &mut String, depth: usize) {
    (0..depth).for_each(|_| out.push_str("  "));
}

fn members(out: &mut String, object: &Map<String, Value>, depth: usize) {
    for (place, (name, value)) in object.iter().enumerate() {
        // The first member follows the dash of a list item.
        if place > 0 || !out.ends_with("- ") {
            indent(out, depth);
        }
        let name = scalar(name);
        if name.len() > NAME_BYTES_MAX {
            out.push_str("? ");
            out.push_str(&name);
            out.push('\n');
            indent(out, depth);
        } else {
            out.push_str(&name);
        }
        out.push(':');
        below(out, value, depth);
    }
}

/// The text after the colon of a member.
fn below(out: &mut String, value: &Value, depth: usize) {
    match Block::of(value) {
        Block::Members(object) => {
            out.push('\n');
            members(out, object, depth + 1);
        }
        Block::Elements(array) => {
            out.push('\n');
            elements(out, array, depth + 1);
        }
        Block::Inline(text) => {
            out.push(' ');
            out.push_str(&text);
            out.push('\n');
        }
    }
}

fn elements(out: &mut String, array: &[Value], depth: usize) {
    for (place, value) in array.iter().enumerate() {
        if place > 0 || !out.ends_with("- ") {
            indent(out, depth);
        }
        out.push_str("- ");
        match Block::of(value) {
            Block::Members(object) => members(out, object, depth + 1),
            Block::Elements(array) => elements(out, array, depth + 1),
            Block::Inline(text) => {
                out.push_str(&text);
                out.push('\n');
            }
        }
    }
}

/// How a value is written.
enum Block<'a> {
    Members(&'a Map<String, Value>),
    Elements(&'a [Value]),
    /// Without members and elements.
    Inline(String),
}

impl<'a> Block<'a> {
    fn of(value: &'a Value) -> Self {
        if let Some(object) = value.as_object().filter(|object| !object.is_empty()) {
            return Self::Members(object);
        }
        if let Some(array) = value.as_array().filter(|array| !array.is_empty()) {
            return Self::Elements(array);
        }
        Self::Inline(value.as_str().map_or_else(|| value.to_string(), scalar))
    }
}

/// A text, in quotes unless it can be taken for nothing else.
fn scalar(text: &str) -> String {
    if is_plain(text) { text.to_owned() } else { quoted(text) }
}

fn is_plain(text: &str) -> bool {
    const OTHERS: [&str; 9] = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    let is_inside = |character: char| character.is_ascii_alphanumeric() || "_./ -@+".contains(character);
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_' || first == '/')
        && text.chars().all(is_inside)
        && !text.ends_with(' ')
        && !OTHERS.contains(&text.to_ascii_lowercase().as_str())
}

fn quoted(text: &str) -> String {
    let json = Value::from(text).to_string();
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::cli::document;

    fn back(value: &Value) -> Value {
        let text = write(value);
        let mut read = document::read_yaml(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(read.len(), 1, "{text}");
        read.remove(0).value
    }

    #[test]
    fn a_value_is_written_in_blocks() {
        let value =
            json!({"a": 1, "b": [{"c": "x y", "d": [true, null]}, [], {}], "e": {}, "no": "yes", "": "a: b"});
        let expected = "a: 1\nb:\n  - c: x y\n    d:\n      - true\n      - null\n  - []\n  - {}\ne: {}\n\"no\": \"yes\"\n\"\": \"a: b\"\n";
        assert_eq!(write(&value), expected);
        assert_eq!(write(&json!("x")), "x\n");
        assert_eq!(write(&json!([[1, [2]], 3])), "- - 1\n  - - 2\n- 3\n");
    }

    #[test]
    fn numbers_keep_their_digits() {
        let value: Value =
            serde_json::from_str(r#"[7.0, -0.0, 123456789012345678901234567890, 1e400, 0.10, -5, 1E-7]"#)
                .unwrap();
        assert_eq!(back(&value).to_string(), value.to_string());
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let texts = prop_oneof![
            any::<String>(),
            "[a-z :#,\\-\\[\\]{}'\"&*!|>%@`?\n\t\\\\]{0,12}",
            prop::sample::select(vec![
                "null", "~", "1", "007", "0x1", "1e3", ".inf", "yes", "<<", "---", "...", "\u{85}",
                "\u{2028}", "\u{feff}", "1:30"
            ])
            .prop_map(str::to_owned),
            "x{1000,1100}",
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            texts.clone().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec((texts.clone(), inner), 0..5)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_as_the_same(value in any_value()) {
            prop_assert_eq!(back(&value).to_string(), value.to_string());
        }
    }
}
