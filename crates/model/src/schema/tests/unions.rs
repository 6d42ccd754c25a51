//! What is named where no branch of a union accepts the data: the violations of the branch that fits best.

use super::*;

/// The violations as `place: text`.
fn violations(schema: &Value, data: &Value) -> Vec<String> {
    let violations = compiled(schema).check(data).unwrap_err();
    violations.iter().map(|violation| format!("{}: {}", pointer(violation), violation.msg)).collect()
}

#[test]
fn the_violations_of_an_optional_model_are_named() {
    let model = json!({"type": "object", "required": ["host", "port"], "additionalProperties": false,
        "properties": {"host": {"type": "string"}, "port": {"type": "integer", "maximum": 65535}}});
    let schema = json!({"properties": {"db": {"anyOf": [{"$ref": "#/$defs/Db"}, {"type": "null"}]}}, "$defs": {"Db": model}});
    for (data, expected) in [
        (
            json!({"db": {"host": "a", "port": 99999}}),
            vec!["/db/port: 99999 is greater than the maximum of 65535"],
        ),
        (json!({"db": {"host": "a"}}), vec![r#"/db: "port" is a required property"#]),
        (
            json!({"db": {"host": 1, "prt": 5}}),
            vec![
                r#"/db: "port" is a required property"#,
                r#"/db: Additional properties are not allowed ('prt' was unexpected)"#,
                r#"/db/host: 1 is not of type "string""#,
            ],
        ),
        (json!({"db": "a"}), vec![r#"/db: "a" is not of types "null", "object""#]),
    ] {
        let (mut found, mut expected) = (violations(&schema, &data), expected);
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{data}");
    }
}

#[test]
fn the_branch_whose_tag_fits_is_named() {
    let card = json!({"required": ["kind", "limit"], "properties": {"kind": {"const": "card"}, "limit": {"type": "integer"}}});
    let bank = json!({"required": ["kind", "iban"], "properties": {"kind": {"enum": ["bank", "sepa"]}, "iban": {"type": "string"}}});
    for union in ["oneOf", "anyOf"] {
        let schema = json!({"items": {union: [card, bank]}});
        for (data, expected) in [
            (json!([{"kind": "card", "limit": "x"}]), r#"/0/limit: "x" is not of type "integer""#),
            (json!([{"kind": "card"}]), r#"/0: "limit" is a required property"#),
            (json!([{"kind": "sepa", "limit": 5}]), r#"/0: "iban" is a required property"#),
            (json!([{"kind": "bank", "iban": 5}]), r#"/0/iban: 5 is not of type "string""#),
            (
                json!([{"kind": "cash", "limit": 5}]),
                r#"/0/kind: "cash" is not one of "card", "bank", "sepa""#,
            ),
        ] {
            assert_eq!(violations(&schema, &data), [expected], "{data}");
        }
    }
}

#[test]
fn a_branch_whose_tag_has_the_value_beside_a_list_of_others_is_named() {
    // Only the error of `bank` names the tag, and its other violation is the deeper one.
    let card = json!({"properties": {"kind~/1": {"$ref": "#/$defs/kind"}, "limit": {"type": "integer"}}});
    let owner = json!({"properties": {"name": {"type": "string"}}});
    let bank = json!({"allOf": [{"properties": {"kind~/1": {"enum": ["bank", "sepa"]}, "owner": owner}}]});
    for branches in [json!([card, bank]), json!([bank, {"$ref": "#/$defs/a~1b"}])] {
        let schema = json!({"properties": {"p/q": {"anyOf": branches}}, "$defs": {"kind": {"const": "card"}, "a/b": card}});
        let data = json!({"p/q": {"kind~/1": "card", "limit": "x", "owner": {"name": 7}}});
        assert_eq!(violations(&schema, &data), [r#"/p/q/limit: "x" is not of type "integer""#], "{schema}");
        let data = json!({"p/q": {"kind~/1": "cash", "limit": 5}});
        let expected = r#"/p/q/kind~/1: "cash" is not one of "#;
        let found = violations(&schema, &data);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
        for allowed in ["card", "bank", "sepa"] {
            assert!(found[0].contains(allowed), "{found:?}");
        }
    }
}

#[test]
fn a_member_that_has_the_same_values_in_all_branches_is_no_tag() {
    let color = json!({"enum": ["red", "blue"]});
    let branch = |kind: Value, color: &Value| json!({"properties": {"kind": kind, "color": color, "version": {"const": 1}}});
    let schema = json!({"anyOf": [
        branch(json!({"const": "voucher"}), &json!({"type": "object"})),
        branch(json!({"enum": ["bank", "sepa"]}), &color),
        branch(json!({"const": "cash"}), &color),
    ]});
    for (data, expected) in [
        (json!({"kind": "cash", "color": 3}), r#"/color: 3 is not one of "red" or "blue""#),
        (json!({"kind": "bank", "color": "pink"}), r#"/color: "pink" is not one of "red" or "blue""#),
        (json!({"kind": "cash", "version": 2}), "/version: 1 was expected"),
    ] {
        assert_eq!(violations(&schema, &data), [expected], "{data}");
    }
}

#[test]
fn reading_tags_takes_bounded_time() {
    // 20,000 variants, each with the same 4,000 members.
    let members: serde_json::Map<String, Value> =
        (0..4000).map(|n| (format!("m{n}"), json!({"const": n}))).collect();
    let variants = vec![json!({"$ref": "#/$defs/a"}); 20_000];
    let schema = json!({"anyOf": variants, "$defs": {"a": {"properties": members}}});
    let graph = Graph::of(&schema, Draft::Draft202012).unwrap();
    let begin = std::time::Instant::now();
    assert_eq!(DeclaredTags::of(&graph).weight_bytes(), 0);
    // Unbounded, it takes a minute.
    assert!(begin.elapsed() < std::time::Duration::from_secs(10), "{:?}", begin.elapsed());
}

#[test]
fn unions_of_scalars_and_unions_in_unions_are_named() {
    let literals =
        json!({"anyOf": [{"const": "a"}, {"type": "string", "enum": ["b", "c"]}, {"type": "null"}]});
    assert_eq!(violations(&literals, &json!("x")), [r#": "x" is not one of "a", "b", "c""#]);
    assert_eq!(
        violations(&json!({"oneOf": [{"type": "integer", "minimum": 5}, {"type": "null"}]}), &json!(3)),
        [": 3 is less than the minimum of 5"]
    );
    let inner = json!({"oneOf": [{"properties": {"n": {"type": "integer"}}, "required": ["n"], "type": "object"}, {"type": "string"}]});
    let outer = json!({"anyOf": [{"type": "array", "items": inner}, {"type": "boolean"}]});
    assert_eq!(
        violations(&outer, &json!([{"n": 1}, {"n": "x"}, {}])),
        [r#"/1/n: "x" is not of type "integer""#, r#"/2: "n" is a required property"#,]
    );
    let mode = json!({"anyOf": [{"properties": {"mode": {"enum": ["a", "b"]}}}, {"required": ["url"]}]});
    assert_eq!(violations(&mode, &json!({"mode": "c"})), [r#"/mode: "c" is not one of "a" or "b""#]);
    // Two branches that are equally good.
    let equal = json!({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]});
    assert_eq!(
        violations(&equal, &json!({})),
        [": {} is not valid under any of the schemas listed in the 'anyOf' keyword"]
    );
}

#[test]
fn a_union_above_or_of_secrets_shows_none() {
    let secret = json!({"type": "integer", "maximum": 5, "x-concord-secret": true});
    let schema = json!({"properties": {
        "db": {"anyOf": [{"properties": {"pin": secret, "port": {"type": "integer"}}, "required": ["port"]}, {"type": "null"}]},
        "pin": {"anyOf": [secret, {"const": "4711"}]},
    }});
    let found = violations(&schema, &json!({"db": {"pin": 4712, "port": "x"}, "pin": 4713}));
    assert_eq!(
        found,
        [
            "/db/pin: the secret value breaks `maximum` of the schema",
            r#"/db/port: "x" is not of type "integer""#,
            "/pin: the secret value breaks `maximum` of the schema",
        ]
    );
    let found = violations(&schema, &json!({"db": {"pin": 4712}})).join("\n");
    assert!(!found.contains("4712"), "{found}");
}

#[test]
fn all_variants_are_listed_on_request_each_with_its_place_in_the_schema() {
    let secret = json!({"type": "integer", "x-concord-secret": true});
    let schema = compiled(&json!({"properties": {
        "pay": {"oneOf": [
            {"properties": {"kind": {"const": "card"}, "pin": secret}, "required": ["number"]},
            {"anyOf": [{"properties": {"kind": {"const": "bank"}}}, {"type": "null"}]},
        ]},
        "size": {"maximum": 5},
    }}));
    let data = json!({"pay": {"kind": "cash", "pin": "4711"}, "size": 7});
    let found = schema.check_priced(&data, 0, ListedVariants::All).unwrap_err();
    let places: Vec<(String, &str)> = found
        .iter()
        .map(|violation| {
            (pointer(violation), violation.msg.split("(schema: ").nth(1).unwrap_or(&violation.msg))
        })
        .collect();
    assert_eq!(
        places,
        [
            ("/pay", "`/properties/pay/oneOf`)"),
            ("/pay", "`/properties/pay/oneOf/0/required`)"),
            ("/pay/kind", "`/properties/pay/oneOf/0/properties/kind/const`)"),
            ("/pay/pin", "the secret value breaks `type` of the schema"),
            ("/pay", "`/properties/pay/oneOf/1/anyOf`)"),
            ("/pay/kind", "`/properties/pay/oneOf/1/anyOf/0/properties/kind/const`)"),
            ("/pay", "`/properties/pay/oneOf/1/anyOf/1/type`)"),
            ("/size", "`/properties/size/maximum`)"),
        ]
        .map(|(place, text)| (place.to_owned(), text))
    );
    assert!(!format!("{found:?}").contains("4711"), "{found:?}");
}

#[test]
fn a_violated_meta_schema_is_named_inside_its_unions() {
    let draft7 = "http://json-schema.org/draft-07/schema#";
    let (place, text) = refused(&json!({"$schema": draft7, "items": {"maxLength": "x"}}));
    assert_eq!((place.as_str(), text.as_str()), ("/items/maxLength", r#""x" is not of type "integer""#));
}

#[test]
fn violations_of_unions_are_bounded() {
    let branch = json!({"items": {"type": "string"}});
    let schema = compiled(&json!({"anyOf": [branch, {"type": "null"}]}));
    assert_eq!(schema.check(&json!(vec![1; 5000])).unwrap_err().len(), VIOLATIONS_MAX);
}
