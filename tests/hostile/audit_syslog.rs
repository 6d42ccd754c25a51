//! Does a syslog server get every line of the audit log, over restarts of both sides, and does it hold nothing up?

use std::{
    collections::BTreeMap,
    fs,
    io::{ErrorKind, Read},
    net::{SocketAddr, TcpListener, UdpSocket},
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use serde_json::{Value, json};

use crate::harness::{
    Client, Cluster, Options, check, eventually,
    load::{config, define, set},
    node::BINARY,
    time::pace_blocking,
};

/// How long a read of a server waits until it looks whether it is to end.
const READ_TIMEOUT: Duration = Duration::from_millis(20);

/// The lines that a server has stored, by node and number. A line that comes again must be the same.
#[derive(Debug, Default)]
struct Stored {
    lines: BTreeMap<(u64, u64), String>,
    repeated: usize,
}

impl Stored {
    fn message(&mut self, message: &str) {
        let (head, line) = message.split_at(message.find('{').expect("a line of the log"));
        let fields: Value = serde_json::from_str(line).expect("JSON");
        let (node, seq) =
            (fields["node"].as_u64().expect("a node"), fields["seq"].as_u64().expect("a number"));
        let head: Vec<&str> = head.split(' ').collect();
        let (time, process) = (fields["time"].as_str().expect("a time"), format!("node-{node}"));
        assert_eq!((head[0], head[1]), ("<110>1", time), "{message}");
        assert_eq!(head[3..], ["concord", &process, "audit", "-", ""], "{message}");
        if let Some(before) = self.lines.insert((node, seq), line.to_owned()) {
            assert_eq!(before, line, "a line that comes again is the same");
            self.repeated += 1;
        }
    }
}

/// A server that stores what it reads.
struct Server {
    ends: Arc<AtomicBool>,
    threads: Threads,
}

type Threads = Arc<Mutex<Vec<JoinHandle<()>>>>;

impl Server {
    fn begin(work: impl FnOnce(&Arc<AtomicBool>, &Threads) + Send + 'static) -> Self {
        let (ends, threads) = (Arc::<AtomicBool>::default(), Threads::default());
        let (its_end, its_threads) = (Arc::clone(&ends), Arc::clone(&threads));
        let thread = thread::spawn(move || work(&its_end, &its_threads));
        threads.lock().expect("no holder panics").push(thread);
        Self { ends, threads }
    }

    fn tcp(address: SocketAddr, stored: &Arc<Mutex<Stored>>) -> Self {
        let listener = TcpListener::bind(address).expect("the port is free");
        listener.set_nonblocking(true).expect("a socket");
        let stored = Arc::clone(stored);
        Self::begin(move |ends, threads| {
            while !ends.load(Ordering::SeqCst) {
                let Ok((stream, _)) = listener.accept() else {
                    pace_blocking(READ_TIMEOUT);
                    continue;
                };
                let (stored, ends) = (Arc::clone(&stored), Arc::clone(ends));
                let thread = thread::spawn(move || read_frames(stream, &stored, &ends));
                threads.lock().expect("no holder panics").push(thread);
            }
        })
    }

    /// Ends it as a process ends that stores what it has read.
    fn end(self) {
        self.ends.store(true, Ordering::SeqCst);
        loop {
            let Some(thread) = self.threads.lock().expect("no holder panics").pop() else { return };
            thread.join().expect("a server does not panic");
        }
    }
}

/// Reads messages with their length before them.
fn read_frames(mut stream: std::net::TcpStream, stored: &Mutex<Stored>, ends: &AtomicBool) {
    stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_read_timeout(Some(READ_TIMEOUT)))
        .expect("a socket");
    let (mut bytes, mut block) = (Vec::new(), [0; 16 << 10]);
    while !ends.load(Ordering::SeqCst) {
        match stream.read(&mut block) {
            Ok(0) => return,
            Ok(count) => bytes.extend_from_slice(&block[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
        while let Some(space) = bytes.iter().position(|byte| *byte == b' ') {
            let length: usize = std::str::from_utf8(&bytes[..space]).expect("a length").parse().expect("one");
            if bytes.len() < space + 1 + length {
                break;
            }
            let rest = bytes.split_off(space + 1 + length);
            let message = String::from_utf8(bytes.split_off(space + 1)).expect("text");
            stored.lock().expect("no holder panics").message(&message);
            bytes = rest;
        }
    }
}

/// The number of the last line that each node has.
async fn heads(cluster: &Cluster) -> BTreeMap<u64, u64> {
    let mut heads = BTreeMap::new();
    for (id, client) in (1..).zip(cluster.clients()) {
        let answer = client.get("/api/v1/audit").query(&[("limit", "1")]).insist().await.expect(200);
        heads.insert(id, answer.data()["meta"]["head"]["seq"].as_u64().expect("a number"));
    }
    heads
}

/// Waits until a server has all lines of all nodes up to now, and checks that they are the logs.
async fn has_all(cluster: &Cluster, stored: &Mutex<Stored>) {
    let heads = heads(cluster).await;
    eventually("the server has all lines", async || {
        let stored = stored.lock().expect("no holder panics");
        let missing = heads.iter().flat_map(|(node, head)| (1..=*head).map(|seq| (*node, seq)));
        let missing: Vec<_> = missing.filter(|key| !stored.lines.contains_key(key)).take(5).collect();
        check(missing.is_empty(), || format!("{missing:?} are missing of {heads:?}"))
    })
    .await;
    let file: PathBuf = cluster.root().join("collected.jsonl");
    for node in heads.keys() {
        let lines: String = {
            let stored = stored.lock().expect("no holder panics");
            let own = stored.lines.iter().filter(|((of, _), _)| of == node);
            own.map(|(_, line)| format!("{line}\n")).collect()
        };
        fs::write(&file, lines).expect("a file can be written");
        let output = Command::new(BINARY.as_path()).args(["audit", "verify"]).arg(&file).output();
        let output = output.expect("the binary can be started");
        assert!(output.status.success(), "what the server stored of node {node} is its log: {output:?}");
    }
}

async fn writes(client: &Client, count: u64) {
    for n in 0..count {
        set(client, "audited", "k", &json!({"n": n})).await;
    }
}

fn sending_to(target: &str) -> Options {
    Options::default().with("CONCORD_AUDIT_SYSLOG", target)
}

#[tokio::test]
async fn a_tcp_server_gets_every_line_over_its_own_restarts_and_those_of_the_nodes() {
    let address = free_address();
    let stored = Arc::<Mutex<Stored>>::default();
    let mut server = Server::tcp(address, &stored);
    let options = sending_to(&format!("tcp://{address}"));
    let mut cluster = Cluster::start_with("hostile-syslog-tcp", &options).await;
    let leader = cluster.leader().await;
    let clients = cluster.clients();
    define(&cluster.client(leader), "audited").await;
    has_all(&cluster, &stored).await;
    for round in 0..2_u64 {
        writes(&clients[0], 50).await;
        // The server ends while lines come, and is away while more are written.
        let (ends, more) =
            tokio::join!(tokio::task::spawn_blocking(move || server.end()), writes(&clients[1], 50),);
        ends.expect("the server ends");
        let () = more;
        writes(&clients[2], 50).await;
        let victim = 1 + round;
        cluster.node(victim).kill();
        server = Server::tcp(address, &stored);
        cluster.node(victim).start().await;
        cluster.ready().await;
        writes(&clients[2], 20).await;
        has_all(&cluster, &stored).await;
    }
    let metrics = clients[0].get("/metrics").insist().await.expect(200).text;
    assert!(metrics.contains("\nconcord_audit_syslog_lost_lines_total 0"), "{metrics}");
    let failures = metrics.lines().find(|line| line.starts_with("concord_audit_syslog_failures_total "));
    assert_ne!(failures, Some("concord_audit_syslog_failures_total 0"));
    let repeated = stored.lock().expect("no holder panics").repeated;
    println!("{repeated} lines came again");
    tokio::task::spawn_blocking(move || server.end()).await.expect("the server ends");
}

#[tokio::test]
async fn a_server_that_reads_nothing_delays_no_request_and_lines_that_are_removed_unsent_are_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    // Connections are accepted by the kernel, and nobody reads from them.
    let options = sending_to(&format!("tcp://{address}"))
        .with("CONCORD_AUDIT_FILE_BYTES", "65536")
        .with("CONCORD_AUDIT_FILES", "2");
    let mut cluster = Cluster::start_with("hostile-syslog-hung", &options).await;
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    define(&client, "audited").await;
    // More than the buffers of a connection that nobody reads hold, and more than the log keeps.
    let lost = eventually("lines are removed before they were sent", async || {
        let puts = (0..500).map(|n| {
            let path = config("audited", &format!("missing-{n}-{}", "x".repeat(150)));
            let put = client.put(&path, &json!({"data": {}}));
            async move { put.attempt().await.expect("the node answers").status }
        });
        for status in futures::future::join_all(puts).await {
            assert_eq!(status, 404, "a server of logs changes no answer");
        }
        let lost = metric(&client, "concord_audit_syslog_lost_lines_total").await;
        check(lost > 0.0, || "none is lost yet".into()).map(|()| lost)
    })
    .await;
    let directory = cluster.node(leader).directory.join("audit");
    eventually("a line of the log says so", async || {
        let text = all_text(&directory);
        check(text.contains("\"event\":\"unshipped\""), || format!("{lost} lines are lost"))
    })
    .await;
    assert!(cluster.node(leader).tail(2000).contains("were removed before they were sent"));
    // Nothing is counted again by the connections that fail from now on.
    drop(listener);
    let failed = async || metric(&client, "concord_audit_syslog_failures_total").await;
    let before = failed().await;
    eventually("the server is tried again and again", async || {
        let now = failed().await;
        check(now >= before + 3.0, || format!("{before}, {now}"))
    })
    .await;
    let lost = metric(&client, "concord_audit_syslog_lost_lines_total").await;
    let page = client.get("/api/v1/audit?limit=1").insist().await.expect(200);
    let lines = page.data()["results"][0]["seq"].as_f64().expect("a number");
    assert!(lost <= lines, "{lost} lines are lost of {lines}");
}

/// A metric of a node without labels.
async fn metric(client: &Client, name: &str) -> f64 {
    let text = client.get("/metrics").insist().await.expect(200).text;
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
}

fn all_text(directory: &Path) -> String {
    let files = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
    files.filter_map(|path| fs::read_to_string(path).ok()).collect()
}

#[tokio::test]
async fn a_udp_server_and_a_socket_of_the_host_get_the_lines_too() {
    let udp = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    udp.set_read_timeout(Some(READ_TIMEOUT)).expect("a socket");
    let address = udp.local_addr().expect("an address");
    // A path of a socket has at most 107 bytes.
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("log");
    let by_udp = Arc::<Mutex<Stored>>::default();
    let by_unix = Arc::<Mutex<Stored>>::default();
    let read_udp = datagrams(&by_udp, move |block| udp.recv(block));
    let listen = |path: &Path, stored: &Arc<Mutex<Stored>>| {
        let socket = UnixDatagram::bind(path).expect("a socket");
        socket.set_read_timeout(Some(READ_TIMEOUT)).expect("a socket");
        datagrams(stored, move |block| socket.recv(block))
    };
    let read_unix = listen(&path, &by_unix);
    let (udp_target, unix_target) = (format!("udp://{address}"), format!("unix://{}", path.display()));
    let mut cluster = Cluster::start_prepared("hostile-syslog-datagrams", &Options::default(), |_, nodes| {
        for node in nodes {
            let target = if node.id == 1 { &udp_target } else { &unix_target };
            node.overrides = vec![("CONCORD_AUDIT_SYSLOG".into(), target.clone())];
        }
    })
    .await;
    let leader = cluster.leader().await;
    define(&cluster.client(leader), "audited").await;
    for client in cluster.clients() {
        writes(&client, 20).await;
    }
    let all = async |cluster: &Cluster| {
        let heads = heads(cluster).await;
        eventually("all lines came", async || {
            for (node, head) in &heads {
                let stored = if *node == 1 { &by_udp } else { &by_unix };
                let stored = stored.lock().expect("no holder panics");
                let missing: Vec<u64> =
                    (1..=*head).filter(|seq| !stored.lines.contains_key(&(*node, *seq))).take(5).collect();
                check(missing.is_empty(), || format!("{missing:?} of node {node} are missing"))?;
            }
            Ok(())
        })
        .await;
    };
    all(&cluster).await;
    // The socket of the host is away and comes back, and a node is restarted meanwhile.
    read_unix.end();
    fs::remove_file(&path).expect("a file can be removed");
    writes(&cluster.client(2), 20).await;
    cluster.node(3).stop().await;
    cluster.node(3).start().await;
    cluster.ready().await;
    let read_unix = listen(&path, &by_unix);
    writes(&cluster.client(3), 20).await;
    all(&cluster).await;
    read_unix.end();
    read_udp.end();
}

/// Stores datagrams until it is ended.
fn datagrams(
    stored: &Arc<Mutex<Stored>>,
    mut receive: impl FnMut(&mut [u8]) -> std::io::Result<usize> + Send + 'static,
) -> Server {
    let stored = Arc::clone(stored);
    Server::begin(move |ends, _| {
        let mut block = vec![0; 64 << 10];
        loop {
            match receive(&mut block) {
                Ok(count) => {
                    let message = std::str::from_utf8(&block[..count]).expect("text");
                    stored.lock().expect("no holder panics").message(message);
                }
                // What has come is read before the end.
                Err(_) if ends.load(Ordering::SeqCst) => return,
                Err(_) => {}
            }
        }
    })
}

/// An address that nobody listens at. A server can listen at it again after its end.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address")
}
