//! The process: who may see it, its open files, its timers, its free memory.

use std::{num::NonZeroU64, time::Duration};

use rustix::{
    fs::Mode,
    process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit, umask},
};

use super::data_directory::NOT_OWNER;

/// How often free memory is given back to the system.
const GIVE_BACK_INTERVAL: Duration = Duration::from_secs(5);

/// What a process had before it was restricted.
#[derive(Debug, Clone)]
pub(crate) struct Unrestricted {
    mask: Mode,
    core: Rlimit,
}

impl Unrestricted {
    /// Gives it back, for another program that takes the place of this one. The memory stays protected until then.
    pub(crate) fn restore(&self) {
        umask(self.mask);
        if let Err(error) = setrlimit(Resource::Core, self.core) {
            tracing::warn!(%error, "the limit of core dumps could not be restored");
        }
    }
}

/// From here on, only this user can access new files, and no core dump holds what is in memory. Other processes of this
/// user can't read its memory or environment, unless they may trace it.
pub(crate) fn restrict() -> Unrestricted {
    let mask = umask(Mode::from_bits_truncate(NOT_OWNER));
    let core = getrlimit(Resource::Core);
    // The maximum stays: who lowers it can't raise it again.
    let none = Rlimit { current: Some(0), maximum: core.maximum };
    if let Err(error) = setrlimit(Resource::Core, none) {
        tracing::warn!(%error, "core dumps could not be switched off");
    }
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "the memory of this process could not be protected from others of its user");
    }
    Unrestricted { mask, core }
}

/// Logs a panic with its location as one event, to wherever the log goes.
pub(super) fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        let text = panic.payload_as_str().unwrap_or("no text");
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        let backtrace = std::backtrace::Backtrace::force_capture();
        tracing::error!(location, thread, %backtrace, "panicked: {text}");
    }));
}

/// Minimizes the timer slack. By default the system may prolong each wait by 50 µs to save power, which is longer
/// than the log's wait for more records before every fsync. Threads that are created from here on inherit the
/// setting.
pub(super) fn minimize_timer_slack() {
    if let Err(error) = rustix::thread::set_current_timer_slack(NonZeroU64::new(1)) {
        tracing::debug!(%error, "the timer slack could not be set");
    }
}

/// Gives free memory back to the system from time to time. The allocator does so when something is freed, so without it a
/// node would keep what it freed last before it became idle. On a thread of its own: giving back much takes milliseconds.
pub(super) fn give_free_memory_back() -> Result<(), String> {
    let give_back = || {
        loop {
            std::thread::sleep(GIVE_BACK_INTERVAL);
            mimalloc::MiMalloc::collect();
        }
    };
    let started = std::thread::Builder::new().name("memory".into()).spawn(give_back);
    started.map(drop).map_err(|error| format!("no thread: {error}"))
}

/// Raises the process's limit of open files as far as the system allows, and returns it. Shells and containers often
/// begin with 1024, which a few hundred watches use up.
pub(super) fn raise_open_files_limit() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.current = limit.maximum,
        Err(error) => tracing::warn!(%error, "the limit of open files could not be raised"),
    }
    limit.current.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}
