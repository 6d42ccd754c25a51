//! Pieces of the history on their way from a member that has them to one that was given a snapshot instead.
//!
//! A piece is a whole sealed segment, made for the gap that it goes into: it begins where the gap does, and holds
//! the records that its changes replaced as every segment does.
//!
//! **Invariant:** a piece is read through before it is kept, and lies durably in its place before it is read.

use std::sync::Arc;

use super::{
    format::{Encoder, Segment, StoredChange, StoredEdit},
    query::{Changes, HistoryError},
    reader::scan_from,
    segment_index::{Index, Subject},
    segments::Catalog,
};
use crate::{
    model::record::Revision,
    store::{
        StoreError,
        files::{self, io},
    },
};

/// Bytes of a piece after which it ends.
const PIECE_BYTES: u64 = 4 << 20;

impl Catalog {
    /// Changes behind a revision, up to another one or as many as a piece takes.
    pub(in crate::store) fn piece(
        self: &Arc<Self>,
        behind: Revision,
        upto: Revision,
    ) -> Result<Vec<u8>, HistoryError> {
        let memory = "memory takes what is written";
        let mut encoder = Encoder::begin(Vec::new(), behind).expect(memory);
        let mut index = Index::default();
        let mut ended = true;
        for change in Changes::new(self, behind + 1)? {
            let mut change = change?;
            if change.revision > upto {
                break;
            }
            if encoder.bytes >= PIECE_BYTES {
                ended = false;
                break;
            }
            self.make_whole(&mut change, behind)?;
            index.add(&change, encoder.bytes);
            encoder.change(&change).expect(memory);
            if change.revision == upto {
                break;
            }
        }
        if ended && encoder.reached() < upto {
            encoder.reach(upto).expect(memory);
        }
        Ok(encoder.seal(&index).expect(memory))
    }

    /// Puts the records that a change replaced into it where they stand behind the beginning of its new segment.
    fn make_whole(&self, change: &mut StoredChange, behind: Revision) -> Result<(), HistoryError> {
        for edit in &mut change.edits {
            let StoredEdit::Config { definition, key, before: Some(before), after } = edit else { continue };
            if *before <= behind {
                let subject = Subject::Config { definition: *definition, key: key.as_str().into() };
                let before = self.config_of(&subject, *before)?;
                *edit = StoredEdit::ConfigOver { definition: *definition, before, after: after.take() };
            }
        }
        Ok(())
    }

    /// Keeps a piece that came for the gap behind a revision; gives how far it reaches.
    pub(in crate::store) fn adopt(&self, behind: Revision, piece: &[u8]) -> Result<Revision, StoreError> {
        let refused = |what: &str| StoreError::Damaged(format!("a received piece of the history {what}"));
        let scan = scan_from(piece, behind).map_err(io("can't read a piece in memory"))?;
        if !scan.sealed || scan.bytes != piece.len() as u64 {
            return Err(refused(scan.damage.unwrap_or("is not whole")));
        }
        let reach = scan.totals.reach;
        let path = Segment { behind, sealed: true }.path(&self.directory);
        if path.exists() || reach <= behind {
            return Err(refused("is not needed"));
        }
        files::write_file(&path, piece)?;
        if !self.fill(behind, reach, scan.bytes) {
            files::remove(&path)?;
            return Err(refused("does not fit the gap"));
        }
        Ok(reach)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::history::{
        query::Was,
        writer::{History, tests::change},
    };

    fn written(directory: &std::path::Path, revisions: std::ops::RangeInclusive<Revision>) -> History {
        let mut history = History::open(directory, 500).unwrap();
        for revision in revisions {
            history.write(&change(revision)).unwrap();
        }
        history.flush().unwrap();
        history
    }

    #[test]
    fn a_gap_is_filled_with_what_another_member_has_and_stays_filled() {
        let (full, gapped) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let whole = written(full.path(), 1..=50);
        let mut history = written(gapped.path(), 1..=5);
        history.jump(40).unwrap();
        history.write(&change(41)).unwrap();
        history.flush().unwrap();
        let catalog = history.catalog();
        let piece = whole.catalog().piece(5, 40).unwrap();
        for byte in (0..piece.len()).step_by(7) {
            let mut damaged = piece.clone();
            damaged[byte] ^= 1;
            assert!(catalog.adopt(5, &damaged).is_err(), "damage at {byte}");
        }
        assert!(catalog.adopt(5, &piece[..piece.len() - 1]).is_err());
        assert!(catalog.adopt(4, &piece).is_err());
        assert_eq!(catalog.gap(), Some((5, 40)));
        assert_eq!(catalog.adopt(5, &piece).unwrap(), 40);
        assert!(catalog.adopt(5, &piece).is_err(), "twice");
        drop(history);
        let history = History::open(gapped.path(), 500).unwrap();
        let catalog = history.catalog();
        assert_eq!(catalog.gap(), None);
        let all: Result<Vec<_>, _> = Changes::new(&catalog, 1).unwrap().collect();
        assert_eq!(all.unwrap().iter().map(|change| change.revision).collect::<Vec<_>>(), {
            (1..=41).collect::<Vec<_>>()
        });
        let subject = Subject::Config { definition: 1, key: "k".into() };
        for at in 1..41 {
            let Was::Then(Some(config)) = catalog.config_at(&subject, at, 41).unwrap() else {
                panic!("{at}")
            };
            assert_eq!(config.revision, at);
        }
    }

    #[test]
    fn a_member_with_a_gap_itself_gives_nothing_wrong() {
        let directory = tempfile::tempdir().unwrap();
        let mut history = written(directory.path(), 1..=5);
        history.jump(40).unwrap();
        assert!(matches!(history.catalog().piece(3, 40), Err(HistoryError::Gap { .. })));
        assert!(history.catalog().piece(3, 5).is_ok());
    }
}
