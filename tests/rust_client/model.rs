//! What the clients did, and what it says about what they may see.
//!
//! Each write adds an id of its own to a list that the config holds, over the list that was read. So a list tells which
//! writes it has, and each change of a config is the one before plus one id.
//!
//! **Invariant:** a write counts as acknowledged only once its answer is there, and as begun before it is sent.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
    time::{Duration, Instant},
};

/// Everything that was written, by key.
#[derive(Debug, Default)]
pub(super) struct Model(Mutex<BTreeMap<String, Key>>);

#[derive(Debug, Default)]
struct Key {
    /// The highest revision that was acknowledged, whenever that rose.
    acknowledged: Vec<(Instant, u64)>,
    done: BTreeSet<u64>,
    unknown: BTreeSet<u64>,
    failed: BTreeSet<u64>,
}

/// How a write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Done(u64),
    Unknown,
    Failed,
}

impl Model {
    pub(super) fn note(&self, key: &str, id: u64, outcome: Outcome) {
        let mut keys = self.0.lock().expect("no holder panics");
        let key = keys.entry(key.to_owned()).or_default();
        match outcome {
            Outcome::Done(revision) => {
                key.done.insert(id);
                let highest = key.acknowledged.last().map_or(0, |(_, revision)| *revision);
                if revision > highest {
                    key.acknowledged.push((Instant::now(), revision));
                }
            }
            Outcome::Unknown => drop(key.unknown.insert(id)),
            Outcome::Failed => drop(key.failed.insert(id)),
        }
    }

    /// The least revision that a value may have that held all which was acknowledged so long before `now`.
    pub(super) fn least_revision(&self, key: &str, now: Instant, age: Duration) -> u64 {
        let Some(then) = now.checked_sub(age) else { return 0 };
        let keys = self.0.lock().expect("no holder panics");
        let Some(key) = keys.get(key) else { return 0 };
        let before = key.acknowledged.partition_point(|(at, _)| *at < then);
        before.checked_sub(1).map_or(0, |last| key.acknowledged[last].1)
    }

    /// What is wrong with a list at the end: a lost update, one that was made twice, or one that had failed.
    pub(super) fn judge(&self, key: &str, list: &[u64]) -> Vec<String> {
        let keys = self.0.lock().expect("no holder panics");
        let empty = Key::default();
        let written = keys.get(key).unwrap_or(&empty);
        let held: BTreeSet<u64> = list.iter().copied().collect();
        let mut wrong: Vec<String> =
            written.done.difference(&held).map(|id| format!("{key}: the update {id} is lost")).collect();
        if held.len() != list.len() {
            wrong.push(format!("{key}: an update was made twice: {list:?}"));
        }
        let failed = held.intersection(&written.failed);
        wrong.extend(failed.map(|id| format!("{key}: the update {id} had failed, and is there")));
        let known: BTreeSet<u64> = written.done.union(&written.unknown).copied().collect();
        let strange = held.difference(&known).filter(|id| !written.failed.contains(id));
        wrong.extend(strange.map(|id| format!("{key}: nobody made the update {id}")));
        wrong
    }

    /// How many writes were done, ended unknown, and failed.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let keys = self.0.lock().expect("no holder panics");
        let sum = |of: fn(&Key) -> usize| keys.values().map(of).sum();
        (sum(|key| key.done.len()), sum(|key| key.unknown.len()), sum(|key| key.failed.len()))
    }
}

/// Follows the changes of all keys and says where one is missing.
#[derive(Debug, Default)]
pub(super) struct Chain {
    lists: BTreeMap<String, Vec<u64>>,
    pub(super) last: u64,
    pub(super) changes: usize,
    pub(super) wrong: Vec<String>,
}

impl Chain {
    /// A change that a watch has brought.
    pub(super) fn take(&mut self, revision: u64, key: &str, list: Vec<u64>) {
        if revision <= self.last {
            self.wrong.push(format!("revision {revision} came after {}", self.last));
        }
        self.last = revision;
        self.changes += 1;
        let before = self.lists.entry(key.to_owned()).or_default();
        if list.len() != before.len() + 1 || !list.starts_with(before) {
            self.wrong.push(format!("{key} at revision {revision}: {list:?} does not follow {before:?}"));
        }
        *before = list;
    }

    /// Whether what it followed ends at this list.
    pub(super) fn ends_at(&self, key: &str, list: &[u64]) -> bool {
        self.lists.get(key).is_none_or(Vec::is_empty) && list.is_empty()
            || self.lists.get(key).is_some_and(|last| last == list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_found() {
        let model = Model::default();
        model.note("k", 1, Outcome::Done(10));
        model.note("k", 2, Outcome::Unknown);
        model.note("k", 3, Outcome::Failed);
        let judge = |list: &[u64]| model.judge("k", list).len();
        assert_eq!((judge(&[1]), judge(&[1, 2]), judge(&[2, 1])), (0, 0, 0));
        assert_eq!((judge(&[2]), judge(&[1, 1]), judge(&[1, 3]), judge(&[1, 4])), (1, 1, 1, 1));
        assert_eq!(model.counts(), (1, 1, 1));

        // What was acknowledged before a value's age began must be in it.
        let later = Instant::now() + Duration::from_secs(5);
        assert_eq!(model.least_revision("k", later, Duration::from_secs(1)), 10);
        assert_eq!(model.least_revision("k", later, Duration::from_secs(60)), 0);
        assert_eq!(model.least_revision("other", later, Duration::ZERO), 0);
    }

    #[test]
    fn a_missing_change_is_found() {
        let mut chain = Chain::default();
        chain.take(1, "k", vec![1]);
        chain.take(2, "k", vec![1, 2]);
        assert!(chain.wrong.is_empty() && chain.ends_at("k", &[1, 2]) && !chain.ends_at("k", &[1, 2, 3]));
        chain.take(4, "k", vec![1, 2, 3, 4]);
        assert_eq!(chain.wrong.len(), 1);
        chain.take(3, "l", vec![9]);
        assert_eq!(chain.wrong.len(), 2);
    }
}
