//! Which places are secret.

use serde_json::json;

use super::*;
use crate::schema::{Formats, Schema};

/// The secret fields of data, as JSON pointers.
fn found(schema: &Value, data: &Value) -> Vec<String> {
    let schema = Schema::compile(schema, Formats::Asserted)
        .unwrap_or_else(|violations| panic!("{schema}: {violations:?}"));
    let mut all = Vec::new();
    if let Some(secrets) = schema.secrets() {
        secrets.visit(data, data.to_string().len(), &mut |path, _| {
            assert_eq!(secrets.at(path), Secrecy::Secret(path.len()), "{path:?}");
            all.push(path.iter().fold(String::new(), |text, segment| match segment {
                LocSegment::Name(name) => format!("{text}/{name}"),
                LocSegment::Index(index) => format!("{text}/{index}"),
            }));
        });
        let mut changed = data.clone();
        secrets.visit_mut(&mut changed, data.to_string().len(), &mut |_, value| *value = json!("hidden"));
        let hidden = changed.to_string().matches("\"hidden\"").count();
        assert_eq!(hidden, all.len(), "{changed}");
    }
    all
}

#[test]
fn a_schema_without_a_mark_has_no_secret_places() {
    for schema in [
        json!({}),
        json!(true),
        json!({"properties": {"a": {"x-concord-secret": false}}}),
        json!({"$defs": {"unused": {"x-concord-secret": true}}}),
        json!({"default": {"x-concord-secret": true}, "properties": {"x-concord-secret": {}}}),
        json!({"propertyNames": {"x-concord-secret": true}}),
    ] {
        assert!(Schema::compile(&schema, Formats::Asserted).unwrap().secrets().is_none(), "{schema}");
    }
}

#[test]
fn a_mark_counts_wherever_its_subschema_applies() {
    let mark = json!({"x-concord-secret": true});
    for (schema, data, expected) in [
        (mark.clone(), json!({"a": 1}), vec![""]),
        (json!({"properties": {"a": mark}}), json!({"a": {"b": 1}, "b": 1}), vec!["/a"]),
        (json!({"properties": {"a": {"x-concord-secret": "true"}}}), json!({"a": 1}), vec!["/a"]),
        (
            json!({"$defs": {"s": mark}, "properties": {"a": {"$ref": "#/$defs/s"}}}),
            json!({"a": 1}),
            vec!["/a"],
        ),
        (
            json!({"allOf": [{"anyOf": [{}, {"oneOf": [{"properties": {"a": mark}}, {}]}]}]}),
            json!({"a": 1}),
            vec!["/a"],
        ),
        (json!({"if": {}, "then": {}, "else": {"properties": {"a": mark}}}), json!({"a": 1}), vec!["/a"]),
        (json!({"not": {"required": ["z"], "properties": {"a": mark}}}), json!({"a": 1}), vec!["/a"]),
        (json!({"dependentSchemas": {"b": {"properties": {"a": mark}}}}), json!({"a": 1}), vec!["/a"]),
        (
            json!({"properties": {"l": {"items": {"properties": {"t": mark}}}}}),
            json!({"l": [{"t": 1}, {}, {"t": 2, "u": 3}]}),
            vec!["/l/0/t", "/l/2/t"],
        ),
        (
            json!({"properties": {"l": {"prefixItems": [{}, mark, true], "items": mark}}}),
            json!({"l": [0, 1, 2, 3]}),
            vec!["/l/1", "/l/3"],
        ),
        (json!({"properties": {"l": {"contains": mark}}}), json!({"l": [0, 1]}), vec!["/l/0", "/l/1"]),
        (
            json!({"properties": {"m": {"properties": {"open": true}, "patternProperties": {"^x-": false, "^o": {}}, "additionalProperties": mark}}}),
            json!({"m": {"open": 1, "other": 2, "x-y": 3, "k": 4}}),
            vec!["/m/k"],
        ),
        (
            json!({"patternProperties": {"_key$": mark, "x": {}}}),
            json!({"a_key": 1, "key": 2, "x": 3}),
            vec!["/a_key"],
        ),
        (
            json!({"unevaluatedProperties": mark, "properties": {"a": {}}}),
            json!({"a": 1, "b": 2}),
            vec!["/b"],
        ),
        // Deep below itself.
        (
            json!({"properties": {"next": {"$ref": "#"}, "pin": mark}}),
            json!({"next": {"next": {"pin": 1}, "pin": 2}}),
            vec!["/next/next/pin", "/next/pin"],
        ),
        // The outermost place is the value.
        (
            json!({"properties": {"a": {"x-concord-secret": true, "properties": {"b": mark}}}}),
            json!({"a": {"b": 1}}),
            vec!["/a"],
        ),
        // Siblings of a reference are ignored in old drafts; a mark is not.
        (
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"s": {}}, "properties": {"a": {"$ref": "#/definitions/s", "x-concord-secret": true}}}),
            json!({"a": 1}),
            vec!["/a"],
        ),
        (
            json!({"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"l": {"items": [{}, mark], "additionalItems": mark}}}),
            json!({"l": [0, 1, 2]}),
            vec!["/l/1", "/l/2"],
        ),
    ] {
        assert_eq!(found(&schema, &data), expected, "{schema}");
    }
}

#[test]
fn a_place_knows_what_is_above_and_below_it() {
    let schema =
        json!({"properties": {"db": {"properties": {"login": {"x-concord-secret": true}}}, "n": {}}});
    let schema = Schema::compile(&schema, Formats::Asserted).unwrap();
    let secrets = schema.secrets().unwrap();
    let at =
        |names: &[&str]| secrets.at(&names.iter().map(|name| LocSegment::from(*name)).collect::<Vec<_>>());
    assert_eq!(at(&[]), Secrecy::AboveSecret);
    assert_eq!(at(&["db"]), Secrecy::AboveSecret);
    assert_eq!(at(&["db", "login"]), Secrecy::Secret(2));
    assert_eq!(at(&["db", "login", "user"]), Secrecy::Secret(2));
    assert_eq!((at(&["n"]), at(&["db", "host"])), (Secrecy::Open, Secrecy::Open));
}

/// Data for which the walk would take long are secret from the place on at which its steps are used up.
#[test]
fn a_visit_ends_and_the_rest_counts_as_secret() {
    let variants: Vec<Value> = (0..300)
        .map(|n| json!({"items": {"minimum": n, "properties": {"s": {"x-concord-secret": true}}}}))
        .collect();
    let schema = json!({"properties": {"l": {"anyOf": variants}}});
    let schema = Schema::compile(&schema, Formats::Asserted).unwrap();
    let secrets = schema.secrets().unwrap();
    let data = json!({"l": vec![json!({}); 100_000]});
    let bytes = data.to_string().len();
    let mut count = 0;
    secrets.visit(&data, bytes, &mut |_, _| count += 1);
    assert!(count > 0, "{}", secrets.steps_max(bytes));
    let few = json!({"l": vec![json!({}); 100]});
    secrets.visit(&few, few.to_string().len(), &mut |path, _| panic!("{path:?}"));
}

/// The steps of matching a text with many `a` double with each of them.
const SLOW: &str = r"^(?=a)(a|aa|a\B)+$";

/// The names are matched by the engine that backtracks; what it can't decide in time counts as secret.
#[test]
fn a_pattern_that_backtracks_names_secret_members() {
    let mark = json!({"x-concord-secret": true});
    let open_names = json!({"patternProperties": {"^(?!public_)": mark}});
    let data = json!({"public_a": 1, "b": 2, "c": {"public_d": 3}});
    assert_eq!(found(&open_names, &data), ["/b", "/c"]);
    let others = json!({"patternProperties": {"^(?!public_)": {}, "^x$": {}}, "additionalProperties": mark});
    assert_eq!(found(&others, &data), ["/public_a"]);

    let name = "a".repeat(60) + "b";
    let data = json!({"a": 1, &name: 2, "x": 3});
    let named = json!({"patternProperties": {SLOW: mark}});
    assert_eq!(found(&named, &data), ["/a".to_owned(), format!("/{name}")]);
    let not_named = json!({"patternProperties": {SLOW: {}}, "additionalProperties": mark});
    assert_eq!(found(&not_named, &data), [format!("/{name}"), "/x".to_owned()]);
    let narrow = json!({"patternProperties": {SLOW: {"x-concord-secret": true, "type": "string"}}});
    let compiled = Schema::compile(&narrow, Formats::Asserted).unwrap();
    let violations = compiled.check(&json!({&name: 2})).unwrap_err();
    assert!(violations[0].msg.contains("2000 steps"), "{violations:?}");
    assert!(violations.iter().all(|violation| !violation.msg.contains(&name)), "{violations:?}");
}

/// Names that take long are paid for: after the steps of a visit what is left counts as secret.
#[test]
fn many_names_of_patterns_that_backtrack_end_a_visit() {
    let patterns: Map<String, Value> = (0..100)
        .map(|n| (format!("^(?=x{n})"), json!({"properties": {"s": {"x-concord-secret": true}}})))
        .collect();
    let schema = json!({"properties": {"m": {"patternProperties": patterns}}});
    let schema = Schema::compile(&schema, Formats::Asserted).unwrap();
    let secrets = schema.secrets().unwrap();
    let names = |count: usize| (0..count).map(|n| (format!("k{n}"), json!(1))).collect::<Value>();
    let visited = |data: &Value| {
        let mut all = Vec::new();
        secrets.visit(data, data.to_string().len(), &mut |path, _| all.push(path.to_vec()));
        all
    };
    assert_eq!(visited(&json!({"m": names(10)})), Vec::<Vec<LocSegment>>::new());
    assert_eq!(visited(&json!({"m": names(10_000)})), [vec![LocSegment::from("m")]]);
    let path = [LocSegment::from("m"), LocSegment::from("k0")];
    assert_eq!(secrets.at(&path), Secrecy::Open);
    assert_eq!(secrets.at_within(&path, &mut 10), Secrecy::Secret(1));
}

#[test]
fn the_hints_of_formats_and_steps_are_at_open_places_alone() {
    let schema = json!({"properties": {
        "pw": {"x-concord-secret": true, "format": "email"},
        "open": {"format": "email"},
        "secret_slow": {"x-concord-secret": true, "pattern": SLOW},
        "open_slow": {"pattern": SLOW}
    }});
    let schema = Schema::compile(&schema, Formats::Asserted).unwrap();
    let text = |data: Value, at: &str| {
        let violations = schema.check(&data).unwrap_err();
        let found = violations.iter().find(|violation| violation.loc == [LocSegment::from(at)]);
        found.unwrap_or_else(|| panic!("{at}: {violations:?}")).msg.clone()
    };
    let secret = text(json!({"pw": "hunter2"}), "pw");
    assert_eq!(secret, "the secret value breaks `format` of the schema");
    let open = text(json!({"open": "nobody"}), "open");
    assert!(open.contains("nobody") && open.contains("format_assertion"), "{open}");
    // What can't be decided is told where nothing else is wrong.
    let slow = "a".repeat(60) + "b";
    let secret = text(json!({"secret_slow": slow}), "secret_slow");
    assert!(secret.starts_with("the secret value breaks"), "{secret}");
    let open = text(json!({"open_slow": slow}), "open_slow");
    assert!(open.contains("2000 steps"), "{open}");
}

#[test]
fn violations_do_not_quote_secret_values() {
    let schema = json!({
        "properties": {
            "pin": {"x-concord-secret": true, "type": "integer"},
            "box": {"x-concord-secret": true, "additionalProperties": {"type": "integer"}},
            "db": {"type": "object", "maxProperties": 1, "properties": {"pw": {"x-concord-secret": true}}},
            "open": {"type": "integer"}
        },
        "anyOf": [{"required": ["never"]}]
    });
    let schema = Schema::compile(&schema, Formats::Asserted).unwrap();
    let data = json!({"pin": "hunter2", "box": {"hunter3": "hunter4", "hunter5": "hunter6"}, "db": {"pw": "hunter7", "x": 1}, "open": "seen"});
    let violations = schema.check(&data).unwrap_err();
    let text = format!("{violations:?}");
    assert!(!text.contains("hunter"), "{text}");
    assert!(text.contains("seen"), "an open value is quoted: {text}");
    let locs: Vec<_> = violations.iter().map(|violation| violation.loc.clone()).collect();
    assert!(locs.contains(&vec!["pin".into()]) && locs.contains(&vec!["box".into()]), "{text}");
    let boxes = violations.iter().filter(|violation| violation.loc == ["box".into()]).count();
    assert_eq!(boxes, 1, "one place, one violation: {text}");
}

#[test]
fn a_schema_that_compares_secret_values_is_known() {
    let compared = |schema: Value| {
        let schema = Schema::compile(&schema, Formats::Asserted)
            .unwrap_or_else(|violations| panic!("{schema}: {violations:?}"));
        schema.secrets().is_some_and(SecretPlaces::are_compared)
    };
    let secret = json!({"x-concord-secret": true});
    let holds = json!({"properties": {"pw": secret}});
    for schema in [
        json!({"properties": {"a": {"uniqueItems": true, "items": secret}}}),
        json!({"properties": {"a": {"uniqueItems": true, "items": holds}}}),
        json!({"properties": {"a": {"uniqueItems": true, "items": {"items": holds}}}}),
        json!({"properties": {"a": {"uniqueItems": true, "prefixItems": [{}, secret]}}}),
        json!({"properties": {"a": {"uniqueItems": true, "contains": secret}}}),
        // Two subschemas that meet.
        json!({"properties": {"a": {"allOf": [{"uniqueItems": true}, {"items": secret}]}}}),
        json!({
            "properties": {"a": {"uniqueItems": true}},
            "anyOf": [{"properties": {"a": {"$ref": "#/$defs/list"}}}],
            "$defs": {"list": {"items": secret}}
        }),
        json!({"patternProperties": {"^a": {"uniqueItems": true}}, "properties": {"ab": {"items": secret}}}),
        json!({"properties": {"a": {"uniqueItems": true}}, "allOf": [{"additionalProperties": {"items": secret}}]}),
        json!({"items": {"uniqueItems": true}, "allOf": [{"prefixItems": [{}, {"items": secret}]}]}),
        // One that refers to itself.
        json!({"uniqueItems": true, "items": {"$ref": "#"}, "properties": {"pw": secret}}),
    ] {
        assert!(compared(schema.clone()), "{schema}");
    }
    for schema in [
        json!({"properties": {"a": {"uniqueItems": true}, "b": {"items": secret}}}),
        json!({"properties": {"a": {"uniqueItems": false, "items": secret}}}),
        json!({"properties": {"a": {"items": {"properties": {"pw": secret, "tags": {"uniqueItems": true}}}}}}),
        json!({"properties": {"a": {"uniqueItems": true}}, "additionalProperties": {"items": secret}}),
        json!({"prefixItems": [{"uniqueItems": true}, {"items": secret}]}),
        json!({"properties": {"a": {"x-concord-secret": true, "uniqueItems": true}}}),
        json!({"properties": {"pw": secret}, "$defs": {"unused": {"uniqueItems": true, "items": secret}}}),
    ] {
        assert!(!compared(schema.clone()), "{schema}");
    }
}
