//! A file of `tokio::fs` in a simulation: without the threads for blocking work.

use std::{
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::Path,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

/// A file whose operations are done at once.
#[derive(Debug)]
pub(crate) struct File(std::fs::File);

#[expect(clippy::unused_async, reason = "as in `tokio::fs`")]
impl File {
    pub(crate) async fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        std::fs::File::open(path).map(Self)
    }

    pub(crate) async fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        std::fs::File::create(path).map(Self)
    }

    pub(crate) async fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}

impl AsyncRead for File {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let count = self.get_mut().0.read(to.initialize_unfilled())?;
        to.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for File {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(self.get_mut().0.write(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncSeek for File {
    fn start_seek(self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
        self.get_mut().0.seek(to).map(drop)
    }

    fn poll_complete(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Poll::Ready(self.get_mut().0.stream_position())
    }
}
