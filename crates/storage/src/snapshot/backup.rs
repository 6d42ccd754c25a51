//! Snapshot files outside a store: a backup is inspected, or restored as the first snapshot of a new store.
//!
//! A backup is the content of a snapshot, unencrypted or in an `envelope`.
//!
//! **Invariant:** a file is used only after all of it was read and its records have the digest that its
//! header names.

use std::{
    fs::{self, File},
    io::{Read as _, Seek as _},
    path::{Path, PathBuf},
};

use super::{
    envelope::{self, Opening, SignerKey},
    file::{self, Header, SnapshotSource, read_error},
};
use crate::{
    Point, PointError, PointReached, Position, StoppedHistory, StoreError, StoreOptions,
    at_rest::{AtRest, KeyPurpose, stream::DecryptingReader},
    files::{self, io},
};
use concord_model::record::Revision;
use concord_state::State;

/// What a backup holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The revision of its state.
    pub revision: Revision,
    /// Its definitions.
    pub definitions: u64,
    /// Its configs.
    pub configs: u64,
    /// Its access keys.
    pub access_keys: u64,
    /// Its environments.
    pub environments: u64,
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
    fn of(state: &State, position: Position, bytes: u64) -> Self {
        Self {
            revision: state.revision(),
            // Without the deleted definitions that are kept.
            definitions: state.definition_count(),
            configs: state.config_count(),
            access_keys: state.access_key_count(),
            environments: state.environments().count() as u64,
            requests: state.request_count(),
            digest: state.digest(),
            feature_level: state.feature_level(),
            bytes,
            position,
        }
    }
}

/// What a backup holds, to be restored or exported.
#[derive(Debug)]
pub struct Content {
    /// Its state.
    pub state: State,
    /// What that holds.
    pub summary: Summary,
}

impl Content {
    /// Reads a backup whole. Blocking.
    ///
    /// # Errors
    /// When it is damaged, can't be decrypted or was signed by nobody who was named; when the disk fails.
    pub fn read(input: &Input) -> Result<Self, StoreError> {
        let (state, header) = input.read()?;
        let path = &input.path;
        let metadata =
            fs::metadata(path).map_err(io(format!("can't read the size of {}", path.display())))?;
        let summary = Summary::of(&state, header.position, metadata.len());
        Ok(Self { state, summary })
    }

    /// Continues it by the history of a stopped node, up to a point. Blocking.
    ///
    /// # Errors
    /// As [`StoppedHistory::continued`].
    pub fn continued(
        self,
        history: &StoppedHistory,
        point: Point,
    ) -> Result<(Self, PointReached), PointError> {
        let Self { state, summary } = self;
        let (state, reached) = history.continued(state, point)?;
        let summary = Summary::of(&state, summary.position, summary.bytes);
        Ok((Self { state, summary }, reached))
    }

    /// Writes it as the first snapshot of the store in `directory`, at another place in the log. Its revision becomes
    /// that place's index: the log and the revisions of the new cluster continue from the same number. Blocking.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn restore(self, directory: &Path, position: &Position, at_rest: &AtRest) -> Result<(), StoreError> {
        // It does not have the history of its state.
        let state = self.state.restored_at(position.index);
        let snapshots = directory.join("snapshot");
        files::make_directory(&snapshots)?;
        let to = snapshots.join(format!("snapshot-{:020}.concord", position.index));
        let unfinished = files::unfinished(&to);
        file::write(&unfinished, &state, position, StoreOptions::default().block_bytes, at_rest)?;
        files::rename(&unfinished, &to)
    }
}

/// The file of a backup, and what it is opened with if it is encrypted.
#[derive(Debug)]
pub struct Input {
    path: PathBuf,
    opening: Opening,
}

impl Input {
    /// A backup in a file.
    #[must_use]
    pub fn new(path: &Path, opening: Opening) -> Self {
        Self { path: path.into(), opening }
    }

    fn opened(&self) -> Result<(File, bool), StoreError> {
        let name = self.path.display();
        let mut file = File::open(&self.path).map_err(io(format!("can't open {name}")))?;
        let mut begin = Vec::new();
        (&mut file).take(8).read_to_end(&mut begin).map_err(io(format!("can't read {name}")))?;
        file.rewind().map_err(io(format!("can't read {name}")))?;
        Ok((file, envelope::is_sealed(&begin)))
    }

    /// Who signed it, if it is encrypted; its content is not looked at. Blocking.
    ///
    /// # Errors
    /// When its signature is not that of its bytes, or is that of a signer who was not named; when the disk fails.
    pub fn signer(&self) -> Result<Option<SignerKey>, StoreError> {
        let (mut file, is_sealed) = self.opened()?;
        let failed = read_error(&self.path.display().to_string());
        is_sealed.then(|| self.opening.verify(&mut file)).transpose().map_err(failed)
    }

    /// Whether its content can be read: it is not encrypted, or an identity was given.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.opening.can_decrypt() || self.opened().is_ok_and(|(_, is_sealed)| !is_sealed)
    }

    fn read(&self) -> Result<(State, Header), StoreError> {
        let name = self.path.display().to_string();
        let (file, is_sealed) = self.opened()?;
        let content = if is_sealed {
            SnapshotSource::Backup(self.opening.open(file).map_err(read_error(&name))?)
        } else if self.opening.needs_signature() {
            return Err(StoreError::Damaged(format!("{name} is not signed, but a signer was given")));
        } else {
            let source = DecryptingReader::new(file, &AtRest::default(), KeyPurpose::Snapshot);
            SnapshotSource::File(source.map_err(read_error(&name))?)
        };
        file::read_content(content, name)
    }
}

/// Validates a backup and summarizes it. Blocking.
///
/// # Errors
/// As [`Content::read`].
pub fn inspect(input: &Input) -> Result<Summary, StoreError> {
    Content::read(input).map(|content| content.summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restored_file_holds_the_same_state_at_its_new_place() {
        let directory = tempfile::tempdir().unwrap();
        let plain = AtRest::default();
        let (from, to) = (directory.path().join("backup"), directory.path().join("store"));
        let mut state = State::new();
        state.advance(3);
        file::write(&from, &state, &Position { index: 3, raft_meta: vec![1] }, 100, &plain).unwrap();
        let input = |path: &Path| Input::new(path, Opening::default());
        let before = inspect(&input(&from)).unwrap();
        let position = Position { index: 7, raft_meta: vec![2, 3] };
        Content::read(&input(&from)).unwrap().restore(&to, &position, &plain).unwrap();
        let restored = to.join("snapshot/snapshot-00000000000000000007.concord");
        let after = inspect(&input(&restored)).unwrap();
        assert_eq!(after.position.raft_meta, [2, 3]);
        assert_eq!(
            Summary { bytes: after.bytes, position: after.position.clone(), revision: 7, ..before },
            after
        );
        assert_eq!((after.revision, after.digest), (7, state.digest()));
        let (restored, _) = file::read(&restored, &plain).unwrap();
        assert_eq!((state.compaction_revision(), restored.compaction_revision()), (0, 7));
        let signed_only = Opening::read(None, &[envelope::new_signing_key().unwrap().1.to_string()]).unwrap();
        let refused = inspect(&Input::new(&from, signed_only)).unwrap_err();
        assert!(refused.to_string().contains("not signed"), "{refused}");
    }
}
