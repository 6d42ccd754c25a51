//! The table of endpoints.
//!
//! **Invariants:** the rows of a path stand together, in the order in which `Allow` names their methods, and agree in
//! whether they need a key. No two rows have the same method and path, or the same operation.

use axum::response::IntoResponse as _;

use super::{
    Audited, Endpoint,
    EndpointMethod::{Delete, Get, Patch, Post, Put},
    Handler, Pretty,
    Right::{AnyKey, Granted, Open},
};
use crate::{
    access_keys, across, audit, batch, cluster, configs, console, definitions, docs, extract::WriteRequest,
    history, metrics, patch, read, schema, server::boxed, watch,
};
use concord_model::access_key::Verb;
use concord_service::quota::Gauge;

pub(crate) const DEFINITIONS: &str = "/api/v1/config_definition/";
const DEFINITION: &str = "/api/v1/config_definition/{definition}";
const SCHEMA: &str = "/api/v1/config_definition/{definition}/schema";
const UNIQUE: &str = "/api/v1/config_definition/{definition}/unique";
pub(crate) const CONFIGS: &str = "/api/v1/config_definition/{definition}/config/";
pub(crate) const CONFIG: &str = "/api/v1/config_definition/{definition}/config/{config}";
pub(crate) const WATCH: &str = "/api/v1/watch";
pub(crate) const CHANGES: &str = "/api/v1/changes";
pub(crate) const AUDIT: &str = "/api/v1/audit";
pub(crate) const KEYS: &str = "/api/v1/api_key/";
const KEY: &str = "/api/v1/api_key/{key_id}";
const MEMBER: &str = "/api/v1/cluster/members/{id}";
pub(crate) const METRICS: &str = "/metrics";
pub(crate) const DOCUMENT: &str = "/openapi.json";
pub(crate) const DOCS: &str = "/docs";
pub(crate) const UI: &str = "/ui";

/// A handler of reads.
macro_rules! read {
    ($handler:path) => {
        Handler::Keyed(|api, call| {
            boxed(|| async move { $handler(api.service.clone(), call.into()).await.into_response() })
        })
    };
}

/// A handler of requests with a body.
macro_rules! write {
    ($handler:path) => {
        Handler::Keyed(|api, call| {
            boxed(|| async move {
                match WriteRequest::receive(call, &api.service).await {
                    Ok(request) => $handler(api.service.clone(), request).await.into_response(),
                    Err(problem) => problem.into_response(),
                }
            })
        })
    };
}

/// A handler of requests that need no key.
macro_rules! open {
    ($handler:path) => {
        Handler::Open(|api, call| boxed(|| async move { $handler(api, &call).into_response() }))
    };
}

/// All rows.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    // Definitions.
    Endpoint::new(Get, DEFINITIONS, Granted(Verb::Read), "list_definitions", read!(definitions::list))
        .gauge(Gauge::Lists),
    Endpoint::new(Post, DEFINITIONS, Granted(Verb::Define), "create_definition", write!(definitions::create)),
    Endpoint::new(Get, DEFINITION, Granted(Verb::Read), "get_definition", read!(definitions::get)),
    Endpoint::new(
        Put,
        DEFINITION,
        Granted(Verb::Define),
        "update_definition",
        write!(definitions::set_indexes),
    ),
    Endpoint::new(
        Delete,
        DEFINITION,
        Granted(Verb::Define),
        "delete_definition",
        write!(definitions::delete),
    ),
    // Before the parts of definitions: the tree of paths looks for segments in this order.
    Endpoint::new(Get, CONFIGS, Granted(Verb::Read), "list_configs", read!(configs::list))
        .gauge(Gauge::Lists)
        .pretty(Pretty::UnlessIndexed),
    Endpoint::new(Post, CONFIGS, Granted(Verb::Write), "create_config", write!(configs::create)),
    Endpoint::new(Get, CONFIG, Granted(Verb::Read), "get_config", Handler::GetConfig),
    Endpoint::new(Put, CONFIG, Granted(Verb::Write), "update_config", write!(configs::put)),
    Endpoint::new(Patch, CONFIG, Granted(Verb::Write), "patch_config", write!(patch::patch)).takes_patch(),
    Endpoint::new(Delete, CONFIG, Granted(Verb::Write), "delete_config", write!(configs::delete)),
    Endpoint::new(
        Get,
        "/api/v1/config_definition/{definition}/config/{config}/history",
        Granted(Verb::Read),
        "get_config_history",
        read!(history::of_config),
    ),
    Endpoint::new(
        Post,
        "/api/v1/config_definition/{definition}/config/{config}/rollback",
        Granted(Verb::Write),
        "roll_back_config",
        write!(history::rollback),
    ),
    Endpoint::new(Get, SCHEMA, Granted(Verb::Read), "get_schema", read!(schema::get)),
    Endpoint::new(Put, SCHEMA, Granted(Verb::Define), "update_schema", write!(schema::put)),
    Endpoint::new(Get, UNIQUE, Granted(Verb::Read), "get_unique", read!(schema::get_unique)),
    Endpoint::new(Put, UNIQUE, Granted(Verb::Define), "update_unique", write!(schema::put_unique)),
    Endpoint::new(
        Get,
        "/api/v1/config_definition/{definition}/indexes",
        Granted(Verb::Read),
        "get_index_states",
        read!(definitions::index_states),
    ),
    Endpoint::new(
        Get,
        "/api/v1/config_definition/{definition}/history",
        Granted(Verb::Read),
        "get_definition_history",
        read!(history::of_definition),
    ),
    // Many configs at once.
    Endpoint::new(Get, "/api/v1/config", Granted(Verb::Read), "list_configs_across", read!(across::list))
        .audited(Audited::Listed)
        .gauge(Gauge::Lists),
    Endpoint::new(Post, "/api/v1/read", Granted(Verb::Read), "read_configs", write!(read::run))
        .audited(Audited::Body),
    Endpoint::new(Post, "/api/v1/batch", Granted(Verb::Write), "run_batch", write!(batch::run)),
    // Changes.
    Endpoint::new(Get, WATCH, Granted(Verb::Read), "watch", read!(watch::open))
        .audited(Audited::Watched)
        .gauge(Gauge::Watches)
        .pretty(Pretty::Never)
        .without_head(),
    Endpoint::new(Get, CHANGES, Granted(Verb::Read), "poll_changes", read!(watch::poll))
        .audited(Audited::Watched)
        .gauge(Gauge::Watches)
        .pretty(Pretty::Never)
        .without_head(),
    // The audit log.
    Endpoint::new(Get, AUDIT, Granted(Verb::Audit), "get_audit", read!(audit::show)).audited(Audited::Always),
    // Access keys.
    Endpoint::new(Get, KEYS, Granted(Verb::Keys), "list_api_keys", read!(access_keys::list)),
    Endpoint::new(Post, KEYS, Granted(Verb::Keys), "create_api_key", write!(access_keys::create)),
    Endpoint::new(Get, KEY, Granted(Verb::Keys), "get_api_key", read!(access_keys::get)),
    Endpoint::new(Patch, KEY, Granted(Verb::Keys), "change_api_key", write!(access_keys::change)),
    Endpoint::new(Delete, KEY, Granted(Verb::Keys), "revoke_api_key", write!(access_keys::revoke)),
    Endpoint::new(
        Post,
        "/api/v1/api_key/{key_id}/rotate",
        Granted(Verb::Keys),
        "rotate_api_key",
        write!(access_keys::rotate),
    ),
    Endpoint::new(
        Post,
        "/api/v1/api_key/root/disable",
        Granted(Verb::Keys),
        "disable_root_key",
        write!(access_keys::disable_root),
    ),
    Endpoint::new(Get, "/api/v1/whoami", AnyKey, "whoami", read!(access_keys::whoami)),
    // The cluster.
    Endpoint::new(Get, "/api/v1/cluster", Granted(Verb::Cluster), "get_cluster", read!(cluster::show)),
    Endpoint::new(Get, METRICS, Granted(Verb::Cluster), "get_metrics", Handler::Keyed(metrics::show)),
    Endpoint::new(
        Post,
        "/api/v1/cluster/init",
        Granted(Verb::Cluster),
        "init_cluster",
        write!(cluster::init),
    ),
    Endpoint::new(Get, "/api/v1/cluster/backup", Granted(Verb::Backup), "get_backup", read!(cluster::backup))
        .audited(Audited::Always)
        .without_head(),
    Endpoint::new(
        Post,
        "/api/v1/cluster/leader",
        Granted(Verb::Cluster),
        "move_leadership",
        write!(cluster::transfer_leadership),
    ),
    Endpoint::new(
        Post,
        "/api/v1/cluster/members",
        Granted(Verb::Cluster),
        "add_member",
        write!(cluster::add),
    ),
    Endpoint::new(Delete, MEMBER, Granted(Verb::Cluster), "remove_member", write!(cluster::remove)),
    Endpoint::new(
        Post,
        "/api/v1/cluster/members/{id}/promote",
        Granted(Verb::Cluster),
        "promote_member",
        write!(cluster::promote),
    ),
    Endpoint::new(
        Post,
        "/api/v1/cluster/members/{id}/replace",
        Granted(Verb::Cluster),
        "replace_member",
        write!(cluster::replace),
    ),
    // What needs no key.
    Endpoint::new(Get, "/", Open, "root", open!(cluster::root)),
    Endpoint::new(Get, "/livez", Open, "livez", open!(cluster::live)),
    Endpoint::new(Get, "/health", Open, "health", open!(cluster::live)),
    Endpoint::new(Get, "/readyz", Open, "readyz", open!(cluster::ready)),
    Endpoint::new(Get, "/readiness-probe", Open, "readiness_probe", open!(cluster::ready)),
    Endpoint::new(Get, DOCUMENT, Open, "openapi", open!(docs::document)),
    Endpoint::new(Get, DOCS, Open, "docs", open!(docs::page)).with_slash(),
    Endpoint::new(Get, "/docs/{file}", Open, "docs_file", open!(docs::file)),
    Endpoint::new(Get, UI, Open, "ui", open!(console::page)).with_slash(),
    Endpoint::new(Get, "/ui/{file}", Open, "ui_file", open!(console::file)),
    Endpoint::new(Get, "/ui/{folder}/{file}", Open, "ui_file_in_folder", open!(console::file_in_folder)),
];
