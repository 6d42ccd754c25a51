//! The records of change requests, and the orders in which the log looks at them.
//!
//! Every order follows from the records alone, so a state that is built from records has the same ones. A plain write
//! touches none of them; an action on a change request costs a few descents, however many there are.
//!
//! **Invariant:** a change request is in [`ChangeRecords::pending_by_age`], in [`ChangeRecords::unreviewed`] or in
//! [`ChangeRecords::ended`], and in no two of them.

use std::{cmp::Ordering, collections::BTreeSet, fmt, sync::Arc};

use crate::{
    ByKey, KeyedRecord,
    index::tree::{Item, Tree, Weight},
};
use concord_model::{
    access_key::KeyId,
    encoding,
    key::Key,
    system::{
        SystemBody, SystemRecord,
        change::{AppliedWith, Change, Party, Phase, Scope},
        environment::{DEFAULT_ENVIRONMENT, environment_name},
        person::PersonId,
    },
    time::Timestamp,
};

/// A place in an order, and the bytes of what has it.
#[derive(Debug, Clone)]
pub(super) struct Filed<K> {
    key: K,
    bytes: u64,
}

impl Weight for u64 {
    fn plus(self, other: Self) -> Self {
        self.saturating_add(other)
    }
}

impl<K: Ord + Clone + fmt::Debug + 'static> Item for Filed<K> {
    type SearchKey<'a> = &'a K;
    type Bound = K;
    type Weight = u64;

    fn search_key(&self) -> &K {
        &self.key
    }

    fn bound(&self) -> K {
        self.key.clone()
    }

    fn search_key_of(bound: &K) -> &K {
        bound
    }

    fn compare(a: &K, b: &K) -> Ordering {
        a.cmp(b)
    }

    fn weight(&self) -> u64 {
        self.bytes
    }
}

impl KeyedRecord for Arc<SystemRecord> {
    type Weight = ();

    fn key(&self) -> &Key {
        &self.name
    }

    fn weight(&self) {}
}

/// Who a limit counts as one: a person, or a key without one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Counted {
    Root,
    Person(PersonId),
    Key(KeyId),
}

impl Counted {
    pub(super) fn of(party: &Party) -> Self {
        match party {
            Party::Root => Self::Root,
            Party::Key { person: Some(person), .. } => Self::Person(*person),
            Party::Key { id, person: None } => Self::Key(id.clone()),
        }
    }
}

/// How many there are of something, and the bytes of all of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) count: u64,
    pub(super) bytes: u64,
}

/// All change requests and their contents.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChangeRecords {
    by_id: Tree<ByKey<Arc<SystemRecord>>>,
    contents: Tree<ByKey<Arc<SystemRecord>>>,
    /// Those that are open or held, by the time of their edition, with the bytes of that.
    pending_by_age: Tree<Filed<(Timestamp, Key)>>,
    /// The same by the sender of the edition.
    pending_by_sender: Tree<Filed<(Counted, Key)>>,
    /// The same by each environment whose name they touch.
    pending_by_environment: Tree<Filed<(Key, Key)>>,
    /// Bypasses that wait for a review, by their writer.
    unreviewed: Tree<Filed<(Counted, Key)>>,
    /// All others, by the time at which they ended, with the bytes of their record.
    ended: Tree<Filed<(Timestamp, Key)>>,
    /// All, by each person that they name.
    by_person: Tree<Filed<(PersonId, Key)>>,
}

/// The count and the bytes of the places whose first part is this.
fn totals<A, B>(of: &Tree<Filed<(A, B)>>, first: &A) -> Totals
where
    A: Ord + Clone + fmt::Debug + 'static,
    B: Ord + Clone + fmt::Debug + 'static,
{
    let before = |bound: &(A, B)| bound.0 < *first;
    let upto = |bound: &(A, B)| bound.0 <= *first;
    Totals {
        count: of.rank(upto) - of.rank(before),
        bytes: of.weight_before(upto).saturating_sub(of.weight_before(before)),
    }
}

/// The bytes that a record takes where it is stored.
pub(super) fn stored_bytes(record: &SystemRecord) -> u64 {
    encoding::append(Vec::new(), record).len() as u64
}

/// The names of the environments whose definitions a change request touches. The key of a definition decides it, and not
/// which environments have a record: an environment that comes or goes changes no count.
pub(super) fn environments(scope: &Scope) -> BTreeSet<Key> {
    let name = |text: &str| Key::parse(text).expect("the beginning of a key up to a dot is a key");
    match scope {
        Scope::Environment(environment) => BTreeSet::from([environment.key().clone()]),
        Scope::Definitions(definitions) => definitions
            .iter()
            .map(|definition| name(environment_name(definition.as_str()).unwrap_or(DEFAULT_ENVIRONMENT)))
            .collect(),
    }
}

/// The persons that a change request names.
pub(super) fn persons(change: &Change) -> BTreeSet<PersonId> {
    let Change { edition, authors, votes, phase, .. } = change;
    let (by, with): (Option<&Party>, &[Party]) = match phase {
        Phase::Open | Phase::Held => (None, &[]),
        Phase::Applied { by, with: AppliedWith::Approvals(approvers), .. } => (Some(by), approvers),
        Phase::Applied { by, with: AppliedWith::Bypass, .. } => (Some(by), &[]),
        Phase::Closed { by, .. } => (by.as_ref(), &[]),
    };
    let voters = votes.iter().map(|vote| &vote.by);
    let all = authors.iter().chain([&edition.sender]).chain(voters).chain(by).chain(with);
    all.filter_map(Party::person).collect()
}

impl ChangeRecords {
    pub(super) fn get(&self, id: &str) -> Option<&Arc<SystemRecord>> {
        self.by_id.get(id).map(|found| &found.record)
    }

    pub(super) fn content(&self, name: &str) -> Option<&Arc<SystemRecord>> {
        self.contents.get(name).map(|found| &found.record)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<SystemRecord>> {
        self.by_id.from(0).map(|found| &found.record)
    }

    pub(super) fn contents(&self) -> impl Iterator<Item = &Arc<SystemRecord>> {
        self.contents.from(0).map(|found| &found.record)
    }

    /// The ids of those that are open or held, the oldest editions first.
    pub(super) fn pending(&self) -> impl Iterator<Item = &Key> {
        self.pending_by_age.from(0).map(|place| &place.key.1)
    }

    /// The pending one with the oldest edition, and the time of that.
    pub(super) fn oldest_pending(&self) -> Option<&(Timestamp, Key)> {
        self.pending_by_age.at(0).map(|place| &place.key)
    }

    /// The one that ended first, of those that may be dropped, and when it did.
    pub(super) fn first_ended(&self) -> Option<&(Timestamp, Key)> {
        self.ended.at(0).map(|place| &place.key)
    }

    /// Those that may be dropped.
    pub(super) fn ended(&self) -> Totals {
        Totals { count: self.ended.len(), bytes: self.ended.weight_before(|_| true) }
    }

    pub(super) fn pending_of(&self, party: &Party) -> Totals {
        totals(&self.pending_by_sender, &Counted::of(party))
    }

    pub(super) fn pending_in(&self, environment: &Key) -> u64 {
        totals(&self.pending_by_environment, environment).count
    }

    pub(super) fn unreviewed_of(&self, party: &Party) -> u64 {
        totals(&self.unreviewed, &Counted::of(party)).count
    }

    pub(super) fn unreviewed_count(&self) -> u64 {
        self.unreviewed.len()
    }

    pub(super) fn pending_count(&self) -> u64 {
        self.pending_by_age.len()
    }

    /// The bytes of all pending editions.
    pub(super) fn content_bytes(&self) -> u64 {
        self.pending_by_age.weight_before(|_| true)
    }

    pub(super) fn names_person(&self, person: PersonId) -> bool {
        totals(&self.by_person, &person).count > 0
    }

    /// Adds a record to all orders that it belongs to.
    pub(crate) fn insert(&mut self, record: Arc<SystemRecord>) {
        match &record.body {
            SystemBody::Change(change) => {
                self.file(&record, change, true);
                self.by_id.insert(ByKey::new(record));
            }
            SystemBody::Content(_) => drop(self.contents.insert(ByKey::new(record))),
            SystemBody::Environment(_) | SystemBody::Person(_) => {}
        }
    }

    /// Removes a record, as it was inserted.
    pub(crate) fn remove(&mut self, record: &SystemRecord) {
        match &record.body {
            SystemBody::Change(change) => {
                self.file(record, change, false);
                self.by_id.remove(record.name.as_str());
            }
            SystemBody::Content(_) => drop(self.contents.remove(record.name.as_str())),
            SystemBody::Environment(_) | SystemBody::Person(_) => {}
        }
    }

    /// Adds a change request to the orders that it belongs to, or removes it from them.
    fn file(&mut self, record: &SystemRecord, change: &Change, is_in: bool) {
        let id = || record.name.clone();
        let edition = &change.edition;
        let sender = || (Counted::of(&edition.sender), id());
        match change.ended_at() {
            None => {
                let bytes = edition.content_bytes;
                place(&mut self.pending_by_age, (edition.sent_at, id()), bytes, is_in);
                place(&mut self.pending_by_sender, sender(), bytes, is_in);
                for environment in environments(&edition.scope) {
                    place(&mut self.pending_by_environment, (environment, id()), 0, is_in);
                }
            }
            Some(_) if change.reviews_missing() > 0 => place(&mut self.unreviewed, sender(), 0, is_in),
            Some(at) => {
                let bytes = if is_in { stored_bytes(record) } else { 0 };
                place(&mut self.ended, (at, id()), bytes, is_in);
            }
        }
        for person in persons(change) {
            place(&mut self.by_person, (person, id()), 0, is_in);
        }
    }
}

/// Adds a place to an order, or removes it.
fn place<K: Ord + Clone + fmt::Debug + 'static>(order: &mut Tree<Filed<K>>, key: K, bytes: u64, is_in: bool) {
    if is_in {
        order.insert(Filed { key, bytes });
    } else {
        order.remove(&key);
    }
}
