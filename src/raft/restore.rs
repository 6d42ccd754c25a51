//! Restores a backup as the data directory of a new cluster's first member.
//!
//! The state keeps its revision. The log begins after it, purged, with a vote of the term of the backup's last
//! entry: so the next term is greater, and revisions go on ascending. The cluster is a new one, so that nodes of
//! the old cluster can't take part in it.
//!
//! **Invariant:** the identity is written last. A directory whose restore was interrupted has none, and no node
//! starts in it.

use std::{fs, io, path::Path};

use super::{
    LOG_DIRECTORY, STORE_DIRECTORY,
    codec::LogHeader,
    log::Wal,
    wire::{self, StateMetadata, WireLogId, WireVote},
};
use crate::{
    peer::{Member, identity::Identity},
    store::{
        Position,
        snapshot::backup::{self, Summary},
    },
};

/// Fills an empty or missing data directory. Blocking. Returns the backup's summary and the new cluster's id.
///
/// # Errors
/// When the backup is damaged, the directory is not empty, or a file can't be written.
pub(crate) fn restore(
    from: &Path,
    directory: &Path,
    member: Member,
) -> Result<(Summary, uuid::Uuid), String> {
    require_empty(directory)?;
    let summary = backup::inspect(from).map_err(|error| error.to_string())?;
    let metadata = StateMetadata::decode(&summary.position.raft_meta)?;
    let last = metadata.last_log_id.ok_or("the backup is of a cluster that was not formed yet")?;
    // The entry keeps its index and its term; its leader is now the new cluster's only member.
    let last = WireLogId { node: member.id, ..last };
    let identity =
        Identity { cluster_id: uuid::Uuid::new_v4(), node_id: member.id, format: summary.feature_level };
    let metadata = wire::to_bytes(&StateMetadata::of_first_member(last, member));
    let position = Position { index: last.index, raft_meta: metadata };
    backup::restore(from, &directory.join(STORE_DIRECTORY), &position).map_err(|error| error.to_string())?;
    create_log(&directory.join(LOG_DIRECTORY), &identity, last)
        .map_err(|error| format!("the log in {} can't be created: {error}", directory.display()))?;
    identity.write(directory)?;
    Ok((summary, identity.cluster_id))
}

/// Creates a log that is empty after the snapshot's last entry.
fn create_log(path: &Path, identity: &Identity, last: WireLogId) -> io::Result<()> {
    let mut wal = Wal::open(path)?;
    let vote = WireVote { term: last.term, node: identity.node_id, committed: false };
    let cluster = *identity.cluster_id.as_bytes();
    wal.initialize(vote, LogHeader { cluster, node: identity.node_id, installing: Some(last) })
}

fn require_empty(directory: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("{}: {error}", directory.display());
    fs::create_dir_all(directory).map_err(failed)?;
    match fs::read_dir(directory).map_err(failed)?.next() {
        None => Ok(()),
        Some(_) => {
            Err(format!("{} is not empty; a backup is restored into an empty one", directory.display()))
        }
    }
}
