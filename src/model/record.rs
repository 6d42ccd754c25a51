//! The two stored records: a definition and a config, with the index entries that the leader computed for it.
//!
//! `data` and `schema` are kept as the JSON text that was checked at intake: reading splices the text and parses
//! nothing. **Invariant:** a record never changes; a write makes a new one.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{index::Indexing, key::Key, time::Timestamp};

/// A place in the log. It grows with every agreed entry; 0 is before the first.
pub type Revision = u64;

/// A definition: the shape of its configs and the paths by which they are found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// Unique for ever, and greater than those of all definitions that were created before: the revision that
    /// created it and the step of its entry. A definition that is deleted and created again is another one.
    pub id: u64,
    /// Its key, unique in the cluster.
    pub key: Key,
    /// Its indexed paths as they were written.
    pub indexes: Vec<String>,
    /// The JSON text of its schema; `None` takes any object.
    pub schema: Option<Arc<str>>,
    /// The slots of the indexed paths, and what of them is being built.
    pub indexing: Indexing,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was changed last.
    pub modified_at: Timestamp,
    /// The revision of its last change: its `ETag`.
    pub revision: Revision,
    /// Those of its indexed paths of which no two configs may have the same value.
    pub unique: Vec<String>,
}

/// Bits of a definition's id that tell those of one revision apart: a batch may create several.
pub const STEP_BITS: u32 = 10;

impl Definition {
    /// The revision that created it.
    #[must_use]
    pub fn born(&self) -> Revision {
        self.id >> STEP_BITS
    }

    /// The slot of an indexed path, by the path's text: a path is written in one way only.
    #[must_use]
    pub fn slot(&self, path: &str) -> Option<u16> {
        let place = self.indexes.iter().position(|indexed| indexed == path)?;
        self.indexing.slots.get(place).copied()
    }
}

/// A config: a key and the data that its definition's schema accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Its key, unique in its definition.
    pub key: Key,
    /// The JSON text of its data.
    pub data: Arc<str>,
    /// What the definition's indexes find it by.
    pub entries: Entries,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was changed last.
    pub modified_at: Timestamp,
    /// The revision of its last change: its `ETag`.
    pub revision: Revision,
}

/// One value of one indexed path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Entry {
    /// The number that the definition's `indexing` gives the path.
    pub slot: u16,
    /// The value in order-preserving bytes (`model/index.rs`).
    #[serde(with = "value_bytes")]
    pub value: Box<[u8]>,
}

/// A config's index entries, sorted, without repetition.
pub type Entries = Box<[Entry]>;

/// As one run of bytes; the derived form would write them one by one.
mod value_bytes {
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::borrowed_box, reason = "the signature that serde's `with` calls")]
    pub(super) fn serialize<S: Serializer>(value: &Box<[u8]>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Box<[u8]>, D::Error> {
        <&[u8]>::deserialize(from).map(Into::into)
    }
}
