//! Dry runs: the answer that a write would get, and nothing else.
//!
//! The leader confirms that it leads, prepares the write as ever and lets the transition function decide it on a
//! clone of the state, which is thrown away. So a dry run is judged by the very checks of the write, in their order.
//!
//! **Invariant:** nothing is proposed and nothing is remembered. An answer holds for the state that it names; the
//! write itself may find another one.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    Attempt, content_of, decided,
    prepare::{Asked, Prepared, prepare},
    run_blocking,
    validators::Validators,
};
use crate::{
    model::{
        command::{Applied, Verdict},
        limits::Limits,
    },
    raft::{Consensus, ENTRY_BYTES_MAX, WriteError},
    service::{Refusal, Service},
    state::State,
};

impl Service {
    /// Tries a write on this node, which leads or did so a moment ago.
    pub(in crate::service) async fn try_out(
        &self,
        consensus: &Consensus,
        asked: &Arc<Asked>,
        deadline: Instant,
    ) -> Attempt {
        if let Err(attempt) = Self::confirm_lead(consensus, deadline).await {
            return attempt;
        }
        let (service, asked, state) = (self.clone(), Arc::clone(asked), consensus.state());
        let tried =
            run_blocking(move || trial(&state, &asked, &service.inner.validators, service.limits())).await;
        tried.flatten().unwrap_or_else(Attempt::Refused)
    }
}

/// Decides a write on a clone of the state.
fn trial(state: &State, asked: &Asked, validators: &Validators, limits: &Limits) -> Result<Attempt, Refusal> {
    let (command, definition_read) = match prepare(state, asked, validators, limits)? {
        Prepared::Propose { command, definition_read } => (command, definition_read),
        Prepared::Known(outcome) => return Ok(decided(outcome, None)),
    };
    let content = content_of(&command);
    let proposal = asked.proposal(command, definition_read);
    if proposal.to_bytes().len() > ENTRY_BYTES_MAX {
        return Ok(WriteError::TooLarge.into());
    }
    let mut next = state.clone();
    Ok(match next.apply(state.revision() + 1, &proposal).0 {
        Verdict::Decided(outcome) => {
            let tried = outcome.map(|applied| Applied { revision: state.revision(), ..applied });
            decided(tried, content)
        }
        Verdict::Stale => Attempt::Later("the write was prepared on another state".into()),
    })
}
