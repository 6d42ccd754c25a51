//! Clocks of nodes: offsets that a test sets while the nodes run, and rates.
//!
//! A node gets libfaketime preloaded. For offsets it reads that of the wall clock from a file at every call, and the
//! monotonic clock stays real: timeouts and elections go on as before. With a rate all clocks go at it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

use super::Node;

/// The time of this machine's clock, in seconds since 1970.
pub(crate) fn unix_s() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_second()).expect("a time of this century")
}

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

/// Removes what libfaketime keeps for the processes of a tree in shared memory. The process that ends last should do so,
/// and does not when it is killed or was started by another program in the same process.
pub(crate) fn forget(pid: u32) {
    for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
        // Most processes had no other clock.
        drop(std::fs::remove_file(Path::new("/dev/shm").join(name)));
    }
}

fn installed() -> PathBuf {
    library().expect("libfaketime is not installed: `scripts/test.sh` installs it (package libfaketime)")
}

/// Lets all clocks of a node that does not run yet go at a rate, for some ten seconds of real time.
///
/// With a rate libfaketime begins the monotonic clock, too, at the time of day and an offset. A wait of std with a time
/// limit is a system call that libfaketime leaves alone, and ends at a moment of that clock: the kernel's own began at
/// the start of the machine, so the wait would last for half a century, and a node would not even start. So the offset
/// takes the time of day back to where the kernel's clock is, and the wall clock of the node shows 1970. What is left:
/// such waits end early or late by as much as the clocks have come apart since, so nothing that a write waits for may
/// be one of them. Those of tokio, in `epoll_wait`, are at the rate.
pub(crate) fn go_at_rate(node: &mut Node, rate: &str) {
    let kernels = Duration::try_from(clock_gettime(ClockId::Monotonic)).expect("it began at zero");
    let offset_s = jiff::Timestamp::now().as_duration().as_secs_f64() - kernels.as_secs_f64();
    node.overrides.extend([
        ("LD_PRELOAD".into(), installed().to_string_lossy().into_owned()),
        ("FAKETIME".into(), format!("-{offset_s} x{rate}")),
        ("FAKETIME_NO_CACHE".into(), "1".into()),
    ]);
}

/// Gives nodes that do not run yet clocks that can be set, right at first.
pub(crate) fn prepare(root: &Path, nodes: &mut [Node]) {
    let library = installed();
    for node in nodes {
        let file = file(root, node.id);
        set(&file, 0);
        node.overrides.extend(variables(&library, &file));
    }
}
