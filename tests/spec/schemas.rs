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
async fn patterns_are_matched_in_bounded_time() {
    on_leader_and_follower(async |run: Run| {
        let decimal =
            json!({"properties": {"a": {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}}});
        let d = run.define("decimal", &json!([]), &decimal).await;
        d.create("good", &json!({"a": "-12.50"})).await.expect(201);
        d.create("bad", &json!({"a": "+."})).await.invalid();
        let doubling = json!({"properties": {"a": {"pattern": r"^(?=a)(a|aa|a\B)+$"}}});
        let d = run.define("doubling", &json!([]), &doubling).await;
        d.create("good", &json!({"a": "aaa"})).await.expect(201);
        d.create("bad", &json!({"a": format!("{}b", "a".repeat(60))})).await.invalid();
        let names = json!({"patternProperties": {"^(?!x)": {"type": "integer"}}});
        let d = run.define("names", &json!([]), &names).await;
        d.create("good", &json!({"xa": "b"})).await.expect(201);
        d.create("bad", &json!({"a": "b"})).await.invalid();
        let everyday = json!({"properties": {"a": {"pattern": "^.{1,255}$"}}});
        run.define("everyday", &json!([]), &everyday)
            .await
            .create("good", &json!({"a": "x"}))
            .await
            .expect(201);
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

#[tokio::test]
async fn a_tree_of_rules_is_taken_and_data_that_would_take_too_long_are_refused() {
    on_leader_and_follower(async |run: Run| {
        let list = |op: &str| {
            json!({"type": "object", "required": ["op", "args"], "additionalProperties": false,
                   "properties": {"op": {"const": op}, "args": {"type": "array", "items": {"$ref": "#/$defs/Rule"}}}})
        };
        let schema = json!({
            "$defs": {
                "And": list("and"), "Or": list("or"), "Not": list("not"),
                "Is": {"type": "object", "required": ["op", "field"], "additionalProperties": false,
                       "properties": {"op": {"const": "is"}, "field": {"type": "string"}}},
                "Rule": {"anyOf": [{"$ref": "#/$defs/And"}, {"$ref": "#/$defs/Or"}, {"$ref": "#/$defs/Not"}, {"$ref": "#/$defs/Is"}]}
            },
            "properties": {"rule": {"$ref": "#/$defs/Rule"}}
        });
        let nested = |depth: usize| {
            let leaf = json!({"op": "is", "field": "a"});
            let rule = (0..depth).fold(leaf, |inner, _| json!({"op": "and", "args": [inner]}));
            json!({"rule": rule})
        };
        let d = run.define("rules", &json!(["rule.op"]), &schema).await;
        d.create("good", &nested(7)).await.expect(201);
        d.create("wrong", &json!({"rule": {"op": "and", "args": [{"op": "is"}]}})).await.invalid();
        d.create("deep", &nested(25)).await.invalid();
        assert_eq!(d.found(&[("rule.op", "and")]).await, ["good"]);
    })
    .await;
}

#[tokio::test]
async fn formats_are_asserted_unless_the_definition_says_otherwise() {
    on_leader_and_follower(async |run: Run| {
        let schema = json!({"properties": {"mail": {"type": "string", "format": "email"}}});
        let (good, bad) = (json!({"mail": "a@example.com"}), json!({"mail": "nobody"}));
        let d = run.define("d", &json!([]), &schema).await;
        d.create("good", &good).await.expect(201);
        let refused = d.create("bad", &bad).await.invalid();
        let told = refused.body.to_string();
        assert!(told.contains("format_assertion"), "{told}");

        let path = format!("{DEFINITIONS}{}/schema", d.key);
        let shown = run.node.get(&path).await.expect(200);
        assert_eq!(shown.data()["format_assertion"], true);
        run.node.put(&path, &json!({"json_schema": schema, "format_assertion": false})).await.expect(200);
        d.create("bad", &bad).await.expect(201);
        assert_eq!(run.node.get(&path).await.expect(200).data()["format_assertion"], false);
        // What is not said stays as it was.
        run.node.put(&path, &json!({"json_schema": schema})).await.expect(200);
        d.create("worse", &bad).await.expect(201);
        // The configs that exist count.
        run.node.put(&path, &json!({"json_schema": schema, "format_assertion": true})).await.invalid();
        run.node.put(&path, &json!({"json_schema": schema, "format_assertion": 1})).await.expect(422);

        let key = run.key("annotated");
        let body = json!({"config_definition_key": key, "json_schema": schema, "format_assertion": false});
        run.node.post(DEFINITIONS, &body).await.expect(201);
        run.node
            .post(&format!("{DEFINITIONS}{key}/config"), &json!({"config_key": "k", "data": bad}))
            .await
            .expect(201);
    })
    .await;
}

#[tokio::test]
async fn a_meta_schema_may_be_referred_to() {
    on_leader_and_follower(async |run: Run| {
        let schema = json!({"properties": {"s": {"$ref": "http://json-schema.org/draft-07/schema#"}}});
        let d = run.define("d", &json!([]), &schema).await;
        d.create("good", &json!({"s": {"type": "string"}})).await.expect(201);
        d.create("bad", &json!({"s": {"type": 7}})).await.invalid();
    })
    .await;
}
