//! The interface as an `OpenAPI` 3.1 document: what a client generator, a fuzzer and the page at `/docs` read.
//!
//! | file | what it holds |
//! |---|---|
//! | `words` | how an operation is described, in one sentence each |
//! | `schemas` | the bodies |
//! | `shared` | parameters, headers and refusals that operations have in common |
//! | `definitions`, `configs`, `cluster`, `open` | the operations, one entry for each method of a path |
//! | `rules` | the same of schemas, unique paths and the states of indexes, with their bodies |
//! | `computed` | the same of patches and batches |
//! | `past` | the same of history and watches |
//!
//! A new path takes one entry in one of the lists of operations, its bodies in `schemas`, its parameters and
//! refusals in `shared`. The handlers read their requests with extractors of their own, which no derive can see,
//! so the document is written beside them and held to them by tests: the routes of the router and of the document
//! are the same (`tests`), and every answer that the black-box tests get is checked against it (`tests/harness`).
//!
//! **Invariants:** every `$ref` resolves; limits stand in the schemas as the node's settings have them; the
//! document tells of statuses, `reply` decides them.

mod builder;
mod cluster;
mod computed;
mod configs;
mod definitions;
mod history;
mod open;
mod rules;
mod schemas;
mod shared;
#[cfg(test)]
mod tests;

use utoipa::openapi::{
    ComponentsBuilder, InfoBuilder, License, OpenApi, OpenApiBuilder, PathItem, Paths, tag::TagBuilder,
};

use crate::model::limits::Limits;

/// The tags of operations, in the order in which a reader meets them.
const TAGS: [(&str, &str); 7] = [
    ("definitions", "What configs must look like: a key, a JSON schema, indexed paths."),
    ("configs", "The configs of a definition."),
    ("batch", "Several writes as one: all of them or none."),
    ("history", "What was, who changed it and why, and bringing it back."),
    ("watch", "The changes as they come."),
    ("cluster", "The nodes: members, leadership, backup."),
    ("open", "What needs no key: probes and this document."),
];

const ABOUT: &str = "A replicated service for typed configuration. Every node answers every request: a write is \
durable on a majority before it is acknowledged, and a read sees every acknowledged write. 503 says that a write \
was certainly not applied, 504 that its outcome is unknown; with an `Idempotency-Key` it may be sent again. With \
`dry_run=true` a write of definitions and configs is only tried: its answer has `X-Concord-Dry-Run`, and neither \
`ETag` nor `Last-Modified`.\n\n\
The paths of collections end with a slash and those of items do not; both forms of each are served.";

/// The document of a node with these limits.
#[must_use]
pub fn document(limits: &Limits) -> OpenApi {
    let mut paths = Paths::new();
    let lists = [
        definitions::all(),
        rules::all(),
        configs::all(),
        computed::all(),
        history::all(),
        cluster::all(),
        open::all(),
    ];
    for described in lists.into_iter().flatten() {
        let (path, method, operation) = described.end();
        let item = PathItem::new(method, operation);
        match paths.paths.get_mut(path) {
            Some(known) => known.merge_operations(item),
            None => drop(paths.paths.insert(path.into(), item)),
        }
    }
    let mut info = InfoBuilder::new()
        .title("Concord")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(ABOUT))
        .build();
    let mut license = License::new("Apache-2.0");
    license.identifier = Some("Apache-2.0".into());
    info.license = Some(license);
    let components = shared::components(schemas::components(ComponentsBuilder::new(), limits), limits);
    let tags = TAGS.map(|(name, about)| TagBuilder::new().name(name).description(Some(about)).build());
    OpenApiBuilder::new()
        .info(info)
        .paths(paths)
        .components(Some(components.build()))
        .security(Some(shared::credentials()))
        .tags(Some(tags))
        .build()
}
