//! What the units of a service share: the options, consensus, the peers, the CPU pool, the memory budget. Each unit
//! holds it as `cx`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use concord_consensus::Consensus;
use concord_model::{limits::Limits, record::Revision, time::Timestamp};
use concord_net::{NodeId, client::Peers};
use concord_state::State;
use tokio::{
    sync::SetOnce,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    Options,
    audit::Audit,
    cpu_pool::{CpuPool, Weight},
    memory_budget::{MemoryBudget, Reservation, Share},
    policy::Policies,
    request::Refusal,
    retry::{Attempt, AttemptError, Leader},
    spans::SpanRecorder,
    usage::Usage,
};

/// Why a node that has no identity serves nothing.
pub const NO_CLUSTER: &str = "this node belongs to no cluster yet";

/// Up to this many bytes of data are parsed, rendered or redacted inline: that takes less than about a millisecond.
pub(crate) const INLINE_BYTES_MAX: usize = 64 << 10;

/// What the units of a service share.
#[derive(Debug)]
pub struct Context {
    pub(crate) options: Options,
    pub(crate) peers: Arc<Peers>,
    /// Set once this node has an identity.
    pub(crate) consensus: SetOnce<Consensus>,
    /// Held while this node changes the members or the feature level, so that changes run one at a time.
    pub(crate) changing: tokio::sync::Mutex<()>,
    /// Runs work that takes longer than about a millisecond.
    pub(crate) cpu_pool: CpuPool,
    pub(crate) memory_budget: MemoryBudget,
    /// This node's audit log.
    pub audit: Audit,
    /// The spans of requests that belong to a trace.
    pub spans: SpanRecorder,
    /// Who uses this node.
    pub usage: Usage,
    /// Identity providers and roles, parsed.
    pub(crate) policies: Policies,
    /// The other members with which no connection can be opened, because of a certificate; checked after the files have
    /// changed.
    pub(crate) distrust: Mutex<BTreeMap<NodeId, String>>,
    pub(crate) stopping: CancellationToken,
}

impl Context {
    pub(crate) fn new(options: Options, peers: Arc<Peers>) -> Self {
        Self {
            peers,
            consensus: SetOnce::new(),
            changing: tokio::sync::Mutex::new(()),
            cpu_pool: CpuPool::new(),
            memory_budget: MemoryBudget::new(options.limits.in_flight_bytes as u64),
            audit: Audit::start(options.audit.clone(), options.node_id),
            spans: SpanRecorder::start(options.spans.clone(), options.node_id),
            usage: Usage::default(),
            policies: Policies::default(),
            distrust: Mutex::default(),
            stopping: CancellationToken::new(),
            options,
        }
    }

    /// The limits of client requests.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.options.limits
    }

    /// Runs work that takes longer than about a millisecond in the CPU pool, where it delays no other request.
    ///
    /// # Errors
    /// If it was not done within the write timeout. It may still be running then, so it must not have side effects.
    pub async fn run_long<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let deadline = Instant::now() + self.options.write_timeout;
        self.cpu_pool.run(Weight::Short, deadline, |_| work()).await
    }

    /// Runs work on this many bytes of data: inline up to [`INLINE_BYTES_MAX`], otherwise in the CPU pool.
    ///
    /// # Errors
    /// If it was not done before the deadline.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        bytes: usize,
        weight: Weight,
        deadline: Instant,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        if bytes <= INLINE_BYTES_MAX {
            Ok(work())
        } else {
            self.cpu_pool.run(weight, deadline, |_| work()).await
        }
    }

    /// The deadline of a read that begins now.
    pub(crate) fn read_deadline(&self) -> Instant {
        Instant::now() + self.options.read_timeout
    }

    /// An empty memory reservation for a request. It grows with what the request holds.
    #[must_use]
    pub fn reservation(&self, share: Share) -> Reservation {
        self.memory_budget.begin(share)
    }

    /// This node's id.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.options.node_id
    }

    /// The id of this node's cluster; `None` while it belongs to none.
    pub(crate) fn cluster_id(&self) -> Option<uuid::Uuid> {
        self.peers.me.get().map(|me| me.cluster_id)
    }

    /// The client for peer RPCs, and the admission of peer RPCs to this node.
    #[must_use]
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// This node's consensus; `None` before it has started.
    #[must_use]
    pub fn consensus(&self) -> Option<&Consensus> {
        self.consensus.get()
    }

    /// The applied revision, however old, for the headers of errors; 0 before the node has an identity.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.consensus().map_or(0, |consensus| consensus.state().revision())
    }

    /// The log's time of the newest change that this node has applied; 0 before the node has an identity.
    #[must_use]
    pub fn last_at(&self) -> Timestamp {
        self.consensus().map_or(Timestamp(0), |consensus| consensus.state().last_at())
    }

    /// How long a write may take in total.
    #[must_use]
    pub fn write_timeout(&self) -> Duration {
        self.options.write_timeout
    }

    /// The state that this node has applied, however old; empty before the node has an identity.
    pub(crate) fn applied(&self) -> Arc<State> {
        self.consensus().map(Consensus::state).unwrap_or_default()
    }

    /// This node's consensus. Fails with *unavailable* before it has started, and after the node was removed from the
    /// cluster.
    pub(crate) fn consensus_or_refusal(&self) -> Result<&Consensus, Refusal> {
        let consensus = self.consensus().filter(|_| !self.has_left());
        consensus.ok_or_else(|| Refusal::Unavailable(self.absence()))
    }

    /// Why this node has no consensus to serve requests with.
    pub(crate) fn absence(&self) -> String {
        if self.has_left() {
            "this node was removed from the cluster".into()
        } else if self.peers.me.get().is_some() {
            "this node is starting".into()
        } else {
            NO_CLUSTER.into()
        }
    }

    /// Whether this node was removed from the cluster. Its state no longer changes, so it serves no reads either.
    pub(crate) fn has_left(&self) -> bool {
        self.peers.left.is_cancelled()
    }

    /// Whether the tasks of this node must end: the node stops, or was removed from the cluster.
    pub(crate) fn is_over(&self) -> bool {
        self.stopping.is_cancelled() || self.has_left()
    }

    /// Waits for `time`, or until the node stops.
    pub(crate) async fn pause(&self, time: Duration) {
        tokio::select! {
            () = self.stopping.cancelled() => {}
            () = sleep(time) => {}
        }
    }

    /// Whether this node is the leader, as far as it knows.
    pub(crate) fn leads(&self, consensus: &Consensus) -> bool {
        consensus.leader_id() == Some(self.node_id())
    }

    /// The leader that this node knows. Fails with a reason to retry if it knows none.
    pub(crate) fn known_leader(&self, consensus: &Consensus) -> Attempt<Leader> {
        if self.leads(consensus) {
            return Ok(Leader::ThisNode);
        }
        let leader = consensus.leader().filter(|leader| leader.id != self.node_id());
        leader.map(Leader::Other).ok_or_else(|| AttemptError::Retry("no leader is known".into()))
    }
}
