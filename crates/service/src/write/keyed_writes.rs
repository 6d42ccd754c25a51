//! How many requests with an idempotency key one access key may make.
//!
//! The outcomes of such requests are remembered by the cluster, for all keys in one place of bounded size; while it is
//! full of outcomes that may still be asked for, further requests with an idempotency key are refused. So one stored key
//! may fill at most a part of it, and leaves the rest to the others.
//!
//! The leader counts what it decides, in two windows as long as an outcome is certainly remembered. It begins anew with
//! each leader, which lets a key make a few more.
//!
//! **Invariant:** what is refused here was certainly not proposed.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::origin::KeyTag;
use concord_model::limits::{KEYED_WRITES_PER_KEY_MAX, REMEMBERED_AT_LEAST_US};

/// The length of a window.
const WINDOW: Duration = Duration::from_micros(REMEMBERED_AT_LEAST_US);

/// The requests with an idempotency key of all stored keys, lately.
#[derive(Debug, Default)]
pub(crate) struct KeyedWrites(Mutex<Windows>);

#[derive(Debug, Default)]
struct Windows {
    begun: Option<Instant>,
    current: BTreeMap<KeyTag, u64>,
    previous: BTreeMap<KeyTag, u64>,
}

impl KeyedWrites {
    /// Counts a request of a key; whether the key may make it.
    pub(super) fn count(&self, key: KeyTag) -> bool {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).count(key, Instant::now())
    }
}

impl Windows {
    fn count(&mut self, key: KeyTag, now: Instant) -> bool {
        let age = now.saturating_duration_since(*self.begun.get_or_insert(now));
        if age >= WINDOW {
            let last = std::mem::take(&mut self.current);
            self.previous = if age < 2 * WINDOW { last } else { BTreeMap::new() };
            self.begun = Some(now);
        }
        let before = self.previous.get(&key).copied().unwrap_or(0);
        let current = self.current.entry(key).or_insert(0);
        if before + *current >= KEYED_WRITES_PER_KEY_MAX {
            return false;
        }
        *current += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_fills_its_part_and_no_more() {
        let (mut windows, begin) = (Windows::default(), Instant::now());
        let (one, two) = ([1; 12], [2; 12]);
        let fill = |windows: &mut Windows, now| {
            let mut count = 0_u64;
            while windows.count(one, now) {
                count += 1;
            }
            count
        };
        assert_eq!(fill(&mut windows, begin), KEYED_WRITES_PER_KEY_MAX);
        assert!(windows.count(two, begin), "the others have their own part");
        assert_eq!(fill(&mut windows, begin + WINDOW), 0, "they may still be asked for");
        assert_eq!(fill(&mut windows, begin + 2 * WINDOW), KEYED_WRITES_PER_KEY_MAX);
        assert_eq!(fill(&mut windows, begin + 4 * WINDOW), KEYED_WRITES_PER_KEY_MAX, "after a pause at once");
    }
}
