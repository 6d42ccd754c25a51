//! JSON values as YAML, in blocks.
//!
//! YAML 1.1, which many readers still have, takes `1e22` for a text, and `1.0e+22` for a number. So there are two ways to
//! write: for any reader, and with the digits as they are, for texts that Concord reads back.
//!
//! **Invariants:** reading the output gives the same value: numbers keep their value, and with [`write_exact`] their
//! digits, members their order, and strings that YAML could read as something else are quoted. Quoted strings are JSON
//! strings, which YAML reads the same way. No output has a character that controls a terminal.

use concord_model::unseen::is_unseen;
use serde_json::{Map, Number, Value};

/// The longest name that YAML reads before a colon; a longer one needs its own line.
const NAME_BYTES_MAX: usize = 1000;

/// A value as a document that readers of YAML 1.1 and 1.2 take for the same.
#[must_use]
pub fn write(value: &Value) -> String {
    document(value, portable, usize::MAX)
}

/// The same; `None` if it would be longer than so many bytes. Nested lists are several times as long as their JSON.
#[must_use]
pub fn write_within(value: &Value, bytes_max: usize) -> Option<String> {
    let text = document(value, portable, bytes_max);
    (text.len() <= bytes_max).then_some(text)
}

/// A value as a document with the digits as they are.
#[must_use]
pub fn write_exact(value: &Value) -> String {
    document(value, Number::to_string, usize::MAX)
}

/// A number that YAML 1.1 takes for a number too: a point in the mantissa, and a sign in the exponent.
fn portable(number: &Number) -> String {
    let text = number.to_string();
    let Some((mantissa, exponent)) = text.split_once(['e', 'E']) else { return text };
    let point = if mantissa.contains('.') { "" } else { ".0" };
    let sign = if exponent.starts_with(['+', '-']) { "" } else { "+" };
    format!("{mantissa}{point}e{sign}{exponent}")
}

/// A document; what is longer than so many bytes is not written to its end.
fn document(value: &Value, number: fn(&Number) -> String, bytes_max: usize) -> String {
    let mut writer = Writer { out: String::new(), number, bytes_max };
    writer.below(value, 0, Place::Document);
    writer.out
}

/// Where a value is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// At the start of a document.
    Document,
    /// After the colon of a member.
    Member,
    /// After the dash of an element.
    Element,
}

struct Writer {
    out: String,
    number: fn(&Number) -> String,
    /// Nothing more is written once the text is longer.
    bytes_max: usize,
}

impl Writer {
    fn indent(&mut self, depth: usize) {
        (0..depth).for_each(|_| self.out.push_str("  "));
    }

    /// Writes a value. Its members, elements and lines are at this depth.
    fn below(&mut self, value: &Value, depth: usize, place: Place) {
        if self.out.len() > self.bytes_max {
            return;
        }
        match value {
            Value::Object(object) if !object.is_empty() => {
                if place == Place::Member {
                    self.out.push('\n');
                }
                self.members(object, depth, place == Place::Element);
            }
            Value::Array(array) if !array.is_empty() => {
                if place == Place::Member {
                    self.out.push('\n');
                }
                self.elements(array, depth, place == Place::Element);
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => {
                if place == Place::Member {
                    self.out.push(' ');
                }
                self.inline(value, depth.max(1));
            }
        }
    }

    /// Writes a value without members and elements, and the end of its line.
    fn inline(&mut self, value: &Value, depth: usize) {
        match value {
            Value::String(text) if is_block(text) => {
                self.out.push_str(if text.ends_with('\n') { "|\n" } else { "|-\n" });
                for line in text.lines() {
                    if !line.is_empty() {
                        self.indent(depth);
                        self.out.push_str(line);
                    }
                    self.out.push('\n');
                }
                return;
            }
            Value::String(text) => self.out.push_str(&scalar(text)),
            Value::Number(number) => self.out.push_str(&(self.number)(number)),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
                self.out.push_str(&value.to_string());
            }
        }
        self.out.push('\n');
    }

    fn members(&mut self, object: &Map<String, Value>, depth: usize, mut has_indent: bool) {
        for (name, value) in object {
            // The first member follows the dash of an element.
            if !std::mem::take(&mut has_indent) {
                self.indent(depth);
            }
            let name = scalar(name);
            if name.len() > NAME_BYTES_MAX {
                self.out.push_str(&format!("? {name}\n"));
                self.indent(depth);
            } else {
                self.out.push_str(&name);
            }
            self.out.push(':');
            self.below(value, depth + 1, Place::Member);
        }
    }

    fn elements(&mut self, array: &[Value], depth: usize, mut has_indent: bool) {
        for value in array {
            if !std::mem::take(&mut has_indent) {
                self.indent(depth);
            }
            self.out.push_str("- ");
            self.below(value, depth + 1, Place::Element);
        }
    }
}

/// Whether a text is written as its lines: one that a block of them holds exactly, without a mark of its indentation. Once
/// the first line has shown the indentation, a tab after it is a part of the text for readers of YAML 1.1 and 1.2.
fn is_block(text: &str) -> bool {
    let end = text.strip_suffix('\n').unwrap_or(text);
    text.contains('\n')
        && !text.starts_with([' ', '\n', '\t'])
        && !end.ends_with('\n')
        && !end.is_empty()
        && !text.chars().any(|c| c != '\n' && c != '\t' && is_special(c))
        && text.lines().all(|line| line.is_empty() || line.trim() != "")
}

/// A text, in quotes unless it can be taken for nothing else.
#[must_use]
pub fn scalar(text: &str) -> String {
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

/// Whether a character is escaped: nobody sees it, or YAML gives it a meaning.
fn is_special(character: char) -> bool {
    is_unseen(character) || matches!(character, '\u{fffe}' | '\u{ffff}')
}

/// A text in quotes, which JSON reads the same way unless it has characters beyond `\\uffff`.
#[must_use]
pub fn quoted(text: &str) -> String {
    let json = Value::from(text).to_string();
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        let code = u32::from(character);
        if !is_special(character) {
            out.push(character);
        } else if code > 0xffff {
            out.push_str(&format!("\\U{code:08x}"));
        } else {
            out.push_str(&format!("\\u{code:04x}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_numbers_for_readers_of_yaml_1_1_too() {
        let value: Value =
            serde_json::from_str(r#"{"a": 1e22, "b": 1E-7, "c": 1.5e3, "d": -2e+3, "e": 7, "f": 1.50}"#)
                .unwrap();
        assert_eq!(write(&value), "a: 1.0e+22\nb: 1.0e-7\nc: 1.5e+3\nd: -2.0e+3\ne: 7\nf: 1.50\n");
        assert_eq!(
            write_exact(&json!([value["a"]])),
            "- 1e+22\n".replace("+", if value["a"].to_string().contains('+') { "+" } else { "" })
        );
    }

    #[test]
    fn texts_of_several_lines_are_blocks_where_that_is_exact() {
        let value = json!({"nginx": "server {\n\tlisten 80;\n\t\ta\tb\n  }\n", "list": ["a\n\nb", {"c": "x\ny\n"}], "d": [["e\nf"]]});
        let expected = "nginx: |\n  server {\n  \tlisten 80;\n  \t\ta\tb\n    }\nlist:\n  - |-\n    a\n\n    b\n  - c: |\n      x\n      y\nd:\n  - - |-\n      e\n      f\n";
        assert_eq!(write(&value), expected);
        let value = json!({"nginx": "server {\n  listen 80;\n}\n"});
        assert_eq!(write(&value), "nginx: |\n  server {\n    listen 80;\n  }\n");
        assert_eq!(write(&json!("a\nb")), "|-\n  a\n  b\n");
        // A tab before the indentation is known is an error of libyaml.
        for text in [
            "\ta\nb",
            "a\n\t\nb",
            "a\n\n",
            "\na",
            " a\nb",
            "a\n \nb",
            "a\r\nb",
            "\n",
            "a\n\u{1b}",
            "a\n\u{202e}",
            "a\u{200b}\u{e0041}",
        ] {
            assert!(!write(&json!({"x": text})).contains('|'), "{text:?}");
        }
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
}
