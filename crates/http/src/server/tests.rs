//! The accept loop and its limits, with real connections.

use super::*;
use axum::{extract::Request, routing::get};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::{Notify, oneshot},
    task::JoinHandle,
};

fn options(connections_max: usize, header_timeout: Duration) -> ServeOptions {
    let long = Duration::from_secs(600);
    ServeOptions {
        connections_max,
        per_address_max: connections_max,
        share_of: ShareOf::All,
        header_timeout,
        idle_timeout: long,
        send_timeout: long,
    }
}

async fn start(
    router: Router,
    header_timeout: Duration,
) -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
    start_with(router, options(100, header_timeout)).await
}

async fn start_with(
    router: Router,
    options: ServeOptions,
) -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let stopped = async move { stopped.await.unwrap_or(()) };
    (address, stop, tokio::spawn(serve(listener, router, Transport::Plain, options, stopped)))
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
async fn connections_without_a_credential_keep_nobody_waiting() {
    let long = Duration::from_secs(600);
    let router = Router::new().route("/", get(async || "here")).route(
        "/known",
        get(async |request: Request| {
            CallerConnection::mark_known(request.extensions());
            "known"
        }),
    );
    let (address, _stop, _server) = start_with(router, options(4, long)).await;
    let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    // A credential was good on it, and it stays open: its place is not taken.
    let mut known = TcpStream::connect(address).await.unwrap();
    known.write_all(b"GET /known HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    known.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    let mut strangers = Vec::new();
    for place in 0..20 {
        let mut stranger = TcpStream::connect(address).await.unwrap();
        if place % 2 == 0 {
            // One that was answered without a credential is an unauthenticated client as one that is silent.
            stranger.write_all(request).await.unwrap();
        }
        strangers.push(stranger);
    }
    for _ in 0..5 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
        assert!(rest(stream).await.ends_with("here"));
    }
    // The oldest of them were closed.
    assert_eq!(rest(strangers.remove(1)).await, "");
    known.write_all(request).await.unwrap();
    known.read_exact(&mut answer).await.unwrap();
}
