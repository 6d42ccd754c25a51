//! The interface as an `OpenAPI` 3.1 document: what client generators, fuzzers and the page at `/docs` read.
//!
//! | where is | file |
//! |---|---|
//! | operations on definitions, schemas, unique paths, indexes | `definitions` |
//! | operations on configs | `configs` |
//! | feature flags | `flags` |
//! | patches and batches | `batch_and_patch` |
//! | history, rollback and watches | `history_and_watch` |
//! | access keys and the audit log | `access_keys` |
//! | identity providers, roles, sessions | `identity` |
//! | environments | `environments` |
//! | change requests; their rollouts; what readers and gates say of those | `change_requests`, `rollouts`, `reports` |
//! | the cluster; the operations that need no key | `cluster` |
//! | how an operation is described | `builder` |
//! | parameters that operations share | `parameters` |
//! | rejections, with their statuses and error types | `refusals` |
//! | response headers | `headers` |
//! | building blocks of schemas: keys, times, objects, envelopes | `schemas` |
//!
//! Which operations there are, and what their rows say of them, follows from `endpoints`. The schema of a request body
//! follows from the function that reads the body (`body::fields`). An entry adds the texts, the parameters, the
//! examples and the responses. Schemas of responses are written by hand, because handlers write JSON text and have no
//! types of it. The black-box tests validate every response against the document (`tests/harness`).
//!
//! **Invariants:** every `$ref` resolves. The limits in the schemas are those of the node's settings. `reply` decides
//! the statuses; the document only describes them.

mod access_keys;
mod batch_and_patch;
pub(crate) mod builder;
mod change_requests;
mod cluster;
mod configs;
mod definitions;
mod environments;
mod flags;
mod headers;
mod history_and_watch;
mod identity;
mod parameters;
mod refusals;
mod reports;
mod rollouts;
pub(crate) mod schemas;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use utoipa::openapi::{
    Components, ComponentsBuilder, InfoBuilder, License, OpenApi, OpenApiBuilder, PathItem, Paths,
    security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    tag::TagBuilder,
};

use builder::OperationEntry;

use super::endpoints;
use concord_model::limits::Limits;

/// The tags of operations, in the order in which a reader meets them.
const TAGS: [(&str, &str); 13] = [
    ("definitions", "The definitions of configs: a key, a JSON schema, indexed paths, unique paths."),
    ("configs", "The configs of a definition."),
    ("batch", "Several writes, applied atomically."),
    ("flags", "Feature flags, evaluated by OFREP, and the document that flagd fetches."),
    ("history", "Earlier revisions, the author and reason of each change, rollback."),
    ("watch", "Changes as a stream of events."),
    ("environments", "Parts of the definitions with rules for their changes: freezes."),
    (
        "change requests",
        "Changes that wait for the approval of others, and bypasses that wait for their review.",
    ),
    ("audit", "The requests to a node and their outcomes."),
    ("access keys", "Credentials and their permissions."),
    ("identity", "Identity providers, roles, and the sessions of those who log in."),
    ("cluster", "The nodes: members, leadership, backup."),
    ("open", "Paths that need no key: probes and this document."),
];

const DESCRIPTION: &str = "A replicated service for typed configuration. Every node serves every request: a write \
is durable on a majority before it is acknowledged, and a read sees every acknowledged write. 503 means that a write \
was not applied, 504 that its outcome is unknown; with an `Idempotency-Key` it is safe to retry. With \
`dry_run=true` a write of definitions or configs is validated and answered but not stored: its answer has the header \
`X-Concord-Dry-Run`, and neither `ETag` nor `Last-Modified`.\n\n\
The paths of collections end with a slash and those of items do not; both forms of each are served.";

/// The document of a node with these limits.
#[must_use]
pub fn document(limits: &Limits) -> OpenApi {
    let mut paths = Paths::new();
    let entries = [
        definitions::operations(),
        configs::operations(),
        flags::operations(),
        batch_and_patch::operations(),
        history_and_watch::operations(),
        environments::operations(),
        change_requests::operations(),
        reports::operations(),
        access_keys::operations(),
        identity::operations(),
        cluster::operations(),
    ];
    let mut entries: BTreeMap<&str, OperationEntry> =
        entries.into_iter().flatten().map(|entry| (entry.id(), entry)).collect();
    for row in endpoints::ENDPOINTS.iter().filter(|row| row.is_documented) {
        let entry = entries.remove(row.operation).expect("a test builds the document of all rows");
        let item = PathItem::new(builder::method(row), entry.build(row));
        match paths.paths.get_mut(&builder::path(row)) {
            Some(known) => known.merge_operations(item),
            None => drop(paths.paths.insert(builder::path(row), item)),
        }
    }
    debug_assert!(entries.is_empty(), "there is no endpoint of {:?}", entries.keys());
    let mut info = InfoBuilder::new()
        .title("Concord")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(DESCRIPTION))
        .build();
    let mut license = License::new("Apache-2.0");
    license.identifier = Some("Apache-2.0".into());
    info.license = Some(license);
    let tags = TAGS.map(|(name, about)| TagBuilder::new().name(name).description(Some(about)).build());
    OpenApiBuilder::new()
        .info(info)
        .paths(paths)
        .components(Some(components(limits)))
        .security(Some(credentials()))
        .tags(Some(tags))
        .build()
}

/// Everything that the operations refer to.
fn components(limits: &Limits) -> Components {
    let mut components =
        ComponentsBuilder::new().schema("Key", schemas::key()).schema("ShapeError", refusals::shape_error());
    let requests = [
        definitions::requests(limits),
        configs::requests(limits),
        flags::requests(),
        batch_and_patch::requests(limits),
        history_and_watch::requests(limits),
        environments::requests(limits),
        change_requests::requests(limits),
        reports::requests(limits),
        access_keys::requests(limits),
        identity::requests(limits),
        cluster::requests(limits),
    ];
    for (name, body) in requests.into_iter().flatten().chain(schemas::shared()) {
        components = components.schema(name, body);
    }
    let payloads = [
        definitions::payloads(limits),
        configs::payloads(),
        batch_and_patch::payloads(),
        history_and_watch::payloads(limits),
        environments::payloads(),
        change_requests::payloads(),
        reports::payloads(),
        access_keys::payloads(),
        identity::payloads(),
        cluster::payloads(),
    ];
    for (name, payload) in payloads.into_iter().flatten() {
        let envelope = schemas::envelope(schemas::reference(name));
        components = components.schema(name, payload).schema(format!("{name}Answer"), envelope);
    }
    components = components.schema("ChangedAnswer", batch_and_patch::changed_answer());
    components = refusals::add_to(components);
    components = headers::add_to(components);
    components = parameters::add_to(components, limits);
    let key = ApiKeyValue::with_description("Authorization", "The key alone.");
    let bearer =
        HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("`Bearer <key>`.")).build();
    components
        .security_scheme("Bearer", SecurityScheme::ApiKey(ApiKey::Header(key)))
        .security_scheme("BearerToken", SecurityScheme::Http(bearer))
        .build()
}

/// Both forms of the credential; either is enough.
fn credentials() -> [SecurityRequirement; 2] {
    ["Bearer", "BearerToken"].map(|name| SecurityRequirement::new::<_, [&str; 0], &str>(name, []))
}
