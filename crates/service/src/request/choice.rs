//! Batches on conditions, as a caller asks for them.
//!
//! **Invariant:** the operations of a choice are one list, so that whoever looks at all of them (rights, limits, locks)
//! needs to know nothing of its parts.

use std::ops::Range;

use super::{Effect, Write};
use concord_model::{document::Document, record::Revision};

/// Conditions and two batches, of which one is carried out.
#[derive(Debug, Clone)]
pub struct Choice {
    /// The conditions, then the operations for when all of them hold, then those for when one does not.
    pub operations: Vec<Write>,
    /// How many are conditions; each is a [`Write::Check`].
    pub conditions: usize,
    /// How many operations follow them for when all hold.
    pub then: usize,
}

/// What a config must be.
#[derive(Debug, Clone)]
pub struct Check {
    /// The definition. Without it there is no config either.
    pub definition: String,
    /// The config.
    pub key: String,
    /// What it must be.
    pub condition: CheckCondition,
}

/// A condition of a [`Check`].
#[derive(Debug, Clone, PartialEq)]
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
        let Self::Choice(choice) = self else { return 0..all };
        let (begin, middle) = (choice.conditions, choice.conditions + choice.then);
        if conditions_held { begin..middle } else { middle..all }
    }

    /// Whether it is a batch that rests on configs that are read.
    pub(crate) fn is_transaction(&self) -> bool {
        let is_read = |operation: &Self| operation.effect() == Effect::Read;
        matches!(self, Self::Choice(_)) || self.operations().iter().any(is_read)
    }
}
