//! Who has made a change, and by which change request, as far as a client may know it.
//!
//! The history has the id of an access key. Its name and its person are those of now: who reads an old change wants to
//! know whom to ask. A key that was revoked has neither.
//!
//! **Invariants:** a client learns the name and the person of a key only if it may list the key, or if the change is of a
//! definition that it may read and may make, approve or bypass changes of: then it also sees who asks for changes there.
//! It learns of a change request only if it may read every definition in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{editions::TextOf, request::Principal};
use concord_model::{
    access_key::{AccessKey, KeyId, Verb},
    record::Revision,
    system::{
        SystemRecord,
        change::{Change, Phase, Revert, Scope},
        person::PersonLabel,
    },
};
use concord_state::{
    State,
    feed::{Event, RecordChange},
};
use concord_storage::HistoryEntry;

/// What a client may know of the author of a change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuthorView {
    /// The name of the access key.
    pub name: Option<String>,
    /// The label of its person.
    pub person: Option<String>,
    /// The change request that was applied or taken back, if it was one.
    pub request: Option<RequestName>,
}

/// A change request that has changed records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestName {
    /// Its id.
    pub id: String,
    /// What it is, in a line.
    pub title: String,
    /// Whether the change has taken it back.
    pub is_revert: bool,
}

/// What a client may know of the author of an event. The state has the event. `with_names`: a watch is rendered once for
/// all clients, so only its events of change requests are theirs alone.
pub(crate) fn of_event(state: &State, principal: &Principal, event: &Event, with_names: bool) -> AuthorView {
    let edits = event.change_requests.iter().filter_map(|edit| edit.after.as_deref());
    let request = edits.filter_map(|record| request_at(principal, record, event.revision)).next();
    if !with_names {
        return AuthorView { request, ..AuthorView::default() };
    }
    let mut author = named(state, principal, &event.by, definitions_of(event));
    author.request = request;
    author
}

/// What a client may know of the authors of changes of a definition that it may read, or of its configs.
pub(crate) fn of_history(
    state: &State,
    principal: &Principal,
    definition: &str,
    changes: &[HistoryEntry],
) -> Vec<AuthorView> {
    let wanted: BTreeSet<Revision> = changes.iter().map(|change| change.revision).collect();
    let mut requests: BTreeMap<Revision, RequestName> = BTreeMap::new();
    for record in state.changes() {
        let Some(change) = record.change() else { continue };
        let revisions = revisions_of(change).map(|(revision, _)| revision);
        for revision in revisions.filter(|revision| wanted.contains(revision)) {
            if let Some(request) = request_at(principal, record, revision) {
                requests.insert(revision, request);
            }
        }
    }
    let mut authors: BTreeMap<&str, AuthorView> = BTreeMap::new();
    let mut all = Vec::with_capacity(changes.len());
    for change in changes {
        let names = || named(state, principal, &change.by, std::iter::once(definition));
        let author = authors.entry(change.by.as_str()).or_insert_with(names).clone();
        all.push(AuthorView { request: requests.get(&change.revision).cloned(), ..author });
    }
    all
}

/// Whether a change request has changed records at a revision.
pub(crate) fn has_changed_at(record: &SystemRecord, revision: Revision) -> bool {
    record.change().is_some_and(|change| revisions_of(change).any(|(at, _)| at == revision))
}

/// The revisions at which a change request has changed records; whether it was taken back there.
fn revisions_of(change: &Change) -> impl Iterator<Item = (Revision, bool)> {
    let applied =
        if let Phase::Applied { revision, .. } = &change.phase { Some((*revision, false)) } else { None };
    let revert =
        if let Some(Revert::Done { revision, .. }) = &change.revert { Some((*revision, true)) } else { None };
    applied.into_iter().chain(revert)
}

/// A change request that has changed records at this revision, if the client may see it.
fn request_at(principal: &Principal, record: &SystemRecord, revision: Revision) -> Option<RequestName> {
    let change = record.change()?;
    let (_, is_revert) = revisions_of(change).find(|(at, _)| *at == revision)?;
    principal.may_see_change(&change.edition.scope).then(|| RequestName {
        id: record.name.to_string(),
        title: TextOf::of(record).title,
        is_revert,
    })
}

/// The name and the person of a key, for a client that may know them.
fn named<'a>(
    state: &State,
    principal: &Principal,
    by: &str,
    definitions: impl Iterator<Item = &'a str>,
) -> AuthorView {
    let Some(key) = KeyId::parse(by).and_then(|id| state.access_key(&id)) else {
        return AuthorView::default();
    };
    if !may_know(principal, by, key, definitions) {
        return AuthorView::default();
    }
    let person = key.person.and_then(|person| state.person(person));
    let person = person.map(|person| person.label.to_string());
    AuthorView { name: Some(key.name.clone()), person, request: None }
}

/// The permissions with which a client may know who is behind an access key: it must know who asks.
const KNOWING: [Verb; 3] = [Verb::Propose, Verb::Approve, Verb::Bypass];

/// Whether a client may know who changes a definition.
pub(crate) fn sees_people_of(principal: &Principal, definition: &str) -> bool {
    KNOWING.into_iter().any(|verb| principal.authorize(verb, Some(definition)).is_ok())
}

/// Whether a client may know who is behind an access key in a change request.
pub(crate) fn sees_labels(principal: &Principal, scope: &Scope) -> bool {
    match scope {
        Scope::Definitions(keys) => keys.iter().any(|key| sees_people_of(principal, key.as_str())),
        Scope::Environment(name) => {
            KNOWING.into_iter().any(|verb| principal.authorize_environment(verb, name.as_str()).is_ok())
        }
    }
}

fn may_know<'a>(
    principal: &Principal,
    id: &str,
    key: &AccessKey,
    mut definitions: impl Iterator<Item = &'a str>,
) -> bool {
    let may_list = match principal.key() {
        None => principal.is_root(),
        Some(own) => {
            own.id.as_str() == id || (own.grants.allows(Verb::Keys, None) && principal.may_see_key(key))
        }
    };
    may_list
        || definitions.any(|definition| {
            principal.authorize(Verb::Read, Some(definition)).is_ok() && sees_people_of(principal, definition)
        })
}

fn definitions_of(event: &Event) -> impl Iterator<Item = &str> {
    event.items.iter().map(|item| match item {
        RecordChange::Definition { key, .. } | RecordChange::Config { definition: key, .. } => key.as_str(),
    })
}

/// Selects the changes of one author, named by the id of the access key, by its name or by its person.
#[derive(Debug)]
pub(crate) struct AuthorFilter {
    by: String,
    /// The keys with this name or person, by id: many keys may have one name.
    named: BTreeMap<String, Arc<AccessKey>>,
    principal: Principal,
}

impl AuthorFilter {
    pub(crate) fn new(state: &State, principal: &Principal, by: &str) -> Self {
        let person = PersonLabel::parse(by).ok().and_then(|label| state.person_labelled(&label));
        let is_named = |key: &&Arc<AccessKey>| key.name == by || (person.is_some() && key.person == person);
        let named = state.access_keys().filter(is_named);
        let named = named.map(|key| (key.id.to_string(), Arc::clone(key))).collect();
        Self { by: by.to_owned(), named, principal: principal.clone() }
    }

    /// Whether an event is by this author. By a name it is found by those alone who are shown the name.
    pub(crate) fn has(&self, event: &Event) -> bool {
        event.by == self.by
            || self
                .named
                .get(&event.by)
                .is_some_and(|key| may_know(&self.principal, &event.by, key, definitions_of(event)))
    }
}
