//! Reads that rest on the leader's lease: as fresh as linearizable ones while no member's clock is half as fast again as
//! the leader's.
//!
//! A clock that goes slower than others makes a lease longer than theirs. So does a setting, which a test can give to a
//! node while the monotonic clock of a single process can't be changed.

use std::{path::Path, time::Duration};

use futures::future::{join, join_all};
use serde_json::json;
use tokio::time::sleep;

use crate::harness::{
    Answer, Client, Cluster, Node, Options,
    load::{config, define, set},
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

/// A leader that was stopped answers at once when it goes on: by its clock less time has passed than by the others'.
#[tokio::test]
async fn a_leader_with_a_slow_clock_answers_nothing_old_after_a_pause() {
    let options = Options::default().with("CONCORD_LEASE_READS", "true");
    let clocks = |_: &Path, nodes: &mut [Node]| {
        // 1.37 between the slowest and the fastest: the bound is 1.5.
        for (node, lease) in nodes.iter_mut().zip(["1150", "840", "840"]) {
            node.overrides.push(("CONCORD_ELECTION_MAX_MS".into(), lease.into()));
        }
    };
    let mut cluster = Cluster::start_prepared("lease-clocks", &options, clocks).await;
    define(&cluster.client(1), "d").await;
    for n in 0..6 {
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
            sleep(Duration::from_millis(50)).await;
            cluster.node(1).resume();
        };
        for seen in join(reads, goes_on).await.0 {
            assert_eq!(seen.expect(200).data()["data"]["n"], 2 * n + 1);
        }
    }
    cluster.ready().await;
    cluster.equal_digests().await;
}
