//! HTTP/2 frame by frame: what breaks the protocol is answered as RFC 9113 says, and the node lives.
//!
//! The cases are those of h2spec that a server answers by itself, and the floods that became known since. Where the RFC
//! has a code of its own for an error, the general one will do: the library sends it when it can't read a frame at all.

use tokio::net::TcpStream;

use super::{
    GoodClient,
    raw::{PATIENCE, api, connect, peer, read_some, send, until_closed},
};
use crate::harness::{Cluster, Options};

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RESET: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
const PUSH: u8 = 5;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW: u8 = 8;
const CONTINUATION: u8 = 9;

pub(super) const END_STREAM: u8 = 1;
pub(super) const ACK: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const WITH_PRIORITY: u8 = 32;

const NO_ERROR: u32 = 0;
const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE_ERROR: u32 = 6;
const COMPRESSION_ERROR: u32 = 9;
const ENHANCE_YOUR_CALM: u32 = 11;

/// The bytes of a frame.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
    let mut bytes = vec![length[1], length[2], length[3], kind, flags];
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// `GET /livez`, from the static table: method, scheme, and the path as a literal.
fn get_livez() -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x04, 6];
    block.extend(b"/livez");
    block.extend([0x01, 1, b'a']);
    block
}

fn livez(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &get_livez())
}

/// A header without an index in any table.
pub(super) fn literal(name: &str, value: &str) -> Vec<u8> {
    let length = |text: &str| u8::try_from(text.len()).expect("a short text");
    let mut bytes = vec![0x00, length(name)];
    bytes.extend(name.as_bytes());
    bytes.push(length(value));
    bytes.extend(value.as_bytes());
    bytes
}

/// A request on a stream.
pub(super) fn get(stream: u32, path: &str, key: Option<&str>) -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x04, u8::try_from(path.len()).expect("short")];
    block.extend(path.as_bytes());
    block.extend([0x01, 1, b'a']);
    block.extend(key.map(|key| literal("authorization", key)).unwrap_or_default());
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &block)
}

/// The setting of the window that each stream begins with.
pub(super) fn window(bytes: u32) -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[&[0, 4], bytes.to_be_bytes().as_slice()].concat())
}

fn with_block(more: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, 1, &[get_livez().as_slice(), more].concat())
}

/// What the node has sent: kind, stream, payload.
fn parse(mut bytes: &[u8]) -> Vec<(u8, u32, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(9) {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let Some((payload, rest)) = rest.split_at_checked(length) else { break };
        let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
        frames.push((head[3], stream, payload.to_vec()));
        bytes = rest;
    }
    frames
}

fn code(payload: &[u8], at: usize) -> u32 {
    payload.get(at..at + 4).map_or(0, |bytes| u32::from_be_bytes(bytes.try_into().expect("four bytes")))
}

/// What the node must do.
#[derive(Debug, Clone)]
enum Must {
    /// End the connection: by GOAWAY with one of these codes, or by closing it.
    Close(&'static [u32]),
    /// End the stream with one of these codes, or the connection.
    Reset(&'static [u32]),
    /// Refuse the request by a status 4xx, by ending the stream, or the connection.
    Refuse,
    /// Answer the probe on this stream as if nothing were there.
    Serve(u32),
}

async fn open(node: &crate::harness::Node) -> TcpStream {
    let mut stream = connect(api(node)).await;
    send(&mut stream, [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await;
    stream
}

/// Frames that are malformed, or of the wrong stream or moment.
fn of_streams() -> Vec<(&'static str, Vec<u8>, Must)> {
    let protocol = || Must::Close(&[PROTOCOL_ERROR]);
    let size = || Must::Close(&[FRAME_SIZE_ERROR, PROTOCOL_ERROR]);
    let half = frame(HEADERS, END_STREAM, 1, &get_livez());
    let zero = [0; 4];
    vec![
        ("an unknown frame is ignored", [frame(0x16, 0, 0, &[0; 8]), livez(1)].concat(), Must::Serve(1)),
        ("unknown flags are ignored", [frame(PING, 0x16, 0, &[0; 8]), livez(1)].concat(), Must::Serve(1)),
        ("a reserved bit is ignored", [frame(PING, 0, 1 << 31, &[0; 8]), livez(1)].concat(), Must::Serve(1)),
        ("a frame over the size limit", frame(DATA, 0, 1, &vec![0; (16 << 10) + 1]), size()),
        ("headers over the size limit", frame(HEADERS, END_HEADERS, 1, &vec![0; 1 << 18]), size()),
        (
            "headers that can't be decompressed",
            frame(HEADERS, 5, 1, &[0xff; 32]),
            Must::Close(&[COMPRESSION_ERROR, PROTOCOL_ERROR]),
        ),
        ("headers on stream 0", frame(HEADERS, 5, 0, &get_livez()), protocol()),
        ("headers on an even stream", livez(2), protocol()),
        (
            "a stream id below the last",
            [livez(5), livez(3)].concat(),
            Must::Close(&[PROTOCOL_ERROR, STREAM_CLOSED]),
        ),
        ("data on stream 0", frame(DATA, 0, 0, &[0; 8]), protocol()),
        ("data on an idle stream", frame(DATA, END_STREAM, 1, &[0; 8]), protocol()),
        (
            "padding longer than the frame",
            frame(HEADERS, 5 | PADDED, 1, &[200, 0x82, 0x86, 0x84]),
            protocol(),
        ),
        ("headers within headers", [half.clone(), livez(3)].concat(), protocol()),
        ("a ping within headers", [half.clone(), frame(PING, 0, 0, &[0; 8])].concat(), protocol()),
        ("an unknown frame within headers", [half.clone(), frame(0x16, 0, 0, &[])].concat(), protocol()),
        (
            "a continuation of another stream",
            [half, frame(CONTINUATION, END_HEADERS, 3, &[])].concat(),
            protocol(),
        ),
        ("a continuation without headers", frame(CONTINUATION, END_HEADERS, 1, &get_livez()), protocol()),
        (
            "a continuation after the end",
            [livez(1), frame(CONTINUATION, END_HEADERS, 1, &[])].concat(),
            protocol(),
        ),
        (
            "a stream that depends on itself",
            [frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 7]), livez(3)].concat(),
            Must::Reset(&[PROTOCOL_ERROR]),
        ),
        (
            "headers that depend on themselves",
            frame(HEADERS, 5 | WITH_PRIORITY, 1, &[&[0, 0, 0, 1, 7], get_livez().as_slice()].concat()),
            Must::Reset(&[PROTOCOL_ERROR]),
        ),
        ("a priority on stream 0", frame(PRIORITY, 0, 0, &[0, 0, 0, 1, 7]), protocol()),
        (
            "a priority of a wrong length",
            frame(PRIORITY, 0, 1, &zero),
            Must::Reset(&[FRAME_SIZE_ERROR, PROTOCOL_ERROR]),
        ),
        ("a reset on stream 0", frame(RESET, 0, 0, &zero), protocol()),
        ("a reset of an idle stream", frame(RESET, 0, 1, &zero), protocol()),
        ("a reset of a wrong length", [livez(1), frame(RESET, 0, 1, &[0; 3])].concat(), size()),
        ("an acknowledgement with settings", frame(SETTINGS, ACK, 0, &[0; 6]), size()),
    ]
}

/// Settings, pings and windows.
fn of_the_connection() -> Vec<(&'static str, Vec<u8>, Must)> {
    let protocol = || Must::Close(&[PROTOCOL_ERROR]);
    let size = || Must::Close(&[FRAME_SIZE_ERROR, PROTOCOL_ERROR]);
    let zero = [0; 4];
    vec![
        ("settings on a stream", frame(SETTINGS, 0, 1, &[0; 6]), protocol()),
        ("settings of a wrong length", frame(SETTINGS, 0, 0, &[0; 5]), size()),
        ("a push setting of 2", frame(SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2]), protocol()),
        (
            "an initial window over the limit",
            frame(SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0]),
            Must::Close(&[FLOW_CONTROL_ERROR, PROTOCOL_ERROR]),
        ),
        ("a frame size below the limit", frame(SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1]), protocol()),
        (
            "an unknown setting is ignored",
            [frame(SETTINGS, 0, 0, &[0, 0xff, 0, 0, 0, 1]), livez(1)].concat(),
            Must::Serve(1),
        ),
        ("a push from a client", frame(PUSH, END_HEADERS, 1, &[0, 0, 0, 2]), protocol()),
        ("a ping on a stream", frame(PING, 0, 1, &[0; 8]), protocol()),
        ("a ping of a wrong length", frame(PING, 0, 0, &[0; 6]), size()),
        ("a goaway on a stream", frame(GOAWAY, 0, 1, &[0; 8]), protocol()),
        ("a window of 0", frame(WINDOW, 0, 0, &zero), protocol()),
        ("a window of a wrong length", frame(WINDOW, 0, 0, &[0; 3]), size()),
        ("a window of an idle stream", frame(WINDOW, 0, 1, &[0, 0, 0, 1]), protocol()),
        (
            "a window over the limit",
            frame(WINDOW, 0, 0, &[0x7f, 0xff, 0xff, 0xff]),
            Must::Close(&[FLOW_CONTROL_ERROR, PROTOCOL_ERROR]),
        ),
    ]
}

/// Requests that are none.
fn requests() -> Vec<(&'static str, Vec<u8>, Must)> {
    vec![
        ("an upper-case header", with_block(&literal("X-Test", "a")), Must::Refuse),
        ("an unknown pseudo-header", with_block(&literal(":test", "a")), Must::Refuse),
        ("a pseudo-header of answers", with_block(&literal(":status", "200")), Must::Refuse),
        (
            "a pseudo-header after a header",
            with_block(&[literal("x-test", "a"), literal(":method", "GET")].concat()),
            Must::Refuse,
        ),
        ("two methods", with_block(&literal(":method", "GET")), Must::Refuse),
        ("two paths", with_block(&literal(":path", "/")), Must::Refuse),
        ("a header of the connection", with_block(&literal("connection", "keep-alive")), Must::Refuse),
        ("a transfer encoding", with_block(&literal("transfer-encoding", "chunked")), Must::Refuse),
        ("a host that is not the authority", with_block(&literal("host", "b")), Must::Refuse),
        ("101 header fields", with_block(&literal("x-more", "y").repeat(101)), Must::Refuse),
        ("te that is not trailers", with_block(&literal("te", "gzip")), Must::Refuse),
        ("no path", frame(HEADERS, 5, 1, &[0x82, 0x86]), Must::Refuse),
        ("no method", frame(HEADERS, 5, 1, &[0x84, 0x86]), Must::Refuse),
        ("a length that the body has not", with_block(&literal("content-length", "5")), Must::Refuse),
        (
            "two lengths",
            with_block(&[literal("content-length", "0"), literal("content-length", "1")].concat()),
            Must::Refuse,
        ),
    ]
}

/// Whether what the node sent is what it must; what it was, otherwise.
fn judge(must: &Must, sent: Option<&[u8]>, seen: &[u8]) -> Result<(), String> {
    let closed = sent.is_some();
    let frames = parse(seen);
    let goaway = frames.iter().find(|(kind, _, payload)| *kind == GOAWAY && code(payload, 4) != 0);
    let goaway = goaway.map(|(_, _, payload)| code(payload, 4));
    let reset = frames.iter().find(|(kind, ..)| *kind == RESET).map(|(_, _, payload)| code(payload, 0));
    let served = |stream: u32| {
        // `:status: 200` is one byte, from the static table.
        frames
            .iter()
            .any(|(kind, on, payload)| *kind == HEADERS && *on == stream && payload.first() == Some(&0x88))
    };
    let ends = |codes: &[u32]| goaway.map_or(closed, |code| codes.contains(&code));
    let holds = match must {
        Must::Close(codes) => ends(codes),
        Must::Reset(codes) => reset.map_or_else(|| ends(codes), |code| codes.contains(&code)),
        Must::Refuse => {
            !served(1)
                && (closed
                    || goaway.is_some()
                    || reset.is_some()
                    || frames.iter().any(|(kind, on, _)| *kind == HEADERS && *on == 1))
        }
        Must::Serve(stream) => served(*stream) && goaway.is_none(),
    };
    if holds {
        Ok(())
    } else {
        Err(format!("closed: {closed}, goaway: {goaway:?}, reset: {reset:?}, {frames:?}"))
    }
}

/// Sends a case on a connection of its own and reads until what comes is what must come.
async fn run(node: &crate::harness::Node, bytes: &[u8], must: &Must) -> Result<(), String> {
    let mut stream = open(node).await;
    send(&mut stream, bytes).await;
    let mut seen = Vec::new();
    let mut why = String::new();
    let watched = async {
        let mut chunk = vec![0; 64 << 10];
        loop {
            let count = tokio::io::AsyncReadExt::read(&mut stream, &mut chunk).await.unwrap_or(0);
            seen.extend_from_slice(&chunk[..count]);
            match judge(must, (count == 0).then_some(&[]), &seen) {
                Ok(()) => return Ok(()),
                Err(wrong) if count == 0 => return Err(wrong),
                Err(wrong) => why = wrong,
            }
        }
    };
    tokio::time::timeout(PATIENCE, watched).await.unwrap_or_else(|_| Err(format!("in vain: {why}")))
}

/// A definition that is created with trailers, or without.
fn creation(key: &str, definition: &str, trailers: Option<&[u8]>) -> Vec<u8> {
    let path = "/api/v1/config_definition";
    let mut block = vec![0x83, 0x86, 0x04, u8::try_from(path.len()).expect("short")];
    block.extend(path.as_bytes());
    block.extend([0x01, 1, b'a']);
    block.extend(literal("authorization", key));
    let body = format!(r#"{{"config_definition_key": "{definition}", "indexes": []}}"#);
    let flags = if trailers.is_none() { END_STREAM } else { 0 };
    let mut all = [frame(HEADERS, END_HEADERS, 1, &block), frame(DATA, flags, 1, body.as_bytes())].concat();
    all.extend(
        trailers.map(|fields| frame(HEADERS, END_STREAM | END_HEADERS, 1, fields)).unwrap_or_default(),
    );
    all
}

#[tokio::test]
async fn a_write_with_trailers_is_refused_and_not_applied() {
    let cluster = Cluster::start("hostile-trailers").await;
    let node = &cluster.nodes[0];
    let key = node.settings["CONCORD_API_KEY"].clone();
    let cases =
        [("none", None), ("path", Some(literal(":path", "/"))), ("field", Some(literal("x-sum", "1")))];
    for (definition, trailers) in &cases {
        let request = creation(&key, definition, trailers.as_deref());
        // Whatever is answered: what it has done is asked below.
        run(node, &request, &Must::Refuse).await.unwrap_or_else(|why| panic!("{definition}: {why}"));
        let answer =
            cluster.clients()[0].get(&format!("/api/v1/config_definition/{definition}/")).insist().await;
        answer.expect(if trailers.is_none() { 200 } else { 404 });
    }
}

#[tokio::test]
async fn frames_that_break_the_protocol_end_their_stream_or_connection_and_nothing_else() {
    let cluster = Cluster::start("hostile-frames").await;
    let good = GoodClient::start(&cluster).await;
    let mut wrong = Vec::new();
    for (name, bytes, must) in [of_streams(), of_the_connection(), requests()].concat() {
        if let Err(why) = run(&cluster.nodes[0], &bytes, &must).await {
            wrong.push(format!("{name}: expected {must:?}: {why}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    good.stop(&cluster, "malformed frames").await.is_unhurt().memory_within(512);
}

/// Sends a flood and expects that the node ends the connection.
async fn flood(name: &str, to: std::net::SocketAddr, begin: &[u8], unit: &[u8], units: usize) {
    let mut stream = connect(to).await;
    send(&mut stream, [PREFACE, &frame(SETTINGS, 0, 0, &[]), begin].concat()).await;
    let (mut from, mut into) = stream.into_split();
    let block = unit.repeat((32 << 10) / unit.len().max(1) + 1);
    let total = units * unit.len();
    let write = async {
        let mut sent = 0;
        while sent < total && tokio::io::AsyncWriteExt::write_all(&mut into, &block).await.is_ok() {
            sent += block.len();
        }
        sent < total
    };
    let read = async {
        let (mut seen, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
        while let Ok(count @ 1..) = tokio::io::AsyncReadExt::read(&mut from, &mut chunk).await {
            // The first answers and the farewell are of interest; the answers to a flood are one too.
            seen.extend_from_slice(&chunk[..count]);
        }
        seen
    };
    let both = async { tokio::join!(write, read) };
    let (cut, seen) =
        tokio::time::timeout(PATIENCE, both).await.unwrap_or_else(|_| panic!("{name}: not closed"));
    let goaway = parse(&seen).iter().rev().find(|one| one.0 == GOAWAY).map(|one| code(&one.2, 4));
    println!("{name}: cut off while sending: {cut}, goaway {goaway:?}");
    if let Some(goaway) = goaway {
        // A flood that is read slowly is no request, so the connection ends as an idle one.
        let expected = [NO_ERROR, ENHANCE_YOUR_CALM, PROTOCOL_ERROR, COMPRESSION_ERROR];
        assert!(expected.contains(&goaway), "{name}: {goaway}");
    }
}

/// A flood of pings on one connection, until the node ends it.
pub(super) async fn pings(to: std::net::SocketAddr) {
    flood("pings", to, &[], &frame(PING, 0, 0, &[7; 8]), 1_000_000).await;
}

#[tokio::test]
async fn floods_of_frames_end_their_connection() {
    let cluster = Cluster::start("hostile-floods").await;
    let good = GoodClient::start(&cluster).await;
    let node = &cluster.nodes[0];
    let begin = frame(HEADERS, END_STREAM, 1, &get_livez());
    let more = frame(CONTINUATION, 0, 1, &literal("x-more", &"y".repeat(100)).repeat(100));
    let empty = frame(CONTINUATION, 0, 1, &[]);
    let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]);
    for to in [api(node), peer(node)] {
        tokio::join!(
            flood("continuations", to, &begin, &more, 10_000),
            flood("empty continuations", to, &begin, &empty, 1_000_000),
            pings(to),
            flood("settings", to, &[], &settings, 1_000_000),
        );
    }
    // Requests that are reset at once (CVE-2023-44487): each unit has a stream of its own.
    let resets: Vec<u8> = (0..20_000_u32)
        .flat_map(|turn| {
            let stream = 2 * turn + 1;
            [livez(stream), frame(RESET, 0, stream, &[0, 0, 0, 8])].concat()
        })
        .collect();
    let mut stream = open(node).await;
    send(&mut stream, &resets).await;
    let seen = until_closed(&mut stream, PATIENCE).await.expect("rapid resets end the connection");
    let goaway = parse(&seen).into_iter().find(|one| one.0 == GOAWAY).map(|one| code(&one.2, 4));
    // A client without a key has one request in a turn: its time may be over before the resets are too many.
    assert!(goaway.is_none_or(|code| [NO_ERROR, ENHANCE_YOUR_CALM].contains(&code)), "{goaway:?}");
    good.stop(&cluster, "floods of frames").await.is_unhurt().memory_within(512);
}

/// What the node does with a connection that asks once or never and then only keeps it open.
async fn is_closed_when_idle(node: &crate::harness::Node, first: &[u8], name: &str) {
    let mut stream = open(node).await;
    send(&mut stream, [first, &frame(SETTINGS, ACK, 0, &[])].concat()).await;
    assert!(until_closed(&mut stream, PATIENCE).await.is_some(), "{name}: still open after {PATIENCE:?}");
}

#[tokio::test]
async fn an_idle_connection_of_http2_is_closed() {
    let options =
        Options::default().with("CONCORD_HEADER_TIMEOUT_MS", "1000").with("CONCORD_IDLE_TIMEOUT_MS", "3000");
    let cluster = Cluster::start_with("hostile-idle-http2", &options).await;
    let good = GoodClient::start(&cluster).await;
    let node = &cluster.nodes[0];
    let key = node.settings["CONCORD_API_KEY"].clone();
    let mut keyed = vec![0x82, 0x86, 0x04, 15];
    keyed.extend(b"/api/v1/cluster");
    keyed.extend([0x01, 1, b'a']);
    keyed.extend(literal("authorization", &key));
    let keyed = frame(HEADERS, END_STREAM | END_HEADERS, 1, &keyed);
    let (probe, half) = (livez(1), frame(HEADERS, END_STREAM, 1, &get_livez()));
    tokio::join!(
        is_closed_when_idle(node, &[], "silent"),
        is_closed_when_idle(node, &probe, "after a probe"),
        is_closed_when_idle(node, &half, "half a head"),
        is_closed_when_idle(node, &keyed, "after a request with the key"),
    );
    good.stop(&cluster, "idle HTTP/2").await.is_unhurt().memory_within(512);
}

#[tokio::test]
async fn over_http2_an_answer_that_is_not_taken_ends_its_stream() {
    let options =
        Options::default().with("CONCORD_SEND_TIMEOUT_MS", "1000").with("CONCORD_HEADER_TIMEOUT_MS", "1000");
    let cluster = Cluster::start_with("hostile-slow-http2", &options).await;
    let good = GoodClient::start(&cluster).await;
    let node = &cluster.nodes[0];
    // No window: the node may send headers, and no byte of a body.
    let no_window = window(0);
    let key = node.settings["CONCORD_API_KEY"].clone();
    let cases = [
        ("/openapi.json", None),
        ("/api/v1/config_definition", Some(key.as_str())),
        ("/api/v1/watch", Some(key.as_str())),
    ];
    for (path, key) in cases {
        let mut stream = connect(api(node)).await;
        send(&mut stream, [PREFACE, &no_window, &get(1, path, key)].concat()).await;
        // It answers pings and does everything else that a living client does.
        let (mut from, mut into) = stream.into_split();
        let answers = async {
            let mut chunk = vec![0; 64 << 10];
            while let Ok(count @ 1..) = tokio::io::AsyncReadExt::read(&mut from, &mut chunk).await {
                for (kind, _, payload) in parse(&chunk[..count]) {
                    // A stranger's connection ends with it.
                    if kind == RESET && key.is_some() {
                        return;
                    }
                    if kind == PING {
                        let pong = frame(PING, ACK, 0, &payload);
                        drop(tokio::io::AsyncWriteExt::write_all(&mut into, &pong).await);
                    }
                }
            }
        };
        assert!(tokio::time::timeout(PATIENCE, answers).await.is_ok(), "{path}: still open");
    }
    good.stop(&cluster, "slow readers over HTTP/2").await.is_unhurt().memory_within(512);
}

#[tokio::test]
async fn files_of_the_documents_that_nobody_reads_take_no_memory() {
    let cluster = Cluster::start("hostile-documents").await;
    let good = GoodClient::start(&cluster).await;
    let mut open = Vec::new();
    for _ in 0..4 {
        let mut stream = connect(api(&cluster.nodes[0])).await;
        let asks = (0..200).map(|turn| get(2 * turn + 1, "/docs/swagger-ui-bundle.js", None));
        send(&mut stream, [PREFACE.to_vec(), window(0), asks.collect::<Vec<_>>().concat()].concat()).await;
        // Each answer has begun: 200 heads, which are longer than this.
        read_some(&mut stream, 200 * 16).await;
        open.push(stream);
    }
    good.stop(&cluster, "files of the documents that nobody reads").await.is_unhurt().memory_within(512);
}
