//! What is taken back, by the cluster and by hand, and what is left of that after a restore.

use super::*;
use concord_model::record::IndexEntry;

#[test]
fn the_cluster_takes_back_what_is_armed_once_and_not_before_its_time() {
    let mut world = applied_and_armed();
    let due = world.found(1).revert.as_ref().unwrap().due().unwrap();
    world.rules("prod", Environment { freezes: frozen(NOW, NOW + 9 * HOUR).freezes, ..refusing() });
    for at in [due.0 - HOUR / 2, due.0 - 1] {
        world.at = at;
        assert_eq!(world.revert("cluster", 1, false).unwrap_err(), not_due(NotDue::Before(due)), "{at}");
    }
    world.at = due.0;
    assert_eq!(world.revert("cluster", 1, true).unwrap_err(), Rejection::Unauthored);
    assert!(world.state.is_revert_possible(world.state.change_record(id(1).as_str()).unwrap()));
    let change = world.revert("cluster", 1, false).unwrap().unwrap();
    assert_eq!((world.data("k"), world.data("new")), (Some("{}".into()), None));
    let Some(Revert::Done { revision, at, by: RevertedBy::Cluster }) = world.found(1).revert else {
        panic!()
    };
    assert_eq!((revision, at), (change.revision, change.at));
    assert!(matches!(world.phase(1), Some(Phase::Applied { .. })));
    assert_eq!(world.state.change_content_bytes(), 0);
    expect_sound(&world.state);
    for who in ["cluster", "cid"] {
        assert_eq!(world.revert(who, 1, false).unwrap_err(), Rejection::ChangeClosed);
    }
    assert_eq!(world.fail_revert("cluster", 1), Err(Rejection::ChangeClosed));
}

#[test]
fn the_cluster_takes_back_exactly_what_the_configs_were_and_nothing_that_is_not_armed() {
    let mut world = applied_and_armed();
    world.at += HOUR + SECOND;
    let (k, new) = (put_data("k", "{}"), delete_config("new"));
    let batch = |parts: &[&Command]| Command::Batch(parts.iter().map(|part| step((*part).clone())).collect());
    let elsewhere = write("dev.d", "k");
    let steps = vec![(0, step(new.clone())), (1, step(k.clone()))];
    let transaction = Command::Transaction(Transaction { reads: Vec::new(), chosen: Ok(true), steps });
    for wrong in [
        batch(&[&k, &new]),
        batch(&[&new]),
        batch(&[&new, &k, &k]),
        batch(&[&new, &put_data("k", "{ }")]),
        batch(&[&put_data("new", "{}"), &k]),
        batch(&[&new, &delete_config("k")]),
        batch(&[&new, &elsewhere]),
        k.clone(),
        transaction,
        delete("prod.d", None),
        Command::Compact { compaction_revision: 1 },
    ] {
        let proposal = world.with_revert("cluster", (1, false), wrong);
        assert_eq!(world.decide(&proposal).unwrap_err(), Rejection::ChangeDigest, "{proposal}");
    }
    let proposal = world.with_revert("cluster", (1, false), batch(&[&new, &k]));
    world.decide(&proposal).unwrap();
    // Of one that is not armed it takes nothing back.
    for stage in STAGES {
        let expected = match stage {
            Missing => Rejection::ChangeNotFound,
            Open | Approved | Rejected | Held => not_applied(),
            Withdrawn => Rejection::ChangeClosed,
            Bypassed => over(),
            Applied => Rejection::Unauthored,
        };
        assert_eq!(at_stage(stage).revert("cluster", 1, false).unwrap_err(), expected, "{stage:?}");
    }
}

#[test]
fn values_of_a_unique_field_that_have_moved_move_back() {
    let put = |name: &str, value: &str| {
        let entries = Box::new([IndexEntry { slot: 0, value: value.as_bytes().into() }]);
        let (definition, key, expect) = (key("u.d"), key(name), Expect::Any);
        Command::WriteConfig { definition, key, data: value.into(), entries, expect }
    };
    let delete =
        |name: &str| Command::DeleteConfig { definition: key("u.d"), key: key(name), expect: Expect::Any };
    let batch = |steps: Vec<Command>| Command::Batch(steps.into_iter().map(step).collect());
    let cases = [
        (batch(vec![put("a", "2"), put("b", "1")]), batch(vec![put("b", "9"), put("a", "1")])),
        (batch(vec![delete("a"), put("c", "1")]), batch(vec![delete("c"), put("a", "1")])),
        (
            batch(vec![put("b", "3"), put("a", "9"), put("c", "1")]),
            batch(vec![delete("c"), put("a", "1"), put("b", "9")]),
        ),
        // In the order of the steps, also when one of them is changed twice.
        (
            batch(vec![put("c", "5"), put("b", "2"), put("a", "9"), put("c", "6")]),
            batch(vec![delete("c"), put("a", "1"), put("b", "9")]),
        ),
    ];
    for (there, back) in cases {
        let mut world = ChangeWorld::new();
        let create = Command::CreateDefinition { key: key("u.d"), indexes: vec!["n".into()], schema: None };
        world.done("root", create);
        let (paths, expect) = (vec!["n".into()], Expect::Any);
        world.done("root", Command::SetUnique { key: key("u.d"), paths, expect, configs_read: Some(0) });
        world.done("root", put("a", "1"));
        world.done("root", put("b", "9"));
        let found = world.state.definition("u.d").unwrap();
        let base = |name: &str| Guard::Config {
            definition: found.definition.id,
            key: key(name),
            revision: found.config(name).map(|config| config.revision),
        };
        let content = Content::new(["a", "b", "c"].map(base).into(), [9; 32]);
        let sent = NewEdition { timing: armed(), content, ..edition_of(1, &["u.d"]) };
        world.act("ann", 1, ChangeAction::Create(sent.into())).unwrap();
        world.apply_data("ann", 1, there).unwrap();
        world.at += HOUR + SECOND;
        let proposal = world.with_revert("cluster", (1, false), back);
        world.decide(&proposal).unwrap();
        let now: Vec<&str> =
            world.state.definition("u.d").unwrap().configs().map(|config| &*config.data).collect();
        assert_eq!(now, ["1", "9"]);
    }
}

#[test]
fn nothing_is_taken_back_that_was_changed_since() {
    let mut world = applied_and_armed();
    let due = world.found(1).revert.as_ref().unwrap().due().unwrap();
    let back = world.back(1);
    assert_eq!(world.fail_revert("cluster", 1), Err(not_due(NotDue::Before(due))));
    world.bypass("root", 7, put_data("k", r#"{"b":1}"#)).unwrap();
    let record = world.state.change_record(id(1).as_str()).unwrap();
    assert!(!world.state.is_revert_possible(record));
    world.at = due.0;
    for (who, is_bypass) in [("cluster", false), ("cid", false), ("dan", true)] {
        let proposal = world.with_revert(who, (1, is_bypass), back.clone());
        assert_eq!(world.propose(&proposal), (Verdict::Stale, None), "{who}");
    }
    for who in ["root", "cid"] {
        assert_eq!(world.fail_revert(who, 1), Err(Rejection::Unauthored), "{who}");
    }
    world.fail_revert("cluster", 1).unwrap();
    assert!(matches!(&world.found(1).revert, Some(Revert::Failed { failure: of, .. }) if *of == failure()));
    assert_eq!(world.state.failed_changes().count(), 1);
    assert_eq!(world.revert("cid", 1, false).unwrap_err(), over());
    assert_eq!(world.data("k"), Some(r#"{"b":1}"#.into()));
    expect_sound(&world.state);
    // A definition that was deleted and created again is another one.
    let mut world = applied_and_armed();
    let back = world.back(1);
    world.bypass("root", 7, delete("prod.d", Some(1 << 20))).unwrap();
    world.bypass("root", 8, create("prod.d")).unwrap();
    world.at = due.0;
    let proposal = world.with_revert("cluster", (1, false), back);
    assert_eq!(world.propose(&proposal), (Verdict::Stale, None));
}

/// One that `dan` has applied, with the approvals of `cid` and `bob`.
fn applied(timing: Timing) -> ChangeWorld {
    let mut world = approved(timing, &["k"]);
    world.vote("bob", 1, Opinion::Approval).unwrap();
    world.apply_data("dan", 1, put_data("k", "1")).unwrap();
    world
}

#[test]
fn by_hand_an_approver_who_counted_takes_it_back() {
    for timing in [MANUAL, armed()] {
        for (who, expected) in [
            ("ann", Err(Rejection::NotApprover)),
            ("dan", Err(Rejection::NotApprover)),
            ("root", Err(Rejection::KeyNotAttested)),
            ("bot", Err(Rejection::KeyNotAttested)),
            ("eve", Err(Rejection::KeyNotAttested)),
            ("cid", Ok(())),
            ("bob", Ok(())),
        ] {
            let mut world = applied(timing);
            assert_eq!(world.revert(who, 1, false).map(drop), expected, "{who}");
            assert_eq!(world.data("k").as_deref() == Some("{}"), expected.is_ok(), "{who}");
            expect_sound(&world.state);
        }
        // Whose attestation has ended does not count; another key of the same person does.
        let mut world = applied(timing);
        world.make_key("root", "cid2", Some("cid"), Quota::default());
        let rotate =
            AccessCommand::Rotate { id: key_id("cid"), sha256: [3; 32], grace_us: 0, expect: Expect::Any };
        world.done("bot", Command::Access(rotate));
        assert_eq!(world.revert("cid", 1, false).unwrap_err(), Rejection::KeyNotAttested);
        world.revert("cid2", 1, false).unwrap();
    }
}

#[test]
fn others_take_it_back_by_a_bypass_that_somebody_else_reviews() {
    for timing in [MANUAL, armed()] {
        for (who, needed) in [("dan", 1), ("root", 2), ("bot", 2)] {
            let mut world = applied(timing);
            let before = world.state.unreviewed_bypass_count();
            world.revert(who, 1, true).unwrap();
            let change = world.found(1);
            assert!(matches!(change.revert, Some(Revert::Done { by: RevertedBy::Bypass { .. }, .. })));
            assert_eq!(
                (change.reviews_missing(), world.state.unreviewed_bypass_count()),
                (needed, before + 1)
            );
            if who == "dan" {
                assert_eq!(world.vote("dan", 1, Opinion::Review), Err(Rejection::OwnChange));
            }
            // An approver and an author may review what somebody else did.
            for reviewer in ["cid", "ann"] {
                world.vote(reviewer, 1, Opinion::Review).unwrap();
            }
            assert_eq!((world.found(1).reviews_missing(), world.found(1).votes.len()), (0, 4));
            assert_eq!(world.state.unreviewed_bypass_count(), before);
            expect_sound(&world.state);
        }
    }
}

#[test]
fn by_hand_it_is_taken_back_for_a_day_or_while_it_is_armed() {
    let mut world = applied(MANUAL);
    let until = world.found(1).ended_at().unwrap().0 + 24 * HOUR;
    world.at = until;
    for is_bypass in [false, true] {
        assert_eq!(world.revert("cid", 1, is_bypass).unwrap_err(), over());
    }
    world.sweep(until - 1);
    assert!(world.found(1).revert.is_some());
    world.sweep(until);
    assert_eq!((&world.found(1).revert, world.state.change_contents().count()), (&None, 0));
    // As long as it is armed, also after a day, and after its time.
    let long = Timing { revert_after_s: Some(REVERT_AFTER_S_MAX), ..MANUAL };
    let mut world = applied(long);
    world.at += 24 * HOUR * 8;
    let now = world.at;
    world.sweep(now);
    world.revert("cid", 1, false).unwrap();
}

#[test]
fn what_was_not_of_configs_or_is_too_large_is_not_taken_back() {
    let mut world = ChangeWorld::restricted();
    let large = "1".repeat(usize::try_from(REVERT_BYTES_MAX).unwrap());
    world.bypass("root", 7, put_data("large", &large)).unwrap();
    for (number, command) in [
        (1, Command::SetProtection { key: key("prod.d"), protected: false, expect: Expect::Any }),
        (2, Command::Batch(vec![step(put_data("a", "1")), step(delete_config("a"))])),
        (3, put_data("large", "1")),
    ] {
        world.create("ann", number);
        world.approve("cid", number);
        world.apply_data("dan", number, command).unwrap();
        assert_eq!(world.found(number).revert, None, "{number}");
        assert_eq!(world.revert("cid", number, false).unwrap_err(), over());
    }
    expect_sound(&world.state);
}

#[test]
fn what_persons_may_take_back_makes_room_for_later_ones_and_for_nothing_else() {
    let mut world = ChangeWorld::restricted();
    let large = "1".repeat(usize::try_from(REVERT_BYTES_MAX / 2).unwrap());
    world.bypass("root", 99_999, put_data("large", &large)).unwrap();
    let apply = |world: &mut ChangeWorld, number: u64, command: Command| {
        world.create("ann", number);
        world.approve("cid", number);
        world.apply_data("dan", number, command).unwrap();
    };
    let fitting = KEPT_BEFORE_BYTES_MAX / KEPT_BEFORE_BYTES_MIN;
    for number in 1..=fitting + 2 {
        apply(&mut world, number, put_data("k", &number.to_string()));
    }
    let is_kept = |world: &ChangeWorld, number| world.found(number).revert.is_some();
    assert_eq!([1, 2, 3, fitting + 2].map(|number| is_kept(&world, number)), [false, false, true, true]);
    assert_eq!(world.state.change_contents().count() as u64, fitting);
    assert_eq!(world.state.change_content_bytes(), 0, "nobody is refused because of it");
    // A large one takes the room of many.
    apply(&mut world, 50_000, put_data("large", "1"));
    let kept = (1..=fitting + 2).filter(|number| is_kept(&world, *number)).count() as u64;
    assert_eq!(fitting - kept, REVERT_BYTES_MAX / 2 / KEPT_BEFORE_BYTES_MIN + 1);
    expect_sound(&world.state);
}

#[test]
fn what_others_close_drops_neither_what_can_be_taken_back_nor_what_failed_nor_what_was_just_done() {
    let flood = |world: &mut ChangeWorld| {
        for number in 0..=CLOSED_CHANGES_MAX {
            world.create("bob", 100_000 + number);
            world.act("bob", 100_000 + number, withdraw()).unwrap();
        }
    };
    let mut world = applied_and_armed();
    world.create("ann", 2);
    world.approve("cid", 2);
    world.apply_data("dan", 2, put_data("other", "1")).unwrap();
    world.create_timed(3, scheduled(), &[]).unwrap();
    world.approve("cid", 3);
    world.schedule("dan", 3).unwrap();
    let at = world.at;
    world.at = BEGIN;
    world.fail("cluster", 3).unwrap();
    world.at = at;
    flood(&mut world);
    assert!(world.found(2).revert.is_some());
    // What ends now has not ended when it was applied.
    let due = world.found(1).revert.as_ref().unwrap().due().unwrap();
    world.at = due.0;
    let mut failed = ChangeWorld { state: world.state.clone(), at: world.at };
    failed.fail_revert("cluster", 1).unwrap();
    flood(&mut failed);
    assert!(failed.found(1).failure().is_some());
    let alarms: Vec<&Key> = failed.state.failed_changes().map(|(_, record)| &record.name).collect();
    assert_eq!(alarms.len(), 2);
    world.revert("cluster", 1, false).unwrap();
    assert!(matches!(world.found(1).revert, Some(Revert::Done { .. })));
    world.revert("cid", 2, false).unwrap();
    assert!(matches!(world.found(2).revert, Some(Revert::Done { .. })));
    expect_sound(&world.state);
}

#[test]
fn failures_are_bounded_by_themselves() {
    let mut world = applied_and_armed();
    world.at += HOUR;
    world.fail_revert("cluster", 1).unwrap();
    world.rules("prod", Environment { direct: Direct::Refuse, ..Environment::default() });
    for number in 10..FAILED_CHANGES_MAX + 12 {
        world.create_timed(number, WHEN_APPROVED, &[]).unwrap();
        world.fail("cluster", number).unwrap();
    }
    // No number of these drops a revert that failed.
    assert_eq!(world.state.failed_changes().count() as u64, FAILED_CHANGES_MAX + 1);
    assert_eq!((world.phase(11), world.phase(12).is_some()), (None, true));
    assert!(world.found(1).failure().is_some());
    let times: Vec<Timestamp> = world.state.failed_changes().map(|(at, _)| at).collect();
    assert!(times.is_sorted_by(|one, other| one > other), "the last first");
    // And by their age.
    world.at += CLOSED_CHANGE_AGE_US_MAX;
    let now = world.at;
    assert!(world.state.has_changes_to_sweep(Timestamp(now)));
    for _ in 0..=FAILED_CHANGES_MAX / CHANGES_SWEPT_PER_ENTRY_MAX as u64 {
        world.sweep(now);
    }
    assert_eq!(world.state.failed_changes().count(), 0);
    expect_sound(&world.state);
}

#[test]
fn armed_reverts_take_the_room_of_open_change_requests_and_stay_while_others_are_dropped() {
    let mut world = ChangeWorld::new();
    for number in 1..=OPEN_CHANGES_OF_PARTY_MAX {
        world.create_timed(number, armed(), &["k"]).unwrap();
        world.apply_data("ann", number, put_data("k", &number.to_string())).unwrap();
    }
    let too_many = Err(Rejection::TooManyChanges(ChangeQuota::OfParty));
    assert_eq!(world.act("ann", 900, ChangeAction::Create(edition(1).into())), too_many);
    world.act("bob", 900, ChangeAction::Create(edition(1).into())).unwrap();
    world.hold();
    assert_eq!(world.act("ann", 901, ChangeAction::Create(edition(1).into())), too_many);
    // No age drops them.
    world.at += CLOSED_CHANGE_AGE_US_MAX * 2;
    for _ in 0..9 {
        let now = world.at;
        world.sweep(now);
    }
    assert_eq!(world.state.held_reverts().count() as u64, OPEN_CHANGES_OF_PARTY_MAX);
    expect_sound(&world.state);
}

const RESTORE: &str = "restore";

/// The ways to a new cluster.
const WAYS: [&str; 2] = ["recovery", RESTORE];

/// The first state of a new cluster.
fn held(mut world: ChangeWorld, way: &str) -> ChangeWorld {
    if way != RESTORE {
        world.hold();
        return world;
    }
    let revision = world.state.revision() + 100;
    ChangeWorld { state: world.state.restored_at(revision), at: world.at }
}

#[test]
fn a_restore_or_a_recovery_leaves_no_change_request_to_the_cluster() {
    for way in WAYS {
        for timing in [scheduled(), Timing { apply: ApplyMode::WhenApproved, ..scheduled() }] {
            let mut world = approved(timing, &[]);
            if timing.apply == ApplyMode::Manual {
                world.schedule("dan", 1).unwrap();
            }
            let mut world = held(world, way);
            expect_sound(&world.state);
            world.at = BEGIN;
            assert_eq!(world.phase(1), Some(Phase::Held), "{way}");
            assert!(world.found(1).votes.is_empty() && world.due(END).is_empty());
            assert_eq!(world.apply("cluster", 1).unwrap_err(), Rejection::ChangeHeld, "{way}");
            assert_eq!(world.fail("cluster", 1), Err(Rejection::ChangeHeld));
        }
    }
}

#[test]
fn a_restore_or_a_recovery_leaves_no_revert_to_the_cluster() {
    for way in WAYS {
        let mut world = held(applied_and_armed(), way);
        expect_sound(&world.state);
        let Some(Revert::Held { due, .. }) = world.found(1).revert else { panic!("{way}") };
        world.at = due.0 + HOUR;
        assert_eq!((world.due(world.at), world.state.held_reverts().count()), (vec![], 1));
        assert_eq!(world.revert("cluster", 1, false).unwrap_err(), Rejection::Unauthored, "{way}");
        assert_eq!(world.fail_revert("cluster", 1), Err(Rejection::ChangeHeld), "a person decides");
        // Another hold changes nothing.
        let before = world.state.digest();
        world.hold();
        assert_eq!(world.state.digest(), before);
        let mut changed = ChangeWorld { state: world.state.clone(), at: world.at };
        changed.bypass("root", 7, put_data("k", "5")).unwrap();
        changed.fail_revert("cluster", 1).unwrap();
        assert!(matches!(changed.found(1).revert, Some(Revert::Failed { .. })));
        // After a restore nobody is attested: the approver must be, again.
        let by_hand = world.revert("cid", 1, false);
        if way == RESTORE {
            assert_eq!(by_hand.unwrap_err(), Rejection::KeyNotAttested);
            let revision = world.state.access_key(&key_id("cid")).unwrap().revision;
            let attest = AccessCommand::Attest { id: key_id("cid"), revision };
            world.done("root", Command::Access(attest));
            world.revert("cid", 1, false).unwrap();
        }
        assert_eq!(world.data("k"), Some("{}".into()), "{way}");
        expect_sound(&world.state);
    }
}

#[test]
fn an_armed_revert_without_what_the_configs_were_fails_in_a_restored_cluster() {
    // The backup has the change request before it was applied; the history has its record after it.
    let finish = |timing: Timing| {
        let before = approved(timing, &["k"]);
        let mut continuation = Continuation::new(before.state.clone());
        let mut world = ChangeWorld { state: before.state, at: before.at };
        let proposal = world.with_change("dan", 1, put_data("k", "1"));
        let change = world.decide(&proposal).unwrap().unwrap();
        continuation.begin(change.revision, change.at);
        for edit in change.edits.iter().filter(|edit| edit.is_in_history()) {
            if let Edit::System { before, after } = edit {
                continuation.system_record(before.as_ref(), after.as_ref()).unwrap();
                continue;
            }
            let Edit::Config { definition, before, after } = edit else { panic!("{edit:?}") };
            let revision = before.as_ref().map(|config| config.revision);
            let key = &after.as_ref().unwrap().key;
            continuation.config(*definition, key, revision, after.as_ref()).unwrap();
        }
        let state = continuation.finish(world.state.revision());
        expect_sound(&state);
        state.change(&id(1)).unwrap().clone()
    };
    let change = finish(armed());
    assert!(matches!(&change.revert, Some(Revert::Failed { failure, .. }) if failure.code == "restored"));
    assert_eq!(finish(MANUAL).revert, None);
}

#[test]
fn what_takes_a_change_request_back_is_part_of_a_sound_state() {
    let world = applied_and_armed();
    let content = (**world.state.change_contents().next().unwrap()).clone();
    let record = (**world.state.change_record(id(1).as_str()).unwrap()).clone();
    let finish = |records: Vec<SystemRecord>| {
        let mut builder = StateBuilder::new();
        for key in world.state.access_keys() {
            builder.access_key((**key).clone()).unwrap();
        }
        for person in world.state.persons() {
            builder.system_record((**person).clone()).unwrap();
        }
        for record in records {
            builder.system_record(record).unwrap();
        }
        builder.finish(world.state.revision(), world.state.last_at()).is_ok()
    };
    assert!(finish(vec![record.clone(), content.clone()]));
    assert!(!finish(vec![record.clone()]));
    assert!(!finish(vec![content.clone()]));
    let named = SystemRecord { name: id(1).content_name(1), ..content.clone() };
    assert!(!finish(vec![record.clone(), named]));
    let mut shorter = content;
    if let SystemBody::Content(content) = &mut shorter.body {
        content.before.pop();
    }
    assert!(!finish(vec![record, shorter]));
}
