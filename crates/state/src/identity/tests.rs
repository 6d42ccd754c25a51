//! Proposals in the name of sessions, and what opens and ends sessions, in the order of the log.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{Change, builder::StateBuilder};
use concord_model::{
    access_key::{Author, Grants, Quota},
    command::{
        AccessCommand, Applied, ChangeAction, Command, Expect, IdempotencyKey, KeyTerms, Proposal,
        SystemCommand,
        source::{Guard, Source, Tail},
    },
    limits::SESSIONS_SWEPT_MAX,
    system::{
        change::{ChangeId, Content, NewEdition, Party, Scope, Timing},
        identity::OwnerTag,
    },
};

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3600 * SECOND;

fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn id(number: u64) -> KeyId {
    KeyId::parse(&format!("{number:012}")).unwrap()
}

fn identity(command: IdentityCommand) -> Command {
    Command::System(SystemCommand::Identity(command))
}

fn define(name: &str) -> Command {
    Command::CreateDefinition { key: key(name), indexes: Vec::new(), schema: None }
}

/// A cluster, and the next moment of it.
struct World {
    state: State,
    at: u64,
}

impl World {
    fn new() -> Self {
        Self { state: State::new(), at: HOUR }
    }

    /// One with a provider of this name.
    fn with(provider: &str) -> Self {
        let mut world = Self::new();
        world.put(provider);
        world
    }

    fn propose(&mut self, proposal: &Proposal) -> (Verdict, Option<Change>) {
        let digest = self.state.digest();
        let revision = self.state.revision() + 1;
        let (verdict, change) = self.state.apply(revision, proposal);
        if !matches!(verdict, Verdict::Decided(Ok(_))) {
            assert_eq!((&change, self.state.digest()), (&None, digest), "what is refused leaves nothing");
        }
        assert_eq!(rebuilt(&self.state).digest(), self.state.digest());
        (verdict, change)
    }

    fn by(&mut self, author: Author, command: Command) -> Verdict {
        self.at += 1;
        self.propose(&Proposal::new(Timestamp(self.at), "somebody", author, command)).0
    }

    fn does(&mut self, command: IdentityCommand) -> Result<Applied, Rejection> {
        let command = identity(command);
        let author = if command.is_of_the_cluster() { Author::Cluster } else { Author::Root };
        match self.by(author, command) {
            Verdict::Decided(outcome) => outcome,
            Verdict::Stale => panic!("stale"),
        }
    }

    fn of(&self, name: &str) -> PolicyChange {
        PolicyChange { name: key(name), expect: Expect::Any, policy: self.state.policy_revision() }
    }

    fn put_with(&mut self, name: &str, trust: bool, keys: bool) {
        let (of, keeps) = (self.of(name), KeptOfProvider { trust, keys });
        self.does(IdentityCommand::PutProvider { of, keeps, text: "{}".into() }).unwrap();
    }

    fn put(&mut self, name: &str) {
        self.put_with(name, true, true);
    }

    fn put_role(&mut self, name: &str) {
        let of = self.of(name);
        self.does(IdentityCommand::PutRole { of, text: "{}".into() }).unwrap();
    }

    fn provider_of(&self, name: &str) -> Provider {
        *self.state.provider_record(name).unwrap().provider().unwrap()
    }

    fn put_keys(&mut self, name: &str, text: &str) {
        let (provider, confirmed_at) = (self.provider_of(name).id, Timestamp(self.at));
        self.does(IdentityCommand::PutKeySet { provider, text: text.into(), confirmed_at }).unwrap();
    }

    /// A session that a token of now would open, for an hour.
    fn session(&self, provider: &str, number: u64, owner: u8) -> NewSession {
        NewSession {
            id: id(number),
            sha256: [1; 32],
            provider: self.provider_of(provider).id,
            policy: self.state.policy_revision(),
            key_set: self.state.key_set_record(provider).map(|record| record.revision),
            owner: OwnerTag([owner; 16]),
            name: format!("{provider}/{owner}"),
            issued_at: Timestamp(self.at),
            token_ends_at: Timestamp(self.at + HOUR),
            expires_at: Timestamp(self.at + HOUR),
            text: "{}".into(),
        }
    }

    fn try_open(&mut self, session: NewSession) -> Verdict {
        self.by(Author::Cluster, identity(IdentityCommand::OpenSession(Box::new(session))))
    }

    fn open(&mut self, provider: &str, number: u64, owner: u8) {
        let session = self.session(provider, number, owner);
        let verdict = self.try_open(session);
        assert!(matches!(verdict, Verdict::Decided(Ok(_))), "{verdict:?}");
    }

    fn author(&self, number: u64) -> Author {
        Author::Session(SessionUse { id: id(number), policy: self.state.policy_revision() })
    }

    /// What a write in the name of a session, by the permissions of now, results in.
    fn write_by(&mut self, number: u64) -> Verdict {
        let (author, name) = (self.author(number), format!("d{}", self.state.revision()));
        self.by(author, define(&name))
    }
}

fn rebuilt(state: &State) -> State {
    let mut builder = StateBuilder::new();
    builder.feature_level(state.feature_level());
    for record in state.system_records() {
        assert_eq!(state.system_record(&record.key()), Some(record));
        builder.system_record((**record).clone()).unwrap();
    }
    for found in state.definitions() {
        builder.definition((*found.definition).clone()).unwrap();
    }
    for found in state.access_keys() {
        builder.access_key((**found).clone()).unwrap();
    }
    for found in state.requests() {
        builder.request(found.clone()).unwrap();
    }
    let rebuilt = builder.finish(state.revision(), state.last_at()).unwrap();
    assert_eq!(rebuilt.has_ended_sessions(state.last_at()), state.has_ended_sessions(state.last_at()));
    rebuilt
}

fn is_ended(verdict: &Verdict) -> bool {
    *verdict == Verdict::Decided(Err(Rejection::SessionEnded))
}

/// Why sessions end, and what ends them.
type Ending = (&'static str, fn(&mut World));

/// Every way in which sessions end but their time; all but the first end every session of the provider `ci`.
fn endings() -> Vec<Ending> {
    vec![
        ("it is ended", |world| {
            world.does(IdentityCommand::EndSession { id: id(1) }).unwrap();
        }),
        ("all are ended", |world| {
            world.does(IdentityCommand::EndSessions { name: key("ci"), expect: Expect::Any }).unwrap();
        }),
        ("the provider trusts others", |world| world.put_with("ci", false, true)),
        ("the provider is deleted", |world| {
            let of = world.of("ci");
            world.does(IdentityCommand::DeleteProvider(of)).unwrap();
        }),
        ("another provider has the name", |world| {
            let of = world.of("ci");
            world.does(IdentityCommand::DeleteProvider(of)).unwrap();
            world.put("ci");
        }),
        ("the cluster is recovered", |world| {
            let verdict = world.by(Author::Cluster, Command::System(SystemCommand::HoldChanges));
            assert!(matches!(verdict, Verdict::Decided(Ok(_))));
        }),
        ("the cluster is restored", |world| {
            world.state = world.state.clone().restored_at(world.state.revision() + 5);
            assert_eq!((world.state.session_count(), world.state.key_set_record("ci")), (0, None));
        }),
    ]
}

#[test]
fn nothing_is_decided_in_the_name_of_an_ended_session() {
    for (why, end) in endings() {
        let mut world = World::with("ci");
        world.put_keys("ci", "{}");
        world.open("ci", 1, 1);
        let verdict = world.write_by(1);
        assert!(matches!(verdict, Verdict::Decided(Ok(_))), "{why}: {verdict:?}");
        let author = world.author(1);
        end(&mut world);
        let request = Some(IdempotencyKey { id: [1; 16], fingerprint: [1; 16] });
        for author in [author, world.author(1)] {
            world.at += 1;
            let proposal = Proposal::new(Timestamp(world.at), "ci/1", author, define("late"));
            let (verdict, _) = world.propose(&Proposal { request, ..proposal });
            assert!(is_ended(&verdict), "{why}: {verdict:?}");
        }
        assert_eq!(world.state.request_count(), 0, "a retry after a login is decided: {why}");
        assert!(!is_ended(&world.by(Author::Root, define("late"))));
    }
}

#[test]
fn a_session_ends_at_its_time_by_the_time_of_the_entry() {
    let mut world = World::with("ci");
    world.open("ci", 1, 1);
    let end = world.state.session_record(id(1).as_str()).unwrap().session().unwrap().expires_at.0;
    let at = |world: &mut World, at: u64| {
        let author = world.author(1);
        world.propose(&Proposal::new(Timestamp(at), "ci/1", author, define(&format!("d{at}")))).0
    };
    assert!(matches!(at(&mut world, end - 2), Verdict::Decided(Ok(_))));
    assert!(is_ended(&at(&mut world, end)));
    // The log's time never goes back, so neither does a clock that is behind open it again.
    assert!(!matches!(world.by(Author::Root, define("other")), Verdict::Stale));
    let proposal = Proposal::new(Timestamp(end), "root", Author::Root, define("later"));
    assert!(matches!(world.propose(&proposal).0, Verdict::Decided(Ok(_))));
    assert!(is_ended(&at(&mut world, end - 2)));
}

#[test]
fn a_write_is_decided_by_the_policy_that_it_was_judged_by() {
    let mut world = World::with("ci");
    world.open("ci", 1, 1);
    for change in ["a role", "another provider", "the same provider", "the role again"] {
        let judged = world.author(1);
        match change {
            "another provider" => world.put("other"),
            "the same provider" => world.put("ci"),
            _ => world.put_role("deployers"),
        }
        assert_eq!(world.by(judged, define("stale")), Verdict::Stale, "{change}");
        assert!(matches!(world.write_by(1), Verdict::Decided(Ok(_))), "{change}");
    }
    let judged = world.author(1);
    let of = world.of("deployers");
    world.does(IdentityCommand::DeleteRole(of)).unwrap();
    assert_eq!(world.by(judged, define("stale")), Verdict::Stale);
    // What is no change of the policy makes nothing stale.
    let judged = world.author(1);
    world.put_keys("ci", "{}");
    world.open("ci", 2, 2);
    world.does(IdentityCommand::EndSession { id: id(2) }).unwrap();
    assert!(matches!(world.by(judged, define("fresh")), Verdict::Decided(Ok(_))));
}

#[test]
fn a_session_is_opened_by_what_the_cluster_trusts_now() {
    let mut world = World::with("ci");
    world.put_keys("ci", r#"{"keys":[]}"#);
    let judged = world.session("ci", 1, 1);
    world.put_keys("ci", r#"{"keys":[1]}"#);
    assert_eq!(world.try_open(judged), Verdict::Stale, "the key may be withdrawn");
    let judged = world.session("ci", 1, 1);
    world.put_role("deployers");
    assert_eq!(world.try_open(judged), Verdict::Stale, "the role may have been what it was opened for");
    let judged = world.session("ci", 1, 1);
    world.put_with("ci", false, false);
    assert_eq!(world.try_open(judged.clone()), Verdict::Stale);
    assert_eq!(world.state.key_set_record("ci"), None, "they may be of another host");
    let again = NewSession { policy: world.state.policy_revision(), ..judged };
    assert_eq!(world.try_open(again), Verdict::Stale, "its keys are not known any more");
    // Keys of the document have no record.
    let fixed = world.session("ci", 1, 1);
    assert_eq!(fixed.key_set, None);
    assert!(matches!(world.try_open(fixed.clone()), Verdict::Decided(Ok(_))));
    assert_eq!(world.try_open(fixed.clone()), Verdict::Decided(Err(IdentityRejection::SessionExists.into())));
    let terms =
        KeyTerms { name: "n".into(), grants: Grants::default(), quota: Quota::default(), expires_at: None };
    let create = |number| {
        let terms = terms.clone();
        Command::Access(AccessCommand::Create { id: id(number), terms, sha256: [1; 32], person: None })
    };
    assert_eq!(world.by(Author::Root, create(1)), Verdict::Decided(Err(Rejection::KeyExists)));
    assert!(matches!(world.by(Author::Root, create(2)), Verdict::Decided(Ok(_))));
    let taken = NewSession { id: id(2), ..fixed.clone() };
    assert_eq!(world.try_open(taken), Verdict::Decided(Err(IdentityRejection::SessionExists.into())));
    let gone = NewSession { id: id(3), provider: ProviderId(7), ..fixed };
    assert_eq!(world.try_open(gone), Verdict::Decided(Err(IdentityRejection::ProviderNotFound.into())));
}

#[test]
fn a_token_opens_no_session_after_its_end_or_that_of_all_sessions() {
    let mut world = World::with("ci");
    let refused = |world: &mut World, session: NewSession| {
        assert_eq!(world.try_open(session), Verdict::Decided(Err(IdentityRejection::TokenEnded.into())));
    };
    let token_ends_at = Timestamp(world.at + 1);
    let late = NewSession { token_ends_at, ..world.session("ci", 1, 1) };
    refused(&mut world, late);
    let token_ends_at = Timestamp(world.at + 2);
    let in_time = NewSession { token_ends_at, ..world.session("ci", 1, 1) };
    assert!(matches!(world.try_open(in_time), Verdict::Decided(Ok(_))));
    let before = world.session("ci", 2, 1);
    world.does(IdentityCommand::EndSessions { name: key("ci"), expect: Expect::Any }).unwrap();
    // It is evaluated again, and then it is too old.
    assert_eq!(world.try_open(before.clone()), Verdict::Stale);
    let policy = world.state.policy_revision();
    refused(&mut world, NewSession { policy, ..before.clone() });
    // Not by a change of whom it trusts: the token is evaluated by that.
    world.put_with("ci", false, true);
    let policy = world.state.policy_revision();
    refused(&mut world, NewSession { policy, ..before });
    world.open("ci", 3, 1);
    let before = world.session("ci", 4, 1);
    world.put_with("ci", false, true);
    let of_then = NewSession { policy: world.state.policy_revision(), ..before };
    assert!(matches!(world.try_open(of_then), Verdict::Decided(Ok(_))));
}

#[test]
fn documents_are_changed_by_the_policy_that_was_read() {
    let mut world = World::with("ci");
    let stale = world.of("ci");
    world.put_role("a");
    for command in [
        IdentityCommand::PutProvider {
            of: stale.clone(),
            keeps: KeptOfProvider { trust: true, keys: true },
            text: "{}".into(),
        },
        IdentityCommand::DeleteProvider(stale.clone()),
        IdentityCommand::PutRole { of: stale.clone(), text: "{}".into() },
        IdentityCommand::DeleteRole(PolicyChange { name: key("a"), ..stale }),
    ] {
        assert_eq!(world.by(Author::Root, identity(command.clone())), Verdict::Stale, "{command:?}");
    }
    let revision = world.state.role_record("a").unwrap().revision;
    let at = |world: &World, expect| PolicyChange { expect, ..world.of("a") };
    for (expect, rejection) in [
        (Expect::At(revision - 1), Rejection::Precondition { current: revision }),
        (Expect::None, Rejection::Precondition { current: revision }),
    ] {
        let of = at(&world, expect);
        assert_eq!(world.does(IdentityCommand::PutRole { of, text: "{}".into() }), Err(rejection));
    }
    let of = at(&world, Expect::At(revision));
    world.does(IdentityCommand::DeleteRole(of)).unwrap();
    let of = at(&world, Expect::Any);
    assert_eq!(world.does(IdentityCommand::DeleteRole(of)), Err(IdentityRejection::RoleNotFound.into()));
    let of = world.of("none");
    assert_eq!(
        world.does(IdentityCommand::DeleteProvider(of)),
        Err(IdentityRejection::ProviderNotFound.into())
    );
    assert_eq!(
        world.does(IdentityCommand::EndSession { id: id(9) }),
        Err(IdentityRejection::SessionNotFound.into())
    );
}

#[test]
fn key_sets_are_of_their_provider_and_never_go_back() {
    let mut world = World::with("ci");
    world.put_keys("ci", "new");
    let provider = world.provider_of("ci").id;
    let old = |confirmed_at| IdentityCommand::PutKeySet { provider, text: "old".into(), confirmed_at };
    let confirmed_at = world.state.key_set_record("ci").unwrap().key_set().unwrap().confirmed_at;
    world.does(old(confirmed_at)).unwrap();
    assert_eq!(&*world.state.key_set_record("ci").unwrap().text, "new", "an earlier leader comes late");
    world.put("ci");
    assert!(world.state.key_set_record("ci").is_some());
    let of = world.of("ci");
    world.does(IdentityCommand::DeleteProvider(of)).unwrap();
    assert_eq!(world.state.key_set_record("ci"), None);
    world.put("ci");
    world.does(old(Timestamp(world.at + HOUR))).unwrap();
    assert_eq!(world.state.key_set_record("ci"), None, "it is of a provider that is gone");
}

#[test]
fn owners_and_providers_have_their_share_of_sessions() {
    let mut world = World::with("ci");
    world.put("pods");
    // Not rebuilt after each of them.
    let open = |world: &mut World, session: NewSession| {
        world.at += 1;
        let command = identity(IdentityCommand::OpenSession(Box::new(session)));
        let proposal = Proposal::new(Timestamp(world.at), "cluster", Author::Cluster, command);
        world.state.apply(world.state.revision() + 1, &proposal).0
    };
    let owner = |number: u64| OwnerTag(u128::from(number).to_be_bytes());
    for number in 0..=SESSIONS_OF_OWNER_MAX {
        let session = NewSession { owner: owner(0), ..world.session("ci", number, 0) };
        let verdict = open(&mut world, session);
        assert!(matches!(verdict, Verdict::Decided(Ok(_))), "{number}");
    }
    assert_eq!(world.state.session_count(), SESSIONS_OF_OWNER_MAX);
    assert!(is_ended(&world.write_by(0)) && !is_ended(&world.write_by(1)), "the oldest goes");
    let mut count = SESSIONS_OF_OWNER_MAX;
    loop {
        let number = count + 1;
        let session = NewSession { owner: owner(number), ..world.session("ci", number, 0) };
        match open(&mut world, session) {
            Verdict::Decided(Ok(_)) => count += 1,
            verdict @ (Verdict::Decided(Err(_)) | Verdict::Stale) => {
                assert_eq!(verdict, Verdict::Decided(Err(IdentityRejection::TooManySessions.into())));
                break;
            }
        }
    }
    assert_eq!(count, MACHINE_SESSIONS_MAX / 2);
    let session = world.session("pods", 50_000, 1);
    assert!(matches!(open(&mut world, session), Verdict::Decided(Ok(_))), "others have their own share");
    assert_eq!(rebuilt(&world.state).digest(), world.state.digest());
    // What has ended makes room, as many as an entry removes.
    world.at += HOUR;
    let session = world.session("ci", 60_000, 1);
    assert!(matches!(open(&mut world, session), Verdict::Decided(Ok(_))));
    assert_eq!(world.state.session_count(), count + 2 - SESSIONS_SWEPT_MAX as u64);
}

#[test]
fn ended_sessions_are_swept_and_no_others() {
    let mut world = World::with("ci");
    world.put("pods");
    for number in 0..400 {
        world.open(if number % 2 == 0 { "ci" } else { "pods" }, number, 1);
    }
    assert!(!world.state.has_ended_sessions(Timestamp(world.at)));
    world.does(IdentityCommand::EndSessions { name: key("ci"), expect: Expect::Any }).unwrap();
    world.open("ci", 500, 1);
    let now = Timestamp(world.at);
    // As many as an entry removes, by the login and by each sweep.
    for left in [337, 273, 209, 201] {
        assert_eq!(world.state.has_ended_sessions(now), left > 201);
        assert_eq!(world.state.session_count(), left);
        world.does(IdentityCommand::SweepSessions { now }).unwrap();
    }
    assert!(!is_ended(&world.write_by(500)) && !is_ended(&world.write_by(1)));
    world.does(IdentityCommand::SweepSessions { now: Timestamp(world.at + 2 * HOUR) }).unwrap();
    assert_eq!(world.state.session_count(), 201 - SESSIONS_SWEPT_MAX as u64);
}

#[test]
fn a_machine_proposes_and_what_it_sent_counts_while_its_provider_is_trusted() {
    let mut world = World::with("ci");
    world.open("ci", 1, 1);
    let change = ChangeId::parse("aaaaaaaaaaaa").unwrap();
    let edition = NewEdition {
        digest: [7; 32],
        scope: Scope::Definitions(vec![key("d")]),
        text: "{}".into(),
        operations: "[]".into(),
        content: Content::new(Vec::new(), [9; 32]),
        timing: Timing::default(),
    };
    let action = ChangeAction::Create(Box::new(edition));
    let author = world.author(1);
    let command = Command::System(SystemCommand::Change { id: change.clone(), action });
    assert!(matches!(world.by(author, command), Verdict::Decided(Ok(_))));
    let sent = world.state.change(&change).unwrap().clone();
    assert!(!sent.edition.is_attested && sent.approvals_needed(1) == 2, "nobody knows who is behind it");
    let Party::Machine(machine) = &sent.edition.sender else { panic!("{sent:?}") };
    assert_eq!((machine.name.as_str(), &machine.session), ("ci/1", &id(1)));
    world.does(IdentityCommand::EndSession { id: id(1) }).unwrap();
    assert!(world.state.trusts_since(machine.provider, machine.opened), "it has only logged out");
    world.put_with("ci", false, true);
    assert!(!world.state.trusts_since(machine.provider, machine.opened));
    // The same job with another session is the same machine, another one is not.
    let other = |owner, session| {
        Party::Machine(Box::new(concord_model::system::change::Machine {
            owner: OwnerTag([owner; 16]),
            session: id(session),
            ..(**machine).clone()
        }))
    };
    assert!(sent.is_author(&other(1, 2)) && !sent.is_author(&other(2, 1)));
}

#[test]
fn what_rests_on_the_policy_is_stale_after_another_one() {
    let mut world = World::with("ci");
    let guarded = |world: &World, name| {
        let guard = Guard::Policy { revision: world.state.policy_revision() };
        let tail = Tail::of(Source::Direct, vec![guard]);
        Proposal { tail, ..Proposal::new(Timestamp(world.at + 1), "root", Author::Root, define(name)) }
    };
    let proposal = guarded(&world, "a");
    assert_eq!(proposal.feature_level(), concord_model::feature::IDENTITY);
    assert!(matches!(world.propose(&proposal).0, Verdict::Decided(Ok(_))));
    let proposal = guarded(&world, "b");
    world.put_role("a");
    assert_eq!(world.propose(&proposal).0, Verdict::Stale);
}

/// What somebody does, with small numbers for names.
#[derive(Debug, Clone)]
enum Step {
    Open(u8, u8, u8),
    Write(u8),
    EndSession(u8),
    EndSessions(u8),
    Put(u8, bool, bool),
    Delete(u8),
    Role(u8),
    Keys(u8),
    Sweep,
    Wait(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let small = || 0..3u8;
    prop_oneof![
        4 => (small(), 0..20u8, small()).prop_map(|(of, id, owner)| Step::Open(of, id, owner)),
        6 => (0..20u8).prop_map(Step::Write),
        1 => (0..20u8).prop_map(Step::EndSession),
        1 => small().prop_map(Step::EndSessions),
        2 => (small(), any::<bool>(), any::<bool>()).prop_map(|(of, trust, keys)| Step::Put(of, trust, keys)),
        1 => small().prop_map(Step::Delete),
        1 => small().prop_map(Step::Role),
        1 => small().prop_map(Step::Keys),
        1 => Just(Step::Sweep),
        1 => (1..40u8).prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A naive model knows which sessions count: the log decides in the name of these, and of no others.
    #[test]
    fn the_log_decides_in_the_name_of_exactly_the_open_sessions(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = World::new();
        // The sessions that count: their provider, and when they end.
        let mut open: BTreeMap<u8, (u8, u64)> = BTreeMap::new();
        let name = |number: u8| format!("p{number}");
        for step in steps {
            match step {
                Step::Open(of, number, owner) => {
                    if world.state.provider_record(&name(of)).is_none() {
                        continue;
                    }
                    let session = world.session(&name(of), number.into(), owner);
                    let end = session.expires_at.0;
                    match world.try_open(session) {
                        Verdict::Decided(Ok(_)) => {
                            open.retain(|_, (_, end)| *end > world.at);
                            prop_assert!(open.insert(number, (of, end)).is_none());
                        }
                        verdict @ (Verdict::Decided(Err(_)) | Verdict::Stale) => {
                            prop_assert_eq!(verdict, Verdict::Decided(Err(IdentityRejection::SessionExists.into())));
                        }
                    }
                }
                Step::Write(number) => {
                    let verdict = world.write_by(number.into());
                    let counts = open.get(&number).is_some_and(|(_, end)| world.at < *end);
                    prop_assert_eq!(!is_ended(&verdict), counts, "{:?} {:?}", verdict, number);
                }
                Step::EndSession(number) => {
                    let is_there = world.state.session_record(id(number.into()).as_str()).is_some();
                    let outcome = world.does(IdentityCommand::EndSession { id: id(number.into()) });
                    prop_assert_eq!(outcome.is_ok(), is_there);
                    open.remove(&number);
                }
                Step::EndSessions(of) => {
                    let (name, expect) = (key(&name(of)), Expect::Any);
                    if world.does(IdentityCommand::EndSessions { name, expect }).is_ok() {
                        open.retain(|_, (provider, _)| *provider != of);
                    }
                }
                Step::Put(of, trust, keys) => {
                    world.put_with(&name(of), trust, keys);
                    if !trust {
                        open.retain(|_, (provider, _)| *provider != of);
                    }
                }
                Step::Delete(of) => {
                    let change = world.of(&name(of));
                    if world.does(IdentityCommand::DeleteProvider(change)).is_ok() {
                        open.retain(|_, (provider, _)| *provider != of);
                    }
                }
                Step::Role(number) => world.put_role(&name(number)),
                Step::Keys(of) => {
                    if world.state.provider_record(&name(of)).is_some() {
                        world.put_keys(&name(of), "{}");
                    }
                }
                Step::Sweep => {
                    let now = Timestamp(world.at);
                    world.does(IdentityCommand::SweepSessions { now }).unwrap();
                    prop_assert!(!world.state.has_ended_sessions(now));
                    // The entry is a moment later.
                    let kept = open.values().filter(|(_, end)| *end > now.0).count() as u64;
                    prop_assert_eq!(world.state.session_count(), kept);
                }
                Step::Wait(minutes) => world.at += u64::from(minutes) * 60 * SECOND,
            }
        }
    }
}
