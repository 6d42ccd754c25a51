//! System records of all kinds: where each kind is, and how one replaces another.
//!
//! **Invariant:** what is decided by a record is elsewhere, with its kind.

use std::sync::Arc;

use super::{Edit, State, apply::EntryContext, digest};
use concord_model::{
    command::Expect,
    error::Rejection,
    key::Key,
    system::{SystemBody, SystemKey, SystemKind, SystemRecord, person::PersonId},
};

impl State {
    /// All system records, by kind.
    pub fn system_records(&self) -> impl Iterator<Item = &Arc<SystemRecord>> {
        let of_changes = self.changes().chain(self.change_contents());
        self.environments()
            .chain(of_changes)
            .chain(self.persons())
            .chain(self.rollouts())
            .chain(self.identity_records())
    }

    /// The system record with this key.
    #[must_use]
    pub fn system_record(&self, key: &SystemKey) -> Option<&Arc<SystemRecord>> {
        match key.kind {
            SystemKind::Environment => self.environment(key.name.as_str()),
            SystemKind::Change => self.change_record(key.name.as_str()),
            SystemKind::Content => self.change_content_record(key.name.as_str()),
            SystemKind::Person => self.person_record(PersonId(key.name.as_str().parse().ok()?)),
            SystemKind::Rollout => self.rollout_record(key.name.as_str()),
            SystemKind::Provider => self.provider_record(key.name.as_str()),
            SystemKind::Role => self.role_record(key.name.as_str()),
            SystemKind::Session => self.session_record(key.name.as_str()),
            SystemKind::KeySet => self.key_set_record(key.name.as_str()),
            SystemKind::Policy => self.policy_record().filter(|record| record.name == key.name),
        }
    }

    /// Replaces a system record; one of the two may be absent.
    pub(super) fn put_system_record(
        &mut self,
        before: Option<Arc<SystemRecord>>,
        after: Option<SystemRecord>,
        edits: &mut Vec<Edit>,
    ) {
        if let Some(before) = &before {
            self.remove_system_record(before);
            self.count_replaced(before.bytes());
        }
        let after = after.map(Arc::new);
        if let Some(after) = &after {
            self.insert_system_record(Arc::clone(after));
        }
        edits.push(Edit::System { before, after });
    }

    pub(super) fn remove_system_record(&mut self, record: &SystemRecord) {
        match &record.body {
            SystemBody::Environment(_) => {
                Arc::make_mut(&mut self.environments).remove(&record.name);
            }
            SystemBody::Change(_) | SystemBody::Content(_) | SystemBody::Rollout(_) => {
                Arc::make_mut(&mut self.changes).remove(record);
            }
            SystemBody::Person(person) => self.remove_person(person),
            SystemBody::Provider(_)
            | SystemBody::Role
            | SystemBody::Session(_)
            | SystemBody::KeySet(_)
            | SystemBody::Policy => Arc::make_mut(&mut self.identity).remove(record),
        }
        self.sum = self.sum.wrapping_sub(digest::of_system_record(record));
        self.bytes = self.bytes.saturating_sub(record.bytes());
    }

    /// Adds a system record to the state and to the digest.
    pub(super) fn insert_system_record(&mut self, record: Arc<SystemRecord>) {
        self.sum = self.sum.wrapping_add(digest::of_system_record(&record));
        self.bytes = self.bytes.saturating_add(record.bytes());
        match &record.body {
            SystemBody::Environment(_) => {
                Arc::make_mut(&mut self.environments).insert(record.name.clone(), record);
            }
            SystemBody::Change(_) | SystemBody::Content(_) | SystemBody::Rollout(_) => {
                Arc::make_mut(&mut self.changes).insert(record);
            }
            SystemBody::Person(person) => self.insert_person(person, Arc::clone(&record)),
            SystemBody::Provider(_)
            | SystemBody::Role
            | SystemBody::Session(_)
            | SystemBody::KeySet(_)
            | SystemBody::Policy => Arc::make_mut(&mut self.identity).insert(record),
        }
    }
}

/// The record that a command changes, if it meets the precondition.
pub(super) fn expected(
    found: Option<&Arc<SystemRecord>>,
    expect: Expect,
    missing: Rejection,
) -> Result<Option<Arc<SystemRecord>>, Rejection> {
    match (expect, found) {
        (Expect::At(revision), Some(found)) if revision != found.revision => {
            Err(Rejection::Precondition { current: found.revision })
        }
        (Expect::Absent | Expect::None, Some(found)) => {
            Err(Rejection::Precondition { current: found.revision })
        }
        (Expect::Present | Expect::At(_), None) => Err(missing),
        (Expect::Any | Expect::Present | Expect::At(_) | Expect::Read(_), Some(found)) => {
            Ok(Some(Arc::clone(found)))
        }
        (Expect::Any | Expect::Absent | Expect::None | Expect::Read(_), None) => Ok(None),
    }
}

/// The record that comes after another one, or the first of its name.
pub(super) fn record_after(
    context: EntryContext,
    before: Option<&SystemRecord>,
    (name, body, text): (Key, SystemBody, Arc<str>),
) -> SystemRecord {
    SystemRecord {
        name,
        body,
        text,
        created_at: before.map_or(context.at, |before| before.created_at),
        modified_at: context.at,
        revision: context.revision,
    }
}
