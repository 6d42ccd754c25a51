//! The audit log of a node: who asked this node for what, and what was decided, one line for each decision.
//!
//! | to find | look in |
//! |---|---|
//! | what a line says, and the chain of hashes | `line` |
//! | the files: their names, the head, what a start repairs | `files` |
//! | the thread that owns the files | `writer` |
//! | failed credentials, counted by address and minute | `failed` |
//! | the check of a log for edited, missing and inserted lines | `verify` |
//! | pages of the log | `page` |
//! | what a write turns out to be about | `targets` |
//!
//! Each line bears the SHA-256 of the line before and a number, also across files and starts. So a line can't be
//! changed, removed or inserted without a trace, except by whoever changes all lines after it too; the last line's
//! hash stands in a file of its own (`head`), and can be noted elsewhere.
//!
//! One thread owns the files. A request hands its line over and, in the strict mode, waits until a write's line is on
//! the disk; one `fdatasync` serves all that wait. In the other mode nobody waits: what can't be written is counted,
//! and an alarm says so.
//!
//! **Invariants:** no secret and no data of a record is in a line. The queue is bounded, and what does not fit is
//! counted. In the strict mode no write is begun while its line could not be stored.

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
/// Lines that wait for the thread: a second of the highest load, some 20 MB.
const QUEUE_MAX: usize = 32_768;
/// Pages of the log that are read at once: each reads some megabytes of files.
const READS_MAX: usize = 2;
/// How long a page waits for the lines before it.
const WRITTEN_WITHIN: Duration = Duration::from_secs(1);

/// What becomes of a request whose line can't be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditPolicy {
    /// There is no audit log.
    Off,
    /// The request goes on, and an alarm is raised.
    Alarm,
    /// Writes are refused, and a write is answered when its line is durable.
    Strict,
}

/// The settings of the audit log.
#[derive(Debug, Clone)]
pub struct AuditOptions {
    /// What becomes of a request whose line can't be written.
    pub mode: AuditPolicy,
    /// The directory of its files.
    pub directory: PathBuf,
    /// Definitions whose reads are recorded.
    pub reads: Vec<Pattern>,
    /// Bytes of a file after which the next one begins.
    pub file_bytes: u64,
    /// Files that are retained.
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

/// What the thread and the requests share.
#[derive(Debug, Default)]
struct SharedStatus {
    /// Why lines can't be written, while they can't.
    failure: Mutex<Option<String>>,
    /// Whether there is one, for those who only ask that.
    has_failed: AtomicBool,
    /// Lines that were lost and that no line says so of yet.
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
    /// Opens the log, and starts its thread. What prevents it is a failure of the log, not of the node.
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

    /// The time of a line that is made now.
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

    /// Whether reads of one of the definitions are recorded that a pattern names.
    #[must_use]
    pub fn records_reads_within(&self, pattern: &Pattern) -> bool {
        let overlaps = |own: &Pattern| own.covers(pattern) || pattern.covers(own);
        self.is_on() && self.options.reads.iter().any(overlaps)
    }

    /// Whether reads of a definition are recorded; of none in particular when there is none.
    #[must_use]
    pub fn records_reads_of(&self, definition: Option<&str>) -> bool {
        let matches = |pattern: &Pattern| match definition {
            Some(key) => pattern.matches(key),
            None => pattern.beginning() == Some(""),
        };
        self.is_on() && self.options.reads.iter().any(matches)
    }

    /// Refuses a write whose line could not be stored, where the settings say so.
    ///
    /// # Errors
    /// [`Refusal::StorageFull`].
    pub fn admit_write(&self) -> Result<(), Refusal> {
        if self.options.mode != AuditPolicy::Strict || !self.shared.has_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        let why = self.shared.failure().unwrap_or_default();
        Err(Refusal::StorageFull(format!(
            "the audit log of this node can't be written, so no write is: {why}"
        )))
    }

    /// Records a decision, and waits for nothing.
    pub fn record(&self, decision: AuditDecision) {
        self.send(Message::Line { decision: Box::new(decision), durable: None });
    }

    /// Records a decision on a write; in the strict mode, waits until the line is durable. False when it is not.
    pub async fn record_write(&self, decision: AuditDecision) -> bool {
        if self.options.mode != AuditPolicy::Strict {
            self.record(decision);
            return true;
        }
        let (durable, is_durable) = oneshot::channel();
        self.send(Message::Line { decision: Box::new(decision), durable: Some(durable) });
        // An error says that the line was lost.
        is_durable.await.unwrap_or(false)
    }

    /// Counts a failed credential. The first one of an address in a minute is a line at once, the rest are one line at
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

    /// Records that this node leads from now on, or leads no more.
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

    /// Waits until what was recorded so far is on the disk.
    pub(super) async fn flush(&self) {
        self.until(Message::Flush).await;
    }

    /// Waits for the thread's answer.
    async fn until(&self, question: impl FnOnce(oneshot::Sender<()>) -> Message) {
        let (done, is_done) = oneshot::channel();
        self.send(question(done));
        // An error says that there is no log, or that it has failed: nothing more can be waited for.
        drop(is_done.await);
    }

    /// Whether lines can't be written now, and how many are lost that no line says so of yet.
    pub(super) fn figures(&self) -> (bool, u64) {
        (self.shared.has_failed.load(Ordering::Acquire), self.shared.lost.load(Ordering::Relaxed))
    }

    /// What is wrong with the log.
    pub(super) fn alarm(&self, node: NodeId) -> Option<Alarm> {
        let lost = self.shared.lost.load(Ordering::Relaxed);
        let text = self.shared.failure().or_else(|| {
            (lost > 0).then(|| "more was to be recorded at once than the disk could take".to_owned())
        })?;
        let message = format!("the audit log of node {node} is not complete, {lost} lines are lost: {text}");
        Some(Alarm { kind: "audit", node_id: Some(node), message })
    }

    /// A page of this node's audit log.
    ///
    /// # Errors
    /// When the principal has no right to it, there is no log, it can't be read, or too many pages are being read.
    pub async fn page(&self, principal: &Principal, query: AuditQuery) -> Result<AuditPage, Refusal> {
        principal.authorize(Verb::Audit, None)?;
        if !self.is_on() {
            return Err(Refusal::NotThere("this node keeps no audit log (`CONCORD_AUDIT=off`)".into()));
        }
        let busy =
            |_| Refusal::LimitReached("this node reads as many pages of its audit log as it may".into());
        let _permit = self.reads.try_acquire().map_err(busy)?;
        // Who was answered finds the line of it, unless the disk hangs.
        drop(tokio::time::timeout(WRITTEN_WITHIN, self.until(Message::Written)).await);
        let directory = self.options.directory.clone();
        run_blocking(move || page::read(&directory, &query)).await?.map_err(Refusal::Internal)
    }
}

#[cfg(test)]
mod tests;
