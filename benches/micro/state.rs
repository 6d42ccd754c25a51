//! Applying one write, and listing one page, among 10,000 configs.

use concord_model::{
    index,
    query::{ConfigQuery, ConfigSort, Filter, FilterField, FilterTest, Page},
};
use concord_state::State;
use divan::{Bencher, black_box};
use serde_json::json;

use crate::data::World;

const CONFIGS: u64 = 10_000;

/// An update that moves the config in both indexes, and the publishing of the state behind it.
#[divan::bench]
fn apply(bencher: Bencher<'_, '_>) {
    let mut world = World::new(CONFIGS);
    let mut number = 0;
    let mut published = State::new();
    bencher.bench_local(|| {
        number += 7919;
        let command = world.write(number % CONFIGS, number);
        let change = world.run(command);
        published = world.state.clone();
        change
    });
    drop(published);
}

/// A page of 100 of one group, by key.
#[divan::bench]
fn list_page(bencher: Bencher<'_, '_>) {
    let world = World::new(CONFIGS);
    let query = ConfigQuery {
        page: Page { page: 1, limit: 100, descending: false, search: String::new() },
        sort: ConfigSort::Key,
        filters: vec![Filter {
            field: FilterField::Slot(0),
            test: FilterTest::AnyOf(vec![index::encode(&json!(7))]),
            empty_array_at: None,
            within: None,
        }],
    };
    let collection = world.state.definition("d").expect("it was created");
    bencher.bench_local(|| collection.list(black_box(&query)));
}

/// A page of 100 in the middle of all, by the last change.
#[divan::bench]
fn list_deep_page(bencher: Bencher<'_, '_>) {
    let world = World::new(CONFIGS);
    let query = ConfigQuery {
        page: Page { page: 50, limit: 100, descending: true, search: String::new() },
        sort: ConfigSort::Modified,
        filters: Vec::new(),
    };
    let collection = world.state.definition("d").expect("it was created");
    bencher.bench_local(|| collection.list(black_box(&query)));
}
