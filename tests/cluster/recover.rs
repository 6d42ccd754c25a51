//! A cluster that has lost its majority for ever continues from the disk of one member: with its history and its keys,
//! under a new id, and without a revision that stands for two different things.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use concord_model::feature::level_max;
use serde_json::{Value, json};

use super::{
    access_keys::{Key, all},
    members::{MEMBERS, decided, has_role},
};
use crate::harness::{
    Client, Cluster, Options, check, eventually,
    load::{config, define, set},
    node::Node,
    time::{lasts_blocking, must_not_happen},
};

/// How long the survivor may take from its start to the first answered write: an election time-out, and a slow machine.
const FIRST_WRITE_MAX: Duration = Duration::from_secs(10);
/// How long an operator may wait for the answer that there is no majority.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How often a recovery is killed, at moments spread over the time that it takes.
const KILLS: u32 = 12;
/// How long a member of the old cluster is watched.
const WATCHED: Duration = Duration::from_secs(4);

fn recover(node: &Node, more: &[&str]) -> Output {
    program(node, &[&["--single"], more].concat())
}

fn program(node: &Node, arguments: &[&str]) -> Output {
    command(node, &node.directory, arguments).output().expect("the binary can be started")
}

fn command(node: &Node, directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(node.binary.as_path());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CONCORD_")) {
        command.env_remove(name);
    }
    if let Some(keys) = node.settings.get("CONCORD_DATA_KEY_FILE") {
        command.env("CONCORD_DATA_KEY_FILE", keys);
    }
    command.args(["recover", "--data-dir"]).arg(directory).args(arguments);
    command
}

fn shown(output: &Output) -> Value {
    assert!(output.status.success(), "{}", errors(output));
    serde_json::from_slice(&output.stdout).expect("JSON on the standard output")
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// All files under a directory with their bytes.
fn content(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            found.extend(content(&path));
        } else {
            found.insert(path.display().to_string(), fs::read(&path).unwrap());
        }
    }
    found
}

async fn at(client: &Client, revision: u64) -> crate::harness::Answer {
    client.get(&config("d", "k")).query(&[("revision", &revision.to_string())]).insist().await
}

/// The only members of the cluster that are left, and what the old one knew.
struct Lost {
    cluster: Cluster,
    /// The revisions of the config `k`, with its number `n`.
    revisions: Vec<(u64, u64)>,
    key: Key,
    cluster_id: Value,
}

/// A cluster with a history, a key and several snapshots whose nodes 2 and 3 are lost; node 3 was stopped before the last
/// writes, and its disk is kept beside its place.
async fn lost(name: &str, options: Options) -> Lost {
    let options = options.with("CONCORD_SNAPSHOT_LOG_BYTES", "65536");
    let mut cluster = Cluster::start_with(name, &options).await;
    let client = cluster.client(1);
    define(&client, "d").await;
    let mut revisions = Vec::new();
    for n in 0..40 {
        set(&client, "d", "k", &json!({"n": n, "text": "x".repeat(5000)})).await;
        let answer = client.get(&config("d", "k")).insist().await.expect(200);
        revisions.push((answer.tag().trim_matches('"').parse().unwrap(), n));
    }
    let key = Key::create(&client, all(&["read"])).await;
    cluster.equal_digests().await;
    let cluster_id = client.status().await.unwrap()["cluster_id"].clone();
    for id in [2, 3] {
        cluster.node(id).kill();
    }
    let kept = cluster.node(3).directory.with_extension("kept");
    fs::rename(&cluster.node(3).directory, kept).unwrap();
    fs::remove_dir_all(&cluster.node(2).directory).unwrap();
    Lost { cluster, revisions, key, cluster_id }
}

/// A recovery that is killed at any moment is completed or made anew by the next one.
fn is_completed_wherever_it_is_killed(node: &Node) {
    let copy = node.directory.with_extension("copy");
    let copied = || {
        for (name, bytes) in content(&node.directory) {
            let to = copy.join(Path::new(&name).strip_prefix(&node.directory).unwrap());
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::write(to, bytes).unwrap();
        }
    };
    let single = || command(node, &copy, &["--single", "--yes"]);
    let again = || {
        let again = single().output().unwrap();
        assert!(!again.status.success() && errors(&again).contains("the only voter"), "{again:?}");
    };
    copied();
    let begin = Instant::now();
    assert!(single().output().unwrap().status.success());
    let whole = begin.elapsed();
    again();
    for kill in 0..=KILLS {
        fs::remove_dir_all(&copy).unwrap();
        copied();
        let mut child =
            single().stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary can be started");
        lasts_blocking(whole * kill / KILLS);
        child.kill().unwrap();
        child.wait().unwrap();
        let next = single().output().unwrap();
        let text = errors(&next);
        assert!(next.status.success() || text.contains("the only voter"), "after {kill} of {KILLS}: {text}");
        again();
    }
    fs::remove_dir_all(&copy).unwrap();
}

async fn is_another_cluster(client: &Client, recovered: &Value, before: &Value) {
    let status = client.status().await.unwrap();
    assert_eq!(status["cluster_id"], recovered["cluster_id"]);
    assert_ne!(status["cluster_id"], *before);
    assert_eq!(status["members"].as_array().map(Vec::len), Some(1), "{status}");
}

async fn writes_at_once(client: &Client) {
    let begin = Instant::now();
    set(client, "d", "new", &json!({"n": 1})).await;
    assert!(begin.elapsed() < FIRST_WRITE_MAX, "{:?}", begin.elapsed());
    println!("first write after {:?}", begin.elapsed());
}

fn audit_is_whole(node: &Node) {
    let audit = node.directory.join("audit");
    let verified = Command::new(node.binary.as_path()).args(["audit", "verify"]).arg(audit).output();
    assert!(verified.unwrap().status.success());
}

/// Neither a dry run nor a recovery that nobody has confirmed changes a byte. `last`: the last revision of the node.
fn nothing_changes_unconfirmed(node: &Node, last: u64) {
    let before = content(&node.directory);
    let planned = shown(&recover(node, &["--dry-run"]));
    assert_eq!(planned["cluster_id"], Value::Null);
    assert_eq!(
        (&planned["last_revision"], &planned["lost_voters"]),
        (&json!(last), &json!([2, 3])),
        "{planned}"
    );
    let unconfirmed = recover(node, &[]);
    assert!(errors(&unconfirmed).contains("--yes"), "{unconfirmed:?}");
    let after = content(&node.directory);
    let differing: Vec<_> = after.iter().filter(|(name, bytes)| before.get(*name) != Some(bytes)).collect();
    assert!(differing.is_empty() && before.len() == after.len(), "{:?}", differing.first().map(|one| one.0));
}

async fn a_survivor_continues(name: &str, options: Options) {
    let Lost { mut cluster, revisions, key, cluster_id } = lost(name, options).await;
    let running = recover(cluster.node(1), &["--yes"]);
    assert!(!running.status.success() && errors(&running).contains("another process"), "{running:?}");
    let last = cluster.client(1).status().await.unwrap()["revision"].as_u64().unwrap();
    cluster.node(1).stop().await;

    nothing_changes_unconfirmed(cluster.node(1), last);
    is_completed_wherever_it_is_killed(cluster.node(1));
    let done = recover(cluster.node(1), &["--yes"]);
    assert!(errors(&done).contains(&format!("the last revision that this node has is {last}")), "{done:?}");
    let recovered = shown(&done);
    let again = recover(cluster.node(1), &["--yes"]);
    assert!(!again.status.success() && errors(&again).contains("the only voter"), "{again:?}");

    cluster.node(1).start().await;
    let client = cluster.client(1);
    writes_at_once(&client).await;
    is_another_cluster(&client, &recovered, &cluster_id).await;
    let first = recovered["skipped_revisions"]["first"].as_u64().unwrap();
    let skipped_last = recovered["skipped_revisions"]["last"].as_u64().unwrap();
    assert!(first == last + 1 && skipped_last > last + 1_000_000, "{recovered}");
    is_whole(&client, &revisions, (first, skipped_last), &key).await;

    audit_is_whole(cluster.node(1));
    grows(&mut cluster, &revisions, (first, skipped_last), &key).await;
    old_member_is_refused(&mut cluster).await;
}

/// Whoever has seen all that the survivor had goes on, and whoever has seen more is told.
async fn watches_go_on(client: &Client, (first, last): (u64, u64)) {
    let mut watch = client.watch(&[], Some(first - 1)).await;
    let seen = watch.changes(1).await;
    assert!(seen[0].0 > last, "{seen:?}");
    match client.try_watch(&[], Some(first)).await {
        Err(Some(answer)) => drop(answer.refused(410, "expired_error")),
        other => panic!("{:?}", other.map(|_| ())),
    }
    let mut from_the_first = client.watch(&[("from", &(last + 1).to_string())], None).await;
    assert_eq!(from_the_first.changes(1).await, seen);
}

/// The latest changes go on before the revisions that were skipped.
async fn lists_go_on(client: &Client, revisions: &[(u64, u64)]) {
    let mut seen = Vec::new();
    let mut before = u64::MAX.to_string();
    loop {
        let page = client.get("/api/v1/changes").query(&[("latest", "7"), ("before", before.as_str())]);
        let page = page.insist().await.expect(200);
        let events = page.data()["events"].as_array().expect("events").clone();
        seen.extend(events.iter().map(|event| event["revision"].as_u64().expect("a revision")));
        match page.data()["next_before"].as_u64() {
            Some(next) => before = next.to_string(),
            None => break,
        }
    }
    assert!(seen.is_sorted_by(|one, two| one > two), "{seen:?}");
    assert!(revisions.iter().all(|(revision, _)| seen.contains(revision)), "{seen:?}: {revisions:?}");
}

/// A node has the history, the key, and nothing at a revision that was skipped.
async fn is_whole(client: &Client, revisions: &[(u64, u64)], (first, last): (u64, u64), key: &Key) {
    for (revision, n) in revisions.iter().step_by(7) {
        assert_eq!(at(client, *revision).await.expect(200).data()["data"]["n"], json!(n));
    }
    for void in [first, first + 1, last] {
        at(client, void).await.refused(410, "expired_error");
        let list =
            client.get("/api/v1/config_definition/d/config/").query(&[("revision", &void.to_string())]);
        list.insist().await.refused(410, "expired_error");
        let write = client.put(&config("d", "k"), &json!({"data": {}}));
        write.header("if-match", &format!("\"{void}\"")).insist().await.refused(412, "precondition_failed");
    }
    let history = client.get(&format!("{}/history", config("d", "k"))).query(&[("limit", "100")]);
    let history = history.insist().await.expect(200);
    assert_eq!(history.data()["results"].as_array().map(Vec::len), Some(revisions.len()));
    lists_go_on(client, revisions).await;
    watches_go_on(client, (first, last)).await;
    let app = key.on(client);
    app.get(&config("d", "k")).insist().await.expect(200);
    app.put(&config("d", "k"), &json!({"data": {}})).insist().await.refused(403, "forbidden_error");
}

/// Two empty nodes become voters, and have all of it.
async fn grows(cluster: &mut Cluster, revisions: &[(u64, u64)], void: (u64, u64), key: &Key) {
    for id in [4, 5] {
        let body = cluster.newcomer(id).await;
        let client = cluster.client(1);
        decided(client.post(MEMBERS, &body)).await.expect(201);
        decided(client.post(&format!("{MEMBERS}/{id}/promote"), &json!({}))).await.expect(200);
        has_role(&client, id, "follower").await;
    }
    cluster.equal_digests_on(&[1, 4, 5]).await;
    is_whole(&cluster.client(4), revisions, void, key).await;
    // A majority without the survivor.
    cluster.node(1).stop().await;
    cluster.leader_on(&[4, 5]).await;
    set(&cluster.client(5), "d", "later", &json!({"n": 2})).await;
    cluster.node(1).start().await;
    cluster.equal_digests_on(&[1, 4, 5]).await;
    is_whole(&cluster.client(1), revisions, void, key).await;
}

/// A member of the old cluster that comes back is no member, and becomes none.
async fn old_member_is_refused(cluster: &mut Cluster) {
    let directory = cluster.node(3).directory.clone();
    fs::rename(directory.with_extension("kept"), &directory).unwrap();
    let term = cluster.client(1).status().await.unwrap()["term"].clone();
    cluster.node(3).start().await;
    let old = cluster.client(3);
    must_not_happen("an old member is ready", WATCHED, async || {
        let ready = old.bare(http::Method::GET, "/readyz").attempt().await?;
        check(ready.status == 503, || format!("{ready:?}"))
    })
    .await;
    // It still is what it was.
    let local = [("consistency", "local")];
    let kept = cluster.client(3).get(&config("d", "k")).query(&local).attempt().await.unwrap().expect(200);
    // The last entry may wait for a majority again: a killed node knows only for those before it that they were decided.
    assert!(matches!(kept.data()["data"]["n"].as_u64(), Some(38 | 39)), "{kept:?}");
    let body = cluster.node(3).as_member();
    let client = cluster.client(1);
    decided(client.post(MEMBERS, &body)).await.refused(409, "conflict_error");
    assert_eq!(client.status().await.unwrap()["term"], term, "it disturbs nobody");
    set(&client, "d", "last", &json!({"n": 3})).await;
}

#[tokio::test]
async fn a_survivor_continues_as_a_new_cluster_with_its_history_and_keys() {
    a_survivor_continues("recover", Options::default()).await;
}

#[tokio::test]
async fn a_survivor_with_an_encrypted_disk_continues_too() {
    a_survivor_continues("recover-encrypted", Options::default().encrypted()).await;
}

/// The last entry in the log of a node.
async fn last_index(client: &Client) -> Result<u64, String> {
    let metrics = client.get("/metrics").attempt().await?.expect(200).text;
    let line = metrics.lines().find_map(|line| line.strip_prefix("concord_raft_last_log_index "));
    line.and_then(|value| value.trim_end_matches(".0").parse().ok()).ok_or_else(|| metrics.clone())
}

/// A leader that is cut off has entries that nobody else has, and the others decide something else in their places. Then
/// they are lost, and it is recovered.
#[tokio::test]
async fn no_revision_of_the_lost_majority_stands_for_something_else() {
    let mut cluster = Cluster::start("recover-tail").await;
    let survivor = cluster.leader().await;
    let others = cluster.followers().await;
    let client = cluster.client(survivor);
    define(&client, "d").await;
    set(&client, "d", "k", &json!({"n": "decided"})).await;
    let decided = client.get(&config("d", "k")).insist().await.expect(200).tag();
    cluster.equal_digests().await;
    for id in others {
        cluster.node(id).kill();
    }
    let before = last_index(&client).await.unwrap();
    let write = |n: u64| {
        let call = client.put(&config("d", "k"), &json!({"data": {"n": n}}));
        tokio::spawn(async move { call.attempt().await })
    };
    let writes: Vec<_> = (0..8).map(write).collect();
    eventually("the writes are in the log of the leader", async || {
        let last = last_index(&client).await?;
        check(last >= before + 2, || format!("{last} after {before}"))
    })
    .await;
    cluster.node(survivor).kill();
    for write in writes {
        assert!(write.await.unwrap().is_err(), "nobody has confirmed it");
    }

    for id in others {
        cluster.node(id).start().await;
    }
    cluster.leader_on(&others).await;
    let client = cluster.client(others[0]);
    let mut lost = Vec::new();
    for n in 0..20 {
        set(&client, "d", "k", &json!({"n": n, "lost": true})).await;
        lost.push(client.get(&config("d", "k")).insist().await.expect(200).tag());
    }
    for id in others {
        cluster.node(id).kill();
        fs::remove_dir_all(&cluster.node(id).directory).unwrap();
    }

    let recovered = shown(&recover(cluster.node(survivor), &["--yes"]));
    assert!(recovered["undecided_entries"].as_u64().unwrap() >= 2, "{recovered}");
    cluster.node(survivor).start().await;
    let client = cluster.client(survivor);
    let now = client.get(&config("d", "k")).insist().await.expect(200);
    assert!(now.data()["data"]["n"].is_number(), "what nobody has confirmed is kept: {now:?}");
    assert!(!lost.contains(&now.tag()), "{now:?} of {lost:?}");
    for tag in &lost {
        at(&client, tag.trim_matches('"').parse().unwrap()).await.refused(410, "expired_error");
        let write = client.put(&config("d", "k"), &json!({"data": {}})).header("if-match", tag);
        write.insist().await.refused(412, "precondition_failed");
    }
    let before = at(&client, decided.trim_matches('"').parse().unwrap()).await.expect(200);
    assert_eq!(before.data()["data"]["n"], json!("decided"));
    let history = client.get(&format!("{}/history", config("d", "k"))).insist().await.expect(200);
    let revisions: Vec<String> = history.data()["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| format!("\"{}\"", one["revision"]))
        .collect();
    assert!(revisions.contains(&decided) && revisions.iter().all(|one| !lost.contains(one)), "{history:?}");
}

#[tokio::test]
async fn what_is_no_survivor_is_refused_and_stays_as_it_is() {
    let mut cluster = Cluster::start("recover-refused").await;
    cluster.kill_all();
    let settings = cluster.nodes[0].settings.clone();
    let mut node = Node::new(9, cluster.root(), &settings);
    let mut refused = |prepare: &dyn Fn(&Path), expected: &str| {
        node.directory = node.directory.with_extension(expected.replace(' ', "-"));
        fs::create_dir(&node.directory).unwrap();
        prepare(&node.directory);
        let before = content(&node.directory);
        let output = recover(&node, &["--yes"]);
        assert!(!output.status.success() && errors(&output).contains(expected), "{expected}: {output:?}");
        let mut after = content(&node.directory);
        after.retain(|name, _| !name.ends_with("/lock"));
        assert_eq!(before.len(), after.len(), "{expected}");
        assert!(before == after, "{expected}");
    };
    refused(&|_| {}, "belongs to no node");
    refused(&|directory| fs::write(directory.join("thesis.txt"), "mine").unwrap(), "no node of a cluster");
    let identity = fs::read_to_string(cluster.node(1).directory.join("identity.json")).unwrap();
    let newer = identity.replace(&format!("\"format\": {}", level_max()), "\"format\": 99");
    assert_ne!(newer, identity);
    refused(
        &|directory| fs::write(directory.join("identity.json"), &newer).unwrap(),
        "start a newer version",
    );
    refused(&|directory| fs::write(directory.join("identity.json"), &identity).unwrap(), "has no log");
    let missing = recover(&Node::new(10, &cluster.root().join("nowhere"), &node.settings), &["--yes"]);
    assert!(errors(&missing).contains("belongs to no node") && !cluster.root().join("nowhere").exists());
    eventually("the cluster is as it was", async || {
        cluster.start_all().await;
        check(true, String::new)
    })
    .await;
    cluster.equal_digests().await;
}

#[tokio::test]
async fn a_cluster_whose_members_have_all_moved_continues() {
    let options = Options::default().encrypted().with("CONCORD_SNAPSHOT_LOG_BYTES", "65536");
    let mut cluster = Cluster::start_with("all-moved", &options).await;
    let client = cluster.client(1);
    define(&client, "d").await;
    for n in 0..40 {
        set(&client, "d", "k", &json!({"n": n, "text": "x".repeat(5000)})).await;
    }
    let digest = cluster.equal_digests().await;
    let before = client.status().await.unwrap();
    for id in 1..=3 {
        cluster.node(id).stop().await;
        cluster.node(id).take_new_ports();
    }
    let named = |node: &Node| format!("{}={}@{}", node.id, node.api_addr(), node.peer_addr());
    let members: Vec<String> = cluster.nodes.iter().map(named).collect();
    let run = |node: &Node, members: &[String], more: &[&str]| {
        let mut arguments: Vec<&str> = members.iter().flat_map(|one| ["--member", one]).collect();
        arguments.extend(more);
        program(node, &arguments)
    };
    let unknown = run(&cluster.nodes[0], &["7=127.0.0.1:1@127.0.0.1:2".to_owned()], &["--yes"]);
    assert!(errors(&unknown).contains("node 7 is no member"), "{unknown:?}");
    let twice = run(&cluster.nodes[0], &[members[0].replacen('1', "2", 1), members[0].clone()], &["--yes"]);
    assert!(errors(&twice).contains("would both be at"), "{twice:?}");
    let files = content(&cluster.nodes[0].directory);
    let planned = shown(&run(&cluster.nodes[0], &members, &["--dry-run"]));
    assert_eq!(planned, cluster.members()["members"]);
    assert!(files == content(&cluster.nodes[0].directory), "a dry run changes nothing");
    for node in &cluster.nodes {
        // Running it again is harmless.
        for _ in 0..2 {
            assert_eq!(shown(&run(node, &members, &["--yes"])), planned);
        }
    }
    cluster.start_all().await;
    assert_eq!(cluster.equal_digests().await, digest);
    let after = cluster.client(2).status().await.unwrap();
    assert_eq!(after["cluster_id"], before["cluster_id"]);
    set(&cluster.client(3), "d", "new", &json!({"n": 1})).await;
    let addresses = |view: &Value| -> Vec<Value> {
        let of = |one: &Value| json!({"id": one["id"], "api_addr": one["api_addr"], "peer_addr": one["peer_addr"]});
        view["members"].as_array().unwrap().iter().map(of).collect()
    };
    assert_eq!(json!(addresses(&after)), planned);
    // A member of its own addresses is added by a snapshot, whose membership has the new ones.
    let body = cluster.newcomer(4).await;
    decided(cluster.client(1).post(MEMBERS, &body)).await.expect(201);
    cluster.equal_digests_on(&[1, 2, 3, 4]).await;
}

#[tokio::test]
async fn a_change_of_members_without_a_majority_is_answered_at_once() {
    let mut cluster = Cluster::start("no-quorum").await;
    for survivor in [cluster.leader().await, cluster.followers().await[0]] {
        for id in (1..=3).filter(|id| *id != survivor) {
            cluster.node(id).kill();
        }
        let client = cluster.client(survivor);
        let new = json!({"id": 4, "api_addr": "127.0.0.1:1", "peer_addr": "127.0.0.1:2"});
        let of = |id: u64, verb: &str| format!("{MEMBERS}/{id}{verb}");
        let other = survivor % 3 + 1;
        for call in [
            client.post(MEMBERS, &new),
            client.post(&of(other, "/promote"), &json!({})),
            client.post(&of(other, "/replace"), &new),
            client.delete(&of(other, "")),
            client.post("/api/v1/cluster/leader", &json!({"id": other})),
        ] {
            let begin = Instant::now();
            let answer = call.attempt().await.unwrap();
            assert!(begin.elapsed() < ANSWER_MAX, "{:?}: {answer:?}", begin.elapsed());
            assert!(answer.text.contains("no quorum: 1 of 3 voters"), "{answer:?}");
            answer.refused(503, "unavailable_error");
        }
        for id in (1..=3).filter(|id| *id != survivor) {
            cluster.node(id).start().await;
        }
        cluster.ready().await;
    }
}
