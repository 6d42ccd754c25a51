//! What a node refuses to start with: it says why, and the other nodes keep running.

use std::{net::TcpListener, path::Path};

use serde_json::json;

use crate::harness::{
    Cluster, Node, Options, check, eventually, fresh_directory,
    load::{config, define, set},
};

/// Asserts that the node ends by itself, badly, and says why with these words.
async fn refuses(node: &mut Node, words: &[&str]) {
    node.launch();
    let status = node.ended().await;
    assert!(!status.success(), "node {} ended with {status}", node.id);
    let text = node.tail(30).to_lowercase();
    assert!(!text.is_empty(), "it says why");
    for word in words {
        assert!(text.contains(&word.to_lowercase()), "no `{word}` in:\n{text}");
    }
}

fn lone(root: &Path, options: &Options) -> Node {
    Node::new(1, root, &options.settings)
}

#[tokio::test]
async fn a_node_without_a_key_or_a_secret_does_not_start() {
    let root = fresh_directory("no-key");
    for name in ["CONCORD_API_KEY", "CONCORD_CLUSTER_SECRET"] {
        let mut without = lone(root.path(), &Options::default());
        without.settings.remove(name);
        refuse_without(&mut without, name).await;
        let mut empty = lone(root.path(), &Options::default().with(name, ""));
        refuse_without(&mut empty, name).await;
    }
}

async fn refuse_without(node: &mut Node, name: &str) {
    node.launch();
    let status = node.ended().await;
    assert!(!status.success(), "{name}: {status}");
    let text = node.tail(30).to_lowercase();
    let flag = name.trim_start_matches("CONCORD_").to_lowercase().replace('_', "-");
    let named = text.contains(&name.to_lowercase()) || text.contains(&flag);
    assert!(named, "`{name}` is not named in:\n{text}");
}

#[tokio::test]
async fn a_taken_port_is_named_by_its_address() {
    let root = fresh_directory("taken-port");
    for peer in [false, true] {
        let mut node = lone(root.path(), &Options::default());
        let port = if peer { node.peer_port } else { node.api_port };
        let holder = TcpListener::bind(("127.0.0.1", port));
        // If another process took it first, it is taken too.
        refuses(&mut node, &[&port.to_string()]).await;
        drop(holder);
    }
}

#[tokio::test]
async fn a_directory_serves_one_process() {
    let mut cluster = Cluster::start("one-process").await;
    define(&cluster.client(1), "d").await;
    let root = cluster.root().join("second");
    std::fs::create_dir_all(&root).unwrap();
    let settings = cluster.nodes[0].settings.clone();
    let mut second = Node::new(1, &root, &settings);
    second.directory = cluster.node(1).directory.clone();
    refuses(&mut second, &[]).await;
    assert!(cluster.node(1).exited().is_none(), "the first goes on");
    set(&cluster.client(1), "d", "k", &json!({"n": 1})).await;
    cluster.equal_digests().await;
}

#[tokio::test]
async fn the_directory_of_another_node_is_refused() {
    let mut cluster = Cluster::start("foreign-directory").await;
    assert!(cluster.node(3).stop().await.success());
    assert!(cluster.node(2).stop().await.success());
    let (two, three) = (cluster.node(2).directory.clone(), cluster.node(3).directory.clone());
    cluster.node(3).directory = two;
    refuses(cluster.node(3), &[]).await;
    cluster.node(3).directory = three;
    cluster.node(2).start().await;
    cluster.node(3).start().await;
    cluster.ready().await;
    cluster.equal_digests().await;
}

/// Removes everything in a directory but what `keep` names.
fn empty(directory: &Path, keep: &[&str]) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        if keep.iter().any(|name| entry.file_name() == **name) {
            continue;
        }
        if entry.path().is_dir() {
            std::fs::remove_dir_all(entry.path()).unwrap();
        } else {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
}

#[tokio::test]
async fn a_member_that_lost_everything_but_its_identity_does_not_start() {
    let mut cluster = Cluster::start("emptied").await;
    define(&cluster.client(1), "d").await;
    cluster.equal_digests().await;
    assert!(cluster.node(3).stop().await.success());
    assert!(
        cluster.node(3).directory.join("identity.json").is_file(),
        "a member's directory bears its identity"
    );
    empty(&cluster.node(3).directory, &["identity.json"]);
    refuses(cluster.node(3), &[]).await;
    set(&cluster.client(1), "d", "k", &json!({"n": 1})).await;
}

#[tokio::test]
async fn a_member_that_lost_its_log_does_not_start() {
    let mut cluster = Cluster::start("no-log").await;
    define(&cluster.client(1), "d").await;
    set(&cluster.client(1), "d", "k", &json!({"n": 1})).await;
    cluster.equal_digests().await;
    assert!(cluster.node(3).stop().await.success());
    let log = cluster.node(3).directory.join("log");
    std::fs::remove_dir_all(&log).expect("the log lies in `log`");
    refuses(cluster.node(3), &[]).await;
    set(&cluster.client(1), "d", "k", &json!({"n": 2})).await;
}

#[tokio::test]
async fn a_member_that_lost_all_does_not_vote() {
    let mut cluster =
        Cluster::start_with("forgetful", &Options::default().with("CONCORD_WRITE_TIMEOUT_MS", "5000")).await;
    define(&cluster.client(1), "d").await;
    set(&cluster.client(1), "d", "k", &json!({"n": 1})).await;
    cluster.equal_digests().await;
    for id in [2, 3] {
        assert!(cluster.node(id).stop().await.success());
    }
    empty(&cluster.node(3).directory, &[]);
    // Without an identity it may listen, but it is no member: with it alone there is no majority.
    cluster.node(3).start().await;
    let write = cluster.client(1).put(&config("d", "k"), &json!({"data": {"n": 2}})).attempt().await.unwrap();
    assert!(matches!(write.status, 503 | 504), "{write:?}");
    let ready = cluster.client(3).bare(http::Method::GET, "/readyz").attempt().await.unwrap();
    assert_eq!(ready.status, 503, "{ready:?}");
    cluster.node(2).start().await;
    cluster.ready_on(&[1, 2]).await;
    set(&cluster.client(2), "d", "k", &json!({"n": 3})).await;
    cluster.equal_digests_on(&[1, 2]).await;
}

#[tokio::test]
async fn settings_that_make_no_sense_are_refused() {
    let root = fresh_directory("nonsense");
    for (name, value) in [
        ("CONCORD_API_ADDR", "nowhere"),
        ("CONCORD_HEARTBEAT_MS", "soon"),
        ("CONCORD_ELECTION_MAX_MS", "-1"),
        ("CONCORD_NODE_ID", "one"),
    ] {
        let mut node = lone(root.path(), &Options::default());
        node.overrides.push((name.to_owned(), value.to_owned()));
        refuses(&mut node, &[]).await;
    }
}

#[tokio::test]
async fn a_node_outside_any_cluster_ends_well_when_asked() {
    let root = fresh_directory("polite");
    let mut node = lone(root.path(), &Options::default());
    node.start_anywhere().await;
    let status = node.stop().await;
    assert!(status.success(), "{status}");
    let client = node.client();
    eventually("its port is free", async || {
        let answer = client.get("/livez").attempt().await;
        check(answer.is_err(), || format!("{answer:?}"))
    })
    .await;
}
