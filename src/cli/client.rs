//! A small client of a node's API, for the command line.
//!
//! **Invariant:** one call, no retries: who forms a cluster or asks for its status is to see what went wrong.

use std::time::Duration;

use http::Method;
use serde_json::Value;

use crate::settings::Secret;

/// How long a call may take; forming a cluster waits for its first leader.
const CALL: Duration = Duration::from_secs(60);
/// How long a file may take: a terabyte on a link of 100 MB/s.
const DOWNLOAD: Duration = Duration::from_secs(3 * 60 * 60);
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(3);

/// A client of one node.
#[derive(Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    base: String,
    key: Secret,
}

impl Client {
    /// A client of the node at `base`, as in `http://127.0.0.1:8101`.
    ///
    /// # Errors
    /// When the base is no `http` URL.
    pub(super) fn new(base: &str, key: Secret) -> Result<Self, String> {
        if !base.starts_with("http://") {
            return Err(format!("`{base}` is no URL of a node: expected http://host:port"));
        }
        let http = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(CONNECT)
            .timeout(CALL)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { http, base: base.trim_end_matches('/').into(), key })
    }

    /// Gives the pieces of the file at a path, in order.
    ///
    /// # Errors
    /// When the node can't be reached, what it refuses with, or when a piece can't be taken.
    pub(super) async fn download(
        &self,
        path: &str,
        mut take: impl FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<(), String> {
        let url = format!("{}{path}", self.base);
        let request = self.http.get(&url).timeout(DOWNLOAD).header("authorization", self.key.expose());
        let mut answer = request.send().await.map_err(|error| format!("{url}: {}", chain(&error)))?;
        let status = answer.status();
        if !status.is_success() {
            let text = answer.text().await.map_err(|error| format!("{url}: {}", chain(&error)))?;
            let body = serde_json::from_str(&text).unwrap_or(Value::Null);
            return Err(format!("{url} answers {status}: {}", refusal(&body).unwrap_or(text)));
        }
        while let Some(piece) = answer.chunk().await.map_err(|error| format!("{url}: {}", chain(&error)))? {
            take(&piece).map_err(|error| format!("the file can't be written: {error}"))?;
        }
        Ok(())
    }

    /// Calls a path and gives the `data` of its answer.
    ///
    /// # Errors
    /// When the node can't be reached, or what it refuses with.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, String> {
        let url = format!("{}{path}", self.base);
        let mut request = self.http.request(method, &url).header("authorization", self.key.expose());
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await.map_err(|error| format!("{url}: {}", chain(&error)))?;
        let status = answer.status();
        let text = answer.text().await.map_err(|error| format!("{url}: {}", chain(&error)))?;
        let body: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        if status.is_success() {
            return body.get("data").cloned().ok_or_else(|| format!("{url} is no node of Concord"));
        }
        Err(format!("{url} answers {status}: {}", refusal(&body).unwrap_or(text)))
    }
}

/// The messages of a refusal, each with its place.
fn refusal(body: &Value) -> Option<String> {
    let errors = body.get("errors").or_else(|| body.get("detail"))?.as_array()?;
    let texts: Vec<String> = errors
        .iter()
        .filter_map(|error| {
            let msg = error.get("msg")?.as_str()?;
            Some(error.get("loc").map_or_else(|| msg.into(), |loc| format!("{msg} (at {loc})")))
        })
        .collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// An error with its causes: the HTTP client's own text hides them.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_is_told_with_its_places() {
        let body = json!({"status": "FAILURE", "errors": [
            {"type": "validation_error", "msg": "bad", "loc": ["members", 0, "id"]},
            {"type": "validation_error", "msg": "worse"},
        ]});
        assert_eq!(refusal(&body).unwrap(), "bad (at [\"members\",0,\"id\"]); worse");
        assert_eq!(refusal(&json!({"detail": [{"msg": "no"}]})).unwrap(), "no");
        assert_eq!(refusal(&json!({"errors": []})), None);
        assert_eq!(refusal(&Value::Null), None);
    }

    #[test]
    fn only_a_url_of_a_node_is_taken() {
        assert!(Client::new("127.0.0.1:8101", Secret::from("k")).is_err());
        assert_eq!(Client::new("http://a:1/", Secret::from("k")).unwrap().base, "http://a:1");
    }
}
