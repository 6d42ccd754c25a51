//! How a revert ends without being done: a person keeps what was changed, or what it needs is deleted for good.

use super::*;

fn keep(world: &mut ChangeWorld, who: &str, number: u64) -> Result<(), Rejection> {
    let current = world.state.change(&id(number)).map(|change| change.edition.clone());
    let (edition, digest) = current.map_or((1, [1; 32]), |current| (current.number, current.digest));
    world.act(who, number, ChangeAction::Keep { edition, digest, comment: "it is right".into() })
}

/// As `applied_and_armed`, held by a restore or not.
fn waiting(is_held: bool) -> ChangeWorld {
    let mut world = applied_and_armed();
    if is_held {
        world.hold();
    }
    world
}

#[test]
fn an_approver_who_counted_keeps_what_was_to_be_taken_back() {
    for is_held in [false, true] {
        for (who, expected) in [
            ("ann", Err(Rejection::NotApprover)),
            ("dan", Err(Rejection::NotApprover)),
            ("bob", Err(Rejection::NotApprover)),
            ("root", Err(Rejection::KeyNotAttested)),
            ("bot", Err(Rejection::KeyNotAttested)),
            ("eve", Err(Rejection::KeyNotAttested)),
            ("cluster", Err(Rejection::Unauthored)),
            ("cid", Ok(())),
        ] {
            let mut world = waiting(is_held);
            assert_eq!(keep(&mut world, who, 1), expected, "{who} {is_held}");
            let change = world.found(1);
            let is_kept =
                matches!(&change.revert, Some(Revert::Ended { comment, .. }) if comment == "it is right");
            assert_eq!(is_kept, expected.is_ok(), "{who} {is_held}");
            assert_eq!(world.data("k"), Some(r#"{"a":1}"#.into()), "it stays");
            expect_sound(&world.state);
        }
    }
}

#[test]
fn what_is_kept_is_taken_back_by_nobody_and_what_is_not_armed_is_not_kept() {
    let mut world = waiting(false);
    let other = ChangeAction::Keep { edition: 1, digest: [2; 32], comment: String::new() };
    assert_eq!(world.act("cid", 1, other), Err(Rejection::ChangeDigest));
    let back = world.back(1);
    keep(&mut world, "cid", 1).unwrap();
    assert_eq!((world.state.change_contents().count(), world.state.change_content_bytes()), (0, 0));
    assert_eq!(world.state.armed_reverts().count() + world.state.held_reverts().count(), 0);
    assert_eq!(world.state.failed_changes().count(), 0, "nobody is alarmed");
    world.at += 24 * HOUR;
    for who in ["cluster", "cid"] {
        let proposal = world.with_revert(who, (1, false), back.clone());
        assert_eq!(world.decide(&proposal).unwrap_err(), over(), "{who}");
    }
    assert_eq!(world.fail_revert("cluster", 1), Err(Rejection::ChangeClosed));
    assert_eq!(keep(&mut world, "cid", 1), Err(Rejection::ChangeClosed), "once");
    for stage in STAGES {
        let expected = match stage {
            Missing => Rejection::ChangeNotFound,
            Open | Approved | Rejected | Held => not_applied(),
            Withdrawn => Rejection::ChangeClosed,
            Applied | Bypassed => Rejection::NotRevertible(NotRevertible::NotArmed),
        };
        assert_eq!(keep(&mut at_stage(stage), "cid", 1), Err(expected), "{stage:?}");
    }
    let mut world = waiting(false);
    world.at += HOUR + SECOND;
    world.revert("cluster", 1, false).unwrap();
    assert_eq!(keep(&mut world, "cid", 1), Err(Rejection::ChangeClosed));
}

#[test]
fn where_nobody_had_to_approve_it_whoever_may_write_it_keeps_it() {
    for is_held in [false, true] {
        for who in ["ann", "bot", "root", "cluster"] {
            let mut world = ChangeWorld::new();
            world.rules("prod", Environment { direct: Direct::Refuse, ..Environment::default() });
            world.create_timed(1, armed(), &["k"]).unwrap();
            world.apply_data("dan", 1, put_data("k", "1")).unwrap();
            if is_held {
                world.hold();
            }
            // Once approvals are asked for, one person alone makes nothing permanent.
            let mut stricter = ChangeWorld { state: world.state.clone(), at: world.at };
            stricter.rules("prod", refusing());
            assert!(keep(&mut stricter, who, 1).is_err(), "{who} {is_held}");
            assert_eq!(keep(&mut stricter, "ann", 1), Err(Rejection::NotApprover));
            assert_eq!(keep(&mut world, who, 1).is_ok(), who != "cluster", "{who} {is_held}");
        }
    }
}

/// Deletes the definition: kept for a while, or for good, alone or in a batch.
fn deletion(keep: Option<u64>, is_batch: bool) -> Command {
    let delete = delete("prod.d", keep);
    if is_batch { Command::Batch(vec![step(write("dev.d", "k")), step(delete)]) } else { delete }
}

#[test]
fn what_configs_were_before_goes_with_a_definition_that_is_gone_for_good() {
    for is_batch in [false, true] {
        let mut world = waiting(false);
        world.create("ann", 2);
        world.approve("cid", 2);
        world.apply_data("dan", 2, put_data("other", "1")).unwrap();
        let texts = |world: &ChangeWorld| world.state.change_contents().count();
        let revert = |world: &ChangeWorld, number| world.found(number).revert.clone();
        assert_eq!(texts(&world), 2);
        // While the deletion can be undone, so can what was changed before.
        let mut kept = ChangeWorld { state: world.state.clone(), at: world.at };
        kept.bypass("root", 7, deletion(Some(1 << 20), is_batch)).unwrap();
        assert_eq!((texts(&kept), kept.state.deleted().count()), (2, world.state.deleted().count() + 1));
        assert_eq!((revert(&kept, 1), revert(&kept, 2)), (revert(&world, 1), revert(&world, 2)));
        let compaction_revision = kept.state.revision();
        kept.done("cluster", Command::Compact { compaction_revision });
        assert_eq!((texts(&kept), kept.state.deleted().count()), (0, 0));

        let change = world.bypass("root", 7, deletion(None, is_batch)).unwrap().unwrap();
        for world in [&world, &kept] {
            assert_eq!(texts(world), 0);
            let Some(Revert::Failed { failure, .. }) = revert(world, 1) else { panic!() };
            assert_eq!(failure.code, "definition_deleted");
            assert_eq!(revert(world, 2), None, "nobody counts on it");
            assert_eq!(world.state.failed_changes().count(), 1);
            expect_sound(&world.state);
        }
        let dropped = change.edits.iter().filter(|edit| !edit.is_in_history()).count();
        assert_eq!(dropped, 2, "the entry itself drops them");
    }
}

#[test]
fn an_entry_drops_so_much_at_most_and_a_sweep_the_rest() {
    let mut world = ChangeWorld::restricted();
    let all = u64::try_from(CHANGES_SWEPT_PER_ENTRY_MAX).unwrap() + 3;
    for number in 1..=all {
        world.create("ann", number);
        world.approve("cid", number);
        world.apply_data("dan", number, put_data("k", &number.to_string())).unwrap();
    }
    let left = |world: &ChangeWorld| world.state.change_contents().count();
    assert_eq!(left(&world) as u64, all);
    let now = Timestamp(world.at);
    assert!(!world.state.has_changes_to_sweep(now));
    world.bypass("root", 999, delete("prod.d", None)).unwrap();
    assert_eq!(left(&world), 3);
    assert!(world.state.has_changes_to_sweep(now));
    world.sweep(now.0);
    assert_eq!(left(&world), 0);
    assert!(!world.state.has_changes_to_sweep(now));
    expect_sound(&world.state);
}

#[test]
fn there_is_nothing_to_take_back_of_what_was_not_applied() {
    for stage in [Open, Approved, Rejected, Held] {
        for (who, is_bypass) in [("cid", false), ("dan", true)] {
            assert_eq!(at_stage(stage).revert(who, 1, is_bypass).unwrap_err(), not_applied(), "{stage:?}");
        }
    }
}
