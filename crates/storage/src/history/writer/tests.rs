//! The writer of the history, and the readers on what it wrote.

use std::{fs, sync::Arc};

use super::*;
use crate::{
    history::{
        query::{AsOf, HistoryError, RecordOperation},
        segment_index::Subject,
    },
    snapshot::file::tests::config,
};
use concord_model::time::Timestamp;
use concord_state::Edit;

pub(crate) fn change(revision: Revision) -> Change {
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

#[test]
fn a_time_is_found_behind_a_segment_without_changes() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = open(directory.path());
    writer.advance(1).unwrap();
    writer.seal().unwrap();
    for revision in 2..=3 {
        writer.write(&change(revision)).unwrap();
    }
    writer.seal().unwrap();
    writer.advance(4).unwrap();
    writer.seal().unwrap();
    writer.write(&change(5)).unwrap();
    writer.flush().unwrap();
    let history = writer.history();
    assert_eq!(history.spans().all.len(), 4, "each is a segment");
    for (at, revision) in [(1, 0), (2, 2), (3, 3), (4, 3), (5, 5), (9, 5)] {
        assert_eq!(history.last_revision_at(Timestamp(at)).unwrap(), revision, "at {at}");
    }
}

fn open(directory: &Path) -> HistoryWriter {
    HistoryWriter::open(directory, 1 << 20, &AtRest::default()).unwrap()
}

/// Reads as the readers do while the writer is running.
fn read(writer: &HistoryWriter, from: Revision) -> Result<Vec<Revision>, HistoryError> {
    writer.history().changes_from(from)?.map(|change| change.map(|change| change.revision)).collect()
}

/// Reads as after a restart.
fn revisions(directory: &Path, from: Revision) -> Result<Vec<Revision>, HistoryError> {
    read(&open(directory), from)
}

#[test]
fn changes_are_read_as_written_and_never_written_twice() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        let mut writer = open(directory.path());
        for revision in 1..=5 {
            writer.write(&change(revision)).unwrap();
        }
        writer.advance(7).unwrap();
        writer.flush().unwrap();
        assert_eq!(writer.applied(), 7);
    }
    assert_eq!(revisions(directory.path(), 0).unwrap(), [1, 2, 3, 4, 5]);
    assert_eq!(revisions(directory.path(), 4).unwrap(), [4, 5]);
    let history = open(directory.path()).history();
    let first = history.changes_from(3).unwrap().next().unwrap().unwrap();
    assert_eq!(first, StoredChange::of(&change(3), 0));
}

#[test]
fn segments_are_sealed_when_full_and_read_as_one() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = HistoryWriter::open(directory.path(), 300, &AtRest::default()).unwrap();
    for revision in 1..=40 {
        writer.write(&change(revision)).unwrap();
    }
    writer.seal().unwrap();
    let all: Vec<_> = (1..=40).collect();
    assert_eq!(revisions(directory.path(), 1).unwrap(), all);
    assert_eq!(revisions(directory.path(), 33).unwrap(), all[32..]);
    assert!(format::segments(directory.path()).unwrap().len() > 5);
    let on_disk: u64 =
        fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(writer.bytes(), on_disk);
    let again = HistoryWriter::open(directory.path(), 300, &AtRest::default()).unwrap();
    assert_eq!((again.applied(), again.bytes()), (40, on_disk));
}

#[test]
fn a_torn_tail_is_cut_wherever_it_was_torn_and_written_again() {
    let whole = tempfile::tempdir().unwrap();
    let mut writer = open(whole.path());
    for revision in 1..=3 {
        writer.write(&change(revision)).unwrap();
    }
    drop(writer);
    let name = "segment-00000000000000000000.open";
    let bytes = fs::read(whole.path().join(name)).unwrap();
    for cut in 0..bytes.len() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(name), &bytes[..cut]).unwrap();
        let mut writer = open(directory.path());
        assert!(writer.applied() < 3, "cut at {cut}");
        for revision in 1..=3 {
            writer.write(&change(revision)).unwrap();
        }
        writer.seal().unwrap();
        assert_eq!(revisions(directory.path(), 1).unwrap(), [1, 2, 3], "cut at {cut}");
    }
    for byte in 0..bytes.len() {
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = bytes.clone();
        bytes[byte] ^= 0x10;
        fs::write(directory.path().join(name), &bytes).unwrap();
        let mut writer = open(directory.path());
        for revision in writer.applied() + 1..=3 {
            writer.write(&change(revision)).unwrap();
        }
        writer.flush().unwrap();
        assert_eq!(read(&writer, 1).unwrap(), [1, 2, 3], "damage at {byte}");
        drop(writer);
        assert_eq!(revisions(directory.path(), 1).unwrap(), [1, 2, 3], "damage at {byte}");
    }
}

#[test]
fn damage_of_a_sealed_segment_is_an_error_and_never_another_change() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = open(directory.path());
    for revision in 1..=3 {
        writer.write(&change(revision)).unwrap();
    }
    writer.seal().unwrap();
    let path = directory.path().join("segment-00000000000000000000.sealed");
    let bytes = fs::read(&path).unwrap();
    for byte in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[byte] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert!(read(&writer, 1).is_err(), "damage at {byte}");
    }
    for cut in 0..bytes.len() {
        fs::write(&path, &bytes[..cut]).unwrap();
        assert!(read(&writer, 1).is_err(), "cut at {cut}");
    }
}

#[test]
fn a_crash_between_seal_and_rename_is_completed() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = open(directory.path());
    writer.write(&change(1)).unwrap();
    writer.seal().unwrap();
    let sealed = directory.path().join("segment-00000000000000000000.sealed");
    fs::rename(&sealed, directory.path().join("segment-00000000000000000000.open")).unwrap();
    let mut writer = open(directory.path());
    assert!(sealed.exists());
    writer.write(&change(2)).unwrap();
    writer.flush().unwrap();
    assert_eq!(revisions(directory.path(), 1).unwrap(), [1, 2]);
}

#[test]
#[expect(
    clippy::cognitive_complexity,
    reason = "one history, checked after each step; clippy counts its assertions"
)]
fn changes_that_an_installed_state_skipped_are_a_gap() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = open(directory.path());
    writer.write(&change(1)).unwrap();
    writer.skip_to(10).unwrap();
    writer.write(&change(11)).unwrap();
    writer.seal().unwrap();
    assert!(revisions(directory.path(), 1).is_err());
    assert_eq!(revisions(directory.path(), 11).unwrap(), [11]);
    let history = writer.history();
    assert_eq!(history.first_gap(), Some((1, 10)));
    assert!(matches!(history.page(&subject(), 11, 5), Err(HistoryError::Gap { after: 1, upto: 10 })));
    assert_eq!(history.page(&subject(), 11, 1).map(|page| page.items.len()).ok(), None, "is there more?");
    assert!(matches!(history.config_as_of(&subject(), 5, 11), Err(HistoryError::Gap { .. })));
    let replaced = AsOf::Value(Some(Arc::new(config("k", 10, "{}"))));
    assert_eq!(history.config_as_of(&subject(), 10, 11).unwrap(), replaced);
    writer.skip_to(20).unwrap();
    assert_eq!(history.first_gap(), Some((1, 10)));
    assert!(matches!(read(&writer, 12), Err(HistoryError::Gap { after: 11, upto: 20 })));
    assert!(matches!(read(&writer, 15), Err(HistoryError::Gap { after: 11, upto: 20 })));
    assert_eq!(read(&writer, 21).unwrap(), [] as [Revision; 0]);
    writer.compact(10).unwrap();
    assert_eq!(history.first_gap(), Some((11, 20)));
}

fn subject() -> Subject {
    Subject::Config { definition: 1, key: "k".into() }
}

#[test]
#[expect(
    clippy::cognitive_complexity,
    reason = "one history, checked after each step; clippy counts its assertions"
)]
fn a_record_is_found_across_segments_deletions_and_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = HistoryWriter::open(directory.path(), 400, &AtRest::default()).unwrap();
    let record = |revision| Arc::new(config("k", revision, &format!("{{\"r\":{revision}}}")));
    let mut last: Option<Arc<concord_model::record::Config>> = None;
    for revision in 1..=60 {
        // Every seventh deletes, the next one creates again; another key changes at each third.
        let after = (revision % 7 != 0).then(|| record(revision));
        let mut edits = vec![Edit::Config { definition: 1, before: last.clone(), after: after.clone() }];
        let other = Some(Arc::new(config("other", revision, "{}")));
        if revision % 3 == 0 {
            edits.push(Edit::Config { definition: 1, before: None, after: other });
        }
        last = after;
        writer.write(&Change { edits, ..change(revision) }).unwrap();
    }
    writer.flush().unwrap();
    for _ in 0..2 {
        let history = writer.history();
        assert!(history.spans().all.len() > 5);
        for at in 1..60 {
            let expected = (at % 7 != 0).then(|| record(at));
            assert_eq!(history.config_as_of(&subject(), at, 60).unwrap(), AsOf::Value(expected), "at {at}");
        }
        assert_eq!(history.config_as_of(&subject(), 60, 60).unwrap(), AsOf::Unchanged);
        let (mut upper, mut seen) = (60, Vec::new());
        loop {
            let page = history.page(&subject(), upper, 7).unwrap();
            seen.extend(page.items.iter().map(|entry| entry.revision));
            match page.next_before {
                Some(before) => upper = before - 1,
                None => break,
            }
        }
        assert_eq!(seen, (1..=60).rev().collect::<Vec<_>>());
        let page = history.page(&subject(), 14, 2).unwrap();
        let operations: Vec<_> = page.items.iter().map(|entry| entry.operation).collect();
        assert_eq!(operations, [RecordOperation::Delete, RecordOperation::Update]);
        assert_eq!(history.page(&subject(), 8, 1).unwrap().items[0].operation, RecordOperation::Create);
        assert_eq!(history.config_written_at(&subject(), 20).unwrap(), record(20));
        assert!(history.config_written_at(&subject(), 21).is_err());
        assert_eq!(history.last_revision_at(Timestamp(33)).unwrap(), 33);
        assert_eq!(history.last_revision_at(Timestamp(0)).unwrap(), 0);
        drop(writer);
        writer = HistoryWriter::open(directory.path(), 400, &AtRest::default()).unwrap();
    }
    // Removing everything below the compaction revision leaves what is above it unchanged.
    writer.compact(31).unwrap();
    let history = writer.history();
    assert!(history.spans().all[0].after > 15, "older segments are removed");
    for at in 31..60 {
        let expected = (at % 7 != 0).then(|| record(at));
        assert_eq!(history.config_as_of(&subject(), at, 60).unwrap(), AsOf::Value(expected), "at {at}");
    }
    assert!(matches!(
        history.config_as_of(&subject(), 30, 60),
        Err(HistoryError::Compacted { compaction_revision: 31 })
    ));
    assert!(matches!(read(&writer, 31), Err(HistoryError::Compacted { compaction_revision: 31 })));
    assert_eq!(read(&writer, 32).unwrap(), (32..=60).collect::<Vec<_>>());
    let page = history.page(&subject(), 60, 100).unwrap();
    assert_eq!((page.items.len(), page.next_before, page.compaction_revision), (29, None, 31));
}

#[test]
fn an_open_segment_is_sealed_by_a_compaction_and_removed_by_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = open(directory.path());
    for revision in 1..=3 {
        writer.write(&change(revision)).unwrap();
    }
    writer.compact(2).unwrap();
    writer.write(&change(4)).unwrap();
    writer.flush().unwrap();
    assert_eq!(read(&writer, 3).unwrap(), [3, 4]);
    assert_eq!(writer.history().spans().all.len(), 2);
    writer.compact(3).unwrap();
    assert_eq!(writer.history().spans().all.len(), 1);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    assert_eq!(read(&writer, 4).unwrap(), [4]);
    let replaced = AsOf::Value(Some(Arc::new(config("k", 3, "{}"))));
    assert_eq!(writer.history().config_as_of(&subject(), 3, 4).unwrap(), replaced);
}

#[test]
fn damage_in_the_open_segment_is_an_error_but_an_unwritten_end_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = open(directory.path());
    for revision in 1..=3 {
        writer.write(&change(revision)).unwrap();
    }
    writer.flush().unwrap();
    let path = format::segments(directory.path()).unwrap().pop().unwrap().path(directory.path());
    let whole = fs::read(&path).unwrap();
    // As while the writer hands the last change to the operating system.
    fs::write(&path, &whole[..whole.len() - 5]).unwrap();
    assert_eq!(read(&writer, 1).unwrap(), [1, 2]);
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 4;
    fs::write(&path, damaged).unwrap();
    assert!(matches!(read(&writer, 1), Err(HistoryError::Failed(_))), "{:?}", read(&writer, 1));
    fs::write(&path, &whole).unwrap();
    assert_eq!(read(&writer, 1).unwrap(), [1, 2, 3]);
}
