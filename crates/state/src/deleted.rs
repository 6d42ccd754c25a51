//! The deleted definitions that are kept for a while, so that a deletion can be undone.
//!
//! ```text
//! delete ── the collection moves from the definitions to the kept ones; nothing of it is copied
//! undelete ─ it moves back: the same records, revisions, indexes and history, under a new revision of the definition
//! compact ─ what was deleted before the compaction revision is gone for good, as its history is
//! ```
//!
//! Deleting and undoing are one entry each and take constant time, however many configs there are. So there is no state
//! in between that a reader could see, or that a new leader would have to finish.
//!
//! The configs keep their revisions, because their history goes on where it ended. The definition's record names the
//! revisions at which it did not exist ([`Standing`]).
//!
//! **Invariants:** no list, count, quota or look-up by key has a kept definition; the digest, snapshots and sled have
//! it. A definition is kept as it was before the entry that deletes it. The number of kept definitions is bounded, and
//! their bytes are by the command that deletes one. While one of an environment without restrictions is kept, none of a
//! restricted one makes room: a client that may delete in `dev` must not make the deletion of `prod.limits` final.

use std::sync::Arc;

use super::{Collection, Edit, State, apply::EntryContext, digest, replaced::BYTES_PER_RECORD};
use concord_model::{
    command::{ConfigThen, Undeletion},
    error::Rejection,
    key::Key,
    limits::{ABSENCES_MAX, DELETED_DEFINITIONS_MAX},
    record::{Absence, Config, Definition, DeletedId, Deletion, Revision, Standing},
    system::environment::Direct,
};

/// A definition that is about to be kept.
pub(super) struct ToKeep {
    /// As it was before the entry that deletes it.
    pub(super) collection: Arc<Collection>,
    /// The most bytes of all kept definitions; `None` when it is not to be kept.
    pub(super) keep: Option<u64>,
}

impl Collection {
    /// When it was deleted; 0 for a definition that exists.
    fn deletion(&self) -> Revision {
        self.definition.standing.deleted.map_or(0, |deletion| deletion.revision)
    }

    /// Which deletion it is of; also the order of the kept ones.
    #[must_use]
    pub fn deleted_id(&self) -> DeletedId {
        DeletedId { deleted: self.deletion(), id: self.definition.id }
    }

    /// The bytes that it keeps in memory, about.
    #[must_use]
    pub fn bytes_in_memory(&self) -> u64 {
        let records = self.by_key.len().saturating_add(1).saturating_mul(BYTES_PER_RECORD);
        self.bytes.saturating_add(records)
    }

    /// The bytes of the keys and data of its configs.
    #[must_use]
    pub fn content_bytes(&self) -> u64 {
        self.content
    }

    /// The same configs under another record of the definition, which has the same indexed paths.
    fn under(&self, definition: Definition) -> Self {
        Self { definition: Arc::new(definition), ..self.clone() }
    }
}

impl State {
    /// The deleted definitions that are kept, those that were deleted first before the others.
    pub fn deleted(&self) -> impl DoubleEndedIterator<Item = &Arc<Collection>> {
        self.deleted.iter()
    }

    /// All definitions that are stored: those that exist, then the deleted ones that are kept.
    pub fn stored_definitions(&self) -> impl Iterator<Item = &Arc<Collection>> {
        self.definitions().chain(self.deleted())
    }

    /// The deleted definition with this key that is kept and was deleted last.
    #[must_use]
    pub fn last_deleted(&self, key: &str) -> Option<&Arc<Collection>> {
        self.deleted().rev().find(|kept| kept.definition.key.as_str() == key)
    }

    /// The deleted definition with this key that is kept and existed at a revision.
    #[must_use]
    pub fn deleted_since(&self, key: &str, at: Revision) -> Option<&Arc<Collection>> {
        let mut of_key = self.deleted().filter(|kept| kept.definition.key.as_str() == key);
        of_key.find(|kept| kept.definition.existed_at(at))
    }

    /// The bytes that the kept definitions hold in memory, about.
    #[must_use]
    pub fn deleted_bytes(&self) -> u64 {
        self.deleted_bytes
    }

    /// How many configs the kept definitions have.
    #[must_use]
    pub fn deleted_config_count(&self) -> u64 {
        self.deleted_configs
    }

    /// The place of a deletion among the kept ones.
    pub(super) fn place_of_deleted(&self, of: DeletedId) -> Option<usize> {
        self.deleted.binary_search_by_key(&of, |kept| kept.deleted_id()).ok()
    }

    /// Keeps a definition that the entry deletes, if it is to be and may be, and there is room. Returns its record as it is
    /// kept.
    pub(super) fn keep_deleted(
        &mut self,
        context: EntryContext,
        deleted: &ToKeep,
        edits: &mut Vec<Edit>,
    ) -> Option<Arc<Definition>> {
        let ToKeep { collection, keep } = deleted;
        let bytes_max = keep.filter(|most| collection.bytes_in_memory() <= *most)?;
        let before = &collection.definition;
        let deletion = Deletion { revision: context.revision, at: context.at };
        let standing = Standing { deleted: Some(deletion), ..before.standing.clone() };
        let kept = collection.under(Definition { standing, ..Definition::clone(before) });
        for id in self.to_drop_for(&kept, bytes_max)? {
            if let Some(place) = self.place_of_deleted(id) {
                self.drop_deleted(place, edits);
            }
        }
        let definition = Arc::clone(&kept.definition);
        self.insert_deleted(kept.into());
        Some(definition)
    }

    /// The kept definitions that make room for another one: those of environments without restrictions before the others,
    /// and of each sort those that were deleted first. `None` if the other one is of such an environment, and what is kept
    /// of restricted ones leaves it no room: then none of them would gain by what is dropped.
    fn to_drop_for(&self, other: &Collection, bytes_max: u64) -> Option<Vec<DeletedId>> {
        let mut count = (self.deleted.len() + 1).saturating_sub(DELETED_DEFINITIONS_MAX);
        let mut bytes = self.deleted_bytes.saturating_add(other.bytes_in_memory()).saturating_sub(bytes_max);
        let mut dropped = Vec::new();
        let may_drop: &[bool] =
            if self.is_restricted(&other.definition.key) { &[false, true] } else { &[false] };
        for is_restricted in may_drop {
            for kept in self.deleted() {
                if count == 0 && bytes == 0 {
                    return Some(dropped);
                }
                if self.is_restricted(&kept.definition.key) == *is_restricted {
                    (count, bytes) = (count.saturating_sub(1), bytes.saturating_sub(kept.bytes_in_memory()));
                    dropped.push(kept.deleted_id());
                }
            }
        }
        (count == 0 && bytes == 0).then_some(dropped)
    }

    /// Whether the environment of a definition refuses direct changes.
    fn is_restricted(&self, key: &Key) -> bool {
        let rules = self.environment_of(key.as_str()).and_then(|record| record.environment());
        rules.is_some_and(|rules| rules.direct == Direct::Refuse)
    }

    /// Adds a deleted definition to the kept ones and to the digest.
    pub(super) fn insert_deleted(&mut self, kept: Arc<Collection>) {
        self.sum = self.sum.wrapping_add(digest::of_definition(&kept.definition)).wrapping_add(kept.sum);
        self.bytes = self.bytes.saturating_add(kept.bytes);
        self.deleted_configs += kept.by_key.len();
        self.deleted_bytes = self.deleted_bytes.saturating_add(kept.bytes_in_memory());
        let all = Arc::make_mut(&mut self.deleted);
        let place = all.partition_point(|other| other.deleted_id() < kept.deleted_id());
        all.insert(place, kept);
    }

    /// Removes the kept definition with an id. No two have the same one.
    pub(super) fn take_deleted(&mut self, id: u64) -> Option<Arc<Collection>> {
        let place = self.deleted.iter().position(|kept| kept.definition.id == id)?;
        Some(self.remove_deleted(place))
    }

    fn remove_deleted(&mut self, place: usize) -> Arc<Collection> {
        let kept = Arc::make_mut(&mut self.deleted).remove(place);
        self.sum = self.sum.wrapping_sub(digest::of_definition(&kept.definition)).wrapping_sub(kept.sum);
        self.bytes = self.bytes.saturating_sub(kept.bytes);
        self.deleted_configs -= kept.by_key.len();
        self.deleted_bytes = self.deleted_bytes.saturating_sub(kept.bytes_in_memory());
        kept
    }

    fn drop_deleted(&mut self, place: usize, edits: &mut Vec<Edit>) {
        let kept = self.remove_deleted(place);
        self.count_replaced_collection(&kept);
        edits.push(Edit::Dropped { kept: Arc::clone(&kept.definition) });
    }

    /// Drops what was deleted at the compaction revision or before it.
    pub(super) fn drop_compacted(&mut self, edits: &mut Vec<Edit>) {
        while self.deleted.first().is_some_and(|first| first.deletion() <= self.compaction_revision) {
            self.drop_deleted(0, edits);
        }
    }

    /// Undoes the deletion of a kept definition.
    pub(super) fn undelete(
        &mut self,
        context: EntryContext,
        Undeletion { key, of, back }: &Undeletion,
        edits: &mut Vec<Edit>,
    ) -> Result<(), Rejection> {
        if self.definition(key.as_str()).is_some() {
            return Err(Rejection::DefinitionExists);
        }
        // No batch has it: its edits would not tell that configs returned.
        let place = self.place_of_deleted(*of).filter(|_| !context.is_step);
        // Its environment and the rights were judged by the key that the command names.
        let place = place.filter(|place| self.deleted[*place].definition.key == *key);
        let place = place.ok_or(Rejection::DefinitionNotFound)?;
        let kept = self.remove_deleted(place);
        let standing = self.standing_again(&kept, context.revision);
        let definition = Definition {
            standing,
            modified_at: context.at,
            revision: context.revision,
            ..Definition::clone(&kept.definition)
        };
        let returned = kept.under(definition);
        let (after, configs) = (Arc::clone(&returned.definition), returned.by_key.len());
        self.count_replaced(0);
        self.insert_collection(returned);
        edits.push(Edit::Definition { before: None, after: Some(after) });
        edits.push(Edit::Undeleted { kept: Arc::clone(&kept.definition), configs });
        for ConfigThen { key: config, then } in back {
            let before = kept.config(config.as_str()).cloned();
            let after = then.as_ref().map(|then| {
                Arc::new(Config {
                    key: config.clone(),
                    data: Arc::clone(&then.data),
                    entries: then.entries.clone(),
                    created_at: then.created_at,
                    modified_at: context.at,
                    revision: context.revision,
                })
            });
            if before.is_some() || after.is_some() {
                self.edit_config(key, before, after, edits);
            }
        }
        Ok(())
    }

    /// The standing of a definition that returns: its absences of the retained history, and this one. The first ones
    /// become one if they were too many.
    fn standing_again(&self, kept: &Collection, undeleted: Revision) -> Standing {
        let this = Absence { deleted: kept.deletion(), undeleted };
        let all = kept.definition.standing.absences.iter().copied().chain([this]);
        let mut absences: Vec<Absence> =
            all.filter(|absence| absence.undeleted > self.compaction_revision).collect();
        if absences.len() > ABSENCES_MAX {
            let first = absences.remove(0);
            absences[0].deleted = first.deleted;
        }
        Standing { deleted: None, absences }
    }
}

#[cfg(test)]
mod tests;
