//! Patches: what the leader computes from the record as it is, and the content that their answers show.
//!
//! A patch is prepared as the write of what it makes, under the condition that the record is still the one that it
//! was made of. The log carries the content, never the patch, so applying stays a plain write.
//!
//! **Invariant:** the content that an answer shows is the content that the answer's revision gave the record, or
//! it is not shown.

use std::sync::Arc;

use super::{
    prepare::{Judged, check_bytes, check_expect, parse_key},
    record_locks::Records,
    validators::{Validators, within},
};
use crate::{
    model::{
        command::{Command, Expect},
        document::{Document, DocumentError},
        error::{Invalid, Rejection, Violation},
        limits::Limits,
        patch::{Patch, PatchError},
        record::Revision,
    },
    service::{Refusal, Rollback, Write},
    state::{Collection, State},
};

/// Makes the write that a patch comes to.
pub(in crate::service) fn patch_config(
    found: &Collection,
    key: &str,
    (patch, expect): (&Patch, Expect),
    (validators, limits): (&Validators, &Limits),
) -> Result<Judged, Refusal> {
    let key = parse_key(key, "config_key")?;
    let before = found.config(key.as_str()).ok_or(Rejection::ConfigNotFound)?;
    check_expect(expect, Some(before.revision), Rejection::ConfigExists, Rejection::ConfigNotFound)?;
    let target = serde_json::from_str(&before.data)
        .map_err(|error| Refusal::Internal(format!("the stored data of {key:?} is not JSON: {error}")))?;
    let data = content(patch, target, limits)?;
    let entries = validators.of(&found.definition)?.check(&data.value)?;
    let definition = found.definition.key.clone();
    let expect = Expect::Read(Some(before.revision));
    let command = Command::WriteConfig { definition, key, data: data.text, entries, expect };
    Ok((command, Some(found.definition.revision), Ok(())))
}

/// What a patch makes of data, within the limits.
fn content(patch: &Patch, target: serde_json::Value, limits: &Limits) -> Result<Document, Refusal> {
    let in_patch = |fault: Violation| within("patch", vec![fault]).remove(0);
    let made = patch.apply(target).map_err(|error| match error {
        PatchError::Violation(fault) => Invalid::from(in_patch(fault)).into(),
        PatchError::TestFailed(fault) => Refusal::TestFailed(in_patch(fault)),
    })?;
    let in_data = |text: String| Invalid::from(Violation::at(vec!["data".into()], text));
    if !made.is_object() {
        return Err(in_data("data must be an object".into()).into());
    }
    let data = Document::checked(made, limits.json_depth).map_err(|error| match error {
        // A pointer can name a member that no body may.
        DocumentError::TooDeep(_) | DocumentError::Reserved(_) | DocumentError::Syntax { .. } => {
            in_data(error.to_string())
        }
    })?;
    check_bytes("data", Some(&data), limits.data_bytes)?;
    Ok(data)
}

/// The content that a record was given at a revision, where this state still knows it: the record has not been
/// written since. Who keeps older content looks here, too, before an answer goes out without it.
pub(in crate::service) fn content_at(state: &State, write: &Write, revision: Revision) -> Option<Arc<str>> {
    let Write::PatchConfig { definition, key, .. } = write else { return None };
    let config = state.definition(definition)?.config(key)?;
    (config.revision == revision).then(|| Arc::clone(&config.data))
}

/// The records that a write queues for.
pub(in crate::service) fn records(write: &Write) -> Records {
    let mut records = Records::default();
    let writes = if let Write::Batch(operations) = write { operations } else { std::slice::from_ref(write) };
    writes.iter().for_each(|write| collect(write, &mut records));
    records
}

fn collect(write: &Write, records: &mut Records) {
    match write {
        Write::PatchConfig { definition, key, .. } => {
            records.read.insert((definition.clone(), key.clone()));
        }
        Write::WriteConfig { definition, key, .. }
        | Write::DeleteConfig { definition, key, .. }
        | Write::Rollback(Rollback { definition, key, .. }) => {
            records.written.insert((definition.clone(), key.clone()));
        }
        Write::CreateDefinition { .. }
        | Write::SetIndexes { .. }
        | Write::DeleteDefinition { .. }
        | Write::SetSchema(_)
        | Write::SetUnique(_)
        | Write::Batch(_) => {}
    }
}
