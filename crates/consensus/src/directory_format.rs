//! The format of the data directory, raised before the first byte that an older version does not know.
//!
//! `identity.json` names the feature level that a version must know to use the directory, and every version reads it
//! before anything else. A version that does not know the level does not start, and changes nothing in the directory.
//!
//! Two things bring a higher level into a directory: an entry of the log, and a snapshot of another member. Both raise the
//! format here first.
//!
//! **Invariant:** the format in `identity.json` is durable before anything of that level is stored, and never falls.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use concord_model::feature::level_max;
use concord_net::identity::Identity;

/// The format that a directory has. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct DirectoryFormat {
    inner: Arc<SharedFormat>,
}

#[derive(Debug)]
struct SharedFormat {
    directory: PathBuf,
    /// The format that `identity.json` names durably.
    format: AtomicU32,
    /// The highest level that this version knows.
    known: u32,
    /// Held while the file is written.
    raising: Mutex<()>,
}

impl DirectoryFormat {
    pub(super) fn new(directory: &Path, format: u32) -> Self {
        Self::knowing(level_max(), directory, format)
    }

    fn knowing(known: u32, directory: &Path, format: u32) -> Self {
        let (format, raising) = (AtomicU32::new(format), Mutex::default());
        Self { inner: Arc::new(SharedFormat { directory: directory.into(), format, known, raising }) }
    }

    /// Whether the directory is one of at least this level already.
    pub(super) fn has(&self, level: u32) -> bool {
        level <= self.inner.format.load(Ordering::Acquire)
    }

    /// Makes the directory one of at least this level. Blocking when it is not, which happens once for each level.
    pub(super) fn require(&self, level: u32) -> io::Result<()> {
        if self.has(level) || concord_model::sabotage::is("directory-not-marked") {
            return Ok(());
        }
        if level > self.inner.known {
            return Err(unknown_level(level));
        }
        let _raising = self.inner.raising.lock().unwrap_or_else(PoisonError::into_inner);
        Identity::raise_format(&self.inner.directory, level)?;
        self.inner.format.fetch_max(level, Ordering::Release);
        Ok(())
    }
}

/// What was written at a level that this version does not know.
pub(super) fn unknown_level(level: u32) -> io::Error {
    let text = format!(
        "this log needs feature level {level}, but this version supports up to {known}; start a newer version. \
         Nothing was changed",
        known = level_max()
    );
    io::Error::new(io::ErrorKind::Unsupported, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_format_is_raised_once_and_not_to_an_unknown_level() {
        let directory = tempfile::tempdir().unwrap();
        let identity = Identity { cluster_id: uuid::Uuid::from_u128(7), node_id: 1, format: 1 };
        identity.write(directory.path()).unwrap();
        let stored = || {
            let text = std::fs::read(directory.path().join("identity.json")).unwrap();
            serde_json::from_slice::<Identity>(&text).unwrap()
        };
        let next = level_max() + 1;
        let format = DirectoryFormat::knowing(next, directory.path(), 1);
        format.require(1).unwrap();
        assert_eq!(stored(), identity);
        format.clone().require(next).unwrap();
        assert_eq!(stored(), Identity { format: next, ..identity.clone() });
        format.require(1).unwrap();
        assert_eq!(format.require(next + 1).unwrap_err().kind(), io::ErrorKind::Unsupported);
        assert_eq!(stored(), Identity { format: next, ..identity.clone() });
        // A version that knows less.
        assert!(Identity::read(directory.path()).unwrap_err().contains("start a newer version"));
        assert!(DirectoryFormat::new(directory.path(), 1).require(next).is_err());
    }
}
