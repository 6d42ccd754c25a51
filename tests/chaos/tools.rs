//! What some kinds of fault need: strace, libfaketime, iptables, namespaces of the run's own, another version of the
//! binary. Each is looked up before a run; a kind whose means are missing is skipped, and the run says so.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// Where distributions install the library for programs with threads.
const FAKETIME: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib64/faketime/libfaketimeMT.so.1",
];

/// The tools of this machine.
#[derive(Debug)]
pub(super) struct Tools {
    pub(super) strace: bool,
    pub(super) faketime: Option<PathBuf>,
    /// A network of the run's own.
    pub(super) network: bool,
    /// In the run's own network only.
    pub(super) iptables: bool,
    /// A volume for each node, which can be filled.
    pub(super) volumes: bool,
    /// The binary of the previous version.
    pub(super) old: Option<PathBuf>,
}

impl Tools {
    pub(super) fn find(network: bool, volumes: bool) -> Self {
        Self {
            strace: strace_works(),
            faketime: FAKETIME.iter().map(PathBuf::from).find(|path| path.exists()),
            network,
            iptables: network && works("iptables", &["-F", "INPUT"]),
            volumes,
            old: std::env::var_os("CONCORD_OLD_BIN").map(PathBuf::from).filter(|path| path.exists()),
        }
    }
}

/// The calls by which a process waits for a disk.
pub(crate) const SYNCS: &str = "fdatasync,fsync,sync_file_range";

/// What strace writes after a call that it tampered with.
pub(super) const TAMPERED: &str = "(INJECTED)";

/// Whether strace can be used.
pub(crate) fn strace_works() -> bool {
    works("strace", &["-o", "/dev/null", "true"])
}

/// Whether a volume can be mounted in a namespace of its own.
pub(crate) fn mounts_work() -> bool {
    works("unshare", &["-rm", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/tmp"])
}

fn works(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A fault that lasts until it is ended.
#[derive(Debug)]
#[must_use]
pub(crate) enum Lasting {
    /// System calls of a process are tampered with.
    Tampered(Child),
    /// Packets are dropped.
    Loss,
    /// A node's clock is wrong, as this file says.
    Clock(PathBuf),
    /// The network is cut.
    Cut,
    /// The volumes of these nodes are full.
    Full(Vec<u64>),
}

/// Tampers with system calls of a running process: `what` is strace's `inject`. Each call that was tampered with is
/// a line of the report with [`TAMPERED`] in it.
pub(crate) fn tamper(pid: u32, what: &str, report: &Path) -> Lasting {
    let calls = what.split(':').next().unwrap_or(what);
    let mut command = Command::new("strace");
    command.arg("-f").arg("-qq").arg("-o").arg(report).args(["-p", &pid.to_string()]);
    command.args(["-e", &format!("trace={calls}"), "-e", &format!("inject={what}")]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Lasting::Tampered(command.spawn().expect("strace has run before"))
}

/// Drops so many percent of what one node sends to another.
pub(super) fn lose(percent: u8, from: &str, to: &str) {
    let probability = format!("{:.2}", f64::from(percent) / 100.0);
    let rule = ["-A", "INPUT", "-s", from, "-d", to, "-m", "statistic", "--mode", "random", "--probability"];
    assert!(
        works("iptables", &[&rule[..], &[&probability, "-j", "DROP"]].concat()),
        "iptables has run before"
    );
}

/// The clock that a node with these variables has: real time and an offset that a file holds.
pub(super) fn clock(library: &Path, file: &Path) -> Vec<(String, String)> {
    [
        ("LD_PRELOAD", library),
        ("FAKETIME_TIMESTAMP_FILE", file),
        ("FAKETIME_NO_CACHE", Path::new("1")),
        // The newer name and the older one.
        ("FAKETIME_DONT_FAKE_MONOTONIC", Path::new("1")),
        ("DONT_FAKE_MONOTONIC", Path::new("1")),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_string_lossy().into_owned()))
    .into()
}

/// Sets a clock that [`clock`] made; an offset in seconds.
pub(super) fn set_clock(file: &Path, offset: i64) {
    // Renamed, so that no process reads half a file.
    let fresh = file.with_extension("new");
    std::fs::write(&fresh, format!("{offset:+}\n")).expect("the file can be written");
    std::fs::rename(&fresh, file).expect("the file can be renamed");
}

impl Lasting {
    /// Ends all but a cut and full volumes, which are ended by what made them.
    pub(crate) fn end(self) {
        match self {
            Self::Tampered(mut strace) => {
                // On SIGTERM strace detaches and the process runs on; the death of the process ends strace.
                drop(
                    Command::new("kill")
                        .args(["-TERM", &strace.id().to_string()])
                        .stderr(Stdio::null())
                        .status(),
                );
                drop(strace.wait());
            }
            Self::Loss => assert!(works("iptables", &["-F", "INPUT"]), "iptables has run before"),
            Self::Clock(file) => set_clock(&file, 0),
            Self::Cut | Self::Full(_) => {}
        }
    }
}
