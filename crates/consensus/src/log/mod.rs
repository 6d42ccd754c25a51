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
//!    The sizes of chunk and cache ensure it.
//! 4. No worker of the runtime waits for the disk. A change that can't wait for it is made where it is asked for, as
//!    every ordinary append is: it costs a thread switch less. All others are made on threads that may block, and
//!    callers wait for them without holding anything.
//!
//! | where | what it does |
//! |---|---|
//! | `open` | opening the log from its files |
//! | `conversion` | rewriting the log, when encryption was turned on or off |
//! | `recovery` | the log with which a member continues in another cluster |
//! | `shared` | raft-log behind its lock: which change may wait, and which can't |
//! | `recent` | the newest entries in memory |
//! | `progress` | the operations in flight, and the watchdog |

mod conversion;
mod open;
mod progress;
mod recent;
mod recovery;
mod shared;

use std::{
    fmt, io,
    ops::{Bound, Range, RangeBounds},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::{Stream, TryStreamExt, stream};
use openraft::{
    LogState, RaftLogReader,
    storage::{IOFlushed, RaftLogStorage},
};
use raft_log::{RaftLog, Types, api::raft_log_writer::RaftLogWriter};
use tokio::sync::oneshot;

pub(super) use self::{
    conversion::{complete_exchange, convert, discard, exists, kept},
    open::Wal,
    recovery::{Continuation, remove_unfinished, replace},
};
use self::{
    progress::LogOperation,
    recent::{RecentEntries, RecentFound},
    shared::SharedLog,
};
use super::{
    codec::{LogHeader, LogPayload},
    directory_format::DirectoryFormat,
    entry_times::EntryTimes,
    machine::AppliedState,
    slow_flush::FlushTimes,
    term_starts::TermStarts,
    types::{Entry, LogId, LogReader, TypeConfig, Vote},
    wire::{WireLogId, WireVote},
    witness,
};
use concord_net::Member;
use concord_storage::Store;

/// Bytes of one file: the unit that a purge frees, and what must be in memory of the newest file.
const CHUNK_BYTES_MAX: usize = 4 << 20;
/// Records of one file: with [`ENTRY_OVERHEAD_BYTES`] each they fit the cache in addition to a full chunk.
const CHUNK_RECORDS_MAX: usize = 12_500;
/// Memory of an entry in addition to its bytes.
const ENTRY_OVERHEAD_BYTES: u64 = 128;
/// Bytes of one read for a member that lags: a quarter second of a slow link.
const READ_BYTES_MAX: usize = 2 << 20;

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
struct FlushCallback {
    then: AfterFlush,
    /// Ends with the flush, whether it is called back or dropped.
    operation: LogOperation,
}

/// Who learns that a flush is done.
enum AfterFlush {
    /// openraft and the listener, for entries up to an index.
    Entries { last: Option<u64>, listener: Arc<dyn LogListener>, callback: IOFlushed<TypeConfig> },
    /// The same for the entries with these indexes, which were appended.
    Appended {
        entries: Range<u64>,
        shared: Arc<SharedLog>,
        listener: Arc<dyn LogListener>,
        callback: IOFlushed<TypeConfig>,
    },
    /// A function of this layer that waits for the flush.
    Tell(oneshot::Sender<io::Result<()>>),
}

impl raft_log::Callback for FlushCallback {
    fn send(self, result: io::Result<()>) {
        let Self { then, operation } = self;
        let now = Instant::now();
        if result.is_ok() {
            operation.flushed(now);
        }
        drop(operation);
        match then {
            AfterFlush::Entries { last, listener, callback } => {
                if let (Ok(()), Some(last)) = (&result, last) {
                    listener.flushed(last);
                }
                callback.io_completed(result);
            }
            AfterFlush::Appended { entries, shared, listener, callback } => {
                if result.is_ok() {
                    if let Some(last) = entries.clone().last() {
                        listener.flushed(last);
                    }
                    shared.entries.flushed(entries, now);
                }
                callback.io_completed(result);
            }
            // A dropped waiter does not need the result.
            AfterFlush::Tell(waiter) => drop(waiter.send(result)),
        }
    }
}

/// The log. Clones share it.
#[derive(Clone)]
pub(super) struct Log {
    shared: Arc<SharedLog>,
    listener: Arc<dyn LogListener>,
    format: DirectoryFormat,
    /// The last entry that is known to be committed.
    committed: Arc<Mutex<Option<WireLogId>>>,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").finish_non_exhaustive()
    }
}

/// Runs what may wait for the disk.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    crate::blocking::blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

impl Log {
    /// Calls `stalled` with the reason once the log has not moved for so long. The process ends then, by itself or not.
    pub(super) fn watch(
        &self,
        timeout: Duration,
        stalled: impl FnOnce(String) + Send + 'static,
    ) -> io::Result<()> {
        let kinds = [("write", &self.shared.writes), ("read", &self.shared.reads)];
        let kinds = kinds.map(|(name, progress)| (name, Arc::downgrade(progress)));
        progress::watch(kinds, timeout, |why| {
            stalled(why);
            super::end_process_later();
        })
    }

    /// For how long the log has not moved, if that is worth a report.
    pub(super) fn stalled(&self) -> Option<Duration> {
        self.shared.writes.stalled().or(self.shared.reads.stalled())
    }

    /// Reads what raft-log knows.
    async fn look<T: Send + 'static>(
        &self,
        read: impl FnOnce(&RaftLog<WalTypes>) -> T + Send + 'static,
    ) -> io::Result<T> {
        match self.shared.try_change(0, 0, move |wal| Ok(read(wal))) {
            Ok(seen) => seen,
            Err(read) => {
                let shared = Arc::clone(&self.shared);
                blocking(move || shared.change(read)).await
            }
        }
    }

    /// Makes a change that adds so many records with so many bytes: here if it can't wait for the disk.
    async fn change<F>(&self, records: usize, bytes: usize, change: F) -> io::Result<()>
    where
        F: FnOnce(&mut RaftLog<WalTypes>) -> io::Result<()> + Send + 'static,
    {
        match self.shared.try_change(records, bytes, change) {
            Ok(changed) => changed,
            Err(change) => {
                let shared = Arc::clone(&self.shared);
                blocking(move || shared.change(change)).await
            }
        }
    }

    /// Makes a change and waits until it is durable.
    async fn change_durably(
        &self,
        change: impl FnOnce(&mut RaftLog<WalTypes>) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let (sender, flushed) = oneshot::channel();
        let (shared, operation) = (Arc::clone(&self.shared), self.shared.writes.begin(0));
        let change = move |wal: &mut RaftLog<WalTypes>| {
            change(wal)?;
            wal.flush(true, Some(FlushCallback { then: AfterFlush::Tell(sender), operation }))
        };
        blocking(move || shared.change(change)).await?;
        flushed.await.unwrap_or_else(|_| Err(io::Error::other("the log's writer has stopped")))
    }

    /// The vote, and the last entry.
    pub(super) async fn position(&self) -> io::Result<witness::Bound> {
        self.look(open::position).await
    }

    /// The last of these entries of a leader whose place is committed here, after the entry that this log has there. `None`
    /// if there is no such place, or if it is purged and `applied` does not know it either. openraft takes every place up
    /// to its last committed entry for equal, and checks that in debug builds only.
    pub(super) async fn compared_with(
        &self,
        ids: impl Iterator<Item = WireLogId>,
        applied: Option<&AppliedState>,
    ) -> io::Result<Option<(WireLogId, WireLogId)>> {
        let committed = *self.committed.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(committed) = committed else { return Ok(None) };
        // Logs that agree in one entry agree in all before it.
        let Some(last) = ids.filter(|id| id.index <= committed.index).max() else { return Ok(None) };
        if last == committed {
            return Ok(Some((committed, last)));
        }
        let purged = self.look(|wal| wal.log_state().purged().copied()).await?;
        let own = match purged {
            Some(purged) if last.index < purged.index => {
                applied.and_then(|applied| applied.id_at(last.index))
            }
            Some(purged) if last.index == purged.index => Some(purged),
            Some(_) | None => {
                let found = self.entries(last.index, last.index.saturating_add(1), usize::MAX).await?;
                found.first().map(|entry| WireLogId::from(entry.log_id))
            }
        };
        Ok(own.map(|own| (own, last)))
    }

    /// The committed entry of this log where a state that ends with `last` was made of another one. `starts` are those of
    /// that state.
    pub(super) async fn contradicted_by(
        &self,
        last: WireLogId,
        starts: &TermStarts,
    ) -> io::Result<Option<WireLogId>> {
        let committed = *self.committed.lock().unwrap_or_else(PoisonError::into_inner);
        let theirs = committed.and_then(|committed| starts.id_at(last.index.min(committed.index)));
        let compared = self.compared_with(theirs.into_iter(), None).await?;
        Ok(compared.and_then(|(own, theirs)| (own != theirs).then_some(own)))
    }

    /// The times of its newest entries.
    pub(super) fn entry_times(&self) -> Arc<EntryTimes> {
        Arc::clone(&self.shared.entries)
    }

    /// The times of its flushes.
    pub(super) fn flushes(&self) -> Arc<FlushTimes> {
        Arc::clone(&self.shared.writes.flushes)
    }

    /// The format of the data directory.
    pub(super) fn format(&self) -> &DirectoryFormat {
        &self.format
    }

    /// Records durably which snapshot is about to replace the state.
    pub(super) async fn set_installing(&self, snapshot: Option<WireLogId>) -> io::Result<()> {
        self.change_durably(move |wal| match wal.log_state().user_data.clone() {
            Some(header) => wal.save_user_data(Some(LogHeader { installing: snapshot, ..header })).map(drop),
            None => Ok(()), // a log without a header: openraft's storage suite
        })
        .await
    }

    /// Reconciles the log with a state that may have come from another node: entries that conflict with it are
    /// removed, and a log that ends before it is purged up to it.
    pub(super) async fn reconcile(&self, applied: WireLogId) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let look = move || {
            shared.read(|wal| {
                let at = wal.read(applied.index, applied.index.saturating_add(1)).next().transpose()?;
                let holds_it =
                    at.is_some_and(|(id, _)| id == applied) || wal.log_state().purged() >= Some(&applied);
                Ok((holds_it, wal.log_state().last().copied()))
            })
        };
        let (holds_it, last) = blocking(look).await?;
        if holds_it {
            return Ok(());
        }
        self.change_durably(move |wal| {
            if last >= Some(applied) {
                // Only entries after the committed ones can conflict with a state.
                let keep =
                    wal.log_state().committed().max(wal.log_state().purged()).map_or(0, |id| id.index + 1);
                wal.truncate(keep)?;
            }
            wal.purge(applied).map(drop)
        })
        .await?;
        *self.shared.recent() = RecentEntries::after(applied.index.saturating_add(1));
        self.listener.truncated(applied.index);
        self.listener.flushed(applied.index);
        Ok(())
    }

    /// The members that the log's newest membership entry names. Reads the whole log. Blocking.
    pub(super) fn members(&self) -> io::Result<Vec<Member>> {
        let newest = self.shared.newest_membership()?;
        Ok(newest.map_or_else(Vec::new, |newest| newest.nodes().map(|(_, member)| member.clone()).collect()))
    }

    /// Bytes of the files.
    pub(super) async fn bytes(&self) -> u64 {
        self.look(RaftLog::on_disk_size).await.unwrap_or(0)
    }

    /// Writes the queued records, ends the writer's thread and releases the lock on the directory. Blocking.
    pub(super) fn close(&self) {
        let opened = self.shared.opened.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = opened.map(|mut opened| opened.wal.flush(false, None)) {
            tracing::error!(%error, "the last records of the log were not written");
        }
    }

    /// Entries from `start` to before `end`, ending early before they are longer than `bytes_max`; at least one.
    async fn entries(&self, start: u64, end: u64, bytes_max: usize) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let mut next = start;
        while next < end {
            let found = {
                let recent = self.shared.recent.read().unwrap_or_else(PoisonError::into_inner);
                recent.read(next, end, bytes_max)
            };
            let upto = match found {
                RecentFound::Here(found) if entries.is_empty() => return Ok(found),
                RecentFound::Here(found) => {
                    entries.extend(found);
                    break;
                }
                RecentFound::Before(first) => first.min(end),
            };
            let shared = Arc::clone(&self.shared);
            let (read, reached) = blocking(move || shared.read_files(next, upto, bytes_max)).await?;
            entries.extend(read);
            if reached < upto || (!entries.is_empty() && bytes_max < usize::MAX) {
                break;
            }
            next = upto;
        }
        Ok(entries)
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

impl RaftLogReader<TypeConfig> for Log {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + fmt::Debug + Send>(
        &mut self,
        range: R,
    ) -> io::Result<Vec<Entry>> {
        let (start, end) = bounds(&range);
        if start >= end {
            return Ok(Vec::new());
        }
        self.entries(start, end, usize::MAX).await
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
            let entries = log.entries(start, end, READ_BYTES_MAX).await?;
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
        self.entries(start, end, READ_BYTES_MAX).await
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        self.look(|wal| wal.log_state().vote().copied().map(Vote::from)).await
    }
}

impl RaftLogStorage<TypeConfig> for Log {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        self.look(|wal| LogState {
            last_purged_log_id: wal.log_state().purged().copied().map(LogId::from),
            last_log_id: wal.log_state().last().copied().map(LogId::from),
        })
        .await
    }

    async fn get_log_reader(&mut self) -> LogReader {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        if concord_model::sabotage::is("vote-not-persisted") {
            return Ok(());
        }
        let vote = WireVote::from(vote);
        self.change_durably(move |wal| wal.save_vote(vote).map(drop)).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let Some(committed) = committed.map(WireLogId::from) else { return Ok(()) };
        {
            let mut known = self.committed.lock().unwrap_or_else(PoisonError::into_inner);
            *known = (*known).max(Some(committed));
            self.shared.entries.committed(committed.index, Instant::now());
        }
        if concord_model::sabotage::is("leader-restore") {
            return Ok(());
        }
        let change = move |wal: &mut RaftLog<WalTypes>| {
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
        };
        self.change(1, 0, change).await
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        self.look(|wal| wal.log_state().committed().copied().map(LogId::from)).await
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let (mut records, mut recent, mut bytes, mut level) = (Vec::new(), Vec::new(), 0, 0);
        for entry in entries {
            let payload = LogPayload::from(&entry.payload);
            let (id, length) = (WireLogId::from(entry.log_id), payload.bytes.len());
            level = level.max(payload.feature_level());
            let payload = self.shared.keys.seal(&id, payload);
            bytes += payload.bytes.len();
            records.push((id, payload));
            recent.push((length, entry));
        }
        if !self.format.has(level) {
            let format = self.format.clone();
            blocking(move || format.require(level)).await?;
        }
        let (count, first) = (records.len(), records.first().map_or(0, |(id, _)| id.index));
        let entries = first..records.last().map_or(first, |(id, _)| id.index.saturating_add(1));
        let (listener, operation) = (Arc::clone(&self.listener), self.shared.writes.begin(bytes));
        let shared = Arc::clone(&self.shared);
        shared.entries.appended(entries.clone(), operation.begun);
        let append = move |wal: &mut RaftLog<WalTypes>| {
            wal.append(records)?;
            let then = AfterFlush::Appended { entries, shared, listener, callback };
            if concord_model::sabotage::is("skip-fsync") {
                wal.flush(false, None)?;
                raft_log::Callback::send(FlushCallback { then, operation }, Ok(()));
                return Ok(());
            }
            wal.flush(true, Some(FlushCallback { then, operation }))
        };
        self.change(count, bytes, append).await?;
        self.shared.recent().append(recent);
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        let keep = last.map_or(0, |id| id.index.saturating_add(1));
        self.change_durably(move |wal| {
            let state = wal.log_state();
            let first = state.purged().map_or(0, |id| id.index + 1);
            let end = state.last().map_or(0, |id| id.index + 1);
            if keep.max(first) < end { wal.truncate(keep.max(first)).map(drop) } else { Ok(()) }
        })
        .await?;
        self.shared.recent().truncate(keep);
        self.listener.truncated(keep.saturating_sub(1));
        Ok(())
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        let (shared, listener) = (Arc::clone(&self.shared), Arc::clone(&self.listener));
        let (operation, mut upto) = (self.shared.writes.begin(0), WireLogId::from(upto));
        let purge = move |wal: &mut RaftLog<WalTypes>| {
            if concord_model::sabotage::is("purge-beyond-snapshot") {
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
            let then = AfterFlush::Entries { last, listener, callback: IOFlushed::noop() };
            wal.flush(true, Some(FlushCallback { then, operation }))?;
            Ok(upto.index)
        };
        let upto = blocking(move || shared.change(purge)).await?;
        self.shared.recent().purge(upto);
        Ok(())
    }
}

/// The figures of a log.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogFigures {
    /// Bytes of entries that applying and replicating read from memory, and that raft-log's cache holds too.
    pub recent_bytes: usize,
    /// Bytes of raft-log's cache.
    pub cache_bytes: u64,
    /// Bytes of the files.
    pub disk_bytes: u64,
    /// Writes that are not durable yet.
    pub unflushed_writes: u64,
    /// Their bytes.
    pub unflushed_bytes: usize,
    /// For how long the log has made no progress; zero while it does.
    pub stalled: Duration,
}

impl Log {
    /// The figures. They are read during an I/O stall, too, so they wait for nothing: while a change of the log waits for
    /// the disk, the figures of raft-log are the last known ones. After the log is closed they are zero.
    pub(crate) fn figures(&self) -> LogFigures {
        let (_, recent_bytes) = self.shared.recent().figures();
        let (unflushed_writes, unflushed_bytes) = self.shared.writes.in_flight();
        let look = |wal: &mut RaftLog<WalTypes>| Ok((wal.stat().payload_cache_size, wal.on_disk_size()));
        let (cache_bytes, disk_bytes) = {
            let mut last = self.shared.last_seen.lock().unwrap_or_else(PoisonError::into_inner);
            if let Ok(seen) = self.shared.try_change(0, 0, look) {
                *last = seen.unwrap_or_default();
            }
            *last
        };
        let stalled = self.stalled().unwrap_or_default();
        LogFigures { recent_bytes, cache_bytes, disk_bytes, unflushed_writes, unflushed_bytes, stalled }
    }
}

#[cfg(test)]
mod tests;
