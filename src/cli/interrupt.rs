//! Ctrl-C: stops a command immediately, and reports what it leaves behind.
//!
//! A command may wait for a prompt, a file or a response when the signal arrives. So a dedicated thread receives it. While
//! an editor is open, Ctrl-C goes to the editor.
//!
//! **Invariant:** the exit code is 130, and the message names unfinished work: the progress of a long operation, or a write
//! with an unknown outcome.

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
    /// The user's text is being stored; it is also in this file.
    Storing(PathBuf),
    /// An editor is open.
    Editing,
    /// A long operation: its progress, its unit, and the message about the rest.
    Long { bar: ProgressBar, unit: String, rest: String },
}

static DOING: Mutex<Doing> = Mutex::new(Doing::Reading);

fn doing() -> MutexGuard<'static, Doing> {
    DOING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets what the command is doing.
pub(super) fn now(what: Doing) {
    *doing() = what;
}

/// Starts the thread that receives the signal.
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
        Doing::Writing => Some("the write may have been applied: check before you retry".to_owned()),
        Doing::Storing(path) => {
            Some(format!("the change may have been stored; your text is kept in {}", path.display()))
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

/// The message for a long operation.
fn done(position: u64, total: Option<u64>, unit: &str, rest: &str) -> String {
    let of = total.map(|total| format!(" of {}", HumanCount(total))).unwrap_or_default();
    format!("{}{of} {unit} done; {rest}", HumanCount(position))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_of_long_work_is_said() {
        let text = done(12_345, Some(100_000), "configs", "run the same command again to continue");
        assert_eq!(text, "12,345 of 100,000 configs done; run the same command again to continue");
        assert_eq!(done(7, None, "files", "x"), "7 files done; x");
    }
}
