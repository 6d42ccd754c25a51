//! The items of the indexes: records by key, and keys of records by time or by value.
//!
//! **Invariant:** what an item is compared by never changes while it is in an index.

use std::{cmp::Ordering, fmt, sync::Arc};

use super::tree::{Item, Weight};
use crate::{Collection, stored::StoredTotals};
use concord_model::{
    index::InlineBytes,
    key::Key,
    record::{Config, Definition},
    time::Timestamp,
};

/// A record that has a key.
pub trait KeyedRecord: Clone + fmt::Debug {
    /// What is summed up over records of this kind.
    type Weight: Weight;
    /// The record's key.
    fn key(&self) -> &Key;
    /// What the record adds to the sum.
    fn weight(&self) -> Self::Weight;
}

impl KeyedRecord for Key {
    type Weight = ();

    fn key(&self) -> &Key {
        self
    }

    fn weight(&self) {}
}

impl KeyedRecord for Arc<Config> {
    type Weight = ();

    fn key(&self) -> &Key {
        &self.key
    }

    fn weight(&self) {}
}

impl KeyedRecord for Arc<Definition> {
    type Weight = ();

    fn key(&self) -> &Key {
        &self.key
    }

    fn weight(&self) {}
}

impl KeyedRecord for Arc<Collection> {
    type Weight = StoredTotals;

    fn key(&self) -> &Key {
        &self.definition.key
    }

    fn weight(&self) -> StoredTotals {
        self.stored()
    }
}

/// An item of a primary index: a record by its key. The key is copied here, so that a search reads no other record.
#[derive(Debug, Clone)]
pub struct ByKey<R> {
    key: Key,
    /// The record.
    pub record: R,
}

impl<R: KeyedRecord> ByKey<R> {
    /// A record by its key.
    #[must_use]
    pub fn new(record: R) -> Self {
        Self { key: record.key().clone(), record }
    }
}

impl<R: KeyedRecord> Item for ByKey<R> {
    type SearchKey<'a> = &'a str;
    type Bound = Key;
    type Weight = R::Weight;

    fn search_key(&self) -> &str {
        self.key.as_str()
    }

    fn bound(&self) -> Key {
        self.key.clone()
    }

    fn search_key_of(bound: &Key) -> &str {
        bound.as_str()
    }

    fn compare(a: &str, b: &str) -> Ordering {
        a.cmp(b)
    }

    fn weight(&self) -> R::Weight {
        self.record.weight()
    }
}

/// An item of an index by time: a record or its key, ordered by time, then by key.
#[derive(Debug, Clone)]
pub struct ByTime<R> {
    /// The time.
    pub at: Timestamp,
    /// The record or its key.
    pub of: R,
}

impl<R: KeyedRecord> Item for ByTime<R> {
    type SearchKey<'a> = (Timestamp, &'a str);
    type Bound = Self;
    type Weight = ();

    fn search_key(&self) -> (Timestamp, &str) {
        (self.at, self.of.key().as_str())
    }

    fn bound(&self) -> Self {
        self.clone()
    }

    fn search_key_of(bound: &Self) -> (Timestamp, &str) {
        bound.search_key()
    }

    fn compare(a: (Timestamp, &str), b: (Timestamp, &str)) -> Ordering {
        a.cmp(&b)
    }

    fn weight(&self) {}
}

/// An item of a secondary index: a config's key, ordered by the value of an index entry, then by key.
#[derive(Debug, Clone)]
pub struct BySlot {
    value: InlineBytes,
    /// The config's key.
    pub key: Key,
}

impl BySlot {
    /// The item of a config and one of its values.
    #[must_use]
    pub fn new(value: &InlineBytes, key: &Key) -> Self {
        Self { value: value.clone(), key: key.clone() }
    }

    /// The order of the values alone.
    #[must_use]
    pub(super) fn compare_values(&self, other: &Self) -> Ordering {
        self.value.cmp(&other.value)
    }

    /// The value, encoded.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.value
    }
}

impl Item for BySlot {
    type SearchKey<'a> = (&'a InlineBytes, &'a str);
    type Bound = Self;
    type Weight = ();

    fn search_key(&self) -> (&InlineBytes, &str) {
        (&self.value, self.key.as_str())
    }

    fn bound(&self) -> Self {
        self.clone()
    }

    fn search_key_of(bound: &Self) -> (&InlineBytes, &str) {
        bound.search_key()
    }

    #[inline]
    fn compare(a: (&InlineBytes, &str), b: (&InlineBytes, &str)) -> Ordering {
        a.cmp(&b)
    }

    fn weight(&self) {}
}
