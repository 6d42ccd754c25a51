//! System records: what the cluster stores beside definitions and configs. No route of definitions and configs reaches
//! them.
//!
//! | to find | look in |
//! |---|---|
//! | environments and their freezes | [`environment`] |
//! | change requests, approvals and contents | [`change`] |
//! | persons and their labels | [`person`] |
//! | rollouts: stages and candidates | [`rollout`] |
//! | how a rollout goes on, pauses | [`pace`] |
//!
//! What the log decides by is typed ([`SystemBody`]). The rest is text that only clients and the console read.
//!
//! **Invariants:** a record never changes; a change creates a new one. Nothing in `state` reads the text.

pub mod change;
pub mod environment;
pub mod pace;
pub mod person;
pub mod rollout;

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{encoding, key::Key, record::Revision, time::Timestamp};
use change::{Change, Content};
use environment::Environment;
use person::Person;
use rollout::Rollout;

/// The kind of a system record. Its number is that of the variant of [`SystemBody`], and a part of stored keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum SystemKind {
    /// [`Environment`].
    Environment = 0,
    /// [`Change`].
    Change = 1,
    /// [`Content`].
    Content = 2,
    /// [`Person`].
    Person = 3,
    /// [`Rollout`].
    Rollout = 4,
}

/// The key of a system record. Records ascend by kind, then by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SystemKey {
    /// Its kind.
    pub kind: SystemKind,
    /// Its name, unique among those of its kind.
    pub name: Key,
}

impl fmt::Display for SystemKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            SystemKind::Environment => "environment",
            SystemKind::Change => "change request",
            SystemKind::Content => "content of a change request",
            SystemKind::Person => "person",
            SystemKind::Rollout => "rollout",
        };
        write!(f, "{kind} `{}`", self.name)
    }
}

/// What the log decides by. Stored: new variants go to the end, and no variant gets another field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SystemBody {
    /// An environment.
    Environment(Environment),
    /// A change request. The name of its record is its id.
    Change(Box<Change>),
    /// The content of a change request. The name of its record has the id and the edition.
    Content(Content),
    /// A person. The name of its record is its id.
    Person(Person),
    /// A rollout. The name of its record is the id of its change request. Since level 2.
    Rollout(Box<Rollout>),
}

/// A system record as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemRecord {
    /// Its name.
    pub name: Key,
    /// What the log decides by.
    pub body: SystemBody,
    /// The JSON text of everything else.
    #[serde(deserialize_with = "encoding::shared_text")]
    pub text: Arc<str>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub modified_at: Timestamp,
    /// The revision of its last change: its `ETag`.
    pub revision: Revision,
}

impl SystemRecord {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> SystemKey {
        let kind = match &self.body {
            SystemBody::Environment(_) => SystemKind::Environment,
            SystemBody::Change(_) => SystemKind::Change,
            SystemBody::Content(_) => SystemKind::Content,
            SystemBody::Person(_) => SystemKind::Person,
            SystemBody::Rollout(_) => SystemKind::Rollout,
        };
        SystemKey { kind, name: self.name.clone() }
    }

    /// The environment that it is; `None` for another record.
    #[must_use]
    pub fn environment(&self) -> Option<&Environment> {
        match &self.body {
            SystemBody::Environment(environment) => Some(environment),
            SystemBody::Change(_)
            | SystemBody::Content(_)
            | SystemBody::Person(_)
            | SystemBody::Rollout(_) => None,
        }
    }

    /// The change request that it is; `None` for another record.
    #[must_use]
    pub fn change(&self) -> Option<&Change> {
        match &self.body {
            SystemBody::Change(change) => Some(change),
            SystemBody::Environment(_)
            | SystemBody::Content(_)
            | SystemBody::Person(_)
            | SystemBody::Rollout(_) => None,
        }
    }

    /// The content of a change request that it is; `None` for another record.
    #[must_use]
    pub fn content(&self) -> Option<&Content> {
        match &self.body {
            SystemBody::Content(content) => Some(content),
            SystemBody::Environment(_)
            | SystemBody::Change(_)
            | SystemBody::Person(_)
            | SystemBody::Rollout(_) => None,
        }
    }

    /// The person that it is; `None` for another record.
    #[must_use]
    pub fn person(&self) -> Option<&Person> {
        match &self.body {
            SystemBody::Person(person) => Some(person),
            SystemBody::Environment(_)
            | SystemBody::Change(_)
            | SystemBody::Content(_)
            | SystemBody::Rollout(_) => None,
        }
    }

    /// The rollout that it is; `None` for another record.
    #[must_use]
    pub fn rollout(&self) -> Option<&Rollout> {
        match &self.body {
            SystemBody::Rollout(rollout) => Some(rollout),
            SystemBody::Environment(_)
            | SystemBody::Change(_)
            | SystemBody::Content(_)
            | SystemBody::Person(_) => None,
        }
    }

    /// The bytes that it takes in memory, about.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let body = match &self.body {
            SystemBody::Environment(environment) => size_of_val(&environment.freezes[..]),
            SystemBody::Change(change) => change.bytes(),
            SystemBody::Content(content) => content.bytes(),
            SystemBody::Person(person) => person.label.as_str().len(),
            SystemBody::Rollout(rollout) => rollout.bytes(),
        };
        (size_of::<Self>() + self.text.len() + body) as u64
    }
}
