//! Builds indexes on the leader, step by step; each step is an entry of the log like any other write.
//!
//! After a step it pauses for as long as the step took, from the proposal to the verdict: other writes have at least half
//! of the time, on a slow disk as well. The builds of several definitions alternate.
//!
//! **Invariant:** the progress of a build is in the state alone, so the build continues on whichever node leads. Two nodes
//! that both believe that they lead do no harm: a step that is proposed twice is applied once.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};

use super::{clock::Clock, context::Context, room::Room};
use concord_consensus::Consensus;
use concord_model::{
    command::{Command, Proposal},
    key::Key,
    record::Definition,
    time::Timestamp,
};

/// The author of a step in the log: no access key has this id.
const AUTHOR: &str = "concord";
/// How often the state is checked for a build.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The shortest pause between two steps.
const PAUSE_MIN: Duration = Duration::from_millis(2);

/// Runs until the node stops.
pub(super) async fn keep_building(
    cx: Arc<Context>,
    clock: Arc<Clock>,
    room: Arc<Room>,
) -> Result<(), String> {
    let Some(consensus) = cx.consensus() else { return Ok(()) };
    let mut last_built = None;
    while !cx.is_over() {
        let pause =
            build_step(&cx, (&clock, &room), consensus, &mut last_built).await.unwrap_or(POLL_INTERVAL);
        cx.pause(pause).await;
    }
    Ok(())
}

/// Makes one step if this node leads and there is one; how long to pause after it.
async fn build_step(
    cx: &Context,
    (clock, room): (&Clock, &Room),
    consensus: &Consensus,
    last_built: &mut Option<Key>,
) -> Option<Duration> {
    // A build needs space on the disk, like any write that removes nothing.
    if !cx.leads(consensus) || room.check_room().is_err() {
        return None;
    }
    let state = consensus.state();
    let next = state.building_after(last_built.as_ref()).cloned()?;
    let at = clock.stamp(&state).await;
    *last_built = Some(next.key.clone());
    let began = Instant::now();
    let written = timeout(cx.options.write_timeout, consensus.write(step(&next, at)?)).await;
    match written {
        Ok(Ok(_)) => Some(began.elapsed().max(PAUSE_MIN)),
        // The state shows at the next poll whether the step was applied.
        Ok(Err(error)) => {
            tracing::debug!(definition = %next.key, ?error, "a step of an index build was not confirmed");
            None
        }
        Err(_) => None,
    }
}

/// The next step of a definition's build.
fn step(definition: &Definition, at: Timestamp) -> Option<Proposal> {
    let build = definition.indexing.build.as_ref()?;
    let (key, begun, cursor) = (definition.key.clone(), build.begun, build.cursor.clone());
    Some(Proposal::new(at, AUTHOR, Command::BuildIndex { key, begun, cursor }))
}
