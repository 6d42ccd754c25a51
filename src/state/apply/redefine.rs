//! Replaces the schema or the unique paths of a definition; its configs do not change.
//!
//! The leader has validated the configs on one snapshot before it proposed the change, because that takes time in
//! proportion to their number. Here the only question is whether a config was written since: the index by time of the
//! last change answers it in one look-up.
//!
//! **Invariant:** the cost does not grow with the number of configs: the collection's indexes are shared, not rebuilt.

use std::sync::Arc;

use super::{Collection, Definition, Edit, EntryContext, Key, Revision, State};
use crate::state::replaced::definition_bytes;

impl Collection {
    /// The revision of the config that was written last; 0 when there is none.
    pub(super) fn newest_config(&self) -> Revision {
        // Times grow with revisions, and the configs of one batch share the revision.
        let last = self.indexes().by_modified.back_from(u64::MAX).next();
        last.map_or(0, |last| self.config_of(&last.of).revision)
    }
}

impl State {
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
