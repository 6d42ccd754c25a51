//! Nodes that are no members: another secret, another cluster.

use http::Method;
use serde_json::json;

use crate::harness::{
    Cluster, Options,
    load::{config, define, definition, set},
};

#[tokio::test]
async fn a_member_with_another_secret_takes_no_part() {
    let mut cluster =
        Cluster::start_with("wrong-secret", &Options::default().with("CONCORD_WRITE_TIMEOUT_MS", "5000"))
            .await;
    define(&cluster.client(1), "d").await;
    set(&cluster.client(1), "d", "k", &json!({"n": 1})).await;
    cluster.equal_digests().await;
    assert!(cluster.node(3).stop().await.success());
    let right = cluster.node(3).settings.clone();
    cluster
        .node(3)
        .settings
        .insert("CONCORD_CLUSTER_SECRET".into(), "another-secret-of-the-same-length-98765".into());
    cluster.node(3).start().await;
    for n in 2..20 {
        set(&cluster.client(1), "d", "k", &json!({"n": n})).await;
    }
    let three = cluster.client(3);
    let ready = three.bare(Method::GET, "/readyz").attempt().await.unwrap();
    assert_eq!(ready.status, 503, "{ready:?}");
    // With it alone there is no majority.
    assert!(cluster.node(2).stop().await.success());
    for id in [1, 3] {
        let put = cluster.client(id).put(&config("d", "k"), &json!({"data": {"n": 99}}));
        let write = put.header("idempotency-key", "never").attempt().await.unwrap();
        assert!(matches!(write.status, 503 | 504), "{write:?}");
    }
    let local = three.get(&config("d", "k")).query(&[("consistency", "local")]).attempt().await.unwrap();
    if local.status == 200 {
        assert_eq!(local.data()["data"], json!({"n": 1}), "it has heard nothing since");
    }
    cluster.node(2).start().await;
    cluster.node(3).kill();
    cluster.node(3).settings = right;
    cluster.node(3).start().await;
    cluster.ready().await;
    cluster.equal_digests().await;
}

#[tokio::test]
async fn a_call_between_nodes_without_the_secret_is_refused() {
    let cluster = Cluster::start("peer-port").await;
    let before = cluster.equal_digests().await;
    for node in &cluster.nodes {
        let peer = crate::harness::Client::new(&format!("http://{}", node.peer_addr()), "unknown");
        for kind in ["append", "vote", "forward", "snapshot", "join", "init", "anything"] {
            let call = peer.call(Method::POST, &format!("/peer/{kind}")).bytes(vec![0; 64]);
            let answer = call.attempt().await.unwrap();
            assert!((400..500).contains(&answer.status), "{answer:?}");
        }
        // What callers ask is not served there.
        let answer = peer.get("/api/v1/cluster").attempt().await.unwrap();
        assert!((400..500).contains(&answer.status), "{answer:?}");
    }
    assert_eq!(cluster.equal_digests().await, before);
}

#[tokio::test]
async fn two_clusters_do_not_mix() {
    let (mut one, mut two) = Cluster::start_two("mixed", &Options::default()).await;
    define(&one.client(1), "of-one").await;
    define(&two.client(1), "of-two").await;
    one.equal_digests().await;
    two.equal_digests().await;
    assert!(one.node(3).stop().await.success());
    assert!(two.node(3).stop().await.success());
    // A member of the first cluster at the address of one of the second, with the same secret and the same id.
    let home = (one.node(3).api_port, one.node(3).peer_port);
    let away = (two.node(3).api_port, two.node(3).peer_port);
    (one.node(3).api_port, one.node(3).peer_port) = away;
    one.node(3).start().await;
    for n in 0..20 {
        set(&two.client(1), "of-two", &format!("k{n}"), &json!({"n": n})).await;
        set(&one.client(1), "of-one", &format!("k{n}"), &json!({"n": n})).await;
    }
    let lost =
        one.client(3).get(&definition("of-two")).query(&[("consistency", "local")]).attempt().await.unwrap();
    assert!(matches!(lost.status, 404 | 503), "{lost:?}");
    assert!(one.node(3).exited().is_some() || one.client(3).status().await.is_ok());
    one.node(3).kill();
    (one.node(3).api_port, one.node(3).peer_port) = home;
    one.node(3).start().await;
    two.node(3).start().await;
    one.ready().await;
    two.ready().await;
    assert_ne!(one.equal_digests().await, two.equal_digests().await);
    for (cluster, own, other) in [(&one, "of-one", "of-two"), (&two, "of-two", "of-one")] {
        for node in cluster.clients() {
            node.get(&definition(own)).insist().await.expect(200);
            node.get(&definition(other)).insist().await.expect(404);
        }
    }
}
