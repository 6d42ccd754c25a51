//! The check of all configs of a definition before a change of what they must satisfy is proposed, alone or as operations
//! of a batch.
//!
//! Each such step of a command has a scan. A pass takes one state, applies the steps to a scratch copy of it, and
//! advances the scan of each step that needs one before that step is applied: so the configs are checked with what the
//! steps before it make of them. What those have read must be the same in that state, else the command is prepared
//! again. The command names the revision of the last pass; the log refuses it as stale when another entry has written a
//! config of the definition since.
//!
//! **Invariants:** a refusal because of configs is confirmed at a read index, on a state on which the command is what it
//! was prepared to be. A scan is continued only while the steps before its own are the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, timeout_at};

use super::{
    config_scan::{Cancelled, Pace, Scan, check as check_cancelled},
    redefine::{formats_of, keep_pace},
    write_barrier::{BarrierHolder, Raised, raise},
};
use crate::{
    cpu_pool::{Cancel, ScanPlace, ScanYield, Weight},
    request::{Effect, Refusal, Write, WriteRequest},
    retry::{Attempt, AttemptError, confirm_leadership},
    write::Writes,
};
use concord_consensus::Consensus;
use concord_model::{
    command::{BatchStep, Command, ConfigRead, Transaction},
    limits::CONFIG_CHECK_TIMEOUT,
    record::Revision,
};
use concord_state::State;

/// Configs up to which a change that checks them all has no more time than any other write: they take some 10 ms.
const ORDINARY_TIME_CONFIGS_MAX: u64 = 10_000;
/// New configs of a pass up to which the write barrier is raised for the next one: milliseconds of work.
const BARRIER_CONFIGS_MAX: u64 = 1000;
/// Passes after which the write barrier is raised in any case.
const PASSES_MAX: u32 = 6;

/// Whether a command needs a check of all configs of a definition.
pub(super) fn needs_config_check(command: &Command) -> bool {
    match command {
        Command::SetSchema { configs_read, .. } | Command::SetUnique { configs_read, .. } => {
            configs_read.is_some()
        }
        Command::Batch(steps) => steps.iter().any(|step| needs_config_check(&step.command)),
        Command::Transaction(Transaction { steps, .. }) => {
            steps.iter().any(|(_, step)| needs_config_check(&step.command))
        }
        Command::CreateDefinition { .. }
        | Command::SetIndexes { .. }
        | Command::DeleteDefinition { .. }
        | Command::WriteConfig { .. }
        | Command::DeleteConfig { .. }
        | Command::Compact { .. }
        | Command::RaiseFeatureLevel { .. }
        | Command::Forget { .. }
        | Command::Access(_)
        | Command::BuildIndex { .. } => false,
    }
}

/// Enters into a command the revision up to which the configs were checked.
pub(super) fn set_configs_read(command: &mut Command, read: Revision) {
    if let Command::SetSchema { configs_read: Some(configs_read), .. }
    | Command::SetUnique { configs_read: Some(configs_read), .. } = command
    {
        *configs_read = read;
    } else if let Command::Batch(steps) = command {
        steps.iter_mut().for_each(|step| set_configs_read(&mut step.command, read));
    } else if let Command::Transaction(Transaction { steps, .. }) = command {
        steps.iter_mut().for_each(|(_, step)| set_configs_read(&mut step.command, read));
    }
}

/// What a command does, and what it rests on.
#[derive(Debug, Default)]
pub(super) struct Steps {
    reads: Vec<ConfigRead>,
    /// Each with its place among the operations of the request.
    steps: Vec<(u32, BatchStep)>,
}

impl Steps {
    pub(super) fn of(command: &Command, definition_read: Option<Revision>) -> Self {
        if let Command::Batch(steps) = command {
            // Each operation is a step: one that only reads makes a transaction of the batch.
            return Self { reads: Vec::new(), steps: (0..).zip(steps.iter().cloned()).collect() };
        }
        if let Command::Transaction(Transaction { reads, steps, .. }) = command {
            return Self { reads: reads.clone(), steps: steps.clone() };
        }
        let step = BatchStep { definition_read, command: command.clone() };
        Self { reads: Vec::new(), steps: vec![(0, step)] }
    }

    /// How many of the first steps do the same in another command.
    fn in_common(&self, other: &Self) -> usize {
        let pairs = self.steps.iter().zip(&other.steps);
        pairs.take_while(|(one, other)| one.0 == other.0 && one.1.command == other.1.command).count()
    }
}

/// The result of a pass over the configs of one state.
#[derive(Debug, PartialEq)]
pub(super) enum Pass {
    /// What the command was made from is not the same in this state.
    Changed,
    /// All configs satisfy the change. How many were new, and the state's revision.
    Satisfied(u64, Revision),
    Violated(Refusal),
}

/// The scans of a command, each by the number of its step and by the place of its operation: where another list of a
/// transaction is chosen, another operation is the same step.
#[derive(Debug, Default)]
pub(super) struct Scans(BTreeMap<(usize, u32), Box<Scan>>);

impl Scans {
    /// Checks the configs of one state that are new since the pass before.
    pub(super) fn pass(
        &mut self,
        write: &Write,
        steps: &Steps,
        state: &State,
        (pace, cancel): (&mut Pace<'_>, &Cancel),
    ) -> Result<Result<Pass, Cancelled>, Refusal> {
        let Some(last) = steps.steps.iter().rposition(|(_, step)| needs_config_check(&step.command)) else {
            return Ok(Ok(Pass::Satisfied(0, state.revision())));
        };
        if !state.is_as_read(&steps.reads) {
            return Ok(Ok(Pass::Changed));
        }
        let mut scratch = state.clone();
        let mut new_configs = 0;
        for (number, (place, step)) in steps.steps[..=last].iter().enumerate() {
            if needs_config_check(&step.command) {
                let is_batch = write.effect() == Effect::Batch;
                let operation = usize::try_from(*place).ok().and_then(|place| write.operations().get(place));
                let operation =
                    operation.ok_or_else(|| Refusal::Internal("a step without an operation".into()))?;
                match self.check_step((number, *place), (operation, step), &scratch, (pace, cancel))? {
                    Ok(Pass::Satisfied(new, _)) => new_configs += new,
                    Ok(Pass::Violated(refusal)) if is_batch => {
                        return Ok(Ok(Pass::Violated(refusal.of_operation(*place))));
                    }
                    end @ (Ok(Pass::Changed | Pass::Violated(_)) | Err(Cancelled)) => return Ok(end),
                }
            }
            if number < last {
                if pace().is_err() {
                    return Ok(Err(Cancelled));
                }
                // There was no rejection on the state that it was prepared on.
                let Some(Ok(())) = scratch.retry_step(*place, step) else { return Ok(Ok(Pass::Changed)) };
            }
        }
        Ok(Ok(Pass::Satisfied(new_configs, state.revision())))
    }

    /// Advances the scan of a step, on the state that the steps before it make.
    fn check_step(
        &mut self,
        at: (usize, u32),
        (operation, step): (&Write, &BatchStep),
        state: &State,
        (pace, cancel): (&mut Pace<'_>, &Cancel),
    ) -> Result<Result<Pass, Cancelled>, Refusal> {
        let formats = formats_of(operation, state);
        let scan = match self.0.remove(&at).filter(|scan| scan.formats() == formats) {
            Some(scan) => scan,
            None => Box::new(Scan::of(operation, formats)?),
        };
        let scan = self.0.entry(at).insert_entry(scan).into_mut();
        let found = state.definition(operation.definition());
        let Some(found) = found.filter(|found| Some(found.definition.revision) == step.definition_read)
        else {
            return Ok(Ok(Pass::Changed));
        };
        Ok(scan.advance(state, found, pace).and_then(|new_configs| {
            let satisfied = Pass::Satisfied(new_configs, scan.revision());
            Ok(scan.refusal(found, cancel)?.map_or(satisfied, Pass::Violated))
        }))
    }
}

/// The check of all configs, through all preparations of one write.
#[derive(Debug)]
pub(super) struct ConfigCheck {
    request: Arc<WriteRequest>,
    steps: Arc<Steps>,
    scans: Scans,
    /// Its place among the scans, from the first pass to the end.
    place: Option<ScanPlace>,
    barriers: Vec<BarrierHolder>,
    raised: Option<Raised>,
    passes: u32,
}

impl ConfigCheck {
    /// Continues with the command that another preparation has made.
    fn continue_with(&mut self, steps: Steps) {
        let in_common = self.steps.in_common(&steps);
        let before = self.scans.0.len();
        let is_at = |(step, place): &(usize, u32)| steps.steps.get(*step).is_some_and(|(at, _)| at == place);
        self.scans.0.retain(|at, _| at.0 < in_common || (at.0 == in_common && is_at(at)));
        if self.scans.0.len() < before {
            // A scan from the beginning is too long for writes to wait for it.
            self.raised = None;
        }
        self.steps = Arc::new(steps);
    }
}

/// The operations that change what all configs of a definition must satisfy.
fn constraints(write: &Write) -> impl Iterator<Item = &Write> {
    write.operations().iter().filter(|operation| operation.effect() == Effect::Constrain)
}

impl Writes {
    /// How long a write may take in total.
    pub(super) fn time_for(&self, write: &Write) -> Duration {
        let time = self.cx.options.write_timeout;
        if !write.constrains() {
            return time;
        }
        let state = self.cx.applied();
        let configs_of =
            |write: &Write| state.definition(write.definition()).map_or(0, |found| found.by_key.len());
        let configs: u64 = constraints(write).map(configs_of).sum();
        if configs > ORDINARY_TIME_CONFIGS_MAX { time.max(CONFIG_CHECK_TIMEOUT) } else { time }
    }

    pub(super) fn new_config_check(&self, request: &Arc<WriteRequest>) -> ConfigCheck {
        let definitions: BTreeSet<&str> = constraints(&request.write).map(Write::definition).collect();
        let barriers = definitions.into_iter().map(|definition| self.write_barriers.of(definition));
        ConfigCheck {
            request: Arc::clone(request),
            steps: Arc::default(),
            scans: Scans::default(),
            place: None,
            barriers: barriers.collect(),
            raised: None,
            passes: 0,
        }
    }

    /// Checks all configs that a command demands to be checked. Returns the revision up to which they satisfy it, or
    /// `None` when what it rests on has changed since it was prepared. Once it has succeeded, no config of these
    /// definitions is written through this node.
    pub(super) async fn check_configs(
        &self,
        consensus: &Consensus,
        check: &mut ConfigCheck,
        (command, definition_read): (&Command, Option<Revision>),
        deadline: Instant,
    ) -> Attempt<Option<Revision>> {
        check.continue_with(Steps::of(command, definition_read));
        loop {
            let mut pass = self.pass(check, consensus.state(), deadline).await?;
            if let Pass::Violated(_) = pass {
                check.raised = None;
                confirm_leadership(consensus, deadline).await?;
                pass = self.pass(check, consensus.state(), deadline).await?;
            }
            let (new_configs, revision) = match pass {
                Pass::Changed => return Ok(None),
                Pass::Violated(refusal) => return Err(AttemptError::Refused(refusal)),
                Pass::Satisfied(new_configs, revision) => (new_configs, revision),
            };
            if check.raised.is_some() {
                return Ok(Some(revision));
            }
            check.passes += 1;
            if new_configs <= BARRIER_CONFIGS_MAX || check.passes >= PASSES_MAX {
                let raised = timeout_at(deadline, raise(&check.barriers, &check.request.write)).await;
                let late = |_| AttemptError::Retry("writes in progress did not end in time".into());
                check.raised = Some(raised.map_err(late)?);
            }
        }
    }

    /// Checks the configs of one state that are new since the pass before, in the pool for long work.
    async fn pass(&self, check: &mut ConfigCheck, state: Arc<State>, deadline: Instant) -> Attempt<Pass> {
        let late = || AttemptError::Retry("the configs could not be checked in time".into());
        // While a barrier is raised, writes wait for the pass.
        let is_urgent = check.raised.is_some();
        let weight = match check.place {
            None => Weight::Scan,
            Some(_) if is_urgent => Weight::Urgent,
            Some(_) => Weight::Resumed,
        };
        let mut turn = self.cx.cpu_pool.turn(weight, deadline).await?;
        let place = check.place.take().unwrap_or_else(|| turn.take_place());
        let (request, steps) = (Arc::clone(&check.request), Arc::clone(&check.steps));
        let mut scans = std::mem::take(&mut check.scans);
        let work = move |cancel: &Cancel, way: &mut ScanYield| {
            let mut pace = || if is_urgent { check_cancelled(cancel) } else { keep_pace(cancel, way) };
            let pass = scans.pass(&request.write, &steps, &state, (&mut pace, cancel))?;
            // The place is returned with the work, however long after its request that ends.
            Ok(pass.map(|pass| (scans, place, pass)))
        };
        let scanned: Result<Result<_, Cancelled>, Refusal> =
            self.cx.cpu_pool.run_in(turn, deadline, work).await?;
        let (scans, place, pass) = scanned?.map_err(|Cancelled| late())?;
        (check.scans, check.place) = (scans, Some(place));
        Ok(pass)
    }
}

#[cfg(test)]
mod tests;
