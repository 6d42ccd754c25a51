//! `Idempotency-Key`: a write that is sent again is answered again, by any node, and done once.

use http::Method;
use serde_json::json;

use super::{
    DEFINITIONS, Run,
    change_requests::{Restricted, act, at, create, refused},
    environments::path as environment,
    on_leader_and_follower,
};
use crate::{
    harness::{Answer, Call, Client},
    hostile::grants::{KEYS, create_key},
};

fn same(first: &Answer, again: &Answer) {
    assert_eq!(first.status, again.status, "{first:?} {again:?}");
    assert_eq!(first.body, again.body, "{first:?} {again:?}");
    for name in ["etag", "location", "last-modified"] {
        assert_eq!(first.header(name), again.header(name), "{first:?} {again:?}");
    }
}

#[tokio::test]
async fn a_create_that_is_sent_again_is_answered_the_same_by_every_node() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let id = run.key("create");
        let body = json!({"config_key": "k", "data": {"n": 1}});
        let first = run.node.post(&d.configs(), &body).header("idempotency-key", &id).await.expect(201);
        for node in run.all() {
            same(&first, &node.post(&d.configs(), &body).header("idempotency-key", &id).await);
        }
        run.node.post(&d.configs(), &body).await.refused(409, "conflict_error");
        assert_eq!(d.list(&[]).await.total(), 1);
    })
    .await;
}

#[tokio::test]
async fn every_write_takes_a_key() {
    on_leader_and_follower(async |run: Run| {
        let key = run.key("d");
        let item = format!("{DEFINITIONS}{key}");
        let configs = format!("{item}/config/");
        let config = format!("{item}/config/k");
        let [_, second, third] = run.all();
        let again = async |name: &str, call: &dyn Fn(&Client) -> Call| {
            let id = run.key(name);
            let first = call(&run.node).header("idempotency-key", &id).await;
            assert!(first.status < 300, "{first:?}");
            for node in [&second, &third] {
                same(&first, &call(node).header("idempotency-key", &id).await);
            }
        };
        again("1", &|node| node.post(DEFINITIONS, &json!({"config_definition_key": key}))).await;
        again("2", &|node| node.put(&item, &json!({"indexes": ["n"]}))).await;
        again("3", &|node| node.post(&configs, &json!({"config_key": "k", "data": {"n": 1}}))).await;
        again("4", &|node| node.put(&config, &json!({"data": {"n": 2}}))).await;
        again("5", &|node| node.delete(&config)).await;
        again("6", &|node| node.delete(&item)).await;
        run.node.get(&item).await.expect(404);
    })
    .await;
}

#[tokio::test]
async fn an_answer_is_remembered_even_when_the_record_has_changed_since() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({"n": 0})).await.expect(201);
        let put = |n: u64, id: &str| d.put("k", &json!({"n": n})).header("idempotency-key", &run.key(id));
        let first = put(1, "one").await.expect(200);
        put(2, "two").await.expect(200);
        same(&first, &put(1, "one").await);
        assert_eq!(d.get("k").await.data()["data"], json!({"n": 2}));
    })
    .await;
}

#[tokio::test]
async fn a_key_belongs_to_one_request() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let id = run.key("id");
        let create = |key: &str, n: u64| d.create(key, &json!({"n": n})).header("idempotency-key", &id);
        create("k", 1).await.expect(201);
        create("k", 2).await.invalid();
        create("l", 1).await.invalid();
        d.put("k", &json!({"n": 1})).header("idempotency-key", &id).await.invalid();
        d.remove("k").header("idempotency-key", &id).await.invalid();
        run.others[0].delete(&d.path()).header("idempotency-key", &id).await.invalid();
        create("k", 1).await.expect(201);
        assert_eq!(d.found(&[]).await, ["k"]);
    })
    .await;
}

#[tokio::test]
async fn a_precondition_belongs_to_the_request() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let tag = d.create("k", &json!({})).await.expect(201).tag();
        let put = |tag: &str| {
            d.put("k", &json!({"n": 1})).header("idempotency-key", &run.key("id")).header("if-match", tag)
        };
        let first = put(&tag).await.expect(200);
        same(&first, &put(&tag).await);
        put("\"1\"").await.invalid();
    })
    .await;
}

#[tokio::test]
async fn a_decided_rejection_is_remembered_too() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({"n": 0})).await.expect(201);
        let create = || d.create("k", &json!({"n": 1})).header("idempotency-key", &run.key("id"));
        let first = create().await.refused(409, "conflict_error");
        d.remove("k").await.expect(200);
        same(&first, &create().await);
        d.get("k").await.expect(404);
    })
    .await;
}

#[tokio::test]
async fn a_rejection_by_the_state_of_the_record_is_remembered_with_invalid_data_too() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!([]), &json!({"properties": {"n": {"type": "integer"}}})).await;
        let invalid = json!({"n": "x"});
        let with_key = |call: Call, name: &str| call.header("idempotency-key", &run.key(name));
        let put = || with_key(d.put("k", &invalid).header("if-match", "\"1\""), "absent");
        let absent = put().await.refused(404, "not_found_error");
        d.create("k", &json!({"n": 1})).await.expect(201);
        same(&absent, &put().await);
        let other = || with_key(d.put("k", &invalid).header("if-match", "\"1\""), "other");
        let other_first = other().await.expect(412);
        let create = || with_key(d.create("k", &invalid), "exists");
        let exists = create().await.refused(409, "conflict_error");
        d.remove("k").await.expect(200);
        same(&exists, &create().await);
        same(&other_first, &other().await);
        d.get("k").await.expect(404);
    })
    .await;
}

#[tokio::test]
async fn a_failed_precondition_is_remembered_for_keys_and_environments_and_not_for_change_requests() {
    on_leader_and_follower(async |run: Run| {
        let retried = async |name: &str, call: &dyn Fn(&Client) -> Call, end: &dyn Fn() -> Call| {
            let sent = |node: &Client| call(node).header("idempotency-key", &run.key(name));
            sent(&run.node).await.refused(412, "precondition_failed");
            end().await.expect(200);
            for node in run.all() {
                sent(&node).await.refused(412, "precondition_failed");
            }
        };
        let path = environment(&run.key("e"));
        let rules = json!({"freeze": []});
        run.node.put(&path, &rules).await.expect(201);
        let new = |node: &Client| node.put(&path, &rules).header("if-none-match", "*");
        retried("environment", &new, &|| run.node.delete(&path)).await;
        run.node.get(&path).await.expect(404);

        let grants = json!([{"verbs": ["read"], "definitions": ["*"]}]);
        let (id, _) = create_key(&run.node, &grants, &json!({})).await;
        let key = format!("{KEYS}{id}");
        let rename = |node: &Client| {
            node.call(Method::PATCH, &key).json(&json!({"name": "n"})).header("if-match", "\"1\"")
        };
        retried("key", &rename, &|| run.node.delete(&key)).await;

        // What a change request is refused, it may be allowed later.
        let env = Restricted::new(&run, 1).await;
        let (ann, bob) = (env.person(&run, "ann").await, env.person(&run, "bob").await);
        let made = create(&ann.node, &[env.put(2)]).await.expect(201);
        let apply = || {
            let sent =
                ann.node.post(&format!("{}/apply", at(&made)), &json!({"digest": made.data()["digest"]}));
            sent.header("idempotency-key", &run.key("apply"))
        };
        refused(apply().await, 409, "not_approved");
        act(&bob.node, &made, "approve").await.expect(200);
        assert_eq!(apply().await.expect(200).data()["phase"], "applied");
        env.end(&run).await;
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_was_not_decided_is_not_remembered() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!([]), &json!({"properties": {"n": {"type": "integer"}}})).await;
        let create =
            |n: serde_json::Value| d.create("k", &json!({"n": n})).header("idempotency-key", &run.key("id"));
        create(json!("x")).await.invalid();
        create(json!(1)).await.expect(201);
        assert_eq!(d.get("k").await.data()["data"], json!({"n": 1}));
    })
    .await;
}
