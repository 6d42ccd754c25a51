//! Request bodies: received up to a limit, parsed, and read field by field into typed values.
//!
//! A body of the wrong shape is refused with `detail`, which lists every wrong field and not only the first. The
//! values themselves (keys, indexes, schema, data) are validated in `service` and `model`.
//!
//! **Invariant:** no more of a body is held in memory than the limit, whatever length the caller declared.

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use bytes::BytesMut;
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::reply::{Detail, Problem};
use crate::{
    model::{
        document::{self, Document, DocumentError},
        error::{Invalid, LocSegment, Violation},
        limits::BODY_TIMEOUT,
        patch::PatchFormat,
        record::Revision,
    },
    peer::{Member, NodeId},
    service::Refusal,
};

/// How much of a refused body is still read and discarded: a client that still sends when its connection is closed
/// loses the refusal.
const DISCARD_BYTES_MAX: usize = 64 << 20;
/// For how long a refused body is read and discarded.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// The media types of patches.
const PATCH_TYPES: [(&str, PatchFormat); 2] = [
    ("application/merge-patch+json", PatchFormat::Merge),
    ("application/json-patch+json", PatchFormat::Json),
];

/// Receives a body of at most `limit` bytes.
pub(super) async fn receive(headers: &HeaderMap, mut body: Body, limit: usize) -> Result<Bytes, Problem> {
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if declared.is_some_and(|bytes: u64| bytes > u64::try_from(limit).unwrap_or(u64::MAX)) {
        // A caller that waits for `100 Continue` has sent nothing yet.
        if !headers.contains_key(header::EXPECT) {
            discard(body);
        }
        return Err(too_large(limit));
    }
    match timeout(BODY_TIMEOUT, collect(&mut body, limit)).await {
        Ok(Ok(Some(bytes))) => Ok(bytes),
        Ok(Ok(None)) => {
            discard(body);
            Err(too_large(limit))
        }
        Ok(Err(_)) => Err(not_received("the connection ended within the body")),
        Err(_) => Err(not_received("the body did not arrive in time")),
    }
}

/// The bytes of a body; `None` when there are more than `limit`.
async fn collect(body: &mut Body, limit: usize) -> Result<Option<Bytes>, axum::Error> {
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if data.len() > limit.saturating_sub(all.len()) {
            return Ok(None);
        }
        if all.is_empty() && body.is_end_stream() {
            return Ok(Some(data));
        }
        all.extend_from_slice(&data);
    }
    Ok(Some(all.freeze()))
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
    let essence = value.split(|b| *b == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
    let is_json = essence.is_empty() || essence == b"application/json" || essence.ends_with(b"+json");
    if is_json { Ok(()) } else { Err(Problem::Shape(vec![not_an_object(vec!["body".into()])])) }
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
}

impl NewDefinition {
    pub(super) fn from_json(body: Value) -> Result<Self, Problem> {
        let mut fields = Fields::from_json(body)?;
        let key = fields.string("config_definition_key");
        let indexes = if fields.has("indexes") { fields.strings("indexes") } else { Vec::new() };
        let schema = if fields.is_null("json_schema") { None } else { fields.optional_object("json_schema") };
        let (key, indexes, schema) = fields.finish((key, indexes, schema))?;
        Ok(Self { key, indexes, schema: schema.map(Document::new) })
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

/// The body that replaces a schema; `null` removes it.
pub(super) fn new_schema(body: Value) -> Result<Option<Document>, Problem> {
    let mut fields = Fields::from_json(body)?;
    let schema = if fields.is_null("json_schema") { None } else { Some(fields.object("json_schema")) };
    fields.finish(schema).map(|schema| schema.map(Document::new))
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

    pub(super) fn optional_object(&mut self, name: &str) -> Option<Value> {
        self.has(name).then(|| self.object(name))
    }

    /// The elements of a list, each with its location.
    pub(super) fn list(&mut self, name: &str) -> Vec<(Vec<LocSegment>, Value)> {
        match self.take(name) {
            Some(Value::Array(items)) => {
                let loc = self.loc_of(name);
                let at = |number| loc.iter().cloned().chain([LocSegment::Index(number)]).collect();
                (0..).map(at).zip(items).collect()
            }
            Some(_) => {
                self.refuse(name, "input should be a valid list", "list_type");
                Vec::new()
            }
            None => Vec::new(),
        }
    }

    pub(super) fn strings(&mut self, name: &str) -> Vec<String> {
        let mut texts = Vec::new();
        for (loc, item) in self.list(name) {
            if let Value::String(text) = item {
                texts.push(text);
            } else {
                let msg = "input should be a valid string".into();
                self.errors.push(Detail { loc, msg, kind: "string_type" });
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
