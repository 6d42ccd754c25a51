//! When a snapshot is built and the log purged, and how one is received.
//!
//! openraft's own policy counts entries; this one counts bytes. A snapshot is due when the log since the last one
//! weighs more than the records in it, both before compression, so the cost of snapshots is proportional to the writes,
//! whatever the size of the state and however well it is compressed. It is
//! built outside openraft from one immutable state, while writes go on; openraft gets the finished file.
//!
//! **Invariants**
//! 1. A failure to build is logged and retried; it never stops the node.
//! 2. The log is purged only up to the older of the two retained snapshots, and not while one is being sent to a
//!    member (bounded).
//! 3. A received file is decoded whole before openraft gets it: one that can't be installed must not reach
//!    `install_snapshot`, whose failure is fatal. The sender keeps its state and gets the reason; it decodes its
//!    own file too, and builds another one if it can't.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};

use super::{
    Consensus,
    figures::count,
    log::Log,
    machine::{AppliedPublisher, AppliedState},
    network::NetworkContext,
    types::Raft,
    wire::SnapshotHeader,
};
use concord_net::ReceiveError;
use concord_storage::{IncomingSnapshot, Position, SnapshotContent, SnapshotFile, Store};

/// How often the sizes are compared: a snapshot half a second late costs nothing.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Pause after a failure to build: a full disk is not freed in less.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// How long a purge waits while a snapshot is being sent to a member.
const PURGE_WAIT_MAX: Duration = Duration::from_secs(30);
/// Longest pause between two chunks of a received snapshot.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(30);

/// Builds snapshots when they are due and purges the log up to them.
pub(super) struct SnapshotScheduler {
    pub(super) raft: Raft,
    pub(super) publisher: Arc<AppliedPublisher>,
    pub(super) store: Store,
    pub(super) context: Arc<NetworkContext>,
    pub(super) log: Log,
    /// Least bytes of log between two snapshots.
    pub(super) log_bytes_min: u64,
}

impl SnapshotScheduler {
    /// Runs until openraft stops, whose reason another task reports.
    pub(super) async fn run(self) -> Result<(), String> {
        // Entries that the log held at start may not be in the newest snapshot; its files are at least as large.
        let mut log_bytes_at_start = self.log.bytes().await;
        // The counter of applied bytes at the last snapshot.
        let mut applied_bytes_before = 0;
        loop {
            let damaged = tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => false,
                () = self.context.rebuild.notified() => true,
            };
            let applied_bytes = self.publisher.applied_bytes.load(Ordering::Relaxed);
            let log_bytes =
                log_bytes_at_start.saturating_add(applied_bytes.saturating_sub(applied_bytes_before));
            if !damaged && !self.is_due(log_bytes) {
                continue;
            }
            match self.build().await {
                Ok(()) => {
                    (log_bytes_at_start, applied_bytes_before) = (0, applied_bytes);
                    if !self.purge().await {
                        return Ok(());
                    }
                }
                Err(error) => {
                    count(&self.context.counts.snapshots_failed);
                    tracing::error!(%error, "failed to build a snapshot; will retry");
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
            }
        }
    }

    /// Whether so many bytes of log since the last snapshot make the next one due.
    fn is_due(&self, log_bytes: u64) -> bool {
        let newest = self.store.current_snapshot();
        let applied = self.publisher.applied.load().index();
        let is_newer = newest.as_ref().is_none_or(|file| applied > file.position.index);
        is_newer && log_bytes >= self.log_bytes_min.max(newest.map_or(0, |file| file.content_bytes))
    }

    async fn build(&self) -> Result<(), String> {
        let (applied, store) = (self.publisher.applied.load_full(), self.store.clone());
        let begun = std::time::Instant::now();
        let built = crate::blocking::blocking(move || build(&store, &applied)).await;
        let file = built.map_err(|error| error.to_string())??;
        self.context.counts.snapshot_build_times.observe(begun.elapsed());
        count(&self.context.counts.snapshots_built);
        tracing::info!(revision = file.revision, bytes = file.bytes, "built a snapshot");
        Ok(())
    }

    /// Gives openraft the snapshot and lets it purge the log. Returns whether openraft still runs.
    async fn purge(&self) -> bool {
        if self.raft.trigger().snapshot().await.is_err() {
            return false;
        }
        let until = tokio::time::Instant::now() + PURGE_WAIT_MAX;
        while self.context.snapshots_in_flight.load(Ordering::Relaxed) > 0
            && tokio::time::Instant::now() < until
        {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        match self.store.purge_limit() {
            0 => true,
            index => self.raft.trigger().purge_log(index).await.is_ok(),
        }
    }
}

impl Consensus {
    /// A snapshot of the state that is applied now, or of a later one, and its content.
    ///
    /// # Errors
    /// When the snapshot can't be written or opened.
    pub async fn fresh_snapshot(&self) -> Result<(SnapshotFile, SnapshotContent), String> {
        let (applied, store) = (self.inner.publisher.applied.load_full(), self.inner.store.clone());
        loop {
            let (store, applied) = (store.clone(), applied.clone());
            let built = crate::blocking::blocking(move || build(&store, &applied)).await;
            let file = built.map_err(|error| error.to_string())??;
            match self.inner.store.content(&file).await {
                Ok(content) => return Ok((file, content)),
                // Two newer ones have replaced it meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

fn build(store: &Store, applied: &AppliedState) -> Result<SnapshotFile, String> {
    store.build_snapshot(&applied.state, &applied.position()).map_err(|error| error.to_string())
}

/// Writes a received snapshot to a file of the store, durably, and verifies it.
pub(super) async fn receive(
    store: &Store,
    header: &SnapshotHeader,
    body: BoxStream<'static, io::Result<Bytes>>,
) -> Result<SnapshotFile, ReceiveError> {
    let incoming = store.receive().await.map_err(|error| ReceiveError::Failed(error.to_string()))?;
    let path = incoming.path().to_owned();
    let mut unclaimed = Unclaimed(Some(path.clone()));
    let position = Position { index: header.index, raft_meta: header.metadata.clone() };
    let verified = match write(incoming, header.bytes, body).await {
        Ok(()) => {
            let (store, path, digest) = (store.clone(), path.clone(), header.digest);
            let verify = crate::blocking::blocking(move || store.verify(&path, &position, digest)).await;
            verify
                .map_err(|error| error.to_string())
                .and_then(|whole| whole.map_err(|error| error.to_string()))
        }
        Err(error) => Err(error.to_string()),
    };
    if let Err(why) = &verified {
        tracing::error!(%why, "rejected a received snapshot; this node keeps its state");
    } else {
        unclaimed.0 = None;
    }
    verified.map_err(ReceiveError::Failed)
}

/// A file that is removed unless somebody takes it over, also when the sender hangs up and nobody waits for the verdict.
struct Unclaimed(Option<PathBuf>);

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(path) = self.0.take()
            && let Err(error) = std::fs::remove_file(&path)
        {
            tracing::warn!(%error, path = %path.display(), "failed to remove a received snapshot");
        }
    }
}

async fn write(
    mut file: IncomingSnapshot,
    bytes: u64,
    mut body: BoxStream<'static, io::Result<Bytes>>,
) -> io::Result<()> {
    let mut length = 0;
    loop {
        let chunk = tokio::time::timeout(CHUNK_TIMEOUT, body.next()).await;
        let chunk = chunk.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the snapshot stalled"))?;
        let Some(chunk) = chunk.transpose()? else { break };
        length += u64::try_from(chunk.len()).unwrap_or(u64::MAX);
        if length > bytes {
            break;
        }
        file.write(&chunk).await?;
    }
    if length != bytes {
        let text = format!("the snapshot has at least {length} bytes, but its header says {bytes}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    file.finish().await
}
