//! The accept loop of a listener: a bounded number of connections, timeouts for idle ones, and a graceful shutdown.
//!
//! `axum::serve` has no timeout for request headers and none for the shutdown, so this drives hyper's server itself.
//!
//! When all connections are taken, a new one takes the place of the one that has waited longest without a request: a
//! stranger who opens connections and stays silent delays nobody.
//!
//! **Invariant:** neither the error of one connection nor a lack of file descriptors ends the loop or makes it spin.

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::{Future, pending},
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{Router, response::Response};
use http::Request;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto::Builder, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use rustix::net::sockopt;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore},
    task::JoinSet,
    time::{sleep, timeout},
};
use tower::ServiceExt;
use tracing::{debug, error, warn};

use crate::model::limits::{CONNECTION_IDLE_TIMEOUT, HTTP2_STREAMS_MAX, SHUTDOWN_DRAIN_TIMEOUT};

/// The pause after a failed `accept`, which as a rule is for lack of file descriptors.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(50);
/// How long a connection is silent before the kernel sends keep-alive probes.
const TCP_KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// The interval of HTTP/2 pings on a silent connection, and how long the answer to one may take.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);

/// How a listener serves.
#[derive(Debug, Clone, Copy)]
pub struct ServeOptions {
    /// Connections that are open at once.
    pub connections_max: usize,
    /// Bounds the wait for all headers of a connection's first request.
    pub header_timeout: Duration,
}

/// What the accept loop knows of a connection.
#[derive(Debug, Default)]
struct Connection {
    /// A request has arrived.
    is_used: AtomicBool,
    /// Its place is needed.
    evicted: Notify,
}

/// The connections without a request, the oldest first; among them some that have ended or got one since.
#[derive(Debug, Default)]
struct Unused(VecDeque<Arc<Connection>>);

impl Unused {
    fn push(&mut self, connection: Arc<Connection>) {
        self.skip_used();
        self.0.push_back(connection);
    }

    /// Closes the connection that has waited longest without a request, if there is one.
    fn evict_oldest(&mut self) {
        self.skip_used();
        if let Some(connection) = self.0.pop_front() {
            connection.evicted.notify_one();
        }
    }

    /// Forgets those at the front that have ended or got a request. An unused one leaves the front after the header
    /// timeout at the latest, so the queue holds no more than what is accepted in that time.
    fn skip_used(&mut self) {
        let is_unused = |connection: &Arc<Connection>| {
            !connection.is_used.load(Ordering::Relaxed) && Arc::strong_count(connection) > 1
        };
        while self.0.front().is_some_and(|connection| !is_unused(connection)) {
            self.0.pop_front();
        }
    }
}

/// Serves until `stop` resolves, then accepts no more connections and waits for the requests in flight.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    options: ServeOptions,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let builder = Arc::new(builder(options.header_timeout));
    let permits = Arc::new(Semaphore::new(options.connections_max));
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let mut unused = Unused::default();
    let mut stop = pin!(stop);
    loop {
        let stream = tokio::select! {
            biased;
            () = &mut stop => break,
            Some(ended) = connections.join_next() => {
                log_panic(ended);
                continue;
            }
            accepted = accept(&listener) => accepted,
        };
        if permits.available_permits() == 0 {
            unused.evict_oldest();
        }
        let permit = tokio::select! {
            biased;
            () = &mut stop => break,
            permit = permits.clone().acquire_owned() => permit.expect("the semaphore is never closed"),
        };
        let connection = Arc::new(Connection::default());
        unused.push(connection.clone());
        let service = TowerToHyperService::new(mark_used(router.clone(), connection.clone()));
        let served = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
        // Boxed: as part of the task it would take its space twice, once to be moved in and once to be awaited.
        let served = Box::pin(graceful.watch(served));
        connections.spawn(async move {
            let _permit = permit;
            tokio::select! {
                ended = served => {
                    if let Err(error) = ended {
                        // A client may disconnect at any time: this is no failure of the node.
                        debug!("a connection ended: {error}");
                    }
                }
                () = no_request(&connection, options.header_timeout) => {
                    debug!("a connection without a request was closed");
                }
            }
        });
    }
    drop(listener);
    if timeout(SHUTDOWN_DRAIN_TIMEOUT, graceful.shutdown()).await.is_err() {
        warn!(
            connections = connections.len(),
            "requests were still in flight after the shutdown timeout and are aborted"
        );
    }
    connections.shutdown().await;
}

fn builder(header_timeout: Duration) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(header_timeout.max(CONNECTION_IDLE_TIMEOUT));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS_MAX)
        .keep_alive_interval(HTTP2_PING_INTERVAL)
        .keep_alive_timeout(HTTP2_PING_INTERVAL);
    builder
}

/// The next connection.
async fn accept(listener: &TcpListener) -> TcpStream {
    let mut is_first_failure = true;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Err(error) = set_options(&stream) {
                    debug!("the options of a connection can't be set: {error}");
                }
                return stream;
            }
            Err(error) if is_client_error(&error) => {
                debug!("a connection was closed before it was accepted: {error}");
            }
            Err(error) => {
                if is_first_failure {
                    warn!("connections can't be accepted, trying again: {error}");
                    is_first_failure = false;
                }
                sleep(ACCEPT_RETRY_PAUSE).await;
            }
        }
    }
}

/// Disables Nagle's algorithm, and enables keep-alive so that a vanished client is detected: a watch or a stream of log
/// entries may be silent without limit.
fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(sockopt::set_tcp_keepidle(stream, TCP_KEEPALIVE_IDLE)?)
}

fn is_client_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    [ConnectionAborted, ConnectionRefused, ConnectionReset].contains(&error.kind())
}

/// The router, which marks the connection as used with the first request.
fn mark_used(
    router: Router,
    connection: Arc<Connection>,
) -> impl tower::Service<Request<Incoming>, Response = Response, Error = Infallible, Future: Send> + Clone {
    router.map_request(move |request: Request<Incoming>| {
        connection.is_used.store(true, Ordering::Relaxed);
        request
    })
}

/// Resolves after the timeout, or when the connection's place is needed, unless a request has arrived.
async fn no_request(connection: &Connection, header_timeout: Duration) {
    tokio::select! {
        () = sleep(header_timeout) => {}
        () = connection.evicted.notified() => {}
    }
    if connection.is_used.load(Ordering::Relaxed) {
        pending::<()>().await;
    }
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        error!("a connection's task failed: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use std::net::SocketAddr;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        sync::oneshot,
        task::JoinHandle,
    };

    async fn start(
        router: Router,
        header_timeout: Duration,
    ) -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
        start_with(router, ServeOptions { connections_max: 100, header_timeout }).await
    }

    async fn start_with(
        router: Router,
        options: ServeOptions,
    ) -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let stopped = async move { stopped.await.unwrap_or(()) };
        (address, stop, tokio::spawn(serve(listener, router, options, stopped)))
    }

    /// Everything that the server sends until it closes the connection.
    async fn rest(mut stream: TcpStream) -> String {
        let mut text = String::new();
        timeout(Duration::from_secs(30), stream.read_to_string(&mut text)).await.unwrap().unwrap();
        text
    }

    #[tokio::test]
    async fn a_request_in_flight_is_answered_before_the_shutdown() {
        let (entered, release) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let handler = {
            let (entered, release) = (entered.clone(), release.clone());
            move || async move {
                entered.notify_one();
                release.notified().await;
                "done"
            }
        };
        let router = Router::new().route("/", get(handler));
        let (address, stop, server) = start(router, Duration::from_secs(30)).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        entered.notified().await;
        stop.send(()).unwrap();
        release.notify_one();
        assert!(rest(stream).await.ends_with("done"));
        timeout(Duration::from_secs(30), server).await.unwrap().unwrap();
        assert!(TcpStream::connect(address).await.is_err());
    }

    #[tokio::test]
    async fn a_connection_without_complete_headers_is_closed() {
        for beginning in ["", "PRI", "GET / HTTP/1.1\r\nhost:"] {
            let (address, _stop, _server) = start(Router::new(), Duration::from_millis(50)).await;
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(beginning.as_bytes()).await.unwrap();
            assert!(!rest(stream).await.contains("200"), "{beginning:?}");
        }
    }

    #[tokio::test]
    async fn silent_connections_keep_nobody_waiting() {
        let options = ServeOptions { connections_max: 4, header_timeout: Duration::from_secs(600) };
        let router = Router::new().route("/", get(async || "here"));
        let (address, _stop, _server) = start_with(router, options).await;
        let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        // It has made a request and stays open: its place is not taken.
        let mut used = TcpStream::connect(address).await.unwrap();
        used.write_all(request).await.unwrap();
        let mut answer = [0; 12];
        used.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        let mut silent = Vec::new();
        for _ in 0..20 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        for _ in 0..5 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
            assert!(rest(stream).await.ends_with("here"));
        }
        // The oldest of the silent ones were closed.
        assert_eq!(rest(silent.remove(0)).await, "");
        used.write_all(request).await.unwrap();
        used.read_exact(&mut answer).await.unwrap();
    }
}
