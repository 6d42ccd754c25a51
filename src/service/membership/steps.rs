//! One change of the cluster, on the leader.
//!
//! ```text
//! add       the new node is asked whose it is ─ takes our identity ─ learner ─ has caught up
//! promote   has caught up ─ voter
//! replace   add ─ one joint change: the new one in, the old one out
//! remove    a leader hands over first ─ out
//! ```
//!
//! **Invariants**
//! 1. A node id is never used twice: ids ascend, and the greatest one is carried beside the state. A node that
//!    comes back under an id of the past would have forgotten its votes.
//! 2. No change is begun whose voters could not go on: a majority of the new ones must live.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::{Instant, timeout_at};

use super::{
    Join, MEMBERS_MAX,
    change::{Change, Done},
};
use crate::{
    model::error::Invalid,
    peer::{Member, NodeId},
    raft::{ChangeError, Consensus},
    service::{
        Service,
        request::Refusal,
        retry::{Attempt, AttemptError},
    },
};

/// How long a leader may take to confirm that it leads.
pub(super) const LEADERSHIP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a member that should have caught up already is waited for.
const NEARLY: Duration = Duration::from_secs(5);

/// The members when a change begins. None but this change alters them meanwhile.
pub(in crate::service) struct Roll {
    members: BTreeMap<NodeId, Member>,
    voters: BTreeSet<NodeId>,
}

impl Roll {
    pub(in crate::service) fn of(consensus: &Consensus) -> Self {
        let mut roll = Self { members: BTreeMap::new(), voters: BTreeSet::new() };
        for status in consensus.status().members {
            if status.voter {
                roll.voters.insert(status.member.id);
            }
            roll.members.insert(status.member.id, status.member);
        }
        roll
    }
}

/// One change on the leader.
pub(in crate::service) struct Turn<'a> {
    pub(in crate::service) service: &'a Service,
    pub(in crate::service) consensus: &'a Consensus,
    pub(in crate::service) deadline: Instant,
    pub(in crate::service) roll: Roll,
}

impl Turn<'_> {
    pub(in crate::service) async fn make(&self, change: &Change) -> Attempt<Done> {
        match change {
            Change::Add(member) => self.add(member).await,
            Change::Promote(id) => self.promote(*id).await,
            Change::Remove(id) => self.remove(*id).await,
            Change::Replace { old, new } => self.replace(*old, new).await,
            Change::Lead(id) => self.lead(*id).await,
        }
    }

    /// It is so already.
    fn nothing(&self) -> Done {
        Done { created: false, revision: self.consensus.state().revision() }
    }

    fn member(&self, id: NodeId) -> Attempt<&Member> {
        self.roll.members.get(&id).ok_or(AttemptError::Refused(Refusal::NoMember(id)))
    }

    async fn add(&self, member: &Member) -> Attempt<Done> {
        let done = self.enlist(member, None).await?;
        self.catch_up(member.id).await?;
        Ok(done)
    }

    async fn promote(&self, id: NodeId) -> Attempt<Done> {
        self.member(id)?;
        if self.roll.voters.contains(&id) {
            return Ok(self.nothing());
        }
        self.nearly(id).await?;
        self.vote(BTreeSet::from([id]), BTreeSet::new()).await
    }

    async fn remove(&self, id: NodeId) -> Attempt<Done> {
        self.member(id)?;
        if !self.roll.voters.contains(&id) {
            let revision = self.consensus.remove_learner(id).await?;
            return Ok(Done { created: false, revision });
        }
        if self.roll.voters.len() == 1 {
            return Err(conflict(format!("node {id} is the last one that votes")));
        }
        self.check_majority(&BTreeSet::new(), &BTreeSet::from([id]))?;
        self.step_down(id).await?;
        self.vote(BTreeSet::new(), BTreeSet::from([id])).await
    }

    async fn replace(&self, old: NodeId, new: &Member) -> Attempt<Done> {
        if old == new.id {
            return Err(conflict("a node id is never used twice: the new member needs another one"));
        }
        if !self.roll.members.contains_key(&old) {
            // Asked again after it was done.
            let is_done = self.roll.members.get(&new.id) == Some(new) && old <= self.consensus.greatest_id();
            return if is_done {
                Ok(self.nothing())
            } else {
                Err(AttemptError::Refused(Refusal::NoMember(old)))
            };
        }
        let old_votes = self.roll.voters.contains(&old);
        if old_votes {
            self.check_majority(&BTreeSet::from([new.id]), &BTreeSet::from([old]))?;
        }
        self.step_down(old).await?;
        let Done { created, .. } = self.enlist(new, Some(old)).await?;
        self.catch_up(new.id).await?;
        let revision = if old_votes {
            self.consensus.change_voters(BTreeSet::from([new.id]), BTreeSet::from([old])).await?
        } else {
            self.consensus.remove_learner(old).await?
        };
        Ok(Done { created, revision })
    }

    async fn lead(&self, id: NodeId) -> Attempt<Done> {
        if !self.roll.voters.contains(&id) {
            return Err(conflict(format!("node {id} does not vote, so it can't lead")));
        }
        if id != self.service.node_id() {
            self.nearly(id).await?;
            self.consensus.hand_over_to(id).await?;
        }
        Ok(self.nothing())
    }

    /// Makes a node a member without a vote, if it is none yet.
    async fn enlist(&self, member: &Member, instead_of: Option<NodeId>) -> Attempt<Done> {
        match self.roll.members.get(&member.id) {
            Some(present) if present == member => return Ok(self.nothing()),
            Some(_) => return Err(conflict(format!("node {} is a member at other addresses", member.id))),
            None => {}
        }
        self.check_newcomer(member, instead_of)?;
        self.invite(member).await?;
        let revision = self.consensus.add_learner(member.clone()).await?;
        Ok(Done { created: true, revision })
    }

    fn check_newcomer(&self, member: &Member, instead_of: Option<NodeId>) -> Attempt<()> {
        let greatest = self.consensus.greatest_id();
        if member.id <= greatest {
            return Err(conflict(format!(
                "a node id is never used twice: ids ascend, and {greatest} has been used, so {} can't be",
                member.id
            )));
        }
        if self.roll.members.len() >= MEMBERS_MAX {
            return Err(conflict(format!("a cluster has at most {MEMBERS_MAX} members")));
        }
        let others = self.roll.members.values().filter(|other| Some(other.id) != instead_of);
        for other in others {
            if other.api_addr == member.api_addr || other.peer_addr == member.peer_addr {
                return Err(conflict(format!("node {} is at one of these addresses", other.id)));
            }
        }
        Ok(())
    }

    /// Gives a node that belongs to no cluster the identity of a member of ours.
    async fn invite(&self, member: &Member) -> Attempt<()> {
        let id = member.id;
        let ours = self.service.inner.peers.me.get().map(|me| me.cluster_id);
        let cluster_id = ours.ok_or_else(|| AttemptError::Retry(self.service.absence()))?;
        let told = self.service.ask(member, &Join::Tell).await.map_err(stranger)?;
        if told.node_id != id {
            return Err(conflict(format!(
                "node {} answers at {}, not node {id}",
                told.node_id, member.peer_addr
            )));
        }
        if told.cluster_id.is_some_and(|theirs| theirs != cluster_id) {
            return Err(conflict(format!("node {id} belongs to another cluster")));
        }
        let take = Join::Take { cluster_id, node_id: id };
        self.service.ask(member, &take).await.map(drop).map_err(stranger)
    }

    /// Waits as long as the change may take.
    async fn catch_up(&self, id: NodeId) -> Attempt<()> {
        let within = self.deadline.saturating_duration_since(Instant::now());
        let caught_up = timeout_at(self.deadline, self.consensus.caught_up(id, within)).await;
        let why = match caught_up {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(why)) => why,
            Err(_) => "the time is up".into(),
        };
        Err(AttemptError::Unknown(format!("node {id} is a learner, but has not caught up: {why}; ask again")))
    }

    /// Waits a little for a member that should have caught up already.
    async fn nearly(&self, id: NodeId) -> Attempt<()> {
        self.consensus.caught_up(id, NEARLY).await.map_err(conflict)
    }

    async fn vote(&self, add: BTreeSet<NodeId>, remove: BTreeSet<NodeId>) -> Attempt<Done> {
        self.check_majority(&add, &remove)?;
        let revision = self.consensus.change_voters(add, remove).await?;
        Ok(Done { created: false, revision })
    }

    /// Whether the voters to be could go on. Who is to be added counts as living: it is waited for.
    fn check_majority(&self, add: &BTreeSet<NodeId>, remove: &BTreeSet<NodeId>) -> Attempt<()> {
        let stay: BTreeSet<NodeId> = self.roll.voters.difference(remove).copied().collect();
        let added = add.difference(&stay).count();
        let (voters, live) = (stay.len() + added, self.consensus.count_live(&stay) + added);
        if live > voters / 2 {
            return Ok(());
        }
        Err(conflict(format!("only {live} of the {voters} voters would be alive, which is no majority")))
    }

    /// A leader that is to go hands leadership over; the next one makes the change.
    async fn step_down(&self, id: NodeId) -> Attempt<()> {
        if id != self.service.node_id() {
            return Ok(());
        }
        if self.consensus.hand_over().await {
            Err(AttemptError::Retry(format!("node {id} leads, and hands leadership over first")))
        } else {
            Err(AttemptError::Retry("no other voter is alive to lead".into()))
        }
    }
}

pub(in crate::service) fn conflict(text: impl Into<String>) -> AttemptError {
    AttemptError::Refused(Refusal::Conflict(text.into()))
}

/// A node that can't be invited.
fn stranger(refusal: Refusal) -> AttemptError {
    if let Refusal::Invalid(Invalid::Violations(faults)) = refusal {
        return conflict(faults.into_iter().map(|fault| fault.msg).collect::<Vec<_>>().join("; "));
    }
    AttemptError::Refused(refusal)
}

impl From<ChangeError> for AttemptError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::NotYet(text) => Self::Retry(text),
            ChangeError::Refused(text) => conflict(text),
            ChangeError::Undecided(text) => Self::Unknown(text),
        }
    }
}
