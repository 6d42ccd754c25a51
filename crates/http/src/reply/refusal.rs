//! The status, the error type, the texts and the body of each rejection.
//!
//! **Invariant:** each rejection has one status and one type, here and nowhere else. A text names nothing that the
//! client may not know of. An item of `errors` has a code, and a location if the request has one.

use axum::response::{IntoResponse as _, Response};
use http::{StatusCode, header};
use serde_json::{Value, json};

use super::{Code, Detail, JSON, LogOnly, NOT_VALID};
use crate::json::loc_json;
use concord_model::{
    error::{IdentityRejection, Invalid, LocSegment, Rejection, Violation},
    time::Timestamp,
};
use concord_service::Refusal;

/// The errors that a rejection sends, and the text that is only logged.
pub(super) fn violations(refusal: Refusal) -> (Vec<Violation>, Option<LogOnly>) {
    let mut log_only = None;
    let violations = match refusal {
        Refusal::Rejected(Rejection::InBatch { index, rejection }) => {
            let mut loc = vec!["operations".into(), LocSegment::Index(index.into())];
            loc.extend(place_in_operation(&rejection));
            vec![Violation::at(loc, rejection.to_string())]
        }
        Refusal::Rejected(rejection) => {
            vec![Violation::at(place_in_operation(&rejection), rejection.to_string())]
        }
        Refusal::Invalid(Invalid::Violations(violations)) => violations,
        Refusal::Invalid(Invalid::TooLarge(text))
        | Refusal::Unavailable(text)
        | Refusal::Undecided(text)
        | Refusal::StorageFull(text)
        | Refusal::Conflict(text)
        | Refusal::Expired(text)
        | Refusal::NotThere(text)
        | Refusal::DefinitionNotThere(text)
        | Refusal::DeletionNotKept(text)
        | Refusal::Building(text)
        | Refusal::CursorExpired(text)
        | Refusal::ChangeStale(text)
        | Refusal::NoRole(text)
        | Refusal::ProviderUnavailable(text)
        | Refusal::LimitReached(text) => vec![Violation::new(text)],
        Refusal::Invalid(Invalid::TooLargeAt(violation)) => vec![violation],
        Refusal::NoMember(id) => vec![Violation::new(format!("node {id} is not a member of the cluster"))],
        Refusal::Breaks { violations, .. } => violations,
        // The text names nothing that was asked for: it tells nothing about what exists.
        Refusal::Forbidden { verb } => {
            vec![Violation::new(format!("the access key has no right to `{verb}` here"))]
        }
        Refusal::NotUniqueYet { path, one, other } => {
            let msg = format!("`{path}` can't be unique: configs `{one}` and `{other}` have the same value");
            vec![Violation::new(msg)]
        }
        Refusal::OfOperation(index, refusal) => {
            let (mut all, logged) = violations(*refusal);
            for violation in &mut all {
                violation.loc.splice(0..0, ["operations".into(), LocSegment::Index(index.into())]);
            }
            log_only = logged;
            all
        }
        Refusal::KeyEnded => vec![Violation::new(NOT_VALID)],
        Refusal::TokenRejected { reason } => {
            let msg = format!("the token is not accepted: `{reason}`; `concord identity try` says more");
            vec![Violation::new(msg)]
        }
        Refusal::ProviderInUse { role } => {
            let msg =
                format!("the role `{role}` names the identity provider: change or delete the role first");
            vec![Violation::new(msg)]
        }
        Refusal::LoginStale => {
            let msg = "identity providers, roles or their keys changed while the token was validated; retry";
            vec![Violation::new(msg)]
        }
        Refusal::NotUpgraded { needs, has } => {
            let msg = format!(
                "this needs feature level {needs}, and the cluster has {has}: upgrade all of its members first"
            );
            vec![Violation::new(msg)]
        }
        Refusal::AuditOff => {
            vec![Violation::new("this node keeps no audit log (`CONCORD_AUDIT=off`)")]
        }
        Refusal::Overloaded => vec![Violation::new("this node is at its limit of concurrent requests")],
        Refusal::Internal(text) => {
            log_only = Some(LogOnly(text));
            vec![Violation::new("unexpected server error")]
        }
    };
    (violations, log_only)
}

/// What of a write is rejected, where it is a part of it.
fn place_in_operation(rejection: &Rejection) -> Vec<LocSegment> {
    if let Rejection::TestFailed { operation } = rejection {
        vec!["patch".into(), LocSegment::Index(*operation)]
    } else {
        Vec::new()
    }
}

const INVALID: (StatusCode, &str) = (StatusCode::UNPROCESSABLE_ENTITY, "validation_error");
const UNAUTHORIZED: (StatusCode, &str) = (StatusCode::UNAUTHORIZED, "unauthorized_error");
const INTERNAL: (StatusCode, &str) = (StatusCode::INTERNAL_SERVER_ERROR, "server_error");

/// The status and error type of a response that is no success.
pub(super) fn status_and_type(refusal: &Refusal) -> (StatusCode, &'static str) {
    match refusal {
        Refusal::Rejected(rejection) => status_of_rejection(rejection),
        Refusal::Invalid(Invalid::Violations(_)) => INVALID,
        Refusal::Invalid(Invalid::TooLarge(_) | Invalid::TooLargeAt(_)) => {
            (StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large")
        }
        Refusal::Unavailable(_) | Refusal::ProviderUnavailable(_) | Refusal::LoginStale => {
            (StatusCode::SERVICE_UNAVAILABLE, "unavailable_error")
        }
        Refusal::Undecided(_) => (StatusCode::GATEWAY_TIMEOUT, "timeout_error"),
        Refusal::Overloaded | Refusal::LimitReached(_) => (StatusCode::TOO_MANY_REQUESTS, "rate_limited"),
        Refusal::StorageFull(_) => (StatusCode::INSUFFICIENT_STORAGE, "storage_full"),
        Refusal::Internal(_) => INTERNAL,
        Refusal::Conflict(_)
        | Refusal::NotUniqueYet { .. }
        | Refusal::Building(_)
        | Refusal::NotUpgraded { .. }
        | Refusal::ProviderInUse { .. }
        | Refusal::ChangeStale(_) => (StatusCode::CONFLICT, "conflict_error"),
        Refusal::NoMember(_)
        | Refusal::NotThere(_)
        | Refusal::DefinitionNotThere(_)
        | Refusal::DeletionNotKept(_)
        | Refusal::AuditOff => (StatusCode::NOT_FOUND, "not_found_error"),
        Refusal::Expired(_) | Refusal::CursorExpired(_) => (StatusCode::GONE, "expired_error"),
        Refusal::Breaks { .. } => INVALID,
        Refusal::OfOperation(_, refusal) => status_and_type(refusal),
        Refusal::Forbidden { .. } | Refusal::NoRole(_) => (StatusCode::FORBIDDEN, "forbidden_error"),
        Refusal::KeyEnded | Refusal::TokenRejected { .. } => UNAUTHORIZED,
    }
}

/// The status and error type of each rejection of the log.
fn status_of_rejection(rejection: &Rejection) -> (StatusCode, &'static str) {
    match rejection {
        Rejection::Precondition { .. } | Rejection::CheckFailed { .. } => {
            (StatusCode::PRECONDITION_FAILED, "precondition_failed")
        }
        Rejection::RequestReused
        | Rejection::ChangeTooLarge(_)
        | Rejection::RolloutInvalid(_)
        | Rejection::NotRevertible(_) => INVALID,
        Rejection::KeyEnded
        | Rejection::SessionEnded
        | Rejection::RootDisabled
        | Rejection::Identity(IdentityRejection::TokenEnded) => UNAUTHORIZED,
        Rejection::DefinitionNotFound
        | Rejection::ConfigNotFound
        | Rejection::KeyNotFound
        | Rejection::EnvironmentNotFound
        | Rejection::ChangeNotFound
        | Rejection::Identity(
            IdentityRejection::SessionNotFound
            | IdentityRejection::ProviderNotFound
            | IdentityRejection::RoleNotFound,
        )
        | Rejection::NothingToRestore(_) => (StatusCode::NOT_FOUND, "not_found_error"),
        Rejection::QuotaExceeded { .. } | Rejection::ChangesFull => {
            (StatusCode::INSUFFICIENT_STORAGE, "storage_full")
        }
        Rejection::DefinitionExists
        | Rejection::ConfigExists
        | Rejection::DefinitionNotEmpty(_)
        | Rejection::DefinitionProtected(_)
        | Rejection::NotUnique { .. }
        | Rejection::TestFailed { .. }
        | Rejection::KeyExists
        | Rejection::TooManyKeys
        | Rejection::NoKeyForKeys
        | Rejection::ChangeRequired { .. }
        | Rejection::EnvironmentFrozen { .. }
        | Rejection::FreezeLeft { .. }
        | Rejection::TooManyEnvironments
        | Rejection::NotAttestable(_)
        | Rejection::ChangeExists
        | Rejection::ChangeClosed
        | Rejection::ChangeHeld
        | Rejection::ChangeDigest
        | Rejection::NotApproved { .. }
        | Rejection::EditionRejected
        | Rejection::ChangeNotDue(_)
        | Rejection::SenderEnded
        | Rejection::TooManyChanges(_)
        | Rejection::RolloutActive { .. }
        | Rejection::TooManyRollouts
        | Rejection::RolloutStage
        | Rejection::RolloutWaits(_)
        | Rejection::Identity(
            IdentityRejection::TooManySessions
            | IdentityRejection::TooManyProviders
            | IdentityRejection::TooManyRoles,
        )
        | Rejection::TooManyPersons => (StatusCode::CONFLICT, "conflict_error"),
        Rejection::KeyNotAttested | Rejection::OwnKey | Rejection::OwnChange | Rejection::NotApprover => {
            (StatusCode::FORBIDDEN, "forbidden_error")
        }
        Rejection::Unauthored | Rejection::Identity(IdentityRejection::SessionExists) => INTERNAL,
        // That of the operation, as if it had been requested alone.
        Rejection::InBatch { rejection, .. } => status_of_rejection(rejection),
    }
}

/// Until when a freeze refuses the request, or an operation of it.
pub(super) fn frozen_until(refusal: &Refusal) -> Option<Timestamp> {
    let Refusal::Rejected(rejection) = refusal else { return None };
    let rejection = if let Rejection::InBatch { rejection, .. } = rejection { rejection } else { rejection };
    if let Rejection::EnvironmentFrozen { until, .. } = rejection { Some(*until) } else { None }
}

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
