//! What is done to providers, roles, key sets and sessions.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Expect;
use crate::{
    access_key::KeyId,
    encoding,
    key::Key,
    record::Revision,
    system::identity::{OwnerTag, ProviderId},
    time::Timestamp,
};

/// What is done to providers, roles, key sets and sessions.
///
/// The leader validates a document beside all others of its kind. So what changes one names the revision of the
/// policy that the leader has read; with another one, the verdict is [`Verdict::Stale`](super::Verdict::Stale).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum IdentityCommand {
    /// Creates a provider or replaces its document.
    PutProvider {
        /// The change.
        of: PolicyChange,
        /// What the change leaves as it is.
        keeps: KeptOfProvider,
        /// The JSON text of its document.
        #[serde(deserialize_with = "encoding::shared_text")]
        text: Arc<str>,
    },
    /// Deletes a provider with its key set. Its sessions end.
    DeleteProvider(PolicyChange),
    /// Creates a role or replaces it.
    PutRole {
        /// The change.
        of: PolicyChange,
        /// The JSON text of its document.
        #[serde(deserialize_with = "encoding::shared_text")]
        text: Arc<str>,
    },
    /// Deletes a role.
    DeleteRole(PolicyChange),
    /// Ends all sessions of a provider. Tokens that were issued before open no others.
    EndSessions {
        /// The provider.
        name: Key,
        /// The precondition.
        expect: Expect,
    },
    /// Ends a session.
    EndSession {
        /// The session.
        id: KeyId,
    },
    /// Opens a session; proposed by the leader itself, which has judged a token.
    OpenSession(Box<NewSession>),
    /// Replaces the keys of a provider, or confirms them; proposed by the leader itself. It does nothing if the provider is
    /// gone.
    PutKeySet {
        /// The provider.
        provider: ProviderId,
        /// The keys, as a JWKS.
        #[serde(deserialize_with = "encoding::shared_text")]
        text: Arc<str>,
        /// When the provider gave them.
        confirmed_at: Timestamp,
    },
    /// Removes sessions that have ended; proposed by the leader itself. An entry removes a bounded number of them.
    SweepSessions {
        /// The time that all clocks of a majority have passed.
        now: Timestamp,
    },
}

/// What a change of a provider leaves as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptOfProvider {
    /// Whom it trusts. Otherwise its sessions end.
    pub trust: bool,
    /// Where its keys come from. Otherwise its key set goes.
    pub keys: bool,
}

/// What a change of a provider or role rests on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyChange {
    /// The name of the provider or role.
    pub name: Key,
    /// The precondition.
    pub expect: Expect,
    /// The revision of the policy that the leader has read; 0 if there was none.
    pub policy: Revision,
}

/// A session as the leader opens it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewSession {
    /// Its id, which no session and no access key has.
    pub id: KeyId,
    /// The SHA-256 of its text.
    pub sha256: [u8; 32],
    /// The provider whose token was validated.
    pub provider: ProviderId,
    /// The revision of the policy by which it was validated.
    pub policy: Revision,
    /// The revision of the key set that it was verified with; `None` if the keys are in the provider's document.
    pub key_set: Option<Revision>,
    /// Who has it.
    pub owner: OwnerTag,
    /// [`Session::name`](crate::system::identity::Session::name).
    pub name: String,
    /// When the token was issued.
    pub issued_at: Timestamp,
    /// From when on the token is not accepted.
    pub token_ends_at: Timestamp,
    /// From when on the session is not accepted.
    pub expires_at: Timestamp,
    /// The JSON text of who it is, and of what is kept of their claims.
    #[serde(deserialize_with = "encoding::shared_text")]
    pub text: Arc<str>,
}

impl IdentityCommand {
    /// Whether the cluster proposes it itself, in nobody's name.
    pub(super) fn is_of_the_cluster(&self) -> bool {
        match self {
            Self::OpenSession(_) | Self::PutKeySet { .. } | Self::SweepSessions { .. } => true,
            Self::PutProvider { .. }
            | Self::DeleteProvider(_)
            | Self::PutRole { .. }
            | Self::DeleteRole(_)
            | Self::EndSessions { .. }
            | Self::EndSession { .. } => false,
        }
    }

    /// The change of the policy that it is.
    #[must_use]
    pub fn policy_change(&self) -> Option<&PolicyChange> {
        match self {
            Self::PutProvider { of, .. }
            | Self::DeleteProvider(of)
            | Self::PutRole { of, .. }
            | Self::DeleteRole(of) => Some(of),
            Self::EndSessions { .. }
            | Self::EndSession { .. }
            | Self::OpenSession(_)
            | Self::PutKeySet { .. }
            | Self::SweepSessions { .. } => None,
        }
    }
}
