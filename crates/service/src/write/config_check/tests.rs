//! Changes of definitions in batches: the configs are checked as the earlier operations leave them.

use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    request::{LazySchema, NewSchema, NewUnique},
    write::{
        prepare::{Prepared, check_intake},
        testing,
    },
};
use concord_model::{
    access_key::Author,
    command::{Expect, Verdict},
    document::Document,
    error::LocSegment,
    key::Key,
    limits::{BATCH_CONFIG_CHECKS_MAX, Limits},
    patch::{Patch, PatchFormat},
    time::Timestamp,
};

const DEFINITIONS: [&str; 2] = ["d", "e"];
const CONFIGS: usize = 4;

fn request(operations: Vec<Write>) -> WriteRequest {
    testing::request(Write::Batch(operations))
}

fn define(key: &str) -> Write {
    Write::CreateDefinition {
        key: key.into(),
        indexes: vec!["n".into()],
        schema: None,
        format_assertion: None,
    }
}

fn put(definition: &str, key: &str, n: &Value, expect: Expect) -> Write {
    let data = Document::new(json!({ "n": n }));
    Write::WriteConfig { definition: definition.into(), key: key.into(), data, expect }
}

fn remove(definition: &str, key: &str) -> Write {
    Write::DeleteConfig { definition: definition.into(), key: key.into(), expect: Expect::Present }
}

fn schema(definition: &str, n: Option<&Value>, force: bool) -> Write {
    let schema = n.map(|n| Document::new(json!({"properties": {"n": n}})));
    let (compiled, expect) = (LazySchema::default(), Expect::Present);
    let key = definition.into();
    Write::SetSchema(NewSchema { key, schema, format_assertion: None, expect, force, compiled })
}

fn unique(definition: &str, paths: &[&str]) -> Write {
    let paths = paths.iter().map(|path| (*path).to_owned()).collect();
    Write::SetUnique(NewUnique { key: definition.into(), paths, expect: Expect::Present })
}

fn prepared(state: &State, request: &WriteRequest) -> Result<PreparedWrite, Refusal> {
    match testing::prepared(state, request)? {
        Prepared::Propose(prepared) => Ok(prepared),
        other @ (Prepared::Known(_) | Prepared::Read(_)) => panic!("{other:?}"),
    }
}

fn pass(scans: &mut ConfigScans, state: &State, request: &WriteRequest, steps: &CommandSteps) -> PassResult {
    let later = Instant::now() + Duration::from_secs(600);
    let cancel = Cancel::new(CancellationToken::new(), later);
    scans.pass(&request.write, steps, state, &mut ScanPace { cancel: &cancel, way: None }).unwrap()
}

fn apply(state: &mut State, request: &WriteRequest, prepared: PreparedWrite) -> Verdict {
    let proposal = request.proposal(Timestamp(1), prepared, Author::Root);
    state.apply(state.revision() + 1, &proposal).0
}

/// Carries out a batch that must be accepted.
fn done(state: &mut State, operations: Vec<Write>) {
    let request = request(operations);
    let mut prepared = prepared(state, &request).unwrap();
    let steps = CommandSteps::of(&prepared);
    let PassResult::Satisfied { revision, .. } = pass(&mut ConfigScans::default(), state, &request, &steps)
    else {
        panic!("{prepared:?}")
    };
    set_configs_read(&mut prepared.command, revision);
    let verdict = apply(state, &request, prepared);
    assert!(matches!(verdict, Verdict::Decided(Ok(_))), "{verdict:?}");
}

/// A state with the definitions and no configs.
fn state() -> State {
    let mut state = State::new();
    done(&mut state, DEFINITIONS.map(define).into());
    state
}

/// A definition after the operations so far, by a straightforward reading of the contract.
#[derive(Debug, Clone, Default, PartialEq)]
struct Expected {
    configs: BTreeMap<String, Value>,
    only: Option<String>,
    is_unique: bool,
}

impl Expected {
    fn fits(only: Option<&str>, n: &Value) -> bool {
        match only {
            None => true,
            Some("integer") => n.is_i64(),
            Some(_) => n.is_string(),
        }
    }

    fn all_fit(&self) -> bool {
        let values = self.configs.values();
        let fit = values.clone().all(|n| Self::fits(self.only.as_deref(), n));
        let differ = values
            .clone()
            .enumerate()
            .all(|(place, n)| !values.clone().skip(place + 1).any(|other| other == n));
        fit && (differ || !self.is_unique)
    }
}

type Model = BTreeMap<&'static str, Expected>;

fn any_value(random: &mut Rng) -> Value {
    if random.bool() { json!(random.i64(0..6)) } else { json!(random.i64(0..6).to_string()) }
}

/// An operation that is accepted by itself, and whether all configs fit after it; it is applied to the model.
fn operation(model: &mut Model, random: &mut Rng) -> (Write, bool) {
    let definition = DEFINITIONS[random.usize(..DEFINITIONS.len())];
    let kept = model.get_mut(definition).unwrap();
    match random.u8(0..8) {
        0 => {
            let only = [None, Some("integer"), Some("string")][random.usize(..3)];
            kept.only = only.map(str::to_owned);
            let kind = only.map(|only| json!({"type": only}));
            (schema(definition, kind.as_ref(), false), kept.all_fit())
        }
        1 => {
            kept.is_unique = random.bool();
            (unique(definition, if kept.is_unique { &["n"] } else { &[] }), kept.all_fit())
        }
        _ => {
            let key = format!("k{}", random.usize(..CONFIGS));
            if random.u8(0..4) == 0 && kept.configs.remove(&key).is_some() {
                return (remove(definition, &key), true);
            }
            for _ in 0..20 {
                let mut tried = kept.clone();
                let n = any_value(random);
                tried.configs.insert(key.clone(), n.clone());
                if tried.all_fit() {
                    *kept = tried;
                    return (put(definition, &key, &n, Expect::Any), true);
                }
            }
            // No value that was drawn fits.
            (unique(definition, if kept.is_unique { &["n"] } else { &[] }), true)
        }
    }
}

/// Random operations, up to the first that does not fit, and its place.
fn drawn(model: &mut Model, random: &mut Rng) -> (Vec<Write>, Option<usize>) {
    let mut operations = Vec::new();
    for place in 0..random.usize(1..10) {
        let (write, fits) = operation(model, random);
        operations.push(write);
        if !fits {
            return (operations, Some(place));
        }
    }
    (operations, None)
}

/// The operation whose constraint the configs violate.
fn operation_of(refusal: &Refusal) -> Option<usize> {
    let Refusal::OfOperation(place, refusal) = refusal else { return None };
    let is_of_configs = matches!(**refusal, Refusal::Breaks { .. } | Refusal::NotUniqueYet { .. });
    usize::try_from(*place).ok().filter(|_| is_of_configs)
}

/// Batches of random operations, compared with a model that checks all configs after each operation: on the state of
/// the preparation, and in a scan that continues from an earlier state.
#[test]
fn a_batch_is_accepted_exactly_when_all_configs_fit_after_each_of_its_operations() {
    let seed = 15;
    let mut random = Rng::with_seed(seed);
    let mut state = state();
    let mut model: Model = DEFINITIONS.iter().map(|name| (*name, Expected::default())).collect();
    let (mut accepted, mut refused, mut stale) = (0, 0, 0);
    for turn in 0..1500 {
        let mut next = model.clone();
        let (operations, breaks_at) = drawn(&mut next, &mut random);
        let request = request(operations);
        let mut prepared = prepared(&state, &request).unwrap_or_else(|refusal| panic!("{turn}: {refusal:?}"));
        let steps = CommandSteps::of(&prepared);
        let mut scans = ConfigScans::default();
        let first = pass(&mut scans, &state, &request, &steps);
        match (&breaks_at, &first) {
            (None, PassResult::Satisfied { revision: read, .. }) => {
                assert_eq!(*read, state.revision());
                // Another write, of a config that the batch does not write.
                if needs_config_check(&prepared.command) && random.bool() {
                    let definition = DEFINITIONS[random.usize(..2)];
                    let key = "other".to_owned();
                    let mut fits = model.clone();
                    let n = any_value(&mut random);
                    fits.get_mut(definition).unwrap().configs.insert(key.clone(), n.clone());
                    if fits[definition].all_fit() {
                        let checked = constraints(&request.write).any(|write| {
                            write.definition() == definition && is_checked(&prepared.command, definition)
                        });
                        done(&mut state, vec![put(definition, &key, &n, Expect::Any)]);
                        model = fits;
                        set_configs_read(&mut prepared.command, *read);
                        let verdict = apply(&mut state.clone(), &request, prepared.clone());
                        // A step before the check may be rejected: the other config has its value.
                        let is_applied = matches!(verdict, Verdict::Decided(Ok(_)));
                        assert!(!(checked && is_applied), "{turn}: {prepared:?}");
                        assert!(checked || verdict != Verdict::Stale, "{turn}: {prepared:?}");
                        stale += u64::from(verdict == Verdict::Stale);
                        // The continued scan finds the same as a new one.
                        let again = pass(&mut scans, &state, &request, &steps);
                        let fresh = pass(&mut ConfigScans::default(), &state, &request, &steps);
                        let kind = |pass: &PassResult| std::mem::discriminant(pass);
                        assert_eq!(kind(&again), kind(&fresh), "{turn}: {again:?} {fresh:?}");
                        continue;
                    }
                }
                set_configs_read(&mut prepared.command, *read);
                let verdict = apply(&mut state, &request, prepared);
                assert!(matches!(verdict, Verdict::Decided(Ok(_))), "{turn}: {verdict:?}");
                model = next;
                accepted += 1;
            }
            (Some(place), PassResult::Violated(refusal)) => {
                assert_eq!(operation_of(refusal), Some(*place), "{turn}: {refusal:?}");
                refused += 1;
            }
            other => panic!("{turn}: {other:?}, {:?}", request.write),
        }
    }
    assert!(accepted > 300 && refused > 100 && stale > 20, "{accepted} {refused} {stale}");
}

/// Whether a command needs the configs of a definition checked.
fn is_checked(command: &Command, definition: &str) -> bool {
    let Command::Batch(steps) = command else { return false };
    steps.iter().any(|step| {
        let (Command::SetSchema { key, configs_read, .. } | Command::SetUnique { key, configs_read, .. }) =
            &step.command
        else {
            return false;
        };
        key.as_str() == definition && configs_read.is_some()
    })
}

fn verdict(state: &State, operations: Vec<Write>) -> PassResult {
    let request = request(operations);
    let steps = CommandSteps::of(&prepared(state, &request).unwrap());
    pass(&mut ConfigScans::default(), state, &request, &steps)
}

#[test]
fn configs_are_corrected_and_the_schema_changed_in_one_batch() {
    let mut state = state();
    let integer = json!({"type": "integer"});
    done(&mut state, vec![put("d", "a", &json!("1"), Expect::Any), put("d", "b", &json!("2"), Expect::Any)]);
    let corrected = |key: &str, n: i64| put("d", key, &json!(n), Expect::Present);
    let change = || schema("d", Some(&integer), false);
    let PassResult::Violated(Refusal::OfOperation(1, refusal)) =
        verdict(&state, vec![corrected("a", 1), change()])
    else {
        panic!("`b` is a string")
    };
    let Refusal::Breaks { count: 1, violations } = *refusal else { panic!("{refusal:?}") };
    assert_eq!(violations[0].loc, [LocSegment::from("json_schema")]);
    assert_eq!(violations[1].loc[0], "config".into());
    // In the other order the configs violate the schema when it changes, unless the change is forced.
    let reversed = verdict(&state, vec![change(), remove("d", "a"), remove("d", "b")]);
    assert!(matches!(reversed, PassResult::Violated(_)));
    let patched = Write::PatchConfig {
        definition: "d".into(),
        key: "b".into(),
        patch: Patch { format: PatchFormat::Merge, document: Document::new(json!({"n": 2})) },
        expect: Expect::Present,
    };
    done(&mut state, vec![corrected("a", 1), patched, change(), put("d", "c", &json!(3), Expect::Absent)]);
    let forced =
        vec![schema("d", Some(&json!({"type": "string"})), true), put("d", "a", &json!("x"), Expect::Any)];
    done(&mut state, forced);
    let found = state.definition("d").unwrap();
    assert_eq!(found.config("a").unwrap().data.as_ref(), r#"{"n":"x"}"#);
    assert_eq!(found.config("b").unwrap().data.as_ref(), r#"{"n":2}"#);
}

#[test]
fn a_batch_brings_a_definition_its_configs_and_its_unique_paths() {
    let mut state = state();
    let configs = |second: i64| {
        let second = put("f", "b", &json!(second), Expect::Absent);
        vec![define("f"), put("f", "a", &json!(1), Expect::Absent), second, unique("f", &["n"])]
    };
    let shared = Refusal::NotUniqueYet {
        path: "n".into(),
        one: Key::parse("a").unwrap(),
        other: Key::parse("b").unwrap(),
    };
    assert_eq!(verdict(&state, configs(1)), PassResult::Violated(shared.of_operation(3)));
    done(&mut state, configs(2));
    let taken = request(vec![put("f", "c", &json!(2), Expect::Any)]);
    assert!(prepared(&state, &taken).is_err());
    // A definition that is deleted and created again has none of its former configs.
    let restrict = false;
    let delete = Write::DeleteDefinition { key: "f".into(), expect: Expect::Any, restrict, purge: false };
    done(&mut state, vec![delete, define("f"), schema("f", Some(&json!({"type": "string"})), false)]);
    assert_eq!(state.definition("f").unwrap().by_key.len(), 0);
}

#[test]
fn a_pass_over_a_state_in_which_a_read_config_differs_is_void() {
    let mut state = state();
    done(&mut state, vec![put("d", "a", &json!(1), Expect::Any), put("e", "a", &json!(1), Expect::Any)]);
    let patch = Patch { format: PatchFormat::Merge, document: Document::new(json!({"m": 2})) };
    let (definition, key, expect) = ("e".into(), "a".into(), Expect::Present);
    let request = request(vec![Write::PatchConfig { definition, key, patch, expect }, unique("d", &["n"])]);
    let steps = CommandSteps::of(&prepared(&state, &request).unwrap());
    let mut scans = ConfigScans::default();
    let satisfied = |state: &State| PassResult::Satisfied { new_configs: 1, revision: state.revision() };
    assert_eq!(pass(&mut scans, &state, &request, &steps), satisfied(&state));
    done(&mut state, vec![put("d", "b", &json!(2), Expect::Any)]);
    assert_eq!(pass(&mut scans, &state, &request, &steps), satisfied(&state));
    done(&mut state, vec![put("e", "a", &json!(2), Expect::Any)]);
    assert_eq!(pass(&mut scans, &state, &request, &steps), PassResult::Changed);
}

#[test]
fn the_other_list_of_a_transaction_has_scans_of_its_own() {
    let mut state = state();
    done(&mut state, vec![put("d", "a", &json!(1), Expect::Any)]);
    let typed = |kind: &str| schema("d", Some(&json!({ "type": kind })), false);
    let steps = |write: Write, place: u32| {
        let mut steps = CommandSteps::of(&prepared(&state, &request(vec![write])).unwrap());
        steps.steps[0].0 = place;
        steps
    };
    let operations = vec![remove("e", "a"), typed("integer"), typed("string")];
    let transaction = crate::Transaction { operations, conditions: 1, then: 1 };
    let transaction = testing::request(Write::Transaction(transaction));
    let mut scans = ConfigScans::default();
    let then = pass(&mut scans, &state, &transaction, &steps(typed("integer"), 1));
    assert_eq!(then, PassResult::Satisfied { new_configs: 1, revision: state.revision() });
    let otherwise = pass(&mut scans, &state, &transaction, &steps(typed("string"), 2));
    assert!(matches!(otherwise, PassResult::Violated(_)), "{otherwise:?}");
}

#[test]
fn a_scan_continues_only_after_the_same_steps() {
    let steps = |writes: Vec<Write>| CommandSteps::of(&prepared(&state(), &request(writes)).unwrap());
    let first = |n: i64| put("d", "a", &json!(n), Expect::Any);
    let one = steps(vec![first(1), unique("d", &["n"]), unique("e", &["n"])]);
    for (other, in_common) in [
        (vec![first(1), unique("d", &["n"]), unique("e", &["n"])], 3),
        (vec![first(1), unique("d", &[]), unique("e", &["n"])], 1),
        (vec![first(2), unique("d", &["n"])], 0),
    ] {
        assert_eq!(one.in_common(&steps(other)), in_common);
    }
}

#[test]
fn a_batch_has_a_bounded_number_of_checks() {
    let limits = Limits::default();
    let many = |count: usize| Write::Batch((0..count).map(|_| unique("d", &["n"])).collect());
    assert!(check_intake(&many(BATCH_CONFIG_CHECKS_MAX), &limits).is_ok());
    assert!(check_intake(&many(BATCH_CONFIG_CHECKS_MAX + 1), &limits).is_err());
}
