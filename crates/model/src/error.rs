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
        EDITION_AGE_US_MAX, ENVIRONMENTS_MAX, GUARDS_MAX, MACHINE_SESSIONS_MAX,
        OPEN_CHANGE_BYTES_OF_PARTY_MAX, OPEN_CHANGES_OF_ENVIRONMENT_MAX, OPEN_CHANGES_OF_PARTY_MAX,
        PERSONS_MAX, PROVIDERS_MAX, REVERT_AFTER_S_MAX, REVERT_BYTES_MAX, ROLES_MAX,
        ROLLOUT_CANDIDATE_BYTES_MAX, ROLLOUT_CONFIGS_MAX, ROLLOUT_GATES_MAX, ROLLOUT_LABELS_BYTES_MAX,
        ROLLOUT_LABELS_MAX, ROLLOUT_READERS_MAX, ROLLOUT_STAGES_MAX, ROLLOUT_TIME_S_MAX, ROLLOUTS_MAX,
        UNREVIEWED_BYPASSES_MAX,
    },
    record::Revision,
    system::change::ChangeId,
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
    #[error("the environment `{environment}`, its definitions and its configs are changed by change request")]
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
    #[error("{counted} of the {needed} approvals that the change request needs are given and count")]
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
        "the open change requests of the cluster may have {} MiB of content, and one person half of what the others \
         leave of it: apply or withdraw some",
        CHANGE_CONTENTS_BYTES_MAX >> 20
    )]
    ChangesFull,
    /// A change request that is larger than one may be.
    #[error("{0}")]
    ChangeTooLarge(ChangeBound),
    /// A change request that is applied, taken back or scheduled at a time that is not its own.
    #[error("{0}")]
    ChangeNotDue(NotDue),
    /// A change request that could not be taken back.
    #[error("{0}")]
    NotRevertible(NotRevertible),
    /// A change request is taken back by somebody whose approval did not count.
    #[error(
        "only a person whose approval counted takes a change back: create a change request, or bypass the rules"
    )]
    NotApprover,
    /// The cluster applies a change request whose sender has no key any more.
    #[error("the access key of the sender does not exist any more")]
    SenderEnded,
    /// A new environment that would leave a freeze of `default` that has not begun.
    #[error(
        "`{environment}` has a freeze that ends at {until} and has not begun: a new environment has its freezes, with the \
         same `from` and `until`"
    )]
    FreezeLeft {
        /// The environment that has the freeze.
        environment: Key,
        /// The end of the freeze.
        until: Timestamp,
    },
    /// A write of a config that is in a rollout, or of its definition; or an edit of the change request that rolls.
    #[error("change request {change} is being rolled out: wait for its end, or abort it first")]
    RolloutActive {
        /// The change request.
        change: ChangeId,
    },
    /// A rollout that can't be carried out.
    #[error("{0}")]
    RolloutInvalid(RolloutBound),
    /// As many rollouts as run at once.
    #[error(
        "limit reached: {ROLLOUTS_MAX} rollouts run, or half of what is left is this sender's; wait until one ends"
    )]
    TooManyRollouts,
    /// The change request is not being rolled out, or is at another stage.
    #[error("no rollout runs, or it is at another stage: read the change request again")]
    RolloutStage,
    /// The stage may not end yet.
    #[error("{0}")]
    RolloutWaits(RolloutWait),
    /// The session in whose name the command is made has ended.
    #[error("the session has ended: log in again")]
    SessionEnded,
    /// A session that is not opened, or a provider, role or session that is not there.
    #[error("{0}")]
    Identity(IdentityRejection),
}

/// Why a session is not opened, or a provider, role or session not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum IdentityRejection {
    /// No such session.
    #[error("session does not exist")]
    SessionNotFound,
    /// A session, or an access key, with this id exists.
    #[error("a session with this id exists already")]
    SessionExists,
    /// The token has expired since it was evaluated, or was issued before all sessions of its provider were ended.
    #[error(
        "the token has expired, or was issued before all sessions of its provider were ended: get another one"
    )]
    TokenEnded,
    /// As many sessions as there may be.
    #[error(
        "limit reached: the machines of a cluster have {MACHINE_SESSIONS_MAX} sessions, those of one provider at most half of \
         what the others leave; let sessions end, or shorten `session_s` of the roles"
    )]
    TooManySessions,
    /// No such provider.
    #[error("identity provider does not exist")]
    ProviderNotFound,
    /// As many providers as a cluster has.
    #[error("the cluster has {PROVIDERS_MAX} identity providers, the limit: delete an unused one")]
    TooManyProviders,
    /// No such role.
    #[error("role does not exist")]
    RoleNotFound,
    /// As many roles as a cluster has.
    #[error("the cluster has {ROLES_MAX} roles, the limit: delete an unused one")]
    TooManyRoles,
}

/// Why a rollout can't be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum RolloutBound {
    /// The number of its stages.
    #[error("a rollout has 1 to {ROLLOUT_STAGES_MAX} stages")]
    Stages,
    /// A stage that adds no reader.
    #[error(
        "each stage adds readers: its share is above 0 and at most 100, and no earlier stage has all of its readers"
    )]
    EmptyStage,
    /// Its times.
    #[error(
        "all stages together take at most {ROLLOUT_TIME_S_MAX} seconds, and `timeout_s` is 1 to {ROLLOUT_TIME_S_MAX}"
    )]
    Time,
    /// The labels of a stage.
    #[error(
        "a stage names at most {ROLLOUT_LABELS_MAX} labels, each once, with 1 to {ROLLOUT_LABELS_MAX} values; all stages \
         together at most {ROLLOUT_LABELS_BYTES_MAX} bytes of them"
    )]
    Labels,
    /// Its gates.
    #[error(
        "a rollout has at most {ROLLOUT_GATES_MAX} gates, each once, and `fresh_s` is 1 to {ROLLOUT_TIME_S_MAX}"
    )]
    Gates,
    /// The number of its configs.
    #[error("a rollout has 1 to {ROLLOUT_CONFIGS_MAX} configs, each once")]
    Configs,
    /// The bytes of its configs.
    #[error("the configs of a rollout have at most {} MiB", ROLLOUT_CANDIDATE_BYTES_MAX >> 20)]
    Bytes,
    /// It does something else than update configs that exist.
    #[error("a rollout can only update configs that exist")]
    NotUpdates,
    /// Readers that it counts.
    #[error(
        "`max_failed` and `min_healthy` are less than {ROLLOUT_READERS_MAX}: no more readers are counted"
    )]
    Readers,
}

/// What a stage waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum RolloutWait {
    /// Its time.
    #[error("the stage lasts until {0}")]
    Time(Timestamp),
    /// Readers that run well, readers that don't, or gates.
    #[error("the stage lacks evidence")]
    Evidence,
    /// Somebody.
    #[error("the rollout is paused")]
    Paused,
}

/// Why it is not the time to apply a change request or to take it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NotDue {
    /// The window has not begun.
    #[error("the change request is not applied before {0}")]
    Before(Timestamp),
    /// The window is over.
    #[error("the change request is not applied at {0} or later: send another edition")]
    After(Timestamp),
    /// The edition has no window, so there is nothing that the cluster could wait for.
    #[error("the change request has no schedule, or is applied when it is approved")]
    NoSchedule,
}

/// Why a change request can't be taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NotRevertible {
    /// It changes more than configs.
    #[error(
        "only a change of configs that exist, or are created in definitions that exist, can be taken back"
    )]
    NotOfConfigs,
    /// What it replaces is too large.
    #[error(
        "a change can be taken back if what it replaces has at most {} MiB",
        REVERT_BYTES_MAX >> 20
    )]
    TooLarge,
    /// It is no longer so: the time is over, it was taken back, or there was no room for what the configs were.
    #[error("the change request can't be taken back any more: create another one that does it")]
    Over,
    /// It was never applied.
    #[error("the change request was not applied, so there is nothing to take back")]
    NotApplied,
    /// Nothing but a revert that is armed or held can be kept.
    #[error("nothing takes the change request back by itself, so what it changed stays")]
    NotArmed,
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
        "an environment has at most {OPEN_CHANGES_OF_ENVIRONMENT_MAX} open change requests, and one person at most half \
         of what the others leave: apply or withdraw some"
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
    /// Its schedule.
    #[error(
        "a schedule ends after it begins, in the future, and at most {} days after the edition was sent",
        EDITION_AGE_US_MAX / 86_400_000_000
    )]
    Schedule,
    /// The time after which the cluster takes it back.
    #[error("a change is taken back 1 second to {} days after it was applied", REVERT_AFTER_S_MAX / 86_400)]
    RevertAfter,
}

impl From<IdentityRejection> for Rejection {
    fn from(rejection: IdentityRejection) -> Self {
        Self::Identity(rejection)
    }
}

impl Rejection {
    /// Whether the rules of an environment, or the state of the change request that is applied, reject the change or an
    /// operation of it. The log stores no such rejection under an idempotency key: the same request may succeed later.
    #[must_use]
    pub fn is_by_environment(&self) -> bool {
        if let Self::InBatch { rejection, .. } = self {
            return rejection.is_by_environment();
        }
        matches!(self, Self::ChangeRequired { .. } | Self::EnvironmentFrozen { .. } | Self::FreezeLeft { .. })
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
