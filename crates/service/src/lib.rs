//! What a node does for its callers: decides writes, answers reads at the freshness they ask for, opens watches, and
//! manages the members of the cluster.
//!
//! | to find | look in |
//! |---|---|
//! | what a caller asks and how it can be refused | `request` |
//! | a write on its way: validation, locks, batches, patches, dry runs, changes of a schema | `write` |
//! | how a write reaches the leader, alone or in a forwarding batch | `forward` |
//! | the time of the log, from the clocks of the members | `clock` |
//! | when an idempotency key is forgotten | `forgetting` |
//! | targets of the fuzzer | `fuzz` |
//! | what a caller is shown of data with secret values | `redaction` |
//! | how an attempt is repeated through changes of the leader | `retry` |
//! | linearizable reads, cursors and pages | `read` |
//! | earlier revisions, their retention | `history` |
//! | many configs at once, now or as of a revision | `read_many` |
//! | watches | `watch` |
//! | forming the cluster, readiness, changes of the members | `membership` |
//! | the feature level of the cluster; which levels the members know, and what they tell of themselves | `feature_level` |
//! | builds of indexes (on the leader) | `index_build` |
//! | the file that holds the whole state | `backup` |
//! | the certificates of this node: when they end, when their files change | `certificates` |
//! | the owner of a credential; access keys | `access` |
//! | who asked for what and what was decided | `audit` |
//! | what a caller may see of a state | `view` |
//! | the free space that writes leave on the disk, of this node and of a majority | `disk_reserve`, `room` |
//! | threads for work that takes longer than about a millisecond, and whose turn it is | `cpu_pool` |
//! | a few threads for one kind of work | `own_threads` |
//! | the file of data keys, read again | `data_key` |
//! | where a request comes from | `origin` |
//! | rates and open things of an access key, failed credentials of an address | `quota` |
//! | what is measured, and the page of `/metrics` | `metrics` |
//! | spans of requests that belong to a trace, and the collector that they are sent to | `spans` |
//! | the bytes that requests in flight hold in memory | `memory_budget` |
//! | where what is large is freed | `deferred_drop` |
//!
//! This file is the [`Service`] that they all extend: its options, the state that they share, its life.
//!
//! A node has no log and no consensus before it has an identity. [`Service::init`] writes it, on this node or through a
//! call from another.
//!
//! **Invariants:** the wall clock is read here and nowhere else, for `clock` and for the lines of `audit`; timeouts use the monotonic one. The units depend on each other in one direction only.
//! *Unavailable* is answered only when a write has certainly not been proposed; whatever may have been applied is
//! *undecided*, and stays so through every retry.

pub mod access;
pub mod audit;
mod backup;
mod certificates;
mod clock;
mod cpu_pool;
mod data_key;
mod deferred_drop;
mod disk_reserve;
mod feature_level;
mod forgetting;
pub(crate) mod forward;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
pub(crate) mod history;
mod index_build;
pub mod membership;
pub mod memory_budget;
pub mod metrics;
mod origin;
mod own_threads;
pub mod quota;
pub mod read;
pub mod read_many;
mod redaction;
mod request;
mod retry;
mod room;
pub mod spans;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod view;
pub mod watch;
mod write;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{
    runtime::Handle,
    sync::{Semaphore, SetOnce},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

pub use access::{Access, NotAuthenticated, keys::MadeKey};
pub use backup::Backup;
use concord_consensus::{Consensus, Timers};
use concord_model::{
    access_key::Quota,
    limits::{BACKUPS_MAX, HISTORY_READS_MAX, Limits},
    record::Revision,
    time::Timestamp,
};
use concord_net::{
    Member, NodeId,
    call::Call,
    client::{Lane, Peers},
    framed::FramedCalls,
    tls::callers::CallerTls,
};
use concord_state::State;
use concord_storage::{self as store, snapshot::envelope::Envelope};
pub use history::retention::Retention;
pub use membership::change::{Change, Changed};
pub use memory_budget::{Reservation, Share};
pub use origin::{CallerAddress, Origin};
pub use redaction::{RedactedEvent, RedactedRecords, ShownTo};
pub use request::{
    AccessWrite, Alarm, Caller, Check, CheckCondition, ClusterView, Compiled, Consistency, KeyPatch, Level,
    MemberView, NewSchema, NewUnique, Principal, Refusal, Restored, Rollback, Transaction, Write, Written,
};
pub use view::DefinitionView;
pub use write::forwarded::Parts;
pub use write::{
    batch::check_operation_count,
    config_scan::{Breaking, Report},
    redefine::Tried,
    rollback::Rollbacks,
    transaction::ReadConfig,
};

/// The options of a service.
#[derive(Debug, Clone)]
pub struct Options {
    /// This node's id.
    pub node_id: NodeId,
    /// The data directory; the caller holds its lock.
    pub directory: PathBuf,
    /// The limits of what is accepted from callers.
    pub limits: Limits,
    /// How long a write may take in total.
    pub write_timeout: Duration,
    /// How long a read may take in total.
    pub read_timeout: Duration,
    /// How long a watch stays silent before it is sent a heartbeat.
    pub watch_heartbeat: Duration,
    /// Where consensus runs; where it is started if there is no such runtime.
    pub consensus_runtime: Option<Handle>,
    /// Raft's timers.
    pub timers: Timers,
    /// The store's settings.
    pub store: store::StoreOptions,
    /// Bytes of log after which a snapshot is due.
    pub snapshot_log_bytes: u64,
    /// The process ends once its log has not moved for so long.
    pub log_stall_timeout: Duration,
    /// Free bytes of the volume below which only writes that remove something are accepted.
    pub disk_reserve_bytes: u64,
    /// Members that may be asked for a snapshot when this node's state is damaged.
    pub rescue: Vec<Member>,
    /// The operator's file of data keys; with one, the data directory is encrypted.
    pub data_key_file: Option<PathBuf>,
    /// What backups are encrypted and signed with; none where they are handed out in clear.
    pub backup_envelope: Option<Arc<Envelope>>,
    /// How much of the history is retained.
    pub retention: Retention,
    /// The highest feature level of the cluster that this node agrees to.
    pub feature_level_max: u32,
    /// TLS of the listener for callers.
    pub caller_tls: Option<Arc<CallerTls>>,
    /// The audit log.
    pub audit: audit::Options,
    /// The quotas of keys that have none of their own.
    pub quotas: Quota,
    /// Failed credentials of an address in a minute; 0 for as many as come.
    pub failed_credentials: u64,
    /// The collector of spans, if there is one.
    pub spans: Option<spans::Options>,
}

/// What a node does for its callers. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Service {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: Options,
    access: Access,
    audit: audit::Audit,
    quotas: quota::Quotas,
    failed_credentials: quota::FailedCredentials,
    spans: spans::Spans,
    peers: Arc<Peers>,
    consensus: SetOnce<Consensus>,
    /// Held while an identity is written or consensus is started: one at a time.
    forming: tokio::sync::Mutex<()>,
    /// Held while this node changes the members: one change at a time.
    changing: tokio::sync::Mutex<()>,
    /// One permit for each write in progress.
    admission: Semaphore,
    /// One permit for each read of the history.
    history_reads: Semaphore,
    validators: write::validators::Validators,
    record_locks: write::record_locks::RecordLocks,
    keyed_writes: write::keyed_writes::KeyedWrites,
    forwarding: Arc<forward::batching::Batcher>,
    disk_reserve: disk_reserve::DiskReserve,
    voters_room: room::VotersRoom,
    /// The time of the log, as this node computes it.
    clock: clock::Clock,
    write_barriers: Arc<write::write_barrier::WriteBarriers>,
    /// Where work runs that takes longer than about a millisecond.
    cpu_pool: cpu_pool::CpuPool,
    short_lists: read::short_lists::ShortLists,
    read_index: Arc<read::SharedReadIndex>,
    read_index_by_lease: Arc<read::SharedReadIndex>,
    /// This node's requests to the leader for a read index.
    read_indexes: FramedCalls,
    hub: Arc<watch::Hub>,
    pinned_states: Arc<read::pinned::PinnedStates>,
    /// Earlier states that lists have made again.
    earlier_states: Arc<read::earlier::EarlierStates>,
    memory_budget: memory_budget::MemoryBudget,
    /// One permit for each backup that is being written.
    backups: Arc<Semaphore>,
    /// Open connections of the listener for callers, and of that for other nodes.
    connections: [metrics::Connections; 2],
    /// The feature levels of the other members, as they answered last.
    member_answers: Mutex<feature_level::Answers>,
    /// A moment such that this node's state contains every write that was acknowledged before it.
    fresh_since: Mutex<Option<Instant>>,
    stopping: CancellationToken,
}

impl Service {
    /// A service without consensus; [`Self::start`] starts it when the directory has an identity.
    #[must_use]
    pub fn new(options: Options, access: Access, peers: Arc<Peers>) -> Self {
        let memory_budget = memory_budget::MemoryBudget::new(options.limits.in_flight_bytes as u64);
        let inner = Inner {
            access,
            audit: audit::Audit::start(options.audit.clone(), options.node_id),
            quotas: quota::Quotas::new(options.quotas),
            failed_credentials: quota::FailedCredentials::new(options.failed_credentials),
            spans: spans::Spans::start(options.spans.clone(), options.node_id),
            peers,
            consensus: SetOnce::new(),
            forming: tokio::sync::Mutex::new(()),
            changing: tokio::sync::Mutex::new(()),
            admission: Semaphore::new(options.limits.writes_in_flight),
            history_reads: Semaphore::new(HISTORY_READS_MAX),
            validators: write::validators::Validators::default(),
            record_locks: write::record_locks::RecordLocks::default(),
            keyed_writes: write::keyed_writes::KeyedWrites::default(),
            forwarding: Arc::default(),
            disk_reserve: disk_reserve::DiskReserve::new(
                options.directory.clone(),
                options.disk_reserve_bytes,
            ),
            clock: clock::Clock::new(),
            voters_room: room::VotersRoom::default(),
            write_barriers: Arc::default(),
            cpu_pool: cpu_pool::CpuPool::new(),
            short_lists: read::short_lists::ShortLists::new(),
            read_index: Arc::default(),
            read_index_by_lease: Arc::default(),
            read_indexes: FramedCalls::new(Lane::Forward, Call::ReadIndex),
            hub: Arc::new(watch::Hub::new(options.limits.watches)),
            pinned_states: Arc::new(read::pinned::PinnedStates::new(memory_budget.pins_max())),
            earlier_states: Arc::new(read::earlier::EarlierStates::new(memory_budget.past_max())),
            memory_budget,
            backups: Arc::new(Semaphore::new(BACKUPS_MAX)),
            connections: Default::default(),
            member_answers: Mutex::default(),
            fresh_since: Mutex::new(None),
            stopping: CancellationToken::new(),
            options,
        };
        Self { inner: Arc::new(inner) }
    }

    /// The limits of what is accepted from callers.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.inner.options.limits
    }

    /// Runs work that takes longer than about a millisecond, where it delays no other request.
    ///
    /// # Errors
    /// When it was not done within the time of a write; it must not have changed anything.
    pub async fn run_long<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let deadline = Instant::now() + self.inner.options.write_timeout;
        self.inner.cpu_pool.run(cpu_pool::Weight::Short, deadline, |_| work()).await
    }

    /// An empty reservation of memory for a request, which grows with what the request holds.
    #[must_use]
    pub fn reservation(&self, share: Share) -> Reservation {
        self.inner.memory_budget.begin(share)
    }

    /// This node's id.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.inner.options.node_id
    }

    /// The id of the cluster that this node belongs to, once it belongs to one.
    fn cluster_id(&self) -> Option<uuid::Uuid> {
        self.inner.peers.me.get().map(|me| me.cluster_id)
    }

    /// The client for calls to other nodes, and the check of calls from them.
    #[must_use]
    pub fn peers(&self) -> &Peers {
        &self.inner.peers
    }

    /// This node's consensus, once it has been started.
    #[must_use]
    pub fn consensus(&self) -> Option<&Consensus> {
        self.inner.consensus.get()
    }

    /// The applied revision, however old (for headers of errors); 0 before the node has an identity.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.consensus().map_or(0, |consensus| consensus.state().revision())
    }

    /// The state that this node has applied, however old; empty before the node has an identity.
    fn applied(&self) -> Arc<State> {
        self.consensus().map(Consensus::state).unwrap_or_default()
    }

    /// Makes the node report that it is not ready, so that load balancers send callers elsewhere.
    pub fn stop(&self) {
        self.inner.stopping.cancel();
    }

    /// Hands leadership over to another node if this one leads.
    pub async fn hand_over(&self) {
        if let Some(consensus) = self.consensus() {
            consensus.transfer_leadership().await;
        }
    }

    /// Stops consensus and closes log and store.
    pub async fn shutdown(&self) {
        self.stop();
        if let Some(consensus) = self.consensus() {
            consensus.shutdown().await;
        }
        self.inner.audit.flush().await;
        self.inner.spans.flush().await;
    }

    /// Completes with the reason when this node can't continue.
    pub async fn failed(&self) -> String {
        self.inner.consensus.wait().await.failed().await
    }

    /// Why there is no consensus on this node.
    fn absence(&self) -> String {
        if self.has_left() {
            "this node was taken out of the cluster".into()
        } else if self.inner.peers.me.get().is_some() {
            "this node is starting".into()
        } else {
            "this node belongs to no cluster yet".into()
        }
    }

    fn consensus_or_refusal(&self) -> Result<&Consensus, Refusal> {
        let consensus = self.consensus().filter(|_| !self.has_left());
        consensus.ok_or_else(|| Refusal::Unavailable(self.absence()))
    }

    /// Whether this node was removed from the cluster. Its state only gets older from then on, so it answers no reads
    /// either.
    fn has_left(&self) -> bool {
        self.inner.peers.left.is_cancelled()
    }

    fn leads(&self, consensus: &Consensus) -> bool {
        consensus.leader_id() == Some(self.node_id())
    }
}

/// Runs work that takes long on a thread for blocking work.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Refusal::Internal(format!("blocking work ended early: {error}")))
}

/// This machine's wall clock, right or wrong.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads it, for the time of the log and of audit lines"
)]
pub fn now() -> Timestamp {
    // A clock before 1970 reads as 0: it is wrong by so much that it can't matter by how much.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
pub(crate) mod tests;
