//! Batches: several writes that are decided as one.
//!
//! Each operation is prepared like a single write, on the state that the operations before it make. Where all are of
//! configs, none is of the same config as another and no path is unique, that is the state itself: no preparation reads
//! what another one writes. Else it is a clone to which the operations before are applied; that costs as much as applying the batch.
//! What an earlier operation wrote has no revision yet and is named by [`THIS_ENTRY`]; so a schema that it brought is
//! compiled for this batch only.
//!
//! All operations share one budget, and between two of them the work ends when nobody waits for it any more.
//!
//! A change of what all configs of a definition must satisfy is prepared here like any other; `config_check` then checks
//! the configs, with what the operations before it make of them.
//!
//! **Invariant:** a refusal names its operation and has the status that the operation alone would have had, on the
//! state that the operations before it make.

use std::collections::BTreeSet;

use super::{
    prepare::{Preparation, PreparedWrite, check_intake, prepare_write},
    transaction::{Reads, all_hold, read},
};
use crate::request::{Effect, Refusal, Target, Write};
use crate::schemas::Validators;
use concord_model::{
    command::{BatchStep, Command, THIS_ENTRY, Transaction},
    error::{Invalid, LocSegment, NothingToRestore, Rejection, Violation},
    limits::{BATCH_CONFIG_CHECKS_MAX, Limits, VIOLATIONS_MAX},
};
use concord_state::State;

/// The member of a batch that has its operations: locations begin with it.
pub(super) const OPERATIONS: &str = "operations";

/// Validates what needs no state: the number of operations, and each operation as a single write.
pub(super) fn check_operations(operations: &[Write], limits: &Limits) -> Result<(), Invalid> {
    check_operation_count(operations.len(), limits)?;
    let mut violations = Vec::new();
    let constrain = |operation: &&Write| operation.effect() == Effect::Constrain;
    if operations.len() > BATCH_CONFIG_CHECKS_MAX
        && operations.iter().filter(constrain).count() > BATCH_CONFIG_CHECKS_MAX
    {
        let msg =
            format!("a batch has at most {BATCH_CONFIG_CHECKS_MAX} changes of schemas and unique paths");
        violations.push(Violation::at(vec![OPERATIONS.into()], msg));
    }
    for (place, write) in (0..).zip(operations) {
        match check_intake(write, limits).map_err(|invalid| at_operation(invalid, place)) {
            Ok(()) => {}
            Err(Invalid::Violations(more)) => extend(&mut violations, more),
            Err(invalid @ (Invalid::TooLarge(_) | Invalid::TooLargeAt(_))) => return Err(invalid),
        }
    }
    if violations.is_empty() { Ok(()) } else { Err(Invalid::Violations(violations)) }
}

/// Adds violations, as many as an answer has.
fn extend(violations: &mut Vec<Violation>, more: Vec<Violation>) {
    violations.extend(more.into_iter().take(VIOLATIONS_MAX.saturating_sub(violations.len())));
}

/// Refuses a number of operations that no batch has, before anything is made of each of them.
///
/// # Errors
/// When there is none, or more than the limit.
pub fn check_operation_count(count: usize, limits: &Limits) -> Result<(), Invalid> {
    let most = limits.batch_operations;
    if count == 0 || count > most {
        let msg = format!("a batch has 1 to {most} operations, but this one has {count}");
        return Err(Violation::at(vec![OPERATIONS.into()], msg).into());
    }
    Ok(())
}

/// Makes the command of a batch. The violations of all invalid operations are collected, not of the first only.
pub(super) fn prepare_batch(
    state: &State,
    batch: &Write,
    with: Preparation<'_>,
) -> Result<PreparedWrite, Refusal> {
    let budget = with.budget;
    let mut reads = Reads::default();
    let Chosen { conditions_held, first, operations } = chosen(state, batch, &mut reads, with)?;
    let is_independent = are_independent(state, operations);
    if !is_independent {
        budget.charge_scratch(operations.len())?;
    }
    let mut scratch = state.clone();
    let mut own_validators = Validators::default();
    let (mut steps, mut violations) = (Vec::with_capacity(operations.len()), Vec::new());
    for (place, write) in (first..).zip(operations) {
        budget.check_time()?;
        let is_own = scratch
            .definition(write.definition())
            .is_some_and(|found| found.definition.revision == THIS_ENTRY);
        let with = if is_own { Preparation { validators: &own_validators, ..with } } else { with };
        let applies_to = (!is_independent).then_some(place);
        let prepared = if write.effect() == Effect::Read {
            read(state, write, &mut reads, with).map(|()| None)
        } else {
            step(&mut scratch, write, applies_to, with).map(Some)
        };
        match prepared.map_err(|refusal| refused(refusal, place)) {
            Ok(None) => {}
            Ok(Some(step)) => {
                if matches!(write.target(), Target::Definition(_)) {
                    // The definition may have changed, at the same revision.
                    own_validators = Validators::default();
                }
                steps.push((place, step));
            }
            Err(Refusal::Invalid(Invalid::Violations(more))) => extend(&mut violations, more),
            // The operations after an invalid one may lack what it would have made.
            Err(refusal) if violations.is_empty() || budget.is_over() => return Err(refusal),
            Err(_) => {}
        }
    }
    if !violations.is_empty() {
        return Err(Invalid::Violations(violations).into());
    }
    let command = if batch.rests_on_reads() {
        Command::Transaction(Transaction { reads: reads.into_list(), chosen: Ok(conditions_held), steps })
    } else {
        Command::Batch(steps.into_iter().map(|(_, step)| step).collect())
    };
    Ok(PreparedWrite { command, definition_read: None, precondition: Ok(()) })
}

/// The operations that are carried out.
struct Chosen<'a> {
    /// Whether the conditions hold; true where there are none.
    conditions_held: bool,
    /// The place of the first of them.
    first: u32,
    operations: &'a [Write],
}

/// Evaluates the conditions.
fn chosen<'a>(
    state: &State,
    batch: &'a Write,
    reads: &mut Reads,
    with: Preparation<'_>,
) -> Result<Chosen<'a>, Refusal> {
    let Write::Transaction(transaction) = batch else {
        return Ok(Chosen { conditions_held: true, first: 0, operations: batch.operations() });
    };
    let (conditions, _) = transaction.operations.split_at(transaction.conditions);
    let conditions_held =
        all_hold(state, conditions, reads, with).map_err(|(place, refusal)| refused(refusal, place))?;
    let places = batch.chosen(conditions_held);
    let first = u32::try_from(places.start).unwrap_or(u32::MAX);
    Ok(Chosen { conditions_held, first, operations: &transaction.operations[places] })
}

/// Whether no operation depends on what another one writes: all are of configs, each of another one, and no path is
/// unique among them.
fn are_independent(state: &State, operations: &[Write]) -> bool {
    let mut seen = BTreeSet::new();
    let has_unique =
        |definition| state.definition(definition).is_some_and(|found| !found.definition.unique.is_empty());
    operations.iter().filter(|write| write.effect() != Effect::Read).all(|write| match write.target() {
        Target::Config { definition, key } => seen.insert((definition, key)) && !has_unique(definition),
        Target::Definition(_) | Target::Batch | Target::Keys => false,
    })
}

/// About what the history keeps of the record that an operation replaces.
fn replaced_bytes(state: &State, write: &Write) -> usize {
    let Some(found) = state.definition(write.definition()) else { return 0 };
    match write.target() {
        Target::Config { key, .. } if write.effect() != Effect::Read => {
            // What the batch itself has written is there already.
            let before = found.config(key).filter(|config| config.revision != THIS_ENTRY);
            before.map_or(0, |config| {
                let entries = config.entries.iter().map(|entry| entry.value.len()).sum::<usize>();
                config.data.len() + entries
            })
        }
        // With the schema that stays as it is, where only the indexes change.
        Target::Definition(_) => found.definition.schema.as_ref().map_or(0, |schema| 2 * schema.len()),
        Target::Config { .. } | Target::Batch | Target::Keys => 0,
    }
}

/// Prepares one operation, and applies it to the scratch state if it has a place there.
fn step(
    scratch: &mut State,
    write: &Write,
    applies_to: Option<u32>,
    with: Preparation<'_>,
) -> Result<BatchStep, Refusal> {
    let replaced = replaced_bytes(scratch, write);
    let PreparedWrite { command, definition_read, precondition } =
        prepare_write(scratch, scratch.definition(write.definition()), write, with)?;
    precondition?;
    with.budget.charge_replaced(replaced)?;
    if let Some(place) = applies_to {
        scratch.try_step(place, &command)?;
    }
    Ok(BatchStep { definition_read, command })
}

impl Refusal {
    /// The refusal of an operation as that of its batch.
    #[must_use]
    pub fn of_operation(self, place: u32) -> Self {
        refused(self, place)
    }

    /// The rejection of a rollback that has nothing to go back to, and in place of it what it is refused for.
    ///
    /// # Errors
    /// This refusal, when it says something else.
    #[expect(clippy::wildcard_enum_match_arm, reason = "what says something else is returned as it is")]
    pub fn nothing_to_restore(self) -> Result<Rejection, Self> {
        let reason = match self {
            Self::Expired(text) => NothingToRestore::Expired(text),
            Self::NotThere(text) => NothingToRestore::NotThere(text),
            Self::Invalid(Invalid::Violations(violations)) => NothingToRestore::Invalid(violations),
            Self::Rejected(rejection @ Rejection::DefinitionNotFound) => return Ok(rejection),
            other => return Err(other),
        };
        Ok(Rejection::NothingToRestore(reason))
    }

    /// A refusal as its caller is answered: a rollback in a transaction as if it had been requested alone.
    #[expect(clippy::wildcard_enum_match_arm, reason = "every other rejection stays as it is")]
    pub(super) fn answered(self) -> Self {
        let Self::Rejected(Rejection::InBatch { index, rejection }) = self else { return self };
        match *rejection {
            Rejection::NothingToRestore(reason) => refused(reason.into(), index),
            rejection => Rejection::InBatch { index, rejection: Box::new(rejection) }.into(),
        }
    }
}

impl From<NothingToRestore> for Refusal {
    fn from(reason: NothingToRestore) -> Self {
        match reason {
            NothingToRestore::Expired(text) => Self::Expired(text),
            NothingToRestore::NotThere(text) => Self::NotThere(text),
            NothingToRestore::Invalid(violations) => Invalid::Violations(violations).into(),
        }
    }
}

fn refused(refusal: Refusal, place: u32) -> Refusal {
    match refusal {
        Refusal::Rejected(rejection) => {
            Rejection::InBatch { index: place, rejection: Box::new(rejection) }.into()
        }
        Refusal::Invalid(invalid) => at_operation(invalid, place).into(),
        Refusal::Forbidden { verb, .. } => Refusal::Forbidden { verb, operation: Some(place) },
        Refusal::Conflict(text) => Refusal::ConflictAt(violation_at(Violation::new(text), place)),
        Refusal::ConflictAt(violation) => Refusal::ConflictAt(violation_at(violation, place)),
        Refusal::NotUniqueYet { path, one, other, .. } => {
            Refusal::NotUniqueYet { path, one, other, operation: Some(place) }
        }
        Refusal::Breaks { count, violations, .. } => {
            Refusal::Breaks { count, violations: all_at(violations, place), operation: Some(place) }
        }
        Refusal::Expired(_) | Refusal::NotThere(_) => Refusal::OfOperation(place, Box::new(refusal)),
        Refusal::Unavailable(_)
        | Refusal::Undecided(_)
        | Refusal::Overloaded
        | Refusal::StorageFull(_)
        | Refusal::Internal(_)
        | Refusal::NoMember(_)
        | Refusal::OfOperation(..)
        | Refusal::LimitReached(_)
        | Refusal::KeyEnded
        | Refusal::Building(_)
        | Refusal::CursorExpired(_) => refusal,
    }
}

fn at_operation(invalid: Invalid, place: u32) -> Invalid {
    match invalid {
        Invalid::Violations(violations) => Invalid::Violations(all_at(violations, place)),
        Invalid::TooLarge(text) => Invalid::TooLargeAt(violation_at(Violation::new(text), place)),
        Invalid::TooLargeAt(violation) => Invalid::TooLargeAt(violation_at(violation, place)),
    }
}

fn all_at(violations: Vec<Violation>, place: u32) -> Vec<Violation> {
    violations.into_iter().map(|violation| violation_at(violation, place)).collect()
}

/// The violation of one operation as a violation of the batch.
fn violation_at(mut violation: Violation, place: u32) -> Violation {
    violation.loc.splice(0..0, [LocSegment::from(OPERATIONS), LocSegment::Index(place.into())]);
    violation
}
