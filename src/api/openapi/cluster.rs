//! The cluster: its view, its members, its backup.

use serde_json::{Value, json};
use utoipa::openapi::{
    HttpMethod::{Delete, Get, Post},
    KnownFormat, ObjectBuilder, SchemaFormat, Type,
    content::ContentBuilder,
};

use super::builder::{ASKED, Described, FRESHNESS, READ, WRITE, describe};

const TAG: &str = "cluster";
const MEMBERS: &str = "/api/v1/cluster/members";

fn view() -> Value {
    json!({
        "cluster_id": "018f2d0c-0000-7000-8000-000000000000",
        "node_id": 1,
        "leader_id": 1,
        "term": 2,
        "revision": 40,
        "digest": "0123456789abcdef0123456789abcdef",
        "members": [
            { "id": 1, "role": "leader", "api_addr": "10.0.0.1:8101", "peer_addr": "10.0.0.1:8201", "lag": 0 },
        ],
    })
}

fn member() -> Value {
    json!({ "id": 4, "api_addr": "10.0.0.4:8101", "peer_addr": "10.0.0.4:8201" })
}

/// A change of the members.
fn change(path: &'static str, id: &str, summary: &str, done: &str) -> Described {
    describe(Post, path, TAG, id, summary)
        .takes(ASKED)
        .answers(200, done, ("Cluster", view()), &[])
        .refuses(WRITE)
        .refuses(&[404, 409])
}

/// Everything about the cluster.
pub(super) fn all() -> Vec<Described> {
    let file = ObjectBuilder::new()
        .schema_type(Type::String)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary)))
        .build();
    let file = ContentBuilder::new().schema(Some(file)).build();
    vec![
        describe(Get, "/api/v1/cluster", TAG, "get_cluster", "Show the cluster as this node knows it")
            .answers(200, "cluster found", ("Cluster", view()), &[]),
        change("/api/v1/cluster/init", "init_cluster", "Form the cluster", "cluster formed")
            .about("Idempotent; asked of one of the named nodes.")
            .body("NewMembers", json!({ "members": [member()] })),
        describe(Get, "/api/v1/cluster/backup", TAG, "get_backup", "Download all that the cluster holds")
            .takes(FRESHNESS)
            .responds(
                200,
                "A file for `concord restore`.",
                Some(("application/octet-stream", file)),
                &["Content-Disposition"],
            )
            .refuses(READ),
        change("/api/v1/cluster/leader", "move_leadership", "Move leadership", "leadership moved")
            .body("MemberId", json!({ "id": 2 })),
        change(MEMBERS, "add_member", "Add a member, without a vote", "member added")
            .body("NewMember", member())
            .answers(201, "member added", ("Cluster", view()), &["Location"]),
        describe(Delete, "/api/v1/cluster/members/{id}", TAG, "remove_member", "Take a member out")
            .takes(ASKED)
            .answers(200, "member removed", ("Cluster", view()), &[])
            .refuses(WRITE)
            .refuses(&[404, 409]),
        change(
            "/api/v1/cluster/members/{id}/promote",
            "promote_member",
            "Give a member a vote",
            "member promoted",
        ),
        change(
            "/api/v1/cluster/members/{id}/replace",
            "replace_member",
            "Put a new member in the place of another",
            "member replaced",
        )
        .body("NewMember", member())
        .answers(201, "member replaced", ("Cluster", view()), &["Location"]),
    ]
}
