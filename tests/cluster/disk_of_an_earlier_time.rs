//! A disk that goes back in time: a snapshot of a virtual machine, or a copied data directory that was put back. The
//! member has forgotten what it confirmed, and nothing that was acknowledged may be lost by that, read wrongly, or
//! confirmed falsely.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

use futures::future::join_all;
use serde_json::json;

use super::{
    members::{MEMBERS, decided, has_role},
    snapshot::purge_logs,
};
use crate::harness::{
    Client, Cluster, Options, check, eventually,
    load::{config, define, set},
    node::{BINARY, Node},
    time::{lasts, must_not_happen},
    within,
};

/// How long a cluster that must not elect is watched: several election timeouts.
const WATCHED: Duration = Duration::from_secs(5);
/// The members exchange their records every five seconds.
const TWO_EXCHANGES: Duration = Duration::from_secs(11);

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Stops a node, copies its directory and starts it again. Returns the copy.
async fn take_image(cluster: &mut Cluster, id: u64) -> PathBuf {
    let image = cluster.root().join(format!("image{id}"));
    assert!(cluster.node(id).stop().await.success());
    copy(&cluster.node(id).directory, &image);
    cluster.node(id).start().await;
    cluster.ready_on(&[id]).await;
    image
}

/// Puts the copy in the place of the directory of a node that does not run.
fn put_back(cluster: &mut Cluster, id: u64, image: &Path) {
    let directory = cluster.node(id).directory.clone();
    std::fs::remove_dir_all(&directory).unwrap();
    copy(image, &directory);
}

async fn write_many(client: &Client, name: &str, count: u64) {
    for n in 0..count {
        set(client, "d", &format!("{name}{n}"), &json!({"n": n})).await;
    }
}

async fn lead(cluster: &Cluster, id: u64, ids: &[u64]) {
    eventually("the leader is the one of the test", async || {
        if cluster.client(id).status().await?["leader_id"] == id {
            return Ok(());
        }
        let moved = cluster.client(id).post("/api/v1/cluster/leader", &json!({"id": id})).attempt().await?;
        Err(format!("{moved:?}"))
    })
    .await;
    assert_eq!(cluster.leader_on(ids).await, id);
}

/// Waits until a node shows an alarm of this kind about a member. Returns its text.
async fn alarm_about(client: &Client, kind: &str, id: u64) -> String {
    eventually(&format!("an alarm `{kind}` about node {id}"), async || {
        let status = client.status().await?;
        let mut alarms = status["alarms"].as_array().into_iter().flatten();
        let found = alarms.find(|alarm| alarm["type"] == kind && alarm["node_id"] == id);
        found.map(|alarm| alarm["message"].to_string()).ok_or_else(|| status["alarms"].to_string())
    })
    .await
}

/// Waits until a node shows no alarm of this kind.
async fn no_alarm(client: &Client, kind: &str) {
    eventually(&format!("no alarm `{kind}`"), async || {
        let status = client.status().await?;
        let alarms = status["alarms"].as_array().ok_or("no alarms")?;
        check(alarms.iter().all(|alarm| alarm["type"] != kind), || format!("{alarms:?}"))
    })
    .await;
}

/// Waits until a node shows an alarm of this kind about a member with this text.
async fn alarm_that_says(client: &Client, kind: &str, id: u64, text: &str) {
    eventually(&format!("an alarm `{kind}` about node {id} that says: {text}"), async || {
        let message = alarm_about(client, kind, id).await;
        check(message.contains(text), || message)
    })
    .await;
}

/// A write that may fail: whether it was acknowledged.
async fn is_acknowledged(client: &Client, key: &str) -> bool {
    let put = client.put(&config("d", key), &json!({"data": {"n": 1}})).header("if-none-match", "*");
    put.attempt().await.is_ok_and(|answer| answer.status == 201)
}

#[tokio::test]
async fn a_follower_whose_disk_went_back_is_noticed_and_catches_up() {
    let mut cluster = Cluster::start("earlier-follower").await;
    define(&cluster.client(1), "d").await;
    write_many(&cluster.client(1), "a", 20).await;
    let [follower, other] = cluster.followers().await;
    let image = take_image(&mut cluster, follower).await;
    let leader = cluster.leader().await;
    write_many(&cluster.client(leader), "b", 200).await;
    cluster.equal_digests().await;

    cluster.node(follower).kill();
    put_back(&mut cluster, follower, &image);
    cluster.node(follower).start().await;
    cluster.ready().await;
    cluster.equal_digests().await;
    for client in cluster.clients() {
        alarm_about(&client, "rolled_back", follower).await;
    }
    assert!(cluster.node(follower).tail(200).contains("earlier state of its disk"));
    // It counts again.
    cluster.node(other).pause();
    write_many(&cluster.client(leader), "c", 3).await;
    cluster.node(other).resume();
    cluster.equal_digests().await;
}

/// Node 3 is down while nodes 1 and 2 acknowledge; then the disk of node 2 goes back while node 1, which leads, is there
/// to witness it, and node 1 is lost.
async fn only_witness_is_lost(name: &str) -> Cluster {
    let mut cluster = Cluster::start(name).await;
    define(&cluster.client(1), "d").await;
    lead(&cluster, 1, &[1, 2, 3]).await;
    let image = take_image(&mut cluster, 2).await;
    assert!(cluster.node(3).stop().await.success());
    write_many(&cluster.client(1), "a", 40).await;
    cluster.equal_digests_on(&[1, 2]).await;
    cluster.node(2).kill();
    put_back(&mut cluster, 2, &image);
    cluster.node(2).start().await;
    let message = alarm_about(&cluster.client(2), "rolled_back", 2).await;
    assert!(message.contains("node 3"), "it names whom it waits for: {message}");
    cluster.node(1).kill();
    cluster.node(3).start().await;
    cluster
}

#[tokio::test]
async fn a_member_whose_disk_went_back_gives_no_majority_to_those_who_lack_what_it_had() {
    let mut cluster = only_witness_is_lost("earlier-majority").await;
    must_not_happen("a node is ready", WATCHED, async || {
        for id in [2, 3] {
            let ready = cluster.client(id).bare(http::Method::GET, "/readyz").attempt().await?;
            check(ready.status == 503, || format!("node {id}: {ready:?}"))?;
        }
        Ok(())
    })
    .await;
    cluster.node(1).start().await;
    cluster.ready().await;
    cluster.equal_digests().await;
    for id in 1..=3 {
        for n in 0..40 {
            cluster.client(id).get(&config("d", &format!("a{n}"))).insist().await.expect(200);
        }
    }
}

#[tokio::test]
async fn an_operator_decides_when_a_witness_is_lost_for_good() {
    let mut cluster = only_witness_is_lost("earlier-vouch").await;
    let vouch = |directory: PathBuf| {
        let mut command = Command::new(&*BINARY);
        command.args(["cluster", "vouch", "--data-dir"]).arg(directory).output().unwrap()
    };
    let says =
        |output: &Output| String::from_utf8_lossy(&[&*output.stdout, &*output.stderr].concat()).into_owned();
    let refused = vouch(cluster.node(3).directory.clone());
    assert!(!refused.status.success(), "node 3 has forgotten nothing: {refused:?}");
    // Without node 3 there is no majority, so nothing can be decided yet.
    assert!(cluster.node(3).stop().await.success());
    cluster.node(2).kill();
    cluster.node(2).start().await;
    alarm_that_says(&cluster.client(2), "rolled_back", 2, "enough of them for a majority").await;
    let refused = vouch(cluster.node(2).directory.clone());
    assert!(!refused.status.success() && says(&refused).contains("waits for node 1, node 3"), "{refused:?}");
    assert!(!cluster.node(2).directory.join("vouched").exists());
    cluster.node(3).start().await;
    alarm_that_says(&cluster.client(2), "rolled_back", 2, "concord cluster vouch").await;
    let vouched = vouch(cluster.node(2).directory.clone());
    assert!(vouched.status.success() && says(&vouched).contains("continues without node 1"), "{vouched:?}");
    cluster.ready_on(&[2, 3]).await;
    cluster.equal_digests_on(&[2, 3]).await;
    set(&cluster.client(2), "d", "after", &json!({"n": 1})).await;
    // One decision is enough: what the others remember of node 2 from before counts no more.
    cluster.node(2).kill();
    cluster.node(2).start().await;
    cluster.ready_on(&[2, 3]).await;
    none_ends(&mut [cluster.node(2)]).await;
    cluster.equal_digests_on(&[2, 3]).await;
}

/// Copies the directory of a node that stands still and goes on afterwards, within one start.
fn take_live_image(cluster: &mut Cluster, id: u64) -> PathBuf {
    let image = cluster.root().join(format!("live-image{id}"));
    cluster.node(id).pause();
    copy(&cluster.node(id).directory, &image);
    cluster.node(id).resume();
    image
}

/// From its next start on, a node stands for election after the others.
fn stand_late(cluster: &mut Cluster, id: u64) {
    let slow = [("CONCORD_ELECTION_MIN_MS", "900"), ("CONCORD_ELECTION_MAX_MS", "1200")];
    cluster.node(id).overrides = slow.map(|(name, value)| (name.into(), value.into())).into();
}

/// Node 1 runs when node 2 starts from the image, and would be the last to stand for election.
#[tokio::test]
async fn what_was_confirmed_since_the_last_exchange_survives_a_rollback() {
    let mut cluster = Cluster::start("earlier-same-start").await;
    define(&cluster.client(1), "d").await;
    for round in 0..4 {
        lead(&cluster, 1, &[1, 2, 3]).await;
        assert!(cluster.node(3).stop().await.success());
        let image = take_live_image(&mut cluster, 2);
        // Acknowledged by nodes 1 and 2, and in no record yet when both are killed.
        write_many(&cluster.client(1), &format!("a{round}-"), 3).await;
        cluster.node(1).kill();
        cluster.node(2).kill();
        put_back(&mut cluster, 2, &image);
        stand_late(&mut cluster, 1);
        cluster.node(1).start().await;
        join_all(cluster.nodes[1..].iter_mut().map(Node::start)).await;
        cluster.ready().await;
        for (id, n) in (1..=3).flat_map(|id| (0..3).map(move |n| (id, n))) {
            let key = config("d", &format!("a{round}-{n}"));
            cluster.client(id).get(&key).insist().await.expect(200);
        }
        std::fs::remove_dir_all(image).unwrap();
    }
    cluster.equal_digests().await;
}

/// The one history that no member can prevent: nobody who knows is there when the disk of node 2 has gone back. Nodes 2
/// and 3 go on without 40 acknowledged writes and make others; then node 1 returns, which has them.
///
/// `terms`: how often the leader changes while node 3 is down, so that the log of node 1 has a later term than theirs.
async fn forked(name: &str, others: u64, terms: u64) -> Cluster {
    fork(unforked(name, Options::default()).await, 1, others, terms).await
}

async fn unforked(name: &str, options: Options) -> Cluster {
    let options = options.with("CONCORD_WRITE_TIMEOUT_MS", "3000").with("CONCORD_READ_TIMEOUT_MS", "1000");
    let cluster = Cluster::start_with(name, &options).await;
    define(&cluster.client(1), "d").await;
    cluster
}

/// `leader`: who leads nodes 1 and 2 after the image.
async fn fork(mut cluster: Cluster, leader: u64, others: u64, terms: u64) -> Cluster {
    lead(&cluster, 1, &[1, 2, 3]).await;
    // Node 3 must not learn of the start after the image: it would be a witness.
    assert!(cluster.node(3).stop().await.success());
    let image = take_image(&mut cluster, 2).await;
    // Meanwhile node 1 had no majority.
    lead(&cluster, leader, &[1, 2]).await;
    for change in 0..terms {
        lead(&cluster, 2 - change % 2, &[1, 2]).await;
    }
    write_many(&cluster.client(1), "a", 40).await;
    cluster.equal_digests_on(&[1, 2]).await;
    cluster.node(2).kill();
    cluster.node(1).kill();
    put_back(&mut cluster, 2, &image);
    cluster.node(2).start().await;
    cluster.node(3).start().await;
    cluster.ready_on(&[2, 3]).await;
    write_many(&cluster.client(2), "b", others).await;
    cluster
}

/// Watches processes during two exchanges: none ends.
async fn none_ends(nodes: &mut [&mut Node]) {
    must_not_happen("a process ends", TWO_EXCHANGES, async || {
        for node in nodes.iter_mut() {
            check(node.runs(), || format!("node {}: {}", node.id, node.tail(20)))?;
        }
        Ok(())
    })
    .await;
}

/// Does what a supervisor does.
async fn start_what_has_ended(cluster: &mut Cluster) {
    for node in &mut cluster.nodes {
        if !node.runs() {
            node.start().await;
        }
    }
}

/// The same, until every node is ready.
async fn ready_once_started_again(cluster: &mut Cluster) {
    eventually("every node is ready, once it is started again", async || {
        start_what_has_ended(cluster).await;
        for client in cluster.clients() {
            let ready = client.bare(http::Method::GET, "/readyz").attempt().await?;
            check(ready.status == 200, || format!("{ready:?}"))?;
        }
        Ok(())
    })
    .await;
}

/// Asks node 1 for what was written on both sides, and writes on, while a supervisor restarts what has ended, until node 1
/// is ready or `most` has passed. Returns the answers with 200 and 404 that are not those of the majority, and whether
/// node 1 is ready.
async fn wrong_answers(
    cluster: &mut Cluster,
    others: u64,
    writes: bool,
    most: Duration,
) -> (BTreeSet<String>, bool) {
    let (begin, mut wrong, mut turn) = (Instant::now(), BTreeSet::new(), 0_u64);
    loop {
        start_what_has_ended(cluster).await;
        let client = cluster.client(1);
        for (key, right) in [("a1".to_owned(), 404), (format!("b{}", others - 1), 200)] {
            if let Ok(answer) = client.get(&config("d", &key)).attempt().await
                && matches!(answer.status, 200 | 404)
                && answer.status != right
            {
                wrong.insert(format!("{key}: {}", answer.status));
            }
        }
        if writes {
            is_acknowledged(&cluster.client(2), &format!("c{turn}")).await;
        }
        turn += 1;
        let ready = client.bare(http::Method::GET, "/readyz").attempt().await;
        let is_ready = ready.is_ok_and(|answer| answer.status == 200);
        if is_ready || begin.elapsed() > most {
            return (wrong, is_ready);
        }
    }
}

async fn a_fork_is_read_by_nobody(name: &str, others: u64, terms: u64) {
    let cluster = forked(name, others, terms).await;
    a_fork_of_node_1_is_read_by_nobody(cluster, others).await;
}

async fn a_fork_of_node_1_is_read_by_nobody(mut cluster: Cluster, others: u64) {
    // It may end before it listens.
    cluster.node(1).launch();
    let (seen, _) = wrong_answers(&mut cluster, others, false, WATCHED).await;
    assert_eq!(seen, BTreeSet::new());
    // A majority has committed other entries, so it is made again from the others, with or without more writes.
    let (seen, is_ready) = wrong_answers(&mut cluster, others, true, crate::harness::DEADLINE).await;
    assert_eq!(seen, BTreeSet::new());
    assert!(is_ready, "node 1 is made again: {}", cluster.tails(12));
    // Node 1 knows the start that node 2 has forgotten: node 2 ends once, too, if it has not before.
    let node = cluster.node(2);
    drop(within(TWO_EXCHANGES, async || check(!node.runs(), || "it runs".into())).await);
    start_what_has_ended(&mut cluster).await;
    cluster.ready().await;
    cluster.equal_digests().await;
    let kept = |id: usize| cluster.nodes[id - 1].directory.join("log.distrusted").is_dir();
    assert!(kept(1), "the only copy of 40 writes");
    assert!(!kept(2) && !kept(3), "whoever led meanwhile, the history of two is that of the cluster");
    is_shown_until_deleted(&cluster, 1).await;
}

/// Everybody shows that a node has discarded its log, until the operator has looked at it.
async fn is_shown_until_deleted(cluster: &Cluster, id: u64) {
    for client in cluster.clients() {
        let message = alarm_about(&client, "discarded_log", id).await;
        assert!(message.contains("log.distrusted"), "{message}");
    }
    let node = cluster.nodes.iter().find(|node| node.id == id).unwrap();
    std::fs::remove_dir_all(node.directory.join("log.distrusted")).unwrap();
    for client in cluster.clients() {
        no_alarm(&client, "discarded_log").await;
    }
}

#[tokio::test]
async fn a_longer_log_of_another_history_is_read_by_nobody() {
    a_fork_is_read_by_nobody("earlier-fork-long", 10, 0).await;
}

#[tokio::test]
async fn a_shorter_log_of_another_history_is_read_by_nobody() {
    a_fork_is_read_by_nobody("earlier-fork-short", 60, 0).await;
}

#[tokio::test]
async fn a_log_of_another_history_and_a_later_term_stops_nobody() {
    a_fork_is_read_by_nobody("earlier-fork-late", 5, 6).await;
}

/// Node 2 leads in both histories, each time by the first election after the image: it has forgotten that it led.
#[tokio::test]
async fn a_leader_whose_disk_went_back_does_not_lead_in_that_term_again() {
    let others = 60;
    let mut cluster = unforked("earlier-fork-leader", Options::default()).await;
    for id in [1, 3] {
        assert!(cluster.node(id).stop().await.success());
        stand_late(&mut cluster, id);
        cluster.node(id).start().await;
        cluster.ready().await;
    }
    let cluster = fork(cluster, 2, others, 0).await;
    a_fork_of_node_1_is_read_by_nobody(cluster, others).await;
}

#[tokio::test]
async fn nothing_is_confirmed_that_is_not_in_the_log() {
    let mut cluster = forked("earlier-confirms", 5, 0).await;
    lead(&cluster, 2, &[2, 3]).await;
    cluster.node(3).pause();
    cluster.node(1).start().await;
    let mut acknowledged = Vec::new();
    for n in 0..5 {
        if is_acknowledged(&cluster.client(2), &format!("x{n}")).await {
            acknowledged.push(n);
        }
    }
    cluster.node(2).kill();
    cluster.node(3).resume();
    // Whether it was made again from the others or not: what was acknowledged with its help is there.
    for n in &acknowledged {
        cluster.client(3).get(&config("d", &format!("x{n}"))).insist().await.expect(200);
    }
    // Node 1 may have told node 2 of the start that it has forgotten, and may have ended because its history is another
    // one. So both are started again.
    ready_once_started_again(&mut cluster).await;
    for n in acknowledged {
        cluster.client(3).get(&config("d", &format!("x{n}"))).insist().await.expect(200);
    }
}

#[tokio::test]
async fn a_distrusted_state_is_made_again_from_the_others() {
    let mut cluster = Cluster::start("earlier-distrusted").await;
    define(&cluster.client(1), "d").await;
    write_many(&cluster.client(1), "a", 20).await;
    let follower = cluster.followers().await[0];
    assert!(cluster.node(follower).stop().await.success());
    std::fs::write(cluster.node(follower).directory.join("store/distrusted"), b"").unwrap();
    cluster.node(follower).start().await;
    cluster.ready().await;
    cluster.equal_digests().await;
    let text = cluster.node(follower).tail(200);
    assert!(text.contains("installed a snapshot"), "not from its own log: {text}");
    let proven = text.find("agrees with that of a majority").expect("it says so");
    assert!(proven < text.rfind("caught up with a live leader").expect("it says so"), "{text}");
    // And only once.
    cluster.node(follower).kill();
    cluster.node(follower).start().await;
    cluster.ready().await;
    let text = cluster.node(follower).tail(200);
    assert_eq!(text.matches("installed a snapshot").count(), 1, "{text}");
    alarm_about(&cluster.client(follower), "discarded_log", follower).await;
}

/// The same, and nodes 2 and 3 have purged what contradicts the log of node 1.
async fn forked_and_purged(name: &str, others: u64, was_purged_before: bool) -> Cluster {
    let options = Options::default().with("CONCORD_SNAPSHOT_LOG_BYTES", "65536");
    let cluster = unforked(name, options).await;
    if was_purged_before {
        purge_logs(&cluster, &[1, 2, 3], "d", 10).await;
    }
    let cluster = fork(cluster, 1, others, 0).await;
    let place = cluster.place_in_log(2).await;
    purge_logs(&cluster, &[2, 3], "d", place).await;
    cluster
}

/// Whatever the others have purged: what node 1 alone has is kept, and its loss is shown.
#[tokio::test]
async fn a_log_of_another_history_that_the_others_have_purged_is_kept() {
    let others = 60;
    let cluster = forked_and_purged("earlier-fork-purged", others, false).await;
    a_fork_of_node_1_is_read_by_nobody(cluster, others).await;
}

/// Its state must be fetched, because its log does not hold the first entries: the log contradicts what is fetched.
#[tokio::test]
async fn a_log_of_another_history_is_kept_where_the_state_is_lost_as_well() {
    let others = 60;
    let mut cluster = forked_and_purged("earlier-fork-damaged", others, true).await;
    std::fs::remove_dir_all(cluster.node(1).directory.join("store")).unwrap();
    // Its log does not name the members any more.
    let named = |node: &Node| format!("{}={}@{}", node.id, node.api_addr(), node.peer_addr());
    let peers = cluster.nodes.iter().map(named).collect::<Vec<_>>().join(",");
    cluster.node(1).overrides.push(("CONCORD_PEERS".into(), peers));
    a_fork_of_node_1_is_read_by_nobody(cluster, others).await;
}

#[tokio::test]
async fn a_learner_whose_disk_went_back_waits_for_no_voter_that_is_down() {
    let mut cluster = Cluster::start("earlier-learner").await;
    define(&cluster.client(1), "d").await;
    lead(&cluster, 1, &[1, 2, 3]).await;
    let body = cluster.newcomer(4).await;
    let added = decided(cluster.client(1).post(MEMBERS, &body)).await;
    assert!(matches!(added.status, 200 | 201), "{added:?}");
    has_role(&cluster.client(4), 4, "learner").await;
    cluster.ready_on(&[4]).await;
    let image = take_image(&mut cluster, 4).await;
    write_many(&cluster.client(1), "a", 20).await;
    cluster.equal_digests().await;
    assert!(cluster.node(3).stop().await.success());
    cluster.node(4).kill();
    put_back(&mut cluster, 4, &image);
    cluster.node(4).start().await;
    cluster.ready_on(&[4]).await;
    for id in [1, 2, 4] {
        alarm_that_says(&cluster.client(id), "rolled_back", 4, "has caught up").await;
    }
    cluster.client(4).get(&config("d", "a19")).insist().await.expect(200);
}

/// A process with the id of node 2 and a copy of its directory, at other addresses.
async fn start_twin(cluster: &Cluster, directory: &Path) -> Node {
    let mut twin = Node::new(2, cluster.root(), &cluster.nodes[0].settings);
    (twin.directory, twin.log) = (cluster.root().join("twin"), cluster.root().join("twin.txt"));
    copy(directory, &twin.directory);
    twin.start().await;
    twin
}

/// Waits until the copy says where the process is that it waits for.
async fn waits_for_node_2(cluster: &Cluster, twin: &Node) {
    let address = cluster.nodes[1].peer_addr();
    let says = format!("another process with the id of this node, 2, is running at {address}");
    eventually("the copy says why it is not ready", async || {
        let ready = twin.client().bare(http::Method::GET, "/readyz").attempt().await?;
        check(ready.status == 503 && ready.text.contains(&says), || format!("{ready:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_second_process_with_the_id_of_a_node_takes_no_part_and_disturbs_nobody() {
    let mut cluster = Cluster::start("earlier-twin").await;
    define(&cluster.client(1), "d").await;
    let image = take_live_image(&mut cluster, 2);
    write_many(&cluster.client(1), "a", 5).await;
    let mut twin = start_twin(&cluster, &image).await;
    waits_for_node_2(&cluster, &twin).await;
    // The copy waits, it does not end and start again.
    none_ends(&mut [&mut twin, cluster.node(2)]).await;
    for client in cluster.clients() {
        alarm_about(&client, "duplicate_id", 2).await;
        no_alarm(&client, "rolled_back").await;
    }
    write_many(&cluster.client(1), "b", 5).await;
    cluster.equal_digests().await;
    twin.kill();
    for client in cluster.clients() {
        no_alarm(&client, "duplicate_id").await;
    }
}

/// A process that does not answer at once is not one that does not run.
#[tokio::test]
async fn a_copy_waits_for_a_process_that_stands_still_for_a_moment() {
    let mut cluster = Cluster::start("earlier-twin-slow").await;
    define(&cluster.client(1), "d").await;
    let image = take_live_image(&mut cluster, 2);
    cluster.node(2).pause();
    let mut twin = start_twin(&cluster, &image).await;
    lasts(Duration::from_millis(800)).await;
    cluster.node(2).resume();
    waits_for_node_2(&cluster, &twin).await;
    none_ends(&mut [&mut twin, cluster.node(2)]).await;
    no_alarm(&cluster.client(1), "rolled_back").await;
}

/// The copy was first: it has started while the node did not run.
#[tokio::test]
async fn of_two_processes_with_one_id_the_one_at_the_address_of_the_member_stays() {
    let mut cluster = Cluster::start("earlier-twin-first").await;
    define(&cluster.client(1), "d").await;
    write_many(&cluster.client(1), "a", 5).await;
    assert!(cluster.node(2).stop().await.success());
    let directory = cluster.node(2).directory.clone();
    let mut twin = start_twin(&cluster, &directory).await;
    lasts(TWO_EXCHANGES).await;
    cluster.node(2).start().await;
    assert!(!twin.ended().await.success());
    // As a supervisor does it.
    twin.start().await;
    waits_for_node_2(&cluster, &twin).await;
    cluster.ready().await;
    none_ends(&mut [&mut twin, cluster.node(2)]).await;
    cluster.equal_digests().await;
}

/// While one member does not answer, a start takes half a second to settle: these are killed before, and after.
#[tokio::test]
async fn a_member_that_is_killed_while_it_starts_has_lost_nothing() {
    let mut cluster = Cluster::start("earlier-killed-starts").await;
    define(&cluster.client(1), "d").await;
    let [follower, paused] = cluster.followers().await;
    let leader = cluster.leader().await;
    cluster.node(paused).pause();
    for wait in [100, 300, 500, 200, 400, 100] {
        cluster.node(follower).kill();
        cluster.node(follower).start().await;
        lasts(Duration::from_millis(wait)).await;
    }
    cluster.node(paused).resume();
    cluster.ready().await;
    none_ends(&mut [cluster.node(follower)]).await;
    cluster.node(follower).kill();
    cluster.node(follower).start().await;
    cluster.ready().await;
    let client = cluster.client(leader);
    must_not_happen("an alarm", TWO_EXCHANGES, async || {
        let status = client.status().await?;
        check(status["alarms"] == json!([]), || format!("{status}"))
    })
    .await;
    let said = cluster.node(follower).tail(usize::MAX);
    assert!(!said.contains("earlier state of its disk"), "{said}");
    cluster.equal_digests().await;
}
