//! Changes of identity providers, roles and sessions as clients request them and as nodes forward them.
//!
//! **Invariant:** neither a token nor the text of a session is here. The receiving node validates the one and makes the other,
//! and passes on the SHA-256.

use serde::{Deserialize, Serialize};

use super::Effect;
use concord_model::{
    access_key::{Grants, KeyId, Quota},
    command::{Expect, NewSession},
    document::Document,
    system::identity::ProviderId,
};

/// A change of identity providers, roles and sessions. Sent between nodes: new variants go to the end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum IdentityWrite {
    /// Creates or replaces a provider.
    PutProvider {
        /// Its name.
        name: String,
        /// Its document.
        document: Document,
        /// The precondition.
        expect: Expect,
    },
    /// Deletes a provider.
    DeleteProvider {
        /// Its name.
        name: String,
        /// The precondition.
        expect: Expect,
    },
    /// Creates or replaces a role.
    PutRole {
        /// Its name.
        name: String,
        /// The role from now on.
        role: NewRole,
        /// The precondition.
        expect: Expect,
    },
    /// Deletes a role.
    DeleteRole {
        /// Its name.
        name: String,
        /// The precondition.
        expect: Expect,
    },
    /// Ends all sessions of a provider.
    EndSessions {
        /// The name of the provider.
        provider: String,
        /// The precondition.
        expect: Expect,
    },
    /// Ends a session.
    EndSession {
        /// Its id.
        id: KeyId,
    },
    /// Opens a session; requested by a node that has validated a token.
    OpenSession(Box<NewSession>),
    /// Asks the leader to fetch the keys of a provider soon; requested by a node that has a token of an unknown key. Stores
    /// nothing.
    FetchKeys(ProviderId),
}

/// A role, as a client sends it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewRole {
    /// What it allows.
    pub grants: Grants,
    /// How much of it.
    pub quota: Quota,
    /// Its members, and how long a session with it lasts: the document of a
    /// [`Membership`](concord_identity::Membership).
    pub membership: Document,
}

impl IdentityWrite {
    pub(super) fn effect(&self) -> Effect {
        match self {
            Self::PutProvider { .. } | Self::PutRole { .. } | Self::OpenSession(_) => Effect::Access,
            // They must be possible while the disk is full.
            Self::DeleteProvider { .. }
            | Self::DeleteRole { .. }
            | Self::EndSessions { .. }
            | Self::EndSession { .. }
            | Self::FetchKeys(_) => Effect::Remove,
        }
    }

    pub(super) fn document(&self) -> Option<&Document> {
        match self {
            Self::PutProvider { document, .. } => Some(document),
            Self::PutRole { role, .. } => Some(&role.membership),
            Self::DeleteProvider { .. }
            | Self::DeleteRole { .. }
            | Self::EndSessions { .. }
            | Self::EndSession { .. }
            | Self::OpenSession(_)
            | Self::FetchKeys(_) => None,
        }
    }

    pub(super) fn document_mut(&mut self) -> Option<&mut Document> {
        match self {
            Self::PutProvider { document, .. } => Some(document),
            Self::PutRole { role, .. } => Some(&mut role.membership),
            Self::DeleteProvider { .. }
            | Self::DeleteRole { .. }
            | Self::EndSessions { .. }
            | Self::EndSession { .. }
            | Self::OpenSession(_)
            | Self::FetchKeys(_) => None,
        }
    }

    /// Whether it changes a provider or a role.
    pub(crate) fn changes_policy(&self) -> bool {
        match self {
            Self::PutProvider { .. }
            | Self::DeleteProvider { .. }
            | Self::PutRole { .. }
            | Self::DeleteRole { .. } => true,
            Self::EndSessions { .. }
            | Self::EndSession { .. }
            | Self::OpenSession(_)
            | Self::FetchKeys(_) => false,
        }
    }

    /// Whether only a node may request it.
    pub(crate) fn is_of_the_cluster(&self) -> bool {
        match self {
            Self::OpenSession(_) | Self::FetchKeys(_) => true,
            Self::PutProvider { .. }
            | Self::DeleteProvider { .. }
            | Self::PutRole { .. }
            | Self::DeleteRole { .. }
            | Self::EndSessions { .. }
            | Self::EndSession { .. } => false,
        }
    }
}
