//! Writes as clients request them and as nodes forward them, and the classification that all units ask for.
//!
//! A [`Write`] classifies itself once ([`Write::effect`], [`Write::target`], [`Write::document`]). The validators,
//! locks, the write barrier and forwarding ask these. So a new kind of write is entered here, and in the few places
//! that need its content.
//!
//! The operations of a batch or a transaction are one list ([`Write::operations`]): permissions, limits and locks look
//! at all of them and need not know the lists of a transaction.
//!
//! **Invariant:** no secret of an access key is here. The receiving node makes the secret and passes on its SHA-256.

use std::{
    collections::BTreeSet,
    fmt,
    ops::Range,
    sync::{Arc, OnceLock},
};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, SeqAccess, Visitor},
};
use serde_json::Value;

use super::{change::ChangeWrite, environment::EnvironmentWrite, identity::IdentityWrite};
use concord_model::{
    access_key::{Grants, KeyId, Quota},
    audit::AnchoredLog,
    command::{ConfigThen, Expect, KeyTerms},
    document::{Document, DocumentError},
    error::{Rejection, Violation},
    feature::{IDENTITY, LEVEL_MIN},
    flat::decode_without,
    limits::BATCH_STEPS_MAX,
    patch::Patch,
    record::{DeletedId, Revision},
    schema::{Formats, Schema},
    system::person::PersonLabel,
    time::Timestamp,
};

/// The depth to which stored data is parsed: the limit may have been higher when the data was accepted.
pub(crate) const STORED_JSON_DEPTH_MAX: usize = 127;

/// A write as a client requests it. Keys are raw texts: they are validated in the contract's order
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
        /// Whether `format` is asserted; `None` for the default.
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
        /// Reject the deletion while it has configs.
        restrict: bool,
        /// The deletion can't be undone.
        purge: bool,
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
    /// All of these in their order, or none of them. A batch contains no batches.
    Batch(#[serde(deserialize_with = "decode_operations")] Vec<Write>),
    /// Changes the access keys.
    Access(AccessWrite),
    /// One of two lists of operations, chosen by conditions.
    Transaction(Transaction),
    /// Rejects the batch that it is part of unless its condition holds.
    Check(Check),
    /// Reads a config as it was before the batch that it is part of.
    Read {
        /// The definition.
        definition: String,
        /// The config.
        key: String,
    },
    /// Undoes the deletion of a definition. It is no operation of a batch.
    UndeleteDefinition(Undelete),
    /// Protects a definition from deletion, or no longer.
    SetProtection(NewProtection),
    /// Changes the anchors of an audit log.
    Audit(AuditWrite),
    /// Creates, replaces or deletes an environment. It is no operation of a batch.
    Environment(EnvironmentWrite),
    /// Creates, edits, judges, applies or closes a change request. It is no operation of a batch.
    Change(Box<ChangeWrite>),
    /// Changes identity providers and roles, or opens and ends sessions. It is no operation of a batch.
    Identity(Box<IdentityWrite>),
}

/// A new protection of a definition.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewProtection {
    /// The definition.
    pub key: String,
    /// Whether its deletion is rejected from now on.
    pub protected: bool,
    /// What must be there.
    pub expect: Expect,
}

/// The undoing of a deletion.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Undelete {
    /// The definition.
    pub key: String,
    /// As which it returns; `None` as it was when it was deleted last.
    pub then: Option<UndeleteThen>,
}

/// A definition at a revision before its deletion, as the receiving node has found it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndeleteThen {
    /// Which deletion.
    pub of: DeletedId,
    /// The configs that were changed between that revision and the deletion, as they were before.
    pub back: Vec<ConfigThen>,
}

/// A new schema for a definition.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewSchema {
    /// The definition.
    pub key: String,
    /// Its schema from now on; `None` accepts any object.
    pub schema: Option<Document>,
    /// Whether `format` is asserted; `None` keeps the meaning that `format` has in the current schema.
    pub format_assertion: Option<bool>,
    /// The precondition.
    pub expect: Expect,
    /// Store it even if configs violate it.
    pub force: bool,
    /// The compiled schema; not sent.
    #[serde(skip)]
    pub compiled: LazySchema,
}

/// A schema that is compiled once, on first use. Its write may be prepared many times while other writes change the
/// definition. If each preparation compiled it again, a write that takes longer than the others would never succeed.
#[derive(Debug, Clone, Default)]
pub struct LazySchema(pub(crate) Arc<OnceLock<CompiledWith>>);

/// A compiled schema, and the meaning of `format` with which it was compiled.
type CompiledWith = (Formats, Result<Arc<Schema>, Vec<Violation>>);

impl LazySchema {
    /// The schema, compiled with this meaning of `format`.
    pub(crate) fn get(&self, value: &Value, formats: Formats) -> Result<Arc<Schema>, Vec<Violation>> {
        let compile = || Schema::compile(value, formats).map(Arc::new);
        let (with, compiled) = self.0.get_or_init(|| (formats, compile()));
        // The meaning changes when another write has changed the definition: rarely.
        if *with == formats { compiled.clone() } else { compile() }
    }
}

/// New unique paths for a definition.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewUnique {
    /// The definition.
    pub key: String,
    /// All unique paths from now on.
    pub paths: Vec<String>,
    /// The precondition.
    pub expect: Expect,
}

/// Writes the data that a config had at an earlier revision, validated against the current definition. The config may
/// have been deleted since.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Rollback {
    /// The definition.
    pub definition: String,
    /// The config.
    pub key: String,
    /// The data.
    pub restored: Restored,
    /// The precondition.
    pub expect: Expect,
}

/// The data that a rollback writes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Restored {
    /// The data that the config had at this revision. The receiving node looks it up before it decides or forwards the
    /// write. It does not for a retry of a request that was decided: the stored response needs no data.
    At(Revision),
    /// The data, looked up.
    Found {
        /// The definition's id: another definition with the same key never had the data.
        id: Revision,
        /// The data.
        data: Document,
    },
    /// Why there is none. It rejects the transaction if the rollback is in the list that is carried out.
    Refused(Rejection),
}

/// Conditions and two lists of operations, of which one is carried out.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub struct Transaction {
    /// The conditions, then the operations to carry out if all of them hold, then those to carry out if one does not.
    #[serde(deserialize_with = "decode_operations")]
    pub operations: Vec<Write>,
    /// The number of conditions; each is a [`Write::Check`].
    pub conditions: usize,
    /// The number of operations to carry out if all conditions hold.
    pub then: usize,
}

/// A condition on a config.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Check {
    /// The definition. If there is no such definition, there is no config either.
    pub definition: String,
    /// The config.
    pub key: String,
    /// The condition.
    pub condition: CheckCondition,
}

/// The condition of a [`Check`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum CheckCondition {
    /// Whether it exists.
    Exists(bool),
    /// It exists at this revision.
    Revision(Revision),
    /// It exists, and its data has this value at a place; `None` if the place must be absent.
    Value {
        /// The place, a JSON pointer.
        pointer: String,
        /// The value.
        equals: Option<Document>,
    },
}

/// A change of the access keys. Sent between nodes: new variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessWrite {
    /// Creates a key.
    Create {
        /// Its id, which the receiving node has drawn.
        id: KeyId,
        /// Its permissions, its quota and its expiry.
        terms: KeyTerms,
        /// The SHA-256 of its secret.
        sha256: [u8; 32],
        /// The label of the person who holds it.
        person: Option<PersonLabel>,
    },
    /// Changes the terms of a key.
    Change {
        /// The key.
        id: KeyId,
        /// The new terms.
        patch: KeyPatch,
        /// The precondition.
        expect: Expect,
    },
    /// Revokes a key.
    Revoke {
        /// The key.
        id: KeyId,
        /// The precondition.
        expect: Expect,
    },
    /// Rotates the secret of a key.
    Rotate {
        /// The key.
        id: KeyId,
        /// The SHA-256 of its new secret.
        sha256: [u8; 32],
        /// Microseconds for which the previous secret remains valid.
        grace_us: u64,
        /// The precondition.
        expect: Expect,
    },
    /// Records that these keys were used today; requested by nodes.
    MarkUsed(Vec<KeyId>),
    /// Disables the root key.
    DisableRoot,
    /// Enables the root key; requested by a node whose operator has asked for it in the data directory.
    EnableRoot,
    /// Attests a key.
    Attest {
        /// The key.
        id: KeyId,
        /// The revision of the key that is attested.
        revision: Revision,
    },
}

/// A change of the anchors of an audit log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuditWrite {
    /// Anchors a line; requested by the node whose log it is.
    Anchor {
        /// The log.
        log: AnchoredLog,
        /// The number of the line.
        seq: u64,
        /// The SHA-256 of the line.
        sha256: [u8; 32],
    },
    /// Accepts that the log does not have the anchors that there are.
    Accept {
        /// The log.
        log: AnchoredLog,
    },
}

/// A change of the terms of a key; `None` leaves a term as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyPatch {
    /// Its name.
    pub name: Option<String>,
    /// Its permissions.
    pub grants: Option<Grants>,
    /// Its quota.
    pub quota: Option<Quota>,
    /// The time at which it expires; `Some(None)` for never.
    pub expires_at: Option<Option<Timestamp>>,
}

impl AccessWrite {
    fn effect(&self) -> Effect {
        match self {
            // They must be possible while the disk is full.
            Self::Revoke { .. } | Self::DisableRoot => Effect::Remove,
            Self::Create { .. }
            | Self::Change { .. }
            | Self::Rotate { .. }
            | Self::MarkUsed(_)
            | Self::Attest { .. }
            | Self::EnableRoot => Effect::Access,
        }
    }

    /// Whether only a node may request it.
    pub(crate) fn is_of_the_cluster(&self) -> bool {
        match self {
            Self::MarkUsed(_) | Self::EnableRoot => true,
            Self::Create { .. }
            | Self::Change { .. }
            | Self::Revoke { .. }
            | Self::Rotate { .. }
            | Self::Attest { .. }
            | Self::DisableRoot => false,
        }
    }
}

/// Decodes an operation of a batch or a transaction; never one of these itself.
#[derive(Deserialize)]
struct DecodedOperation(#[serde(deserialize_with = "decode_operation")] Write);

fn decode_operation<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Write, D::Error> {
    decode_without(
        deserializer,
        &["Batch", "Transaction", "UndeleteDefinition", "Environment", "Change", "Identity"],
    )
}

pub(super) fn decode_operations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Write>, D::Error> {
    deserializer.deserialize_seq(OperationsVisitor)
}

/// Decodes at most [`BATCH_STEPS_MAX`] operations: each takes many times its bytes in memory, and the log numbers the
/// steps of an entry.
struct OperationsVisitor;

impl<'de> Visitor<'de> for OperationsVisitor {
    type Value = Vec<Write>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {BATCH_STEPS_MAX} operations")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vec<Write>, A::Error> {
        let mut operations = Vec::new();
        while let Some(DecodedOperation(write)) = sequence.next_element()? {
            if operations.len() == BATCH_STEPS_MAX {
                return Err(de::Error::custom("more operations than a batch may have"));
            }
            operations.push(write);
        }
        Ok(operations)
    }
}

/// What a write does to its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Changes a definition in a way that every config satisfies.
    Define,
    /// Changes what every config of a definition must satisfy.
    Constrain,
    /// Stores data that the client sends.
    Store,
    /// Stores data that was stored before: the limits for new data do not apply to it.
    Restore,
    /// Stores data that the leader computes from the record.
    Compute,
    /// Removes the target.
    Remove,
    /// Changes nothing.
    Read,
    /// Does what its operations do.
    Batch,
    /// Changes the access keys, the root key, the anchors of an audit log, an environment, a change request, or who logs
    /// in.
    Access,
}

/// The record that a write changes or reads.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target<'a> {
    Definition(&'a str),
    Config {
        definition: &'a str,
        key: &'a str,
    },
    /// The targets of its operations.
    Batch,
    /// The access keys.
    Keys,
    /// The anchors of the audit logs.
    Anchors,
    /// An environment.
    Environment(&'a str),
    /// A change request.
    Change(&'a str),
    /// Identity providers, roles and sessions.
    Identity,
}

impl Write {
    /// What it does to its target.
    pub(crate) fn effect(&self) -> Effect {
        match self {
            Self::CreateDefinition { .. } | Self::SetIndexes { .. } | Self::SetProtection(_) => {
                Effect::Define
            }
            Self::SetSchema(_) | Self::SetUnique(_) => Effect::Constrain,
            Self::WriteConfig { .. } => Effect::Store,
            Self::Rollback(_) | Self::UndeleteDefinition(_) => Effect::Restore,
            Self::PatchConfig { .. } => Effect::Compute,
            Self::DeleteDefinition { .. } | Self::DeleteConfig { .. } => Effect::Remove,
            Self::Check(_) | Self::Read { .. } => Effect::Read,
            Self::Batch(_) | Self::Transaction(_) => Effect::Batch,
            Self::Access(write) => write.effect(),
            Self::Audit(_) | Self::Change(_) => Effect::Access,
            Self::Environment(write) => write.effect(),
            Self::Identity(write) => write.effect(),
        }
    }

    /// The record that it changes or reads.
    pub(crate) fn target(&self) -> Target<'_> {
        match self {
            Self::CreateDefinition { key, .. }
            | Self::SetIndexes { key, .. }
            | Self::DeleteDefinition { key, .. }
            | Self::SetSchema(NewSchema { key, .. })
            | Self::SetUnique(NewUnique { key, .. })
            | Self::SetProtection(NewProtection { key, .. })
            | Self::UndeleteDefinition(Undelete { key, .. }) => Target::Definition(key),
            Self::WriteConfig { definition, key, .. }
            | Self::DeleteConfig { definition, key, .. }
            | Self::PatchConfig { definition, key, .. }
            | Self::Check(Check { definition, key, .. })
            | Self::Read { definition, key }
            | Self::Rollback(Rollback { definition, key, .. }) => Target::Config { definition, key },
            Self::Batch(_) | Self::Transaction(_) => Target::Batch,
            Self::Access(_) => Target::Keys,
            Self::Audit(_) => Target::Anchors,
            Self::Environment(write) => Target::Environment(write.name()),
            Self::Change(write) => Target::Change(write.id()),
            Self::Identity(_) => Target::Identity,
        }
    }

    /// Its document: data, a patch, a schema or the value that a check expects.
    pub(crate) fn document(&self) -> Option<&Document> {
        match self {
            Self::CreateDefinition { schema, .. } | Self::SetSchema(NewSchema { schema, .. }) => {
                schema.as_ref()
            }
            Self::WriteConfig { data, .. }
            | Self::Rollback(Rollback { restored: Restored::Found { data, .. }, .. }) => Some(data),
            Self::PatchConfig { patch, .. } => Some(&patch.document),
            Self::Check(Check { condition: CheckCondition::Value { equals, .. }, .. }) => equals.as_ref(),
            Self::Identity(write) => write.document(),
            Self::SetIndexes { .. }
            | Self::DeleteDefinition { .. }
            | Self::DeleteConfig { .. }
            | Self::SetUnique(_)
            | Self::SetProtection(_)
            | Self::Rollback(_)
            | Self::UndeleteDefinition(_)
            | Self::Access(_)
            | Self::Audit(_)
            | Self::Environment(_)
            | Self::Change(_)
            | Self::Check(_)
            | Self::Read { .. }
            | Self::Transaction(_)
            | Self::Batch(_) => None,
        }
    }

    /// [`Self::document`], mutable.
    fn document_mut(&mut self) -> Option<&mut Document> {
        match self {
            Self::CreateDefinition { schema, .. } | Self::SetSchema(NewSchema { schema, .. }) => {
                schema.as_mut()
            }
            Self::WriteConfig { data, .. }
            | Self::Rollback(Rollback { restored: Restored::Found { data, .. }, .. }) => Some(data),
            Self::PatchConfig { patch, .. } => Some(&mut patch.document),
            Self::Check(Check { condition: CheckCondition::Value { equals, .. }, .. }) => equals.as_mut(),
            Self::Identity(write) => write.document_mut(),
            Self::SetIndexes { .. }
            | Self::DeleteDefinition { .. }
            | Self::DeleteConfig { .. }
            | Self::SetUnique(_)
            | Self::SetProtection(_)
            | Self::Rollback(_)
            | Self::UndeleteDefinition(_)
            | Self::Access(_)
            | Self::Audit(_)
            | Self::Environment(_)
            | Self::Change(_)
            | Self::Check(_)
            | Self::Read { .. }
            | Self::Transaction(_)
            | Self::Batch(_) => None,
        }
    }

    /// Parses the documents of a write that another node has sent, so that it can be decided.
    ///
    /// # Errors
    /// When a document is not JSON within the limits.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "only a batch, a transaction and a change request hold other writes"
    )]
    pub(crate) fn parse_received(&mut self, json_depth: usize) -> Result<(), DocumentError> {
        if let Self::Transaction(Transaction { operations, conditions, then }) = self {
            // No node of this version sends lists that are longer than the operations. They are cut, so that their
            // bounds hold whatever was sent.
            *conditions = (*conditions).min(operations.len());
            *then = (*then).min(operations.len() - *conditions);
        }
        let operations = match self {
            Self::Batch(operations) | Self::Transaction(Transaction { operations, .. }) => operations,
            Self::Change(write) => write.records_mut(),
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
    pub(crate) fn document_bytes(&self) -> usize {
        self.document().map_or(0, |document| document.text.len())
    }

    /// The key of its definition; empty for a batch, which may have several, and for what is no definition and no config.
    pub(crate) fn definition(&self) -> &str {
        match self.target() {
            Target::Definition(definition) | Target::Config { definition, .. } => definition,
            Target::Batch
            | Target::Keys
            | Target::Anchors
            | Target::Environment(_)
            | Target::Change(_)
            | Target::Identity => "",
        }
    }

    /// The keys of its definitions, each once, in their order.
    pub(crate) fn definitions(&self) -> BTreeSet<&str> {
        self.operations().iter().map(Self::definition).collect()
    }

    /// The operations of a batch, or of both lists of a transaction; for a single write, the write itself.
    #[must_use]
    pub fn operations(&self) -> &[Self] {
        if let Self::Batch(operations) | Self::Transaction(Transaction { operations, .. }) = self {
            operations
        } else {
            std::slice::from_ref(self)
        }
    }

    /// Whether the leader computes a part of it from records, or chooses its operations by them.
    pub(crate) fn is_computed(&self) -> bool {
        let rests_on_records =
            |operation: &Self| matches!(operation.effect(), Effect::Compute | Effect::Read);
        self.operations().iter().any(rests_on_records)
    }

    /// Whether it changes what every config of a definition must satisfy.
    pub(crate) fn constrains(&self) -> bool {
        self.operations().iter().any(|operation| operation.effect() == Effect::Constrain)
    }

    /// Whether it needs no space on the disk beyond its log entry.
    pub(crate) fn is_removal(&self) -> bool {
        let needs_none = |operation: &Self| matches!(operation.effect(), Effect::Remove | Effect::Read);
        self.operations().iter().all(needs_none)
    }

    /// The places of the operations that are carried out if the conditions hold, or if they do not.
    #[must_use]
    pub fn chosen(&self, conditions_held: bool) -> Range<usize> {
        let all = self.operations().len();
        let Self::Transaction(transaction) = self else { return 0..all };
        let (begin, middle) = (transaction.conditions, transaction.conditions + transaction.then);
        if conditions_held { begin..middle } else { middle..all }
    }

    /// Whether it rests on configs that are read: a transaction, or a batch with a check or a read.
    pub(crate) fn rests_on_reads(&self) -> bool {
        let is_read = |operation: &Self| operation.effect() == Effect::Read;
        matches!(self, Self::Transaction(_)) || self.operations().iter().any(is_read)
    }

    /// Its change of the access keys.
    pub(crate) fn access(&self) -> Option<&AccessWrite> {
        if let Self::Access(write) = self { Some(write) } else { None }
    }

    /// The feature level that the cluster must have. The receiving node asks for it: a leader of an earlier version would
    /// not know what it is.
    pub(crate) fn feature_level(&self) -> u32 {
        if self.identity().is_some() {
            return IDENTITY;
        }
        match self.access() {
            Some(AccessWrite::Create { terms, .. }) => terms.grants.feature_level(),
            Some(AccessWrite::Change { patch, .. }) => {
                patch.grants.as_ref().map_or(LEVEL_MIN, Grants::feature_level)
            }
            Some(_) | None => LEVEL_MIN,
        }
    }

    /// Its change of the anchors of an audit log.
    pub(crate) fn audit(&self) -> Option<&AuditWrite> {
        if let Self::Audit(write) = self { Some(write) } else { None }
    }

    /// What it does with a change request.
    pub(crate) fn change(&self) -> Option<&ChangeWrite> {
        if let Self::Change(write) = self { Some(write) } else { None }
    }

    /// Whether it may take as long as a batch does.
    pub(crate) fn is_long(&self) -> bool {
        self.effect() == Effect::Batch || self.change().is_some_and(ChangeWrite::is_large)
    }

    /// Its change of providers, roles and sessions.
    pub(crate) fn identity(&self) -> Option<&IdentityWrite> {
        if let Self::Identity(write) = self { Some(write) } else { None }
    }

    /// Its change of an environment.
    pub(crate) fn environment(&self) -> Option<&EnvironmentWrite> {
        if let Self::Environment(write) = self { Some(write) } else { None }
    }

    /// Whether only a node may request it.
    pub(crate) fn is_of_the_cluster(&self) -> bool {
        self.access().is_some_and(AccessWrite::is_of_the_cluster)
            || self.identity().is_some_and(IdentityWrite::is_of_the_cluster)
            || matches!(self, Self::Audit(AuditWrite::Anchor { .. }))
    }
}
