//! Forgets the outcomes of requests with an idempotency key once they are older than a day.
//!
//! The leader proposes it (`Command::Forget`), as it does for the history: age is judged by the log's time, and only
//! while a majority's clocks have agreed on it for a while. So outcomes are forgotten although no other request with a
//! key comes, and are not because one clock jumps.
//!
//! **Invariant:** nothing waits for this task, and what fails is tried again.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{clock::Clock, context::Context};
use concord_consensus::Consensus;
use concord_model::{
    command::{Command, Proposal},
    limits::REMEMBERED_REQUEST_AGE_US,
    record::Revision,
    time::Timestamp,
};
use concord_state::State;

/// How often the state is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long the log may take to decide, before the next check tries again.
const FORGET_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a majority must agree on the time.
const CONFIRM: Duration = Duration::from_secs(600);
/// Forgetting begins when an outcome is this much older than a day, so that an idle cluster writes few entries for it.
const STEP_US: u64 = REMEMBERED_REQUEST_AGE_US / 96;
/// The author in the log: no access key has this id.
const AUTHOR: &str = "cluster";

/// Runs until the node stops.
pub(super) async fn forget_outcomes(cx: Arc<Context>, clock: Arc<Clock>) -> Result<(), String> {
    let Some(consensus) = cx.consensus() else { return Ok(()) };
    // The rest of what one entry could not forget, without another step.
    let mut due = None;
    while !cx.is_over() {
        due = forget((&cx, &clock), consensus, due).await;
        cx.pause(CHECK_INTERVAL).await;
    }
    Ok(())
}

/// Proposes what is due; what is left of it.
async fn forget(
    (cx, clock): (&Context, &Clock),
    consensus: &Consensus,
    due: Option<Revision>,
) -> Option<Revision> {
    if !cx.leads(consensus) {
        return None;
    }
    let state = consensus.state();
    let left = due.filter(|upto| state.requests().next().is_some_and(|oldest| oldest.revision <= *upto));
    let upto = left.or_else(|| too_old(&state, clock.confirmed_time(CONFIRM)?))?;
    let command = Command::Forget { upto };
    let at = clock.stamp(&state).await;
    let proposal = Proposal::new(at, AUTHOR, command);
    match timeout(FORGET_TIMEOUT, consensus.write(proposal)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!(?error, "forgetting was not decided"),
        Err(_) => tracing::debug!("forgetting was not decided in time"),
    }
    Some(upto)
}

/// The newest entry whose outcome is too old, once one is too old by a step.
fn too_old(state: &State, now: Timestamp) -> Option<Revision> {
    let oldest = state.requests().next()?;
    let before = |age: u64| Timestamp(now.0.saturating_sub(age));
    if oldest.at > before(REMEMBERED_REQUEST_AGE_US + STEP_US) {
        return None;
    }
    state.decided_upto(before(REMEMBERED_REQUEST_AGE_US))
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::{
        command::{Expect, IdempotencyKey},
        key::Key,
    };

    #[test]
    fn what_is_older_than_a_day_goes_although_no_other_request_comes() {
        let mut state = State::new();
        let proposal = |at: u64, id: Option<u8>, command: Command| {
            let request = id.map(|id| IdempotencyKey { id: [id; 16], fingerprint: [2; 16] });
            let (at, by) = (Timestamp(at), "root".to_owned());
            Proposal { at, by, reason: None, request, definition_read: None, command, key: None }
        };
        let (definition, key) = (Key::parse("d").unwrap(), Key::parse("k").unwrap());
        let delete = Command::DeleteConfig { definition, key, expect: Expect::Present };
        state.apply(1, &proposal(1000, Some(1), delete.clone()));
        let late = Timestamp(10 * REMEMBERED_REQUEST_AGE_US);
        state.apply(3, &proposal(3000, Some(2), delete));
        assert_eq!(too_old(&state, Timestamp(REMEMBERED_REQUEST_AGE_US + STEP_US)), None);
        let now = Timestamp(REMEMBERED_REQUEST_AGE_US + STEP_US + 1000);
        assert_eq!(too_old(&state, now), Some(3));
        state.apply(4, &proposal(4000, None, Command::Forget { upto: 3 }));
        assert_eq!((state.request_count(), too_old(&state, late)), (0, None));
    }
}
