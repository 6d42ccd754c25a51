//! Logins of machines on a node that leads: providers and roles, sessions and their permissions.

use concord_identity::testing::TestIssuer;
use serde_json::{Value, json};

use super::*;
use crate::{identity::login::FailedLogin, testing::Scripted};
use concord_model::{
    access_key::{Author, Grant, Grants, KeyId, Pattern, Quota, Verb, clear_text::ClearText},
    command::{AccessCommand, Command, KeyTerms, Proposal, Verdict},
    document::Document,
    error::{IdentityRejection, Rejection},
    key::Key,
    system::change::{ApplyMode, ChangeId, Timing},
};
use request::{ChangeWrite, IdentityWrite, NewEdition, NewRole, ProposedOperations};

pub(crate) const ISSUER: &str = "https://ci.example.com";
const CONSISTENCY: Consistency = Consistency { level: Level::Linearizable, min_revision: None };

/// A node that leads, with the provider `ci`.
pub(crate) struct World {
    pub(crate) node: Scripted,
    pub(crate) issuer: TestIssuer,
}

fn caller(principal: Principal) -> Caller {
    Caller { principal, ..write().0 }
}

pub(crate) fn root() -> Caller {
    caller(Principal::root())
}

fn document(value: Value) -> Document {
    Document::new(value)
}

fn grants(list: &[(&[Verb], &str)]) -> Grants {
    let grant = |(verbs, pattern): &(&[Verb], &str)| Grant {
        verbs: verbs.iter().copied().collect(),
        definitions: vec![Pattern::parse(pattern).unwrap()],
    };
    Grants(list.iter().map(grant).collect())
}

fn role(grants: Grants, environment: &str, session_s: u64) -> NewRole {
    let members = json!([{ "provider": "ci", "match": { "environment": [environment] } }]);
    let membership = document(json!({ "members": members, "session_s": session_s }));
    NewRole { grants, quota: Quota::default(), membership }
}

impl World {
    pub(crate) async fn start() -> Self {
        let node = Scripted::start().await;
        node.fake.lead(Some(1));
        node.hear_clocks(&[(2, node.true_time()), (3, node.true_time())]);
        let world = Self { node, issuer: TestIssuer::new("one") };
        for level in 2..=concord_model::feature::IDENTITY {
            world.decide(Command::RaiseFeatureLevel { to: level });
        }
        let definition = Command::CreateDefinition {
            key: Key::parse("prod.app").unwrap(),
            indexes: Vec::new(),
            schema: None,
        };
        world.decide(definition);
        world.put_provider(world.issuer.document(ISSUER)).await.unwrap();
        world
    }

    fn decide(&self, command: Command) {
        let proposal = Proposal::new(self.node.true_time(), "root", Author::Root, command);
        let verdict = self.node.fake.decide(&proposal);
        assert!(matches!(verdict, Verdict::Decided(Ok(_))), "{verdict:?}");
    }

    /// Waits until a provider or role may change again.
    async fn pause(&self) {
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }

    pub(crate) async fn put_provider(&self, value: Value) -> Result<DecidedWrite, Refusal> {
        self.pause().await;
        let identities = &self.node.service.identities;
        let stored = identities.put_provider(root(), "ci".into(), document(value), Expect::Any).await?;
        Ok(stored.written)
    }

    pub(crate) async fn put_role(&self, name: &str, role: NewRole) -> Result<DecidedWrite, Refusal> {
        self.put_role_as(root(), name, role).await
    }

    async fn put_role_as(&self, caller: Caller, name: &str, role: NewRole) -> Result<DecidedWrite, Refusal> {
        self.pause().await;
        Ok(self.node.service.identities.put_role(caller, name.into(), role, Expect::Any).await?.written)
    }

    async fn run(&self, caller: Caller, write: IdentityWrite) -> Result<DecidedWrite, Refusal> {
        self.node.service.identities.run(caller, write).await
    }

    pub(crate) fn token(&self, subject: &str, environment: &str) -> String {
        self.issuer.token(ISSUER, subject, environment, self.node.true_time().0 / 1_000_000)
    }

    pub(crate) async fn log_in(&self, subject: &str, environment: &str) -> Result<OpenedSession, Refusal> {
        let opened = self.node.service.logins.log_in("ci", &self.token(subject, environment)).await;
        opened.map_err(|FailedLogin { refusal, .. }| refusal)
    }

    async fn principal(&self, session: &ClearText) -> Option<Principal> {
        let authentication = &self.node.service.authentication;
        authentication.settle(session.expose().as_bytes()).await.ok()
    }

    /// Writes a config in the name of a principal.
    async fn write_by(&self, principal: &Principal) -> Result<DecidedWrite, Refusal> {
        let (definition, key) = ("prod.app".into(), "db".into());
        let write = Write::WriteConfig { definition, key, data: document(json!({})), expect: Expect::Any };
        self.node.service.writes.write(caller(principal.clone()), write).await
    }
}

pub(crate) fn writers() -> NewRole {
    role(grants(&[(&[Verb::Read, Verb::Write], "prod.*")]), "prod", 3600)
}

#[tokio::test]
async fn a_job_logs_in_and_has_the_permissions_of_its_roles_until_they_change() {
    let world = World::start().await;
    assert!(matches!(world.log_in("job", "prod").await, Err(Refusal::NoRole(_))));
    world.put_role("writers", writers()).await.unwrap();
    let opened = world.log_in("job", "prod").await.unwrap();
    assert_eq!((opened.owner.as_str(), opened.roles.len()), ("ci/job", 1));
    let principal = world.principal(&opened.text).await.unwrap();
    assert_eq!(principal.id, "ci/job");
    assert!(!principal.is_root() && principal.authorize(Verb::Keys, None).is_err());
    world.write_by(&principal).await.unwrap();
    let state = world.node.service.cx.applied();
    let record = state.definition("prod.app").unwrap().config("db").unwrap();
    assert!(record.revision > 0);
    // Its text with another secret is not it.
    let forged = ClearText::with_id(opened.text.id().clone(), &[7; 32]);
    assert!(world.principal(&forged).await.is_none());
    // Another environment has no role; a role that says less says less at once.
    assert!(matches!(world.log_in("job", "dev").await, Err(Refusal::NoRole(_))));
    world.put_role("writers", role(grants(&[(&[Verb::Read], "prod.*")]), "prod", 3600)).await.unwrap();
    assert_eq!(world.write_by(&principal).await.unwrap_err(), Refusal::Forbidden { verb: Verb::Write });
    let now = world.node.service.authentication.current(&principal).unwrap();
    assert!(now.authorize(Verb::Read, Some("prod.app")).is_ok());
    let delete = IdentityWrite::DeleteRole { name: "writers".into(), expect: Expect::Any };
    world.run(root(), delete).await.unwrap();
    assert!(
        world.node.service.authentication.current(&principal).unwrap().authorize(Verb::Read, None).is_err()
    );
    world.node.stop().await;
}

#[tokio::test]
async fn a_session_ends_by_its_owner_by_its_provider_and_by_its_time() {
    let world = World::start().await;
    world.put_role("writers", role(grants(&[(&[Verb::Write], "prod.*")]), "prod", 300)).await.unwrap();
    let ended = Refusal::from(Rejection::SessionEnded);
    let log_in = async |subject: &str| {
        let opened = world.log_in(subject, "prod").await.unwrap();
        let principal = world.principal(&opened.text).await.unwrap();
        world.write_by(&principal).await.unwrap();
        (opened, principal)
    };
    // By its owner; not by another one without the permission to manage keys.
    let ((first, own), (_, other)) = (log_in("a").await, log_in("b").await);
    let end = IdentityWrite::EndSession { id: first.text.id().clone() };
    assert_eq!(
        world.run(caller(other.clone()), end.clone()).await.unwrap_err(),
        Refusal::Forbidden { verb: Verb::Keys }
    );
    world.run(caller(own.clone()), end.clone()).await.unwrap();
    assert_eq!(world.write_by(&own).await.unwrap_err(), ended);
    assert!(world.principal(&first.text).await.is_none());
    assert_eq!(world.run(root(), end).await.unwrap_err(), IdentityRejection::SessionNotFound.into());
    // By the end of all sessions of its provider: a token that was issued before opens no other.
    let token = world.token("b", "prod");
    let end = IdentityWrite::EndSessions { provider: "ci".into(), expect: Expect::Any };
    world.run(root(), end).await.unwrap();
    assert_eq!(world.write_by(&other).await.unwrap_err(), ended);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let old = world.node.service.logins.log_in("ci", &token).await.unwrap_err();
    assert_eq!(old.refusal, IdentityRejection::TokenEnded.into());
    // By a provider that trusts others.
    let (_, third) = log_in("c").await;
    let mut changed = world.issuer.document(ISSUER);
    changed["require"] = json!({ "repository_id": ["7712"] });
    world.put_provider(changed.clone()).await.unwrap();
    assert_eq!(world.write_by(&third).await.unwrap_err(), ended);
    // By its time.
    let (_, fourth) = log_in("d").await;
    tokio::time::sleep(Duration::from_secs(301)).await;
    assert_eq!(world.write_by(&fourth).await.unwrap_err(), ended);
    // By a provider that is gone; not while a role names it.
    let (_, fifth) = log_in("e").await;
    let delete = || IdentityWrite::DeleteProvider { name: "ci".into(), expect: Expect::Any };
    let in_use = Refusal::ProviderInUse { role: Key::parse("writers").unwrap() };
    assert_eq!(world.run(root(), delete()).await.unwrap_err(), in_use);
    world.pause().await;
    let role = IdentityWrite::DeleteRole { name: "writers".into(), expect: Expect::Any };
    world.run(root(), role).await.unwrap();
    world.pause().await;
    world.run(root(), delete()).await.unwrap();
    assert_eq!(world.write_by(&fifth).await.unwrap_err(), ended);
    world.node.stop().await;
}

#[tokio::test]
async fn a_forged_token_opens_nothing_and_the_reason_is_told() {
    let world = World::start().await;
    world.put_role("writers", writers()).await.unwrap();
    let now = world.node.true_time().0 / 1_000_000;
    let other = TestIssuer::new("one");
    let claims = |members: &[(&str, Value)]| {
        let mut claims = json!({
            "iss": ISSUER, "aud": "concord", "sub": "job", "iat": now, "exp": now + 600, "environment": "prod",
        });
        for (name, value) in members {
            claims[*name] = value.clone();
        }
        world.issuer.sign(&claims)
    };
    let cases = [
        ("no token".to_owned(), "malformed", false),
        (other.token(ISSUER, "job", "prod", now), "signature", false),
        (TestIssuer::new("two").token(ISSUER, "job", "prod", now), "unknown_key", false),
        (claims(&[("iss", json!("https://other.example.com"))]), "issuer", true),
        (claims(&[("aud", json!("another"))]), "audience", true),
        (claims(&[("sub", json!(7))]), "subject", true),
        (claims(&[("exp", json!(now - 1))]), "expired", true),
        (claims(&[("iat", json!(now + 3600)), ("exp", json!(now + 7200))]), "issued_in_the_future", true),
        (claims(&[("iat", json!(now - 7200))]), "too_old", true),
    ];
    for (token, reason, is_signed) in cases {
        let failed = world.node.service.logins.log_in("ci", &token).await.unwrap_err();
        assert_eq!(failed.refusal, Refusal::TokenRejected { reason: reason.into() }, "{token}");
        assert_eq!(failed.is_signed, is_signed, "{reason}");
    }
    let failed = world.node.service.logins.log_in("no-such", &world.token("job", "prod")).await.unwrap_err();
    assert_eq!(failed.refusal, Refusal::TokenRejected { reason: "provider".into() });
    assert_eq!(world.node.service.cx.applied().session_count(), 0);
    let wrong = claims(&[("aud", json!("x"))]);
    let tried = world.node.service.identities.try_token(&Principal::root(), "ci", &wrong).await.unwrap();
    let failing: Vec<&str> =
        tried.checks.iter().filter(|check| !check.holds).map(|check| check.name.as_str()).collect();
    assert_eq!((tried.reason.map(concord_identity::Reason::text), failing), (Some("audience"), vec!["aud"]));
    let good = world.token("job", "prod");
    let tried = world.node.service.identities.try_token(&Principal::root(), "ci", &good).await.unwrap();
    assert!(tried.roles.len() == 1 && tried.roles[0].holds && tried.session_s == Some(3600), "{tried:?}");
    world.node.stop().await;
}

#[tokio::test]
async fn nobody_gives_by_a_role_or_a_provider_what_they_lack() {
    let world = World::start().await;
    world.put_role("writers", writers()).await.unwrap();
    let manager = testing::key(&[(&[Verb::Keys], &[]), (&[Verb::Read], &["prod.*"])]);
    let id = KeyId::parse("abcdefghijkl").unwrap();
    // The key exists, with these grants.
    let terms = KeyTerms {
        name: "manager".into(),
        grants: manager.key().unwrap().grants.clone(),
        quota: Quota::default(),
        expires_at: None,
    };
    world.decide(Command::Access(AccessCommand::Create {
        id: id.clone(),
        terms,
        sha256: [9; 32],
        person: None,
    }));
    let state = world.node.service.cx.applied();
    let key = Arc::clone(state.access_key(&id).unwrap());
    let manager = Principal::of_key(Arc::clone(&key), key.secrets[0].made);
    let by_manager = || caller(manager.clone());
    let forbidden = Refusal::Forbidden { verb: Verb::Keys };
    let readers = || role(grants(&[(&[Verb::Read], "prod.*")]), "prod", 3600);
    world.put_role_as(by_manager(), "readers", readers()).await.unwrap();
    for wrong in [writers(), role(grants(&[(&[Verb::Read], "*")]), "prod", 3600)] {
        assert_eq!(world.put_role_as(by_manager(), "readers", wrong).await.unwrap_err(), forbidden);
    }
    // A role that gives more does not exist for it, and it can't take it over.
    assert_eq!(world.put_role_as(by_manager(), "writers", readers()).await.unwrap_err(), forbidden);
    world.pause().await;
    let delete = IdentityWrite::DeleteRole { name: "writers".into(), expect: Expect::Any };
    assert_eq!(world.run(by_manager(), delete).await.unwrap_err(), IdentityRejection::RoleNotFound.into());
    // Nor can it become the issuer of those who have it.
    let identities = &world.node.service.identities;
    let own = document(TestIssuer::new("mine").document(ISSUER));
    let put = identities.put_provider(by_manager(), "ci".into(), own, Expect::Any).await.unwrap_err();
    assert_eq!(put, forbidden);
    let (seen, _) = identities.roles(&manager, CONSISTENCY).await.unwrap();
    assert_eq!(seen.iter().map(|role| role.record.name.as_str()).collect::<Vec<_>>(), ["readers"]);
    assert!(identities.providers(&manager, CONSISTENCY).await.unwrap().0.is_empty());
    // The threads that compute for long know real time only.
    tokio::time::resume();
    // A session with more permissions than it has is not there for it.
    let opened = world.log_in("job", "prod").await.unwrap();
    let end = IdentityWrite::EndSession { id: opened.text.id().clone() };
    assert_eq!(world.run(by_manager(), end).await.unwrap_err(), IdentityRejection::SessionNotFound.into());
    assert!(identities.sessions(&manager, (None, 10), CONSISTENCY).await.unwrap().0.is_empty());
    assert_eq!(identities.sessions(&Principal::root(), (None, 10), CONSISTENCY).await.unwrap().0.len(), 1);
    // What stands for a human is no permission of a machine.
    for verb in [Verb::Approve, Verb::Bypass, Verb::Keys] {
        let refused = world.put_role("humans", role(grants(&[(&[verb], "*")]), "prod", 3600)).await;
        assert!(matches!(refused, Err(Refusal::Invalid(_))), "{verb}");
    }
    tokio::time::pause();
    world.node.stop().await;
}

#[tokio::test]
async fn a_put_that_changes_nothing_writes_nothing_and_changes_are_ten_at_once() {
    let world = World::start().await;
    world.put_role("writers", writers()).await.unwrap();
    let opened = world.log_in("job", "prod").await.unwrap();
    let before = world.node.service.cx.revision();
    world.put_role("writers", writers()).await.unwrap();
    world.put_provider(world.issuer.document(ISSUER)).await.unwrap();
    assert_eq!(world.node.service.cx.revision(), before);
    assert!(world.principal(&opened.text).await.is_some());
    let identities = &world.node.service.identities;
    world.put_role("other", writers()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let put = async |number: u64| {
        identities.put_role(root(), format!("role-{number}"), writers(), Expect::Any).await
    };
    for number in 0..10 {
        put(number).await.unwrap();
    }
    assert!(matches!(put(10).await, Err(Refusal::LimitReached(_))));
    world.pause().await;
    put(10).await.unwrap();
    // Preconditions hold for what changes nothing, too.
    world.pause().await;
    let absent = identities.put_role(root(), "other".into(), writers(), Expect::None).await;
    assert!(matches!(absent, Err(Refusal::Rejected(Rejection::Precondition { .. }))), "{absent:?}");
    world.node.stop().await;
}

#[tokio::test]
async fn a_machine_has_one_login_a_second_and_ten_at_once() {
    let world = World::start().await;
    world.put_role("writers", writers()).await.unwrap();
    let mut opened = 0;
    while world.log_in("job", "prod").await.is_ok() {
        opened += 1;
    }
    assert_eq!(opened, 10);
    assert!(matches!(world.log_in("job", "prod").await, Err(Refusal::LimitReached(_))));
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.log_in("job", "prod").await.unwrap();
    world.log_in("another", "prod").await.unwrap();
    world.node.stop().await;
}

#[tokio::test]
async fn what_a_job_has_proposed_is_applied_by_its_roles_of_then() {
    let world = World::start().await;
    world.put_role("writers", writers()).await.unwrap();
    let opened = world.log_in("job", "prod").await.unwrap();
    let job = world.principal(&opened.text).await.unwrap();
    tokio::time::resume();
    let propose = async |id: &str| {
        let (definition, key) = ("prod.app".into(), id.into());
        let operation =
            Write::WriteConfig { definition, key, data: document(json!({})), expect: Expect::Absent };
        let timing = Timing { apply: ApplyMode::WhenApproved, ..Timing::default() };
        let edition = NewEdition {
            title: "release".into(),
            description: String::new(),
            operations: ProposedOperations::Records(vec![operation]),
            timing,
            seal: [3; 32],
        };
        let create = ChangeWrite::Create { id: id.into(), edition };
        let write = Write::Change(Box::new(create));
        world.node.service.writes.write(caller(job.clone()), write).await.unwrap();
        let state = world.node.service.cx.applied();
        state.change(&ChangeId::parse(id).unwrap()).unwrap().edition.digest
    };
    let apply = async |id: &str, digest| {
        let write = Write::Change(Box::new(ChangeWrite::Apply { id: id.into(), digest }));
        world.node.service.writes.write(Caller::cluster(None), write).await
    };
    let (first, second) = (propose("aaaaaaaaaaaa").await, propose("bbbbbbbbbbbb").await);
    // The session has ended, and its roles are the same.
    let end = IdentityWrite::EndSession { id: opened.text.id().clone() };
    world.run(root(), end).await.unwrap();
    apply("aaaaaaaaaaaa", first).await.unwrap();
    world.put_role("writers", role(grants(&[(&[Verb::Read], "prod.*")]), "prod", 3600)).await.unwrap();
    assert!(apply("bbbbbbbbbbbb", second).await.is_err(), "the machine may not write any more");
    let state = world.node.service.cx.applied();
    let app = state.definition("prod.app").unwrap();
    assert!(app.config("aaaaaaaaaaaa").is_some() && app.config("bbbbbbbbbbbb").is_none());
    tokio::time::pause();
    world.node.stop().await;
}
