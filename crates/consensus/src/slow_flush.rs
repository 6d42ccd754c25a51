//! How long the flushes of this node's log take, and whether most of them are slow.
//!
//! raft-log calls back for each write of a flush, one after another. The first of these calls measures the flush, the
//! others belong to it. Nothing is logged where a flush ends: the output of the log may be on the disk that is slow.
//!
//! **Invariant:** each second has at most one line, and the fsync of the log never waits for it.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    histogram::{Histogram, TimeCounts},
    log::Log,
};

/// A flush that takes longer is slow: some ten times as long as that of a disk without a cache. A bound of the buckets.
const SLOW_FLUSH: Duration = Duration::from_millis(100);
/// An alarm needs so many slow flushes, and that they are half of all, within five seconds or within a minute: a single pause
/// of a disk raises none. The shorter time shows a disk that was fast until now, the longer one a node with few writes.
const SLOW_FLUSHES_MIN: u64 = 5;
/// How often the flushes are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Looks within five seconds, and within a minute.
const LOOKS_SOON: usize = 5;
const LOOKS_MAX: usize = 60;
/// Looks without a line after a line.
const LOOKS_SILENT: u32 = 10;
/// A call so soon after another one belongs to the same flush: no disk writes in less.
const SAME_FLUSH: Duration = Duration::from_micros(20);
/// The same for a write that was queued before the last flush began: the thread of the flushes may have paused between two
/// calls. A later call shows that the write was left for the next flush.
const SAME_FLUSH_MAX: Duration = Duration::from_millis(1);

/// The flushes of some time, when most of them were slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowFlushes {
    /// The seconds in which they were.
    pub within_s: usize,
    /// How many took longer than a tenth of a second.
    pub slow: u64,
    /// All of them.
    pub all: u64,
    /// The longest.
    pub longest: Duration,
}

/// The flush that was measured last.
#[derive(Debug, Clone, Copy)]
struct LastFlush {
    began: Instant,
    /// When its last write was called back.
    called_back: Instant,
}

/// The times of the flushes of a log.
#[derive(Debug, Default)]
pub(super) struct FlushTimes {
    times: Histogram,
    /// The longest since the last look, in microseconds.
    longest_us: AtomicU64,
    /// Only the thread of the flushes locks it.
    last: Mutex<Option<LastFlush>>,
    alarm: Mutex<Option<SlowFlushes>>,
}

impl FlushTimes {
    /// A write that was queued at `queued` is durable at `now`.
    pub(super) fn ended(&self, queued: Instant, now: Instant) {
        // A value of two times has no state in between.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut began = queued;
        if let Some(flush) = &mut *last {
            let same = if queued <= flush.began { SAME_FLUSH_MAX } else { SAME_FLUSH };
            if now.saturating_duration_since(flush.called_back) < same {
                flush.called_back = now;
                return;
            }
            // It waited for the flush before it, which is no part of this one.
            began = queued.max(flush.called_back);
        }
        *last = Some(LastFlush { began, called_back: now });
        drop(last);
        let took = now.saturating_duration_since(began);
        self.times.observe(took);
        self.longest_us.fetch_max(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> TimeCounts {
        self.times.read()
    }

    /// Set while most flushes are slow.
    pub(super) fn slow(&self) -> Option<SlowFlushes> {
        *self.alarm.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The flushes within one interval.
#[derive(Debug, Clone, Copy, Default)]
struct Look {
    all: u64,
    slow: u64,
    longest: Duration,
}

/// The looks of the last minute.
#[derive(Debug, Default)]
struct Looks {
    recent: VecDeque<Look>,
    before: TimeCounts,
}

impl Looks {
    /// Looks at the flushes since the last look. Returns them, and what is wrong with those of the last minute.
    fn look(&mut self, counts: TimeCounts, longest: Duration) -> (Look, Option<SlowFlushes>) {
        let all = counts.count().saturating_sub(self.before.count());
        let slow = counts.longer_than(SLOW_FLUSH).saturating_sub(self.before.longer_than(SLOW_FLUSH));
        let now = Look { all, slow, longest };
        self.before = counts;
        self.recent.push_back(now);
        if self.recent.len() > LOOKS_MAX {
            self.recent.pop_front();
        }
        let slow_within = |looks: usize| {
            let sum = self.recent.iter().rev().take(looks).fold(Look::default(), |sum, one| Look {
                all: sum.all + one.all,
                slow: sum.slow + one.slow,
                longest: sum.longest.max(one.longest),
            });
            let Look { all, slow, longest } = sum;
            let is_alarm = slow >= SLOW_FLUSHES_MIN && slow * 2 >= all;
            is_alarm.then_some(SlowFlushes { within_s: looks, slow, all, longest })
        };
        (now, slow_within(LOOKS_SOON).or_else(|| slow_within(LOOKS_MAX)))
    }
}

/// Looks at the flushes of a log each second, and logs those that are slow.
pub(super) async fn report(log: Log) -> Result<(), String> {
    let flushes: Arc<FlushTimes> = log.flushes();
    drop(log);
    let (mut looks, mut silent, mut untold) = (Looks::default(), 0_u32, Look::default());
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let longest = Duration::from_micros(flushes.longest_us.swap(0, Ordering::Relaxed));
        let (now, alarm) = looks.look(flushes.read(), longest);
        *flushes.alarm.lock().unwrap_or_else(PoisonError::into_inner) = alarm;
        silent = silent.saturating_sub(1);
        untold = Look {
            all: untold.all + now.all,
            slow: untold.slow + now.slow,
            longest: untold.longest.max(now.longest),
        };
        if silent == 0 && untold.slow > 0 {
            let Look { all, slow, longest } = std::mem::take(&mut untold);
            let longest_ms = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
            tracing::warn!(
                all,
                slow,
                longest_ms,
                "the disk is slow: {slow} of the last {all} fsyncs of the log took longer than {} ms, the longest {:.2} s",
                SLOW_FLUSH.as_millis(),
                longest.as_secs_f64()
            );
            silent = LOOKS_SILENT;
        } else if untold.slow == 0 {
            untold = Look::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_writes_of_one_flush_are_measured_once_and_without_their_wait() {
        let (times, base) = (FlushTimes::default(), Instant::now());
        let at = |time: u64| base + ms(time);
        // Two writes of one flush.
        times.ended(at(0), at(300));
        times.ended(at(0), at(300) + Duration::from_micros(900));
        // Those that came meanwhile go with the next flush, which began when the first had ended.
        times.ended(at(100), at(601));
        times.ended(at(200), at(601) + Duration::from_micros(5));
        // One of them was left for a flush of its own.
        times.ended(at(200), at(901));
        // The disk was idle.
        times.ended(at(1000), at(1002));
        let counts = times.read();
        assert_eq!((counts.count(), counts.longer_than(SLOW_FLUSH)), (4, 3));
        assert_eq!(counts.sum.as_millis(), 300 + 300 + 300 + 2);
        assert_eq!(times.longest_us.load(Ordering::Relaxed), 300_100);
    }

    #[test]
    fn an_alarm_is_raised_while_half_of_the_flushes_are_slow() {
        let (times, mut looks) = (Histogram::new(1), Looks::default());
        let mut look = |fast: u64, slow: u64| {
            (0..fast).for_each(|_| times.observe(ms(1)));
            (0..slow).for_each(|_| times.observe(ms(300)));
            looks.look(times.read(), ms(300)).1
        };
        assert_eq!(look(0, 4), None, "too few");
        assert_eq!(look(5, 1), Some(SlowFlushes { within_s: 5, slow: 5, all: 10, longest: ms(300) }));
        assert_eq!(look(1, 0), None, "most are fast");
        assert_eq!(look(0, 1).map(|one| one.slow), Some(6));
        for _ in 0..LOOKS_SOON {
            look(0, 0);
        }
        let within = |alarm: Option<SlowFlushes>| alarm.map(|one| (one.within_s, one.slow, one.all));
        assert_eq!(within(look(0, 1)), Some((60, 7, 13)), "a node with few writes");
        assert_eq!(look(500, 0), None);
        for _ in 0..LOOKS_SOON {
            look(0, 0);
        }
        (0..4).for_each(|_| assert_eq!(look(0, 1), None));
        assert_eq!(within(look(0, 1)), Some((5, 5, 5)), "a busy node whose disk was fast until now");
        let ended = (0..LOOKS_MAX).filter(|_| look(0, 0).is_none()).count();
        assert!(ended > 0 && look(0, 0).is_none(), "a minute later it has ended");
    }
}
