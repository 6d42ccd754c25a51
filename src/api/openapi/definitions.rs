//! Operations 1 to 5.

use serde_json::{Value, json};
use utoipa::openapi::HttpMethod::{Delete, Get, Post, Put};

use super::builder::{Described, FRESHNESS, READ, RECORD, TRIED, WRITE, describe};

const ALL: &str = "/api/v1/config_definition/";
const ONE: &str = "/api/v1/config_definition/{config_definition_key}";

fn definition() -> Value {
    json!({
        "config_definition_key": "app",
        "indexes": ["port"],
        "json_schema": schema(),
    })
}

pub(super) fn schema() -> Value {
    json!({ "type": "object", "properties": { "port": { "type": "integer" } }, "required": ["port"] })
}

fn record() -> Value {
    let mut record = definition();
    record["created_at"] = json!("2026-03-01T12:00:00.000001Z");
    record["modified_at"] = json!("2026-03-01T12:00:00.000001Z");
    record
}

/// Everything about definitions.
pub(super) fn all() -> Vec<Described> {
    let page = json!({ "results": [record()], "meta": { "page": 1, "limit": 10, "total": 1 } });
    let name = json!({ "config_definition_key": "app" });
    let (tried, building) = (["X-Concord-Dry-Run"], ["X-Concord-Index-Building"]);
    let created = [&["Location"], RECORD, &tried].concat();
    let updated = [RECORD, &["Warning"], &tried, &building].concat();
    let found = [RECORD, &building].concat();
    vec![
        describe(Post, ALL, "definitions", "create_definition", "Create a definition")
            .takes(TRIED)
            .takes(&["create_only"])
            .body("NewDefinition", definition())
            .answers(201, "config definition created", ("Definition", definition()), &created)
            .refuses(WRITE)
            .refuses(&[409, 507]),
        describe(Get, ALL, "definitions", "list_definitions", "List definitions")
            .takes(&["page", "limit", "sort_definitions", "sort_order", "search", "cursor"])
            .takes(FRESHNESS)
            .answers(200, "config definitions found", ("DefinitionPage", page), &["Link"])
            .refuses(READ)
            .refuses(&[410]),
        describe(Get, ONE, "definitions", "get_definition", "Get a definition")
            .takes(&["If-None-Match"])
            .takes(FRESHNESS)
            .answers(200, "config definition found", ("DefinitionRecord", record()), &found)
            .responds(304, "The caller has this version.", None, &found)
            .refuses(READ)
            .refuses(&[404]),
        describe(Put, ONE, "definitions", "update_definition", "Replace the indexed paths")
            .about("A `json_schema` in the body is ignored, with a `Warning`. Unique paths must stay indexed (409).")
            .takes(TRIED)
            .takes(&["If-Match"])
            .body("NewIndexes", json!({ "indexes": ["port"] }))
            .answers(200, "config definition updated", ("Indexes", json!({ "indexes": ["port"] })), &updated)
            .refuses(WRITE)
            .refuses(&[404, 409, 412, 507]),
        describe(Delete, ONE, "definitions", "delete_definition", "Delete a definition and all its configs")
            .takes(TRIED)
            .takes(&["If-Match", "mode"])
            .answers(200, "config definition deleted", ("DefinitionIdentity", name), &tried)
            .refuses(WRITE)
            .refuses(&[404, 409, 412]),
    ]
}
