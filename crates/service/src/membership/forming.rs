//! Bootstraps a cluster, and gives a new node its identity.
//!
//! One node bootstraps. It asks every other member which cluster it belongs to. Then it writes its own identity, lets each
//! other member take one, starts consensus and initialises it with all members. Every step can be repeated: a bootstrap
//! that was interrupted is requested again, and continues with the cluster id that it finds.
//!
//! A node with `CONCORD_FORM` tries by itself until the cluster is bootstrapped. It may be a member that has lost its disk.
//! Such a member must not start under its old id, because it has lost its votes and acknowledged entries. So nothing is
//! written before every other member has said that it has no log. A member that is still reading its log does not say so.
//!
//! **Invariants**
//! 1. A node takes an identity once. If it already has another one than requested, it says so and changes nothing.
//! 2. No cluster is bootstrapped with a member of a cluster that is bootstrapped already.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::check_address;
use crate::{ClusterView, Principal, Refusal, membership::ClusterMembers};
use concord_consensus::Consensus;
use concord_model::{
    access_key::Verb,
    error::{Invalid, LocSegment, Violation},
    limits::{MEMBERS_MAX, NODE_ID_STEP_MAX},
};
use concord_net::{
    Member, NodeId, ReceiveError,
    codec::{decode, encode},
    identity::{FORMAT, Identity},
};

/// How long one member may take to respond, or to write its identity and open an empty directory.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a bootstrap waits for this node's own start, or for another bootstrap.
const OWN_START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a bootstrap waits for the first linearizable read.
const FIRST_READ_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a node with `CONCORD_FORM` tries.
const FORM_INTERVAL: Duration = Duration::from_secs(1);

/// A request to a node that joins. New variants go to the end.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum JoinRequest {
    /// Say which node this is, and which cluster it belongs to.
    Identify,
    /// Take this identity.
    TakeIdentity { cluster_id: Uuid, node_id: NodeId },
}

/// The response of a node that joins.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JoinResponse {
    pub(super) node_id: NodeId,
    pub(super) cluster_id: Option<Uuid>,
    initialized: bool,
    refused: Option<String>,
}

impl ClusterMembers {
    /// Bootstraps the cluster from this node: writes identities here and on every member, then initialises consensus. If it
    /// is called again with the same members, it returns the cluster as it is.
    ///
    /// # Errors
    /// When this node can't bootstrap a cluster of these members, or one of them can't be reached.
    pub fn init<'a>(
        self: &'a Arc<Self>,
        principal: &'a Principal,
        members: Vec<Member>,
    ) -> BoxFuture<'a, Result<ClusterView, Refusal>> {
        Box::pin(self.form_as(principal, members))
    }

    async fn form_as(
        self: &Arc<Self>,
        principal: &Principal,
        members: Vec<Member>,
    ) -> Result<ClusterView, Refusal> {
        principal.authorize(Verb::Cluster, None)?;
        check_members(&members, self.cx.node_id())?;
        let this = Arc::clone(self);
        // As a task of its own: it completes even if the client disconnects.
        let formed = tokio::spawn(async move { this.form(members).await }).await;
        formed.map_err(|error| Refusal::Internal(format!("the bootstrap ended early: {error}")))??;
        Ok(self.cluster_view())
    }

    /// Bootstraps the cluster of these members as soon as all of them respond, or returns when another node has done so. It
    /// tries as long as the node runs: a member may be started, or get its name, at any time.
    pub fn form_when_possible<'a>(self: &'a Arc<Self>, members: &'a [Member]) -> BoxFuture<'a, ()> {
        Box::pin(self.try_to_form(members))
    }

    async fn try_to_form(self: &Arc<Self>, members: &[Member]) {
        let mut last = None;
        loop {
            if let Some(consensus) = self.cx.consensus()
                && consensus.is_initialized().await
            {
                return;
            }
            let formed = match check_members(members, self.cx.node_id()) {
                Ok(()) => self.form(members.to_vec()).await,
                Err(invalid) => Err(invalid.into()),
            };
            let Err(refusal) = formed else { return };
            if last.as_ref() != Some(&refusal) {
                tracing::info!("the cluster is not bootstrapped yet: {}", reason_of(&refusal));
                last = Some(refusal);
            }
            sleep(FORM_INTERVAL).await;
        }
    }

    async fn form(self: &Arc<Self>, members: Vec<Member>) -> Result<(), Refusal> {
        // A node that has just started opens its directory first. This node holds no lock meanwhile that others wait for.
        let Ok(_forming) = timeout(OWN_START_TIMEOUT, self.forming.lock()).await else {
            return Err(Refusal::Unavailable(
                "this node is starting, or another bootstrap is in progress".into(),
            ));
        };
        let directory = &self.cx.options.directory;
        let stored = Identity::read(directory).map_err(Refusal::Internal)?;
        if let Some(consensus) = self.cx.consensus()
            && consensus.is_initialized().await
        {
            return check_same_members(consensus, &members);
        }
        let cluster_id = self.choose_cluster_id(stored.as_ref(), &members).await?;
        let identity =
            stored.clone().unwrap_or(Identity { cluster_id, node_id: self.cx.node_id(), format: FORMAT });
        if stored.is_none() {
            identity.write(directory).map_err(Refusal::Internal)?;
        }
        for member in members.iter().filter(|member| member.id != self.cx.node_id()) {
            let request = JoinRequest::TakeIdentity { cluster_id, node_id: member.id };
            if self.request_join(member, &request).await?.initialized {
                return Err(Refusal::Unavailable("another node is bootstrapping the cluster".into()));
            }
        }
        self.start_consensus(identity).await.map_err(|error| Refusal::Internal(error.to_string()))?;
        let consensus = self.cx.consensus_or_refusal()?;
        consensus.initialize(members).await.map_err(Refusal::Undecided)?;
        tracing::info!(cluster = %cluster_id, "bootstrapped the cluster {cluster_id}");
        // The response should show a working cluster. A cluster that takes longer to start is bootstrapped all the same.
        let deadline = Instant::now() + FIRST_READ_TIMEOUT;
        if let Err(refusal) = self.freshness.confirm_until(consensus, deadline).await {
            tracing::warn!("the cluster is bootstrapped, but serves no reads yet: {refusal:?}");
        }
        self.levels.await_first_feature_level(consensus, deadline).await;
        Ok(())
    }

    /// The cluster id for the bootstrap: that of an interrupted one, or a new one.
    async fn choose_cluster_id(
        self: &Arc<Self>,
        stored: Option<&Identity>,
        members: &[Member],
    ) -> Result<Uuid, Refusal> {
        let mut found = stored.map(|identity| (identity.cluster_id, self.cx.node_id()));
        for member in members.iter().filter(|member| member.id != self.cx.node_id()) {
            let response = self.request_join(member, &JoinRequest::Identify).await?;
            if response.node_id != member.id {
                return Err(invalid_members(format!(
                    "node {} answers at {}, not node {}",
                    response.node_id, member.peer_addr, member.id
                )));
            }
            if response.initialized && response.cluster_id == stored.map(|identity| identity.cluster_id) {
                return Err(Refusal::Unavailable("another node is bootstrapping the cluster".into()));
            }
            if response.initialized {
                let text = format!("node {} belongs to a cluster that is bootstrapped already", member.id);
                return Err(invalid_members(text));
            }
            match (response.cluster_id, found) {
                (Some(theirs), Some((ours, id))) if theirs != ours => {
                    let text = format!("the nodes {} and {id} belong to different clusters", member.id);
                    return Err(invalid_members(text));
                }
                (Some(theirs), _) => found = Some((theirs, member.id)),
                (None, _) => {}
            }
        }
        Ok(found.map_or_else(Uuid::new_v4, |(id, _)| id))
    }

    pub(super) async fn request_join(
        &self,
        member: &Member,
        request: &JoinRequest,
    ) -> Result<JoinResponse, Refusal> {
        let Member { id, peer_addr, .. } = member;
        let call = self.cx.peers().call_join(*id, peer_addr, encode(request), JOIN_TIMEOUT);
        let body =
            call.await.map_err(|error| Refusal::Unavailable(format!("node {id} at {peer_addr}: {error}")))?;
        let response: JoinResponse =
            decode(&body).map_err(|error| Refusal::Internal(format!("node {id} at {peer_addr}: {error}")))?;
        match response.refused {
            Some(text) => Err(invalid_members(format!("node {id} at {peer_addr}: {text}"))),
            None => Ok(response),
        }
    }

    /// Responds to a node that bootstraps a cluster, or adds this node to its cluster. The caller has checked the secret.
    ///
    /// # Errors
    /// When the body is not one of this version.
    pub fn answer_join(self: &Arc<Self>, body: Bytes) -> BoxFuture<'_, Result<Bytes, ReceiveError>> {
        Box::pin(self.join_by_request(body))
    }

    async fn join_by_request(self: &Arc<Self>, body: Bytes) -> Result<Bytes, ReceiveError> {
        let request: JoinRequest = decode(&body)?;
        let this = Arc::clone(self);
        let response = tokio::spawn(async move { this.join(request).await }).await;
        response
            .map(|response| encode(&response))
            .map_err(|error| ReceiveError::Failed(format!("joining ended early: {error}")))
    }

    async fn join(self: &Arc<Self>, request: JoinRequest) -> JoinResponse {
        let refused = match request {
            JoinRequest::Identify => self.still_starting(),
            JoinRequest::TakeIdentity { cluster_id, node_id } => {
                self.take_identity(cluster_id, node_id).await.err()
            }
        };
        if let Some(text) = &refused {
            tracing::warn!("rejected a request to join: {text}");
        }
        let initialized = match self.cx.consensus() {
            Some(consensus) => consensus.is_initialized().await,
            None => false,
        };
        let joined = self.cx.peers.me.get().map(|me| me.cluster_id);
        let cluster_id = joined.or_else(|| self.joining().map(|identity| identity.cluster_id));
        JoinResponse { node_id: self.cx.node_id(), cluster_id, initialized, refused }
    }

    /// The identity that this node has taken, if it has never had a log: it exited while it joined, or joins now.
    fn joining(&self) -> Option<Identity> {
        let directory = &self.cx.options.directory;
        let is_joining = Identity::is_joining(directory).unwrap_or(false);
        Identity::read(directory).ok().flatten().filter(|_| is_joining)
    }

    /// Why this node can't say yet whether it has a log. `None` if it can.
    fn still_starting(&self) -> Option<String> {
        // Read in this order: consensus is set after the log is open, and never unset.
        match Identity::read(&self.cx.options.directory) {
            Ok(None) => None,
            Ok(Some(_)) if self.joining().is_some() || self.cx.consensus().is_some() => None,
            Ok(Some(_)) => Some("it is starting".into()),
            Err(error) => Some(error),
        }
    }

    async fn take_identity(self: &Arc<Self>, cluster_id: Uuid, node_id: NodeId) -> Result<(), String> {
        if node_id != self.cx.node_id() {
            return Err(format!("this is node {}, not node {node_id}", self.cx.node_id()));
        }
        // Not `lock`: two nodes that bootstrap at the same time would wait for each other.
        let _forming =
            self.forming.try_lock().map_err(|_| "it is starting, or bootstraps a cluster itself")?;
        let directory = &self.cx.options.directory;
        let identity = match Identity::read(directory)? {
            Some(stored) if stored.cluster_id == cluster_id => stored,
            Some(stored) => return Err(format!("it belongs to the cluster {} already", stored.cluster_id)),
            None => {
                let identity = Identity { cluster_id, node_id, format: FORMAT };
                identity.write(directory)?;
                tracing::info!(cluster = %cluster_id, "joined the cluster {cluster_id}");
                identity
            }
        };
        self.start_consensus(identity).await.map_err(|error| error.to_string())
    }
}

/// The text of a rejection for the log.
fn reason_of(refusal: &Refusal) -> String {
    if let Refusal::Invalid(Invalid::Violations(violations)) = refusal {
        violations.iter().map(|violation| violation.msg.as_str()).collect::<Vec<_>>().join("; ")
    } else if let Refusal::Unavailable(text) | Refusal::Undecided(text) | Refusal::Internal(text) = refusal {
        text.clone()
    } else {
        format!("{refusal:?}")
    }
}

fn invalid_members(text: String) -> Refusal {
    Invalid::from(Violation::at(vec!["members".into()], text)).into()
}

fn check_same_members(consensus: &Consensus, requested: &[Member]) -> Result<(), Refusal> {
    let has: BTreeSet<NodeId> = consensus.status().members.iter().map(|status| status.member.id).collect();
    let requested: BTreeSet<NodeId> = requested.iter().map(|member| member.id).collect();
    if has == requested {
        return Ok(());
    }
    let text = format!("this node belongs to a cluster that is bootstrapped already, of the nodes {has:?}");
    Err(invalid_members(text))
}

/// Checks the members of a bootstrap.
fn check_members(members: &[Member], me: NodeId) -> Result<(), Invalid> {
    let mut violations = Vec::new();
    let mut ids = BTreeSet::new();
    let mut addresses = BTreeSet::new();
    for (member, place) in members.iter().zip(0..) {
        let loc =
            |name: &str| vec![LocSegment::from("members"), LocSegment::Index(place), LocSegment::from(name)];
        if !(1..=NODE_ID_STEP_MAX).contains(&member.id) || !ids.insert(member.id) {
            let text = format!(
                "a node id of a new cluster is an integer from 1 to {NODE_ID_STEP_MAX}, and is named once: later ids \
                 are higher"
            );
            violations.push(Violation::at(loc("id"), text));
        }
        for (name, address) in [("api_addr", &member.api_addr), ("peer_addr", &member.peer_addr)] {
            if let Err(text) = check_address(address) {
                violations.push(Violation::at(loc(name), text));
            } else if !addresses.insert(address) {
                let text = format!("the address `{address}` is named twice");
                violations.push(Violation::at(loc(name), text));
            }
        }
    }
    let mut add = |text: String| violations.push(Violation::at(vec!["members".into()], text));
    if !ids.contains(&me) {
        add(format!("the receiving node {me} is not among them"));
    }
    if members.len() > MEMBERS_MAX {
        add(format!("a cluster has at most {MEMBERS_MAX} members"));
    }
    if violations.is_empty() { Ok(()) } else { Err(Invalid::Violations(violations)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: NodeId) -> Member {
        Member { id, api_addr: format!("a:{}", 8100 + id), peer_addr: format!("a:{}", 8200 + id) }
    }

    #[test]
    fn a_bootstrap_needs_distinct_members_and_this_node() {
        let good = [member(1), member(2), member(3)];
        assert_eq!(check_members(&good, 2), Ok(()));
        let twice = [member(1), member(1)];
        let no_port = [Member { peer_addr: "a".into(), ..member(1) }];
        let too_high = [Member { id: NODE_ID_STEP_MAX + 1, ..member(1) }];
        for (members, me) in
            [(&good[..], 4), (&[], 1), (&twice, 1), (&no_port, 1), (&too_high, NODE_ID_STEP_MAX + 1)]
        {
            assert!(check_members(members, me).is_err(), "{members:?}");
        }
    }

    #[test]
    fn calls_for_joining_decode_to_what_was_encoded() {
        let request = JoinRequest::TakeIdentity { cluster_id: Uuid::from_u128(7), node_id: 3 };
        assert_eq!(decode::<JoinRequest>(&encode(&request)).unwrap(), request);
        let response =
            JoinResponse { node_id: 3, cluster_id: None, initialized: false, refused: Some("no".into()) };
        assert_eq!(decode::<JoinResponse>(&encode(&response)).unwrap(), response);
    }
}
