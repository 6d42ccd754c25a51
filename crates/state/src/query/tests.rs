//! Lists compared with sorting all records and cutting out the page.

use proptest::prelude::*;

use super::{matching::holds, rows::compare, *};
use crate::builder::StateBuilder;
use concord_model::{
    index::Indexing,
    key::Key,
    query::FilterTest,
    record::{Definition, IndexEntry},
    time::Timestamp,
};

fn value(n: u8) -> Box<[u8]> {
    Box::new([0x30, n])
}

/// Configs whose first slot has at most one value and whose second slot is an array.
fn state(rows: &[(Option<u8>, Vec<u8>)]) -> State {
    let mut builder = StateBuilder::new();
    let definition = Definition {
        id: 1,
        key: Key::parse("d").unwrap(),
        indexes: vec!["a".into(), "b".into()],
        schema: None,
        indexing: Indexing::fresh(2),
        created_at: Timestamp(1),
        modified_at: Timestamp(1),
        revision: 1,
        unique: Vec::new(),
        protected: false,
        standing: <_>::default(),
    };
    builder.definition(definition).unwrap();
    for (n, (one, many)) in rows.iter().enumerate() {
        let mut entries: Vec<IndexEntry> =
            one.iter().map(|n| IndexEntry { slot: 0, value: value(*n).into() }).collect();
        entries.extend(many.iter().map(|n| IndexEntry { slot: 1, value: value(*n).into() }));
        entries.sort();
        entries.dedup();
        let config = Config {
            key: Key::parse(&format!("k{n:04}")).unwrap(),
            data: "{}".into(),
            entries: entries.into(),
            created_at: Timestamp(1000 - n as u64),
            modified_at: Timestamp(2000 + (n as u64 * 7919) % 1009),
            revision: 2,
        };
        builder.config(1, config).unwrap();
    }
    builder.finish(9, Timestamp(5000)).unwrap()
}

fn filter() -> impl Strategy<Value = Filter> {
    let field = prop_oneof![Just(FilterField::Slot(0)), Just(FilterField::Slot(1))];
    let values = || {
        let numbers = proptest::collection::btree_set(0u8..6, 1..3);
        numbers.prop_map(|numbers| numbers.into_iter().map(value).collect::<Vec<_>>())
    };
    let bound = || {
        prop_oneof![
            (0u8..6).prop_map(|n| Bound::Included(value(n))),
            (0u8..6).prop_map(|n| Bound::Excluded(value(n))),
            Just(Bound::Unbounded)
        ]
    };
    let test = prop_oneof![
        values().prop_map(FilterTest::AnyOf),
        values().prop_map(FilterTest::NoneOf),
        (bound(), bound()).prop_map(|range| FilterTest::Ranges(vec![range])),
        any::<bool>().prop_map(FilterTest::Exists),
    ];
    (field, test).prop_map(|(field, test)| Filter { field, test, empty_array_at: None, within: None })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_page_equals_sorting_all_records_and_cutting(
        rows in proptest::collection::vec((proptest::option::of(0u8..6), proptest::collection::vec(0u8..6, 0..4)), 0..150),
        filters in proptest::collection::vec(filter(), 0..3),
        sort in prop_oneof![
            Just(ConfigSort::Key), Just(ConfigSort::Created), Just(ConfigSort::Modified),
            Just(ConfigSort::Slot(0)), Just(ConfigSort::Slot(1)),
        ],
        (page, limit, descending) in (1u64..20, 1u64..20, any::<bool>()),
        search in prop_oneof![Just(String::new()), Just("1".to_owned())],
    ) {
        let state = state(&rows);
        let collection = state.definition("d").unwrap();
        let query = ConfigQuery { page: Page { page, limit, descending, search }, sort, filters };
        let found = collection.list(&query);
        let mut all: Vec<_> = collection
            .configs()
            .filter(|c| c.key.as_str().contains(&query.page.search))
            .filter(|c| query.filters.iter().all(|f| holds(f, c)))
            .cloned()
            .collect();
        all.sort_by(|a, b| compare(a, b, sort, descending));
        let keys = |list: &[Arc<Config>]| list.iter().map(|c| c.key.to_string()).collect::<Vec<_>>();
        let from = all.len().min(size((page - 1) * limit));
        let to = all.len().min(from + size(limit));
        prop_assert_eq!(keys(&found.results), keys(&all[from..to]));
        prop_assert_eq!(found.total, all.len() as u64);
    }
}

mod patterns;
mod typed;
