//! An answer of the service, with the assertions that tests make of it.

use std::fmt;

use http::HeaderMap;
use serde_json::Value;

/// Status, headers and body.
#[derive(Clone)]
pub(crate) struct Answer {
    /// The request, for messages.
    pub(crate) asked: String,
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// The body as it was sent.
    pub(crate) text: String,
    /// The body as JSON; null when it is none.
    pub(crate) body: Value,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text: String = self.text.chars().take(2000).collect();
        write!(f, "{} → {} {:?} {text}", self.asked, self.status, self.headers)
    }
}

impl Answer {
    /// Asserts the status.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// A header's text; empty when absent.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The payload of a successful answer, after asserting its envelope.
    #[track_caller]
    pub(crate) fn data(&self) -> &Value {
        assert_eq!(names(&self.body), ["data", "message", "status"], "the envelope of {self:?}");
        assert_eq!(self.body["status"], "SUCCESS", "{self:?}");
        assert!(self.body["message"].is_string(), "{self:?}");
        &self.body["data"]
    }

    /// Asserts a refusal of the `errors` shape.
    #[track_caller]
    pub(crate) fn refused(self, status: u16, kind: &str) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(names(&self.body), ["errors", "status"], "the envelope of {self:?}");
        assert_eq!(self.body["status"], "FAILURE", "{self:?}");
        let errors = self.body["errors"].as_array().expect("`errors` is a list");
        assert!(!errors.is_empty(), "{self:?}");
        for error in errors {
            assert_eq!(error["type"], kind, "{self:?}");
            assert!(error["msg"].as_str().is_some_and(|msg| !msg.is_empty()), "{self:?}");
            let known =
                names(error).iter().all(|name| ["code", "type", "msg", "loc"].contains(&name.as_str()));
            assert!(known, "an item holds type, code, msg and perhaps loc: {self:?}");
            assert!(error["code"].as_str().is_some_and(|code| !code.is_empty()), "{self:?}");
            assert!(error.get("loc").is_none_or(Value::is_array), "{self:?}");
        }
        self
    }

    /// Asserts a refusal by the rules of the service: 422 of the `errors` shape.
    #[track_caller]
    pub(crate) fn invalid(self) -> Self {
        self.refused(422, "validation_error")
    }

    /// Asserts a refusal of the framework's level: 422 with exactly these (loc, type), in any order.
    #[track_caller]
    pub(crate) fn detail(self, expected: &[(Value, &str)]) -> Self {
        assert_eq!(self.status, 422, "{self:?}");
        assert_eq!(names(&self.body), ["detail"], "{self:?}");
        let items = self.body["detail"].as_array().expect("`detail` is a list");
        for item in items {
            assert_eq!(names(item), ["loc", "msg", "type"], "{self:?}");
            assert!(item["msg"].as_str().is_some_and(|msg| !msg.is_empty()), "{self:?}");
        }
        for (loc, kind) in expected {
            let found = items.iter().any(|item| item["loc"] == *loc && item["type"] == *kind);
            assert!(found, "no `{kind}` at {loc}: {self:?}");
        }
        assert_eq!(items.len(), expected.len(), "{self:?}");
        self
    }

    /// The `config_key`s of a list, in its order.
    #[track_caller]
    pub(crate) fn config_keys(&self) -> Vec<String> {
        self.keys_of("config_key")
    }

    /// The named member of each result of a list, in its order.
    #[track_caller]
    pub(crate) fn keys_of(&self, name: &str) -> Vec<String> {
        assert_eq!(self.status, 200, "{self:?}");
        let results = self.data()["results"].as_array().expect("`results` is a list");
        results.iter().map(|record| record[name].as_str().expect("a key is a string").to_owned()).collect()
    }

    /// The total of a list.
    #[track_caller]
    pub(crate) fn total(&self) -> u64 {
        self.data()["meta"]["total"].as_u64().expect("`total` is an integer")
    }

    /// The revision that the answer was made from.
    #[track_caller]
    pub(crate) fn revision(&self) -> u64 {
        self.header("x-concord-revision").parse().unwrap_or_else(|_| panic!("no revision: {self:?}"))
    }

    /// The record's revision, from its entity tag.
    #[track_caller]
    pub(crate) fn tag(&self) -> String {
        let tag = self.header("etag");
        let inner = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
        assert!(inner.is_some_and(|inner| inner.parse::<u64>().is_ok()), "an entity tag: {self:?}");
        tag.to_owned()
    }
}

/// The member names of an object, sorted.
pub(crate) fn names(value: &Value) -> Vec<String> {
    let mut names: Vec<String> = value.as_object().map(|o| o.keys().cloned().collect()).unwrap_or_default();
    names.sort();
    names
}

/// Whether a text is RFC 3339 in UTC with microseconds and `Z`.
pub(crate) fn is_timestamp(value: &Value) -> bool {
    let pattern = "0000-00-00T00:00:00.000000Z";
    value.as_str().is_some_and(|text| {
        text.len() == pattern.len()
            && text
                .bytes()
                .zip(pattern.bytes())
                .all(|(b, f)| if f == b'0' { b.is_ascii_digit() } else { b == f })
    })
}
