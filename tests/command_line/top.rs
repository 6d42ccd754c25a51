//! `concord top`: which access key or definition uses the cluster most.

use serde_json::{Value, json};

use super::User;
use crate::harness::{
    Cluster,
    load::{config, define, set},
};

/// The rows that a command prints as JSON.
fn rows(text: &str) -> Vec<Value> {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Makes an access key: its id and its secret.
async fn make_key(cluster: &Cluster, name: &str) -> (Value, String) {
    let grants = json!({"name": name, "grants": [{"verbs": ["read", "write"], "definitions": ["*"]}]});
    let made = cluster.client(1).post("/api/v1/api_key", &grants).await.expect(201);
    (made.data()["key_id"].clone(), made.data()["api_key"].as_str().expect("its text").to_owned())
}

#[tokio::test]
async fn one_command_finds_the_noisy_key() {
    let mut cluster = Cluster::start("top-keys").await;
    let (user, leader) = (User::of(&cluster), cluster.leader().await);
    let [one, _] = cluster.followers().await;
    let root = cluster.client(leader);
    for definition in ["small", "large"] {
        define(&root, definition).await;
    }
    set(&root, "small", "k", &json!({})).await;
    let (quiet, noisy) = (make_key(&cluster, "quiet").await, make_key(&cluster, "noisy").await);
    let text = "x".repeat(10_000);
    // On two nodes: each counts what it has received.
    for (at, first) in [(leader, 0), (one, 20)] {
        let [noisy, quiet] = [&noisy, &quiet].map(|(_, key)| cluster.client(at).with_credential(key));
        let put = |n: u32| json!({"op": "put_config", "config_definition_key": "large", "config_key": format!("k{n}"), "data": {"text": text}, "upsert": true});
        let operations: Vec<Value> = (first..first + 20).map(put).collect();
        noisy.post("/api/v1/batch", &json!({"operations": operations})).await.expect(200);
        for _ in 0..30 {
            let listed = noisy.get(&config("large", "")).query(&[("limit", "50")]).await.expect(200);
            assert!(listed.body["data"]["results"].as_array().is_some_and(|all| all.len() >= 20));
        }
        quiet.get(&config("small", "k")).await.expect(200);
        quiet.get(&config("absent", "k")).await.expect(404);
    }

    let found = rows(&user.ok(&["top", "keys", "--by", "out", "--seconds", "0", "-o", "json"]).await);
    let of =
        |id: &Value| found.iter().find(|row| row["key_id"] == *id).unwrap_or_else(|| panic!("{found:?}"));
    let (quiet, noisy) = (of(&quiet.0), of(&noisy.0));
    assert_eq!(found[0], *noisy, "{found:?}");
    assert_eq!((&noisy["name"], &noisy["requests"]), (&json!("noisy"), &json!(62)), "{noisy}");
    assert_eq!(noisy["records_written"], json!(40), "{noisy}");
    assert!(noisy["records_read"].as_u64() >= Some(30 * 20 + 30 * 40), "{noisy}");
    assert!(noisy["bytes_in"].as_u64() >= Some(400_000), "{noisy}");
    assert!(noisy["bytes_out"].as_u64() >= Some(30 * 600_000), "{noisy}");
    assert!(noisy["busy_us"].as_u64() > quiet["busy_us"].as_u64(), "{noisy} {quiet}");
    assert_eq!((&quiet["requests"], &quiet["records_read"]), (&json!(4), &json!(2)), "{quiet}");

    // A node that is gone is named, and the others are counted.
    cluster.node(one).kill();
    let done = user.run(&["top", "keys", "--seconds", "0"]).await;
    assert_eq!(done.code, 1, "{}", done.err);
    assert!(done.out.contains("noisy") && done.err.matches("not counted: http://").count() == 1, "{done:?}");
    // So is a member that the operator has not named: it gets no key.
    let alone = user.with("CONCORD_URL", &format!("http://{}", cluster.node(leader).api_addr()));
    let done = alone.run(&["top", "--seconds", "0"]).await;
    let unnamed = done.err.matches("does not name its address").count();
    assert_eq!((done.code, unnamed), (1, 2), "{done:?}");
}

#[tokio::test]
async fn one_command_finds_the_growing_definition() {
    let cluster = Cluster::start("top-definitions").await;
    let user = User::of(&cluster);
    let root = cluster.client(cluster.leader().await);
    for definition in ["large", "grows"] {
        define(&root, definition).await;
    }
    set(&root, "large", "k", &json!({"text": "x".repeat(500_000)})).await;
    set(&root, "grows", "k", &json!({"text": ""})).await;
    // The writer ends with the command, however long that takes.
    let growing = async {
        for n in 0.. {
            set(&root, "grows", &format!("k{n}"), &json!({"text": "x".repeat(500)})).await;
            root.get(&config("grows", "k")).await.expect(200);
        }
    };
    let command = user.ok(&["top", "definitions", "-o", "json"]);
    let found = tokio::select! {
        text = command => rows(&text),
        () = growing => panic!("it never ends"),
    };
    let (first, second) = (&found[0], &found[1]);
    assert_eq!(first["config_definition_key"], json!("grows"), "{found:?}");
    assert!(
        first["grown_bytes"].as_u64() >= Some(500) && first["records_written"].as_u64() > Some(0),
        "{first}"
    );
    assert_eq!(
        (&second["config_definition_key"], &second["grown_bytes"], &second["records_written"]),
        (&json!("large"), &json!(0), &json!(0)),
        "{found:?}"
    );
    // What is large is another question.
    let stored = rows(&user.ok(&["top", "definitions", "--seconds", "0", "-o", "json"]).await);
    assert_eq!(stored[0]["config_definition_key"], json!("large"), "{stored:?}");
    assert!(stored[0]["stored_bytes"].as_u64() >= Some(500_000), "{stored:?}");
    assert_eq!(stored[0]["records_written"], json!(2), "the definition and its config: {stored:?}");
    assert!(!stored.iter().any(|row| row["config_definition_key"] == ""), "{stored:?}");
    let refused = user.run(&["top", "definitions", "--by", "grown", "--seconds", "0"]).await;
    assert!(refused.code == 2 && refused.err.contains("--seconds"), "{refused:?}");
    let page = root.get("/metrics").await.expect(200).text;
    let sample = "concord_definition_stored_bytes{definition=\"grows\"}";
    assert!(
        page.contains(sample) && page.contains("concord_usage_busy_seconds_total{by=\"key\",name="),
        "{page}"
    );
}
