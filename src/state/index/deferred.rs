//! The indexes of a collection by time and by value, whose updates are deferred and applied in batches.
//!
//! A write moves its config in several indexes. Updating them at once would copy a leaf and its ancestors in each,
//! because the published snapshot shares them, and most writes are followed by others before anybody lists. So a write
//! only records the config before and after as a pending update. The first reader applies the pending updates, and its
//! result serves later readers. When enough updates are pending, `apply` applies them itself: each node is then copied
//! once for many writes.
//!
//! # Shared memory
//! Clones of one collection share the last result that any of them computed, behind a [`Mutex`] that is held for the
//! copy of a pointer. Pending updates are numbered by a counter of the process. Neither makes a result depend on
//! timing: the numbers stay in memory and are compared with each other only, and a shared result is used only by a
//! clone that has the last update in it, so it equals what that clone would compute itself. A race decides which thread
//! computes a result, and whether it is computed twice.
//!
//! **Invariants**
//! 1. [`DeferredIndexes::indexes`] contains all pending updates: no reader sees an index that lacks one.
//! 2. Pending updates are bounded in number, by the number of configs, and in bytes. So is the time to apply them.
//! 3. The number of an update is unique in the process. A clone that diverges (a rejected batch, a dry run) shares the
//!    numbers up to the divergence, so a result up to a number holds for every clone that has this number.

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

/// Pending updates of a collection. Applying them takes about 2 ms of a core, in which nothing else is applied: with
/// 10,000 configs half of all nodes are copied for them.
const PENDING_MAX: u64 = 1024;
/// The same of a large collection, whose nodes are in no CPU cache, so that each update copies one of its own: it takes 2
/// to 4 ms.
const PENDING_MAX_LARGE: u64 = 512;
/// Configs from which on a collection is large.
const LARGE_CONFIGS_MIN: u64 = 32 << 10;
/// Configs for each pending update: the indexes of a small collection are cheap to update at once.
const CONFIGS_PER_PENDING: u64 = 8;
/// Approximate bytes that the pending updates of a collection retain.
const PENDING_BYTES_MAX: usize = 1 << 20;
/// Approximate bytes of an index entry without its value.
const ENTRY_BYTES: usize = 64;

/// The number of the next pending update. It is never stored, and nothing but the order of numbers is used.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// Indexes whose entries name configs by key.
#[derive(Debug, Clone, Default)]
pub struct Indexes {
    /// By time of creation.
    pub by_created: Tree<ByTime<Key>>,
    /// By time of the last change.
    pub by_modified: Tree<ByTime<Key>>,
    /// One for each indexed path, in the order of the paths: by the value of the slot's entries.
    pub by_slot: Vec<Tree<BySlot>>,
}

/// Indexes and their pending updates.
#[derive(Debug, Clone, Default)]
pub(in crate::state) struct DeferredIndexes {
    base: Arc<Indexes>,
    pending: Tree<PendingUpdate>,
    pending_bytes: usize,
    /// `base` with all pending updates, once it was read.
    current: OnceLock<Arc<Indexes>>,
    /// The last result of any clone: the next computation starts from it.
    latest: Arc<Mutex<Option<Computed>>>,
}

/// Indexes with all pending updates up to and including a number.
type Computed = (u64, Arc<Indexes>);

/// A config before and after a write.
#[derive(Debug, Clone)]
struct PendingUpdate {
    number: u64,
    before: Option<Arc<Config>>,
    after: Option<Arc<Config>>,
}

impl tree::Item for PendingUpdate {
    type SearchKey<'a> = u64;
    type Bound = u64;
    type Weight = ();

    fn search_key(&self) -> u64 {
        self.number
    }

    fn bound(&self) -> u64 {
        self.number
    }

    fn search_key_of(bound: &u64) -> u64 {
        *bound
    }

    fn compare(a: u64, b: u64) -> std::cmp::Ordering {
        a.cmp(&b)
    }

    fn weight(&self) {}
}

impl DeferredIndexes {
    pub(in crate::state) fn new(indexes: Indexes) -> Self {
        Self { base: Arc::new(indexes), ..Self::default() }
    }

    /// The indexes with all pending updates.
    pub(in crate::state) fn indexes(&self, indexing: &Indexing) -> &Indexes {
        if self.pending.is_empty() {
            return &self.base;
        }
        self.current.get_or_init(|| {
            let (up_to, indexes) = self.latest_computed().unwrap_or_else(|| (0, Arc::clone(&self.base)));
            let current = self.with_pending(indexes, up_to, indexing);
            let number = self.last_number();
            let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
            if latest.as_ref().is_none_or(|(newest, _)| *newest < number) {
                *latest = Some((number, Arc::clone(&current)));
            }
            current
        })
    }

    /// Records a change of a config; one of the two may be absent. `configs` is how many the collection has.
    pub(in crate::state) fn edit(
        &mut self,
        indexing: &Indexing,
        configs: u64,
        before: Option<&Arc<Config>>,
        after: Option<&Arc<Config>>,
    ) {
        let most = if configs < LARGE_CONFIGS_MIN { PENDING_MAX } else { PENDING_MAX_LARGE };
        let pending_max = (configs / CONFIGS_PER_PENDING).min(most);
        if pending_max == 0 {
            self.apply_pending(indexing);
            let mut edits = Edits::new(indexing);
            edits.add(before, after);
            Arc::make_mut(&mut self.base).edit_all(edits);
            return;
        }
        let entry_bytes = |config: &Config| -> usize {
            config.entries.iter().map(|entry| ENTRY_BYTES + entry.value.len()).sum()
        };
        let bytes = |config: &Arc<Config>| config.data.len() + entry_bytes(config);
        self.pending_bytes += before.map_or(0, bytes) + after.map_or(0, bytes);
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        self.current = OnceLock::new();
        self.pending.insert(PendingUpdate { number, before: before.cloned(), after: after.cloned() });
        if self.pending.len() >= pending_max || self.pending_bytes >= PENDING_BYTES_MAX {
            self.apply_pending(indexing);
        }
    }

    /// Applies all pending updates to `base`.
    fn apply_pending(&mut self, indexing: &Indexing) {
        if self.pending.is_empty() {
            return;
        }
        self.base = match self.current.take() {
            Some(current) => current,
            None => {
                let base = std::mem::take(&mut self.base);
                let (up_to, indexes) = self.latest_computed().unwrap_or((0, base));
                self.with_pending(indexes, up_to, indexing)
            }
        };
        (self.pending, self.pending_bytes) = (Tree::new(), 0);
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The shared result, if this clone has the last update in it and it contains more than `base`.
    fn latest_computed(&self) -> Option<Computed> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        latest.filter(|(number, _)| self.pending.get(*number).is_some())
    }

    /// Applies the pending updates after `up_to` to indexes that contain those up to it.
    fn with_pending(&self, mut indexes: Arc<Indexes>, up_to: u64, indexing: &Indexing) -> Arc<Indexes> {
        if up_to < self.last_number() {
            let mut edits = Edits::new(indexing);
            for update in self.pending.from(self.pending.rank(|number| *number <= up_to)) {
                edits.add(update.before.as_ref(), update.after.as_ref());
            }
            Arc::make_mut(&mut indexes).edit_all(edits);
        }
        indexes
    }

    fn last_number(&self) -> u64 {
        self.pending.back_from(u64::MAX).next().map_or(0, |update| update.number)
    }
}

/// The edits of each of the [`Indexes`].
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

    /// Adds the edits of a changed config; one of the two may be absent.
    fn add(&mut self, before: Option<&Arc<Config>>, after: Option<&Arc<Config>>) {
        // A step of an index build changes neither time.
        add_time(&mut self.by_created, before, after, |config| config.created_at);
        add_time(&mut self.by_modified, before, after, |config| config.modified_at);
        let has = |config: Option<&Arc<Config>>, entry: &Entry| {
            config.is_some_and(|config| config.entries.binary_search(entry).is_ok())
        };
        let is_left = crate::sabotage::is("index-left-on-delete") && after.is_none();
        if let Some(config) = before.filter(|_| !is_left) {
            self.add_entries(config, |entry| !has(after, entry), false);
        }
        if let Some(config) = after {
            self.add_entries(config, |entry| !has(before, entry), true);
        }
    }

    fn add_entries(&mut self, config: &Config, is_changed: impl Fn(&Entry) -> bool, present: bool) {
        for entry in config.entries.iter().filter(|entry| is_changed(entry)) {
            // Entries of dropped paths are in no index.
            let position = self.indexing.position(entry.slot);
            let edits = position.and_then(|position| self.by_slot.get_mut(position));
            edits.into_iter().for_each(|edits| edits.push((BySlot::new(&entry.value, &config.key), present)));
        }
    }
}

fn add_time(
    edits: &mut Vec<tree::Edit<ByTime<Key>>>,
    before: Option<&Arc<Config>>,
    after: Option<&Arc<Config>>,
    time: impl Fn(&Config) -> Timestamp,
) {
    if before.map(|config| time(config)) == after.map(|config| time(config)) {
        return;
    }
    let edit = |config: &Arc<Config>, present| (ByTime { at: time(config), of: config.key.clone() }, present);
    edits.extend(before.map(|config| edit(config, false)));
    edits.extend(after.map(|config| edit(config, true)));
}

impl Indexes {
    fn edit_all(&mut self, edits: Edits<'_>) {
        self.by_created.edit_all(edits.by_created);
        self.by_modified.edit_all(edits.by_modified);
        for (index, edits) in self.by_slot.iter_mut().zip(edits.by_slot) {
            index.edit_all(edits);
        }
    }
}

#[cfg(test)]
mod tests;
