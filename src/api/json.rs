//! JSON objects built as text, so that stored JSON is copied into an answer unchanged.
//!
//! To serialize a stored text with `serde_json` would mean to parse it first, on each read. Member names are literals
//! of this crate, so they need no escaping.
//!
//! **Invariant:** what is passed to [`Object::raw`] is JSON that was validated when it was received, or made here.

use std::fmt::{Display, Write};

use serde::Serialize;

/// A JSON object under construction.
#[derive(Debug)]
pub(super) struct Object(String);

impl Object {
    pub(super) fn new() -> Self {
        Self("{".into())
    }

    /// With capacity for `bytes` of stored text and its fixed members.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        let mut text = String::with_capacity(bytes.saturating_add(256));
        text.push('{');
        Self(text)
    }

    /// A member whose value is JSON text.
    pub(super) fn raw(mut self, name: &'static str, json: &str) -> Self {
        self.member(name, json);
        self
    }

    /// A member whose value is a string that needs no escaping: a time, a valid key, a literal.
    pub(super) fn unescaped(mut self, name: &'static str, value: impl Display) -> Self {
        self.member(name, format_args!("\"{value}\""));
        self
    }

    /// A member of any value, serialized.
    pub(super) fn value(self, name: &'static str, value: &impl Serialize) -> Self {
        let json = serde_json::to_string(value).expect("strings, numbers and lists of them are always JSON");
        self.raw(name, &json)
    }

    pub(super) fn finish(mut self) -> String {
        self.0.push('}');
        self.0
    }

    fn member(&mut self, name: &'static str, json: impl Display) {
        let comma = if self.0.len() > 1 { "," } else { "" };
        write!(self.0, "{comma}\"{name}\":{json}").expect("a write to a string does not fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_text_is_copied_and_other_values_are_escaped() {
        assert_eq!(Object::new().finish(), "{}");
        let text = Object::new().raw("data", r#"{"n":7.0}"#).value("s", &"a\"b").unescaped("k", "x").finish();
        assert_eq!(text, r#"{"data":{"n":7.0},"s":"a\"b","k":"x"}"#);
    }
}
