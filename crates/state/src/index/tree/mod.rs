//! A counted copy-on-write B+tree: the structure of every index.
//!
//! Each branch stores for every child its greatest item and the number of items below it, so that the rank of a bound
//! and the item at a position cost one descent from the root: exact totals and deep pages cost the same as the first
//! page. Where items have weights, each branch also stores their sum below every child, so the weight of the items up
//! to a bound costs the same. A clone copies a pointer; a change copies the nodes on its path only where a clone still
//! shares them. Source: B+trees with subtree counts ("order-statistic trees", Cormen et al., *Introduction to
//! Algorithms*, chapter 14), with nodes shared as in persistent trees.
//!
//! | file | what it does |
//! |---|---|
//! | `bulk` | applies many edits at once |
//!
//! **Invariant:** items ascend strictly. `count`, `max` and `weight` of a child are those of its node. Only the root
//! leaf may be empty.

mod bulk;
#[cfg(test)]
mod tests;

use std::{cmp::Ordering, fmt, sync::Arc};

pub use bulk::TreeEdit;

/// Children of a branch.
const BRANCH_CHILDREN_MAX: usize = 32;
/// Spare capacity, in elements, of a copied or split node: it is copied again before it grows far.
const SPARE_CAPACITY: usize = 4;

/// What is summed up over the items of a [`Tree`]; `()` where nothing is.
pub trait Weight: Copy + Default + fmt::Debug {
    /// The sum of both.
    #[must_use]
    fn plus(self, other: Self) -> Self;
}

impl Weight for () {
    fn plus(self, (): Self) -> Self {}
}

/// An item of a [`Tree`]: a small value. Its search key should be stored inline, not behind a pointer: a search reads
/// some twenty items that are in no CPU cache.
pub trait Item: Clone + fmt::Debug {
    /// Items of a leaf. A change copies a leaf: with 64 it takes an eighth longer, with 16 it is not faster.
    const LEAF_ITEMS_MAX: usize = 32;
    /// What it is searched by.
    type SearchKey<'a>: Copy;
    /// What a branch stores of a child's greatest item.
    type Bound: Clone + fmt::Debug;
    /// What is summed up.
    type Weight: Weight;
    /// The item's search key.
    fn search_key(&self) -> Self::SearchKey<'_>;
    /// The item as a bound.
    fn bound(&self) -> Self::Bound;
    /// The search key of the item that a bound was made of.
    fn search_key_of(bound: &Self::Bound) -> Self::SearchKey<'_>;
    /// Compares two search keys.
    fn compare(a: Self::SearchKey<'_>, b: Self::SearchKey<'_>) -> Ordering;
    /// What the item adds to the sum.
    fn weight(&self) -> Self::Weight;
}

/// Unique items in ascending order.
#[derive(Clone)]
pub struct Tree<T: Item> {
    root: Arc<TreeNode<T>>,
    len: u64,
}

enum TreeNode<T: Item> {
    Leaf(Vec<T>),
    Branch(Vec<Child<T>>),
}

#[derive(Clone)]
struct Child<T: Item> {
    count: u64,
    max: T::Bound,
    weight: T::Weight,
    node: Arc<TreeNode<T>>,
}

impl<T: Item> Clone for TreeNode<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Leaf(items) => Self::Leaf(copy(items)),
            Self::Branch(children) => Self::Branch(copy(children)),
        }
    }
}

/// A copy that is about to be changed: with spare capacity, or its first insertion would reallocate it.
fn copy<E: Clone>(list: &[E]) -> Vec<E> {
    let mut copied = Vec::with_capacity(list.len() + SPARE_CAPACITY);
    copied.extend_from_slice(list);
    copied
}

/// Inserts without doubling the capacity.
fn insert_at<E>(list: &mut Vec<E>, position: usize, element: E) {
    if list.len() == list.capacity() {
        list.reserve_exact(2 * SPARE_CAPACITY);
    }
    list.insert(position, element);
}

impl<T: Item> Default for Tree<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Item> fmt::Debug for Tree<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.from(0)).finish()
    }
}

impl<T: Item> Tree<T> {
    /// An empty tree.
    #[must_use]
    pub fn new() -> Self {
        Self { root: Arc::new(TreeNode::Leaf(Vec::new())), len: 0 }
    }

    /// The tree of items that ascend strictly; every node is full.
    #[must_use]
    pub fn from_sorted(items: impl Iterator<Item = T>) -> Self {
        let mut level: Vec<Child<T>> = Vec::new();
        let mut leaf = Vec::with_capacity(T::LEAF_ITEMS_MAX);
        let mut len = 0;
        for item in items {
            debug_assert!(
                leaf.last().is_none_or(|last: &T| T::compare(last.search_key(), item.search_key()) == Ordering::Less),
                "items ascend"
            );
            len += 1;
            leaf.push(item);
            if leaf.len() == T::LEAF_ITEMS_MAX {
                level.extend(child(TreeNode::Leaf(std::mem::replace(
                    &mut leaf,
                    Vec::with_capacity(T::LEAF_ITEMS_MAX),
                ))));
            }
        }
        leaf.shrink_to_fit();
        level.extend(child(TreeNode::Leaf(leaf)));
        while level.len() > 1 {
            level = level
                .chunks(BRANCH_CHILDREN_MAX)
                .filter_map(|part| child(TreeNode::Branch(part.to_vec())))
                .collect();
        }
        level.pop().map_or_else(Self::new, |root| Self { root: root.node, len })
    }

    /// The number of items.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no items.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The item with this search key.
    #[must_use]
    pub fn get(&self, key: T::SearchKey<'_>) -> Option<&T> {
        let mut node = &*self.root;
        loop {
            match node {
                TreeNode::Leaf(items) => return find(items, key).ok().map(|position| &items[position]),
                TreeNode::Branch(children) => node = &children.get(child_position(children, key))?.node,
            }
        }
    }

    /// Inserts an item; returns the equal one that it replaced.
    pub fn insert(&mut self, item: T) -> Option<T> {
        let (old, split) = insert(Arc::make_mut(&mut self.root), item);
        if let Some(right) = split {
            let left = std::mem::replace(&mut self.root, Arc::new(TreeNode::Leaf(Vec::new())));
            let children = node_child(left).into_iter().chain([right]).collect();
            self.root = Arc::new(TreeNode::Branch(children));
        }
        self.len += u64::from(old.is_none());
        old
    }

    /// Changes the item with this search key in place. Its search key must not change.
    pub fn edit<R>(&mut self, key: T::SearchKey<'_>, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        edit(Arc::make_mut(&mut self.root), key, change)
    }

    /// Removes the item with this search key.
    pub fn remove(&mut self, key: T::SearchKey<'_>) -> Option<T> {
        let old = remove(Arc::make_mut(&mut self.root), key)?;
        self.len -= 1;
        self.collapse_root();
        Some(old)
    }

    /// Removes branches with a single child above the others.
    fn collapse_root(&mut self) {
        loop {
            let only = match &*self.root {
                TreeNode::Branch(children) if children.len() == 1 => Arc::clone(&children[0].node),
                TreeNode::Branch(children) if children.is_empty() => Arc::new(TreeNode::Leaf(Vec::new())),
                TreeNode::Branch(_) | TreeNode::Leaf(_) => return,
            };
            self.root = only;
        }
    }

    /// The number of items before the first one whose bound makes `before` false. `before` must be true for a prefix of
    /// the items and false for the rest.
    #[must_use]
    pub fn rank(&self, before: impl Fn(&T::Bound) -> bool) -> u64 {
        let mut node = &*self.root;
        let mut rank = 0;
        loop {
            match node {
                TreeNode::Leaf(items) => {
                    return rank + items.partition_point(|item| before(&item.bound())) as u64;
                }
                TreeNode::Branch(children) => {
                    let position = children.partition_point(|child| before(&child.max));
                    rank += children[..position].iter().map(|child| child.count).sum::<u64>();
                    match children.get(position) {
                        Some(child) => node = &child.node,
                        None => return rank,
                    }
                }
            }
        }
    }

    /// What the items weigh before the first one whose bound makes `before` false, as [`Tree::rank`] counts them.
    #[must_use]
    pub fn weight_before(&self, before: impl Fn(&T::Bound) -> bool) -> T::Weight {
        let (mut node, mut sum) = (&*self.root, T::Weight::default());
        loop {
            match node {
                TreeNode::Leaf(items) => {
                    let position = items.partition_point(|item| before(&item.bound()));
                    return sum.plus(weights(&items[..position]));
                }
                TreeNode::Branch(children) => {
                    let position = children.partition_point(|child| before(&child.max));
                    sum = children[..position].iter().fold(sum, |sum, child| sum.plus(child.weight));
                    match children.get(position) {
                        Some(child) => node = &child.node,
                        None => return sum,
                    }
                }
            }
        }
    }

    /// The item at a position; 0 is the first.
    #[must_use]
    pub fn at(&self, position: u64) -> Option<&T> {
        self.from(position).next()
    }

    /// The items from a position on, ascending.
    #[must_use]
    pub fn from(&self, position: u64) -> Iter<'_, T> {
        let mut iter = Iter { above: Vec::new(), leaf: [].iter() };
        let (mut node, mut left) = (&*self.root, position);
        loop {
            match node {
                TreeNode::Leaf(items) => {
                    iter.leaf = items[clamp(left, items.len())..].iter();
                    return iter;
                }
                TreeNode::Branch(children) => {
                    let mut rest = children.iter();
                    loop {
                        let Some(child) = rest.next() else { return iter };
                        if left < child.count {
                            node = &child.node;
                            break;
                        }
                        left -= child.count;
                    }
                    iter.above.push(rest);
                }
            }
        }
    }

    /// The items before a position, descending.
    #[must_use]
    pub fn back_from(&self, position: u64) -> BackIter<'_, T> {
        let mut iter = BackIter { above: Vec::new(), leaf: [].iter() };
        let (mut node, mut left) = (&*self.root, position.min(self.len));
        loop {
            match node {
                TreeNode::Leaf(items) => {
                    iter.leaf = items[..clamp(left, items.len())].iter();
                    return iter;
                }
                TreeNode::Branch(children) => {
                    let mut at = 0;
                    while at + 1 < children.len() && left > children[at].count {
                        left -= children[at].count;
                        at += 1;
                    }
                    iter.above.push(children[..at].iter());
                    node = &children[at].node;
                }
            }
        }
    }
}

fn clamp(position: u64, len: usize) -> usize {
    usize::try_from(position).map_or(len, |position| position.min(len))
}

fn find<T: Item>(items: &[T], key: T::SearchKey<'_>) -> Result<usize, usize> {
    items.binary_search_by(|item| T::compare(item.search_key(), key))
}

/// The position of the child that contains the key, if any does; the number of children when it is greater than all.
fn child_position<T: Item>(children: &[Child<T>], key: T::SearchKey<'_>) -> usize {
    children.partition_point(|child| T::compare(T::search_key_of(&child.max), key) == Ordering::Less)
}

/// A node as a child of its parent; `None` when it is empty.
fn child<T: Item>(node: TreeNode<T>) -> Option<Child<T>> {
    node_child(Arc::new(node))
}

fn node_child<T: Item>(node: Arc<TreeNode<T>>) -> Option<Child<T>> {
    let (count, max) = measure(&node)?;
    Some(Child { count, max, weight: weigh(&node), node })
}

fn measure<T: Item>(node: &TreeNode<T>) -> Option<(u64, T::Bound)> {
    match node {
        TreeNode::Leaf(items) => Some((items.len() as u64, items.last()?.bound())),
        TreeNode::Branch(children) => {
            Some((children.iter().map(|child| child.count).sum(), children.last()?.max.clone()))
        }
    }
}

fn weights<T: Item>(items: &[T]) -> T::Weight {
    items.iter().fold(T::Weight::default(), |sum, item| sum.plus(item.weight()))
}

fn weigh<T: Item>(node: &TreeNode<T>) -> T::Weight {
    match node {
        TreeNode::Leaf(items) => weights(items),
        TreeNode::Branch(children) => {
            children.iter().fold(T::Weight::default(), |sum, child| sum.plus(child.weight))
        }
    }
}

fn edit<T: Item, R>(
    node: &mut TreeNode<T>,
    key: T::SearchKey<'_>,
    change: impl FnOnce(&mut T) -> R,
) -> Option<R> {
    match node {
        TreeNode::Leaf(items) => find(items, key).ok().map(|position| change(&mut items[position])),
        TreeNode::Branch(children) => {
            let position = child_position(children, key);
            let below = children.get_mut(position)?;
            let done = edit(Arc::make_mut(&mut below.node), key, change)?;
            below.weight = weigh(&below.node);
            Some(done)
        }
    }
}

/// Splits a full list. A list that grew at its end leaves its left part full: times only grow.
fn split<E>(list: &mut Vec<E>, grown_at: usize) -> Vec<E> {
    let middle = if grown_at + 1 == list.len() { list.len() - 1 } else { list.len() / 2 };
    let mut right = Vec::with_capacity(list.len() - middle + SPARE_CAPACITY);
    right.extend(list.drain(middle..));
    list.shrink_to(middle + SPARE_CAPACITY);
    right
}

fn insert<T: Item>(node: &mut TreeNode<T>, item: T) -> (Option<T>, Option<Child<T>>) {
    match node {
        TreeNode::Leaf(items) => match find(items, item.search_key()) {
            Ok(position) => (Some(std::mem::replace(&mut items[position], item)), None),
            Err(position) => {
                insert_at(items, position, item);
                let right = (items.len() > T::LEAF_ITEMS_MAX).then(|| split(items, position));
                (None, right.and_then(|right| child(TreeNode::Leaf(right))))
            }
        },
        TreeNode::Branch(children) => {
            let position = child_position(children, item.search_key()).min(children.len() - 1);
            let below = &mut children[position];
            let grown = match T::compare(T::search_key_of(&below.max), item.search_key()) {
                Ordering::Less => Some(item.bound()),
                Ordering::Equal | Ordering::Greater => None,
            };
            let (old, right) = insert(Arc::make_mut(&mut below.node), item);
            let Some(right) = right else {
                below.count += u64::from(old.is_none());
                below.weight = weigh(&below.node);
                if let Some(max) = grown {
                    below.max = max;
                }
                return (old, None);
            };
            refresh(below);
            insert_at(children, position + 1, right);
            let right = (children.len() > BRANCH_CHILDREN_MAX).then(|| split(children, position + 1));
            (old, right.and_then(|right| child(TreeNode::Branch(right))))
        }
    }
}

fn refresh<T: Item>(child: &mut Child<T>) {
    if let Some((count, max)) = measure(&child.node) {
        (child.count, child.max, child.weight) = (count, max, weigh(&child.node));
    }
}

fn remove<T: Item>(node: &mut TreeNode<T>, key: T::SearchKey<'_>) -> Option<T> {
    match node {
        TreeNode::Leaf(items) => find(items, key).ok().map(|position| items.remove(position)),
        TreeNode::Branch(children) => {
            let position = child_position(children, key);
            let below = children.get_mut(position)?;
            let old = remove(Arc::make_mut(&mut below.node), key)?;
            below.count -= 1;
            if below.count == 0 {
                drop(children.remove(position));
                return Some(old);
            }
            below.weight = weigh(&below.node);
            if T::compare(T::search_key_of(&below.max), old.search_key()) == Ordering::Equal {
                refresh(below);
            }
            join(children, position);
            Some(old)
        }
    }
}

fn width<T: Item>(node: &TreeNode<T>) -> usize {
    match node {
        TreeNode::Leaf(items) => items.len(),
        TreeNode::Branch(children) => children.len(),
    }
}

/// The greatest width of a node.
fn width_max<T: Item>(node: &TreeNode<T>) -> usize {
    match node {
        TreeNode::Leaf(_) => T::LEAF_ITEMS_MAX,
        TreeNode::Branch(_) => BRANCH_CHILDREN_MAX,
    }
}

/// Merges a child that is less than a quarter full with its neighbour, when both fit into one node that can still grow.
fn join<T: Item>(children: &mut Vec<Child<T>>, position: usize) {
    let max = width_max(&children[position].node);
    if width(&children[position].node) >= max / 4 || children.len() < 2 {
        return;
    }
    let left = position.saturating_sub(1);
    if width(&children[left].node) + width(&children[left + 1].node) > max - max / 4 {
        return;
    }
    let right = children.remove(left + 1);
    let into = &mut children[left];
    match (Arc::make_mut(&mut into.node), Arc::unwrap_or_clone(right.node)) {
        (TreeNode::Leaf(items), TreeNode::Leaf(more)) => items.extend(more),
        (TreeNode::Branch(below), TreeNode::Branch(more)) => below.extend(more),
        (TreeNode::Leaf(_), TreeNode::Branch(_)) | (TreeNode::Branch(_), TreeNode::Leaf(_)) => {
            debug_assert!(false, "neighbours have the same height");
        }
    }
    refresh(into);
}

/// Ascending items of a [`Tree`].
pub struct Iter<'a, T: Item> {
    above: Vec<std::slice::Iter<'a, Child<T>>>,
    leaf: std::slice::Iter<'a, T>,
}

impl<T: Item> fmt::Debug for Iter<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter").finish_non_exhaustive()
    }
}

impl<'a, T: Item> Iterator for Iter<'a, T> {
    type Item = &'a T;

    fn next(&mut self) -> Option<&'a T> {
        loop {
            if let Some(item) = self.leaf.next() {
                return Some(item);
            }
            match self.above.last_mut()?.next().map(|child| &*child.node) {
                Some(TreeNode::Leaf(items)) => self.leaf = items.iter(),
                Some(TreeNode::Branch(children)) => self.above.push(children.iter()),
                None => drop(self.above.pop()),
            }
        }
    }
}

/// Descending items of a [`Tree`].
pub struct BackIter<'a, T: Item> {
    above: Vec<std::slice::Iter<'a, Child<T>>>,
    leaf: std::slice::Iter<'a, T>,
}

impl<T: Item> fmt::Debug for BackIter<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackIter").finish_non_exhaustive()
    }
}

impl<'a, T: Item> Iterator for BackIter<'a, T> {
    type Item = &'a T;

    fn next(&mut self) -> Option<&'a T> {
        loop {
            if let Some(item) = self.leaf.next_back() {
                return Some(item);
            }
            match self.above.last_mut()?.next_back().map(|child| &*child.node) {
                Some(TreeNode::Leaf(items)) => self.leaf = items.iter(),
                Some(TreeNode::Branch(children)) => self.above.push(children.iter()),
                None => drop(self.above.pop()),
            }
        }
    }
}
