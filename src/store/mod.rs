//! STUB
use crate::{
    model::record::Revision,
    state::{Change, State},
};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A place in the log in the words of the room above: opaque here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    pub index: Revision,
    /** log id and membership, encoded by `raft` */
    pub stamp: Vec<u8>,
}

/// What the log holds durably when the store is opened.
#[derive(Debug, Clone, Copy)]
pub struct LogRange {
    /** last purged entry; 0 none */
    pub purged: Revision,
    /** last entry */
    pub last: Revision,
}

/// Settings of the store (small ones for tests).
#[derive(Debug, Clone)]
pub struct Options {
    pub sled_cache_bytes: u64,
    pub segment_bytes: u64,
    pub block_bytes: usize,
    pub inbox_changes: usize,
}
impl Default for Options {
    fn default() -> Self {
        Self {
            sled_cache_bytes: 32 << 20,
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
    #[error("{context}: {source}")]
    Io {
        context: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{0}")]
    Damaged(String),
    /// sled or a snapshot is newer than the log: the log was lost
    #[error("{0}")]
    LogLost(String),
}

/// A whole snapshot on this node's disk.
#[derive(Debug, Clone)]
pub struct SnapshotFile {
    pub path: PathBuf,
    pub position: Position,
    pub bytes: u64,
    pub digest: u128,
}

/// What one run of applying did.
#[derive(Debug)]
pub struct Batch {
    pub state: State,
    pub position: Position,
    pub changes: Vec<Change>,
}

/// For the status.
#[derive(Debug, Clone, Copy, Default)]
pub struct Figures {
    pub handed: Revision,
    pub history: Revision,
    pub carried: Revision,
    pub sled_bytes: u64,
    pub history_bytes: u64,
    pub rebuilds: u64,
}

/// The handle; its thread carries batches behind the answer.
#[derive(Debug, Clone)]
pub struct Store;
impl Store {
    /// Opens `dir` (creates what is missing) and loads the newest whole state. Blocking.
    pub fn open(_dir: &Path, _options: Options, _log: LogRange) -> Result<(Self, Loaded), StoreError> {
        todo!()
    }
    /// Takes what was applied. Never blocks; bounded by the room above through `figures` (it is far behind at most by the inbox, which merges under pressure).
    pub fn carry(&self, _batch: Batch) {
        todo!()
    }
    /// The local log is durable up to this entry. sled never goes beyond it.
    pub fn flushed(&self, _index: Revision) {
        todo!()
    }
    /// The local log was cut behind this entry.
    pub fn truncated(&self, _last: Revision) {
        todo!()
    }
    /// Writes a snapshot file of `state` and keeps the two newest. Blocking.
    pub fn build_snapshot(&self, _state: &State, _position: &Position) -> Result<SnapshotFile, StoreError> {
        todo!()
    }
    pub fn current_snapshot(&self) -> Option<SnapshotFile> {
        todo!()
    }
    /// The index up to which the log may be purged: the older of the two kept snapshots; 0 while there are not two.
    pub fn purge_floor(&self) -> Revision {
        todo!()
    }
    /// A fresh path for a snapshot that is being received.
    pub fn incoming(&self) -> Result<PathBuf, StoreError> {
        todo!()
    }
    /// Checks a received file whole, adopts it as the newest snapshot and returns its state. Blocking. Damage is `StoreError::Damaged`, and nothing changes.
    pub fn install(&self, _path: &Path) -> Result<(State, SnapshotFile), StoreError> {
        todo!()
    }
    /// Whether the file is whole (read through once). Blocking.
    pub fn verify(&self, _file: &SnapshotFile) -> Result<(), StoreError> {
        todo!()
    }
    pub fn figures(&self) -> Figures {
        todo!()
    }
    /// Completes when the store's thread has failed for good: the node must stop.
    pub async fn failed(&self) -> String {
        todo!()
    }
    /// Carries everything into sled, flushes, ends the thread. Blocking.
    pub fn close(&self) {
        todo!()
    }
}
