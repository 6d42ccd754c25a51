//! Replaces a file atomically, with its mode and owner.
//!
//! **Invariants:** a reader finds the old bytes or the new ones, never a part. The new file gets its mode and owner before
//! its name, and only the agent can read it until then.

use std::{
    fs::{self, File, Permissions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, fchown},
    path::{Path, PathBuf},
};

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

    /// Whether the file has these bytes.
    pub(super) fn has(&self, bytes: &[u8]) -> Result<bool, String> {
        match fs::read(&self.path) {
            Ok(found) => Ok(found == bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Replaces the file.
    pub(super) fn write(&self, bytes: &[u8]) -> Result<(), String> {
        let folder = self.folder();
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.new", uuid::Uuid::now_v7().simple()));
        let new = folder.join(name);
        let written = self.write_new(&new, bytes).and_then(|()| fs::rename(&new, &self.path));
        if let Err(error) = written {
            // The first error is the one to report.
            let _ = fs::remove_file(&new);
            return Err(error.to_string());
        }
        // The name is durable once its folder is.
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| error.to_string())
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
        match fs::remove_file(&self.path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }

    fn folder(&self) -> &Path {
        self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }
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
        target.write(b"x").unwrap();
        assert!(target.has(b"x").unwrap() && !target.has(b"y").unwrap());
        let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
        assert_eq!(mode(), 0o640);
        fs::set_permissions(&path, Permissions::from_mode(0o604)).unwrap();
        target.mend().unwrap();
        assert_eq!(mode(), 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(target.remove().unwrap() && !target.remove().unwrap());
        let absent = Target::new(&folder.path().join("no/a"), "600", None, None).unwrap();
        assert!(absent.write(b"x").is_err());
    }

    #[test]
    fn names_of_users_become_numbers() {
        assert_eq!(id("root", "/etc/passwd"), Ok(0));
        assert_eq!(id("17", "/etc/group"), Ok(17));
        assert!(id("nobody-has-this-name", "/etc/passwd").is_err());
        assert!(Target::new(Path::new("a"), "1777", None, None).is_err());
    }
}
