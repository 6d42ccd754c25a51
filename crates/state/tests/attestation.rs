//! Random changes of access keys by everybody: each attested key has the right attesters and no secret of others.

use std::collections::{BTreeMap, BTreeSet};

use concord_model::{
    access_key::{AccessKey, Attestation, AttestedBy, Author, KeyId, KeyUse},
    command::{AccessCommand, Command, Expect, KeyTerms, Proposal, Verdict},
    system::person::PersonId,
    time::Timestamp,
};
use concord_state::State;
use fastrand::Rng;

use super::replay::access;

/// A change of the keys in the name of somebody: mostly attestations, and keys that their holders rotate.
fn change_of_keys(state: &State, random: &mut Rng) -> (AccessCommand, Author) {
    let count = usize::try_from(state.access_key_count()).unwrap();
    let some_key = |random: &mut Rng| state.access_keys().nth(random.usize(0..count)).unwrap();
    let author = |key: &AccessKey, random: &mut Rng| {
        let newest = key.secrets.len() - 1;
        let place = if random.u8(0..10) == 0 { random.usize(0..=newest) } else { newest };
        Author::Key(KeyUse { id: key.id.clone(), revision: key.revision, secret: key.secrets[place].made })
    };
    let by = if count > 0 { author(some_key(random), random) } else { Author::Root };
    match random.u8(0..20) {
        0..=13 if count > 0 => {
            let key = some_key(random);
            let revision = key.revision - u64::from(random.u8(0..8) == 0);
            // Seldom the root key, which attests alone.
            let by = if random.u8(0..20) == 0 { Author::Root } else { by };
            (AccessCommand::Attest { id: key.id.clone(), revision }, by)
        }
        14..=15 if count > 0 => {
            let key = some_key(random);
            let (id, expect, grace_us) = (key.id.clone(), Expect::Any, random.u64(0..400));
            (AccessCommand::Rotate { id, sha256: [3; 32], grace_us, expect }, author(key, random))
        }
        _ => (any_change(state, random), if random.bool() { Author::Root } else { by }),
    }
}

fn any_change(state: &State, random: &mut Rng) -> AccessCommand {
    // A key that has expired does nothing any more.
    let mostly_for_ever = |terms: KeyTerms| {
        let expires_at = terms.expires_at.filter(|end| end.0 % 16 == 0);
        KeyTerms { expires_at, ..terms }
    };
    match access(state, random) {
        AccessCommand::DisableRoot => AccessCommand::EnableRoot,
        AccessCommand::Create { id, terms, sha256, person } => {
            AccessCommand::Create { id, terms: mostly_for_ever(terms), sha256, person }
        }
        AccessCommand::Change { id, terms, expect } => {
            AccessCommand::Change { id, terms: mostly_for_ever(terms), expect }
        }
        other @ (AccessCommand::Revoke { .. }
        | AccessCommand::Rotate { .. }
        | AccessCommand::MarkUsed { .. }
        | AccessCommand::EnableRoot
        | AccessCommand::Attest { .. }) => other,
    }
}

/// What happened to the keys so far.
#[derive(Default)]
struct Keys {
    /// Who made each secret of a key, by its revision: the root key, or a key with this id.
    makers: BTreeMap<(KeyId, u64), Option<KeyId>>,
    /// The persons who were there.
    gone: BTreeSet<PersonId>,
}

/// How often something happened.
#[derive(Debug, Default)]
struct Counts {
    by_root: u32,
    by_persons: u32,
    voided: u32,
}

/// A change that was accepted.
struct Accepted<'a> {
    before: &'a State,
    after: &'a State,
    by: &'a Author,
    at: Timestamp,
    /// For the messages of failures.
    place: &'a str,
}

impl Keys {
    /// Checks all keys after a change.
    fn check(&mut self, change: &Accepted<'_>, counts: &mut Counts) {
        let maker = if let Author::Key(author) = change.by { Some(author.id.clone()) } else { None };
        for key in change.after.access_keys() {
            if key.secrets.last().unwrap().made == change.after.revision() {
                self.makers.insert((key.id.clone(), change.after.revision()), maker.clone());
            }
            let old = change.before.access_key(&key.id);
            assert!(old.is_none_or(|old| old.person == key.person), "{}: another person", change.place);
            let old = old.and_then(|old| old.attestation.as_ref());
            let Some(attestation) = &key.attestation else {
                counts.voided += u32::from(old.is_some());
                continue;
            };
            self.check_secrets(key, change);
            if old != Some(attestation) {
                change.check_attesters(key, attestation);
                let is_by_root = attestation.by == AttestedBy::Root;
                *(if is_by_root { &mut counts.by_root } else { &mut counts.by_persons }) += 1;
            }
        }
        self.check_persons(change);
    }

    fn check_secrets(&self, key: &AccessKey, change: &Accepted<'_>) {
        let Accepted { at, place, .. } = change;
        assert!(key.person.is_some(), "{place}");
        for secret in key.secrets.iter().filter(|secret| secret.until.is_none_or(|end| *at < end)) {
            let maker = &self.makers[&(key.id.clone(), secret.made)];
            assert!(
                maker.as_ref().is_none_or(|maker| *maker == key.id),
                "{place}: its secret is another key's"
            );
        }
    }

    /// Exactly the persons that a key names, one of each label, and none that was there before.
    fn check_persons(&mut self, change: &Accepted<'_>) {
        let place = change.place;
        let named: BTreeSet<PersonId> = change.after.access_keys().flat_map(|key| key.persons()).collect();
        let persons: Vec<_> = change.after.persons().map(|record| record.person().unwrap()).collect();
        assert_eq!(persons.iter().map(|person| person.id).collect::<BTreeSet<_>>(), named, "{place}");
        let labels: BTreeSet<_> = persons.iter().map(|person| &person.label).collect();
        assert_eq!(labels.len(), persons.len(), "{place}");
        assert!(named.is_disjoint(&self.gone), "{place}: an id is used again");
        let before = change.before.persons().map(|old| old.person().unwrap().id);
        self.gone.extend(before.filter(|id| !named.contains(id)));
    }
}

impl Accepted<'_> {
    /// Checks who has attested a key that was not so attested before.
    fn check_attesters(&self, key: &AccessKey, attestation: &Attestation) {
        let place = self.place;
        match (&attestation.by, self.by) {
            (AttestedBy::Root, author) => assert_eq!(*author, Author::Root, "{place}"),
            (AttestedBy::Persons([first, second]), Author::Key(author)) => {
                let old = self.before.access_key(&key.id).unwrap();
                assert_eq!(
                    old.half_attested.as_ref().map(|half| &half.by),
                    Some(first),
                    "{place}: of the same revision"
                );
                assert_eq!((old.revision, &second.key), (key.revision, &author.id), "{place}");
                assert_ne!(first.person, second.person, "{place}");
                for attester in [first, second] {
                    assert_ne!(Some(attester.person), key.person, "{place}");
                    let own = self.before.access_key(&attester.key).unwrap();
                    assert!(own.attestation.is_some() && own.person == Some(attester.person), "{place}");
                }
            }
            (AttestedBy::Persons(_), other) => panic!("{place}: by {other:?}"),
        }
    }
}

#[test]
fn an_attested_key_has_others_who_attested_it_and_no_secret_of_others() {
    let mut counts = Counts::default();
    for seed in 31..=50 {
        let (mut random, mut state, mut keys) = (Rng::with_seed(seed), State::new(), Keys::default());
        for revision in 1..=3000 {
            let (command, by) = change_of_keys(&state, &mut random);
            let at = Timestamp(state.last_at().0 + random.u64(0..300));
            let proposal = Proposal::new(at, "somebody", by.clone(), Command::Access(command));
            let before = state.clone();
            let (verdict, change) = state.apply(revision, &proposal);
            let place = format!("seed {seed}, {revision}: {proposal} by {by:?}");
            if matches!(verdict, Verdict::Decided(Ok(_))) {
                keys.check(
                    &Accepted { before: &before, after: &state, by: &by, at, place: &place },
                    &mut counts,
                );
            } else {
                assert_eq!((change, state.digest()), (None, before.digest()), "{place}");
            }
        }
        assert!(keys.gone.len() > 2, "seed {seed}: {:?}", keys.gone);
    }
    let Counts { by_root, by_persons, voided } = counts;
    assert!(by_root > 100 && by_persons > 50 && voided > 50, "{by_root} {by_persons} {voided}");
}
