//! The accept loop of a listener: a bounded number of connections, timeouts for idle ones, and a graceful shutdown.
//!
//! `axum::serve` has no timeout for request headers and none for the shutdown, so this drives hyper's server itself.
//!
//! **Invariant:** neither the error of one connection nor a lack of file descriptors ends the loop or makes it spin.

use crate::model::limits::{
    CONNECTION_IDLE_TIMEOUT, CONNECTIONS_MAX, HTTP2_STREAMS_MAX, SHUTDOWN_DRAIN_TIMEOUT,
};
use std::{
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
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{sleep, timeout},
};
use tower::ServiceExt;
use tracing::{debug, error, warn};

/// The pause after a failed `accept`, which as a rule is for lack of file descriptors.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(50);
/// How long a connection is silent before the kernel sends keep-alive probes.
const TCP_KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// The interval of HTTP/2 pings on a silent connection, and how long the answer to one may take.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);

/// Serves until `stop` resolves, then accepts no more connections and waits for the requests in flight.
/// `header_timeout` bounds the wait for all headers of a connection's first request.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    header_timeout: Duration,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let builder = Arc::new(builder(header_timeout));
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        let (stream, permit) = tokio::select! {
            biased;
            () = &mut stop => break,
            Some(ended) = connections.join_next() => {
                log_panic(ended);
                continue;
            }
            accepted = accept(&listener, &permits) => accepted,
        };
        let is_used = Arc::new(AtomicBool::new(false));
        let service = TowerToHyperService::new(mark_used(router.clone(), is_used.clone()));
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
        // Boxed: as part of the task it would take its space twice, once to be moved in and once to be awaited.
        let connection = Box::pin(graceful.watch(connection));
        connections.spawn(async move {
            let _permit = permit;
            tokio::select! {
                ended = connection => {
                    if let Err(error) = ended {
                        // A client may disconnect at any time: this is no failure of the node.
                        debug!("a connection ended: {error}");
                    }
                }
                () = no_request(&is_used, header_timeout) => debug!("a connection without a request was closed"),
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

/// The next connection, once fewer than the maximum are open.
async fn accept(listener: &TcpListener, permits: &Arc<Semaphore>) -> (TcpStream, OwnedSemaphorePermit) {
    let permit = permits.clone().acquire_owned().await.expect("the semaphore is never closed");
    let mut is_first_failure = true;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Err(error) = set_options(&stream) {
                    debug!("the options of a connection can't be set: {error}");
                }
                return (stream, permit);
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

/// The router, which sets `is_used` with the first request.
fn mark_used(
    router: Router,
    is_used: Arc<AtomicBool>,
) -> impl tower::Service<Request<Incoming>, Response = Response, Error = Infallible, Future: Send> + Clone {
    router.map_request(move |request: Request<Incoming>| {
        is_used.store(true, Ordering::Relaxed);
        request
    })
}

/// Resolves after the timeout when no request has arrived on the connection.
async fn no_request(is_used: &AtomicBool, header_timeout: Duration) {
    sleep(header_timeout).await;
    if is_used.load(Ordering::Relaxed) {
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
        sync::{Notify, oneshot},
        task::JoinHandle,
    };

    async fn start(
        router: Router,
        header_timeout: Duration,
    ) -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let stopped = async move { stopped.await.unwrap_or(()) };
        (address, stop, tokio::spawn(serve(listener, router, header_timeout, stopped)))
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
}
