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
    io::{BufWriter, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    format::{self, Encoder, Segment, StoredChange},
    reader::scan,
    segment_index::Index,
    segments::{Catalog, read_seal},
};
use crate::{
    model::record::Revision,
    state::{Change, Edit},
    store::{
        StoreError,
        files::{self, io},
    },
};

/// Bytes that are held back until they are handed to the operating system.
const BUFFER_BYTES: usize = 256 << 10;

/// The writer of the history. One thread owns it.
#[derive(Debug)]
pub(in crate::store) struct History {
    directory: PathBuf,
    segment_bytes: u64,
    catalog: Arc<Catalog>,
    open: Option<Open>,
    reach: Revision,
}

/// The segment that grows.
#[derive(Debug)]
struct Open {
    encoder: Encoder<BufWriter<File>>,
    segment: Segment,
}

impl History {
    /// Opens the history of a directory and cuts what a crash left torn.
    pub(in crate::store) fn open(directory: &Path, segment_bytes: u64) -> Result<Self, StoreError> {
        files::make_directory(directory)?;
        for name in files::names(directory)?.iter().filter(|name| name.ends_with(".tmp")) {
            files::remove(&directory.join(name))?;
        }
        let catalog = Arc::new(Catalog::new(directory));
        let mut history = Self { directory: directory.into(), segment_bytes, catalog, open: None, reach: 0 };
        let segments = format::segments(directory)?;
        let (newest, older) =
            segments.split_last().map_or((None, &[][..]), |(last, older)| (Some(last), older));
        for segment in older {
            history.list(segment)?;
        }
        if let Some(newest) = newest {
            history.take_up(newest)?;
        }
        Ok(history)
    }

    /// What readers look into.
    pub(in crate::store) fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.catalog)
    }

    /// The last revision that the history knows of; entries without a change count.
    pub(in crate::store) fn reach(&self) -> Revision {
        self.reach
    }

    /// Bytes of all segments.
    pub(in crate::store) fn bytes(&self) -> u64 {
        self.catalog.bytes()
    }

    /// Appends a change that it does not hold yet, unless nothing of it is told.
    pub(in crate::store) fn write(&mut self, change: &Change) -> Result<(), StoreError> {
        if change.revision <= self.reach || !change.edits.iter().any(Edit::is_in_history) {
            return Ok(());
        }
        let failed = self.failed();
        let open = self.opened()?;
        let (behind, offset) = (open.segment.behind, open.encoder.bytes);
        let stored = StoredChange::of(change, behind);
        open.encoder.change(&stored).map_err(io(failed))?;
        let bytes = open.encoder.bytes;
        self.catalog.grown(behind, change.revision, bytes, Some((&stored, offset)));
        self.grown(change.revision, bytes)
    }

    /// Entries up to this one changed nothing more.
    pub(in crate::store) fn reached(&mut self, index: Revision) -> Result<(), StoreError> {
        if index <= self.reach {
            return Ok(());
        }
        let failed = self.failed();
        let open = self.opened()?;
        open.encoder.reach(index).map_err(io(failed))?;
        let (behind, bytes) = (open.segment.behind, open.encoder.bytes);
        self.catalog.grown(behind, index, bytes, None);
        self.grown(index, bytes)
    }

    /// The history goes on behind this entry: a state was installed, and nothing is known of the way to it.
    pub(in crate::store) fn jump(&mut self, index: Revision) -> Result<(), StoreError> {
        if index <= self.reach {
            return Ok(());
        }
        self.seal()?;
        self.reach = index;
        self.catalog.reached(index);
        Ok(())
    }

    /// What is not behind the compaction revision may be forgotten: segments that it has passed are removed. One that it has
    /// entered is sealed, so that its turn comes, however slowly it grows.
    pub(in crate::store) fn compact(&mut self, compaction_revision: Revision) -> Result<(), StoreError> {
        if compaction_revision <= self.catalog.compaction_revision() {
            return Ok(());
        }
        if self.open.as_ref().is_some_and(|open| open.segment.behind < compaction_revision) {
            self.seal()?;
        }
        for segment in self.catalog.raise_compaction_revision(compaction_revision) {
            if let Err(error) = files::remove(&segment.path(&self.directory)) {
                // It is found and removed at the next start.
                tracing::warn!(%error, "a segment of the history that is not needed any more stays");
            }
        }
        Ok(())
    }

    /// Hands what was appended to the operating system, so that readers see it and a crash of this process does
    /// not lose it.
    pub(in crate::store) fn flush(&mut self) -> Result<(), StoreError> {
        self.open.as_mut().map_or(Ok(()), |open| open.encoder.to.flush()).map_err(io(self.failed()))
    }

    /// Seals the open segment: everything up to [`Self::reach`] is durable afterwards.
    pub(in crate::store) fn seal(&mut self) -> Result<(), StoreError> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let failed = self.failed();
        let index = self.catalog.growing(open.segment.behind);
        let file = open.encoder.seal(&index).map_err(io(failed.clone()))?;
        let file = file.into_inner().map_err(|error| io(failed.clone())(error.into_error()))?;
        let bytes = file.sync_all().and_then(|()| file.metadata()).map_err(io(failed))?.len();
        self.sealed_name(&open.segment)?;
        self.catalog.sealed(open.segment.behind, bytes);
        Ok(())
    }

    fn opened(&mut self) -> Result<&mut Open, StoreError> {
        let open = match self.open.take() {
            Some(open) => open,
            None => self.create()?,
        };
        Ok(self.open.insert(open))
    }

    fn create(&self) -> Result<Open, StoreError> {
        let segment = Segment { behind: self.reach, sealed: false };
        let path = segment.path(&self.directory);
        let failed = || format!("can't create {}", path.display());
        let file = File::create(&path).map_err(io(failed()))?;
        files::sync_directory(&self.directory)?;
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        let encoder = Encoder::begin(file, self.reach).map_err(io(failed()))?;
        self.catalog.add(&segment, self.reach, encoder.bytes, Some(Index::default()));
        Ok(Open { encoder, segment })
    }

    fn grown(&mut self, reach: Revision, bytes: u64) -> Result<(), StoreError> {
        self.reach = reach;
        if bytes >= self.segment_bytes { self.seal() } else { Ok(()) }
    }

    /// Takes an older segment into the catalog. One whose end is damaged is set aside: another member may have
    /// what it held.
    fn list(&self, segment: &Segment) -> Result<(), StoreError> {
        let path = segment.path(&self.directory);
        let failed = || format!("can't read {}", path.display());
        if !segment.sealed {
            tracing::warn!("{} was never sealed, but a newer segment is there", path.display());
            let scan = scan(&path, segment.behind)?;
            self.catalog.add(segment, scan.totals.reach, scan.bytes, Some(scan.index));
            return Ok(());
        }
        let mut file = File::open(&path).map_err(io(failed()))?;
        match read_seal(&mut file).map_err(io(failed()))? {
            Some(seal) => {
                let bytes = file.metadata().map_err(io(failed()))?.len();
                self.catalog.add(segment, seal.totals.reach, bytes, None);
                Ok(())
            }
            None => {
                tracing::warn!("{} ends without its seal and is set aside", path.display());
                files::rename(&path, &path.with_extension("damaged"))
            }
        }
    }

    /// Goes on where the newest segment ends.
    fn take_up(&mut self, segment: &Segment) -> Result<(), StoreError> {
        let path = segment.path(&self.directory);
        let scan = scan(&path, segment.behind)?;
        self.reach = scan.totals.reach;
        self.catalog.reached(self.reach);
        if let Some(damage) = scan.damage {
            let reach = self.reach;
            tracing::warn!(reach, "{} is whole up to revision {reach} only: {damage}", path.display());
        }
        if scan.sealed {
            if !segment.sealed {
                self.sealed_name(segment)?;
            }
            self.catalog.add(&Segment { sealed: true, ..segment.clone() }, self.reach, scan.bytes, None);
            return Ok(());
        }
        if scan.totals.reach == segment.behind {
            // Nothing in it is whole, and the next segment needs its name.
            return if segment.sealed {
                files::rename(&path, &path.with_extension("damaged"))
            } else {
                files::remove(&path)
            };
        }
        let open = Segment { sealed: false, ..segment.clone() };
        if segment.sealed {
            // Its end is damaged: it is written again from the log, or comes from another member.
            files::rename(&path, &open.path(&self.directory))?;
        }
        let path = open.path(&self.directory);
        let failed = || format!("can't cut {}", path.display());
        let mut file = OpenOptions::new().write(true).open(&path).map_err(io(failed()))?;
        file.set_len(scan.bytes).and_then(|()| file.sync_all()).map_err(io(failed()))?;
        file.seek(SeekFrom::End(0)).map_err(io(failed()))?;
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        let encoder = Encoder::resume(file, scan.totals, scan.bytes);
        self.catalog.add(&open, self.reach, scan.bytes, Some(scan.index));
        self.open = Some(Open { encoder, segment: open });
        Ok(())
    }

    fn sealed_name(&self, segment: &Segment) -> Result<(), StoreError> {
        let sealed = Segment { sealed: true, ..segment.clone() };
        files::rename(&segment.path(&self.directory), &sealed.path(&self.directory))
    }

    fn failed(&self) -> String {
        format!("can't write the history in {}", self.directory.display())
    }
}

#[cfg(test)]
pub(in crate::store) mod tests;
