//! Continues the state of a backup by changes that the history has: the first state of a cluster that is restored as of
//! a point in time.
//!
//! The changes of one record are collected, and each definition that they touch is rebuilt once, at the end. So a change
//! costs one look-up, whatever its indexes are, and only the newest content of a record is kept in memory.
//!
//! Steps of index builds are not in the history. So a build of a definition that the changes touch counts as complete:
//! the entries of its configs are computed from their data.
//!
//! Nor are the contents of change requests. So a change request without the content of its edition is closed.
//!
//! **Invariant:** a change that does not follow from the state before it is an error: the history is that of another
//! cluster, or a part of it is missing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Collection, RememberedOutcome, State,
    earlier::{finished, indexed},
};
use concord_model::{
    index,
    key::Key,
    record::{Config, Definition, Deletion, Revision},
    system::SystemRecord,
    time::Timestamp,
};

/// A change does not follow from the state before it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Mismatch(String);

/// A state that is being continued.
#[derive(Debug)]
pub struct Continuation {
    /// What no change has touched.
    state: State,
    /// The definitions that exist and were touched, by id.
    live: BTreeMap<u64, Continued>,
    keys: BTreeSet<Key>,
    /// The deleted ones that are kept and were deleted by a change, by id.
    kept: BTreeMap<u64, Continued>,
    /// The one that the edit before has deleted: the next one says whether it is kept.
    removed: Option<Continued>,
    revision: Revision,
    at: Timestamp,
}

/// A definition that changes have touched.
#[derive(Debug)]
struct Continued {
    definition: Arc<Definition>,
    /// Before the first change; `None` when one created it.
    base: Option<Arc<Collection>>,
    /// The configs that changes have touched; `None` for one that was deleted.
    configs: BTreeMap<Key, Option<Arc<Config>>>,
    /// Whether the entries of its configs may be those of other paths.
    is_stale: bool,
}

impl Continued {
    fn new(definition: Arc<Definition>, base: Option<Arc<Collection>>) -> Self {
        let is_stale = definition.indexing.build.is_some();
        Self { definition, base, configs: BTreeMap::new(), is_stale }
    }

    fn config(&self, key: &Key) -> Option<&Arc<Config>> {
        match self.configs.get(key) {
            Some(changed) => changed.as_ref(),
            None => self.base.as_ref().and_then(|base| base.config(key.as_str())),
        }
    }

    fn define(&mut self, definition: Arc<Definition>) {
        self.is_stale |=
            definition.indexing.build.is_some() || definition.indexing != self.definition.indexing;
        self.definition = definition;
    }

    fn collection(self) -> Collection {
        let definition = finished(&self.definition);
        let paths = index::stored_paths(&definition);
        let renew = |config: Arc<Config>| if self.is_stale { indexed(&config, &paths) } else { config };
        let mut changed = self.configs.into_iter().peekable();
        let mut configs: Vec<Arc<Config>> = Vec::new();
        for config in self.base.iter().flat_map(|base| base.configs()) {
            while let Some((_, added)) = changed.next_if(|(key, _)| *key < config.key) {
                configs.extend(added);
            }
            match changed.next_if(|(key, _)| *key == config.key) {
                Some((_, replaced)) => configs.extend(replaced),
                None => configs.push(Arc::clone(config)),
            }
        }
        configs.extend(changed.filter_map(|(_, added)| added));
        Collection::from_configs(definition, configs.into_iter().map(renew).collect())
    }
}

impl Continuation {
    /// Begins after a state.
    #[must_use]
    pub fn new(state: State) -> Self {
        let (revision, at) = (state.revision(), state.last_at());
        Self {
            state,
            live: BTreeMap::new(),
            keys: BTreeSet::new(),
            kept: BTreeMap::new(),
            removed: None,
            revision,
            at,
        }
    }

    /// Begins the next change: its edits follow, in their order.
    pub fn begin(&mut self, revision: Revision, at: Timestamp) {
        (self.revision, self.at) = (revision, self.at.max(at));
    }

    /// A definition is created, changed or deleted. `returns`: the deletion of this one is undone.
    ///
    /// # Errors
    /// When the definition before the change is not the one of the revision `before`.
    pub fn definition(
        &mut self,
        id: u64,
        key: &Key,
        before: Option<Revision>,
        (after, returns): (Option<&Arc<Definition>>, bool),
    ) -> Result<(), Mismatch> {
        if before.is_none() {
            let Some(after) = after else { return Ok(()) };
            if self.state.definition(key.as_str()).is_some() || self.keys.contains(key) {
                return Err(Mismatch(format!("definition `{key}` is created, and exists already")));
            }
            let continued = if returns {
                let mut returned = self.take_kept(id).ok_or_else(|| {
                    Mismatch(format!("definition `{key}` returns, and is not kept as a deleted one"))
                })?;
                returned.define(Arc::clone(after));
                returned
            } else {
                Continued::new(Arc::clone(after), None)
            };
            self.keys.insert(key.clone());
            self.live.insert(id, continued);
            return Ok(());
        }
        let found = self.touch(id).filter(|found| Some(found.definition.revision) == before);
        let Some(found) = found else {
            return Err(Mismatch(format!("definition `{key}` is changed, and was another one before")));
        };
        match after {
            Some(after) => found.define(Arc::clone(after)),
            None => {
                self.removed = self.live.remove(&id);
                self.keys.remove(key);
            }
        }
        Ok(())
    }

    /// The definition that the edit before has deleted is kept, or is gone for good.
    pub fn deleted(&mut self, id: u64, kept: bool) {
        let Some(mut removed) = self.removed.take().filter(|removed| removed.definition.id == id && kept)
        else {
            return;
        };
        let deletion = Deletion { revision: self.revision, at: self.at };
        let mut definition = Definition::clone(&removed.definition);
        definition.standing.deleted = Some(deletion);
        removed.definition = Arc::new(definition);
        self.kept.insert(id, removed);
    }

    /// A deleted definition is no longer kept.
    pub fn dropped(&mut self, id: u64) {
        drop(self.take_kept(id));
    }

    /// All configs of a definition are indexed again.
    pub fn reindexed(&mut self, id: u64) {
        if let Some(found) = self.touch(id) {
            found.is_stale = true;
        }
    }

    /// A config is created, changed or deleted.
    ///
    /// # Errors
    /// When the config before the change is not the one of the revision `before`.
    pub fn config(
        &mut self,
        definition: u64,
        key: &Key,
        before: Option<Revision>,
        after: Option<&Arc<Config>>,
    ) -> Result<(), Mismatch> {
        let found = self.touch(definition);
        let found = found.filter(|found| found.config(key).map(|config| config.revision) == before);
        let text = || format!("config `{key}` of definition {definition} is changed, and was another before");
        found.ok_or_else(|| Mismatch(text()))?.configs.insert(key.clone(), after.cloned());
        Ok(())
    }

    /// A system record is created, changed or deleted.
    ///
    /// # Errors
    /// When the record before the change is another one.
    pub fn system_record(
        &mut self,
        before: Option<&Arc<SystemRecord>>,
        after: Option<&Arc<SystemRecord>>,
    ) -> Result<(), Mismatch> {
        let Some(any) = after.or(before) else { return Ok(()) };
        if self.state.system_record(&any.key()) != before {
            let key = any.key();
            return Err(Mismatch(format!("{key} is changed, and was another one before")));
        }
        if let Some(before) = before {
            self.state.remove_system_record(before);
        }
        if let Some(after) = after {
            self.state.insert_system_record(Arc::clone(after));
        }
        Ok(())
    }

    /// The outcome of a request is stored.
    pub fn remember(&mut self, outcome: RememberedOutcome) {
        self.state.remember(outcome);
    }

    /// The stored outcome of a revision expires.
    pub fn forget(&mut self, revision: Revision) {
        self.state.forget_of(revision);
    }

    /// The state at a revision, up to which all changes were added.
    #[must_use]
    pub fn finish(self, revision: Revision) -> State {
        let mut state = self.state;
        for continued in self.live.into_values() {
            state.insert_collection(continued.collection());
        }
        for continued in self.kept.into_values() {
            state.insert_deleted(continued.collection().into());
        }
        state.revision = revision;
        state.last_at = self.at;
        state.close_changes_without_content();
        state
    }

    /// A definition that exists, to be changed.
    fn touch(&mut self, id: u64) -> Option<&mut Continued> {
        if !self.live.contains_key(&id) {
            let key = self.state.definition_by_id(id)?.definition.key.clone();
            let base = self.state.remove_collection(&key)?;
            self.keys.insert(key);
            self.live.insert(id, Continued::new(Arc::clone(&base.definition), Some(base)));
        }
        self.live.get_mut(&id)
    }

    /// A deleted definition that is kept no longer.
    fn take_kept(&mut self, id: u64) -> Option<Continued> {
        self.kept.remove(&id).or_else(|| {
            let base = self.state.take_deleted(id)?;
            Some(Continued::new(Arc::clone(&base.definition), Some(base)))
        })
    }
}
