//! The orders of a collection beside the one by key, by time and by value, and how they trail behind it.
//!
//! A write moves its config in several orders, and in each of them it would copy a leaf and the nodes above, since the
//! published picture shares them. Most writes are followed by others before anybody lists. So a write only notes the
//! config as it was and as it is; who asks for the orders gets them brought up to date, and what he made serves those
//! who ask after him. Once enough is noted, applying catches up itself: a node is then copied once for many writes.
//!
//! **Invariants**
//! 1. [`Trailing::orders`] shows all that was noted: that they trail is seen by nobody.
//! 2. What is noted is bounded, in number by the configs that there are and in bytes, and so is the time to catch up.
//! 3. A note's number is used once in a process. A clone that goes its own way (a batch that fails, a dry run) shares
//!    the numbers up to where it parted, so what was made at a number holds for every line that has it.

use std::sync::{
    Arc, Mutex, OnceLock, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use super::{
    items::{BySlot, ByTime},
    order::{self, Order},
};
use crate::model::{
    index::Indexing,
    key::Key,
    record::{Config, Entry},
};

/// Notes at most: catching up with them takes some 2 ms.
const NOTES_MAX: u64 = 1024;
/// One note for so many configs at most: a small collection is cheap to keep in order.
const CONFIGS_PER_NOTE: u64 = 8;
/// What the notes may hold in bytes, roughly.
const WEIGHT_MAX: usize = 1 << 20;
/// What an index entry weighs beside its value.
const ENTRY_WEIGHT: usize = 64;

/// The number of the next note.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Orders that name configs by their keys.
#[derive(Debug, Clone, Default)]
pub struct Orders {
    /// By the time of creation.
    pub by_created: Order<ByTime<Key>>,
    /// By the time of the last change.
    pub by_modified: Order<ByTime<Key>>,
    /// One for each indexed path, in the order of the paths: by the entries of its slot.
    pub by_slot: Vec<Order<BySlot>>,
}

/// Orders, and what is not in them yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Trailing {
    base: Arc<Orders>,
    notes: Order<Note>,
    weight: usize,
    /// `base` with all notes, once it was asked for.
    made: OnceLock<Arc<Orders>>,
    /// What was made last by anybody, and up to which note: the next one begins there.
    latest: Arc<Mutex<Option<Made>>>,
}

type Made = (u64, Arc<Orders>);

/// A config as it was and as it is.
#[derive(Debug, Clone)]
struct Note {
    number: u64,
    before: Option<Arc<Config>>,
    after: Option<Arc<Config>>,
}

impl order::Item for Note {
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

impl Trailing {
    pub(super) fn new(orders: Orders) -> Self {
        Self { base: Arc::new(orders), ..Self::default() }
    }

    /// The orders with all that was noted.
    pub(super) fn orders(&self, indexing: &Indexing) -> &Orders {
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
    pub(super) fn edit(
        &mut self,
        indexing: &Indexing,
        configs: u64,
        before: Option<&Arc<Config>>,
        after: Option<&Arc<Config>>,
    ) {
        let most = (configs / CONFIGS_PER_NOTE).min(NOTES_MAX);
        if most == 0 {
            self.settle(indexing);
            Arc::make_mut(&mut self.base).edit(indexing, before, after);
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
        (self.notes, self.weight) = (Order::new(), 0);
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// What somebody made of this line's notes, if it holds more than `base`.
    fn latest_of_line(&self) -> Option<Made> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        latest.filter(|(number, _)| self.notes.get(*number).is_some())
    }

    /// Orders that hold the notes up to one, brought up to the last.
    fn caught_up(&self, mut orders: Arc<Orders>, upto: u64, indexing: &Indexing) -> Arc<Orders> {
        if upto < self.last() {
            let changing = Arc::make_mut(&mut orders);
            for note in self.notes.from(self.notes.rank(|number| *number <= upto)) {
                changing.edit(indexing, note.before.as_ref(), note.after.as_ref());
            }
        }
        orders
    }

    fn last(&self) -> u64 {
        self.notes.back_from(u64::MAX).next().map_or(0, |note| note.number)
    }
}

impl Orders {
    /// Moves a config; one of the two may be absent.
    fn edit(&mut self, indexing: &Indexing, before: Option<&Arc<Config>>, after: Option<&Arc<Config>>) {
        let created = |config: Option<&Arc<Config>>| config.map(|config| config.created_at);
        let modified = |config: Option<&Arc<Config>>| config.map(|config| config.modified_at);
        // A step of a build leaves both times as they are.
        move_in_time(&mut self.by_created, before.zip(created(before)), after.zip(created(after)));
        move_in_time(&mut self.by_modified, before.zip(modified(before)), after.zip(modified(after)));
        self.edit_entries(indexing, before, after);
    }

    /// Takes the entries away that the config has no longer, and adds its new ones.
    fn edit_entries(
        &mut self,
        indexing: &Indexing,
        before: Option<&Arc<Config>>,
        after: Option<&Arc<Config>>,
    ) {
        let has = |config: Option<&Arc<Config>>, entry: &Entry| {
            config.is_some_and(|config| config.entries.binary_search(entry).is_ok())
        };
        // Entries of dropped paths stand nowhere.
        if let Some(before) =
            before.filter(|_| after.is_some() || !crate::sabotage::is("index-left-on-delete"))
        {
            for entry in before.entries.iter().filter(|entry| !has(after, entry)) {
                if let Some(order) = indexing.place(entry.slot).and_then(|place| self.by_slot.get_mut(place))
                {
                    order.remove((&entry.value, before.key.as_str()));
                }
            }
        }
        if let Some(after) = after {
            for entry in after.entries.iter().filter(|entry| !has(before, entry)) {
                if let Some(order) = indexing.place(entry.slot).and_then(|place| self.by_slot.get_mut(place))
                {
                    order.insert(BySlot::new(&entry.value, &after.key));
                }
            }
        }
    }
}

type At<'a> = Option<(&'a Arc<Config>, crate::model::time::Timestamp)>;

fn move_in_time(order: &mut Order<ByTime<Key>>, before: At<'_>, after: At<'_>) {
    if before.map(|(_, at)| at) == after.map(|(_, at)| at) {
        return;
    }
    if let Some((config, at)) = before {
        order.remove((at, config.key.as_str()));
    }
    if let Some((config, at)) = after {
        order.insert(ByTime { at, of: config.key.clone() });
    }
}

#[cfg(test)]
mod tests;
