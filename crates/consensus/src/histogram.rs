//! Histograms of durations. An observation takes two additions and no lock.
//!
//! Each thread has counters of its own, up to the number of threads that the histogram was made for: counters that all
//! threads change would move between the caches of the cores with each request.
//!
//! **Invariant:** an observation allocates nothing and never waits. Reading is not atomic over all counters; each of them
//! only grows.

use std::{
    cell::Cell,
    num::NonZero,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    thread::available_parallelism,
    time::Duration,
};

/// Most threads with counters of their own, unless a histogram is made for more: some 3 KiB.
const THREADS_MAX: usize = 16;

/// The upper bounds of the buckets: those that OpenTelemetry recommends for HTTP, and smaller ones, because a request for one
/// config takes some tens of microseconds.
const BOUNDS_MICROS: [u64; BOUNDS] = [
    100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 75_000, 100_000, 250_000, 500_000, 750_000,
    1_000_000, 2_500_000, 5_000_000, 7_500_000, 10_000_000,
];
/// The same in seconds.
pub const BOUNDS_SECONDS: [f64; BOUNDS] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0,
];
/// How many buckets have an upper bound.
const BOUNDS: usize = 19;
const BUCKETS: usize = BOUNDS + 1;

/// The number of the next thread.
static NEXT_THREAD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The number of this thread, from 1; 0 before it has one.
    static THREAD: Cell<usize> = const { Cell::new(0) };
}

/// The number of this thread, for counters of its own.
#[must_use]
pub fn thread_number() -> usize {
    THREAD.with(|own| {
        if own.get() == 0 {
            own.set(NEXT_THREAD.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1));
        }
        own.get()
    })
}

/// The counters of one thread, or of several if there are more threads, in cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct ThreadCounts {
    buckets: [AtomicU64; BUCKETS],
    sum_nanos: AtomicU64,
}

/// A histogram of durations.
#[derive(Debug)]
pub struct Histogram {
    parts: Box<[ThreadCounts]>,
}

/// The values of a histogram.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimeCounts {
    /// Observations per bucket. The last bucket has no upper bound.
    pub buckets: [u64; BUCKETS],
    /// The sum of all durations.
    pub sum: Duration,
}

impl TimeCounts {
    /// The number of observations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The number of observations above the largest bound of a bucket that is not greater than `time`.
    #[must_use]
    pub fn longer_than(&self, time: Duration) -> u64 {
        let below = BOUNDS_MICROS.iter().filter(|bound| u128::from(**bound) <= time.as_micros()).count();
        self.buckets[below..].iter().sum()
    }
}

impl Default for Histogram {
    /// A histogram for as many threads as run at once.
    fn default() -> Self {
        Self::new(available_parallelism().map_or(2, NonZero::get).min(THREADS_MAX))
    }
}

impl Histogram {
    /// A histogram for this many threads; more threads share counters.
    #[must_use]
    pub fn new(threads: usize) -> Self {
        Self { parts: (0..threads.max(1)).map(|_| ThreadCounts::default()).collect() }
    }

    /// Counts a duration.
    pub fn observe(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // Most durations are short.
        let bucket = BOUNDS_MICROS.iter().position(|bound| nanos <= bound * 1000).unwrap_or(BOUNDS);
        let part = &self.parts[thread_number() % self.parts.len()];
        part.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        part.sum_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// The values so far.
    #[must_use]
    pub fn read(&self) -> TimeCounts {
        let mut counts = TimeCounts::default();
        for part in &self.parts {
            for (sum, one) in counts.buckets.iter_mut().zip(&part.buckets) {
                *sum = sum.saturating_add(one.load(Ordering::Relaxed));
            }
            let nanos = Duration::from_nanos(part.sum_nanos.load(Ordering::Relaxed));
            counts.sum = counts.sum.saturating_add(nanos);
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_are_the_same_in_both_units_and_ascend() {
        for (micros, seconds) in BOUNDS_MICROS.into_iter().zip(BOUNDS_SECONDS) {
            assert!((Duration::from_micros(micros).as_secs_f64() - seconds).abs() < 1e-12, "{micros}");
        }
        assert!(BOUNDS_MICROS.is_sorted());
    }

    #[test]
    fn a_duration_at_a_bound_is_in_the_lower_bucket() {
        let histogram = Histogram::new(3);
        for micros in [0, 100, 101, 10_000_000, 10_000_001] {
            histogram.observe(Duration::from_micros(micros));
        }
        let counts = histogram.read();
        assert_eq!((counts.buckets[0], counts.buckets[1]), (2, 1));
        assert_eq!((counts.buckets[BOUNDS - 1], counts.buckets[BOUNDS]), (1, 1));
        assert_eq!(counts.longer_than(Duration::from_micros(100)), 3);
        assert_eq!(counts.longer_than(Duration::from_secs(10)), 1);
        assert_eq!(counts.count(), 5);
        assert_eq!(counts.sum, Duration::from_micros(20_000_202));
    }

    #[test]
    fn no_observation_of_many_threads_is_lost() {
        let histogram = Histogram::new(2);
        std::thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| (0..1000).for_each(|_| histogram.observe(Duration::from_millis(1))));
            }
        });
        assert_eq!(histogram.read().count(), 5000);
    }
}
