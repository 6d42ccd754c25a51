//! Writing the history: appends changes to the open segment, seals it, removes compacted segments.
//!
//! The Raft log makes a change durable; a segment is durable when it is sealed: when it is full, before a snapshot
//! counts, and at a graceful shutdown. Its bytes are fsynced in pieces before, so that the seal delays no fsync of the
//! log. So the newest segment may have a torn end after a crash. It is cut there, and applying the log after the loaded
//! state writes the rest again.
//!
//! **Invariant:** a change is written once, in the order of revisions: when the log is applied again, what is
//! at or below the applied mark is skipped. A sealed segment never changes.

use std::{
    fs::{File, OpenOptions},
    io::{BufWriter, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    conversion,
    format::{self, Encoder, Segment, StoredChange},
    frames::SegmentFile,
    reader::scan,
    segment_index::Index,
    segments::{History, read_seal},
};
use crate::{
    StoreError,
    at_rest::AtRest,
    files::{self, InPieces, io},
};
use concord_model::record::Revision;
use concord_state::{Change, Edit};

/// Bytes that are buffered before they are handed to the operating system.
const BUFFER_BYTES: usize = 256 << 10;

/// The writer of the history. The store's thread owns it.
#[derive(Debug)]
pub(crate) struct HistoryWriter {
    directory: PathBuf,
    segment_bytes: u64,
    at_rest: AtRest,
    history: Arc<History>,
    open: Option<OpenSegment>,
    applied: Revision,
}

/// The segment that changes are appended to.
#[derive(Debug)]
struct OpenSegment {
    encoder: Encoder<BufWriter<InPieces>>,
    segment: Segment,
}

impl HistoryWriter {
    /// Opens the history of a directory and cuts the torn end that a crash left.
    pub(crate) fn open(directory: &Path, segment_bytes: u64, at_rest: &AtRest) -> Result<Self, StoreError> {
        files::make_directory(directory)?;
        for name in files::names(directory)?.iter().filter(|name| name.ends_with(".tmp")) {
            files::remove(&directory.join(name))?;
        }
        let history = Arc::new(History::new(directory, at_rest));
        let (directory, at_rest) = (directory.to_owned(), at_rest.clone());
        let mut writer = Self { directory, segment_bytes, at_rest, history, open: None, applied: 0 };
        conversion::convert(&writer.directory, &writer.at_rest)?;
        let segments = format::segments(&writer.directory)?;
        let (newest, older) =
            segments.split_last().map_or((None, &[][..]), |(last, older)| (Some(last), older));
        for segment in older {
            writer.add_older(segment)?;
        }
        if let Some(newest) = newest {
            writer.resume(newest)?;
        }
        if writer.at_rest.seals() {
            // What a crash has torn off may have been read by others: what comes next gets a key of its own.
            writer.seal()?;
        }
        Ok(writer)
    }

    /// The last revision that the history of a directory covers, as [`Self::open`] would find it. Changes nothing.
    pub(crate) fn covered(directory: &Path, at_rest: &AtRest) -> Result<Revision, StoreError> {
        let segments = if directory.is_dir() { format::segments(directory)? } else { Vec::new() };
        segments
            .last()
            .map_or(Ok(0), |newest| Ok(scan(&newest.path(directory), newest.after, at_rest)?.totals.upto))
    }

    /// The history as its readers share it.
    pub(crate) fn history(&self) -> Arc<History> {
        Arc::clone(&self.history)
    }

    /// The applied mark: the last revision that the history covers, whether it changed something or not.
    pub(crate) fn applied(&self) -> Revision {
        self.applied
    }

    /// Bytes of all segments.
    pub(crate) fn bytes(&self) -> u64 {
        self.history.bytes()
    }

    /// Appends a change, unless the history covers it already or keeps none of its edits.
    pub(crate) fn write(&mut self, change: &Change) -> Result<(), StoreError> {
        if change.revision <= self.applied || !change.edits.iter().any(Edit::is_in_history) {
            return Ok(());
        }
        let failed = self.failed();
        let open = self.opened()?;
        let (after, offset) = (open.segment.after, open.encoder.bytes);
        let stored = StoredChange::of(change, after);
        open.encoder.change(&stored).map_err(io(failed))?;
        let bytes = open.encoder.bytes;
        self.history.appended(after, change.revision, bytes, Some((&stored, offset)));
        self.appended(change.revision, bytes)
    }

    /// Raises the applied mark: nothing more changed up to and including this revision.
    pub(crate) fn advance(&mut self, revision: Revision) -> Result<(), StoreError> {
        if revision <= self.applied {
            return Ok(());
        }
        let failed = self.failed();
        let open = self.opened()?;
        open.encoder.applied_mark(revision).map_err(io(failed))?;
        let (after, bytes) = (open.segment.after, open.encoder.bytes);
        self.history.appended(after, revision, bytes, None);
        self.appended(revision, bytes)
    }

    /// Continues the history after this revision and leaves a gap before it: a state was installed, and the
    /// changes that led to it are not known here.
    pub(crate) fn skip_to(&mut self, revision: Revision) -> Result<(), StoreError> {
        if revision <= self.applied {
            return Ok(());
        }
        self.seal()?;
        self.applied = revision;
        self.history.advance(revision);
        Ok(())
    }

    /// Removes the segments that lie at or below the compaction revision. An open segment that begins below
    /// it is sealed, so that it can be removed later, however slowly the history grows.
    pub(crate) fn compact(&mut self, compaction_revision: Revision) -> Result<(), StoreError> {
        if compaction_revision <= self.history.compaction_revision() {
            return Ok(());
        }
        if self.open.as_ref().is_some_and(|open| open.segment.after < compaction_revision) {
            self.seal()?;
        }
        for segment in self.history.raise_compaction_revision(compaction_revision) {
            if let Err(error) = files::remove(&segment.path(&self.directory)) {
                // The next start finds it and removes it.
                tracing::warn!(%error, "can't remove a compacted segment of the history");
            }
        }
        Ok(())
    }

    /// Hands the buffered bytes to the operating system: readers see them, and a crash of this process does
    /// not lose them.
    pub(crate) fn flush(&mut self) -> Result<(), StoreError> {
        self.open.as_mut().map_or(Ok(()), |open| open.encoder.to.flush()).map_err(io(self.failed()))
    }

    /// Seals the open segment: the history is durable up to [`Self::applied`] afterwards.
    pub(crate) fn seal(&mut self) -> Result<(), StoreError> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let failed = self.failed();
        let index = self.history.open_index(open.segment.after);
        let file = open.encoder.seal(&index).map_err(io(failed.clone()))?;
        let file = file.into_inner().map_err(|error| io(failed.clone())(error.into_error()))?;
        let bytes = file.finish().and_then(|file| file.metadata()).map_err(io(failed))?.len();
        self.rename_to_sealed(&open.segment)?;
        self.history.sealed(open.segment.after, bytes);
        Ok(())
    }

    fn opened(&mut self) -> Result<&mut OpenSegment, StoreError> {
        let open = match self.open.take() {
            Some(open) => open,
            None => self.create()?,
        };
        Ok(self.open.insert(open))
    }

    fn create(&self) -> Result<OpenSegment, StoreError> {
        let segment = Segment { after: self.applied, sealed: false };
        let path = segment.path(&self.directory);
        let failed = || format!("can't create {}", path.display());
        let file = File::create(&path).map_err(io(failed()))?;
        files::sync_directory(&self.directory)?;
        let file = BufWriter::with_capacity(BUFFER_BYTES, InPieces::new(file));
        let encoder = Encoder::new(file, self.applied, &self.at_rest).map_err(io(failed()))?;
        self.history.add(&segment, self.applied, encoder.bytes, Some(Index::default()));
        Ok(OpenSegment { encoder, segment })
    }

    fn appended(&mut self, applied: Revision, bytes: u64) -> Result<(), StoreError> {
        self.applied = applied;
        if bytes >= self.segment_bytes { self.seal() } else { Ok(()) }
    }

    /// Adds a segment that is not the newest. One whose end is damaged is renamed and left out: another
    /// member may have what it held.
    fn add_older(&self, segment: &Segment) -> Result<(), StoreError> {
        let path = segment.path(&self.directory);
        let failed = || format!("can't read {}", path.display());
        if !segment.sealed {
            tracing::warn!("{} was never sealed, although a newer segment exists", path.display());
            let scan = scan(&path, segment.after, &self.at_rest)?;
            self.history.add(segment, scan.totals.upto, scan.bytes, Some(scan.index));
            return Ok(());
        }
        let file = File::open(&path).map_err(io(failed()))?;
        let sealed = match SegmentFile::new(file, &self.at_rest, segment.after) {
            Ok(mut file) => read_seal(&mut file).map_err(io(failed()))?.zip(file.length().ok()),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => None,
            Err(error) => return Err(io(failed())(error)),
        };
        match sealed {
            Some((seal, bytes)) => {
                self.history.add(segment, seal.totals.upto, bytes, None);
                Ok(())
            }
            None => {
                tracing::warn!("{} ends without its seal and is set aside as `.damaged`", path.display());
                files::rename(&path, &path.with_extension("damaged"))
            }
        }
    }

    /// Continues where the newest segment ends.
    fn resume(&mut self, segment: &Segment) -> Result<(), StoreError> {
        let path = segment.path(&self.directory);
        let scan = scan(&path, segment.after, &self.at_rest)?;
        let upto = scan.totals.upto;
        self.applied = upto;
        self.history.advance(upto);
        if let Some(damage) = scan.damage {
            tracing::warn!(upto, "{} is whole up to revision {upto} only: {damage}", path.display());
        }
        if scan.sealed {
            if !segment.sealed {
                // Its process may have ended between the seal and the disk.
                files::sync_file(&path)?;
                self.rename_to_sealed(segment)?;
            }
            self.history.add(&Segment { sealed: true, ..segment.clone() }, upto, scan.bytes, None);
            return Ok(());
        }
        if upto == segment.after {
            // Nothing in it is whole, and the next segment needs its name.
            return if segment.sealed {
                files::rename(&path, &path.with_extension("damaged"))
            } else {
                files::remove(&path)
            };
        }
        let open = Segment { sealed: false, ..segment.clone() };
        if segment.sealed {
            // Its end is damaged: it is written again from the log, or fetched from another member.
            files::rename(&path, &open.path(&self.directory))?;
        }
        let path = open.path(&self.directory);
        let failed = || format!("can't cut {}", path.display());
        let mut file = OpenOptions::new().write(true).open(&path).map_err(io(failed()))?;
        file.set_len(scan.bytes).and_then(|()| file.sync_all()).map_err(io(failed()))?;
        file.seek(SeekFrom::End(0)).map_err(io(failed()))?;
        let file = BufWriter::with_capacity(BUFFER_BYTES, InPieces::new(file));
        let encoder = Encoder::resume(file, scan.key, scan.totals, scan.bytes);
        self.history.add(&open, upto, scan.bytes, Some(scan.index));
        self.open = Some(OpenSegment { encoder, segment: open });
        Ok(())
    }

    fn rename_to_sealed(&self, segment: &Segment) -> Result<(), StoreError> {
        let sealed = Segment { sealed: true, ..segment.clone() };
        files::rename(&segment.path(&self.directory), &sealed.path(&self.directory))
    }

    fn failed(&self) -> String {
        format!("can't write the history in {}", self.directory.display())
    }
}

#[cfg(test)]
pub(crate) mod tests;
