//! The bodies of refusals: `errors`, and `detail` for requests of the wrong shape.
//!
//! **Invariant:** an item has a place where there is one.

use axum::response::{IntoResponse as _, Response};
use http::{StatusCode, header};
use serde_json::{Value, json};

use super::{Detail, JSON};
use crate::model::error::{LocSegment, Violation};

pub(super) fn failure(status: StatusCode, kind: &'static str, violations: &[Violation]) -> Response {
    (status, [(header::CONTENT_TYPE, JSON)], failure_body(kind, violations)).into_response()
}

pub(super) fn failure_body(kind: &'static str, violations: &[Violation]) -> String {
    let items: Vec<Value> = violations
        .iter()
        .map(|violation| {
            let mut item = json!({ "type": kind, "msg": violation.msg });
            if !violation.loc.is_empty() {
                item["loc"] = loc_json(&violation.loc);
            }
            item
        })
        .collect();
    json!({ "status": "FAILURE", "errors": items }).to_string()
}

pub(super) fn shape_response(details: &[Detail]) -> Response {
    let items: Vec<Value> = details
        .iter()
        .map(|detail| json!({ "loc": loc_json(&detail.loc), "msg": detail.msg, "type": detail.kind }))
        .collect();
    let body = json!({ "detail": items });
    (StatusCode::UNPROCESSABLE_ENTITY, [(header::CONTENT_TYPE, JSON)], body.to_string()).into_response()
}

/// A location as JSON.
pub(in crate::api) fn loc_json(loc: &[LocSegment]) -> Value {
    let step = |step: &LocSegment| match step {
        LocSegment::Name(name) => Value::from(name.as_str()),
        LocSegment::Index(place) => Value::from(*place),
    };
    loc.iter().map(step).collect()
}
