//! The thread that owns the files of the audit log: it takes what waits, writes it at once, and waits for the disk once
//! for all of it.
//!
//! Where no request waits for its line, the thread lets lines gather before it takes them: a thread that is woken for
//! each line, and a write of each, cost as much as making it.
//!
//! After a failure it tries again each second. What could not be written meanwhile is counted, and the first line
//! afterwards says how much it was.
//!
//! **Invariant:** the chain moves on only with lines that the file has taken.

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

/// Messages that are taken at once: some 100 kB of lines.
const GROUP_MAX: usize = 256;
/// How long lines gather that no request waits for. A process that is killed loses them.
const GATHERING: Duration = Duration::from_millis(10);
/// How often it looks for what is due, and tries again after a failure; how long lines may be only in the memory of
/// the kernel where nobody waits for the disk.
const TICK: Duration = Duration::from_secs(1);

/// What the thread is asked for.
#[derive(Debug)]
pub(super) enum Message {
    /// To write a line; to say whether it is durable.
    Line { decision: Box<AuditDecision>, durable: Option<oneshot::Sender<bool>> },
    /// To write the line of an event.
    Event(AuditEvent, Timestamp),
    /// To say when all before is in the files.
    Written(oneshot::Sender<()>),
    /// To say when all before is on the disk.
    Flush(oneshot::Sender<()>),
}

impl Message {
    /// Whether it is something to write.
    pub(super) fn is_line(&self) -> bool {
        matches!(self, Self::Line { .. } | Self::Event(..))
    }
}

/// The thread's own.
#[derive(Debug)]
pub(super) struct AuditWriter {
    options: AuditOptions,
    node: NodeId,
    shared: Arc<SharedStatus>,
    log: Option<OpenLog>,
    /// Lines were written that may not be on the disk.
    is_dirty: bool,
    synced_at: Instant,
    tried_at: Instant,
    buffer: Vec<u8>,
}

impl AuditWriter {
    /// Opens the files. When that fails, the thread tries again.
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

    /// Writes until nobody can ask any more.
    pub(super) fn run(mut self, inbox: &Receiver<Message>) {
        let mut is_behind = false;
        loop {
            let first = match inbox.recv_timeout(TICK) {
                Ok(first) => Some(first),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            // Nobody who hands a line over has to wake the thread meanwhile. In the strict mode the next line may be one
            // that is waited for.
            let is_awaited = is_behind || self.options.mode == AuditPolicy::Strict;
            if !is_awaited && matches!(&first, Some(Message::Line { .. })) {
                thread::sleep(GATHERING);
            }
            let group: Vec<Message> = first.into_iter().chain(inbox.try_iter().take(GROUP_MAX)).collect();
            is_behind = group.len() > GROUP_MAX;
            self.write(group);
            self.keep();
        }
        self.write_due_counts(true);
        if self.log.is_some() {
            let result = self.write_losses();
            self.judge(result);
        }
        self.sync();
    }

    /// What is due now and then.
    fn keep(&mut self) {
        if self.shared.has_failed.load(Ordering::Acquire) && self.tried_at.elapsed() >= TICK {
            self.try_again();
        }
        if self.synced_at.elapsed() >= TICK {
            self.write_due_counts(false);
            // Lines that the queue did not take are lost without a failure of the files.
            if !self.shared.has_failed.load(Ordering::Acquire) {
                let result = self.write_losses();
                self.judge(result);
            }
            self.sync();
        }
    }

    /// Opens the files where they are not open, makes room, and says what was lost.
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
            (failed, false) => self.judge(failed),
        }
    }

    fn open_files(&mut self) -> io::Result<()> {
        if self.log.is_some() {
            return Ok(());
        }
        let (log, mended) = OpenLog::open(&self.options.directory)?;
        for event in &mended {
            tracing::warn!(?event, "the end of the audit log was mended");
        }
        self.log = Some(log);
        self.write_events(&[mended, vec![AuditEvent::Started]].concat())
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

    /// Writes a group, and answers those of it that wait.
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
        // Room for the next ones, while these are answered for.
        let result = result.and_then(|()| self.make_room());
        self.judge(result);
        for message in group {
            // Who does not wait any more has left.
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
        self.judge(result);
    }

    fn sync(&mut self) {
        let result = self.sync_files();
        self.judge(result);
    }

    fn sync_files(&mut self) -> io::Result<()> {
        self.synced_at = Instant::now();
        let Some(log) = self.log.as_ref().filter(|_| self.is_dirty) else { return Ok(()) };
        if let Err(error) = log.sync() {
            // What the kernel did not write it may have forgotten: what there is must be read again.
            self.log = None;
            return Err(error);
        }
        self.is_dirty = false;
        Ok(())
    }

    /// Notes a failure, which lasts until all of it works again ([`Self::try_again`]): one line may fit where the next
    /// one does not. The first one is the reason; those after it follow from it.
    fn judge(&mut self, result: io::Result<()>) {
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
