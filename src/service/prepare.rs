//! Makes a command of a write, on the leader, against one state.
//!
//! What is costly or may fail is done here, before the log: schemas are compiled, data is checked, index entries
//! are computed. The command carries the results and names the revision of the definition that they rest on.
//!
//! The order of the checks is the contract's: definition key → definition exists → config key → exists already →
//! preconditions → data.
//!
//! A rejection of a request with a stamp is left to the log wherever a command can be made of it: there it is
//! remembered, and the request that is sent again gets the same answer.
//!
//! **Invariant:** nothing here changes anything; the same write against the same state gives the same answer.

use std::sync::Arc;

use serde_json::Value;

use super::{
    Caller, Refusal, Rollback, Write,
    batch::{check_operations, prepare_batch},
    checks::{Validators, stored_schema, within},
    now,
    patch::patch_config,
    redefine,
};
use crate::{
    model::{
        command::{Command, Expect, Outcome, Proposal},
        document::Document,
        error::{Fault, Invalid, Rejection},
        index,
        key::Key,
        limits::Limits,
        record::Revision,
        schema::Schema,
    },
    state::{Collection, State},
};

/// Bytes of data above which a check is moved off the threads that serve requests: about a millisecond.
const DATA_LONG: usize = 64 << 10;
/// Bytes of a schema above which its compilation is moved off, likewise.
const SCHEMA_LONG: usize = 8 << 10;

/// A write with who asks it: what the tries at it share.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) caller: Caller,
    pub(super) write: Write,
}

impl Asked {
    /// Whether a try whose outcome is unknown may be followed by another: the log decides both as one, or none of
    /// them stores anything.
    pub(super) fn may_repeat(&self) -> bool {
        self.caller.request.is_some() || self.caller.dry_run
    }

    /// What the log is to carry, made now.
    pub(super) fn proposal(&self, command: Command, definition_read: Option<Revision>) -> Proposal {
        Proposal {
            at: now(),
            by: self.caller.principal.id.clone(),
            reason: self.caller.reason.clone(),
            request: self.caller.request,
            definition_read,
            command,
        }
    }
}

/// What came of a write before anything was proposed.
#[derive(Debug, PartialEq)]
pub(super) enum Prepared {
    /// The same request was decided before.
    Known(Outcome),
    /// It can be proposed.
    Propose { command: Command, definition_read: Option<Revision> },
}

/// What the asked node checks before it takes a write anywhere: what needs no state.
pub(super) fn check_intake(write: &Write, limits: &Limits) -> Result<(), Invalid> {
    let (definition, loc) = match write {
        Write::CreateDefinition { key, schema, .. } => {
            check_bytes("schema", schema.as_ref(), limits.schema_bytes)?;
            (key, vec!["config_definition_key".into()])
        }
        Write::WriteConfig { definition, data, .. } => {
            check_bytes("data", Some(data), limits.data_bytes)?;
            (definition, Vec::new())
        }
        Write::SetSchema(new) => {
            check_bytes("schema", new.schema.as_ref(), limits.schema_bytes)?;
            (&new.key, Vec::new())
        }
        Write::SetUnique(new) => (&new.key, Vec::new()),
        Write::SetIndexes { key, .. } | Write::DeleteDefinition { key, .. } => (key, Vec::new()),
        Write::DeleteConfig { definition, .. }
        | Write::PatchConfig { definition, .. }
        | Write::Rollback(Rollback { definition, .. }) => (definition, Vec::new()),
        Write::Batch(operations) => return check_operations(operations, limits),
    };
    Key::parse(definition).map(drop).map_err(|error| Fault::at(loc, error.to_string()).into())
}

pub(super) fn check_bytes(what: &str, document: Option<&Document>, most: usize) -> Result<(), Invalid> {
    let bytes = document.map_or(0, |document| document.text.len());
    if bytes <= most {
        return Ok(());
    }
    Err(Invalid::TooLarge(format!("the {what} takes {bytes} bytes, but the limit is {most} bytes")))
}

/// Whether preparing takes long enough to be kept from the threads that serve requests.
pub(super) fn is_long(state: &State, write: &Write, validators: &Validators) -> bool {
    let stored = |key: &str, at_hand: bool| {
        state.definition(key).is_some_and(|found| {
            let bytes = found.definition.schema.as_ref().map_or(0, |text| text.len());
            bytes > SCHEMA_LONG && !(at_hand && validators.has(&found.definition))
        })
    };
    match write {
        Write::CreateDefinition { schema, .. } => {
            schema.as_ref().is_some_and(|schema| schema.text.len() > SCHEMA_LONG)
        }
        Write::SetSchema(new) => new.schema.as_ref().is_some_and(|schema| schema.text.len() > SCHEMA_LONG),
        Write::SetUnique(_) => false,
        Write::SetIndexes { key, .. } => stored(key, false),
        Write::WriteConfig { definition, data, .. } | Write::Rollback(Rollback { definition, data, .. }) => {
            data.text.len() > DATA_LONG || stored(definition, true)
        }
        Write::PatchConfig { definition, key, patch, .. } => {
            let found = state.definition(definition).and_then(|found| found.config(key));
            let bytes = patch.document.text.len() + found.map_or(0, |config| config.data.len());
            bytes > DATA_LONG || stored(definition, true)
        }
        Write::DeleteDefinition { .. } | Write::DeleteConfig { .. } => false,
        Write::Batch(_) => true,
    }
}

/// Checks a write against a state and makes the command of it.
pub(super) fn prepare(
    state: &State,
    asked: &Asked,
    validators: &Validators,
    limits: &Limits,
) -> Result<Prepared, Refusal> {
    if let Some(request) = &asked.caller.request
        && let Some(before) = state.remembered(&request.id)
        && !crate::sabotage::is("retry-twice")
    {
        let same = before.stamp.print == request.print;
        return Ok(Prepared::Known(if same {
            before.outcome.clone()
        } else {
            Err(Rejection::RequestReused)
        }));
    }
    let kept = asked.caller.request.is_some();
    let (command, definition_read, standing) = judge_write(state, &asked.write, validators, limits)?;
    match standing {
        Err(rejection) if !kept => Err(rejection.into()),
        Ok(()) | Err(_) => Ok(Prepared::Propose { command, definition_read }),
    }
}

/// A command that could be proposed, the definition's revision that it rests on, and what this state says of it.
pub(super) type Judged = (Command, Option<Revision>, Result<(), Rejection>);

/// Checks a write, whoever asks it, and makes the command of it.
pub(super) fn judge_write(
    state: &State,
    write: &Write,
    validators: &Validators,
    limits: &Limits,
) -> Result<Judged, Refusal> {
    match write {
        Write::CreateDefinition { key, indexes, schema } => {
            create_definition(state, key, (indexes, schema.as_ref()), limits)
        }
        Write::SetIndexes { key, indexes, expect } => set_indexes(state, key, (indexes, *expect), limits),
        Write::DeleteDefinition { key, expect, restrict } => {
            delete_definition(state, key, *expect, *restrict)
        }
        Write::WriteConfig { definition, key, data, expect } => {
            write_config(find(state, definition)?, key, (data, *expect), validators)
        }
        Write::DeleteConfig { definition, key, expect } => {
            delete_config(find(state, definition)?, key, *expect)
        }
        Write::PatchConfig { definition, key, patch, expect } => {
            patch_config(find(state, definition)?, key, (patch, *expect), (validators, limits))
        }
        Write::Rollback(Rollback { definition, id, key, data, expect }) => {
            let found = find(state, definition)?;
            if found.definition.id != *id {
                let text = "the definition was deleted and made again: the config is none of its";
                return Err(Refusal::NotThere(text.into()));
            }
            write_config(found, key, (data, *expect), validators)
        }
        Write::SetSchema(new) => redefine::set_schema(find(state, &new.key)?, new),
        Write::SetUnique(new) => redefine::set_unique(find(state, &new.key)?, new),
        Write::Batch(operations) => prepare_batch(state, operations, validators, limits),
    }
}

fn create_definition(
    state: &State,
    key: &str,
    (indexes, schema): (&[String], Option<&Document>),
    limits: &Limits,
) -> Result<Judged, Refusal> {
    let key = parse_key(key, "config_definition_key")?;
    let exists = state.definition(key.as_str()).is_some();
    let standing = if exists { Err(Rejection::DefinitionExists) } else { Ok(()) };
    let checked = check_definition(indexes, schema.map(|schema| &schema.value), limits);
    rejection_first(&standing, checked)?;
    let schema = schema.map(|schema| Arc::clone(&schema.text));
    let command = Command::CreateDefinition { key, indexes: indexes.to_vec(), schema };
    Ok((command, None, standing))
}

fn check_definition(indexes: &[String], schema: Option<&Value>, limits: &Limits) -> Result<(), Invalid> {
    if let Some(schema) = schema {
        // Compiled only to see that it can be; the first config's check keeps the compiled form.
        Schema::compile(schema).map_err(|faults| Invalid::Faults(within("json_schema", faults))).map(drop)?;
    }
    index::check_paths(indexes, schema, limits.indexes).map(drop).map_err(Invalid::Faults)
}

fn set_indexes(
    state: &State,
    key: &str,
    (indexes, expect): (&[String], Expect),
    limits: &Limits,
) -> Result<Judged, Refusal> {
    let found = &find(state, key)?.definition;
    let (exists, missing) = (Rejection::DefinitionExists, Rejection::DefinitionNotFound);
    let standing = check_expect(expect, Some(found.revision), exists, missing);
    let schema = stored_schema(found)?;
    let checked = index::check_paths(indexes, schema.as_ref(), limits.indexes).map_err(Invalid::Faults);
    rejection_first(&standing, checked)?;
    if standing.is_ok() {
        redefine::keep_unique(found, indexes)?;
    }
    let command = Command::SetIndexes { key: found.key.clone(), indexes: indexes.to_vec(), expect };
    Ok((command, Some(found.revision), standing))
}

fn delete_definition(state: &State, key: &str, expect: Expect, restrict: bool) -> Result<Judged, Refusal> {
    let found = find(state, key)?;
    let (exists, missing) = (Rejection::DefinitionExists, Rejection::DefinitionNotFound);
    let mut standing = check_expect(expect, Some(found.definition.revision), exists, missing);
    if standing.is_ok() && restrict && !found.by_key.is_empty() {
        standing = Err(Rejection::DefinitionNotEmpty(found.by_key.len()));
    }
    let command = Command::DeleteDefinition { key: found.definition.key.clone(), expect, restrict };
    Ok((command, None, standing))
}

fn write_config(
    found: &Collection,
    key: &str,
    (data, expect): (&Document, Expect),
    validators: &Validators,
) -> Result<Judged, Refusal> {
    let key = parse_key(key, "config_key")?;
    let current = found.config(key.as_str()).map(|config| config.revision);
    let mut standing = check_expect(expect, current, Rejection::ConfigExists, Rejection::ConfigNotFound);
    let checked = validators.of(&found.definition)?.check(&data.value);
    // A plain PUT of an absent config is told what is wrong with its data first.
    let entries = if expect == Expect::Present { checked? } else { rejection_first(&standing, checked)? };
    if standing.is_ok()
        && let Some(taken) = found.taken(key.as_str(), &entries)
    {
        standing = Err(taken);
    }
    let definition = found.definition.key.clone();
    let command = Command::WriteConfig { definition, key, data: Arc::clone(&data.text), entries, expect };
    Ok((command, Some(found.definition.revision), standing))
}

fn delete_config(found: &Collection, key: &str, expect: Expect) -> Result<Judged, Refusal> {
    let key = parse_key(key, "config_key")?;
    let current = found.config(key.as_str()).map(|config| config.revision);
    let expect = if expect == Expect::Any { Expect::Present } else { expect };
    let standing = check_expect(expect, current, Rejection::ConfigExists, Rejection::ConfigNotFound);
    let command = Command::DeleteConfig { definition: found.definition.key.clone(), key, expect };
    Ok((command, None, standing))
}

/// Of a rejection and faults the rejection is told; faults never become a command.
pub(super) fn rejection_first<T>(
    standing: &Result<(), Rejection>,
    checked: Result<T, Invalid>,
) -> Result<T, Refusal> {
    checked.map_err(|invalid| match standing {
        Err(rejection) => rejection.clone().into(),
        Ok(()) => invalid.into(),
    })
}

fn find<'a>(state: &'a State, key: &str) -> Result<&'a Arc<Collection>, Refusal> {
    let key = parse_key(key, "config_definition_key")?;
    state.definition(key.as_str()).ok_or_else(|| Rejection::DefinitionNotFound.into())
}

pub(super) fn parse_key(text: &str, name: &str) -> Result<Key, Refusal> {
    Key::parse(text).map_err(|error| Invalid::from(Fault::at(vec![name.into()], error.to_string())).into())
}

/// Whether a definition that is there is what a write may rest on.
pub(super) fn check_definition_expect(expect: Expect, found: &Collection) -> Result<(), Rejection> {
    let (exists, missing) = (Rejection::DefinitionExists, Rejection::DefinitionNotFound);
    check_expect(expect, Some(found.definition.revision), exists, missing)
}

/// Whether a record, or its absence, is what a write may rest on.
pub(super) fn check_expect(
    expect: Expect,
    current: Option<Revision>,
    exists: Rejection,
    missing: Rejection,
) -> Result<(), Rejection> {
    match (expect, current) {
        (Expect::Any, _) | (Expect::Absent | Expect::None, None) | (Expect::Present, Some(_)) => Ok(()),
        (Expect::At(asked), Some(current)) if asked == current => Ok(()),
        (Expect::Read(read), current) if read == current => Ok(()),
        // What was read a moment ago is not there any more: as good as a failed precondition.
        (Expect::At(_) | Expect::None | Expect::Read(_), Some(current)) => {
            Err(Rejection::Precondition { current })
        }
        (Expect::Absent, Some(_)) => Err(exists),
        (Expect::Present | Expect::At(_) | Expect::Read(_), None) => Err(missing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{
            command::{RequestStamp, Verdict},
            document,
            time::Timestamp,
        },
        service::Principal,
    };

    fn document(text: &str) -> Document {
        Document::new(document::parse(text.as_bytes(), 64).unwrap())
    }

    fn asked(write: Write) -> Asked {
        let principal = Principal { id: "root".into() };
        Asked { caller: Caller { principal, reason: None, request: None, dry_run: false }, write }
    }

    fn put(key: &str, text: &str, expect: Expect) -> Write {
        Write::WriteConfig { definition: "app".into(), key: key.into(), data: document(text), expect }
    }

    fn prepared(state: &State, asked: &Asked) -> Result<Prepared, Refusal> {
        prepare(state, asked, &Validators::default(), &Limits::default())
    }

    /// Prepares a write and applies it at a revision.
    fn apply(state: &mut State, revision: Revision, asked: &Asked) -> Verdict {
        let Prepared::Propose { command, definition_read } = prepared(state, asked).unwrap() else {
            panic!("decided before")
        };
        let by = asked.caller.principal.id.clone();
        let request = asked.caller.request;
        let proposal = Proposal { at: Timestamp(1), by, reason: None, request, definition_read, command };
        state.apply(revision, &proposal).0
    }

    /// A definition `app` at revision 1, whose `n` is an integer, and its config `db` at revision 2.
    fn state() -> State {
        let mut state = State::new();
        let schema = document(r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}"#);
        let (key, indexes) = ("app".into(), vec!["n".into()]);
        apply(&mut state, 1, &asked(Write::CreateDefinition { key, indexes, schema: Some(schema) }));
        apply(&mut state, 2, &asked(put("db", r#"{"n":1}"#, Expect::Absent)));
        state
    }

    #[test]
    fn checks_come_in_the_order_of_the_contract() {
        let state = state();
        let (good, bad) = (r#"{"n":2}"#, r#"{"n":"two"}"#);
        let rejected = |write| match prepared(&state, &asked(write)) {
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
    fn a_rollback_is_checked_by_the_definition_of_now() {
        let state = state();
        let id = state.definition("app").unwrap().definition.id;
        let back = |id, key: &str, text, expect| {
            let (definition, data, key) = ("app".into(), document(text), key.into());
            prepared(&state, &asked(Write::Rollback(Rollback { definition, id, key, data, expect })))
        };
        let Prepared::Propose { command, definition_read } =
            back(id, "gone", r#"{"n":2}"#, Expect::Any).unwrap()
        else {
            panic!("decided before")
        };
        assert!(matches!(command, Command::WriteConfig { expect: Expect::Any, .. }));
        assert_eq!(definition_read, Some(1));
        assert!(matches!(back(id, "db", r#"{"n":"two"}"#, Expect::Any), Err(Refusal::Invalid(_))));
        assert!(matches!(back(id + 1, "db", r#"{"n":2}"#, Expect::Any), Err(Refusal::NotThere(_))));
        let stale = Err(Refusal::Rejected(Rejection::Precondition { current: 2 }));
        assert_eq!(back(id, "db", r#"{"n":2}"#, Expect::At(1)), stale);
    }

    #[test]
    fn a_command_rests_on_the_definition_it_was_checked_against() {
        let mut state = state();
        let write = prepared(&state, &asked(put("db", r#"{"n":2}"#, Expect::Present))).unwrap();
        let Prepared::Propose { command: Command::WriteConfig { entries, .. }, definition_read } = write
        else {
            panic!("{write:?}")
        };
        assert_eq!((entries.len(), definition_read), (1, Some(1)));
        let (key, indexes) = (String::from("app"), Vec::new());
        let set = asked(Write::SetIndexes { key, indexes, expect: Expect::Present });
        assert!(matches!(apply(&mut state, 3, &set), Verdict::Decided(Ok(_))));
        let Ok(Prepared::Propose { definition_read, .. }) = prepared(&state, &set) else { panic!() };
        assert_eq!(definition_read, Some(3));
    }

    #[test]
    fn faults_say_where_in_the_body_they_are() {
        let state = state();
        let locs = |write| match prepared(&state, &asked(write)) {
            Err(Refusal::Invalid(Invalid::Faults(faults))) => {
                faults.into_iter().map(|fault| fault.loc[0].clone()).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(locs(put("db", "{}", Expect::Present)), ["data".into()]);
        let create = |indexes: &[&str], schema: &str| Write::CreateDefinition {
            key: "new".into(),
            indexes: indexes.iter().copied().map(String::from).collect(),
            schema: Some(document(schema)),
        };
        assert_eq!(locs(create(&[], r#"{"type":"nothing"}"#)), ["json_schema".into()]);
        assert_eq!(locs(create(&["x"], r#"{"properties":{"n":{}}}"#)), ["indexes".into()]);
    }

    #[test]
    fn a_request_that_was_decided_is_answered_again_and_not_with_another_body() {
        let mut state = state();
        let mut first = asked(put("new", r#"{"n":1}"#, Expect::Absent));
        first.caller.request = Some(RequestStamp { id: [1; 16], print: [1; 16] });
        let Verdict::Decided(outcome) = apply(&mut state, 3, &first) else { panic!("stale") };
        assert_eq!(prepared(&state, &first), Ok(Prepared::Known(outcome)));
        first.caller.request = Some(RequestStamp { id: [1; 16], print: [2; 16] });
        assert_eq!(prepared(&state, &first), Ok(Prepared::Known(Err(Rejection::RequestReused))));
    }

    #[test]
    fn a_rejection_of_a_stamped_request_is_left_to_the_log_unless_its_data_is_bad() {
        let mut state = state();
        let stamped = |text| {
            let mut asked = asked(put("db", text, Expect::Absent));
            asked.caller.request = Some(RequestStamp { id: [3; 16], print: [3; 16] });
            asked
        };
        let exists = Err(Rejection::ConfigExists);
        assert_eq!(prepared(&state, &stamped("{}")), Err(Rejection::ConfigExists.into()));
        assert_eq!(apply(&mut state, 3, &stamped(r#"{"n":2}"#)), Verdict::Decided(exists.clone()));
        assert_eq!(prepared(&state, &stamped(r#"{"n":2}"#)), Ok(Prepared::Known(exists)));
    }

    #[test]
    fn a_definition_without_a_schema_takes_any_object() {
        let mut state = State::new();
        let bare = Write::CreateDefinition { key: "app".into(), indexes: Vec::new(), schema: None };
        apply(&mut state, 1, &asked(bare));
        assert!(prepared(&state, &asked(put("k", r#"{"any":[1]}"#, Expect::Absent))).is_ok());
        assert!(prepared(&state, &asked(put("k", "[1]", Expect::Absent))).is_err());
    }

    #[test]
    fn a_write_rests_on_what_it_expects() {
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
    fn intake_names_the_limit_and_refuses_a_bad_key() {
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
        assert!(matches!(check_intake(&write("a/b", "null"), &limits), Err(Invalid::Faults(_))));
    }
}
