//! Computes the time of log entries from the clocks of the members. No clock is trusted alone.
//!
//! The monotonic clock of a process never jumps, but has no date. So each clock is described by its *offset*: its reading
//! minus this node's monotonic clock. When a clock jumps, its offset changes. The clocks *agree* on a time when a majority
//! of the voters is within [`TOLERANCE`] of their median.
//!
//! ```text
//! the agreed time is within the tolerance of the log's time   → the log's time follows it: this node's own clock if
//!                                                              that is within the tolerance, otherwise the median
//! a majority agrees on another time                          → it is followed once it was agreed on for `CONFIRM`
//! no majority agrees                                         → the log's time advances with the monotonic clock
//! ```
//!
//! Times never go back: while the followed time is behind the log's last entry, times advance at half the speed of the
//! monotonic clock.
//!
//! At a start there is no earlier time. An agreed time is followed at once. Without one, the earliest known clock is
//! followed, but not before the log's last entry: a time that is too early deletes nothing.
//!
//! **Invariants:** this file reads no clock; readings are arguments. One clock alone never moves the log's time by more
//! than the tolerance, unless it belongs to the only voter.

use std::{collections::BTreeMap, time::Duration};

use concord_model::time::Timestamp;
use concord_net::NodeId;

/// Clocks that differ by less agree: a synchronised clock is off by milliseconds, an unsynchronised one by seconds.
pub(super) const TOLERANCE: Duration = Duration::from_secs(10);
/// For how long a majority must agree on another time before the log's time follows it.
pub(super) const CONFIRM: Duration = Duration::from_secs(30);
/// How long a reading of another member's clock is valid.
const READING_AGE_MAX: Duration = Duration::from_secs(10);

/// This node's two clocks, in microseconds, read at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClockReading {
    /// The wall clock, since 1970.
    pub(super) wall: Timestamp,
    /// The monotonic clock, since the process began.
    pub(super) elapsed: u64,
}

impl ClockReading {
    fn offset(self) -> i64 {
        signed(self.wall.0) - signed(self.elapsed)
    }
}

/// The last reading of another voter's clock.
#[derive(Debug, Clone, Copy)]
struct Heard {
    offset: i64,
    at: u64,
}

/// A wrong clock, or a log's time that is ahead of the clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deviation {
    /// This node's clock is ahead of the log's time by this many microseconds (behind, if negative).
    Own(i64),
    /// Another voter's clock is, likewise.
    Other(NodeId, i64),
    /// The log's time is ahead of the followed time.
    Log(i64),
}

/// A time of the log, in microseconds since 1970, and this node's monotonic clock at that moment.
#[derive(Debug, Clone, Copy, Default)]
struct LogTime {
    time: u64,
    elapsed: u64,
}

/// The clock of the log on one node.
#[derive(Debug, Default)]
pub(super) struct LogClock {
    /// The other voters, with the last readings of their clocks.
    others: BTreeMap<NodeId, Option<Heard>>,
    /// The offset of the followed time. `None` before the first one is chosen.
    followed: Option<i64>,
    /// Another offset that a majority agrees on, and since when.
    candidate: Option<(i64, u64)>,
    /// Since when a majority agrees with the followed time.
    agreed_since: Option<u64>,
    /// The newest time of the log that is known here.
    newest: LogTime,
}

impl LogClock {
    /// Sets the other voters. Keeps the readings of those that stay.
    pub(super) fn set_others(&mut self, voters: impl Iterator<Item = NodeId>) {
        self.others = voters.map(|id| (id, self.others.get(&id).copied().flatten())).collect();
    }

    /// Notes a reading of another voter's clock. `asked` and `answered` are this node's monotonic clock before and after
    /// the call.
    pub(super) fn hear(&mut self, id: NodeId, wall: Timestamp, asked: u64, answered: u64) {
        let offset = signed(wall.0) - signed(asked.midpoint(answered));
        if let Some(heard) = self.others.get_mut(&id) {
            *heard = Some(Heard { offset, at: answered });
        }
    }

    /// Whether a time is followed.
    pub(super) fn is_set(&self) -> bool {
        self.followed.is_some()
    }

    /// Computes the followed time. Without a majority, a first time is chosen only if `must_choose`.
    pub(super) fn update(&mut self, now: ClockReading, last_at: Timestamp, must_choose: bool) {
        if last_at.0 > self.slow_time(now).time {
            self.newest = LogTime { time: last_at.0, elapsed: now.elapsed };
        }
        let (own, known) = (now.offset(), self.known(now));
        let agreed = self.agreed(&known);
        let near = |a: i64, b: i64| a.abs_diff(b) <= micros(TOLERANCE);
        let refined = |agreed: i64| if near(own, agreed) { own } else { agreed };
        match (self.followed, agreed) {
            (None, Some(agreed)) => {
                self.followed = Some(refined(agreed));
                self.agreed_since = Some(now.elapsed);
            }
            (None, None) if must_choose => {
                let earliest = known.iter().copied().min().unwrap_or(own);
                self.followed = Some(earliest.max(signed(self.newest.time) - signed(now.elapsed)));
            }
            (None, None) => {}
            (Some(followed), Some(agreed)) if near(followed, agreed) => {
                self.followed = Some(refined(agreed));
                self.candidate = None;
                self.agreed_since.get_or_insert(now.elapsed);
            }
            (Some(_), Some(agreed)) => {
                self.agreed_since = None;
                let candidate = self.candidate.filter(|(offset, _)| near(*offset, agreed));
                let (_, since) = *self.candidate.insert(candidate.unwrap_or((agreed, now.elapsed)));
                if now.elapsed.saturating_sub(since) >= micros(CONFIRM) {
                    self.followed = Some(refined(agreed));
                    self.candidate = None;
                    self.agreed_since = Some(now.elapsed);
                }
            }
            (Some(_), None) => (self.candidate, self.agreed_since) = (None, None),
        }
    }

    /// The time of the next entry.
    pub(super) fn stamp(&mut self, now: ClockReading, last_at: Timestamp) -> Timestamp {
        self.update(now, last_at, true);
        let followed = self.followed_time(now).unwrap_or(now.wall.0);
        let slow = self.slow_time(now);
        self.newest =
            if followed >= slow.time { LogTime { time: followed, elapsed: now.elapsed } } else { slow };
        Timestamp(self.newest.time)
    }

    /// The log's time as far as it is known. Reading it does not influence later times.
    pub(super) fn time(&self, now: ClockReading, last_at: Timestamp) -> Timestamp {
        let followed = self.followed_time(now).unwrap_or_default();
        Timestamp(followed.max(self.slow_time(now).time).max(last_at.0))
    }

    /// The newest time, advanced at half speed. Its `elapsed` keeps the remainder of the division for later.
    fn slow_time(&self, now: ClockReading) -> LogTime {
        let LogTime { time, elapsed } = self.newest;
        let half = now.elapsed.saturating_sub(elapsed) / 2;
        LogTime { time: time.saturating_add(half), elapsed: elapsed.saturating_add(half * 2) }
    }

    /// The time for decisions by age: a majority and this node's own clock have agreed on it for at least so long.
    pub(super) fn confirmed(&self, now: ClockReading, at_least: Duration) -> Option<Timestamp> {
        let since = self.agreed_since?;
        let is_own_right = !self.deviations(now).iter().any(|one| matches!(one, Deviation::Own(_)));
        let is_confirmed = is_own_right && now.elapsed.saturating_sub(since) >= micros(at_least);
        self.followed_time(now).filter(|_| is_confirmed).map(Timestamp)
    }

    /// The deviations beyond the tolerance.
    pub(super) fn deviations(&self, now: ClockReading) -> Vec<Deviation> {
        let Some(followed) = self.followed else { return Vec::new() };
        let others = self.others.iter().filter_map(|(id, heard)| {
            let heard = heard.filter(|heard| is_recent(*heard, now))?;
            Some(Deviation::Other(*id, heard.offset - followed))
        });
        let ahead = signed(self.newest.time) - followed - signed(now.elapsed);
        let log = Some(Deviation::Log(ahead)).filter(|_| ahead > 0);
        let all = std::iter::once(Deviation::Own(now.offset() - followed)).chain(others).chain(log);
        all.filter(|deviation| deviation.micros().unsigned_abs() > micros(TOLERANCE)).collect()
    }

    fn followed_time(&self, now: ClockReading) -> Option<u64> {
        let followed = self.followed?;
        Some(u64::try_from(followed + signed(now.elapsed)).unwrap_or(0))
    }

    /// The offsets of all known clocks, including this node's own, in ascending order.
    fn known(&self, now: ClockReading) -> Vec<i64> {
        let heard = self.others.values().flatten().filter(|heard| is_recent(**heard, now));
        let mut known: Vec<i64> = heard.map(|heard| heard.offset).chain([now.offset()]).collect();
        known.sort_unstable();
        known
    }

    /// The median of the clocks, if a majority of the voters is near it. This node counts as a voter, even if it is a
    /// learner.
    fn agreed(&self, known: &[i64]) -> Option<i64> {
        let median = *known.get(known.len() / 2)?;
        let near = known.iter().filter(|offset| offset.abs_diff(median) <= micros(TOLERANCE)).count();
        let voters = self.others.len() + 1;
        Some(median).filter(|_| near > voters / 2)
    }
}

impl Deviation {
    pub(super) fn micros(self) -> i64 {
        match self {
            Self::Own(micros) | Self::Other(_, micros) | Self::Log(micros) => micros,
        }
    }
}

fn is_recent(heard: Heard, now: ClockReading) -> bool {
    now.elapsed.saturating_sub(heard.at) <= micros(READING_AGE_MAX)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Limits a time to a value that is later than any date, and so small that sums and differences do not overflow.
fn signed(micros: u64) -> i64 {
    i64::try_from(micros).unwrap_or(i64::MAX).min(i64::MAX / 8)
}

#[cfg(test)]
mod tests;
