//! Responses.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde_json::Value;

use crate::{
    Error,
    environment::{Environment, Keys},
    reader::variant_of,
};

/// A successful response.
#[derive(Debug, Clone)]
pub struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) url: String,
    /// The environment of the client, and where the data have keys of definitions.
    pub(crate) environment: Option<(Environment, Keys)>,
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

    /// The revision of the record, for `If-Match`. A candidate of a rollout has none: see [`Answer::variant`].
    #[must_use]
    pub fn revision(&self) -> Option<u64> {
        // The tag of a candidate is the id of its change request.
        self.header("etag").filter(|_| self.variant().is_none())?.trim_matches('"').parse().ok()
    }

    /// The id of the change request whose candidate this is: what this reader sees before the rollout has ended. `None` for
    /// what is proven.
    #[must_use]
    pub fn variant(&self) -> Option<&str> {
        variant_of(&self.headers)
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

    /// The same as a list.
    #[must_use]
    pub fn redacted_places(&self) -> Vec<String> {
        self.redacted().into_iter().flat_map(|places| places.split(", ")).map(str::to_owned).collect()
    }

    /// What the node warns of: a part of the request had no effect, or the response is incomplete.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        warnings_of(&self.headers)
    }

    /// The path of the next page.
    #[must_use]
    pub fn next_page(&self) -> Option<String> {
        let link = self.header("link")?;
        // Always at this cluster, whatever the header says.
        let (target, rest) = link.strip_prefix('<').filter(|rest| rest.starts_with('/'))?.split_once('>')?;
        let shown = || match &self.environment {
            Some((environment, _)) => environment.left(target),
            None => target.to_owned(),
        };
        rest.contains("rel=\"next\"").then(shown)
    }

    /// The bytes of the body, as the node sent them.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The whole body as JSON.
    ///
    /// # Errors
    /// When it is not JSON.
    pub fn json(&self) -> Result<Value, Error> {
        let mut body: Value = serde_json::from_slice(&self.body).map_err(|_| self.stranger())?;
        if let Some((environment, keys)) = &self.environment
            && let Some(data) = body.get_mut("data")
        {
            environment.leave(*keys, data);
        }
        Ok(body)
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

/// The texts of the `Warning` headers of a response.
pub(crate) fn warnings_of(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(http::header::WARNING).iter();
    values.flat_map(|value| warnings_in(&String::from_utf8_lossy(value.as_bytes()))).collect()
}

/// The texts in one header. Each is `CODE AGENT "TEXT"`; a proxy may join several with commas.
fn warnings_in(value: &str) -> Vec<String> {
    let (mut found, mut text, mut is_text, mut is_escaped) = (Vec::new(), String::new(), false, false);
    for character in value.chars() {
        match (is_text, character) {
            (true, _) if is_escaped => {
                text.push(character);
                is_escaped = false;
            }
            (true, '\\') => is_escaped = true,
            (true, '"') => {
                found.push(std::mem::take(&mut text));
                is_text = false;
            }
            (true, _) => text.push(character),
            (false, '"') => is_text = true,
            (false, _) => {}
        }
    }
    // Not in this form: the warning is shown as it is.
    if found.is_empty() { vec![value.trim().to_owned()] } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_its_text() {
        assert_eq!(warnings_in(r#"299 - "without effect: `x`""#), ["without effect: `x`"]);
        assert_eq!(warnings_in(r#"299 - "a \"b\", c", 299 n "d""#), [r#"a "b", c"#, "d"]);
        assert_eq!(warnings_in(" be careful "), ["be careful"]);
    }
}
