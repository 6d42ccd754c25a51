//! Lists of the configs of several definitions.
//!
//! Without filters a page is read from its place: the place is found by dividing the definitions' indexes until no more
//! than one config of each is undecided, and each division takes a look-up in each of them. So a page costs the same at
//! any depth, and grows with the number of definitions. With filters each definition's matches are found as in a list
//! of its own, and merged.
//!
//! **Invariants:** the order is total: configs with equal sort values ascend by the config's key, then by the
//! definition's. A definition in which a filter can't be read has no match.

use std::{cmp::Ordering, collections::BinaryHeap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{CancelCheck, QueryResult, State, size, skip};
use crate::Collection;
use concord_model::{
    key::Key,
    key_set::KeySet,
    limits::Limits,
    query::{AcrossQuery, AcrossSort, ConfigQuery, QueryError},
    record::Config,
};

/// What a look-up in an index costs, in tests of a config.
const LOOKUP_TESTS: u64 = 16;

/// A config with the key of its definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcrossRecord {
    /// The definition's key.
    pub definition: Key,
    /// The config.
    pub config: Arc<Config>,
}

/// How such a list is answered.
#[derive(Debug)]
pub struct AcrossPlan<'a> {
    query: &'a AcrossQuery,
    /// Ascending by the definition's key.
    parts: Vec<AcrossPart<'a>>,
}

/// One definition's part of a list.
#[derive(Debug)]
struct AcrossPart<'a> {
    collection: &'a Collection,
    query: ConfigQuery,
}

/// A config, and the index of its definition among the parts of the list.
#[derive(Clone, Copy)]
struct PartConfig<'a> {
    part: usize,
    config: &'a Arc<Config>,
}

impl State {
    /// Plans a list of the configs of all definitions whose keys are in a set. `None` when `is_over` has returned true.
    ///
    /// # Errors
    /// When an index that it needs is being built, or its filters can't be read in any of the definitions.
    pub fn across<'a>(
        &'a self,
        query: &'a AcrossQuery,
        keys: &KeySet,
        limits: &Limits,
        is_over: &dyn Fn() -> bool,
    ) -> Option<Result<AcrossPlan<'a>, QueryError>> {
        let steps = &mut CancelCheck::new(is_over);
        let (mut parts, mut refused) = (Vec::new(), None);
        for collection in self.collections_in(keys) {
            // A schema may be parsed for it.
            let schema = collection.definition.schema.as_ref().filter(|_| !query.is_of_all());
            steps.take(1 + schema.map_or(0, |schema| schema.len() / 64))?;
            match query.within(&collection.definition, limits) {
                Ok(query) => parts.push(AcrossPart { collection, query }),
                Err(building @ QueryError::Building(_)) => return Some(Err(building)),
                Err(error @ (QueryError::Violations(_) | QueryError::NotIntegers(_))) => {
                    refused.get_or_insert(error);
                }
            }
        }
        Some(match refused.filter(|_| parts.is_empty()) {
            Some(error) => Err(error),
            None => Ok(AcrossPlan { query, parts }),
        })
    }

    /// How many definitions there are whose keys are in a set.
    #[must_use]
    pub fn definitions_in(&self, keys: &KeySet) -> u64 {
        let count = |ranges| self.places(ranges).iter().map(|range| range.end - range.start).sum();
        keys.ranges().map_or(self.by_key.len(), count)
    }

    /// The definitions whose keys are in a set, ascending by key.
    pub fn collections_in(&self, keys: &KeySet) -> impl Iterator<Item = &Arc<Collection>> {
        let places = match keys.ranges() {
            Some(ranges) => self.places(ranges),
            None => std::iter::once(0..self.by_key.len()).collect(),
        };
        places.into_iter().flat_map(|places| {
            let number = size(places.end.saturating_sub(places.start));
            self.by_key.from(places.start).take(number).map(|item| &item.record)
        })
    }
}

impl AcrossPlan<'_> {
    /// Whether a page is read from its place, so that it costs the same at any depth.
    #[must_use]
    pub fn is_positional(&self) -> bool {
        self.query.is_of_all()
    }

    /// About how many tests of a config the answer takes.
    #[must_use]
    pub fn price(&self) -> u64 {
        let parts = self.parts.len() as u64;
        if self.is_positional() {
            let rows = self.query.page.limit.min(self.total());
            return parts.saturating_mul(LOOKUP_TESTS).saturating_add(rows);
        }
        let price = |part: &AcrossPart<'_>| part.collection.plan(&part.query).price();
        self.parts.iter().map(price).fold(parts, u64::saturating_add)
    }

    /// A page of the list. `None` when `is_over` has returned true.
    #[must_use]
    pub fn run(&self, is_over: &dyn Fn() -> bool) -> Option<QueryResult<AcrossRecord>> {
        let steps = &mut CancelCheck::new(is_over);
        match (self.is_positional(), self.query.sort) {
            (true, AcrossSort::Definition) => Some(self.page_by_definition()),
            (true, AcrossSort::Key | AcrossSort::Created | AcrossSort::Modified) => self.page_at_place(steps),
            (false, _) => self.page_of_matches(steps, is_over),
        }
    }

    fn total(&self) -> u64 {
        self.parts.iter().map(|part| part.collection.by_key.len()).sum()
    }

    fn record(&self, PartConfig { part, config }: PartConfig<'_>) -> AcrossRecord {
        let definition = self.parts[part].collection.definition.key.clone();
        AcrossRecord { definition, config: Arc::clone(config) }
    }

    /// A page of all configs, one definition after another.
    fn page_by_definition(&self) -> QueryResult<AcrossRecord> {
        let page = &self.query.page;
        let (mut left, limit) = (skip(page), size(page.limit));
        let mut results = Vec::new();
        let mut add = |part: usize| {
            let configs = &self.parts[part].collection.by_key;
            let from = left.min(configs.len());
            left -= from;
            let needed = limit - results.len();
            let found = configs.from(from).take(needed);
            results.extend(found.map(|item| self.record(PartConfig { part, config: &item.record })));
        };
        if page.descending {
            (0..self.parts.len()).rev().for_each(&mut add);
        } else {
            (0..self.parts.len()).for_each(&mut add);
        }
        QueryResult { results, total: self.total() }
    }

    /// A page of all configs, from its place in the order of all.
    fn page_at_place(&self, steps: &mut CancelCheck<'_>) -> Option<QueryResult<AcrossRecord>> {
        let (page, sort) = (&self.query.page, self.query.sort);
        let (total, offset) = (self.total(), skip(page));
        if offset >= total {
            return Some(QueryResult { results: Vec::new(), total });
        }
        let mut sequences = Vec::with_capacity(self.parts.len());
        for (part, AcrossPart { collection, .. }) in self.parts.iter().enumerate() {
            sequences.push(Sequence { collection, sort, descending: page.descending, part });
        }
        let from = divided(&sequences, offset, steps)?;
        let passed: u64 = from.iter().sum();
        let mut merge = SequenceMerge::new(&sequences, from);
        for _ in passed..offset {
            steps.take(1)?;
            merge.next();
        }
        let mut results = Vec::new();
        while results.len() < size(page.limit) {
            steps.take(1)?;
            let Some(found) = merge.next() else { break };
            results.push(self.record(found));
        }
        Some(QueryResult { results, total })
    }

    /// A page of what each definition's plan finds.
    fn page_of_matches(
        &self,
        steps: &mut CancelCheck<'_>,
        is_over: &dyn Fn() -> bool,
    ) -> Option<QueryResult<AcrossRecord>> {
        let page = &self.query.page;
        let (from, limit) = (skip(page), page.limit);
        let (mut total, mut rows) = (0, Vec::new());
        for (index, part) in self.parts.iter().enumerate() {
            steps.take(1)?;
            let mut query = part.query.clone();
            // What is not among so many first ones of its definition is not among the first of all.
            (query.page.page, query.page.limit) = (1, from.saturating_add(limit));
            let found = part.collection.plan(&query).run(is_over)?;
            total += found.total;
            rows.extend(found.results.into_iter().map(|config| (index, config)));
        }
        let (sort, descending) = (self.query.sort, page.descending);
        steps.take(rows.len() / 4)?;
        let mut rows: Vec<_> = rows.iter().map(|(part, config)| PartConfig { part: *part, config }).collect();
        rows.sort_unstable_by(|a, b| compare(*a, *b, sort, descending));
        let rows = rows.into_iter().skip(size(from)).take(size(limit));
        Some(QueryResult { results: rows.map(|row| self.record(row)).collect(), total })
    }
}

/// The order of a list.
fn compare(one: PartConfig<'_>, two: PartConfig<'_>, sort: AcrossSort, descending: bool) -> Ordering {
    let directed = |order: Ordering| if descending { order.reverse() } else { order };
    let (a, b) = (one.config, two.config);
    let by_part = one.part.cmp(&two.part);
    let ties = a.key.cmp(&b.key).then(by_part);
    match sort {
        AcrossSort::Definition => directed(by_part).then(ties),
        AcrossSort::Key => directed(a.key.cmp(&b.key)).then(ties),
        // No two configs of one definition have the same time, each step of a batch has its own.
        AcrossSort::Created => directed(a.created_at.cmp(&b.created_at)).then(ties),
        AcrossSort::Modified => directed(a.modified_at.cmp(&b.modified_at)).then(ties),
    }
}

/// The configs of one definition in the order of the list.
struct Sequence<'a> {
    collection: &'a Collection,
    sort: AcrossSort,
    descending: bool,
    /// The index of its definition among the parts of the list.
    part: usize,
}

impl<'a> Sequence<'a> {
    fn len(&self) -> u64 {
        self.collection.by_key.len()
    }

    fn at(&self, position: u64) -> Option<&'a Arc<Config>> {
        let position = if self.descending { self.len().checked_sub(position + 1)? } else { position };
        let collection = self.collection;
        match self.sort {
            AcrossSort::Key | AcrossSort::Definition => {
                collection.by_key.at(position).map(|item| &item.record)
            }
            AcrossSort::Created => {
                collection.indexes().by_created.at(position).map(|item| collection.config_of(&item.of))
            }
            AcrossSort::Modified => {
                collection.indexes().by_modified.at(position).map(|item| collection.config_of(&item.of))
            }
        }
    }

    /// The number of its configs that come before one in the order of the list.
    fn before(&self, PartConfig { part, config: pivot }: PartConfig<'_>) -> u64 {
        // Whether its own config with the same sort value and key comes before the pivot.
        let takes_equal = self.part < part;
        let is_counted =
            |order: Ordering| order == Ordering::Less || (order == Ordering::Equal && takes_equal);
        let is_left = |order: Ordering| order == Ordering::Less || (order == Ordering::Equal && !takes_equal);
        let rank =
            |is_before: &dyn Fn(Ordering) -> bool| match self.sort {
                AcrossSort::Key | AcrossSort::Definition => {
                    self.collection.by_key.rank(|key: &Key| is_before(key.cmp(&pivot.key)))
                }
                AcrossSort::Created => self.collection.indexes().by_created.rank(|item| {
                    is_before(item.at.cmp(&pivot.created_at).then_with(|| item.of.cmp(&pivot.key)))
                }),
                AcrossSort::Modified => self.collection.indexes().by_modified.rank(|item| {
                    is_before(item.at.cmp(&pivot.modified_at).then_with(|| item.of.cmp(&pivot.key)))
                }),
            };
        if self.descending { self.len() - rank(&is_left) } else { rank(&is_counted) }
    }
}

/// For each sequence how many of its configs certainly come before a place in the order of all; together they are fewer
/// than the place by at most one for each sequence.
fn divided(sequences: &[Sequence<'_>], place: u64, steps: &mut CancelCheck<'_>) -> Option<Vec<u64>> {
    let mut low: Vec<u64> = vec![0; sequences.len()];
    let mut high: Vec<u64> = sequences.iter().map(Sequence::len).collect();
    loop {
        // The middles of what is undecided, by their order; the pivot has half of it on either side.
        let mut middles: Vec<(PartConfig<'_>, u64)> = Vec::new();
        for (index, sequence) in sequences.iter().enumerate() {
            steps.take(1)?;
            let undecided = high[index] - low[index];
            if undecided > 1
                && let Some(config) = sequence.at(low[index] + undecided / 2)
            {
                middles.push((PartConfig { part: index, config }, undecided));
            }
        }
        let Some(first) = sequences.first().filter(|_| !middles.is_empty()) else { return Some(low) };
        middles.sort_unstable_by(|(a, _), (b, _)| compare(*a, *b, first.sort, first.descending));
        let half = middles.iter().map(|(_, undecided)| undecided).sum::<u64>() / 2;
        let mut sum = 0;
        let pivot = middles.iter().find(|(_, undecided)| {
            sum += undecided;
            sum > half
        });
        let Some((pivot, _)) = pivot else { return Some(low) };
        let mut ranks = Vec::with_capacity(sequences.len());
        for sequence in sequences {
            steps.take(1)?;
            ranks.push(sequence.before(*pivot));
        }
        let is_reached = ranks.iter().sum::<u64>() <= place;
        for ((low, high), rank) in low.iter_mut().zip(&mut high).zip(ranks) {
            if is_reached {
                *low = rank.clamp(*low, *high);
            } else {
                *high = rank.clamp(*low, *high);
            }
        }
    }
}

/// The configs of several sequences in the order of all.
struct SequenceMerge<'a, 'b> {
    sequences: &'b [Sequence<'a>],
    next: Vec<u64>,
    heads: BinaryHeap<SequenceHead<'a>>,
}

/// The next config of a sequence. The greatest is the first in the order.
struct SequenceHead<'a> {
    config: PartConfig<'a>,
    sort: AcrossSort,
    descending: bool,
}

impl Ord for SequenceHead<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self.config, other.config, self.sort, self.descending).reverse()
    }
}

impl PartialOrd for SequenceHead<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for SequenceHead<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for SequenceHead<'_> {}

impl<'a, 'b> SequenceMerge<'a, 'b> {
    fn new(sequences: &'b [Sequence<'a>], next: Vec<u64>) -> Self {
        let mut merge = Self { sequences, next, heads: BinaryHeap::with_capacity(sequences.len()) };
        for index in 0..sequences.len() {
            merge.push(index);
        }
        merge
    }

    fn push(&mut self, index: usize) {
        let Sequence { sort, descending, part, .. } = self.sequences[index];
        if let Some(config) = self.sequences[index].at(self.next[index]) {
            self.next[index] += 1;
            let config = PartConfig { part, config };
            self.heads.push(SequenceHead { config, sort, descending });
        }
    }
}

impl<'a> Iterator for SequenceMerge<'a, '_> {
    type Item = PartConfig<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let head = self.heads.pop()?;
        self.push(head.config.part);
        Some(head.config)
    }
}

#[cfg(test)]
mod tests;
