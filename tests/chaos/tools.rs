//! What some kinds of fault need: strace, libfaketime, iptables, namespaces of the run's own, another version of the
//! binary. Each is looked up before a run; a kind whose means are missing is skipped, and the run says so.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use crate::harness::clock;

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
    /// The data directories are encrypted.
    pub(super) encrypted: bool,
}

impl Tools {
    pub(super) fn find(network: bool, volumes: bool, encrypted: bool) -> Self {
        let old = std::env::var_os("CONCORD_OLD_BIN").map(PathBuf::from).filter(|path| path.exists());
        Self {
            strace: strace_works(),
            faketime: clock::library(),
            network,
            iptables: network && works("iptables", &["-F", "INPUT"]),
            volumes,
            encrypted,
            old,
        }
    }
}

/// The calls by which a process waits for a disk.
pub(crate) const SYNCS: &str = "fdatasync,fsync,sync_file_range";

/// What strace writes after a call that it tampered with.
pub(crate) const TAMPERED: &str = "(INJECTED)";

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
    tamper_with_files(pid, what, &[], report)
}

/// The same for the calls that concern these files only; for all calls when there is none.
pub(crate) fn tamper_with_files(pid: u32, what: &str, files: &[PathBuf], report: &Path) -> Lasting {
    let calls = what.split(':').next().unwrap_or(what);
    let mut command = Command::new("strace");
    command.arg("-f").arg("-qq").arg("-o").arg(report).args(["-p", &pid.to_string()]);
    command.args(["-e", &format!("trace={calls}"), "-e", &format!("inject={what}")]);
    for file in files {
        command.arg("-P").arg(file);
    }
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

impl Lasting {
    /// Ends what holds up a process that has been killed: strace itself would wait for the end of the delay. The call is not
    /// made any more.
    pub(crate) fn end_for_dead(self) {
        let Self::Tampered(mut strace) = self else { return self.end() };
        drop(strace.kill());
        drop(strace.wait());
    }

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
            Self::Clock(file) => clock::set(&file, 0),
            Self::Cut | Self::Full(_) => {}
        }
    }
}
