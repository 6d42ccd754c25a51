//! Responses.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde_json::Value;

use crate::Error;

/// A successful response.
#[derive(Debug, Clone)]
pub struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) url: String,
}

impl Answer {
    /// The status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// A header, if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The revision of the record, for `If-Match`.
    #[must_use]
    pub fn revision(&self) -> Option<u64> {
        self.header("etag")?.trim_matches('"').parse().ok()
    }

    /// The revision that the request was evaluated at.
    #[must_use]
    pub fn state_revision(&self) -> Option<u64> {
        self.header("x-concord-revision")?.parse().ok()
    }

    /// The id of the cluster, in responses about its changes.
    #[must_use]
    pub fn cluster(&self) -> Option<&str> {
        self.header("x-concord-cluster")
    }

    /// The secret fields that were redacted, because the access key does not have `reveal`.
    #[must_use]
    pub fn redacted(&self) -> Option<&str> {
        self.header("x-concord-redacted")
    }

    /// The path of the next page.
    #[must_use]
    pub fn next_page(&self) -> Option<String> {
        let link = self.header("link")?;
        let (target, rest) = link.strip_prefix('<')?.split_once('>')?;
        rest.contains("rel=\"next\"").then(|| target.to_owned())
    }

    /// The bytes of the body.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The whole body as JSON.
    ///
    /// # Errors
    /// When it is not JSON.
    pub fn json(&self) -> Result<Value, Error> {
        serde_json::from_slice(&self.body).map_err(|_| self.stranger())
    }

    /// The `data` of the response.
    ///
    /// # Errors
    /// When the response has none, so it is not from a node.
    pub fn data(&self) -> Result<Value, Error> {
        let mut body = self.json()?;
        let data = body.as_object_mut().and_then(|body| body.shift_remove("data"));
        data.ok_or_else(|| self.stranger())
    }

    pub(crate) fn stranger(&self) -> Error {
        Error::Protocol(format!("{} is not a node of Concord", self.url))
    }
}
