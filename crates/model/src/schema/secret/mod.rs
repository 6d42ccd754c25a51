//! The secret fields of data: those that a subschema with `"x-concord-secret"` applies to.
//!
//! A place is secret when any subschema that can apply to it has the mark, whether it applies to the data at hand or
//! not: each branch of a union counts, and both of a condition. So what is secret follows from the names and indexes on
//! the way to a place, and not from the values there. Where it is not certain that a subschema applies
//! (`unevaluatedProperties`, `contains`, a pattern that takes too many steps to match), it counts as one that does.
//! Anything but `false` as the value of the mark is the mark: a `"true"` that was meant as `true` must not show what it
//! was to hide.
//!
//! | file | what it does |
//! |---|---|
//! | `compared` | finds schemas that compare secret values with each other |
//!
//! The places are computed once, when the schema is compiled: of the graph of its subschemas only those are left from
//! which a mark can be reached, and a schema without one has no [`SecretPlaces`].
//!
//! **Invariants:** what is at or below a secret field is one secret value: places are the outermost ones. A visit takes
//! a bounded number of steps in proportion to the data; where they are used up, what is left counts as secret.

mod compared;

use std::collections::BTreeMap;

use jsonschema::Draft;
use serde_json::{Map, Value};

use super::{
    graph::{Graph, SubschemaNode},
    pattern::NamePattern,
};
use crate::{
    error::LocSegment,
    limits::{SECRET_STEPS_MIN, SECRET_STEPS_PER_BYTE},
};

/// The keyword that marks a subschema.
pub const MARK: &str = "x-concord-secret";

/// Approximate bytes of a subschema, and of the automaton of a pattern.
const PART_BYTES: usize = 256;
const PATTERN_BYTES: usize = 16 << 10;

/// The secret fields of a schema's data.
#[derive(Debug)]
pub struct SecretPlaces {
    parts: Vec<SecretSubschema>,
    /// The parts that apply to the data as a whole.
    root: Vec<usize>,
    /// Whether the schema compares secret values.
    compares: bool,
}

/// A subschema from which a mark can be reached.
#[derive(Debug, Default)]
struct SecretSubschema {
    is_secret: bool,
    /// Applied at the same place.
    in_place: Vec<usize>,
    /// The members that `properties` names; `None` where no mark can be reached.
    members: BTreeMap<String, Option<usize>>,
    patterns: Vec<(NamePattern, Option<usize>)>,
    /// Applied to the members that neither of the two matches.
    other_members: Vec<usize>,
    /// Applied to the first elements, one each.
    first_elements: Vec<Option<usize>>,
    /// Applied to the elements after these.
    other_elements: Vec<usize>,
    /// May apply to any element.
    any_element: Vec<usize>,
}

/// A step on the way to one or several places of data.
#[derive(Debug, Clone, Copy)]
pub enum SecretStep<'a> {
    /// The member of a name.
    Member(&'a str),
    /// Every member.
    AnyMember,
    /// Every element.
    AnyElement,
}

/// What is at a place of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secrecy {
    /// No secret field is there or below.
    Open,
    /// A secret field may be below.
    AboveSecret,
    /// It is at or below the secret field that so many segments lead to.
    Secret(usize),
}

impl SecretPlaces {
    /// The secret fields of a schema whose patterns were checked; `None` without any.
    pub(super) fn of(graph: &Graph<'_>, draft: Draft) -> Option<Self> {
        let is_marked = |node: &SubschemaNode<'_>| {
            let mark = map_of(graph, node).and_then(|map| map.get(MARK));
            mark.is_some_and(|mark| *mark != Value::Bool(false))
        };
        let marked: Vec<usize> =
            graph.nodes.iter().enumerate().filter(|(_, node)| is_marked(node)).map(|(id, _)| id).collect();
        if marked.is_empty() {
            return None;
        }
        let kept = reaching(graph, &marked);
        let parts = kept.keys().map(|id| SecretSubschema::of(graph, *id, &kept, draft)).collect();
        let compares = compared::compares(graph, &kept);
        let mut places = Self { parts, root: Vec::new(), compares };
        for id in marked {
            if let Some(id) = kept.get(&id) {
                places.parts[*id].is_secret = true;
            }
        }
        // The root of the document is the first node. A mark that no reference leads to marks nothing.
        places.root = kept.get(&0).map(|root| places.with_applied(vec![*root])).unwrap_or_default();
        (!places.root.is_empty()).then_some(places)
    }

    /// Whether the schema compares secret values with each other, or with others: by `uniqueItems`.
    #[must_use]
    pub fn are_compared(&self) -> bool {
        self.compares
    }

    /// Approximate bytes that they take.
    pub(super) fn weight_bytes(&self) -> usize {
        let patterns: usize = self.parts.iter().map(|part| part.patterns.len()).sum();
        self.parts.len() * PART_BYTES + patterns * PATTERN_BYTES
    }

    /// The steps that a visit of data of so many bytes may take.
    #[must_use]
    pub fn steps_max(&self, bytes: usize) -> u64 {
        let bytes = bytes as u64;
        let most = SECRET_STEPS_MIN.saturating_add(SECRET_STEPS_PER_BYTE.saturating_mul(bytes));
        // A value takes two bytes at least, and each subschema and each of its patterns is looked at once.
        let patterns: u64 = self.parts.iter().map(SecretSubschema::pattern_steps).sum();
        let width = patterns.saturating_add(self.parts.len() as u64 + 1);
        most.min(width.saturating_mul(bytes / 2 + 2))
    }

    /// Calls `found` for each secret field of the data, whose text has so many bytes, in their order.
    pub fn visit(&self, data: &Value, bytes: usize, found: &mut dyn FnMut(&[LocSegment], &Value)) {
        let mut visit = SecretVisit { places: self, steps_left: self.steps_max(bytes), path: Vec::new() };
        visit.shared(&self.root, data, found);
    }

    /// The same with values that `found` may replace.
    pub fn visit_mut(
        &self,
        data: &mut Value,
        bytes: usize,
        found: &mut dyn FnMut(&[LocSegment], &mut Value),
    ) {
        let mut visit = SecretVisit { places: self, steps_left: self.steps_max(bytes), path: Vec::new() };
        visit.mutable(&self.root, data, found);
    }

    /// What is at a place.
    #[must_use]
    pub fn at(&self, path: &[LocSegment]) -> Secrecy {
        let mut steps = u64::MAX;
        self.at_within(path, &mut steps)
    }

    /// What is at any of the places that a path leads to.
    #[must_use]
    pub fn at_any(&self, path: &[SecretStep<'_>]) -> Secrecy {
        let mut set = self.root.clone();
        for (depth, way) in path.iter().enumerate() {
            if self.is_secret(&set) {
                return Secrecy::Secret(depth);
            }
            set = match way {
                SecretStep::Member(name) => self.member(&set, name),
                SecretStep::AnyMember => self.any(&set, SecretSubschema::all_members),
                SecretStep::AnyElement => self.any(&set, SecretSubschema::all_elements),
            };
        }
        match set.is_empty() {
            true => Secrecy::Open,
            false if self.is_secret(&set) => Secrecy::Secret(path.len()),
            false => Secrecy::AboveSecret,
        }
    }

    /// The parts that may apply below what these apply to.
    fn any(&self, set: &[usize], below: fn(&SecretSubschema) -> Vec<usize>) -> Vec<usize> {
        self.with_applied(set.iter().flat_map(|part| below(&self.parts[*part])).collect())
    }

    /// The same in so many steps; without them the place counts as secret.
    pub(super) fn at_within(&self, path: &[LocSegment], steps_left: &mut u64) -> Secrecy {
        let mut set = self.root.clone();
        for (depth, segment) in path.iter().enumerate() {
            if self.is_secret(&set) || !self.pay(&set, 1, steps_left) {
                return Secrecy::Secret(depth);
            }
            set = match segment {
                LocSegment::Name(name) => self.member(&set, name),
                LocSegment::Index(index) => self.element(&set, *index),
            };
        }
        match set.is_empty() {
            true => Secrecy::Open,
            false if self.is_secret(&set) => Secrecy::Secret(path.len()),
            false => Secrecy::AboveSecret,
        }
    }

    fn is_secret(&self, set: &[usize]) -> bool {
        set.iter().any(|part| self.parts[*part].is_secret)
    }

    /// Pays for looking at a value to which these apply, and at so many of its members. `false` when too little is
    /// left.
    fn pay(&self, set: &[usize], members: usize, steps_left: &mut u64) -> bool {
        let patterns: u64 = set.iter().map(|part| self.parts[*part].pattern_steps()).sum();
        let steps = patterns.saturating_mul(members as u64).saturating_add(set.len() as u64);
        let left = steps_left.checked_sub(steps);
        *steps_left = left.unwrap_or(0);
        left.is_some()
    }

    /// The parts that apply to a member of what these apply to.
    fn member(&self, set: &[usize], name: &str) -> Vec<usize> {
        let mut next = Vec::new();
        for part in set.iter().map(|part| &self.parts[*part]) {
            let named = part.members.get(name);
            next.extend(named.copied().flatten());
            let mut is_matched = named.is_some();
            for (pattern, target) in &part.patterns {
                let matches = pattern.matches(name);
                // What can't be decided counts as both.
                if matches != Some(false) {
                    next.extend(target);
                }
                is_matched |= matches == Some(true);
            }
            if !is_matched {
                next.extend(&part.other_members);
            }
        }
        self.with_applied(next)
    }

    /// The parts that apply to an element of what these apply to.
    fn element(&self, set: &[usize], index: u64) -> Vec<usize> {
        let mut next = Vec::new();
        for part in set.iter().map(|part| &self.parts[*part]) {
            match usize::try_from(index).ok().and_then(|index| part.first_elements.get(index)) {
                Some(target) => next.extend(target),
                None => next.extend(&part.other_elements),
            }
            next.extend(&part.any_element);
        }
        self.with_applied(next)
    }

    /// These parts and those that they apply at the same place, each once.
    fn with_applied(&self, mut set: Vec<usize>) -> Vec<usize> {
        set.sort_unstable();
        set.dedup();
        let mut pending = set.clone();
        while let Some(part) = pending.pop() {
            for applied in &self.parts[part].in_place {
                if let Err(place) = set.binary_search(applied) {
                    set.insert(place, *applied);
                    pending.push(*applied);
                }
            }
        }
        set
    }
}

/// A visit of data.
struct SecretVisit<'a> {
    places: &'a SecretPlaces,
    steps_left: u64,
    path: Vec<LocSegment>,
}

impl SecretVisit<'_> {
    /// Whether the value at the path counts as secret; `set` applies to it.
    fn is_secret(&mut self, set: &[usize], value: &Value) -> bool {
        let is_secret = self.places.is_secret(set);
        let members = if is_secret { 0 } else { value.as_object().map_or(0, Map::len) };
        !self.places.pay(set, members, &mut self.steps_left) || is_secret
    }

    /// The recursion is bounded by the depth of the data.
    fn shared(&mut self, set: &[usize], value: &Value, found: &mut dyn FnMut(&[LocSegment], &Value)) {
        if set.is_empty() {
            return;
        }
        if self.is_secret(set, value) {
            return found(&self.path, value);
        }
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    let next = self.places.member(set, name);
                    if self.enter(&next, || name.as_str().into()) {
                        self.shared(&next, member, found);
                        self.path.pop();
                    }
                }
            }
            Value::Array(elements) => {
                for (index, element) in (0..).zip(elements) {
                    let next = self.places.element(set, index);
                    if self.enter(&next, || LocSegment::Index(index)) {
                        self.shared(&next, element, found);
                        self.path.pop();
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn mutable(
        &mut self,
        set: &[usize],
        value: &mut Value,
        found: &mut dyn FnMut(&[LocSegment], &mut Value),
    ) {
        if set.is_empty() {
            return;
        }
        if self.is_secret(set, value) {
            return found(&self.path, value);
        }
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    let next = self.places.member(set, name);
                    if self.enter(&next, || name.as_str().into()) {
                        self.mutable(&next, member, found);
                        self.path.pop();
                    }
                }
            }
            Value::Array(elements) => {
                for (index, element) in (0..).zip(elements) {
                    let next = self.places.element(set, index);
                    if self.enter(&next, || LocSegment::Index(index)) {
                        self.mutable(&next, element, found);
                        self.path.pop();
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Pays for a step to a member or an element, and appends its segment unless nothing applies there.
    fn enter(&mut self, next: &[usize], segment: impl FnOnce() -> LocSegment) -> bool {
        self.steps_left = self.steps_left.saturating_sub(1);
        if next.is_empty() {
            return false;
        }
        self.path.push(segment());
        true
    }
}

impl SecretSubschema {
    /// The parts that may apply to a member.
    fn all_members(&self) -> Vec<usize> {
        let patterns = self.patterns.iter().map(|(_, target)| target);
        let named = self.members.values().chain(patterns).copied().flatten();
        named.chain(self.other_members.iter().copied()).collect()
    }

    /// The parts that may apply to an element.
    fn all_elements(&self) -> Vec<usize> {
        let first = self.first_elements.iter().copied().flatten();
        first.chain(self.other_elements.iter().chain(&self.any_element).copied()).collect()
    }

    /// A node of the graph; `kept` names the parts of the nodes that are left.
    fn of(graph: &Graph<'_>, id: usize, kept: &BTreeMap<usize, usize>, draft: Draft) -> Self {
        let node = &graph.nodes[id];
        let map = map_of(graph, node);
        let target = |id: &usize| kept.get(id).copied();
        let targets = |ids: &[usize]| ids.iter().filter_map(target).collect::<Vec<_>>();
        let other_members = targets(&node.additional_properties);
        let object = |keyword: &str| map.and_then(|map| map.get(keyword)).and_then(Value::as_object);

        let names = object("properties").into_iter().flat_map(Map::keys);
        let members = names.map(|name| (name.clone(), node.properties.get(name.as_str()).and_then(target)));
        let is_needed = |target: &Option<usize>| target.is_some() || !other_members.is_empty();
        let members = members.filter(|(_, target)| is_needed(target)).collect();

        // The graph has the objects among them, in their order.
        let mut of_patterns = node.pattern_properties.iter();
        let patterns = object("patternProperties").into_iter().flatten().filter_map(|(text, value)| {
            let target = if value.is_object() { of_patterns.next().and_then(target) } else { None };
            is_needed(&target).then(|| (NamePattern::of(text, draft), target))
        });
        let patterns = patterns.collect();

        let list = |keyword: &str| map.and_then(|map| map.get(keyword)).and_then(Value::as_array);
        let first = list("prefixItems").or_else(|| list("items")).map_or(0, Vec::len);
        let mut first_elements: Vec<Option<usize>> =
            node.prefix_items.iter().map(|id| id.as_ref().and_then(target)).collect();
        // A boolean has no node.
        first_elements.resize(first.max(first_elements.len()), None);

        Self {
            is_secret: false,
            in_place: [targets(&node.in_place), targets(&node.refs)].concat(),
            members,
            patterns,
            other_members,
            first_elements,
            other_elements: targets(&node.items),
            any_element: targets(&node.contains),
        }
    }

    /// The cost of matching the name of a member.
    fn pattern_steps(&self) -> u64 {
        self.patterns.iter().map(|(pattern, _)| pattern.steps()).sum()
    }
}

fn map_of<'s>(graph: &Graph<'s>, node: &SubschemaNode<'s>) -> Option<&'s Map<String, Value>> {
    graph.value_at(node.address)?.as_object()
}

/// The nodes from which one of `marked` can be reached, each with its number among them.
fn reaching(graph: &Graph<'_>, marked: &[usize]) -> BTreeMap<usize, usize> {
    let mut before: Vec<Vec<usize>> = vec![Vec::new(); graph.nodes.len()];
    for (id, node) in graph.nodes.iter().enumerate() {
        let lists = [
            &node.in_place,
            &node.refs,
            &node.pattern_properties,
            &node.additional_properties,
            &node.items,
            &node.contains,
        ];
        let single = node.properties.values().chain(node.prefix_items.iter().flatten());
        for target in lists.into_iter().flatten().chain(single) {
            before[*target].push(id);
        }
    }
    let (mut kept, mut pending) = (BTreeMap::new(), marked.to_vec());
    while let Some(id) = pending.pop() {
        if kept.insert(id, 0).is_none() {
            pending.extend(&before[id]);
        }
    }
    for (number, part) in kept.values_mut().enumerate() {
        *part = number;
    }
    kept
}

#[cfg(test)]
mod tests;
