//! Bodies: bounded, parsed, and read field by field into what the service takes.
//!
//! A body of the wrong shape is refused on the framework's level, in `detail`, with all wrong fields and not the
//! first only. What a value means (keys, indexes, schema, data) is judged further in.
//!
//! **Invariant:** no more of a body is kept than the limit, whatever the caller announced.

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
        record::Revision,
    },
    peer::{Member, NodeId},
    service::Refusal,
};

/// How long a body may take to arrive: the largest one in two minutes is a poor telephone line.
const BODY_TIME: Duration = Duration::from_secs(120);
/// How much of a refused body is still read and thrown away, and for how long: a connection that is closed while
/// its client sends takes the refusal with it.
const LINGER_BYTES: usize = 64 << 20;
const LINGER_TIME: Duration = Duration::from_secs(5);

/// Reads a body of at most `limit` bytes.
pub(super) async fn receive(headers: &HeaderMap, mut body: Body, limit: usize) -> Result<Bytes, Problem> {
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if declared.is_some_and(|bytes: u64| bytes > u64::try_from(limit).unwrap_or(u64::MAX)) {
        // A caller that waits for a go-ahead has not sent anything yet.
        if !headers.contains_key(header::EXPECT) {
            linger(body);
        }
        return Err(too_large(limit));
    }
    match timeout(BODY_TIME, collect(&mut body, limit)).await {
        Ok(Ok(Some(bytes))) => Ok(bytes),
        Ok(Ok(None)) => {
            linger(body);
            Err(too_large(limit))
        }
        Ok(Err(_)) => Err(unread("the body broke off")),
        Err(_) => Err(unread("the body did not arrive in time")),
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

/// Throws the rest of a refused body away, beside the answer. How it ends is of no interest to anybody.
fn linger(mut body: Body) {
    let discard = async move {
        let mut left = LINGER_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            let Some(rest) = left.checked_sub(bytes) else { return };
            left = rest;
        }
    };
    tokio::spawn(timeout(LINGER_TIME, discard));
}

fn too_large(limit: usize) -> Problem {
    Refusal::Invalid(Invalid::TooLarge(format!("the body is larger than {limit} bytes"))).into()
}

fn unread(msg: &str) -> Problem {
    Problem::violation(Violation::at(vec!["body".into()], msg))
}

/// Refuses a body that says of itself that it is not JSON.
pub(super) fn check_type(headers: &HeaderMap) -> Result<(), Problem> {
    let value = headers.get(header::CONTENT_TYPE).map_or(&b""[..], http::HeaderValue::as_bytes);
    let essence = value.split(|b| *b == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
    let is_json = essence.is_empty() || essence == b"application/json" || essence.ends_with(b"+json");
    if is_json { Ok(()) } else { Err(Problem::Shape(vec![not_an_object(vec!["body".into()])])) }
}

/// The value of a body.
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

/// The body of operation 1.
#[derive(Debug, PartialEq)]
pub(super) struct NewDefinition {
    pub(super) key: String,
    pub(super) indexes: Vec<String>,
    pub(super) schema: Option<Document>,
}

impl NewDefinition {
    pub(super) fn of(body: Value) -> Result<Self, Problem> {
        let mut fields = Fields::of(body)?;
        let key = fields.text("config_definition_key");
        let indexes = if fields.has("indexes") { fields.texts("indexes") } else { Vec::new() };
        let schema = if fields.is_null("json_schema") { None } else { fields.object_if_there("json_schema") };
        let (key, indexes, schema) = fields.end((key, indexes, schema))?;
        Ok(Self { key, indexes, schema: schema.map(Document::new) })
    }
}

/// The body of operation 4.
#[derive(Debug, PartialEq)]
pub(super) struct NewIndexes {
    pub(super) indexes: Vec<String>,
    /// A schema was sent too, and has no effect.
    pub(super) has_schema: bool,
}

impl NewIndexes {
    pub(super) fn of(body: Value) -> Result<Self, Problem> {
        let mut fields = Fields::of(body)?;
        let has_schema = fields.has("json_schema");
        let indexes = fields.texts("indexes");
        fields.end(Self { indexes, has_schema })
    }
}

/// The body that changes a schema: `null` removes it.
pub(super) fn new_schema(body: Value) -> Result<Option<Document>, Problem> {
    let mut fields = Fields::of(body)?;
    let schema = if fields.is_null("json_schema") { None } else { Some(fields.object("json_schema")) };
    fields.end(schema).map(|schema| schema.map(Document::new))
}

/// The body that names the unique paths.
pub(super) fn new_paths(body: Value) -> Result<Vec<String>, Problem> {
    let mut fields = Fields::of(body)?;
    let paths = fields.texts("paths");
    fields.end(paths)
}

/// The body of operation 6.
#[derive(Debug, PartialEq)]
pub(super) struct NewConfig {
    pub(super) key: String,
    pub(super) data: Document,
}

impl NewConfig {
    pub(super) fn of(body: Value) -> Result<Self, Problem> {
        let mut fields = Fields::of(body)?;
        let key = fields.text("config_key");
        let data = fields.object("data");
        fields.end((key, data)).map(|(key, data)| Self { key, data: Document::new(data) })
    }
}

/// The body of operation 9: the data alone; a key in it changes nothing.
pub(super) fn new_data(body: Value) -> Result<Document, Problem> {
    let mut fields = Fields::of(body)?;
    let data = fields.object("data");
    fields.end(data).map(Document::new)
}

/// The body of a rollback: the revision that it goes back to.
pub(super) fn revision(body: Value) -> Result<Revision, Problem> {
    let mut fields = Fields::of(body)?;
    let revision = fields.number("revision");
    fields.end(revision)
}

/// The body that forms a cluster.
pub(super) fn members(body: Value) -> Result<Vec<Member>, Problem> {
    let mut fields = Fields::of(body)?;
    let mut members = Vec::new();
    for (loc, item) in fields.list("members") {
        match item {
            Value::Object(object) => {
                let mut member = Fields { object, loc, wrong: std::mem::take(&mut fields.wrong) };
                let id = member.number("id");
                let api_addr = member.text("api_addr");
                let peer_addr = member.text("peer_addr");
                members.push(Member { id, api_addr, peer_addr });
                fields.wrong = member.wrong;
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                fields.wrong.push(not_an_object(loc));
            }
        }
    }
    fields.end(members)
}

/// The body that names one member.
pub(super) fn member(body: Value) -> Result<Member, Problem> {
    let mut fields = Fields::of(body)?;
    let id = fields.number("id");
    let api_addr = fields.text("api_addr");
    let peer_addr = fields.text("peer_addr");
    fields.end(Member { id, api_addr, peer_addr })
}

/// The body that names a member by its id.
pub(super) fn member_id(body: Value) -> Result<NodeId, Problem> {
    let mut fields = Fields::of(body)?;
    let id = fields.number("id");
    fields.end(id)
}

/// The members of an object that are taken one by one; what is wrong is collected, and a wrong member reads as
/// an empty one until [`Fields::end`] refuses them all.
pub(super) struct Fields {
    pub(super) object: Map<String, Value>,
    pub(super) loc: Vec<LocSegment>,
    pub(super) wrong: Vec<Detail>,
}

impl Fields {
    pub(super) fn of(body: Value) -> Result<Self, Problem> {
        let loc = vec!["body".into()];
        match body {
            Value::Object(object) => Ok(Self { object, loc, wrong: Vec::new() }),
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

    pub(super) fn place(&self, name: &str) -> Vec<LocSegment> {
        self.loc.iter().cloned().chain([name.into()]).collect()
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        let value = self.object.remove(name);
        if value.is_none() {
            self.wrong.push(missing(self.place(name)));
        }
        value
    }

    pub(super) fn refuse(&mut self, name: &str, msg: &'static str, kind: &'static str) {
        let loc = self.place(name);
        self.wrong.push(Detail { loc, msg: msg.into(), kind });
    }

    pub(super) fn text(&mut self, name: &str) -> String {
        match self.take(name) {
            Some(Value::String(text)) => text,
            Some(_) => {
                self.refuse(name, "input should be a valid string", "string_type");
                String::new()
            }
            None => String::new(),
        }
    }

    pub(super) fn number(&mut self, name: &str) -> u64 {
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

    pub(super) fn object_if_there(&mut self, name: &str) -> Option<Value> {
        self.has(name).then(|| self.object(name))
    }

    /// The elements of a list, each with its place.
    pub(super) fn list(&mut self, name: &str) -> Vec<(Vec<LocSegment>, Value)> {
        match self.take(name) {
            Some(Value::Array(items)) => {
                let place = self.place(name);
                let at = |number| place.iter().cloned().chain([LocSegment::Index(number)]).collect();
                (0..).map(at).zip(items).collect()
            }
            Some(_) => {
                self.refuse(name, "input should be a valid list", "list_type");
                Vec::new()
            }
            None => Vec::new(),
        }
    }

    pub(super) fn texts(&mut self, name: &str) -> Vec<String> {
        let mut texts = Vec::new();
        for (loc, item) in self.list(name) {
            if let Value::String(text) = item {
                texts.push(text);
            } else {
                let msg = "input should be a valid string".into();
                self.wrong.push(Detail { loc, msg, kind: "string_type" });
            }
        }
        texts
    }

    pub(super) fn end<T>(self, made: T) -> Result<T, Problem> {
        if self.wrong.is_empty() { Ok(made) } else { Err(Problem::Shape(self.wrong)) }
    }
}

fn missing(loc: Vec<LocSegment>) -> Detail {
    Detail { loc, msg: "field required".into(), kind: "missing" }
}

pub(super) fn not_an_object(loc: Vec<LocSegment>) -> Detail {
    Detail { loc, msg: "input should be a valid object".into(), kind: "model_attributes_type" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The places and types of what is wrong with the shape of a body.
    fn wrong<T: std::fmt::Debug>(made: Result<T, Problem>) -> Vec<(String, &'static str)> {
        let Err(Problem::Shape(details)) = made else { panic!("{made:?} is no refusal of a shape") };
        let name = |step: &LocSegment| match step {
            LocSegment::Name(name) => name.clone(),
            LocSegment::Index(place) => place.to_string(),
        };
        let place = |loc: &[LocSegment]| loc.iter().map(name).collect::<Vec<_>>().join("/");
        details.iter().map(|detail| (place(&detail.loc), detail.kind)).collect()
    }

    fn at(place: &str, kind: &'static str) -> (String, &'static str) {
        (place.to_owned(), kind)
    }

    #[test]
    fn all_wrong_fields_of_a_definition_are_listed_and_not_the_first_only() {
        let body = json!({"config_definition_key": 1, "indexes": ["a", 1, null], "json_schema": []});
        let expected = [
            at("body/config_definition_key", "string_type"),
            at("body/indexes/1", "string_type"),
            at("body/indexes/2", "string_type"),
            at("body/json_schema", "dict_type"),
        ];
        assert_eq!(wrong(NewDefinition::of(body)), expected);
        assert_eq!(
            wrong(NewDefinition::of(json!({"indexes": null}))),
            [at("body/config_definition_key", "missing"), at("body/indexes", "list_type")]
        );
    }

    #[test]
    fn a_definition_needs_its_key_alone() {
        for body in [
            json!({"config_definition_key": "d"}),
            json!({"config_definition_key": "d", "json_schema": null, "more": 1}),
        ] {
            let made = NewDefinition::of(body).unwrap();
            assert_eq!(made, NewDefinition { key: "d".into(), indexes: Vec::new(), schema: None });
        }
    }

    #[test]
    fn an_update_of_indexes_that_names_none_is_refused() {
        assert_eq!(wrong(NewIndexes::of(json!({}))), [at("body/indexes", "missing")]);
        assert_eq!(wrong(NewIndexes::of(json!({"indexes": null}))), [at("body/indexes", "list_type")]);
        let made = NewIndexes::of(json!({"indexes": ["a"], "json_schema": {}})).unwrap();
        assert_eq!(made, NewIndexes { indexes: vec!["a".into()], has_schema: true });
    }

    #[test]
    fn a_config_needs_a_key_and_an_object() {
        let both = [at("body/config_key", "missing"), at("body/data", "missing")];
        assert_eq!(wrong(NewConfig::of(json!({}))), both);
        for data in [json!(null), json!([]), json!("x"), json!(1)] {
            let body = json!({"config_key": "k", "data": data});
            assert_eq!(wrong(NewConfig::of(body.clone())), [at("body/data", "dict_type")]);
            assert_eq!(wrong(new_data(body)), [at("body/data", "dict_type")]);
        }
    }

    #[test]
    fn a_body_that_is_no_object_is_refused_as_a_whole() {
        for body in [json!(null), json!([]), json!("x"), json!(1), json!(true)] {
            assert_eq!(wrong(NewConfig::of(body)), [at("body", "model_attributes_type")]);
        }
        assert_eq!(wrong(json(b"", 64)), [at("body", "missing")]);
    }

    #[test]
    fn every_member_of_a_cluster_is_checked() {
        let good = json!({"id": 1, "api_addr": "a:1", "peer_addr": "a:2"});
        assert_eq!(members(json!({"members": [good]})).unwrap()[0].id, 1);
        let body = json!({"members": [{"id": -1, "api_addr": 2}, "x"]});
        let expected = [
            at("body/members/0/id", "int_type"),
            at("body/members/0/api_addr", "string_type"),
            at("body/members/0/peer_addr", "missing"),
            at("body/members/1", "model_attributes_type"),
        ];
        assert_eq!(wrong(members(body)), expected);
    }

    #[test]
    fn only_json_or_nothing_is_taken_for_json() {
        let check = |value: &str| {
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, value.parse().unwrap())]);
            check_type(&headers)
        };
        for good in
            ["", "application/json", "Application/JSON; charset=utf-8", "application/merge-patch+json"]
        {
            assert!(check(good).is_ok(), "{good}");
        }
        assert!(check_type(&HeaderMap::new()).is_ok());
        for bad in ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", "json"] {
            assert_eq!(wrong(check(bad)), [at("body", "model_attributes_type")], "{bad}");
        }
    }

    #[tokio::test]
    async fn a_body_beyond_the_limit_is_refused_announced_or_not() {
        let is_too_large = |made: Result<Bytes, Problem>| {
            matches!(made, Err(Problem::Refused(Refusal::Invalid(Invalid::TooLarge(_)), None)))
        };
        let announced = HeaderMap::from_iter([(header::CONTENT_LENGTH, "6".parse().unwrap())]);
        assert!(is_too_large(receive(&announced, Body::empty(), 5).await));
        let stream = || {
            let parts = ["abc", "def"].map(|part| Ok::<_, std::convert::Infallible>(Bytes::from(part)));
            Body::from_stream(futures::stream::iter(parts))
        };
        assert!(is_too_large(receive(&HeaderMap::new(), stream(), 5).await));
        assert_eq!(receive(&HeaderMap::new(), stream(), 6).await.unwrap(), "abcdef");
        assert_eq!(receive(&announced, Body::from("abcdef"), 6).await.unwrap(), "abcdef");
    }
}
