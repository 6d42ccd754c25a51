//! A node that was down for longer than the log covers catches up by a snapshot.

use std::{path::Path, time::Duration};

use futures::future::join_all;
use serde_json::json;

use crate::harness::{
    Client, Cluster, Options, check,
    cluster::snapshots,
    eventually,
    load::{define, everything, set},
    within,
};

/// How long the nodes have after a round of writes until the next one begins. They compare sizes twice a second.
const ROUND_WAIT: Duration = Duration::from_secs(3);

/// Writes a definition's keys `k0` to `k7` through the nodes until each of these nodes has purged its log up to a
/// place. It keeps two snapshots that are newer then.
///
/// A round is several megabytes, which outweigh the state many times. How many snapshots it leaves depends on the pace
/// of the writes, as a node compares sizes twice a second: so the rounds go on until there are enough.
pub(super) async fn purge_logs(cluster: &Cluster, ids: &[u64], definition: &str, place: u64) {
    let clients: Vec<_> = ids.iter().map(|id| cluster.client(*id)).collect();
    let nodes: Vec<_> = cluster.nodes.iter().filter(|node| ids.contains(&node.id)).collect();
    let mut round = 0;
    eventually(&format!("nodes {ids:?} have purged their logs up to {place}"), async || {
        overwrite(&clients, definition, round).await;
        round += 1;
        within(ROUND_WAIT, async || {
            nodes.iter().try_for_each(|node| is_purged(&node.directory, &node.log, place))
        })
        .await
    })
    .await;
}

/// Sets each key 40 times.
async fn overwrite(clients: &[Client], definition: &str, round: u64) {
    let writer = async |key: usize| {
        let client = &clients[key % clients.len()];
        for turn in 0..40_u64 {
            // Digits that a compression can't fold away.
            let mut random = fastrand::Rng::with_seed(round * 1_000_000 + turn * 1000 + key as u64);
            let text: String = std::iter::repeat_with(|| random.alphanumeric()).take(16 << 10).collect();
            let data = json!({"round": round, "turn": turn, "text": text});
            set(client, definition, &format!("k{key}"), &data).await;
        }
    };
    join_all((0..8).map(writer)).await;
}

/// Whether a node keeps two snapshots that are both newer than a place, and its log says that it is purged up to there.
/// The snapshots come first: until the log is purged as well, a node that was away is still served from it.
fn is_purged(directory: &Path, log: &Path, place: u64) -> Result<(), String> {
    let found = snapshots(directory);
    check(found.len() >= 2 && found[0] > place, || {
        format!("{}: snapshots at {found:?}, expected two newer than {place}", directory.display())
    })?;
    let text = std::fs::read_to_string(log).map_err(|error| error.to_string())?;
    let cut = |line: &str| {
        let digits = line.split_once("purge_upto: ")?.1.split_once('.')?.1;
        digits.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u64>().ok()
    };
    let last = text.lines().filter(|line| line.contains("purge log, ")).filter_map(cut).max();
    check(last.is_some_and(|last| last > place), || {
        format!("{}: purged up to {last:?}, expected more than {place}", log.display())
    })
}

#[tokio::test]
async fn a_node_that_was_away_too_long_catches_up_by_a_snapshot() {
    let options = Options::default().with("CONCORD_SNAPSHOT_LOG_BYTES", "65536");
    let mut cluster = Cluster::start_with("lagging", &options).await;
    define(&cluster.client(1), "d").await;
    set(&cluster.client(1), "d", "before", &json!({"n": 1})).await;
    let away = cluster.followers().await[0];
    let others = [away % 3 + 1, (away + 1) % 3 + 1];
    for round in 0..2 {
        let place = cluster.place_in_log(away).await;
        if round == 0 {
            assert!(cluster.node(away).stop().await.success());
        } else {
            cluster.node(away).kill();
        }
        purge_logs(&cluster, &others, "d", place).await;
        let present = everything(&cluster.client(others[0]), "d").await;
        assert_eq!(present.len(), 9);
        cluster.node(away).start().await;
        cluster.ready().await;
        cluster.equal_digests().await;
        assert!(everything(&cluster.client(away), "d").await == present, "the snapshot holds something else");
        // What a snapshot brought must also be there after a restart of this node.
        cluster.node(away).kill();
        cluster.node(away).start().await;
        cluster.ready().await;
        cluster.equal_digests().await;
        assert!(everything(&cluster.client(away), "d").await == present, "the restart lost something");
    }
}

#[tokio::test]
async fn a_cluster_with_a_cut_log_restarts_whole() {
    let options = Options::default().with("CONCORD_SNAPSHOT_LOG_BYTES", "65536");
    let mut cluster = Cluster::start_with("cut-log", &options).await;
    define(&cluster.client(1), "d").await;
    purge_logs(&cluster, &[1, 2, 3], "d", 10).await;
    let present = everything(&cluster.client(1), "d").await;
    cluster.kill_all();
    cluster.start_all().await;
    cluster.equal_digests().await;
    for node in cluster.clients() {
        assert!(everything(&node, "d").await == present, "a node came back with something else");
    }
}
