//! Runs a command with a time limit.
//!
//! Its output goes to the agent's stderr. If a report may need the last line, it goes there through a pipe, and a thread
//! that copies it for as long as any process has the pipe.
//!
//! **Invariant:** when this returns, every process that was left of the command's group has been terminated and then
//! killed.

use std::{
    io::{self, PipeReader, Read as _, Write as _},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// How often the process is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long the rest of the output of a command that has ended is waited for.
const OUTPUT_WAIT: Duration = Duration::from_millis(500);
/// The bytes of the output that are kept: those of a last line.
const OUTPUT_BYTES: usize = 1024;

/// What becomes of the output of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Output {
    /// It goes to the agent's stderr.
    Passed,
    /// The same, and a failure has the last line.
    Read,
}

/// How a check names the new file.
const NEW: &str = "{new}";

/// Judges a new file: runs a command with the path of the file in place of `{new}`.
pub(super) async fn check(
    command: &[String],
    new: &Path,
    timeout: Duration,
    stopping: &CancellationToken,
) -> Result<(), String> {
    let path = new.to_str().ok_or("the path is not UTF-8 text")?;
    let command: Vec<String> = command.iter().map(|word| word.replace(NEW, path)).collect();
    run(&command, new, timeout, stopping, Output::Read).await
}

/// Runs a command until it exits or its time limit. `CONCORD_AGENT_FILE` is the file that it is about.
pub(super) async fn run(
    command: &[String],
    file: &Path,
    timeout: Duration,
    stopping: &CancellationToken,
    output: Output,
) -> Result<(), String> {
    let Some((program, arguments)) = command.split_first() else { return Ok(()) };
    let mut started = Command::new(program);
    started
        .args(arguments)
        .env("CONCORD_AGENT_FILE", file)
        // The command must not get the agent's access key.
        .env_remove("CONCORD_API_KEY")
        .stdin(Stdio::null())
        .stdout(io::stderr())
        .process_group(0);
    let tail = match output {
        Output::Passed => None,
        Output::Read => Some(Tail::of(&mut started).map_err(|error| error.to_string())?),
    };
    let child = started.spawn();
    // The ends of the pipe that are the agent's: with them it would never end.
    drop(started);
    let mut child = child.map_err(|error| format!("`{program}` can't be started: {error}"))?;
    let done = finish(&mut child, program, timeout, stopping).await;
    match (done, tail) {
        (Err(error), Some(tail)) => Err(tail.add_to(error).await),
        (done, _) => done,
    }
}

async fn finish(
    child: &mut Child,
    program: &str,
    timeout: Duration,
    stopping: &CancellationToken,
) -> Result<(), String> {
    let deadline = Instant::now() + timeout;
    let status = tokio::select! {
        status = ended(child, Some(deadline)) => status?,
        // It may have exited by itself in the meantime.
        () = stopping.cancelled() => if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            Some(status)
        } else {
            end(child).await?;
            return Err(format!("`{program}` was stopped with the agent"));
        }
    };
    match status {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(format!("`{program}` failed: {status}")),
        None => {
            end(child).await?;
            Err(format!("`{program}` exceeded {} s and was stopped", timeout.as_secs()))
        }
    }
}

/// The end of the output of a command.
struct Tail {
    bytes: Arc<Mutex<Vec<u8>>>,
    copying: JoinHandle<()>,
}

impl Tail {
    /// Gives a command that is to be started a pipe in place of stdout and stderr.
    fn of(command: &mut Command) -> io::Result<Self> {
        let (from, to) = io::pipe()?;
        command.stdout(to.try_clone()?).stderr(to);
        let bytes = Arc::default();
        let kept = Arc::clone(&bytes);
        let copying = thread::Builder::new().name("output".into()).spawn(move || copy(from, &kept))?;
        Ok(Self { bytes, copying })
    }

    /// An error with the last line of the output.
    async fn add_to(self, error: String) -> String {
        let deadline = Instant::now() + OUTPUT_WAIT;
        while !self.copying.is_finished() && Instant::now() < deadline {
            sleep(POLL_INTERVAL).await;
        }
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&bytes);
        match text.lines().map(str::trim).rfind(|line| !line.is_empty()) {
            Some(line) => format!("{error}: {line}"),
            None => error,
        }
    }
}

/// Copies the output to stderr, and keeps its end.
fn copy(mut from: PipeReader, kept: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(count) = from.read(&mut buffer) {
        let Some(chunk) = buffer.get(..count).filter(|chunk| !chunk.is_empty()) else { return };
        // There is nowhere to report a failure to print.
        let _ = io::stderr().write_all(chunk);
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(chunk);
        let more = kept.len().saturating_sub(OUTPUT_BYTES);
        kept.drain(..more);
    }
}

/// The exit status of a child; `None` if it still runs at the deadline.
async fn ended(child: &mut Child, deadline: Option<Instant>) -> Result<Option<ExitStatus>, String> {
    loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            return Ok(Some(status));
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(None);
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Terminates the whole group, and kills what is left.
async fn end(child: &mut Child) -> Result<(), String> {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or("a child has no id")?;
    // What has ended needs no signal.
    let _ = kill_process_group(group, Signal::TERM);
    let status = ended(child, Some(Instant::now() + GRACE)).await?;
    let _ = kill_process_group(group, Signal::KILL);
    if status.is_none() {
        ended(child, None).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn shell(script: &str, timeout: Duration) -> Result<(), String> {
        let command = ["sh", "-c", script].map(str::to_owned);
        run(&command, Path::new("/f"), timeout, &CancellationToken::new(), Output::Read).await
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn the_end_of_a_command_is_told() {
        shell("test \"$CONCORD_AGENT_FILE\" = /f && test -z \"$CONCORD_API_KEY\"", LONG).await.unwrap();
        assert!(shell("exit 3", LONG).await.unwrap_err().contains("exit status: 3"));
        let absent = ["/no/such/program".to_owned()];
        let none = CancellationToken::new();
        let error = run(&absent, Path::new("/f"), LONG, &none, Output::Passed).await.unwrap_err();
        assert!(error.contains("can't be started"), "{error}");
    }

    #[tokio::test]
    async fn a_failure_has_the_last_line_and_waits_for_no_process_that_is_left() {
        let error = shell("echo first; echo; echo ' the last ' >&2; exit 3", LONG).await.unwrap_err();
        assert!(error.ends_with("exit status: 3: the last"), "{error}");
        let begin = Instant::now();
        let error = shell("sleep 30 & echo left; exit 4", LONG).await.unwrap_err();
        assert!(error.ends_with(": left") && begin.elapsed() < Duration::from_secs(20), "{error}");
        let long = shell("head -c 100000 /dev/zero | tr '\\0' x; exit 1", LONG).await.unwrap_err();
        assert!(long.len() < OUTPUT_BYTES + 100, "{}", long.len());
    }

    #[tokio::test]
    async fn a_command_that_takes_too_long_is_ended_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; wait", file.display());
        let error = shell(&script, Duration::from_millis(500)).await.unwrap_err();
        assert!(error.contains("was stopped"), "{error}");
        let pid = std::fs::read_to_string(&file).unwrap();
        let begin = Instant::now();
        let lives = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", pid.trim())).unwrap_or_default();
            !status.is_empty() && !status.contains("State:\tZ")
        };
        while lives() {
            assert!(begin.elapsed() < LONG);
            sleep(POLL_INTERVAL).await;
        }
    }
}
