//! The index of one segment: the offsets of each record's changes, and seek points by revision and by time.
//!
//! A record is found by the hash of its key, so that the index is small and its entries have one size.
//!
//! **Invariant:** the index only narrows the search: the change at an offset is compared with the record that
//! was looked up, so that two records with the same hash are never confused.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::format::{StoredChange, StoredEdit};
use crate::model::{record::Revision, time::Timestamp};

/// Bytes between two seek points: what is read at most before the revision that was looked up.
const SEEK_POINT_BYTES: u64 = 64 << 10;

/// The record whose history is queried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Subject {
    /// All definitions that ever had this key.
    Definition(String),
    /// A config of one definition; a later definition with the same key has another id.
    Config {
        /// The definition's id.
        definition: Revision,
        /// Its key.
        key: String,
    },
}

impl Subject {
    fn hash(&self) -> u64 {
        match self {
            Self::Definition(key) => xxh3_64(&[&[0], key.as_bytes()].concat()),
            Self::Config { definition, key } => {
                xxh3_64(&[&[1][..], &definition.to_le_bytes(), key.as_bytes()].concat())
            }
        }
    }

    /// Whether an edit changed this record.
    pub(super) fn matches(&self, edit: &StoredEdit) -> bool {
        match (self, edit) {
            (Self::Definition(key), StoredEdit::Definition { key: edited, .. }) => key == edited.as_str(),
            (Self::Config { definition, key }, StoredEdit::Config { definition: id, key: edited, .. }) => {
                definition == id && key == edited.as_str()
            }
            (
                Self::Config { definition, key },
                StoredEdit::ConfigWithBefore { definition: id, before, .. },
            ) => definition == id && key == before.key.as_str(),
            (
                Self::Definition(_) | Self::Config { .. },
                StoredEdit::Definition { .. }
                | StoredEdit::Reindexed { .. }
                | StoredEdit::Deleted { .. }
                | StoredEdit::Config { .. }
                | StoredEdit::Remember(_)
                | StoredEdit::Forget(_)
                | StoredEdit::ConfigWithBefore { .. },
            ) => false,
        }
    }
}

/// The hash that an edit is found by; `None` when its record has no history of its own.
fn hash_of(edit: &StoredEdit) -> Option<u64> {
    let subject = match edit {
        StoredEdit::Definition { key, .. } => Subject::Definition(key.as_str().into()),
        StoredEdit::Config { definition, key, .. } => {
            Subject::Config { definition: *definition, key: key.as_str().into() }
        }
        StoredEdit::ConfigWithBefore { definition, before, .. } => {
            Subject::Config { definition: *definition, key: before.key.as_str().into() }
        }
        StoredEdit::Reindexed { .. }
        | StoredEdit::Deleted { .. }
        | StoredEdit::Remember(_)
        | StoredEdit::Forget(_) => return None,
    };
    Some(subject.hash())
}

/// A change that reading can start at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SeekPoint {
    pub(super) revision: Revision,
    pub(super) at: Timestamp,
    pub(super) offset: u64,
}

/// The index of one segment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Index {
    /// Hash of the record, revision, offset of the change.
    entries: BTreeSet<(u64, Revision, u64)>,
    seek_points: Vec<SeekPoint>,
}

impl Index {
    /// Adds the change at an offset.
    pub(super) fn add(&mut self, change: &StoredChange, offset: u64) {
        let hashes = change.edits.iter().filter_map(hash_of);
        self.entries.extend(hashes.map(|hash| (hash, change.revision, offset)));
        if self.seek_points.last().is_none_or(|last| offset - last.offset >= SEEK_POINT_BYTES) {
            self.seek_points.push(SeekPoint { revision: change.revision, at: change.at, offset });
        }
    }

    /// The changes after `after`, up to and including `upto`, that may be the subject's, ascending: revisions
    /// and offsets.
    pub(super) fn find(
        &self,
        subject: &Subject,
        after: Revision,
        upto: Revision,
    ) -> impl DoubleEndedIterator<Item = (Revision, u64)> {
        let hash = subject.hash();
        // The set panics on a range whose start is above its end.
        let after = after.min(upto);
        self.entries
            .range((hash, after, u64::MAX)..=(hash, upto, u64::MAX))
            .map(|(_, revision, offset)| (*revision, *offset))
    }

    /// The offset to start at for a revision; 0 is the start of the segment.
    pub(super) fn offset_before(&self, revision: Revision) -> u64 {
        let place = self.seek_points.partition_point(|point| point.revision <= revision);
        // The first seek point is near the start, and reading from the start lets the totals be verified.
        if place < 2 { 0 } else { self.seek_points[place - 1].offset }
    }

    /// The seek point to start at for a time; `None` before the first change.
    pub(super) fn seek_point_at(&self, at: Timestamp) -> Option<SeekPoint> {
        let place = self.seek_points.partition_point(|point| point.at <= at);
        self.seek_points.get(place.checked_sub(1)?).copied()
    }

    /// Approximate bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.entries.len() * 40 + self.seek_points.len() * 24
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::history::writer::tests::change;

    #[test]
    fn a_subject_finds_its_own_changes_within_bounds() {
        let mut index = Index::default();
        for revision in 1..=9 {
            index.add(&StoredChange::of(&change(revision), 0), revision * 10);
        }
        let subject = Subject::Config { definition: 1, key: "k".into() };
        let find = |low, high| index.find(&subject, low, high).map(|(_, offset)| offset).collect::<Vec<_>>();
        assert_eq!(find(0, 100).len(), 9);
        assert_eq!(find(3, 5), [40, 50]);
        assert!(find(5, 5).is_empty() && find(9, 3).is_empty());
        for other in [Subject::Config { definition: 2, key: "k".into() }, Subject::Definition("k".into())] {
            assert_eq!(index.find(&other, 0, 100).count(), 0);
        }
        assert_eq!((index.offset_before(7), index.offset_before(0)), (0, 0));
        index.add(&StoredChange::of(&change(10), 0), 10 + SEEK_POINT_BYTES);
        assert_eq!(
            (index.offset_before(9), index.offset_before(10), index.offset_before(11)),
            (0, 10 + SEEK_POINT_BYTES, 10 + SEEK_POINT_BYTES)
        );
        assert_eq!(index.seek_point_at(Timestamp(0)), None);
        assert_eq!(index.seek_point_at(Timestamp(5)).map(|point| point.revision), Some(1));
        let bytes = postcard::to_stdvec(&index).unwrap();
        assert_eq!(postcard::from_bytes::<Index>(&bytes), Ok(index));
    }
}
