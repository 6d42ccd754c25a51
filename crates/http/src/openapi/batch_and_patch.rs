//! The operations `PATCH` of a config and `POST /api/v1/batch`.

use serde_json::{Value, json};
use utoipa::openapi::{ArrayBuilder, ObjectBuilder, RefOr, Schema, Type, schema::OneOfBuilder};

use super::{
    builder::{
        DRY_RUN_WRITE_PARAMETERS, OperationEntry, RECORD_HEADERS, REDACTED, WRITE_REFUSALS, describe, payload,
    },
    change_requests::null_or,
    schemas::{
        NamedSchema, SchemaField, any_value, boolean, closed, integer, json_object, key, nullable, one_of,
        open, reference, text, time,
    },
};
use crate::{
    batch::{
        self,
        operation::{self, OPERATION_TYPES, pointer},
    },
    body::fields::schema_of,
};
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
pub(super) fn operations() -> Vec<OperationEntry> {
    let merge = json!({ "pool": { "size": 20 }, "debug": null });
    let steps = json!([
        { "op": "test", "path": "/pool/size", "value": 20 },
        { "op": "replace", "path": "/pool/size", "value": 30 },
    ]);
    let changed = [RECORD_HEADERS, &["Warning", "X-Concord-Dry-Run", REDACTED]].concat();
    vec![
        describe("configs", "patch_config", "Change a part of a config's data")
            .description(
                "A JSON Merge Patch (RFC 7396) or a JSON Patch (RFC 6902), applied to the current data. The response \
                 has all of the new data. A `test` that finds another value is 409; any other operation that cannot be \
                 applied is 422, with its location in `loc`. The response to a retry with the same `Idempotency-Key` \
                 omits `data` if the first result is no longer available; a `Warning` says so.",
            )
            .parameters(DRY_RUN_WRITE_PARAMETERS)
            .parameters(&["If-Match", "unless_tag"])
            .bodies("A patch of one of these types.", vec![(MERGE_PATCH, "MergePatch", merge), (JSON_PATCH, "JsonPatch", steps)])
            .success(200, "config updated", payload("Changed", json!({ "port": 8080 })), &changed)
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
            .success(200, "batch applied", payload("Batched", example_results()), &["X-Concord-Dry-Run", "Warning"])
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412, 507]),
    ]
}

/// A JSON Patch: a list of operations.
fn json_patch() -> [NamedSchema; 5] {
    const WITH_VALUE: &str = "JsonPatchValueStep";
    const WITHOUT_VALUE: &str = "JsonPatchRemoveStep";
    const FROM_ELSEWHERE: &str = "JsonPatchMoveStep";
    const STEPS: [(&str, &str); 6] = [
        ("add", WITH_VALUE),
        ("replace", WITH_VALUE),
        ("test", WITH_VALUE),
        ("remove", WITHOUT_VALUE),
        ("move", FROM_ELSEWHERE),
        ("copy", FROM_ELSEWHERE),
    ];
    let step = |component: &'static str, more: Vec<SchemaField>| {
        let names = STEPS.iter().filter(|(_, of)| *of == component).map(|(name, _)| *name);
        let op = text().enum_values(Some(names.collect::<Vec<_>>()));
        let fields = [vec![("op", op.into()), ("path", pointer().into())], more].concat();
        (component, RefOr::T(Schema::from(open(fields, Vec::new()))))
    };
    [
        step(WITH_VALUE, vec![("value", any_value().into())]),
        step(WITHOUT_VALUE, Vec::new()),
        step(FROM_ELSEWHERE, vec![("from", pointer().into())]),
        ("JsonPatchStep", one_of("op", &STEPS).into()),
        ("JsonPatch", ArrayBuilder::new().items(reference("JsonPatchStep")).into()),
    ]
}

/// The bodies of its requests.
pub(super) fn requests(limits: &Limits) -> Vec<NamedSchema> {
    let merge = json_object().description(Some("null removes a member; a list is replaced as a whole"));
    let batch = OneOfBuilder::new().item(reference("PlainBatch")).item(reference("Transaction"));
    let bodies: [NamedSchema; 4] = [
        ("Batch", batch.into()),
        ("PlainBatch", schema_of(limits, batch::plain_batch).into()),
        ("Transaction", schema_of(limits, batch::transaction).into()),
        ("MergePatch", merge.into()),
    ];
    bodies.into_iter().chain(operation::components(limits)).chain(json_patch()).chain(results()).collect()
}

/// The parts of the payload of a batch: what an operation did, and a config that it has read.
fn results() -> [NamedSchema; 2] {
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
    let redacted = ArrayBuilder::new().items(text()).description(Some("places of secret values"));
    let about = "whether it created the record";
    let created = boolean().description(Some(about));
    let kept =
        boolean().description(Some("whether a deleted definition is kept, so that it can be undeleted"));
    let names = OPERATION_TYPES.iter().map(|kind| kind.name).collect::<Vec<_>>();
    // null when there was none, absent when it is not known any more
    let config = null_or(reference("BatchedConfig"));
    let result = closed(
        vec![
            ("op", text().enum_values(Some(names)).into()),
            ("config_definition_key", key().into()),
            ("created", created.into()),
        ],
        vec![
            ("config_key", key().into()),
            ("config", config),
            ("redacted", redacted.into()),
            ("kept", kept.into()),
        ],
    );
    [("BatchedConfig", found.into()), ("BatchResult", result.into())]
}

/// The payloads of its answers, except the response to a patch ([`changed_answer`]).
pub(super) fn payloads() -> Vec<NamedSchema> {
    let succeeded = boolean().description(Some("whether all conditions hold, of a batch that has some"));
    let revision = nullable(Type::Integer).description(Some("the revision of the batch; null in a dry run"));
    let results = ArrayBuilder::new().items(reference("BatchResult"));
    let all = closed(
        vec![("revision", revision.into()), ("results", results.into())],
        vec![("succeeded", succeeded.into())],
    );
    vec![("Batched", all.into())]
}

/// The response to a patch, whose data may be absent when the request was retried.
pub(super) fn changed_answer() -> ObjectBuilder {
    let status = text().enum_values(Some(["SUCCESS"]));
    closed(vec![("status", status.into()), ("message", text().into())], vec![("data", reference("Data"))])
}
