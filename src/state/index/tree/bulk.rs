//! Many edits of an [`Tree`] at once.
//!
//! The edits are sorted and then go down the tree together: each node that any of them meets is built anew once, by
//! merging, where one by one it would be sought and copied for each. Source: batch updates of B-trees as in Pollari-Malmi,
//! *Batch updates and concurrency control in B-trees* (2002), without its concurrency.
//!
//! **Invariant:** what comes out is what the edits give one by one.

use std::{cmp::Ordering, iter::Peekable, sync::Arc, vec::IntoIter};

use super::{BRANCH, Child, Item, Node, SLACK, Tree, child, join};

/// So few edits are done one by one, where that need not copy.
const FEW: usize = 4;

/// An item, and whether it is to stand in the order or not.
pub type Edit<T> = (T, bool);

type Edits<T> = Peekable<IntoIter<Edit<T>>>;

impl<T: Item> Tree<T> {
    /// Does edits; of several of one item the last one holds.
    pub fn edit_all(&mut self, mut edits: Vec<Edit<T>>) {
        if edits.len() <= FEW {
            for (item, stands) in edits {
                if stands { drop(self.insert(item)) } else { drop(self.remove(item.seek())) }
            }
            return;
        }
        edits.sort_by(|(a, _), (b, _)| T::compare(a.seek(), b.seek()));
        edits.dedup_by(|later, kept| {
            let is_same = T::compare(later.0.seek(), kept.0.seek()) == Ordering::Equal;
            if is_same {
                std::mem::swap(later, kept);
            }
            is_same
        });
        let mut level = Vec::new();
        edited(&self.root, &mut edits.into_iter().peekable(), None, &mut level);
        self.len = level.iter().map(|child| child.count).sum();
        while level.len() > 1 {
            let mut above = Vec::new();
            add_parts(level, BRANCH, true, Node::Branch, &mut above);
            level = above;
        }
        self.root = level.pop().map_or_else(|| Arc::new(Node::Leaf(Vec::new())), |root| root.node);
        self.lower();
    }
}

/// Adds the nodes that take a node's place; it takes the edits up to a bound, or all.
fn edited<T: Item>(node: &Node<T>, edits: &mut Edits<T>, upto: Option<&T::Bound>, into: &mut Vec<Child<T>>) {
    match node {
        Node::Leaf(items) => {
            add_parts(merged(items, edits, upto), T::LEAF, upto.is_none(), Node::Leaf, into);
        }
        Node::Branch(children) => {
            let mut changed = Vec::with_capacity(children.len() + SLACK);
            let mut touched = Vec::new();
            for (place, below) in children.iter().enumerate() {
                let bound = if place + 1 == children.len() { upto } else { Some(&below.max) };
                if edits.peek().is_some_and(|(item, _)| is_within(item, bound)) {
                    let from = changed.len();
                    edited(&below.node, edits, bound, &mut changed);
                    touched.extend(from..changed.len());
                } else {
                    changed.push(below.clone());
                }
            }
            for place in touched.into_iter().rev() {
                // The last one may be gone, joined to the one before.
                if place < changed.len() {
                    join(&mut changed, place);
                }
            }
            add_parts(changed, BRANCH, upto.is_none(), Node::Branch, into);
        }
    }
}

fn is_within<T: Item>(item: &T, upto: Option<&T::Bound>) -> bool {
    upto.is_none_or(|upto| T::compare(item.seek(), T::seek_of(upto)) != Ordering::Greater)
}

/// A leaf's items with the edits up to a bound.
fn merged<T: Item>(mut items: &[T], edits: &mut Edits<T>, upto: Option<&T::Bound>) -> Vec<T> {
    let mut merged = Vec::with_capacity(items.len() + SLACK);
    while let Some((item, stands)) = edits.next_if(|(item, _)| is_within(item, upto)) {
        let seek = item.seek();
        let before = items.partition_point(|other| T::compare(other.seek(), seek) == Ordering::Less);
        merged.extend_from_slice(&items[..before]);
        items = &items[before..];
        if items.first().is_some_and(|other| T::compare(other.seek(), seek) == Ordering::Equal) {
            items = &items[1..];
        }
        if stands {
            merged.push(item);
        }
    }
    merged.extend_from_slice(items);
    merged
}

/// Adds nodes of at most so many each: equal ones, or full ones where more will come at the end; none for nothing.
fn add_parts<E, T: Item>(
    list: Vec<E>,
    most: usize,
    grows_at_end: bool,
    node: impl Fn(Vec<E>) -> Node<T>,
    into: &mut Vec<Child<T>>,
) {
    let count = list.len().div_ceil(most);
    if count <= 1 {
        into.extend(child(node(list)));
        return;
    }
    let size = if grows_at_end { most } else { list.len().div_ceil(count) };
    let mut rest = list.into_iter();
    into.extend((0..count).filter_map(|_| child(node(rest.by_ref().take(size).collect()))));
}
