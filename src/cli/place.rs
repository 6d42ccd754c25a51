//! Replaces a file atomically, with its mode and owner.
//!
//! **Invariants:** a reader finds the old bytes or the new ones, never a part. The new file gets its mode and owner before
//! its name, and only this user can read it until then.

use std::{
    ffi::OsStr,
    fs::{self, File, Permissions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, fchown},
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

/// The end of the name of a file that is not published yet.
const STAGED: &str = ".new";

/// Links that are followed to a file, as Linux does.
const LINKS_MAX: usize = 40;

/// The path, mode and owner of a file.
#[derive(Debug, Clone)]
pub(super) struct Target {
    path: PathBuf,
    mode: u32,
    owner: Option<u32>,
    group: Option<u32>,
}

impl Target {
    /// A target; users and groups by number, or by name as in this machine's files.
    pub(super) fn new(
        path: &Path,
        mode: &str,
        owner: Option<&str>,
        group: Option<&str>,
    ) -> Result<Self, String> {
        let bits = u32::from_str_radix(mode, 8).ok().filter(|bits| *bits <= 0o777);
        let mode =
            bits.ok_or_else(|| format!("invalid mode `{mode}`: expected three octal digits, as in 0640"))?;
        let owner = owner.map(|name| id(name, "/etc/passwd")).transpose()?;
        let group = group.map(|name| id(name, "/etc/group")).transpose()?;
        Ok(Self { path: path.to_owned(), mode, owner, group })
    }

    /// A file that exists. It keeps its mode; for root, its owner and group.
    ///
    /// # Errors
    /// When it does not exist.
    pub(super) fn existing(path: &Path) -> io::Result<Self> {
        // Not a link in place of the file that it leads to.
        let path = path.canonicalize()?;
        let found = fs::metadata(&path)?;
        let is_root = rustix::process::geteuid().is_root();
        let of_root = |id: u32| is_root.then_some(id);
        Ok(Self {
            path,
            mode: found.mode() & 0o777,
            owner: of_root(found.uid()),
            group: of_root(found.gid()),
        })
    }

    /// A file that only this user reads. If the path is a link, it is the file to which that leads.
    pub(super) fn private(path: &Path) -> Self {
        Self { path: followed(path), mode: 0o600, owner: None, group: None }
    }

    /// Creates its folder.
    pub(super) fn make_folder(&self) -> Result<(), String> {
        fs::create_dir_all(self.folder()).map_err(|error| format!("{}: {error}", self.folder().display()))
    }

    /// The bytes of the file; `None` if it does not exist.
    pub(super) fn read(&self) -> Result<Option<Vec<u8>>, String> {
        match fs::read(&self.path) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("{}: {error}", self.path.display())),
        }
    }

    /// Whether the file has these bytes.
    pub(super) fn has(&self, bytes: &[u8]) -> Result<bool, String> {
        self.refuse_other()?;
        match fs::read(&self.path) {
            Ok(found) => Ok(found == bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The digest of the file's bytes; `None` if it does not exist.
    pub(super) fn digest(&self) -> Result<Option<FileDigest>, String> {
        self.refuse_other()?;
        match fs::read(&self.path) {
            Ok(found) => Ok(Some(FileDigest::of(&found))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// What the file system says of the file: as long as it is the same, nobody has changed it.
    pub(super) fn stamp(&self) -> FileStamp {
        let found = fs::symlink_metadata(&self.path).ok();
        FileStamp(found.map(|found| {
            let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()];
            ([found.dev(), found.ino(), found.len()], times, [found.mode(), found.uid(), found.gid()])
        }))
    }

    /// A rename would replace a symbolic link by a file, and leave the link's target as it is. A device or a pipe is not
    /// the agent's to replace, nor is its mode.
    fn refuse_other(&self) -> Result<(), String> {
        let Ok(found) = fs::symlink_metadata(&self.path) else { return Ok(()) };
        if found.is_symlink() {
            return Err("the path is a symbolic link: set `path` to its target, or remove the link".into());
        }
        if !found.is_file() {
            return Err("the path is no regular file: set `path` to another one".into());
        }
        Ok(())
    }

    /// Writes the new file beside the current one.
    pub(super) fn stage(&self, bytes: &[u8]) -> Result<StagedFile, String> {
        let mut name = self.name().to_owned();
        name.push(format!(".{}{STAGED}", uuid::Uuid::now_v7().simple()));
        let staged = StagedFile { new: self.folder().join(name), target: self.clone() };
        self.write_new(&staged.new, bytes).map_err(|error| error.to_string())?;
        Ok(staged)
    }

    fn write_new(&self, new: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = File::options().create_new(true).write(true).mode(0o600).open(new)?;
        file.write_all(bytes)?;
        if self.owner.is_some() || self.group.is_some() {
            fchown(&file, self.owner, self.group)?;
        }
        file.set_permissions(Permissions::from_mode(self.mode))?;
        file.sync_all()
    }

    /// Removes what an agent left that was killed between [`Self::stage`] and its end.
    pub(super) fn sweep(&self) -> Result<(), String> {
        sweep(self.folder(), self.name(), |middle| {
            middle.len() == 32 && middle.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
        .map_err(|error| format!("{}: {error}", self.folder().display()))
    }

    /// Repairs the mode and the owner of the file.
    pub(super) fn mend(&self) -> Result<(), String> {
        let mend = || {
            let found = fs::metadata(&self.path)?;
            let is_owned = self.owner.is_none_or(|id| id == found.uid());
            let is_grouped = self.group.is_none_or(|id| id == found.gid());
            if !is_owned || !is_grouped {
                chown(&self.path, self.owner, self.group)?;
            }
            if found.mode() & 0o777 != self.mode {
                fs::set_permissions(&self.path, Permissions::from_mode(self.mode))?;
            }
            Ok::<_, io::Error>(())
        };
        mend().map_err(|error| error.to_string())
    }

    /// Removes the file. Returns whether it was there.
    pub(super) fn remove(&self) -> Result<bool, String> {
        self.refuse_other()?;
        match fs::remove_file(&self.path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }

    fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    fn folder(&self) -> &Path {
        self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }
}

/// The digest of a file's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileDigest([u8; 32]);

impl FileDigest {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }
}

/// Device, inode and size, times, mode and owner of a file; none if it does not exist. A change of its content or its
/// mode changes the `ctime`, which no program can set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileStamp(Option<([u64; 3], [i64; 4], [u32; 3])>);

/// A complete new file that does not have its name yet. Dropping it removes it.
#[derive(Debug)]
pub(super) struct StagedFile {
    new: PathBuf,
    target: Target,
}

impl StagedFile {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.new
    }

    /// Gives it its name: the current file is replaced.
    pub(super) fn publish(self) -> Result<(), String> {
        fs::rename(&self.new, &self.target.path).map_err(|error| error.to_string())?;
        // The name is durable once its folder is.
        let folder = File::open(self.target.folder());
        folder.and_then(|folder| folder.sync_all()).map_err(|error| error.to_string())
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        // A published file is not there any more; any other that stays is removed by the next start.
        let _ = fs::remove_file(&self.new);
    }
}

/// Removes the files `NAME.MIDDLE.new` of a folder.
pub(super) fn sweep(folder: &Path, name: &OsStr, is_middle: impl Fn(&str) -> bool) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let found = entry.file_name();
        let middle = found
            .to_str()
            .zip(name.to_str())
            .and_then(|(found, name)| found.strip_prefix(name)?.strip_prefix('.')?.strip_suffix(STAGED));
        if middle.is_some_and(&is_middle) && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The path without links. The file need not exist.
pub(super) fn followed(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    // A link may lead to itself.
    for _ in 0..LINKS_MAX {
        if let Ok(real) = path.canonicalize() {
            return real;
        }
        let Ok(next) = fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("")).join(next);
    }
    path
}

/// The number of a user or a group.
fn id(name: &str, file: &str) -> Result<u32, String> {
    if let Ok(id) = name.parse() {
        return Ok(id);
    }
    let text = fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let found = text.lines().find_map(|line| {
        let mut parts = line.split(':');
        (parts.next() == Some(name)).then(|| parts.nth(1)?.parse().ok()).flatten()
    });
    found.ok_or_else(|| format!("`{name}` is not in {file}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let target = Target::new(&path, "0640", None, None).unwrap();
        assert!(!target.has(b"x").unwrap());
        target.stage(b"x").unwrap().publish().unwrap();
        assert!(target.has(b"x").unwrap() && !target.has(b"y").unwrap());
        let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
        assert_eq!(mode(), 0o640);
        fs::set_permissions(&path, Permissions::from_mode(0o604)).unwrap();
        target.mend().unwrap();
        assert_eq!(mode(), 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(target.remove().unwrap() && !target.remove().unwrap());
        let absent = Target::new(&folder.path().join("no/a"), "600", None, None).unwrap();
        assert!(absent.stage(b"x").is_err());
    }

    #[test]
    fn every_change_of_a_file_changes_its_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let target = Target::new(&path, "0640", None, None).unwrap();
        assert_eq!((target.digest().unwrap(), target.stamp()), (None, FileStamp(None)));
        target.stage(b"x").unwrap().publish().unwrap();
        let (digest, mut last) = (target.digest().unwrap(), target.stamp());
        assert_eq!((digest, target.stamp()), (Some(FileDigest::of(b"x")), last));
        let other = folder.path().join("other");
        fs::write(&other, "y").unwrap();
        let changes: [&dyn Fn(); 4] = [
            &|| fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap(),
            &|| fs::write(&path, "longer").unwrap(),
            // With the size and the time of before.
            &|| fs::rename(&other, &path).unwrap(),
            &|| fs::remove_file(&path).unwrap(),
        ];
        for change in changes {
            change();
            assert_ne!(target.stamp(), last);
            last = target.stamp();
        }
    }

    #[test]
    fn what_a_killed_agent_left_is_removed_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let target = Target::new(&folder.path().join("a.json"), "0600", None, None).unwrap();
        // Killed in between: nothing is dropped.
        std::mem::forget(target.stage(b"x").unwrap());
        drop(target.stage(b"y").unwrap());
        for other in ["a.json", "a.json.new", "a.json.old.new", "b.json.0123456789abcdef0123456789abcdef.new"]
        {
            fs::write(folder.path().join(other), "").unwrap();
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 5);
        target.sweep().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
    }

    #[test]
    fn a_symbolic_link_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (real, path) = (folder.path().join("real"), folder.path().join("link"));
        fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &path).unwrap();
        let target = Target::new(&path, "0600", None, None).unwrap();
        assert!(target.has(b"x").unwrap_err().contains("symbolic link") && target.remove().is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    }

    #[test]
    fn a_private_file_is_replaced_where_its_link_leads() {
        let folder = tempfile::tempdir().unwrap();
        let (real, path) = (folder.path().join("sub/real"), folder.path().join("link"));
        fs::create_dir(folder.path().join("sub")).unwrap();
        std::os::unix::fs::symlink("sub/next", &path).unwrap();
        std::os::unix::fs::symlink("real", folder.path().join("sub/next")).unwrap();
        // At first it does not exist.
        for text in ["one", "two"] {
            Target::private(&path).stage(text.as_bytes()).unwrap().publish().unwrap();
            assert!(path.is_symlink() && folder.path().join("sub/next").is_symlink());
            assert_eq!(fs::read_to_string(&real).unwrap(), text);
        }
        std::os::unix::fs::symlink("loop", folder.path().join("loop")).unwrap();
        assert_eq!(followed(&folder.path().join("loop")), folder.path().join("loop"));
    }

    #[test]
    fn what_is_no_regular_file_is_neither_replaced_nor_changed() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from_raw_mode(0o644)).unwrap();
        for path in [pipe.as_path(), folder.path(), Path::new("/dev/null")] {
            let mode = || fs::metadata(path).unwrap().mode();
            let (before, target) = (mode(), Target::new(path, "0600", None, None).unwrap());
            // Read as a file, a pipe would block the agent, and the device would be equal to an empty file.
            assert!(target.has(b"").unwrap_err().contains("no regular file"), "{}", path.display());
            assert!(target.remove().unwrap_err().contains("no regular file") && mode() == before);
        }
    }

    #[test]
    fn names_of_users_become_numbers() {
        assert_eq!(id("root", "/etc/passwd"), Ok(0));
        assert_eq!(id("17", "/etc/group"), Ok(17));
        assert!(id("nobody-has-this-name", "/etc/passwd").is_err());
        assert!(Target::new(Path::new("a"), "1777", None, None).is_err());
    }
}
