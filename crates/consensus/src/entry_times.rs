//! When the newest entries of the log were appended, flushed on this node and committed: where the time of a write went.
//!
//! A ring of the newest entries, without a lock: the log, its flush and openraft each note one time of an entry. An entry
//! that is looked up too late has been overwritten, and its write has fewer parts.
//!
//! **Invariant:** noting a time never waits. A time belongs to the entry that is looked up, or there is none.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Entries in the ring: more than are in flight at once. 64 KiB.
const ENTRIES_MAX: u64 = 2048;
/// The index of a place without an entry.
const NO_ENTRY: u64 = u64::MAX;

/// Where the time of a write went, on the leader that decided it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WriteTimes {
    /// It waited until the entry before its own was decided.
    pub queued: Duration,
    /// Its entry waited until the log took it.
    pub proposed: Duration,
    /// From then until a majority had flushed the entry.
    pub committed: Duration,
    /// From then until this node's own log had flushed it. `None` if the majority was faster.
    pub own_flush: Option<Duration>,
    /// From the commit until it was applied.
    pub applied: Duration,
}

/// The times of an entry, in microseconds since the ring was made; 0 for what has not happened.
#[derive(Debug)]
struct EntryPlace {
    index: AtomicU64,
    appended: AtomicU64,
    flushed: AtomicU64,
    committed: AtomicU64,
}

/// The times of the newest entries.
#[derive(Debug)]
pub(super) struct EntryTimes {
    base: Instant,
    places: Box<[EntryPlace]>,
    /// The index after the last entry that is known to be committed.
    committed_end: AtomicU64,
}

impl Default for EntryTimes {
    fn default() -> Self {
        let place = |_| EntryPlace {
            index: AtomicU64::new(NO_ENTRY),
            appended: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            committed: AtomicU64::new(0),
        };
        let places = (0..ENTRIES_MAX).map(place).collect();
        Self { base: Instant::now(), places, committed_end: AtomicU64::new(0) }
    }
}

impl EntryTimes {
    fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.base).as_micros()).unwrap_or(u64::MAX).max(1)
    }

    fn place(&self, index: u64) -> &EntryPlace {
        let place = usize::try_from(index % ENTRIES_MAX).unwrap_or_default();
        &self.places[place]
    }

    /// The log takes the entries with these indexes.
    pub(super) fn appended(&self, entries: Range<u64>, at: Instant) {
        let now = self.micros(at);
        for index in entries {
            let place = self.place(index);
            place.index.store(NO_ENTRY, Ordering::Release);
            place.flushed.store(0, Ordering::Relaxed);
            place.committed.store(0, Ordering::Relaxed);
            place.appended.store(now, Ordering::Relaxed);
            place.index.store(index, Ordering::Release);
        }
    }

    /// This node's log has flushed the entries with these indexes.
    pub(super) fn flushed(&self, entries: Range<u64>, at: Instant) {
        self.note(entries, at, |place| &place.flushed);
    }

    /// All entries up to this one are committed.
    pub(super) fn committed(&self, index: u64, at: Instant) {
        let end = index.saturating_add(1);
        let before = self.committed_end.fetch_max(end, Ordering::Relaxed);
        self.note(before.max(end.saturating_sub(ENTRIES_MAX))..end, at, |place| &place.committed);
    }

    fn note(&self, entries: Range<u64>, at: Instant, time: fn(&EntryPlace) -> &AtomicU64) {
        let now = self.micros(at);
        for index in entries {
            let place = self.place(index);
            if place.index.load(Ordering::Acquire) == index {
                time(place).store(now, Ordering::Relaxed);
            }
        }
    }

    /// Where the time of an entry went that was proposed at `begun` and is applied at `end`.
    pub(super) fn of(&self, index: u64, begun: Instant, end: Instant) -> WriteTimes {
        let place = self.place(index);
        let is_it = || place.index.load(Ordering::Acquire) == index;
        let whole = WriteTimes { committed: end.saturating_duration_since(begun), ..WriteTimes::default() };
        if !is_it() {
            return whole;
        }
        let [appended, flushed, committed] =
            [&place.appended, &place.flushed, &place.committed].map(|time| time.load(Ordering::Relaxed));
        if committed == 0 || !is_it() {
            return whole;
        }
        let since = |from: u64, to: u64| Duration::from_micros(to.saturating_sub(from));
        WriteTimes {
            queued: Duration::ZERO,
            proposed: since(self.micros(begun), appended),
            committed: since(appended, committed),
            own_flush: (flushed > 0 && flushed <= committed).then(|| since(appended, flushed)),
            applied: since(committed, self.micros(end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_an_entry_are_its_own() {
        let times = EntryTimes::default();
        let at = |ms: u64| times.base + Duration::from_millis(ms);
        let ms = Duration::from_millis;
        times.appended(7..9, at(10));
        times.flushed(7..8, at(40));
        times.committed(8, at(60));
        let first = times.of(7, at(5), at(70));
        let expected = WriteTimes {
            queued: ms(0),
            proposed: ms(5),
            committed: ms(50),
            own_flush: Some(ms(30)),
            applied: ms(10),
        };
        assert_eq!(first, expected);
        assert_eq!(
            times.of(8, at(5), at(70)),
            WriteTimes { own_flush: None, ..expected },
            "the others were faster"
        );
        times.flushed(8..9, at(65));
        assert_eq!(times.of(8, at(5), at(70)).own_flush, None, "it was committed without this node");
    }

    #[test]
    fn an_entry_that_was_overwritten_has_only_its_whole_time() {
        let times = EntryTimes::default();
        let at = |ms: u64| times.base + Duration::from_millis(ms);
        times.appended(1..2, at(1));
        times.committed(1, at(2));
        times.appended(1 + ENTRIES_MAX..2 + ENTRIES_MAX, at(3));
        // A late flush of the old entry is not that of the new one.
        times.flushed(1..2, at(4));
        let whole = WriteTimes { committed: Duration::from_millis(9), ..WriteTimes::default() };
        assert_eq!(times.of(1, at(0), at(9)), whole);
        assert_eq!(times.of(1 + ENTRIES_MAX, at(0), at(9)), whole, "it is not committed");
        times.committed(1 + ENTRIES_MAX, at(8));
        assert_eq!(times.of(1 + ENTRIES_MAX, at(3), at(9)).committed, Duration::from_millis(5));
    }
}
