//! What is known of the log: bytes in memory and on the disk, and what waits for the disk.

use std::{sync::PoisonError, time::Duration};

use raft_log::RaftLog;

use super::{Log, WalTypes};

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
    /// For how long the log has not moved; zero while it moves.
    pub stalled: Duration,
}

impl Log {
    /// The figures. They are asked for while a disk hangs, too, so they wait for nobody: while a change of the log waits
    /// for the disk, what only raft-log knows is as it was before. What can't be read any more, because the log is
    /// closed, is zero.
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
