//! The feature level of the cluster: which commands, rules and formats all members know (`model/feature.rs`).
//!
//! **Invariant:** the level rises by one at a time and never falls. Whether it rises does not depend on what this version
//! knows: every node that applies the entry must decide the same, and one that does not know the level cannot decode it.

use super::{State, apply::EntryContext};
use concord_model::{
    command::{Applied, StepOutcome},
    feature::LEVEL_MIN,
};

/// The level; [`LEVEL_MIN`] in a state that nothing has raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FeatureLevel(pub(super) u32);

impl Default for FeatureLevel {
    fn default() -> Self {
        Self(LEVEL_MIN)
    }
}

impl State {
    /// The feature level of the cluster. What a level adds is used when this is at least that level.
    #[must_use]
    pub fn feature_level(&self) -> u32 {
        self.feature_level.0
    }

    /// Raises the level when `to` is the next one. Whoever proposed it late finds it done.
    pub(super) fn raise_feature_level(&mut self, context: EntryContext, to: u32) -> Applied {
        if to == self.feature_level.0 + 1 {
            self.feature_level = FeatureLevel(to);
        }
        context.applied(StepOutcome::NoRecord)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::{
        command::{Command, Proposal},
        time::Timestamp,
    };

    #[test]
    fn the_level_rises_by_one_and_is_part_of_the_digest() {
        let mut state = State::new();
        let digest = state.digest();
        for (revision, to, expected) in [(1, 0, 1), (2, 3, 1), (3, 2, 2), (4, 1, 2), (5, 2, 2), (6, 4, 2)] {
            let (at, by) = (Timestamp(revision), "concord".into());
            let command = Command::RaiseFeatureLevel { to };
            let proposal =
                Proposal { at, by, reason: None, request: None, definition_read: None, command, key: None };
            let (_, change) = state.apply(revision, &proposal);
            assert_eq!((change, state.feature_level()), (None, expected), "to {to}");
            assert_eq!(state.digest() == digest, expected == 1, "to {to}");
        }
    }
}
