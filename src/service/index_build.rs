//! Drives the builds of indexes, on the leader: step after step, each an entry of the log like any other write.
//!
//! After a step it rests as long as the step took, from the proposal to the verdict: other writes have at least half of
//! the time, on a slow disk as well. Where builds of several definitions are going on they take turns.
//!
//! **Invariant:** this task knows nothing that does not stand in the state, so it goes on wherever leadership goes, and
//! two nodes that both believe to lead do no harm: a step that was made twice is taken once.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::{Service, now};
use crate::{
    model::{
        command::{Command, Proposal},
        key::Key,
        record::Definition,
    },
    raft::Consensus,
};

/// Who asked for a step, as the log says it: nobody's key has this id.
const BY: &str = "concord";
/// How often it is looked whether there is something to build.
const LOOK: Duration = Duration::from_millis(100);
/// The shortest rest between two steps.
const REST_MIN: Duration = Duration::from_millis(2);

impl Service {
    /// Goes on until the node stops.
    pub(super) async fn keep_building(self) {
        let Some(consensus) = self.consensus() else { return };
        let mut last = None;
        while !self.inner.stopping.is_cancelled() && !self.has_left() {
            let rest = self.build_on(consensus, &mut last).await.unwrap_or(LOOK);
            tokio::select! {
                () = self.inner.stopping.cancelled() => {}
                () = sleep(rest) => {}
            }
        }
    }

    /// Takes one step, if this node leads and there is one; how long to rest behind it.
    async fn build_on(&self, consensus: &Consensus, last: &mut Option<Key>) -> Option<Duration> {
        // A build takes room on the disk, like any write that is no delete.
        if !self.leads(consensus) || self.inner.disk.room().is_err() {
            return None;
        }
        let next = consensus.state().building_after(last.as_ref()).cloned()?;
        *last = Some(next.key.clone());
        let began = Instant::now();
        let written = timeout(self.inner.options.write_timeout, consensus.write(step(&next)?)).await;
        match written {
            Ok(Ok(_)) => Some(began.elapsed().max(REST_MIN)),
            // The state says at the next look whether the step was taken.
            Ok(Err(error)) => {
                tracing::debug!(definition = %next.key, ?error, "a step of an index build was not confirmed");
                None
            }
            Err(_) => None,
        }
    }
}

/// The next step of a definition's build.
fn step(definition: &Definition) -> Option<Proposal> {
    let build = definition.indexing.build.as_ref()?;
    let (key, begun, cursor) = (definition.key.clone(), build.begun, build.cursor.clone());
    Some(Proposal {
        at: now(),
        by: BY.into(),
        reason: None,
        request: None,
        definition_read: None,
        command: Command::BuildIndex { key, begun, cursor },
    })
}
