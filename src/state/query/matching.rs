//! Whether one record meets the conditions of a query.
//!
//! **Invariant:** a test costs no more than a binary search for each index entry of the record that it concerns, however
//! many values its filter names; where an empty array may be the only value, also the reading of the data.

use std::ops::Bound;

use super::STRING_TAG;
use crate::model::{
    index::has_empty_array,
    query::{Bytes, ConfigQuery, Field, Filter, Test},
    record::{Config, Entry},
    time::Timestamp,
};

/// Whether a query finds a record.
#[must_use]
pub fn finds(query: &ConfigQuery, config: &Config) -> bool {
    contains(config.key.as_str(), &query.page.search) && query.filters.iter().all(|f| holds(f, config))
}

/// Whether a key contains a text; `search` is in lower case.
pub(super) fn contains(key: &str, search: &str) -> bool {
    let (key, search) = (key.as_bytes(), search.as_bytes());
    search.is_empty() || key.windows(search.len()).any(|part| part.eq_ignore_ascii_case(search))
}

/// The entries of a config in a slot: they are sorted by slot.
pub(super) fn entries_of(config: &Config, slot: u16) -> &[Entry] {
    let from = config.entries.partition_point(|entry| entry.slot < slot);
    let rest = &config.entries[from..];
    &rest[..rest.partition_point(|entry| entry.slot == slot)]
}

/// Whether a record meets a filter.
pub(super) fn holds(filter: &Filter, config: &Config) -> bool {
    let time = |time: Timestamp| time.0.to_be_bytes();
    match filter.field {
        Field::Slot(slot) => {
            let entries = entries_of(config, slot);
            match &filter.test {
                Test::Exists(expected) => has_value(filter, entries, config) == *expected,
                Test::NoneOf(others) => {
                    has_value(filter, entries, config)
                        && !entries.iter().any(|entry| is_one_of(others, &entry.value))
                }
                Test::AnyOf(_) | Test::Ranges(_) | Test::Prefix(_) => {
                    entries.iter().any(|entry| accepts(&filter.test, &entry.value, STRING_TAG))
                }
            }
        }
        Field::Created => accepts(&filter.test, &time(config.created_at), &[]),
        Field::Modified => accepts(&filter.test, &time(config.modified_at), &[]),
        Field::Key => accepts(&filter.test, config.key.as_str().as_bytes(), &[]),
    }
}

/// Whether a record has a value where a filter asks for one. An empty array is one, and only the data tell of it.
fn has_value(filter: &Filter, entries: &[Entry], config: &Config) -> bool {
    let is_empty_array = |path: &Vec<String>| has_empty_array(&config.data, path);
    !entries.is_empty() || filter.empty_array_at.as_ref().is_some_and(is_empty_array)
}

/// Whether a value is one of these, which ascend.
fn is_one_of(values: &[Bytes], value: &[u8]) -> bool {
    values.binary_search_by(|other| (**other).cmp(value)).is_ok()
}

fn accepts(test: &Test, value: &[u8], tag: &[u8]) -> bool {
    match test {
        Test::AnyOf(values) => is_one_of(values, value),
        Test::NoneOf(values) => !is_one_of(values, value),
        Test::Ranges(ranges) => ranges.iter().any(|range| is_within(range, value)),
        Test::Prefix(text) => value.strip_prefix(tag).is_some_and(|rest| rest.starts_with(text.as_bytes())),
        Test::Exists(expected) => *expected,
    }
}

fn is_within((from, to): &(Bound<Bytes>, Bound<Bytes>), value: &[u8]) -> bool {
    let above = match from {
        Bound::Included(bound) => *value >= **bound,
        Bound::Excluded(bound) => *value > **bound,
        Bound::Unbounded => true,
    };
    above
        && match to {
            Bound::Included(bound) => *value <= **bound,
            Bound::Excluded(bound) => *value < **bound,
            Bound::Unbounded => true,
        }
}
