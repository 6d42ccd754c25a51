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
    limits::{ACCESS_KEYS_MAX, ENVIRONMENTS_MAX, PERSONS_MAX},
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

impl Rejection {
    /// Whether the rules of an environment reject the change, or an operation of it. The log stores no such rejection under
    /// an idempotency key: the same request may succeed later.
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
