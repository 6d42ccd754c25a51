//! The snapshots that a node retains: the two newest whole ones.
//!
//! Two, because the log is purged to the older one only: if the newest is found damaged, the older one and
//! the log after it give the same state. A file gets its final name only when all of it is durable; an older
//! one is removed only after that.
//!
//! **Invariant:** every listed file was verified or written by this process.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::file::{self, Header, SnapshotReader};
use crate::{
    LogIndex, LogRange, Position, SnapshotFile, StoreError,
    at_rest::{
        AtRest, KeyPurpose,
        stream::{self, DecryptingReader, Sink},
    },
    files::{self, io},
};
use concord_state::State;

/// The directory of snapshots.
#[derive(Debug)]
pub(crate) struct RetainedSnapshots {
    directory: PathBuf,
    block_bytes: usize,
    at_rest: AtRest,
    /// Ascending.
    files: Mutex<Vec<SnapshotFile>>,
    /// Held while a snapshot is written or installed: one at a time.
    writing: Mutex<()>,
}

/// Records that a snapshot may be newer than the log: it came from a peer and the log is not yet purged to
/// it, or the other members had committed more than this node's log held durably.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AheadMarker {
    index: LogIndex,
    /// The last durable entry of the log at that time.
    log_last: LogIndex,
}

impl RetainedSnapshots {
    /// Lists the snapshots of a directory; damaged ones are renamed to `.damaged`.
    pub(crate) fn open(
        directory: &Path,
        block_bytes: usize,
        log: LogRange,
        at_rest: &AtRest,
    ) -> Result<Self, StoreError> {
        files::make_directory(directory)?;
        let snapshots = Self {
            directory: directory.into(),
            block_bytes,
            at_rest: at_rest.clone(),
            files: Mutex::default(),
            writing: Mutex::default(),
        };
        let mut files = Vec::new();
        for name in files::names(directory)?.iter().rev() {
            let path = directory.join(name);
            if name.ends_with(".tmp") {
                files::remove(&path)?;
            } else if name.starts_with("snapshot-") && name.ends_with(".concord") {
                match convert(&path, at_rest).and_then(|()| verify_named(&path, name, at_rest)) {
                    Ok(file) => files.push(file),
                    Err(error @ StoreError::Damaged(_)) => set_aside(&path, &error)?,
                    Err(error) => return Err(error),
                }
            } else if at_rest.seals() && name.ends_with(".damaged") && !is_sealed(&path)? {
                // What was set aside before encryption was turned on is readable on the disk.
                files::remove(&path)?;
            }
        }
        files.sort_by_key(|file| file.position.index);
        *snapshots.files() = files;
        snapshots.remove_old()?;
        if snapshots.ahead_marker().is_some_and(|marker| log.last >= marker.index) {
            files::remove(&snapshots.ahead_path())?;
        }
        Ok(snapshots)
    }

    /// The newest, then the second newest.
    pub(crate) fn newest_first(&self) -> Vec<SnapshotFile> {
        self.files().iter().rev().cloned().collect()
    }

    pub(crate) fn current(&self) -> Option<SnapshotFile> {
        self.files().last().cloned()
    }

    /// The index of the older one, up to which the log may be purged; 0 while there are not two.
    pub(crate) fn purge_limit(&self) -> LogIndex {
        match self.files().as_slice() {
            [.., older, _] => older.position.index,
            _ => 0,
        }
    }

    /// Whether a state at this index shows that entries of the log were lost.
    pub(crate) fn is_ahead(&self, index: LogIndex, log: LogRange) -> bool {
        let is_expected =
            self.ahead_marker().is_some_and(|marker| index <= marker.index && log.last >= marker.log_last);
        index > log.last && !is_expected && !concord_model::sabotage::is("state-ahead-of-log")
    }

    /// Writes a snapshot, or returns the newest one if that is at this place in the log or after it. `log_last`: the
    /// last durable entry of the log.
    pub(crate) fn build(
        &self,
        state: &State,
        position: &Position,
        log_last: LogIndex,
    ) -> Result<SnapshotFile, StoreError> {
        let _one_at_a_time = self.writing();
        if let Some(newest) = self.current().filter(|newest| newest.position.index >= position.index) {
            return Ok(newest);
        }
        let path = self.path(position.index);
        let unfinished = files::unfinished(&path);
        let header = file::write(&unfinished, state, position, self.block_bytes, &self.at_rest)?;
        self.mark_ahead(position.index, log_last)?;
        self.adopt(&unfinished, path, header)
    }

    /// Validates a received file and makes it the newest snapshot. `log_last`: the last durable entry of the
    /// log.
    pub(crate) fn install(
        &self,
        received: &Path,
        log_last: LogIndex,
    ) -> Result<(State, SnapshotFile), StoreError> {
        let _one_at_a_time = self.writing();
        let (state, header) = file::read(received, &self.at_rest)?;
        let index = header.position.index;
        if let Some(own) = self.newest_first().into_iter().find(|file| file.path == received) {
            return Ok((state, own));
        }
        files::sync_file(received)?;
        self.mark_ahead(index, log_last)?;
        let file = self.adopt(received, self.path(index), header)?;
        Ok((state, file))
    }

    /// Removes a listed file that turned out to be damaged.
    pub(crate) fn reject(&self, file: &SnapshotFile, why: &StoreError) -> Result<(), StoreError> {
        self.files().retain(|other| other.path != file.path);
        set_aside(&file.path, why)
    }

    fn adopt(&self, from: &Path, path: PathBuf, header: Header) -> Result<SnapshotFile, StoreError> {
        let file = describe(from, header)?;
        files::rename(from, &path)?;
        let file = SnapshotFile { path, ..file };
        let mut files = self.files();
        files.retain(|other| other.path != file.path);
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

    /// Called before a snapshot counts: if it is newer than the log, a start must not conclude that the log
    /// was lost.
    fn mark_ahead(&self, index: LogIndex, log_last: LogIndex) -> Result<(), StoreError> {
        if index <= log_last {
            return Ok(());
        }
        files::write_file(&self.ahead_path(), format!("{index} {log_last}").as_bytes())
    }

    fn ahead_marker(&self) -> Option<AheadMarker> {
        let text = fs::read_to_string(self.ahead_path()).ok()?;
        let (index, log_last) = text.split_once(' ')?;
        Some(AheadMarker { index: index.parse().ok()?, log_last: log_last.parse().ok()? })
    }

    fn ahead_path(&self) -> PathBuf {
        self.directory.join("ahead")
    }

    fn path(&self, index: LogIndex) -> PathBuf {
        self.directory.join(format!("snapshot-{index:020}.concord"))
    }

    fn files(&self) -> MutexGuard<'_, Vec<SnapshotFile>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a file through and compares its checksums.
pub(crate) fn verify(path: &Path, at_rest: &AtRest) -> Result<SnapshotFile, StoreError> {
    describe(path, SnapshotReader::open(path, at_rest)?.verify()?)
}

/// The same, and compares its place with its name.
fn verify_named(path: &Path, name: &str, at_rest: &AtRest) -> Result<SnapshotFile, StoreError> {
    let file = verify(path, at_rest)?;
    let number = name.strip_prefix("snapshot-").and_then(|rest| rest.strip_suffix(".concord"));
    if number.and_then(|number| number.parse().ok()) == Some(file.position.index) {
        return Ok(file);
    }
    Err(StoreError::Damaged(format!("{} is the snapshot of entry {}", path.display(), file.position.index)))
}

/// Reads a file whole, and its state with it.
pub(crate) fn decode(path: &Path, at_rest: &AtRest) -> Result<SnapshotFile, StoreError> {
    let (_, header) = file::read(path, at_rest)?;
    describe(path, header)
}

fn describe(path: &Path, header: Header) -> Result<SnapshotFile, StoreError> {
    let metadata = fs::metadata(path).map_err(io(format!("can't read the size of {}", path.display())))?;
    let bytes = if is_sealed(path)? { stream::content_bytes(metadata.len()) } else { metadata.len() };
    let Header { position, revision, digest, content_bytes, .. } = header;
    Ok(SnapshotFile { path: path.into(), position, revision, bytes, content_bytes, digest })
}

/// Whether a file is encrypted.
fn is_sealed(path: &Path) -> Result<bool, StoreError> {
    let failed = || format!("can't read {}", path.display());
    let mut begin = Vec::new();
    let file = fs::File::open(path).map_err(io(failed()))?;
    file.take(8).read_to_end(&mut begin).map_err(io(failed()))?;
    Ok(stream::is_sealed(&begin))
}

/// Rewrites a file if encryption was turned on or off since it was written.
fn convert(path: &Path, at_rest: &AtRest) -> Result<(), StoreError> {
    if at_rest.is_converted() || is_sealed(path)? == at_rest.seals() {
        return Ok(());
    }
    let failed = || format!("can't rewrite {}", path.display());
    let unfinished = files::unfinished(path);
    let copy = || {
        let mut from = DecryptingReader::new(fs::File::open(path)?, at_rest, KeyPurpose::Snapshot)?;
        let mut to = Sink::new(fs::File::create(&unfinished)?, at_rest, KeyPurpose::Snapshot)?;
        std::io::copy(&mut from, &mut to)?;
        to.finish()?.sync_all()
    };
    match copy() {
        Ok(()) => files::rename(&unfinished, path),
        // What can't be decrypted is found and set aside where the file is verified.
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => files::remove(&unfinished),
        Err(error) => Err(io(failed())(error)),
    }
}

fn set_aside(path: &Path, why: &StoreError) -> Result<(), StoreError> {
    tracing::warn!("a snapshot can't be used: {why}");
    files::rename(path, &path.with_extension("damaged"))
}
