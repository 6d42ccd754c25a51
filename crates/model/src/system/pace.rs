//! How a rollout that runs goes on: since when its present stage lasts, and whether it waits for somebody. It is a part of the
//! change request, so a pause does not write the record of the rollout again, which may be large.

use serde::{Deserialize, Serialize};

use super::change::Machine;
use crate::{access_key::KeyId, time::Timestamp};

/// Who did something to a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Actor {
    /// The cluster.
    Cluster,
    /// The holder of the root key.
    Root,
    /// The holder of an access key.
    Key(KeyId),
    /// A machine that has logged in. Since level 3.
    Machine(Box<Machine>),
}

/// Why a rollout does not go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutPause {
    /// Since when.
    pub at: Timestamp,
    /// Who paused it.
    pub by: Actor,
    /// Why.
    pub comment: String,
}

/// How a rollout that runs goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    /// Since when its present stage lasts, or goes on after a pause.
    pub since: Timestamp,
    /// Who has begun that stage, or let it go on.
    pub by: Actor,
    /// Whether it waits for somebody.
    pub paused: Option<RolloutPause>,
}

impl Pace {
    /// The bytes of its texts in memory, about.
    pub(super) fn bytes(&self) -> usize {
        self.paused.as_ref().map_or(0, |paused| paused.comment.len())
    }
}
