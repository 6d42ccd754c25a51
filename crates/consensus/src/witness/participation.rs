//! Decides whether a member may vote and confirm entries: without restriction, within its bound, or not at all.
//!
//! **Invariant:** each of these passes here first: a vote that another member requests, a vote that this member
//! requests, entries and snapshots from a leader.

use std::time::Duration;

use tokio::time::timeout;

use super::{Bound, Witness, order};
use crate::wire::{WireVote, WireVoteRequest, WireVoteResponse};
use concord_net::ReceiveError;

/// How long an RPC waits while this member asks the others: they answer within milliseconds or not at all.
const ASKING_MAX: Duration = Duration::from_secs(1);

/// Whether this member votes and confirms entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Participation {
    /// Not yet: it asks the other members.
    Asking,
    /// No: its disk was rolled back, and the bound is not known.
    Lost,
    /// Within the bound of what it may have lost.
    Bounded(Bound),
    /// Without restriction.
    Open,
}

fn lost() -> ReceiveError {
    ReceiveError::Failed("this member does not know yet what it had confirmed before it started".into())
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

    /// Checks a vote that another member requests: `None` if openraft may respond, otherwise the rejection.
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

    /// Checks a vote that this member requests: `None` if it may, otherwise the response in place of the other
    /// member's.
    pub(crate) async fn judge_own_vote(
        &self,
        request: &WireVoteRequest,
    ) -> Result<Option<WireVoteResponse>, ReceiveError> {
        match self.asked().await {
            Participation::Open => Ok(None),
            Participation::Bounded(bound) if !bound.has(request.last) => Err(lost()),
            // This member may have led in that term. openraft adopts the vote and requests votes in a later term.
            Participation::Bounded(bound) if Some(request.vote) <= bound.vote => Ok(Some(bound.refusal())),
            Participation::Bounded(_) => Ok(None),
            Participation::Asking | Participation::Lost => Err(lost()),
        }
    }

    /// Checks entries or a snapshot from a leader with this vote. The error holds the greater vote, if there is one.
    pub(crate) async fn judge_leader(&self, vote: WireVote) -> Result<(), Option<WireVote>> {
        match self.asked().await {
            Participation::Open => Ok(()),
            Participation::Bounded(bound) if Some(vote) >= bound.vote => Ok(()),
            Participation::Bounded(bound) => Err(bound.vote),
            Participation::Asking | Participation::Lost => Err(None),
        }
    }

    /// Whether this member may become the leader.
    pub(crate) fn is_open(&self) -> bool {
        *self.participation.borrow() == Participation::Open
    }
}

impl Bound {
    pub(crate) fn refusal(&self) -> WireVoteResponse {
        let vote = self.vote.unwrap_or(WireVote { term: 0, node: 0, committed: false });
        WireVoteResponse { vote, granted: false, last: self.last }
    }

    /// Whether a member with this vote and this log has passed the bound.
    pub(super) fn is_passed_by(&self, now: &Self) -> bool {
        order(now.last) >= order(self.last) && now.vote >= self.vote
    }
}
