//! The messages that the webhook rejects for good, in a file, so that they do not hold back those that follow.
//!
//! ```text
//! {"at":"2026-11-28T12:00:00.000001Z","why":"422 …","message":{"id":"…","content_type":"…","body":{…}}}
//! ```
//!
//! **Invariants:** a message is left behind only once its line is durable. While that fails, because the disk or the file is
//! full, the notifier waits. A line leaves the file only once the webhook has taken its message. One process at a time
//! changes the file; it is locked only meanwhile, so it can be moved away, and posted again, while a notifier runs: it is
//! not locked while messages are posted, and lines that came meanwhile stay.

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    io::{self, Read as _, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::{
    ONCE_TIMEOUT,
    position::{named, sync_folder},
    webhook::{Letter, Pauses, Webhook},
};
use crate::cli::{
    connection::Failure,
    output::{counted, note, printable, say},
    place::{StagedFile, Target},
};

/// Bytes of the file. A message that finds no room in it waits.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// How long to wait for another process that changes the file, and how often to look.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const LOCK_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(super) struct DeadLetterArgs {
    /// Append events that the webhook rejects for good to this file, as lines of JSON, and go on with the next one; without
    /// it, such an event holds back the later ones
    #[arg(long, value_name = "FILE")]
    dead_letters: Option<PathBuf>,
    /// How often the webhook must reject an event
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000), requires = "dead_letters")]
    attempts: u32,
    /// Post the events of --dead-letters again, then exit. Those that the webhook takes leave the file
    #[arg(long, requires = "dead_letters", conflicts_with_all = ["definitions", "environments", "states", "kinds", "position"])]
    pub(super) retry_dead_letters: bool,
}

impl DeadLetterArgs {
    /// The file, if there is one.
    pub(super) fn file(&self) -> Option<DeadLetters> {
        let path = self.dead_letters.clone()?;
        Some(DeadLetters { path, attempts: self.attempts })
    }
}

/// A file with messages.
#[derive(Debug)]
pub(super) struct DeadLetters {
    path: PathBuf,
    /// How often the webhook must reject a message.
    pub(super) attempts: u32,
}

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
struct DeadLetter {
    at: String,
    why: String,
    message: Letter,
}

impl DeadLetters {
    /// Appends a message. Waits while that fails, with `until` not longer than that.
    pub(super) async fn bury(
        &self,
        message: Letter,
        why: String,
        until: Option<Instant>,
    ) -> Result<(), Failure> {
        say(format_args!("warning: the event {} goes to {}: {why}", message.id, self.path.display()));
        let letter = DeadLetter { at: concord_service::now().to_string(), why, message };
        let line = serde_json::to_string(&letter).map_err(|error| error.to_string())?;
        let mut pauses = Pauses::new();
        while let Err(error) = self.append(&line) {
            let failure = named(&self.path, &error);
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(failure);
            }
            pauses.warn(format_args!(
                "{}; the event {} and all later ones wait",
                failure.into_text(),
                letter.message.id
            ));
            pauses.wait(None).await;
        }
        Ok(())
    }

    fn append(&self, line: &str) -> io::Result<()> {
        let mut file = self.hold(true)?;
        let length = file.metadata()?.len();
        // With the ends of two lines.
        if length.saturating_add(line.len() as u64 + 2) > FILE_BYTES_MAX {
            let most = FILE_BYTES_MAX >> 20;
            return Err(io::Error::other(format!(
                "the file has {length} bytes of at most {most} MiB: post its events again with \
                 --retry-dead-letters, or move it away"
            )));
        }
        // A process that was killed may have left a part of a line.
        let mut last = [b'\n'];
        if length > 0 {
            file.read_exact_at(&mut last, length - 1)?;
        }
        let begin = if last == *b"\n" { "" } else { "\n" };
        let written = file.write_all(format!("{begin}{line}\n").as_bytes()).and_then(|()| file.sync_all());
        if written.is_err() {
            // The first error is the one that counts.
            let _ = file.set_len(length);
        }
        written.and_then(|()| sync_folder(&self.path))
    }

    /// Posts all messages again. Those that the webhook takes leave the file.
    pub(super) async fn retry(&self, webhook: &Webhook) -> Result<(), Failure> {
        let (_, bytes) = self.read().await?;
        let (mut taken, mut kept, mut outage) = (Vec::new(), 0, None);
        for (number, line) in (1_u64..).zip(bytes.split(|byte| *byte == b'\n')) {
            if line.is_empty() {
                continue;
            }
            // If the webhook does not answer, the rest waits for another run.
            let is_taken = outage.is_none()
                && self.is_taken(webhook, number, line).await.unwrap_or_else(|failure| {
                    outage = Some(failure);
                    false
                });
            if is_taken {
                taken.push(line);
            } else {
                kept += 1;
            }
        }
        let posted = taken.len() as u64;
        if posted > 0 {
            self.remove(&taken).await?;
        }
        note(format_args!("{} posted", counted(posted, "event")));
        match outage {
            Some(failure) => Err(failure),
            None if kept > 0 => {
                let kept = counted(kept, "event");
                Err(Failure::Partial(format!(
                    "{kept} could not be posted and stay in {}",
                    self.path.display()
                )))
            }
            None => Ok(()),
        }
    }

    /// The file, which is this process's alone until it is closed, and its bytes.
    async fn read(&self) -> Result<(File, Vec<u8>), Failure> {
        let until = Instant::now() + LOCK_TIMEOUT;
        let read = || {
            let (file, mut bytes) = (self.hold(false)?, Vec::new());
            (&file).take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
            Ok::<_, io::Error>((file, bytes))
        };
        let (file, bytes) = loop {
            match read() {
                Ok(found) => break found,
                Err(error) if error.kind() == io::ErrorKind::NotFound || Instant::now() >= until => {
                    return Err(named(&self.path, &error));
                }
                Err(_) => sleep(LOCK_EVERY).await,
            }
        };
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(named(&self.path, &format!("it has more than {} MiB", FILE_BYTES_MAX >> 20)));
        }
        Ok((file, bytes))
    }

    /// Removes lines, each once.
    async fn remove(&self, lines: &[&[u8]]) -> Result<(), Failure> {
        let mut counts: BTreeMap<&[u8], usize> = BTreeMap::new();
        for line in lines {
            *counts.entry(line).or_default() += 1;
        }
        let (file, bytes) = self.read().await?;
        let mut left = Vec::new();
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match counts.get_mut(line) {
                Some(count @ 1..) => *count -= 1,
                Some(0) | None => {
                    left.extend_from_slice(line);
                    left.push(b'\n');
                }
            }
        }
        let replaced = Target::private(&self.path).stage(&left).and_then(StagedFile::publish);
        drop(file);
        replaced.map_err(|error| named(&self.path, &error))
    }

    /// Posts the message of a line. If it stays in the file, says why.
    async fn is_taken(&self, webhook: &Webhook, number: u64, line: &[u8]) -> Result<bool, Failure> {
        let stays =
            |why: &str| say(format_args!("warning: {}: line {number} stays: {why}", self.path.display()));
        let letter = match serde_json::from_slice::<DeadLetter>(line) {
            Ok(letter) => letter,
            Err(error) => {
                stays(&error.to_string());
                return Ok(false);
            }
        };
        let until = Instant::now() + ONCE_TIMEOUT;
        let rejected = webhook.post(&letter.message, Some(self.attempts), Some(until)).await?;
        match &rejected {
            Some(why) => stays(why),
            None => note(format_args!("posted: {}", printable(&letter.message.id))),
        }
        Ok(rejected.is_none())
    }

    /// Opens the file for this process alone, until it is closed.
    fn hold(&self, create: bool) -> io::Result<File> {
        let file = File::options().create(create).read(true).append(true).mode(0o600).open(&self.path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::other("another `concord notify` uses this file"));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Another process may have replaced or moved it just before it was locked.
        let (ours, named) = (file.metadata()?, fs::metadata(&self.path)?);
        if (ours.dev(), ours.ino()) == (named.dev(), named.ino()) {
            Ok(file)
        } else {
            Err(io::Error::other("the file was replaced meanwhile"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn a_line_is_whole_whatever_was_left_before_it_and_one_process_writes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dead.ndjson");
        let dead = DeadLetters { path: path.clone(), attempts: 1 };
        dead.append(r#"{"n":1}"#).unwrap();
        fs::write(&path, format!("{}{{\"n\":", fs::read_to_string(&path).unwrap())).unwrap();
        dead.append(r#"{"n":2}"#).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"n\":1}\n{\"n\":\n{\"n\":2}\n");
        let held = dead.hold(false).unwrap();
        assert!(dead.append("{}").unwrap_err().to_string().contains("another"));
        // It was moved away, as somebody does to post it again.
        fs::rename(&path, folder.path().join("moved")).unwrap();
        dead.append(r#"{"n":3}"#).unwrap();
        drop(held);
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"n\":3}\n");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[tokio::test]
    async fn lines_leave_a_file_that_another_process_goes_on_with() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dead.ndjson");
        let dead = DeadLetters { path: path.clone(), attempts: 1 };
        for line in ["1", "2", "1", "3"] {
            dead.append(line).unwrap();
        }
        let (file, bytes) = dead.read().await.unwrap();
        assert_eq!(bytes, b"1\n2\n1\n3\n");
        assert!(dead.append("4").is_err());
        drop(file);
        // While they are posted.
        dead.append("4").unwrap();
        dead.remove(&[b"1", b"3"]).await.unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "2\n1\n4\n");
        fs::remove_file(&path).unwrap();
        assert!(dead.remove(&[b"2"]).await.is_err());
    }

    #[test]
    fn a_full_file_or_disk_is_an_error_and_leaves_the_file_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dead.ndjson");
        let dead = DeadLetters { path: path.clone(), attempts: 1 };
        let file = File::create(&path).unwrap();
        file.set_len(FILE_BYTES_MAX - 8).unwrap();
        assert!(dead.append(r#"{"n":1}"#).unwrap_err().to_string().contains("--retry-dead-letters"));
        assert_eq!(file.metadata().unwrap().len(), FILE_BYTES_MAX - 8);
        let full = DeadLetters { path: "/dev/full".into(), attempts: 1 };
        assert_eq!(full.append("{}").unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn a_message_keeps_its_bytes_in_the_file() {
        let body = r#"{"b":7.0,"a":123456789012345678901234567890}"#;
        let body = RawValue::from_string(body.into()).unwrap();
        let message =
            Letter { id: "c/7/d:e/k/updated".into(), content_type: "application/json".into(), body };
        let letter = DeadLetter { at: "now".into(), why: "422".into(), message };
        let read: DeadLetter = serde_json::from_slice(&serde_json::to_vec(&letter).unwrap()).unwrap();
        assert_eq!(read.message.body.get(), r#"{"b":7.0,"a":123456789012345678901234567890}"#);
    }
}
