//! Sorting configs by an indexed path: typed order, missing last, ties by key.

use serde_json::{Value, json};

use super::{Run, on_leader_and_follower};

#[tokio::test]
async fn values_of_all_types_have_one_order_and_missing_ones_come_last() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["v"]), &Value::Null).await;
        // Keys against the order of the values.
        let values: [(&str, Value); 11] = [
            ("z0", json!(null)),
            ("y1", json!(false)),
            ("x2", json!(true)),
            ("w3", json!(-10)),
            ("v4", json!(-1.5)),
            ("u5", json!(2)),
            ("t6", json!(10.25)),
            ("s7", json!(11)),
            ("r8", json!("Z")),
            ("q9", json!("a")),
            ("p9", json!("ä")),
        ];
        let mut ascending: Vec<&str> = values.iter().map(|(key, _)| *key).collect();
        for (key, value) in &values {
            d.create(key, &json!({"v": value})).await.expect(201);
        }
        d.create("a-missing", &json!({})).await.expect(201);
        d.create("b-missing", &json!({"w": 1})).await.expect(201);
        let sorted = async |order: &str| {
            d.list(&[("sort_by", "v"), ("sort_order", order), ("limit", "100")]).await.config_keys()
        };
        let missing = ["a-missing", "b-missing"];
        assert_eq!(sorted("asc").await, [&ascending[..], &missing].concat());
        ascending.reverse();
        assert_eq!(sorted("desc").await, [&ascending[..], &missing].concat());
    })
    .await;
}

#[tokio::test]
async fn numbers_are_sorted_by_value_however_large_or_exact() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["n"]), &Value::Null).await;
        let ascending = [
            "-1e400",
            "-123456789012345678901234567891",
            "-123456789012345678901234567890",
            "-0.5",
            "0",
            "1e-400",
            "9007199254740992",
            "9007199254740993",
            "9007199254740993.5",
            "123456789012345678901234567890",
            "1e400",
        ];
        for (place, number) in ascending.iter().enumerate() {
            let text = format!(r#"{{"config_key":"k{}","data":{{"n":{number}}}}}"#, 90 - place);
            let call = run.node.call(http::Method::POST, &d.configs()).text("application/json", &text);
            call.await.expect(201);
        }
        let answer = d.list(&[("sort_by", "n"), ("sort_order", "asc"), ("limit", "100")]).await;
        let expected: Vec<String> = (0..ascending.len()).map(|place| format!("k{}", 90 - place)).collect();
        assert_eq!(answer.config_keys(), expected);
        assert_eq!(d.found(&[("n", "9007199254740993")]).await, ["k83"]);
    })
    .await;
}

#[tokio::test]
async fn ties_are_broken_by_key_ascending_in_both_orders_and_across_pages() {
    on_leader_and_follower(async |run: Run| {
        let schema = json!({"properties": {"n": {"type": "number"}}});
        let d = run.define("d", &json!(["n"]), &schema).await;
        for (key, n) in
            [("c", json!(1)), ("a", json!(1.0)), ("e", json!(2)), ("b", json!(1)), ("d", json!(2))]
        {
            d.create(key, &json!({"n": n})).await.expect(201);
        }
        let sorted = async |order: &str, page: &str, limit: &str| {
            let query = [("sort_by", "n"), ("sort_order", order), ("page", page), ("limit", limit)];
            d.list(&query).await.config_keys()
        };
        assert_eq!(sorted("asc", "1", "10").await, ["a", "b", "c", "d", "e"]);
        assert_eq!(sorted("desc", "1", "10").await, ["d", "e", "a", "b", "c"]);
        assert_eq!(sorted("desc", "1", "3").await, ["d", "e", "a"]);
        assert_eq!(sorted("desc", "2", "3").await, ["b", "c"]);
        assert_eq!(sorted("asc", "2", "2").await, ["c", "d"]);
    })
    .await;
}

#[tokio::test]
async fn arrays_objects_and_unindexed_paths_are_no_sort_fields() {
    on_leader_and_follower(async |run: Run| {
        let schema = json!({"properties": {
            "list": {"type": "array", "items": {"type": "string"}},
            "object": {"type": "object"},
            "plain": {"type": "string"},
            "indexed": {"type": "string"}
        }});
        let d = run.define("d", &json!(["list", "object", "indexed"]), &schema).await;
        for field in ["list", "object", "plain", "nothing", "data", "config_definition_key"] {
            d.list(&[("sort_by", field)]).await.invalid();
        }
        d.list(&[("sort_by", "indexed")]).await.expect(200);
    })
    .await;
}
