//! Nodes stop, gracefully or not, and come back with everything.

use futures::future::join_all;

use crate::harness::{Cluster, Node, load::Load};

#[tokio::test]
async fn a_restarted_node_has_everything() {
    let mut cluster = Cluster::start("restarted-node").await;
    let mut load = Load::start(&cluster.clients(), "d").await;
    load.grows_by(50).await;
    let follower = cluster.followers().await[0];
    let status = cluster.node(follower).stop().await;
    assert!(status.success(), "{status}");
    load.grows_by(50).await;
    cluster.node(follower).start().await;
    cluster.ready().await;
    load.grows_by(20).await;
    cluster.node(follower).kill();
    load.grows_by(50).await;
    load.stop().await;
    cluster.node(follower).start().await;
    cluster.ready().await;
    cluster.equal_digests().await;
    load.is_kept_by(&cluster.client(follower)).await;
}

#[tokio::test]
async fn a_whole_cluster_that_is_killed_under_load_keeps_what_it_acknowledged() {
    let mut cluster = Cluster::start("all-killed").await;
    for round in 0..3 {
        let mut load = Load::start(&cluster.clients(), &format!("d{round}")).await;
        load.grows_by(150).await;
        cluster.kill_all();
        load.stop().await;
        cluster.start_all().await;
        cluster.equal_digests().await;
        for node in cluster.clients() {
            load.is_kept_by(&node).await;
        }
    }
}

#[tokio::test]
async fn a_whole_cluster_that_is_stopped_comes_back_the_same() {
    let mut cluster = Cluster::start("all-stopped").await;
    let mut load = Load::start(&cluster.clients(), "d").await;
    load.grows_by(150).await;
    load.stop().await;
    let before = cluster.equal_digests().await;
    for status in join_all(cluster.nodes.iter_mut().map(Node::stop)).await {
        assert!(status.success(), "{status}");
    }
    cluster.start_all().await;
    let after = cluster.equal_digests().await;
    assert_eq!(before, after);
    for node in cluster.clients() {
        load.is_kept_by(&node).await;
    }
}

#[tokio::test]
async fn a_cluster_that_is_stopped_under_load_ends_well_and_keeps_what_it_acknowledged() {
    let mut cluster = Cluster::start("stopped-busy").await;
    let mut load = Load::start(&cluster.clients(), "d").await;
    load.grows_by(100).await;
    for status in join_all(cluster.nodes.iter_mut().map(Node::stop)).await {
        assert!(status.success(), "{status}");
    }
    load.stop().await;
    cluster.start_all().await;
    cluster.equal_digests().await;
    for node in cluster.clients() {
        load.is_kept_by(&node).await;
    }
}
