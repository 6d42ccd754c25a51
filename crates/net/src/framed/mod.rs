//! RPCs as frames on a connection that stays open, one after another.
//!
//! A linearizable read waits for a heartbeat to the other members, and on a follower first for an RPC to the leader. Over
//! HTTP the headers, the credential and the tasks of the connection cost more than the request itself. So one RPC opens a
//! connection, is admitted like any other, and upgrades it. From then on each request and each response is one frame.
//!
//! | | calling end | serving end |
//! |---|---|---|
//! | code | [`FramedCalls`] | [`serve`], called by `crates/http/src/peer/mod.rs` |
//! | no response in time | drops the connection; the next request opens another | |
//! | failure | the same; if the connection had been used before, retries the request on another | closes the connection without a response |
//! | no request for [`IDLE_TIMEOUT`] | | closes the connection |
//! | the calling node is removed from the cluster | is rejected when it opens another | closes the connection |
//!
//! **Invariants**
//! 1. A response never counts for a later request: one request at a time is in flight, and the connection is reused only
//!    after the whole response to it.
//! 2. A request may be received twice, so only idempotent RPCs are made this way.
//! 3. A frame has at most [`FRAME_BYTES_MAX`].

use std::{future::Future, io, pin::pin, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use futures::{
    SinkExt as _, Stream, StreamExt as _, TryStreamExt as _, future::BoxFuture, stream::BoxStream,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Mutex,
    time::{Instant, sleep},
};
use tokio_util::{
    codec::{Encoder as _, Framed, FramedRead, LengthDelimitedCodec},
    io::StreamReader,
};

use super::{
    NodeId, PeerAddress, ReceiveError,
    call::Call,
    client::{CallError, Lane, Peers},
};

/// Longest frame. A heartbeat has less than 100 bytes, the text of a failed read index some hundred.
const FRAME_BYTES_MAX: usize = 64 << 10;
/// The first buffer of a response's frames: the answers to some ten writes.
const RESPONSE_BUFFER_BYTES: usize = 1 << 10;
/// Longest frame of a response: the answers to all writes of a forwarding batch, with long violations.
const RESPONSE_FRAME_BYTES_MAX: usize = 32 << 20;
/// How long opening a connection may take, in timeouts of a request. No longer: a new attempt reaches a
/// node that has become reachable sooner.
const OPEN_TIMEOUTS: u32 = 2;
/// How long a connection without a request stays open.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// An upgraded connection.
pub trait UpgradedConnection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> UpgradedConnection for T {}

/// A connection as a stream and sink of frames.
pub type Frames = Framed<Box<dyn UpgradedConnection>, LengthDelimitedCodec>;

/// A response as a stream of its frames, each of which is received whole.
pub type FrameStream = BoxStream<'static, Result<Bytes, CallError>>;

/// The one way to frame: a length of four bytes, the most significant first, then at most so many bytes.
fn codec(bytes_max: usize) -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder().max_frame_length(bytes_max).new_codec()
}

/// The frames of a connection, of at most so many bytes.
pub fn frames(connection: Box<dyn UpgradedConnection>, bytes_max: usize) -> Frames {
    Framed::new(connection, codec(bytes_max))
}

/// A frame of a response's body, below 4 GiB.
#[must_use]
pub fn frame(content: Bytes) -> Bytes {
    let mut frame = BytesMut::new();
    let encoded = codec(usize::MAX).encode(content, &mut frame);
    encoded.expect("what one response holds is far below 4 GiB");
    frame.freeze()
}

/// The frames of a response's body, of at most [`RESPONSE_FRAME_BYTES_MAX`].
pub(super) fn frames_of(body: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> FrameStream {
    let (body, codec) = (StreamReader::new(body), codec(RESPONSE_FRAME_BYTES_MAX));
    let frames = FramedRead::with_capacity(body, codec, RESPONSE_BUFFER_BYTES);
    let unknown = |error: io::Error| CallError::Unknown(error.to_string());
    frames.map_ok(BytesMut::freeze).map_err(unknown).boxed()
}

/// A connection that is being opened.
type OpenFuture = BoxFuture<'static, Result<Frames, CallError>>;

/// The calling end: requests of one kind to one node at a time.
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
    /// It stays when a request ends before the connection is open, and the next one continues with it: opening takes two
    /// round trips more than a request has time for.
    opening: Option<OpenFuture>,
    /// The connection while no request is in flight.
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
        to: PeerAddress<'_>,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, CallError> {
        let late = |_| Err(CallError::Unknown(format!("no response within {timeout:?}")));
        let exchanged = self.exchange(peers, to, &body, timeout * OPEN_TIMEOUTS);
        tokio::time::timeout(timeout, exchanged).await.unwrap_or_else(late)
    }

    async fn exchange(
        &self,
        peers: &Arc<Peers>,
        to: PeerAddress<'_>,
        body: &Bytes,
        open_timeout: Duration,
    ) -> Result<Bytes, CallError> {
        let mut connection = self.connection.lock().await;
        let connection = match &mut *connection {
            Some(connection) if connection.node == to.id && connection.addr == to.addr => connection,
            other => {
                other.insert(ToNode { node: to.id, addr: to.addr.to_owned(), opening: None, idle: None })
            }
        };
        if let Some(frames) = connection.idle.take()
            && let Ok(answer) = connection.exchange(frames, body).await
        {
            return Ok(answer);
        }
        // The other end may have closed the idle connection, or the node may have restarted: it may still be reachable.
        let frames = connection.open(peers, self.lane, self.opening, open_timeout).await?;
        let lost = |error| CallError::Unknown(format!("the connection was lost: {error}"));
        connection.exchange(frames, body).await.map_err(lost)
    }
}

impl ToNode {
    async fn exchange(&mut self, mut frames: Frames, body: &Bytes) -> io::Result<Bytes> {
        frames.send(body.clone()).await?;
        let answer = frames.next().await.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()))?;
        // Bytes beyond the response must not count for a later request.
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
                let connection =
                    peers.open(lane, PeerAddress { id: node, addr: &addr }, call, timeout).await?;
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
pub async fn serve<A>(connection: impl UpgradedConnection + 'static, answer: impl Fn(Bytes) -> A)
where
    A: Future<Output = Result<Bytes, ReceiveError>>,
{
    serve_for(connection, IDLE_TIMEOUT, answer).await;
}

async fn serve_for<A>(
    connection: impl UpgradedConnection + 'static,
    idle_timeout: Duration,
    answer: impl Fn(Bytes) -> A,
) where
    A: Future<Output = Result<Bytes, ReceiveError>>,
{
    let mut frames = frames(Box::new(connection), FRAME_BYTES_MAX);
    let mut used_at = Instant::now();
    // It is reset when it fires, not with each request: that would cost more than the frames of the request.
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
            tracing::debug!(%error, "a framed connection failed");
            return;
        }
        used_at = Instant::now();
    }
}

#[cfg(test)]
mod tests;
