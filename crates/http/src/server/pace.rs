//! Measures how fast a client reads the bytes that wait for it, on all streams of a connection together.
//!
//! Only the time in which bytes wait counts: a watch that is silent for hours is not slow.
//!
//! **Invariant:** old measurements expire, so a client that has become fast does not count as slow.

use std::time::Duration;

use super::connection::millis;
use concord_model::limits::{SCARCE_RATE, SCARCE_TIMEOUT, SEND_BYTES_MIN};

#[derive(Debug, Default)]
pub(super) struct ReadingPace {
    /// How many sources have bytes that wait: responses over HTTP/2, the socket.
    owing: usize,
    /// Since when bytes have waited without a break, and for how long they had waited before.
    since: u64,
    before: u64,
    /// Bytes that the client has read in that time.
    taken: u64,
    /// Bytes read since the last complete [`SEND_BYTES_MIN`], and when those were complete.
    moved: usize,
    moved_at: Option<u64>,
}

impl ReadingPace {
    /// Records that bytes of one more source wait.
    pub(super) fn begin(&mut self, now: u64) {
        if self.owing == 0 {
            self.since = now;
        }
        self.owing += 1;
    }

    /// Records that no bytes of a source wait any more.
    pub(super) fn end(&mut self, now: u64) {
        self.owing -= 1;
        if self.owing == 0 {
            self.before += now.saturating_sub(self.since);
            self.forget(now);
        }
    }

    pub(super) fn note_taken(&mut self, bytes: usize, now: u64) {
        self.taken += bytes as u64;
        self.moved += bytes;
        if self.moved >= SEND_BYTES_MIN {
            (self.moved, self.moved_at) = (0, Some(now));
        }
    }

    /// Whether any bytes wait.
    pub(super) fn owes(&self) -> bool {
        self.owing > 0
    }

    /// Whether the client has read [`SEND_BYTES_MIN`] within this time.
    pub(super) fn has_moved_within(&self, time: Duration, now: u64) -> bool {
        self.moved_at.is_some_and(|at| now.saturating_sub(at) < millis(time))
    }

    /// Whether bytes wait, and the client reads them more slowly than [`SCARCE_RATE`].
    pub(super) fn is_slow(&mut self, now: u64) -> bool {
        if !self.owes() {
            return false;
        }
        let waited = self.waited(now);
        let is_slow =
            waited >= millis(SCARCE_TIMEOUT) && self.taken < waited.saturating_mul(SCARCE_RATE) / 1000;
        self.forget(now);
        is_slow
    }

    fn waited(&self, now: u64) -> u64 {
        self.before + if self.owes() { now.saturating_sub(self.since) } else { 0 }
    }

    fn forget(&mut self, now: u64) {
        let waited = self.waited(now);
        if waited >= 2 * millis(SCARCE_TIMEOUT) {
            let kept = millis(SCARCE_TIMEOUT);
            // In proportion, so that the rate does not change.
            self.taken =
                u64::try_from(u128::from(self.taken) * u128::from(kept) / u128::from(waited)).unwrap_or(0);
            (self.before, self.since) = (kept, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1000;

    #[test]
    fn only_the_time_in_which_something_waits_counts() {
        let mut pace = ReadingPace::default();
        pace.begin(SECOND);
        assert!(!pace.is_slow(5 * SECOND), "it has only begun");
        assert!(pace.is_slow(6 * SECOND));
        pace.end(6 * SECOND);
        assert!(!pace.owes() && !pace.is_slow(3600 * SECOND), "nothing waits");
        let mut silent = ReadingPace::default();
        silent.begin(SECOND);
        silent.end(SECOND + 1);
        silent.begin(3600 * SECOND);
        assert!(!silent.is_slow(3601 * SECOND));
    }

    #[test]
    fn a_caller_that_becomes_fast_or_slow_is_seen_to() {
        let mut pace = ReadingPace::default();
        pace.begin(0);
        assert!(pace.is_slow(1000 * SECOND));
        for second in 1001..1030 {
            pace.note_taken(4 << 20, second * SECOND);
        }
        assert!(!pace.is_slow(1030 * SECOND));
        assert!(pace.has_moved_within(Duration::from_secs(2), 1030 * SECOND));
        for second in 1031..1130 {
            pace.note_taken(1000, second * SECOND);
            pace.is_slow(second * SECOND);
        }
        assert!(pace.is_slow(1130 * SECOND));
        assert!(!pace.has_moved_within(Duration::from_secs(2), 1130 * SECOND));
    }
}
