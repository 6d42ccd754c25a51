//! Batches: several writes that are decided as one.
//!
//! Each operation is prepared like a single write, on the state that the earlier operations make. This is the state
//! itself if all operations are of different configs and no path is unique: then no preparation reads what another one
//! writes. Otherwise it is a clone to which the earlier operations are applied, which costs as much as applying the
//! batch. A record that an earlier operation wrote has no revision yet and is named by [`THIS_ENTRY`]; so a schema
//! from an earlier operation is compiled for this batch only.
//!
//! All operations share one budget. Between two of them the work ends if the request has ended.
//!
//! A change of a constraint on all configs is prepared here like any other operation. After that, `config_check` checks
//! the configs as the earlier operations leave them.
//!
//! **Invariant:** a refusal names its operation and has the status that the operation alone would have had, on the
//! state that the earlier operations make.

use std::collections::BTreeSet;

use super::{
    prepare::{Preparation, PreparedWrite, check_intake, prepare_write},
    transaction::{ReadSet, all_hold, read},
};
use crate::{
    request::{Effect, OPERATIONS, Refusal, Target, Write, invalid_at},
    schemas::Validators,
};
use concord_model::{
    command::{BatchStep, Command, THIS_ENTRY, Transaction},
    error::{Invalid, Violation},
    limits::{BATCH_CONFIG_CHECKS_MAX, Limits, VIOLATIONS_MAX},
};
use concord_state::State;

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
        match check_intake(write, limits).map_err(|invalid| invalid_at(invalid, place)) {
            Ok(()) => {}
            Err(Invalid::Violations(more)) => extend(&mut violations, more),
            Err(invalid @ (Invalid::TooLarge(_) | Invalid::TooLargeAt(_))) => return Err(invalid),
        }
    }
    if violations.is_empty() { Ok(()) } else { Err(Invalid::Violations(violations)) }
}

/// Adds violations, up to the limit of a response.
fn extend(violations: &mut Vec<Violation>, more: Vec<Violation>) {
    violations.extend(more.into_iter().take(VIOLATIONS_MAX.saturating_sub(violations.len())));
}

/// Checks the number of operations, before anything is made of each of them.
///
/// # Errors
/// When it is 0 or exceeds the limit.
pub fn check_operation_count(count: usize, limits: &Limits) -> Result<(), Invalid> {
    let most = limits.batch_operations;
    if count == 0 || count > most {
        let msg = format!("a batch has 1 to {most} operations, but this one has {count}");
        return Err(Violation::at(vec![OPERATIONS.into()], msg).into());
    }
    Ok(())
}

/// Makes the command of a batch. Collects the violations of all invalid operations, not only of the first.
pub(super) fn prepare_batch(
    state: &State,
    batch: &Write,
    with: Preparation<'_>,
) -> Result<PreparedWrite, Refusal> {
    let mut reads = ReadSet::default();
    let ChosenOperations { conditions_held, first, operations } = chosen(state, batch, &mut reads, with)?;
    let steps = steps(state, first, operations, &mut reads, with)?;
    let command = if batch.rests_on_reads() {
        Command::Transaction(Transaction { reads: reads.into_list(), chosen: Ok(conditions_held), steps })
    } else {
        Command::Batch(steps.into_iter().map(|(_, step)| step).collect())
    };
    Ok(PreparedWrite::of(command))
}

/// Makes the command of operations that change records.
pub(super) fn prepare_records(
    state: &State,
    operations: &[Write],
    with: Preparation<'_>,
) -> Result<Command, Refusal> {
    let steps = steps(state, 0, operations, &mut ReadSet::default(), with)?;
    Ok(Command::Batch(steps.into_iter().map(|(_, step)| step).collect()))
}

/// The steps of operations, each with its place. `first`: the place of the first of them.
fn steps(
    state: &State,
    first: u32,
    operations: &[Write],
    reads: &mut ReadSet,
    with: Preparation<'_>,
) -> Result<Vec<(u32, BatchStep)>, Refusal> {
    let budget = with.budget;
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
            read(state, write, reads, with).map(|()| None)
        } else {
            step(&mut scratch, write, applies_to, with).map(Some)
        };
        match prepared.map_err(|refusal| refusal.of_operation(place)) {
            Ok(None) => {}
            Ok(Some(step)) => {
                if matches!(write.target(), Target::Definition(_)) {
                    // The definition may have changed without a new revision.
                    own_validators = Validators::default();
                }
                steps.push((place, step));
            }
            Err(Refusal::Invalid(Invalid::Violations(more))) => extend(&mut violations, more),
            // An operation after an invalid one may fail only because it needs what that one would have made.
            Err(refusal) if violations.is_empty() || budget.is_over() => return Err(refusal),
            Err(_) => {}
        }
    }
    if !violations.is_empty() {
        return Err(Invalid::Violations(violations).into());
    }
    Ok(steps)
}

/// The operations that are carried out.
struct ChosenOperations<'a> {
    /// Whether the conditions hold; true if there are none.
    conditions_held: bool,
    /// The place of the first of them.
    first: u32,
    operations: &'a [Write],
}

/// Evaluates the conditions.
fn chosen<'a>(
    state: &State,
    batch: &'a Write,
    reads: &mut ReadSet,
    with: Preparation<'_>,
) -> Result<ChosenOperations<'a>, Refusal> {
    let Write::Transaction(transaction) = batch else {
        return Ok(ChosenOperations { conditions_held: true, first: 0, operations: batch.operations() });
    };
    let (conditions, _) = transaction.operations.split_at(transaction.conditions);
    let conditions_held = all_hold(state, conditions, reads, with)?;
    let places = batch.chosen(conditions_held);
    let first = u32::try_from(places.start).unwrap_or(u32::MAX);
    Ok(ChosenOperations { conditions_held, first, operations: &transaction.operations[places] })
}

/// Whether no operation depends on another: all are of different configs, and their definitions have no unique paths.
fn are_independent(state: &State, operations: &[Write]) -> bool {
    let mut seen = BTreeSet::new();
    let has_unique =
        |definition| state.definition(definition).is_some_and(|found| !found.definition.unique.is_empty());
    operations.iter().filter(|write| write.effect() != Effect::Read).all(|write| match write.target() {
        Target::Config { definition, key } => seen.insert((definition, key)) && !has_unique(definition),
        Target::Definition(_)
        | Target::Batch
        | Target::Keys
        | Target::Anchors
        | Target::Environment(_)
        | Target::Change(_)
        | Target::Identity => false,
    })
}

/// About the bytes of history for the record that an operation replaces.
fn replaced_bytes(state: &State, write: &Write) -> usize {
    let Some(found) = state.definition(write.definition()) else { return 0 };
    match write.target() {
        Target::Config { key, .. } if write.effect() != Effect::Read => {
            // What the batch itself has written replaces nothing in the history.
            let before = found.config(key).filter(|config| config.revision != THIS_ENTRY);
            before.map_or(0, |config| {
                let entries = config.entries.iter().map(|entry| entry.value.len()).sum::<usize>();
                config.data.len() + entries
            })
        }
        // Twice, because the schema that stays when only the indexes change counts as well.
        Target::Definition(_) => found.definition.schema.as_ref().map_or(0, |schema| 2 * schema.len()),
        Target::Config { .. }
        | Target::Batch
        | Target::Keys
        | Target::Anchors
        | Target::Environment(_)
        | Target::Change(_)
        | Target::Identity => 0,
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
    let PreparedWrite { command, definition_read, precondition, .. } = prepare_write(scratch, write, with)?;
    precondition?;
    with.budget.charge_replaced(replaced)?;
    if let Some(place) = applies_to {
        scratch.try_step(place, &command)?;
    }
    Ok(BatchStep { definition_read, command })
}
