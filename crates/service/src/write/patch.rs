//! Patches: the leader computes the content from the current record, and the response shows it.
//!
//! A patch is prepared as a write of its result, on the precondition that the record is still the one that the result
//! was computed from. The log carries the content and never the patch, so the command is applied as a plain write.
//!
//! **Invariant:** the content in a response is the content that the response's revision gave the record. If it is not
//! known, no content is shown.

use std::sync::Arc;

use serde_json::Value;

use super::{
    prepare::{Preparation, PreparedWrite, check_bytes, check_expect, parse_key},
    secrets::{RestoredData, StoredSecrets},
};
use crate::{
    budget::Budget,
    request::{Refusal, Write},
    schemas::within,
};
use concord_model::{
    command::{Command, Expect},
    document::{Document, DocumentError},
    error::{Invalid, Rejection, Violation},
    limits::Limits,
    patch::{Patch, PatchError},
    record::Revision,
};
use concord_state::{Collection, State};

/// Prepares the write of a patch's result.
pub(super) fn prepare_patch(
    found: &Collection,
    key: &str,
    patch: &Patch,
    expect: Expect,
    with: Preparation<'_>,
) -> Result<PreparedWrite, Refusal> {
    let budget = with.budget;
    let key = parse_key(key, "config_key")?;
    let before = found.config(key.as_str()).ok_or(Rejection::ConfigNotFound)?;
    check_expect(expect, Some(before.revision), Rejection::ConfigExists, Rejection::ConfigNotFound)?;
    let bytes = before.data.len();
    budget.charge_data(bytes, 0)?;
    let data: Value = serde_json::from_str(&before.data)
        .map_err(|error| Refusal::Internal(format!("the stored data of {key:?} is not JSON: {error}")))?;
    let validator = with.validators.of(&found.definition, budget)?;
    let made = match validator.secrets() {
        None => RestoredData { made: apply(patch, data, budget)?, bytes_beyond: 0 },
        Some(places) => {
            let stored = StoredSecrets { places, definition: &found.definition, data: &data, bytes };
            let hidden = with.hidden(stored, patch)?;
            let is_hidden = hidden.is_some();
            let made = apply(patch, hidden.unwrap_or_else(|| data.clone()), budget)?;
            with.restore(stored, patch, made, is_hidden)?
        }
    };
    let RestoredData { made, bytes_beyond } = made;
    let data = document_of(made, with.limits)?;
    check_counted(&data, bytes_beyond, with.limits)?;
    budget.charge_kept(bytes_beyond)?;
    let entries = validator.check(&data, budget)??;
    let definition = found.definition.key.clone();
    let expect = Expect::Read(Some(before.revision));
    let command = Command::WriteConfig { definition, key, data: data.text, entries, expect };
    let definition_read = Some(found.definition.revision);
    Ok(PreparedWrite { definition_read, ..PreparedWrite::of(command) })
}

/// The result of a patch, within its cost limit.
fn apply(patch: &Patch, target: Value, budget: &Budget) -> Result<Value, Refusal> {
    let in_patch = |violation: Violation| within("patch", vec![violation]).remove(0);
    budget.charge_data(patch.document.text.len(), 0)?;
    let cost_max = budget.patch_cost();
    let mut cost_left = cost_max;
    let made = patch.apply(target, &mut cost_left).map_err(|error| match error {
        PatchError::Violation(violation) => Refusal::from(Invalid::from(in_patch(violation))),
        PatchError::TestFailed { operation } => Rejection::TestFailed { operation }.into(),
        PatchError::TooCostly(violation) => {
            budget.patch_exceeds().unwrap_or_else(|| Invalid::from(in_patch(violation)).into())
        }
    });
    // A batch continues after a patch that fails, so the cost of a failed patch counts as well.
    budget.charge_patch(cost_max - cost_left);
    made
}

/// The document of a patch's result, within the limits of data.
fn document_of(made: Value, limits: &Limits) -> Result<Document, Refusal> {
    let in_data = |text: String| Invalid::from(Violation::at(vec!["data".into()], text));
    if !made.is_object() {
        return Err(in_data("data must be an object".into()).into());
    }
    // The body of a `PUT` has one level around the data. Every result of a patch could also be sent by `PUT`.
    let data = Document::checked(made, limits.json_depth.saturating_sub(1)).map_err(|error| match error {
        // A pointer can name a member that is not allowed in a body.
        DocumentError::TooDeep(_) | DocumentError::Reserved(_) | DocumentError::Syntax { .. } => {
            in_data(error.to_string())
        }
    })?;
    Ok(data)
}

/// Checks the size of the data, in which kept secret values count so many bytes beyond their own.
fn check_counted(data: &Document, bytes_beyond: usize, limits: &Limits) -> Result<(), Invalid> {
    if bytes_beyond == 0 {
        return check_bytes("data", Some(data), limits.data_bytes);
    }
    let (bytes, most) = (data.text.len().saturating_add(bytes_beyond), limits.data_bytes);
    if bytes <= most {
        return Ok(());
    }
    Err(Invalid::TooLarge(format!(
        "the data takes {bytes} bytes, but the limit is {most} bytes; each secret value that is kept counts as the next \
         power of two, at least 256 bytes, for a key without the permission `reveal`"
    )))
}

/// The content that a patch gave its record at a revision, if the record has not been written since.
pub(super) fn content_at(state: &State, write: &Write, revision: Revision) -> Option<Arc<str>> {
    let Write::PatchConfig { definition, key, .. } = write else { return None };
    let config = state.definition(definition)?.config(key)?;
    (config.revision == revision).then(|| Arc::clone(&config.data))
}

/// The content that a command writes.
pub(super) fn content_of(command: &Command) -> Option<Arc<str>> {
    match command {
        Command::WriteConfig { data, .. } => Some(Arc::clone(data)),
        Command::CreateDefinition { .. }
        | Command::SetIndexes { .. }
        | Command::DeleteDefinition { .. }
        | Command::UndeleteDefinition { .. }
        | Command::SetProtection { .. }
        | Command::DeleteConfig { .. }
        | Command::Compact { .. }
        | Command::RaiseFeatureLevel { .. }
        | Command::Forget { .. }
        | Command::SkipRevisions { .. }
        | Command::Audit(_)
        | Command::System(_)
        | Command::Access(_)
        | Command::SetSchema { .. }
        | Command::SetUnique { .. }
        | Command::BuildIndex { .. }
        | Command::Batch(_)
        | Command::Transaction(_) => None,
    }
}
