//! Makes a backup the beginning of a new cluster: the data directory of its first member.
//!
//! The state keeps its revision and the log begins behind it, purged, with a vote of the term in which the
//! backup's last entry was made: so the next term is above it, and revisions go on ascending. The cluster is a
//! new one, so that nodes of the old one can't mix with it.
//!
//! **Invariant:** the identity is written last. A directory that was left half-way has none, and no node starts
//! in it.

use std::{fs, io, path::Path};

use super::{
    codec::Mark,
    log::Wal,
    wire::{self, Ballot, Id, Stamp},
};
use crate::{
    peer::{
        Member,
        identity::{FORMAT, Identity},
    },
    store::{
        Position,
        snapshot::backup::{self, Summary},
    },
};

/// Prepares an empty or missing data directory; blocking. Gives what the backup holds, and the new cluster.
///
/// # Errors
/// When the backup is not whole, the directory is in use, or the disk refuses.
pub fn restore(from: &Path, directory: &Path, member: Member) -> Result<(Summary, uuid::Uuid), String> {
    check_is_empty(directory)?;
    let summary = backup::inspect(from).map_err(|error| error.to_string())?;
    let stamp = Stamp::decode(&summary.position.raft_meta)?;
    let last = stamp.last.ok_or("the backup is of a cluster that was not formed yet")?;
    // The entry keeps its place and its term; its maker is now the new cluster's only member.
    let last = Id { node: member.id, ..last };
    let identity = Identity { cluster_id: uuid::Uuid::new_v4(), node_id: member.id, format: FORMAT };
    let stamp = wire::to_bytes(&Stamp::of_first(last, member));
    let position = Position { index: last.index, raft_meta: stamp };
    backup::restore(from, &directory.join("store"), &position).map_err(|error| error.to_string())?;
    begin_log(&directory.join("log"), &identity, last)
        .map_err(|error| format!("the log in {} can't be begun: {error}", directory.display()))?;
    identity.write(directory)?;
    Ok((summary, identity.cluster_id))
}

/// A log that knows of nothing but the snapshot that it begins behind.
fn begin_log(path: &Path, identity: &Identity, last: Id) -> io::Result<()> {
    let mut wal = Wal::open(path)?;
    let vote = Ballot { term: last.term, node: identity.node_id, committed: false };
    let cluster = *identity.cluster_id.as_bytes();
    wal.begin(vote, Mark { cluster, node: identity.node_id, installing: Some(last) })
}

fn check_is_empty(directory: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("{}: {error}", directory.display());
    fs::create_dir_all(directory).map_err(failed)?;
    match fs::read_dir(directory).map_err(failed)?.next() {
        None => Ok(()),
        Some(_) => {
            Err(format!("{} is not empty; a backup is restored into an empty one", directory.display()))
        }
    }
}
