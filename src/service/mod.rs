//! Who may do what, on which node: where a write is decided, how fresh a read is, when a node is ready.
//!
//! | file | what it does |
//! |---|---|
//! | `propose` | takes a write to its verdict, through changes of the leader |
//! | `trial` | tries a write without storing anything |
//! | `prepare` | checks a write against a state and makes the command of it (on the leader) |
//! | `redefine`, `scan`, `gate` | a definition's other schema or unique paths: all its configs are checked first |
//! | `patch`, `queues` | computes writes from the record as it is, one after another for each record |
//! | `batch` | several writes as one |
//! | `forward` | carries a write to the leader, once, and answers the ones that other nodes carry here |
//! | `convoy` | lets small writes travel to the leader together |
//! | `read` | the barrier that makes a read see every acknowledged write |
//! | `watch` | the changes as they come, from any revision that is kept |
//! | `members` | forms the cluster, shows it, says whether this node is ready |
//! | `changes` | adds and removes members, moves leadership (on the leader) |
//! | `history`, `retention` | the past: shown, brought back, kept for how long |
//! | `building` | brings configs up to changed indexes, step by step (on the leader) |
//! | `cursor`, `turn` | the states that lists are paged through, and the pages behind a cursor |
//! | `backup` | a file that holds all |
//! | `access` | who a credential belongs to |
//! | `checks` | compiled schemas, and the room on the disk |
//!
//! A node has no log and no consensus before it has an identity: [`Service::init`] on one node, or its call to
//! the others, writes it.
//!
//! **Invariants:** the clock is read here and nowhere else. *Unavailable* is said only when a write has certainly
//! not been proposed; whatever may have happened is *undecided*, and stays so through every retry.

pub mod access;
mod backup;
pub(crate) mod forward;
pub(crate) mod history;
mod index_build;
pub(crate) mod membership;
pub(crate) mod read;
pub mod watch;
mod write;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use tokio::{
    sync::{Semaphore, SetOnce},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    model::{
        command::{Applied, Expect, IdempotencyKey},
        document::Document,
        error::{Invalid, Rejection, Violation},
        limits::Limits,
        patch::Patch,
        record::Revision,
        time::Timestamp,
    },
    peer::{Member, NodeId, client::Peers},
    raft::{Consensus, Timers},
    state::State,
    store,
};
pub use access::{Access, Principal};
pub use backup::Backup;
pub use history::Rollback;
pub use history::retention::Retention;
pub use membership::change::{Change, Changed};
pub use write::config_scan::{Breaking, Report};
pub use write::redefine::{Compiled, NewSchema, NewUnique, Tried};

/// Who asks for a write, and what rides with it.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Whose credential it is.
    pub principal: Principal,
    /// Why, in the caller's words.
    pub reason: Option<String>,
    /// Set when the caller may send the request again.
    pub request: Option<IdempotencyKey>,
    /// Only the answer is asked for: nothing is stored.
    pub dry_run: bool,
}

/// A write as a caller asks it. Keys are raw texts: they are checked in the contract's order
/// (definition key → definition exists → config key → exists already → precondition → data).
#[derive(Debug, Clone)]
pub enum Write {
    /// A new definition.
    CreateDefinition {
        /// Its key.
        key: String,
        /// Its indexed paths.
        indexes: Vec<String>,
        /// Its schema; `None` takes any object.
        schema: Option<Document>,
    },
    /// Other indexed paths.
    SetIndexes {
        /// The definition.
        key: String,
        /// All its indexed paths from now on.
        indexes: Vec<String>,
        /// What must be there.
        expect: Expect,
    },
    /// The end of a definition and of all its configs.
    DeleteDefinition {
        /// The definition.
        key: String,
        /// What must be there.
        expect: Expect,
        /// Refuse while it has configs.
        restrict: bool,
    },
    /// A config's data. `Absent` is POST, `Present` and `At` are PUT, `None` is PUT with `If-None-Match: *`.
    WriteConfig {
        /// The definition.
        definition: String,
        /// The config.
        key: String,
        /// Its data.
        data: Document,
        /// What must be there.
        expect: Expect,
    },
    /// The end of a config.
    DeleteConfig {
        /// The definition.
        definition: String,
        /// The config.
        key: String,
        /// What must be there.
        expect: Expect,
    },
    /// What a config was once, as its data from now on.
    Rollback(Rollback),
    /// Another schema.
    SetSchema(NewSchema),
    /// Other unique paths.
    SetUnique(NewUnique),
    /// A change of a part of a config's data.
    PatchConfig {
        /// The definition.
        definition: String,
        /// The config.
        key: String,
        /// What changes.
        patch: Patch,
        /// What must be there.
        expect: Expect,
    },
    /// All of these in their order, or none of them. It holds no batches.
    Batch(Vec<Write>),
}

/// A decided write: what it did and the state it was answered from (this node's, at least the write's revision
/// unless the wait for it ran out).
#[derive(Debug, Clone)]
pub struct Written {
    /// What it did.
    pub applied: Applied,
    /// The revision that this node has applied.
    pub revision: Revision,
    /// Nothing was stored: `applied` names the state that the write was tried on, and no revision of its own.
    pub dry_run: bool,
    /// What the leader computed for the record (`PatchConfig`); `None` where it is not known any more.
    pub content: Option<Arc<str>>,
}

/// Why a request was not done. Rides between nodes: new variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// A verdict of the cluster's state.
    Rejected(Rejection),
    /// Something is wrong with the request.
    Invalid(Invalid),
    /// Certainly not applied; no leader or quorum.
    Unavailable(String),
    /// May or may not be applied (writes); could not be confirmed in time (reads with `min_revision`).
    Undecided(String),
    /// This node works on as many writes as it may.
    Overloaded,
    /// The volume is full; certainly not applied.
    StorageFull(String),
    /// A fault of ours: logged, never shown.
    Internal(String),
    /// The cluster is not as the change needs it; certainly not done.
    Conflict(String),
    /// No such member.
    NoMember(NodeId),
    /// The revision that is asked about is older than what is kept.
    Expired(String),
    /// What is asked for was not there at the revision that is asked about.
    NotThere(String),
    /// So many configs would break a schema; the violations name the first of them.
    Breaks(u64, Vec<Violation>),
    /// A patch's `test` found something else than it names; certainly not applied.
    TestFailed(Violation),
    /// This node has as much of something open as it may; the text names the limit.
    Crowded(String),
}

/// How fresh a read must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Consistency {
    /// How it is related to the writes before it.
    pub level: Level,
    /// Wait until this node has applied it.
    pub min_revision: Option<Revision>,
}

/// How a read is related to the writes before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// It sees every write that was acknowledged before it, by any node.
    Linearizable,
    /// It sees what this node has applied.
    Local {
        /// How old that may be; where it is older or its age is not known, the read is confirmed as a
        /// linearizable one is.
        max_staleness: Option<Duration>,
    },
}

/// What `GET /api/v1/cluster` shows.
#[derive(Debug, Clone)]
pub struct ClusterView {
    /// The cluster; `None` before this node has an identity.
    pub cluster_id: Option<uuid::Uuid>,
    /// This node.
    pub node_id: NodeId,
    /// The leader that this node knows of.
    pub leader_id: Option<NodeId>,
    /// The term that this node knows of.
    pub term: u64,
    /// What this node has applied.
    pub revision: Revision,
    /// The digest of the state at `revision`.
    pub digest: u128,
    /// All members.
    pub members: Vec<MemberView>,
}

/// A member as the view shows it.
#[derive(Debug, Clone)]
pub struct MemberView {
    /// Its id.
    pub id: NodeId,
    /// `leader`, `follower`, `learner`.
    pub role: &'static str,
    /// Where callers reach it.
    pub api_addr: String,
    /// Where other nodes reach it.
    pub peer_addr: String,
    /// Entries behind the leader's log; known on the leader only.
    pub lag: Option<u64>,
}

/// What a service is made with.
#[derive(Debug, Clone)]
pub struct Options {
    /// This node's id.
    pub node_id: NodeId,
    /// The data directory; the caller holds its lock.
    pub directory: PathBuf,
    /// The limits of intake.
    pub limits: Limits,
    /// How long a write may take in all.
    pub write_timeout: Duration,
    /// How long a read may take in all.
    pub read_timeout: Duration,
    /// After how much silence a watch is sent a heartbeat.
    pub watch_heartbeat: Duration,
    /// Raft's timers.
    pub timers: Timers,
    /// The store's settings.
    pub store: store::Options,
    /// Bytes of log after which a snapshot is due.
    pub snapshot_log_bytes: u64,
    /// Free bytes of the volume below which writes that are not deletes are refused.
    pub disk_reserve_bytes: u64,
    /// Members that may be asked for a snapshot when this node's state is damaged.
    pub rescue: Vec<Member>,
    /// How long the history is kept.
    pub retention: Retention,
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
    peers: Arc<Peers>,
    consensus: SetOnce<Consensus>,
    /// Held while an identity is written or consensus is started: one of them at a time.
    forming: tokio::sync::Mutex<()>,
    /// Held while the members are changed from here: one change at a time.
    changing: tokio::sync::Mutex<()>,
    admission: Semaphore,
    /// For reads of the history.
    history_reads: Semaphore,
    validators: write::validators::Validators,
    queues: write::record_locks::Queues,
    convoys: Arc<forward::batching::Convoys>,
    disk: write::validators::Disk,
    gates: Arc<write::write_barrier::Gates>,
    /// Held by each check of all configs of a definition.
    scans: Arc<Semaphore>,
    read_index: Arc<read::SharedReadIndex>,
    hub: Arc<watch::Hub>,
    pinned_states: Arc<read::pinned::PinnedStates>,
    /// A moment such that this node's state holds every write that was acknowledged before it.
    fresh_since: Mutex<Option<Instant>>,
    stopping: CancellationToken,
}

impl Service {
    /// A service without consensus; [`Self::start`] gives it the one that the directory names.
    #[must_use]
    pub fn new(options: Options, access: Access, peers: Arc<Peers>) -> Self {
        let inner = Inner {
            access,
            peers,
            consensus: SetOnce::new(),
            forming: tokio::sync::Mutex::new(()),
            changing: tokio::sync::Mutex::new(()),
            admission: Semaphore::new(options.limits.writes_in_flight),
            history_reads: Semaphore::new(history::CONCURRENT_READS_MAX),
            validators: write::validators::Validators::default(),
            queues: write::record_locks::Queues::default(),
            convoys: Arc::default(),
            disk: write::validators::Disk::new(options.directory.clone(), options.disk_reserve_bytes),
            gates: Arc::default(),
            scans: Arc::new(Semaphore::new(write::config_scan::SCANS_MAX)),
            read_index: Arc::default(),
            hub: Arc::new(watch::Hub::new(options.limits.watches)),
            pinned_states: Arc::default(),
            fresh_since: Mutex::new(None),
            stopping: CancellationToken::new(),
            options,
        };
        Self { inner: Arc::new(inner) }
    }

    /// The limits of intake.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.inner.options.limits
    }

    /// This node's id.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.inner.options.node_id
    }

    /// The calls to other nodes, and what admits theirs.
    #[must_use]
    pub fn peers(&self) -> &Peers {
        &self.inner.peers
    }

    /// This node's part in consensus, once it has one.
    #[must_use]
    pub fn consensus(&self) -> Option<&Consensus> {
        self.inner.consensus.get()
    }

    /// The principal of a credential (the header's value without `Bearer `); `None`: nobody's.
    #[must_use]
    pub fn authenticate(&self, credential: &[u8]) -> Option<Principal> {
        self.inner.access.principal(credential)
    }

    /// The applied revision as it is (for headers of errors); 0 before the node has an identity.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.consensus().map_or(0, |consensus| consensus.state().revision())
    }

    /// The state as this node has applied it, however old; the empty one before the node has an identity.
    #[must_use]
    pub fn applied(&self) -> Arc<State> {
        self.consensus().map(Consensus::state).unwrap_or_default()
    }

    /// From now on the node is not ready, so that balancers send callers elsewhere.
    pub fn stop(&self) {
        self.inner.stopping.cancel();
    }

    /// Gives leadership to another node, where this one leads.
    pub async fn hand_over(&self) {
        if let Some(consensus) = self.consensus() {
            consensus.transfer_leadership().await;
        }
    }

    /// Ends consensus and closes log and store.
    pub async fn shutdown(&self) {
        self.stop();
        if let Some(consensus) = self.consensus() {
            consensus.shutdown().await;
        }
    }

    /// Completes with the reason when this node can't go on.
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

    /// Whether this node was taken out of the cluster. What it has applied gets older from then on, so it answers
    /// no reads either.
    fn has_left(&self) -> bool {
        self.inner.peers.left.is_cancelled()
    }

    fn leads(&self, consensus: &Consensus) -> bool {
        consensus.leader().is_some_and(|leader| leader.id == self.node_id())
    }
}

impl From<Rejection> for Refusal {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

impl From<Invalid> for Refusal {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(invalid)
    }
}

/// The one clock that ends up in records.
#[expect(clippy::disallowed_methods, reason = "the leader's clock, read once a proposal and carried in it")]
fn now() -> Timestamp {
    // A clock before 1970 reads as 0: the log's stamps grow by themselves.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
pub(crate) mod tests;
