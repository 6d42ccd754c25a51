//! The cluster as this node knows it, and its forming.

use std::future::{Ready, ready};

use axum::extract::State;
use serde_json::{Value, json};

use super::{
    extract::Ask,
    intake,
    reply::{Problem, Reply},
};
use crate::service::{ClusterView, MemberView, Service};

/// Shows the cluster; no other node is asked, so that it is answered in any trouble.
pub(super) fn show(State(service): State<Service>) -> Ready<Reply> {
    let view = service.cluster();
    ready(Reply::done("cluster found", &data(&view)).at(view.revision))
}

/// Forms the cluster.
pub(super) async fn init(State(service): State<Service>, ask: Ask) -> Result<Reply, Problem> {
    let members = intake::members(ask.json(&service)?)?;
    let view = service.init(members).await?;
    Ok(Reply::done("cluster formed", &data(&view)).at(view.revision))
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
