//! Proposals in the name of access keys, in the order of the log.

use proptest::prelude::*;

use super::*;
use crate::{Change, builder::StateBuilder};
use concord_model::{
    access_key::{Grant, KeyUse, Pattern, Quota},
    command::{BatchStep, Command, IdempotencyKey},
    key::Key,
    record::Revision,
};

pub(super) const SECOND: u64 = 1_000_000;

pub(super) fn id(number: u64) -> KeyId {
    KeyId::parse(&format!("{number:012}")).unwrap()
}

pub(super) fn terms(verbs: &[Verb], expires_at: Option<u64>) -> KeyTerms {
    let grant = Grant { verbs: verbs.iter().copied().collect(), definitions: vec![Pattern::all()] };
    let expires_at = expires_at.map(Timestamp);
    KeyTerms { name: "n".into(), grants: Grants(vec![grant]), quota: Quota::default(), expires_at }
}

fn create(number: u64, verbs: &[Verb]) -> AccessCommand {
    AccessCommand::Create { id: id(number), terms: terms(verbs, None), sha256: [1; 32], person: None }
}

pub(super) fn proposal(at: u64, key: Option<KeyUse>, command: Command) -> Proposal {
    let by = key.as_ref().map_or("root".to_owned(), |key| key.id.to_string());
    let author = match key {
        Some(key) => Author::Key(key),
        None if command.is_of_the_cluster() => Author::Cluster,
        None => Author::Root,
    };
    Proposal::new(Timestamp(at), &by, author, command)
}

pub(super) fn define(number: u64) -> Command {
    let key = Key::parse(&format!("d{number}")).unwrap();
    Command::CreateDefinition { key, indexes: Vec::new(), schema: None }
}

pub(super) struct AccessWorld {
    pub(super) state: State,
    pub(super) at: u64,
}

impl AccessWorld {
    pub(super) fn new() -> Self {
        Self { state: State::new(), at: SECOND }
    }

    pub(super) fn propose(&mut self, proposal: &Proposal) -> (Verdict, Option<Change>) {
        let digest = self.state.digest();
        let revision = self.state.revision() + 1;
        let (verdict, change) = self.state.apply(revision, proposal);
        if !matches!(verdict, Verdict::Decided(Ok(_))) {
            assert_eq!((&change, self.state.digest()), (&None, digest), "what is refused leaves nothing");
        }
        (verdict, change)
    }

    pub(super) fn apply(&mut self, key: Option<KeyUse>, command: Command) -> (Outcome, Option<Change>) {
        self.at += SECOND;
        match self.propose(&proposal(self.at, key, command)) {
            (Verdict::Decided(outcome), change) => (outcome, change),
            (Verdict::Stale, _) => panic!("stale"),
        }
    }

    pub(super) fn access(&mut self, command: AccessCommand) -> Outcome {
        self.apply(None, Command::Access(command)).0
    }

    /// A use of the key as it is.
    pub(super) fn key_use(&self, number: u64) -> KeyUse {
        let key = self.state.access_key(&id(number)).unwrap();
        KeyUse { id: id(number), revision: key.revision, secret: key.secrets.last().unwrap().made }
    }

    pub(super) fn rebuilt(&self) -> State {
        let mut builder = StateBuilder::new();
        for collection in self.state.definitions() {
            builder.definition((*collection.definition).clone()).unwrap();
        }
        for key in self.state.access_keys() {
            builder.access_key((**key).clone()).unwrap();
        }
        for record in self.state.system_records() {
            builder.system_record((**record).clone()).unwrap();
        }
        builder.root_disabled(self.state.is_root_disabled());
        builder.feature_level(self.state.feature_level());
        builder.finish(self.state.revision(), self.state.last_at()).unwrap()
    }
}

#[test]
fn nothing_is_decided_in_the_name_of_a_revoked_key() {
    let mut world = AccessWorld::new();
    world.access(create(1, &[Verb::Define])).unwrap();
    let key = world.key_use(1);
    let change = world.apply(Some(key.clone()), define(1)).1.unwrap();
    assert_eq!(change.by, id(1).to_string());
    world.access(AccessCommand::Revoke { id: id(1), expect: Expect::Any }).unwrap();
    let request = Some(IdempotencyKey { id: [1; 16], fingerprint: [2; 16] });
    for request in [None, request] {
        let late = Proposal { request, ..proposal(world.at, Some(key.clone()), define(2)) };
        assert_eq!(world.propose(&late).0, Verdict::Decided(Err(Rejection::KeyEnded)), "and not remembered");
    }
    assert_eq!(world.state.request_count(), 0);
    world.access(create(1, &[Verb::Define])).unwrap();
    let (verdict, _) = world.propose(&proposal(world.at, Some(key), define(2)));
    assert_eq!(verdict, Verdict::Decided(Err(Rejection::KeyEnded)), "another secret, even under the same id");
}

#[test]
fn a_request_that_was_decided_keeps_its_outcome_after_the_revocation() {
    let mut world = AccessWorld::new();
    world.access(create(1, &[Verb::Define])).unwrap();
    let request = Some(IdempotencyKey { id: [1; 16], fingerprint: [2; 16] });
    let first = Proposal { request, ..proposal(world.at + 1, Some(world.key_use(1)), define(1)) };
    let (Verdict::Decided(Ok(applied)), _) = world.propose(&first) else { panic!("accepted") };
    world.access(AccessCommand::Revoke { id: id(1), expect: Expect::Any }).unwrap();
    assert_eq!(world.propose(&first), (Verdict::Decided(Ok(applied)), None));
}

#[test]
fn a_judgement_by_other_terms_is_stale() {
    let mut world = AccessWorld::new();
    world.access(create(1, &[Verb::Define])).unwrap();
    let before = world.key_use(1);
    let expect = Expect::Read(Some(before.revision));
    let change = |verbs, expect| AccessCommand::Change { id: id(1), terms: terms(verbs, None), expect };
    world.access(change(&[Verb::Read], expect)).unwrap();
    assert_eq!(world.propose(&proposal(world.at, Some(before), define(1))).0, Verdict::Stale);
    let now = world.key_use(1);
    world.apply(Some(now), define(1)).0.unwrap();
    let (verdict, _) =
        world.propose(&proposal(world.at, None, Command::Access(change(&[Verb::Audit], expect))));
    assert_eq!(verdict, Verdict::Stale, "the command was prepared on the key as it was");
}

#[test]
fn a_key_ends_by_the_time_of_the_log() {
    let mut world = AccessWorld::new();
    let end = 10 * SECOND;
    let terms = terms(&[Verb::Define], Some(end));
    world.access(AccessCommand::Create { id: id(1), terms, sha256: [1; 32], person: None }).unwrap();
    let key = Some(world.key_use(1));
    let before = proposal(end - 1, key.clone(), define(1));
    assert!(matches!(world.propose(&before).0, Verdict::Decided(Ok(_))));
    // The proposer's clock is behind, the log's time is not.
    let after = proposal(end - 1, key, define(2));
    assert_eq!(world.propose(&after).0, Verdict::Decided(Err(Rejection::KeyEnded)));
}

#[test]
fn the_previous_secret_is_valid_for_the_grace_period() {
    let mut world = AccessWorld::new();
    world.access(create(1, &[Verb::Define])).unwrap();
    let first = world.key_use(1);
    let rotate =
        |grace_us| AccessCommand::Rotate { id: id(1), sha256: [2; 32], grace_us, expect: Expect::Any };
    world.access(rotate(100 * SECOND)).unwrap();
    let rotated = world.at;
    assert_eq!(world.propose(&proposal(world.at, Some(first.clone()), define(1))).0, Verdict::Stale);
    let second = world.key_use(1);
    let old = KeyUse { secret: first.secret, ..second.clone() };
    world.apply(Some(old.clone()), define(1)).0.unwrap();
    let late = proposal(rotated + 100 * SECOND, Some(old.clone()), define(2));
    assert_eq!(world.propose(&late).0, Verdict::Decided(Err(Rejection::KeyEnded)));
    world.apply(Some(second.clone()), define(2)).0.unwrap();
    world.access(rotate(0)).unwrap();
    let now = world.key_use(1);
    for secret in [first.secret, second.secret] {
        let ended = proposal(world.at, Some(KeyUse { secret, ..now.clone() }), define(3));
        assert_eq!(world.propose(&ended).0, Verdict::Decided(Err(Rejection::KeyEnded)));
    }
    assert_eq!(world.state.access_key(&id(1)).unwrap().secrets.len(), 1);
}

#[test]
fn the_last_key_that_manages_keys_stays_while_root_is_disabled() {
    let mut world = AccessWorld::new();
    assert_eq!(world.access(AccessCommand::DisableRoot), Err(Rejection::NoKeyForKeys));
    world.access(create(1, &[Verb::Read])).unwrap();
    assert_eq!(world.access(AccessCommand::DisableRoot), Err(Rejection::NoKeyForKeys));
    world.access(create(2, &[Verb::Keys])).unwrap();
    let digest = world.state.digest();
    world.access(AccessCommand::DisableRoot).unwrap();
    assert_ne!(world.state.digest(), digest, "nodes that disagree about it are found");
    assert_eq!(world.apply(None, define(1)).0, Err(Rejection::RootDisabled));
    let key = world.key_use(2);
    let revoke = |number| Command::Access(AccessCommand::Revoke { id: id(number), expect: Expect::Any });
    assert_eq!(world.apply(Some(key.clone()), revoke(2)).0, Err(Rejection::NoKeyForKeys));
    let (id, expect) = (id(2), Expect::Any);
    let weaken = AccessCommand::Change { id, terms: terms(&[Verb::Read], None), expect };
    assert_eq!(world.apply(Some(key.clone()), Command::Access(weaken)).0, Err(Rejection::NoKeyForKeys));
    world.apply(Some(key.clone()), revoke(1)).0.unwrap();
    world.apply(None, Command::Compact { compaction_revision: 1 }).0.unwrap();
    world.apply(None, Command::Access(AccessCommand::EnableRoot)).0.unwrap();
    world.apply(None, revoke(2)).0.unwrap();
    world.apply(None, define(1)).0.unwrap();
}

#[test]
fn the_cluster_proposes_only_what_is_its_own_and_root_nothing_while_it_is_disabled() {
    let mut world = AccessWorld::new();
    world.access(create(1, &[Verb::Keys])).unwrap();
    let compact = || Command::Compact { compaction_revision: 1 };
    let by = |author: Author, command| Proposal::new(Timestamp(1), "somebody", author, command);
    let is_accepted = |verdict| matches!(verdict, Verdict::Decided(Ok(_)));
    let unauthored = Verdict::Decided(Err(Rejection::Unauthored));
    for disabled in [false, true] {
        if disabled {
            world.access(AccessCommand::DisableRoot).unwrap();
        }
        let request = Some(IdempotencyKey { id: [1; 16], fingerprint: [2; 16] });
        let not_its_own = Proposal { request, ..by(Author::Cluster, define(9)) };
        assert_eq!(world.propose(&not_its_own).0, unauthored);
        let batch = vec![BatchStep { definition_read: None, command: compact() }];
        assert_eq!(world.propose(&by(Author::Cluster, Command::Batch(batch))).0, unauthored);
        assert!(is_accepted(world.propose(&by(Author::Cluster, compact())).0));
        let by_root = world.propose(&by(Author::Root, compact())).0;
        let refused = Verdict::Decided(Err(Rejection::RootDisabled));
        assert!(if disabled { by_root == refused } else { is_accepted(by_root) });
    }
    assert_eq!(world.state.request_count(), 0, "and nothing of it is remembered");
}

#[test]
fn a_key_that_expires_is_not_the_last_that_manages_keys_while_root_is_disabled() {
    let mut world = AccessWorld::new();
    let change = |number, expires_at| AccessCommand::Change {
        id: id(number),
        terms: terms(&[Verb::Keys], expires_at),
        expect: Expect::Any,
    };
    world.access(create(1, &[Verb::Keys])).unwrap();
    for end in [1, world.at + 1_000 * SECOND, u64::MAX] {
        world.access(change(1, Some(end))).unwrap();
        assert_eq!(world.access(AccessCommand::DisableRoot), Err(Rejection::NoKeyForKeys), "{end}");
    }
    world.access(change(1, None)).unwrap();
    world.access(create(2, &[Verb::Keys])).unwrap();
    world.access(AccessCommand::DisableRoot).unwrap();
    let mut by_first = |number, end: Option<u64>| {
        let key = world.key_use(1);
        world.apply(Some(key), Command::Access(change(number, end))).0
    };
    by_first(2, Some(u64::MAX)).unwrap();
    for end in [1, u64::MAX] {
        assert_eq!(by_first(1, Some(end)), Err(Rejection::NoKeyForKeys), "{end}");
    }
    by_first(2, None).unwrap();
    by_first(1, Some(u64::MAX)).unwrap();
}

#[test]
fn preconditions_and_limits_of_keys() {
    let mut world = AccessWorld::new();
    let revoke = |number, expect| AccessCommand::Revoke { id: id(number), expect };
    assert_eq!(world.access(revoke(1, Expect::Any)), Err(Rejection::KeyNotFound));
    let created = world.access(create(1, &[Verb::Read])).unwrap();
    assert!(created.has_created());
    assert_eq!(world.access(create(1, &[Verb::Read])), Err(Rejection::KeyExists));
    let current = created.revision;
    assert_eq!(world.access(revoke(1, Expect::At(current + 1))), Err(Rejection::Precondition { current }));
    assert_eq!(world.access(revoke(1, Expect::None)), Err(Rejection::Precondition { current }));
    for number in 2..=ACCESS_KEYS_MAX {
        world.access(create(number, &[Verb::Read])).unwrap();
    }
    assert_eq!(world.access(create(0, &[Verb::Read])), Err(Rejection::TooManyKeys));
    world.access(revoke(1, Expect::At(current))).unwrap();
    world.access(create(0, &[Verb::Read])).unwrap();
    assert_eq!(world.rebuilt().digest(), world.state.digest());
}

#[test]
fn a_use_is_marked_once_a_day_and_keeps_authorizations_valid() {
    let mut world = AccessWorld::new();
    world.access(create(1, &[Verb::Define])).unwrap();
    let key = world.key_use(1);
    let mark = Command::Access(AccessCommand::MarkUsed { ids: vec![id(1), id(2)] });
    world.at = 86_400 * SECOND;
    assert!(world.apply(None, mark.clone()).1.is_some());
    assert_eq!(world.apply(None, mark.clone()).1, None);
    world.at += 86_400 * SECOND;
    assert!(world.apply(None, mark).1.is_some());
    assert_eq!(world.state.access_key(&id(1)).unwrap().last_used_day, Some(2));
    world.apply(Some(key), define(1)).0.unwrap();
}

#[derive(Debug, Clone)]
enum AccessStep {
    Create(u64),
    Manage(u64, Managed),
    Disable,
    Enable,
    Write { author: Option<u64>, revision_back: u64, old_secret: bool },
    Wait(u64),
}

/// What is done to a key.
#[derive(Debug, Clone, Copy)]
enum Managed {
    Change,
    Revoke,
    /// With so many seconds of grace.
    Rotate(u64),
}

fn step() -> impl Strategy<Value = AccessStep> {
    let number = || 0u64..4;
    prop_oneof![
        number().prop_map(AccessStep::Create),
        number().prop_map(|number| AccessStep::Manage(number, Managed::Change)),
        number().prop_map(|number| AccessStep::Manage(number, Managed::Revoke)),
        (number(), 0u64..5).prop_map(|(number, grace)| AccessStep::Manage(number, Managed::Rotate(grace))),
        Just(AccessStep::Disable),
        Just(AccessStep::Enable),
        (proptest::option::of(number()), 0u64..2, any::<bool>()).prop_map(
            |(author, revision_back, old_secret)| AccessStep::Write { author, revision_back, old_secret }
        ),
        (0u64..4).prop_map(AccessStep::Wait),
    ]
}

/// What a model of a few lines says of the keys: their revision, and each secret with its end.
type KeysModel = std::collections::BTreeMap<u64, (Revision, Vec<(Revision, Option<u64>)>)>;

proptest! {
    /// A write is decided exactly when its author may make it, and whatever happens, the state equals the one that is
    /// built from its records.
    #[test]
    fn a_write_is_decided_only_in_a_good_name(steps in proptest::collection::vec(step(), 1..60)) {
        let mut world = AccessWorld::new();
        let mut model = KeysModel::new();
        let (mut disabled, mut written) = (false, 0);
        for step in steps {
            match step {
                AccessStep::Create(number) => {
                    // As a node that enables the root key first, so that the model needs no author.
                    world.access(AccessCommand::EnableRoot).unwrap();
                    disabled = false;
                    let outcome = world.access(create(number, &[Verb::Keys]));
                    prop_assert_eq!(outcome.is_ok(), !model.contains_key(&number));
                    if let Ok(applied) = outcome {
                        model.insert(number, (applied.revision, vec![(applied.revision, None)]));
                    }
                }
                AccessStep::Manage(number, managed) => {
                    world.access(AccessCommand::EnableRoot).unwrap();
                    disabled = false;
                    let (id, expect) = (id(number), Expect::Any);
                    let command = match managed {
                        Managed::Change => AccessCommand::Change { id, terms: terms(&Verb::ALL, None), expect },
                        Managed::Revoke => AccessCommand::Revoke { id, expect },
                        Managed::Rotate(grace) => {
                            AccessCommand::Rotate { id, sha256: [3; 32], grace_us: grace * SECOND, expect }
                        }
                    };
                    let outcome = world.access(command);
                    prop_assert_eq!(outcome.is_ok(), model.contains_key(&number));
                    let Ok(applied) = outcome else { continue };
                    match managed {
                        Managed::Revoke => drop(model.remove(&number)),
                        Managed::Change => model.get_mut(&number).unwrap().0 = applied.revision,
                        Managed::Rotate(grace) => {
                            let (revision, secrets) = model.get_mut(&number).unwrap();
                            let end = applied.at.0 + grace * SECOND;
                            let last = secrets.last().map(|(made, _)| (*made, Some(end))).filter(|_| grace > 0);
                            *secrets = last.into_iter().chain([(applied.revision, None)]).collect();
                            *revision = applied.revision;
                        }
                    }
                }
                AccessStep::Disable => disabled |= world.access(AccessCommand::DisableRoot).is_ok(),
                AccessStep::Enable => {
                    world.access(AccessCommand::EnableRoot).unwrap();
                    disabled = false;
                }
                AccessStep::Write { author: None, .. } => {
                    written += 1;
                    let outcome = world.apply(None, define(written)).0;
                    prop_assert_eq!(outcome.is_ok(), !disabled);
                }
                AccessStep::Write { author: Some(number), revision_back, old_secret } => {
                    written += 1;
                    world.at += SECOND;
                    let known = model.get(&number);
                    let (revision, secrets) = known.cloned().unwrap_or((7, vec![(7, None)]));
                    let (made, end) = if old_secret { secrets[0] } else { *secrets.last().unwrap() };
                    let key = KeyUse { id: id(number), revision: revision - revision_back, secret: made };
                    let at = Timestamp(world.at).after(world.state.last_at()).0;
                    let is_good = known.is_some() && end.is_none_or(|end| at < end);
                    let verdict = world.propose(&proposal(world.at, Some(key), define(written))).0;
                    match (is_good, revision_back) {
                        (false, _) => prop_assert_eq!(verdict, Verdict::Decided(Err(Rejection::KeyEnded))),
                        (true, 0) => prop_assert!(matches!(verdict, Verdict::Decided(Ok(_)))),
                        (true, _) => prop_assert_eq!(verdict, Verdict::Stale),
                    }
                }
                AccessStep::Wait(seconds) => world.at += seconds * SECOND,
            }
            prop_assert_eq!(world.state.is_root_disabled(), disabled);
            prop_assert_eq!(world.state.access_key_count(), model.len() as u64);
        }
        prop_assert_eq!(world.rebuilt().digest(), world.state.digest());
    }
}
