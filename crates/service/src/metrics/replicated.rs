//! The metrics of consensus, the log and the store.

use super::{
    family::{Labels, MetricFamily},
    label,
};
use crate::Service;
use concord_consensus::{Consensus, MemberFigures, RaftFigures, RaftTimes, histogram::TimeCounts};
use concord_net::NodeId;
use concord_storage::Figures;

fn of_member(id: NodeId) -> Labels {
    label("member", id.to_string())
}

/// One sample for each member whose value is known.
fn members<T>(figures: &RaftFigures, of: impl Fn(&MemberFigures) -> Option<T>) -> Vec<(Labels, T)> {
    figures.members.iter().filter_map(|member| Some((of_member(member.id), of(member)?))).collect()
}

impl Service {
    /// Consensus and its log. Before this node has an identity, the metrics have no samples.
    pub(super) fn of_consensus(&self) -> Vec<MetricFamily> {
        let figures = self.cx.consensus().map(Consensus::raft_figures);
        let mut families = self.of_leadership(figures.as_ref());
        families.extend(of_members(figures.as_ref()));
        families.extend(self.of_times(figures.as_ref()));
        families.extend(of_log(figures.as_ref()));
        families
    }

    /// Where the time of writes and reads goes.
    fn of_times(&self, figures: Option<&RaftFigures>) -> Vec<MetricFamily> {
        let times = figures.map(|one| &one.times);
        let one = |of: fn(&RaftTimes) -> TimeCounts| {
            times.iter().map(|times| (Labels::new(), of(times))).collect::<Vec<_>>()
        };
        let appends = times.iter().flat_map(|times| &times.append);
        let steps = times.iter().flat_map(|times| {
            [("build", times.snapshot_build), ("send", times.snapshot_send)]
                .map(|(step, counts)| (label("step", step), counts))
        });
        let queues = times.iter().map(|times| ("writes", times.write_queue));
        let forwarding = self.writes.forwarder.batcher.waits();
        let queues = queues.chain([("forward", forwarding), ("cpu_pool", self.cx.cpu_pool.waits())]);
        vec![
            MetricFamily::histograms(
                "concord_raft_log_flush_duration_seconds",
                "Times of flushes of this node's log.",
                one(|times| times.flush),
            ),
            MetricFamily::histograms(
                "concord_raft_append_duration_seconds",
                "On the leader: times from sending entries to a member until it has stored them.",
                appends.map(|(id, counts)| (of_member(*id), *counts)).collect(),
            ),
            MetricFamily::histograms(
                "concord_raft_commit_duration_seconds",
                "On the leader: times from the proposal of an entry until it is committed and applied.",
                one(|times| times.commit),
            ),
            MetricFamily::histograms(
                "concord_raft_apply_duration_seconds",
                "Times of applying a batch of entries.",
                one(|times| times.apply),
            ),
            MetricFamily::histograms(
                "concord_raft_snapshot_duration_seconds",
                "Times of writing a snapshot, and of sending one to a member until it is installed.",
                steps.collect(),
            ),
            MetricFamily::histograms(
                "concord_queue_wait_seconds",
                "Waits: of writes for the entry before theirs or for an RPC to the leader, of long work for a thread of the CPU pool.",
                queues.map(|(queue, counts)| (label("queue", queue), counts)).collect(),
            ),
            MetricFamily::histograms(
                "concord_read_confirm_duration_seconds",
                "Times until a linearizable read was confirmed: the request for a read index, and its application here.",
                vec![(Labels::new(), self.freshness.confirm_times())],
            ),
        ]
    }

    fn of_leadership(&self, figures: Option<&RaftFigures>) -> Vec<MetricFamily> {
        let me = self.cx.node_id();
        let leads = figures.map(|one| (Labels::new(), one.leader_id == Some(me)));
        let has_leader = figures.map(|one| (Labels::new(), one.leader_id.is_some()));
        let age = figures.and_then(|one| one.quorum_age).map(|age| (Labels::new(), age));
        let won = figures.map(|one| (Labels::new(), one.elections_won));
        let seen = figures.map(|one| (Labels::new(), one.leaders_seen));
        let term = figures.map(|one| (Labels::new(), one.term));
        vec![
            MetricFamily::gauges("concord_raft_term", "The term.", term),
            MetricFamily::gauges("concord_raft_leader", "1 on the leader, as far as it knows.", leads),
            MetricFamily::gauges("concord_raft_has_leader", "1 while this node knows a leader.", has_leader),
            MetricFamily::gauges(
                "concord_raft_quorum_ack_age_seconds",
                "On the leader: time since a majority last answered it.",
                age,
            ),
            MetricFamily::counters("concord_raft_leader_changes", "Leaders that this node has seen.", seen),
            MetricFamily::counters(
                "concord_raft_elections_won",
                "How often this node became the leader.",
                won,
            ),
        ]
    }

    /// The store and its volume.
    pub(super) fn of_store(&self) -> Vec<MetricFamily> {
        let consensus = self.cx.consensus();
        let figures = consensus.map(Consensus::figures);
        let of = |read: fn(&Figures) -> u64| figures.as_ref().map(|one| (Labels::new(), read(one)));
        let waiting = consensus.map(|one| (Labels::new(), one.store().waiting_bytes()));
        let snapshot = consensus.and_then(|one| one.store().current_snapshot());
        let snapshot_bytes = snapshot.as_ref().map(|file| (Labels::new(), file.bytes));
        let feed = consensus.map(|one| one.feed().figures());
        let free = self.disk_space.reserve.free_bytes().map(|free| (Labels::new(), free));
        let refuses = consensus.map(|_| (Labels::new(), self.disk_space.check().is_err()));
        vec![
            MetricFamily::gauges(
                "concord_store_history_revision",
                "Up to which revision the history is on the disk.",
                of(|one| one.history),
            ),
            MetricFamily::gauges(
                "concord_store_mirrored_revision",
                "The revision that sled is at; 0 while it is rebuilt.",
                of(|one| one.mirrored),
            ),
            MetricFamily::gauges(
                "concord_store_queue_bytes",
                "Applied changes that the history does not have yet; in memory.",
                waiting,
            ),
            MetricFamily::gauges(
                "concord_store_history_bytes",
                "Bytes of the history on the disk.",
                of(|one| one.history_bytes),
            ),
            MetricFamily::gauges(
                "concord_store_sled_bytes",
                "Bytes of sled on the disk when they were last measured.",
                of(|one| one.sled_bytes),
            ),
            MetricFamily::counters(
                "concord_store_sled_rebuilds",
                "How often sled was rebuilt.",
                of(|one| one.rebuilds),
            ),
            MetricFamily::gauges(
                "concord_store_snapshot_bytes",
                "Bytes of the newest snapshot.",
                snapshot_bytes,
            ),
            MetricFamily::gauges(
                "concord_store_volume_free_bytes",
                "Free bytes of the volume of the data directory.",
                free,
            ),
            MetricFamily::gauge(
                "concord_store_disk_reserve_bytes",
                "Free bytes below which writes other than deletes are rejected.",
                self.disk_space.reserve.reserve_bytes(),
            ),
            MetricFamily::gauges(
                "concord_store_refuses_writes",
                "1 while this node rejects writes for lack of disk space, on its volume or on those of a majority.",
                refuses,
            ),
            MetricFamily::gauge(
                "concord_memory_sled_cache_max_bytes",
                "The limit of sled's cache.",
                self.cx.options.store.sled_cache_bytes,
            ),
            MetricFamily::gauges(
                "concord_memory_feed_bytes",
                "Recent changes for watches, in memory.",
                feed.map(|(_, bytes)| (Labels::new(), bytes)),
            ),
            MetricFamily::gauges(
                "concord_feed_events",
                "Recent changes for watches.",
                feed.map(|(events, _)| (Labels::new(), events)),
            ),
        ]
    }
}

fn of_members(figures: Option<&RaftFigures>) -> Vec<MetricFamily> {
    let count = |voters: bool| {
        figures.map_or(0, |one| one.members.iter().filter(|member| member.voter == voters).count())
    };
    let counts = figures.map(|_| [("voter", count(true)), ("learner", count(false))]);
    let counts = counts.into_iter().flatten().map(|(role, count)| (label("role", role), count));
    let (lag, silent, reachable) = figures.map_or_else(Default::default, |one| {
        (
            members(one, |member| member.lag),
            members(one, |member| member.silent_for),
            members(one, |member| member.is_reachable),
        )
    });
    vec![
        MetricFamily::gauges("concord_raft_members", "Members, with and without a vote.", counts),
        MetricFamily::gauges(
            "concord_raft_member_lag_entries",
            "On the leader: entries of its log that a member lacks.",
            lag,
        ),
        MetricFamily::gauges(
            "concord_raft_member_silent_seconds",
            "On the leader: time since a member last answered it.",
            silent,
        ),
        MetricFamily::gauges(
            "concord_raft_member_reachable",
            "On the leader: 1 for a member that has answered within the last 3 seconds.",
            reachable,
        ),
    ]
}

fn of_log(figures: Option<&RaftFigures>) -> Vec<MetricFamily> {
    let of = |read: fn(&RaftFigures) -> u64| figures.map(|one| (Labels::new(), read(one)));
    let bytes = |read: fn(&RaftFigures) -> usize| figures.map(|one| (Labels::new(), read(one)));
    let snapshots = figures.map(|one| one.snapshots).into_iter().flatten();
    let snapshots = snapshots.map(|(outcome, count)| (label("outcome", outcome), count));
    let stalled = figures.map(|one| (Labels::new(), one.log.stalled));
    vec![
        MetricFamily::gauges(
            "concord_raft_last_log_index",
            "The last entry of this node's log.",
            of(|one| one.last_log_index),
        ),
        MetricFamily::gauges(
            "concord_raft_committed_index",
            "The last entry that this node knows to be committed.",
            of(|one| one.committed_index),
        ),
        MetricFamily::gauges(
            "concord_raft_applied_index",
            "The last entry that this node has applied.",
            of(|one| one.applied_index),
        ),
        MetricFamily::gauges(
            "concord_raft_snapshot_index",
            "The last entry of the newest snapshot.",
            of(|one| one.snapshot_index),
        ),
        MetricFamily::gauges(
            "concord_raft_purged_index",
            "The last entry that was purged from the log.",
            of(|one| one.purged_index),
        ),
        MetricFamily::counters("concord_raft_snapshots", "Snapshots by outcome.", snapshots),
        MetricFamily::gauges(
            "concord_raft_snapshots_sending",
            "Snapshots that are being sent.",
            bytes(|one| one.snapshots_in_flight),
        ),
        MetricFamily::gauges(
            "concord_raft_log_disk_bytes",
            "Bytes of the log's files.",
            of(|one| one.log.disk_bytes),
        ),
        MetricFamily::gauges(
            "concord_raft_log_unflushed_writes",
            "Writes to the log that are not durable yet.",
            of(|one| one.log.unflushed_writes),
        ),
        MetricFamily::gauges(
            "concord_raft_log_unflushed_bytes",
            "Bytes of the writes to the log that are not durable yet.",
            bytes(|one| one.log.unflushed_bytes),
        ),
        MetricFamily::gauges(
            "concord_raft_log_stalled_seconds",
            "For how long the log has made no progress although it should; otherwise 0.",
            stalled,
        ),
        MetricFamily::gauges(
            "concord_memory_log_recent_bytes",
            "The newest entries of the log, in memory.",
            bytes(|one| one.log.recent_bytes),
        ),
        MetricFamily::gauges(
            "concord_memory_log_cache_bytes",
            "The cache of raft-log; it shares the bytes of the newest entries.",
            of(|one| one.log.cache_bytes),
        ),
    ]
}
