//! The cluster as this node knows it, its forming and its changes, and a file of all that it holds.

use std::future::{Ready, ready};

use axum::extract::{Path, State};
use serde_json::{Value, json};

use super::{
    body,
    extract::{Ask, Read},
    reply::{Problem, Reply},
};
use crate::{
    model::error::Violation,
    peer::NodeId,
    service::{Change, Changed, ClusterView, MemberView, Service},
};

/// Shows the cluster; no other node is asked, so that it is answered in any trouble.
pub(super) fn show(State(service): State<Service>) -> Ready<Reply> {
    let view = service.cluster();
    ready(Reply::done("cluster found", &data(&view)).at(view.revision))
}

/// Forms the cluster.
pub(super) async fn init(State(service): State<Service>, ask: Ask) -> Result<Reply, Problem> {
    let members = body::members(ask.real()?.json(&service)?)?;
    let view = service.init(members).await?;
    Ok(Reply::done("cluster formed", &data(&view)).at(view.revision))
}

/// Adds a member, without a vote.
pub(super) async fn add(State(service): State<Service>, ask: Ask) -> Result<Reply, Problem> {
    let member = body::member(ask.real()?.json(&service)?)?;
    Ok(changed("member added", &service.change(Change::Add(member)).await?))
}

/// Gives a member a vote. A body is of no interest.
pub(super) async fn promote(
    State(service): State<Service>,
    Path(id): Path<String>,
    ask: Ask,
) -> Result<Reply, Problem> {
    ask.real()?;
    Ok(changed("member promoted", &service.change(Change::Promote(number(&id)?)).await?))
}

/// Takes a member out.
pub(super) async fn remove(
    State(service): State<Service>,
    Path(id): Path<String>,
    ask: Ask,
) -> Result<Reply, Problem> {
    ask.real()?;
    Ok(changed("member removed", &service.change(Change::Remove(number(&id)?)).await?))
}

/// Puts a new member in the place of another.
pub(super) async fn replace(
    State(service): State<Service>,
    Path(id): Path<String>,
    ask: Ask,
) -> Result<Reply, Problem> {
    let new = body::member(ask.real()?.json(&service)?)?;
    let change = Change::Replace { old: number(&id)?, new };
    Ok(changed("member replaced", &service.change(change).await?))
}

/// Moves leadership.
pub(super) async fn lead(State(service): State<Service>, ask: Ask) -> Result<Reply, Problem> {
    let id = body::member_id(ask.real()?.json(&service)?)?;
    Ok(changed("leadership moved", &service.change(Change::Lead(id)).await?))
}

/// All that the cluster holds, as a file.
pub(super) async fn backup(State(service): State<Service>, read: Read) -> Result<Reply, Problem> {
    let (consistency, ()) = read.params.read(Ok(()))?;
    Ok(Reply::file(service.backup(consistency).await?))
}

/// The id of a member in a path.
fn number(text: &str) -> Result<NodeId, Problem> {
    let wrong = || Problem::violation(Violation::at(vec!["id".into()], "a node id is a number from 1"));
    text.parse().map_err(|_| wrong())
}

fn changed(message: &'static str, changed: &Changed) -> Reply {
    let (view, data) = (&changed.view, data(&changed.view));
    let reply = if changed.created {
        Reply::created(message, &data, "/api/v1/cluster")
    } else {
        Reply::done(message, &data)
    };
    reply.at(view.revision)
}

fn data(view: &ClusterView) -> String {
    json!({
        "cluster_id": view.cluster_id,
        "node_id": view.node_id,
        "leader_id": view.leader_id,
        "term": view.term,
        "revision": view.revision,
        "digest": format!("{:032x}", view.digest),
        "members": view.members.iter().map(member).collect::<Vec<_>>(),
    })
    .to_string()
}

fn member(member: &MemberView) -> Value {
    json!({
        "id": member.id,
        "role": member.role,
        "api_addr": member.api_addr,
        "peer_addr": member.peer_addr,
        "lag": member.lag,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_null() {
        let view = ClusterView {
            cluster_id: None,
            node_id: 1,
            leader_id: None,
            term: 2,
            revision: 3,
            digest: 255,
            members: vec![MemberView {
                id: 1,
                role: "follower",
                api_addr: "a:1".into(),
                peer_addr: "a:2".into(),
                lag: None,
            }],
        };
        let expected = r#"{"cluster_id":null,"node_id":1,"leader_id":null,"term":2,"revision":3,"digest":"000000000000000000000000000000ff","members":[{"id":1,"role":"follower","api_addr":"a:1","peer_addr":"a:2","lag":null}]}"#;
        assert_eq!(data(&view), expected);
    }
}
