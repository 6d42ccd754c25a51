//! Encryption of the data directory: without the data key, the files on the disk are useless.
//!
//! The operator gives a file with data keys. A data key encrypts one thing only: the key of the directory, which is
//! random and is made once (`directory_key`). Every file has a key of its own, derived from the key of the directory
//! and from random bytes in the file's head (`cipher`). So a new data key costs one small file, and no file that holds
//! data is written again.
//!
//! | what is encrypted | where | unit |
//! |---|---|---|
//! | entries of the Raft log | `crates/consensus/src/codec.rs`, `crates/consensus/src/log/` | one entry, bound to its place in the log |
//! | history segments | `crates/storage/src/history/frames.rs` | one frame, bound to its file and its offset |
//! | snapshots, also those that are being received | `stream` | 64 KiB, bound to the file and its place; the last one says so |
//! | sled | `crates/storage/src/sled/sealing.rs` | keys and values of rows |
//!
//! What stays visible: names, numbers and sizes of files, ids of log entries, votes, the identity, the ids of
//! definitions in sled. `docs/operations/encryption.md` is the whole list.
//!
//! It is turned on and off at a start: log, history and snapshots are rewritten before the node serves, and sled is
//! rebuilt. What nodes send each other does not change; each directory has keys of its own.
//!
//! | where | what it does |
//! |---|---|
//! | `mod` (this file) | [`AtRest`]: the keys of an open directory; turned on, turned off, rewrapped |
//! | `data_keys` | the operator's file |
//! | `directory_key` | the key of the directory, encrypted under a data key, in two copies |
//! | `cipher` | encrypts and decrypts one piece of bytes |
//! | `stream` | encrypts a file from start to end |
//!
//! **Invariants**
//! 1. A key is durable before the first byte is written under it.
//! 2. A wrong or missing key is found before anything in the directory is changed.
//! 3. No nonce is used twice with one key, whatever a power loss discards: see `cipher`.

mod cipher;
mod data_keys;
mod directory_key;
pub(crate) mod stream;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

pub use cipher::{FileKey, OVERHEAD_BYTES};
pub use data_keys::DataKeyId;
use data_keys::DataKeys;
use directory_key::{DirectoryKey, Wrapped};

use zeroize::Zeroizing;

use super::files;

#[cfg(any(test, feature = "testing"))]
/// Data keys, as lines of a file.
pub const KEYS: [&str; 2] =
    ["AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "IAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="];

/// What a file key is for: a key of one purpose opens nothing of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPurpose {
    /// Entries of the Raft log.
    Log = 1,
    /// A segment of the history.
    Segment = 2,
    /// A snapshot.
    Snapshot = 3,
    /// The values of sled.
    SledValues = 4,
    /// The names of sled's rows.
    SledNames = 5,
}

/// Whether a directory is encrypted, for operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encryption {
    /// The data key under which the key of the directory stands on the disk.
    pub data_key: DataKeyId,
}

/// The keys of an open directory. Clones share them. The default has none and leaves files as they are.
#[derive(Clone, Default)]
pub struct AtRest {
    inner: Option<Arc<AtRestInner>>,
}

struct AtRestInner {
    /// The data directory.
    directory: PathBuf,
    key_file: PathBuf,
    key: DirectoryKey,
    /// Whether what is written is encrypted; otherwise the key is for reading, and encryption is being turned off.
    seals: bool,
    wrapped: Mutex<Wrapped>,
    /// Why the key file could not be used when it was read last.
    problem: Mutex<Option<String>>,
}

impl fmt::Debug for AtRest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtRest").field("seals", &self.seals()).finish_non_exhaustive()
    }
}

/// What a check of a directory and its key file found.
enum EncryptionState {
    /// Neither a key nor an encrypted directory.
    Plain,
    /// A data key for a directory that is not encrypted yet.
    TurnOn(DataKeys),
    /// The key of the directory, and the data keys.
    Encrypted(DirectoryKey, Wrapped, DataKeys),
}

impl AtRest {
    /// Opens the keys of a directory, and makes them when encryption is turned on. Changes nothing on the disk:
    /// [`Self::prepare`] does. Blocking.
    ///
    /// # Errors
    /// In one line: the file can't be read or holds no key, or the directory needs another key.
    pub fn open(directory: &Path, key_file: Option<&Path>) -> Result<Self, String> {
        let (key, wrapped, keys) = match find(directory, key_file)? {
            EncryptionState::Plain => return Ok(Self::default()),
            EncryptionState::TurnOn(keys) => {
                let Some(current) = keys.current() else { return Ok(Self::default()) };
                let key = DirectoryKey::random()?;
                let wrapped = Wrapped::new(&key, current, false)?;
                (key, wrapped, keys)
            }
            EncryptionState::Encrypted(key, wrapped, keys) => (key, wrapped, keys),
        };
        let Some(key_file) = key_file else { return Ok(Self::default()) };
        let inner = AtRestInner {
            directory: directory.into(),
            key_file: key_file.into(),
            key,
            seals: keys.current().is_some(),
            wrapped: Mutex::new(wrapped),
            problem: Mutex::default(),
        };
        Ok(Self { inner: Some(Arc::new(inner)) })
    }

    /// Writes the keys of a directory that is encrypted from now on, or encrypts them under the current data key when
    /// that is another one than before. Comes before anything is written under them. Blocking.
    ///
    /// # Errors
    /// In one line: the disk fails, or the key file changed meanwhile.
    pub fn prepare(&self) -> Result<(), String> {
        let Some(inner) = &self.inner else { return Ok(()) };
        if Wrapped::read(&inner.directory)?.is_none() {
            let data_key = inner.wrapped().data_key;
            tracing::info!(%data_key, "the data directory is encrypted from now on, under data key {data_key}");
        }
        inner.wrapped().write_missing(&inner.directory)?;
        self.reload().map(drop)
    }

    /// Whether what is written is encrypted.
    #[must_use]
    pub fn seals(&self) -> bool {
        self.inner.as_ref().is_some_and(|inner| inner.seals)
    }

    /// Whether there is a key: files of the other kind, encrypted or not, have to be rewritten.
    pub(crate) fn has_key(&self) -> bool {
        self.inner.is_some()
    }

    /// Whether the directory is encrypted, and under which data key.
    #[must_use]
    pub fn encryption(&self) -> Option<Encryption> {
        let inner = self.inner.as_ref().filter(|inner| inner.seals)?;
        Some(Encryption { data_key: inner.wrapped().data_key })
    }

    /// The key of a file, by the random bytes that it was made with; `None` without a key of the directory.
    pub fn file_key(&self, purpose: KeyPurpose, id: &[u8]) -> Option<FileKey> {
        self.inner.as_ref().map(|inner| inner.key.file_key(purpose, id))
    }

    /// The key of sled or the log, which have no head of their own; `None` when what is written is not encrypted.
    pub fn sealing_key(&self, purpose: KeyPurpose) -> Option<FileKey> {
        self.seals().then(|| self.file_key(purpose, &[])).flatten()
    }

    /// Whether everything is as it is to be: encrypted, or in clear without a key.
    #[must_use]
    pub fn is_converted(&self) -> bool {
        self.inner.as_ref().is_none_or(|inner| inner.seals && inner.wrapped().is_converted)
    }

    /// Whether a file that is not encrypted may be one of this directory. Once everything is encrypted it is not:
    /// anybody who can write to the disk could replace it.
    pub fn allows_plain(&self) -> bool {
        let allows = |inner: &Arc<AtRestInner>| !inner.seals || !inner.wrapped().is_converted;
        self.inner.as_ref().is_none_or(allows) || concord_model::sabotage::is("plain-file-accepted")
    }

    /// Records that everything is as it is to be: the end of turning encryption on or off. Blocking.
    ///
    /// # Errors
    /// In one line: the key file can no longer be read, or the disk fails.
    pub fn converted(&self) -> Result<(), String> {
        let Some(inner) = self.inner.as_ref().filter(|_| !self.is_converted()) else { return Ok(()) };
        if !inner.seals {
            Wrapped::remove(&inner.directory)?;
            tracing::info!("the data directory is no longer encrypted");
            return Ok(());
        }
        let keys = DataKeys::read(&inner.key_file)?;
        let mut wrapped = inner.wrapped();
        let needed = wrapped.data_key;
        let lacking = || lacking(&inner.directory, &inner.key_file, needed, &keys);
        let renewed = Wrapped::new(&inner.key, keys.find(needed).ok_or_else(lacking)?, true)?;
        renewed.write(&inner.directory)?;
        *wrapped = renewed;
        tracing::info!(data_key = %needed, "everything in the data directory is encrypted");
        Ok(())
    }

    /// Reads the key file again and encrypts the key of the directory under the data key that is current now. Returns
    /// it if it is another one than before. Blocking.
    ///
    /// # Errors
    /// In one line: the file can't be read, lacks the data key that is in use, or the disk fails. The keys in use stay.
    pub fn reload(&self) -> Result<Option<DataKeyId>, String> {
        let Some(inner) = &self.inner else { return Ok(None) };
        let keys = DataKeys::read(&inner.key_file)?;
        let before = inner.wrapped().data_key;
        if keys.current().is_some_and(|current| current.id() == before) {
            return Ok(None);
        }
        if keys.find(before).is_none() {
            return Err(inner.missing(&keys));
        }
        if keys.current().is_none() && inner.seals {
            return Err(format!(
                "{}: encryption is turned off by a restart of this node; until then it stays on",
                inner.key_file.display()
            ));
        }
        self.rewrap(&keys)
    }

    /// Does what [`Self::reload`] does, and remembers its error. It is logged once. Blocking.
    pub fn refresh(&self) {
        let problem = self.reload().err();
        let Some(inner) = &self.inner else { return };
        let mut known = inner.problem.lock().unwrap_or_else(PoisonError::into_inner);
        match &problem {
            Some(problem) if known.as_ref() != Some(problem) => {
                tracing::error!("the data key stays as it is: {problem}");
            }
            None if known.is_some() => tracing::info!("the file of data keys can be used again"),
            Some(_) | None => {}
        }
        *known = problem;
    }

    /// Why the key file could not be used when it was read last.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        self.inner.as_ref()?.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Encrypts the key of the directory under the current data key, if that is another one.
    fn rewrap(&self, keys: &DataKeys) -> Result<Option<DataKeyId>, String> {
        let (Some(inner), Some(current)) = (&self.inner, keys.current()) else { return Ok(None) };
        let mut wrapped = inner.wrapped();
        if wrapped.data_key == current.id() {
            return Ok(None);
        }
        let renewed = Wrapped::new(&inner.key, current, wrapped.is_converted)?;
        renewed.write(&inner.directory)?;
        let before = std::mem::replace(&mut *wrapped, renewed).data_key;
        tracing::info!(
            data_key = %current.id(),
            "the key of the data directory is now encrypted under data key {}, no longer under {before}",
            current.id()
        );
        Ok(Some(current.id()))
    }

    /// The keys of a directory under a new file of data keys with these lines, for tests.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn for_tests(directory: &Path, lines: &str) -> Self {
        let file = directory.join("data-keys");
        std::fs::write(&file, lines).expect("the directory of a test can be written");
        let opened = Self::open(directory, Some(&file)).expect("the directory of a test can be written");
        opened.prepare().expect("the directory of a test can be written");
        opened
    }
}

impl AtRestInner {
    fn wrapped(&self) -> std::sync::MutexGuard<'_, Wrapped> {
        self.wrapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn missing(&self, keys: &DataKeys) -> String {
        lacking(&self.directory, &self.key_file, self.wrapped().data_key, keys)
    }
}

/// 32 random bytes for a key.
pub(super) fn random_key() -> Result<Zeroizing<[u8; 32]>, String> {
    cipher::random().map(Zeroizing::new)
}

/// A new data key as a line of the operator's file, and its id.
///
/// # Errors
/// In one line: the operating system returned no random bytes.
pub fn new_data_key() -> Result<(Zeroizing<String>, DataKeyId), String> {
    data_keys::DataKey::random()
}

/// Random bytes for the head of a file.
pub(crate) fn random_id() -> std::io::Result<[u8; 16]> {
    cipher::random().map_err(std::io::Error::other)
}

/// The error text of a key file that lacks the data key of a directory.
fn lacking(directory: &Path, key_file: &Path, needed: DataKeyId, keys: &DataKeys) -> String {
    format!(
        "the data directory {} is encrypted under data key {needed}, and {} holds {}; nothing was changed",
        directory.display(),
        key_file.display(),
        keys.names()
    )
}

fn find(directory: &Path, key_file: Option<&Path>) -> Result<EncryptionState, String> {
    let wrapped = Wrapped::read(directory)?;
    match (wrapped, key_file) {
        (None, None) => Ok(EncryptionState::Plain),
        (Some(wrapped), None) => Err(format!(
            "the data directory {} is encrypted under data key {}: set --data-key-file or CONCORD_DATA_KEY_FILE; nothing \
             was changed",
            directory.display(),
            wrapped.data_key
        )),
        (None, Some(path)) => {
            let keys = DataKeys::read(path)?;
            Ok(if keys.current().is_some() { EncryptionState::TurnOn(keys) } else { EncryptionState::Plain })
        }
        (Some(wrapped), Some(path)) => {
            let keys = DataKeys::read(path)?;
            let data_key = keys.find(wrapped.data_key);
            let data_key = data_key.ok_or_else(|| lacking(directory, path, wrapped.data_key, &keys))?;
            let key =
                wrapped.unwrap(data_key).map_err(|error| format!("{}: {error}", directory.display()))?;
            Ok(EncryptionState::Encrypted(key, wrapped, keys))
        }
    }
}
