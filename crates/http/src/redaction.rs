//! How an answer says which secret values its caller is not shown.
//!
//! **Invariant:** every answer with data of configs passes here; the service has redacted the data.

use http::HeaderName;

use super::{json::Object, reply::Reply};
use concord_model::redaction::RedactedPlaces;

/// The header with the places of values that the caller is not shown.
const REDACTED: HeaderName = HeaderName::from_static("x-concord-redacted");

impl Reply {
    /// Names the places of values that the caller is not shown, where there are any.
    pub(super) fn redacted(self, places: Option<&RedactedPlaces>) -> Self {
        match places.filter(|places| !places.is_empty()) {
            Some(places) => self.header(REDACTED, &places.texts().collect::<Vec<_>>().join(", ")),
            None => self,
        }
    }
}

/// Adds the places of values that the caller is not shown: an event has no headers.
pub(super) fn with_redacted(object: Object, places: Option<&RedactedPlaces>) -> Object {
    match places {
        Some(places) => object.value("redacted", &places.texts().collect::<Vec<_>>()),
        None => object,
    }
}
