//! What disks that are full, slow, hung or failing do to the cluster.
//!
//! A hung or slow disk is made by delaying the calls that wait for it (strace), a small volume by a tmpfs in a mount
//! namespace of the node's own. A test whose means are missing says SKIPPED.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::GoodClient;
use crate::{
    chaos::tools::{self, Lasting},
    harness::{
        Answer, Call, Client, Cluster, Options, check, eventually,
        load::{Load, config, define, set},
        time::pace,
    },
};

/// Every call by which the service waits for a disk.
const SYNCS: &str = "fdatasync,fsync,sync_file_range";
/// The watchdog's time in these tests.
const STALL: Duration = Duration::from_secs(4);

fn options() -> Options {
    Options::default()
        .with("CONCORD_LOG_STALL_TIMEOUT_MS", "4000")
        .with("CONCORD_WRITE_TIMEOUT_MS", "3000")
        .with("CONCORD_READ_TIMEOUT_MS", "2000")
}

/// Delays what a node's disk is asked for; `None` when this machine can't.
fn hang(cluster: &mut Cluster, id: u64, delay: &str) -> Option<Lasting> {
    if !tools::strace_works() {
        eprintln!("SKIPPED: no strace, or no right to use it");
        return None;
    }
    let report = cluster.root().join(format!("strace{id}.txt"));
    let pid = cluster.node(id).pid();
    Some(tools::tamper(pid, &format!("{SYNCS}:delay_enter={delay}"), &report))
}

/// The answer, and how long it took; the error says that there was none.
async fn timed(call: Call) -> (Result<Answer, String>, Duration) {
    let begin = Instant::now();
    let answer = tokio::time::timeout(Duration::from_secs(10), call.attempt()).await;
    (answer.unwrap_or_else(|_| Err("no answer within 10 s".into())), begin.elapsed())
}

/// Sends so much that the log needs a new file, which a hung disk does not give it. Nobody waits for the answers.
fn flood(client: &Client) -> Vec<tokio::task::JoinHandle<Result<Answer, String>>> {
    let data = json!({"data": {"text": "x".repeat(200 << 10)}});
    let put = |n: u32| {
        let put = client.put(&config("disks", &format!("flood{n}")), &data).header("if-none-match", "*");
        tokio::spawn(async move { put.attempt().await })
    };
    (0..40).map(put).collect()
}

/// Waits until nobody listens any more. The process itself can't end before the system call does in which it hangs.
async fn gone(client: &Client) {
    eventually("the node is gone", async || {
        let refused = client.bare(http::Method::GET, "/livez").attempt().await;
        check(refused.is_err(), || format!("{refused:?}"))
    })
    .await;
}

/// The watchdog has ended a node, and says so.
async fn has_ended(cluster: &mut Cluster, id: u64, hung: Lasting) {
    hung.end();
    let status = cluster.node(id).ended().await;
    assert_eq!(status.code(), Some(1), "{status}");
    let said = cluster.node(id).tail(20);
    assert!(said.contains("the log made no progress for 4 s: a write hangs"), "{said}");
}

/// Asks for what needs no disk as long as the watchdog waits at least. Returns how often all of it was answered.
async fn rounds_of_probes(client: &Client) -> u32 {
    let (begin, mut rounds) = (Instant::now(), 0);
    while begin.elapsed() < STALL / 2 {
        let (live, took) = timed(client.bare(http::Method::GET, "/livez")).await;
        assert_eq!(live.as_ref().map(|live| live.status), Ok(200), "{live:?} after {took:?}");
        let local = client.get(&config("disks", "k")).query(&[("consistency", "local")]);
        let (local, took) = timed(local).await;
        assert_eq!(local.as_ref().map(|local| local.status), Ok(200), "{local:?} after {took:?}");
        let (status, took) = timed(client.get("/api/v1/cluster")).await;
        assert!(matches!(&status, Ok(status) if matches!(status.status, 200 | 503)), "{status:?} {took:?}");
        rounds += 1;
    }
    rounds
}

#[tokio::test]
async fn a_hung_disk_of_the_leader_ends_the_leader_and_the_others_go_on() {
    let mut cluster = Cluster::start_with("hostile-hung-leader", &options()).await;
    let leader = cluster.leader().await;
    let [one, two] = cluster.followers().await;
    let (client, others) = (cluster.client(leader), [cluster.client(one), cluster.client(two)]);
    define(&client, "disks").await;
    set(&client, "disks", "k", &json!({"n": 1})).await;
    let mut load = Load::start(&others, "load").await;
    load.grows_by(20).await;
    // How many rounds this machine gives while the disk is well.
    let control = rounds_of_probes(&client).await;
    let Some(hung) = hang(&mut cluster, leader, "60s") else { return };
    let begin = Instant::now();
    let flood = flood(&client);
    // The disk answers nothing; the node answers everything: probes and local reads at once, the rest in its time.
    let probes = rounds_of_probes(&client).await;
    let mut refused = 0;
    assert!(probes > (control / 4).min(3), "{probes} rounds of probes, {control} before");
    let read = timed(client.get(&config("disks", "k")));
    let write = timed(client.put(&config("disks", "k"), &json!({"data": {"n": 2}})));
    let ready = timed(client.bare(http::Method::GET, "/readyz"));
    for (what, (answer, took)) in [("read", read.await), ("write", write.await), ("ready", ready.await)] {
        println!("{what} on the hung leader after {took:?}: {:?}", answer.as_ref().map(|one| one.status));
        // The watchdog may end the node meanwhile.
        if let Ok(answer) = answer {
            assert!(matches!(answer.status, 200 | 503 | 504), "{what}: {answer:?}");
            refused += 1;
        }
    }
    assert!(refused > 0, "nothing was answered while the disk hung");
    gone(&client).await;
    println!("the leader was gone {:?} after its disk had hung", begin.elapsed());
    has_ended(&mut cluster, leader, hung).await;
    for put in flood {
        // Each ends: with an answer, or with its connection.
        drop(put.await.expect("a request does not panic"));
    }
    let before = load.acknowledged();
    load.grows_by(20).await;
    println!("acknowledged: {before} when the leader ended; the others elected {:?}", begin.elapsed());
    load.stop().await;
    cluster.node(leader).start().await;
    cluster.ready().await;
    cluster.equal_digests().await;
    load.is_kept_by(&cluster.client(leader)).await;
}

#[tokio::test]
async fn a_hung_disk_of_a_follower_hurts_nobody_else() {
    let mut cluster = Cluster::start_with("hostile-hung-follower", &options()).await;
    let leader = cluster.leader().await;
    let [victim, other] = cluster.followers().await;
    let others = [cluster.client(leader), cluster.client(other)];
    define(&others[0], "disks").await;
    let mut load = Load::start(&others, "load").await;
    load.grows_by(20).await;
    let Some(hung) = hang(&mut cluster, victim, "60s") else { return };
    let begin = Instant::now();
    drop(flood(&others[0]));
    let (mut longest, mut count) = (Duration::ZERO, 0);
    let client = cluster.client(victim);
    let mut not_ready = false;
    loop {
        let (put, took) = timed(others[1].put(&config("disks", "k"), &json!({"data": {"n": count}}))).await;
        assert!(matches!(&put, Ok(put) if matches!(put.status, 200 | 404)), "{put:?}");
        (longest, count) = (longest.max(took), count + 1);
        match client.bare(http::Method::GET, "/readyz").attempt().await {
            Ok(ready) => {
                not_ready |= ready.status == 503 && format!("{ready:?}").contains("the log of this node");
            }
            Err(_) => break,
        }
        assert!(begin.elapsed() < Duration::from_secs(25), "the watchdog has not ended the node");
        pace(Duration::from_millis(20)).await;
    }
    println!(
        "a follower's disk hung: {count} writes on the others, longest {longest:?}, gone after {:?}",
        begin.elapsed()
    );
    assert!(not_ready, "it said that it was not ready before it ended");
    assert_eq!(cluster.leader_on(&[leader, other]).await, leader, "the leader stayed");
    has_ended(&mut cluster, victim, hung).await;
    load.stop().await;
    cluster.node(victim).start().await;
    cluster.ready().await;
    cluster.equal_digests().await;
}

#[tokio::test]
async fn a_disk_slow_for_seconds_ends_no_node() {
    let mut cluster = Cluster::start_with("hostile-slow-disk", &options()).await;
    let leader = cluster.leader().await;
    let clients = cluster.clients();
    define(&clients[0], "disks").await;
    let mut load = Load::start(&clients, "load").await;
    load.grows_by(20).await;
    let Some(slow) = hang(&mut cluster, leader, "1500ms") else { return };
    let client = cluster.client(leader);
    let begin = Instant::now();
    while begin.elapsed() < STALL * 2 {
        let (live, took) = timed(client.bare(http::Method::GET, "/livez")).await;
        assert_eq!(live.as_ref().map(|live| live.status), Ok(200), "{live:?} after {took:?}");
        pace(Duration::from_millis(50)).await;
    }
    slow.end();
    assert_eq!(cluster.node(leader).exited(), None, "a slow disk is not a hung one");
    load.grows_by(20).await;
    load.stop().await;
    load.is_kept_by(&client).await;
    cluster.equal_digests().await;
}

/// The files of a directory and of those below it.
fn files_of(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("a data directory").flatten();
    entries
        .flat_map(|entry| if entry.path().is_dir() { files_of(&entry.path()) } else { vec![entry.path()] })
        .collect()
}

#[tokio::test]
async fn reads_of_a_disk_that_fail_show_nothing_wrong_and_hurt_nobody_else() {
    const CHANGES: u64 = 40;
    if !tools::strace_works() {
        eprintln!("SKIPPED: no strace, or no right to use it");
        return;
    }
    let mut cluster = Cluster::start_with("hostile-failing-reads", &options()).await;
    let leader = cluster.leader().await;
    let [victim, _] = cluster.followers().await;
    let (client, others) = (cluster.client(victim), cluster.client(leader));
    define(&client, "disks").await;
    for n in 0..CHANGES {
        set(&others, "disks", "k", &json!({"n": n})).await;
    }
    let history = format!("{}/history?limit=50", config("disks", "k"));
    let revisions = |answer: &Answer| {
        let items = answer.data()["results"].as_array().expect("a list of changes").clone();
        items.iter().map(|item| item["revision"].as_u64().expect("a revision")).collect::<Vec<_>>()
    };
    let before = revisions(&client.get(&history).insist().await.expect(200));
    assert_eq!(before.len() as u64, CHANGES, "{before:?}");
    let good = GoodClient::start(&cluster).await;
    let report = cluster.root().join("strace-reads.txt");
    let node = cluster.node(victim);
    let (pid, files) = (node.pid(), files_of(&node.directory));
    let failing = tools::tamper_with_files(pid, "pread64,preadv,readv,read:error=EIO", &files, &report);
    eventually("a read has failed", async || {
        let (answer, took) = timed(client.get(&history)).await;
        let answer = answer?;
        match answer.status {
            // Another member has it.
            200 => assert_eq!(revisions(&answer), before, "after {took:?}"),
            _ => assert!(matches!(answer.status, 500 | 503), "{answer:?}"),
        }
        let said = std::fs::read_to_string(&report).unwrap_or_default();
        check(said.contains(tools::TAMPERED), || "nothing was injected".to_owned())
    })
    .await;
    for n in CHANGES..CHANGES + 10 {
        set(&others, "disks", "k", &json!({"n": n})).await;
        // What is current is in memory.
        let local = client.get(&config("disks", "k")).query(&[("min_revision", "1")]).insist().await;
        assert_eq!(local.expect(200).data()["data"]["n"], n);
    }
    failing.end();
    assert_eq!(cluster.node(victim).exited(), None, "a history that another member has ends no node");
    good.stop(&cluster, "reads of a disk that fail").await.is_unhurt().memory_within(512);
    let after = revisions(&client.get(&history).insist().await.expect(200));
    assert_eq!(after.len() as u64, CHANGES + 10);
    assert!(after.ends_with(&before), "{before:?} {after:?}");
    cluster.equal_digests().await;
}

/// Fills a node's volume, which is its own, until so much is left.
fn fill_volume(cluster: &mut Cluster, id: u64, left: u64) {
    let path = filler(cluster, id);
    let mut file = std::fs::File::create(&path).expect("a file on the volume");
    let block = vec![1_u8; 64 << 10];
    loop {
        let volume = rustix::fs::statvfs(&path).expect("the volume says what is free");
        if volume.f_bavail * volume.f_frsize <= left {
            return;
        }
        std::io::Write::write_all(&mut file, &block).expect("there is room");
    }
}

fn filler(cluster: &mut Cluster, id: u64) -> PathBuf {
    let node = cluster.node(id);
    let inside = node.directory.join("filler").strip_prefix("/").expect("an absolute path").to_owned();
    Path::new("/proc").join(node.pid().to_string()).join("root").join(inside)
}

#[tokio::test]
async fn full_followers_do_not_take_the_quorum() {
    const RESERVE: u64 = 12 << 20;
    if !tools::mounts_work() {
        eprintln!("SKIPPED: no right to mount a volume (unshare -rm)");
        return;
    }
    let options = options().with("CONCORD_DISK_RESERVE_BYTES", &RESERVE.to_string());
    let mut cluster = Cluster::start_prepared("hostile-full-followers", &options, |_, nodes| {
        for node in nodes {
            node.volume = Some("64m".to_owned());
        }
    })
    .await;
    let leader = cluster.leader().await;
    let [one, two] = cluster.followers().await;
    let client = cluster.client(leader);
    define(&client, "disks").await;
    for n in 0..3 {
        set(&client, "disks", &format!("k{n}"), &json!({"n": 0})).await;
    }
    let put = |n: u64| client.put(&config("disks", "k0"), &json!({"data": {"n": n}}));
    // One of three: the others are a majority.
    fill_volume(&mut cluster, one, RESERVE / 2);
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        put(1).attempt().await.expect("the leader answers").expect(200);
        pace(Duration::from_millis(50)).await;
    }
    // Two of three.
    fill_volume(&mut cluster, two, RESERVE / 2);
    eventually("writes are refused", async || {
        let put = put(2).attempt().await?;
        check(put.status == 507, || format!("{put:?}"))
    })
    .await;
    for flood in flood(&client) {
        let answer = flood.await.expect("a request does not panic").expect("the leader answers");
        // On a busy machine a large write may be refused before anybody looks for room; a small one is not.
        assert!(matches!(answer.status, 503 | 507), "{answer:?}");
    }
    put(2).attempt().await.expect("the leader answers").expect(507);
    // Reads and deletes go on, so the node is ready; for writes it is not. Everybody who looks is told.
    for (path, status) in [("/readyz", 200), ("/readyz?writes=true", 503), ("/readyz?writes=yes", 422)] {
        let ready = client.bare(http::Method::GET, path).attempt().await.expect("the leader answers");
        assert_eq!(ready.status, status, "{path}: {ready:?}");
    }
    for (node, about) in [(leader, Value::Null), (two, json!(two))] {
        let status = cluster.client(node).status().await.expect("a status");
        let mut alarms = status["alarms"].as_array().into_iter().flatten();
        assert!(alarms.any(|one| one["type"] == "disk" && one["node_id"] == about), "node {node}: {status}");
    }
    client.delete(&config("disks", "k1")).attempt().await.expect("the leader answers").expect(200);
    client.get(&config("disks", "k0")).attempt().await.expect("the leader answers").expect(200);
    assert_eq!(cluster.leader().await, leader, "nothing of this costs the leader its place");
    // Room on one of them is room on a majority.
    std::fs::remove_file(filler(&mut cluster, two)).expect("the file can be removed");
    eventually("writes are accepted", async || {
        let put = put(3).attempt().await?;
        check(put.status == 200, || format!("{put:?}"))
    })
    .await;
    for id in [1, 2, 3] {
        assert_eq!(cluster.node(id).exited(), None, "node {id} goes on");
    }
    cluster.equal_digests().await;
}

#[tokio::test]
async fn a_slow_disk_is_named_by_the_log_the_metrics_and_an_alarm() {
    let mut cluster = Cluster::start_with("hostile-slow-disks", &options().with("CONCORD_LOG", "info")).await;
    let leader = cluster.leader().await;
    let [one, _] = cluster.followers().await;
    let client = cluster.client(leader);
    define(&client, "disks").await;
    set(&client, "disks", "k", &json!({"n": 1})).await;
    // The leader and one follower: a majority has a slow disk.
    let Some(first) = hang(&mut cluster, leader, "700ms") else { return };
    let Some(second) = hang(&mut cluster, one, "700ms") else { return };
    let slow = async || {
        let writes =
            (0..4).map(|n| client.put(&config("disks", &format!("s{n}")), &json!({"data": {"n": n}})));
        for write in writes {
            let begun = Instant::now();
            let answer = write.query(&[("upsert", "true")]).attempt().await.expect("it is only slow");
            println!("a write took {:?}: {}", begun.elapsed(), answer.status);
        }
        let status = client.status().await?;
        let alarm = status["alarms"].as_array().into_iter().flatten().find(|one| one["type"] == "slow_flush");
        let message = alarm.and_then(|alarm| alarm["message"].as_str().map(str::to_owned));
        message.ok_or_else(|| status["alarms"].to_string())
    };
    let message = eventually("the slow disk is an alarm", slow).await;
    assert!(message.starts_with(&format!("the disk of node {leader} is slow: ")), "{message}");
    let page = client.get("/metrics").await.expect(200).text;
    let value = |sample: &str| {
        let found = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.parse().ok());
        found.unwrap_or_else(|| panic!("{sample} is not in\n{page}"))
    };
    let slow_of = |name: &str, label: &str| -> f64 {
        let labels = if label.is_empty() { String::new() } else { format!("{{{label}}}") };
        let le = if label.is_empty() { "{le=\"0.25\"}".into() } else { format!("{{le=\"0.25\",{label}}}") };
        let all: f64 = value(&format!("{name}_count{labels}"));
        all - value(&format!("{name}_bucket{le}"))
    };
    assert!(slow_of("concord_raft_log_flush_duration_seconds", "") >= 5.0, "{page}");
    assert!(slow_of("concord_raft_append_duration_seconds", &format!("member=\"{one}\"")) >= 3.0, "{page}");
    assert!(slow_of("concord_raft_commit_duration_seconds", "") >= 3.0, "{page}");
    assert!(value("concord_alarms{type=\"slow_flush\"}") > 0.5, "{page}");
    first.end();
    second.end();
    let said = cluster.node(leader).tail(usize::MAX);
    assert!(said.contains("the disk is slow: "), "{said}");
    let slow = said.lines().find(|line| line.contains("a write took "));
    let slow = slow.unwrap_or_else(|| panic!("no line about a slow write:\n{said}"));
    assert!(slow.contains(" until a majority had it on disk ("), "{slow}");
    // The alarm ends with its minute, or earlier if the disk is fast again.
    eventually("the alarm ends", async || {
        set(&client, "disks", "k", &json!({"n": 2})).await;
        let status = client.status().await?;
        check(status["alarms"] == json!([]), || status["alarms"].to_string())
    })
    .await;
}

/// The disk of the leader alone is slow: a majority has a write on disk without it, and the leader keeps up in few flushes.
#[tokio::test]
async fn a_leader_with_a_slow_disk_holds_up_nobody() {
    let mut cluster = Cluster::start_with("hostile-slow-leader", &options()).await;
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    define(&client, "disks").await;
    let Some(slow) = hang(&mut cluster, leader, "300ms") else { return };
    for n in 0..200 {
        set(&client, "disks", &format!("k{}", n % 10), &json!({"n": n})).await;
    }
    // A flush for each write would take a minute.
    let begun = Instant::now();
    eventually("the leader has all writes on its disk", async || {
        let page = client.get("/metrics").await.expect(200).text;
        let queued = page.lines().find(|line| line.starts_with("concord_raft_log_unflushed_writes "));
        check(queued.is_some_and(|line| line.ends_with(" 0.0")), || format!("{queued:?}"))
    })
    .await;
    assert!(begun.elapsed() < Duration::from_secs(6), "it took {:?}", begun.elapsed());
    eventually("the slow disk is an alarm", async || {
        set(&client, "disks", "k", &json!({})).await;
        let status = client.status().await?;
        let is_slow = |one: &Value| one["type"] == "slow_flush" && one["node_id"] == leader;
        check(status["alarms"].as_array().into_iter().flatten().any(is_slow), || status["alarms"].to_string())
    })
    .await;
    assert_eq!(cluster.leader().await, leader, "a slow disk is no reason for an election");
    slow.end();
}
