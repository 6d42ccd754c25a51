//! The records of identity, and the orders in which the log looks at sessions.
//!
//! Every order follows from the records alone, so a state that is built from records has the same ones.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    ByKey,
    index::{
        filed::{Filed, place, totals},
        tree::Tree,
    },
};
use concord_model::{
    key::Key,
    record::Revision,
    system::{
        SystemBody, SystemRecord,
        identity::{OwnerTag, ProviderId},
    },
    time::Timestamp,
};

/// Records by their names. They are few, and a state that is cloned shares them.
type ByName = Arc<BTreeMap<Key, Arc<SystemRecord>>>;

/// All providers, roles, key sets and sessions, and the policy.
#[derive(Debug, Clone, Default)]
pub(crate) struct IdentityRecords {
    pub(super) providers: ByName,
    pub(super) roles: ByName,
    pub(super) key_sets: ByName,
    policy: Option<Arc<SystemRecord>>,
    sessions: Tree<ByKey<Arc<SystemRecord>>>,
    by_end: Tree<Filed<(Timestamp, Key)>>,
    /// By their owner, the oldest of each first.
    by_owner: Tree<Filed<(OwnerTag, (Revision, Key))>>,
    /// By their provider, the oldest of each first.
    by_provider: Tree<Filed<(ProviderId, (Revision, Key))>>,
}

impl IdentityRecords {
    pub(super) fn policy(&self) -> Option<&Arc<SystemRecord>> {
        self.policy.as_ref()
    }

    pub(super) fn session(&self, id: &str) -> Option<&Arc<SystemRecord>> {
        self.sessions.get(id).map(|found| &found.record)
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = &Arc<SystemRecord>> {
        self.sessions.from(0).map(|found| &found.record)
    }

    pub(super) fn session_count(&self) -> u64 {
        self.sessions.len()
    }

    /// The record of the provider with this id.
    pub(super) fn provider(&self, id: ProviderId) -> Option<&Arc<SystemRecord>> {
        self.providers.values().find(|record| record.provider().is_some_and(|provider| provider.id == id))
    }

    /// How many sessions a provider has.
    pub(super) fn count_of_provider(&self, provider: ProviderId) -> u64 {
        totals(&self.by_provider, &provider).count
    }

    /// The oldest session of an owner who has so many, or more.
    pub(super) fn oldest_of(&self, owner: OwnerTag, count: u64) -> Option<&Key> {
        if totals(&self.by_owner, &owner).count < count {
            return None;
        }
        let first = self.by_owner.rank(|bound| bound.0 < owner);
        self.by_owner.at(first).map(|place| &place.key.1.1)
    }

    /// So many of the sessions that have ended at a time, those of providers that are gone or trust others first.
    pub(super) fn ended(&self, at: Timestamp, count: usize) -> Vec<Key> {
        let mut found: Vec<Key> = Vec::new();
        let mut position = 0;
        while found.len() < count
            && let Some(place) = self.by_provider.at(position)
        {
            let (id, (opened, name)) = &place.key;
            let provider = self.provider(*id).and_then(|record| record.provider());
            if provider.is_none_or(|provider| *opened <= provider.trusted_since) {
                found.push(name.clone());
                position += 1;
            } else {
                // All others of this provider are younger.
                position = self.by_provider.rank(|bound| bound.0 <= *id);
            }
        }
        let over = self.by_end.from(0).take_while(|place| place.key.0 <= at).map(|place| &place.key.1);
        for name in over {
            if found.len() >= count {
                break;
            }
            if !found.contains(name) {
                found.push(name.clone());
            }
        }
        found
    }

    /// Adds a record to all orders that it belongs to.
    pub(crate) fn insert(&mut self, record: Arc<SystemRecord>) {
        match &record.body {
            SystemBody::Provider(_) => {
                Arc::make_mut(&mut self.providers).insert(record.name.clone(), record);
            }
            SystemBody::Role => {
                Arc::make_mut(&mut self.roles).insert(record.name.clone(), record);
            }
            SystemBody::KeySet(_) => {
                Arc::make_mut(&mut self.key_sets).insert(record.name.clone(), record);
            }
            SystemBody::Policy => self.policy = Some(record),
            SystemBody::Session(_) => {
                self.file(&record, true);
                self.sessions.insert(ByKey::new(record));
            }
            // They are elsewhere.
            SystemBody::Environment(_)
            | SystemBody::Change(_)
            | SystemBody::Content(_)
            | SystemBody::Person(_)
            | SystemBody::Rollout(_) => {}
        }
    }

    /// Removes a record, as it was inserted.
    pub(crate) fn remove(&mut self, record: &SystemRecord) {
        match &record.body {
            SystemBody::Provider(_) => {
                Arc::make_mut(&mut self.providers).remove(&record.name);
            }
            SystemBody::Role => {
                Arc::make_mut(&mut self.roles).remove(&record.name);
            }
            SystemBody::KeySet(_) => {
                Arc::make_mut(&mut self.key_sets).remove(&record.name);
            }
            SystemBody::Policy => self.policy = None,
            SystemBody::Session(_) => {
                self.file(record, false);
                self.sessions.remove(record.name.as_str());
            }
            // They are elsewhere.
            SystemBody::Environment(_)
            | SystemBody::Change(_)
            | SystemBody::Content(_)
            | SystemBody::Person(_)
            | SystemBody::Rollout(_) => {}
        }
    }

    fn file(&mut self, record: &SystemRecord, is_in: bool) {
        let Some(session) = record.session() else { return };
        let opened = || (record.revision, record.name.clone());
        place(&mut self.by_end, (session.expires_at, record.name.clone()), 0, is_in);
        place(&mut self.by_owner, (session.owner, opened()), 0, is_in);
        place(&mut self.by_provider, (session.provider, opened()), 0, is_in);
    }
}
