//! `POST /api/v1/batch`: several writes, all or none, as one revision.

use serde_json::{Value, json};

use super::{DEFINITIONS, Run, on_leader_and_follower};
use crate::harness::{Call, Client};

const BATCH: &str = "/api/v1/batch";

fn batch(node: &Client, operations: &Value) -> Call {
    node.post(BATCH, &json!({"operations": operations}))
}

fn loc(answer: &crate::harness::Answer) -> Vec<Value> {
    let errors = answer.body["errors"].as_array().expect("`errors` is a list");
    errors.iter().map(|error| error["loc"].clone()).collect()
}

#[tokio::test]
async fn operations_are_one_revision_and_later_ones_see_earlier_ones() {
    on_leader_and_follower(async |run: Run| {
        let old = run.define_open("old").await;
        old.fill(&[("gone", json!({})), ("kept", json!({"n": 1, "m": 2}))]).await;
        let new = run.key("new");
        let schema = json!({"properties": {"n": {"type": "integer"}}});
        let operations = json!([
            {"op": "create_definition", "config_definition_key": new, "indexes": ["n"], "json_schema": schema},
            {"op": "create_config", "config_definition_key": new, "config_key": "a", "data": {"n": 1}},
            {"op": "put_config", "config_definition_key": new, "config_key": "a", "data": {"n": 2}},
            {"op": "patch_config", "config_definition_key": new, "config_key": "a", "patch": {"m": 7.0}},
            {"op": "patch_config", "config_definition_key": new, "config_key": "a", "patch": [{"op": "test", "path": "/n", "value": 2}]},
            {"op": "put_config", "config_definition_key": new, "config_key": "b", "data": {"n": 3}, "if_none_match": "*"},
            {"op": "set_indexes", "config_definition_key": old.key, "indexes": ["m"]},
            {"op": "delete_config", "config_definition_key": old.key, "config_key": "gone"},
            {"op": "patch_config", "config_definition_key": old.key, "config_key": "kept", "patch": {"n": null}},
        ]);
        let answer = batch(&run.node, &operations).await.expect(200);
        let data = answer.data();
        let revision = data["revision"].as_u64().expect("a revision");
        let results = data["results"].as_array().expect("results");
        let created: Vec<bool> = results.iter().map(|result| result["created"] == true).collect();
        assert_eq!(created, [true, true, false, false, false, true, false, false, false]);
        for (result, operation) in results.iter().zip(operations.as_array().unwrap()) {
            for name in ["op", "config_definition_key", "config_key"] {
                assert_eq!(result.get(name), operation.get(name));
            }
        }
        let tag = format!("\"{revision}\"");
        for node in run.all() {
            for path in [format!("{DEFINITIONS}{new}"), format!("{DEFINITIONS}{new}/config/a"),
                format!("{DEFINITIONS}{new}/config/b"), old.path(), old.config("kept")] {
                assert_eq!(node.get(&path).await.expect(200).tag(), tag, "{path}");
            }
        }
        let a = run.node.get(&format!("{DEFINITIONS}{new}/config/a")).await;
        assert_eq!(a.data()["data"], json!({"n": 2, "m": 7.0}));
        assert_eq!(old.found(&[("m", "2")]).await, ["kept"]);
        let found = run.node.get(&format!("{DEFINITIONS}{new}/config/")).query(&[("n", "3")]).await;
        assert_eq!(found.config_keys(), ["b"]);
    })
    .await;
}

#[tokio::test]
async fn one_operation_that_fails_undoes_all_and_is_named() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!([]), &json!({"properties": {"n": {"type": "integer"}}})).await;
        d.create("k", &json!({"n": 1})).await.expect(201);
        let tag = d.get("k").await.tag();
        let config = |op: &str, key: &str, more: Value| {
            let mut all = json!({"op": op, "config_definition_key": d.key, "config_key": key});
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            all
        };
        let good = config("put_config", "k", json!({"data": {"n": 5}}));
        let more = config("create_config", "new", json!({"data": {}}));
        for (bad, status, kind) in [
            (config("create_config", "k", json!({"data": {}})), 409, "conflict_error"),
            (config("put_config", "none", json!({"data": {}})), 404, "not_found_error"),
            (config("delete_config", "none", json!({})), 404, "not_found_error"),
            (config("put_config", "k", json!({"data": {}, "if_match": tag})), 412, "precondition_failed"),
            (
                config("put_config", "k", json!({"data": {}, "if_none_match": "*"})),
                412,
                "precondition_failed",
            ),
            (config("put_config", "k", json!({"data": {"n": "x"}})), 422, "validation_error"),
            (config("put_config", "a/b", json!({"data": {}})), 422, "validation_error"),
            (
                config("put_config", "k", json!({"data": {"s": "x".repeat(1 << 20)}})),
                413,
                "payload_too_large",
            ),
            (
                config("patch_config", "k", json!({"patch": [{"op": "test", "path": "/n", "value": 1}]})),
                409,
                "conflict_error",
            ),
            (
                config("patch_config", "k", json!({"patch": [{"op": "remove", "path": "/x"}]})),
                422,
                "validation_error",
            ),
            (json!({"op": "create_definition", "config_definition_key": d.key}), 409, "conflict_error"),
            (
                json!({"op": "delete_definition", "config_definition_key": d.key, "mode": "restrict"}),
                409,
                "conflict_error",
            ),
        ] {
            let answer = batch(&run.node, &json!([good, more, bad, good])).await.refused(status, kind);
            let places = loc(&answer);
            assert!(places[0][0] == "operations" && places[0][1] == 2, "{answer:?}");
            let read = d.get("k").await;
            assert_eq!((read.tag(), &read.data()["data"]), (tag.clone(), &json!({"n": 1})));
            assert_eq!(d.list(&[]).await.total(), 1);
        }
    })
    .await;
}

#[tokio::test]
async fn the_violations_of_all_operations_are_listed() {
    on_leader_and_follower(async |run: Run| {
        let key = run.key("d");
        let config = |name: &str, n: Value| {
            json!({"op": "create_config", "config_definition_key": key, "config_key": name, "data": {"n": n}})
        };
        let operations = json!([
            {"op": "create_definition", "config_definition_key": key, "json_schema": {"properties": {"n": {"type": "integer"}}}},
            config("a", json!("x")),
            config("b", json!(1)),
            config("c", json!([])),
        ]);
        let answer = batch(&run.node, &operations).await.invalid();
        assert_eq!(loc(&answer), [json!(["operations", 1, "data", "n"]), json!(["operations", 3, "data", "n"])]);
        run.node.get(&format!("{DEFINITIONS}{key}")).await.expect(404);
    })
    .await;
}

#[tokio::test]
async fn what_is_no_batch_is_refused() {
    on_leader_and_follower(async |run: Run| {
        run.node.post(BATCH, &json!({})).await.detail(&[(json!(["body", "operations"]), "missing")]);
        run.node
            .post(BATCH, &json!({"operations": {}}))
            .await
            .detail(&[(json!(["body", "operations"]), "list_type")]);
        batch(&run.node, &json!([7, {"op": "put_config", "config_definition_key": "d"}])).await.detail(&[
            (json!(["body", "operations", 0]), "model_attributes_type"),
            (json!(["body", "operations", 1, "config_key"]), "missing"),
            (json!(["body", "operations", 1, "data"]), "missing"),
        ]);
        let empty = batch(&run.node, &json!([])).await.invalid();
        assert_eq!(loc(&empty), [json!(["operations"])]);
        let one = json!({"op": "delete_config", "config_definition_key": "d", "config_key": "k"});
        let many = batch(&run.node, &json!(vec![&one; 1001])).await.invalid();
        assert!(many.text.contains("1000"), "{many:?}");
        batch(&run.node, &json!([one])).header("if-match", "*").await.invalid();
    })
    .await;
}

#[tokio::test]
async fn a_thousand_operations_are_one_batch() {
    on_leader_and_follower(async |run: Run| {
        let key = run.key("d");
        let mut operations = vec![json!({"op": "create_definition", "config_definition_key": key})];
        operations.extend((0..999).map(|n| {
            json!({"op": "create_config", "config_definition_key": key, "config_key": format!("k{n:03}"), "data": {"n": n}})
        }));
        let answer = batch(&run.node, &json!(operations)).await.expect(200);
        assert_eq!(answer.data()["results"].as_array().map(Vec::len), Some(1000));
        let configs = format!("{DEFINITIONS}{key}/config/");
        let listed = run.others[0].get(&configs).query(&[("limit", "1")]).await;
        assert_eq!(listed.total(), 999);
        // Sorting by time follows the order of the operations.
        let last = run.node.get(&configs).query(&[("sort_by", "created_at"), ("sort_order", "desc"), ("limit", "2")]).await;
        assert_eq!(last.config_keys(), ["k998", "k997"]);
    })
    .await;
}

#[tokio::test]
async fn a_batch_that_is_sent_again_is_answered_again() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({"l": []})).await.expect(201);
        let operations = json!([
            {"op": "patch_config", "config_definition_key": d.key, "config_key": "k", "patch": [{"op": "add", "path": "/l/-", "value": 1}]},
            {"op": "create_config", "config_definition_key": d.key, "config_key": "new", "data": {}},
        ]);
        let id = run.key("id");
        let first = batch(&run.node, &operations).header("idempotency-key", &id).await.expect(200);
        for node in run.all() {
            let again = batch(&node, &operations).header("idempotency-key", &id).await.expect(200);
            assert_eq!(again.body, first.body);
        }
        assert_eq!(d.get("k").await.data()["data"], json!({"l": [1]}));
        let tried = batch(&run.node, &operations).query(&[("dry_run", "true")]).await;
        tried.refused(409, "conflict_error");
        let patch = json!([operations[0]]);
        let tried = batch(&run.node, &patch).query(&[("dry_run", "true")]).await.expect(200);
        assert_eq!(tried.data()["revision"], Value::Null);
        assert_eq!(d.get("k").await.data()["data"], json!({"l": [1]}));
    })
    .await;
}

#[tokio::test]
async fn batches_that_patch_the_same_configs_are_all_done() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.fill(&[("a", json!({"l": []})), ("b", json!({"l": []}))]).await;
        let nodes = run.all();
        let add = async |n: usize| {
            let keys = if n.is_multiple_of(2) { ["a", "b"] } else { ["b", "a"] };
            let operations: Vec<Value> = keys
                .iter()
                .map(|key| json!({"op": "patch_config", "config_definition_key": d.key, "config_key": key, "patch": [{"op": "add", "path": "/l/-", "value": n}]}))
                .collect();
            batch(&nodes[n % 3], &json!(operations)).await.expect(200);
        };
        futures::future::join_all((0..30).map(add)).await;
        let lists = [d.get("a").await.data()["data"]["l"].clone(), d.get("b").await.data()["data"]["l"].clone()];
        assert_eq!(lists[0], lists[1], "one order for both");
        assert_eq!(lists[0].as_array().map(Vec::len), Some(30));
    })
    .await;
}
