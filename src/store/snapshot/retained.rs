//! The snapshots that a node keeps: the two newest whole ones.
//!
//! Two, because the log is purged to the older one only: if the newest is found damaged, the older one and the log
//! behind it give the same state. A file bears its own name only when all of it is durable; an older one is
//! removed only after that.
//!
//! **Invariant:** what is listed here was read through or written by this process.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::file::{self, Header, Reader};
use crate::{
    model::record::Revision,
    state::State,
    store::{
        LogRange, Position, SnapshotFile, StoreError,
        files::{self, io},
    },
};

/// The directory of snapshots.
#[derive(Debug)]
pub(in crate::store) struct Kept {
    directory: PathBuf,
    block_bytes: usize,
    /// Ascending.
    files: Mutex<Vec<SnapshotFile>>,
    /// Held while a snapshot is written or installed: one at a time.
    work: Mutex<()>,
}

/// That a snapshot is rightly ahead of the log: it came from a peer and the log is not yet purged to it, or the
/// others had agreed on more than this node's log held durably.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Note {
    index: Revision,
    /// The last durable entry of the log at that time.
    log_last: Revision,
}

impl Kept {
    /// Reads what is there; what is not whole is set aside.
    pub(in crate::store) fn open(
        directory: &Path,
        block_bytes: usize,
        log: LogRange,
    ) -> Result<Self, StoreError> {
        files::make_directory(directory)?;
        let kept = Self {
            directory: directory.into(),
            block_bytes,
            files: Mutex::default(),
            work: Mutex::default(),
        };
        let mut files = Vec::new();
        for name in files::names(directory)?.iter().rev() {
            let path = directory.join(name);
            if name.ends_with(".tmp") {
                files::remove(&path)?;
            } else if name.starts_with("snapshot-") && name.ends_with(".concord") {
                match check(&path) {
                    Ok(file) => files.push(file),
                    Err(error @ StoreError::Damaged(_)) => set_aside(&path, &error)?,
                    Err(error) => return Err(error),
                }
            }
        }
        files.sort_by_key(|file| file.position.index);
        *kept.files() = files;
        kept.remove_old()?;
        if kept.note().is_some_and(|note| log.last >= note.index) {
            files::remove(&kept.note_path())?;
        }
        Ok(kept)
    }

    /// The newest, the second newest.
    pub(in crate::store) fn newest_first(&self) -> Vec<SnapshotFile> {
        self.files().iter().rev().cloned().collect()
    }

    pub(in crate::store) fn current(&self) -> Option<SnapshotFile> {
        self.files().last().cloned()
    }

    /// The index of the older one; 0 while there are not two.
    pub(in crate::store) fn compaction_revision(&self) -> Revision {
        match self.files().as_slice() {
            [.., older, _] => older.position.index,
            _ => 0,
        }
    }

    /// Whether a state at this index shows that entries of the log were lost.
    pub(in crate::store) fn is_ahead(&self, index: Revision, log: LogRange) -> bool {
        let excused = self.note().is_some_and(|note| index <= note.index && log.last >= note.log_last);
        index > log.last && !excused && !crate::sabotage::is("state-ahead-of-log")
    }

    /// Writes a snapshot. If there is one at this index or a newer one, it is that one. `log_last`: the last
    /// durable entry of the log.
    pub(in crate::store) fn build(
        &self,
        state: &State,
        position: &Position,
        log_last: Revision,
    ) -> Result<SnapshotFile, StoreError> {
        let _one_at_a_time = self.work();
        if let Some(newest) = self.current().filter(|newest| newest.position.index >= position.index) {
            return Ok(newest);
        }
        let path = self.path(position.index);
        let unfinished = files::unfinished(&path);
        let header = file::write(&unfinished, state, position, self.block_bytes)?;
        self.excuse(position.index, log_last)?;
        self.adopt(&unfinished, path, header)
    }

    /// Makes a received file the newest snapshot, if it is whole. `log_last`: the last durable entry of the log.
    pub(in crate::store) fn install(
        &self,
        received: &Path,
        log_last: Revision,
    ) -> Result<(State, SnapshotFile), StoreError> {
        let _one_at_a_time = self.work();
        let (state, header) = file::read(received)?;
        let index = header.position.index;
        if let Some(own) = self.newest_first().into_iter().find(|file| file.path == received) {
            return Ok((state, own));
        }
        files::sync_file(received)?;
        self.excuse(index, log_last)?;
        let file = self.adopt(received, self.path(index), header)?;
        Ok((state, file))
    }

    /// A listed file turned out not to be whole.
    pub(in crate::store) fn reject(&self, file: &SnapshotFile, why: &StoreError) -> Result<(), StoreError> {
        self.files().retain(|kept| kept.path != file.path);
        set_aside(&file.path, why)
    }

    fn adopt(&self, from: &Path, path: PathBuf, header: Header) -> Result<SnapshotFile, StoreError> {
        let file = describe(from, header)?;
        files::rename(from, &path)?;
        let file = SnapshotFile { path, ..file };
        let mut files = self.files();
        files.retain(|kept| kept.path != file.path);
        files.push(file.clone());
        files.sort_by_key(|file| file.position.index);
        drop(files);
        self.remove_old()?;
        Ok(file)
    }

    fn remove_old(&self) -> Result<(), StoreError> {
        let old: Vec<_> = {
            let mut files = self.files();
            let count = files.len().saturating_sub(2);
            files.drain(..count).collect()
        };
        old.iter().try_for_each(|file| files::remove(&file.path))
    }

    /// Before a snapshot counts: that it is ahead of the log is no sign of a lost one.
    fn excuse(&self, index: Revision, log_last: Revision) -> Result<(), StoreError> {
        if index <= log_last {
            return Ok(());
        }
        files::write_file(&self.note_path(), format!("{index} {log_last}").as_bytes())
    }

    fn note(&self) -> Option<Note> {
        let text = fs::read_to_string(self.note_path()).ok()?;
        let (index, log_last) = text.split_once(' ')?;
        Some(Note { index: index.parse().ok()?, log_last: log_last.parse().ok()? })
    }

    fn note_path(&self) -> PathBuf {
        self.directory.join("ahead")
    }

    fn path(&self, index: Revision) -> PathBuf {
        self.directory.join(format!("snapshot-{index:020}.concord"))
    }

    fn files(&self) -> MutexGuard<'_, Vec<SnapshotFile>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) -> MutexGuard<'_, ()> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a file through; the checksums decide.
pub(in crate::store) fn check(path: &Path) -> Result<SnapshotFile, StoreError> {
    let reader = Reader::open(path)?;
    let header = reader.header.clone();
    reader.skim()?;
    describe(path, header)
}

fn describe(path: &Path, header: Header) -> Result<SnapshotFile, StoreError> {
    let metadata = fs::metadata(path).map_err(io(format!("can't look at {}", path.display())))?;
    let Header { position, digest, .. } = header;
    Ok(SnapshotFile { path: path.into(), position, bytes: metadata.len(), digest })
}

fn set_aside(path: &Path, why: &StoreError) -> Result<(), StoreError> {
    tracing::warn!("a snapshot can't be used: {why}");
    files::rename(path, &path.with_extension("damaged"))
}
