//! The accept loop of a listener: a bounded number of connections, timeouts for idle and stalled ones, and a graceful
//! shutdown.
//!
//! `axum::serve` has no timeout for request headers and none for the shutdown, so this drives hyper's server itself.
//!
//! | question | file |
//! |---|---|
//! | What is the state of a connection, and when does it end? | `connection` |
//! | What happens to a client that does not read? | `socket`, over HTTP/2 `answer` |
//! | Does a client read fast enough while memory is scarce? | `pace` |
//! | Who gets a place when all are taken? | `places` |
//! | How many system calls does a response over HTTP/2 take? | `gather` |
//! | How much of what a client sends is handled before others have a turn? | `bounded_reader` |
//! | Whose turn is it? | `scheduler` |
//! | Is it plain or encrypted, and which node has shown its certificate? | `wire` |
//!
//! The memory of a connection is bounded. Until it is authenticated, it holds at most `FREE_HEAD_BYTES`, and all such
//! connections together hold at most [`STRANGER_HEADS_BYTES`] in addition. Afterwards it holds the head of a request
//! ([`HEAD_BYTES_MAX`]), what the windows of HTTP/2 allow, and its responses.
//!
//! **Invariant:** neither an error of one connection nor a lack of file descriptors ends the loop or makes it spin.

mod answer;
mod bounded_reader;
mod connection;
mod gather;
mod pace;
mod places;
mod scheduler;
mod socket;
mod wire;

use std::{
    convert::Infallible,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    response::{IntoResponse as _, Response},
};
use futures::{StreamExt as _, stream::FuturesUnordered};
use http::{
    HeaderMap, HeaderValue, Request, StatusCode, Version,
    header::{CONNECTION, HOST, TRANSFER_ENCODING},
    uri::Authority,
};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
#[cfg(not(feature = "simulation"))]
use rustix::net::sockopt;
use tokio::{
    runtime::Handle,
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tracing::{debug, error, warn};

use answer::{AnswerBody, StreamTasks};
use bounded_reader::BoundedReader;
use concord_model::limits::{
    HANDSHAKE_TIMEOUT, HEAD_BYTES_MAX, HEADER_FIELDS_MAX, HTTP2_CONNECTION_WINDOW_BYTES, HTTP2_STREAMS_MAX,
    SHUTDOWN_DRAIN_TIMEOUT, STRANGER_HEADS_BYTES,
};
use concord_net::{
    NodeId,
    socket::{TcpListener, TcpStream},
};
use concord_service::{CallerAddress, metrics::Connections};
pub(crate) use connection::CallerConnection;
use connection::{ConnectionEnd, HeadBudget, ServedConnection, Times};
use gather::Gather;
pub use places::ShareOf;
use places::{ConnectionPlace, ConnectionPlaces, ShareTaken};
use scheduler::{ClientTurns, FairScheduler};
use socket::Socket;
pub(crate) use wire::ShownNode;
pub use wire::Transport;
use wire::{AcceptedStream, RejectedCertificates};

/// The pause after a failed `accept`. The usual cause is a lack of file descriptors.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(50);
/// How long a connection is silent before the kernel sends keep-alive probes.
#[cfg(not(feature = "simulation"))]
const TCP_KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// The interval of HTTP/2 pings on a silent connection, and how long the response to one may take.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);
/// Connections that wait for a place in the share of their address. Their files are in addition to those of the places.
const PARKED_MAX: usize = 64;
/// How long a graceful close of an idle connection may take. Over HTTP/2 the client gets a `GOAWAY`.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of a body over HTTP/2 that may be in flight before they are read, on one stream.
const HTTP2_STREAM_WINDOW_BYTES: u32 = 512 << 10;
/// Longest HTTP/2 frame that is accepted: the smallest limit that the protocol allows.
const HTTP2_FRAME_BYTES: u32 = 16 << 10;
/// Bytes of a response over HTTP/2 that wait for the socket, per stream.
const HTTP2_SEND_BYTES: usize = 64 << 10;
/// A connection ends after this many streams that the client reset before they were served (CVE-2023-44487), or that
/// the node reset because of the client's errors.
const HTTP2_RESET_STREAMS_MAX: usize = 20;
const HTTP2_FAULTY_STREAMS_MAX: usize = 128;

/// How a listener serves.
#[derive(Debug, Clone, Copy)]
pub struct ServeOptions {
    /// Connections that are open at once.
    pub connections_max: usize,
    /// Connections of one address that are open at once.
    pub per_address_max: usize,
    /// Which connections of an address count.
    pub share_of: ShareOf,
    /// Limits the wait for a complete request until the connection is authenticated.
    pub header_timeout: Duration,
    /// Limits this wait afterwards.
    pub idle_timeout: Duration,
    /// Limits the time in which a client reads the next part of its response.
    pub send_timeout: Duration,
}

/// What answers the requests of a listener. It is cloned for each connection.
pub(crate) trait Answerer: Clone + Send + Sync + 'static {
    /// What the head of a request says of it.
    type Found: Send + 'static;

    /// Finds that before anything is read that comes after the head.
    fn find(request: &Request<Incoming>) -> Self::Found;

    /// Whether its clients take turns: all but the other nodes, who wait for no client.
    const TAKES_TURNS: bool = false;

    /// Answers a request. Each connection has a counter of its own for those in flight: one that all connections
    /// change moves between the processors with each request.
    fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        found: Self::Found,
    ) -> impl Future<Output = Response> + Send + 'static;

    /// Whether nobody waits for the response to a request any more once the client has closed its sending side.
    fn ends_with_its_client(_found: &Self::Found) -> bool {
        false
    }

    /// Whether responses that are read slowly hold memory that others need.
    fn is_memory_scarce(&self) -> bool {
        false
    }

    /// The counter of open connections, if there is one.
    fn connections(&self) -> Option<Connections> {
        None
    }

    /// Logs why a connection was rejected. Any client that reaches the listener can cause this at any rate.
    fn note_failed_handshake(&self, why: &str) {
        debug!("handshake failed: {why}");
    }
}

impl Answerer for Router {
    type Found = ();

    fn find(_request: &Request<Incoming>) {}

    async fn answer(self: Arc<Self>, request: Request<Incoming>, (): ()) -> Response {
        let Ok(answer) = Self::clone(&self).oneshot(request).await;
        answer
    }
}

/// What all connections of a listener share.
struct ConnectionServer<A> {
    turns: Option<Arc<FairScheduler>>,
    answerer: A,
    transport: Transport,
    times: Times,
    stopping: CancellationToken,
    places: Arc<ConnectionPlaces>,
    /// Permits of connections that wait for a place in the share of their address.
    parked: Semaphore,
    rejected_certificates: RejectedCertificates,
}

/// Serves until `stop` resolves, then accepts no more connections and waits for the requests in flight.
pub(crate) async fn serve<A: Answerer>(
    listener: TcpListener,
    answerer: A,
    transport: Transport,
    options: ServeOptions,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let ServeOptions { header_timeout: header, idle_timeout: idle, send_timeout: send, .. } = options;
    let times = Times { header, idle, send };
    let stopping = CancellationToken::new();
    let server = Arc::new(ConnectionServer {
        turns: A::TAKES_TURNS.then(|| FairScheduler::new(Handle::current().metrics().num_workers())),
        answerer,
        transport,
        times,
        stopping: stopping.clone(),
        places: Arc::new(ConnectionPlaces::new(
            options.connections_max,
            options.per_address_max,
            options.share_of,
        )),
        parked: Semaphore::new(PARKED_MAX),
        rejected_certificates: RejectedCertificates::default(),
    });
    let budget = Arc::new(HeadBudget::new(STRANGER_HEADS_BYTES));
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        let (stream, address) = tokio::select! {
            biased;
            () = &mut stop => break,
            Some(ended) = connections.join_next() => {
                log_panic(ended);
                continue;
            }
            accepted = accept(&listener) => accepted,
        };
        let connection = Arc::new(ServedConnection::new(budget.clone()));
        let place = tokio::select! {
            biased;
            () = &mut stop => break,
            place = server.places.take(address.ip(), &connection) => place,
        };
        match place {
            Ok(place) => drop(connections.spawn(server.clone().run(stream, connection, place))),
            // In a task of its own, so that other addresses do not wait.
            Err(ShareTaken) => drop(connections.spawn(server.clone().run_later(stream, connection, address))),
        }
    }
    drop(listener);
    stopping.cancel();
    drain(connections).await;
}

/// Waits for the requests in flight, and aborts the rest after a timeout.
async fn drain(mut connections: JoinSet<()>) {
    let drained = async { while connections.join_next().await.is_some() {} };
    if timeout(SHUTDOWN_DRAIN_TIMEOUT, drained).await.is_err() {
        warn!(
            connections = connections.len(),
            "requests were still in flight after the shutdown timeout and are aborted"
        );
    }
    connections.shutdown().await;
}

impl<A: Answerer> ConnectionServer<A> {
    /// Serves a connection once its address has a place for it.
    async fn run_later(
        self: Arc<Self>,
        stream: TcpStream,
        connection: Arc<ServedConnection>,
        address: SocketAddr,
    ) {
        let Ok(parked) = self.parked.try_acquire() else {
            debug!(%address, "rejected a connection: its address opens connections too fast");
            return;
        };
        let place = self.places.take_later(address.ip(), &connection).await;
        drop(parked);
        match place {
            Some(place) => self.run(stream, connection, place).await,
            None => debug!(%address, "rejected a connection: its address has reached its connection limit"),
        }
    }

    /// Performs the handshake of a connection. `None` if it fails or takes too long, or if the place is needed.
    async fn take(
        &self,
        stream: TcpStream,
        connection: &Arc<ServedConnection>,
        address: IpAddr,
    ) -> Option<(AcceptedStream, Option<NodeId>)> {
        let socket = |stream| Socket::new(stream, Arc::clone(connection), self.times);
        if !self.transport.is_tls() {
            return Some((AcceptedStream::Plain(socket(stream)), None));
        }
        // Boxed, because it is needed only for a moment, and the task of the connection would keep its space.
        let taken = Box::pin(timeout(HANDSHAKE_TIMEOUT, self.transport.take(stream, socket)));
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => None,
            taken = taken => match taken {
                Ok(Ok(taken)) => Some(taken),
                // A port scan or a TCP health check.
                Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => None,
                Ok(Err(error)) => {
                    let is_client = matches!(self.transport, Transport::Callers(_));
                    if !is_client || !self.rejected_certificates.note(address, &error) {
                        self.answerer.note_failed_handshake(&error.to_string());
                    }
                    None
                }
                Err(_) => {
                    debug!("handshake timed out");
                    None
                }
            },
            ending = connection.ending(self.times, || false) => {
                debug!(?ending, "closed a connection in its handshake");
                None
            }
        }
    }

    /// Serves a connection to its end, in the turns of its client.
    async fn run(
        self: Arc<Self>,
        stream: TcpStream,
        connection: Arc<ServedConnection>,
        place: ConnectionPlace,
    ) {
        // A socket without a peer address is closed already.
        let address = stream.peer_addr().map_or(place.address(), |address| address.ip().to_canonical());
        let caller = CallerAddress::new(address, place.address());
        let turns = self.turns_of(&caller);
        // Boxed: as part of the task it would take its space twice, once to be moved in and once to be awaited.
        let served = Box::pin(self.run_in_turns(stream, connection, place, caller));
        match turns {
            None => served.await,
            Some(turns) => turns.serve(served).await,
        }
    }

    /// The turns of the tasks of a connection, if its client takes turns.
    fn turns_of(&self, caller: &CallerAddress) -> Option<ClientTurns> {
        self.turns.clone().map(|turns| ClientTurns { turns, client: caller.clone() })
    }

    async fn run_in_turns(
        self: Arc<Self>,
        stream: TcpStream,
        connection: Arc<ServedConnection>,
        place: ConnectionPlace,
        caller: CallerAddress,
    ) {
        let (_place, _counted) = (place, self.answerer.connections().map(|all| all.open()));
        let Some((wire, node)) = self.take(stream, &connection, caller.address).await else { return };
        let socket = TokioIo::new(Gather::new(BoundedReader::new(wire, connection.clone())));
        let builder = builder(StreamTasks(self.turns_of(&caller)));
        let (answerer, owner) = (Arc::new(self.answerer.clone()), connection.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            let in_flight = owner.begin(request.extensions_mut());
            let found = A::find(&request);
            owner.note_patience(A::ends_with_its_client(&found));
            if let Some(node) = node {
                request.extensions_mut().insert(ShownNode(node));
            }
            let is_http2 = request.version() == Version::HTTP_2;
            let (answerer, caller) = (answerer.clone(), caller.clone());
            let answered = async move || {
                let answer = match refused_head(&request) {
                    None => answerer.answer(request, found).await,
                    // HTTP/2 has no such header, and ends the stream only.
                    Some(status) if is_http2 => status.into_response(),
                    Some(status) => (status, [(CONNECTION, "close")]).into_response(),
                };
                Ok::<_, Infallible>(answer.map(|body| AnswerBody::new(body, in_flight, is_http2)))
            };
            boxed(|| caller.serve(answered()))
        });
        // Boxed: as above.
        let mut served = Box::pin(builder.serve_connection_with_upgrades(socket, service));
        let must_end = async {
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => None,
                ending = connection.ending(self.times, || self.answerer.is_memory_scarce()) => Some(ending),
            }
        };
        // The only element of a set, so that it is polled only after its own wake-up. The task is woken several times
        // for each request, and each poll would take three locks, one of them shared by all connections.
        let mut must_end: FuturesUnordered<_> = [must_end].into_iter().collect();
        let ending = tokio::select! {
            biased;
            ended = served.as_mut() => {
                if let Err(error) = ended {
                    // A client may disconnect at any time: this is no failure of the node.
                    debug!("a connection ended: {error}");
                }
                return;
            }
            Some(ending) = must_end.next() => ending,
        };
        let Some(ending) = ending else {
            served.as_mut().graceful_shutdown();
            // The client bounds this wait.
            drop(served.await);
            return;
        };
        debug!(?ending, "closed a connection");
        if ending == ConnectionEnd::Idle {
            served.as_mut().graceful_shutdown();
            // A request that arrived at the last moment still gets its response.
            while timeout(GOODBYE_TIMEOUT, served.as_mut()).await.is_err() && connection.in_flight() > 0 {
                if connection.must_end_now(self.times) {
                    return;
                }
            }
        }
    }
}

/// The status for a request that a proxy in front may read differently, or that has too many header fields.
fn refused_head<B>(request: &Request<B>) -> Option<StatusCode> {
    let headers = request.headers();
    // hyper counts the fields of HTTP/1.
    if headers.len() > HEADER_FIELDS_MAX {
        return Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }
    (!has_plain_framing(headers) || !names_one_host(request)).then_some(StatusCode::BAD_REQUEST)
}

/// Whether a request has as many `Host` headers as RFC 9112 (3.2) requires; over HTTP/2, whether `host` and
/// `:authority` are equal.
fn names_one_host<B>(request: &Request<B>) -> bool {
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (_, Some(_)) => false,
        (None, None) => request.version() != Version::HTTP_11,
        (Some(host), None) => {
            let is_same =
                |authority: &Authority| host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes());
            request.version() != Version::HTTP_2 || request.uri().authority().is_none_or(is_same)
        }
    }
}

/// Whether a request has no transfer encoding other than one `chunked`. hyper also accepts `chunked, chunked`, which a
/// proxy in front may read differently. hyper itself rejects everything else that makes the length ambiguous.
fn has_plain_framing(headers: &HeaderMap) -> bool {
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    let is_plain = |encoding: &HeaderValue| encoding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    encodings.next().is_none_or(is_plain) && encodings.next().is_none()
}

fn builder(streams: StreamTasks) -> Builder<StreamTasks> {
    let mut builder = Builder::new(streams);
    // No header timeout: hyper would set and remove a timer for each request. `ServedConnection::ending` bounds that
    // wait with one timer for each connection.
    builder.http1().header_read_timeout(None::<Duration>).max_buf_size(HEAD_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
        .initial_stream_window_size(HTTP2_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES)
        .max_frame_size(HTTP2_FRAME_BYTES)
        .max_send_buf_size(HTTP2_SEND_BYTES)
        .max_pending_accept_reset_streams(HTTP2_RESET_STREAMS_MAX)
        .max_local_error_reset_streams(HTTP2_FAULTY_STREAMS_MAX)
        .keep_alive_interval(HTTP2_PING_INTERVAL)
        .keep_alive_timeout(HTTP2_PING_INTERVAL);
    builder
}

/// The next connection.
async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    let mut is_first_failure = true;
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                if let Err(error) = set_options(&stream) {
                    debug!("cannot set the options of a connection: {error}");
                }
                return (stream, address);
            }
            Err(error) if is_client_error(&error) => {
                debug!("a connection was closed before it was accepted: {error}");
            }
            Err(error) => {
                if is_first_failure {
                    warn!("cannot accept connections, retrying: {error}");
                    is_first_failure = false;
                }
                sleep(ACCEPT_RETRY_PAUSE).await;
            }
        }
    }
}

/// Disables Nagle's algorithm, and enables keep-alive so that a client that has disappeared is detected: a watch or a
/// stream of log entries may be silent without limit.
fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    #[cfg(not(feature = "simulation"))]
    {
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, TCP_KEEPALIVE_IDLE)?;
    }
    Ok(())
}

fn is_client_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    [ConnectionAborted, ConnectionRefused, ConnectionReset].contains(&error.kind())
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        error!("a connection's task failed: {error}");
    }
}

/// Creates a future on the heap without copying it. The memory is allocated first, and `make` writes only the initial
/// state of the future into it. The future of a request has the size of everything that it may await, six to nine
/// kilobytes. `Box::pin(future)` creates it on the stack and copies all of it, and so does hyper with a future that it
/// gets as a value: 3 % of the CPU time of an update. If the compiler cannot inline `make`, it may copy the future as
/// well; that only costs time.
pub(super) fn boxed<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::into_pin(Box::write(Box::new_uninit(), make()))
}

#[cfg(test)]
mod tests;
