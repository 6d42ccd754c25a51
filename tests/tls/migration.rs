//! A plain cluster becomes an encrypted one, node by node, while it serves.

use crate::{
    harness::{Cluster, Node, load::Load, tls::Authority},
    tls::raw,
};

/// The nodes are restarted one by one, first so that they take plain calls and encrypted ones, then for encrypted ones
/// only.
#[tokio::test]
async fn a_plain_cluster_is_encrypted_node_by_node() {
    let mut cluster = Cluster::start("tls-migrate").await;
    let authority = Authority::new(cluster.root(), "ca");
    let mut load = Load::start(&cluster.clients(), "d").await;
    load.grows_by(20).await;
    for is_migrating in [true, false] {
        for id in 1..=3 {
            restart(cluster.node(id), &authority, is_migrating).await;
            cluster.ready().await;
            load.grows_by(10).await;
        }
    }
    load.stop().await;
    cluster.equal_digests().await;
    for client in cluster.clients() {
        load.is_kept_by(&client).await;
    }
    nobody_is_answered_plainly(&cluster).await;
}

async fn restart(node: &mut Node, authority: &Authority, is_migrating: bool) {
    assert!(node.stop().await.success());
    if is_migrating {
        authority.equip(node);
        node.settings.insert("CONCORD_PEER_TLS".into(), "migrate".into());
    } else {
        node.settings.remove("CONCORD_PEER_TLS");
        node.settings.remove("CONCORD_CLUSTER_SECRET");
    }
    node.start().await;
}

async fn nobody_is_answered_plainly(cluster: &Cluster) {
    for node in &cluster.nodes {
        let to = node.peer_addr().parse().expect("an address");
        let request = "POST /peer/join HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n";
        let answer = raw::ask_plainly(to, request).await;
        assert!(!answer.as_ref().is_ok_and(|line| line.starts_with("HTTP/")), "{answer:?}");
    }
}
