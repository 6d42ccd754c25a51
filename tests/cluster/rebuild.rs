//! sled is never the only copy: without it, or with garbage in it, a node restarts with the same state. So does a node
//! whose state in memory is wrong.

use std::path::{Path, PathBuf};

use crate::harness::{Cluster, Node, Options, load::Load};

/// Every directory under `root` that sled keeps: it is known by its files `conf` and `db`.
fn sled_directories(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if root.join("conf").is_file() && root.join("db").is_file() {
        found.push(root.to_owned());
    }
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            found.extend(sled_directories(&entry.path()));
        }
    }
    found
}

fn remove(node: &Node) {
    let all = sled_directories(&node.directory);
    assert!(!all.is_empty(), "node {} keeps its state in sled", node.id);
    for directory in all {
        std::fs::remove_dir_all(directory).unwrap();
    }
}

fn scribble(node: &Node) {
    let all = sled_directories(&node.directory);
    assert!(!all.is_empty(), "node {} keeps its state in sled", node.id);
    for directory in all {
        let file = directory.join("db");
        let mut bytes = std::fs::read(&file).unwrap();
        // The head stays, so that it opens perhaps; what follows is no page of sled's.
        for (place, byte) in bytes.iter_mut().enumerate().skip(64) {
            *byte = u8::try_from(place * 31 % 251).unwrap();
        }
        std::fs::write(file, bytes).unwrap();
    }
}

fn flip_one_bit(node: &Node) {
    let all = sled_directories(&node.directory);
    assert!(!all.is_empty(), "node {} keeps its state in sled", node.id);
    for directory in all {
        let file = directory.join("db");
        let mut bytes = std::fs::read(&file).unwrap();
        if let Some(place) = bytes.iter().rposition(|byte| *byte != 0) {
            bytes[place / 2] ^= 4;
        }
        std::fs::write(file, bytes).unwrap();
    }
}

async fn comes_back_after(name: &str, damage: fn(&Node), options: &Options) {
    let mut cluster = Cluster::start_with(name, options).await;
    let mut load = Load::start(&cluster.clients(), "d").await;
    for _ in 0..4 {
        load.grows_by(100).await;
    }
    load.stop().await;
    let before = cluster.equal_digests().await;
    let follower = cluster.followers().await[0];
    for polite in [true, false] {
        one_comes_back(&mut cluster, follower, damage, polite).await;
        load.is_kept_by(&cluster.client(follower)).await;
    }
    // All at once: no node can ask another.
    cluster.kill_all();
    cluster.nodes.iter().for_each(damage);
    cluster.start_all().await;
    assert_eq!(cluster.equal_digests().await, before);
    load.is_kept_by(&cluster.client(follower)).await;
}

async fn one_comes_back(cluster: &mut Cluster, id: u64, damage: fn(&Node), polite: bool) {
    if polite {
        assert!(cluster.node(id).stop().await.success());
    } else {
        cluster.node(id).kill();
    }
    damage(cluster.node(id));
    cluster.node(id).start().await;
    cluster.ready().await;
    cluster.equal_digests().await;
}

#[tokio::test]
async fn a_node_without_its_sled_directory_comes_back_the_same() {
    comes_back_after("no-sled", remove, &Options::default()).await;
}

#[tokio::test]
async fn a_node_with_garbage_in_sled_comes_back_the_same() {
    comes_back_after("garbage-sled", scribble, &Options::default()).await;
}

#[tokio::test]
async fn a_node_with_a_flipped_bit_in_sled_comes_back_the_same_from_snapshot_and_log() {
    let options = Options::default().with("CONCORD_SNAPSHOT_LOG_BYTES", "65536");
    comes_back_after("flipped-sled", flip_one_bit, &options).await;
}

/// In a build with seeded bugs only: nothing else makes a node apply another value than the others.
#[cfg(feature = "sabotage")]
#[tokio::test]
async fn a_member_whose_state_differs_stops_and_rebuilds_it() {
    let options = Options::default().with("CONCORD_SNAPSHOT_LOG_BYTES", "16384");
    let mut cluster = Cluster::start_with("differs", &options).await;
    let follower = cluster.followers().await[0];
    assert!(cluster.node(follower).stop().await.success());
    #[expect(clippy::disallowed_methods, reason = "the bugs are the caller's, who runs the tests with them")]
    let others = std::env::var("CONCORD_SABOTAGE").unwrap_or_default();
    let bugs = [others.as_str(), "memory-damaged"].join(",");
    cluster.node(follower).overrides.push(("CONCORD_SABOTAGE".to_owned(), bugs));
    cluster.node(follower).start().await;
    cluster.ready().await;
    let clients: Vec<_> = (1..=3).filter(|id| *id != follower).map(|id| cluster.client(id)).collect();
    let mut load = Load::start(&clients, "d").await;
    load.grows_by(600).await;
    let status = cluster.node(follower).ended().await;
    let text = cluster.node(follower).tail(20);
    assert!(!status.success() && text.contains("differs from that of a majority"), "{status}: {text}");
    load.stop().await;
    cluster.node(follower).overrides.clear();
    cluster.node(follower).start().await;
    cluster.ready().await;
    cluster.equal_digests().await;
    load.is_kept_by(&cluster.client(follower)).await;
}
