//! raft-log behind its lock, and which of its changes may wait for the disk.
//!
//! raft-log only queues writes for a thread of its own. It waits for the disk in two cases: its queue is full, or a file is
//! full and the next one must be created. Both are known beforehand.
//!
//! **Invariant:** `try_change` never waits for the disk. Everything else here may, and runs on threads for blocking work.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError, RwLock, RwLockWriteGuard, TryLockError},
};

use openraft::EntryPayload;
use raft_log::RaftLog;

use super::{CHUNK_BYTES_MAX, CHUNK_RECORDS_MAX, WalTypes, progress::LogProgress, recent::RecentEntries};
use crate::{
    codec::LogPayload,
    entry_times::EntryTimes,
    types::{Entry, Membership},
    wire::WireLogId,
};
use concord_storage::at_rest::{AtRest, FileKey, KeyPurpose};

/// Bytes of a record in a file in addition to its payload, at most.
const RECORD_OVERHEAD_BYTES: usize = 128;
/// Bytes that are read from the files before the lock is released: a few hundred microseconds of a disk, which is how
/// long an append may have to wait for it.
const LOCKED_READ_BYTES_MAX: usize = 128 << 10;
/// With more requests in flight than these, another one may have to wait: raft-log's queue takes 1024.
const REQUESTS_UNBLOCKED_MAX: u64 = 512;
/// The same in bytes: raft-log's queue takes 32 MiB, which is more by one entry of the greatest size.
const QUEUED_BYTES_UNBLOCKED_MAX: usize = 12 << 20;

/// What the newest file has room for, at least. A change beyond it begins a new file, which waits for the disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChunkRoom {
    records: usize,
    bytes: usize,
}

impl ChunkRoom {
    pub(super) fn of(wal: &RaftLog<WalTypes>) -> Self {
        let chunk = wal.stat().open_chunk;
        let used = |figure: u64| usize::try_from(figure).unwrap_or(usize::MAX);
        Self {
            records: CHUNK_RECORDS_MAX.saturating_sub(used(chunk.records_count)),
            bytes: CHUNK_BYTES_MAX.saturating_sub(used(chunk.size)),
        }
    }

    /// Takes the room of so many records with so many bytes of payload, if it is there.
    fn take(&mut self, records: usize, bytes: usize) -> bool {
        let bytes = bytes.saturating_add(records.saturating_mul(RECORD_OVERHEAD_BYTES));
        let fits = records < self.records && bytes < self.bytes;
        if fits {
            (self.records, self.bytes) = (self.records - records, self.bytes - bytes);
        }
        fits
    }
}

/// raft-log's log while it is open.
pub(super) struct OpenedLog {
    pub(super) wal: RaftLog<WalTypes>,
    pub(super) room: ChunkRoom,
}

/// The keys of the log in an encrypted directory.
#[derive(Debug, Default)]
pub(super) struct LogKeys {
    key: Option<FileKey>,
    /// Whether new entries are encrypted.
    seals: bool,
    /// Whether an unencrypted entry may be one of this log.
    allows_plain: bool,
}

impl LogKeys {
    pub(super) fn new(at_rest: &AtRest) -> Self {
        let key = at_rest.file_key(KeyPurpose::Log, &[]);
        Self { key, seals: at_rest.seals(), allows_plain: at_rest.allows_plain() }
    }

    /// The payload of an entry as the log holds it.
    pub(super) fn seal(&self, id: &WireLogId, payload: LogPayload) -> LogPayload {
        match &self.key {
            Some(key) if self.seals => payload.seal(key, id),
            Some(_) | None => payload,
        }
    }

    /// The payload of an entry as it was appended.
    pub(super) fn open(&self, id: &WireLogId, payload: LogPayload) -> io::Result<LogPayload> {
        payload.open(self.key.as_ref(), id, self.allows_plain)
    }
}

/// What the clones of a log share.
pub(super) struct SharedLog {
    /// `None` once it is closed. Whoever holds the lock may wait for the disk, so a worker only tries to take it.
    pub(super) opened: Mutex<Option<OpenedLog>>,
    pub(super) keys: LogKeys,
    /// Locked for work in memory only.
    pub(super) recent: RwLock<RecentEntries>,
    pub(super) writes: Arc<LogProgress>,
    /// When the newest entries were appended, flushed and committed.
    pub(super) entries: Arc<EntryTimes>,
    pub(super) reads: Arc<LogProgress>,
    /// Bytes of raft-log's cache and of the files when they were asked for last. Locked for that alone.
    pub(super) last_seen: Mutex<(u64, u64)>,
}

impl SharedLog {
    pub(super) fn new(wal: RaftLog<WalTypes>, keys: LogKeys) -> Self {
        let next = wal.log_state().last().or(wal.log_state().purged()).map_or(0, |id| id.index + 1);
        Self {
            opened: Mutex::new(Some(OpenedLog { room: ChunkRoom::of(&wal), wal })),
            keys,
            recent: RwLock::new(RecentEntries::after(next)),
            writes: Arc::default(),
            entries: Arc::default(),
            reads: Arc::default(),
            last_seen: Mutex::default(),
        }
    }

    /// Changes the log. Blocking.
    pub(super) fn change<T>(
        &self,
        change: impl FnOnce(&mut RaftLog<WalTypes>) -> io::Result<T>,
    ) -> io::Result<T> {
        // raft-log's state stays consistent when it refuses a record, so a poisoned lock can be used.
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = opened.as_mut().ok_or_else(closed)?;
        let changed = change(&mut opened.wal);
        opened.room = ChunkRoom::of(&opened.wal);
        changed
    }

    /// Makes a change that adds so many records with so many bytes, if that does not wait: nobody holds the lock, the
    /// newest file has room, and so has raft-log's queue. Otherwise it returns the change.
    pub(super) fn try_change<T, F>(&self, records: usize, bytes: usize, change: F) -> Result<io::Result<T>, F>
    where
        F: FnOnce(&mut RaftLog<WalTypes>) -> io::Result<T>,
    {
        let (requests, queued) = self.writes.in_flight();
        if requests > REQUESTS_UNBLOCKED_MAX || queued > QUEUED_BYTES_UNBLOCKED_MAX {
            return Err(change);
        }
        let mut opened = match self.opened.try_lock() {
            Ok(opened) => opened,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(change),
        };
        let Some(opened) = opened.as_mut() else { return Ok(Err(closed())) };
        if opened.room.take(records, bytes) { Ok(change(&mut opened.wal)) } else { Err(change) }
    }

    /// Reads what raft-log knows. Blocking.
    pub(super) fn read<T>(&self, read: impl FnOnce(&RaftLog<WalTypes>) -> io::Result<T>) -> io::Result<T> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.as_ref().map_or_else(|| Err(closed()), |opened| read(&opened.wal))
    }

    /// Entries from `start` to before `end` from the files, ending early before they are longer than `bytes_max`, at
    /// least one; and the index before which there are no others. Blocking. It holds the lock for a little at a time,
    /// so that an append in between does not wait for long.
    pub(super) fn read_files(&self, start: u64, end: u64, bytes_max: usize) -> io::Result<(Vec<Entry>, u64)> {
        let _operation = self.reads.begin(0);
        let (mut entries, mut length, mut next) = (Vec::new(), 0_usize, start);
        loop {
            let portion = self.read(|wal| {
                let (mut portion, mut bytes) = (Vec::new(), 0_usize);
                for record in wal.read(next, end) {
                    let (id, payload) = record?;
                    bytes += payload.bytes.len();
                    portion.push((id, payload));
                    if bytes >= LOCKED_READ_BYTES_MAX {
                        break;
                    }
                }
                Ok(portion)
            })?;
            if portion.is_empty() {
                return Ok((entries, end));
            }
            for (id, payload) in portion {
                length += payload.bytes.len();
                if length > bytes_max && !entries.is_empty() {
                    return Ok((entries, id.index));
                }
                next = id.index.saturating_add(1);
                let payload = self.keys.open(&id, payload)?.try_into()?;
                entries.push(Entry { log_id: id.into(), payload });
            }
        }
    }

    /// The newest membership entry. Reads the whole log. Blocking.
    pub(super) fn newest_membership(&self) -> io::Result<Option<Membership>> {
        self.read(|wal| {
            let mut newest = None;
            for entry in wal.read(0, u64::MAX) {
                let (id, payload) = entry?;
                if let EntryPayload::Membership(members) = self.keys.open(&id, payload)?.try_into()? {
                    newest = Some(members);
                }
            }
            Ok(newest)
        })
    }

    pub(super) fn recent(&self) -> RwLockWriteGuard<'_, RecentEntries> {
        self.recent.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn closed() -> io::Error {
    io::Error::other("the log is closed")
}
