//! The operations `PATCH` of a config and `POST /api/v1/batch`.

use serde_json::{Value, json};
use utoipa::openapi::{ArrayBuilder, ObjectBuilder, RefOr, Schema, Type, schema::OneOfBuilder};

use super::{
    builder::{DRY_RUN_WRITE_PARAMETERS, Entry, RECORD_HEADERS, REDACTED, WRITE_REFUSALS, describe},
    schemas::{
        Field, Named, any_value, closed, format_assertion, integer, json_object, key, nullable, open, paths,
        reference, schema_or_null, text, time,
    },
};
use crate::batch;
use concord_model::limits::Limits;

const MERGE_PATCH: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";

fn example_batch() -> Value {
    json!({ "operations": [
        { "op": "create_definition", "config_definition_key": "app", "indexes": ["port"] },
        { "op": "create_config", "config_definition_key": "app", "config_key": "prod", "data": { "port": 80 } },
        { "op": "patch_config", "config_definition_key": "app", "config_key": "prod", "patch": { "tls": true } },
    ] })
}

fn example_results() -> Value {
    json!({ "revision": 42, "results": [
        { "op": "create_definition", "config_definition_key": "app", "created": true },
        { "op": "create_config", "config_definition_key": "app", "config_key": "prod", "created": true },
        { "op": "patch_config", "config_definition_key": "app", "config_key": "prod", "created": false },
    ] })
}

/// The operations of this file.
pub(super) fn operations() -> Vec<Entry> {
    let merge = json!({ "pool": { "size": 20 }, "debug": null });
    let steps = json!([
        { "op": "test", "path": "/pool/size", "value": 20 },
        { "op": "replace", "path": "/pool/size", "value": 30 },
    ]);
    let changed = [RECORD_HEADERS, &["Warning", "X-Concord-Dry-Run", REDACTED]].concat();
    vec![
        describe("configs", "patch_config", "Change a part of a config's data")
            .description(
                "A JSON Merge Patch (RFC 7396) or a JSON Patch (RFC 6902), applied to the current data. The answer has \
                 all of the new data. A `test` that finds another value is 409; any other operation that cannot be \
                 applied is 422, with its location in `loc`. The answer to a request that is sent again with its \
                 `Idempotency-Key` omits `data` when the result of the first one is no longer available; a `Warning` \
                 says so.",
            )
            .parameters(DRY_RUN_WRITE_PARAMETERS)
            .parameters(&["If-Match", "unless_tag"])
            .bodies("A patch of one of these types.", vec![(MERGE_PATCH, "MergePatch", merge), (JSON_PATCH, "JsonPatch", steps)])
            .success(200, "config updated", ("Changed", json!({ "port": 8080 })), &changed)
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412, 507])
            .refusal_with(422, &["Accept-Patch"]),
        describe("batch", "run_batch", "Apply several writes as one")
            .description(
                "All operations are applied with one revision, or none is. An operation sees the effects of those before \
                 it; `check_config` and `get_config` see the state before the batch. With `if`, either all operations of \
                 `then` are applied, or all of `else`. A refusal has the status of the operation that failed, and its \
                 `loc` begins with `[\"operations\", <index>]`, or `if`, `then` or `else` in place of the first. \
                 `revision` is null in a dry run; of a batch that changes nothing it is that of the state.",
            )
            .parameters(DRY_RUN_WRITE_PARAMETERS)
            .body("Batch", example_batch())
            .success(200, "batch applied", ("Batched", example_results()), &["X-Concord-Dry-Run", "Warning"])
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412, 507]),
    ]
}

/// The schema of an operation of a batch.
fn operation(name: &'static str, mut required: Vec<Field>, optional: Vec<Field>) -> ObjectBuilder {
    let op = text().enum_values(Some([name]));
    let mut fields: Vec<Field> = vec![("op", op.into()), ("config_definition_key", reference("Key"))];
    fields.append(&mut required);
    open(fields, optional)
}

/// Any operation of a batch.
fn batch_operation(limits: &Limits) -> OneOfBuilder {
    let pattern = "^(\\*|[0-9]+|\"[0-9]+\")$";
    let about = "the revision that the record must have, or `*` for any existing record";
    let matches = || -> Field { ("if_match", text().pattern(Some(pattern)).description(Some(about)).into()) };
    let creates = || -> Field {
        let only =
            text().enum_values(Some(["*"])).description(Some("creates, and fails when the record exists"));
        ("if_none_match", only.into())
    };
    let config = || -> Field { ("config_key", reference("Key")) };
    let data = || -> Field { ("data", json_object().into()) };
    let indexes = || -> Field { ("indexes", paths(limits).into()) };
    let schema: Field = ("json_schema", schema_or_null().into());
    let new_schema: Field = ("json_schema", schema_or_null().into());
    let about = "store it although configs break it";
    let policy = text().enum_values(Some(["force"])).description(Some(about));
    let about = "create the config where there is none";
    let upsert = ObjectBuilder::new().schema_type(Type::Boolean).description(Some(about));
    let restrict: Field = ("mode", text().enum_values(Some(["restrict"])).into());
    let patch = OneOfBuilder::new().item(reference("MergePatch")).item(reference("JsonPatch"));
    let patch: Field = ("patch", patch.into());
    OneOfBuilder::new()
        .item(operation(
            batch::CREATE_DEFINITION,
            vec![],
            vec![indexes(), schema, format_assertion(), creates()],
        ))
        .item(operation(batch::SET_INDEXES, vec![indexes()], vec![matches()]))
        .item(operation(
            batch::SET_SCHEMA,
            vec![new_schema],
            vec![format_assertion(), ("policy", policy.into()), matches()],
        ))
        .item(operation(batch::SET_UNIQUE, vec![("paths", paths(limits).into())], vec![matches()]))
        .item(operation(batch::DELETE_DEFINITION, vec![], vec![restrict, matches()]))
        .item(operation(batch::CREATE_CONFIG, vec![config(), data()], vec![creates()]))
        .item(operation(
            batch::PUT_CONFIG,
            vec![config(), data()],
            vec![("upsert", upsert.into()), matches(), creates()],
        ))
        .item(operation(batch::PATCH_CONFIG, vec![config(), patch], vec![matches()]))
        .item(operation(batch::DELETE_CONFIG, vec![config()], vec![matches()]))
        .item(operation(
            batch::ROLLBACK_CONFIG,
            vec![config(), ("revision", integer(0).into())],
            vec![matches()],
        ))
        .item(operation(batch::GET_CONFIG, vec![config()], vec![]))
        .item(operation(batch::CHECK_CONFIG, vec![config()], check_members()).description(Some(CHECK)))
}

const CHECK: &str = "one of `revision`, `absent` and `equals`; the last two are of the place that `pointer` names, or of \
                     the whole config";

/// What a check says of a config.
fn check_members() -> Vec<Field> {
    let flag = ObjectBuilder::new().schema_type(Type::Boolean);
    let revision = integer(0).description(Some("the revision that the config must have"));
    let absent = flag.description(Some("whether there must be none; with `pointer` only `true`"));
    let equals = any_value().description(Some("the value that must be there"));
    vec![
        ("revision", revision.into()),
        ("absent", absent.into()),
        ("equals", equals.into()),
        ("pointer", pointer().into()),
    ]
}

fn pointer() -> ObjectBuilder {
    text().pattern(Some("^(/([^/~]|~[01])*)*$")).description(Some("a JSON pointer (RFC 6901)"))
}

/// Conditions: checks, whose name may be left out.
fn conditions(limits: &Limits) -> ArrayBuilder {
    let required = vec![("config_definition_key", reference("Key")), ("config_key", reference("Key"))];
    let name: Field = ("op", text().enum_values(Some([batch::CHECK_CONFIG])).into());
    let check = open(required, [vec![name], check_members()].concat()).description(Some(CHECK));
    ArrayBuilder::new()
        .items(RefOr::T(Schema::from(check)))
        .min_items(Some(1))
        .max_items(Some(limits.batch_operations))
}

/// A JSON Patch: a list of operations.
fn json_patch() -> ArrayBuilder {
    let step = |names: &[&'static str], more: Vec<Field>| {
        let op = text().enum_values(Some(names.to_vec()));
        let fields = [vec![("op", op.into()), ("path", pointer().into())], more].concat();
        open(fields, Vec::new())
    };
    let any = OneOfBuilder::new()
        .item(step(&["add", "replace", "test"], vec![("value", any_value().into())]))
        .item(step(&["remove"], Vec::new()))
        .item(step(&["move", "copy"], vec![("from", pointer().into())]));
    ArrayBuilder::new().items(RefOr::T(Schema::from(any)))
}

/// The bodies of its requests.
pub(super) fn requests(limits: &Limits) -> Vec<Named> {
    let list = || {
        let items = ArrayBuilder::new().items(RefOr::T(Schema::from(batch_operation(limits))));
        items.max_items(Some(limits.batch_operations))
    };
    let plain = open(vec![("operations", list().min_items(Some(1)).into())], Vec::new());
    let choice =
        open(vec![("if", conditions(limits).into())], vec![("then", list().into()), ("else", list().into())]);
    let merge = json_object().description(Some("null removes a member; a list is replaced as a whole"));
    vec![
        ("Batch", OneOfBuilder::new().item(plain).item(choice).into()),
        ("MergePatch", merge.into()),
        ("JsonPatch", json_patch().into()),
    ]
}

/// A config that a batch has read: null when there was none, absent when it is not known any more.
fn read_config() -> OneOfBuilder {
    let found = closed(
        vec![
            ("config_key", reference("Key")),
            ("data", json_object().into()),
            ("created_at", time().into()),
            ("modified_at", time().into()),
            ("revision", integer(1).into()),
        ],
        Vec::new(),
    );
    OneOfBuilder::new().item(found).item(ObjectBuilder::new().schema_type(Type::Null))
}

/// The payloads of its answers, except the answer to a patch ([`changed_answer`]).
pub(super) fn payloads() -> Vec<Named> {
    let succeeded = ObjectBuilder::new()
        .schema_type(Type::Boolean)
        .description(Some("whether all conditions hold, of a batch that has some"));
    let redacted = ArrayBuilder::new().items(text()).description(Some("places of secret values"));
    let about = "whether it created the record";
    let created = ObjectBuilder::new().schema_type(Type::Boolean).description(Some(about));
    let result = closed(
        vec![
            ("op", text().enum_values(Some(batch::NAMES)).into()),
            ("config_definition_key", key().into()),
            ("created", created.into()),
        ],
        vec![("config_key", key().into()), ("config", read_config().into()), ("redacted", redacted.into())],
    );
    let revision = nullable(Type::Integer).description(Some("the revision of the batch; null in a dry run"));
    let all = closed(
        vec![("revision", revision.into()), ("results", ArrayBuilder::new().items(result).into())],
        vec![("succeeded", succeeded.into())],
    );
    vec![("Batched", all.into())]
}

/// The answer to a patch, whose data may be absent when the request was sent again.
pub(super) fn changed_answer() -> ObjectBuilder {
    let status = text().enum_values(Some(["SUCCESS"]));
    closed(vec![("status", status.into()), ("message", text().into())], vec![("data", reference("Data"))])
}
