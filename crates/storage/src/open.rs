//! Opening a store: which whole state is on the disk, and whether it belongs to the log.
//!
//! sled is newer than the snapshots and is tried first. It is loaded if no merge was interrupted, it is at least as new
//! as the newest snapshot and no newer than the history on the disk (otherwise the changes between them would be
//! missing from the history permanently), and its records have the digest of its checkpoint. Otherwise the newest whole
//! snapshot is loaded; applying the log after it restores the rest.
//!
//! Files of a newer version are neither damaged nor lost: such a directory is rejected before anything in it is
//! changed.
//!
//! If encryption was turned on or off since the last start, snapshots and history are rewritten here, before any of
//! them is used, and sled is rebuilt.
//!
//! **Invariant:** a state newer than the log shows that the log was lost. The node has forgotten its vote then and must
//! not continue.

use std::path::{Path, PathBuf};

use super::{
    HISTORY_DIRECTORY, LogIndex, LogRange, Position, StoreError, StoreOptions,
    at_rest::AtRest,
    files,
    history::{format, writer::HistoryWriter},
    sled::{
        checkpoint::Checkpoint,
        mirror::MirrorStart,
        trees::{DatabaseDir, TreeError, Trees},
    },
    snapshot::{file, retained::RetainedSnapshots},
};
use concord_state::State;

/// The parts of an opened store.
#[derive(Debug)]
pub(super) struct OpenedStore {
    pub(super) snapshots: RetainedSnapshots,
    pub(super) history: HistoryWriter,
    pub(super) start: MirrorStart,
    /// There is no whole state, and the log does not start at the first entry, or what it leads to was wrong.
    pub(super) nothing: bool,
}

/// What was loaded from sled: the trees, their approximate bytes, the state and its position.
type Mirrored = (Trees, u64, State, Position);

/// Opens a store's directories and finds the newest whole state.
pub(super) fn open(
    directory: &Path,
    options: &StoreOptions,
    log: LogRange,
) -> Result<OpenedStore, StoreError> {
    refuse_newer(directory, &options.at_rest)?;
    files::make_directory(directory)?;
    remove_invalidated(directory)?;
    let snapshots =
        RetainedSnapshots::open(&directory.join("snapshot"), options.block_bytes, log, &options.at_rest)?;
    let mut history =
        HistoryWriter::open(&directory.join(HISTORY_DIRECTORY), options.segment_bytes, &options.at_rest)?;
    let databases =
        DatabaseDir::open(&directory.join("sled"), options.sled_cache_bytes, options.at_rest.clone())?;
    if let Some(newest) = snapshots.current().filter(|newest| snapshots.is_ahead(newest.position.index, log))
    {
        return Err(lost("a snapshot", newest.position.index, log));
    }
    let (existed, mirrored) = load_sled(&databases, &snapshots, &history, log)?;
    let (from, trees, newest) = match mirrored {
        Some((trees, bytes, state, position)) => ("sled", Some((trees, bytes)), (state, position)),
        None => match load_snapshot(&snapshots, log, &options.at_rest)? {
            Some(newest) => ("a snapshot", None, newest),
            None => ("nothing", None, (State::new(), Position { index: 0, raft_meta: Vec::new() })),
        },
    };
    // The own log may be what was wrong, or what this version makes of it: the state is fetched, never made again.
    let nothing = from == "nothing"
        && (log.purged > 0
            || is_distrusted(directory) && !concord_model::sabotage::is("distrusted-replayed"));
    let revision = newest.0.revision();
    tracing::info!(revision, "loaded revision {revision} from {from}");
    if history.applied() < revision {
        tracing::info!("the history ends at revision {} and continues after {revision}", history.applied());
        history.skip_to(revision)?;
    }
    history.compact(newest.0.compaction_revision())?;
    let start = MirrorStart { databases, trees, existed, newest };
    Ok(OpenedStore { snapshots, history, start, nothing })
}

/// Rejects a directory with a file that is whole and of a format that this version does not know. It changes nothing
/// and is called before anything else looks at the directory: what opens a file takes an unknown one for a damaged one.
pub(super) fn refuse_newer(directory: &Path, at_rest: &AtRest) -> Result<(), StoreError> {
    let files_of = |part: &str| {
        let directory = directory.join(part);
        let names = if directory.is_dir() { files::names(&directory)? } else { Vec::new() };
        Ok::<_, StoreError>(names.into_iter().map(move |name| (directory.join(&name), name)))
    };
    for (path, name) in files_of("snapshot")? {
        // Whatever else is wrong with a file is treated where it is opened.
        if name.starts_with("snapshot-")
            && name.ends_with(".concord")
            && let Err(newer @ StoreError::Newer(_)) = file::feature_level_of(&path, at_rest)
        {
            return Err(newer);
        }
    }
    for (path, name) in files_of(HISTORY_DIRECTORY)? {
        if name.starts_with("segment-")
            && let Err(newer @ StoreError::Newer(_)) = format::refuse_newer(&path)
        {
            return Err(newer);
        }
    }
    Ok(())
}

/// The state of the newest whole snapshot of a directory that is not open.
pub(super) fn newest_snapshot(
    directory: &Path,
    at_rest: &AtRest,
) -> Result<Option<(State, Position)>, StoreError> {
    refuse_newer(directory, at_rest)?;
    for path in snapshots_of(directory)?.iter().rev() {
        match file::read(path, at_rest) {
            Ok((state, header)) => return Ok(Some((state, header.position))),
            Err(error @ StoreError::Damaged(_)) => tracing::warn!("{error}"),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// The snapshots in a directory, oldest first.
fn snapshots_of(directory: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let directory = directory.join("snapshot");
    let mut names = if directory.is_dir() { files::names(&directory)? } else { Vec::new() };
    names.retain(|name| name.starts_with("snapshot-") && name.ends_with(".concord"));
    // The names ascend with the places in the log.
    names.sort_unstable();
    Ok(names.iter().map(|name| directory.join(name)).collect())
}

/// Rewrites the metadata of all snapshots in a directory that is not open, and removes sled, which has it too.
pub(super) fn rewrite_metadata(
    directory: &Path,
    at_rest: &AtRest,
    block_bytes: usize,
    change: impl Fn(&[u8]) -> Result<Vec<u8>, String>,
) -> Result<(), StoreError> {
    for path in snapshots_of(directory)? {
        let (state, header) = match file::read(&path, at_rest) {
            Ok(read) => read,
            // It is set aside at the next start.
            Err(StoreError::Damaged(_)) => continue,
            Err(error) => return Err(error),
        };
        let raft_meta = change(&header.position.raft_meta).map_err(StoreError::Damaged)?;
        if raft_meta == header.position.raft_meta {
            continue;
        }
        let position = Position { raft_meta, ..header.position };
        let unfinished = files::unfinished(&path);
        file::write(&unfinished, &state, &position, block_bytes, at_rest)?;
        files::rename(&unfinished, &path)?;
    }
    files::remove(&directory.join("sled"))
}

/// The marker of a directory whose state was found to be wrong; it holds the caller's note.
const INVALIDATED: &str = "distrusted";
/// The note, after the state was removed and until another one is proven.
const NOTE: &str = "distrusted.note";

/// Whether the state was found to be wrong, and none has been proven since.
pub(super) fn is_distrusted(directory: &Path) -> bool {
    [INVALIDATED, NOTE].iter().any(|name| directory.join(name).exists())
}

/// The note of a state that was found to be wrong, whether it was removed or not.
pub(super) fn invalidation_note(directory: &Path) -> Option<Vec<u8>> {
    [INVALIDATED, NOTE].iter().find_map(|name| std::fs::read(directory.join(name)).ok())
}

/// Ends the distrust.
pub(super) fn trust(directory: &Path) -> Result<(), StoreError> {
    files::remove(&directory.join(NOTE))?;
    files::sync_directory(directory)
}

/// Marks the state in a directory as wrong, durably.
pub(super) fn invalidate(directory: &Path, note: &[u8]) -> Result<(), StoreError> {
    files::write_file(&directory.join(INVALIDATED), note)
}

/// Removes a state that was marked as wrong, or one that was to replace it and was never proven. The marker is removed
/// last: a crash in between does not leave a part of the state that would be loaded.
fn remove_invalidated(directory: &Path) -> Result<(), StoreError> {
    if !is_distrusted(directory) {
        return Ok(());
    }
    tracing::warn!("the state on this disk differed from that of the other members: rebuilding it");
    for part in ["sled", "snapshot", HISTORY_DIRECTORY] {
        files::remove(&directory.join(part))?;
    }
    let marker = directory.join(INVALIDATED);
    if marker.exists() { files::rename(&marker, &directory.join(NOTE)) } else { Ok(()) }
}

/// The state that sled holds, if it is valid; and whether a database existed at all.
fn load_sled(
    databases: &DatabaseDir,
    snapshots: &RetainedSnapshots,
    history: &HistoryWriter,
    log: LogRange,
) -> Result<(bool, Option<Mirrored>), StoreError> {
    let opened = databases.current().and_then(|trees| trees.map(read_meta).transpose());
    let (trees, checkpoint, merge_target) = match opened {
        Ok(None) => return Ok((false, None)),
        Ok(Some(opened)) => opened,
        // The content may be fine, and it must not be removed while another process uses it.
        Err(error) if error.text.contains("could not acquire lock") => {
            return Err(StoreError::Io {
                context: "another process uses this directory".into(),
                source: std::io::Error::other(error.text),
            });
        }
        Err(error) if error.newer => return Err(StoreError::Newer(error.text)),
        Err(error) => return Ok((true, discard(databases, None, error))),
    };
    let index = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.position.index);
    let highest = index.max(merge_target.unwrap_or(0));
    if snapshots.is_ahead(highest, log) {
        close(trees);
        return Err(lost("sled", highest, log));
    }
    let loaded = match checkpoint {
        None => Err(TreeError::new("it was never complete")),
        Some(_) if merge_target.is_some() => Err(TreeError::new("a merge was interrupted")),
        Some(checkpoint) => check_position(&checkpoint, snapshots, history, log)
            .and_then(|()| trees.load(&checkpoint))
            .map(|(state, bytes)| (bytes, state, checkpoint.position)),
    };
    Ok(match loaded {
        Ok((bytes, state, position)) => (true, Some((trees, bytes, state, position))),
        Err(error) => (true, discard(databases, Some(trees), error)),
    })
}

/// Reads the checkpoint of the trees, and the target of a merge that was interrupted.
fn read_meta(trees: Trees) -> Result<(Trees, Option<Checkpoint>, Option<LogIndex>), TreeError> {
    match trees.checkpoint().and_then(|checkpoint| trees.merge_target().map(|target| (checkpoint, target))) {
        Ok((checkpoint, target)) => Ok((trees, checkpoint, target)),
        Err(error) => {
            if error.panicked {
                std::mem::forget(trees);
            } else {
                close(trees);
            }
            Err(error)
        }
    }
}

fn check_position(
    checkpoint: &Checkpoint,
    snapshots: &RetainedSnapshots,
    history: &HistoryWriter,
    log: LogRange,
) -> Result<(), TreeError> {
    let index = checkpoint.position.index;
    let snapshot = snapshots.current().map_or(0, |newest| newest.position.index);
    if index < snapshot {
        return Err(TreeError::new(format!("it is at entry {index} of the log, a snapshot at {snapshot}")));
    }
    let (revision, applied) = (checkpoint.revision, history.applied());
    if revision > applied {
        return Err(TreeError::new(format!("it is at revision {revision}, the history at {applied}")));
    }
    let purged = log.purged;
    if index < purged {
        return Err(TreeError::new(format!("it is at entry {index}, and the log is purged up to {purged}")));
    }
    Ok(())
}

/// Removes sled; it is rebuilt while the node serves.
fn discard(databases: &DatabaseDir, trees: Option<Trees>, error: TreeError) -> Option<Mirrored> {
    tracing::info!("the state is not loaded from sled, which is rebuilt: {error}");
    match trees {
        Some(trees) if error.panicked => std::mem::forget(trees),
        Some(trees) => close(trees),
        None => {}
    }
    if let Err(error) = databases.remove_all() {
        tracing::warn!("can't remove the unusable sled directory: {error}");
    }
    None
}

fn close(trees: Trees) {
    if let Err(error) = trees.close() {
        tracing::warn!("sled did not close: {error}");
    }
}

/// The state of the newest snapshot that is whole and that the log continues.
fn load_snapshot(
    snapshots: &RetainedSnapshots,
    log: LogRange,
    at_rest: &AtRest,
) -> Result<Option<(State, Position)>, StoreError> {
    for file in snapshots.newest_first() {
        if file.position.index < log.purged {
            tracing::warn!("{} can't be used: the log is purged up to {}", file.path.display(), log.purged);
            continue;
        }
        match file::read(&file.path, at_rest) {
            Ok((state, header)) => return Ok(Some((state, header.position))),
            Err(error @ StoreError::Damaged(_)) => snapshots.reject(&file, &error)?,
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn lost(what: &str, index: LogIndex, log: LogRange) -> StoreError {
    StoreError::LogLost(format!(
        "{what} holds the log up to entry {index}, but the log ends at {}: the log was lost, and with it this node's votes; \
         remove the node from the cluster and join it again with an empty directory and a new id",
        log.last
    ))
}
