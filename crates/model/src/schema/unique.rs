//! `uniqueItems` in O(n log n), whatever the items are.
//!
//! The validator's own implementation searches duplicates in a hash table whose hash ignores the nesting of arrays and
//! the value of numbers beyond a double, so that a hostile array of a megabyte costs minutes. Here each item gets a
//! canonical text, and equal texts mean equal items.
//!
//! **Invariant:** two values have the same text exactly when they are equal by JSON Schema.

use std::collections::BTreeMap;

use jsonschema::{Keyword, ValidationError, paths::Location};
use serde_json::{Map, Number, Value};

use crate::decimal::Decimal;

/// The keyword with its value in the schema.
struct UniqueItems(bool);

/// Creates the keyword.
#[expect(clippy::unnecessary_wraps, reason = "the signature that `with_keyword` calls")]
pub(super) fn keyword<'a>(
    _: &'a Map<String, Value>,
    value: &'a Value,
    _: Location,
) -> Result<Box<dyn for<'i> Keyword<'i>>, ValidationError<'a>> {
    Ok(Box::new(UniqueItems(value == &Value::Bool(true))))
}

impl<'i> Keyword<'i> for UniqueItems {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        match instance.as_array().filter(|_| self.0).and_then(|items| first_duplicate(items)) {
            Some((first, second)) => Err(ValidationError::custom(format!(
                "items {first} and {second} are equal, but must be unique"
            ))),
            None => Ok(()),
        }
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        self.validate(instance).is_ok()
    }
}

/// The positions of two equal items.
fn first_duplicate(items: &[Value]) -> Option<(usize, usize)> {
    let mut seen = BTreeMap::new();
    items.iter().enumerate().find_map(|(position, item)| {
        let mut text = String::new();
        write(item, &mut text);
        seen.insert(text, position).map(|first| (first, position))
    })
}

/// Appends the canonical text of a value: members sorted, numbers by value. Recursion is bounded by the data's depth.
fn write(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push('n'),
        Value::Bool(true) => out.push('t'),
        Value::Bool(false) => out.push('f'),
        Value::Number(number) => write_number(number, out),
        Value::String(text) => write_text(text, out),
        Value::Array(items) => {
            out.push('[');
            items.iter().for_each(|item| write(item, out));
            out.push(']');
        }
        Value::Object(map) => {
            let sorted: BTreeMap<_, _> = map.iter().collect();
            out.push('{');
            for (name, member) in sorted {
                write_text(name, out);
                write(member, out);
            }
            out.push('}');
        }
    }
}

/// A string prefixed by its length, so that no string can look like structure.
fn write_text(text: &str, out: &mut String) {
    out.push_str(&format!("\"{}:", text.len()));
    out.push_str(text);
}

/// The digits without zeros around them and the exponent of `0.d₁d₂… × 10^e`: `0.010` and `1e-2` are both `#1e-1;`.
/// Numbers are not expanded, so the cost is that of the text.
fn write_number(number: &Number, out: &mut String) {
    let number = Decimal::of(number.as_str());
    out.push_str(if number.is_negative { "#-" } else { "#" });
    out.extend(number.digits.iter().map(|digit| char::from(b'0' + digit)));
    out.push_str(&format!("e{};", number.exponent));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        let mut out = String::new();
        write(&serde_json::from_str(text).unwrap(), &mut out);
        out
    }

    #[test]
    fn equal_values_have_one_text() {
        for alike in [
            &["1", "1.0", "1e0", "10e-1", "0.1E+1", "100e-2"][..],
            &["0", "-0", "0.0", "-0.0e5", "0e999999999999999999999999999999999999999999"],
            &["-1.50", "-15e-1"],
            &["1e400", "10e399", "0.1e401"],
            &[r#"{"a":1,"b":[2]}"#, r#"{"b":[2.0],"a":1e0}"#],
        ] {
            for text in alike {
                assert_eq!(canonical(text), canonical(alike[0]), "{text} {}", alike[0]);
            }
        }
    }

    #[test]
    fn other_values_have_other_texts() {
        let all = [
            "1",
            "-1",
            "10",
            "0.1",
            "\"1\"",
            "true",
            "false",
            "null",
            "0",
            "1e400",
            "1e401",
            "-1e400",
            "1e-400",
            "123456789012345678901234567890",
            "123456789012345678901234567891",
            "[]",
            "[[]]",
            "[[],[]]",
            "[[[]]]",
            "[1,[2]]",
            "[[1],2]",
            "{}",
            "[{}]",
            r#"{"a":null}"#,
            r#"{"a":1}"#,
            r#"{"b":1}"#,
            r#"["a","b"]"#,
            r#"["ab"]"#,
            r#"["a\"1:b"]"#,
            "\"\"",
            "1e99999999999999999999999999999999999999999999",
        ];
        for (n, one) in all.iter().enumerate() {
            for other in &all[n + 1..] {
                assert_ne!(canonical(one), canonical(other), "{one} {other}");
            }
        }
    }
}
