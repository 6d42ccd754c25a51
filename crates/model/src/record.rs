//! The two stored records: a definition, and a config with the index entries that the leader computed for it.
//!
//! `data` and `schema` are stored as validated JSON text: a read copies the text into the response and parses nothing.
//! **Invariant:** a record never changes; a write creates a new one.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    encoding,
    index::{Indexing, InlineBytes},
    key::Key,
    schema::{StoredSchema, secret::MARK},
    time::Timestamp,
};

/// An index of the log. It grows with every committed entry; 0 is before the first.
pub type Revision = u64;

/// Revisions that a recovered cluster has skipped. The cluster before it may have given them out for changes that are lost,
/// so they never stand for anything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoidRevisions {
    /// The first of them.
    pub first: Revision,
    /// The last of them.
    pub last: Revision,
}

/// A definition: the schema of its configs and the paths that index them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// Unique for ever, and greater than the ids of all definitions created before: the revision that created it and
    /// the step of its batch. A definition that is deleted and created again has another id.
    pub id: u64,
    /// Its key, unique in the cluster.
    pub key: Key,
    /// Its indexed paths as they were written.
    pub indexes: Vec<String>,
    /// The JSON text of its schema; without one any object is valid.
    #[serde(with = "super::schema::stored")]
    pub schema: Option<StoredSchema>,
    /// The slots of the indexed paths, and the build in progress.
    pub indexing: Indexing,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub modified_at: Timestamp,
    /// The revision of its last change: its `ETag`.
    pub revision: Revision,
    /// The indexed paths at which no two configs may have the same value.
    pub unique: Vec<String>,
    /// Whether its deletion is rejected.
    pub protected: bool,
    /// Whether it exists, and since when.
    pub standing: Standing,
}

/// Whether a definition exists, and when it did not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// When it was deleted; `None` while it exists. A deleted definition is kept for a while, so that it can be undone.
    pub deleted: Option<Deletion>,
    /// When it did not exist between its creation and now, oldest first; those that the history has compacted may be
    /// missing.
    pub absences: Vec<Absence>,
}

/// The deletion of a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deletion {
    /// The revision that deleted it.
    pub revision: Revision,
    /// The time of the deletion.
    pub at: Timestamp,
}

/// Which of the deleted definitions that are kept: one that returned may be deleted again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeletedId {
    /// The revision that deleted it.
    pub deleted: Revision,
    /// The definition's id: one revision may delete several.
    pub id: u64,
}

/// A time during which a definition was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absence {
    /// The revision that deleted it.
    pub deleted: Revision,
    /// The revision that undid the deletion.
    pub undeleted: Revision,
}

/// Low bits of a definition's id, the step of its batch: one revision may create several definitions.
pub const STEP_BITS: u32 = 10;

impl Definition {
    /// The revision that created it, taken from the id.
    #[must_use]
    pub fn created_revision(&self) -> Revision {
        self.id >> STEP_BITS
    }

    /// Whether the schema has the mark of a secret field somewhere: derived, and not stored.
    #[must_use]
    pub fn may_have_secrets(&self) -> bool {
        // The text is one that this program wrote, so the name has no escapes.
        self.schema.as_ref().is_some_and(|schema| schema.contains(MARK))
    }

    /// When it was deleted, if it did not exist at a revision after its creation.
    #[must_use]
    pub fn absent_at(&self, at: Revision) -> Option<Absence> {
        let mut absences = self.standing.absences.iter();
        absences.find(|absence| (absence.deleted..absence.undeleted).contains(&at)).copied()
    }

    /// Whether it existed at a revision, as far as its record tells.
    #[must_use]
    pub fn existed_at(&self, at: Revision) -> bool {
        let is_before_end = self.standing.deleted.is_none_or(|deletion| at < deletion.revision);
        self.created_revision() <= at && is_before_end && self.absent_at(at).is_none()
    }

    /// The slot of an indexed path, by its text: each path has exactly one spelling.
    #[must_use]
    pub fn slot(&self, path: &str) -> Option<u16> {
        let position = self.indexes.iter().position(|indexed| indexed == path)?;
        self.indexing.slots.get(position).copied()
    }
}

/// A config: a key and data that were valid by its definition's schema.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Its key, unique in its definition.
    pub key: Key,
    /// The JSON text of its data.
    #[serde(deserialize_with = "encoding::shared_text")]
    pub data: Arc<str>,
    /// Its entries in the definition's indexes.
    pub entries: IndexEntries,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub modified_at: Timestamp,
    /// The revision of its last change: its `ETag`.
    pub revision: Revision,
}

/// One value of one indexed path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct IndexEntry {
    /// The slot that the definition's `indexing` assigns to the path.
    pub slot: u16,
    /// The value as bytes that sort like the values (`index/value.rs`).
    pub value: InlineBytes,
}

/// A config's index entries, sorted and unique.
pub type IndexEntries = Box<[IndexEntry]>;
