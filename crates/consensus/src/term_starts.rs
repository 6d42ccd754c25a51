//! Names the applied entries, also after the log was purged: the first entry of each leader is kept with the state.
//!
//! All entries from one leader's first entry to the next leader's have the same term and node, so these first entries
//! give the id of every applied entry. They show whether two members have the same history although neither has the
//! entries any more.
//!
//! **Invariant:** the list follows from the applied entries alone, so equal states have equal lists.

use serde::{Deserialize, Serialize};

use super::wire::{self, WireLogId};

/// Most leaders that are kept. The list is part of the position of every batch and of the head of a snapshot.
const LEADERS_MAX: usize = 128;

/// The first applied entry of each leader in its term, in the order of the log; of the last ones only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TermStarts(Vec<WireLogId>);

impl TermStarts {
    /// The list of a log that begins with this entry.
    pub(super) fn of_first(entry: WireLogId) -> Self {
        Self(vec![entry])
    }

    /// Whether this entry, which is applied next, is the first one of its leader.
    fn is_begun_by(&self, entry: &WireLogId) -> bool {
        self.0.last().is_none_or(|last| (last.term, last.node) != (entry.term, entry.node))
    }

    fn add(&mut self, entry: WireLogId) {
        if self.0.len() >= LEADERS_MAX {
            self.0.remove(0);
        }
        self.0.push(entry);
    }

    /// The id of an applied entry. `None` if its leader is no longer in the list.
    pub(super) fn id_at(&self, index: u64) -> Option<WireLogId> {
        let after = self.0.partition_point(|start| start.index <= index);
        let start = self.0.get(after.checked_sub(1)?)?;
        Some(WireLogId { index, ..*start })
    }
}

/// The list with its encoding, which is part of each batch's position.
#[derive(Debug)]
pub(super) struct AppliedTerms {
    pub(super) starts: TermStarts,
    pub(super) encoded: Vec<u8>,
}

impl AppliedTerms {
    pub(super) fn new(starts: TermStarts) -> Self {
        let encoded = wire::to_bytes(&starts);
        Self { starts, encoded }
    }

    /// The list after this entry; `None` if it stays as it is.
    pub(super) fn with(&self, entry: WireLogId) -> Option<Self> {
        self.starts.is_begun_by(&entry).then(|| {
            let mut starts = self.starts.clone();
            starts.add(entry);
            Self::new(starts)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(term: u64, node: u64, index: u64) -> WireLogId {
        WireLogId { index, term, node }
    }

    #[test]
    fn every_applied_entry_has_the_id_with_which_it_was_applied() {
        let entries = [id(0, 0, 0), id(1, 1, 1), id(1, 1, 2), id(1, 1, 3), id(4, 3, 4), id(5, 1, 5)];
        let mut terms = AppliedTerms::new(TermStarts::default());
        assert_eq!(terms.starts.id_at(0), None);
        for entry in entries {
            terms = terms.with(entry).unwrap_or(terms);
        }
        assert_eq!(terms.starts.0.len(), 4);
        assert_eq!(terms.encoded, wire::to_bytes(&terms.starts));
        for entry in entries {
            assert_eq!(terms.starts.id_at(entry.index), Some(entry));
        }
        assert_eq!(TermStarts::of_first(id(3, 2, 40)).id_at(39), None, "before a state that was restored");
    }

    #[test]
    fn only_the_last_leaders_are_kept() {
        let mut terms = AppliedTerms::new(TermStarts::default());
        for term in 1..=200 {
            terms = terms.with(id(term, 1, term * 10)).unwrap();
        }
        assert_eq!(terms.starts.0.len(), LEADERS_MAX);
        assert_eq!(terms.starts.id_at(725), None);
        assert_eq!(terms.starts.id_at(735), Some(id(73, 1, 735)));
    }
}
