//! Indexes with deferred updates compared with those of a state that is rebuilt from its records.

use fastrand::Rng;

use super::*;
use crate::{
    model::command::{Command, Expect},
    state::{
        State,
        apply::tests::{decide, define, delete, proposal, rebuilt, same, write},
    },
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

fn pending(state: &State) -> u64 {
    state.definition("d").unwrap().deferred.pending.len()
}

#[test]
fn every_snapshot_shows_all_updates_whoever_reads_first() {
    let mut random = Rng::with_seed(11);
    let mut state = filled();
    let (mut snapshots, mut most) = (Vec::new(), 0);
    for _ in 0..1500 {
        any_change(&mut state, &mut random);
        most = most.max(pending(&state));
        match random.u8(..12) {
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
}

#[test]
fn the_result_of_one_snapshot_serves_the_next() {
    let mut state = filled();
    decide(&mut state, &write("k1", "1000", Expect::Any)).unwrap();
    let snapshot = state.clone();
    decide(&mut state, &write("k2", "1001", Expect::Any)).unwrap();
    // Read after the state changed, as readers do.
    assert_eq!(snapshot.definition("d").unwrap().indexes().by_modified.len(), CONFIGS);
    let deferred = &state.definition("d").unwrap().deferred;
    let (up_to, _) = deferred.latest_computed().unwrap();
    assert_eq!(deferred.pending.from(deferred.pending.rank(|number| *number <= up_to)).count(), 1);
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
