//! The rules of `indexes`, at creation and at an update, and that configs are indexed anew.

use serde_json::{Value, json};

use super::{Run, on_leader_and_follower};

#[tokio::test]
async fn an_index_must_resolve_through_the_properties() {
    on_leader_and_follower(async |run: Run| {
        let schema = json!({"type": "object", "properties": {
            "a": {"type": "object", "properties": {"b": {"type": "string"}}}, "c": {"type": "integer"}}});
        let key = run.key("d");
        for wrong in ["x", "a.x", "c.d", "b", "", ".", "a.", ".a", "a..b", "properties.a", "A"] {
            run.ask(&key, &json!(["c", wrong]), &schema).await.invalid();
        }
        let d = run.define("d", &json!(["a", "a.b", "c"]), &schema).await;
        run.node.put(&d.path(), &json!({"indexes": ["a.x"]})).await.invalid();
        assert_eq!(run.node.get(&d.path()).await.data()["indexes"], json!(["a", "a.b", "c"]));
    })
    .await;
}

#[tokio::test]
async fn a_violation_of_an_index_names_its_location() {
    on_leader_and_follower(async |run: Run| {
        let schema = json!({"properties": {"a": {}}});
        let answer = run.ask(&run.key("d"), &json!(["a", "x", "y"]), &schema).await.invalid();
        let errors = answer.body["errors"].as_array().unwrap();
        assert_eq!(errors.len(), 2, "all wrong ones are listed: {answer:?}");
    })
    .await;
}

#[tokio::test]
async fn an_index_resolves_through_local_references_and_all_of() {
    on_leader_and_follower(async |run: Run| {
        let schema = json!({
            "$defs": {"address": {"properties": {"city": {"type": "string"}}}},
            "properties": {"home": {"$ref": "#/$defs/address"}},
            "allOf": [{"properties": {"work": {"allOf": [{"$ref": "#/$defs/address"}]}}}]
        });
        let d = run.define("d", &json!(["home.city", "work.city"]), &schema).await;
        d.create("k", &json!({"home": {"city": "Bonn"}, "work": {"city": "Köln"}})).await.expect(201);
        assert_eq!(d.found(&[("home.city", "Bonn"), ("work.city", "Köln")]).await, ["k"]);
        run.ask(&run.key("e"), &json!(["home.street"]), &schema).await.invalid();
    })
    .await;
}

#[tokio::test]
async fn without_a_schema_any_path_may_be_indexed() {
    on_leader_and_follower(async |run: Run| {
        for (name, schema) in [("none", Value::Null), ("empty", json!({}))] {
            let d = run.define(name, &json!(["any.path", "x"]), &schema).await;
            d.create("k", &json!({"any": {"path": 1}})).await.expect(201);
            assert_eq!(d.found(&[("any.path", "1")]).await, ["k"]);
        }
    })
    .await;
}

#[tokio::test]
async fn indexes_are_unique_and_at_most_sixty_four() {
    on_leader_and_follower(async |run: Run| {
        let many = |count: usize| json!((0..count).map(|n| format!("f{n}")).collect::<Vec<_>>());
        run.ask(&run.key("d"), &json!(["a", "b", "a"]), &Value::Null).await.invalid();
        run.ask(&run.key("d"), &many(65), &Value::Null).await.invalid();
        let d = run.define("d", &many(64), &Value::Null).await;
        run.node.put(&d.path(), &json!({"indexes": ["a", "a"]})).await.invalid();
        run.node.put(&d.path(), &many(65)).await.expect(422);
        run.node.put(&d.path(), &json!({"indexes": many(65)})).await.invalid();
        run.node.put(&d.path(), &json!({"indexes": many(64)})).await.expect(200);
    })
    .await;
}

#[tokio::test]
async fn new_indexes_find_what_was_there_before() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["a"]), &Value::Null).await;
        for n in 0..20 {
            d.create(&format!("k{n:02}"), &json!({"a": n, "b": n % 2})).await.expect(201);
        }
        d.list(&[("b", "1")]).await.invalid();
        run.node.put(&d.path(), &json!({"indexes": ["b"]})).await.expect(200);
        assert_eq!(d.list(&[("b", "1")]).await.total(), 10);
        assert_eq!(d.list(&[("b", "1"), ("limit", "3"), ("sort_by", "b")]).await.config_keys().len(), 3);
        d.list(&[("a", "1")]).await.invalid();
        run.node.put(&d.path(), &json!({"indexes": []})).await.expect(200);
        d.list(&[("b", "1")]).await.invalid();
        assert_eq!(d.list(&[]).await.total(), 20);
        run.node.put(&d.path(), &json!({"indexes": ["b", "a"]})).await.expect(200);
        assert_eq!(d.found(&[("a", "7"), ("b", "1")]).await, ["k07"]);
    })
    .await;
}

#[tokio::test]
async fn the_indexes_of_a_definition_are_shown_with_their_state() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["b", r"a\.x"]), &Value::Null).await;
        d.fill(&[("one", json!({"b": 1})), ("two", json!({"b": 2}))]).await;
        let path = format!("{}/indexes", d.path());
        let ready = |path: &str| json!({"path": path, "state": "ready", "done": 2, "of": 2});
        for path in [path.clone(), format!("{path}/")] {
            let answer = run.node.get(&path).await.expect(200);
            assert_eq!(answer.data(), &json!({"indexes": [ready("b"), ready(r"a\.x")]}));
            assert_eq!(answer.tag(), run.node.get(&d.path()).await.tag());
            assert_eq!(answer.header("x-concord-index-building"), "", "{answer:?}");
        }
        let changed = run.node.put(&d.path(), &json!({"indexes": ["c", "b"]})).await.expect(200);
        assert_eq!(changed.header("x-concord-index-building"), "", "few configs are indexed at once");
        let answer = run.node.get(&path).await.expect(200);
        assert_eq!(answer.data(), &json!({"indexes": [ready("c"), ready("b")]}));
        run.node.get(&format!("{}/indexes", crate::harness::load::definition("none"))).await.expect(404);
        run.node.post(&path, &json!({})).await.expect(405);
    })
    .await;
}

#[tokio::test]
async fn paths_may_come_go_and_change_places_any_number_of_times() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["a", "b"]), &Value::Null).await;
        for n in 0..12 {
            d.create(&format!("k{n:02}"), &json!({"a": n, "b": n % 2, "c": [n, 99]})).await.expect(201);
        }
        for indexes in [json!(["b", "a"]), json!(["c", "a"]), json!(["a", "b", "c"]), json!(["b", "c", "a"])]
        {
            run.node.put(&d.path(), &json!({"indexes": indexes})).await.expect(200);
            d.put("k07", &json!({"a": 7, "b": 1, "c": [7, 99]})).await.expect(200);
            for (path, text, total) in [("a", "7", 1), ("b", "1", 6), ("c", "99", 12)] {
                let answer = d.list(&[(path, text)]).await;
                if indexes.as_array().unwrap().contains(&json!(path)) {
                    assert_eq!(answer.total(), total, "{answer:?}");
                } else {
                    answer.invalid();
                }
            }
            assert_eq!(d.list(&[("sort_by", "a"), ("limit", "1")]).await.config_keys(), ["k11"]);
        }
    })
    .await;
}
