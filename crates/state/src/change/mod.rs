//! Change requests: their records, what is done to them, and whether one may be applied.
//!
//! | file | what it does |
//! |---|---|
//! | `records` | the records, and the orders in which the log looks at them |
//! | `decide` | creates, edits, votes, withdraws, expires, holds |
//! | `time` | schedules and fails; what the cluster is to do now |
//! | `source` | decides whether a change request or a bypass may change what it changes, and makes its record |
//! | `revert` | what the configs were before, and whether a change request may be taken back |
//! | `rollout` | release in stages: begin, go on, pause; what a reader sees |
//!
//! The service asks the same functions before it proposes. What counts is the decision here, by the records right before
//! the entry.
//!
//! **Invariants:** a change request is applied at most once. An approval counts for one edition and one digest, and only
//! while the key has the attestation that it had. The content of a change request is there exactly while it is pending; what
//! the configs were before, exactly while it may be taken back. The cluster itself applies only what is scheduled or has
//! `when_approved`, and takes back only what is armed, once and not before its time.

mod decide;
pub(crate) mod records;
mod revert;
pub mod rollout;
mod source;
#[cfg(test)]
mod tests;
pub mod time;

use std::{collections::BTreeSet, sync::Arc};

pub(crate) use self::decide::fair_part;
use self::decide::is_in_order;
use super::State;
use concord_model::{
    access_key::Author,
    command::source::{DefinitionThen, Guard},
    error::Rejection,
    key::Key,
    limits::GUARDS_MAX,
    record::Revision,
    system::{
        SystemRecord,
        change::{Change, ChangeId, Content, Machine, Opinion, Party, Scope, Vote},
        environment::DEFAULT_ENVIRONMENT,
        person::PersonId,
    },
};

/// Who makes a proposal, as the state knows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownParty {
    /// Who it is.
    pub party: Party,
    /// Which attestation their key has.
    pub attestation: Option<Revision>,
}

/// How far a change request is from being approved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approvals {
    /// How many persons must approve it.
    pub needed: u8,
    /// The votes that count, of different persons.
    pub counted: Vec<Vote>,
    /// Whether somebody has rejected the edition.
    pub is_rejected: bool,
}

impl Approvals {
    /// Whether there are enough, and no rejection.
    #[must_use]
    pub fn suffice(&self) -> bool {
        self.refused().is_none()
    }

    /// Why they do not suffice.
    #[must_use]
    pub fn refused(&self) -> Option<Rejection> {
        if self.is_rejected {
            return Some(Rejection::EditionRejected);
        }
        let counted = u8::try_from(self.counted.len()).unwrap_or(u8::MAX);
        (counted < self.needed).then_some(Rejection::NotApproved { needed: self.needed, counted })
    }
}

impl State {
    /// All change requests, by id.
    pub fn changes(&self) -> impl Iterator<Item = &Arc<SystemRecord>> {
        self.changes.all()
    }

    /// Those that are open, scheduled or held, the oldest editions first.
    pub fn pending_changes(&self) -> impl Iterator<Item = &Arc<SystemRecord>> {
        self.changes.pending().filter_map(|id| self.changes.get(id.as_str()))
    }

    /// How many are open, scheduled or held.
    #[must_use]
    pub fn pending_change_count(&self) -> u64 {
        self.changes.pending_count()
    }

    /// How many bypasses wait for a review.
    #[must_use]
    pub fn unreviewed_bypass_count(&self) -> u64 {
        self.changes.unreviewed_count()
    }

    /// The bytes that the editions of all pending change requests take, about, and what the cluster needs to take others
    /// back.
    #[must_use]
    pub fn change_content_bytes(&self) -> u64 {
        self.changes.content_bytes()
    }

    /// The record of the change request with this id.
    #[must_use]
    pub fn change_record(&self, id: &str) -> Option<&Arc<SystemRecord>> {
        self.changes.get(id)
    }

    /// The change request with this id.
    #[must_use]
    pub fn change(&self, id: &ChangeId) -> Option<&Change> {
        self.change_record(id.as_str())?.change()
    }

    /// The record of the contents of all change requests, by id.
    pub fn change_contents(&self) -> impl Iterator<Item = &Arc<SystemRecord>> {
        self.changes.contents()
    }

    /// The record with this name that has the operations of an edition.
    #[must_use]
    pub fn change_content_record(&self, name: &str) -> Option<&Arc<SystemRecord>> {
        self.changes.content(name)
    }

    /// The content of a change request that is open or held: its operations are the text of the record.
    #[must_use]
    pub fn change_content(&self, id: &ChangeId) -> Option<(&Content, &Arc<str>)> {
        let edition = self.change(id)?.edition.number;
        let record = self.change_content_record(id.content_name(edition).as_str())?;
        Some((record.content()?, &record.text))
    }

    /// Who an author is; `None` for the cluster, and for a key or session that is not there.
    #[must_use]
    pub fn party(&self, author: &Author) -> Option<KnownParty> {
        match author {
            Author::Root => Some(KnownParty { party: Party::Root, attestation: None }),
            Author::Key(used) => {
                let key = self.access_key(&used.id)?;
                let party = Party::Key { id: used.id.clone(), person: key.person };
                let attestation = key.attestation.as_ref().map(|attestation| attestation.at);
                Some(KnownParty { party, attestation })
            }
            Author::Session(used) => {
                let record = self.session_record(used.id.as_str())?;
                let session = record.session()?;
                let party = Party::Machine(Box::new(Machine {
                    session: used.id.clone(),
                    opened: record.revision,
                    provider: session.provider,
                    owner: session.owner,
                    name: session.name.clone(),
                }));
                Some(KnownParty { party, attestation: None })
            }
            Author::Cluster => None,
        }
    }

    /// How many persons must approve what touches this, by the rules of the strictest environment; before it is known
    /// whether the key of the sender is attested ([`Change::approvals_needed`]).
    #[must_use]
    pub fn approvals_asked(&self, scope: &Scope) -> u8 {
        let asked = |record: Option<&Arc<SystemRecord>>| {
            record.and_then(|record| record.environment()).map_or(0, |rules| rules.approvals)
        };
        match scope {
            Scope::Definitions(definitions) => {
                let each = definitions.iter().map(|key| asked(self.environment_of(key.as_str())));
                each.max().unwrap_or(0)
            }
            Scope::Environment(name) => {
                let own = self.environment(name.as_str());
                asked(own.or_else(|| self.environment(DEFAULT_ENVIRONMENT)))
            }
        }
    }

    /// Which approvals of a change request count now.
    #[must_use]
    pub fn approvals(&self, change: &Change) -> Approvals {
        let mut persons: BTreeSet<PersonId> = BTreeSet::new();
        let approving = change.current_votes().filter(|vote| vote.opinion == Opinion::Approval);
        let counted = approving.filter(|vote| self.is_counted(change, vote));
        let counted =
            counted.filter(|vote| vote.by.person().is_some_and(|person| persons.insert(person))).cloned();
        Approvals {
            needed: change.approvals_needed(self.approvals_asked(&change.edition.scope)),
            counted: counted.collect(),
            is_rejected: change.current_votes().any(|vote| vote.opinion == Opinion::Rejection),
        }
    }

    /// Whether an approval counts: its key is there, has the attestation that it had, and is of no author. The key may have
    /// expired since.
    fn is_counted(&self, change: &Change, vote: &Vote) -> bool {
        let Party::Key { id, person } = &vote.by else { return false };
        let key = self.access_key(id).filter(|key| key.person == *person);
        let attestation = key.and_then(|key| key.attestation.as_ref());
        let is_attested = attestation.is_some_and(|attestation| attestation.at == vote.attestation);
        is_attested && !change.is_author(&vote.by)
    }

    /// The first of these guards that does not hold.
    #[must_use]
    pub fn failed_guard<'a>(&self, guards: &'a [Guard]) -> Option<&'a Guard> {
        guards.iter().find(|guard| !self.holds(guard))
    }

    /// The first of these guards that is known not to hold without building an index, which takes seconds for a million
    /// configs.
    #[must_use]
    pub fn failed_guard_at_hand<'a>(&self, guards: &'a [Guard]) -> Option<&'a Guard> {
        guards.iter().find(|guard| match guard {
            Guard::Configs { definition, count, .. } => match self.definition_by_id(*definition) {
                Some(found) if !found.has_indexes() => found.by_key.len() != *count,
                Some(_) | None => !self.holds(guard),
            },
            Guard::Config { .. }
            | Guard::Definition { .. }
            | Guard::AccessKey { .. }
            | Guard::Environment { .. }
            | Guard::Policy { .. } => !self.holds(guard),
        })
    }

    fn holds(&self, guard: &Guard) -> bool {
        match guard {
            Guard::Config { definition, key, revision } => {
                // Without the definition nothing is as it was, the absence of a config neither.
                self.definition_by_id(*definition).is_some_and(|found| {
                    found.config(key.as_str()).map(|config| config.revision) == *revision
                })
            }
            Guard::Definition { key, was } => {
                let then = |id, revision| DefinitionThen { id, revision };
                let found = self.definition(key.as_str()).map(|found| &found.definition);
                found.map(|definition| then(definition.id, definition.revision)) == *was
            }
            Guard::Configs { definition, newest, count } => self
                .definition_by_id(*definition)
                .is_some_and(|found| found.by_key.len() == *count && found.newest_config() == *newest),
            Guard::AccessKey { id, revision } => {
                self.access_key(id).is_some_and(|key| key.revision == *revision)
            }
            Guard::Environment { name, revision } => {
                self.environment(name.as_str()).map(|record| record.revision) == *revision
            }
            Guard::Policy { revision } => self.policy_revision() == *revision,
        }
    }

    /// Whether a change request names a person.
    pub(super) fn change_names_person(&self, person: PersonId) -> bool {
        self.changes.names_person(person)
    }

    /// The content of the current edition of a change request while it is pending, or what takes it back; `None` when it is
    /// neither pending nor can be taken back.
    pub(super) fn content_of(&self, record: &SystemRecord) -> Option<&Arc<SystemRecord>> {
        let id = ChangeId::parse(record.name.as_str())?;
        self.changes.content(record.change()?.content_name(&id)?.as_str())
    }

    /// A person that a change request names and that is not there, which no state has.
    pub(super) fn first_unknown_person_of_changes(&self) -> Option<PersonId> {
        let changes = self.changes().filter_map(|record| record.change());
        changes.flat_map(records::persons).find(|person| self.person(*person).is_none())
    }

    /// A change request that no state has: its name is no id, its definitions are not in order, or it lacks its content.
    pub(super) fn first_damaged_change(&self) -> Option<&Key> {
        let is_sound = |record: &&Arc<SystemRecord>| {
            let Some(change) = record.change() else { return false };
            let content = self.content_of(record).and_then(|content| content.content());
            let fits = content.is_some_and(|content| {
                let before = if change.is_pending() { 0 } else { content.bases.len() };
                content.bases.len() <= GUARDS_MAX && content.before.len() == before
            });
            let Some(id) = ChangeId::parse(record.name.as_str()) else { return false };
            is_in_order(&change.edition.scope) && (fits || change.content_name(&id).is_none())
        };
        self.changes().find(|record| !is_sound(record)).map(|record| &record.name)
    }

    /// A content that is of no change request that needs it, which no state has.
    pub(super) fn first_stray_content(&self) -> Option<&Key> {
        self.change_contents().map(|content| &content.name).find(|name| !self.has_content_named(name))
    }

    /// Whether the name of a content is that which a change request needs.
    pub(super) fn has_content_named(&self, name: &Key) -> bool {
        let Some((id, _)) = name.as_str().split_once('-') else { return false };
        let change = self.changes.get(id).and_then(|record| record.change());
        let (Some(id), Some(change)) = (ChangeId::parse(id), change) else { return false };
        change.content_name(&id).is_some_and(|needed| needed == *name)
    }
}
