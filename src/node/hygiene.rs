//! What other users of the host may see of a node: its files, its memory, its core dumps.
//!
//! Files are made for this user alone. A data directory whose files others could read, as one that was copied, is
//! mended: it is this process's own. What belongs to somebody else can't be mended, and is refused where others could
//! write to it.
//!
//! **Invariant:** nothing in the data directory that this user owns can be read or written by others.

use std::{
    fs::{self, Metadata, Permissions},
    io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
};

use rustix::{
    fs::Mode,
    process::{DumpableBehavior, Resource, Rlimit, geteuid, set_dumpable_behavior, setrlimit, umask},
};

/// The bits of a mode that give something to the group and to others.
const NOT_OWNER: u32 = 0o077;
/// Others, or the group, may write.
const FOREIGN_WRITE: u32 = 0o022;

/// Files that are made from here on are this user's alone, and no core dump holds what is in memory. Without the right
/// to trace it, other processes of this user can't read its memory or environment either.
pub(crate) fn restrict_process() {
    umask(Mode::from_bits_truncate(NOT_OWNER));
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    if let Err(error) = setrlimit(Resource::Core, none) {
        tracing::warn!(%error, "core dumps could not be switched off");
    }
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "the memory of this process could not be protected from others of its user");
    }
}

/// Takes from group and others what they may do with a data directory, and with everything in it.
///
/// # Errors
/// In one line: the directory belongs to another user, and others may write to it; or the disk fails.
pub(super) fn protect_directory(directory: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("data directory {}: {error}", directory.display());
    let metadata = fs::metadata(directory).map_err(failed)?;
    if !mend(directory, &metadata).map_err(failed)? {
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
        if metadata.is_symlink() {
            continue;
        }
        mend(&path, &metadata)?;
        if metadata.is_dir() && metadata.uid() == geteuid().as_raw() {
            protect_content(&path)?;
        }
    }
    Ok(())
}

/// Takes from group and others what they may do with a file of this user; `false` when it is another user's.
fn mend(path: &Path, metadata: &Metadata) -> io::Result<bool> {
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
    fn a_directory_of_the_first_version_is_mended() {
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
        protect_directory(root.path()).unwrap();
        for (name, after) in [("", 0o700), ("log", 0o700), ("log/file", 0o600), ("identity.json", 0o600)] {
            assert_eq!(mode(&at(name)), after, "{name}");
        }
        assert_eq!(mode(Path::new("/etc/passwd")), outside, "a link is not followed");
        protect_directory(root.path()).unwrap();
    }
}
