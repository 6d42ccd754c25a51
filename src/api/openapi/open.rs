//! What needs no key: probes, and this document.

use serde_json::json;
use utoipa::openapi::{HttpMethod::Get, ObjectBuilder, Type, content::ContentBuilder};

use super::builder::{Described, describe};

const TAG: &str = "open";

fn probe(path: &'static str, id: &str, summary: &str, said: &str) -> Described {
    describe(Get, path, TAG, id, summary).without_key().answers(200, said, ("Nothing", json!({})), &[])
}

/// Everything that is open.
pub(super) fn all() -> Vec<Described> {
    let root = json!({ "service": "concord", "api": "/api/v1" });
    let live = "Whether the process answers; no reason to restart it for want of a quorum";
    let ready = "Whether the node is caught up with a live leader";
    let document = ContentBuilder::new().schema(Some(ObjectBuilder::new().schema_type(Type::Object))).build();
    let page = |kind| {
        let content =
            ContentBuilder::new().schema(Some(ObjectBuilder::new().schema_type(Type::String))).build();
        Some((kind, content))
    };
    vec![
        describe(Get, "/", TAG, "root", "Say what this is").without_key().answers(
            200,
            "concord",
            ("Root", root),
            &[],
        ),
        probe("/livez", "livez", live, "alive"),
        probe("/health", "health", live, "alive"),
        probe("/readyz", "readyz", ready, "ready").refuses(&[503]),
        probe("/readiness-probe", "readiness_probe", ready, "ready").refuses(&[503]),
        describe(Get, "/openapi.json", TAG, "openapi", "This document").without_key().responds(
            200,
            "The document, with the limits of this node.",
            Some(("application/json", document)),
            &[],
        ),
        describe(Get, "/docs", TAG, "docs", "A page that shows this document").without_key().responds(
            200,
            "The page.",
            page("text/html"),
            &[],
        ),
        describe(Get, "/docs/{file}", TAG, "docs_file", "A file of the page")
            .without_key()
            .responds(200, "The file.", page("*/*"), &[])
            .refuses(&[404]),
    ]
}
