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
//! | providers, roles, sessions | [`identity`] |
//!
//! What the log decides by is typed ([`SystemBody`]). The rest is text that only clients and the console read.
//!
//! **Invariants:** a record never changes; a change creates a new one. Nothing in `state` reads the text.

pub mod change;
pub mod environment;
pub mod identity;
pub mod pace;
pub mod person;
pub mod rollout;

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{encoding, key::Key, record::Revision, time::Timestamp};
use change::{Change, Content};
use environment::Environment;
use identity::{KeySet, Provider, Session};
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
    /// [`Provider`].
    Provider = 5,
    /// A role.
    Role = 6,
    /// [`Session`].
    Session = 7,
    /// [`KeySet`].
    KeySet = 8,
    /// The policy (`identity.rs`).
    Policy = 9,
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
            SystemKind::Provider => "identity provider",
            SystemKind::Role => "role",
            SystemKind::Session => "session",
            SystemKind::KeySet => "key set of the identity provider",
            SystemKind::Policy => "identity",
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
    /// An identity provider. Since level 3, as all that follow.
    Provider(Provider),
    /// A role.
    Role,
    /// A session. The name of its record is its id.
    Session(Box<Session>),
    /// The public keys of a provider.
    KeySet(KeySet),
    /// The policy. There is one.
    Policy,
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
            SystemBody::Provider(_) => SystemKind::Provider,
            SystemBody::Role => SystemKind::Role,
            SystemBody::Session(_) => SystemKind::Session,
            SystemBody::KeySet(_) => SystemKind::KeySet,
            SystemBody::Policy => SystemKind::Policy,
        };
        SystemKey { kind, name: self.name.clone() }
    }

    /// The environment that it is; `None` for another record.
    #[must_use]
    pub fn environment(&self) -> Option<&Environment> {
        if let SystemBody::Environment(environment) = &self.body { Some(environment) } else { None }
    }

    /// The change request that it is; `None` for another record.
    #[must_use]
    pub fn change(&self) -> Option<&Change> {
        if let SystemBody::Change(change) = &self.body { Some(change) } else { None }
    }

    /// The content of a change request that it is; `None` for another record.
    #[must_use]
    pub fn content(&self) -> Option<&Content> {
        if let SystemBody::Content(content) = &self.body { Some(content) } else { None }
    }

    /// The person that it is; `None` for another record.
    #[must_use]
    pub fn person(&self) -> Option<&Person> {
        if let SystemBody::Person(person) = &self.body { Some(person) } else { None }
    }

    /// The rollout that it is; `None` for another record.
    #[must_use]
    pub fn rollout(&self) -> Option<&Rollout> {
        if let SystemBody::Rollout(rollout) = &self.body { Some(rollout) } else { None }
    }

    /// The identity provider that it is; `None` for another record.
    #[must_use]
    pub fn provider(&self) -> Option<&Provider> {
        if let SystemBody::Provider(provider) = &self.body { Some(provider) } else { None }
    }

    /// The session that it is; `None` for another record.
    #[must_use]
    pub fn session(&self) -> Option<&Session> {
        if let SystemBody::Session(session) = &self.body { Some(session) } else { None }
    }

    /// The key set that it is; `None` for another record.
    #[must_use]
    pub fn key_set(&self) -> Option<&KeySet> {
        if let SystemBody::KeySet(key_set) = &self.body { Some(key_set) } else { None }
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
            SystemBody::Session(session) => size_of::<Session>() + session.name.len(),
            SystemBody::Provider(_) | SystemBody::Role | SystemBody::KeySet(_) | SystemBody::Policy => 0,
        };
        (size_of::<Self>() + self.text.len() + body) as u64
    }
}
