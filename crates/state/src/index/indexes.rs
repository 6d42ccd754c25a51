//! The indexes of a collection by time and by value: built from its configs, or edited. Look-ups for unique fields.
//!
//! A look-up for a unique field reads the index of its slot, where equal values are adjacent. An array has an entry for
//! each element, so each element is a value of its config. Null is a value; a missing member is not.
//!
//! **Invariants:** building and editing lead to the same entries. A look-up for a unique field costs one descent from
//! the root for each value, whatever the number of configs.

use std::sync::Arc;

use super::{
    entries::{ByKey, BySlot, ByTime},
    tree::{self, Tree},
};
use crate::Collection;
use concord_model::{
    error::Rejection,
    index::Indexing,
    key::Key,
    record::{Config, IndexEntry},
    time::Timestamp,
};

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

impl Indexes {
    /// The indexes of configs, in about 0.15 ms for each 1,000 entries. Each config is read once, since many are in no
    /// CPU cache. A stable sort keeps those of one time or value in the order of their keys.
    pub(crate) fn of(indexing: &Indexing, configs: &Tree<ByKey<Arc<Config>>>) -> Self {
        let count = usize::try_from(configs.len()).unwrap_or_default();
        let (mut by_created, mut by_modified) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut by_slot: Vec<_> = indexing.slots.iter().map(|_| Vec::with_capacity(count)).collect();
        for config in configs.from(0).map(|item| &item.record) {
            by_created.push(ByTime { at: config.created_at, of: config.key.clone() });
            by_modified.push(ByTime { at: config.modified_at, of: config.key.clone() });
            for entry in &*config.entries {
                // Entries of dropped paths are in no index.
                let position = indexing.position(entry.slot);
                let items = position.and_then(|position| by_slot.get_mut(position));
                items.into_iter().for_each(|items| items.push(BySlot::new(&entry.value, &config.key)));
            }
        }
        by_created.sort_by_key(|item| item.at);
        by_modified.sort_by_key(|item| item.at);
        by_slot.iter_mut().for_each(|items| items.sort_by(BySlot::compare_values));
        Self {
            by_created: Tree::from_sorted(by_created.into_iter()),
            by_modified: Tree::from_sorted(by_modified.into_iter()),
            by_slot: by_slot.into_iter().map(|items| Tree::from_sorted(items.into_iter())).collect(),
        }
    }

    /// Applies edits.
    pub(super) fn edit_all(&mut self, edits: IndexEdits<'_>) {
        self.by_created.edit_all(edits.by_created);
        self.by_modified.edit_all(edits.by_modified);
        for (index, edits) in self.by_slot.iter_mut().zip(edits.by_slot) {
            index.edit_all(edits);
        }
    }
}

/// The edits of each of the [`Indexes`].
pub(super) struct IndexEdits<'a> {
    indexing: &'a Indexing,
    by_created: Vec<tree::TreeEdit<ByTime<Key>>>,
    by_modified: Vec<tree::TreeEdit<ByTime<Key>>>,
    by_slot: Vec<Vec<tree::TreeEdit<BySlot>>>,
}

impl<'a> IndexEdits<'a> {
    pub(super) fn new(indexing: &'a Indexing) -> Self {
        let by_slot = vec![Vec::new(); indexing.slots.len()];
        Self { indexing, by_created: Vec::new(), by_modified: Vec::new(), by_slot }
    }

    /// Adds the edits of a changed config; one of the two may be absent.
    pub(super) fn add(&mut self, before: Option<&Arc<Config>>, after: Option<&Arc<Config>>) {
        // A step of an index build changes neither time.
        add_time(&mut self.by_created, before, after, |config| config.created_at);
        add_time(&mut self.by_modified, before, after, |config| config.modified_at);
        let has = |config: Option<&Arc<Config>>, entry: &IndexEntry| {
            config.is_some_and(|config| config.entries.binary_search(entry).is_ok())
        };
        let is_left = concord_model::sabotage::is("index-left-on-delete") && after.is_none();
        if let Some(config) = before.filter(|_| !is_left) {
            self.add_entries(config, |entry| !has(after, entry), false);
        }
        if let Some(config) = after {
            self.add_entries(config, |entry| !has(before, entry), true);
        }
    }

    fn add_entries(&mut self, config: &Config, is_changed: impl Fn(&IndexEntry) -> bool, present: bool) {
        for entry in config.entries.iter().filter(|entry| is_changed(entry)) {
            // Entries of dropped paths are in no index.
            let position = self.indexing.position(entry.slot);
            let edits = position.and_then(|position| self.by_slot.get_mut(position));
            edits.into_iter().for_each(|edits| edits.push((BySlot::new(&entry.value, &config.key), present)));
        }
    }
}

fn add_time(
    edits: &mut Vec<tree::TreeEdit<ByTime<Key>>>,
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

impl Collection {
    /// The slot of an indexed path and its index.
    fn slot_of(&self, path: &str) -> Option<(u16, &Tree<BySlot>)> {
        let slot = self.definition.slot(path)?;
        Some((slot, self.index(slot)?))
    }

    /// The rejection of a config's index entries, when another config has one of their values at a unique path.
    #[must_use]
    pub fn unique_conflict(&self, key: &str, entries: &[IndexEntry]) -> Option<Rejection> {
        if concord_model::sabotage::is("unique-ignored") {
            return None;
        }
        self.definition.unique.iter().find_map(|path| {
            let by = self.other_with_value(path, key, entries)?.clone();
            Some(Rejection::NotUnique { path: path.clone(), by })
        })
    }

    /// Another config that has one of these values at a path.
    #[must_use]
    pub fn other_with_value(&self, path: &str, key: &str, entries: &[IndexEntry]) -> Option<&Key> {
        let (slot, index) = self.slot_of(path)?;
        let values = entries.iter().filter(|entry| entry.slot == slot).map(|entry| &*entry.value);
        values.into_iter().find_map(|value| {
            let position = index.rank(|item| item.value() < value);
            let mut equal = index.from(position).take_while(|item| item.value() == value);
            equal.find(|item| item.key.as_str() != key).map(|item| &item.key)
        })
    }

    /// The entries of a path in the order of their values, each with its config. The entries of a config are unique, so
    /// two equal adjacent values belong to two configs.
    pub fn by_value(&self, path: &str) -> impl Iterator<Item = (&[u8], &Key)> {
        let items = self.slot_of(path).into_iter().flat_map(|(_, index)| index.from(0));
        items.map(|item| (item.value(), &item.key))
    }
}
