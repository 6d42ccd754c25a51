//! Every refusal has its status and type, and every response its shape.

use super::*;
use axum::body::to_bytes;
use concord_model::{access_key::Verb, error::StoredQuota, key::Key};
use concord_service::memory_budget::{MemoryBudget, Share};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

async fn body(response: Response) -> Value {
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
    serde_json::from_slice(&to_bytes(response.into_body(), usize::MAX).await.unwrap()).unwrap()
}

/// Refusals with their status and type. A new variant does not compile until `status_and_type`, which has no wildcard,
/// names it.
fn all() -> Vec<(Refusal, u16, &'static str)> {
    let rejected = Refusal::Rejected;
    let violation = || Violation::new("wrong");
    vec![
        (rejected(Rejection::DefinitionExists), 409, "conflict_error"),
        (rejected(Rejection::ConfigExists), 409, "conflict_error"),
        (rejected(Rejection::DefinitionNotEmpty(3)), 409, "conflict_error"),
        (rejected(Rejection::DefinitionProtected(Key::parse("d").unwrap())), 409, "conflict_error"),
        (rejected(Rejection::DefinitionNotFound), 404, "not_found_error"),
        (rejected(Rejection::ConfigNotFound), 404, "not_found_error"),
        (rejected(Rejection::Precondition { current: 3 }), 412, "precondition_failed"),
        (rejected(Rejection::RequestReused), 422, "validation_error"),
        (Refusal::Invalid(Invalid::Violations(vec![violation(), violation()])), 422, "validation_error"),
        (Refusal::Invalid(Invalid::TooLarge("large".into())), 413, "payload_too_large"),
        (Refusal::Unavailable("no leader".into()), 503, "unavailable_error"),
        (Refusal::Undecided("unknown".into()), 504, "timeout_error"),
        (
            rejected(Rejection::InBatch { index: 3, rejection: Box::new(Rejection::ConfigNotFound) }),
            404,
            "not_found_error",
        ),
        (Refusal::Invalid(Invalid::TooLargeAt(violation())), 413, "payload_too_large"),
        (rejected(Rejection::TestFailed { operation: 0 }), 409, "conflict_error"),
        (Refusal::Overloaded, 429, "rate_limited"),
        (Refusal::StorageFull("full".into()), 507, "storage_full"),
        (Refusal::Internal("secret".into()), 500, "server_error"),
        (Refusal::Building("an index".into()), 409, "conflict_error"),
        (Refusal::CursorExpired("gone".into()), 410, "expired_error"),
        (Refusal::Expired("gone".into()), 410, "expired_error"),
        (Refusal::Forbidden { verb: Verb::Write }, 403, "forbidden_error"),
        (Refusal::KeyEnded, 401, "unauthorized_error"),
        (Refusal::OfOperation(1, Refusal::Conflict("busy".into()).into()), 409, "conflict_error"),
        (
            Refusal::NotUniqueYet {
                path: "n".into(),
                one: Key::parse("a").unwrap(),
                other: Key::parse("b").unwrap(),
            },
            409,
            "conflict_error",
        ),
        (Refusal::LimitReached("many".into()), 429, "rate_limited"),
        (rejected(Rejection::KeyEnded), 401, "unauthorized_error"),
        (rejected(Rejection::RootDisabled), 401, "unauthorized_error"),
        (rejected(Rejection::KeyNotFound), 404, "not_found_error"),
        (rejected(Rejection::KeyExists), 409, "conflict_error"),
        (rejected(Rejection::TooManyKeys), 409, "conflict_error"),
        (rejected(Rejection::NoKeyForKeys), 409, "conflict_error"),
        (rejected(Rejection::Unauthored), 500, "server_error"),
        (
            rejected(Rejection::ChangeRequired { environment: Key::parse("prod").unwrap() }),
            409,
            "conflict_error",
        ),
        (
            rejected(Rejection::EnvironmentFrozen {
                environment: Key::parse("prod").unwrap(),
                until: Timestamp(7),
            }),
            409,
            "conflict_error",
        ),
        (rejected(Rejection::EnvironmentNotFound), 404, "not_found_error"),
        (rejected(Rejection::TooManyEnvironments), 409, "conflict_error"),
        (
            rejected(Rejection::QuotaExceeded { quota: StoredQuota::Bytes, limit: 1, needed: 2 }),
            507,
            "storage_full",
        ),
    ]
}

#[tokio::test]
async fn each_refusal_has_its_status_and_type() {
    for (refusal, status, kind) in all() {
        let code = Code::of(&refusal);
        assert!(Code::ALL.contains(&(code, kind)), "{code:?} is of {kind}");
        let is_of_a_part = matches!(
            refusal,
            Refusal::Rejected(Rejection::InBatch { .. } | Rejection::TestFailed { .. })
                | Refusal::OfOperation(..)
        );
        let is_frozen = code == Code::EnvironmentFrozen;
        let response = Problem::from(refusal).into_response();
        assert_eq!(response.status(), status, "{kind}");
        let may_retry = response.headers().get(header::RETRY_AFTER).is_some();
        assert_eq!(may_retry, is_frozen || matches!(status, 429 | 503), "{kind}");
        let body = body(response).await;
        assert_eq!(body["status"], "FAILURE");
        let errors = body["errors"].as_array().unwrap();
        assert!(errors.iter().all(|error| error["type"] == kind && error["code"] == code.name()), "{body}");
        let placed = errors.iter().any(|error| error.get("loc").is_some());
        assert_eq!(placed, is_of_a_part, "{body}");
        assert!(!errors.is_empty() && !errors[0]["msg"].as_str().unwrap().is_empty());
    }
}

#[tokio::test]
async fn the_text_of_an_internal_error_and_of_a_panic_is_only_logged() {
    for response in [
        Problem::from(Refusal::Internal("secret".into())).into_response(),
        panicked(Box::new("secret")),
        panicked(Box::new(String::from("secret"))),
        panicked(Box::new(1)),
    ] {
        assert!(response.extensions().get::<LogOnly>().is_some());
        let body = body(response).await;
        assert_eq!(
            body["errors"],
            json!([{ "type": "server_error", "code": "internal_error", "msg": "unexpected server error" }])
        );
    }
}

#[tokio::test]
async fn locations_are_names_and_numbers() {
    let loc = vec![LocSegment::from("indexes"), LocSegment::Index(1)];
    let response = Problem::violation(Violation::at(loc.clone(), "wrong")).into_response();
    assert_eq!(body(response).await["errors"][0]["loc"], json!(["indexes", 1]));
    let details = vec![Detail { loc, msg: "wrong".into(), kind: "missing" }];
    let response = Problem::Shape(details).into_response();
    assert_eq!(response.status(), 422);
    let expected = json!({ "detail": [{ "loc": ["indexes", 1], "msg": "wrong", "type": "missing" }] });
    assert_eq!(body(response).await, expected);
}

#[tokio::test]
async fn a_missing_credential_is_answered_with_a_challenge() {
    let response = Problem::Unauthenticated("missing").into_response();
    assert_eq!(
        (response.status().as_u16(), &response.headers()[header::WWW_AUTHENTICATE]),
        (401, &"Bearer".parse().unwrap())
    );
    assert_eq!(body(response).await["errors"][0]["type"], "unauthorized_error");
    assert_eq!(body(Problem::UnknownPath.into_response()).await["errors"][0]["type"], "not_found_error");
    assert_eq!(
        body(Problem::MethodNotAllowed.into_response()).await["errors"][0]["type"],
        "method_not_allowed"
    );
}

#[tokio::test]
async fn the_response_about_a_record_names_its_version() {
    let reply =
        Reply::created("made", r#"{"n":1e400}"#, "/a/b").record_version(7, Timestamp(0)).state_revision(9);
    let response = reply.into_response();
    assert_eq!(response.status(), 201);
    let expected = [
        ("location", "/a/b"),
        ("etag", "\"7\""),
        ("last-modified", "Thu, 01 Jan 1970 00:00:00 GMT"),
        ("x-concord-revision", "9"),
    ];
    for (name, value) in expected {
        assert_eq!(response.headers()[name], value);
    }
    let text = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    assert_eq!(text, r#"{"status":"SUCCESS","message":"made","data":{"n":1e400}}"#);
}

#[tokio::test]
async fn a_page_is_the_same_streamed_or_not() {
    let page = Page { page: u64::MAX, limit: 2, descending: true, search: String::new() };
    // Two of the second size are streamed.
    for size in [|_: &u8| 1, |_: &u8| 4 << 20] {
        let found = QueryResult { results: vec![1_u8, 2], total: 5 };
        let held = MemoryBudget::new(1 << 20).begin(Share::Callers);
        let response = Reply::page(
            "found",
            found,
            held,
            &page,
            Rendering { size, render: |object: Object, n: &_| object.value("n", n) },
        )
        .into_response();
        let expected = json!({
            "status": "SUCCESS",
            "message": "found",
            "data": { "results": [{ "n": 1 }, { "n": 2 }], "meta": { "page": u64::MAX, "limit": 2, "total": 5 } },
        });
        assert_eq!(body(response).await, expected);
    }
}

#[tokio::test]
async fn a_page_holds_the_memory_of_the_records_that_were_not_taken() {
    const RECORD: usize = 4 << 20;
    // Of 24 MiB for clients, more than a half is scarce.
    let budget = MemoryBudget::new(64 << 20);
    let page = Page { page: 1, limit: 4, descending: false, search: String::new() };
    let found = QueryResult { results: vec![1_u8, 2, 3, 4], total: 4 };
    let held = budget.reserve(Share::Callers, 4 * RECORD as u64).unwrap();
    let reply = Reply::page(
        "found",
        found,
        held,
        &page,
        Rendering { size: |_| RECORD, render: |object: Object, n: &_| object.value("n", n) },
    );
    let mut body = reply.into_response().into_body();
    let others = budget.begin(Share::Callers);
    assert!(others.is_share_scarce());
    let _head = body.frame().await;
    let one = body.frame().await.unwrap().unwrap();
    assert!(others.is_share_scarce(), "it was handed over, and is not sent");
    drop(one);
    assert!(!others.is_share_scarce(), "12 MiB are left");
}

#[test]
fn numbers_are_written_as_anywhere_else() {
    for value in [0, 1, 9, 10, 99, 100, 12_345, u64::MAX / 10, u64::MAX] {
        assert_eq!(number(value), HeaderValue::from(value));
        assert_eq!(entity_tag(value), HeaderValue::from_str(&format!("\"{value}\"")).unwrap());
    }
}
