//! Requests that two servers may read differently: whatever a proxy in front of a node takes them for, the node reads
//! one request as one, or none.
//!
//! Behind each request stands another one, the sentinel, which closes the connection. What is hidden in a request names
//! itself `smuggled`: no answer may bear that name.

use super::{
    GoodClient,
    raw::{api, connect, send, until_closed},
};
use crate::harness::{Cluster, Options};

/// What comes for the request itself.
#[derive(Debug, Clone, Copy)]
enum Must {
    /// One answer with this status, and then the connection goes on or ends.
    Answer(u16),
    /// One answer with one of these, or none; the connection ends.
    End(&'static [u16]),
}

/// A case: its name, the lines of the head without the request id, the body, and what must come.
type Case = (&'static str, String, String, Must);

const HIDDEN: &str = "GET /livez HTTP/1.1\r\nhost: a\r\nx-request-id: smuggled\r\n\r\n";

fn framing(key: &str) -> Vec<Case> {
    let post = |headers: &str| {
        format!("POST /api/v1/config_definition HTTP/1.1\r\nhost: a\r\nauthorization: {key}\r\n{headers}")
    };
    let chunked = "transfer-encoding: chunked\r\n";
    let hidden = || format!("0\r\n\r\n{HIDDEN}");
    let length = HIDDEN.len() + 5;
    let whole = r#"{"config_definition_key": "trailed", "indexes": []}"#;
    // A body that is broken is answered as one that is no JSON, unless the head shows it already.
    let end = Must::End(&[400, 422]);
    vec![
        ("a length and chunks", post(&format!("content-length: {length}\r\n{chunked}")), hidden(), end),
        ("chunks and a length", post(&format!("{chunked}content-length: {length}\r\n")), hidden(), end),
        ("two lengths", post("content-length: 0\r\ncontent-length: 66\r\n"), HIDDEN.into(), end),
        ("two lengths in one", post("content-length: 0, 66\r\n"), HIDDEN.into(), end),
        (
            "two equal lengths",
            post("content-length: 2\r\ncontent-length: 2\r\n"),
            "{}".into(),
            Must::Answer(422),
        ),
        ("a signed length", post("content-length: +2\r\n"), "{}".into(), end),
        ("a negative length", post("content-length: -2\r\n"), "{}".into(), end),
        ("a length in hex", post("content-length: 0x2\r\n"), "{}".into(), end),
        ("a length that overflows", post("content-length: 18446744073709551618\r\n"), "{}".into(), end),
        ("no number as length", post("content-length: two\r\n"), "{}".into(), end),
        ("chunked is not the last", post("transfer-encoding: chunked, gzip\r\n"), hidden(), end),
        ("chunked twice", post("transfer-encoding: chunked, chunked\r\n"), hidden(), end),
        ("an unknown encoding", post("transfer-encoding: xchunked\r\n"), hidden(), end),
        ("identity", post("transfer-encoding: identity\r\n"), hidden(), end),
        ("a quoted encoding", post("transfer-encoding: \"chunked\"\r\n"), hidden(), end),
        (
            "a tab in the encoding",
            post("transfer-encoding:\tchunked\r\n"),
            "2\r\n{}\r\n0\r\n\r\n".into(),
            Must::Answer(422),
        ),
        ("chunked under HTTP/1.0", post(chunked).replace("HTTP/1.1", "HTTP/1.0"), hidden(), end),
        ("a chunk of no size", post(chunked), format!("\r\n{{}}\r\n{}", hidden()), end),
        ("a chunk of a wrong size", post(chunked), format!("1\r\n{{}}\r\n{}", hidden()), end),
        ("a chunk in no hex", post(chunked), format!("g\r\n{{}}\r\n{}", hidden()), end),
        ("a signed chunk", post(chunked), format!("-2\r\n{{}}\r\n{}", hidden()), end),
        (
            "a chunk whose size overflows",
            post(chunked),
            format!("10000000000000002\r\n{{}}\r\n{}", hidden()),
            end,
        ),
        ("a bare line feed in a chunk", post(chunked), format!("2\n{{}}\n{}", hidden()), end),
        ("a bare line feed after a chunk's size", post(chunked), format!("2;x\n{{}}\r\n{}", hidden()), end),
        ("an extension of a chunk", post(chunked), "2;a=b\r\n{}\r\n0\r\n\r\n".into(), Must::Answer(422)),
        (
            "an endless extension",
            post(chunked),
            format!("2;{}\r\n{{}}\r\n{}", "x".repeat(70_000), hidden()),
            end,
        ),
        (
            "trailers",
            post(chunked),
            format!("{:x}\r\n{whole}\r\n0\r\nx-sum: 1\r\n\r\n", whole.len()),
            Must::Answer(422),
        ),
        (
            "endless trailers",
            post(chunked),
            format!("0\r\nx: {}\r\n\r\n", "x".repeat(140_000)),
            Must::End(&[400, 413, 422, 431]),
        ),
        (
            "more chunks than a body may have",
            post(chunked),
            format!("900000\r\n{}\r\n0\r\n\r\n", "x".repeat(0x90_0000)),
            Must::Answer(413),
        ),
        (
            "more length than a body may have",
            post("content-length: 9000000\r\n"),
            String::new(),
            Must::End(&[413]),
        ),
    ]
}

fn heads() -> Vec<Case> {
    let get = |text: &str| format!("GET /livez HTTP/1.1\r\nhost: a\r\n{text}");
    let (end, none) = (Must::End(&[400]), String::new);
    let large = |bytes: usize| format!("x-long: {}\r\n", "y".repeat(bytes));
    vec![
        ("a plain request", get(""), none(), Must::Answer(200)),
        ("a body that GET does not need", get("content-length: 2\r\n"), "{}".into(), Must::Answer(200)),
        ("a folded header", get("x-a: b\r\n c: d\r\n"), none(), end),
        ("a space before the colon", get("content-length : 2\r\n"), "{}".into(), end),
        ("a tab before the colon", get("transfer-encoding\t: chunked\r\n"), none(), end),
        ("a space before a name", get(" x-a: b\r\n"), none(), end),
        ("a name with a control character", get("x-a\u{1}: b\r\n"), none(), end),
        ("a null in a value", get("x-a: b\0c\r\n"), none(), end),
        ("a carriage return in a value", get("x-a: b\rc: d\r\n"), none(), end),
        ("no colon", get("x-a\r\n"), none(), end),
        ("an empty name", get(": b\r\n"), none(), end),
        ("no version", "GET /livez\r\n".into(), none(), end),
        ("an unknown version", "GET /livez HTTP/1.2\r\nhost: a\r\n".into(), none(), end),
        ("version 3", "GET /livez HTTP/3.0\r\nhost: a\r\n".into(), none(), end),
        ("two spaces", "GET  /livez HTTP/1.1\r\nhost: a\r\n".into(), none(), end),
        ("a method with a bracket", "GE{T /livez HTTP/1.1\r\nhost: a\r\n".into(), none(), end),
        ("an absolute form", "GET http://b/livez HTTP/1.1\r\nhost: a\r\n".into(), none(), Must::Answer(200)),
        (
            "an absolute form without a key",
            "GET http://b/api/v1/cluster HTTP/1.1\r\nhost: a\r\n".into(),
            none(),
            Must::Answer(401),
        ),
        (
            "an absolute form of a secret path",
            "GET http://b/livez/../api/v1/cluster HTTP/1.1\r\nhost: a\r\n".into(),
            none(),
            Must::Answer(401),
        ),
        ("TRACE", "TRACE /livez HTTP/1.1\r\nhost: a\r\n".into(), none(), Must::Answer(401)),
        ("CONNECT", "CONNECT b:80 HTTP/1.1\r\nhost: b:80\r\n".into(), none(), Must::Answer(401)),
        ("OPTIONS *", "OPTIONS * HTTP/1.1\r\nhost: a\r\n".into(), none(), Must::Answer(401)),
        (
            "an upgrade to HTTP/2",
            get("connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"),
            none(),
            Must::Answer(200),
        ),
        ("a header of 10 KB", get(&large(10_000)), none(), Must::Answer(200)),
        ("a header of 70 KB", get(&large(70_000)), none(), Must::End(&[431])),
        (
            "a path of 70 KB",
            format!("GET /{} HTTP/1.1\r\nhost: a\r\n", "y".repeat(70_000)),
            none(),
            Must::End(&[414, 431]),
        ),
        ("101 headers", get(&"x-a: b\r\n".repeat(101)), none(), Must::End(&[431])),
        (
            "an expectation, and the body at once",
            get("expect: 100-continue\r\ncontent-length: 2\r\n"),
            "{}".into(),
            Must::Answer(200),
        ),
    ]
}

/// The statuses of the answers that belong to the case, and whether anything smuggled was answered.
fn read(text: &str) -> (Vec<u16>, bool, bool) {
    let answers: Vec<&str> = text.split("HTTP/1.").skip(1).collect();
    let named = |answer: &&&str, name: &str| answer.contains(&format!("x-request-id: {name}"));
    let own = answers.iter().filter(|answer| !named(answer, "sentinel"));
    let statuses = own.filter_map(|answer| answer.get(2..5)?.parse().ok()).filter(|status| *status != 100);
    let has = |name: &str| answers.iter().any(|answer| named(&answer, name));
    (statuses.collect(), has("smuggled"), has("sentinel"))
}

#[tokio::test]
async fn one_request_is_never_read_as_two() {
    let options =
        Options::default().with("CONCORD_IDLE_TIMEOUT_MS", "3000").with("CONCORD_HEADER_TIMEOUT_MS", "3000");
    let cluster = Cluster::start_with("hostile-smuggling", &options).await;
    let good = GoodClient::start(&cluster).await;
    let node = &cluster.nodes[0];
    let key = node.settings["CONCORD_API_KEY"].clone();
    let sentinel = "GET /livez HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-request-id: sentinel\r\n\r\n";
    let cases = framing(&key).into_iter().chain(heads());
    let checked = cases.map(|(name, head, body, must)| async move {
        let mut stream = connect(api(node)).await;
        let bytes = format!("{head}x-request-id: case\r\n\r\n{body}{sentinel}");
        let (mut from, mut into) = stream.split();
        let write = async { drop(tokio::io::AsyncWriteExt::write_all(&mut into, bytes.as_bytes()).await) };
        let mut seen = Vec::new();
        let read_all = async {
            let mut chunk = vec![0; 64 << 10];
            while let Ok(count @ 1..) = tokio::io::AsyncReadExt::read(&mut from, &mut chunk).await {
                seen.extend_from_slice(&chunk[..count]);
            }
        };
        let both = async { tokio::join!(write, read_all) };
        let closed = tokio::time::timeout(super::raw::PATIENCE, both).await.is_ok();
        let text = String::from_utf8_lossy(&seen).into_owned();
        let (statuses, smuggled, went_on) = read(&text);
        let holds = match must {
            Must::Answer(status) => statuses == [status],
            Must::End(any_of) => !went_on && statuses.len() <= 1 && statuses.iter().all(|one| any_of.contains(one)),
        };
        let right = closed && !smuggled && holds;
        (!right).then(|| format!("{name}: expected {must:?}; closed: {closed}, smuggled: {smuggled}, answers {statuses:?}, went on: {went_on}"))
    });
    let wrong: Vec<String> = futures::future::join_all(checked).await.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    good.stop(&cluster, "ambiguous requests").await.is_unhurt().memory_within(512);
}

#[tokio::test]
async fn a_body_that_is_announced_is_invited_only_with_the_key() {
    let cluster = Cluster::start("hostile-expect").await;
    let node = &cluster.nodes[0];
    let key = node.settings["CONCORD_API_KEY"].clone();
    for (credential, invited) in [(key.as_str(), true), ("unknown", false)] {
        let mut stream = connect(api(node)).await;
        let head = format!(
            "POST /api/v1/config_definition HTTP/1.1\r\nhost: a\r\nauthorization: {credential}\r\n\
             expect: 100-continue\r\nconnection: close\r\ncontent-length: 2\r\n\r\n"
        );
        send(&mut stream, &head).await;
        let first = super::raw::read_some(&mut stream, 12).await;
        assert_eq!(first == b"HTTP/1.1 100", invited, "{credential}: {}", String::from_utf8_lossy(&first));
        if invited {
            send(&mut stream, "{}").await;
        }
        assert!(until_closed(&mut stream, super::raw::PATIENCE).await.is_some());
    }
}
