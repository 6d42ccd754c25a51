//! Answers: what was decided, as status, headers and body.
//!
//! The success envelope is `{"status","message","data"}`; a refusal is `{"status","errors":[{"type","msg",
//! "loc"?}]}`, but a body or query of the wrong shape is `{"detail":[{"loc","msg","type"}]}`.
//!
//! **Invariant:** this is the only place that knows status codes. 503 is said only of what certainly has not
//! happened, 504 of what may have; the text of a fault goes to the log ([`Unshown`]) and never to the caller.

use std::{any::Any, borrow::Cow, convert::Infallible, iter::once};

use axum::{
    body::{Body, Bytes},
    response::{IntoResponse, Response},
};
use futures::stream;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use tokio_util::io::ReaderStream;

use super::json::Object;
use crate::{
    model::{
        error::{Fault, Invalid, Rejection, Step},
        query::{Page, QueryError},
        record::Revision,
        time::Timestamp,
    },
    service::{Backup, Refusal},
    state::query::Found,
};

/// The header with the revision of the state that an answer was made from.
pub(super) const REVISION: &str = "x-concord-revision";
/// The header with the id of the node that answers.
pub(super) const NODE: &str = "x-concord-node";
/// Stored text from which on a page is streamed record by record: a page of the largest records has a gigabyte.
const PAGE_BYTES_AT_ONCE: usize = 4 << 20;
/// Seconds after which a refused request may be tried again: an election takes about one.
const RETRY_AFTER_S: HeaderValue = HeaderValue::from_static("1");
/// Bytes of a piece of a streamed file.
const FILE_BYTES_AT_ONCE: usize = 256 << 10;
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A success.
#[derive(Debug)]
pub(super) struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: Body,
}

impl Reply {
    /// Done, or found.
    pub(super) fn done(message: &'static str, data: &str) -> Self {
        let text = Object::with_room(data.len()).raw("status", "\"SUCCESS\"").plain("message", message);
        Self::json(Body::from(text.raw("data", data).end()))
    }

    /// A new resource, and where it is.
    pub(super) fn created(message: &'static str, data: &str, location: &str) -> Self {
        let mut reply = Self::done(message, data);
        reply.status = StatusCode::CREATED;
        // Keys are unreserved characters: the path stands in a header as it is.
        reply.header(header::LOCATION.as_str(), location)
    }

    /// The caller has it already.
    pub(super) fn not_modified() -> Self {
        Self { status: StatusCode::NOT_MODIFIED, headers: HeaderMap::new(), body: Body::empty() }
    }

    /// A page of a list. `size` estimates the bytes of a record that `show` renders.
    pub(super) fn page<R: Send + 'static>(
        message: &'static str,
        found: Found<R>,
        page: &Page,
        size: fn(&R) -> usize,
        show: fn(&R) -> String,
    ) -> Self {
        let meta = Object::new().value("page", &page.page).value("limit", &page.limit);
        let tail = format!("],\"meta\":{}}}}}", meta.value("total", &found.total).end());
        let head = format!("{{\"status\":\"SUCCESS\",\"message\":\"{message}\",\"data\":{{\"results\":[");
        let bytes = found.results.iter().fold(0_usize, |sum, record| sum.saturating_add(size(record)));
        let records = found.results.into_iter().enumerate().map(move |(place, record)| {
            let comma = if place == 0 { "" } else { "," };
            format!("{comma}{}", show(&record))
        });
        let parts = once(head).chain(records).chain(once(tail));
        if bytes <= PAGE_BYTES_AT_ONCE {
            return Self::json(Body::from(parts.collect::<String>()));
        }
        Self::json(Body::from_stream(stream::iter(parts.map(|part| Ok::<_, Infallible>(Bytes::from(part))))))
    }

    /// A backup, as a stream.
    pub(super) fn file(backup: Backup) -> Self {
        let Backup { revision, bytes, file } = backup;
        let body = Body::from_stream(ReaderStream::with_capacity(file, FILE_BYTES_AT_ONCE));
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
            (header::CONTENT_LENGTH, bytes.into()),
        ];
        let reply = Self { status: StatusCode::OK, headers: HeaderMap::from_iter(headers), body };
        let name = format!("attachment; filename=\"concord-{revision}.backup\"");
        reply.header(header::CONTENT_DISPOSITION.as_str(), &name).at(revision)
    }

    /// A file of this binary.
    pub(super) fn content(kind: &str, bytes: Bytes) -> Self {
        let headers =
            HeaderMap::from_iter([(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))]);
        let reply = Self { status: StatusCode::OK, headers, body: Body::from(bytes) };
        reply.header(header::CONTENT_TYPE.as_str(), kind)
    }

    /// A page of this binary, which may fetch nothing from another host and stand in no other page.
    pub(super) fn page_of_ours(kind: &str, bytes: Bytes) -> Self {
        const POLICY: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                              base-uri 'self'; form-action 'self'; frame-ancestors 'none'";
        Self::content(kind, bytes).header(header::CONTENT_SECURITY_POLICY.as_str(), POLICY)
    }

    /// Names the revision of the state that the answer was made from.
    pub(super) fn at(mut self, revision: Revision) -> Self {
        self.headers.insert(REVISION, revision.into());
        self
    }

    /// Names the version of the one record that the answer is about.
    pub(super) fn of(self, revision: Revision, modified: Timestamp) -> Self {
        self.header(header::ETAG.as_str(), &format!("\"{revision}\""))
            .header(header::LAST_MODIFIED.as_str(), &modified.to_http_date())
    }

    /// Names the next page.
    pub(super) fn next(self, link: Option<&str>) -> Self {
        match link {
            Some(link) => self.header(header::LINK.as_str(), &format!("<{link}>; rel=\"next\"")),
            None => self,
        }
    }

    /// Tells that a part of the request had no effect.
    pub(super) fn warning(self, text: &'static str) -> Self {
        self.header(header::WARNING.as_str(), &format!("299 - \"{text}\""))
    }

    fn header(mut self, name: &'static str, value: &str) -> Self {
        let value = HeaderValue::from_str(value).expect("made of our own texts, numbers and checked keys");
        self.headers.insert(name, value);
        self
    }

    fn json(body: Body) -> Self {
        Self { status: StatusCode::OK, headers: HeaderMap::from_iter([(header::CONTENT_TYPE, JSON)]), body }
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        (self.status, self.headers, self.body).into_response()
    }
}

/// One thing that is wrong with the shape of a body or query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Detail {
    pub(super) loc: Vec<Step>,
    pub(super) msg: Cow<'static, str>,
    pub(super) kind: &'static str,
}

/// Why there is no success.
#[derive(Debug)]
pub(super) enum Problem {
    /// No valid credential; the text says what is wrong with it.
    Unauthenticated(&'static str),
    /// The path is none of ours.
    NoRoute,
    /// The path is, the method is not.
    NoMethod,
    /// A body or query of the wrong shape.
    Shape(Vec<Detail>),
    /// A refusal, and the revision of the state that it was read from, where there is one.
    Refused(Refusal, Option<Revision>),
}

/// The text of a fault on its way to the log.
#[derive(Debug, Clone)]
pub(super) struct Unshown(pub(super) String);

impl Problem {
    /// A refusal for one reason that the request gives.
    pub(super) fn fault(fault: Fault) -> Self {
        Refusal::Invalid(fault.into()).into()
    }

    /// What the state that was read says.
    pub(super) fn read(rejection: Rejection, revision: Revision) -> Self {
        Self::Refused(Refusal::Rejected(rejection), Some(revision))
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal, None)
    }
}

impl From<QueryError> for Problem {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::NotIntegers(names) => Self::Shape(names.into_iter().map(not_an_integer).collect()),
            QueryError::Faults(faults) => Refusal::Invalid(Invalid::Faults(faults)).into(),
        }
    }
}

fn not_an_integer(name: String) -> Detail {
    Detail {
        loc: vec!["query".into(), Step::Name(name)],
        msg: "input should be a valid integer".into(),
        kind: "int_parsing",
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        match self {
            Self::Unauthenticated(msg) => {
                let answer = failure(StatusCode::UNAUTHORIZED, "unauthorized_error", &[Fault::new(msg)]);
                ([(header::WWW_AUTHENTICATE, "Bearer")], answer).into_response()
            }
            Self::NoRoute => failure(StatusCode::NOT_FOUND, "not_found_error", &[Fault::new("no such path")]),
            Self::NoMethod => {
                let fault = Fault::new("the path does not take this method");
                failure(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", &[fault])
            }
            Self::Shape(details) => detail(&details),
            Self::Refused(refusal, revision) => {
                let mut response = refused(refusal);
                if let Some(revision) = revision {
                    response.headers_mut().insert(REVISION, revision.into());
                }
                response
            }
        }
    }
}

/// The answer to a request whose handler panicked.
pub(super) fn panicked(payload: Box<dyn Any + Send + 'static>) -> Response {
    let text = payload
        .downcast::<String>()
        .map(|text| *text)
        .or_else(|payload| payload.downcast::<&'static str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|_| "without a text".to_owned());
    refused(Refusal::Fault(format!("panic: {text}")))
}

fn refused(refusal: Refusal) -> Response {
    let (status, kind) = verdict(&refusal);
    let mut unshown = None;
    let faults = match refusal {
        Refusal::Rejected(rejection) => vec![Fault::new(rejection.to_string())],
        Refusal::Invalid(Invalid::Faults(faults)) => faults,
        Refusal::Invalid(Invalid::TooLarge(text))
        | Refusal::Unavailable(text)
        | Refusal::Undecided(text)
        | Refusal::StorageFull(text)
        | Refusal::Conflict(text)
        | Refusal::Expired(text) => vec![Fault::new(text)],
        Refusal::NoMember(id) => vec![Fault::new(format!("node {id} is no member of the cluster"))],
        Refusal::Overloaded => vec![Fault::new("this node is working on as many requests as it may")],
        Refusal::Fault(text) => {
            unshown = Some(Unshown(text));
            vec![Fault::new("unexpected server error")]
        }
    };
    let mut response = failure(status, kind, &faults);
    if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
        response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER_S);
    }
    if let Some(unshown) = unshown {
        response.extensions_mut().insert(unshown);
    }
    response
}

/// The status and error type of each refusal.
fn verdict(refusal: &Refusal) -> (StatusCode, &'static str) {
    const INVALID: (StatusCode, &str) = (StatusCode::UNPROCESSABLE_ENTITY, "validation_error");
    match refusal {
        Refusal::Rejected(rejection) => match rejection {
            Rejection::DefinitionExists | Rejection::ConfigExists | Rejection::DefinitionNotEmpty(_) => {
                (StatusCode::CONFLICT, "conflict_error")
            }
            Rejection::DefinitionNotFound | Rejection::ConfigNotFound => {
                (StatusCode::NOT_FOUND, "not_found_error")
            }
            Rejection::Precondition { .. } => (StatusCode::PRECONDITION_FAILED, "precondition_failed"),
            Rejection::RequestReused => INVALID,
        },
        Refusal::Invalid(Invalid::Faults(_)) => INVALID,
        Refusal::Invalid(Invalid::TooLarge(_)) => (StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large"),
        Refusal::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable_error"),
        Refusal::Undecided(_) => (StatusCode::GATEWAY_TIMEOUT, "timeout_error"),
        Refusal::Overloaded => (StatusCode::TOO_MANY_REQUESTS, "rate_limited"),
        Refusal::StorageFull(_) => (StatusCode::INSUFFICIENT_STORAGE, "storage_full"),
        Refusal::Fault(_) => (StatusCode::INTERNAL_SERVER_ERROR, "server_error"),
        Refusal::Conflict(_) => (StatusCode::CONFLICT, "conflict_error"),
        Refusal::NoMember(_) => (StatusCode::NOT_FOUND, "not_found_error"),
        Refusal::Expired(_) => (StatusCode::GONE, "expired_error"),
    }
}

fn failure(status: StatusCode, kind: &'static str, faults: &[Fault]) -> Response {
    let items: Vec<Value> = faults
        .iter()
        .map(|fault| {
            let mut item = json!({ "type": kind, "msg": fault.msg });
            if !fault.loc.is_empty() {
                item["loc"] = place(&fault.loc);
            }
            item
        })
        .collect();
    let body = json!({ "status": "FAILURE", "errors": items });
    (status, [(header::CONTENT_TYPE, JSON)], body.to_string()).into_response()
}

fn detail(details: &[Detail]) -> Response {
    let items: Vec<Value> = details
        .iter()
        .map(|detail| json!({ "loc": place(&detail.loc), "msg": detail.msg, "type": detail.kind }))
        .collect();
    let body = json!({ "detail": items });
    (StatusCode::UNPROCESSABLE_ENTITY, [(header::CONTENT_TYPE, JSON)], body.to_string()).into_response()
}

fn place(loc: &[Step]) -> Value {
    let step = |step: &Step| match step {
        Step::Name(name) => Value::from(name.as_str()),
        Step::Place(place) => Value::from(*place),
    };
    loc.iter().map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::to_bytes;

    async fn body(response: Response) -> Value {
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
        serde_json::from_slice(&to_bytes(response.into_body(), usize::MAX).await.unwrap()).unwrap()
    }

    /// Every refusal there is, with what it is answered; a new one breaks `verdict`, which has no wildcard.
    fn all() -> Vec<(Refusal, u16, &'static str)> {
        let rejected = Refusal::Rejected;
        let fault = || Fault::new("wrong");
        vec![
            (rejected(Rejection::DefinitionExists), 409, "conflict_error"),
            (rejected(Rejection::ConfigExists), 409, "conflict_error"),
            (rejected(Rejection::DefinitionNotEmpty(3)), 409, "conflict_error"),
            (rejected(Rejection::DefinitionNotFound), 404, "not_found_error"),
            (rejected(Rejection::ConfigNotFound), 404, "not_found_error"),
            (rejected(Rejection::Precondition { current: 3 }), 412, "precondition_failed"),
            (rejected(Rejection::RequestReused), 422, "validation_error"),
            (Refusal::Invalid(Invalid::Faults(vec![fault(), fault()])), 422, "validation_error"),
            (Refusal::Invalid(Invalid::TooLarge("large".into())), 413, "payload_too_large"),
            (Refusal::Unavailable("no leader".into()), 503, "unavailable_error"),
            (Refusal::Undecided("unknown".into()), 504, "timeout_error"),
            (Refusal::Overloaded, 429, "rate_limited"),
            (Refusal::StorageFull("full".into()), 507, "storage_full"),
            (Refusal::Fault("secret".into()), 500, "server_error"),
            (Refusal::Expired("gone".into()), 410, "expired_error"),
        ]
    }

    #[tokio::test]
    async fn each_refusal_has_its_status_and_type() {
        for (refusal, status, kind) in all() {
            let response = Problem::from(refusal).into_response();
            assert_eq!(response.status(), status, "{kind}");
            let may_retry = response.headers().get(header::RETRY_AFTER).is_some();
            assert_eq!(may_retry, matches!(status, 429 | 503), "{kind}");
            let body = body(response).await;
            assert_eq!(body["status"], "FAILURE");
            let errors = body["errors"].as_array().unwrap();
            assert!(errors.iter().all(|error| error["type"] == kind && error.get("loc").is_none()), "{body}");
            assert!(!errors.is_empty() && !errors[0]["msg"].as_str().unwrap().is_empty());
        }
    }

    #[tokio::test]
    async fn the_text_of_a_fault_and_of_a_panic_is_for_the_log_alone() {
        for response in [
            Problem::from(Refusal::Fault("secret".into())).into_response(),
            panicked(Box::new("secret")),
            panicked(Box::new(String::from("secret"))),
            panicked(Box::new(1)),
        ] {
            assert!(response.extensions().get::<Unshown>().is_some());
            let body = body(response).await;
            assert_eq!(body["errors"], json!([{ "type": "server_error", "msg": "unexpected server error" }]));
        }
    }

    #[tokio::test]
    async fn places_are_names_and_numbers() {
        let loc = vec![Step::from("indexes"), Step::Place(1)];
        let response = Problem::fault(Fault::at(loc.clone(), "wrong")).into_response();
        assert_eq!(body(response).await["errors"][0]["loc"], json!(["indexes", 1]));
        let details = vec![Detail { loc, msg: "wrong".into(), kind: "missing" }];
        let response = Problem::Shape(details).into_response();
        assert_eq!(response.status(), 422);
        let expected = json!({ "detail": [{ "loc": ["indexes", 1], "msg": "wrong", "type": "missing" }] });
        assert_eq!(body(response).await, expected);
    }

    #[tokio::test]
    async fn a_missing_credential_is_asked_for() {
        let response = Problem::Unauthenticated("missing").into_response();
        assert_eq!(
            (response.status().as_u16(), &response.headers()[header::WWW_AUTHENTICATE]),
            (401, &"Bearer".parse().unwrap())
        );
        assert_eq!(body(response).await["errors"][0]["type"], "unauthorized_error");
        assert_eq!(body(Problem::NoRoute.into_response()).await["errors"][0]["type"], "not_found_error");
        assert_eq!(body(Problem::NoMethod.into_response()).await["errors"][0]["type"], "method_not_allowed");
    }

    #[tokio::test]
    async fn the_answer_about_a_record_names_its_version() {
        let reply = Reply::created("made", r#"{"n":1e400}"#, "/a/b").of(7, Timestamp(0)).at(9);
        let response = reply.into_response();
        assert_eq!(response.status(), 201);
        let expected = [
            ("location", "/a/b"),
            ("etag", "\"7\""),
            ("last-modified", "Thu, 01 Jan 1970 00:00:00 GMT"),
            (REVISION, "9"),
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
        for size in [|_: &u8| 1, |_: &u8| PAGE_BYTES_AT_ONCE] {
            let found = Found { results: vec![1_u8, 2], total: 5 };
            let response = Reply::page("found", found, &page, size, u8::to_string).into_response();
            let expected = json!({
                "status": "SUCCESS",
                "message": "found",
                "data": { "results": [1, 2], "meta": { "page": u64::MAX, "limit": 2, "total": 5 } },
            });
            assert_eq!(body(response).await, expected);
        }
    }
}
