//! `PATCH`: a part of a config's data, by merge patch and by JSON patch.

use std::{future::IntoFuture, time::Instant};

use http::Method;
use serde_json::{Value, json};

use super::{Defined, Run, on_leader_and_follower, raw_data};
use crate::harness::{Answer, Call, Client, DEADLINE};

const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json-patch+json";

fn patch(node: &Client, d: &Defined, key: &str, kind: &str, body: &Value) -> Call {
    node.call(Method::PATCH, &d.config(key)).text(kind, &body.to_string())
}

#[tokio::test]
async fn a_merge_patch_changes_what_it_names_and_answers_the_whole() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let text =
            r#"{"config_key":"k","data":{"b":123456789012345678901234567890,"a":{"x":1,"y":7.0},"c":-0.0}}"#;
        let created =
            run.node.call(Method::POST, &d.configs()).text("application/json", text).await.expect(201);
        let body = r#"{"a":{"x":null,"z":1e400},"b":null,"d":[null]}"#;
        let answer = run.node.call(Method::PATCH, &d.config("k")).text(MERGE, body).await.expect(200);
        let expected = r#"{"a":{"y":7.0,"z":1e+400},"c":-0.0,"d":[null]}"#;
        assert_eq!(raw_data(&answer, &[]), expected);
        assert_ne!(answer.tag(), created.tag());
        let read = d.get("k").await.expect(200);
        assert_eq!((raw_data(&read, &["data"]).as_str(), read.tag()), (expected, answer.tag()));
        assert_eq!(read.header("last-modified"), answer.header("last-modified"));
        // Both are texts of one length, so they sort as the times do.
        let time = |name: &str| read.data()[name].as_str().map(str::to_owned);
        assert!(time("modified_at") > time("created_at"), "{read:?}");
    })
    .await;
}

#[tokio::test]
async fn a_json_patch_is_done_whole_or_not_at_all() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({"n": 1, "l": [1, 2]})).await.expect(201);
        let good = json!([
            {"op": "test", "path": "/n", "value": 1.0},
            {"op": "add", "path": "/l/-", "value": 3},
            {"op": "move", "from": "/n", "path": "/m"},
        ]);
        let answer = patch(&run.node, &d, "k", JSON, &good).await.expect(200);
        assert_eq!(*answer.data(), json!({"l": [1, 2, 3], "m": 1}));
        let nowhere = json!([{"op": "add", "path": "/x", "value": 1}, {"op": "remove", "path": "/n"}]);
        let refused = patch(&run.node, &d, "k", JSON, &nowhere).await.invalid();
        assert_eq!(refused.body["errors"][0]["loc"], json!(["patch", 1]));
        // A value that differs, and one that is gone.
        for path in ["/m", "/n"] {
            let other =
                json!([{"op": "add", "path": "/x", "value": 1}, {"op": "test", "path": path, "value": 2}]);
            let refused = patch(&run.node, &d, "k", JSON, &other).await.refused(409, "conflict_error");
            assert_eq!(refused.body["errors"][0]["loc"], json!(["patch", 1]));
        }
        let read = d.get("k").await;
        assert_eq!((read.tag(), &read.data()["data"]), (answer.tag(), &json!({"l": [1, 2, 3], "m": 1})));
    })
    .await;
}

#[tokio::test]
async fn what_is_no_patch_is_refused() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({"n": 1})).await.expect(201);
        for kind in ["application/json", "text/plain", "application/patch+json"] {
            let answer = patch(&run.node, &d, "k", kind, &json!({"n": 2})).await;
            assert_eq!(answer.header("accept-patch"), format!("{MERGE}, {JSON}"));
            let answer = answer.detail(&[(json!(["body"]), "model_attributes_type")]);
            let msg = answer.body["detail"][0]["msg"].as_str().unwrap_or_default();
            assert!(msg.contains(MERGE) && msg.contains(JSON), "{kind}: {msg}");
        }
        patch(&run.node, &d, "k", MERGE, &json!([1]))
            .await
            .detail(&[(json!(["body"]), "model_attributes_type")]);
        patch(&run.node, &d, "k", JSON, &json!({})).await.detail(&[(json!(["body"]), "list_type")]);
        patch(&run.node, &d, "k", JSON, &json!([{"op": "add", "path": 1}, 2])).await.detail(&[
            (json!(["body", 0, "path"]), "string_type"),
            (json!(["body", 0, "value"]), "missing"),
            (json!(["body", 1]), "model_attributes_type"),
        ]);
        let unknown =
            patch(&run.node, &d, "k", JSON, &json!([{"op": "spell", "path": "/n"}])).await.invalid();
        assert_eq!(unknown.body["errors"][0]["loc"], json!(["patch", 0, "op"]));
        run.node
            .call(Method::PATCH, &d.config("k"))
            .text(MERGE, r#"{"a": x}"#)
            .await
            .detail(&[(json!(["body", 6]), "json_invalid")]);
        assert_eq!(d.get("k").await.data()["data"], json!({"n": 1}));
    })
    .await;
}

#[tokio::test]
async fn the_result_is_validated_against_the_schema_and_the_limits() {
    on_leader_and_follower(async |run: Run| {
        let schema = json!({"properties": {"n": {"type": "integer"}}, "required": ["n"]});
        let d = run.define("d", &json!(["n"]), &schema).await;
        d.create("k", &json!({"n": 1})).await.expect(201);
        let broken = patch(&run.node, &d, "k", MERGE, &json!({"n": "x"})).await.invalid();
        assert_eq!(broken.body["errors"][0]["loc"], json!(["data", "n"]));
        patch(&run.node, &d, "k", MERGE, &json!({"n": null})).await.invalid();
        let root = json!([{"op": "replace", "path": "", "value": [1]}]);
        patch(&run.node, &d, "k", JSON, &root).await.invalid();
        let reserved = json!([{"op": "add", "path": "/m", "value": {}},
                {"op": "add", "path": "/m/$serde_json::private::Number", "value": "1"}]);
        patch(&run.node, &d, "k", JSON, &reserved).await.invalid();
        let deeper = json!({"op": "copy", "from": "/a", "path": "/a/a"});
        let deep = [json!({"op": "add", "path": "/a", "value": {}})];
        let deep: Vec<Value> = deep.into_iter().chain(std::iter::repeat_n(deeper, 70)).collect();
        patch(&run.node, &d, "k", JSON, &json!(deep)).await.invalid();
        let large = json!({"s": "x".repeat(700_000)});
        patch(&run.node, &d, "k", MERGE, &large).await.expect(200);
        let twice = json!([{"op": "copy", "from": "/s", "path": "/t"}]);
        patch(&run.node, &d, "k", JSON, &twice).await.refused(413, "payload_too_large");
        patch(&run.node, &d, "k", MERGE, &json!({"n": 5, "s": null})).await.expect(200);
        assert_eq!(d.found(&[("n", "5")]).await, ["k"]);
        patch(&run.node, &d, "none", MERGE, &json!({"n": 1})).await.refused(404, "not_found_error");
        run.node.delete(&d.path()).await.expect(200);
        patch(&run.node, &d, "k", MERGE, &json!({"n": 1})).await.refused(404, "not_found_error");
    })
    .await;
}

#[tokio::test]
async fn preconditions_are_checked_before_the_patch() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let first = d.create("k", &json!({"n": 1})).await.expect(201).tag();
        let call = |tag: &str, body: &Value| patch(&run.node, &d, "k", JSON, body).header("if-match", tag);
        let second =
            call(&first, &json!([{"op": "replace", "path": "/n", "value": 2}])).await.expect(200).tag();
        let bad = json!([{"op": "remove", "path": "/none"}]);
        call(&first, &bad).await.refused(412, "precondition_failed");
        call(&second, &bad).await.invalid();
        call("*", &json!([])).await.expect(200);
        patch(&run.node, &d, "k", MERGE, &json!({})).header("if-none-match", "*").await.invalid();
    })
    .await;
}

#[tokio::test]
async fn a_patch_that_is_sent_again_is_answered_again() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({"l": []})).await.expect(201);
        let id = run.key("id");
        let add = json!([{"op": "add", "path": "/l/-", "value": 1}]);
        let first = patch(&run.node, &d, "k", JSON, &add).header("idempotency-key", &id).await.expect(200);
        assert_eq!(*first.data(), json!({"l": [1]}));
        for node in run.all() {
            let again = patch(&node, &d, "k", JSON, &add).header("idempotency-key", &id).await.expect(200);
            assert_eq!((&again.body, again.tag()), (&first.body, first.tag()));
        }
        // The same bytes as another kind of patch are another request.
        run.node
            .call(Method::PATCH, &d.config("k"))
            .text(MERGE, &add.to_string())
            .header("idempotency-key", &id)
            .await
            .expect(422);
        d.put("k", &json!({"l": [7]})).await.expect(200);
        for node in run.all() {
            let again = patch(&node, &d, "k", JSON, &add).header("idempotency-key", &id).await.expect(200);
            assert_eq!((again.tag(), &again.body["status"]), (first.tag(), &first.body["status"]));
            let shown = again.body.get("data");
            assert!(shown.is_none_or(|data| *data == json!({"l": [1]})), "never other content: {again:?}");
        }
        assert_eq!(d.get("k").await.data()["data"], json!({"l": [7]}));
    })
    .await;
}

/// Adds one; a `test` that finds another number is tried again with the number that is there.
async fn increment(node: &Client, d: &Defined) {
    let end = Instant::now() + DEADLINE;
    loop {
        let n = node.get(&d.config("k")).await.expect(200).data()["data"]["n"].as_u64().expect("a number");
        let body = json!([{"op": "test", "path": "/n", "value": n}, {"op": "replace", "path": "/n", "value": n + 1}]);
        let answer = patch(node, d, "k", JSON, &body).await;
        if answer.status == 200 {
            assert_eq!(*answer.data(), json!({"n": n + 1, "others": "stay"}));
            return;
        }
        answer.refused(409, "conflict_error");
        assert!(Instant::now() < end, "no turn before the deadline");
    }
}

#[tokio::test]
async fn four_clients_that_test_and_replace_end_at_eighty() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({"n": 0, "others": "stay"})).await.expect(201);
        let [a, b, c] = run.all();
        let add = async |node: Client| {
            for _ in 0..20 {
                increment(&node, &d).await;
            }
        };
        tokio::join!(add(a.clone()), add(b), add(c), add(a));
        assert_eq!(d.get("k").await.data()["data"]["n"], json!(80));
    })
    .await;
}

#[tokio::test]
async fn a_test_that_failed_is_remembered_alone_and_in_a_batch() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({"n": 1})).await.expect(201);
        let body = json!([{"op": "add", "path": "/x", "value": 1}, {"op": "test", "path": "/n", "value": 2}]);
        let operation =
            json!({"op": "patch_config", "config_definition_key": d.key, "config_key": "k", "patch": body});
        let calls = [
            patch(&run.node, &d, "k", JSON, &body),
            run.node.post("/api/v1/batch", &json!({"operations": [operation]})),
        ];
        let mut first = Vec::new();
        for (call, id) in calls.iter().zip(["alone", "batch"]) {
            let call = call.clone();
            let unkeyed = call.clone().await.refused(409, "conflict_error");
            let keyed = call.header("idempotency-key", &run.key(id)).await.refused(409, "conflict_error");
            assert_eq!(keyed.body, unkeyed.body, "the log says the same of it");
            first.push(keyed);
        }
        // Now it would hold.
        d.put("k", &json!({"n": 2})).await.expect(200);
        for ((call, id), first) in calls.into_iter().zip(["alone", "batch"]).zip(&first) {
            let again = call.header("idempotency-key", &run.key(id)).await;
            assert_eq!((again.status, &again.body), (first.status, &first.body));
        }
        assert_eq!(d.get("k").await.data()["data"], json!({"n": 2}));
    })
    .await;
}

#[tokio::test]
async fn patches_of_a_hot_config_are_all_done_during_plain_writes() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.create("k", &json!({"puts": 0})).await.expect(201);
        let nodes = run.all();
        let patches = (0..60_usize).map(|n| {
            let name = format!("p{n}");
            patch(&nodes[n % 3], &d, "k", MERGE, &json!({name: n})).into_future()
        });
        let puts = (0..20_usize)
            .map(|n| nodes[n % 3].put(&d.config("k"), &json!({"data": {"puts": n}})).into_future());
        let (patched, put) =
            tokio::join!(futures::future::join_all(patches), futures::future::join_all(puts));
        let failed = |answers: &[Answer]| answers.iter().filter(|answer| answer.status != 200).count();
        assert_eq!((failed(&patched), failed(&put)), (0, 0), "{patched:?} {put:?}");
        for (n, answer) in patched.iter().enumerate() {
            assert_eq!(answer.data()[format!("p{n}")], json!(n), "its own content");
        }
    })
    .await;
}
