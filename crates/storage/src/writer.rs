//! The store's thread: appends what was applied to the history and mirrors it into sled.
//!
//! Applying an entry only pushes into a queue; everything that touches a disk happens on this thread. Each round writes
//! the history first and then makes one bounded step of sled, so that rebuilding sled never delays the history.
//!
//! **Invariant:** a failure of the history ends the thread and is reported; a failure of sled never ends it.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
#[cfg(not(feature = "simulation"))]
use std::{
    panic::{self, AssertUnwindSafe},
    thread::JoinHandle,
};

#[cfg(feature = "simulation")]
pub(super) use self::inline::Writer;
use super::{
    Batch, Figures, LogIndex, Position, Store, StoreError,
    history::writer::HistoryWriter,
    sled::{
        checkpoint::Checkpoint,
        mirror::{Mirror, MirrorProgress, MirrorStart, StepContext},
    },
};
use concord_model::{limits::APPLIED_CHANGES_BYTES_MAX, record::Revision};
use concord_state::{Change, Edit, State};

#[cfg(feature = "simulation")]
pub(super) mod inline;

/// The thread waits this long before a round, so that a loaded service wakes it for many changes at once: a
/// hundred rounds a second, each with one write to the history's file. Readers of the newest history wait as
/// long.
const BATCHING_PAUSE: Duration = Duration::from_millis(10);
/// The service is under load when something was applied within this time. Then sled gets half of a core at
/// most: requests need the same processors.
const LOAD_WINDOW: Duration = Duration::from_secs(1);
/// Longest rest between two steps of sled: on a machine so loaded that a step takes longer, a rest helps
/// nobody.
const REST_MAX: Duration = Duration::from_millis(20);

/// What the handles share with the thread.
#[derive(Debug)]
pub(super) struct WriterShared {
    queue: Mutex<WriterQueue>,
    /// Signalled when there is work for the thread.
    wake: Condvar,
    /// Signalled when the thread made progress.
    done: Condvar,
    failed: tokio::sync::watch::Sender<Option<String>>,
    /// Bytes of the changes that the history does not have yet.
    pub(super) waiting_bytes: AtomicU64,
    /// Notified when they became fewer.
    pub(super) drained: tokio::sync::Notify,
}

/// The thread's work, and how far it is.
#[derive(Debug)]
struct WriterQueue {
    items: VecDeque<WriterItem>,
    newest: (State, Position),
    /// The local log is durable up to this entry.
    log_durable: LogIndex,
    /// The history has to be made durable up to this revision.
    sync_to: Revision,
    /// The history is durable up to this revision.
    synced: Revision,
    figures: Figures,
    ending: WriterEnding,
    /// The thread is working, or pauses to batch: it need not be woken.
    busy: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriterEnding {
    No,
    /// Mirror everything, then end.
    Close,
    /// End as a crash would: no handle of the store is left.
    Abandon,
    /// The thread has ended.
    Over,
}

#[derive(Debug)]
enum WriterItem {
    Applied {
        checkpoint: Checkpoint,
        changes: Vec<Arc<Change>>,
        /// The state at the checkpoint, if the changes need it.
        state: Option<Box<State>>,
        /// The state before, if freeing it takes long: it is freed on this thread and not where entries are
        /// applied.
        retired: Option<Box<State>>,
    },
    Installed(Box<State>, Position),
}

/// What one round works on.
#[derive(Debug)]
struct Round {
    items: VecDeque<WriterItem>,
    newest: (State, Position),
    log_durable: LogIndex,
    sync_to: Revision,
    ending: WriterEnding,
    /// Bytes that no longer wait once the items are processed.
    bytes: u64,
}

impl Store {
    /// Enqueues what was applied. Never blocks. What waits for the history is bounded by who calls it
    /// ([`Self::wait_for_room`]) and, earlier, by the service ([`Self::waiting_bytes`]); what waits for sled is bounded
    /// here.
    pub fn enqueue(&self, batch: Batch) {
        let Batch { state, position, changes } = batch;
        let checkpoint = Checkpoint::of(&state, &position);
        let edits = || changes.iter().flat_map(|change| &change.edits);
        let needs_state = edits().any(|edit| matches!(edit, Edit::Reindexed { .. }));
        let frees = edits().any(Edit::is_costly_to_free);
        let needed = needs_state.then(|| Box::new(state.clone()));
        let mut queue = self.inner.shared.queue();
        queue.figures.applied = state.revision();
        let before = std::mem::replace(&mut queue.newest, (state, position)).0;
        if queue.ending == WriterEnding::Over {
            return;
        }
        let bytes = edits().map(Edit::bytes).fold(0, u64::saturating_add);
        self.inner.shared.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        let (retired, small) = if frees { (Some(Box::new(before)), None) } else { (None, Some(before)) };
        queue.items.push_back(WriterItem::Applied { checkpoint, changes, state: needed, retired });
        self.inner.shared.wake(queue);
        drop(small);
    }

    /// Tells the store that the local log is durable up to this entry. sled never goes beyond it.
    pub fn flushed(&self, index: LogIndex) {
        let mut queue = self.inner.shared.queue();
        queue.log_durable = queue.log_durable.max(index);
        self.inner.shared.wake(queue);
    }

    /// Tells the store that the entries after this one were cut from the local log.
    pub fn truncated(&self, last: LogIndex) {
        let mut queue = self.inner.shared.queue();
        queue.log_durable = queue.log_durable.min(last);
    }

    /// Bytes of the changes that were applied and that the history does not have yet: they are in memory.
    #[must_use]
    pub fn waiting_bytes(&self) -> u64 {
        self.inner.shared.waiting_bytes.load(Ordering::Relaxed)
    }

    /// Waits while more changes wait for the history than [`APPLIED_CHANGES_BYTES_MAX`]. Applying waits for this before
    /// it enqueues: entries that are not applied are on the disk, and what is applied is in memory until it is there as
    /// well.
    pub async fn wait_for_room(&self) {
        loop {
            // Before the look: it is notified of what happens in between.
            let drained = self.inner.shared.drained.notified();
            if self.waiting_bytes() <= APPLIED_CHANGES_BYTES_MAX {
                return;
            }
            drained.await;
        }
    }

    /// How far everything is.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.inner.shared.queue().figures
    }

    /// Waits until the history can be read up to and including a revision; returns whether it can. Blocking.
    #[must_use]
    pub fn wait_for_history(&self, revision: Revision, timeout: Duration) -> bool {
        let missing =
            |queue: &mut WriterQueue| queue.ending != WriterEnding::Over && queue.figures.history < revision;
        self.inner.writer.wait_while(&self.inner.shared, timeout, missing).figures.history >= revision
    }

    /// Completes when the store's thread has failed: the node must stop.
    pub async fn failed(&self) -> String {
        let mut failed = self.inner.shared.failed.subscribe();
        // The guard of the watched value must not live across an await.
        let text = failed.wait_for(Option::is_some).await.ok().and_then(|text| text.clone());
        match text {
            Some(text) => text,
            // The sender lives as long as this borrow.
            None => std::future::pending().await,
        }
    }
}

impl WriterShared {
    pub(super) fn new(newest: (State, Position), log_durable: LogIndex, history: &HistoryWriter) -> Self {
        let figures = Figures {
            applied: newest.0.revision(),
            history: history.applied(),
            history_bytes: history.bytes(),
            ..Figures::default()
        };
        let queue = WriterQueue {
            items: VecDeque::new(),
            log_durable,
            sync_to: 0,
            // What was loaded is in a durable file, or is applied again from the log.
            synced: newest.0.revision(),
            newest,
            figures,
            ending: WriterEnding::No,
            busy: false,
        };
        Self {
            queue: Mutex::new(queue),
            wake: Condvar::new(),
            done: Condvar::new(),
            failed: tokio::sync::watch::Sender::new(None),
            waiting_bytes: AtomicU64::new(0),
            drained: tokio::sync::Notify::new(),
        }
    }

    fn queue(&self) -> MutexGuard<'_, WriterQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues a state that replaces all before it.
    pub(super) fn installed(&self, state: State, position: Position) {
        let mut queue = self.queue();
        if state.revision() <= queue.figures.applied {
            return;
        }
        queue.figures.applied = state.revision();
        // The log is purged to an installed snapshot; the file itself is durable.
        queue.log_durable = queue.log_durable.max(position.index);
        queue.newest = (state.clone(), position.clone());
        queue.items.push_back(WriterItem::Installed(Box::new(state), position));
        self.wake(queue);
    }

    /// The last entry that the local log holds durably, as far as the store was told.
    pub(super) fn log_durable(&self) -> LogIndex {
        self.queue().log_durable
    }

    /// Asks for a history that is durable up to and including a revision.
    pub(super) fn request_sync(&self, revision: Revision) {
        let mut queue = self.queue();
        queue.sync_to = queue.sync_to.max(revision);
        queue.busy = false;
        self.wake.notify_one();
    }

    /// Waits until the history is durable up to and including a revision.
    pub(super) fn wait_synced(&self, revision: Revision) -> Result<(), StoreError> {
        let queue = self.queue();
        let queue = self
            .done
            .wait_while(queue, |queue| queue.ending != WriterEnding::Over && queue.synced < revision)
            .unwrap_or_else(PoisonError::into_inner);
        if queue.synced >= revision {
            return Ok(());
        }
        let why = self.failed.borrow().clone().unwrap_or_else(|| "it was closed".into());
        Err(StoreError::Io {
            context: format!("the store ended before its history was durable up to revision {revision}"),
            source: std::io::Error::other(why),
        })
    }

    /// Asks the thread to end; with `complete` after everything is mirrored.
    pub(super) fn end(&self, complete: bool) {
        let mut queue = self.queue();
        if queue.ending == WriterEnding::No {
            queue.ending = if complete { WriterEnding::Close } else { WriterEnding::Abandon };
        }
        queue.busy = false;
        self.wake.notify_one();
    }

    /// Waits until the thread has nothing left to do; whether that was in time.
    pub(super) fn wait_over(&self, timeout: Duration) -> bool {
        let is_working = |queue: &mut WriterQueue| queue.ending != WriterEnding::Over;
        match self.done.wait_timeout_while(self.queue(), timeout, is_working) {
            Ok((queue, _)) => queue.ending == WriterEnding::Over,
            Err(error) => error.into_inner().0.ending == WriterEnding::Over,
        }
    }

    fn wake(&self, queue: MutexGuard<'_, WriterQueue>) {
        if !queue.busy {
            self.wake.notify_one();
        }
    }

    /// The thread has ended: releases everybody who waits for it.
    fn over(&self, failure: Option<String>) {
        let mut queue = self.queue();
        queue.ending = WriterEnding::Over;
        let items = std::mem::take(&mut queue.items);
        drop(queue);
        drop(items);
        self.done.notify_all();
        // Nothing more is enqueued.
        self.waiting_bytes.store(0, Ordering::Relaxed);
        self.drained.notify_waiters();
        if let Some(text) = failure {
            tracing::error!("the store failed: {text}");
            self.failed.send_replace(Some(text));
        }
    }
}

/// What the handles of the store use the thread by.
#[cfg(not(feature = "simulation"))]
#[derive(Debug)]
pub(super) struct Writer(Mutex<Option<JoinHandle<()>>>);

#[cfg(not(feature = "simulation"))]
impl Writer {
    pub(super) fn start(
        shared: &Arc<WriterShared>,
        history: HistoryWriter,
        start: MirrorStart,
        backlog_max: usize,
    ) -> std::io::Result<Self> {
        let shared = Arc::clone(shared);
        let work = move || run(&shared, history, start, backlog_max);
        std::thread::Builder::new().name("store".into()).spawn(work).map(Self::of)
    }

    pub(super) fn of(thread: JoinHandle<()>) -> Self {
        Self(Mutex::new(Some(thread)))
    }

    /// Called before somebody waits for what the thread does.
    pub(super) fn awaited(&self) {}

    /// Waits for what the thread does, as long as something is missing, and at most so long.
    fn wait_while<'a>(
        &self,
        shared: &'a WriterShared,
        timeout: Duration,
        missing: impl FnMut(&mut WriterQueue) -> bool,
    ) -> MutexGuard<'a, WriterQueue> {
        match shared.done.wait_timeout_while(shared.queue(), timeout, missing) {
            Ok((queue, _)) => queue,
            Err(error) => error.into_inner().0,
        }
    }

    /// Waits until the thread has ended. A second call also returns after that.
    pub(super) fn join(&self) {
        let mut thread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the store's thread panicked");
        }
    }
}

/// The thread's own state.
#[derive(Debug)]
struct Worker {
    shared: Arc<WriterShared>,
    history: HistoryWriter,
    mirror: Mirror,
    /// Since when it mirrors the rest, to end.
    closing_since: Option<Instant>,
    /// When something was applied last.
    applied_at: Instant,
    /// `log_durable` and `sync_to` of the last round.
    seen: (LogIndex, Revision),
    /// The rest before the next step of sled.
    rest: Duration,
}

/// Runs until the store is closed or the history fails.
#[cfg(not(feature = "simulation"))]
pub(super) fn run(
    shared: &Arc<WriterShared>,
    history: HistoryWriter,
    start: MirrorStart,
    backlog_max: usize,
) {
    let ended = panic::catch_unwind(AssertUnwindSafe(|| {
        Worker::new(Arc::clone(shared), history, start, backlog_max).run()
    }));
    shared.over(match ended {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some("the store's thread panicked".into()),
    });
}

impl Worker {
    fn new(
        shared: Arc<WriterShared>,
        history: HistoryWriter,
        start: MirrorStart,
        backlog_max: usize,
    ) -> Self {
        let (mirror, rest) = (Mirror::new(start, backlog_max), Duration::ZERO);
        let applied_at = Instant::now();
        Self { shared, history, mirror, closing_since: None, applied_at, seen: (0, 0), rest }
    }

    #[cfg(not(feature = "simulation"))]
    fn run(mut self) -> Result<(), StoreError> {
        let mut progress = self.begin();
        loop {
            let round = self.wait(progress);
            let Some(worked) = self.work(round)? else { return Ok(()) };
            (self, progress) = worked;
        }
    }

    /// New trees start from the loaded state: the log holds that, and may not yet hold what arrives next.
    fn begin(&mut self) -> MirrorProgress {
        let log_durable = self.shared.log_durable();
        let progress =
            self.mirror.step(StepContext { log_durable, applied_at: self.applied_at, closing: None });
        self.or_close_sled(progress)
    }

    /// Does the work of a round. `None` after the last one.
    fn work(mut self, round: Round) -> Result<Option<(Self, MirrorProgress)>, StoreError> {
        let closing = round.ending == WriterEnding::Close;
        let (log_durable, sync_to, ending) = (round.log_durable, round.sync_to, round.ending);
        let bytes = round.bytes;
        self.seen = (log_durable, sync_to);
        let log_durable =
            if concord_model::sabotage::is("sled-beyond-log") { LogIndex::MAX } else { log_durable };
        self.process(round)?;
        // A thread that adds holds the queue's lock, as this thread did when it read the sum.
        self.shared.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.shared.drained.notify_waiters();
        if closing || (sync_to > self.history_synced() && self.history.applied() >= sync_to) {
            self.history.seal()?;
            self.synced();
        }
        if ending == WriterEnding::Abandon {
            self.mirror.abandon();
            return Ok(None);
        }
        let begun = Instant::now();
        if closing {
            self.closing_since.get_or_insert(begun);
        }
        let closing_since = self.closing_since;
        let context = StepContext { log_durable, applied_at: self.applied_at, closing: closing_since };
        let mut progress = self.mirror.step(context);
        if !closing {
            progress = self.or_close_sled(progress);
        }
        let is_loaded = !closing && self.applied_at.elapsed() < LOAD_WINDOW;
        self.rest = if is_loaded { begun.elapsed().min(REST_MAX) } else { Duration::ZERO };
        self.publish();
        if closing && progress == MirrorProgress::Idle {
            self.mirror.close();
            return Ok(None);
        }
        Ok(Some((self, progress)))
    }

    /// Closes sled if it was not used for long, and wakes the thread for that otherwise.
    fn or_close_sled(&mut self, progress: MirrorProgress) -> MirrorProgress {
        match self.mirror.close_unused(Instant::now()) {
            Some(left) => progress.within(left),
            None => progress,
        }
    }

    /// Waits until there is work, and takes it.
    #[cfg(not(feature = "simulation"))]
    fn wait(&self, progress: MirrorProgress) -> Round {
        let mut queue = self.shared.queue();
        let nothing_new = |queue: &mut WriterQueue| {
            queue.items.is_empty()
                && queue.ending == WriterEnding::No
                && (queue.log_durable, queue.sync_to) == self.seen
        };
        queue.busy = false;
        let queue = match progress {
            MirrorProgress::Worked => Ok(queue),
            MirrorProgress::Idle => self.shared.wake.wait_while(queue, nothing_new),
            MirrorProgress::Wait(time) => self
                .shared
                .wake
                .wait_timeout_while(queue, time, nothing_new)
                .map(|(queue, _)| queue)
                .map_err(|error| PoisonError::new(error.into_inner().0)),
        };
        self.batch(progress, queue.unwrap_or_else(PoisonError::into_inner))
    }

    /// Pauses so that more arrives, unless a caller waits for the thread; then takes everything.
    #[cfg(not(feature = "simulation"))]
    fn batch(&self, progress: MirrorProgress, mut queue: MutexGuard<'_, WriterQueue>) -> Round {
        let pause = if progress == MirrorProgress::Worked { self.rest } else { BATCHING_PAUSE };
        if !pause.is_zero() && queue.ending == WriterEnding::No && queue.sync_to <= queue.synced {
            queue.busy = true;
            let nobody_waits =
                |queue: &mut WriterQueue| queue.ending == WriterEnding::No && queue.sync_to <= queue.synced;
            queue = match self.shared.wake.wait_timeout_while(queue, pause, nobody_waits) {
                Ok((queue, _)) => queue,
                Err(error) => error.into_inner().0,
            };
        }
        self.take(queue)
    }

    fn take(&self, mut queue: MutexGuard<'_, WriterQueue>) -> Round {
        queue.busy = true;
        Round {
            items: std::mem::take(&mut queue.items),
            newest: queue.newest.clone(),
            log_durable: queue.log_durable,
            sync_to: queue.sync_to,
            ending: queue.ending,
            bytes: self.shared.waiting_bytes.load(Ordering::Relaxed),
        }
    }

    /// Writes the round's items to the history and enqueues them for sled.
    fn process(&mut self, round: Round) -> Result<(), StoreError> {
        if round.items.is_empty() {
            return Ok(());
        }
        self.applied_at = Instant::now();
        for item in round.items {
            match item {
                WriterItem::Applied { checkpoint, changes, state, retired } => {
                    changes.iter().try_for_each(|change| self.history.write(change))?;
                    self.history.advance(checkpoint.revision)?;
                    self.history.compact(checkpoint.compaction_revision)?;
                    self.mirror.enqueue(checkpoint, changes, state);
                    drop(retired);
                }
                WriterItem::Installed(state, position) => {
                    self.history.seal()?;
                    self.history.skip_to(state.revision())?;
                    self.history.compact(state.compaction_revision())?;
                    self.synced();
                    self.mirror.install(*state, position);
                }
            }
        }
        let (state, position) = round.newest;
        self.mirror.set_newest(state, position);
        self.history.flush()
    }

    fn history_synced(&self) -> Revision {
        self.shared.queue().synced
    }

    /// The history was sealed: it is durable up to its applied mark.
    fn synced(&self) {
        let mut queue = self.shared.queue();
        queue.synced = queue.synced.max(self.history.applied());
        self.shared.done.notify_all();
    }

    fn publish(&self) {
        let mut queue = self.shared.queue();
        queue.figures.history = self.history.applied();
        queue.figures.history_bytes = self.history.bytes();
        queue.figures.mirrored = self.mirror.mirrored();
        queue.figures.sled_bytes = self.mirror.disk_bytes();
        queue.figures.rebuilds = self.mirror.rebuilds();
        self.shared.done.notify_all();
    }
}
