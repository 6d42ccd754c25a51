//! Where the state is kept between starts: snapshot files, history segments and sled.
//!
//! ```text
//! snapshot/   snapshot-<index>.concord     the two newest whole states; see `snapshot.rs`, `kept.rs`
//! history/    segment-<behind>.sealed      every change by revision; see `changes.rs`, `history.rs`
//! sled/       CURRENT  state-<n>/          the state in trees, which trail behind it; see `carry.rs`
//! incoming/                                snapshots that are being received
//! ```
//!
//! The Raft log is what makes a write durable. The files here say where to begin when it is applied again, and
//! keep what the log may forget.
//!
//! | file | what it does |
//! |---|---|
//! | `load` | says which of the files is believed at a start |
//! | `thread` | the one thread that writes all of this, behind the answers |
//! | `snapshot`, `kept`, `paced` | the snapshot file, the two that are kept, large files written with rests |
//! | [`backup`] | a snapshot file outside a store |
//! | `changes`, `history` | the stored form of a change, and the segments that changes are appended to |
//! | `catalog`, `index`, `scan` | which segments there are, what is where in one, reading one frame by frame |
//! | `past`, `reads` | what the history tells, and the store's door to it |
//! | `transfer` | pieces of the history on their way to another member |
//! | `carry`, `merge` | sled follows the state: changes merged into rows |
//! | `trees`, `keyspace` | the sled database, the layout of its keys |
//! | `disk` | files that survive a power cut, and the frame of every block |
//!
//! **Invariants:** a snapshot counts only once the history up to it is durable. sled never holds what the log
//! does not hold durably, and is never the only copy. Handing over what was applied never waits for a disk.

mod files;
pub mod history;
mod open;
mod sled;
pub mod snapshot;
#[cfg(test)]
mod tests;
mod writer;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use serde::{Deserialize, Serialize};

pub use history::format::{StoredChange, StoredEdit};
pub use history::query::{Changes, HistoryError, Left, Operation, Past, PastPage, Was};
pub use history::segment_index::Subject;
use history::segments::Catalog;
use snapshot::retained::Kept;
use writer::Shared;

use crate::{
    model::record::Revision,
    state::{Change, State},
};

/// A place in the log in the words of the room above: opaque here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The last entry that was applied.
    pub index: Revision,
    /// Log id and membership, encoded by `raft`.
    pub stamp: Vec<u8>,
}

/// What the log holds durably when the store is opened.
#[derive(Debug, Clone, Copy)]
pub struct LogRange {
    /// The last purged entry; 0 is none.
    pub purged: Revision,
    /// The last entry.
    pub last: Revision,
}

/// Settings of the store (small ones for tests).
#[derive(Debug, Clone)]
pub struct Options {
    /// Bytes that sled caches: little, because the state in memory serves the reads, and they weigh several times
    /// as much in memory.
    pub sled_cache_bytes: u64,
    /// A segment of the history is sealed at this size.
    pub segment_bytes: u64,
    /// Records of a snapshot are compressed together in blocks of this size.
    pub block_bytes: usize,
    /// What may wait for sled, in records (a large one counts as many); beyond it sled is written anew when the
    /// load is over.
    pub inbox_changes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            sled_cache_bytes: 16 << 20,
            segment_bytes: 64 << 20,
            block_bytes: 64 << 10,
            inbox_changes: 65_536,
        }
    }
}

/// What opening found.
#[derive(Debug)]
pub enum Loaded {
    /// A whole state (perhaps the empty one at index 0); the log behind it is to be applied.
    State(State, Position),
    /// The log is purged and nothing whole is left: a snapshot must be fetched from a peer (then `install`).
    Nothing,
}

/// Why the store can't go on. The node stops.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk refused.
    #[error("{context}: {source}")]
    Io {
        /// What was tried.
        context: String,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// A file does not hold what was written.
    #[error("{0}")]
    Damaged(String),
    /// sled or a snapshot is newer than the log: the log was lost.
    #[error("{0}")]
    LogLost(String),
}

/// A whole snapshot on this node's disk.
#[derive(Debug, Clone)]
pub struct SnapshotFile {
    /// Where it is. It may be removed once two newer ones are there; an open file stays readable.
    pub path: PathBuf,
    /// The state's place in the log.
    pub position: Position,
    /// The file's length.
    pub bytes: u64,
    /// The state's digest.
    pub digest: u128,
}

/// What one run of applying did.
#[derive(Debug)]
pub struct Batch {
    /// The state behind the run.
    pub state: State,
    /// Its place in the log.
    pub position: Position,
    /// What the run's entries did, in order.
    pub changes: Vec<Arc<Change>>,
}

/// For the status.
#[derive(Debug, Clone, Copy, Default)]
pub struct Figures {
    /// The last entry that was handed over.
    pub handed: Revision,
    /// The last entry that the history knows of. What lies between it and `handed` waits in memory.
    pub history: Revision,
    /// The entry that sled is at, seconds behind `handed` while writes come; 0 while sled is being written anew after a fault.
    pub carried: Revision,
    /// Bytes of sled on the disk, as of the last look.
    pub sled_bytes: u64,
    /// Bytes of the history on the disk.
    pub history_bytes: u64,
    /// How often sled was written anew since the start.
    pub rebuilds: u64,
}

/// The handle; its thread carries batches behind the answer. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    directory: PathBuf,
    kept: Kept,
    shared: Arc<Shared>,
    catalog: Arc<Catalog>,
    thread: Mutex<Option<JoinHandle<()>>>,
    received: AtomicU64,
}

impl Store {
    /// Opens `dir` (creates what is missing) and loads the newest whole state. Blocking.
    ///
    /// # Errors
    /// When the disk refuses, or when a state is newer than the log.
    pub fn open(dir: &Path, options: Options, log: LogRange) -> Result<(Self, Loaded), StoreError> {
        let open::Found { kept, history, begin, nothing } = open::open(dir, &options, log)?;
        let incoming = dir.join("incoming");
        files::remove(&incoming)?;
        files::make_directory(&incoming)?;
        let (state, position) = begin.latest.clone();
        // Entries up to the loaded state are durable in a file, if not in the log.
        let flushed = log.last.max(position.index);
        let catalog = history.catalog();
        let shared = Arc::new(Shared::new((state.clone(), position.clone()), flushed, &history));
        let thread = std::thread::Builder::new()
            .name("store".into())
            .spawn({
                let shared = shared.clone();
                move || writer::run(&shared, history, begin, options.inbox_changes)
            })
            .map_err(files::io("can't start the store's thread"))?;
        let thread = Mutex::new(Some(thread));
        let inner =
            Inner { directory: dir.into(), kept, shared, catalog, thread, received: AtomicU64::new(0) };
        let loaded = if nothing { Loaded::Nothing } else { Loaded::State(state, position) };
        Ok((Self { inner: Arc::new(inner) }, loaded))
    }

    /// Marks all that is kept here as wrong: the next start throws it away and rebuilds it, with the help of the
    /// note. Blocking.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn distrust(&self, note: &[u8]) -> Result<(), StoreError> {
        open::distrust_all(&self.inner.directory, note)
    }

    /// The note of the last [`Self::distrust`] whose state has been thrown away. Blocking.
    #[must_use]
    pub fn distrust_note(&self) -> Option<Vec<u8>> {
        open::note(&self.inner.directory)
    }

    /// Takes what was applied. Never blocks. What waits for the history is bounded by the room above, through
    /// `figures`; what waits for sled is bounded here.
    pub fn carry(&self, batch: Batch) {
        self.inner.shared.applied(batch);
    }

    /// The local log is durable up to this entry. sled never goes beyond it.
    pub fn flushed(&self, index: Revision) {
        self.inner.shared.flushed(index);
    }

    /// The local log was cut behind this entry.
    pub fn truncated(&self, last: Revision) {
        self.inner.shared.truncated(last);
    }

    /// Writes a snapshot file of `state` and keeps the two newest. Blocking: it waits until the history is
    /// durable up to `position`, so `position` must have been handed over by `carry` or be about to be.
    /// If a snapshot at `position` or a newer one is there, it is that one.
    ///
    /// # Errors
    /// When the disk refuses, or when the store ends meanwhile.
    pub fn build_snapshot(&self, state: &State, position: &Position) -> Result<SnapshotFile, StoreError> {
        self.inner.shared.sync(position.index)?;
        self.inner.kept.build(state, position, self.inner.shared.log_last())
    }

    /// The newest whole snapshot.
    #[must_use]
    pub fn current_snapshot(&self) -> Option<SnapshotFile> {
        self.inner.kept.current()
    }

    /// The index up to which the log may be purged: the older of the two kept snapshots; 0 while there are not
    /// two.
    #[must_use]
    pub fn purge_floor(&self) -> Revision {
        self.inner.kept.compaction_revision()
    }

    /// A fresh path for a snapshot that is being received.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn incoming(&self) -> Result<PathBuf, StoreError> {
        let directory = self.inner.directory.join("incoming");
        files::make_directory(&directory)?;
        let number = self.inner.received.fetch_add(1, Ordering::Relaxed);
        Ok(directory.join(format!("{number}.part")))
    }

    /// Checks a received file whole, adopts it as the newest snapshot and returns its state. Blocking. Damage is
    /// `StoreError::Damaged`, and nothing changes. A file that is kept already is read again and stays.
    ///
    /// # Errors
    /// When the file is not whole or the disk refuses.
    pub fn install(&self, path: &Path) -> Result<(State, SnapshotFile), StoreError> {
        let (state, file) = self.inner.kept.install(path, self.inner.shared.log_last())?;
        self.inner.shared.installed(state.clone(), file.position.clone());
        Ok((state, file))
    }

    /// Whether the file is whole (read through once). Blocking.
    ///
    /// # Errors
    /// When it is not, or when the disk refuses.
    pub fn verify(&self, file: &SnapshotFile) -> Result<(), StoreError> {
        let found = snapshot::retained::check(&file.path)?;
        if found.digest == file.digest && found.position == file.position {
            Ok(())
        } else {
            Err(StoreError::Damaged(format!("{} holds another state", file.path.display())))
        }
    }

    /// How far everything is.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.inner.shared.figures()
    }

    /// Completes when the store's thread has failed for good: the node must stop.
    pub async fn failed(&self) -> String {
        self.inner.shared.failed().await
    }

    /// Carries everything into sled that the log holds durably, makes it and the history durable and ends the
    /// thread. Blocking; closing twice is closing once.
    pub fn close(&self) {
        self.inner.end(true);
    }
}

impl Inner {
    fn end(&self, carry: bool) {
        self.shared.end(carry);
        // The lock is held while the thread ends: a second call returns when it has ended, too.
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the store's thread panicked");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Without `close` the files stay as a crash would leave them, but nothing keeps them open.
        self.end(false);
    }
}
