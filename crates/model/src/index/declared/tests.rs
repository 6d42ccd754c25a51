//! Paths through the schemas that libraries write.

use serde_json::json;

use super::*;

fn declared(schema: &Value, path: &str) -> Option<Declared> {
    Types::of(Some(schema)).declared(&IndexPath::parse(path).unwrap())
}

fn find(schema: &Value, path: &str) -> Option<Vec<&'static str>> {
    Some(declared(schema, path)?.kinds.iter().map(JsonKind::name).collect())
}

const ANY: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

#[test]
fn paths_resolve_through_properties_references_and_all_of() {
    let schema = json!({
        "$defs": {"size": {"type": "object", "properties": {"w": {"type": "integer"}}}},
        "allOf": [{"properties": {"extra": {"enum": ["a", null]}}}],
        "properties": {
            "size": {"$ref": "#/$defs/size"},
            "free": {},
            "titled": {"title": "Anything", "default": null},
            "closed": {"type": "object"},
            "self": {"$ref": "#"},
            "tags": {"type": "array", "items": {"type": "string"}}
        }
    });
    assert_eq!(find(&schema, "size.w"), Some(vec!["number"]));
    assert_eq!(find(&schema, "self.self.size.w"), Some(vec!["number"]));
    assert_eq!(find(&schema, "extra"), Some(vec!["null", "string"]));
    assert_eq!(find(&schema, "free.any.thing"), Some(ANY.to_vec()));
    assert_eq!(find(&schema, "titled.any.thing"), Some(ANY.to_vec()));
    assert_eq!(find(&schema, "closed"), Some(vec!["object"]));
    for missing in ["size.h", "closed.x", "nothing", "size.w.x"] {
        assert_eq!(find(&schema, missing), None, "{missing}");
    }
    assert_eq!(declared(&schema, "tags").unwrap().elements, JsonKinds::of([JsonKind::String]));
}

#[test]
fn paths_resolve_through_unions_and_nullable_objects() {
    let schema = json!({
        "$defs": {
            "Cat": {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}},
            "Dog": {"type": "object", "properties": {"kind": {"const": "dog"}, "name": {"type": "string"}}}
        },
        "properties": {
            "zip": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null},
            "id": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
            "pet": {"discriminator": {"propertyName": "kind"},
                    "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]},
            "maybe": {"anyOf": [{"$ref": "#/$defs/Cat"}, {"type": "null"}]},
            "nullable": {"type": ["object", "null"], "properties": {"n": {"type": "number"}}},
            "list": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
            "case": {"if": {"properties": {"a": {"const": 1}}},
                     "then": {"properties": {"b": {"type": "string"}}},
                     "else": {"properties": {"b": {"type": "integer"}}}}
        }
    });
    assert_eq!(find(&schema, "zip"), Some(vec!["null", "string"]));
    assert_eq!(find(&schema, "id"), Some(vec!["number", "string"]));
    assert_eq!(find(&schema, "pet.kind"), Some(vec!["string"]));
    assert_eq!(find(&schema, "pet.lives"), Some(ANY.to_vec()), "a dog may have lives of any kind");
    assert_eq!(find(&schema, "maybe.lives"), Some(vec!["number"]));
    assert_eq!(find(&schema, "nullable.n"), Some(vec!["number"]));
    assert_eq!(find(&schema, "case.b"), Some(vec!["number", "string"]));
    let list = declared(&schema, "list").unwrap();
    assert_eq!(list.indexed(), JsonKinds::of([JsonKind::Null, JsonKind::Number]));
    for missing in ["zip.x", "pet.other", "maybe.kind.x", "nullable.x", "case.c"] {
        assert_eq!(find(&schema, missing), None, "{missing}");
    }
}

#[test]
fn a_closed_variant_does_not_let_the_others_members_be_anything() {
    let schema = json!({"anyOf": [
        {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": false},
        {"type": "object", "properties": {"b": {"type": "string"}}, "additionalProperties": {"type": "boolean"}}
    ]});
    assert_eq!(find(&schema, "a"), Some(vec!["boolean", "number"]));
    assert_eq!(find(&schema, "b"), Some(vec!["string"]));
}

#[test]
fn paths_resolve_as_the_validator_resolves_references() {
    let schema = json!({
        "$id": "https://example.com/root",
        "$defs": {
            "named": {"$anchor": "size", "type": "object", "properties": {"w": {"type": "integer"}}},
            "embedded": {"$id": "inner", "$defs": {"x": {"type": "boolean"}},
                         "properties": {"x": {"$ref": "#/$defs/x"}}}
        },
        "properties": {
            "byAnchor": {"$ref": "#size"},
            "byId": {"$ref": "inner"},
            "byUri": {"$ref": "https://example.com/inner#/$defs/x"}
        }
    });
    assert_eq!(find(&schema, "byAnchor.w"), Some(vec!["number"]));
    assert_eq!(find(&schema, "byId.x"), Some(vec!["boolean"]));
    assert_eq!(find(&schema, "byUri"), Some(vec!["boolean"]));
    let old = json!({"$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"t": {"type": "string"}},
        "properties": {"s": {"$ref": "#/definitions/t", "type": "integer"}}});
    assert_eq!(find(&old, "s"), Some(vec!["string"]), "what stands beside `$ref` is ignored in this draft");
}

#[test]
fn the_search_ends_and_the_rest_may_be_anything() {
    let schema = json!({"properties": {"a": {"$ref": "#/properties/b"}, "b": {"$ref": "#/properties/a"}}});
    assert_eq!(find(&schema, "a.x"), None);
    let variants: Vec<Value> = (0..PATH_SUBSCHEMAS_MAX + 10).map(|_| json!({"type": "integer"})).collect();
    let schema = json!({"properties": {"a": {"anyOf": variants}}});
    assert_eq!(find(&schema, "a"), Some(ANY.to_vec()));
    let mut deep = json!({"type": "integer"});
    for _ in 0..2 * DEPTH_MAX {
        deep = json!({"allOf": [deep]});
    }
    let schema = json!({"properties": {"a": deep}});
    assert_eq!(find(&schema, "a"), Some(ANY.to_vec()));
}

#[test]
fn patterns_resolve_through_the_schemas_of_members_and_elements() {
    let schema = json!({
        "$defs": {"Item": {"properties": {"name": {"type": "string"}}}},
        "properties": {
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "limits": {"type": "object", "properties": {"cpu": {"type": "integer"}},
                       "patternProperties": {"^x-": {"type": "boolean"}}, "additionalProperties": false},
            "open": {"type": "object"},
            "closed": {"type": "object", "additionalProperties": false},
            "any": {},
            "maybe": {"anyOf": [{"type": "object", "additionalProperties": {"type": "null"}}, {"type": "string"}]},
            "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}},
            "tuple": {"type": "array", "prefixItems": [{"$ref": "#/$defs/Item"}], "items": false},
            "grid": {"items": {"items": {"$ref": "#/$defs/Item"}}},
            "groups": {"additionalProperties": {"type": "array", "items": {"$ref": "#/$defs/Item"}}}
        }
    });
    for (path, expected) in [
        ("labels.*", Some(vec!["string"])),
        ("limits.*", Some(vec!["boolean", "number"])),
        ("open.*", Some(ANY.to_vec())),
        ("any.*", Some(ANY.to_vec())),
        ("any.*[].x", Some(ANY.to_vec())),
        ("maybe.*", Some(vec!["null"])),
        ("items[].name", Some(vec!["string"])),
        ("tuple[].name", Some(vec!["string"])),
        ("grid[][].name", Some(vec!["string"])),
        ("groups.*[].name", Some(vec!["string"])),
        ("closed.*", None),
        ("items.*", None),
        ("items[].nmae", None),
        ("labels[].x", None),
        ("labels.*.x", None),
        ("groups.*.name", None),
        ("none.*", None),
    ] {
        assert_eq!(find(&schema, path), expected, "{path}");
    }
    let draft7 = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {"t": {"items": [{"properties": {"n": {"type": "integer"}}}],
                             "additionalItems": {"properties": {"n": {"type": "string"}}}}}
    });
    assert_eq!(find(&draft7, "t[].n"), Some(vec!["number", "string"]));
}
