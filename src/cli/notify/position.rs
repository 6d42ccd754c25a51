//! How far a notifier has come, in a file.
//!
//! **Invariants:** the file is replaced as a whole, and durable before the next event is posted. One process has it.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::cli::{
    connection::Failure,
    place::{StagedFile, Target, followed},
};

/// The format of the file.
const FORMAT: u32 = 1;

/// A place in the changes of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Position {
    /// The revision of the next event that is read.
    pub(super) from: u64,
    /// The cluster whose revision it is.
    pub(super) cluster: Option<String>,
}

impl Position {
    /// Whether both are of one cluster, as far as known.
    pub(super) fn is_of(&self, other: &Self) -> bool {
        match (&self.cluster, &other.cluster) {
            (Some(one), Some(other)) => one == other,
            (None, _) | (_, None) => true,
        }
    }

    /// The id of the cluster, empty if it is not known.
    pub(super) fn cluster(&self) -> &str {
        self.cluster.as_deref().unwrap_or_default()
    }
}

/// The content of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    concord_notify: u32,
    #[serde(flatten)]
    position: Position,
}

/// A file that this process alone has.
#[derive(Debug)]
pub(super) struct PositionFile {
    path: PathBuf,
    _lock: File,
}

impl PositionFile {
    /// Takes a file, which need not exist.
    pub(super) fn hold(path: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| named(path, &error);
        // The lock is beside the file itself, whatever links lead to it.
        let real = followed(path);
        // It stays: without it, two processes could each lock a file of this name.
        let lock = File::options().create(true).append(true).mode(0o600).open(beside(&real, ".lock"));
        let lock = lock.map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: real, _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                Err(named(path, &"another `concord notify` uses this file: give each its own"))
            }
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// What it says; `None` if it does not exist.
    pub(super) fn read(&self) -> Result<Option<Position>, Failure> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(named(&self.path, &error)),
        };
        // To begin anew would leave events out.
        let damaged = |error: serde_json::Error| {
            named(&self.path, &format!("no position: {error}; remove the file to begin with the next event"))
        };
        let stored: Stored = serde_json::from_str(&text).map_err(damaged)?;
        if stored.concord_notify != FORMAT {
            let version = stored.concord_notify;
            return Err(named(&self.path, &format!("its format {version} is that of another version")));
        }
        Ok(Some(stored.position))
    }

    /// Replaces it.
    pub(super) fn write(&self, position: &Position) -> Result<(), Failure> {
        let stored = Stored { concord_notify: FORMAT, position: position.clone() };
        let text = serde_json::to_string(&stored).map_err(|error| error.to_string())?;
        let target = Target::private(&self.path);
        let written = target.stage(format!("{text}\n").as_bytes()).and_then(StagedFile::publish);
        written.map_err(|error| named(&self.path, &error))
    }
}

/// Makes the name of a file durable.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    let path = followed(path);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// The path with this behind its name.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// A failure that names the file.
pub(super) fn named(path: &Path, error: &impl ToString) -> Failure {
    Failure::Failed(format!("{}: {}", path.display(), error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_kept_for_one_process_and_a_damaged_one_is_no_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("at.json");
        let file = PositionFile::hold(&path).unwrap();
        assert_eq!(file.read().unwrap(), None);
        let mut position = Position { from: 7, cluster: Some("c".into()) };
        file.write(&position).unwrap();
        position.from = 8;
        file.write(&position).unwrap();
        assert_eq!(file.read().unwrap(), Some(position));
        assert!(PositionFile::hold(&path).unwrap_err().into_text().contains("another"));
        drop(file);
        let file = PositionFile::hold(&path).unwrap();
        for bad in ["", "{", r#"{"from":1}"#, r#"{"concord_notify":2,"from":1,"cluster":null}"#] {
            fs::write(&path, bad).unwrap();
            assert!(file.read().is_err(), "{bad}");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "the file and its lock");
    }
}
