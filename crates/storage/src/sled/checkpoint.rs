//! The checkpoint: the place in the log, and the digest, of what all trees hold together.
//!
//! **Invariant:** bytes of an unknown format or level are reported as such and never as damaged: what is damaged is
//! removed and written again.

use serde::{Deserialize, Serialize};

use super::trees::TreeError;
use crate::Position;
use concord_model::{
    encoding,
    feature::level_max,
    record::{Revision, VoidRevisions},
    time::Timestamp,
};
use concord_state::State;

/// The format of a checkpoint; the first byte.
const FORMAT: u8 = 1;

/// What all trees hold together, in `meta`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    /// The feature level of the state. It is read before what follows, which a newer level may have changed.
    pub(crate) feature_level: u32,
    pub(crate) position: Position,
    pub(crate) revision: Revision,
    pub(crate) last_at: Timestamp,
    pub(crate) digest: u128,
    pub(crate) compaction_revision: Revision,
    pub(crate) root_disabled: bool,
    pub(crate) void: Vec<VoidRevisions>,
}

impl Checkpoint {
    pub(crate) fn of(state: &State, position: &Position) -> Self {
        Self {
            feature_level: state.feature_level(),
            position: position.clone(),
            revision: state.revision(),
            last_at: state.last_at(),
            digest: state.digest(),
            compaction_revision: state.compaction_revision(),
            root_disabled: state.is_root_disabled(),
            void: state.void_revisions().to_vec(),
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        encoding::append(vec![FORMAT], self)
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, TreeError> {
        let damaged = || TreeError::new("the checkpoint of sled can't be decoded");
        let (format, checkpoint) = bytes.split_first().ok_or_else(damaged)?;
        if *format != FORMAT {
            return Err(TreeError::newer(format!(
                "sled has format {format}, and this version knows format {FORMAT}; start a newer version"
            )));
        }
        let (level, _) = postcard::take_from_bytes::<u32>(checkpoint).map_err(|_| damaged())?;
        let known = level_max();
        if level > known {
            return Err(TreeError::newer(format!(
                "sled has feature level {level}, and this version knows {known}; start a newer version"
            )));
        }
        let (checkpoint, rest) = postcard::take_from_bytes::<Self>(checkpoint).map_err(|_| damaged())?;
        if rest.is_empty() { Ok(checkpoint) } else { Err(damaged()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_keeps_its_bytes_and_an_unknown_one_is_not_damaged() {
        let position = Position { index: 7, raft_meta: vec![1] };
        let (revision, last_at) = (7, Timestamp(3));
        let checkpoint = Checkpoint {
            feature_level: 1,
            position,
            revision,
            last_at,
            digest: 5,
            compaction_revision: 2,
            root_disabled: true,
            void: vec![VoidRevisions { first: 4, last: 6 }],
        };
        let bytes = checkpoint.to_bytes();
        assert_eq!(bytes, [1, 1, 7, 1, 1, 7, 3, 5, 2, 1, 1, 4, 6]);
        assert_eq!(Checkpoint::from_bytes(&bytes).unwrap(), checkpoint);
        for (at, value, newer) in [(0, 3, true), (1, 9, true), (0, 0, true), (9, 2, false)] {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            assert_eq!(Checkpoint::from_bytes(&bytes).unwrap_err().newer, newer, "byte {at} is {value}");
        }
        assert!(!Checkpoint::from_bytes(&[&bytes[..], &[0]].concat()).unwrap_err().newer);
    }
}
