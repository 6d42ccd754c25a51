//! Reads that rest on the leader's lease: as fresh as linearizable ones while no member's clock is half as fast again as
//! the leader's.
//!
//! A clock that goes slower than others makes a lease longer than theirs. So does a setting, which works on every
//! machine; with libfaketime the clocks themselves go at different rates.

use std::{path::Path, time::Duration};

use futures::future::{join, join_all};
use serde_json::json;

use crate::harness::{
    Answer, Client, Cluster, Node, Options, check, clock, eventually,
    load::{config, define, set},
    time::lasts,
};

/// Concurrent reads of a leader that goes on.
const READERS: usize = 8;

async fn by_lease(node: &Client) -> Answer {
    node.get(&config("d", "k")).query(&[("consistency", "lease")]).insist().await
}

#[tokio::test]
async fn a_read_by_lease_sees_what_was_acknowledged_on_every_node() {
    let off = Cluster::start("lease-off").await;
    let node = off.client(1);
    define(&node, "d").await;
    let refused = by_lease(&node).await;
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(refused.body.to_string().contains("CONCORD_LEASE_READS"), "{refused:?}");
    drop(off);

    let options = Options::default().with("CONCORD_LEASE_READS", "true");
    let mut cluster = Cluster::start_with("lease", &options).await;
    define(&cluster.client(1), "d").await;
    for n in 0..60_u64 {
        set(&cluster.client(n % 3 + 1), "d", "k", &json!({"n": n})).await;
        if n == 30 {
            // A transfer ends a lease at once: the next leader waits for no one.
            let leader = cluster.leader().await;
            let to = leader % 3 + 1;
            cluster.client(1).post("/api/v1/cluster/leader", &json!({"id": to})).insist().await.expect(200);
        }
        if n == 45 {
            let leader = cluster.leader().await;
            cluster.node(leader).kill();
            cluster.node(leader).start().await;
        }
        for node in cluster.clients() {
            let seen = by_lease(&node).await.expect(200);
            assert_eq!(seen.data()["data"]["n"], n, "{seen:?}");
        }
    }
    cluster.ready().await;
    cluster.equal_digests().await;
}

/// Whatever one voter lacks: reads are right, by a majority, and everybody says why.
#[tokio::test]
async fn a_voter_without_the_setting_turns_lease_reads_off_and_is_named() {
    let options = Options::default().with("CONCORD_LEASE_READS", "true");
    let lacks = |_: &Path, nodes: &mut [Node]| {
        nodes[2].overrides.push(("CONCORD_LEASE_READS".into(), "false".into()));
    };
    let mut cluster = Cluster::start_prepared("lease-lacking", &options, lacks).await;
    define(&cluster.client(1), "d").await;
    for client in cluster.clients() {
        eventually("an alarm that names the voter", async || {
            let status = client.status().await?;
            let alarms = status["alarms"].as_array().ok_or("no alarms")?.clone();
            let names = |alarm: &serde_json::Value| {
                let says = "node 3 does not have CONCORD_LEASE_READS";
                alarm["type"] == "lease"
                    && alarm["node_id"] == 3
                    && alarm["message"].to_string().contains(says)
            };
            check(alarms.iter().any(names), || format!("{alarms:?}"))
        })
        .await;
    }
    set(&cluster.client(1), "d", "k", &json!({"n": 1})).await;
    for id in [1, 2] {
        assert_eq!(by_lease(&cluster.client(id)).await.expect(200).data()["data"]["n"], 1);
    }
    assert!(cluster.node(3).stop().await.success());
    cluster.node(3).overrides.clear();
    cluster.node(3).start().await;
    for client in cluster.clients() {
        eventually("the alarm ends", async || {
            let status = client.status().await?;
            let alarms = status["alarms"].as_array().ok_or("no alarms")?.clone();
            check(alarms.iter().all(|alarm| alarm["type"] != "lease"), || format!("{alarms:?}"))
        })
        .await;
    }
}

#[tokio::test]
async fn a_leader_with_a_slow_clock_answers_nothing_old_after_a_pause() {
    let clocks = |_: &Path, nodes: &mut [Node]| {
        // 1.37 between the slowest and the fastest: the bound is 1.5.
        for (node, lease) in nodes.iter_mut().zip(["1150", "840", "840"]) {
            node.overrides.push(("CONCORD_ELECTION_MAX_MS".into(), lease.into()));
        }
    };
    nothing_old_is_read_after_a_pause("lease-settings", clocks).await;
}

#[tokio::test]
async fn a_leader_with_a_longer_election_timeout_answers_nothing_old_after_a_pause() {
    let timers = |_: &Path, nodes: &mut [Node]| {
        // The first node that was restarted with another setting: its own lease is six times as long as the others'.
        for (name, value) in [("CONCORD_ELECTION_MIN_MS", "3000"), ("CONCORD_ELECTION_MAX_MS", "6000")] {
            nodes[0].overrides.push((name.into(), value.into()));
        }
    };
    nothing_old_is_read_after_a_pause("lease-timers", timers).await;
}

#[tokio::test]
async fn a_leader_whose_clock_goes_at_a_lower_rate_answers_nothing_old_after_a_pause() {
    let clocks = |_: &Path, nodes: &mut [Node]| {
        // 1.41 between the slowest and the fastest.
        for (node, rate) in nodes.iter_mut().zip(["0.85", "1.2", "1.2"]) {
            clock::go_at_rate(node, rate);
        }
    };
    let cluster = nothing_old_is_read_after_a_pause("lease-rates", clocks).await;
    // By the clocks of a majority. Without them the test would be one of right clocks.
    let read = by_lease(&cluster.client(1)).await.expect(200);
    assert!(read.data()["modified_at"].as_str().is_some_and(|time| time.starts_with("19")), "{read:?}");
}

/// The first node is the one with the slow clock.
async fn nothing_old_is_read_after_a_pause(name: &str, clocks: impl FnOnce(&Path, &mut [Node])) -> Cluster {
    let options = Options::default().with("CONCORD_LEASE_READS", "true");
    let prepare = |root: &Path, nodes: &mut [Node]| {
        clocks(root, nodes);
        // The others begin an election sooner after the lease has ended by their clocks: then it matters by which.
        for node in &mut nodes[1..] {
            node.overrides.push(("CONCORD_ELECTION_MIN_MS".into(), "150".into()));
        }
    };
    let mut cluster = Cluster::start_prepared(name, &options, prepare).await;
    define(&cluster.client(1), "d").await;
    for n in 0..6 {
        pause_and_read(&mut cluster, n).await;
    }
    cluster.ready().await;
    cluster.equal_digests().await;
    cluster
}

/// A leader that was stopped answers at once when it goes on: by its clock less time has passed than by the others'.
async fn pause_and_read(cluster: &mut Cluster, n: u64) {
    set(&cluster.client(1), "d", "k", &json!({"n": 2 * n})).await;
    if cluster.leader().await != 1 {
        let moved = cluster.client(1).post("/api/v1/cluster/leader", &json!({"id": 1})).insist().await;
        assert!(matches!(moved.status, 200 | 409), "{moved:?}");
    }
    by_lease(&cluster.client(1)).await.expect(200);
    cluster.node(1).pause();
    // Acknowledged by those who have elected another leader meanwhile.
    set(&cluster.client(2), "d", "k", &json!({"n": 2 * n + 1})).await;
    // They wait in its sockets, so that it finds them when it goes on, beside the calls of the next leader.
    let stopped = cluster.client(1);
    let reads = join_all((0..READERS).map(|_| by_lease(&stopped)));
    let goes_on = async {
        lasts(Duration::from_millis(50)).await;
        cluster.node(1).resume();
    };
    for seen in join(reads, goes_on).await.0 {
        assert_eq!(seen.expect(200).data()["data"]["n"], 2 * n + 1);
    }
}
