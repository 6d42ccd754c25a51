//! Every verdict of every command, compared with a state that is rebuilt from its records.

mod redefine;

use super::*;
use crate::{BySlot, builder::StateBuilder};
use concord_model::{
    access_key::Author,
    command::{BatchStep, ConfigRead, IdempotencyKey, Transaction},
    record::{IndexEntries, IndexEntry, VoidRevisions},
};

pub(crate) fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

pub(crate) fn proposal(command: Command) -> Proposal {
    Proposal {
        at: Timestamp(1000),
        by: "root".into(),
        reason: None,
        request: None,
        definition_read: None,
        command,
        author: Author::Root,
        tail: None,
    }
}

pub(crate) fn define(name: &str) -> Proposal {
    proposal(Command::CreateDefinition { key: key(name), indexes: vec!["n".into()], schema: None })
}

pub(crate) fn write(name: &str, data: &str, expect: Expect) -> Proposal {
    let entries: IndexEntries = Box::new([IndexEntry { slot: 0, value: data.as_bytes().into() }]);
    let (definition, data) = (key("d"), data.into());
    proposal(Command::WriteConfig { definition, key: key(name), data, entries, expect })
}

pub(crate) fn delete(name: &str, expect: Expect) -> Proposal {
    proposal(Command::DeleteConfig { definition: key("d"), key: key(name), expect })
}

/// Applies at the next revision.
pub(crate) fn decide(state: &mut State, proposal: &Proposal) -> Outcome {
    match state.apply(state.revision() + 1, proposal).0 {
        Verdict::Decided(outcome) => outcome,
        Verdict::Stale => panic!("stale"),
    }
}

/// The same state, built from its records.
pub(crate) fn rebuilt(state: &State) -> State {
    let mut builder = StateBuilder::new();
    for collection in state.stored_definitions() {
        builder.definition((*collection.definition).clone()).unwrap();
        for config in collection.configs() {
            builder.config(collection.definition.id, (**config).clone()).unwrap();
        }
    }
    for request in state.requests() {
        builder.request(request.clone()).unwrap();
    }
    builder.feature_level(state.feature_level());
    builder.finish(state.revision(), state.last_at()).unwrap()
}

pub(crate) fn same(a: &State, b: &State) {
    assert_eq!(a.digest(), b.digest());
    assert_eq!(a.config_count(), b.config_count());
    for (a, b) in a.definitions().zip(b.definitions()) {
        let slots = |c: &Collection| -> Vec<Vec<(Vec<u8>, String)>> {
            let item = |i: &BySlot| (i.value().to_vec(), i.key.to_string());
            c.indexes().by_slot.iter().map(|index| index.from(0).map(item).collect()).collect()
        };
        assert_eq!((slots(a), &a.repeated), (slots(b), &b.repeated));
        let keys = |c: &Collection| -> Vec<String> {
            let created = c.indexes().by_created.from(0).map(|c| c.of.to_string());
            created.chain(c.indexes().by_modified.from(0).map(|c| c.of.to_string())).collect()
        };
        assert_eq!(keys(a), keys(b));
    }
}

#[test]
fn every_verdict_on_configs() {
    use Rejection::{ConfigExists, ConfigNotFound, DefinitionNotFound, Precondition};
    let mut state = State::new();
    assert_eq!(decide(&mut state, &write("k", "1", Expect::Absent)), Err(DefinitionNotFound));
    decide(&mut state, &define("d")).unwrap();
    assert_eq!(decide(&mut state, &write("k", "1", Expect::Present)), Err(ConfigNotFound));
    assert_eq!(decide(&mut state, &write("k", "1", Expect::At(9))), Err(ConfigNotFound));
    let created = decide(&mut state, &write("k", "1", Expect::Absent)).unwrap();
    assert!(created.has_created());
    let current = created.revision;
    assert_eq!(decide(&mut state, &write("k", "1", Expect::Absent)), Err(ConfigExists));
    assert_eq!(decide(&mut state, &write("k", "1", Expect::None)), Err(Precondition { current }));
    assert_eq!(decide(&mut state, &write("k", "1", Expect::At(1))), Err(Precondition { current }));
    let second = decide(&mut state, &write("k", "2", Expect::At(current))).unwrap();
    assert!(!second.has_created() && second.revision > current);
    assert_eq!(
        decide(&mut state, &delete("k", Expect::At(current))),
        Err(Precondition { current: second.revision })
    );
    same(&state, &rebuilt(&state));
    decide(&mut state, &delete("k", Expect::Present)).unwrap();
    assert_eq!(decide(&mut state, &delete("k", Expect::Any)), Err(ConfigNotFound));
    assert_eq!(state.config_count(), 0);
    same(&state, &rebuilt(&state));
}

#[test]
fn every_verdict_on_definitions() {
    let mut state = State::new();
    let end = |restrict, expect| {
        proposal(Command::DeleteDefinition { key: key("d"), expect, restrict, keep: None })
    };
    assert_eq!(decide(&mut state, &end(false, Expect::Any)), Err(Rejection::DefinitionNotFound));
    let created = decide(&mut state, &define("d")).unwrap();
    assert_eq!(decide(&mut state, &define("d")), Err(Rejection::DefinitionExists));
    decide(&mut state, &write("k", "1", Expect::Any)).unwrap();
    assert_eq!(decide(&mut state, &end(true, Expect::Any)), Err(Rejection::DefinitionNotEmpty(1)));
    let current = created.revision;
    assert_eq!(decide(&mut state, &end(false, Expect::At(77))), Err(Rejection::Precondition { current }));
    let snapshot = state.clone();
    decide(&mut state, &end(false, Expect::At(current))).unwrap();
    assert!(state.definition("d").is_none() && state.config_count() == 0);
    let id = snapshot.definition("d").unwrap().definition.id;
    assert_eq!(state.definition_by_id(id).map(|_| ()), None);
    assert!(snapshot.definition_by_id(id).is_some_and(|c| c.config("k").is_some()));
    same(&state, &rebuilt(&state));
}

#[test]
fn a_protected_definition_is_not_deleted_alone_or_in_a_batch() {
    let mut state = State::new();
    let created = decide(&mut state, &define("d")).unwrap();
    decide(&mut state, &write("k", "1", Expect::Any)).unwrap();
    let protect = |protected, expect| Command::SetProtection { key: key("d"), protected, expect };
    let end = || Command::DeleteDefinition {
        key: key("d"),
        expect: Expect::Any,
        restrict: false,
        keep: Some(1 << 20),
    };
    let decided = |state: &mut State, command| decide(state, &proposal(command));
    let early = Expect::At(created.revision + 7);
    assert!(matches!(decided(&mut state, protect(true, early)), Err(Rejection::Precondition { .. })));
    let set = decided(&mut state, protect(true, Expect::At(created.revision))).unwrap();
    assert_eq!(state.definition("d").unwrap().definition.revision, set.revision);
    same(&state, &rebuilt(&state));
    let protected = || Rejection::DefinitionProtected(key("d"));
    assert_eq!(decided(&mut state, end()), Err(protected()));
    let step = |command| BatchStep { definition_read: None, command };
    let batch = |steps: Vec<Command>| Command::Batch(steps.into_iter().map(step).collect());
    let rejected = decided(&mut state, batch(vec![end(), define("d").command]));
    assert_eq!(rejected, Err(Rejection::InBatch { index: 0, rejection: protected().into() }));
    // Its configs and its indexes change as ever.
    decide(&mut state, &delete("k", Expect::Any)).unwrap();
    let indexes = Command::SetIndexes { key: key("d"), indexes: vec!["n".into()], expect: Expect::Any };
    decided(&mut state, indexes).unwrap();
    assert!(state.definition("d").unwrap().definition.protected);
    decided(&mut state, batch(vec![protect(false, Expect::Any), end()])).unwrap();
    assert!(state.definition("d").is_none());
    same(&state, &rebuilt(&state));
    let of = state.last_deleted("d").unwrap().deleted_id();
    assert!(state.last_deleted("d").unwrap().definition.protected, "as it was before the batch");
    decided(&mut state, Command::UndeleteDefinition(Undeletion { key: key("d"), of, back: Vec::new() }))
        .unwrap();
    assert_eq!(decided(&mut state, end()), Err(protected()));
}

#[test]
fn a_command_that_was_checked_against_another_definition_is_stale() {
    let mut state = State::new();
    decide(&mut state, &define("d")).unwrap();
    let old = Proposal { definition_read: Some(99), ..write("k", "1", Expect::Any) };
    let before = state.digest();
    assert_eq!(state.apply(2, &old), (Verdict::Stale, None));
    assert_eq!(state.digest(), before);
    let fresh = Proposal { definition_read: Some(1), ..old };
    assert!(matches!(state.apply(3, &fresh), (Verdict::Decided(Ok(_)), Some(_))));
}

#[test]
fn a_command_that_was_computed_from_another_revision_is_stale() {
    let mut state = State::new();
    decide(&mut state, &define("d")).unwrap();
    let read = |read| write("k", "1", Expect::Read(read));
    assert_eq!(state.apply(2, &read(Some(1))), (Verdict::Stale, None), "there is no record");
    assert!(matches!(state.apply(3, &read(None)), (Verdict::Decided(Ok(_)), Some(_))));
    assert_eq!(state.apply(4, &read(None)), (Verdict::Stale, None), "there is one");
    assert_eq!(state.apply(5, &read(Some(2))), (Verdict::Stale, None), "it is of revision 3");
    assert!(matches!(state.apply(6, &read(Some(3))), (Verdict::Decided(Ok(_)), Some(_))));
    assert_eq!(state.apply(7, &delete("k", Expect::Read(Some(3)))), (Verdict::Stale, None));
}

#[test]
fn a_transaction_that_was_chosen_by_another_state_is_stale_and_changes_nothing() {
    let mut state = State::new();
    decide(&mut state, &define("d")).unwrap();
    decide(&mut state, &write("k", "1", Expect::Any)).unwrap();
    let chosen_by = |definition: &str, name: &str, revision| {
        let reads = vec![ConfigRead { definition: key(definition), key: key(name), revision }];
        let Proposal { command, definition_read, .. } = write("other", "1", Expect::Any);
        let steps = vec![(0, BatchStep { command, definition_read })];
        proposal(Command::Transaction(Transaction { reads, chosen: Ok(true), steps }))
    };
    let old = [
        ("d", "k", Some(1), "it is of revision 2"),
        ("d", "k", None, "there is one"),
        ("d", "l", Some(2), "there is none"),
        ("e", "k", Some(2), "there is no such definition"),
    ];
    for (definition, name, revision, why) in old {
        let before = state.digest();
        let transaction = chosen_by(definition, name, revision);
        assert_eq!(state.apply(3, &transaction), (Verdict::Stale, None), "{why}");
        assert_eq!(state.digest(), before);
    }
    assert!(decide(&mut state, &chosen_by("d", "l", None)).is_ok());
    assert!(decide(&mut state, &chosen_by("e", "k", None)).is_ok());
    assert!(decide(&mut state, &chosen_by("d", "k", Some(2))).is_ok());
}

#[test]
fn a_request_that_is_sent_again_gets_its_first_outcome() {
    let mut state = State::new();
    decide(&mut state, &define("d")).unwrap();
    let key = IdempotencyKey { id: [1; 16], fingerprint: [2; 16] };
    let first = Proposal { request: Some(key), ..write("k", "1", Expect::Absent) };
    let outcome = decide(&mut state, &first);
    assert_eq!(state.apply(9, &first), (Verdict::Decided(outcome.clone()), None));
    let other = IdempotencyKey { fingerprint: [3; 16], ..key };
    let other = Proposal { request: Some(other), ..first.clone() };
    assert_eq!(decide(&mut state, &other), Err(Rejection::RequestReused));
    let refused = IdempotencyKey { id: [4; 16], ..key };
    let refused = Proposal { request: Some(refused), ..first.clone() };
    assert_eq!(decide(&mut state, &refused), Err(Rejection::ConfigExists));
    decide(&mut state, &delete("k", Expect::Any)).unwrap();
    assert_eq!(decide(&mut state, &refused), Err(Rejection::ConfigExists), "rejections are remembered, too");
    same(&state, &rebuilt(&state));
    let late = Timestamp(concord_model::limits::REMEMBERED_REQUEST_AGE_US + 10_000);
    let late = Proposal { at: late, ..first };
    assert_eq!(decide(&mut state, &late), outcome, "a stored outcome counts until the log expires it");
    let forget = Command::Forget { upto: state.revision() };
    decide(&mut state, &Proposal { request: None, command: forget, ..late.clone() }).unwrap();
    assert_eq!(state.request_count(), 0);
    assert!(decide(&mut state, &late).is_ok(), "an expired outcome counts as none");
    assert_eq!(state.request_count(), 1);
    same(&state, &rebuilt(&state));
}

#[test]
fn times_grow_and_entries_without_effect_change_nothing() {
    let mut state = State::new();
    decide(&mut state, &define("d")).unwrap();
    let first = decide(&mut state, &write("k", "1", Expect::Any)).unwrap();
    let second = decide(&mut state, &write("k", "1", Expect::Any)).unwrap();
    assert_eq!(second.at.0, first.at.0 + 1);
    let before = (state.digest(), state.last_at());
    decide(&mut state, &delete("missing", Expect::Any)).unwrap_err();
    state.advance(99);
    assert_eq!((state.digest(), state.last_at()), before);
    assert_eq!(state.revision(), 99);
}

#[test]
fn the_compaction_revision_only_rises_and_never_above_the_revision_of_the_state() {
    let mut state = State::new();
    let digest = state.digest();
    for (revision, asked, expected) in [(5, 3, 3), (6, 2, 3), (7, 100, 7), (8, 8, 8)] {
        let command = Command::Compact { compaction_revision: asked };
        let (_, change) = state.apply(revision, &proposal(command));
        assert_eq!((change, state.compaction_revision()), (None, expected));
    }
    assert_eq!(state.digest(), digest);
    state.advance(9);
    assert_eq!(state.clone().restored_at(20).compaction_revision(), 20);
    assert_eq!(state.restored_at(20).revision(), 20);
}

#[test]
fn the_level_rises_by_one_and_is_part_of_the_digest() {
    let mut state = State::new();
    let digest = state.digest();
    for (revision, to, expected) in [(1, 0, 1), (2, 3, 1), (3, 2, 2), (4, 1, 2), (5, 2, 2), (6, 4, 2)] {
        let command = Command::RaiseFeatureLevel { to };
        let (_, change) = state.apply(revision, &proposal(command));
        assert_eq!((change, state.feature_level()), (None, expected), "to {to}");
        assert_eq!(state.digest() == digest, expected == 1, "to {to}");
    }
}

#[test]
fn skipped_revisions_are_void_until_they_are_compacted() {
    let (mut state, digest) = (State::new(), State::new().digest());
    let skip =
        |state: &mut State, revision, to| state.apply(revision, &proposal(Command::SkipRevisions { to }));
    let (verdict, change) = skip(&mut state, 5, 100);
    assert!(matches!(verdict, Verdict::Decided(Ok(Applied { revision: 100, .. }))), "{verdict:?}");
    assert_eq!((state.revision(), state.digest(), state.last_at()), (100, digest, Timestamp(0)));
    let change = change.expect("the history tells what was skipped");
    assert_eq!(
        (change.revision, &change.edits[..]),
        (100, &[Edit::Skipped(VoidRevisions { first: 5, last: 99 })][..])
    );
    // One that has passed does nothing.
    let (_, change) = skip(&mut state, 101, 50);
    assert_eq!(change, None);
    skip(&mut state, 102, 1000);
    let void = [VoidRevisions { first: 5, last: 99 }, VoidRevisions { first: 102, last: 999 }];
    assert_eq!((state.revision(), state.void_revisions()), (1000, &void[..]));
    for (revision, expected) in
        [(4, None), (5, Some(void[0])), (99, Some(void[0])), (100, None), (500, Some(void[1]))]
    {
        assert_eq!(state.void_at(revision), expected, "{revision}");
    }
    for (count, expected) in [(0, 1000), (1, 101), (2, 100), (3, 4), (6, 1), (100, 0)] {
        assert_eq!(state.revision_before(count), expected, "{count}");
    }
    let compact = |state: &mut State, revision| {
        state.apply(1001, &proposal(Command::Compact { compaction_revision: revision }));
    };
    compact(&mut state, 99);
    assert_eq!(state.void_revisions(), void);
    compact(&mut state, 100);
    assert_eq!(state.void_revisions(), &void[1..]);
}
