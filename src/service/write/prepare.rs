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
    batch::{check_operations, prepare_batch},
    patch::patch_config,
    redefine,
    validators::{Validators, stored_schema, within},
};
use crate::{
    model::{
        command::{Command, Expect, Outcome, Proposal},
        document::Document,
        error::{Invalid, Rejection, Violation},
        index,
        key::Key,
        limits::Limits,
        record::Revision,
        schema::Schema,
    },
    service::{Caller, Refusal, Rollback, Write, now},
    state::{Collection, State},
};

/// Bytes of data above which a check is moved off the threads that serve requests: about a millisecond.
const DATA_LONG: usize = 64 << 10;
/// Bytes of a schema above which its compilation is moved off, likewise.
const SCHEMA_LONG: usize = 8 << 10;

/// A write with who asks it: what the tries at it share.
#[derive(Debug)]
pub(in crate::service) struct Asked {
    pub(in crate::service) caller: Caller,
    pub(in crate::service) write: Write,
}

impl Asked {
    /// Whether a try whose outcome is unknown may be followed by another: the log decides both as one, or none of
    /// them stores anything.
    pub(in crate::service) fn may_repeat(&self) -> bool {
        self.caller.request.is_some() || self.caller.dry_run
    }

    /// What the log is to carry, made now.
    pub(in crate::service) fn proposal(
        &self,
        command: Command,
        definition_read: Option<Revision>,
    ) -> Proposal {
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
pub(in crate::service) enum Prepared {
    /// The same request was decided before.
    Known(Outcome),
    /// It can be proposed.
    Propose { command: Command, definition_read: Option<Revision> },
}

/// What the asked node checks before it takes a write anywhere: what needs no state.
pub(in crate::service) fn check_intake(write: &Write, limits: &Limits) -> Result<(), Invalid> {
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
    Key::parse(definition).map(drop).map_err(|error| Violation::at(loc, error.to_string()).into())
}

pub(in crate::service) fn check_bytes(
    what: &str,
    document: Option<&Document>,
    most: usize,
) -> Result<(), Invalid> {
    let bytes = document.map_or(0, |document| document.text.len());
    if bytes <= most {
        return Ok(());
    }
    Err(Invalid::TooLarge(format!("the {what} takes {bytes} bytes, but the limit is {most} bytes")))
}

/// Whether preparing takes long enough to be kept from the threads that serve requests.
pub(in crate::service) fn is_long(state: &State, write: &Write, validators: &Validators) -> bool {
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
pub(in crate::service) fn prepare(
    state: &State,
    asked: &Asked,
    validators: &Validators,
    limits: &Limits,
) -> Result<Prepared, Refusal> {
    if let Some(request) = &asked.caller.request
        && let Some(before) = state.remembered(&request.id)
        && !crate::sabotage::is("retry-twice")
    {
        let same = before.request.fingerprint == request.fingerprint;
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
pub(in crate::service) type Judged = (Command, Option<Revision>, Result<(), Rejection>);

/// Checks a write, whoever asks it, and makes the command of it.
pub(in crate::service) fn judge_write(
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
        Schema::compile(schema)
            .map_err(|violations| Invalid::Violations(within("json_schema", violations)))
            .map(drop)?;
    }
    index::check_paths(indexes, schema, limits.indexes).map(drop).map_err(Invalid::Violations)
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
    let checked = index::check_paths(indexes, schema.as_ref(), limits.indexes).map_err(Invalid::Violations);
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
        && let Some(taken) = found.unique_conflict(key.as_str(), &entries)
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

/// Of a rejection and violations the rejection is told; violations never become a command.
pub(in crate::service) fn rejection_first<T>(
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

pub(in crate::service) fn parse_key(text: &str, name: &str) -> Result<Key, Refusal> {
    Key::parse(text)
        .map_err(|error| Invalid::from(Violation::at(vec![name.into()], error.to_string())).into())
}

/// Whether a definition that is there is what a write may rest on.
pub(in crate::service) fn check_definition_expect(
    expect: Expect,
    found: &Collection,
) -> Result<(), Rejection> {
    let (exists, missing) = (Rejection::DefinitionExists, Rejection::DefinitionNotFound);
    check_expect(expect, Some(found.definition.revision), exists, missing)
}

/// Whether a record, or its absence, is what a write may rest on.
pub(in crate::service) fn check_expect(
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
mod tests;
