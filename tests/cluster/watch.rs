//! Watches while nodes are killed, stopped and caught up by a snapshot: every follower receives every change exactly
//! once, in order, wherever it resumes.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{StreamExt, future::join_all, stream};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::snapshot::purge_logs;
use crate::harness::{
    Client, Cluster, Options, check, eventually,
    load::{Load, config, define, everything, fill, set},
    number,
    pace::Writers,
    time::lasts,
    watch::{Follower, Mirror, Watch},
};

/// Followers of everything, as many at each node first; each leaves its node after so many events, some much sooner.
fn followers(clients: &[Client], number: usize, from: u64, patience: usize) -> Vec<Follower> {
    let follower = |place: usize| {
        let mut clients = clients.to_vec();
        clients.rotate_left(place % 3);
        let patience = if place.is_multiple_of(2) { 40 } else { patience };
        Follower::start_with(clients, from, patience, &[("prev", "true")])
    };
    (0..number).map(follower).collect()
}

/// How often each has opened a watch.
fn opened(followers: &[Follower]) -> Vec<u64> {
    followers.iter().map(|one| one.opened.load(Ordering::SeqCst)).collect()
}

/// Ends the followers once they have the last change, and asserts that they received the same changes, each once, and
/// that the changes add up to the stored configs.
async fn agree(cluster: &Cluster, followers: Vec<Follower>, definitions: &[&str]) {
    let marker = cluster.client(1);
    set(&marker, "d", "the-end", &json!({"n": 1})).await;
    let last = marker.get(&config("d", "the-end")).insist().await.expect(200).tag();
    let last: u64 = last.trim_matches('"').parse().unwrap();
    let mut all: Vec<Vec<(u64, Value)>> = Vec::new();
    for follower in followers {
        follower.reaches(last).await;
        let mut received = follower.end().await;
        assert!(received.is_sorted_by(|one, two| one.0 < two.0), "a change came twice or out of order");
        received.retain(|event| event.0 <= last);
        all.push(received);
    }
    for received in &all[1..] {
        let (one, two): (BTreeMap<_, _>, BTreeMap<_, _>) =
            (all[0].iter().cloned().collect(), received.iter().cloned().collect());
        let differing: Vec<_> =
            one.keys().chain(two.keys()).filter(|at| one.get(at) != two.get(at)).collect();
        assert!(differing.is_empty(), "two followers received different changes at {differing:?}");
    }
    let mut mirror = Mirror::default();
    for change in all[0].iter().flat_map(|(_, changes)| changes.as_array().unwrap()) {
        mirror.apply(change);
    }
    for key in definitions {
        assert!(mirror.of(key) == everything(&marker, key).await, "the changes of {key} do not add up");
    }
}

async fn revision(client: &Client) -> u64 {
    client.status().await.unwrap()["revision"].as_u64().unwrap()
}

#[tokio::test]
async fn followers_receive_every_change_once_while_leaders_die_and_a_node_gets_a_snapshot() {
    let options = Options::default()
        .with("CONCORD_SNAPSHOT_LOG_BYTES", "65536")
        .with("CONCORD_WATCH_HEARTBEAT_MS", "300");
    let mut cluster = Cluster::start_with("watch", &options).await;
    let from = revision(&cluster.client(1)).await + 1;
    let followers = followers(&cluster.clients(), 9, from, usize::MAX);
    define(&cluster.client(1), "wide").await;
    let mut load = Load::start(&cluster.clients(), "d").await;
    load.grows_by(60).await;
    let leader = cluster.leader().await;
    cluster.node(leader).kill();
    load.grows_by(40).await;
    cluster.node(leader).start().await;
    cluster.ready().await;
    // A node that stops ends its watches at once.
    let away = cluster.followers().await[0];
    let begin = Instant::now();
    assert!(cluster.node(away).stop().await.success());
    assert!(begin.elapsed() < Duration::from_secs(30), "it waited for its watchers");
    let others = [away % 3 + 1, (away + 1) % 3 + 1];
    // Asked of another, after the end of that node: all that it has was written before.
    let place = cluster.place_in_log(others[0]).await;
    purge_logs(&cluster, &others, "wide", place).await;
    cluster.node(away).start().await;
    cluster.ready().await;
    load.grows_by(40).await;
    load.stop().await;
    assert!(opened(&followers).iter().sum::<u64>() > 9, "nobody was cut off");
    agree(&cluster, followers, &["d", "wide"]).await;
}

#[tokio::test]
async fn the_number_of_watches_is_limited_and_a_stopped_node_ends_them() {
    let options = Options::default().with("CONCORD_WATCHES", "3");
    let mut cluster = Cluster::start_with("watches", &options).await;
    let node = cluster.client(2);
    let mut open = Vec::new();
    for _ in 0..3 {
        open.push(node.watch(&[], None).await);
    }
    let refused = node.try_watch(&[], None).await.err().flatten().expect("an answer");
    assert_eq!(refused.header("retry-after"), "1");
    assert!(refused.text.contains('3'), "the limit is named: {refused:?}");
    refused.refused(429, "rate_limited");
    drop(open.pop());
    // The node notices that its caller is gone when it sends the next event, at the latest.
    open.push(node.watch(&[], None).await);
    let begin = Instant::now();
    assert!(cluster.node(2).stop().await.success());
    assert!(begin.elapsed() < Duration::from_secs(30), "it waited for its watchers");
    for watch in &mut open {
        while let Some(event) = watch.next().await.expect("the stream ends well") {
            assert_eq!(event.name, "heartbeat");
        }
    }
}

#[tokio::test]
async fn changes_before_a_restart_are_replayed_from_the_history() {
    let mut cluster = Cluster::start("watch-history").await;
    let node = cluster.client(1);
    let from = revision(&node).await + 1;
    for key in ["one", "two"] {
        define(&node, key).await;
        for n in 0..20 {
            set(&node, key, &format!("k{n}"), &json!({"n": n})).await;
        }
    }
    // The history has one record of it, not one of each config, and the definition is gone.
    node.delete("/api/v1/config_definition/one").header("idempotency-key", "end").insist().await.expect(200);
    for id in 1..=3 {
        assert!(cluster.node(id).stop().await.success());
        cluster.node(id).start().await;
        cluster.ready().await;
    }
    let from = from.to_string();
    for client in cluster.clients() {
        let mut watch = client.watch(&[("from", &from)], None).await;
        let changes = watch.changes(43).await;
        assert!(changes.is_sorted_by(|one, two| one.0 < two.0));
        let of =
            |key: &str| changes.iter().filter(|(_, change)| change["config_definition_key"] == key).count();
        assert_eq!((of("one"), of("two")), (22, 21));
        // After the creation of a definition that was deleted since: the first changes that are read do not name it.
        let second = changes[1].0.to_string();
        let mut rest = client.watch(&[("from", &second), ("definition", "one")], None).await;
        let rest = rest.changes(21).await;
        assert!(rest.iter().all(|(_, change)| change["config_definition_key"] == "one"));
        let mut one = client.watch(&[("from", &from), ("definition", "two")], None).await;
        let mut mirror = Mirror::default();
        one.changes(21).await.iter().for_each(|(_, change)| mirror.apply(change));
        assert_eq!(mirror.of("two"), everything(&client, "two").await);
    }
}

#[tokio::test]
#[ignore = "long: ten followers through DURATION_S (600) seconds and KILLS (5) killed leaders"]
async fn long_followers_receive_every_change_once() {
    let (seconds, kills) = (number("DURATION_S").unwrap_or(600), number("KILLS").unwrap_or(5));
    let options = Options::default().with("CONCORD_SNAPSHOT_LOG_BYTES", "1048576");
    let mut cluster = Cluster::start_with("watch-long", &options).await;
    let from = revision(&cluster.client(1)).await + 1;
    let followers = followers(&cluster.clients(), 10, from, 5000);
    define(&cluster.client(1), "wide").await;
    let mut load = Load::start(&cluster.clients(), "d").await;
    for _ in 0..kills {
        lasts(Duration::from_secs(seconds / (kills + 1))).await;
        let leader = cluster.leader().await;
        cluster.node(leader).kill();
        load.grows_by(100).await;
        cluster.node(leader).start().await;
        cluster.ready().await;
    }
    lasts(Duration::from_secs(seconds / (kills + 1))).await;
    load.stop().await;
    let opened = opened(&followers);
    eprintln!("{} acknowledged writes, {kills} killed leaders, {seconds} s", load.acknowledged());
    eprintln!("the followers opened {opened:?} watches");
    assert!(opened.iter().all(|number| *number > 1), "each is cut off and goes on elsewhere");
    agree(&cluster, followers, &["d", "wide"]).await;
}

/// So many open watches, opened some at a time; each names the definition that it is for.
async fn open_watches(client: &Client, watches: usize, definition: impl Fn(usize) -> String) -> Vec<Watch> {
    let open = stream::iter((0..watches).map(definition)).map(|key| {
        let client = client.clone();
        async move { client.watch(&[("definition", key.as_str())], None).await }
    });
    open.buffered(16).collect().await
}

/// Whether this process may open so many files.
fn has_files(needed: usize) -> bool {
    let text = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"));
    let most = line.and_then(|line| line.split_whitespace().next()).and_then(|most| most.parse().ok());
    most.is_none_or(|most: usize| most >= needed)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "large: WATCHES (5000) open watches on one node, their memory and what they take from WRITERS (32)"]
async fn many_watches_cost_little() {
    let size = |name, otherwise| number(name).map_or(otherwise, |number| usize::try_from(number).unwrap());
    let (watches, writers) = (size("WATCHES", 5000), size("WRITERS", 32));
    let span = Duration::from_secs(number("SPAN_S").unwrap_or(6));
    assert!(has_files(watches + 2000), "the crowd takes {} files: ulimit -n", watches + 2000);
    let mut cluster = Cluster::start("watch-crowd").await;
    let leader = cluster.leader().await;
    let (client, clients) = (cluster.client(leader), cluster.clients());
    define(&client, "d").await;
    fill(&clients, "d", 1000, |n| json!({"n": n})).await;
    let pace = async || {
        let clients = clients.clone();
        let writers = Writers::start(writers, move |place, turn| {
            let key = format!("k{}", (turn * writers + place) % 1000);
            clients[place % clients.len()].put(&config("d", &key), &json!({"data": {"n": turn}}))
        });
        writers.during(lasts(span)).await.0
    };
    println!("warm: {}", pace().await);
    for turn in 0..number("TURNS").unwrap_or(3) {
        let alone = pace().await;
        println!("turn {turn}, no watch: {alone}");
        let before = cluster.node(leader).memory_kb();
        let open = open_watches(&client, watches, |n| format!("other{n}")).await;
        let after = cluster.node(leader).memory_kb();
        let each = after.saturating_sub(before) * 1024 / watches.max(1) as u64;
        println!("{watches} watches: {before} kB, then {after} kB, {each} bytes each");
        let beside = pace().await;
        println!("on other definitions: {beside}, {:.2} of that alone", beside.per_second / alone.per_second);
        drop(open);
        println!("again no watch: {}", pace().await);
        // One change that all of them receive; then as many as are made.
        let mut open = open_watches(&client, watches, |_| "d".to_owned()).await;
        let begin = Instant::now();
        set(&client, "d", "k", &json!({"n": "all"})).await;
        join_all(open.iter_mut().map(async |watch| drop(watch.changes(1).await))).await;
        println!("one change sent to {watches} watches within {} ms", begin.elapsed().as_millis());
        let bytes = Arc::new(AtomicU64::new(0));
        let read = |watch: Watch| tokio::spawn(watch.drain(Arc::clone(&bytes)));
        let readers: Vec<JoinHandle<()>> = open.into_iter().map(read).collect();
        let beside = pace().await;
        println!(
            "on the same definition: {beside}, {:.2} of that alone",
            beside.per_second / alone.per_second
        );
        let (sent, memory) = (bytes.load(Ordering::Relaxed) >> 20, cluster.node(leader).memory_kb());
        println!("they received {sent} MiB meanwhile; {memory} kB");
        readers.iter().for_each(JoinHandle::abort);
        join_all(readers).await;
        eventually("the watches are released", async || {
            check(client.try_watch(&[("definition", "d")], None).await.is_ok(), String::new)
        })
        .await;
    }
}

/// A node that has just been started has an older state than the cluster: that a revision is not known to it says
/// nothing of whether there is one.
#[tokio::test]
async fn a_local_watch_on_a_node_that_is_behind_waits_and_never_expires() {
    let mut cluster = Cluster::start("watch-behind").await;
    define(&cluster.client(1), "d").await;
    for turn in 0..3 {
        let behind = cluster.followers().await[turn % 2];
        cluster.node(behind).kill();
        let leader =
            cluster.leader_on(&[1, 2, 3].into_iter().filter(|id| *id != behind).collect::<Vec<_>>()).await;
        for n in 0..50 {
            set(&cluster.client(leader), "d", &format!("k{n}"), &json!({"turn": turn})).await;
        }
        let last = cluster.client(leader).get(&config("d", "k49")).insist().await.expect(200).revision();
        cluster.node(behind).start().await;
        let from = (last + 1).to_string();
        let path = format!("/api/v1/watch?consistency=local&from={from}");
        let client = cluster.client(behind);
        eventually("the watch begins", async || {
            let status = client.get(&path).open().await?.status().as_u16();
            assert!([200, 503].contains(&status), "{status}: a client would throw its state away");
            check(status == 200, || status.to_string())
        })
        .await;
    }
}
