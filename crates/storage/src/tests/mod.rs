//! The store as a whole: what is loaded after a clean stop, a crash, damage and an installed snapshot.

mod distrusted;
mod encrypted;
mod fixture;
mod half_written;
mod newer;
mod waiting;

use std::fs;

use fixture::{
    Fixture, change_request, delete_environment, flip, index, key, position, proposal, put_environment,
    withdraw, write,
};

use super::{sled::trees, *};
use concord_model::{
    audit::AnchoredLog,
    command::{
        AuditCommand, ChangeAction, Command, Expect, SystemCommand, Undeletion,
        source::{ChangeUse, Guard, Source},
    },
    key::Key,
    record::DeletedId,
    system::change::{ChangeId, Failure, Phase},
    time::Timestamp,
};

#[test]
fn after_a_clean_stop_sled_holds_the_whole_state() {
    let mut fixture = Fixture::new();
    fixture.check();
    fixture.define("d");
    fixture.write("d", 0..50, "one");
    fixture.check();
    fixture.write("d", 10..60, "two");
    fixture.apply(vec![Command::DeleteConfig {
        definition: key("d"),
        key: key("k0003"),
        expect: Expect::Any,
    }]);
    fixture.check();
    // Records get more chunks, and fewer.
    fixture.write("d", 0..2, &"x".repeat(200_000));
    fixture.check();
    fixture.write("d", 0..1, &"x".repeat(70_000));
    fixture.write("d", 1..2, "small again");
    fixture.check();
}

#[test]
fn anchors_of_audit_logs_are_in_sled_in_snapshots_and_in_restored_backups() {
    let mut fixture = Fixture::new();
    let log = |node| AnchoredLog { cluster: [7; 16], node };
    let anchor = |node, seq| Command::Audit(AuditCommand::Anchor { log: log(node), seq, sha256: [9; 32] });
    fixture.apply(vec![anchor(1, 10), anchor(2, 20), anchor(1, 30)]);
    fixture.check();
    fixture.apply(vec![anchor(1, 40), Command::Audit(AuditCommand::Accept { log: log(2) })]);
    fixture.check();
    let file = fixture.snapshot();
    let mut other = Fixture::new();
    let received = other.store().incoming().unwrap();
    fs::copy(&file.path, &received).unwrap();
    let (installed, _) = other.store().install(&received).unwrap();
    other.close();
    let restored = tempfile::tempdir().unwrap();
    let input = snapshot::backup::Input::new(&file.path, snapshot::envelope::Opening::default());
    let place = position(fixture.state.revision() + 100);
    let content = snapshot::backup::Content::read(&input).unwrap();
    content.restore(restored.path(), &place, &AtRest::default()).unwrap();
    let name = format!("snapshot/snapshot-{:020}.concord", place.index);
    let input =
        snapshot::backup::Input::new(&restored.path().join(name), snapshot::envelope::Opening::default());
    for state in [installed, snapshot::backup::Content::read(&input).unwrap().state] {
        let all = |state: &State| state.audit_anchors().cloned().collect::<Vec<_>>();
        assert_eq!(all(&state), all(&fixture.state));
        assert_eq!(state.digest(), fixture.state.digest());
    }
    let seqs = |node| -> Vec<u64> {
        fixture.state.audit_anchors_of(&log(node)).unwrap().anchors.iter().map(|one| one.seq).collect()
    };
    assert_eq!((seqs(1).last(), seqs(2)), (Some(&40), vec![20]));
}

#[test]
fn environments_are_in_sled_in_snapshots_and_in_restored_backups() {
    let mut fixture = Fixture::new();
    fixture.apply(vec![put_environment("prod", 100), put_environment("dev", 100)]);
    fixture.check();
    // Records get more chunks, and fewer.
    fixture.apply(vec![put_environment("prod", 200_000), put_environment("gone", 70_000)]);
    fixture.check();
    fixture.apply(vec![put_environment("prod", 70_000)]);
    fixture.apply(vec![put_environment("prod", 300_000), delete_environment("gone")]);
    fixture.apply(vec![put_environment("prod", 100), put_environment("made-and-gone", 100)]);
    fixture.apply(vec![delete_environment("made-and-gone")]);
    fixture.check();
    assert_eq!(fixture.state.environments().count(), 2);
    let file = fixture.snapshot();
    let mut other = Fixture::new();
    let received = other.store().incoming().unwrap();
    fs::copy(&file.path, &received).unwrap();
    let (installed, _) = other.store().install(&received).unwrap();
    other.close();
    let restored = tempfile::tempdir().unwrap();
    let input = |path: &Path| snapshot::backup::Input::new(path, snapshot::envelope::Opening::default());
    let content = snapshot::backup::Content::read(&input(&file.path)).unwrap();
    assert_eq!(content.summary.environments, 2);
    let place = position(fixture.state.revision() + 100);
    content.restore(restored.path(), &place, &AtRest::default()).unwrap();
    let name = format!("snapshot/snapshot-{:020}.concord", place.index);
    let restored = snapshot::backup::Content::read(&input(&restored.path().join(name))).unwrap();
    for state in [installed, restored.state] {
        assert!(state.environments().eq(fixture.state.environments()));
        assert_eq!(state.digest(), fixture.state.digest());
    }
}

#[test]
fn change_requests_are_in_sled_in_snapshots_and_in_restored_backups() {
    let mut fixture = Fixture::new();
    let request = |fixture: &Fixture, number, bytes| change_request(&fixture.state, number, bytes);
    let two = vec![request(&fixture, 1, 100), request(&fixture, 2, 300_000)];
    fixture.apply(two);
    fixture.check();
    // Contents get other names with each edition, more chunks and fewer.
    for bytes in [200_000, 100, 70_000] {
        let next = vec![request(&fixture, 1, bytes)];
        fixture.apply(next);
        let next = vec![request(&fixture, 1, bytes), request(&fixture, 3, bytes)];
        fixture.apply(next);
        fixture.check();
        fixture.apply(vec![withdraw(3)]);
    }
    fixture.apply(vec![withdraw(2)]);
    fixture.check();
    assert_eq!((fixture.state.changes().count(), fixture.state.change_contents().count()), (3, 1));
    let file = fixture.snapshot();
    let mut other = Fixture::new();
    let received = other.store().incoming().unwrap();
    fs::copy(&file.path, &received).unwrap();
    let (installed, _) = other.store().install(&received).unwrap();
    other.close();
    assert!(installed.system_records().eq(fixture.state.system_records()));
    assert_eq!(installed.digest(), fixture.state.digest());
    let restored = tempfile::tempdir().unwrap();
    let input = |path: &Path| snapshot::backup::Input::new(path, snapshot::envelope::Opening::default());
    let content = snapshot::backup::Content::read(&input(&file.path)).unwrap();
    let place = position(fixture.state.revision() + 100);
    content.restore(restored.path(), &place, &AtRest::default()).unwrap();
    let name = format!("snapshot/snapshot-{:020}.concord", place.index);
    let restored = snapshot::backup::Content::read(&input(&restored.path().join(name))).unwrap().state;
    let phase = |state: &State, number: u64| {
        let record = state.change_record(&format!("{number:012}")).unwrap();
        record.change().unwrap().phase.clone()
    };
    assert_eq!((phase(&fixture.state, 1), phase(&restored, 1)), (Phase::Open, Phase::Held));
    assert_eq!(phase(&restored, 2), phase(&fixture.state, 2));
    assert!(restored.change_contents().eq(fixture.state.change_contents()));
}

#[test]
fn what_takes_a_change_request_back_is_in_sled_in_snapshots_and_in_restored_backups() {
    let mut fixture = Fixture::new();
    fixture.define("d");
    fixture.apply(vec![write("d", "k", &"x".repeat(200_000))]);
    let definition = fixture.state.definition("d").unwrap();
    let revision = definition.config("k").map(|config| config.revision);
    let base = Guard::Config { definition: definition.definition.id, key: key("k"), revision };
    for (number, revert_after_s) in [(1, Some(1)), (2, None)] {
        let mut create = change_request(&fixture.state, number, 100);
        if let Command::System(SystemCommand::Change { action: ChangeAction::Create(edition), .. }) =
            &mut create
        {
            edition.timing.revert_after_s = revert_after_s;
            edition.content.bases = if number == 1 { vec![base.clone()] } else { Vec::new() };
        }
        fixture.apply(vec![create]);
        let id = ChangeId::parse(&format!("{number:012}")).unwrap();
        let of = ChangeUse { id, edition: 1, digest: [7; 32] };
        fixture.apply_from(&Source::Change(of), vec![write("d", "k", "changed")]);
        fixture.check();
    }
    let before = |state: &State, number: u64| {
        let id = ChangeId::parse(&format!("{number:012}")).unwrap();
        state.change_before(&id).map(|content| content.before[0].as_ref().map_or(0, |data| data.data.len()))
    };
    let both = [1, 2].map(|number| before(&fixture.state, number));
    assert!(both[0] > Some(200_000) && both[1] > Some(0), "{both:?}");
    let file = fixture.snapshot();
    let restored = tempfile::tempdir().unwrap();
    let input = |path: &Path| snapshot::backup::Input::new(path, snapshot::envelope::Opening::default());
    let content = snapshot::backup::Content::read(&input(&file.path)).unwrap();
    let place = position(fixture.state.revision() + 100);
    content.restore(restored.path(), &place, &AtRest::default()).unwrap();
    let name = format!("snapshot/snapshot-{:020}.concord", place.index);
    let restored = snapshot::backup::Content::read(&input(&restored.path().join(name))).unwrap().state;
    assert_eq!([1, 2].map(|number| before(&restored, number)), both);
    assert_eq!((fixture.state.armed_reverts().count(), restored.armed_reverts().count()), (1, 0));
    assert_eq!(restored.held_reverts().count(), 1);
    // What is not needed any more is gone everywhere.
    let id = ChangeId::parse("000000000001").unwrap();
    let failure = Failure { code: "c".into(), text: String::new() };
    let fail = ChangeAction::FailRevert { edition: 1, failure };
    let fail = Command::System(SystemCommand::Change { id, action: fail });
    fixture.apply_as_cluster_at(Timestamp(u64::MAX / 2), fail);
    fixture.check();
    assert_eq!([1, 2].map(|number| before(&fixture.state, number)), [None, both[1]]);
}

#[test]
fn deleting_a_definition_removes_all_its_rows() {
    let mut fixture = Fixture::new();
    fixture.define("d");
    fixture.define("e");
    fixture.write("d", 0..700, "x");
    fixture.write("e", 0..5, "x");
    fixture.check();
    fixture.apply(vec![Command::DeleteDefinition {
        key: key("d"),
        expect: Expect::Any,
        restrict: false,
        keep: None,
    }]);
    fixture.check();
    let create = Command::CreateDefinition { key: key("d"), indexes: vec!["a".into()], schema: None };
    fixture.apply(vec![
        create,
        Command::DeleteDefinition { key: key("e"), expect: Expect::Any, restrict: false, keep: None },
    ]);
    fixture.write("d", 0..3, "y");
    fixture.check();
}

#[test]
fn a_kept_definition_keeps_its_rows_until_it_is_dropped() {
    let mut fixture = Fixture::new();
    // Its record has almost two chunks, and more with the mark of its deletion.
    let schema = |bytes: usize| Some(format!(r#"{{"title":"{}"}}"#, "x".repeat(bytes)).as_str().into());
    let bytes = (1..200)
        .map(|less| (64 << 10) - less)
        .find(|bytes| {
            let mut fixture = Fixture::new();
            let (indexes, schema) = (vec!["a".into()], schema(*bytes));
            fixture.apply(vec![Command::CreateDefinition { key: key("d"), indexes, schema }]);
            let definition = &fixture.state.definition("d").unwrap().definition;
            let record = sled::keys::encode(&**definition);
            record.len() < 64 << 10
        })
        .unwrap();
    let (indexes, schema) = (vec!["a".into()], schema(bytes));
    fixture.apply(vec![Command::CreateDefinition { key: key("d"), indexes, schema }]);
    fixture.write("d", 0..300, "x");
    let end = |keep| Command::DeleteDefinition { key: key("d"), expect: Expect::Any, restrict: false, keep };
    let id = fixture.state.definition("d").unwrap().definition.id;
    let back = |deleted| {
        let of = DeletedId { deleted, id };
        Command::UndeleteDefinition(Undeletion { key: key("d"), of, back: Vec::new() })
    };
    let rows = |fixture: &Fixture| fixture.expected_rows().len();
    let before = rows(&fixture);
    fixture.apply(vec![end(Some(1 << 30))]);
    assert_eq!(rows(&fixture), before + 1, "the mark takes another chunk");
    fixture.check();
    let file = fixture.snapshot();
    let (state, _) = snapshot::file::read(&file.path, &AtRest::default()).unwrap();
    assert_eq!((state.digest(), state.deleted_config_count()), (fixture.state.digest(), 300));
    let deleted = fixture.state.revision();
    fixture.apply(vec![back(deleted)]);
    fixture.write("d", 5..20, "y");
    fixture.check();
    // In one merge.
    let deleted = fixture.state.revision() + 1;
    let set = |indexes: Vec<String>| Command::SetIndexes { key: key("d"), indexes, expect: Expect::Any };
    fixture.apply(vec![
        end(Some(1 << 30)),
        back(deleted),
        set(Vec::new()),
        set(vec!["a".into()]),
        end(Some(1 << 30)),
    ]);
    fixture.check();
    assert_eq!(fixture.state.deleted_config_count(), 300);
    let compaction_revision = fixture.state.revision();
    fixture.apply(vec![Command::Compact { compaction_revision }]);
    assert_eq!(rows(&fixture), fixture.state.requests().count());
    fixture.check();
}

#[test]
fn a_large_batch_is_merged_to_the_same_rows() {
    let mut fixture = Fixture::new();
    fixture.define("d");
    fixture.apply(
        (0..900).map(|number| write("d", &format!("k{}", number % 300), &format!("v{number}"))).collect(),
    );
    fixture.check();
    let delete = |number| Command::DeleteConfig {
        definition: key("d"),
        key: key(&format!("k{number}")),
        expect: Expect::Any,
    };
    fixture.apply((0..200).map(delete).chain([write("d", "k7", "back")]).collect());
    fixture.check();
}

#[test]
fn a_backlog_that_overflows_ends_in_the_same_rows() {
    let mut fixture = Fixture::with(StoreOptions { mirror_backlog_records: 100, ..StoreOptions::default() });
    fixture.define("d");
    fixture.apply((0..900).map(|number| write("d", &format!("k{number}"), "v")).collect());
    fixture.write("d", 0..300, "w");
    let expected = fixture.expected_rows();
    fixture.close();
    assert!(fixture.rows() == expected);
}

#[test]
fn a_key_that_changes_between_two_merges_has_the_rows_of_its_last_change() {
    let mut fixture = Fixture::new();
    fixture.define("d");
    for round in 0..5 {
        fixture.write("d", 0..40, &format!("{round}"));
        if round == 2 {
            fixture.wait_for_mirror();
        }
    }
    fixture.apply(vec![Command::DeleteConfig {
        definition: key("d"),
        key: key("k0003"),
        expect: Expect::Any,
    }]);
    fixture.write("d", 3..4, "back");
    fixture.check();
}

#[test]
fn mirrored_changes_are_on_the_disk_when_the_process_is_killed() {
    let mut fixture = Fixture::new();
    fixture.define("d");
    fixture.write("d", 0..300, "x");
    fixture.wait_for_mirror();
    let deadline = std::time::Instant::now() + fixture::DEADLINE;
    let mut found = None;
    // A killed process leaves what its files hold while it runs.
    while found != Some((fixture.state.revision(), None)) {
        assert!(
            std::time::Instant::now() < deadline,
            "the end of the merge never reaches the disk: {found:?}"
        );
        std::thread::sleep(Duration::from_millis(50));
        found = fixture.sled_on_disk();
    }
}

#[test]
fn sled_never_holds_a_change_that_the_log_lacks() {
    let mut fixture = Fixture::new();
    fixture.define("d");
    fixture.write("d", 0..5, "x");
    let durable = fixture.state.revision();
    let mut state = fixture.state.clone();
    let revision = durable + 1;
    let (_, change) = state.apply(revision, &proposal(&state.clone(), revision, write("d", "k9", "y")));
    let changes = change.into_iter().map(Arc::new).collect();
    fixture.store().enqueue(Batch { state, position: position(revision), changes });
    fixture.close();
    fixture.open();
    assert_eq!(fixture.state.revision(), durable);
}

#[test]
fn a_crash_leaves_a_state_that_the_log_completes_without_writing_twice() {
    let mut fixture = Fixture::new();
    fixture.define("d");
    for round in 0..5 {
        fixture.write("d", 0..20, &format!("{round}"));
        let (digest, last) = (fixture.state.digest(), fixture.state.revision());
        fixture.crash();
        fixture.open();
        let from = fixture.state.revision();
        assert!(from <= last);
        // The log is applied again after the loaded state.
        for revision in from + 1..=last {
            let command = match revision.checked_sub(2) {
                None => Command::CreateDefinition { key: key("d"), indexes: vec!["a".into()], schema: None },
                Some(number) => write("d", &format!("k{:04}", number % 20), &format!("{}", number / 20)),
            };
            fixture.apply(vec![command]);
        }
        assert_eq!(fixture.state.digest(), digest);
    }
    fixture.snapshot();
    let all: Vec<_> = (1..=fixture.state.revision()).collect();
    assert_eq!(fixture.revisions(), all);
}

#[test]
fn sled_that_is_damaged_deleted_or_incomplete_is_rebuilt() {
    let damages: [fn(&Fixture); 5] = [
        |fixture| fs::remove_dir_all(fixture.path("sled")).unwrap(),
        |fixture| fs::remove_file(fixture.path("sled/CURRENT")).unwrap(),
        |fixture| fs::write(fixture.sled().join("db"), b"nonsense").unwrap(),
        |fixture| {
            fixture.with_sled(|db| drop(db.open_tree("configs").unwrap().pop_max().unwrap().unwrap()));
        },
        |fixture| {
            let trees = trees::Trees::open(&fixture.sled(), 1 << 20, &AtRest::default()).unwrap();
            trees.begin_merge(1).unwrap();
            trees.close().unwrap();
        },
    ];
    for (number, damage) in damages.iter().enumerate() {
        let mut fixture = Fixture::new();
        fixture.define("d");
        fixture.write("d", 0..30, "x");
        fixture.snapshot();
        fixture.write("d", 30..40, "x");
        let (digest, last) = (fixture.state.digest(), fixture.state.revision());
        fixture.close();
        damage(&fixture);
        fixture.open();
        assert_eq!(fixture.state.revision(), 31, "damage {number}: the snapshot is loaded");
        fixture.write("d", 30..40, "x");
        assert_eq!((fixture.state.digest(), fixture.state.revision()), (digest, last), "damage {number}");
        let expected = fixture.expected_rows();
        fixture.close();
        assert!(fixture.rows() == expected, "damage {number}");
    }
}

#[test]
fn two_snapshots_are_retained_and_the_older_one_replaces_a_damaged_one() {
    let mut fixture = Fixture::new();
    fixture.define("d");
    assert_eq!(fixture.store().purge_limit(), 0);
    let mut files = Vec::new();
    for round in 0..3 {
        fixture.write("d", 0..10, &format!("{round}"));
        files.push(fixture.snapshot());
    }
    assert_eq!(fixture.snapshot().path, files[2].path);
    assert_eq!(fixture.store().purge_limit(), files[1].position.index);
    assert!(!files[0].path.exists());
    let newest = &files[2];
    fixture.store().verify(&newest.path, &newest.position, newest.digest).unwrap();
    fixture.crash();
    fs::remove_dir_all(fixture.path("sled")).unwrap();
    let length = fs::metadata(&files[2].path).unwrap().len();
    flip(&files[2].path, usize::try_from(length / 2).unwrap());
    fs::write(fixture.path("snapshot/snapshot-00000000000000000099.concord.tmp"), "half").unwrap();
    fixture.log.purged = files[1].position.index;
    fixture.open();
    assert_eq!(fixture.state.digest(), files[1].digest);
    assert_eq!(fixture.store().purge_limit(), 0);
    assert!(!fixture.path("snapshot/snapshot-00000000000000000099.concord.tmp").exists());
    fixture.crash();
    fs::remove_dir_all(fixture.path("sled")).unwrap();
    flip(&files[1].path, 40);
    assert!(matches!(fixture.try_open().unwrap(), Loaded::Nothing));
}

#[test]
fn a_state_newer_than_the_log_is_rejected() {
    let mut fixture = Fixture::new();
    fixture.define("d");
    fixture.write("d", 0..10, "x");
    let last = fixture.log.last;
    fixture.close();
    fixture.log.last = last - 1;
    assert!(matches!(fixture.try_open(), Err(StoreError::LogLost(text)) if text.starts_with("sled")));
    fixture.log.last = last;
    fixture.open();
    fixture.snapshot();
    fixture.close();
    fixture.log.last = 0;
    assert!(matches!(fixture.try_open(), Err(StoreError::LogLost(text)) if text.starts_with("a snapshot")));
}

#[test]
fn sled_that_is_newer_than_the_history_is_not_loaded() {
    let mut fixture = Fixture::new();
    fixture.define("d");
    fixture.write("d", 0..30, "x");
    let file = fixture.snapshot();
    fixture.write("d", 30..40, "x");
    fixture.close();
    let newest = history::format::segments(&fixture.path("history")).unwrap().pop().unwrap();
    fs::remove_file(newest.path(&fixture.path("history"))).unwrap();
    fixture.open();
    assert_eq!(fixture.state.revision(), file.revision);
    fixture.write("d", 30..40, "x");
    fixture.snapshot();
    assert_eq!(fixture.revisions(), (1..=41).collect::<Vec<_>>());
    fixture.check();
}

#[test]
fn a_snapshot_that_is_rightly_ahead_of_the_log_is_accepted() {
    let mut fixture = Fixture::new();
    fixture.define("d");
    let durable = fixture.state.revision();
    let revision = durable + 1;
    let mut state = fixture.state.clone();
    let (_, change) = state.apply(revision, &proposal(&fixture.state, revision, write("d", "k", "x")));
    let changes = change.into_iter().map(Arc::new).collect();
    fixture.store().enqueue(Batch { state: state.clone(), position: position(revision), changes });
    fixture.store().build_snapshot(&state, &position(revision)).unwrap();
    fixture.crash();
    fixture.open();
    assert_eq!(fixture.state.digest(), state.digest());
    fixture.crash();
    fixture.log.last = index(durable) - 1;
    assert!(matches!(fixture.try_open(), Err(StoreError::LogLost(_))));
}

#[test]
fn an_installed_snapshot_replaces_everything() {
    let mut leader = Fixture::new();
    leader.define("d");
    leader.write("d", 0..400, "x");
    let file = leader.snapshot();

    let mut fixture = Fixture::new();
    fixture.define("old");
    fixture.write("old", 0..10, "y");
    let received = fixture.store().incoming().unwrap();
    fs::copy(&file.path, &received).unwrap();
    flip(&received, 3000);
    assert!(matches!(fixture.store().install(&received), Err(StoreError::Damaged(_))));
    assert!(fixture.store().current_snapshot().is_none());

    fs::copy(&file.path, &received).unwrap();
    let (state, installed) = fixture.store().install(&received).unwrap();
    assert_eq!((state.digest(), installed.position), (file.digest, file.position.clone()));
    assert!(!received.exists());
    // After a crash before the log is purged, the state is rightly ahead of the log.
    fixture.crash();
    fixture.open();
    assert_eq!(fixture.state.digest(), file.digest);
    // A log that ends before what it held then is a lost log.
    fixture.crash();
    let log = std::mem::replace(&mut fixture.log, LogRange { purged: 0, last: 3 });
    assert!(matches!(fixture.try_open(), Err(StoreError::LogLost(_))));
    fixture.log = LogRange { purged: file.position.index, last: file.position.index.max(log.last) };
    fixture.open();
    fixture.write("d", 400..410, "z");
    fixture.check();
    assert!(fixture.store().history().changes_from(1).unwrap().any(|change| change.is_err()));
    let later = fixture.store().history().changes_from(file.revision + 1).unwrap();
    assert_eq!(later.map(Result::unwrap).count(), 10);
}

#[test]
fn a_purged_log_without_a_whole_state_loads_nothing() {
    let mut fixture = Fixture::new();
    fixture.close();
    fixture.log = LogRange { purged: 5, last: 9 };
    assert!(matches!(fixture.try_open().unwrap(), Loaded::Nothing));
}

#[test]
fn equal_states_give_equal_files() {
    let mut fixtures = [Fixture::new(), Fixture::new()];
    for fixture in &mut fixtures {
        fixture.define("d");
        fixture.write("d", 0..30, "x");
    }
    fixtures[1].close();
    fixtures[1].open();
    let files = fixtures.each_ref().map(|fixture| fs::read(fixture.snapshot().path).unwrap());
    assert!(files[0] == files[1]);
}

#[test]
fn a_reindexed_definition_has_the_rows_of_one_that_was_always_indexed() {
    let mut fixture = Fixture::new();
    fixture.define("d");
    fixture.define("e");
    fixture.write("d", 0..200, "x");
    fixture.write("e", 0..5, "x");
    let set = |indexes: Vec<String>| Command::SetIndexes { key: key("d"), indexes, expect: Expect::Any };
    fixture.apply(vec![set(Vec::new()), set(vec!["b".into(), "a".into()])]);
    fixture.write("e", 0..9, "y");
    fixture.check();
    fixture.apply(vec![set(vec!["a".into()])]);
    fixture.write("d", 0..9, "y");
    fixture.apply(vec![
        set(Vec::new()),
        Command::DeleteDefinition { key: key("d"), expect: Expect::Any, restrict: false, keep: None },
    ]);
    fixture.check();
}

#[test]
fn an_index_build_is_mirrored_step_by_step_and_continues_after_a_restart() {
    let mut fixture = Fixture::new();
    fixture.define("d");
    fixture.apply((0..1100).map(|n| write("d", &format!("k{n:04}"), "x")).collect());
    let set = |indexes: Vec<String>| Command::SetIndexes { key: key("d"), indexes, expect: Expect::Any };
    for indexes in [Vec::new(), vec!["b".into(), "a".into()]] {
        fixture.apply(vec![set(indexes)]);
        let before = fixture.revisions_when_written();
        for step in 0.. {
            let Some(definition) = fixture.state.building().next().cloned() else { break };
            let build = definition.indexing.build.clone().unwrap();
            let (begun, cursor) = (build.begun, build.cursor);
            fixture.apply(vec![Command::BuildIndex { key: key("d"), begun, cursor }]);
            match step {
                0 => fixture.check(),
                1 => {
                    let file = fixture.snapshot();
                    let (state, _) = snapshot::file::read(&file.path, &AtRest::default()).unwrap();
                    assert_eq!(state.digest(), fixture.state.digest());
                    assert_eq!(state.building().count(), 1);
                }
                _ => {}
            }
        }
        assert_eq!(fixture.revisions_when_written(), before, "no step is in the history");
        fixture.check();
    }
    assert_eq!(fixture.state.definition("d").unwrap().indexes().by_slot[1].len(), 1100);
}

#[test]
fn a_definition_that_changes_without_its_configs_is_mirrored() {
    let mut fixture = Fixture::new();
    fixture.define("d");
    fixture.write("d", 0..20, "x");
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
    // In several chunks, then in one.
    fixture.apply(vec![set(200_000)]);
    fixture.check();
    fixture.apply(vec![unique, set(3)]);
    fixture.write("d", 20..25, "y");
    fixture.check();
    fixture.snapshot();
    fixture.close();
    fixture.open();
    let found = fixture.state.definition("d").unwrap();
    assert_eq!(found.definition.unique, ["a"]);
    fixture.check();
}

#[test]
fn a_directory_that_another_process_uses_is_left_alone() {
    let mut fixture = Fixture::new();
    fixture.define("d");
    fixture.close();
    let other = ::sled::open(fixture.sled()).unwrap();
    let refused = fixture.try_open();
    assert!(matches!(refused, Err(StoreError::Io { context, .. }) if context.contains("another process")));
    drop(other);
    assert!(fixture.sled().join("db").exists());
}

#[test]
fn waiting_for_a_failure_may_move_to_another_thread() {
    fn check<T: Send>(_: T) {}
    let fixture = Fixture::new();
    check(fixture.store().failed());
}

#[tokio::test]
async fn a_failure_of_the_history_is_reported() {
    let mut fixture = Fixture::new();
    fixture.define("d");
    fixture.snapshot();
    // The next segment can't be created.
    fs::remove_dir_all(fixture.path("history")).unwrap();
    fixture.write("d", 0..1, "x");
    let text = fixture.store().failed().await;
    assert!(text.contains("history"), "{text}");
    assert!(fixture.store().build_snapshot(&fixture.state, &fixture.position()).is_err());
    fixture.close();
}

#[test]
fn a_snapshot_weighs_what_its_records_do_before_compression() {
    let mut fixture = Fixture::new();
    fixture.define("d");
    fixture.apply(vec![write("d", "k", &"v".repeat(1 << 20))]);
    let written = fixture.snapshot();
    assert!(written.bytes < 1 << 16 && written.content_bytes > 1 << 20, "{written:?}");
    fixture.close();
    fixture.open();
    let verified = fixture.store().current_snapshot().unwrap();
    assert_eq!((verified.bytes, verified.content_bytes), (written.bytes, written.content_bytes));
}
