//! The identity of a data directory: its cluster and its member.
//!
//! `init` or joining writes `identity.json`, before there is a log; later its format is raised
//! (`crates/consensus/src/directory_format.rs`), and a recovery gives it another cluster
//! (`crates/consensus/src/recover/mod.rs`). The file `log.seen` is added once the header of the log names the same identity.
//! If the log is missing afterwards, it was lost, and with it the vote of this member, which could vote twice in one term.
//! Such a member must not rejoin under its old id.
//!
//! The file `identity.json.joining` is there from before the identity until the log has existed. So a node that exits in
//! between, for instance while it bootstraps a cluster and waits for the other members, is no member that has lost its log:
//! nobody has counted on a vote of it, and it joins again.
//!
//! **Invariant:** all files are durable (file and directory fsynced) before anything relies on them.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};

use concord_model::feature::{LEVEL_MIN, level_max};

/// The format of a new data directory.
pub const FORMAT: u32 = LEVEL_MIN;

const IDENTITY_FILE: &str = "identity.json";
const LOG_SEEN_FILE: &str = "log.seen";
const JOINING_FILE: &str = "identity.json.joining";

/// The contents of `identity.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The cluster's id, chosen when it was formed.
    pub cluster_id: uuid::Uuid,
    /// This member's id. Ids are never reused.
    pub node_id: u64,
    /// The format of the directory: the feature level that a version must know to use it. A directory of a higher one is
    /// refused.
    pub format: u32,
}

/// What every format has.
#[derive(Deserialize)]
struct IdentityFormat {
    format: u32,
}

impl Identity {
    /// Reads a directory's identity; `None` when it has none yet.
    ///
    /// # Errors
    /// When the file can't be read, is damaged or of a newer format.
    pub fn read(directory: &Path) -> Result<Option<Self>, String> {
        let path = directory.join(IDENTITY_FILE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        let damaged = |error: serde_json::Error| format!("{}: {error}", path.display());
        // The format first: a later one may have other members.
        let IdentityFormat { format } = serde_json::from_slice(&bytes).map_err(damaged)?;
        let known = level_max();
        if format > known {
            return Err(format!(
                "{}: the directory has format {}, this version supports up to {known}; start a newer version",
                path.display(),
                format
            ));
        }
        serde_json::from_slice(&bytes).map(Some).map_err(damaged)
    }

    /// Checks that the directory is that of this node.
    ///
    /// # Errors
    /// When it is that of another node: the id or the path in the settings is wrong.
    pub fn require_node(&self, directory: &Path, node: u64) -> Result<(), String> {
        if self.node_id == node {
            return Ok(());
        }
        let path = directory.join(IDENTITY_FILE);
        Err(format!("{} names node {}, but this is node {node}", path.display(), self.node_id))
    }

    /// Writes this identity into a directory. Writing the same one again does nothing.
    ///
    /// # Errors
    /// When the directory has another identity or can't be written.
    pub fn write(&self, directory: &Path) -> Result<(), String> {
        if let Some(present) = Self::read(directory)? {
            return if (present.cluster_id, present.node_id) == (self.cluster_id, self.node_id) {
                Ok(())
            } else {
                Err(format!(
                    "{} belongs to node {} of cluster {}",
                    directory.display(),
                    present.node_id,
                    present.cluster_id
                ))
            };
        }
        let joining = write_durably(directory, JOINING_FILE, self.log_note().as_bytes());
        joining
            .and_then(|()| write_durably(directory, IDENTITY_FILE, &self.to_bytes()?))
            .map_err(|error| format!("{}: {error}", directory.display()))
    }

    /// Writes this identity in the place of the one that a directory has: its member continues in another cluster.
    /// Durable. Blocking.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn replace(&self, directory: &Path) -> io::Result<()> {
        write_durably(directory, IDENTITY_FILE, &self.to_bytes()?)
    }

    /// Raises the format that a directory's identity names, durably. A higher one stays.
    pub fn raise_format(directory: &Path, format: u32) -> io::Result<()> {
        let present = Self::read(directory).map_err(io::Error::other)?;
        let present = present
            .ok_or_else(|| io::Error::other(format!("{} has no {IDENTITY_FILE}", directory.display())))?;
        if present.format >= format {
            return Ok(());
        }
        tracing::info!(format, "raised the format of the data directory to {format}");
        write_durably(directory, IDENTITY_FILE, &Self { format, ..present }.to_bytes()?)
    }

    fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec_pretty(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Whether a log of this identity has existed in a directory.
    pub fn log_existed(directory: &Path) -> io::Result<bool> {
        directory.join(LOG_SEEN_FILE).try_exists()
    }

    /// Whether the directory has its identity and has never had a log.
    pub fn is_joining(directory: &Path) -> io::Result<bool> {
        Ok(directory.join(JOINING_FILE).try_exists()? && !Self::log_existed(directory)?)
    }

    /// Records that a log of this identity exists.
    pub fn record_log(&self, directory: &Path) -> io::Result<()> {
        write_durably(directory, LOG_SEEN_FILE, self.log_note().as_bytes())?;
        match fs::remove_file(directory.join(JOINING_FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn log_note(&self) -> String {
        format!("{}\n", self.node_id)
    }
}

/// Writes a file of a directory, durably and whole: it has its name with all of its bytes or not at all. Blocking.
///
/// # Errors
/// When the disk fails.
pub fn write_durably(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let new = directory.join(format!("{name}.new"));
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, directory.join(name))?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(node_id: u64) -> Identity {
        Identity { cluster_id: uuid::Uuid::from_u128(7), node_id, format: FORMAT }
    }

    #[test]
    fn an_identity_is_written_once() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Identity::read(directory.path()), Ok(None));
        identity(1).write(directory.path()).unwrap();
        identity(1).write(directory.path()).unwrap();
        assert_eq!(Identity::read(directory.path()), Ok(Some(identity(1))));
        assert!(identity(2).write(directory.path()).unwrap_err().contains("belongs to node 1"));
    }

    #[test]
    fn a_directory_joins_from_its_identity_to_its_log() {
        let directory = tempfile::tempdir().unwrap();
        let is_joining = || Identity::is_joining(directory.path()).unwrap();
        assert!(!is_joining());
        identity(1).write(directory.path()).unwrap();
        assert!(is_joining());
        identity(1).record_log(directory.path()).unwrap();
        identity(1).record_log(directory.path()).unwrap();
        assert!(!is_joining() && !directory.path().join(JOINING_FILE).exists());
        // It exited between the two files, and lost its log later.
        fs::write(directory.path().join(JOINING_FILE), b"1\n").unwrap();
        assert!(!is_joining());
        // It exited between the mark and the identity.
        let begun = tempfile::tempdir().unwrap();
        fs::write(begun.path().join(JOINING_FILE), b"1\n").unwrap();
        assert_eq!(Identity::read(begun.path()), Ok(None));
        identity(2).write(begun.path()).unwrap();
        assert!(Identity::is_joining(begun.path()).unwrap());
    }

    #[test]
    fn a_damaged_or_newer_identity_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(IDENTITY_FILE), b"{").unwrap();
        assert!(Identity::read(directory.path()).is_err());
        let newer = Identity { format: level_max() + 1, ..identity(1) };
        fs::write(directory.path().join(IDENTITY_FILE), serde_json::to_vec(&newer).unwrap()).unwrap();
        assert!(Identity::read(directory.path()).unwrap_err().contains("newer version"));
    }
}
