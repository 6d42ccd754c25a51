//! Rebuilds an earlier state from a later one and from the records that were replaced since.
//!
//! The log does not agree on it; it only answers lists at an earlier revision. So it holds no more than such a list
//! needs, either all definitions without configs or one definition with its configs, and shares every record and index
//! node with the later state that did not change between the two.
//!
//! The index entries of a config belong to the indexed paths of the time when they were computed, and an index build
//! rewrites them without a trace in the history. So entries are reused only if the definition did not change in
//! between. Otherwise they are computed again from the data, as in a build, and every index is complete.
//!
//! **Invariant:** lists of such a state equal those of the state at its revision. The exception: lists that were
//! rejected then, because an index was being built, are answered.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Collection, State,
    replaced::{BYTES_PER_RECORD, NODE_BYTES_PER_CHANGE, config_bytes, definition_bytes},
};
use concord_model::{
    index::{self, Indexing, StoredPath},
    key::Key,
    record::{Config, Definition, Revision},
};

/// If more than one in so many configs of a definition changed, its indexes are rebuilt and not edited.
const EDITED_PART: u64 = 8;
/// Configs between two checks whether the result is still needed.
const CONFIGS_BETWEEN_QUESTIONS: usize = 256;

/// An earlier state.
#[derive(Debug, Clone)]
pub struct EarlierState {
    /// Its definitions without configs, or one definition with its configs.
    pub state: Arc<State>,
    /// An upper bound of the bytes that it held in addition to the current state when it was built.
    own_bytes: u64,
}

impl EarlierState {
    /// The current state, to go back from.
    #[must_use]
    pub fn present(state: Arc<State>) -> Self {
        Self { state, own_bytes: 0 }
    }

    /// The state of all definitions as of a revision, without their configs. `replaced`: the definitions that changed
    /// between that revision and this state, as they were; `None` for one that did not exist.
    #[must_use]
    pub fn definitions_at(&self, at: Revision, mut replaced: BTreeMap<Key, Option<Arc<Definition>>>) -> Self {
        let mut past = self.empty_at(at);
        let mut own_bytes = 0_u64;
        for later in self.state.definitions() {
            let definition = match replaced.remove(&later.definition.key) {
                Some(Some(before)) => before,
                Some(None) => continue,
                None => Arc::clone(&later.definition),
            };
            past.insert_collection(Collection::new(definition));
        }
        for before in replaced.into_values().flatten() {
            own_bytes = own_bytes.saturating_add(definition_bytes(&before));
            past.insert_collection(Collection::new(before));
        }
        let own_bytes = own_bytes.saturating_add(past.nodes_bytes());
        Self { state: Arc::new(past), own_bytes: self.own_bytes.saturating_add(own_bytes) }
    }

    /// The state of one definition as of a revision: as `definition`, with the configs that it had. `replaced`: the
    /// configs that changed between that revision and this state, as they were; `None` for one that did not exist.
    /// `None` when `is_over` has returned true.
    #[must_use]
    pub fn configs_at(
        &self,
        at: Revision,
        definition: &Arc<Definition>,
        replaced: BTreeMap<Key, Option<Arc<Config>>>,
        is_over: &dyn Fn() -> bool,
    ) -> Option<Self> {
        let mut past = self.empty_at(at);
        let Some(later) = self.state.definition(definition.key.as_str()) else {
            return Some(Self { state: Arc::new(past), own_bytes: self.own_bytes });
        };
        let same_paths =
            later.definition.revision == definition.revision && later.definition.indexing.build.is_none();
        let work = CollectionRebuild { definition: finished(definition), same_paths, left: 0, is_over };
        let is_edited = same_paths && replaced.len() as u64 <= later.by_key.len() / EDITED_PART;
        let (collection, own_bytes) =
            if is_edited { work.edited(later, replaced)? } else { work.built(later, replaced)? };
        past.insert_collection(collection);
        Some(Self { state: Arc::new(past), own_bytes: self.own_bytes.saturating_add(own_bytes) })
    }

    /// An upper bound of the bytes that it keeps in memory in addition to the current state.
    #[must_use]
    pub fn bytes_kept_beside(&self, now: &State) -> u64 {
        let all = self.state.bytes.saturating_add(self.state.nodes_bytes());
        self.own_bytes.saturating_add(self.state.bytes_kept_beside(now)).min(all)
    }

    /// A state without records, also without environments: no list has them, and nothing is decided by it.
    fn empty_at(&self, at: Revision) -> State {
        let later = &self.state;
        State {
            revision: at,
            last_at: later.last_at,
            compaction_revision: later.compaction_revision,
            void: Arc::clone(&later.void),
            feature_level: later.feature_level,
            replaced: later.replaced,
            ..State::default()
        }
    }
}

/// A definition whose indexes are all complete.
pub(super) fn finished(definition: &Arc<Definition>) -> Arc<Definition> {
    if definition.indexing.build.is_none() {
        return Arc::clone(definition);
    }
    let indexing = Indexing { build: None, ..definition.indexing.clone() };
    Arc::new(Definition { indexing, ..Definition::clone(definition) })
}

/// Rebuilds the earlier collection of one definition.
struct CollectionRebuild<'a> {
    definition: Arc<Definition>,
    /// Whether the later collection has the same indexed paths, and all entries of them.
    same_paths: bool,
    left: usize,
    is_over: &'a dyn Fn() -> bool,
}

impl CollectionRebuild<'_> {
    /// Edits the later collection: puts the replaced configs back one by one.
    fn edited(
        mut self,
        later: &Collection,
        replaced: BTreeMap<Key, Option<Arc<Config>>>,
    ) -> Option<(Collection, u64)> {
        let paths = index::stored_paths(&self.definition);
        let mut past = later.clone();
        let changes = replaced.len() as u64;
        let mut own_bytes = changes.saturating_mul(NODE_BYTES_PER_CHANGE);
        for (key, before) in replaced {
            self.step()?;
            let before = before.map(|config| self.as_indexed(config, &paths));
            own_bytes = own_bytes.saturating_add(before.as_deref().map_or(0, held_bytes));
            past.edit(later.config(key.as_str()), before.as_ref());
        }
        Some((past, own_bytes))
    }

    /// Builds a collection with indexes of its own.
    fn built(
        mut self,
        later: &Collection,
        mut replaced: BTreeMap<Key, Option<Arc<Config>>>,
    ) -> Option<(Collection, u64)> {
        let paths = index::stored_paths(&self.definition);
        let mut configs = Vec::new();
        let mut own_bytes = 0_u64;
        for config in later.configs() {
            self.step()?;
            let past = match replaced.remove(&config.key) {
                Some(Some(before)) => self.as_indexed(before, &paths),
                Some(None) => continue,
                None if self.same_paths => Arc::clone(config),
                None => indexed(config, &paths),
            };
            if !Arc::ptr_eq(&past, config) {
                own_bytes = own_bytes.saturating_add(held_bytes(&past));
            }
            configs.push(past);
        }
        for before in replaced.into_values().flatten() {
            self.step()?;
            own_bytes = own_bytes.saturating_add(held_bytes(&before));
            configs.push(self.as_indexed(before, &paths));
        }
        configs.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        let own_bytes = own_bytes.saturating_add((configs.len() as u64).saturating_mul(BYTES_PER_RECORD));
        Some((Collection::from_configs(self.definition, configs), own_bytes))
    }

    /// A replaced config with the entries of the definition's paths.
    fn as_indexed(&self, config: Arc<Config>, paths: &[StoredPath]) -> Arc<Config> {
        // A config that was written after the last change of the paths has their entries.
        if self.same_paths && config.revision > self.definition.revision {
            return config;
        }
        indexed(&config, paths)
    }

    fn step(&mut self) -> Option<()> {
        if self.left > 0 {
            self.left -= 1;
            return Some(());
        }
        self.left = CONFIGS_BETWEEN_QUESTIONS;
        (!(self.is_over)()).then_some(())
    }
}

fn held_bytes(config: &Config) -> u64 {
    config_bytes(config).saturating_add(BYTES_PER_RECORD)
}

/// A config with entries that are computed from its data.
pub(super) fn indexed(config: &Arc<Config>, paths: &[StoredPath]) -> Arc<Config> {
    let entries = index::all_entries(paths, &super::index::backfill::parsed(config));
    if entries == config.entries {
        return Arc::clone(config);
    }
    Arc::new(Config { entries, ..Config::clone(config) })
}

#[cfg(test)]
mod tests;
