//! A schema is compiled once, however often its write is prepared and the configs are checked.

use std::sync::OnceLock;

use serde_json::json;

use super::*;
use crate::{
    request::LazySchema,
    write::testing::{apply, prepared, proposed, request},
};
use concord_model::{
    command::{Expect, Verdict},
    document::Document,
    schema::Formats,
};

fn set(compiled: LazySchema) -> WriteRequest {
    let schema = Some(Document::new(json!({"properties": {"n": {"type": "integer"}}})));
    let (key, expect, force) = ("d".into(), Expect::Present, false);
    request(Write::SetSchema(NewSchema { key, schema, format_assertion: None, expect, force, compiled }))
}

/// The revision of the definition that a write was prepared against.
fn read(state: &State, request: &WriteRequest) -> Option<Revision> {
    proposed(state, request).definition_read
}

fn done(state: &mut State, write: Write) {
    let verdict = apply(state, &request(write));
    assert!(matches!(verdict, Verdict::Decided(Ok(_))), "{verdict:?}");
}

/// A definition `d` at revision 1.
fn state() -> State {
    let mut state = State::new();
    let (key, indexes, schema) = ("d".into(), Vec::new(), None);
    done(&mut state, Write::CreateDefinition { key, indexes, schema, format_assertion: None });
    state
}

#[test]
fn the_schema_is_compiled_by_the_first_preparation_for_later_ones_and_the_scan() {
    let mut state = state();
    let compiled = LazySchema::default();
    // A copy of the write shares it.
    let set = set(compiled.clone());
    assert!(compiled.0.get().is_none());
    assert_eq!(read(&state, &set), Some(1));
    let cached = compiled.0.get().expect("the first preparation compiled it").1.clone().unwrap();

    let (key, indexes, expect) = ("d".into(), vec!["n".into()], Expect::Present);
    done(&mut state, Write::SetIndexes { key, indexes, expect });
    assert_eq!(read(&state, &set), Some(2));
    let scan = ConfigScan::of(&set.write, Formats::Asserted).unwrap();
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
    let again = set(LazySchema(Arc::new(OnceLock::from(cached))));
    let Err(Refusal::Invalid(Invalid::Violations(violations))) = prepared(&state, &again) else {
        panic!("compiled by the preparation")
    };
    assert_eq!(violations[0].msg, "as it was cached");
    let Err(Refusal::Internal(text)) = ConfigScan::of(&again.write, Formats::Asserted) else {
        panic!("compiled by the check")
    };
    assert!(text.contains("as it was cached"), "{text}");
}
