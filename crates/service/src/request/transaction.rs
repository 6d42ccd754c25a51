//! Transactions, as a caller asks for them.
//!
//! **Invariant:** the operations of a transaction are one list, so that whoever looks at all of them (rights, limits, locks)
//! needs to know nothing of its parts.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{Effect, Write, decode_operations};
use concord_model::{document::Document, record::Revision};

/// Conditions and two lists of operations, of which one is carried out.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Transaction {
    /// The conditions, then the operations for when all of them hold, then those for when one does not.
    #[serde(deserialize_with = "decode_operations")]
    pub operations: Vec<Write>,
    /// How many are conditions; each is a [`Write::Check`].
    pub conditions: usize,
    /// How many operations follow them for when all hold.
    pub then: usize,
}

/// What a config must be.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Check {
    /// The definition. Without it there is no config either.
    pub definition: String,
    /// The config.
    pub key: String,
    /// What it must be.
    pub condition: CheckCondition,
}

/// A condition of a [`Check`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum CheckCondition {
    /// Whether it exists.
    Exists(bool),
    /// It exists at this revision.
    Revision(Revision),
    /// It exists, and its data has this value at a place; `None` where there must be no such place.
    Value {
        /// The place, a JSON pointer.
        pointer: String,
        /// The value.
        equals: Option<Document>,
    },
}

impl Write {
    /// The places of the operations that are carried out if the conditions hold, or if they do not.
    #[must_use]
    pub fn chosen(&self, conditions_held: bool) -> Range<usize> {
        let all = self.operations().len();
        let Self::Transaction(transaction) = self else { return 0..all };
        let (begin, middle) = (transaction.conditions, transaction.conditions + transaction.then);
        if conditions_held { begin..middle } else { middle..all }
    }

    /// Whether it rests on configs that are read: a transaction, or a batch with a check or a read.
    pub(crate) fn rests_on_reads(&self) -> bool {
        let is_read = |operation: &Self| operation.effect() == Effect::Read;
        matches!(self, Self::Transaction(_)) || self.operations().iter().any(is_read)
    }
}
