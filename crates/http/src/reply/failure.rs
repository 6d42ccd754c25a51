//! The bodies of refusals: `errors`, and `detail` for requests of the wrong shape.
//!
//! **Invariant:** an item has a code, and a place where there is one.

use axum::response::{IntoResponse as _, Response};
use http::{StatusCode, header};
use serde_json::{Value, json};

use super::{Code, Detail, JSON};
use crate::json::loc_json;
use concord_model::error::Violation;

pub(super) fn failure(
    status: StatusCode,
    kind: &'static str,
    code: Code,
    violations: &[Violation],
) -> Response {
    (status, [(header::CONTENT_TYPE, JSON)], failure_body(kind, code, violations)).into_response()
}

/// A failure of one text without a place.
pub(super) fn plain((status, kind): (StatusCode, &'static str), code: Code, msg: &str) -> Response {
    failure(status, kind, code, &[Violation::new(msg)])
}

pub(super) fn failure_body(kind: &'static str, code: Code, violations: &[Violation]) -> String {
    json!({ "status": "FAILURE", "errors": items(kind, code, violations) }).to_string()
}

/// The items of `errors`.
pub(super) fn items(kind: &'static str, code: Code, violations: &[Violation]) -> Vec<Value> {
    violations
        .iter()
        .map(|violation| {
            let code = code.at(&violation.loc).name();
            let mut item = json!({ "type": kind, "code": code, "msg": violation.msg });
            if !violation.loc.is_empty() {
                item["loc"] = loc_json(&violation.loc);
            }
            item
        })
        .collect()
}

pub(super) fn shape_response(details: &[Detail]) -> Response {
    let items: Vec<Value> = details
        .iter()
        .map(|detail| json!({ "loc": loc_json(&detail.loc), "msg": detail.msg, "type": detail.kind }))
        .collect();
    let body = json!({ "detail": items });
    (StatusCode::UNPROCESSABLE_ENTITY, [(header::CONTENT_TYPE, JSON)], body.to_string()).into_response()
}
