//! Schemas as Pydantic, zod and public tools write them (`fixtures/schemas`): each compiles as it is, its documents are
//! told apart, and paths through its unions are indexed.

use concord_model::{
    index::{IndexPath, JsonKind, Types, check_paths},
    schema::{Formats, Schema},
};
use serde_json::{Value, json};

const FORMATS: Formats = Formats::Asserted;

fn compiled(schema: &Value) -> Schema {
    Schema::compile(schema, FORMATS).unwrap_or_else(|violations| panic!("{violations:?}"))
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("a fixture is JSON")
}

/// The kinds at a path, which must be one that can be indexed.
fn kinds(schema: &Value, path: &str) -> Vec<&'static str> {
    check_paths(&[path.to_owned()], Some(schema), 64).unwrap_or_else(|violations| panic!("{violations:?}"));
    let path = IndexPath::parse(path).unwrap();
    Types::of(Some(schema)).declared(&path).unwrap().indexed().iter().map(JsonKind::name).collect()
}

#[test]
fn models_of_pydantic_are_definitions_as_they_are() {
    let text = include_str!("fixtures/schemas/pydantic-person.json");
    let schema = parsed(text);
    let person = compiled(&schema);
    let good = json!({"id": "0190163d-8694-739b-aea5-966c26f8ad91", "name": "Anna", "mail": "a@example.com", "age": 7,
        "balance": "-12.50", "home": {"street": "x", "zip": "10115", "since": "2024-02-29"},
        "pet": {"kind": "dog", "tag": null}, "tags": ["a"], "color": "red", "pair": [1, "a"]});
    assert_eq!(person.check(&good), Ok(()));
    for (name, wrong) in [
        ("id", json!("0190163d")),
        ("mail", json!("nobody")),
        ("balance", json!(true)),
        ("name", json!("")),
        ("home", json!({"street": "x", "since": "2023-02-29"})),
        ("pet", json!({"kind": "cow"})),
        ("color", json!("green")),
    ] {
        let mut bad = good.clone();
        bad[name] = wrong;
        assert!(!person.accepts(&bad), "{name}");
    }
    for (path, expected) in [
        ("home.zip", vec!["null", "string"]),
        ("home.since", vec!["null", "string"]),
        ("pet.kind", vec!["string"]),
        ("age", vec!["null", "number", "string"]),
        ("balance", vec!["number", "string"]),
        ("color", vec!["string"]),
        ("tags", vec!["string"]),
        ("pair", vec!["null", "number", "string"]),
    ] {
        assert_eq!(kinds(&schema, path), expected, "{path}");
    }

    let schema = parsed(include_str!("fixtures/schemas/pydantic-rules.json"));
    let rules = compiled(&schema);
    let nested =
        |inner: Value| json!({"name": "r", "rule": {"op": "and", "args": [{"op": "not", "arg": inner}]}});
    assert_eq!(rules.check(&nested(json!({"op": "is", "field": "a", "value": 1}))), Ok(()));
    assert!(!rules.accepts(&nested(json!({"op": "is", "field": 1, "value": 1}))));
    assert_eq!(kinds(&schema, "rule.op"), ["string"]);
}

#[test]
fn models_of_zod_are_definitions_as_they_are() {
    let schema = parsed(include_str!("fixtures/schemas/zod-service.json"));
    let service = compiled(&schema);
    let good = json!({"name": "a-b", "mail": "a@example.com", "id": "x", "zip": null, "pet": {"kind": "cat", "lives": 9},
        "owner": {"team": "t", "since": "2024-02-29T12:00:00Z"}, "tier": "gold", "limits": {"a": 1.5}});
    assert_eq!(service.check(&good), Ok(()));
    for (name, wrong) in [
        ("name", json!("-a")),
        ("mail", json!("nobody")),
        ("id", json!(1.5)),
        ("pet", json!({"kind": "cat", "lives": 1.5})),
        ("owner", json!({"team": "t", "since": "today"})),
    ] {
        let mut bad = good.clone();
        bad[name] = wrong;
        assert!(!service.accepts(&bad), "{name}");
    }
    for (path, expected) in [
        ("id", vec!["number", "string"]),
        ("zip", vec!["null", "string"]),
        ("pet.kind", vec!["string"]),
        ("pet.lives", vec!["number"]),
        ("owner.team", vec!["string"]),
        ("tier", vec!["string"]),
    ] {
        assert_eq!(kinds(&schema, path), expected, "{path}");
    }
    let schema = parsed(include_str!("fixtures/schemas/zod-rules.json"));
    let rules = compiled(&schema);
    assert!(rules.accepts(&json!({"rule": {"op": "or", "args": [{"op": "is", "field": "a"}]}})));
    assert!(!rules.accepts(&json!({"rule": {"op": "or", "args": [{"op": "is"}]}})));
}

/// `CONCORD_SCHEMAS` names a directory of schemas, for example the one in the package `check-jsonschema`.
#[test]
#[ignore = "needs a directory of schemas"]
#[expect(clippy::disallowed_methods, reason = "the directory is the caller's")]
fn schemas_of_a_directory_are_definitions_as_they_are() {
    let directory = std::env::var("CONCORD_SCHEMAS").expect("the directory is named");
    let mut files: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut refused = Vec::new();
    for file in files.into_iter().filter(|file| file.extension().is_some_and(|kind| kind == "json")) {
        let text = std::fs::read_to_string(&file).unwrap();
        if let Err(violations) = Schema::compile(&parsed(&text), FORMATS) {
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            refused.push((name, text.len(), violations[0].msg.clone()));
        }
    }
    assert_eq!(refused, [], "schemas that are refused, with their bytes");
}
