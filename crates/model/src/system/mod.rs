//! System records: what the cluster stores beside definitions and configs. No route of definitions and configs reaches
//! them.
//!
//! | to find | look in |
//! |---|---|
//! | environments and their freezes | [`environment`] |
//! | persons and their labels | [`person`] |
//!
//! What the log decides by is typed ([`SystemBody`]). The rest is text that only clients and the console read.
//!
//! **Invariants:** a record never changes; a change creates a new one. Nothing in `state` reads the text.

pub mod environment;
pub mod person;

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{encoding, key::Key, record::Revision, time::Timestamp};
use environment::Environment;
use person::Person;

/// The kind of a system record. Its number is a part of stored keys. These are reserved: 1 change request, 2 content of
/// a change request, 4 layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum SystemKind {
    /// [`Environment`].
    Environment = 0,
    /// [`Person`].
    Person = 3,
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
            SystemKind::Person => "person",
        };
        write!(f, "{kind} `{}`", self.name)
    }
}

/// What the log decides by. Stored: new variants go to the end, and no variant gets another field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SystemBody {
    /// An environment.
    Environment(Environment),
    /// A person. The name of its record is its id.
    Person(Person),
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
            SystemBody::Person(_) => SystemKind::Person,
        };
        SystemKey { kind, name: self.name.clone() }
    }

    /// The environment that it is; `None` for another record.
    #[must_use]
    pub fn environment(&self) -> Option<&Environment> {
        match &self.body {
            SystemBody::Environment(environment) => Some(environment),
            SystemBody::Person(_) => None,
        }
    }

    /// The person that it is; `None` for another record.
    #[must_use]
    pub fn person(&self) -> Option<&Person> {
        match &self.body {
            SystemBody::Person(person) => Some(person),
            SystemBody::Environment(_) => None,
        }
    }

    /// The bytes that it takes in memory, about.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let body = match &self.body {
            SystemBody::Environment(environment) => size_of_val(&environment.freezes[..]),
            SystemBody::Person(person) => person.label.as_str().len(),
        };
        (size_of::<Self>() + self.text.len() + body) as u64
    }
}
