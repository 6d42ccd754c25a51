//! Writing the history: append-only segments of changes by revision.
//!
//! The Raft log is the durability of a change; a segment is fsynced when it is sealed: when it is full, before a
//! snapshot counts, and at a clean stop. So the newest segment may end torn after a crash: it is cut there, and
//! the log behind the loaded state writes the rest again.
//!
//! **Invariant:** a change is written once, in the order of revisions: what the history reaches is skipped when
//! the log is applied again. A sealed segment never changes.

use std::{
    fs::{File, OpenOptions},
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use super::{
    StoreError,
    changes::{self, Segment, Totals},
    disk::{self, io},
};
use crate::{
    model::record::Revision,
    state::{Change, Edit},
};

/// The writer of the history. One thread owns it.
#[derive(Debug)]
pub(super) struct History {
    directory: PathBuf,
    segment_bytes: u64,
    open: Option<Open>,
    reach: Revision,
    sealed_bytes: u64,
}

/// The segment that grows.
#[derive(Debug)]
struct Open {
    file: BufWriter<File>,
    segment: Segment,
    totals: Totals,
    bytes: u64,
}

impl History {
    /// Opens the history of a directory and cuts what a crash left torn.
    pub(super) fn open(directory: &Path, segment_bytes: u64) -> Result<Self, StoreError> {
        disk::make_directory(directory)?;
        let mut history =
            Self { directory: directory.into(), segment_bytes, open: None, reach: 0, sealed_bytes: 0 };
        let segments = changes::segments(directory)?;
        let (newest, older) =
            segments.split_last().map_or((None, &[][..]), |(last, older)| (Some(last), older));
        for segment in older {
            history.sealed_bytes += history.length(segment)?;
            if !segment.sealed {
                let path = segment.path(directory);
                tracing::warn!("{} was never sealed, but a newer segment is there", path.display());
            }
        }
        if let Some(newest) = newest {
            history.take_up(newest)?;
        }
        Ok(history)
    }

    /// The last revision that the history knows of; entries without a change count.
    pub(super) fn reach(&self) -> Revision {
        self.reach
    }

    /// Bytes of all segments.
    pub(super) fn bytes(&self) -> u64 {
        self.sealed_bytes + self.open.as_ref().map_or(0, |open| open.bytes)
    }

    /// Appends a change that it does not hold yet, unless nothing of it is told.
    pub(super) fn write(&mut self, change: &Change) -> Result<(), StoreError> {
        if change.revision <= self.reach || !change.edits.iter().any(Edit::is_told) {
            return Ok(());
        }
        self.append(&changes::change_bytes(change), change.revision)
    }

    /// Entries up to this one changed nothing more.
    pub(super) fn reached(&mut self, index: Revision) -> Result<(), StoreError> {
        if index <= self.reach {
            return Ok(());
        }
        self.append(&changes::reach_bytes(index), index)
    }

    /// The history goes on behind this entry: a state was installed, and nothing is known of the way to it.
    pub(super) fn jump(&mut self, index: Revision) -> Result<(), StoreError> {
        if index <= self.reach {
            return Ok(());
        }
        self.seal()?;
        self.reach = index;
        Ok(())
    }

    /// Hands what was appended to the operating system, so that readers see it and a crash of this process does
    /// not lose it.
    pub(super) fn flush(&mut self) -> Result<(), StoreError> {
        self.open.as_mut().map_or(Ok(()), |open| open.file.flush()).map_err(io(self.failed()))
    }

    /// Seals the open segment: everything up to [`Self::reach`] is durable afterwards.
    pub(super) fn seal(&mut self) -> Result<(), StoreError> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        let failed = self.failed();
        let seal = open.totals.to_bytes();
        disk::write_frame(&mut open.file, &seal).map_err(io(failed.clone()))?;
        let file = open.file.into_inner().map_err(|error| io(failed.clone())(error.into_error()))?;
        file.sync_all().map_err(io(failed))?;
        self.sealed_bytes += open.bytes + (disk::FRAME_HEAD_BYTES + seal.len()) as u64;
        self.sealed_name(&open.segment)
    }

    fn append(&mut self, bytes: &[u8], reach: Revision) -> Result<(), StoreError> {
        let failed = self.failed();
        let open = match &mut self.open {
            Some(open) => open,
            none => none.insert(Open::create(&self.directory, self.reach)?),
        };
        let check = disk::write_frame(&mut open.file, bytes).map_err(io(failed))?;
        open.totals.frame(reach, check);
        open.bytes += (disk::FRAME_HEAD_BYTES + bytes.len()) as u64;
        self.reach = reach;
        if open.bytes >= self.segment_bytes { self.seal() } else { Ok(()) }
    }

    /// Goes on where the newest segment ends.
    fn take_up(&mut self, segment: &Segment) -> Result<(), StoreError> {
        let path = segment.path(&self.directory);
        let scan = changes::scan(&path, segment.behind)?;
        self.reach = scan.totals.reach;
        if let Some(damage) = scan.damage {
            tracing::warn!(
                reach = self.reach,
                "{} is whole up to revision {} only: {damage}",
                path.display(),
                self.reach
            );
        }
        if segment.sealed {
            if !scan.sealed && scan.damage.is_none() {
                tracing::warn!("{} ends without its seal", path.display());
            }
            if scan.totals.reach == segment.behind {
                // Nothing in it is whole, and the next segment needs its name.
                return disk::rename(&path, &path.with_extension("damaged"));
            }
            self.sealed_bytes += self.length(segment)?;
            return Ok(());
        }
        if scan.totals.frames == 0 {
            return disk::remove(&path);
        }
        let failed = || format!("can't cut {}", path.display());
        let mut file = OpenOptions::new().write(true).open(&path).map_err(io(failed()))?;
        file.set_len(scan.bytes).and_then(|()| file.sync_all()).map_err(io(failed()))?;
        if scan.sealed {
            self.sealed_bytes += scan.bytes;
            return self.sealed_name(segment);
        }
        std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).map_err(io(failed()))?;
        let (segment, totals, bytes) = (segment.clone(), scan.totals, scan.bytes);
        self.open = Some(Open { file: BufWriter::with_capacity(256 << 10, file), segment, totals, bytes });
        Ok(())
    }

    fn sealed_name(&self, segment: &Segment) -> Result<(), StoreError> {
        let sealed = Segment { sealed: true, ..segment.clone() };
        disk::rename(&segment.path(&self.directory), &sealed.path(&self.directory))
    }

    fn length(&self, segment: &Segment) -> Result<u64, StoreError> {
        let path = segment.path(&self.directory);
        let metadata = std::fs::metadata(&path).map_err(io(format!("can't look at {}", path.display())))?;
        Ok(metadata.len())
    }

    fn failed(&self) -> String {
        format!("can't write the history in {}", self.directory.display())
    }
}

impl Open {
    fn create(directory: &Path, behind: Revision) -> Result<Self, StoreError> {
        let segment = Segment { behind, sealed: false };
        let path = segment.path(directory);
        let failed = || format!("can't create {}", path.display());
        let file = File::create(&path).map_err(io(failed()))?;
        disk::sync_directory(directory)?;
        let mut file = BufWriter::with_capacity(256 << 10, file);
        let head = changes::head_bytes(behind);
        let check = disk::write_frame(&mut file, &head).map_err(io(failed()))?;
        let mut totals = Totals::default();
        totals.frame(behind, check);
        Ok(Self { file, segment, totals, bytes: (disk::FRAME_HEAD_BYTES + head.len()) as u64 })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::{fs, sync::Arc};

    use super::*;
    use crate::{
        model::time::Timestamp,
        state::Edit,
        store::{
            changes::{Changes, StoredChange},
            snapshot::tests::config,
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

    fn revisions(directory: &Path, from: Revision) -> Result<Vec<Revision>, StoreError> {
        Changes::new(directory, from)?.map(|change| change.map(|change| change.revision)).collect()
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
        let first = Changes::new(directory.path(), 3).unwrap().next().unwrap().unwrap();
        assert_eq!(first, StoredChange::of(&change(3)));
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
        assert!(changes::segments(directory.path()).unwrap().len() > 5);
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
            assert!(revisions(directory.path(), 1).is_err(), "damage at {byte}");
        }
        for cut in 0..bytes.len() {
            fs::write(&path, &bytes[..cut]).unwrap();
            assert!(revisions(directory.path(), 1).is_err(), "cut at {cut}");
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
    fn what_an_installed_state_skipped_is_a_gap_and_not_an_empty_stretch() {
        let directory = tempfile::tempdir().unwrap();
        let mut history = open(directory.path());
        history.write(&change(1)).unwrap();
        history.jump(10).unwrap();
        history.write(&change(11)).unwrap();
        history.seal().unwrap();
        assert!(revisions(directory.path(), 1).is_err());
        assert_eq!(revisions(directory.path(), 11).unwrap(), [11]);
    }
}
