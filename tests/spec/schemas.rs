//! What is taken as a schema and what is refused, each in bounded time: the cluster answers after every one.

use serde_json::{Value, json};

use super::{DEFINITIONS, Run, on_leader_and_follower};

async fn refused(run: &Run, schemas: &[Value]) {
    for (place, schema) in schemas.iter().enumerate() {
        let key = run.key(&format!("refused{place}"));
        run.ask(&key, &json!([]), schema).await.invalid();
        run.node.get(&format!("{DEFINITIONS}{key}")).await.expect(404);
    }
    run.define_open("after").await;
}

#[tokio::test]
async fn a_schema_must_be_one() {
    on_leader_and_follower(async |run: Run| {
        refused(
            &run,
            &[
                json!({"type": "nothing"}),
                json!({"type": 5}),
                json!({"properties": []}),
                json!({"properties": {"a": {"minimum": "1"}}}),
                json!({"required": "a"}),
                json!({"enum": "a"}),
                json!({"pattern": "("}),
                json!({"maximum": 5, "exclusiveMaximum": true}),
            ],
        )
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_schema_is_validated_by_its_draft() {
    on_leader_and_follower(async |run: Run| {
        // A boolean `exclusiveMaximum` is draft 4's; a list in `items` is the drafts' before 2020-12.
        let four = json!({
            "$schema": "http://json-schema.org/draft-04/schema#",
            "properties": {"n": {"maximum": 5, "exclusiveMaximum": true}}
        });
        let d = run.define("four", &json!([]), &four).await;
        d.create("a", &json!({"n": 4})).await.expect(201);
        d.create("b", &json!({"n": 5})).await.invalid();
        let seven = json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"s": {"type": "string"}},
            "properties": {"l": {"items": [{"$ref": "#/definitions/s"}], "additionalItems": false}}
        });
        let d = run.define("seven", &json!([]), &seven).await;
        d.create("a", &json!({"l": ["x"]})).await.expect(201);
        d.create("b", &json!({"l": ["x", "y"]})).await.invalid();
        let newest = json!({"properties": {"l": {"prefixItems": [{"type": "string"}], "items": false}}});
        let d = run.define("newest", &json!([]), &newest).await;
        d.create("a", &json!({"l": ["x"]})).await.expect(201);
        d.create("b", &json!({"l": ["x", "y"]})).await.invalid();
    })
    .await;
}

#[tokio::test]
async fn references_stay_inside_the_document() {
    on_leader_and_follower(async |run: Run| {
        refused(
            &run,
            &[
                json!({"$ref": "http://127.0.0.1:9/schema.json"}),
                json!({"$ref": "https://example.com/schema.json"}),
                json!({"$ref": "file:///etc/passwd"}),
                json!({"properties": {"a": {"$ref": "other.json"}}}),
                json!({"properties": {"a": {"$ref": "#/$defs/none"}}}),
            ],
        )
        .await;
        let local = json!({"$defs": {"n": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/n"}}});
        let d = run.define("local", &json!(["a"]), &local).await;
        d.create("k", &json!({"a": "x"})).await.invalid();
        d.create("k", &json!({"a": 1})).await.expect(201);
    })
    .await;
}

#[tokio::test]
async fn patterns_are_matched_in_linear_time_or_refused() {
    on_leader_and_follower(async |run: Run| {
        refused(
            &run,
            &[
                json!({"pattern": "(?=a)b"}),
                json!({"pattern": "(?!a)b"}),
                json!({"pattern": "(?<=a)b"}),
                json!({"properties": {"a": {"pattern": r"(a)\1"}}}),
                json!({"patternProperties": {"(?=a)": {}}}),
            ],
        )
        .await;
        let d = run.define("d", &json!([]), &json!({"properties": {"a": {"pattern": "^(a+)+$"}}})).await;
        d.create("good", &json!({"a": "aaaa"})).await.expect(201);
        d.create("bad", &json!({"a": format!("{}!", "a".repeat(10_000))})).await.invalid();
    })
    .await;
}

fn doubling(keyword: &str) -> Value {
    let mut definitions = serde_json::Map::new();
    for n in 0..40 {
        let next = json!({"$ref": format!("#/$defs/d{}", n + 1)});
        definitions.insert(format!("d{n}"), json!({keyword: [next, next]}));
    }
    definitions.insert("d40".to_owned(), json!({"type": "object"}));
    json!({"$ref": "#/$defs/d0", "$defs": definitions})
}

#[tokio::test]
async fn a_schema_whose_checking_is_not_bounded_is_refused() {
    on_leader_and_follower(async |run: Run| {
        refused(
            &run,
            &[
                json!({"$ref": "#"}),
                json!({"allOf": [{"$ref": "#"}]}),
                json!({"$ref": "#/$defs/a", "$defs": {
                    "a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}}),
                doubling("allOf"),
                doubling("anyOf"),
            ],
        )
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_recursive_schema_whose_recursion_descends_is_taken() {
    on_leader_and_follower(async |run: Run| {
        let tree = json!({
            "type": "object",
            "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}}},
            "required": ["name"]
        });
        let d = run.define("tree", &json!(["name"]), &tree).await;
        let good = json!({"name": "a", "children": [{"name": "b", "children": [{"name": "c"}]}]});
        d.create("good", &good).await.expect(201);
        d.create("bad", &json!({"name": "a", "children": [{"children": []}]})).await.invalid();
    })
    .await;
}

#[tokio::test]
async fn a_deep_schema_is_refused() {
    on_leader_and_follower(async |run: Run| {
        let mut schema = json!({"type": "object"});
        for _ in 0..100 {
            schema = json!({"not": schema});
        }
        run.ask(&run.key("deep"), &json!([]), &schema).await.expect(422);
    })
    .await;
}

#[tokio::test]
async fn a_schema_with_a_root_that_no_object_fits_is_valid() {
    on_leader_and_follower(async |run: Run| {
        let d = run.define("d", &json!([]), &json!({"type": "array"})).await;
        d.create("k", &json!({})).await.invalid();
    })
    .await;
}

#[tokio::test]
async fn a_schema_is_shown_as_it_was_written() {
    on_leader_and_follower(async |run: Run| {
        let key = run.key("d");
        let schema = r#"{"type":"object","properties":{"z":{"maximum":1.0},"a":{"minimum":123456789012345678901234567890}}}"#;
        let body = format!(r#"{{"config_definition_key":"{key}","json_schema":{schema}}}"#);
        let call = run.node.call(http::Method::POST, DEFINITIONS).text("application/json", &body);
        let created = call.await.expect(201);
        assert_eq!(super::raw_data(&created, &["json_schema"]), schema);
        let shown = run.node.get(&format!("{DEFINITIONS}{key}")).await.expect(200);
        assert_eq!(super::raw_data(&shown, &["json_schema"]), schema);
    })
    .await;
}
