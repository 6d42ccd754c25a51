//! The data directory: one agent at a time has it.
//!
//! Two agents with one directory would take each other's notes of commands that are due, and overwrite each other's files.
//!
//! **Invariant:** the directory is held until the value is dropped, or the process ends in whatever way.

use std::{
    ffi::OsStr,
    fs::{DirBuilder, File, TryLockError},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

use super::CACHE_FILE;
use crate::cli::{connection::Failure, place};

/// The file that is locked. It stays: without it, two agents could each lock a file of this name.
const LOCK_FILE: &str = "lock";

/// A data directory that this process holds.
#[derive(Debug)]
pub(super) struct DataDir(#[expect(dead_code, reason = "the lock ends with the file")] File);

impl DataDir {
    /// Takes a directory, which is created if it does not exist.
    pub(super) fn hold(folder: &Path) -> Result<Self, Failure> {
        let failed =
            |error: &dyn std::fmt::Display| Failure::Failed(format!("{}: {error}", folder.display()));
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| failed(&error))?;
        let lock = File::options().create(true).append(true).mode(0o600).open(folder.join(LOCK_FILE));
        let lock = lock.map_err(|error| failed(&error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(failed(
                    &"another agent uses this `data_dir`: stop it, or give each agent its own",
                ));
            }
            Err(TryLockError::Error(error)) => return Err(failed(&error)),
        }
        // What an agent left that was killed while it wrote the last-known-good file.
        let is_other = |middle: &str| middle.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
        place::sweep(folder, OsStr::new(CACHE_FILE), is_other).map_err(|error| failed(&error))?;
        Ok(Self(lock))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_agent_and_nothing_that_a_killed_one_left() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("below/data");
        let held = DataDir::hold(&data).unwrap();
        for name in ["configs.json.12-ab3f.new", "configs.json", "other.new"] {
            std::fs::write(data.join(name), "").unwrap();
        }
        let error = DataDir::hold(&data).unwrap_err().into_text();
        assert!(error.contains("another agent"), "{error}");
        drop(held);
        DataDir::hold(&data).unwrap();
        let names = || std::fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names().count(), 3, "{:?}", names().collect::<Vec<_>>());
    }
}
