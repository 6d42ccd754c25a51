//! Makes backups: snapshot files of a state with the requested consistency.
//!
//! A backup writes the whole state, and its file takes disk space until it is sent, even after a newer snapshot has
//! replaced it. So a node makes one backup at a time, and a client that reads too slowly loses its backup.
//!
//! With recipients in the settings, the node encrypts and signs each piece as it is read, so no unencrypted backup leaves
//! the node.
//!
//! **Invariant:** a backup never delays writes: the snapshot is taken of an immutable state, and encryption runs in the CPU
//! pool.

use crate::{context::Context, freshness::Freshness};
use std::{io, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::AsyncReadExt as _,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, timeout_at},
};

use super::{
    cpu_pool::Weight,
    request::{Consistency, Principal, Refusal},
};
use concord_model::{
    access_key::Verb,
    limits::{BACKUP_RATE_MIN, BACKUPS_MAX},
    record::Revision,
};
use concord_storage::{SnapshotContent, snapshot::envelope::SealedStream};

/// Bytes of one chunk of the file.
const CHUNK_BYTES: usize = 256 << 10;
/// How long sending a backup may take, in addition to the time for its bytes.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// A snapshot file, open for reading. It stays readable when a newer one replaces it.
#[derive(Debug)]
pub struct Backup {
    /// The state's revision.
    pub revision: Revision,
    /// The length in bytes, if it is not encrypted.
    pub length: Option<u64>,
    content_bytes: u64,
    file: SnapshotContent,
    sealing: Option<SealedStream>,
    backups: Arc<Backups>,
    permit: OwnedSemaphorePermit,
}

/// Makes backups, one at a time.
#[derive(Debug)]
pub struct Backups {
    pub(crate) cx: Arc<Context>,
    pub(crate) freshness: Arc<Freshness>,
    pub(crate) permits: Arc<Semaphore>,
}

impl Backups {
    pub(crate) fn new(cx: &Arc<Context>, freshness: &Arc<Freshness>) -> Self {
        Self {
            cx: Arc::clone(cx),
            freshness: Arc::clone(freshness),
            permits: Arc::new(Semaphore::new(BACKUPS_MAX)),
        }
    }

    /// The snapshot file of a state that satisfies the consistency.
    ///
    /// # Errors
    /// When the principal lacks the permission, another backup is in progress, no such state can be confirmed in time, or the
    /// file can't be written.
    pub async fn backup(
        self: &Arc<Self>,
        principal: &Principal,
        consistency: Consistency,
    ) -> Result<Backup, Refusal> {
        principal.authorize(Verb::Backup, None)?;
        let busy = |_| Refusal::LimitReached("this node is making a backup, and makes one at a time".into());
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(busy)?;
        self.freshness.view(consistency).await?;
        let consensus = self.cx.consensus_or_refusal()?.clone();
        // In a task of its own: if the client disconnects, the permit is held until the file is written.
        let made = tokio::spawn(async move { (consensus.fresh_snapshot().await, permit) }).await;
        let (made, permit) = made.map_err(|error| Refusal::Internal(error.to_string()))?;
        let (snapshot, file) = made.map_err(Refusal::Internal)?;
        let sealing = self.cx.options.backup_envelope.as_ref().map(|envelope| envelope.begin_stream());
        let sealing = sealing.transpose().map_err(|error| Refusal::Internal(error.to_string()))?;
        let content_bytes = snapshot.bytes;
        let length = sealing.is_none().then_some(content_bytes);
        Ok(Backup {
            revision: snapshot.revision,
            length,
            content_bytes,
            file,
            sealing,
            backups: Arc::clone(self),
            permit,
        })
    }
}

impl Backup {
    /// Sends the backup in chunks, as fast as they are taken. They end early if that is too slow.
    #[must_use]
    pub fn send(self) -> mpsc::Receiver<io::Result<Bytes>> {
        let (chunks, taken) = mpsc::channel(1);
        let deadline =
            Instant::now() + SEND_TIMEOUT + Duration::from_secs(self.content_bytes / BACKUP_RATE_MIN);
        tokio::spawn(async move {
            let Self { content_bytes, mut file, mut sealing, backups, permit, .. } = self;
            let (mut left, mut held) = (content_bytes, Some(permit));
            while left > 0 {
                let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
                let read = match file.read_buf(&mut chunk).await {
                    Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(read) => Ok(read as u64),
                    Err(error) => Err(error),
                };
                left = read.as_ref().map_or(0, |read| left.saturating_sub(*read));
                let made = match (read, sealing.take()) {
                    (Err(error), _) => Err(error),
                    (Ok(_), None) => Ok(chunk.freeze()),
                    (Ok(_), Some(stream)) => {
                        let sealed = backups.seal(stream, chunk.freeze(), left == 0, deadline).await;
                        sealed.map(|(stream, bytes)| {
                            sealing = stream;
                            bytes
                        })
                    }
                };
                if left > 0 && made.as_ref().is_ok_and(Bytes::is_empty) {
                    // The cipher needs more input.
                    continue;
                }
                if made.is_err() {
                    left = 0;
                }
                if left == 0 {
                    // The client has everything, so the next backup may begin.
                    held.take();
                }
                let sent = timeout_at(deadline, chunks.send(made)).await;
                if !matches!(sent, Ok(Ok(()))) {
                    tracing::info!("a backup was not read to its end in time");
                    return;
                }
            }
        });
        taken
    }
}

impl Backups {
    /// Encrypts the next piece of a backup in the CPU pool. Returns the stream for the following pieces, unless this was the
    /// last, and the encrypted bytes.
    async fn seal(
        &self,
        mut stream: SealedStream,
        content: Bytes,
        is_last: bool,
        deadline: Instant,
    ) -> io::Result<(Option<SealedStream>, Bytes)> {
        let work = move |_: &_| {
            let mut bytes = stream.push(&content)?;
            if !is_last {
                return Ok((Some(stream), bytes.into()));
            }
            bytes.extend(stream.finish()?);
            Ok((None, bytes.into()))
        };
        let sealed = self.cx.cpu_pool.run(Weight::Short, deadline, work).await;
        sealed.map_err(|refusal| io::Error::other(format!("{refusal:?}")))?
    }
}
