//! What is known of the log: bytes in memory and on the disk, and what waits for the disk.

use std::time::Duration;

use super::Log;

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
    /// The figures. What can't be read any more, because the log is closed, is zero.
    pub(in crate::raft) async fn figures(&self) -> LogFigures {
        let (_, recent_bytes) = self.shared.recent().figures();
        let (unflushed_writes, unflushed_bytes) = self.shared.writes.in_flight();
        let seen = self.look(|wal| (wal.stat().payload_cache_size, wal.on_disk_size())).await;
        let (cache_bytes, disk_bytes) = seen.unwrap_or_default();
        let stalled = self.stalled().unwrap_or_default();
        LogFigures { recent_bytes, cache_bytes, disk_bytes, unflushed_writes, unflushed_bytes, stalled }
    }
}
