//! Where the state is kept between starts: snapshot files, history segments and sled.
//!
//! ```text
//! snapshot/   snapshot-<index>.concord     the two newest snapshots of the whole state
//! history/    segment-<after>.sealed       every change by revision
//! sled/       CURRENT  state-<n>/          the state in trees, a write-behind mirror
//! incoming/                                snapshots that are being received
//! ```
//!
//! The Raft log makes a write durable. The files here determine where applying the log starts again, and keep what is
//! purged from the log.
//!
//! | where | what it does |
//! |---|---|
//! | `open` | opens the directories and decides which whole state is loaded at a start |
//! | `writer` | the one thread that writes the history and sled, and the queue in front of it |
//! | [`snapshot`] | snapshot files: their format, the two that are retained, backups |
//! | `history` | every change by revision: written, queried, fetched from another member |
//! | `sled` | the mirror of the state in sled trees |
//! | `fuzz` | targets of the fuzzer |
//! | [`at_rest`] | the keys of an encrypted directory, and how bytes are encrypted |
//! | `files` | files that survive a power failure, and the frame of every block |
//!
//! Two numbers say how far something is. The [`LogIndex`] is a place in the log of this cluster: the durable end of the
//! log, snapshots and sled are compared by it. The revision is the state's own count of what was decided: the history
//! is ordered by it. An entry of the log may hold several proposals, so the two differ, and one is never compared with
//! the other. Stored states carry both.
//!
//! **Invariants:** a snapshot counts only once the history up to it is durable. sled never holds what the log
//! does not hold durably, and is never the only copy. Enqueueing what was applied never waits for a disk.

pub mod at_rest;
mod files;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
mod history;
#[cfg(feature = "simulation")]
mod inline_file;
mod open;
mod sled;
pub mod snapshot;
#[cfg(test)]
mod tests;
mod writer;

#[cfg(feature = "simulation")]
pub use writer::inline::set_power_is_off;

use std::{
    io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};

use at_rest::AtRest;
pub use history::{
    AfterImage, AsOf, ChangeLeftOut, History, HistoryChanges, HistoryEntry, HistoryError, HistoryPage, Point,
    PointError, PointReached, RecordOperation, StoppedHistory, StoredChange, StoredEdit, Subject, Undo,
    UndoError, UndoScope,
};
use snapshot::retained::RetainedSnapshots;
pub use snapshot::transfer::{IncomingSnapshot, SnapshotContent};
use writer::WriterShared;

use concord_model::{feature::level_max, record::Revision};
use concord_state::{Change, State};

/// The directory of the history in that of a store.
pub const HISTORY_DIRECTORY: &str = "history";

/// How long the store's thread may take to end when the store was not closed.
const ABANDON_TIMEOUT: Duration = Duration::from_secs(2);

/// The number of an entry of the Raft log. Not a revision: see the head of this file.
pub type LogIndex = u64;

/// A place in the Raft log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The last entry that was applied.
    pub index: LogIndex,
    /// Log id and membership, encoded by the Raft layer and opaque to the store.
    pub raft_meta: Vec<u8>,
}

/// What the log holds durably when the store is opened.
#[derive(Debug, Clone, Copy)]
pub struct LogRange {
    /// The last purged entry; 0 when there is none.
    pub purged: LogIndex,
    /// The last entry.
    pub last: LogIndex,
}

/// Settings of the store; tests use small ones.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Bytes that sled caches. Little, because reads are served from the state in memory; the cached pages
    /// occupy several times as much memory.
    pub sled_cache_bytes: u64,
    /// A segment of the history is sealed at this size.
    pub segment_bytes: u64,
    /// The records of a snapshot are compressed in blocks of this size.
    pub block_bytes: usize,
    /// What may wait to be written to sled, in records (a large one counts as several); beyond it sled is
    /// rebuilt when the load is over.
    pub mirror_backlog_records: usize,
    /// The keys of an encrypted directory.
    pub at_rest: AtRest,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            sled_cache_bytes: 4 << 20,
            segment_bytes: 64 << 20,
            block_bytes: 64 << 10,
            mirror_backlog_records: 65_536,
            at_rest: AtRest::default(),
        }
    }
}

/// What a start loaded.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one value for each start, moved once")]
pub enum Loaded {
    /// A whole state (perhaps the empty one at index 0); the log after it has to be applied.
    State(State, Position),
    /// The log is purged and no whole state is left: a snapshot must be fetched from a peer and installed.
    Nothing,
}

/// Why the store can't continue. The node stops.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An operation on the disk failed.
    #[error("{context}: {source}")]
    Io {
        /// What was tried.
        context: String,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// A file does not hold what was written.
    #[error("{0}")]
    Damaged(String),
    /// A file is whole, and a newer version of this program wrote it. Nothing was changed.
    #[error("{0}")]
    Newer(String),
    /// sled or a snapshot is newer than the log: the log was lost.
    #[error("{0}")]
    LogLost(String),
}

impl StoreError {
    fn unknown_format(name: &str, format: u16, known: RangeInclusive<u16>) -> Self {
        let (first, last) = known.into_inner();
        let known =
            if first == last { format!("format {first}") } else { format!("formats {first} to {last}") };
        Self::Newer(format!(
            "{name} has format {format}, and this version knows {known}; start a newer version"
        ))
    }

    fn unknown_level(name: &str, level: u32) -> Self {
        Self::Newer(format!(
            "{name} has feature level {level}, and this version knows {known}; start a newer version",
            known = level_max()
        ))
    }
}

/// A whole snapshot on this node's disk.
#[derive(Debug, Clone)]
pub struct SnapshotFile {
    /// Its path. The file is removed once two newer ones exist; an open file stays readable.
    pub path: PathBuf,
    /// The state's place in the log.
    pub position: Position,
    /// The state's revision.
    pub revision: Revision,
    /// The length of its content: of the file, if that is not encrypted.
    pub bytes: u64,
    /// Bytes of its records before they were compressed: what writing it costs, and about what the log of them weighs.
    pub content_bytes: u64,
    /// The state's digest.
    pub digest: u128,
}

/// Log entries that were applied together.
#[derive(Debug)]
pub struct Batch {
    /// The state after them.
    pub state: State,
    /// The last entry's place in the log.
    pub position: Position,
    /// What the entries changed, in order.
    pub changes: Vec<Arc<Change>>,
}

/// How far the store's parts are, and their sizes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Figures {
    /// The revision of the state that was enqueued last.
    pub applied: Revision,
    /// The history's applied mark. The changes between it and `applied` are in memory.
    pub history: Revision,
    /// The revision that sled is at: seconds behind `applied` while writes arrive, 0 while sled is rebuilt after
    /// an error.
    pub mirrored: Revision,
    /// Bytes of sled on the disk when they were last measured.
    pub sled_bytes: u64,
    /// Bytes of the history on the disk.
    pub history_bytes: u64,
    /// How often sled was rebuilt since the start.
    pub rebuilds: u64,
}

/// The handle of the store; clones share it. The store's thread writes what was applied; no response waits
/// for it.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<StoreInner>,
}

#[derive(Debug)]
struct StoreInner {
    directory: PathBuf,
    at_rest: AtRest,
    snapshots: RetainedSnapshots,
    shared: Arc<WriterShared>,
    history: Arc<History>,
    writer: writer::Writer,
    /// Received snapshots since the start: numbers their files.
    received: AtomicU64,
}

impl Store {
    /// Opens a directory, creates what is missing and loads the newest whole state. Blocking.
    ///
    /// # Errors
    /// When the disk fails, or when a state is newer than the log.
    pub fn open(
        directory: &Path,
        options: StoreOptions,
        log: LogRange,
    ) -> Result<(Self, Loaded), StoreError> {
        let open::OpenedStore { snapshots, history: writer, start, nothing } =
            open::open(directory, &options, log)?;
        let incoming = directory.join("incoming");
        files::remove(&incoming)?;
        files::make_directory(&incoming)?;
        let (state, position) = start.newest.clone();
        // Entries up to the loaded state are durable in a file, if not in the log.
        let log_durable = log.last.max(position.index);
        let history = writer.history();
        let shared = Arc::new(WriterShared::new((state.clone(), position.clone()), log_durable, &writer));
        let writer = writer::Writer::start(&shared, writer, start, options.mirror_backlog_records)
            .map_err(files::io("can't start the store's thread"))?;
        let inner = StoreInner {
            directory: directory.into(),
            at_rest: options.at_rest,
            snapshots,
            shared,
            history,
            writer,
            received: AtomicU64::new(0),
        };
        let loaded = if nothing { Loaded::Nothing } else { Loaded::State(state, position) };
        Ok((Self { inner: Arc::new(inner) }, loaded))
    }

    /// Rejects a directory that a newer version has written to, and changes nothing in it. Blocking. Called before the
    /// log is opened as well.
    ///
    /// # Errors
    /// [`StoreError::Newer`], or when the disk fails.
    pub fn refuse_newer(directory: &Path, at_rest: &AtRest) -> Result<(), StoreError> {
        open::refuse_newer(directory, at_rest)
    }

    /// The state of the newest whole snapshot in a directory that is not open, and its place in the log. Changes nothing.
    /// Blocking.
    ///
    /// # Errors
    /// [`StoreError::Newer`], or when the disk fails.
    pub fn newest_snapshot(
        directory: &Path,
        at_rest: &AtRest,
    ) -> Result<Option<(State, Position)>, StoreError> {
        open::newest_snapshot(directory, at_rest)
    }

    /// The last revision of the history in a directory that is not open: everything up to it was applied. Changes nothing.
    /// Blocking.
    ///
    /// # Errors
    /// [`StoreError::Newer`], or when the disk fails.
    pub fn history_upto(directory: &Path, at_rest: &AtRest) -> Result<Revision, StoreError> {
        history::writer::HistoryWriter::covered(&directory.join("history"), at_rest)
    }

    /// Rewrites what the layer above has stored with the states in a directory that is not open. sled is removed: the node
    /// rebuilds it. Can be interrupted and run again. Blocking.
    ///
    /// # Errors
    /// When the disk fails, or `change` does.
    pub fn rewrite_metadata(
        directory: &Path,
        at_rest: &AtRest,
        change: impl Fn(&[u8]) -> Result<Vec<u8>, String>,
    ) -> Result<(), StoreError> {
        open::rewrite_metadata(directory, at_rest, StoreOptions::default().block_bytes, change)
    }

    /// Marks everything in the store as wrong: the next start removes it and rebuilds the state. The note is
    /// retained for that start. Blocking.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn invalidate(&self, note: &[u8]) -> Result<(), StoreError> {
        open::invalidate(&self.inner.directory, note)
    }

    /// Whether the state in a directory was found to be wrong, and none has been proven since. Blocking.
    #[must_use]
    pub fn is_distrusted(directory: &Path) -> bool {
        open::is_distrusted(directory)
    }

    /// The same as [`Self::invalidate`], of a directory that is not open. Blocking.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn invalidate_in(directory: &Path, note: &[u8]) -> Result<(), StoreError> {
        open::invalidate(directory, note)
    }

    /// Ends the distrust: the state that replaces the one that was wrong is proven. Blocking.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn trust(&self) -> Result<(), StoreError> {
        open::trust(&self.inner.directory)
    }

    /// The last entry that the log holds durably.
    #[must_use]
    pub fn log_durable(&self) -> LogIndex {
        self.inner.shared.log_durable()
    }

    /// The note of the last [`Self::invalidate`] of a directory, until another state is proven. Blocking.
    #[must_use]
    pub fn invalidation_note(directory: &Path) -> Option<Vec<u8>> {
        open::invalidation_note(directory)
    }

    /// Writes a snapshot file of `state` and retains the two newest; returns the newest one instead if it is
    /// at `position` or after it. Blocking: it waits until the history is durable up to `position`, so that
    /// position must have been enqueued, or be about to be.
    ///
    /// # Errors
    /// When the disk fails, or when the store ends meanwhile.
    pub fn build_snapshot(&self, state: &State, position: &Position) -> Result<SnapshotFile, StoreError> {
        self.inner.shared.request_sync(state.revision());
        self.inner.writer.awaited();
        self.inner.shared.wait_synced(state.revision())?;
        self.inner.snapshots.build(state, position, self.inner.shared.log_durable())
    }

    /// The newest whole snapshot.
    #[must_use]
    pub fn current_snapshot(&self) -> Option<SnapshotFile> {
        self.inner.snapshots.current()
    }

    /// The index up to which the log may be purged: that of the older of the two retained snapshots; 0 while
    /// there are not two.
    #[must_use]
    pub fn purge_limit(&self) -> LogIndex {
        self.inner.snapshots.purge_limit()
    }

    /// A fresh path for a snapshot that is being received.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn incoming(&self) -> Result<PathBuf, StoreError> {
        let directory = self.inner.directory.join("incoming");
        files::make_directory(&directory)?;
        let number = self.inner.received.fetch_add(1, Ordering::Relaxed);
        Ok(directory.join(format!("{number}.part")))
    }

    /// A fresh file for a snapshot that is being received.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn receive(&self) -> io::Result<IncomingSnapshot> {
        let path = self.incoming().map_err(io::Error::other)?;
        IncomingSnapshot::create(path, &self.inner.at_rest).await
    }

    /// The content of a snapshot file, to be sent.
    ///
    /// # Errors
    /// When it can't be read.
    pub async fn content(&self, file: &SnapshotFile) -> io::Result<SnapshotContent> {
        SnapshotContent::open(&file.path, &self.inner.at_rest).await
    }

    /// The keys of the directory.
    #[must_use]
    pub fn at_rest(&self) -> &AtRest {
        &self.inner.at_rest
    }

    /// Validates a received file whole, makes it the newest snapshot and returns its state. Blocking. A
    /// damaged file is `StoreError::Damaged` and changes nothing. A file that is retained already is read
    /// again and stays.
    ///
    /// # Errors
    /// When the file is damaged or the disk fails.
    pub fn install(&self, path: &Path) -> Result<(State, SnapshotFile), StoreError> {
        let (state, file) = self.inner.snapshots.install(path, self.inner.shared.log_durable())?;
        self.inner.shared.installed(state.clone(), file.position.clone());
        Ok((state, file))
    }

    /// The feature level of the state in a snapshot file. Blocking.
    ///
    /// # Errors
    /// When its header is damaged or not known, or the disk fails.
    pub fn feature_level_of(&self, path: &Path) -> Result<u32, StoreError> {
        snapshot::file::feature_level_of(path, &self.inner.at_rest)
    }

    /// Reads a snapshot file as [`Self::install`] does, so that no file that can't be installed is sent or adopted:
    /// checksums say that it is as it was written, not that what was written is a state. Returns what it holds.
    /// Blocking.
    ///
    /// # Errors
    /// When it is damaged, can't be decoded or holds another state than this position and digest say, or when the disk
    /// fails.
    pub fn verify(&self, path: &Path, position: &Position, digest: u128) -> Result<SnapshotFile, StoreError> {
        let found = snapshot::retained::decode(path, &self.inner.at_rest)?;
        if found.digest == digest && found.position == *position {
            Ok(found)
        } else {
            Err(StoreError::Damaged(format!("{} contains a different state", path.display())))
        }
    }

    /// The same for a snapshot of this store that is to be sent. One that is damaged is set aside, so that the next is
    /// rebuilt. Blocking.
    ///
    /// # Errors
    /// As above.
    pub fn verify_or_reject(&self, file: &SnapshotFile) -> Result<(), StoreError> {
        let verified = self.verify(&file.path, &file.position, file.digest).map(drop);
        if let Err(error @ StoreError::Damaged(_)) = &verified {
            self.inner.snapshots.reject(file, error)?;
        }
        verified
    }

    /// The history on this node's disk; see [`Self::wait_for_history`].
    #[must_use]
    pub fn history(&self) -> &Arc<History> {
        &self.inner.history
    }

    /// Mirrors everything into sled that the log holds durably, makes it and the history durable and ends the
    /// thread. Blocking. A second call waits for the first one.
    pub fn close(&self) {
        self.inner.end(true);
    }
}

impl StoreInner {
    fn end(&self, complete: bool) {
        self.shared.end(complete);
        self.writer.join();
    }
}

impl Drop for StoreInner {
    /// Without `close` the files stay as a crash would leave them, and nothing keeps them open. But a thread that the
    /// disk holds up, which sled does when a volume is full, holds up nobody else: this may be a worker, or the end of
    /// a start that has failed for the same reason.
    fn drop(&mut self) {
        self.shared.end(false);
        self.writer.awaited();
        if self.shared.wait_over(ABANDON_TIMEOUT) {
            self.end(false);
        } else {
            tracing::error!("the store's thread has not ended within {ABANDON_TIMEOUT:?}");
        }
    }
}
