//! Calls as frames on a connection that stays open, one after another.
//!
//! A linearizable read waits for a heartbeat to the other members, and on a follower for a call to the leader before
//! that. Over HTTP the headers, the credential and the tasks of the connection cost more than what is asked. So one call
//! opens a connection, is admitted like any other, and has the connection upgraded. From then on it has frames only: a
//! length of four bytes and the body of a request, and in the other direction the same with its answer.
//!
//! | | the caller's end | the end that answers |
//! |---|---|---|
//! | file | [`FramedCalls`] | [`serve`], called by `crates/http/src/peer/mod.rs` |
//! | no answer in time | drops the connection; the next request opens another | |
//! | a failure | the same; if the connection was used before, the request itself is sent again on another | closes the connection without an answer |
//! | no request for [`IDLE_TIMEOUT`] | | closes the connection |
//! | the caller is removed from the cluster | is refused when it opens another | closes the connection |
//!
//! **Invariants**
//! 1. An answer never counts for a later request: one request at a time is under way, and the connection is used again
//!    only after the whole answer to it.
//! 2. A request may be received twice, so only calls are made this way that change nothing by being repeated.
//! 3. A frame has at most [`FRAME_BYTES_MAX`].

use std::{future::Future, io, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _, future::BoxFuture};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Mutex,
    time::{Instant, sleep},
};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use super::{
    NodeId, ReceiveError,
    call::Call,
    client::{CallError, Lane, Peers},
};

/// Longest frame. A heartbeat has less than 100 bytes, the text of a failed read index some hundred.
const FRAME_BYTES_MAX: usize = 64 << 10;
/// How long opening a connection may take, in time-outs of a request. No longer: an attempt that begins anew reaches a
/// node that has become reachable sooner.
const OPEN_TIMEOUTS: u32 = 2;
/// How long a connection without a request stays open.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// An upgraded connection.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// A connection as a stream and sink of frames.
pub type Frames = Framed<Box<dyn Connection>, LengthDelimitedCodec>;

/// The frames of a connection, of at most so many bytes.
pub fn frames(connection: Box<dyn Connection>, bytes_max: usize) -> Frames {
    Framed::new(connection, LengthDelimitedCodec::builder().max_frame_length(bytes_max).new_codec())
}

/// A connection that is being opened.
type OpenFuture = BoxFuture<'static, Result<Frames, CallError>>;

/// The caller's end: requests of one kind to one node at a time.
#[derive(Debug)]
pub struct FramedCalls {
    lane: Lane,
    /// The call that opens a connection.
    opening: Call,
    /// Locked for the time of a request.
    connection: Mutex<Option<ToNode>>,
}

/// The connection to a node.
struct ToNode {
    node: NodeId,
    addr: String,
    /// It stays when a request ends before the connection is open, and the next one goes on with it: opening takes two
    /// round trips more than a request has time for.
    opening: Option<OpenFuture>,
    /// The connection while no request is under way.
    idle: Option<Frames>,
}

impl std::fmt::Debug for ToNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ToNode").field("node", &self.node).field("addr", &self.addr).finish_non_exhaustive()
    }
}

impl FramedCalls {
    /// Requests that are made on a connection that a call opens.
    pub fn new(lane: Lane, opening: Call) -> Self {
        Self { lane, opening, connection: Mutex::new(None) }
    }

    /// Sends a node a request, and waits at most `timeout` for the answer.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call(
        &self,
        peers: &Arc<Peers>,
        (to, addr): (NodeId, &str),
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, CallError> {
        let late = |_| Err(CallError::Unknown(format!("no answer within {timeout:?}")));
        let exchanged = self.exchange(peers, (to, addr), &body, timeout * OPEN_TIMEOUTS);
        tokio::time::timeout(timeout, exchanged).await.unwrap_or_else(late)
    }

    async fn exchange(
        &self,
        peers: &Arc<Peers>,
        (to, addr): (NodeId, &str),
        body: &Bytes,
        open_timeout: Duration,
    ) -> Result<Bytes, CallError> {
        let mut connection = self.connection.lock().await;
        let connection = match &mut *connection {
            Some(connection) if connection.node == to && connection.addr == addr => connection,
            other => other.insert(ToNode { node: to, addr: addr.to_owned(), opening: None, idle: None }),
        };
        if let Some(frames) = connection.idle.take()
            && let Ok(answer) = connection.exchange(frames, body).await
        {
            return Ok(answer);
        }
        // The other end may have closed the idle connection, or the node was restarted: that says nothing about it.
        let frames = connection.open(peers, self.lane, self.opening, open_timeout).await?;
        let lost = |error| CallError::Unknown(format!("the connection was lost: {error}"));
        connection.exchange(frames, body).await.map_err(lost)
    }
}

impl ToNode {
    async fn exchange(&mut self, mut frames: Frames, body: &Bytes) -> io::Result<Bytes> {
        frames.send(body.clone()).await?;
        let answer = frames.next().await.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))?;
        // What came beyond the answer is none to a later request.
        if frames.read_buffer().is_empty() {
            self.idle = Some(frames);
        }
        Ok(answer.freeze())
    }

    async fn open(
        &mut self,
        peers: &Arc<Peers>,
        lane: Lane,
        call: Call,
        timeout: Duration,
    ) -> Result<Frames, CallError> {
        let opening = self.opening.get_or_insert_with(|| {
            let (peers, node, addr) = (Arc::clone(peers), self.node, self.addr.clone());
            Box::pin(async move {
                let connection = peers.open(lane, (node, &addr), call, timeout).await?;
                Ok(frames(Box::new(connection), FRAME_BYTES_MAX))
            })
        });
        let opened = opening.await;
        self.opening = None;
        opened
    }
}

/// The end that answers: each request in the order in which they come, until the connection ends, fails, or is not used.
/// An error ends it.
pub async fn serve<A>(connection: impl Connection + 'static, answer: impl Fn(Bytes) -> A)
where
    A: Future<Output = Result<Bytes, ReceiveError>>,
{
    serve_for(connection, IDLE_TIMEOUT, answer).await;
}

async fn serve_for<A>(
    connection: impl Connection + 'static,
    idle_timeout: Duration,
    answer: impl Fn(Bytes) -> A,
) where
    A: Future<Output = Result<Bytes, ReceiveError>>,
{
    let mut frames = frames(Box::new(connection), FRAME_BYTES_MAX);
    let mut used_at = Instant::now();
    // It is set again when it rings, not with each request: that would cost more than the request's frames.
    let mut idle = pin!(sleep(idle_timeout));
    loop {
        let request = tokio::select! {
            biased;
            request = frames.next() => request,
            () = idle.as_mut() => {
                let end = used_at + idle_timeout;
                if end <= Instant::now() {
                    return;
                }
                idle.as_mut().reset(end);
                continue;
            }
        };
        let sent = match request {
            Some(Ok(body)) => match answer(body.freeze()).await {
                Ok(answer) => frames.send(answer).await,
                Err(error) => Err(io::Error::other(error)),
            },
            Some(Err(error)) => Err(error),
            None => return,
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "a connection for frames has failed");
            return;
        }
        used_at = Instant::now();
    }
}

#[cfg(test)]
mod tests;
