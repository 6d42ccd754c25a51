//! A cluster's beginning, its status, and what a node says before it belongs to one.

use futures::future::join_all;
use http::Method;
use serde_json::json;

use crate::harness::{
    Cluster, Node, check, eventually,
    load::{config, define},
};

#[tokio::test]
async fn a_node_that_belongs_to_no_cluster_lives_but_is_not_ready_and_does_nothing() {
    let mut cluster = Cluster::start_unformed("unformed").await;
    for node in cluster.clients() {
        node.bare(Method::GET, "/livez").attempt().await.unwrap().expect(200);
        node.bare(Method::GET, "/readyz").attempt().await.unwrap().expect(503);
        let body = json!({"config_definition_key": "early"});
        let write = node.post("/api/v1/config_definition/", &body).attempt().await.unwrap();
        let write = write.refused(503, "unavailable_error");
        assert!(!write.header("retry-after").is_empty(), "{write:?}");
        let read = node.get("/api/v1/config_definition/early").attempt().await.unwrap();
        read.refused(503, "unavailable_error");
    }
    cluster.form().await;
    for node in cluster.clients() {
        let read = node.get("/api/v1/config_definition/early").insist().await;
        read.refused(404, "not_found_error");
    }
}

#[tokio::test]
async fn forming_needs_the_key_and_may_be_repeated() {
    let mut cluster = Cluster::start_unformed("forming").await;
    let members = cluster.members();
    let first = cluster.client(1);
    let bare = first.bare(Method::POST, "/api/v1/cluster/init").json(&members);
    bare.attempt().await.unwrap().refused(401, "unauthorized_error");
    cluster.form().await;
    let before = first.status().await.unwrap();
    define(&first, "kept").await;
    for _ in 0..2 {
        let again = first.post("/api/v1/cluster/init", &members).attempt().await.unwrap();
        assert!((200..300).contains(&again.status), "{again:?}");
    }
    let after = first.status().await.unwrap();
    assert_eq!(before["cluster_id"], after["cluster_id"]);
    first.get("/api/v1/config_definition/kept").insist().await.expect(200);
}

#[tokio::test]
async fn calls_that_form_the_same_cluster_at_once_both_find_it_formed() {
    let cluster = Cluster::start_unformed("forming-twice").await;
    let (first, members) = (cluster.client(1), cluster.members());
    let form = async || first.post("/api/v1/cluster/init", &members).attempt().await.unwrap();
    let (one, other) = tokio::join!(form(), form());
    assert_eq!((one.status / 100, other.status / 100), (2, 2), "{one:?}\n{other:?}");
    cluster.ready().await;
}

/// Each node of the cluster is to form it.
fn tell_to_form(cluster: &mut Cluster) {
    let named = |node: &Node| format!("{}={}@{}", node.id, node.api_addr(), node.peer_addr());
    let peers = cluster.nodes.iter().map(named).collect::<Vec<_>>().join(",");
    for node in &mut cluster.nodes {
        node.settings.insert("CONCORD_PEERS".into(), peers.clone());
        node.settings.insert("CONCORD_FORM".into(), "true".into());
    }
}

#[tokio::test]
async fn nodes_that_are_told_to_form_their_cluster_without_hands() {
    let mut cluster = Cluster::start_unformed("by-themselves").await;
    cluster.kill_all();
    tell_to_form(&mut cluster);
    // The one that forms it comes first, and waits for the last.
    for id in [1, 2] {
        cluster.node(id).start().await;
    }
    let told = "the cluster is not bootstrapped yet: node 3 at";
    eventually("node 1 waits", async || check(cluster.nodes[0].tail(20).contains(told), || cluster.tails(5)))
        .await;
    cluster.node(3).start().await;
    cluster.ready().await;
    define(&cluster.client(2), "kept").await;
    let before = cluster.client(1).status().await.unwrap();
    assert_eq!(before["members"].as_array().map(Vec::len), Some(3), "{before}");
    // Nothing is formed a second time.
    for id in 1..=3 {
        assert!(cluster.node(id).stop().await.success());
        cluster.node(id).start().await;
        cluster.ready().await;
    }
    assert_eq!(cluster.client(1).status().await.unwrap()["cluster_id"], before["cluster_id"]);
    cluster.client(1).get("/api/v1/config_definition/kept").insist().await.expect(200);
}

#[tokio::test]
async fn a_member_that_has_lost_its_disk_does_not_begin_again_under_its_id() {
    let mut cluster = Cluster::start("lost-disk").await;
    define(&cluster.client(1), "kept").await;
    let before = cluster.client(2).status().await.unwrap();
    cluster.kill_all();
    tell_to_form(&mut cluster);
    std::fs::remove_dir_all(&cluster.node(1).directory).unwrap();
    // All at once: node 1 asks while the others read their logs.
    join_all(cluster.nodes.iter_mut().map(Node::start)).await;
    cluster.ready_on(&[2, 3]).await;
    let told = "belongs to a cluster that is bootstrapped already";
    eventually("node 1 is told", async || {
        check(cluster.nodes[0].tail(20).contains(told), || cluster.tails(5))
    })
    .await;
    cluster.client(1).bare(Method::GET, "/readyz").attempt().await.unwrap().expect(503);
    assert!(!cluster.nodes[0].directory.join("identity.json").exists());
    assert_eq!(cluster.client(2).status().await.unwrap()["cluster_id"], before["cluster_id"]);
    cluster.client(2).get("/api/v1/config_definition/kept").insist().await.expect(200);
}

#[tokio::test]
async fn every_node_shows_the_same_cluster() {
    let cluster = Cluster::start("status").await;
    let leader = cluster.leader().await;
    define(&cluster.client(1), "d").await;
    cluster.equal_digests().await;
    let first = cluster.client(1).status().await.unwrap();
    assert!(first["cluster_id"].as_str().is_some_and(|id| id.len() >= 32), "{first}");
    for node in &cluster.nodes {
        let (client, id) = (node.client(), node.id);
        eventually("the members are shown", async || {
            let answer = client.get("/api/v1/cluster").attempt().await?.expect(200);
            let status = answer.data().clone();
            assert_eq!(status["cluster_id"], first["cluster_id"]);
            assert_eq!(status["node_id"], id);
            assert!(status["term"].as_u64().is_some_and(|term| term > 0), "{status}");
            assert!(status["revision"].as_u64().is_some_and(|revision| revision > 0), "{status}");
            assert!(
                status["digest"].as_str().is_some_and(|d| d.bytes().all(|b| b.is_ascii_hexdigit())),
                "{status}"
            );
            let members = status["members"].as_array().cloned().unwrap_or_default();
            assert_eq!(members.len(), 3, "{status}");
            for (member, node) in members.iter().zip(&cluster.nodes) {
                assert_eq!(member["id"], node.id);
                assert_eq!(member["api_addr"], node.api_addr());
                assert_eq!(member["peer_addr"], node.peer_addr());
                assert!(member.get("lag").is_some(), "{status}");
            }
            // Leadership may have moved while the test ran on a busy machine: then the roles follow it.
            let leads = |member: &&serde_json::Value| member["role"] == "leader";
            let shown: Vec<_> = members.iter().filter(leads).map(|member| member["id"].clone()).collect();
            check(shown == [status["leader_id"].clone()], || format!("{status}, the leader was {leader}"))
        })
        .await;
    }
}

#[tokio::test]
async fn each_of_three_hundred_writes_is_read_at_once_on_the_other_nodes() {
    let cluster = Cluster::start("forwarding").await;
    let nodes = cluster.clients();
    define(&nodes[0], "d").await;
    let path = config("d", "k");
    let first = json!({"data": {"n": 0}});
    let create = nodes[0].put(&path, &first).header("if-none-match", "*").header("idempotency-key", "0");
    create.insist().await.expect(201);
    for n in 1..=300_usize {
        let body = json!({"data": {"n": n}});
        let write = nodes[n % 3].put(&path, &body).header("idempotency-key", &n.to_string());
        write.insist().await.expect(200);
        let (one, two) = (nodes[(n + 1) % 3].get(&path), nodes[(n + 2) % 3].get(&path));
        let (one, two) = tokio::join!(one.insist(), two.insist());
        for read in [one, two] {
            assert_eq!(read.data()["data"]["n"], n, "{read:?}");
        }
    }
}

#[tokio::test]
async fn an_interrupted_bootstrap_continues_after_a_restart() {
    let mut cluster = Cluster::start_unformed("interrupted").await;
    cluster.kill_all();
    // Node 1 exited while it waited for the others, and node 2 after it had taken the identity, both without a log.
    let id = uuid::Uuid::from_u128(7);
    for number in [1, 2] {
        let directory = &cluster.node(number).directory;
        let identity = json!({"cluster_id": id, "node_id": number, "format": 1});
        std::fs::write(directory.join("identity.json.joining"), format!("{number}\n")).unwrap();
        std::fs::write(directory.join("identity.json"), identity.to_string()).unwrap();
    }
    join_all(cluster.nodes.iter_mut().map(Node::start_anywhere)).await;
    for client in cluster.clients() {
        client.bare(Method::GET, "/readyz").attempt().await.unwrap().expect(503);
    }
    cluster.form().await;
    assert_eq!(cluster.client(3).status().await.unwrap()["cluster_id"], json!(id));
    define(&cluster.client(1), "d").await;
    for number in [1, 2, 3] {
        assert!(!cluster.node(number).directory.join("identity.json.joining").exists(), "node {number}");
        assert!(cluster.node(number).stop().await.success());
        cluster.node(number).start().await;
    }
    cluster.ready().await;
}
