//! What callers without a key, and slow connections do to the cluster.

use std::{net::SocketAddr, time::Duration};

use futures::future::join_all;
use serde_json::json;
use tokio::{io::AsyncWriteExt as _, net::TcpStream, task::JoinHandle};

use super::{
    GoodClient,
    raw::{
        NARROW, PATIENCE, answer, api, connect, connect_from, connect_narrow, connections_from, descriptors,
        many_connections, peer, read_some, request, send, until_closed,
    },
};
use crate::harness::{
    Client, Cluster, Node, Options, check, eventually,
    load::{config, define, set},
    time::{lasts, pace},
};

/// Silent connections of each test that counts descriptors.
const IDLE: usize = 5000;

/// Watches how many descriptors the nodes have open; the most of each is the result.
struct Descriptors(JoinHandle<()>, std::sync::Arc<std::sync::Mutex<Vec<usize>>>);

impl Descriptors {
    fn watch(cluster: &Cluster) -> Self {
        let pids: Vec<u32> = cluster.nodes.iter().map(Node::pid).collect();
        let peaks = std::sync::Arc::new(std::sync::Mutex::new(vec![0; pids.len()]));
        let seen = std::sync::Arc::clone(&peaks);
        let watcher = tokio::spawn(async move {
            loop {
                for (place, pid) in pids.iter().enumerate() {
                    let now = descriptors(*pid);
                    let mut seen = seen.lock().expect("no holder panics");
                    seen[place] = seen[place].max(now);
                }
                pace(Duration::from_millis(20)).await;
            }
        });
        Self(watcher, peaks)
    }

    fn peak(self) -> usize {
        self.0.abort();
        self.1.lock().expect("no holder panics").iter().copied().max().unwrap_or_default()
    }
}

/// A cluster whose nodes are started with these limits of open files.
async fn with_open_files(name: &str, soft: u64, hard: u64) -> Cluster {
    Cluster::start_prepared(name, &Options::default(), |_, nodes| {
        for node in nodes {
            node.open_files = Some((soft, hard));
        }
    })
    .await
}

/// Opens connections that ask for a probe, or nothing, and are silent then.
async fn idle(to: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut open = Vec::with_capacity(count);
    while open.len() < count {
        let wave = (0..50).map(|turn| async move {
            // From several addresses that are none of the cluster's: what one address loses is another matter.
            let mut stream = connect_from([127, 0, 0, 10 + turn % 8], to).await;
            if turn % 2 == 0 {
                send(&mut stream, request("GET /livez", &[])).await;
            }
            stream
        });
        open.extend(join_all(wave).await);
    }
    open
}

/// Clients that connect anew for each request, as those of a command line do.
async fn newcomers(cluster: &Cluster) {
    for node in &cluster.nodes {
        for _ in 0..5 {
            let answer = tokio::time::timeout(PATIENCE, node.client().get("/api/v1/cluster").attempt()).await;
            let answer = answer.expect("a new client is served in time").expect("it is answered");
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    }
}

async fn idle_connections(name: &str, soft: u64, hard: u64) {
    let _only = many_connections().await;
    let cluster = with_open_files(name, soft, hard).await;
    let good = GoodClient::start(&cluster).await;
    let watched = Descriptors::watch(&cluster);
    let node = &cluster.nodes[0];
    let (callers, peers) = tokio::join!(idle(api(node), IDLE), idle(peer(node), IDLE));
    newcomers(&cluster).await;
    let peak = watched.peak();
    println!(
        "{name}: {} idle connections, at most {peak} descriptors of {hard}",
        callers.len() + peers.len()
    );
    assert!(u64::try_from(peak).expect("a count") < hard, "{peak} descriptors");
    good.stop(&cluster, name).await.is_unhurt().memory_within(512);
}

#[tokio::test]
async fn thousands_of_idle_connections_at_a_low_soft_limit_hurt_nobody() {
    idle_connections("idle-soft", 1024, 20_000).await;
}

#[tokio::test]
async fn thousands_of_idle_connections_at_a_low_hard_limit_hurt_nobody() {
    idle_connections("idle-hard", 1024, 1024).await;
}

#[tokio::test]
async fn one_address_has_its_share_of_connections_and_no_more() {
    let options = Options::default().with("CONCORD_CONNECTIONS_PER_ADDRESS", "20");
    let cluster = Cluster::start_with("hostile-share", &options).await;
    let node = &cluster.nodes[0];
    let key = node.settings["CONCORD_API_KEY"].clone();
    // Those with the key are not evicted: what is beyond the share is refused.
    let keyed = request("GET /api/v1/cluster", &[("authorization", &key)]);
    let mut served = Vec::new();
    for _ in 0..40 {
        let mut stream = connect_from([127, 0, 0, 9], api(node)).await;
        send(&mut stream, &keyed).await;
        let mut first = [0; 12];
        let read = tokio::io::AsyncReadExt::read_exact(&mut stream, &mut first);
        if tokio::time::timeout(PATIENCE, read).await.expect("served or refused").is_ok() {
            served.push(stream);
        }
    }
    assert_eq!(served.len(), 20, "connections of one address are served");
    newcomers(&cluster).await;
    drop(served);
    eventually("the share is free again", async || {
        let mut stream = connect_from([127, 0, 0, 9], api(node)).await;
        send(&mut stream, request("GET /livez", &[("connection", "close")])).await;
        let text = answer(&mut stream).await;
        check(text.starts_with("HTTP/1.1 200"), || text.clone())
    })
    .await;
}

#[tokio::test]
async fn the_share_of_an_address_does_not_bind_the_calls_between_nodes() {
    // At this limit a node takes 192 connections of other nodes. All addresses are one.
    let _only = many_connections().await;
    let cluster = with_open_files("hostile-node-share", 1024, 1024).await;
    let clients = cluster.clients();
    define(&clients[0], "d").await;
    for n in 0..200 {
        set(&clients[0], "d", &format!("k{n}"), &json!({"n": 0})).await;
    }
    let leader = cluster.leader().await;
    let follower = cluster.client(1 + leader % 3);
    for turn in 1..=5 {
        let patches = (0..200).map(|n| {
            let patch = format!(r#"{{"n":{turn}}}"#);
            let call = follower.call(http::Method::PATCH, &config("d", &format!("k{n}")));
            let call = call.text("application/merge-patch+json", &patch);
            async move { call.attempt().await.map(|answer| answer.status) }
        });
        let answers = join_all(patches).await;
        let refused: Vec<_> = answers.iter().filter(|answer| !matches!(answer, Ok(200))).collect();
        assert!(refused.is_empty(), "{} of 200 at once: {:?}", refused.len(), refused.first());
    }
}

#[tokio::test]
async fn slow_and_partial_heads_are_cut_off() {
    let options = Options::default().with("CONCORD_HEADER_TIMEOUT_MS", "1500");
    let cluster = Cluster::start_with("hostile-heads", &options).await;
    let good = GoodClient::start(&cluster).await;
    let node = &cluster.nodes[0];
    let probe = request("GET /livez", &[]);
    let refused = request("GET /api/v1/cluster", &[("authorization", "unknown")]);
    let firsts = ["", probe.as_str(), refused.as_str()];
    let slow = [api(node), peer(node)].into_iter().flat_map(|to| firsts.map(|first| (to, first)));
    let cut = join_all(slow.flat_map(|case| std::iter::repeat_n(case, 30)).map(|(to, first)| async move {
        let mut stream = connect(to).await;
        // A whole request is answered; the head of the next one comes byte by byte.
        send(&mut stream, first).await;
        send(&mut stream, "GET /livez HTTP/1.1\r\nhost: a\r\nx-slow: ").await;
        let (mut from, mut into) = stream.into_split();
        let trickle = tokio::spawn(async move {
            while into.write_all(b"y").await.is_ok() {
                pace(Duration::from_millis(100)).await;
            }
        });
        let mut chunk = [0; 4096];
        let read =
            async { while let Ok(1..) = tokio::io::AsyncReadExt::read(&mut from, &mut chunk).await {} };
        let closed = tokio::time::timeout(PATIENCE, read).await.is_ok();
        trickle.abort();
        closed
    }))
    .await;
    let open = cut.iter().filter(|closed| !**closed).count();
    assert_eq!(open, 0, "of {} slow connections {open} are open after {PATIENCE:?}", cut.len());
    good.stop(&cluster, "slow heads").await.is_unhurt().memory_within(512);
}

#[tokio::test]
async fn heads_that_never_end_hold_little_memory() {
    let options = Options::default().with("CONCORD_HEADER_TIMEOUT_MS", "60000");
    let _only = many_connections().await;
    let cluster = Cluster::start_with("hostile-large-heads", &options).await;
    let good = GoodClient::start(&cluster).await;
    let node = &cluster.nodes[0];
    // 2000 × 60 KB would be 120 MB, and 240 with the spare of the buffers.
    let head = format!("GET /livez HTTP/1.1\r\nhost: a\r\nx-long: {}", "y".repeat(60_000));
    let mut open = Vec::new();
    for _ in 0..40 {
        let wave = (0..50).map(|_| async {
            let mut stream = connect(api(node)).await;
            send(&mut stream, &head).await;
            stream
        });
        open.extend(join_all(wave).await);
    }
    // Ordinary requests on new connections are served.
    newcomers(&cluster).await;
    let all = open.len();
    let cut = join_all(open.iter_mut().map(|stream| until_closed(stream, Duration::from_secs(1)))).await;
    let cut = cut.iter().flatten().count();
    println!("of {all} heads of 60 KB that never end, {cut} were cut off");
    // Beyond the common budget of 64 MiB.
    assert!(cut > all / 5, "{cut} of {all}");
    good.stop(&cluster, "heads that never end").await.is_unhurt().memory_within(400);
}

#[tokio::test]
async fn the_body_of_a_stranger_is_not_read() {
    let cluster = Cluster::start("hostile-bodies").await;
    let good = GoodClient::start(&cluster).await;
    let node = &cluster.nodes[0];
    let length = ("content-length", "8000000");
    let post = |headers: &[(&str, &str)]| request("POST /api/v1/config_definition", headers);
    let cases = [
        (api(node), post(&[length])),
        (api(node), post(&[length, ("authorization", "unknown"), ("expect", "100-continue")])),
        (api(node), post(&[("transfer-encoding", "chunked")])),
        (peer(node), request("POST /peer/write", &[length])),
        (peer(node), request("POST /peer/join", &[length, ("x-concord-secret", "unknown")])),
    ];
    for (to, head) in cases {
        let mut slow = connect(to).await;
        send(&mut slow, &head).await;
        // Answered although nothing of the body has come, and it is no invitation to send it.
        let begin = String::from_utf8_lossy(&read_some(&mut slow, 12).await).into_owned();
        assert_eq!(begin, "HTTP/1.1 401", "{head}");
        // The connection is of no more use: what follows would be the body.
        let rest = answer(&mut slow).await;
        assert!(!rest.contains("HTTP/1.1"), "one answer to one request: {rest}");
        let mut quick = connect(to).await;
        send(&mut quick, &head).await;
        send(&mut quick, vec![b'y'; 1 << 20]).await;
        assert!(until_closed(&mut quick, PATIENCE).await.is_some(), "{head}");
    }
    good.stop(&cluster, "bodies of strangers").await.is_unhurt().memory_within(512);
}

/// Asks over a narrow connection, does not read for a while, and says how much comes then until the node closes it.
async fn unread(node: &Node, line: &str, key: Option<&str>, pause: Duration) -> Option<usize> {
    let mut headers = vec![("connection", "close")];
    headers.extend(key.map(|key| ("authorization", key)));
    let mut stream = connect_narrow(api(node)).await;
    send(&mut stream, request(line, &headers)).await;
    lasts(pause).await;
    until_closed(&mut stream, PATIENCE).await.map(|bytes| bytes.len())
}

#[tokio::test]
async fn readers_that_do_not_read_are_cut_off() {
    let options = Options::default().with("CONCORD_SEND_TIMEOUT_MS", "1000");
    let cluster = Cluster::start_with("hostile-readers", &options).await;
    let node = &cluster.nodes[0];
    let client = node.client();
    define(&client, "large").await;
    for place in 0..20 {
        set(&client, "large", &format!("k{place}"), &json!({"text": "y".repeat(800_000)})).await;
    }
    let good = GoodClient::start(&cluster).await;
    let key = node.settings["CONCORD_API_KEY"].clone();
    // A list of 16 MB: more than the kernel takes for a reader that takes nothing.
    let list = "GET /api/v1/config_definition/large/config?limit=100";
    let pause = Duration::from_secs(4);
    let lists = join_all((0..4).map(|_| unread(node, list, Some(&key), pause)));
    let watch = "GET /api/v1/watch?initial=true";
    let watches = join_all((0..4).map(|_| unread(node, watch, Some(&key), pause)));
    let (lists, watches) = tokio::join!(lists, watches);
    for came in lists.into_iter().chain(watches) {
        let bytes = came.expect("the connection is closed");
        assert!(bytes > 0 && bytes < 16_000_000, "{bytes} bytes came after a pause of {pause:?}");
    }
    eventually("the node has closed its side", async || {
        let open = connections_from(NARROW, api(node).port());
        check(open == 0, || format!("{open} connections"))
    })
    .await;
    good.stop(&cluster, "slow readers").await.is_unhurt().memory_within(700);
}

#[tokio::test]
async fn refused_calls_of_strangers_do_not_fill_the_log() {
    let cluster = Cluster::start("hostile-refusals").await;
    let node = &cluster.nodes[0];
    let before = std::fs::metadata(&node.log).expect("it has a log").len();
    let name = "n".repeat(8000);
    let calls = ["vote", "join", "append", "stream", name.as_str()];
    for _ in 0..20 {
        let wave = (0..50).map(|turn| {
            let secret = if turn % 2 == 0 { ("x-concord-secret", "unknown") } else { ("x-other", "1") };
            let line = format!("POST /peer/{}", calls[turn % calls.len()]);
            let bytes = request(&line, &[secret, ("content-length", "0"), ("connection", "close")]);
            async move {
                let mut stream = connect(peer(node)).await;
                send(&mut stream, bytes).await;
                let text = answer(&mut stream).await;
                assert!(text.starts_with("HTTP/1.1 401"), "{text}");
            }
        });
        join_all(wave).await;
    }
    let told = eventually("what was left out is counted", async || {
        let log = std::fs::read_to_string(&node.log).map_err(|error| error.to_string())?;
        let told: Vec<String> =
            log.lines().filter(|line| line.contains("refused")).map(str::to_owned).collect();
        check(told.iter().any(|line| line.contains("left_out")), || told.join("\n")).map(|()| told)
    })
    .await;
    let grown = std::fs::metadata(&node.log).expect("it has a log").len() - before;
    println!("1000 refused calls: {} lines, the log grew by {grown} bytes", told.len());
    assert!(!told.iter().any(|line| line.contains("nnnn")), "a name of a stranger is not logged");
    assert!(grown < 64 << 10, "the log grew by {grown} bytes");
}

#[tokio::test]
async fn an_answer_without_a_good_credential_does_not_tell_the_revision() {
    let cluster = Cluster::start("hostile-revision").await;
    let node = cluster.client(1);
    define(&node, "d").await;
    assert!(node.get(&config("d", "none")).await.revision() > 0, "with the key it is told");
    let stranger = Client::new(&node.base, "unknown");
    for path in ["/", "/livez", "/readyz", "/health", "/openapi.json", "/api/v1/cluster", "/no/such/path"] {
        for call in [stranger.get(path), stranger.bare(http::Method::GET, path)] {
            let answer = call.attempt().await.expect("it is answered");
            assert!(!answer.headers.contains_key("x-concord-revision"), "{answer:?}");
            assert!(!answer.header("x-request-id").is_empty(), "{answer:?}");
        }
    }
}

#[tokio::test]
async fn a_write_of_a_client_that_sends_no_more_is_answered() {
    let cluster = Cluster::start("hostile-half-closed").await;
    let key = cluster.nodes[0].settings["CONCORD_API_KEY"].clone();
    // On the leader and on the nodes that forward the write to it.
    for node in &cluster.nodes {
        let body = format!(r#"{{"config_definition_key": "half-{}", "indexes": []}}"#, node.id);
        let length = body.len().to_string();
        let mut stream = connect(api(node)).await;
        let headers = [("authorization", key.as_str()), ("content-length", length.as_str())];
        send(&mut stream, request("POST /api/v1/config_definition", &headers) + &body).await;
        stream.shutdown().await.expect("it is open");
        let answered = answer(&mut stream).await;
        assert!(answered.starts_with("HTTP/1.1 201 "), "node {}: {answered}", node.id);
    }
}
