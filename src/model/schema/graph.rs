//! The subschemas of a document and how one applies another: at the same place of the data, or one level below.
//!
//! References are resolved by `jsonschema`'s own resolver, so that this graph and the validator mean the same
//! target. A target is recognised by its address: what does not lie inside the document is refused, and the
//! retriever that the resolver is given knows nothing, so nothing is ever fetched.
//!
//! **Invariant:** whatever the validator may apply, the graph has an edge for. It may have more.

use std::collections::{BTreeMap, BTreeSet};

use jsonschema::{Draft, Registry, Retrieve, Uri, uri};
use serde_json::{Map, Value};

use crate::model::error::{Step, Violation};

/// Subschemas of a document, counted once for each dynamic scope: its size allows no more in one scope, and
/// documents in a document that refer to each other multiply.
const NODES_MAX: usize = 100_000;
/// References between documents in the document that refer to each other in a circle, and the size up to which
/// these many may be. The validator compiles a target anew for every way through documents that leads to it; on a
/// circle these multiply (36 references between three small documents took more than a minute).
const CROSSINGS_MAX: usize = 16;
const CROSSINGS_MAX_LARGE: usize = 4;
const LARGE: usize = 1000;
/// The base of a document that names none; `jsonschema` takes the same.
const BASE: &str = "json-schema:///";

/// The keywords whose value has subschemas as members.
const MAPS: [&str; 6] =
    ["$defs", "definitions", "dependentSchemas", "dependencies", "properties", "patternProperties"];
/// The keywords that compare numbers.
const NUMERIC: [&str; 7] =
    ["multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum", "const"];

/// A subschema.
#[derive(Debug, Default)]
pub(super) struct Node<'s> {
    /// The address of its value.
    at: usize,
    /// What one evaluation costs beside the subschemas: long `enum`, `required`, `properties`.
    pub(super) weight: u64,
    /// What it compares a number of the data with: one for each number, more for a long one.
    pub(super) numeric: u64,
    /// Applied at the same place through an applicator (`allOf`, `not`, …).
    pub(super) here: Vec<usize>,
    /// Applied at the same place through a reference.
    pub(super) refs: Vec<usize>,
    /// `properties`.
    pub(super) names: BTreeMap<&'s str, usize>,
    /// `patternProperties`: may apply to any member.
    pub(super) matching: Vec<usize>,
    /// `additionalProperties`, `unevaluatedProperties`: to members that `properties` does not name.
    pub(super) further: Vec<usize>,
    /// `prefixItems`, or `items` as an array; an element without a node is a boolean.
    pub(super) first: Vec<Option<usize>>,
    /// `items`, `additionalItems`, `unevaluatedItems`: to the elements behind `first`.
    pub(super) rest: Vec<usize>,
    /// `contains`.
    pub(super) every: Vec<usize>,
    /// `propertyNames`.
    pub(super) spelled: Vec<usize>,
    /// How many of `unevaluatedProperties` and `unevaluatedItems` it has.
    pub(super) unevaluated: usize,
}

/// All subschemas of a document; the root is the first.
#[derive(Debug)]
pub(super) struct Graph<'s> {
    pub(super) nodes: Vec<Node<'s>>,
    places: Places<'s>,
}

/// Where a subschema applies.
#[derive(Clone, Copy)]
enum Slot<'s> {
    Here,
    Name(&'s str),
    Matching,
    Further,
    First(usize),
    Rest,
    Every,
    Spelled,
    /// Nowhere by itself (`$defs`): only references lead there.
    Aside,
}

impl<'s> Slot<'s> {
    /// The slot of a member of the keyword's value.
    fn named(self, name: &'s str) -> Self {
        if matches!(self, Self::Name(_)) { Self::Name(name) } else { self }
    }

    /// The slot of an element of the keyword's value.
    fn at(self, place: usize) -> Self {
        if matches!(self, Self::First(_)) { Self::First(place) } else { self }
    }
}

/// Every value of the document by its address, with its container's address and the step from there.
#[derive(Debug, Default)]
struct Places<'s>(BTreeMap<usize, (usize, Step, &'s Value)>);

/// Answers every request for a remote document with an empty one, so that the reference's place can be told.
struct Nothing;

/// The walk from the root; `R` is the resolver, whose type `jsonschema` does not name.
struct Walk<'s, R> {
    draft: Draft,
    places: Places<'s>,
    nodes: Vec<Node<'s>>,
    /// The nodes by address and scope: the same subschema may mean another target in another scope.
    known: BTreeMap<(usize, String), usize>,
    todo: Vec<Visit<'s, R>>,
    /// The targets of references from one document to another, by their bases.
    crossings: BTreeMap<(String, String), BTreeSet<usize>>,
    violations: Vec<Violation>,
}

/// A subschema to look at.
struct Visit<'s, R> {
    node: usize,
    value: &'s Value,
    resolver: R,
    scope: String,
}

impl Retrieve for Nothing {
    fn retrieve(&self, _: &Uri<String>) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Value::Object(Map::new()))
    }
}

impl<'s> Graph<'s> {
    /// The graph of a document that its meta-schema accepts.
    ///
    /// # Errors
    /// When a reference leads out of the document or nowhere, or a subschema is of another draft.
    pub(super) fn of(schema: &'s Value, draft: Draft) -> Result<Self, Vec<Violation>> {
        let no_base = |error: jsonschema::ReferencingError| vec![Violation::new(error.to_string())];
        let resource = draft.create_resource_ref(schema);
        let base = uri::from_str(resource.id().unwrap_or(BASE)).map_err(no_base)?;
        let builder = Registry::new().retriever(Nothing).draft(draft).add(base.as_str(), resource);
        let registry = builder.and_then(jsonschema::RegistryBuilder::prepare).map_err(no_base)?;
        let root = registry.resolver(base).in_subresource(resource).map_err(no_base)?;

        let mut walk = Walk::new(schema, draft);
        let scope =
            scope_of(root.base_uri().as_str(), (&root.dynamic_scope()).into_iter().map(ToString::to_string));
        walk.intern(schema, root, scope);
        while let Some(Visit { node, value, resolver, scope }) = walk.todo.pop() {
            let Value::Object(map) = value else { continue };
            walk.look_at(node, value, map)?;
            for (slot, child) in children(map, draft) {
                let resource = draft.create_resource_ref(child);
                if resource.id().is_none() {
                    let target = walk.intern(child, resolver.clone(), scope.clone());
                    walk.nodes[node].link(slot, target);
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
                        walk.nodes[node].link(slot, target);
                    }
                    Err(error) => walk.violation(child, draft.id_keyword(), error.to_string()),
                }
            }
            for (keyword, reference) in references(map, draft) {
                let found = match keyword {
                    "$recursiveRef" => resolver.lookup_recursive_ref(),
                    _ => resolver.lookup(reference),
                };
                let found = found.map(|found| (walk.places.find(found.contents()), found));
                match found {
                    Ok((Some(contents), found)) => {
                        let (_, inner, _) = found.into_inner();
                        walk.cross(resolver.base_uri().as_str(), inner.base_uri().as_str(), contents);
                        let scopes = inner.dynamic_scope();
                        let scope = scope_of(
                            inner.base_uri().as_str(),
                            (&scopes).into_iter().map(ToString::to_string),
                        );
                        let target = walk.intern(contents, inner, scope);
                        walk.nodes[node].refs.push(target);
                    }
                    Ok((None, _)) => walk.violation(value, keyword, outside(reference)),
                    Err(error) => {
                        walk.violation(value, keyword, format!("`{reference}` leads nowhere: {error}"));
                    }
                }
            }
        }
        walk.into_graph()
    }

    /// All subschemas, each once, with the way to it from the document's root.
    pub(super) fn subschemas(
        &self,
    ) -> impl Iterator<Item = (&'s Map<String, Value>, impl Fn() -> Vec<Step>)> {
        let all: BTreeSet<usize> = self.nodes.iter().map(|node| node.at).collect();
        all.into_iter().filter_map(move |at| {
            let map = self.places.0.get(&at)?.2.as_object()?;
            Some((map, move || self.places.way_to(at)))
        })
    }

    /// The way to a node from the document's root.
    pub(super) fn way(&self, node: usize) -> Vec<Step> {
        self.places.way_to(self.nodes[node].at)
    }
}

impl<'s, R> Walk<'s, R> {
    fn new(schema: &'s Value, draft: Draft) -> Self {
        Self {
            draft,
            places: Places::of(schema),
            nodes: Vec::new(),
            known: BTreeMap::new(),
            todo: Vec::new(),
            crossings: BTreeMap::new(),
            violations: Vec::new(),
        }
    }

    /// The node of a subschema in a scope; a new one is to be looked at.
    fn intern(&mut self, value: &'s Value, resolver: R, scope: String) -> usize {
        let key = (address(value), scope);
        if let Some(&node) = self.known.get(&key) {
            return node;
        }
        let node = self.nodes.len();
        self.nodes.push(Node::of(value));
        self.known.insert(key.clone(), node);
        self.todo.push(Visit { node, value, resolver, scope: key.1 });
        node
    }

    /// Notes what the subschema has beside its subschemas.
    fn look_at(
        &mut self,
        node: usize,
        value: &Value,
        map: &Map<String, Value>,
    ) -> Result<(), Vec<Violation>> {
        if self.nodes.len() > NODES_MAX {
            return Err(vec![Violation::new(format!("the schema has more than {NODES_MAX} subschemas"))]);
        }
        let dialect = map.get("$schema").and_then(Value::as_str);
        if dialect.is_some_and(|dialect| Draft::from_schema_uri(dialect) != self.draft) {
            self.violation(value, "$schema", "a part of a schema must be of the whole's draft".into());
        }
        let keywords = ["unevaluatedProperties", "unevaluatedItems"];
        if self.draft >= Draft::Draft201909 {
            self.nodes[node].unevaluated =
                keywords.iter().filter(|keyword| map.contains_key(**keyword)).count();
        }
        Ok(())
    }

    /// Notes a reference that leads to another document in the document.
    fn cross(&mut self, from: &str, to: &str, target: &Value) {
        if from != to {
            self.crossings.entry((from.into(), to.into())).or_default().insert(address(target));
        }
    }

    /// Refuses many references on circles of documents.
    fn check_crossings(&mut self) {
        let mut reach: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (from, to) in self.crossings.keys() {
            reach.entry(from).or_default().insert(to);
        }
        let returns = |from: &str, to: &str| {
            let (mut seen, mut todo) = (BTreeSet::new(), vec![to]);
            while let Some(at) = todo.pop() {
                if seen.insert(at) {
                    todo.extend(reach.get(at).into_iter().flatten());
                }
            }
            seen.contains(from)
        };
        let circular = self.crossings.iter().filter(|((from, to), _)| returns(from, to));
        let count: usize = circular.map(|(_, targets)| targets.len()).sum();
        let most = if self.nodes.len() > LARGE { CROSSINGS_MAX_LARGE } else { CROSSINGS_MAX };
        if count > most {
            let msg = format!(
                "the parts of the schema with an `$id` refer to each other in circles {count} times, more than {most}"
            );
            self.violations.push(Violation::new(msg));
        }
    }

    fn violation(&mut self, value: &Value, keyword: &str, msg: String) {
        let mut loc = self.places.way_to(address(value));
        loc.push(keyword.into());
        self.violations.push(Violation::at(loc, msg));
    }

    fn into_graph(mut self) -> Result<Graph<'s>, Vec<Violation>> {
        self.check_crossings();
        if self.violations.is_empty() {
            Ok(Graph { nodes: self.nodes, places: self.places })
        } else {
            Err(self.violations)
        }
    }
}

impl<'s> Node<'s> {
    fn of(value: &Value) -> Self {
        let length = |keyword: &str| match value.get(keyword) {
            Some(Value::Array(items)) => items.len(),
            Some(Value::Object(members)) => members.len(),
            _ => 0,
        };
        // A look-up or a comparison is about an eighth of an evaluation.
        let extra = (length("enum") + length("required") + length("properties")) / 8;
        let numeric =
            NUMERIC.iter().filter_map(|keyword| value.get(keyword)).map(super::cost::numbers).sum::<u64>();
        // To learn that `1e9999` is an integer it is written out.
        let integer = value.get("type").is_some_and(|kind| kind == "integer" || kind.is_array());
        let numeric = numeric + u64::from(integer);
        Self { at: address(value), weight: 1 + extra as u64, numeric, ..Self::default() }
    }

    /// Whether it evaluates anything one level below.
    pub(super) fn descends(&self) -> bool {
        let lists = [&self.matching, &self.further, &self.rest, &self.every, &self.spelled];
        !self.names.is_empty() || !self.first.is_empty() || lists.iter().any(|list| !list.is_empty())
    }

    fn link(&mut self, slot: Slot<'s>, target: usize) {
        match slot {
            Slot::Here => self.here.push(target),
            Slot::Name(name) => {
                self.names.insert(name, target);
            }
            Slot::Matching => self.matching.push(target),
            Slot::Further => self.further.push(target),
            Slot::First(place) => {
                if self.first.len() <= place {
                    self.first.resize(place + 1, None);
                }
                self.first[place] = Some(target);
            }
            Slot::Rest => self.rest.push(target),
            Slot::Every => self.every.push(target),
            Slot::Spelled => self.spelled.push(target),
            Slot::Aside => {}
        }
    }
}

impl<'s> Places<'s> {
    fn of(schema: &'s Value) -> Self {
        let mut places = Self::default();
        places.0.insert(address(schema), (0, Step::Place(0), schema));
        let mut todo = vec![schema];
        while let Some(value) = todo.pop() {
            let at = address(value);
            let mut note = |child: &'s Value, step| {
                places.0.insert(address(child), (at, step, child));
                todo.push(child);
            };
            match value {
                Value::Object(map) => {
                    for (name, child) in map {
                        note(child, name.as_str().into());
                    }
                }
                Value::Array(items) => {
                    for (child, place) in items.iter().zip(0..) {
                        note(child, Step::Place(place));
                    }
                }
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        places
    }

    /// The document's value that is this one, when it is one and may be a schema.
    fn find(&self, value: &Value) -> Option<&'s Value> {
        let found = self.0.get(&address(value)).map(|(.., found)| *found);
        found.filter(|found| found.is_object() || found.is_boolean())
    }

    fn way_to(&self, at: usize) -> Vec<Step> {
        let mut way = Vec::new();
        let mut at = at;
        // The root's container has no address.
        while let Some((container, step, _)) = self.0.get(&at).filter(|(container, ..)| *container != 0) {
            way.push(step.clone());
            at = *container;
        }
        way.reverse();
        way
    }
}

/// What tells values apart; the document is borrowed for as long as the graph lives.
fn address(value: &Value) -> usize {
    std::ptr::from_ref(value).addr()
}

/// What tells two resolvers apart: the documents that lie around, outermost first, each once, because a dynamic
/// reference takes the outermost.
fn scope_of(base: &str, scopes: impl Iterator<Item = String>) -> String {
    let mut all: Vec<String> = scopes.collect();
    all.reverse();
    all.push(base.into());
    let mut kept: Vec<&str> = Vec::new();
    for uri in &all {
        if !kept.contains(&uri.as_str()) {
            kept.push(uri);
        }
    }
    // The base itself decides what a relative reference means, wherever it lies in the order.
    format!("{base} {}", kept.join(" "))
}

fn outside(reference: &str) -> String {
    format!("`{reference}` must lead to a schema inside this document: nothing is ever fetched")
}

/// Whether siblings of `$ref` mean nothing.
fn ref_stands_alone(map: &Map<String, Value>, draft: Draft) -> bool {
    draft < Draft::Draft201909 && map.contains_key("$ref")
}

/// The references of a subschema. Outside their draft the newer keywords are no references.
fn references(map: &Map<String, Value>, draft: Draft) -> impl Iterator<Item = (&'static str, &str)> {
    let keywords: &[&str] =
        if draft < Draft::Draft201909 { &["$ref"] } else { &["$ref", "$dynamicRef", "$recursiveRef"] };
    keywords.iter().filter_map(|keyword| Some((*keyword, map.get(*keyword)?.as_str()?)))
}

/// The subschemas of a subschema, in every draft's reading at once; booleans cost nothing and are left out.
fn children(map: &Map<String, Value>, draft: Draft) -> Vec<(Slot<'_>, &Value)> {
    let alone = ref_stands_alone(map, draft);
    let single_items = map.get("items").is_some_and(|items| !items.is_array());
    let mut found = Vec::new();
    for (keyword, value) in map {
        let slot = match keyword.as_str() {
            "$defs" | "definitions" => Slot::Aside,
            _ if alone => continue,
            "allOf" | "anyOf" | "oneOf" | "not" | "if" | "then" | "else" | "contentSchema" => Slot::Here,
            "dependentSchemas" | "dependencies" => Slot::Here,
            "properties" => Slot::Name(""),
            "patternProperties" => Slot::Matching,
            "additionalProperties" | "unevaluatedProperties" => Slot::Further,
            "prefixItems" => Slot::First(0),
            "items" if value.is_array() => Slot::First(0),
            "additionalItems" if single_items => Slot::Aside,
            "items" | "additionalItems" | "unevaluatedItems" => Slot::Rest,
            "contains" => Slot::Every,
            "propertyNames" => Slot::Spelled,
            _ => continue,
        };
        if let Some(members) = value.as_object().filter(|_| MAPS.contains(&keyword.as_str())) {
            found.extend(members.iter().map(|(name, child)| (slot.named(name), child)));
        } else if let Value::Array(items) = value {
            found.extend(items.iter().enumerate().map(|(place, child)| (slot.at(place), child)));
        } else {
            found.push((slot, value));
        }
    }
    found.retain(|(_, child)| child.is_object());
    found
}
