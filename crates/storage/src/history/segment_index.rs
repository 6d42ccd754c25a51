//! The index of one segment: the offsets of each record's changes, and seek points by revision and by time.
//!
//! A record is found by the hash of its key, so that the index is small and its entries have one size. They are kept in
//! sorted runs, of which each is at least twice as long as the next one: adding a change appends, and now and then
//! merges the last runs, instead of a search in a tree that is in no CPU cache. Source: the logarithmic method of
//! Bentley and Saxe, *Decomposable searching problems* (1980).
//!
//! **Invariant:** the index only narrows the search: the change at an offset is compared with the record that
//! was looked up, so that two records with the same hash are never confused.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_64;

use super::format::{StoredChange, StoredEdit};
use concord_model::{limits::KEY_BYTES_MAX, record::Revision, time::Timestamp};

/// Bytes between two seek points: what is read at most before the revision that was looked up.
const SEEK_POINT_BYTES: u64 = 64 << 10;
/// Entries that are kept in no order: a lookup reads them all.
const NEWEST_MAX: usize = 64;

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
            Self::Definition(key) => hash_of_definition(key),
            Self::Config { definition, key } => hash_of_config(*definition, key),
        }
    }

    /// Whether an edit changed this record.
    pub(super) fn matches(&self, edit: &StoredEdit) -> bool {
        match (self, edit) {
            (Self::Definition(key), StoredEdit::Definition { key: edited, .. }) => key == edited.as_str(),
            (Self::Definition(key), StoredEdit::DefinitionWithBefore { before, .. }) => {
                key == before.key.as_str()
            }
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
                | StoredEdit::Undeleted { .. }
                | StoredEdit::Dropped { .. }
                | StoredEdit::Skipped(_)
                | StoredEdit::System { .. }
                | StoredEdit::Config { .. }
                | StoredEdit::Remember(_)
                | StoredEdit::Forget(_)
                | StoredEdit::ConfigWithBefore { .. }
                | StoredEdit::DefinitionWithBefore { .. },
            ) => false,
        }
    }
}

fn hash_of_definition(key: &str) -> u64 {
    hash_of_parts(&[&[0], key.as_bytes()])
}

fn hash_of_config(definition: Revision, key: &str) -> u64 {
    hash_of_parts(&[&[1], &definition.to_le_bytes(), key.as_bytes()])
}

/// The hash of the parts as one text.
fn hash_of_parts(parts: &[&[u8]]) -> u64 {
    // Room for all of a valid key; nothing is allocated for it.
    let mut buffer = [0; 16 + KEY_BYTES_MAX];
    let mut end = 0;
    for part in parts {
        let Some(place) = buffer.get_mut(end..end + part.len()) else { return xxh3_64(&parts.concat()) };
        place.copy_from_slice(part);
        end += part.len();
    }
    xxh3_64(&buffer[..end])
}

/// The hash that an edit is found by; `None` when its record has no history of its own.
fn hash_of(edit: &StoredEdit) -> Option<u64> {
    match edit {
        StoredEdit::Definition { key, .. } => Some(hash_of_definition(key.as_str())),
        StoredEdit::DefinitionWithBefore { before, .. } => Some(hash_of_definition(before.key.as_str())),
        StoredEdit::Config { definition, key, .. } => Some(hash_of_config(*definition, key.as_str())),
        StoredEdit::ConfigWithBefore { definition, before, .. } => {
            Some(hash_of_config(*definition, before.key.as_str()))
        }
        StoredEdit::Reindexed { .. }
        | StoredEdit::Deleted { .. }
        | StoredEdit::Undeleted { .. }
        | StoredEdit::Dropped { .. }
        | StoredEdit::Skipped(_)
        | StoredEdit::System { .. }
        | StoredEdit::Remember(_)
        | StoredEdit::Forget(_) => None,
    }
}

/// A change that reading can start at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SeekPoint {
    pub(super) revision: Revision,
    pub(super) at: Timestamp,
    pub(super) offset: u64,
}

/// Where the changes up to a time are in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimeSeek {
    /// Read from here.
    Point(SeekPoint),
    /// It has no change at all.
    NoChange,
    /// Its first change was made later.
    Later,
}

/// Hash of the record, revision, offset of the change.
type IndexedChange = (u64, Revision, u64);

/// The entries of an index; stored as one ascending list.
#[derive(Debug, Clone, Default)]
struct IndexedChanges {
    /// Each ascends, and is at least twice as long as the next one.
    runs: Vec<Vec<IndexedChange>>,
    /// The newest ones, in no order.
    newest: Vec<IndexedChange>,
}

/// Which of several changes are looked up.
#[derive(Debug, Clone, Copy)]
pub(super) enum Few {
    /// So many of the oldest, ascending.
    Oldest(usize),
    /// So many of the newest, descending.
    Newest(usize),
}

impl IndexedChanges {
    fn push(&mut self, entry: IndexedChange) {
        self.newest.push(entry);
        if self.newest.len() >= NEWEST_MAX {
            let mut run = std::mem::replace(&mut self.newest, Vec::with_capacity(NEWEST_MAX));
            run.sort_unstable();
            while let Some(mut before) = self.runs.pop_if(|before| before.len() < 2 * run.len()) {
                before.append(&mut run);
                // A stable sort merges two ascending runs in linear time.
                before.sort();
                run = before;
            }
            run.dedup();
            self.runs.push(run);
        }
    }

    /// The entries from one to another, both included.
    fn between(&self, first: IndexedChange, last: IndexedChange, few: Few) -> Vec<IndexedChange> {
        let mut found: Vec<IndexedChange> =
            self.newest.iter().filter(|entry| (first..=last).contains(entry)).copied().collect();
        for run in &self.runs {
            let part = &run[run.partition_point(|entry| *entry < first)..];
            let part = &part[..part.partition_point(|entry| *entry <= last)];
            found.extend(match few {
                Few::Oldest(count) => &part[..count.min(part.len())],
                Few::Newest(count) => &part[part.len().saturating_sub(count)..],
            });
        }
        found.sort_unstable();
        // A change may have edited a record twice.
        found.dedup();
        match few {
            Few::Oldest(count) => found.truncate(count),
            Few::Newest(count) => {
                found.reverse();
                found.truncate(count);
            }
        }
        found
    }

    fn ascending(&self) -> Vec<IndexedChange> {
        let mut all: Vec<IndexedChange> = self.runs.iter().flatten().chain(&self.newest).copied().collect();
        all.sort();
        all.dedup();
        all
    }

    fn len(&self) -> usize {
        self.runs.iter().map(Vec::len).sum::<usize>() + self.newest.len()
    }
}

impl PartialEq for IndexedChanges {
    fn eq(&self, other: &Self) -> bool {
        self.ascending() == other.ascending()
    }
}

impl Eq for IndexedChanges {}

impl Serialize for IndexedChanges {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.ascending().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for IndexedChanges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut run = Vec::<IndexedChange>::deserialize(deserializer)?;
        // Perhaps of a damaged file; ascending already, and then this only looks.
        run.sort();
        Ok(Self { runs: vec![run], newest: Vec::new() })
    }
}

/// The index of one segment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Index {
    entries: IndexedChanges,
    seek_points: Vec<SeekPoint>,
}

impl Index {
    /// Adds the change at an offset.
    pub(super) fn add(&mut self, change: &StoredChange, offset: u64) {
        for hash in change.edits.iter().filter_map(hash_of) {
            self.entries.push((hash, change.revision, offset));
        }
        if self.seek_points.last().is_none_or(|last| offset - last.offset >= SEEK_POINT_BYTES) {
            self.seek_points.push(SeekPoint { revision: change.revision, at: change.at, offset });
        }
    }

    /// Some of the changes after `after`, up to and including `upto`, that may be the subject's: revisions and offsets.
    pub(super) fn find(
        &self,
        subject: &Subject,
        after: Revision,
        upto: Revision,
        few: Few,
    ) -> Vec<(Revision, u64)> {
        let hash = subject.hash();
        let Some(first) = after.checked_add(1).filter(|first| *first <= upto) else { return Vec::new() };
        let found = self.entries.between((hash, first, 0), (hash, upto, u64::MAX), few);
        found.into_iter().map(|(_, revision, offset)| (revision, offset)).collect()
    }

    /// The offset to start at for a revision; 0 is the start of the segment.
    pub(super) fn offset_before(&self, revision: Revision) -> u64 {
        let place = self.seek_points.partition_point(|point| point.revision <= revision);
        // The first seek point is near the start, and reading from the start lets the totals be verified.
        if place < 2 { 0 } else { self.seek_points[place - 1].offset }
    }

    /// The seek point to start at for a time.
    pub(super) fn seek_point_at(&self, at: Timestamp) -> TimeSeek {
        let place = self.seek_points.partition_point(|point| point.at <= at);
        match place.checked_sub(1).and_then(|place| self.seek_points.get(place)) {
            Some(point) => TimeSeek::Point(*point),
            None if self.seek_points.is_empty() => TimeSeek::NoChange,
            None => TimeSeek::Later,
        }
    }

    /// Approximate bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.entries.len() * size_of::<IndexedChange>() + self.seek_points.len() * 24
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::writer::tests::change;

    fn offsets(found: Vec<(Revision, u64)>) -> Vec<u64> {
        found.into_iter().map(|(_, offset)| offset).collect()
    }

    #[test]
    fn runs_find_the_same_as_an_ordered_set() {
        let (mut entries, mut set) = (IndexedChanges::default(), std::collections::BTreeSet::new());
        for number in 1..=1000_u64 {
            // Few hashes, in no order, and some entries twice.
            let entry = (number * 7919 % 13, number / 2, number / 2 * 10);
            entries.push(entry);
            set.insert(entry);
            assert!(entries.runs.windows(2).all(|pair| pair[0].len() >= 2 * pair[1].len()));
        }
        for hash in 0..14 {
            for (low, high) in [(0, u64::MAX), (100, 300), (499, 499), (501, 900)] {
                let (first, last) = ((hash, low, 0), (hash, high, u64::MAX));
                for count in [0, 1, 5, 1000] {
                    let expected: Vec<_> = set.range(first..=last).copied().take(count).collect();
                    assert_eq!(entries.between(first, last, Few::Oldest(count)), expected);
                    let expected: Vec<_> = set.range(first..=last).rev().copied().take(count).collect();
                    assert_eq!(entries.between(first, last, Few::Newest(count)), expected);
                }
            }
        }
        let bytes = postcard::to_stdvec(&entries).unwrap();
        assert_eq!(bytes, postcard::to_stdvec(&set).unwrap(), "the stored form is that of a set");
        assert_eq!(postcard::from_bytes::<IndexedChanges>(&bytes), Ok(entries));
    }

    #[test]
    fn a_subject_finds_its_own_changes_within_bounds() {
        let mut index = Index::default();
        for revision in 1..=9 {
            index.add(&StoredChange::of(&change(revision), 0), revision * 10);
        }
        let subject = Subject::Config { definition: 1, key: "k".into() };
        let find = |low, high| offsets(index.find(&subject, low, high, Few::Oldest(100)));
        assert_eq!(find(0, 100).len(), 9);
        assert_eq!(find(3, 5), [40, 50]);
        assert!(find(5, 5).is_empty() && find(9, 3).is_empty());
        for other in [Subject::Config { definition: 2, key: "k".into() }, Subject::Definition("k".into())] {
            assert!(index.find(&other, 0, 100, Few::Oldest(100)).is_empty());
        }
        assert_eq!((index.offset_before(7), index.offset_before(0)), (0, 0));
        index.add(&StoredChange::of(&change(10), 0), 10 + SEEK_POINT_BYTES);
        assert_eq!(
            (index.offset_before(9), index.offset_before(10), index.offset_before(11)),
            (0, 10 + SEEK_POINT_BYTES, 10 + SEEK_POINT_BYTES)
        );
        assert_eq!(index.seek_point_at(Timestamp(0)), TimeSeek::Later);
        assert!(matches!(index.seek_point_at(Timestamp(5)), TimeSeek::Point(point) if point.revision == 1));
        let bytes = postcard::to_stdvec(&index).unwrap();
        assert_eq!(postcard::from_bytes::<Index>(&bytes), Ok(index));
    }
}
