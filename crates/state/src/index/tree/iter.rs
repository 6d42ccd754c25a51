//! The items of a tree in order, from either side.
//!
//! **Invariant:** an iterator holds one place for each level of the tree: what it costs to go on does not depend on where
//! it began.

use std::fmt;

use super::{Child, Item, Node};

/// Ascending items of a [`Tree`](super::Tree).
pub struct Iter<'a, T: Item> {
    pub(super) above: Vec<std::slice::Iter<'a, Child<T>>>,
    pub(super) leaf: std::slice::Iter<'a, T>,
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

/// Descending items of a [`Tree`](super::Tree).
pub struct BackIter<'a, T: Item> {
    pub(super) above: Vec<std::slice::Iter<'a, Child<T>>>,
    pub(super) leaf: std::slice::Iter<'a, T>,
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
