//! The header of a snapshot file: what the file holds.
//!
//! **Invariant:** a header of an unknown format or feature level is reported as such and never as damage.

use serde::{Deserialize, Serialize};

use crate::{Position, StoreError};
use concord_model::{
    encoding,
    feature::{LEVEL_MAX, LEVEL_MIN},
    record::Revision,
    time::Timestamp,
};
use concord_state::State;

const MAGIC: &[u8; 8] = b"CONCSNAP";
/// The format of a state of feature level 1.
const FORMAT_LEVEL_1: u16 = 2;
/// The format since feature level 2: the header goes on with [`LevelHeader`].
pub(super) const FORMAT: u16 = 3;

/// The first frame: what the file holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(super) format: u16,
    pub(crate) position: Position,
    /// The state's revision: at feature level 1 the same as the position's index, and in every state that was written
    /// before entries could hold several proposals.
    pub(in crate::snapshot) revision: Revision,
    pub(in crate::snapshot) last_at: Timestamp,
    pub(in crate::snapshot) definitions: u64,
    pub(in crate::snapshot) configs: u64,
    pub(in crate::snapshot) requests: u64,
    pub(in crate::snapshot) digest: u128,
    pub(in crate::snapshot) compaction_revision: Revision,
    #[serde(skip)]
    pub(in crate::snapshot) level: LevelHeader,
    /// Bytes of all blocks before they were compressed. Not stored: known once the file was written or read through.
    #[serde(skip)]
    pub(in crate::snapshot) content_bytes: u64,
}

/// What follows the header in format 3: what the state has since feature level 2.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LevelHeader {
    pub(in crate::snapshot) feature_level: u32,
    pub(in crate::snapshot) access_keys: u64,
    pub(in crate::snapshot) root_disabled: bool,
}

impl Default for LevelHeader {
    /// That of a state of format 2.
    fn default() -> Self {
        Self { feature_level: LEVEL_MIN, access_keys: 0, root_disabled: false }
    }
}

impl Header {
    pub(super) fn of(state: &State, position: &Position) -> Self {
        Self {
            format: if state.feature_level() == LEVEL_MIN { FORMAT_LEVEL_1 } else { FORMAT },
            position: position.clone(),
            revision: state.revision(),
            last_at: state.last_at(),
            definitions: state.definitions().count() as u64,
            configs: state.config_count(),
            requests: state.requests().count() as u64,
            digest: state.digest(),
            compaction_revision: state.compaction_revision(),
            level: LevelHeader {
                feature_level: state.feature_level(),
                access_keys: state.access_key_count(),
                root_disabled: state.is_root_disabled(),
            },
            content_bytes: 0,
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let bytes = encoding::append(MAGIC.to_vec(), self);
        if self.format == FORMAT_LEVEL_1 { bytes } else { encoding::append(bytes, &self.level) }
    }

    /// Decodes the first frame, whose checksum is right.
    pub(super) fn from_bytes(bytes: &[u8], name: &str) -> Result<Self, StoreError> {
        let damaged = |what: &str| StoreError::Damaged(format!("{name} is damaged: {what}"));
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| damaged("it is not a snapshot"))?;
        let (format, _) =
            postcard::take_from_bytes::<u16>(rest).map_err(|_| damaged("its header has no format"))?;
        if !(FORMAT_LEVEL_1..=FORMAT).contains(&format) {
            return Err(StoreError::unknown_format(name, format, FORMAT_LEVEL_1..=FORMAT));
        }
        let (header, rest) =
            postcard::take_from_bytes::<Header>(rest).map_err(|_| damaged("its header can't be decoded"))?;
        if format == FORMAT_LEVEL_1 {
            return Ok(header);
        }
        let level: LevelHeader =
            postcard::from_bytes(rest).map_err(|_| damaged("its header can't be decoded"))?;
        if level.feature_level > LEVEL_MAX {
            return Err(StoreError::unknown_level(name, level.feature_level));
        }
        Ok(Header { level, ..header })
    }

    pub(super) fn records(&self) -> u64 {
        let records = self.definitions.saturating_add(self.configs).saturating_add(self.requests);
        records.saturating_add(self.level.access_keys)
    }
}
