//! The writer, and its readers on what it wrote.

use std::{fs, sync::Arc};

use super::*;
use crate::{
    model::time::Timestamp,
    state::Edit,
    store::{
        history::{
            query::{Changes, HistoryError, Operation, Was},
            segment_index::Subject,
        },
        snapshot::file::tests::config,
    },
};

pub(in crate::store) fn change(revision: Revision) -> Change {
    let before = (revision > 1).then(|| Arc::new(config("k", revision - 1, "{}")));
    let after = Some(Arc::new(config("k", revision, "{\"a\":1}")));
    Change {
        revision,
        at: Timestamp(revision),
        by: "root".into(),
        reason: None,
        edits: vec![Edit::Config { definition: 1, before, after }],
    }
}

fn open(directory: &Path) -> History {
    History::open(directory, 1 << 20).unwrap()
}

/// Reads as the readers of a running writer do.
fn read(history: &History, from: Revision) -> Result<Vec<Revision>, HistoryError> {
    Changes::new(&history.catalog(), from)?.map(|change| change.map(|change| change.revision)).collect()
}

/// Reads as after a start.
fn revisions(directory: &Path, from: Revision) -> Result<Vec<Revision>, HistoryError> {
    read(&open(directory), from)
}

#[test]
fn changes_come_back_and_are_never_written_twice() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        let mut history = open(directory.path());
        for revision in 1..=5 {
            history.write(&change(revision)).unwrap();
        }
        history.reached(7).unwrap();
        history.flush().unwrap();
        assert_eq!(history.reach(), 7);
    }
    assert_eq!(revisions(directory.path(), 0).unwrap(), [1, 2, 3, 4, 5]);
    assert_eq!(revisions(directory.path(), 4).unwrap(), [4, 5]);
    let catalog = open(directory.path()).catalog();
    let first = Changes::new(&catalog, 3).unwrap().next().unwrap().unwrap();
    assert_eq!(first, StoredChange::of(&change(3), 0));
}

#[test]
fn segments_are_sealed_when_full_and_read_as_one() {
    let directory = tempfile::tempdir().unwrap();
    let mut history = History::open(directory.path(), 300).unwrap();
    for revision in 1..=40 {
        history.write(&change(revision)).unwrap();
    }
    history.seal().unwrap();
    let all: Vec<_> = (1..=40).collect();
    assert_eq!(revisions(directory.path(), 1).unwrap(), all);
    assert_eq!(revisions(directory.path(), 33).unwrap(), all[32..]);
    assert!(format::segments(directory.path()).unwrap().len() > 5);
    let on_disk: u64 =
        fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(history.bytes(), on_disk);
    let again = History::open(directory.path(), 300).unwrap();
    assert_eq!((again.reach(), again.bytes()), (40, on_disk));
}

#[test]
fn a_torn_tail_is_cut_wherever_it_was_torn_and_written_again() {
    let whole = tempfile::tempdir().unwrap();
    let mut history = open(whole.path());
    for revision in 1..=3 {
        history.write(&change(revision)).unwrap();
    }
    drop(history);
    let name = "segment-00000000000000000000.open";
    let bytes = fs::read(whole.path().join(name)).unwrap();
    for cut in 0..bytes.len() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(name), &bytes[..cut]).unwrap();
        let mut history = open(directory.path());
        assert!(history.reach() < 3, "cut at {cut}");
        for revision in 1..=3 {
            history.write(&change(revision)).unwrap();
        }
        history.seal().unwrap();
        assert_eq!(revisions(directory.path(), 1).unwrap(), [1, 2, 3], "cut at {cut}");
    }
    for byte in 0..bytes.len() {
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = bytes.clone();
        bytes[byte] ^= 0x10;
        fs::write(directory.path().join(name), &bytes).unwrap();
        let mut history = open(directory.path());
        for revision in history.reach() + 1..=3 {
            history.write(&change(revision)).unwrap();
        }
        history.flush().unwrap();
        assert_eq!(read(&history, 1).unwrap(), [1, 2, 3], "damage at {byte}");
        drop(history);
        assert_eq!(revisions(directory.path(), 1).unwrap(), [1, 2, 3], "damage at {byte}");
    }
}

#[test]
fn damage_of_a_sealed_segment_is_an_error_and_never_another_change() {
    let directory = tempfile::tempdir().unwrap();
    let mut history = open(directory.path());
    for revision in 1..=3 {
        history.write(&change(revision)).unwrap();
    }
    history.seal().unwrap();
    let path = directory.path().join("segment-00000000000000000000.sealed");
    let bytes = fs::read(&path).unwrap();
    for byte in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[byte] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert!(read(&history, 1).is_err(), "damage at {byte}");
    }
    for cut in 0..bytes.len() {
        fs::write(&path, &bytes[..cut]).unwrap();
        assert!(read(&history, 1).is_err(), "cut at {cut}");
    }
}

#[test]
fn a_crash_between_seal_and_rename_is_completed() {
    let directory = tempfile::tempdir().unwrap();
    let mut history = open(directory.path());
    history.write(&change(1)).unwrap();
    history.seal().unwrap();
    let sealed = directory.path().join("segment-00000000000000000000.sealed");
    fs::rename(&sealed, directory.path().join("segment-00000000000000000000.open")).unwrap();
    let mut history = open(directory.path());
    assert!(sealed.exists());
    history.write(&change(2)).unwrap();
    history.flush().unwrap();
    assert_eq!(revisions(directory.path(), 1).unwrap(), [1, 2]);
}

#[test]
#[expect(
    clippy::cognitive_complexity,
    reason = "one history, looked at after each step; clippy counts its assertions"
)]
fn what_an_installed_state_skipped_is_a_gap_and_not_an_empty_stretch() {
    let directory = tempfile::tempdir().unwrap();
    let mut history = open(directory.path());
    history.write(&change(1)).unwrap();
    history.jump(10).unwrap();
    history.write(&change(11)).unwrap();
    history.seal().unwrap();
    assert!(revisions(directory.path(), 1).is_err());
    assert_eq!(revisions(directory.path(), 11).unwrap(), [11]);
    let catalog = history.catalog();
    assert_eq!(catalog.gap(), Some((1, 10)));
    assert!(matches!(catalog.page(&subject(), 11, 5), Err(HistoryError::Gap { behind: 1, to: 10 })));
    assert_eq!(catalog.page(&subject(), 11, 1).map(|page| page.items.len()).ok(), None, "is there more?");
    assert!(matches!(catalog.config_at(&subject(), 5, 11), Err(HistoryError::Gap { .. })));
    let replaced = Was::Then(Some(Arc::new(config("k", 10, "{}"))));
    assert_eq!(catalog.config_at(&subject(), 10, 11).unwrap(), replaced);
    history.jump(20).unwrap();
    assert_eq!(catalog.gap(), Some((1, 10)));
    assert!(matches!(read(&history, 12), Err(HistoryError::Gap { behind: 11, to: 20 })));
    assert!(matches!(read(&history, 15), Err(HistoryError::Gap { behind: 11, to: 20 })));
    assert_eq!(read(&history, 21).unwrap(), [] as [Revision; 0]);
    history.compact(10).unwrap();
    assert_eq!(catalog.gap(), Some((11, 20)));
}

fn subject() -> Subject {
    Subject::Config { definition: 1, key: "k".into() }
}

#[test]
#[expect(
    clippy::cognitive_complexity,
    reason = "one history, looked at after each step; clippy counts its assertions"
)]
fn a_key_is_followed_through_segments_deletions_and_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut history = History::open(directory.path(), 400).unwrap();
    let record = |revision| Arc::new(config("k", revision, &format!("{{\"r\":{revision}}}")));
    let mut last: Option<Arc<crate::model::record::Config>> = None;
    for revision in 1..=60 {
        // Every seventh deletes, the next one creates again; another key changes at each third.
        let after = (revision % 7 != 0).then(|| record(revision));
        let mut edits = vec![Edit::Config { definition: 1, before: last.clone(), after: after.clone() }];
        let other = Some(Arc::new(config("other", revision, "{}")));
        if revision % 3 == 0 {
            edits.push(Edit::Config { definition: 1, before: None, after: other });
        }
        last = after;
        history.write(&Change { edits, ..change(revision) }).unwrap();
    }
    history.flush().unwrap();
    for _ in 0..2 {
        let catalog = history.catalog();
        assert!(catalog.spans().all.len() > 5);
        for at in 1..60 {
            let expected = (at % 7 != 0).then(|| record(at));
            assert_eq!(catalog.config_at(&subject(), at, 60).unwrap(), Was::Then(expected), "at {at}");
        }
        assert_eq!(catalog.config_at(&subject(), 60, 60).unwrap(), Was::Unchanged);
        let (mut upper, mut seen) = (60, Vec::new());
        loop {
            let page = catalog.page(&subject(), upper, 7).unwrap();
            seen.extend(page.items.iter().map(|past| past.revision));
            match page.next_before {
                Some(before) => upper = before - 1,
                None => break,
            }
        }
        assert_eq!(seen, (1..=60).rev().collect::<Vec<_>>());
        let page = catalog.page(&subject(), 14, 2).unwrap();
        let operations: Vec<_> = page.items.iter().map(|past| past.operation).collect();
        assert_eq!(operations, [Operation::Delete, Operation::Update]);
        assert_eq!(catalog.page(&subject(), 8, 1).unwrap().items[0].operation, Operation::Create);
        assert_eq!(catalog.config_of(&subject(), 20).unwrap(), record(20));
        assert!(catalog.config_of(&subject(), 21).is_err());
        assert_eq!(catalog.oldest_after(Timestamp(33)).unwrap(), 33);
        assert_eq!(catalog.oldest_after(Timestamp(0)).unwrap(), 0);
        drop(history);
        history = History::open(directory.path(), 400).unwrap();
    }
    // What is above the compaction revision stays as it was when everything below it is gone.
    history.compact(31).unwrap();
    let catalog = history.catalog();
    assert!(catalog.spans().all[0].behind > 15, "older segments are removed");
    for at in 31..60 {
        let expected = (at % 7 != 0).then(|| record(at));
        assert_eq!(catalog.config_at(&subject(), at, 60).unwrap(), Was::Then(expected), "at {at}");
    }
    assert!(matches!(
        catalog.config_at(&subject(), 30, 60),
        Err(HistoryError::Compacted { compaction_revision: 31 })
    ));
    assert!(matches!(read(&history, 31), Err(HistoryError::Compacted { compaction_revision: 31 })));
    assert_eq!(read(&history, 32).unwrap(), (32..=60).collect::<Vec<_>>());
    let page = catalog.page(&subject(), 60, 100).unwrap();
    assert_eq!((page.items.len(), page.next_before, page.compaction_revision), (29, None, 31));
}

#[test]
fn a_segment_that_the_floor_has_entered_is_sealed_and_goes_when_it_is_passed() {
    let directory = tempfile::tempdir().unwrap();
    let mut history = open(directory.path());
    for revision in 1..=3 {
        history.write(&change(revision)).unwrap();
    }
    history.compact(2).unwrap();
    history.write(&change(4)).unwrap();
    history.flush().unwrap();
    assert_eq!(read(&history, 3).unwrap(), [3, 4]);
    assert_eq!(history.catalog().spans().all.len(), 2);
    history.compact(3).unwrap();
    assert_eq!(history.catalog().spans().all.len(), 1);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    assert_eq!(read(&history, 4).unwrap(), [4]);
    let replaced = Was::Then(Some(Arc::new(config("k", 3, "{}"))));
    assert_eq!(history.catalog().config_at(&subject(), 3, 4).unwrap(), replaced);
}
