//! What a member may do: everything, nothing yet, or only what someone may who has had more than it has now.
//!
//! **Invariant:** whatever votes or confirms passes here first: the votes that others request, the votes that it requests, entries and snapshots that it receives.

use std::time::Duration;

use tokio::time::timeout;

use super::{Bound, Witness, order};
use crate::wire::{WireVote, WireVoteRequest, WireVoteResponse};
use concord_net::ReceiveError;

/// How long a call waits while this member asks the others: they answer within milliseconds or not at all.
const ASKING_MAX: Duration = Duration::from_secs(1);

/// Whether this member votes and confirms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Participation {
    /// It asks the other members.
    Asking,
    /// This member has forgotten its past, and does not know how much of it.
    Lost,
    /// It keeps to the bound of what it has forgotten.
    Bounded(Bound),
    /// It has forgotten nothing.
    Open,
}

fn lost() -> ReceiveError {
    ReceiveError::Failed("this member does not know yet what it has confirmed before it started".into())
}

impl Witness {
    /// The participation, once the others have answered or failed.
    async fn asked(&self) -> Participation {
        let now = *self.participation.borrow();
        if now != Participation::Asking {
            return now;
        }
        let mut participation = self.participation.subscribe();
        let asked = participation.wait_for(|participation| *participation != Participation::Asking);
        match timeout(ASKING_MAX, asked).await {
            Ok(Ok(participation)) => *participation,
            Ok(Err(_)) | Err(_) => Participation::Asking,
        }
    }

    /// Judges a vote that another member requests: `None` if openraft may respond, otherwise the rejection.
    pub(crate) async fn judge_vote(
        &self,
        request: &WireVoteRequest,
    ) -> Result<Option<WireVoteResponse>, ReceiveError> {
        match self.asked().await {
            Participation::Open => Ok(None),
            Participation::Bounded(bound) if Some(request.vote) >= bound.vote && bound.has(request.last) => {
                Ok(None)
            }
            Participation::Bounded(bound) => Ok(Some(bound.refusal())),
            Participation::Asking | Participation::Lost => Err(lost()),
        }
    }

    /// Judges a vote that this member requests: `None` if it may, otherwise the response in the other's place.
    pub(crate) async fn judge_own_vote(
        &self,
        request: &WireVoteRequest,
    ) -> Result<Option<WireVoteResponse>, ReceiveError> {
        match self.asked().await {
            Participation::Open => Ok(None),
            Participation::Bounded(bound) if !bound.has(request.last) => Err(lost()),
            // It may have led in that term. openraft takes the vote over, and asks in a later one.
            Participation::Bounded(bound) if Some(request.vote) <= bound.vote => Ok(Some(bound.refusal())),
            Participation::Bounded(_) => Ok(None),
            Participation::Asking | Participation::Lost => Err(lost()),
        }
    }

    /// Judges entries, or a snapshot, of a leader with this vote. The error holds the greater vote, if there is one.
    pub(crate) async fn judge_leader(&self, vote: WireVote) -> Result<(), Option<WireVote>> {
        match self.asked().await {
            Participation::Open => Ok(()),
            Participation::Bounded(bound) if Some(vote) >= bound.vote => Ok(()),
            Participation::Bounded(bound) => Err(bound.vote),
            Participation::Asking | Participation::Lost => Err(None),
        }
    }

    /// Whether this member may be made the leader.
    pub(crate) fn is_open(&self) -> bool {
        *self.participation.borrow() == Participation::Open
    }
}

impl Bound {
    fn refusal(&self) -> WireVoteResponse {
        let vote = self.vote.unwrap_or(WireVote { term: 0, node: 0, committed: false });
        WireVoteResponse { vote, granted: false, last: self.last }
    }

    /// Whether a member with this vote and this log has passed the bound.
    pub(super) fn is_passed_by(&self, now: &Self) -> bool {
        order(now.last) >= order(self.last) && now.vote >= self.vote
    }
}
