//! The audit log under fire: a volume that is full, a node that is killed, and callers that guess credentials.

use std::{
    collections::BTreeSet,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::join_all;
use http::Method;
use serde_json::{Value, json};

use crate::{
    chaos::tools,
    harness::{
        Client, Cluster, Options, check, eventually,
        load::{config, define, set},
        node::BINARY,
    },
};

/// What the command says about the log of a directory: whether it is whole, and the text.
pub(super) fn verify(directory: &Path) -> (bool, String) {
    let output = Command::new(BINARY.as_path()).args(["audit", "verify"]).arg(directory).output();
    let output = output.expect("the binary can be started");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// The lines of a log, without those about the log itself.
pub(super) fn lines(directory: &Path) -> Vec<Value> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .expect("a directory of an audit log")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .collect();
    files.sort();
    let read = |path: &PathBuf| std::fs::read_to_string(path).expect("a file of an audit log");
    let text: String = files.iter().map(read).collect();
    let all = text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON"));
    all.filter(|line: &Value| line.get("event").is_none()).collect()
}

/// A file on the volume of a node, as this process sees it.
fn on_volume(cluster: &mut Cluster, id: u64, name: &str) -> PathBuf {
    let node = cluster.node(id);
    let inside = node.directory.join(name).strip_prefix("/").expect("an absolute path").to_owned();
    Path::new("/proc").join(node.pid().to_string()).join("root").join(inside)
}

#[tokio::test]
async fn a_full_volume_of_the_audit_log_refuses_writes_in_the_strict_mode_and_reads_go_on() {
    if !tools::mounts_work() {
        eprintln!("SKIPPED: no right to mount a volume (unshare -rm)");
        return;
    }
    let options = Options::default().with("CONCORD_AUDIT", "strict").with("CONCORD_AUDIT_READS", "*");
    // The log has the volume, and the data are elsewhere: only the log is full.
    let mut cluster = Cluster::start_prepared("hostile-audit-full", &options, |root, nodes| {
        for node in nodes {
            let data = root.join(format!("data{}", node.id)).display().to_string();
            let audit = node.directory.join("log").display().to_string();
            node.volume = Some("8m".to_owned());
            node.overrides = vec![("CONCORD_DATA_DIR".into(), data), ("CONCORD_AUDIT_DIR".into(), audit)];
        }
    })
    .await;
    let leader = cluster.leader().await;
    let (client, other) = (cluster.client(leader), cluster.client(cluster.followers().await[0]));
    define(&client, "audited").await;
    set(&client, "audited", "k", &json!({"n": 0})).await;
    let put = |client: &Client, n: u64| client.put(&config("audited", "k"), &json!({"data": {"n": n}}));
    let filler = on_volume(&mut cluster, leader, "filler");
    let mut file = std::fs::File::create(&filler).expect("a file on the volume");
    while std::io::Write::write_all(&mut file, &[1; 4096]).is_ok() {}
    // There is room for the lines of what has begun, and more: reads use it up.
    let read = || client.get(&config("audited", "k")).query(&[("consistency", "local")]);
    let mut reads = 0;
    let refused = loop {
        for answer in join_all((0..64).map(|_| async { read().attempt().await })).await {
            answer.expect("the node answers").expect(200);
            reads += 1;
        }
        match put(&client, reads).attempt().await.expect("the node answers") {
            answer if answer.status == 200 => assert!(reads < 100_000, "the volume is full"),
            answer => break answer,
        }
    };
    let refused = refused.refused(507, "storage_full");
    assert!(refused.body.to_string().contains("audit log"), "{refused:?}");
    let before = read().insist().await.expect(200).data()["data"]["n"].clone();
    for turn in 0..50 {
        put(&client, turn).attempt().await.expect("the node answers").refused(507, "storage_full");
        let now = read().insist().await.expect(200).data()["data"]["n"].clone();
        assert_eq!(now, before, "what was refused was not applied");
    }
    let alarms = client.status().await.expect("a status")["alarms"].to_string();
    assert!(alarms.contains("\"audit\""), "{alarms}");
    // The other nodes have volumes of their own.
    put(&other, 7).insist().await.expect(200);
    drop(file);
    std::fs::remove_file(&filler).expect("the file can be removed");
    eventually("writes are accepted", async || {
        let put = put(&client, 8).attempt().await?;
        check(put.status == 200, || format!("{put:?}"))
    })
    .await;
    let (is_whole, text) = verify(&on_volume(&mut cluster, leader, "log"));
    assert!(is_whole, "{text}");
    println!("{reads} reads used up the space that was reserved; {text}");
    cluster.equal_digests().await;
}

/// How long a write may take in the test of a disk that hangs, and how long the log may stand still.
const WRITE_TIMEOUT: Duration = Duration::from_secs(3);
const STALL_TIMEOUT: Duration = Duration::from_secs(40);

#[tokio::test]
async fn a_strict_node_whose_disk_hangs_answers_that_the_outcome_is_unknown_within_the_time_of_a_write() {
    if !tools::strace_works() {
        eprintln!("SKIPPED: no strace, or no right to use it");
        return;
    }
    let options = Options::default()
        .with("CONCORD_AUDIT", "strict")
        .with("CONCORD_WRITE_TIMEOUT_MS", &WRITE_TIMEOUT.as_millis().to_string())
        .with("CONCORD_LOG_STALL_TIMEOUT_MS", &STALL_TIMEOUT.as_millis().to_string());
    let mut cluster = Cluster::start_with("hostile-audit-hung", &options).await;
    let leader = cluster.leader().await;
    let [victim, other] = cluster.followers().await;
    let (client, honest) = (cluster.client(victim), cluster.client(other));
    define(&client, "audited").await;
    set(&client, "audited", "k", &json!({"n": 0})).await;
    // All of the disk hangs, not only the log of requests.
    let report = cluster.root().join("strace.txt");
    let pid = cluster.node(victim).pid();
    let hung = tools::tamper(pid, "fdatasync,fsync,sync_file_range:delay_enter=120s", &report);
    eventually("the disk hangs", async || {
        set(&honest, "audited", "k", &json!({"n": 1})).await;
        check(std::fs::read_to_string(&report).is_ok_and(|text| text.contains("sync")), || {
            "no call yet".into()
        })
    })
    .await;
    for n in 2..5 {
        let (begin, id) = (Instant::now(), format!("hung-{n}"));
        let put = client.put(&config("audited", "k"), &json!({"data": {"n": n}})).header("x-request-id", &id);
        let answer = put.attempt().await.expect("the node answers, and does not cut the connection");
        let took = begin.elapsed();
        println!("{} after {took:?}", answer.status);
        answer.refused(504, "timeout_error");
        // The write and its line together take the time of a write; the rest is for a busy machine.
        assert!(took < STALL_TIMEOUT / 2, "{took:?}");
        let stored =
            honest.get(&config("audited", "k")).insist().await.expect(200).data()["data"]["n"].clone();
        assert_eq!(stored, n, "the others have applied it");
    }
    // Reads of the node's own state go on.
    let local = client.get(&config("audited", "k")).query(&[("consistency", "local")]);
    local.attempt().await.expect("the node answers").expect(200);
    assert_ne!(cluster.leader_on(&[leader, other]).await, victim);
    cluster.node(victim).kill();
    hung.end();
    cluster.node(victim).start().await;
    cluster.ready().await;
    cluster.equal_digests().await;
}

#[tokio::test]
async fn every_acknowledged_write_of_a_killed_node_has_its_line_in_the_strict_mode() {
    let options =
        Options::default().with("CONCORD_AUDIT", "strict").with("CONCORD_AUDIT_FILE_BYTES", "65536");
    let mut cluster = Cluster::start_with("hostile-audit-killed", &options).await;
    let [victim, _] = cluster.followers().await;
    let client = cluster.client(victim);
    define(&client, "audited").await;
    let directory = cluster.node(victim).directory.join("audit");
    let acknowledged = Arc::new(Mutex::new(BTreeSet::new()));
    for round in 0..3 {
        let stop = Arc::new(AtomicBool::new(false));
        let before = acknowledged.lock().expect("no holder panics").len();
        let writers: Vec<_> = (0..16)
            .map(|writer| {
                let (client, stop) = (client.clone(), Arc::clone(&stop));
                let acknowledged = Arc::clone(&acknowledged);
                tokio::spawn(async move {
                    for turn in 0_u64.. {
                        if stop.load(Ordering::SeqCst) {
                            return;
                        }
                        let id = format!("w{round}-{writer}-{turn}");
                        let path = config("audited", &format!("k{writer}"));
                        let put = client.put(&path, &json!({"data": {"turn": turn}}));
                        // The first one creates it.
                        let is_first = turn == 0 && round == 0;
                        let put = if is_first { put.header("if-none-match", "*") } else { put };
                        match put.header("x-request-id", &id).attempt().await {
                            Ok(answer) if answer.status < 300 => {
                                acknowledged.lock().expect("no holder panics").insert(id);
                            }
                            Ok(_) => {}
                            Err(_) => return,
                        }
                    }
                })
            })
            .collect();
        eventually("writes are acknowledged", async || {
            let count = acknowledged.lock().expect("no holder panics").len();
            check(count > before + 200, || format!("{count}"))
        })
        .await;
        cluster.node(victim).kill();
        stop.store(true, Ordering::SeqCst);
        for writer in writers {
            writer.await.expect("a writer does not panic");
        }
        let (is_whole, text) = verify(&directory);
        assert!(is_whole || text.contains("the last line is not whole"), "{text}");
        cluster.node(victim).start().await;
        cluster.ready().await;
    }
    let (is_whole, text) = verify(&directory);
    assert!(is_whole, "{text}");
    let all = lines(&directory);
    let recorded: BTreeSet<&str> = all.iter().filter_map(|line| line["request_id"].as_str()).collect();
    assert_eq!(recorded.len(), all.len(), "no request has two lines");
    let acknowledged = acknowledged.lock().expect("no holder panics").clone();
    let missing: Vec<&String> = acknowledged.iter().filter(|id| !recorded.contains(id.as_str())).collect();
    assert!(missing.is_empty(), "{} of {} have no line: {missing:?}", missing.len(), acknowledged.len());
    println!("{} acknowledged writes, all with their lines; {text}", acknowledged.len());
}

#[tokio::test]
async fn an_address_that_guesses_is_throttled_and_who_has_a_key_goes_on() {
    let options = Options::default().with("CONCORD_FAILED_CREDENTIALS_PER_MINUTE", "10");
    let mut cluster = Cluster::start_with("hostile-guesses", &options).await;
    let leader = cluster.leader().await;
    let good = cluster.client(leader);
    let status = || good.get("/api/v1/cluster");
    status().insist().await.expect(200);
    let stranger = good.sending_from(Ipv4Addr::LOCALHOST);
    let begin = Instant::now();
    let guess = |n: usize| {
        stranger.bare(Method::GET, "/api/v1/cluster").header("authorization", &format!("guess{n}"))
    };
    let (mut looked_at, mut throttled) = (0, None);
    for n in 0..200 {
        let answer = guess(n).attempt().await.expect("the node answers");
        match answer.status {
            401 => looked_at += 1,
            _ => throttled = Some(answer.refused(429, "rate_limited")),
        }
    }
    let most = 10 + begin.elapsed().as_secs() / 6 + 1;
    assert!((10..=most).contains(&looked_at), "{looked_at} of 200 were looked at, at most {most} may be");
    let throttled = throttled.expect("most are not looked at");
    let pause: u64 = throttled.header("retry-after").parse().expect("seconds");
    assert!((1..=6).contains(&pause), "{throttled:?}");
    // On its connection the good key goes on, and another address is not throttled.
    status().attempt().await.expect("the node answers").expect(200);
    let elsewhere = good.sending_from(Ipv4Addr::new(127, 0, 0, 9));
    elsewhere.get("/api/v1/cluster").attempt().await.expect("the node answers").expect(200);
    // Without a credential nothing is guessed; probes need none.
    stranger.bare(Method::GET, "/api/v1/cluster").attempt().await.expect("the node answers").expect(401);
    stranger.bare(Method::GET, "/livez").attempt().await.expect("the node answers").expect(200);
    // A new connection of the same address is served as soon as one more may fail.
    let newcomer = good.sending_from(Ipv4Addr::LOCALHOST);
    newcomer.get("/api/v1/cluster").attempt().await.expect("the node answers").expect(429);
    eventually("a new connection is served", async || {
        let answer = newcomer.get("/api/v1/cluster").attempt().await?;
        check(answer.status == 200, || format!("{answer:?}"))
    })
    .await;
    let directory = cluster.node(leader).directory.join("audit");
    let failed = || lines(&directory).into_iter().filter(|line| line["status"] == 401).count();
    eventually("the guesses are in the audit log", async || {
        check(failed() == 1, || format!("{} lines of 200 guesses", failed()))
    })
    .await;
}

#[tokio::test]
async fn the_audit_log_is_shown_exported_and_checked() {
    let mut cluster = Cluster::start("hostile-audit-shown").await;
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    define(&client, "audited").await;
    for n in 0..20 {
        set(&client, "audited", "k", &json!({"n": n})).await;
    }
    let page = async |query: &str| {
        let answer = client.get(&format!("/api/v1/audit?{query}")).insist().await.expect(200);
        (answer.data()["results"].as_array().expect("lines").clone(), answer)
    };
    let writes = "definition=audited&outcome=ok";
    let all = eventually("all lines are written", async || {
        let (lines, _) = page(writes).await;
        check(lines.len() == 21, || format!("{} lines", lines.len())).map(|()| lines)
    })
    .await;
    let revisions: Vec<u64> = all.iter().map(|line| line["revision_after"].as_u64().expect("one")).collect();
    assert!(revisions.is_sorted_by(|a, b| a > b), "newest first, each write its own: {revisions:?}");
    for line in &all {
        assert_eq!((&line["key"], &line["address"]), (&json!("root"), &json!("127.0.0.1")), "{line}");
        assert!(line["revision_before"].as_u64() < line["revision_after"].as_u64(), "{line}");
    }
    let (first, answer) = page(&format!("{writes}&limit=5")).await;
    let next = answer.header("link").split(['<', '>']).nth(1).expect("a link").to_owned();
    let second =
        client.get(&next).insist().await.expect(200).data()["results"].as_array().expect("lines").clone();
    assert_eq!([first, second].concat(), all[..10]);
    assert_eq!(page("key=nobody").await.0.len(), 0);
    assert_eq!(page("since=2999-01-01T00:00:00Z").await.0.len(), 0);
    client
        .get("/api/v1/audit?since=now")
        .attempt()
        .await
        .expect("the node answers")
        .refused(422, "validation_error");
    client
        .get("/api/v1/audit?after=1&before=2")
        .attempt()
        .await
        .expect("the node answers")
        .refused(422, "validation_error");
    let root = cluster.root().to_owned();
    let export = root.join("export.jsonl");
    let output = Command::new(BINARY.as_path())
        .args(["audit", "export", "--url", &client.base, "--api-key", &client.key])
        .output()
        .expect("the binary can be started");
    assert!(output.status.success(), "{output:?}");
    std::fs::write(&export, &output.stdout).expect("a file can be written");
    let (is_whole, text) = verify(&export);
    assert!(is_whole, "{text}");
    let mut stored = output.stdout.clone();
    let place = stored.len() / 2;
    stored[place] ^= 1;
    std::fs::write(&export, &stored).expect("a file can be written");
    let line = stored[..place].iter().filter(|byte| **byte == b'\n').count() + 1;
    let (is_whole, text) = verify(&export);
    assert!(!is_whole && text.contains(&format!("export.jsonl:{line}: ")), "{text}");
    let tail = Command::new(BINARY.as_path())
        .args(["audit", "tail", "-n", "3", "--url", &client.base, "--api-key", &client.key])
        .output()
        .expect("the binary can be started");
    assert_eq!(String::from_utf8_lossy(&tail.stdout).lines().count(), 3, "{tail:?}");
    let (is_whole, text) = verify(&cluster.node(leader).directory.join("audit"));
    assert!(is_whole, "{text}");
}
