//! The Raft log: openraft's storage trait on raft-log's write-ahead log.
//!
//! Votes, entries, truncations and purges are records of one ordered file, so an fsync of one record covers all
//! before it. raft-log's own thread writes all queued records with one fdatasync and then calls back, so group
//! commit needs no code here. The file's first record names the cluster and the member.
//!
//! **Invariants**
//! 1. `io_completed` is called after fdatasync, never before; a vote is durable when `save_vote` returns.
//! 2. The store is notified of a flush before openraft is, so sled never holds what the durable log does not.
//! 3. The entries of the chunk that is being written are in memory, because raft-log can't read them from the file.
//!    The sizes of chunk and cache below ensure it.

use std::{
    fmt, io,
    ops::{Bound, RangeBounds},
    path::Path,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use futures::{Stream, TryStreamExt, stream};
use openraft::{
    EntryPayload, LogState, RaftLogReader,
    storage::{IOFlushed, RaftLogStorage},
};
use raft_log::{RaftLog, Types, api::raft_log_writer::RaftLogWriter};
use tokio::sync::oneshot;

use super::{
    codec::{LogHeader, LogPayload},
    directory_format::DirectoryFormat,
    types::{Entry, LogId, LogReader, TypeConfig, Vote},
    wire::{WireLogId, WireVote},
};
use crate::{
    peer::Member,
    store::{LogRange, Store},
};

/// How long a flush waits for more records: those that arrived during the previous fsync are queued already.
const FLUSH_BATCH_WAIT: Duration = Duration::from_micros(5);
/// Bytes of one file: the unit that a purge frees, and what must be in memory of the newest file.
const CHUNK_BYTES_MAX: usize = 4 << 20;
/// Records of one file: with [`ENTRY_OVERHEAD_BYTES`] each they fit the cache in addition to a full chunk.
const CHUNK_RECORDS_MAX: usize = 12_500;
/// Bytes of entries in memory: a whole chunk, one entry of 16 MiB beyond it, and their overhead. Below 22 MiB
/// raft-log may drop entries that it can't read back. Entries for a member that lags further are read from the
/// files.
const CACHE_BYTES_MAX: usize = 24 << 20;
/// Memory of an entry in addition to its bytes.
const ENTRY_OVERHEAD_BYTES: u64 = 128;
/// Bytes of one read for a member that lags: a quarter second of a slow link.
const READ_BYTES_MAX: usize = 2 << 20;
/// Read buffer when the log is opened.
const REPLAY_BUFFER_BYTES: usize = 1 << 20;

/// The parameters of raft-log's generic types.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct WalTypes;

impl Types for WalTypes {
    type LogId = WireLogId;
    type LogPayload = LogPayload;
    type Vote = WireVote;
    type Callback = FlushCallback;
    type UserData = LogHeader;

    fn log_index(id: &WireLogId) -> u64 {
        id.index
    }

    fn payload_size(payload: &LogPayload) -> u64 {
        u64::try_from(payload.bytes.len()).unwrap_or(u64::MAX).saturating_add(ENTRY_OVERHEAD_BYTES)
    }
}

/// Is notified of how far the log is durable.
pub(super) trait LogListener: Send + Sync + 'static {
    /// The log is durable up to this entry. Called on raft-log's thread.
    fn flushed(&self, index: u64);
    /// The log was truncated after this entry.
    fn truncated(&self, last: u64);
}

impl LogListener for Store {
    fn flushed(&self, index: u64) {
        Self::flushed(self, index);
    }

    fn truncated(&self, last: u64) {
        Self::truncated(self, last);
    }
}

/// What a flush calls back.
enum FlushCallback {
    /// openraft and the listener, for entries up to an index.
    Entries { last: Option<u64>, listener: Arc<dyn LogListener>, callback: IOFlushed<TypeConfig> },
    /// A function of this file that waits for the flush.
    Waiter(oneshot::Sender<io::Result<()>>),
}

impl raft_log::Callback for FlushCallback {
    fn send(self, result: io::Result<()>) {
        match self {
            Self::Entries { last, listener, callback } => {
                if let (Ok(()), Some(last)) = (&result, last) {
                    listener.flushed(last);
                }
                callback.io_completed(result);
            }
            // A dropped waiter does not need the result.
            Self::Waiter(waiter) => drop(waiter.send(result)),
        }
    }
}

/// The opened log, before there is a store to notify of flushes.
pub(super) struct Wal(RaftLog<WalTypes>);

impl Wal {
    /// Opens or creates the log. Blocking.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
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
        RaftLog::open(Arc::new(config)).map(Self)
    }

    /// The log's header, if it has one.
    pub(super) fn header(&self) -> Option<LogHeader> {
        self.0.log_state().user_data.clone()
    }

    /// Writes the log's header durably. Blocking.
    pub(super) fn set_header(&mut self, header: LogHeader) -> io::Result<()> {
        let (sender, flushed) = oneshot::channel();
        self.0.save_user_data(Some(header))?;
        self.0.flush(true, Some(FlushCallback::Waiter(sender)))?;
        flushed.blocking_recv().unwrap_or_else(|_| Err(io::Error::other("the log's writer has stopped")))
    }

    /// Initializes a log that begins after a snapshot: its vote, so that no later term is below the snapshot's,
    /// then its header. Durable. Blocking.
    pub(super) fn initialize(&mut self, vote: WireVote, header: LogHeader) -> io::Result<()> {
        self.0.save_vote(vote)?;
        self.set_header(header)
    }

    /// Whether it has neither a vote nor an entry, and never had one.
    pub(super) fn is_pristine(&self) -> bool {
        let state = self.0.log_state();
        state.vote().is_none() && state.last().is_none() && state.purged().is_none()
    }

    /// The range of the entries. A snapshot that is being installed counts as if the log ended there: the state may
    /// have replaced the old one already, and the log is purged up to it next.
    pub(super) fn range(&self) -> LogRange {
        let state = self.0.log_state();
        let index = |id: Option<&WireLogId>| id.map_or(0, |id| id.index);
        let installing = self.header().and_then(|header| header.installing);
        LogRange { purged: index(state.purged()), last: index(state.last()).max(index(installing.as_ref())) }
    }

    /// The log with its listener and the format of the directory that it is in.
    pub(super) fn with_listener(self, listener: Arc<dyn LogListener>, format: DirectoryFormat) -> Log {
        Log { wal: Arc::new(RwLock::new(Some(self.0))), listener, format }
    }
}

/// The log. Clones share it.
#[derive(Clone)]
pub(super) struct Log {
    /// `None` once it is closed. No guard is held across an await.
    wal: Arc<RwLock<Option<RaftLog<WalTypes>>>>,
    listener: Arc<dyn LogListener>,
    format: DirectoryFormat,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").finish_non_exhaustive()
    }
}

impl Log {
    fn read<T>(&self, read: impl FnOnce(&RaftLog<WalTypes>) -> io::Result<T>) -> io::Result<T> {
        // raft-log's state stays consistent when it refuses a record, so a poisoned lock can be used.
        let wal = self.wal.read().unwrap_or_else(PoisonError::into_inner);
        wal.as_ref().map_or_else(|| Err(closed()), read)
    }

    fn change<T>(&self, change: impl FnOnce(&mut RaftLog<WalTypes>) -> io::Result<T>) -> io::Result<T> {
        let mut wal = self.wal.write().unwrap_or_else(PoisonError::into_inner);
        wal.as_mut().map_or_else(|| Err(closed()), change)
    }

    /// Makes a change and waits until it is durable.
    async fn change_durably(
        &self,
        change: impl FnOnce(&mut RaftLog<WalTypes>) -> io::Result<()>,
    ) -> io::Result<()> {
        let (sender, flushed) = oneshot::channel();
        self.change(|wal| {
            change(wal)?;
            wal.flush(true, Some(FlushCallback::Waiter(sender)))
        })?;
        flushed.await.unwrap_or_else(|_| Err(io::Error::other("the log's writer has stopped")))
    }

    /// The format of the data directory.
    pub(super) fn format(&self) -> &DirectoryFormat {
        &self.format
    }

    /// Records durably which snapshot is about to replace the state.
    pub(super) async fn set_installing(&self, snapshot: Option<WireLogId>) -> io::Result<()> {
        let header = self.read(|wal| Ok(wal.log_state().user_data.clone()))?;
        match header {
            Some(header) => {
                let header = LogHeader { installing: snapshot, ..header };
                self.change_durably(|wal| wal.save_user_data(Some(header)).map(drop)).await
            }
            None => Ok(()), // a log without a header: openraft's storage suite
        }
    }

    /// Reconciles the log with a state that may have come from another node: entries that conflict with it are
    /// removed, and a log that ends before it is purged up to it.
    pub(super) async fn reconcile(&self, applied: WireLogId) -> io::Result<()> {
        let at =
            self.read(|wal| wal.read(applied.index, applied.index.saturating_add(1)).next().transpose())?;
        let (last, purged) =
            self.read(|wal| Ok((wal.log_state().last().copied(), wal.log_state().purged().copied())))?;
        let holds_it = at.is_some_and(|(id, _)| id == applied) || purged >= Some(applied);
        if holds_it {
            return Ok(());
        }
        self.change_durably(|wal| {
            if last >= Some(applied) {
                // Only entries after the committed ones can conflict with a state.
                let keep =
                    wal.log_state().committed().max(wal.log_state().purged()).map_or(0, |id| id.index + 1);
                wal.truncate(keep)?;
            }
            wal.purge(applied).map(drop)
        })
        .await?;
        self.listener.truncated(applied.index);
        self.listener.flushed(applied.index);
        Ok(())
    }

    /// The members that the log's newest membership entry names, if the log has one. Reads the whole log. Blocking.
    pub(super) fn members(&self) -> io::Result<Vec<Member>> {
        let newest = self.read(|wal| {
            let mut newest = None;
            for entry in wal.read(0, u64::MAX) {
                if let EntryPayload::Membership(members) = entry?.1.try_into()? {
                    newest = Some(members);
                }
            }
            Ok(newest)
        })?;
        Ok(newest.map_or_else(Vec::new, |members| members.nodes().map(|(_, node)| node.clone()).collect()))
    }

    /// Bytes of the files.
    pub(super) fn bytes(&self) -> u64 {
        self.read(|wal| Ok(wal.on_disk_size())).unwrap_or(0)
    }

    /// Writes the queued records, ends the writer's thread and releases the lock on the directory. Blocking.
    pub(super) fn close(&self) {
        let wal = self.wal.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = wal.map(|mut wal| wal.flush(false, None)) {
            tracing::error!(%error, "the last records of the log were not written");
        }
    }

    /// Entries from `start` to before `end`, ending early before they are longer than `bytes_max`; at least one.
    fn entries(&self, start: u64, end: u64, bytes_max: usize) -> io::Result<Vec<Entry>> {
        self.read(|wal| {
            let mut entries = Vec::new();
            let mut length = 0;
            for entry in wal.read(start, end) {
                let (id, payload) = entry?;
                length += payload.bytes.len();
                if length > bytes_max && !entries.is_empty() {
                    break;
                }
                entries.push(Entry { log_id: id.into(), payload: payload.try_into()? });
            }
            Ok(entries)
        })
    }
}

/// The first index of a range and the index after its last.
fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => u64::MAX,
    };
    (start, end)
}

fn closed() -> io::Error {
    io::Error::other("the log is closed")
}

impl RaftLogReader<TypeConfig> for Log {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + fmt::Debug + Send>(
        &mut self,
        range: R,
    ) -> io::Result<Vec<Entry>> {
        let (start, end) = bounds(&range);
        if start >= end {
            return Ok(Vec::new());
        }
        self.entries(start, end, usize::MAX)
    }

    async fn entries_stream<R>(&mut self, range: R) -> impl Stream<Item = io::Result<Entry>> + Send
    where
        R: RangeBounds<u64> + Clone + fmt::Debug + Send,
    {
        // In portions: the entries that a node applies after a long downtime need not all be in memory at once.
        let (start, end) = bounds(&range);
        let portion = |(log, start, end): (Self, u64, u64)| async move {
            if start >= end {
                return Ok(None);
            }
            let entries = log.entries(start, end, READ_BYTES_MAX)?;
            let next = entries.last().map(|entry| entry.log_id.index.saturating_add(1));
            Ok::<_, io::Error>(next.map(|next| (entries, (log, next, end))))
        };
        stream::try_unfold((self.clone(), start, end), portion)
            .map_ok(|entries| stream::iter(entries.into_iter().map(Ok)))
            .try_flatten()
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        if start >= end {
            return Ok(Vec::new());
        }
        self.entries(start, end, READ_BYTES_MAX)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        self.read(|wal| Ok(wal.log_state().vote().copied().map(Vote::from)))
    }
}

impl RaftLogStorage<TypeConfig> for Log {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        self.read(|wal| {
            let state = wal.log_state();
            Ok(LogState {
                last_purged_log_id: state.purged().copied().map(LogId::from),
                last_log_id: state.last().copied().map(LogId::from),
            })
        })
    }

    async fn get_log_reader(&mut self) -> LogReader {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        if crate::sabotage::is("vote-not-persisted") {
            return Ok(());
        }
        self.change_durably(|wal| wal.save_vote(WireVote::from(vote)).map(drop)).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let Some(committed) = committed.map(WireLogId::from) else { return Ok(()) };
        if crate::sabotage::is("leader-restore") {
            return Ok(());
        }
        self.change(|wal| {
            // Ahead of the log while a snapshot is installed; not ahead of the last one when openraft repeats it.
            // Neither is recorded.
            let state = wal.log_state();
            if state.last() < Some(&committed) || state.committed() >= Some(&committed) {
                return Ok(());
            }
            // It is written to the file with the next entries, or when the log is closed: waking the writer for it
            // alone would cost each write a second wake-up of that thread. If a crash loses it, a leader sends it
            // again.
            wal.commit(committed).map(drop)
        })
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        self.read(|wal| Ok(wal.log_state().committed().copied().map(LogId::from)))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let entry = |entry: Entry| (WireLogId::from(entry.log_id), LogPayload::from(&entry.payload));
        let entries: Vec<_> = entries.into_iter().map(entry).collect();
        self.format.require(entries.iter().map(|(_, payload)| payload.feature_level()).max().unwrap_or(0))?;
        let last = entries.last().map(|(id, _)| id.index);
        let listener = Arc::clone(&self.listener);
        self.change(|wal| {
            wal.append(entries)?;
            if crate::sabotage::is("skip-fsync") {
                wal.flush(false, None)?;
                let callback = FlushCallback::Entries { last, listener, callback };
                raft_log::Callback::send(callback, Ok(()));
                return Ok(());
            }
            wal.flush(true, Some(FlushCallback::Entries { last, listener, callback }))
        })
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let keep = last.map_or(0, |id| id.index.saturating_add(1));
        self.change_durably(|wal| {
            let state = wal.log_state();
            let first = state.purged().map_or(0, |id| id.index + 1);
            let end = state.last().map_or(0, |id| id.index + 1);
            if keep.max(first) < end { wal.truncate(keep.max(first)).map(drop) } else { Ok(()) }
        })
        .await?;
        self.listener.truncated(keep.saturating_sub(1));
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        let listener = Arc::clone(&self.listener);
        self.change(|wal| {
            let mut upto = WireLogId::from(upto);
            if crate::sabotage::is("purge-beyond-snapshot") {
                upto = wal.log_state().last().copied().map_or(upto, |last| last.max(upto));
            }
            // A purge beyond the log's end: the log now ends with the installed snapshot.
            let last = (wal.log_state().last() < Some(&upto)).then_some(upto.index);
            wal.purge(upto)?;
            let header = wal.log_state().user_data.clone();
            if let Some(header) = header.filter(|header| header.installing.is_some_and(|at| at <= upto)) {
                wal.save_user_data(Some(LogHeader { installing: None, ..header }))?;
            }
            // raft-log removes files only after a flush with fdatasync, on its own thread.
            let callback = IOFlushed::noop();
            wal.flush(true, Some(FlushCallback::Entries { last, listener, callback }))
        })
    }
}

#[cfg(test)]
mod tests;
