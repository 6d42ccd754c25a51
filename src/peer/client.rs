//! The client for calls to other nodes, and the admission of calls from them.
//!
//! A call is `POST http://{addr}/peer/{name}` with a binary body. Its headers name the cluster, the sender and the
//! receiver, and hold the cluster's secret: a node that has taken over another one's address must not vote in the
//! wrong cluster. Heartbeats, appends, forwarded calls and snapshots use separate connections ([`Lane`]), so that a
//! large one never delays a small one.
//!
//! **Invariants**
//! 1. [`CallError::NotSent`] means that the other node has certainly not received the call. In doubt the error is
//!    [`CallError::Unknown`].
//! 2. Secrets are compared as digests in constant time and never logged.

use std::{
    future::Future,
    io,
    net::IpAddr,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{CONNECTION, UPGRADE},
};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};
use tokio_util::sync::CancellationToken;

use super::{NodeId, call::Call, identity::Identity};
use crate::model::feature::LEVEL_MIN;

/// The header with the cluster's id.
pub const CLUSTER: &str = "x-concord-cluster";
/// The header with the sender's id.
pub const FROM: &str = "x-concord-from";
/// The header with the receiver's id.
pub const TO: &str = "x-concord-to";
/// The header with the cluster's secret.
pub const SECRET: &str = "x-concord-secret";
/// The header with a snapshot's position, length and digest: in the request of [`Call::Snapshot`], in the response
/// of [`Call::FetchSnapshot`].
pub const SNAPSHOT_HEADER: &str = "x-concord-head";
/// The protocol that the connection of [`Call::Stream`] is upgraded to: the value of the header `Upgrade`.
pub const PROTOCOL: &str = "concord-append";
/// The status by which a node refuses a sender that was removed from the cluster.
pub const REMOVED_STATUS: u16 = 410;

/// How long connecting may take: a live node in the same network takes milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long opening a stream may take.
const OPEN_STREAM_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an unused connection stays open.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest response: responses are small, but a faulty node must not fill the memory.
const RESPONSE_BYTES_MAX: usize = 64 << 20;
/// How long the text of a refusal may take.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest text of a refusal that is read.
const REFUSAL_BYTES_MAX: usize = 1024;

/// The cluster's secrets. The first is sent, all are accepted, so that secrets can be rotated.
#[derive(Clone)]
pub struct Secrets(pub Vec<String>);

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
    /// Received and refused before anything was done: wrong identity or secret, malformed, unknown call.
    #[error("refused with {status}: {text}")]
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
    /// Cancelled once a member has refused a call because this node was removed from the cluster.
    pub left: CancellationToken,
    /// The feature level of the cluster, as this node has applied it.
    feature_level: AtomicU32,
    secrets: Secrets,
    /// The digests of the secrets, for comparing.
    secret_digests: Vec<[u8; 32]>,
    heartbeat: reqwest::Client,
    append: reqwest::Client,
    forward: reqwest::Client,
    bulk: reqwest::Client,
}

impl Peers {
    /// A client with these secrets, whose local address the system chooses.
    #[must_use]
    pub fn new(secrets: Secrets) -> Self {
        Self::from_address(secrets, None)
    }

    /// A client with the local address `source`: a node that listens on a single address also calls from it, so
    /// that a firewall can distinguish the nodes.
    #[must_use]
    pub fn from_address(secrets: Secrets, source: Option<IpAddr>) -> Self {
        Self {
            me: OnceLock::new(),
            left: CancellationToken::new(),
            feature_level: AtomicU32::new(LEVEL_MIN),
            secret_digests: secrets.0.iter().map(|secret| Sha256::digest(secret.as_bytes()).into()).collect(),
            secrets,
            heartbeat: client(source),
            append: client(source),
            forward: client(source),
            bulk: client(source),
        }
    }

    /// The feature level of the cluster: 1 until this node has a state. Only this decides what other members are sent
    /// that a version before it does not know.
    #[must_use]
    pub fn feature_level(&self) -> u32 {
        self.feature_level.load(Ordering::Relaxed)
    }

    /// Called by consensus when it publishes a state.
    pub(crate) fn set_feature_level(&self, level: u32) {
        self.feature_level.store(level, Ordering::Relaxed);
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
        let request = self.client(lane).post(url(addr, call)).headers(self.headers(to)?).body(body);
        self.note_removal(within(timeout, response_body(request)).await)
    }

    /// Calls a node whose response comes in parts. The timeout bounds the time until it begins.
    ///
    /// # Errors
    /// See [`CallError`]; those of the stream are [`CallError::Unknown`].
    #[expect(
        clippy::too_many_arguments,
        reason = "a call needs all of these, and callers have them as separate values"
    )]
    pub(crate) async fn call_in_parts(
        &self,
        lane: Lane,
        to: NodeId,
        addr: &str,
        call: Call,
        body: Bytes,
        timeout: Duration,
    ) -> Result<BoxStream<'static, Result<Bytes, CallError>>, CallError> {
        let request = self.client(lane).post(url(addr, call)).headers(self.headers(to)?).body(body);
        let response = self.note_removal(within(timeout, send(request)).await)?;
        let unknown = |error| CallError::Unknown(error_chain(error));
        Ok(response.bytes_stream().map_err(unknown).boxed())
    }

    /// Cancels [`Self::left`] if a member has refused a call because this node was removed.
    fn note_removal<T>(&self, response: Result<T, CallError>) -> Result<T, CallError> {
        if let Err(CallError::Refused { status: REMOVED_STATUS, .. }) = response {
            self.left.cancel();
        }
        response
    }

    /// Calls a node that has no identity yet, with the secret only.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call_secret_only(
        &self,
        addr: &str,
        call: Call,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, CallError> {
        let mut headers = HeaderMap::new();
        headers.insert(SECRET, self.secret()?);
        let request = self.client(Lane::Forward).post(url(addr, call)).headers(headers).body(body);
        within(timeout, response_body(request)).await
    }

    /// Opens a stream of entries: a call whose connection is upgraded.
    ///
    /// # Errors
    /// See [`CallError`].
    pub(crate) async fn open_stream(&self, to: NodeId, addr: &str) -> Result<reqwest::Upgraded, CallError> {
        let mut headers = self.headers(to)?;
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
        let request = self.client(Lane::Append).post(url(addr, Call::Stream)).headers(headers);
        let opened = within(OPEN_STREAM_TIMEOUT, async {
            let response = send(request).await?;
            response.upgrade().await.map_err(|error| CallError::Unknown(error_chain(error)))
        });
        self.note_removal(opened.await)
    }

    /// Sends a snapshot: its header, then the file. Has no timeout: the caller bounds the time.
    ///
    /// # Errors
    /// See [`CallError`].
    pub(crate) async fn send_snapshot(
        &self,
        to: NodeId,
        addr: &str,
        header: &str,
        file: tokio::fs::File,
    ) -> Result<Bytes, CallError> {
        let mut headers = self.headers(to)?;
        headers.insert(SNAPSHOT_HEADER, value(header)?);
        let body = reqwest::Body::wrap_stream(tokio_util::io::ReaderStream::with_capacity(file, 64 << 10));
        let request = self.client(Lane::Bulk).post(url(addr, Call::Snapshot)).headers(headers).body(body);
        response_body(request).await
    }

    /// Fetches a node's newest snapshot. The timeout bounds the time until the response begins.
    ///
    /// # Errors
    /// See [`CallError`].
    pub(crate) async fn fetch_snapshot(
        &self,
        to: NodeId,
        addr: &str,
        timeout: Duration,
    ) -> Result<FetchedSnapshot, CallError> {
        let request = self.client(Lane::Bulk).post(url(addr, Call::FetchSnapshot)).headers(self.headers(to)?);
        let response = within(timeout, send(request)).await?;
        let header =
            response.headers().get(SNAPSHOT_HEADER).map(|value| Bytes::copy_from_slice(value.as_bytes()));
        let header =
            header.ok_or_else(|| CallError::Unknown("the response has no snapshot header".into()))?;
        Ok((header, response.bytes_stream().map_err(io::Error::other).boxed()))
    }

    /// Admits a received call whose headers name a valid secret, this cluster and this node. Returns the sender.
    ///
    /// # Errors
    /// Status and text: 401 for a wrong secret, 421 for a wrong identity.
    pub fn admit(&self, headers: &HeaderMap) -> Result<NodeId, (u16, String)> {
        self.admit_secret(headers)?;
        let misdirected = |text: String| (421, text);
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let me = self.me.get().ok_or_else(|| misdirected("this node belongs to no cluster".into()))?;
        let cluster = text(CLUSTER).and_then(|text| text.parse::<uuid::Uuid>().ok());
        if cluster != Some(me.cluster_id) {
            return Err(misdirected("this node belongs to another cluster".into()));
        }
        if text(TO).and_then(|text| text.parse().ok()) != Some(me.node_id) {
            return Err(misdirected(format!("this is node {}", me.node_id)));
        }
        let from = text(FROM).and_then(|text| text.parse().ok());
        let from = from.ok_or_else(|| misdirected(format!("the header {FROM} names no node")))?;
        if from == me.node_id {
            return Err(misdirected(format!("node {from} has called itself")));
        }
        Ok(from)
    }

    /// Admits a received call by the secret alone: a node that joins has no identity.
    ///
    /// # Errors
    /// Status 401 and a text.
    pub fn admit_secret(&self, headers: &HeaderMap) -> Result<(), (u16, String)> {
        let given = headers.get(SECRET).map(|value| Sha256::digest(value.as_bytes()));
        let Some(given) = given else { return Err((401, format!("the header {SECRET} is missing"))) };
        // All are compared, whichever matches, so that the time reveals nothing.
        let matches = self
            .secret_digests
            .iter()
            .fold(Choice::from(0), |matches, digest| matches | digest.as_slice().ct_eq(given.as_slice()));
        if bool::from(matches) { Ok(()) } else { Err((401, "the cluster's secret is another one".into())) }
    }

    fn client(&self, lane: Lane) -> &reqwest::Client {
        match lane {
            Lane::Heartbeat => &self.heartbeat,
            Lane::Append => &self.append,
            Lane::Forward => &self.forward,
            Lane::Bulk => &self.bulk,
        }
    }

    fn headers(&self, to: NodeId) -> Result<HeaderMap, CallError> {
        let me = self.me.get().ok_or_else(|| CallError::NotSent("this node belongs to no cluster".into()))?;
        if to == me.node_id {
            return Err(CallError::NotSent(format!("node {to} does not call itself")));
        }
        let mut headers = HeaderMap::new();
        headers.insert(CLUSTER, value(&me.cluster_id.to_string())?);
        headers.insert(FROM, HeaderValue::from(me.node_id));
        headers.insert(TO, HeaderValue::from(to));
        headers.insert(SECRET, self.secret()?);
        Ok(headers)
    }

    fn secret(&self) -> Result<HeaderValue, CallError> {
        let secret =
            self.secrets.0.first().ok_or_else(|| CallError::NotSent("no cluster secret is set".into()))?;
        let mut value = value(secret)?;
        value.set_sensitive(true);
        Ok(value)
    }
}

fn client(source: Option<IpAddr>) -> reqwest::Client {
    reqwest::Client::builder()
        .no_proxy()
        .local_address(source)
        .tcp_nodelay(true)
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .build()
        .expect("building a client without TLS can't fail")
}

fn url(addr: &str, call: Call) -> String {
    format!("http://{addr}/peer/{call}")
}

fn value(text: &str) -> Result<HeaderValue, CallError> {
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
        .unwrap_or_else(|_| Err(CallError::Unknown(format!("no answer within {timeout:?}"))))
}

/// Sends and waits for the whole response.
async fn response_body(request: reqwest::RequestBuilder) -> Result<Bytes, CallError> {
    body_of(send(request).await?, RESPONSE_BYTES_MAX).await
}

/// Sends and waits for the response's head.
async fn send(request: reqwest::RequestBuilder) -> Result<reqwest::Response, CallError> {
    let response = match request.send().await {
        Ok(response) => response,
        Err(error) if error.is_connect() || error.is_builder() => {
            return Err(CallError::NotSent(error_chain(error)));
        }
        Err(error) => return Err(CallError::Unknown(error_chain(error))),
    };
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
        Err(CallError::Unknown(format!("answered with {status}: {text}")))
    }
}

async fn body_of(response: reqwest::Response, bytes_max: usize) -> Result<Bytes, CallError> {
    let mut chunks = response.bytes_stream();
    let mut body = BytesMut::new();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| CallError::Unknown(error_chain(error)))?;
        if body.len() + chunk.len() > bytes_max {
            return Err(CallError::Unknown(format!("the response is longer than {bytes_max} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// An error with its causes. reqwest's own text hides them, and names the address, which callers must not see.
fn error_chain(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;
