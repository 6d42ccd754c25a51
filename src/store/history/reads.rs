//! What the store tells of the past. All of it reads files: off the threads that serve requests.

use std::{sync::Arc, time::Duration};

use crate::{
    model::{
        record::{Config, Revision},
        time::Timestamp,
    },
    store::{Changes, HistoryError, PastPage, Store, StoreError, Subject, Was},
};

impl Store {
    /// The changes from a revision on, oldest first, as far as they have been written; see [`Changes`].
    ///
    /// # Errors
    /// When the history does not reach back so far, here or everywhere, or the disk refuses.
    pub fn history_from(&self, revision: Revision) -> Result<Changes, HistoryError> {
        Changes::new(&self.inner.catalog, revision)
    }

    /// Waits until the history up to a revision can be read; whether it can.
    #[must_use]
    pub fn history_reaches(&self, revision: Revision, most: Duration) -> bool {
        self.inner.shared.written(revision, most)
    }

    /// The changes of a record up to a revision that can be read, newest first.
    ///
    /// # Errors
    /// When the history does not reach back so far, here or everywhere, or the disk refuses.
    pub fn history_page(
        &self,
        subject: &Subject,
        upto: Revision,
        limit: usize,
    ) -> Result<PastPage, HistoryError> {
        match self.inner.catalog.page(subject, upto, limit) {
            // The compaction revision has passed a segment while it was looked for; what is asked is still above it.
            Err(HistoryError::Compacted { compaction_revision }) if upto >= compaction_revision => {
                self.inner.catalog.page(subject, upto, limit)
            }
            page => page,
        }
    }

    /// A config as it was at a revision, if it was changed since, up to `upto`, which can be read.
    ///
    /// # Errors
    /// When the history does not reach back so far, here or everywhere, or the disk refuses.
    pub fn config_at(&self, subject: &Subject, at: Revision, upto: Revision) -> Result<Was, HistoryError> {
        self.inner.catalog.config_at(subject, at, upto)
    }

    /// The config that the change at a revision left.
    ///
    /// # Errors
    /// When the history does not reach back so far, here or everywhere, or the disk refuses.
    pub fn config_of(&self, subject: &Subject, revision: Revision) -> Result<Arc<Config>, HistoryError> {
        self.inner.catalog.config_of(subject, revision)
    }

    /// The last revision whose change was made at a time or before it, as far as this node knows; 0: none.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn history_until(&self, at: Timestamp) -> Result<Revision, HistoryError> {
        self.inner.catalog.oldest_after(at)
    }

    /// The first stretch of the history above the compaction revision that is not here: behind a revision, up to another.
    #[must_use]
    pub fn history_gap(&self) -> Option<(Revision, Revision)> {
        self.inner.catalog.gap()
    }

    /// A piece of the history for the gap of another member.
    ///
    /// # Errors
    /// When it is not here, or the disk refuses.
    pub fn history_piece(&self, behind: Revision, upto: Revision) -> Result<Vec<u8>, HistoryError> {
        self.inner.catalog.piece(behind, upto)
    }

    /// Keeps a piece of the history that came from another member; gives how far it reaches.
    ///
    /// # Errors
    /// When it is not whole or not needed, or the disk refuses.
    pub fn adopt_history(&self, behind: Revision, piece: &[u8]) -> Result<Revision, StoreError> {
        self.inner.catalog.adopt(behind, piece)
    }
}
