//! The audit log of a node: one line for each recorded request, with the client, the target and the outcome.
//!
//! | to find | look in |
//! |---|---|
//! | the lines, and the chain of hashes | `line` |
//! | the files: their names, the head, how a start repairs them | `files` |
//! | the thread that owns the files | `writer` |
//! | failed credentials, counted by address and minute | `failed` |
//! | checking a log for changed, missing and inserted lines | `verify` |
//! | pages of the log | `page` |
//! | what a request is about | `target` |
//!
//! Each line has a number and the SHA-256 of the previous line, also across files and starts. So changing, removing or
//! inserting a line leaves a trace, unless all lines after it are changed too. The hash of the last line is also in the
//! file `head`, and can be noted elsewhere.
//!
//! One thread owns the files. A request hands its line over. In strict mode a write waits until its line is on the disk;
//! one `fdatasync` serves all waiting writes. In alarm mode no request waits: lost lines are counted, and raise an alarm.
//!
//! **Invariants:** a line contains no secret and no data of a record. The queue is bounded, and lines that do not fit are
//! counted. In strict mode no write begins while its line can't be stored.

mod failed;
mod files;
mod line;
mod page;
pub(crate) mod target;
pub mod verify;
mod writer;

use std::{
    net::IpAddr,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    time::Duration,
};

use tokio::sync::{Semaphore, oneshot};

use super::{
    now,
    request::{Alarm, Principal, Refusal},
    run_blocking,
};
use concord_model::{
    access_key::{Pattern, Verb},
    time::Timestamp,
};
use concord_net::NodeId;
use failed::FailedCredentialCounts;
pub use line::AuditDecision;
use line::AuditEvent;
pub use page::{AuditPage, AuditQuery};
pub(super) use target::name;
pub use target::{AuditTarget, Targets, observe};
use writer::{AuditWriter, Message};

/// The directory of the log within the data directory, unless the settings name another.
pub const DIRECTORY: &str = "audit";
/// Lines that wait for the thread at most: a second of the highest load, some 20 MB.
const QUEUE_MAX: usize = 32_768;
/// Pages of the log that are read at once at most: each reads some megabytes of files.
const READS_MAX: usize = 2;
/// How long a page waits for the preceding lines to be written.
const WRITTEN_TIMEOUT: Duration = Duration::from_secs(1);

/// What happens to requests while lines can't be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditPolicy {
    /// There is no audit log.
    Off,
    /// Requests continue, and an alarm is raised.
    Alarm,
    /// Writes are rejected. A write is answered once its line is durable.
    Strict,
}

/// The settings of the audit log.
#[derive(Debug, Clone)]
pub struct AuditOptions {
    /// What happens to requests while lines can't be written.
    pub mode: AuditPolicy,
    /// The directory of its files.
    pub directory: PathBuf,
    /// Definitions whose reads are recorded.
    pub reads: Vec<Pattern>,
    /// The size of a file in bytes after which the next one begins.
    pub file_bytes: u64,
    /// The number of retained files.
    pub files_max: usize,
}

impl AuditOptions {
    /// No audit log.
    #[must_use]
    pub fn off() -> Self {
        Self {
            mode: AuditPolicy::Off,
            directory: PathBuf::new(),
            reads: Vec::new(),
            file_bytes: 64 << 20,
            files_max: 16,
        }
    }
}

/// What the writer thread and the requests share.
#[derive(Debug, Default)]
struct SharedStatus {
    /// Why lines can't be written, while they can't.
    failure: Mutex<Option<String>>,
    /// Whether `failure` is set, without its lock.
    has_failed: AtomicBool,
    /// Lost lines that no line reports yet.
    lost: AtomicU64,
    failed_credentials: Mutex<FailedCredentialCounts>,
}

impl SharedStatus {
    fn fail(&self, why: Option<String>) {
        self.has_failed.store(why.is_some(), Ordering::Release);
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The audit log of a node.
#[derive(Debug)]
pub struct Audit {
    options: AuditOptions,
    shared: Arc<SharedStatus>,
    /// `None` when there is no log.
    queue: Option<SyncSender<Message>>,
    reads: Semaphore,
}

impl Audit {
    /// Opens the log and starts its thread. An error is a failure of the log, not of the node.
    pub(super) fn start(options: AuditOptions, node: NodeId) -> Self {
        let shared = Arc::new(SharedStatus::default());
        let queue = (options.mode != AuditPolicy::Off).then(|| {
            let (queue, inbox): (SyncSender<Message>, Receiver<Message>) = sync_channel(QUEUE_MAX);
            let writer = AuditWriter::open(options.clone(), node, Arc::clone(&shared));
            let started = std::thread::Builder::new().name("audit".into()).spawn(move || writer.run(&inbox));
            if let Err(error) = started {
                shared.fail(Some(format!("the thread of the audit log can't be started: {error}")));
            }
            queue
        });
        Self { options, shared, queue, reads: Semaphore::new(READS_MAX) }
    }

    /// The time for a new line.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        now()
    }

    /// Whether there is an audit log.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.queue.is_some()
    }

    /// Whether any reads of definitions are recorded.
    #[must_use]
    pub fn has_reads(&self) -> bool {
        self.is_on() && !self.options.reads.is_empty()
    }

    /// Whether reads of any definition that matches the pattern are recorded.
    #[must_use]
    pub fn records_reads_within(&self, pattern: &Pattern) -> bool {
        let overlaps = |own: &Pattern| own.covers(pattern) || pattern.covers(own);
        self.is_on() && self.options.reads.iter().any(overlaps)
    }

    /// Whether reads of a definition are recorded. Without one: whether all reads are.
    #[must_use]
    pub fn records_reads_of(&self, definition: Option<&str>) -> bool {
        let matches = |pattern: &Pattern| match definition {
            Some(key) => pattern.matches(key),
            None => pattern.beginning() == Some(""),
        };
        self.is_on() && self.options.reads.iter().any(matches)
    }

    /// In strict mode, rejects a write while lines can't be stored.
    ///
    /// # Errors
    /// [`Refusal::StorageFull`].
    pub fn admit_write(&self) -> Result<(), Refusal> {
        if self.options.mode != AuditPolicy::Strict || !self.shared.has_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let why = self.shared.failure().unwrap_or_default();
        Err(Refusal::StorageFull(format!(
            "the audit log of this node can't be written, so writes are rejected: {why}"
        )))
    }

    /// Records a request without waiting.
    pub fn record(&self, decision: AuditDecision) {
        self.send(Message::Line { decision: Box::new(decision), durable: None });
    }

    /// Records a write. In strict mode, waits at most so long until the line is durable; false if it was lost, or is not
    /// durable by then.
    pub async fn record_write(&self, decision: AuditDecision, wait: Duration) -> bool {
        if self.options.mode != AuditPolicy::Strict {
            self.record(decision);
            return true;
        }
        let (durable, is_durable) = oneshot::channel();
        self.send(Message::Line { decision: Box::new(decision), durable: Some(durable) });
        // An inner error means that the line was lost.
        matches!(tokio::time::timeout(wait, is_durable).await, Ok(Ok(true)))
    }

    /// Counts a failed credential. The first one of an address in a minute gets a line at once, the others share a line at
    /// the end of the minute.
    pub fn record_failed_credential(&self, address: Option<IpAddr>, decision: AuditDecision) {
        if !self.is_on() {
            return;
        }
        let is_first = {
            let mut failed = self.shared.failed_credentials.lock().unwrap_or_else(PoisonError::into_inner);
            failed.note(address, decision.at, decision.status)
        };
        if is_first {
            self.record(decision);
        }
    }

    /// Records that this node became the leader, or stepped down.
    pub(super) fn record_leadership(&self, leads: bool, term: u64) {
        let event = if leads { AuditEvent::LeadershipWon(term) } else { AuditEvent::LeadershipLost(term) };
        self.send(Message::Event(event, self.now()));
    }

    fn send(&self, message: Message) {
        let Some(queue) = &self.queue else { return };
        let lines = u64::from(message.is_line());
        match queue.try_send(message) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                self.shared.lost.fetch_add(lines, Ordering::Relaxed);
            }
            Err(TrySendError::Disconnected(_)) => {
                self.shared.lost.fetch_add(lines, Ordering::Relaxed);
                self.shared.fail(Some("the thread of the audit log has ended".into()));
            }
        }
    }

    /// Waits until all lines so far are on the disk.
    pub(super) async fn flush(&self) {
        self.handled(Message::Flush).await;
    }

    /// Sends a message to the thread and waits until it has handled it.
    async fn handled(&self, message: impl FnOnce(oneshot::Sender<()>) -> Message) {
        let (done, is_done) = oneshot::channel();
        self.send(message(done));
        // An error means that there is no log, or that its thread has ended. There is nothing to wait for.
        drop(is_done.await);
    }

    /// Whether lines can't be written now, and the number of lost lines that no line reports yet.
    pub(super) fn figures(&self) -> (bool, u64) {
        (self.shared.has_failed.load(Ordering::Acquire), self.shared.lost.load(Ordering::Relaxed))
    }

    /// What is wrong with the log.
    pub(super) fn alarm(&self, node: NodeId) -> Option<Alarm> {
        let lost = self.shared.lost.load(Ordering::Relaxed);
        let text = self.shared.failure().or_else(|| {
            (lost > 0).then(|| "lines arrived faster than the disk could write them".to_owned())
        })?;
        let message = format!("the audit log of node {node} is not complete, {lost} lines are lost: {text}");
        Some(Alarm { kind: "audit", node_id: Some(node), message })
    }

    /// A page of this node's audit log.
    ///
    /// # Errors
    /// When the principal lacks the permission, there is no log, it can't be read, or too many pages are being read.
    pub async fn page(&self, principal: &Principal, query: AuditQuery) -> Result<AuditPage, Refusal> {
        principal.authorize(Verb::Audit, None)?;
        if !self.is_on() {
            return Err(Refusal::AuditOff);
        }
        let busy = |_| {
            Refusal::LimitReached(format!(
                "this node already reads {READS_MAX} pages of its audit log, the limit"
            ))
        };
        let _permit = self.reads.try_acquire().map_err(busy)?;
        // A client finds the lines of the requests that were answered before, unless the disk stalls.
        drop(tokio::time::timeout(WRITTEN_TIMEOUT, self.handled(Message::Written)).await);
        let directory = self.options.directory.clone();
        run_blocking(move || page::read(&directory, &query)).await?.map_err(Refusal::Internal)
    }
}

#[cfg(test)]
mod tests;
