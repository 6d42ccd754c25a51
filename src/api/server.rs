//! The listener's loop: connections in bounded number, each with a bound on its silence, and a graceful end.
//!
//! `axum::serve` has no time-out on the reading of headers and none on the end, so this is hyper's own server.
//!
//! **Invariant:** no error of one connection, and no lack of file descriptors, ends the loop or makes it spin.

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

/// Connections at once; more wait in the kernel's queue. Each may hold some 100 KB of buffers. Twice the watches that
/// a node has, so that as many watchers leave room for everybody else.
const CONNECTIONS_MAX: usize = 20_000;
/// Requests at once on one HTTP/2 connection.
const STREAMS_MAX: u32 = 256;
/// How long a connection may be idle between two requests: longer than the pools of common clients keep one, so that
/// none finds its connection closed under a request. hyper has one timer for this and for the head of the next
/// request, so from the second request on this bounds both.
const IDLE_TIME: Duration = Duration::from_secs(75);
/// How long requests that are under way may take once the end has begun.
const DRAIN_TIME: Duration = Duration::from_secs(10);
/// How long to leave the listener alone after a failure of ours, for want of file descriptors as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// After how much silence the system asks whether a connection's other end is still there.
const KEEP_TIME: Duration = Duration::from_secs(60);
/// How often a silent HTTP/2 connection is asked whether it lives, and for how long it may be owing the answer.
const PING_TIME: Duration = Duration::from_secs(20);

/// Serves until `stop` resolves, then takes no more connections and lets those that are busy end.
/// `header_timeout` bounds the wait for the whole head of a connection's first request.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    header_timeout: Duration,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let builder = Arc::new(builder(header_timeout));
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        let (stream, place) = tokio::select! {
            biased;
            () = &mut stop => break,
            Some(ended) = connections.join_next() => {
                report(ended);
                continue;
            }
            accepted = accept(&listener, &places) => accepted,
        };
        let is_used = Arc::new(AtomicBool::new(false));
        let service = TowerToHyperService::new(mark(router.clone(), is_used.clone()));
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
        // On the heap by itself: within the task it would take its room twice, before and while it is awaited.
        let connection = Box::pin(graceful.watch(connection));
        connections.spawn(async move {
            let _place = place;
            tokio::select! {
                ended = connection => {
                    if let Err(error) = ended {
                        // A client that leaves in the middle is its own affair.
                        debug!("a connection ended: {error}");
                    }
                }
                () = silence(&is_used, header_timeout) => debug!("a connection without a request was closed"),
            }
        });
    }
    drop(listener);
    if timeout(DRAIN_TIME, graceful.shutdown()).await.is_err() {
        warn!(connections = connections.len(), "requests were still under way at the end and are cut off");
    }
    connections.shutdown().await;
}

fn builder(header_timeout: Duration) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(header_timeout.max(IDLE_TIME));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(PING_TIME)
        .keep_alive_timeout(PING_TIME);
    builder
}

/// The next connection, once there is a place for it.
async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> (TcpStream, OwnedSemaphorePermit) {
    let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
    let mut is_first_failure = true;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Err(error) = tune(&stream) {
                    debug!("a connection stays as the system made it: {error}");
                }
                return (stream, place);
            }
            Err(error) if is_clients(&error) => debug!("a connection was gone before it was taken: {error}"),
            Err(error) => {
                if is_first_failure {
                    warn!("connections can't be taken, trying on: {error}");
                    is_first_failure = false;
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Nothing is held back to be sent with more, and a caller whose machine has vanished is missed: a watch or a stream
/// of entries may be silent for as long as it likes.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(sockopt::set_tcp_keepidle(stream, KEEP_TIME)?)
}

fn is_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    [ConnectionAborted, ConnectionRefused, ConnectionReset].contains(&error.kind())
}

/// The router, with a mark once a request has come in.
fn mark(
    router: Router,
    is_used: Arc<AtomicBool>,
) -> impl tower::Service<Request<Incoming>, Response = Response, Error = Infallible, Future: Send> + Clone {
    router.map_request(move |request: Request<Incoming>| {
        is_used.store(true, Ordering::Relaxed);
        request
    })
}

/// Resolves when no request came in time.
async fn silence(is_used: &AtomicBool, header_timeout: Duration) {
    sleep(header_timeout).await;
    if is_used.load(Ordering::Relaxed) {
        pending::<()>().await;
    }
}

fn report(ended: Result<(), tokio::task::JoinError>) {
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

    /// What is read until the server closes the connection.
    async fn rest(mut stream: TcpStream) -> String {
        let mut text = String::new();
        timeout(Duration::from_secs(30), stream.read_to_string(&mut text)).await.unwrap().unwrap();
        text
    }

    #[tokio::test]
    async fn a_request_under_way_is_answered_before_the_end() {
        let (entered, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let handler = {
            let (entered, go_on) = (entered.clone(), go_on.clone());
            move || async move {
                entered.notify_one();
                go_on.notified().await;
                "done"
            }
        };
        let router = Router::new().route("/", get(handler));
        let (address, stop, server) = start(router, Duration::from_secs(30)).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        entered.notified().await;
        stop.send(()).unwrap();
        go_on.notify_one();
        assert!(rest(stream).await.ends_with("done"));
        timeout(Duration::from_secs(30), server).await.unwrap().unwrap();
        assert!(TcpStream::connect(address).await.is_err());
    }

    #[tokio::test]
    async fn a_connection_without_a_whole_head_is_closed() {
        for beginning in ["", "PRI", "GET / HTTP/1.1\r\nhost:"] {
            let (address, _stop, _server) = start(Router::new(), Duration::from_millis(50)).await;
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(beginning.as_bytes()).await.unwrap();
            assert!(!rest(stream).await.contains("200"), "{beginning:?}");
        }
    }
}
