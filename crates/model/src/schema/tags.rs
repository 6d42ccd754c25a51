//! The members whose values tell the variants of a union apart, as the schema declares them.
//!
//! An error shows what one variant expects of a member. Only the schema shows that another variant expects a different
//! value there, and accepts the one that is there: `{"kind": "card"}` is an error of `{"enum": ["bank", "sepa"]}` alone.
//!
//! **Invariant:** the time is bounded whatever the schema contains. What was not looked at declares nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use serde_json::Value;

use super::graph::{Graph, address};
use crate::error::LocSegment;

/// The keywords of a union.
const UNION_KEYWORDS: [&str; 2] = ["anyOf", "oneOf"];
/// Subschemas and values that are looked at in a schema: some 20 ms. A union of 100 variants with 50 members each takes
/// 10,000.
const TAG_STEPS_MAX: usize = 300_000;
/// Approximate bytes of an entry of a map, beside its text.
const ENTRY_BYTES: usize = 64;

/// The declared tags of all unions of a schema.
#[derive(Debug, Default)]
pub(super) struct DeclaredTags(BTreeMap<String, UnionTags>);

/// The declared tags of a union: whether a variant allows a single value there, by the member's name.
pub(super) type UnionTags = BTreeMap<String, bool>;

impl DeclaredTags {
    /// Those of a schema.
    pub(super) fn of(graph: &Graph<'_>) -> Self {
        let numbers = graph.nodes.iter().enumerate().map(|(number, node)| (node.address, number)).collect();
        let mut reader = TagReader { graph, numbers, steps_left: TAG_STEPS_MAX };
        let mut all = BTreeMap::new();
        for (subschema, loc) in graph.subschemas() {
            for keyword in UNION_KEYWORDS {
                let Some(variants) = subschema.get(keyword).and_then(Value::as_array) else { continue };
                let Some(tags) = reader.tags(variants) else { return Self(all) };
                if !tags.is_empty() {
                    all.insert(pointer(&loc(), keyword), tags);
                }
            }
        }
        Self(all)
    }

    /// Those of the union whose keyword is at this place of the schema.
    pub(super) fn at(&self, pointer: &str) -> Option<&UnionTags> {
        self.0.get(pointer)
    }

    /// Approximate bytes that they take.
    pub(super) fn weight_bytes(&self) -> usize {
        let of_union = |tags: &UnionTags| tags.keys().map(|name| ENTRY_BYTES + name.len()).sum::<usize>();
        self.0.iter().map(|(pointer, tags)| ENTRY_BYTES + pointer.len() + of_union(tags)).sum()
    }
}

/// The pointer to a keyword of a subschema.
fn pointer(loc: &[LocSegment], keyword: &str) -> String {
    let mut pointer = String::new();
    for segment in loc {
        // Writing to a string does not fail.
        let _ = match segment {
            LocSegment::Name(name) => write!(pointer, "/{}", name.replace('~', "~0").replace('/', "~1")),
            LocSegment::Index(index) => write!(pointer, "/{index}"),
        };
    }
    format!("{pointer}/{keyword}")
}

/// What the variants of a union declare of a member.
struct DeclaredMember<'s> {
    /// The values that the first of them allows.
    values: &'s [Value],
    /// Whether another one allows others.
    differs: bool,
    /// Whether one of them allows a single value.
    is_single: bool,
}

/// Reads tags until no steps are left.
struct TagReader<'g, 's> {
    graph: &'g Graph<'s>,
    /// The nodes by address. Where one applies in several scopes, it is one of these.
    numbers: BTreeMap<usize, usize>,
    steps_left: usize,
}

impl<'s> TagReader<'_, 's> {
    /// The tags of a union; `None` when no steps are left.
    fn tags(&mut self, variants: &[Value]) -> Option<UnionTags> {
        let mut members: BTreeMap<&'s str, DeclaredMember<'s>> = BTreeMap::new();
        for variant in variants {
            let Some(&number) = self.numbers.get(&address(variant)) else { continue };
            for (name, values) in self.members(number)? {
                let is_single = values.len() == 1;
                let first = DeclaredMember { values, differs: false, is_single };
                let member = members.entry(name).or_insert(first);
                member.differs |= member.values != values;
                member.is_single |= is_single;
            }
        }
        members.retain(|_, member| member.differs);
        Some(members.into_iter().map(|(name, member)| (name.to_owned(), member.is_single)).collect())
    }

    /// The members of which a variant allows some values only.
    fn members(&mut self, variant: usize) -> Option<BTreeMap<&'s str, &'s [Value]>> {
        let mut members = BTreeMap::new();
        for applied in self.applied(variant)? {
            for (&name, &member) in &self.graph.nodes[applied].properties {
                if let Some(values) = self.values(member)? {
                    members.entry(name).or_insert(values);
                }
            }
        }
        Some(members)
    }

    /// The values that a subschema allows; the inner `None` when it allows all.
    fn values(&mut self, subschema: usize) -> Option<Option<&'s [Value]>> {
        for applied in self.applied(subschema)? {
            let Some(value) = self.graph.value_at(self.graph.nodes[applied].address) else { continue };
            let options = value.get("enum").and_then(Value::as_array).map(Vec::as_slice);
            if let Some(values) = value.get("const").map(std::slice::from_ref).or(options) {
                self.steps_left = self.steps_left.checked_sub(values.len())?;
                return Some(Some(values));
            }
        }
        Some(None)
    }

    /// A subschema and those that apply with it, by references and `allOf`.
    fn applied(&mut self, subschema: usize) -> Option<BTreeSet<usize>> {
        let (mut all, mut queue) = (BTreeSet::new(), vec![subschema]);
        while let Some(number) = queue.pop() {
            self.steps_left = self.steps_left.checked_sub(1)?;
            if !all.insert(number) {
                continue;
            }
            let node = &self.graph.nodes[number];
            queue.extend(&node.refs);
            let parts = self.graph.value_at(node.address).and_then(|value| value.get("allOf")?.as_array());
            queue.extend(parts.into_iter().flatten().filter_map(|part| self.numbers.get(&address(part))));
        }
        Some(all)
    }
}
