//! Who attests which key, what voids it, and the persons that keys name.

use super::{
    super::tests::{AccessWorld, SECOND, define, id, proposal, terms},
    *,
};
use crate::{builder::StateBuilder, continuation::Continuation};
use concord_model::{
    access_key::{Grant, Grants, Pattern},
    command::{AccessCommand, Command, Expect, Outcome, Verdict},
    limits::PERSONS_MAX,
    system::{
        SystemBody, SystemRecord,
        person::{Person, PersonLabel},
    },
};

/// A key without a person, which manages keys.
const MANAGER: u64 = 9;
/// The key whose attestation a test looks at.
const TARGET: u64 = 6;

fn create(number: u64, person: Option<&str>) -> AccessCommand {
    let person = person.map(|label| PersonLabel::parse(label).unwrap());
    AccessCommand::Create { id: id(number), terms: terms(&[Verb::Keys], None), sha256: [1; 32], person }
}

fn rotate(number: u64, grace_us: u64) -> AccessCommand {
    AccessCommand::Rotate { id: id(number), sha256: [2; 32], grace_us, expect: Expect::Any }
}

fn revoke(number: u64) -> AccessCommand {
    AccessCommand::Revoke { id: id(number), expect: Expect::Any }
}

impl AccessWorld {
    /// In the name of a key, or of the root key.
    fn by(&mut self, author: Option<u64>, command: AccessCommand) -> Outcome {
        let author = author.map(|number| self.key_use(number));
        self.apply(author, Command::Access(command)).0
    }

    fn attest(&mut self, author: Option<u64>, number: u64) -> Outcome {
        let revision = self.state.access_key(&id(number)).map_or(1, |key| key.revision);
        self.by(author, AccessCommand::Attest { id: id(number), revision })
    }

    fn key(&self, number: u64) -> AccessKey {
        (**self.state.access_key(&id(number)).unwrap()).clone()
    }

    fn is_attested(&self, number: u64) -> bool {
        self.key(number).attestation.is_some()
    }

    fn labels(&self) -> Vec<String> {
        let mut labels: Vec<_> =
            self.state.persons().map(|record| record.person().unwrap().label.to_string()).collect();
        labels.sort();
        labels
    }

    /// With keys that the root key made, and so attested: 1 and 3 of ada, 2 of bob; 9 of nobody. Key 4 of carl is not
    /// attested.
    fn with_persons() -> Self {
        let mut world = Self::new();
        for (number, person) in [(1, Some("ada")), (2, Some("bob")), (3, Some("ada")), (MANAGER, None)] {
            world.by(None, create(number, person)).unwrap();
        }
        world.by(Some(MANAGER), create(4, Some("carl"))).unwrap();
        assert_eq!(
            [1, 2, 3, 4, MANAGER].map(|number| world.is_attested(number)),
            [true, true, true, false, false]
        );
        world
    }
}

/// The state of the key that is to be attested.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Target {
    /// Its person has rotated it.
    Rotated,
    /// The manager still has its secret.
    Shared,
    /// It has no person.
    Nobodys,
    /// It is ada's, like keys 1 and 3, and she has rotated it.
    Adas,
    /// The root key has made it.
    Attested,
}

fn with_target(target: Target) -> AccessWorld {
    let mut world = AccessWorld::with_persons();
    let (author, person) = match target {
        Target::Rotated | Target::Shared => (Some(MANAGER), Some("dora")),
        Target::Nobodys => (Some(MANAGER), None),
        Target::Adas => (Some(MANAGER), Some("ada")),
        Target::Attested => (None, Some("dora")),
    };
    world.by(author, create(TARGET, person)).unwrap();
    if matches!(target, Target::Rotated | Target::Adas) {
        world.by(Some(TARGET), rotate(TARGET, 0)).unwrap();
    }
    world
}

#[test]
fn a_key_is_attested_by_the_root_key_or_by_two_other_persons() {
    const ROOT: Option<u64> = None;
    let (half, whole) = (Ok(false), Ok(true));
    let by_no_person = || Err(Rejection::KeyNotAttested);
    let shared = || Err(Rejection::NotAttestable(NotAttestable::SecretOfOthers));
    let nobodys = || Err(Rejection::NotAttestable(NotAttestable::NoPerson));
    for (target, attesters, expected) in [
        (Target::Rotated, &[ROOT][..], whole.clone()),
        (Target::Rotated, &[Some(1)], half.clone()),
        (Target::Rotated, &[Some(1), Some(1)], half.clone()),
        (Target::Rotated, &[Some(1), Some(3)], half.clone()),
        (Target::Rotated, &[Some(1), Some(2)], whole.clone()),
        (Target::Rotated, &[Some(2), Some(3)], whole.clone()),
        (Target::Rotated, &[Some(1), Some(3), Some(2)], whole.clone()),
        (Target::Rotated, &[Some(1), ROOT], whole.clone()),
        (Target::Rotated, &[Some(1), Some(4)], by_no_person()),
        (Target::Rotated, &[Some(4)], by_no_person()),
        (Target::Rotated, &[Some(MANAGER)], by_no_person()),
        (Target::Rotated, &[Some(TARGET)], by_no_person()),
        (Target::Shared, &[ROOT], shared()),
        (Target::Shared, &[Some(1)], shared()),
        (Target::Nobodys, &[ROOT], nobodys()),
        (Target::Nobodys, &[Some(1)], nobodys()),
        (Target::Adas, &[Some(1)], Err(Rejection::OwnKey)),
        (Target::Adas, &[Some(2), Some(3)], Err(Rejection::OwnKey)),
        (Target::Adas, &[Some(2)], half),
        (Target::Adas, &[ROOT], whole.clone()),
        (Target::Attested, &[ROOT], whole.clone()),
        (Target::Attested, &[Some(1)], whole),
        (Target::Attested, &[Some(TARGET)], Err(Rejection::OwnKey)),
    ] {
        let mut world = with_target(target);
        let before = world.key(TARGET);
        let (last, first) = attesters.split_last().unwrap();
        for attester in first {
            world.attest(*attester, TARGET).unwrap();
        }
        let decided = world.attest(*last, TARGET).map(|_| world.is_attested(TARGET));
        assert_eq!(decided, expected, "{target:?} {attesters:?}");
        let after = world.key(TARGET);
        assert_eq!((after.revision, after.modified_at), (before.revision, before.modified_at), "{target:?}");
        assert!(after.attestation.is_none() || after.half_attested.is_none(), "{target:?} {attesters:?}");
        assert_eq!(
            after.half_attested.is_some(),
            !first.is_empty() && expected.is_err() || expected == Ok(false)
        );
        if target == Target::Attested {
            assert_eq!(after, before, "another attestation would void approvals");
        }
        assert_eq!(world.rebuilt().digest(), world.state.digest());
    }
}

#[test]
fn an_attestation_names_who_gave_it_and_outlives_their_keys() {
    let mut world = with_target(Target::Rotated);
    world.attest(Some(1), TARGET).unwrap();
    let completed = world.attest(Some(2), TARGET).unwrap().revision;
    let attestation = world.key(TARGET).attestation.unwrap();
    let person = |number| world.key(number).person.unwrap();
    let attester = |number| Attester { key: id(number), person: person(number) };
    let by = AttestedBy::Persons([attester(1), attester(2)]);
    assert_eq!(attestation, Attestation { at: completed, by });
    for number in [1, 2, 3] {
        world.by(None, revoke(number)).unwrap();
    }
    assert_eq!(world.key(TARGET).attestation, Some(attestation));
    assert_eq!(world.labels(), ["ada", "bob", "carl", "dora"], "it names them still");
    world.by(None, revoke(TARGET)).unwrap();
    assert_eq!(world.labels(), ["carl"]);
}

#[test]
fn both_persons_name_the_same_revision_of_the_key() {
    let mut world = with_target(Target::Rotated);
    let current = world.key(TARGET).revision;
    for revision in [0, current - 1, current + 1] {
        let wrong = world.by(Some(1), AccessCommand::Attest { id: id(TARGET), revision });
        assert_eq!(wrong, Err(Rejection::Precondition { current }));
    }
    assert_eq!(world.attest(Some(1), 8), Err(Rejection::KeyNotFound));
    world.attest(Some(1), TARGET).unwrap();
    world.by(Some(TARGET), rotate(TARGET, 0)).unwrap();
    world.attest(Some(2), TARGET).unwrap();
    assert!(!world.is_attested(TARGET), "the first has attested the key as it was before");
    world.attest(Some(1), TARGET).unwrap();
    assert!(world.is_attested(TARGET));
}

#[test]
fn the_first_of_two_persons_counts_while_their_key_is_attested() {
    type Voided = fn(&mut AccessWorld);
    let ends: [(Voided, bool); 4] = [
        (|world| drop(world.by(None, revoke(1)).unwrap()), false),
        (|world| drop(world.by(Some(MANAGER), rotate(1, 0)).unwrap()), false),
        (|world| drop(world.by(Some(1), rotate(1, 0)).unwrap()), true),
        (|world| drop(world.by(None, rotate(1, 0)).unwrap()), true),
    ];
    for (place, (end, counts)) in ends.into_iter().enumerate() {
        let mut world = with_target(Target::Rotated);
        world.attest(Some(1), TARGET).unwrap();
        end(&mut world);
        world.attest(Some(2), TARGET).unwrap();
        assert_eq!(world.is_attested(TARGET), counts, "{place}");
        world.attest(Some(3), TARGET).unwrap();
        assert!(world.is_attested(TARGET), "{place}");
    }
}

#[test]
fn a_grace_keeps_the_secret_of_others_valid() {
    let mut world = with_target(Target::Shared);
    world.by(Some(TARGET), rotate(TARGET, 100 * SECOND)).unwrap();
    let shared = Err(Rejection::NotAttestable(NotAttestable::SecretOfOthers));
    for author in [Some(1), None] {
        assert_eq!(world.attest(author, TARGET).map(drop), shared);
    }
    world.at += 100 * SECOND;
    world.attest(None, TARGET).unwrap();
    assert!(world.is_attested(TARGET));
    // The root key gives no other secret a grace either.
    let mut world = with_target(Target::Shared);
    world.by(None, rotate(TARGET, 100 * SECOND)).unwrap();
    assert!(!world.is_attested(TARGET));
    world.by(None, rotate(TARGET, 0)).unwrap();
    assert!(world.is_attested(TARGET));
}

#[test]
fn only_the_newest_secret_is_the_keys_own_to_rotate_it() {
    for (number, is_kept) in [(0, false), (1, true)] {
        let mut world = with_target(Target::Attested);
        world.by(Some(TARGET), rotate(TARGET, 100 * SECOND)).unwrap();
        let mut author = world.key_use(TARGET);
        author.secret = world.key(TARGET).secrets[number].made;
        world.apply(Some(author), Command::Access(rotate(TARGET, 0))).0.unwrap();
        let newest = world.key(TARGET).secrets[0].clone();
        assert_eq!((world.is_attested(TARGET), newest.is_own), (is_kept, is_kept), "{number}");
    }
}

#[test]
fn what_voids_an_attestation() {
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Done {
        Rotate,
        Grants,
        Expiry,
        Name,
        Quota,
    }
    let command = |done| {
        let mut other = terms(&[Verb::Keys], None);
        match done {
            Done::Rotate => return rotate(TARGET, 5 * SECOND),
            Done::Grants => other.grants = Grants(Vec::new()),
            Done::Expiry => other.expires_at = Some(Timestamp(u64::MAX)),
            Done::Name => other.name = "other".into(),
            Done::Quota => other.quota.watches = Some(1),
        }
        AccessCommand::Change { id: id(TARGET), terms: other, expect: Expect::Any }
    };
    for (done, by_root, by_itself, by_others) in [
        (Done::Rotate, true, true, false),
        (Done::Grants, true, false, false),
        (Done::Expiry, true, false, false),
        (Done::Name, true, true, true),
        (Done::Quota, true, true, true),
    ] {
        for (author, is_kept) in [(None, by_root), (Some(TARGET), by_itself), (Some(MANAGER), by_others)] {
            let mut world = with_target(Target::Attested);
            let before = world.key(TARGET);
            world.by(author, command(done)).unwrap();
            let after = world.key(TARGET);
            assert_eq!(after.attestation.is_some(), is_kept, "{done:?} by {author:?}");
            assert_ne!(after.revision, before.revision);
            // A rotation by the root key is another attestation.
            let is_same = after.attestation == before.attestation;
            assert_eq!(is_same, is_kept && (done, author) != (Done::Rotate, None), "{done:?} by {author:?}");
            // A first attestation is of the revision before.
            let mut world = with_target(Target::Rotated);
            world.attest(Some(1), TARGET).unwrap();
            world.by(author, command(done)).unwrap();
            let after = world.key(TARGET);
            let is_attested_by_root = (done, author) == (Done::Rotate, None);
            assert_eq!((after.half_attested, after.attestation.is_some()), (None, is_attested_by_root));
        }
    }
}

#[test]
fn a_revoked_key_attests_nothing() {
    let mut world = with_target(Target::Rotated);
    let (author, revision) = (world.key_use(1), world.key(TARGET).revision);
    world.by(None, revoke(1)).unwrap();
    let attest = Command::Access(AccessCommand::Attest { id: id(TARGET), revision });
    let late = world.propose(&proposal(world.at, Some(author), attest.clone()));
    assert_eq!(late.0, Verdict::Decided(Err(Rejection::KeyEnded)));
    world.by(None, AccessCommand::DisableRoot).unwrap();
    assert_eq!(world.apply(None, attest).0, Err(Rejection::RootDisabled));
    assert_eq!(world.key(TARGET).half_attested, None);
}

#[test]
fn two_nodes_make_no_two_persons_of_one_label() {
    let mut world = AccessWorld::new();
    // Both were prepared on the state without a person.
    let (one, other) = (create(1, Some("Ada@x")), create(2, Some("ada@X")));
    world.by(None, one).unwrap();
    world.by(None, other).unwrap();
    let first = world.key(1).person.unwrap();
    assert_eq!((world.key(2).person, world.labels()), (Some(first), vec!["ada@x".to_owned()]));
    assert_eq!(world.state.person_labelled(&PersonLabel::parse("ADA@x").unwrap()), Some(first));
    world.by(None, revoke(1)).unwrap();
    assert_eq!(world.labels(), ["ada@x"]);
    world.by(None, revoke(2)).unwrap();
    assert_eq!((world.labels(), world.state.person_count()), (Vec::new(), 0));
    world.by(None, create(3, Some("ada@x"))).unwrap();
    assert!(world.key(3).person.unwrap() > first, "an id is not used again");
    // A rejected creation makes no person.
    assert_eq!(world.by(None, create(3, Some("eve"))).map(drop), Err(Rejection::KeyExists));
    assert_eq!(world.labels(), ["ada@x"]);
    assert_eq!(world.rebuilt().digest(), world.state.digest());
    world.apply(None, define(1)).0.unwrap();
}

fn record(number: u64, label: &str) -> SystemRecord {
    let (id, label) = (PersonId(number), PersonLabel::parse(label).unwrap());
    SystemRecord {
        name: id.name(),
        body: SystemBody::Person(Person { id, label }),
        text: "{}".into(),
        created_at: Timestamp(1),
        modified_at: Timestamp(1),
        revision: 1,
    }
}

#[test]
fn a_cluster_has_so_many_persons() {
    let mut builder = StateBuilder::new();
    for number in 1..PERSONS_MAX {
        // The log gives its ids from the revision on.
        builder.system_record(record(number + (1 << 40), &format!("p{number}"))).unwrap();
    }
    let mut world = AccessWorld { state: builder.finish(1, Timestamp(1)).unwrap(), at: SECOND };
    world.by(None, create(1, Some("new"))).unwrap();
    let digest = world.state.digest();
    assert_eq!(world.by(None, create(2, Some("newer"))), Err(Rejection::TooManyPersons));
    assert_eq!(world.state.digest(), digest);
    world.by(None, create(2, Some("P7"))).unwrap();
    world.by(None, create(3, None)).unwrap();
}

#[test]
fn records_that_no_state_could_hold_are_rejected() {
    let mut builder = StateBuilder::new();
    builder.system_record(record(1, "ada")).unwrap();
    assert!(builder.system_record(record(1, "bob")).is_err(), "the id twice");
    assert!(builder.system_record(record(2, "ada")).is_err(), "the label twice");
    let other = SystemRecord { name: PersonId(4).name(), ..record(3, "carl") };
    assert!(builder.system_record(other).is_err(), "the name is not the id");
    let mut key = concord_model::testing::key(1);
    key.person = Some(PersonId(2));
    builder.access_key(key).unwrap();
    assert!(builder.finish(9, Timestamp(9)).is_err(), "the key's person is not there");
}

#[test]
fn a_restore_ends_all_attestations_whole_and_half() {
    let mut world = with_target(Target::Rotated);
    world.attest(Some(1), TARGET).unwrap();
    world.by(None, create(7, Some("eve"))).unwrap();
    world.attest(Some(2), 4).unwrap_err();
    // Only an attestation names her.
    world.by(Some(7), rotate(7, 0)).unwrap();
    world.attest(Some(7), TARGET).unwrap();
    world.by(None, revoke(7)).unwrap();
    assert_eq!(world.labels(), ["ada", "bob", "carl", "dora", "eve"]);
    let before = world.state.clone();
    world.state = world.state.clone().restored_at(1000);
    assert_eq!(world.labels(), ["ada", "bob", "carl", "dora"]);
    for (key, old) in world.state.access_keys().zip(before.access_keys()) {
        assert_eq!((&key.attestation, &key.half_attested), (&None, &None));
        assert_eq!((&key.person, key.revision, &key.secrets), (&old.person, old.revision, &old.secrets));
    }
    assert_eq!(world.rebuilt().digest(), world.state.digest());
    assert_eq!(world.attest(Some(1), TARGET), Err(Rejection::KeyNotAttested));
    world.attest(None, TARGET).unwrap();
}

#[test]
fn a_key_of_a_backup_loses_the_person_that_the_history_has_removed() {
    let mut world = AccessWorld::with_persons();
    let backup = world.state.clone();
    // The history has the persons, and not the keys.
    let mut continuation = Continuation::new(backup);
    for (author, command) in
        [(None, revoke(2)), (None, create(7, Some("eve"))), (Some(MANAGER), create(8, Some("bob")))]
    {
        let author = author.map(|number| world.key_use(number));
        let change = world.apply(author, Command::Access(command)).1.unwrap();
        continuation.begin(change.revision, change.at);
        for edit in &change.edits {
            if let Edit::System { before, after } = edit {
                continuation.system_record(before.as_ref(), after.as_ref()).unwrap();
            }
        }
    }
    let revision = world.state.revision();
    world.state = continuation.finish(revision).restored_at(revision + 1);
    let person = |number| world.key(number).person;
    assert!(person(1).is_some() && person(2).is_none(), "it is not the new bob's");
    assert_eq!(world.labels(), ["ada", "carl"]);
    assert_eq!(world.rebuilt().digest(), world.state.digest());
}

#[test]
fn who_could_approve_a_change_of_an_environment() {
    let mut world = AccessWorld::new();
    let grants = |verbs: &[Verb], patterns: &[&str]| {
        let definitions = patterns.iter().map(|text| Pattern::parse(text).unwrap()).collect();
        Grant { verbs: verbs.iter().copied().collect(), definitions }
    };
    let both = [Verb::Approve, Verb::Read];
    for (number, person, all) in [
        (1, Some("all"), vec![grants(&both, &["*"])]),
        (2, Some("all"), vec![grants(&both, &["*"])]),
        (3, Some("prod"), vec![grants(&[Verb::Approve], &["prod.*"]), grants(&[Verb::Read], &["*"])]),
        (4, Some("part"), vec![grants(&both, &["prod.a*", "prod"])]),
        (5, Some("blind"), vec![grants(&[Verb::Approve], &["*"])]),
        (6, Some("writer"), vec![grants(&[Verb::Read, Verb::Write, Verb::Define, Verb::Propose], &["*"])]),
        (7, None, vec![grants(&both, &["*"])]),
        (8, Some("ending"), vec![grants(&both, &["prod*"])]),
    ] {
        let mut terms = terms(&[], (number == 8).then_some(1000 * SECOND));
        terms.grants = Grants(all);
        let person = person.map(|label| PersonLabel::parse(label).unwrap());
        world.by(None, AccessCommand::Create { id: id(number), terms, sha256: [1; 32], person }).unwrap();
    }
    let approvers = |world: &AccessWorld, at: u64| {
        let names = ["prod", "dev", "default"];
        let found = world.state.approvers(&names, Timestamp(at * SECOND));
        names.map(|name| found[name])
    };
    assert_eq!(approvers(&world, 999), [3, 1, 1]);
    assert_eq!(approvers(&world, 1000), [2, 1, 1]);
    world.by(None, create(MANAGER, None)).unwrap();
    world.by(Some(MANAGER), rotate(1, 0)).unwrap();
    assert_eq!(approvers(&world, 999), [3, 1, 1], "by the other key");
    world.by(Some(MANAGER), rotate(2, 0)).unwrap();
    assert_eq!(approvers(&world, 999), [2, 0, 0]);
}
