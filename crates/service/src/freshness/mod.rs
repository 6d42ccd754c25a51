//! Makes the state of a read as fresh as requested: linearizable, by lease, or local.
//!
//! A linearizable read on any node waits until this node has applied a *read index*: a log index that the leader
//! returns after a quorum has confirmed its leadership. A state that has applied it holds every write that was
//! acknowledged before the index was requested.
//!
//! | topic | file |
//! |---|---|
//! | linearizable reads, lease reads, staleness | this one: [`Freshness::view`] |
//! | concurrent reads that share one request for a read index | `shared_index` |
//!
//! **Invariant:** a linearizable read waits for an index that was requested after the read arrived.

mod shared_index;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use super::{
    context::Context,
    request::{Consistency, Level, Refusal},
    retry::{AttemptError, OnUnknown, Retry},
};
use concord_consensus::{
    Confirmation, Consensus, ReadError, ReadIndex,
    histogram::{Histogram, TimeCounts},
};
use concord_model::{
    error::{Invalid, Violation},
    feature::LEVEL_MIN,
    record::Revision,
};
use concord_net::{
    ReceiveError,
    call::Call,
    client::{CallError, Lane},
    codec::{decode, encode},
    framed::FramedCalls,
};
use concord_state::State;
pub(super) use shared_index::SharedReadIndex;

/// The time limit of one request for a read index. A live leader responds within two round trips.
const READ_INDEX_TIMEOUT: Duration = Duration::from_secs(1);

/// The body of a request for a read index that the leader may serve under its lease. Other requests have an empty body.
const BY_LEASE: &[u8] = &[1];

/// The leader's response to a request for a read index. New variants go to the end.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum ReadIndexResponse {
    Index(ReadIndex),
    NotLeader,
    NoQuorum(String),
}

/// What a request has made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Made {
    /// The revision of the write.
    pub(crate) revision: Revision,
    /// Whether that may have been decided before the request began: it is a retry, or another one has done the same.
    pub(crate) may_be_earlier: bool,
}

/// Provides states that are as fresh as requested.
#[derive(Debug)]
pub struct Freshness {
    pub(crate) cx: Arc<Context>,
    pub(crate) read_index: Arc<SharedReadIndex>,
    pub(crate) read_index_by_lease: Arc<SharedReadIndex>,
    pub(crate) read_indexes: FramedCalls,
    pub(crate) fresh_since: Mutex<Option<Instant>>,
    /// How long it took until a state was confirmed.
    confirm_times: Histogram,
}

impl Freshness {
    pub(crate) fn new(cx: &Arc<Context>) -> Self {
        Self {
            cx: Arc::clone(cx),
            read_index: Arc::default(),
            read_index_by_lease: Arc::default(),
            read_indexes: FramedCalls::new(Lane::Forward, Call::ReadIndex),
            fresh_since: Mutex::new(None),
            confirm_times: Histogram::default(),
        }
    }

    /// A state that is as fresh as requested.
    ///
    /// # Errors
    /// If no such state is available in time, or if lease reads are requested and the settings do not allow them.
    pub(crate) async fn view(self: &Arc<Self>, consistency: Consistency) -> Result<Arc<State>, Refusal> {
        let consensus = self.cx.consensus_or_refusal()?;
        let deadline = self.cx.read_deadline();
        match consistency.level {
            Level::Linearizable if concord_model::sabotage::is("local-read") => {}
            Level::Linearizable => self.confirm_until(consensus, deadline).await?,
            Level::Lease if !self.cx.options.timers.lease_reads => {
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

    /// Expects that the cluster has a feature level. A node asks before it forwards what an earlier version would take for
    /// something else.
    ///
    /// # Errors
    /// [`Refusal::NotUpgraded`]; or that this node can't know it.
    pub(crate) async fn expect_level(self: &Arc<Self>, needs: u32) -> Result<(), Refusal> {
        // It never falls, so a state of any age that has it is enough.
        if self.cx.applied().feature_level() >= needs.max(LEVEL_MIN) {
            return Ok(());
        }
        let has = self.view(Consistency::LINEARIZABLE).await?.feature_level();
        if has >= needs { Ok(()) } else { Err(Refusal::NotUpgraded { needs, has }) }
    }

    /// How long it took until a state was confirmed.
    pub(super) fn confirm_times(&self) -> TimeCounts {
        self.confirm_times.read()
    }

    /// An upper bound for the age of this node's state: the time since it was last confirmed to hold every
    /// acknowledged write. `None` when it was never confirmed.
    pub(super) fn staleness(&self) -> Option<Duration> {
        let fresh_since = self.fresh_since.lock().unwrap_or_else(PoisonError::into_inner);
        fresh_since.map(|moment| moment.elapsed())
    }

    /// The state whose schemas decide how data of a revision is redacted: one that has applied the revision.
    ///
    /// # Errors
    /// If this node did not apply the revision before the read deadline.
    pub(crate) async fn state_to_show(&self, at: Revision) -> Result<Arc<State>, Refusal> {
        let state = self.cx.applied();
        if state.revision() >= at {
            return Ok(state);
        }
        let deadline = self.cx.read_deadline();
        wait_until_applied(self.cx.consensus_or_refusal()?, at, deadline).await?;
        Ok(self.cx.applied())
    }

    /// The state that shows what a write has made: one that has applied the write's revision. If the write may have been
    /// decided before the request began, also everything that was acknowledged before this call: others may have changed
    /// the record since, and this node need not have applied that.
    ///
    /// # Errors
    /// As [`Self::state_to_show`], but never *unavailable*: the write is done.
    pub(crate) async fn state_after(self: &Arc<Self>, made: Made) -> Result<Arc<State>, Refusal> {
        if made.may_be_earlier {
            self.view(Consistency::LINEARIZABLE).await.map_err(Refusal::after_done)?;
        }
        self.state_to_show(made.revision).await.map_err(Refusal::after_done)
    }

    /// Waits until the applied state is confirmed to hold every write that was acknowledged before this call. Fails
    /// if one request for a read index fails.
    pub(super) async fn confirm(self: &Arc<Self>, consensus: &Consensus) -> Result<(), ReadError> {
        self.confirm_once(Confirmation::Quorum, consensus).await
    }

    async fn confirm_once(
        self: &Arc<Self>,
        by: Confirmation,
        consensus: &Consensus,
    ) -> Result<(), ReadError> {
        let requested_at = Instant::now();
        let this = Arc::clone(self);
        let shared = match by {
            Confirmation::Quorum => &self.read_index,
            Confirmation::Lease => &self.read_index_by_lease,
        };
        let index = shared.get(move || this.clone().fetch_read_index(by)).await?;
        consensus.wait_read(index).await;
        self.confirm_times.observe(requested_at.elapsed());
        if by == Confirmation::Lease {
            // A confirmation that depends on clocks does not count for the staleness.
            return Ok(());
        }
        let mut fresh_since = self.fresh_since.lock().unwrap_or_else(PoisonError::into_inner);
        *fresh_since = (*fresh_since).max(Some(requested_at));
        Ok(())
    }

    /// Like [`Self::confirm`], but retries while the leader changes, until the deadline.
    pub(super) async fn confirm_until(
        self: &Arc<Self>,
        consensus: &Consensus,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        self.confirm_by(Confirmation::Quorum, consensus, deadline).await
    }

    async fn confirm_by(
        self: &Arc<Self>,
        by: Confirmation,
        consensus: &Consensus,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        // A confirmation stores nothing, so a request whose outcome is unknown can be retried.
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

    /// Fetches a read index: from this node if it leads, otherwise from the leader.
    async fn fetch_read_index(self: Arc<Self>, by: Confirmation) -> Result<ReadIndex, ReadError> {
        let Some(consensus) = self.cx.consensus() else { return Err(ReadError::NotLeader(None)) };
        let Some(leader) = consensus.leader() else { return Err(ReadError::NotLeader(None)) };
        if leader.id == self.cx.node_id() {
            return consensus.read_index(by).await;
        }
        let request = match by {
            Confirmation::Quorum => Bytes::new(),
            Confirmation::Lease => Bytes::from_static(BY_LEASE),
        };
        let (peers, to) = (&self.cx.peers, leader.peer());
        let call = self.read_indexes.call(peers, to, request, READ_INDEX_TIMEOUT);
        tokio::select! {
            response = call => read_index_of(response),
            // A call to a dead leader may last until its timeout although a new leader is known already.
            () = consensus.leader_changed() => Err(ReadError::NotLeader(None)),
        }
    }

    /// Responds to another node's request for a read index, and never forwards it. A request for a lease read is served
    /// under the lease only if this node's own settings allow that, otherwise by a quorum.
    pub async fn answer_read_index(&self, request: &[u8]) -> Bytes {
        let by_lease = request == BY_LEASE && self.cx.options.timers.lease_reads;
        let by = if by_lease { Confirmation::Lease } else { Confirmation::Quorum };
        let response = match self.cx.consensus() {
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

/// Waits until this node has applied a revision. Fails at the deadline.
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

/// The read index in the leader's response, or the reason why it has none.
fn read_index_of(response: Result<Bytes, CallError>) -> Result<ReadIndex, ReadError> {
    let response = response.map_err(|error| error.to_string()).and_then(|bytes| {
        decode(&bytes).map_err(|error: ReceiveError| format!("the leader's response is {error}"))
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
    use concord_model::limits::Limits;

    /// A member that is removed while it writes can't read what the write has made.
    #[tokio::test]
    async fn a_write_that_is_done_is_undecided_where_its_result_cannot_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let service = crate::testing::service(directory.path(), Limits::default());
        assert!(matches!(service.freshness.state_to_show(1).await, Err(Refusal::Unavailable(_))));
        for may_be_earlier in [false, true] {
            let made = Made { revision: 1, may_be_earlier };
            assert!(matches!(service.freshness.state_after(made).await, Err(Refusal::Undecided(_))));
        }
    }

    /// Others may have changed the record since, and told a client so that now repeats its request here.
    #[tokio::test]
    async fn what_may_have_been_decided_earlier_is_shown_by_a_confirmed_state_only() {
        let node = crate::testing::Scripted::start().await;
        let freshness = &node.service.freshness;
        let revision = node.service.cx.applied().revision();
        let shown = async |may_be_earlier| freshness.state_after(Made { revision, may_be_earlier }).await;
        node.fake.lead(Some(1));
        assert!(shown(false).await.is_ok() && shown(true).await.is_ok());
        node.fake.lead(None);
        assert!(shown(false).await.is_ok(), "its own revision is enough");
        assert!(matches!(shown(true).await, Err(Refusal::Undecided(_))));
        node.stop().await;
    }

    #[test]
    fn a_read_index_response_decodes_to_what_was_encoded() {
        let seven = ReadIndex::new(7, 3, 2);
        let encoded = encode(&ReadIndexResponse::Index(seven));
        assert_eq!(encoded[..], [1, 0, 7, 3, 2], "the format that nodes send");
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
