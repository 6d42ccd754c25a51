//! Change requests: what each author may do to one, when it applies, and what is left of it.

mod ended;
mod limits;
mod rollout;
mod sources;
mod time;

use super::*;
use crate::{
    Change as StoredChange, Edit,
    builder::StateBuilder,
    continuation::Continuation,
    environment::tests::{
        Changes, HOUR, KINDS, NOW, SECOND, Situation, create, delete, frozen, key, kind, put, refusing,
        situations, step, table, world, write,
    },
};
use concord_model::{
    access_key::{Grants, KeyId, KeyUse, Quota},
    command::{
        AccessCommand, ChangeAction, Command, Expect, IdempotencyKey, KeyTerms, Proposal, SystemCommand,
        Transaction, Verdict,
        source::{Bypass, ChangeUse, Source, Tail},
    },
    error::{ChangeBound, ChangeQuota, StoredQuota},
    feature::{LEVEL_MIN, ROLLOUTS},
    limits::{
        CHANGE_AUTHORS_MAX, CHANGE_COMMENT_BYTES_MAX, CHANGE_CONTENT_BYTES_MAX, CHANGE_CONTENTS_BYTES_MAX,
        CHANGE_DEFINITIONS_MAX, CHANGE_VOTES_MAX, CHANGES_SWEPT_PER_ENTRY_MAX, CLOSED_CHANGE_AGE_US_MAX,
        CLOSED_CHANGES_MAX, DELETED_DEFINITIONS_MAX, EDITION_AGE_US_MAX, GUARDS_MAX,
        OPEN_CHANGE_BYTES_OF_PARTY_MAX, OPEN_CHANGES_OF_ENVIRONMENT_MAX, OPEN_CHANGES_OF_PARTY_MAX,
        REVERT_BY_HAND_US, UNREVIEWED_BYPASSES_MAX,
    },
    system::{
        SystemBody,
        change::{AppliedWith, CloseReason, Edition, NewEdition, NewVote, Phase, Revert, Timing},
        environment::{Direct, Environment, EnvironmentName},
        person::PersonLabel,
    },
    time::Timestamp,
};

/// Keys with a person that the root key has attested; `ann2` is another key of `ann`.
const ATTESTED: [(&str, &str); 5] =
    [("ann", "ann"), ("ann2", "ann"), ("bob", "bob"), ("cid", "cid"), ("dan", "dan")];

fn id(number: u64) -> ChangeId {
    ChangeId::parse(&format!("{number:012}")).unwrap()
}

fn key_id(who: &str) -> KeyId {
    KeyId::parse(&format!("{who:0<12}")).unwrap()
}

fn terms(quota: Quota) -> KeyTerms {
    KeyTerms { name: "n".into(), grants: Grants::default(), quota, expires_at: None }
}

struct ChangeWorld {
    state: State,
    at: u64,
}

impl ChangeWorld {
    /// The definitions of the environments' tests, and keys: attested ones, `bot` of nobody, `eve` whose key nobody has
    /// attested.
    fn new() -> Self {
        let mut world = Self { state: world(), at: NOW };
        for (who, person) in ATTESTED {
            world.make_key("root", who, Some(person), Quota::default());
        }
        world.make_key("root", "bot", None, Quota::default());
        world.make_key("bot", "eve", Some("eve"), Quota::default());
        world
    }

    /// The same with an environment `prod` that refuses direct changes and asks for one approval.
    fn restricted() -> Self {
        let mut world = Self::new();
        world.rules("prod", refusing());
        world
    }

    fn make_key(&mut self, by: &str, who: &str, person: Option<&str>, quota: Quota) {
        let person = person.map(|label| PersonLabel::parse(label).unwrap());
        let create = AccessCommand::Create { id: key_id(who), terms: terms(quota), sha256: [1; 32], person };
        self.done(by, Command::Access(create));
    }

    fn author(&self, who: &str) -> Author {
        match who {
            "root" => Author::Root,
            "cluster" => Author::Cluster,
            _ => {
                let key = self.state.access_key(&key_id(who)).unwrap();
                let secret = key.secrets.last().unwrap().made;
                Author::Key(KeyUse { id: key.id.clone(), revision: key.revision, secret })
            }
        }
    }

    fn proposal(&self, who: &str, command: Command) -> Proposal {
        Proposal::new(Timestamp(self.at), who, self.author(who), command)
    }

    fn propose(&mut self, proposal: &Proposal) -> (Verdict, Option<StoredChange>) {
        // As the log stores it.
        let stored = Proposal::from_bytes(&proposal.to_bytes()).unwrap();
        assert_eq!(stored, *proposal);
        self.at += 1;
        self.state.apply(self.state.revision() + 1, &stored)
    }

    fn decide(&mut self, proposal: &Proposal) -> Result<Option<StoredChange>, Rejection> {
        match self.propose(proposal) {
            (Verdict::Decided(outcome), change) => outcome.map(|_| change),
            (Verdict::Stale, _) => panic!("stale: {proposal}"),
        }
    }

    fn done(&mut self, who: &str, command: Command) -> StoredChange {
        let proposal = self.proposal(who, command);
        self.decide(&proposal).unwrap().unwrap()
    }

    fn rules(&mut self, name: &str, rules: Environment) {
        // No direct change of rules that refuse it: those of the test are put there by a bypass.
        let bypass =
            Bypass { id: id(900_000_000_000 + self.state.revision()), digest: [0; 32], text: "{}".into() };
        let tail = Tail::of(Source::Bypass(bypass.into()), Vec::new());
        let proposal = Proposal { tail, ..self.proposal("root", put(name, rules)) };
        self.decide(&proposal).unwrap();
    }

    fn act(&mut self, who: &str, number: u64, action: ChangeAction) -> Result<(), Rejection> {
        let command = Command::System(SystemCommand::Change { id: id(number), action });
        let proposal = self.proposal(who, command);
        self.decide(&proposal).map(drop)
    }

    fn create(&mut self, who: &str, number: u64) {
        self.act(who, number, ChangeAction::Create(edition(1).into())).unwrap();
    }

    fn edit(&mut self, who: &str, number: u64, digest: u8) -> Result<(), Rejection> {
        let after = self.state.change(&id(number)).map_or(1, |change| change.edition.number);
        let edition = edition(digest).into();
        self.act(who, number, ChangeAction::Edit { after, expect: Expect::Any, edition })
    }

    fn vote(&mut self, who: &str, number: u64, opinion: Opinion) -> Result<(), Rejection> {
        let current = self.state.change(&id(number)).map(|change| change.edition.clone());
        let (edition, digest) = current.map_or((1, [1; 32]), |current| (current.number, current.digest));
        self.act(who, number, vote(opinion, edition, digest))
    }

    fn approve(&mut self, who: &str, number: u64) {
        self.vote(who, number, Opinion::Approval).unwrap();
    }

    /// A command with a change request as its source, as it is now.
    fn with_change(&self, who: &str, number: u64, command: Command) -> Proposal {
        let current = self.state.change(&id(number)).map(|change| change.edition.clone());
        let (edition, digest) = current.map_or((1, [1; 32]), |current| (current.number, current.digest));
        let source = Source::Change(ChangeUse { id: id(number), edition, digest });
        Proposal { tail: Tail::of(source, Vec::new()), ..self.proposal(who, command) }
    }

    fn apply(&mut self, who: &str, number: u64) -> Result<Option<StoredChange>, Rejection> {
        let proposal = self.with_change(who, number, write("prod.d", "k"));
        self.decide(&proposal)
    }

    fn bypass(
        &mut self,
        who: &str,
        number: u64,
        command: Command,
    ) -> Result<Option<StoredChange>, Rejection> {
        let proposal = self.with_bypass(who, number, command);
        self.decide(&proposal)
    }

    fn with_bypass(&self, who: &str, number: u64, command: Command) -> Proposal {
        let source = Source::Bypass(Bypass { id: id(number), digest: [1; 32], text: "{}".into() }.into());
        Proposal { tail: Tail::of(source, Vec::new()), ..self.proposal(who, command) }
    }

    fn phase(&self, number: u64) -> Option<Phase> {
        self.state.change(&id(number)).map(|change| change.phase.clone())
    }
}

fn vote(opinion: Opinion, edition: u32, digest: [u8; 32]) -> ChangeAction {
    let comment = "because".to_owned();
    ChangeAction::Vote(NewVote { opinion, edition, digest, is_redacted: false, comment }.into())
}

fn edition_of(digest: u8, definitions: &[&str]) -> NewEdition {
    NewEdition {
        digest: [digest; 32],
        scope: Scope::Definitions(definitions.iter().map(|name| key(name)).collect()),
        text: r#"{"title":"a title"}"#.into(),
        operations: "[]".into(),
        content: Content::new(Vec::new(), [9; 32]),
        timing: Timing::default(),
    }
}

fn edition(digest: u8) -> NewEdition {
    edition_of(digest, &["prod.d"])
}

fn withdraw() -> ChangeAction {
    ChangeAction::Withdraw { comment: "no longer".into() }
}

fn not_approved(needed: u8, counted: u8) -> Rejection {
    Rejection::NotApproved { needed, counted }
}

/// What a change request is when something is done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Missing,
    Open,
    Approved,
    Rejected,
    Held,
    Applied,
    Withdrawn,
    Bypassed,
}

use Stage::{Applied, Approved, Bypassed, Held, Missing, Open, Rejected, Withdrawn};

const STAGES: [Stage; 8] = [Missing, Open, Approved, Rejected, Held, Applied, Withdrawn, Bypassed];

/// A world with the change request 1 of `ann`, at a stage.
fn at_stage(stage: Stage) -> ChangeWorld {
    let mut world = ChangeWorld::restricted();
    match stage {
        Missing => return world,
        Bypassed => {
            world.bypass("ann", 1, write("prod.d", "k")).unwrap();
            return world;
        }
        Open | Approved | Rejected | Held | Applied | Withdrawn => world.create("ann", 1),
    }
    if matches!(stage, Approved | Held | Applied) {
        world.approve("cid", 1);
    }
    match stage {
        Rejected => world.vote("cid", 1, Opinion::Rejection).unwrap(),
        Held => drop(world.done("cluster", Command::System(SystemCommand::HoldChanges))),
        Applied => drop(world.apply("dan", 1).unwrap()),
        Withdrawn => world.act("ann", 1, withdraw()).unwrap(),
        Missing | Open | Approved | Bypassed => {}
    }
    world
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    Create,
    Edit,
    Vote(Opinion),
    Withdraw,
    Apply,
}

const DEEDS: [Deed; 7] = [
    Deed::Create,
    Deed::Edit,
    Deed::Vote(Opinion::Approval),
    Deed::Vote(Opinion::Rejection),
    Deed::Vote(Opinion::Review),
    Deed::Withdraw,
    Deed::Apply,
];

const EVERYBODY: [&str; 7] = ["root", "ann", "ann2", "bob", "cid", "bot", "eve"];

/// What the page says: by hand, and not by what the code says of itself.
fn expected(stage: Stage, deed: Deed, who: &str) -> Result<(), Rejection> {
    use Rejection::{
        ChangeClosed, ChangeExists, ChangeHeld, ChangeNotFound, EditionRejected, KeyNotAttested, OwnChange,
    };
    let of_voter = || match who {
        "root" | "bot" | "eve" => Err(KeyNotAttested),
        "ann" | "ann2" => Err(OwnChange),
        _ => Ok(()),
    };
    match (deed, stage) {
        (Deed::Create, Missing) => Ok(()),
        (Deed::Create, _) => Err(ChangeExists),
        (_, Missing) => Err(ChangeNotFound),
        (Deed::Edit | Deed::Withdraw, Open | Approved | Rejected | Held) => Ok(()),
        (Deed::Edit | Deed::Withdraw, Applied | Withdrawn | Bypassed) => Err(ChangeClosed),
        (Deed::Vote(Opinion::Review), Bypassed) => of_voter(),
        (Deed::Vote(Opinion::Review), _) => Err(ChangeNotFound),
        (Deed::Vote(_), Open | Approved | Rejected) => of_voter(),
        (Deed::Vote(_) | Deed::Apply, Held) => Err(ChangeHeld),
        (Deed::Vote(_) | Deed::Apply, Applied | Withdrawn | Bypassed) => Err(ChangeClosed),
        (Deed::Apply, Open) => Err(not_approved(1, 0)),
        (Deed::Apply, Approved) => Ok(()),
        (Deed::Apply, Rejected) => Err(EditionRejected),
    }
}

#[test]
fn every_deed_of_everybody_is_judged_at_every_stage() {
    for stage in STAGES {
        for deed in DEEDS {
            for who in EVERYBODY {
                let mut world = at_stage(stage);
                let before = world.state.digest();
                let done = match deed {
                    Deed::Create => world.act(who, 1, ChangeAction::Create(edition(1).into())),
                    Deed::Edit => world.edit(who, 1, 2),
                    Deed::Vote(opinion) => world.vote(who, 1, opinion),
                    Deed::Withdraw => world.act(who, 1, withdraw()),
                    Deed::Apply => world.apply(who, 1).map(drop),
                };
                assert_eq!(done, expected(stage, deed, who), "{deed:?} by {who} at {stage:?}");
                assert_eq!(world.state.digest() == before, done.is_err(), "{deed:?} by {who} at {stage:?}");
                let after = world.phase(1);
                let is_right = match (&done, deed) {
                    (Err(_), _) | (Ok(()), Deed::Vote(_)) => after == at_stage(stage).phase(1),
                    (Ok(()), Deed::Create | Deed::Edit) => after == Some(Phase::Open),
                    (Ok(()), Deed::Withdraw) => {
                        matches!(after, Some(Phase::Closed { reason: CloseReason::Withdrawn, .. }))
                    }
                    (Ok(()), Deed::Apply) => matches!(after, Some(Phase::Applied { .. })),
                };
                assert!(is_right, "{deed:?} by {who} at {stage:?}: {after:?}");
                expect_sound(&world.state);
            }
        }
    }
}

/// What holds of every state.
fn expect_sound(state: &State) {
    let mut contents = 0;
    for record in state.changes() {
        let change = record.change().unwrap();
        let id = ChangeId::parse(record.name.as_str()).unwrap();
        assert_eq!(state.change_content(&id).is_some(), change.is_pending(), "{id}");
        let is_possible = change.revert.as_ref().is_some_and(Revert::is_possible);
        assert_eq!(state.change_before(&id).is_some(), is_possible, "{id}");
        contents += u64::from(change.is_pending()) + u64::from(is_possible);
    }
    assert_eq!(state.change_contents().count() as u64, contents);
    assert_eq!(state.pending_changes().count() as u64, state.pending_change_count());
    let mut builder = StateBuilder::new();
    for key in state.access_keys() {
        builder.access_key((**key).clone()).unwrap();
    }
    // In the other order, as sled reads them when the keys of its rows are hashed.
    let mut records: Vec<&Arc<SystemRecord>> = state.system_records().collect();
    records.reverse();
    for record in records {
        builder.system_record((**record).clone()).unwrap();
    }
    let built = builder.finish(state.revision(), state.last_at()).unwrap();
    assert_eq!(format!("{:?}", built.changes), format!("{:?}", state.changes));
}

#[test]
fn the_cluster_itself_neither_acts_on_a_change_request_nor_applies_one() {
    for action in [ChangeAction::Create(edition(1).into()), withdraw(), vote(Opinion::Approval, 1, [1; 32])] {
        let mut world = at_stage(Open);
        assert_eq!(world.act("cluster", 1, action), Err(Rejection::Unauthored));
    }
    let mut world = at_stage(Approved);
    assert_eq!(world.apply("cluster", 1).unwrap_err(), Rejection::Unauthored);
}

fn rules_of(name: &str) -> Scope {
    Scope::Environment(EnvironmentName::parse(name).unwrap())
}

#[test]
fn an_approval_counts_for_one_edition_and_digest() {
    let mut world = at_stage(Approved);
    // Another digest or edition than the current ones: neither for a vote nor for an apply.
    for (edition, digest) in [(1, [2; 32]), (2, [1; 32]), (0, [1; 32])] {
        let other = vote(Opinion::Approval, edition, digest);
        assert_eq!(world.act("bob", 1, other), Err(Rejection::ChangeDigest));
        let source = Source::Change(ChangeUse { id: id(1), edition, digest });
        let tail = Tail::of(source, Vec::new());
        let proposal = Proposal { tail, ..world.proposal("bob", write("prod.d", "k")) };
        assert_eq!(world.decide(&proposal).unwrap_err(), Rejection::ChangeDigest);
    }
    // An edit voids the approval, also one with the same content.
    world.edit("ann", 1, 1).unwrap();
    assert_eq!(world.apply("dan", 1).unwrap_err(), not_approved(1, 0));
    world.approve("cid", 1);
    assert!(world.apply("dan", 1).is_ok());
}

#[test]
fn nobody_approves_what_they_or_their_person_sent() {
    let mut world = ChangeWorld::restricted();
    world.create("ann", 1);
    world.edit("bob", 1, 2).unwrap();
    for who in ["ann", "ann2", "bob"] {
        assert_eq!(world.vote(who, 1, Opinion::Approval), Err(Rejection::OwnChange), "{who}");
        assert_eq!(world.vote(who, 1, Opinion::Rejection), Err(Rejection::OwnChange), "{who}");
    }
    world.approve("cid", 1);
    let approvals = world.state.approvals(world.state.change(&id(1)).unwrap());
    assert_eq!((approvals.needed, approvals.counted.len(), approvals.suffice()), (1, 1, true));
}

#[test]
fn an_edition_of_a_key_that_is_not_attested_needs_one_more() {
    for (who, needed) in [("ann", 1), ("root", 2), ("bot", 2), ("eve", 2)] {
        let mut world = ChangeWorld::restricted();
        world.create(who, 1);
        assert_eq!(world.apply("dan", 1).unwrap_err(), not_approved(needed, 0), "{who}");
        world.approve("bob", 1);
        if needed == 2 {
            assert_eq!(world.apply("dan", 1).unwrap_err(), not_approved(2, 1), "{who}");
            // Two approvals of one person are one.
            world.make_key("root", "bob2", Some("bob"), Quota::default());
            world.approve("bob2", 1);
            assert_eq!(world.apply("dan", 1).unwrap_err(), not_approved(2, 1), "{who}");
            world.approve("cid", 1);
        }
        world.apply("dan", 1).unwrap();
    }
    // Where nobody asks for approvals, none is needed.
    let mut world = ChangeWorld::new();
    world.rules("prod", Environment { direct: Direct::Refuse, ..Environment::default() });
    world.create("root", 1);
    world.apply("bot", 1).unwrap();
}

#[test]
fn an_approval_counts_while_its_key_has_the_same_attestation() {
    let change = |expires_at: Option<u64>| AccessCommand::Change {
        id: key_id("cid"),
        terms: KeyTerms { expires_at: expires_at.map(Timestamp), ..terms(Quota::default()) },
        expect: Expect::Any,
    };
    let rotate =
        || AccessCommand::Rotate { id: key_id("cid"), sha256: [3; 32], grace_us: 0, expect: Expect::Any };
    let revoke = || AccessCommand::Revoke { id: key_id("cid"), expect: Expect::Any };
    let cases: [(&str, AccessCommand, u8); 6] = [
        ("bot", revoke(), 0),
        ("bot", rotate(), 0),
        ("root", rotate(), 0),
        ("cid", rotate(), 1),
        ("bot", change(Some(NOW + HOUR)), 0),
        ("root", change(Some(NOW + HOUR)), 1),
    ];
    for (who, command, counted) in cases {
        let mut world = at_stage(Approved);
        let text = format!("{command:?} by {who}");
        world.done(who, Command::Access(command));
        world.at += 2 * HOUR;
        let applied = world.apply("dan", 1).map(drop);
        assert_eq!(applied, if counted > 0 { Ok(()) } else { Err(not_approved(1, 0)) }, "{text}");
    }
    // After another attestation, the person approves again.
    let mut world = at_stage(Approved);
    world.done("root", Command::Access(rotate()));
    assert_eq!(world.apply("dan", 1).unwrap_err(), not_approved(1, 0));
    world.approve("cid", 1);
    world.apply("dan", 1).unwrap();
}

#[test]
fn one_rejection_stops_an_edition_and_is_shown_with_later_ones() {
    let mut world = at_stage(Rejected);
    world.approve("bob", 1);
    assert_eq!(world.apply("dan", 1).unwrap_err(), Rejection::EditionRejected);
    world.edit("ann", 1, 2).unwrap();
    let votes = &world.state.change(&id(1)).unwrap().votes;
    assert_eq!(
        votes.iter().map(|vote| (vote.opinion, vote.edition)).collect::<Vec<_>>(),
        [(Opinion::Rejection, 1)]
    );
    assert_eq!(world.apply("dan", 1).unwrap_err(), not_approved(1, 0));
    // Whoever has rejected an edition may think again.
    world.vote("cid", 1, Opinion::Rejection).unwrap();
    world.approve("cid", 1);
    assert_eq!(world.state.change(&id(1)).unwrap().votes.len(), 2);
    world.apply("dan", 1).unwrap();
}

#[test]
fn the_rules_right_before_the_entry_decide() {
    let asking = |approvals| Environment { approvals, ..refusing() };
    let mut world = at_stage(Approved);
    world.rules("prod", asking(2));
    assert_eq!(world.apply("dan", 1).unwrap_err(), not_approved(2, 1));
    world.rules("prod", Environment { freezes: frozen(NOW, NOW + HOUR).freezes, ..asking(1) });
    let until = Timestamp(NOW + HOUR);
    let is_frozen = || Rejection::EnvironmentFrozen { environment: key("prod"), until };
    assert_eq!(world.apply("dan", 1).unwrap_err(), is_frozen());
    // A freeze is judged by the time of all steps, as that of direct writes is.
    world.at = until.0 - 1;
    let proposal = world.with_change("dan", 1, write("prod.d", "k"));
    assert_eq!(world.decide(&proposal).unwrap_err(), is_frozen());
    world.at = until.0;
    world.apply("dan", 1).unwrap();
    // The strictest of all environments that the change request touches.
    let mut world = ChangeWorld::restricted();
    world.rules("dev", asking(3));
    world.rules("default", asking(2));
    for (number, definitions, needed) in
        [(1, vec!["prod.d"], 1), (2, vec!["dev.d", "prod.d"], 3), (3, vec!["new", "prod.d"], 2)]
    {
        world.act("ann", number, ChangeAction::Create(edition_of(1, &definitions).into())).unwrap();
        assert_eq!(world.apply("dan", number).unwrap_err(), not_approved(needed, 0), "{definitions:?}");
    }
}

#[test]
fn a_base_or_guard_that_is_another_one_makes_an_apply_stale() {
    let world = ChangeWorld::restricted();
    let state = &world.state;
    let found = state.definition("prod.d").unwrap();
    let (definition, revision) = (found.definition.id, found.definition.revision);
    let config = found.config("k").unwrap().revision;
    let bob = state.access_key(&key_id("bob")).unwrap().revision;
    let rules = state.environment("prod").unwrap().revision;
    let then = |id, revision| Some(DefinitionThen { id, revision });
    let guard = |key_text: &str, was| Guard::Definition { key: key(key_text), was };
    let of_config = |name: &str, revision| Guard::Config { definition, key: key(name), revision };
    let environment = |name: &str, revision| Guard::Environment { name: key(name), revision };
    let bob_is = |id: &str, revision| Guard::AccessKey { id: key_id(id), revision };
    let configs = |newest, count| Guard::Configs { definition, newest, count };
    let cases = [
        (of_config("k", Some(config)), true),
        (of_config("k", Some(config + 1)), false),
        (of_config("k", None), false),
        (of_config("other", None), true),
        (of_config("other", Some(config)), false),
        (Guard::Config { definition: definition + 1, key: key("k"), revision: Some(config) }, false),
        (guard("prod.d", then(definition, revision)), true),
        (guard("prod.d", then(definition, revision + 1)), false),
        (guard("prod.d", then(definition + 1, revision)), false),
        (guard("prod.d", None), false),
        (guard("prod.gone", None), true),
        (guard("prod.gone", then(definition, revision)), false),
        (configs(config, 1), true),
        (configs(config, 2), false),
        (configs(config + 1, 1), false),
        (Guard::Configs { definition: definition + 1, newest: config, count: 1 }, false),
        (bob_is("bob", bob), true),
        (bob_is("bob", bob + 1), false),
        (bob_is("gone", bob), false),
        (environment("prod", Some(rules)), true),
        (environment("prod", Some(rules + 1)), false),
        (environment("prod", None), false),
        (environment("other", None), true),
    ];
    for (guard, holds) in cases {
        assert_eq!(state.failed_guard(std::slice::from_ref(&guard)).is_none(), holds, "{guard:?}");
        // As a base.
        let mut world = ChangeWorld { state: world.state.clone(), at: world.at };
        let mut edition = edition(1);
        edition.content.bases = vec![guard.clone()];
        world.act("ann", 1, ChangeAction::Create(edition.into())).unwrap();
        world.approve("bob", 1);
        let proposal = world.with_change("dan", 1, write("prod.d", "k"));
        let before = world.state.digest();
        let (verdict, change) = world.propose(&proposal);
        assert_eq!(verdict == Verdict::Stale, !holds, "{guard:?}: {verdict:?}");
        assert_eq!((change.is_some(), world.state.digest() == before), (holds, !holds));
        // As a guard of a direct write.
        let mut world = ChangeWorld { state: world.state.clone(), at: world.at };
        let tail = Tail::of(Source::Direct, vec![guard.clone()]);
        let proposal = Proposal { tail, ..world.proposal("root", write("dev.d", "k")) };
        let still_holds = world.state.failed_guard(std::slice::from_ref(&guard)).is_none();
        let (verdict, _) = world.propose(&proposal);
        assert_eq!(verdict == Verdict::Stale, !still_holds, "{guard:?}: {verdict:?}");
    }
}

#[test]
fn a_change_request_is_applied_once_with_its_record_in_the_same_change() {
    let mut world = at_stage(Approved);
    let content = world.state.change_content_record("000000000001-1").cloned().unwrap();
    let change = world.apply("dan", 1).unwrap().unwrap();
    let [
        Edit::Config { after: Some(config), .. },
        Edit::System { before: None, after: Some(before) },
        Edit::System { before: Some(gone), after: None },
        Edit::System { before: Some(_), after: Some(record) },
    ] = &change.edits[..]
    else {
        panic!("{change:?}")
    };
    assert_eq!((gone, config.revision), (&content, change.revision));
    assert_eq!((record.revision, record.modified_at), (change.revision, change.at));
    let Phase::Applied { revision, at, by, with: AppliedWith::Approvals(approvers), scheduled_by: None } =
        &record.change().unwrap().phase
    else {
        panic!("{record:?}")
    };
    let party = |who: &str| world.state.party(&world.author(who)).unwrap().party;
    assert_eq!((*revision, *at, by), (change.revision, change.at, &Some(party("dan"))));
    let until = Timestamp(change.at.0 + REVERT_BY_HAND_US);
    let Some(Revert::ByHand { until: found, .. }) = &record.change().unwrap().revert else { panic!() };
    assert_eq!((*found, before.content().unwrap().before.len()), (until, 1));
    assert_eq!(approvers[..], [party("cid")]);
    // The content is in no history, the record is.
    assert_eq!(change.edits.iter().map(Edit::is_in_history).collect::<Vec<_>>(), [true, false, false, true]);
    assert_eq!(world.apply("dan", 1).unwrap_err(), Rejection::ChangeClosed);
    expect_sound(&world.state);
}

#[test]
fn a_retry_of_an_apply_gets_the_same_outcome_and_a_rejection_is_not_remembered() {
    let mut world = at_stage(Open);
    let request = Some(IdempotencyKey { id: [1; 16], fingerprint: [2; 16] });
    let proposal =
        |world: &ChangeWorld| Proposal { request, ..world.with_change("dan", 1, write("prod.d", "k")) };
    let first = proposal(&world);
    assert_eq!(world.decide(&first).unwrap_err(), not_approved(1, 0));
    assert_eq!(world.state.request_count(), 0);
    world.approve("cid", 1);
    let second = proposal(&world);
    let (verdict, change) = world.propose(&second);
    assert!(matches!(&verdict, Verdict::Decided(Ok(_))) && change.is_some(), "{verdict:?}");
    assert_eq!(world.propose(&second), (verdict, None));
}

#[test]
fn from_level_2_on_no_rejection_about_a_change_request_is_stored_for_a_retry() {
    for level in [LEVEL_MIN, ROLLOUTS] {
        let mut world = at_stage(Approved);
        if level == ROLLOUTS {
            let raise = world.proposal("cluster", Command::RaiseFeatureLevel { to: level });
            world.decide(&raise).unwrap();
        }
        let action = ChangeAction::Schedule { edition: 1, digest: [1; 32] };
        let schedule = world.proposal("dan", Command::System(SystemCommand::Change { id: id(1), action }));
        let delete =
            Command::DeleteConfig { definition: key("prod.d"), key: key("none"), expect: Expect::Any };
        let apply = world.with_change("dan", 1, delete);
        let revoke = AccessCommand::Revoke { id: key_id("nobody"), expect: Expect::Any };
        let other = world.proposal("root", Command::Access(revoke));
        let mut stored = Vec::new();
        for (number, proposal) in (1..).zip([schedule, apply, other]) {
            let request = IdempotencyKey { id: [number; 16], fingerprint: [2; 16] };
            let proposal = Proposal { request: Some(request), ..proposal };
            assert!(matches!(world.propose(&proposal).0, Verdict::Decided(Err(_))), "{proposal}");
            stored.push(world.state.remembered(&request.id).is_some());
        }
        assert_eq!(stored, [level == LEVEL_MIN, level == LEVEL_MIN, true], "level {level}");
    }
}

#[test]
fn what_is_rejected_or_exceeds_a_quota_leaves_the_change_request_open() {
    let mut world = at_stage(Approved);
    let batch = Command::Batch(vec![
        step(write("prod.d", "k")),
        step(Command::DeleteConfig { definition: key("prod.d"), key: key("none"), expect: Expect::Any }),
    ]);
    let proposal = world.with_change("dan", 1, batch);
    let before = world.state.digest();
    let rejection = Rejection::InBatch { index: 1, rejection: Rejection::ConfigNotFound.into() };
    assert_eq!(world.decide(&proposal).unwrap_err(), rejection);
    assert_eq!((world.phase(1), world.state.digest()), (Some(Phase::Open), before));
    // The applier's quota counts.
    let quota = Quota { records: Some(1), ..Quota::default() };
    let grants = Grants(vec![concord_model::access_key::Grant {
        verbs: [concord_model::access_key::Verb::Write].into_iter().collect(),
        definitions: vec![concord_model::access_key::Pattern::parse("*").unwrap()],
    }]);
    let terms = KeyTerms { grants, ..terms(quota) };
    let create = AccessCommand::Create { id: key_id("poor"), terms, sha256: [1; 32], person: None };
    world.done("root", Command::Access(create));
    let before = world.state.digest();
    let exceeded = |rejection: Rejection| {
        matches!(rejection, Rejection::QuotaExceeded { quota: StoredQuota::Records, .. })
    };
    let proposal = world.with_change("poor", 1, write("prod.d", "new"));
    assert!(exceeded(world.decide(&proposal).unwrap_err()));
    assert!(exceeded(world.bypass("poor", 2, write("prod.d", "new")).unwrap_err()));
    assert_eq!((world.phase(1), world.phase(2), world.state.digest()), (Some(Phase::Open), None, before));
    // A direct write is rejected by the rules, and makes nothing either.
    let direct = world.proposal("dan", write("prod.d", "k"));
    assert_eq!(world.decide(&direct).unwrap_err(), Rejection::ChangeRequired { environment: key("prod") });
}

#[test]
fn a_bypass_makes_a_record_that_waits_for_the_review_of_others() {
    for (who, needed) in [("ann", 1), ("root", 2), ("bot", 2)] {
        let mut world = ChangeWorld::restricted();
        world.rules("prod", Environment { freezes: frozen(NOW, NOW + HOUR).freezes, ..refusing() });
        let before = world.state.unreviewed_bypass_count();
        let change = world.bypass(who, 1, write("prod.d", "k")).unwrap().unwrap();
        let record = world.state.change_record(id(1).as_str()).unwrap();
        let bypass = record.change().unwrap();
        assert!(bypass.is_bypass() && bypass.ended_at() == Some(change.at));
        assert_eq!(bypass.edition.scope, Scope::Definitions(vec![key("prod.d")]));
        assert_eq!((bypass.reviews_missing(), record.revision), (needed, change.revision));
        assert_eq!(world.state.unreviewed_bypass_count(), before + 1);
        assert_eq!(world.bypass(who, 1, write("prod.d", "k")).unwrap_err(), Rejection::ChangeExists);
        let other = vote(Opinion::Review, 1, [2; 32]);
        assert_eq!(world.act("bob", 1, other), Err(Rejection::ChangeDigest));
        for (reviewer, missing) in [("bob", needed - 1), ("bob", needed - 1), ("cid", 0)] {
            world.vote(reviewer, 1, Opinion::Review).unwrap();
            assert_eq!(world.state.change(&id(1)).unwrap().reviews_missing(), missing);
        }
        assert_eq!(world.state.unreviewed_bypass_count(), before);
        expect_sound(&world.state);
    }
}

#[test]
fn rules_change_by_a_change_request_of_the_environment_alone() {
    let mut world = ChangeWorld::restricted();
    let loosened = || put("prod", Environment::default());
    let sent = NewEdition { scope: rules_of("prod"), ..edition(1) };
    world.act("ann", 1, ChangeAction::Create(sent.into())).unwrap();
    let proposal = world.with_change("dan", 1, loosened());
    assert_eq!(world.decide(&proposal).unwrap_err(), not_approved(1, 0));
    world.approve("cid", 1);
    for other in [put("dev", refusing()), write("prod.d", "k")] {
        let proposal = world.with_change("dan", 1, other);
        assert_eq!(world.decide(&proposal).unwrap_err(), Rejection::ChangeDigest);
    }
    let proposal = world.with_change("dan", 1, loosened());
    let change = world.decide(&proposal).unwrap().unwrap();
    assert_eq!(world.state.environment("prod").unwrap().revision, change.revision);
    assert!(matches!(world.phase(1), Some(Phase::Applied { .. })));
    // A new record that keeps the freezes of `default` leaves nothing, and one that does not waits.
    let mut world = ChangeWorld::new();
    let freezes = frozen(NOW, NOW + HOUR).freezes;
    world.rules("default", Environment { freezes: freezes.clone(), ..Environment::default() });
    let sent = NewEdition { scope: rules_of("prod"), ..edition(1) };
    world.act("ann", 1, ChangeAction::Create(sent.into())).unwrap();
    let proposal = world.with_change("dan", 1, loosened());
    assert!(matches!(world.decide(&proposal), Err(Rejection::EnvironmentFrozen { .. })));
    let proposal = world.with_change("dan", 1, put("prod", Environment { freezes, ..refusing() }));
    world.decide(&proposal).unwrap();
}

#[test]
fn an_id_is_that_of_one_request() {
    let mut world = ChangeWorld::new();
    let create = |world: &ChangeWorld, at: u8, fingerprint: Option<u8>| {
        let action = ChangeAction::Create(edition(1).into());
        let request = fingerprint.map(|of| IdempotencyKey { id: [at; 16], fingerprint: [of; 16] });
        let command = Command::System(SystemCommand::Change { id: id(1), action });
        Proposal { request, ..world.proposal("ann", command) }
    };
    let first = create(&world, 1, Some(7));
    world.decide(&first).unwrap();
    let (mut same, mut other) = (create(&world, 2, Some(7)), create(&world, 3, Some(8)));
    assert_eq!(world.decide(&same).unwrap_err(), Rejection::ChangeExists);
    assert_eq!(world.decide(&other).unwrap_err(), Rejection::RequestReused);
    // Also when it has ended, and the outcome of the request is forgotten.
    world.act("ann", 1, withdraw()).unwrap();
    (same, other) = (create(&world, 4, Some(7)), create(&world, 5, None));
    assert_eq!(world.decide(&same).unwrap_err(), Rejection::ChangeExists);
    assert_eq!(world.decide(&other).unwrap_err(), Rejection::RequestReused);
}

#[test]
fn an_edition_replaces_the_one_that_its_sender_saw() {
    let mut world = at_stage(Open);
    let edit = |after, expect| ChangeAction::Edit { after, expect, edition: edition(2).into() };
    let current = world.state.change_record(id(1).as_str()).unwrap().revision;
    let verdict = |world: &ChangeWorld, action: ChangeAction| {
        let command = Command::System(SystemCommand::Change { id: id(1), action });
        let mut state = world.state.clone();
        state.apply(state.revision() + 1, &world.proposal("ann", command)).0
    };
    assert_eq!(verdict(&world, edit(2, Expect::Any)), Verdict::Stale);
    assert_eq!(verdict(&world, edit(1, Expect::Read(Some(current - 1)))), Verdict::Stale);
    let failed = Err(Rejection::Precondition { current });
    assert_eq!(verdict(&world, edit(1, Expect::At(current - 1))), Verdict::Decided(failed));
    for expect in [Expect::Any, Expect::At(current), Expect::Read(Some(current))] {
        assert!(matches!(verdict(&world, edit(1, expect)), Verdict::Decided(Ok(_))));
    }
    world.edit("bob", 1, 2).unwrap();
    let change = world.state.change(&id(1)).unwrap();
    assert_eq!((change.edition.number, change.edition.digest), (2, [2; 32]));
    let party = |who: &str| world.state.party(&world.author(who)).unwrap().party;
    assert_eq!(change.authors, [party("ann"), party("bob")]);
    assert_eq!(change.edition.sender, party("bob"));
    assert!(world.state.change_content_record("000000000001-1").is_none());
    assert!(world.state.change_content_record("000000000001-2").is_some());
}
