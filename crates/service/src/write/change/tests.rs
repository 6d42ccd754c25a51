//! Tests of change requests on the leader.

use serde_json::{Value, json};

use super::*;
use crate::{
    budget::Budget,
    request::{Check, CheckCondition, EnvironmentRules, LazySchema, NewProtection, NewSchema, Transaction},
    schemas::Validators,
    testing::owner,
    write::{conceal::without_values, testing},
};
use concord_model::{
    access_key::{Author, Grant, Grants, KeyId, KeyUse, Pattern, Quota},
    command::{AccessCommand, IdempotencyKey, KeyTerms, Verdict},
    system::person::PersonLabel,
    time::Timestamp,
};

const ID: &str = "Abcdefghijkl";

fn apply(state: &mut State, author: Author, prepared: PreparedWrite) {
    let proposal = testing::request(Write::Batch(Vec::new())).proposal(Timestamp(1), prepared, author);
    let verdict = state.apply(state.revision() + 1, &proposal).0;
    assert!(matches!(verdict, Verdict::Decided(Ok(_))), "{verdict:?}");
}

fn by_root(state: &mut State, command: Command) {
    apply(state, Author::Root, PreparedWrite::of(command));
}

fn write(state: &mut State, write: Write) {
    let prepared = testing::proposed(state, &testing::request(write));
    apply(state, Author::Root, prepared);
}

fn define(key: &str) -> Write {
    let (key, indexes) = (key.into(), Vec::new());
    Write::CreateDefinition { key, indexes, schema: None, format_assertion: None }
}

fn put(definition: &str, data: Value) -> Write {
    let (definition, key, data) = (definition.into(), "k".into(), Document::new(data));
    Write::WriteConfig { definition, key, data, expect: Expect::Any }
}

fn delete(key: &str, purge: bool) -> Write {
    Write::DeleteDefinition { key: key.into(), expect: Expect::Present, restrict: false, purge }
}

fn set_schema(key: &str, schema: Value) -> Write {
    Write::SetSchema(NewSchema {
        key: key.into(),
        schema: Some(Document::new(schema)),
        format_assertion: None,
        expect: Expect::Present,
        force: false,
        compiled: LazySchema::default(),
    })
}

/// A key with these permissions for everything, which the root key or a key has made.
fn make_key(state: &mut State, author: Author, id: &str, person: &str, verbs: &[Verb]) -> Principal {
    let definitions = vec![Pattern::parse("*").unwrap()];
    let terms = KeyTerms {
        name: "k".into(),
        grants: Grants(vec![Grant { verbs: verbs.iter().copied().collect(), definitions }]),
        quota: Quota::default(),
        expires_at: None,
    };
    let id = KeyId::parse(id).unwrap();
    let person = PersonLabel::parse(person).ok();
    let create = AccessCommand::Create { id: id.clone(), terms, sha256: [1; 32], person };
    apply(state, author, PreparedWrite::of(Command::Access(create)));
    Principal::of_key(Arc::clone(state.access_key(&id).unwrap()), state.revision())
}

fn author(state: &State, principal: &Principal) -> Author {
    let Some(key) = principal.key() else { return Author::Root };
    let revision = state.access_key(&key.id).unwrap().revision;
    Author::Key(KeyUse { id: key.id.clone(), revision, secret: principal.secret })
}

fn change(principal: &Principal, write: ChangeWrite) -> WriteRequest {
    testing::request_by(principal.clone(), Write::Change(Box::new(write)))
}

fn propose(state: &mut State, principal: &Principal, operations: ProposedOperations) {
    let (title, timing) = ("t".into(), Timing::default());
    let edition = NewEdition { title, description: String::new(), operations, timing, seal: [7; 32] };
    let create = change(principal, ChangeWrite::Create { id: ID.into(), edition });
    let prepared = testing::proposed(state, &create);
    let author = author(state, principal);
    apply(state, author, prepared);
}

fn found(state: &State) -> FoundChange<'_> {
    find(state, &ChangeId::parse(ID).unwrap()).unwrap()
}

/// The request that applies it.
fn begun(state: &State, principal: &Principal) -> WriteRequest {
    let digest = found(state).change.edition.digest;
    let request = change(principal, ChangeWrite::Apply { id: ID.into(), digest });
    match using(state, &request, (principal, Timestamp(1))).unwrap() {
        Used::Write(inner) => *inner,
        other @ (Used::Decided(_) | Used::Begun(_)) => panic!("{other:?}"),
    }
}

/// What a later preparation makes of it.
fn prepared(state: &State, request: &WriteRequest, principal: &Principal) -> Result<PreparedWrite, Refusal> {
    let (validators, limits) = (Validators::default(), Limits::default());
    let budget = &Budget::of_test(&request.write);
    let now = &|| Timestamp(1);
    let policies = crate::policy::Policies::default();
    let with =
        Preparation { validators: &validators, policies: &policies, limits: &limits, budget, principal, now };
    prepare_applied(state, request, request.edition.as_ref().unwrap(), with)
}

fn with_change_of(definition: &str) -> State {
    let mut state = State::new();
    write(&mut state, define(definition));
    let operations = ProposedOperations::Records(vec![put(definition, json!({"n": 1}))]);
    propose(&mut state, &Principal::root(), operations);
    state
}

#[test]
fn an_apply_rests_on_the_rules_by_which_approvals_were_counted() {
    let guards = |state: &State| {
        let root = Principal::root();
        prepared(state, &begun(state, &root), &root).unwrap().tail.unwrap().guards
    };
    let rules = |name: &str, approvals| {
        let (name, rules) = (name.into(), EnvironmentRules::default());
        let rules = EnvironmentRules { approvals: Some(approvals), ..rules };
        Write::Environment(EnvironmentWrite::Put { name, rules, expect: Expect::Any })
    };
    for (definition, changed) in [("prod.x", "prod"), ("prod.x", "default"), ("x", "default")] {
        let mut state = with_change_of(definition);
        let read = guards(&state);
        assert_eq!(state.failed_guard(&read), None);
        write(&mut state, rules("other", 0));
        assert_eq!(state.failed_guard(&read), None, "other environments do not matter");
        write(&mut state, rules(changed, 0));
        assert!(state.failed_guard(&read).is_some(), "{definition} {changed}");
    }
    let mut state = with_change_of("prod.x");
    write(&mut state, rules("prod", 0));
    let read = guards(&state);
    write(&mut state, rules("default", 0));
    assert_eq!(state.failed_guard(&read), None, "the default does not apply where there are own rules");
}

#[test]
fn an_applier_is_authorized_by_each_preparation() {
    let state = with_change_of("d");
    let applier = owner(&[Verb::Read, Verb::Propose]);
    let begun = begun(&state, &applier);
    prepared(&state, &begun, &Principal::root()).unwrap();
    let refused = |verbs: &[Verb]| prepared(&state, &begun, &owner(verbs)).unwrap_err();
    assert_eq!(refused(&[]), Rejection::ChangeNotFound.into());
    assert_eq!(refused(&[Verb::Propose, Verb::Write]), Rejection::ChangeNotFound.into());
    assert_eq!(refused(&[Verb::Read]), Refusal::Forbidden { verb: Verb::Propose });
}

#[test]
fn a_deletion_that_is_not_kept_any_more_is_not_undone() {
    let (mut state, root) = (State::new(), Principal::root());
    write(&mut state, define("d"));
    write(&mut state, delete("d", false));
    propose(&mut state, &root, ProposedOperations::Undelete { key: "d".into() });
    let begun = begun(&state, &root);
    prepared(&state, &begun, &root).unwrap();
    write(&mut state, Write::UndeleteDefinition(Undelete { key: "d".into(), then: None }));
    write(&mut state, delete("d", true));
    let refused = prepared(&state, &begun, &root).unwrap_err();
    assert!(matches!(refused, Refusal::ChangeStale(_)), "{refused:?}");
}

#[test]
fn rules_that_nobody_can_approve_any_more_are_not_applied() {
    let (mut state, root) = (State::new(), Principal::root());
    let verbs = [Verb::Approve, Verb::Read];
    make_key(&mut state, Author::Root, "AAAAAAAAAAAA", "ada", &verbs);
    let bob = make_key(&mut state, Author::Root, "BBBBBBBBBBBB", "bob", &verbs);
    let rules = EnvironmentRules::default();
    let rules = EnvironmentRules { approvals: Some(1), ..rules };
    let put = EnvironmentWrite::Put { name: "prod".into(), rules, expect: Expect::Any };
    propose(&mut state, &root, ProposedOperations::Environment(put));
    let begun = begun(&state, &root);
    prepared(&state, &begun, &root).unwrap();
    let id = bob.key().unwrap().id.clone();
    by_root(&mut state, Command::Access(AccessCommand::Revoke { id, expect: Expect::Any }));
    let refused = prepared(&state, &begun, &root).unwrap_err();
    assert!(matches!(refused, Refusal::Invalid(_)), "{refused:?}");
}

#[test]
fn a_key_that_only_claims_its_person_withdraws_nothing() {
    let mut state = State::new();
    write(&mut state, define("d"));
    let (read, propose_read) = ([Verb::Read], [Verb::Read, Verb::Propose]);
    let maker = make_key(&mut state, Author::Root, "MMMMMMMMMMMM", "mia", &[Verb::Keys, Verb::Read]);
    let bob = make_key(&mut state, Author::Root, "BBBBBBBBBBBB", "bob", &propose_read);
    let bobs = make_key(&mut state, Author::Root, "CCCCCCCCCCCC", "bob", &read);
    let by_maker = author(&state, &maker);
    let claimed = make_key(&mut state, by_maker, "DDDDDDDDDDDD", "bob", &read);
    let operations = ProposedOperations::Records(vec![put("d", json!({}))]);
    propose(&mut state, &bob, operations);
    let withdraw = |principal: &Principal| {
        let withdraw = ChangeWrite::Withdraw { id: ID.into(), comment: String::new() };
        testing::prepared(&state, &change(principal, withdraw)).map(drop)
    };
    assert_eq!(withdraw(&claimed), Err(Refusal::Forbidden { verb: Verb::Approve }));
    assert_eq!(withdraw(&maker), Err(Refusal::Forbidden { verb: Verb::Approve }));
    assert_eq!((withdraw(&bob), withdraw(&bobs)), (Ok(()), Ok(())));
}

#[test]
fn a_vote_says_whether_its_preview_hid_something() {
    let marked = json!({"properties": {"pw": {"x-concord-secret": true}}});
    let is_redacted = |state: &State, verbs: &[Verb]| {
        let budget = Budget::of_test(&put("d", json!({})));
        found(state).is_redacted_for(state, &owner(verbs), &budget).unwrap()
    };
    let (blind, seeing) = ([Verb::Read, Verb::Approve], [Verb::Read, Verb::Approve, Verb::Reveal]);
    let mut state = with_change_of("d");
    assert!(!is_redacted(&state, &blind), "nothing is marked");
    let protect = NewProtection { key: "d".into(), protected: true, expect: Expect::Present };
    write(&mut state, Write::SetProtection(protect));
    assert!(is_redacted(&state, &blind), "the marks of then are not known");
    assert!(!is_redacted(&state, &seeing));

    let mut state = State::new();
    write(&mut state, define("d"));
    let operations = vec![set_schema("d", marked), put("d", json!({"pw": "hunter2"}))];
    propose(&mut state, &Principal::root(), ProposedOperations::Records(operations));
    assert!(is_redacted(&state, &blind), "the edition marks it");
    assert!(!is_redacted(&state, &seeing));
}

#[test]
fn an_applier_without_reveal_is_not_told_the_values_that_violate_a_schema() {
    let mut state = State::new();
    write(&mut state, define("open"));
    write(&mut state, define("d"));
    write(&mut state, set_schema("d", json!({"properties": {"pw": {"x-concord-secret": true}}})));
    let told = |definition: &str, verbs: &[Verb]| {
        let breaks = Refusal::Breaks { count: 1, violations: vec![Violation::new("'hunter2' is no number")] };
        let batch = Write::Batch(vec![set_schema(definition, json!({}))]);
        let shown = without_values(breaks.of_operation(0), &owner(verbs), &batch, &state);
        format!("{shown:?}").contains("hunter2")
    };
    assert!(!told("d", &[Verb::Read, Verb::Propose]));
    assert!(told("d", &[Verb::Read, Verb::Propose, Verb::Reveal]));
    assert!(told("open", &[Verb::Read, Verb::Propose]), "it has no secret values");
}

#[test]
fn a_bypass_that_changes_nothing_makes_no_record() {
    let mut state = State::new();
    write(&mut state, define("d"));
    let tail = |exists: bool| {
        let condition = CheckCondition::Exists(exists);
        let check = Write::Check(Check { definition: "d".into(), key: "k".into(), condition });
        let operations = vec![check, put("d", json!({}))];
        let transaction = Transaction { operations, conditions: 1, then: 1 };
        let mut request = testing::request(Write::Transaction(transaction));
        request.caller.bypass = Some(BypassRequest { id: ID.into(), seal: [7; 32] });
        request.caller.idempotency_key = Some(IdempotencyKey { id: [1; 16], fingerprint: [2; 16] });
        testing::proposed(&state, &request).tail
    };
    assert!(tail(false).is_some());
    assert!(tail(true).is_none());
}
