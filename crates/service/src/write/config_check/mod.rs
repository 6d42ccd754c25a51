//! The check of all configs of a definition before a change of their constraints is proposed, alone or as operations of
//! a batch.
//!
//! Each step of a command that changes a constraint has a scan. A pass takes one state, applies the steps to a scratch
//! copy of it, and advances each scan just before its step is applied: so the configs are checked as the earlier steps
//! leave them. If the configs that a transaction read differ in that state, the command is prepared again. The command
//! names the revision of the last pass, and the log rejects it as stale if a later entry has written a config of the
//! definition.
//!
//! **Invariants:** a refusal because of configs is confirmed at a read index, on a state that the command still fits. A
//! scan continues only while the steps before its own stay the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, timeout_at};

use super::{
    access::{Authorized, authorize},
    conceal::without_values,
    config_scan::{ConfigScan, ScanPace},
    prepare::PreparedWrite,
    redefine::formats_of,
    write_barrier::{BarrierHolder, RaisedBarriers, raise},
};
use crate::{
    cpu_pool::{Cancel, ScanPlace, ScanYield, Weight},
    request::{ChangeWrite, Effect, Refusal, Write, WriteRequest},
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

/// Up to this many configs, a change that checks them all has the time of any other write: the check takes some 10 ms.
const ORDINARY_TIME_CONFIGS_MAX: u64 = 10_000;
/// After a pass with at most this many new configs, the write barrier is raised for the next pass, which takes
/// milliseconds.
const BARRIER_CONFIGS_MAX: u64 = 1000;
/// After this many passes the write barrier is raised in any case.
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
        | Command::UndeleteDefinition { .. }
        | Command::SetProtection { .. }
        | Command::WriteConfig { .. }
        | Command::DeleteConfig { .. }
        | Command::Compact { .. }
        | Command::RaiseFeatureLevel { .. }
        | Command::Forget { .. }
        | Command::SkipRevisions { .. }
        | Command::Audit(_)
        | Command::System(_)
        | Command::Access(_)
        | Command::BuildIndex { .. } => false,
    }
}

/// Records in a command the revision up to which the configs were checked.
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

/// The steps of a command, and the reads that it rests on.
#[derive(Debug, Default)]
pub(super) struct CommandSteps {
    reads: Vec<ConfigRead>,
    /// Each with the place of its operation in the request.
    steps: Vec<(u32, BatchStep)>,
}

impl CommandSteps {
    pub(super) fn of(prepared: &PreparedWrite) -> Self {
        if let Command::Batch(steps) = &prepared.command {
            // Each operation is a step: a batch with an operation that only reads is a transaction.
            return Self { reads: Vec::new(), steps: (0..).zip(steps.iter().cloned()).collect() };
        }
        if let Command::Transaction(Transaction { reads, steps, .. }) = &prepared.command {
            return Self { reads: reads.clone(), steps: steps.clone() };
        }
        let PreparedWrite { command, definition_read, .. } = prepared.clone();
        Self { reads: Vec::new(), steps: vec![(0, BatchStep { definition_read, command })] }
    }

    /// How many of the first steps do the same in another command.
    fn in_common(&self, other: &Self) -> usize {
        let pairs = self.steps.iter().zip(&other.steps);
        pairs.take_while(|(one, other)| one.0 == other.0 && one.1.command == other.1.command).count()
    }
}

/// The result of a pass over the configs of one state.
#[derive(Debug, PartialEq)]
pub(super) enum PassResult {
    /// The state that the command was prepared on differs from this one in what the command rests on.
    Changed,
    /// All configs satisfy the change.
    Satisfied {
        /// The number of configs that were new in this pass.
        new_configs: u64,
        /// The revision of the state.
        revision: Revision,
    },
    /// Some configs do not.
    Violated(Refusal),
}

/// Which scan of a command: where the other list of a transaction is chosen, another operation is the same step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ScanId {
    step: usize,
    operation: u32,
}

/// The scans of a command.
#[derive(Debug, Default)]
pub(super) struct ConfigScans(BTreeMap<ScanId, Box<ConfigScan>>);

impl ConfigScans {
    /// Checks the configs of one state that are new since the previous pass.
    ///
    /// # Errors
    /// See [`ScanPace::keep`].
    pub(super) fn pass(
        &mut self,
        write: &Write,
        steps: &CommandSteps,
        state: &State,
        pace: &mut ScanPace<'_>,
    ) -> Result<PassResult, Refusal> {
        let (mut new_configs, revision) = (0, state.revision());
        let Some(last) = steps.steps.iter().rposition(|(_, step)| needs_config_check(&step.command)) else {
            return Ok(PassResult::Satisfied { new_configs, revision });
        };
        if !state.is_as_read(&steps.reads) {
            return Ok(PassResult::Changed);
        }
        let mut scratch = state.clone();
        for (number, (place, step)) in steps.steps[..=last].iter().enumerate() {
            if needs_config_check(&step.command) {
                let operation = usize::try_from(*place).ok().and_then(|place| write.operations().get(place));
                let operation =
                    operation.ok_or_else(|| Refusal::Internal("a step without an operation".into()))?;
                let found = scratch.definition(operation.definition());
                let Some(found) =
                    found.filter(|found| Some(found.definition.revision) == step.definition_read)
                else {
                    return Ok(PassResult::Changed);
                };
                let scan = self.scan(ScanId { step: number, operation: *place }, operation, &scratch)?;
                new_configs += scan.advance(&scratch, found, pace)?;
                if let Some(refusal) = scan.refusal(found, pace)? {
                    let is_batch = write.effect() == Effect::Batch;
                    let refusal = if is_batch { refusal.of_operation(*place) } else { refusal };
                    return Ok(PassResult::Violated(refusal));
                }
            }
            if number < last {
                pace.keep()?;
                // It was not rejected on the state that the command was prepared on.
                let Some(Ok(())) = scratch.retry_step(*place, step) else { return Ok(PassResult::Changed) };
            }
        }
        Ok(PassResult::Satisfied { new_configs, revision })
    }

    /// The scan of a step, continued if `format` still has the same meaning in its schema.
    fn scan(&mut self, id: ScanId, operation: &Write, state: &State) -> Result<&mut ConfigScan, Refusal> {
        let formats = formats_of(operation, state);
        let scan = match self.0.remove(&id).filter(|scan| scan.formats() == formats) {
            Some(scan) => scan,
            None => Box::new(ConfigScan::of(operation, formats)?),
        };
        Ok(self.0.entry(id).insert_entry(scan).into_mut())
    }
}

/// The check of all configs, through all preparations of one write.
#[derive(Debug)]
pub(super) struct ConfigCheck {
    request: Arc<WriteRequest>,
    steps: Arc<CommandSteps>,
    scans: ConfigScans,
    /// Its place among the scans of this node, from the first pass to the end.
    place: Option<ScanPlace>,
    barriers: Vec<BarrierHolder>,
    raised: Option<RaisedBarriers>,
    passes: u32,
}

impl ConfigCheck {
    /// Continues with the command that another preparation has made.
    fn continue_with(&mut self, steps: CommandSteps) {
        let in_common = self.steps.in_common(&steps);
        let before = self.scans.0.len();
        let is_same_operation =
            |id: &ScanId| steps.steps.get(id.step).is_some_and(|(place, _)| *place == id.operation);
        self.scans.0.retain(|id, _| id.step < in_common || (id.step == in_common && is_same_operation(id)));
        if self.scans.0.len() < before {
            // A new scan takes too long for writes to wait for it.
            self.raised = None;
        }
        self.steps = Arc::new(steps);
    }
}

/// The operations that change a constraint on all configs of a definition.
fn constraints(write: &Write) -> impl Iterator<Item = &Write> {
    write.operations().iter().filter(|operation| operation.effect() == Effect::Constrain)
}

impl Writes {
    /// How long a write may take in total.
    pub(crate) fn time_for(&self, write: &Write) -> Duration {
        let time = self.cx.options.write_timeout;
        if write.change().is_some_and(ChangeWrite::is_of_records) {
            // What it changes is in the state. It may have to check many configs.
            return time.max(CONFIG_CHECK_TIMEOUT);
        }
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
            scans: ConfigScans::default(),
            place: None,
            barriers: barriers.collect(),
            raised: None,
            passes: 0,
        }
    }

    /// Checks all configs that a command needs checked. Returns the revision up to which they satisfy it, or `None` if
    /// the state no longer fits the command. Once it has succeeded, no config of these definitions is written through
    /// this node.
    pub(super) async fn check_configs(
        &self,
        consensus: &Consensus,
        check: &mut ConfigCheck,
        prepared: &PreparedWrite,
        deadline: Instant,
    ) -> Attempt<Option<Revision>> {
        check.continue_with(CommandSteps::of(prepared));
        loop {
            let mut pass = self.pass(check, consensus.state(), deadline).await?;
            if let PassResult::Violated(_) = pass {
                check.raised = None;
                confirm_leadership(consensus, deadline).await?;
                pass = self.pass(check, consensus.state(), deadline).await?;
            }
            let (new_configs, revision) = match pass {
                PassResult::Changed => return Ok(None),
                PassResult::Violated(refusal) => {
                    let refusal = self.as_applier_sees(refusal, &check.request, &consensus.state())?;
                    return Err(AttemptError::Refused(refusal));
                }
                PassResult::Satisfied { new_configs, revision } => (new_configs, revision),
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

    /// Why configs do not permit a change, as its client may see it: who applies a change request needs no permission for it.
    fn as_applier_sees(
        &self,
        refusal: Refusal,
        request: &WriteRequest,
        state: &State,
    ) -> Result<Refusal, Refusal> {
        if request.edition.is_none() {
            return Ok(refusal);
        }
        let Authorized { principal, .. } =
            authorize(state, &self.cx.policies, request, || self.clock.log_time(state))?;
        Ok(without_values(refusal, &principal, &request.write, state))
    }

    /// Checks the configs of one state that are new since the previous pass, in the pool for long work.
    async fn pass(
        &self,
        check: &mut ConfigCheck,
        state: Arc<State>,
        deadline: Instant,
    ) -> Result<PassResult, Refusal> {
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
            let mut pace = ScanPace { cancel, way: (!is_urgent).then_some(way) };
            let pass = scans.pass(&request.write, &steps, &state, &mut pace);
            // The place is freed when the work has ended, even if the request ended long before.
            (scans, place, pass)
        };
        let (scans, place, pass) = self.cx.cpu_pool.run_in(turn, deadline, work).await?;
        (check.scans, check.place) = (scans, Some(place));
        pass
    }
}

#[cfg(test)]
mod tests;
