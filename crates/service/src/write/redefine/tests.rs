//! A schema is compiled once, however often its write is prepared and the configs are checked.

use std::sync::OnceLock;

use serde_json::json;

use super::*;
use crate::{
    Principal,
    budget::Budget,
    request::Compiled,
    schemas::Validators,
    write::prepare::{Preparation, prepare},
};
use concord_model::schema::Formats;
use concord_model::{
    command::{Expect, Verdict},
    document::Document,
    limits::Limits,
    time::Timestamp,
};

fn request(write: Write) -> WriteRequest {
    let principal = Principal::root();
    let caller = Caller { principal, reason: None, idempotency_key: None, dry_run: false };
    WriteRequest { caller, write }
}

fn set(compiled: Compiled) -> WriteRequest {
    let schema = Some(Document::new(json!({"properties": {"n": {"type": "integer"}}})));
    let (key, expect, force) = ("d".into(), Expect::Present, false);
    request(Write::SetSchema(NewSchema { key, schema, format_assertion: None, expect, force, compiled }))
}

fn prepared(state: &State, request: &WriteRequest) -> Result<Prepared, Refusal> {
    let found = state.definition(request.write.definition());
    let budget = Budget::of_test(&request.write);
    let (validators, limits) = (Validators::default(), Limits::default());
    let principal = &request.caller.principal;
    let with = Preparation { validators: &validators, limits: &limits, budget: &budget, principal };
    prepare(state, found, request, with)
}

/// The revision of the definition that a write was prepared against.
fn read(state: &State, request: &WriteRequest) -> Option<Revision> {
    match prepared(state, request).unwrap() {
        Prepared::Propose { definition_read, .. } => definition_read,
        Prepared::Known(outcome) => panic!("{outcome:?} before it was requested"),
        Prepared::Read(_) => panic!("a change that changes nothing"),
    }
}

fn apply(state: &mut State, request: &WriteRequest) {
    let Prepared::Propose { command, definition_read } = prepared(state, request).unwrap() else { panic!() };
    let (verdict, _) =
        state.apply(state.revision() + 1, &request.proposal(Timestamp(1), command, definition_read, None));
    assert!(matches!(verdict, Verdict::Decided(Ok(_))), "{verdict:?}");
}

/// A definition `d` at revision 1.
fn state() -> State {
    let mut state = State::new();
    let (key, indexes, schema) = ("d".into(), Vec::new(), None);
    apply(&mut state, &request(Write::CreateDefinition { key, indexes, schema, format_assertion: None }));
    state
}

#[test]
fn the_schema_that_the_first_preparation_compiled_serves_later_ones_and_the_scan() {
    let mut state = state();
    let compiled = Compiled::default();
    // A copy of the write shares it.
    let set = set(compiled.clone());
    assert!(compiled.0.get().is_none());
    assert_eq!(read(&state, &set), Some(1));
    let cached = compiled.0.get().expect("the first preparation compiled it").1.clone().unwrap();

    let (key, indexes, expect) = ("d".into(), vec!["n".into()], Expect::Present);
    apply(&mut state, &request(Write::SetIndexes { key, indexes, expect }));
    assert_eq!(read(&state, &set), Some(2));
    let scan = Scan::of(&set.write, Formats::Asserted).unwrap();
    // The third reference is the scan's; the others are this one and the write's.
    assert_eq!(Arc::strong_count(&cached), 3);
    drop(scan);
    assert_eq!(Arc::strong_count(&cached), 2);
}

#[test]
fn a_preparation_that_finds_a_compiled_schema_does_not_compile_it() {
    let state = state();
    // A compilation would succeed: this error can only come from the cache.
    let cached = (Formats::Asserted, Err(vec![Violation::new("as it was cached")]));
    let again = set(Compiled(Arc::new(OnceLock::from(cached))));
    let Err(Refusal::Invalid(Invalid::Violations(violations))) = prepared(&state, &again) else {
        panic!("compiled by the preparation")
    };
    assert_eq!(violations[0].msg, "as it was cached");
    let Err(Refusal::Internal(text)) = Scan::of(&again.write, Formats::Asserted) else {
        panic!("compiled by the check")
    };
    assert!(text.contains("as it was cached"), "{text}");
}
