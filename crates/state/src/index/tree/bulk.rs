//! Many edits of a [`Tree`] at once.
//!
//! The edits are sorted and then descend the tree together: each node that they reach is rebuilt once, by merging;
//! applied one by one, each edit would search and copy it again. Source: batch updates of B-trees as in Pollari-Malmi,
//! *Batch updates and concurrency control in B-trees* (2002), without its concurrency.
//!
//! **Invariant:** the result equals that of the edits applied one by one.

use std::{cmp::Ordering, iter::Peekable, sync::Arc, vec::IntoIter};

use super::{BRANCH_CHILDREN_MAX, Child, Item, SPARE_CAPACITY, Tree, TreeNode, child, join};

/// Edits up to which they are applied one by one: that copies only shared nodes.
const SINGLE_EDITS_MAX: usize = 4;

/// An item, and whether it is present after the edit.
pub type TreeEdit<T> = (T, bool);

type TreeEdits<T> = Peekable<IntoIter<TreeEdit<T>>>;

impl<T: Item> Tree<T> {
    /// Applies edits; of several edits of one item the last one counts.
    pub fn edit_all(&mut self, mut edits: Vec<TreeEdit<T>>) {
        if edits.len() <= SINGLE_EDITS_MAX {
            for (item, present) in edits {
                if present { drop(self.insert(item)) } else { drop(self.remove(item.search_key())) }
            }
            return;
        }
        edits.sort_by(|(a, _), (b, _)| T::compare(a.search_key(), b.search_key()));
        edits.dedup_by(|later, earlier| {
            let is_same = T::compare(later.0.search_key(), earlier.0.search_key()) == Ordering::Equal;
            if is_same {
                std::mem::swap(later, earlier);
            }
            is_same
        });
        let mut level = Vec::new();
        edited(&self.root, &mut edits.into_iter().peekable(), None, &mut level);
        self.len = level.iter().map(|child| child.count).sum();
        while level.len() > 1 {
            let mut above = Vec::new();
            add_parts(level, BRANCH_CHILDREN_MAX, true, TreeNode::Branch, &mut above);
            level = above;
        }
        self.root = level.pop().map_or_else(|| Arc::new(TreeNode::Leaf(Vec::new())), |root| root.node);
        self.collapse_root();
    }
}

/// Adds the nodes that replace a node. It consumes the edits up to a bound, or all.
fn edited<T: Item>(
    node: &TreeNode<T>,
    edits: &mut TreeEdits<T>,
    up_to: Option<&T::Bound>,
    into: &mut Vec<Child<T>>,
) {
    match node {
        TreeNode::Leaf(items) => {
            add_parts(merged(items, edits, up_to), T::LEAF_ITEMS_MAX, up_to.is_none(), TreeNode::Leaf, into);
        }
        TreeNode::Branch(children) => {
            let mut changed = Vec::with_capacity(children.len() + SPARE_CAPACITY);
            let mut touched = Vec::new();
            for (position, below) in children.iter().enumerate() {
                let bound = if position + 1 == children.len() { up_to } else { Some(&below.max) };
                if edits.peek().is_some_and(|(item, _)| is_within(item, bound)) {
                    let from = changed.len();
                    edited(&below.node, edits, bound, &mut changed);
                    touched.extend(from..changed.len());
                } else {
                    changed.push(below.clone());
                }
            }
            for position in touched.into_iter().rev() {
                // The last one may have been merged with the one before.
                if position < changed.len() {
                    join(&mut changed, position);
                }
            }
            add_parts(changed, BRANCH_CHILDREN_MAX, up_to.is_none(), TreeNode::Branch, into);
        }
    }
}

fn is_within<T: Item>(item: &T, up_to: Option<&T::Bound>) -> bool {
    up_to.is_none_or(|up_to| T::compare(item.search_key(), T::search_key_of(up_to)) != Ordering::Greater)
}

/// A leaf's items with the edits up to a bound applied.
fn merged<T: Item>(mut items: &[T], edits: &mut TreeEdits<T>, up_to: Option<&T::Bound>) -> Vec<T> {
    let mut merged = Vec::with_capacity(items.len() + SPARE_CAPACITY);
    while let Some((item, present)) = edits.next_if(|(item, _)| is_within(item, up_to)) {
        let key = item.search_key();
        let before = items.partition_point(|other| T::compare(other.search_key(), key) == Ordering::Less);
        merged.extend_from_slice(&items[..before]);
        items = &items[before..];
        if items.first().is_some_and(|other| T::compare(other.search_key(), key) == Ordering::Equal) {
            items = &items[1..];
        }
        if present {
            merged.push(item);
        }
    }
    merged.extend_from_slice(items);
    merged
}

/// Adds nodes of at most `width_max` elements: of equal width, or full ones where items are added at the end; none for
/// an empty list.
fn add_parts<E, T: Item>(
    list: Vec<E>,
    width_max: usize,
    grows_at_end: bool,
    node: impl Fn(Vec<E>) -> TreeNode<T>,
    into: &mut Vec<Child<T>>,
) {
    let count = list.len().div_ceil(width_max);
    if count <= 1 {
        into.extend(child(node(list)));
        return;
    }
    let size = if grows_at_end { width_max } else { list.len().div_ceil(count) };
    let mut rest = list.into_iter();
    into.extend((0..count).filter_map(|_| child(node(rest.by_ref().take(size).collect()))));
}
