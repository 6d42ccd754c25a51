//! What a caller asks of the service and what they are answered: the vocabulary that all units of the service share.
//!
//! A [`Write`] classifies itself once ([`Write::effect`], [`Write::target`], [`Write::document`]). Every unit that
//! treats writes differently (validators, locks, the write barrier, forwarding) asks these, so a new kind of write is
//! entered here and in the few places that need its content.
//!
//! **Invariants:** nothing here decides anything or waits for anything. *Unavailable* means that a write has certainly
//! not been applied; whatever may have been applied is *undecided*.

mod access;
mod compiled;
mod contents;
mod principal;
mod transaction;

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, SeqAccess, Visitor},
};

use super::deferred_drop::DeferredDrop;
use concord_model::{
    access_key::Verb,
    command::{Applied, Expect, IdempotencyKey, Outcome},
    document::{Document, DocumentError},
    error::{Invalid, Rejection, Violation},
    flat::decode_without,
    key::Key,
    limits::BATCH_STEPS_MAX,
    patch::Patch,
    record::Revision,
    redaction::RedactedPlaces,
};
use concord_net::NodeId;

pub use access::{AccessWrite, KeyPatch};
pub use compiled::Compiled;
pub use contents::{NewSchema, NewUnique, Restored, Rollback};
pub use principal::Principal;
pub use transaction::{Check, CheckCondition, Transaction};

/// The depth to which stored data is parsed: it was accepted under whatever limit was set at that time.
pub(super) const STORED_JSON_DEPTH_MAX: usize = 127;

/// Who asks for a write, and what they say about it.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The owner of the credential.
    pub principal: Principal,
    /// The reason for the change, in the caller's words.
    pub reason: Option<String>,
    /// Set when the caller may send the request again.
    pub idempotency_key: Option<IdempotencyKey>,
    /// Whether only the answer is wanted and nothing is stored.
    pub dry_run: bool,
}

/// A write with its caller: what all attempts at it share.
#[derive(Debug)]
pub(super) struct WriteRequest {
    pub(super) caller: Caller,
    pub(super) write: Write,
}

/// Bytes of documents above which a write is freed on a thread for blocking work: its values may take milliseconds.
const DEFERRED_DROP_BYTES: usize = 64 << 10;

impl Drop for WriteRequest {
    fn drop(&mut self) {
        let bytes: usize = self.write.operations().iter().map(Write::document_bytes).sum();
        if bytes > DEFERRED_DROP_BYTES {
            drop(DeferredDrop(vec![std::mem::replace(&mut self.write, Write::Batch(Vec::new()))]));
        }
    }
}

/// A write as a caller asks for it. Keys are raw texts: they are validated in the contract's order
/// (definition key → definition exists → config key → config exists → precondition → data). Sent between nodes: new
/// variants go to the end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Write {
    /// Creates a definition.
    CreateDefinition {
        /// Its key.
        key: String,
        /// Its indexed paths.
        indexes: Vec<String>,
        /// Its schema; `None` accepts any object.
        schema: Option<Document>,
        /// Whether `format` is asserted; `None` when the caller does not say.
        format_assertion: Option<bool>,
    },
    /// Replaces a definition's indexed paths.
    SetIndexes {
        /// The definition.
        key: String,
        /// All indexed paths from now on.
        indexes: Vec<String>,
        /// The precondition.
        expect: Expect,
    },
    /// Deletes a definition and all its configs.
    DeleteDefinition {
        /// The definition.
        key: String,
        /// The precondition.
        expect: Expect,
        /// Refuse while it has configs.
        restrict: bool,
    },
    /// Writes a config's data. `Absent` is POST, `Present` and `At` are PUT, `None` is PUT with `If-None-Match: *`.
    WriteConfig {
        /// The definition.
        definition: String,
        /// The config.
        key: String,
        /// Its data.
        data: Document,
        /// The precondition.
        expect: Expect,
    },
    /// Deletes a config.
    DeleteConfig {
        /// The definition.
        definition: String,
        /// The config.
        key: String,
        /// The precondition.
        expect: Expect,
    },
    /// Writes the data that a config had at an earlier revision.
    Rollback(Rollback),
    /// Replaces a definition's schema.
    SetSchema(NewSchema),
    /// Replaces a definition's unique paths.
    SetUnique(NewUnique),
    /// Changes a part of a config's data.
    PatchConfig {
        /// The definition.
        definition: String,
        /// The config.
        key: String,
        /// The change.
        patch: Patch,
        /// The precondition.
        expect: Expect,
    },
    /// All of these in their order, or none of them. A batch holds no batches.
    Batch(#[serde(deserialize_with = "decode_operations")] Vec<Write>),
    /// Changes the access keys.
    Access(AccessWrite),
    /// One of two lists of operations, chosen by conditions.
    Transaction(Transaction),
    /// Holds, or refuses the batch that it is part of.
    Check(Check),
    /// Reads a config as it was before the batch that it is part of.
    Read {
        /// The definition.
        definition: String,
        /// The config.
        key: String,
    },
}

/// An operation of a batch or a transaction; never one of these itself.
#[derive(Deserialize)]
struct Operation(#[serde(deserialize_with = "decode_operation")] Write);

fn decode_operation<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Write, D::Error> {
    decode_without(deserializer, &["Batch", "Transaction"])
}

fn decode_operations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Write>, D::Error> {
    deserializer.deserialize_seq(Operations)
}

/// Decodes the operations of a batch, no more than a batch may have: each is many times its bytes in memory, and the log
/// numbers the steps of an entry.
struct Operations;

impl<'de> Visitor<'de> for Operations {
    type Value = Vec<Write>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {BATCH_STEPS_MAX} operations")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vec<Write>, A::Error> {
        let mut operations = Vec::new();
        while let Some(Operation(write)) = sequence.next_element()? {
            if operations.len() == BATCH_STEPS_MAX {
                return Err(de::Error::custom("more operations than a batch may have"));
            }
            operations.push(write);
        }
        Ok(operations)
    }
}

fn decode_of_operation<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<Refusal>, D::Error> {
    decode_without(deserializer, &["OfOperation"])
}

/// What a write does to its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Changes a definition in a way that every config satisfies.
    Define,
    /// Changes what every config of a definition must satisfy.
    Constrain,
    /// Stores data that the caller gives.
    Store,
    /// Stores data that was stored before: the limits of intake do not apply to it.
    Restore,
    /// Stores data that the leader computes from the record.
    Compute,
    /// Removes the target.
    Remove,
    /// Changes nothing.
    Read,
    /// Whatever its operations do.
    Batch,
    /// Changes who may do what.
    Access,
}

/// The keys of what a write changes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Target<'a> {
    Definition(&'a str),
    Config {
        definition: &'a str,
        key: &'a str,
    },
    /// The targets of its operations.
    Batch,
    /// The access keys.
    Keys,
}

impl Write {
    /// What it does.
    pub(super) fn effect(&self) -> Effect {
        match self {
            Self::CreateDefinition { .. } | Self::SetIndexes { .. } => Effect::Define,
            Self::SetSchema(_) | Self::SetUnique(_) => Effect::Constrain,
            Self::WriteConfig { .. } => Effect::Store,
            Self::Rollback(_) => Effect::Restore,
            Self::PatchConfig { .. } => Effect::Compute,
            Self::DeleteDefinition { .. } | Self::DeleteConfig { .. } => Effect::Remove,
            Self::Check(_) | Self::Read { .. } => Effect::Read,
            Self::Batch(_) | Self::Transaction(_) => Effect::Batch,
            Self::Access(write) => write.effect(),
        }
    }

    /// What it changes.
    pub(super) fn target(&self) -> Target<'_> {
        match self {
            Self::CreateDefinition { key, .. }
            | Self::SetIndexes { key, .. }
            | Self::DeleteDefinition { key, .. }
            | Self::SetSchema(NewSchema { key, .. })
            | Self::SetUnique(NewUnique { key, .. }) => Target::Definition(key),
            Self::WriteConfig { definition, key, .. }
            | Self::DeleteConfig { definition, key, .. }
            | Self::PatchConfig { definition, key, .. }
            | Self::Check(Check { definition, key, .. })
            | Self::Read { definition, key }
            | Self::Rollback(Rollback { definition, key, .. }) => Target::Config { definition, key },
            Self::Batch(_) | Self::Transaction(_) => Target::Batch,
            Self::Access(_) => Target::Keys,
        }
    }

    /// The document that it brings: data, a patch or a schema.
    pub(super) fn document(&self) -> Option<&Document> {
        match self {
            Self::CreateDefinition { schema, .. } | Self::SetSchema(NewSchema { schema, .. }) => {
                schema.as_ref()
            }
            Self::WriteConfig { data, .. }
            | Self::Rollback(Rollback { restored: Restored::Found { data, .. }, .. }) => Some(data),
            Self::PatchConfig { patch, .. } => Some(&patch.document),
            Self::Check(Check { condition: CheckCondition::Value { equals, .. }, .. }) => equals.as_ref(),
            Self::SetIndexes { .. }
            | Self::DeleteDefinition { .. }
            | Self::DeleteConfig { .. }
            | Self::SetUnique(_)
            | Self::Rollback(_)
            | Self::Access(_)
            | Self::Check(_)
            | Self::Read { .. }
            | Self::Transaction(_)
            | Self::Batch(_) => None,
        }
    }

    /// [`Self::document`], to change it.
    fn document_mut(&mut self) -> Option<&mut Document> {
        match self {
            Self::CreateDefinition { schema, .. } | Self::SetSchema(NewSchema { schema, .. }) => {
                schema.as_mut()
            }
            Self::WriteConfig { data, .. }
            | Self::Rollback(Rollback { restored: Restored::Found { data, .. }, .. }) => Some(data),
            Self::PatchConfig { patch, .. } => Some(&mut patch.document),
            Self::Check(Check { condition: CheckCondition::Value { equals, .. }, .. }) => equals.as_mut(),
            Self::SetIndexes { .. }
            | Self::DeleteDefinition { .. }
            | Self::DeleteConfig { .. }
            | Self::SetUnique(_)
            | Self::Rollback(_)
            | Self::Access(_)
            | Self::Check(_)
            | Self::Read { .. }
            | Self::Transaction(_)
            | Self::Batch(_) => None,
        }
    }

    /// Makes of a write that another node has sent one that can be decided: parses its documents.
    ///
    /// # Errors
    /// When a document is not JSON within the limits.
    #[expect(clippy::wildcard_enum_match_arm, reason = "only a batch and a transaction hold other writes")]
    pub(super) fn parse_received(&mut self, json_depth: usize) -> Result<(), DocumentError> {
        if let Self::Transaction(Transaction { operations, conditions, then }) = self {
            // More than there are would be no transaction of this version; whoever sends it gets the fewest.
            *conditions = (*conditions).min(operations.len());
            *then = (*then).min(operations.len() - *conditions);
        }
        let operations = match self {
            Self::Batch(operations) | Self::Transaction(Transaction { operations, .. }) => operations,
            single => std::slice::from_mut(single),
        };
        operations.iter_mut().try_for_each(|operation| {
            // Stored data were accepted once, perhaps by a node with a higher limit.
            let is_stored = matches!(operation, Self::Rollback(_));
            let depth = if is_stored { STORED_JSON_DEPTH_MAX } else { json_depth };
            operation.document_mut().map_or(Ok(()), |document| document.parse_received(depth))
        })
    }

    /// The length of [`Self::document`].
    pub(super) fn document_bytes(&self) -> usize {
        self.document().map_or(0, |document| document.text.len())
    }

    /// The key of its definition; empty for a batch, which may have several, and for what has none.
    pub(super) fn definition(&self) -> &str {
        match self.target() {
            Target::Definition(definition) | Target::Config { definition, .. } => definition,
            Target::Batch | Target::Keys => "",
        }
    }

    /// The keys of its definitions, each once, in their order.
    pub(super) fn definitions(&self) -> BTreeSet<&str> {
        self.operations().iter().map(Self::definition).collect()
    }

    /// The operations of a batch, whether they are carried out or not; of a single write itself.
    #[must_use]
    pub fn operations(&self) -> &[Self] {
        if let Self::Batch(operations) | Self::Transaction(Transaction { operations, .. }) = self {
            operations
        } else {
            std::slice::from_ref(self)
        }
    }

    /// Whether the leader computes a part of it from records, or chooses by them.
    pub(super) fn is_computed(&self) -> bool {
        let of_records = |operation: &Self| matches!(operation.effect(), Effect::Compute | Effect::Read);
        self.operations().iter().any(of_records)
    }

    /// Whether it changes what every config of a definition must satisfy.
    pub(super) fn constrains(&self) -> bool {
        self.operations().iter().any(|operation| operation.effect() == Effect::Constrain)
    }

    /// Whether it needs no space on the disk beyond its log entry.
    pub(super) fn is_removal(&self) -> bool {
        let needs_none = |operation: &Self| matches!(operation.effect(), Effect::Remove | Effect::Read);
        self.operations().iter().all(needs_none)
    }
}

impl WriteRequest {
    /// Whether an attempt whose outcome is unknown may be followed by another: the log decides both as one, or
    /// neither of them stores anything.
    pub(super) fn is_repeatable(&self) -> bool {
        self.caller.idempotency_key.is_some() || self.caller.dry_run
    }
}

/// What was decided about a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decision {
    /// The decision of the log, or of the dry run.
    pub(super) outcome: Outcome,
    /// The content that the leader computed for the record. Set only with a successful outcome.
    pub(super) content: Option<Arc<str>>,
}

impl Decision {
    pub(super) fn new(outcome: Outcome, content: Option<Arc<str>>) -> Self {
        Self { content: content.filter(|_| outcome.is_ok()), outcome }
    }
}

/// A decided write: what it did, and the state that the answer is taken from (this node's, at least the write's
/// revision unless the wait for it timed out).
#[derive(Debug, Clone)]
pub struct Written {
    /// What it did.
    pub applied: Applied,
    /// The revision that this node has applied.
    pub revision: Revision,
    /// Whether nothing was stored: `applied` names the state that the write was tried on, and no revision of its own.
    pub dry_run: bool,
    /// What the leader computed for the record (`PatchConfig`); `None` where it is not known any more.
    pub content: Option<Arc<str>>,
    /// The places of `content` that the caller is not shown.
    pub redacted: RedactedPlaces,
}

/// Why a request was not carried out. Sent between nodes: new variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// Rejected by the state of the cluster.
    Rejected(Rejection),
    /// The request is invalid.
    Invalid(Invalid),
    /// Certainly not applied: there is no leader or no quorum.
    Unavailable(String),
    /// May or may not be applied (writes); could not be confirmed in time (reads with `min_revision`).
    Undecided(String),
    /// This node has as many writes in progress as it may.
    Overloaded,
    /// The volume is full; certainly not applied.
    StorageFull(String),
    /// An internal error: logged, never shown.
    Internal(String),
    /// The cluster is not in the condition that the change needs; certainly not done.
    Conflict(String),
    /// No such member.
    NoMember(NodeId),
    /// The requested revision is older than the retained history.
    Expired(String),
    /// The requested record did not exist at the requested revision.
    NotThere(String),
    /// Configs would violate a schema.
    Breaks {
        /// How many.
        count: u64,
        /// These name the first of them.
        violations: Vec<Violation>,
        /// The operation of a batch, from 0, that asks for the schema.
        operation: Option<u32>,
    },
    /// This node has as many of something open as it may; the text names the limit.
    LimitReached(String),
    /// The key is good, but does not have this right; the same whether what is asked for exists or not.
    Forbidden {
        /// The right.
        verb: Verb,
        /// The operation of a batch, from 0, that needs it.
        operation: Option<u32>,
    },
    /// The key was good when the request came and is not any more; certainly not applied.
    KeyEnded,
    /// As [`Self::Conflict`], with its location.
    ConflictAt(Violation),
    /// Paths can't become unique: two configs have the same value at one of them. Names configs, so a client without
    /// the right to read them is answered with another text.
    NotUniqueYet {
        /// The path.
        path: String,
        /// One of the configs.
        one: Key,
        /// The other.
        other: Key,
        /// The operation of a batch, from 0, that asks for it.
        operation: Option<u32>,
    },
    /// An index that the request needs is being built.
    Building(String),
    /// The state of a cursor is no longer there.
    CursorExpired(String),
    /// That of an operation of a batch, from 0; never one of a batch itself.
    OfOperation(u32, #[serde(deserialize_with = "decode_of_operation")] Box<Self>),
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
    /// It sees every write that was acknowledged before it, by any node.
    Linearizable,
    /// The same as long as no member's clock is half as fast again as the leader's, without a round trip between the
    /// leader and its followers. The settings must allow it.
    Lease,
    /// It sees what this node has applied.
    Local {
        /// The greatest accepted age of that state. If the state is older or its age is unknown, the read is
        /// confirmed as a linearizable one is.
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
    /// The revision that this node has applied.
    pub revision: Revision,
    /// The digest of the state at `revision`.
    pub digest: u128,
    /// The feature level of the cluster at `revision`.
    pub feature_level: u32,
    /// The id of the data key under which this node's data directory is encrypted; `None` when it is not.
    pub data_key: Option<String>,
    /// All members.
    pub members: Vec<MemberView>,
    /// What is wrong, as far as this node knows.
    pub alarms: Vec<Alarm>,
}

/// Something that an operator must see to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alarm {
    /// What it is about; programs tell alarms apart by it.
    pub kind: &'static str,
    /// The member that it is about; `None` for the whole cluster.
    pub node_id: Option<NodeId>,
    /// For people.
    pub message: String,
}

/// A member as the view shows it.
#[derive(Debug, Clone)]
pub struct MemberView {
    /// Its id.
    pub id: NodeId,
    /// `leader`, `follower`, `learner`.
    pub role: &'static str,
    /// The address for callers.
    pub api_addr: String,
    /// The address for other nodes.
    pub peer_addr: String,
    /// Entries that it is behind the leader's log; known on the leader only.
    pub lag: Option<u64>,
    /// Whether it answers the leader, and how many milliseconds ago it last did; known on the leader only.
    pub contact: Option<(bool, u64)>,
    /// Its version, when it has told this node.
    pub version: Option<String>,
    /// The highest feature level that it knows, when it has told this node.
    pub feature_level_max: Option<u32>,
    /// Its memory and its volume, when it has told this node and still answers.
    pub resources: Option<Resources>,
}

/// The memory and the volume of a node. What is not known is absent, and never zero. Sent between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Bytes of the process that are in RAM.
    pub memory_bytes: Option<u64>,
    /// Free bytes of the volume of the data directory.
    pub disk_free_bytes: Option<u64>,
    /// Free bytes below which the node refuses writes other than deletes.
    pub disk_reserve_bytes: u64,
}
