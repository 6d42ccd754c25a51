//! The compaction revision of the history: the oldest revision whose state is available.
//!
//! It is part of the agreed state, so that no node answers about a revision that another node reports as compacted. It
//! is no part of the digest: it says how far back the history reaches, not what is stored, and a restored backup, whose
//! history begins with the restore, has the digest of the backup.
//!
//! **Invariant:** the compaction revision is never lowered and never exceeds the state's revision.

use super::State;
use concord_model::record::Revision;

impl State {
    /// The oldest revision whose state is available. Changes after it are retained, older ones may be deleted.
    #[must_use]
    pub fn compaction_revision(&self) -> Revision {
        self.compaction_revision
    }

    pub(super) fn raise_compaction_revision(&mut self, compaction_revision: Revision) {
        self.compaction_revision = self.compaction_revision.max(compaction_revision.min(self.revision));
    }

    /// The same records at a later revision and without their history: the first state of a restored cluster.
    #[must_use]
    pub fn restored_at(mut self, revision: Revision) -> Self {
        self.revision = self.revision.max(revision);
        self.raise_compaction_revision(self.revision);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::{
        command::{Command, Proposal},
        time::Timestamp,
    };

    #[test]
    fn the_compaction_revision_only_rises_up_to_the_state_and_is_no_change() {
        let mut state = State::new();
        let digest = state.digest();
        for (revision, asked, expected) in [(5, 3, 3), (6, 2, 3), (7, 100, 7), (8, 8, 8)] {
            let command = Command::Compact { compaction_revision: asked };
            let (at, by) = (Timestamp(revision), "cluster".into());
            let proposal =
                Proposal { at, by, reason: None, request: None, definition_read: None, command, key: None };
            let (_, change) = state.apply(revision, &proposal);
            assert_eq!((change, state.compaction_revision()), (None, expected));
        }
        assert_eq!(state.digest(), digest);
        state.advance(9);
        assert_eq!(state.clone().restored_at(20).compaction_revision(), 20);
        assert_eq!(state.restored_at(20).revision(), 20);
    }
}
