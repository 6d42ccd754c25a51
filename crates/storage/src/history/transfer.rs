//! Filling gaps: a member that installed a snapshot gets the history before it from a member that has it.
//!
//! The history travels as one sealed segment, encoded for the gap that it fills: it begins where the gap
//! begins, and holds the records that its changes replaced as every segment does.
//!
//! **Invariant:** a received segment is validated whole before it is stored, and is durable before it is
//! read.

use std::{fs::File, path::Path, sync::Arc};

use super::{
    conversion,
    format::{Encoder, Segment, StoredChange, StoredEdit},
    query::HistoryError,
    reader::scan_from,
    segment_index::{Index, Subject},
    segments::History,
};
use crate::{
    StoreError,
    at_rest::AtRest,
    files::{self, io},
};
use concord_model::record::Revision;

/// Bytes of changes after which an exported segment ends.
const EXPORT_BYTES: u64 = 4 << 20;

impl History {
    /// The changes after a revision, up to and including another, or up to the size of one message, as a sealed segment
    /// for [`Self::import`]. Blocking.
    ///
    /// # Errors
    /// When the range is not on this node, or the disk fails.
    pub fn export(self: &Arc<Self>, after: Revision, upto: Revision) -> Result<Vec<u8>, HistoryError> {
        let memory = "writing to memory does not fail";
        let mut encoder = Encoder::new(Vec::new(), after, &AtRest::default()).expect(memory);
        let mut index = Index::default();
        let mut ended = true;
        for change in self.changes_from(after + 1)? {
            let mut change = change?;
            if change.revision > upto {
                break;
            }
            if encoder.bytes >= EXPORT_BYTES {
                ended = false;
                break;
            }
            self.embed_replaced(&mut change, after)?;
            index.add(&change, encoder.bytes);
            encoder.change(&change).expect(memory);
            if change.revision == upto {
                break;
            }
        }
        if ended && encoder.upto() < upto {
            encoder.applied_mark(upto).expect(memory);
        }
        Ok(encoder.seal(&index).expect(memory))
    }

    /// Embeds the records that a change replaced and that are older than its segment, which begins after
    /// `segment_after`.
    fn embed_replaced(&self, change: &mut StoredChange, segment_after: Revision) -> Result<(), HistoryError> {
        for edit in &mut change.edits {
            match edit {
                StoredEdit::Config { definition, key, before: Some(before), after }
                    if *before <= segment_after =>
                {
                    let subject = Subject::Config { definition: *definition, key: key.as_str().into() };
                    let (definition, before) = (*definition, self.config_written_at(&subject, *before)?);
                    *edit = StoredEdit::ConfigWithBefore { definition, before, after: after.take() };
                }
                StoredEdit::Definition { key, before: Some(before), after, .. }
                    if *before <= segment_after =>
                {
                    let before = self.definition_written_at(key.as_str(), *before)?;
                    *edit = StoredEdit::DefinitionWithBefore { before, after: after.take() };
                }
                StoredEdit::Definition { .. }
                | StoredEdit::DefinitionWithBefore { .. }
                | StoredEdit::Reindexed { .. }
                | StoredEdit::Deleted { .. }
                | StoredEdit::Undeleted { .. }
                | StoredEdit::Dropped { .. }
                | StoredEdit::Skipped(_)
                | StoredEdit::System { .. }
                | StoredEdit::Config { .. }
                | StoredEdit::ConfigWithBefore { .. }
                | StoredEdit::Remember(_)
                | StoredEdit::Forget(_) => {}
            }
        }
        Ok(())
    }

    /// Stores a segment that another member exported for the gap after a revision; returns the revision up to
    /// which it fills the gap. Blocking.
    ///
    /// # Errors
    /// When the segment is damaged or not needed, or the disk fails.
    pub fn import(&self, after: Revision, segment: &[u8]) -> Result<Revision, StoreError> {
        let scan = scan_from(segment, after, &AtRest::default())
            .map_err(io("can't read a received history segment"))?;
        if !scan.sealed || scan.bytes != segment.len() as u64 {
            return Err(refused(scan.damage.unwrap_or("is not complete")));
        }
        let upto = scan.totals.upto;
        let path = Segment { after, sealed: true }.path(&self.directory);
        if path.exists() || upto <= after {
            return Err(refused("is not needed"));
        }
        let bytes = self.store_received(&path, (after, upto), segment)?;
        if !self.add_received(after, upto, bytes) {
            files::remove(&path)?;
            return Err(refused("does not fit the gap"));
        }
        Ok(upto)
    }

    /// Writes a segment that was validated; returns its length on the disk.
    fn store_received(
        &self,
        path: &Path,
        (after, upto): (Revision, Revision),
        segment: &[u8],
    ) -> Result<u64, StoreError> {
        if !self.at_rest.seals() {
            files::write_file(path, segment)?;
            return Ok(segment.len() as u64);
        }
        let unfinished = files::unfinished(path);
        let failed = || format!("can't write {}", unfinished.display());
        let file = File::create(&unfinished).map_err(io(failed()))?;
        let copied = conversion::copy((segment, &AtRest::default()), (file, &self.at_rest), after)
            .map_err(io(failed()))?;
        if copied.upto != upto {
            files::remove(&unfinished)?;
            return Err(refused(copied.damage.unwrap_or("was not copied whole")));
        }
        files::rename(&unfinished, path)?;
        Ok(copied.bytes)
    }
}

fn refused(what: &str) -> StoreError {
    StoreError::Damaged(format!("a received history segment {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        at_rest::KEYS,
        history::{
            query::AsOf,
            writer::{HistoryWriter, tests::change},
        },
    };

    fn written(
        directory: &Path,
        revisions: std::ops::RangeInclusive<Revision>,
        at_rest: &AtRest,
    ) -> HistoryWriter {
        let mut writer = HistoryWriter::open(directory, 500, at_rest).unwrap();
        for revision in revisions {
            writer.write(&change(revision)).unwrap();
        }
        writer.flush().unwrap();
        writer
    }

    #[test]
    fn a_gap_is_filled_by_another_member_and_stays_filled() {
        let (plain, keys) = (AtRest::default(), tempfile::tempdir().unwrap());
        let sealed = AtRest::for_tests(keys.path(), KEYS[0]);
        for [whole, gapped] in [[&plain, &plain], [&plain, &sealed], [&sealed, &sealed], [&sealed, &plain]] {
            a_gap_is_filled(whole, gapped);
        }
        // From now on every file of the directory must be encrypted.
        sealed.converted().unwrap();
        a_gap_is_filled(&plain, &sealed);
        a_gap_is_filled(&sealed, &sealed);
    }

    /// The keys are those of the member with the whole history, and those of the one with a gap.
    fn a_gap_is_filled(whole_keys: &AtRest, gapped_keys: &AtRest) {
        let (full, gapped) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let whole = written(full.path(), 1..=50, whole_keys);
        let mut writer = written(gapped.path(), 1..=5, gapped_keys);
        writer.skip_to(40).unwrap();
        writer.write(&change(41)).unwrap();
        writer.flush().unwrap();
        let history = writer.history();
        let segment = whole.history().export(5, 40).unwrap();
        for byte in (0..segment.len()).step_by(7) {
            let mut damaged = segment.clone();
            damaged[byte] ^= 1;
            assert!(history.import(5, &damaged).is_err(), "damage at {byte}");
        }
        assert!(history.import(5, &segment[..segment.len() - 1]).is_err());
        assert!(history.import(4, &segment).is_err());
        assert_eq!(history.first_gap(), Some((5, 40)));
        assert_eq!(history.import(5, &segment).unwrap(), 40);
        assert!(history.import(5, &segment).is_err(), "twice");
        is_whole(&history);
        drop(writer);
        let writer = HistoryWriter::open(gapped.path(), 500, gapped_keys).unwrap();
        is_whole(&writer.history());
    }

    fn is_whole(history: &Arc<History>) {
        assert_eq!(history.first_gap(), None);
        let all: Result<Vec<_>, _> = history.changes_from(1).unwrap().collect();
        assert_eq!(all.unwrap().iter().map(|change| change.revision).collect::<Vec<_>>(), {
            (1..=41).collect::<Vec<_>>()
        });
        let subject = Subject::Config { definition: 1, key: "k".into() };
        for at in 1..41 {
            let AsOf::Value(Some(config)) = history.config_as_of(&subject, at, 41).unwrap() else {
                panic!("{at}")
            };
            assert_eq!(config.revision, at);
        }
    }

    #[test]
    fn a_damaged_segment_is_noted_and_replaced_by_what_another_member_sends() {
        let keys = AtRest::default();
        let (full, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let whole = written(full.path(), 1..=41, &keys);
        drop(written(own.path(), 1..=41, &keys));
        let mut sealed: Vec<_> =
            std::fs::read_dir(own.path()).unwrap().map(|file| file.unwrap().path()).collect();
        sealed.retain(|path| path.extension().is_some_and(|ending| ending == "sealed"));
        sealed.sort();
        assert!(sealed.len() > 3);
        let path = &sealed[1];
        let before = std::fs::read(path).unwrap();
        let subject = Subject::Config { definition: 1, key: "k".into() };
        for place in 0..before.len() {
            let mut after = before.clone();
            after[place] ^= 4;
            std::fs::write(path, &after).unwrap();
            let writer = HistoryWriter::open(own.path(), 500, &keys).unwrap();
            let history = writer.history();
            // Its end is read at the start, and the rest by who needs it.
            let read = history.changes_from(1).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            let noted = history.first_gap().or_else(|| history.first_damaged());
            let (after, upto) = noted.unwrap_or_else(|| panic!("damage at byte {place} is not noted"));
            assert!(read.is_err(), "{place}");
            if history.first_gap().is_none() {
                assert!(history.page(&subject, after, 1).is_ok(), "what came before is read meanwhile");
                history.set_aside(after).unwrap();
            }
            let part = whole.history().export(after, upto).unwrap();
            assert_eq!(history.import(after, &part).unwrap(), upto, "{place}");
            assert_eq!((history.first_gap(), history.first_damaged()), (None, None));
            is_whole(&history);
            drop(writer);
            std::fs::write(path, &before).unwrap();
            std::fs::remove_file(path.with_extension("damaged")).unwrap();
        }
    }

    #[test]
    fn what_is_retained_of_a_damaged_segment_is_replaced() {
        let keys = AtRest::default();
        let (full, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let whole = written(full.path(), 1..=41, &keys);
        let writer = written(own.path(), 1..=41, &keys);
        let history = writer.history();
        let span = history.spans().all[1];
        let path = Segment { after: span.after, sealed: true }.path(own.path());
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(history.changes_from(1).unwrap().any(|change| change.is_err()));
        // On every node.
        for history in [&history, &whole.history()] {
            assert_eq!(history.raise_compaction_revision(span.after + 1).len(), 1);
        }
        assert_eq!(history.first_damaged(), Some((span.after + 1, span.upto)));
        let part = whole.history().export(span.after + 1, span.upto).unwrap();
        history.set_aside(span.after + 1).unwrap();
        assert!(!path.exists());
        assert_eq!(history.import(span.after + 1, &part).unwrap(), span.upto);
        assert_eq!((history.first_gap(), history.first_damaged()), (None, None));
        let all: Vec<_> =
            history.changes_from(span.after + 2).unwrap().map(|change| change.unwrap().revision).collect();
        assert_eq!(all, (span.after + 2..=41).collect::<Vec<_>>());
    }

    #[test]
    fn a_member_does_not_export_across_its_own_gap() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = written(directory.path(), 1..=5, &AtRest::default());
        writer.skip_to(40).unwrap();
        assert!(matches!(writer.history().export(3, 40), Err(HistoryError::Gap { .. })));
        assert!(writer.history().export(3, 5).is_ok());
    }
}
