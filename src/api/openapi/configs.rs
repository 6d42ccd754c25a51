//! Operations 6 to 10.

use serde_json::{Value, json};
use utoipa::openapi::HttpMethod::{Delete, Get, Post, Put};

use super::builder::{Described, FRESHNESS, READ, RECORD, TRIED, WRITE, describe};

const ALL: &str = "/api/v1/config_definition/{config_definition_key}/config/";
pub(super) const ONE: &str = "/api/v1/config_definition/{config_definition_key}/config/{config_key}";

pub(super) fn data() -> Value {
    json!({ "port": 8080 })
}

fn record() -> Value {
    json!({
        "config_key": "prod",
        "data": data(),
        "created_at": "2026-03-01T12:00:00.000001Z",
        "modified_at": "2026-03-01T12:00:00.000001Z",
    })
}

/// Everything about configs.
pub(super) fn all() -> Vec<Described> {
    let page = json!({ "results": [record()], "meta": { "page": 1, "limit": 10, "total": 1 } });
    let names = json!({ "config_definition_key": "app", "config_key": "prod" });
    let tried = ["X-Concord-Dry-Run"];
    let updated = [RECORD, &tried].concat();
    let created = [&["Location"], &*updated].concat();
    vec![
        describe(Post, ALL, "configs", "create_config", "Create a config")
            .takes(TRIED)
            .takes(&["create_only"])
            .body("NewConfig", json!({ "config_key": "prod", "data": data() }))
            .answers(201, "config created", ("Data", data()), &created)
            .refuses(WRITE)
            .refuses(&[404, 409, 507]),
        describe(Get, ALL, "configs", "list_configs", "List configs")
            .about(
                "Pages, sorts and filters by indexed paths, never by a scan; `total` counts all that match. \
                 409 while the index that it needs is built.",
            )
            .takes(&["page", "limit", "sort_configs", "sort_order", "search", "cursor", "filters"])
            .takes(FRESHNESS)
            .answers(200, "configs found", ("ConfigPage", page), &["Link"])
            .refuses(READ)
            .refuses(&[404, 409, 410]),
        describe(Get, ONE, "configs", "get_config", "Get a config")
            .about("With `revision`, as it was then.")
            .takes(&["If-None-Match", "revision"])
            .takes(FRESHNESS)
            .answers(200, "config found", ("ConfigRecord", record()), RECORD)
            .responds(304, "The caller has this version.", None, RECORD)
            .refuses(READ)
            .refuses(&[404, 410, 429]),
        describe(Put, ONE, "configs", "update_config", "Replace a config's data")
            .about("With `If-None-Match: *` it creates the config.")
            .takes(TRIED)
            .takes(&["If-Match", "create_only"])
            .body("NewData", json!({ "data": data() }))
            .answers(200, "config updated", ("Data", data()), &updated)
            .answers(201, "config created", ("Data", data()), &created)
            .refuses(WRITE)
            .refuses(&[404, 409, 412, 507]),
        describe(Delete, ONE, "configs", "delete_config", "Delete a config")
            .takes(TRIED)
            .takes(&["If-Match"])
            .answers(200, "config deleted", ("ConfigIdentity", names), &tried)
            .refuses(WRITE)
            .refuses(&[404, 412]),
    ]
}
