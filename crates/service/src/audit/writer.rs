//! The thread that owns the files of the audit log. It takes all waiting lines, writes them at once, and waits for the disk
//! once for all of them.
//!
//! If no request waits for its line, the thread lets lines gather first: waking the thread and writing for each line would
//! cost as much as making the line.
//!
//! After a failure it tries again each second. Lost lines are counted, and the first line afterwards reports the count.
//!
//! **Invariant:** the chain advances only with lines that were written to the file.

use std::{
    io,
    sync::{
        Arc, PoisonError,
        atomic::Ordering,
        mpsc::{Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{
    AuditOptions, AuditPolicy, SharedStatus,
    files::OpenLog,
    line::{AuditDecision, AuditEvent},
};
use crate::now;
use concord_model::time::Timestamp;
use concord_net::NodeId;

/// Messages that are taken at once at most: some 100 kB of lines.
const GROUP_MAX: usize = 256;
/// How long lines gather when no request waits for them. A killed process loses them.
const GATHERING: Duration = Duration::from_millis(10);
/// How often it checks what is due, and tries again after a failure. Also how long lines may be in the memory of the kernel
/// only, if no request waits for the disk.
const TICK: Duration = Duration::from_secs(1);

/// A message to the thread.
#[derive(Debug)]
pub(super) enum Message {
    /// Write a line. Answer whether it is durable.
    Line { decision: Box<AuditDecision>, durable: Option<oneshot::Sender<bool>> },
    /// Write the line of an event.
    Event(AuditEvent, Timestamp),
    /// Answer when all earlier lines are in the files.
    Written(oneshot::Sender<()>),
    /// Answer when all earlier lines are on the disk.
    Flush(oneshot::Sender<()>),
}

impl Message {
    /// Whether it has a line to write.
    pub(super) fn is_line(&self) -> bool {
        matches!(self, Self::Line { .. } | Self::Event(..))
    }
}

/// The state of the thread.
#[derive(Debug)]
pub(super) struct AuditWriter {
    options: AuditOptions,
    node: NodeId,
    shared: Arc<SharedStatus>,
    log: Option<OpenLog>,
    /// Whether written lines may not be on the disk yet.
    is_dirty: bool,
    synced_at: Instant,
    tried_at: Instant,
    buffer: Vec<u8>,
}

impl AuditWriter {
    /// Opens the files. If that fails, the thread tries again.
    pub(super) fn open(options: AuditOptions, node: NodeId, shared: Arc<SharedStatus>) -> Self {
        let now = Instant::now();
        let mut writer = Self {
            options,
            node,
            shared,
            log: None,
            is_dirty: false,
            synced_at: now,
            tried_at: now,
            buffer: Vec::new(),
        };
        writer.try_again();
        writer
    }

    /// Writes until all senders are gone.
    pub(super) fn run(mut self, inbox: &Receiver<Message>) {
        let mut is_behind = false;
        loop {
            let first = match inbox.recv_timeout(TICK) {
                Ok(first) => Some(first),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            // While the thread sleeps, no request has to wake it. In strict mode a request may wait for the next line.
            let is_awaited = is_behind || self.options.mode == AuditPolicy::Strict;
            if !is_awaited && matches!(&first, Some(Message::Line { .. })) {
                thread::sleep(GATHERING);
            }
            let group: Vec<Message> = first.into_iter().chain(inbox.try_iter().take(GROUP_MAX)).collect();
            is_behind = group.len() > GROUP_MAX;
            self.write(group);
            self.tick();
        }
        self.write_due_counts(true);
        if self.log.is_some() {
            let result = self.write_losses();
            self.note_failure(result);
        }
        self.sync();
    }

    /// Does what is due once per tick.
    fn tick(&mut self) {
        if self.shared.has_failed.load(Ordering::Acquire) && self.tried_at.elapsed() >= TICK {
            self.try_again();
        }
        if self.synced_at.elapsed() >= TICK {
            self.write_due_counts(false);
            // A full queue loses lines without a failure of the files.
            if !self.shared.has_failed.load(Ordering::Acquire) {
                let result = self.write_losses().and_then(|()| self.write_unshipped());
                self.note_failure(result);
            }
            self.sync();
        }
    }

    /// Opens the files if they are not open, reserves space, and reports lost lines.
    fn try_again(&mut self) {
        self.tried_at = Instant::now();
        let opened = self.open_files();
        let result = opened.and_then(|()| self.make_room()).and_then(|()| self.write_losses());
        match (result, self.shared.has_failed.load(Ordering::Acquire)) {
            (Ok(()), true) => {
                tracing::info!("the audit log is written again");
                self.shared.fail(None);
            }
            (Ok(()), false) => {}
            (Err(error), true) => self.fail(&error),
            (failed, false) => self.note_failure(failed),
        }
    }

    fn open_files(&mut self) -> io::Result<()> {
        if self.log.is_some() {
            return Ok(());
        }
        let (log, repairs) = OpenLog::open(&self.options.directory)?;
        for event in &repairs {
            tracing::warn!(?event, "the end of the audit log was repaired");
        }
        self.log = Some(log);
        self.write_events(&[repairs, vec![AuditEvent::Started]].concat())
    }

    fn write_losses(&mut self) -> io::Result<()> {
        let lost = self.shared.lost.load(Ordering::Relaxed);
        if lost == 0 {
            return Ok(());
        }
        self.write_events(&[AuditEvent::Lost(lost)])?;
        self.shared.lost.fetch_sub(lost, Ordering::Relaxed);
        Ok(())
    }

    fn write_unshipped(&mut self) -> io::Result<()> {
        let unreported = &self.shared.syslog.unreported;
        let lines = unreported.load(Ordering::Relaxed);
        if lines == 0 {
            return Ok(());
        }
        self.write_events(&[AuditEvent::Unshipped(lines)])?;
        self.shared.syslog.unreported.fetch_sub(lines, Ordering::Relaxed);
        Ok(())
    }

    fn make_room(&mut self) -> io::Result<()> {
        let (bytes, files) = (self.options.file_bytes, self.options.files_max);
        let Some(log) = &mut self.log else { return Ok(()) };
        let removed = log.rotate(bytes, files)?;
        log.reserve()?;
        match removed {
            Some(upto) => self.write_events(&[AuditEvent::Removed(upto)]),
            None => Ok(()),
        }
    }

    fn write_events(&mut self, events: &[AuditEvent]) -> io::Result<()> {
        let at = now();
        let Some(log) = &mut self.log else { return Err(io::Error::other("the audit log is not open")) };
        let mut head = log.head;
        self.buffer.clear();
        for event in events {
            head.write_event(&mut self.buffer, self.node, at, event);
        }
        log.append(&self.buffer, head)?;
        self.is_dirty = true;
        Ok(())
    }

    /// Writes a group of messages, and answers those that wait.
    fn write(&mut self, group: Vec<Message>) {
        if group.is_empty() {
            return;
        }
        let mut result = self.append(&group);
        if group.iter().any(|message| matches!(message, Message::Flush(_))) {
            self.write_due_counts(true);
        }
        let must_sync = group.iter().any(|message| match message {
            Message::Line { durable, .. } => durable.is_some(),
            Message::Event(..) | Message::Written(_) => false,
            Message::Flush(_) => true,
        });
        if result.is_ok() && must_sync {
            result = self.sync_files();
        }
        let is_written = result.is_ok();
        let lines = group.iter().filter(|message| message.is_line()).count() as u64;
        if !is_written {
            self.shared.lost.fetch_add(lines, Ordering::Relaxed);
        }
        // Reserves space for the next lines before these are answered.
        let result = result.and_then(|()| self.make_room());
        self.note_failure(result);
        for message in group {
            // An error means that the request no longer waits.
            match message {
                Message::Line { durable, .. } => drop(durable.map(|durable| durable.send(is_written))),
                Message::Event(..) => {}
                Message::Written(done) | Message::Flush(done) => drop(done.send(())),
            }
        }
    }

    fn append(&mut self, group: &[Message]) -> io::Result<()> {
        let Some(log) = &mut self.log else { return Err(io::Error::other("the audit log is not open")) };
        let mut head = log.head;
        self.buffer.clear();
        for message in group {
            match message {
                Message::Line { decision, .. } => head.write(&mut self.buffer, self.node, decision),
                Message::Event(event, at) => head.write_event(&mut self.buffer, self.node, *at, event),
                Message::Written(_) | Message::Flush(_) => {}
            }
        }
        if self.buffer.is_empty() {
            return Ok(());
        }
        log.append(&self.buffer, head)?;
        self.is_dirty = true;
        Ok(())
    }

    fn write_due_counts(&mut self, all: bool) {
        let due = {
            let failed = &self.shared.failed_credentials;
            failed.lock().unwrap_or_else(PoisonError::into_inner).take_due(now(), all)
        };
        if due.is_empty() {
            return;
        }
        let result = self.write_events(&due);
        if result.is_err() {
            self.shared.lost.fetch_add(due.len() as u64, Ordering::Relaxed);
        }
        self.note_failure(result);
    }

    fn sync(&mut self) {
        let result = self.sync_files();
        self.note_failure(result);
    }

    fn sync_files(&mut self) -> io::Result<()> {
        self.synced_at = Instant::now();
        let Some(log) = self.log.as_ref().filter(|_| self.is_dirty) else { return Ok(()) };
        if let Err(error) = log.sync() {
            // The kernel may have dropped unwritten pages. The files must be read again.
            self.log = None;
            return Err(error);
        }
        self.is_dirty = false;
        *self.shared.durable_head.lock().unwrap_or_else(PoisonError::into_inner) = Some(log.head);
        Ok(())
    }

    /// Notes a failure. It lasts until everything works again ([`Self::try_again`]), because one line may fit where the next
    /// does not. The first failure is the reason; later ones follow from it.
    fn note_failure(&mut self, result: io::Result<()>) {
        let Err(error) = result else { return };
        if self.shared.has_failed.load(Ordering::Acquire) {
            return;
        }
        let refuses = self.options.mode == AuditPolicy::Strict;
        tracing::error!(refuses, "the audit log can't be written: {error}");
        self.tried_at = Instant::now();
        self.fail(&error);
    }

    fn fail(&self, error: &io::Error) {
        let directory = self.options.directory.display();
        self.shared.fail(Some(format!("{directory}: {error}")));
    }
}
