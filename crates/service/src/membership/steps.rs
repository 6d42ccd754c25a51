//! The steps of a change of the members, on the leader.
//!
//! ```text
//! add       new node says which cluster it belongs to ─ takes this cluster's identity ─ learner ─ catches up
//! promote   has caught up ─ voter
//! replace   add ─ one joint change: the new member in, the old one out
//! remove    a leader transfers leadership first ─ out
//! move      the member answers at its new address ─ the new address
//! ```
//!
//! **Invariants**
//! 1. A node id is never used twice: ids ascend in bounded steps, and the greatest one is stored with the state. A node that returned under
//!    an earlier id would have lost its votes.
//! 2. No change begins that would leave the cluster without a live majority: a majority of the new voters must be alive.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::{Instant, timeout_at};

use super::{
    change::{ChangeMade, MemberChange},
    forming::JoinRequest,
};
use crate::{
    membership::ClusterMembers,
    request::Refusal,
    retry::{Attempt, AttemptError},
};
use concord_consensus::Consensus;
use concord_model::{
    error::Invalid,
    limits::{MEMBERS_MAX, NODE_ID_MAX, NODE_ID_STEP_MAX},
};
use concord_net::{Member, NodeId};

/// How long to wait for a member that should have caught up already.
const CAUGHT_UP_TIMEOUT: Duration = Duration::from_secs(5);

/// The members and voters when a change begins. Only this change alters them until it ends.
pub(super) struct MembersAtStart {
    members: BTreeMap<NodeId, Member>,
    voters: BTreeSet<NodeId>,
}

impl MembersAtStart {
    pub(super) fn of(consensus: &Consensus) -> Self {
        let mut membership = Self { members: BTreeMap::new(), voters: BTreeSet::new() };
        for status in consensus.status().members {
            if status.voter {
                membership.voters.insert(status.member.id);
            }
            membership.members.insert(status.member.id, status.member);
        }
        membership
    }
}

/// One change on the leader.
pub(super) struct MembershipChange<'a> {
    pub(super) members: &'a ClusterMembers,
    pub(super) consensus: &'a Consensus,
    pub(super) deadline: Instant,
    pub(super) before: MembersAtStart,
}

impl MembershipChange<'_> {
    pub(super) async fn make(&self, change: &MemberChange) -> Attempt<ChangeMade> {
        match change {
            MemberChange::Add(member) => self.add(member).await,
            MemberChange::Promote(id) => self.promote(*id).await,
            MemberChange::Remove(id) => self.remove(*id).await,
            MemberChange::Replace { old, new } => self.replace(*old, new).await,
            MemberChange::Lead(id) => self.transfer_leadership(*id).await,
            MemberChange::Move { member, dry_run } => self.move_member(member, *dry_run).await,
        }
    }

    async fn add(&self, member: &Member) -> Attempt<ChangeMade> {
        let made = self.add_learner(member, None).await?;
        self.wait_until_caught_up(member.id).await?;
        Ok(made)
    }

    async fn promote(&self, id: NodeId) -> Attempt<ChangeMade> {
        self.check_member(id)?;
        if self.before.voters.contains(&id) {
            return Ok(self.unchanged());
        }
        self.expect_caught_up(id).await?;
        self.change_voters(BTreeSet::from([id]), BTreeSet::new()).await
    }

    async fn remove(&self, id: NodeId) -> Attempt<ChangeMade> {
        self.check_member(id)?;
        if !self.before.voters.contains(&id) {
            let revision = self.consensus.remove_learner(id).await?;
            return Ok(ChangeMade { created: false, revision });
        }
        if self.before.voters.len() == 1 {
            return Err(conflict(format!("node {id} is the last voter")));
        }
        self.check_majority(&BTreeSet::new(), &BTreeSet::from([id]))?;
        self.step_down(id).await?;
        self.change_voters(BTreeSet::new(), BTreeSet::from([id])).await
    }

    async fn replace(&self, old: NodeId, new: &Member) -> Attempt<ChangeMade> {
        if old == new.id {
            return Err(conflict("a node id is never used twice: the new member needs another one"));
        }
        if !self.before.members.contains_key(&old) {
            // The change was made already, and is requested again.
            let is_made =
                self.before.members.get(&new.id) == Some(new) && old <= self.consensus.greatest_id();
            return if is_made {
                Ok(self.unchanged())
            } else {
                Err(AttemptError::Refused(Refusal::NoMember(old)))
            };
        }
        let old_votes = self.before.voters.contains(&old);
        if old_votes {
            self.check_majority(&BTreeSet::from([new.id]), &BTreeSet::from([old]))?;
        }
        self.step_down(old).await?;
        let ChangeMade { created, .. } = self.add_learner(new, Some(old)).await?;
        self.wait_until_caught_up(new.id).await?;
        let replaced = if old_votes {
            self.consensus.change_voters(BTreeSet::from([new.id]), BTreeSet::from([old])).await
        } else {
            self.consensus.remove_learner(old).await
        };
        let revision = replaced.map_err(|error| half_replaced(error.into(), old, new.id))?;
        Ok(ChangeMade { created, revision })
    }

    /// Gives a member other addresses. It must answer there already: a wrong address would cut it off.
    async fn move_member(&self, member: &Member, dry_run: bool) -> Attempt<ChangeMade> {
        self.check_member(member.id)?;
        if self.before.members.get(&member.id) == Some(member) {
            return Ok(self.unchanged());
        }
        self.check_addresses(member, Some(member.id))?;
        self.expect_member_at(member).await?;
        if dry_run {
            return Ok(self.unchanged());
        }
        let revision = self.consensus.move_member(member.clone()).await?;
        Ok(ChangeMade { created: false, revision })
    }

    /// Checks that this member of this cluster answers at its address.
    async fn expect_member_at(&self, member: &Member) -> Attempt<()> {
        let own = self.members.cx.peers.me.get().map(|me| me.cluster_id);
        let found = self.members.request_join(member, &JoinRequest::Identify).await.map_err(not_joined)?;
        let (id, addr) = (member.id, &member.peer_addr);
        if found.node_id != id {
            return Err(conflict(format!("node {} answers at {addr}, not node {id}", found.node_id)));
        }
        match found.cluster_id {
            theirs if theirs == own => Ok(()),
            None => Err(conflict(format!(
                "node {id} at {addr} belongs to no cluster: its data directory is another one than before"
            ))),
            Some(_) => Err(conflict(format!("node {id} at {addr} belongs to another cluster"))),
        }
    }

    async fn transfer_leadership(&self, id: NodeId) -> Attempt<ChangeMade> {
        if !self.before.voters.contains(&id) {
            return Err(conflict(format!("node {id} is no voter, so it can't lead")));
        }
        if id != self.members.cx.node_id() {
            self.expect_caught_up(id).await?;
            self.consensus.transfer_leadership_to(id).await?;
        }
        Ok(self.unchanged())
    }

    /// The result of a change that needs no new membership.
    fn unchanged(&self) -> ChangeMade {
        ChangeMade { created: false, revision: self.consensus.state().revision() }
    }

    fn check_member(&self, id: NodeId) -> Attempt<()> {
        let is_member = self.before.members.contains_key(&id);
        if is_member { Ok(()) } else { Err(AttemptError::Refused(Refusal::NoMember(id))) }
    }

    /// Makes a node a member without a vote, unless it is a member already.
    async fn add_learner(&self, member: &Member, replaced: Option<NodeId>) -> Attempt<ChangeMade> {
        match self.before.members.get(&member.id) {
            Some(present) if present == member => return Ok(self.unchanged()),
            Some(_) => return Err(conflict(format!("node {} is a member at other addresses", member.id))),
            None => {}
        }
        self.check_new_member(member, replaced)?;
        self.give_identity(member).await?;
        let revision = self.consensus.add_learner(member.clone()).await?;
        Ok(ChangeMade { created: true, revision })
    }

    fn check_new_member(&self, member: &Member, replaced: Option<NodeId>) -> Attempt<()> {
        let greatest = self.consensus.greatest_id();
        if member.id <= greatest {
            return Err(conflict(format!(
                "a node id is never used twice: ids ascend, and {greatest} has been used, so {} can't be",
                member.id
            )));
        }
        let most = greatest.saturating_add(NODE_ID_STEP_MAX).min(NODE_ID_MAX);
        if member.id > most {
            return Err(conflict(format!(
                "node ids ascend, in steps of at most {NODE_ID_STEP_MAX}: {greatest} has been used, so a new id is at most \
                 {most}, and {} can't be used",
                member.id
            )));
        }
        if self.before.members.len() >= MEMBERS_MAX {
            return Err(conflict(format!("a cluster has at most {MEMBERS_MAX} members")));
        }
        self.check_addresses(member, replaced)
    }

    /// Checks that no other member but `except` has one of these addresses.
    fn check_addresses(&self, member: &Member, except: Option<NodeId>) -> Attempt<()> {
        let others = self.before.members.values().filter(|other| Some(other.id) != except);
        for other in others {
            if other.api_addr == member.api_addr || other.peer_addr == member.peer_addr {
                return Err(conflict(format!("node {} is at one of these addresses", other.id)));
            }
        }
        Ok(())
    }

    /// Gives a node that belongs to no cluster the identity of a member of this one.
    async fn give_identity(&self, member: &Member) -> Attempt<()> {
        let id = member.id;
        let own = self.members.cx.peers.me.get().map(|me| me.cluster_id);
        let cluster_id = own.ok_or_else(|| AttemptError::Retry(self.members.cx.absence()))?;
        let found = self.members.request_join(member, &JoinRequest::Identify).await.map_err(not_joined)?;
        if found.node_id != id {
            return Err(conflict(format!(
                "node {} answers at {}, not node {id}",
                found.node_id, member.peer_addr
            )));
        }
        if found.cluster_id.is_some_and(|theirs| theirs != cluster_id) {
            return Err(conflict(format!("node {id} belongs to another cluster")));
        }
        let asked = self.members.levels.ask_levels(member).await;
        let levels = asked
            .map_err(|error| AttemptError::Retry(format!("node {id} at {}: {error}", member.peer_addr)))?
            .levels;
        let level = self.consensus.state().feature_level();
        if !levels.include(level) {
            return Err(conflict(format!(
                "node {id} knows the feature levels {} to {}, and this cluster has level {level}: start a newer version \
                 there",
                levels.min, levels.max
            )));
        }
        let request = JoinRequest::TakeIdentity { cluster_id, node_id: id };
        self.members.request_join(member, &request).await.map(drop).map_err(not_joined)
    }

    /// Waits for a new member until the deadline of the change.
    async fn wait_until_caught_up(&self, id: NodeId) -> Attempt<()> {
        let within = self.deadline.saturating_duration_since(Instant::now());
        let caught_up = timeout_at(self.deadline, self.consensus.wait_caught_up(id, within)).await;
        let why = match caught_up {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(why)) => why,
            Err(_) => "timed out".into(),
        };
        Err(AttemptError::Unknown(format!(
            "node {id} was added as a learner but is still catching up ({why}); retry"
        )))
    }

    /// Waits briefly for a member that should have caught up already.
    async fn expect_caught_up(&self, id: NodeId) -> Attempt<()> {
        self.consensus.wait_caught_up(id, CAUGHT_UP_TIMEOUT).await.map_err(conflict)
    }

    async fn change_voters(&self, add: BTreeSet<NodeId>, remove: BTreeSet<NodeId>) -> Attempt<ChangeMade> {
        self.check_majority(&add, &remove)?;
        let revision = self.consensus.change_voters(add, remove).await?;
        Ok(ChangeMade { created: false, revision })
    }

    /// Checks that a majority of the new voters is alive. An added voter counts as alive: the change waits until it has
    /// caught up.
    fn check_majority(&self, add: &BTreeSet<NodeId>, remove: &BTreeSet<NodeId>) -> Attempt<()> {
        let stay: BTreeSet<NodeId> = self.before.voters.difference(remove).copied().collect();
        let added = add.difference(&stay).count();
        let (voters, live) = (stay.len() + added, self.consensus.count_live(&stay) + added);
        if live > voters / 2 {
            return Ok(());
        }
        Err(conflict(format!("only {live} of the {voters} voters would be alive, which is no majority")))
    }

    /// If this leader is the member to remove, transfers leadership. The next leader makes the change.
    async fn step_down(&self, id: NodeId) -> Attempt<()> {
        if id != self.members.cx.node_id() {
            return Ok(());
        }
        if self.consensus.transfer_leadership().await {
            Err(AttemptError::Retry(format!("node {id} leads, and transfers leadership first")))
        } else {
            Err(AttemptError::Retry("no other voter is alive to lead".into()))
        }
    }
}

/// The error of a replacement that failed after the new node had become a member.
fn half_replaced(error: AttemptError, old: NodeId, new: NodeId) -> AttemptError {
    let why = match error {
        AttemptError::Retry(text)
        | AttemptError::Refused(Refusal::Conflict(text) | Refusal::Unavailable(text)) => text,
        other @ (AttemptError::Refused(_) | AttemptError::Unknown(_) | AttemptError::Begun(_)) => {
            return other;
        }
    };
    AttemptError::Begun(format!("node {new} is a learner now, but it has not replaced node {old}: {why}"))
}

pub(super) fn conflict(text: impl Into<String>) -> AttemptError {
    AttemptError::Refused(Refusal::Conflict(text.into()))
}

/// Why a node does not join. A wrong identity is a conflict with the cluster.
fn not_joined(refusal: Refusal) -> AttemptError {
    if let Refusal::Invalid(Invalid::Violations(violations)) = refusal {
        let texts: Vec<_> = violations.into_iter().map(|violation| violation.msg).collect();
        return conflict(texts.join("; "));
    }
    AttemptError::Refused(refusal)
}
