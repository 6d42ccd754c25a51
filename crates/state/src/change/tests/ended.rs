//! What becomes of change requests and of what they need: age, restores, recoveries, deletions.

use super::*;

#[test]
fn old_editions_expire_and_closed_change_requests_go_but_no_unreviewed_bypass() {
    let mut world = ChangeWorld::restricted();
    world.bypass("ann", 1, write("prod.d", "k")).unwrap();
    let begun = world.at;
    for number in 10..10 + CHANGES_SWEPT_PER_ENTRY_MAX as u64 + 3 {
        world.create("ann", number);
    }
    world.act("ann", 10, withdraw()).unwrap();
    world.edit("ann", 11, 2).unwrap();
    let sweep = |world: &mut ChangeWorld, now: u64| {
        let command = Command::System(SystemCommand::SweepChanges { now: Timestamp(now) });
        let proposal = world.proposal("cluster", command);
        world.decide(&proposal).unwrap().map_or(0, |change| change.edits.len())
    };
    let end = begun + EDITION_AGE_US_MAX;
    // Neither the log's time alone nor the clock alone.
    assert!(!world.state.has_changes_to_sweep(Timestamp(end - 1)));
    world.at = end + HOUR;
    assert_eq!(sweep(&mut world, end - 1), 0);
    world.at = begun + HOUR;
    assert_eq!(sweep(&mut world, end + HOUR), 0);
    world.at = end + HOUR;
    assert!(world.state.has_changes_to_sweep(Timestamp(end + HOUR)));
    assert!(sweep(&mut world, end + HOUR) > 0);
    assert_eq!(world.state.pending_change_count(), 2, "an entry ends so many");
    sweep(&mut world, end + HOUR);
    assert_eq!(world.state.pending_change_count(), 0);
    assert!(!world.state.has_changes_to_sweep(Timestamp(end + HOUR)));
    assert!(matches!(world.phase(12), Some(Phase::Closed { reason: CloseReason::Expired, by: None, .. })));
    expect_sound(&world.state);
    // After a quarter of a year all are gone but the bypass.
    world.at = end + CLOSED_CHANGE_AGE_US_MAX + 2 * HOUR;
    for _ in 0..2 {
        let now = world.at;
        sweep(&mut world, now);
    }
    let left: Vec<&Key> = world.state.changes().map(|record| &record.name).collect();
    assert!(
        left.contains(&id(1).key()) && left.iter().all(|name| *name == id(1).key() || name.as_str() > "9")
    );
    expect_sound(&world.state);
}

#[test]
fn the_first_ended_make_room_for_later_ones() {
    let mut world = ChangeWorld::new();
    world.bypass("bob", 999_999, write("prod.d", "k")).unwrap();
    for number in 0..CLOSED_CHANGES_MAX + 3 {
        world.create("ann", number);
        world.act("ann", number, withdraw()).unwrap();
    }
    assert_eq!(world.state.changes().count() as u64, CLOSED_CHANGES_MAX + 1);
    assert_eq!((world.phase(2), world.phase(3).is_some()), (None, true));
    assert!(world.phase(999_999).is_some());
    assert_eq!(world.state.persons().count(), 5, "a person is there while a record names them");
}

#[test]
fn a_person_stays_while_a_change_request_names_them() {
    let mut world = at_stage(Approved);
    let person = |world: &ChangeWorld| world.state.person_labelled(&PersonLabel::parse("cid").unwrap());
    let cid = person(&world).unwrap();
    let revoke = AccessCommand::Revoke { id: key_id("cid"), expect: Expect::Any };
    world.done("root", Command::Access(revoke));
    assert_eq!(person(&world), Some(cid));
    let change = world.edit("ann", 1, 2);
    assert_eq!(
        (change, person(&world)),
        (Ok(()), None),
        "the edit has removed the last record that names them"
    );
    expect_sound(&world.state);
}

#[test]
fn a_recovery_and_a_restore_hold_what_is_open() {
    let held = |state: &State| {
        let change = state.change(&id(1)).unwrap();
        (change.phase == Phase::Held, change.votes.len())
    };
    let mut world = at_stage(Approved);
    world.vote("dan", 1, Opinion::Rejection).unwrap();
    assert_eq!(held(&world.state), (false, 2));
    let restored = world.state.clone().restored_at(world.state.revision() + 100);
    assert_eq!((held(&restored), restored.revision()), ((true, 1), world.state.revision() + 100));
    expect_sound(&restored);
    world.done("cluster", Command::System(SystemCommand::HoldChanges));
    assert_eq!(held(&world.state), (true, 1));
    assert_eq!(world.apply("dan", 1).unwrap_err(), Rejection::ChangeHeld);
    // A new edition, approved again, applies. After a restore nobody is attested, so nobody approves.
    world.edit("ann", 1, 2).unwrap();
    world.approve("cid", 1);
    world.apply("dan", 1).unwrap();
    let mut restored = ChangeWorld { state: restored, at: world.at };
    restored.edit("ann", 1, 2).unwrap();
    assert_eq!(restored.vote("cid", 1, Opinion::Approval), Err(Rejection::KeyNotAttested));
    for stage in [Applied, Withdrawn, Bypassed] {
        let world = at_stage(stage);
        let restored = world.state.clone().restored_at(world.state.revision());
        assert_eq!(restored.change(&id(1)), world.state.change(&id(1)), "{stage:?}");
    }
}

#[test]
fn a_state_of_a_point_in_time_has_its_change_requests_and_no_content_of_a_later_edition() {
    let mut world = ChangeWorld::restricted();
    for number in 1..=5 {
        world.create("ann", number);
    }
    let backup = world.state.clone();
    let mut continuation = Continuation::new(backup);
    let from = world.state.revision();
    world.edit("ann", 1, 2).unwrap();
    world.approve("cid", 2);
    world.approve("cid", 3);
    world.apply("dan", 3).unwrap();
    world.act("ann", 4, withdraw()).unwrap();
    world.create("ann", 6);
    // The same again, for the edits that the history keeps.
    let mut again = ChangeWorld::restricted();
    for number in 1..=5 {
        again.create("ann", number);
    }
    assert_eq!((again.state.revision(), again.at), (from, again.at));
    let mut add = |change: Option<StoredChange>| {
        let Some(change) = change else { return };
        continuation.begin(change.revision, change.at);
        for edit in change.edits.iter().filter(|edit| edit.is_in_history()) {
            if let Edit::System { before, after } = edit {
                continuation.system_record(before.as_ref(), after.as_ref()).unwrap();
            } else if let Edit::Config { definition, before, after } = edit {
                let key = &after.as_ref().or(before.as_ref()).unwrap().key;
                let before = before.as_ref().map(|config| config.revision);
                continuation.config(*definition, key, before, after.as_ref()).unwrap();
            } else {
                panic!("{edit:?}");
            }
        }
    };
    let edit = ChangeAction::Edit { after: 1, expect: Expect::Any, edition: edition(2).into() };
    let approval = || vote(Opinion::Approval, 1, [1; 32]);
    for (who, number, action) in [("ann", 1, edit), ("cid", 2, approval()), ("cid", 3, approval())] {
        let command = Command::System(SystemCommand::Change { id: id(number), action });
        let proposal = again.proposal(who, command);
        add(again.decide(&proposal).unwrap());
    }
    add(again.apply("dan", 3).unwrap());
    let create = ChangeAction::Create(edition(1).into());
    for (number, action) in [(4, withdraw()), (6, create)] {
        let command = Command::System(SystemCommand::Change { id: id(number), action });
        let proposal = again.proposal("ann", command);
        add(again.decide(&proposal).unwrap());
    }
    assert_eq!(again.state.digest(), world.state.digest());
    let continued = continuation.finish(again.state.revision());
    let restored = |number: u64| match &continued.change(&id(number)).unwrap().phase {
        Phase::Closed { reason, .. } => Some(reason.clone()),
        Phase::Open
        | Phase::Scheduled { .. }
        | Phase::Rolling { .. }
        | Phase::Held
        | Phase::Applied { .. } => None,
    };
    assert_eq!((restored(1), restored(6)), (Some(CloseReason::Restored), Some(CloseReason::Restored)));
    assert_eq!((restored(2), restored(4), restored(5)), (None, Some(CloseReason::Withdrawn), None));
    let applied = Change { revert: None, ..world.state.change(&id(3)).unwrap().clone() };
    assert_eq!(continued.change(&id(3)), Some(&applied), "what the config was is in no history");
    assert_eq!(continued.change(&id(2)), world.state.change(&id(2)), "open, with its approval");
    assert_eq!(continued.pending_change_count(), 2);
    expect_sound(&continued);
}

#[test]
fn a_content_that_no_change_request_has_is_no_state() {
    let world = at_stage(Open);
    let content = world.state.change_contents().next().unwrap();
    let record = world.state.change_record(id(1).as_str()).unwrap();
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
    let named = |name: &str| SystemRecord { name: key(name), ..(**content).clone() };
    assert!(finish(vec![(**record).clone(), (**content).clone()]));
    assert!(!finish(vec![(**content).clone()]));
    assert!(!finish(vec![(**record).clone()]), "a pending one has a content");
    let changed = |change: &dyn Fn(&mut Change)| {
        let mut record = (**record).clone();
        let SystemBody::Change(body) = &mut record.body else { panic!("{record:?}") };
        change(body);
        finish(vec![record, (**content).clone()])
    };
    assert!(changed(&|_| {}));
    let scope = |names: &[&str]| edition_of(1, names).scope;
    assert!(changed(&|change| change.edition.scope = scope(&["a", "b"])));
    assert!(!changed(&|change| change.edition.scope = scope(&["b", "a"])));
    let mut large = (**content).clone();
    let bases = vec![Guard::Environment { name: key("e"), revision: None }; GUARDS_MAX + 1];
    large.body = SystemBody::Content(Content::new(bases, [0; 32]));
    assert!(!finish(vec![(**record).clone(), large]));
    assert!(!finish(vec![SystemRecord { name: key("short"), ..(**record).clone() }]));
    for name in ["000000000001-2", "000000000002-1", "000000000001"] {
        assert!(!finish(vec![(**record).clone(), named(name)]), "{name}");
    }
}

#[test]
fn deletions_in_an_environment_without_restrictions_make_none_of_a_restricted_one_final() {
    let mut world = ChangeWorld::restricted();
    world.create("ann", 1);
    world.approve("cid", 1);
    let proposal = world.with_change("dan", 1, delete("prod.d", Some(1 << 20)));
    world.decide(&proposal).unwrap();
    let is_kept = |world: &ChangeWorld, name: &str| world.state.last_deleted(name).is_some();
    let churn = |world: &mut ChangeWorld, name: &str, keep: u64| {
        world.done("root", create(name));
        world.done("root", delete(name, Some(keep)))
    };
    for number in 0..DELETED_DEFINITIONS_MAX {
        churn(&mut world, &format!("dev.d{number}"), 1 << 30);
    }
    assert!(is_kept(&world, "prod.d") && is_kept(&world, "prod.gone"));
    assert_eq!(world.state.deleted().count(), DELETED_DEFINITIONS_MAX);
    assert!(!is_kept(&world, "dev.d1") && is_kept(&world, "dev.d2"));
    // Those of the restricted environment fill all the room: what is deleted elsewhere is gone.
    let room: u64 = ["prod.d", "prod.gone"]
        .iter()
        .map(|name| world.state.last_deleted(name).unwrap().bytes_in_memory())
        .sum();
    // What has no room beside them makes none, so nothing is dropped for it.
    let kept = |world: &ChangeWorld| world.state.deleted().count();
    let before = kept(&world);
    let change = churn(&mut world, "dev.last", room);
    assert!(matches!(&change.edits[1], Edit::Deleted { kept: None, .. }), "{change:?}");
    assert_eq!((change.edits.len(), kept(&world)), (2, before), "{change:?}");
    // One that has room beside them does.
    let own = world.state.last_deleted("dev.d2").unwrap().bytes_in_memory();
    churn(&mut world, "dev.last", room + own);
    let kept = world.state.deleted().map(|kept| kept.definition.key.as_str()).collect::<Vec<_>>();
    assert_eq!(kept, ["prod.gone", "prod.d", "dev.last"]);
    let bytes = world.state.deleted().map(|kept| kept.bytes_in_memory()).sum::<u64>();
    assert_eq!(world.state.deleted_bytes(), bytes);
    // Within the restricted one, the first goes.
    world.bypass("root", 2, create("prod.more")).unwrap();
    world.bypass("root", 3, delete("prod.more", Some(room))).unwrap();
    let kept = world.state.deleted().map(|kept| kept.definition.key.as_str()).collect::<Vec<_>>();
    assert_eq!(kept, ["prod.d", "prod.more"]);
}
