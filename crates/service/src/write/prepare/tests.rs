//! The results of preparing writes against a state.

use super::*;
use crate::write::testing::{apply, prepared, proposed, request};
use concord_model::{
    command::{IdempotencyKey, Verdict},
    document,
    patch::{Patch, PatchFormat},
};

fn document(text: &str) -> Document {
    Document::new(document::parse(text.as_bytes(), 64).unwrap())
}

fn put(key: &str, text: &str, expect: Expect) -> Write {
    Write::WriteConfig { definition: "app".into(), key: key.into(), data: document(text), expect }
}

/// A definition `app` at revision 1, whose `n` is an integer, and its config `db` at revision 2.
fn state() -> State {
    let mut state = State::new();
    let schema = document(r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}"#);
    let (key, indexes) = ("app".into(), vec!["n".into()]);
    apply(
        &mut state,
        &request(Write::CreateDefinition { key, indexes, schema: Some(schema), format_assertion: None }),
    );
    apply(&mut state, &request(put("db", r#"{"n":1}"#, Expect::Absent)));
    state
}

#[test]
fn checks_come_in_the_order_of_the_contract() {
    let state = state();
    let (good, bad) = (r#"{"n":2}"#, r#"{"n":"two"}"#);
    let rejected = |write| match prepared(&state, &request(write)) {
        Err(Refusal::Rejected(rejection)) => Some(rejection),
        Err(Refusal::Invalid(_)) => None,
        other => panic!("{other:?}"),
    };
    let elsewhere =
        Write::DeleteConfig { definition: "none".into(), key: "a/b".into(), expect: Expect::Present };
    for (write, expected) in [
        (elsewhere, Some(Rejection::DefinitionNotFound)),
        (put("a/b", bad, Expect::Absent), None),
        (put("db", bad, Expect::Absent), Some(Rejection::ConfigExists)),
        (put("new", bad, Expect::Absent), None),
        (put("new", bad, Expect::Present), None),
        (put("new", good, Expect::Present), Some(Rejection::ConfigNotFound)),
        (put("new", bad, Expect::At(2)), Some(Rejection::ConfigNotFound)),
        (put("db", bad, Expect::At(1)), Some(Rejection::Precondition { current: 2 })),
        (put("db", bad, Expect::At(2)), None),
        (put("db", good, Expect::None), Some(Rejection::Precondition { current: 2 })),
    ] {
        let shown = format!("{write:?}");
        assert_eq!(rejected(write), expected, "{shown}");
    }
}

#[test]
fn a_rollback_is_validated_against_the_current_definition() {
    let state = state();
    let id = state.definition("app").unwrap().definition.id;
    let back = |id, key: &str, text, expect| {
        let (definition, key) = ("app".into(), key.into());
        let restored = Restored::Found { id, data: document(text) };
        prepared(&state, &request(Write::Rollback(Rollback { definition, key, restored, expect })))
    };
    let Prepared::Propose(gone) = back(id, "gone", r#"{"n":2}"#, Expect::Any).unwrap() else {
        panic!("decided before")
    };
    assert!(matches!(gone.command, Command::WriteConfig { expect: Expect::Any, .. }));
    assert_eq!(gone.definition_read, Some(1));
    assert!(matches!(back(id, "db", r#"{"n":"two"}"#, Expect::Any), Err(Refusal::Invalid(_))));
    assert!(matches!(back(id + 1, "db", r#"{"n":2}"#, Expect::Any), Err(Refusal::NotThere(_))));
    let stale = Err(Refusal::Rejected(Rejection::Precondition { current: 2 }));
    assert_eq!(back(id, "db", r#"{"n":2}"#, Expect::At(1)), stale);
}

#[test]
fn a_command_rests_on_the_definition_it_was_checked_against() {
    let mut state = state();
    let write = proposed(&state, &request(put("db", r#"{"n":2}"#, Expect::Present)));
    let Command::WriteConfig { entries, .. } = &write.command else { panic!("{write:?}") };
    assert_eq!((entries.len(), write.definition_read), (1, Some(1)));
    let (key, indexes) = (String::from("app"), Vec::new());
    let set = request(Write::SetIndexes { key, indexes, expect: Expect::Present });
    assert!(matches!(apply(&mut state, &set), Verdict::Decided(Ok(_))));
    assert_eq!(proposed(&state, &set).definition_read, Some(3));
}

#[test]
fn violations_have_their_location_in_the_body() {
    let state = state();
    let locs = |write| match prepared(&state, &request(write)) {
        Err(Refusal::Invalid(Invalid::Violations(violations))) => {
            violations.into_iter().map(|violation| violation.loc[0].clone()).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(locs(put("db", "{}", Expect::Present)), ["data".into()]);
    let create = |indexes: &[&str], schema: &str| Write::CreateDefinition {
        key: "new".into(),
        indexes: indexes.iter().copied().map(String::from).collect(),
        schema: Some(document(schema)),
        format_assertion: None,
    };
    assert_eq!(locs(create(&[], r#"{"type":"nothing"}"#)), ["json_schema".into()]);
    assert_eq!(locs(create(&["x"], r#"{"properties":{"n":{}}}"#)), ["indexes".into()]);
}

#[test]
fn a_retry_gets_the_stored_response_and_another_body_is_rejected() {
    let mut state = state();
    let mut first = request(put("new", r#"{"n":1}"#, Expect::Absent));
    first.caller.idempotency_key = Some(IdempotencyKey { id: [1; 16], fingerprint: [1; 16] });
    let Verdict::Decided(outcome) = apply(&mut state, &first) else { panic!("stale") };
    assert_eq!(prepared(&state, &first), Ok(Prepared::Known(outcome)));
    first.caller.idempotency_key = Some(IdempotencyKey { id: [1; 16], fingerprint: [2; 16] });
    assert_eq!(prepared(&state, &first), Ok(Prepared::Known(Err(Rejection::RequestReused))));
}

#[test]
fn the_log_rejects_a_request_with_an_idempotency_key_unless_its_data_is_invalid() {
    let mut state = state();
    let with_key = |text| {
        let mut request = request(put("db", text, Expect::Absent));
        request.caller.idempotency_key = Some(IdempotencyKey { id: [3; 16], fingerprint: [3; 16] });
        request
    };
    let exists = Err(Rejection::ConfigExists);
    assert_eq!(prepared(&state, &with_key("{}")), Err(Rejection::ConfigExists.into()));
    assert_eq!(apply(&mut state, &with_key(r#"{"n":2}"#)), Verdict::Decided(exists.clone()));
    assert_eq!(prepared(&state, &with_key(r#"{"n":2}"#)), Ok(Prepared::Known(exists)));
}

#[test]
fn a_definition_without_a_schema_takes_any_object() {
    let mut state = State::new();
    let bare = Write::CreateDefinition {
        key: "app".into(),
        indexes: Vec::new(),
        schema: None,
        format_assertion: None,
    };
    apply(&mut state, &request(bare));
    assert!(prepared(&state, &request(put("k", r#"{"any":[1]}"#, Expect::Absent))).is_ok());
    assert!(prepared(&state, &request(put("k", "[1]", Expect::Absent))).is_err());
}

#[test]
fn each_precondition_accepts_the_records_that_it_names() {
    let (exists, missing) = (Rejection::ConfigExists, Rejection::ConfigNotFound);
    let check = |expect, current| check_expect(expect, current, exists.clone(), missing.clone());
    let differs = Rejection::Precondition { current: 7 };
    for (expect, absent, at_seven) in [
        (Expect::Any, Ok(()), Ok(())),
        (Expect::Absent, Ok(()), Err(exists.clone())),
        (Expect::None, Ok(()), Err(differs.clone())),
        (Expect::Present, Err(missing.clone()), Ok(())),
        (Expect::At(7), Err(missing.clone()), Ok(())),
        (Expect::At(6), Err(missing.clone()), Err(differs)),
    ] {
        assert_eq!(check(expect, None), absent, "{expect:?} of nothing");
        assert_eq!(check(expect, Some(7)), at_seven, "{expect:?} of revision 7");
    }
}

#[test]
fn data_above_the_limit_and_an_invalid_key_are_rejected_before_the_state_is_read() {
    let limits = Limits { data_bytes: 4, ..Limits::default() };
    let write = |definition: &str, text: &str| Write::WriteConfig {
        definition: definition.into(),
        key: "not/checked/yet".into(),
        data: Document { text: text.into(), value: Value::Null },
        expect: Expect::Absent,
    };
    assert_eq!(check_intake(&write("app", "null"), &limits), Ok(()));
    let long = check_intake(&write("a/b", "[null]"), &limits);
    assert!(matches!(long, Err(Invalid::TooLarge(text)) if text.contains("limit is 4 bytes")));
    assert!(matches!(check_intake(&write("a/b", "null"), &limits), Err(Invalid::Violations(_))));
}

/// The refusal of a batch that contains the same patch so many times.
fn refused_patches(data: &str, format: PatchFormat, patch: &str, count: usize) -> Refusal {
    let (mut state, key) = (State::new(), || "app".to_owned());
    apply(
        &mut state,
        &request(Write::CreateDefinition {
            key: key(),
            indexes: vec![],
            schema: None,
            format_assertion: None,
        }),
    );
    apply(&mut state, &request(put("db", data, Expect::Absent)));
    let patch = Patch { format, document: document(patch) };
    let write = |_| Write::PatchConfig {
        definition: key(),
        key: "db".into(),
        patch: patch.clone(),
        expect: Expect::Present,
    };
    prepared(&state, &request(Write::Batch((0..count).map(write).collect()))).unwrap_err()
}

#[test]
fn failing_patches_count_towards_the_budget_of_a_batch() {
    let data = format!(r#"{{"a":"{}"}}"#, "x".repeat(1 << 20));
    let copies = r#"{"op":"copy","from":"/a","path":"/b"},"#.repeat(30);
    let failing = format!(r#"[{copies}{{"op":"remove","path":"/c"}}]"#);
    let is_limit = |refusal: &Refusal| matches!(refusal, Refusal::Invalid(Invalid::TooLargeAt(violation)) if violation.msg.contains("of one batch"));
    let refusal = refused_patches(&data, PatchFormat::Json, &failing, 3);
    assert!(matches!(refusal, Refusal::Invalid(Invalid::Violations(_))), "{refusal:?}");
    let refusal = refused_patches(&data, PatchFormat::Json, &failing, 6);
    assert!(is_limit(&refusal), "what they copy counts: {refusal:?}");
    let refusal = refused_patches(&data, PatchFormat::Json, r#"[{"op":"remove","path":"/c"}]"#, 130);
    assert!(is_limit(&refusal), "what they are applied to counts: {refusal:?}");
}
