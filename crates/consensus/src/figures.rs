//! Counters and figures of consensus, for metrics.
//!
//! **Invariant:** reading them changes nothing, and waits for no other node.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::{
    Consensus,
    histogram::{Histogram, TimeCounts},
    leadership::LeaderChanges,
    log::LogFigures,
};
use concord_net::NodeId;

/// Counters since the process started.
#[derive(Debug, Default)]
pub(super) struct ConsensusCounts {
    pub(super) leaders_seen: AtomicU64,
    pub(super) elections_won: AtomicU64,
    pub(super) snapshots_built: AtomicU64,
    pub(super) snapshots_sent: AtomicU64,
    pub(super) snapshots_received: AtomicU64,
    pub(super) snapshots_failed: AtomicU64,
    /// From the proposal of an entry until it is committed and applied.
    pub(super) commit_times: Histogram,
    pub(super) append_times: AppendTimes,
    pub(super) snapshot_build_times: Histogram,
    pub(super) snapshot_send_times: Histogram,
    pub(super) leader_changes: LeaderChanges,
}

/// How long members took to store entries.
#[derive(Debug, Default)]
pub(super) struct AppendTimes(Mutex<BTreeMap<NodeId, Arc<Histogram>>>);

impl AppendTimes {
    /// The times of a member. A stream of entries fetches them once.
    pub(super) fn of(&self, member: NodeId) -> Arc<Histogram> {
        let mut members = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(members.entry(member).or_default())
    }

    fn read(&self) -> Vec<(NodeId, TimeCounts)> {
        let members = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        members.iter().map(|(id, times)| (*id, times.read())).collect()
    }
}

/// The times of the parts of consensus since the process started.
#[derive(Debug, Clone)]
pub struct RaftTimes {
    /// Flushes of this node's log.
    pub flush: TimeCounts,
    /// By member: from sending entries until the member has stored them.
    pub append: Vec<(NodeId, TimeCounts)>,
    /// From the proposal of an entry until it is committed and applied on this node, which leads.
    pub commit: TimeCounts,
    /// Applying a batch of entries.
    pub apply: TimeCounts,
    /// Writing a snapshot.
    pub snapshot_build: TimeCounts,
    /// Sending a snapshot to a member, until it is installed.
    pub snapshot_send: TimeCounts,
    /// Writes that waited for the group that they left with.
    pub write_queue: TimeCounts,
}

/// Counts one more.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A member, as this node knows it.
#[derive(Debug, Clone)]
pub struct MemberFigures {
    /// Its id.
    pub id: NodeId,
    /// Whether it votes.
    pub voter: bool,
    /// On the leader: the entries that it lacks.
    pub lag: Option<u64>,
    /// On the leader: time since its last response.
    pub silent_for: Option<Duration>,
    /// On the leader: whether it responds.
    pub is_reachable: Option<bool>,
}

/// The figures of a node's consensus.
#[derive(Debug, Clone)]
pub struct RaftFigures {
    /// The term.
    pub term: u64,
    /// The leader that this node knows.
    pub leader_id: Option<NodeId>,
    /// On the leader: time since a quorum last responded.
    pub quorum_age: Option<Duration>,
    /// The last entry of the log.
    pub last_log_index: u64,
    /// The last entry that is known to be committed.
    pub committed_index: u64,
    /// The last entry that was applied.
    pub applied_index: u64,
    /// The last entry of the newest snapshot.
    pub snapshot_index: u64,
    /// The last entry that was purged.
    pub purged_index: u64,
    /// All members.
    pub members: Vec<MemberFigures>,
    /// Snapshots that are being sent.
    pub snapshots_in_flight: usize,
    /// How often a leader became known that was not the leader before.
    pub leaders_seen: u64,
    /// How often this node became leader.
    pub elections_won: u64,
    /// Snapshots by their outcome.
    pub snapshots: [(&'static str, u64); 4],
    /// The log.
    pub log: LogFigures,
    /// Times.
    pub times: RaftTimes,
}

impl Consensus {
    /// The figures.
    pub fn raft_figures(&self) -> RaftFigures {
        let (metrics, status) = (self.metrics(), self.status());
        let counts = &self.inner.context.counts;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let members = status.members.into_iter().map(|member| MemberFigures {
            id: member.member.id,
            voter: member.voter,
            lag: member.lag,
            silent_for: member.contact.map(|contact| contact.silent_for),
            is_reachable: member.contact.map(|contact| contact.is_reachable),
        });
        RaftFigures {
            term: status.term,
            leader_id: status.leader_id,
            quorum_age: status.quorum_age,
            last_log_index: metrics.last_log_index.unwrap_or(0),
            committed_index: metrics.local_committed.map_or(0, |id| id.index),
            applied_index: self.inner.publisher.applied.load().index(),
            snapshot_index: self.store().current_snapshot().map_or(0, |file| file.position.index),
            purged_index: metrics.purged.map_or(0, |id| id.index),
            members: members.collect(),
            snapshots_in_flight: self.inner.context.snapshots_in_flight.load(Ordering::Relaxed),
            leaders_seen: read(&counts.leaders_seen),
            elections_won: read(&counts.elections_won),
            snapshots: [
                ("built", read(&counts.snapshots_built)),
                ("sent", read(&counts.snapshots_sent)),
                ("received", read(&counts.snapshots_received)),
                ("failed", read(&counts.snapshots_failed)),
            ],
            log: self.inner.log.figures(),
            times: RaftTimes {
                flush: self.inner.log.flushes().read(),
                append: counts.append_times.read(),
                commit: counts.commit_times.read(),
                apply: self.inner.publisher.apply_times.read(),
                snapshot_build: counts.snapshot_build_times.read(),
                snapshot_send: counts.snapshot_send_times.read(),
                write_queue: self.inner.groups.waits(),
            },
        }
    }
}
