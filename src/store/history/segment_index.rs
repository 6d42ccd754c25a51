//! Where the changes of a key stand in a segment, and where a revision or a time is to be looked for.
//!
//! **Invariant:** an index only points: what is read at a place is compared with what was looked for, so that two
//! keys with one hash are never taken for each other.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::format::{StoredChange, StoredEdit};
use crate::model::{record::Revision, time::Timestamp};

/// Bytes between two marks: what is read on the way to a revision.
const MARK_BYTES: u64 = 64 << 10;

/// Whose history is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Subject {
    /// A definition's, of all its lives.
    Definition(String),
    /// A config's, in this life of its definition.
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

    /// Whether an edit is one of its.
    pub(in crate::store) fn has(&self, edit: &StoredEdit) -> bool {
        match (self, edit) {
            (Self::Definition(key), StoredEdit::Definition { key: edited, .. }) => key == edited.as_str(),
            (Self::Config { definition, key }, StoredEdit::Config { definition: id, key: edited, .. }) => {
                definition == id && key == edited.as_str()
            }
            (Self::Config { definition, key }, StoredEdit::ConfigOver { definition: id, before, .. }) => {
                definition == id && key == before.key.as_str()
            }
            (
                Self::Definition(_) | Self::Config { .. },
                StoredEdit::Definition { .. }
                | StoredEdit::Reindexed { .. }
                | StoredEdit::Config { .. }
                | StoredEdit::Remember(_)
                | StoredEdit::Forget(_)
                | StoredEdit::ConfigOver { .. },
            ) => false,
        }
    }
}

/// The hash that an edit is found by; `None` when nobody asks for its history.
fn hash_of(edit: &StoredEdit) -> Option<u64> {
    let subject = match edit {
        StoredEdit::Definition { key, .. } => Subject::Definition(key.as_str().into()),
        StoredEdit::Config { definition, key, .. } => {
            Subject::Config { definition: *definition, key: key.as_str().into() }
        }
        StoredEdit::ConfigOver { definition, before, .. } => {
            Subject::Config { definition: *definition, key: before.key.as_str().into() }
        }
        StoredEdit::Reindexed { .. } | StoredEdit::Remember(_) | StoredEdit::Forget(_) => return None,
    };
    Some(subject.hash())
}

/// A change that reading may begin at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::store) struct Mark {
    pub(in crate::store) revision: Revision,
    pub(in crate::store) at: Timestamp,
    pub(in crate::store) offset: u64,
}

/// The index of one segment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::store) struct Index {
    /// Hash of the key, revision, where the change stands.
    entries: BTreeSet<(u64, Revision, u64)>,
    marks: Vec<Mark>,
}

impl Index {
    /// Takes a change that stands at a place.
    pub(in crate::store) fn add(&mut self, change: &StoredChange, offset: u64) {
        let hashes = change.edits.iter().filter_map(hash_of);
        self.entries.extend(hashes.map(|hash| (hash, change.revision, offset)));
        if self.marks.last().is_none_or(|last| offset - last.offset >= MARK_BYTES) {
            self.marks.push(Mark { revision: change.revision, at: change.at, offset });
        }
    }

    /// Changes that may be a subject's, above `low` and at most `high`, ascending: their revisions and places.
    pub(in crate::store) fn find(
        &self,
        subject: &Subject,
        low: Revision,
        high: Revision,
    ) -> impl DoubleEndedIterator<Item = (Revision, u64)> {
        let hash = subject.hash();
        // An empty range must not be asked of the set.
        let low = low.min(high);
        self.entries
            .range((hash, low, u64::MAX)..=(hash, high, u64::MAX))
            .map(|(_, revision, offset)| (*revision, *offset))
    }

    /// Where to begin for a revision; 0 is the beginning of the segment.
    pub(in crate::store) fn before(&self, revision: Revision) -> u64 {
        let place = self.marks.partition_point(|mark| mark.revision <= revision);
        // From the first mark on is as much as from the beginning, and that lets the whole be compared.
        if place < 2 { 0 } else { self.marks[place - 1].offset }
    }

    /// Where to begin for a time; `None` before the first change.
    pub(in crate::store) fn at(&self, at: Timestamp) -> Option<Mark> {
        let place = self.marks.partition_point(|mark| mark.at <= at);
        self.marks.get(place.checked_sub(1)?).copied()
    }

    /// Rough bytes in memory.
    pub(in crate::store) fn bytes(&self) -> usize {
        self.entries.len() * 40 + self.marks.len() * 24
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
        assert_eq!((index.before(7), index.before(0)), (0, 0));
        index.add(&StoredChange::of(&change(10), 0), 10 + MARK_BYTES);
        assert_eq!(
            (index.before(9), index.before(10), index.before(11)),
            (0, 10 + MARK_BYTES, 10 + MARK_BYTES)
        );
        assert_eq!(index.at(Timestamp(0)), None);
        assert_eq!(index.at(Timestamp(5)).map(|mark| mark.revision), Some(1));
        let bytes = postcard::to_stdvec(&index).unwrap();
        assert_eq!(postcard::from_bytes::<Index>(&bytes), Ok(index));
    }
}
