//! System records: what the cluster stores beside definitions and configs. No route of definitions and configs reaches
//! them.
//!
//! | to find | look in |
//! |---|---|
//! | environments and their freezes | [`environment`] |
//!
//! What the log decides by is typed ([`SystemBody`]). The rest is text that only clients and the console read.
//!
//! **Invariants:** a record never changes; a change creates a new one. Nothing in `state` reads the text.

pub mod environment;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{encoding, key::Key, record::Revision, time::Timestamp};
use environment::Environment;

/// The kind of a system record. Its number is that of the variant of [`SystemBody`], and a part of stored keys. The next
/// numbers are reserved: 1 change request, 2 content of a change request, 3 person, 4 layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum SystemKind {
    /// [`Environment`].
    Environment = 0,
}

/// The key of a system record. Records ascend by kind, then by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SystemKey {
    /// Its kind.
    pub kind: SystemKind,
    /// Its name, unique among those of its kind.
    pub name: Key,
}

/// What the log decides by. Stored: new variants go to the end, and no variant gets another field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SystemBody {
    /// An environment.
    Environment(Environment),
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
        };
        SystemKey { kind, name: self.name.clone() }
    }

    /// The environment that it is.
    #[must_use]
    pub fn environment(&self) -> &Environment {
        let SystemBody::Environment(environment) = &self.body;
        environment
    }

    /// The bytes that it takes in memory, about.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let SystemBody::Environment(environment) = &self.body;
        (size_of::<Self>() + self.text.len() + size_of_val(&environment.freezes[..])) as u64
    }
}
