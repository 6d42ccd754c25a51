//! Indexes of the members of maps and of fields inside arrays, one by one.

use serde_json::{Map, Value, json};

use super::{Run, on_leader_and_follower};
use crate::harness::{check, eventually};

fn schema() -> Value {
    json!({"properties": {
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "items": {"type": "array", "items": {"type": "object", "properties": {
            "name": {"type": "string"}, "size": {"type": "integer"}}}}
    }})
}

fn labels(number: usize) -> Value {
    let labels: Map<String, Value> = (0..number).map(|n| (format!("l{n}"), json!("x"))).collect();
    json!({"labels": labels})
}

#[tokio::test]
async fn labels_and_fields_of_elements_are_found_one_by_one() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["labels.*", "items[].name", "items[].size"]), &schema()).await;
        let item = |name: &str, size: u64| json!({"name": name, "size": size});
        d.fill(&[
            ("a", json!({"labels": {"team": "search", "app.io/name": "web"}, "items": [item("x", 1), item("y", 9)]})),
            ("b", json!({"labels": {"team": "pay"}, "items": [item("x", 5)]})),
            ("c", json!({"labels": {"env": "search"}, "items": []})),
            ("e", json!({})),
        ])
        .await;
        for (filter, expected) in [
            (&[("labels.team", "search")][..], &["a"][..]),
            (&[("labels.team", "search"), ("labels.team", "pay")], &["a", "b"]),
            (&[("labels.team[in]", "pay,search"), ("items[].name", "y")], &["a"]),
            (&[("labels.team[ne]", "search")], &["b"]),
            (&[("labels.team[prefix]", "se")], &["a"]),
            (&[("labels.team[gte]", "q")], &["a"]),
            (&[("labels.team[exists]", "true")], &["a", "b"]),
            (&[("labels.team[exists]", "false")], &["c", "e"]),
            (&[(r"labels.app\.io/name", "web")], &["a"]),
            (&[("labels.team", "search"), ("labels.env", "search")], &[]),
            (&[("data.labels.env", "search")], &["c"]),
            (&[("items[].name", "x")], &["a", "b"]),
            (&[("items[].size[gt]", "5")], &["a"]),
            (&[("items[].size[gte]", "5"), ("items[].size[lt]", "5")], &["a"]),
            (&[("items[].name[ne]", "y")], &["b"]),
            (&[("items[].name[exists]", "false")], &["c", "e"]),
        ] {
            assert_eq!(d.found(filter).await, expected, "{filter:?}");
        }
        d.put("b", &json!({"labels": {"team": "search"}})).await.expect(200);
        assert_eq!(d.found(&[("labels.team", "search")]).await, ["a", "b"]);
        d.remove("a").await.expect(200);
        assert_eq!(d.found(&[("labels.team", "search")]).await, ["b"]);
        assert_eq!(d.found(&[("items[].name", "x")]).await, Vec::<String>::new());
    })
    .await;
}

#[tokio::test]
async fn what_a_pattern_can_not_be_is_refused() {
    on_leader_and_follower(async |run: Run| {
        let key = run.key("d");
        for wrong in ["labels[].a", "items.*", "items[].nmae", "items[]", "*.*.*.*.*", "labels.*.x"] {
            run.ask(&key, &json!([wrong]), &schema()).await.invalid();
        }
        let secret = json!({"properties": {
            "labels": {"additionalProperties": {"type": "string"}, "properties": {"token": {"x-concord-secret": true}}},
            "items": {"items": {"properties": {"key": {"x-concord-secret": true}, "name": {}}}}}});
        for hidden in ["labels.*", "items[].key"] {
            run.ask(&key, &json!([hidden]), &secret).await.invalid();
        }
        let d = run.define("d", &json!(["labels.*", "items[].name"]), &schema()).await;
        for wrong in [("sort_by", "labels.team"), ("sort_by", "items[].name"), ("labels.*", "x"), ("labels.a.b", "x")] {
            d.list(&[wrong]).await.invalid();
        }
        for unique in ["labels.*", "items[].name"] {
            run.node.put(&format!("{}/unique", d.path()), &json!({"paths": [unique]})).await.invalid();
        }
        d.create("most", &labels(1000)).await.expect(201);
        let too_many = d.create("more", &labels(1001)).await.invalid();
        assert_eq!(too_many.body["errors"][0]["loc"], json!(["data", "labels"]), "{too_many:?}");
        d.create("long", &json!({"labels": {"l": "x".repeat(300_000)}})).await.invalid();
    })
    .await;
}

#[tokio::test]
async fn a_pattern_finds_what_was_there_before_it_also_what_has_more_values_than_are_indexed() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!([]), &schema()).await;
        d.create("many", &labels(3000)).await.expect(201);
        for n in 0..5 {
            d.create(&format!("k{n}"), &json!({"labels": {"team": format!("t{}", n % 2)}})).await.expect(201);
        }
        run.node.put(&d.path(), &json!({"indexes": ["labels.*"]})).await.expect(200);
        eventually("the index is built", async || {
            let list = d.list(&[("labels.team", "t1")]).await;
            check(list.status == 200, || format!("{list:?}"))
        })
        .await;
        assert_eq!(d.found(&[("labels.team", "t1")]).await, ["k1", "k3"]);
        assert_eq!(d.found(&[("labels.l2999", "x")]).await, ["many"]);
        assert_eq!(d.found(&[("labels.l3000[exists]", "true")]).await, Vec::<String>::new());
        assert_eq!(d.found(&[("labels.team[exists]", "false")]).await, ["many"]);
        d.put("many", &labels(3000)).await.invalid();
        d.put("many", &labels(3)).await.expect(200);
        assert_eq!(d.found(&[("labels.l2", "x")]).await, ["many"]);
        let indexes = run.node.get(&format!("{}/indexes", d.path())).await.expect(200);
        assert_eq!(indexes.data()["indexes"][0]["path"], "labels.*", "{indexes:?}");
    })
    .await;
}

#[tokio::test]
async fn a_watch_filters_by_labels() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["labels.*"]), &schema()).await;
        let query = [("definition", d.key.as_str()), ("labels.team", "search")];
        let mut watch = run.node.watch(&query, None).await;
        d.create("no", &json!({"labels": {"team": "pay"}})).await.expect(201);
        d.create("yes", &json!({"labels": {"team": "search"}})).await.expect(201);
        d.put("yes", &json!({"labels": {}})).await.expect(200);
        let changes = watch.changes(2).await;
        let kinds: Vec<&Value> = changes.iter().map(|(_, change)| &change["type"]).collect();
        assert_eq!(kinds, ["config_created", "config_unmatched"]);
    })
    .await;
}
