//! The persons that access keys name.
//!
//! A command has the label of a person. The log finds the person who has it, or makes one. So two nodes that create keys
//! at the same time never make two persons of one label.
//!
//! **Invariants:** there is a person exactly while a record names it. Every person that a record names is there.

use std::{cmp::Ordering, collections::BTreeSet, sync::Arc};

use super::{Edit, State, apply::EntryContext, index::tree::Item};
use concord_model::{
    error::Rejection,
    limits::PERSONS_MAX,
    system::{
        SystemBody, SystemRecord,
        person::{Person, PersonId, PersonLabel},
    },
};

/// A person by its id.
#[derive(Debug, Clone)]
pub(super) struct ByPersonId {
    id: PersonId,
    record: Arc<SystemRecord>,
}

impl Item for ByPersonId {
    type SearchKey<'a> = PersonId;
    type Bound = PersonId;
    type Weight = ();

    fn search_key(&self) -> PersonId {
        self.id
    }

    fn bound(&self) -> PersonId {
        self.id
    }

    fn search_key_of(bound: &PersonId) -> PersonId {
        *bound
    }

    fn compare(a: PersonId, b: PersonId) -> Ordering {
        a.cmp(&b)
    }

    fn weight(&self) {}
}

/// The id of a person by its label.
#[derive(Debug, Clone)]
pub(super) struct ByLabel(PersonLabel, PersonId);

impl Item for ByLabel {
    type SearchKey<'a> = &'a PersonLabel;
    type Bound = PersonLabel;
    type Weight = ();

    fn search_key(&self) -> &PersonLabel {
        &self.0
    }

    fn bound(&self) -> PersonLabel {
        self.0.clone()
    }

    fn search_key_of(bound: &PersonLabel) -> &PersonLabel {
        bound
    }

    fn compare(a: &PersonLabel, b: &PersonLabel) -> Ordering {
        a.cmp(b)
    }

    fn weight(&self) {}
}

impl State {
    /// The records of all persons, by id.
    pub fn persons(&self) -> impl Iterator<Item = &Arc<SystemRecord>> {
        self.persons.from(0).map(|found| &found.record)
    }

    /// How many persons there are.
    #[must_use]
    pub fn person_count(&self) -> u64 {
        self.persons.len()
    }

    /// The record of the person with this id.
    #[must_use]
    pub fn person_record(&self, id: PersonId) -> Option<&Arc<SystemRecord>> {
        self.persons.get(id).map(|found| &found.record)
    }

    /// The person with this id.
    #[must_use]
    pub fn person(&self, id: PersonId) -> Option<&Person> {
        self.person_record(id)?.person()
    }

    /// The id of the person with this label.
    #[must_use]
    pub fn person_labelled(&self, label: &PersonLabel) -> Option<PersonId> {
        self.persons_by_label.get(label).map(|found| found.1)
    }

    /// The person with this label, made if there is none.
    pub(super) fn find_or_make_person(
        &mut self,
        context: EntryContext,
        label: &PersonLabel,
        edits: &mut Vec<Edit>,
    ) -> Result<PersonId, Rejection> {
        if let Some(id) = self.person_labelled(label) {
            return Ok(id);
        }
        if self.persons.len() >= PERSONS_MAX {
            return Err(Rejection::TooManyPersons);
        }
        let id = PersonId(context.id());
        let record = SystemRecord {
            name: id.name(),
            body: SystemBody::Person(Person { id, label: label.clone() }),
            text: "{}".into(),
            created_at: context.at,
            modified_at: context.at,
            revision: context.revision,
        };
        self.put_system_record(None, Some(record), edits);
        Ok(id)
    }

    /// Removes those of these persons that no record names any more.
    pub(super) fn drop_unnamed_persons(&mut self, mut candidates: BTreeSet<PersonId>, edits: &mut Vec<Edit>) {
        if candidates.is_empty() {
            return;
        }
        for named in self.access_keys().flat_map(|key| key.persons()) {
            candidates.remove(&named);
        }
        candidates.retain(|person| !self.change_names_person(*person));
        for id in candidates {
            if let Some(record) = self.person_record(id).map(Arc::clone) {
                self.put_system_record(Some(record), None, edits);
            }
        }
    }

    pub(super) fn insert_person(&mut self, person: &Person, record: Arc<SystemRecord>) {
        self.persons_by_label.insert(ByLabel(person.label.clone(), person.id));
        self.persons.insert(ByPersonId { id: person.id, record });
    }

    pub(super) fn remove_person(&mut self, person: &Person) {
        self.persons.remove(person.id);
        self.persons_by_label.remove(&person.label);
    }
}
