//! Patches: content that the leader computes from the current record, and that their answers show.
//!
//! A patch is prepared as a write of its result, on the precondition that the record is still the one that the result
//! was computed from. The log carries the content, never the patch, so it is applied as a plain write.
//!
//! **Invariant:** the content that an answer shows is the content that the answer's revision gave the record, or none
//! is shown.

use std::sync::Arc;

use serde_json::Value;

use super::{
    prepare::{Preparation, PreparedWrite, check_bytes, check_expect, parse_key},
    record_locks::LockSet,
};
use crate::budget::Budget;
use crate::request::{Effect, Refusal, Target, Write};
use crate::schemas::within;
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
    (patch, expect): (&Patch, Expect),
    with: Preparation<'_>,
) -> Result<PreparedWrite, Refusal> {
    let (budget, secrets) = (with.budget, with.secrets());
    let key = parse_key(key, "config_key")?;
    let before = found.config(key.as_str()).ok_or(Rejection::ConfigNotFound)?;
    check_expect(expect, Some(before.revision), Rejection::ConfigExists, Rejection::ConfigNotFound)?;
    budget.charge_data(before.data.len(), 0)?;
    let target = serde_json::from_str(&before.data)
        .map_err(|error| Refusal::Internal(format!("the stored data of {key:?} is not JSON: {error}")))?;
    let validator = with.validators.of(&found.definition, budget)?;
    let places = validator.secrets();
    let made = match places {
        None => apply(patch, target, budget)?,
        Some(places) => {
            let hidden =
                secrets.hide((places, &found.definition), patch, (&target, before.data.len()), budget)?;
            let is_hidden = hidden.is_some();
            let made = apply(patch, hidden.unwrap_or_else(|| target.clone()), budget)?;
            secrets.restore(places, patch, (&target, made, is_hidden), budget)?
        }
    };
    let data = document_of(made, with.limits)?;
    let entries = validator.check(&data, budget)??;
    let definition = found.definition.key.clone();
    let expect = Expect::Read(Some(before.revision));
    let command = Command::WriteConfig { definition, key, data: data.text, entries, expect };
    let definition_read = Some(found.definition.revision);
    Ok(PreparedWrite { command, definition_read, precondition: Ok(()) })
}

/// The result of a patch, within what it may cost.
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
    // A batch goes on after a patch that fails, so what that one cost counts as well.
    budget.charge_patch(cost_max - cost_left);
    made
}

/// The document of what a patch made, within the limits of data.
fn document_of(made: Value, limits: &Limits) -> Result<Document, Refusal> {
    let in_data = |text: String| Invalid::from(Violation::at(vec!["data".into()], text));
    if !made.is_object() {
        return Err(in_data("data must be an object".into()).into());
    }
    // The body of a `PUT` has one level around them: what a patch makes could be sent.
    let data = Document::checked(made, limits.json_depth.saturating_sub(1)).map_err(|error| match error {
        // A pointer can name a member that is not allowed in a body.
        DocumentError::TooDeep(_) | DocumentError::Reserved(_) | DocumentError::Syntax { .. } => {
            in_data(error.to_string())
        }
    })?;
    check_bytes("data", Some(&data), limits.data_bytes)?;
    Ok(data)
}

/// The content that a patch gave its record at a revision, if this state still knows it: the record has not been written
/// since.
pub(super) fn content_at(state: &State, write: &Write, revision: Revision) -> Option<Arc<str>> {
    let Write::PatchConfig { definition, key, .. } = write else { return None };
    let config = state.definition(definition)?.config(key)?;
    (config.revision == revision).then(|| Arc::clone(&config.data))
}

/// The record locks that a write needs.
pub(super) fn lock_set(write: &Write) -> LockSet {
    let mut locks = LockSet::default();
    for operation in write.operations() {
        if let Target::Config { definition, key } = operation.target() {
            let is_read = matches!(operation.effect(), Effect::Compute | Effect::Read);
            let records = if is_read { &mut locks.read } else { &mut locks.written };
            records.insert((definition.to_owned(), key.to_owned()));
        }
    }
    locks
}
