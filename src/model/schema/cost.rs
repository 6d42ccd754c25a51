//! What a check may cost, known before it runs: there is no way to stop a check that has begun.
//!
//! A check walks down the data. At each place some subschemas are evaluated, each some number of times: what the
//! place above sends down, and what those apply to the same place (`allOf`, `anyOf`, `$ref`, …). This module
//! follows that multiset from the root through every kind of place that data can have, as an automaton: a state is
//! a multiset, a step is a member's name or an element's number. Equal multisets are one state, so a recursive
//! schema makes a loop.
//!
//! Refused are:
//! - a subschema that applies itself at the same place (`{"$ref": "#"}`): a check would not end;
//! - more than [`EVALUATIONS_MAX`] evaluations at one place. This finds chains of `allOf` that double in place,
//!   and those that double from level to level, because the multiset is followed down to [`DEPTH_MAX`] levels;
//! - a schema whose automaton is larger than [`WORK_MAX`].
//!
//! A tree, a linked list, or left and right branches are one evaluation a level and pass. Two branches of a
//! union that recurse through a member of the same name are two, then four: the validator would evaluate both at
//! every level, so they are refused, though a discriminator may tell them apart.
//!
//! Why that is enough: every branch counts as taken and every pattern as matching, so no check evaluates more than
//! the automaton says. Data are no deeper than [`DEPTH_MAX`]. So a check costs at most the sum over the places of
//! the data, and [`Costs::afford`] adds that up before a check begins.
//!
//! `unevaluatedProperties` and `unevaluatedItems` evaluate subschemas again to learn what they have covered. For
//! them each subschema has a second node, its *marking*, which evaluates the subschemas and marks in them.
//!
//! **Invariant:** a check that [`Costs::afford`] allows evaluates at most [`PRICE_MAX`] subschemas and goes at
//! most [`STACK_MAX`] calls deep.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Number, Value};

use super::graph::{Graph, Node};
use crate::model::error::Violation;

/// Evaluations at one place of the data: far above unions of hundreds of variants, far below a doubling chain.
const EVALUATIONS_MAX: u64 = 10_000;
/// Levels of data: `serde_json` reads no more than 127.
const DEPTH_MAX: usize = 128;
/// Steps of building the automaton: some hundred milliseconds and some dozen MiB.
const WORK_MAX: usize = 1_000_000;
/// Evaluations of one check, long texts and numbers counted more: a second or two.
const PRICE_MAX: u64 = 20_000_000;
/// Evaluations up to which violations are listed: each may be one, of microseconds and some hundred bytes.
pub(super) const LISTED_PRICE_MAX: u64 = 500_000;
/// Nested applications of one check: each takes a few hundred bytes of the thread's stack.
const STACK_MAX: usize = 1_500;
/// Applications of subschemas at one place that lie in each other.
const CHAIN_MAX: usize = 250;

/// The automaton: what is evaluated at each kind of place. The root is the first state.
#[derive(Debug)]
pub(super) struct Costs {
    states: Vec<State>,
    steps: Vec<Steps>,
    /// The highest price of a state.
    price: u64,
    /// The most comparisons of a state.
    numeric: u64,
    /// The longest chain of a state.
    chain: usize,
}

/// A kind of place.
#[derive(Debug, Default, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    /// Evaluations there, weighted.
    price: u64,
    /// The comparisons there when the value is a number.
    numeric: u64,
    /// The longest chain of applications there.
    chain: usize,
    /// The place of its steps. Kinds of place that differ only in what ends there share them.
    steps: usize,
}

/// The kinds of place one level below.
#[derive(Debug, Default)]
struct Steps {
    /// The price of each member's name.
    spelled: u64,
    names: BTreeMap<Box<str>, Option<usize>>,
    other: Option<usize>,
    first: Vec<Option<usize>>,
    rest: Option<usize>,
}

/// How often each node is evaluated at a place, by rank; a node that lies in place above another comes first.
type Multiset = Vec<(usize, u64)>;

/// Nodes and markings in the order of application at one place.
struct Order<'g, 's> {
    graph: &'g Graph<'s>,
    /// The nodes (below the graph's length) and markings (above) by rank.
    ranked: Vec<usize>,
    rank: Vec<usize>,
    /// The longest chain that begins at each node.
    chain: Vec<usize>,
    work: usize,
}

/// Builds the automaton.
struct Builder<'g, 's> {
    order: Order<'g, 's>,
    states: Vec<State>,
    known: BTreeMap<State, usize>,
    steps: Vec<Steps>,
    /// The steps of what goes further down.
    known_steps: BTreeMap<Multiset, usize>,
    todo: VecDeque<(usize, Multiset, usize)>,
}

impl Costs {
    /// The costs of a schema.
    ///
    /// # Errors
    /// When they are not bounded.
    pub(super) fn of(graph: &Graph<'_>) -> Result<Self, Violation> {
        let mut builder = Builder {
            order: Order::of(graph)?,
            states: Vec::new(),
            known: BTreeMap::new(),
            steps: Vec::new(),
            known_steps: BTreeMap::new(),
            todo: VecDeque::new(),
        };
        builder.step(&[(0, 1)], &[], 0)?;
        while let Some((steps, set, depth)) = builder.todo.pop_front() {
            if depth < DEPTH_MAX {
                builder.descend(steps, &set, depth + 1)?;
            }
        }
        let Builder { states, steps, .. } = builder;
        let full = |state: &State| state.price.saturating_add(steps[state.steps].spelled);
        let price = states.iter().map(full).max().unwrap_or(0);
        let numeric = states.iter().map(|state| state.numeric).max().unwrap_or(0);
        let chain = states.iter().map(|state| state.chain).max().unwrap_or(0);
        Ok(Self { states, steps, price, numeric, chain })
    }

    /// What a check of `data` costs at most, when it stays within the limits.
    ///
    /// # Errors
    /// When it would not; the text says what is too much.
    pub(super) fn afford(&self, data: &Value) -> Result<u64, Violation> {
        // Nearly all pass this estimate, which looks at no name.
        let (size, depth) = measure(data);
        let price = size.plain.saturating_mul(self.price);
        let price = price.saturating_add(size.numeric.saturating_mul(self.numeric));
        if price <= LISTED_PRICE_MAX && depth.saturating_mul(self.chain) <= STACK_MAX {
            return Ok(price);
        }
        let mut price = 0;
        self.add(data, 0, STACK_MAX, &mut price)?;
        Ok(price)
    }

    /// Adds the price of the values at and below `data`, which is as deep as the data's limit at most.
    fn add(&self, data: &Value, state: usize, stack: usize, price: &mut u64) -> Result<(), Violation> {
        let state = &self.states[state];
        let steps = &self.steps[state.steps];
        let Some(stack) = stack.checked_sub(state.chain) else {
            return Err(Violation::new("the data nest too deep for a check against this schema"));
        };
        let members = data.as_object().map_or(0, |map| map.len() as u64);
        let numeric = data.as_number().map_or(0, arithmetic);
        *price = price
            .saturating_add(state.price.saturating_mul(size_of(data)))
            .saturating_add(state.numeric.saturating_mul(numeric))
            .saturating_add(steps.spelled.saturating_mul(members));
        if *price > PRICE_MAX {
            let msg =
                format!("a check of the data takes more than {PRICE_MAX} evaluations of this schema's parts");
            return Err(Violation::new(msg));
        }
        match data {
            Value::Object(map) => map.iter().try_for_each(|(name, member)| {
                let next = steps.names.get(name.as_str()).copied().unwrap_or(steps.other);
                next.map_or(Ok(()), |next| self.add(member, next, stack, price))
            }),
            Value::Array(items) => items.iter().enumerate().try_for_each(|(place, item)| {
                let next = steps.first.get(place).copied().unwrap_or(steps.rest);
                next.map_or(Ok(()), |next| self.add(item, next, stack, price))
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }
}

impl<'g, 's> Order<'g, 's> {
    /// Ranks the nodes.
    fn of(graph: &'g Graph<'s>) -> Result<Self, Violation> {
        let count = 2 * graph.nodes.len();
        let mut order =
            Self { graph, ranked: Vec::new(), rank: vec![usize::MAX; count], chain: vec![0; count], work: 0 };
        let mut open = BTreeSet::new();
        for start in 0..graph.nodes.len() {
            order.visit(start, &mut open)?;
        }
        order.ranked.reverse();
        for (rank, node) in order.ranked.iter().enumerate() {
            order.rank[*node] = rank;
        }
        Ok(order)
    }

    /// Visits what `start` applies in place, children first. Not recursive: a chain may be long.
    fn visit(&mut self, start: usize, open: &mut BTreeSet<usize>) -> Result<(), Violation> {
        let mut path = vec![(start, None)];
        while let Some((node, kids)) = path.last_mut() {
            let node = *node;
            if kids.is_none() {
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
            let kids = kids.get_or_insert_with(|| applied(self.graph, node));
            if let Some(kid) = kids.pop() {
                path.push((kid, None));
                continue;
            }
            path.pop();
            open.remove(&node);
            let below = applied(self.graph, node).into_iter().map(|kid| self.chain[kid]).max().unwrap_or(0);
            self.chain[node] = below + 1;
            self.ranked.push(node);
            if below + 1 > CHAIN_MAX {
                return Err(
                    self.violation(node, "begins a chain of too many subschemas at one place of the data")
                );
            }
        }
        Ok(())
    }

    /// Everything that is evaluated at a place where `entries` are.
    fn spread(&mut self, entries: &[(usize, u64)]) -> Result<Multiset, Violation> {
        let mut open: BTreeMap<usize, u64> = BTreeMap::new();
        for (node, times) in entries {
            let sum = open.entry(self.rank[*node]).or_default();
            *sum = sum.saturating_add(*times);
        }
        let (mut set, mut total) = (Multiset::new(), 0_u64);
        while let Some((rank, times)) = open.pop_first() {
            let node = self.ranked[rank];
            total = total.saturating_add(times);
            if total > EVALUATIONS_MAX {
                let msg = format!("makes more than {EVALUATIONS_MAX} evaluations at one place of the data");
                return Err(self.violation(node, &msg));
            }
            set.push((rank, times));
            let kids = applied(self.graph, node);
            self.work += 1 + kids.len();
            for kid in kids {
                let sum = open.entry(self.rank[kid]).or_default();
                *sum = sum.saturating_add(times);
            }
        }
        if self.work > WORK_MAX {
            return Err(Violation::new("the schema is too large and entangled to bound the cost of a check"));
        }
        Ok(set)
    }

    /// The node or the marked node of a rank, and its chain.
    fn at(&self, rank: usize) -> (&'g Node<'s>, usize) {
        let node = self.ranked[rank];
        (&self.graph.nodes[node % self.graph.nodes.len()], self.chain[node])
    }

    fn violation(&self, node: usize, what: &str) -> Violation {
        Violation::at(self.graph.way(node % self.graph.nodes.len()), format!("this subschema {what}"))
    }
}

impl Builder<'_, '_> {
    /// The state of a place to which `certain` come and then `one` way or the `other`; `None` when nothing comes.
    fn step(
        &mut self,
        one: &[(usize, u64)],
        other: &[(usize, u64)],
        depth: usize,
    ) -> Result<Option<usize>, Violation> {
        if one.is_empty() && other.is_empty() {
            return Ok(None);
        }
        let mut set = self.order.spread(one)?;
        if !other.is_empty() && one != other {
            set = larger(set, self.order.spread(other)?);
        }
        let mut state = State::default();
        for (rank, times) in &set {
            let (node, chain) = self.order.at(*rank);
            state.price = state.price.saturating_add(times.saturating_mul(node.weight));
            state.numeric = state.numeric.saturating_add(times.saturating_mul(node.numeric));
            state.chain = state.chain.max(chain);
        }
        set.retain(|(rank, _)| self.order.at(*rank).0.descends());
        state.steps = match self.known_steps.get(&set) {
            Some(steps) => *steps,
            None => {
                let steps = self.steps.len();
                self.steps.push(Steps::default());
                self.known_steps.insert(set.clone(), steps);
                self.todo.push_back((steps, set, depth));
                steps
            }
        };
        let states = &mut self.states;
        Ok(Some(*self.known.entry(state).or_insert_with_key(|state| {
            states.push(state.clone());
            states.len() - 1
        })))
    }

    /// The kinds of place one level below what `set` evaluates.
    fn descend(&mut self, steps: usize, set: &Multiset, depth: usize) -> Result<(), Violation> {
        let graph = self.order.graph;
        let count = graph.nodes.len();
        let parts: Vec<_> = set
            .iter()
            .map(|(rank, times)| (self.order.ranked[*rank], *times))
            // A marking descends only into what `unevaluated…` evaluates.
            .filter(|(node, _)| *node < count || graph.nodes[node - count].unevaluated > 0)
            .map(|(node, times)| (&graph.nodes[node % count], node < count, times))
            .collect();
        self.order.work += parts.len();

        let mut spelled = Vec::new();
        let mut named: BTreeMap<&str, Vec<(usize, u64)>> = BTreeMap::new();
        for (node, whole, times) in &parts {
            if *whole {
                spelled.extend(node.spelled.iter().map(|target| (*target, *times)));
                for (name, target) in &node.names {
                    named.entry(name).or_default().push((*target, *times));
                }
            }
        }
        let spelled =
            self.order.spread(&spelled)?.iter().fold(0_u64, |sum, (_, times)| sum.saturating_add(*times));
        self.steps[steps].spelled = spelled;

        let loose: Vec<_> =
            parts.iter().filter(|(node, ..)| !node.matching.is_empty() || !node.further.is_empty()).collect();
        for (name, targets) in &named {
            let (mut matched, mut further) = (targets.clone(), targets.clone());
            self.order.work += loose.len();
            for (node, whole, times) in &loose {
                if *whole {
                    matched.extend(node.matching.iter().map(|target| (*target, *times)));
                }
                if !node.names.contains_key(name) {
                    further.extend(node.further.iter().map(|target| (*target, *times)));
                }
            }
            let next = self.step(&matched, &further, depth)?;
            self.steps[steps].names.insert((*name).into(), next);
        }
        let pick = |all: &dyn Fn(&Node<'_>) -> Vec<usize>, markings: bool| -> Vec<(usize, u64)> {
            let parts = parts.iter().filter(|(_, whole, _)| *whole || markings);
            parts.flat_map(|(node, _, times)| all(node).into_iter().map(|target| (target, *times))).collect()
        };
        let matched = pick(&|node| node.matching.clone(), false);
        let further = pick(&|node| node.further.clone(), true);
        self.steps[steps].other = self.step(&matched, &further, depth)?;

        for place in 0..parts.iter().map(|(node, ..)| node.first.len()).max().unwrap_or(0) {
            self.order.work += parts.len();
            let targets = pick(
                &|node| {
                    let own =
                        node.first.get(place).map_or(node.rest.clone(), |own| own.iter().copied().collect());
                    own.into_iter().chain(node.every.iter().copied()).collect()
                },
                true,
            );
            let next = self.step(&targets, &[], depth)?;
            self.steps[steps].first.push(next);
        }
        let rest = pick(&|node| node.rest.iter().chain(&node.every).copied().collect(), true);
        self.steps[steps].rest = self.step(&rest, &[], depth)?;
        Ok(())
    }
}

/// What a node or a marking applies at its own place.
fn applied(graph: &Graph<'_>, node: usize) -> Vec<usize> {
    let count = graph.nodes.len();
    let subject = &graph.nodes[node % count];
    if node >= count {
        // A marking evaluates what an applicator holds and marks in it; behind a reference it only marks.
        let inner = subject.here.iter().flat_map(|kid| [*kid, count + kid]);
        return inner.chain(subject.refs.iter().map(|kid| count + kid)).collect();
    }
    let mut kids: Vec<_> = subject.here.iter().chain(&subject.refs).copied().collect();
    // Without a subschema in place there is nothing to mark in.
    if !kids.is_empty() {
        kids.extend(std::iter::repeat_n(count + node, subject.unevaluated));
    }
    kids
}

/// For each node the larger count of two multisets.
fn larger(one: Multiset, other: Multiset) -> Multiset {
    let mut all: BTreeMap<usize, u64> = one.into_iter().collect();
    for (rank, times) in other {
        let most = all.entry(rank).or_default();
        *most = times.max(*most);
    }
    all.into_iter().collect()
}

/// The sizes of all values together.
#[derive(Default)]
struct Size {
    plain: u64,
    numeric: u64,
}

/// The size of the data, and their depth.
fn measure(data: &Value) -> (Size, usize) {
    let inner = |(sum, depth): (Size, usize), value: &Value| {
        let (more, deeper) = measure(value);
        let sum = Size {
            plain: sum.plain.saturating_add(more.plain),
            numeric: sum.numeric.saturating_add(more.numeric),
        };
        (sum, depth.max(deeper))
    };
    let (mut size, depth) = match data {
        Value::Array(items) => items.iter().fold((Size::default(), 0), inner),
        Value::Object(map) => map.values().fold((Size::default(), 0), inner),
        Value::Number(number) => (Size { plain: 0, numeric: arithmetic(number) }, 0),
        Value::Null | Value::Bool(_) | Value::String(_) => (Size::default(), 0),
    };
    size.plain = size.plain.saturating_add(size_of(data));
    (size, depth + 1)
}

/// How many times as long as an ordinary one the evaluation of this value alone takes.
fn size_of(data: &Value) -> u64 {
    match data {
        Value::String(text) => 1 + text.len() as u64 / 256,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => 1,
    }
}

/// What a comparison with this number takes, in evaluations. Beyond a double the arithmetic is on fractions and
/// grows with the square of the digits that are written out; beyond ten thousand digits the validator computes
/// with the text.
fn arithmetic(number: &Number) -> u64 {
    let text = number.as_str();
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let exponent = exponent.trim_start_matches(['+', '-']).parse().unwrap_or(10_000_u64);
    let digits = (mantissa.len() as u64).saturating_add(exponent).min(10_000);
    if digits <= 20 { 1 } else { 4 * digits + digits * digits / 64 }
}

/// What a comparison of a plain number with all numbers of a keyword's value takes; longer ones multiply it.
pub(super) fn numbers(value: &Value) -> u64 {
    match value {
        Value::Number(number) => arithmetic(number),
        Value::Array(items) => items.iter().map(numbers).fold(0, u64::saturating_add),
        Value::Object(map) => map.values().map(numbers).fold(0, u64::saturating_add),
        Value::Null | Value::Bool(_) | Value::String(_) => 0,
    }
}
