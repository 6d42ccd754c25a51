//! The operations of a node: it prepares and forwards writes, serves reads at the requested freshness, delivers
//! watches, and manages the members of the cluster.
//!
//! | topic | file |
//! |---|---|
//! | requests of clients, and rejections | `request` |
//! | what the units share | `context` |
//! | compiled schemas; the cost of preparing a write | `schemas`, `budget` |
//! | the write path: validation, locks, batches, patches, dry runs, schema changes | `write` |
//! | forwarding a write to the leader, alone or in a forwarding batch | `forward` |
//! | the time of the log, from the clocks of the members | `clock` |
//! | targets of the fuzzer | `fuzz` |
//! | redaction of secret values | `redaction` |
//! | retries after the leader changed | `retry` |
//! | the freshness of reads: linearizable, by lease, local | `freshness` |
//! | reads of definitions and configs, lists with cursors, bulk reads | `read` |
//! | earlier revisions, their retention | `history` |
//! | watches | `watch` |
//! | bootstrapping the cluster, readiness, membership changes | `membership` |
//! | the feature level of the cluster; the levels and reports of its members | `feature_level` |
//! | tasks of the leader: builds of indexes, expiry of idempotency records | `leader_tasks` |
//! | the file that holds the whole state | `backup` |
//! | certificates and data keys: reloading their files, alarms about them | `reload` |
//! | the owner of a credential; access keys | `access` |
//! | identity providers, roles, sessions, logins | `identity` |
//! | providers and roles as this node has parsed them; the permissions of a session | `policy` |
//! | how many logins and changes of roles the leader accepts | `login_pace` |
//! | environments and their freezes | `environments` |
//! | whether there are enough persons to approve changes | `approvers` |
//! | change requests: what waits for approval, and what was applied | `change_requests` |
//! | stored editions of change requests, and whose approvals count | `editions` |
//! | evaluation of feature flags | `flags` |
//! | rollouts: what readers and gates say of them | `rollouts` |
//! | who asked for what and what was decided | `audit`, `audit_pages` |
//! | the free space that writes leave on the disk, of this node and of a majority | `disk_space` |
//! | threads for work that takes longer than about a millisecond, and whose turn it is | `cpu_pool` |
//! | where a request comes from | `origin` |
//! | quotas of access keys, failed credentials of addresses | `quota` |
//! | the metrics at `/metrics` | `metrics` |
//! | how often a line of the log may be repeated | `line_limit` |
//! | slow writes and flushes, leaders that change often: log lines and alarms | `slowness` |
//! | who uses this node: counts by access key and by definition | `usage` |
//! | spans of traced requests, and their export to the collector | `spans` |
//! | the memory that requests in flight hold | `memory_budget` |
//! | freeing large values on another thread | `deferred_drop` |
//!
//! This file is the [`Service`]: it constructs the units and gives each the units that it calls. A unit is a struct
//! that holds the [`Context`] and those units. So dependencies run one way: a unit is constructed after the units
//! that it calls.
//!
//! A node has no log and no consensus before it has an identity. [`ClusterMembers::init`] writes it, on this node or through a
//! call from another.
//!
//! **Invariants:** the wall clock is read only here, for `clock` and for the lines of `audit`; timeouts use the
//! monotonic clock. *Unavailable* means that a write was certainly not proposed. A write that may have been applied
//! is *undecided*, and stays so through every retry.

pub mod access;
mod anchors;
mod approvers;
pub mod audit;
pub mod audit_pages;
mod authors;
mod backup;
mod budget;
mod change_requests;
mod clock;
mod context;
mod cpu_pool;
mod deferred_drop;
mod disk_alarms;
mod disk_space;
mod editions;
mod environments;
mod feature_level;
mod flags;
pub(crate) mod forward;
mod freshness;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
pub(crate) mod history;
pub(crate) mod identity;
mod key_shares;
mod leader_tasks;
pub mod line_limit;
mod login_pace;
pub mod membership;
pub mod memory_budget;
pub mod metrics;
mod origin;
mod policy;
pub mod quota;
pub mod read;
mod redaction;
mod reload;
mod request;
mod retry;
mod rollouts;
mod schemas;
mod slowness;
pub mod spans;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod usage;
pub mod watch;
mod write;

use std::{
    ops::Deref,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::runtime::Handle;

use access::{Authentication, keys::AccessKeys};
use anchors::AuditAnchoring;
use audit_pages::AuditReader;
use backup::Backups;
use change_requests::{ChangeRequests, due::DueChanges};
use clock::Clock;
use context::Context;
use disk_space::DiskSpace;
#[cfg(feature = "simulation")]
pub use disk_space::set_free_bytes;
use environments::Environments;
use feature_level::FeatureLevels;
use flags::Flags;
use forward::Forwarder;
use freshness::Freshness;
use history::HistoryReader;
use identity::{Identities, key_sets::KeySetTask, login::Logins};
use membership::ClusterMembers;
use quota::Quotas;
use read::Reads;
use redaction::Redactor;
use rollouts::{EvidenceStore, Reports, reports::KnownWatches, task::RolloutTask};
use schemas::{Schemas, Validators};
use slowness::SlowWrites;
use watch::Watches;
use write::{Writes, admission::WriteAdmission, idempotency::KeyedWrites, record_locks::RecordLocks};

pub use access::{
    Access, Judgement, NotAuthenticated,
    keys::{MadeKey, SeenKey},
};
pub use authors::{AuthorView, RequestName};
pub use backup::Backup;
pub use change_requests::{
    AppliedView, ChangePreview, ChangeQuery, ChangeRequestEvent, ChangeRequestThen, ChangeView, ClosedView,
    DefinitionOperation, EnvironmentEffect, FailureView, OperationView, PartyView, PassedView, PauseView,
    RecordPreview, RevertView, RolloutStatus, RolloutView, ScheduledView, StoredChange, VoteView, WaitView,
    bypass, new_change_id, random_seal,
};
use concord_consensus::{Timers, blocking::blocking};
use concord_model::{access_key::Quota, limits::Limits, time::Timestamp};
use concord_net::{
    Member, NodeId, client::Peers, outgoing::address::OutgoingPolicy, tls::callers::CallerTls,
};
use concord_storage::{self as store, snapshot::envelope::Envelope};
pub use context::NO_CLUSTER;
pub use environments::{EnvironmentView, FreezeView, StoredEnvironment};
pub use flags::{FlagRequest, FlagResponse};
pub use history::{ConfigName, HistoryRange, RedactedConfig, RedactedHistory, retention::Retention};
pub use identity::{
    KeysView, ProviderView, RoleView, SessionView, StoredIdentity,
    login::{FailedLogin, OpenedSession},
    tried::{TriedRole, TriedToken},
};
pub use membership::change::{Changed, MemberChange};
pub use memory_budget::{Reservation, Share};
// The queue in which also the requests of clients wait: it holds no state.
pub use concord_consensus::fair_queue;
pub use concord_identity::Reason as TokenReason;
pub use concord_state::seen::Variant;
pub use origin::{CallerAddress, Origin, RequestWork};
pub use read::view::{DefinitionView, DeletedDefinition, DeletedList};
pub use redaction::{RedactedEvent, RedactedRecords, ShownTo};
pub use request::{
    ALARMS, AccessWrite, Alarm, AuditWrite, BypassRequest, Caller, ChangeJudgement, ChangeWrite, Check,
    CheckCondition, ClusterView, Consistency, DecidedWrite, EnvironmentRules, EnvironmentWrite,
    IdentityWrite, KeyPatch, LazySchema, Level, LoggedIn, MemberView, NewEdition, NewFreeze, NewProtection,
    NewRole, NewSchema, NewUnique, Principal, ProposedOperations, Refusal, Restored, Rollback, RolloutSteer,
    Transaction, Undelete, UndeleteThen, WatchCount, Write,
};
pub use rollouts::{
    ConfigReader, ConfigReaders, EvidenceView, FailureReport, GateView, GateWord, NodeReaders, ReaderReport,
    ReaderState, ReaderWatch, ReportAbout, Reported,
};
pub use write::forwarded::ForwardedResponse;
pub use write::{
    batch::check_operation_count,
    config_scan::{BreakingConfig, SchemaReport},
    rollback::Rollbacks,
    transaction::ReadConfig,
    undelete::{UndeleteAt, Undeleted, UndeletedSize},
};

/// The options of a service.
#[derive(Debug, Clone)]
pub struct Options {
    /// This node's id.
    pub node_id: NodeId,
    /// The data directory. The caller of [`Service::new`] holds its lock.
    pub directory: PathBuf,
    /// The limits of client requests.
    pub limits: Limits,
    /// How long a write may take in total.
    pub write_timeout: Duration,
    /// How long a read may take in total.
    pub read_timeout: Duration,
    /// The time without an event after which a watch sends a heartbeat.
    pub watch_heartbeat: Duration,
    /// The runtime that consensus runs on; `None` for the runtime that starts it.
    pub consensus_runtime: Option<Handle>,
    /// Raft's timers.
    pub timers: Timers,
    /// The store's settings.
    pub store: store::StoreOptions,
    /// Bytes of log after which a snapshot is due.
    pub snapshot_log_bytes: u64,
    /// The process exits once its log has made no progress for this long.
    pub log_stall_timeout: Duration,
    /// Free bytes of the volume below which only writes that remove something are accepted.
    pub disk_reserve_bytes: u64,
    /// Members from which this node may fetch a snapshot if its own state is damaged.
    pub rescue: Vec<Member>,
    /// The operator's file of data keys. If there is one, the data directory is encrypted.
    pub data_key_file: Option<PathBuf>,
    /// The keys that encrypt and sign backups; `None` for unencrypted backups.
    pub backup_envelope: Option<Arc<Envelope>>,
    /// How much of the history is retained.
    pub retention: Retention,
    /// The highest feature level of the cluster that this node agrees to.
    pub feature_level_max: u32,
    /// TLS of the client listener.
    pub caller_tls: Option<Arc<CallerTls>>,
    /// The audit log.
    pub audit: audit::AuditOptions,
    /// The quotas of keys that have none of their own.
    pub quotas: Quota,
    /// The most failed credentials of an address per minute; 0 for no limit.
    pub failed_credentials: u64,
    /// The collector of spans, if there is one.
    pub spans: Option<spans::SpanOptions>,
    /// The addresses at which the node may fetch the keys of identity providers.
    pub identity_calls: OutgoingPolicy,
}

/// The operations of a node, unit by unit. Clones share the units.
#[derive(Debug, Clone)]
pub struct Service {
    units: Arc<Units>,
}

/// The units of a service. Each holds the units that it calls; [`Service::new`] constructs them in the order of these
/// dependencies.
#[derive(Debug)]
pub struct Units {
    /// What the units share.
    pub cx: Arc<Context>,
    /// Quotas of access keys, failed credentials of addresses.
    pub quotas: Quotas,
    /// The free space of the voters' volumes.
    pub disk_space: Arc<DiskSpace>,
    /// The feature levels that the members know.
    pub levels: Arc<FeatureLevels>,
    /// The freshness of reads.
    pub freshness: Arc<Freshness>,
    /// Redaction of secret values.
    pub redactor: Arc<Redactor>,
    /// Authentication of clients, and whether their access keys are still valid.
    pub authentication: Arc<Authentication>,
    /// Reads of the history and of earlier revisions.
    pub history: Arc<HistoryReader>,
    /// Reads of single records, lists and bulk reads.
    pub reads: Arc<Reads>,
    /// Feature flags.
    pub flags: Arc<Flags>,
    /// Writes, dry runs and config scans.
    pub writes: Arc<Writes>,
    /// Management of access keys.
    pub keys: Arc<AccessKeys>,
    /// Identity providers, roles and sessions.
    pub identities: Arc<Identities>,
    /// Logins with tokens of identity providers.
    pub logins: Arc<Logins>,
    /// Environments and their freezes.
    pub environments: Arc<Environments>,
    /// Change requests.
    pub changes: Arc<ChangeRequests>,
    /// Reports of readers, words of gates, and the readers of configs.
    pub reports: Arc<Reports>,
    /// Anchors of the audit logs.
    pub anchors: Arc<AuditAnchoring>,
    /// Pages of the audit logs of all members.
    pub audit_pages: Arc<AuditReader>,
    /// Watches and long polling.
    pub watches: Arc<Watches>,
    /// Backups of the whole state.
    pub backups: Arc<Backups>,
    /// Forming the cluster, readiness, changes of the members.
    pub members: Arc<ClusterMembers>,
    /// The time of the log.
    pub clock: Arc<Clock>,
    /// Open connections of the client listener and of the peer listener.
    connections: [metrics::Connections; 2],
}

impl Deref for Service {
    type Target = Units;

    fn deref(&self) -> &Units {
        &self.units
    }
}

/// What counts the watches of configs.
fn known_watches(watches: &Arc<Watches>) -> KnownWatches {
    let (counted, listed) = (Arc::clone(watches), Arc::clone(watches));
    KnownWatches {
        count: Box::new(move |state, definition, key| counted.watches_of(state, definition, key)),
        list: Box::new(move |state, definition, key| listed.readers_of(state, definition, key)),
    }
}

/// The writes of a service.
fn new_writes(
    (cx, clock): (&Arc<Context>, &Arc<Clock>),
    disk_space: &Arc<DiskSpace>,
    freshness: &Arc<Freshness>,
    (redactor, schemas): (&Arc<Redactor>, Arc<Schemas>),
    history: &Arc<HistoryReader>,
) -> Arc<Writes> {
    Arc::new(Writes {
        cx: cx.clone(),
        clock: clock.clone(),
        disk_space: disk_space.clone(),
        schemas,
        freshness: freshness.clone(),
        redactor: redactor.clone(),
        history: history.clone(),
        forwarder: Forwarder { cx: cx.clone(), batcher: Arc::default() },
        admission: WriteAdmission::new(cx.options.limits.writes_in_flight),
        record_locks: RecordLocks::default(),
        keyed_writes: KeyedWrites::default(),
        write_barriers: Arc::default(),
        slow: SlowWrites::default(),
        logins: Arc::default(),
    })
}

impl Service {
    /// A service without consensus; [`ClusterMembers::start`] starts it when the directory has an identity.
    #[must_use]
    pub fn new(options: Options, access: Access, peers: Arc<Peers>) -> Self {
        let cx = Arc::new(Context::new(options, peers));
        let clock = Arc::new(Clock::new(&cx));
        let disk_space = Arc::new(DiskSpace::new(&cx));
        let levels = Arc::new(FeatureLevels::new(&cx, &clock, &disk_space));
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
        let flags = Arc::new(Flags::new(&cx, &freshness, &redactor));
        let writes = new_writes((&cx, &clock), &disk_space, &freshness, (&redactor, schemas), &history);
        let keys = Arc::new(AccessKeys::new(&cx, &clock, &freshness, &authentication, &writes));
        let identities = Arc::new(Identities::new(&cx, &clock, &freshness, &writes));
        let logins = Arc::new(Logins::new(&cx, &clock, &freshness, &writes));
        let environments = Arc::new(Environments::new(&cx, &clock, &freshness, &writes));
        let anchors =
            Arc::new(AuditAnchoring { cx: cx.clone(), freshness: freshness.clone(), writes: writes.clone() });
        let watches = Arc::new(Watches::new(&cx, &freshness, &authentication, &redactor, &reads));
        let backups = Arc::new(Backups::new(&cx, &freshness));
        let evidence = Arc::new(EvidenceStore::new(&cx, &authentication));
        let reports = Arc::new(Reports::new(
            (&cx, &clock),
            &freshness,
            &authentication,
            (&evidence, known_watches(&watches)),
        ));
        let changes = Arc::new(ChangeRequests::new((&cx, &clock), &freshness, &writes, &reports));
        let members = Arc::new(ClusterMembers {
            cx: cx.clone(),
            clock: clock.clone(),
            disk_space: disk_space.clone(),
            levels: levels.clone(),
            freshness: freshness.clone(),
            authentication: authentication.clone(),
            history: history.clone(),
            keys: keys.clone(),
            anchors: anchors.clone(),
            due_changes: Arc::new(DueChanges::new(&cx, &clock, &writes)),
            rollouts: Arc::new(RolloutTask::new(&cx, &clock, &evidence)),
            key_sets: Arc::new(KeySetTask::new(&cx, &clock, &writes.logins)),
            forming: tokio::sync::Mutex::new(()),
        });
        let units = Units {
            // First, as the others take the context.
            quotas: Quotas::new(&cx),
            audit_pages: Arc::new(AuditReader { cx: cx.clone() }),
            cx,
            disk_space,
            levels,
            freshness,
            redactor,
            authentication,
            history,
            reads,
            flags,
            writes,
            keys,
            identities,
            logins,
            environments,
            changes,
            reports,
            anchors,
            watches,
            backups,
            members,
            clock,
            connections: Default::default(),
        };
        Self { units: Arc::new(units) }
    }

    /// Makes the node report that it is not ready, so that load balancers send requests to other nodes.
    pub fn stop(&self) {
        self.cx.stopping.cancel();
    }

    /// Transfers leadership to another node if this one leads.
    pub async fn hand_over(&self) {
        if let Some(consensus) = self.cx.consensus() {
            consensus.transfer_leadership().await;
        }
    }

    /// Stops consensus and closes the log and the store.
    pub async fn shutdown(&self) {
        self.stop();
        if let Some(consensus) = self.cx.consensus() {
            consensus.shutdown().await;
        }
        self.cx.audit.flush().await;
        self.cx.spans.flush().await;
    }

    /// Waits until this node can't continue. Returns the reason.
    pub async fn failed(&self) -> String {
        self.cx.consensus.wait().await.failed().await
    }

    /// Reloads the certificate files when they change, until this node stops. Returns the reason if it can't continue.
    pub async fn keep_certificates(&self) -> String {
        reload::keep_certificates(&self.cx).await
    }
}

/// Runs work that blocks for long on a blocking thread. Fails if the work panics.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
    blocking(work).await.map_err(|error| Refusal::Internal(format!("blocking work ended early: {error}")))
}

/// The time of this machine's wall clock, right or wrong.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads it, for the time of the log and of audit lines"
)]
pub fn now() -> Timestamp {
    #[cfg(test)]
    if let Some(wall) = testing::virtual_wall() {
        return wall;
    }
    // A clock before 1970 reads as 0. It is wrong anyway.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
pub(crate) mod tests;
