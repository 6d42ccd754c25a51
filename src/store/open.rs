//! Starting: which whole state is on the disk, and whether it belongs to the log.
//!
//! sled is newer than the snapshots and is asked first. It is believed if it bears no mark, is at least as new as
//! the newest snapshot, no newer than the history on the disk (else changes between them would be missing there
//! for good), and what it holds has the digest that it was given. Otherwise the newest snapshot that reads
//! through, otherwise the older one; the log brings the rest.
//!
//! **Invariant:** a state newer than the log shows that the log was lost. The node has forgotten its vote then
//! and must not go on.

use std::path::Path;

use super::{
    LogRange, Options, Position, StoreError, files,
    history::writer::History,
    sled::{
        mirror::Begin,
        trees::{Home, Seal, TreeError, Trees},
    },
    snapshot::{file, retained::Kept},
};
use crate::state::State;

/// What the store is made of.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) kept: Kept,
    pub(super) history: History,
    pub(super) begin: Begin,
    /// There is no whole state, and the log does not reach back to the first entry.
    pub(super) nothing: bool,
}

/// What sled holds.
type Carried = (Trees, u64, State, Position);

/// Opens a store's directories and finds the newest whole state.
pub(super) fn open(directory: &Path, options: &Options, log: LogRange) -> Result<Found, StoreError> {
    files::make_directory(directory)?;
    throw_away(directory)?;
    let kept = Kept::open(&directory.join("snapshot"), options.block_bytes, log)?;
    let mut history = History::open(&directory.join("history"), options.segment_bytes)?;
    let home = Home::open(&directory.join("sled"), options.sled_cache_bytes)?;
    if let Some(newest) = kept.current().filter(|newest| kept.is_ahead(newest.position.index, log)) {
        return Err(lost("a snapshot", newest.position.index, log));
    }
    let (found, carried) = carried(&home, &kept, &history, log)?;
    let (from, trees, latest) = match carried {
        Some((trees, bytes, state, position)) => ("sled", Some((trees, bytes)), (state, position)),
        None => match snapshot_state(&kept, log)? {
            Some(latest) => ("a snapshot", None, latest),
            None => ("nothing", None, (State::new(), Position { index: 0, stamp: Vec::new() })),
        },
    };
    let nothing = from == "nothing" && log.purged > 0;
    tracing::info!(revision = latest.1.index, "loaded revision {} from {from}", latest.1.index);
    if history.reach() < latest.1.index {
        tracing::info!(
            "the history ends at revision {} and goes on behind {}",
            history.reach(),
            latest.1.index
        );
        history.jump(latest.1.index)?;
    }
    history.compact(latest.0.compaction_revision())?;
    Ok(Found { kept, history, begin: Begin { home, trees, found, latest }, nothing })
}

/// The mark of a directory whose state was found to be wrong; it holds the finder's note.
const DISTRUSTED: &str = "distrusted";
/// The note, once all that was wrong is thrown away.
const NOTE: &str = "distrusted.note";

/// Marks a directory durably.
pub(super) fn distrust_all(directory: &Path, note: &[u8]) -> Result<(), StoreError> {
    files::write_file(&directory.join(DISTRUSTED), note)
}

/// Removes what was marked as wrong. The mark goes last, so that a crash in between leaves nothing believed.
fn throw_away(directory: &Path) -> Result<(), StoreError> {
    let mark = directory.join(DISTRUSTED);
    if !mark.exists() {
        return Ok(());
    }
    tracing::warn!("the state on this disk was found to differ from the other members'; it is rebuilt");
    for part in ["sled", "snapshot", "history"] {
        files::remove(&directory.join(part))?;
    }
    files::rename(&mark, &directory.join(NOTE))
}

/// What the finder noted when this state was thrown away; `None` when none was.
pub(super) fn note(directory: &Path) -> Option<Vec<u8>> {
    std::fs::read(directory.join(NOTE)).ok()
}

/// The state that sled holds, if it can be believed; and whether there was a sled at all.
fn carried(
    home: &Home,
    kept: &Kept,
    history: &History,
    log: LogRange,
) -> Result<(bool, Option<Carried>), StoreError> {
    let opened = home.current().and_then(|trees| trees.map(marks).transpose());
    let (trees, seal, target) = match opened {
        Ok(None) => return Ok((false, None)),
        Ok(Some(opened)) => opened,
        // Not a fault of what it holds, and it must not be taken from under another process.
        Err(fault) if fault.text.contains("could not acquire lock") => {
            return Err(StoreError::Io {
                context: "another process works in this directory".into(),
                source: std::io::Error::other(fault.text),
            });
        }
        Err(fault) => return Ok((true, distrust(home, None, fault))),
    };
    let index = seal.as_ref().map_or(0, |seal| seal.position.index);
    let furthest = index.max(target.unwrap_or(0));
    if kept.is_ahead(furthest, log) {
        close(trees);
        return Err(lost("sled", furthest, log));
    }
    let loaded = match seal {
        None => Err(TreeError::new("it was never complete")),
        Some(_) if target.is_some() => Err(TreeError::new("it stopped between two positions")),
        Some(seal) => acceptable(&seal, kept, history, log)
            .and_then(|()| trees.load(&seal))
            .map(|(state, bytes)| (bytes, state, seal.position)),
    };
    Ok(match loaded {
        Ok((bytes, state, position)) => (true, Some((trees, bytes, state, position))),
        Err(fault) => (true, distrust(home, Some(trees), fault)),
    })
}

/// The position that the trees bear, and where they were carried to when they stopped on the way.
fn marks(trees: Trees) -> Result<(Trees, Option<Seal>, Option<u64>), TreeError> {
    match trees.seal().and_then(|seal| trees.carrying().map(|target| (seal, target))) {
        Ok((seal, target)) => Ok((trees, seal, target)),
        Err(fault) => {
            if fault.panicked {
                std::mem::forget(trees);
            } else {
                close(trees);
            }
            Err(fault)
        }
    }
}

fn acceptable(seal: &Seal, kept: &Kept, history: &History, log: LogRange) -> Result<(), TreeError> {
    let index = seal.position.index;
    let snapshot = kept.current().map_or(0, |newest| newest.position.index);
    if index < snapshot {
        return Err(TreeError::new(format!("it is at revision {index}, a snapshot at {snapshot}")));
    }
    if index > history.reach() {
        let reach = history.reach();
        return Err(TreeError::new(format!("it is at revision {index}, the history at {reach}")));
    }
    if index < log.purged {
        return Err(TreeError::new(format!(
            "it is at revision {index}, the log begins behind {}",
            log.purged
        )));
    }
    Ok(())
}

/// Throws sled away; it is written again behind the first answers.
fn distrust(home: &Home, trees: Option<Trees>, fault: TreeError) -> Option<Carried> {
    tracing::info!("sled is not taken for the state and is written anew: {fault}");
    match trees {
        Some(trees) if fault.panicked => std::mem::forget(trees),
        Some(trees) => close(trees),
        None => {}
    }
    if let Err(fault) = home.discard() {
        tracing::warn!("can't remove the unusable sled directory: {fault}");
    }
    None
}

fn close(trees: Trees) {
    if let Err(fault) = trees.shut() {
        tracing::warn!("sled did not close: {fault}");
    }
}

/// The state of the newest snapshot that is whole and has the log behind it.
fn snapshot_state(kept: &Kept, log: LogRange) -> Result<Option<(State, Position)>, StoreError> {
    for file in kept.newest_first() {
        if file.position.index < log.purged {
            tracing::warn!(
                "{} is of no use: the log behind it is purged up to {}",
                file.path.display(),
                log.purged
            );
            continue;
        }
        match file::read(&file.path) {
            Ok((state, header)) => return Ok(Some((state, header.position))),
            Err(error @ StoreError::Damaged(_)) => kept.reject(&file, &error)?,
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn lost(what: &str, index: u64, log: LogRange) -> StoreError {
    StoreError::LogLost(format!(
        "{what} holds revision {index}, but the log ends at {}: the log was lost, and with it this node's votes; \
         remove the node from the cluster and join it again with an empty directory and a new id",
        log.last
    ))
}
