//! Building blocks of schemas: texts, numbers, keys, times, objects, the envelope of a success, pages.
//!
//! **Invariants:** bodies of responses are closed, because clients compare them for equality; bodies of requests are
//! open, because unknown members are ignored. Numbers have a format: without one, generated clients in Go and Java hold
//! them in 32 bits.

use serde_json::{Value, json};
use utoipa::openapi::{
    ArrayBuilder, KnownFormat, ObjectBuilder, Ref, RefOr, Schema, SchemaFormat, Type,
    schema::{AdditionalProperties, Discriminator, OneOfBuilder, SchemaType},
};

use concord_model::limits::{KEY_BYTES_MAX, Limits};

/// A member of an object, with its name.
pub(super) type SchemaField = (&'static str, RefOr<Schema>);
/// A component of the document, with its name.
pub(crate) type NamedSchema = (&'static str, RefOr<Schema>);

/// A reference to a component by its name.
pub(crate) fn reference(name: &str) -> RefOr<Schema> {
    Ref::from_schema_name(name).into()
}

pub(crate) fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

pub(crate) fn boolean() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Boolean)
}

pub(crate) fn integer(minimum: usize) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Integer).format(Some(int64())).minimum(Some(minimum))
}

pub(crate) fn number() -> ObjectBuilder {
    let format = SchemaFormat::KnownFormat(KnownFormat::Double);
    ObjectBuilder::new().schema_type(Type::Number).format(Some(format))
}

const fn int64() -> SchemaFormat {
    SchemaFormat::KnownFormat(KnownFormat::Int64)
}

pub(super) fn nullable(kind: Type) -> ObjectBuilder {
    let format = (kind == Type::Integer).then(int64);
    let object = if kind == Type::Object { json_object() } else { ObjectBuilder::new() };
    object.schema_type(SchemaType::from_iter([kind, Type::Null])).format(format)
}

/// Any JSON value.
pub(crate) fn any_value() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::AnyValue)
}

/// Any JSON object. It says that it has members: some generators take it for an empty one otherwise.
pub(crate) fn json_object() -> ObjectBuilder {
    object().additional_properties(Some(AdditionalProperties::FreeForm(true)))
}

/// An object whose members are added.
pub(crate) fn object() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Object)
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

/// A key of a definition, or the beginning of such keys.
pub(crate) fn pattern_of_keys() -> ObjectBuilder {
    text()
        .pattern(Some(r"^(\*|[A-Za-z0-9][A-Za-z0-9_.~-]*\*?)$"))
        .description(Some("the key of a definition, or a beginning with `*` at its end"))
}

/// A list of indexed paths.
pub(crate) fn paths(limits: &Limits) -> ArrayBuilder {
    let path = text().description(Some(
        "a path such as `db.port`, or a pattern such as `labels.*` or `items[].name`; `\\.` is a literal dot",
    ));
    ArrayBuilder::new().items(path).max_items(Some(limits.indexes)).unique_items(true)
}

/// A location in a request or document, outermost step first.
pub(super) fn location() -> ArrayBuilder {
    ArrayBuilder::new().items(reference("LocationStep"))
}

/// What the schemas of several files refer to. An object that occurs twice has a name: without one, generated clients
/// name it by the first place.
pub(super) fn shared() -> [NamedSchema; 4] {
    let page = [("page", integer(1).into()), ("limit", integer(1).into()), ("total", integer(0).into())];
    let watches = vec![("identified", integer(0).into()), ("unidentified", integer(0).into())];
    [
        ("LocationStep", OneOfBuilder::new().item(text()).item(integer(0)).into()),
        ("PageMeta", closed(page.into(), Vec::new()).into()),
        ("TotalMeta", closed(vec![("total", integer(0).into())], Vec::new()).into()),
        ("WatchCounts", open(watches, Vec::new()).into()),
    ]
}

/// An object with these members; further members are allowed.
pub(super) fn open(required: Vec<SchemaField>, optional: Vec<SchemaField>) -> ObjectBuilder {
    let mut object = object();
    for (name, schema) in required {
        object = object.property(name, schema).required(name);
    }
    optional.into_iter().fold(object, |object, (name, schema)| object.property(name, schema))
}

/// An object with these members and no others.
pub(super) fn closed(required: Vec<SchemaField>, optional: Vec<SchemaField>) -> ObjectBuilder {
    open(required, optional).additional_properties(Some(AdditionalProperties::FreeForm(false)))
}

/// One of several components. `member` says which: each of its values is here, with the component that it stands for.
pub(crate) fn one_of(member: &str, values: &[(&str, &str)]) -> OneOfBuilder {
    let mut components: Vec<&str> = values.iter().map(|(_, component)| *component).collect();
    components.dedup();
    let mapping = values.iter().map(|(value, name)| (*value, format!("#/components/schemas/{name}")));
    let any = components.into_iter().fold(OneOfBuilder::new(), |any, name| any.item(reference(name)));
    any.discriminator(Some(Discriminator::with_mapping(member, mapping)))
}

/// The envelope of a success around a payload.
pub(super) fn envelope(payload: RefOr<Schema>) -> ObjectBuilder {
    let status = text().enum_values(Some(["SUCCESS"]));
    closed(vec![("status", status.into()), ("message", text().into()), ("data", payload)], Vec::new())
}

/// A page of a list of records.
pub(super) fn page(record: &str) -> ObjectBuilder {
    let results = ArrayBuilder::new().items(reference(record));
    closed(vec![("results", results.into()), ("meta", reference("PageMeta"))], Vec::new())
}

/// The two times of a record.
pub(super) fn times() -> [SchemaField; 2] {
    [("created_at", time().into()), ("modified_at", time().into())]
}

/// The revision of a record, which it has where the client asks for it.
pub(super) fn included_revision() -> SchemaField {
    ("revision", integer(1).description(Some("with `include=revision`")).into())
}

/// The JSON schema of the examples.
pub(crate) fn example_schema() -> Value {
    json!({ "type": "object", "properties": { "port": { "type": "integer" } }, "required": ["port"] })
}
