//! Reads: how fresh the state of a read is, and lists with their pages.
//!
//! | question | file |
//! |---|---|
//! | How does a read see every acknowledged write? How stale is this node? | this one: [`Service::view`] |
//! | How do concurrent reads share one request for a read index? | `shared_index` |
//! | How is a list answered, its first page and the later ones? | `list` |
//! | How does a page come from the node that holds its state? | `page` |
//! | What is in a cursor? | `cursor` |
//! | Which parts of a record does an answer have? Is a parameter one of a list, or a filter? | `parts` |
//! | Which states are retained for cursors, and for how long? | `pinned` |
//! | How is a list at an earlier revision answered? | `earlier` |
//! | Which query is a list, and what does it find? | `query` |
//! | Which thread finds it, when it is short? | `short_lists` |
//! | What of a page is a caller shown? | `shown` |
//! | What is on a page, and how is it cut for a call? | `records` |
//!
//! A linearizable read on any node waits until this node has applied a *read index*: an index of the log that the
//! leader returns after a quorum has confirmed that it still leads. A state that has applied it holds every write
//! that was acknowledged before the index was requested.
//!
//! **Invariant:** a linearizable read waits for an index that was requested after the read arrived.

pub mod cursor;
pub(super) mod earlier;
pub mod list;
mod page;
mod parts;
pub(super) mod pinned;
mod query;
pub mod records;
mod shared_index;
pub(super) mod short_lists;
mod shown;

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use super::{
    Service,
    request::{Consistency, Level, Refusal},
    retry::{AttemptError, OnUnknown, Retry},
};
use concord_consensus::{Confirmation, Consensus, ReadError, ReadIndex};
use concord_model::{
    error::{Invalid, Violation},
    record::Revision,
};
use concord_net::{
    ReceiveError,
    client::CallError,
    codec::{decode, encode},
};
use concord_state::State;
pub(super) use shared_index::SharedReadIndex;

/// How long one request for a read index may take. A live leader answers within two round trips.
const READ_INDEX_TIMEOUT: Duration = Duration::from_secs(1);

/// The body of a request for a read index for which the leader's lease is enough. Others are empty.
const BY_LEASE: &[u8] = &[1];

/// The leader's answer to a request for a read index. New variants go to the end.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum ReadIndexResponse {
    Index(ReadIndex),
    NotLeader,
    NoQuorum(String),
}

impl Service {
    /// A state that is as fresh as requested.
    ///
    /// # Errors
    /// When no such state is available in time.
    pub(crate) async fn view(&self, consistency: Consistency) -> Result<Arc<State>, Refusal> {
        let consensus = self.consensus_or_refusal()?;
        let deadline = Instant::now() + self.inner.options.read_timeout;
        match consistency.level {
            Level::Linearizable if concord_model::sabotage::is("local-read") => {}
            Level::Linearizable => self.confirm_until(consensus, deadline).await?,
            Level::Lease if !self.inner.options.timers.lease_reads => {
                let msg = "`lease` is not allowed here: the setting `CONCORD_LEASE_READS` is off";
                return Err(
                    Invalid::from(Violation::at(vec!["query".into(), "consistency".into()], msg)).into()
                );
            }
            Level::Lease => self.confirm_by(Confirmation::Lease, consensus, deadline).await?,
            Level::Local { max_staleness: Some(max) } if self.staleness().is_none_or(|age| age > max) => {
                self.confirm_until(consensus, deadline).await?;
            }
            Level::Local { .. } => {}
        }
        if let Some(revision) = consistency.min_revision {
            wait_until_applied(consensus, revision, deadline).await?;
        }
        Ok(consensus.state())
    }

    /// An upper bound for the age of this node's state: the time since it was last confirmed to hold every
    /// acknowledged write. `None` when it was never confirmed.
    pub(super) fn staleness(&self) -> Option<Duration> {
        let fresh_since = self.inner.fresh_since.lock().unwrap_or_else(PoisonError::into_inner);
        fresh_since.map(|moment| moment.elapsed())
    }

    /// Confirms once that the applied state holds every write that was acknowledged before the call.
    pub(super) async fn confirm(&self, consensus: &Consensus) -> Result<(), ReadError> {
        self.confirm_once(Confirmation::Quorum, consensus).await
    }

    async fn confirm_once(&self, by: Confirmation, consensus: &Consensus) -> Result<(), ReadError> {
        let requested_at = Instant::now();
        let service = self.clone();
        let shared = match by {
            Confirmation::Quorum => &self.inner.read_index,
            Confirmation::Lease => &self.inner.read_index_by_lease,
        };
        let index = shared.get(move || service.clone().fetch_read_index(by)).await?;
        consensus.wait_read(index).await;
        if by == Confirmation::Lease {
            // What rests on clocks does not count as confirmed for others.
            return Ok(());
        }
        let mut fresh_since = self.inner.fresh_since.lock().unwrap_or_else(PoisonError::into_inner);
        *fresh_since = (*fresh_since).max(Some(requested_at));
        Ok(())
    }

    /// Confirms as [`Self::confirm`] does, and tries again while the leader changes, until the deadline.
    pub(super) async fn confirm_until(
        &self,
        consensus: &Consensus,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        self.confirm_by(Confirmation::Quorum, consensus, deadline).await
    }

    async fn confirm_by(
        &self,
        by: Confirmation,
        consensus: &Consensus,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        // A confirmation stores nothing, so no outcome of it is uncertain.
        let retry = Retry::until(deadline, OnUnknown::Ignore, "the read was not confirmed in time");
        let confirm = async |deadline| {
            let reason = match timeout_at(deadline, self.confirm_once(by, consensus)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error.to_string(),
                Err(_) => "this node has not caught up with the leader".into(),
            };
            Err(AttemptError::Retry(reason))
        };
        retry.run(consensus, confirm).await
    }

    /// One read index: of this node when it leads, otherwise of the leader.
    async fn fetch_read_index(self, by: Confirmation) -> Result<ReadIndex, ReadError> {
        let Some(consensus) = self.consensus() else { return Err(ReadError::NotLeader(None)) };
        let Some(leader) = consensus.leader() else { return Err(ReadError::NotLeader(None)) };
        if leader.id == self.node_id() {
            return consensus.read_index(by).await;
        }
        let request = match by {
            Confirmation::Quorum => Bytes::new(),
            Confirmation::Lease => Bytes::from_static(BY_LEASE),
        };
        let (peers, to) = (&self.inner.peers, leader.peer());
        let call = self.inner.read_indexes.call(peers, to, request, READ_INDEX_TIMEOUT);
        tokio::select! {
            response = call => read_index_of(response),
            // A call to a dead leader may hang until its timeout while a new leader is already known.
            () = consensus.leader_changed() => Err(ReadError::NotLeader(None)),
        }
    }

    /// Answers another node's request for a read index. Never forwards it. By its lease it answers only where this
    /// node's own settings allow that too.
    pub async fn answer_read_index(&self, request: &[u8]) -> Bytes {
        let by_lease = request == BY_LEASE && self.inner.options.timers.lease_reads;
        let by = if by_lease { Confirmation::Lease } else { Confirmation::Quorum };
        let response = match self.consensus() {
            Some(consensus) => match consensus.read_index(by).await {
                Ok(index) => ReadIndexResponse::Index(index),
                Err(ReadError::NotLeader(_)) => ReadIndexResponse::NotLeader,
                Err(ReadError::NoQuorum(text)) => ReadIndexResponse::NoQuorum(text),
            },
            None => ReadIndexResponse::NotLeader,
        };
        encode(&response)
    }
}

/// Waits until this node has applied a revision.
pub(super) async fn wait_until_applied(
    consensus: &Consensus,
    revision: Revision,
    deadline: Instant,
) -> Result<(), Refusal> {
    timeout_at(deadline, consensus.wait_applied(revision)).await.map_err(|_| {
        let applied = consensus.state().revision();
        Refusal::Undecided(format!("this node has applied revision {applied}, not yet {revision}"))
    })
}

/// The read index in a leader's response.
fn read_index_of(response: Result<Bytes, CallError>) -> Result<ReadIndex, ReadError> {
    let response = response.map_err(|error| error.to_string()).and_then(|bytes| {
        decode(&bytes).map_err(|error: ReceiveError| format!("the leader's answer is {error}"))
    });
    match response {
        Ok(ReadIndexResponse::Index(index)) => Ok(index),
        Ok(ReadIndexResponse::NotLeader) => Err(ReadError::NotLeader(None)),
        Ok(ReadIndexResponse::NoQuorum(text)) | Err(text) => Err(ReadError::NoQuorum(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_index_response_decodes_to_what_was_encoded() {
        let seven = ReadIndex(7);
        assert_eq!(encode(&ReadIndexResponse::Index(seven))[..], [1, 0, 7], "as it was first sent");
        for response in [
            ReadIndexResponse::Index(seven),
            ReadIndexResponse::NotLeader,
            ReadIndexResponse::NoQuorum("no".into()),
        ] {
            assert_eq!(decode::<ReadIndexResponse>(&encode(&response)).unwrap(), response);
        }
        assert_eq!(read_index_of(Ok(encode(&ReadIndexResponse::Index(seven)))), Ok(seven));
        let not_leader = read_index_of(Ok(encode(&ReadIndexResponse::NotLeader)));
        assert_eq!(not_leader, Err(ReadError::NotLeader(None)));
        assert!(matches!(read_index_of(Err(CallError::Unknown("lost".into()))), Err(ReadError::NoQuorum(_))));
    }
}
