//! The header of a snapshot file: what the file holds.
//!
//! **Invariant:** a header of an unknown format or feature level is reported as such and never as damage.

use serde::{Deserialize, Serialize};

use crate::{Position, StoreError};
use concord_model::{
    encoding,
    feature::level_max,
    record::{Revision, VoidRevisions},
    time::Timestamp,
};
use concord_state::State;

const MAGIC: &[u8; 8] = b"CONCSNAP";
pub(super) const FORMAT: u16 = 1;

/// The first frame: what the file holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(super) format: u16,
    /// The feature level of the state. It is read before what follows, which a newer level may have changed.
    pub(in crate::snapshot) feature_level: u32,
    pub(crate) position: Position,
    pub(in crate::snapshot) revision: Revision,
    pub(in crate::snapshot) last_at: Timestamp,
    pub(in crate::snapshot) definitions: u64,
    pub(in crate::snapshot) configs: u64,
    pub(in crate::snapshot) requests: u64,
    pub(in crate::snapshot) access_keys: u64,
    pub(in crate::snapshot) audit_anchors: u64,
    pub(in crate::snapshot) system: u64,
    pub(in crate::snapshot) digest: u128,
    pub(in crate::snapshot) compaction_revision: Revision,
    pub(in crate::snapshot) root_disabled: bool,
    pub(in crate::snapshot) void: Vec<VoidRevisions>,
    /// Bytes of all blocks before they were compressed. Not stored: known once the file was written or read through.
    #[serde(skip)]
    pub(in crate::snapshot) content_bytes: u64,
}

impl Header {
    pub(super) fn of(state: &State, position: &Position) -> Self {
        Self {
            format: FORMAT,
            feature_level: state.feature_level(),
            position: position.clone(),
            revision: state.revision(),
            last_at: state.last_at(),
            definitions: state.stored_definitions().count() as u64,
            configs: state.config_count() + state.deleted_config_count(),
            requests: state.requests().count() as u64,
            access_keys: state.access_key_count(),
            audit_anchors: state.audit_anchors().count() as u64,
            system: state.system_records().count() as u64,
            digest: state.digest(),
            compaction_revision: state.compaction_revision(),
            root_disabled: state.is_root_disabled(),
            void: state.void_revisions().to_vec(),
            content_bytes: 0,
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        encoding::append(MAGIC.to_vec(), self)
    }

    /// Decodes the first frame, whose checksum is right.
    pub(super) fn from_bytes(bytes: &[u8], name: &str) -> Result<Self, StoreError> {
        let damaged = |what: &str| StoreError::Damaged(format!("{name} is damaged: {what}"));
        let undecodable = |_| damaged("its header can't be decoded");
        let header = bytes.strip_prefix(MAGIC).ok_or_else(|| damaged("it is not a snapshot"))?;
        let (format, rest) = postcard::take_from_bytes::<u16>(header).map_err(undecodable)?;
        if format != FORMAT {
            return Err(StoreError::unknown_format(name, format, FORMAT..=FORMAT));
        }
        let (level, _) = postcard::take_from_bytes::<u32>(rest).map_err(undecodable)?;
        if level > level_max() {
            return Err(StoreError::unknown_level(name, level));
        }
        postcard::from_bytes(header).map_err(undecodable)
    }

    pub(super) fn records(&self) -> u64 {
        let records = self.definitions.saturating_add(self.configs).saturating_add(self.requests);
        records
            .saturating_add(self.access_keys)
            .saturating_add(self.audit_anchors)
            .saturating_add(self.system)
    }
}
