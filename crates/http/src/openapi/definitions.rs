//! The operations on definitions, but for their schemas and unique paths.

use serde_json::{Value, json};

use super::{
    builder::{
        CODED, DRY_RUN_WRITE_PARAMETERS, OperationEntry, READ_PARAMETERS, READ_REFUSALS, RECORD_HEADERS,
        WRITE_REFUSALS, describe, payload,
    },
    schemas::{
        NamedSchema, SchemaField, closed, example_schema, included_revision, json_object, page, paths,
        reference, times,
    },
};
use crate::{
    body::fields::schema_of,
    definitions::{DefinitionBody, IndexesBody},
};
use concord_model::limits::Limits;

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
    let (dry_run, building) = (["X-Concord-Dry-Run"], ["X-Concord-Index-Building"]);
    let created = [&["Location", "Warning"], RECORD_HEADERS, &dry_run].concat();
    let updated = [RECORD_HEADERS, &["Warning"], &dry_run, &building].concat();
    let unchanged = [RECORD_HEADERS, &building].concat();
    let found = [&unchanged, CODED].concat();
    vec![
        describe("definitions", "create_definition", "Create a definition")
            .parameters(DRY_RUN_WRITE_PARAMETERS)
            .parameters(&["create_only"])
            .body("NewDefinition", definition())
            .success(201, "config definition created", payload("Definition", definition()), &created)
            .refusals(WRITE_REFUSALS)
            .refusals(&[409, 507]),
        describe("definitions", "list_definitions", "List definitions")
            .description("With `revision`, the list as it was at that revision.")
            .parameters(&["page", "limit", "sort_definitions", "sort_order", "search", "cursor", "include"])
            .parameters(&["list_revision"])
            .parameters(READ_PARAMETERS)
            .success(200, "config definitions found", payload("DefinitionPage", page), &[&["Link"], CODED].concat())
            .refusals(READ_REFUSALS)
            .refusals(&[410]),
        describe("definitions", "get_definition", "Get a definition")
            .parameters(&["If-None-Match", "include"])
            .parameters(READ_PARAMETERS)
            .success(200, "config definition found", payload("DefinitionRecord", record()), &found)
            .response(304, "The caller has the current version.", None, &unchanged)
            .refusals(READ_REFUSALS)
            .refusals(&[404]),
        describe("definitions", "update_definition", "Replace the indexed paths")
            .description("A `json_schema` in the body is ignored, with a `Warning`. 409 when a unique path would no longer be indexed.")
            .parameters(DRY_RUN_WRITE_PARAMETERS)
            .parameters(&["If-Match", "unless_tag"])
            .body("NewIndexes", json!({ "indexes": ["port"] }))
            .success(200, "config definition updated", payload("Indexes", json!({ "indexes": ["port"] })), &updated)
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412, 507]),
        describe("definitions", "delete_definition", "Delete a definition and all its configs")
            .parameters(DRY_RUN_WRITE_PARAMETERS)
            .parameters(&["If-Match", "unless_tag", "mode"])
            .success(200, "config definition deleted", payload("DefinitionIdentity", name), &dry_run)
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412]),
    ]
}

/// The bodies of its requests.
pub(super) fn requests(limits: &Limits) -> Vec<NamedSchema> {
    vec![
        ("NewDefinition", schema_of(limits, DefinitionBody::read).into()),
        ("NewIndexes", schema_of(limits, IndexesBody::read).into()),
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
    vec![
        ("Definition", definition(&[], &[]).into()),
        ("DefinitionRecord", definition(&times(), &[included_revision()]).into()),
        ("DefinitionPage", page("DefinitionRecord").into()),
        ("Indexes", closed(vec![("indexes", paths(limits).into())], Vec::new()).into()),
        ("DefinitionIdentity", closed(vec![("config_definition_key", reference("Key"))], Vec::new()).into()),
    ]
}
