//! Authorization by a state, and the terms that a key may grant.

use std::collections::BTreeSet;

use super::*;
use crate::{
    request::{KeyPatch, Write},
    write::testing::request_by,
};
use concord_model::{
    access_key::{Grant, Grants, KeySecret, Pattern, Quota},
    command::{Command, Proposal},
    system::{
        SystemBody, SystemRecord,
        person::{Person, PersonId, PersonLabel},
    },
    testing::key,
};
use concord_state::builder::StateBuilder;

fn grants(text: &[(&[Verb], &str)]) -> Grants {
    let grant = |(verbs, pattern): &(&[Verb], &str)| Grant {
        verbs: verbs.iter().copied().collect(),
        definitions: vec![Pattern::parse(pattern).unwrap()],
    };
    Grants(text.iter().map(grant).collect())
}

fn state(keys: Vec<AccessKey>, root_disabled: bool) -> State {
    let mut builder = StateBuilder::new();
    builder.root_disabled(root_disabled);
    let persons: BTreeSet<PersonId> = keys.iter().flat_map(AccessKey::persons).collect();
    for id in persons {
        let label = PersonLabel::parse(&format!("p{id}")).unwrap();
        let record = SystemRecord {
            name: id.name(),
            body: SystemBody::Person(Person { id, label }),
            text: "{}".into(),
            created_at: Timestamp(1),
            modified_at: Timestamp(1),
            revision: 1,
        };
        builder.system_record(record).unwrap();
    }
    keys.into_iter().for_each(|key| builder.access_key(key).unwrap());
    builder.finish(100, Timestamp(100)).unwrap()
}

fn delete(definition: &str) -> Write {
    Write::DeleteConfig { definition: definition.into(), key: "k".into(), expect: Expect::Any }
}

fn named(key: &AccessKey) -> Principal {
    Principal::named(key.id.as_str(), key.secrets[0].made)
}

fn at(state: &State, principal: Principal, write: Write, now: u64) -> Result<Authorized, Refusal> {
    authorize(state, &Policies::default(), &request_by(principal, write), || Timestamp(now))
}

#[test]
fn the_leader_authorizes_by_the_key_in_its_state() {
    let mut writer = key(1);
    writer.grants = grants(&[(&[Verb::Write], "billing.*")]);
    let state_now = state(vec![writer.clone()], false);
    let authorized = at(&state_now, named(&writer), delete("billing.eu"), 0).unwrap();
    assert_eq!(authorized.author, Author::Key(KeyUse { id: writer.id.clone(), revision: 1, secret: 1 }));
    let forbidden = Refusal::Forbidden { verb: Verb::Write };
    assert_eq!(at(&state_now, named(&writer), delete("other"), 0).unwrap_err(), forbidden);
    let batch = Write::Batch(vec![delete("billing.eu"), delete("other")]);
    assert_eq!(at(&state_now, named(&writer), batch, 0).unwrap_err(), forbidden.of_operation(1));
    // The key as the receiving node knew it does not count.
    let mut stronger = writer.clone();
    stronger.grants = grants(&[(&[Verb::Write], "*")]);
    let principal = Principal::of_key(Arc::new(stronger), 1);
    assert!(at(&state_now, principal, delete("other"), 0).is_err());
    let gone = state(vec![], false);
    assert_eq!(at(&gone, named(&writer), delete("billing.eu"), 0).unwrap_err(), Refusal::KeyEnded);
}

#[test]
fn a_key_and_a_secret_expire_and_the_root_key_can_be_disabled() {
    let mut ending = key(1);
    ending.grants = grants(&[(&[Verb::Write], "*")]);
    ending.expires_at = Some(Timestamp(50));
    ending
        .secrets
        .insert(0, KeySecret { sha256: [1; 32], made: 0, until: Some(Timestamp(20)), is_own: false });
    let state_now = state(vec![ending.clone()], false);
    let authorized = |secret, now| {
        at(&state_now, Principal::named(ending.id.as_str(), secret), delete("d"), now)
            .map(|authorized| matches!(authorized.author, Author::Key(_)))
    };
    assert_eq!((authorized(0, 19), authorized(0, 20)), (Ok(true), Err(Refusal::KeyEnded)));
    assert_eq!((authorized(1, 49), authorized(1, 50)), (Ok(true), Err(Refusal::KeyEnded)));
    assert_eq!(authorized(2, 0), Err(Refusal::KeyEnded));
    let root =
        |state: &State| at(state, Principal::root(), delete("d"), 0).map(|authorized| authorized.author);
    assert_eq!(root(&state_now), Ok(Author::Root));
    assert_eq!(root(&state(vec![], true)), Err(Refusal::KeyEnded));
}

#[test]
fn a_node_may_only_request_its_own_changes() {
    let state_now = state(vec![], true);
    let own = Write::Access(AccessWrite::EnableRoot);
    assert_eq!(at(&state_now, Principal::cluster(), own.clone(), 0).unwrap().author, Author::Cluster);
    assert!(at(&state_now, Principal::cluster(), delete("d"), 0).is_err());
    assert!(at(&state_now, Principal::cluster(), Write::Access(AccessWrite::DisableRoot), 0).is_err());
    assert!(at(&state_now, Principal::named("cluster.", 1), own, 0).is_err());
}

fn terms(grants: Grants) -> KeyTerms {
    KeyTerms { name: "n".into(), grants, quota: Quota::default(), expires_at: None }
}

fn prepared(state: &State, principal: &Principal, write: AccessWrite) -> Result<Command, Refusal> {
    prepare_access(state, principal, &write).map(|prepared| prepared.command)
}

#[test]
fn a_key_grants_no_later_expiry_and_no_larger_quota_than_its_own() {
    let mut manager = key(1);
    manager.grants = grants(&[(&[Verb::Keys, Verb::Read], "*")]);
    (manager.expires_at, manager.quota.requests_per_second) = (Some(Timestamp(1000)), Some(5));
    let state = state(vec![manager.clone()], false);
    let own = manager.id.clone();
    let principal = Principal::of_key(Arc::new(manager), 1);
    let create = |expires_at, requests_per_second| {
        let quota = Quota { requests_per_second, ..Quota::default() };
        let terms = KeyTerms { quota, expires_at, ..terms(grants(&[(&[Verb::Read], "d")])) };
        prepared(
            &state,
            &principal,
            AccessWrite::Create { id: key(9).id, terms, sha256: [0; 32], person: None },
        )
        .is_ok()
    };
    assert!(create(Some(Timestamp(1000)), Some(5)) && create(Some(Timestamp(1)), Some(1)));
    for (expires_at, requests) in [(None, Some(5)), (Some(Timestamp(1001)), Some(5))] {
        assert!(!create(expires_at, requests), "a later expiry");
    }
    assert!(!create(Some(Timestamp(1)), None) && !create(Some(Timestamp(1)), Some(6)), "a larger quota");
    let change = |patch| {
        let write = AccessWrite::Change { id: own.clone(), patch, expect: Expect::Present };
        prepared(&state, &principal, write).is_ok()
    };
    assert!(change(KeyPatch { name: Some("m".into()), ..KeyPatch::default() }));
    assert!(!change(KeyPatch { expires_at: Some(None), ..KeyPatch::default() }));
    assert!(!change(KeyPatch { quota: Some(Quota::default()), ..KeyPatch::default() }));
}

#[test]
fn a_key_obtains_no_secret_that_outlives_it_or_has_a_larger_quota() {
    let (mut manager, mut same, mut endless, mut unlimited) = (key(1), key(2), key(3), key(4));
    for key in [&mut manager, &mut same, &mut endless, &mut unlimited] {
        key.grants = grants(&[(&[Verb::Keys, Verb::Read], "*")]);
        (key.expires_at, key.quota.requests_per_second) = (Some(Timestamp(1000)), Some(5));
    }
    (endless.expires_at, unlimited.quota) = (None, Quota::default());
    let ids = [&manager, &same, &endless, &unlimited].map(|key| key.id.clone());
    let state = state(vec![manager.clone(), same, endless, unlimited], false);
    let rotate = |principal: &Principal, id: &KeyId| {
        let write = AccessWrite::Rotate { id: id.clone(), sha256: [0; 32], grace_us: 0, expect: Expect::Any };
        prepared(&state, principal, write).map(drop)
    };
    let principal = Principal::of_key(Arc::new(manager), 1);
    let forbidden = Err(Refusal::Forbidden { verb: Verb::Keys });
    let expected = [Ok(()), Ok(()), forbidden.clone(), forbidden];
    assert_eq!(ids.each_ref().map(|id| rotate(&principal, id)), expected);
    assert!(ids.iter().all(|id| rotate(&Principal::root(), id).is_ok()));
}

#[test]
fn a_key_with_a_person_rotates_itself_and_nothing_else_without_keys() {
    let rotate = |key: &AccessKey| {
        let (id, expect) = (key.id.clone(), Expect::Present);
        AccessWrite::Rotate { id, sha256: [0; 32], grace_us: 0, expect }
    };
    let (mut own, mut other, mut machine) = (key(1), key(2), key(3));
    for key in [&mut own, &mut other, &mut machine] {
        // The same terms, with an end and a quota.
        key.grants = grants(&[(&[Verb::Read], "d")]);
        (key.expires_at, key.quota.watches) = (Some(Timestamp(1000)), Some(1));
    }
    (own.person, other.person) = (Some(PersonId(7)), Some(PersonId(7)));
    let state_now = state(vec![own.clone(), other.clone(), machine.clone()], false);
    let decided = |by: &AccessKey, write: AccessWrite| {
        let authorized = at(&state_now, named(by), Write::Access(write.clone()), 0)?;
        prepared(&state_now, &authorized.principal, write)
    };
    let Ok(Command::Access(AccessCommand::Rotate { id, expect, .. })) = decided(&own, rotate(&own)) else {
        panic!("it may rotate itself")
    };
    assert_eq!((id, expect), (own.id.clone(), Expect::Read(Some(1))));
    let forbidden = Err(Refusal::Forbidden { verb: Verb::Keys });
    assert_eq!(decided(&machine, rotate(&machine)), forbidden);
    let id = own.id.clone();
    let patch = KeyPatch { name: Some("m".into()), ..KeyPatch::default() };
    for write in [
        rotate(&other),
        AccessWrite::Change { id: id.clone(), patch, expect: Expect::Any },
        AccessWrite::Revoke { id: id.clone(), expect: Expect::Any },
        AccessWrite::Attest { id, revision: 1 },
        AccessWrite::DisableRoot,
    ] {
        assert_eq!(decided(&own, write.clone()), forbidden, "{write:?}");
    }
    // In a grace, the client that created the key has the secret before.
    let mut rotated = own.clone();
    let before = KeySecret { until: Some(Timestamp(50)), ..rotated.secrets[0].clone() };
    rotated.secrets = vec![before, KeySecret { made: 2, ..rotated.secrets[0].clone() }];
    let state_then = state(vec![rotated.clone()], false);
    for (secret, may) in [(1, false), (2, true)] {
        let principal = Principal::named(rotated.id.as_str(), secret);
        let authorized = at(&state_then, principal, Write::Access(rotate(&rotated)), 9);
        assert_eq!(authorized.is_ok(), may, "{secret}");
    }
    let batch = Write::Batch(vec![Write::Access(rotate(&other))]);
    assert!(at(&state_now, named(&own), batch, 0).is_err());
}

#[test]
fn a_key_attests_only_keys_whose_permissions_it_has() {
    let (mut attester, mut weak, mut strong) = (key(1), key(2), key(3));
    attester.grants = grants(&[(&[Verb::Keys, Verb::Read], "billing.*")]);
    weak.grants = grants(&[(&[Verb::Read], "billing.eu")]);
    strong.grants = grants(&[(&[Verb::Read, Verb::Approve], "billing.eu")]);
    let state_now = state(vec![attester.clone(), weak.clone(), strong.clone()], false);
    let principal = Principal::of_key(Arc::new(attester), 1);
    let attest = |key: &AccessKey| AccessWrite::Attest { id: key.id.clone(), revision: 300 };
    let command = |key: &AccessKey| AccessCommand::Attest { id: key.id.clone(), revision: 300 };
    assert_eq!(prepared(&state_now, &principal, attest(&weak)), Ok(Command::Access(command(&weak))));
    let unseen = Err(Rejection::KeyNotFound.into());
    assert_eq!(prepared(&state_now, &principal, attest(&strong)), unseen);
    assert_eq!(prepared(&state_now, &Principal::root(), attest(&key(9))), unseen);
    let by_root = prepared(&state_now, &Principal::root(), attest(&strong));
    assert_eq!(by_root, Ok(Command::Access(command(&strong))));
}

#[test]
fn a_key_grants_and_manages_only_its_own_permissions() {
    let (mut manager, mut weak, mut strong) = (key(1), key(2), key(3));
    manager.grants = grants(&[(&[Verb::Keys, Verb::Read, Verb::Write], "billing.*")]);
    weak.grants = grants(&[(&[Verb::Read], "billing.eu")]);
    strong.grants = grants(&[(&[Verb::Read], "*")]);
    let state_now = state(vec![manager.clone(), weak.clone(), strong.clone()], false);
    let principal = Principal::of_key(Arc::new(manager), 1);
    let forbidden = Err(Refusal::Forbidden { verb: Verb::Keys });
    let create = |pattern| AccessWrite::Create {
        id: key(9).id,
        terms: terms(grants(&[(&[Verb::Write], pattern)])),
        person: None,
        sha256: [0; 32],
    };
    assert!(prepared(&state_now, &principal, create("billing.us")).is_ok());
    assert_eq!(prepared(&state_now, &principal, create("*")), forbidden);
    let change = |id: &KeyId, pattern| {
        let patch = KeyPatch { grants: Some(grants(&[(&[Verb::Read], pattern)])), ..KeyPatch::default() };
        AccessWrite::Change { id: id.clone(), patch, expect: Expect::Present }
    };
    let Ok(Command::Access(AccessCommand::Change { terms, expect, .. })) =
        prepared(&state_now, &principal, change(&weak.id, "billing.*"))
    else {
        panic!("it may change the weaker key")
    };
    assert_eq!(
        (terms.name, expect),
        (weak.name.clone(), Expect::Read(Some(2))),
        "a term that is not given stays"
    );
    assert_eq!(prepared(&state_now, &principal, change(&weak.id, "*")), forbidden);
    // A key with more permissions does not exist for it, whatever the request.
    let (id, expect, sha256) = (strong.id.clone(), Expect::Present, [0; 32]);
    for write in [
        change(&id, "billing.eu"),
        AccessWrite::Revoke { id: id.clone(), expect },
        AccessWrite::Rotate { id: id.clone(), sha256, grace_us: 0, expect },
    ] {
        assert_eq!(prepared(&state_now, &principal, write.clone()), Err(Rejection::KeyNotFound.into()));
        assert!(prepared(&state_now, &Principal::root(), write).is_ok());
    }
    assert_eq!(prepared(&state_now, &principal, AccessWrite::DisableRoot), forbidden);
    let expect = Expect::At(7);
    let refused = prepared(&state_now, &principal, AccessWrite::Revoke { id: weak.id, expect });
    assert_eq!(refused, Err(Rejection::Precondition { current: 2 }.into()));
}

/// The proposal names the key, so the log rejects it once the key has changed.
#[test]
fn an_authorization_is_bound_to_the_revision_of_the_key() {
    let mut writer = key(1);
    writer.grants = grants(&[(&[Verb::Define, Verb::Delete], "*")]);
    let mut state_now = state(vec![writer.clone()], false);
    assert!(at(&state_now, named(&writer), delete("d"), 0).is_err(), "it may define and not write");
    let write =
        Write::DeleteDefinition { key: "d".into(), expect: Expect::Any, restrict: false, purge: false };
    let authorized = at(&state_now, named(&writer), write, 0).unwrap();
    let command = Command::CreateDefinition {
        key: concord_model::key::Key::parse("d").unwrap(),
        indexes: Vec::new(),
        schema: None,
    };
    let by = writer.id.to_string();
    let proposal = Proposal::new(Timestamp(200), &by, authorized.author, command);
    let change =
        AccessCommand::Change { id: writer.id, terms: terms(Grants::default()), expect: Expect::Any };
    let change = Proposal { command: Command::Access(change), author: Author::Root, ..proposal.clone() };
    assert!(state_now.apply(101, &change).1.is_some());
    assert_eq!(state_now.apply(102, &proposal).0, concord_model::command::Verdict::Stale);
}
