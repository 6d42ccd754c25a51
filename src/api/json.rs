//! JSON text that is put together, not serialised: stored texts are spliced in as they are.
//!
//! Serialising a stored text as JSON would parse it first, on each read. Member names are literals of ours, so
//! they need no escaping. **Invariant:** what goes through [`Object::raw`] is JSON that was checked at intake or
//! made here.

use std::fmt::Write;

use serde::Serialize;

/// A JSON object in the making.
#[derive(Debug)]
pub(super) struct Object(String);

impl Object {
    pub(super) fn new() -> Self {
        Self("{".into())
    }

    /// With room for `bytes` of stored text.
    pub(super) fn with_room(bytes: usize) -> Self {
        let mut text = String::with_capacity(bytes.saturating_add(256));
        text.push('{');
        Self(text)
    }

    /// A member whose value is JSON text.
    pub(super) fn raw(mut self, name: &'static str, json: &str) -> Self {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        write!(self.0, "\"{name}\":{json}").expect("a string takes what memory holds");
        self
    }

    /// A member whose value is shown as a string that needs no escaping: a time, a key that was checked.
    pub(super) fn plain(self, name: &'static str, value: impl std::fmt::Display) -> Self {
        self.raw(name, &format!("\"{value}\""))
    }

    /// A member of any value.
    pub(super) fn value(self, name: &'static str, value: &impl Serialize) -> Self {
        let json = serde_json::to_string(value).expect("texts, numbers and lists of them are always JSON");
        self.raw(name, &json)
    }

    pub(super) fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_text_is_spliced_and_other_values_are_escaped() {
        assert_eq!(Object::new().end(), "{}");
        let text = Object::new().raw("data", r#"{"n":7.0}"#).value("s", &"a\"b").plain("k", "x").end();
        assert_eq!(text, r#"{"data":{"n":7.0},"s":"a\"b","k":"x"}"#);
    }
}
