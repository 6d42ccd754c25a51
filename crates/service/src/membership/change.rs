//! Takes changes of the members and of the leader, on any node.
//!
//! The receiving node forwards a change to the leader, which makes one change at a time (`steps`). A change is idempotent:
//! if it is requested again, completed steps are skipped, and interrupted ones resume.
//!
//! **Invariant:** a change is answered with *unavailable* or *conflict* only if no member was changed, not even in part. A
//! change that is incomplete at its deadline is *undecided*, and the text says which steps were made.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout};

use super::{
    check_address,
    steps::{MembersAtStart, MembershipChange, conflict},
};
use crate::{
    forward::{
        OLD_LEADER_TIMEOUT,
        wire::{named, principal},
    },
    membership::ClusterMembers,
    request::{ClusterView, Principal, Refusal},
    retry::{Attempt, AttemptError, Leader, OnUnknown, Retry, confirm_leadership},
};
use concord_consensus::{ChangeError, Consensus};
use concord_model::{
    access_key::Verb,
    error::{Invalid, LocSegment, Violation},
    limits::{MEMBER_CHANGE_TIMEOUT, NODE_ID_MAX},
    record::Revision,
};
use concord_net::{
    Member, NodeId, ReceiveError,
    call::Call,
    client::Lane,
    codec::{decode, encode},
};

/// The part of [`MEMBER_CHANGE_TIMEOUT`] that the leader leaves for its response to arrive.
const RESPONSE_TIME: Duration = Duration::from_millis(500);
/// How long a change waits for the previous one, which may be the remainder of the same change by a lost leader.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a leader may take to confirm that it leads.
const LEADERSHIP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the receiving node waits until it has applied the change.
const APPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// A change of the members or the leader. Sent between nodes: new variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberChange {
    /// Add a member without a vote.
    Add(Member),
    /// Give a member a vote.
    Promote(NodeId),
    /// Remove a member.
    Remove(NodeId),
    /// Replace a member by a new one.
    Replace {
        /// The member to remove. It may be dead.
        old: NodeId,
        /// The member to add.
        new: Member,
    },
    /// Transfer leadership to a member.
    Lead(NodeId),
    /// Give a member other addresses.
    Move {
        /// The member with its new addresses.
        member: Member,
        /// Whether it is only checked.
        dry_run: bool,
    },
}

/// A change, and in whose name it is made.
#[derive(Debug, Clone)]
struct RequestedChange {
    principal: Principal,
    change: MemberChange,
}

/// A change that was made.
#[derive(Debug, Clone)]
pub struct Changed {
    /// Whether a member is new.
    pub created: bool,
    /// The cluster afterwards, as this node knows it.
    pub view: ClusterView,
}

/// A change that is forwarded to the leader.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ForwardedChange {
    change: MemberChange,
    remaining_ms: u64,
}

/// The body of the peer RPC: the change, and in whose name it is made.
fn encode_forwarded(change: &ForwardedChange, principal: &Principal) -> Bytes {
    encode(&(change, named(principal)))
}

fn decode_forwarded(body: &[u8]) -> Result<(ForwardedChange, Principal), ReceiveError> {
    let (change, name): (ForwardedChange, String) = decode(body)?;
    Ok((change, principal(&name)?))
}

/// A change that the leader made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ChangeMade {
    /// Whether a member is new.
    pub(super) created: bool,
    /// The revision of the entry that made the change.
    pub(super) revision: Revision,
}

impl From<ChangeError> for AttemptError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::NotYet(text) => Self::Retry(text),
            ChangeError::Refused(text) => conflict(text),
            ChangeError::Undecided(text) => Self::Unknown(text),
            ChangeError::Begun(text) => Self::Begun(text),
        }
    }
}

impl ClusterMembers {
    /// Makes a change, whichever node leads.
    ///
    /// # Errors
    /// Why the change was rejected; see [`Refusal`].
    pub fn change<'a>(
        self: &'a Arc<Self>,
        principal: &'a Principal,
        change: MemberChange,
    ) -> BoxFuture<'a, Result<Changed, Refusal>> {
        Box::pin(self.change_anywhere(principal, change))
    }

    async fn change_anywhere(
        self: &Arc<Self>,
        principal: &Principal,
        change: MemberChange,
    ) -> Result<Changed, Refusal> {
        principal.authorize(Verb::Cluster, None)?;
        check(&change)?;
        let requested = RequestedChange { principal: principal.clone(), change };
        let consensus = self.cx.consensus_or_refusal()?;
        self.expect_quorum(consensus, self.cx.known_leader(consensus).ok().as_ref()).await?;
        let deadline = Instant::now() + MEMBER_CHANGE_TIMEOUT;
        let retry = Retry::until(deadline, OnUnknown::Stop, "no leader took the change in time");
        let attempt = async |deadline| match self.cx.known_leader(consensus)? {
            Leader::ThisNode => self.change_as_leader(requested.clone(), deadline).await,
            Leader::Other(leader) => self.forward_change(consensus, &requested, &leader, deadline).await,
        };
        let ChangeMade { created, revision } = retry.run(consensus, attempt).await?;
        // A removed node never applies the change. It shows the cluster as it knows it.
        let _timed_out = timeout(APPLY_TIMEOUT, consensus.wait_applied(revision)).await.is_err();
        Ok(Changed { created, view: self.cluster_view() })
    }

    async fn forward_change(
        self: &Arc<Self>,
        consensus: &Consensus,
        RequestedChange { principal, change }: &RequestedChange,
        leader: &Member,
        deadline: Instant,
    ) -> Attempt<ChangeMade> {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let remaining_ms = u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX);
        let forwarded = ForwardedChange { change: change.clone(), remaining_ms };
        let body = encode_forwarded(&forwarded, principal);
        let call =
            self.cx.peers().call(Lane::Forward, leader.id, &leader.peer_addr, Call::Change, body, remaining);
        let leader_lost = async {
            consensus.leader_changed().await;
            sleep(OLD_LEADER_TIMEOUT).await;
        };
        let response = tokio::select! {
            response = call => response,
            () = leader_lost => {
                return Err(AttemptError::Unknown("the leader changed while the change was in progress".into()));
            }
        };
        match response {
            Ok(body) => decode::<Attempt<ChangeMade>>(&body).unwrap_or_else(|error| {
                Err(AttemptError::Unknown(format!("the leader's response is invalid: {error}")))
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a change that another node forwarded.
    ///
    /// # Errors
    /// When the body is not one of this version. Everything else is a response.
    pub fn answer_change(self: &Arc<Self>, body: Bytes) -> BoxFuture<'_, Result<Bytes, ReceiveError>> {
        Box::pin(self.change_by_request(body))
    }

    async fn change_by_request(self: &Arc<Self>, body: Bytes) -> Result<Bytes, ReceiveError> {
        let (ForwardedChange { change, remaining_ms }, principal) = decode_forwarded(&body)?;
        let time =
            Duration::from_millis(remaining_ms).saturating_sub(RESPONSE_TIME).min(MEMBER_CHANGE_TIMEOUT);
        Ok(encode(&self.change_as_leader(RequestedChange { principal, change }, Instant::now() + time).await))
    }

    /// Makes a change if this node leads. It runs as a task of its own, so that it completes even if the client
    /// disconnects.
    async fn change_as_leader(
        self: &Arc<Self>,
        RequestedChange { principal, change }: RequestedChange,
        deadline: Instant,
    ) -> Attempt<ChangeMade> {
        let this = Arc::clone(self);
        let task = tokio::spawn(async move {
            let Some(consensus) = this.cx.consensus() else {
                return Err(AttemptError::Retry(this.cx.absence()));
            };
            if !this.cx.leads(consensus) {
                return Err(AttemptError::Retry(format!("node {} does not lead", this.cx.node_id())));
            }
            let Ok(_one_at_a_time) = timeout(LOCK_TIMEOUT, this.cx.changing.lock()).await else {
                if consensus.is_joint() {
                    // This may be the same change: a lost leader left it incomplete, and this node is completing it.
                    return Err(AttemptError::Retry("a change of the members is being completed".into()));
                }
                return Err(conflict("another change of the cluster is in progress"));
            };
            this.expect_quorum(consensus, None).await?;
            confirm_leadership(consensus, Instant::now() + LEADERSHIP_TIMEOUT).await?;
            // Judged again where it is decided: the key may have been revoked on the way.
            this.authentication.current(&principal)?.authorize(Verb::Cluster, None)?;
            if consensus.is_joint() {
                // The change of a lost leader is completed first: the requested change may be its remainder.
                consensus.complete_change().await?;
            }
            let before = MembersAtStart::of(consensus);
            let steps = MembershipChange { members: &this, consensus, deadline, before };
            let result = steps.make(&change).await;
            match &result {
                Ok(made) => tracing::info!(?change, revision = made.revision, "changed the cluster"),
                Err(not_made) => tracing::warn!(?change, ?not_made, "the cluster was not changed"),
            }
            result
        });
        task.await.unwrap_or_else(|error| Err(AttemptError::Unknown(format!("the change ended: {error}"))))
    }

    /// On the leader: completes an incomplete change of a lost leader, as a task of its own.
    pub(super) fn complete_change(self: &Arc<Self>, consensus: &Consensus) {
        if !consensus.is_joint() || !self.cx.leads(consensus) {
            return;
        }
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let Some(consensus) = this.cx.consensus() else { return };
            // If the lock is held, the change is this node's own and continues by itself.
            let Ok(_one_at_a_time) = this.cx.changing.try_lock() else { return };
            if !consensus.is_joint() {
                return;
            }
            match consensus.complete_change().await {
                Ok(revision) => tracing::info!(revision, "completed the change of members of a lost leader"),
                Err(error) => {
                    tracing::warn!(?error, "could not complete the change of members of a lost leader");
                }
            }
        });
    }
}

/// Checks what can be checked without a state.
fn check(change: &MemberChange) -> Result<(), Invalid> {
    let (MemberChange::Add(member)
    | MemberChange::Replace { new: member, .. }
    | MemberChange::Move { member, .. }) = change
    else {
        return Ok(());
    };
    let mut violations = Vec::new();
    let mut add =
        |name: &str, text: String| violations.push(Violation::at(vec![LocSegment::from(name)], text));
    if !(1..=NODE_ID_MAX).contains(&member.id) {
        add("id", format!("a node id is an integer from 1 to {NODE_ID_MAX}"));
    }
    for (name, address) in [("api_addr", &member.api_addr), ("peer_addr", &member.peer_addr)] {
        if let Err(text) = check_address(address) {
            add(name, text);
        }
    }
    if member.api_addr == member.peer_addr {
        add("peer_addr", "`api_addr` and `peer_addr` must differ".into());
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
    fn a_new_member_has_an_id_and_two_addresses() {
        assert_eq!(check(&MemberChange::Add(member(4))), Ok(()));
        assert_eq!(check(&MemberChange::Remove(0)), Ok(()));
        let same = Member { peer_addr: "a:8104".into(), ..member(4) };
        let no_port = Member { api_addr: "a".into(), ..member(4) };
        let too_high = Member { id: NODE_ID_MAX + 1, ..member(4) };
        for wrong in [member(0), same, no_port, too_high] {
            assert!(check(&MemberChange::Add(wrong.clone())).is_err(), "{wrong:?}");
            assert!(
                check(&MemberChange::Move { member: wrong.clone(), dry_run: true }).is_err(),
                "{wrong:?}"
            );
            assert!(check(&MemberChange::Replace { old: 1, new: wrong }).is_err());
        }
    }

    #[test]
    fn calls_for_changes_decode_to_what_was_encoded() {
        let replace = MemberChange::Replace { old: 1, new: member(4) };
        for change in [
            MemberChange::Add(member(4)),
            MemberChange::Promote(4),
            MemberChange::Remove(4),
            replace,
            MemberChange::Lead(2),
            MemberChange::Move { member: member(3), dry_run: true },
        ] {
            let forwarded = ForwardedChange { change, remaining_ms: 9 };
            let body = encode_forwarded(&forwarded, &Principal::root());
            assert_eq!(decode_forwarded(&body).unwrap(), (forwarded, Principal::root()));
        }
        let forwarded = ForwardedChange { change: MemberChange::Lead(2), remaining_ms: 9 };
        let body = encode(&(&forwarded, "Abcdefghijkl.7"));
        let (received, principal) = decode_forwarded(&body).unwrap();
        assert_eq!((received, principal.is_root()), (forwarded, false));
        assert!(principal.authorize(Verb::Cluster, None).is_err(), "before the key is found in the state");
        assert!(decode_forwarded(&body[..body.len() - 1]).is_err());
        let responses: [Attempt<ChangeMade>; 3] = [
            Ok(ChangeMade { created: true, revision: 7 }),
            Err(conflict("no")),
            Err(AttemptError::Refused(Refusal::NoMember(4))),
        ];
        for response in responses {
            assert_eq!(decode::<Attempt<ChangeMade>>(&encode(&response)).unwrap(), response);
        }
    }
}
