//! The connections of the client: HTTP/1.1, unencrypted or over TLS.
//!
//! A connection belongs to one node at one address: the pool knows both (`<node>@<host>:<port>`), so that an RPC to a node
//! never uses a connection on which another node presented its certificate.
//!
//! **Invariant:** no RPC is sent before the other end has proven itself: over TLS by the certificate of the called node,
//! unencrypted by the cluster secret (`prove.rs`).

use std::{
    collections::BTreeMap,
    error::Error,
    fmt, io,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::{TryStreamExt as _, future::BoxFuture};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
#[cfg(not(feature = "simulation"))]
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::{
    client::legacy::{
        self,
        connect::{Connected, Connection},
    },
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use rustls::AlertDescription;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{CallError, Secrets, prove::prove};
use crate::{
    NodeId, PeerAddress,
    socket::TcpStream,
    tls::{
        nodes::{Mode, NodeTls},
        shown::{Shown, Trusted},
    },
};

/// How long connecting may take: a live node in the same network takes milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the handshake of TLS may take in addition: some round trips and signatures on a node that is busy.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an unused connection stays open.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval of TCP keepalive probes, and how many may fail before the connection has failed.
#[cfg(not(feature = "simulation"))]
const KEEPALIVE: Duration = Duration::from_secs(15);
#[cfg(not(feature = "simulation"))]
const KEEPALIVE_RETRIES: u32 = 3;
/// How long sent bytes may lack an acknowledgement.
#[cfg(not(feature = "simulation"))]
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a node counts as one without TLS, while a cluster migrates to TLS: it may be restarted with
/// certificates at any time, and then reject unencrypted RPCs.
const PLAIN_FOR: Duration = Duration::from_secs(2);
/// Most nodes that are remembered as such. Above it, all are tried with TLS again.
const PLAIN_NODES_MAX: usize = 256;

/// The body of a request.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A body of some bytes.
pub(super) fn whole(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// A body that is read from a file, decrypted where it is encrypted.
pub(super) fn from_content(content: impl AsyncRead + Send + 'static) -> Body {
    let chunks = tokio_util::io::ReaderStream::with_capacity(content, 64 << 10);
    StreamBody::new(chunks.map_ok(Frame::data)).boxed_unsync()
}

/// A pool of connections to nodes.
#[derive(Debug, Clone)]
pub(super) struct PeerTransport {
    client: legacy::Client<Connector, Body>,
    connector: Connector,
}

impl PeerTransport {
    /// A pool whose connections have the local address `source`.
    pub(super) fn new(
        source: Option<IpAddr>,
        tls: Option<Arc<NodeTls>>,
        plain: Arc<PlainNodes>,
        secrets: Arc<Secrets>,
    ) -> Self {
        Self::of(Connector { tcp: TcpConnector::new(source), tls, plain, secrets })
    }

    fn of(connector: Connector) -> Self {
        let client = legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(connector.clone());
        Self { client, connector }
    }

    /// Sends a request on a connection of its own. Returns the reason if one end does not trust the certificate of the
    /// other, and nothing for any other outcome.
    pub(super) async fn distrust(&self, request: Request<Body>) -> Option<String> {
        let sent = Self::of(self.connector.clone()).client.request(request).await;
        let error = sent.err()?;
        let mut source = error.source();
        while let Some(cause) = source {
            if let Some(error) = certificate_error(cause) {
                return Some(error.to_string());
            }
            source = cause.source();
        }
        None
    }

    /// Sends a request and waits for the head of the response.
    pub(super) async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, CallError> {
        self.client.request(request).await.map_err(|error| no_response(&error))
    }
}

/// Why there is no response. The text has no address: clients must not see it.
fn no_response(error: &legacy::Error) -> CallError {
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(unproven) = cause.downcast_ref::<CallError>() {
            return unproven.clone();
        }
        source = cause.source();
    }
    let text = error_chain(error);
    if error.is_connect() { CallError::NotSent(text) } else { CallError::Unknown(text) }
}

/// A handshake that has failed.
#[derive(Debug, thiserror::Error)]
#[error("TLS")]
struct HandshakeError(#[source] io::Error);

/// The error of an end that has rejected the certificate of the other.
fn certificate_error<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let inner = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let found = inner.or_else(|| cause.downcast_ref::<rustls::Error>());
    found.filter(|error| {
        matches!(
            error,
            rustls::Error::InvalidCertificate(_)
                | rustls::Error::NoCertificatesPresented
                | rustls::Error::AlertReceived(
                    AlertDescription::UnknownCA
                        | AlertDescription::BadCertificate
                        | AlertDescription::UnsupportedCertificate
                        | AlertDescription::CertificateRevoked
                        | AlertDescription::CertificateExpired
                        | AlertDescription::CertificateUnknown
                )
        )
    })
}

/// An error with its causes.
pub(super) fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// The address of a call for the pool and the connector.
pub(super) fn authority(to: NodeId, addr: &str) -> String {
    format!("{to}@{addr}")
}

/// The node and the address of such an address.
fn node_at(authority: &str) -> Option<(NodeId, &str)> {
    let (node, addr) = authority.split_once('@')?;
    Some((node.parse().ok()?, addr))
}

/// Nodes that did not speak TLS when they were called last, at these addresses.
#[derive(Debug, Default)]
pub(super) struct PlainNodes(Mutex<BTreeMap<String, Instant>>);

impl PlainNodes {
    fn has(&self, authority: &str) -> bool {
        let nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.get(authority).is_some_and(|since| since.elapsed() < PLAIN_FOR)
    }

    fn note(&self, authority: &str) {
        let mut nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if nodes.len() >= PLAIN_NODES_MAX {
            nodes.clear();
        }
        nodes.insert(authority.to_owned(), Instant::now());
    }
}

/// Opens connections.
#[derive(Debug, Clone)]
struct Connector {
    tcp: TcpConnector,
    tls: Option<Arc<NodeTls>>,
    plain: Arc<PlainNodes>,
    secrets: Arc<Secrets>,
}

/// Opens connections of TCP.
#[cfg(not(feature = "simulation"))]
#[derive(Debug, Clone)]
struct TcpConnector(HttpConnector);

#[cfg(not(feature = "simulation"))]
impl TcpConnector {
    fn new(source: Option<IpAddr>) -> Self {
        let mut http = HttpConnector::new();
        http.set_local_address(source);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        http.set_keepalive(Some(KEEPALIVE));
        http.set_keepalive_interval(Some(KEEPALIVE));
        http.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
        http.set_tcp_user_timeout(Some(UNACKNOWLEDGED_TIMEOUT));
        Self(http)
    }

    async fn connect(&mut self, uri: Uri) -> Result<TcpStream, ConnectError> {
        Ok(tower::Service::call(&mut self.0, uri).await?.into_inner())
    }
}

/// Opens connections of a simulated network.
#[cfg(feature = "simulation")]
#[derive(Debug, Clone)]
struct TcpConnector;

#[cfg(feature = "simulation")]
impl TcpConnector {
    fn new(_: Option<IpAddr>) -> Self {
        Self
    }

    async fn connect(&mut self, uri: Uri) -> Result<TcpStream, ConnectError> {
        let to = (uri.host().unwrap_or_default(), uri.port_u16().unwrap_or_default());
        Ok(timeout(CONNECT_TIMEOUT, TcpStream::connect(to)).await??)
    }
}

type ConnectError = Box<dyn Error + Send + Sync>;

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<PeerSocket>;
    type Error = ConnectError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        // As that of TCP is, whose resolver has threads of its own.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let mut connector = self.clone();
        Box::pin(async move { connector.connect(uri).await.map(TokioIo::new) })
    }
}

impl Connector {
    async fn connect(&mut self, uri: Uri) -> Result<PeerSocket, ConnectError> {
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        let (node, addr) = node_at(&authority).ok_or("the address has no node id")?;
        let Some(tls) = self.tls.clone() else { return self.connect_proven(uri, node, addr).await };
        if tls.mode() == Mode::Migrate && self.plain.has(&authority) {
            return self.connect_proven(uri, node, addr).await;
        }
        let stream = self.connect_tcp(uri.clone()).await?;
        match timeout(HANDSHAKE_TIMEOUT, shake_hands(&tls, node, stream)).await {
            Ok(Ok(stream)) => Ok(PeerSocket::Tls(stream)),
            Ok(Err(error)) if tls.mode() == Mode::Migrate && speaks_no_tls(&error) => {
                tracing::info!("node {node} does not support TLS yet; its RPCs are unencrypted");
                self.plain.note(&authority);
                self.connect_proven(uri, node, addr).await
            }
            Ok(Err(error)) => Err(Box::new(HandshakeError(error))),
            Err(_) => Err("the TLS handshake timed out".into()),
        }
    }

    /// An unencrypted connection to a node that has proven the cluster secret.
    async fn connect_proven(
        &mut self,
        uri: Uri,
        node: NodeId,
        addr: &str,
    ) -> Result<PeerSocket, ConnectError> {
        let stream = self.connect_tcp(uri).await?;
        Ok(PeerSocket::Plain(prove(&self.secrets.0, PeerAddress { id: node, addr }, stream).await?))
    }

    async fn connect_tcp(&mut self, uri: Uri) -> Result<TcpStream, ConnectError> {
        self.tcp.connect(uri).await
    }
}

async fn shake_hands(
    tls: &Arc<NodeTls>,
    node: NodeId,
    stream: TcpStream,
) -> io::Result<Box<Trusted<TlsStream<TcpStream>>>> {
    let name = tls.name_of(node).map_err(io::Error::other)?;
    let stream = TlsConnector::from(tls.client()).connect(name.clone(), stream).await?;
    let shown = Shown::called(Arc::clone(tls), name, stream.get_ref().1.peer_certificates());
    Ok(Box::new(Trusted::new(stream, shown.map_err(io::Error::other)?)))
}

/// Whether a handshake failed because the other end responded without TLS, as a node without certificates does.
fn speaks_no_tls(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)))
}

/// A connection to a node.
enum PeerSocket {
    Plain(TcpStream),
    Tls(Box<Trusted<TlsStream<TcpStream>>>),
}

impl fmt::Debug for PeerSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerSocket")
    }
}

impl Connection for PeerSocket {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for PeerSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for PeerSocket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_its_node() {
        let uri: Uri = format!("http://{}/peer/vote", authority(12, "[::1]:8201")).parse().unwrap();
        assert_eq!((uri.host(), uri.port_u16()), (Some("[::1]"), Some(8201)));
        assert_eq!(node_at(uri.authority().unwrap().as_str()), Some((12, "[::1]:8201")));
        let host: Uri = format!("http://{}/", authority(3, "node3.example:80")).parse().unwrap();
        assert_eq!(host.host(), Some("node3.example"));
        assert_eq!(node_at(host.authority().unwrap().as_str()), Some((3, "node3.example:80")));
        assert_eq!((node_at("a:1"), node_at("x@a:1")), (None, None));
    }
}
