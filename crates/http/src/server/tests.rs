//! The accept loop and its limits, with real connections.

use super::*;
use axum::{extract::Request, routing::get};
use concord_model::limits::HALF_CLOSED_TIMEOUT;
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
async fn a_client_that_sends_no_more_gets_its_response() {
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
    let (address, _stop, _server) = start(router, Duration::from_secs(600)).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    entered.notified().await;
    stream.shutdown().await.unwrap();
    // The node sees the end before it has a response.
    sleep(Duration::from_millis(100)).await;
    release.notify_one();
    let answered =
        timeout(HALF_CLOSED_TIMEOUT / 2, rest(stream)).await.expect("the connection is closed then");
    assert!(answered.ends_with("done"), "{answered:?}");
}

#[tokio::test]
async fn a_request_names_one_host() {
    let router = Router::new().route("/", get(async || "here"));
    let (address, _stop, _server) = start(router, Duration::from_secs(600)).await;
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", 400),
        ("GET http://b/ HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", 200),
        ("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", 200),
        ("GET / HTTP/1.0\r\n\r\n", 200),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let answered = rest(stream).await;
        assert_eq!(answered.split(' ').nth(1), Some(&*status.to_string()), "{request:?}: {answered:?}");
    }
}

#[test]
fn the_host_of_http2_is_its_authority() {
    let request = |version, host: &[&str]| {
        let request = Request::get("http://a.b:8080/").version(version);
        host.iter().fold(request, |request, host| request.header(HOST, *host)).body(()).unwrap()
    };
    let status = |version, host: &[&str]| refused_head(&request(version, host));
    assert_eq!(status(Version::HTTP_2, &[]), None);
    assert_eq!(status(Version::HTTP_2, &["A.b:8080"]), None);
    assert_eq!(status(Version::HTTP_2, &["a.b"]), Some(StatusCode::BAD_REQUEST));
    assert_eq!(status(Version::HTTP_2, &["a.b:8080", "a.b:8080"]), Some(StatusCode::BAD_REQUEST));
    let mut many = request(Version::HTTP_2, &[]);
    for number in 0..=HEADER_FIELDS_MAX {
        assert_eq!(refused_head(&many), None, "{number}");
        many.headers_mut().append("x-more", HeaderValue::from_static("y"));
    }
    assert_eq!(refused_head(&many), Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
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
            // A client that got a response without a credential is as unauthenticated as a silent one.
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
