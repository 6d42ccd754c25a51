//! Runs a command with a time limit.
//!
//! **Invariant:** when this returns, every process that was left of the command's group has been terminated and then
//! killed.

use std::{
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// How often the process is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

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
    run(&command, new, timeout, stopping).await
}

/// Runs a command until it exits or its time limit. `CONCORD_AGENT_FILE` is the file that it is about.
pub(super) async fn run(
    command: &[String],
    file: &Path,
    timeout: Duration,
    stopping: &CancellationToken,
) -> Result<(), String> {
    let Some((program, arguments)) = command.split_first() else { return Ok(()) };
    let child = Command::new(program)
        .args(arguments)
        .env("CONCORD_AGENT_FILE", file)
        // The command must not get the agent's access key.
        .env_remove("CONCORD_API_KEY")
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .process_group(0)
        .spawn();
    let mut child = child.map_err(|error| format!("`{program}` can't be started: {error}"))?;
    let deadline = Instant::now() + timeout;
    let status = tokio::select! {
        status = ended(&mut child, Some(deadline)) => status?,
        // It may have exited by itself in the meantime.
        () = stopping.cancelled() => if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            Some(status)
        } else {
            end(&mut child).await?;
            return Err(format!("`{program}` was stopped with the agent"));
        }
    };
    match status {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(format!("`{program}` failed: {status}")),
        None => {
            end(&mut child).await?;
            Err(format!("`{program}` exceeded {} s and was stopped", timeout.as_secs()))
        }
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
        run(&command, Path::new("/f"), timeout, &CancellationToken::new()).await
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn the_end_of_a_command_is_told() {
        shell("test \"$CONCORD_AGENT_FILE\" = /f && test -z \"$CONCORD_API_KEY\"", LONG).await.unwrap();
        assert!(shell("exit 3", LONG).await.unwrap_err().contains("exit status: 3"));
        let absent = ["/no/such/program".to_owned()];
        let error = run(&absent, Path::new("/f"), LONG, &CancellationToken::new()).await.unwrap_err();
        assert!(error.contains("can't be started"), "{error}");
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
