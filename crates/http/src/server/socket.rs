//! The socket of a connection. It counts the bytes that it reads, and fails if its client reads too slowly.
//!
//! hyper waits without limit for a socket that accepts no more bytes. So a client that reads nothing, or a few bytes
//! now and then, would hold its response for ever.
//!
//! **Invariant:** while bytes wait for the socket, it accepts [`SEND_BYTES_MIN`] or all of them within each send
//! timeout; otherwise the next write fails. The limit while memory is scarce is in `connection.rs`.

use std::{
    future::Future as _,
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

use super::connection::{ServedConnection, Times};
use concord_model::limits::SEND_BYTES_MIN;
use concord_net::socket::TcpStream;

/// A write that the socket has not completely accepted.
#[derive(Debug)]
struct Blocked {
    end: Pin<Box<Sleep>>,
    taken: usize,
}

#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    connection: Arc<ServedConnection>,
    times: Times,
    blocked: Option<Blocked>,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, connection: Arc<ServedConnection>, times: Times) -> Self {
        Self { stream, connection, times, blocked: None }
    }

    fn timeout(&self) -> Duration {
        if self.connection.is_known() { self.times.send } else { self.times.send.min(self.times.header) }
    }

    /// Checks the progress of a write of `offered` bytes.
    fn judge(
        &mut self,
        context: &mut Context<'_>,
        offered: usize,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(Ok(taken)) if *taken >= offered => {
                if self.blocked.take().is_some() {
                    self.connection.note_written(*taken);
                    self.connection.note_blocked(false);
                }
            }
            Poll::Ready(Ok(taken)) => {
                let again = Instant::now() + self.timeout();
                if let Some(blocked) = &mut self.blocked {
                    self.connection.note_written(*taken);
                    blocked.taken += taken;
                    if blocked.taken >= SEND_BYTES_MIN {
                        blocked.taken = 0;
                        blocked.end.as_mut().reset(again);
                    }
                }
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                if self.blocked.is_none() {
                    self.connection.note_blocked(true);
                    self.blocked = Some(Blocked { end: Box::pin(sleep(self.timeout())), taken: 0 });
                }
                if let Some(blocked) = &mut self.blocked {
                    ready!(blocked.end.as_mut().poll(context));
                    return Poll::Ready(Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "the client does not read its response",
                    )));
                }
            }
        }
        written
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if self.connection.note_read(buffer.filled().len().saturating_sub(before)) {
            Poll::Ready(Ok(()))
        } else {
            Poll::Ready(Err(io::Error::other("too many bytes without a complete request")))
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, bytes.len(), written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.judge(context, parts.iter().map(|part| part.len()).sum(), written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
