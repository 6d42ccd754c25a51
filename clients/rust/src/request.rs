//! Requests.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

/// What stands in a path as it is: the characters of keys.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// What stands in a query as it is.
const QUERY: &AsciiSet = &SEGMENT.remove(b'*').remove(b',').remove(b':');

/// Encodes a key as a segment of a path.
///
/// `.` and `..` are not valid keys, but URL parsers resolve them, even as `%2E`: the config `..` would be its
/// definition. They are encoded twice, so that the node receives a key and rejects it.
#[must_use]
pub fn segment(text: &str) -> String {
    if matches!(text, "." | "..") {
        return text.replace('.', "%252E");
    }
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// When a request is retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Until the time limit: a read, or a write with an idempotency key.
    UntilTimeout,
    /// At another node if the first one is unreachable or says at once that it can't serve (503), and otherwise never.
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
    pub(crate) is_proven: bool,
}

impl Request {
    /// Creates a request. The path may already have a query.
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
            is_proven: false,
        }
    }

    /// Creates a GET request.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    /// Adds a query parameter.
    pub fn query(mut self, name: &str, value: impl ToString) -> Self {
        self.query.push((name.into(), value.to_string()));
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Sets a JSON body.
    pub fn json(self, body: &Value) -> Self {
        self.body("application/json", body.to_string())
    }

    /// Sets a body of another content type.
    pub fn body(mut self, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        self.body = Some((content_type, body.into()));
        self
    }

    /// Fails with 412 unless the record has this revision.
    pub fn if_match(self, revision: u64) -> Self {
        self.header("if-match", format!("\"{revision}\""))
    }

    /// Fails with 412 if the record exists.
    pub fn if_absent(self) -> Self {
        self.header("if-none-match", "*")
    }

    /// Validates the write without storing anything.
    pub fn dry_run(self, dry_run: bool) -> Self {
        if dry_run { self.query("dry_run", "true") } else { self }
    }

    /// Sets when the request is retried.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Sets a time limit, instead of the client's.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets an idempotency key. A write that is sent again with the same key, even by another process, is applied only
    /// once. By default each write has a key that covers its retries.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Reads what is proven, also where the client's reader sees a candidate of a rollout.
    pub fn proven(mut self) -> Self {
        self.is_proven = true;
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

    /// The command of curl that sends the same, with the name of a variable in place of the key, and its input in place of
    /// the body: terminals and logs of builds show neither.
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
        if let Some((content_type, _)) = &self.body {
            line.push_str(&format!(" -H {}", quote(&format!("content-type: {content_type}"))));
            line.push_str(" --data-binary @-");
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
    fn the_curl_command_hides_the_key_and_the_data_and_quotes_the_rest() {
        let request = Request::new(Method::PUT, "/it's").if_match(7).json(&json!({"a": "secret"}));
        assert_eq!(
            request.as_curl("http://n:1"),
            r#"curl -sS -X PUT -H "Authorization: $CONCORD_API_KEY" -H 'if-match: "7"' -H 'content-type: application/json' --data-binary @- 'http://n:1/it'\''s'"#
        );
    }
}
