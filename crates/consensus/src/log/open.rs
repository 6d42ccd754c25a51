//! Opens the log: makes it durable and identifies it, before there is a store to notify of its fsyncs.
//!
//! **Invariant:** no vote and no acknowledgement relies on a record of the log before it is durable.

use std::{
    fs::File,
    io,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use raft_log::{RaftLog, api::raft_log_writer::RaftLogWriter};

use super::{
    CHUNK_BYTES_MAX, CHUNK_RECORDS_MAX, Log, LogListener, SharedLog, WalTypes, conversion::flush,
    shared::LogKeys,
};
use crate::{
    codec::LogHeader,
    directory_format::DirectoryFormat,
    wire::{WireLogId, WireVote},
    witness::Bound,
};
use concord_storage::{LogRange, at_rest::AtRest};

/// A flush takes what is queued, which came during the flush before it. Waiting for more would delay each write on an idle
/// disk.
const FLUSH_BATCH_WAIT: Duration = Duration::ZERO;
/// Bytes of entries in memory: a whole chunk, one entry of 16 MiB beyond it, and their overhead. Below 22 MiB
/// raft-log may drop entries that it can't read back. Entries for a member that lags further are read from the
/// files.
const CACHE_BYTES_MAX: usize = 24 << 20;
/// Read buffer when the log is opened.
const REPLAY_BUFFER_BYTES: usize = 1 << 20;
/// Bytes that may wait for the disk. Beyond them appending waits: the memory of a node whose disk hangs is bounded.
const QUEUE_BYTES_MAX: usize = 32 << 20;

/// The opened log, before there is a store to notify of flushes.
pub(crate) struct Wal {
    pub(super) log: RaftLog<WalTypes>,
    pub(super) keys: LogKeys,
}

impl Wal {
    /// Opens or creates the log. Blocking.
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        Self::open_with(directory, File::sync_data)
    }

    fn open_with(directory: &Path, sync: impl Fn(&File) -> io::Result<()>) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let text = directory.to_str().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "the path of the data directory is not UTF-8")
        })?;
        let mut config = raft_log::Config::new(text);
        config.wal.chunk_max_size = Some(CHUNK_BYTES_MAX);
        config.wal.chunk_max_records = Some(CHUNK_RECORDS_MAX);
        config.wal.read_buffer_size = Some(REPLAY_BUFFER_BYTES);
        config.wal.flush_batch_wait = Some(FLUSH_BATCH_WAIT);
        config.log_cache_capacity = Some(CACHE_BYTES_MAX);
        config.log_cache_max_items = Some(usize::MAX);
        config.wal.flush_queue_max_bytes = Some(QUEUE_BYTES_MAX);
        let wal = RaftLog::open(Arc::new(config))?;
        if !concord_model::sabotage::is("tail-not-flushed") {
            sync_newest(directory, sync)?;
        }
        Ok(Self { log: wal, keys: LogKeys::default() })
    }

    /// The same log in a directory with these keys.
    pub(crate) fn with_keys(self, at_rest: &AtRest) -> Self {
        Self { keys: LogKeys::new(at_rest), ..self }
    }

    /// The log's header, if it has one.
    pub(crate) fn header(&self) -> Option<LogHeader> {
        self.log.log_state().user_data.clone()
    }

    /// Writes the log's header durably. Blocking.
    pub(crate) fn set_header(&mut self, header: LogHeader) -> io::Result<()> {
        self.log.save_user_data(Some(header))?;
        flush(&mut self.log)
    }

    /// Initializes a log that begins after a snapshot: its vote, so that no later term is below the snapshot's,
    /// then its header. Durable. Blocking.
    pub(crate) fn initialize(&mut self, vote: WireVote, header: LogHeader) -> io::Result<()> {
        self.log.save_vote(vote)?;
        self.set_header(header)
    }

    /// Whether it has neither a vote nor an entry, and never had one.
    pub(crate) fn is_pristine(&self) -> bool {
        let state = self.log.log_state();
        state.vote().is_none() && state.last().is_none() && state.purged().is_none()
    }

    /// The vote, and the last entry.
    pub(crate) fn position(&self) -> Bound {
        position(&self.log)
    }

    /// The range of the entries. A snapshot that is being installed counts as if the log ended there: the state may
    /// have replaced the old one already, and the log is purged up to it next.
    pub(crate) fn range(&self) -> LogRange {
        let state = self.log.log_state();
        let index = |id: Option<&WireLogId>| id.map_or(0, |id| id.index);
        let installing = self.header().and_then(|header| header.installing);
        LogRange { purged: index(state.purged()), last: index(state.last()).max(index(installing.as_ref())) }
    }

    /// The log with its listener and the format of the directory that it is in.
    pub(crate) fn with_listener(self, listener: Arc<dyn LogListener>, format: DirectoryFormat) -> Log {
        let committed = Arc::new(Mutex::new(self.log.log_state().committed().copied()));
        Log { shared: Arc::new(SharedLog::new(self.log, self.keys)), listener, format, committed }
    }
}

pub(super) fn position(log: &RaftLog<WalTypes>) -> Bound {
    let state = log.log_state();
    Bound { vote: state.vote().copied(), last: state.last().max(state.purged()).copied() }
}

/// Makes the newest file of the log durable. A process that was killed may have written records that its fsync had not
/// reached; they are read like all others, and from then on votes and acknowledgements rest on them. Files before the
/// newest were made durable before it was begun.
fn sync_newest(directory: &Path, sync: impl Fn(&File) -> io::Result<()>) -> io::Result<()> {
    let mut newest = None;
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "wal") {
            // The names ascend with the places of the files in the log.
            newest = newest.max(Some(path));
        }
    }
    newest.map_or(Ok(()), |path| sync(&File::open(path)?))
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, os::unix::fs::MetadataExt};

    use super::*;

    #[test]
    fn records_read_at_the_start_are_made_durable() {
        let directory = tempfile::tempdir().unwrap();
        let header = LogHeader { cluster: [7; 16], node: 1, installing: None };
        Wal::open(directory.path()).unwrap().set_header(header).unwrap();
        let names = || std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
        let file = names().find(|path| path.extension().is_some_and(|end| end == "wal")).unwrap();
        let synced = Cell::new(None);
        let wal = Wal::open_with(directory.path(), |file| {
            synced.set(Some(file.metadata()?.ino()));
            Ok(())
        });
        assert!(wal.unwrap().header().is_some());
        assert_eq!(synced.get(), Some(std::fs::metadata(file).unwrap().ino()));
        let failed = Wal::open_with(directory.path(), |_| Err(io::Error::other("the disk failed")));
        assert_eq!(failed.err().unwrap().to_string(), "the disk failed");
    }
}
