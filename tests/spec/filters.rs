//! Filters of the configs list: every operator, typed reading, arrays, null and missing, times, collisions.

use serde_json::{Value, json};

use super::{Defined, Run, on_leader_and_follower};

const NONE: [&str; 0] = [];

async fn people(run: &Run) -> Defined {
    let schema = json!({"type": "object", "properties": {
        "name": {"type": "string"},
        "n": {"type": "integer"},
        "f": {"type": "number"},
        "b": {"type": "boolean"},
        "o": {"type": "object", "properties": {"k": {"type": "string"}}},
        "plain": {"type": "string"}
    }});
    let d = run.define("people", &json!(["name", "n", "f", "b", "o.k"]), &schema).await;
    d.fill(&[
        ("a", json!({"name": "anna", "n": 1, "f": 0.5, "b": true, "o": {"k": "x"}, "plain": "p"})),
        ("b", json!({"name": "bert", "n": 2, "f": 6, "b": false, "o": {"k": "y"}})),
        ("c", json!({"name": "anton", "n": 3, "f": 6.0, "b": true, "o": {"k": "y"}})),
        ("d", json!({"name": "x,y", "n": -4, "f": 1e3, "b": false, "o": {"k": ""}})),
    ])
    .await;
    d
}

#[tokio::test]
async fn equality_repetition_and_several_paths() {
    on_leader_and_follower(async |run: Run| {
        let d = people(&run).await;
        assert_eq!(d.found(&[("name", "anna")]).await, ["a"]);
        assert_eq!(d.found(&[("name", "Anna")]).await, NONE);
        assert_eq!(d.found(&[("o.k", "y")]).await, ["b", "c"]);
        assert_eq!(d.found(&[("o.k", "")]).await, ["d"]);
        assert_eq!(d.found(&[("name", "anna"), ("name", "bert")]).await, ["a", "b"]);
        assert_eq!(d.found(&[("o.k", "y"), ("b", "true")]).await, ["c"]);
        assert_eq!(d.found(&[("o.k", "x"), ("o.k", "y"), ("b", "true"), ("n[gt]", "1")]).await, ["c"]);
        assert_eq!(d.found(&[("name", "anna"), ("n", "2")]).await, NONE);
    })
    .await;
}

#[tokio::test]
async fn comparisons_sets_and_prefixes() {
    on_leader_and_follower(async |run: Run| {
        let d = people(&run).await;
        assert_eq!(d.found(&[("n[gte]", "2")]).await, ["b", "c"]);
        assert_eq!(d.found(&[("n[gt]", "2")]).await, ["c"]);
        assert_eq!(d.found(&[("n[lte]", "1")]).await, ["a", "d"]);
        assert_eq!(d.found(&[("n[lt]", "1")]).await, ["d"]);
        assert_eq!(d.found(&[("n[gte]", "1"), ("n[lt]", "3")]).await, ["a", "b"]);
        assert_eq!(d.found(&[("n[ne]", "1")]).await, ["b", "c", "d"]);
        assert_eq!(d.found(&[("name[prefix]", "an")]).await, ["a", "c"]);
        assert_eq!(d.found(&[("name[in]", "anna,bert")]).await, ["a", "b"]);
        assert_eq!(d.found(&[("name[in]", "\"anna\",\"bert,\"")]).await, ["a"]);
        assert_eq!(d.found(&[("n[in]", "1,3,9")]).await, ["a", "c"]);
        assert_eq!(d.found(&[("name[gte]", "b"), ("name[lt]", "c")]).await, ["b"]);
        assert_eq!(d.found(&[("n[exists]", "true")]).await, ["a", "b", "c", "d"]);
        assert_eq!(d.found(&[("n[exists]", "false")]).await, NONE);
    })
    .await;
}

#[tokio::test]
async fn a_filter_is_read_by_the_declared_type() {
    on_leader_and_follower(async |run: Run| {
        let d = people(&run).await;
        for six in ["6", "6.0", "6.00", "0.6e1"] {
            assert_eq!(d.found(&[("f", six)]).await, ["b", "c"], "{six}");
        }
        assert_eq!(d.found(&[("f", "1000")]).await, ["d"]);
        assert_eq!(d.found(&[("b", "true")]).await, ["a", "c"]);
        assert_eq!(d.found(&[("b", "false")]).await, ["b", "d"]);
        assert_eq!(d.found(&[("name", "1")]).await, NONE);
        for (name, text) in [
            ("n", "x"),
            ("n", ""),
            ("n[gte]", "true"),
            ("f", "six"),
            ("b", "TRUE"),
            ("b", "1"),
            ("b", ""),
            ("n[exists]", "maybe"),
            ("n[in]", "1,x"),
            ("created_at[gte]", "yesterday"),
        ] {
            d.list(&[(name, text)]).await.invalid();
        }
    })
    .await;
}

#[tokio::test]
async fn a_path_that_is_not_indexed_is_refused_and_never_scanned() {
    on_leader_and_follower(async |run: Run| {
        let d = people(&run).await;
        for name in ["plain", "nothing", "o", "o.other", "data.plain", "plain[gte]", "n[like]", "Page"] {
            d.list(&[(name, "1")]).await.invalid();
        }
    })
    .await;
}

#[tokio::test]
async fn a_path_without_a_declared_type_takes_a_json_scalar_or_else_a_string() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["v"]), &Value::Null).await;
        d.fill(&[
            ("int", json!({"v": 1})),
            ("true", json!({"v": true})),
            ("null", json!({"v": null})),
            ("text", json!({"v": "hello"})),
            ("missing", json!({})),
        ])
        .await;
        assert_eq!(d.found(&[("v", "1")]).await, ["int"]);
        assert_eq!(d.found(&[("v", "1.0")]).await, ["int"]);
        assert_eq!(d.found(&[("v", "true")]).await, ["true"]);
        assert_eq!(d.found(&[("v", "null")]).await, ["null"]);
        assert_eq!(d.found(&[("v", "hello")]).await, ["text"]);
        assert_eq!(d.found(&[("v[exists]", "false")]).await, ["missing"]);
        assert_eq!(d.found(&[("v[exists]", "true")]).await, ["int", "null", "text", "true"]);
        for text in ["{}", "[]", "[1]"] {
            d.list(&[("v[gte]", text)]).await.invalid();
            assert_eq!(d.found(&[("v", text)]).await, NONE);
        }
    })
    .await;
}

#[tokio::test]
async fn an_array_is_found_by_each_of_its_scalars() {
    on_leader_and_follower(async |run: Run| {
        let schema = json!({"properties": {"tags": {"type": "array", "items": {"type": "string"}}}});
        let d = run.define("d", &json!(["tags"]), &schema).await;
        d.fill(&[
            ("a", json!({"tags": ["red", "blue", "red"]})),
            ("b", json!({"tags": ["blue"]})),
            ("c", json!({"tags": []})),
            ("d", json!({})),
        ])
        .await;
        assert_eq!(d.found(&[("tags", "red")]).await, ["a"]);
        assert_eq!(d.found(&[("tags", "blue")]).await, ["a", "b"]);
        assert_eq!(d.found(&[("tags[in]", "red,blue")]).await, ["a", "b"]);
        assert_eq!(d.found(&[("tags[prefix]", "b")]).await, ["a", "b"]);
        assert_eq!(d.found(&[("tags", "green")]).await, NONE);
    })
    .await;
}

#[tokio::test]
async fn an_object_is_found_by_equality_whatever_the_order_of_its_members() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["o"]), &json!({"properties": {"o": {"type": "object"}}})).await;
        d.fill(&[("a", json!({"o": {"x": 1, "y": [true]}})), ("b", json!({"o": {"x": 2}}))]).await;
        assert_eq!(d.found(&[("o", r#"{"y": [true], "x": 1}"#)]).await, ["a"]);
        assert_eq!(d.found(&[("o", r#"{"x":2}"#)]).await, ["b"]);
        assert_eq!(d.found(&[("o", r#"{"x":3}"#)]).await, NONE);
    })
    .await;
}

#[tokio::test]
async fn times_and_the_key_are_filters_too() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define_open("d").await;
        for key in ["app-1", "app-2", "web-1"] {
            d.create(key, &json!({})).await.expect(201);
        }
        d.put("app-1", &json!({})).await.expect(200);
        let middle = d.get("app-2").await.data()["created_at"].as_str().unwrap().to_owned();
        assert_eq!(d.found(&[("created_at[gte]", &middle)]).await, ["app-2", "web-1"]);
        assert_eq!(d.found(&[("created_at[gt]", &middle)]).await, ["web-1"]);
        assert_eq!(d.found(&[("created_at[lt]", &middle)]).await, ["app-1"]);
        assert_eq!(d.found(&[("created_at[lte]", &middle)]).await, ["app-1", "app-2"]);
        assert_eq!(d.found(&[("modified_at[gt]", &middle)]).await, ["app-1", "web-1"]);
        assert_eq!(d.found(&[("modified_at[lte]", &middle)]).await, ["app-2"]);
        assert_eq!(d.found(&[("config_key[prefix]", "app")]).await, ["app-1", "app-2"]);
        assert_eq!(d.found(&[("config_key[prefix]", "app"), ("created_at[gte]", &middle)]).await, ["app-2"]);
    })
    .await;
}

#[tokio::test]
async fn a_field_named_like_a_parameter_is_reached_through_data() {
    on_leader_and_follower(async |run: Run| {
        let schema = json!({"properties": {
            "page": {"type": "string"}, "limit": {"type": "integer"}, "search": {"type": "string"}, "name": {}}});
        let d = run.define("d", &json!(["page", "limit", "search", "name"]), &schema).await;
        d.fill(&[
            ("a", json!({"page": "home", "limit": 5, "search": "on", "name": "x"})),
            ("b", json!({"page": "about", "limit": 50, "search": "off", "name": "y"})),
        ])
        .await;
        assert_eq!(d.found(&[("data.page", "home")]).await, ["a"]);
        assert_eq!(d.found(&[("data.limit[gt]", "5")]).await, ["b"]);
        assert_eq!(d.found(&[("data.search", "off"), ("search", "b")]).await, ["b"]);
        assert_eq!(d.found(&[("data.name", "x")]).await, ["a"]);
    })
    .await;
}

#[tokio::test]
async fn an_escaped_dot_belongs_to_a_name() {
    on_leader_and_follower(async |run: Run| {
        let schema = json!({"properties": {
            "a.b": {"type": "integer"}, "a": {"properties": {"b": {"type": "integer"}}}}});
        let d = run.define("d", &json!(["a\\.b", "a.b"]), &schema).await;
        d.fill(&[("flat", json!({"a.b": 1})), ("nested", json!({"a": {"b": 1}}))]).await;
        assert_eq!(d.found(&[("a\\.b", "1")]).await, ["flat"]);
        assert_eq!(d.found(&[("a.b", "1")]).await, ["nested"]);
    })
    .await;
}

#[tokio::test]
async fn an_index_follows_every_change() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["v"]), &Value::Null).await;
        d.create("k", &json!({"v": "old"})).await.expect(201);
        d.put("k", &json!({"v": "new"})).await.expect(200);
        assert_eq!(d.found(&[("v", "old")]).await, NONE);
        assert_eq!(d.found(&[("v", "new")]).await, ["k"]);
        d.put("k", &json!({})).await.expect(200);
        assert_eq!(d.found(&[("v", "new")]).await, NONE);
        assert_eq!(d.found(&[("v[exists]", "false")]).await, ["k"]);
        d.remove("k").await.expect(200);
        assert_eq!(d.found(&[("v[exists]", "false")]).await, NONE);
    })
    .await;
}

#[tokio::test]
async fn totals_are_exact_after_filtering_on_every_page() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!(["n"]), &Value::Null).await;
        for n in 0..30 {
            d.create(&format!("k{n:02}"), &json!({"n": n % 3})).await.expect(201);
        }
        let query = [("n", "1"), ("limit", "4"), ("sort_by", "config_key"), ("sort_order", "asc")];
        for (page, expected) in [("1", 4), ("3", 2), ("4", 0)] {
            let answer = d.list(&query).query(&[("page", page)]).await;
            assert_eq!((answer.config_keys().len(), answer.total()), (expected, 10), "{answer:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_text_is_matched_as_each_type_of_a_union_and_quotes_say_that_it_is_a_string() {
    on_leader_and_follower(async |run: Run| {
        let schema = json!({
            "$defs": {
                "Cat": {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}},
                "Dog": {"type": "object", "properties": {"kind": {"const": "dog"}, "tag": {"type": "string"}}}
            },
            "type": "object",
            "properties": {
                "zip": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null},
                "id": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                "pet": {"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]},
                "maybe": {"anyOf": [{"$ref": "#/$defs/Cat"}, {"type": "null"}]},
                "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}
            }
        });
        let d = run.define("d", &json!(["zip", "id", "pet.kind", "maybe.lives", "tags"]), &schema).await;
        d.fill(&[
            ("a", json!({"zip": "12345", "id": 7, "pet": {"kind": "cat"}, "maybe": {"lives": 9}, "tags": []})),
            ("b", json!({"zip": null, "id": "7", "pet": {"kind": "dog"}, "maybe": null, "tags": ["x"]})),
            ("c", json!({"zip": "null", "id": "x"})),
        ])
        .await;
        assert_eq!(d.found(&[("zip", "12345")]).await, ["a"]);
        assert_eq!(d.found(&[("zip", "null")]).await, ["b", "c"]);
        assert_eq!(d.found(&[("zip", "\"null\"")]).await, ["c"]);
        assert_eq!(d.found(&[("zip", "null"), ("zip[ne]", "\"null\"")]).await, ["b"]);
        assert_eq!(d.found(&[("zip[ne]", "12345")]).await, ["b", "c"]);
        assert_eq!(d.found(&[("id", "7")]).await, ["a", "b"]);
        assert_eq!(d.found(&[("id", "\"7\"")]).await, ["b"]);
        assert_eq!(d.found(&[("id[gte]", "7")]).await, ["a", "b", "c"]);
        assert_eq!(d.found(&[("id[in]", "\"7\",x")]).await, ["b", "c"]);
        assert_eq!(d.found(&[("pet.kind", "dog")]).await, ["b"]);
        assert_eq!(d.found(&[("maybe.lives[gt]", "8")]).await, ["a"]);
        assert_eq!(d.found(&[("tags[exists]", "true")]).await, ["a", "b"]);
        assert_eq!(d.found(&[("tags[exists]", "false")]).await, ["c"]);
        assert_eq!(d.found(&[("tags[ne]", "x")]).await, ["a"]);
        d.list(&[("maybe.lives", "nine")]).await.invalid();
        d.list(&[("maybe.lives[prefix]", "9")]).await.invalid();
    })
    .await;
}

#[tokio::test]
async fn a_time_before_1970_is_before_all() {
    on_leader_and_follower(async |run: Run| {
        let d = people(&run).await;
        assert_eq!(d.found(&[("created_at[gte]", "1969-01-01T00:00:00Z")]).await, ["a", "b", "c", "d"]);
        assert_eq!(d.found(&[("created_at[lt]", "1969-01-01T00:00:00Z")]).await, NONE);
    })
    .await;
}
