//! What [`Consensus`] offers to the service: writes, read indexes, the applied state, status and shutdown.
//!
//! **Invariants**
//! 1. `NotLeader` means that openraft has certainly not appended the write here: its error `ForwardToLeader`.
//!    `LogEntryDiscarded` is different: the entry was appended, and its outcome is unknown.
//! 2. No borrow of openraft's metrics is held across an await: it would block openraft's core.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant as StdInstant},
};

use bytes::Bytes;
use openraft::{
    Instant, LinearizerOption, ReadPolicy,
    async_runtime::WatchReceiver,
    errors::{ClientWriteError, ForwardReason, ForwardToLeader, LinearizableReadError, RaftError},
};
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    Condition, Confirmation, Consensus, Leadership, MemberStatus, ReadError, ReadIndex, RolledBack, Status,
    Timers, WriteError,
    contact::Contacts,
    divergence::Proof,
    entry_times::{EntryTimes, WriteTimes},
    fair_queue::WorkOwner,
    group::{self, ProposeResult, Proposer, WriteGroups},
    leadership::{LastHeard, Transfers},
    log::Log,
    machine::AppliedPublisher,
    membership::lag,
    network::NetworkContext,
    receive::Contradicted,
    slow_flush::SlowFlushes,
    types::{EncodedProposal, Metrics, Raft, TypeConfig},
    wire::WireLogId,
    witness::WitnessTask,
};
use concord_model::{
    command::{Proposal, Verdict},
    limits::ENTRY_BYTES_MAX,
    record::Revision,
};
use concord_net::{Member, NodeId};
use concord_state::{State, feed::Feed};
use concord_storage::{Figures, Store};

/// How long forming a cluster may take: the members elect a leader and commit the membership.
const FORM_TIMEOUT: Duration = Duration::from_secs(10);
/// How long openraft may take to stop. Then log and store are closed anyway.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// What the clones of [`Consensus`] share.
pub(super) struct ConsensusInner {
    pub(super) id: NodeId,
    pub(super) raft: Raft,
    pub(super) publisher: Arc<AppliedPublisher>,
    pub(super) machine_dropped: CancellationToken,
    pub(super) store: Store,
    pub(super) log: Log,
    pub(super) timers: Timers,
    /// The leader that openraft knows. It is copied here because reading openraft's metrics clones all of them.
    pub(super) leader: watch::Receiver<Option<Member>>,
    pub(super) stopping: Arc<AtomicBool>,
    pub(super) groups: WriteGroups,
    pub(super) context: Arc<NetworkContext>,
    pub(super) contacts: Contacts,
    pub(super) leadership: watch::Receiver<Leadership>,
    pub(super) transfers: Arc<Transfers>,
    pub(super) witnesses: WitnessTask,
    pub(super) proof: Arc<Proof>,
    pub(super) contradicted: Contradicted,
    pub(super) last_heard: Arc<LastHeard>,
    /// Asked instead of openraft.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fake: Option<Arc<super::fake::FakeConsensus>>,
}

impl fmt::Debug for ConsensusInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsensusInner").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for ConsensusInner {
    fn drop(&mut self) {
        self.publisher.supervisor.stop();
    }
}

fn not_leader(id: NodeId, forward: &ForwardToLeader<TypeConfig>) -> Option<NodeId> {
    match forward.reason {
        ForwardReason::NotLeader => forward.leader_id.filter(|leader| *leader != id),
        ForwardReason::LeadershipTransfer | ForwardReason::LeaseExpired => None,
    }
}

/// Hands entries to this node's openraft.
#[derive(Debug, Clone)]
struct RaftProposer {
    id: NodeId,
    raft: Raft,
    entries: Arc<EntryTimes>,
    context: Arc<NetworkContext>,
    #[cfg(any(test, feature = "testing"))]
    fake: Option<Arc<super::fake::FakeConsensus>>,
}

impl Proposer for RaftProposer {
    async fn propose(&self, entry: Bytes) -> ProposeResult {
        #[cfg(any(test, feature = "testing"))]
        if let Some(fake) = &self.fake {
            return (fake.propose(entry).await, WriteTimes::default());
        }
        let begun = StdInstant::now();
        let written = self.raft.client_write(EncodedProposal(entry)).await;
        let end = StdInstant::now();
        let whole = end.saturating_duration_since(begun);
        match written {
            Ok(response) => {
                self.context.counts.commit_times.observe(whole);
                let times = self.entries.of(response.log_id.index, begun, end);
                (Ok(response.data.verdicts), times)
            }
            Err(error) => {
                (Err(self.write_error(error)), WriteTimes { committed: whole, ..WriteTimes::default() })
            }
        }
    }
}

impl RaftProposer {
    fn write_error(&self, error: RaftError<TypeConfig, ClientWriteError<TypeConfig>>) -> WriteError {
        match error {
            RaftError::APIError(ClientWriteError::ForwardToLeader(forward)) => {
                WriteError::NotLeader(not_leader(self.id, &forward))
            }
            RaftError::APIError(
                unknown @ (ClientWriteError::LogEntryDiscarded(_)
                | ClientWriteError::ChangeMembershipError(_)
                | ClientWriteError::PreconditionFailed(_)),
            ) => WriteError::Undecided(unknown.to_string()),
            RaftError::Fatal(fatal) => WriteError::Undecided(fatal.to_string()),
        }
    }
}

impl Consensus {
    /// Whether the cluster was formed: the log has an entry or a vote.
    pub async fn is_initialized(&self) -> bool {
        self.inner.raft.is_initialized().await.unwrap_or(false)
    }

    /// Forms the cluster, once, on one node without a log, and waits until it has a leader and has committed its
    /// membership.
    ///
    /// # Errors
    /// When it was formed before, when this node is not among the members, or when no leader is elected in time.
    pub async fn initialize(&self, members: Vec<Member>) -> Result<(), String> {
        let members: BTreeMap<NodeId, Member> =
            members.into_iter().map(|member| (member.id, member)).collect();
        self.inner.raft.initialize(members).await.map_err(|error| error.to_string())?;
        let is_formed = |metrics: &Metrics| {
            let committed = metrics.membership_config.log_id().is_some()
                && metrics.membership_config == metrics.committed_membership_config;
            committed && metrics.current_leader.is_some()
        };
        let waited =
            self.inner.raft.wait(Some(FORM_TIMEOUT)).metrics(is_formed, "the cluster is bootstrapped").await;
        waited.map(drop).map_err(|error| format!("the cluster is not bootstrapped yet: {error}"))
    }

    /// Proposes on the leader and waits for the verdict, without a time limit of its own. Takes the proposal by
    /// value: it is freed once it is encoded, before the wait.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn write(&self, proposal: Proposal) -> Result<Verdict, WriteError> {
        self.write_timed(proposal).await.0
    }

    /// The same, and where the time went.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub async fn write_timed(&self, proposal: Proposal) -> (Result<Verdict, WriteError>, WriteTimes) {
        let bytes = proposal.to_bytes();
        let shares_entry = proposal.may_share_entry() && group::fits(bytes.len());
        #[cfg(feature = "sabotage")]
        if concord_model::sabotage::is("ack-before-commit")
            && self.metrics().current_leader == Some(self.inner.id)
        {
            return (Ok(self.answer_early(&proposal, bytes)), WriteTimes::default());
        }
        let owner = WorkOwner::of(&proposal.by);
        drop(proposal);
        if bytes.len() > ENTRY_BYTES_MAX {
            return (Err(WriteError::TooLarge), WriteTimes::default());
        }
        let proposer = RaftProposer {
            id: self.inner.id,
            raft: self.inner.raft.clone(),
            entries: self.inner.log.entry_times(),
            context: Arc::clone(&self.inner.context),
            #[cfg(any(test, feature = "testing"))]
            fake: self.inner.fake.clone(),
        };
        if shares_entry {
            self.inner.groups.write(&proposer, owner, bytes).await
        } else {
            Box::pin(group::propose_alone(&proposer, bytes)).await
        }
    }

    /// On the leader: the read index. A state that has applied it ([`Self::wait_read`]) holds every write that was
    /// acknowledged before the call. Bounded by the election time-out. Concurrent calls share one round of heartbeats.
    ///
    /// openraft checks the lease in its core, which also starts a transfer of leadership: from then on it rejects reads.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read_index(&self, by: Confirmation) -> Result<ReadIndex, ReadError> {
        #[cfg(any(test, feature = "testing"))]
        if let Some(fake) = &self.inner.fake {
            return fake.read_index();
        }
        if by == Confirmation::Lease
            && concord_model::sabotage::is("lease-age-ignored")
            && self.leader_id() == Some(self.inner.id)
        {
            let metrics = self.metrics();
            return Ok(ReadIndex::of(metrics.last_applied.map(WireLogId::from)));
        }
        let option = match by {
            Confirmation::Quorum => LinearizerOption::from(ReadPolicy::ReadIndex),
            Confirmation::Lease => self.lease_read_age().map_or_else(
                || LinearizerOption::from(ReadPolicy::ReadIndex),
                |age| LinearizerOption::new(Some(age), true),
            ),
        };
        match self.inner.raft.get_read_linearizer(option).await {
            Ok(linearizer) => Ok(ReadIndex::of(Some(WireLogId::from(*linearizer.read_log_id().log_id())))),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => {
                Err(ReadError::NotLeader(not_leader(self.inner.id, &forward)))
            }
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(error))) => {
                Err(ReadError::NoQuorum(no_majority(&error.got)))
            }
            Err(RaftError::Fatal(fatal)) => Err(ReadError::NoQuorum(fatal.to_string())),
        }
    }

    /// How old the acknowledgement of a quorum may be for a read by lease: two thirds of the shortest lease of the voters,
    /// so that the clock of one of them may be half as fast again as the leader's. `None` while a voter keeps no lease.
    fn lease_read_age(&self) -> Option<Duration> {
        let own = self.inner.timers.lease();
        if concord_model::sabotage::is("leases-of-others-ignored") {
            return own.map(|lease| Duration::from_millis(lease / 3 * 2));
        }
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        let least = self.inner.context.leases.least(own, metrics.membership_config.voter_ids());
        least.map(|lease| Duration::from_millis(lease / 3 * 2))
    }

    /// The newest applied state: one atomic pointer read.
    #[must_use]
    pub fn state(&self) -> Arc<State> {
        Arc::clone(&self.inner.publisher.applied.load().state)
    }

    /// Waits until this node has applied a revision. Never returns once the node stops: the caller bounds the wait.
    pub async fn wait_applied(&self, revision: Revision) {
        self.inner.publisher.revision_waiters.wait(revision).await;
    }

    /// Waits until this node's state has applied a read index, and is proven if it was distrusted. Never returns once the
    /// node stops, as above.
    pub async fn wait_read(&self, at: ReadIndex) {
        self.inner.proof.given().await;
        let publisher = &self.inner.publisher;
        let mut index = at.index;
        loop {
            publisher.index_waiters.wait(index).await;
            let applied = publisher.applied.load();
            // A log of another history may be as long.
            if at.is_in(applied.last_log_id.map(WireLogId::from)) {
                return;
            }
            index = applied.index().saturating_add(1);
        }
    }

    /// What the members have told of themselves, this node included.
    #[must_use]
    pub fn conditions(&self) -> BTreeMap<NodeId, Condition> {
        self.inner.witnesses.witness.conditions()
    }

    /// The address of this node, if another process with its id answers there. This one then takes no part.
    #[must_use]
    pub fn twin(&self) -> Option<String> {
        self.inner.witnesses.witness.twin()
    }

    /// The leader that contradicts a committed entry of this node's log, and the index of that entry; unless another
    /// one is known to lead now.
    #[must_use]
    pub fn contradicted(&self) -> Option<(NodeId, u64)> {
        let leader = self.inner.leader.borrow().as_ref().map(|now| now.id);
        self.inner.contradicted.get().filter(|(known, _)| leader.is_none_or(|now| now == *known))
    }

    /// Why this node serves no reads but local ones, if that is so: what it has is not proven, or not all that it had.
    #[must_use]
    pub fn not_whole(&self) -> Option<String> {
        if !self.inner.proof.is_given() {
            return Some(
                "this node's state was rebuilt and has not been compared with the others' yet".into(),
            );
        }
        if let Some(address) = self.twin() {
            return Some(format!(
                "another process with the id of this node, {}, is running at {address}",
                self.inner.id
            ));
        }
        match self.conditions().remove(&self.inner.id).and_then(|own| own.rolled_back) {
            Some(RolledBack::Waiting(missing)) => Some(format!(
                "this node has started from an earlier state of its disk and waits for {}",
                node_list(&missing.nodes)
            )),
            Some(RolledBack::CatchingUp(_)) => {
                Some("this node has started from an earlier state of its disk and catches up".into())
            }
            Some(RolledBack::CaughtUp) | None => None,
        }
    }

    /// The recent changes. Older ones are in the history.
    #[must_use]
    pub fn feed(&self) -> Arc<Feed> {
        Arc::clone(&self.inner.publisher.feed)
    }

    /// The applied revision as it advances. The feed holds a revision's changes before it is announced here.
    #[must_use]
    pub fn revisions(&self) -> watch::Receiver<Revision> {
        self.inner.publisher.revision.subscribe()
    }

    /// The leader, if this node knows one.
    #[must_use]
    pub fn leader(&self) -> Option<Member> {
        self.inner.leader.borrow().clone()
    }

    /// The id of [`Self::leader`].
    #[must_use]
    pub fn leader_id(&self) -> Option<NodeId> {
        self.inner.leader.borrow().as_ref().map(|leader| leader.id)
    }

    /// The term of this node.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.inner.raft.metrics().borrow_watched().current_term.0
    }

    /// Waits until the known leader changes.
    pub async fn leader_changed(&self) {
        let mut leader = self.inner.leader.clone();
        leader.mark_unchanged();
        if leader.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// The leadership as it changes. Of several changes at once, only the last one is seen.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.inner.leadership.clone()
    }

    /// What this node knows of the cluster.
    #[must_use]
    pub fn status(&self) -> Status {
        let metrics = self.metrics();
        let voters: BTreeSet<NodeId> = metrics.membership_config.voter_ids().collect();
        let members = metrics.membership_config.nodes().map(|(id, member)| MemberStatus {
            member: member.clone(),
            voter: voters.contains(id),
            lag: lag(&metrics, *id),
            contact: self.inner.contacts.of(&metrics, *id),
        });
        let quorum_age = metrics.last_quorum_acked.map(|acked| acked.elapsed());
        // A leader that no majority answers leads nobody.
        let leads_nobody =
            voters.len() > 1 && quorum_age.is_some_and(|age| age > self.inner.timers.silence_max());
        Status {
            leader_id: self.leader_id().filter(|id| *id != self.inner.id || !leads_nobody),
            term: metrics.current_term.0,
            applied: self.state().revision(),
            members: members.collect(),
            quorum_age,
            running: metrics.running_state.is_ok() && !self.inner.stopping.load(Ordering::Relaxed),
        }
    }

    /// For how long this node's log has made no progress, if that is reported.
    #[must_use]
    pub fn log_stalled(&self) -> Option<Duration> {
        self.inner.log.stalled()
    }

    /// The flushes of this node's log within the last minute, while most of them are slow.
    #[must_use]
    pub fn slow_flushes(&self) -> Option<SlowFlushes> {
        self.inner.log.flushes().slow()
    }

    /// How often the leader changed within the last minute without a transfer of leadership, as far as this node knows.
    #[must_use]
    pub fn unplanned_leader_changes(&self) -> usize {
        self.inner.context.counts.leader_changes.count(tokio::time::Instant::now())
    }

    /// Serves a connection that a node has opened, until that ends, the node is removed from the cluster, or this one
    /// stops.
    pub async fn serve_member(&self, node: NodeId, served: impl Future<Output = ()>) {
        let mut membership = self.inner.publisher.membership.subscribe();
        tokio::select! {
            biased;
            _ = membership.wait_for(|membership| membership.has_left(node)) => {}
            () = self.inner.machine_dropped.cancelled() => {}
            () = served => {}
        }
    }

    /// The store, for reads of the history.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// The store's figures.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.inner.store.figures()
    }

    /// Stops openraft, then closes log and store.
    pub async fn shutdown(&self) {
        self.inner.stopping.store(true, Ordering::Relaxed);
        self.inner.groups.reset();
        match timeout(STOP_TIMEOUT, self.inner.raft.shutdown()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "openraft did not stop cleanly"),
            Err(_) => tracing::error!("openraft did not stop within {STOP_TIMEOUT:?}"),
        }
        self.inner.publisher.supervisor.stop();
        // A batch of entries may still be applied; the store must have it before it is closed.
        if timeout(STOP_TIMEOUT, self.inner.machine_dropped.cancelled()).await.is_err() {
            tracing::error!("entries are still being applied after {STOP_TIMEOUT:?}");
        }
        let (log, store) = (self.inner.log.clone(), self.inner.store.clone());
        // The log first: its last flush allows the store to write everything up to the end.
        let closed = crate::blocking::blocking(move || {
            log.close();
            store.close();
        });
        if let Err(error) = closed.await {
            tracing::error!(%error, "log and store were not closed cleanly");
        }
    }

    /// Runs a task that lives as long as this node; its panic or error is the node's end.
    pub fn supervise(
        &self,
        name: &'static str,
        task: impl Future<Output = Result<(), String>> + Send + 'static,
    ) {
        self.inner.publisher.supervisor.spawn(name, task);
    }

    /// Waits until this node has failed, because of its storage, of applying entries, or of one of its tasks.
    /// The process must end then.
    pub async fn failed(&self) -> String {
        tokio::select! {
            why = self.inner.publisher.supervisor.failed() => why,
            why = self.inner.store.failed() => why,
        }
    }

    /// Responds before any other member has the entry: a seeded bug.
    #[cfg(feature = "sabotage")]
    fn answer_early(&self, proposal: &Proposal, bytes: Vec<u8>) -> Verdict {
        let applied = self.inner.publisher.applied.load_full();
        let ahead = self.metrics().last_log_index.map_or(0, |last| last.saturating_sub(applied.index()));
        let (verdict, _) = (*applied.state).clone().apply(applied.state.revision() + ahead + 1, proposal);
        let raft = self.inner.raft.clone();
        drop(tokio::spawn(async move { raft.client_write(EncodedProposal(bytes.into())).await }));
        verdict
    }

    pub(super) fn metrics(&self) -> Metrics {
        self.inner.raft.metrics().borrow_watched().clone()
    }
}

/// The names of nodes, for a sentence; none stand for all others.
#[must_use]
pub fn node_list(nodes: &[NodeId]) -> String {
    let names: Vec<String> = nodes.iter().map(|id| format!("node {id}")).collect();
    if names.is_empty() { "the other voters".into() } else { names.join(", ") }
}

/// The error of a leader to which only these voters responded, itself among them.
fn no_majority(answered: &BTreeSet<NodeId>) -> String {
    let ids: Vec<String> = answered.iter().map(ToString::to_string).collect();
    format!("no majority of the voters responded to the leader; these did: {}", ids.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_of_another_history_does_not_hold_a_read_index() {
        let id = |term, index| Some(WireLogId { index, term, node: 1 });
        let at = ReadIndex::of(id(3, 20));
        for (applied, holds) in [
            (id(3, 20), true),
            (id(4, 25), true),
            (id(3, 19), false),
            (id(2, 43), false),
            (id(4, 15), false),
            (None, false),
        ] {
            assert_eq!(at.is_in(applied), holds, "{applied:?}");
        }
        assert!(ReadIndex::of(None).is_in(None));
    }

    #[test]
    fn the_error_names_the_responding_voters_without_addresses() {
        let text = no_majority(&BTreeSet::from([1, 3]));
        assert_eq!(text, "no majority of the voters responded to the leader; these did: 1, 3");
    }
}
