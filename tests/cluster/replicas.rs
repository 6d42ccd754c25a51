//! Learners that stay learners, as read replicas: they answer every kind of read, their watches go on while leaders die,
//! and they never count to the majority.

use std::{
    collections::BTreeMap,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use futures::future::join_all;
use serde_json::{Value, json};

use super::{
    members::{MEMBERS, decided, has_role, roles},
    snapshot::purge_logs,
};
use crate::harness::{
    Answer, Client, Cluster, Options,
    load::{Load, config, define, everything, set},
    watch::{Follower, Mirror},
};

/// How old a local read may be that says so.
const STALENESS: Duration = Duration::from_millis(100);

/// Three voters and so many learners, which have caught up: nodes 4 and 5.
async fn with_replicas(name: &str, options: &Options, number: u64) -> Cluster {
    let mut cluster = Cluster::start_with(name, options).await;
    for id in 4..4 + number {
        let body = cluster.newcomer(id).await;
        let added = decided(cluster.client(id % 3 + 1).post(MEMBERS, &body)).await;
        assert!(matches!(added.status, 200 | 201), "{added:?}");
        has_role(&cluster.client(id), id, "learner").await;
        cluster.ready_on(&[id]).await;
    }
    cluster
}

/// Asserts on every node that runs that nobody has got or lost a vote.
async fn roles_are_unchanged(cluster: &Cluster) {
    let role = |id: u64| (id, if id < 4 { "follower" } else { "learner" }.to_owned());
    let expected: BTreeMap<u64, String> = cluster.nodes.iter().map(|node| role(node.id)).collect();
    for client in cluster.clients() {
        assert_eq!(roles(&client.status().await.expect("the node runs")), expected, "{}", client.base);
    }
}

async fn define_indexed(client: &Client) {
    let body = json!({"config_definition_key": "d", "indexes": ["n"]});
    let made = client.post("/api/v1/config_definition/", &body).header("idempotency-key", "define");
    made.insist().await.expect(201);
}

/// Creates the config of a number; the revision that the acknowledgement names.
async fn create(client: &Client, n: u64) -> u64 {
    let key = format!("k{n:03}");
    let put = client.put(&config("d", &key), &json!({"data": {"n": n}}));
    let put = put.header("if-none-match", "*").header("idempotency-key", &key);
    put.insist().await.expect(201).revision()
}

async fn read(client: &Client, n: u64, query: &[(&str, &str)]) -> Answer {
    client.get(&config("d", &format!("k{n:03}"))).query(query).insist().await
}

/// The newest numbers by the index on them, as one page, and how many there are.
async fn newest(client: &Client, query: &[(&str, &str)]) -> (u64, Vec<u64>) {
    let page = [("n[gte]", "0"), ("sort_by", "n"), ("sort_order", "desc"), ("limit", "3")];
    let path = "/api/v1/config_definition/d/config/";
    let answer = client.get(path).query(&[&page, query].concat()).insist().await.expect(200);
    let results = answer.data()["results"].as_array().expect("`results` is a list");
    let numbers = results.iter().map(|record| record["data"]["n"].as_u64().expect("a number"));
    (answer.total(), numbers.collect())
}

/// Asserts that a node shows a number that was acknowledged, however it is asked.
async fn shows(client: &Client, n: u64, revision: u64) {
    let revision = revision.to_string();
    let ways: [&[(&str, &str)]; 5] = [
        &[],
        &[("consistency", "lease")],
        &[("consistency", "local"), ("min_revision", &revision)],
        // No state is fresh enough, so the leader is asked.
        &[("consistency", "local"), ("max_staleness_ms", "0")],
        &[("consistency", "local"), ("max_staleness_ms", "60000"), ("min_revision", &revision)],
    ];
    for way in ways {
        let seen = read(client, n, way).await;
        assert_eq!(seen.status, 200, "{seen:?}");
        assert_eq!(seen.data()["data"], json!({"n": n}), "{seen:?}");
        let page = newest(client, way).await;
        assert_eq!(page, (n + 1, (n.saturating_sub(2)..=n).rev().collect()), "{way:?}");
    }
}

#[tokio::test]
async fn replicas_answer_every_kind_of_read_with_what_was_acknowledged() {
    let options = Options::default().with("CONCORD_LEASE_READS", "true");
    let mut cluster = with_replicas("replica-reads", &options, 2).await;
    define_indexed(&cluster.client(1)).await;
    let mut acknowledged: Vec<Instant> = Vec::new();
    for n in 0..30 {
        // By every member in turn: replicas forward what is written there.
        let revision = create(&cluster.client(n % 5 + 1), n).await;
        acknowledged.push(Instant::now());
        if n == 15 {
            let leader = cluster.leader().await;
            cluster.node(leader).kill();
            cluster.node(leader).start().await;
        }
        for replica in [4, 5].map(|id| cluster.client(id)) {
            let begin = Instant::now();
            let staleness = STALENESS.as_millis().to_string();
            let local = [("consistency", "local"), ("max_staleness_ms", staleness.as_str())];
            let (total, _) = newest(&replica, &local).await;
            let due = acknowledged.iter().filter(|at| **at + STALENESS <= begin).count();
            assert!(total >= due as u64, "{total} of {due} are there after {STALENESS:?}");
            shows(&replica, n, revision).await;
        }
    }
    cluster.ready_on(&[1, 2, 3, 4, 5]).await;
    roles_are_unchanged(&cluster).await;
    cluster.equal_digests_on(&[1, 2, 3, 4, 5]).await;
}

#[tokio::test]
async fn a_watch_of_a_replica_has_every_change_once_and_does_not_end_when_the_leader_dies() {
    let mut cluster = with_replicas("replica-watch", &Options::default(), 1).await;
    let replica = cluster.client(4);
    let from = replica.status().await.unwrap()["revision"].as_u64().unwrap() + 1;
    // One at a voter too, which must receive the same.
    let follow = |client: Client| Follower::start_with(vec![client], from, usize::MAX, &[("prev", "true")]);
    let watch = follow(replica.clone());
    let mut load = Load::start(&cluster.clients(), "d").await;
    for _ in 0..2 {
        load.grows_by(40).await;
        let leader = cluster.leader().await;
        cluster.node(leader).kill();
        load.grows_by(40).await;
        cluster.node(leader).start().await;
        cluster.ready().await;
    }
    load.grows_by(40).await;
    load.stop().await;
    // A linearizable read: no change that was acknowledged is later.
    let last = replica.get("/api/v1/config_definition/d").insist().await.expect(200).revision();
    let voter = follow(cluster.client(1));
    for follower in [&watch, &voter] {
        follower.reaches(last).await;
    }
    assert_eq!(watch.opened.load(Ordering::SeqCst), 1, "the watch has ended");
    let (received, others) = (watch.end().await, voter.end().await);
    assert!(received.is_sorted_by(|one, two| one.0 < two.0), "a change came twice or out of order");
    assert_eq!(received, others, "the replica and a voter have sent different changes");
    let changes: Vec<&Value> =
        received.iter().flat_map(|(_, changes)| changes.as_array().expect("a list")).collect();
    let mut mirror = Mirror::default();
    changes.iter().for_each(|change| mirror.apply(change));
    let present = everything(&replica, "d").await;
    assert_eq!(mirror.of("d"), present, "the changes do not add up");
    // Each config was written once.
    let created = changes.iter().filter(|change| change["type"] == "config_created").count();
    assert_eq!(created, present.len());
    load.is_kept_by(&replica).await;
    cluster.equal_digests_on(&[1, 2, 3, 4]).await;
    roles_are_unchanged(&cluster).await;
}

#[tokio::test]
async fn a_replica_counts_to_no_majority_and_catches_up_after_its_death() {
    let options = Options::default()
        .with("CONCORD_SNAPSHOT_LOG_BYTES", "65536")
        .with("CONCORD_WRITE_TIMEOUT_MS", "3000");
    let mut cluster = with_replicas("replica-death", &options, 2).await;
    define(&cluster.client(1), "d").await;
    let mut load = Load::start(&[1, 2, 3].map(|id| cluster.client(id)), "load").await;
    load.grows_by(40).await;
    // Two of five members are left, and they are enough: they are two of three votes.
    let dead = cluster.leader().await;
    for id in [dead, 4, 5] {
        cluster.node(id).kill();
    }
    load.grows_by(40).await;
    cluster.node(5).start().await;
    cluster.ready_on(&[5]).await;
    // The other one is away for so long that a snapshot takes the place of the log that it lacks.
    let left = [dead % 3 + 1, (dead + 1) % 3 + 1];
    let place = cluster.place_in_log(left[0]).await;
    purge_logs(&cluster, &left, "d", place).await;
    cluster.node(4).start().await;
    cluster.ready_on(&[4]).await;
    load.grows_by(20).await;
    load.stop().await;
    // Three of five members are left, but one vote of three: nothing is acknowledged.
    cluster.node(left[0]).kill();
    let refused = [left[1], 4, 5].map(|id| {
        let put = cluster.client(id).put(&config("d", "refused"), &json!({"data": {}}));
        async move { put.header("if-none-match", "*").attempt().await }
    });
    for answer in join_all(refused).await {
        let answer = answer.expect("an answer");
        assert!(matches!(answer.status, 503 | 504), "{answer:?}");
    }
    for id in [dead, left[0]] {
        cluster.node(id).start().await;
    }
    cluster.ready_on(&[1, 2, 3, 4, 5]).await;
    set(&cluster.client(4), "d", "again", &json!({})).await;
    cluster.equal_digests_on(&[1, 2, 3, 4, 5]).await;
    let present = everything(&cluster.client(dead), "d").await;
    for id in [4, 5] {
        load.is_kept_by(&cluster.client(id)).await;
        assert!(everything(&cluster.client(id), "d").await == present, "a replica has something else");
    }
    roles_are_unchanged(&cluster).await;
}
