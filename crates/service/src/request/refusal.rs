//! Why a request was not carried out.
//!
//! A [`Rejection`] is a decision of the log, and an [`Invalid`] is the client's fault whatever the state is. A refusal
//! is one of these or a failure of this node or of the cluster. The refusal of one operation of a batch names the
//! operation in one of three ways, none of which holds another: the log rejects as [`Rejection::InBatch`], violations
//! have locations in the whole body, and every other refusal is wrapped in [`Refusal::OfOperation`].
//!
//! **Invariant:** *unavailable* means that the write was certainly not applied. A write that may have been applied is
//! *undecided*.

use serde::{Deserialize, Deserializer, Serialize};

use concord_model::{
    access_key::Verb,
    error::{IdentityRejection, Invalid, LocSegment, NothingToRestore, Rejection, Violation},
    flat::decode_without,
    key::Key,
};
use concord_net::NodeId;

/// The member of a batch that has its operations: locations begin with it.
pub(crate) const OPERATIONS: &str = "operations";

/// Why a request was not carried out. Sent between nodes: new variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The state of the cluster rejects it.
    Rejected(Rejection),
    /// The request is invalid.
    Invalid(Invalid),
    /// Certainly not applied: there is no leader or no quorum.
    Unavailable(String),
    /// May or may not be applied (writes); could not be confirmed in time (reads with `min_revision`).
    Undecided(String),
    /// This node has reached its limit of writes in progress.
    Overloaded,
    /// The volume is full; certainly not applied.
    StorageFull(String),
    /// An internal error: logged, never shown.
    Internal(String),
    /// The cluster is not in the condition that the change needs; certainly not done.
    Conflict(String),
    /// The cluster has no such member.
    NoMember(NodeId),
    /// The requested revision is compacted.
    Expired(String),
    /// The requested config did not exist at the requested revision.
    NotThere(String),
    /// Configs would violate a schema.
    Breaks {
        /// How many.
        count: u64,
        /// These name the first of them.
        violations: Vec<Violation>,
    },
    /// A limit of this node is reached; the text names the limit.
    LimitReached(String),
    /// The access key is valid, but lacks this permission; the same whether the requested record exists or not.
    Forbidden {
        /// The permission.
        verb: Verb,
    },
    /// The access key was valid when the request arrived and no longer is; certainly not applied.
    KeyEnded,
    /// Paths can't become unique: two configs have the same value at one of them. Names configs, so a client without
    /// the permission to read them gets another text.
    NotUniqueYet {
        /// The path.
        path: String,
        /// One of the configs.
        one: Key,
        /// The other.
        other: Key,
    },
    /// An index that the request needs is being built.
    Building(String),
    /// The state of a cursor is no longer retained.
    CursorExpired(String),
    /// The refusal of an operation of a batch, numbered from 0; never one of a batch itself.
    OfOperation(u32, #[serde(deserialize_with = "decode_of_operation")] Box<Self>),
    /// The requested definition did not exist at the requested revision, or can't be read there.
    DefinitionNotThere(String),
    /// No deleted definition with the requested key is kept.
    DeletionNotKept(String),
    /// This node keeps no audit log.
    AuditOff,
    /// A record that a change request rests on has changed since its edition was sent.
    ChangeStale(String),
    /// What is requested is of a feature level that the cluster does not have yet; certainly not done.
    NotUpgraded {
        /// The level that it needs.
        needs: u32,
        /// The level of the cluster.
        has: u32,
    },
    /// A token of an identity provider opens no session.
    TokenRejected {
        /// In a word: that of a [`Reason`](concord_identity::Reason), or `provider`.
        reason: String,
    },
    /// No role has the owner of a token as a member; the text names the owner.
    NoRole(String),
    /// The keys of an identity provider are not known; certainly no session was opened.
    ProviderUnavailable(String),
    /// A role names the identity provider.
    ProviderInUse {
        /// The role.
        role: Key,
    },
    /// Another policy or key set counts than those that a token was validated by: it is validated again. No client sees
    /// it.
    LoginStale,
}

fn decode_of_operation<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<Refusal>, D::Error> {
    decode_without(deserializer, &["OfOperation"])
}

impl From<Rejection> for Refusal {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

impl From<IdentityRejection> for Refusal {
    fn from(rejection: IdentityRejection) -> Self {
        Rejection::from(rejection).into()
    }
}

impl From<Invalid> for Refusal {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(invalid)
    }
}

impl From<NothingToRestore> for Refusal {
    fn from(reason: NothingToRestore) -> Self {
        match reason {
            NothingToRestore::Expired(text) => Self::Expired(text),
            NothingToRestore::NotThere(text) => Self::NotThere(text),
            NothingToRestore::DefinitionNotThere(text) => Self::DefinitionNotThere(text),
            NothingToRestore::Invalid(violations) => Invalid::Violations(violations).into(),
        }
    }
}

impl Refusal {
    /// Why something that was done can't be shown. What would say that nothing was done says that it is undecided.
    #[must_use]
    pub(crate) fn after_done(self) -> Self {
        match self {
            Self::Unavailable(text) | Self::StorageFull(text) | Self::LimitReached(text) => {
                Self::Undecided(text)
            }
            Self::Overloaded => Self::Undecided("this node has too much to do".into()),
            Self::Rejected(_)
            | Self::Invalid(_)
            | Self::Undecided(_)
            | Self::Internal(_)
            | Self::Conflict(_)
            | Self::NoMember(_)
            | Self::Expired(_)
            | Self::NotThere(_)
            | Self::Breaks { .. }
            | Self::Forbidden { .. }
            | Self::KeyEnded
            | Self::NotUniqueYet { .. }
            | Self::Building(_)
            | Self::CursorExpired(_)
            | Self::OfOperation(..)
            | Self::DefinitionNotThere(_)
            | Self::DeletionNotKept(_)
            | Self::AuditOff
            | Self::NotUpgraded { .. }
            | Self::TokenRejected { .. }
            | Self::NoRole(_)
            | Self::ProviderUnavailable(_)
            | Self::ProviderInUse { .. }
            | Self::LoginStale
            | Self::ChangeStale(_) => self,
        }
    }

    /// The refusal of an operation as a refusal of its batch. A refusal that is not about the operation stays as it is.
    #[must_use]
    pub fn of_operation(self, place: u32) -> Self {
        match self {
            Self::Rejected(rejection) => {
                Rejection::InBatch { index: place, rejection: Box::new(rejection) }.into()
            }
            Self::Invalid(invalid) => invalid_at(invalid, place).into(),
            Self::Forbidden { .. }
            | Self::Conflict(_)
            | Self::NotUniqueYet { .. }
            | Self::Breaks { .. }
            | Self::Expired(_)
            | Self::NotThere(_)
            | Self::DefinitionNotThere(_) => Self::OfOperation(place, Box::new(self)),
            Self::Unavailable(_)
            | Self::Undecided(_)
            | Self::Overloaded
            | Self::StorageFull(_)
            | Self::Internal(_)
            | Self::NoMember(_)
            | Self::OfOperation(..)
            | Self::LimitReached(_)
            | Self::KeyEnded
            | Self::Building(_)
            | Self::CursorExpired(_)
            | Self::DeletionNotKept(_)
            | Self::AuditOff
            | Self::NotUpgraded { .. }
            | Self::TokenRejected { .. }
            | Self::NoRole(_)
            | Self::ProviderUnavailable(_)
            | Self::ProviderInUse { .. }
            | Self::LoginStale
            | Self::ChangeStale(_) => self,
        }
    }

    /// The rejection that takes the place of a rollback which has nothing to restore.
    ///
    /// # Errors
    /// This refusal, if it has another reason.
    #[expect(clippy::wildcard_enum_match_arm, reason = "a refusal for another reason is returned as it is")]
    pub fn nothing_to_restore(self) -> Result<Rejection, Self> {
        let reason = match self {
            Self::Expired(text) => NothingToRestore::Expired(text),
            Self::NotThere(text) => NothingToRestore::NotThere(text),
            Self::DefinitionNotThere(text) => NothingToRestore::DefinitionNotThere(text),
            Self::Invalid(Invalid::Violations(violations)) => NothingToRestore::Invalid(violations),
            Self::Rejected(rejection @ Rejection::DefinitionNotFound) => return Ok(rejection),
            other => return Err(other),
        };
        Ok(Rejection::NothingToRestore(reason))
    }

    /// The refusal as the client gets it: that of a rollback in a transaction is the one of a single rollback.
    #[expect(clippy::wildcard_enum_match_arm, reason = "every other rejection stays as it is")]
    pub(crate) fn answered(self) -> Self {
        let Self::Rejected(Rejection::InBatch { index, rejection }) = self else { return self };
        match *rejection {
            Rejection::NothingToRestore(reason) => Self::from(reason).of_operation(index),
            rejection => Self::from(rejection).of_operation(index),
        }
    }
}

/// What is wrong with an operation as what is wrong with its batch.
pub(crate) fn invalid_at(invalid: Invalid, place: u32) -> Invalid {
    let at = |mut violation: Violation| {
        violation.loc.splice(0..0, [LocSegment::from(OPERATIONS), LocSegment::Index(place.into())]);
        violation
    };
    match invalid {
        Invalid::Violations(violations) => Invalid::Violations(violations.into_iter().map(at).collect()),
        Invalid::TooLarge(text) => Invalid::TooLargeAt(at(Violation::new(text))),
        Invalid::TooLargeAt(violation) => Invalid::TooLargeAt(at(violation)),
    }
}
