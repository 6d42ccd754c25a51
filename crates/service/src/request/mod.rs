//! What clients request of the service and what the service decides: the types that all its units share.
//!
//! | file | content |
//! |---|---|
//! | `write` | writes, with the classification that all units ask for |
//! | `change` | what clients do with change requests |
//! | `environment`, `identity` | changes of environments; of providers, roles and sessions |
//! | `principal` | who makes a request, and the one decision whether they may |
//! | `refusal` | why a request was not carried out |
//!
//! **Invariant:** nothing here decides a write or waits for anything.

mod change;
mod environment;
mod identity;
mod principal;
mod refusal;
mod write;

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::deferred_drop::DeferredDrop;
use concord_model::{
    command::{Applied, IdempotencyKey, Outcome},
    record::Revision,
    redaction::RedactedPlaces,
    schema::ListedVariants,
};
use concord_net::NodeId;

pub use change::{ChangeJudgement, ChangeWrite, NewEdition, ProposedOperations, RolloutSteer};
pub(super) use change::{EditionUse, UsedEdition, check_words};
pub use environment::{EnvironmentRules, EnvironmentWrite, NewFreeze};
pub use identity::{IdentityWrite, NewRole};
pub use principal::{LoggedIn, Principal};
pub use refusal::Refusal;
pub(super) use refusal::{OPERATIONS, invalid_at};
pub use write::{
    AccessWrite, AuditWrite, Check, CheckCondition, KeyPatch, LazySchema, NewProtection, NewSchema,
    NewUnique, Restored, Rollback, Transaction, Undelete, UndeleteThen, Write,
};
pub(super) use write::{Effect, STORED_JSON_DEPTH_MAX, Target};

/// Bytes of documents above which a write is freed on a thread for blocking work: its values may take milliseconds.
const DEFERRED_DROP_BYTES: usize = 64 << 10;

/// Who requests a write, and on which terms.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The owner of the credential.
    pub principal: Principal,
    /// The reason for the change, in the client's words.
    pub reason: Option<String>,
    /// Set when the client may retry the request.
    pub idempotency_key: Option<IdempotencyKey>,
    /// Whether the client wants only the response, and nothing is stored.
    pub dry_run: bool,
    /// Which violations of a union the response to a dry run lists.
    pub listed_variants: ListedVariants,
    /// Set when the write is to pass the rules of environments.
    pub bypass: Option<BypassRequest>,
}

/// A write that is to pass the rules of environments. The receiving node makes it, because a part of it is random.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BypassRequest {
    /// The id of the change request that the write makes.
    pub id: String,
    /// The key of its digest.
    pub seal: [u8; 32],
}

impl Caller {
    /// The node itself.
    pub(crate) fn cluster(reason: Option<String>) -> Self {
        Self {
            principal: Principal::cluster(),
            reason,
            idempotency_key: None,
            dry_run: false,
            listed_variants: ListedVariants::default(),
            bypass: None,
        }
    }
}

/// A write with its caller: all attempts at it share this.
#[derive(Debug)]
pub(super) struct WriteRequest {
    pub(super) caller: Caller,
    pub(super) write: Write,
    /// The edition of a change request that the write applies or takes back. The leader sets it; it is not sent.
    pub(super) edition: Option<Box<UsedEdition>>,
}

impl WriteRequest {
    pub(super) fn new(caller: Caller, write: Write) -> Self {
        Self { caller, write, edition: None }
    }

    /// Whether an attempt whose outcome is unknown may be followed by another: the log decides both as one, or neither
    /// of them stores anything.
    pub(super) fn is_repeatable(&self) -> bool {
        self.caller.idempotency_key.is_some() || self.caller.dry_run
    }
}

impl Drop for WriteRequest {
    fn drop(&mut self) {
        let bytes: usize = self.write.operations().iter().map(Write::document_bytes).sum();
        if bytes > DEFERRED_DROP_BYTES {
            drop(DeferredDrop(vec![std::mem::replace(&mut self.write, Write::Batch(Vec::new()))]));
        }
    }
}

/// The decision on a write, by the log or by a dry run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) outcome: Outcome,
    /// The content that the leader computed for the record. Set only with a successful outcome.
    pub(super) content: Option<Arc<str>>,
}

impl Decision {
    pub(super) fn new(outcome: Outcome, content: Option<Arc<str>>) -> Self {
        Self { content: content.filter(|_| outcome.is_ok()), outcome }
    }
}

/// A write that was decided and not rejected.
#[derive(Debug, Clone)]
pub struct DecidedWrite {
    /// What it did.
    pub applied: Applied,
    /// The revision that this node has applied: at least the write's own, unless the wait for it timed out.
    pub revision: Revision,
    /// Whether nothing was stored. Then `applied` names the state that the write was tried on, not a revision of its
    /// own.
    pub dry_run: bool,
    /// The content that the leader computed for the record (`PatchConfig`); `None` if it is no longer known.
    pub content: Option<Arc<str>>,
    /// The places of `content` that the client is not shown.
    pub redacted: RedactedPlaces,
}

impl DecidedWrite {
    pub(super) fn new(
        applied: Applied,
        revision: Revision,
        dry_run: bool,
        content: Option<Arc<str>>,
    ) -> Self {
        Self { applied, revision, dry_run, content, redacted: RedactedPlaces::default() }
    }
}

/// How fresh a read must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Consistency {
    /// How it relates to earlier writes.
    pub level: Level,
    /// Wait until this node has applied this revision.
    pub min_revision: Option<Revision>,
}

impl Consistency {
    /// Every write that was acknowledged before the read is visible.
    pub(super) const LINEARIZABLE: Self = Self { level: Level::Linearizable, min_revision: None };
}

/// How a read relates to earlier writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// It sees every write that any node acknowledged before it.
    Linearizable,
    /// Linearizable, provided that no member's clock runs 1.5 times as fast as the leader's, or faster; without a round
    /// trip between the leader and its followers. The settings must allow it.
    Lease,
    /// It sees the writes that this node has applied.
    Local {
        /// The maximum accepted age of that state. If the state is older or its age is unknown, the read is confirmed
        /// as a linearizable one is.
        max_staleness: Option<Duration>,
    },
}

/// The content of `GET /api/v1/cluster`.
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
    /// The revision that this node has applied.
    pub revision: Revision,
    /// The digest of the state at `revision`.
    pub digest: u128,
    /// The feature level of the cluster at `revision`.
    pub feature_level: u32,
    /// The id of the data key that encrypts this node's data directory; `None` if the directory is not encrypted.
    pub data_key: Option<String>,
    /// All members.
    pub members: Vec<MemberView>,
    /// The problems that this node knows of.
    pub alarms: Vec<Alarm>,
}

/// The types of alarms, so that each has a sample before it is raised.
pub const ALARMS: [&str; 25] = [
    "approvers_missing",
    "audit",
    "bypass_unreviewed",
    "certificate",
    "change_failed",
    "change_waits",
    "clock",
    "data_key",
    "discarded_log",
    "disk",
    "duplicate_id",
    "forked",
    "identity_keys",
    "leader_changes",
    "lease",
    "log_stalled",
    "log_time",
    "no_leader",
    "revert_failed",
    "revert_held",
    "rolled_back",
    "rollout_paused",
    "schedule_waits_for_clock",
    "slow_flush",
    "unreachable",
];

/// How many watches of a node follow a config.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchCount {
    /// Those whose client has said who it is: they see candidates.
    pub identified: u64,
    /// Those that see the end of a rollout only.
    pub unidentified: u64,
}

/// A problem that an operator must resolve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alarm {
    /// Its kind; programs tell alarms apart by it.
    pub kind: &'static str,
    /// The member that has the problem; `None` for the whole cluster.
    pub node_id: Option<NodeId>,
    /// For people.
    pub message: String,
}

/// A member in a [`ClusterView`].
#[derive(Debug, Clone)]
pub struct MemberView {
    /// Its id.
    pub id: NodeId,
    /// `leader`, `follower`, `learner`.
    pub role: &'static str,
    /// The address of its client listener.
    pub api_addr: String,
    /// The address of its peer listener.
    pub peer_addr: String,
    /// Entries that it is behind the leader's log; known on the leader only.
    pub lag: Option<u64>,
    /// Whether it responds to the leader, and how many milliseconds ago it last did; known on the leader only.
    pub contact: Option<(bool, u64)>,
    /// Its version, once it has reported it to this node.
    pub version: Option<String>,
    /// The highest feature level that it supports, once it has reported it to this node.
    pub feature_level_max: Option<u32>,
    /// Its memory and its volume, once it has reported them to this node and while it responds.
    pub resources: Option<Resources>,
}

/// The memory and the volume of a node. An unknown figure is absent, never zero. Sent between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Bytes of the process that are in RAM.
    pub memory_bytes: Option<u64>,
    /// Free bytes of the volume of the data directory.
    pub disk_free_bytes: Option<u64>,
    /// Free bytes below which the node rejects writes other than deletes.
    pub disk_reserve_bytes: u64,
}
