//! Whether others have confirmed that the person of an access key, and nobody else, holds it.
//!
//! | a key is attested | |
//! |---|---|
//! | by the root key | at once; also when it creates or rotates a key with a person |
//! | by persons | by two, each with an attested key. Neither is the person of the key |
//!
//! Both persons name the same revision of the key, so they mean the same secrets and the same grants. The first of them
//! is kept beside the key, and counts while the key with which they did it is attested itself.
//!
//! **Invariants:** no other key's holder has ever had a secret of an attested key that is still accepted. Only the root
//! key attests alone. A key without a person is never attested.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::super::{Edit, State, apply::EntryContext};
use concord_model::{
    access_key::{AccessKey, Attestation, AttestedBy, Attester, Author, HalfAttestation, KeyId, Verb},
    command::KeyTerms,
    error::{NotAttestable, Rejection},
    record::Revision,
    system::person::PersonId,
    time::Timestamp,
};

/// Who changes a key, seen from the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Changer {
    Root,
    /// The key itself, by its newest secret. An earlier one, in its grace, may be known to others.
    Itself,
    Other,
}

impl Changer {
    /// `key`: as it is before the change; `None` if it is created.
    pub(super) fn of(author: &Author, key: Option<&AccessKey>) -> Self {
        match author {
            Author::Root => Self::Root,
            Author::Key(author) => {
                let is_itself = |key: &AccessKey| key.id == author.id && key.is_newest_secret(author.secret);
                if key.is_some_and(is_itself) { Self::Itself } else { Self::Other }
            }
            Author::Cluster | Author::Session(_) => Self::Other,
        }
    }

    /// Whether a secret that they make is known to nobody but them and the key's holder.
    pub(super) fn makes_own_secret(self) -> bool {
        match self {
            Self::Root | Self::Itself => true,
            Self::Other => false,
        }
    }

    /// Attests a key that was created or rotated, or voids its attestation. `after` has the new secret.
    pub(super) fn settle_new_secret(self, context: EntryContext, after: &mut AccessKey) {
        after.half_attested = None;
        match self {
            Self::Root => {
                let is_held = after.person.is_some() && after.has_only_own_secrets(context.at);
                let by_root = || Attestation { at: context.revision, by: AttestedBy::Root };
                after.attestation = is_held.then(by_root);
            }
            Self::Itself => {}
            Self::Other => after.attestation = None,
        }
    }

    /// Voids the attestation of a key that gets other terms.
    pub(super) fn settle_change(self, before: &AccessKey, terms: &KeyTerms) -> Option<Attestation> {
        let is_same = before.grants == terms.grants && before.expires_at == terms.expires_at;
        before.attestation.clone().filter(|_| is_same || self == Self::Root)
    }
}

impl State {
    pub(super) fn attest(
        &mut self,
        context: EntryContext,
        author: &Author,
        (id, revision): (&KeyId, Revision),
        edits: &mut Vec<Edit>,
    ) -> Result<(), Rejection> {
        let attester = match author {
            Author::Root => None,
            Author::Key(own) => Some(self.attester(&own.id)?),
            Author::Cluster => return Err(Rejection::Unauthored),
            // A machine is nobody who could know who holds a key.
            Author::Session(_) => return Err(Rejection::KeyNotAttested),
        };
        let before = self.access_key(id).map(Arc::clone).ok_or(Rejection::KeyNotFound)?;
        if before.revision != revision {
            return Err(Rejection::Precondition { current: before.revision });
        }
        let person = before.person.ok_or(Rejection::NotAttestable(NotAttestable::NoPerson))?;
        if attester.as_ref().is_some_and(|attester| attester.person == person) {
            return Err(Rejection::OwnKey);
        }
        if !before.has_only_own_secrets(context.at) {
            return Err(Rejection::NotAttestable(NotAttestable::SecretOfOthers));
        }
        // Another attestation would void the approvals that were given with the key.
        if before.attestation.is_some() {
            return Ok(());
        }
        let by = match attester {
            None => Some(AttestedBy::Root),
            Some(second) => match before
                .half_attested
                .clone()
                .map(|half| half.by)
                .filter(|first| self.still_attests(first))
            {
                Some(first) if first.person == second.person => return Ok(()),
                Some(first) => Some(AttestedBy::Persons([first, second])),
                None if concord_model::sabotage::is("attested-by-one") => {
                    Some(AttestedBy::Persons([second.clone(), second]))
                }
                None => {
                    let half_attested = Some(HalfAttestation { at: context.revision, by: second });
                    let after = AccessKey { half_attested, ..(*before).clone() };
                    self.put_key(Some(before), Some(after), edits);
                    return Ok(());
                }
            },
        };
        let attestation = by.map(|by| Attestation { at: context.revision, by });
        let after = AccessKey { attestation, half_attested: None, ..(*before).clone() };
        self.put_key(Some(before), Some(after), edits);
        Ok(())
    }

    /// The person who attests with a key.
    fn attester(&self, id: &KeyId) -> Result<Attester, Rejection> {
        let key = self.access_key(id).filter(|key| key.attestation.is_some());
        let person = key.and_then(|key| key.person).ok_or(Rejection::KeyNotAttested)?;
        Ok(Attester { key: id.clone(), person })
    }

    /// Whether the first of two persons has an attested key still.
    fn still_attests(&self, first: &Attester) -> bool {
        self.attester(&first.key).as_ref() == Ok(first)
    }

    /// How many persons could approve a change of anything in an environment, for each of these: each person has an
    /// attested key that is valid now and has `approve` and `read` for all definitions that the environment can have.
    #[must_use]
    pub fn approvers<'a>(&self, environments: &[&'a str], now: Timestamp) -> BTreeMap<&'a str, u64> {
        if environments.is_empty() {
            return BTreeMap::new();
        }
        let mut persons: BTreeMap<&str, BTreeSet<PersonId>> =
            environments.iter().map(|name| (*name, BTreeSet::new())).collect();
        for key in self.access_keys().filter(|key| key.attestation.is_some() && key.is_valid_at(now)) {
            let Some(person) = key.person else { continue };
            let may = |verb, name: &str| key.grants.allows_environment(verb, name);
            for (name, found) in &mut persons {
                if may(Verb::Approve, name) && may(Verb::Read, name) {
                    found.insert(person);
                }
            }
        }
        persons.into_iter().map(|(name, found)| (name, found.len() as u64)).collect()
    }

    /// Ends all attestations, whole and half, and lets go of what no record needs then: after a restore, a key that was
    /// rotated since has its old secret again. The keys are of the time of the backup, the persons are of a later time if
    /// the history continued it. So a key whose person is gone has none.
    pub(crate) fn end_attestations(&mut self) {
        let changed: Vec<(Arc<AccessKey>, AccessKey)> = self
            .access_keys()
            .map(|key| {
                let person = key.person.filter(|person| self.person(*person).is_some());
                let after = AccessKey { person, attestation: None, half_attested: None, ..(**key).clone() };
                (Arc::clone(key), after)
            })
            .filter(|(before, after)| **before != *after)
            .collect();
        // No entry makes these changes, and no history has them.
        let mut edits = Vec::new();
        for (before, after) in changed {
            self.put_key(Some(before), Some(after), &mut edits);
        }
        let persons = self.persons().filter_map(|record| record.person()).map(|person| person.id).collect();
        self.drop_unnamed_persons(persons, &mut edits);
    }
}

#[cfg(test)]
mod tests;
