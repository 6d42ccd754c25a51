//! What clocks that jump do to the cluster.

use std::{path::Path, time::Duration};

use serde_json::{Value, json};

use super::GoodClient;
use crate::harness::{
    Answer, Client, Cluster, Options, check, clock, eventually,
    load::{config, define, set},
    time::lasts,
};

/// Longer than the history and the answers to idempotency keys are retained.
const DAYS_33: i64 = 33 * 24 * 60 * 60;
/// How far a time may be from real time: far more than a test takes, far less than the jump.
const HOUR_S: f64 = 3600.0;

/// A history of one config, and a create with an idempotency key that can be sent again.
struct Before {
    /// The revision and the text of each version.
    versions: Vec<(u64, Value)>,
    create: Answer,
}

const KEY: &str = "a-key-that-is-sent-again-after-the-jump";

async fn create(client: &Client) -> Answer {
    let body = json!({"config_key": "created", "data": {"n": 1}});
    client.post("/api/v1/config_definition/d/config/", &body).header("idempotency-key", KEY).insist().await
}

impl Before {
    async fn write(client: &Client) -> Self {
        define(client, "d").await;
        let create = create(client).await.expect(201);
        let mut versions = Vec::new();
        for n in 0..5 {
            let (revision, _) = put(client, n).await;
            versions.push((revision, json!({"n": n})));
        }
        Self { versions, create }
    }

    /// Asserts that every node has all versions, and gives the create the answer that it had.
    async fn is_kept(&self, cluster: &Cluster, when: &str) {
        for client in cluster.clients() {
            for (revision, data) in &self.versions {
                let revision = revision.to_string();
                let read = client.get(&config("d", "k")).query(&[("revision", &revision)]).insist().await;
                assert_eq!(read.status, 200, "{when}: {read:?}");
                assert_eq!(&read.data()["data"], data, "{when}");
            }
            let again = create(&client).await;
            assert_eq!((again.status, &again.body), (201, &self.create.body), "{when}: {again:?}");
            // Another request with a key, by which answers that are too old are forgotten.
            let other = format!("{when} {}", client.base);
            let stored =
                client.put(&config("d", "other"), &json!({"data": {}})).header("idempotency-key", &other);
            stored.insist().await;
        }
    }
}

/// Writes a config; its revision, and its time in seconds since 1970.
async fn put(client: &Client, n: i64) -> (u64, f64) {
    set(client, "d", "k", &json!({"n": n})).await;
    let read = client.get(&config("d", "k")).insist().await.expect(200);
    let revision = read.tag().trim_matches('"').parse().expect("a revision");
    let text = read.data()["modified_at"].as_str().expect("a time").to_owned();
    (revision, seconds(&text))
}

fn seconds(text: &str) -> f64 {
    let time: jiff::Timestamp = text.parse().expect("a time");
    time.as_duration().as_secs_f64()
}

fn now() -> f64 {
    jiff::Timestamp::now().as_duration().as_secs_f64()
}

/// Asserts that writes have the times of real clocks, and that times go on as time does.
async fn times_are_right(client: &Client, from: f64, when: &str) -> f64 {
    let (_, first) = put(client, 1).await;
    lasts(Duration::from_millis(100)).await;
    let (_, second) = put(client, 2).await;
    println!("{when}: times are {:+.1} s from real time, and {:.4} s apart", second - now(), second - first);
    assert!((second - now()).abs() < HOUR_S, "{when}: a time is {:.0} s from real time", second - now());
    assert!(first > from && second - first > 0.04, "{when}: {from} {first} {second}");
    second
}

/// The alarms about clocks that a node shows, as the ids of the members.
async fn alarms(client: &Client) -> Result<Vec<u64>, String> {
    let status = client.status().await?;
    let alarms = status["alarms"].as_array().ok_or("no alarms")?;
    let clocks = alarms.iter().filter(|alarm| alarm["type"] == "clock");
    Ok(clocks.filter_map(|alarm| alarm["node_id"].as_u64()).collect())
}

async fn every_node_shows(cluster: &Cluster, expected: &[u64]) {
    for client in cluster.clients() {
        let what = format!("{} shows alarms about {expected:?}", client.base);
        eventually(&what, async || {
            let shown = alarms(&client).await?;
            check(shown == expected, || format!("it shows {shown:?}"))
        })
        .await;
    }
}

fn logged(log: &Path, text: &str) -> usize {
    std::fs::read_to_string(log).expect("the log can be read").matches(text).count()
}

const WRONG: &str = "this node's clock is wrong";
const RIGHT: &str = "this node's clock is right again";

/// Waits until a node has logged so often that its clock is wrong, or right again: it looks about once a second.
async fn has_logged(cluster: &Cluster, id: u64, text: &str, times: usize) {
    let log = &cluster.nodes.iter().find(|node| node.id == id).expect("a node").log;
    eventually(text, async || {
        let found = logged(log, text);
        check(found == times, || format!("node {id} has logged it {found} times, not {times}"))
    })
    .await;
}

#[tokio::test]
async fn a_clock_that_jumps_by_33_days_deletes_and_forgets_nothing() {
    let cluster = Cluster::start_prepared("clocks", &Options::default(), clock::prepare).await;
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    let kept = Before::write(&client).await;
    let good = GoodClient::start(&cluster).await;
    let mut newest = times_are_right(&client, 0.0, "before").await;
    let follower = cluster.followers().await[0];
    let jumps =
        [(leader, DAYS_33, 1), (leader, -DAYS_33, 2), (follower, DAYS_33, 1), (follower, -DAYS_33, 2)];
    for (id, offset, times) in jumps {
        let when = format!("node {id}, {} by {offset} s", if id == leader { "leader" } else { "follower" });
        clock::set(&clock::file(cluster.root(), id), offset);
        every_node_shows(&cluster, &[id]).await;
        has_logged(&cluster, id, WRONG, times).await;
        newest = times_are_right(&client, newest, &when).await;
        // The node looks for expired records once a second, and reports nothing when it finds none.
        lasts(Duration::from_millis(1500)).await;
        kept.is_kept(&cluster, &when).await;
        clock::set(&clock::file(cluster.root(), id), 0);
        every_node_shows(&cluster, &[]).await;
        has_logged(&cluster, id, RIGHT, times).await;
        newest = times_are_right(&client, newest, &format!("after {when}")).await;
    }
    // And no more than that.
    for id in [leader, follower] {
        has_logged(&cluster, id, WRONG, 2).await;
        has_logged(&cluster, id, RIGHT, 2).await;
    }
    kept.is_kept(&cluster, "afterwards").await;
    cluster.equal_digests().await;
    good.stop(&cluster, "clocks that jump by 33 days").await.is_unhurt().memory_within(512);
}

#[tokio::test]
async fn a_cluster_that_starts_with_one_wrong_clock_trusts_the_others() {
    for offset in [DAYS_33, -DAYS_33] {
        let mut cluster = Cluster::start_prepared("clocks-start", &Options::default(), clock::prepare).await;
        let leader = cluster.leader().await;
        let kept = Before::write(&cluster.client(leader)).await;
        let (_, newest) = put(&cluster.client(leader), 9).await;
        cluster.kill_all();
        clock::set(&clock::file(cluster.root(), leader), offset);
        // The node with the wrong clock alone has another vote first, so that it can lead.
        let other = if leader == 3 { 1 } else { leader + 1 };
        for id in 1..=3 {
            cluster.node(id).start().await;
        }
        cluster.ready().await;
        while cluster.leader().await != leader {
            let answer =
                cluster.client(other).post("/api/v1/cluster/leader", &json!({"id": leader})).insist().await;
            assert!(matches!(answer.status, 200 | 409 | 503 | 504), "{answer:?}");
        }
        every_node_shows(&cluster, &[leader]).await;
        let when = format!("started {offset} s off");
        times_are_right(&cluster.client(leader), newest, &when).await;
        kept.is_kept(&cluster, &when).await;
    }
}
