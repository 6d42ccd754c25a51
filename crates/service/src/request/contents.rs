//! What the longer kinds of writes hold.
//!
//! **Invariant:** keys are raw texts, as in [`Write`](super::Write).

use super::Compiled;
use concord_model::{command::Expect, document::Document, record::Revision};

/// A config's data at an earlier revision, validated against the definition as it is now. The config may have been
/// deleted since.
#[derive(Debug, Clone)]
pub struct Rollback {
    /// The definition.
    pub definition: String,
    /// The definition's id: another definition of the same key never had the data.
    pub id: Revision,
    /// The config.
    pub key: String,
    /// The data at that revision.
    pub data: Document,
    /// The precondition.
    pub expect: Expect,
}

/// A new schema for a definition.
#[derive(Debug, Clone)]
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
    /// The compiled schema.
    pub compiled: Compiled,
}

/// New unique paths for a definition.
#[derive(Debug, Clone)]
pub struct NewUnique {
    /// The definition.
    pub key: String,
    /// All unique paths from now on.
    pub paths: Vec<String>,
    /// The precondition.
    pub expect: Expect,
}
