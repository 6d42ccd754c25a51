//! Lists of definitions: of all, or of the definitions that a client may see.
//!
//! The latter are a few ranges of the index by key. Their number is known without looking at any of them, and a page in
//! the order of the keys is walked from its place. A page in the order of a time needs all of them, and so does a
//! search.
//!
//! **Invariant:** the answer is the one that the same list would have in a state without the other definitions.

use std::{ops::Range, sync::Arc};

use super::{CancelCheck, NEVER_OVER, QueryResult, State, contains, page_of_index, scan, size, skip};
use concord_model::{
    key::Key,
    key_set::{KeyRange, KeySet},
    query::{DefinitionQuery, DefinitionSort, Page},
    record::Definition,
};

impl State {
    /// A page of all definitions.
    #[must_use]
    pub fn list(&self, query: &DefinitionQuery) -> QueryResult<Arc<Definition>> {
        self.list_until(query, &KeySet::ALL, &|| false).expect(NEVER_OVER)
    }

    /// A page of the definitions whose keys are in a set, as if there were no others; `None` when `is_over` has
    /// returned true.
    #[must_use]
    pub fn list_until(
        &self,
        query: &DefinitionQuery,
        keys: &KeySet,
        is_over: &dyn Fn() -> bool,
    ) -> Option<QueryResult<Arc<Definition>>> {
        let (page, steps) = (&query.page, &mut CancelCheck::new(is_over));
        if let Some(ranges) = keys.ranges() {
            return self.list_ranges(query, ranges, steps);
        }
        let matches = |definition: &Arc<Definition>| contains(definition.key.as_str(), &page.search);
        match query.sort {
            DefinitionSort::Key => {
                page_of_index(&self.by_key, page, |item| &item.record.definition, matches, steps)
            }
            DefinitionSort::Created => page_of_index(&self.by_created, page, |item| &item.of, matches, steps),
            DefinitionSort::Modified => {
                page_of_index(&self.by_modified, page, |item| &item.of, matches, steps)
            }
        }
    }

    /// About how many definitions such a list looks at.
    #[must_use]
    pub fn list_price(&self, query: &DefinitionQuery, keys: &KeySet) -> u64 {
        if let Some(ranges) = keys.ranges() {
            return self.price_of_ranges(query, keys, ranges);
        }
        let all = self.by_key.len();
        if query.page.search.is_empty() { query.page.limit.min(all) } else { all }
    }

    /// A page of the definitions in some disjoint, ascending ranges of keys.
    fn list_ranges(
        &self,
        query: &DefinitionQuery,
        ranges: &[KeyRange],
        steps: &mut CancelCheck<'_>,
    ) -> Option<QueryResult<Arc<Definition>>> {
        let page = &query.page;
        let places = self.places(ranges);
        match query.sort {
            DefinitionSort::Key => self.page_by_key(page, &places, steps),
            DefinitionSort::Created => {
                let mut found = self.matching(page, &places, steps)?;
                found.sort_unstable_by_key(|definition| (definition.created_at, &definition.key));
                Some(page_of_sorted(&found, page))
            }
            DefinitionSort::Modified => {
                let mut found = self.matching(page, &places, steps)?;
                found.sort_unstable_by_key(|definition| (definition.modified_at, &definition.key));
                Some(page_of_sorted(&found, page))
            }
        }
    }

    /// About how many definitions that looks at.
    fn price_of_ranges(&self, query: &DefinitionQuery, keys: &KeySet, ranges: &[KeyRange]) -> u64 {
        let visible = count(&self.places(ranges)).saturating_add(ranges.len() as u64);
        if query.is_walk(keys) {
            query.page.limit.saturating_add(ranges.len() as u64).min(visible)
        } else {
            visible
        }
    }

    /// The places of ranges in the index by key.
    pub(super) fn places(&self, ranges: &[KeyRange]) -> Vec<Range<u64>> {
        let place = |range: &KeyRange| {
            let from = self.by_key.rank(|key: &Key| range.is_after(key.as_str()));
            let to =
                self.by_key.rank(|key: &Key| range.is_after(key.as_str()) || range.contains(key.as_str()));
            from..to
        };
        ranges.iter().map(place).collect()
    }

    fn at_places(&self, places: &Range<u64>) -> impl Iterator<Item = &Arc<Definition>> {
        let number = size(places.end.saturating_sub(places.start));
        self.by_key.from(places.start).take(number).map(|item| &item.record.definition)
    }

    fn back_at_places(&self, places: &Range<u64>) -> impl Iterator<Item = &Arc<Definition>> {
        let number = size(places.end.saturating_sub(places.start));
        self.by_key.back_from(places.end).take(number).map(|item| &item.record.definition)
    }

    fn page_by_key(
        &self,
        page: &Page,
        places: &[Range<u64>],
        steps: &mut CancelCheck<'_>,
    ) -> Option<QueryResult<Arc<Definition>>> {
        if !page.search.is_empty() {
            let (from, limit) = (skip(page), page.limit);
            let matches = |definition: &Arc<Definition>| contains(definition.key.as_str(), &page.search);
            return if page.descending {
                let all = places.iter().rev().flat_map(|places| self.back_at_places(places));
                scan(all, from, limit, matches, steps)
            } else {
                scan(places.iter().flat_map(|places| self.at_places(places)), from, limit, matches, steps)
            };
        }
        let mut found = QueryResult { results: Vec::new(), total: count(places) };
        let mut left = skip(page);
        let in_order: Box<dyn Iterator<Item = &Range<u64>>> =
            if page.descending { Box::new(places.iter().rev()) } else { Box::new(places.iter()) };
        for range in in_order {
            steps.take(1)?;
            let skipped = left.min(range.end - range.start);
            left -= skipped;
            let needed = size(page.limit).saturating_sub(found.results.len());
            if page.descending {
                let rest = range.start..range.end - skipped;
                found.results.extend(self.back_at_places(&rest).take(needed).cloned());
            } else {
                let rest = range.start + skipped..range.end;
                found.results.extend(self.at_places(&rest).take(needed).cloned());
            }
        }
        Some(found)
    }

    fn matching(
        &self,
        page: &Page,
        places: &[Range<u64>],
        steps: &mut CancelCheck<'_>,
    ) -> Option<Vec<&Arc<Definition>>> {
        let mut found = Vec::new();
        for definition in places.iter().flat_map(|places| self.at_places(places)) {
            steps.take(1)?;
            if contains(definition.key.as_str(), &page.search) {
                found.push(definition);
            }
        }
        Some(found)
    }
}

fn count(places: &[Range<u64>]) -> u64 {
    places.iter().map(|range| range.end - range.start).sum()
}

/// A page of definitions that are sorted in ascending order.
fn page_of_sorted(sorted: &[&Arc<Definition>], page: &Page) -> QueryResult<Arc<Definition>> {
    let (from, limit) = (size(skip(page)), size(page.limit));
    let results = if page.descending {
        sorted.iter().rev().skip(from).take(limit).map(|found| Arc::clone(found)).collect()
    } else {
        sorted.iter().skip(from).take(limit).map(|found| Arc::clone(found)).collect()
    };
    QueryResult { results, total: sorted.len() as u64 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::builder::StateBuilder;
    use concord_model::{index::Indexing, time::Timestamp};

    const PREFIXES: [&str; 7] = ["a", "a.", "a.b", "b-", "d", "z", "b"];
    const KEYS: [&str; 12] = ["a", "a.a", "a.b", "a.b.c", "aa", "b", "b-1", "b-2", "c", "d.x", "d.y", "e"];

    /// The definitions of some keys. Their times are in no relation to their keys, and some are equal.
    fn state(keys: impl Fn(&str) -> bool) -> State {
        let mut builder = StateBuilder::new();
        for (place, text) in (0_u64..).zip(KEYS).filter(|(_, key)| keys(key)) {
            let definition = Definition {
                id: place + 1,
                key: Key::parse(text).unwrap(),
                indexes: Vec::new(),
                schema: None,
                indexing: Indexing::fresh(0),
                created_at: Timestamp(1 + place * 7 % 5),
                modified_at: Timestamp(10 + place * 5 % 3),
                revision: place + 1,
                unique: Vec::new(),
                protected: false,
                standing: <_>::default(),
            };
            builder.definition(definition).unwrap();
        }
        builder.finish(99, Timestamp(5000)).unwrap()
    }

    fn range() -> impl Strategy<Value = KeyRange> {
        let key =
            proptest::sample::select(&KEYS[..]).prop_map(|text| KeyRange::Key(Key::parse(text).unwrap()));
        prop_oneof![
            key,
            proptest::sample::select(&PREFIXES[..]).prop_map(|text| KeyRange::Prefix(text.into()))
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_list_is_that_of_a_state_without_the_other_definitions(
            ranges in proptest::collection::vec(range(), 0..5),
            sort in prop_oneof![
                Just(DefinitionSort::Key), Just(DefinitionSort::Created), Just(DefinitionSort::Modified),
            ],
            (page, limit, descending) in (1u64..6, 1u64..6, any::<bool>()),
            search in proptest::sample::select(&["", "a", ".", "-"][..]),
        ) {
            let set = KeySet::of(ranges);
            let query = DefinitionQuery { page: Page { page, limit, descending, search: search.into() }, sort };
            let found = state(|_| true).list_until(&query, &set, &|| false).unwrap();
            let expected = state(|key| set.contains(key)).list(&query);
            let keys = |list: &[Arc<Definition>]| list.iter().map(|one| one.key.to_string()).collect::<Vec<_>>();
            prop_assert_eq!(keys(&found.results), keys(&expected.results));
            prop_assert_eq!(found.total, expected.total);
        }
    }

    #[test]
    fn a_walk_is_paid_by_the_page_and_a_sort_by_what_is_visible() {
        let state = state(|_| true);
        let set = KeySet::of([KeyRange::Prefix("a".into()), KeyRange::Prefix("b".into())]);
        let query = |sort, search: &str| DefinitionQuery {
            page: Page { page: 1, limit: 2, descending: false, search: search.into() },
            sort,
        };
        assert_eq!(state.list_price(&query(DefinitionSort::Key, ""), &set), 4);
        assert_eq!(state.list_price(&query(DefinitionSort::Key, "x"), &set), 10);
        assert_eq!(state.list_price(&query(DefinitionSort::Created, ""), &set), 10);
        assert_eq!(state.list_price(&query(DefinitionSort::Created, ""), &KeySet::NONE), 0);
    }
}
