//! The operations on definitions, their schemas, unique paths and indexes.

use serde_json::{Value, json};
use utoipa::openapi::{ArrayBuilder, ObjectBuilder, Type};

use super::{
    builder::{
        CODED, DRY_RUN_WRITE_PARAMETERS, ExamplePayload, OperationEntry, READ_PARAMETERS, READ_REFUSALS,
        RECORD_HEADERS, WRITE_REFUSALS, describe, payload,
    },
    schemas::{
        NamedSchema, SchemaField, boolean, closed, example_schema, included_revision, integer, json_object,
        key, location, nullable, page, paths, reference, text, time, times,
    },
};
use crate::{
    body::fields::schema_of,
    definitions::{DefinitionBody, IndexesBody, UndeleteBody},
    schema::{ProtectionBody, SchemaBody, UniqueBody},
};

use concord_model::limits::Limits;

const TAG: &str = "definitions";

fn definition() -> Value {
    json!({
        "config_definition_key": "app",
        "indexes": ["port"],
        "json_schema": example_schema(),
    })
}

fn record() -> Value {
    let mut record = definition();
    record["created_at"] = json!("2026-03-01T12:00:00.000001Z");
    record["modified_at"] = json!("2026-03-01T12:00:00.000001Z");
    record
}

/// The operations of this file.
pub(super) fn operations() -> Vec<OperationEntry> {
    let page = json!({ "results": [record()], "meta": { "page": 1, "limit": 10, "total": 1 } });
    let name = json!({ "config_definition_key": "app" });
    let undeleted = json!({
        "config_definition_key": "app", "deleted_revision": 52, "revision": 41, "configs": 200, "bytes": 61_400,
    });
    let deleted = json!({ "results": [{
        "config_definition_key": "app", "deleted_revision": 52, "deleted_at": "2026-03-01T12:00:00.000001Z",
        "configs": 200, "bytes": 61_400,
    }], "meta": { "total": 1 } });
    let (dry_run, building) = (["X-Concord-Dry-Run", "Warning"], ["X-Concord-Index-Building"]);
    let deletion = ["X-Concord-Dry-Run", "Warning", "X-Concord-Deletion", "X-Concord-Write-Revision"];
    let created = [&["Location"], RECORD_HEADERS, &dry_run].concat();
    let updated = [RECORD_HEADERS, &dry_run, &building].concat();
    let unchanged = [RECORD_HEADERS, &building].concat();
    let found = [&unchanged, CODED].concat();
    let mut operations = vec![
        describe(TAG, "create_definition", "Create a definition")
            .parameters(DRY_RUN_WRITE_PARAMETERS)
            .parameters(&["create_only"])
            .body("DefinitionInput", definition())
            .success(201, "config definition created", payload("Definition", definition()), &created)
            .refusals(WRITE_REFUSALS)
            .refusals(&[409, 507]),
        describe(TAG, "list_definitions", "List definitions")
            .description("With `revision`, the list as it was at that revision.")
            .parameters(&["page", "limit", "sort_definitions", "sort_order", "search", "cursor", "include"])
            .parameters(&["list_revision", "definition_patterns"])
            .parameters(READ_PARAMETERS)
            .success(200, "config definitions found", payload("DefinitionPage", page), &[&["Link"], CODED].concat())
            .refusals(READ_REFUSALS)
            .refusals(&[410]),
        describe(TAG, "get_definition", "Get a definition")
            .parameters(&["If-None-Match", "include"])
            .parameters(READ_PARAMETERS)
            .success(200, "config definition found", payload("DefinitionRecord", record()), &found)
            .response(304, "The client has the current version.", None, &unchanged)
            .refusals(READ_REFUSALS)
            .refusals(&[404]),
        describe(TAG, "update_definition", "Replace the indexed paths")
            .description("A `json_schema` in the body is ignored, with a `Warning`. 409 when a unique path would no longer be indexed.")
            .parameters(DRY_RUN_WRITE_PARAMETERS)
            .parameters(&["If-Match", "unless_tag"])
            .body("IndexesInput", json!({ "indexes": ["port"] }))
            .success(200, "config definition updated", payload("Indexes", json!({ "indexes": ["port"] })), &updated)
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412, 507]),
        describe(TAG, "delete_definition", "Delete a definition and all its configs")
            .parameters(DRY_RUN_WRITE_PARAMETERS)
            .description(
                "It is kept for a while, so that the deletion can be undone, but with `purge=true`.",
            )
            .parameters(&["If-Match", "unless_tag", "mode", "purge"])
            .success(200, "config definition deleted", payload("DefinitionIdentity", name), &deletion)
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412]),
        describe(TAG, "undelete_definition", "Undo the deletion of a definition")
            .description(
                "It returns with its schema, indexes, unique fields, configs and their history, as it was when it was \
                 deleted, or as of an earlier revision or time. 404 when no such deleted definition is kept, 409 when \
                 there is a definition with its key.",
            )
            .parameters(DRY_RUN_WRITE_PARAMETERS)
            .parameters(&["create_only"])
            .body("Undelete", json!({ "revision": 41 }))
            .success(201, "config definition undeleted", payload("Undeleted", undeleted), &created)
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 410, 507]),
        describe(TAG, "list_deleted_definitions", "List the deleted definitions that are kept")
            .description(
                "Those whose deletion can be undone, and that the access key may read; the last deletion first. One key \
                 can be there several times.",
            )
            .parameters(&["definition_patterns"])
            .parameters(READ_PARAMETERS)
            .success(200, "deleted definitions found", payload("DeletedDefinitions", deleted), &[])
            .refusals(READ_REFUSALS),
    ];
    operations.extend(of_parts());
    operations
}

/// The entry of a part of a definition, which has the definition's entity tag.
fn part(id: &'static str, summary: &str, message: &str, payload: ExamplePayload<'_>) -> OperationEntry {
    describe(TAG, id, summary)
        .parameters(&["If-None-Match"])
        .parameters(READ_PARAMETERS)
        .success(200, message, payload, &[RECORD_HEADERS, CODED].concat())
        .response(304, "The client has the current version.", None, RECORD_HEADERS)
        .refusals(READ_REFUSALS)
        .refusals(&[404])
}

/// The operations on the schema, the unique paths and the index states of a definition.
fn of_parts() -> Vec<OperationEntry> {
    let schema = || json!({ "json_schema": example_schema() });
    let shown = json!({ "json_schema": example_schema(), "format_assertion": true });
    let example_paths = || json!({ "paths": ["name"] });
    let unique = || payload("UniquePaths", example_paths());
    let protection = || payload("Protection", json!({ "protected": true }));
    let mut stored = schema();
    stored["config_definition_key"] = json!("app");
    let states =
        json!({ "indexes": [{ "path": "port", "state": "building", "done": 51250, "of": 200_000 }] });
    let schema_headers = [RECORD_HEADERS, &["X-Concord-Dry-Run", "X-Concord-Breaking-Configs"]].concat();
    let unique_headers = [RECORD_HEADERS, &["X-Concord-Dry-Run"]].concat();
    vec![
        part("get_schema", "Show a definition's schema", "schema found", payload("Rules", shown)),
        describe(TAG, "update_schema", "Change a definition's schema")
            .description(
                "All configs of the definition must fit it; else 422, whose items name the first hundred that do not. \
                 A dry run answers with a report of them instead. `policy=force` stores the schema nevertheless, and \
                 adds the report: a config that does not fit stays unchanged, and must fit when it is next written.",
            )
            .parameters(DRY_RUN_WRITE_PARAMETERS)
            .parameters(&["If-Match", "unless_tag", "policy"])
            .body("RulesInput", schema())
            .success(200, "schema stored", payload("RulesChange", stored), &schema_headers)
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412, 507])
            .refusal_with(422, &["X-Concord-Breaking-Configs"]),
        part("get_unique", "Show a definition's unique paths", "unique paths found", unique()),
        describe(TAG, "update_unique", "Replace a definition's unique paths")
            .description(
                "Indexed paths at which no two configs may have the same value. 409 when two configs already have the \
                 same value; from then on every write that would repeat a value is answered with 409. An empty list \
                 removes the constraint.",
            )
            .parameters(DRY_RUN_WRITE_PARAMETERS)
            .parameters(&["If-Match", "unless_tag"])
            .body("UniquePathsInput", example_paths())
            .success(200, "unique paths stored", unique(), &unique_headers)
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412, 507]),
        part("get_protection", "Show whether a definition is protected", "protection found", protection()),
        describe(TAG, "update_protection", "Protect a definition from deletion, or no longer")
            .description("While `protected` is true, a delete of the definition is answered with 409.")
            .parameters(DRY_RUN_WRITE_PARAMETERS)
            .parameters(&["If-Match", "unless_tag"])
            .body("ProtectionInput", json!({ "protected": true }))
            .success(200, "protection stored", protection(), &unique_headers)
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412, 507]),
        describe(TAG, "get_index_states", "Show the states of a definition's indexes")
            .description("The indexes of a large definition are built in the background, after the request that names them.")
            .parameters(READ_PARAMETERS)
            .success(
                200,
                "indexes found",
                payload("IndexStates", states),
                &[RECORD_HEADERS, &["X-Concord-Index-Building"]].concat(),
            )
            .refusals(READ_REFUSALS)
            .refusals(&[404]),
    ]
}

/// The bodies of its requests.
pub(super) fn requests(limits: &Limits) -> Vec<NamedSchema> {
    vec![
        ("DefinitionInput", schema_of(limits, DefinitionBody::read).into()),
        ("IndexesInput", schema_of(limits, IndexesBody::read).into()),
        ("Undelete", schema_of(limits, UndeleteBody::read).into()),
        ("RulesInput", schema_of(limits, SchemaBody::read).into()),
        ("UniquePathsInput", schema_of(limits, UniqueBody::read).into()),
        ("ProtectionInput", schema_of(limits, ProtectionBody::read).into()),
    ]
}

/// The payloads of its answers.
pub(super) fn payloads(limits: &Limits) -> Vec<NamedSchema> {
    let definition = |times: &[SchemaField], more: &[SchemaField]| {
        let fields: [SchemaField; 2] =
            [("config_definition_key", reference("Key")), ("indexes", paths(limits).into())];
        let schema = json_object().description(Some("absent when the definition has none"));
        closed([&fields[..], times].concat(), [&[("json_schema", schema.into())], more].concat())
    };
    let mut payloads = vec![
        ("Definition", definition(&[], &[]).into()),
        ("DefinitionRecord", definition(&times(), &[included_revision()]).into()),
        ("DefinitionPage", page("DefinitionRecord").into()),
        ("Indexes", closed(vec![("indexes", paths(limits).into())], Vec::new()).into()),
        ("DefinitionIdentity", closed(vec![("config_definition_key", reference("Key"))], Vec::new()).into()),
    ];
    let about = |number: ObjectBuilder, text: &str| number.description(Some(text)).into();
    let undeleted = closed(
        vec![
            ("config_definition_key", reference("Key")),
            ("deleted_revision", about(integer(0), "the revision that deleted it")),
            ("revision", about(integer(0), "the revision as of which it returns")),
        ],
        vec![
            ("configs", about(integer(0), "its configs; absent without `read`, and where not known")),
            ("bytes", about(integer(0), "bytes of their keys and data; absent like `configs`")),
        ],
    );
    payloads.push(("Undeleted", undeleted.into()));
    let deleted = closed(
        vec![
            ("config_definition_key", reference("Key")),
            ("deleted_revision", about(integer(0), "the revision that deleted it")),
            ("deleted_at", time().description(Some("the time of this revision")).into()),
            ("configs", about(integer(0), "the configs that would return with it")),
            ("bytes", about(integer(0), "bytes of their keys and data")),
        ],
        Vec::new(),
    );
    let results = ArrayBuilder::new().items(deleted);
    let deleted = closed(vec![("results", results.into()), ("meta", reference("TotalMeta"))], Vec::new());
    payloads.push(("DeletedDefinitions", deleted.into()));
    payloads.extend(payloads_of_parts(limits));
    payloads
}

/// The report of the configs that do not fit a schema.
fn report() -> Vec<SchemaField> {
    let error = closed(vec![("loc", location().into()), ("msg", text().into())], Vec::new());
    let config = closed(
        vec![("config_key", key().into()), ("errors", ArrayBuilder::new().items(error).into())],
        Vec::new(),
    );
    let scan = text()
        .enum_values(Some(["full", "skipped"]))
        .description(Some("`skipped`: every object fits the schema"));
    vec![
        ("breaking_count", integer(0).into()),
        ("breaking", ArrayBuilder::new().items(config).max_items(Some(100)).into()),
        ("checked", integer(0).description(Some("configs that were validated")).into()),
        ("scan", scan.into()),
    ]
}

/// The payloads about the schema, the unique paths and the index states.
fn payloads_of_parts(limits: &Limits) -> Vec<NamedSchema> {
    let schema = || -> SchemaField { ("json_schema", nullable(Type::Object).into()) };
    let change = closed(Vec::new(), [vec![("config_definition_key", key().into()), schema()], report()].concat())
        .description(Some(
            "`config_definition_key` and `json_schema` if the schema was stored; the report if it was stored with \
             `policy=force`; of a dry run the report alone",
        ));
    let asserted =
        nullable(Type::Boolean).description(Some("whether `format` is asserted; null without a schema"));
    let state = closed(
        vec![
            ("path", text().into()),
            ("state", text().enum_values(Some(["building", "ready"])).into()),
            ("done", integer(0).description(Some("configs that are indexed")).into()),
            ("of", integer(0).description(Some("all configs of the definition")).into()),
        ],
        Vec::new(),
    );
    vec![
        ("Rules", closed(vec![schema(), ("format_assertion", asserted.into())], Vec::new()).into()),
        ("RulesChange", change.into()),
        ("UniquePaths", closed(vec![("paths", paths(limits).into())], Vec::new()).into()),
        ("Protection", closed(vec![("protected", boolean().into())], Vec::new()).into()),
        (
            "IndexStates",
            closed(vec![("indexes", ArrayBuilder::new().items(state).into())], Vec::new()).into(),
        ),
    ]
}
