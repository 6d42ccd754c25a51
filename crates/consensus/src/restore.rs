//! Restores a backup as the data directory of a new cluster's first member.
//!
//! The records keep their revisions, and the state gets a revision far above the backup's ([`first_revision`]): the
//! cluster may have made changes after the backup, whose revisions clients still know as entity tags and as positions
//! of watches. The log begins after an entry of the same number, purged, with a vote of the term of the backup's last
//! entry: so the next term is greater, and revisions continue to ascend. The cluster is new, so that nodes of the old
//! cluster cannot join it.
//!
//! **Invariants**
//! 1. No revision is used twice for different content: not after the backup, and not by two restores of it that are at
//!    least a second apart by the clock.
//! 2. The identity is written last. A directory whose restore was interrupted has none, and no node starts in it.

use std::{fs, io, path::Path};

use super::{
    LOG_DIRECTORY, STORE_DIRECTORY,
    codec::LogHeader,
    log::Wal,
    wire::{self, StateMetadata, WireLogId, WireVote},
};
use concord_model::{record::Revision, time::Timestamp};
use concord_net::{Member, identity::Identity};
use concord_storage::{
    Position,
    at_rest::AtRest,
    snapshot::backup::{self, Summary},
};

/// Revisions that the restored state is at least above the backup's: more than a cluster gives out between two backups.
const JUMP_MIN: u64 = 1_000_000_000;
/// Revisions for each second since 1970: more than a cluster gives out in a second, so that two restores do not give
/// out the same ones.
const JUMP_PER_SECOND: u64 = 100_000;
/// The greatest integer that every JSON library reads exactly.
const JSON_INTEGER_MAX: u64 = (1 << 53) - 1;

/// The revision of a restored state, or of a recovered cluster. It follows the clock, so that it is above all that any
/// restore of this backup has led to; a clock that is behind costs no more than the margin for two restores of one backup.
pub(super) fn first_revision(backup: Revision, now: Timestamp) -> Result<Revision, String> {
    let by_time = (now.0 / 1_000_000).saturating_mul(JUMP_PER_SECOND);
    let least = backup.saturating_add(JUMP_MIN);
    let first = if by_time > JSON_INTEGER_MAX / 2 { least } else { least.max(by_time) };
    if first > JSON_INTEGER_MAX / 2 {
        return Err(format!("revision {backup} is too high: revisions stay below 2^53"));
    }
    Ok(first)
}

/// Fills an empty or missing data directory. Blocking. Returns the backup's summary, with the revision that the restored
/// state has, and the new cluster's id.
///
/// # Errors
/// When the backup is damaged, the directory is not empty, or a file can't be written.
pub fn restore(
    from: &backup::Input,
    directory: &Path,
    member: Member,
    now: Timestamp,
    data_key_file: Option<&Path>,
) -> Result<(Summary, uuid::Uuid), String> {
    require_empty(directory)?;
    let at_rest = AtRest::open(directory, data_key_file)?;
    let mut summary = backup::inspect(from).map_err(|error| error.to_string())?;
    let metadata = StateMetadata::decode(&summary.position.raft_meta)?;
    let last = metadata.last_log_id.ok_or("the backup is of a cluster that was not bootstrapped yet")?;
    // The entry keeps its term; its leader is now the new cluster's only member. Its index and the state's revision are
    // one number again, although they differ in the backup of a cluster whose entries held several proposals each.
    let first = first_revision(summary.revision.max(last.index), now)?;
    let last = WireLogId { index: first, node: member.id, ..last };
    let format = summary.feature_level;
    let identity = Identity { cluster_id: uuid::Uuid::new_v4(), node_id: member.id, format };
    let metadata = wire::to_bytes(&StateMetadata::of_first_member(last, member));
    let position = Position { index: last.index, raft_meta: metadata };
    at_rest.prepare()?;
    backup::restore(from, &directory.join(STORE_DIRECTORY), &position, &at_rest)
        .map_err(|error| error.to_string())?;
    create_log(&directory.join(LOG_DIRECTORY), &identity, last)
        .map_err(|error| format!("the log in {} can't be created: {error}", directory.display()))?;
    at_rest.converted()?;
    identity.write(directory)?;
    summary.revision = last.index;
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
            Err(format!("{} is not empty; restore a backup into an empty directory", directory.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restored_state_exceeds_all_revisions_that_were_acknowledged() {
        let at = |seconds: u64| Timestamp(seconds * 1_000_000);
        let now = 1_800_000_000;
        let first = first_revision(40, at(now)).unwrap();
        assert_eq!(first, now * JUMP_PER_SECOND);
        // The same backup a second later, and a backup of the restored cluster.
        assert_eq!(first_revision(40, at(now + 1)).unwrap(), first + JUMP_PER_SECOND);
        assert!(first_revision(first + 500, at(now)).unwrap() >= first + 500 + JUMP_MIN);
        // Clocks that are wrong.
        for wrong in [0, u64::MAX / 1_000_000] {
            assert_eq!(first_revision(40, at(wrong)).unwrap(), 40 + JUMP_MIN, "{wrong}");
        }
        assert!(first_revision(JSON_INTEGER_MAX / 2, at(now)).is_err());
    }
}
