//! What is asked.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

/// What stands in a path as it is: the characters of keys.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// What stands in a query as it is.
const QUERY: &AsciiSet = &SEGMENT.remove(b'*').remove(b',').remove(b':');

/// A part of a path, as a key.
///
/// `.` and `..` are no keys, but what reads a URL takes them, `%2E` too, for the way to another path: a config of the key
/// `..` would be its definition. They are encoded twice, so that the node gets and refuses a key.
#[must_use]
pub fn segment(text: &str) -> String {
    if matches!(text, "." | "..") {
        return text.replace('.', "%252E");
    }
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// When a request is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Until the time is up: a read, or a write that gets an idempotency key.
    UntilTimeout,
    /// At another node if the first one can't be reached, and else never.
    OtherNode,
}

/// A request.
#[derive(Debug, Clone)]
#[must_use]
pub struct Request {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: Vec<(String, String)>,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Option<(&'static str, Bytes)>,
    pub(crate) retry: Retry,
    pub(crate) timeout: Option<Duration>,
    pub(crate) idempotency_key: Option<String>,
}

impl Request {
    /// A request of a path below the root of a node, which may have a query already.
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        Self {
            method,
            path: path.into(),
            query: Vec::new(),
            headers: Vec::new(),
            body: None,
            retry: Retry::UntilTimeout,
            timeout: None,
            idempotency_key: None,
        }
    }

    /// A read.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    /// With a parameter.
    pub fn query(mut self, name: &str, value: impl ToString) -> Self {
        self.query.push((name.into(), value.to_string()));
        self
    }

    /// With a header.
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// With a body.
    pub fn json(self, body: &Value) -> Self {
        self.body("application/json", body.to_string())
    }

    /// With a body of another type.
    pub fn body(mut self, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        self.body = Some((content_type, body.into()));
        self
    }

    /// Only if the record has this revision.
    pub fn if_match(self, revision: u64) -> Self {
        self.header("if-match", format!("\"{revision}\""))
    }

    /// Only if there is no such record.
    pub fn if_absent(self) -> Self {
        self.header("if-none-match", "*")
    }

    /// Checks and answers, and stores nothing.
    pub fn dry_run(self, dry_run: bool) -> Self {
        if dry_run { self.query("dry_run", "true") } else { self }
    }

    /// When it is sent again.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// With a time limit of its own.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// With an idempotency key of the caller's, which outlives the process: a write that is sent again with the same key
    /// is done once.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Whether it changes nothing.
    pub(crate) fn is_read(&self) -> bool {
        self.method.is_safe()
    }

    /// The path with the query.
    pub(crate) fn target(&self) -> String {
        let mut target = self.path.clone();
        for (place, (name, value)) in self.query.iter().enumerate() {
            target.push(if place == 0 && !self.path.contains('?') { '?' } else { '&' });
            let encode = |text| utf8_percent_encode(text, QUERY);
            target.push_str(&format!("{}={}", encode(name), encode(value)));
        }
        target
    }

    /// The command of curl that sends the same, with the name of a variable in place of the key.
    pub(crate) fn as_curl(&self, base: &str) -> String {
        let quote = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
        let mut line = String::from("curl -sS");
        if self.method != Method::GET {
            line.push_str(&format!(" -X {}", self.method));
        }
        line.push_str(" -H \"Authorization: $CONCORD_API_KEY\"");
        for (name, value) in &self.headers {
            line.push_str(&format!(" -H {}", quote(&format!("{name}: {value}"))));
        }
        if let Some((content_type, body)) = &self.body {
            line.push_str(&format!(" -H {}", quote(&format!("content-type: {content_type}"))));
            line.push_str(&format!(" --data-binary {}", quote(&String::from_utf8_lossy(body))));
        }
        line.push_str(&format!(" {}", quote(&format!("{base}{}", self.target()))));
        line
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_query_is_encoded_and_appended() {
        let target = Request::get("/a").query("x[gte]", 1).query("s", "a b&c").target();
        assert_eq!(target, "/a?x%5Bgte%5D=1&s=a%20b%26c");
        assert_eq!(Request::get("/a?b=1").query("c", 2).target(), "/a?b=1&c=2");
        assert_eq!(segment("a/b.~-_"), "a%2Fb.~-_");
    }

    #[test]
    fn a_key_of_dots_leads_to_no_other_path() {
        for (key, expected) in
            [(".", "%252E"), ("..", "%252E%252E"), ("...", "..."), ("%2e%2E", "%252e%252E")]
        {
            let path = format!("/d/config/{}", segment(key));
            assert_eq!(path, format!("/d/config/{expected}"));
            assert_eq!(reqwest::Url::parse(&format!("http://n{path}")).unwrap().path(), path);
        }
        assert_eq!((segment("a."), segment("..a")), ("a.".into(), "..a".into()));
    }

    #[test]
    fn the_curl_command_hides_the_key_and_quotes_the_rest() {
        let request = Request::new(Method::PUT, "/p").if_match(7).json(&json!({"a": "it's"}));
        assert_eq!(
            request.as_curl("http://n:1"),
            r#"curl -sS -X PUT -H "Authorization: $CONCORD_API_KEY" -H 'if-match: "7"' -H 'content-type: application/json' --data-binary '{"a":"it'\''s"}' 'http://n:1/p'"#
        );
    }
}
