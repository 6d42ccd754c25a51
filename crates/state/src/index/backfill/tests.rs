//! Builds interleaved with all other changes, compared with the data.

use fastrand::Rng;
use serde_json::{Value, json};

use super::*;
use crate::{
    Change,
    apply::tests::{rebuilt, same},
};
use concord_model::{
    access_key::Author,
    command::{BatchStep, Command, Expect, Proposal, THIS_ENTRY, Verdict},
    time::Timestamp,
};

/// Configs of a definition that is too large to be reindexed in one entry.
const LARGE_CONFIGS: u64 = REINDEX_CONFIGS_MAX + 300;
const PATHS: [&str; 5] = ["n", "s", "tags", "o.k", "o"];

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn texts(paths: &[&str]) -> Vec<String> {
    paths.iter().map(|path| (*path).to_owned()).collect()
}

fn apply(state: &mut State, command: Command) -> (Verdict, Option<Change>) {
    let read = state.definition("d").map(|found| found.definition.revision);
    let read = read.filter(|_| matches!(command, Command::WriteConfig { .. }));
    let revision = state.revision() + 1;
    let proposal = Proposal {
        at: Timestamp(1_000_000),
        by: "root".into(),
        reason: None,
        request: None,
        definition_read: read,
        command,
        author: Author::Root,
        tail: None,
    };
    state.apply(revision, &proposal)
}

fn done(state: &mut State, command: Command) -> Option<Change> {
    let (verdict, change) = apply(state, command);
    assert!(matches!(verdict, Verdict::Decided(Ok(_))), "{verdict:?}");
    change
}

fn create(state: &mut State, paths: &[&str]) {
    done(state, Command::CreateDefinition { key: key("d"), indexes: texts(paths), schema: None });
}

fn set(state: &mut State, paths: Vec<String>) -> Option<Change> {
    done(state, Command::SetIndexes { key: key("d"), indexes: paths, expect: Expect::Any })
}

/// A write as the leader makes it.
fn write(state: &mut State, name: &str, data: &Value) {
    let found = state.definition("d").unwrap();
    let entries = index::entries(&index::stored_paths(&found.definition), data).unwrap();
    let (definition, data) = (key("d"), data.to_string().into());
    done(state, Command::WriteConfig { definition, key: key(name), data, entries, expect: Expect::Any });
}

fn delete(state: &mut State, name: &str) {
    apply(state, Command::DeleteConfig { definition: key("d"), key: key(name), expect: Expect::Any });
}

/// The step that a leader would propose.
fn next_step(state: &State) -> Option<Command> {
    let definition = state.building_after(None)?;
    let build = definition.indexing.build.clone()?;
    Some(Command::BuildIndex { key: definition.key.clone(), begun: build.begun, cursor: build.cursor })
}

fn finish(state: &mut State) {
    while let Some(step) = next_step(state) {
        assert!(done(state, step).is_some(), "each step makes progress");
    }
}

fn name(n: u64) -> String {
    format!("k{n:05}")
}

fn data(random: &mut Rng) -> Value {
    match random.u8(0..5) {
        0 => json!({}),
        1 => json!({"n": null, "tags": []}),
        2 => json!({"n": random.i64(-3..3), "o": {"k": random.bool()}}),
        3 => json!({"s": random.u8(0..4).to_string(), "tags": ["a", "b", "a", random.u8(0..3)]}),
        _ => json!({"s": "text", "n": 0.5, "o": {"k": {"deep": random.u8(..)}}}),
    }
}

fn large(paths: &[&str]) -> State {
    let mut state = State::new();
    create(&mut state, paths);
    let mut random = Rng::with_seed(7);
    for n in 0..LARGE_CONFIGS {
        write(&mut state, &name(2 * n), &data(&mut random));
    }
    state
}

type Pairs = Vec<(Vec<u8>, String)>;

fn pairs(collection: &Collection, slot: u16) -> Pairs {
    let index = collection.index(slot).unwrap();
    index.from(0).map(|item| (item.value().to_vec(), item.key.to_string())).collect()
}

/// Complete indexes are exact; an index that is being built contains nothing that is not in the data.
fn check(state: &State) {
    same(state, &rebuilt(state));
    let Some(collection) = state.definition("d") else { return };
    let indexing = &collection.definition.indexing;
    assert_eq!(state.building().count(), usize::from(indexing.build.is_some()));
    let all: Vec<_> = collection.configs().map(|config| (config.key.to_string(), parsed(config))).collect();
    for stored in index::stored_paths(&collection.definition) {
        let mut expected: Pairs = Vec::new();
        for (name, data) in &all {
            let entries = index::all_entries(std::slice::from_ref(&stored), data);
            expected.extend(entries.iter().map(|entry| (entry.value.to_vec(), name.clone())));
        }
        expected.sort();
        let found = pairs(collection, stored.slot);
        if indexing.is_building(stored.slot) {
            assert!(found.iter().all(|pair| expected.binary_search(pair).is_ok()), "{stored:?}");
        } else {
            assert_eq!(found, expected, "{stored:?}");
        }
    }
    if indexing.build.is_none() {
        let has_dropped =
            |config: &&Arc<Config>| config.entries.iter().any(|e| indexing.position(e.slot).is_none());
        assert!(
            collection.configs().all(|config| !has_dropped(&config)),
            "no entry of a dropped path is left"
        );
    }
}

#[test]
fn a_small_definition_is_reindexed_at_once_and_a_large_one_in_steps() {
    let mut state = State::new();
    create(&mut state, &[]);
    for n in 0..REINDEX_CONFIGS_MAX {
        write(&mut state, &name(n), &json!({"n": n % 7}));
    }
    set(&mut state, texts(&["n"]));
    assert_eq!(next_step(&state), None);
    check(&state);
    write(&mut state, &name(9999), &json!({"n": 3}));
    set(&mut state, texts(&["s", "n"]));
    assert_eq!(state.definition("d").unwrap().progress(), Some(BuildProgress { done: 0, total: 1001 }));
    let (mut passed, revision) = (Vec::new(), state.definition("d").unwrap().definition.revision);
    while let Some(step) = next_step(&state) {
        done(&mut state, step);
        check(&state);
        passed.extend(state.definition("d").unwrap().progress().map(|progress| progress.done));
    }
    assert_eq!(passed, [250, 500, 750, 1000]);
    assert_eq!(state.definition("d").unwrap().definition.revision, revision, "only its build has changed");
}

#[test]
fn a_retained_path_is_not_rebuilt_and_the_order_of_paths_is_no_change() {
    let mut state = large(&["n", "s"]);
    let before = pairs(state.definition("d").unwrap(), 1);
    set(&mut state, texts(&["s", "n"]));
    assert_eq!(next_step(&state), None);
    set(&mut state, texts(&["tags", "s"]));
    let found = state.definition("d").unwrap();
    assert_eq!((&found.definition.indexing.slots, pairs(found, 1)), (&vec![2, 1], before));
    assert!(found.definition.indexing.is_building(2) && !found.definition.indexing.is_building(1));
    check(&state);
    let step = next_step(&state).unwrap();
    done(&mut state, step);
    let cursor = state.definition("d").unwrap().definition.indexing.build.clone();
    set(&mut state, texts(&["s", "tags"]));
    assert_eq!(state.definition("d").unwrap().definition.indexing.build, cursor, "the same build continues");
    finish(&mut state);
    check(&state);
}

#[test]
fn a_step_that_is_not_the_next_one_does_nothing() {
    let mut state = large(&["n"]);
    set(&mut state, texts(&["s"]));
    let first = next_step(&state).unwrap();
    done(&mut state, first.clone());
    let digest = state.digest();
    assert_eq!(done(&mut state, first.clone()), None, "it was applied");
    set(&mut state, texts(&["s", "o"]));
    assert_eq!(done(&mut state, first.clone()), None, "another build has begun");
    finish(&mut state);
    assert_eq!(done(&mut state, first.clone()), None, "it is complete");
    done(
        &mut state,
        Command::DeleteDefinition { key: key("d"), expect: Expect::Any, restrict: false, keep: None },
    );
    assert_eq!(done(&mut state, first), None, "the definition was deleted");
    assert_ne!(state.digest(), digest);
    assert_eq!(state.building().count(), 0);
}

#[test]
fn a_step_is_bounded_by_bytes_and_is_not_in_the_history() {
    let mut state = State::new();
    create(&mut state, &[]);
    let text = "x".repeat(BUILD_STEP_BYTES_MAX / 10);
    for n in 0..=REINDEX_CONFIGS_MAX {
        let data = if n < 100 { json!({"n": n, "text": text}) } else { json!({"n": n}) };
        write(&mut state, &name(n), &data);
    }
    let snapshot = state.clone();
    set(&mut state, texts(&["n"]));
    let step = next_step(&state).unwrap();
    let change = done(&mut state, step).unwrap();
    assert_eq!(state.definition("d").unwrap().progress().unwrap().done, 10);
    assert_eq!(change.edits.iter().filter(|edit| matches!(edit, Edit::Entries { .. })).count(), 10);
    assert!(!change.edits.iter().any(Edit::is_in_history));
    finish(&mut state);
    check(&state);
    for (old, new) in
        snapshot.definition("d").unwrap().configs().zip(state.definition("d").unwrap().configs())
    {
        let visible =
            |config: &Config| (config.revision, config.created_at, config.modified_at, config.data.clone());
        assert_eq!(visible(old), visible(new));
    }
}

#[test]
fn slots_that_run_out_during_a_build_reindex_in_one_entry() {
    let mut state = large(&["n"]);
    set(&mut state, texts(&["s"]));
    let mut collection = Arc::unwrap_or_clone(state.remove_collection(&key("d")).unwrap());
    Arc::make_mut(&mut collection.definition).indexing.next = u16::MAX;
    state.insert_collection(collection);
    set(&mut state, texts(&["s", "tags"]));
    assert_eq!((next_step(&state), state.building().count()), (None, 0));
    check(&state);
}

#[test]
fn a_build_ends_correct_whatever_is_interleaved() {
    let base = large(&["n", "tags"]);
    for seed in 0..6 {
        let (mut state, mut random) = (base.clone(), Rng::with_seed(seed));
        for round in 0..60 {
            match random.u8(0..20) {
                0..=1 => {
                    let mut paths = texts(&PATHS);
                    paths.retain(|_| random.bool());
                    random.shuffle(&mut paths);
                    set(&mut state, paths);
                }
                2..=6 => {
                    if let Some(step) = next_step(&state) {
                        done(&mut state, step);
                    }
                }
                7..=9 => delete(&mut state, &name(random.u64(0..2 * LARGE_CONFIGS))),
                _ => {
                    let data = data(&mut random);
                    write(&mut state, &name(random.u64(0..2 * LARGE_CONFIGS)), &data);
                }
            }
            if round % 10 == 9 {
                check(&state);
            }
            // A node that restarts in the middle continues as the others do.
            if round % 17 == 0 {
                state = rebuilt(&state);
            }
        }
        finish(&mut state);
        check(&state);
    }
}

/// A definition `d` with some configs of this many bytes each.
fn heavy(configs: u64, bytes: usize) -> State {
    let mut state = State::new();
    create(&mut state, &["n"]);
    for n in 0..configs {
        write(&mut state, &name(n), &json!({"n": n, "s": "x".repeat(bytes)}));
    }
    state
}

#[test]
fn configs_and_bytes_decide_whether_a_definition_is_reindexed_in_steps() {
    let quarter = REINDEX_BYTES_MAX / 4;
    for (configs, bytes, in_steps) in
        [(5, quarter, true), (3, quarter, false), (500, 10, false), (LARGE_CONFIGS, 0, true)]
    {
        let mut state = heavy(configs, bytes);
        set(&mut state, texts(&["s"]));
        assert_eq!(next_step(&state).is_some(), in_steps, "{configs} of {bytes} bytes");
        finish(&mut state);
        let found = state.definition("d").unwrap();
        assert_eq!(found.by_value("s").count() as u64, configs);
        same(&state, &rebuilt(&state));
    }
}

#[test]
fn the_steps_of_a_batch_share_the_limit_of_reindexing_at_once() {
    let mut state = heavy(3, REINDEX_BYTES_MAX / 4);
    let read = Some(state.definition("d").unwrap().definition.revision);
    let step = |read, path: &str| BatchStep {
        definition_read: read,
        command: Command::SetIndexes { key: key("d"), indexes: texts(&[path]), expect: Expect::Any },
    };
    let own = Some(THIS_ENTRY);
    let batch = Command::Batch(vec![step(read, "s"), step(own, "n"), step(own, "s")]);
    done(&mut state, batch);
    assert!(next_step(&state).is_some());
    finish(&mut state);
    same(&state, &rebuilt(&state));
    set(&mut state, texts(&["n"]));
    assert_eq!(next_step(&state), None, "a later entry has the whole allowance again");
}
