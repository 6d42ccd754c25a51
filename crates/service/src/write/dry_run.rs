//! Dry runs: the answer that a write would get, and nothing else.
//!
//! The leader confirms that it leads, prepares the write as usual and lets the transition function decide it on a clone
//! of the state, which is then discarded. So a dry run is validated exactly as the write is, in the same order. Where
//! all configs of a definition must satisfy a change, they are checked on that state.
//!
//! **Invariant:** nothing is proposed and nothing is remembered. An answer is true of the state that it names; the write
//! itself may meet another one.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    access::{Judged, judge},
    config_check::{Pass, Scans, Steps, needs_config_check, set_configs_read},
    config_scan::{Cancelled, Pace},
    content_of,
    prepare::{Preparation, Prepared, prepare},
    redefine::keep_pace,
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
    access_key::KeyUse,
    command::{Applied, Command, Verdict},
    limits::ENTRY_BYTES_MAX,
    record::Revision,
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
        let Judged { principal, key } = judge(&state, request, || at)?;
        let changes_definition = matches!(request.write.effect(), Effect::Define | Effect::Constrain);
        if may_be_inline(&request.write) && !changes_definition {
            let budget = Budget::inline();
            let (validators, limits) = (&self.schemas.validators, self.cx.limits());
            let with = Preparation { validators, limits, budget: &budget, principal: &principal };
            let tried = try_on(&state, request, Stamp { at, key: key.clone() }, with, None);
            if !budget.is_abandoned() {
                return tried;
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
            let budget = Budget::in_pool(&request.write, cancel.clone());
            let (validators, limits) = (&this.schemas.validators, this.cx.limits());
            let with = Preparation { validators, limits, budget: &budget, principal: &principal };
            let mut pace = || keep_pace(cancel, way);
            let check: Option<(&mut Pace<'_>, &Cancel)> = checks.then_some((&mut pace, cancel));
            try_on(&state, &request, Stamp { at, key }, with, check)
        };
        self.cx.cpu_pool.run_in(turn, deadline, work).await?
    }
}

/// Checks the configs of the state that a command was prepared on, and enters into it that they were.
fn check_configs(
    state: &State,
    request: &WriteRequest,
    (command, definition_read): (&mut Command, Option<Revision>),
    check: Option<(&mut Pace<'_>, &Cancel)>,
) -> Attempt<()> {
    let steps = Steps::of(command, definition_read);
    let Some(check) = check else {
        return Err(
            Refusal::Internal("a change of a definition without a check of its configs".into()).into()
        );
    };
    match Scans::default().pass(&request.write, &steps, state, check)? {
        Ok(Pass::Satisfied(_, revision)) => set_configs_read(command, revision),
        Ok(Pass::Violated(refusal)) => return Err(refusal.into()),
        Ok(Pass::Changed) => {
            return Err(
                Refusal::Internal("a command does not fit the state that it was made on".into()).into()
            );
        }
        Err(Cancelled) => {
            return Err(AttemptError::Retry("the configs could not be checked in time".into()));
        }
    }
    Ok(())
}

/// What a proposal has beside its command.
struct Stamp {
    at: Timestamp,
    key: Option<KeyUse>,
}

/// Decides a write on a clone of the state.
fn try_on(
    state: &State,
    request: &WriteRequest,
    Stamp { at, key }: Stamp,
    with: Preparation<'_>,
    check: Option<(&mut Pace<'_>, &Cancel)>,
) -> Attempt<Decision> {
    let found = state.definition(request.write.definition());
    let (mut command, definition_read) = match prepare(state, found, request, with)? {
        Prepared::Propose { command, definition_read } => (command, definition_read),
        Prepared::Known(outcome) => return Ok(Decision::new(outcome, None)),
        Prepared::Read(applied) => return Ok(Decision::new(Ok(applied), None)),
    };
    if needs_config_check(&command) {
        check_configs(state, request, (&mut command, definition_read), check)?;
    }
    let content = content_of(&command);
    let proposal = request.proposal(at, command, definition_read, key);
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
