//! The operations on access keys, on the client's own key, and on the audit log.

use serde_json::{Value, json};
use utoipa::openapi::{ArrayBuilder, ObjectBuilder, Type};

use super::{
    builder::{
        OperationEntry, READ_PARAMETERS, READ_REFUSALS, RECORD_HEADERS, WRITE_PARAMETERS, WRITE_REFUSALS,
        describe, payload,
    },
    schemas::{
        NamedSchema, SchemaField, boolean, closed, integer, json_object, nullable, open, page, reference,
        text, time,
    },
};
use crate::{
    access_keys::body,
    body::fields::{array, schema_of},
};
use concord_model::{access_key::ID_CHARS, limits::Limits};

const TAG: &str = "access keys";
const NO_STORE: &[&str] = &["Cache-Control"];

fn grants() -> Value {
    json!([{ "verbs": ["read"], "definitions": ["billing.*", "limits"] }])
}

fn quota() -> Value {
    json!({
        "requests_per_second": 100, "writes_per_second": null, "bytes": null, "records": null, "watches": null,
        "cursors": null, "lists": null,
    })
}

fn key() -> Value {
    json!({
        "key_id": "4kPq0sWc7RtZ", "name": "billing reader", "grants": grants(), "expires_at": null,
        "created_at": "2026-03-01T12:00:00.000001Z", "created_by": "root",
        "modified_at": "2026-03-01T12:00:00.000001Z", "last_used_at": "2026-03-02T00:00:00.000000Z",
        "previous_until": null, "quota": quota(), "person": null, "attested": false, "attested_by": [],
        "own_secret": true, "revision": 41,
    })
}

fn attested() -> Value {
    let person = |id: &str, label: &str| json!({ "person_id": id, "label": label });
    let mut key = key();
    key["person"] = person("41984", "ada@example.com");
    key["attested"] = json!(true);
    key["attested_by"] = json!([
        { "key_id": "9sKq0sWc7RtA", "person": person("39936", "bob@example.com") },
        { "key_id": "2mPq0sWc7RtB", "person": person("40960", "eve@example.com") },
    ]);
    key
}

fn made() -> Value {
    let mut made = key();
    made["api_key"] = json!("concord_4kPq0sWc7RtZ_…");
    made
}

/// The operations of this file.
pub(super) fn operations() -> Vec<OperationEntry> {
    let record = [RECORD_HEADERS, NO_STORE].concat();
    let list = json!({ "results": [key()], "meta": { "page": 1, "limit": 10, "total": 1 } });
    let mut whoami = key();
    whoami["root"] = json!(false);
    whoami["quota_left"] = quota();
    vec![
        describe(TAG, "create_api_key", "Create an access key")
            .description(
                "`api_key` is the key's secret, which no other response has. A key can grant only permissions that it has. The \
                 response to a retry with the same `Idempotency-Key` has no `api_key`.",
            )
            .parameters(WRITE_PARAMETERS)
            .body("ApiKeyInput", json!({ "name": "billing reader", "grants": grants() }))
            .success(201, "access key created", payload("MadeApiKey", made()), &[&record[..], &["Location", "Warning"]].concat())
            .refusals(WRITE_REFUSALS)
            .refusals(&[409, 507]),
        describe(TAG, "list_api_keys", "List access keys")
            .description("The list has only keys whose permissions the calling key has as well.")
            .parameters(&["page", "limit", "sort_api_keys", "sort_order", "search"])
            .parameters(READ_PARAMETERS)
            .success(200, "access keys found", payload("ApiKeyPage", list), NO_STORE)
            .refusals(READ_REFUSALS),
        describe(TAG, "get_api_key", "Get an access key")
            .parameters(&["If-None-Match"])
            .parameters(READ_PARAMETERS)
            .success(200, "access key found", payload("ApiKey", key()), &record)
            .response(304, "The client has the current version.", None, &record)
            .refusals(READ_REFUSALS)
            .refusals(&[404]),
        describe(TAG, "change_api_key", "Change an access key")
            .description("Members that are absent from the body stay unchanged.")
            .parameters(WRITE_PARAMETERS)
            .parameters(&["If-Match"])
            .body("ApiKeyPatch", json!({ "expires_at": "2027-01-01T00:00:00Z" }))
            .success(200, "access key changed", payload("ApiKey", key()), &record)
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412, 507]),
        describe(TAG, "revoke_api_key", "Revoke an access key")
            .description("After the response, no node applies a write of this key.")
            .parameters(WRITE_PARAMETERS)
            .parameters(&["If-Match"])
            .success(200, "access key revoked", payload("ApiKeyId", json!({ "key_id": "4kPq0sWc7RtZ" })), NO_STORE)
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412]),
        describe(TAG, "rotate_api_key", "Rotate an access key")
            .description("The previous secret remains valid for `grace_s` seconds; with 0 it expires at once.")
            .parameters(WRITE_PARAMETERS)
            .parameters(&["If-Match"])
            .body("Rotation", json!({ "grace_s": 3600 }))
            .success(200, "access key rotated", payload("MadeApiKey", made()), &[&record[..], &["Warning"]].concat())
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412, 507]),
        describe(TAG, "attest_api_key", "Attest an access key")
            .description(
                "Confirms that the person of the key, and nobody else, holds it at this revision. The root key attests alone; \
                 of persons two must, each with an attested key, and neither is the person of the key. A key that is \
                 attested stays as it is.",
            )
            .parameters(WRITE_PARAMETERS)
            .body("KeyAttestation", json!({ "revision": 41 }))
            .success(200, "access key attested", payload("ApiKey", attested()), &record)
            .refusals(WRITE_REFUSALS)
            .refusals(&[404, 409, 412, 507]),
        describe(TAG, "disable_root_key", "Disable the root key")
            .description(
                "409 until there is an access key with the verb `keys`. `concord recover-root` on a stopped node \
                 enables the root key again.",
            )
            .parameters(WRITE_PARAMETERS)
            .success(200, "root key disabled", payload("RootKey", json!({ "root": "disabled" })), NO_STORE)
            .refusals(WRITE_REFUSALS)
            .refusals(&[409]),
        describe(TAG, "whoami", "Show the access key or session that the request uses")
            .success(200, "caller found", payload("Caller", whoami), NO_STORE)
            .refusals(&[503]),
        get_audit(),
        get_audit_anchors(),
        accept_audit_log(),
    ]
}

fn id() -> ObjectBuilder {
    text().pattern(Some(format!("^[0-9A-Za-z]{{{ID_CHARS}}}$")))
}

/// A person, or null.
fn nullable_person() -> ObjectBuilder {
    let about = "null, or `person_id` and `label`, which is null for a client that may not see it";
    nullable(Type::Object).description(Some(about))
}

/// Who has attested a key.
fn attesters() -> ArrayBuilder {
    let about = "who has attested it; while `attested` is false, the first of the two persons who must";
    array(reference("Attester"), 2).description(Some(about))
}

fn own_secret() -> ObjectBuilder {
    boolean().description(Some("whether the root key or the key itself made each secret that is valid"))
}

/// The session of a request.
fn own_session() -> ObjectBuilder {
    let roles = ArrayBuilder::new().items(text());
    let own = vec![("session_id", id().into()), ("provider", text().into()), ("roles", roles.into())];
    closed(own, Vec::new()).description(Some("absent for an access key"))
}

fn time_or_null(about: &str) -> ObjectBuilder {
    nullable(Type::String).description(Some(about))
}

/// The bodies of its requests.
pub(super) fn requests(limits: &Limits) -> Vec<NamedSchema> {
    let attester = closed(vec![("key_id", text().into()), ("person", nullable_person().into())], Vec::new());
    let quota = schema_of(limits, body::quota);
    let quota = quota.description(Some("null or absent: the key has no limit of its own"));
    vec![
        ("Grant", schema_of(limits, body::grant).into()),
        ("Quota", quota.into()),
        ("ApiKeyInput", schema_of(limits, body::new_key).into()),
        ("ApiKeyPatch", schema_of(limits, body::changed_key).into()),
        ("Rotation", schema_of(limits, body::grace).into()),
        ("KeyAttestation", schema_of(limits, body::attested_revision).into()),
        ("Attester", attester.into()),
    ]
}

/// The payloads of its answers.
pub(super) fn payloads() -> Vec<NamedSchema> {
    let own = || -> Vec<SchemaField> {
        vec![
            ("key_id", id().into()),
            ("name", body::name().into()),
            ("grants", body::grants().into()),
            ("expires_at", time_or_null("when the key expires").into()),
            ("created_at", time().into()),
            ("created_by", text().into()),
            ("modified_at", time().into()),
            ("last_used_at", time_or_null("to the day, in UTC").into()),
            ("previous_until", time_or_null("when the previous secret expires").into()),
            ("quota", reference("Quota")),
            ("person", nullable_person().into()),
            (
                "attested",
                boolean().description(Some("whether others have confirmed who holds the key")).into(),
            ),
            ("attested_by", attesters().into()),
            ("own_secret", own_secret().into()),
            ("revision", integer(1).description(Some("what `attest` names")).into()),
        ]
    };
    let caller = |name: &'static str| -> SchemaField { (name, text().into()) };
    let whoami = open(
        vec![
            caller("key_id"),
            caller("name"),
            ("grants", body::grants().into()),
            ("expires_at", time_or_null("when the key expires").into()),
            ("quota", reference("Quota")),
            ("root", boolean().into()),
        ],
        // The root key has no quota.
        vec![("quota_left", reference("Quota")), ("session", own_session().into())],
    );
    let root = text().enum_values(Some(["disabled"]));
    vec![
        ("ApiKey", open(own(), Vec::new()).into()),
        ("MadeApiKey", open(own(), vec![("api_key", text().into())]).into()),
        ("ApiKeyPage", page("ApiKey").into()),
        ("ApiKeyId", closed(vec![("key_id", id().into())], Vec::new()).into()),
        ("RootKey", closed(vec![("root", root.into())], Vec::new()).into()),
        ("Caller", whoami.into()),
        ("AuditPage", audit_page_schema().into()),
        ("AuditAnchors", audit_anchors_schema().into()),
        (
            "AcceptedLog",
            closed(vec![("node_id", integer(1).into()), ("accepted_at", time().into())], Vec::new()).into(),
        ),
    ]
}

fn audit_page() -> Value {
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
            "node": 1,
            "nodes": [1, 2, 3],
            "head": { "seq": 18, "hash": "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae" },
        },
    })
}

/// The operation on the audit log.
fn get_audit() -> OperationEntry {
    describe("audit", "get_audit", "Show the audit log of a node")
            .description(
                "The requests to the receiving node and their outcomes; with `node`, those to another member, which the \
                 receiving node asks. `meta.nodes` are the members. Newest first; with `after` oldest first. A page \
                 reads a bounded part of the log, so it may have fewer lines than `limit` although there are more: the \
                 next page is the one that `Link` names, and `meta.next` is null at the end. `meta.head` is the \
                 number and the SHA-256 of the last line. The lines stand as they are in the log, each with the \
                 SHA-256 of the line before in `prev`.",
            )
            .parameters(&["audit_node", "audit_after", "audit_before", "limit"])
            .parameters(&["since", "until", "audit_key", "audit_definition", "outcome"])
            .success(200, "audit lines found", payload("AuditPage", audit_page()), &["Link"])
            .refusals(&[404, 422, 503])
}

/// The operation on the anchors of all audit logs.
fn get_audit_anchors() -> OperationEntry {
    let anchors = json!({
        "logs": [{
            "cluster_id": "018f2d0c-0000-7000-8000-000000000000",
            "node_id": 1,
            "accepted": null,
            "anchors": [{
                "at": "2026-03-01T12:00:00.000001Z",
                "seq": 18,
                "hash": "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
                "accepted": false,
            }],
        }],
    });
    describe("audit", "get_audit_anchors", "Show the anchors of the audit logs of all nodes")
        .description(
            "Each node notes the number and the SHA-256 of the last line of its audit log in the state of the cluster, \
             about once a minute. The log must have these lines. Older anchors are thinned.",
        )
        .parameters(READ_PARAMETERS)
        .success(200, "audit anchors found", payload("AuditAnchors", anchors), &[])
        .refusals(READ_REFUSALS)
}

/// The operation by which an operator accepts a log that does not have its anchors.
fn accept_audit_log() -> OperationEntry {
    let accepted = json!({ "node_id": 1, "accepted_at": "2026-03-01T12:00:00.000001Z" });
    describe("audit", "accept_audit_log", "Accept that the audit log of a node does not have its anchors")
        .description(
            "For a log that an operator has replaced. The anchors up to now stay, marked with who accepted, and their \
             absence is no alarm.",
        )
        .parameters(WRITE_PARAMETERS)
        .success(200, "audit log accepted", payload("AcceptedLog", accepted), &[])
        .refusals(WRITE_REFUSALS)
        .refusals(&[404, 507])
}

/// The anchors of all audit logs.
fn audit_anchors_schema() -> ObjectBuilder {
    let hash = text().pattern(Some("^[0-9a-f]{64}$"));
    let anchor = closed(
        vec![
            ("at", time().into()),
            ("seq", integer(1).into()),
            ("hash", hash.into()),
            ("accepted", boolean().into()),
        ],
        Vec::new(),
    );
    let accepted = nullable(Type::Object).description(Some("who accepted last, up to when, and why"));
    let log = closed(
        vec![
            ("cluster_id", text().into()),
            ("node_id", integer(1).into()),
            ("accepted", accepted.into()),
            ("anchors", ArrayBuilder::new().items(anchor).into()),
        ],
        Vec::new(),
    );
    closed(vec![("logs", ArrayBuilder::new().items(log).into())], Vec::new())
}

/// A page of the audit log.
fn audit_page_schema() -> ObjectBuilder {
    let head = open(
        vec![("seq", integer(0).into()), ("hash", text().pattern(Some("^[0-9a-f]{64}$")).into())],
        Vec::new(),
    );
    let next = nullable(Type::Integer).description(Some("`before` or `after` of the next page"));
    let nodes =
        ArrayBuilder::new().items(integer(1)).description(Some("the members, whose logs `node` selects"));
    let node = integer(1).description(Some("the node whose log it is of"));
    let meta = open(
        vec![
            ("limit", integer(1).into()),
            ("next", next.into()),
            ("node", node.into()),
            ("nodes", nodes.into()),
        ],
        vec![("head", head.into())],
    );
    let lines = ArrayBuilder::new().items(json_object());
    open(vec![("results", lines.into()), ("meta", meta.into())], Vec::new())
}
