//! Changes of the members, on the leader: learners, votes, who leads.
//!
//! A change of voters is two entries: from the joint configuration on, a majority of the old and one of the new
//! voters are needed; the second entry ends that. A leader that is lost between them leaves the cluster joint,
//! and the next one completes the change.
//!
//! **Invariants**
//! 1. openraft's `blocking` and lag threshold are not used: its threshold is out of reach by our settings. A member
//!    has caught up when it has what the leader had when it was asked, and answers heartbeats.
//! 2. A leader that has asked a silent member to take over accepts no writes until the next election: only a live
//!    voter with the whole log is asked.

use std::{collections::BTreeSet, time::Duration};

use openraft::{
    ChangeMembers, Instant,
    errors::{ChangeMembershipError, ClientWriteError, RaftError},
};
use tokio::time::timeout;

use super::{
    ChangeError, Consensus,
    types::{Kind, Metrics},
};
use crate::{
    model::record::Revision,
    peer::{Member, NodeId},
};

/// How long a hand-over waits for the new leader; an election would take as long.
const HAND_OVER_TIMEOUT: Duration = Duration::from_millis(1500);
/// How long a change may take to be agreed on: two rounds, on the slowest machines that we know.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(20);
/// A member that answered a heartbeat within this time lives: several heartbeats, and the halts of a busy machine.
const LIVE: Duration = Duration::from_secs(3);

type Written = Result<openraft::raft::ClientWriteResponse<Kind>, RaftError<Kind, ClientWriteError<Kind>>>;

impl Consensus {
    /// Makes a new member follow the log without a vote. Gives the entry that says so.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn add_learner(&self, member: Member) -> Result<Revision, ChangeError> {
        settle(timeout(CHANGE_TIMEOUT, self.inner.raft.add_learner(member.id, member, false)).await)
    }

    /// Gives votes to learners and takes voters out of the cluster, in one change.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn change_voters(
        &self,
        add: BTreeSet<NodeId>,
        remove: BTreeSet<NodeId>,
    ) -> Result<Revision, ChangeError> {
        let change = vec![ChangeMembers::AddVoterIds(add), ChangeMembers::RemoveVoters(remove)];
        self.change(ChangeMembers::Batch(change)).await
    }

    /// Takes a learner out of the cluster.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn remove_learner(&self, id: NodeId) -> Result<Revision, ChangeError> {
        self.change(ChangeMembers::RemoveNodes(BTreeSet::from([id]))).await
    }

    /// Whether a change of voters is half done.
    #[must_use]
    pub fn is_joint(&self) -> bool {
        self.metrics().membership_config.membership().get_joint_config().len() > 1
    }

    /// Completes a change of voters that a lost leader has left half done.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn complete_change(&self) -> Result<Revision, ChangeError> {
        self.change(ChangeMembers::AddVoterIds(BTreeSet::new())).await
    }

    async fn change(&self, change: ChangeMembers<NodeId, Member>) -> Result<Revision, ChangeError> {
        settle(timeout(CHANGE_TIMEOUT, self.inner.raft.change_membership(change, false)).await)
    }

    /// Waits until a member has all that this leader's log has now.
    ///
    /// # Errors
    /// How far it is, when the time is up or this node leads no more.
    pub async fn caught_up(&self, id: NodeId, within: Duration) -> Result<(), String> {
        let goal = self.metrics().last_log_index.unwrap_or(0);
        let me = self.inner.id;
        let reached = |metrics: &Metrics| has(metrics, id).is_some_and(|index| index >= goal);
        let done = move |metrics: &Metrics| {
            metrics.current_leader != Some(me) || (reached(metrics) && is_live(metrics, id))
        };
        match self.inner.raft.wait(Some(within)).metrics(done, "a member has caught up").await {
            Ok(metrics) if metrics.current_leader == Some(me) => Ok(()),
            Ok(_) => Err("this node does not lead any more".into()),
            Err(_) => {
                let metrics = self.metrics();
                let place =
                    has(&metrics, id).map_or_else(|| "nothing".into(), |index| format!("up to {index}"));
                let silent = if is_live(&metrics, id) { "" } else { " and is silent" };
                Err(format!("node {id} has {place} of {goal} entries{silent}"))
            }
        }
    }

    /// How many of these voters live, as this leader knows.
    #[must_use]
    pub fn count_live(&self, voters: &BTreeSet<NodeId>) -> usize {
        let metrics = self.metrics();
        voters.iter().filter(|id| is_live(&metrics, **id)).count()
    }

    /// The greatest id that any member has had, as far as this node has applied.
    #[must_use]
    pub fn greatest_id(&self) -> NodeId {
        self.inner.publisher.applied.load().greatest_id
    }

    /// Whether a node was taken out of the cluster, as far as this node has applied. Once true it stays true.
    #[must_use]
    pub fn has_left(&self, id: NodeId) -> bool {
        self.inner.publisher.applied.load().has_left(id)
    }

    /// Stands for election no more: this node was taken out of the cluster.
    pub fn retire(&self) {
        self.inner.raft.runtime_config().elect(false);
    }

    /// Hands leadership to the freshest live voter, if this node leads; waits (bounded) until it is taken. Whether
    /// there was one to ask.
    pub async fn hand_over(&self) -> bool {
        let Some(to) = self.successor() else { return false };
        match self.hand_over_to(to).await {
            Ok(()) => tracing::info!(to, "handed leadership over"),
            Err(error) => tracing::warn!(to, ?error, "leadership was not taken over; the members will elect"),
        }
        true
    }

    /// Hands leadership to this voter and waits (bounded) until it leads.
    ///
    /// # Errors
    /// When another member leads afterwards, or none is known in time.
    pub async fn hand_over_to(&self, to: NodeId) -> Result<(), ChangeError> {
        let undecided = |text: String| ChangeError::Undecided(text);
        let asked = self.inner.raft.trigger().transfer_leader(to).await;
        asked.map_err(|error| ChangeError::NotYet(error.to_string()))?;
        let me = self.inner.id;
        let taken = |metrics: &Metrics| metrics.current_leader.is_some_and(|leader| leader != me);
        let waited =
            self.inner.raft.wait(Some(HAND_OVER_TIMEOUT)).metrics(taken, "another member leads").await;
        let metrics = waited.map_err(|_| undecided(format!("node {to} has not taken over in time")))?;
        match metrics.current_leader {
            Some(leader) if leader == to => Ok(()),
            _ => Err(undecided(format!("another member than node {to} was elected"))),
        }
    }

    /// The voter with the longest log among those that answered a heartbeat lately; `None` unless this node leads.
    fn successor(&self) -> Option<NodeId> {
        let metrics = self.metrics();
        if metrics.current_leader != Some(self.inner.id) {
            return None;
        }
        let lease = Duration::from_millis(self.inner.timers.election_min_ms);
        let is_live = |id: &NodeId| silence(&metrics, *id).is_some_and(|silence| silence < lease);
        let voters = metrics.membership_config.voter_ids().filter(|id| *id != self.inner.id && is_live(id));
        voters.max_by_key(|id| has(&metrics, *id))
    }
}

/// What became of a change.
fn settle(written: Result<Written, tokio::time::error::Elapsed>) -> Result<Revision, ChangeError> {
    let error = match written {
        Ok(Ok(answer)) => return Ok(answer.log_id().index),
        Ok(Err(error)) => error,
        Err(_) => return Err(ChangeError::Undecided(format!("not agreed on within {CHANGE_TIMEOUT:?}"))),
    };
    Err(match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(forward)) => {
            ChangeError::NotYet(forward.to_string())
        }
        RaftError::APIError(ClientWriteError::ChangeMembershipError(error)) => match error {
            ChangeMembershipError::InProgress(_) | ChangeMembershipError::UncommittedLeaderLog(_) => {
                ChangeError::NotYet(error.to_string())
            }
            ChangeMembershipError::EmptyMembership(_)
            | ChangeMembershipError::LearnerNotFound(_)
            | ChangeMembershipError::NodeMetadataChanged(_)
            | ChangeMembershipError::UnsupportedMembershipTransition(_) => {
                ChangeError::Refused(error.to_string())
            }
        },
        RaftError::APIError(
            error @ (ClientWriteError::LogEntryDiscarded(_) | ClientWriteError::PreconditionFailed(_)),
        ) => ChangeError::Undecided(error.to_string()),
        RaftError::Fatal(fatal) => ChangeError::Undecided(fatal.to_string()),
    })
}

/// The last entry that a member has of this leader's log.
fn has(metrics: &Metrics, id: NodeId) -> Option<u64> {
    if id == metrics.id {
        return metrics.last_log_index;
    }
    metrics.replication.as_ref()?.get(&id)?.map(|id| id.index)
}

/// How long a member has not answered this leader.
fn silence(metrics: &Metrics, id: NodeId) -> Option<Duration> {
    if id == metrics.id {
        return Some(Duration::ZERO);
    }
    let answered = metrics.heartbeat.as_ref()?.get(&id).copied().flatten();
    answered.map(|at| at.elapsed())
}

fn is_live(metrics: &Metrics, id: NodeId) -> bool {
    silence(metrics, id).is_some_and(|silence| silence < LIVE)
}

/// Entries that a member lacks of this leader's log.
pub(super) fn lag(metrics: &Metrics, id: NodeId) -> Option<u64> {
    let logs = metrics.replication.as_ref()?;
    let end = |index: Option<u64>| index.map_or(0, |index| index + 1);
    let last = end(metrics.last_log_index);
    let has = if id == metrics.id { last } else { end(logs.get(&id)?.map(|id| id.index)) };
    Some(last.saturating_sub(has))
}
