//! The leader is lost: what was acknowledged stays, and writes are accepted again.

use std::time::{Duration, Instant};

use http::Method;
use serde_json::json;

use crate::harness::{
    Client, Cluster, Options, check, eventually,
    load::{Load, config, define, set},
};

#[tokio::test]
async fn acknowledged_writes_survive_a_killed_leader_and_writes_go_on() {
    let mut cluster = Cluster::start("killed-leader").await;
    let mut load = Load::start(&cluster.clients(), "d").await;
    for _ in 0..2 {
        load.grows_by(100).await;
        let leader = cluster.leader().await;
        cluster.node(leader).kill();
        load.grows_by(50).await;
        let [one, two] = [leader % 3 + 1, (leader + 1) % 3 + 1];
        let next = cluster.leader_on(&[one, two]).await;
        assert_ne!(next, leader);
        cluster.node(leader).start().await;
        cluster.ready().await;
    }
    load.stop().await;
    cluster.equal_digests().await;
    for node in cluster.clients() {
        load.is_kept_by(&node).await;
    }
}

#[tokio::test]
async fn an_answer_to_an_idempotency_key_is_repeated_after_failover_and_restart() {
    let mut cluster = Cluster::start("remembered").await;
    let leader = cluster.leader().await;
    define(&cluster.client(leader), "d").await;
    let body = json!({"config_key": "k", "data": {"n": 1}});
    let create = |client: &Client| {
        client.post("/api/v1/config_definition/d/config/", &body).header("idempotency-key", "once")
    };
    let first = create(&cluster.client(leader)).insist().await.expect(201);
    cluster.node(leader).kill();
    let next = cluster.client(leader % 3 + 1);
    let again = create(&next).insist().await.expect(201);
    assert_eq!((first.tag(), &first.body), (again.tag(), &again.body));
    cluster.kill_all();
    cluster.start_all().await;
    for node in cluster.clients() {
        let again = create(&node).insist().await.expect(201);
        assert_eq!((first.tag(), &first.body), (again.tag(), &again.body));
        let shown = node.get(&config("d", "k")).insist().await.expect(200);
        assert_eq!(shown.tag(), first.tag(), "{shown:?}");
    }
}

#[tokio::test]
async fn a_dead_follower_is_retried_with_a_backoff() {
    let mut cluster = Cluster::start("dead-follower").await;
    let leader = cluster.leader().await;
    let mut load = Load::start(&[cluster.client(leader)], "d").await;
    cluster.node(leader % 3 + 1).kill();
    let begin = Instant::now();
    load.grows_by(200).await;
    load.stop().await;
    let log = cluster.node(leader).log.clone();
    let tries = || std::fs::read_to_string(&log).expect("a log").matches("recv RPCError").count();
    // An idle leader retries as well, at the longest pause.
    let under_load = tries();
    eventually("the idle leader retries", async || check(tries() > under_load + 2, || "no retry".into()))
        .await;
    let tries = tries();
    // The shortest pause is 50 ms; before the first of them a few fail at once.
    let most = 20 + begin.elapsed().as_millis() / 50;
    assert!(u128::try_from(tries).unwrap() <= most, "{tries} tries in {:?}", begin.elapsed());
}

#[tokio::test]
async fn a_hanging_leader_is_replaced_and_comes_back_as_a_follower() {
    let mut cluster = Cluster::start("hanging-leader").await;
    let leader = cluster.leader().await;
    let others = [leader % 3 + 1, (leader + 1) % 3 + 1];
    define(&cluster.client(others[0]), "d").await;
    set(&cluster.client(leader), "d", "k", &json!({"n": 1})).await;
    cluster.node(leader).pause();
    for (n, id) in others.into_iter().enumerate() {
        set(&cluster.client(id), "d", "k", &json!({"n": n + 2})).await;
    }
    cluster.node(leader).resume();
    // Its first default read must not be answered from the time when it led.
    let read = cluster.client(leader).get(&config("d", "k")).insist().await.expect(200);
    assert_eq!(read.data()["data"], json!({"n": 3}), "{read:?}");
    cluster.ready().await;
    cluster.equal_digests().await;
}

/// Waits until a node shows that it knows no leader, in its status and to monitoring.
async fn no_leader_is_known(node: &Client) {
    eventually("no leader is known", async || {
        let status = node.status().await?;
        let metrics = node.get("/metrics").attempt().await?.text;
        let line =
            metrics.lines().find(|line| line.starts_with("concord_raft_has_leader")).unwrap_or_default();
        let has_leader = line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
        check(status["leader_id"].is_null() && has_leader == Some(0.0), || {
            format!("{} {line}", status["leader_id"])
        })
    })
    .await;
}

#[tokio::test]
async fn a_write_without_a_key_does_not_wait_for_a_leader_that_hangs() {
    let mut cluster = Cluster::start("hanging-leader-unkeyed").await;
    let leader = cluster.leader().await;
    let follower = leader % 3 + 1;
    define(&cluster.client(follower), "d").await;
    cluster.node(leader).pause();
    let begin = Instant::now();
    let write = cluster.client(follower).put(&config("d", "k"), &json!({"data": {"n": 1}})).attempt().await;
    // The time limit of writes is 20 s; another leader is known after two.
    let (answer, took) = (write.unwrap(), begin.elapsed());
    assert!(took < Duration::from_secs(12), "{answer:?} after {took:?}");
    assert_eq!(answer.status, 504, "whether it was decided is unknown: {answer:?}");
    cluster.node(leader).resume();
    cluster.ready().await;
}

#[tokio::test]
async fn a_lone_node_refuses_writes_and_default_reads_but_answers_local_ones() {
    let mut cluster = Cluster::start("lone-node").await;
    let alone = cluster.followers().await[0];
    let others = [alone % 3 + 1, (alone + 1) % 3 + 1];
    let node = cluster.client(alone);
    define(&node, "d").await;
    set(&node, "d", "k", &json!({"n": 1})).await;
    for id in others {
        cluster.node(id).kill();
    }
    eventually("it is not ready", async || {
        let answer = node.bare(Method::GET, "/readyz").attempt().await?;
        check(answer.status == 503, || format!("{answer:?}"))
    })
    .await;
    node.bare(Method::GET, "/livez").attempt().await.unwrap().expect(200);
    no_leader_is_known(&node).await;
    let write = node.put(&config("d", "k"), &json!({"data": {"n": 2}})).attempt().await.unwrap();
    assert!(matches!(write.status, 503 | 504), "{write:?}");
    let read = node.get(&config("d", "k")).attempt().await.unwrap();
    assert!(matches!(read.status, 503 | 504), "{read:?}");
    let local = node.get(&config("d", "k")).query(&[("consistency", "local")]).attempt().await.unwrap();
    assert_eq!(local.expect(200).data()["data"], json!({"n": 1}));
    for id in others {
        cluster.node(id).start().await;
    }
    cluster.ready().await;
    set(&node, "d", "k", &json!({"n": 3})).await;
    cluster.equal_digests().await;
}

#[tokio::test]
async fn a_leader_that_is_asked_to_end_hands_over_and_ends_well() {
    // No follower would stand for election by itself within the deadline, so that a leader is there at all shows
    // that it was handed over.
    let options = Options::default()
        .with("CONCORD_HEARTBEAT_MS", "1000")
        .with("CONCORD_ELECTION_MIN_MS", "400000")
        .with("CONCORD_ELECTION_MAX_MS", "600000");
    let mut cluster = Cluster::start_with("hand-over", &options).await;
    let leader = cluster.leader().await;
    let others = [leader % 3 + 1, (leader + 1) % 3 + 1];
    define(&cluster.client(leader), "d").await;
    set(&cluster.client(leader), "d", "k", &json!({"n": 1})).await;
    let status = cluster.node(leader).stop().await;
    assert!(status.success(), "{status}");
    let next = cluster.leader_on(&others).await;
    assert_ne!(next, leader);
    set(&cluster.client(others[0]), "d", "k", &json!({"n": 2})).await;
    let read = cluster.client(others[1]).get(&config("d", "k")).insist().await;
    assert_eq!(read.expect(200).data()["data"], json!({"n": 2}));
}
