//! The subschemas through which a pattern leads: those of all members of an object, and of all elements of an array.
//!
//! **Invariant:** a member or element that the schema accepts is accepted by one of them, or nothing is said of it.

use serde_json::{Map, Value};

/// The subschemas of several members or elements.
pub(super) struct Parts<'s> {
    pub(super) named: Vec<&'s Value>,
    /// Whether there may be others, of which nothing is said.
    pub(super) is_open: bool,
    /// Whether any keyword is about members, or elements.
    pub(super) is_said: bool,
}

/// The subschemas of any member.
pub(super) fn members(map: &Map<String, Value>) -> Parts<'_> {
    const KEYWORDS: [&str; 7] = [
        "additionalProperties",
        "maxProperties",
        "minProperties",
        "patternProperties",
        "properties",
        "propertyNames",
        "unevaluatedProperties",
    ];
    let is_said = KEYWORDS.iter().any(|keyword| map.contains_key(*keyword));
    let object = |keyword: &str| map.get(keyword).and_then(Value::as_object);
    let named = [object("properties"), object("patternProperties")].into_iter().flatten();
    let additional = map.get("additionalProperties");
    let named = named.flat_map(Map::values).chain(additional).filter(|part| is_possible(part)).collect();
    Parts { named, is_open: additional.is_none(), is_said }
}

/// The subschemas of the elements of an array.
pub(super) fn parts_of_array(map: &Map<String, Value>) -> Parts<'_> {
    const KEYWORDS: [&str; 8] = [
        "additionalItems",
        "contains",
        "items",
        "maxItems",
        "minItems",
        "prefixItems",
        "unevaluatedItems",
        "uniqueItems",
    ];
    let is_said = KEYWORDS.iter().any(|keyword| map.contains_key(*keyword));
    let (first, rest) = match map.get("items") {
        Some(Value::Array(first)) => (Some(first), map.get("additionalItems")),
        rest => (map.get("prefixItems").and_then(Value::as_array), rest),
    };
    let named = first.into_iter().flatten().chain(rest).filter(|part| is_possible(part)).collect();
    Parts { named, is_open: rest.is_none(), is_said }
}

/// Whether a subschema allows anything at all.
fn is_possible(part: &Value) -> bool {
    *part != Value::Bool(false)
}
