//! A place in an order of records, and the bytes of what has it.

use std::{cmp::Ordering, fmt};

use super::tree::{Item, Tree, Weight};

/// A place in an order, and the bytes of what has it.
#[derive(Debug, Clone)]
pub(crate) struct Filed<K> {
    pub(crate) key: K,
    pub(crate) bytes: u64,
}

impl Weight for u64 {
    fn plus(self, other: Self) -> Self {
        self.saturating_add(other)
    }
}

impl<K: Ord + Clone + fmt::Debug + 'static> Item for Filed<K> {
    type SearchKey<'a> = &'a K;
    type Bound = K;
    type Weight = u64;

    fn search_key(&self) -> &K {
        &self.key
    }

    fn bound(&self) -> K {
        self.key.clone()
    }

    fn search_key_of(bound: &K) -> &K {
        bound
    }

    fn compare(a: &K, b: &K) -> Ordering {
        a.cmp(b)
    }

    fn weight(&self) -> u64 {
        self.bytes
    }
}

/// How many there are of something, and the bytes of all of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

/// The count and the bytes of the places whose first part is this.
pub(crate) fn totals<A, B>(of: &Tree<Filed<(A, B)>>, first: &A) -> Totals
where
    A: Ord + Clone + fmt::Debug + 'static,
    B: Ord + Clone + fmt::Debug + 'static,
{
    let before = |bound: &(A, B)| bound.0 < *first;
    let upto = |bound: &(A, B)| bound.0 <= *first;
    Totals {
        count: of.rank(upto) - of.rank(before),
        bytes: of.weight_before(upto).saturating_sub(of.weight_before(before)),
    }
}

/// Adds a place to an order, or removes it.
pub(crate) fn place<K: Ord + Clone + fmt::Debug + 'static>(
    order: &mut Tree<Filed<K>>,
    key: K,
    bytes: u64,
    is_in: bool,
) {
    if is_in {
        order.insert(Filed { key, bytes });
    } else {
        order.remove(&key);
    }
}
