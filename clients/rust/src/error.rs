//! Why a request failed.
//!
//! **Invariant:** [`Error::Unavailable`] and [`Error::Refused`] say that a write was not applied. A write that may have
//! been applied is [`Error::Unknown`].

use std::fmt;

use http::StatusCode;
use serde_json::Value;

/// One error of a rejection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The stable code, as in `config_exists`; empty if the node sent none.
    pub code: String,
    /// What is wrong.
    pub msg: String,
    /// The place in the request; empty if the error concerns the whole request.
    pub loc: Vec<Value>,
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.loc.is_empty() {
            return f.write_str(&self.msg);
        }
        for part in &self.loc {
            match part.as_str() {
                Some(name) => write!(f, "/{}", name.replace('~', "~0").replace('/', "~1"))?,
                None => write!(f, "/{part}")?,
            }
        }
        write!(f, ": {}", self.msg)
    }
}

/// The error response of a node.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// The status.
    pub status: StatusCode,
    /// The reasons; never empty.
    pub items: Vec<Item>,
    /// The URL of the request.
    pub url: String,
    /// The id of the request, for the log of the node.
    pub request_id: String,
    /// The body of the response, if it is JSON.
    pub body: Value,
    /// Of a 412, the revision that the record has, if it exists.
    pub current_revision: Option<u64>,
    /// The environment of the client: [`url`](Self::url) and messages have definition keys with it.
    pub environment: Option<String>,
}

impl Refusal {
    pub(crate) fn new(url: &str, status: StatusCode, request_id: String, text: &str) -> Self {
        let body: Value = serde_json::from_str(text).unwrap_or_default();
        let listed = body.get("errors").or_else(|| body.get("detail")).and_then(Value::as_array);
        let mut items: Vec<Item> = listed.into_iter().flatten().filter_map(item).collect();
        if items.is_empty() {
            let msg =
                if text.is_empty() { "no reason given".into() } else { text.chars().take(500).collect() };
            items.push(Item { code: String::new(), msg, loc: Vec::new() });
        }
        Self { status, items, url: url.into(), request_id, body, current_revision: None, environment: None }
    }

    /// The client's own rejection if the nodes now belong to another cluster, or to one that was restored to an earlier
    /// state: there is no revision to resume from.
    pub(crate) fn other_cluster(url: &str) -> Self {
        let msg = "the nodes now belong to another cluster, or were restored to an earlier state: resync from the current state";
        let item = Item { code: "cluster_changed".into(), msg: msg.into(), loc: Vec::new() };
        let (status, body) = (StatusCode::GONE, Value::Null);
        let (request_id, items, url) = (String::new(), vec![item], url.into());
        Self { status, items, url, request_id, body, current_revision: None, environment: None }
    }
}

fn item(error: &Value) -> Option<Item> {
    let text = |name| error.get(name).and_then(Value::as_str);
    let loc = error.get("loc").and_then(Value::as_array).cloned().unwrap_or_default();
    Some(Item { code: text("code").unwrap_or_default().into(), msg: text("msg")?.into(), loc })
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} responded {}", self.url, self.status)?;
        for (place, item) in self.items.iter().enumerate() {
            write!(f, "{} {item}", if place == 0 { ":" } else { ";" })?;
        }
        Ok(())
    }
}

/// Why a request failed.
#[derive(Debug)]
pub enum Error {
    /// The options or the request are invalid; nothing was sent.
    Usage(String),
    /// A node rejected the request; nothing was changed.
    Refused(Box<Refusal>),
    /// No node could serve the request in time; nothing was changed.
    Unavailable(String),
    /// The outcome is unknown: the write may have been applied. The same request with this idempotency key is safe: the
    /// cluster applies both once.
    Unknown {
        /// What the attempts met.
        text: String,
        /// The idempotency key of the write, if it had one.
        idempotency_key: Option<String>,
    },
    /// The response is not from a Concord node.
    Protocol(String),
}

impl Error {
    /// The status of a rejection.
    #[must_use]
    pub fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Refused(refusal) => Some(refusal.status),
            Self::Usage(_) | Self::Unavailable(_) | Self::Unknown { .. } | Self::Protocol(_) => None,
        }
    }

    /// The stable code of a rejection's first reason, as in `config_exists`; empty for other errors.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::Refused(refusal) => refusal.items.first().map_or("", |item| &item.code),
            Self::Usage(_) | Self::Unavailable(_) | Self::Unknown { .. } | Self::Protocol(_) => "",
        }
    }

    /// Whether the environment takes change requests only. A retry gets the same error.
    #[must_use]
    pub fn is_change_required(&self) -> bool {
        self.code() == "change_required"
    }

    /// Whether the environment is frozen. The client does not retry: a freeze may last for days.
    #[must_use]
    pub fn is_environment_frozen(&self) -> bool {
        self.code() == "environment_frozen"
    }

    /// Whether the error is 404: the record does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(StatusCode::NOT_FOUND)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Unknown { text, .. } => {
                write!(f, "the outcome is unknown, the write may have been applied: {text}")
            }
            Self::Usage(text) | Self::Unavailable(text) | Self::Protocol(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_place_of_each_reason() {
        let text = r#"{"status": "FAILURE", "errors": [
            {"type": "validation_error", "code": "data_invalid", "msg": "bad", "loc": ["members", 0, "a/b"]},
            {"type": "validation_error", "msg": "worse"}]}"#;
        let refusal = Refusal::new("http://a:1/x", StatusCode::UNPROCESSABLE_ENTITY, "r".into(), text);
        assert_eq!(
            refusal.to_string(),
            "http://a:1/x responded 422 Unprocessable Entity: /members/0/a~1b: bad; worse"
        );
        assert_eq!(refusal.items[0].code, "data_invalid");
    }

    #[test]
    fn a_refusal_without_a_known_body_shows_the_body() {
        let shown = |text| Refusal::new("u", StatusCode::BAD_GATEWAY, String::new(), text).to_string();
        assert_eq!(shown("a proxy"), "u responded 502 Bad Gateway: a proxy");
        assert_eq!(shown(r#"{"detail": [{"msg": "no"}]}"#), "u responded 502 Bad Gateway: no");
        assert_eq!(shown(""), "u responded 502 Bad Gateway: no reason given");
    }
}
