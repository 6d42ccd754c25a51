//! `PUT …/schema`: another schema for a definition that has configs.

use serde_json::{Value, json};

use super::{Defined, Run, on_leader_and_follower, raw_data};
use crate::harness::{Answer, Call, answer::names};

const BREAKING: &str = "x-concord-breaking-configs";

fn integers() -> Value {
    json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
}

fn change(d: &Defined, schema: &Value) -> Call {
    d.node.put(&format!("{}/schema", d.path()), &json!({ "json_schema": schema }))
}

/// The schema as its own path shows it, and its entity tag.
async fn shown(d: &Defined) -> (Value, String) {
    let answer = d.node.get(&format!("{}/schema", d.path())).await.expect(200);
    assert_eq!(names(answer.data()), ["format_assertion", "json_schema"]);
    (answer.data()["json_schema"].clone(), answer.tag())
}

fn broken_keys(answer: &Answer) -> Vec<&str> {
    let breaking = answer.data()["breaking"].as_array().unwrap();
    breaking.iter().map(|one| one["config_key"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_schema_that_all_configs_fit_is_stored_and_asked_from_then_on() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["n"]), &Value::Null).await;
        assert_eq!(shown(&d).await.0, Value::Null);
        d.fill(&[("a", json!({"n": 1})), ("b", json!({"n": 2}))]).await;
        let (_, before) = shown(&d).await;

        let text = r#"{"json_schema": {"properties": {"n": {"maximum": 123456789012345678901234567890, "type": "integer"}}}}"#;
        let path = format!("{}/schema/", d.path());
        let put = d.node.call(http::Method::PUT, &path).text("application/json", text);
        let answer = put.await.expect(200);
        assert_eq!(names(answer.data()), ["config_definition_key", "json_schema"]);
        assert_eq!(answer.data()["config_definition_key"], d.key);
        let expected = r#"{"properties":{"n":{"maximum":123456789012345678901234567890,"type":"integer"}}}"#;
        assert_eq!(raw_data(&answer, &["json_schema"]), expected);
        assert_ne!(answer.tag(), before);
        for node in run.all() {
            let there = Defined { node, ..d.clone() };
            assert_eq!(shown(&there).await, (answer.data()["json_schema"].clone(), answer.tag()));
        }
        let record = d.node.get(&d.path()).await.expect(200);
        assert_eq!((record.tag(), raw_data(&record, &["json_schema"])), (answer.tag(), expected.into()));
        let members = ["config_definition_key", "created_at", "indexes", "json_schema", "modified_at"];
        assert_eq!(names(record.data()), members);

        d.put("a", &json!({"n": "text"})).await.invalid();
        d.create("c", &json!({"n": 0.5})).await.invalid();
        d.put("a", &json!({"n": 7})).await.expect(200);
        assert_eq!(d.found(&[("n", "7")]).await, ["a"]);

        change(&d, &Value::Null).await.expect(200);
        assert_eq!(shown(&d).await.0, Value::Null);
        d.create("c", &json!({"n": "text"})).await.expect(201);
    })
    .await;
}

#[tokio::test]
async fn a_schema_that_configs_break_is_refused_with_their_keys_and_number() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.fill(&[
            ("a", json!({"n": 1})),
            ("b", json!({"n": "two"})),
            ("c", json!({})),
            ("e", json!({"n": 3})),
        ])
        .await;
        let before = shown(&d).await;
        let answer = change(&d, &integers()).await.invalid();
        assert_eq!(answer.header(BREAKING), "2", "{answer:?}");
        let errors = answer.body["errors"].as_array().unwrap();
        assert!(errors[0]["msg"].as_str().unwrap().starts_with("2 of 4 configs"), "{answer:?}");
        let locs: Vec<&Value> = errors[1..].iter().map(|error| &error["loc"]).collect();
        assert_eq!(locs, [&json!(["config", "b"]), &json!(["config", "c"])]);
        assert!(errors[1]["msg"].as_str().unwrap().contains("data.n"), "{answer:?}");
        assert_eq!(shown(&d).await, before);

        d.put("b", &json!({"n": 2})).await.expect(200);
        d.remove("c").await.expect(200);
        change(&d, &integers()).await.expect(200);
    })
    .await;
}

#[tokio::test]
async fn a_dry_run_reports_and_stores_nothing() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.fill(&[("a", json!({"n": 1})), ("b", json!({"n": "two"}))]).await;
        let before = shown(&d).await;
        let dry = [("dry_run", "true")];
        let answer = change(&d, &integers()).query(&dry).await.expect(200);
        assert_eq!(names(answer.data()), ["breaking", "breaking_count", "checked", "scan"]);
        let data = answer.data();
        assert_eq!((&data["breaking_count"], &data["checked"]), (&json!(1), &json!(2)));
        assert_eq!((&data["scan"], answer.header(BREAKING)), (&json!("full"), "1"));
        assert_eq!(answer.header("x-concord-dry-run"), "true");
        assert_eq!(broken_keys(&answer), ["b"]);
        let error = &data["breaking"][0]["errors"][0];
        assert_eq!((names(error), &error["loc"]), (vec!["loc".into(), "msg".into()], &json!(["data", "n"])));

        let silent = change(&d, &json!({"title": "any"})).query(&dry).await.expect(200);
        let expected = json!({"breaking_count": 0, "breaking": [], "checked": 0, "scan": "skipped"});
        assert_eq!(*silent.data(), expected);
        change(&d, &json!({"type": "nothing"})).query(&dry).await.invalid();
        let stale = change(&d, &integers()).query(&dry).header("if-match", "\"1\"");
        stale.await.refused(412, "precondition_failed");
        change(&d, &integers()).query(&[("dry_run", "perhaps")]).await.invalid();
        assert_eq!(shown(&d).await, before);
    })
    .await;
}

#[tokio::test]
async fn force_stores_a_schema_that_configs_break_and_lists_them() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.fill(&[("a", json!({"n": 1})), ("b", json!({"n": "two"}))]).await;
        let answer = change(&d, &integers()).query(&[("policy", "force")]).await.expect(200);
        let members =
            ["breaking", "breaking_count", "checked", "config_definition_key", "json_schema", "scan"];
        assert_eq!(names(answer.data()), members);
        assert_eq!((broken_keys(&answer), answer.header(BREAKING)), (vec!["b"], "1"));
        assert_eq!(shown(&d).await, (integers(), answer.tag()));
        assert_eq!(d.get("b").await.expect(200).data()["data"], json!({"n": "two"}));
        d.put("b", &json!({"n": "three"})).await.invalid();
        // Equal to the stored one is not the same as fitting.
        change(&d, &integers()).await.invalid();
        d.put("b", &json!({"n": 3})).await.expect(200);
        change(&d, &integers()).await.expect(200);
        change(&d, &integers()).query(&[("policy", "please")]).await.invalid();
    })
    .await;
}

#[tokio::test]
async fn a_wrong_schema_is_refused_as_when_a_definition_is_made() {
    on_leader_and_follower(async |run: Run| {
        let schema = json!({"properties": {"o": {"properties": {"k": {}}}, "n": {}}});
        let d = run.define("d", &json!(["n", "o.k"]), &schema).await;
        let path = format!("{}/schema", d.path());
        let missing = d.node.put(&path, &json!({})).await;
        missing.detail(&[(json!(["body", "json_schema"]), "missing")]);
        change(&d, &json!([])).await.detail(&[(json!(["body", "json_schema"]), "dict_type")]);
        let wrong = change(&d, &json!({"type": "nothing"})).await.invalid();
        assert_eq!(wrong.body["errors"][0]["loc"][0], "json_schema");
        change(&d, &json!({"$ref": "http://127.0.0.1:1/x"})).await.invalid();
        // `o.k` does not resolve any more.
        let lost = change(&d, &json!({"properties": {"n": {}, "o": {"properties": {}}}})).await.invalid();
        assert_eq!(lost.body["errors"][0]["loc"], json!(["indexes", 1]));
        change(&d, &json!({"properties": {"n": {}}})).query(&[("policy", "force")]).await.invalid();
        assert_eq!(shown(&d).await.0, schema);
        let large = json!({"description": "x".repeat(2 << 20)});
        change(&d, &large).await.refused(413, "payload_too_large");

        let none = format!("{}-none/schema", d.path());
        let put = || d.node.put(&none, &json!({"json_schema": {"type": "nothing"}}));
        put().await.refused(404, "not_found_error");
        d.node.get(&none).await.refused(404, "not_found_error");
        d.node.delete(&path).await.refused(405, "method_not_allowed");
    })
    .await;
}

#[tokio::test]
async fn conditions_and_repeated_requests_hold_for_schemas() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        let (_, first) = shown(&d).await;
        let guarded = |tag: &str| change(&d, &integers()).header("if-match", tag);
        let second = guarded(&first).await.expect(200).tag();
        guarded(&first).await.refused(412, "precondition_failed");
        let with_key = || guarded(&second).header("idempotency-key", &run.key("id"));
        let one = with_key().await.expect(200);
        assert_eq!(with_key().await.expect(200).tag(), one.tag());
        d.node.get(&format!("{}/schema", d.path())).header("if-none-match", &one.tag()).await.expect(304);
    })
    .await;
}
