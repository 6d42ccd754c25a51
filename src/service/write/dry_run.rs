//! Dry runs: the answer that a write would get, and nothing else.
//!
//! The leader confirms that it leads, prepares the write as usual and lets the transition function decide it on a clone
//! of the state, which is then discarded. So a dry run is validated exactly as the write is, in the same order.
//!
//! **Invariant:** nothing is proposed and nothing is remembered. An answer is true of the state that it names; the write
//! itself may meet another one.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    access::{Judged, judge},
    budget::{Budget, may_be_inline, weight_of},
    content_of,
    prepare::{Prepared, Rules, prepare},
};
use crate::{
    model::{
        access_key::KeyUse,
        command::{Applied, Verdict},
        limits::ENTRY_BYTES_MAX,
        time::Timestamp,
    },
    raft::{Consensus, WriteError},
    service::{
        Service,
        cpu_pool::{Cancel, Weight},
        request::{Decision, Effect, Principal, WriteRequest},
        retry::{Attempt, AttemptError, confirm_leadership},
    },
    state::State,
};

impl Service {
    /// Tries a write on this node, which leads or did so a moment ago.
    pub(super) async fn dry_run(
        &self,
        consensus: &Consensus,
        request: &Arc<WriteRequest>,
        deadline: Instant,
    ) -> Attempt<Decision> {
        self.clock_set(deadline).await;
        confirm_leadership(consensus, deadline).await?;
        let state = consensus.state();
        let at = self.stamp(&state).await;
        let Judged { principal, key } = judge(&state, request, || at)?;
        let changes_definition = matches!(request.write.effect(), Effect::Define | Effect::Constrain);
        if may_be_inline(&request.write) && !changes_definition {
            let budget = Budget::inline();
            let tried = try_on(
                &state,
                request,
                (&principal, key.clone()),
                at,
                (&self.inner.validators, self.limits(), &budget),
            );
            if !budget.is_abandoned() {
                return tried;
            }
        }
        let weight = if changes_definition { Weight::Long } else { weight_of(&request.write) };
        let (service, request) = (self.clone(), Arc::clone(request));
        let work = move |cancel: &Cancel| {
            let budget = Budget::in_pool(&request.write, cancel.clone());
            let rules = (&service.inner.validators, service.limits(), &budget);
            try_on(&state, &request, (&principal, key), at, rules)
        };
        self.inner.cpu_pool.run(weight, deadline, work).await?
    }
}

/// Decides a write on a clone of the state.
fn try_on(
    state: &State,
    request: &WriteRequest,
    (principal, key): (&Principal, Option<KeyUse>),
    at: Timestamp,
    rules: Rules<'_>,
) -> Attempt<Decision> {
    let found = state.definition(request.write.definition());
    let (command, definition_read) = match prepare(state, found, request, principal, rules)? {
        Prepared::Propose { command, definition_read } => (command, definition_read),
        Prepared::Known(outcome) => return Ok(Decision::new(outcome, None)),
        Prepared::Read(applied) => return Ok(Decision::new(Ok(applied), None)),
    };
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
