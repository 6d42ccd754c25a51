//! What costs more than its size tells, and is admitted: recursive unions, larger patterns, patterns that backtrack,
//! asserted formats, references to the drafts' meta-schemas.

use super::*;

/// A tree of conditions, as Pydantic writes them: three kinds of nodes that recurse through members of the same name.
fn rules() -> Value {
    let list = |op: &str| {
        json!({"type": "object", "required": ["op", "args"], "additionalProperties": false,
               "properties": {"op": {"const": op}, "args": {"type": "array", "items": {"$ref": "#/$defs/Rule"}}}})
    };
    json!({
        "$defs": {
            "And": list("and"), "Or": list("or"), "Not": list("not"),
            "Is": {"type": "object", "required": ["op", "field"], "additionalProperties": false,
                   "properties": {"op": {"const": "is"}, "field": {"type": "string"}}},
            "Rule": {"anyOf": [{"$ref": "#/$defs/And"}, {"$ref": "#/$defs/Or"}, {"$ref": "#/$defs/Not"}, {"$ref": "#/$defs/Is"}]}
        },
        "$ref": "#/$defs/Rule"
    })
}

fn nested(depth: usize) -> Value {
    let leaf = json!({"op": "is", "field": "a"});
    (0..depth).fold(leaf, |inner, level| {
        let op = ["and", "or", "not"][level % 3];
        json!({"op": op, "args": [inner]})
    })
}

#[test]
fn a_recursive_union_compiles_and_the_cost_of_a_check_bounds_its_data() {
    let schema = compiled(&rules());
    for depth in 0..9 {
        schema.check(&nested(depth)).unwrap();
    }
    let wrong = json!({"op": "and", "args": [{"op": "or", "args": [{"op": "is", "field": 7}]}]});
    assert!(schema.check(&wrong).is_err());
    let violations = schema.check(&nested(30)).unwrap_err();
    assert!(violations[0].msg.contains("evaluations"), "{violations:?}");
    // A self-application stays rejected: no data could be checked.
    assert!(
        Schema::compile(&json!({"anyOf": [{"$ref": "#"}, {"type": "null"}]}), Formats::Asserted).is_err()
    );
}

#[test]
fn everyday_patterns_are_admitted() {
    for (pattern, good, bad) in [
        ("^.{1,255}$", "a".repeat(255), "a".repeat(256)),
        ("^.{1,1000}$", "ä".repeat(1000), String::new()),
        (r"^\S{1,500}$", "x".into(), "x y".into()),
        (r"^\p{L}{1,100}$", "Łódź".into(), "7".into()),
    ] {
        let schema = compiled(&json!({"pattern": pattern}));
        assert!(schema.accepts(&good.into()) && !schema.accepts(&bad.into()), "{pattern}");
    }
}

#[test]
fn patterns_that_look_around_are_admitted_and_end_after_some_steps() {
    for (pattern, good, bad) in [
        // Pydantic's Decimal, zod's duration and hostname.
        (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", "-12.50", "+."),
        (r"^P(?!$)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?$", "P1DT2H", "P"),
        (r"^(?=.{1,253}\.?$)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9]+)*$", "a.example", "-a"),
        (r"^(a|b)\1$", "aa", "ab"),
    ] {
        let schema = compiled(&json!({"properties": {"v": {"type": "string", "pattern": pattern}}}));
        assert!(schema.accepts(&json!({"v": good})), "{pattern} {good}");
        assert!(!schema.accepts(&json!({"v": bad})), "{pattern} {bad}");
    }
    let doubling = compiled(&json!({"items": {"pattern": r"^(?=a)(a|aa|a\B)+$"}}));
    let violations = doubling.check(&json!(["a".repeat(60) + "b"])).unwrap_err();
    assert!(violations[0].msg.contains("steps"), "{violations:?}");
    let many = json!(vec!["a".repeat(60) + "b"; 100_000]);
    assert!(doubling.check(&many).unwrap_err()[0].msg.contains("evaluations"));
    compiled(&json!({"patternProperties": {"^(?!x)": {"type": "integer"}}}));
    let long = format!("(?=a){}", "a".repeat(5000));
    assert!(Schema::compile(&json!({"pattern": long}), Formats::Asserted).is_err());
}

#[test]
fn formats_are_asserted_in_every_draft_unless_switched_off() {
    for draft in ["draft-04/schema#", "draft-06/schema#", "draft-07/schema#", "", "2019-09"] {
        let mut schema = json!({"properties": {"m": {"format": "email"}, "u": {"format": "unheard-of"}}});
        match draft {
            "" => {}
            "2019-09" => schema["$schema"] = "https://json-schema.org/draft/2019-09/schema".into(),
            old => schema["$schema"] = format!("http://json-schema.org/{old}").into(),
        }
        let bad = json!({"m": "nobody", "u": "anything"});
        let violations = compiled(&schema).check(&bad).unwrap_err();
        assert_eq!(violations.len(), 1, "{draft}");
        assert_eq!(pointer(&violations[0]), "/m");
        assert!(violations[0].msg.contains("format_assertion"), "{violations:?}");
        let off = Schema::compile(&schema, Formats::Annotated).unwrap();
        assert!(off.accepts(&bad), "{draft}");
    }
    let regex = compiled(&json!({"format": "regex"}));
    assert!(regex.accepts(&"^a{1,9}(?=b)$".into()) && !regex.accepts(&"a(".into()));
    assert!(!regex.accepts(&"(?<a>x)".repeat(200_000).into()));
}

#[test]
fn a_reference_to_a_meta_schema_is_resolved_without_fetching_it() {
    for uri in [
        "http://json-schema.org/draft-07/schema#",
        "http://json-schema.org/draft-04/schema#",
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft/2019-09/schema",
    ] {
        let schema = compiled(&json!({"properties": {"s": {"$ref": uri}}}));
        assert!(schema.accepts(&json!({"s": {"type": "string", "properties": {"a": {}}}})), "{uri}");
        assert!(!schema.accepts(&json!({"s": {"properties": {"a": {"type": 7}}}})), "{uri}");
    }
    for uri in ["http://example.com/other", "http://json-schema.org/draft-09/schema#"] {
        assert!(Schema::compile(&json!({"$ref": uri}), Formats::Asserted).is_err(), "{uri}");
    }
}

#[test]
fn references_whose_text_is_no_uri_are_followed() {
    let schema = compiled(&json!({
        "definitions": {"Page<Item>": {"type": "string"}}, "$defs": {"Größe": {"type": "integer"}},
        "properties": {"a": {"$ref": "#/definitions/Page<Item>"}, "b": {"$ref": "#/$defs/Größe"}}
    }));
    assert!(schema.accepts(&json!({"a": "x", "b": 1})));
    assert_eq!(places(&schema, &json!({"a": 1, "b": "x"})), ["/a", "/b"]);
    let nowhere = Schema::compile(&json!({"$ref": "#/$defs/ä"}), Formats::Asserted).unwrap_err();
    assert!(nowhere[0].msg.contains("does not resolve"), "{nowhere:?}");
}

#[test]
fn a_remote_reference_is_called_one_also_with_a_fragment() {
    for remote in ["http://example.com/x", "http://example.com/x#/a", "x.json#a"] {
        let violations =
            Schema::compile(&json!({"properties": {"s": {"$ref": remote}}}), Formats::Asserted).unwrap_err();
        assert!(violations[0].msg.contains("Concord fetches nothing"), "{remote}: {violations:?}");
    }
    let local = json!({"$id": "http://example.com/r", "$defs": {"a": {"$id": "a"}}, "$ref": "a#/nowhere"});
    let violations = Schema::compile(&local, Formats::Asserted).unwrap_err();
    assert!(violations[0].msg.contains("does not resolve"), "{violations:?}");
}

#[test]
fn the_reference_keyword_of_another_draft_does_not_count() {
    let draft = |name: &str| format!("https://json-schema.org/draft/{name}/schema");
    for (name, keyword) in [("2019-09", "$dynamicRef"), ("2020-12", "$recursiveRef")] {
        let schema = json!({"$schema": draft(name), "properties": {"s": {keyword: "#x"}}});
        assert!(compiled(&schema).accepts(&json!({"s": 1})), "{name}");
    }
}
