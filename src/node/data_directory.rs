//! The data directory: used by one process, and accessible to one user.
//!
//! A directory that was copied may have files that others can read. Their permissions are repaired if this user owns them.
//! A directory of another user is rejected if everybody may write to it.
//!
//! **Invariants:** one process at a time uses a data directory. Others can't read or write what this user owns in it.

use std::{
    fs::{self, File, Metadata, Permissions, TryLockError},
    io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

use rustix::process::geteuid;

use concord_service::audit;

/// The file that is locked while a process uses the directory.
const LOCK_FILE: &str = "lock";

/// The bits of a mode that give something to the group and to others.
pub(super) const NOT_OWNER: u32 = 0o077;
/// Others, or the group, may write.
const FOREIGN_WRITE: u32 = 0o022;

/// Removes the permissions of group and others on a data directory and on everything in it.
///
/// # Errors
/// In one line: the directory belongs to another user, and others may write to it; or the disk fails.
pub(super) fn protect(directory: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("data directory {}: {error}", directory.display());
    let metadata = fs::metadata(directory).map_err(failed)?;
    if !take_from_others(directory, &metadata).map_err(failed)? {
        let mode = metadata.mode() & 0o7777;
        if mode & FOREIGN_WRITE != 0 && mode & 0o002 != 0 {
            return Err(format!(
                "data directory {} belongs to user {} and everybody may write to it (mode {mode:o}): give a directory of \
                 your own, or take this from others with `chmod o-rwx`",
                directory.display(),
                metadata.uid()
            ));
        }
        tracing::warn!(
            "data directory {} belongs to user {}: others may list it (mode {mode:o}), and read nothing in it",
            directory.display(),
            metadata.uid()
        );
    }
    protect_content(directory).map_err(failed)
}

fn protect_content(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let metadata = fs::symlink_metadata(&path)?;
        // A node creates nothing else here. The mode of a link is that of its target, which is elsewhere.
        if !metadata.is_file() && !metadata.is_dir() {
            continue;
        }
        take_from_others(&path, &metadata)?;
        if metadata.is_dir() && metadata.uid() == geteuid().as_raw() {
            protect_content(&path)?;
        }
    }
    Ok(())
}

/// Removes the permissions of group and others on a file of this user; `false` if it is another user's.
fn take_from_others(path: &Path, metadata: &Metadata) -> io::Result<bool> {
    let mode = metadata.mode() & 0o7777;
    if mode & NOT_OWNER == 0 {
        return Ok(true);
    }
    if metadata.uid() != geteuid().as_raw() {
        return Ok(false);
    }
    fs::set_permissions(path, Permissions::from_mode(mode & !NOT_OWNER))?;
    tracing::debug!(
        "{} had mode {mode:o}, which gave something to others; it is this user's alone now",
        path.display()
    );
    Ok(true)
}

/// Creates the directory if there is none, and locks it for this process.
pub(super) fn lock(directory: &Path) -> Result<File, String> {
    let shown = directory.display();
    let failed = |error: io::Error| format!("data directory {shown}: {error}");
    fs::create_dir_all(directory).map_err(failed)?;
    refuse_foreign(directory)?;
    let lock = File::options().create(true).append(true).open(directory.join(LOCK_FILE)).map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(format!("data directory {shown}: another process uses it")),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Refuses a directory that has files but no identity: it is no data directory, or it is one that has lost its
/// identity and must not be initialized again.
fn refuse_foreign(directory: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("data directory {}: {error}", directory.display());
    let mut foreign = None;
    for entry in fs::read_dir(directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let name = name.to_string_lossy();
        if name == "identity.json" {
            return Ok(());
        }
        // The directory of a file system's own, an identity that was being written when the power failed, and what a node
        // records before it has an identity.
        let is_expected =
            [LOCK_FILE, "lost+found", audit::DIRECTORY].iter().any(|expected| name == *expected);
        if !is_expected && !name.starts_with("identity.json.") {
            foreign = Some(name.into_owned());
        }
    }
    match foreign {
        None => Ok(()),
        Some(name) => Err(format!(
            "data directory {} has `{name}`, but no identity.json: it belongs to no node; give an empty directory",
            directory.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn permissions_of_others_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir(at("log")).unwrap();
        fs::write(at("log/file"), b"").unwrap();
        fs::write(at("identity.json"), b"").unwrap();
        fs::write(at("outside"), b"").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", at("log/link")).unwrap();
        let outside = mode(Path::new("/etc/passwd"));
        for (name, before) in [("", 0o755), ("log", 0o755), ("log/file", 0o644), ("identity.json", 0o664)] {
            set(&at(name), before);
        }
        protect(root.path()).unwrap();
        for (name, after) in [("", 0o700), ("log", 0o700), ("log/file", 0o600), ("identity.json", 0o600)] {
            assert_eq!(mode(&at(name)), after, "{name}");
        }
        assert_eq!(mode(Path::new("/etc/passwd")), outside, "a link is not followed");
        protect(root.path()).unwrap();
    }

    #[test]
    fn a_directory_is_locked_by_one_process() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("deep/data");
        let first = lock(&directory).unwrap();
        assert!(lock(&directory).unwrap_err().contains("another process"));
        drop(first);
        assert!(lock(&directory).is_ok());
    }

    #[test]
    fn a_foreign_directory_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("thesis.txt"), "mine").unwrap();
        assert!(lock(directory.path()).unwrap_err().contains("`thesis.txt`"));
        fs::write(directory.path().join("identity.json"), "{}").unwrap();
        assert!(lock(directory.path()).is_ok());
    }
}
