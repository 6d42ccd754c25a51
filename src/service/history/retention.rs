//! How long the history is kept, and how its gaps are filled.
//!
//! The leader proposes the compaction revision (`Command::Compact`); every node's store removes what lies below. It moves in
//! steps, so that an idle cluster writes nothing for it. A member that was given a snapshot fetches the history
//! before it from the others, piece by piece, behind everything else that it does.
//!
//! **Invariant:** nothing waits for what is done here, and what fails here is tried again.

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};

use super::{Query, Told, others};
use crate::{
    model::{
        command::{Command, Proposal},
        record::Revision,
        time::Timestamp,
    },
    peer::client::Lane,
    raft::Consensus,
    service::{Service, now, run_blocking},
};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// How long the compaction revision may take to be agreed on before the next look tries again.
const AGREE: Duration = Duration::from_secs(5);
/// How long a piece may take to come.
const PIECE: Duration = Duration::from_secs(30);
/// Pause after no member could give a piece.
const PAUSE: Duration = Duration::from_secs(5);
/// The compaction revision moves by at least this part of what is kept.
const STEP: u64 = 16;
/// And by at least so many revisions: the step is an entry itself.
const STEP_REVISIONS: u64 = 16;
/// Who a compaction revision is proposed by, in the log.
const AUTHOR: &str = "cluster";

/// How much of the history is kept. What passes one of the two goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// So many revisions at least; `None`: however many.
    pub revisions: Option<u64>,
    /// Changes that are no older; `None`: however old.
    pub age: Option<Duration>,
}

impl Default for Retention {
    fn default() -> Self {
        Self { revisions: Some(1_000_000), age: Some(Duration::from_secs(30 * 24 * 60 * 60)) }
    }
}

impl Retention {
    /// The compaction revision that the number of revisions asks for; 0 while the step is too small.
    fn by_count(&self, revision: Revision, compaction_revision: Revision) -> Revision {
        let Some(kept) = self.revisions else { return 0 };
        let wanted = revision.saturating_sub(kept);
        if wanted >= compaction_revision.saturating_add(STEP_REVISIONS.max(kept / STEP)) { wanted } else { 0 }
    }

    /// Changes up to the second time are too old; they go once there is one up to the first, which is a step older.
    fn cut_offs(&self, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
        let age = u64::try_from(self.age?.as_micros()).unwrap_or(u64::MAX);
        let ago = |age: u64| Timestamp(now.0.saturating_sub(age));
        Some((ago(age.saturating_add(age / STEP)), ago(age)))
    }
}

impl Service {
    /// Keeps the history until this node stops.
    pub(in crate::service) async fn keep_history(self) {
        loop {
            let filled = self.fill().await;
            self.compact().await;
            let pause = if filled { LOOK } else { PAUSE };
            tokio::select! {
                () = sleep(pause) => {}
                () = self.inner.stopping.cancelled() => return,
            }
        }
    }

    /// On the leader: proposes the compaction revision when it has to move.
    async fn compact(&self) {
        let Some(consensus) = self.consensus().filter(|consensus| self.leads(consensus)) else { return };
        let (retention, state) = (self.inner.options.retention, consensus.state());
        let by_age = self.by_age(consensus, retention, state.compaction_revision()).await;
        let compaction_revision =
            retention.by_count(state.revision(), state.compaction_revision()).max(by_age);
        if compaction_revision <= state.compaction_revision() {
            return;
        }
        let command = Command::Compact { compaction_revision };
        let (by, at) = (AUTHOR.to_owned(), now());
        let proposal = Proposal { at, by, reason: None, request: None, definition_read: None, command };
        match timeout(AGREE, consensus.write(Arc::new(proposal))).await {
            Ok(Ok(_)) => tracing::info!(
                compaction_revision,
                "the history is kept from revision {compaction_revision} on"
            ),
            Ok(Err(error)) => {
                tracing::debug!(?error, "the compaction revision was not agreed on");
            }
            Err(_) => tracing::debug!("the compaction revision was not agreed on in time"),
        }
    }

    /// The last revision that is too old; 0 while there is none, or the step is too small.
    async fn by_age(
        &self,
        consensus: &Consensus,
        retention: Retention,
        compaction_revision: Revision,
    ) -> Revision {
        let Some((old, too_old)) = retention.cut_offs(now()) else { return 0 };
        let store = consensus.store().clone();
        let found = run_blocking(move || match store.history_until(old) {
            Ok(revision) if revision > compaction_revision => store.history_until(too_old),
            other => other.map(|_| 0),
        });
        match found.await {
            Ok(Ok(revision)) => revision,
            Ok(Err(error)) => {
                tracing::debug!(%error, "the age of the history is not known");
                0
            }
            Err(_) => 0,
        }
    }

    /// Fills the gaps of this node's history; `false` when one stays.
    async fn fill(&self) -> bool {
        let Some(consensus) = self.consensus() else { return true };
        let mut pieces = 0;
        while let Some((behind, upto)) = consensus.store().history_gap() {
            if self.inner.stopping.is_cancelled() || self.has_left() {
                return false;
            }
            let Some(piece) = self.fetch(consensus, behind, upto).await else { return false };
            let store = consensus.store().clone();
            match run_blocking(move || store.adopt_history(behind, &piece)).await {
                Ok(Ok(reach)) => {
                    pieces += 1;
                    tracing::debug!(behind, reach, "fetched a piece of the history");
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, behind, "a piece of the history was of no use");
                    return false;
                }
                Err(_) => return false,
            }
        }
        if pieces > 0 {
            tracing::info!(pieces, "fetched the history that this node was missing");
        }
        true
    }

    async fn fetch(&self, consensus: &Consensus, behind: Revision, upto: Revision) -> Option<Vec<u8>> {
        for member in others(consensus, self.node_id()) {
            match self.tell_from(&member, &Query::Piece { behind, upto }, Lane::Bulk, PIECE).await {
                Told::Piece(piece) => return Some(piece),
                Told::Elsewhere(why) => {
                    tracing::debug!(why, behind, upto, "a member has no piece of the history");
                }
                // The compaction revision comes by the log, and the gap below it is none.
                Told::Compacted(_) | Told::Page(_) | Told::At(_) | Told::Of(_) => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_moves_in_steps_and_an_idle_cluster_stands_still() {
        let retention = Retention { revisions: Some(10), age: None };
        assert_eq!(retention.by_count(20, 0), 0);
        assert_eq!(retention.by_count(26, 0), 16);
        // The entry that raised it is a revision, too.
        assert_eq!(retention.by_count(27, 16), 0);
        assert_eq!(retention.by_count(42, 16), 32);
        let large = Retention { revisions: Some(1600), age: None };
        assert_eq!((large.by_count(1699, 0), large.by_count(1700, 0)), (0, 100));
        assert_eq!(Retention { revisions: None, age: None }.by_count(1 << 40, 0), 0);
    }

    #[test]
    fn changes_go_a_step_after_their_time() {
        let retention = Retention { revisions: None, age: Some(Duration::from_micros(1600)) };
        assert_eq!(retention.cut_offs(Timestamp(10_000)), Some((Timestamp(8300), Timestamp(8400))));
        assert_eq!(retention.cut_offs(Timestamp(5)), Some((Timestamp(0), Timestamp(0))));
        assert_eq!(Retention { age: None, ..retention }.cut_offs(Timestamp(5)), None);
    }
}
