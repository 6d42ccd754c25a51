//! Ctrl-C: ends a command at once, and says what it leaves behind.
//!
//! A command may be at a question, in a file or in a request when the signal comes. So a thread of its own receives it.
//! While an editor has the terminal Ctrl-C is for the editor.
//!
//! **Invariant:** the exit code is 130, and what is left half-way is named: long work with what is done of it, a write
//! with its unknown outcome.

use std::{
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
};

use indicatif::{HumanCount, ProgressBar};
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
};

use super::{connection::Failure, output::say};

/// The exit code of an interrupted command, as shells have it: 128 and the number of the signal.
const EXIT_INTERRUPTED: i32 = 130;

/// What a command is doing.
#[derive(Debug)]
pub(super) enum Doing {
    /// Nothing that leaves anything behind.
    Reading,
    /// A write is under way.
    Writing,
    /// What a user typed is being stored; it is in this file, too.
    Storing(PathBuf),
    /// An editor has the terminal.
    Editing,
    /// Long work: how far it is, the unit of its parts, and what becomes of the rest.
    Long { bar: ProgressBar, unit: String, rest: String },
}

static DOING: Mutex<Doing> = Mutex::new(Doing::Reading);

fn doing() -> MutexGuard<'static, Doing> {
    DOING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says what is being done from now on.
pub(super) fn now(what: Doing) {
    *doing() = what;
}

/// Receives the signal from now on.
pub(super) fn listen() -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::Failed(format!("signals can't be received: {error}"));
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let mut interrupts = {
        let _inside = runtime.enter();
        signal(SignalKind::interrupt()).map_err(failed)?
    };
    let receive = move || {
        runtime.block_on(async {
            while interrupts.recv().await.is_some() {
                end_unless_editing();
            }
        });
    };
    thread::Builder::new().name("interrupt".into()).spawn(receive).map_err(failed)?;
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "the command is inside a request, a file or a question, which nothing else ends"
)]
fn end_unless_editing() {
    let what = doing();
    let text = match &*what {
        Doing::Editing => return,
        Doing::Reading => None,
        Doing::Writing => Some("the write may have been applied: look before you send it again".to_owned()),
        Doing::Storing(path) => {
            Some(format!("the change may have been stored; what you typed is kept in {}", path.display()))
        }
        Doing::Long { bar, unit, rest } => {
            let text = done(bar.position(), bar.length(), unit, rest);
            bar.finish_and_clear();
            Some(text)
        }
    };
    if let Some(text) = text {
        say(format_args!("concord: interrupted: {text}"));
    }
    std::process::exit(EXIT_INTERRUPTED);
}

/// What is said of long work.
fn done(position: u64, total: Option<u64>, unit: &str, rest: &str) -> String {
    let of = total.map(|total| format!(" of {}", HumanCount(total))).unwrap_or_default();
    format!("{}{of} {unit} are done; {rest}", HumanCount(position))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_of_long_work_is_said() {
        let text = done(12_345, Some(100_000), "configs", "the same command goes on with the rest");
        assert_eq!(text, "12,345 of 100,000 configs are done; the same command goes on with the rest");
        assert_eq!(done(7, None, "files", "x"), "7 files are done; x");
    }
}
