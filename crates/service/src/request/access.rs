//! Changes of the access keys, as a caller or a node asks for them.
//!
//! **Invariant:** no text of a key is here: the node that was asked makes it and sends its SHA-256 on.

use serde::{Deserialize, Serialize};

use super::{Effect, Write};
use concord_model::{
    access_key::{Grants, KeyId, Quota},
    command::{Expect, KeyTerms},
    time::Timestamp,
};

/// A change of the access keys. Sent between nodes: new variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessWrite {
    /// Creates a key.
    Create {
        /// Its id, which the node that was asked has drawn.
        id: KeyId,
        /// What it may do, and until when.
        terms: KeyTerms,
        /// The SHA-256 of its text.
        sha256: [u8; 32],
    },
    /// Changes what a key may do, or until when.
    Change {
        /// The key.
        id: KeyId,
        /// What is changed of it.
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
    /// Gives a key another text.
    Rotate {
        /// The key.
        id: KeyId,
        /// The SHA-256 of its new text.
        sha256: [u8; 32],
        /// Microseconds for which the text before stays good.
        grace_us: u64,
        /// The precondition.
        expect: Expect,
    },
    /// Notes that these keys were used today; nodes ask for it.
    MarkUsed(Vec<KeyId>),
    /// Disables the root key.
    DisableRoot,
    /// Enables the root key; a node asks for it whose operator has used its data directory.
    EnableRoot,
}

/// What is changed of a key; `None` leaves it as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyPatch {
    /// Its name.
    pub name: Option<String>,
    /// What it may do.
    pub grants: Option<Grants>,
    /// How much of it.
    pub quota: Option<Quota>,
    /// The time from which on it is not accepted; `Some(None)` for never.
    pub expires_at: Option<Option<Timestamp>>,
}

impl AccessWrite {
    pub(super) fn effect(&self) -> Effect {
        match self {
            // They must be possible while the disk is full.
            Self::Revoke { .. } | Self::DisableRoot => Effect::Remove,
            Self::Create { .. }
            | Self::Change { .. }
            | Self::Rotate { .. }
            | Self::MarkUsed(_)
            | Self::EnableRoot => Effect::Access,
        }
    }

    /// Whether a node asks for it, in nobody's name.
    pub(crate) fn is_of_the_cluster(&self) -> bool {
        match self {
            Self::MarkUsed(_) | Self::EnableRoot => true,
            Self::Create { .. }
            | Self::Change { .. }
            | Self::Revoke { .. }
            | Self::Rotate { .. }
            | Self::DisableRoot => false,
        }
    }
}

impl Write {
    /// The change of access keys that it is.
    pub(crate) fn access(&self) -> Option<&AccessWrite> {
        if let Self::Access(write) = self { Some(write) } else { None }
    }
}
