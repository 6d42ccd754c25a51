//! The operations that need no key: probes, the root path, this document and its page, the console.

use serde_json::json;
use utoipa::openapi::content::ContentBuilder;

use super::{
    builder::{OperationEntry, describe, payload},
    schemas::{NamedSchema, closed, json_object, text},
};

const TAG: &str = "open";

fn probe(id: &'static str, summary: &str, message: &str) -> OperationEntry {
    describe(TAG, id, summary).success(200, message, payload("Nothing", json!({})), &[])
}

fn console_file(id: &'static str) -> OperationEntry {
    let content = ContentBuilder::new().schema(Some(text())).build();
    describe(TAG, id, "A file of the console")
        .response(200, "The file.", Some(("*/*", content)), &[])
        .response(304, "The caller has this version already.", None, &[])
        .refusals(&[404])
}

/// The operations of this file.
pub(super) fn operations() -> Vec<OperationEntry> {
    let root = json!({ "service": "concord", "api": "/api/v1" });
    let live = "Liveness: the process answers, whatever state the cluster is in";
    let ready = "Readiness: the node is caught up with a live leader";
    let document = ContentBuilder::new().schema(Some(json_object())).build();
    let page = |kind| {
        let content = ContentBuilder::new().schema(Some(text())).build();
        Some((kind, content))
    };
    vec![
        describe(TAG, "root", "Name the service and the root of its interface").success(
            200,
            "concord",
            payload("Root", root),
            &[],
        ),
        probe("livez", live, "alive"),
        probe("health", live, "alive"),
        probe("readyz", ready, "ready").refusals(&[503]),
        probe("readiness_probe", ready, "ready").refusals(&[503]),
        describe(TAG, "openapi", "This document").response(
            200,
            "The document, with the limits of this node.",
            Some(("application/json", document)),
            &[],
        ),
        describe(TAG, "docs", "A page that renders this document").response(
            200,
            "The page.",
            page("text/html"),
            &[],
        ),
        describe(TAG, "docs_file", "A file of the page")
            .response(200, "The file.", page("*/*"), &[])
            .refusals(&[404]),
        describe(TAG, "ui", "The console").response(200, "The page.", page("text/html"), &[]).response(
            304,
            "The caller has this version already.",
            None,
            &[],
        ),
        console_file("ui_file"),
        console_file("ui_file_in_folder"),
    ]
}

/// The payloads of its answers.
pub(super) fn payloads() -> Vec<NamedSchema> {
    vec![
        ("Root", closed(vec![("service", text().into()), ("api", text().into())], Vec::new()).into()),
        ("Nothing", closed(Vec::new(), Vec::new()).into()),
    ]
}
