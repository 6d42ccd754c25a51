//! The operations that need no key: probes, the root path, this document and its page, the console.

use serde_json::json;
use utoipa::openapi::{HttpMethod::Get, content::ContentBuilder};

use super::{
    builder::{Entry, describe},
    schemas::{Named, closed, json_object, text},
};

const TAG: &str = "open";

fn probe(path: &'static str, id: &str, summary: &str, message: &str) -> Entry {
    describe(Get, path, TAG, id, summary).without_key().success(200, message, ("Nothing", json!({})), &[])
}

fn console_file(path: &'static str, id: &str) -> Entry {
    let content = ContentBuilder::new().schema(Some(text())).build();
    describe(Get, path, TAG, id, "A file of the console")
        .without_key()
        .response(200, "The file.", Some(("*/*", content)), &[])
        .response(304, "The caller has this version already.", None, &[])
        .refusals(&[404])
}

/// The operations of this file.
pub(super) fn operations() -> Vec<Entry> {
    let root = json!({ "service": "concord", "api": "/api/v1" });
    let live = "Liveness: the process answers, whatever state the cluster is in";
    let ready = "Readiness: the node is caught up with a live leader";
    let document = ContentBuilder::new().schema(Some(json_object())).build();
    let page = |kind| {
        let content = ContentBuilder::new().schema(Some(text())).build();
        Some((kind, content))
    };
    vec![
        describe(Get, "/", TAG, "root", "Name the service and the root of its interface")
            .without_key()
            .success(200, "concord", ("Root", root), &[]),
        probe("/livez", "livez", live, "alive"),
        probe("/health", "health", live, "alive"),
        probe("/readyz", "readyz", ready, "ready").refusals(&[503]),
        probe("/readiness-probe", "readiness_probe", ready, "ready").refusals(&[503]),
        describe(Get, "/openapi.json", TAG, "openapi", "This document").without_key().response(
            200,
            "The document, with the limits of this node.",
            Some(("application/json", document)),
            &[],
        ),
        describe(Get, "/docs", TAG, "docs", "A page that renders this document").without_key().response(
            200,
            "The page.",
            page("text/html"),
            &[],
        ),
        describe(Get, "/docs/{file}", TAG, "docs_file", "A file of the page")
            .without_key()
            .response(200, "The file.", page("*/*"), &[])
            .refusals(&[404]),
        describe(Get, "/ui", TAG, "ui", "The console")
            .without_key()
            .response(200, "The page.", page("text/html"), &[])
            .response(304, "The caller has this version already.", None, &[]),
        console_file("/ui/{file}", "ui_file"),
        console_file("/ui/{folder}/{file}", "ui_file_in_folder"),
    ]
}

/// The payloads of its answers.
pub(super) fn payloads() -> Vec<Named> {
    vec![
        ("Root", closed(vec![("service", text().into()), ("api", text().into())], Vec::new()).into()),
        ("Nothing", closed(Vec::new(), Vec::new()).into()),
    ]
}
