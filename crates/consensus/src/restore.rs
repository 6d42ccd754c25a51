//! Restores a backup as the data directory of a new cluster's first member.
//!
//! The records keep their revisions, and the state gets a revision far above the backup's ([`first_revision`]): the
//! cluster may have made changes after the backup, whose revisions clients still know as entity tags and as positions
//! of watches. The log begins after an entry of the same number, purged, with a vote of the term of the backup's last
//! entry: so the next term is greater, and revisions continue to ascend. The cluster is new, so that nodes of the old
//! cluster cannot join it.
//!
//! With the history of a stopped node of the old cluster, the state is continued up to a point in time
//! (`crates/storage/src/history/stopped/mod.rs`).
//!
//! **Invariants**
//! 1. No revision is used twice for different content: not after the backup, and not by two restores of it that are at
//!    least a second apart by the clock.
//! 2. The identity is written last. A directory whose restore was interrupted has none, and no node starts in it.

use std::{fs, io, path::Path, sync::Arc};

use super::{
    LOG_DIRECTORY, STORE_DIRECTORY,
    codec::LogHeader,
    log::Wal,
    wire::{self, StateMetadata, WireLogId, WireVote},
};
use concord_model::{
    record::Revision,
    system::{SystemRecord, change::Phase},
    time::Timestamp,
};
use concord_net::{Member, identity::Identity};
use concord_state::State;
use concord_storage::{
    HISTORY_DIRECTORY, Point, PointError, PointReached, Position, StoppedHistory, Store,
    at_rest::AtRest,
    snapshot::backup::{self, Content, Summary},
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

/// The history of a stopped node, and the point up to which it is to be added to a backup.
#[derive(Debug)]
pub struct Continuing<'a> {
    /// The data directory of the node, or a directory with its history alone.
    pub history: &'a Path,
    /// The file of data keys, if the directory is encrypted.
    pub data_key_file: Option<&'a Path>,
    /// The point.
    pub point: Point,
}

/// What is to be restored. Nothing was written yet.
#[derive(Debug)]
pub struct Restoration {
    content: Content,
    last: WireLogId,
    /// No revision up to this one may be used again.
    used: Revision,
    reached: Option<PointReached>,
}

/// What a restored cluster leaves to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldChanges {
    /// Change requests that need a new edition.
    pub open: u64,
    /// Change requests that the old cluster would have taken back by itself.
    pub reverts: u64,
}

impl Restoration {
    /// Reads a backup, and continues it if it is to. Blocking.
    ///
    /// # Errors
    /// In one line, when the backup is damaged, or the history does not lead to the point.
    pub fn read(from: &backup::Input, continuing: Option<&Continuing<'_>>) -> Result<Self, String> {
        let mut content = Content::read(from).map_err(|error| error.to_string())?;
        let metadata = StateMetadata::decode(&content.summary.position.raft_meta)?;
        let last = metadata.last_log_id.ok_or("the backup is of a cluster that was not bootstrapped yet")?;
        let mut used = content.summary.revision.max(last.index);
        let mut reached = None;
        if let Some(continuing) = continuing {
            let history = continuing.open()?;
            used = used.max(history.upto());
            let failed = |error: PointError| {
                let damage = history.damage().iter().map(|damage| format!("; {damage}"));
                format!("{error}{}", damage.collect::<String>())
            };
            let (continued, point) = content.continued(&history, continuing.point).map_err(failed)?;
            (content, reached) = (continued, Some(point));
        }
        Ok(Self { content, last, used, reached })
    }

    /// What the state holds.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.content.summary
    }

    /// The point up to which the backup was continued.
    #[must_use]
    pub fn reached(&self) -> Option<&PointReached> {
        self.reached.as_ref()
    }

    /// What the restored cluster leaves to people: the approvals of change requests are those of the old one.
    #[must_use]
    pub fn held(&self) -> HeldChanges {
        let state = &self.content.state;
        let state = state.clone().restored_at(state.revision().saturating_add(1));
        let is_held =
            |record: &&Arc<SystemRecord>| record.change().is_some_and(|change| change.phase == Phase::Held);
        HeldChanges {
            open: state.pending_changes().filter(is_held).count() as u64,
            reverts: state.held_reverts().count() as u64,
        }
    }

    /// The state, for an export.
    #[must_use]
    pub fn into_state(self) -> State {
        self.content.state
    }

    /// Fills an empty or missing data directory. Blocking. Returns the first revision of the new cluster, and its id.
    ///
    /// # Errors
    /// When the directory is not empty, or a file can't be written.
    pub fn make(
        self,
        directory: &Path,
        member: Member,
        now: Timestamp,
        data_key_file: Option<&Path>,
    ) -> Result<(Revision, uuid::Uuid), String> {
        require_empty(directory)?;
        let at_rest = AtRest::open(directory, data_key_file)?;
        // The entry keeps its term; its leader is now the new cluster's only member. Its index and the state's revision
        // are one number again, although they differ in the backup of a cluster whose entries held several proposals
        // each.
        let first = first_revision(self.used, now)?;
        let last = WireLogId { index: first, node: member.id, ..self.last };
        let format = self.content.summary.feature_level;
        let identity = Identity { cluster_id: uuid::Uuid::new_v4(), node_id: member.id, format };
        let metadata = wire::to_bytes(&StateMetadata::of_first_member(last, member));
        let position = Position { index: last.index, raft_meta: metadata };
        at_rest.prepare()?;
        self.content
            .restore(&directory.join(STORE_DIRECTORY), &position, &at_rest)
            .map_err(|error| error.to_string())?;
        create_log(&directory.join(LOG_DIRECTORY), &identity, last)
            .map_err(|error| format!("the log in {} can't be created: {error}", directory.display()))?;
        at_rest.converted()?;
        // It has its log already, so it does not join.
        identity.replace(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        Ok((last.index, identity.cluster_id))
    }
}

impl Continuing<'_> {
    fn open(&self) -> Result<StoppedHistory, String> {
        let directory = self.history;
        let of_node = directory.join(STORE_DIRECTORY).join(HISTORY_DIRECTORY);
        let segments = if of_node.is_dir() { &of_node } else { directory };
        if Store::is_distrusted(&directory.join(STORE_DIRECTORY)) {
            return Err(format!(
                "the state in {} was found to differ from that of a majority, so its history may be wrong: use that of \
                 another node",
                directory.display()
            ));
        }
        let at_rest = AtRest::open(directory, self.data_key_file)?;
        StoppedHistory::open(segments, &at_rest).map_err(|error| error.to_string())
    }
}

/// Creates a log that is empty after the snapshot's last entry.
fn create_log(path: &Path, identity: &Identity, last: WireLogId) -> io::Result<()> {
    let mut wal = Wal::open(path)?;
    let vote = WireVote { term: last.term, node: identity.node_id, committed: false };
    let cluster = *identity.cluster_id.as_bytes();
    wal.initialize(vote, LogHeader { cluster, node: identity.node_id, installing: Some(last) })
}

/// Rejects a data directory that is not empty, and creates a missing one. Blocking.
///
/// # Errors
/// In one line, when it is not empty, or can't be created or listed.
pub fn require_empty(directory: &Path) -> Result<(), String> {
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
