//! The checkpoint: the place in the log, and the digest, of what all trees hold together.
//!
//! A checkpoint of feature level 1 has format 1, which the first version reads; any other has format 2, in which the
//! feature level follows, and whether the root key is disabled.
//!
//! **Invariant:** bytes of an unknown format or level are reported as such and never as damaged: what is damaged is
//! removed and written again.

use serde::{Deserialize, Serialize};

use super::trees::TreeError;
use crate::Position;
use concord_model::{
    encoding,
    feature::{LEVEL_MAX, LEVEL_MIN},
    record::Revision,
    time::Timestamp,
};
use concord_state::State;

/// The format of a checkpoint of feature level 1; the first byte.
const FORMAT_LEVEL_1: u8 = 1;
/// The format since feature level 2: [`Level`] follows.
const FORMAT: u8 = 2;

/// What all trees hold together, in `meta`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    pub(crate) position: Position,
    /// At feature level 1 the same as the position's index.
    pub(crate) revision: Revision,
    pub(crate) last_at: Timestamp,
    pub(crate) digest: u128,
    pub(crate) compaction_revision: Revision,
    #[serde(skip)]
    pub(crate) level: Level,
}

/// What follows in format 2: what the state has since feature level 2.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Level {
    pub(crate) feature_level: u32,
    pub(crate) root_disabled: bool,
}

impl Default for Level {
    /// That of a checkpoint of format 1.
    fn default() -> Self {
        Self { feature_level: LEVEL_MIN, root_disabled: false }
    }
}

impl Checkpoint {
    pub(crate) fn of(state: &State, position: &Position) -> Self {
        Self {
            position: position.clone(),
            revision: state.revision(),
            last_at: state.last_at(),
            digest: state.digest(),
            compaction_revision: state.compaction_revision(),
            level: Level { feature_level: state.feature_level(), root_disabled: state.is_root_disabled() },
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        if self.level == Level::default() {
            return encoding::append(vec![FORMAT_LEVEL_1], self);
        }
        encoding::append(encoding::append(vec![FORMAT], self), &self.level)
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, TreeError> {
        let damaged = || TreeError::new("the checkpoint of sled can't be decoded");
        let (format, rest) = bytes.split_first().ok_or_else(damaged)?;
        if !(FORMAT_LEVEL_1..=FORMAT).contains(format) {
            return Err(TreeError::newer(format!(
                "sled has format {format}, and this version knows the formats {FORMAT_LEVEL_1} to {FORMAT}; start a \
                 newer version"
            )));
        }
        let (checkpoint, rest) = postcard::take_from_bytes::<Self>(rest).map_err(|_| damaged())?;
        if *format == FORMAT_LEVEL_1 {
            return if rest.is_empty() { Ok(checkpoint) } else { Err(damaged()) };
        }
        let (level, rest) = postcard::take_from_bytes::<Level>(rest).map_err(|_| damaged())?;
        if level.feature_level > LEVEL_MAX {
            return Err(TreeError::newer(format!(
                "sled has feature level {}, and this version knows {LEVEL_MAX}; start a newer version",
                level.feature_level
            )));
        }
        if rest.is_empty() { Ok(Self { level, ..checkpoint }) } else { Err(damaged()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_of_level_1_keeps_its_bytes_and_an_unknown_one_is_not_damaged() {
        let position = Position { index: 7, raft_meta: vec![1] };
        let level = Level::default();
        let (revision, last_at) = (7, Timestamp(3));
        let one = Checkpoint { position, revision, last_at, digest: 5, compaction_revision: 2, level };
        let bytes = one.to_bytes();
        assert_eq!(bytes, [1, 7, 1, 1, 7, 3, 5, 2]);
        assert_eq!(Checkpoint::from_bytes(&bytes).unwrap(), one);
        let two = Checkpoint { level: Level { feature_level: 2, root_disabled: true }, ..one };
        let bytes = two.to_bytes();
        assert_eq!(bytes, [2, 7, 1, 1, 7, 3, 5, 2, 2, 1]);
        assert_eq!(Checkpoint::from_bytes(&bytes).unwrap(), two);
        let level = bytes.len() - 2;
        for (at, value, newer) in [(0, 3, true), (level, 9, true), (0, 0, true), (0, 1, false)] {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            assert_eq!(Checkpoint::from_bytes(&bytes).unwrap_err().newer, newer, "byte {at} is {value}");
        }
    }
}
