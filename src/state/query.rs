//! Lists: a page of the matching records in the requested order, and the exact number of all that match.
//!
//! Without filters a page is read from its position in an index. With filters the most selective one is looked up in its
//! index, and the others are tested on the records found; only when none can be looked up (`ne`, `exists=false`,
//! `search`), or the look-up would not be cheaper, are all records of the definition tested.
//!
//! **Invariant:** ties are broken by key, ascending in both directions; records without the sort field come last in
//! both; the pages of one state have neither gap nor overlap.

use std::{cmp::Ordering, ops::Bound, sync::Arc};

use super::{
    BySlot, ByTime, Collection, State,
    index::tree::{self, Tree},
};
use crate::model::{
    key::Key,
    query::{ConfigQuery, ConfigSort, DefinitionQuery, DefinitionSort, Field, Filter, Page, Test},
    record::{Config, Definition},
    time::Timestamp,
};

/// A page and the number of all records that match.
#[derive(Debug)]
pub struct QueryResult<T> {
    /// The records of the page.
    pub results: Vec<T>,
    /// The number of records of all pages.
    pub total: u64,
}

/// The cost of looking a config up by its key, in configs that a scan tests in the same time. A filter is looked up in
/// its index only when it selects at most one config in this many.
const LOOKUP_COST_CONFIGS: u64 = 4;
/// The tag of strings in `model::index`: a prefix matches strings only.
const STRING_TAG: &[u8] = &[0x40];

impl State {
    /// A page of definitions.
    #[must_use]
    pub fn list(&self, query: &DefinitionQuery) -> QueryResult<Arc<Definition>> {
        let page = &query.page;
        let matches = |definition: &Arc<Definition>| contains(definition.key.as_str(), &page.search);
        match query.sort {
            DefinitionSort::Key => page_of_index(&self.by_key, page, |item| &item.record.definition, matches),
            DefinitionSort::Created => page_of_index(&self.by_created, page, |item| &item.of, matches),
            DefinitionSort::Modified => page_of_index(&self.by_modified, page, |item| &item.of, matches),
        }
    }
}

/// Whether a query finds a record.
#[must_use]
pub fn finds(query: &ConfigQuery, config: &Config) -> bool {
    contains(config.key.as_str(), &query.page.search) && query.filters.iter().all(|f| holds(f, config))
}

/// Whether a key contains a text; `search` is in lower case.
fn contains(key: &str, search: &str) -> bool {
    search.is_empty() || key.to_ascii_lowercase().contains(search)
}

fn skip(page: &Page) -> u64 {
    (page.page - 1).saturating_mul(page.limit)
}

/// A page of an index; the whole index is tested when the page has a search text.
fn page_of_index<'a, T: tree::Item, R: Clone + 'a>(
    index: &'a Tree<T>,
    page: &Page,
    record: impl Fn(&'a T) -> &'a R,
    matches: impl Fn(&R) -> bool,
) -> QueryResult<R> {
    let (skip, limit) = (skip(page), page.limit);
    if page.search.is_empty() {
        let total = index.len();
        let results = if page.descending {
            index.back_from(total.saturating_sub(skip)).take(size(limit)).map(|i| record(i).clone()).collect()
        } else {
            index.from(skip).take(size(limit)).map(|item| record(item).clone()).collect()
        };
        return QueryResult { results, total };
    }
    if page.descending {
        scan(index.back_from(index.len()).map(record), skip, limit, matches)
    } else {
        scan(index.from(0).map(record), skip, limit, matches)
    }
}

fn size(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Tests every record, counts the matching ones and collects those of the page.
fn scan<'a, R: Clone + 'a>(
    records: impl Iterator<Item = &'a R>,
    skip: u64,
    limit: u64,
    matches: impl Fn(&R) -> bool,
) -> QueryResult<R> {
    let mut found = QueryResult { results: Vec::new(), total: 0 };
    for record in records.filter(|record| matches(record)) {
        if found.total >= skip && (found.results.len() as u64) < limit {
            found.results.push(record.clone());
        }
        found.total += 1;
    }
    found
}

impl Collection {
    /// A page of configs.
    #[must_use]
    pub fn list(&self, query: &ConfigQuery) -> QueryResult<Arc<Config>> {
        let page = &query.page;
        let matches = |config: &Arc<Config>| finds(query, config);
        if query.filters.is_empty() {
            return match query.sort {
                ConfigSort::Key => page_of_index(&self.by_key, page, |item| &item.record, matches),
                ConfigSort::Created => self.page_by_time(&self.indexes().by_created, page, matches),
                ConfigSort::Modified => self.page_by_time(&self.indexes().by_modified, page, matches),
                ConfigSort::Slot(slot) => self.by_slot(slot, page, matches),
            };
        }
        let candidates = match self.candidates(&query.filters) {
            Some(candidates) => candidates,
            None => self.configs().cloned().collect(),
        };
        let mut all: Vec<Arc<Config>> = candidates.into_iter().filter(matches).collect();
        Self::page_of(&mut all, query.sort, page)
    }

    fn page_by_time(
        &self,
        index: &Tree<ByTime<Key>>,
        page: &Page,
        matches: impl Fn(&Arc<Config>) -> bool,
    ) -> QueryResult<Arc<Config>> {
        page_of_index(index, page, |item| self.config_of(&item.of), matches)
    }

    /// Whether a page of the query is read from its position in an index, so that it costs the same at any depth.
    #[must_use]
    pub fn is_positional(&self, query: &ConfigQuery) -> bool {
        let is_complete = |slot: u16| {
            let index = self.index(slot);
            self.repeated(slot) == 0 && index.is_some_and(|index| index.len() == self.by_key.len())
        };
        query.filters.is_empty()
            && query.page.search.is_empty()
            && match query.sort {
                ConfigSort::Key | ConfigSort::Created | ConfigSort::Modified => true,
                ConfigSort::Slot(slot) => is_complete(slot),
            }
    }

    /// Sorts the candidates, removes duplicates and returns the page.
    fn page_of(all: &mut Vec<Arc<Config>>, sort: ConfigSort, page: &Page) -> QueryResult<Arc<Config>> {
        all.sort_unstable_by(|a, b| compare(a, b, sort, page.descending));
        // A config with an array may have been found by several elements.
        all.dedup_by(|a, b| a.key == b.key);
        let from = size(skip(page)).min(all.len());
        let to = from.saturating_add(size(page.limit)).min(all.len());
        QueryResult { results: all[from..to].to_vec(), total: all.len() as u64 }
    }

    /// A page sorted by a slot, without filters.
    fn by_slot(
        &self,
        slot: u16,
        page: &Page,
        matches: impl Fn(&Arc<Config>) -> bool,
    ) -> QueryResult<Arc<Config>> {
        let index = self.index(slot);
        // An array has several entries in the index, so positions in the index are not positions in the list.
        let is_plain = page.search.is_empty() && self.repeated(slot) == 0;
        let Some(index) = index.filter(|_| is_plain) else {
            let mut all: Vec<_> = self.configs().filter(|config| matches(config)).cloned().collect();
            return Self::page_of(&mut all, ConfigSort::Slot(slot), page);
        };
        let (skip, limit) = (skip(page), size(page.limit));
        let mut results: Vec<Arc<Config>> = if page.descending {
            Runs::new(index, skip).take(limit).map(|item| Arc::clone(self.config_of(&item.key))).collect()
        } else {
            index.from(skip).take(limit).map(|item| Arc::clone(self.config_of(&item.key))).collect()
        };
        if results.len() < limit && index.len() < self.by_key.len() {
            let skipped = size(skip.saturating_sub(index.len()));
            let without = self.configs().filter(|config| sort_value(config, slot).is_none());
            results.extend(without.skip(skipped).take(limit - results.len()).cloned());
        }
        QueryResult { results, total: self.by_key.len() }
    }

    /// The records that the most selective filter finds, perhaps more than once; `None` when a scan is needed or cheaper.
    fn candidates(&self, filters: &[Filter]) -> Option<Vec<Arc<Config>>> {
        let best = filters.iter().filter_map(|filter| self.ranges(filter)).min_by_key(Ranges::count)?;
        if best.count() > self.by_key.len() / LOOKUP_COST_CONFIGS {
            return None;
        }
        Some(match best {
            Ranges::Slot(index, ranges) => take(index, &ranges, |item| self.config_of(&item.key)),
            Ranges::Time(index, ranges) => take(index, &ranges, |item| self.config_of(&item.of)),
            Ranges::Key(ranges) => take(&self.by_key, &ranges, |item| &item.record),
        })
    }

    /// The ranges of an index that contain a filter's records; `None` when it can't be looked up.
    fn ranges(&self, filter: &Filter) -> Option<Ranges<'_>> {
        let spans = spans(filter)?;
        Some(match filter.field {
            Field::Slot(slot) => {
                let index = self.index(slot)?;
                Ranges::Slot(index, positions(index, &spans, |item, bound| item.value().cmp(bound)))
            }
            Field::Created => Ranges::of_time(&self.indexes().by_created, &spans),
            Field::Modified => Ranges::of_time(&self.indexes().by_modified, &spans),
            Field::Key => {
                Ranges::Key(positions(&self.by_key, &spans, |key, bound| key.as_str().as_bytes().cmp(bound)))
            }
        })
    }
}

/// Ranges of positions in one index, each with its exclusive end.
enum Ranges<'a> {
    Slot(&'a Tree<BySlot>, Vec<(u64, u64)>),
    Time(&'a Tree<ByTime<Key>>, Vec<(u64, u64)>),
    Key(Vec<(u64, u64)>),
}

impl<'a> Ranges<'a> {
    fn of_time(index: &'a Tree<ByTime<Key>>, spans: &[Span]) -> Self {
        Self::Time(
            index,
            positions(index, spans, |item, bound| item.at.0.to_be_bytes().as_slice().cmp(bound)),
        )
    }

    fn count(&self) -> u64 {
        let (Self::Slot(_, ranges) | Self::Time(_, ranges) | Self::Key(ranges)) = self;
        ranges.iter().map(|(from, to)| to - from).sum()
    }
}

fn take<'a, T: tree::Item, R: Clone + 'a>(
    index: &'a Tree<T>,
    ranges: &[(u64, u64)],
    record: impl Fn(&'a T) -> &'a R,
) -> Vec<R> {
    ranges
        .iter()
        .flat_map(|(from, to)| index.from(*from).take(size(to - from)))
        .map(|i| record(i).clone())
        .collect()
}

type Span = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The bounds of the values that a filter accepts; `None` when they have no bounds.
fn spans(filter: &Filter) -> Option<Vec<Span>> {
    let owned = |bound: &Bound<Box<[u8]>>| bound.as_ref().map(|bytes| bytes.to_vec());
    Some(match &filter.test {
        Test::AnyOf(values) => {
            values.iter().map(|v| (Bound::Included(v.to_vec()), Bound::Included(v.to_vec()))).collect()
        }
        Test::Range(from, to) => vec![(owned(from), owned(to))],
        Test::Prefix(text) => {
            let tag = if matches!(filter.field, Field::Slot(_)) { STRING_TAG } else { &[] };
            let from = [tag, text.as_bytes()].concat();
            // No UTF-8 text contains this byte, so this bound is above all texts with the prefix.
            let to = [&from[..], &[0xFF]].concat();
            vec![(Bound::Included(from), Bound::Excluded(to))]
        }
        Test::Exists(true) if matches!(filter.field, Field::Slot(_)) => {
            vec![(Bound::Unbounded, Bound::Unbounded)]
        }
        Test::Exists(_) | Test::NoneOf(_) => return None,
    })
}

/// The ranges of positions that spans of values have in an index.
fn positions<T: tree::Item>(
    index: &Tree<T>,
    spans: &[Span],
    compare: impl Fn(&T::Bound, &[u8]) -> Ordering,
) -> Vec<(u64, u64)> {
    let range = |span: &Span| {
        let from = match &span.0 {
            Bound::Included(bytes) => index.rank(|item| compare(item, bytes) == Ordering::Less),
            Bound::Excluded(bytes) => index.rank(|item| compare(item, bytes) != Ordering::Greater),
            Bound::Unbounded => 0,
        };
        let to = match &span.1 {
            Bound::Included(bytes) => index.rank(|item| compare(item, bytes) != Ordering::Greater),
            Bound::Excluded(bytes) => index.rank(|item| compare(item, bytes) == Ordering::Less),
            Bound::Unbounded => index.len(),
        };
        (from, to.max(from))
    };
    spans.iter().map(range).collect()
}

/// Whether a record meets a filter.
fn holds(filter: &Filter, config: &Config) -> bool {
    let time = |time: Timestamp| time.0.to_be_bytes();
    match filter.field {
        Field::Slot(slot) => {
            let values = || config.entries.iter().filter(|e| e.slot == slot).map(|entry| &*entry.value);
            match &filter.test {
                Test::Exists(expected) => values().next().is_some() == *expected,
                Test::NoneOf(others) => {
                    values().next().is_some() && !values().any(|value| others.iter().any(|o| **o == *value))
                }
                Test::AnyOf(_) | Test::Range(..) | Test::Prefix(_) => {
                    values().any(|value| accepts(&filter.test, value, STRING_TAG))
                }
            }
        }
        Field::Created => accepts(&filter.test, &time(config.created_at), &[]),
        Field::Modified => accepts(&filter.test, &time(config.modified_at), &[]),
        Field::Key => accepts(&filter.test, config.key.as_str().as_bytes(), &[]),
    }
}

fn accepts(test: &Test, value: &[u8], tag: &[u8]) -> bool {
    match test {
        Test::AnyOf(values) => values.iter().any(|other| **other == *value),
        Test::NoneOf(values) => !values.iter().any(|other| **other == *value),
        Test::Range(from, to) => {
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
        Test::Prefix(text) => value.strip_prefix(tag).is_some_and(|rest| rest.starts_with(text.as_bytes())),
        Test::Exists(expected) => *expected,
    }
}

/// The least value of a config in a slot: its sort value.
fn sort_value(config: &Config, slot: u16) -> Option<&[u8]> {
    config.entries.iter().find(|entry| entry.slot == slot).map(|entry| &*entry.value)
}

fn compare(a: &Config, b: &Config, sort: ConfigSort, descending: bool) -> Ordering {
    let directed = |order: Ordering| if descending { order.reverse() } else { order };
    let by_key = a.key.cmp(&b.key);
    match sort {
        ConfigSort::Key => directed(by_key),
        ConfigSort::Created => directed(a.created_at.cmp(&b.created_at)).then(by_key),
        ConfigSort::Modified => directed(a.modified_at.cmp(&b.modified_at)).then(by_key),
        ConfigSort::Slot(slot) => match (sort_value(a, slot), sort_value(b, slot)) {
            (Some(a), Some(b)) => directed(a.cmp(b)).then(by_key),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => by_key,
        },
    }
}

/// The items of a slot's index by descending value, equal ones by ascending key: one run of equal values after another.
struct Runs<'a> {
    index: &'a Tree<BySlot>,
    run: tree::Iter<'a, BySlot>,
    /// Remaining items of the run.
    left: u64,
    /// The position where the run begins; all items after the run were returned.
    begin: u64,
}

impl<'a> Runs<'a> {
    fn new(index: &'a Tree<BySlot>, skip: u64) -> Self {
        let mut runs = Self { index, run: index.from(u64::MAX), left: 0, begin: index.len() };
        if let Some(position) = index.len().checked_sub(skip.saturating_add(1)) {
            let (begin, end) = runs.around(position);
            // The same run contains the item in both directions; only its position within the run differs.
            let within = skip - (index.len() - end);
            runs.enter(begin, within, end);
        } else {
            runs.begin = 0;
        }
        runs
    }

    /// The run of the item at a position.
    fn around(&self, position: u64) -> (u64, u64) {
        let Some(item) = self.index.at(position) else { return (position, position) };
        let value = item.value();
        (self.index.rank(|other| other.value() < value), self.index.rank(|other| other.value() <= value))
    }

    fn enter(&mut self, begin: u64, within: u64, end: u64) {
        self.run = self.index.from(begin + within);
        self.left = end - begin - within;
        self.begin = begin;
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = &'a BySlot;

    fn next(&mut self) -> Option<&'a BySlot> {
        while self.left == 0 {
            let position = self.begin.checked_sub(1)?;
            let (begin, end) = self.around(position);
            self.enter(begin, 0, end);
        }
        self.left -= 1;
        self.run.next()
    }
}

#[cfg(test)]
mod tests;
