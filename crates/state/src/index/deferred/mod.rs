//! The indexes of a collection by time and by value, whose updates are deferred and applied in batches.
//!
//! A write moves its config in several indexes. Updating them at once would copy a leaf and its ancestors in each,
//! because the published snapshot shares them, and most writes are followed by others before anybody lists. So a write
//! only records the config before and after as a pending update. The first reader applies the pending updates, and its
//! result serves later readers.
//!
//! When enough updates are pending and nobody has read, a small collection drops its indexes. The next list builds them
//! from the configs, which takes 1.5 times as long as applying the updates; without lists, writes cost nothing. From
//! then on updates are recorded again. In a large collection `apply` applies the updates itself: each node is then
//! copied once for many writes.
//!
//! # Shared memory
//! Clones of one collection share the last result that any of them computed, behind a [`Mutex`] that is held for the
//! copy of a pointer. Updates are numbered by a counter of the process. Neither makes a result depend on timing: the
//! numbers stay in memory and are compared with each other only, and a shared result is used only by a clone that has
//! the last update in it, so it equals what that clone would compute itself. A race decides which thread computes a
//! result, whether it is computed twice, and whether from updates or from the configs.
//!
//! **Invariants**
//! 1. [`DeferredIndexes::indexes`] contains all updates: no reader sees an index that lacks one.
//! 2. Pending updates are bounded in number, by the number of configs, and in bytes; indexes that a reader builds are
//!    bounded in entries. So is the time of both.
//! 3. The number of an update is unique in the process. A clone that diverges (a rejected batch, a dry run) shares the
//!    numbers up to the divergence, so a result up to a number holds for every clone that has this number.

use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use super::{
    entries::ByKey,
    indexes::{IndexEdits, Indexes},
    tree::{self, Tree},
};
use concord_model::{
    index::Indexing,
    record::{Config, Definition},
};

/// Pending updates of a collection. Applying them takes about 2 ms of a core, in which nothing else is applied: with
/// 10,000 configs half of all nodes are copied for them.
const PENDING_MAX: u64 = 1024;
/// The same of a large collection, whose nodes are in no CPU cache, so that each update copies one of its own: it takes
/// 2 to 4 ms.
const PENDING_MAX_LARGE: u64 = 512;
/// Configs from which on a collection is large.
const LARGE_CONFIGS_MIN: u64 = 32 << 10;
/// Entries of all indexes up to which a reader builds them, on a thread for long work. 40,000 took 6 ms of a core, and
/// to apply 1,000 pending updates to as many took 4.
const READER_ENTRIES_MAX: u64 = 48 << 10;
/// Configs for each pending update: the indexes of a small collection are cheap to update at once.
const CONFIGS_PER_PENDING: u64 = 8;
/// Approximate bytes that the pending updates of a collection retain.
const PENDING_BYTES_MAX: usize = 1 << 20;
/// Approximate bytes of an index entry without its value.
const ENTRY_BYTES: usize = 64;

/// The number of the next pending update. It is never stored, and nothing but the order of numbers is used.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// Indexes and their pending updates.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeferredIndexes {
    /// The indexes before all pending updates; `None` while nobody reads them.
    base: Option<Arc<Indexes>>,
    /// The number of the last update before the pending ones.
    since: u64,
    pending: Tree<PendingUpdate>,
    pending_bytes: usize,
    /// The indexes with all pending updates, once they were read.
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

/// What the indexes are computed from: a definition's configs, with the change that is recorded.
#[derive(Clone, Copy)]
pub(crate) struct IndexSource<'a> {
    pub(crate) definition: &'a Definition,
    pub(crate) configs: &'a Tree<ByKey<Arc<Config>>>,
    /// For each indexed path, how many entries are not the first of their config.
    pub(crate) repeated: &'a [u64],
}

impl IndexSource<'_> {
    fn build(self) -> Arc<Indexes> {
        Arc::new(Indexes::of(&self.definition.indexing, self.configs))
    }

    /// Each write of a definition with unique paths reads its indexes: deferring their updates would cost more than it
    /// saves.
    fn pending_max(self) -> u64 {
        let most = if self.configs.len() < LARGE_CONFIGS_MIN { PENDING_MAX } else { PENDING_MAX_LARGE };
        let is_deferred = self.definition.unique.is_empty();
        if is_deferred { (self.configs.len() / CONFIGS_PER_PENDING).min(most) } else { 0 }
    }

    /// Whether a reader may build the indexes.
    fn is_small(self) -> bool {
        let indexes = self.definition.indexing.slots.len() as u64 + 2;
        self.configs.len() * indexes + self.repeated.iter().sum::<u64>() <= READER_ENTRIES_MAX
    }
}

impl DeferredIndexes {
    pub(crate) fn new(indexes: Indexes) -> Self {
        Self { base: Some(Arc::new(indexes)), ..Self::default() }
    }

    /// The indexes with all pending updates.
    pub(crate) fn indexes<'a>(&'a self, source: IndexSource<'a>) -> &'a Indexes {
        if let Some(base) = self.base.as_ref().filter(|_| self.pending.is_empty()) {
            return base;
        }
        self.current.get_or_init(|| {
            let start =
                self.latest_computed().or_else(|| Some((self.since, Arc::clone(self.base.as_ref()?))));
            let current = match start {
                Some((up_to, indexes)) => self.with_pending(indexes, up_to, &source.definition.indexing),
                None => source.build(),
            };
            let number = self.last_number();
            let mut latest = self.latest();
            let is_newest = latest.as_ref().is_none_or(|(newest, _)| *newest < number);
            let older = if is_newest { latest.replace((number, Arc::clone(&current))) } else { None };
            drop(latest);
            drop(older);
            current
        })
    }

    /// Whether the indexes, or indexes that lack pending updates only, are there.
    pub(crate) fn is_built(&self) -> bool {
        self.base.is_some() || self.current.get().is_some() || self.latest_computed().is_some()
    }

    /// Records a change of a config; one of the two may be absent. The source has the change already.
    pub(crate) fn edit(
        &mut self,
        source: IndexSource<'_>,
        before: Option<&Arc<Config>>,
        after: Option<&Arc<Config>>,
    ) {
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let pending_max = source.pending_max();
        if pending_max == 0 {
            let mut base = self.take_current(&source.definition.indexing);
            if let Some(indexes) = &mut base {
                let mut edits = IndexEdits::new(&source.definition.indexing);
                edits.add(before, after);
                Arc::make_mut(indexes).edit_all(edits);
            }
            self.restart(Some(base.unwrap_or_else(|| source.build())), number);
            return;
        }
        self.current = OnceLock::new();
        if self.base.is_none() && self.pending.is_empty() {
            let latest = self.latest().clone();
            match latest {
                None => {
                    self.since = number;
                    return;
                }
                Some((up_to, indexes)) if up_to == self.since => self.base = Some(indexes),
                // Read since, but not after the last update: the next reader needs the updates from here on.
                Some(_) => {}
            }
        }
        self.pending_bytes += bytes(before) + bytes(after);
        self.pending.insert(PendingUpdate { number, before: before.cloned(), after: after.cloned() });
        if self.pending.len() >= pending_max || self.pending_bytes >= PENDING_BYTES_MAX {
            self.end_pending(source);
        }
    }

    /// Enough updates are pending: applies those of a large collection. A small one continues from what was read last,
    /// or has no indexes until they are read.
    fn end_pending(&mut self, source: IndexSource<'_>) {
        let number = self.last_number();
        if !source.is_small() {
            let base = self.take_current(&source.definition.indexing).unwrap_or_else(|| source.build());
            return self.restart(Some(base), number);
        }
        match self.latest_computed().filter(|(up_to, _)| *up_to > self.since) {
            Some((up_to, indexes)) => {
                let rest = self.pending_after(up_to).cloned().collect::<Vec<_>>();
                self.pending_bytes = rest
                    .iter()
                    .map(|update| bytes(update.before.as_ref()) + bytes(update.after.as_ref()))
                    .sum();
                (self.base, self.since) = (Some(indexes), up_to);
                self.pending = Tree::from_sorted(rest.into_iter());
            }
            None => self.restart(None, number),
        }
    }

    /// Takes the indexes with all pending updates, if that needs no building.
    fn take_current(&mut self, indexing: &Indexing) -> Option<Arc<Indexes>> {
        if self.pending.is_empty() && self.base.is_some() {
            return self.base.take();
        }
        self.current.take().or_else(|| {
            let base = self.base.take();
            let (up_to, indexes) = self.latest_computed().or_else(|| Some((self.since, base?)))?;
            Some(self.with_pending(indexes, up_to, indexing))
        })
    }

    /// Nothing is pending after the update with a number.
    fn restart(&mut self, base: Option<Arc<Indexes>>, number: u64) {
        (self.base, self.since) = (base, number);
        self.current = OnceLock::new();
        if !self.pending.is_empty() {
            (self.pending, self.pending_bytes) = (Tree::new(), 0);
        }
        let latest = self.latest().take();
        drop(latest);
    }

    fn latest(&self) -> MutexGuard<'_, Option<Computed>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shared result, if this clone has the last update in it and lacks none that it has.
    fn latest_computed(&self) -> Option<Computed> {
        let latest = self.latest().clone();
        latest.filter(|(number, _)| *number == self.since || self.pending.get(*number).is_some())
    }

    /// Applies the pending updates after `up_to` to indexes that contain those up to it.
    fn with_pending(&self, mut indexes: Arc<Indexes>, up_to: u64, indexing: &Indexing) -> Arc<Indexes> {
        if up_to < self.last_number() {
            let mut edits = IndexEdits::new(indexing);
            for update in self.pending_after(up_to) {
                edits.add(update.before.as_ref(), update.after.as_ref());
            }
            Arc::make_mut(&mut indexes).edit_all(edits);
        }
        indexes
    }

    fn pending_after(&self, up_to: u64) -> impl Iterator<Item = &PendingUpdate> {
        self.pending.from(self.pending.rank(|number| *number <= up_to))
    }

    fn last_number(&self) -> u64 {
        self.pending.back_from(u64::MAX).next().map_or(self.since, |update| update.number)
    }
}

/// Approximate bytes that a pending update retains of a config.
fn bytes(config: Option<&Arc<Config>>) -> usize {
    let entries =
        |config: &Config| config.entries.iter().map(|entry| ENTRY_BYTES + entry.value.len()).sum::<usize>();
    config.map_or(0, |config| config.data.len() + entries(config))
}

#[cfg(test)]
mod tests;
