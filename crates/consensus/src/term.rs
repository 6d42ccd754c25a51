//! How a candidate chooses its term: its low bits are random.
//!
//! A leader's term and node name its entries. A leader whose disk is rolled back may be elected once more by members that
//! never heard of its term (docs/operations/rolled-back-disks.md). If it then had the same term again, the entries of two
//! histories would have the same ids: a member would confirm entries that it has not, and nobody would see the fork.
//!
//! Raft asks only that a candidate's term is greater than all terms that it knows. So the high bits count the elections,
//! and the low bits make each election another one.
//!
//! **Invariant:** if one node is elected twice after the same term, the two new terms are equal with a probability of 2^-20.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The low bits of a term that are random. Every JSON reader keeps 53 bits of a number: the other 33 count the elections.
const RANDOM_BITS: u32 = 20;

/// A term of openraft.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Term(pub(super) u64);

impl Term {
    /// The number of its election.
    fn election(self) -> u64 {
        self.0 >> RANDOM_BITS
    }

    /// A greater term, which no other election has.
    pub(super) fn of_next_election(self) -> Self {
        let random = uuid::Uuid::new_v4().as_u64_pair().1 & ((1 << RANDOM_BITS) - 1);
        let random = if concord_model::sabotage::is("term-repeated") { 0 } else { random };
        Self(((self.election() + 1) << RANDOM_BITS) | random)
    }

    /// Whether the election of this term is the same as this one, an earlier one, or the next.
    pub(super) fn is_next_at_most(self, before: Self) -> bool {
        self.election() <= before.election() + 1
    }
}

impl From<u64> for Term {
    fn from(term: u64) -> Self {
        Self(term)
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl openraft::vote::RaftTerm for Term {
    fn next(&self) -> Self {
        self.of_next_election()
    }

    fn as_u64(&self) -> Option<u64> {
        Some(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_elections_after_the_same_one_have_different_terms() {
        for before in [Term(0), Term(7), Term(1).of_next_election(), Term(u64::from(u32::MAX))] {
            let next: std::collections::BTreeSet<Term> = (0..8).map(|_| before.of_next_election()).collect();
            // Eight equal ones of a million: never.
            assert!(next.len() > 1, "{next:?}");
            assert!(next.iter().all(|term| *term > before && term.is_next_at_most(before)), "{next:?}");
            let later = next.iter().map(|term| term.of_next_election());
            assert!(later.clone().all(|term| term > *next.last().unwrap()), "{next:?}");
            assert!(later.clone().all(|term| !term.is_next_at_most(before)), "{next:?}");
        }
    }
}
