//! Dry runs: the response that a write would get, and nothing else.
//!
//! The leader confirms that it leads, prepares the write as usual and applies it to a clone of the state, which is then
//! discarded. So a dry run is validated exactly as the write is, in the same order. If all configs of a definition must
//! satisfy the change, they are checked in that state.
//!
//! **Invariant:** nothing is proposed and nothing is stored. A response is true of the state that it names; the write
//! itself may meet another one.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    access::{Authorized, authorize},
    config_check::{CommandSteps, ConfigScans, PassResult, needs_config_check, set_configs_read},
    config_scan::ScanPace,
    environment::check_environments,
    patch::content_of,
    prepare::{Preparation, Prepared, PreparedWrite, prepare},
};
use crate::{
    budget::{Budget, may_be_inline, weight_of},
    cpu_pool::{Cancel, ScanYield, Weight},
    request::{Decision, Effect, Refusal, WriteRequest},
    retry::{Attempt, AttemptError, confirm_leadership},
    write::Writes,
};
use concord_consensus::{Consensus, WriteError};
use concord_model::{
    access_key::Author,
    command::{Applied, Verdict},
    limits::ENTRY_BYTES_MAX,
    time::Timestamp,
};
use concord_state::State;

impl Writes {
    /// Tries a write on this node, which leads or did so a moment ago.
    pub(super) async fn dry_run(
        self: &Arc<Self>,
        consensus: &Consensus,
        request: &Arc<WriteRequest>,
        deadline: Instant,
    ) -> Attempt<Decision> {
        self.clock.clock_set(deadline).await;
        confirm_leadership(consensus, deadline).await?;
        let state = consensus.state();
        let at = self.clock.stamp(&state).await;
        let Authorized { principal, author } = authorize(&state, &self.cx.policies, request, || at)?;
        check_environments(&state, request, || at)?;
        let changes_definition = matches!(request.write.effect(), Effect::Define | Effect::Constrain);
        if may_be_inline(&request.write) && !changes_definition {
            let budget = Budget::inline().listing(request.caller.listed_variants);
            let dry_run = DryRun { state: &state, request, at, author: author.clone() };
            let decided = dry_run.decide(self.preparation(&budget, &principal, &|| at), None);
            if !budget.is_abandoned() {
                return decided;
            }
        }
        let checks = request.write.constrains();
        let weight = match (checks, changes_definition) {
            (true, _) => Weight::Scan,
            (false, true) => Weight::Long,
            (false, false) => weight_of(&request.write),
        };
        let mut turn = self.cx.cpu_pool.turn(weight, deadline).await?;
        let place = checks.then(|| turn.take_place());
        let (this, request) = (Arc::clone(self), Arc::clone(request));
        let work = move |cancel: &Cancel, way: &mut ScanYield| {
            let _place = place;
            let budget =
                Budget::in_pool(&request.write, cancel.clone()).listing(request.caller.listed_variants);
            let mut pace = ScanPace { cancel, way: Some(way) };
            let dry_run = DryRun { state: &state, request: &request, at, author };
            dry_run.decide(this.preparation(&budget, &principal, &|| at), checks.then_some(&mut pace))
        };
        self.cx.cpu_pool.run_in(turn, deadline, work).await?
    }
}

/// A write on a clone of a state.
struct DryRun<'a> {
    state: &'a State,
    request: &'a WriteRequest,
    at: Timestamp,
    author: Author,
}

impl DryRun<'_> {
    /// Prepares the write and lets the transition function decide it. `pace`: for a write that changes a constraint.
    fn decide(self, with: Preparation<'_>, pace: Option<&mut ScanPace<'_>>) -> Attempt<Decision> {
        let (state, request) = (self.state, self.request);
        let mut prepared = match prepare(state, request, with)? {
            Prepared::Propose(prepared) => prepared,
            Prepared::Known(outcome) => return Ok(Decision::new(outcome, None)),
            Prepared::Read(applied) => return Ok(Decision::new(Ok(applied), None)),
        };
        if needs_config_check(&prepared.command) {
            self.check_configs(&mut prepared, pace)?;
        }
        let content = content_of(&prepared.command);
        let proposal = request.proposal(self.at, prepared, self.author);
        if proposal.to_bytes().len() > ENTRY_BYTES_MAX {
            return Err(WriteError::TooLarge.into());
        }
        match state.clone().apply(state.revision() + 1, &proposal).0 {
            Verdict::Decided(outcome) => {
                let outcome = outcome.map(|applied| Applied { revision: state.revision(), ..applied });
                Ok(Decision::new(outcome, content))
            }
            Verdict::Stale => Err(AttemptError::Retry("the write was prepared on another state".into())),
        }
    }

    /// Checks the configs of the state, and records in the command that they were checked.
    fn check_configs(
        &self,
        prepared: &mut PreparedWrite,
        pace: Option<&mut ScanPace<'_>>,
    ) -> Result<(), Refusal> {
        let Some(pace) = pace else {
            return Err(Refusal::Internal("a change of a definition without a check of its configs".into()));
        };
        let steps = CommandSteps::of(prepared);
        match ConfigScans::default().pass(&self.request.write, &steps, self.state, pace)? {
            PassResult::Satisfied { revision, .. } => {
                set_configs_read(&mut prepared.command, revision);
                Ok(())
            }
            PassResult::Violated(refusal) => Err(refusal),
            PassResult::Changed => {
                Err(Refusal::Internal("a command does not fit the state that it was made on".into()))
            }
        }
    }
}
