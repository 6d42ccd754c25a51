//! Request bodies: received up to a limit, parsed, and read field by field into typed values.
//!
//! A body of the wrong shape is refused with `detail`, which lists every wrong field and not only the first. The
//! values themselves (keys, indexes, schema, data) are validated in `service` and `model`.
//!
//! **Invariant:** no more of a body is held in memory than the limit, whatever length the caller declared, and nothing
//! that is not reserved in the memory budget.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use bytes::BytesMut;
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout};

use super::reply::{Detail, Problem};
use concord_model::{
    document::{self, Document, DocumentError},
    error::{Invalid, LocSegment, Violation},
    limits::{BODY_COPIES, BODY_TIMEOUT, PARSED_VALUE_BYTES, SCARCE_RATE, SCARCE_TIMEOUT, VIOLATIONS_MAX},
    patch::PatchFormat,
    record::Revision,
};
use concord_net::{Member, NodeId};
use concord_service::{
    Refusal, Service,
    memory_budget::{self, Reservation},
};

/// How much of a refused body is still read and discarded: a client that still sends when its connection is closed
/// loses the refusal.
const DISCARD_BYTES_MAX: usize = 64 << 20;
/// For how long a refused body is read and discarded.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a body up to which it is parsed on the threads that serve requests: less than a millisecond.
const INLINE_PARSE_BYTES_MAX: usize = 64 << 10;
/// How often it is asked whether a body that brings nothing is in the way of others.
const PACE_INTERVAL: Duration = Duration::from_millis(500);

/// The media types of patches.
const PATCH_TYPES: [(&str, PatchFormat); 2] = [
    ("application/merge-patch+json", PatchFormat::Merge),
    ("application/json-patch+json", PatchFormat::Json),
];

/// Receives a body of at most `limit` bytes. What it holds is reserved as it arrives, not as it is announced: a
/// caller who sends slowly, or nothing, holds no more than what has come.
pub(super) async fn receive(
    headers: &HeaderMap,
    mut body: Body,
    limit: usize,
    reservation: &mut Reservation,
) -> Result<Bytes, Problem> {
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if declared.is_some_and(|bytes: u64| bytes > u64::try_from(limit).unwrap_or(u64::MAX)) {
        // A caller that waits for `100 Continue` has sent nothing yet.
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
        Err(_) => return Err(not_received("the body did not arrive in time")),
    };
    discard(body);
    Err(refused)
}

/// A body that was received, with what it and its values hold in memory until the request ends.
#[derive(Debug)]
pub(super) struct Received {
    bytes: Bytes,
    _held: Reservation,
}

impl Received {
    pub(super) fn new(bytes: Bytes, mut held: Reservation) -> Result<Self, Problem> {
        held.grow(parsed_bytes(&bytes))?;
        Ok(Self { bytes, _held: held })
    }

    /// What the body says: parsed, and read by `read`. That of a long one is done on a thread for long work.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        service: &Service,
        read: impl FnOnce(Value) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let (text, depth_max) = (self.bytes.clone(), service.limits().json_depth);
        if is_long(&text) {
            // Boxed: every request would have its space.
            return Box::pin(service.run_long(move || read(json(&text, depth_max)?))).await?;
        }
        read(json(&text, depth_max)?)
    }
}

/// Whether it takes longer than a worker may be kept to read a body.
pub(super) fn is_long(body: &[u8]) -> bool {
    body.len() > INLINE_PARSE_BYTES_MAX
}

/// Why a body was not collected.
enum NotCollected {
    TooLarge,
    Refused(Refusal),
    Ended,
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
        let Ok(data) = frame.map_err(|_| NotCollected::Ended)?.into_data() else { continue };
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

/// Gives up a body that comes slowly while others need the memory that it holds.
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

/// Reads and discards the rest of a refused body in a task of its own, while the refusal is sent. How it ends does
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

/// Refuses a body whose media type is not JSON.
pub(super) fn check_type(headers: &HeaderMap) -> Result<(), Problem> {
    let value = headers.get(header::CONTENT_TYPE).map_or(&b""[..], http::HeaderValue::as_bytes);
    let essence = value.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
    let suffix = essence.get(essence.len().saturating_sub(5)..).unwrap_or_default();
    let is_json = essence.is_empty()
        || essence.eq_ignore_ascii_case(b"application/json")
        || suffix.eq_ignore_ascii_case(b"+json");
    if is_json {
        return Ok(());
    }
    let msg = "input should be a valid object: JSON, with the header `content-type: application/json`";
    Err(Problem::Shape(vec![Detail { msg: msg.into(), ..not_an_object(vec!["body".into()]) }]))
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
        return Err(Problem::Shape(vec![missing(body_loc())]));
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

/// The body that creates a definition.
#[derive(Debug, PartialEq)]
pub(super) struct NewDefinition {
    pub(super) key: String,
    pub(super) indexes: Vec<String>,
    pub(super) schema: Option<Document>,
    pub(super) format_assertion: Option<bool>,
}

impl NewDefinition {
    pub(super) fn from_json(body: Value) -> Result<Self, Problem> {
        let mut fields = Fields::from_json(body)?;
        let key = fields.string("config_definition_key");
        let indexes = if fields.has("indexes") { fields.strings("indexes") } else { Vec::new() };
        let schema = if fields.is_null("json_schema") { None } else { fields.optional_object("json_schema") };
        let format_assertion = fields.optional_boolean("format_assertion");
        let (key, indexes, schema) = fields.finish((key, indexes, schema))?;
        Ok(Self { key, indexes, schema: schema.map(Document::new), format_assertion })
    }
}

/// The body that replaces the indexed paths.
#[derive(Debug, PartialEq)]
pub(super) struct NewIndexes {
    pub(super) indexes: Vec<String>,
    /// The body has a schema too, which is ignored.
    pub(super) has_schema: bool,
}

impl NewIndexes {
    pub(super) fn from_json(body: Value) -> Result<Self, Problem> {
        let mut fields = Fields::from_json(body)?;
        let has_schema = fields.has("json_schema");
        let indexes = fields.strings("indexes");
        fields.finish(Self { indexes, has_schema })
    }
}

/// The body that replaces a schema, and what it says of formats; `null` removes the schema.
pub(super) fn new_schema(body: Value) -> Result<(Option<Document>, Option<bool>), Problem> {
    let mut fields = Fields::from_json(body)?;
    let schema = if fields.is_null("json_schema") { None } else { Some(fields.object("json_schema")) };
    let format_assertion = fields.optional_boolean("format_assertion");
    Ok((fields.finish(schema)?.map(Document::new), format_assertion))
}

/// The body that replaces the unique paths.
pub(super) fn new_paths(body: Value) -> Result<Vec<String>, Problem> {
    let mut fields = Fields::from_json(body)?;
    let paths = fields.strings("paths");
    fields.finish(paths)
}

/// The body that creates a config.
#[derive(Debug, PartialEq)]
pub(super) struct NewConfig {
    pub(super) key: String,
    pub(super) data: Document,
}

impl NewConfig {
    pub(super) fn from_json(body: Value) -> Result<Self, Problem> {
        let mut fields = Fields::from_json(body)?;
        let key = fields.string("config_key");
        let data = fields.object("data");
        fields.finish((key, data)).map(|(key, data)| Self { key, data: Document::new(data) })
    }
}

/// The body that replaces the data of a config; a key in it is ignored.
pub(super) fn new_data(body: Value) -> Result<Document, Problem> {
    let mut fields = Fields::from_json(body)?;
    let data = fields.object("data");
    fields.finish(data).map(Document::new)
}

/// The body of a rollback: the revision whose data are restored.
pub(super) fn revision(body: Value) -> Result<Revision, Problem> {
    let mut fields = Fields::from_json(body)?;
    let revision = fields.integer("revision");
    fields.finish(revision)
}

/// The body that forms a cluster.
pub(super) fn members(body: Value) -> Result<Vec<Member>, Problem> {
    let mut fields = Fields::from_json(body)?;
    let mut members = Vec::new();
    for (loc, item) in fields.list("members") {
        match item {
            Value::Object(object) => {
                let mut member = Fields { object, loc, errors: std::mem::take(&mut fields.errors) };
                let id = member.integer("id");
                let api_addr = member.string("api_addr");
                let peer_addr = member.string("peer_addr");
                members.push(Member { id, api_addr, peer_addr });
                fields.errors = member.errors;
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                fields.errors.push(not_an_object(loc));
            }
        }
    }
    fields.finish(members)
}

/// The body that names one member.
pub(super) fn member(body: Value) -> Result<Member, Problem> {
    let mut fields = Fields::from_json(body)?;
    let id = fields.integer("id");
    let api_addr = fields.string("api_addr");
    let peer_addr = fields.string("peer_addr");
    fields.finish(Member { id, api_addr, peer_addr })
}

/// The body that names a member by its id.
pub(super) fn member_id(body: Value) -> Result<NodeId, Problem> {
    let mut fields = Fields::from_json(body)?;
    let id = fields.integer("id");
    fields.finish(id)
}

/// The members of an object, taken one by one. Errors are collected: a wrong member yields an empty value, and
/// [`Fields::finish`] refuses the body.
pub(super) struct Fields {
    pub(super) object: Map<String, Value>,
    pub(super) loc: Vec<LocSegment>,
    pub(super) errors: Vec<Detail>,
}

impl Fields {
    pub(super) fn from_json(body: Value) -> Result<Self, Problem> {
        let loc = vec!["body".into()];
        match body {
            Value::Object(object) => Ok(Self { object, loc, errors: Vec::new() }),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                Err(Problem::Shape(vec![not_an_object(loc)]))
            }
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.object.contains_key(name)
    }

    pub(super) fn is_null(&self, name: &str) -> bool {
        self.object.get(name).is_some_and(Value::is_null)
    }

    pub(super) fn loc_of(&self, name: &str) -> Vec<LocSegment> {
        self.loc.iter().cloned().chain([name.into()]).collect()
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        let value = self.object.remove(name);
        if value.is_none() {
            self.errors.push(missing(self.loc_of(name)));
        }
        value
    }

    pub(super) fn refuse(&mut self, name: &str, msg: &'static str, kind: &'static str) {
        let loc = self.loc_of(name);
        self.errors.push(Detail { loc, msg: msg.into(), kind });
    }

    pub(super) fn string(&mut self, name: &str) -> String {
        match self.take(name) {
            Some(Value::String(text)) => text,
            Some(_) => {
                self.refuse(name, "input should be a valid string", "string_type");
                String::new()
            }
            None => String::new(),
        }
    }

    pub(super) fn integer(&mut self, name: &str) -> u64 {
        let Some(value) = self.take(name) else { return 0 };
        value.as_u64().unwrap_or_else(|| {
            self.refuse(name, "input should be a valid integer", "int_type");
            0
        })
    }

    pub(super) fn object(&mut self, name: &str) -> Value {
        match self.take(name) {
            Some(value @ Value::Object(_)) => value,
            Some(_) => {
                self.refuse(name, "input should be a valid object", "dict_type");
                Value::Null
            }
            None => Value::Null,
        }
    }

    pub(super) fn optional_boolean(&mut self, name: &str) -> Option<bool> {
        match self.object.remove(name)? {
            Value::Bool(value) => Some(value),
            Value::Null => None,
            Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
                self.refuse(name, "input should be a valid boolean", "bool_type");
                None
            }
        }
    }

    pub(super) fn optional_object(&mut self, name: &str) -> Option<Value> {
        self.has(name).then(|| self.object(name))
    }

    /// The elements of a list, each with its location, which is made when its turn comes.
    pub(super) fn list(
        &mut self,
        name: &str,
    ) -> impl ExactSizeIterator<Item = (Vec<LocSegment>, Value)> + use<> {
        let items = match self.take(name) {
            Some(Value::Array(items)) => items,
            Some(_) => {
                self.refuse(name, "input should be a valid list", "list_type");
                Vec::new()
            }
            None => Vec::new(),
        };
        let loc = self.loc_of(name);
        items.into_iter().enumerate().map(move |(number, item)| {
            let number = LocSegment::Index(u64::try_from(number).unwrap_or(u64::MAX));
            (loc.iter().cloned().chain([number]).collect(), item)
        })
    }

    /// How many elements a list has.
    pub(super) fn count(&self, name: &str) -> usize {
        self.object.get(name).and_then(Value::as_array).map_or(0, Vec::len)
    }

    /// Notes an error, as far as an answer has room for it.
    pub(super) fn note(&mut self, error: Detail) {
        if self.errors.len() < VIOLATIONS_MAX {
            self.errors.push(error);
        }
    }

    pub(super) fn strings(&mut self, name: &str) -> Vec<String> {
        let mut texts = Vec::new();
        for (loc, item) in self.list(name) {
            if let Value::String(text) = item {
                texts.push(text);
            } else {
                let msg = "input should be a valid string".into();
                self.note(Detail { loc, msg, kind: "string_type" });
            }
        }
        texts
    }

    pub(super) fn finish<T>(self, made: T) -> Result<T, Problem> {
        if self.errors.is_empty() { Ok(made) } else { Err(Problem::Shape(self.errors)) }
    }
}

fn missing(loc: Vec<LocSegment>) -> Detail {
    Detail { loc, msg: "field required".into(), kind: "missing" }
}

pub(super) fn not_an_object(loc: Vec<LocSegment>) -> Detail {
    Detail { loc, msg: "input should be a valid object".into(), kind: "model_attributes_type" }
}

#[cfg(test)]
mod tests;
