//! Commands, proposals and verdicts: the changes that the leader proposes, and the decisions of the log.
//!
//! | to find | look in |
//! |---|---|
//! | what is done to a change request | [`ChangeAction`] |
//! | what is done to providers, roles and sessions | [`IdentityCommand`] |
//! | what a command changes | [`touched`] |
//! | where a proposal comes from, and what it rests on | [`source`] |
//!
//! [`Command`] (one change) → [`Proposal`] (what an entry holds, alone or with others: [`entry`](super::entry)) →
//! [`Verdict`] (what `state` decides).
//!
//! **Invariant:** everything that a decision depends on is in the proposal or in the state: the time, the author, the
//! idempotency key, the revision of the definition that the data were validated against. Replicated enums grow only
//! at the end; `crates/consensus/tests/format.rs` pins their bytes.

mod action;
mod display;
mod identity;
pub mod source;
pub mod touched;

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};

use super::{
    access_key::{Author, Grants, KeyId, Quota},
    audit::AnchoredLog,
    encoding,
    error::Rejection,
    feature::{IDENTITY, LEVEL_MIN, level_max},
    flat::decode_without,
    key::Key,
    record::{DeletedId, IndexEntries, Revision},
    schema::StoredSchema,
    system::{
        change::ChangeId,
        environment::{Environment, EnvironmentName},
        person::PersonLabel,
        rollout::Candidate,
    },
    time::Timestamp,
};
pub use action::{ChangeAction, RolloutStage};
pub use identity::{IdentityCommand, KeptOfProvider, NewSession, PolicyChange};
use source::Tail;

/// The precondition of a write: the state of the record that it replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Expect {
    /// None: any record, or no record.
    Any,
    /// No record (a create).
    Absent,
    /// A record (an update or a delete).
    Present,
    /// A record at exactly this revision (`If-Match`). Without a record the write is rejected as *not found*.
    At(Revision),
    /// No record (`If-None-Match: *`). An existing one is a failed precondition, not a conflict.
    None,
    /// Exactly what the leader read when it computed the command: a record at this revision, or none. Otherwise the
    /// verdict is [`Verdict::Stale`].
    Read(Option<Revision>),
}

/// One change, validated and completed by the leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// A new definition.
    CreateDefinition {
        /// Its key.
        key: Key,
        /// Its indexed paths.
        indexes: Vec<String>,
        /// Its schema.
        #[serde(with = "super::schema::stored")]
        schema: Option<StoredSchema>,
    },
    /// Replaces the indexed paths of a definition. A small definition is reindexed in the same entry, a large one by
    /// the [`Command::BuildIndex`] entries after it.
    SetIndexes {
        /// The definition.
        key: Key,
        /// All its indexed paths after the change.
        indexes: Vec<String>,
        /// The precondition.
        expect: Expect,
    },
    /// Deletes a definition and all its configs.
    DeleteDefinition {
        /// The definition.
        key: Key,
        /// The precondition.
        expect: Expect,
        /// Reject while it has configs.
        restrict: bool,
        /// Keep it, so that the deletion can be undone, and drop those that were deleted first while all of them take
        /// more than so many bytes. `None`: it is gone for good.
        keep: Option<u64>,
    },
    /// Creates a config or replaces its data, as `expect` allows.
    WriteConfig {
        /// The definition.
        definition: Key,
        /// The config.
        key: Key,
        /// The JSON text of the data.
        #[serde(deserialize_with = "encoding::shared_text")]
        data: Arc<str>,
        /// Its index entries, computed with the definition that [`Proposal::definition_read`] names.
        entries: IndexEntries,
        /// The precondition.
        expect: Expect,
    },
    /// Deletes a config.
    DeleteConfig {
        /// The definition.
        definition: Key,
        /// The config.
        key: Key,
        /// The precondition.
        expect: Expect,
    },
    /// Raises the compaction revision: older changes may be deleted from the history. It is never lowered.
    Compact {
        /// The oldest revision whose state stays available.
        compaction_revision: Revision,
    },
    /// Replaces or removes the schema of a definition.
    SetSchema {
        /// The definition.
        key: Key,
        /// Its schema after the change.
        #[serde(with = "super::schema::stored")]
        schema: Option<StoredSchema>,
        /// The precondition.
        expect: Expect,
        /// The leader has validated all configs up to and including this revision; if there is a later one, the verdict
        /// is [`Verdict::Stale`]. `None` when they may break the schema.
        configs_read: Option<Revision>,
    },
    /// Replaces the unique paths of a definition.
    SetUnique {
        /// The definition.
        key: Key,
        /// All its unique paths after the change; each is an indexed path.
        paths: Vec<String>,
        /// The precondition.
        expect: Expect,
        /// As in [`Command::SetSchema`]; `None` when no path is unique after the change.
        configs_read: Option<Revision>,
    },
    /// The next step of the build that a change of indexed paths began; proposed by the leader itself. It does nothing
    /// when the build has passed this step or is complete.
    BuildIndex {
        /// The definition.
        key: Key,
        /// Identifies the build: the revision that began it.
        begun: Revision,
        /// The cursor of the build when the step was proposed.
        cursor: Option<Key>,
    },
    /// Several changes as one: all are applied, in order, or none.
    Batch(Vec<BatchStep>),
    /// Raises the feature level of the cluster by one; proposed by the leader itself once every member knows the level.
    /// It does nothing when the level is not the next one.
    RaiseFeatureLevel {
        /// The level after it.
        to: u32,
    },
    /// Forgets the oldest outcomes of requests, up to a revision; proposed by the leader itself. An entry forgets a
    /// bounded number of them.
    Forget {
        /// The newest entry whose outcome is forgotten.
        upto: Revision,
    },
    /// Changes an access key or the root key.
    Access(AccessCommand),
    /// Several changes as one, which rest on configs that were read.
    Transaction(Transaction),
    /// Undoes the deletion of a definition that is kept: it returns with its configs, indexes and unique fields.
    UndeleteDefinition(Undeletion),
    /// Protects a definition from deletion, or no longer.
    SetProtection {
        /// Its key.
        key: Key,
        /// Whether its deletion is rejected from now on.
        protected: bool,
        /// What must be there.
        expect: Expect,
    },
    /// Continues at a later revision, and voids those before it; in the log of a recovered cluster, before anything of
    /// its own. It does nothing when the revision has passed.
    SkipRevisions {
        /// The revision after it.
        to: Revision,
    },
    /// Changes the anchors of a node's audit log.
    Audit(AuditCommand),
    /// Changes a system record.
    System(SystemCommand),
}

/// A change of a system record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SystemCommand {
    /// Creates an environment or replaces it, as `expect` allows.
    PutEnvironment {
        /// Its name.
        name: EnvironmentName,
        /// Its rules after the change.
        after: Environment,
        /// The JSON text of everything else of it.
        #[serde(deserialize_with = "encoding::shared_text")]
        text: Arc<str>,
        /// The precondition.
        expect: Expect,
    },
    /// Deletes an environment. From then on its definitions belong to `default`.
    DeleteEnvironment {
        /// Its name.
        name: EnvironmentName,
        /// The precondition.
        expect: Expect,
    },
    /// Creates a change request, or does something to one. To apply it is no action: that is a command of its own, with
    /// [`Source::Change`](source::Source::Change).
    Change {
        /// The change request.
        id: ChangeId,
        /// What is done.
        action: ChangeAction,
    },
    /// Closes change requests whose edition is too old or whose window is over, and drops what is kept no longer: the oldest
    /// closed ones, and what configs were before; proposed by the leader itself. An entry does a bounded number of them.
    SweepChanges {
        /// The time that all clocks of a majority have passed.
        now: Timestamp,
    },
    /// Holds all change requests that are open; in the log of a recovered cluster, after the entries of the one before.
    HoldChanges,
    /// Changes providers, roles, key sets or sessions. Since level 3.
    Identity(IdentityCommand),
}

/// A change of the rules of an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnvironmentChange<'a> {
    /// The environment.
    pub name: &'a EnvironmentName,
    /// Its rules after the change; `None` when it has none of its own.
    pub after: Option<&'a Environment>,
    /// The precondition.
    pub expect: Expect,
}

/// A change of the anchors of an audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuditCommand {
    /// The log has this line, durably; proposed by its node.
    Anchor {
        /// The log.
        log: AnchoredLog,
        /// The number of the line.
        seq: u64,
        /// The SHA-256 of the line.
        sha256: [u8; 32],
    },
    /// The log need not have the anchors that there are: an operator knows why it does not.
    Accept {
        /// The log.
        log: AnchoredLog,
    },
}

/// The undoing of a deletion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undeletion {
    /// The key of the definition, which no definition may have.
    pub key: Key,
    /// Which deletion. When none such is kept, the verdict is [`Verdict::Stale`].
    pub of: DeletedId,
    /// The configs that were changed between the wanted revision and the deletion, as they were before.
    pub back: Vec<ConfigThen>,
}

/// A config as it was at an earlier revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigThen {
    /// Its key.
    pub key: Key,
    /// What it was; `None` when it did not exist.
    pub then: Option<ContentThen>,
}

/// The content of a config at an earlier revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentThen {
    /// The JSON text of its data.
    #[serde(deserialize_with = "encoding::shared_text")]
    pub data: Arc<str>,
    /// Its index entries.
    pub entries: IndexEntries,
    /// When it was created.
    pub created_at: Timestamp,
}

/// A batch that was chosen by what the leader has read. If one of the configs has another revision when the entry is
/// applied, the verdict is [`Verdict::Stale`]: the leader reads and chooses again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    /// What was read, all of one state.
    pub reads: Vec<ConfigRead>,
    /// Whether the conditions held ([`Done::Transaction`]); or why the leader rejects the request, so that it is
    /// remembered with the request's idempotency key.
    pub chosen: Result<bool, Rejection>,
    /// The changes, each with its place among the operations of the request. There may be none.
    pub steps: Vec<(u32, BatchStep)>,
}

/// A config that was read, or found absent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigRead {
    /// Its definition, which need not exist.
    pub definition: Key,
    /// Its key.
    pub key: Key,
    /// Its revision; `None` when there was no such config.
    pub revision: Option<Revision>,
}

/// A change of the access keys, or of whether the root key is accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessCommand {
    /// A new key.
    Create {
        /// Its id, which no key has had before.
        id: KeyId,
        /// What it is from now on.
        terms: KeyTerms,
        /// The SHA-256 of its text.
        sha256: [u8; 32],
        /// The label of the person who holds it. The person is found by it, or made with it.
        person: Option<PersonLabel>,
    },
    /// Replaces everything of a key but its secrets.
    Change {
        /// The key.
        id: KeyId,
        /// What it is from now on.
        terms: KeyTerms,
        /// The precondition.
        expect: Expect,
    },
    /// Removes a key. From then on nothing is decided in its name.
    Revoke {
        /// The key.
        id: KeyId,
        /// The precondition.
        expect: Expect,
    },
    /// Gives a key another secret.
    Rotate {
        /// The key.
        id: KeyId,
        /// The SHA-256 of its new text.
        sha256: [u8; 32],
        /// Microseconds for which the previous secret remains valid.
        grace_us: u64,
        /// The precondition.
        expect: Expect,
    },
    /// Notes that these keys were used on the day of the entry; proposed by the nodes themselves.
    MarkUsed {
        /// The keys. Revoked keys are skipped.
        ids: Vec<KeyId>,
    },
    /// From now on nothing is decided in the name of the root key.
    DisableRoot,
    /// The root key is accepted again; proposed by a node whose operator has asked for it on its data directory.
    EnableRoot,
    /// Attests a key, or is the first of the two persons who do.
    Attest {
        /// The key.
        id: KeyId,
        /// The revision of the key that is attested.
        revision: Revision,
    },
}

impl AccessCommand {
    /// The feature level that a node must know to apply it: that of the verbs which it gives.
    fn feature_level(&self) -> u32 {
        match self {
            Self::Create { terms, .. } | Self::Change { terms, .. } => terms.grants.feature_level(),
            Self::Revoke { .. }
            | Self::Rotate { .. }
            | Self::MarkUsed { .. }
            | Self::DisableRoot
            | Self::EnableRoot
            | Self::Attest { .. } => LEVEL_MIN,
        }
    }
}

/// What a key may do, and until when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyTerms {
    /// [`AccessKey::name`](super::access_key::AccessKey::name).
    pub name: String,
    /// What it may do.
    pub grants: Grants,
    /// How much of it.
    pub quota: Quota,
    /// The time from which on it is not accepted.
    pub expires_at: Option<Timestamp>,
}

impl SystemCommand {
    /// The environment that it changes, if it does.
    #[must_use]
    pub fn environment(&self) -> Option<EnvironmentChange<'_>> {
        match self {
            Self::PutEnvironment { name, after, expect, .. } => {
                Some(EnvironmentChange { name, after: Some(after), expect: *expect })
            }
            Self::DeleteEnvironment { name, expect } => {
                Some(EnvironmentChange { name, after: None, expect: *expect })
            }
            Self::Change { .. } | Self::SweepChanges { .. } | Self::HoldChanges | Self::Identity(_) => None,
        }
    }

    /// The feature level that a node must know to apply it.
    fn feature_level(&self) -> u32 {
        match self {
            Self::Change { action, .. } => action.feature_level(),
            Self::PutEnvironment { .. }
            | Self::DeleteEnvironment { .. }
            | Self::SweepChanges { .. }
            | Self::HoldChanges => LEVEL_MIN,
            Self::Identity(_) => IDENTITY,
        }
    }

    /// Whether the cluster proposes it itself, in nobody's name.
    fn is_of_the_cluster(&self) -> bool {
        match self {
            Self::SweepChanges { .. } | Self::HoldChanges => true,
            Self::PutEnvironment { .. } | Self::DeleteEnvironment { .. } => false,
            Self::Change { action, .. } => action.is_of_the_cluster(),
            Self::Identity(command) => command.is_of_the_cluster(),
        }
    }
}

impl Command {
    /// The feature level that a node must know to apply the command: it is proposed only in a cluster of that level,
    /// but for the command that raises the level to it.
    #[must_use]
    pub fn feature_level(&self) -> u32 {
        match self {
            Self::RaiseFeatureLevel { to } => *to,
            Self::CreateDefinition { .. }
            | Self::SetIndexes { .. }
            | Self::DeleteDefinition { .. }
            | Self::WriteConfig { .. }
            | Self::DeleteConfig { .. }
            | Self::Compact { .. }
            | Self::SetSchema { .. }
            | Self::SetUnique { .. }
            | Self::BuildIndex { .. }
            | Self::Forget { .. }
            | Self::UndeleteDefinition { .. }
            | Self::SetProtection { .. }
            | Self::SkipRevisions { .. }
            | Self::Audit(_) => LEVEL_MIN,
            Self::Access(command) => command.feature_level(),
            Self::System(command) => command.feature_level(),
            Self::Batch(steps) => highest_level(steps.iter()),
            Self::Transaction(Transaction { steps, .. }) => highest_level(steps.iter().map(|(_, step)| step)),
        }
    }

    /// Whether the cluster may propose it itself, as a person may: a step of a rollout.
    #[must_use]
    pub fn is_rollout_step(&self) -> bool {
        let Self::System(SystemCommand::Change { action, .. }) = self else { return false };
        match action {
            ChangeAction::BeginRollout { .. }
            | ChangeAction::AdvanceRollout { .. }
            | ChangeAction::PauseRollout { .. } => true,
            ChangeAction::Create(_)
            | ChangeAction::Edit { .. }
            | ChangeAction::Vote(_)
            | ChangeAction::Withdraw { .. }
            | ChangeAction::Schedule { .. }
            | ChangeAction::Fail { .. }
            | ChangeAction::FailRevert { .. }
            | ChangeAction::Keep { .. }
            | ChangeAction::CreateStaged(_)
            | ChangeAction::EditStaged { .. }
            | ChangeAction::ResumeRollout { .. } => false,
        }
    }

    /// Whether the cluster proposes it itself, in nobody's name.
    #[must_use]
    pub fn is_of_the_cluster(&self) -> bool {
        match self {
            Self::Compact { .. }
            | Self::BuildIndex { .. }
            | Self::RaiseFeatureLevel { .. }
            | Self::Forget { .. }
            | Self::SkipRevisions { .. }
            | Self::Audit(AuditCommand::Anchor { .. })
            | Self::Access(AccessCommand::MarkUsed { .. } | AccessCommand::EnableRoot) => true,
            Self::CreateDefinition { .. }
            | Self::SetIndexes { .. }
            | Self::DeleteDefinition { .. }
            | Self::WriteConfig { .. }
            | Self::DeleteConfig { .. }
            | Self::SetSchema { .. }
            | Self::SetUnique { .. }
            | Self::Batch(_)
            | Self::Transaction(_)
            | Self::UndeleteDefinition { .. }
            | Self::SetProtection { .. }
            | Self::Audit(AuditCommand::Accept { .. })
            | Self::Access(_) => false,
            Self::System(command) => command.is_of_the_cluster(),
        }
    }
}

/// The revision that a step of a batch names when it read what an earlier step of the same batch wrote: the batch has
/// no revision yet. No state reaches this one.
pub const THIS_ENTRY: Revision = Revision::MAX;

/// One change of a batch, validated against the state that the steps before it produce.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchStep {
    /// As [`Proposal::definition_read`]; [`THIS_ENTRY`] for a definition that an earlier step wrote.
    pub definition_read: Option<Revision>,
    /// The change; never a batch, the undoing of a deletion or a change of a system record.
    #[serde(deserialize_with = "decode_step")]
    pub command: Command,
}

/// The feature level of the steps of a batch.
fn highest_level<'s>(steps: impl Iterator<Item = &'s BatchStep>) -> u32 {
    steps.map(|step| step.command.feature_level()).max().unwrap_or(LEVEL_MIN)
}

fn decode_step<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Command, D::Error> {
    decode_without(deserializer, &["Batch", "Transaction", "UndeleteDefinition", "System"])
}

/// Identifies a request that the caller may send again (`Idempotency-Key`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct IdempotencyKey {
    /// A digest of credential and key: the same key with another credential is another request.
    pub id: [u8; 16],
    /// A digest of method, path, preconditions and body: the same key with another request is rejected.
    pub fingerprint: [u8; 16],
}

/// The greatest level in the first byte of a proposal.
const LEVEL_BYTE_MAX: u8 = 0x7F;

/// What is decided as one: an entry of the log holds one, or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// The leader's clock.
    pub at: Timestamp,
    /// What history and audit call the author: the id of the access key, or the task of the cluster.
    pub by: String,
    /// The caller's reason (`X-Change-Reason`).
    pub reason: Option<String>,
    /// Set when the caller may send the request again (`Idempotency-Key`).
    pub request: Option<IdempotencyKey>,
    /// The revision of the definition that the command was validated against, or `None`. If the definition has another
    /// revision when the entry is applied, the verdict is [`Verdict::Stale`].
    pub definition_read: Option<Revision>,
    /// The change.
    pub command: Command,
    /// In whose name it is made.
    pub author: Author,
    /// Where it comes from and what else it rests on; `None` for a direct write without guards. It follows the encoding
    /// of everything else.
    #[serde(skip)]
    pub tail: Option<Box<Tail>>,
}

/// The result of an accepted write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// The revision of the record after the write, or of its deletion.
    pub revision: Revision,
    /// The time of the change.
    pub at: Timestamp,
    /// What was done.
    pub done: Done,
}

/// What an accepted command did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Done {
    /// One change.
    Single(StepOutcome),
    /// The changes of a batch, in their order.
    Batch(Box<[StepOutcome]>),
    /// A transaction.
    Transaction {
        /// Whether its conditions held; true of one that has none.
        conditions_held: bool,
        /// The changes that were made, in their order. Checks and reads are no changes.
        steps: Box<[StepOutcome]>,
    },
}

/// What a change did to its record. It takes one byte, because the outcome of a batch with an idempotency key is
/// remembered with one for each change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepOutcome {
    /// The record was not there before.
    Created,
    /// It was there and was changed.
    Changed,
    /// It was there and was deleted.
    Deleted,
    /// The command is not about one record.
    NoRecord,
    /// A definition was there and was deleted, and is retained, so that the deletion can be undone.
    Retained,
}

impl Applied {
    /// What each change did, in the order of the operations. Checks and reads are no changes.
    #[must_use]
    pub fn steps(&self) -> &[StepOutcome] {
        match &self.done {
            Done::Single(step) => std::slice::from_ref(step),
            Done::Batch(steps) | Done::Transaction { steps, .. } => steps,
        }
    }

    /// Whether it is a single change that created its record.
    #[must_use]
    pub fn has_created(&self) -> bool {
        self.done == Done::Single(StepOutcome::Created)
    }

    /// Whether the conditions of a transaction held; true of what has none.
    #[must_use]
    pub fn conditions_held(&self) -> bool {
        match &self.done {
            Done::Single(_) | Done::Batch(_) => true,
            Done::Transaction { conditions_held, .. } => *conditions_held,
        }
    }
}

/// The decision on a command: the same on every node, and remembered with its idempotency key.
pub type Outcome = Result<Applied, Rejection>;

/// What applying a proposal results in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// Decided, now or earlier for the same request.
    Decided(Outcome),
    /// Not decided: what the leader read has changed since. The leader prepares the write again; nothing is remembered.
    Stale,
}

/// Space for the members of a proposal other than its command.
const PROPOSAL_HEAD_BYTES: usize = 96;

impl Proposal {
    /// A proposal without a reason, that rests on no definition and belongs to no request that may be sent again.
    #[must_use]
    pub fn new(at: Timestamp, by: &str, author: Author, command: Command) -> Self {
        Self {
            at,
            by: by.into(),
            reason: None,
            request: None,
            definition_read: None,
            command,
            author,
            tail: None,
        }
    }

    /// The bytes that an entry of the log holds, which has this proposal alone. The first is the feature level that a node
    /// must know to apply it, so that a node which does not know it finds out without decoding the rest.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        // A greater byte is not the level of a proposal (`entry.rs`).
        let level =
            u8::try_from(self.feature_level()).map_or(LEVEL_BYTE_MAX, |level| level.min(LEVEL_BYTE_MAX));
        let room = PROPOSAL_HEAD_BYTES + self.command.rough_bytes();
        let bytes = encoding::append(encoding::begun_with(level, room), self);
        match &self.tail {
            Some(tail) => encoding::append(bytes, &**tail),
            None => bytes,
        }
    }

    /// The feature level that a node must know to apply it.
    #[must_use]
    pub fn feature_level(&self) -> u32 {
        let tail = self.tail.as_ref().map_or(LEVEL_MIN, |tail| tail.feature_level());
        self.command.feature_level().max(self.author.feature_level()).max(tail)
    }

    /// Decodes the bytes of [`Self::to_bytes`].
    ///
    /// # Errors
    /// When the bytes have a newer format or are damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (level, rest) = bytes.split_first().ok_or(DecodeError::Damaged)?;
        let level = u32::from(*level);
        if level > level_max() {
            return Err(DecodeError::Unknown(level));
        }
        let (proposal, rest) = postcard::take_from_bytes::<Self>(rest).map_err(|_| DecodeError::Damaged)?;
        let proposal = Self { tail: Tail::from_bytes(rest)?, ..proposal };
        if proposal.feature_level() == level { Ok(proposal) } else { Err(DecodeError::Damaged) }
    }
}

/// Why bytes are no proposal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Written by a newer version.
    #[error("written at feature level {0}, and this version knows {known}; start a newer version", known = level_max())]
    Unknown(u32),
    /// The bytes are not those that were written.
    #[error("damaged")]
    Damaged,
}

/// Space for the members of a command, and of a batch step, other than texts.
const STEP_HEAD_BYTES: usize = 24;
/// Space for the members of an index entry other than its value.
const ENTRY_HEAD_BYTES: usize = 6;

impl Command {
    /// The approximate number of bytes of its encoding if they are many, so that its buffer is allocated once. A wrong
    /// number costs another allocation.
    fn rough_bytes(&self) -> usize {
        if let Self::WriteConfig { definition, key, data, entries, .. } = self {
            let entries: usize = entries.iter().map(|entry| ENTRY_HEAD_BYTES + entry.value.len()).sum();
            return STEP_HEAD_BYTES + definition.as_str().len() + key.as_str().len() + data.len() + entries;
        }
        let of_step = |step: &BatchStep| STEP_HEAD_BYTES + step.command.rough_bytes();
        if let Self::Batch(steps) = self {
            return steps.iter().map(of_step).sum();
        }
        if let Self::Transaction(Transaction { steps, .. }) = self {
            return steps.iter().map(|(_, step)| of_step(step)).sum();
        }
        if let Self::System(SystemCommand::Change {
            action: ChangeAction::Create(edition) | ChangeAction::Edit { edition, .. },
            ..
        }) = self
        {
            return STEP_HEAD_BYTES + edition.operations.len() + edition.text.len();
        }
        if let Self::System(SystemCommand::Change {
            action: ChangeAction::CreateStaged(staged) | ChangeAction::EditStaged { edition: staged, .. },
            ..
        }) = self
        {
            return STEP_HEAD_BYTES + staged.edition.operations.len() + staged.edition.text.len();
        }
        if let Self::System(SystemCommand::Change {
            action: ChangeAction::BeginRollout { candidates, .. },
            ..
        }) = self
        {
            let of = |one: &Candidate| STEP_HEAD_BYTES + one.key.as_str().len() + one.data.len();
            return candidates.iter().map(of).sum();
        }
        0
    }
}

#[cfg(test)]
mod tests;
