//! Resolves the references of a schema for code that reads the schema itself, not through the validator.
//!
//! Without embedded identifiers and anchors a reference is a pointer from the root, and nothing is computed before it
//! is followed. With them the references are resolved as the validator does, by the [`Graph`] of the whole document.
//!
//! **Invariant:** a target is one that the validator would use, in some scope. A reference that leads nowhere, or out
//! of the document, has none.

use std::collections::BTreeMap;

use jsonschema::Draft;
use serde_json::Value;

use super::{
    draft_of,
    graph::{Graph, address, reference_keywords},
};

/// The references of a schema.
#[derive(Debug, Default)]
pub struct References<'s> {
    root: Option<&'s Value>,
    ignores_siblings: bool,
    keywords: &'static [&'static str],
    /// The targets by the address of the subschema, for each scope; `None` where every reference is a pointer.
    resolved: Option<BTreeMap<usize, Vec<Vec<&'s Value>>>>,
}

impl<'s> References<'s> {
    /// Those of a schema.
    #[must_use]
    pub fn of(schema: &'s Value) -> Self {
        let draft = draft_of(schema).unwrap_or(Draft::Draft202012);
        let resolved = has_identifiers(schema, true).then(|| {
            // What the validator can't resolve either has no targets.
            let Ok(graph) = Graph::of(schema, draft) else { return BTreeMap::new() };
            let values = |addresses: Vec<usize>| -> Vec<&'s Value> {
                addresses.into_iter().filter_map(|address| graph.value_at(address)).collect()
            };
            let all = graph.targets().into_iter();
            all.map(|(of, scopes)| (of, scopes.into_iter().map(values).collect())).collect()
        });
        let keywords = reference_keywords(draft);
        Self { root: Some(schema), ignores_siblings: draft < Draft::Draft201909, keywords, resolved }
    }

    /// Whether keywords beside a `$ref` are ignored.
    #[must_use]
    pub fn ignores_siblings(&self) -> bool {
        self.ignores_siblings
    }

    /// The targets of a subschema's references: all of them apply, in each scope others.
    #[must_use]
    pub fn targets(&self, part: &'s Value) -> Vec<Vec<&'s Value>> {
        if let Some(resolved) = &self.resolved {
            return resolved.get(&address(part)).cloned().unwrap_or_default();
        }
        let texts = self.keywords.iter().filter_map(|keyword| part.get(keyword)?.as_str());
        let targets: Vec<_> = texts.filter_map(|text| self.pointed(text)).collect();
        if targets.is_empty() { Vec::new() } else { vec![targets] }
    }

    /// The target of a pointer from the root (`#`, `#/…`).
    fn pointed(&self, reference: &str) -> Option<&'s Value> {
        let pointer = reference.strip_prefix('#')?;
        let pointer = percent_encoding::percent_decode_str(pointer).decode_utf8().ok()?;
        self.root?.pointer(&pointer)
    }
}

/// Whether a reference may be anything but a pointer from the root. The recursion is bounded by the document's depth.
fn has_identifiers(value: &Value, is_root: bool) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(name, member)| match name.as_str() {
            "$anchor" | "$dynamicAnchor" => member.is_string(),
            "$recursiveAnchor" => member.is_boolean(),
            "$id" | "id" if !is_root => member.is_string(),
            "$ref" => member.as_str().is_some_and(|text| !text.starts_with('#')),
            _ => has_identifiers(member, false),
        }),
        Value::Array(items) => items.iter().any(|item| has_identifiers(item, false)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}
