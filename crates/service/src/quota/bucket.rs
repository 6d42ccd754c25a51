//! Token buckets, each stored as one number: the time at which the bucket is full again (the generic cell rate algorithm).
//!
//! A bucket has `count` tokens and fills in `window`. Taking a token moves the time by `window / count`. It is rejected if
//! the time would be more than `window` away.
//!
//! **Invariant:** a changed rate needs no change of the bucket, because the bucket stores a time.

use std::sync::atomic::{AtomicU64, Ordering};

/// Nanoseconds of a second.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// `count` tokens per `window`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) count: u64,
    /// In nanoseconds.
    pub(crate) window: u64,
}

impl Rate {
    pub(super) fn per_second(count: u64) -> Self {
        Self { count, window: SECOND }
    }

    /// The nanoseconds by which one token moves the time. With a count of 0, more than the window.
    pub(super) fn price(self) -> u64 {
        self.window.checked_div(self.count).map_or(self.window.saturating_add(1), |price| price.max(1))
    }

    /// The tokens in a bucket that is full at `full_at`.
    pub(super) fn left(self, full_at: u64, now: u64) -> u64 {
        self.window.saturating_sub(full_at.saturating_sub(now)) / self.price()
    }

    /// The new time of the bucket after taking a token. The error is the time until there is one.
    pub(super) fn after_one(self, full_at: u64, now: u64) -> Result<u64, u64> {
        let next = full_at.max(now).saturating_add(self.price());
        let ahead = next - now;
        if ahead <= self.window { Ok(next) } else { Err(ahead - self.window) }
    }
}

/// A bucket, shared by all requests of a key.
#[derive(Debug, Default)]
pub(super) struct Bucket(AtomicU64);

impl Bucket {
    /// Takes a token. The error is the time until there is one.
    pub(super) fn take(&self, rate: Rate, now: u64) -> Result<(), u64> {
        let take = |full_at| rate.after_one(full_at, now).ok();
        match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(()),
            Err(full_at) => Err(rate.after_one(full_at, now).err().unwrap_or_default()),
        }
    }

    /// Gives back what [`Self::take`] took.
    pub(super) fn give_back(&self, rate: Rate) {
        let give = |full_at: u64| Some(full_at.saturating_sub(rate.price()));
        let _it_never_refuses = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, give);
    }

    /// When the bucket is full.
    pub(super) fn full_at(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Whole seconds, rounded up, at least one.
pub(super) fn seconds(nanos: u64) -> u64 {
    nanos.div_ceil(SECOND).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_bucket_has_the_tokens_of_a_second() {
        let (bucket, rate) = (Bucket::default(), Rate::per_second(10));
        let now = 100 * SECOND;
        assert_eq!(rate.left(bucket.full_at(), now), 10);
        for _ in 0..10 {
            assert_eq!(bucket.take(rate, now), Ok(()));
        }
        assert_eq!(rate.left(bucket.full_at(), now), 0);
        assert_eq!(bucket.take(rate, now), Err(SECOND / 10));
        assert_eq!(bucket.take(rate, now + SECOND / 10), Ok(()));
        assert!(bucket.take(rate, now + SECOND / 10).is_err());
        bucket.give_back(rate);
        assert_eq!(bucket.take(rate, now + SECOND / 10), Ok(()));
        assert_eq!(rate.left(bucket.full_at(), now + 10 * SECOND), 10);
    }

    #[test]
    fn over_a_long_time_no_more_than_the_rate_is_taken() {
        let (bucket, rate) = (Bucket::default(), Rate::per_second(1000));
        let step = SECOND / 100_000;
        let taken = (0..1_000_000).filter(|turn| bucket.take(rate, turn * step).is_ok()).count();
        assert!((10_999..=11_001).contains(&taken), "{taken}: ten seconds and the first burst");
    }

    #[test]
    fn a_rate_of_0_rejects_all_and_a_very_high_one_none() {
        let bucket = Bucket::default();
        assert!(bucket.take(Rate::per_second(0), SECOND).is_err());
        for _ in 0..1000 {
            assert_eq!(bucket.take(Rate::per_second(u64::MAX), SECOND), Ok(()));
        }
    }

    #[test]
    fn a_rate_may_change() {
        let bucket = Bucket::default();
        for _ in 0..10 {
            bucket.take(Rate::per_second(10), 0).unwrap();
        }
        assert!(bucket.take(Rate::per_second(1000), 0).is_err());
        assert_eq!(bucket.take(Rate::per_second(1000), SECOND / 1000), Ok(()));
    }
}
