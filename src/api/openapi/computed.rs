//! Patches, and several writes as one: what the leader computes from the records as they are.

use serde_json::{Value, json};
use utoipa::openapi::{
    ArrayBuilder,
    HttpMethod::{Patch, Post},
    ObjectBuilder, RefOr, Schema, Type,
    schema::OneOfBuilder,
};

use super::{
    builder::{Described, RECORD, TRIED, WRITE, describe, schema},
    configs,
    schemas::{Field, closed, indexes, json_object, key, nullable, open, schema_or_none, text, value},
};
use crate::{api::batch, model::limits::Limits};

const MERGE: &str = "application/merge-patch+json";
const STEPS: &str = "application/json-patch+json";

fn asked() -> Value {
    json!({ "operations": [
        { "op": "create_definition", "config_definition_key": "app", "indexes": ["port"] },
        { "op": "create_config", "config_definition_key": "app", "config_key": "prod", "data": { "port": 80 } },
        { "op": "patch_config", "config_definition_key": "app", "config_key": "prod", "patch": { "tls": true } },
    ] })
}

fn answered() -> Value {
    json!({ "revision": 42, "results": [
        { "op": "create_definition", "config_definition_key": "app", "created": true },
        { "op": "create_config", "config_definition_key": "app", "config_key": "prod", "created": true },
        { "op": "patch_config", "config_definition_key": "app", "config_key": "prod", "created": false },
    ] })
}

/// Every operation of this file.
pub(super) fn all() -> Vec<Described> {
    let merge = json!({ "pool": { "size": 20 }, "debug": null });
    let steps = json!([
        { "op": "test", "path": "/pool/size", "value": 20 },
        { "op": "replace", "path": "/pool/size", "value": 30 },
    ]);
    let changed = [RECORD, &["Warning", "X-Concord-Dry-Run"]].concat();
    vec![
        describe(Patch, configs::ONE, "configs", "patch_config", "Change a part of a config's data")
            .about(
                "A JSON Merge Patch (RFC 7396) or a JSON Patch (RFC 6902), done on the data as they are when it is \
                 decided. The answer has the whole new data. A `test` that finds another value is 409, another \
                 operation that is not possible 422, with the place in `loc`. The answer to a request that is sent \
                 again with its `Idempotency-Key` leaves `data` out when what it made is not at hand any more; a \
                 `Warning` says so.",
            )
            .takes(TRIED)
            .takes(&["If-Match"])
            .bodies("A patch of one of these types.", vec![(MERGE, "MergePatch", merge), (STEPS, "JsonPatch", steps)])
            .answers(200, "config updated", ("Changed", json!({ "port": 8080 })), &changed)
            .refuses(WRITE)
            .refuses(&[404, 409, 412, 507])
            .refuses_with(422, &["Accept-Patch"]),
        describe(Post, "/api/v1/batch", "batch", "run_batch", "Do several writes as one")
            .about(
                "All operations or none, with one revision; later ones see earlier ones. A refusal has the status of \
                 the operation that failed, and its `loc` begins with `[\"operations\", <place>]`. `revision` is \
                 null in a dry run.",
            )
            .takes(TRIED)
            .body("Batch", asked())
            .answers(200, "batch applied", ("Batched", answered()), &["X-Concord-Dry-Run"])
            .refuses(WRITE)
            .refuses(&[404, 409, 412, 507]),
    ]
}

/// What an operation of a batch does to a definition or a config, by its name.
fn operation(name: &'static str, mut required: Vec<Field>, optional: Vec<Field>) -> ObjectBuilder {
    let op = text().enum_values(Some([name]));
    let mut fields: Vec<Field> = vec![("op", op.into()), ("config_definition_key", schema("Key"))];
    fields.append(&mut required);
    open(fields, optional)
}

fn operations(limits: &Limits) -> OneOfBuilder {
    let pattern = "^(\\*|[0-9]+|\"[0-9]+\")$";
    let about = "the revision that the record must have, or `*`: that it must exist";
    let matches = || -> Field { ("if_match", text().pattern(Some(pattern)).description(Some(about)).into()) };
    let creates = || -> Field {
        let only =
            text().enum_values(Some(["*"])).description(Some("creates, and fails when the record exists"));
        ("if_none_match", only.into())
    };
    let config = || -> Field { ("config_key", schema("Key")) };
    let data = || -> Field { ("data", json_object().into()) };
    let paths = || -> Field { ("indexes", indexes(limits).into()) };
    let rules: Field = ("json_schema", schema_or_none().into());
    let restrict: Field = ("mode", text().enum_values(Some(["restrict"])).into());
    let patch = OneOfBuilder::new().item(schema("MergePatch")).item(schema("JsonPatch"));
    let patch: Field = ("patch", patch.into());
    OneOfBuilder::new()
        .item(operation(batch::CREATE_DEFINITION, vec![], vec![paths(), rules, creates()]))
        .item(operation(batch::SET_INDEXES, vec![paths()], vec![matches()]))
        .item(operation(batch::DELETE_DEFINITION, vec![], vec![restrict, matches()]))
        .item(operation(batch::CREATE_CONFIG, vec![config(), data()], vec![creates()]))
        .item(operation(batch::PUT_CONFIG, vec![config(), data()], vec![matches(), creates()]))
        .item(operation(batch::PATCH_CONFIG, vec![config(), patch], vec![matches()]))
        .item(operation(batch::DELETE_CONFIG, vec![config()], vec![matches()]))
}

/// The operations of a JSON Patch.
fn steps() -> ArrayBuilder {
    let pointer =
        || text().pattern(Some("^(/([^/~]|~[01])*)*$")).description(Some("a JSON pointer (RFC 6901)"));
    let step = |names: &[&'static str], more: Vec<Field>| {
        let op = text().enum_values(Some(names.to_vec()));
        let fields = [vec![("op", op.into()), ("path", pointer().into())], more].concat();
        open(fields, Vec::new())
    };
    let any = OneOfBuilder::new()
        .item(step(&["add", "replace", "test"], vec![("value", value().into())]))
        .item(step(&["remove"], Vec::new()))
        .item(step(&["move", "copy"], vec![("from", pointer().into())]));
    ArrayBuilder::new().items(RefOr::T(Schema::from(any)))
}

/// The bodies of its requests.
pub(super) fn requests(limits: &Limits) -> Vec<(&'static str, RefOr<Schema>)> {
    let many = ArrayBuilder::new()
        .items(RefOr::T(Schema::from(operations(limits))))
        .min_items(Some(1))
        .max_items(Some(limits.batch_operations));
    let merge = json_object().description(Some("null removes a member; a list is replaced as a whole"));
    vec![
        ("Batch", open(vec![("operations", many.into())], Vec::new()).into()),
        ("MergePatch", merge.into()),
        ("JsonPatch", steps().into()),
    ]
}

/// The payloads of its answers, but for that of a patch ([`changed`]).
pub(super) fn payloads() -> Vec<(&'static str, RefOr<Schema>)> {
    let result = closed(
        vec![
            ("op", text().enum_values(Some(batch::NAMES)).into()),
            ("config_definition_key", key().into()),
            ("created", ObjectBuilder::new().schema_type(Type::Boolean).into()),
        ],
        vec![("config_key", key().into())],
    );
    let revision = nullable(Type::Integer).description(Some("of all of it; null in a dry run"));
    let all = closed(
        vec![("revision", revision.into()), ("results", ArrayBuilder::new().items(result).into())],
        Vec::new(),
    );
    vec![("Batched", all.into())]
}

/// The answer to a patch, whose data may be gone when it is asked for again.
pub(super) fn changed() -> ObjectBuilder {
    let status = text().enum_values(Some(["SUCCESS"]));
    closed(vec![("status", status.into()), ("message", text().into())], vec![("data", schema("Data"))])
}
