//! What stands in the orders: records by key, and by time or value the keys of records.
//!
//! **Invariant:** what an item is compared by never changes while it stands in an order.

use std::{cmp::Ordering, fmt, sync::Arc};

use super::{inline_bytes::Short, tree::Item};
use crate::{
    model::{
        key::Key,
        record::{Config, Definition},
        time::Timestamp,
    },
    state::Collection,
};

/// What the order by key needs to know of a record.
pub trait Record: Clone + fmt::Debug {
    /// The record's key.
    fn key(&self) -> &Key;
}

impl Record for Key {
    fn key(&self) -> &Key {
        self
    }
}

impl Record for Arc<Config> {
    fn key(&self) -> &Key {
        &self.key
    }
}

impl Record for Arc<Definition> {
    fn key(&self) -> &Key {
        &self.key
    }
}

impl Record for Arc<Collection> {
    fn key(&self) -> &Key {
        &self.definition.key
    }
}

/// A record in the order of keys. The key stands here too, or a search would look into a dozen records.
#[derive(Debug, Clone)]
pub struct ByKey<R> {
    key: Key,
    /// The record.
    pub record: R,
}

impl<R: Record> ByKey<R> {
    /// A record by its key.
    #[must_use]
    pub fn new(record: R) -> Self {
        Self { key: record.key().clone(), record }
    }
}

impl<R: Record> Item for ByKey<R> {
    type Seek<'a> = &'a str;
    type Bound = Key;

    fn seek(&self) -> &str {
        self.key.as_str()
    }

    fn bound(&self) -> Key {
        self.key.clone()
    }

    fn seek_of(bound: &Key) -> &str {
        bound.as_str()
    }

    fn compare(a: &str, b: &str) -> Ordering {
        a.cmp(b)
    }
}

/// A record, or its key alone, in the order of a time, then of its key: what one entry of the log changes has one
/// time.
#[derive(Debug, Clone)]
pub struct ByTime<R> {
    /// The time.
    pub at: Timestamp,
    /// Whose time it is.
    pub of: R,
}

impl<R: Record> Item for ByTime<R> {
    type Seek<'a> = (Timestamp, &'a str);
    type Bound = Self;

    fn seek(&self) -> (Timestamp, &str) {
        (self.at, self.of.key().as_str())
    }

    fn bound(&self) -> Self {
        self.clone()
    }

    fn seek_of(bound: &Self) -> (Timestamp, &str) {
        bound.seek()
    }

    fn compare(a: (Timestamp, &str), b: (Timestamp, &str)) -> Ordering {
        a.cmp(&b)
    }
}

/// A config in the order of one of its index entries, then of its key.
#[derive(Debug, Clone)]
pub struct BySlot {
    value: Short,
    /// The config's key.
    pub key: Key,
}

impl BySlot {
    /// A config by a value.
    #[must_use]
    pub fn new(value: &[u8], key: &Key) -> Self {
        Self { value: value.into(), key: key.clone() }
    }

    /// The value that the config stands here by.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.value
    }
}

impl Item for BySlot {
    type Seek<'a> = (&'a [u8], &'a str);
    type Bound = Self;

    fn seek(&self) -> (&[u8], &str) {
        (self.value(), self.key.as_str())
    }

    fn bound(&self) -> Self {
        self.clone()
    }

    fn seek_of(bound: &Self) -> (&[u8], &str) {
        bound.seek()
    }

    fn compare(a: (&[u8], &str), b: (&[u8], &str)) -> Ordering {
        a.cmp(&b)
    }
}
