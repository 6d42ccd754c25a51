//! Changes of environments as clients request them and as nodes forward them.
//!
//! **Invariant:** rules that a client leaves out stay as they are; its freezes are all that there are.

use serde::{Deserialize, Serialize};

use super::Effect;
use concord_model::{command::Expect, time::Timestamp};

/// A change of an environment. Sent between nodes: new variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EnvironmentWrite {
    /// Creates or replaces it.
    Put {
        /// Its name.
        name: String,
        /// Its rules from now on.
        rules: EnvironmentRules,
        /// The precondition.
        expect: Expect,
    },
    /// Deletes it: its definitions belong to `default` then.
    Delete {
        /// Its name.
        name: String,
        /// The precondition.
        expect: Expect,
    },
}

/// The rules of an environment, as a client sends them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentRules {
    /// Whether direct changes are rejected; `None` leaves it as it is.
    pub refuses_direct: Option<bool>,
    /// How many persons must approve a change; `None` leaves it as it is.
    pub approvals: Option<u64>,
    /// All its freezes.
    pub freezes: Vec<NewFreeze>,
}

/// A freeze, as a client sends it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewFreeze {
    /// When it begins; `None` for the time at which the leader prepares the change.
    pub from: Option<Timestamp>,
    /// When it ends.
    pub until: Timestamp,
    /// Why.
    pub reason: String,
}

impl EnvironmentWrite {
    /// The name of the environment.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Put { name, .. } | Self::Delete { name, .. } => name,
        }
    }

    /// Whether it sets a freeze, for which an incident may be the reason.
    pub(crate) fn has_freeze(&self) -> bool {
        matches!(self, Self::Put { rules, .. } if !rules.freezes.is_empty())
    }

    pub(super) fn effect(&self) -> Effect {
        match self {
            Self::Put { .. } => Effect::Access,
            // It must be possible while the disk is full.
            Self::Delete { .. } => Effect::Remove,
        }
    }
}
