//! Counts the records and bytes of the definitions that an access key may change, and applies the key's quota.
//!
//! A quota bounds the total of these definitions, including records that others wrote. So the state need not record who
//! wrote what. Bytes are those of the keys and data of configs; records are definitions and configs.
//!
//! The log applies the quota with each write, by the current key. So two concurrent writes on two nodes can't exceed it
//! together.
//!
//! **Invariants:** the counts follow from the records alone, so they are the same on every node. A write that makes
//! nothing larger is never rejected, however small the quota is.

use super::{Collection, State, index::tree::Weight};
use concord_model::{
    access_key::{AccessKey, Author, Grants, Pattern, Verb},
    command::Proposal,
    error::{Rejection, StoredQuota},
    record::Config,
};

/// The keys that a pattern is of: they are side by side, whatever the pattern. Ordered so that a span comes before
/// those that are in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct KeySpan<'a> {
    first: &'a str,
    /// It is of this key alone, and not of all that begin with it.
    is_one: bool,
}

impl<'a> KeySpan<'a> {
    fn of(pattern: &'a Pattern) -> Self {
        let beginning = pattern.beginning();
        Self { first: beginning.unwrap_or(pattern.as_str()), is_one: beginning.is_none() }
    }

    fn contains(&self, key: &str) -> bool {
        if self.is_one { key == self.first } else { key.starts_with(self.first) }
    }

    /// Whether it has all that a span behind it has.
    fn includes(&self, later: &Self) -> bool {
        self == later || (!self.is_one && later.first.starts_with(self.first))
    }
}

/// What some definitions hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoredTotals {
    /// Bytes of the keys and data of configs.
    pub bytes: u64,
    /// Definitions and configs.
    pub records: u64,
}

/// The bytes of a config that count.
pub(super) fn content_bytes(config: &Config) -> u64 {
    (config.key.as_str().len() + config.data.len()) as u64
}

impl Weight for StoredTotals {
    fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            records: self.records.saturating_add(other.records),
        }
    }
}

impl Collection {
    /// What the definition and its configs are.
    pub(super) fn stored(&self) -> StoredTotals {
        StoredTotals { bytes: self.content, records: self.by_key.len().saturating_add(1) }
    }
}

impl State {
    /// What the definitions hold that these grants allow to change. Costs as many descents of the index of definitions
    /// as the grants have patterns, however many definitions these are of.
    #[must_use]
    pub fn stored_under(&self, grants: &Grants) -> StoredTotals {
        let changes = |verb: &Verb| matches!(verb, Verb::Write | Verb::Define);
        let granted = grants.0.iter().filter(|grant| grant.verbs.iter().any(|verb| changes(&verb)));
        let patterns = granted.flat_map(|grant| &grant.definitions);
        let mut spans: Vec<KeySpan<'_>> = patterns.map(KeySpan::of).collect();
        spans.sort_unstable();
        // Each definition counts once. Two spans are apart, or one is in the other, which is then right before it or
        // before others that are in it, too.
        spans.dedup_by(|later, earlier| earlier.includes(later));
        spans.into_iter().fold(StoredTotals::default(), |sum, span| sum.plus(self.stored_in(span)))
    }

    fn stored_in(&self, span: KeySpan<'_>) -> StoredTotals {
        let begin = self.by_key.weight_before(|key| key.as_str() < span.first);
        let end = self.by_key.weight_before(|key| key.as_str() < span.first || span.contains(key.as_str()));
        StoredTotals {
            bytes: end.bytes.saturating_sub(begin.bytes),
            records: end.records.saturating_sub(begin.records),
        }
    }

    /// The key that a proposal is made in the name of, where it has a quota of what is stored. What the cluster applies is
    /// made in the name of the sender.
    pub(super) fn bounded_author(&self, proposal: &Proposal) -> Option<AccessKey> {
        let id = match &proposal.author {
            Author::Key(author) => &author.id,
            Author::Cluster => self.sender_of(proposal.source())?,
            // Roles limit rates, and nothing that is stored.
            Author::Root | Author::Session(_) => return None,
        };
        let key = self.access_key(id)?;
        (key.quota.bytes.is_some() || key.quota.records.is_some()).then(|| (**key).clone())
    }

    /// Rejects what has made more than a key's quota allows, since the state before it.
    pub(super) fn expect_within_quota(&self, key: &AccessKey, before: &Self) -> Result<(), Rejection> {
        let (now, earlier) = (self.stored_under(&key.grants), before.stored_under(&key.grants));
        for (quota, limit, now, earlier) in [
            (StoredQuota::Bytes, key.quota.bytes, now.bytes, earlier.bytes),
            (StoredQuota::Records, key.quota.records, now.records, earlier.records),
        ] {
            if let Some(limit) = limit.filter(|limit| now > *limit && now > earlier) {
                return Err(Rejection::QuotaExceeded { quota, limit, needed: now });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
