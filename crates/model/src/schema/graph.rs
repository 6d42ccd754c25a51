//! The subschemas of a document and how one applies another: at the same place of the data, or one level below.
//!
//! References are resolved by `jsonschema`'s own resolver, so that this graph and the validator find the same target. A
//! target is identified by its address in memory: one outside the document is rejected, and the resolver's retriever
//! returns an empty document, so nothing is ever fetched. The exception are the meta-schemas of the drafts, which are
//! in the library: such a target is one node that applies to every value below it, and stands for the whole
//! meta-schema, also where the reference leads to a part of it.
//!
//! **Invariant:** the graph has an edge for every subschema that the validator may apply. It may have more.

use std::collections::{BTreeMap, BTreeSet};

use jsonschema::{Draft, Registry, Retrieve, Uri, uri};
use referencing::SPECIFICATIONS;
use serde_json::{Map, Value};

use crate::{
    error::{LocSegment, Violation},
    limits::{LARGE_SCHEMA_CYCLE_REFS_MAX, LARGE_SCHEMA_SUBSCHEMAS, SCHEMA_CYCLE_REFS_MAX, SUBSCHEMAS_MAX},
};

/// The base URI of a document that names none; `jsonschema` uses the same.
const DEFAULT_BASE: &str = "json-schema:///";

/// The evaluations of a meta-schema for one value: it has some dozens of subschemas for an object.
const META_SCHEMA_WEIGHT: u64 = 300;
/// The keywords that compare numbers.
const NUMERIC_KEYWORDS: [&str; 7] =
    ["multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum", "const"];

/// A subschema.
#[derive(Debug, Default)]
pub(super) struct SubschemaNode<'s> {
    /// The address of its value.
    pub(super) address: usize,
    /// The cost of one evaluation without its subschemas: a long `enum`, `required` or `properties` adds to it.
    pub(super) weight: u64,
    /// The cost of comparing a number of the data: one for each number of a numeric keyword, more for a long one.
    pub(super) numeric: u64,
    /// The positions of its `pattern`, and of its `patternProperties`, as far as they cost more than an evaluation; set
    /// when the patterns have been accepted.
    pub(super) positions: u64,
    pub(super) name_positions: u64,
    /// The cost of matching a member's name with those of them that backtrack.
    pub(super) name_steps: u64,
    /// Applied at the same place by an applicator (`allOf`, `not`, …).
    pub(super) in_place: Vec<usize>,
    /// Applied at the same place by a reference.
    pub(super) refs: Vec<usize>,
    /// `properties`.
    pub(super) properties: BTreeMap<&'s str, usize>,
    /// `patternProperties`: may apply to any member.
    pub(super) pattern_properties: Vec<usize>,
    /// `additionalProperties`, `unevaluatedProperties`: apply to members that `properties` does not name.
    pub(super) additional_properties: Vec<usize>,
    /// `prefixItems`, or `items` as an array; `None` for a boolean subschema.
    pub(super) prefix_items: Vec<Option<usize>>,
    /// `items`, `additionalItems`, `unevaluatedItems`: apply to the elements after `prefix_items`.
    pub(super) items: Vec<usize>,
    /// `contains`.
    pub(super) contains: Vec<usize>,
    /// `propertyNames`.
    pub(super) property_names: Vec<usize>,
    /// How many of `unevaluatedProperties` and `unevaluatedItems` it has.
    pub(super) unevaluated: usize,
}

/// All subschemas of a document; the root is the first.
#[derive(Debug)]
pub(super) struct Graph<'s> {
    pub(super) nodes: Vec<SubschemaNode<'s>>,
    values: Values<'s>,
}

/// How a subschema applies: the field of [`SubschemaNode`] that it belongs to.
#[derive(Clone, Copy)]
enum Edge<'s> {
    InPlace,
    Property(&'s str),
    PatternProperty,
    AdditionalProperty,
    PrefixItem(usize),
    Item,
    Contains,
    PropertyName,
    /// Not at all (`$defs`): only references apply it.
    None,
}

impl<'s> Edge<'s> {
    /// The edge of a member of the keyword's value.
    fn of_member(self, name: &'s str) -> Self {
        if matches!(self, Self::Property(_)) { Self::Property(name) } else { self }
    }

    /// The edge of an element of the keyword's value.
    fn of_element(self, index: usize) -> Self {
        if matches!(self, Self::PrefixItem(_)) { Self::PrefixItem(index) } else { self }
    }
}

/// Returns an empty document for every remote reference, so that the reference can be rejected with its location.
struct NoRetrieval;

/// The traversal from the root; `R` is the resolver, whose type `jsonschema` does not export.
struct Walk<'s, R> {
    draft: Draft,
    values: Values<'s>,
    nodes: Vec<SubschemaNode<'s>>,
    /// The nodes by address and scope: a reference of the same subschema may have another target in another scope.
    interned: BTreeMap<(usize, String), usize>,
    queue: Vec<SubschemaVisit<'s, R>>,
    /// The targets of references from one embedded document to another, by their base URIs.
    cross_references: BTreeMap<(String, String), BTreeSet<usize>>,
    violations: Vec<Violation>,
}

/// A subschema to visit.
struct SubschemaVisit<'s, R> {
    node: usize,
    value: &'s Value,
    resolver: R,
    scope: String,
}

impl Retrieve for NoRetrieval {
    fn retrieve(&self, _: &Uri<String>) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Value::Object(Map::new()))
    }
}

impl<'s> Graph<'s> {
    /// The graph of a document that its meta-schema accepts.
    ///
    /// # Errors
    /// When a reference has its target outside the document and the meta-schemas, or none, or a subschema has another
    /// draft.
    pub(super) fn of(schema: &'s Value, draft: Draft) -> Result<Self, Vec<Violation>> {
        let no_base = |error: jsonschema::ReferencingError| vec![Violation::new(error.to_string())];
        let resource = draft.create_resource_ref(schema);
        let base = uri::from_str(resource.id().unwrap_or(DEFAULT_BASE)).map_err(no_base)?;
        let builder = Registry::new().retriever(NoRetrieval).draft(draft).add(base.as_str(), resource);
        let registry = builder.and_then(jsonschema::RegistryBuilder::prepare).map_err(no_base)?;
        let root = registry.resolver(base).in_subresource(resource).map_err(no_base)?;

        let mut walk = Walk::new(schema, draft);
        let scope =
            scope_of(root.base_uri().as_str(), (&root.dynamic_scope()).into_iter().map(ToString::to_string));
        walk.intern(schema, root, scope);
        while let Some(SubschemaVisit { node, value, resolver, scope }) = walk.queue.pop() {
            let Value::Object(map) = value else { continue };
            walk.visit(node, value, map)?;
            for (edge, child) in children(map, draft) {
                let resource = draft.create_resource_ref(child);
                if resource.id().is_none() {
                    let target = walk.intern(child, resolver.clone(), scope.clone());
                    walk.nodes[node].link(edge, target);
                    continue;
                }
                match resolver.in_subresource(resource) {
                    Ok(inner) => {
                        let scopes = inner.dynamic_scope();
                        let scope = scope_of(
                            inner.base_uri().as_str(),
                            (&scopes).into_iter().map(ToString::to_string),
                        );
                        let target = walk.intern(child, inner, scope);
                        walk.nodes[node].link(edge, target);
                    }
                    Err(error) => walk.violation(child, draft.id_keyword(), error.to_string()),
                }
            }
            for (keyword, reference) in references(map, draft) {
                let found = match keyword {
                    "$recursiveRef" => resolver.lookup_recursive_ref(),
                    _ => resolver.lookup(reference),
                };
                let found = found.map(|found| (walk.values.find(found.contents()), found));
                match found {
                    Ok((Some(contents), found)) => {
                        let (_, inner, _) = found.into_inner();
                        walk.add_cross_reference(
                            resolver.base_uri().as_str(),
                            inner.base_uri().as_str(),
                            contents,
                        );
                        let scopes = inner.dynamic_scope();
                        let scope = scope_of(
                            inner.base_uri().as_str(),
                            (&scopes).into_iter().map(ToString::to_string),
                        );
                        let target = walk.intern(contents, inner, scope);
                        walk.nodes[node].refs.push(target);
                    }
                    Ok((None, _)) | Err(_) if is_of_meta_schema(reference) => {
                        let target = walk.meta_schema();
                        walk.nodes[node].refs.push(target);
                    }
                    Ok((None, _)) => walk.violation(value, keyword, outside(reference)),
                    Err(error) => {
                        let name = document_of(reference);
                        let document = resolver.lookup(name);
                        let is_remote = Draft::from_schema_uri(name) == Draft::Unknown
                            && document.is_ok_and(|found| walk.values.find(found.contents()).is_none());
                        let msg = if is_remote { outside(reference) } else { nowhere(reference, &error) };
                        walk.violation(value, keyword, msg);
                    }
                }
            }
        }
        walk.into_graph()
    }

    /// All subschemas, each once, with its location from the document's root.
    pub(super) fn subschemas(
        &self,
    ) -> impl Iterator<Item = (&'s Map<String, Value>, impl Fn() -> Vec<LocSegment>)> {
        let all: BTreeSet<usize> = self.nodes.iter().map(|node| node.address).collect();
        all.into_iter().filter_map(move |address| {
            let map = self.values.0.get(&address)?.2.as_object()?;
            Some((map, move || self.values.loc(address)))
        })
    }

    /// Enters into each subschema the positions of its patterns, and the `steps` of each pattern that may backtrack.
    pub(super) fn set_patterns(&mut self, positions: impl Fn(&str) -> u64, steps: u64) {
        for node in &mut self.nodes {
            let Some((.., value)) = self.values.0.get(&node.address) else { continue };
            node.positions = value.get("pattern").and_then(Value::as_str).map_or(0, &positions);
            let names = value.get("patternProperties").and_then(Value::as_object);
            let names = names.into_iter().flat_map(Map::keys).map(|name| positions(name));
            node.name_positions = names.fold(0, u64::saturating_add);
            let names = value.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len);
            node.name_steps = steps.saturating_mul(names as u64);
            node.weight += if value.get("pattern").is_some() { steps } else { 0 };
        }
    }

    /// Whether a reference leads to a meta-schema.
    pub(super) fn refers_to_meta_schema(&self) -> bool {
        self.nodes.iter().any(|node| node.address == 0)
    }

    /// The targets of each subschema's references, by the subschema's address, for each scope in which it applies.
    pub(super) fn targets(&self) -> BTreeMap<usize, BTreeSet<Vec<usize>>> {
        let mut targets: BTreeMap<usize, BTreeSet<Vec<usize>>> = BTreeMap::new();
        for node in self.nodes.iter().filter(|node| !node.refs.is_empty()) {
            let of_scope = node.refs.iter().map(|target| self.nodes[*target].address).collect();
            targets.entry(node.address).or_default().insert(of_scope);
        }
        targets
    }

    /// The value at an address.
    pub(super) fn value_at(&self, address: usize) -> Option<&'s Value> {
        self.values.0.get(&address).map(|(.., value)| *value)
    }

    /// The location of a node from the document's root.
    pub(super) fn loc(&self, node: usize) -> Vec<LocSegment> {
        self.values.loc(self.nodes[node].address)
    }
}

impl<'s, R> Walk<'s, R> {
    fn new(schema: &'s Value, draft: Draft) -> Self {
        Self {
            draft,
            values: Values::of(schema),
            nodes: Vec::new(),
            interned: BTreeMap::new(),
            queue: Vec::new(),
            cross_references: BTreeMap::new(),
            violations: Vec::new(),
        }
    }

    /// The node of a subschema in a scope; a new one is queued for its visit.
    fn intern(&mut self, value: &'s Value, resolver: R, scope: String) -> usize {
        let key = (address(value), scope);
        if let Some(&node) = self.interned.get(&key) {
            return node;
        }
        let node = self.nodes.len();
        self.nodes.push(SubschemaNode::of(value));
        self.interned.insert(key.clone(), node);
        self.queue.push(SubschemaVisit { node, value, resolver, scope: key.1 });
        node
    }

    /// The node that stands for a meta-schema.
    fn meta_schema(&mut self) -> usize {
        let known = self.nodes.iter().position(|node| node.address == 0);
        known.unwrap_or_else(|| {
            let this = self.nodes.len();
            let (below, weight) = (vec![this], META_SCHEMA_WEIGHT);
            self.nodes.push(SubschemaNode {
                weight,
                additional_properties: below.clone(),
                items: below,
                ..SubschemaNode::default()
            });
            this
        })
    }

    /// Records what the subschema has besides its children.
    fn visit(&mut self, node: usize, value: &Value, map: &Map<String, Value>) -> Result<(), Vec<Violation>> {
        if self.nodes.len() > SUBSCHEMAS_MAX {
            return Err(vec![Violation::new(format!(
                "the schema has more than {SUBSCHEMAS_MAX} subschemas"
            ))]);
        }
        let dialect = map.get("$schema").and_then(Value::as_str);
        if dialect.is_some_and(|dialect| Draft::from_schema_uri(dialect) != self.draft) {
            self.violation(value, "$schema", "a subschema must have the draft of the whole schema".into());
        }
        let keywords = ["unevaluatedProperties", "unevaluatedItems"];
        if self.draft >= Draft::Draft201909 {
            self.nodes[node].unevaluated =
                keywords.iter().filter(|keyword| map.contains_key(**keyword)).count();
        }
        Ok(())
    }

    /// Records a reference whose target is in another embedded document.
    fn add_cross_reference(&mut self, from: &str, to: &str, target: &Value) {
        if from != to {
            self.cross_references.entry((from.into(), to.into())).or_default().insert(address(target));
        }
    }

    /// Rejects too many references on cycles of embedded documents.
    fn check_cycles(&mut self) {
        let mut targets: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (from, to) in self.cross_references.keys() {
            targets.entry(from).or_default().insert(to);
        }
        let returns = |from: &str, to: &str| {
            let (mut seen, mut queue) = (BTreeSet::new(), vec![to]);
            while let Some(at) = queue.pop() {
                if seen.insert(at) {
                    queue.extend(targets.get(at).into_iter().flatten());
                }
            }
            seen.contains(from)
        };
        let on_cycles = self.cross_references.iter().filter(|((from, to), _)| returns(from, to));
        let count: usize = on_cycles.map(|(_, targets)| targets.len()).sum();
        let is_large = self.nodes.len() > LARGE_SCHEMA_SUBSCHEMAS;
        let max = if is_large { LARGE_SCHEMA_CYCLE_REFS_MAX } else { SCHEMA_CYCLE_REFS_MAX };
        if count > max {
            let msg = format!(
                "the parts of the schema with an `$id` refer to each other in circles {count} times, more than {max}"
            );
            self.violations.push(Violation::new(msg));
        }
    }

    fn violation(&mut self, value: &Value, keyword: &str, msg: String) {
        let mut loc = self.values.loc(address(value));
        loc.push(keyword.into());
        self.violations.push(Violation::at(loc, msg));
    }

    fn into_graph(mut self) -> Result<Graph<'s>, Vec<Violation>> {
        self.check_cycles();
        if self.violations.is_empty() {
            Ok(Graph { nodes: self.nodes, values: self.values })
        } else {
            Err(self.violations)
        }
    }
}

impl<'s> SubschemaNode<'s> {
    fn of(value: &Value) -> Self {
        let length = |keyword: &str| match value.get(keyword) {
            Some(Value::Array(items)) => items.len(),
            Some(Value::Object(members)) => members.len(),
            _ => 0,
        };
        // A look-up or a comparison costs about an eighth of an evaluation.
        let extra = (length("enum") + length("required") + length("properties")) / 8;
        let numeric = NUMERIC_KEYWORDS
            .iter()
            .filter_map(|keyword| value.get(keyword))
            .map(super::size::numbers)
            .sum::<u64>();
        // Whether `1e9999` is an integer is decided by expanding it.
        let integer = value.get("type").is_some_and(|kind| kind == "integer" || kind.is_array());
        let divisor = value.get("multipleOf").map_or(0, super::size::divisor);
        let numeric = numeric.saturating_add(divisor) + u64::from(integer);
        let (address, weight) = (address(value), 1 + extra as u64);
        Self { address, weight, numeric, ..Self::default() }
    }

    /// Whether it evaluates anything one level below.
    pub(super) fn descends(&self) -> bool {
        let lists = [
            &self.pattern_properties,
            &self.additional_properties,
            &self.items,
            &self.contains,
            &self.property_names,
        ];
        !self.properties.is_empty()
            || !self.prefix_items.is_empty()
            || lists.iter().any(|list| !list.is_empty())
    }

    fn link(&mut self, edge: Edge<'s>, target: usize) {
        match edge {
            Edge::InPlace => self.in_place.push(target),
            Edge::Property(name) => {
                self.properties.insert(name, target);
            }
            Edge::PatternProperty => self.pattern_properties.push(target),
            Edge::AdditionalProperty => self.additional_properties.push(target),
            Edge::PrefixItem(index) => {
                if self.prefix_items.len() <= index {
                    self.prefix_items.resize(index + 1, None);
                }
                self.prefix_items[index] = Some(target);
            }
            Edge::Item => self.items.push(target),
            Edge::Contains => self.contains.push(target),
            Edge::PropertyName => self.property_names.push(target),
            Edge::None => {}
        }
    }
}

/// Identifies the scope of a resolver: the enclosing documents, outermost first, each once, because a dynamic reference
/// resolves to the outermost.
fn scope_of(base: &str, scopes: impl Iterator<Item = String>) -> String {
    let mut all: Vec<String> = scopes.collect();
    all.reverse();
    all.push(base.into());
    let mut unique: Vec<&str> = Vec::new();
    for uri in &all {
        if !unique.contains(&uri.as_str()) {
            unique.push(uri);
        }
    }
    // A relative reference is resolved against the base, wherever the base is in the list.
    format!("{base} {}", unique.join(" "))
}

/// Whether a reference names the meta-schema of a draft, or a part of it.
fn is_of_meta_schema(reference: &str) -> bool {
    let document = document_of(reference);
    if Draft::from_schema_uri(document) == Draft::Unknown {
        return false;
    }
    // `schema` and `schema#` are the whole.
    let is_whole = reference.len() <= document.len() + 1;
    is_whole
        || uri::from_str(document).is_ok_and(|base| SPECIFICATIONS.resolver(base).lookup(reference).is_ok())
}

/// A reference without its fragment: empty when it is within the document.
fn document_of(reference: &str) -> &str {
    reference.split('#').next().unwrap_or_default()
}

fn nowhere(reference: &str, error: &jsonschema::ReferencingError) -> String {
    format!("`{reference}` does not resolve: {error}")
}

fn outside(reference: &str) -> String {
    format!("`{reference}` must refer to a schema inside this document: Concord fetches nothing")
}

/// The keywords whose value is an object with subschemas as members.
const OBJECT_KEYWORDS: [&str; 6] =
    ["$defs", "definitions", "dependentSchemas", "dependencies", "properties", "patternProperties"];

/// Whether the siblings of a `$ref` are ignored.
fn ignores_ref_siblings(map: &Map<String, Value>, draft: Draft) -> bool {
    draft < Draft::Draft201909 && map.contains_key("$ref")
}

/// The keywords that refer to a subschema in a draft.
pub(super) fn reference_keywords(draft: Draft) -> &'static [&'static str] {
    if draft < Draft::Draft201909 {
        return &["$ref"];
    }
    if draft == Draft::Draft201909 { &["$ref", "$recursiveRef"] } else { &["$ref", "$dynamicRef"] }
}

/// The references of a subschema. Keywords of other drafts do not count.
fn references(map: &Map<String, Value>, draft: Draft) -> impl Iterator<Item = (&'static str, &str)> {
    reference_keywords(draft).iter().filter_map(|keyword| Some((*keyword, map.get(*keyword)?.as_str()?)))
}

/// The subschemas of a subschema, by the keywords of all drafts at once; booleans cost nothing and are left out.
fn children(map: &Map<String, Value>, draft: Draft) -> Vec<(Edge<'_>, &Value)> {
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

/// Every value of the document by its address, with its container's address and the segment that leads from there.
#[derive(Debug, Default)]
struct Values<'s>(BTreeMap<usize, (usize, LocSegment, &'s Value)>);

impl<'s> Values<'s> {
    fn of(schema: &'s Value) -> Self {
        let mut values = Self::default();
        values.0.insert(address(schema), (0, LocSegment::Index(0), schema));
        let mut queue = vec![schema];
        while let Some(value) = queue.pop() {
            let container = address(value);
            let mut add = |child: &'s Value, segment| {
                values.0.insert(address(child), (container, segment, child));
                queue.push(child);
            };
            match value {
                Value::Object(map) => {
                    for (name, child) in map {
                        add(child, name.as_str().into());
                    }
                }
                Value::Array(items) => {
                    for (child, index) in items.iter().zip(0..) {
                        add(child, LocSegment::Index(index));
                    }
                }
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        values
    }

    /// The document's value at the same address, when there is one and it may be a schema.
    fn find(&self, value: &Value) -> Option<&'s Value> {
        let found = self.0.get(&address(value)).map(|(.., found)| *found);
        found.filter(|found| found.is_object() || found.is_boolean())
    }

    fn loc(&self, address: usize) -> Vec<LocSegment> {
        let mut loc = Vec::new();
        let mut at = address;
        // The root has no container: address 0.
        while let Some((container, segment, _)) = self.0.get(&at).filter(|(container, ..)| *container != 0) {
            loc.push(segment.clone());
            at = *container;
        }
        loc.reverse();
        loc
    }
}

/// Identifies a value: the document is borrowed for as long as the graph lives, so addresses are stable.
#[must_use]
pub fn address(value: &Value) -> usize {
    std::ptr::from_ref(value).addr()
}
