//! A change of a definition's indexed paths, and the index build that follows.
//!
//! ```text
//! SetIndexes ─┬─ small definition: all configs are reindexed in this entry, as far as the steps of its batch left room
//!             └─ large definition: retained paths keep their indexes, dropped paths lose theirs, new paths start with
//!                empty ones; then BuildIndex, BuildIndex, … each processes some configs by key, up to the last
//! ```
//!
//! A step takes as long as some dozens of writes, and other writes are decided between two steps. Their configs have
//! entries of all paths, so it does not matter on which side of the cursor they are. The progress of the build is part
//! of the definition's record: every node knows it, a snapshot contains it, and a new leader continues from it.
//!
//! **Invariant:** the index of each slot contains exactly the entries of that slot that the configs have, also during a
//! build; so a state that is built from records in the middle of a build equals the one that was stored. A step changes
//! neither revision nor time of a record: only the store sees a change.

use std::sync::Arc;

use super::{deferred::DeferredIndexes, tree::Tree};
use crate::{Collection, Edit, Indexes, State, apply::EntryContext, replaced::config_bytes};
use concord_model::{
    index::{self, Build, Indexing, StoredPath},
    key::Key,
    limits::{BUILD_STEP_BYTES_MAX, BUILD_STEP_CONFIGS_MAX, REINDEX_BYTES_MAX, REINDEX_CONFIGS_MAX},
    record::{Config, Definition, IndexEntries, IndexEntry, Revision},
};

/// What one entry has reindexed. It matters within that entry alone, so it is no part of what nodes agree on: another
/// revision begins from nothing.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Reindexed {
    revision: Revision,
    configs: u32,
    bytes: u32,
}

impl Reindexed {
    /// Adds a collection if all that the entry reindexes stays within the bounds.
    fn add(&mut self, revision: Revision, collection: &Collection, patterns: usize) -> bool {
        let so_far = if self.revision == revision { *self } else { Self { revision, ..Self::default() } };
        let configs = collection.by_key.len().saturating_add(so_far.configs.into());
        let Some(configs) = u32::try_from(configs).ok().filter(|_| configs <= REINDEX_CONFIGS_MAX) else {
            return false;
        };
        // Each pattern may select all values.
        let data = collection.configs().map(|config| config.data.len().saturating_mul(patterns.max(1)));
        let bytes = data.fold(so_far.bytes as usize, usize::saturating_add);
        let Some(bytes) = u32::try_from(bytes).ok().filter(|_| bytes <= REINDEX_BYTES_MAX) else {
            return false;
        };
        *self = Self { revision, configs, bytes };
        true
    }
}

/// The progress of an index build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuildProgress {
    /// Configs that were processed.
    pub done: u64,
    /// Configs of the definition.
    pub total: u64,
}

impl State {
    /// The definitions with an index build in progress, by key.
    pub fn building(&self) -> impl Iterator<Item = &Arc<Definition>> {
        self.building.from(0).map(|found| &found.record)
    }

    /// The definition whose build takes the next step: the one after `last` by key, round robin.
    #[must_use]
    pub fn building_after(&self, last: Option<&Key>) -> Option<&Arc<Definition>> {
        let position = last.map_or(0, |last| self.building.rank(|key| key <= last));
        self.building.at(position).or_else(|| self.building.at(0)).map(|found| &found.record)
    }

    /// Replaces the indexed paths of a definition.
    pub(crate) fn set_indexes(
        &mut self,
        context: EntryContext,
        key: &Key,
        indexes: &[String],
        edits: &mut Vec<Edit>,
    ) {
        let Some(old) = self.remove_collection(key) else { return };
        let before = Arc::clone(&old.definition);
        let assignment = before.indexing.reassigned(&before.indexes, indexes);
        let (slots, next) = match &assignment {
            Some(assignment) => (assignment.slots.clone(), assignment.next),
            None => {
                let fresh = Indexing::of(indexes);
                (fresh.slots, fresh.next)
            }
        };
        let is_same =
            assignment.as_ref().is_some_and(|assignment| assignment.added.is_empty() && !assignment.dropped);
        let may_reindex =
            |state: &mut Self| state.reindexed.add(context.revision, &old, pattern_count(&slots));
        let at_once = !is_same && (assignment.is_none() || may_reindex(self));
        let build = match assignment {
            _ if at_once => None,
            // The same paths, perhaps in another order: a build in progress continues.
            Some(_) if is_same => before.indexing.build.clone(),
            Some(assignment) => {
                let unfinished = before.indexing.build.iter().flat_map(|build| &build.slots);
                let mut slots: Vec<u16> = unfinished.copied().filter(|slot| slots.contains(slot)).collect();
                slots.extend(assignment.added);
                Some(Build { begun: context.revision, slots, cursor: None })
            }
            None => None,
        };
        let after = Arc::new(Definition {
            indexes: indexes.to_vec(),
            indexing: Indexing { slots, next, build },
            modified_at: context.at,
            revision: context.revision,
            ..(*before).clone()
        });
        let id = after.id;
        if at_once {
            self.count_replaced_collection(&old);
        } else {
            self.count_replaced(0);
        }
        let new = if at_once { old.reindexed(&after) } else { old.with_paths(&after) };
        self.insert_collection(new);
        edits.push(Edit::Definition { before: Some(before), after: Some(after) });
        if at_once {
            edits.push(Edit::Reindexed { definition: id });
        }
    }

    /// Applies a step of a build, unless the build has passed it.
    pub(crate) fn build_index(
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
        let Some(old) = self.remove_collection(key) else { return };
        let mut collection = Arc::unwrap_or_clone(old);
        let before = Arc::clone(&collection.definition);
        let (configs, is_last) = collection.next_build_step();
        let build = StepBuilder::of(&before);
        for config in &configs {
            let Some(entries) = build.entries(config) else { continue };
            let after = Arc::new(Config { entries, ..(**config).clone() });
            collection.edit(Some(config), Some(&after));
            self.count_replaced(config_bytes(config) - config.data.len() as u64);
            edits.push(Edit::Entries { definition: before.id, before: Arc::clone(config), after });
        }
        let mut indexing = before.indexing.clone();
        indexing.build = indexing.build.filter(|_| !is_last).map(|build| Build {
            cursor: configs.last().map(|config| config.key.clone()).or(build.cursor),
            ..build
        });
        let after = Arc::new(Definition { indexing, ..(*before).clone() });
        collection.definition = Arc::clone(&after);
        self.insert_collection(collection);
        edits.push(Edit::Building { before, after });
    }
}

impl Collection {
    /// The progress of the build, when one is in progress.
    #[must_use]
    pub fn progress(&self) -> Option<BuildProgress> {
        let build = self.definition.indexing.build.as_ref()?;
        Some(BuildProgress { done: self.processed(build), total: self.by_key.len() })
    }

    fn processed(&self, build: &Build) -> u64 {
        build.cursor.as_ref().map_or(0, |cursor| self.by_key.rank(|key| key <= cursor))
    }

    /// The configs of the next step, and whether it is the last.
    fn next_build_step(&self) -> (Vec<Arc<Config>>, bool) {
        let build = self.definition.indexing.build.as_ref();
        let from = build.map_or(0, |build| self.processed(build));
        let patterns = build.map_or(0, |build| pattern_count(&build.slots));
        let (mut configs, mut bytes) = (Vec::new(), 0);
        for item in self.by_key.from(from) {
            if configs.len() >= BUILD_STEP_CONFIGS_MAX || bytes >= BUILD_STEP_BYTES_MAX {
                return (configs, false);
            }
            bytes += item.record.data.len().saturating_mul(patterns.max(1));
            configs.push(Arc::clone(&item.record));
        }
        (configs, true)
    }

    /// The same configs, reindexed for other paths. Only the entries of their records change.
    fn reindexed(&self, definition: &Arc<Definition>) -> Self {
        let paths = index::stored_paths(definition);
        let reindex = |config: &Arc<Config>| {
            let entries = index::all_entries(&paths, &parsed(config));
            Arc::new(Config { entries, ..(**config).clone() })
        };
        Self::from_configs(Arc::clone(definition), self.configs().map(reindex).collect())
    }

    /// The same configs with other paths: retained paths keep their indexes, new ones have empty ones.
    fn with_paths(&self, definition: &Arc<Definition>) -> Self {
        let positions: Vec<_> =
            definition.indexing.slots.iter().map(|slot| self.slot_position(*slot)).collect();
        let indexes = self.indexes();
        let index =
            |position: &Option<usize>| position.and_then(|position| indexes.by_slot.get(position)).cloned();
        let repeated =
            |position: &Option<usize>| position.and_then(|position| self.repeated.get(position)).copied();
        Self {
            definition: Arc::clone(definition),
            deferred: DeferredIndexes::new(Indexes {
                by_slot: positions.iter().map(|position| index(position).unwrap_or_else(Tree::new)).collect(),
                ..indexes.clone()
            }),
            repeated: positions.iter().map(|position| repeated(position).unwrap_or(0)).collect(),
            ..self.clone()
        }
    }
}

/// Computes the index entries of the configs of a build.
struct StepBuilder {
    /// The slots whose entries are complete.
    ready: Vec<u16>,
    /// The paths whose entries are computed.
    building: Vec<StoredPath>,
}

impl StepBuilder {
    fn of(definition: &Definition) -> Self {
        let (building, ready): (Vec<_>, Vec<_>) = index::stored_paths(definition)
            .into_iter()
            .partition(|stored| definition.indexing.is_building(stored.slot));
        Self { ready: ready.into_iter().map(|stored| stored.slot).collect(), building }
    }

    /// The entries of a config; `None` when they do not change.
    fn entries(&self, config: &Config) -> Option<IndexEntries> {
        let ready = config.entries.iter().filter(|entry| self.ready.contains(&entry.slot)).cloned();
        let mut entries: Vec<IndexEntry> = ready.collect();
        if !self.building.is_empty() {
            entries.extend(index::all_entries(&self.building, &parsed(config)));
            // Both parts are sorted; no slot is in both.
            entries.sort();
        }
        (*entries != *config.entries).then(|| entries.into())
    }
}

/// How many of the slots are of patterns.
fn pattern_count(slots: &[u16]) -> usize {
    slots.iter().filter(|slot| index::is_pattern_slot(**slot)).count()
}

/// The parsed data of a config. It was valid JSON when it was stored.
pub(crate) fn parsed(config: &Config) -> serde_json::Value {
    serde_json::from_str(&config.data).unwrap_or_default()
}

#[cfg(test)]
mod tests;
