//! Calls between nodes.
//!
//! `POST http://{addr}/peer/{kind}` with a binary body. Each call names cluster, sender and addressee, and bears
//! the cluster's secret: an address that was given to another node must not vote for the wrong cluster. Heartbeats,
//! appends, forwarded writes and snapshots have connections of their own, so that a large one never delays a
//! small one.
//!
//! **Invariants**
//! 1. [`CallError::NotSent`] means that the other side has certainly not received the call. In doubt it is
//!    [`CallError::Unknown`].
//! 2. Secrets are compared as digests in constant time and never logged.

use std::{io, net::IpAddr, sync::OnceLock, time::Duration};

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

/// Names the cluster of a call.
pub const CLUSTER: &str = "x-concord-cluster";
/// Names the sender.
pub const FROM: &str = "x-concord-from";
/// Names the addressee.
pub const TO: &str = "x-concord-to";
/// Bears the cluster's secret.
pub const SECRET: &str = "x-concord-secret";
/// Goes before a snapshot's bytes: in the request of [`SNAPSHOT`], in the answer of [`FETCH_SNAPSHOT`].
pub const HEAD: &str = "x-concord-head";
/// What the connection of [`Call::Stream`] becomes: the value of the header `Upgrade`.
pub const PROTOCOL: &str = "concord-append";
/// The status of a refusal whose reason is that the caller was taken out of the cluster.
pub const LEFT: u16 = 410;

/// How long a connection may take to come about: a living node in the same network takes milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a stream may take to come about.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an unused connection is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest answer of a call: answers are small, but a confused peer must not fill the memory.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Longest text of a refusal that is kept.
const REFUSAL_BYTES_MAX: usize = 1024;

/// The cluster's secrets: the first is sent, all are accepted (rotation).
#[derive(Clone)]
pub struct Secrets(pub Vec<String>);

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets")
    }
}

/// How a call between nodes failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// Certainly not received (connection refused, not resolved).
    #[error("not sent: {0}")]
    NotSent(String),
    /// It may have been received (time-out, connection lost).
    #[error("outcome unknown: {0}")]
    Unknown(String),
    /// Received and refused before anything was done (identity, secret, malformed, no such call).
    #[error("refused with {status}: {text}")]
    Refused {
        /// The HTTP status, 4xx.
        status: u16,
        /// Why, in the peer's words.
        text: String,
    },
}

/// Which connections a call uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Heartbeats and votes.
    Pulse,
    /// Entries.
    Append,
    /// Forwarded writes and read indexes.
    Forward,
    /// Snapshots.
    Bulk,
}

/// A snapshot that a peer answers with: the head and the bytes of the file.
pub type Fetched = (Bytes, BoxStream<'static, io::Result<Bytes>>);

/// Calls to other nodes, and the check of calls from them.
#[derive(Debug)]
pub struct Peers {
    /// This node; unset until it belongs to a cluster.
    pub me: OnceLock<Identity>,
    /// The cluster's secrets.
    pub secrets: Secrets,
    /// Cancelled once a member has said that this node was taken out of the cluster.
    pub left: CancellationToken,
    pulse: reqwest::Client,
    append: reqwest::Client,
    forward: reqwest::Client,
    bulk: reqwest::Client,
}

impl Peers {
    /// Calls that bear these secrets, from whatever address the system chooses.
    #[must_use]
    pub fn new(secrets: Secrets) -> Self {
        Self::from_address(secrets, None)
    }

    /// Calls that come from `source`: a node that listens on one address only calls from it too, so that a firewall
    /// can tell the nodes apart.
    #[must_use]
    pub fn from_address(secrets: Secrets, source: Option<IpAddr>) -> Self {
        Self {
            me: OnceLock::new(),
            secrets,
            left: CancellationToken::new(),
            pulse: client(source),
            append: client(source),
            forward: client(source),
            bulk: client(source),
        }
    }

    /// Calls a node and waits for its answer until the deadline.
    ///
    /// # Errors
    /// See [`CallError`].
    #[expect(clippy::too_many_arguments, reason = "a call is named by all of these; callers have them loose")]
    pub async fn call(
        &self,
        lane: Lane,
        to: NodeId,
        addr: &str,
        call: Call,
        body: Bytes,
        deadline: Duration,
    ) -> Result<Bytes, CallError> {
        let request = self.client(lane).post(url(addr, call)).headers(self.headers(to)?).body(body);
        self.heard(answer_of(request, deadline).await)
    }

    /// Notes what a member's answer says of this node.
    fn heard<T>(&self, answer: Result<T, CallError>) -> Result<T, CallError> {
        if let Err(CallError::Refused { status: LEFT, .. }) = answer {
            self.left.cancel();
        }
        answer
    }

    /// Calls a node that has no identity yet, by the secret alone.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call_secret_only(
        &self,
        addr: &str,
        call: Call,
        body: Bytes,
        deadline: Duration,
    ) -> Result<Bytes, CallError> {
        let mut headers = HeaderMap::new();
        headers.insert(SECRET, self.secret()?);
        let request = self.client(Lane::Forward).post(url(addr, call)).headers(headers).body(body);
        answer_of(request, deadline).await
    }

    /// Opens a stream of entries: a connection that is a call no longer.
    ///
    /// # Errors
    /// See [`CallError`].
    pub(crate) async fn open_stream(&self, to: NodeId, addr: &str) -> Result<reqwest::Upgraded, CallError> {
        let mut headers = self.headers(to)?;
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
        let request = self.client(Lane::Append).post(url(addr, Call::Stream)).headers(headers);
        let opened = async {
            let answer = send(request, OPEN_TIMEOUT).await?;
            answer.upgrade().await.map_err(|error| CallError::Unknown(chain(error)))
        };
        let opened = tokio::time::timeout(OPEN_TIMEOUT, opened).await;
        self.heard(
            opened.unwrap_or_else(|_| Err(CallError::Unknown(format!("no stream within {OPEN_TIMEOUT:?}")))),
        )
    }

    /// Sends a snapshot: its head, then the file. The caller bounds the time.
    ///
    /// # Errors
    /// See [`CallError`].
    pub(crate) async fn send_snapshot(
        &self,
        to: NodeId,
        addr: &str,
        (head, file): (&str, tokio::fs::File),
        deadline: Duration,
    ) -> Result<Bytes, CallError> {
        let mut headers = self.headers(to)?;
        headers.insert(HEAD, value(head)?);
        let body = reqwest::Body::wrap_stream(tokio_util::io::ReaderStream::with_capacity(file, 64 << 10));
        let request = self.client(Lane::Bulk).post(url(addr, Call::Snapshot)).headers(headers).body(body);
        answer_of(request, deadline).await
    }

    /// Asks a node for its newest snapshot.
    ///
    /// # Errors
    /// See [`CallError`].
    pub(crate) async fn fetch_snapshot(
        &self,
        to: NodeId,
        addr: &str,
        deadline: Duration,
    ) -> Result<Fetched, CallError> {
        let request = self.client(Lane::Bulk).post(url(addr, Call::FetchSnapshot)).headers(self.headers(to)?);
        let answer = send(request, deadline).await?;
        let head = answer.headers().get(HEAD).map(|head| Bytes::copy_from_slice(head.as_bytes()));
        let head = head.ok_or_else(|| CallError::Unknown("the answer has no head".into()))?;
        Ok((head, answer.bytes_stream().map_err(io::Error::other).boxed()))
    }

    /// The server's side: whether the call's headers carry a valid secret, this cluster and this node.
    ///
    /// # Errors
    /// Status and text: 401 for the secret, 421 for the identity.
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

    /// Only the secret (a node without an identity is being joined).
    ///
    /// # Errors
    /// Status 401 and a text.
    pub fn admit_secret(&self, headers: &HeaderMap) -> Result<(), (u16, String)> {
        let given = headers.get(SECRET).map(|value| Sha256::digest(value.as_bytes()));
        let Some(given) = given else { return Err((401, format!("the header {SECRET} is missing"))) };
        // All are compared, whichever matches: the time tells nothing.
        let matches = self.secrets.0.iter().fold(Choice::from(0), |matches, secret| {
            matches | Sha256::digest(secret.as_bytes()).as_slice().ct_eq(given.as_slice())
        });
        if bool::from(matches) { Ok(()) } else { Err((401, "the cluster's secret is another one".into())) }
    }

    fn client(&self, lane: Lane) -> &reqwest::Client {
        match lane {
            Lane::Pulse => &self.pulse,
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
        .expect("a client without TLS needs nothing of its surroundings")
}

fn url(addr: &str, call: Call) -> String {
    format!("http://{addr}/peer/{call}")
}

fn value(text: &str) -> Result<HeaderValue, CallError> {
    HeaderValue::from_str(text)
        .map_err(|_| CallError::NotSent("a header has characters that HTTP forbids".into()))
}

async fn answer_of(request: reqwest::RequestBuilder, deadline: Duration) -> Result<Bytes, CallError> {
    let call = async {
        let answer = send(request, deadline).await?;
        body_of(answer, ANSWER_BYTES_MAX).await
    };
    tokio::time::timeout(deadline, call)
        .await
        .unwrap_or_else(|_| Err(CallError::Unknown(format!("no answer within {deadline:?}"))))
}

/// Sends and waits for the answer's head.
async fn send(request: reqwest::RequestBuilder, deadline: Duration) -> Result<reqwest::Response, CallError> {
    let sent = tokio::time::timeout(deadline, request.send()).await;
    let answer = match sent {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) if error.is_connect() || error.is_builder() => {
            return Err(CallError::NotSent(chain(error)));
        }
        Ok(Err(error)) => return Err(CallError::Unknown(chain(error))),
        Err(_) => return Err(CallError::Unknown(format!("no answer within {deadline:?}"))),
    };
    let status = answer.status();
    if status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS {
        return Ok(answer);
    }
    let text = match tokio::time::timeout(CONNECT_TIMEOUT, body_of(answer, REFUSAL_BYTES_MAX)).await {
        Ok(Ok(text)) => String::from_utf8_lossy(&text).into_owned(),
        Ok(Err(_)) | Err(_) => "no text".into(),
    };
    if status.is_client_error() {
        Err(CallError::Refused { status: status.as_u16(), text })
    } else {
        Err(CallError::Unknown(format!("answered with {status}: {text}")))
    }
}

async fn body_of(answer: reqwest::Response, bytes_max: usize) -> Result<Bytes, CallError> {
    let mut chunks = answer.bytes_stream();
    let mut body = BytesMut::new();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| CallError::Unknown(chain(error)))?;
        if body.len() + chunk.len() > bytes_max {
            return Err(CallError::Unknown(format!("the answer is longer than {bytes_max} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// reqwest's own text hides the cause, and names the address, which is none of a caller's business.
fn chain(error: reqwest::Error) -> String {
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
mod tests {
    use super::*;

    fn peers() -> Peers {
        let peers = Peers::new(Secrets(vec!["new".into(), "old".into()]));
        let me = Identity { cluster_id: uuid::Uuid::from_u128(1), node_id: 1, format: 1 };
        peers.me.set(me).unwrap();
        peers
    }

    fn headers_from_two() -> HeaderMap {
        let sender = Peers::new(Secrets(vec!["old".into()]));
        sender.me.set(Identity { cluster_id: uuid::Uuid::from_u128(1), node_id: 2, format: 1 }).unwrap();
        sender.headers(1).unwrap()
    }

    #[test]
    fn a_call_of_this_cluster_to_this_node_is_admitted() {
        assert_eq!(peers().admit(&headers_from_two()), Ok(2));
    }

    #[test]
    fn each_secret_is_admitted_and_no_other() {
        for (secret, status) in [("new", None), ("old", None), ("", Some(401)), ("ne", Some(401))] {
            let mut headers = headers_from_two();
            headers.insert(SECRET, HeaderValue::from_static(secret));
            assert_eq!(peers().admit(&headers).err().map(|refusal| refusal.0), status, "{secret}");
        }
        let mut headers = headers_from_two();
        headers.remove(SECRET);
        assert_eq!(peers().admit(&headers).unwrap_err().0, 401);
        assert_eq!(Peers::new(Secrets(Vec::new())).admit_secret(&headers_from_two()).unwrap_err().0, 401);
    }

    #[test]
    fn a_call_for_another_cluster_or_node_is_misdirected() {
        for (name, value) in [(CLUSTER, "x"), (TO, "3"), (TO, ""), (FROM, "two"), (FROM, "1")] {
            let mut headers = headers_from_two();
            headers.insert(name, HeaderValue::from_static(value));
            assert_eq!(peers().admit(&headers).unwrap_err().0, 421, "{name}: {value}");
        }
        let stranger = Peers::new(Secrets(vec!["old".into()]));
        assert_eq!(stranger.admit(&headers_from_two()).unwrap_err().0, 421);
    }

    #[tokio::test]
    async fn a_refused_connection_was_not_sent() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        drop(listener);
        let deadline = Duration::from_secs(5);
        let answer = peers().call(Lane::Pulse, 2, &addr, Call::Vote, Bytes::new(), deadline).await;
        let Err(CallError::NotSent(text)) = answer else { panic!("{answer:?}") };
        assert!(!text.contains(&addr), "callers are told this: {text}");
    }

    #[tokio::test]
    async fn a_connection_that_breaks_after_the_request_leaves_the_outcome_unknown() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let server = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            tokio::io::AsyncReadExt::read(&mut socket, &mut [0; 1]).await.unwrap();
        };
        let peers = peers();
        let call = peers.call(Lane::Forward, 2, &addr, Call::Write, Bytes::new(), Duration::from_secs(5));
        let (answer, ()) = tokio::join!(call, server);
        assert!(matches!(answer, Err(CallError::Unknown(_))), "{answer:?}");
    }
}
