//! The client by which nodes call the endpoints of identity providers.
//!
//! A client that creates a provider chooses whom a node calls, and the owner of the provider's DNS or its discovery
//! document does. Neither may reach through the node what only the node reaches: its own host, the metadata service of
//! the cloud, other machines of the network.
//!
//! | where is … | file |
//! |---|---|
//! | the addresses that each policy allows | [`address`] |
//! | the URLs that are called, and the hosts of a provider | [`endpoint`] |
//! | the lookup of a name | [`resolve`] |
//! | how many calls and lookups are made at once | `places` |
//! | why a call failed, and what a client learns of it | [`error`] |
//!
//! A call resolves the name once, drops the addresses that the policy does not allow, and connects to those that are left.
//! Then it makes one request over HTTP/1.1 and TLS, and closes the connection. A connection pool would save little: a node
//! fetches a key set every few minutes.
//!
//! **Invariants**
//! 1. A call connects to no address that [`is_allowed`] has not allowed. What was checked is what is connected: the name
//!    is not resolved again.
//! 2. Nothing redirects a call: neither a response, nor a proxy of the environment.
//! 3. A call ends at its deadline, whatever the other end does, and has at most [`BODY_BYTES_MAX`] of a body in memory.
//! 4. A client secret is in no error and in no debug output. A client of Concord learns one word of a failure.

pub mod address;
pub mod endpoint;
pub mod error;
mod places;
pub mod resolve;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    path::Path,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::{Bytes, BytesMut};
use concord_model::limits::PROVIDER_CA_BYTES_MAX;
use futures::future::BoxFuture;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response,
    header::{
        ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HOST,
        TRANSFER_ENCODING, USER_AGENT,
    },
};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    body::{Body as _, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore, client::Resumption};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::{TlsConnector, client::TlsStream};
use zeroize::Zeroizing;

use self::{
    address::{OutgoingPolicy, is_allowed},
    endpoint::Endpoint,
    error::{CallStage, OutgoingError},
    places::Places,
    resolve::{BoundedResolver, SystemResolver},
};
use crate::{
    socket::TcpStream,
    tls::{
        VERSIONS,
        files::{authorities_in, read_authorities},
        provider,
    },
};

/// Most bytes of a body: the key set of a provider has some 10 KiB.
pub const BODY_BYTES_MAX: usize = 256 << 10;
/// How long a call may take, with the wait for a place.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Fetches at once, and those of one host. The others wait.
const FETCHES_MAX: usize = 4;
const FETCHES_OF_HOST_MAX: usize = 2;
/// Posted forms at once, and those of one host. They have places of their own: fetches delay no login.
const POSTS_MAX: usize = 16;
const POSTS_OF_HOST_MAX: usize = 8;
/// Most addresses of IPv4, and of IPv6, that are tried. Entra has eight of each, and where IPv6 does not work it hangs.
const ADDRESSES_MAX: usize = 4;
/// The media types of documents and key sets.
const ACCEPTED: &str = "application/json, application/jwk-set+json, */*;q=0.1";
/// Most headers of a response, and their bytes: those of providers have some 30, with cookies and policies.
const HEADERS_MAX: usize = 100;
const HEADER_BYTES_MAX: usize = 32 << 10;
/// Most bytes that the connection reads ahead.
const BUFFER_BYTES_MAX: usize = 64 << 10;

/// The credential of this cluster at a provider.
#[derive(Clone)]
pub struct ClientCredential(HeaderValue);

impl ClientCredential {
    /// The id and the secret of a client, as RFC 6749, section 2.3.1, encodes them.
    #[must_use]
    pub fn basic(id: &str, secret: &str) -> Self {
        let mut plain = Zeroizing::new(String::new());
        plain.extend(form_urlencoded::byte_serialize(id.as_bytes()));
        plain.push(':');
        plain.extend(form_urlencoded::byte_serialize(secret.as_bytes()));
        let value = Zeroizing::new(format!("Basic {}", BASE64_STANDARD.encode(plain.as_bytes())));
        let value = HeaderValue::from_maybe_shared(Bytes::from_owner(value));
        let mut value = value.expect("Base64 is visible ASCII");
        value.set_sensitive(true);
        Self(value)
    }
}

impl fmt::Debug for ClientCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientCredential")
    }
}

/// The certificate authorities of one provider, as its document names them. Calls with them trust no others: neither those
/// of this machine, nor those of other providers.
#[derive(Clone)]
pub struct OwnAuthorities(TlsConnector);

impl OwnAuthorities {
    /// Reads them from a PEM text of at most [`PROVIDER_CA_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// When the text is longer, there is none, or a certificate can't sign others.
    pub fn from_pem(text: &str) -> Result<Self, String> {
        if text.len() > PROVIDER_CA_BYTES_MAX {
            return Err(format!("expected at most {PROVIDER_CA_BYTES_MAX} bytes"));
        }
        let (roots, _) = authorities_in(text.as_bytes())?;
        Ok(Self(TlsConnector::from(Arc::new(tls_config(roots)?))))
    }
}

impl fmt::Debug for OwnAuthorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnAuthorities")
    }
}

/// The response to a posted form.
#[derive(Clone, PartialEq, Eq)]
pub struct FormResponse {
    /// Its status, 2xx or 4xx: a provider tells with 4xx why it issues no token.
    pub status: u16,
    /// Its body. It may hold a token.
    pub body: Bytes,
}

impl fmt::Debug for FormResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FormResponse").field("status", &self.status).finish_non_exhaustive()
    }
}

/// Calls the endpoints of identity providers.
pub struct OutgoingClient {
    policy: OutgoingPolicy,
    resolver: BoundedResolver,
    tls: TlsConnector,
    fetches: Places,
    posts: Places,
    timeout: Duration,
    /// Whether 127.0.0.1 is allowed, too.
    #[cfg(any(test, feature = "testing"))]
    has_loopback: bool,
}

impl fmt::Debug for OutgoingClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingClient").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl OutgoingClient {
    /// A client that trusts the certificate authorities of this machine, and those of a file. The former are those of
    /// OpenSSL, or of `SSL_CERT_FILE` and `SSL_CERT_DIR`. It reads files: not for the threads of requests.
    ///
    /// # Errors
    /// When the file can't be used. That this machine has no such certificates is no error: see
    /// [`OutgoingError::Tls`].
    pub fn new(policy: OutgoingPolicy, authorities: Option<&Path>) -> Result<Self, String> {
        Ok(Self {
            policy,
            resolver: BoundedResolver::new(Arc::new(SystemResolver)),
            tls: TlsConnector::from(Arc::new(tls_config(common_roots(authorities)?)?)),
            fetches: Places::new(FETCHES_MAX, FETCHES_OF_HOST_MAX),
            posts: Places::new(POSTS_MAX, POSTS_OF_HOST_MAX),
            timeout: CALL_TIMEOUT,
            #[cfg(any(test, feature = "testing"))]
            has_loopback: false,
        })
    }

    /// The same with 127.0.0.1, which no policy allows, and with a resolver and a timeout of a test.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn with_loopback(self, resolver: Arc<dyn resolve::Resolve>, timeout: Duration) -> Self {
        Self { resolver: BoundedResolver::new(resolver), timeout, has_loopback: true, ..self }
    }

    /// Fetches a document of at most `bytes_max` bytes, and never more than [`BODY_BYTES_MAX`], from a provider with a
    /// certificate of the common CAs.
    ///
    /// # Errors
    /// See [`OutgoingError`]. A status other than 200 is one.
    pub fn get<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        bytes_max: usize,
    ) -> BoxFuture<'a, Result<Bytes, OutgoingError>> {
        self.fetch(endpoint, bytes_max, &self.tls)
    }

    /// The same from a provider with CAs of its own.
    ///
    /// # Errors
    /// See [`OutgoingError`]. A status other than 200 is one.
    pub fn get_with<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        bytes_max: usize,
        authorities: &'a OwnAuthorities,
    ) -> BoxFuture<'a, Result<Bytes, OutgoingError>> {
        self.fetch(endpoint, bytes_max, &authorities.0)
    }

    fn fetch<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        bytes_max: usize,
        tls: &'a TlsConnector,
    ) -> BoxFuture<'a, Result<Bytes, OutgoingError>> {
        Box::pin(async move {
            let request = request(Method::GET, endpoint, Bytes::new())?;
            let received = self.call((&self.fetches, tls), endpoint, request, bytes_max).await?;
            if received.status == 200 {
                Ok(received.body)
            } else {
                Err(OutgoingError::Status(received.status))
            }
        })
    }

    /// Posts a form, with the credential of this cluster if there is one. A form is posted at most once: after an error,
    /// the provider may have received it.
    ///
    /// # Errors
    /// See [`OutgoingError`]. A status other than 2xx and 4xx is one.
    pub fn post_form<'a>(
        &'a self,
        endpoint: &'a Endpoint,
        pairs: &'a [(&'a str, &'a str)],
        credential: Option<&'a ClientCredential>,
    ) -> BoxFuture<'a, Result<FormResponse, OutgoingError>> {
        Box::pin(async move {
            let form = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
            // It holds a code, and may hold the client secret.
            let form = Bytes::from_owner(Zeroizing::new(form));
            let mut request = request(Method::POST, endpoint, form)?;
            let media_type = HeaderValue::from_static("application/x-www-form-urlencoded");
            request.headers_mut().insert(CONTENT_TYPE, media_type);
            if let Some(ClientCredential(value)) = credential {
                request.headers_mut().insert(AUTHORIZATION, value.clone());
            }
            let received = self.call((&self.posts, &self.tls), endpoint, request, BODY_BYTES_MAX).await?;
            match received.status {
                200..=299 | 400..=499 => Ok(received),
                status => Err(OutgoingError::Status(status)),
            }
        })
    }

    /// Makes a request, and reads the response.
    async fn call(
        &self,
        (places, tls): (&Places, &TlsConnector),
        endpoint: &Endpoint,
        request: Request<Full<Bytes>>,
        bytes_max: usize,
    ) -> Result<FormResponse, OutgoingError> {
        if self.policy == OutgoingPolicy::Off {
            return Err(OutgoingError::Off);
        }
        let deadline = Instant::now() + self.timeout;
        let _place = within(deadline, CallStage::Place, places.take(endpoint.host())).await?;
        let addresses = within(deadline, CallStage::Resolve, self.addresses(endpoint)).await??;
        let stream = connect(&addresses, endpoint.port(), deadline).await?;
        let handshake = tls.connect(endpoint.server_name(), stream);
        let stream = within(deadline, CallStage::Tls, handshake).await?.map_err(OutgoingError::Tls)?;
        let bytes_max = bytes_max.min(BODY_BYTES_MAX);
        within(deadline, CallStage::Response, exchange(stream, request, bytes_max)).await?
    }

    /// The addresses of a host that may be connected, at least one.
    async fn addresses(&self, endpoint: &Endpoint) -> Result<Vec<IpAddr>, OutgoingError> {
        let host = endpoint.host();
        let resolved = self
            .resolver
            .addresses(host)
            .await
            .map_err(|cause| OutgoingError::Unresolved { host: host.to_owned(), cause })?;
        let (mut allowed, mut refused): (Vec<_>, Vec<_>) =
            resolved.into_iter().partition(|address| self.allows(*address));
        if allowed.is_empty() {
            refused.truncate(2 * ADDRESSES_MAX);
            return Err(OutgoingError::Forbidden { host: host.to_owned(), refused });
        }
        keep_some_of_each_family(&mut allowed);
        Ok(allowed)
    }

    fn allows(&self, address: IpAddr) -> bool {
        #[cfg(any(test, feature = "testing"))]
        if self.has_loopback && address == IpAddr::V4(std::net::Ipv4Addr::LOCALHOST) {
            return true;
        }
        is_allowed(self.policy, address)
    }
}

/// Keeps the first addresses of IPv4 and of IPv6, in their order.
fn keep_some_of_each_family(addresses: &mut Vec<IpAddr>) {
    let (mut v4, mut v6) = (0, 0);
    addresses.retain(|address| {
        let of_family = if address.is_ipv4() { &mut v4 } else { &mut v6 };
        *of_family += 1;
        *of_family <= ADDRESSES_MAX
    });
}

/// Does a step until the deadline. After the deadline it does not begin: a place may become free at that moment.
async fn within<T>(
    deadline: Instant,
    stage: CallStage,
    step: impl Future<Output = T>,
) -> Result<T, OutgoingError> {
    let late = OutgoingError::Timeout(stage);
    if Instant::now() >= deadline { Err(late) } else { timeout_at(deadline, step).await.map_err(|_| late) }
}

/// Connects to one of some addresses. Each has an equal part of the time that is left: of two, the first can hang.
async fn connect(addresses: &[IpAddr], port: u16, deadline: Instant) -> Result<TcpStream, OutgoingError> {
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    let mut left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    for address in addresses {
        let part = deadline.saturating_duration_since(Instant::now()) / left.max(1);
        left = left.saturating_sub(1);
        match timeout(part, TcpStream::connect(SocketAddr::new(*address, port))).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failure = error,
            Err(_) => failure = io::Error::from(io::ErrorKind::TimedOut),
        }
    }
    Err(OutgoingError::Unconnected(failure))
}

/// The CAs of this machine, and those of a file.
fn common_roots(authorities: Option<&Path>) -> Result<Arc<RootCertStore>, String> {
    let mut roots = match authorities {
        Some(path) => Arc::unwrap_or_clone(read_authorities(path)?.0),
        None => RootCertStore::empty(),
    };
    let found = rustls_native_certs::load_native_certs();
    // Old and damaged ones are among those of a machine. A certificate of them is then not trusted.
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let error = found.errors.first().map_or_else(|| "none found".to_owned(), ToString::to_string);
        tracing::warn!("this machine has no certificate authorities for outgoing calls: {error}");
    }
    Ok(Arc::new(roots))
}

/// The TLS of calls: a certificate must be for the host, and from one of these CAs.
fn tls_config(roots: Arc<RootCertStore>) -> Result<ClientConfig, String> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&VERSIONS)
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn request(method: Method, endpoint: &Endpoint, body: Bytes) -> Result<Request<Full<Bytes>>, OutgoingError> {
    Request::builder()
        .method(method)
        .uri(endpoint.path().clone())
        .header(HOST, endpoint.authority())
        // Kubernetes serves key sets as the second type only, and others only what fits a wildcard.
        .header(ACCEPT, ACCEPTED)
        .header(ACCEPT_ENCODING, "identity")
        .header(CONNECTION, "close")
        // Without the version, which tells a provider what a node is open to.
        .header(USER_AGENT, "concord")
        .body(Full::new(body))
        .map_err(OutgoingError::Request)
}

/// Makes a request on a connection of its own, and reads the response.
async fn exchange(
    stream: TlsStream<TcpStream>,
    request: Request<Full<Bytes>>,
    bytes_max: usize,
) -> Result<FormResponse, OutgoingError> {
    let (mut sender, connection) = http1::Builder::new()
        .max_headers(HEADERS_MAX)
        .max_header_size(HEADER_BYTES_MAX)
        .max_buf_size(BUFFER_BYTES_MAX)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(OutgoingError::Http)?;
    let received = async {
        let response = sender.send_request(request).await.map_err(OutgoingError::Http)?;
        let status = response.status();
        if status.is_redirection() {
            return Err(OutgoingError::Redirect(status.as_u16()));
        }
        if is_encoded(response.headers()) {
            return Err(OutgoingError::Encoded);
        }
        Ok(FormResponse { status: status.as_u16(), body: body_of(response, bytes_max).await? })
    };
    let mut received = pin!(received);
    tokio::select! {
        result = &mut received => result,
        // If the connection has failed, the response has failed with the same error.
        _ = connection => received.await,
    }
}

/// Whether a body has an encoding other than chunks.
fn is_encoded(headers: &HeaderMap) -> bool {
    let is_chunked = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    headers.contains_key(CONTENT_ENCODING) || !headers.get_all(TRANSFER_ENCODING).iter().all(is_chunked)
}

/// Reads a body up to a limit.
async fn body_of(response: Response<Incoming>, bytes_max: usize) -> Result<Bytes, OutgoingError> {
    let mut body = response.into_body();
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > bytes_max {
        return Err(OutgoingError::TooLong(bytes_max));
    }
    let mut read = BytesMut::with_capacity(announced);
    while let Some(frame) = body.frame().await {
        // Trailers are no data.
        let Ok(data) = frame.map_err(OutgoingError::Http)?.into_data() else { continue };
        if data.len() > bytes_max - read.len() {
            return Err(OutgoingError::TooLong(bytes_max));
        }
        read.extend_from_slice(&data);
    }
    Ok(read.freeze())
}
