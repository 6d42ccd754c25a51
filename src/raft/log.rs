//! The Raft log: openraft's storage trait on raft-log's write-ahead log.
//!
//! Vote, entries, cuts and purges are records of ONE ordered file, so an fsync of any of them is an fsync of all
//! before it. raft-log's own thread writes whatever is queued with one fdatasync and then calls back: group
//! commit costs nothing here. The file's leading record bears the identity of cluster and member.
//!
//! **Invariants**
//! 1. `io_completed` is called after fdatasync, never before; a vote is durable when `save_vote` returns.
//! 2. The store learns of a flush before openraft does, so sled never goes beyond the durable log.
//! 3. An entry of the chunk that is being written is in memory: raft-log can't read it from the file. Chunk and
//!    cache sizes below keep it so.

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
    codec::{Mark, Payload},
    types::{Entry, Kind, LogId, LogReader, Vote},
    wire::{Ballot, Id},
};
use crate::{
    peer::Member,
    store::{LogRange, Store},
};

/// How long a batch waits for company: what has queued up behind the fsync before it is there already.
const BATCH_WAIT: Duration = Duration::from_micros(5);
/// Bytes of one file: what a purge gives back at a time, and what must be in memory of the newest one.
const CHUNK_BYTES_MAX: usize = 4 << 20;
/// Records of one file; with [`ENTRY_BYTES`] each they fit the cache beside a full chunk.
const CHUNK_RECORDS_MAX: usize = 12_500;
/// Bytes of entries in memory: a whole chunk, one entry of 16 MiB beyond it, and their overhead. Below 22 MiB
/// raft-log may drop entries that it can't read back. A member that lags further is read for from the file.
const CACHE_BYTES_MAX: usize = 24 << 20;
/// What an entry takes in memory beside its bytes.
const ENTRY_BYTES: u64 = 128;
/// Bytes of one answer to a peer that lags: a quarter second of a slow link.
const READ_BYTES_MAX: usize = 2 << 20;
/// Buffer of the reader at start.
const REPLAY_BYTES: usize = 1 << 20;

/// raft-log's types.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Layout;

impl Types for Layout {
    type LogId = Id;
    type LogPayload = Payload;
    type Vote = Ballot;
    type Callback = Done;
    type UserData = Mark;

    fn log_index(id: &Id) -> u64 {
        id.index
    }

    fn payload_size(payload: &Payload) -> u64 {
        u64::try_from(payload.bytes.len()).unwrap_or(u64::MAX).saturating_add(ENTRY_BYTES)
    }
}

/// Who must know how far the log is durable.
pub(super) trait Listener: Send + Sync + 'static {
    /// Durable up to this entry. Called on the log's thread.
    fn flushed(&self, index: u64);
    /// Cut behind this entry.
    fn truncated(&self, last: u64);
}

impl Listener for Store {
    fn flushed(&self, index: u64) {
        Self::flushed(self, index);
    }

    fn truncated(&self, last: u64) {
        Self::truncated(self, last);
    }
}

/// Who waits for a flush.
enum Done {
    /// openraft, for entries up to an index.
    Entries { last: Option<u64>, listener: Arc<dyn Listener>, callback: IOFlushed<Kind> },
    /// A function of this file.
    Tell(oneshot::Sender<io::Result<()>>),
}

impl raft_log::Callback for Done {
    fn send(self, result: io::Result<()>) {
        match self {
            Self::Entries { last, listener, callback } => {
                if let (Ok(()), Some(last)) = (&result, last) {
                    listener.flushed(last);
                }
                callback.io_completed(result);
            }
            // A waiter that has gone no longer needs the answer.
            Self::Tell(waiter) => drop(waiter.send(result)),
        }
    }
}

/// The opened file, before there is a store to tell of flushes.
pub(super) struct Wal(RaftLog<Layout>);

impl Wal {
    /// Opens or makes the log. Blocking.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let text = directory.to_str().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "the path of the data directory is not UTF-8")
        })?;
        let mut config = raft_log::Config::new(text);
        config.wal.chunk_max_size = Some(CHUNK_BYTES_MAX);
        config.wal.chunk_max_records = Some(CHUNK_RECORDS_MAX);
        config.wal.read_buffer_size = Some(REPLAY_BYTES);
        config.wal.flush_batch_wait = Some(BATCH_WAIT);
        config.log_cache_capacity = Some(CACHE_BYTES_MAX);
        config.log_cache_max_items = Some(usize::MAX);
        RaftLog::open(Arc::new(config)).map(Self)
    }

    /// Whose log this is.
    pub(super) fn mark(&self) -> Option<Mark> {
        self.0.log_state().user_data.clone()
    }

    /// Writes whose log it is, durably. Blocking.
    pub(super) fn set_mark(&mut self, mark: Mark) -> io::Result<()> {
        let (tell, told) = oneshot::channel();
        self.0.save_user_data(Some(mark))?;
        self.0.flush(true, Some(Done::Tell(tell)))?;
        told.blocking_recv().unwrap_or_else(|_| Err(io::Error::other("the log's writer has stopped")))
    }

    /// Begins a log behind a snapshot: its vote, so that no later term is below the snapshot's, then its mark.
    /// Durable. Blocking.
    pub(super) fn begin(&mut self, vote: Ballot, mark: Mark) -> io::Result<()> {
        self.0.save_vote(vote)?;
        self.set_mark(mark)
    }

    /// Nothing was ever written to it.
    pub(super) fn is_pristine(&self) -> bool {
        let state = self.0.log_state();
        state.vote().is_none() && state.last().is_none() && state.purged().is_none()
    }

    /// What it holds. A snapshot that was being adopted counts as if the log reached that far: the state may be
    /// there, and the next step purges the log to it.
    pub(super) fn range(&self) -> LogRange {
        let state = self.0.log_state();
        let index = |id: Option<&Id>| id.map_or(0, |id| id.index);
        let adopted = self.mark().and_then(|mark| mark.installing);
        LogRange { purged: index(state.purged()), last: index(state.last()).max(index(adopted.as_ref())) }
    }

    /// Joins it to the store.
    pub(super) fn with(self, listener: Arc<dyn Listener>) -> Log {
        Log { wal: Arc::new(RwLock::new(Some(self.0))), listener }
    }
}

/// The log. Cloning shares it.
#[derive(Clone)]
pub(super) struct Log {
    /// `None` once it is closed. No guard lives across an await.
    wal: Arc<RwLock<Option<RaftLog<Layout>>>>,
    listener: Arc<dyn Listener>,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").finish_non_exhaustive()
    }
}

impl Log {
    fn read<T>(&self, look: impl FnOnce(&RaftLog<Layout>) -> io::Result<T>) -> io::Result<T> {
        // raft-log leaves its state whole when it refuses a record, so a poisoned lock guards nothing broken.
        let wal = self.wal.read().unwrap_or_else(PoisonError::into_inner);
        wal.as_ref().map_or_else(|| Err(closed()), look)
    }

    fn change<T>(&self, act: impl FnOnce(&mut RaftLog<Layout>) -> io::Result<T>) -> io::Result<T> {
        let mut wal = self.wal.write().unwrap_or_else(PoisonError::into_inner);
        wal.as_mut().map_or_else(|| Err(closed()), act)
    }

    /// Makes a change and waits until it is durable.
    async fn change_durably(
        &self,
        act: impl FnOnce(&mut RaftLog<Layout>) -> io::Result<()>,
    ) -> io::Result<()> {
        let (tell, told) = oneshot::channel();
        self.change(|wal| {
            act(wal)?;
            wal.flush(true, Some(Done::Tell(tell)))
        })?;
        told.await.unwrap_or_else(|_| Err(io::Error::other("the log's writer has stopped")))
    }

    /// Notes, durably, the snapshot that is about to replace the state.
    pub(super) async fn set_installing(&self, at: Option<Id>) -> io::Result<()> {
        let mark = self.read(|wal| Ok(wal.log_state().user_data.clone()))?;
        match mark {
            Some(mark) => {
                let mark = Mark { installing: at, ..mark };
                self.change_durably(|wal| wal.save_user_data(Some(mark)).map(drop)).await
            }
            None => Ok(()), // a log without an identity: openraft's storage suite
        }
    }

    /// Makes the log agree with a state that came from elsewhere: what contradicts it or ends before it goes.
    pub(super) async fn settle(&self, applied: Id) -> io::Result<()> {
        let at =
            self.read(|wal| wal.read(applied.index, applied.index.saturating_add(1)).next().transpose())?;
        let (last, purged) =
            self.read(|wal| Ok((wal.log_state().last().copied(), wal.log_state().purged().copied())))?;
        let known = at.is_some_and(|(id, _)| id == applied) || purged >= Some(applied);
        if known {
            return Ok(());
        }
        self.change_durably(|wal| {
            if last >= Some(applied) {
                // Only entries behind the agreed ones can contradict a state.
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

    /// The members that the newest membership entry of the log names, if it holds one. Reads all of it. Blocking.
    pub(super) fn members(&self) -> io::Result<Vec<Member>> {
        let named = self.read(|wal| {
            let mut named = None;
            for entry in wal.read(0, u64::MAX) {
                if let EntryPayload::Membership(members) = entry?.1.try_into()? {
                    named = Some(members);
                }
            }
            Ok(named)
        })?;
        Ok(named.map_or_else(Vec::new, |members| members.nodes().map(|(_, node)| node.clone()).collect()))
    }

    /// Bytes of the files.
    pub(super) fn bytes(&self) -> u64 {
        self.read(|wal| Ok(wal.on_disk_size())).unwrap_or(0)
    }

    /// Writes what is queued, ends the writer's thread, gives up the lock on the directory. Blocking.
    pub(super) fn close(&self) {
        let wal = self.wal.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = wal.map(|mut wal| wal.flush(false, None)) {
            tracing::error!(%error, "the last records of the log were not written");
        }
    }

    /// Entries from `start` to before `end`, ending early once they are longer than `bytes`; one at least.
    fn entries(&self, start: u64, end: u64, bytes: usize) -> io::Result<Vec<Entry>> {
        self.read(|wal| {
            let mut entries = Vec::new();
            let mut length = 0;
            for entry in wal.read(start, end) {
                let (id, payload) = entry?;
                length += payload.bytes.len();
                if length > bytes && !entries.is_empty() {
                    break;
                }
                entries.push(Entry { log_id: id.into(), payload: payload.try_into()? });
            }
            Ok(entries)
        })
    }
}

/// First index and the one behind the last.
fn ends(range: &impl RangeBounds<u64>) -> (u64, u64) {
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

impl RaftLogReader<Kind> for Log {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + fmt::Debug + Send>(
        &mut self,
        range: R,
    ) -> io::Result<Vec<Entry>> {
        let (start, end) = ends(&range);
        if start >= end {
            return Ok(Vec::new());
        }
        self.entries(start, end, usize::MAX)
    }

    async fn entries_stream<R>(&mut self, range: R) -> impl Stream<Item = io::Result<Entry>> + Send
    where
        R: RangeBounds<u64> + Clone + fmt::Debug + Send,
    {
        // In portions: what is to be applied after a long absence need not be in memory at once.
        let (start, end) = ends(&range);
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

impl RaftLogStorage<Kind> for Log {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> io::Result<LogState<Kind>> {
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
        self.change_durably(|wal| wal.save_vote(Ballot::from(vote)).map(drop)).await
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let Some(committed) = committed.map(Id::from) else { return Ok(()) };
        if crate::sabotage::is("leader-restore") {
            return Ok(());
        }
        self.change(|wal| {
            // Ahead of the log while a snapshot is adopted; behind when it is told again. Both say nothing new.
            let state = wal.log_state();
            if state.last() < Some(&committed) || state.committed() >= Some(&committed) {
                return Ok(());
            }
            // It goes to the file with the next entries, or when the log is closed: to wake the writer for it alone
            // would cost each write a second turn of that thread. What a crash takes of it a leader tells again.
            wal.commit(committed).map(drop)
        })
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        self.read(|wal| Ok(wal.log_state().committed().copied().map(LogId::from)))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Kind>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let entry = |entry: Entry| (Id::from(entry.log_id), Payload::from(&entry.payload));
        let entries: Vec<_> = entries.into_iter().map(entry).collect();
        let last = entries.last().map(|(id, _)| id.index);
        let listener = Arc::clone(&self.listener);
        self.change(|wal| {
            wal.append(entries)?;
            if crate::sabotage::is("skip-fsync") {
                wal.flush(false, None)?;
                let done = Done::Entries { last, listener, callback };
                raft_log::Callback::send(done, Ok(()));
                return Ok(());
            }
            wal.flush(true, Some(Done::Entries { last, listener, callback }))
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
            let mut upto = Id::from(upto);
            if crate::sabotage::is("purge-past-snapshot") {
                upto = wal.log_state().last().copied().map_or(upto, |last| last.max(upto));
            }
            // Beyond its end the log is as long as the snapshot that was adopted.
            let last = (wal.log_state().last() < Some(&upto)).then_some(upto.index);
            wal.purge(upto)?;
            let mark = wal.log_state().user_data.clone();
            if let Some(mark) = mark.filter(|mark| mark.installing.is_some_and(|at| at <= upto)) {
                wal.save_user_data(Some(Mark { installing: None, ..mark }))?;
            }
            // Only a flush that syncs lets raft-log remove files, on its own thread.
            let callback = IOFlushed::noop();
            wal.flush(true, Some(Done::Entries { last, listener, callback }))
        })
    }
}

#[cfg(test)]
mod tests;
