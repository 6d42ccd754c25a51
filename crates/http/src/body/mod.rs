//! Request bodies: received up to a limit, and parsed.
//!
//! | where is | file |
//! |---|---|
//! | the members of a body, and its schema | `fields` |
//!
//! **Invariant:** no more of a body is held in memory than the limit, whatever length the client declared, and nothing
//! that is not reserved in the memory budget.

pub(crate) mod fields;

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use bytes::BytesMut;
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::reply::{Detail, Problem};
use concord_model::{
    document::{self, DocumentError},
    error::{Invalid, LocSegment, Violation},
    limits::{BODY_COPIES, BODY_TIMEOUT, PARSED_VALUE_BYTES, SCARCE_RATE, SCARCE_TIMEOUT},
    patch::PatchFormat,
};
use concord_service::{
    Refusal, RequestWork, Service,
    memory_budget::{self, Reservation},
};

/// How much of a rejected body is still read and discarded: a client that still sends when its connection is closed
/// loses the rejection.
const DISCARD_BYTES_MAX: usize = 64 << 20;
/// For how long a rejected body is read and discarded.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a body up to which it is parsed on the threads that serve requests: less than a millisecond.
const INLINE_PARSE_BYTES_MAX: usize = 64 << 10;
/// How often to check whether others need the memory that a stalled body holds.
const PACE_INTERVAL: Duration = Duration::from_millis(500);

/// The media types of patches.
const PATCH_TYPES: [(&str, PatchFormat); 2] = [
    ("application/merge-patch+json", PatchFormat::Merge),
    ("application/json-patch+json", PatchFormat::Json),
];

/// Receives a body of at most `limit` bytes. Memory is reserved for the bytes that have arrived, not for the declared
/// length: a client that sends slowly, or nothing, holds no more.
pub(crate) async fn receive(
    headers: &HeaderMap,
    mut body: Body,
    limit: usize,
    reservation: &mut Reservation,
) -> Result<Bytes, Problem> {
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if declared.is_some_and(|bytes: u64| bytes > u64::try_from(limit).unwrap_or(u64::MAX)) {
        // A client that waits for `100 Continue` has sent nothing yet.
        if !headers.contains_key(header::EXPECT) {
            discard(body);
        }
        return Err(too_large(limit));
    }
    let refused = match timeout(BODY_TIMEOUT, collect(&mut body, declared, limit, reservation)).await {
        Ok(Ok(bytes)) => return Ok(bytes),
        Ok(Err(NotCollected::TooLarge)) => too_large(limit),
        Ok(Err(NotCollected::Refused(refusal))) => refusal.into(),
        Ok(Err(NotCollected::Ended)) => return Err(not_received("the connection ended within the body")),
        Ok(Err(NotCollected::Trailers)) => {
            return Err(not_received("the body has trailers, which have no meaning here"));
        }
        Err(_) => return Err(not_received("the body did not arrive in time")),
    };
    discard(body);
    Err(refused)
}

/// A body that was received, with what it and its values hold in memory until the request ends.
#[derive(Debug)]
pub(crate) struct Received {
    bytes: Bytes,
    _held: Reservation,
}

impl Received {
    pub(crate) fn new(bytes: Bytes, mut held: Reservation) -> Result<Self, Problem> {
        held.grow(parsed_bytes(&bytes))?;
        Ok(Self { bytes, _held: held })
    }

    /// The body, parsed and read by `read`; on a thread for long work if it is long.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        service: &Service,
        read: impl FnOnce(Value) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let (text, depth_max) = (self.bytes.clone(), service.cx.limits().json_depth);
        if is_long(&text) {
            // Boxed: every request would have its space.
            return Box::pin(service.cx.run_long(move || read(json(&text, depth_max)?))).await?;
        }
        read(json(&text, depth_max)?)
    }
}

/// Whether a body takes too long to parse for a request thread.
pub(super) fn is_long(body: &[u8]) -> bool {
    body.len() > INLINE_PARSE_BYTES_MAX
}

/// Why a body was not collected.
enum NotCollected {
    TooLarge,
    Refused(Refusal),
    Ended,
    /// Nobody reads trailers. h2 drops malformed ones, such as a `:path`, before they can be seen.
    Trailers,
}

/// The bytes of a body of at most `limit`.
async fn collect(
    body: &mut Body,
    declared: Option<u64>,
    limit: usize,
    reservation: &mut Reservation,
) -> Result<Bytes, NotCollected> {
    let (begin, mut all) = (Instant::now(), BytesMut::new());
    loop {
        let Ok(frame) = timeout(PACE_INTERVAL, body.frame()).await else {
            check_pace(begin, all.len(), reservation)?;
            continue;
        };
        let Some(frame) = frame else { return Ok(all.freeze()) };
        let Ok(data) = frame.map_err(|_| NotCollected::Ended)?.into_data() else {
            return Err(NotCollected::Trailers);
        };
        RequestWork::note_received(data.len());
        if data.len() > limit.saturating_sub(all.len()) {
            return Err(NotCollected::TooLarge);
        }
        reservation.grow(data.len() as u64 * BODY_COPIES).map_err(NotCollected::Refused)?;
        if all.is_empty() && body.is_end_stream() {
            return Ok(data);
        }
        if all.capacity() == 0 {
            // Pages that are not written to take no memory.
            let declared = usize::try_from(declared.unwrap_or(0)).unwrap_or(limit);
            all.reserve(declared.clamp(data.len(), limit.max(data.len())));
        }
        all.extend_from_slice(&data);
        check_pace(begin, all.len(), reservation)?;
    }
}

/// Rejects a body that arrives slowly while others need the memory that it holds.
fn check_pace(begin: Instant, received: usize, reservation: &Reservation) -> Result<(), NotCollected> {
    let allowed = SCARCE_TIMEOUT + Duration::from_secs(received as u64 / SCARCE_RATE);
    if begin.elapsed() <= allowed || !reservation.is_share_scarce() {
        return Ok(());
    }
    Err(NotCollected::Refused(memory_budget::refusal()))
}

/// At most how many bytes the values of a JSON text hold in memory beside it: each value but the first of a list or
/// object follows a comma, and the first a bracket.
pub(super) fn parsed_bytes(text: &[u8]) -> u64 {
    let values = text.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count() as u64;
    values.saturating_add(1).saturating_mul(PARSED_VALUE_BYTES)
}

/// Reads and discards the rest of a rejected body in a task of its own, while the rejection is sent. How it ends does
/// not matter.
fn discard(mut body: Body) {
    let read_all = async move {
        let mut left = DISCARD_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            let Some(rest) = left.checked_sub(bytes) else { return };
            left = rest;
        }
    };
    tokio::spawn(timeout(DISCARD_TIMEOUT, read_all));
}

fn too_large(limit: usize) -> Problem {
    Refusal::Invalid(Invalid::TooLarge(format!("the body is larger than {limit} bytes"))).into()
}

fn not_received(msg: &str) -> Problem {
    Problem::violation(Violation::at(vec!["body".into()], msg))
}

/// Rejects a body whose media type is not JSON.
pub(crate) fn check_type(headers: &HeaderMap) -> Result<(), Problem> {
    let value = headers.get(header::CONTENT_TYPE).map_or(&b""[..], http::HeaderValue::as_bytes);
    let essence = value.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
    let suffix = essence.get(essence.len().saturating_sub(5)..).unwrap_or_default();
    let is_json = essence.is_empty()
        || essence.eq_ignore_ascii_case(b"application/json")
        || suffix.eq_ignore_ascii_case(b"+json");
    if is_json {
        return Ok(());
    }
    let msg = "input should be a valid object: JSON, with the header `content-type: application/json`".into();
    Err(Problem::Shape(vec![Detail { loc: vec!["body".into()], msg, kind: "model_attributes_type" }]))
}

/// The format of the patch in a body, by its media type.
pub(super) fn patch_format(headers: &HeaderMap) -> Option<PatchFormat> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let essence = value.split(';').next().unwrap_or_default().trim();
    PATCH_TYPES.iter().find(|(name, _)| name.eq_ignore_ascii_case(essence)).map(|(_, format)| *format)
}

/// Parses a body.
pub(super) fn json(body: &[u8], depth_max: usize) -> Result<Value, Problem> {
    let body_loc = || vec![LocSegment::from("body")];
    if body.is_empty() {
        let msg = "field required".into();
        return Err(Problem::Shape(vec![Detail { loc: body_loc(), msg, kind: "missing" }]));
    }
    document::parse(body, depth_max).map_err(|error| match error {
        DocumentError::Syntax { offset, msg } => {
            let place = LocSegment::Index(u64::try_from(offset).unwrap_or(u64::MAX));
            let msg = format!("JSON decode error: {msg}").into();
            Problem::Shape(vec![Detail { loc: vec!["body".into(), place], msg, kind: "json_invalid" }])
        }
        DocumentError::TooDeep(_) | DocumentError::Reserved(_) => {
            Problem::violation(Violation::at(body_loc(), error.to_string()))
        }
    })
}

#[cfg(test)]
mod tests;
