//! A counted copy-on-write B+tree: the one structure of all orders.
//!
//! Each branch knows of every child its greatest item and how many items lie below it, so that the rank of a
//! bound and the item at a place cost a walk from the root: exact totals and deep pages cost the same as the first
//! page. Cloning copies a pointer; a change copies the nodes on its way only where a clone still shares them.
//! Source: B+trees with subtree counts ("order-statistic trees", Cormen et al., *Introduction to Algorithms*,
//! chapter 14), nodes shared as in persistent trees.
//!
//! **Invariant:** items ascend strictly; `count` and `max` of a child are those of its node; no node is empty but
//! the root leaf.

use std::{cmp::Ordering, fmt, sync::Arc};

pub use bulk::Edit;

/// Children of a branch at most.
const BRANCH: usize = 32;
/// Room that a copied or split node is given beside what it holds: it is copied again before it has grown far.
const SLACK: usize = 4;

/// What stands in an [`Tree`]: a small value. What it is sought by should lie in it, not behind a pointer: a search
/// looks at some twenty items that are in no cache.
pub trait Item: Clone + fmt::Debug {
    /// Items of a leaf at most. A change copies a leaf: with 64 it takes an eighth longer, with 16 no less.
    const LEAF: usize = 32;
    /// What it is sought by.
    type Seek<'a>: Copy;
    /// What a branch keeps of its greatest item.
    type Bound: Clone + fmt::Debug;
    /// The item's own seek value.
    fn seek(&self) -> Self::Seek<'_>;
    /// The item as a bound.
    fn bound(&self) -> Self::Bound;
    /// The seek value of the item that a bound was made of.
    fn seek_of(bound: &Self::Bound) -> Self::Seek<'_>;
    /// Compares two.
    fn compare(a: Self::Seek<'_>, b: Self::Seek<'_>) -> Ordering;
}

/// Unique items in their order.
#[derive(Clone)]
pub struct Tree<T: Item> {
    root: Arc<Node<T>>,
    len: u64,
}

enum Node<T: Item> {
    Leaf(Vec<T>),
    Branch(Vec<Child<T>>),
}

#[derive(Clone)]
struct Child<T: Item> {
    count: u64,
    max: T::Bound,
    node: Arc<Node<T>>,
}

impl<T: Item> Clone for Node<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Leaf(items) => Self::Leaf(copy(items)),
            Self::Branch(children) => Self::Branch(copy(children)),
        }
    }
}

/// A copy that is about to be changed: with room, or its first insertion would copy it again.
fn copy<E: Clone>(list: &[E]) -> Vec<E> {
    let mut copied = Vec::with_capacity(list.len() + SLACK);
    copied.extend_from_slice(list);
    copied
}

/// Inserts without doubling the room.
fn put<E>(list: &mut Vec<E>, place: usize, element: E) {
    if list.len() == list.capacity() {
        list.reserve_exact(2 * SLACK);
    }
    list.insert(place, element);
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
    /// An order of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self { root: Arc::new(Node::Leaf(Vec::new())), len: 0 }
    }

    /// The order of items that ascend strictly; every node is full.
    #[must_use]
    pub fn from_sorted(items: impl Iterator<Item = T>) -> Self {
        let mut level: Vec<Child<T>> = Vec::new();
        let mut leaf = Vec::with_capacity(T::LEAF);
        let mut len = 0;
        for item in items {
            debug_assert!(
                leaf.last().is_none_or(|last: &T| T::compare(last.seek(), item.seek()) == Ordering::Less),
                "items ascend"
            );
            len += 1;
            leaf.push(item);
            if leaf.len() == T::LEAF {
                level.extend(child(Node::Leaf(std::mem::replace(&mut leaf, Vec::with_capacity(T::LEAF)))));
            }
        }
        leaf.shrink_to_fit();
        level.extend(child(Node::Leaf(leaf)));
        while level.len() > 1 {
            level = level.chunks(BRANCH).filter_map(|part| child(Node::Branch(part.to_vec()))).collect();
        }
        level.pop().map_or_else(Self::new, |root| Self { root: root.node, len })
    }

    /// How many items there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The item that is sought.
    #[must_use]
    pub fn get(&self, seek: T::Seek<'_>) -> Option<&T> {
        let mut node = &*self.root;
        loop {
            match node {
                Node::Leaf(items) => return find(items, seek).ok().map(|place| &items[place]),
                Node::Branch(children) => node = &children.get(way(children, seek))?.node,
            }
        }
    }

    /// Puts an item; returns the equal one that it replaced.
    pub fn insert(&mut self, item: T) -> Option<T> {
        let (old, split) = insert(Arc::make_mut(&mut self.root), item);
        if let Some(right) = split {
            let left = std::mem::replace(&mut self.root, Arc::new(Node::Leaf(Vec::new())));
            let children = node_child(left).into_iter().chain([right]).collect();
            self.root = Arc::new(Node::Branch(children));
        }
        self.len += u64::from(old.is_none());
        old
    }

    /// Changes the item that is sought in its place. What it is sought by must stay.
    pub fn edit<R>(&mut self, seek: T::Seek<'_>, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut node = Arc::make_mut(&mut self.root);
        loop {
            match node {
                Node::Leaf(items) => return find(items, seek).ok().map(|place| change(&mut items[place])),
                Node::Branch(children) => {
                    let place = way(children, seek);
                    node = Arc::make_mut(&mut children.get_mut(place)?.node);
                }
            }
        }
    }

    /// Takes the item that is sought away.
    pub fn remove(&mut self, seek: T::Seek<'_>) -> Option<T> {
        let old = remove(Arc::make_mut(&mut self.root), seek)?;
        self.len -= 1;
        self.lower();
        Some(old)
    }

    /// Takes away branches of one child above the others.
    fn lower(&mut self) {
        loop {
            let only = match &*self.root {
                Node::Branch(children) if children.len() == 1 => Arc::clone(&children[0].node),
                Node::Branch(children) if children.is_empty() => Arc::new(Node::Leaf(Vec::new())),
                Node::Branch(_) | Node::Leaf(_) => return,
            };
            self.root = only;
        }
    }

    /// How many items come before the first one whose bound makes `before` false. `before` must be true for a first
    /// part of the order and false for the rest.
    #[must_use]
    pub fn rank(&self, before: impl Fn(&T::Bound) -> bool) -> u64 {
        let mut node = &*self.root;
        let mut rank = 0;
        loop {
            match node {
                Node::Leaf(items) => {
                    return rank + items.partition_point(|item| before(&item.bound())) as u64;
                }
                Node::Branch(children) => {
                    let place = children.partition_point(|child| before(&child.max));
                    rank += children[..place].iter().map(|child| child.count).sum::<u64>();
                    match children.get(place) {
                        Some(child) => node = &child.node,
                        None => return rank,
                    }
                }
            }
        }
    }

    /// The item at a place; 0 is the first.
    #[must_use]
    pub fn at(&self, place: u64) -> Option<&T> {
        self.from(place).next()
    }

    /// The items from a place on, ascending.
    #[must_use]
    pub fn from(&self, place: u64) -> Iter<'_, T> {
        let mut iter = Iter { above: Vec::new(), leaf: [].iter() };
        let (mut node, mut left) = (&*self.root, place);
        loop {
            match node {
                Node::Leaf(items) => {
                    iter.leaf = items[clamp(left, items.len())..].iter();
                    return iter;
                }
                Node::Branch(children) => {
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

    /// The items before a place, descending.
    #[must_use]
    pub fn back_from(&self, place: u64) -> BackIter<'_, T> {
        let mut iter = BackIter { above: Vec::new(), leaf: [].iter() };
        let (mut node, mut left) = (&*self.root, place.min(self.len));
        loop {
            match node {
                Node::Leaf(items) => {
                    iter.leaf = items[..clamp(left, items.len())].iter();
                    return iter;
                }
                Node::Branch(children) => {
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

fn clamp(place: u64, len: usize) -> usize {
    usize::try_from(place).map_or(len, |place| place.min(len))
}

fn find<T: Item>(items: &[T], seek: T::Seek<'_>) -> Result<usize, usize> {
    items.binary_search_by(|item| T::compare(item.seek(), seek))
}

/// The child that holds what is sought, if any does; the number of children when it is greater than all.
fn way<T: Item>(children: &[Child<T>], seek: T::Seek<'_>) -> usize {
    children.partition_point(|child| T::compare(T::seek_of(&child.max), seek) == Ordering::Less)
}

/// A node as its parent holds it; `None` when it is empty.
fn child<T: Item>(node: Node<T>) -> Option<Child<T>> {
    node_child(Arc::new(node))
}

fn node_child<T: Item>(node: Arc<Node<T>>) -> Option<Child<T>> {
    let (count, max) = measure(&node)?;
    Some(Child { count, max, node })
}

fn measure<T: Item>(node: &Node<T>) -> Option<(u64, T::Bound)> {
    match node {
        Node::Leaf(items) => Some((items.len() as u64, items.last()?.bound())),
        Node::Branch(children) => {
            Some((children.iter().map(|child| child.count).sum(), children.last()?.max.clone()))
        }
    }
}

/// Splits a full list. What grows at its end leaves its left part full: times only ever grow.
fn split<E>(list: &mut Vec<E>, grown_at: usize) -> Vec<E> {
    let middle = if grown_at + 1 == list.len() { list.len() - 1 } else { list.len() / 2 };
    let mut right = Vec::with_capacity(list.len() - middle + SLACK);
    right.extend(list.drain(middle..));
    list.shrink_to(middle + SLACK);
    right
}

fn insert<T: Item>(node: &mut Node<T>, item: T) -> (Option<T>, Option<Child<T>>) {
    match node {
        Node::Leaf(items) => match find(items, item.seek()) {
            Ok(place) => (Some(std::mem::replace(&mut items[place], item)), None),
            Err(place) => {
                put(items, place, item);
                let right = (items.len() > T::LEAF).then(|| split(items, place));
                (None, right.and_then(|right| child(Node::Leaf(right))))
            }
        },
        Node::Branch(children) => {
            let place = way(children, item.seek()).min(children.len() - 1);
            let below = &mut children[place];
            let grown = match T::compare(T::seek_of(&below.max), item.seek()) {
                Ordering::Less => Some(item.bound()),
                Ordering::Equal | Ordering::Greater => None,
            };
            let (old, right) = insert(Arc::make_mut(&mut below.node), item);
            let Some(right) = right else {
                below.count += u64::from(old.is_none());
                if let Some(max) = grown {
                    below.max = max;
                }
                return (old, None);
            };
            refresh(below);
            put(children, place + 1, right);
            let right = (children.len() > BRANCH).then(|| split(children, place + 1));
            (old, right.and_then(|right| child(Node::Branch(right))))
        }
    }
}

fn refresh<T: Item>(child: &mut Child<T>) {
    if let Some((count, max)) = measure(&child.node) {
        (child.count, child.max) = (count, max);
    }
}

fn remove<T: Item>(node: &mut Node<T>, seek: T::Seek<'_>) -> Option<T> {
    match node {
        Node::Leaf(items) => find(items, seek).ok().map(|place| items.remove(place)),
        Node::Branch(children) => {
            let place = way(children, seek);
            let below = children.get_mut(place)?;
            let old = remove(Arc::make_mut(&mut below.node), seek)?;
            below.count -= 1;
            if below.count == 0 {
                drop(children.remove(place));
                return Some(old);
            }
            if T::compare(T::seek_of(&below.max), old.seek()) == Ordering::Equal {
                refresh(below);
            }
            join(children, place);
            Some(old)
        }
    }
}

fn width<T: Item>(node: &Node<T>) -> usize {
    match node {
        Node::Leaf(items) => items.len(),
        Node::Branch(children) => children.len(),
    }
}

/// How wide a node may be.
fn most<T: Item>(node: &Node<T>) -> usize {
    match node {
        Node::Leaf(_) => T::LEAF,
        Node::Branch(_) => BRANCH,
    }
}

/// Joins a child that is less than a quarter full to its neighbour when both fit into one node with room to grow.
fn join<T: Item>(children: &mut Vec<Child<T>>, place: usize) {
    let most = most(&children[place].node);
    if width(&children[place].node) >= most / 4 || children.len() < 2 {
        return;
    }
    let left = place.saturating_sub(1);
    if width(&children[left].node) + width(&children[left + 1].node) > most - most / 4 {
        return;
    }
    let right = children.remove(left + 1);
    let into = &mut children[left];
    match (Arc::make_mut(&mut into.node), Arc::unwrap_or_clone(right.node)) {
        (Node::Leaf(items), Node::Leaf(more)) => items.extend(more),
        (Node::Branch(below), Node::Branch(more)) => below.extend(more),
        (Node::Leaf(_), Node::Branch(_)) | (Node::Branch(_), Node::Leaf(_)) => {
            debug_assert!(false, "neighbours have the same height");
        }
    }
    refresh(into);
}

/// Ascending items of an [`Tree`].
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
                Some(Node::Leaf(items)) => self.leaf = items.iter(),
                Some(Node::Branch(children)) => self.above.push(children.iter()),
                None => drop(self.above.pop()),
            }
        }
    }
}

/// Descending items of an [`Tree`].
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
                Some(Node::Leaf(items)) => self.leaf = items.iter(),
                Some(Node::Branch(children)) => self.above.push(children.iter()),
                None => drop(self.above.pop()),
            }
        }
    }
}

mod bulk;
#[cfg(test)]
mod tests;
