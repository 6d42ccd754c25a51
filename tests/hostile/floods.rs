//! What clients do who want a turn again and again, over many connections at once: floods of frames, of requests, and of
//! heads.
//!
//! Every attack lasts as long as its control, which comes right before it: harmless reads over as many connections. Both
//! run beside the good client, which has its connections when they begin. The attack is judged by the control, because a
//! time alone says only how busy the machine is. What an attack has left is done before the next one begins.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, join_all},
};
use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split},
    time::timeout_at,
};

use super::{
    GoodClient,
    frames::{
        DATA, END_HEADERS, END_STREAM, HEADERS, PING, PREFACE, PRIORITY, RESET, SETTINGS, frame, get,
        literal, window,
    },
    good_client::Report,
    greedy::with_key,
    raw::{api, connect, many_connections},
    reads,
};
use crate::{
    harness::{
        Client, Cluster, Options, check, eventually,
        load::{config, define, set},
        number,
        time::pace,
    },
    tls::{encrypted, raw::trusting},
};

/// How many times as long as in the control the good client's requests may take, p99.
const TIMES: u32 = 3;
/// And this beside it: what a busy machine does to the one and not to the other.
const NOISE: Duration = Duration::from_millis(250);
/// Connections of a control at most: more make no more load.
const CONTROL_CONNECTIONS: usize = 64;
/// Requests of the good client before an attack begins: two rounds of each of its loops.
const WARM_REQUESTS: usize = 24;
/// The pause after a connection that the node has ended.
const RECONNECT_PAUSE: Duration = Duration::from_millis(5);
/// A config that is read, as it is written and as HPACK has room for it.
const CONFIG: &str = "/api/v1/config_definition/greedy/config/k0000001";

/// How long an attack lasts.
fn attack_time() -> Duration {
    Duration::from_secs(number("HOSTILE_ATTACK_S").unwrap_or(3))
}

/// What each connection of an attack does until the end, and how often it did it. It gets the nodes and its own number.
type Attacker = Arc<dyn Fn(Arc<Target>, usize, Instant) -> BoxFuture<'static, usize> + Send + Sync>;

/// Whom an attack meets.
struct Target {
    nodes: Vec<SocketAddr>,
    clients: Vec<Client>,
    /// The attacker's access key.
    key: String,
    is_encrypted: bool,
}

/// A connection, plain or over TLS.
trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Wire for S {}

impl Target {
    /// A client with the attacker's key and connections of its own.
    fn client(&self, turn: usize) -> Client {
        self.clients[turn % self.clients.len()].with_credential(&self.key)
    }

    /// A new connection. A node that has too many ends it during the handshake.
    async fn connect(&self, turn: usize) -> io::Result<Box<dyn Wire>> {
        let stream = connect(self.nodes[turn % self.nodes.len()]).await;
        Ok(if self.is_encrypted { Box::new(trusting(stream).await?) } else { Box::new(stream) })
    }
}

/// An attack: its name, its connections, and what each of them does.
struct Attack {
    name: &'static str,
    connections: usize,
    attacker: Attacker,
}

impl Attack {
    fn new<F>(
        name: &'static str,
        connections: usize,
        attacker: impl Fn(Arc<Target>, usize, Instant) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = usize> + Send + 'static,
    {
        let attacker: Attacker =
            Arc::new(move |target: Arc<Target>, turn, end| attacker(target, turn, end).boxed());
        Self { name, connections, attacker }
    }

    /// Runs it on a thread of its own, which is one core at most.
    async fn run(&self, target: &Arc<Target>, connections: usize) -> usize {
        let (attacker, target) = (Arc::clone(&self.attacker), Arc::clone(target));
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let end = Instant::now() + attack_time();
            let attackers = (0..connections).map(|turn| attacker(Arc::clone(&target), turn, end));
            runtime
                .expect("a runtime")
                .block_on(async { join_all(attackers).await.into_iter().sum::<usize>() })
        });
        let ended = tokio::task::spawn_blocking(|| thread.join()).await;
        ended.expect("the wait is not cancelled").expect("no attacker panics")
    }
}

/// Sends `begin` and then the same bytes again and again, on a new connection when the node ends one. Reads what comes,
/// or nothing of it.
fn flood(
    name: &'static str,
    connections: usize,
    begin: impl Fn(&Target) -> Vec<u8> + Send + Sync + 'static,
    unit: &[u8],
    reads: bool,
) -> Attack {
    let (begin, block) = (Arc::new(begin), Arc::new(unit.repeat((32 << 10) / unit.len() + 1)));
    Attack::new(name, connections, move |target, turn, end| {
        let (begin, block) = (Arc::clone(&begin), Arc::clone(&block));
        async move {
            let mut sent = 0;
            let attack = async {
                loop {
                    let Ok(stream) = target.connect(turn).await else {
                        pace(RECONNECT_PAUSE).await;
                        continue;
                    };
                    let (mut from, mut into) = split(stream);
                    let read = async {
                        let mut chunk = vec![0; 64 << 10];
                        while reads && matches!(from.read(&mut chunk).await, Ok(1..)) {}
                        if !reads {
                            std::future::pending::<()>().await;
                        }
                    };
                    let write = async {
                        let mut is_open = into.write_all(&begin(&target)).await.is_ok();
                        while is_open {
                            is_open = into.write_all(&block).await.is_ok();
                            sent += 1;
                        }
                    };
                    tokio::select! {
                        () = read => {}
                        () = write => {}
                    }
                    pace(RECONNECT_PAUSE).await;
                }
            };
            let _until_the_end: Result<(), _> = timeout_at(end.into(), attack).await;
            sent
        }
    })
}

/// Sends so many requests of HTTP/2, waits until all are answered or refused, and begins again.
fn rounds(
    name: &'static str,
    connections: usize,
    at_once: u32,
    request: impl Fn(&Target, u32) -> Vec<u8> + Send + Sync + 'static,
) -> Attack {
    let request = Arc::new(request);
    Attack::new(name, connections, move |target, turn, end| {
        let request = Arc::clone(&request);
        async move {
            let mut answered = 0;
            let attack = async {
                loop {
                    let Ok(mut stream) = target.connect(turn).await else {
                        pace(RECONNECT_PAUSE).await;
                        continue;
                    };
                    let begin = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &window_of_the_connection()].concat();
                    // If it is lost, so is what comes next.
                    drop(stream.write_all(&begin).await);
                    let (mut ended, mut first) = (EndedStreams::default(), 1);
                    'connection: loop {
                        let all = (0..at_once).flat_map(|one| request(&target, first + 2 * one));
                        if stream.write_all(&all.collect::<Vec<_>>()).await.is_err() {
                            break;
                        }
                        first += 2 * at_once;
                        let (until, mut chunk) = (ended.count + at_once as usize, vec![0; 64 << 10]);
                        while ended.count < until {
                            let Ok(count @ 1..) = stream.read(&mut chunk).await else { break 'connection };
                            ended.read(&chunk[..count]);
                        }
                        answered += at_once as usize;
                    }
                    pace(RECONNECT_PAUSE).await;
                }
            };
            let _until_the_end: Result<(), _> = timeout_at(end.into(), attack).await;
            answered
        }
    })
}

/// As much as a connection may be granted.
fn window_of_the_connection() -> Vec<u8> {
    frame(super::frames::WINDOW, 0, 0, &((1_u32 << 31) - 1 - 65_535).to_be_bytes())
}

/// Counts the streams that the node has ended.
#[derive(Debug, Default)]
struct EndedStreams {
    count: usize,
    unread: Vec<u8>,
}

impl EndedStreams {
    fn read(&mut self, bytes: &[u8]) {
        self.unread.extend_from_slice(bytes);
        let mut at = 0;
        while let Some([high, middle, low, kind, flags, ..]) = self.unread.get(at..at + 9) {
            let length = usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low);
            if self.unread.len() < at + 9 + length {
                break;
            }
            let has_ended = [HEADERS, DATA].contains(kind) && flags & END_STREAM != 0;
            self.count += usize::from(has_ended || *kind == RESET);
            at += 9 + length;
        }
        self.unread.drain(..at);
    }
}

/// Asks with the attacker's key again and again, whatever is answered.
fn asking(name: &'static str, connections: usize, path: &str) -> Attack {
    let path: Arc<str> = path.into();
    Attack::new(name, connections, move |target, turn, end| {
        let path = Arc::clone(&path);
        async move {
            let (client, mut asked) = (target.client(turn), 0);
            let attack = async {
                loop {
                    match client.get(&path).open().await {
                        Ok(answer) => drop(answer.bytes().await),
                        Err(_) => pace(RECONNECT_PAUSE).await,
                    }
                    asked += 1;
                }
            };
            let _until_the_end: Result<(), _> = timeout_at(end.into(), attack).await;
            asked
        }
    })
}

/// What a connection of HTTP/2 begins with that carries one good request.
fn known(target: &Target) -> Vec<u8> {
    [PREFACE.to_vec(), frame(SETTINGS, 0, 0, &[]), get(1, "/api/v1/whoami", Some(&target.key))].concat()
}

fn unknown(_: &Target) -> Vec<u8> {
    [PREFACE.to_vec(), frame(SETTINGS, 0, 0, &[])].concat()
}

/// So many requests for bodies that do not fit into a window of nothing.
fn waiting(target: &Target, streams: u32, path: &str) -> Vec<u8> {
    let gets = (0..streams).map(|turn| get(2 * turn + 1, path, Some(&target.key)));
    [PREFACE.to_vec(), window(0), gets.collect::<Vec<_>>().concat()].concat()
}

/// A cluster that attacks meet.
async fn attacked(name: &str) -> (Cluster, Arc<Target>) {
    let cluster = Cluster::start(name).await;
    let target = prepare(&cluster).await;
    (cluster, target)
}

/// Writes what the attacks read, and makes the attacker's key.
async fn prepare(cluster: &Cluster) -> Arc<Target> {
    let leader = cluster.leader().await;
    let root = cluster.client(leader);
    define(&root, "greedy").await;
    reads::fill(&root, "greedy", 1500, |n| json!({"n": n, "text": "x".repeat(1000)})).await;
    let key = with_key(&root, &json!({})).await.key;
    let nodes = cluster.nodes.iter().map(api).collect();
    let clients = cluster.clients();
    let is_encrypted = root.base.starts_with("https:");
    Arc::new(Target { nodes, clients, key, is_encrypted })
}

/// A good client whose loops have connections to all nodes.
async fn good_client(cluster: &Cluster) -> GoodClient {
    let good = GoodClient::start(cluster).await;
    eventually("the good client is warm", async || {
        let requests = good.requests();
        check(requests >= WARM_REQUESTS, || format!("{requests} requests"))
    })
    .await;
    good
}

/// Waits until the nodes have done what an attack has left: the requests and the writes of a key are served in the order
/// of their arrival, once the first request has made the connection known.
async fn settle(target: &Target) {
    for turn in 0..target.clients.len() {
        let client = target.client(turn);
        for _ in 0..2 {
            client.get(CONFIG).insist().await.expect(200);
        }
        set(&client, "greedy", "settled", &json!({"n": 1})).await;
    }
}

/// Runs each attack after its control. All are run before any is judged.
async fn judge(cluster: &Cluster, target: &Arc<Target>, attacks: Vec<Attack>) {
    let mut wrong = Vec::new();
    for attack in attacks {
        let name = attack.name;
        let harmless = asking("control", 0, CONFIG);
        settle(target).await;
        let good = good_client(cluster).await;
        let asked = harmless.run(target, attack.connections.min(CONTROL_CONNECTIONS)).await;
        let control = good.stop(cluster, &format!("{name}: control of {asked} reads")).await;
        let good = good_client(cluster).await;
        let done = attack.run(target, attack.connections).await;
        let beside = good.stop(cluster, &format!("{name}: attack, {done} times")).await;
        beside.memory_within(512);
        let most = control.p99 * TIMES + NOISE;
        println!("{name}: p99 {:?}, in the control {:?}, at most {most:?}", beside.p99, control.p99);
        if beside.p99 > most || !beside.failed.is_empty() || !beside.leader_stayed {
            let Report { p99, failed, leader_stayed, .. } = beside;
            wrong.push(format!(
                "{name}: p99 {p99:?} of {most:?}, leader stayed {leader_stayed}, failed {failed:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn floods_of_frames_over_many_connections_delay_nobody() {
    let _only = many_connections().await;
    let (cluster, target) = attacked("hostile-frame-turns").await;
    let priority = frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 7]);
    let ping = frame(PING, 0, 0, &[7; 8]);
    let windows = [window(1), window(0)].concat();
    let streams = |target: &Target| waiting(target, 200, CONFIG);
    // More at once would be a burst of requests, which is another attack: `requests_of_one_key_…`.
    let few_streams = |target: &Target| waiting(target, 40, CONFIG);
    let attacks = vec![
        flood("windows of waiting streams, 50 connections", 50, few_streams, &windows, true),
        flood("windows of waiting streams, 6 connections", 6, streams, &windows, true),
        flood("priorities without a key", 100, unknown, &priority, true),
        flood("priorities", 100, known, &priority, true),
        flood("unknown frames", 100, known, &frame(0x16, 0, 0, &[0; 8]), true),
        flood("pings whose answers nobody reads", 300, known, &ping, false),
        flood("settings", 100, known, &frame(SETTINGS, 0, 0, &[]), true),
    ];
    judge(&cluster, &target, attacks).await;
    // What was slowed down is served when it behaves.
    let client = target.client(0);
    client.get(CONFIG).insist().await.expect(200);
}

/// A page of 1 MB.
const LIST: &str = "/api/v1/config_definition/greedy/config/?limit=1000";

/// A head of HTTP/1.1 that is nearly as long as it may be.
fn long_head() -> String {
    format!("GET /livez HTTP/1.1\r\nhost: a\r\nx-long: {}\r\n\r\n", "y".repeat(60_000))
}

/// The head of a request of HTTP/1.1 but for its last line.
fn http1_head(line: &str, key: &str) -> String {
    format!("{line} HTTP/1.1\r\nhost: a\r\nauthorization: {key}\r\n")
}

/// What clients of HTTP/1.1 send: requests that do not wait for the answers before them, and a body in the smallest parts.
fn over_http1(target: &Target) -> Vec<Attack> {
    let read = http1_head(&format!("GET {CONFIG}"), &target.key) + "\r\n";
    let put = |target: &Target| {
        let put = http1_head("PUT /api/v1/config_definition/greedy/config/parts", &target.key);
        (put + "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n").into_bytes()
    };
    vec![
        flood("pipelined reads", 64, |_| Vec::new(), read.as_bytes(), true),
        flood("bodies in parts of one byte", 64, put, b"1\r\n \r\n", true),
    ]
}

/// Requests of HTTP/1.1 that cost more.
fn costly_over_http1(target: &Target) -> Vec<Attack> {
    let list = http1_head(&format!("GET {LIST}"), &target.key) + "\r\n";
    let stranger = "GET /api/v1/whoami HTTP/1.1\r\nhost: a\r\n\r\n";
    vec![
        flood("pipelined lists that nobody reads", 200, |_| Vec::new(), list.as_bytes(), false),
        flood("pipelined requests without a key", 64, |_| Vec::new(), stranger.as_bytes(), true),
        flood("long heads without a key", 30, |_| Vec::new(), long_head().as_bytes(), true),
        asking("lists", 64, LIST),
    ]
}

#[tokio::test]
async fn floods_over_http1_delay_nobody() {
    let _only = many_connections().await;
    let (cluster, target) = attacked("hostile-http1-turns").await;
    judge(&cluster, &target, over_http1(&target)).await;
}

#[tokio::test]
async fn floods_over_tls_delay_nobody() {
    let _only = many_connections().await;
    let (cluster, _authority) = encrypted("hostile-tls-turns", &Options::default()).await;
    let target = prepare(&cluster).await;
    let windows = [window(1), window(0)].concat();
    let streams = |target: &Target| waiting(target, 200, CONFIG);
    let mut attacks = vec![
        Attack::new("handshakes", 64, |target, turn, end| async move {
            let mut made = 0;
            let attack = async {
                loop {
                    match target.connect(turn).await {
                        Ok(stream) => drop(stream),
                        Err(_) => pace(RECONNECT_PAUSE).await,
                    }
                    made += 1;
                }
            };
            let _until_the_end: Result<(), _> = timeout_at(end.into(), attack).await;
            made
        }),
        flood("windows of waiting streams", 6, streams, &windows, true),
        flood("priorities without a key", 100, unknown, &frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 7]), true),
        flood("pings whose answers nobody reads", 300, known, &frame(PING, 0, 0, &[7; 8]), false),
        flood("settings", 100, known, &frame(SETTINGS, 0, 0, &[]), true),
    ];
    attacks.extend(over_http1(&target));
    judge(&cluster, &target, attacks).await;
}

#[tokio::test]
#[ignore = "not always held on a busy machine: docs/attack-testing.md, *Not tested, or not limited*"]
async fn costly_requests_over_http1_and_tls_delay_nobody() {
    let _only = many_connections().await;
    let (cluster, target) = attacked("hostile-http1-costly").await;
    judge(&cluster, &target, costly_over_http1(&target)).await;
    drop(cluster);
    let (cluster, _authority) = encrypted("hostile-tls-costly", &Options::default()).await;
    let target = prepare(&cluster).await;
    judge(&cluster, &target, costly_over_http1(&target)).await;
}

#[tokio::test]
#[ignore = "not always held on a busy machine: docs/attack-testing.md, *Not tested, or not limited*"]
async fn heads_and_lists_over_many_connections_delay_nobody() {
    let _only = many_connections().await;
    let (cluster, target) = attacked("hostile-list-turns").await;
    let attacks = vec![
        flood("long heads without a key", 30, |_| Vec::new(), long_head().as_bytes(), true),
        asking("lists", 64, LIST),
    ];
    judge(&cluster, &target, attacks).await;
}

#[tokio::test]
#[ignore = "not always held on a busy machine: docs/attack-testing.md, *Not tested, or not limited*"]
async fn requests_of_one_key_over_many_connections_delay_nobody() {
    let _only = many_connections().await;
    let (cluster, target) = attacked("hostile-request-turns").await;
    let put = |target: &Target, stream: u32| {
        let path = format!("/api/v1/config_definition/greedy/config/w{}", stream % 199);
        let mut block = vec![0x86, 0x04, u8::try_from(path.len()).expect("short")];
        block.extend(path.as_bytes());
        block.extend([0x01, 1, b'a']);
        block.splice(0..0, literal(":method", "PUT"));
        block.extend(literal("authorization", &target.key));
        block.extend(literal("content-type", "application/json"));
        let body = br#"{"data":{"n":1}}"#;
        [frame(HEADERS, END_HEADERS, stream, &block), frame(DATA, END_STREAM, stream, body)].concat()
    };
    let lists = |target: &Target| waiting(target, 60, LIST);
    let attacks = vec![
        rounds("writes", 60, 200, put),
        flood("lists that nobody reads", 200, lists, &frame(PING, 0, 0, &[7; 8]), false),
        rounds("reads", 200, 200, |target, stream| get(stream, CONFIG, Some(&target.key))),
    ];
    judge(&cluster, &target, attacks).await;
}

#[tokio::test]
async fn long_answers_to_one_key_delay_nobody() {
    let _only = many_connections().await;
    let (cluster, target) = attacked("hostile-answer-turns").await;
    let root = cluster.clients().swap_remove(0);
    for turn in 0..3 {
        let writes = (0..100).map(|n| {
            let path = config("greedy", "k0000001");
            let put = root.put(&path, &json!({"data": {"n": n, "turn": turn, "text": "y".repeat(1000)}}));
            async move { put.insist().await.expect(200) }
        });
        join_all(writes).await;
    }
    set(&root, "greedy", "long", &json!({"n": 1})).await;
    let fields = format!("{CONFIG}?fields={}", "a,".repeat(25_000));
    let initial =
        Attack::new("watches that end after their first part", 200, |target, turn, end| async move {
            let mut opened = 0;
            let line =
                "GET /api/v1/watch?initial=true&definition=greedy HTTP/1.1\r\nhost: a\r\nauthorization: ";
            let request = format!("{line}{}\r\n\r\n", target.key);
            let attack = async {
                loop {
                    let Ok(mut stream) = target.connect(turn).await else { continue };
                    if stream.write_all(request.as_bytes()).await.is_ok() {
                        let mut part = vec![0; 20_000];
                        // A node that refuses it closes the connection.
                        drop(stream.read_exact(&mut part).await);
                    }
                    opened += 1;
                }
            };
            let _until_the_end: Result<(), _> = timeout_at(end.into(), attack).await;
            opened
        });
    let attacks = vec![
        initial,
        asking("pages of a history", 64, &format!("{CONFIG}/history?limit=1000")),
        asking("fields that are too many", 32, &fields),
    ];
    judge(&cluster, &target, attacks).await;
    eventually("the places of watches are free", async || {
        let answer = root.get("/api/v1/watch").open().await?;
        check(answer.status() == 200, || format!("{answer:?}"))
    })
    .await;
}
