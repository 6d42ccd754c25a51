//! Whether a schema compares secret values with others: `uniqueItems` on a list in which some are.
//!
//! A client that may write such a list and not see its values could keep them, add a guess, and learn from the
//! rejection whether the guess is among them. So such a schema is rejected, like an index on a secret field.
//!
//! Two subschemas may apply to one list, of which one compares its elements and the other marks them: pairs of
//! subschemas that may apply to the same place are followed from the root on.
//!
//! **Invariant:** a schema of which this says no compares none. It may say yes where patterns of names exclude each
//! other, or where a schema has too many such pairs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Graph, SubschemaNode, map_of, reaching};

/// Pairs of subschemas that are looked at: some tens of milliseconds.
const PAIRS_MAX: usize = 50_000;

/// Whether there is a list whose elements are compared, and of which some are secret or hold something that is. `kept`
/// are the subschemas from which a mark can be reached.
pub(super) fn compares(graph: &Graph<'_>, kept: &BTreeMap<usize, usize>) -> bool {
    let is_unique = |node: &SubschemaNode<'_>| {
        map_of(graph, node).and_then(|map| map.get("uniqueItems")) == Some(&Value::Bool(true))
    };
    let unique: BTreeSet<usize> =
        graph.nodes.iter().enumerate().filter(|(_, node)| is_unique(node)).map(|(id, _)| id).collect();
    if unique.is_empty() {
        return false;
    }
    let leading: Vec<usize> = unique.iter().copied().collect();
    let leading = reaching(graph, &leading);
    let (mut seen, mut pending) = (BTreeSet::new(), vec![(0, 0)]);
    while let Some((one, other)) = pending.pop() {
        if !leading.contains_key(&one) || !kept.contains_key(&other) || !seen.insert((one, other)) {
            continue;
        }
        let (comparing, marking) = (&graph.nodes[one], &graph.nodes[other]);
        let holds_secrets = elements(marking).any(|(_, id)| kept.contains_key(&id));
        if (unique.contains(&one) && holds_secrets) || seen.len() > PAIRS_MAX {
            return true;
        }
        pending.extend(in_place(comparing).map(|next| (next, other)));
        pending.extend(in_place(marking).map(|next| (one, next)));
        let before = pending.len();
        for (name, next) in members(comparing) {
            let met = members(marking).filter(|(known, _)| may_be_same(marking, comparing, name, *known));
            pending.extend(met.map(|(_, id)| (next, id)));
            if pending.len() - before > PAIRS_MAX {
                return true;
            }
        }
        for (place, next) in elements(comparing) {
            let met =
                elements(marking).filter(|(known, _)| place.is_none() || known.is_none() || place == *known);
            pending.extend(met.map(|(_, id)| (next, id)));
            if pending.len() - before > PAIRS_MAX {
                return true;
            }
        }
    }
    false
}

fn in_place(node: &SubschemaNode<'_>) -> impl Iterator<Item = usize> {
    node.in_place.iter().chain(&node.refs).copied()
}

/// What a node applies to members, with the name where it is one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ComparedName<'s> {
    One(&'s str),
    /// A pattern.
    Any,
    /// All that it does not name.
    Other,
}

fn members<'n, 's>(
    node: &'n SubschemaNode<'s>,
) -> impl Iterator<Item = (ComparedName<'s>, usize)> + use<'n, 's> {
    let named = node.properties.iter().map(|(name, id)| (ComparedName::One(name), *id));
    let patterns = node.pattern_properties.iter().map(|id| (ComparedName::Any, *id));
    named.chain(patterns).chain(node.additional_properties.iter().map(|id| (ComparedName::Other, *id)))
}

/// Whether a member may have both names, each as its node gives it.
fn may_be_same(
    marking: &SubschemaNode<'_>,
    comparing: &SubschemaNode<'_>,
    one: ComparedName<'_>,
    other: ComparedName<'_>,
) -> bool {
    match (one, other) {
        (ComparedName::One(one), ComparedName::One(other)) => one == other,
        (ComparedName::One(name), ComparedName::Other) => !marking.properties.contains_key(name),
        (ComparedName::Other, ComparedName::One(name)) => !comparing.properties.contains_key(name),
        (ComparedName::One(_), ComparedName::Any)
        | (ComparedName::Any, _)
        | (ComparedName::Other, ComparedName::Any | ComparedName::Other) => true,
    }
}

/// What a node applies to elements, with the position where it is one.
fn elements(node: &SubschemaNode<'_>) -> impl Iterator<Item = (Option<usize>, usize)> {
    let first = node.prefix_items.iter().enumerate().filter_map(|(place, id)| Some((Some(place), (*id)?)));
    first.chain(node.items.iter().chain(&node.contains).map(|id| (None, *id)))
}
