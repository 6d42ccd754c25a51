//! The agent as process 1 of a container.
//!
//! What a command leaves behind becomes a child of process 1, which must collect it when it ends. So process 1 only does
//! that: it runs the agent as a child, passes the signals on to it, and ends with its exit code.
//!
//! **Invariant:** no ended process stays. Process 1 ends when the agent does.

use std::{
    process::{Child, Command},
    time::Duration,
};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::connection::Failure;

/// How often ended processes are looked for without a signal.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Whether this is process 1.
pub(super) fn is_needed() -> bool {
    std::process::id() == 1
}

/// Runs the agent as a child, until it ends.
pub(super) async fn run() -> Result<(), Failure> {
    let failed =
        |error: std::io::Error| Failure::Failed(format!("the agent can't be run as a child: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
    let mut ended = signal(SignalKind::child()).map_err(failed)?;
    let program = std::env::current_exe().map_err(failed)?;
    let child = Command::new(program).args(std::env::args_os().skip(1)).spawn().map_err(failed)?;
    let child = pid_of(&child)?;
    loop {
        let passed = tokio::select! {
            _ = terminate.recv() => Some(Signal::TERM),
            _ = interrupt.recv() => Some(Signal::INT),
            _ = hangup.recv() => Some(Signal::HUP),
            _ = ended.recv() => None,
            () = tokio::time::sleep(LOOK_EVERY) => None,
        };
        if let Some(signal) = passed {
            // It may have ended just now; then its exit code follows.
            let _ = kill_process(child, signal);
        }
        // An error says that there is no child left.
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == child {
                return code_of(status);
            }
        }
    }
}

fn pid_of(child: &Child) -> Result<Pid, Failure> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| Failure::Failed("the agent has no process id".into()))
}

/// The result of the child, which has reported it.
fn code_of(status: WaitStatus) -> Result<(), Failure> {
    let code = status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal));
    match code.and_then(|code| u8::try_from(code).ok()) {
        Some(0) => Ok(()),
        Some(code) => Err(Failure::Reported(code)),
        None => Err(Failure::Failed("the agent ended without an exit code".into())),
    }
}
