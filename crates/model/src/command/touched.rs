//! What a command changes. The environments of it decide whether the command may.
//!
//! A command touches a definition if it may change the content of that definition or of its configs. What follows from
//! content does not count: index entries and the steps that build them. Nor do deleted definitions that are kept, and
//! idempotency records.
//!
//! **Invariant:** applying a command changes no content that it does not touch. `crates/state/tests/replay.rs` compares
//! the states before and after each proposal.

use super::{Command, EnvironmentChange, Undeletion};
use crate::{key::Key, sabotage};

/// What a command changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch<'a> {
    /// The definition with this key, or one of its configs.
    Definition(&'a Key),
    /// The rules of an environment.
    Environment(EnvironmentChange<'a>),
}

impl Command {
    /// What it changes, each with its place among the operations where it is a batch or a transaction.
    pub fn touches(&self) -> impl Iterator<Item = (Option<u32>, Touch<'_>)> {
        let batch = if let Self::Batch(steps) = self { &steps[..] } else { &[] };
        let transaction =
            if let Self::Transaction(transaction) = self { &transaction.steps[..] } else { &[] };
        let of_transaction = transaction.iter().map(|(place, step)| (*place, step));
        let steps = (0..).zip(batch).chain(of_transaction);
        let seen = if sabotage::is("steps-not-touched") { 1 } else { usize::MAX };
        let of_steps =
            steps.take(seen).filter_map(|(place, step)| Some((Some(place), step.command.touch()?)));
        self.touch().map(|touch| (None, touch)).into_iter().chain(of_steps)
    }

    /// How many microseconds of the log's time it takes: each step of a batch has its own.
    #[must_use]
    pub fn moments(&self) -> u64 {
        let steps = match self {
            Self::Batch(steps) => steps.len(),
            Self::Transaction(transaction) => transaction.steps.len(),
            Self::CreateDefinition { .. }
            | Self::SetIndexes { .. }
            | Self::DeleteDefinition { .. }
            | Self::WriteConfig { .. }
            | Self::DeleteConfig { .. }
            | Self::Compact { .. }
            | Self::SetSchema { .. }
            | Self::SetUnique { .. }
            | Self::BuildIndex { .. }
            | Self::RaiseFeatureLevel { .. }
            | Self::Forget { .. }
            | Self::Access(_)
            | Self::UndeleteDefinition(_)
            | Self::SetProtection { .. }
            | Self::SkipRevisions { .. }
            | Self::Audit(_)
            | Self::System(_) => 1,
        };
        (steps as u64).max(1)
    }

    fn touch(&self) -> Option<Touch<'_>> {
        match self {
            Self::CreateDefinition { key, .. }
            | Self::SetIndexes { key, .. }
            | Self::DeleteDefinition { key, .. }
            | Self::SetSchema { key, .. }
            | Self::SetUnique { key, .. }
            | Self::SetProtection { key, .. }
            | Self::UndeleteDefinition(Undeletion { key, .. })
            | Self::WriteConfig { definition: key, .. }
            | Self::DeleteConfig { definition: key, .. } => Some(Touch::Definition(key)),
            // A change request changes nothing before it is applied.
            Self::System(command) => command.environment().map(Touch::Environment),
            // Only what follows from content: index entries, outcomes, what is kept for a while.
            Self::BuildIndex { .. } | Self::Forget { .. } | Self::Compact { .. } => None,
            // Neither definitions nor configs.
            Self::Access(_)
            | Self::Audit(_)
            | Self::RaiseFeatureLevel { .. }
            | Self::SkipRevisions { .. } => None,
            // Their steps do.
            Self::Batch(_) | Self::Transaction(_) => None,
        }
    }
}
