//! Counts of records and bytes, and the writes that a quota rejects.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::builder::StateBuilder;
use concord_model::{
    access_key::{Author, Grant, KeyId, KeyUse, Quota},
    command::{AccessCommand, BatchStep, Command, Expect, KeyTerms, Verdict},
    key::Key,
    record::Revision,
    time::Timestamp,
};

fn grant(verbs: &[Verb], patterns: &[&str]) -> Grant {
    let definitions = patterns.iter().map(|text| Pattern::parse(text).unwrap()).collect();
    Grant { verbs: verbs.iter().copied().collect(), definitions }
}

fn define(name: &str) -> Command {
    Command::CreateDefinition { key: Key::parse(name).unwrap(), indexes: Vec::new(), schema: None }
}

/// A config whose key and data have so many bytes together.
fn write(definition: &str, key: &str, bytes: usize) -> Command {
    let data = "x".repeat(bytes - key.len()).into();
    let (definition, key) = (Key::parse(definition).unwrap(), Key::parse(key).unwrap());
    Command::WriteConfig { definition, key, data, entries: Box::default(), expect: Expect::Any }
}

fn delete(definition: &str, key: &str) -> Command {
    let (definition, key) = (Key::parse(definition).unwrap(), Key::parse(key).unwrap());
    Command::DeleteConfig { definition, key, expect: Expect::Any }
}

/// A state with a key of these grants and this quota.
struct StoredWorld {
    state: State,
    key: KeyUse,
}

impl StoredWorld {
    fn new(grants: Vec<Grant>, quota: Quota) -> Self {
        let id = KeyId::parse("aaaaaaaaaaaa").unwrap();
        let key = KeyUse { id: id.clone(), revision: 1, secret: 1 };
        let mut world = Self { state: State::new(), key };
        let terms = KeyTerms { name: "n".into(), grants: Grants(grants), quota, expires_at: None };
        world.root(Command::Access(AccessCommand::Create { id, terms, sha256: [1; 32], person: None }));
        world
    }

    fn apply(&mut self, key: Option<KeyUse>, command: Command) -> Result<(), Rejection> {
        let revision: Revision = self.state.revision() + 1;
        let author = key.map_or(Author::Root, Author::Key);
        let proposal = Proposal::new(Timestamp(revision), "somebody", author, command);
        let (verdict, change) = self.state.apply(revision, &proposal);
        assert_eq!(self.state.revision(), revision);
        match verdict {
            Verdict::Decided(outcome) => {
                assert_eq!(
                    outcome.is_err(),
                    change.is_none() && outcome.is_err(),
                    "a refusal changes nothing"
                );
                outcome.map(drop)
            }
            Verdict::Stale => panic!("stale"),
        }
    }

    fn root(&mut self, command: Command) {
        self.apply(None, command).unwrap();
    }

    fn by_key(&mut self, command: Command) -> Result<(), Rejection> {
        self.apply(Some(self.key.clone()), command)
    }

    fn stored(&self) -> StoredTotals {
        let key = self.state.access_key(&self.key.id).unwrap();
        self.state.stored_under(&key.grants)
    }
}

fn batch(commands: Vec<Command>) -> Command {
    let step = |command| BatchStep { definition_read: None, command };
    Command::Batch(commands.into_iter().map(step).collect())
}

#[test]
fn a_write_with_too_many_entries_is_rejected_and_changes_nothing() {
    let quota = Quota { bytes: Some(100), records: Some(4), ..Quota::default() };
    let mut world = StoredWorld::new(vec![grant(&[Verb::Write, Verb::Define], &["app.*", "app.eu"])], quota);
    world.by_key(define("app.eu")).unwrap();
    world.by_key(write("app.eu", "a", 60)).unwrap();
    assert_eq!(world.stored(), StoredTotals { bytes: 60, records: 2 });
    let digest = world.state.digest();
    let refused = world.by_key(write("app.eu", "b", 41)).unwrap_err();
    assert_eq!(refused, Rejection::QuotaExceeded { quota: StoredQuota::Bytes, limit: 100, needed: 101 });
    assert_eq!(world.state.digest(), digest);
    world.by_key(write("app.eu", "b", 40)).unwrap();
    assert!(world.by_key(write("app.eu", "a", 61)).is_err(), "a larger one in the place of another");
    world.by_key(write("app.eu", "a", 10)).unwrap();
    world.by_key(define("app.us")).unwrap();
    let refused = world.by_key(write("app.us", "c", 2)).unwrap_err();
    assert_eq!(refused, Rejection::QuotaExceeded { quota: StoredQuota::Records, limit: 4, needed: 5 });
    // A batch is judged as a whole.
    world
        .by_key(batch(vec![write("app.us", "c", 90), delete("app.eu", "b"), delete("app.eu", "a")]))
        .unwrap();
    let digest = world.state.digest();
    assert!(world.by_key(batch(vec![delete("app.us", "c"), write("app.us", "d", 101)])).is_err());
    assert_eq!((world.state.digest(), world.stored()), (digest, StoredTotals { bytes: 90, records: 3 }));
}

#[test]
fn writes_of_others_count_and_a_write_that_shrinks_is_never_rejected() {
    let quota = Quota { bytes: Some(10), ..Quota::default() };
    let mut world =
        StoredWorld::new(vec![grant(&[Verb::Write], &["app"]), grant(&[Verb::Read], &["*"])], quota);
    for name in ["app", "other"] {
        world.root(define(name));
        world.root(write(name, "a", 50));
        world.root(write(name, "b", 50));
    }
    assert_eq!(world.stored(), StoredTotals { bytes: 100, records: 3 }, "not what it may only read");
    assert!(world.by_key(write("app", "c", 2)).is_err());
    world.by_key(write("app", "a", 50)).unwrap();
    world.by_key(write("app", "a", 49)).unwrap();
    world.by_key(delete("app", "b")).unwrap();
    assert!(world.by_key(write("app", "a", 50)).is_err());
    world.root(write("app", "c", 1000));
}

#[test]
fn definitions_that_several_patterns_name_count_once() {
    let mut world = StoredWorld::new(Vec::new(), Quota::default());
    for name in ["app", "app.eu", "app.eu.west", "application", "b"] {
        world.root(define(name));
        world.root(write(name, "k", 10));
    }
    let under = |patterns: &[&str]| world.state.stored_under(&Grants(vec![grant(&[Verb::Define], patterns)]));
    let many = |count: u64| StoredTotals { bytes: 10 * count, records: 2 * count };
    assert_eq!(under(&["app"]), many(1));
    assert_eq!(under(&["app.*"]), many(2));
    assert_eq!(under(&["app*", "app.eu", "application"]), many(4));
    assert_eq!(under(&["app.eu", "app*", "absent", "app.eu*"]), many(4));
    assert_eq!((under(&["*"]), under(&["b", "*"]), under(&[])), (many(5), many(5), many(0)));
}

/// What the definitions of these grants hold, counted record by record.
fn counted(state: &State, grants: &Grants) -> StoredTotals {
    let mut counted = StoredTotals::default();
    for collection in state.definitions() {
        if grants.allows(Verb::Write, Some(collection.definition.key.as_str())) {
            counted.records += 1 + collection.by_key.len();
            counted.bytes +=
                collection.configs().map(|config| content_bytes(Arc::as_ref(config))).sum::<u64>();
        }
    }
    counted
}

#[test]
fn the_counts_are_those_of_many_definitions() {
    let mut world = StoredWorld::new(Vec::new(), Quota::default());
    let patterns: [&[&str]; 6] =
        [&["d1*"], &["d05*", "d0*", "d051"], &["d100", "d3*"], &["e*"], &["*"], &["d2*", "d1*", "d199"]];
    for turn in 0..1200_usize {
        // All of 400 definitions in an order that visits each part of the index, then again.
        let name = format!("d{:03}", turn * 7919 % 400);
        let command = match turn / 400 {
            0 => define(&name),
            1 => write(&name, "k", 10 + turn % 90),
            _ if turn % 3 == 0 => write(&name, "k", 10 + turn % 70),
            _ if turn % 3 == 1 => delete(&name, "k"),
            _ => Command::DeleteDefinition {
                key: Key::parse(&name).unwrap(),
                expect: Expect::Any,
                restrict: false,
                keep: None,
            },
        };
        world.root(command);
        if turn % 50 == 49 {
            for patterns in patterns {
                let grants = Grants(vec![grant(&[Verb::Write], patterns)]);
                assert_eq!(world.state.stored_under(&grants), counted(&world.state, &grants), "{patterns:?}");
            }
        }
    }
}

/// The same state from its records.
fn rebuilt(state: &State) -> State {
    let mut builder = StateBuilder::new();
    for collection in state.definitions() {
        builder.definition((*collection.definition).clone()).unwrap();
        for config in collection.configs() {
            builder.config(collection.definition.id, (**config).clone()).unwrap();
        }
    }
    builder.finish(state.revision(), state.last_at()).unwrap()
}

proptest! {
    #[test]
    fn the_counts_are_those_of_the_records(steps in prop::collection::vec((0..3_usize, 0..4_usize, 0..6_usize), 1..40)) {
        let names = ["a", "b", "b.c"];
        let mut world = StoredWorld::new(vec![grant(&[Verb::Write], &["b*"])], Quota::default());
        for (name, key, kind) in steps {
            let (name, key) = (names[name], ["k", "kk", "l", "m"][key]);
            let command = match kind {
                0 => define(name),
                1 => delete(name, key),
                2 => Command::DeleteDefinition { key: Key::parse(name).unwrap(), expect: Expect::Any, restrict: false, keep: None },
                bytes => write(name, key, 10 * bytes),
            };
            // What does not fit the state is rejected, and changes nothing.
            drop(world.apply(None, command));
        }
        let all = Grants(vec![grant(&[Verb::Write], &["*"])]);
        let built = rebuilt(&world.state);
        for grants in [&all, &world.state.access_key(&world.key.id).unwrap().grants] {
            let counted = counted(&world.state, grants);
            prop_assert_eq!(world.state.stored_under(grants), counted);
            prop_assert_eq!(built.stored_under(grants), counted);
        }
    }
}
