//! Whether one record meets the conditions of a query.
//!
//! **Invariant:** a test costs at most one binary search for each index entry of the record that it concerns, however
//! many values its filter names. If an empty array may be the only value, or a pattern has more values than are
//! indexed, the test also reads the data.

use std::ops::Bound;

use super::STRING_TAG;
use concord_model::{
    index::{PathStep, TOO_MANY, has_empty_array, values_at},
    query::{ConfigQuery, Filter, FilterField, FilterTest, FilterValue, Within},
    record::{Config, IndexEntry},
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
pub(super) fn entries_of(config: &Config, slot: u16) -> &[IndexEntry] {
    let from = config.entries.partition_point(|entry| entry.slot < slot);
    let rest = &config.entries[from..];
    &rest[..rest.partition_point(|entry| entry.slot == slot)]
}

/// Whether a record meets a filter.
pub(super) fn holds(filter: &Filter, config: &Config) -> bool {
    let time = |time: Timestamp| time.0.to_be_bytes();
    match filter.field {
        FilterField::Slot(slot) => {
            let entries = entries_of(config, slot);
            match &filter.within {
                None => holds_of(filter, entries.iter().map(|entry| &*entry.value), config),
                Some(within) if entries.first().is_some_and(|first| *first.value == *TOO_MANY) => {
                    holds_by_data(filter, within, config)
                }
                Some(within) => {
                    holds_of(filter, below(entries, &within.prefix).iter().map(|entry| &*entry.value), config)
                }
            }
        }
        FilterField::Created => accepts(&filter.test, &time(config.created_at), &[]),
        FilterField::Modified => accepts(&filter.test, &time(config.modified_at), &[]),
        FilterField::Key => accepts(&filter.test, config.key.as_str().as_bytes(), &[]),
    }
}

/// The entries that begin with a prefix. They are next to each other.
fn below<'e>(entries: &'e [IndexEntry], prefix: &[u8]) -> &'e [IndexEntry] {
    let from = entries.partition_point(|entry| &*entry.value < prefix);
    let rest = &entries[from..];
    &rest[..rest.partition_point(|entry| entry.value.starts_with(prefix))]
}

/// Whether a record with these values meets a filter.
fn holds_of<'v>(
    filter: &Filter,
    mut values: impl Iterator<Item = &'v [u8]> + Clone,
    config: &Config,
) -> bool {
    // An empty array is a value without an entry: only the data show it.
    let is_empty_array = |path: &Vec<PathStep>| has_empty_array(&config.data, path);
    let has_any = |values: &mut dyn Iterator<Item = &'v [u8]>| {
        values.next().is_some() || filter.empty_array_at.as_ref().is_some_and(is_empty_array)
    };
    match &filter.test {
        FilterTest::Exists(expected) => has_any(&mut values) == *expected,
        FilterTest::NoneOf(others) => {
            has_any(&mut values.clone()) && !values.any(|value| is_one_of(others, value))
        }
        FilterTest::AnyOf(_) | FilterTest::Ranges(_) | FilterTest::Prefix(_) => {
            values.any(|value| accepts(&filter.test, value, STRING_TAG))
        }
    }
}

/// The same for a record that has more values than are indexed.
fn holds_by_data(filter: &Filter, within: &Within, config: &Config) -> bool {
    // Stored data were parsed when they were written.
    let data = serde_json::from_str(&config.data).unwrap_or_default();
    let (values, _) = values_at(&within.steps, &within.prefix, &data);
    holds_of(filter, values.iter().map(|value| &**value), config)
}

/// Whether a value is one of these, which ascend.
fn is_one_of(values: &[FilterValue], value: &[u8]) -> bool {
    values.binary_search_by(|other| (**other).cmp(value)).is_ok()
}

fn accepts(test: &FilterTest, value: &[u8], tag: &[u8]) -> bool {
    match test {
        FilterTest::AnyOf(values) => is_one_of(values, value),
        FilterTest::NoneOf(values) => !is_one_of(values, value),
        FilterTest::Ranges(ranges) => ranges.iter().any(|range| is_within(range, value)),
        FilterTest::Prefix(text) => {
            value.strip_prefix(tag).is_some_and(|rest| rest.starts_with(text.as_bytes()))
        }
        FilterTest::Exists(expected) => *expected,
    }
}

fn is_within((from, to): &(Bound<FilterValue>, Bound<FilterValue>), value: &[u8]) -> bool {
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
