//! The orders of a collection beside the one by key, by time and by value, and how they trail behind it.
//!
//! A write moves its config in several orders, and in each of them it would copy a leaf and the nodes above, since the
//! published picture shares them. Most writes are followed by others before anybody lists. So a write only notes the
//! config as it was and as it is; who asks for the orders gets them brought up to date, and what he made serves those
//! who ask after him. Once enough is noted, applying catches up itself: a node is then copied once for many writes.
//!
//! **Invariants**
//! 1. [`DeferredIndexes::orders`] shows all that was noted: that they trail is seen by nobody.
//! 2. What is noted is bounded, in number by the configs that there are and in bytes, and so is the time to catch up.
//! 3. A note's number is used once in a process. A clone that goes its own way (a batch that fails, a dry run) shares
//!    the numbers up to where it parted, so what was made at a number holds for every line that has it.

use std::sync::{
    Arc, Mutex, OnceLock, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use super::{
    entries::{BySlot, ByTime},
    tree::{self, Tree},
};
use crate::model::{
    index::Indexing,
    key::Key,
    record::{Config, Entry},
    time::Timestamp,
};

/// Notes at most: catching up with them takes 1 to 2 ms of a busy core, in which nothing is applied. With 1024 it takes
/// 7 % of a busy service's time and not 11, but no more writes were made, and their 99th percentile was worse.
const NOTES_MAX: u64 = 256;
/// One note for so many configs at most: a small collection is cheap to keep in order.
const CONFIGS_PER_NOTE: u64 = 8;
/// What the notes may hold in bytes, roughly.
const WEIGHT_MAX: usize = 1 << 20;
/// What an index entry weighs beside its value.
const ENTRY_WEIGHT: usize = 64;

/// The number of the next note.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Indexes that name configs by their keys.
#[derive(Debug, Clone, Default)]
pub struct Indexes {
    /// By the time of creation.
    pub by_created: Tree<ByTime<Key>>,
    /// By the time of the last change.
    pub by_modified: Tree<ByTime<Key>>,
    /// One for each indexed path, in the order of the paths: by the entries of its slot.
    pub by_slot: Vec<Tree<BySlot>>,
}

/// Indexes, and what is not in them yet.
#[derive(Debug, Clone, Default)]
pub(in crate::state) struct DeferredIndexes {
    base: Arc<Indexes>,
    notes: Tree<Note>,
    weight: usize,
    /// `base` with all notes, once it was asked for.
    made: OnceLock<Arc<Indexes>>,
    /// What was made last by anybody, and up to which note: the next one begins there.
    latest: Arc<Mutex<Option<Made>>>,
}

type Made = (u64, Arc<Indexes>);

/// A config as it was and as it is.
#[derive(Debug, Clone)]
struct Note {
    number: u64,
    before: Option<Arc<Config>>,
    after: Option<Arc<Config>>,
}

impl tree::Item for Note {
    type Seek<'a> = u64;
    type Bound = u64;

    fn seek(&self) -> u64 {
        self.number
    }

    fn bound(&self) -> u64 {
        self.number
    }

    fn seek_of(bound: &u64) -> u64 {
        *bound
    }

    fn compare(a: u64, b: u64) -> std::cmp::Ordering {
        a.cmp(&b)
    }
}

impl DeferredIndexes {
    pub(in crate::state) fn new(orders: Indexes) -> Self {
        Self { base: Arc::new(orders), ..Self::default() }
    }

    /// The orders with all that was noted.
    pub(in crate::state) fn orders(&self, indexing: &Indexing) -> &Indexes {
        if self.notes.is_empty() {
            return &self.base;
        }
        self.made.get_or_init(|| {
            let (upto, orders) = self.latest_of_line().unwrap_or_else(|| (0, Arc::clone(&self.base)));
            let made = self.caught_up(orders, upto, indexing);
            let number = self.last();
            let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
            if latest.as_ref().is_none_or(|(newest, _)| *newest < number) {
                *latest = Some((number, Arc::clone(&made)));
            }
            made
        })
    }

    /// Takes a change of a config up; one of the two may be absent. `configs` is how many the collection has.
    pub(in crate::state) fn edit(
        &mut self,
        indexing: &Indexing,
        configs: u64,
        before: Option<&Arc<Config>>,
        after: Option<&Arc<Config>>,
    ) {
        let most = (configs / CONFIGS_PER_NOTE).min(NOTES_MAX);
        if most == 0 {
            self.settle(indexing);
            let mut edits = Edits::new(indexing);
            edits.add(before, after);
            Arc::make_mut(&mut self.base).edit_all(edits);
            return;
        }
        let entries = |config: &Config| -> usize {
            config.entries.iter().map(|entry| ENTRY_WEIGHT + entry.value.len()).sum()
        };
        let weigh = |config: &Arc<Config>| config.data.len() + entries(config);
        self.weight += before.map_or(0, weigh) + after.map_or(0, weigh);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.made = OnceLock::new();
        self.notes.insert(Note { number, before: before.cloned(), after: after.cloned() });
        if self.notes.len() >= most || self.weight >= WEIGHT_MAX {
            self.settle(indexing);
        }
    }

    /// Takes all notes into the orders.
    fn settle(&mut self, indexing: &Indexing) {
        if self.notes.is_empty() {
            return;
        }
        self.base = match self.made.take() {
            Some(made) => made,
            None => {
                let base = std::mem::take(&mut self.base);
                let (upto, orders) = self.latest_of_line().unwrap_or((0, base));
                self.caught_up(orders, upto, indexing)
            }
        };
        (self.notes, self.weight) = (Tree::new(), 0);
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// What somebody made of this line's notes, if it holds more than `base`.
    fn latest_of_line(&self) -> Option<Made> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        latest.filter(|(number, _)| self.notes.get(*number).is_some())
    }

    /// Indexes that hold the notes up to one, brought up to the last.
    fn caught_up(&self, mut orders: Arc<Indexes>, upto: u64, indexing: &Indexing) -> Arc<Indexes> {
        if upto < self.last() {
            let mut edits = Edits::new(indexing);
            for note in self.notes.from(self.notes.rank(|number| *number <= upto)) {
                edits.add(note.before.as_ref(), note.after.as_ref());
            }
            Arc::make_mut(&mut orders).edit_all(edits);
        }
        orders
    }

    fn last(&self) -> u64 {
        self.notes.back_from(u64::MAX).next().map_or(0, |note| note.number)
    }
}

/// What is to be done to each of the [`Indexes`].
struct Edits<'a> {
    indexing: &'a Indexing,
    by_created: Vec<tree::Edit<ByTime<Key>>>,
    by_modified: Vec<tree::Edit<ByTime<Key>>>,
    by_slot: Vec<Vec<tree::Edit<BySlot>>>,
}

impl<'a> Edits<'a> {
    fn new(indexing: &'a Indexing) -> Self {
        let by_slot = vec![Vec::new(); indexing.slots.len()];
        Self { indexing, by_created: Vec::new(), by_modified: Vec::new(), by_slot }
    }

    /// Adds what moves with a config; one of the two may be absent.
    fn add(&mut self, before: Option<&Arc<Config>>, after: Option<&Arc<Config>>) {
        // A step of a build leaves both times as they are.
        add_time(&mut self.by_created, before, after, |config| config.created_at);
        add_time(&mut self.by_modified, before, after, |config| config.modified_at);
        let has = |config: Option<&Arc<Config>>, entry: &Entry| {
            config.is_some_and(|config| config.entries.binary_search(entry).is_ok())
        };
        let left = crate::sabotage::is("index-left-on-delete") && after.is_none();
        if let Some(config) = before.filter(|_| !left) {
            self.add_entries(config, |entry| !has(after, entry), false);
        }
        if let Some(config) = after {
            self.add_entries(config, |entry| !has(before, entry), true);
        }
    }

    fn add_entries(&mut self, config: &Config, moves: impl Fn(&Entry) -> bool, stands: bool) {
        for entry in config.entries.iter().filter(|entry| moves(entry)) {
            // Entries of dropped paths stand nowhere.
            let order = self.indexing.place(entry.slot).and_then(|place| self.by_slot.get_mut(place));
            order.into_iter().for_each(|edits| edits.push((BySlot::new(&entry.value, &config.key), stands)));
        }
    }
}

fn add_time(
    edits: &mut Vec<tree::Edit<ByTime<Key>>>,
    before: Option<&Arc<Config>>,
    after: Option<&Arc<Config>>,
    time: impl Fn(&Config) -> Timestamp,
) {
    let (was, is) = (before.map(|config| time(config)), after.map(|config| time(config)));
    if was == is {
        return;
    }
    let edit = |config: &Arc<Config>, stands| (ByTime { at: time(config), of: config.key.clone() }, stands);
    edits.extend(before.map(|config| edit(config, false)));
    edits.extend(after.map(|config| edit(config, true)));
}

impl Indexes {
    fn edit_all(&mut self, edits: Edits<'_>) {
        self.by_created.edit_all(edits.by_created);
        self.by_modified.edit_all(edits.by_modified);
        for (order, edits) in self.by_slot.iter_mut().zip(edits.by_slot) {
            order.edit_all(edits);
        }
    }
}

#[cfg(test)]
mod tests;
