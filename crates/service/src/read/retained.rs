//! Keeps values in memory for later requests: pinned states and earlier states.
//!
//! A retained value holds records that the current state no longer has, and each write may add to them. So the sum of
//! these bytes is limited, as are the number of values and the time that one stays unused. While a limit is exceeded,
//! one value after the other is released:
//!
//! 1. If one access key owns more than half of the values, those of this key go before all others.
//! 2. Values that nobody has used since they were inserted go before those that somebody has.
//! 3. The least recently used value goes first.
//!
//! The last reference to a state may own a million records, and freeing them takes as long as reading them. So released
//! values are freed on a thread for blocking work, after the lock is released.
//!
//! **Invariants:** no worker thread frees a retained value. Whether or not requests arrive, a value is released at most
//! [`CHECK_INTERVAL`] after its idle limit, and the bytes exceed their limit by no more than what the cluster writes
//! within [`CHECK_INTERVAL`].

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{deferred_drop::DeferredDrop, origin::KeyTag};
use concord_consensus::Consensus;
use concord_state::State;

/// How often the limits are applied while values are retained: writes make the values grow.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A value that can be retained.
pub(super) trait Retainable: Debug + Send + Sized + 'static {
    /// Identifies the value.
    type Key: Debug + Clone + Ord + Send;

    /// An upper bound of the bytes that values keep in memory in addition to the current state. The values are in the
    /// order of their keys.
    fn bytes_kept<'a>(values: impl Iterator<Item = &'a Self> + Clone, current: &State) -> u64;
}

/// The limits of a [`Retained`].
#[derive(Debug, Clone, Copy)]
pub(super) struct RetainedLimits {
    pub(super) values_max: usize,
    /// Of what [`Retainable::bytes_kept`] returns.
    pub(super) bytes_max: u64,
    /// How long a value may stay unused.
    pub(super) idle_max: Duration,
}

/// Retained values, shared by the requests of a node.
#[derive(Debug)]
pub(super) struct Retained<T: Retainable> {
    values: Mutex<RetainedValues<T>>,
}

/// The content of a [`Retained`].
#[derive(Debug)]
pub(super) struct RetainedValues<T: Retainable> {
    limits: RetainedLimits,
    pub(super) by_key: BTreeMap<T::Key, RetainedValue<T>>,
    /// Values that were ever inserted.
    inserted: u64,
    /// Whether the task that applies the limits is running.
    is_sweeping: bool,
}

/// A retained value and its use.
#[derive(Debug)]
pub(super) struct RetainedValue<T> {
    pub(super) value: T,
    /// Distinguishes the value from an earlier one with the same key.
    pub(super) number: u64,
    last_used: Instant,
    /// Whether a request has used the value since it was inserted.
    pub(super) is_used: bool,
    /// The stored access key that the value counts for.
    owner: Option<KeyTag>,
}

/// Drops a reference that may be the last one to a large value. A thread for blocking work frees that value.
pub(super) fn drop_deferred<T: Send + 'static>(value: Arc<T>) {
    drop(DeferredDrop(Arc::into_inner(value).into_iter().collect()));
}

impl<T: Retainable> Retained<T> {
    pub(super) fn new(limits: RetainedLimits) -> Self {
        Self { values: Mutex::new(RetainedValues::new(limits)) }
    }

    /// Inserts a value or changes one, applies the limits to all values except `spared`, and applies them again
    /// periodically as long as anything is retained.
    pub(super) fn update<R>(
        self: &Arc<Self>,
        consensus: &Consensus,
        spared: Option<&T::Key>,
        update: impl FnOnce(&mut RetainedValues<T>) -> R,
    ) -> R {
        let current = consensus.state();
        let mut values = self.lock();
        let result = update(&mut values);
        let released = values.enforce_limits(&current, spared);
        if !std::mem::replace(&mut values.is_sweeping, true) {
            tokio::spawn(Arc::clone(self).sweep(consensus.clone()));
        }
        drop(values);
        drop(released);
        drop_deferred(current);
        result
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, RetainedValues<T>> {
        // A panic between two consistent values leaves a value too many, which is released like any other.
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies the limits until nothing is retained.
    async fn sweep(self: Arc<Self>, consensus: Consensus) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let current = consensus.state();
            let mut values = self.lock();
            let unused = values.release_unused(Instant::now());
            let exceeding = values.enforce_limits(&current, None);
            let is_over = values.by_key.is_empty();
            values.is_sweeping = !is_over;
            drop(values);
            drop((unused, exceeding));
            drop_deferred(current);
            if is_over {
                return;
            }
        }
    }
}

impl<T: Retainable> RetainedValues<T> {
    pub(super) const fn new(limits: RetainedLimits) -> Self {
        Self { limits, by_key: BTreeMap::new(), inserted: 0, is_sweeping: false }
    }

    /// The value of a key. If there is none, `make` makes it for `owner`.
    pub(super) fn insert_with(
        &mut self,
        key: T::Key,
        owner: Option<KeyTag>,
        now: Instant,
        make: impl FnOnce() -> T,
    ) -> &mut RetainedValue<T> {
        let inserted = &mut self.inserted;
        let entry = self.by_key.entry(key).or_insert_with(|| {
            let number = std::mem::replace(inserted, inserted.wrapping_add(1));
            RetainedValue { value: make(), number, last_used: now, is_used: false, owner }
        });
        entry.last_used = now;
        entry
    }

    /// The value of a key, for a request that uses it.
    pub(super) fn find(&mut self, key: &T::Key, now: Instant) -> Option<&mut RetainedValue<T>> {
        let entry = self.by_key.get_mut(key)?;
        entry.last_used = now;
        entry.is_used = true;
        Some(entry)
    }

    pub(super) fn bytes_kept(&self, current: &State) -> u64 {
        T::bytes_kept(self.by_key.values().map(|entry| &entry.value), current)
    }

    /// The stored access key that owns more than half of the values.
    fn greedy_owner(&self) -> Option<KeyTag> {
        let mut counts = BTreeMap::new();
        for owner in self.by_key.values().filter_map(|entry| entry.owner) {
            *counts.entry(owner).or_insert(0_usize) += 1;
        }
        counts.into_iter().find(|(_, count)| count * 2 > self.by_key.len()).map(|(owner, _)| owner)
    }

    pub(super) fn release_unused(&mut self, now: Instant) -> DeferredDrop<RetainedValue<T>> {
        let idle_max = self.limits.idle_max;
        let is_idle = |_: &T::Key, entry: &mut RetainedValue<T>| {
            now.saturating_duration_since(entry.last_used) >= idle_max
        };
        DeferredDrop(self.by_key.extract_if(.., is_idle).map(|(_, entry)| entry).collect())
    }

    /// Releases values other than `spared` until the limits hold.
    pub(super) fn enforce_limits(
        &mut self,
        current: &State,
        spared: Option<&T::Key>,
    ) -> DeferredDrop<RetainedValue<T>> {
        let mut released = Vec::new();
        while self.by_key.len() > self.limits.values_max || self.bytes_kept(current) > self.limits.bytes_max {
            let greedy = self.greedy_owner();
            let others = self.by_key.iter().filter(|(key, _)| Some(*key) != spared);
            let first = others.min_by_key(|(_, entry)| {
                (greedy.is_none() || entry.owner != greedy, entry.is_used, entry.last_used)
            });
            let Some(first) = first.map(|(key, _)| key.clone()) else { break };
            released.extend(self.by_key.remove(&first));
        }
        DeferredDrop(released)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that it keeps in memory.
    #[derive(Debug)]
    struct Bytes(u64);

    impl Retainable for Bytes {
        type Key = u64;

        fn bytes_kept<'a>(values: impl Iterator<Item = &'a Self> + Clone, _: &State) -> u64 {
            values.map(|value| value.0).sum()
        }
    }

    const IDLE_MAX: Duration = Duration::from_secs(60);
    const VALUES_MAX: usize = 8;

    fn values() -> RetainedValues<Bytes> {
        RetainedValues::new(RetainedLimits { values_max: VALUES_MAX, bytes_max: 100, idle_max: IDLE_MAX })
    }

    fn insert(values: &mut RetainedValues<Bytes>, key: u64, owner: Option<KeyTag>, now: Instant) {
        values.insert_with(key, owner, now, || Bytes(1));
        values.enforce_limits(&State::new(), Some(&key));
    }

    fn keys(values: &RetainedValues<Bytes>) -> Vec<u64> {
        values.by_key.keys().copied().collect()
    }

    #[test]
    fn the_least_recently_used_value_that_nobody_has_used_is_released_first() {
        let (mut values, now) = (values(), Instant::now());
        for key in 1..=8 {
            insert(&mut values, key, None, now + Duration::from_millis(key));
        }
        assert!(values.find(&1, now).is_some());
        insert(&mut values, 50, None, now);
        assert_eq!(keys(&values), [1, 3, 4, 5, 6, 7, 8, 50]);
        insert(&mut values, 3, None, now + Duration::from_secs(9));
        insert(&mut values, 51, None, now);
        assert_eq!(
            keys(&values),
            [1, 3, 4, 5, 6, 7, 8, 51],
            "a value that is inserted again counts as recent"
        );
    }

    #[test]
    fn a_key_that_owns_more_than_half_of_the_values_loses_its_own_first() {
        let (mut values, now) = (values(), Instant::now());
        insert(&mut values, 1, None, now);
        for key in 2..=20 {
            let at = now + Duration::from_millis(key);
            insert(&mut values, key, Some([7; 12]), at);
            assert!(values.find(&key, at).is_some());
        }
        assert_eq!(
            keys(&values),
            [1, 14, 15, 16, 17, 18, 19, 20],
            "the oldest, unused value is another client's"
        );
    }

    #[test]
    fn unused_values_are_released() {
        let (mut values, now) = (values(), Instant::now());
        insert(&mut values, 1, None, now);
        insert(&mut values, 2, None, now);
        assert!(values.find(&2, now + IDLE_MAX / 2).is_some());
        assert_eq!(values.release_unused(now + IDLE_MAX).0.len(), 1);
        assert_eq!(keys(&values), [2]);
        assert_eq!(values.release_unused(now + IDLE_MAX + IDLE_MAX / 2).0.len(), 1);
        assert!(values.find(&2, now).is_none());
    }

    #[test]
    fn the_bytes_are_limited_and_a_spared_value_stays() {
        let (mut values, now) = (values(), Instant::now());
        values.insert_with(1, None, now, || Bytes(50));
        values.insert_with(2, None, now + Duration::from_millis(1), || Bytes(101));
        assert_eq!(values.enforce_limits(&State::new(), Some(&2)).0.len(), 1);
        assert_eq!(keys(&values), [2]);
        assert_eq!(values.enforce_limits(&State::new(), None).0.len(), 1, "alone it exceeds the limit");
    }
}
