//! Indexes with deferred updates compared with those of a state that is rebuilt from its records.

use fastrand::Rng;

use super::*;
use crate::{
    State,
    apply::tests::{decide, define, delete, proposal, rebuilt, same, write},
    builder::StateBuilder,
};
use concord_model::{
    command::{Command, Expect},
    key::Key,
};

const CONFIGS: u64 = 200;

fn filled() -> State {
    let mut state = State::new();
    decide(&mut state, &define("d")).unwrap();
    for n in 0..CONFIGS {
        decide(&mut state, &write(&format!("k{n}"), &n.to_string(), Expect::Absent)).unwrap();
    }
    state
}

fn any_change(state: &mut State, random: &mut Rng) {
    let name = format!("k{}", random.u64(..CONFIGS + 20));
    if random.u8(..4) == 0 {
        let _missing = decide(state, &delete(&name, Expect::Any));
    } else {
        decide(state, &write(&name, &random.u16(..300).to_string(), Expect::Any)).unwrap();
    }
}

fn deferred(state: &State) -> &DeferredIndexes {
    &state.definition("d").unwrap().deferred
}

fn pending(state: &State) -> u64 {
    deferred(state).pending.len()
}

fn read(state: &State) -> u64 {
    state.definition("d").unwrap().indexes().by_modified.len()
}

/// Changes that nobody reads, until the collection has given its indexes up.
fn without_indexes() -> State {
    let mut state = filled();
    let mut writes = 0;
    while deferred(&state).base.is_some() {
        decide(&mut state, &write(&format!("k{}", writes % CONFIGS), "7", Expect::Any)).unwrap();
        writes += 1;
    }
    assert!(writes <= CONFIGS / CONFIGS_PER_PENDING + 1, "{writes} writes");
    state
}

#[test]
fn every_snapshot_shows_all_updates_whichever_is_read_first() {
    let mut random = Rng::with_seed(11);
    let mut state = filled();
    let (mut snapshots, mut most, mut unread) = (Vec::new(), 0, 0);
    for round in 0..3000 {
        any_change(&mut state, &mut random);
        most = most.max(pending(&state));
        unread += u32::from(deferred(&state).base.is_none());
        // Phases of many reads and of few.
        match random.u8(..if round % 300 < 150 { 12 } else { 120 }) {
            // Kept, and read later: newer snapshots may be read first.
            0 => snapshots.push(state.clone()),
            1 => same(&state, &rebuilt(&state)),
            2 => {
                // A clone that diverges and ends: its results must not be used by any other.
                let mut other = state.clone();
                (0..random.u8(..40)).for_each(|_| any_change(&mut other, &mut random));
                same(&other, &rebuilt(&other));
            }
            3 if !snapshots.is_empty() => {
                let snapshot: State = snapshots.swap_remove(random.usize(..snapshots.len()));
                same(&snapshot, &rebuilt(&snapshot));
            }
            _ => {}
        }
    }
    for snapshot in snapshots.into_iter().chain([state]) {
        same(&snapshot, &rebuilt(&snapshot));
    }
    assert!(most > 10 && most <= (CONFIGS + 20) / CONFIGS_PER_PENDING, "{most} pending at most");
    assert!((100..2900).contains(&unread), "without indexes {unread} times");
}

#[test]
fn updates_that_nobody_reads_are_not_kept() {
    let mut state = without_indexes();
    for n in 0..CONFIGS {
        decide(&mut state, &write(&format!("k{n}"), "8", Expect::Any)).unwrap();
        assert!(deferred(&state).base.is_none() && pending(&state) == 0);
        assert!(!state.definition("d").unwrap().has_indexes());
    }
    // A snapshot that is read after the state went on: the updates from then on are recorded, for the next reader.
    let old = state.clone();
    decide(&mut state, &write("k1", "9", Expect::Any)).unwrap();
    assert_eq!((read(&old), pending(&state)), (CONFIGS, 0));
    assert!(old.definition("d").unwrap().has_indexes() && !state.definition("d").unwrap().has_indexes());
    decide(&mut state, &write("k2", "10", Expect::Any)).unwrap();
    assert!(deferred(&state).base.is_none() && deferred(&state).latest_computed().is_none());
    assert_eq!((read(&state.clone()), pending(&state)), (CONFIGS, 1));
    decide(&mut state, &write("k3", "11", Expect::Any)).unwrap();
    assert!(state.definition("d").unwrap().has_indexes());
    let (up_to, _) = deferred(&state).latest_computed().unwrap();
    assert_eq!(deferred(&state).pending_after(up_to).count(), 1);
    same(&old, &rebuilt(&old));
    same(&state, &rebuilt(&state));
}

#[test]
fn indexes_read_between_writes_are_edited_and_not_rebuilt() {
    let mut state = without_indexes();
    for n in 0..CONFIGS {
        read(&state.clone());
        decide(&mut state, &write(&format!("k{n}"), "8", Expect::Any)).unwrap();
        // The indexes of the reader before, and this write.
        let (up_to, _) = deferred(&state).latest_computed().unwrap();
        assert_eq!(deferred(&state).pending_after(up_to).count(), 1);
        assert!(deferred(&state).base.is_some() && pending(&state) < CONFIGS / CONFIGS_PER_PENDING);
    }
    same(&state, &rebuilt(&state));
}

#[test]
fn a_large_collection_keeps_its_indexes() {
    let configs = READER_ENTRIES_MAX / 3 + 1;
    let one = filled();
    let one = one.definition("d").unwrap();
    let mut builder = StateBuilder::new();
    builder.definition((*one.definition).clone()).unwrap();
    for n in 0..configs {
        let config =
            Config { key: Key::parse(&format!("k{n:06}")).unwrap(), ..(**one.config("k1").unwrap()).clone() };
        builder.config(one.definition.id, config).unwrap();
    }
    builder.feature_level(filled().feature_level());
    let mut state = builder.finish(1000, one.definition.created_at).unwrap();
    for n in 0..PENDING_MAX + 10 {
        decide(&mut state, &write(&format!("k{n:06}"), "8", Expect::Any)).unwrap();
        assert!(deferred(&state).base.is_some() && pending(&state) < PENDING_MAX);
    }
    assert_eq!(pending(&state), 10);
    same(&state, &rebuilt(&state));
    // Made small enough, it gives them up; grown again, it builds them at once.
    for n in 0..PENDING_MAX {
        decide(&mut state, &delete(&format!("k{n:06}"), Expect::Any)).unwrap();
    }
    assert!(deferred(&state).base.is_none());
    for n in 0..PENDING_MAX {
        decide(&mut state, &write(&format!("k{n:06}"), "8", Expect::Any)).unwrap();
    }
    read(&state.clone());
    for n in 0..PENDING_MAX + 1 {
        decide(&mut state, &write(&format!("k{n:06}"), "9", Expect::Any)).unwrap();
    }
    assert!(deferred(&state).base.is_some());
    same(&state, &rebuilt(&state));
}

#[test]
fn the_result_of_one_snapshot_serves_the_next() {
    let mut state = filled();
    read(&state.clone());
    decide(&mut state, &write("k1", "1000", Expect::Any)).unwrap();
    let snapshot = state.clone();
    decide(&mut state, &write("k2", "1001", Expect::Any)).unwrap();
    // Read after the state changed, as readers do.
    assert_eq!(snapshot.definition("d").unwrap().indexes().by_modified.len(), CONFIGS);
    let (up_to, _) = deferred(&state).latest_computed().unwrap();
    assert_eq!(deferred(&state).pending_after(up_to).count(), 1);
    same(&state, &rebuilt(&state));
}

#[test]
fn pending_updates_are_bounded_in_bytes_and_a_small_or_unique_collection_has_none() {
    let mut state = filled();
    let large = format!("\"{}\"", "x".repeat(PENDING_BYTES_MAX / 3));
    for n in 0..10 {
        decide(&mut state, &write(&format!("k{n}"), &large, Expect::Any)).unwrap();
        assert!(n < 3 || pending(&state) <= 3, "{} pending", pending(&state));
    }
    read(&state.clone());
    decide(&mut state, &write("k1", "1", Expect::Any)).unwrap();
    assert!(pending(&state) > 0);
    let key = Key::parse("d").unwrap();
    let paths = vec!["n".into()];
    decide(&mut state, &proposal(Command::SetUnique { key, paths, expect: Expect::Any, configs_read: None }))
        .unwrap();
    decide(&mut state, &write("k1", "2000", Expect::Any)).unwrap();
    assert_eq!(pending(&state), 0);
    same(&state, &rebuilt(&state));
    let mut small = State::new();
    decide(&mut small, &define("d")).unwrap();
    for n in 0..CONFIGS_PER_PENDING - 1 {
        decide(&mut small, &write(&format!("k{n}"), "1", Expect::Any)).unwrap();
        assert_eq!(pending(&small), 0);
    }
}

#[test]
fn a_guard_of_all_configs_builds_no_indexes() {
    use concord_model::command::source::Guard;
    let mut state = without_indexes();
    let found = |state: &State| Arc::clone(state.definition("d").unwrap());
    let definition = found(&state).definition.id;
    let newest = found(&state).configs().map(|config| config.revision).max().unwrap();
    let guard = |newest, count| [Guard::Configs { definition, newest, count }];
    // What is at hand is their number; what an entry is decided by is all of it.
    for (guard, holds, is_known) in [
        (guard(newest, CONFIGS), true, true),
        (guard(newest - 1, CONFIGS), false, true),
        (guard(newest, CONFIGS + 1), false, false),
    ] {
        assert_eq!(state.failed_guard_at_hand(&guard).is_none(), is_known, "{guard:?}");
        assert_eq!(state.failed_guard(&guard).is_none(), holds, "{guard:?}");
    }
    assert!(!found(&state).has_indexes());
    read(&state);
    decide(&mut state, &write("k1", "9", Expect::Any)).unwrap();
    read(&state);
    assert!(found(&state).has_indexes());
    assert!(state.failed_guard_at_hand(&guard(newest, CONFIGS)).is_some(), "one was written since");
    assert_eq!(state.failed_guard(&guard(newest + 1, CONFIGS)), None);
}
