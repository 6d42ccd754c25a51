//! Streams of HTTP/2 that their caller does not take, with a valid key: each is ended for itself, and what it holds in
//! memory is free again.

use std::time::Duration;

use futures::future::join_all;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, timeout},
};

use super::{
    frames::{
        ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, RESET, SETTINGS, WINDOW, frame,
        get, literal, window,
    },
    raw::{api, connect, send},
    reads::noise,
};
use crate::harness::{
    Client, Cluster, DEADLINE, Node, Options, check, eventually,
    load::{config, define, set},
    time::{lasts, pace},
};

/// A connection of HTTP/2, frame by frame.
struct Caller {
    stream: TcpStream,
    unread: Vec<u8>,
    key: String,
}

/// A frame: kind, stream, payload.
type Frame = (u8, u32, Vec<u8>);

impl Caller {
    /// Connects. Each stream begins with a window of so many bytes, and the connection's is as large as may be.
    async fn connect(node: &Node, stream_window: u32) -> Self {
        let mut stream = connect(api(node)).await;
        send(&mut stream, [PREFACE, &window(stream_window), &grant(0, (1 << 31) - 1 - 65_535)].concat())
            .await;
        Self { stream, unread: Vec::new(), key: node.settings["CONCORD_API_KEY"].clone() }
    }

    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        send(&mut self.stream, bytes).await;
    }

    async fn get(&mut self, stream: u32, path: &str) {
        let bytes = get(stream, path, Some(&self.key));
        self.send(bytes).await;
    }

    /// The next frame; pings and settings are answered. `None` at the end of the connection.
    async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some((head, rest)) = self.unread.split_at_checked(9) {
                let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
                if let Some(payload) = rest.get(..length) {
                    let on = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
                    let (kind, flags, payload) = (head[3], head[4], payload.to_vec());
                    self.unread.drain(..9 + length);
                    if kind == PING && flags & ACK == 0 {
                        self.send(frame(PING, ACK, 0, &payload)).await;
                        continue;
                    }
                    // The windows that they name count from then on.
                    if kind == SETTINGS && flags & ACK == 0 {
                        self.send(frame(SETTINGS, ACK, 0, &[])).await;
                        continue;
                    }
                    return Some((kind, on, payload));
                }
            }
            let mut chunk = vec![0; 64 << 10];
            match self.stream.read(&mut chunk).await {
                Ok(count @ 1..) => self.unread.extend_from_slice(&chunk[..count]),
                _ => return None,
            }
        }
    }

    /// The next frame for which this holds, within [`DEADLINE`].
    async fn until(&mut self, what: &str, holds: impl Fn(&Frame) -> bool) -> Frame {
        let found = async {
            loop {
                let next = self.next().await.unwrap_or_else(|| panic!("{what}: the connection has ended"));
                assert_ne!(next.0, GOAWAY, "{what}: {next:?}");
                if holds(&next) {
                    return next;
                }
            }
        };
        timeout(DEADLINE, found).await.unwrap_or_else(|_| panic!("{what}: in vain"))
    }
}

/// More window for a stream, or for the connection.
fn grant(stream: u32, bytes: u32) -> Vec<u8> {
    frame(WINDOW, 0, stream, &bytes.to_be_bytes())
}

/// A definition with a config that is written again later.
async fn prepare(client: &Client) {
    define(client, "d").await;
    write(client, "new", 1).await;
}

async fn write(client: &Client, key: &str, bytes: usize) {
    set(client, "d", key, &json!({"x": noise(bytes)})).await;
}

/// A write that needs memory is taken again.
async fn is_taken_again(client: &Client, bytes: usize) {
    let body = json!({"data": {"x": noise(bytes)}});
    eventually("a large write is taken", async || {
        let answer = client.put(&config("d", "new"), &body).attempt().await?;
        check(answer.status == 200, || answer.status.to_string())
    })
    .await;
}

fn options(in_flight_mb: usize) -> Options {
    Options::default().with("CONCORD_IN_FLIGHT_BYTES", &(in_flight_mb << 20).to_string())
}

#[tokio::test]
async fn answers_that_are_left_in_their_windows_are_ended_and_their_memory_is_free() {
    const READS: u32 = 200;
    let options = options(32).with("CONCORD_SEND_TIMEOUT_MS", "2000");
    let cluster = Cluster::start_with("streams-left", &options).await;
    let client = cluster.clients().remove(0);
    prepare(&client).await;
    write(&client, "k", 60_000).await;
    // One byte: each answer is wholly passed on to the library, and lies there.
    let mut caller = Caller::connect(&cluster.nodes[0], 1).await;
    caller.get(1, "/api/v1/watch").await;
    caller.send(grant(1, 1 << 20)).await;
    caller.until("the watch", |(kind, on, _)| (*kind, *on) == (HEADERS, 1)).await;
    for turn in 1..=READS {
        caller.get(2 * turn + 1, &config("d", "k")).await;
    }
    let mut begun = 0;
    while begun < READS {
        let (.., payload) = caller.until("an answer", |(kind, on, _)| *kind == HEADERS && *on > 1).await;
        assert!(!payload.is_empty());
        begun += 1;
    }
    let refused = client.put(&config("d", "new"), &json!({"data": {"x": noise(500_000)}})).attempt().await;
    assert_eq!(refused.expect("an answer").status, 429, "the attack holds the memory");
    // The watch goes on beside the streams that are ended.
    let watched = tokio::spawn(async move {
        let mut ended = 0;
        loop {
            let (kind, on, payload) =
                caller.until("an event", |(kind, ..)| [DATA, RESET].contains(kind)).await;
            ended += usize::from(kind == RESET && on > 1);
            if on == 1 && String::from_utf8_lossy(&payload).contains("after") {
                return ended;
            }
        }
    });
    is_taken_again(&client, 500_000).await;
    set(&client, "d", "after", &json!({"n": 1})).await;
    let ended = watched.await.expect("the watch goes on");
    assert!(ended > 100, "{ended} streams were ended, of those that were answered 200");
}

#[tokio::test]
async fn one_stream_that_is_not_read_ends_alone() {
    let options = Options::default().with("CONCORD_SEND_TIMEOUT_MS", "1500");
    let cluster = Cluster::start_with("streams-one", &options).await;
    let client = cluster.clients().remove(0);
    prepare(&client).await;
    write(&client, "k", 900_000).await;
    // The answer fills its window: exactly with whole parts, or not.
    for stream_window in [65_535, 2 << 16] {
        let mut caller = Caller::connect(&cluster.nodes[0], stream_window).await;
        caller.get(1, "/api/v1/watch").await;
        caller.until("the watch", |(kind, on, _)| (*kind, *on) == (HEADERS, 1)).await;
        caller.get(3, &config("d", "k")).await;
        caller.until("the stream is ended", |(kind, on, _)| (*kind, *on) == (RESET, 3)).await;
        caller.get(5, "/livez").await;
        caller.until("another request", |(kind, on, _)| (*kind, *on) == (HEADERS, 5)).await;
        set(&client, "d", "seen", &json!({"window": stream_window})).await;
        let event = |(kind, on, payload): &Frame| {
            (*kind, *on) == (DATA, 1) && String::from_utf8_lossy(payload).contains("seen")
        };
        caller.until("an event", event).await;
    }
}

#[tokio::test]
async fn many_answers_over_a_slow_link_are_all_sent() {
    const ANSWERS: u32 = 16;
    const BYTES: usize = 80_000;
    let options = Options::default().with("CONCORD_SEND_TIMEOUT_MS", "2000");
    let cluster = Cluster::start_with("streams-slow-link", &options).await;
    let client = cluster.clients().remove(0);
    prepare(&client).await;
    write(&client, "k", BYTES).await;
    let mut stream = connect(api(&cluster.nodes[0])).await;
    send(&mut stream, [PREFACE, &window(1 << 20)].concat()).await;
    let key = cluster.nodes[0].settings["CONCORD_API_KEY"].clone();
    let mut caller = Caller { stream, unread: Vec::new(), key };
    for turn in 0..ANSWERS {
        caller.get(2 * turn + 1, &config("d", "k")).await;
    }
    // The link: 16 KiB each 250 ms for all streams together, so that each has its turn after four seconds.
    let (mut ended, mut taken) = (0, 0);
    let mut next_grant = Instant::now();
    let all = async {
        while ended < ANSWERS {
            tokio::select! {
                () = pace(next_grant.saturating_duration_since(Instant::now())) => {
                    next_grant = Instant::now() + Duration::from_millis(250);
                    caller.send(grant(0, 16 << 10)).await;
                }
                next = caller.next() => {
                    let (kind, on, payload) = next.unwrap_or_else(|| panic!("ended after {ended} answers"));
                    assert!(kind != RESET && kind != GOAWAY, "{kind} on {on} after {ended} answers");
                    taken += if kind == DATA { payload.len() } else { 0 };
                    // Ends of streams are counted by their bytes.
                    ended = u32::try_from(taken / BYTES).expect("few");
                }
            }
        }
    };
    timeout(Duration::from_secs(60), all).await.expect("all answers in time");
}

#[tokio::test]
async fn streams_that_are_read_slowly_make_way_while_memory_is_scarce() {
    const READERS: u32 = 25;
    let cluster = Cluster::start_with("streams-scarce", &options(64)).await;
    let client = cluster.clients().remove(0);
    prepare(&client).await;
    write(&client, "k", 600_000).await;
    let node = &cluster.nodes[0];
    // 16 KiB a second each: far above what a caller must take while there is memory. Over HTTP/1 the kernel takes most of
    // an answer, so there a unit test shows it.
    let mut caller = Caller::connect(node, 65_535).await;
    let streams = (0..READERS).map(|turn| 2 * turn + 1);
    for stream in streams.clone() {
        caller.get(stream, &config("d", "k")).await;
    }
    let reader = tokio::spawn(async move {
        let mut next_grant = Instant::now();
        loop {
            tokio::select! {
                () = pace(next_grant.saturating_duration_since(Instant::now())) => {
                    next_grant = Instant::now() + Duration::from_secs(1);
                    caller.send(streams.clone().map(|stream| grant(stream, 16 << 10)).collect::<Vec<_>>().concat()).await;
                }
                next = caller.next() => if matches!(next, None | Some((RESET, ..))) { return },
            }
        }
    });
    timeout(DEADLINE, reader).await.expect("in time").expect("streams are ended");
    is_taken_again(&client, 900_000).await;
}

#[tokio::test]
async fn short_answers_that_nobody_takes_count() {
    let cluster = Cluster::start_with("streams-short", &options(32)).await;
    let client = cluster.clients().remove(0);
    prepare(&client).await;
    write(&client, "k", 7000).await;
    // 20 connections, 200 streams each: 28 MB, of which callers may hold 12.
    let open = join_all((0..20).map(async |_| {
        let mut caller = Caller::connect(&cluster.nodes[0], 0).await;
        for turn in 0..200 {
            caller.get(2 * turn + 1, &config("d", "k")).await;
        }
        let (mut served, mut all) = (0, 0);
        while all < 200 {
            let (.., head) = caller.until("an answer", |(kind, ..)| *kind == HEADERS).await;
            // `:status: 200` is one byte, from the static table.
            served += usize::from(head[0] == 0x88);
            all += 1;
        }
        (caller, served)
    }))
    .await;
    let served: usize = open.iter().map(|(_, served)| served).sum();
    println!("{served} of 4000 short answers were made");
    assert!((1000..4000).contains(&served), "{served}");
    drop(open);
    is_taken_again(&client, 500_000).await;
}

#[tokio::test]
async fn a_large_first_body_is_taken() {
    const BYTES: usize = 500_000;
    let cluster = Cluster::start("streams-first-body").await;
    let client = cluster.clients().remove(0);
    prepare(&client).await;
    let node = &cluster.nodes[0];
    for _ in 0..5 {
        let mut caller = Caller::connect(node, 65_535).await;
        // A client that asks for a probe first knows the windows.
        caller.send(get(1, "/livez", None)).await;
        caller.until("the probe", |(kind, on, _)| (*kind, *on) == (HEADERS, 1)).await;
        let mut block = vec![0x02, 3];
        block.extend(b"PUT");
        block.extend([0x86, 0x04]);
        let path = config("d", "new");
        block.push(u8::try_from(path.len()).expect("short"));
        block.extend(path.as_bytes());
        block.extend([0x01, 1, b'a']);
        block.extend(literal("authorization", &caller.key));
        let body = json!({"data": {"x": noise(BYTES)}}).to_string();
        let mut bytes = frame(HEADERS, END_HEADERS, 3, &block);
        let mut parts = body.as_bytes().chunks(16 << 10).peekable();
        while let Some(part) = parts.next() {
            bytes.extend(frame(DATA, if parts.peek().is_none() { END_STREAM } else { 0 }, 3, part));
        }
        // All of it is there when the node looks.
        node.pause();
        let (written, ()) = tokio::join!(caller.stream.write_all(&bytes), async {
            lasts(Duration::from_millis(300)).await;
            node.resume();
        });
        written.expect("it is taken");
        caller.until("the answer", |(kind, on, _)| (*kind, *on) == (HEADERS, 3)).await;
    }
}
