//! The cluster: its status as this node knows it, its formation, changes of its members, and its backup; the probes,
//! and the root path.
//!
//! **Invariants:** the status is answered from this node alone, so that it is available whatever state the cluster is
//! in. Liveness does not depend on the cluster: restarting a node that has no quorum would not help it. What needs no
//! key reveals nothing of the data.

use std::future::{Ready, ready as done};

use serde_json::{Value, json};
use utoipa::openapi::ArrayBuilder;

use super::{
    Api,
    body::fields::{self, BodyFields, FieldType},
    endpoints::OpenCall,
    extract::{BodyRequest, QueryParams, ReadRequest},
    openapi::schemas::{integer, reference, text},
    reply::{Problem, Reply},
};
use concord_model::error::Violation;
use concord_net::{Member, NodeId};
use concord_service::{
    Alarm, Changed, ClusterView, MemberChange, MemberView, Refusal, Service,
    usage::{UsageCounts, UsageView},
};

/// Names the service and the root of its interface.
pub(super) fn root(_: &Api, _: &OpenCall) -> Reply {
    Reply::ok("concord", r#"{"service":"concord","api":"/api/v1"}"#)
}

/// Liveness: the process answers.
pub(super) fn live(_: &Api, _: &OpenCall) -> Reply {
    Reply::ok("alive", "{}")
}

/// Readiness: the node is caught up with a live leader; or the reason why it is not. With `writes=true` it also takes writes
/// that need space.
pub(super) fn ready(api: &Api, call: &OpenCall) -> Result<Reply, Problem> {
    let members = &api.service.members;
    let for_writes = QueryParams::from_uri(&call.parts.uri).flag("writes")?;
    let ready = if for_writes { members.ready_for_writes() } else { members.ready() };
    ready.map(|()| Reply::ok("ready", "{}")).map_err(|reason| Refusal::Unavailable(reason).into())
}

/// Shows the cluster as this node knows it; asks no other node.
pub(super) fn show(service: Service, request: ReadRequest) -> Ready<Result<Reply, Problem>> {
    let shown = service.members.cluster(&request.principal);
    done(
        shown
            .map_err(Problem::from)
            .map(|view| Reply::ok("cluster found", &view_json(&view)).state_revision(view.revision)),
    )
}

/// Shows who uses this node, and which definitions.
pub(super) async fn usage(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    Ok(Reply::ok("usage found", &usage_json(&service.usage(&request.principal).await?)))
}

fn usage_json(view: &UsageView) -> String {
    let keys =
        view.keys.iter().map(|one| usage_row(json!({ "key_id": one.id, "name": one.name }), &one.counts));
    let definitions = view.definitions.iter().map(|one| {
        let row = json!({
            "config_definition_key": one.key, "configs": one.configs, "stored_bytes": one.stored_bytes,
        });
        usage_row(row, &one.counts)
    });
    json!({
        "node_id": view.node_id,
        "counted_ms": u64::try_from(view.counted_for.as_millis()).unwrap_or(u64::MAX),
        "keys": keys.collect::<Vec<_>>(),
        "other_keys": usage_row(json!({}), &view.other_keys),
        "definitions": definitions.collect::<Vec<_>>(),
        "other_definitions": usage_row(json!({}), &view.other_definitions),
    })
    .to_string()
}

/// A row with its figures.
fn usage_row(mut row: Value, counts: &UsageCounts) -> Value {
    row["requests"] = counts.requests.into();
    row["bytes_in"] = counts.bytes_in.into();
    row["bytes_out"] = counts.bytes_out.into();
    row["busy_us"] = (counts.busy_ns / 1000).into();
    row["records_read"] = counts.records_read.into();
    row["records_written"] = counts.records_written.into();
    row
}

/// The body that forms a cluster.
pub(super) fn members(fields: &mut BodyFields) -> Vec<Member> {
    const MEMBERS: FieldType<Vec<Member>> = FieldType {
        read: |value, fields| fields.list(value, |item, fields| fields.object(item, member)),
        schema: |_| ArrayBuilder::new().items(reference("MemberInput")).min_items(Some(1)).into(),
    };
    fields.required("members", &MEMBERS)
}

/// The body that names a new member.
pub(super) fn member(fields: &mut BodyFields) -> Member {
    const NEW_ID: FieldType<NodeId> = FieldType {
        read: fields::integer,
        schema: |_| integer(1).description(Some("an id that no node of the cluster has ever had")).into(),
    };
    Member {
        id: fields.required("id", &NEW_ID),
        api_addr: fields.required("api_addr", &ADDRESS),
        peer_addr: fields.required("peer_addr", &ADDRESS),
    }
}

const ADDRESS: FieldType<String> =
    FieldType { read: fields::string, schema: |_| text().examples([json!("10.0.0.4:8101")]).into() };

/// The body that names the addresses of a member.
pub(super) fn member_addresses(fields: &mut BodyFields) -> (String, String) {
    (fields.required("api_addr", &ADDRESS), fields.required("peer_addr", &ADDRESS))
}

/// The body that names a member by its id.
pub(super) fn member_id(fields: &mut BodyFields) -> NodeId {
    const ID: FieldType<NodeId> = FieldType { read: fields::integer, schema: |_| integer(1).into() };
    fields.required("id", &ID)
}

/// Forms the cluster.
pub(super) async fn init(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    let members = request.read(&service, members).await?;
    let view = service.members.init(&request.caller.principal, members).await?;
    Ok(Reply::ok("cluster formed", &view_json(&view)).state_revision(view.revision))
}

/// Adds a learner.
pub(super) async fn add(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    let change = MemberChange::Add(request.read(&service, member).await?);
    Ok(change_reply("member added", &service.members.change(&request.caller.principal, change).await?))
}

/// Makes a learner a voter.
pub(super) async fn promote(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    let change = MemberChange::Promote(node_id(&request.name)?);
    Ok(change_reply("member promoted", &service.members.change(&request.caller.principal, change).await?))
}

/// Removes a member.
pub(super) async fn remove(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    let change = MemberChange::Remove(node_id(&request.name)?);
    Ok(change_reply("member removed", &service.members.change(&request.caller.principal, change).await?))
}

/// Gives a member other addresses.
pub(super) async fn move_member(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let (api_addr, peer_addr) = request.read(&service, member_addresses).await?;
    let member = Member { id: node_id(&request.name)?, api_addr, peer_addr };
    let change = MemberChange::Move { member, dry_run: request.caller.dry_run };
    Ok(change_reply("member moved", &service.members.change(&request.caller.principal, change).await?))
}

/// Replaces a member with a new one.
pub(super) async fn replace(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    let new = request.read(&service, member).await?;
    let change = MemberChange::Replace { old: node_id(&request.name)?, new };
    Ok(change_reply("member replaced", &service.members.change(&request.caller.principal, change).await?))
}

/// Transfers leadership.
pub(super) async fn transfer_leadership(service: Service, request: BodyRequest) -> Result<Reply, Problem> {
    let request = request.refuse_dry_run()?;
    let change = MemberChange::Lead(request.read(&service, member_id).await?);
    Ok(change_reply("leadership moved", &service.members.change(&request.caller.principal, change).await?))
}

/// Streams a backup of the whole cluster.
pub(super) async fn backup(service: Service, request: ReadRequest) -> Result<Reply, Problem> {
    let (consistency, ()) = request.params.with_consistency(Ok(()))?;
    Ok(Reply::backup(service.backups.backup(&request.principal, consistency).await?))
}

/// The id of a member in a path.
pub(super) fn node_id(text: &str) -> Result<NodeId, Problem> {
    let refused = || Problem::violation(Violation::at(vec!["id".into()], "a node id is a positive integer"));
    text.parse().map_err(|_| refused())
}

fn change_reply(message: &'static str, changed: &Changed) -> Reply {
    let (view, data) = (&changed.view, view_json(&changed.view));
    let reply = if changed.created {
        Reply::created(message, &data, "/api/v1/cluster")
    } else {
        Reply::ok(message, &data)
    };
    reply.state_revision(view.revision)
}

fn view_json(view: &ClusterView) -> String {
    let mut shown = json!({
        "cluster_id": view.cluster_id,
        "node_id": view.node_id,
        "leader_id": view.leader_id,
        "term": view.term,
        "revision": view.revision,
        "digest": format!("{:032x}", view.digest),
        "feature_level": view.feature_level,
        "members": view.members.iter().map(member_json).collect::<Vec<_>>(),
        "alarms": view.alarms.iter().map(alarm_json).collect::<Vec<_>>(),
    });
    if let Some(data_key) = &view.data_key {
        shown["data_key"] = json!(data_key);
    }
    shown.to_string()
}

fn member_json(member: &MemberView) -> Value {
    let resources = member.resources.as_ref();
    json!({
        "id": member.id,
        "role": member.role,
        "api_addr": member.api_addr,
        "peer_addr": member.peer_addr,
        "lag": member.lag,
        "reachable": member.contact.map(|(is_reachable, _)| is_reachable),
        "last_contact_ms": member.contact.map(|(_, ms)| ms),
        "version": member.version,
        "feature_level_max": member.feature_level_max,
        "memory_bytes": resources.and_then(|resources| resources.memory_bytes),
        "disk_free_bytes": resources.and_then(|resources| resources.disk_free_bytes),
        "disk_reserve_bytes": resources.map(|resources| resources.disk_reserve_bytes),
    })
}

fn alarm_json(alarm: &Alarm) -> Value {
    json!({ "type": alarm.kind, "node_id": alarm.node_id, "message": alarm.message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_value_is_null() {
        let view = ClusterView {
            cluster_id: None,
            node_id: 1,
            leader_id: None,
            term: 2,
            revision: 3,
            digest: 255,
            feature_level: 2,
            data_key: None,
            members: vec![MemberView {
                id: 1,
                role: "follower",
                api_addr: "a:1".into(),
                peer_addr: "a:2".into(),
                lag: None,
                contact: None,
                version: None,
                feature_level_max: Some(2),
                resources: None,
            }],
            alarms: vec![Alarm { kind: "log_time", node_id: None, message: "m".into() }],
        };
        let expected = r#"{"cluster_id":null,"node_id":1,"leader_id":null,"term":2,"revision":3,"digest":"000000000000000000000000000000ff","feature_level":2,"members":[{"id":1,"role":"follower","api_addr":"a:1","peer_addr":"a:2","lag":null,"reachable":null,"last_contact_ms":null,"version":null,"feature_level_max":2,"memory_bytes":null,"disk_free_bytes":null,"disk_reserve_bytes":null}],"alarms":[{"type":"log_time","node_id":null,"message":"m"}]}"#;
        assert_eq!(view_json(&view), expected);
        let encrypted = ClusterView { data_key: Some("00ff".into()), ..view };
        assert!(view_json(&encrypted).ends_with(r#","data_key":"00ff"}"#));
    }
}
