//! When a snapshot is built and the log purged, and how one is received.
//!
//! openraft's own policy counts entries; ours weighs bytes: a snapshot is due when the log since the last one
//! outweighs it, so the cost of snapshots stays in proportion to the writes, whatever the size of the state. It is
//! built outside openraft from one immutable state, while writes go on; openraft is told of the finished file.
//!
//! **Invariants**
//! 1. A failure to build is logged and tried again; it never stops the node.
//! 2. The log is purged only up to the older of two kept snapshots, and not while a member receives one (bounded).
//! 3. A received file is whole before openraft hears of it: a damaged one must not reach `install_snapshot`,
//!    whose failure is fatal.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt, stream::BoxStream};
use tokio::io::AsyncWriteExt;

use super::{
    Consensus,
    log::Log,
    machine::{Applied, AppliedPublisher},
    network::Links,
    types::Raft,
    wire::Head,
};
use crate::{
    peer::ReceiveError,
    store::{Position, SnapshotFile, Store},
};

/// How often the weights are compared: a snapshot half a second late costs nothing.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How long to wait after a failure to build: a full disk does not clear in less.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// How long a purge waits for a member that is being sent a snapshot.
const PURGE_WAIT_MAX: Duration = Duration::from_secs(30);
/// Longest pause in a snapshot that is being received.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(30);

/// Builds snapshots when they are due and purges the log behind them.
pub(super) struct Keeper {
    pub(super) raft: Raft,
    pub(super) publisher: Arc<AppliedPublisher>,
    pub(super) store: Store,
    pub(super) links: Arc<Links>,
    pub(super) log: Log,
    /// Bytes of log after which a snapshot is due at the earliest.
    pub(super) log_bytes: u64,
}

impl Keeper {
    /// Works until openraft stops.
    pub(super) async fn work(self) {
        // What the log held at start may not be in the newest snapshot; its files weigh at least as much.
        let mut weighed_from = 0;
        let mut before = self.log.bytes();
        loop {
            let damaged = tokio::select! {
                () = tokio::time::sleep(LOOK_INTERVAL) => false,
                () = self.links.rebuild.notified() => true,
            };
            let applied_bytes = self.publisher.bytes.load(Ordering::Relaxed);
            let since = before.saturating_add(applied_bytes.saturating_sub(weighed_from));
            if !damaged && !self.is_due(since) {
                continue;
            }
            match self.build().await {
                Ok(()) => {
                    (before, weighed_from) = (0, applied_bytes);
                    if !self.purge().await {
                        return;
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "a snapshot could not be built; trying again later");
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
            }
        }
    }

    fn is_due(&self, since: u64) -> bool {
        let newest = self.store.current_snapshot();
        let is_newer = newest
            .as_ref()
            .is_none_or(|file| self.publisher.applied.load().state.revision() > file.position.index);
        is_newer && since >= self.log_bytes.max(newest.map_or(0, |file| file.bytes))
    }

    async fn build(&self) -> Result<(), String> {
        let (applied, store) = (self.publisher.applied.load_full(), self.store.clone());
        let built = tokio::task::spawn_blocking(move || build(&store, &applied)).await;
        let file = built.map_err(|error| error.to_string())??;
        tracing::info!(revision = file.position.index, bytes = file.bytes, "built a snapshot");
        Ok(())
    }

    /// Tells openraft of the snapshot and lets it purge. Whether openraft still runs.
    async fn purge(&self) -> bool {
        if self.raft.trigger().snapshot().await.is_err() {
            return false;
        }
        let until = tokio::time::Instant::now() + PURGE_WAIT_MAX;
        while self.links.sending.load(Ordering::Relaxed) > 0 && tokio::time::Instant::now() < until {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        match self.store.purge_limit() {
            0 => true,
            compaction_revision => self.raft.trigger().purge_log(compaction_revision).await.is_ok(),
        }
    }
}

impl Consensus {
    /// A snapshot of what is applied now or later, and its file, open.
    ///
    /// # Errors
    /// When the disk refuses.
    pub async fn fresh_snapshot(&self) -> Result<(SnapshotFile, tokio::fs::File), String> {
        let (applied, store) = (self.inner.publisher.applied.load_full(), self.inner.store.clone());
        let built = tokio::task::spawn_blocking(move || {
            let file = build(&store, &applied)?;
            let opened = std::fs::File::open(&file.path);
            opened.map(|opened| (file, opened)).map_err(|error| error.to_string())
        });
        let (file, opened) = built.await.map_err(|error| error.to_string())??;
        Ok((file, tokio::fs::File::from_std(opened)))
    }
}

fn build(store: &Store, applied: &Applied) -> Result<SnapshotFile, String> {
    store.build_snapshot(&applied.state, &applied.position()).map_err(|error| error.to_string())
}

/// Writes a snapshot that comes as a stream to a file of the store's, durably, and checks that it is whole.
pub(super) async fn receive(
    store: &Store,
    head: &Head,
    body: BoxStream<'static, io::Result<Bytes>>,
) -> Result<SnapshotFile, ReceiveError> {
    let path = store.incoming().map_err(|error| ReceiveError::Failed(error.to_string()))?;
    let position = Position { index: head.index, raft_meta: head.stamp.clone() };
    let file = SnapshotFile { path, position, bytes: head.bytes, digest: head.digest };
    let received = write(&file, body).await;
    let checked = match received {
        Ok(()) => {
            let (store, file) = (store.clone(), file.clone());
            let verify = tokio::task::spawn_blocking(move || store.verify(&file)).await;
            verify
                .map_err(|error| error.to_string())
                .and_then(|whole| whole.map_err(|error| error.to_string()))
        }
        Err(error) => Err(error.to_string()),
    };
    if let Err(why) = checked {
        if let Err(error) = tokio::fs::remove_file(&file.path).await {
            tracing::warn!(%error, path = %file.path.display(), "a broken snapshot could not be removed");
        }
        return Err(ReceiveError::Failed(why));
    }
    Ok(file)
}

async fn write(to: &SnapshotFile, mut body: BoxStream<'static, io::Result<Bytes>>) -> io::Result<()> {
    let mut file = tokio::fs::File::create(&to.path).await?;
    let mut length = 0;
    loop {
        let chunk = tokio::time::timeout(CHUNK_TIMEOUT, body.next()).await;
        let chunk = chunk.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the snapshot stalled"))?;
        let Some(chunk) = chunk.transpose()? else { break };
        length += u64::try_from(chunk.len()).unwrap_or(u64::MAX);
        if length > to.bytes {
            break;
        }
        file.write_all(&chunk).await?;
    }
    if length != to.bytes {
        let text = format!("the snapshot has {length} bytes or more, its head says {}", to.bytes);
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    file.flush().await?;
    file.sync_all().await
}
