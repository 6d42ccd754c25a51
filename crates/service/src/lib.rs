//! What a node does for its callers: decides writes, answers reads at the freshness they ask for, opens watches, and
//! manages the members of the cluster.
//!
//! | to find | look in |
//! |---|---|
//! | what a caller asks and how it can be refused | `request` |
//! | what the units share | `context` |
//! | compiled schemas; what a preparation may cost | `schemas`, `budget` |
//! | a write on its way: validation, locks, batches, patches, dry runs, changes of a schema | `write` |
//! | how a write reaches the leader, alone or in a forwarding batch | `forward` |
//! | the time of the log, from the clocks of the members | `clock` |
//! | targets of the fuzzer | `fuzz` |
//! | what a caller is shown of data with secret values | `redaction` |
//! | how an attempt is repeated through changes of the leader | `retry` |
//! | reads as fresh as is asked: linearizable, by lease, local | `freshness` |
//! | definitions, lists with their cursors and pages, many configs at once | `read` |
//! | earlier revisions, their retention | `history` |
//! | watches | `watch` |
//! | forming the cluster, readiness, changes of the members | `membership` |
//! | the feature level of the cluster; which levels the members know, and what they tell of themselves | `feature_level` |
//! | tasks of the leader: builds of indexes, expiry of idempotency records | `leader_tasks` |
//! | the file that holds the whole state | `backup` |
//! | certificates and data keys: reloading their files, alarms about them | `reload` |
//! | the owner of a credential; access keys | `access` |
//! | who asked for what and what was decided | `audit` |
//! | the free space that writes leave on the disk, of this node and of a majority | `disk_space` |
//! | threads for work that takes longer than about a millisecond, and whose turn it is | `cpu_pool` |
//! | where a request comes from | `origin` |
//! | rates and open things of an access key, failed credentials of an address | `quota` |
//! | what is measured, and the page of `/metrics` | `metrics` |
//! | spans of requests that belong to a trace, and the collector that they are sent to | `spans` |
//! | the bytes that requests in flight hold in memory | `memory_budget` |
//! | where what is large is freed | `deferred_drop` |
//!
//! This file is the [`Service`]: it makes the units and gives each the ones that it calls. A unit is a struct of the
//! [`Context`] and of those units, so they depend on each other in one direction: none can be made before those it calls.
//!
//! A node has no log and no consensus before it has an identity. [`ClusterMembers::init`] writes it, on this node or through a
//! call from another.
//!
//! **Invariants:** the wall clock is read here and nowhere else, for `clock` and for the lines of `audit`; timeouts use the monotonic one.
//! *Unavailable* is answered only when a write has certainly not been proposed; whatever may have been applied is
//! *undecided*, and stays so through every retry.

pub mod access;
pub mod audit;
mod backup;
mod budget;
mod clock;
mod context;
mod cpu_pool;
mod deferred_drop;
mod disk_space;
mod feature_level;
pub(crate) mod forward;
mod freshness;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
pub(crate) mod history;
mod leader_tasks;
pub mod membership;
pub mod memory_budget;
pub mod metrics;
mod origin;
pub mod quota;
pub mod read;
mod redaction;
mod reload;
mod request;
mod retry;
mod schemas;
pub mod spans;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod watch;
mod write;

use std::{
    ops::Deref,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{runtime::Handle, sync::Semaphore};

use access::{Authentication, keys::AccessKeys};
use backup::Backups;
use clock::Clock;
use context::Context;
use disk_space::DiskSpace;
use feature_level::FeatureLevels;
use forward::Forwarder;
use freshness::Freshness;
use history::HistoryReader;
use membership::ClusterMembers;
use quota::Quotas;
use read::Reads;
use redaction::Redactor;
use schemas::{Schemas, Validators};
use watch::Watches;
use write::{Writes, keyed_writes::KeyedWrites, record_locks::RecordLocks};

pub use access::{Access, NotAuthenticated, keys::MadeKey};
pub use backup::Backup;
use concord_consensus::Timers;
use concord_model::{access_key::Quota, limits::Limits, time::Timestamp};
use concord_net::{Member, NodeId, client::Peers, tls::callers::CallerTls};
use concord_storage::{self as store, snapshot::envelope::Envelope};
pub use history::{ConfigName, HistoryRange, RedactedConfig, RedactedHistory, retention::Retention};
pub use membership::change::{Changed, MemberChange};
pub use memory_budget::{Reservation, Share};
pub use origin::{CallerAddress, Origin};
pub use read::view::DefinitionView;
pub use redaction::{RedactedEvent, RedactedRecords, ShownTo};
pub use request::{
    AccessWrite, Alarm, Caller, Check, CheckCondition, ClusterView, Compiled, Consistency, KeyPatch, Level,
    MemberView, NewSchema, NewUnique, Principal, Refusal, Restored, Rollback, Transaction, Write, Written,
};
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
    pub store: store::Options,
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
    pub audit: audit::AuditOptions,
    /// The quotas of keys that have none of their own.
    pub quotas: Quota,
    /// Failed credentials of an address in a minute; 0 for as many as come.
    pub failed_credentials: u64,
    /// The collector of spans, if there is one.
    pub spans: Option<spans::SpanOptions>,
}

/// What a node does for its callers, unit by unit. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Service {
    units: Arc<Units>,
}

/// The units of a service. Each names the units that it calls; the order of their construction in [`Service::new`] is
/// the order of that dependence.
#[derive(Debug)]
pub struct Units {
    /// What the units share.
    pub cx: Arc<Context>,
    /// Rates and open things of an access key, failed credentials of an address.
    pub quotas: Quotas,
    /// The free space of the voters' volumes.
    pub disk_space: Arc<DiskSpace>,
    /// The feature levels that the members know.
    pub levels: Arc<FeatureLevels>,
    /// How fresh the state of a read is.
    pub freshness: Arc<Freshness>,
    /// What a caller is shown of data with secret values.
    pub redactor: Arc<Redactor>,
    /// Who asks, and whether they still may.
    pub authentication: Arc<Authentication>,
    /// Earlier revisions.
    pub history: Arc<HistoryReader>,
    /// Definitions, lists, many configs at once.
    pub reads: Arc<Reads>,
    /// Writes, their dry runs and checks.
    pub writes: Arc<Writes>,
    /// Access keys, as their owners manage them.
    pub keys: Arc<AccessKeys>,
    /// Watches and long polls.
    pub watches: Arc<Watches>,
    /// The file that holds the whole state.
    pub backups: Arc<Backups>,
    /// Forming the cluster, readiness, changes of the members.
    pub members: Arc<ClusterMembers>,
    /// The time of the log.
    pub clock: Arc<Clock>,
    /// Open connections of the listener for callers, and of that for other nodes.
    connections: [metrics::Connections; 2],
}

impl Deref for Service {
    type Target = Units;

    fn deref(&self) -> &Units {
        &self.units
    }
}

impl Service {
    /// A service without consensus; [`ClusterMembers::start`] starts it when the directory has an identity.
    #[must_use]
    pub fn new(options: Options, access: Access, peers: Arc<Peers>) -> Self {
        let cx = Arc::new(Context::new(options, peers));
        let clock = Arc::new(Clock::new(&cx));
        let disk_space = Arc::new(DiskSpace::new(&cx));
        let levels = Arc::new(FeatureLevels {
            cx: cx.clone(),
            clock: clock.clone(),
            disk_space: disk_space.clone(),
            member_reports: Mutex::default(),
        });
        let schemas = Arc::new(Schemas { cx: cx.clone(), validators: Validators::default() });
        let freshness = Arc::new(Freshness::new(&cx));
        let redactor = Arc::new(Redactor { cx: cx.clone(), schemas: schemas.clone() });
        let authentication = Arc::new(Authentication {
            cx: cx.clone(),
            clock: clock.clone(),
            freshness: freshness.clone(),
            access,
        });
        let history = Arc::new(HistoryReader::new(&cx, &clock, &freshness, &redactor));
        let reads = Arc::new(Reads::new(&cx, &freshness, &redactor, &history));
        let writes = Arc::new(Writes {
            cx: cx.clone(),
            clock: clock.clone(),
            disk_space: disk_space.clone(),
            schemas,
            freshness: freshness.clone(),
            redactor: redactor.clone(),
            history: history.clone(),
            forwarder: Forwarder { cx: cx.clone(), batcher: Arc::default() },
            admission: Semaphore::new(cx.options.limits.writes_in_flight),
            record_locks: RecordLocks::default(),
            keyed_writes: KeyedWrites::default(),
            write_barriers: Arc::default(),
        });
        let keys = Arc::new(AccessKeys {
            cx: cx.clone(),
            clock: clock.clone(),
            freshness: freshness.clone(),
            authentication: authentication.clone(),
            writes: writes.clone(),
        });
        let watches = Arc::new(Watches::new(&cx, &freshness, &authentication, &redactor, &reads));
        let backups = Arc::new(Backups::new(&cx, &freshness));
        let members = Arc::new(ClusterMembers {
            cx: cx.clone(),
            clock: clock.clone(),
            disk_space: disk_space.clone(),
            levels: levels.clone(),
            freshness: freshness.clone(),
            authentication: authentication.clone(),
            history: history.clone(),
            keys: keys.clone(),
            forming: tokio::sync::Mutex::new(()),
        });
        let quotas = Quotas::new(&cx);
        let units = Units {
            cx,
            quotas,
            disk_space,
            levels,
            freshness,
            redactor,
            authentication,
            history,
            reads,
            writes,
            keys,
            watches,
            backups,
            members,
            clock,
            connections: Default::default(),
        };
        Self { units: Arc::new(units) }
    }

    /// Makes the node report that it is not ready, so that load balancers send callers elsewhere.
    pub fn stop(&self) {
        self.cx.stopping.cancel();
    }

    /// Hands leadership over to another node if this one leads.
    pub async fn hand_over(&self) {
        if let Some(consensus) = self.cx.consensus() {
            consensus.transfer_leadership().await;
        }
    }

    /// Stops consensus and closes log and store.
    pub async fn shutdown(&self) {
        self.stop();
        if let Some(consensus) = self.cx.consensus() {
            consensus.shutdown().await;
        }
        self.cx.audit.flush().await;
        self.cx.spans.flush().await;
    }

    /// Completes with the reason when this node can't continue.
    pub async fn failed(&self) -> String {
        self.cx.consensus.wait().await.failed().await
    }

    /// Reads the files of the certificates again when they change, until this node stops. Returns the reason when it
    /// can't go on.
    pub async fn keep_certificates(&self) -> String {
        reload::keep_certificates(&self.cx).await
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
