//! The work of the store's thread in a simulation, which has one thread: a task does a round when one is due, and who
//! waits for the thread does the rounds before that itself.
//!
//! **Invariant:** nothing waits for another thread, so that the order of all work follows from the seed.

use std::{
    cell::Cell,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use super::{BATCHING_PAUSE, Worker, WriterEnding, WriterQueue, WriterShared};
use crate::{
    history::writer::HistoryWriter,
    sled::mirror::{MirrorProgress, MirrorStart},
};

thread_local! {
    static POWER_IS_OFF: Cell<bool> = const { Cell::new(false) };
}

/// While the power is off, a store that is dropped writes nothing more.
pub fn set_power_is_off(is_off: bool) {
    POWER_IS_OFF.set(is_off);
}

/// The thread of the store, without one.
#[derive(Debug)]
pub(crate) struct Writer(Arc<Mutex<Option<Inline>>>);

#[derive(Debug)]
struct Inline {
    worker: Worker,
    /// When the mirror has something to do, even if nothing is new.
    due: Option<Instant>,
}

impl Writer {
    #[expect(clippy::unnecessary_wraps, reason = "as where a thread is started")]
    pub(crate) fn start(
        shared: &Arc<WriterShared>,
        history: HistoryWriter,
        start: MirrorStart,
        backlog_max: usize,
    ) -> std::io::Result<Self> {
        let mut worker = Worker::new(Arc::clone(shared), history, start, backlog_max);
        let progress = worker.begin();
        let own = Arc::new(Mutex::new(Some(Inline { worker, due: due(progress) })));
        drop(tokio::spawn(rounds(Arc::downgrade(&own))));
        Ok(Self(own))
    }

    /// Does all rounds that have something to do now.
    pub(crate) fn awaited(&self) {
        if POWER_IS_OFF.get() {
            let mut own = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(Inline { worker, .. }) = own.take() {
                worker.mirror.abandon();
                worker.shared.over(None);
            }
            return;
        }
        while round(&self.0) {}
    }

    /// Does all rounds that have something to do now. What is missing then comes from another node, while nobody waits.
    pub(super) fn wait_while<'a>(
        &self,
        shared: &'a WriterShared,
        _timeout: Duration,
        _missing: impl FnMut(&mut WriterQueue) -> bool,
    ) -> MutexGuard<'a, WriterQueue> {
        self.awaited();
        shared.queue()
    }

    /// Does the last rounds.
    pub(crate) fn join(&self) {
        self.awaited();
    }
}

/// Does a round whenever the thread would, until the store is closed.
async fn rounds(own: Weak<Mutex<Option<Inline>>>) {
    loop {
        tokio::time::sleep(BATCHING_PAUSE).await;
        let Some(own) = own.upgrade() else { return };
        round(&own);
    }
}

/// Does one round, if it has something to do.
fn round(own: &Mutex<Option<Inline>>) -> bool {
    let mut own = own.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(Inline { worker, due: mirror_due }) = own.as_ref() else { return false };
    let shared = Arc::clone(&worker.shared);
    let queue = shared.queue();
    let is_new = !queue.items.is_empty()
        || queue.ending != WriterEnding::No
        || (queue.log_durable, queue.sync_to) != worker.seen;
    if !is_new && mirror_due.is_none_or(|due| due > Instant::now()) {
        return false;
    }
    let taken = worker.take(queue);
    let Some(Inline { worker, .. }) = own.take() else { return false };
    match worker.work(taken) {
        Ok(Some((worker, progress))) => {
            *own = Some(Inline { worker, due: due(progress) });
            return true;
        }
        Ok(None) => shared.over(None),
        Err(error) => shared.over(Some(error.to_string())),
    }
    false
}

fn due(progress: MirrorProgress) -> Option<Instant> {
    match progress {
        MirrorProgress::Worked => Some(Instant::now()),
        MirrorProgress::Idle => None,
        MirrorProgress::Wait(time) => Some(Instant::now() + time.max(Duration::from_millis(1))),
    }
}
