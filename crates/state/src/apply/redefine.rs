//! Replaces the schema, the unique paths or the protection of a definition; its configs do not change.
//!
//! The leader has validated the configs on one snapshot before it proposed the change, because that takes time in
//! proportion to their number. Here it only remains to check whether a config was written since. The index by time of
//! the last change answers that in one look-up. A batch may write configs and then change their definition: the leader
//! has checked what its earlier steps write with the rest, so this looks at the state before the batch.
//!
//! **Invariant:** the cost does not grow with the number of configs: the collection's indexes are shared, not rebuilt.

use std::sync::Arc;

use super::{Collection, Definition, Edit, EntryContext, Key, Revision, State};
use crate::replaced::definition_bytes;
use concord_model::command::Command;

impl Collection {
    /// The revision of the config that was written last; 0 when there is none.
    #[must_use]
    pub fn newest_config(&self) -> Revision {
        if !self.has_indexes() {
            // A look at each config is far quicker than building all indexes, and an entry may wait for this.
            return self.configs().map(|config| config.revision).max().unwrap_or(0);
        }
        // Times grow with revisions, and the configs of one batch share the revision.
        let last = self.indexes().by_modified.back_from(u64::MAX).next();
        last.map_or(0, |last| self.config_of(&last.of).revision)
    }
}

impl State {
    /// Whether the leader's check of all configs no longer holds: a config was written since by another entry than the
    /// one that is being decided. `before` is the state before it. Of a definition that the entry itself created all
    /// configs are its own.
    pub(super) fn is_config_check_stale(&self, before: &Self, command: &Command) -> bool {
        let (key, read, paths) = match command {
            Command::SetSchema { key, configs_read: Some(read), .. } => (key, *read, &[][..]),
            Command::SetUnique { key, configs_read: Some(read), paths, .. } => (key, *read, &paths[..]),
            Command::SetSchema { configs_read: None, .. }
            | Command::SetUnique { configs_read: None, .. }
            | Command::CreateDefinition { .. }
            | Command::SetIndexes { .. }
            | Command::DeleteDefinition { .. }
            | Command::WriteConfig { .. }
            | Command::DeleteConfig { .. }
            | Command::Compact { .. }
            | Command::BuildIndex { .. }
            | Command::Batch(_)
            | Command::Transaction(_)
            | Command::RaiseFeatureLevel { .. }
            | Command::Forget { .. }
            | Command::UndeleteDefinition { .. }
            | Command::SetProtection { .. }
            | Command::SkipRevisions { .. }
            | Command::Audit(_)
            | Command::System(_)
            | Command::Access(_) => return false,
        };
        let Some(found) = self.definition(key.as_str()) else { return false };
        let definition = &found.definition;
        let was = before.definition(key.as_str()).filter(|was| was.definition.id == definition.id);
        // An earlier step of the same entry may have begun to index a path at once on the leader, and have had no room
        // for it here, because other definitions of the batch have grown. Only a ready index shows equal values.
        let is_building =
            |path: &String| definition.slot(path).is_some_and(|slot| definition.indexing.is_building(slot));
        if concord_model::sabotage::is("config-check-trusted") {
            return false;
        }
        let is_same = was.is_some_and(|was| was.definition.revision == definition.revision);
        was.is_some_and(|was| was.newest_config() > read) || (!is_same && paths.iter().any(is_building))
    }

    /// Changes an existing definition; its indexed paths must not change.
    pub(super) fn redefine(
        &mut self,
        context: EntryContext,
        key: &Key,
        change: impl FnOnce(Definition) -> Definition,
        edits: &mut Vec<Edit>,
    ) {
        let Some(old) = self.remove_collection(key) else { return };
        let before = Arc::clone(&old.definition);
        let changed = change((*before).clone());
        let after = Arc::new(Definition { modified_at: context.at, revision: context.revision, ..changed });
        self.count_replaced(definition_bytes(&before));
        let mut collection = Arc::unwrap_or_clone(old);
        collection.bytes = collection
            .bytes
            .saturating_sub(definition_bytes(&before))
            .saturating_add(definition_bytes(&after));
        collection.is_marked = after.may_have_secrets();
        collection.definition = Arc::clone(&after);
        self.insert_collection(collection);
        edits.push(Edit::Definition { before: Some(before), after: Some(after) });
    }
}
