//! A schema is compiled once, however often the write that brings it is prepared and its configs are checked.

use serde_json::json;

use super::*;
use crate::{
    model::{command::Verdict, limits::Limits},
    service::{
        Principal,
        write::{prepare::prepare, validators::Validators},
    },
};

fn asked(write: Write) -> Asked {
    let principal = Principal { id: "root".into() };
    Asked { caller: Caller { principal, reason: None, request: None, dry_run: false }, write }
}

fn set(compiled: Compiled) -> Asked {
    let schema = Some(Document::new(json!({"properties": {"n": {"type": "integer"}}})));
    let (key, expect, force) = ("d".into(), Expect::Present, false);
    asked(Write::SetSchema(NewSchema { key, schema, expect, force, compiled }))
}

fn prepared(state: &State, asked: &Asked) -> Result<Prepared, Refusal> {
    prepare(state, asked, &Validators::default(), &Limits::default())
}

/// The revision of the definition that a write was prepared against.
fn read(state: &State, asked: &Asked) -> Option<Revision> {
    match prepared(state, asked).unwrap() {
        Prepared::Propose { definition_read, .. } => definition_read,
        Prepared::Known(outcome) => panic!("{outcome:?} before it was asked"),
    }
}

fn apply(state: &mut State, asked: &Asked) {
    let Prepared::Propose { command, definition_read } = prepared(state, asked).unwrap() else { panic!() };
    let (verdict, _) = state.apply(state.revision() + 1, &asked.proposal(command, definition_read));
    assert!(matches!(verdict, Verdict::Decided(Ok(_))), "{verdict:?}");
}

/// A definition `d` at revision 1.
fn state() -> State {
    let mut state = State::new();
    let (key, indexes, schema) = ("d".into(), Vec::new(), None);
    apply(&mut state, &asked(Write::CreateDefinition { key, indexes, schema }));
    state
}

#[test]
fn what_the_first_preparation_compiled_is_kept_for_the_next_and_for_the_check_of_the_configs() {
    let mut state = state();
    let compiled = Compiled::default();
    // A copy of the write is the same request.
    let asked_again = set(compiled.clone());
    assert!(compiled.0.get().is_none());
    assert_eq!(read(&state, &asked_again), Some(1));
    let kept = compiled.0.get().expect("the first preparation compiled it").clone().unwrap();

    let (key, indexes, expect) = ("d".into(), vec!["n".into()], Expect::Present);
    apply(&mut state, &asked(Write::SetIndexes { key, indexes, expect }));
    assert_eq!(read(&state, &asked_again), Some(2));
    let scan = Scan::of(&asked_again.write).unwrap();
    // The scan holds the third: beside this one and the write's.
    assert_eq!(Arc::strong_count(&kept), 3);
    drop(scan);
    assert_eq!(Arc::strong_count(&kept), 2);
}

#[test]
fn a_preparation_that_finds_a_compiled_schema_does_not_compile() {
    let state = state();
    // No compilation of this schema would say so: who does is one that looked at what is kept.
    let kept = Err(vec![Violation::new("as it was kept")]);
    let again = set(Compiled(Arc::new(OnceLock::from(kept))));
    let Err(Refusal::Invalid(Invalid::Violations(faults))) = prepared(&state, &again) else {
        panic!("compiled by the preparation")
    };
    assert_eq!(faults[0].msg, "as it was kept");
    let Err(Refusal::Internal(text)) = Scan::of(&again.write) else { panic!("compiled by the check") };
    assert!(text.contains("as it was kept"), "{text}");
}
