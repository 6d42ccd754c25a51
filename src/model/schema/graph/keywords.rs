//! The keywords that have subschemas or references, and how each applies them.
//!
//! **Invariant:** a keyword of any draft by which the validator may apply a subschema is here.

use jsonschema::Draft;
use serde_json::{Map, Value};

use super::Edge;

/// The keywords whose value is an object with subschemas as members.
const OBJECT_KEYWORDS: [&str; 6] =
    ["$defs", "definitions", "dependentSchemas", "dependencies", "properties", "patternProperties"];

/// Whether the siblings of a `$ref` are ignored.
fn ignores_ref_siblings(map: &Map<String, Value>, draft: Draft) -> bool {
    draft < Draft::Draft201909 && map.contains_key("$ref")
}

/// The keywords that refer to a subschema in a draft.
pub(in crate::model::schema) fn reference_keywords(draft: Draft) -> &'static [&'static str] {
    if draft < Draft::Draft201909 {
        return &["$ref"];
    }
    if draft == Draft::Draft201909 { &["$ref", "$recursiveRef"] } else { &["$ref", "$dynamicRef"] }
}

/// The references of a subschema. The keywords of other drafts are none.
pub(super) fn references(
    map: &Map<String, Value>,
    draft: Draft,
) -> impl Iterator<Item = (&'static str, &str)> {
    reference_keywords(draft).iter().filter_map(|keyword| Some((*keyword, map.get(*keyword)?.as_str()?)))
}

/// The subschemas of a subschema, by the keywords of all drafts at once; booleans cost nothing and are left out.
pub(super) fn children(map: &Map<String, Value>, draft: Draft) -> Vec<(Edge<'_>, &Value)> {
    let only_ref = ignores_ref_siblings(map, draft);
    let single_items = map.get("items").is_some_and(|items| !items.is_array());
    let mut found = Vec::new();
    for (keyword, value) in map {
        let edge = match keyword.as_str() {
            "$defs" | "definitions" => Edge::None,
            _ if only_ref => continue,
            "allOf" | "anyOf" | "oneOf" | "not" | "if" | "then" | "else" | "contentSchema" => Edge::InPlace,
            "dependentSchemas" | "dependencies" => Edge::InPlace,
            "properties" => Edge::Property(""),
            "patternProperties" => Edge::PatternProperty,
            "additionalProperties" | "unevaluatedProperties" => Edge::AdditionalProperty,
            "prefixItems" => Edge::PrefixItem(0),
            "items" if value.is_array() => Edge::PrefixItem(0),
            "additionalItems" if single_items => Edge::None,
            "items" | "additionalItems" | "unevaluatedItems" => Edge::Item,
            "contains" => Edge::Contains,
            "propertyNames" => Edge::PropertyName,
            _ => continue,
        };
        if let Some(members) = value.as_object().filter(|_| OBJECT_KEYWORDS.contains(&keyword.as_str())) {
            found.extend(members.iter().map(|(name, child)| (edge.of_member(name), child)));
        } else if let Value::Array(items) = value {
            found.extend(items.iter().enumerate().map(|(index, child)| (edge.of_element(index), child)));
        } else {
            found.push((edge, value));
        }
    }
    found.retain(|(_, child)| child.is_object());
    found
}
