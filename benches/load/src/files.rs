//! What a node's files show of its work. The API does not say when a snapshot is written or received; the files do,
//! under the names that the README gives them.
//!
//! **Invariant:** only names and sizes are read; a file that goes meanwhile counts as gone.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// Every file below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

/// What a node's directory weighs, in MB.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Weight {
    pub(crate) log: f64,
    pub(crate) history: f64,
    pub(crate) snapshots: f64,
    pub(crate) sled: f64,
}

impl Weight {
    pub(crate) fn of(home: &Path) -> Self {
        let mb = |part: &str| {
            let sizes = files(&home.join("data").join(part)).into_iter();
            let bytes: u64 = sizes.filter_map(|path| fs::metadata(path).ok()).map(|meta| meta.len()).sum();
            bytes as f64 / 1e6
        };
        Self {
            log: mb("log"),
            history: mb("store/history"),
            snapshots: mb("store/snapshot"),
            sled: mb("store/sled"),
        }
    }

    /// The greatest of each part.
    pub(crate) fn most(self, other: Self) -> Self {
        Self {
            log: self.log.max(other.log),
            history: self.history.max(other.history),
            snapshots: self.snapshots.max(other.snapshots),
            sled: self.sled.max(other.sled),
        }
    }
}

/// How long ago a part of the directory was written to last.
#[expect(clippy::disallowed_methods, reason = "compared with the times of files, which are the machine's")]
pub(crate) fn silent_for(home: &Path, part: &str) -> Option<Duration> {
    let times = files(&home.join("data").join(part)).into_iter();
    let last = times.filter_map(|path| fs::metadata(path).ok()?.modified().ok()).max()?;
    Some(SystemTime::now().duration_since(last).unwrap_or_default())
}

fn names(directory: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// Whether a snapshot is being written.
pub(crate) fn writes_snapshot(home: &Path) -> bool {
    names(&home.join("data/store/snapshot")).any(|name| name.ends_with(".concord.tmp"))
}

/// Whether a snapshot is being received.
pub(crate) fn receives_snapshot(home: &Path) -> bool {
    names(&home.join("data/store/incoming")).any(|name| name.ends_with(".part"))
}

/// The revision up to which the log may be cut: that of the older of two snapshots; 0 while there are not two.
pub(crate) fn log_floor(home: &Path) -> u64 {
    let index = |name: String| name.strip_prefix("snapshot-")?.strip_suffix(".concord")?.parse().ok();
    let mut kept: Vec<u64> = names(&home.join("data/store/snapshot")).filter_map(index).collect();
    kept.sort_unstable();
    if kept.len() < 2 { 0 } else { kept[kept.len() - 2] }
}
