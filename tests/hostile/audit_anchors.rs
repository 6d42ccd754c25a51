//! Does a rewritten audit log show, and is no other one accused?
//!
//! The log of one node is rewritten with matching hashes, rolled back or replaced while the node is stopped. The anchors
//! are those that the other nodes have.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    chaos::tools,
    harness::{
        Client, Cluster, Options, check, eventually,
        load::{define, set},
        node::BINARY,
        time::{must_not_happen, stays},
    },
};

fn options() -> Options {
    Options::default().with("CONCORD_AUDIT_ANCHOR_SECONDS", "1")
}

fn concord(arguments: &[&str]) -> Output {
    let mut command = Command::new(BINARY.as_path());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CONCORD_")) {
        command.env_remove(name);
    }
    command.args(arguments).output().expect("the binary can be started")
}

/// The anchors of a node's log as another node has them.
async fn anchors(client: &Client, node: u64) -> Vec<Value> {
    let answer = client.get("/api/v1/audit/anchors").insist().await.expect(200);
    let logs = answer.data()["logs"].as_array().expect("a list").clone();
    let log = logs.into_iter().find(|log| log["node_id"] == node);
    log.and_then(|log| log["anchors"].as_array().cloned()).unwrap_or_default()
}

/// Waits until a line of the node, or a later one, is anchored. Returns the number of the newest anchored line.
async fn anchored(client: &Client, node: u64, seq: u64) -> u64 {
    eventually("the log is anchored", async || {
        let newest = anchors(client, node).await.last().and_then(|one| one["seq"].as_u64()).unwrap_or(0);
        check(newest >= seq, || format!("line {newest}, and {seq} is expected")).map(|()| newest)
    })
    .await
}

/// The number of the last line that a node has.
async fn head(client: &Client) -> u64 {
    let answer = client.get("/api/v1/audit").query(&[("limit", "1")]).insist().await.expect(200);
    answer.data()["meta"]["head"]["seq"].as_u64().expect("a number")
}

/// The audit alarms that a node shows.
async fn alarms(client: &Client) -> Vec<String> {
    let status = client.get("/api/v1/cluster").insist().await.expect(200).data().clone();
    let alarms = status["alarms"].as_array().expect("a list").clone();
    let text = |alarm: &Value| alarm["message"].as_str().expect("a text").to_owned();
    alarms.iter().filter(|alarm| alarm["type"] == "audit").map(text).collect()
}

/// Verifies a log with the anchors of a cluster: whether it is whole, and the text.
fn verify(client: &Client, root: &Path, log: &Path) -> (bool, String) {
    let printed = concord(&["audit", "anchors", "--url", &client.base, "--api-key", &client.key]);
    assert!(printed.status.success(), "{printed:?}");
    let file = root.join("anchors.json");
    fs::write(&file, &printed.stdout).expect("a file can be written");
    let output =
        Command::new(BINARY.as_path()).args(["audit", "verify", "--anchors"]).arg(&file).arg(log).output();
    let output = output.expect("the binary can be started");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn files(log: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(log).expect("a directory").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "jsonl")).collect();
    files.sort();
    files
}

fn hash(line: &str) -> String {
    Sha256::digest(line.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Rewrites a log as its owner could: changes lines, and gives all lines and the head matching hashes.
fn rewrite(log: &Path, change: impl Fn(&str) -> Option<String>) {
    let mut before = "0".repeat(64);
    let mut seq = 0;
    for file in files(log) {
        let mut lines = String::new();
        for line in fs::read_to_string(&file).expect("a file").lines() {
            let Some(mut changed) = change(line) else { continue };
            seq += 1;
            let place = changed.rfind("\"prev\":\"").expect("a hash") + "\"prev\":\"".len();
            changed.replace_range(place..place + 64, &before);
            let end = changed.find(',').expect("members");
            changed.replace_range("{\"seq\":".len()..end, &seq.to_string());
            before = hash(&changed);
            lines.push_str(&changed);
            lines.push('\n');
        }
        fs::write(&file, lines).expect("a file can be written");
    }
    fs::write(log.join("head"), format!("{seq:020} {before}\n")).expect("a file can be written");
}

/// Lines on a node, all of them anchored, and by an anchor that stays when others are added: of those of ten seconds, the
/// state keeps the first.
async fn fill(client: &Client, other: &Client, node: u64, definition: &str) {
    for n in 0..20 {
        set(client, definition, "k", &json!({"n": n})).await;
    }
    let last = head(client).await;
    eventually("an anchor that stays", async || {
        set(client, definition, "k", &json!({"n": 0})).await;
        let anchors = anchors(other, node).await;
        let earlier = anchors.len().checked_sub(2).and_then(|place| anchors[place]["seq"].as_u64());
        check(earlier >= Some(last), || format!("{earlier:?}, and {last} is expected"))
    })
    .await;
}

#[tokio::test]
async fn a_log_that_was_rewritten_with_matching_hashes_is_found_by_its_node_and_by_verify() {
    let mut cluster = Cluster::start_with("hostile-anchors-rewritten", &options()).await;
    let leader = cluster.leader().await;
    let [victim, other] = cluster.followers().await;
    let (client, honest) = (cluster.client(victim), cluster.client(other));
    define(&cluster.client(leader), "audited").await;
    fill(&client, &honest, victim, "audited").await;
    let (root, log) = (cluster.root().to_owned(), cluster.node(victim).directory.join("audit"));
    let (is_whole, text) = verify(&honest, &root, &log);
    assert!(is_whole && !text.contains(" 0 match"), "{text}");
    assert_eq!(alarms(&client).await, Vec::<String>::new());
    // A restart adds lines, and changes none.
    cluster.node(victim).stop().await;
    cluster.node(victim).start().await;
    cluster.ready().await;
    let last = head(&client).await;
    anchored(&honest, victim, last).await;
    assert_eq!(alarms(&client).await, Vec::<String>::new());

    cluster.node(victim).stop().await;
    let copy = root.join("copy");
    fs::create_dir(&copy).expect("a fresh directory");
    for file in files(&log) {
        fs::copy(&file, copy.join(file.file_name().expect("a name"))).expect("a file can be copied");
    }
    rewrite(&log, |line| Some(line.replace("\"config\":\"k\"", "\"config\":\"other\"")));
    let alone = concord(&["audit", "verify", &log.to_string_lossy()]);
    assert!(alone.status.success(), "the rewritten log matches itself: {alone:?}");
    let (is_whole, text) = verify(&honest, &root, &log);
    assert!(!is_whole && text.contains("is not the one that the cluster anchored at"), "{text}");
    let (is_whole, text) = verify(&honest, &root, &copy);
    assert!(is_whole, "the lines as they were written: {text}");

    cluster.node(victim).start().await;
    cluster.ready().await;
    let found = eventually("the node finds it", async || {
        let alarms = alarms(&client).await;
        check(!alarms.is_empty(), || "no alarm".into()).map(|()| alarms)
    })
    .await;
    assert!(found[0].contains("is another one, which was anchored at"), "{found:?}");
    assert!(cluster.node(victim).tail(200).contains("is not the one that was anchored"), "it is logged");
    let metrics = client.get("/metrics").insist().await.expect(200).text;
    assert!(metrics.contains("concord_alarms{type=\"audit\"} 1"), "{metrics}");
    // New lines are anchored all the same, and the anchors from before stay.
    let last = head(&client).await;
    anchored(&honest, victim, last).await;
    let (is_whole, text) = verify(&honest, &root, &log);
    assert!(!is_whole, "{text}");
    assert!(!alarms(&client).await.is_empty());

    let accepted = concord(&[
        "audit",
        "accept",
        &victim.to_string(),
        "--url",
        &honest.base,
        "--api-key",
        &honest.key,
        "--reason",
        "a drill",
    ]);
    assert!(accepted.status.success(), "{accepted:?}");
    eventually("the alarm ends", async || {
        let alarms = alarms(&client).await;
        check(alarms.is_empty(), || format!("{alarms:?}"))
    })
    .await;
    let (is_whole, text) = verify(&honest, &root, &log);
    assert!(is_whole && text.contains("differ as accepted"), "{text}");
    let answer = client.get("/api/v1/audit/anchors").insist().await.expect(200);
    let logs = answer.data()["logs"].as_array().expect("a list").clone();
    let of_victim = logs.iter().find(|log| log["node_id"] == victim).expect("its anchors");
    assert_eq!(
        (&of_victim["accepted"]["by"], &of_victim["accepted"]["reason"]),
        (&json!("root"), &json!("a drill")),
        "{of_victim}"
    );
    cluster.equal_digests().await;
}

#[tokio::test]
async fn a_log_that_is_rolled_back_or_begins_anew_shows_on_the_other_nodes_too() {
    let mut cluster = Cluster::start_with("hostile-anchors-replaced", &options()).await;
    let leader = cluster.leader().await;
    let [victim, other] = cluster.followers().await;
    let (client, honest) = (cluster.client(victim), cluster.client(other));
    define(&cluster.client(leader), "audited").await;
    fill(&client, &honest, victim, "audited").await;
    cluster.node(victim).stop().await;
    let log = cluster.node(victim).directory.join("audit");
    fs::remove_dir_all(&log).expect("the log can be removed");
    cluster.node(victim).start().await;
    cluster.ready().await;
    let own = eventually("the node finds it", async || {
        let alarms = alarms(&client).await;
        check(!alarms.is_empty(), || "no alarm".into()).map(|()| alarms)
    })
    .await;
    assert!(own[0].contains("it was rewritten or replaced, or its directory was emptied"), "{own:?}");
    let others = eventually("another node finds it", async || {
        let alarms = alarms(&honest).await;
        check(!alarms.is_empty(), || "no alarm".into()).map(|()| alarms)
    })
    .await;
    assert!(
        others[0].contains(&format!("the audit log of node {victim} was rolled back or replaced")),
        "{others:?}"
    );
    let path = format!("/api/v1/audit/anchors/{victim}/accept");
    honest.call(http::Method::POST, &path).insist().await.expect(200);
    eventually("the alarms end", async || {
        let alarms = [alarms(&client).await, alarms(&honest).await].concat();
        check(alarms.is_empty(), || format!("{alarms:?}"))
    })
    .await;
    // From here on the new log is held to its own anchors.
    fill(&client, &honest, victim, "audited").await;
    let root = cluster.root().to_owned();
    let (is_whole, text) = verify(&honest, &root, &log);
    assert!(is_whole, "{text}");
    let missing = honest.call(http::Method::POST, "/api/v1/audit/anchors/99/accept");
    missing.insist().await.refused(404, "not_found_error");
}

#[tokio::test]
async fn lines_that_were_not_durable_are_not_anchored_and_a_power_loss_is_not_accused() {
    if !tools::strace_works() {
        eprintln!("SKIPPED: no strace, or no right to use it");
        return;
    }
    let mut cluster = Cluster::start_with("hostile-anchors-power", &options()).await;
    let leader = cluster.leader().await;
    let [victim, other] = cluster.followers().await;
    let (client, honest) = (cluster.client(victim), cluster.client(other));
    define(&cluster.client(leader), "audited").await;
    fill(&client, &honest, victim, "audited").await;
    let log = cluster.node(victim).directory.join("audit");
    let file = files(&log).pop().expect("a file");
    // Nothing of the audit log reaches the disk any more, for longer than this test takes on any machine.
    let report = cluster.root().join("strace.txt");
    let what = "fdatasync,fsync:delay_enter=600s";
    let pid = cluster.node(victim).pid();
    let hung = tools::tamper_with_files(pid, what, std::slice::from_ref(&file), &report);
    eventually("the disk hangs", async || {
        set(&client, "audited", "k", &json!({"n": 1})).await;
        check(fs::read_to_string(&report).is_ok_and(|text| text.contains("fdatasync(")), || {
            "no call yet".into()
        })
    })
    .await;
    let durable =
        anchors(&honest, victim).await.last().and_then(|one| one["seq"].as_u64()).expect("an anchor");
    let length = |upto: u64| {
        let text = fs::read_to_string(&file).expect("a file");
        let is_kept = |line: &&str| {
            let line: Value = serde_json::from_str(line).expect("a line");
            line["seq"].as_u64().expect("a number") <= upto
        };
        text.lines().take_while(is_kept).map(|line| line.len() + 1).sum::<usize>() as u64
    };
    for n in 0..20 {
        set(&client, "audited", "k", &json!({"n": n})).await;
    }
    // The others have had time to anchor: their logs grow as well.
    let begin = head(&honest).await;
    for n in 0..3 {
        set(&honest, "audited", "k", &json!({"n": n})).await;
        anchored(&cluster.client(leader), other, begin + n + 1).await;
    }
    let after = anchors(&honest, victim).await.last().and_then(|one| one["seq"].as_u64());
    assert_eq!(after, Some(durable), "lines that are not on the disk are not anchored");
    cluster.node(victim).signal("KILL");
    hung.end_for_dead();
    cluster.node(victim).kill();
    // What a power loss leaves: the lines that were durable, and an old head.
    fs::OpenOptions::new()
        .write(true)
        .open(&file)
        .and_then(|open| open.set_len(length(durable)))
        .expect("a file");
    fs::remove_file(log.join("head")).expect("a file can be removed");
    cluster.node(victim).start().await;
    cluster.ready().await;
    let last = head(&client).await;
    assert!(last > durable && last < durable + 20, "{last}, {durable}");
    anchored(&honest, victim, last).await;
    assert_eq!(alarms(&client).await, Vec::<String>::new());
    assert_eq!(alarms(&honest).await, Vec::<String>::new());
    let root = cluster.root().to_owned();
    let (is_whole, text) = verify(&honest, &root, &log);
    assert!(is_whole, "{text}");
}

#[tokio::test]
async fn an_idle_cluster_writes_no_anchors_and_one_without_quorum_waits_for_none() {
    let mut cluster = Cluster::start_with("hostile-anchors-idle", &options()).await;
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    define(&client, "audited").await;
    for (id, client) in (1..).zip(cluster.clients()) {
        let last = head(&client).await;
        anchored(&client, id, last).await;
    }
    // Reading the anchors is no line. Reading the head is one, on the node that was asked.
    let revision = async || client.status().await.expect("a status")["revision"].as_u64();
    // Once all lines are anchored, nothing is recorded, so nothing is anchored: for three times the greatest distance of
    // two anchors.
    eventually("the cluster writes no anchors any more", async || {
        let before = revision().await;
        stays(Duration::from_secs(4), async || check(revision().await == before, || "it grows".into())).await
    })
    .await;
    // Without a quorum reads of the node's own state go on, and nothing waits for an anchor.
    let [one, two] = cluster.followers().await;
    cluster.node(one).kill();
    cluster.node(two).kill();
    must_not_happen("a read of the node's own state waits", Duration::from_millis(2500), async || {
        let status = client.get("/api/v1/cluster").attempt().await?;
        check(status.status == 200, || format!("{status:?}"))
    })
    .await;
    cluster.node(one).start().await;
    cluster.node(two).start().await;
    cluster.ready().await;
    set(&client, "audited", "k", &json!({"n": 1})).await;
    let last = head(&client).await;
    anchored(&cluster.client(one), leader, last).await;
}
