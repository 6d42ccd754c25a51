//! A small client of a node's HTTP interface, for the command line.
//!
//! **Invariant:** each request is sent once, without retries, so that the operator sees what went wrong.

use std::{error::Error as _, path::PathBuf, time::Duration};

use clap::Args;
use http::{Method, StatusCode};
use reqwest::{RequestBuilder, Response};
use serde_json::Value;

use crate::{peer::tls::client, settings::Secret};

/// How long a request may take; the formation of a cluster waits for its first leader.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a download may take: a terabyte at 100 MB/s.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(3 * 60 * 60);
/// How long the connection to a node may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How the command line proves itself and the node over TLS.
#[derive(Debug, Args)]
pub(super) struct ClientTls {
    /// The authority of the node's certificate, in PEM; by default those that this machine trusts
    #[arg(long, env = "CONCORD_CA_FILE", value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// A certificate to show to the node, in PEM
    #[arg(long, env = "CONCORD_CLIENT_CERT_FILE", requires = "key_of_cert", value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Its key, in PEM
    #[arg(
        id = "key_of_cert",
        long = "key",
        env = "CONCORD_CLIENT_KEY_FILE",
        requires = "cert",
        value_name = "FILE"
    )]
    key: Option<PathBuf>,
}

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
    /// When the base is no URL, or the files of TLS can't be used.
    pub(super) fn new(base: &str, key: Secret, tls: &ClientTls) -> Result<Self, String> {
        let is_encrypted = base.starts_with("https://");
        if !is_encrypted && !base.starts_with("http://") {
            return Err(format!("`{base}` is not the URL of a node: expected http[s]://host:port"));
        }
        let own = tls.cert.as_deref().zip(tls.key.as_deref());
        // The roots of this machine are read only where they are used.
        let roots = if is_encrypted { client::Roots::of(tls.cacert.as_deref()) } else { client::Roots::None };
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(client::config(roots, own)?)
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(REQUEST_TIMEOUT)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { http, base: base.trim_end_matches('/').into(), key })
    }

    /// Downloads the file at a path and passes its chunks to `write`, in order.
    ///
    /// # Errors
    /// When the node can't be reached or refuses, or when a chunk can't be written.
    pub(super) async fn download(
        &self,
        path: &str,
        mut write: impl FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<(), String> {
        let url = self.url(path);
        let failed = |error: reqwest::Error| failure(&url, &error);
        let mut response = self.send(self.http.get(&url).timeout(DOWNLOAD_TIMEOUT)).await.map_err(failed)?;
        let status = response.status();
        if !status.is_success() {
            return Err(refusal(&url, status, &response.text().await.map_err(failed)?));
        }
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            write(&chunk).map_err(|error| format!("the file can't be written: {error}"))?;
        }
        Ok(())
    }

    /// Sends a request and returns the `data` of the answer.
    ///
    /// # Errors
    /// When the node can't be reached or refuses.
    pub(super) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, String> {
        let url = self.url(path);
        let failed = |error: reqwest::Error| failure(&url, &error);
        let request = self.http.request(method, &url);
        let request = body.into_iter().fold(request, RequestBuilder::json);
        let response = self.send(request).await.map_err(failed)?;
        let status = response.status();
        let text = response.text().await.map_err(failed)?;
        if !status.is_success() {
            return Err(refusal(&url, status, &text));
        }
        let answer: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        answer.get("data").cloned().ok_or_else(|| format!("{url} is not a node of Concord"))
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    async fn send(&self, request: RequestBuilder) -> reqwest::Result<Response> {
        request.header("authorization", self.key.expose()).send().await
    }
}

/// A request that did not reach the node, or whose answer is incomplete. The error's own text omits its causes.
fn failure(url: &str, error: &reqwest::Error) -> String {
    let mut text = format!("{url}: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// A refusal: its messages, or its body where that has none.
fn refusal(url: &str, status: StatusCode, text: &str) -> String {
    let body = serde_json::from_str(text).unwrap_or(Value::Null);
    let messages = messages(&body);
    format!("{url} answers {status}: {}", messages.as_deref().unwrap_or(text))
}

/// The messages of a refusal, each with its location; `None` where the body has none.
fn messages(body: &Value) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_is_printed_with_its_locations() {
        let body = json!({"status": "FAILURE", "errors": [
            {"type": "validation_error", "msg": "bad", "loc": ["members", 0, "id"]},
            {"type": "validation_error", "msg": "worse"},
        ]});
        assert_eq!(messages(&body).unwrap(), "bad (at [\"members\",0,\"id\"]); worse");
        assert_eq!(messages(&json!({"detail": [{"msg": "no"}]})).unwrap(), "no");
        assert_eq!(messages(&json!({"errors": []})), None);
        assert_eq!(messages(&Value::Null), None);
    }

    #[test]
    fn only_an_http_url_is_accepted() {
        let tls = ClientTls { cacert: None, cert: None, key: None };
        assert!(Client::new("127.0.0.1:8101", Secret::from("k"), &tls).is_err());
        assert_eq!(Client::new("http://a:1/", Secret::from("k"), &tls).unwrap().base, "http://a:1");
    }
}
