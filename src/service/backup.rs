//! A backup: the snapshot file of a state that contains every write acknowledged before the request, at the consistency
//! that the caller asks for.
//!
//! A backup writes the whole state, and its file takes that space until it is sent, even when a newer snapshot has
//! replaced it. So a node makes one at a time, and a caller that reads it too slowly loses it.
//!
//! **Invariant:** a backup never delays writes: the snapshot is taken of an immutable state.

use std::{io, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::AsyncReadExt as _,
    sync::{OwnedSemaphorePermit, mpsc},
    time::{Instant, timeout_at},
};

use super::{
    Service,
    request::{Consistency, Principal, Refusal},
};
use crate::{
    model::{access_key::Verb, limits::BACKUP_RATE_MIN, record::Revision},
    store::SnapshotContent,
};

/// Bytes of one chunk of the file.
const CHUNK_BYTES: usize = 256 << 10;
/// How long a backup may take to be sent beside its bytes.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// A snapshot file, open for reading. It stays readable when a newer one replaces it.
#[derive(Debug)]
pub struct Backup {
    /// The state's revision.
    pub revision: Revision,
    /// The length of its content.
    pub bytes: u64,
    file: SnapshotContent,
    permit: OwnedSemaphorePermit,
}

impl Service {
    /// The snapshot file of a state that satisfies the consistency.
    ///
    /// # Errors
    /// When the principal may not; when another backup is being made, no such state can be confirmed in time, or the file can't be written.
    pub async fn backup(&self, principal: &Principal, consistency: Consistency) -> Result<Backup, Refusal> {
        principal.authorize(Verb::Backup, None)?;
        let busy = |_| Refusal::LimitReached("this node is making a backup, and makes one at a time".into());
        let permit = Arc::clone(&self.inner.backups).try_acquire_owned().map_err(busy)?;
        self.view(consistency).await?;
        let consensus = self.consensus_or_refusal()?.clone();
        // In a task of its own: a caller that leaves must not make room for the next while this one is being written.
        let made = tokio::spawn(async move { (consensus.fresh_snapshot().await, permit) }).await;
        let (made, permit) = made.map_err(|error| Refusal::Internal(error.to_string()))?;
        let (snapshot, file) = made.map_err(Refusal::Internal)?;
        Ok(Backup { revision: snapshot.revision, bytes: snapshot.bytes, file, permit })
    }
}

impl Backup {
    /// The chunks of the file, as fast as they are taken. They end early when that is too slow.
    #[must_use]
    pub fn send(self) -> mpsc::Receiver<io::Result<Bytes>> {
        let (chunks, taken) = mpsc::channel(1);
        let deadline = Instant::now() + SEND_TIMEOUT + Duration::from_secs(self.bytes / BACKUP_RATE_MIN);
        tokio::spawn(async move {
            let Self { bytes, mut file, permit, .. } = self;
            let (mut left, mut held) = (bytes, Some(permit));
            while left > 0 {
                let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
                let read = match file.read_buf(&mut chunk).await {
                    Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(read) => Ok(read as u64),
                    Err(error) => Err(error),
                };
                left = read.as_ref().map_or(0, |read| left.saturating_sub(*read));
                if left == 0 {
                    // A caller that has all of it may ask for the next one.
                    held.take();
                }
                let sent = timeout_at(deadline, chunks.send(read.map(|_| chunk.freeze()))).await;
                if !matches!(sent, Ok(Ok(()))) {
                    tracing::info!("a backup was not read to its end in time");
                    return;
                }
            }
        });
        taken
    }
}
