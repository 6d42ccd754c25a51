//! The table of endpoints.
//!
//! `Allow` lists the methods of a path in the order of its rows. The order of paths never decides which row matches.
//!
//! **Invariants:** the rows of a path agree in whether they need a key. No two rows have the same method and path, or
//! the same operation.

use axum::response::IntoResponse as _;

use super::{
    Audited, Endpoint,
    EndpointMethod::{Delete, Get, Patch, Post, Put},
    Handler, Pretty, RawPart,
    RequiredRight::{AnyKey, Needs, Open},
};
use crate::{
    access_keys, across, audit, batch, change_requests, cluster, configs, console, consul, definitions, docs,
    environments, extract::BodyRequest, flags, history, identity, metrics, read, reports, rollouts, schema,
    server::boxed, spring, watch,
};
use concord_model::access_key::Verb;
use concord_service::quota::Gauge;

pub(crate) const DEFINITIONS: &str = "/api/v1/config_definition/";
const DEFINITION: &str = "/api/v1/config_definition/{definition}";
const SCHEMA: &str = "/api/v1/config_definition/{definition}/schema";
const PROTECTION: &str = "/api/v1/config_definition/{definition}/protection";
const UNIQUE: &str = "/api/v1/config_definition/{definition}/unique";
pub(crate) const CONFIGS: &str = "/api/v1/config_definition/{definition}/config/";
pub(crate) const CONFIG: &str = "/api/v1/config_definition/{definition}/config/{config}";
pub(crate) const WATCH: &str = "/api/v1/watch";
pub(crate) const CHANGES: &str = "/api/v1/changes";
pub(crate) const AUDIT: &str = "/api/v1/audit";
const ANCHORS: &str = "/api/v1/audit/anchors";
pub(crate) const KEYS: &str = "/api/v1/api_key/";
const KEY: &str = "/api/v1/api_key/{key_id}";
pub(crate) const ENVIRONMENTS: &str = "/api/v1/environment/";
const ENVIRONMENT: &str = "/api/v1/environment/{name}";
pub(crate) const CHANGE_REQUESTS: &str = "/api/v1/change_request/";
const CHANGE_REQUEST: &str = "/api/v1/change_request/{change_id}";
/// The second of each pair is of the definition that providers ask for without a path in their base address.
const EVALUATE: [&str; 2] =
    ["/api/v1/flags/{definition}/ofrep/v1/evaluate/flags/{flag}", "/ofrep/v1/evaluate/flags/{flag}"];
const EVALUATE_ALL: [&str; 2] =
    ["/api/v1/flags/{definition}/ofrep/v1/evaluate/flags", "/ofrep/v1/evaluate/flags"];
/// Its parameter is the rest of the path.
pub(crate) const KV: &str = "/v1/kv/{*key}";
pub(crate) const PROVIDERS: &str = "/api/v1/identity_provider/";
const PROVIDER: &str = "/api/v1/identity_provider/{name}";
pub(crate) const ROLES: &str = "/api/v1/role/";
const ROLE: &str = "/api/v1/role/{name}";
pub(crate) const SESSIONS: &str = "/api/v1/session/";
const USAGE: &str = "/api/v1/cluster/usage";
const MEMBER: &str = "/api/v1/cluster/members/{id}";
pub(crate) const METRICS: &str = "/metrics";
pub(crate) const DOCUMENT: &str = "/openapi.json";
pub(crate) const DOCS: &str = "/docs";
pub(crate) const UI: &str = "/ui";

/// The parameters of a list of configs that are no filters.
const LIST_PARAMETERS: &[&str] =
    &["page", "limit", "sort_by", "sort_order", "search", "cursor", "revision", "include", "fields"];

/// A handler of an endpoint that needs a key and takes no body.
macro_rules! keyed {
    ($handler:path) => {
        Handler::Keyed(|api, call| {
            boxed(|| async move { $handler(api.service.clone(), call.into()).await.into_response() })
        })
    };
}

/// A handler of an endpoint that needs a key. It is given the body, if there is one, and the headers of a write.
macro_rules! keyed_with_body {
    ($handler:path) => {
        Handler::Keyed(|api, call| {
            boxed(|| async move {
                match BodyRequest::receive(call, &api.service).await {
                    Ok(request) => {
                        let ignored = request.ignored();
                        let answered = $handler(api.service.clone(), request).await;
                        ignored.warn(answered.into_response())
                    }
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

/// The row of an evaluation, which is a read with a body. The body does not name the definition, but the handler does:
/// the path may not.
const fn evaluation(path: &'static str, operation: &'static str, handler: Handler) -> Endpoint {
    Endpoint::new(Post, path, Needs(Verb::Read), operation, handler)
        .audited(Audited::Body)
        .consistency()
        .ofrep()
}

/// The row of a request of a client of Spring Cloud Config. Its handler names what it reads.
const fn spring(path: &'static str, operation: &'static str, handler: Handler) -> Endpoint {
    Endpoint::new(Get, path, Needs(Verb::Read), operation, handler)
        .audited(Audited::Body)
        .consistency()
        .undocumented()
}

/// All rows.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    // Definitions.
    Endpoint::new(Get, DEFINITIONS, Needs(Verb::Read), "list_definitions", keyed!(definitions::list))
        .parameters(&[
            "page",
            "limit",
            "sort_by",
            "sort_order",
            "search",
            "cursor",
            "include",
            "revision",
            "definition",
        ])
        .consistency()
        .gauge(Gauge::Lists),
    Endpoint::new(
        Post,
        DEFINITIONS,
        Needs(Verb::Define),
        "create_definition",
        keyed_with_body!(definitions::create),
    )
    .parameters(&["bypass"])
    .lenient(),
    Endpoint::new(Get, DEFINITION, Needs(Verb::Read), "get_definition", keyed!(definitions::get))
        .parameters(&["include"])
        .consistency(),
    Endpoint::new(
        Put,
        DEFINITION,
        Needs(Verb::Define),
        "update_definition",
        keyed_with_body!(definitions::set_indexes),
    )
    .parameters(&["bypass"])
    .lenient(),
    Endpoint::new(
        Delete,
        DEFINITION,
        Needs(Verb::Delete),
        "delete_definition",
        keyed_with_body!(definitions::delete),
    )
    .parameters(&["mode", "purge", "bypass"])
    .lenient(),
    Endpoint::new(
        Post,
        "/api/v1/config_definition/{definition}/undelete",
        Needs(Verb::Define),
        "undelete_definition",
        keyed_with_body!(definitions::undelete),
    )
    .parameters(&["bypass"]),
    Endpoint::new(
        Get,
        "/api/v1/deleted_definition/",
        Needs(Verb::Read),
        "list_deleted_definitions",
        keyed!(definitions::deleted),
    )
    .parameters(&["definition"])
    .consistency(),
    // First, for speed only: most requests are for configs.
    Endpoint::new(Get, CONFIGS, Needs(Verb::Read), "list_configs", keyed!(configs::list))
        .parameters(LIST_PARAMETERS)
        .consistency()
        .filters()
        .gauge(Gauge::Lists)
        .pretty(Pretty::UnlessIndexed)
        .raw(RawPart::All),
    Endpoint::new(Post, CONFIGS, Needs(Verb::Write), "create_config", keyed_with_body!(configs::create))
        .parameters(&["bypass"])
        .lenient(),
    Endpoint::new(Get, CONFIG, Needs(Verb::Read), "read_config", Handler::GetConfig)
        .parameters(&["revision", "include", "fields"])
        .consistency()
        .raw(RawPart::Data),
    Endpoint::new(Put, CONFIG, Needs(Verb::Write), "update_config", keyed_with_body!(configs::put))
        .parameters(&["upsert", "bypass"])
        .lenient(),
    Endpoint::new(Patch, CONFIG, Needs(Verb::Write), "patch_config", keyed_with_body!(configs::patch))
        .parameters(&["bypass"])
        .takes_patch(),
    Endpoint::new(Delete, CONFIG, Needs(Verb::Write), "delete_config", keyed_with_body!(configs::delete))
        .parameters(&["bypass"])
        .lenient(),
    Endpoint::new(
        Get,
        "/api/v1/config_definition/{definition}/config/{config}/history",
        Needs(Verb::Read),
        "get_config_history",
        keyed!(history::of_config),
    )
    .parameters(&["before", "limit"])
    .consistency(),
    Endpoint::new(
        Post,
        "/api/v1/config_definition/{definition}/config/{config}/rollback",
        Needs(Verb::Write),
        "roll_back_config",
        keyed_with_body!(history::rollback),
    )
    .parameters(&["bypass"]),
    Endpoint::new(
        Get,
        "/api/v1/config_definition/{definition}/config/{config}/readers",
        Needs(Verb::Read),
        "list_config_readers",
        keyed!(reports::readers),
    )
    .consistency(),
    Endpoint::new(
        Post,
        "/api/v1/config_definition/{definition}/config/{config}/report",
        Needs(Verb::Report),
        "report_config",
        keyed_with_body!(reports::take_config_report),
    )
    .audited(Audited::News),
    Endpoint::new(Get, SCHEMA, Needs(Verb::Read), "get_schema", keyed!(schema::get))
        .consistency()
        .raw(RawPart::Schema),
    Endpoint::new(Put, SCHEMA, Needs(Verb::Define), "update_schema", keyed_with_body!(schema::put))
        .parameters(&["policy", "bypass"]),
    Endpoint::new(Get, UNIQUE, Needs(Verb::Read), "get_unique", keyed!(schema::get_unique)).consistency(),
    Endpoint::new(Put, UNIQUE, Needs(Verb::Define), "update_unique", keyed_with_body!(schema::put_unique))
        .parameters(&["bypass"]),
    Endpoint::new(Get, PROTECTION, Needs(Verb::Read), "get_protection", keyed!(schema::get_protection))
        .consistency(),
    Endpoint::new(
        Put,
        PROTECTION,
        Needs(Verb::Define),
        "update_protection",
        keyed_with_body!(schema::put_protection),
    )
    .parameters(&["bypass"]),
    Endpoint::new(
        Get,
        "/api/v1/config_definition/{definition}/indexes",
        Needs(Verb::Read),
        "get_index_states",
        keyed!(definitions::index_states),
    )
    .consistency(),
    Endpoint::new(
        Get,
        "/api/v1/config_definition/{definition}/history",
        Needs(Verb::Read),
        "get_definition_history",
        keyed!(history::of_definition),
    )
    .parameters(&["before", "limit"])
    .consistency(),
    // Many configs at once.
    Endpoint::new(Get, "/api/v1/config", Needs(Verb::Read), "list_configs_across", keyed!(across::list))
        .parameters(LIST_PARAMETERS)
        .consistency()
        .filters()
        .audited(Audited::Listed)
        .gauge(Gauge::Lists),
    Endpoint::new(Post, "/api/v1/read", Needs(Verb::Read), "read_configs", keyed_with_body!(read::run))
        .audited(Audited::Body)
        .consistency(),
    Endpoint::new(Post, "/api/v1/batch", Needs(Verb::Write), "run_batch", keyed_with_body!(batch::run))
        .parameters(&["bypass"]),
    // Feature flags.
    evaluation(EVALUATE[0], "evaluate_flag", keyed!(flags::evaluate)),
    evaluation(EVALUATE_ALL[0], "evaluate_flags", keyed!(flags::evaluate_all)),
    evaluation(EVALUATE[1], "evaluate_default_flag", keyed!(flags::evaluate)),
    evaluation(EVALUATE_ALL[1], "evaluate_default_flags", keyed!(flags::evaluate_all)),
    Endpoint::new(
        Get,
        "/api/v1/flags/{definition}/flagd.json",
        Needs(Verb::Read),
        "get_flagd_document",
        keyed!(flags::document),
    )
    .consistency(),
    Endpoint::new(
        Get,
        "/api/v1/flags/{definition}/events",
        Needs(Verb::Read),
        "watch_flags",
        keyed!(flags::events),
    )
    .parameters(&["ticket"])
    .consistency()
    .takes_ticket()
    .ends_with_its_client()
    .gauge(Gauge::Watches)
    .pretty(Pretty::Never)
    .without_head(),
    // Changes.
    Endpoint::new(Get, WATCH, Needs(Verb::Read), "watch", keyed!(watch::open))
        .parameters(&["from", "initial", "prev", "change_requests"])
        .consistency()
        .filters()
        .ends_with_its_client()
        .audited(Audited::Watched)
        .gauge(Gauge::Watches)
        .pretty(Pretty::Never)
        .without_head(),
    Endpoint::new(Get, CHANGES, Needs(Verb::Read), "poll_changes", keyed!(watch::poll))
        .parameters(&[
            "from",
            "initial",
            "prev",
            "change_requests",
            "wait",
            "latest",
            "before",
            "since",
            "by",
        ])
        .consistency()
        .filters()
        .ends_with_its_client()
        .audited(Audited::Watched)
        .gauge(Gauge::Watches)
        .pretty(Pretty::Never)
        .without_head(),
    // Environments. Who may name a definition in one may see it.
    Endpoint::new(Get, ENVIRONMENTS, AnyKey, "list_environments", keyed!(environments::list)).consistency(),
    Endpoint::new(Get, ENVIRONMENT, AnyKey, "get_environment", keyed!(environments::get)).consistency(),
    Endpoint::new(
        Put,
        ENVIRONMENT,
        Needs(Verb::Define),
        "put_environment",
        keyed_with_body!(environments::put),
    )
    .parameters(&["bypass"]),
    Endpoint::new(
        Delete,
        ENVIRONMENT,
        Needs(Verb::Define),
        "delete_environment",
        keyed_with_body!(environments::delete),
    )
    .parameters(&["bypass"]),
    // Change requests. They are seen by those who may read every definition in them.
    Endpoint::new(
        Get,
        CHANGE_REQUESTS,
        Needs(Verb::Read),
        "list_change_requests",
        keyed!(change_requests::list),
    )
    .parameters(&[
        "page",
        "limit",
        "sort_order",
        "search",
        "phase",
        "environment",
        "unreviewed",
        "revert",
        "mine",
        "needs_me",
    ])
    .consistency(),
    Endpoint::new(
        Post,
        CHANGE_REQUESTS,
        Needs(Verb::Propose),
        "create_change_request",
        keyed_with_body!(change_requests::create),
    ),
    Endpoint::new(Get, CHANGE_REQUEST, Needs(Verb::Read), "get_change_request", keyed!(change_requests::get))
        .parameters(&["include"])
        .consistency(),
    Endpoint::new(
        Put,
        CHANGE_REQUEST,
        Needs(Verb::Propose),
        "edit_change_request",
        keyed_with_body!(change_requests::edit),
    ),
    Endpoint::new(
        Post,
        "/api/v1/change_request/{change_id}/rebase",
        Needs(Verb::Propose),
        "rebase_change_request",
        keyed_with_body!(change_requests::rebase),
    )
    .without_body(),
    Endpoint::new(
        Post,
        "/api/v1/change_request/{change_id}/approve",
        Needs(Verb::Approve),
        "approve_change_request",
        keyed_with_body!(change_requests::approve),
    ),
    Endpoint::new(
        Post,
        "/api/v1/change_request/{change_id}/reject",
        Needs(Verb::Approve),
        "reject_change_request",
        keyed_with_body!(change_requests::reject),
    ),
    Endpoint::new(
        Post,
        "/api/v1/change_request/{change_id}/review",
        Needs(Verb::Approve),
        "review_bypass",
        keyed_with_body!(change_requests::review),
    ),
    Endpoint::new(
        Post,
        "/api/v1/change_request/{change_id}/apply",
        Needs(Verb::Propose),
        "apply_change_request",
        keyed_with_body!(change_requests::apply),
    ),
    Endpoint::new(
        Post,
        "/api/v1/change_request/{change_id}/revert",
        Needs(Verb::Approve),
        "revert_change_request",
        keyed_with_body!(change_requests::revert),
    )
    .parameters(&["bypass"]),
    Endpoint::new(
        Post,
        "/api/v1/change_request/{change_id}/keep",
        Needs(Verb::Approve),
        "keep_change_request",
        keyed_with_body!(change_requests::keep),
    ),
    Endpoint::new(
        Post,
        "/api/v1/change_request/{change_id}/withdraw",
        Needs(Verb::Approve),
        "withdraw_change_request",
        keyed_with_body!(change_requests::withdraw),
    ),
    Endpoint::new(
        Post,
        "/api/v1/change_request/{change_id}/pause",
        Needs(Verb::Approve),
        "pause_rollout",
        keyed_with_body!(rollouts::pause),
    )
    .optional_body(),
    Endpoint::new(
        Post,
        "/api/v1/change_request/{change_id}/resume",
        Needs(Verb::Approve),
        "resume_rollout",
        keyed_with_body!(rollouts::resume),
    )
    .optional_body(),
    Endpoint::new(
        Post,
        "/api/v1/change_request/{change_id}/advance",
        Needs(Verb::Approve),
        "advance_rollout",
        keyed_with_body!(rollouts::advance),
    )
    .optional_body(),
    // By those who may approve, write, or have sent an edition.
    Endpoint::new(
        Post,
        "/api/v1/change_request/{change_id}/abort",
        Needs(Verb::Read),
        "abort_rollout",
        keyed_with_body!(rollouts::abort),
    )
    .optional_body(),
    Endpoint::new(
        Post,
        "/api/v1/change_request/{change_id}/report",
        Needs(Verb::Report),
        "report_reader",
        keyed_with_body!(reports::take_report),
    )
    .audited(Audited::News),
    Endpoint::new(
        Post,
        "/api/v1/gate/{gate}",
        Needs(Verb::Report),
        "report_gate",
        keyed_with_body!(reports::take_word),
    )
    .audited(Audited::News),
    // The audit log.
    Endpoint::new(Get, AUDIT, Needs(Verb::Audit), "get_audit", keyed!(audit::show))
        .parameters(&["node", "after", "before", "limit", "since", "until", "key", "definition", "outcome"])
        .audited(Audited::Always),
    Endpoint::new(Get, ANCHORS, Needs(Verb::Audit), "get_audit_anchors", keyed!(audit::anchors))
        .consistency(),
    Endpoint::new(
        Post,
        "/api/v1/audit/anchors/{id}/accept",
        Needs(Verb::Cluster),
        "accept_audit_log",
        keyed_with_body!(audit::accept),
    )
    .without_body(),
    // Access keys.
    Endpoint::new(Get, KEYS, Needs(Verb::Keys), "list_api_keys", keyed!(access_keys::list))
        .parameters(&["page", "limit", "sort_by", "sort_order", "search"])
        .consistency(),
    Endpoint::new(Post, KEYS, Needs(Verb::Keys), "create_api_key", keyed_with_body!(access_keys::create)),
    Endpoint::new(Get, KEY, Needs(Verb::Keys), "get_api_key", keyed!(access_keys::get)).consistency(),
    Endpoint::new(Patch, KEY, Needs(Verb::Keys), "change_api_key", keyed_with_body!(access_keys::change)),
    Endpoint::new(Delete, KEY, Needs(Verb::Keys), "revoke_api_key", keyed_with_body!(access_keys::revoke)),
    Endpoint::new(
        Post,
        "/api/v1/api_key/{key_id}/rotate",
        Needs(Verb::Keys),
        "rotate_api_key",
        keyed_with_body!(access_keys::rotate),
    ),
    Endpoint::new(
        Post,
        "/api/v1/api_key/{key_id}/attest",
        Needs(Verb::Keys),
        "attest_api_key",
        keyed_with_body!(access_keys::attest),
    ),
    Endpoint::new(
        Post,
        "/api/v1/api_key/root/disable",
        Needs(Verb::Keys),
        "disable_root_key",
        keyed_with_body!(access_keys::disable_root),
    )
    .without_body(),
    Endpoint::new(Get, "/api/v1/whoami", AnyKey, "whoami", keyed!(access_keys::whoami)),
    // Identity. Who manages a provider or role needs its permissions, too.
    Endpoint::new(
        Get,
        PROVIDERS,
        Needs(Verb::Keys),
        "list_identity_providers",
        keyed!(identity::list_providers),
    )
    .consistency(),
    Endpoint::new(Get, PROVIDER, Needs(Verb::Keys), "get_identity_provider", keyed!(identity::get_provider))
        .consistency(),
    Endpoint::new(
        Put,
        PROVIDER,
        Needs(Verb::Keys),
        "put_identity_provider",
        keyed_with_body!(identity::put_provider),
    ),
    Endpoint::new(
        Delete,
        PROVIDER,
        Needs(Verb::Keys),
        "delete_identity_provider",
        keyed_with_body!(identity::delete_provider),
    ),
    Endpoint::new(
        Post,
        "/api/v1/identity_provider/{name}/try",
        Needs(Verb::Keys),
        "try_token",
        keyed_with_body!(identity::try_token),
    ),
    Endpoint::new(
        Post,
        "/api/v1/identity_provider/{name}/end_sessions",
        Needs(Verb::Keys),
        "end_sessions_of_identity_provider",
        keyed_with_body!(identity::end_sessions),
    )
    .without_body(),
    Endpoint::new(Get, ROLES, Needs(Verb::Keys), "list_roles", keyed!(identity::list_roles)).consistency(),
    Endpoint::new(Get, ROLE, Needs(Verb::Keys), "get_role", keyed!(identity::get_role)).consistency(),
    Endpoint::new(Put, ROLE, Needs(Verb::Keys), "put_role", keyed_with_body!(identity::put_role)),
    Endpoint::new(Delete, ROLE, Needs(Verb::Keys), "delete_role", keyed_with_body!(identity::delete_role)),
    // Each session sees and ends itself.
    Endpoint::new(Get, SESSIONS, AnyKey, "list_sessions", keyed!(identity::list_sessions))
        .parameters(&["after", "limit"])
        .consistency(),
    Endpoint::new(
        Delete,
        "/api/v1/session/{session_id}",
        Needs(Verb::Keys),
        "end_session",
        keyed_with_body!(identity::end_session),
    ),
    Endpoint::new(
        Post,
        "/api/v1/login",
        Open,
        "log_in",
        Handler::Login(|api, asked| boxed(|| identity::login::log_in(api, asked))),
    )
    .with_slash(),
    // The cluster.
    Endpoint::new(Get, "/api/v1/cluster", Needs(Verb::Observe), "get_cluster", keyed!(cluster::show)),
    Endpoint::new(Get, USAGE, Needs(Verb::Observe), "get_usage", keyed!(cluster::usage)),
    Endpoint::new(Get, METRICS, Needs(Verb::Observe), "get_metrics", Handler::Keyed(metrics::show)),
    Endpoint::new(
        Post,
        "/api/v1/cluster/init",
        Needs(Verb::Cluster),
        "init_cluster",
        keyed_with_body!(cluster::init),
    ),
    Endpoint::new(Get, "/api/v1/cluster/backup", Needs(Verb::Backup), "get_backup", keyed!(cluster::backup))
        .consistency()
        .audited(Audited::Always)
        .without_head(),
    Endpoint::new(
        Post,
        "/api/v1/cluster/leader",
        Needs(Verb::Cluster),
        "move_leadership",
        keyed_with_body!(cluster::transfer_leadership),
    ),
    Endpoint::new(
        Post,
        "/api/v1/cluster/members",
        Needs(Verb::Cluster),
        "add_member",
        keyed_with_body!(cluster::add),
    ),
    Endpoint::new(Put, MEMBER, Needs(Verb::Cluster), "move_member", keyed_with_body!(cluster::move_member)),
    Endpoint::new(Delete, MEMBER, Needs(Verb::Cluster), "remove_member", keyed_with_body!(cluster::remove)),
    Endpoint::new(
        Post,
        "/api/v1/cluster/members/{id}/promote",
        Needs(Verb::Cluster),
        "promote_member",
        keyed_with_body!(cluster::promote),
    )
    .without_body(),
    Endpoint::new(
        Post,
        "/api/v1/cluster/members/{id}/replace",
        Needs(Verb::Cluster),
        "replace_member",
        keyed_with_body!(cluster::replace),
    ),
    // Protocols of others, for clients that are there.
    Endpoint::new(Get, KV, Needs(Verb::Read), "consul_kv", keyed!(consul::kv))
        .parameters(&["recurse", "raw", "keys", "separator", "index", "wait", "stale", "consistent", "dc"])
        .audited(Audited::Body)
        .ends_with_its_client()
        .pretty(Pretty::Never)
        .consul(),
    spring("/spring/{file}", "spring_document", keyed!(spring::document)),
    spring("/spring/{application}/{profiles}", "spring_environment", keyed!(spring::environment)),
    spring("/spring/{application}/{profiles}/{label}", "spring_labelled", keyed!(spring::environment)),
    // What needs no key.
    Endpoint::new(Get, "/", Open, "root", open!(cluster::root)),
    Endpoint::new(Get, "/livez", Open, "livez", open!(cluster::live)),
    Endpoint::new(Get, "/health", Open, "health", open!(cluster::live)),
    Endpoint::new(Get, "/readyz", Open, "readyz", open!(cluster::ready)),
    Endpoint::new(Get, "/readiness-probe", Open, "readiness_probe", open!(cluster::ready)),
    Endpoint::new(Get, DOCUMENT, Open, "openapi", open!(docs::document)),
    Endpoint::new(Get, DOCS, Open, "docs", open!(docs::page)).with_slash().undocumented(),
    Endpoint::new(Get, "/docs/{file}", Open, "docs_file", open!(docs::file)).undocumented(),
    Endpoint::new(Get, UI, Open, "ui", open!(console::page)).with_slash().undocumented(),
    Endpoint::new(Get, "/ui/{file}", Open, "ui_file", open!(console::file)).undocumented(),
    Endpoint::new(Get, "/ui/{folder}/{file}", Open, "ui_file_in_folder", open!(console::file_in_folder))
        .undocumented(),
];
