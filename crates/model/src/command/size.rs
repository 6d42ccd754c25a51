//! About how long the encoding of a command is, so that its buffer is allocated once.
//!
//! **Invariant:** it decides nothing: a wrong figure costs another allocation.

use super::{BatchStep, Command, Transaction};

/// Room for what a command, and a step of a batch, has beside texts.
const STEP_HEAD_BYTES: usize = 24;
/// Room for what an index entry has beside its value.
const ENTRY_HEAD_BYTES: usize = 6;

impl Command {
    /// About how many bytes its encoding has, where they are many.
    pub(super) fn rough_bytes(&self) -> usize {
        if let Self::WriteConfig { definition, key, data, entries, .. } = self {
            let entries: usize = entries.iter().map(|entry| ENTRY_HEAD_BYTES + entry.value.len()).sum();
            return STEP_HEAD_BYTES + definition.as_str().len() + key.as_str().len() + data.len() + entries;
        }
        let of_step = |step: &BatchStep| STEP_HEAD_BYTES + step.command.rough_bytes();
        if let Self::Batch(steps) = self {
            return steps.iter().map(of_step).sum();
        }
        if let Self::Transaction(Transaction { steps, .. }) = self {
            return steps.iter().map(|(_, step)| of_step(step)).sum();
        }
        0
    }
}
