//! Lists: a page of the matching records in the requested order, and the exact number of all that match.
//!
//! Without filters a page is read from its position in an index. With filters the most selective one is looked up in
//! its index, and the others are tested on the records found; only when none can be looked up (`ne`, `exists=false`,
//! `search`), or the look-up would not be cheaper, are all records of the definition tested.
//!
//! What a list costs is known before it is run ([`QueryPlan`]). The caller of a long one passes a function that returns
//! true when its result is no longer needed.
//!
//! | file | what it does |
//! |---|---|
//! | this one | finds where the matching records are, and what it costs to test them |
//! | `matching` | tests one record |
//! | `rows` | keeps the rows of the page |
//! | `definitions` | lists of definitions |
//! | `across` | lists of the configs of several definitions |
//!
//! **Invariant:** ties are broken by key, ascending in both directions; records without the sort field come last in
//! both; the pages of one state have neither gap nor overlap.

mod across;
mod definitions;
mod matching;
mod rows;

use std::{cmp::Ordering, collections::BTreeSet, ops::Bound, sync::Arc};

use super::{
    BySlot, ByTime, Collection, State,
    index::tree::{self, Tree},
};
pub use across::{AcrossPlan, AcrossRecord};
use concord_model::{
    index::TOO_MANY,
    key::Key,
    query::{ConfigQuery, ConfigSort, Filter, FilterField, FilterTest, Page, Within},
    record::Config,
};
use matching::contains;
pub use matching::finds;
use rows::{CancelCheck, FirstRows, sort_value};

/// A page and the number of all records that match.
#[derive(Debug)]
pub struct QueryResult<T> {
    /// The records of the page.
    pub results: Vec<T>,
    /// The number of records of all pages.
    pub total: u64,
}
/// The cost of looking a config up by its key, in configs that a scan tests: a filter is looked up in its index only
/// when it selects at most one config in this many.
const LOOKUP_COST_CONFIGS: u64 = 4;
/// The cost of reading a config's data of a kilobyte, in tests of a filter on one value.
const DATA_READ_COST_TESTS: u64 = 16;
/// The cost of reading the values of a pattern from a config's data, in tests of a filter on one value.
const MARKED_COST_TESTS: u64 = 20_000;
/// Bytes of data that are read in the time of one step.
const DATA_BYTES_PER_STEP: usize = 256;
/// The tag of strings in `model::index`: a prefix matches strings only.
const STRING_TAG: &[u8] = &[0x40];

/// Work that is never given up.
const NEVER_OVER: &str = "work that is needed to its end has a result";

fn skip(page: &Page) -> u64 {
    (page.page - 1).saturating_mul(page.limit)
}

/// A page of an index; the whole index is tested when the page has a search text.
fn page_of_index<'a, T: tree::Item, R: Clone + 'a>(
    index: &'a Tree<T>,
    page: &Page,
    record: impl Fn(&'a T) -> &'a R,
    matches: impl Fn(&R) -> bool,
    steps: &mut CancelCheck<'_>,
) -> Option<QueryResult<R>> {
    let (skip, limit) = (skip(page), page.limit);
    if page.search.is_empty() {
        let total = index.len();
        let results = if page.descending {
            index.back_from(total.saturating_sub(skip)).take(size(limit)).map(|i| record(i).clone()).collect()
        } else {
            index.from(skip).take(size(limit)).map(|item| record(item).clone()).collect()
        };
        return Some(QueryResult { results, total });
    }
    if page.descending {
        scan(index.back_from(index.len()).map(record), skip, limit, matches, steps)
    } else {
        scan(index.from(0).map(record), skip, limit, matches, steps)
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
    steps: &mut CancelCheck<'_>,
) -> Option<QueryResult<R>> {
    let mut found = QueryResult { results: Vec::new(), total: 0 };
    for record in records {
        steps.take(1)?;
        if !matches(record) {
            continue;
        }
        if found.total >= skip && (found.results.len() as u64) < limit {
            found.results.push(record.clone());
        }
        found.total += 1;
    }
    Some(found)
}

/// How a list of configs is answered.
#[derive(Debug)]
pub struct QueryPlan<'a> {
    collection: &'a Collection,
    query: &'a ConfigQuery,
    source: PlanSource<'a>,
    price: u64,
}

/// Where a plan finds the configs of a list.
#[derive(Debug)]
enum PlanSource<'a> {
    /// At their places in the index by which they are sorted.
    Index,
    /// In the ranges of an index; a config may be there more than once.
    Ranges(Ranges<'a>),
    /// All configs are tested.
    All,
}

impl QueryPlan<'_> {
    /// About how many tests of one filter on one value, and rows of a page, the answer takes: some hundred nanoseconds
    /// each.
    #[must_use]
    pub fn price(&self) -> u64 {
        self.price
    }

    /// The page; `None` when `is_over` has returned true.
    #[must_use]
    pub fn run(&self, is_over: &dyn Fn() -> bool) -> Option<QueryResult<Arc<Config>>> {
        let steps = &mut CancelCheck::new(is_over);
        let (collection, query) = (self.collection, self.query);
        match &self.source {
            PlanSource::Index => collection.page_by_index(query, steps),
            PlanSource::All => collection.page_of(collection.configs(), query, steps),
            PlanSource::Ranges(Ranges::Key(ranges)) => {
                let found = in_ranges(&collection.by_key, ranges);
                collection.page_of(found.map(|item| &item.record), query, steps)
            }
            PlanSource::Ranges(Ranges::Time(index, ranges)) => {
                let found = in_ranges(index, ranges);
                collection.page_of(found.map(|item| collection.config_of(&item.of)), query, steps)
            }
            PlanSource::Ranges(Ranges::Slot { index, ranges, has_arrays }) => {
                let found = in_ranges(index, ranges).map(|item| collection.config_of(&item.key));
                if !has_arrays {
                    return collection.page_of(found, query, steps);
                }
                // A config with an array may be found by several elements.
                let mut seen = BTreeSet::new();
                collection.page_of(found.filter(|config| seen.insert(Arc::as_ptr(config))), query, steps)
            }
        }
    }
}

impl Collection {
    /// A page of configs.
    #[must_use]
    pub fn list(&self, query: &ConfigQuery) -> QueryResult<Arc<Config>> {
        self.plan(query).run(&|| false).expect(NEVER_OVER)
    }

    /// How a page of configs is found, and what that costs.
    #[must_use]
    pub fn plan<'a>(&'a self, query: &'a ConfigQuery) -> QueryPlan<'a> {
        let all = self.by_key.len();
        let rows = query.page.limit.min(all);
        if query.filters.is_empty() {
            let price = if query.page.search.is_empty() { self.rows_price(query) } else { all };
            return QueryPlan {
                collection: self,
                query,
                source: PlanSource::Index,
                price: price.saturating_add(rows),
            };
        }
        let best = self.candidates(&query.filters);
        let tested = best.as_ref().map_or(all, Ranges::count);
        // A config is tested by each filter, and an array by each of its elements.
        let weight = |filter: &Filter| match filter.field {
            FilterField::Slot(_) if filter.empty_array_at.is_some() => DATA_READ_COST_TESTS,
            FilterField::Slot(slot) => self.index(slot).map_or(1, |index| 1 + index.len() / all.max(1)),
            FilterField::Created | FilterField::Modified | FilterField::Key => 1,
        };
        let weights = query.filters.iter().map(weight).fold(0, u64::saturating_add);
        let marked = query.filters.iter().map(|filter| self.marked(filter)).fold(0, u64::saturating_add);
        let price = tested.saturating_mul(weights).saturating_add(rows);
        let price = price.saturating_add(marked.saturating_mul(MARKED_COST_TESTS));
        QueryPlan { collection: self, query, source: best.map_or(PlanSource::All, PlanSource::Ranges), price }
    }

    /// The configs that have more values of a filter's pattern than are indexed: they are tested by their data.
    fn marked(&self, filter: &Filter) -> u64 {
        let (FilterField::Slot(slot), Some(_)) = (filter.field, &filter.within) else { return 0 };
        let Some(index) = self.index(slot) else { return 0 };
        let mark = positions(index, &[only(TOO_MANY)], |item, bound| item.value().cmp(bound));
        mark.iter().map(|(from, to)| to - from).sum()
    }

    /// The price of the rows of a page that is read from an index.
    fn rows_price(&self, query: &ConfigQuery) -> u64 {
        let ConfigSort::Slot(slot) = query.sort else { return 0 };
        let indexed = self.index(slot).map_or(0, Tree::len);
        let is_within = skip(&query.page).saturating_add(query.page.limit) <= indexed;
        // Configs without a value are in no index, and those with an array are there more than once.
        if self.repeated(slot) == 0 && is_within { 0 } else { self.by_key.len() }
    }

    /// A page without filters.
    fn page_by_index(
        &self,
        query: &ConfigQuery,
        steps: &mut CancelCheck<'_>,
    ) -> Option<QueryResult<Arc<Config>>> {
        let page = &query.page;
        let matches = |config: &Arc<Config>| finds(query, config);
        match query.sort {
            ConfigSort::Key => page_of_index(&self.by_key, page, |item| &item.record, matches, steps),
            ConfigSort::Created => self.page_by_time(&self.indexes().by_created, page, matches, steps),
            ConfigSort::Modified => self.page_by_time(&self.indexes().by_modified, page, matches, steps),
            ConfigSort::Slot(slot) => self.by_slot(slot, query, steps),
        }
    }

    /// The page of those of the records that match.
    fn page_of<'a>(
        &self,
        records: impl Iterator<Item = &'a Arc<Config>>,
        query: &ConfigQuery,
        steps: &mut CancelCheck<'_>,
    ) -> Option<QueryResult<Arc<Config>>> {
        let from = size(skip(&query.page));
        let mut rows =
            FirstRows::new(from.saturating_add(size(query.page.limit)), query.sort, query.page.descending);
        let reads_data =
            query.filters.iter().any(|filter| filter.empty_array_at.is_some() || filter.within.is_some());
        for config in records {
            let read = if reads_data { config.data.len() / DATA_BYTES_PER_STEP } else { 0 };
            steps.take(1 + config.entries.len() * query.filters.len() / 4 + read)?;
            if finds(query, config) {
                rows.add(config);
            }
        }
        Some(rows.finish(from))
    }

    fn page_by_time(
        &self,
        index: &Tree<ByTime<Key>>,
        page: &Page,
        matches: impl Fn(&Arc<Config>) -> bool,
        steps: &mut CancelCheck<'_>,
    ) -> Option<QueryResult<Arc<Config>>> {
        page_of_index(index, page, |item| self.config_of(&item.of), matches, steps)
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

    /// A page sorted by a slot, without filters.
    fn by_slot(
        &self,
        slot: u16,
        query: &ConfigQuery,
        steps: &mut CancelCheck<'_>,
    ) -> Option<QueryResult<Arc<Config>>> {
        let (index, page) = (self.index(slot), &query.page);
        // An array has several entries in the index, so positions in the index are not positions in the list.
        let is_plain = page.search.is_empty() && self.repeated(slot) == 0;
        let Some(index) = index.filter(|_| is_plain) else {
            return self.page_of(self.configs(), query, steps);
        };
        let (skip, limit) = (skip(page), size(page.limit));
        let mut results: Vec<Arc<Config>> = if page.descending {
            Runs::new(index, skip).take(limit).map(|item| Arc::clone(self.config_of(&item.key))).collect()
        } else {
            index.from(skip).take(limit).map(|item| Arc::clone(self.config_of(&item.key))).collect()
        };
        if results.len() < limit && index.len() < self.by_key.len() {
            let skipped = size(skip.saturating_sub(index.len()));
            let mut without = 0;
            for config in self.configs() {
                steps.take(1)?;
                if sort_value(config, slot).is_some() {
                    continue;
                }
                without += 1;
                if without > skipped {
                    results.push(Arc::clone(config));
                }
                if results.len() == limit {
                    break;
                }
            }
        }
        Some(QueryResult { results, total: self.by_key.len() })
    }

    /// Where the most selective filter finds its records; `None` when a scan is needed or cheaper.
    fn candidates(&self, filters: &[Filter]) -> Option<Ranges<'_>> {
        let best = filters.iter().filter_map(|filter| self.ranges(filter)).min_by_key(Ranges::count)?;
        (best.count() <= self.by_key.len() / LOOKUP_COST_CONFIGS).then_some(best)
    }

    /// The ranges of an index that contain a filter's records; `None` when it can't be looked up.
    fn ranges(&self, filter: &Filter) -> Option<Ranges<'_>> {
        let spans = spans(filter)?;
        Some(match filter.field {
            FilterField::Slot(slot) => {
                let index = self.index(slot)?;
                let ranges = positions(index, &spans, |item, bound| item.value().cmp(bound));
                // A config has each value once, and the mark of too many values is its only entry.
                let is_one =
                    |span: &&ValueRange| !is_one_value(span) || span.0 != Bound::Included(TOO_MANY.to_vec());
                let values: Vec<&ValueRange> = spans.iter().filter(is_one).collect();
                let is_once = values.len() == 1 && values.iter().all(|span| is_one_value(span));
                Ranges::Slot { index, ranges, has_arrays: self.repeated(slot) > 0 && !is_once }
            }
            FilterField::Created => Ranges::of_time(&self.indexes().by_created, &spans),
            FilterField::Modified => Ranges::of_time(&self.indexes().by_modified, &spans),
            FilterField::Key => {
                Ranges::Key(positions(&self.by_key, &spans, |key, bound| key.as_str().as_bytes().cmp(bound)))
            }
        })
    }
}

/// Ranges of positions in one index, each with its exclusive end; none overlaps another.
#[derive(Debug)]
enum Ranges<'a> {
    Slot {
        index: &'a Tree<BySlot>,
        ranges: Vec<(u64, u64)>,
        /// A config may have several entries in the index.
        has_arrays: bool,
    },
    Time(&'a Tree<ByTime<Key>>, Vec<(u64, u64)>),
    Key(Vec<(u64, u64)>),
}

impl<'a> Ranges<'a> {
    fn of_time(index: &'a Tree<ByTime<Key>>, spans: &[ValueRange]) -> Self {
        Self::Time(
            index,
            positions(index, spans, |item, bound| item.at.0.to_be_bytes().as_slice().cmp(bound)),
        )
    }

    fn count(&self) -> u64 {
        let (Self::Slot { ranges, .. } | Self::Time(_, ranges) | Self::Key(ranges)) = self;
        ranges.iter().map(|(from, to)| to - from).sum()
    }
}

fn in_ranges<'a, T: tree::Item>(index: &'a Tree<T>, ranges: &'a [(u64, u64)]) -> impl Iterator<Item = &'a T> {
    ranges.iter().flat_map(|(from, to)| index.from(*from).take(size(to - from)))
}

/// The ranges of positions that spans of values have in an index.
fn positions<T: tree::Item>(
    index: &Tree<T>,
    spans: &[ValueRange],
    compare: impl Fn(&T::Bound, &[u8]) -> Ordering,
) -> Vec<(u64, u64)> {
    let range = |span: &ValueRange| {
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

type ValueRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The bounds of the values that a filter accepts; `None` when they have no bounds.
fn spans(filter: &Filter) -> Option<Vec<ValueRange>> {
    let mut spans = spans_of_values(filter)?;
    // What has more values than are indexed is among the candidates of every test.
    spans.extend(filter.within.iter().map(|_| only(TOO_MANY)));
    Some(spans)
}

fn only(value: &[u8]) -> ValueRange {
    (Bound::Included(value.to_vec()), Bound::Included(value.to_vec()))
}

fn is_one_value((from, to): &ValueRange) -> bool {
    matches!((from, to), (Bound::Included(from), Bound::Included(to)) if from == to)
}

fn spans_of_values(filter: &Filter) -> Option<Vec<ValueRange>> {
    let owned = |bound: &Bound<Box<[u8]>>| bound.as_ref().map(|bytes| bytes.to_vec());
    Some(match &filter.test {
        FilterTest::AnyOf(values) => values.iter().map(|value| only(value)).collect(),
        FilterTest::Ranges(ranges) => ranges.iter().map(|(from, to)| (owned(from), owned(to))).collect(),
        FilterTest::Prefix(text) => {
            let tag = if matches!(filter.field, FilterField::Slot(_)) { STRING_TAG } else { &[] };
            let from = [tag, text.as_bytes()].concat();
            // No UTF-8 text contains this byte, so this bound is above all texts with the prefix.
            let to = [&from[..], &[0xFF]].concat();
            vec![(Bound::Included(from), Bound::Excluded(to))]
        }
        // An empty array has a value and no entry.
        FilterTest::Exists(true)
            if matches!(filter.field, FilterField::Slot(_)) && filter.empty_array_at.is_none() =>
        {
            match &filter.within {
                None => vec![(Bound::Unbounded, Bound::Unbounded)],
                // No value begins with this byte.
                Some(Within { prefix, .. }) => {
                    vec![(Bound::Included(prefix.to_vec()), Bound::Excluded([&prefix[..], &[0xFF]].concat()))]
                }
            }
        }
        FilterTest::Exists(_) | FilterTest::NoneOf(_) => return None,
    })
}

#[cfg(test)]
mod tests;
