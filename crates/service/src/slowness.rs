//! Slow writes: a line of the log that says which part was slow, and the alarms about what makes a cluster slow.
//!
//! ```text
//! a write took 0.84 s: 0.01 s waiting, 0.00 s preparation, 0.82 s until a majority had it on disk (0.80 s on this
//! node's own), 0.01 s applying
//! ```
//!
//! The leader that decides a write logs its parts. A node that forwards it logs only that the leader was slow.
//!
//! **Invariant:** each second has at most one line about writes, and none has a key or data of a record.

use std::time::Duration;

use tokio::time::Instant;

use super::{line_limit::LineLimit, request::Alarm};
use concord_consensus::{Consensus, FLAPPING_CHANGES_MIN, WriteTimes};
use concord_net::NodeId;

/// A write that takes longer is slow: some fifty times as long as with disks that keep up.
const SLOW_WRITE: Duration = Duration::from_millis(500);

/// Where the time of a write goes, on the leader.
#[derive(Debug)]
pub(crate) struct WriteClock {
    begun: Instant,
    /// Until no other write of the same config was in progress.
    locked: Duration,
    /// Preparing it, also after the definition has changed: checks of data against the schema, above all.
    prepared: Duration,
    decided: WriteTimes,
}

impl WriteClock {
    pub(crate) fn start() -> Self {
        let zero = Duration::ZERO;
        Self { begun: Instant::now(), locked: zero, prepared: zero, decided: WriteTimes::default() }
    }

    /// The write has all locks.
    pub(crate) fn has_locks(&mut self) {
        self.locked = self.begun.elapsed();
    }

    /// It was prepared once more, since `begun`.
    pub(crate) fn has_prepared(&mut self, begun: Instant) {
        self.prepared += begun.elapsed();
    }

    /// It was decided.
    pub(crate) fn has_decided(&mut self, times: WriteTimes) {
        self.decided = times;
    }

    /// The parts, as a sentence.
    fn parts(&self) -> String {
        let WriteTimes { queued, proposed, committed, own_flush, applied } = self.decided;
        let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
        let own = own_flush.map_or_else(
            || "this node's own was later".to_owned(),
            |own| format!("{} on this node's own", seconds(own)),
        );
        format!(
            "{} waiting, {} preparation, {} until a majority had it on disk ({own}), {} applying",
            seconds(self.locked + queued + proposed),
            seconds(self.prepared),
            seconds(committed),
            seconds(applied)
        )
    }
}

/// Logs slow writes of this node.
#[derive(Debug, Default)]
pub(crate) struct SlowWrites(LineLimit);

impl SlowWrites {
    /// A write was decided here, or was not in time.
    pub(crate) fn note(&self, clock: &WriteClock, is_decided: bool) {
        let took = clock.begun.elapsed();
        if took < SLOW_WRITE {
            return;
        }
        let Some(left_out) = self.0.due(Instant::now()) else { return };
        let (took_ms, seconds) = (took.as_millis(), took.as_secs_f64());
        if is_decided {
            let parts = clock.parts();
            tracing::warn!(took_ms, left_out, "a write took {seconds:.2} s: {parts}");
        } else {
            tracing::warn!(
                took_ms,
                left_out,
                "a write took {seconds:.2} s and was not decided in time: no majority has confirmed it, or the leader has \
                 changed"
            );
        }
    }

    /// The leader has decided a write that this node forwarded at `begun`.
    pub(crate) fn note_forwarded(&self, begun: Instant, leader: NodeId) {
        let took = begun.elapsed();
        if took < SLOW_WRITE {
            return;
        }
        let Some(left_out) = self.0.due(Instant::now()) else { return };
        let (took_ms, seconds) = (took.as_millis(), took.as_secs_f64());
        tracing::warn!(
            took_ms,
            left_out,
            leader,
            "a write waited {seconds:.2} s for the leader, node {leader}; its log says which part was slow"
        );
    }
}

/// The alarms about slow flushes of this node's log, and about a leader that changes again and again.
pub(crate) fn alarms(consensus: &Consensus, me: NodeId) -> Vec<Alarm> {
    let slow = consensus.slow_flushes().map(|flushes| Alarm {
        kind: "slow_flush",
        node_id: Some(me),
        message: format!(
            "the disk of node {me} is slow: {} of the {} flushes of its log within the last {} s took longer than 0.1 s, \
             the longest {:.2} s; writes wait for them",
            flushes.slow,
            flushes.all,
            flushes.within_s,
            flushes.longest.as_secs_f64()
        ),
    });
    let changes = consensus.unplanned_leader_changes();
    let flapping = (changes >= FLAPPING_CHANGES_MIN).then(|| Alarm {
        kind: "leader_changes",
        node_id: None,
        message: format!(
            "the leader changed {changes} times within the last minute, and nobody transferred its leadership: a disk, a \
             network or a process stands still for longer than the election timeout"
        ),
    });
    slow.into_iter().chain(flapping).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_slow_write_are_named() {
        let ms = Duration::from_millis;
        let times = WriteTimes {
            queued: ms(4),
            proposed: ms(3),
            committed: ms(820),
            own_flush: Some(ms(800)),
            applied: ms(10),
        };
        let mut clock = WriteClock { locked: ms(3), prepared: ms(1), ..WriteClock::start() };
        clock.has_decided(times);
        let text = "0.01 s waiting, 0.00 s preparation, 0.82 s until a majority had it on disk (0.80 s on this node's own), \
                    0.01 s applying";
        assert_eq!(clock.parts(), text);
        clock.has_decided(WriteTimes { own_flush: None, ..times });
        assert!(clock.parts().contains("(this node's own was later)"), "{}", clock.parts());
    }
}
