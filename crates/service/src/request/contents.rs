//! What the longer kinds of writes hold.
//!
//! **Invariant:** keys are raw texts, as in [`Write`](super::Write).

use serde::{Deserialize, Serialize};

use super::Compiled;
use concord_model::{command::Expect, document::Document, error::Rejection, record::Revision};

/// A config's data at an earlier revision, validated against the definition as it is now. The config may have been
/// deleted since.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Rollback {
    /// The definition.
    pub definition: String,
    /// The config.
    pub key: String,
    /// What it writes.
    pub restored: Restored,
    /// The precondition.
    pub expect: Expect,
}

/// What a rollback writes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Restored {
    /// The data that the config had at this revision. The node that was asked looks it up before it decides or forwards
    /// the write, but not for a request that was decided before: its outcome is remembered.
    At(Revision),
    /// That data.
    Found {
        /// The definition's id: another definition of the same key never had the data.
        id: Revision,
        /// The data.
        data: Document,
    },
    /// Why there is none. The transaction is refused for it if the rollback is in the list that is carried out.
    Refused(Rejection),
}

/// A new schema for a definition.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewSchema {
    /// The definition.
    pub key: String,
    /// Its schema from now on; `None` accepts any object.
    pub schema: Option<Document>,
    /// Whether `format` is asserted; `None` when the caller does not say.
    pub format_assertion: Option<bool>,
    /// The precondition.
    pub expect: Expect,
    /// Store it even though configs violate it.
    pub force: bool,
    /// The compiled schema; not sent.
    #[serde(skip)]
    pub compiled: Compiled,
}

/// New unique paths for a definition.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NewUnique {
    /// The definition.
    pub key: String,
    /// All unique paths from now on.
    pub paths: Vec<String>,
    /// The precondition.
    pub expect: Expect,
}
