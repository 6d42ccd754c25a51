//! Clocks of nodes that a test sets while the nodes run.
//!
//! A node gets libfaketime preloaded, which reads the offset of the wall clock from a file at every call. The
//! monotonic clock stays real: timeouts and elections go on as before.

use std::path::{Path, PathBuf};

use super::Node;

/// Where distributions install the library for programs with threads.
const LIBRARIES: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
];

/// The library, if it is installed.
pub(crate) fn library() -> Option<PathBuf> {
    LIBRARIES.iter().map(PathBuf::from).find(|path| path.exists())
}

/// The variables of a node whose clock is real time and the offset that a file holds.
pub(crate) fn variables(library: &Path, file: &Path) -> Vec<(String, String)> {
    [
        ("LD_PRELOAD", library),
        ("FAKETIME_TIMESTAMP_FILE", file),
        ("FAKETIME_NO_CACHE", Path::new("1")),
        ("DONT_FAKE_MONOTONIC", Path::new("1")),
        ("FAKETIME_DONT_FAKE_MONOTONIC", Path::new("1")),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_string_lossy().into_owned()))
    .into()
}

/// Sets the offset of a clock, in seconds.
pub(crate) fn set(file: &Path, offset: i64) {
    // Renamed, so that no process reads half a file.
    let fresh = file.with_extension("new");
    std::fs::write(&fresh, format!("{offset:+}\n")).expect("the file can be written");
    std::fs::rename(&fresh, file).expect("the file can be renamed");
}

/// The file with the offset of a node's clock.
pub(crate) fn file(root: &Path, id: u64) -> PathBuf {
    root.join(format!("clock{id}"))
}

/// Gives nodes that do not run yet clocks that can be set, right at first.
pub(crate) fn prepare(root: &Path, nodes: &mut [Node]) {
    let library =
        library().expect("libfaketime is not installed: `scripts/test.sh` installs it (package libfaketime)");
    for node in nodes {
        let file = file(root, node.id);
        set(&file, 0);
        node.overrides.extend(variables(&library, &file));
    }
}
