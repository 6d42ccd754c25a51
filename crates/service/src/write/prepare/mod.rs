//! Prepares a write on the leader: validates it against one state and makes its command.
//!
//! Work that is costly or may fail is done here, before the log: schemas are compiled, data is validated, index entries
//! are computed. The command carries the results and names the revision of the definition that they rest on.
//!
//! The order of validation is the contract's: definition key → definition exists → config key → config exists →
//! preconditions → data. [`check_intake`] validates the definition key on the receiving node.
//!
//! If a request with an idempotency key does not meet its preconditions, its command is proposed all the same. If none can
//! be made, because its data is invalid as well, `rejecting_command` makes one of the rejection. The log rejects it and
//! stores the rejection, so a retry gets the same response.
//!
//! **Invariant:** nothing here changes anything. The same write against the same state has the same result.

use std::sync::Arc;

use serde_json::Value;

use super::{
    access::{prepare_access, prepare_audit},
    batch::{check_operations, prepare_batch},
    change::{bypassing, check_change, prepare_change, prepare_edition},
    environment::{check_environment, prepare_environment},
    identity::{check_identity, prepare_identity},
    patch::prepare_patch,
    redefine,
    secrets::{check_comparisons, check_index_paths},
    transaction::without_changes,
};
use crate::{
    budget::Budget,
    policy::Policies,
    request::{Effect, Principal, Refusal, Restored, Rollback, Write, WriteRequest},
    schemas::{Validators, stored_schema, within},
    write::{Writes, idempotency::decided_before},
};
use concord_model::{
    access_key::Author,
    command::{Applied, Command, Done, Expect, Outcome, Proposal, source::Tail},
    document::Document,
    error::{Invalid, Rejection, Violation},
    index,
    key::Key,
    limits::Limits,
    patch::PatchFormat,
    record::Revision,
    schema::{Formats, Schema, StoredSchema},
    time::Timestamp,
};
use concord_state::{Collection, State};

impl WriteRequest {
    /// The entry for the log.
    pub(super) fn proposal(&self, at: Timestamp, prepared: PreparedWrite, author: Author) -> Proposal {
        let PreparedWrite { command, definition_read, precondition: _, tail } = prepared;
        Proposal {
            at,
            by: self.caller.principal.id.as_str().into(),
            reason: self.caller.reason.clone(),
            request: self.caller.idempotency_key,
            definition_read,
            command,
            author,
            tail,
        }
    }
}

/// What the preparation of a request found.
#[derive(Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart at once; a box would be allocated for each write"
)]
pub(super) enum Prepared {
    /// The same request was decided before.
    Known(Outcome),
    /// It changes nothing. The response, which is true of this state.
    Read(Applied),
    /// It can be proposed.
    Propose(PreparedWrite),
}

/// A write that can be proposed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PreparedWrite {
    pub(super) command: Command,
    /// The revision of the definition that the command rests on.
    pub(super) definition_read: Option<Revision>,
    /// Whether this state meets its preconditions. The log evaluates them again.
    pub(super) precondition: Result<(), Rejection>,
    /// Where it comes from, unless that is a direct write.
    pub(super) tail: Option<Box<Tail>>,
}

impl PreparedWrite {
    /// A command that rests on no definition and has no preconditions beside those in it.
    pub(super) fn of(command: Command) -> Self {
        Self { command, definition_read: None, precondition: Ok(()), tail: None }
    }
}

/// The means and limits of a preparation.
#[derive(Clone, Copy)]
pub(super) struct Preparation<'a> {
    pub(super) validators: &'a Validators,
    /// Identity providers and roles, parsed.
    pub(super) policies: &'a Policies,
    pub(super) limits: &'a Limits,
    /// The cost that remains.
    pub(super) budget: &'a Budget,
    /// The client: it can't change a value unseen that it may not see.
    pub(super) principal: &'a Principal,
    /// The time of the log, which a change of an environment needs.
    pub(super) now: &'a dyn Fn() -> Timestamp,
}

impl Writes {
    /// A preparation by this node for a client, within a budget.
    pub(super) fn preparation<'a>(
        &'a self,
        budget: &'a Budget,
        principal: &'a Principal,
        now: &'a dyn Fn() -> Timestamp,
    ) -> Preparation<'a> {
        let (validators, policies) = (&self.schemas.validators, &self.cx.policies);
        Preparation { validators, policies, limits: self.cx.limits(), budget, principal, now }
    }
}

/// Validates what needs no state, on the receiving node, before the write is sent anywhere.
pub(super) fn check_intake(write: &Write, limits: &Limits) -> Result<(), Invalid> {
    if write.effect() == Effect::Batch {
        return check_operations(write.operations(), limits);
    }
    if write.access().is_some() || write.audit().is_some() {
        return Ok(());
    }
    if let Some(write) = write.environment() {
        return check_environment(write);
    }
    if let Some(write) = write.identity() {
        return check_identity(write);
    }
    if let Some(write) = write.change() {
        return check_change(write, limits);
    }
    match write.effect() {
        Effect::Define | Effect::Constrain => check_bytes("schema", write.document(), limits.schema_bytes)?,
        Effect::Store => check_bytes("data", write.document(), limits.data_bytes)?,
        // Data that keeps secret values: a marker may be a little longer than the value that it keeps.
        Effect::Compute if is_replacement(write) => {
            check_bytes("data", write.document(), limits.data_bytes.saturating_mul(2))?;
        }
        // The result of a patch is bounded when it is made. Stored data was accepted under the limits of its time.
        Effect::Compute
        | Effect::Restore
        | Effect::Remove
        | Effect::Read
        | Effect::Batch
        | Effect::Access => {}
    }
    let is_in_body = matches!(write, Write::CreateDefinition { .. });
    let loc = if is_in_body { vec!["config_definition_key".into()] } else { Vec::new() };
    Key::parse(write.definition()).map(drop).map_err(|error| Violation::at(loc, error.to_string()).into())
}

fn is_replacement(write: &Write) -> bool {
    matches!(write, Write::PatchConfig { patch, .. } if patch.format == PatchFormat::Replace)
}

pub(super) fn check_bytes(what: &str, document: Option<&Document>, most: usize) -> Result<(), Invalid> {
    let bytes = document.map_or(0, |document| document.text.len());
    if bytes <= most {
        return Ok(());
    }
    Err(Invalid::TooLarge(format!("the {what} takes {bytes} bytes, but the limit is {most} bytes")))
}

/// Validates a request against a state and makes its command.
pub(super) fn prepare(
    state: &State,
    request: &WriteRequest,
    with: Preparation<'_>,
) -> Result<Prepared, Refusal> {
    if let Some(outcome) = decided_before(state, &request.caller)
        && !concord_model::sabotage::is("retry-twice")
    {
        return Ok(Prepared::Known(outcome));
    }
    if let Some(edition) = &request.edition {
        return prepare_edition(state, request, edition, with).map(Prepared::Propose);
    }
    if let Some(write) = request.write.change() {
        return prepare_change(state, request, write, with);
    }
    let mut prepared = prepare_own(state, request, with)?;
    if let (Prepared::Propose(prepared), Some(bypass)) = (&mut prepared, &request.caller.bypass)
        // A transaction may have chosen to change nothing, and then there is nothing to pass.
        && prepared.command.touches().next().is_some()
    {
        let source = bypassing(bypass, request.caller.reason.as_deref(), &prepared.command)?;
        prepared.tail = Tail::of(source, Vec::new());
    }
    Ok(prepared)
}

/// The same for a write of the client's own.
fn prepare_own(state: &State, request: &WriteRequest, with: Preparation<'_>) -> Result<Prepared, Refusal> {
    if let Some(write) = request.write.access() {
        return prepare_access(state, with.principal, write).map(Prepared::Propose);
    }
    if let Some(write) = request.write.audit() {
        return prepare_audit(state, with.principal, write).map(Prepared::Propose);
    }
    if let Some(write) = request.write.identity() {
        return prepare_identity(state, with.policies, with.principal, write, (with.now)());
    }
    if let Some(write) = request.write.environment() {
        let at = (with.now)();
        return prepare_environment(state, with.principal, write, at).map(Prepared::Propose);
    }
    let prepared = prepare_write(state, &request.write, with)?;
    if let Some(conditions_held) = without_changes(&prepared.command, request) {
        let done = Done::Transaction { conditions_held, steps: <_>::default() };
        return Ok(Prepared::Read(Applied { revision: state.revision(), at: state.last_at(), done }));
    }
    match prepared.precondition {
        Err(rejection) if request.caller.idempotency_key.is_none() => Err(rejection.into()),
        Ok(()) | Err(_) => Ok(Prepared::Propose(prepared)),
    }
}

/// Validates a write against a state and makes its command.
pub(super) fn prepare_write(
    state: &State,
    write: &Write,
    with: Preparation<'_>,
) -> Result<PreparedWrite, Refusal> {
    let found = state.definition(write.definition());
    let existing = || found.ok_or(Rejection::DefinitionNotFound);
    match write {
        Write::CreateDefinition { key, indexes, schema, format_assertion } => {
            let formats = formats_for(*format_assertion, None);
            let new = DefinitionToCreate { key, indexes, schema: schema.as_ref(), formats };
            create_definition(found.is_some(), new, with)
        }
        Write::SetIndexes { indexes, expect, .. } => set_indexes(existing()?, indexes, *expect, with),
        Write::DeleteDefinition { expect, restrict, purge, .. } => {
            let keep = (!purge).then_some(with.limits.deleted_bytes);
            Ok(delete_definition(existing()?, *expect, *restrict, keep))
        }
        Write::UndeleteDefinition(undelete) => super::undelete::prepare_undelete(state, undelete),
        Write::WriteConfig { key, data, expect, .. } => {
            write_config(existing()?, NewData { key, data, expect: *expect, is_given: true }, with)
        }
        Write::DeleteConfig { key, expect, .. } => delete_config(existing()?, key, *expect),
        Write::PatchConfig { key, patch, expect, .. } => {
            prepare_patch(existing()?, key, patch, *expect, with)
        }
        Write::Rollback(rollback) => write_restored(existing()?, rollback, with),
        Write::SetSchema(new) => redefine::set_schema(existing()?, new, with),
        Write::SetUnique(new) => redefine::set_unique(existing()?, new),
        Write::SetProtection(new) => Ok(redefine::set_protection(existing()?, new)),
        Write::Batch(_) | Write::Transaction(_) => prepare_batch(state, write, with),
        // A batch evaluates them itself.
        Write::Check(_) | Write::Read { .. } => Err(Refusal::Internal("a read is not a write".into())),
        // `prepare` handles it; it is not an operation of a batch.
        Write::Access(_)
        | Write::Audit(_)
        | Write::Environment(_)
        | Write::Change(_)
        | Write::Identity(_) => {
            let text = "what is no definition and no config is not a write of a record";
            Err(Refusal::Internal(text.into()))
        }
    }
}

/// A definition to create.
struct DefinitionToCreate<'a> {
    key: &'a str,
    indexes: &'a [String],
    schema: Option<&'a Document>,
    formats: Formats,
}

fn create_definition(
    exists: bool,
    new: DefinitionToCreate<'_>,
    with: Preparation<'_>,
) -> Result<PreparedWrite, Refusal> {
    let DefinitionToCreate { key, indexes, schema, formats } = new;
    let key = parse_key(key, "config_definition_key")?;
    with.budget.charge_compilation(schema.map_or("", |schema| &schema.text))?;
    let precondition = if exists { Err(Rejection::DefinitionExists) } else { Ok(()) };
    let value = schema.map(|schema| &schema.value);
    let checked = check_definition(indexes, value, formats, with.limits);
    rejection_first(&precondition, checked)?;
    let schema = schema.map(|schema| StoredSchema { text: Arc::clone(&schema.text), formats });
    let command = Command::CreateDefinition { key, indexes: indexes.to_vec(), schema };
    Ok(PreparedWrite { precondition, ..PreparedWrite::of(command) })
}

/// What `format` means in a new schema: as requested, or else as in the current schema.
pub(super) fn formats_for(requested: Option<bool>, before: Option<&StoredSchema>) -> Formats {
    match (requested, before) {
        (Some(requested), _) => Formats::of(requested),
        (None, Some(before)) => before.formats,
        (None, None) => Formats::Asserted,
    }
}

fn check_definition(
    indexes: &[String],
    schema: Option<&Value>,
    formats: Formats,
    limits: &Limits,
) -> Result<(), Invalid> {
    // Compiled only to validate it; the validation of the first config caches the compiled schema.
    let compiled = schema
        .map(|schema| Schema::compile(schema, formats))
        .transpose()
        .map_err(|violations| Invalid::Violations(within("json_schema", violations)))?;
    let paths = index::check_paths(indexes, schema, limits.indexes).map_err(Invalid::Violations)?;
    let places = compiled.as_ref().and_then(Schema::secrets);
    check_comparisons(places)?;
    check_index_paths(places, &paths)
}

fn set_indexes(
    found: &Collection,
    indexes: &[String],
    expect: Expect,
    with: Preparation<'_>,
) -> Result<PreparedWrite, Refusal> {
    let precondition = check_definition_expect(expect, found);
    let may_be_secret = found.may_have_secrets();
    let found = &found.definition;
    // The schema is not compiled here, but parsed, and searched through its references for each path.
    with.budget.charge_compilation(found.schema.as_deref().unwrap_or_default())?;
    let schema = stored_schema(found)?;
    let checked =
        index::check_paths(indexes, schema.as_ref(), with.limits.indexes).map_err(Invalid::Violations);
    let paths = rejection_first(&precondition, checked)?;
    if may_be_secret {
        let validator = with.validators.of(found, with.budget)?;
        rejection_first(&precondition, check_index_paths(validator.secrets(), &paths))?;
    }
    if precondition.is_ok() {
        redefine::check_unique_stay_indexed(found, indexes)?;
        if found.indexing.reassigned(&found.indexes, indexes).is_none() {
            // The log would reindex all configs at once, whatever their number.
            let text = "the indexed paths were changed too often while they are being indexed; retry when that is done";
            return Err(Refusal::Conflict(text.into()));
        }
    }
    let command = Command::SetIndexes { key: found.key.clone(), indexes: indexes.to_vec(), expect };
    Ok(PreparedWrite { definition_read: Some(found.revision), precondition, ..PreparedWrite::of(command) })
}

fn delete_definition(found: &Collection, expect: Expect, restrict: bool, keep: Option<u64>) -> PreparedWrite {
    let mut precondition = check_definition_expect(expect, found);
    if precondition.is_ok() && found.definition.protected {
        precondition = Err(Rejection::DefinitionProtected(found.definition.key.clone()));
    }
    if precondition.is_ok() && restrict && !found.by_key.is_empty() {
        precondition = Err(Rejection::DefinitionNotEmpty(found.by_key.len()));
    }
    let command = Command::DeleteDefinition { key: found.definition.key.clone(), expect, restrict, keep };
    PreparedWrite { precondition, ..PreparedWrite::of(command) }
}

/// Prepares the write of data that a config had before.
fn write_restored(
    found: &Collection,
    rollback: &Rollback,
    with: Preparation<'_>,
) -> Result<PreparedWrite, Refusal> {
    match &rollback.restored {
        Restored::Found { id, data } if found.definition.id == *id => {
            let new = NewData { key: &rollback.key, data, expect: rollback.expect, is_given: false };
            write_config(found, new, with)
        }
        Restored::Found { .. } => {
            let text = "the definition was deleted and created again: the config belonged to the old one";
            Err(Refusal::NotThere(text.into()))
        }
        Restored::Refused(rejection) => Err(rejection.clone().into()),
        // The request had been decided when it arrived, but its idempotency record has expired since.
        Restored::At(_) => Err(Refusal::Unavailable("the data to restore was not looked up; retry".into())),
    }
}

/// Data to store.
struct NewData<'a> {
    key: &'a str,
    data: &'a Document,
    expect: Expect,
    /// Whether the client sent it, as opposed to data that was stored before.
    is_given: bool,
}

fn write_config(
    found: &Collection,
    new: NewData<'_>,
    with: Preparation<'_>,
) -> Result<PreparedWrite, Refusal> {
    let NewData { key, data, expect, is_given } = new;
    let budget = with.budget;
    let key = parse_key(key, "config_key")?;
    let current = found.config(key.as_str()).map(|config| config.revision);
    let mut precondition = check_expect(expect, current, Rejection::ConfigExists, Rejection::ConfigNotFound);
    let validator = with.validators.of(&found.definition, budget)?;
    let given = match validator.secrets().filter(|_| is_given) {
        Some(places) => with.check_given(places, &found.definition, data)?,
        None => Ok(()),
    };
    let checked = match given {
        Ok(()) => validator.check(data, budget)?,
        Err(invalid) => Err(invalid),
    };
    // A plain PUT of an absent config is rejected for invalid data first.
    let entries = if expect == Expect::Present { checked? } else { rejection_first(&precondition, checked)? };
    if precondition.is_ok()
        && let Some(taken) = found.unique_conflict(key.as_str(), &entries)
    {
        precondition = Err(taken);
    }
    let definition = found.definition.key.clone();
    let command = Command::WriteConfig { definition, key, data: Arc::clone(&data.text), entries, expect };
    let definition_read = Some(found.definition.revision);
    Ok(PreparedWrite { definition_read, precondition, ..PreparedWrite::of(command) })
}

fn delete_config(found: &Collection, key: &str, expect: Expect) -> Result<PreparedWrite, Refusal> {
    let key = parse_key(key, "config_key")?;
    let current = found.config(key.as_str()).map(|config| config.revision);
    let expect = if expect == Expect::Any { Expect::Present } else { expect };
    let precondition = check_expect(expect, current, Rejection::ConfigExists, Rejection::ConfigNotFound);
    let command = Command::DeleteConfig { definition: found.definition.key.clone(), key, expect };
    Ok(PreparedWrite { precondition, ..PreparedWrite::of(command) })
}

/// The value that was checked. If the data is invalid and the preconditions are not met, the rejection takes precedence
/// over the violations.
pub(super) fn rejection_first<T>(
    precondition: &Result<(), Rejection>,
    checked: Result<T, Invalid>,
) -> Result<T, Refusal> {
    checked.map_err(|invalid| match precondition {
        Err(rejection) => rejection.clone().into(),
        Ok(()) => invalid.into(),
    })
}

pub(super) fn parse_key(text: &str, name: &str) -> Result<Key, Refusal> {
    Key::parse(text)
        .map_err(|error| Invalid::from(Violation::at(vec![name.into()], error.to_string())).into())
}

/// Whether an existing definition meets a write's precondition.
pub(super) fn check_definition_expect(expect: Expect, found: &Collection) -> Result<(), Rejection> {
    let (exists, missing) = (Rejection::DefinitionExists, Rejection::DefinitionNotFound);
    check_expect(expect, Some(found.definition.revision), exists, missing)
}

/// Whether a record, or its absence, meets a write's precondition.
pub(super) fn check_expect(
    expect: Expect,
    current: Option<Revision>,
    exists: Rejection,
    missing: Rejection,
) -> Result<(), Rejection> {
    match (expect, current) {
        (Expect::Any, _) | (Expect::Absent | Expect::None, None) | (Expect::Present, Some(_)) => Ok(()),
        (Expect::At(expected), Some(current)) if expected == current => Ok(()),
        (Expect::Read(read), current) if read == current => Ok(()),
        // A record that was read a moment ago and has changed since is a failed precondition as well.
        (Expect::At(_) | Expect::None | Expect::Read(_), Some(current)) => {
            Err(Rejection::Precondition { current })
        }
        (Expect::Absent, Some(_)) => Err(exists),
        (Expect::Present | Expect::At(_) | Expect::Read(_), None) => Err(missing),
    }
}

#[cfg(test)]
mod tests;
