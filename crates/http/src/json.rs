//! JSON objects built as text, so that stored JSON is copied into a response unchanged.
//!
//! To serialize a stored text with `serde_json` would mean to parse it first, on each read. Member names are literals
//! of this crate, so they need no escaping.
//!
//! **Invariant:** what is passed to [`Object::raw`] is JSON that was validated when it was received, or made here.

use serde::Serialize;
use serde_json::Value;

use concord_model::{error::LocSegment, key::Key, redaction::RedactedPlaces, time::Timestamp};

/// A JSON object under construction.
#[derive(Debug)]
pub(super) struct Object(String);

impl Object {
    pub(super) fn new() -> Self {
        Self("{".into())
    }

    /// With capacity for `bytes` of stored text and its fixed members.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self::behind(String::with_capacity(bytes.saturating_add(256)))
    }

    /// An object behind a text, whose end it becomes.
    pub(super) fn behind(mut text: String) -> Self {
        text.push('{');
        Self(text)
    }

    /// A member whose value is JSON text.
    pub(super) fn raw(mut self, name: &'static str, json: &str) -> Self {
        self.name(name);
        self.0.push_str(json);
        self
    }

    /// A member whose name is a key, and whose value is JSON text.
    pub(super) fn keyed(mut self, key: &Key, json: &str) -> Self {
        self.name(key.as_str());
        self.0.push_str(json);
        self
    }

    /// A member whose value is a string that needs no escaping: a valid key, a literal.
    pub(super) fn unescaped(mut self, name: &'static str, value: &str) -> Self {
        self.name(name);
        self.quoted(value);
        self
    }

    /// A member whose value is a time.
    pub(super) fn time(mut self, name: &'static str, time: Timestamp) -> Self {
        self.name(name);
        self.quoted(&time.text());
        self
    }

    /// A member whose value is an object, written in place.
    pub(super) fn object(mut self, name: &'static str, members: impl FnOnce(Self) -> Self) -> Self {
        self.name(name);
        self.0.push('{');
        let mut whole = members(self);
        whole.0.push('}');
        whole
    }

    /// A member of any value, serialized.
    pub(super) fn value(self, name: &'static str, value: &impl Serialize) -> Self {
        let json = serde_json::to_string(value).expect("strings, numbers and lists of them are always JSON");
        self.raw(name, &json)
    }

    /// A member whose name needs no escaping, of any value.
    pub(super) fn member(mut self, name: &str, value: &Value) -> Self {
        self.name(name);
        self.0.push_str(&value.to_string());
        self
    }

    /// The object, and what it was begun behind.
    pub(super) fn finish(mut self) -> String {
        self.0.push('}');
        self.0
    }

    /// Begins a member. The text before it ends with the bracket of its object, or with a whole value, which ends with
    /// no such bracket.
    fn name(&mut self, name: &str) {
        if !self.0.ends_with('{') {
            self.0.push(',');
        }
        self.quoted(name);
        self.0.push(':');
    }

    fn quoted(&mut self, text: &str) {
        self.0.push('"');
        self.0.push_str(text);
        self.0.push('"');
    }
}

/// A location as JSON.
pub(super) fn loc_json(loc: &[LocSegment]) -> Value {
    let step = |step: &LocSegment| match step {
        LocSegment::Name(name) => Value::from(name.as_str()),
        LocSegment::Index(place) => Value::from(*place),
    };
    loc.iter().map(step).collect()
}

/// Adds the places of values that the client is not shown: an event has no headers.
pub(super) fn with_redacted(object: Object, places: Option<&RedactedPlaces>) -> Object {
    match places {
        Some(places) => object.value("redacted", &places.texts().collect::<Vec<_>>()),
        None => object,
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
        let text = Object::new().object("a", |a| a).object("b", |b| b.raw("c", "1").time("t", Timestamp(1)));
        let expected = r#"{"a":{},"b":{"c":1,"t":"1970-01-01T00:00:00.000001Z"},"d":2}"#;
        assert_eq!(text.raw("d", "2").finish(), expected);
        let text =
            Object::behind(Object::behind("[".into()).raw("a", "1").finish() + ",").raw("b", "2").finish();
        assert_eq!(text, r#"[{"a":1},{"b":2}"#);
    }
}
