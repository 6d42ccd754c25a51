//! Change requests while leaders die: what is approved is applied once, whoever leads, and however often it is asked.

use futures::future::join_all;
use serde_json::{Value, json};

use crate::{
    harness::{
        Answer, Client, Cluster, check, eventually,
        load::{config, define, set},
    },
    hostile::grants::{create_key, known},
};

const CHANGES: &str = "/api/v1/change_request/";

async fn person(cluster: &Cluster, name: &str) -> String {
    let verbs = ["read", "write", "define", "approve"];
    let grants = json!([{ "verbs": verbs, "definitions": ["prod.*"] }]);
    let (_, key) = create_key(&cluster.client(1), &grants, &json!({ "person": name })).await;
    known(&cluster.clients(), &key, true).await;
    key
}

fn text(answer: &Answer, name: &str) -> String {
    answer.data()[name].as_str().unwrap_or_else(|| panic!("`{name}` in {answer:?}")).to_owned()
}

/// Sends something about a change request until a node has decided it.
async fn act(node: &Client, change: &Answer, action: &str, id: &str) -> Answer {
    let path = format!("{CHANGES}{}/{action}", text(change, "change_id"));
    let body = json!({ "digest": text(change, "digest") });
    node.post(&path, &body).header("idempotency-key", id).insist().await
}

async fn create(node: &Client, id: &str, n: u64) -> Answer {
    let put = json!({"op": "put_config", "config_definition_key": "prod.limits", "config_key": "k", "data": {"n": n}});
    let body = json!({"title": "a change", "operations": [put]});
    node.post(CHANGES, &body).header("idempotency-key", id).insist().await.expect(201)
}

/// A cluster with a config in an environment that takes change requests only, and the keys of two persons.
async fn restricted(name: &str) -> (Cluster, String, String) {
    let cluster = Cluster::start(name).await;
    let root = cluster.client(1);
    define(&root, "prod.limits").await;
    set(&root, "prod.limits", "k", &json!({"n": 0})).await;
    let (ann, bob) = (person(&cluster, "ann").await, person(&cluster, "bob").await);
    let rules = json!({"direct": "refuse", "approvals": 1, "freeze": []});
    root.put("/api/v1/environment/prod", &rules)
        .header("idempotency-key", "rules")
        .insist()
        .await
        .expect(201);
    (cluster, ann, bob)
}

#[tokio::test]
async fn what_was_approved_is_applied_once_by_the_next_leader() {
    let (mut cluster, ann, bob) = restricted("changes-failover").await;
    for round in 1..=3_u64 {
        let leader = cluster.leader().await;
        let other = leader % 3 + 1;
        let by = |node: u64, key: &str| cluster.client(node).with_credential(key);
        let made = create(&by(other, &ann), &format!("make-{round}"), round).await;
        act(&by(leader, &bob), &made, "approve", &format!("approve-{round}")).await.expect(200);
        let appliers = [by(other, &ann), by(other % 3 + 1, &bob), by(other, &bob)];
        cluster.node(leader).kill();
        let apply = async |(place, node): (u64, &Client)| {
            act(node, &made, "apply", &format!("apply-{round}-{place}")).await
        };
        let all = join_all((0..).zip(&appliers).map(apply)).await;
        let applied: Vec<Value> =
            all.into_iter().map(|one| one.expect(200).data()["applied"].clone()).collect();
        assert!(applied.windows(2).all(|pair| pair[0] == pair[1]), "one apply, whoever asks: {applied:?}");
        cluster.node(leader).start().await;
        cluster.ready().await;
        for node in cluster.clients() {
            eventually("every node has it", async || {
                let read = node.get(&config("prod.limits", "k")).attempt().await?;
                check(read.status == 200 && read.body["data"]["data"]["n"] == round, || format!("{read:?}"))
            })
            .await;
        }
    }
    let history =
        cluster.client(1).get(&format!("{}/history", config("prod.limits", "k"))).insist().await.expect(200);
    assert_eq!(history.data()["results"].as_array().map(Vec::len), Some(4), "each is in the history once");
    cluster.equal_digests().await;
}

#[tokio::test]
async fn change_requests_are_kept_by_a_restart_of_all_nodes() {
    let (mut cluster, ann, bob) = restricted("changes-restart").await;
    let root = cluster.client(1);
    let made = create(&root.with_credential(&ann), "make", 7).await;
    act(&root.with_credential(&bob), &made, "approve", "approve").await.expect(200);
    cluster.kill_all();
    cluster.start_all().await;
    cluster.ready().await;
    let node = cluster.client(2).with_credential(&ann);
    let shown = node.get(&format!("{CHANGES}{}", text(&made, "change_id"))).insist().await.expect(200);
    assert_eq!((&shown.data()["approved"], &shown.data()["edition"]), (&json!(true), &json!(1)));
    act(&node, &made, "apply", "apply").await.expect(200);
    cluster.equal_digests().await;
}
