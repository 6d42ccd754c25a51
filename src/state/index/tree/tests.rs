//! The order against a plain sorted set, whatever is done to it.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// A number, and what stands beside it and is not sought.
#[derive(Debug, Clone, PartialEq)]
struct Row<T = ()>(u32, T);

impl<T: Clone + fmt::Debug> Item for Row<T> {
    const LEAF: usize = 8;
    type Seek<'a> = u32;
    type Bound = u32;

    fn seek(&self) -> u32 {
        self.0
    }

    fn bound(&self) -> u32 {
        self.0
    }

    fn seek_of(bound: &u32) -> u32 {
        *bound
    }

    fn compare(a: u32, b: u32) -> Ordering {
        a.cmp(&b)
    }
}

fn agrees(order: &Tree<Row>, model: &BTreeSet<u32>) {
    let all: Vec<u32> = order.from(0).map(|n| n.0).collect();
    assert_eq!(all, model.iter().copied().collect::<Vec<_>>());
    assert_eq!(order.len(), model.len() as u64);
    let mut back: Vec<u32> = order.back_from(order.len()).map(|n| n.0).collect();
    back.reverse();
    assert_eq!(back, all);
    for place in [0, 1, all.len() / 3, all.len() / 2, all.len().saturating_sub(1), all.len(), all.len() + 5] {
        assert_eq!(order.at(place as u64).map(|n| n.0), all.get(place).copied());
        let before: Vec<u32> = order.back_from(place as u64).take(3).map(|n| n.0).collect();
        let expected: Vec<u32> = all[..place.min(all.len())].iter().rev().take(3).copied().collect();
        assert_eq!(before, expected);
    }
    for bound in [0, 7, 100, 5000, u32::MAX] {
        assert_eq!(order.rank(|n| *n < bound), all.partition_point(|n| *n < bound) as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn it_is_the_set_that_a_model_is(steps in proptest::collection::vec((any::<bool>(), 0u32..3000), 0..4000)) {
        let (mut order, mut model) = (Tree::new(), BTreeSet::new());
        let mut old: Option<(Tree<Row>, BTreeSet<u32>)> = None;
        for (n, (put, number)) in steps.into_iter().enumerate() {
            if put {
                prop_assert_eq!(order.insert(Row(number, ())).is_none(), model.insert(number));
            } else {
                prop_assert_eq!(order.remove(number).is_some(), model.remove(&number));
            }
            prop_assert_eq!(order.get(number).is_some(), model.contains(&number));
            if n == 1000 {
                old = Some((order.clone(), model.clone()));
            }
        }
        agrees(&order, &model);
        if let Some((order, model)) = old {
            agrees(&order, &model);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn edits_at_once_give_what_they_give_one_by_one(
        runs in proptest::collection::vec(
            (0u32..3000, 1u32..3000, proptest::collection::vec((any::<u32>(), 0u8..100), 0..600), 0u8..100), 1..20
        )
    ) {
        let (mut order, mut model) = (Tree::new(), BTreeSet::new());
        for (from, width, edits, share) in runs {
            // Many here and few there, so that nodes overflow and empty.
            let edits: Vec<_> = edits
                .into_iter()
                .map(|(number, chance)| (Row(from + number % width, ()), chance < share))
                .collect();
            let (old, old_model) = (order.clone(), model.clone());
            for (row, stands) in &edits {
                if *stands { model.insert(row.0) } else { model.remove(&row.0) };
            }
            order.edit_all(edits);
            agrees(&order, &model);
            agrees(&old, &old_model);
            shaped(&order.root, true);
        }
    }
}

/// The heights of a node's leaves are equal, and counts, bounds and widths are as they should be.
fn shaped(node: &Node<Row>, is_root: bool) -> u32 {
    assert!(is_root || width(node) > 0);
    assert!(width(node) <= most(node));
    match node {
        Node::Leaf(_) => 0,
        Node::Branch(children) => {
            let heights: BTreeSet<u32> = children.iter().map(|child| shaped(&child.node, false)).collect();
            assert!(heights.len() == 1 && (!is_root || children.len() > 1));
            for child in children {
                assert_eq!(measure(&child.node), Some((child.count, child.max)));
            }
            heights.first().unwrap() + 1
        }
    }
}

#[test]
fn what_grows_at_its_end_fills_its_leaves() {
    let mut order = Tree::new();
    for run in 0..100 {
        order.edit_all((0..50).map(|n| (Row(run * 50 + n, ()), true)).collect());
    }
    fn leaves(node: &Node<Row>) -> usize {
        match node {
            Node::Leaf(_) => 1,
            Node::Branch(children) => children.iter().map(|child| leaves(&child.node)).sum(),
        }
    }
    assert!(leaves(&order.root) < 5000 / 8 * 11 / 10, "{} leaves", leaves(&order.root));
}

#[test]
fn it_grows_shrinks_and_is_built_at_once() {
    let model: BTreeSet<u32> = (0..20_000).collect();
    let mut order = Tree::from_sorted(model.iter().map(|n| Row(*n, ())));
    agrees(&order, &model);
    let mut grown = Tree::new();
    for n in &model {
        grown.insert(Row(*n, ()));
    }
    agrees(&grown, &model);
    for n in 0..20_000 {
        assert_eq!(order.remove((n * 7919) % 20_000), Some(Row((n * 7919) % 20_000, ())));
    }
    agrees(&order, &BTreeSet::new());
    assert!(order.is_empty() && order.insert(Row(1, ())).is_none());
}

#[test]
fn an_item_is_changed_in_its_place_and_a_clone_keeps_its_own() {
    let mut order: Tree<Row<u32>> = Tree::new();
    for n in 0..1000 {
        order.insert(Row((n * 7919) % 1000, 0));
    }
    let old = order.clone();
    for n in 0..1000 {
        assert_eq!(order.edit(n, |row| std::mem::replace(&mut row.1, n + 1)), Some(0));
    }
    assert_eq!(order.edit(1000, |_| ()), None);
    assert_eq!((order.len(), old.len()), (1000, 1000));
    assert!((0..1000).all(|n| order.get(n) == Some(&Row(n, n + 1)) && old.get(n) == Some(&Row(n, 0))));
    assert_eq!(order.insert(Row(999, 7)), Some(Row(999, 1000)));
    assert_eq!(order.get(999), Some(&Row(999, 7)));
}
