//! Side doors of restricted environments that need a cluster of their own: rules of `default`, and settings of nodes.

use http::Method;
use serde_json::{Value, json};

use super::grants::{create_key, in_seconds, known};
use crate::harness::{
    Answer, Client, Cluster, Options, check, eventually,
    load::{config, define, definition, set},
};

const CHANGES: &str = "/api/v1/change_request/";
const DEFAULT: &str = "/api/v1/environment/default";

fn code(answer: &Answer) -> &str {
    answer.body["errors"][0]["code"].as_str().unwrap_or_default()
}

#[track_caller]
fn refused(answer: &Answer, expected: &str) {
    assert_eq!((answer.status, code(answer)), (409, expected), "{answer:?}");
}

/// A key that may do everything of these definitions; of a person, whom the root key attests.
async fn person(cluster: &Cluster, name: &str, definitions: &[&str]) -> Client {
    let verbs = ["read", "write", "define", "delete", "approve"];
    let grants = json!([{ "verbs": verbs, "definitions": definitions }]);
    let (_, key) = create_key(&cluster.client(1), &grants, &json!({ "person": name })).await;
    known(&cluster.clients(), &key, true).await;
    cluster.client(1).with_credential(&key)
}

async fn act(node: &Client, change: &Answer, action: &str) -> Answer {
    let path = format!("{CHANGES}{}/{action}", change.data()["change_id"].as_str().expect("an id"));
    node.post(&path, &json!({ "digest": change.data()["digest"] })).insist().await
}

async fn create(node: &Client, operation: &Value) -> Answer {
    node.post(CHANGES, &json!({"title": "a change", "operations": [operation]})).insist().await.expect(201)
}

#[tokio::test]
async fn nobody_leaves_the_rules_of_default_by_an_environment_of_their_own() {
    let cluster = Cluster::start("hostile-default").await;
    let root = cluster.client(1);
    define(&root, "foo.limits").await;
    define(&root, "plain").await;
    let owner = person(&cluster, "ann", &["foo.*"]).await;
    person(&cluster, "bob", &["*"]).await;
    person(&cluster, "eve", &["*"]).await;
    // A freeze that has not begun.
    let planned = json!({"from": in_seconds(3600), "until": in_seconds(7200), "reason": "the weekend"});
    root.put(DEFAULT, &json!({ "freeze": [planned] })).insist().await.expect(201);
    let own = |body: Value| owner.put("/api/v1/environment/foo", &body);
    for body in [
        json!({"freeze": []}),
        json!({"freeze": [{"from": in_seconds(3600), "until": in_seconds(7100), "reason": "the weekend"}]}),
    ] {
        let left = own(body).insist().await;
        refused(&left, "environment_frozen");
        let msg = left.body["errors"][0]["msg"].as_str().expect("a text");
        assert!(msg.contains("has not begun") && left.headers.get("retry-after").is_none(), "{left:?}");
    }
    let shown = root.get(DEFAULT).insist().await.expect(200).data()["freeze"][0].clone();
    let kept = json!({"from": shown["from"], "until": shown["until"], "reason": "the same"});
    own(json!({ "freeze": [kept] })).insist().await.expect(201);
    root.delete("/api/v1/environment/foo").insist().await.expect(200);
    // One that holds now.
    let now = json!({"freeze": [{"until": in_seconds(3600), "reason": "an incident"}]});
    root.put(DEFAULT, &now).insist().await.expect(200);
    refused(&own(json!({"freeze": []})).insist().await, "environment_frozen");
    refused(&root.put(&config("plain", "k"), &json!({"data": {}})).insist().await, "environment_frozen");
    // And a restriction: also of definitions without a dot, and of environments that nobody has made.
    root.put(DEFAULT, &json!({"direct": "refuse", "approvals": 1, "freeze": []})).insist().await.expect(200);
    for body in [json!({"freeze": []}), json!({"direct": "allow", "freeze": []})] {
        refused(&own(body).insist().await, "change_required");
    }
    for key in ["plain", "foo.limits"] {
        let new = root.put(&config(key, "k"), &json!({"data": {}})).query(&[("upsert", "true")]);
        refused(&new.insist().await, "change_required");
    }
    let made =
        root.post("/api/v1/config_definition/", &json!({"config_definition_key": "bar.x", "indexes": []}));
    refused(&made.insist().await, "change_required");
    refused(&root.delete(DEFAULT).insist().await, "change_required");
    cluster.equal_digests().await;
}

#[tokio::test]
async fn deletions_elsewhere_do_not_make_one_of_a_restricted_environment_final() {
    let options = Options::default().with("CONCORD_DELETED_BYTES", "200000");
    let cluster = Cluster::start_with("hostile-evicted", &options).await;
    let root = cluster.client(1);
    define(&root, "prod.limits").await;
    set(&root, "prod.limits", "k", &json!({"n": 1})).await;
    let (ann, bob) = (person(&cluster, "ann", &["prod.*"]).await, person(&cluster, "bob", &["prod.*"]).await);
    let rules = json!({"direct": "refuse", "approvals": 1, "freeze": []});
    root.put("/api/v1/environment/prod", &rules).insist().await.expect(201);
    let delete = json!({"op": "delete_definition", "config_definition_key": "prod.limits"});
    let change = create(&ann, &delete).await;
    act(&bob, &change, "approve").await.expect(200);
    act(&ann, &change, "apply").await.expect(200);
    root.get(&definition("prod.limits")).insist().await.expect(404);
    // Somebody who may delete in `dev` deletes as much as is kept, some times over.
    let dev = person(&cluster, "dev", &["dev.*"]).await;
    let large = json!({ "text": "x".repeat(30_000) });
    for n in 0..12 {
        let key = format!("dev.d{n}");
        define(&root, &key).await;
        set(&root, &key, "k", &large).await;
        dev.delete(&definition(&key)).insist().await.expect(200);
    }
    let deleted = dev.get("/api/v1/deleted_definition/").insist().await.expect(200);
    let count = deleted.data()["results"].as_array().map_or(0, Vec::len);
    assert!((1..12).contains(&count), "the first of them made room: {deleted:?}");
    let undelete = json!({"op": "undelete_definition", "config_definition_key": "prod.limits"});
    let change = create(&ann, &undelete).await;
    act(&bob, &change, "approve").await.expect(200);
    act(&ann, &change, "apply").await.expect(200);
    let read = root.get(&config("prod.limits", "k")).insist().await.expect(200);
    assert_eq!(read.data()["data"], json!({"n": 1}));
    cluster.equal_digests().await;
}

#[tokio::test]
async fn a_freeze_is_added_while_the_disk_is_full() {
    // No volume has so much free space.
    let options = Options::default().with("CONCORD_DISK_RESERVE_BYTES", "0");
    let mut cluster = Cluster::start_with("hostile-full-freeze", &options).await;
    let root = cluster.client(1);
    define(&root, "prod.limits").await;
    set(&root, "prod.limits", "k", &json!({"n": 1})).await;
    let directory = cluster.root().to_owned();
    let free = || {
        let output = std::process::Command::new("stat").args(["-f", "-c", "%a %S"]).arg(&directory).output();
        let text = String::from_utf8(output.expect("there is `stat`").stdout).expect("numbers");
        text.split_whitespace().map(|number| number.parse::<u64>().expect("a number")).product::<u64>()
    };
    // Less than the reserve is free, and more than its half.
    let restart = async |cluster: &mut Cluster, reserve: u64| {
        cluster.kill_all();
        for node in &mut cluster.nodes {
            node.overrides.push(("CONCORD_DISK_RESERVE_BYTES".into(), reserve.to_string()));
        }
        cluster.start_all().await;
        cluster.ready().await;
    };
    restart(&mut cluster, free() / 4 * 5).await;
    let put = || root.put(&config("prod.limits", "k"), &json!({"data": {"n": 2}}));
    eventually("writes are refused", async || {
        let answer = put().attempt().await?;
        check(answer.status == 507, || format!("{answer:?}"))
    })
    .await;
    let freeze = json!({"freeze": [{"until": in_seconds(3600), "reason": "the disk is full"}]});
    let frozen = root.call(Method::PUT, "/api/v1/environment/prod").json(&freeze).insist().await.expect(201);
    root.put("/api/v1/environment/prod", &json!({"freeze": [], "approvals": 0})).insist().await.expect(507);
    let read = root.get("/api/v1/environment/prod").insist().await.expect(200);
    assert_eq!(read.data()["freeze"], frozen.data()["freeze"]);
    refused(&root.delete(&config("prod.limits", "k")).insist().await, "environment_frozen");
    root.delete("/api/v1/environment/prod").insist().await.expect(200);
    root.delete(&config("prod.limits", "k")).insist().await.expect(200);
    restart(&mut cluster, free() * 3).await;
    eventually("a freeze is refused, too", async || {
        let answer = root.put("/api/v1/environment/prod", &freeze).attempt().await?;
        check(answer.status == 507, || format!("{answer:?}"))
    })
    .await;
}
