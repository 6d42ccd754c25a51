//! The bodies of requests and answers.
//!
//! **Invariant:** the envelope and the records of the ten operations are closed, because clients compare them for
//! equality; bodies of requests are open, because unknown members are ignored.

use serde_json::json;
use utoipa::openapi::{
    ArrayBuilder, ComponentsBuilder, KnownFormat, ObjectBuilder, RefOr, Schema, SchemaFormat, Type,
    schema::{AdditionalProperties, OneOfBuilder, SchemaType},
};

use super::{builder::schema, computed, history, rules};
use crate::model::limits::{KEY_BYTES_MAX, Limits};

pub(super) type Field = (&'static str, RefOr<Schema>);

/// A definition's example schema.
fn example_schema() -> serde_json::Value {
    json!({ "type": "object", "properties": { "port": { "type": "integer" } }, "required": ["port"] })
}

pub(super) fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

pub(super) fn integer(least: usize) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(least))
}

pub(super) fn nullable(kind: Type) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::from_iter([kind, Type::Null]))
}

pub(super) fn time() -> ObjectBuilder {
    text()
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
        .description(Some("UTC with microseconds"))
        .examples([json!("2026-03-01T12:00:00.000001Z")])
}

/// A key of a definition or config.
pub(super) fn key() -> ObjectBuilder {
    // The rule of `model::key`, as a pattern.
    text().pattern(Some("^[A-Za-z0-9][A-Za-z0-9_.~-]*$")).max_length(Some(KEY_BYTES_MAX))
}

pub(super) fn indexes(limits: &Limits) -> ArrayBuilder {
    let path = text().description(Some("a path such as `db.port`; `\\.` is a literal dot"));
    ArrayBuilder::new().items(path).max_items(Some(limits.indexes)).unique_items(true)
}

pub(super) fn json_object() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Object)
}

/// An object with these members, all of them there, and perhaps those others.
pub(super) fn open(required: Vec<Field>, optional: Vec<Field>) -> ObjectBuilder {
    let mut object = json_object();
    for (name, schema) in required {
        object = object.property(name, schema).required(name);
    }
    optional.into_iter().fold(object, |object, (name, schema)| object.property(name, schema))
}

/// The same without any further members.
pub(super) fn closed(required: Vec<Field>, optional: Vec<Field>) -> ObjectBuilder {
    open(required, optional).additional_properties(Some(AdditionalProperties::FreeForm(false)))
}

/// The envelope of success around a payload.
fn envelope(data: RefOr<Schema>) -> ObjectBuilder {
    let status = text().enum_values(Some(["SUCCESS"]));
    closed(vec![("status", status.into()), ("message", text().into()), ("data", data)], Vec::new())
}

/// The way to a place in a document, outermost step first.
pub(super) fn place() -> ArrayBuilder {
    ArrayBuilder::new().items(OneOfBuilder::new().item(text()).item(integer(0)))
}

/// The body of a refusal of one type.
pub(super) fn failure(kind: &str) -> ObjectBuilder {
    let step = OneOfBuilder::new().item(text()).item(integer(0));
    let item = closed(
        vec![("type", text().enum_values(Some([kind])).into()), ("msg", text().min_length(Some(1)).into())],
        vec![(
            "loc",
            ArrayBuilder::new().items(step).description(Some("the place, outermost step first")).into(),
        )],
    );
    let errors = ArrayBuilder::new().items(item).min_items(Some(1));
    closed(
        vec![("status", text().enum_values(Some(["FAILURE"])).into()), ("errors", errors.into())],
        Vec::new(),
    )
}

/// The body that tells of a request of the wrong shape.
fn shape_error() -> ObjectBuilder {
    let step = OneOfBuilder::new().item(text()).item(integer(0));
    let kinds = [
        "json_invalid",
        "missing",
        "string_type",
        "list_type",
        "dict_type",
        "int_type",
        "int_parsing",
        "bool_type",
        "model_attributes_type",
    ];
    let item = closed(
        vec![
            ("loc", ArrayBuilder::new().items(step).min_items(Some(1)).into()),
            ("msg", text().min_length(Some(1)).into()),
            ("type", text().enum_values(Some(kinds)).into()),
        ],
        Vec::new(),
    );
    closed(vec![("detail", ArrayBuilder::new().items(item).min_items(Some(1)).into())], Vec::new())
}

/// Any JSON value.
pub(super) fn value() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::AnyValue)
}

/// A JSON schema, or null for none.
pub(super) fn schema_or_none() -> ObjectBuilder {
    nullable(Type::Object)
        .description(Some(
            "a JSON schema, draft 2020-12 unless `$schema` names another; without one, any object is taken",
        ))
        .examples([example_schema()])
}

/// What the payload of an answer is, by name; each gets an envelope named `<name>Answer`.
fn payloads(limits: &Limits) -> Vec<(&'static str, ObjectBuilder)> {
    let definition = |more: Vec<Field>| {
        let mut fields: Vec<Field> =
            vec![("config_definition_key", schema("Key")), ("indexes", indexes(limits).into())];
        fields.extend(more);
        let schema = json_object().description(Some("absent when none was given"));
        closed(fields, vec![("json_schema", schema.into())])
    };
    let times = || -> Vec<Field> { vec![("created_at", time().into()), ("modified_at", time().into())] };
    let config = vec![("config_key", schema("Key")), ("data", json_object().into())];
    vec![
        ("Definition", definition(Vec::new())),
        ("DefinitionRecord", definition(times())),
        ("DefinitionPage", page("DefinitionRecord")),
        ("Indexes", closed(vec![("indexes", indexes(limits).into())], Vec::new())),
        ("DefinitionIdentity", closed(vec![("config_definition_key", schema("Key"))], Vec::new())),
        ("Data", json_object().description(Some("the data of a config, as it was written"))),
        ("ConfigRecord", closed(config.into_iter().chain(times()).collect(), Vec::new())),
        ("ConfigPage", page("ConfigRecord")),
        (
            "ConfigIdentity",
            closed(vec![("config_definition_key", schema("Key")), ("config_key", schema("Key"))], Vec::new()),
        ),
        ("Cluster", cluster()),
        ("Root", closed(vec![("service", text().into()), ("api", text().into())], Vec::new())),
        ("Nothing", closed(Vec::new(), Vec::new())),
    ]
}

fn page(record: &str) -> ObjectBuilder {
    let meta = closed(
        vec![("page", integer(1).into()), ("limit", integer(1).into()), ("total", integer(0).into())],
        Vec::new(),
    );
    let results = ArrayBuilder::new().items(schema(record));
    closed(vec![("results", results.into()), ("meta", meta.into())], Vec::new())
}

fn cluster() -> ObjectBuilder {
    let member = open(
        vec![
            ("id", integer(1).into()),
            ("role", text().enum_values(Some(["leader", "follower", "learner"])).into()),
            ("api_addr", text().into()),
            ("peer_addr", text().into()),
            (
                "lag",
                nullable(Type::Integer).description(Some("entries behind; known on the leader only")).into(),
            ),
        ],
        Vec::new(),
    );
    open(
        vec![
            ("cluster_id", nullable(Type::String).into()),
            ("node_id", integer(1).into()),
            ("leader_id", nullable(Type::Integer).into()),
            ("term", integer(0).into()),
            ("revision", integer(0).into()),
            ("digest", text().pattern(Some("^[0-9a-f]{32}$")).into()),
            ("members", ArrayBuilder::new().items(member).into()),
        ],
        Vec::new(),
    )
}

/// The bodies of requests, by name.
fn requests(limits: &Limits) -> Vec<(&'static str, ObjectBuilder)> {
    let data = || json_object().description(Some("checked against the definition's schema"));
    let id = || integer(1).description(Some("never used for a node before"));
    let address = || text().examples([json!("10.0.0.4:8101")]);
    vec![
        (
            "NewDefinition",
            open(
                vec![("config_definition_key", schema("Key"))],
                vec![("indexes", indexes(limits).into()), ("json_schema", schema_or_none().into())],
            ),
        ),
        ("NewIndexes", open(vec![("indexes", indexes(limits).into())], Vec::new())),
        ("NewConfig", open(vec![("config_key", schema("Key")), ("data", data().into())], Vec::new())),
        ("NewData", open(vec![("data", data().into())], Vec::new())),
        ("MemberId", open(vec![("id", integer(1).into())], Vec::new())),
        (
            "NewMember",
            open(
                vec![("id", id().into()), ("api_addr", address().into()), ("peer_addr", address().into())],
                Vec::new(),
            ),
        ),
        (
            "NewMembers",
            open(
                vec![("members", ArrayBuilder::new().items(schema("NewMember")).min_items(Some(1)).into())],
                Vec::new(),
            ),
        ),
    ]
}

/// Adds all of them.
pub(super) fn components(components: ComponentsBuilder, limits: &Limits) -> ComponentsBuilder {
    let mut components = components.schema("Key", key()).schema("ShapeError", shape_error());
    let whole = |(name, body): (&'static str, ObjectBuilder)| (name, RefOr::from(body));
    let bodies = requests(limits).into_iter().map(whole);
    let bodies =
        bodies.chain(computed::requests(limits)).chain(history::requests()).chain(rules::requests(limits));
    for (name, body) in bodies {
        components = components.schema(name, body);
    }
    let answered = payloads(limits).into_iter().map(whole);
    let answered =
        answered.chain(computed::payloads()).chain(history::payloads(limits)).chain(rules::payloads(limits));
    for (name, payload) in answered {
        components = components.schema(name, payload).schema(format!("{name}Answer"), envelope(schema(name)));
    }
    components.schema("ChangedAnswer", computed::changed())
}
