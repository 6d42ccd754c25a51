//! What the definitions hold that an access key may change, and the key's quota of it.
//!
//! A quota of bytes and records bounds all of them together, whoever wrote them: so nothing has to be remembered of who
//! wrote what, and the count is that of the records themselves. Bytes are those of the keys and data of configs; records
//! are definitions and configs.
//!
//! It is decided with the write, by the key as it is in the state: two writes at once, on two nodes, can't exceed it
//! together.
//!
//! **Invariants:** the counts follow from the records alone, so they are the same on every node. A write after which
//! nothing is larger is never refused, however little the quota is.

use super::{Collection, State};
use crate::model::{
    access_key::{AccessKey, Grants, Pattern, Verb},
    command::Proposal,
    error::{Rejection, StoredQuota},
    record::Config,
};

/// What some definitions hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stored {
    /// Bytes of the keys and data of configs.
    pub bytes: u64,
    /// Definitions and configs.
    pub records: u64,
}

/// The bytes of a config that count.
pub(super) fn content_bytes(config: &Config) -> u64 {
    (config.key.as_str().len() + config.data.len()) as u64
}

impl Stored {
    fn add(&mut self, collection: &Collection) {
        self.bytes = self.bytes.saturating_add(collection.content);
        self.records = self.records.saturating_add(1).saturating_add(collection.by_key.len());
    }
}

impl State {
    /// What the definitions hold that these grants allow to change.
    #[must_use]
    pub fn stored_under(&self, grants: &Grants) -> Stored {
        let changes = |verb: &Verb| matches!(verb, Verb::Write | Verb::Define);
        let granted = grants.0.iter().filter(|grant| grant.verbs.iter().any(|verb| changes(&verb)));
        let patterns: Vec<&Pattern> = granted.flat_map(|grant| &grant.definitions).collect();
        if patterns.iter().any(|pattern| pattern.beginning() == Some("")) {
            return Stored { bytes: self.content, records: self.configs.saturating_add(self.by_key.len()) };
        }
        let mut stored = Stored::default();
        for (place, pattern) in patterns.iter().enumerate() {
            let first = pattern.beginning().unwrap_or(pattern.as_str());
            let begin = self.by_key.rank(|key| key.as_str() < first);
            let found = self.by_key.from(begin).map(|found| &found.record);
            for collection in found.take_while(|found| pattern.matches(found.definition.key.as_str())) {
                let key = collection.definition.key.as_str();
                // Each counts once.
                if !patterns[..place].iter().any(|earlier| earlier.matches(key)) {
                    stored.add(collection);
                }
            }
        }
        stored
    }

    /// The key that a proposal is made in the name of, where it has a quota of what is stored.
    pub(super) fn bounded_author(&self, proposal: &Proposal) -> Option<AccessKey> {
        let key = self.access_key(&proposal.key.as_ref()?.id)?;
        (key.quota.bytes.is_some() || key.quota.records.is_some()).then(|| (**key).clone())
    }

    /// Refuses what has made more than a key's quota allows, since the state before it.
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
