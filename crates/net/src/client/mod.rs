//! The client for RPCs to other nodes. `admission.rs` admits received ones.
//!
//! An RPC is `POST /peer/{name}` with a binary body. Its headers (`proof.rs`) name the cluster, the sender and the
//! receiver: a node that took over the address of another one must not vote in the wrong cluster. The TLS certificates
//! (`tls/nodes.rs`) prove the sender and the receiver; an unencrypted RPC proves the cluster secret, and before it is sent
//! the receiver has proven that secret on the same connection. Heartbeats, appends,
//! forwarded RPCs and snapshots use separate connections ([`Lane`]), so that a large one never delays a small one.
//!
//! | where is … | file |
//! |---|---|
//! | the pool of connections, unencrypted or over TLS | `transport` |
//! | the proof of the node at the other end of an unencrypted connection | `prove` |
//!
//! A forwarded write that is too large for a batch has an RPC and a connection of its own, and the receiving node serves a
//! limited number of connections. A connection above that limit is closed or waits, and the outcome of its write is
//! unknown; a write that waits for a [`LoneCall`] was certainly not sent.
//!
//! **Invariants**
//! 1. [`CallError::NotSent`] means that the other node has certainly not received the RPC. In doubt the error is
//!    [`CallError::Unknown`].
//! 2. Slow writes never use up the lone calls of the others.

pub(crate) mod prove;
mod transport;

use std::{
    future::Future,
    io,
    net::IpAddr,
    sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode,
    header::{CONNECTION, UPGRADE},
    request,
};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;
use zeroize::Zeroize as _;

use super::{
    NodeId, PeerAddress,
    admission::Members,
    call::Call,
    framed::{self, FrameStream},
    identity::Identity,
    tls::nodes::NodeTls,
    trace,
};
use transport::{Body, PeerTransport, error_chain, from_content, whole};

/// The header with the cluster's id.
pub const CLUSTER: &str = "x-concord-cluster";
/// The header with the sender's id.
pub const FROM: &str = "x-concord-from";
/// The header with the receiver's id.
pub const TO: &str = "x-concord-to";
/// The header with the called address, as the sender writes it.
pub const AT: &str = "x-concord-at";
/// The header that proves the cluster secret: see `credential.rs`.
pub const CREDENTIAL: &str = "x-concord-credential";
/// The header with the nonce of a `prove`.
pub const NONCE: &str = "x-concord-nonce";
/// The header with the digest of the body of a `join`.
pub const DIGEST: &str = "x-concord-digest";
/// The header with a snapshot's position, length and digest: in the request of [`Call::Snapshot`], in the response
/// of [`Call::FetchSnapshot`].
pub const SNAPSHOT_HEADER: &str = "x-concord-head";
/// The status with which a node rejects a sender that was removed from the cluster.
pub const REMOVED_STATUS: u16 = 410;

/// Longest response: responses are small, but a faulty node must not fill the memory.
const RESPONSE_BYTES_MAX: usize = 64 << 20;
/// How long reading the text of a rejection may take.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Most bytes of the text of a rejection that are read.
const REFUSAL_BYTES_MAX: usize = 1024;

/// The cluster's secrets. The first is sent, all are accepted, so that secrets can be rotated.
#[derive(Clone)]
pub struct Secrets(pub Vec<String>);

impl Drop for Secrets {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets")
    }
}

/// Why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// Certainly not received: the connection was refused, or the address not resolved.
    #[error("not sent: {0}")]
    NotSent(String),
    /// It may have been received: time-out, lost connection.
    #[error("outcome unknown: {0}")]
    Unknown(String),
    /// Received and rejected before anything was done: wrong identity or secret, malformed, unknown call.
    #[error("rejected with {status}: {text}")]
    Refused {
        /// The HTTP status, 4xx.
        status: u16,
        /// The reason that the other node gives.
        text: String,
    },
}

/// The group of connections that a call uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Heartbeats, votes and other small calls of consensus.
    Heartbeat,
    /// The stream of entries.
    Append,
    /// Calls of the service: forwarded writes, read indexes, pages and others.
    Forward,
    /// Snapshots and pieces of the history.
    Bulk,
}

/// A fetched snapshot: the value of [`SNAPSHOT_HEADER`] and the bytes of the file.
pub(crate) type FetchedSnapshot = (Bytes, BoxStream<'static, io::Result<Bytes>>);

/// Makes calls to other nodes and admits calls from them.
#[derive(Debug)]
pub struct Peers {
    /// This node; unset until it belongs to a cluster.
    pub me: OnceLock<Identity>,
    /// Cancelled once a member rejected an RPC because this node was removed from the cluster.
    pub left: CancellationToken,
    /// The members that were agreed on.
    members: RwLock<Members>,
    /// The address that this node listens on for calls, if it is a single one.
    pub(super) bound: Option<String>,
    /// The addresses of this node that its settings name.
    pub(super) configured: Vec<String>,
    secrets: Arc<Secrets>,
    /// The certificates; without them RPCs are unencrypted.
    pub(super) tls: Option<Arc<NodeTls>>,
    heartbeat: PeerTransport,
    append: PeerTransport,
    forward: PeerTransport,
    bulk: PeerTransport,
    lone: LoneCalls,
}

impl Peers {
    /// A client with these secrets, whose local address the system chooses.
    #[must_use]
    pub fn new(secrets: Secrets) -> Self {
        Self::from_address(secrets, None, None)
    }

    /// A client with the local address `source`: a node that listens on a single address also calls from it, so
    /// that a firewall can distinguish the nodes. With certificates its calls are encrypted.
    #[must_use]
    pub fn from_address(secrets: Secrets, source: Option<IpAddr>, tls: Option<Arc<NodeTls>>) -> Self {
        let (plain, secrets) = (Arc::default(), Arc::new(secrets));
        let transport = || PeerTransport::new(source, tls.clone(), Arc::clone(&plain), Arc::clone(&secrets));
        Self {
            me: OnceLock::new(),
            left: CancellationToken::new(),
            members: RwLock::default(),
            bound: None,
            configured: Vec::new(),
            heartbeat: transport(),
            append: transport(),
            forward: transport(),
            bulk: transport(),
            secrets,
            tls,
            lone: LoneCalls::default(),
        }
    }

    /// The same of a node that listens on the address `bound`, and whose settings say that it is called at `configured`.
    #[must_use]
    pub fn known_as(self, bound: Option<String>, configured: Vec<String>) -> Self {
        Self { bound, configured, ..self }
    }

    /// The members that were agreed on, with their peer addresses, as far as this node has applied them.
    pub(super) fn members(&self) -> RwLockReadGuard<'_, Members> {
        self.members.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called by consensus when it has applied a membership.
    pub fn set_members(&self, members: Members) {
        *self.members.write().unwrap_or_else(PoisonError::into_inner) = members;
    }

    /// The address of a member that was agreed on, as far as this node has applied it.
    #[must_use]
    pub fn address_of(&self, id: NodeId) -> Option<String> {
        self.members.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// Calls a node and waits for its response at most `timeout`.
    ///
    /// # Errors
    /// See [`CallError`].
    #[expect(
        clippy::too_many_arguments,
        reason = "a call needs all of these, and callers have them as separate values"
    )]
    pub async fn call(
        &self,
        lane: Lane,
        to: NodeId,
        addr: &str,
        call: Call,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, CallError> {
        let request = with_body(self.request(to, addr, call)?, whole(body))?;
        self.respond(lane, request, timeout, |response| body_of(response, RESPONSE_BYTES_MAX)).await
    }

    /// Calls a node whose response is several frames. The timeout bounds the time until it begins.
    ///
    /// # Errors
    /// See [`CallError`]; those of the stream are [`CallError::Unknown`].
    #[expect(
        clippy::too_many_arguments,
        reason = "a call needs all of these, and callers have them as separate values"
    )]
    pub async fn call_in_frames(
        &self,
        lane: Lane,
        to: NodeId,
        addr: &str,
        call: Call,
        body: Bytes,
        timeout: Duration,
    ) -> Result<FrameStream, CallError> {
        let request = with_body(self.request(to, addr, call)?, whole(body))?;
        let frames = |response: Response<Incoming>| {
            let body = response.into_body().into_data_stream();
            let lost = |error: hyper::Error| io::Error::other(error_chain(&error));
            std::future::ready(Ok(framed::frames_of(body.map_err(lost))))
        };
        self.respond(lane, request, timeout, frames).await
    }

    /// Opens a connection to a node with the certificates as they are now, makes a call on it and closes it. Returns the
    /// reason if one of the two nodes does not trust the other's certificate. Whether the node can be reached is another
    /// question.
    pub async fn distrust(&self, to: PeerAddress<'_>, call: Call, timeout: Duration) -> Option<String> {
        let request = with_body(self.request(to.id, to.addr, call).ok()?, whole(Bytes::new())).ok()?;
        tokio::time::timeout(timeout, self.forward.distrust(request)).await.ok()?
    }

    fn request(&self, to: NodeId, addr: &str, call: Call) -> Result<request::Builder, CallError> {
        // A node looks whether another process with its id is at its address.
        if call != Call::Witness && self.me.get().is_some_and(|me| me.node_id == to) {
            return Err(CallError::NotSent(format!("node {to} does not call itself")));
        }
        let mut headers = self.headers(to, addr)?;
        headers.extend(trace::header());
        Ok(post(to, addr, call, headers))
    }

    /// Sends a request within the cluster, and reads its response with `take`. The timeout bounds both.
    async fn respond<T, F>(
        &self,
        lane: Lane,
        request: Request<Body>,
        timeout: Duration,
        take: impl FnOnce(Response<Incoming>) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, CallError>>,
    {
        let response = async { take(send(self.transport(lane), request).await?).await };
        self.note_removal(within(timeout, response).await)
    }

    /// Cancels [`Self::left`] if a member rejected an RPC because this node was removed.
    fn note_removal<T>(&self, response: Result<T, CallError>) -> Result<T, CallError> {
        if let Err(CallError::Refused { status: REMOVED_STATUS, .. }) = response {
            self.left.cancel();
        }
        response
    }

    /// Calls `join` on a node that may have no identity yet.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call_join(
        &self,
        to: NodeId,
        addr: &str,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, CallError> {
        let headers = self.join_headers(to, addr, &body)?;
        let request = with_body(post(to, addr, Call::Join, headers), whole(body))?;
        within(timeout, response_body(self.transport(Lane::Forward), request)).await
    }

    /// Opens a connection for frames: a call whose connection is upgraded.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn open(
        &self,
        lane: Lane,
        to: PeerAddress<'_>,
        call: Call,
        timeout: Duration,
    ) -> Result<TokioIo<Upgraded>, CallError> {
        let request = self.request(to.id, to.addr, call)?;
        let request = request.header(CONNECTION, "upgrade").header(UPGRADE, protocol(call));
        let request = with_body(request, whole(Bytes::new()))?;
        let upgrade = |response: Response<Incoming>| async {
            let upgraded = hyper::upgrade::on(response).await;
            upgraded.map(TokioIo::new).map_err(|error| CallError::Unknown(error_chain(&error)))
        };
        self.respond(lane, request, timeout, upgrade).await
    }

    /// Sends a snapshot: its header, then the file. Has no timeout: the caller bounds the time.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn send_snapshot(
        &self,
        to: NodeId,
        addr: &str,
        header: &str,
        content: impl tokio::io::AsyncRead + Send + 'static,
    ) -> Result<Bytes, CallError> {
        let request = self.request(to, addr, Call::Snapshot)?.header(SNAPSHOT_HEADER, value(header)?);
        response_body(self.transport(Lane::Bulk), with_body(request, from_content(content))?).await
    }

    /// Fetches a node's newest snapshot. The timeout bounds the time until the response begins.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn fetch_snapshot(
        &self,
        to: NodeId,
        addr: &str,
        timeout: Duration,
    ) -> Result<FetchedSnapshot, CallError> {
        let request = with_body(self.request(to, addr, Call::FetchSnapshot)?, whole(Bytes::new()))?;
        let response = within(timeout, send(self.transport(Lane::Bulk), request)).await?;
        let header =
            response.headers().get(SNAPSHOT_HEADER).map(|value| Bytes::copy_from_slice(value.as_bytes()));
        let header =
            header.ok_or_else(|| CallError::Unknown("the response has no snapshot header".into()))?;
        Ok((header, response.into_body().into_data_stream().map_err(io::Error::other).boxed()))
    }

    fn transport(&self, lane: Lane) -> &PeerTransport {
        match lane {
            Lane::Heartbeat => &self.heartbeat,
            Lane::Append => &self.append,
            Lane::Forward => &self.forward,
            Lane::Bulk => &self.bulk,
        }
    }

    /// The certificates for calls between nodes.
    #[must_use]
    pub fn tls(&self) -> Option<&Arc<NodeTls>> {
        self.tls.as_ref()
    }

    pub(super) fn secrets(&self) -> &[String] {
        &self.secrets.0
    }
}

/// The protocol that the connection of a call is upgraded to: the value of the header `Upgrade`.
#[must_use]
pub fn protocol(call: Call) -> &'static str {
    if call == Call::Stream { "concord-append" } else { "concord-frames" }
}

/// A request for a call. Its address names the node, too: see `transport.rs`.
fn post(to: NodeId, addr: &str, call: Call, headers: HeaderMap) -> request::Builder {
    let mut request = Request::post(format!("http://{}/peer/{call}", transport::authority(to, addr)));
    if let Some(own) = request.headers_mut() {
        own.extend(headers);
    }
    request
}

fn with_body(request: request::Builder, body: Body) -> Result<Request<Body>, CallError> {
    request.body(body).map_err(|error| CallError::NotSent(error.to_string()))
}

pub(super) fn value(text: &str) -> Result<HeaderValue, CallError> {
    HeaderValue::from_str(text)
        .map_err(|_| CallError::NotSent("a header has characters that HTTP forbids".into()))
}

/// Bounds the time of a call.
async fn within<T>(
    timeout: Duration,
    call: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    tokio::time::timeout(timeout, call)
        .await
        .unwrap_or_else(|_| Err(CallError::Unknown(format!("no response within {timeout:?}"))))
}

/// Sends and waits for the whole response.
async fn response_body(transport: &PeerTransport, request: Request<Body>) -> Result<Bytes, CallError> {
    body_of(send(transport, request).await?, RESPONSE_BYTES_MAX).await
}

/// Sends and waits for the response's head.
async fn send(transport: &PeerTransport, request: Request<Body>) -> Result<Response<Incoming>, CallError> {
    accepted(transport.send(request).await?).await
}

/// The response, unless it is a rejection or an error.
async fn accepted(response: Response<Incoming>) -> Result<Response<Incoming>, CallError> {
    let status = response.status();
    if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
        return Ok(response);
    }
    let text = match tokio::time::timeout(REFUSAL_TIMEOUT, body_of(response, REFUSAL_BYTES_MAX)).await {
        Ok(Ok(text)) => String::from_utf8_lossy(&text).into_owned(),
        Ok(Err(_)) | Err(_) => "no text".into(),
    };
    if status.is_client_error() {
        Err(CallError::Refused { status: status.as_u16(), text })
    } else {
        Err(CallError::Unknown(format!("status {status}: {text}")))
    }
}

async fn body_of(response: Response<Incoming>, bytes_max: usize) -> Result<Bytes, CallError> {
    let mut chunks = response.into_body().into_data_stream();
    let mut body = BytesMut::new();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| CallError::Unknown(error_chain(&error)))?;
        if body.len() + chunk.len() > bytes_max {
            return Err(CallError::Unknown(format!("the response is longer than {bytes_max} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// Most lone calls at once, if no limit of open files requires fewer: as many writes as a leader decides in a few fsyncs.
const LONE_CALLS_MAX: usize = 1024;
/// One in so many may be for a slow write.
const LONG_PART: usize = 4;

/// The permits for calls with one write each.
#[derive(Debug)]
struct LoneCalls {
    all: Semaphore,
    long: Semaphore,
}

impl LoneCalls {
    fn new(most: usize) -> Self {
        let most = most.clamp(2, LONE_CALLS_MAX);
        Self { all: Semaphore::new(most), long: Semaphore::new((most / LONG_PART).max(1)) }
    }
}

impl Default for LoneCalls {
    fn default() -> Self {
        Self::new(LONE_CALLS_MAX)
    }
}

/// A permit for a call with one write.
#[derive(Debug)]
pub struct LoneCall<'a> {
    _all: SemaphorePermit<'a>,
    _long: Option<SemaphorePermit<'a>>,
}

impl Peers {
    /// The same with at most so many calls at once that have one write each.
    #[must_use]
    pub fn with_lone_calls(self, most: usize) -> Self {
        Self { lone: LoneCalls::new(most), ..self }
    }

    /// Waits for the permit for a call with one write.
    pub async fn lone_call(&self, is_long: bool) -> LoneCall<'_> {
        let place = async |places| Semaphore::acquire(places).await.expect("it is never closed");
        let _long = if is_long { Some(place(&self.lone.long).await) } else { None };
        LoneCall { _all: place(&self.lone.all).await, _long }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn peers() -> Peers {
        let peers = Peers::new(Secrets(vec!["secret".into()]));
        let me = Identity { cluster_id: uuid::Uuid::from_u128(1), node_id: 1, format: 1 };
        peers.me.set(me).unwrap();
        peers
    }

    #[tokio::test]
    async fn a_refused_connection_was_not_sent() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        drop(listener);
        let timeout = Duration::from_secs(5);
        let response = peers().call(Lane::Heartbeat, 2, &addr, Call::Vote, Bytes::new(), timeout).await;
        let Err(CallError::NotSent(text)) = response else { panic!("{response:?}") };
        assert!(!text.contains(&addr), "callers see this text: {text}");
    }

    #[tokio::test]
    async fn the_outcome_is_unknown_after_a_lost_connection() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let server = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            prove::testing::prove_and_read(&mut socket, &["secret"]).await;
        };
        let peers = peers();
        let call = peers.call(Lane::Forward, 2, &addr, Call::Write, Bytes::new(), Duration::from_secs(5));
        let (response, ()) = tokio::join!(call, server);
        assert!(matches!(response, Err(CallError::Unknown(_))), "{response:?}");
    }

    #[tokio::test]
    async fn slow_writes_leave_permits_for_others() {
        let peers = Peers::new(Secrets(vec!["s".into()])).with_lone_calls(8);
        let long = [peers.lone_call(true).await, peers.lone_call(true).await];
        assert!(peers.lone_call(true).now_or_never().is_none());
        let mut short = Vec::new();
        for _ in 0..6 {
            short.push(peers.lone_call(false).await);
        }
        assert!(peers.lone_call(false).now_or_never().is_none());
        drop(long);
        assert!(peers.lone_call(false).now_or_never().is_some());
    }
}
