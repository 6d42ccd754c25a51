//! Times of change requests: what the cluster applies by itself, and when.

mod ends;
mod reverts;

use super::*;
use crate::change::time::{Deed, Due};
use concord_model::{
    command::source::RevertUse,
    error::{NotDue, NotRevertible},
    limits::{
        FAILED_CHANGES_MAX, FAILURE_BYTES_MAX, KEPT_BEFORE_BYTES_MAX, KEPT_BEFORE_BYTES_MIN,
        REVERT_AFTER_S_MAX, REVERT_BYTES_MAX,
    },
    system::change::{ApplyMode, DataBefore, Failure, RevertedBy, Window},
};

const MANUAL: Timing = Timing { apply: ApplyMode::Manual, window: None, revert_after_s: None };
const WHEN_APPROVED: Timing = Timing { apply: ApplyMode::WhenApproved, ..MANUAL };

fn window(not_before: u64, not_after: u64) -> Window {
    Window { not_before: Timestamp(not_before), not_after: Timestamp(not_after) }
}

/// The window of the tests.
const BEGIN: u64 = NOW + HOUR;
const END: u64 = NOW + 2 * HOUR;

fn scheduled() -> Timing {
    Timing { window: Some(window(BEGIN, END)), ..MANUAL }
}

/// Taken back after an hour.
fn armed() -> Timing {
    Timing { revert_after_s: Some(3600), ..MANUAL }
}

fn put_data(name: &str, data: &str) -> Command {
    let (definition, key, entries) = (key("prod.d"), key(name), Box::default());
    Command::WriteConfig { definition, key, data: data.into(), entries, expect: Expect::Any }
}

fn delete_config(name: &str) -> Command {
    Command::DeleteConfig { definition: key("prod.d"), key: key(name), expect: Expect::Any }
}

fn not_due(why: NotDue) -> Rejection {
    Rejection::ChangeNotDue(why)
}

fn over() -> Rejection {
    Rejection::NotRevertible(NotRevertible::Over)
}

fn not_applied() -> Rejection {
    Rejection::NotRevertible(NotRevertible::NotApplied)
}

fn failure() -> Failure {
    Failure { code: "not_unique".into(), text: "a text".into() }
}

impl ChangeWorld {
    /// What a config of `prod.d` is.
    fn base(&self, name: &str) -> Guard {
        let found = self.state.definition("prod.d").unwrap();
        let revision = found.config(name).map(|config| config.revision);
        Guard::Config { definition: found.definition.id, key: key(name), revision }
    }

    fn timed(&self, timing: Timing, configs: &[&str]) -> NewEdition {
        let bases = configs.iter().map(|name| self.base(name)).collect();
        NewEdition { timing, content: Content::new(bases, [9; 32]), ..edition(1) }
    }

    /// Creates a change request of these configs.
    fn create_timed(&mut self, number: u64, timing: Timing, configs: &[&str]) -> Result<(), Rejection> {
        let edition = self.timed(timing, configs).into();
        self.act("ann", number, ChangeAction::Create(edition))
    }

    fn schedule(&mut self, who: &str, number: u64) -> Result<(), Rejection> {
        let current = self.state.change(&id(number)).map(|change| change.edition.clone());
        let (edition, digest) = current.map_or((1, [1; 32]), |current| (current.number, current.digest));
        self.act(who, number, ChangeAction::Schedule { edition, digest })
    }

    fn fail(&mut self, who: &str, number: u64) -> Result<(), Rejection> {
        let edition = self.state.change(&id(number)).map_or(1, |change| change.edition.number);
        self.act(who, number, ChangeAction::Fail { edition, failure: failure() })
    }

    fn fail_revert(&mut self, who: &str, number: u64) -> Result<(), Rejection> {
        self.act(who, number, ChangeAction::FailRevert { edition: 1, failure: failure() })
    }

    fn apply_data(&mut self, who: &str, number: u64, command: Command) -> Result<(), Rejection> {
        let proposal = self.with_change(who, number, command);
        self.decide(&proposal).map(drop)
    }

    /// The command that takes a change request back.
    fn back(&self, number: u64) -> Command {
        let content = self.state.change_before(&id(number)).unwrap();
        let name = |base: &Guard| {
            let Guard::Config { key, .. } = base else { panic!("{base:?}") };
            key.to_string()
        };
        let one = |(base, before): (&Guard, &Option<_>)| match before {
            Some(DataBefore { data }) => put_data(&name(base), data),
            None => delete_config(&name(base)),
        };
        let all = content.bases.iter().zip(&content.before).map(one);
        Command::Batch(all.map(step).collect())
    }

    fn with_revert(&self, who: &str, (number, is_bypass): (u64, bool), command: Command) -> Proposal {
        let source = Source::Revert(RevertUse { id: id(number), edition: 1, is_bypass });
        Proposal { tail: Tail::of(source, Vec::new()), ..self.proposal(who, command) }
    }

    fn revert(&mut self, who: &str, number: u64, is_bypass: bool) -> Result<Option<StoredChange>, Rejection> {
        let command = match self.state.change_before(&id(number)) {
            Some(_) => self.back(number),
            None => write("prod.d", "k"),
        };
        let proposal = self.with_revert(who, (number, is_bypass), command);
        self.decide(&proposal)
    }

    fn found(&self, number: u64) -> &Change {
        self.state.change(&id(number)).unwrap()
    }

    fn data(&self, name: &str) -> Option<String> {
        Some(self.state.definition("prod.d")?.config(name)?.data.to_string())
    }

    fn due(&self, now: u64) -> Vec<(Deed, u64)> {
        let number = |due: Due<'_>| (due.deed, due.record.name.as_str().parse().unwrap());
        self.state.due_changes(Timestamp(now)).map(number).collect()
    }

    fn sweep(&mut self, now: u64) {
        let proposal =
            self.proposal("cluster", Command::System(SystemCommand::SweepChanges { now: Timestamp(now) }));
        self.decide(&proposal).unwrap();
    }

    fn hold(&mut self) {
        let proposal = self.proposal("cluster", Command::System(SystemCommand::HoldChanges));
        self.decide(&proposal).unwrap();
    }
}

/// A change request 1 of `ann` with these times, which `cid` has approved.
fn approved(timing: Timing, configs: &[&str]) -> ChangeWorld {
    let mut world = ChangeWorld::restricted();
    world.create_timed(1, timing, configs).unwrap();
    world.approve("cid", 1);
    world
}

/// One that has changed `k`, created `new`, and is taken back after an hour.
fn applied_and_armed() -> ChangeWorld {
    let mut world = approved(armed(), &["k", "new"]);
    let both = Command::Batch(vec![step(put_data("k", r#"{"a":1}"#)), step(put_data("new", "{}"))]);
    world.apply_data("dan", 1, both).unwrap();
    world
}

#[test]
fn an_edition_has_times_that_can_come() {
    let day = 24 * HOUR;
    let mut world = ChangeWorld::restricted();
    world.create("ann", 2);
    let at = world.at;
    let schedule = || Err(Rejection::ChangeTooLarge(ChangeBound::Schedule));
    let revert = || Err(Rejection::ChangeTooLarge(ChangeBound::RevertAfter));
    let of = |window| Timing { window: Some(window), ..MANUAL };
    let after = |seconds| Timing { revert_after_s: Some(seconds), ..MANUAL };
    let cases = [
        (of(window(at + HOUR, at + 2 * HOUR)), Ok(())),
        (of(window(0, at + 1)), Ok(())),
        (of(window(0, at)), schedule()),
        (of(window(at + HOUR, at + HOUR)), schedule()),
        (of(window(at + 2 * HOUR, at + HOUR)), schedule()),
        (of(window(at, at + 30 * day)), Ok(())),
        (of(window(at, at + 30 * day + 1)), schedule()),
        (of(window(u64::MAX - 1, u64::MAX)), schedule()),
        (after(0), revert()),
        (after(1), Ok(())),
        (after(REVERT_AFTER_S_MAX), Ok(())),
        (after(REVERT_AFTER_S_MAX + 1), revert()),
    ];
    for (timing, expected) in cases {
        let before = world.state.clone();
        let mut world = ChangeWorld { state: before.clone(), at };
        assert_eq!(world.create_timed(1, timing, &["k"]), expected, "{timing:?}");
        // The same of another edition.
        let mut world = ChangeWorld { state: before, at };
        let edition = world.timed(timing, &["k"]).into();
        let edit = ChangeAction::Edit { after: 1, expect: Expect::Any, edition };
        assert_eq!(world.act("ann", 2, edit), expected, "{timing:?}");
    }
}

#[test]
fn only_a_change_of_configs_that_are_not_too_large_is_taken_back_by_the_cluster() {
    let mut world = ChangeWorld::restricted();
    let large = |bytes: u64| format!(r#"{{"a":"{}"}}"#, "x".repeat(usize::try_from(bytes).unwrap()));
    world.bypass("root", 800, put_data("large", &large(REVERT_BYTES_MAX / 8 * 7 - 100))).unwrap();
    world.bypass("root", 801, put_data("small", &large(REVERT_BYTES_MAX / 8))).unwrap();
    let not = |why| Err(Rejection::NotRevertible(why));
    let definition = Guard::Definition { key: key("prod.e"), was: None };
    let with = |world: &ChangeWorld, timing, more: Option<&Guard>, configs: &[&str]| {
        let mut edition = world.timed(timing, configs);
        edition.content.bases.extend(more.cloned());
        let mut world = ChangeWorld { state: world.state.clone(), at: world.at };
        let done = world.act("ann", 1, ChangeAction::Create(edition.into()));
        (done, world.state.change_content_bytes())
    };
    let (too_large, not_configs) = (not(NotRevertible::TooLarge), not(NotRevertible::NotOfConfigs));
    assert_eq!(with(&world, armed(), None, &[]).0, not_configs);
    assert_eq!(with(&world, armed(), Some(&definition), &["k"]).0, not_configs);
    assert_eq!(with(&world, armed(), None, &["large", "small"]).0, too_large);
    // Without it, everything is as before.
    assert_eq!(with(&world, MANUAL, Some(&definition), &["large", "small"]).0, Ok(()));
    // What it will need is reserved from the beginning, also for configs that are not there.
    let ((plain, without), (done, reserved)) =
        (with(&world, MANUAL, None, &["large"]), with(&world, armed(), None, &["large"]));
    assert_eq!((plain, done), (Ok(()), Ok(())));
    let large = reserved - without;
    assert!((REVERT_BYTES_MAX / 8 * 7..REVERT_BYTES_MAX).contains(&large), "{large}");
    // But not by each byte: who may not see the data does not measure it.
    let lengths = |bytes: usize| {
        let mut world = ChangeWorld { state: world.state.clone(), at: world.at };
        world.bypass("root", 802, put_data("k", &"1".repeat(bytes))).unwrap();
        with(&world, armed(), None, &["k"]).1
    };
    assert_eq!(lengths(1), lengths(256));
    assert_eq!(lengths(9_000), lengths(10_000));
    assert!(lengths(10_000) < lengths(12_000));
    // And it counts for the sender, and for all.
    let mut taken = 0;
    for number in 1.. {
        let created = world.create_timed(number, armed(), &["large"]);
        if created.is_err() {
            assert_eq!(created, Err(Rejection::TooManyChanges(ChangeQuota::BytesOfParty)));
            break;
        }
        taken += 1;
    }
    assert_eq!(taken, OPEN_CHANGE_BYTES_OF_PARTY_MAX / world.found(1).edition.content_bytes);
}

#[test]
fn the_cluster_will_need_no_more_than_was_reserved() {
    // A command that changes another config, or something else, is not what was reserved.
    let others = [
        put_data("other", "{}"),
        Command::Batch(vec![step(put_data("k", "{}")), step(put_data("other", "{}"))]),
        Command::SetProtection { key: key("prod.d"), protected: true, expect: Expect::Any },
        delete("prod.d", None),
    ];
    for other in others {
        let mut world = approved(armed(), &["k"]);
        assert_eq!(world.apply_data("dan", 1, other.clone()), Err(Rejection::ChangeDigest), "{other:?}");
    }
    let mut world = applied_and_armed();
    let change = world.found(1);
    let Some(Revert::Armed { due, bytes }) = change.revert else { panic!("{change:?}") };
    assert_eq!(due.0, change.ended_at().unwrap().0 + HOUR);
    assert!(bytes <= change.edition.content_bytes);
    assert_eq!(world.state.change_content_bytes(), bytes);
    let content = world.state.change_before(&id(1)).unwrap();
    let before: Vec<Option<&str>> =
        content.before.iter().map(|before| before.as_ref().map(|before| &*before.data)).collect();
    // The last one first.
    assert_eq!(before, [None, Some("{}")]);
    // What the batch wrote first does not count: only what was there before it.
    world = approved(armed(), &["k", "new"]);
    let steps = [put_data("k", "1"), put_data("new", "2"), delete_config("new"), put_data("k", "3")];
    world.apply_data("dan", 1, Command::Batch(steps.map(step).into())).unwrap();
    let content = world.state.change_before(&id(1)).unwrap();
    assert_eq!((content.bases.len(), content.before[0].as_ref().map(|it| &*it.data)), (1, Some("{}")));
    expect_sound(&world.state);
}

#[test]
fn a_change_request_is_applied_in_its_window_by_the_time_of_the_entry() {
    let steps = |count: usize| Command::Batch(vec![step(write("prod.d", "k")); count]);
    let (before, after) = (not_due(NotDue::Before(Timestamp(BEGIN))), not_due(NotDue::After(Timestamp(END))));
    let cases = [
        (BEGIN - 1, 1, Some(&before)),
        (BEGIN - 1, 2, Some(&before)),
        (BEGIN, 1, None),
        (BEGIN, 9, None),
        (END - 1, 1, None),
        (END - 2, 2, None),
        (END - 1, 2, Some(&after)),
        (END, 1, Some(&after)),
        (END + HOUR, 1, Some(&after)),
    ];
    for (at, count, expected) in cases {
        for (who, timing) in [
            ("dan", scheduled()),
            ("cluster", scheduled()),
            ("cluster", Timing { apply: ApplyMode::WhenApproved, ..scheduled() }),
        ] {
            let mut world = approved(timing, &[]);
            if timing.apply == ApplyMode::Manual && who == "cluster" {
                world.schedule("dan", 1).unwrap();
            }
            world.at = at;
            let place = format!("{at} {count} {who} {timing:?}");
            assert_eq!(world.apply_data(who, 1, steps(count)).err().as_ref(), expected, "{place}");
            expect_sound(&world.state);
        }
    }
    // The clock of the proposer is in the window, the log's time is not any more.
    let mut world = approved(scheduled(), &[]);
    world.at = END;
    world.done("root", write("dev.d", "k"));
    world.at = BEGIN;
    assert_eq!(world.apply("dan", 1).unwrap_err(), after);
}

#[test]
fn the_cluster_applies_what_is_left_to_it_and_nothing_else() {
    // Open and manual.
    let mut world = approved(MANUAL, &[]);
    assert_eq!(world.apply("cluster", 1).unwrap_err(), Rejection::Unauthored);
    let mut world = approved(scheduled(), &[]);
    world.at = BEGIN;
    assert_eq!(world.apply("cluster", 1).unwrap_err(), Rejection::Unauthored);
    world.schedule("dan", 1).unwrap();
    // Nobody can send the same in the cluster's name in another way.
    let direct = world.proposal("cluster", write("prod.d", "k"));
    assert_eq!(world.decide(&direct).unwrap_err(), Rejection::Unauthored);
    let bypass = world.with_bypass("cluster", 2, write("prod.d", "k"));
    assert_eq!(world.decide(&bypass).unwrap_err(), Rejection::Unauthored);
    let of_cluster = world.with_change("cluster", 1, Command::Compact { compaction_revision: 1 });
    assert_eq!(world.decide(&of_cluster).unwrap_err(), Rejection::ChangeDigest);
    world.apply("cluster", 1).unwrap();
    let party = |who: &str| world.state.party(&world.author(who)).unwrap().party;
    let Some(Phase::Applied { by: None, with: AppliedWith::Approvals(approvers), scheduled_by, .. }) =
        world.phase(1)
    else {
        panic!()
    };
    assert_eq!((approvers, scheduled_by), (vec![party("cid")], Some(party("dan"))));
    assert_eq!(world.apply("cluster", 1).unwrap_err(), Rejection::ChangeClosed);
    // When it is approved.
    let mut world = ChangeWorld::restricted();
    world.create_timed(1, WHEN_APPROVED, &[]).unwrap();
    assert_eq!(world.apply("cluster", 1).unwrap_err(), not_approved(1, 0));
    world.approve("cid", 1);
    world.apply("cluster", 1).unwrap();
    assert!(matches!(world.phase(1), Some(Phase::Applied { by: None, scheduled_by: None, .. })));
    // A person may do it as well.
    approved(WHEN_APPROVED, &[]).apply("dan", 1).unwrap();
    let closed = [Withdrawn, Applied, Bypassed].map(|stage| (stage, Rejection::ChangeClosed));
    let others = [(Held, Rejection::ChangeHeld), (Missing, Rejection::ChangeNotFound)];
    for (stage, expected) in closed.into_iter().chain(others) {
        assert_eq!(at_stage(stage).apply("cluster", 1).unwrap_err(), expected, "{stage:?}");
    }
}

#[test]
fn the_cluster_applies_in_the_name_of_a_sender_whose_key_exists() {
    let revoke = |who: &str| AccessCommand::Revoke { id: key_id(who), expect: Expect::Any };
    let mut world = approved(WHEN_APPROVED, &[]);
    world.done("root", Command::Access(revoke("ann")));
    assert_eq!(world.apply("cluster", 1).unwrap_err(), Rejection::SenderEnded);
    // A person applies it in their own name.
    world.apply("dan", 1).unwrap();
    // One that has expired is there, and its quota counts.
    let grants = Grants(vec![concord_model::access_key::Grant {
        verbs: [concord_model::access_key::Verb::Write].into_iter().collect(),
        definitions: vec![concord_model::access_key::Pattern::parse("*").unwrap()],
    }]);
    for (records, is_within) in [(None, true), (Some(1), false)] {
        let mut world = ChangeWorld::restricted();
        let quota = Quota { records, ..Quota::default() };
        let expires_at = Some(Timestamp(world.at + 10));
        let terms = KeyTerms { grants: grants.clone(), expires_at, ..terms(quota) };
        let create = AccessCommand::Create { id: key_id("poor"), terms, sha256: [1; 32], person: None };
        world.done("root", Command::Access(create));
        let edition = world.timed(WHEN_APPROVED, &[]).into();
        world.act("poor", 1, ChangeAction::Create(edition)).unwrap();
        world.approve("cid", 1);
        world.approve("bob", 1);
        world.at += HOUR;
        let applied = world.apply_data("cluster", 1, write("prod.d", "new"));
        assert_eq!(applied.is_ok(), is_within, "{applied:?}");
    }
    // The root key is gone while it is disabled.
    let mut world = ChangeWorld::new();
    let keys = Grants(vec![concord_model::access_key::Grant {
        verbs: [concord_model::access_key::Verb::Keys].into_iter().collect(),
        definitions: Vec::new(),
    }]);
    let terms = KeyTerms { grants: keys, ..terms(Quota::default()) };
    let create = AccessCommand::Create { id: key_id("keys"), terms, sha256: [1; 32], person: None };
    world.done("root", Command::Access(create));
    for number in [1, 2] {
        let edition = world.timed(WHEN_APPROVED, &[]).into();
        world.act("root", number, ChangeAction::Create(edition)).unwrap();
    }
    world.apply("cluster", 1).unwrap();
    let disable = world.proposal("root", Command::Access(AccessCommand::DisableRoot));
    world.decide(&disable).unwrap();
    assert_eq!(world.apply("cluster", 2).unwrap_err(), Rejection::SenderEnded);
}

#[test]
fn a_schedule_needs_approvals_current_records_and_a_window_that_is_not_over() {
    let mut world = ChangeWorld::restricted();
    world.create_timed(1, scheduled(), &["k"]).unwrap();
    assert_eq!(world.schedule("dan", 1), Err(not_approved(1, 0)));
    assert_eq!(world.schedule("dan", 2), Err(Rejection::ChangeNotFound));
    assert_eq!(world.schedule("cluster", 1), Err(Rejection::Unauthored));
    world.approve("cid", 1);
    let other = ChangeAction::Schedule { edition: 1, digest: [2; 32] };
    assert_eq!(world.act("dan", 1, other), Err(Rejection::ChangeDigest));
    world.schedule("dan", 1).unwrap();
    world.schedule("bob", 1).unwrap();
    let bob = world.state.party(&world.author("bob")).unwrap().party;
    assert!(matches!(world.phase(1), Some(Phase::Scheduled { by, .. }) if by == bob));
    expect_sound(&world.state);
    // A rejection, an edit and a withdrawal are still possible.
    world.vote("dan", 1, Opinion::Rejection).unwrap();
    assert_eq!(world.schedule("bob", 1), Err(Rejection::EditionRejected));
    world.at = BEGIN;
    assert_eq!(world.apply("cluster", 1).unwrap_err(), Rejection::EditionRejected);
    world.edit("ann", 1, 2).unwrap();
    assert_eq!(world.phase(1), Some(Phase::Open));
}

#[test]
fn nothing_else_is_left_to_the_cluster() {
    // Without a window, or when it is approved: there is nothing to wait for.
    for timing in [MANUAL, WHEN_APPROVED, Timing { apply: ApplyMode::WhenApproved, ..scheduled() }] {
        assert_eq!(approved(timing, &[]).schedule("dan", 1), Err(not_due(NotDue::NoSchedule)));
    }
    let mut world = approved(scheduled(), &[]);
    world.at = END;
    assert_eq!(world.schedule("dan", 1), Err(not_due(NotDue::After(Timestamp(END)))));
    for (stage, expected) in [(Held, Rejection::ChangeHeld), (Applied, Rejection::ChangeClosed)] {
        assert_eq!(at_stage(stage).schedule("dan", 1), Err(expected));
    }
    // A record that it replaces is another one by now.
    let mut world = approved(scheduled(), &["k"]);
    world.bypass("root", 7, put_data("k", "1")).unwrap();
    let action = ChangeAction::Schedule { edition: 1, digest: [1; 32] };
    let command = Command::System(SystemCommand::Change { id: id(1), action });
    let proposal = world.proposal("dan", command);
    assert_eq!(world.propose(&proposal).0, Verdict::Stale);
}

#[test]
fn what_the_cluster_can_not_do_ends_with_the_reason_when_it_is_due() {
    let mut world = approved(scheduled(), &[]);
    assert_eq!(world.fail("cluster", 1), Err(Rejection::Unauthored), "nobody has left it to the cluster");
    world.schedule("dan", 1).unwrap();
    assert_eq!(world.fail("cluster", 1), Err(not_due(NotDue::Before(Timestamp(BEGIN)))));
    world.at = BEGIN;
    for who in ["root", "dan"] {
        assert_eq!(world.fail(who, 1), Err(Rejection::Unauthored), "{who}");
    }
    let other = ChangeAction::Fail { edition: 2, failure: failure() };
    assert_eq!(world.act("cluster", 1, other), Err(Rejection::ChangeDigest));
    world.fail("cluster", 1).unwrap();
    let is_failed = |phase: Option<Phase>| matches!(phase, Some(Phase::Closed { reason: CloseReason::Failed(of), by: None, .. }) if of == failure());
    assert!(is_failed(world.phase(1)));
    let failed: Vec<&Key> = world.state.failed_changes().map(|(_, record)| &record.name).collect();
    assert_eq!(failed, [id(1).key()]);
    assert_eq!(world.fail("cluster", 1), Err(Rejection::ChangeClosed));
    expect_sound(&world.state);
    // One that waits for approval does not fail. Without its sender it does.
    let mut world = ChangeWorld::restricted();
    world.create_timed(1, WHEN_APPROVED, &[]).unwrap();
    assert_eq!(world.fail("cluster", 1), Err(not_approved(1, 0)));
    world.approve("cid", 1);
    let revoke = AccessCommand::Revoke { id: key_id("ann"), expect: Expect::Any };
    world.done("root", Command::Access(revoke));
    let failure = Failure { code: "ß".repeat(300), text: "ß".repeat(3000) };
    world.act("cluster", 1, ChangeAction::Fail { edition: 1, failure }).unwrap();
    let (_, failure) = world.found(1).failure().unwrap();
    let bytes = failure.code.len() + failure.text.len();
    assert!((FAILURE_BYTES_MAX - 2..=FAILURE_BYTES_MAX).contains(&bytes), "{bytes}");
    for (stage, expected) in [(Held, Rejection::ChangeHeld), (Withdrawn, Rejection::ChangeClosed)] {
        assert_eq!(at_stage(stage).fail("cluster", 1), Err(expected));
    }
}

/// Change requests of each timing: some approved, one rejected, one scheduled, and some that need no approval.
fn some_timed() -> ChangeWorld {
    let mut world = ChangeWorld::restricted();
    let later = Timing { apply: ApplyMode::WhenApproved, ..scheduled() };
    for (number, timing) in [
        (1, WHEN_APPROVED),
        (2, later),
        (3, scheduled()),
        (4, scheduled()),
        (5, MANUAL),
        (6, WHEN_APPROVED),
        (7, WHEN_APPROVED),
    ] {
        world.create_timed(number, timing, &[]).unwrap();
        if number < 6 {
            world.approve("cid", number);
        }
    }
    world.vote("cid", 7, Opinion::Rejection).unwrap();
    // Where no approval is asked for, none is needed.
    let free = NewEdition { timing: WHEN_APPROVED, ..edition_of(1, &["dev.d"]) };
    world.act("ann", 8, ChangeAction::Create(free.into())).unwrap();
    let mixed = NewEdition { timing: later, ..edition_of(1, &["dev.d", "prod.d"]) };
    world.act("ann", 9, ChangeAction::Create(mixed.into())).unwrap();
    world.schedule("dan", 3).unwrap();
    world
}

#[test]
fn what_is_due_is_found_without_what_waits() {
    let mut world = some_timed();
    let now = world.at;
    assert!(world.state.has_timed_changes());
    assert_eq!(world.due(now), [(Deed::Apply, 1), (Deed::Apply, 8)]);
    assert_eq!(world.due(BEGIN - 1), [(Deed::Apply, 1), (Deed::Apply, 8)]);
    let all = [1, 2, 3, 8].map(|number| (Deed::Apply, number));
    assert_eq!(world.due(BEGIN), all);
    // And what is to be taken back.
    world = applied_and_armed();
    let due = world.found(1).revert.as_ref().unwrap().due().unwrap();
    assert_eq!((world.due(due.0 - 1), world.due(due.0)), (vec![], vec![(Deed::Revert, 1)]));
    assert!(world.state.has_timed_changes());
    world.at = due.0;
    world.revert("cluster", 1, false).unwrap();
    assert_eq!((world.due(due.0), world.state.has_timed_changes()), (vec![], false));
}

#[test]
fn what_is_due_follows_the_rules_and_the_attestations_of_the_moment() {
    let mut world = some_timed();
    let now = world.at;
    world.rules("prod", Environment { approvals: 2, ..refusing() });
    assert_eq!(world.due(BEGIN), [(Deed::Apply, 3), (Deed::Apply, 8)], "who has scheduled it waits for it");
    world.rules("prod", Environment { approvals: 0, ..refusing() });
    let free: Vec<u64> = world.due(BEGIN).into_iter().map(|(_, number)| number).collect();
    assert_eq!(free, [1, 2, 3, 8, 9, 6]);
    world.rules("dev", Environment { approvals: 1, ..refusing() });
    assert_eq!(world.due(now), [(Deed::Apply, 1), (Deed::Apply, 6)]);
    // An approval counts while its key has its attestation.
    world.rules("prod", refusing());
    let revoke = AccessCommand::Revoke { id: key_id("cid"), expect: Expect::Any };
    world.done("root", Command::Access(revoke));
    assert_eq!(world.due(BEGIN), [(Deed::Apply, 3)]);
    assert_eq!(world.due(END), [], "its window is over");
    world.hold();
    assert_eq!(world.due(BEGIN), []);
    assert!(!world.state.has_timed_changes());
}

#[test]
fn a_change_request_expires_when_its_window_is_over() {
    let mut world = approved(scheduled(), &[]);
    world.schedule("dan", 1).unwrap();
    world.create_timed(2, scheduled(), &[]).unwrap();
    world.create_timed(3, Timing { window: Some(window(BEGIN, END + 1)), ..WHEN_APPROVED }, &[]).unwrap();
    assert_eq!(world.found(1).expires_at(), Some(Timestamp(END)));
    // Neither the log's time alone nor the clock alone.
    for (at, now) in [(END + HOUR, END - 1), (END - 1, END + HOUR)] {
        world.at = at;
        let before = world.state.digest();
        let mut swept = ChangeWorld { state: world.state.clone(), at };
        swept.sweep(now);
        assert_eq!(swept.state.digest(), before);
    }
    world.at = END;
    let has_some = |now| world.state.has_changes_to_sweep(Timestamp(now));
    assert!(!has_some(END - 1) && has_some(END));
    world.sweep(END);
    let is_expired = |number| {
        matches!(world.phase(number), Some(Phase::Closed { reason: CloseReason::Expired, by: None, .. }))
    };
    assert_eq!([1, 2, 3].map(is_expired), [true, true, false]);
    expect_sound(&world.state);
}
