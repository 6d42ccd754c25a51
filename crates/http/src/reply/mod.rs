//! Responses: status, headers and body of every success ([`Reply`]) and every rejection ([`Problem`]).
//!
//! A success is `{"status","message","data"}`, a rejection `{"status","errors":[{"type","msg","loc"?}]}`. A body or
//! query of the wrong shape gets `{"detail":[{"loc","msg","type"}]}`.
//!
//! | where is | file |
//! |---|---|
//! | status, type and texts of each rejection | `refusal` |
//! | responses of OFREP | `ofrep` |
//!
//! **Invariants:** only this file decides status codes. 503 means that the write was certainly not applied, 504 that it
//! may have been. The text of an internal error is logged ([`LogOnly`]) and never sent to the client.

pub(super) mod ofrep;
mod refusal;

use std::{any::Any, borrow::Cow, convert::Infallible, iter::once};

use axum::{
    body::{Body, Bytes, HttpBody as _},
    response::{IntoResponse, Response},
};
use futures::stream;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde_json::Value;

use super::{
    batch::TransactionParts,
    coding::{self, Coding},
    error_code::Code,
    json::Object,
    weight::{self, Weighed},
};
use concord_model::{
    command::Applied,
    error::{Invalid, LocSegment, Rejection, Violation},
    limits::{COMPRESSED_BYTES_MIN, REWRITTEN_BYTES_MAX},
    query::{Page, QueryError},
    record::Revision,
    redaction::RedactedPlaces,
    time::Timestamp,
};
use concord_service::{
    Backup, DecidedWrite, Refusal, RequestWork, StoredChange, memory_budget::Reservation,
    read::list::BUFFERED_PAGE_BYTES_MAX,
};
use concord_state::query::QueryResult;
use refusal::{
    failure, failure_body, frozen_until, items, plain, shape_response, status_and_type, violations,
};

/// The header with the revision of the state that a response was made from.
pub(super) const STATE_REVISION: HeaderName = HeaderName::from_static("x-concord-revision");
/// The header with the progress of an index build: configs indexed, `/`, all configs.
const INDEX_BUILDING: HeaderName = HeaderName::from_static("x-concord-index-building");
/// The header with the places of values that the client is not shown.
pub(super) const REDACTED: HeaderName = HeaderName::from_static("x-concord-redacted");
/// The header with the id of the node that responds.
pub(super) const NODE: HeaderName = HeaderName::from_static("x-concord-node");
/// The header with the number of configs that do not fit a schema.
const BREAKING_CONFIGS: HeaderName = HeaderName::from_static("x-concord-breaking-configs");
/// The header with whether a deleted definition is kept, so that the deletion can be undone.
/// The revision of a write that leaves no record to carry it.
const WRITE_REVISION: HeaderName = HeaderName::from_static("x-concord-write-revision");
const DELETION: HeaderName = HeaderName::from_static("x-concord-deletion");
/// The header of a response to a dry run.
const DRY_RUN: HeaderName = HeaderName::from_static("x-concord-dry-run");
/// The text for a credential that is unknown, or was known until a moment ago.
pub(super) const NOT_VALID: &str = "the credential is not valid";
/// Seconds after which a rejected request may be retried: an election takes about one.
const RETRY_AFTER_S: HeaderValue = HeaderValue::from_static("1");
const ACCEPT_PATCH: HeaderName = HeaderName::from_static("accept-patch");
/// The media types of patches, those of `body::patch_format`.
const PATCH_TYPES: HeaderValue =
    HeaderValue::from_static("application/merge-patch+json, application/json-patch+json");
/// The cache control of what needs a key.
pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The headers that a response about a record has: a map with room for them is not rebuilt as it grows.
const HEADERS: usize = 8;

/// What a record of a list has beside its stored text, as a rule at most.
const MEMBERS_BYTES: usize = 160;

/// A success.
#[derive(Debug)]
pub(super) struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: Body,
    /// The revision of the change that a write made.
    written: Option<Revision>,
    /// How the body is to be compressed, where it may be.
    coding: Option<Coding>,
    /// Whether the body holds a part of the memory budget.
    is_weighed: bool,
}

/// In the extensions of the response to a write: the revision of the change that it made.
#[derive(Debug, Clone, Copy)]
pub(super) struct WrittenAt(pub(super) Revision);

/// How the records of a list are written.
pub(super) struct Rendering<R, F: Fn(Object, &R) -> Object> {
    /// Estimates the bytes of a record as `render` writes it.
    pub(super) size: fn(&R) -> usize,
    /// Adds the members of a record.
    pub(super) render: F,
}

/// What is around the results in `data`.
pub(super) struct ResultsFrame<'a> {
    /// Members, each with a comma after it.
    pub(super) before: &'a str,
    /// What follows the last result: the end of the list, of `data` and of the body.
    pub(super) tail: &'a str,
}

impl Reply {
    /// Status 200 with a payload.
    pub(super) fn ok(message: &'static str, data: &str) -> Self {
        Self::json(Body::from(envelope(message, data.len()).raw("data", data).finish()))
    }

    /// Status 200 with an object as payload, which is written where it is sent from. `bytes` is the length of the
    /// stored text in it.
    pub(super) fn ok_with(
        message: &'static str,
        bytes: usize,
        members: impl FnOnce(Object) -> Object,
    ) -> Self {
        Self::json(Body::from(envelope(message, bytes).object("data", members).finish()))
    }

    /// Status 200 without a payload, for a write whose result is no longer available.
    pub(super) fn without_data(message: &'static str) -> Self {
        Self::json(Body::from(envelope(message, 0).finish()))
            .warning("`data` is omitted: the record has changed since this request wrote it")
    }

    /// Status 201 with a payload and the path of the new resource.
    pub(super) fn created(message: &'static str, data: &str, location: &str) -> Self {
        let mut reply = Self::ok(message, data);
        reply.status = StatusCode::CREATED;
        // Keys consist of unreserved characters, so the path needs no encoding in a header.
        reply.header(header::LOCATION, location)
    }

    /// Status 304: the client has the current version.
    pub(super) fn not_modified() -> Self {
        let headers = HeaderMap::with_capacity(HEADERS);
        Self { status: StatusCode::NOT_MODIFIED, headers, ..Self::of(Body::empty()) }
    }

    /// Status 404 without a body: to the clients of Consul, a key that there is not.
    pub(super) fn no_key() -> Self {
        Self { status: StatusCode::NOT_FOUND, ..Self::of(Body::empty()) }
    }

    /// Status 400 with a text: what Consul says of a request that is wrong.
    pub(super) fn bad_request(texts: Vec<String>) -> Self {
        let text = texts.join("; ");
        let reply = Self::text(HeaderValue::from_static("text/plain; charset=utf-8"), text);
        Self { status: StatusCode::BAD_REQUEST, ..reply }
    }

    /// A text that is no JSON, or whose JSON has no envelope.
    pub(super) fn text(kind: HeaderValue, text: impl Into<Body>) -> Self {
        Self { headers: HeaderMap::from_iter([(header::CONTENT_TYPE, kind)]), ..Self::of(text.into()) }
    }

    /// A page of a list, with what it may keep in memory.
    pub(super) fn page<R: Send + 'static>(
        message: &'static str,
        found: QueryResult<R>,
        reservation: Reservation,
        page: &Page,
        rendering: Rendering<R, impl Fn(Object, &R) -> Object + Send + 'static>,
    ) -> Self {
        let meta = Object::new().value("page", &page.page).value("limit", &page.limit);
        let tail = format!("],\"meta\":{}}}}}", meta.value("total", &found.total).finish());
        let frame = ResultsFrame { before: "", tail: &tail };
        Self::results(message, found.results, reservation, frame, rendering)
    }

    /// A list of results.
    pub(super) fn results<R: Send + 'static>(
        message: &'static str,
        results: Vec<R>,
        reservation: Reservation,
        frame: ResultsFrame<'_>,
        rendering: Rendering<R, impl Fn(Object, &R) -> Object + Send + 'static>,
    ) -> Self {
        RequestWork::note_read(results.len());
        let (ResultsFrame { before, tail }, Rendering { size, render }) = (frame, rendering);
        let head =
            format!("{{\"status\":\"SUCCESS\",\"message\":\"{message}\",\"data\":{{{before}\"results\":[");
        let bytes = results.iter().fold(0_usize, |sum, record| sum.saturating_add(size(record)));
        // Behind a text: a page that is written as a whole is written where it is sent from.
        let written = move |(index, record): (usize, &R), text: String| {
            let comma = if index == 0 { "" } else { "," };
            render(Object::behind(text + comma), record).finish()
        };
        if bytes as u64 <= BUFFERED_PAGE_BYTES_MAX {
            let mut text = head;
            text.reserve(bytes + results.len() * MEMBERS_BYTES + tail.len());
            let text = results.iter().enumerate().fold(text, |text, record| written(record, text)) + tail;
            let mut reservation = reservation;
            reservation.set(text.len() as u64);
            let mut reply = Self::json(Body::from(weight::holding(text.into(), reservation)));
            reply.is_weighed = true;
            return reply;
        }
        let records = results.into_iter().enumerate().map(move |(n, record)| {
            let bytes = size(&record);
            (bytes, written((n, &record), String::with_capacity(bytes.saturating_add(MEMBERS_BYTES))))
        });
        let parts = once((0, head)).chain(records).chain(once((0, tail.to_owned())));
        // What a record has reserved ends when it is sent: a slow client holds only what it has not taken.
        let mut left = reservation;
        let parts = parts.map(move |(size, part)| {
            Ok::<_, Infallible>(weight::holding(part.into(), left.split(size as u64)))
        });
        Self::json(Body::from_stream(stream::iter(parts)))
    }

    /// A backup, as a stream.
    pub(super) fn backup(backup: Backup) -> Self {
        let (revision, length) = (backup.revision, backup.length);
        let chunks = stream::unfold(backup.send(), |mut chunks| async {
            chunks.recv().await.map(|chunk| (chunk, chunks))
        });
        let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        let length = length.map(|length| (header::CONTENT_LENGTH, length.into()));
        let headers = [kind].into_iter().chain(length);
        let body = Body::from_stream(chunks);
        let reply = Self { headers: HeaderMap::from_iter(headers), ..Self::of(body) };
        let name = format!("attachment; filename=\"concord-{revision}.backup\"");
        reply.header(header::CONTENT_DISPOSITION, &name).state_revision(revision)
    }

    /// A stream of server-sent events, which no proxy may cache or buffer.
    pub(super) fn event_stream(body: Body) -> Self {
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
            (header::CACHE_CONTROL, NO_STORE),
            (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
        ];
        Self { headers: HeaderMap::from_iter(headers), ..Self::of(body) }
    }

    /// A file embedded in the binary.
    pub(super) fn asset(kind: &str, bytes: Bytes) -> Self {
        Self::of(Body::from(bytes)).header(header::CONTENT_TYPE, kind)
    }

    /// An HTML page embedded in the binary. It may fetch nothing from another host, and no page may frame it.
    pub(super) fn html_page(kind: &str, bytes: Bytes) -> Self {
        const POLICY: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                              base-uri 'self'; form-action 'self'; frame-ancestors 'none'";
        Self::asset(kind, bytes).header(header::CONTENT_SECURITY_POLICY, POLICY)
    }

    /// Names the revision of the state that the response was made from.
    pub(super) fn state_revision(mut self, revision: Revision) -> Self {
        self.headers.insert(STATE_REVISION, number(revision));
        self
    }

    /// Names the version of the record that the response is about.
    pub(super) fn record_version(self, revision: Revision, modified: Timestamp) -> Self {
        let mut reply = self.header(header::LAST_MODIFIED, &modified.http_date());
        reply.headers.insert(header::ETAG, entity_tag(revision));
        reply
    }

    /// Names the places of values that the client is not shown, where there are any.
    pub(super) fn redacted(self, places: Option<&RedactedPlaces>) -> Self {
        match places.filter(|places| !places.is_empty()) {
            Some(places) => self.header(REDACTED, &places.texts().collect::<Vec<_>>().join(", ")),
            None => self,
        }
    }

    /// Reports the progress of an index build, while there is one.
    pub(super) fn index_building(self, progress: Option<String>) -> Self {
        match progress {
            Some(progress) => self.header(INDEX_BUILDING, &progress),
            None => self,
        }
    }

    /// Links to the next page, where there is one.
    pub(super) fn next_link(self, link: Option<&str>) -> Self {
        match link {
            Some(link) => self.header(header::LINK, &format!("<{link}>; rel=\"next\"")),
            None => self,
        }
    }

    /// The headers of a write: the version of the record that it wrote, and the revision of the state. A dry run
    /// writes no version.
    pub(super) fn for_write(self, written: &DecidedWrite) -> Self {
        let Applied { revision, at, .. } = &written.applied;
        let reply = if written.dry_run { self } else { self.record_version(*revision, *at) };
        reply.for_write_without_record(written)
    }

    /// Nobody between may store the response.
    pub(super) fn no_store(self) -> Self {
        self.header(header::CACHE_CONTROL, "no-store")
    }

    /// The headers of a request about a change request: the version of its record. Applying it has written others, too.
    pub(super) fn for_change(self, stored: &StoredChange) -> Self {
        let StoredChange { change, written } = stored;
        let reply = self.record_version(change.revision, change.modified_at).no_store();
        Self { written: Some(written.applied.revision), ..reply.state_revision(written.revision) }
    }

    /// The headers of a deletion: its own revision, which no record has, and that of the state.
    pub(super) fn for_deletion(self, written: &DecidedWrite) -> Self {
        let reply = self.for_write_without_record(written);
        if written.dry_run {
            return reply;
        }
        reply.header(WRITE_REVISION, &written.applied.revision.to_string())
    }

    /// The headers of a write that leaves no single record: the revision of the state alone.
    pub(super) fn for_write_without_record(self, written: &DecidedWrite) -> Self {
        let reply = self.state_revision(written.revision);
        if written.dry_run {
            return reply.dry_run();
        }
        Self { written: Some(written.applied.revision), ..reply }
    }

    /// Marks the response to a dry run.
    pub(super) fn dry_run(self) -> Self {
        self.header(DRY_RUN, "true")
    }

    /// Says whether a deleted definition is kept.
    pub(super) fn deletion(self, is_kept: bool) -> Self {
        self.header(DELETION, if is_kept { "kept" } else { "final" })
    }

    /// Warns that a part of the request had no effect, or that the response is incomplete. It may have several
    /// warnings.
    pub(super) fn warning(mut self, text: &'static str) -> Self {
        let value = HeaderValue::from_str(&format!("299 - \"{text}\"")).expect("a literal");
        self.headers.append(header::WARNING, value);
        self
    }

    /// Lets the body be compressed as the client accepts it, if it is long and `is_open` says that nothing secret is in
    /// it.
    pub(super) fn compressed_for(mut self, headers: &HeaderMap, is_open: impl FnOnce() -> bool) -> Self {
        let bytes = self.body.size_hint().exact().unwrap_or(0);
        if self.status == StatusCode::OK && (COMPRESSED_BYTES_MIN..=REWRITTEN_BYTES_MAX).contains(&bytes) {
            self.coding = Coding::accepted(headers).filter(|_| is_open());
        }
        self
    }

    /// Reports how many configs do not fit the schema.
    pub(super) fn breaking_configs(self, count: u64) -> Self {
        self.header(BREAKING_CONFIGS, &count.to_string())
    }

    pub(super) fn header(self, name: HeaderName, value: &str) -> Self {
        let value = HeaderValue::from_str(value).expect("made of literals, numbers and valid keys");
        self.with(name, value)
    }

    pub(super) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    fn json(body: Body) -> Self {
        let mut headers = HeaderMap::with_capacity(HEADERS);
        headers.insert(header::CONTENT_TYPE, JSON);
        Self { headers, ..Self::of(body) }
    }

    /// Status 200 with a body and without headers.
    fn of(body: Body) -> Self {
        let headers = HeaderMap::new();
        Self { status: StatusCode::OK, headers, body, written: None, coding: None, is_weighed: false }
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let mut response = Response::new(self.body);
        (*response.status_mut(), *response.headers_mut()) = (self.status, self.headers);
        if let Some(revision) = self.written {
            response.extensions_mut().insert(WrittenAt(revision));
        }
        if let Some(coding) = self.coding {
            response.extensions_mut().insert(coding);
        }
        if self.is_weighed {
            response.extensions_mut().insert(Weighed);
        }
        response
    }
}

/// A number as the value of a header: a response has several, so each is written on the stack and copied once.
pub(super) fn number(number: u64) -> HeaderValue {
    HeaderValue::from_str(itoa::Buffer::new().format(number)).expect("digits are visible ASCII")
}

/// A revision in quotes.
fn entity_tag(revision: Revision) -> HeaderValue {
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(revision).as_bytes();
    // A number has at most 20 digits.
    let mut text = [b'"'; 22];
    text[1..=digits.len()].copy_from_slice(digits);
    HeaderValue::from_bytes(&text[..digits.len() + 2]).expect("digits and quotes are visible ASCII")
}

/// A success except its payload, of `bytes`.
fn envelope(message: &'static str, bytes: usize) -> Object {
    Object::with_capacity(bytes).raw("status", "\"SUCCESS\"").unescaped("message", message)
}

/// One error in the shape of a body or query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Detail {
    pub(super) loc: Vec<LocSegment>,
    pub(super) msg: Cow<'static, str>,
    pub(super) kind: &'static str,
}

/// Why a request is rejected.
#[derive(Debug)]
pub(super) enum Problem {
    /// The credential is missing or not valid; the text says which.
    Unauthenticated(&'static str),
    /// No resource has this path.
    UnknownPath,
    /// The path exists, but does not take the method.
    MethodNotAllowed,
    /// The body or query has the wrong shape.
    Shape(Vec<Detail>),
    /// The body of a `PATCH` has no supported media type.
    UnsupportedPatch,
    /// The body is encoded in a way that is not supported.
    UnsupportedCoding,
    /// A rejection of the service, with the revision of the state that it was decided from, where there is one.
    Refused(Refusal, Option<Revision>),
    /// A rejection of a batch, whose operations are divided like this.
    InBatch(Refusal, Option<TransactionParts>),
}

/// The text of an internal error, which is logged and not sent.
#[derive(Debug, Clone)]
pub(super) struct LogOnly(pub(super) String);

impl Problem {
    /// A rejection for one violation.
    pub(super) fn violation(violation: Violation) -> Self {
        Refusal::Invalid(violation.into()).into()
    }

    /// A rejection that follows from the state that was read.
    pub(super) fn rejected(rejection: Rejection, revision: Revision) -> Self {
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
                Refusal::Building(format!("the index of `{path}` is being built")).into()
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
                let response =
                    plain((StatusCode::UNAUTHORIZED, "unauthorized_error"), Code::Unauthorized, msg);
                ([(header::WWW_AUTHENTICATE, "Bearer")], response).into_response()
            }
            Self::UnknownPath => {
                plain((StatusCode::NOT_FOUND, "not_found_error"), Code::PathNotFound, "no such path")
            }
            Self::MethodNotAllowed => {
                let kind = (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed");
                plain(kind, Code::MethodNotAllowed, "the path does not take this method")
            }
            Self::Shape(details) => shape_response(&details),
            Self::UnsupportedPatch => {
                let msg = "expected a patch, with the header `content-type: application/merge-patch+json` or `application/json-patch+json`";
                let error =
                    Detail { loc: vec!["body".into()], msg: msg.into(), kind: "model_attributes_type" };
                ([(ACCEPT_PATCH, PATCH_TYPES)], shape_response(&[error])).into_response()
            }
            Self::UnsupportedCoding => {
                let kind = (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_coding");
                let msg = "unsupported content coding; the header `accept-encoding` of this response lists the supported ones";
                let accepted = (header::ACCEPT_ENCODING, coding::DECODED);
                ([accepted], plain(kind, Code::CodingUnsupported, msg)).into_response()
            }
            Self::InBatch(refusal, parts) => refusal_response(refusal, parts),
            Self::Refused(refusal, revision) => {
                let mut response = refusal_response(refusal, None);
                if let Some(revision) = revision {
                    response.headers_mut().insert(STATE_REVISION, revision.into());
                }
                response
            }
        }
    }
}

/// The response to a request whose handler panicked.
pub(super) fn panicked(payload: Box<dyn Any + Send + 'static>) -> Response {
    let text = payload
        .downcast::<String>()
        .map(|text| *text)
        .or_else(|payload| payload.downcast::<&'static str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|_| "no message".to_owned());
    refusal_response(Refusal::Internal(format!("panic: {text}")), None)
}

fn refusal_response(refusal: Refusal, parts: Option<TransactionParts>) -> Response {
    let (status, kind) = status_and_type(&refusal);
    let of_operation = if let Refusal::OfOperation(_, refusal) = &refusal { refusal } else { &refusal };
    let breaking = if let Refusal::Breaks { count, .. } = of_operation { Some(*count) } else { None };
    let current =
        if let Refusal::Rejected(Rejection::Precondition { current }) = &refusal { *current } else { 0 };
    let code = Code::of(&refusal);
    let retry_after = frozen_until(&refusal).map(|until| {
        // A hint: the clock of this node need not agree with the log's time.
        let left = until.0.saturating_sub(concord_service::now().0);
        number(left.div_ceil(1_000_000).max(1))
    });
    let (mut violations, log_only) = violations(refusal);
    if let Some(parts) = parts {
        violations.iter_mut().for_each(|violation| parts.relocate(&mut violation.loc));
    }
    let mut response = failure(status, kind, code, &violations);
    if current > 0 {
        // The version that there is: what the next attempt names.
        response.headers_mut().insert(header::ETAG, entity_tag(current));
    }
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(count) = breaking {
        response.headers_mut().insert(BREAKING_CONFIGS, count.into());
    }
    if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
        response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER_S);
    }
    if let Some(retry_after) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, retry_after);
    }
    if let Some(log_only) = log_only {
        response.extensions_mut().insert(log_only);
    }
    response
}

/// The items of `errors` of a rejection that is a part of a response.
pub(super) fn refusal_items(refusal: Refusal) -> Vec<Value> {
    let ((_, kind), code) = (status_and_type(&refusal), Code::of(&refusal));
    items(kind, code, &violations(refusal).0)
}

/// The body of a rejection within a stream, whose status has been sent already.
pub(super) fn refusal_body(refusal: Refusal) -> String {
    let ((_, kind), code) = (status_and_type(&refusal), Code::of(&refusal));
    let (violations, log_only) = violations(refusal);
    if let Some(LogOnly(text)) = log_only {
        tracing::error!("a stream failed: {text}");
    }
    failure_body(kind, code, &violations)
}

#[cfg(test)]
mod tests;
