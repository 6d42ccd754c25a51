//! The tree compared with a sorted set, under random edits.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// A number, and a value that is not part of the search key.
#[derive(Debug, Clone, PartialEq)]
struct TestItem<T = ()>(u32, T);

/// The sum of the numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sum(u64);

impl Weight for Sum {
    fn plus(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl<T: Clone + fmt::Debug> Item for TestItem<T> {
    const LEAF_ITEMS_MAX: usize = 8;
    type SearchKey<'a> = u32;
    type Bound = u32;
    type Weight = Sum;

    fn search_key(&self) -> u32 {
        self.0
    }

    fn bound(&self) -> u32 {
        self.0
    }

    fn search_key_of(bound: &u32) -> u32 {
        *bound
    }

    fn compare(a: u32, b: u32) -> Ordering {
        a.cmp(&b)
    }

    fn weight(&self) -> Sum {
        Sum(self.0.into())
    }
}

fn agrees(tree: &Tree<TestItem>, model: &BTreeSet<u32>) {
    let all: Vec<u32> = tree.from(0).map(|n| n.0).collect();
    assert_eq!(all, model.iter().copied().collect::<Vec<_>>());
    assert_eq!(tree.len(), model.len() as u64);
    let mut back: Vec<u32> = tree.back_from(tree.len()).map(|n| n.0).collect();
    back.reverse();
    assert_eq!(back, all);
    for position in
        [0, 1, all.len() / 3, all.len() / 2, all.len().saturating_sub(1), all.len(), all.len() + 5]
    {
        assert_eq!(tree.at(position as u64).map(|n| n.0), all.get(position).copied());
        let before: Vec<u32> = tree.back_from(position as u64).take(3).map(|n| n.0).collect();
        let expected: Vec<u32> = all[..position.min(all.len())].iter().rev().take(3).copied().collect();
        assert_eq!(before, expected);
    }
    for bound in [0, 7, 100, 5000, u32::MAX] {
        let place = all.partition_point(|n| *n < bound);
        assert_eq!(tree.rank(|n| *n < bound), place as u64);
        assert_eq!(tree.weight_before(|n| *n < bound), Sum(all[..place].iter().map(|n| u64::from(*n)).sum()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn it_equals_a_model_set(steps in proptest::collection::vec((any::<bool>(), 0u32..3000), 0..4000)) {
        let (mut tree, mut model) = (Tree::new(), BTreeSet::new());
        let mut old: Option<(Tree<TestItem>, BTreeSet<u32>)> = None;
        for (n, (put, number)) in steps.into_iter().enumerate() {
            if put {
                prop_assert_eq!(tree.insert(TestItem(number, ())).is_none(), model.insert(number));
            } else {
                prop_assert_eq!(tree.remove(number).is_some(), model.remove(&number));
            }
            prop_assert_eq!(tree.get(number).is_some(), model.contains(&number));
            if n == 1000 {
                old = Some((tree.clone(), model.clone()));
            }
        }
        agrees(&tree, &model);
        if let Some((tree, model)) = old {
            agrees(&tree, &model);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn bulk_edits_equal_single_edits(
        runs in proptest::collection::vec(
            (0u32..3000, 1u32..3000, proptest::collection::vec((any::<u32>(), 0u8..100), 0..600), 0u8..100), 1..20
        )
    ) {
        let (mut tree, mut model) = (Tree::new(), BTreeSet::new());
        for (from, width, edits, share) in runs {
            // Dense and sparse runs, so that nodes overflow and become empty.
            let edits: Vec<_> = edits
                .into_iter()
                .map(|(number, chance)| (TestItem(from + number % width, ()), chance < share))
                .collect();
            let (old, old_model) = (tree.clone(), model.clone());
            for (row, present) in &edits {
                if *present { model.insert(row.0) } else { model.remove(&row.0) };
            }
            tree.edit_all(edits);
            agrees(&tree, &model);
            agrees(&old, &old_model);
            assert_shape(&tree.root, true);
        }
    }
}

/// All leaves of a node have the same height, and counts, bounds and widths are right. Returns the height.
fn assert_shape(node: &TreeNode<TestItem>, is_root: bool) -> u32 {
    assert!(is_root || width(node) > 0);
    assert!(width(node) <= width_max(node));
    match node {
        TreeNode::Leaf(_) => 0,
        TreeNode::Branch(children) => {
            let heights: BTreeSet<u32> =
                children.iter().map(|child| assert_shape(&child.node, false)).collect();
            assert!(heights.len() == 1 && (!is_root || children.len() > 1));
            for child in children {
                assert_eq!(measure(&child.node), Some((child.count, child.max)));
            }
            heights.first().unwrap() + 1
        }
    }
}

#[test]
fn a_tree_that_grows_at_its_end_fills_its_leaves() {
    let mut tree = Tree::new();
    for run in 0..100 {
        tree.edit_all((0..50).map(|n| (TestItem(run * 50 + n, ()), true)).collect());
    }
    fn leaves(node: &TreeNode<TestItem>) -> usize {
        match node {
            TreeNode::Leaf(_) => 1,
            TreeNode::Branch(children) => children.iter().map(|child| leaves(&child.node)).sum(),
        }
    }
    assert!(leaves(&tree.root) < 5000 / 8 * 11 / 10, "{} leaves", leaves(&tree.root));
}

#[test]
fn it_grows_shrinks_and_is_built_from_sorted_items() {
    let model: BTreeSet<u32> = (0..20_000).collect();
    let mut tree = Tree::from_sorted(model.iter().map(|n| TestItem(*n, ())));
    agrees(&tree, &model);
    let mut grown = Tree::new();
    for n in &model {
        grown.insert(TestItem(*n, ()));
    }
    agrees(&grown, &model);
    for n in 0..20_000 {
        assert_eq!(tree.remove((n * 7919) % 20_000), Some(TestItem((n * 7919) % 20_000, ())));
    }
    agrees(&tree, &BTreeSet::new());
    assert!(tree.is_empty() && tree.insert(TestItem(1, ())).is_none());
}

#[test]
fn an_item_is_changed_in_place_and_a_clone_is_not() {
    let mut tree: Tree<TestItem<u32>> = Tree::new();
    for n in 0..1000 {
        tree.insert(TestItem((n * 7919) % 1000, 0));
    }
    let old = tree.clone();
    for n in 0..1000 {
        assert_eq!(tree.edit(n, |row| std::mem::replace(&mut row.1, n + 1)), Some(0));
    }
    assert_eq!(tree.edit(1000, |_| ()), None);
    assert_eq!((tree.len(), old.len()), (1000, 1000));
    assert!(
        (0..1000).all(|n| tree.get(n) == Some(&TestItem(n, n + 1)) && old.get(n) == Some(&TestItem(n, 0)))
    );
    assert_eq!(tree.insert(TestItem(999, 7)), Some(TestItem(999, 1000)));
    assert_eq!(tree.get(999), Some(&TestItem(999, 7)));
}
