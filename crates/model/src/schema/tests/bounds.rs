//! Bounded time: a schema that would take long is rejected when it is compiled, and data before it is checked.

use super::*;

/// `levels` definitions, each of which applies the next twice through `wrap`.
fn chain(levels: usize, wrap: impl Fn(Value) -> Value) -> Value {
    let mut schema = json!({"$ref": "#/$defs/d0", "$defs": {}});
    for level in 0..levels {
        schema["$defs"][format!("d{level}")] = wrap(json!({"$ref": format!("#/$defs/d{}", level + 1)}));
    }
    schema["$defs"][format!("d{levels}")] = json!({"type": "object"});
    schema
}

#[test]
fn only_a_chain_that_doubles_at_one_place_is_rejected() {
    for wrap in [
        |next: Value| json!({"allOf": [next, next]}),
        |next: Value| json!({"anyOf": [next, next]}),
        |next: Value| json!({"oneOf": [next, next]}),
        |next: Value| json!({"if": next, "then": next}),
        |next: Value| json!({"not": next, "else": next, "$ref": next["$ref"]}),
        |next: Value| json!({"dependentSchemas": {"a": next, "b": next}}),
        |next: Value| json!({"anyOf": [next], "unevaluatedProperties": false}),
        |next: Value| json!({"anyOf": [next], "unevaluatedItems": false}),
    ] {
        let (place, msg) = refused(&chain(40, wrap));
        assert!(msg.contains("more than 10000 evaluations"), "{place} {msg}");
        assert!(place.starts_with("/$defs/d"), "{place}");
        compiled(&chain(3, wrap));
    }
    compiled(&chain(40, |next| json!({"allOf": [next]})));
    compiled(&chain(40, |next| json!({"properties": {"a": next, "b": next}})));
    refused(&chain(500, |next| json!({"allOf": [next]})));
}

/// Nested objects or arrays of this depth.
fn nest(depth: usize, wrap: impl Fn(Value) -> Value) -> Value {
    (0..depth).fold(json!({}), |inner, _| wrap(inner))
}

/// Asserts that the check of deep data is rejected for its cost, and that shallow data is checked.
fn is_bounded_by_its_data(schema: &Value) {
    let schema = compiled(schema);
    let too_much = |data: &Value| {
        let violations = schema.check(data).err().unwrap_or_default();
        violations.iter().any(|violation| violation.msg.contains("evaluations"))
    };
    let object = |depth| nest(depth, |inner| json!({"a": inner}));
    let array = |depth| nest(depth, |inner| json!([inner]));
    let through = |depth| nest(depth, |inner| json!({"a": {"b": {"c": inner}}}));
    assert!([object(40), array(40), through(40)].iter().any(too_much), "{schema:?}");
    assert!(![object(2), array(2), through(2)].iter().any(too_much), "{schema:?}");
}

#[test]
fn a_chain_that_doubles_from_level_to_level_is_admitted_and_bounded_by_its_data() {
    for wrap in [
        |next: Value| json!({"properties": {"a": {"allOf": [next, next]}}}),
        |next: Value| json!({"properties": {"a": next}, "patternProperties": {"a": next}}),
        |next: Value| json!({"patternProperties": {"a": next, "^a$": next}}),
        |next: Value| json!({"items": next, "contains": next}),
        |next: Value| json!({"prefixItems": [next], "contains": next}),
        |next: Value| json!({"items": {"anyOf": [next, next]}}),
    ] {
        is_bounded_by_its_data(&chain(40, wrap));
    }
}

#[test]
fn recursion_that_multiplies_with_the_depth_is_admitted_and_bounded_by_its_data() {
    for schema in [
        json!({"properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}}),
        json!({"allOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}]}),
        json!({"anyOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}}]}),
        json!({"items": {"$ref": "#"}, "contains": {"$ref": "#"}}),
        json!({"additionalProperties": {"$ref": "#"}, "allOf": [{"additionalProperties": {"$ref": "#"}}]}),
        json!({"properties": {"a": {"properties": {"b": {"properties": {"c": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}}}}}}),
        json!({"$defs": {"x": {"properties": {"a": {"$ref": "#"}}}, "y": {"properties": {"a": {"$ref": "#"}}}},
            "oneOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}]}),
    ] {
        is_bounded_by_its_data(&schema);
    }
}

#[test]
fn compiling_embedded_documents_that_refer_to_each_other_terminates() {
    let mut schema = json!({"$id": "https://example.com/r", "$ref": "d0", "$defs": {}});
    for n in 0..12 {
        let others: Vec<_> =
            (0..12).map(|m| json!({"properties": {format!("p{m}"): {"$ref": format!("d{m}")}}})).collect();
        schema["$defs"][format!("d{n}")] = json!({"$id": format!("d{n}"), "allOf": others});
    }
    // Every order of documents is a separate scope.
    refused(&schema);
    // So are routes around a cycle of documents through other parts of them.
    let mut cycle = json!({"$id": "https://example.com/r", "$ref": "d0#/$defs/x0", "$defs": {}});
    for n in 0..3 {
        for m in 0..12 {
            let next =
                |other: usize| json!({"$ref": format!("d{}#/$defs/x{}", (n + other) % 3, (m + 1) % 12)});
            cycle["$defs"][format!("d{n}")]["$id"] = format!("d{n}").into();
            cycle["$defs"][format!("d{n}")]["$defs"][format!("x{m}")] =
                json!({"properties": {"a": next(1), "b": next(2)}});
        }
    }
    assert!(refused(&cycle).1.contains("in circles"));
    let one = json!({"$id": "https://example.com/r", "properties": {"a": {"$ref": "d0"}, "b": {"$ref": "d1"}}, "$defs": {
        "d0": {"$id": "d0", "properties": {"x": {"$ref": "d1"}}}, "d1": {"$id": "d1", "properties": {"x": {"$ref": "d0"}}}}});
    compiled(&one);
}

#[test]
fn violations_are_bounded_in_number_and_length() {
    let schema = compiled(&json!({"items": {"type": "string"}}));
    assert_eq!(schema.check(&json!(vec![1; 5000])).unwrap_err().len(), VIOLATIONS_MAX);
    let schema = compiled(&json!({"anyOf": [{"type": "string"}, {"maxProperties": 0}]}));
    let violations = schema.check(&json!({"ä": "€".repeat(300_000)})).unwrap_err();
    assert!(violations[0].msg.len() <= VIOLATION_TEXT_BYTES_MAX + 3, "{}", violations[0].msg.len());
    assert!(violations[0].msg.ends_with('…'));
}

#[test]
fn violations_below_long_names_are_not_collected() {
    let schema = compiled(&json!({"additionalProperties": {"items": {"type": "string"}}}));
    let data = |name: usize, elements: usize| json!({ "x".repeat(name): vec![1; elements] });
    let listed = schema.check(&data(100, 1000)).unwrap_err();
    assert_eq!(listed.len(), VIOLATIONS_MAX);
    let hostile = schema.check(&data(600_000, 10_000)).unwrap_err();
    assert_eq!((hostile.len(), hostile[0].loc.len()), (1, 0), "too large to list");
    // As many as an answer has room for.
    let some = schema.check(&data(600_000, 50)).unwrap_err();
    assert!((1..10).contains(&some.len()), "{}", some.len());
}

#[test]
fn patterns_that_the_engine_follows_position_by_position_are_priced_by_their_positions() {
    // Each text would take about a millisecond, a thousand times; the automaton of the combinations is never cached.
    let slow = |text: &str| json!({"items": {"type": "string", "pattern": text}});
    let texts = json!(vec!["ab".repeat(125); 5000]);
    for pattern in ["[ab]*a[ab]{300}$", "([ab]|c)*a([ab]|c){20}([ab]|c){280}"] {
        let violations = compiled(&slow(pattern)).check(&texts).unwrap_err();
        assert!(violations[0].msg.contains("evaluations"), "{violations:?}");
    }
    let names: serde_json::Map<_, _> =
        (0..5000).map(|n| (format!("{n}{}", "ab".repeat(125)), json!(1))).collect();
    for schema in [
        json!({"patternProperties": {"[ab]*a[ab]{300}$": {"type": "string"}}}),
        json!({"propertyNames": {"pattern": "[ab]*a[ab]{300}$"}}),
    ] {
        assert!(compiled(&schema).check(&Value::Object(names.clone())).is_err(), "{schema}");
        assert!(compiled(&schema).price(&Value::Object(names.clone())).is_err(), "{schema}");
    }
    // What people write stays far below: a megabyte of short texts.
    let many = json!(vec!["0a1b2c3d-0123-4567-89ab-0123456789ab"; 25_000]);
    let uuid = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$";
    for pattern in [uuid, "^[a-z0-9-]+$", "^.{1,100}$", r"^\p{L}*[0-9a-f-]+$"] {
        compiled(&slow(pattern)).check(&many).unwrap();
    }
}

#[test]
fn no_writing_of_a_pattern_hides_its_price() {
    let price = |pattern: &str| {
        let schema = compiled(&json!({"items": {"type": "string", "pattern": pattern}}));
        schema.price(&json!(vec!["ab".repeat(125); 100])).unwrap()
    };
    let plain = price("[ab]*a[ab]{300}$");
    assert!(plain >= 100 * 250 * 300 / 16, "{plain}");
    for pattern in ["(?x)#{\n[ab]*a[ab]{300}$", "[]{]?[ab]*a[ab]{300}$", r"[ab]*a[\cAab]{300}$"] {
        assert!(price(pattern) >= plain, "{pattern}: {} beside {plain}", price(pattern));
    }
}

#[test]
fn patterns_with_too_many_positions_are_rejected_by_name() {
    let repeated = |name: &str| format!("{name}{{9223372036854775807}}{{2}}");
    let schema = json!({"patternProperties": {repeated("a"): {}, repeated("b"): {}}});
    let (place, msg) = refused(&schema);
    assert!(
        place.starts_with("/patternProperties/") && msg.contains("not a regular expression"),
        "{place}: {msg}"
    );
    let nested = "(?:a{4000000000}){4000000000}{4000000000}";
    let (_, msg) = refused(
        &json!({"items": {"pattern": nested}, "patternProperties": {nested: {}, "b{3000000000}": {}}}),
    );
    assert!(msg.contains("KiB"), "{msg}");
}

#[test]
fn checks_of_hostile_numbers_and_arrays_terminate() {
    let array = |item: &dyn Fn(usize) -> String, bytes: usize| {
        let mut text = String::from("[");
        for n in 0.. {
            if text.len() > bytes {
                break;
            }
            text.push_str(&item(n));
            text.push(',');
        }
        text.push_str("0.5]");
        parse(&text)
    };
    let unique = compiled(&json!({"uniqueItems": true}));
    // These have equal hashes; a hash table would compare each pair.
    assert!(unique.check(&array(&|n| format!("1e{}", 400 + n), 1 << 20)).is_ok());
    assert!(unique.check(&array(&|n| format!("12345678901234567890{n}"), 1 << 20)).is_ok());
    let nested = |n: usize| {
        (0..17).map(|bit| if n >> bit & 1 == 1 { "[]" } else { "[[]]" }).collect::<Vec<_>>().join(",")
    };
    assert!(unique.check(&array(&|n| format!("[{}]", nested(n)), 1 << 20)).is_ok());
    for schema in [
        r#"{"items": {"multipleOf": 0.7}}"#,
        r#"{"items": {"minimum": 12345678901234567890123}}"#,
        r#"{"items": {"enum": [1e9999, 1e-9999, 3e9998]}}"#,
        r#"{"items": {"type": "integer"}}"#,
    ] {
        let schema = compiled(&parse(schema));
        for number in ["1e9999", "1e-9998", "7e4000", "1e999999999"] {
            let _ = schema.check(&array(&|_| number.into(), 1 << 20));
        }
        let _ = schema.check(&parse(&"9".repeat(1 << 20)));
        let _ = schema.check(&parse(&format!("[{}]", "9".repeat(1 << 20))));
    }
    // A remainder by a divisor of a million digits would take a minute.
    let divisor = compiled(&parse(&format!(r#"{{"multipleOf": 1.{}1}}"#, "0".repeat(1 << 20))));
    let violations = divisor.check(&parse("5")).unwrap_err();
    assert!(violations[0].msg.contains("evaluations"), "{violations:?}");
}

#[test]
fn a_check_that_would_cost_too_much_is_rejected() {
    let chain = chain(10, |next| json!({"allOf": [next, next]}));
    let costly = json!({"items": {"$ref": "#/$defs/d0"}, "$defs": chain["$defs"]});
    let schema = compiled(&costly);
    assert!(schema.check(&json!([{}, {}])).is_ok());
    let violations = schema.check(&json!(vec![json!({}); 100_000])).unwrap_err();
    assert!(violations[0].msg.contains("evaluations"), "{violations:?}");
    // Places without a constraint cost nothing.
    let mut unconstrained = costly.clone();
    unconstrained["items"] = true.into();
    unconstrained["prefixItems"] = json!([{"$ref": "#/$defs/d0"}]);
    assert!(compiled(&unconstrained).check(&json!(vec![json!({}); 100_000])).is_ok());
    let wide = compiled(&json!({"items": {"multipleOf": 0.7}}));
    assert!(wide.check(&json!(vec![parse("7e300"); 1000])).is_ok());
    let violations = wide.check(&json!(vec![parse("7e300"); 100_000])).unwrap_err();
    assert!(violations[0].msg.contains("evaluations"), "{violations:?}");
    // Listing the violations would cost more than finding that there are some.
    let strict = compiled(&json!({"items": {"allOf": vec![json!({"type": "string"}); 30]}}));
    assert!(strict.check(&json!(vec!["x"; 100_000])).is_ok());
    let violations = strict.check(&json!(vec![1; 100_000])).unwrap_err();
    assert!(violations.len() == 1 && violations[0].msg.contains("too large to list"), "{violations:?}");
    let union: Vec<_> = (0..300)
        .map(
            |n| json!({"properties": {"kind": {"const": n}, "x": {"type": "integer"}}, "required": ["kind"]}),
        )
        .collect();
    let schema = compiled(&json!({"properties": {"list": {"items": {"anyOf": union}}}}));
    let items: Vec<_> = (0..5000).map(|n| json!({"kind": n % 300, "x": 1})).collect();
    assert!(schema.check(&json!({"list": items})).is_ok());
}

#[test]
fn the_deepest_data_and_schemas_fit_on_a_small_stack() {
    let deep = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!({"a": inner}));
    let tree = compiled(
        &json!({"type": "object", "additionalProperties": {"anyOf": [{"type": "integer"}, {"$ref": "#"}]}}),
    );
    assert!(tree.check(&deep(120)).is_ok());
    assert!(tree.check(&(0..120).fold(json!("x"), |inner, _| json!({"a": inner}))).is_err());
    let looped = |levels: usize| {
        let mut schema = chain(levels, |next| json!({"anyOf": [next]}));
        schema["$defs"][format!("d{levels}")] =
            json!({"type": "object", "additionalProperties": {"$ref": "#/$defs/d0"}});
        compiled(&schema)
    };
    // As many nested applications as are allowed, with violations at the end.
    for (levels, depth) in [(8, 82), (50, 13), (110, 5)] {
        let violations = looped(levels).check(&deep(depth)).unwrap_err();
        assert!(!violations[0].msg.contains("too deep"), "{levels} {depth}: {violations:?}");
    }
    let violations = looped(80).check(&deep(60)).unwrap_err();
    assert!(violations[0].msg.contains("too deep"), "{violations:?}");
    let schema = (0..30).fold(json!({"type": "object"}), |inner, _| json!({"allOf": [inner]}));
    assert!(compiled(&schema).check(&json!({})).is_ok());
    let schema = (0..31).fold(json!({"type": "integer"}), |inner, _| json!({"properties": {"a": inner}}));
    assert!(compiled(&schema).check(&deep(31)).is_ok());
}

#[test]
fn patterns_with_a_long_translation_are_rejected_before_it_begins() {
    for pattern in [
        r"\s".repeat(12_000),
        r"\cA".repeat(50_000),
        r"\d\w".repeat(20_000),
        "[a]".to_owned() + &r"\S".repeat(5_000),
    ] {
        let (place, msg) = refused(&json!({"pattern": pattern}));
        assert!(msg.contains("too many character classes"), "{place} {msg}");
        assert_eq!(place, "/pattern");
        refused(&json!({"patternProperties": {&pattern: true}}));
    }
    // Together they are as costly as one of them.
    let many = |count: usize| {
        let patterns =
            (0..count).map(|n| (format!("p{n}"), json!({"pattern": r"\s".repeat(30) + &n.to_string()})));
        json!({"properties": serde_json::Map::from_iter(patterns)})
    };
    let (_, msg) = refused(&many(200));
    assert!(msg.contains("too many character classes"), "{msg}");
    compiled(&many(10));
    // What people write stays far below the limit, and an escaped backslash begins no class.
    let usual =
        (0..300).map(|n| (format!("p{n}"), json!({"pattern": format!(r"^\d{{4}}-\d{{2}}-\w+\s*{n}$")})));
    compiled(&json!({"properties": serde_json::Map::from_iter(usual)}));
    compiled(&json!({"pattern": r"\s".repeat(100)}));
    compiled(&json!({"pattern": r"\\s".repeat(2_000)}));
}
