//! Indexes that trail against those of a state that is built anew of its records.

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

fn notes(state: &State) -> u64 {
    state.definition("d").unwrap().trailing.notes.len()
}

#[test]
fn every_picture_shows_what_was_noted_whoever_asks_when() {
    let mut random = Rng::with_seed(11);
    let mut state = filled();
    let (mut pictures, mut most) = (Vec::new(), 0);
    for _ in 0..1500 {
        any_change(&mut state, &mut random);
        most = most.max(notes(&state));
        match random.u8(..12) {
            // Kept, and asked later: those who ask for a newer one may come first.
            0 => pictures.push(state.clone()),
            1 => same(&state, &rebuilt(&state)),
            2 => {
                // A line of its own, which ends: what is made for it is for nobody else.
                let mut other = state.clone();
                (0..random.u8(..40)).for_each(|_| any_change(&mut other, &mut random));
                same(&other, &rebuilt(&other));
            }
            3 if !pictures.is_empty() => {
                let picture: State = pictures.swap_remove(random.usize(..pictures.len()));
                same(&picture, &rebuilt(&picture));
            }
            _ => {}
        }
    }
    for picture in pictures.into_iter().chain([state]) {
        same(&picture, &rebuilt(&picture));
    }
    assert!(most > 10 && most <= (CONFIGS + 20) / CONFIGS_PER_NOTE, "{most} notes at most");
}

#[test]
fn what_was_made_for_one_picture_serves_the_next() {
    let mut state = filled();
    decide(&mut state, &write("k1", "1000", Expect::Any)).unwrap();
    let picture = state.clone();
    decide(&mut state, &write("k2", "1001", Expect::Any)).unwrap();
    // Asked for after the state went on, as readers do.
    assert_eq!(picture.definition("d").unwrap().orders().by_modified.len(), CONFIGS);
    let trailing = &state.definition("d").unwrap().trailing;
    let (upto, _) = trailing.latest_of_line().unwrap();
    assert_eq!(trailing.notes.from(trailing.notes.rank(|number| *number <= upto)).count(), 1);
    same(&state, &rebuilt(&state));
}

#[test]
fn notes_are_bounded_in_bytes_and_a_small_or_unique_collection_has_none() {
    let mut state = filled();
    let large = format!("\"{}\"", "x".repeat(WEIGHT_MAX / 3));
    for n in 0..10 {
        decide(&mut state, &write(&format!("k{n}"), &large, Expect::Any)).unwrap();
        assert!(n < 3 || notes(&state) <= 3, "{} notes", notes(&state));
    }
    decide(&mut state, &write("k1", "1", Expect::Any)).unwrap();
    assert!(notes(&state) > 0);
    let key = Key::parse("d").unwrap();
    let paths = vec!["n".into()];
    decide(&mut state, &proposal(Command::SetUnique { key, paths, expect: Expect::Any, configs_read: None }))
        .unwrap();
    decide(&mut state, &write("k1", "2000", Expect::Any)).unwrap();
    assert_eq!(notes(&state), 0);
    same(&state, &rebuilt(&state));
    let mut small = State::new();
    decide(&mut small, &define("d")).unwrap();
    for n in 0..CONFIGS_PER_NOTE - 1 {
        decide(&mut small, &write(&format!("k{n}"), "1", Expect::Any)).unwrap();
        assert_eq!(notes(&small), 0);
    }
}
