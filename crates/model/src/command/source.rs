//! Where a proposal comes from, and what else it rests on: the tail of its bytes.
//!
//! A direct write without guards has no tail, so the bytes of plain writes are the same with and without change
//! requests.
//!
//! **Invariants:** one proposal has one encoding: an empty tail is damage. A proposal with a tail never shares an entry,
//! because each proposal of a group is decided by itself, and no neighbor may make its record.

use serde::{Deserialize, Serialize};

use super::{DecodeError, Proposal};
use crate::{
    access_key::KeyId,
    encoding,
    feature::{IDENTITY, LEVEL_MIN},
    key::Key,
    limits::GUARDS_MAX,
    record::Revision,
    system::change::{ChangeDigest, ChangeId},
};

/// Where a proposal comes from. Replicated: new variants go to the end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// A request of a client, or a task of the cluster.
    #[default]
    Direct,
    /// A change request, whose edition is applied.
    Change(ChangeUse),
    /// A direct write that passes the rules of environments, and makes the record of an applied change request.
    Bypass(Box<Bypass>),
    /// A change request, which is taken back.
    Revert(RevertUse),
}

/// The edition of a change request that is applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeUse {
    /// The change request.
    pub id: ChangeId,
    /// The edition that the command was made from.
    pub edition: u32,
    /// The digest that the command has.
    pub digest: ChangeDigest,
}

/// The edition of a change request that is taken back. The command writes what the configs were before, in the order of
/// [`Content::bases`](crate::system::change::Content::bases).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevertUse {
    /// The change request.
    pub id: ChangeId,
    /// The edition that was applied.
    pub edition: u32,
    /// Whether somebody does it who has not approved it: others review that.
    pub is_bypass: bool,
}

/// A write that passes the rules. Its reason is that of the proposal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bypass {
    /// The id of the change request that it makes, which none has had.
    pub id: ChangeId,
    /// The digest that its review names.
    pub digest: ChangeDigest,
    /// The JSON text of everything else of the record.
    #[serde(deserialize_with = "encoding::shared_text")]
    pub text: std::sync::Arc<str>,
}

/// What the leader read. If it is another one when the entry is applied, the verdict is
/// [`Verdict::Stale`](super::Verdict::Stale).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Guard {
    /// A config of the definition with this id.
    Config {
        /// The definition's id.
        definition: u64,
        /// The config.
        key: Key,
        /// Its revision; `None` when there was no such config.
        revision: Option<Revision>,
    },
    /// A definition.
    Definition {
        /// Its key.
        key: Key,
        /// Which one had the key; `None` when none had it.
        was: Option<DefinitionThen>,
    },
    /// All configs of the definition with this id.
    Configs {
        /// The definition's id.
        definition: u64,
        /// The newest revision of them; 0 when there were none.
        newest: Revision,
        /// How many there were.
        count: u64,
    },
    /// An access key.
    AccessKey {
        /// The key.
        id: KeyId,
        /// Its revision.
        revision: Revision,
    },
    /// An environment.
    Environment {
        /// Its name.
        name: Key,
        /// Its revision; `None` when it had no record.
        revision: Option<Revision>,
    },
    /// The policy: all providers and roles. Since level 3.
    Policy {
        /// Its revision; 0 if there was none.
        revision: Revision,
    },
}

impl Guard {
    /// The feature level that a node must know to apply what rests on it.
    fn feature_level(&self) -> u32 {
        match self {
            Self::Config { .. }
            | Self::Definition { .. }
            | Self::Configs { .. }
            | Self::AccessKey { .. }
            | Self::Environment { .. } => LEVEL_MIN,
            Self::Policy { .. } => IDENTITY,
        }
    }
}

/// A definition as the leader read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefinitionThen {
    /// Its id.
    pub id: u64,
    /// Its revision.
    pub revision: Revision,
}

/// Everything of a proposal that a plain write does not have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tail {
    /// Where the proposal comes from.
    pub source: Source,
    /// What it rests on, in addition to what its command names; at most [`GUARDS_MAX`].
    pub guards: Vec<Guard>,
}

impl Tail {
    /// The tail of a proposal; `None` when it has nothing in it.
    #[must_use]
    pub fn of(source: Source, guards: Vec<Guard>) -> Option<Box<Self>> {
        let tail = Self { source, guards };
        (!tail.is_empty()).then(|| Box::new(tail))
    }

    /// The feature level that a node must know to apply a proposal with it.
    pub(super) fn feature_level(&self) -> u32 {
        self.guards.iter().map(Guard::feature_level).max().unwrap_or(LEVEL_MIN)
    }

    fn is_empty(&self) -> bool {
        self.source == Source::Direct && self.guards.is_empty()
    }

    /// Decodes the bytes after a proposal.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Option<Box<Self>>, DecodeError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let (tail, rest) = postcard::take_from_bytes::<Self>(bytes).map_err(|_| DecodeError::Damaged)?;
        let is_whole = rest.is_empty() && !tail.is_empty() && tail.guards.len() <= GUARDS_MAX;
        if is_whole { Ok(Some(Box::new(tail))) } else { Err(DecodeError::Damaged) }
    }
}

impl Proposal {
    /// Where it comes from.
    #[must_use]
    pub fn source(&self) -> &Source {
        self.tail.as_ref().map_or(&Source::Direct, |tail| &tail.source)
    }

    /// What it rests on, in addition to what its command names.
    #[must_use]
    pub fn guards(&self) -> &[Guard] {
        self.tail.as_ref().map_or(&[], |tail| &tail.guards)
    }

    /// Whether it may share an entry with others: its effect on the state is that of one config.
    #[must_use]
    pub fn may_share_entry(&self) -> bool {
        self.tail.is_none() && self.command.may_share_entry()
    }
}
