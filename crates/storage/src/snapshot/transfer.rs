//! Snapshot files on their way between this node's disk and a connection.
//!
//! A node sends the content of a snapshot, the same bytes whether its directory is encrypted or not: each node has keys
//! of its own, and the connection protects the bytes on their way. The receiver encrypts the content before it reaches
//! the disk.
//!
//! **Invariant:** the stream has the content as it was written, or ends with an error.

use std::{
    io,
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll, ready},
};

#[cfg(not(feature = "simulation"))]
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _, ReadBuf};

#[cfg(feature = "simulation")]
use crate::inline_file::File;

use crate::at_rest::{
    AtRest, KeyPurpose,
    stream::{self, FileHead, Opener, Sealer},
};

/// The content of a snapshot file that is read. The file stays readable when a newer one replaces it.
#[derive(Debug)]
pub struct SnapshotContent {
    file: File,
    sealed: Option<Sealed>,
}

/// How far an encrypted file has been read.
#[derive(Debug)]
struct Sealed {
    opener: Opener,
    /// Bytes from the disk: a chunk, and then the first of the next one, which shows that there is a next one.
    read: Vec<u8>,
    /// The decrypted chunk, and how much of it was taken.
    chunk: Vec<u8>,
    taken: usize,
    ended: bool,
}

impl SnapshotContent {
    pub(crate) async fn open(path: &Path, at_rest: &AtRest) -> io::Result<Self> {
        let mut file = File::open(path).await?;
        let mut head = Vec::with_capacity(stream::HEAD_BYTES);
        (&mut file).take(stream::HEAD_BYTES as u64).read_to_end(&mut head).await?;
        let sealed = match FileHead::parse(&head, at_rest, KeyPurpose::Snapshot)? {
            FileHead::Plain => {
                file.rewind().await?;
                None
            }
            FileHead::Sealed(opener) => Some(Sealed {
                opener,
                read: Vec::with_capacity(Opener::CHUNK_BYTES + 1),
                chunk: Vec::new(),
                taken: 0,
                ended: false,
            }),
        };
        Ok(Self { file, sealed })
    }
}

impl Sealed {
    /// Reads and decrypts the next chunk.
    fn poll_fill(&mut self, file: &mut File, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let start = self.read.len();
            self.read.resize(Opener::CHUNK_BYTES + 1, 0);
            let mut buffer = ReadBuf::new(&mut self.read[start..]);
            let polled = Pin::new(&mut *file).poll_read(context, &mut buffer);
            let count = buffer.filled().len();
            self.read.truncate(start + count);
            ready!(polled)?;
            let is_full = self.read.len() > Opener::CHUNK_BYTES;
            if count > 0 && !is_full {
                continue;
            }
            let next = if is_full { self.read.split_off(Opener::CHUNK_BYTES) } else { Vec::new() };
            self.chunk = std::mem::replace(&mut self.read, next);
            self.taken = 0;
            self.ended = !is_full;
            return Poll::Ready(self.opener.open(&mut self.chunk, !is_full));
        }
    }
}

impl AsyncRead for SnapshotContent {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { file, sealed } = self.get_mut();
        let Some(sealed) = sealed else { return Pin::new(file).poll_read(context, to) };
        while sealed.taken == sealed.chunk.len() {
            if sealed.ended || to.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            ready!(sealed.poll_fill(file, context))?;
        }
        let count = to.remaining().min(sealed.chunk.len() - sealed.taken);
        to.put_slice(&sealed.chunk[sealed.taken..sealed.taken + count]);
        sealed.taken += count;
        Poll::Ready(Ok(()))
    }
}

/// A snapshot file that is being received.
#[derive(Debug)]
pub struct IncomingSnapshot {
    path: PathBuf,
    file: File,
    sealer: Option<Sealer>,
    sealed: Vec<u8>,
}

impl IncomingSnapshot {
    pub(crate) async fn create(path: PathBuf, at_rest: &AtRest) -> io::Result<Self> {
        let mut file = File::create(&path).await?;
        let sealer = match Sealer::new(at_rest, KeyPurpose::Snapshot)? {
            None => None,
            Some((sealer, head)) => {
                file.write_all(&head).await?;
                Some(sealer)
            }
        };
        Ok(Self { path, file, sealer, sealed: Vec::new() })
    }

    /// Where it is written.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the next part of the content.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn write(&mut self, content: &[u8]) -> io::Result<()> {
        let Some(sealer) = &mut self.sealer else { return self.file.write_all(content).await };
        sealer.push(content, &mut self.sealed);
        self.file.write_all(&self.sealed).await?;
        self.sealed.clear();
        Ok(())
    }

    /// Ends the content and makes it durable.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn finish(mut self) -> io::Result<()> {
        if let Some(sealer) = self.sealer.take() {
            sealer.finish(&mut self.sealed);
            self.file.write_all(&self.sealed).await?;
        }
        self.file.flush().await?;
        self.file.sync_all().await
    }
}
