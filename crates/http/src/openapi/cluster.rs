//! The operations on the cluster: status, formation, members, leadership, backup. The operations that need no key:
//! probes, the root path, this document.

use serde_json::{Value, json};
use utoipa::openapi::{
    ArrayBuilder, KnownFormat, ObjectBuilder, SchemaFormat, Type, content::ContentBuilder,
};

use super::{
    builder::{
        OperationEntry, READ_PARAMETERS, READ_REFUSALS, WRITE_PARAMETERS, WRITE_REFUSALS, describe, payload,
    },
    schemas::{NamedSchema, SchemaField, closed, integer, json_object, nullable, open, reference, text},
};
use crate::{body::fields::schema_of, cluster};
use concord_model::limits::Limits;
use concord_service::ALARMS;

const TAG: &str = "cluster";
const OPEN_TAG: &str = "open";

fn view() -> Value {
    json!({
        "cluster_id": "018f2d0c-0000-7000-8000-000000000000",
        "node_id": 1,
        "leader_id": 1,
        "term": 2612173,
        "revision": 40,
        "digest": "0123456789abcdef0123456789abcdef",
        "feature_level": 1,
        "members": [
            {
                "id": 1, "role": "leader", "api_addr": "10.0.0.1:8101", "peer_addr": "10.0.0.1:8201", "lag": 0,
                "reachable": true, "last_contact_ms": 0,
                "version": "1.0.0", "feature_level_max": 1,
                "memory_bytes": 120000000, "disk_free_bytes": 40000000000_u64, "disk_reserve_bytes": 134217728,
            },
        ],
        "alarms": [
            { "type": "clock", "node_id": 3, "message": "the clock of node 3 is 2851200 s ahead of the log's time" },
        ],
    })
}

fn member() -> Value {
    json!({ "id": 4, "api_addr": "10.0.0.4:8101", "peer_addr": "10.0.0.4:8201" })
}

fn usage() -> Value {
    let counts = json!({
        "requests": 7, "bytes_in": 0, "bytes_out": 2100, "busy_us": 350, "records_read": 7, "records_written": 0,
    });
    let with = |more: Value| {
        let mut row = counts.clone();
        row.as_object_mut()
            .into_iter()
            .for_each(|row| row.extend(more.as_object().cloned().unwrap_or_default()));
        row
    };
    json!({
        "node_id": 1,
        "counted_ms": 60000,
        "keys": [with(json!({ "key_id": "4hXbc0Yy2kQz", "name": "ci" }))],
        "other_keys": counts,
        "definitions": [with(json!({ "config_definition_key": "limits", "configs": 3, "stored_bytes": 900 }))],
        "other_definitions": counts,
    })
}

/// The entry of a change of the cluster.
fn change(id: &'static str, summary: &str, done: &str) -> OperationEntry {
    describe(TAG, id, summary)
        .parameters(WRITE_PARAMETERS)
        .success(200, done, payload("Cluster", view()), &[])
        .refusals(WRITE_REFUSALS)
}

/// The operations of this file.
pub(super) fn operations() -> Vec<OperationEntry> {
    let file = ObjectBuilder::new()
        .schema_type(Type::String)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary)))
        .build();
    let file = ContentBuilder::new().schema(Some(file)).build();
    let page = ContentBuilder::new().schema(Some(text())).build();
    let mut operations = vec![
        describe(TAG, "get_cluster", "Show the cluster as this node knows it")
            .success(200, "cluster found", payload("Cluster", view()), &[]),
        describe(TAG, "get_usage", "Show the access keys and the definitions that use this node most")
            .description(
                "The first hundred by each figure, since the node started. A node counts only the requests that it has \
                 received.",
            )
            .success(200, "usage found", payload("Usage", usage()), &[])
            .refusals(&[503]),
        describe(TAG, "get_metrics", "What this node measures of itself, for Prometheus")
            .response(
                200,
                "The page, in the format of OpenMetrics.",
                Some(("application/openmetrics-text", page)),
                &[],
            ),
        change("init_cluster", "Form the cluster", "cluster formed")
            .description(
                "Idempotent. The request is sent to one of the nodes that it names. 422 if one of them belongs to another \
                 cluster, 503 if one of them cannot be reached.",
            )
            .body("MembersInput", json!({ "members": [member()] })),
        describe(TAG, "get_backup", "Download a backup of the whole cluster")
            .parameters(READ_PARAMETERS)
            .response(
                200,
                "A file for `concord restore`; encrypted and signed where the settings of the node name recipients.",
                Some(("application/octet-stream", file)),
                &["Content-Disposition"],
            )
            .refusals(READ_REFUSALS),
        change("move_leadership", "Transfer leadership", "leadership moved")
            .body("MemberId", json!({ "id": 2 }))
            .refusals(&[409]),
        change("add_member", "Add a member as a learner, without a vote", "member added")
            .body("MemberInput", member())
            .success(201, "member added", payload("Cluster", view()), &["Location"])
            .refusals(&[409]),
        change("remove_member", "Remove a member", "member removed").refusals(&[404, 409]),
        change("move_member", "Give a member that has moved its new addresses", "member moved")
            .body("MemberAddresses", json!({ "api_addr": "10.0.0.3:8101", "peer_addr": "10.0.0.3:8201" }))
            .refusals(&[404, 409]),
        change("promote_member", "Make a learner a voter", "member promoted").refusals(&[404, 409]),
        change("replace_member", "Replace a member with a new one", "member replaced")
            .body("MemberInput", member())
            .success(201, "member replaced", payload("Cluster", view()), &["Location"])
            .refusals(&[404, 409]),
    ];
    operations.extend(open_operations());
    operations
}

fn probe(id: &'static str, summary: &str, message: &str) -> OperationEntry {
    describe(OPEN_TAG, id, summary).success(200, message, payload("Nothing", json!({})), &[])
}

/// The operations that need no key.
fn open_operations() -> Vec<OperationEntry> {
    let root = json!({ "service": "concord", "api": "/api/v1" });
    let live = "Liveness: the process answers, whatever state the cluster is in";
    let ready = "Readiness: the node is caught up with a live leader";
    let document = ContentBuilder::new().schema(Some(json_object())).build();
    vec![
        describe(OPEN_TAG, "root", "Name the service and the root of its interface").success(
            200,
            "concord",
            payload("Root", root),
            &[],
        ),
        probe("livez", live, "alive"),
        probe("health", live, "alive"),
        probe("readyz", ready, "ready").parameters(&["writes"]).refusals(&[422, 503]),
        probe("readiness_probe", ready, "ready").parameters(&["writes"]).refusals(&[422, 503]),
        describe(OPEN_TAG, "openapi", "This document").response(
            200,
            "The document, with the limits of this node.",
            Some(("application/json", document)),
            &[],
        ),
    ]
}

/// The bodies of its requests.
pub(super) fn requests(limits: &Limits) -> Vec<NamedSchema> {
    vec![
        ("MemberAddresses", schema_of(limits, cluster::member_addresses).into()),
        ("MemberId", schema_of(limits, cluster::member_id).into()),
        ("MemberInput", schema_of(limits, cluster::member).into()),
        ("MembersInput", schema_of(limits, cluster::members).into()),
        ("UsageCounts", usage_counts(Vec::new()).into()),
    ]
}

/// What is counted of a key or a definition, with further members.
fn usage_counts(more: Vec<SchemaField>) -> ObjectBuilder {
    let counts = ["requests", "bytes_in", "bytes_out", "busy_us", "records_read", "records_written"]
        .map(|name| (name, integer(0).into()));
    open(counts.into_iter().chain(more).collect(), Vec::new())
}

/// The use of a node.
fn usage_schema() -> ObjectBuilder {
    let no_key = nullable(Type::String).description(Some("null for the root key, and once it is revoked"));
    let unless_deleted = || nullable(Type::Integer).description(Some("null once the definition is deleted"));
    let keys = usage_counts(vec![("key_id", text().into()), ("name", no_key.into())]);
    let definitions = usage_counts(vec![
        ("config_definition_key", text().into()),
        ("configs", unless_deleted().into()),
        ("stored_bytes", unless_deleted().into()),
    ]);
    open(
        vec![
            ("node_id", integer(1).into()),
            ("counted_ms", integer(0).into()),
            ("keys", ArrayBuilder::new().items(keys).into()),
            ("other_keys", reference("UsageCounts")),
            ("definitions", ArrayBuilder::new().items(definitions).into()),
            ("other_definitions", reference("UsageCounts")),
        ],
        Vec::new(),
    )
}

/// The payloads of its answers.
pub(super) fn payloads() -> Vec<NamedSchema> {
    let lag = nullable(Type::Integer)
        .description(Some("log entries that the member lacks; known on the leader only"));
    let reachable = nullable(Type::Boolean).description(Some(
        "whether the member has answered the leader within the last 3 seconds; known on the leader only",
    ));
    let last_contact = nullable(Type::Integer).description(Some(
        "milliseconds since the member last answered the leader; known on the leader only",
    ));
    let version = nullable(Type::String).description(Some("null while the member has not told this node"));
    let level_max =
        nullable(Type::Integer).description(Some("the highest feature level that the member knows"));
    let amount = |about: &str| nullable(Type::Integer).description(Some(about));
    let memory =
        amount("bytes of its process in RAM; null while it has not told this node, or no longer answers");
    let free = amount("free bytes of the volume of its data directory; null as above");
    let reserve = amount("free bytes below which it refuses writes other than deletes; null as above");
    let level =
        integer(1).description(Some("what all members can work with; it rises when every member knows more"));
    let member = open(
        vec![
            ("id", integer(1).into()),
            ("role", text().enum_values(Some(["leader", "follower", "learner"])).into()),
            ("api_addr", text().into()),
            ("peer_addr", text().into()),
            ("lag", lag.into()),
            ("reachable", reachable.into()),
            ("last_contact_ms", last_contact.into()),
            ("version", version.into()),
            ("feature_level_max", level_max.into()),
            ("memory_bytes", memory.into()),
            ("disk_free_bytes", free.into()),
            ("disk_reserve_bytes", reserve.into()),
        ],
        Vec::new(),
    );
    let about =
        nullable(Type::Integer).description(Some("the member that it is about; null for the whole cluster"));
    let types = ALARMS.map(|kind| format!("`{kind}`")).join(", ");
    let alarm = open(
        vec![
            ("type", text().description(Some(format!("{types}; later versions may add others"))).into()),
            ("node_id", about.into()),
            ("message", text().into()),
        ],
        Vec::new(),
    );
    let data_key = text().pattern(Some("^[0-9a-f]{16}$"));
    let data_key = data_key.description(Some(
        "the id of the data key under which this node's data directory is encrypted; absent when it is not",
    ));
    let cluster = open(
        vec![
            ("cluster_id", nullable(Type::String).into()),
            ("node_id", integer(1).into()),
            ("leader_id", nullable(Type::Integer).into()),
            ("term", integer(0).into()),
            ("revision", integer(0).into()),
            ("digest", text().pattern(Some("^[0-9a-f]{32}$")).into()),
            ("members", ArrayBuilder::new().items(member).into()),
            ("feature_level", level.into()),
            ("alarms", ArrayBuilder::new().items(alarm).into()),
        ],
        vec![("data_key", data_key.into())],
    );
    let root = closed(vec![("service", text().into()), ("api", text().into())], Vec::new());
    vec![
        ("Cluster", cluster.into()),
        ("Root", root.into()),
        ("Usage", usage_schema().into()),
        ("Nothing", closed(Vec::new(), Vec::new()).into()),
    ]
}
