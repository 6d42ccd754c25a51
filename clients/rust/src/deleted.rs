//! Deleted definitions: which ones are kept, and undoing a deletion.
//!
//! **Invariant:** undoing a deletion is one write, with an idempotency key: a retry is told what the first attempt did.

use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{Answer, Client, Error, Request, records::definition_path};

/// As of when a definition returns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum UndeleteAt {
    /// As it was when it was deleted.
    #[default]
    Deletion,
    /// As of a revision.
    Revision(u64),
    /// As of the last change at this time (RFC 3339) or before it.
    Time(String),
}

/// A deleted definition that is kept, so that its deletion can be undone.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct DeletedDefinition {
    /// The key of the definition.
    #[serde(rename = "config_definition_key")]
    pub definition: String,
    /// The revision that deleted it.
    #[serde(rename = "deleted_revision")]
    pub revision: u64,
    /// When it was deleted, in RFC 3339.
    #[serde(rename = "deleted_at")]
    pub at: String,
    /// The configs that return with it.
    pub configs: u64,
    /// The bytes of their keys and data.
    pub bytes: u64,
}

/// What has returned.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Undeleted {
    /// The key of the definition.
    #[serde(rename = "config_definition_key")]
    pub definition: String,
    /// The revision that had deleted it.
    pub deleted_revision: u64,
    /// The revision as of which it returned.
    pub revision: u64,
    /// Its configs; `None` if the access key may not read them, or their number is not known before.
    #[serde(default)]
    pub configs: Option<u64>,
    /// The bytes of their keys and data, likewise.
    #[serde(default)]
    pub bytes: Option<u64>,
}

impl Request {
    /// Undoes the deletion of a definition. The response is read by [`Answer::undeleted`].
    pub fn undelete(definition: &str, at: &UndeleteAt) -> Self {
        let body = match at {
            UndeleteAt::Deletion => json!({}),
            UndeleteAt::Revision(revision) => json!({ "revision": revision }),
            UndeleteAt::Time(time) => json!({ "time": time }),
        };
        Self::new(Method::POST, format!("{}/undelete", definition_path(definition))).json(&body)
    }

    /// Lists the deleted definitions that are kept. The response is read by [`Answer::deleted_definitions`].
    pub fn deleted_definitions() -> Self {
        Self::get("/api/v1/deleted_definition/")
    }
}

impl Answer {
    /// What has returned.
    ///
    /// # Errors
    /// When the response is not that of [`Request::undelete`].
    pub fn undeleted(&self) -> Result<Undeleted, Error> {
        serde_json::from_value(self.data()?).map_err(|_| self.stranger())
    }

    /// The deleted definitions that are kept.
    ///
    /// # Errors
    /// When the response is not that of [`Request::deleted_definitions`].
    pub fn deleted_definitions(&self) -> Result<Vec<DeletedDefinition>, Error> {
        let results = self.data()?.get_mut("results").map(Value::take);
        serde_json::from_value(results.unwrap_or_default()).map_err(|_| self.stranger())
    }
}

impl Client {
    /// Undoes the deletion of a definition: it returns with its configs, at once. Use [`Request::undelete`] for a dry run
    /// or an idempotency key of your own.
    ///
    /// # Errors
    /// As [`Client::send`]: 404 (`deletion_not_kept`) if no deleted definition with this key is kept, 409
    /// (`definition_exists`) if there is a definition with it.
    pub async fn undelete(&self, definition: &str, at: &UndeleteAt) -> Result<Undeleted, Error> {
        self.send(Request::undelete(definition, at)).await?.undeleted()
    }

    /// The deleted definitions that are kept, so that their deletion can be undone; the last deletion first.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn deleted_definitions(&self) -> Result<Vec<DeletedDefinition>, Error> {
        self.send(Request::deleted_definitions()).await?.deleted_definitions()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, StatusCode};

    use super::*;

    fn answer(body: &Value) -> Answer {
        let (status, headers) = (StatusCode::OK, HeaderMap::new());
        Answer {
            status,
            headers,
            body: Bytes::from(body.to_string()),
            url: "http://n:1/".into(),
            environment: None,
        }
    }

    #[test]
    fn the_request_says_as_of_when() {
        for (at, expected) in [
            (UndeleteAt::Deletion, "{}"),
            (UndeleteAt::Revision(7), r#"{"revision":7}"#),
            (UndeleteAt::Time("2026-03-01T00:00:00Z".into()), r#"{"time":"2026-03-01T00:00:00Z"}"#),
        ] {
            let request = Request::undelete("a b", &at);
            assert_eq!(
                (&request.method, &*request.path),
                (&Method::POST, "/api/v1/config_definition/a%20b/undelete")
            );
            assert_eq!(request.body, Some(("application/json", Bytes::from(expected))));
        }
    }

    #[test]
    fn responses_are_read() {
        let body = json!({"data": {"config_definition_key": "d", "deleted_revision": 9, "revision": 8}});
        let undeleted = answer(&body).undeleted().unwrap();
        assert_eq!((undeleted.deleted_revision, undeleted.revision, undeleted.configs), (9, 8, None));
        let kept = json!({
            "config_definition_key": "d", "deleted_revision": 9, "deleted_at": "2026-03-01T00:00:00.000000Z",
            "configs": 2, "bytes": 30,
        });
        let listed = answer(&json!({"data": {"results": [kept]}})).deleted_definitions().unwrap();
        assert_eq!((&*listed[0].definition, listed[0].revision, listed[0].configs), ("d", 9, 2));
        for other in [json!({}), json!({"data": {}}), json!({"data": {"results": [{}]}})] {
            assert!(matches!(answer(&other).deleted_definitions(), Err(Error::Protocol(_))), "{other}");
            assert!(matches!(answer(&other).undeleted(), Err(Error::Protocol(_))), "{other}");
        }
    }
}
