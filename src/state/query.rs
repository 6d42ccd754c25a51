//! Lists: a page of the records that match, in the asked order, and the exact number of all that match.
//!
//! Without conditions a page is a walk from the root of an order to its place and along it. With conditions the
//! one that the fewest records meet is looked up in its order, and the rest is tested on those; only where none can
//! be looked up (`ne`, `exists=false`, `search`) are all records of the definition tested.
//!
//! **Invariant:** ties are broken by key, ascending in both directions; records without the sort field come last in
//! both; the pages of one state meet without gap or overlap.

use std::{cmp::Ordering, ops::Bound, sync::Arc};

use super::{BySlot, ByTime, Collection, State, index::tree::Tree};
use crate::model::{
    key::Key,
    query::{ConfigQuery, ConfigSort, DefinitionQuery, DefinitionSort, Field, Filter, Page, Test},
    record::{Config, Definition},
};

/// A page and the number of all records that match.
#[derive(Debug)]
pub struct Found<T> {
    /// The records of the page.
    pub results: Vec<T>,
    /// How many there are on all pages.
    pub total: u64,
}

/// A config that an order names is looked up by its key, at the cost of some steps along all configs: a condition that
/// more than one in so many meet is tested on all instead.
const LOOKUPS_PAY: u64 = 4;
/// Tag of strings in `model::index`: a prefix looks at strings alone.
const STRING: &[u8] = &[0x40];

impl State {
    /// A page of definitions.
    #[must_use]
    pub fn list(&self, query: &DefinitionQuery) -> Found<Arc<Definition>> {
        let page = &query.page;
        let matches = |definition: &Arc<Definition>| contains(definition.key.as_str(), &page.search);
        match query.sort {
            DefinitionSort::Key => walk(&self.by_key, page, |item| &item.record.definition, matches),
            DefinitionSort::Created => walk(&self.by_created, page, |item| &item.of, matches),
            DefinitionSort::Modified => walk(&self.by_modified, page, |item| &item.of, matches),
        }
    }
}

/// Whether a record is one of those that a query finds.
#[must_use]
pub fn finds(query: &ConfigQuery, config: &Config) -> bool {
    contains(config.key.as_str(), &query.page.search) && query.filters.iter().all(|f| holds(f, config))
}

/// `search` is in lower case already.
fn contains(key: &str, search: &str) -> bool {
    search.is_empty() || key.to_ascii_lowercase().contains(search)
}

fn skip(page: &Page) -> u64 {
    (page.page - 1).saturating_mul(page.limit)
}

/// A page of an order; all of it is tested when there is something to search for.
fn walk<'a, T: super::index::tree::Item, R: Clone + 'a>(
    order: &'a Tree<T>,
    page: &Page,
    record: impl Fn(&'a T) -> &'a R,
    matches: impl Fn(&R) -> bool,
) -> Found<R> {
    let (skip, limit) = (skip(page), page.limit);
    if page.search.is_empty() {
        let total = order.len();
        let results = if page.descending {
            order.back_from(total.saturating_sub(skip)).take(size(limit)).map(|i| record(i).clone()).collect()
        } else {
            order.from(skip).take(size(limit)).map(|item| record(item).clone()).collect()
        };
        return Found { results, total };
    }
    if page.descending {
        sift(order.back_from(order.len()).map(record), skip, limit, matches)
    } else {
        sift(order.from(0).map(record), skip, limit, matches)
    }
}

fn size(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Tests every record, counts those that match and keeps those of the page.
fn sift<'a, R: Clone + 'a>(
    records: impl Iterator<Item = &'a R>,
    skip: u64,
    limit: u64,
    matches: impl Fn(&R) -> bool,
) -> Found<R> {
    let mut found = Found { results: Vec::new(), total: 0 };
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
    pub fn list(&self, query: &ConfigQuery) -> Found<Arc<Config>> {
        let page = &query.page;
        let matches = |config: &Arc<Config>| finds(query, config);
        if query.filters.is_empty() {
            return match query.sort {
                ConfigSort::Key => walk(&self.by_key, page, |item| &item.record, matches),
                ConfigSort::Created => self.walk_time(&self.orders().by_created, page, matches),
                ConfigSort::Modified => self.walk_time(&self.orders().by_modified, page, matches),
                ConfigSort::Slot(slot) => self.by_slot(slot, page, matches),
            };
        }
        let candidates = match self.candidates(&query.filters) {
            Some(few) => few,
            None => self.configs().cloned().collect(),
        };
        let mut all: Vec<Arc<Config>> = candidates.into_iter().filter(matches).collect();
        Self::page_of(&mut all, query.sort, page)
    }

    fn walk_time(
        &self,
        order: &Tree<ByTime<Key>>,
        page: &Page,
        matches: impl Fn(&Arc<Config>) -> bool,
    ) -> Found<Arc<Config>> {
        walk(order, page, |item| self.named(&item.of), matches)
    }

    /// Whether a page of the query is a walk from its place in an order, so that it costs the same at any depth.
    #[must_use]
    pub fn is_walked(&self, query: &ConfigQuery) -> bool {
        let is_whole = |slot: u16| {
            let order = self.order(slot);
            self.repeated(slot) == 0 && order.is_some_and(|order| order.len() == self.by_key.len())
        };
        query.filters.is_empty()
            && query.page.search.is_empty()
            && match query.sort {
                ConfigSort::Key | ConfigSort::Created | ConfigSort::Modified => true,
                ConfigSort::Slot(slot) => is_whole(slot),
            }
    }

    /// Sorts what was gathered, once each, and cuts the page out.
    fn page_of(all: &mut Vec<Arc<Config>>, sort: ConfigSort, page: &Page) -> Found<Arc<Config>> {
        all.sort_unstable_by(|a, b| compare(a, b, sort, page.descending));
        // An array may have been found by several of its elements.
        all.dedup_by(|a, b| a.key == b.key);
        let from = size(skip(page)).min(all.len());
        let to = from.saturating_add(size(page.limit)).min(all.len());
        Found { results: all[from..to].to_vec(), total: all.len() as u64 }
    }

    /// A page in the order of a slot, without conditions.
    fn by_slot(&self, slot: u16, page: &Page, matches: impl Fn(&Arc<Config>) -> bool) -> Found<Arc<Config>> {
        let order = self.order(slot);
        // Arrays stand in the order by each element, then the places of the order are not those of the list.
        let is_plain = page.search.is_empty() && self.repeated(slot) == 0;
        let Some(order) = order.filter(|_| is_plain) else {
            let mut all: Vec<_> = self.configs().filter(|config| matches(config)).cloned().collect();
            return Self::page_of(&mut all, ConfigSort::Slot(slot), page);
        };
        let (skip, limit) = (skip(page), size(page.limit));
        let mut results: Vec<Arc<Config>> = if page.descending {
            Runs::new(order, skip).take(limit).map(|item| Arc::clone(self.named(&item.key))).collect()
        } else {
            order.from(skip).take(limit).map(|item| Arc::clone(self.named(&item.key))).collect()
        };
        if results.len() < limit && order.len() < self.by_key.len() {
            let passed = size(skip.saturating_sub(order.len()));
            let without = self.configs().filter(|config| first_of(config, slot).is_none());
            results.extend(without.skip(passed).take(limit - results.len()).cloned());
        }
        Found { results, total: self.by_key.len() }
    }

    /// The records that the most selective condition finds, perhaps more than once; `None` when no condition can be
    /// looked up.
    fn candidates(&self, filters: &[Filter]) -> Option<Vec<Arc<Config>>> {
        let best = filters.iter().filter_map(|filter| self.ranges(filter)).min_by_key(Ranges::count)?;
        if best.count() > self.by_key.len() / LOOKUPS_PAY {
            return None;
        }
        Some(match best {
            Ranges::Slot(order, ranges) => take(order, &ranges, |item| self.named(&item.key)),
            Ranges::Time(order, ranges) => take(order, &ranges, |item| self.named(&item.of)),
            Ranges::Key(ranges) => take(&self.by_key, &ranges, |item| &item.record),
        })
    }

    /// The places of the order in which a condition can be looked up.
    fn ranges(&self, filter: &Filter) -> Option<Ranges<'_>> {
        let spans = spans(filter)?;
        Some(match filter.field {
            Field::Slot(slot) => {
                let order = self.order(slot)?;
                Ranges::Slot(order, places(order, &spans, |item, bound| item.value().cmp(bound)))
            }
            Field::Created => Ranges::of_time(&self.orders().by_created, &spans),
            Field::Modified => Ranges::of_time(&self.orders().by_modified, &spans),
            Field::Key => {
                Ranges::Key(places(&self.by_key, &spans, |key, bound| key.as_str().as_bytes().cmp(bound)))
            }
        })
    }
}

/// Places of one order, each range from the first to behind the last.
enum Ranges<'a> {
    Slot(&'a Tree<BySlot>, Vec<(u64, u64)>),
    Time(&'a Tree<ByTime<Key>>, Vec<(u64, u64)>),
    Key(Vec<(u64, u64)>),
}

impl<'a> Ranges<'a> {
    fn of_time(order: &'a Tree<ByTime<Key>>, spans: &[Span]) -> Self {
        Self::Time(order, places(order, spans, |item, bound| item.at.0.to_be_bytes().as_slice().cmp(bound)))
    }

    fn count(&self) -> u64 {
        let (Self::Slot(_, ranges) | Self::Time(_, ranges) | Self::Key(ranges)) = self;
        ranges.iter().map(|(from, to)| to - from).sum()
    }
}

fn take<'a, T: super::index::tree::Item, R: Clone + 'a>(
    order: &'a Tree<T>,
    ranges: &[(u64, u64)],
    record: impl Fn(&'a T) -> &'a R,
) -> Vec<R> {
    ranges
        .iter()
        .flat_map(|(from, to)| order.from(*from).take(size(to - from)))
        .map(|i| record(i).clone())
        .collect()
}

type Span = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The bounds of the values that a condition takes; `None` when they have none.
fn spans(filter: &Filter) -> Option<Vec<Span>> {
    let owned = |bound: &Bound<Box<[u8]>>| bound.as_ref().map(|bytes| bytes.to_vec());
    Some(match &filter.test {
        Test::AnyOf(values) => {
            values.iter().map(|v| (Bound::Included(v.to_vec()), Bound::Included(v.to_vec()))).collect()
        }
        Test::Range(from, to) => vec![(owned(from), owned(to))],
        Test::Prefix(text) => {
            let tag = if matches!(filter.field, Field::Slot(_)) { STRING } else { &[] };
            let from = [tag, text.as_bytes()].concat();
            // No UTF-8 text holds this byte, so this lies behind all that begin so.
            let to = [&from[..], &[0xFF]].concat();
            vec![(Bound::Included(from), Bound::Excluded(to))]
        }
        Test::Exists(true) if matches!(filter.field, Field::Slot(_)) => {
            vec![(Bound::Unbounded, Bound::Unbounded)]
        }
        Test::Exists(_) | Test::NoneOf(_) => return None,
    })
}

fn places<T: super::index::tree::Item>(
    order: &Tree<T>,
    spans: &[Span],
    compare: impl Fn(&T::Bound, &[u8]) -> Ordering,
) -> Vec<(u64, u64)> {
    let place = |span: &Span| {
        let from = match &span.0 {
            Bound::Included(bytes) => order.rank(|item| compare(item, bytes) == Ordering::Less),
            Bound::Excluded(bytes) => order.rank(|item| compare(item, bytes) != Ordering::Greater),
            Bound::Unbounded => 0,
        };
        let to = match &span.1 {
            Bound::Included(bytes) => order.rank(|item| compare(item, bytes) != Ordering::Greater),
            Bound::Excluded(bytes) => order.rank(|item| compare(item, bytes) == Ordering::Less),
            Bound::Unbounded => order.len(),
        };
        (from, to.max(from))
    };
    spans.iter().map(place).collect()
}

/// Whether a condition holds of a record.
fn holds(filter: &Filter, config: &Config) -> bool {
    let time = |time: crate::model::time::Timestamp| time.0.to_be_bytes();
    match filter.field {
        Field::Slot(slot) => {
            let values = || config.entries.iter().filter(|e| e.slot == slot).map(|entry| &*entry.value);
            match &filter.test {
                Test::Exists(there) => values().next().is_some() == *there,
                Test::NoneOf(others) => {
                    values().next().is_some() && !values().any(|value| others.iter().any(|o| **o == *value))
                }
                Test::AnyOf(_) | Test::Range(..) | Test::Prefix(_) => {
                    values().any(|value| takes(&filter.test, value, STRING))
                }
            }
        }
        Field::Created => takes(&filter.test, &time(config.created_at), &[]),
        Field::Modified => takes(&filter.test, &time(config.modified_at), &[]),
        Field::Key => takes(&filter.test, config.key.as_str().as_bytes(), &[]),
    }
}

fn takes(test: &Test, value: &[u8], tag: &[u8]) -> bool {
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
        Test::Exists(there) => *there,
    }
}

/// The least value of a config in a slot: what it is sorted by.
fn first_of(config: &Config, slot: u16) -> Option<&[u8]> {
    config.entries.iter().find(|entry| entry.slot == slot).map(|entry| &*entry.value)
}

fn compare(a: &Config, b: &Config, sort: ConfigSort, descending: bool) -> Ordering {
    let turn = |order: Ordering| if descending { order.reverse() } else { order };
    let by_key = a.key.cmp(&b.key);
    match sort {
        ConfigSort::Key => turn(by_key),
        ConfigSort::Created => turn(a.created_at.cmp(&b.created_at)).then(by_key),
        ConfigSort::Modified => turn(a.modified_at.cmp(&b.modified_at)).then(by_key),
        ConfigSort::Slot(slot) => match (first_of(a, slot), first_of(b, slot)) {
            (Some(a), Some(b)) => turn(a.cmp(b)).then(by_key),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => by_key,
        },
    }
}

/// The records of a slot by descending value, equal ones by ascending key: run after run of equal values.
struct Runs<'a> {
    order: &'a Tree<BySlot>,
    run: super::index::tree::Iter<'a, BySlot>,
    /// Records of the run that are still to come.
    left: u64,
    /// The place where the run begins; everything behind it has been passed.
    begin: u64,
}

impl<'a> Runs<'a> {
    fn new(order: &'a Tree<BySlot>, skip: u64) -> Self {
        let mut runs = Self { order, run: order.from(u64::MAX), left: 0, begin: order.len() };
        if let Some(place) = order.len().checked_sub(skip.saturating_add(1)) {
            let (begin, end) = runs.around(place);
            // The same run holds the record in both directions, only its place within the run is another.
            let within = skip - (order.len() - end);
            runs.enter(begin, within, end);
        } else {
            runs.begin = 0;
        }
        runs
    }

    /// The run of the record at a place.
    fn around(&self, place: u64) -> (u64, u64) {
        let Some(item) = self.order.at(place) else { return (place, place) };
        let value = item.value();
        (self.order.rank(|other| other.value() < value), self.order.rank(|other| other.value() <= value))
    }

    fn enter(&mut self, begin: u64, within: u64, end: u64) {
        self.run = self.order.from(begin + within);
        self.left = end - begin - within;
        self.begin = begin;
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = &'a BySlot;

    fn next(&mut self) -> Option<&'a BySlot> {
        while self.left == 0 {
            let place = self.begin.checked_sub(1)?;
            let (begin, end) = self.around(place);
            self.enter(begin, 0, end);
        }
        self.left -= 1;
        self.run.next()
    }
}

#[cfg(test)]
mod tests;
