//! What is compiled, what is rejected, and that the time is bounded.

use serde_json::json;

use super::*;
use crate::document;

fn parse(text: &str) -> Value {
    document::parse(text.as_bytes(), 127).unwrap()
}

fn compiled(schema: &Value) -> Schema {
    Schema::compile(schema, Formats::Asserted).unwrap_or_else(|violations| panic!("{schema}: {violations:?}"))
}

/// The first violation's location (as a pointer) and text.
fn refused(schema: &Value) -> (String, String) {
    let violations = Schema::compile(schema, Formats::Asserted).expect_err(&schema.to_string());
    (pointer(&violations[0]), violations[0].msg.clone())
}

fn pointer(violation: &Violation) -> String {
    violation.loc.iter().fold(String::new(), |text, segment| match segment {
        LocSegment::Name(name) => format!("{text}/{name}"),
        LocSegment::Index(index) => format!("{text}/{index}"),
    })
}

fn places(schema: &Schema, data: &Value) -> Vec<String> {
    schema.check(data).err().unwrap_or_default().iter().map(pointer).collect()
}

#[test]
fn the_message_for_an_unknown_type_lists_the_valid_types() {
    let types = "`type` must be `array`, `boolean`, `integer`, `null`, `number`, `object`, `string`, or a list of these";
    for draft in ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"] {
        let schema = |inner: Value| json!({"$schema": draft, "properties": {"type": inner}});
        let (place, text) = refused(&schema(json!({"type": "objct"})));
        assert_eq!((place.as_str(), text), ("/properties/type/type", format!("{types}, not \"objct\"")));
        let (_, text) = refused(&schema(json!({"type": ["string", "nul"]})));
        assert_eq!(text, format!("{types}, not [\"string\",\"nul\"]"));
        // A schema of a member that is named so, and no type.
        let (place, text) = refused(&schema(json!("objct")));
        assert_eq!(place, "/properties/type");
        assert!(!text.contains("a list of these"), "{text}");
    }
}

#[test]
fn every_draft_is_known_and_the_default_is_the_newest() {
    for (dialect, good, bad) in [
        (
            "http://json-schema.org/draft-04/schema#",
            json!({"maximum": 3, "exclusiveMaximum": true}),
            json!({"exclusiveMaximum": 3}),
        ),
        (
            "http://json-schema.org/draft-06/schema#",
            json!({"exclusiveMaximum": 3}),
            json!({"exclusiveMaximum": true}),
        ),
        (
            "http://json-schema.org/draft-07/schema#",
            json!({"if": {"const": 3}, "then": false}),
            json!({"if": 1}),
        ),
        (
            "https://json-schema.org/draft/2019-09/schema",
            json!({"exclusiveMaximum": 3}),
            json!({"$anchor": 1}),
        ),
        (
            "https://json-schema.org/draft/2020-12/schema",
            json!({"exclusiveMaximum": 3}),
            json!({"prefixItems": 1}),
        ),
    ] {
        let (mut good, mut bad) = (good, bad);
        good["$schema"] = dialect.into();
        bad["$schema"] = dialect.into();
        let schema = compiled(&good);
        assert!(schema.check(&json!(2)).is_ok() && schema.check(&json!(3)).is_err(), "{dialect}");
        refused(&bad);
    }
    assert!(compiled(&json!({"prefixItems": [{"type": "string"}]})).check(&json!([1])).is_err());
    assert!(compiled(&json!(true)).check(&json!(1)).is_ok());
    assert!(compiled(&json!(false)).check(&json!(1)).is_err());
    assert!(compiled(&json!({})).check(&json!(1)).is_ok());
    assert!(Schema::compile(&json!([]), Formats::Asserted).is_err());
    assert!(Schema::compile(&json!("x"), Formats::Asserted).is_err());
    for dialect in [json!("https://example.com/mine"), json!("http://127.0.0.1:1/schema"), json!(7)] {
        assert_eq!(refused(&json!({"$schema": dialect})).0, "/$schema");
    }
    assert_eq!(
        refused(
            &json!({"properties": {"a": {"$id": "x", "$schema": "http://json-schema.org/draft-07/schema#"}}})
        )
        .0,
        "/properties/a/$schema"
    );
}

#[test]
fn all_violations_of_a_schema_are_returned_with_their_locations() {
    let schema = json!({
        "type": "objekt",
        "properties": {"a": {"minimum": "1"}, "b": {"type": "string"}, "0": {"required": "x"}},
        "allOf": [{}, {"maxLength": -1}],
    });
    let violations = Schema::compile(&schema, Formats::Asserted).unwrap_err();
    let places: Vec<_> = violations.iter().map(pointer).collect();
    for place in ["/type", "/properties/a/minimum", "/properties/0/required", "/allOf/1/maxLength"] {
        assert!(places.iter().any(|got| got == place), "{place} {places:?}");
    }
    assert!(
        violations.iter().any(|violation| violation.loc[1..].first() == Some(&LocSegment::Name("0".into())))
    );
    assert!(violations.iter().any(|violation| violation.loc.get(1) == Some(&LocSegment::Index(1))));
}

#[test]
fn references_inside_the_document_are_followed() {
    for schema in [
        json!({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}),
        json!({"$ref": "#n", "$defs": {"x": {"$anchor": "n", "type": "integer"}}}),
        json!({"$ref": "#/x-own/n", "x-own": {"n": {"type": "integer"}}}),
        json!({"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"type": "integer"}}}),
        json!({"$id": "https://example.com/root", "$ref": "n", "$defs": {"x": {"$id": "n", "type": "integer"}}}),
        json!({"$id": "https://example.com/root", "$ref": "https://example.com/root#/$defs/n", "$defs": {"n": {"type": "integer"}}}),
        json!({"$ref": "urn:x:n", "$defs": {"x": {"$id": "urn:x:n", "type": "integer"}}}),
        json!({"$dynamicRef": "#n", "$defs": {"x": {"$dynamicAnchor": "n", "type": "integer"}}}),
        json!({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#n", "definitions": {"x": {"$id": "#n", "type": "integer"}}}),
        json!({"$schema": "http://json-schema.org/draft-04/schema#", "$ref": "#n", "definitions": {"x": {"id": "#n", "type": "integer"}}}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "integer"}}}),
    ] {
        let schema_ = compiled(&schema);
        assert!(schema_.check(&json!(1)).is_ok() && schema_.check(&json!("x")).is_err(), "{schema}");
    }
    // Not a reference: a property of that name, and data.
    compiled(&json!({"properties": {"$ref": {"type": "string"}}, "const": {"$ref": "http://x/y"}}));
}

#[test]
fn references_without_a_target_in_the_document_are_rejected_at_their_location() {
    for reference in [
        "http://127.0.0.1:1/x",
        "https://example.com/x#/y",
        "file:///etc/passwd",
        "//host/x",
        "other.json",
        "other.json#/a",
        "#/nope",
        "#nope",
        "#/type",
        "urn:x",
    ] {
        let (place, msg) =
            refused(&json!({"type": "object", "properties": {"a": {"items": {"$ref": reference}}}}));
        assert_eq!(place, "/properties/a/items/$ref", "{reference}: {msg}");
        let (place, _) = refused(&json!({"$defs": {"unused": {"$ref": reference}}, "type": "string"}));
        assert_eq!(place, "/$defs/unused/$ref", "{reference}");
    }
    let (place, _) = refused(&json!({"items": {"$dynamicRef": "http://127.0.0.1:1/x"}}));
    assert_eq!(place, "/items/$dynamicRef");
    let violations =
        Schema::compile(&json!({"anyOf": [{"$ref": "a"}, {"$ref": "b"}]}), Formats::Asserted).unwrap_err();
    assert_eq!(violations.len(), 2);
}

#[test]
fn a_broken_identifier_or_reference_is_a_violation_not_a_panic() {
    for id in [
        "http://[bad",
        "%",
        "",
        "#",
        "#a",
        "a#b",
        "http://x/#frag",
        "x y",
        "http://x/##",
        ":",
        "urn:",
        "/",
        "json-schema:///",
    ] {
        for schema in [
            json!({"$id": id, "type": "string"}),
            json!({"$ref": id}),
            json!({"$defs": {"a": {"$id": id, "$ref": "#/b"}}}),
            json!({"$defs": {"a": {"$id": id}}, "items": {"$ref": id}}),
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "$id": id, "definitions": {"a": {"$id": id}}, "items": {"$ref": id}}),
            json!({"$schema": "http://json-schema.org/draft-04/schema#", "id": id, "definitions": {"a": {"id": id}}, "items": {"$ref": id}}),
        ] {
            // Both results are right; it must only terminate.
            if let Ok(schema) = Schema::compile(&schema, Formats::Asserted) {
                let _ = schema.check(&json!(["x"]));
            }
        }
    }
}

#[test]
fn recursive_schemas_that_descend_through_the_data_are_compiled() {
    let tree = compiled(
        &json!({"properties": {"children": {"items": {"$ref": "#"}}, "value": {"type": "integer"}}}),
    );
    assert!(tree.check(&json!({"value": 1, "children": [{"value": 2, "children": []}]})).is_ok());
    assert_eq!(
        places(&tree, &json!({"children": [{"children": [{}, {"value": "x"}]}]})),
        ["/children/0/children/1/value"]
    );
    for schema in [
        json!({"properties": {"next": {"$ref": "#"}}}),
        json!({"properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}}),
        json!({"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}),
        json!({"additionalProperties": {"$ref": "#"}, "properties": {"a": {"$ref": "#"}}}),
        json!({"patternProperties": {"^x": {"$ref": "#"}}, "additionalProperties": {"$ref": "#"}}),
        json!({"prefixItems": [{"$ref": "#"}, {"$ref": "#"}], "items": {"$ref": "#"}}),
        json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#"}}, {"type": "object", "additionalProperties": {"$ref": "#"}}]}),
        json!({"$defs": {"node": {"allOf": [{"$ref": "#/$defs/base"}], "properties": {"children": {"items": {"$ref": "#/$defs/node"}}}},
            "base": {"properties": {"parent": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"}),
        json!({"properties": {"and": {"items": {"$ref": "#"}}, "or": {"items": {"$ref": "#"}}, "not": {"$ref": "#"}}}),
        json!({"properties": {"a": {"$ref": "#"}}, "unevaluatedProperties": false}),
        json!({"$defs": {"base": {"properties": {"a": {"$ref": "#/$defs/base"}}}}, "allOf": [{"$ref": "#/$defs/base"}],
            "properties": {"b": true}, "unevaluatedProperties": false}),
        json!({"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveAnchor": true, "properties": {"a": {"$recursiveRef": "#"}}}),
        json!({"$id": "https://example.com/strict-tree", "$dynamicAnchor": "node", "$ref": "tree", "unevaluatedProperties": false,
            "$defs": {"tree": {"$id": "tree", "$dynamicAnchor": "node", "type": "object",
                "properties": {"data": true, "children": {"type": "array", "items": {"$dynamicRef": "#node"}}}}}}),
        json!({"propertyNames": {"$ref": "#"}, "additionalProperties": {"$ref": "#"}}),
    ] {
        compiled(&schema);
    }
}

#[test]
fn a_schema_that_applies_itself_in_place_is_rejected() {
    for schema in [
        json!({"$ref": "#"}),
        json!({"allOf": [{"$ref": "#"}]}),
        json!({"anyOf": [{"type": "string"}, {"$ref": "#"}]}),
        json!({"oneOf": [{"$ref": "#"}]}),
        json!({"not": {"$ref": "#"}}),
        json!({"if": {"$ref": "#"}}),
        json!({"if": true, "then": {"$ref": "#"}}),
        json!({"if": true, "else": {"$ref": "#"}}),
        json!({"dependentSchemas": {"a": {"$ref": "#"}}}),
        json!({"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": {"$ref": "#"}}}),
        json!({"$dynamicAnchor": "a", "$dynamicRef": "#a"}),
        json!({"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveRef": "#"}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}}),
        json!({"properties": {"a": {"$ref": "#/properties/a"}}}),
        json!({"items": {"$ref": "#/x/y"}, "x": {"y": {"allOf": [{"$ref": "#/x/y"}]}}}),
    ] {
        let (place, msg) = refused(&schema);
        assert!(msg.contains("without end"), "{schema}: {place} {msg}");
    }
}

#[test]
fn patterns_are_linear_and_small() {
    let with = |pattern: &str| json!({"properties": {"a": {"pattern": pattern}}});
    for good in
        ["^a+$", "(a+)+$", "^[\\w.-]+@[a-z]+\\.[a-z]{2,}$", "\\p{L}", "\\d{3}", "^(a|b)$", "a/b", "^\\S*$"]
    {
        compiled(&with(good));
    }
    for (bad, why) in [
        ("(a", "not a regular expression"),
        ("a{1000}{1000}", "KiB"),
        ("((a{100}){100}){100}", "KiB"),
        ("\\p{L}{1000}", "KiB"),
    ] {
        let (place, msg) = refused(&with(bad));
        assert_eq!(place, "/properties/a/pattern");
        assert!(msg.contains(why), "{bad}: {msg}");
        let (place, _) = refused(&json!({"items": {"patternProperties": {bad: true}}}));
        assert_eq!(place, format!("/items/patternProperties/{bad}"));
    }
    let schema = compiled(&with("^(a+)+$"));
    assert!(schema.check(&json!({"a": format!("{}b", "a".repeat(1 << 20))})).is_err());
    // The target of a reference is a schema, wherever it is.
    for schema in [
        json!({"default": {"pattern": "a{1000}{1000}"}, "$ref": "#/default"}),
        json!({"properties": {"default": {"pattern": "a{1000}{1000}"}, "enum": {"pattern": "a{1000}{1000}"}}}),
    ] {
        assert!(refused(&schema).1.contains("KiB"));
    }
    // A name and data are no patterns.
    compiled(&json!({"properties": {"pattern": {"type": "string"}}, "default": {"pattern": "(?=a)"}}));
    let many: serde_json::Map<_, _> =
        (0..9000).map(|n| (format!("p{n}"), json!({"pattern": format!("[a-z]{{30}}{n}")}))).collect();
    let (_, msg) = refused(&json!({"properties": many}));
    assert!(msg.contains("MiB"), "{msg}");
}

#[test]
fn all_violations_are_returned_with_their_locations() {
    let schema = compiled(&json!({
        "type": "object",
        "required": ["x"],
        "properties": {"a": {"type": "integer"}, "b": {"items": {"maxLength": 2}}, "0": {"type": "string"}, "": {"type": "string"}, "s/t~": false},
        "additionalProperties": false,
    }));
    let data = json!({"a": "no", "b": ["ok", "long", "longer"], "0": 1, "": 1, "s/t~": 1, "more": 1});
    let mut got = places(&schema, &data);
    got.sort();
    assert_eq!(got, ["", "", "/", "/0", "/a", "/b/1", "/b/2", "/s/t~"]);
    let violations = schema.check(&data).unwrap_err();
    assert!(violations.iter().any(|violation| violation.loc == [LocSegment::Name("0".into())]));
    assert!(
        violations
            .iter()
            .any(|violation| violation.loc == [LocSegment::Name("b".into()), LocSegment::Index(1)])
    );
    assert!(schema.check(&json!({"x": 1})).is_err());
}

#[test]
fn references_to_parts_of_a_meta_schema_are_followed() {
    for (draft, dialect, pointer, bad) in [
        (4, "http://json-schema.org/draft-04/schema", "definitions/positiveInteger", json!(-1)),
        (4, "http://json-schema.org/draft-04/schema", "properties/title", json!(5)),
        (7, "http://json-schema.org/draft-07/schema", "definitions/nonNegativeInteger", json!(-1)),
        (7, "http://json-schema.org/draft-04/schema", "definitions/simpleTypes", json!("objct")),
        (2020, "https://json-schema.org/draft/2020-12/schema", "properties/definitions", json!(5)),
    ] {
        let own = match draft {
            4 => "http://json-schema.org/draft-04/schema#",
            7 => "http://json-schema.org/draft-07/schema#",
            _ => "https://json-schema.org/draft/2020-12/schema",
        };
        let schema =
            |pointer: &str| json!({"$schema": own, "items": {"$ref": format!("{dialect}#/{pointer}")}});
        let accepted = compiled(&schema(pointer));
        assert_eq!(places(&accepted, &json!([bad])), ["/0"], "{pointer}");
        let (place, text) = refused(&schema("definitions/nothing"));
        assert_eq!(place, "/items/$ref");
        assert!(text.contains("does not resolve"), "{text}");
    }
}

#[test]
fn references_with_characters_that_a_fragment_has_only_encoded_are_followed() {
    for name in ["Value<(number[]|ExprRef)>", "a#b", "50%", "%zz", "A[0]"] {
        let schema =
            compiled(&json!({"$ref": format!("#/$defs/{name}"), "$defs": {name: {"type": "string"}}}));
        assert!(schema.accepts(&json!("a")) && !schema.accepts(&json!(1)), "{name}");
    }
}

#[test]
fn numbers_are_compared_exactly_and_never_expanded() {
    let cases = [
        (r#"{"minimum": 5}"#, "1e999999999", true),
        (r#"{"maximum": 5}"#, "1e999999999", false),
        (r#"{"maximum": 5}"#, "-1e99999999999999999999", true),
        (r#"{"maximum": 5}"#, "1e-999999999", true),
        (r#"{"minimum": 1e999999999}"#, "1e400", false),
        (r#"{"multipleOf": 3}"#, "1e400", false),
        (r#"{"multipleOf": 3}"#, "3e999999999", true),
        (r#"{"multipleOf": 0.01}"#, "0.07", true),
        (r#"{"multipleOf": 1e-999999999}"#, "1", true),
        (r#"{"minimum": 9007199254740993}"#, "9007199254740993.0", true),
        (r#"{"maximum": 1.0}"#, "1.00000000000000000001", false),
        (r#"{"exclusiveMinimum": 1.0}"#, "1.00000000000000000001", true),
        (r#"{"exclusiveMaximum": 9007199254740993.0}"#, "9007199254740993", false),
        (r#"{"multipleOf": 1}"#, "4503599627370496.1", false),
        (r#"{"multipleOf": 5}"#, "5.0000000000000000000001", false),
        (r#"{"multipleOf": 1e-400}"#, "3e-400", true),
        (r#"{"multipleOf": 1e-400}"#, "1e-401", false),
        (r#"{"minLength": 2.0, "maxLength": 20e-1}"#, "\"ab\"", true),
        (r#"{"type": "integer"}"#, "1e400", true),
        (r#"{"type": "integer"}"#, "9007199254740993.00000000000000000001", false),
        (r#"{"type": "integer"}"#, "1e999999999", true),
        (r#"{"type": "integer"}"#, "1e-999999999", false),
        (r#"{"type": "integer"}"#, "7.0", true),
        (r#"{"const": 1e400}"#, "10e399", true),
        (r#"{"const": 1e400}"#, "1e401", false),
        (r#"{"enum": [1e999999999, 2]}"#, "2.0", true),
        (r#"{"const": 123456789012345678901234567890}"#, "123456789012345678901234567891", false),
        (r#"{"maximum": 123456789012345678901234567890}"#, "123456789012345678901234567891", false),
        (r#"{"uniqueItems": true}"#, "[1e400, 1e401, 1e-400, 1e-401]", true),
        (r#"{"uniqueItems": true}"#, "[1, 2, 1.0]", false),
        (
            r#"{"uniqueItems": true}"#,
            "[123456789012345678901234567890, 123456789012345678901234567891]",
            true,
        ),
        (r#"{"uniqueItems": false}"#, "[1, 1]", true),
    ];
    for (schema, data, valid) in cases {
        assert_eq!(compiled(&parse(schema)).check(&parse(data)).is_ok(), valid, "{schema} {data}");
    }
}

#[test]
fn a_violated_bound_is_named_with_its_number() {
    let schema = compiled(&parse(
        r#"{"items": {"minimum": 1.50, "exclusiveMinimum": 1, "maximum": 2e3, "exclusiveMaximum": 5000, "multipleOf": 0.5}}"#,
    ));
    let text =
        |data: &str| schema.check(&parse(data)).unwrap_err().into_iter().map(|violation| violation.msg);
    assert_eq!(
        text("[1.0, 5000, 1.75]").collect::<Vec<_>>(),
        [
            "1.0 is less than the minimum of 1.50",
            "1.0 is less than or equal to the minimum of 1",
            "5000 is greater than the maximum of 2e+3",
            "5000 is greater than or equal to the maximum of 5000",
            "1.75 is not a multiple of 0.5",
        ]
    );
    let draft4 =
        r#"{"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": true}"#;
    let draft4 = compiled(&parse(draft4));
    assert!(draft4.check(&parse("1.0")).is_err());
    assert!(draft4.check(&parse("1.00000000000000000001")).is_ok());
}

#[test]
fn large_schemas_are_compiled() {
    let wide: serde_json::Map<_, _> =
        (0..8000).map(|n| (format!("p{n}"), json!({"type": "string"}))).collect();
    let schema = compiled(&json!({"properties": wide, "additionalProperties": false}));
    assert_eq!(places(&schema, &json!({"p7": 1})), ["/p7"]);
    let options: Vec<_> = (0..20_000).map(|n| json!(format!("o{n}"))).collect();
    assert!(compiled(&json!({"enum": options})).check(&json!("o19999")).is_ok());
    let defs: serde_json::Map<_, _> = (0..2000)
        .map(|n| {
            (format!("d{n}"), json!({"properties": {"x": {"$ref": format!("#/$defs/d{}", (n + 1) % 2000)}}}))
        })
        .collect();
    compiled(&json!({"$defs": defs, "$ref": "#/$defs/d0"}));
}

#[test]
fn a_schema_is_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Schema>();
}

mod bounds;
mod unions;
mod wide;
