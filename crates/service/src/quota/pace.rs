//! A rate for each of many keys: addresses, owners of sessions.
//!
//! **Invariant:** at most so many keys are kept. The one with the least use is dropped first; a key without use takes no
//! memory.

use std::collections::BTreeMap;

pub(crate) use super::bucket::{Rate, SECOND};

/// The use of a rate by each key.
#[derive(Debug)]
pub(crate) struct Pace<K> {
    rate: Rate,
    most: usize,
    /// For each key, when all of its tokens are available again.
    full_at: BTreeMap<K, u64>,
}

impl<K: Ord + Clone> Pace<K> {
    /// A rate, and how many keys are kept.
    pub(crate) fn new(rate: Rate, most: usize) -> Self {
        Self { rate, most, full_at: BTreeMap::new() }
    }

    /// Takes a token of a key. The error is the time until there is one.
    pub(crate) fn take(&mut self, key: &K, now: u64) -> Result<(), u64> {
        if self.full_at.len() >= self.most && !self.full_at.contains_key(key) {
            self.full_at.retain(|_, full_at| *full_at > now);
            if self.full_at.len() >= self.most {
                let least = self.full_at.iter().min_by_key(|(_, full_at)| **full_at);
                let least = least.map(|(key, _)| key.clone());
                self.full_at.remove(least.as_ref().unwrap_or(key));
            }
        }
        let full_at = self.full_at.entry(key.clone()).or_default();
        *full_at = self.rate.after_one(*full_at, now)?;
        Ok(())
    }

    /// Gives a token of a key back.
    pub(crate) fn give_back(&mut self, key: &K, now: u64) {
        let Some(full_at) = self.full_at.get_mut(key) else { return };
        *full_at = full_at.saturating_sub(self.rate.price());
        if *full_at <= now {
            self.full_at.remove(key);
        }
    }

    /// How many keys are kept.
    pub(crate) fn len(&self) -> usize {
        self.full_at.len()
    }
}
