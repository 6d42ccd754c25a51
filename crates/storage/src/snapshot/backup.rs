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
    Position, StoreError, StoreOptions,
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
    fn of(state: &State, header: Header, path: &Path) -> Result<Self, StoreError> {
        let metadata =
            fs::metadata(path).map_err(io(format!("can't read the size of {}", path.display())))?;
        let Header { position, revision, requests, digest, feature_level, .. } = header;
        let (access_keys, bytes) = (state.access_keys().count() as u64, metadata.len());
        // The header also counts the deleted definitions that are kept.
        let (definitions, configs) = (state.definition_count(), state.config_count());
        Ok(Self {
            revision,
            definitions,
            configs,
            access_keys,
            requests,
            digest,
            feature_level,
            bytes,
            position,
        })
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

/// The state that a backup holds. Blocking.
///
/// # Errors
/// As [`inspect`].
pub fn contents(input: &Input) -> Result<State, StoreError> {
    input.read().map(|(state, _)| state)
}

/// Validates a backup and summarizes it. Blocking.
///
/// # Errors
/// When it is damaged, can't be decrypted or was signed by nobody who was named; when the disk fails.
pub fn inspect(input: &Input) -> Result<Summary, StoreError> {
    let (state, header) = input.read()?;
    Summary::of(&state, header, &input.path)
}

/// Writes the state of a backup as the first snapshot of the store in `directory`, at another place in the log. Its
/// revision becomes that place's index: the log and the revisions of the new cluster continue from the same number.
/// Blocking.
///
/// # Errors
/// As [`inspect`].
pub fn restore(
    input: &Input,
    directory: &Path,
    position: &Position,
    at_rest: &AtRest,
) -> Result<(), StoreError> {
    let (state, _) = input.read()?;
    // A backup does not hold the history of its state.
    let state = state.restored_at(position.index);
    let snapshots = directory.join("snapshot");
    files::make_directory(&snapshots)?;
    let to = snapshots.join(format!("snapshot-{:020}.concord", position.index));
    let unfinished = files::unfinished(&to);
    file::write(&unfinished, &state, position, StoreOptions::default().block_bytes, at_rest)?;
    files::rename(&unfinished, &to)
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
        restore(&input(&from), &to, &Position { index: 7, raft_meta: vec![2, 3] }, &plain).unwrap();
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
