//! `?dry_run=true`: the answer of a write, and nothing else of it.

use http::Method;
use serde_json::{Value, json};

use super::{DEFINITIONS, Run, on_leader_and_follower};
use crate::harness::{Answer, Call};

const DRY: [(&str, &str); 1] = [("dry_run", "true")];

/// Asserts that a dry run has the answer that the write has then.
fn same(tried: &Answer, done: &Answer) {
    assert_eq!((tried.status, &tried.body), (done.status, &done.body), "{tried:?} {done:?}");
    assert_eq!(tried.header("x-concord-dry-run"), if tried.status < 300 { "true" } else { "" }, "{tried:?}");
    // A refusal for a version names the one that there is.
    let etag = if tried.status == 412 { done.header("etag") } else { "" };
    assert_eq!((tried.header("etag"), tried.header("last-modified")), (etag, ""), "{tried:?}");
    assert_eq!(done.header("x-concord-dry-run"), "");
}

#[tokio::test]
async fn every_write_can_be_tried_and_stores_nothing() {
    on_leader_and_follower(async |run: Run| {
        let key = run.key("d");
        let item = format!("{DEFINITIONS}{key}");
        let configs = format!("{item}/config/");
        let config = format!("{item}/config/k");
        let get = async |path: &str| {
            let read = run.node.get(path).await;
            (read.status, read.body, read.headers.get("etag").cloned())
        };
        let both = async |path: &str, call: Call| {
            let before = get(path).await;
            let tried = call.clone().query(&DRY).await;
            assert_eq!(get(path).await, before, "nothing changed: {tried:?}");
            same(&tried, &call.query(&[("dry_run", "false")]).await);
            assert_ne!(get(path).await, before, "the write itself does");
        };
        let create =
            json!({"config_definition_key": key, "json_schema": {"properties": {"n": {"type": "integer"}}}});
        both(&item, run.node.post(DEFINITIONS, &create)).await;
        both(&item, run.node.put(&item, &json!({"indexes": ["n"]}))).await;
        both(&config, run.node.post(&configs, &json!({"config_key": "k", "data": {"n": 1}}))).await;
        both(&config, run.node.put(&config, &json!({"data": {"n": 2}}))).await;
        let merge = json!({"n": 3}).to_string();
        let patch = run.node.call(Method::PATCH, &config).text("application/merge-patch+json", &merge);
        both(&config, patch).await;
        both(&config, run.node.delete(&config)).await;
        both(&item, run.node.delete(&item)).await;
    })
    .await;
}

#[tokio::test]
async fn a_dry_run_lists_the_violations_of_all_variants_on_request() {
    on_leader_and_follower(async |run: Run| {
        let variants = json!([{"required": ["number"]}, {"required": ["iban", "bank"]}]);
        let schema = json!({"properties": {"pay": {"anyOf": variants}}});
        let d = run.define("d", &json!([]), &schema).await;
        let places = async |dry_run: &str| {
            let body = json!({"config_key": "k", "data": {"pay": {}}});
            let path = format!("{DEFINITIONS}{}/config/", d.key);
            let answer = run.node.post(&path, &body).query(&[("dry_run", dry_run)]).await;
            assert_eq!(answer.status, 422, "{answer:?}");
            let errors = answer.body["errors"].as_array().expect("a list").clone();
            errors.iter().map(|one| one["msg"].as_str().expect("a text").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(places("true").await, [r#""number" is a required property"#]);
        let all = places("all-violations").await;
        assert_eq!(all.len(), 4, "{all:?}");
        assert_eq!(all[3], r#""bank" is a required property (schema: `/properties/pay/anyOf/1/required`)"#);
        let wrong = run.node.delete(&format!("{DEFINITIONS}{}", d.key)).query(&[("dry_run", "all")]).await;
        assert_eq!(
            (wrong.status, &wrong.body["errors"][0]["loc"]),
            (422, &json!(["query", "dry_run"])),
            "{wrong:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn a_dry_run_is_refused_as_the_write_is() {
    on_leader_and_follower(async |run: Run| {
        let schema = json!({"properties": {"n": {"type": "integer"}}});
        let d = run.define("d", &json!([]), &schema).await;
        let first = d.create("k", &json!({"n": 1})).await.expect(201).tag();
        d.put("k", &json!({"n": 2})).await.expect(200);
        let large = json!({"s": "x".repeat(1 << 20)});
        let calls = [
            run.ask(&d.key, &json!([]), &Value::Null),
            run.ask(&run.key("e"), &json!(["x"]), &schema),
            d.create("k", &json!({"n": 1})),
            d.put("k", &json!({"n": "x"})),
            d.put("none", &json!({"n": 1})),
            d.put("k", &large),
            d.put("k", &json!({"n": 3})).header("if-match", &first),
            d.remove("k").header("if-match", &first),
            d.remove("none"),
            run.node.delete(&d.path()).query(&[("mode", "restrict")]),
            run.node
                .call(Method::PATCH, &d.config("k"))
                .text("application/json-patch+json", r#"[{"op":"remove","path":"/x"}]"#),
        ];
        for call in calls {
            let tried = call.clone().query(&DRY).await;
            assert!(tried.status >= 400, "{tried:?}");
            same(&tried, &call.await);
        }
    })
    .await;
}

#[tokio::test]
async fn a_dry_run_uses_up_no_idempotency_key_and_no_revision() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let id = run.key("id");
        let create = || d.create("k", &json!({"n": 1})).header("idempotency-key", &id);
        create().query(&DRY).await.expect(201);
        d.get("k").await.expect(404);
        create().await.expect(201);
        create().await.expect(201);
        // The remembered answer is not the one of the dry run.
        create().query(&DRY).await.refused(409, "conflict_error");
        for bad in ["", "yes", "TRUE", "1"] {
            d.put("k", &json!({})).query(&[("dry_run", bad)]).await.invalid();
        }
        assert_eq!(d.get("k").await.data()["data"], json!({"n": 1}));
        let admin = run.node.post("/api/v1/cluster/leader", &json!({"id": run.id}));
        admin.query(&DRY).await.invalid();
    })
    .await;
}
