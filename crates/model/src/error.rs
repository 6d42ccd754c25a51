//! Rejections of the log, and violations of a request.
//!
//! A [`Rejection`] is a decision of the log: it is replicated and the same on every node. An [`Invalid`] request is
//! rejected before anything is proposed. **Invariant:** neither knows an HTTP status; only `crates/http/src/reply/mod.rs`
//! does.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

use super::{
    command::THIS_ENTRY,
    flat::decode_without,
    key::Key,
    limits::{
        ACCESS_KEYS_MAX, CHANGE_AUTHORS_MAX, CHANGE_CONTENT_BYTES_MAX, CHANGE_CONTENTS_BYTES_MAX,
        CHANGE_DEFINITIONS_MAX, CHANGE_EDITION_BYTES_MAX, CHANGE_RECORD_BYTES_MAX, CHANGE_VOTES_MAX,
        ENVIRONMENTS_MAX, GUARDS_MAX, OPEN_CHANGE_BYTES_OF_PARTY_MAX, OPEN_CHANGES_OF_ENVIRONMENT_MAX,
        OPEN_CHANGES_OF_PARTY_MAX, PERSONS_MAX, UNREVIEWED_BYPASSES_MAX,
    },
    record::Revision,
    time::Timestamp,
};

/// The decision to reject a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Rejection {
    /// A create of a key that exists.
    #[error("definition exists already")]
    DefinitionExists,
    /// No such definition.
    #[error("definition does not exist")]
    DefinitionNotFound,
    /// A delete with `restrict` of a definition that has configs.
    #[error("definition still has {0} configs")]
    DefinitionNotEmpty(u64),
    /// A create of a key that exists.
    #[error("config exists already")]
    ConfigExists,
    /// No such config.
    #[error("config does not exist")]
    ConfigNotFound,
    /// The record has another revision than `If-Match` names, or exists although `If-None-Match` excludes it.
    #[error("the current revision is {}, not the expected one", rendered(*current))]
    Precondition {
        /// The record's revision.
        current: Revision,
    },
    /// The idempotency key was used with another request.
    #[error("the idempotency key was used with another request")]
    RequestReused,
    /// Another config has the same value at a unique path.
    #[error("`{path}` is unique, and config `{by}` has the same value there")]
    NotUnique {
        /// The unique path.
        path: String,
        /// The config that holds the value.
        by: Key,
    },
    /// A step of a batch was rejected, so nothing of the batch was applied.
    #[error("operation {index}: {rejection}")]
    InBatch {
        /// The position of the step, from 0.
        index: u32,
        /// Why the step was rejected; never in a batch.
        #[serde(deserialize_with = "decode_of_step")]
        rejection: Box<Rejection>,
    },
    /// The access key in whose name the command is made was revoked, has expired, or has another secret by now.
    #[error("the access key is no longer valid")]
    KeyEnded,
    /// The root key is disabled.
    #[error("the root key is disabled")]
    RootDisabled,
    /// No such access key.
    #[error("access key does not exist")]
    KeyNotFound,
    /// An access key with this id exists.
    #[error("an access key with this id exists already")]
    KeyExists,
    /// As many access keys as a cluster has.
    #[error("the cluster has {ACCESS_KEYS_MAX} access keys, the limit: revoke an unused key")]
    TooManyKeys,
    /// Without the root key, nobody could manage access keys afterwards.
    #[error(
        "while the root key is disabled, an access key with the permission `keys` must remain that never expires"
    )]
    NoKeyForKeys,
    /// The definitions that the access key may change would hold more than its quota allows.
    #[error(
        "quota exceeded: the definitions that this access key may write can hold {limit} {quota}, and would hold {needed}"
    )]
    QuotaExceeded {
        /// What of.
        quota: StoredQuota,
        /// How much is allowed.
        limit: u64,
        /// How much it would be.
        needed: u64,
    },
    /// A check of a transaction does not hold.
    #[error("the check does not hold: {}", current.map_or_else(
        || "the config does not exist".to_owned(),
        |current| format!("the config is at revision {}", rendered(current))
    ))]
    CheckFailed {
        /// The config's revision; `None` when it does not exist.
        current: Option<Revision>,
    },
    /// A `test` of a JSON Patch found another value than it names, or none.
    #[error("operation {operation}: `path` does not have the value of `test`")]
    TestFailed {
        /// The place of the `test` in its patch, from 0.
        operation: u64,
    },
    /// There is nothing that a rollback of a transaction could write.
    #[error("there is no earlier state to roll back to")]
    NothingToRestore(NothingToRestore),
    /// A delete of a definition that is protected.
    #[error(
        "the definition is protected from deletion (`protected` is true): to delete it, set `protected` to false first \
         (`concord definition protect {0} --off`)"
    )]
    DefinitionProtected(Key),
    /// A proposal in the cluster's name of something that only a client may request: the leader is wrong.
    #[error("the cluster does not propose this of its own")]
    Unauthored,
    /// A change of an environment whose definitions and configs may not be changed directly.
    #[error("definitions and configs of the environment `{environment}` are changed by change request")]
    ChangeRequired {
        /// The environment whose rules apply.
        environment: Key,
    },
    /// A change during a freeze.
    #[error("the environment `{environment}` is frozen until {until}")]
    EnvironmentFrozen {
        /// The environment whose rules apply.
        environment: Key,
        /// The end of the freeze.
        until: Timestamp,
    },
    /// No such environment.
    #[error("environment does not exist")]
    EnvironmentNotFound,
    /// As many environments as a cluster has.
    #[error("the cluster has {ENVIRONMENTS_MAX} environments, the limit: delete an unused one")]
    TooManyEnvironments,
    /// The attestation of a key that nobody can attest as it is.
    #[error("{0}")]
    NotAttestable(NotAttestable),
    /// Only an attested key may do this.
    #[error("only a key that is attested may do this")]
    KeyNotAttested,
    /// The attestation of a key by its own person.
    #[error("nobody attests a key of their own")]
    OwnKey,
    /// As many persons as a cluster has.
    #[error("the keys of the cluster name {PERSONS_MAX} persons, the limit: revoke unused keys")]
    TooManyPersons,
    /// No such change request, or none that this may be done to.
    #[error("change request does not exist")]
    ChangeNotFound,
    /// A change request with this id exists; the same request created it.
    #[error("a change request with this id exists already")]
    ChangeExists,
    /// The change request was applied, or has ended otherwise.
    #[error("the change request is closed: create another one")]
    ChangeClosed,
    /// A restore or a recovery has voided the approvals of the change request.
    #[error(
        "the change request is held since a restore or a recovery: rebase it, and let it be approved again"
    )]
    ChangeHeld,
    /// The edition or the digest is no longer the one of the change request, or the command is another one.
    #[error("the change request has another edition or digest by now: look at it again")]
    ChangeDigest,
    /// Too few approvals count.
    #[error("the change request needs the approvals of {needed} persons, and has {counted} that count")]
    NotApproved {
        /// How many persons must approve.
        needed: u8,
        /// How many have, and count.
        counted: u8,
    },
    /// A person has rejected the edition.
    #[error("the current edition is rejected: send another one")]
    EditionRejected,
    /// An author of a change request votes on it, or the writer of a bypass reviews it.
    #[error("nobody approves, rejects or reviews a change of their own")]
    OwnChange,
    /// As many open change requests, or bypasses without review, as one may have.
    #[error("{0}")]
    TooManyChanges(ChangeQuota),
    /// The contents of all open change requests take as much as the cluster has for them.
    #[error(
        "the open change requests of the cluster have {} MiB of content, the limit: apply or withdraw some",
        CHANGE_CONTENTS_BYTES_MAX >> 20
    )]
    ChangesFull,
    /// A change request that is larger than one may be.
    #[error("{0}")]
    ChangeTooLarge(ChangeBound),
}

/// Why nobody can attest a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NotAttestable {
    /// It has no person.
    #[error("the key has no person, so nobody can attest who holds it: create another key with `person`")]
    NoPerson,
    /// Another key made one of its secrets.
    #[error(
        "another key made a secret of this key that is still valid: its person must rotate the key with itself, and the \
         grace of the secret before must be over"
    )]
    SecretOfOthers,
}

/// What a person, or a key without one, has too many of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ChangeQuota {
    /// Open change requests of theirs.
    #[error(
        "one person has at most {OPEN_CHANGES_OF_PARTY_MAX} open change requests: apply or withdraw some"
    )]
    OfParty,
    /// Bytes of their contents.
    #[error(
        "the open change requests of one person have at most {} MiB of content: apply or withdraw some",
        OPEN_CHANGE_BYTES_OF_PARTY_MAX >> 20
    )]
    BytesOfParty,
    /// Open change requests that touch the environment.
    #[error(
        "an environment has at most {OPEN_CHANGES_OF_ENVIRONMENT_MAX} open change requests: apply or withdraw some"
    )]
    OfEnvironment,
    /// Bypasses that nobody has reviewed.
    #[error(
        "one person has at most {UNREVIEWED_BYPASSES_MAX} bypasses without review: let others review them"
    )]
    Unreviewed,
}

/// What a change request has too much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ChangeBound {
    /// Definitions that it touches.
    #[error("a change request touches at most {CHANGE_DEFINITIONS_MAX} definitions")]
    Definitions,
    /// Bytes of its content.
    #[error("a change request has at most {} MiB of content", CHANGE_CONTENT_BYTES_MAX >> 20)]
    Content,
    /// Records that it replaces.
    #[error("a change request replaces at most {GUARDS_MAX} records")]
    Bases,
    /// Senders of its editions.
    #[error("a change request has at most {CHANGE_AUTHORS_MAX} authors: create another one")]
    Authors,
    /// Votes on its edition.
    #[error("a change request has at most {CHANGE_VOTES_MAX} votes")]
    Votes,
    /// Bytes of its record.
    #[error(
        "a change request has at most {} KiB of texts and keys of definitions, and {} KiB with its votes: shorten the texts",
        CHANGE_EDITION_BYTES_MAX >> 10,
        CHANGE_RECORD_BYTES_MAX >> 10
    )]
    Record,
}

impl Rejection {
    /// Whether the rules of an environment, or the state of the change request that is applied, reject the change or an
    /// operation of it. The log stores no such rejection under an idempotency key: the same request may succeed later.
    #[must_use]
    pub fn is_by_environment(&self) -> bool {
        if let Self::InBatch { rejection, .. } = self {
            return rejection.is_by_environment();
        }
        matches!(self, Self::ChangeRequired { .. } | Self::EnvironmentFrozen { .. })
    }
}

/// Why a rollback has nothing to write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NothingToRestore {
    /// The revision is older than the retained history.
    Expired(String),
    /// The config did not exist at the revision.
    NotThere(String),
    /// There is no such revision.
    Invalid(Vec<Violation>),
    /// The definition did not exist at the revision, or can't be read there.
    DefinitionNotThere(String),
}

/// A quota of what is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoredQuota {
    /// Bytes of the keys and data of configs.
    Bytes,
    /// Definitions and configs.
    Records,
}

impl fmt::Display for StoredQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bytes => "bytes",
            Self::Records => "records",
        })
    }
}

fn decode_of_step<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<Rejection>, D::Error> {
    decode_without(deserializer, &["InBatch"])
}

fn rendered(revision: Revision) -> String {
    if revision == THIS_ENTRY { "the batch's own".into() } else { revision.to_string() }
}

/// One rule that a request breaks, with its location.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// What is wrong, for a human reader.
    pub msg: String,
    /// The path to the location, outermost segment first; empty when there is none.
    pub loc: Vec<LocSegment>,
}

/// One segment of a location: a member's name or an element's index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LocSegment {
    /// A member of an object.
    Name(String),
    /// An element of an array.
    Index(u64),
}

/// Why a request is rejected before it is proposed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Invalid {
    /// Parameters, keys, indexes, schema or data break rules. All violations that were found; at least one.
    Violations(Vec<Violation>),
    /// Data or schema exceed the limit that the text names.
    TooLarge(String),
    /// The same, with its location.
    TooLargeAt(Violation),
}

impl Violation {
    /// A violation without a location.
    #[must_use]
    pub fn new(msg: impl Into<String>) -> Self {
        Self { msg: msg.into(), loc: Vec::new() }
    }

    /// A violation at a location.
    #[must_use]
    pub fn at(loc: Vec<LocSegment>, msg: impl Into<String>) -> Self {
        Self { msg: msg.into(), loc }
    }
}

impl From<Violation> for Invalid {
    fn from(violation: Violation) -> Self {
        Self::Violations(vec![violation])
    }
}

impl From<&str> for LocSegment {
    fn from(name: &str) -> Self {
        Self::Name(name.into())
    }
}
