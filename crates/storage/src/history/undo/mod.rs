//! Finds the records that the changes after a revision replaced, to rebuild the state at that revision.
//!
//! A record as of a revision is what the first change after that revision replaced, so one pass over the changes finds
//! all records that differ. The edit embeds the replaced record where that is in an older segment; where it is in the
//! same one, which can only be the segment that the revision lies in, a second pass over that segment collects it.
//!
//! **Invariant:** the result has each record that a change of the range touched exactly once, as it was before the
//! first of these changes, or the whole result is an error.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    format::{StoredChange, StoredEdit},
    query::HistoryError,
    segments::History,
};
use concord_model::{
    key::Key,
    record::{Config, Definition, Revision},
};

/// Bytes that a record takes in the answer in addition to its text.
const BYTES_PER_RECORD: u64 = 256;

/// Which records are taken back.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum UndoScope {
    /// All definitions, without their configs.
    Definitions,
    /// The definition with this id and key, with its configs.
    Configs {
        /// Its id.
        id: u64,
        /// Its key.
        key: Key,
    },
}

/// Records as they were before the changes of a range; `None` for one that did not exist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Undo {
    /// The definitions of the scope that the changes touched.
    pub definitions: BTreeMap<Key, Option<Arc<Definition>>>,
    /// The configs of the scope that the changes touched.
    pub configs: BTreeMap<Key, Option<Arc<Config>>>,
    /// The changes that were read, of all records.
    pub changes: u64,
}

/// Why there is no [`Undo`].
#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    /// The history can't be read.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The caller no longer needs the result, or has no memory for it.
    #[error("given up")]
    GivenUp,
}

/// Called after each change with the bytes that the result has grown by. Returns whether to continue.
pub(super) type GoOn<'a> = &'a mut dyn FnMut(u64) -> bool;

impl History {
    /// What the changes after `after`, up to and including `upto`, replaced. Blocking.
    ///
    /// # Errors
    /// When the revision was compacted, changes are not on this node, the disk fails, or `go_on` returns false.
    pub fn undo(
        self: &Arc<Self>,
        scope: &UndoScope,
        after: Revision,
        upto: Revision,
        go_on: GoOn<'_>,
    ) -> Result<Undo, UndoError> {
        let mut pass = UndoPass { scope, undo: Undo::default(), wanted: BTreeMap::new() };
        if after >= upto {
            return Ok(pass.undo);
        }
        // What ends before `upto` may lack a change that an iterator does not know of.
        let mut covered = after;
        for change in self.changes_from(after + 1)? {
            let change = change?;
            if change.revision > upto {
                break;
            }
            covered = change.revision;
            let bytes = pass.add(self, change)?;
            if !go_on(bytes) {
                return Err(UndoError::GivenUp);
            }
        }
        if covered < upto && self.applied() < upto {
            return Err(HistoryError::Gap { after: covered, upto }.into());
        }
        self.find_wanted(&mut pass, after, go_on)?;
        Ok(pass.undo)
    }

    /// Finds the replaced configs that the edits only name: they were written in the segment that contains `upto`.
    fn find_wanted(
        self: &Arc<Self>,
        pass: &mut UndoPass<'_>,
        upto: Revision,
        go_on: GoOn<'_>,
    ) -> Result<(), UndoError> {
        let UndoScope::Configs { id, .. } = pass.scope else { return Ok(()) };
        let revisions: BTreeSet<Revision> = pass.wanted.values().copied().collect();
        let Some(first) = revisions.first() else { return Ok(()) };
        for change in self.retained_from(*first)? {
            let change = change?;
            if change.revision > upto {
                break;
            }
            let is_wanted = revisions.contains(&change.revision);
            let mut bytes = 0;
            // A batch may write a config twice: what it left is the last.
            for edit in change.edits.into_iter().rev().filter(|_| is_wanted) {
                let (StoredEdit::Config { definition, after: Some(config), .. }
                | StoredEdit::ConfigWithBefore { definition, after: Some(config), .. }) = edit
                else {
                    continue;
                };
                if definition == *id && pass.wanted.get(&config.key) == Some(&config.revision) {
                    pass.wanted.remove(&config.key);
                    bytes += config.data.len() as u64;
                    pass.undo.configs.insert(config.key.clone(), Some(config));
                }
            }
            if !go_on(bytes) {
                return Err(UndoError::GivenUp);
            }
        }
        match pass.wanted.first_key_value() {
            None => Ok(()),
            Some((key, revision)) => Err(self.lacks(key, *revision).into()),
        }
    }
}

/// One pass over the changes.
struct UndoPass<'a> {
    scope: &'a UndoScope,
    undo: Undo,
    /// The replaced configs that are only named, by the revisions that wrote them.
    wanted: BTreeMap<Key, Revision>,
}

impl UndoPass<'_> {
    /// Takes back what a change did to records that none before it touched. The bytes of what was embedded.
    fn add(&mut self, history: &History, change: StoredChange) -> Result<u64, UndoError> {
        self.undo.changes += 1;
        let mut bytes = 0;
        for edit in change.edits {
            match edit {
                StoredEdit::Definition { id, key, before, .. } => {
                    if !self.is_new_definition(id, &key) {
                        continue;
                    }
                    let written = |before| history.definition_written_at(key.as_str(), before);
                    let replaced = before.map(written).transpose()?;
                    bytes += BYTES_PER_RECORD + replaced.as_deref().map_or(0, definition_bytes);
                    self.undo.definitions.insert(key, replaced);
                }
                StoredEdit::DefinitionWithBefore { before, .. } => {
                    if self.is_new_definition(before.id, &before.key) {
                        bytes += BYTES_PER_RECORD + definition_bytes(&before);
                        self.undo.definitions.insert(before.key.clone(), Some(before));
                    }
                }
                StoredEdit::Config { definition, key, before, .. } => {
                    if !self.is_new_config(definition, &key) {
                        continue;
                    }
                    bytes += BYTES_PER_RECORD;
                    match before {
                        Some(before) => drop(self.wanted.insert(key, before)),
                        None => drop(self.undo.configs.insert(key, None)),
                    }
                }
                StoredEdit::ConfigWithBefore { definition, before, .. } => {
                    if self.is_new_config(definition, &before.key) {
                        bytes += BYTES_PER_RECORD + before.data.len() as u64;
                        self.undo.configs.insert(before.key.clone(), Some(before));
                    }
                }
                StoredEdit::Reindexed { .. }
                | StoredEdit::Deleted { .. }
                | StoredEdit::Undeleted { .. }
                | StoredEdit::Dropped { .. }
                | StoredEdit::Skipped(_)
                | StoredEdit::System { .. }
                | StoredEdit::Remember(_)
                | StoredEdit::Forget(_) => {}
            }
        }
        Ok(bytes)
    }

    fn is_new_definition(&self, id: u64, key: &Key) -> bool {
        let is_in_scope = match self.scope {
            UndoScope::Definitions => true,
            UndoScope::Configs { id: own, .. } => id == *own,
        };
        is_in_scope && !self.undo.definitions.contains_key(key)
    }

    fn is_new_config(&self, definition: u64, key: &Key) -> bool {
        let is_in_scope = match self.scope {
            UndoScope::Definitions => false,
            UndoScope::Configs { id, .. } => definition == *id,
        };
        is_in_scope && !self.undo.configs.contains_key(key) && !self.wanted.contains_key(key)
    }
}

fn definition_bytes(definition: &Definition) -> u64 {
    definition.schema.as_ref().map_or(0, |schema| schema.len() as u64)
}

#[cfg(test)]
mod tests;
