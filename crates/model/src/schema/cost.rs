//! An upper bound of the cost of a check, computed before it runs: a check that has begun can't be stopped.
//!
//! A check descends through the data. At each place some subschemas are evaluated, each some number of times: the
//! subschemas that the place above passes down, and the subschemas that these apply at the same place (`allOf`,
//! `anyOf`, `$ref`, …). This module follows that multiset from the root through every kind of place that data can have,
//! as an automaton: a state is a multiset, a transition is a member's name or an element's index. Equal multisets are
//! one state, so a recursive schema becomes a loop.
//!
//! These are rejected:
//! - a subschema that applies itself at the same place (`{"$ref": "#"}`): a check would not end;
//! - more than [`PLACE_EVALUATIONS_MAX`] evaluations at the root, which every document has: chains of `allOf` that
//!   double;
//! - a schema whose automaton takes more than [`SCHEMA_COST_STEPS_MAX`] steps to build.
//!
//! A tree, a linked list, or left and right branches need one evaluation for each level and pass. Two branches of a
//! union that recurse through a member of the same name need two, then four: the validator may evaluate both at every
//! level, even if a discriminator distinguishes them. Such a schema is accepted, and a place with more than
//! [`NESTED_EVALUATIONS_MAX`] evaluations is *exceeded*: only data that reach it are rejected.
//!
//! Why that is enough: every branch counts as taken and every pattern as matching, so no check evaluates more than the
//! automaton counts. Data are no deeper than [`DEPTH_MAX`]. So a check costs at most the sum over the places of the
//! data, and [`Costs::check_budget`] computes that sum before a check begins.
//!
//! `unevaluatedProperties` and `unevaluatedItems` evaluate subschemas again to find out what they cover. For them each
//! subschema has a second node, its *coverage node*, which evaluates the subschemas and their coverage nodes.
//!
//! **Invariant:** a check that [`Costs::check_budget`] allows evaluates at most [`CHECK_EVALUATIONS_MAX`] subschemas
//! and nests at most [`CHECK_STACK_MAX`] calls.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::Value;

use super::{
    graph::{Graph, SubschemaNode},
    size::{arithmetic, matching, measure, size_of},
};
use crate::{
    error::Violation,
    limits::{
        CHECK_EVALUATIONS_MAX, CHECK_STACK_MAX, PLACE_CHAIN_MAX, PLACE_EVALUATIONS_MAX, SCHEMA_COST_STEPS_MAX,
    },
};

/// Evaluations at one place below the root: with more a check of a few places exceeds its limit.
const NESTED_EVALUATIONS_MAX: u64 = 1_000_000;
/// The cost of a place with more.
const EXCEEDED: u64 = u64::MAX;
/// Levels of data: `serde_json` parses no more than 127.
const DEPTH_MAX: usize = 128;
/// Cost up to which an estimate is enough: above it the cost decides where and whether the check runs.
const ROUGH_EVALUATIONS_MAX: u64 = 10_000;
/// Bytes of a transition: a name and its target in a map.
const TRANSITION_BYTES: usize = 96;

/// The automaton: what is evaluated at each kind of place. The root is the first state.
#[derive(Debug)]
pub(super) struct Costs {
    states: Vec<PlaceKind>,
    transitions: Vec<Transitions>,
    /// The highest cost of a state.
    cost: u64,
    /// The highest cost of a number's comparisons in a state.
    numeric: u64,
    /// The highest number of pattern positions in a state, also of those that names are matched with.
    positions: u64,
    /// The longest chain of a state.
    chain: usize,
}

/// A kind of place.
#[derive(Debug, Default, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct PlaceKind {
    /// Evaluations there, weighted.
    cost: u64,
    /// The cost of comparisons there when the value is a number.
    numeric: u64,
    /// The positions of the patterns that a text there is matched with.
    positions: u64,
    /// The longest chain of applications there.
    chain: usize,
    /// The index of its transitions. Kinds of place that differ only in subschemas without children share them.
    transitions: usize,
}

/// The states one level below: of named and other members, of the first and the other elements.
#[derive(Debug, Default)]
struct Transitions {
    /// The cost of each member's name, and the positions of the patterns that it is matched with.
    name_cost: u64,
    name_positions: u64,
    properties: BTreeMap<Box<str>, Option<usize>>,
    other_properties: Option<usize>,
    prefix_items: Vec<Option<usize>>,
    other_items: Option<usize>,
}

/// How often each node is evaluated at a place, by rank; a node that applies another at the same place comes first.
type Multiset = Vec<(usize, u64)>;

/// Nodes and coverage nodes in the order of application at one place.
struct Ranking<'g, 's> {
    graph: &'g Graph<'s>,
    /// The nodes (below the graph's length) and coverage nodes (above) by rank.
    by_rank: Vec<usize>,
    rank: Vec<usize>,
    /// The longest chain that begins at each node.
    chain: Vec<usize>,
    /// The steps of building the automaton so far.
    steps: usize,
}

/// Builds the automaton.
struct AutomatonBuilder<'g, 's> {
    ranking: Ranking<'g, 's>,
    states: Vec<PlaceKind>,
    interned: BTreeMap<PlaceKind, usize>,
    transitions: Vec<Transitions>,
    /// The transitions by the nodes that have children.
    interned_transitions: BTreeMap<Multiset, usize>,
    queue: VecDeque<(usize, Multiset, usize)>,
}

impl Costs {
    /// The costs of a schema.
    ///
    /// # Errors
    /// When they are not bounded.
    pub(super) fn of(graph: &Graph<'_>) -> Result<Self, Violation> {
        let mut builder = AutomatonBuilder {
            ranking: Ranking::of(graph)?,
            states: Vec::new(),
            interned: BTreeMap::new(),
            transitions: Vec::new(),
            interned_transitions: BTreeMap::new(),
            queue: VecDeque::new(),
        };
        builder.state(&[(0, 1)], &[], 0)?;
        while let Some((transitions, set, depth)) = builder.queue.pop_front() {
            if depth < DEPTH_MAX {
                builder.descend(transitions, &set, depth + 1)?;
            }
        }
        let AutomatonBuilder { states, transitions, .. } = builder;
        let full = |state: &PlaceKind| state.cost.saturating_add(transitions[state.transitions].name_cost);
        let cost = states.iter().map(full).max().unwrap_or(0);
        let numeric = states.iter().map(|state| state.numeric).max().unwrap_or(0);
        let of_state = states.iter().map(|state| state.positions);
        let positions = of_state.chain(transitions.iter().map(|next| next.name_positions)).max().unwrap_or(0);
        let chain = states.iter().map(|state| state.chain).max().unwrap_or(0);
        Ok(Self { states, transitions, cost, numeric, positions, chain })
    }

    /// Approximate bytes of the automaton.
    pub(super) fn weight_bytes(&self) -> usize {
        let places = self.transitions.iter().map(|next| next.properties.len() + next.prefix_items.len() + 2);
        self.states.len() * std::mem::size_of::<PlaceKind>() + places.sum::<usize>() * TRANSITION_BYTES
    }

    /// The highest cost that a check of `data` can have: an estimate while that is small, computed place by place
    /// above.
    ///
    /// # Errors
    /// When it exceeds a limit; the text names the limit.
    pub(super) fn check_budget(&self, data: &Value) -> Result<u64, Violation> {
        // Most data pass this estimate, which ignores names.
        let (size, depth) = measure(data);
        let cost = size.plain.saturating_mul(self.cost);
        let cost = cost.saturating_add(size.numeric.saturating_mul(self.numeric));
        let cost = cost.saturating_add(matching(self.positions, size.text));
        if cost <= ROUGH_EVALUATIONS_MAX && depth.saturating_mul(self.chain) <= CHECK_STACK_MAX {
            return Ok(cost);
        }
        let mut cost = 0;
        self.add(data, 0, CHECK_STACK_MAX, &mut cost)?;
        Ok(cost)
    }

    /// Adds the cost of the values at and below `data`. Recursion is bounded by the data's depth.
    fn add(&self, data: &Value, state: usize, stack: usize, cost: &mut u64) -> Result<(), Violation> {
        let state = &self.states[state];
        let transitions = &self.transitions[state.transitions];
        let Some(stack) = stack.checked_sub(state.chain) else {
            return Err(Violation::new("the data nest too deep for a check against this schema"));
        };
        let members = data.as_object().map_or(0, |map| map.len() as u64);
        let numeric = data.as_number().map_or(0, arithmetic);
        let text = data.as_str().map_or(0, |text| text.len() as u64);
        let named = data.as_object().filter(|_| transitions.name_positions > 0);
        let names = named.map_or(0, |map| map.keys().map(|name| name.len() as u64).sum());
        *cost = cost
            .saturating_add(state.cost.saturating_mul(size_of(data)))
            .saturating_add(state.numeric.saturating_mul(numeric))
            .saturating_add(matching(state.positions, text))
            .saturating_add(transitions.name_cost.saturating_mul(members))
            .saturating_add(matching(transitions.name_positions, names));
        if *cost > CHECK_EVALUATIONS_MAX {
            let msg = format!(
                "a check of the data takes more than {CHECK_EVALUATIONS_MAX} evaluations of this schema's parts"
            );
            return Err(Violation::new(msg));
        }
        match data {
            Value::Object(map) => map.iter().try_for_each(|(name, member)| {
                let next = transitions.properties.get(name.as_str()).copied();
                let next = next.unwrap_or(transitions.other_properties);
                next.map_or(Ok(()), |next| self.add(member, next, stack, cost))
            }),
            Value::Array(items) => items.iter().enumerate().try_for_each(|(index, item)| {
                let next = transitions.prefix_items.get(index).copied().unwrap_or(transitions.other_items);
                next.map_or(Ok(()), |next| self.add(item, next, stack, cost))
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }
}

impl<'g, 's> Ranking<'g, 's> {
    /// Ranks the nodes.
    fn of(graph: &'g Graph<'s>) -> Result<Self, Violation> {
        let count = 2 * graph.nodes.len();
        let mut ranking = Self {
            graph,
            by_rank: Vec::new(),
            rank: vec![usize::MAX; count],
            chain: vec![0; count],
            steps: 0,
        };
        let mut open = BTreeSet::new();
        for start in 0..graph.nodes.len() {
            ranking.visit(start, &mut open)?;
        }
        ranking.by_rank.reverse();
        for (rank, node) in ranking.by_rank.iter().enumerate() {
            ranking.rank[*node] = rank;
        }
        Ok(ranking)
    }

    /// Visits what `start` applies at the same place, children first. Iterative, because a chain may be long.
    fn visit(&mut self, start: usize, open: &mut BTreeSet<usize>) -> Result<(), Violation> {
        let mut path = vec![(start, None)];
        while let Some((node, children)) = path.last_mut() {
            let node = *node;
            if children.is_none() {
                if self.chain[node] > 0 {
                    path.pop();
                    continue;
                }
                if !open.insert(node) {
                    return Err(
                        self.violation(node, "applies itself at the same place of the data, without end")
                    );
                }
            }
            let children = children.get_or_insert_with(|| applied(self.graph, node));
            if let Some(child) = children.pop() {
                path.push((child, None));
                continue;
            }
            path.pop();
            open.remove(&node);
            let below =
                applied(self.graph, node).into_iter().map(|child| self.chain[child]).max().unwrap_or(0);
            self.chain[node] = below + 1;
            self.by_rank.push(node);
            if below + 1 > PLACE_CHAIN_MAX {
                return Err(
                    self.violation(node, "begins a chain of too many subschemas at one place of the data")
                );
            }
        }
        Ok(())
    }

    /// Everything that is evaluated at a place of this depth when `entries` are; `None` when that exceeds what a place
    /// may have.
    fn expand(&mut self, entries: &[(usize, u64)], depth: usize) -> Result<Option<Multiset>, Violation> {
        let is_nested = depth > 0;
        let most = if is_nested { NESTED_EVALUATIONS_MAX } else { PLACE_EVALUATIONS_MAX };
        let mut open: BTreeMap<usize, u64> = BTreeMap::new();
        for (node, times) in entries {
            let sum = open.entry(self.rank[*node]).or_default();
            *sum = sum.saturating_add(*times);
        }
        let (mut set, mut total) = (Multiset::new(), 0_u64);
        while let Some((rank, times)) = open.pop_first() {
            let node = self.by_rank[rank];
            total = total.saturating_add(times);
            if total > most && is_nested {
                return Ok(None);
            }
            if total > most {
                let msg =
                    format!("makes more than {PLACE_EVALUATIONS_MAX} evaluations at one place of the data");
                return Err(self.violation(node, &msg));
            }
            set.push((rank, times));
            let children = applied(self.graph, node);
            self.steps += 1 + children.len();
            for child in children {
                let sum = open.entry(self.rank[child]).or_default();
                *sum = sum.saturating_add(times);
            }
        }
        if self.steps > SCHEMA_COST_STEPS_MAX {
            return Err(Violation::new("the schema is too large and entangled to bound the cost of a check"));
        }
        Ok(Some(set))
    }

    /// The node of a rank, or the node whose coverage node has that rank, and its chain.
    fn at(&self, rank: usize) -> (&'g SubschemaNode<'s>, usize) {
        let node = self.by_rank[rank];
        (&self.graph.nodes[node % self.graph.nodes.len()], self.chain[node])
    }

    fn violation(&self, node: usize, what: &str) -> Violation {
        Violation::at(self.graph.loc(node % self.graph.nodes.len()), format!("this subschema {what}"))
    }
}

impl AutomatonBuilder<'_, '_> {
    /// The state of a place at which either `one` or `other` are evaluated; `None` when nothing is.
    fn state(
        &mut self,
        one: &[(usize, u64)],
        other: &[(usize, u64)],
        depth: usize,
    ) -> Result<Option<usize>, Violation> {
        if one.is_empty() && other.is_empty() {
            return Ok(None);
        }
        let mut set = self.ranking.expand(one, depth)?;
        if !other.is_empty() && one != other {
            let more = self.ranking.expand(other, depth)?;
            set = set.zip(more).map(|(set, more)| union(set, more));
        }
        let Some(mut set) = set else { return Ok(Some(self.exceeded())) };
        let mut state = PlaceKind::default();
        for (rank, times) in &set {
            let (node, chain) = self.ranking.at(*rank);
            state.cost = state.cost.saturating_add(times.saturating_mul(node.weight));
            state.numeric = state.numeric.saturating_add(times.saturating_mul(node.numeric));
            state.positions = state.positions.saturating_add(times.saturating_mul(node.positions));
            state.chain = state.chain.max(chain);
        }
        set.retain(|(rank, _)| self.ranking.at(*rank).0.descends());
        state.transitions = match self.interned_transitions.get(&set) {
            Some(transitions) => *transitions,
            None => {
                let transitions = self.transitions.len();
                self.transitions.push(Transitions::default());
                self.interned_transitions.insert(set.clone(), transitions);
                self.queue.push_back((transitions, set, depth));
                transitions
            }
        };
        let states = &mut self.states;
        Ok(Some(*self.interned.entry(state).or_insert_with_key(|state| {
            states.push(state.clone());
            states.len() - 1
        })))
    }

    /// The state of a place with too many evaluations: nothing below it matters.
    fn exceeded(&mut self) -> usize {
        let (transitions, all) = (&mut self.transitions, &mut self.interned_transitions);
        let nothing = *all.entry(Multiset::new()).or_insert_with(|| {
            transitions.push(Transitions::default());
            transitions.len() - 1
        });
        let state = PlaceKind { cost: EXCEEDED, transitions: nothing, ..PlaceKind::default() };
        let states = &mut self.states;
        *self.interned.entry(state).or_insert_with_key(|state| {
            states.push(state.clone());
            states.len() - 1
        })
    }

    /// Fills the transitions of a state at which `set` is evaluated.
    fn descend(&mut self, transitions: usize, set: &Multiset, depth: usize) -> Result<(), Violation> {
        let graph = self.ranking.graph;
        let count = graph.nodes.len();
        let parts: Vec<_> = set
            .iter()
            .map(|(rank, times)| (self.ranking.by_rank[*rank], *times))
            // A coverage node descends only into what `unevaluated…` evaluates.
            .filter(|(node, _)| *node < count || graph.nodes[node - count].unevaluated > 0)
            .map(|(node, times)| (&graph.nodes[node % count], node < count, times))
            .collect();
        self.ranking.steps += parts.len();

        let mut names = Vec::new();
        let mut named: BTreeMap<&str, Vec<(usize, u64)>> = BTreeMap::new();
        for (node, is_plain, times) in &parts {
            if *is_plain {
                names.extend(node.property_names.iter().map(|target| (*target, *times)));
                for (name, target) in &node.properties {
                    named.entry(name).or_default().push((*target, *times));
                }
            }
        }
        let (mut name_cost, mut name_positions) = (0_u64, 0_u64);
        let expanded = self.ranking.expand(&names, depth)?;
        if expanded.is_none() {
            name_cost = EXCEEDED;
        }
        for (rank, times) in expanded.into_iter().flatten() {
            name_cost = name_cost.saturating_add(times);
            let positions = self.ranking.at(rank).0.positions;
            name_positions = name_positions.saturating_add(times.saturating_mul(positions));
        }
        for (node, _, times) in &parts {
            name_positions = name_positions.saturating_add(times.saturating_mul(node.name_positions));
            name_cost = name_cost.saturating_add(times.saturating_mul(node.name_steps));
        }
        self.transitions[transitions].name_cost = name_cost;
        self.transitions[transitions].name_positions = name_positions;

        let unnamed: Vec<_> = parts
            .iter()
            .filter(|(node, ..)| {
                !node.pattern_properties.is_empty() || !node.additional_properties.is_empty()
            })
            .collect();
        for (name, targets) in &named {
            let (mut matched, mut additional) = (targets.clone(), targets.clone());
            self.ranking.steps += unnamed.len();
            for (node, is_plain, times) in &unnamed {
                if *is_plain {
                    matched.extend(node.pattern_properties.iter().map(|target| (*target, *times)));
                }
                if !node.properties.contains_key(name) {
                    additional.extend(node.additional_properties.iter().map(|target| (*target, *times)));
                }
            }
            let next = self.state(&matched, &additional, depth)?;
            self.transitions[transitions].properties.insert((*name).into(), next);
        }
        let pick = |all: &dyn Fn(&SubschemaNode<'_>) -> Vec<usize>,
                    with_coverage: bool|
         -> Vec<(usize, u64)> {
            let parts = parts.iter().filter(|(_, is_plain, _)| *is_plain || with_coverage);
            parts.flat_map(|(node, _, times)| all(node).into_iter().map(|target| (target, *times))).collect()
        };
        let matched = pick(&|node| node.pattern_properties.clone(), false);
        let additional = pick(&|node| node.additional_properties.clone(), true);
        self.transitions[transitions].other_properties = self.state(&matched, &additional, depth)?;

        for index in 0..parts.iter().map(|(node, ..)| node.prefix_items.len()).max().unwrap_or(0) {
            self.ranking.steps += parts.len();
            let targets = pick(
                &|node| {
                    let own = node.prefix_items.get(index);
                    let own = own.map_or(node.items.clone(), |own| own.iter().copied().collect());
                    own.into_iter().chain(node.contains.iter().copied()).collect()
                },
                true,
            );
            let next = self.state(&targets, &[], depth)?;
            self.transitions[transitions].prefix_items.push(next);
        }
        let items = pick(&|node| node.items.iter().chain(&node.contains).copied().collect(), true);
        self.transitions[transitions].other_items = self.state(&items, &[], depth)?;
        Ok(())
    }
}

/// What a node or a coverage node applies at its own place.
fn applied(graph: &Graph<'_>, node: usize) -> Vec<usize> {
    let count = graph.nodes.len();
    let subject = &graph.nodes[node % count];
    if node >= count {
        // It evaluates the subschemas of applicators and their coverage; of a reference's target only the coverage.
        let inner = subject.in_place.iter().flat_map(|child| [*child, count + child]);
        return inner.chain(subject.refs.iter().map(|child| count + child)).collect();
    }
    let mut children: Vec<_> = subject.in_place.iter().chain(&subject.refs).copied().collect();
    // Without a subschema at the same place there is no coverage to find.
    if !children.is_empty() {
        children.extend(std::iter::repeat_n(count + node, subject.unevaluated));
    }
    children
}

/// The union of two multisets: for each node the larger count.
fn union(one: Multiset, other: Multiset) -> Multiset {
    let mut all: BTreeMap<usize, u64> = one.into_iter().collect();
    for (rank, times) in other {
        let max = all.entry(rank).or_default();
        *max = times.max(*max);
    }
    all.into_iter().collect()
}
