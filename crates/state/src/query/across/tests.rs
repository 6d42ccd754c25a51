//! Lists across definitions, compared with a sort of everything.

use proptest::prelude::*;

use super::*;
use crate::builder::StateBuilder;
use concord_model::{index, key_set::KeyRange, query, record::Definition, time::Timestamp};

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

const RANGES: [&[&str]; 4] = [&["*"], &["a*"], &["a.*", "b"], &["none"]];
const NAMES: [&str; 6] = ["a", "a.b", "a.c", "b", "c", "d"];

/// Definitions whose configs have these numbers. The times are in no relation to the keys, and no two are equal; of
/// every second definition `n` is indexed.
fn state(configs: &[Vec<u16>]) -> State {
    let mut builder = StateBuilder::new();
    let count = configs.iter().map(Vec::len).sum::<usize>() as u64 + 1;
    let mut number = 0_u64;
    for (place, numbers) in configs.iter().enumerate() {
        let indexes: Vec<String> = if place % 2 == 0 { vec!["n".into()] } else { vec![] };
        let definition = Definition {
            id: place as u64 + 1,
            key: key(NAMES[place]),
            indexing: index::Indexing::fresh(indexes.len()),
            indexes,
            schema: None,
            created_at: Timestamp(1),
            modified_at: Timestamp(1),
            revision: 1,
            unique: Vec::new(),
            protected: false,
            standing: <_>::default(),
        };
        let paths = index::stored_paths(&definition);
        builder.definition(definition).unwrap();
        let sorted: std::collections::BTreeMap<String, u16> =
            numbers.iter().map(|number| (format!("k{}", number % 300), *number)).collect();
        for (name, n) in sorted {
            number += 1;
            let data = format!(r#"{{"n":{}}}"#, n % 10);
            let config = Config {
                key: key(&name),
                entries: index::all_entries(&paths, &serde_json::from_str(&data).unwrap()),
                data: data.into(),
                created_at: Timestamp(1 + number * 7919 % count.next_power_of_two() * 1000 + number),
                modified_at: Timestamp(1_000_000 - number * 31 % 97 * 1000 + number),
                revision: 1,
            };
            builder.config(place as u64 + 1, config).unwrap();
        }
    }
    builder.finish(1, Timestamp(2_000_000)).unwrap()
}

/// All records that a list has, in its order.
fn expected(state: &State, keys: &KeySet, query: &AcrossQuery, n: Option<u16>) -> Vec<(String, String)> {
    let mut rows: Vec<PartConfig<'_>> = Vec::new();
    for (part, collection) in state.definitions().enumerate() {
        let has_index = n.is_none() || collection.definition.slot("n").is_some();
        if !has_index || !keys.contains(collection.definition.key.as_str()) {
            continue;
        }
        let is_meant = |config: &&Arc<Config>| {
            n.is_none_or(|n| *config.data == *format!(r#"{{"n":{n}}}"#))
                && config.key.as_str().contains(&query.page.search)
        };
        rows.extend(collection.configs().filter(is_meant).map(|config| PartConfig { part, config }));
    }
    rows.sort_by(|a, b| compare(*a, *b, query.sort, query.page.descending));
    let names = |PartConfig { part, config }: PartConfig<'_>| {
        let definition = state.definitions().nth(part).unwrap().definition.key.to_string();
        (definition, config.key.to_string())
    };
    rows.into_iter().map(names).collect()
}

fn found(state: &State, keys: &KeySet, query: &AcrossQuery) -> (Vec<(String, String)>, u64) {
    let plan = state.across(query, keys, &Limits::default(), &|| false).unwrap().unwrap();
    let QueryResult { results, total } = plan.run(&|| false).unwrap();
    let names = |record: AcrossRecord| (record.definition.to_string(), record.config.key.to_string());
    (results.into_iter().map(names).collect(), total)
}

fn params(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_page_is_that_of_a_sort_of_everything(
        configs in proptest::collection::vec(proptest::collection::vec(any::<u16>(), 0..60), 1..=6),
        sort in proptest::sample::select(&["config_key", "config_definition_key", "created_at", "modified_at"][..]),
        order in proptest::sample::select(&["asc", "desc"][..]),
        (page, limit) in (1_usize..40, 1_usize..12),
        ranges in proptest::sample::select(&RANGES[..]),
        search in proptest::sample::select(&["", "", "1"][..]),
        n in prop_oneof![3 => Just(None), 1 => (0_u16..10).prop_map(Some)],
    ) {
        let state = state(&configs);
        let range = |text: &&str| match text.strip_suffix('*') {
            Some(prefix) => KeyRange::Prefix(prefix.into()),
            None => KeyRange::Key(key(text)),
        };
        let keys = KeySet::of(ranges.iter().map(range));
        let text = n.map(|n| n.to_string());
        let (page_text, limit_text) = (page.to_string(), limit.to_string());
        let mut pairs = vec![
            ("sort_by", sort), ("sort_order", order), ("page", &page_text), ("limit", &limit_text), ("search", search),
            ("definition", "x"),
        ];
        pairs.extend(text.as_deref().map(|text| ("n", text)));
        let query = query::across(&params(&pairs), &Limits::default()).unwrap();
        let has_index = state.definitions().any(|found| {
            keys.contains(found.definition.key.as_str()) && found.definition.slot("n").is_some()
        });
        let has_any = state.definitions().any(|found| keys.contains(found.definition.key.as_str()));
        if n.is_some() && has_any && !has_index {
            let refused = state.across(&query, &keys, &Limits::default(), &|| false).unwrap();
            prop_assert!(matches!(refused, Err(QueryError::Violations(_))));
            return Ok(());
        }
        let all = expected(&state, &keys, &query, n);
        let of_page: Vec<_> = all.iter().skip((page - 1) * limit).take(limit).cloned().collect();
        prop_assert_eq!(found(&state, &keys, &query), (of_page, all.len() as u64));
    }
}

#[test]
fn a_page_costs_the_same_at_any_depth() {
    let many: Vec<Vec<u16>> = (0..6).map(|_| (0..300).collect()).collect();
    let state = state(&many);
    let price = |page: &str| {
        let query = query::across(&params(&[("page", page)]), &Limits::default()).unwrap();
        state.across(&query, &KeySet::ALL, &Limits::default(), &|| false).unwrap().unwrap().price()
    };
    assert_eq!(price("1"), price("170"));
    assert!(price("1") < 200);
}
