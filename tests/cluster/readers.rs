//! The readers of a config on three nodes: watches at each of them, what the readers report, and a node that is gone.

use serde_json::{Value, json};

use super::change_requests::{CHANGES, act, text};
use crate::harness::{
    Answer, Client, Cluster, check, eventually,
    load::{config, define, set},
    watch::Watch,
};

async fn watch(node: &Client, reader: Option<(&str, &str)>) -> Watch {
    let mut call = node.get("/api/v1/watch").query(&[("definition", "limits"), ("config_key", "k")]);
    if let Some((name, labels)) = reader {
        call = call.header("x-concord-reader", name).header("x-concord-labels", labels);
    }
    let mut watch = Watch::of(&call).await;
    // The first event says from where it goes on.
    watch.event().await;
    watch
}

async fn report(node: &Client, body: &Value) -> Answer {
    node.post(&format!("{}/report", config("limits", "k")), body).insist().await
}

async fn readers(node: &Client) -> Answer {
    node.get(&format!("{}/readers", config("limits", "k"))).insist().await.expect(200)
}

/// The rows of a list: reader, node and state.
fn rows(list: &Answer) -> Vec<(String, Value, String)> {
    let results = list.data()["results"].as_array().expect("a list");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    results.iter().map(|row| (text(&row["reader"]), row["node_id"].clone(), text(&row["state"]))).collect()
}

fn row(reader: &str, node: u64, state: &str) -> (String, Value, String) {
    (reader.to_owned(), json!(node), state.to_owned())
}

#[tokio::test]
async fn every_node_lists_the_readers_of_all_and_names_one_that_is_gone() {
    let mut cluster = Cluster::start("readers").await;
    let leader = cluster.leader().await;
    let followers = cluster.followers().await;
    let nodes = cluster.clients();
    define(&nodes[0], "limits").await;
    set(&nodes[0], "limits", "k", &json!({"n": 0})).await;
    let mut open = Vec::new();
    for (place, node) in nodes.iter().enumerate() {
        open.push(watch(node, Some((&format!("host-{}", place + 1), "ring=canary"))).await);
    }
    open.push(watch(&nodes[1], None).await);

    let now = nodes[0].get(&config("limits", "k")).insist().await.expect(200);
    let revision: u64 = now.tag().trim_matches('"').parse().expect("a revision");
    let failed =
        json!({"reader": "host-2", "instance": "a", "revision": revision, "state": "failed", "detail": "no"});
    let taken = report(&nodes[usize::try_from(followers[0] - 1).unwrap()], &failed).await.expect(200);
    assert_eq!(taken.data()["counted"], true);
    // Another program of this host runs well, and an earlier report comes late.
    for (instance, of) in [("b", revision), ("a", revision - 1)] {
        let healthy = json!({"reader": "host-2", "instance": instance, "revision": of, "state": "healthy"});
        let taken = report(&nodes[0], &healthy).await.expect(200);
        assert_eq!(taken.data()["counted"], instance == "b");
    }
    let expected = [row("host-2", 2, "failed"), row("host-1", 1, "unknown"), row("host-3", 3, "unknown")];
    for node in &nodes {
        let list = readers(node).await;
        assert_eq!(rows(&list), expected, "{list:?}");
        let (first, meta) = (&list.data()["results"][0], &list.data()["meta"]);
        assert_eq!((&first["detail"], &first["reported_revision"]), (&json!("no"), &json!(revision)));
        assert_eq!(
            (&first["labels"], first["revision"].as_u64()),
            (&json!({"ring": "canary"}), Some(revision))
        );
        let all = json!({"healthy": 0, "failed": 1, "watches": {"identified": 3, "unidentified": 1},
                         "truncated": false, "missing_nodes": []});
        assert_eq!(*meta, all);
    }

    // In a rollout, what a reader says of the candidate is shown.
    let put =
        json!({"op": "put_config", "config_definition_key": "limits", "config_key": "k", "data": {"n": 1}});
    let stages = json!([{"labels": {"ring": ["canary"]}, "for_s": 3600, "min_healthy": 9}, {"for_s": 3600}]);
    let body =
        json!({"title": "a rollout", "operations": [put], "rollout": {"stages": stages, "on_fail": "pause"}});
    let made = nodes[0].post(CHANGES, &body).insist().await.expect(201);
    act(&nodes[0], &made, "apply", "apply-readers").await.expect(200);
    let healthy = json!({"reader": "host-1", "labels": {"ring": "canary"}, "state": "healthy"});
    nodes[2]
        .post(&format!("{CHANGES}{}/report", text(&made, "change_id")), &healthy)
        .insist()
        .await
        .expect(200);
    let list = readers(&nodes[1]).await;
    assert_eq!(rows(&list)[0], row("host-1", 1, "healthy"));
    let variant = json!({"change_id": text(&made, "change_id")});
    let results = list.data()["results"].as_array().unwrap();
    // Of its candidate, the reader that has failed before has said nothing.
    assert!(results.iter().all(|row| row["variant"] == variant && row["state"] != "failed"), "{list:?}");

    let gone = followers.iter().copied().find(|id| *id != 1).expect("another follower");
    cluster.node(gone).kill();
    let rest = cluster.client(if gone == leader { 1 } else { leader });
    eventually("the node is named", async || {
        let list = readers(&rest).await;
        let meta = &list.data()["meta"];
        check(meta["missing_nodes"] == json!([gone]) && rows(&list).len() == 2, || format!("{list:?}"))
    })
    .await;
    drop(open);
    eventually("nobody watches", async || {
        let list = readers(&rest).await;
        check(list.data()["meta"]["watches"] == json!({"identified": 0, "unidentified": 0}), || {
            format!("{list:?}")
        })
    })
    .await;
}
