//! The operation on the audit log.

use serde_json::{Value, json};
use utoipa::openapi::{ArrayBuilder, Type};

use super::{
    builder::{OperationEntry, describe, payload},
    schemas::{NamedSchema, integer, json_object, nullable, open, text},
};

fn example() -> Value {
    json!({
        "results": [{
            "seq": 18,
            "time": "2026-03-01T12:00:00.000001Z",
            "node": 1,
            "request_id": "018f2d0c-0000-7000-8000-000000000000",
            "key": "root",
            "address": "10.0.0.7",
            "verb": "write",
            "method": "PUT",
            "route": "/api/v1/config_definition/{definition}/config/{config}",
            "definition": "app",
            "config": "prod",
            "status": 200,
            "outcome": "ok",
            "revision_before": 41,
            "revision_after": 42,
            "prev": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        }],
        "meta": {
            "limit": 100,
            "next": 18,
            "head": { "seq": 18, "hash": "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae" },
        },
    })
}

/// The operations of this file.
pub(super) fn operations() -> Vec<OperationEntry> {
    vec![
        describe("audit", "get_audit", "Show the audit log of the node that is asked")
            .description(
                "Who asked this node for what, and what was decided. Newest first; with `after` oldest first. A page \
                 reads a bounded part of the log, so it may have fewer lines than `limit` although there are more: the \
                 next page is the one that `Link` names, and `meta.next` is null at the end. `meta.head` is the \
                 number and the SHA-256 of the last line. The lines stand as they are in the log, each with the \
                 SHA-256 of the line before in `prev`.",
            )
            .parameters(&["audit_after", "audit_before", "limit"])
            .parameters(&["since", "until", "audit_key", "audit_definition", "outcome"])
            .success(200, "audit lines found", payload("AuditPage", example()), &["Link"])
            .refusals(&[404, 422]),
    ]
}

/// The payload of its answer.
pub(super) fn payloads() -> Vec<NamedSchema> {
    let head = open(
        vec![("seq", integer(0).into()), ("hash", text().pattern(Some("^[0-9a-f]{64}$")).into())],
        Vec::new(),
    );
    let next = nullable(Type::Integer).description(Some("`before` or `after` of the next page"));
    let meta = open(vec![("limit", integer(1).into()), ("next", next.into())], vec![("head", head.into())]);
    let lines = ArrayBuilder::new().items(json_object());
    vec![("AuditPage", open(vec![("results", lines.into()), ("meta", meta.into())], Vec::new()).into())]
}
