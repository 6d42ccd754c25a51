//! Schemas and unique paths that change within a batch, with the configs that must fit them; creates-or-replaces in a
//! batch.

use serde_json::{Value, json};

use super::{Defined, Run, on_leader_and_follower};
use crate::harness::{Answer, Call};

const INTEGER: &str = r#"{"properties": {"n": {"type": "integer"}}}"#;

fn operation(op: &str, d: &Defined, more: &Value) -> Value {
    let mut made = json!({"op": op, "config_definition_key": d.key});
    made.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    made
}

fn put(d: &Defined, name: &str, data: &Value) -> Value {
    operation("put_config", d, &json!({"config_key": name, "data": data}))
}

fn upsert(d: &Defined, name: &str, data: &Value) -> Value {
    operation("put_config", d, &json!({"config_key": name, "data": data, "upsert": true}))
}

fn schema(d: &Defined, text: &str) -> Value {
    let schema: Value = serde_json::from_str(text).unwrap();
    operation("set_schema", d, &json!({"json_schema": schema}))
}

fn unique(d: &Defined, paths: &[&str]) -> Value {
    operation("set_unique", d, &json!({"paths": paths}))
}

fn batch(d: &Defined, operations: &[Value]) -> Call {
    d.node.post("/api/v1/batch", &json!({"operations": operations}))
}

async fn stored(d: &Defined) -> (Value, Value) {
    let schema = d.node.get(&format!("{}/schema", d.path())).await.expect(200);
    let unique = d.node.get(&format!("{}/unique", d.path())).await.expect(200);
    (schema.data()["json_schema"].clone(), unique.data()["paths"].clone())
}

fn locs(answer: &Answer) -> Vec<Value> {
    answer.body["errors"].as_array().unwrap().iter().map(|error| error["loc"].clone()).collect()
}

fn of_record(answer: &Answer) -> u64 {
    answer.tag().trim_matches('"').parse().unwrap()
}

#[tokio::test]
async fn configs_and_what_they_must_satisfy_change_at_one_revision() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["n"]), &Value::Null).await;
        d.fill(&[("a", json!({"n": "1"})), ("b", json!({"n": 2}))]).await;
        let id = format!("{}-migrate", d.key);
        let migrate = [
            put(&d, "a", &json!({"n": 1})),
            schema(&d, INTEGER),
            unique(&d, &["n"]),
            put(&d, "b", &json!({"n": 3})),
        ];
        let sent = || batch(&d, &migrate).header("idempotency-key", &id);
        let answer = sent().await.expect(200);
        let ops: Vec<&Value> =
            answer.data()["results"].as_array().unwrap().iter().map(|result| &result["op"]).collect();
        assert_eq!(ops, ["put_config", "set_schema", "set_unique", "put_config"]);
        assert_eq!(
            answer.data()["results"][1],
            json!({"op": "set_schema", "config_definition_key": d.key, "created": false})
        );
        let revision = answer.data()["revision"].as_u64().unwrap();
        for node in run.all() {
            let d = Defined { node, ..d.clone() };
            let expected: Value = serde_json::from_str(INTEGER).unwrap();
            assert_eq!(stored(&d).await, (expected, json!(["n"])));
            for (name, n) in [("a", 1), ("b", 3)] {
                let found = d.get(name).await;
                assert_eq!((of_record(&found), &found.data()["data"]["n"]), (revision, &json!(n)));
            }
            assert_eq!(of_record(&d.node.get(&d.path()).await.expect(200)), revision);
        }
        // It holds from then on, and the same request is the same answer.
        d.create("c", &json!({"n": "x"})).await.invalid();
        d.create("c", &json!({"n": 3})).await.refused(409, "conflict_error");
        assert_eq!(sent().await.expect(200).body, answer.body);
        assert_eq!(d.found(&[("n", "3")]).await, ["b"]);
    })
    .await;
}

#[tokio::test]
async fn configs_that_do_not_fit_refuse_the_whole_batch_and_are_named() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["n"]), &Value::Null).await;
        let e = run.define_open("e").await;
        d.fill(&[("a", json!({"n": "1"})), ("b", json!({"n": "1"}))]).await;
        let before = of_record(&d.get("a").await);
        let other = put(&e, "x", &json!({}));
        let other = [other, schema(&d, INTEGER)];
        let created = operation("create_config", &e, &json!({"config_key": "x", "data": {}}));
        let with = |operations: &[Value]| [std::slice::from_ref(&created), operations].concat();
        batch(&d, &other).await.refused(404, "not_found_error");

        let broken = batch(&d, &with(&[put(&d, "a", &json!({"n": 5})), schema(&d, INTEGER)])).await.invalid();
        assert_eq!(broken.header("x-concord-breaking-configs"), "1");
        assert_eq!(
            locs(&broken),
            [json!(["operations", 2, "json_schema"]), json!(["operations", 2, "config", "b"])]
        );
        assert_eq!(broken.body["errors"][0]["code"], "config_breaks_schema");

        let same = batch(&d, &with(&[unique(&d, &["n"])])).await.refused(409, "conflict_error");
        assert_eq!(locs(&same), [json!(["operations", 1])]);
        let text = same.body["errors"][0]["msg"].as_str().unwrap();
        assert!(text.contains("`a` and `b`"), "{text}");

        // In `then` it is named there, and an operation after the change must fit it.
        let check = operation("check_config", &d, &json!({"config_key": "a", "absent": false}));
        let body = json!({"if": [check], "then": with(&[schema(&d, INTEGER)]), "else": []});
        let refused = d.node.post("/api/v1/batch", &body).await.invalid();
        assert_eq!(locs(&refused)[0], json!(["then", 1, "json_schema"]));
        let mend = [put(&d, "a", &json!({"n": 1})), put(&d, "b", &json!({"n": 2})), schema(&d, INTEGER)];
        let late = [&mend[..], &[put(&d, "b", &json!({"n": "2"}))]].concat();
        assert_eq!(locs(&batch(&d, &late).await.invalid()), [json!(["operations", 3, "data", "n"])]);
        let stale = operation("set_schema", &d, &json!({"json_schema": {}, "if_match": "\"1\""}));
        batch(&d, &with(&[stale])).await.refused(412, "precondition_failed");
        let missing = json!({"op": "set_unique", "config_definition_key": run.key("none"), "paths": []});
        batch(&d, &with(&[missing])).await.refused(404, "not_found_error");
        batch(&d, &with(&[unique(&d, &["m"])])).await.invalid();
        for wrong in [
            operation("set_schema", &d, &json!({"json_schema": {}, "policy": "perhaps"})),
            operation("set_schema", &d, &json!({"json_schema": {"type": 7}})),
            operation("set_schema", &d, &json!({"json_schema": {}, "if_none_match": "*"})),
        ] {
            batch(&d, &with(&[wrong])).await.invalid();
        }
        let at = json!(["body", "operations", 0]);
        let member = |name: &str| json!([at[0], at[1], at[2], name]);
        batch(&d, &[operation("set_schema", &d, &json!({}))])
            .await
            .detail(&[(member("json_schema"), "missing")]);
        batch(&d, &[operation("set_unique", &d, &json!({}))]).await.detail(&[(member("paths"), "missing")]);

        e.get("x").await.expect(404);
        assert_eq!(of_record(&d.get("a").await), before);
        assert_eq!(stored(&d).await, (Value::Null, json!([])));
        batch(&d, &mend).await.expect(200);
    })
    .await;
}

#[tokio::test]
async fn a_dry_run_checks_all_configs_and_stores_nothing() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["n"]), &Value::Null).await;
        d.fill(&[("a", json!({"n": "1"})), ("b", json!({"n": 2}))]).await;
        let dry = |operations: &[Value]| batch(&d, operations).query(&[("dry_run", "true")]);
        let refused = dry(&[schema(&d, INTEGER)]).await.invalid();
        assert_eq!(locs(&refused)[1], json!(["operations", 0, "config", "a"]));
        let mended = [put(&d, "a", &json!({"n": 2})), schema(&d, INTEGER)];
        let answer = dry(&mended).await.expect(200);
        assert_eq!(answer.data()["revision"], Value::Null);
        dry(&[&mended[..], &[unique(&d, &["n"])]].concat()).await.refused(409, "conflict_error");
        assert_eq!(stored(&d).await, (Value::Null, json!([])));
        assert_eq!(d.get("a").await.data()["data"]["n"], "1");
    })
    .await;
}

#[tokio::test]
async fn a_definition_its_configs_and_its_unique_paths_come_in_one_batch() {
    on_leader_and_follower(async |run: Run| {
        let model = run.define_open("model").await;
        let d = Defined { key: run.key("made"), ..model.clone() };
        let define = operation("create_definition", &d, &json!({"indexes": ["n"]}));
        let with = |n: i64| {
            vec![
                define.clone(),
                upsert(&d, "a", &json!({"n": 1})),
                upsert(&d, "b", &json!({"n": n})),
                unique(&d, &["n"]),
            ]
        };
        let refused = batch(&d, &with(1)).await.refused(409, "conflict_error");
        assert_eq!(locs(&refused), [json!(["operations", 3])]);
        let answer = batch(&d, &with(2)).await.expect(200);
        let created: Vec<&Value> =
            answer.data()["results"].as_array().unwrap().iter().map(|result| &result["created"]).collect();
        assert_eq!(created, [true, true, true, false]);
        d.create("c", &json!({"n": 2})).await.refused(409, "conflict_error");
        // Other indexes and unique paths, together.
        let indexes = operation("set_indexes", &d, &json!({"indexes": ["n", "m"]}));
        batch(&d, &[indexes.clone(), unique(&d, &["m"])]).await.expect(200);
        let fewer = operation("set_indexes", &d, &json!({"indexes": ["n"]}));
        batch(&d, std::slice::from_ref(&fewer)).await.refused(409, "conflict_error");
        batch(&d, &[unique(&d, &[]), fewer]).await.expect(200);
    })
    .await;
}

#[tokio::test]
async fn a_schema_that_is_forced_is_stored_and_the_operations_after_it_fit_it() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["n"]), &Value::Null).await;
        d.fill(&[("a", json!({"n": "1"})), ("b", json!({"n": "2"}))]).await;
        let mut force = schema(&d, INTEGER);
        force["policy"] = json!("force");
        let answer = batch(&d, &[force.clone(), put(&d, "a", &json!({"n": 1}))]).await.expect(200);
        assert_eq!(answer.data()["results"][0]["op"], "set_schema");
        d.put("b", &json!({"n": "3"})).await.invalid();
        assert_eq!(d.get("b").await.data()["data"]["n"], "2");
        batch(&d, &[put(&d, "b", &json!({"n": 2})), schema(&d, INTEGER)]).await.expect(200);
    })
    .await;
}

#[tokio::test]
async fn a_batch_creates_or_replaces_and_says_which() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        d.fill(&[("a", json!({"n": 1}))]).await;
        let created = |answer: &Answer| -> Vec<Value> {
            answer.data()["results"]
                .as_array()
                .unwrap()
                .iter()
                .map(|result| result["created"].clone())
                .collect()
        };
        let both = [upsert(&d, "a", &json!({"n": 2})), upsert(&d, "b", &json!({"n": 3}))];
        let dry = batch(&d, &both).query(&[("dry_run", "true")]).await.expect(200);
        assert_eq!(created(&dry), [false, true]);
        let sent = || batch(&d, &both).header("idempotency-key", &format!("{}-both", d.key));
        let answer = sent().await.expect(200);
        assert_eq!(created(&answer), [false, true]);
        // The answer to the same request does not depend on what came after it.
        d.put("b", &json!({"n": 4})).await.expect(200);
        d.remove("a").await.expect(200);
        for _ in 0..2 {
            assert_eq!(created(&sent().await.expect(200)), [false, true]);
        }
        let remove = |name: &str| operation("delete_config", &d, &json!({"config_key": name}));
        let chain = [
            upsert(&d, "a", &json!({"n": 1})),
            upsert(&d, "a", &json!({"n": 2})),
            remove("a"),
            upsert(&d, "a", &json!({"n": 3})),
            upsert(&d, "b", &json!({"n": 1})),
            remove("b"),
        ];
        assert_eq!(created(&batch(&d, &chain).await.expect(200)), [true, false, false, true, false, false]);
        assert_eq!(d.get("a").await.data()["data"]["n"], 3);
        // A condition says more, and wins.
        let mut guarded = upsert(&d, "new", &json!({}));
        guarded["if_match"] = json!("*");
        batch(&d, &[guarded]).await.refused(404, "not_found_error");
        let wrong = operation("put_config", &d, &json!({"config_key": "a", "data": {}, "upsert": "yes"}));
        batch(&d, &[wrong]).await.detail(&[(json!(["body", "operations", 0, "upsert"]), "bool_type")]);
    })
    .await;
}
