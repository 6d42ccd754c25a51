//! Refusals: what the log decides against a command, and what is wrong with a request.
//!
//! A [`Rejection`] is replicated and the same on every node. An [`Invalid`] is found before anything is
//! proposed. Neither knows an HTTP status; `api/reply.rs` does.

use serde::{Deserialize, Serialize};

use super::{command::THIS_ENTRY, key::Key, record::Revision};

/// A verdict against a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Rejection {
    /// A create of a key that exists.
    #[error("definition exists already")]
    DefinitionExists,
    /// No such definition.
    #[error("definition does not exist")]
    DefinitionNotFound,
    /// A restricted delete of a definition that has configs.
    #[error("definition still has {0} configs")]
    DefinitionNotEmpty(u64),
    /// A create of a key that exists.
    #[error("config exists already")]
    ConfigExists,
    /// No such config.
    #[error("config does not exist")]
    ConfigNotFound,
    /// `If-Match` names another revision than the record's.
    #[error("the current revision is {}, not the expected one", shown(*current))]
    Precondition {
        /// The record's revision.
        current: Revision,
    },
    /// The idempotency key has been used with another request.
    #[error("the idempotency key was used with another request")]
    RequestReused,
    /// A config has the value of a unique path already.
    #[error("`{path}` is unique, and config `{by}` has the same value there")]
    NotUnique {
        /// The unique path.
        path: String,
        /// The config that has the value.
        by: Key,
    },
    /// A step of a batch was rejected, and so nothing of the batch was done.
    #[error("operation {index}: {rejection}")]
    InBatch {
        /// Which, from 0.
        index: u32,
        /// Why.
        rejection: Box<Rejection>,
    },
}

fn shown(revision: Revision) -> String {
    if revision == THIS_ENTRY { "the batch's own".into() } else { revision.to_string() }
}

/// One thing that is wrong with a request, with the place where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// What is wrong, for people.
    pub msg: String,
    /// The way to the place, outermost first; empty when there is none.
    pub loc: Vec<Step>,
}

/// One step of the way into a body: a member's name or an element's number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// A member of an object.
    Name(String),
    /// An element of an array.
    Place(u64),
}

/// Why a request can't be proposed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Invalid {
    /// Parameter, key, index, schema or data break a rule. All violations that were found, at least one.
    Violations(Vec<Violation>),
    /// Data or schema are longer than the limit that the text names.
    TooLarge(String),
    /// The same, with the place where.
    TooLargeAt(Violation),
}

impl Violation {
    /// A violation without a place.
    #[must_use]
    pub fn new(msg: impl Into<String>) -> Self {
        Self { msg: msg.into(), loc: Vec::new() }
    }

    /// A violation at a place.
    #[must_use]
    pub fn at(loc: Vec<Step>, msg: impl Into<String>) -> Self {
        Self { msg: msg.into(), loc }
    }
}

impl From<Violation> for Invalid {
    fn from(violation: Violation) -> Self {
        Self::Violations(vec![violation])
    }
}

impl From<&str> for Step {
    fn from(name: &str) -> Self {
        Self::Name(name.into())
    }
}
