//! The store as a whole: what comes back after a stop, a crash, damage and an installation.

mod world;

use std::fs;

use world::{World, flip, key, position, proposal, write};

use super::{sled::trees, *};
use crate::model::{
    command::{Command, Expect},
    key::Key,
    time::Timestamp,
};

#[test]
fn after_a_stop_sled_holds_all_of_it() {
    let mut world = World::new();
    world.check();
    world.define("d");
    world.write("d", 0..50, "one");
    world.check();
    world.write("d", 10..60, "two");
    world.run(vec![Command::DeleteConfig { definition: key("d"), key: key("k0003"), expect: Expect::Any }]);
    world.check();
    // Pieces come and go.
    world.write("d", 0..2, &"x".repeat(200_000));
    world.check();
    world.write("d", 0..1, &"x".repeat(70_000));
    world.write("d", 1..2, "small again");
    world.check();
}

#[test]
fn a_definition_goes_with_all_its_rows() {
    let mut world = World::new();
    world.define("d");
    world.define("e");
    world.write("d", 0..700, "x");
    world.write("e", 0..5, "x");
    world.check();
    world.run(vec![Command::DeleteDefinition { key: key("d"), expect: Expect::Any, restrict: false }]);
    world.check();
    let create = Command::CreateDefinition { key: key("d"), indexes: vec!["a".into()], schema: None };
    world
        .run(vec![create, Command::DeleteDefinition { key: key("e"), expect: Expect::Any, restrict: false }]);
    world.write("d", 0..3, "y");
    world.check();
}

#[test]
fn a_large_run_is_merged_to_the_same_rows() {
    let mut world = World::new();
    world.define("d");
    world.run(
        (0..900).map(|number| write("d", &format!("k{}", number % 300), &format!("v{number}"))).collect(),
    );
    world.check();
    let delete = |number| Command::DeleteConfig {
        definition: key("d"),
        key: key(&format!("k{number}")),
        expect: Expect::Any,
    };
    world.run((0..200).map(delete).chain([write("d", "k7", "back")]).collect());
    world.check();
}

#[test]
fn an_inbox_that_overflows_ends_in_the_same_rows() {
    let mut world = World::with(Options { inbox_changes: 100, ..Options::default() });
    world.define("d");
    world.run((0..900).map(|number| write("d", &format!("k{number}"), "v")).collect());
    world.write("d", 0..300, "w");
    let expected = world.expected_rows();
    world.close();
    assert!(world.rows() == expected);
}

#[test]
fn a_key_that_changed_between_two_carries_leaves_the_rows_of_its_last_change() {
    let mut world = World::new();
    world.define("d");
    for round in 0..5 {
        world.write("d", 0..40, &format!("{round}"));
        if round == 2 {
            world.settle();
        }
    }
    world.run(vec![Command::DeleteConfig { definition: key("d"), key: key("k0003"), expect: Expect::Any }]);
    world.write("d", 3..4, "back");
    world.check();
}

#[test]
fn what_was_carried_is_on_the_disk_when_the_process_is_killed() {
    let mut world = World::new();
    world.define("d");
    world.write("d", 0..300, "x");
    world.settle();
    let deadline = std::time::Instant::now() + world::PATIENCE;
    let mut found = None;
    // What a killed process leaves is what the files hold while it runs.
    while found != Some((world.state.revision(), None)) {
        assert!(
            std::time::Instant::now() < deadline,
            "the end of the mark never reaches the disk: {found:?}"
        );
        std::thread::sleep(std::time::Duration::from_millis(50));
        found = world.sled_on_disk();
    }
}

#[test]
fn sled_never_holds_what_the_log_does_not() {
    let mut world = World::new();
    world.define("d");
    world.write("d", 0..5, "x");
    let durable = world.state.revision();
    let mut state = world.state.clone();
    let revision = durable + 1;
    let (_, change) = state.apply(revision, &proposal(&state.clone(), revision, write("d", "k9", "y")));
    let changes = change.into_iter().map(Arc::new).collect();
    world.store().carry(Batch { state, position: position(revision), changes });
    world.close();
    world.open();
    assert_eq!(world.state.revision(), durable);
}

#[test]
fn a_crash_leaves_a_state_that_the_log_completes_without_writing_twice() {
    let mut world = World::new();
    world.define("d");
    for round in 0..5 {
        world.write("d", 0..20, &format!("{round}"));
        let (digest, last) = (world.state.digest(), world.state.revision());
        world.crash();
        world.open();
        let from = world.state.revision();
        assert!(from <= last);
        // The log brings the rest again, in one run.
        for revision in from + 1..=last {
            let command = match revision.checked_sub(2) {
                None => Command::CreateDefinition { key: key("d"), indexes: vec!["a".into()], schema: None },
                Some(number) => write("d", &format!("k{:04}", number % 20), &format!("{}", number / 20)),
            };
            world.run(vec![command]);
        }
        assert_eq!(world.state.digest(), digest);
    }
    world.snapshot();
    let all: Vec<_> = (1..=world.state.revision()).collect();
    assert_eq!(world.revisions(), all);
}

#[test]
fn sled_that_is_damaged_deleted_or_marked_is_written_anew() {
    let damages: [fn(&World); 5] = [
        |world| fs::remove_dir_all(world.path("sled")).unwrap(),
        |world| fs::remove_file(world.path("sled/CURRENT")).unwrap(),
        |world| fs::write(world.sled().join("db"), b"nonsense").unwrap(),
        |world| {
            world.with_sled(|db| drop(db.open_tree("configs").unwrap().pop_max().unwrap().unwrap()));
        },
        |world| {
            let trees = trees::Trees::open(&world.sled(), 1 << 20).unwrap();
            trees.depart(1).unwrap();
            trees.shut().unwrap();
        },
    ];
    for (number, damage) in damages.iter().enumerate() {
        let mut world = World::new();
        world.define("d");
        world.write("d", 0..30, "x");
        world.snapshot();
        world.write("d", 30..40, "x");
        let (digest, last) = (world.state.digest(), world.state.revision());
        world.close();
        damage(&world);
        world.open();
        assert_eq!(world.state.revision(), 31, "damage {number}: the snapshot is loaded");
        world.write("d", 30..40, "x");
        assert_eq!((world.state.digest(), world.state.revision()), (digest, last), "damage {number}");
        let expected = world.expected_rows();
        world.close();
        assert!(world.rows() == expected, "damage {number}");
    }
}

#[test]
fn two_snapshots_are_kept_and_the_older_one_helps_out() {
    let mut world = World::new();
    world.define("d");
    assert_eq!(world.store().purge_floor(), 0);
    let mut files = Vec::new();
    for round in 0..3 {
        world.write("d", 0..10, &format!("{round}"));
        files.push(world.snapshot());
    }
    assert_eq!(world.snapshot().path, files[2].path);
    assert_eq!(world.store().purge_floor(), files[1].position.index);
    assert!(!files[0].path.exists());
    world.store().verify(&files[2]).unwrap();
    world.crash();
    fs::remove_dir_all(world.path("sled")).unwrap();
    let length = fs::metadata(&files[2].path).unwrap().len();
    flip(&files[2].path, usize::try_from(length / 2).unwrap());
    fs::write(world.path("snapshot/snapshot-00000000000000000099.concord.tmp"), "half").unwrap();
    world.log.purged = files[1].position.index;
    world.open();
    assert_eq!(world.state.digest(), files[1].digest);
    assert_eq!(world.store().purge_floor(), 0);
    assert!(!world.path("snapshot/snapshot-00000000000000000099.concord.tmp").exists());
    world.crash();
    fs::remove_dir_all(world.path("sled")).unwrap();
    flip(&files[1].path, 40);
    assert!(matches!(world.try_open().unwrap(), Loaded::Nothing));
}

#[test]
fn a_state_newer_than_the_log_is_refused() {
    let mut world = World::new();
    world.define("d");
    world.write("d", 0..10, "x");
    let last = world.log.last;
    world.close();
    world.log.last = last - 1;
    assert!(matches!(world.try_open(), Err(StoreError::LogLost(text)) if text.starts_with("sled")));
    world.log.last = last;
    world.open();
    world.snapshot();
    world.close();
    world.log.last = 0;
    assert!(matches!(world.try_open(), Err(StoreError::LogLost(text)) if text.starts_with("a snapshot")));
}

#[test]
fn sled_that_is_newer_than_the_history_is_not_believed() {
    let mut world = World::new();
    world.define("d");
    world.write("d", 0..30, "x");
    let file = world.snapshot();
    world.write("d", 30..40, "x");
    world.close();
    let newest = history::format::segments(&world.path("history")).unwrap().pop().unwrap();
    fs::remove_file(newest.path(&world.path("history"))).unwrap();
    world.open();
    assert_eq!(world.state.revision(), file.position.index);
    world.write("d", 30..40, "x");
    world.snapshot();
    assert_eq!(world.revisions(), (1..=41).collect::<Vec<_>>());
    world.check();
}

#[test]
fn a_snapshot_that_ran_ahead_of_the_log_is_no_sign_of_a_lost_one() {
    let mut world = World::new();
    world.define("d");
    let durable = world.state.revision();
    let revision = durable + 1;
    let mut state = world.state.clone();
    let (_, change) = state.apply(revision, &proposal(&world.state, revision, write("d", "k", "x")));
    let changes = change.into_iter().map(Arc::new).collect();
    world.store().carry(Batch { state: state.clone(), position: position(revision), changes });
    world.store().build_snapshot(&state, &position(revision)).unwrap();
    world.crash();
    world.open();
    assert_eq!(world.state.digest(), state.digest());
    world.crash();
    world.log.last = durable - 1;
    assert!(matches!(world.try_open(), Err(StoreError::LogLost(_))));
}

#[test]
fn an_installed_snapshot_takes_the_place_of_everything() {
    let mut leader = World::new();
    leader.define("d");
    leader.write("d", 0..400, "x");
    let file = leader.snapshot();

    let mut world = World::new();
    world.define("old");
    world.write("old", 0..10, "y");
    let received = world.store().incoming().unwrap();
    fs::copy(&file.path, &received).unwrap();
    flip(&received, 3000);
    assert!(matches!(world.store().install(&received), Err(StoreError::Damaged(_))));
    assert!(world.store().current_snapshot().is_none());

    fs::copy(&file.path, &received).unwrap();
    let (state, installed) = world.store().install(&received).unwrap();
    assert_eq!((state.digest(), installed.position), (file.digest, file.position.clone()));
    assert!(!received.exists());
    // A crash before the log is purged: the state is ahead of the log, and rightly.
    world.crash();
    world.open();
    assert_eq!(world.state.digest(), file.digest);
    // But a log that has lost what it had is a lost log.
    world.crash();
    let log = std::mem::replace(&mut world.log, LogRange { purged: 0, last: 3 });
    assert!(matches!(world.try_open(), Err(StoreError::LogLost(_))));
    world.log = LogRange { purged: file.position.index, last: file.position.index.max(log.last) };
    world.open();
    world.write("d", 400..410, "z");
    world.check();
    assert!(world.store().history_from(1).unwrap().any(|change| change.is_err()));
    let behind = world.store().history_from(file.position.index + 1).unwrap();
    assert_eq!(behind.map(Result::unwrap).count(), 10);
}

#[test]
fn nothing_whole_behind_a_purged_log_is_told() {
    let mut world = World::new();
    world.close();
    world.log = LogRange { purged: 5, last: 9 };
    assert!(matches!(world.try_open().unwrap(), Loaded::Nothing));
}

#[test]
fn equal_states_give_equal_files() {
    let mut worlds = [World::new(), World::new()];
    for world in &mut worlds {
        world.define("d");
        world.write("d", 0..30, "x");
    }
    worlds[1].close();
    worlds[1].open();
    let files = worlds.each_ref().map(|world| fs::read(world.snapshot().path).unwrap());
    assert!(files[0] == files[1]);
}

#[test]
fn a_definition_that_is_indexed_anew_has_the_same_rows_as_one_that_always_was() {
    let mut world = World::new();
    world.define("d");
    world.define("e");
    world.write("d", 0..200, "x");
    world.write("e", 0..5, "x");
    let set = |indexes: Vec<String>| Command::SetIndexes { key: key("d"), indexes, expect: Expect::Any };
    world.run(vec![set(Vec::new()), set(vec!["b".into(), "a".into()])]);
    world.write("e", 0..9, "y");
    world.check();
    world.run(vec![set(vec!["a".into()])]);
    world.write("d", 0..9, "y");
    world.run(vec![
        set(Vec::new()),
        Command::DeleteDefinition { key: key("d"), expect: Expect::Any, restrict: false },
    ]);
    world.check();
}

#[test]
fn a_build_is_carried_step_by_step_and_goes_on_behind_a_start() {
    let mut world = World::new();
    world.define("d");
    world.run((0..1100).map(|n| write("d", &format!("k{n:04}"), "x")).collect());
    let set = |indexes: Vec<String>| Command::SetIndexes { key: key("d"), indexes, expect: Expect::Any };
    for indexes in [Vec::new(), vec!["b".into(), "a".into()]] {
        world.run(vec![set(indexes)]);
        let told = world.revisions_when_written();
        for turn in 0.. {
            let Some(definition) = world.state.building().next().cloned() else { break };
            let build = definition.indexing.build.clone().unwrap();
            let (begun, cursor) = (build.begun, build.cursor);
            world.run(vec![Command::BuildIndex { key: key("d"), begun, cursor }]);
            match turn {
                0 => world.check(),
                1 => {
                    let file = world.snapshot();
                    let (state, _) = snapshot::file::read(&file.path).unwrap();
                    assert_eq!(state.digest(), world.state.digest());
                    assert_eq!(state.building().count(), 1);
                }
                _ => {}
            }
        }
        assert_eq!(world.revisions_when_written(), told, "no step is told as a change");
        world.check();
    }
    assert_eq!(world.state.definition("d").unwrap().indexes().by_slot[1].len(), 1100);
}

#[test]
fn a_definition_that_is_changed_without_its_configs_is_kept_as_it_is_now() {
    let mut world = World::new();
    world.define("d");
    world.write("d", 0..20, "x");
    let set = |length: usize| Command::SetSchema {
        key: key("d"),
        schema: Some(format!("{{\"title\":\"{}\"}}", "x".repeat(length)).into()),
        expect: Expect::Any,
        configs_read: None,
    };
    let unique = Command::SetUnique {
        key: key("d"),
        paths: vec!["a".into()],
        expect: Expect::Any,
        configs_read: None,
    };
    // In several pieces, then in one.
    world.run(vec![set(200_000)]);
    world.check();
    world.run(vec![unique, set(3)]);
    world.write("d", 20..25, "y");
    world.check();
    world.snapshot();
    world.close();
    world.open();
    let found = world.state.definition("d").unwrap();
    assert_eq!(found.definition.unique, ["a"]);
    world.check();
}

#[test]
fn a_directory_in_which_another_process_works_is_left_alone() {
    let mut world = World::new();
    world.define("d");
    world.close();
    let other = ::sled::open(world.sled()).unwrap();
    let refused = world.try_open();
    assert!(matches!(refused, Err(StoreError::Io { context, .. }) if context.contains("another process")));
    drop(other);
    assert!(world.sled().join("db").exists());
}

#[test]
fn waiting_for_a_failure_may_be_sent_to_another_thread() {
    fn check<T: Send>(_: T) {}
    let world = World::new();
    check(world.store().failed());
}

#[tokio::test]
async fn a_history_that_fails_is_told() {
    let mut world = World::new();
    world.define("d");
    world.snapshot();
    // The next segment can't be made.
    fs::remove_dir_all(world.path("history")).unwrap();
    world.write("d", 0..1, "x");
    let text = world.store().failed().await;
    assert!(text.contains("history"), "{text}");
    assert!(world.store().build_snapshot(&world.state, &world.position()).is_err());
    world.close();
}

#[test]
fn a_state_that_was_found_to_be_wrong_is_thrown_away() {
    let mut world = World::new();
    world.define("d");
    world.write("d", 0..20, "x");
    world.snapshot();
    world.store().distrust(b"why").unwrap();
    world.close();
    let purged = world.log.purged;
    world.log.purged = world.log.last;
    assert!(matches!(world.try_open().unwrap(), Loaded::Nothing), "only a peer has the state");
    world.close();
    world.log.purged = purged;
    let Loaded::State(state, _) = world.try_open().unwrap() else { panic!("the log has all of it") };
    assert_eq!((state.revision(), state.config_count()), (0, 0));
    assert!(!world.path("distrusted").exists());
    assert_eq!(
        world.store().distrust_note().as_deref(),
        Some(&b"why"[..]),
        "it outlives what it was noted of"
    );
}
