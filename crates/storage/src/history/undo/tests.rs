//! Undone changes, compared with the original states.

use std::collections::BTreeMap;

use super::*;
use crate::{
    at_rest::AtRest,
    history::{HistoryError, writer::HistoryWriter},
    snapshot::file::tests::config,
};
use concord_model::{index::Indexing, time::Timestamp};
use concord_state::{Change, Edit};

const KEYS: [&str; 3] = ["a", "b", "c"];

fn definition(revision: Revision) -> Arc<Definition> {
    Arc::new(Definition {
        id: 1 << 10,
        key: Key::parse("d").unwrap(),
        indexes: Vec::new(),
        schema: None,
        indexing: Indexing::fresh(0),
        created_at: Timestamp(1),
        modified_at: Timestamp(revision),
        revision,
        unique: Vec::new(),
        protected: false,
        standing: <_>::default(),
    })
}

type RecordsAsOf = (Option<Arc<Definition>>, BTreeMap<String, Arc<Config>>);

/// Writes changes of a definition and of three configs, and what there was after each of them.
fn write(writer: &mut HistoryWriter, revisions: std::ops::RangeInclusive<Revision>) -> Vec<RecordsAsOf> {
    let mut now: RecordsAsOf = (None, BTreeMap::new());
    let mut all = vec![now.clone()];
    for revision in revisions {
        let edit = if revision % 13 == 1 {
            let after = Some(definition(revision));
            Edit::Definition { before: std::mem::replace(&mut now.0, after.clone()), after }
        } else {
            let key = KEYS[usize::try_from(revision % 3).unwrap()];
            let before = now.1.get(key).cloned();
            let after = (revision % 5 > 0).then(|| Arc::new(config(key, revision, "{\"a\":1}")));
            match &after {
                Some(after) => drop(now.1.insert(key.to_owned(), Arc::clone(after))),
                None => drop(now.1.remove(key)),
            }
            if before.is_none() && after.is_none() {
                writer.advance(revision).unwrap();
                all.push(now.clone());
                continue;
            }
            Edit::Config { definition: 1 << 10, before, after }
        };
        let (at, by) = (Timestamp(revision), "root".into());
        writer.write(&Change { revision, at, by, reason: None, edits: vec![edit] }).unwrap();
        all.push(now.clone());
    }
    writer.flush().unwrap();
    all
}

fn scope() -> UndoScope {
    UndoScope::Configs { id: 1 << 10, key: Key::parse("d").unwrap() }
}

/// What there was at `after`, from what there was at `upto`.
fn taken_back(
    history: &Arc<History>,
    upto: &RecordsAsOf,
    after: Revision,
    until: Revision,
) -> Result<RecordsAsOf, UndoError> {
    let undo = history.undo(&scope(), after, until, &mut |_| true)?;
    let (mut definition, mut configs) = upto.clone();
    for (_, before) in undo.definitions {
        definition = before;
    }
    for (key, before) in undo.configs {
        match before {
            Some(before) => drop(configs.insert(key.to_string(), before)),
            None => drop(configs.remove(key.as_str())),
        }
    }
    Ok((definition, configs))
}

#[test]
fn undoing_changes_restores_the_earlier_records() {
    for segment_bytes in [300, 1000, 1 << 20] {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = HistoryWriter::open(directory.path(), segment_bytes, &AtRest::default()).unwrap();
        let all = write(&mut writer, 1..=80);
        let history = writer.history();
        for upto in [80, 79, 41, 14] {
            for after in 0..=upto {
                let records = |revision: u64| &all[usize::try_from(revision).unwrap()];
                let found = taken_back(&history, records(upto), after, upto).unwrap();
                assert_eq!(found, *records(after), "{segment_bytes}: {after} from {upto}");
            }
        }
        assert!(matches!(
            history.undo(&scope(), 3, 81, &mut |_| true),
            Err(UndoError::History(HistoryError::Gap { upto: 81, .. }))
        ));
        let mut left = 3;
        let given_up = history.undo(&scope(), 3, 80, &mut |_| {
            left -= 1;
            left > 0
        });
        assert!(matches!(given_up, Err(UndoError::GivenUp)));
    }
}

#[test]
fn a_compaction_removes_only_segments_below_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = HistoryWriter::open(directory.path(), 600, &AtRest::default()).unwrap();
    let all = write(&mut writer, 1..=80);
    writer.compact(50).unwrap();
    let history = writer.history();
    for after in 50..80 {
        let found = taken_back(&history, &all[80], after, 80).unwrap();
        assert_eq!(found, all[usize::try_from(after).unwrap()], "{after}");
    }
    let compacted = history.undo(&scope(), 49, 80, &mut |_| true);
    assert!(matches!(
        compacted,
        Err(UndoError::History(HistoryError::Compacted { compaction_revision: 50 }))
    ));
}

#[test]
fn a_received_segment_has_the_definitions_that_were_replaced() {
    let (full, gapped) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut whole = HistoryWriter::open(full.path(), 1 << 20, &AtRest::default()).unwrap();
    let all = write(&mut whole, 1..=80);
    let mut writer = HistoryWriter::open(gapped.path(), 300, &AtRest::default()).unwrap();
    writer.skip_to(80).unwrap();
    writer.compact(30).unwrap();
    let segment = whole.history().export(30, 80).unwrap();
    writer.history().import(30, &segment).unwrap();
    for after in 30..80 {
        let found = taken_back(&writer.history(), &all[80], after, 80).unwrap();
        assert_eq!(found, all[usize::try_from(after).unwrap()], "{after}");
    }
}
