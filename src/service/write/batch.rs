//! Batches: several writes that are decided as one.
//!
//! Each is prepared on a clone of the state that the ones before it have changed already, by the checks of a single
//! write. What an earlier one wrote has no revision yet and is named by [`THIS_ENTRY`]; so a compiled schema of it is
//! kept for this batch only.
//!
//! **Invariant:** a refusal names its operation and has the status that the operation alone would have had, on the
//! state that the ones before it make.

use super::{
    prepare::{Judged, check_intake, judge_write},
    validators::Validators,
};
use crate::{
    model::{
        command::{BatchStep, Command, THIS_ENTRY},
        error::{Invalid, LocSegment, Rejection, Violation},
        limits::{Limits, VIOLATIONS_MAX},
    },
    service::{Refusal, Rollback, Write},
    state::State,
};

/// What needs no state: the number of operations, and of each what a single write is checked for.
pub(in crate::service) fn check_operations(operations: &[Write], limits: &Limits) -> Result<(), Invalid> {
    let most = limits.batch_operations;
    if operations.is_empty() || operations.len() > most {
        let msg = format!("a batch has 1 to {most} operations, but this one has {}", operations.len());
        return Err(Violation::at(vec!["operations".into()], msg).into());
    }
    let mut violations = Vec::new();
    for (place, write) in (0..).zip(operations) {
        match check_intake(write, limits).map_err(|invalid| placed(invalid, place)) {
            Ok(()) => {}
            Err(Invalid::Violations(more)) => violations.extend(more),
            Err(invalid @ (Invalid::TooLarge(_) | Invalid::TooLargeAt(_))) => return Err(invalid),
        }
    }
    violations.truncate(VIOLATIONS_MAX);
    if violations.is_empty() { Ok(()) } else { Err(Invalid::Violations(violations)) }
}

/// Makes the command of a batch. Of invalid operations the violations of all are told, not of the first only.
pub(in crate::service) fn prepare_batch(
    state: &State,
    operations: &[Write],
    validators: &Validators,
    limits: &Limits,
) -> Result<Judged, Refusal> {
    let mut scratch = state.clone();
    let mut own = Validators::default();
    let (mut steps, mut violations) = (Vec::with_capacity(operations.len()), Vec::new());
    for (place, write) in (0..).zip(operations) {
        let is_own = scratch
            .definition(write.definition())
            .is_some_and(|found| found.definition.revision == THIS_ENTRY);
        let validators = if is_own { &own } else { validators };
        match step(&mut scratch, place, write, (validators, limits)) {
            Ok(step) => {
                if !write.is_of_config() {
                    // The definition may be another one now, at the same revision.
                    own = Validators::default();
                }
                steps.push(step);
            }
            Err(Refusal::Invalid(Invalid::Violations(more))) => violations.extend(more),
            // The operations behind a faulty one may lack what it would have made.
            Err(refusal) if violations.is_empty() => return Err(refusal),
            Err(_) => {}
        }
    }
    violations.truncate(VIOLATIONS_MAX);
    if !violations.is_empty() {
        return Err(Invalid::Violations(violations).into());
    }
    Ok((Command::Batch(steps), None, Ok(())))
}

/// Prepares one operation and makes its change on the scratch state.
fn step(
    scratch: &mut State,
    place: u32,
    write: &Write,
    (validators, limits): (&Validators, &Limits),
) -> Result<BatchStep, Refusal> {
    let judged = judge_write(scratch, write, validators, limits);
    let judged = judged.and_then(|(command, definition_read, standing)| {
        standing?;
        scratch.try_step(place, &command)?;
        Ok(BatchStep { definition_read, command })
    });
    judged.map_err(|refusal| match refusal {
        Refusal::Rejected(rejection) => {
            Rejection::InBatch { index: place, rejection: Box::new(rejection) }.into()
        }
        Refusal::Invalid(invalid) => placed(invalid, place).into(),
        Refusal::TestFailed(fault) => Refusal::TestFailed(at_operation(fault, place)),
        Refusal::Unavailable(_)
        | Refusal::Undecided(_)
        | Refusal::Overloaded
        | Refusal::StorageFull(_)
        | Refusal::Internal(_)
        | Refusal::Conflict(_)
        | Refusal::NoMember(_)
        | Refusal::Expired(_)
        | Refusal::NotThere(_)
        | Refusal::Crowded(_)
        | Refusal::Breaks(..) => refusal,
    })
}

fn placed(invalid: Invalid, place: u32) -> Invalid {
    match invalid {
        Invalid::Violations(violations) => {
            Invalid::Violations(violations.into_iter().map(|fault| at_operation(fault, place)).collect())
        }
        Invalid::TooLarge(text) => Invalid::TooLargeAt(at_operation(Violation::new(text), place)),
        Invalid::TooLargeAt(fault) => Invalid::TooLargeAt(at_operation(fault, place)),
    }
}

/// A fault of one operation, told as a fault of the batch.
fn at_operation(mut fault: Violation, place: u32) -> Violation {
    fault.loc.splice(0..0, [LocSegment::from("operations"), LocSegment::Index(place.into())]);
    fault
}

impl Write {
    /// The key of the definition that it is about; of a batch none.
    pub(in crate::service) fn definition(&self) -> &str {
        match self {
            Self::CreateDefinition { key, .. }
            | Self::SetIndexes { key, .. }
            | Self::DeleteDefinition { key, .. } => key,
            Self::WriteConfig { definition, .. }
            | Self::DeleteConfig { definition, .. }
            | Self::PatchConfig { definition, .. }
            | Self::Rollback(Rollback { definition, .. }) => definition,
            Self::SetSchema(new) => &new.key,
            Self::SetUnique(new) => &new.key,
            Self::Batch(_) => "",
        }
    }

    /// Whether it leaves definitions as they are.
    fn is_of_config(&self) -> bool {
        match self {
            Self::WriteConfig { .. }
            | Self::DeleteConfig { .. }
            | Self::PatchConfig { .. }
            | Self::Rollback(_) => true,
            Self::CreateDefinition { .. }
            | Self::SetIndexes { .. }
            | Self::DeleteDefinition { .. }
            | Self::SetSchema(_)
            | Self::SetUnique(_)
            | Self::Batch(_) => false,
        }
    }

    /// Whether the leader computes a part of it from records.
    pub(in crate::service) fn is_computed(&self) -> bool {
        match self {
            Self::PatchConfig { .. } => true,
            Self::Batch(operations) => operations.iter().any(Self::is_computed),
            Self::CreateDefinition { .. }
            | Self::SetIndexes { .. }
            | Self::DeleteDefinition { .. }
            | Self::WriteConfig { .. }
            | Self::DeleteConfig { .. }
            | Self::Rollback(_)
            | Self::SetSchema(_)
            | Self::SetUnique(_) => false,
        }
    }

    /// Whether it gives room back, or at least takes none.
    pub(in crate::service) fn is_removal(&self) -> bool {
        match self {
            Self::DeleteDefinition { .. } | Self::DeleteConfig { .. } => true,
            Self::Batch(operations) => operations.iter().all(Self::is_removal),
            Self::CreateDefinition { .. }
            | Self::SetIndexes { .. }
            | Self::WriteConfig { .. }
            | Self::PatchConfig { .. }
            | Self::Rollback(_)
            | Self::SetSchema(_)
            | Self::SetUnique(_) => false,
        }
    }
}
