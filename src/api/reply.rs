//! Answers: what was decided, as status, headers and body.
//!
//! The success envelope is `{"status","message","data"}`; a refusal is `{"status","errors":[{"type","msg",
//! "loc"?}]}`, but a body or query of the wrong shape is `{"detail":[{"loc","msg","type"}]}`.
//!
//! **Invariant:** this is the only place that knows status codes. 503 is said only of what certainly has not
//! happened, 504 of what may have; the text of a violation goes to the log ([`Unshown`]) and never to the caller.

use std::{any::Any, borrow::Cow, convert::Infallible, iter::once};

use axum::{
    body::{Body, Bytes},
    response::{IntoResponse, Response},
};
use futures::stream;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use tokio_util::io::ReaderStream;

use super::json::Object;
use crate::{
    model::{
        command::Applied,
        error::{Invalid, LocSegment, Rejection, Violation},
        query::{Page, QueryError},
        record::Revision,
        time::Timestamp,
    },
    service::{Backup, Refusal, Written},
    state::query::ListPage,
};

/// The header with the revision of the state that an answer was made from.
pub(super) const REVISION: &str = "x-concord-revision";
/// The header with how far the building of a definition's indexes is: configs done, `/`, all.
const BUILDING: &str = "x-concord-index-building";
/// The header with the id of the node that answers.
pub(super) const NODE: &str = "x-concord-node";
/// The header with the number of configs that break a schema.
pub(super) const BREAKING: &str = "x-concord-breaking-configs";
/// The header of an answer to a write that was only tried.
const DRY_RUN: &str = "x-concord-dry-run";
/// Stored text from which on a page is streamed record by record: a page of the largest records has a gigabyte.
const PAGE_BYTES_AT_ONCE: usize = 4 << 20;
/// Seconds after which a refused request may be tried again: an election takes about one.
const RETRY_AFTER_S: HeaderValue = HeaderValue::from_static("1");
/// Bytes of a piece of a streamed file.
const FILE_BYTES_AT_ONCE: usize = 256 << 10;
const ACCEPT_PATCH: &str = "accept-patch";
/// The media types of patches (`patch.rs`).
const PATCHES: HeaderValue =
    HeaderValue::from_static("application/merge-patch+json, application/json-patch+json");
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

    /// Done; the data that it made is not known any more.
    pub(super) fn without_data(message: &'static str) -> Self {
        let text = Object::new().raw("status", "\"SUCCESS\"").plain("message", message);
        Self::json(Body::from(text.end()))
            .warning("the record has changed since, so the content that this request made is not shown")
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
        found: ListPage<R>,
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

    /// A stream of events, which nobody on the way may keep or hold up.
    pub(super) fn events(body: Body) -> Self {
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
            (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
        ];
        Self { status: StatusCode::OK, headers: HeaderMap::from_iter(headers), body }
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

    /// Tells how far the indexes of the record are, while some are being built.
    pub(super) fn building(self, progress: Option<String>) -> Self {
        match progress {
            Some(progress) => self.header(BUILDING, &progress),
            None => self,
        }
    }

    /// Names the next page.
    pub(super) fn next(self, link: Option<&str>) -> Self {
        match link {
            Some(link) => self.header(header::LINK.as_str(), &format!("<{link}>; rel=\"next\"")),
            None => self,
        }
    }

    /// Names what a write made: the record's version and the state that the answer was made from. A dry run makes
    /// no version.
    pub(super) fn of_write(self, written: &Written) -> Self {
        let Applied { revision, at, .. } = written.applied;
        let reply = if written.dry_run { self } else { self.of(revision, at) };
        reply.of_end(written)
    }

    /// The same of a write that leaves no record of which it could name the version.
    pub(super) fn of_end(self, written: &Written) -> Self {
        let reply = self.at(written.revision);
        if written.dry_run { reply.tried() } else { reply }
    }

    /// Tells that the write was only tried.
    pub(super) fn tried(self) -> Self {
        self.header(DRY_RUN, "true")
    }

    /// Tells that a part of the request had no effect.
    pub(super) fn warning(self, text: &'static str) -> Self {
        self.header(header::WARNING.as_str(), &format!("299 - \"{text}\""))
    }

    /// Names how many configs break the schema that the answer is about.
    pub(super) fn breaking(self, count: u64) -> Self {
        self.header(BREAKING, &count.to_string())
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
    pub(super) loc: Vec<LocSegment>,
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
    /// The body is no kind of patch that is known here.
    NoPatch,
    /// A refusal, and the revision of the state that it was read from, where there is one.
    Refused(Refusal, Option<Revision>),
}

/// The text of a violation on its way to the log.
#[derive(Debug, Clone)]
pub(super) struct Unshown(pub(super) String);

impl Problem {
    /// A refusal for one reason that the request gives.
    pub(super) fn violation(violation: Violation) -> Self {
        Refusal::Invalid(violation.into()).into()
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
            QueryError::Violations(violations) => Refusal::Invalid(Invalid::Violations(violations)).into(),
            QueryError::Building(path) => {
                Refusal::Conflict(format!("the index of `{path}` is being built")).into()
            }
        }
    }
}

fn not_an_integer(name: String) -> Detail {
    Detail {
        loc: vec!["query".into(), LocSegment::Name(name)],
        msg: "input should be a valid integer".into(),
        kind: "int_parsing",
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        match self {
            Self::Unauthenticated(msg) => {
                let answer = failure(StatusCode::UNAUTHORIZED, "unauthorized_error", &[Violation::new(msg)]);
                ([(header::WWW_AUTHENTICATE, "Bearer")], answer).into_response()
            }
            Self::NoRoute => {
                failure(StatusCode::NOT_FOUND, "not_found_error", &[Violation::new("no such path")])
            }
            Self::NoMethod => {
                let violation = Violation::new("the path does not take this method");
                failure(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", &[violation])
            }
            Self::Shape(details) => detail(&details),
            Self::NoPatch => {
                let msg = "expected a patch of one of the types that the header `accept-patch` names";
                let wrong =
                    Detail { loc: vec!["body".into()], msg: msg.into(), kind: "model_attributes_type" };
                ([(ACCEPT_PATCH, PATCHES)], detail(&[wrong])).into_response()
            }
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
    refused(Refusal::Internal(format!("panic: {text}")))
}

fn refused(refusal: Refusal) -> Response {
    let (status, kind) = verdict(&refusal);
    let breaking = if let Refusal::Breaks(count, _) = &refusal { Some(*count) } else { None };
    let (violations, unshown) = violations(refusal);
    let mut response = failure(status, kind, &violations);
    if let Some(count) = breaking {
        response.headers_mut().insert(BREAKING, count.into());
    }
    if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
        response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER_S);
    }
    if let Some(unshown) = unshown {
        response.extensions_mut().insert(unshown);
    }
    response
}

/// A refusal's body where the status was sent before, in the middle of a stream.
pub(super) fn refusal_body(refusal: Refusal) -> String {
    let (_, kind) = verdict(&refusal);
    let (violations, unshown) = violations(refusal);
    if let Some(Unshown(text)) = unshown {
        tracing::error!("a stream failed: {text}");
    }
    failure_body(kind, &violations)
}

/// What a refusal tells, and what of it is for the log alone.
fn violations(refusal: Refusal) -> (Vec<Violation>, Option<Unshown>) {
    let mut unshown = None;
    let violations = match refusal {
        Refusal::Rejected(Rejection::InBatch { index, rejection }) => {
            let loc = vec!["operations".into(), LocSegment::Index(index.into())];
            vec![Violation::at(loc, rejection.to_string())]
        }
        Refusal::Rejected(rejection) => vec![Violation::new(rejection.to_string())],
        Refusal::Invalid(Invalid::Violations(violations)) => violations,
        Refusal::Invalid(Invalid::TooLarge(text))
        | Refusal::Unavailable(text)
        | Refusal::Undecided(text)
        | Refusal::StorageFull(text)
        | Refusal::Conflict(text)
        | Refusal::Expired(text)
        | Refusal::NotThere(text)
        | Refusal::LimitReached(text) => vec![Violation::new(text)],
        Refusal::TestFailed(violation) | Refusal::Invalid(Invalid::TooLargeAt(violation)) => vec![violation],
        Refusal::NoMember(id) => vec![Violation::new(format!("node {id} is no member of the cluster"))],
        Refusal::Breaks(_, violations) => violations,
        Refusal::Overloaded => vec![Violation::new("this node is working on as many requests as it may")],
        Refusal::Internal(text) => {
            unshown = Some(Unshown(text));
            vec![Violation::new("unexpected server error")]
        }
    };
    (violations, unshown)
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
            Rejection::NotUnique { .. } => (StatusCode::CONFLICT, "conflict_error"),
            // The step's own, as if it had been asked alone.
            Rejection::InBatch { rejection, .. } => verdict(&Refusal::Rejected((**rejection).clone())),
        },
        Refusal::Invalid(Invalid::Violations(_)) => INVALID,
        Refusal::Invalid(Invalid::TooLarge(_) | Invalid::TooLargeAt(_)) => {
            (StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large")
        }
        Refusal::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable_error"),
        Refusal::Undecided(_) => (StatusCode::GATEWAY_TIMEOUT, "timeout_error"),
        Refusal::Overloaded | Refusal::LimitReached(_) => (StatusCode::TOO_MANY_REQUESTS, "rate_limited"),
        Refusal::StorageFull(_) => (StatusCode::INSUFFICIENT_STORAGE, "storage_full"),
        Refusal::Internal(_) => (StatusCode::INTERNAL_SERVER_ERROR, "server_error"),
        Refusal::Conflict(_) | Refusal::TestFailed(_) => (StatusCode::CONFLICT, "conflict_error"),
        Refusal::NoMember(_) | Refusal::NotThere(_) => (StatusCode::NOT_FOUND, "not_found_error"),
        Refusal::Expired(_) => (StatusCode::GONE, "expired_error"),
        Refusal::Breaks(..) => INVALID,
    }
}

fn failure(status: StatusCode, kind: &'static str, violations: &[Violation]) -> Response {
    (status, [(header::CONTENT_TYPE, JSON)], failure_body(kind, violations)).into_response()
}

fn failure_body(kind: &'static str, violations: &[Violation]) -> String {
    let items: Vec<Value> = violations
        .iter()
        .map(|violation| {
            let mut item = json!({ "type": kind, "msg": violation.msg });
            if !violation.loc.is_empty() {
                item["loc"] = place(&violation.loc);
            }
            item
        })
        .collect();
    json!({ "status": "FAILURE", "errors": items }).to_string()
}

fn detail(details: &[Detail]) -> Response {
    let items: Vec<Value> = details
        .iter()
        .map(|detail| json!({ "loc": place(&detail.loc), "msg": detail.msg, "type": detail.kind }))
        .collect();
    let body = json!({ "detail": items });
    (StatusCode::UNPROCESSABLE_ENTITY, [(header::CONTENT_TYPE, JSON)], body.to_string()).into_response()
}

/// The way to a place, as JSON.
pub(super) fn place(loc: &[LocSegment]) -> Value {
    let step = |step: &LocSegment| match step {
        LocSegment::Name(name) => Value::from(name.as_str()),
        LocSegment::Index(place) => Value::from(*place),
    };
    loc.iter().map(step).collect()
}

#[cfg(test)]
mod tests;
