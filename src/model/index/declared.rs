//! The types that a schema declares for an indexed path: whether the path resolves, and how its filter texts are parsed.
//!
//! **Invariant:** the search ends after [`PATH_SUBSCHEMAS_MAX`] subschemas, whatever the schema's references are.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::model::limits::PATH_SUBSCHEMAS_MAX;

/// A JSON type; integers are numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `null`
    Null,
    /// `true` and `false`
    Boolean,
    /// Numbers, integers included.
    Number,
    /// Strings.
    String,
    /// Arrays.
    Array,
    /// Objects.
    Object,
}

/// The types that a value at a path may have; an empty set means any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Declared {
    /// The value's own types.
    pub kinds: BTreeSet<Kind>,
    /// The types of its elements, when it may be an array.
    pub elements: BTreeSet<Kind>,
}

impl Declared {
    /// Whether a list may be sorted by the path: arrays and objects have no order.
    #[must_use]
    pub fn is_sortable(&self) -> bool {
        self.kinds.is_empty() || !self.kinds.iter().all(|kind| matches!(kind, Kind::Array | Kind::Object))
    }
}

/// The types that `schema` declares for the member that `segments` name; `None` when it does not resolve.
pub(super) fn declared(schema: Option<&Value>, segments: &[String]) -> Option<Declared> {
    let Some(root) = schema else { return Some(Declared::default()) };
    let mut parts = vec![root];
    for segment in segments {
        let all = with_applied(root, &parts);
        if all.iter().all(|part| is_unconstrained(part)) {
            return Some(Declared::default());
        }
        parts = all.into_iter().filter_map(|part| part.get("properties")?.get(segment)).collect();
        if parts.is_empty() {
            return None;
        }
    }
    let all = with_applied(root, &parts);
    let elements: Vec<&Value> = all.iter().filter_map(|part| part.get("items")).collect();
    Some(Declared { kinds: kinds(&all), elements: kinds(&with_applied(root, &elements)) })
}

fn is_unconstrained(part: &Value) -> bool {
    part == &Value::Bool(true) || part.as_object().is_some_and(serde_json::Map::is_empty)
}

/// The parts and all subschemas that apply to the same value with them: targets of `$ref`, members of `allOf`.
fn with_applied<'a>(root: &'a Value, parts: &[&'a Value]) -> Vec<&'a Value> {
    let mut all: Vec<&Value> = Vec::new();
    let mut queue = parts.to_vec();
    while let Some(part) = queue.pop() {
        if all.len() >= PATH_SUBSCHEMAS_MAX {
            break;
        }
        all.push(part);
        queue.extend(part.get("allOf").and_then(Value::as_array).into_iter().flatten());
        let target = part.get("$ref").and_then(Value::as_str).and_then(|text| resolve(root, text));
        queue.extend(target);
    }
    all
}

/// The target of a local reference (`#`, `#/…`).
fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = reference.strip_prefix('#')?;
    let pointer = percent_encoding::percent_decode_str(pointer).decode_utf8().ok()?;
    root.pointer(&pointer)
}

fn kinds(parts: &[&Value]) -> BTreeSet<Kind> {
    let mut found = BTreeSet::new();
    for part in parts {
        match part.get("type") {
            Some(Value::String(name)) => found.extend(named(name)),
            Some(Value::Array(names)) => {
                found.extend(names.iter().filter_map(Value::as_str).filter_map(named));
            }
            Some(_) | None => {
                let values = part.get("enum").and_then(Value::as_array).into_iter().flatten();
                found.extend(values.chain(part.get("const")).map(kind));
            }
        }
    }
    found
}

fn named(name: &str) -> Option<Kind> {
    Some(match name {
        "null" => Kind::Null,
        "boolean" => Kind::Boolean,
        "integer" | "number" => Kind::Number,
        "string" => Kind::String,
        "array" => Kind::Array,
        "object" => Kind::Object,
        _ => return None,
    })
}

fn kind(value: &Value) -> Kind {
    match value {
        Value::Null => Kind::Null,
        Value::Bool(_) => Kind::Boolean,
        Value::Number(_) => Kind::Number,
        Value::String(_) => Kind::String,
        Value::Array(_) => Kind::Array,
        Value::Object(_) => Kind::Object,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::index::IndexPath;

    fn find(schema: &Value, path: &str) -> Option<Vec<Kind>> {
        let declared = IndexPath::parse(path).unwrap().declared(Some(schema))?;
        Some(declared.kinds.into_iter().collect())
    }

    #[test]
    fn paths_resolve_through_properties_references_and_all_of() {
        let schema = json!({
            "$defs": {"size": {"type": "object", "properties": {"w": {"type": "integer"}}}},
            "allOf": [{"properties": {"extra": {"enum": ["a", null]}}}],
            "properties": {
                "size": {"$ref": "#/$defs/size"},
                "free": {},
                "closed": {"type": "object"},
                "self": {"$ref": "#"},
                "tags": {"type": "array", "items": {"type": "string"}}
            }
        });
        assert_eq!(find(&schema, "size.w"), Some(vec![Kind::Number]));
        assert_eq!(find(&schema, "self.self.size.w"), Some(vec![Kind::Number]));
        assert_eq!(find(&schema, "extra"), Some(vec![Kind::Null, Kind::String]));
        assert_eq!(find(&schema, "free.any.thing"), Some(vec![]));
        assert_eq!(find(&schema, "closed"), Some(vec![Kind::Object]));
        for missing in ["size.h", "closed.x", "nothing", "size.w.x"] {
            assert_eq!(find(&schema, missing), None, "{missing}");
        }
        let tags = IndexPath::parse("tags").unwrap().declared(Some(&schema)).unwrap();
        assert_eq!(tags.elements.into_iter().collect::<Vec<_>>(), [Kind::String]);
    }

    #[test]
    fn the_search_through_cyclic_references_ends() {
        let schema =
            json!({"properties": {"a": {"$ref": "#/properties/b"}, "b": {"$ref": "#/properties/a"}}});
        assert_eq!(find(&schema, "a.x"), None);
    }
}
