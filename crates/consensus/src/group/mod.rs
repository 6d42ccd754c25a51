//! Group commit: on the leader, small writes that arrive while others are in flight share an entry of the log.
//!
//! ```text
//! write ─┬─ few are in flight ──▶ an entry of its own, at once ──┐
//!        └─ waits ──▶ the next group, with all that wait ──▶ … ◀─┘ each end starts the next group
//! ```
//!
//! A few clients never wait, and propose their entries themselves: the log and the members work on one entry while the
//! next one arrives. With more clients, one group is in flight at a time and all other writes wait for the next: a second
//! group in flight doubled the cost of a write and decided no more writes in a second. A task proposes the groups, because
//! the client of one write may leave while the others of its group still need their verdicts.
//!
//! **Invariants**
//! 1. A write that waits here was certainly not proposed: if the wait ends without a verdict, the error is
//!    [`WriteError::NotLeader`]. Once its group has left, only openraft's own `NotLeader`, which is for the whole entry,
//!    means that it was not appended; everything else is [`WriteError::Undecided`].
//! 2. The writes of one access key are proposed in the order of their arrival. When the leader changes, all waiting writes are given back: the
//!    entry in flight may never end.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    WriteError,
    batch_queue::{BatchPolicy, BatchQueue, BatchSender, Pushed, QueueEpoch, Unanswered},
    entry_times::WriteTimes,
    fair_queue::WorkOwner,
    histogram::TimeCounts,
};
use concord_model::{
    command::Verdict,
    entry::{self, GROUP_BYTES_MAX, GROUP_PROPOSALS_MAX, length_in_group},
};

/// Entries of one write each that may be in flight before others wait. With one, four clients had 0.85 of the rate that
/// they had with entries of their own.
const ALONE_MAX: usize = 4;

const GROUPS: BatchPolicy = BatchPolicy {
    items_max: GROUP_PROPOSALS_MAX,
    bytes_max: GROUP_BYTES_MAX,
    senders_max: 1,
    alone_max: ALONE_MAX,
    // The clients of the group before are answered in the first pass, and send again.
    patience: 3,
    returning_max: GROUP_PROPOSALS_MAX,
    measures_waits: true,
};

/// The verdict on one write.
pub(super) type WriteResult = Result<Verdict, WriteError>;

/// The verdict on one write, and where its time went.
pub(super) type TimedResult = (WriteResult, WriteTimes);

/// The verdicts on the proposals of an entry, and where its time went.
pub(super) type ProposeResult = (Result<Vec<Verdict>, WriteError>, WriteTimes);

/// Hands entries to openraft.
pub(super) trait Proposer: Clone + Send + Sync + 'static {
    /// Proposes an entry and waits for the verdicts on its proposals.
    fn propose(&self, entry: Bytes) -> impl Future<Output = ProposeResult> + Send;
}

/// The small writes of this node that share entries. Clones share one instance.
#[derive(Debug, Clone)]
pub(super) struct WriteGroups(Arc<BatchQueue<Vec<u8>, TimedResult>>);

impl Default for WriteGroups {
    fn default() -> Self {
        Self(Arc::new(BatchQueue::new(GROUPS)))
    }
}

/// Whether a proposal of so many bytes may be in a group: it has room for another one.
pub(super) fn fits(proposal_bytes: usize) -> bool {
    length_in_group(proposal_bytes) <= GROUP_BYTES_MAX / 2
}

/// Proposes one proposal as an entry of its own.
pub(super) async fn propose_alone(proposer: &impl Proposer, proposal: Vec<u8>) -> TimedResult {
    let (verdicts, times) = proposer.propose(proposal.into()).await;
    let only = |verdicts: Vec<Verdict>| <[Verdict; 1]>::try_from(verdicts).map_err(|_| mismatch());
    (verdicts.and_then(only).map(|[verdict]| verdict), times)
}

fn mismatch() -> WriteError {
    WriteError::Undecided("the number of verdicts of an entry differs from that of its proposals".into())
}

impl WriteGroups {
    /// Proposes a proposal that may share an entry: in an entry of its own and at once if few are in flight.
    pub(super) async fn write<P: Proposer>(
        &self,
        proposer: &P,
        owner: WorkOwner,
        proposal: Vec<u8>,
    ) -> TimedResult {
        let bytes = length_in_group(proposal.len());
        match self.0.push_unless_idle(owner, proposal, bytes) {
            Pushed::Alone(proposal, epoch) => {
                let _in_flight = LoneWrite { groups: self, proposer, epoch };
                // In a box: the writes that wait do not need its space.
                Box::pin(propose_alone(proposer, proposal)).await
            }
            Pushed::Waits(mut pending) => {
                pending.answer().await.unwrap_or_else(|why| (Err(why.into()), WriteTimes::default()))
            }
        }
    }

    /// How long writes waited for the group that they left with.
    pub(super) fn waits(&self) -> TimeCounts {
        self.0.waits()
    }

    /// Gives all waiting writes back to their callers, and waits for no entry in flight: this node's role in the cluster
    /// has changed, and such an entry may never end.
    pub(super) fn reset(&self) {
        self.0.reset();
    }
}

impl From<Unanswered> for WriteError {
    fn from(why: Unanswered) -> Self {
        match why {
            Unanswered::NotSent => Self::NotLeader(None),
            Unanswered::CutOff => Self::Undecided("the wait for the verdict was cut off".into()),
        }
    }
}

/// A write in flight in an entry of its own. Its end starts the group of the writes that arrived meanwhile, also when its
/// caller has left.
struct LoneWrite<'a, P: Proposer> {
    groups: &'a WriteGroups,
    proposer: &'a P,
    epoch: QueueEpoch,
}

impl<P: Proposer> Drop for LoneWrite<'_, P> {
    fn drop(&mut self) {
        // Without a runtime the process is ending: the sender is dropped and gives the waiting writes back.
        if let Some(sender) = self.groups.0.end_alone(self.epoch)
            && tokio::runtime::Handle::try_current().is_ok()
        {
            tokio::spawn(propose_groups(sender, self.proposer.clone()));
        }
    }
}

/// Proposes one group after another while writes wait.
async fn propose_groups(mut sender: BatchSender<Vec<u8>, TimedResult>, proposer: impl Proposer) {
    while let Some(mut group) = sender.next().await {
        let proposals = group.iter_mut().map(|write| std::mem::take(&mut write.item)).collect();
        let (decided, times) = proposer.propose(entry::encode(proposals).into()).await;
        let decided = match decided {
            Ok(verdicts) if verdicts.len() != group.len() => Err(mismatch()),
            decided => decided,
        };
        match decided {
            Ok(mut verdicts) => {
                if concord_model::sabotage::is("verdicts-shifted") {
                    verdicts.rotate_left(1);
                }
                for (write, verdict) in group.into_iter().zip(verdicts) {
                    let times = WriteTimes { queued: write.waited, ..times };
                    write.answer((Ok(verdict), times));
                }
            }
            Err(error) => group.into_iter().for_each(|write| write.answer((Err(error.clone()), times))),
        }
    }
}

#[cfg(test)]
mod tests;
