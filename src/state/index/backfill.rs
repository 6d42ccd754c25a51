//! A change of a definition's indexed paths, and the build that brings its configs up to it.
//!
//! ```text
//! SetIndexes ─┬─ few configs: all are indexed anew in this entry
//!             └─ many: kept paths keep their orders, dropped ones lose theirs, new ones begin with empty ones;
//!                then BuildIndex, BuildIndex, … each passes some configs by key, until the last
//! ```
//!
//! A step takes as long as some dozens of writes, and other writes are decided between two steps. They bear entries of
//! all paths, so it does not matter on which side of the cursor they fall. Where the build stands is a part of the
//! definition's record: every node knows it, a snapshot holds it, and a new leader goes on from there.
//!
//! **Invariant:** the order of each slot holds exactly the entries of that slot that the configs bear, during a build
//! as well; so a state that is made of records in the middle of a build equals the one that was stored. A step
//! changes neither revision nor time of a record: nobody but the store sees a change.

use std::sync::Arc;

use super::{deferred::DeferredIndexes, tree::Tree};
use crate::{
    model::{
        index::{self, Build, Indexing, StoredPath},
        key::Key,
        limits::{INDEX_AT_ONCE_MAX, INDEX_STEP_BYTES, INDEX_STEP_CONFIGS},
        record::{Config, Definition, Entries, Entry, Revision},
    },
    state::{Collection, Edit, Indexes, State, apply::Stamp},
};

/// How far a build is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Configs that it has passed.
    pub done: u64,
    /// Configs of the definition.
    pub of: u64,
}

impl State {
    /// The definitions whose configs are being indexed, by key.
    pub fn building(&self) -> impl Iterator<Item = &Arc<Definition>> {
        self.building.from(0).map(|found| &found.record)
    }

    /// The definition that a build is to take its next step in: the one behind `last`, in turn.
    #[must_use]
    pub fn building_after(&self, last: Option<&Key>) -> Option<&Arc<Definition>> {
        let place = last.map_or(0, |last| self.building.rank(|key| key <= last));
        self.building.at(place).or_else(|| self.building.at(0)).map(|found| &found.record)
    }

    /// Gives a definition other indexed paths.
    pub(in crate::state) fn set_indexes(
        &mut self,
        stamp: Stamp,
        key: &Key,
        indexes: &[String],
        edits: &mut Vec<Edit>,
    ) {
        let Some(old) = self.take(key) else { return };
        let before = Arc::clone(&old.definition);
        let renewed = before.indexing.renewed(&before.indexes, indexes);
        let (slots, next) = match &renewed {
            Some(renewed) => (renewed.slots.clone(), renewed.next),
            None => {
                let fresh = Indexing::fresh(indexes.len());
                (fresh.slots, fresh.next)
            }
        };
        let same = renewed.as_ref().is_some_and(|renewed| renewed.added.is_empty() && !renewed.dropped);
        let at_once = !same && (renewed.is_none() || old.by_key.len() <= INDEX_AT_ONCE_MAX);
        let build = match renewed {
            _ if at_once => None,
            // The same paths, perhaps in another order: a build that is going on goes on.
            Some(_) if same => before.indexing.build.clone(),
            Some(renewed) => {
                let unfinished = before.indexing.build.iter().flat_map(|build| &build.slots);
                let mut slots: Vec<u16> = unfinished.copied().filter(|slot| slots.contains(slot)).collect();
                slots.extend(renewed.added);
                Some(Build { begun: stamp.revision, slots, cursor: None })
            }
            None => None,
        };
        let after = Arc::new(Definition {
            indexes: indexes.to_vec(),
            indexing: Indexing { slots, next, build },
            modified_at: stamp.at,
            revision: stamp.revision,
            ..(*before).clone()
        });
        let id = after.id;
        let new = if at_once { old.indexed_anew(&after) } else { old.with_paths(&after) };
        self.put(new);
        edits.push(Edit::Definition { before: Some(before), after: Some(after) });
        if at_once {
            edits.push(Edit::Reindexed { definition: id });
        }
    }

    /// Takes a step of a build, unless the build has gone on without it.
    pub(in crate::state) fn build_index(
        &mut self,
        key: &Key,
        begun: Revision,
        cursor: Option<&Key>,
        edits: &mut Vec<Edit>,
    ) {
        let is_next = |build: &Build| build.begun == begun && build.cursor.as_ref() == cursor;
        let found = self.definition(key.as_str()).map(|found| &found.definition.indexing);
        if !found.and_then(|indexing| indexing.build.as_ref()).is_some_and(is_next) {
            return;
        }
        let Some(old) = self.take(key) else { return };
        let mut collection = Arc::unwrap_or_clone(old);
        let before = Arc::clone(&collection.definition);
        let (passed, ended) = collection.next_of_build();
        let pass = Pass::of(&before);
        for config in &passed {
            let Some(entries) = pass.entries(config) else { continue };
            let after = Arc::new(Config { entries, ..(**config).clone() });
            collection.edit(Some(config), Some(&after));
            edits.push(Edit::Entries { definition: before.id, before: Arc::clone(config), after });
        }
        let mut indexing = before.indexing.clone();
        indexing.build = indexing.build.filter(|_| !ended).map(|build| Build {
            cursor: passed.last().map(|config| config.key.clone()).or(build.cursor),
            ..build
        });
        let after = Arc::new(Definition { indexing, ..(*before).clone() });
        collection.definition = Arc::clone(&after);
        self.put(collection);
        edits.push(Edit::Building { before, after });
    }
}

impl Collection {
    /// How far the build is that is going on.
    #[must_use]
    pub fn progress(&self) -> Option<Progress> {
        let build = self.definition.indexing.build.as_ref()?;
        Some(Progress { done: self.passed_by(build), of: self.by_key.len() })
    }

    fn passed_by(&self, build: &Build) -> u64 {
        build.cursor.as_ref().map_or(0, |cursor| self.by_key.rank(|key| key <= cursor))
    }

    /// The configs that the next step passes, and whether no more come behind them.
    fn next_of_build(&self) -> (Vec<Arc<Config>>, bool) {
        let from = self.definition.indexing.build.as_ref().map_or(0, |build| self.passed_by(build));
        let (mut passed, mut bytes) = (Vec::new(), 0);
        for item in self.by_key.from(from) {
            if passed.len() >= INDEX_STEP_CONFIGS || bytes >= INDEX_STEP_BYTES {
                return (passed, false);
            }
            bytes += item.record.data.len();
            passed.push(Arc::clone(&item.record));
        }
        (passed, true)
    }

    /// The same configs under other paths, indexed anew. Their records stay as they are for their readers: only the
    /// entries are others.
    fn indexed_anew(&self, definition: &Arc<Definition>) -> Self {
        let paths = index::stored_paths(definition);
        let reindex = |config: &Arc<Config>| {
            let entries = index::all_entries(&paths, &parsed(config));
            Arc::new(Config { entries, ..(**config).clone() })
        };
        Self::from_configs(Arc::clone(definition), self.configs().map(reindex).collect())
    }

    /// The same configs under other paths: kept ones keep their orders, the others have empty ones.
    fn with_paths(&self, definition: &Arc<Definition>) -> Self {
        let places: Vec<_> = definition.indexing.slots.iter().map(|slot| self.place(*slot)).collect();
        let orders = self.orders();
        let order = |place: &Option<usize>| place.and_then(|place| orders.by_slot.get(place)).cloned();
        let repeated = |place: &Option<usize>| place.and_then(|place| self.repeated.get(place)).copied();
        Self {
            definition: Arc::clone(definition),
            trailing: DeferredIndexes::new(Indexes {
                by_slot: places.iter().map(|place| order(place).unwrap_or_else(Tree::new)).collect(),
                ..orders.clone()
            }),
            repeated: places.iter().map(|place| repeated(place).unwrap_or(0)).collect(),
            ..self.clone()
        }
    }
}

/// What a build does to each config.
struct Pass {
    /// The slots whose entries stay as they are.
    ready: Vec<u16>,
    /// The paths whose entries are computed.
    building: Vec<StoredPath>,
}

impl Pass {
    fn of(definition: &Definition) -> Self {
        let (building, ready): (Vec<_>, Vec<_>) = index::stored_paths(definition)
            .into_iter()
            .partition(|stored| definition.indexing.is_building(stored.slot));
        Self { ready: ready.into_iter().map(|stored| stored.slot).collect(), building }
    }

    /// The entries that a config shall have; `None` when it has them.
    fn entries(&self, config: &Config) -> Option<Entries> {
        let kept = config.entries.iter().filter(|entry| self.ready.contains(&entry.slot)).cloned();
        let mut entries: Vec<Entry> = kept.collect();
        if !self.building.is_empty() {
            entries.extend(index::all_entries(&self.building, &parsed(config)));
            // Both parts are sorted; no slot is in both.
            entries.sort();
        }
        (*entries != *config.entries).then(|| entries.into())
    }
}

/// Stored data was parsed when it was taken in.
fn parsed(config: &Config) -> serde_json::Value {
    serde_json::from_str(&config.data).unwrap_or_default()
}

#[cfg(test)]
mod tests;
