//! The newest entries of the log in memory, for applying and replicating without the log's lock and without a disk.
//!
//! raft-log has a cache with the same bytes. It is only accessible through the log's lock, and does not tell beforehand
//! whether an entry must be read from a file.
//!
//! **Invariant:** every entry of the log from `first` on is here, in order and without a gap.

use std::collections::VecDeque;

use crate::types::Entry;

/// Bytes of entries here. Less than raft-log's own cache, so these are the bytes that it has in memory too.
const BYTES_MAX: usize = 16 << 20;
/// Memory of an entry in addition to its bytes.
const ENTRY_OVERHEAD_BYTES: usize = 128;

/// The newest entries.
#[derive(Debug, Default)]
pub(super) struct RecentEntries {
    first: u64,
    /// Each with the length of its payload.
    entries: VecDeque<(usize, Entry)>,
    bytes: usize,
}

/// What was found of a range.
#[derive(Debug, PartialEq)]
pub(super) enum RecentFound {
    /// All entries of the range, or as many as were asked for in bytes.
    Here(Vec<Entry>),
    /// The range begins before this first entry.
    Before(u64),
}

impl RecentEntries {
    /// None yet, of a log whose next entry has this index.
    pub(super) fn after(next: u64) -> Self {
        Self { first: next, ..Self::default() }
    }

    /// Its entries, and their bytes.
    pub(super) fn figures(&self) -> (usize, usize) {
        (self.entries.len(), self.bytes)
    }

    /// Adds entries that were appended, each with the length of its payload.
    pub(super) fn append(&mut self, entries: Vec<(usize, Entry)>) {
        if let Some((_, entry)) = entries.first() {
            let index = entry.log_id.index;
            self.truncate(index);
            if self.end() != index {
                *self = Self::after(index);
            }
        }
        for (length, entry) in entries {
            self.bytes += length + ENTRY_OVERHEAD_BYTES;
            self.entries.push_back((length, entry));
        }
        while self.bytes > BYTES_MAX && self.entries.len() > 1 {
            self.evict();
        }
    }

    /// Removes the entries from this index on.
    pub(super) fn truncate(&mut self, index: u64) {
        while self.entries.back().is_some_and(|(_, entry)| entry.log_id.index >= index) {
            if let Some((length, _)) = self.entries.pop_back() {
                self.bytes -= length + ENTRY_OVERHEAD_BYTES;
            }
        }
        self.first = self.first.min(index);
    }

    /// Removes the entries up to this index.
    pub(super) fn purge(&mut self, upto: u64) {
        while self.entries.front().is_some_and(|(_, entry)| entry.log_id.index <= upto) {
            self.evict();
        }
        if self.entries.is_empty() {
            self.first = self.first.max(upto.saturating_add(1));
        }
    }

    /// The entries from `start` to before `end`, ending early before they are longer than `bytes_max`; at least one.
    pub(super) fn read(&self, start: u64, end: u64, bytes_max: usize) -> RecentFound {
        if start < self.first {
            return RecentFound::Before(self.first);
        }
        let from = usize::try_from(start - self.first).unwrap_or(usize::MAX).min(self.entries.len());
        let mut found = Vec::new();
        let mut bytes = 0_usize;
        for (length, entry) in self.entries.range(from..) {
            bytes += length;
            if entry.log_id.index >= end || (bytes > bytes_max && !found.is_empty()) {
                break;
            }
            found.push(entry.clone());
        }
        RecentFound::Here(found)
    }

    fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    fn evict(&mut self) {
        if let Some((length, _)) = self.entries.pop_front() {
            self.bytes -= length + ENTRY_OVERHEAD_BYTES;
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        types::{EncodedProposal, LogId, Payload},
        wire::WireLogId,
    };

    fn entry(index: u64, bytes: usize) -> (usize, Entry) {
        let payload = Payload::Normal(EncodedProposal(vec![0; bytes].into()));
        (bytes, Entry { log_id: LogId::from(WireLogId { index, term: 1, node: 1 }), payload })
    }

    fn indexes(recent: &RecentEntries, start: u64, end: u64, bytes_max: usize) -> Result<Vec<u64>, u64> {
        match recent.read(start, end, bytes_max) {
            RecentFound::Here(entries) => Ok(entries.iter().map(|entry| entry.log_id.index).collect()),
            RecentFound::Before(first) => Err(first),
        }
    }

    #[test]
    fn a_range_is_found_whole_or_not_at_all() {
        let mut recent = RecentEntries::after(5);
        recent.append(vec![entry(5, 10), entry(6, 10), entry(7, 10)]);
        assert_eq!(indexes(&recent, 4, 9, 100), Err(5));
        assert_eq!(indexes(&recent, 5, 9, 100), Ok(vec![5, 6, 7]));
        assert_eq!(indexes(&recent, 6, 7, 100), Ok(vec![6]));
        assert_eq!(indexes(&recent, 5, 9, 25), Ok(vec![5, 6]));
        assert_eq!(indexes(&recent, 6, 9, 1), Ok(vec![6]));
        assert_eq!(indexes(&recent, 20, 30, 100), Ok(vec![]));
    }

    #[test]
    fn truncated_and_purged_entries_are_gone() {
        let mut recent = RecentEntries::after(0);
        recent.append((0..6).map(|index| entry(index, 1)).collect());
        recent.purge(1);
        recent.truncate(4);
        assert_eq!(indexes(&recent, 2, 9, 100), Ok(vec![2, 3]));
        assert_eq!(indexes(&recent, 1, 9, 100), Err(2));
        recent.append(vec![entry(4, 1)]);
        assert_eq!(indexes(&recent, 2, 9, 100), Ok(vec![2, 3, 4]));
        // A snapshot beyond the log's end: the log goes on after it.
        recent.purge(9);
        recent.append(vec![entry(10, 1)]);
        assert_eq!(indexes(&recent, 10, 11, 100), Ok(vec![10]));
        // Back to before what is here.
        recent.truncate(3);
        recent.append(vec![entry(3, 1)]);
        assert_eq!(indexes(&recent, 3, 9, 100), Ok(vec![3]));
        assert_eq!(recent.bytes, 1 + ENTRY_OVERHEAD_BYTES);
    }

    #[test]
    fn memory_is_bounded_but_the_newest_entry_stays() {
        let mut recent = RecentEntries::after(0);
        recent.append((0..40).map(|index| entry(index, 1 << 20)).collect());
        assert!(recent.bytes <= BYTES_MAX);
        assert_eq!(indexes(&recent, 39, 40, 1), Ok(vec![39]));
        recent.append(vec![entry(40, BYTES_MAX + 1)]);
        assert_eq!(indexes(&recent, 40, 41, 1), Ok(vec![40]));
        assert_eq!(indexes(&recent, 39, 41, 1), Err(40));
    }
}
