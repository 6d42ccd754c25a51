//! Pages of the audit logs of all members, each read on the disk of its node.
//!
//! A node answers for itself, and fetches the page of another member. So a client that reaches one node sees the logs of
//! all, also where it has one address for the whole cluster.
//!
//! **Invariant:** the page of a member that does not respond is an error, never an empty page.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    Principal, Refusal,
    audit::{AuditPage, AuditQuery},
    context::Context,
};
use concord_consensus::Consensus;
use concord_model::{
    access_key::Verb,
    error::{Invalid, Violation},
};
use concord_net::{
    Member, NodeId, ReceiveError,
    call::Call,
    client::Lane,
    codec::{decode, encode},
};

/// How long a member may take to respond: it may wait for its disk first.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(5);

/// The response of a member. Sent between nodes: new variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum AuditPageResponse {
    Page(AuditPage),
    /// The member has no audit log.
    Off,
    /// The member can't read its log, for this reason.
    Unavailable(String),
}

/// A page of the log of one member.
#[derive(Debug)]
pub struct MemberAuditPage {
    /// The lines.
    pub page: AuditPage,
    /// The node whose log it is of.
    pub node: NodeId,
    /// The nodes that have a log: the members.
    pub nodes: Vec<NodeId>,
}

/// Reads the audit logs of the members.
#[derive(Debug)]
pub struct AuditReader {
    pub(crate) cx: Arc<Context>,
}

impl AuditReader {
    /// A page of the log of this node, or of another member.
    ///
    /// # Errors
    /// When the principal lacks the permission, the node is no member or does not respond, or has no log.
    pub async fn page(
        &self,
        principal: &Principal,
        node: Option<NodeId>,
        query: AuditQuery,
    ) -> Result<MemberAuditPage, Refusal> {
        principal.authorize(Verb::Audit, None)?;
        let own = self.cx.node_id();
        let status = self.cx.consensus().map(Consensus::status);
        let members: Vec<Member> =
            status.into_iter().flat_map(|status| status.members).map(|member| member.member).collect();
        let mut nodes: Vec<NodeId> = members.iter().map(|member| member.id).chain([own]).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let node = node.unwrap_or(own);
        let page = if node == own {
            self.cx.audit.page(principal, query).await?
        } else {
            let member = members.iter().find(|member| member.id == node).ok_or_else(|| {
                let text = format!("node {node} is not a member");
                Invalid::from(Violation::at(vec!["query".into(), "node".into()], text))
            })?;
            self.fetch(member, &query).await?
        };
        Ok(MemberAuditPage { page, node, nodes })
    }

    async fn fetch(&self, member: &Member, query: &AuditQuery) -> Result<AuditPage, Refusal> {
        let peers = self.cx.peers();
        let unavailable = |why: &dyn std::fmt::Display| {
            Refusal::Unavailable(format!("the audit log of node {} can't be read: {why}", member.id))
        };
        let body = encode(query);
        let call = peers.call(Lane::Forward, member.id, &member.peer_addr, Call::Audit, body, MEMBER_TIMEOUT);
        let answer = call.await.map_err(|error| unavailable(&error))?;
        match decode(&answer).map_err(|error: ReceiveError| unavailable(&error))? {
            AuditPageResponse::Page(page) => Ok(page),
            AuditPageResponse::Off => Err(Refusal::AuditOff),
            AuditPageResponse::Unavailable(why) => Err(unavailable(&why)),
        }
    }

    /// Responds to another node's request to this node's log.
    ///
    /// # Errors
    /// When the body is not one of this version. Everything else is a response.
    pub async fn answer_audit(&self, body: Bytes) -> Result<Bytes, ReceiveError> {
        let query: AuditQuery = decode(&body)?;
        let response = match self.cx.audit.read_page(query).await {
            Ok(page) => AuditPageResponse::Page(page),
            Err(Refusal::AuditOff) => AuditPageResponse::Off,
            Err(error) => AuditPageResponse::Unavailable(format!("{error:?}")),
        };
        Ok(encode(&response))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::time::Timestamp;

    #[test]
    fn requests_and_responses_decode_to_what_was_encoded() {
        let query = AuditQuery {
            after: Some(3),
            limit: 100,
            since: Some(Timestamp(7)),
            key: Some("root".into()),
            ..AuditQuery::default()
        };
        assert_eq!(decode::<AuditQuery>(&encode(&query)).unwrap(), query);
        let page = AuditPage { lines: vec!["{}".into()], next: Some(1), head: Some((2, "00".into())) };
        for response in [
            AuditPageResponse::Page(page),
            AuditPageResponse::Off,
            AuditPageResponse::Unavailable("a disk".into()),
        ] {
            assert_eq!(decode::<AuditPageResponse>(&encode(&response)).unwrap(), response);
        }
    }
}
