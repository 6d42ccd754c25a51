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
//! | sending the lines to a syslog server | `syslog` |
//! | whether the log has its anchors | `anchored` |
//!
//! Each line has a number and the SHA-256 of the previous line, also across files and starts. So changing, removing or
//! inserting a line leaves a trace, unless all lines after it are changed too. The hash of the last line is also in the
//! file `head`, and each node anchors it in the replicated state.
//!
//! One thread owns the files. A request hands its line over. In strict mode a write waits until its line is on the disk;
//! one `fdatasync` serves all waiting writes. In alarm mode no request waits: lost lines are counted, and raise an alarm.
//!
//! **Invariants:** a line contains no secret and no data of a record. The queue is bounded, and lines that do not fit are
//! counted. In strict mode no write begins while its line can't be stored.

mod anchored;
mod failed;
mod files;
mod line;
mod page;
mod syslog;
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
    audit::AuditAnchors,
    time::Timestamp,
};
use concord_net::NodeId;
use failed::FailedCredentialCounts;
pub use line::AuditDecision;
pub use line::hex;
use line::{AuditEvent, ChainHead};
pub use page::{AuditPage, AuditQuery};
pub use syslog::SyslogTarget;
use syslog::{SyslogSender, SyslogStatus};
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
    /// How often the node anchors the log in the state of the cluster; `None` for never.
    pub anchor_interval: Option<Duration>,
    /// The syslog server that gets the lines.
    pub syslog: Option<SyslogTarget>,
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
            anchor_interval: None,
            syslog: None,
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
    /// The last line that is on the disk.
    durable_head: Mutex<Option<ChainHead>>,
    /// Which anchors the log does not have.
    anchors_failure: Mutex<Option<String>>,
    syslog: SyslogStatus,
}

impl SharedStatus {
    fn fail(&self, why: Option<String>) {
        self.has_failed.store(why.is_some(), Ordering::Release);
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn durable_head(&self) -> Option<ChainHead> {
        *self.durable_head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn anchors_failure(&self) -> Option<String> {
        self.anchors_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
        if queue.is_some() {
            start_syslog(&options, node, &shared);
        }
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

    /// The last line that is on the disk.
    pub(super) fn durable_head(&self) -> Option<DurableHead> {
        let head = self.shared.durable_head().filter(|head| head.seq > 0)?;
        Some(DurableHead { seq: head.seq, sha256: head.hash })
    }

    /// Looks for the newest anchors of the log that nobody has accepted, at most so many. Blocking; returns a sentence about
    /// those that the log does not have.
    pub(super) fn search(
        &self,
        own: Option<Arc<AuditAnchors>>,
        most: usize,
    ) -> impl FnOnce() -> std::io::Result<Option<String>> + Send + 'static {
        let directory = self.options.directory.clone();
        move || own.map_or(Ok(None), |own| anchored::look_for(&directory, &own, most))
    }

    /// Which anchors the log does not have.
    pub(super) fn anchors_failure(&self) -> Option<String> {
        self.shared.anchors_failure()
    }

    /// Notes which anchors the log does not have.
    pub(super) fn note_anchors_failure(&self, failure: Option<String>) {
        *self.shared.anchors_failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    /// How often the log is anchored, if it is.
    pub(super) fn anchor_interval(&self) -> Option<Duration> {
        self.options.anchor_interval.filter(|_| self.is_on())
    }

    /// What became of the lines that are sent to a syslog server.
    pub(super) fn syslog_figures(&self) -> SyslogFigures {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let status = &self.shared.syslog;
        let waiting = self.shared.durable_head().filter(|_| self.options.syslog.is_some());
        SyslogFigures {
            lines: read(&status.lines),
            failures: read(&status.failures),
            lost: read(&status.lost),
            waiting: waiting.map_or(0, |head| head.seq.saturating_sub(read(&status.sent_seq))),
        }
    }

    /// What is wrong with the log of this node.
    pub(super) fn alarms(&self, node: NodeId) -> Vec<Alarm> {
        let replaced = self.shared.anchors_failure().map(|text| {
            let message = format!("the audit log of node {node} is not the one that was anchored: {text}");
            Alarm { kind: "audit", node_id: Some(node), message }
        });
        let unsent = self.shared.syslog.failure().zip(self.options.syslog.as_ref()).map(|(why, target)| {
            let waiting = self.syslog_figures().waiting;
            let message = format!(
                "{target} takes no lines of the audit log of node {node}, {waiting} lines wait: {why}"
            );
            Alarm { kind: "audit", node_id: Some(node), message }
        });
        self.alarm(node).into_iter().chain(replaced).chain(unsent).collect()
    }

    /// What is wrong with writing the log.
    fn alarm(&self, node: NodeId) -> Option<Alarm> {
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
        self.read_page(query).await
    }

    /// The same for another node, which has authorized it.
    pub(crate) async fn read_page(&self, query: AuditQuery) -> Result<AuditPage, Refusal> {
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

/// The last line that is on the disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct DurableHead {
    /// Its number.
    pub(super) seq: u64,
    /// Its hash.
    pub(super) sha256: [u8; 32],
}

/// What became of the lines that are sent to a syslog server.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SyslogFigures {
    /// Lines that were sent, repeated ones included.
    pub(super) lines: u64,
    /// Failed connections and messages.
    pub(super) failures: u64,
    /// Lines that were never sent.
    pub(super) lost: u64,
    /// Lines that wait.
    pub(super) waiting: u64,
}

/// Starts the thread that sends the lines to a syslog server, if there is one.
fn start_syslog(options: &AuditOptions, node: NodeId, shared: &Arc<SharedStatus>) {
    let Some(target) = options.syslog.clone() else { return };
    let directory = options.directory.clone();
    let sender = SyslogSender { target, directory, node, shared: Arc::downgrade(shared) };
    let started = std::thread::Builder::new().name("audit-syslog".into()).spawn(move || sender.run());
    if let Err(error) = started {
        shared.fail(Some(format!("the thread that sends the audit log can't be started: {error}")));
    }
}

#[cfg(test)]
mod tests;
