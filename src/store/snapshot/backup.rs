//! Snapshot files outside a store: a backup is inspected, or restored as the first snapshot of a new store.
//!
//! **Invariant:** a file is used only after all of it was read and its records have the digest that its
//! header names.

use std::{fs, path::Path};

use super::file::{self, Header};
use crate::{
    model::record::Revision,
    store::{
        Options, Position, StoreError,
        at_rest::AtRest,
        files::{self, io},
    },
};

/// What a backup holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The revision of its state.
    pub revision: Revision,
    /// Its definitions.
    pub definitions: u64,
    /// Its configs.
    pub configs: u64,
    /// Its retained outcomes of requests, for requests that are sent again.
    pub requests: u64,
    /// The digest of its state.
    pub digest: u128,
    /// The feature level of the cluster that made it.
    pub feature_level: u32,
    /// The file's length.
    pub bytes: u64,
    /// The place of its state in the log of the cluster that made it.
    pub position: Position,
}

impl Summary {
    fn of(header: Header, path: &Path) -> Result<Self, StoreError> {
        let metadata =
            fs::metadata(path).map_err(io(format!("can't read the size of {}", path.display())))?;
        let Header { position, revision, definitions, configs, requests, digest, level, .. } = header;
        let feature_level = level.feature_level;
        let bytes = metadata.len();
        Ok(Self { revision, definitions, configs, requests, digest, feature_level, bytes, position })
    }
}

/// Validates a file and summarizes it. Blocking.
///
/// # Errors
/// When it is damaged, or the disk fails.
pub fn inspect(path: &Path) -> Result<Summary, StoreError> {
    let (_, header) = file::read(path, &AtRest::default())?;
    Summary::of(header, path)
}

/// Writes the state of a file as the first snapshot of the store in `directory`, at another place in the log. Its
/// revision becomes that place's index: the log and the revisions of the new cluster go on from the same number.
/// Blocking.
///
/// # Errors
/// When the file is damaged, or the disk fails.
pub fn restore(
    path: &Path,
    directory: &Path,
    position: &Position,
    at_rest: &AtRest,
) -> Result<(), StoreError> {
    let (state, _) = file::read(path, &AtRest::default())?;
    // A backup does not hold the history of its state.
    let state = state.restored_at(position.index);
    let snapshots = directory.join("snapshot");
    files::make_directory(&snapshots)?;
    let to = snapshots.join(format!("snapshot-{:020}.concord", position.index));
    let unfinished = files::unfinished(&to);
    file::write(&unfinished, &state, position, Options::default().block_bytes, at_rest)?;
    files::rename(&unfinished, &to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::State;

    #[test]
    fn a_restored_file_holds_the_same_state_at_its_new_place() {
        let directory = tempfile::tempdir().unwrap();
        let plain = AtRest::default();
        let (from, to) = (directory.path().join("backup"), directory.path().join("store"));
        let mut state = State::new();
        state.advance(3);
        file::write(&from, &state, &Position { index: 3, raft_meta: vec![1] }, 100, &plain).unwrap();
        let before = inspect(&from).unwrap();
        restore(&from, &to, &Position { index: 7, raft_meta: vec![2, 3] }, &plain).unwrap();
        let after = inspect(&to.join("snapshot/snapshot-00000000000000000007.concord")).unwrap();
        assert_eq!(after.position.raft_meta, [2, 3]);
        assert_eq!(
            Summary { bytes: after.bytes, position: after.position.clone(), revision: 7, ..before },
            after
        );
        assert_eq!((after.revision, after.digest), (7, state.digest()));
        let (restored, _) =
            file::read(&to.join("snapshot/snapshot-00000000000000000007.concord"), &plain).unwrap();
        assert_eq!((state.compaction_revision(), restored.compaction_revision()), (0, 7));
    }
}
