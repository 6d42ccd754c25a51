//! Environments: what is rejected in which of them, and what changes their rules.

use super::*;
use crate::{Change, builder::StateBuilder};
use concord_model::{
    access_key::{Author, Grants, KeyId, KeyUse, Quota},
    audit::AnchoredLog,
    command::{
        AccessCommand, AuditCommand, BatchStep, IdempotencyKey, KeyTerms, Proposal, Transaction, Undeletion,
        Verdict,
    },
    record::{DeletedId, Revision},
    system::environment::{Environment, EnvironmentName, Freeze},
};

pub(crate) const SECOND: u64 = 1_000_000;
pub(crate) const HOUR: u64 = 60 * 60 * SECOND;
/// The time of the proposals.
pub(crate) const NOW: u64 = 1000 * HOUR;

pub(crate) fn key(text: &str) -> Key {
    Key::parse(text).unwrap()
}

fn key_id() -> KeyId {
    KeyId::parse("aaaaaaaaaaaa").unwrap()
}

pub(crate) fn refusing() -> Environment {
    Environment { direct: Direct::Refuse, approvals: 1, freezes: Vec::new() }
}

pub(crate) fn frozen(from: u64, until: u64) -> Environment {
    let freezes = vec![Freeze { from: Timestamp(from), until: Timestamp(until) }];
    Environment { freezes, ..Environment::default() }
}

fn put_if(name: &str, after: Environment, expect: Expect) -> Command {
    let (name, text) = (EnvironmentName::parse(name).unwrap(), "{}".into());
    Command::System(SystemCommand::PutEnvironment { name, after, text, expect })
}

pub(crate) fn put(name: &str, after: Environment) -> Command {
    put_if(name, after, Expect::Any)
}

fn delete_if(name: &str, expect: Expect) -> Command {
    Command::System(SystemCommand::DeleteEnvironment { name: EnvironmentName::parse(name).unwrap(), expect })
}

pub(crate) fn write(definition: &str, name: &str) -> Command {
    let (definition, key) = (key(definition), key(name));
    Command::WriteConfig { definition, key, data: "{}".into(), entries: Box::default(), expect: Expect::Any }
}

pub(crate) fn create(definition: &str) -> Command {
    Command::CreateDefinition { key: key(definition), indexes: Vec::new(), schema: None }
}

pub(crate) fn delete(definition: &str, keep: Option<u64>) -> Command {
    Command::DeleteDefinition { key: key(definition), expect: Expect::Any, restrict: false, keep }
}

pub(crate) fn step(command: Command) -> BatchStep {
    BatchStep { definition_read: None, command }
}

fn of_root(at: u64, command: Command) -> Proposal {
    Proposal::new(Timestamp(at), "root", Author::Root, command)
}

pub(crate) fn apply(state: &mut State, at: u64, command: Command) -> Result<Option<Change>, Rejection> {
    match state.apply(state.revision() + 1, &of_root(at, command)) {
        (Verdict::Decided(outcome), change) => outcome.map(|_| change),
        (Verdict::Stale, _) => panic!("stale"),
    }
}

/// A state with definitions of two environments, a deleted one that is kept, and an access key.
pub(crate) fn world() -> State {
    let mut state = State::new();
    let terms =
        KeyTerms { name: "n".into(), grants: Grants::default(), quota: Quota::default(), expires_at: None };
    for command in [
        Command::Access(AccessCommand::Create { id: key_id(), terms, sha256: [1; 32], person: None }),
        create("prod.d"),
        write("prod.d", "k"),
        create("prod.gone"),
        delete("prod.gone", Some(1 << 20)),
        create("dev.d"),
        put("dev", Environment::default()),
    ] {
        apply(&mut state, SECOND, command).unwrap();
    }
    state
}

/// What the table says of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Changes {
    /// Definitions or configs of `prod`.
    Content,
    /// The rules of `prod`.
    Rules,
    /// Nothing that an environment has a say in.
    Nothing,
}

/// The number of a command's kind. A new kind does not compile until it is here, and fails until it is in the table.
pub(crate) fn kind(command: &Command) -> usize {
    match command {
        Command::CreateDefinition { .. } => 0,
        Command::SetIndexes { .. } => 1,
        Command::DeleteDefinition { .. } => 2,
        Command::WriteConfig { .. } => 3,
        Command::DeleteConfig { .. } => 4,
        Command::Compact { .. } => 5,
        Command::SetSchema { .. } => 6,
        Command::SetUnique { .. } => 7,
        Command::BuildIndex { .. } => 8,
        Command::Batch(_) => 9,
        Command::RaiseFeatureLevel { .. } => 10,
        Command::Forget { .. } => 11,
        Command::Access(_) => 12,
        Command::Transaction(_) => 13,
        Command::UndeleteDefinition(_) => 14,
        Command::SetProtection { .. } => 15,
        Command::SkipRevisions { .. } => 16,
        Command::Audit(_) => 17,
        Command::System(_) => 18,
    }
}
pub(crate) const KINDS: usize = 19;

/// Every kind of command, each as it would be accepted in a state without environments, and what it changes: by hand, not
/// by what the commands say of themselves.
pub(crate) fn table(state: &State) -> Vec<(Command, Changes)> {
    use Changes::{Content, Nothing, Rules};
    let (d, expect) = (|| key("prod.d"), Expect::Present);
    let gone = state.deleted().next().unwrap();
    let undeletion = Undeletion { key: key("prod.gone"), of: gone.deleted_id(), back: Vec::new() };
    let log = AnchoredLog { cluster: [7; 16], node: 1 };
    let reads = Vec::new;
    let one = |command| vec![(0, step(command))];
    vec![
        (create("prod.new"), Content),
        (Command::SetIndexes { key: d(), indexes: vec!["n".into()], expect }, Content),
        (delete("prod.d", None), Content),
        (delete("prod.d", Some(1 << 20)), Content),
        (write("prod.d", "k"), Content),
        (write("prod.d", "new"), Content),
        (Command::DeleteConfig { definition: d(), key: key("k"), expect }, Content),
        (Command::Compact { compaction_revision: 7 }, Nothing),
        (Command::SetSchema { key: d(), schema: Some("{}".into()), expect, configs_read: None }, Content),
        (Command::SetUnique { key: d(), paths: Vec::new(), expect, configs_read: None }, Content),
        (Command::BuildIndex { key: d(), begun: 1, cursor: None }, Nothing),
        (Command::Batch(vec![step(write("prod.d", "k"))]), Content),
        (Command::Batch(vec![step(write("dev.d", "k"))]), Nothing),
        (Command::RaiseFeatureLevel { to: 1 }, Nothing),
        (Command::Forget { upto: 1 }, Nothing),
        (Command::Access(AccessCommand::Revoke { id: key_id(), expect: Expect::Any }), Nothing),
        (Command::Access(AccessCommand::MarkUsed { ids: vec![key_id()] }), Nothing),
        (
            Command::Transaction(Transaction {
                reads: reads(),
                chosen: Ok(true),
                steps: one(delete("prod.d", None)),
            }),
            Content,
        ),
        (Command::Transaction(Transaction { reads: reads(), chosen: Ok(false), steps: Vec::new() }), Nothing),
        (Command::UndeleteDefinition(undeletion), Content),
        (Command::SetProtection { key: d(), protected: true, expect }, Content),
        (Command::SkipRevisions { to: 1 }, Nothing),
        (Command::Audit(AuditCommand::Anchor { log, seq: 1, sha256: [1; 32] }), Nothing),
        (Command::Audit(AuditCommand::Accept { log }), Nothing),
        (put("prod", Environment::default()), Rules),
        (delete_if("prod", Expect::Any), Rules),
    ]
}

/// Which environments there are, and what they reject.
pub(crate) struct Situation {
    pub(crate) records: Vec<(&'static str, Environment)>,
    pub(crate) content: Option<Rejection>,
    pub(crate) rules: Option<Rejection>,
}

pub(crate) fn situations() -> Vec<Situation> {
    let until = Timestamp(NOW + HOUR);
    let change_required = |name| Some(Rejection::ChangeRequired { environment: key(name) });
    let is_frozen = |name| Some(Rejection::EnvironmentFrozen { environment: key(name), until });
    let freeze = || frozen(NOW - 1, until.0);
    let both = || Environment { freezes: freeze().freezes, ..refusing() };
    let allowing = Environment::default;
    let of =
        |records: Vec<(&'static str, Environment)>, content, rules| Situation { records, content, rules };
    vec![
        of(vec![], None, None),
        of(vec![("prod", allowing())], None, None),
        of(vec![("prod", refusing())], change_required("prod"), change_required("prod")),
        of(vec![("prod", freeze())], is_frozen("prod"), None),
        of(vec![("prod", both())], change_required("prod"), change_required("prod")),
        of(vec![("prod", frozen(NOW - HOUR, NOW))], None, None),
        of(vec![("prod", frozen(NOW + HOUR, NOW + 2 * HOUR))], None, None),
        of(vec![("Prod", both()), ("pro", both()), ("prod-d", both())], None, None),
        of(vec![("default", refusing())], change_required("default"), change_required("default")),
        of(vec![("default", freeze())], is_frozen("default"), is_frozen("default")),
        of(vec![("prod", allowing()), ("default", both())], None, None),
        of(vec![("default", allowing()), ("prod", freeze())], is_frozen("prod"), None),
    ]
}

fn in_step(index: u32, rejection: Rejection) -> Rejection {
    Rejection::InBatch { index, rejection: rejection.into() }
}

/// Expects that exactly this rejection is the verdict, which leaves nothing; or, without one, that no environment rejects
/// the proposal.
fn expect_verdict(state: &State, proposal: &Proposal, expected: Option<Rejection>) {
    let mut after = state.clone();
    let (verdict, change) = after.apply(state.revision() + 1, proposal);
    let by_environment = |rejection: &Rejection| {
        matches!(rejection, Rejection::ChangeRequired { .. } | Rejection::EnvironmentFrozen { .. })
    };
    if let Some(expected) = expected {
        assert_eq!(verdict, Verdict::Decided(Err(expected)), "{proposal}");
        assert_eq!((change, after.digest()), (None, state.digest()), "{proposal}");
        assert_eq!(after.remembered(&[1; 16]), None, "{proposal}");
        return;
    }
    match &verdict {
        Verdict::Decided(Err(Rejection::InBatch { rejection, .. })) => assert!(!by_environment(rejection)),
        Verdict::Decided(Err(rejection)) => assert!(!by_environment(rejection), "{proposal}: {rejection}"),
        Verdict::Decided(Ok(_)) => {}
        Verdict::Stale => panic!("{proposal} is stale"),
    }
}

#[test]
fn every_command_of_everybody_is_judged_in_every_environment() {
    let empty = world();
    let secret = empty.access_key(&key_id()).unwrap().revision;
    let used = KeyUse { id: key_id(), revision: secret, secret };
    let authors = [Author::Root, Author::Key(used), Author::Cluster];
    let request = Some(IdempotencyKey { id: [1; 16], fingerprint: [2; 16] });
    let table = table(&empty);
    for missing in 0..KINDS {
        assert!(table.iter().any(|(command, _)| kind(command) == missing), "no command of kind {missing}");
    }
    let mut cases = 0;
    for Situation { records, content, rules } in situations() {
        let mut state = empty.clone();
        for (name, environment) in records {
            // At a time when no freeze has begun.
            apply(&mut state, 2 * SECOND, put(name, environment)).unwrap();
        }
        for (command, changes) in &table {
            let rejected = match changes {
                Changes::Content => content.clone(),
                Changes::Rules => rules.clone(),
                Changes::Nothing => None,
            };
            let has_steps = matches!(command, Command::Batch(_) | Command::Transaction(_));
            let alone = rejected.clone().map(|one| if has_steps { in_step(0, one) } else { one });
            let mut forms = vec![(command.clone(), alone)];
            let other = || step(write("dev.d", "other"));
            let batch = Command::Batch(vec![other(), step(command.clone())]);
            if Proposal::from_bytes(&of_root(NOW, batch.clone()).to_bytes()).is_ok() {
                let steps = vec![(3, other()), (7, step(command.clone()))];
                let transaction = Transaction { reads: Vec::new(), chosen: Ok(true), steps };
                forms.push((batch, rejected.clone().map(|one| in_step(1, one))));
                forms.push((Command::Transaction(transaction), rejected.map(|one| in_step(7, one))));
            } else {
                assert!([9, 13, 14, 18].contains(&kind(command)), "{command:?} can be no step");
            }
            for (command, expected) in forms {
                for author in &authors {
                    let is_unauthored = *author == Author::Cluster && !command.is_of_the_cluster();
                    let expected = if is_unauthored { Some(Rejection::Unauthored) } else { expected.clone() };
                    let proposal =
                        Proposal { author: author.clone(), request, ..of_root(NOW, command.clone()) };
                    expect_verdict(&state, &proposal, expected);
                    cases += 1;
                }
            }
        }
    }
    assert!(cases > 1500, "{cases}");
}

#[test]
fn a_freeze_is_judged_by_the_time_of_the_entry() {
    let mut state = world();
    apply(&mut state, NOW, put("prod", frozen(NOW + HOUR, NOW + 2 * HOUR))).unwrap();
    let until = Timestamp(NOW + 2 * HOUR);
    let is_frozen = Rejection::EnvironmentFrozen { environment: key("prod"), until };
    // The last moment before, and a batch whose last step is in the freeze.
    let batch = |steps: u64| Command::Batch((0..steps).map(|_| step(write("prod.d", "k"))).collect());
    let mut before = state.clone();
    assert!(apply(&mut before, NOW + HOUR - 1, write("prod.d", "k")).is_ok());
    let mut before = state.clone();
    assert!(apply(&mut before, NOW + HOUR - 10, batch(10)).is_ok());
    let last = before.definition("prod.d").unwrap().config("k").unwrap().modified_at;
    assert_eq!(last, Timestamp(NOW + HOUR - 1));
    let in_freeze = in_step(0, is_frozen.clone());
    assert_eq!(apply(&mut state.clone(), NOW + HOUR - 10, batch(11)), Err(in_freeze));
    // The clock of the proposer is behind, the log's time is not.
    apply(&mut state, NOW + HOUR, write("dev.d", "k")).unwrap();
    assert_eq!(apply(&mut state, NOW, write("prod.d", "k")), Err(is_frozen.clone()));
    assert_eq!(apply(&mut state, until.0 - 1, write("prod.d", "k")), Err(is_frozen));
    apply(&mut state, until.0, write("prod.d", "k")).unwrap();
    assert_eq!(state.refused_direct(until, "prod.d"), None);
}

#[test]
fn the_same_request_is_decided_after_the_freeze() {
    let mut state = world();
    apply(&mut state, NOW, put("prod", frozen(NOW, NOW + HOUR))).unwrap();
    let request = Some(IdempotencyKey { id: [1; 16], fingerprint: [2; 16] });
    let proposal = |at| Proposal { request, ..of_root(at, write("prod.d", "k")) };
    let revision = state.revision();
    let (verdict, change) = state.apply(revision + 1, &proposal(NOW + 1));
    assert!(matches!(verdict, Verdict::Decided(Err(Rejection::EnvironmentFrozen { .. }))));
    assert_eq!((change, state.request_count()), (None, 0));
    let (verdict, _) = state.apply(revision + 2, &proposal(NOW + HOUR));
    assert!(matches!(verdict, Verdict::Decided(Ok(_))));
    // What was decided before a freeze keeps its outcome in it.
    apply(&mut state, NOW + 2 * HOUR, put("prod", frozen(NOW, NOW + 9 * HOUR))).unwrap();
    assert_eq!(state.apply(revision + 9, &proposal(NOW + 3 * HOUR)), (verdict, None));
}

#[test]
fn a_freeze_is_added_and_ended_while_the_environment_is_frozen() {
    let mut state = world();
    apply(&mut state, NOW, put("prod", frozen(NOW, NOW + HOUR))).unwrap();
    let is_frozen = |state: &State| state.refused_direct(Timestamp(NOW + 9), "prod.d").is_some();
    assert!(is_frozen(&state));
    apply(&mut state, NOW + 1, put("prod", frozen(NOW, NOW + 9 * HOUR))).unwrap();
    assert!(is_frozen(&state));
    apply(&mut state, NOW + 2, put("prod", Environment::default())).unwrap();
    assert!(!is_frozen(&state));
    apply(&mut state, NOW + 3, put("prod", frozen(NOW, NOW + HOUR))).unwrap();
    apply(&mut state, NOW + 4, delete_if("prod", Expect::Any)).unwrap();
    assert!(!is_frozen(&state));
}

#[test]
fn nobody_leaves_the_rules_of_default_by_a_record_of_their_own() {
    for (default, at) in [(refusing(), NOW), (frozen(NOW, NOW + HOUR), NOW + 1)] {
        let mut state = world();
        apply(&mut state, NOW - 1, put("default", default.clone())).unwrap();
        for own in [Environment::default(), frozen(NOW, NOW + 1), refusing()] {
            let own = Environment { approvals: default.approvals + 1, ..own };
            let refused = apply(&mut state, at, put("prod", own)).unwrap_err();
            assert_eq!(Some(refused), state.refused_direct(Timestamp(at), "prod.d"));
        }
        // All that `default` has, and a freeze of its own, takes nothing out of the rules.
        let mut own = default.clone();
        own.freezes.extend(frozen(at, at + 24 * HOUR).freezes);
        apply(&mut state, at, put("prod", own)).unwrap();
        assert!(state.refused_direct(Timestamp(at), "prod.d").is_some());
    }
}

#[test]
fn nobody_leaves_a_freeze_of_default_that_has_not_begun() {
    let (begin, end) = (NOW + HOUR, NOW + 2 * HOUR);
    let mut state = world();
    apply(&mut state, NOW - 1, put("default", frozen(begin, end))).unwrap();
    let left = Rejection::FreezeLeft { environment: key("default"), until: Timestamp(end) };
    for own in [Environment::default(), frozen(begin, end - 1), refusing()] {
        assert_eq!(apply(&mut state, NOW, put("prod", own)), Err(left.clone()));
    }
    // With all of its freezes, whatever the other rules are, and once they are over.
    let own = Environment { freezes: frozen(begin, end).freezes, ..refusing() };
    let mut after = state.clone();
    apply(&mut after, NOW, put("prod", own)).unwrap();
    apply(&mut state, end, put("prod", Environment::default())).unwrap();
}

#[test]
fn where_changes_are_refused_only_a_short_freeze_is_added_directly() {
    let mut state = world();
    apply(&mut state, NOW, put("prod", refusing())).unwrap();
    let refused = || Err(Rejection::ChangeRequired { environment: key("prod") });
    let with = |freezes: &[(u64, u64)]| {
        let freezes = freezes.iter().flat_map(|(from, until)| frozen(*from, *until).freezes).collect();
        put("prod", Environment { freezes, ..refusing() })
    };
    for other in [
        put("prod", Environment::default()),
        put("prod", Environment { approvals: 2, ..refusing() }),
        with(&[(NOW, NOW + 25 * HOUR)]),
        delete_if("prod", Expect::Any),
    ] {
        assert_eq!(apply(&mut state, NOW + 1, other), refused());
    }
    let short = (NOW, NOW + 24 * HOUR);
    apply(&mut state, NOW + 1, with(&[short])).unwrap();
    assert_eq!(apply(&mut state, NOW + 2, with(&[])), refused(), "ended early");
    apply(&mut state, NOW + 2, with(&[short, (NOW + 2, NOW + 3)])).unwrap();
    // Over now: it may go.
    apply(&mut state, NOW + 25 * HOUR, with(&[])).unwrap();
}

#[test]
fn preconditions_and_limits_of_environments() {
    let mut state = State::new();
    let allow = Environment::default;
    let not_found = || Err(Rejection::EnvironmentNotFound);
    assert_eq!(apply(&mut state, 1, delete_if("prod", Expect::Any)), not_found());
    assert_eq!(apply(&mut state, 1, put_if("prod", allow(), Expect::At(1))), not_found());
    assert_eq!(apply(&mut state, 1, put_if("prod", allow(), Expect::Present)), not_found());
    apply(&mut state, 5, put_if("prod", allow(), Expect::None)).unwrap();
    let current: Revision = state.revision();
    let failed = || Err(Rejection::Precondition { current });
    for expect in [Expect::None, Expect::Absent, Expect::At(current + 1)] {
        assert_eq!(apply(&mut state, 6, put_if("prod", refusing(), expect)), failed());
        assert_eq!(apply(&mut state, 6, delete_if("prod", expect)), failed());
    }
    for expect in [Expect::Read(None), Expect::Read(Some(current - 1))] {
        let proposal = of_root(6, put_if("prod", refusing(), expect));
        assert_eq!(state.apply(state.revision() + 1, &proposal), (Verdict::Stale, None));
    }
    apply(&mut state, 7, put_if("prod", frozen(1, 2), Expect::Read(Some(current)))).unwrap();
    let changed = state.environment("prod").unwrap();
    assert_eq!((changed.created_at, changed.modified_at), (Timestamp(5), Timestamp(7)));
    assert_eq!((changed.revision, changed.environment()), (state.revision(), Some(&frozen(1, 2))));
    for number in 1..ENVIRONMENTS_MAX {
        apply(&mut state, 8, put(&format!("e{number}"), allow())).unwrap();
    }
    assert_eq!(apply(&mut state, 9, put("more", allow())), Err(Rejection::TooManyEnvironments));
    apply(&mut state, 9, put("prod", allow())).unwrap();
    apply(&mut state, 9, delete_if("e1", Expect::Present)).unwrap();
    apply(&mut state, 9, put("more", allow())).unwrap();
}

#[test]
fn environments_are_in_the_digest_and_in_a_state_that_is_built_from_records() {
    let mut state = State::new();
    apply(&mut state, 1, put("prod", frozen(5, 9))).unwrap();
    let one = state.digest();
    let change = apply(&mut state, 2, put("prod", frozen(5, 10))).unwrap().unwrap();
    assert_ne!(state.digest(), one);
    let [Edit::System { before: Some(before), after: Some(after) }] = &change.edits[..] else {
        panic!("{change:?}")
    };
    assert_eq!((before.environment(), after.environment()), (Some(&frozen(5, 9)), Some(&frozen(5, 10))));
    apply(&mut state, 3, put("dev", refusing())).unwrap();
    apply(&mut state, 4, put("gone", Environment::default())).unwrap();
    apply(&mut state, 5, delete_if("gone", Expect::Any)).unwrap();
    let mut builder = StateBuilder::new();
    for record in state.system_records() {
        builder.system_record((**record).clone()).unwrap();
    }
    let twice = (**state.environment("dev").unwrap()).clone();
    assert!(builder.system_record(twice).is_err());
    let built = builder.finish(state.revision(), state.last_at()).unwrap();
    assert_eq!((built.digest(), built.bytes), (state.digest(), state.bytes));
    assert_eq!(built.environments().collect::<Vec<_>>(), state.environments().collect::<Vec<_>>());
}

#[test]
fn an_undelete_is_judged_by_the_key_of_what_returns() {
    let mut state = world();
    apply(&mut state, NOW, put("prod", refusing())).unwrap();
    let of = state.deleted().next().unwrap().deleted_id();
    let undelete = |name: &str, of: DeletedId| {
        Command::UndeleteDefinition(Undeletion { key: key(name), of, back: Vec::new() })
    };
    let refused = Err(Rejection::ChangeRequired { environment: key("prod") });
    assert_eq!(apply(&mut state, NOW, undelete("prod.gone", of)), refused);
    assert_eq!(apply(&mut state, NOW, undelete("dev.gone", of)), Err(Rejection::DefinitionNotFound));
    assert_eq!(state.deleted().count(), 1);
}
