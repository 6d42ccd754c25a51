//! Changes of the membership, on the leader: learners, voters, transfer of leadership.
//!
//! A change of voters takes two entries. The first begins the joint configuration, in which a majority of the old
//! and a majority of the new voters are needed; the second ends it. A leader that is lost between them leaves the
//! configuration joint, and the next leader completes the change.
//!
//! **Invariants**
//! 1. openraft's `blocking` mode and lag threshold are not used: `start.rs` sets the threshold too high to be
//!    reached. A member has caught up when it has the log that the leader had at the time of the call, and responds to
//!    heartbeats.
//! 2. Leadership is transferred only to a live voter with the longest log: a leader that has asked an unreachable
//!    member accepts no writes until the next election.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use openraft::{
    ChangeMembers, Instant,
    errors::{ChangeMembershipError, ClientWriteError, RaftError},
};
use tokio::time::timeout;

use super::{
    ChangeError, Consensus,
    types::{Metrics, StoredMembership, TypeConfig},
};
use concord_model::record::Revision;
use concord_net::{Member, NodeId};

/// How long a transfer of leadership waits for the new leader; an election would take as long.
const TRANSFER_TIMEOUT: Duration = Duration::from_millis(1500);
/// How long a change may take to be committed: two rounds, on the slowest machines that were measured.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(20);
/// A member that acknowledged a heartbeat within this time is live: several heartbeats, and the pauses of a busy
/// machine.
pub(super) const LIVENESS_TIMEOUT: Duration = Duration::from_secs(3);

type WriteResult = Result<
    openraft::raft::ClientWriteResponse<TypeConfig>,
    RaftError<TypeConfig, ClientWriteError<TypeConfig>>,
>;

impl Consensus {
    /// Adds a member without a vote. Returns the revision of the membership entry.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn add_learner(&self, member: Member) -> Result<Revision, ChangeError> {
        revision_of(timeout(CHANGE_TIMEOUT, self.inner.raft.add_learner(member.id, member, false)).await)
    }

    /// Makes learners voters and removes voters from the cluster, in one change.
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

    /// Removes a learner from the cluster.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn remove_learner(&self, id: NodeId) -> Result<Revision, ChangeError> {
        self.change(ChangeMembers::RemoveNodes(BTreeSet::from([id]))).await
    }

    /// Gives a member other addresses. Returns the revision of the membership entry.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn move_member(&self, member: Member) -> Result<Revision, ChangeError> {
        self.change(ChangeMembers::SetNodes(BTreeMap::from([(member.id, member)]))).await
    }

    /// Whether the configuration is joint: a change of voters is not completed.
    #[must_use]
    pub fn is_joint(&self) -> bool {
        self.metrics().membership_config.membership().get_joint_config().len() > 1
    }

    /// Completes a change of voters that a lost leader has left in the joint configuration.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn complete_change(&self) -> Result<Revision, ChangeError> {
        self.change(ChangeMembers::AddVoterIds(BTreeSet::new())).await
    }

    async fn change(&self, change: ChangeMembers<NodeId, Member>) -> Result<Revision, ChangeError> {
        let before = self.metrics();
        let made = timeout(CHANGE_TIMEOUT, self.inner.raft.change_membership(change, false)).await;
        revision_of(made)
            .map_err(|error| begun(error, &before.membership_config, &self.metrics().membership_config))
    }

    /// Waits until a member has all that this leader's log has now.
    ///
    /// # Errors
    /// How much it has, when the time is up; that this node no longer leads.
    pub async fn wait_caught_up(&self, id: NodeId, within: Duration) -> Result<(), String> {
        let goal = self.metrics().last_log_index.unwrap_or(0);
        let me = self.inner.id;
        let has_goal = |metrics: &Metrics| matched_index(metrics, id).is_some_and(|index| index >= goal);
        let done = move |metrics: &Metrics| {
            metrics.current_leader != Some(me) || (has_goal(metrics) && is_live(metrics, id))
        };
        match self.inner.raft.wait(Some(within)).metrics(done, "a member has caught up").await {
            Ok(metrics) if metrics.current_leader == Some(me) => Ok(()),
            Ok(_) => Err("this node stepped down as leader".into()),
            Err(_) => {
                let metrics = self.metrics();
                let matched = matched_index(&metrics, id)
                    .map_or_else(|| "nothing".into(), |index| format!("up to {index}"));
                let silent = if is_live(&metrics, id) { "" } else { " and does not respond" };
                Err(format!("node {id} has {matched} of {goal} entries{silent}"))
            }
        }
    }

    /// How many of these voters are live, as far as this leader knows.
    #[must_use]
    pub fn count_live(&self, voters: &BTreeSet<NodeId>) -> usize {
        let metrics = self.metrics();
        voters.iter().filter(|id| is_live(&metrics, **id)).count()
    }

    /// The greatest id that any member has had, as far as this node has applied.
    #[must_use]
    pub fn greatest_id(&self) -> NodeId {
        self.inner.publisher.applied.load().membership.greatest_id
    }

    /// Whether a node was removed from the cluster, as far as this node has applied. Once true it stays true.
    #[must_use]
    pub fn has_left(&self, id: NodeId) -> bool {
        self.inner.publisher.applied.load().membership.has_left(id)
    }

    /// Stops standing for election: this node was removed from the cluster.
    pub fn retire(&self) {
        self.inner.raft.runtime_config().elect(false);
    }

    /// If this node leads, transfers leadership to the live voter with the longest log and waits (bounded) until it
    /// leads. Returns whether there is such a voter.
    pub async fn transfer_leadership(&self) -> bool {
        let Some(to) = self.transfer_target() else { return false };
        match self.transfer_leadership_to(to).await {
            Ok(()) => tracing::info!(to, "transferred leadership"),
            Err(error) => {
                tracing::warn!(to, ?error, "leadership was not transferred; the members will elect a leader");
            }
        }
        true
    }

    /// Transfers leadership to this voter and waits (bounded) until it leads.
    ///
    /// # Errors
    /// When another member leads afterwards, or none is known in time.
    pub async fn transfer_leadership_to(&self, to: NodeId) -> Result<(), ChangeError> {
        let undecided = |text: String| ChangeError::Undecided(text);
        self.inner.transfers.note(self.inner.id, to, self.metrics().current_term.0);
        let asked = self.inner.raft.trigger().transfer_leader(to).await;
        asked.map_err(|error| ChangeError::NotYet(error.to_string()))?;
        let me = self.inner.id;
        let has_other_leader = |metrics: &Metrics| metrics.current_leader.is_some_and(|leader| leader != me);
        let waited = self
            .inner
            .raft
            .wait(Some(TRANSFER_TIMEOUT))
            .metrics(has_other_leader, "another member is the leader")
            .await;
        let metrics = waited.map_err(|_| undecided(format!("node {to} did not become leader in time")))?;
        match metrics.current_leader {
            Some(leader) if leader == to => Ok(()),
            _ => Err(undecided(format!("a member other than node {to} was elected"))),
        }
    }

    /// The voter with the longest log among those that acknowledged a heartbeat within the shortest election
    /// time-out; `None` unless this node leads.
    fn transfer_target(&self) -> Option<NodeId> {
        let metrics = self.metrics();
        if metrics.current_leader != Some(self.inner.id) {
            return None;
        }
        let election_min = Duration::from_millis(self.inner.timers.election_min_ms);
        let is_live =
            |id: &NodeId| since_heartbeat(&metrics, *id).is_some_and(|elapsed| elapsed < election_min);
        let voters = metrics.membership_config.voter_ids().filter(|id| *id != self.inner.id && is_live(id));
        voters.max_by_key(|id| matched_index(&metrics, *id))
    }
}

/// The revision of a change, or why it was not confirmed.
fn revision_of(written: Result<WriteResult, tokio::time::error::Elapsed>) -> Result<Revision, ChangeError> {
    let error = match written {
        Ok(Ok(response)) => return Ok(response.data.revision),
        Ok(Err(error)) => error,
        Err(_) => return Err(ChangeError::Undecided(format!("not committed within {CHANGE_TIMEOUT:?}"))),
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

/// openraft gives the error of the second entry as it gives that of the first. When the membership has changed since
/// the change was asked for, the first is in the log: then no error means that nothing was done. Another leader's
/// change looks the same, and is reported as uncertain, too.
fn begun(error: ChangeError, before: &StoredMembership, after: &StoredMembership) -> ChangeError {
    match error {
        ChangeError::NotYet(text) | ChangeError::Refused(text) if before.log_id() != after.log_id() => {
            let voters: Vec<String> =
                after.membership().get_joint_config().iter().map(|set| format!("{set:?}")).collect();
            let index = after.log_id().map_or(0, |id| id.index);
            ChangeError::Begun(format!(
                "the change was begun and its completion is not confirmed: since entry {index} of the log the voters are {}; \
                 what is half made the leader completes ({text})",
                voters.join(" and ")
            ))
        }
        ChangeError::NotYet(_)
        | ChangeError::Refused(_)
        | ChangeError::Undecided(_)
        | ChangeError::Begun(_) => error,
    }
}

/// The index of the last entry of this leader's log that a member has.
fn matched_index(metrics: &Metrics, id: NodeId) -> Option<u64> {
    if id == metrics.id {
        return metrics.last_log_index;
    }
    metrics.replication.as_ref()?.get(&id)?.map(|id| id.index)
}

/// Time since a member last acknowledged a heartbeat of this leader.
pub(super) fn since_heartbeat(metrics: &Metrics, id: NodeId) -> Option<Duration> {
    if id == metrics.id {
        return Some(Duration::ZERO);
    }
    let acknowledged = metrics.heartbeat.as_ref()?.get(&id).copied().flatten();
    acknowledged.map(|at| at.elapsed())
}

fn is_live(metrics: &Metrics, id: NodeId) -> bool {
    since_heartbeat(metrics, id).is_some_and(|elapsed| elapsed < LIVENESS_TIMEOUT)
}

/// How many entries of this leader's log a member lacks.
pub(super) fn lag(metrics: &Metrics, id: NodeId) -> Option<u64> {
    let logs = metrics.replication.as_ref()?;
    let end = |index: Option<u64>| index.map_or(0, |index| index + 1);
    let last = end(metrics.last_log_index);
    let has = if id == metrics.id { last } else { end(logs.get(&id)?.map(|id| id.index)) };
    Some(last.saturating_sub(has))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{LogId, Membership};

    fn stored(index: u64, voters: &[&[NodeId]]) -> StoredMembership {
        let id: LogId = crate::wire::WireLogId { index, term: 1, node: 1 }.into();
        let sets: Vec<BTreeSet<NodeId>> = voters.iter().map(|set| set.iter().copied().collect()).collect();
        let member = |id| Member { id, api_addr: format!("a:{id}"), peer_addr: format!("b:{id}") };
        let nodes: BTreeMap<NodeId, Member> = (1..=4).map(|id| (id, member(id))).collect();
        StoredMembership::new(Some(id), Membership::new(sets, nodes).expect("every voter is a node"))
    }

    #[test]
    fn a_change_with_its_first_entry_in_the_log_has_begun() {
        let before = stored(5, &[&[1, 2, 3]]);
        let joint = stored(9, &[&[1, 2, 3], &[1, 2, 4]]);
        let not_yet = || ChangeError::NotYet("not the leader".into());
        assert_eq!(begun(not_yet(), &before, &before), not_yet());
        let ChangeError::Begun(text) = begun(not_yet(), &before, &joint) else { panic!("begun") };
        assert!(text.contains("since entry 9 of the log the voters are {1, 2, 3} and {1, 2, 4}"), "{text}");
        let refused = ChangeError::Refused("another change is in progress".into());
        assert!(matches!(begun(refused, &before, &joint), ChangeError::Begun(_)));
        let undecided = ChangeError::Undecided("lost".into());
        assert_eq!(begun(undecided.clone(), &before, &joint), undecided);
    }
}
