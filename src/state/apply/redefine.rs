//! Another schema or other unique paths for a definition whose configs stay as they are.
//!
//! Whether the configs fit was found on the leader, over one picture of them, because it takes as long as there are
//! configs. Here is only asked whether a config was written since: the order of changes says so at once.
//!
//! **Invariant:** the cost does not grow with the number of configs: the collection's orders are shared, not built.

use std::sync::Arc;

use super::{Collection, Definition, Edit, Key, Rejection, Revision, Stamp, State};
use crate::model::record::Entry;

impl Collection {
    /// The revision of the config that was written last; 0 when there is none.
    pub(super) fn newest_config(&self) -> Revision {
        // Times grow with revisions, and configs of one change share both.
        let last = self.orders().by_modified.back_from(u64::MAX).next();
        last.map_or(0, |last| self.named(&last.of).revision)
    }
}

impl State {
    /// Changes a definition that is there; its indexes must stay.
    pub(super) fn redefine(
        &mut self,
        stamp: Stamp,
        key: &Key,
        change: impl FnOnce(Definition) -> Definition,
        edits: &mut Vec<Edit>,
    ) {
        let Some(old) = self.take(key) else { return };
        let before = Arc::clone(&old.definition);
        let changed = change((*before).clone());
        let after = Arc::new(Definition { modified_at: stamp.at, revision: stamp.revision, ..changed });
        let mut collection = Arc::unwrap_or_clone(old);
        collection.definition = Arc::clone(&after);
        self.put(collection);
        edits.push(Edit::Definition { before: Some(before), after: Some(after) });
    }

    /// Refuses index entries that repeat a value of a unique path.
    pub(super) fn expect_unique(
        &self,
        definition: &Key,
        key: &Key,
        entries: &[Entry],
    ) -> Result<(), Rejection> {
        let taken = self.definition(definition.as_str()).and_then(|found| found.taken(key.as_str(), entries));
        taken.map_or(Ok(()), Err)
    }
}
