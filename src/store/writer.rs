//! The store's thread: takes what was applied, appends it to the history, lets sled trail behind.
//!
//! Applying pushes into an inbox and goes on; everything that touches a disk happens here. The history comes
//! first in every round and sled gets one bounded step, so that a rewrite of sled never holds the history up.
//!
//! **Invariant:** a failure of the history ends the thread and is told; what sled does never ends it.

use std::{
    collections::VecDeque,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{
    Batch, Figures, Position, StoreError,
    history::writer::History,
    sled::{
        mirror::{Begin, Carrier, Moment, Progress},
        trees::Seal,
    },
};
use crate::{
    model::record::Revision,
    state::{Change, Edit, State},
};

/// Before a round the thread waits for so long, so that a busy service wakes it for many changes at once: a
/// hundred rounds a second, each of one write to the history's file. Readers of the newest history wait as long.
const LINGER: Duration = Duration::from_millis(10);
/// The service is at work when something was applied in this time: then sled gets half of a core at most, because
/// whoever waits for an answer needs the same processors.
const BUSY: Duration = Duration::from_secs(1);
/// Longest rest between two steps: on a machine so busy that a step takes longer, resting gives nobody anything.
const REST_MAX: Duration = Duration::from_millis(20);

/// What handles and thread share.
#[derive(Debug)]
pub(super) struct Shared {
    inbox: Mutex<Inbox>,
    /// Something came for the thread.
    wake: Condvar,
    /// The thread got somewhere.
    done: Condvar,
    failed: tokio::sync::watch::Sender<Option<String>>,
}

/// What waits for the thread, and how far it is.
#[derive(Debug)]
struct Inbox {
    items: VecDeque<Item>,
    newest: (State, Position),
    flushed: Revision,
    /// The history is to be durable up to here.
    sync_to: Revision,
    /// The history is durable up to here.
    synced: Revision,
    figures: Figures,
    ending: Ending,
    /// The thread has something to do before anything comes, or lingers: it need not be woken.
    busy: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    No,
    /// Carry everything, then end.
    Close,
    /// End as after a crash: nobody holds the store any more.
    Abandon,
    /// The thread has ended.
    Over,
}

#[derive(Debug)]
enum Item {
    Applied {
        seal: Seal,
        changes: Vec<Arc<Change>>,
        /// The state at the seal, if the changes need it.
        state: Option<Box<State>>,
        /// The state before, if much may be freed with it: here, not where it is applied.
        retired: Option<Box<State>>,
    },
    Installed(Box<State>, Position),
}

/// What a round works on.
#[derive(Debug)]
struct Round {
    items: VecDeque<Item>,
    newest: (State, Position),
    flushed: Revision,
    sync_to: Revision,
    ending: Ending,
}

impl Shared {
    pub(super) fn new(newest: (State, Position), flushed: Revision, history: &History) -> Self {
        let figures = Figures {
            handed: newest.1.index,
            history: history.reach(),
            history_bytes: history.bytes(),
            ..Figures::default()
        };
        let inbox = Inbox {
            items: VecDeque::new(),
            flushed,
            sync_to: 0,
            // What counts as loaded lies in a durable file or comes again from the log.
            synced: newest.1.index,
            newest,
            figures,
            ending: Ending::No,
            busy: false,
        };
        Self {
            inbox: Mutex::new(inbox),
            wake: Condvar::new(),
            done: Condvar::new(),
            failed: tokio::sync::watch::Sender::new(None),
        }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over what was applied.
    pub(super) fn applied(&self, batch: Batch) {
        let Batch { state, position, changes } = batch;
        let seal = Seal::of(&state, &position);
        let edits = || changes.iter().flat_map(|change| &change.edits);
        let needs_state = edits().any(|edit| matches!(edit, Edit::Reindexed { .. }));
        let frees = edits().any(Edit::is_costly_to_free);
        let needed = needs_state.then(|| Box::new(state.clone()));
        let mut inbox = self.inbox();
        inbox.figures.handed = position.index;
        let before = std::mem::replace(&mut inbox.newest, (state, position)).0;
        if inbox.ending == Ending::Over {
            return;
        }
        let (retired, small) = if frees { (Some(Box::new(before)), None) } else { (None, Some(before)) };
        inbox.items.push_back(Item::Applied { seal, changes, state: needed, retired });
        self.wake(inbox);
        drop(small);
    }

    /// Hands over a state that takes the place of all before it.
    pub(super) fn installed(&self, state: State, position: Position) {
        let mut inbox = self.inbox();
        if position.index <= inbox.figures.handed {
            return;
        }
        inbox.figures.handed = position.index;
        // The log is purged to an installed snapshot; the file itself is durable.
        inbox.flushed = inbox.flushed.max(position.index);
        inbox.newest = (state.clone(), position.clone());
        inbox.items.push_back(Item::Installed(Box::new(state), position));
        self.wake(inbox);
    }

    pub(super) fn flushed(&self, index: Revision) {
        let mut inbox = self.inbox();
        inbox.flushed = inbox.flushed.max(index);
        self.wake(inbox);
    }

    pub(super) fn truncated(&self, last: Revision) {
        let mut inbox = self.inbox();
        inbox.flushed = inbox.flushed.min(last);
    }

    /// The last entry that the log holds durably, as far as the store was told.
    pub(super) fn log_last(&self) -> Revision {
        self.inbox().flushed
    }

    pub(super) fn figures(&self) -> Figures {
        self.inbox().figures
    }

    /// Waits until the history is durable up to an index.
    pub(super) fn sync(&self, index: Revision) -> Result<(), StoreError> {
        let mut inbox = self.inbox();
        inbox.sync_to = inbox.sync_to.max(index);
        inbox.busy = false;
        self.wake.notify_one();
        let inbox = self
            .done
            .wait_while(inbox, |inbox| inbox.ending != Ending::Over && inbox.synced < index)
            .unwrap_or_else(PoisonError::into_inner);
        if inbox.synced >= index {
            return Ok(());
        }
        let why = self.failed.borrow().clone().unwrap_or_else(|| "it was closed".into());
        Err(StoreError::Io {
            context: format!("the store ended before its history reached revision {index}"),
            source: std::io::Error::other(why),
        })
    }

    /// Waits until readers see the history up to an index; whether they do.
    pub(super) fn written(&self, index: Revision, most: Duration) -> bool {
        let behind = |inbox: &mut Inbox| inbox.ending != Ending::Over && inbox.figures.history < index;
        let inbox = match self.done.wait_timeout_while(self.inbox(), most, behind) {
            Ok((inbox, _)) => inbox,
            Err(error) => error.into_inner().0,
        };
        inbox.figures.history >= index
    }

    pub(super) async fn failed(&self) -> String {
        let mut failed = self.failed.subscribe();
        // The guard of the watched value must not live across an await.
        let text = failed.wait_for(Option::is_some).await.ok().and_then(|text| text.clone());
        match text {
            Some(text) => text,
            // The sender lives as long as this borrow.
            None => std::future::pending().await,
        }
    }

    /// Asks the thread to end; with `carry` after everything has been carried.
    pub(super) fn end(&self, carry: bool) {
        let mut inbox = self.inbox();
        if inbox.ending == Ending::No {
            inbox.ending = if carry { Ending::Close } else { Ending::Abandon };
        }
        inbox.busy = false;
        self.wake.notify_one();
    }

    fn wake(&self, inbox: MutexGuard<'_, Inbox>) {
        if !inbox.busy {
            self.wake.notify_one();
        }
    }

    /// The thread has ended; nobody waits for it any more.
    fn over(&self, failure: Option<String>) {
        let mut inbox = self.inbox();
        inbox.ending = Ending::Over;
        let items = std::mem::take(&mut inbox.items);
        drop(inbox);
        drop(items);
        self.done.notify_all();
        if let Some(text) = failure {
            tracing::error!("the store can't go on: {text}");
            self.failed.send_replace(Some(text));
        }
    }
}

/// The thread's own part.
#[derive(Debug)]
struct Worker<'a> {
    shared: &'a Shared,
    history: History,
    carrier: Carrier,
    busy_at: Instant,
    /// `flushed` and `sync_to` of the last round.
    seen: (Revision, Revision),
    /// How long to rest before more is carried.
    rest: Duration,
}

/// Runs until the store is closed or the history fails.
pub(super) fn run(shared: &Shared, history: History, begin: Begin, weight_max: usize) {
    let ended = panic::catch_unwind(AssertUnwindSafe(|| {
        let carrier = Carrier::new(begin, weight_max);
        Worker { shared, history, carrier, busy_at: Instant::now(), seen: (0, 0), rest: Duration::ZERO }.run()
    }));
    shared.over(match ended {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some("the store's thread panicked".into()),
    });
}

impl Worker<'_> {
    fn run(mut self) -> Result<(), StoreError> {
        // Fresh trees begin with what was loaded: the log holds that, which it may not yet of what comes.
        let flushed = self.shared.log_last();
        let mut progress = self.carrier.step(Moment { flushed, busy_at: self.busy_at, closing: false });
        loop {
            let round = self.wait(progress);
            let closing = round.ending == Ending::Close;
            let (flushed, sync_to, ending) = (round.flushed, round.sync_to, round.ending);
            self.seen = (flushed, sync_to);
            let flushed = if crate::sabotage::is("sled-beyond-log") { Revision::MAX } else { flushed };
            self.take(round)?;
            if closing || (sync_to > self.history_synced() && self.history.reach() >= sync_to) {
                self.history.seal()?;
                self.synced();
            }
            if ending == Ending::Abandon {
                self.carrier.abandon();
                return Ok(());
            }
            let begun = Instant::now();
            progress = self.carrier.step(Moment { flushed, busy_at: self.busy_at, closing });
            let is_busy = !closing && self.busy_at.elapsed() < BUSY;
            self.rest = if is_busy { begun.elapsed().min(REST_MAX) } else { Duration::ZERO };
            self.publish();
            if closing && progress == Progress::Idle {
                self.carrier.close();
                return Ok(());
            }
        }
    }

    /// Waits until there is something to do, and takes it.
    fn wait(&self, progress: Progress) -> Round {
        let mut inbox = self.shared.inbox();
        let nothing_came = |inbox: &mut Inbox| {
            inbox.items.is_empty()
                && inbox.ending == Ending::No
                && (inbox.flushed, inbox.sync_to) == self.seen
        };
        inbox.busy = false;
        let inbox = match progress {
            Progress::Worked => Ok(inbox),
            Progress::Idle => self.shared.wake.wait_while(inbox, nothing_came),
            Progress::Wait(time) => self
                .shared
                .wake
                .wait_timeout_while(inbox, time, nothing_came)
                .map(|(inbox, _)| inbox)
                .map_err(|error| PoisonError::new(error.into_inner().0)),
        };
        self.linger(progress, inbox.unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets more come, unless somebody waits for the thread.
    fn linger(&self, progress: Progress, mut inbox: MutexGuard<'_, Inbox>) -> Round {
        let pause = if progress == Progress::Worked { self.rest } else { LINGER };
        if !pause.is_zero() && inbox.ending == Ending::No && inbox.sync_to <= inbox.synced {
            inbox.busy = true;
            let nobody_waits =
                |inbox: &mut Inbox| inbox.ending == Ending::No && inbox.sync_to <= inbox.synced;
            inbox = match self.shared.wake.wait_timeout_while(inbox, pause, nobody_waits) {
                Ok((inbox, _)) => inbox,
                Err(error) => error.into_inner().0,
            };
        }
        inbox.busy = true;
        Round {
            items: std::mem::take(&mut inbox.items),
            newest: inbox.newest.clone(),
            flushed: inbox.flushed,
            sync_to: inbox.sync_to,
            ending: inbox.ending,
        }
    }

    /// Writes what came to the history and puts it before the carrier.
    fn take(&mut self, round: Round) -> Result<(), StoreError> {
        if round.items.is_empty() {
            return Ok(());
        }
        self.busy_at = Instant::now();
        for item in round.items {
            match item {
                Item::Applied { seal, changes, state, retired } => {
                    changes.iter().try_for_each(|change| self.history.write(change))?;
                    self.history.reached(seal.position.index)?;
                    self.history.compact(seal.compaction_revision)?;
                    self.carrier.push(seal, changes, state);
                    drop(retired);
                }
                Item::Installed(state, position) => {
                    self.history.seal()?;
                    self.history.jump(position.index)?;
                    self.history.compact(state.compaction_revision())?;
                    self.synced();
                    self.carrier.install(*state, position);
                }
            }
        }
        let (state, position) = round.newest;
        self.carrier.latest(state, position);
        self.history.flush()
    }

    fn history_synced(&self) -> Revision {
        self.shared.inbox().synced
    }

    /// The history was sealed: all that it reaches is durable.
    fn synced(&self) {
        let mut inbox = self.shared.inbox();
        inbox.synced = inbox.synced.max(self.history.reach());
        self.shared.done.notify_all();
    }

    fn publish(&self) {
        let mut inbox = self.shared.inbox();
        inbox.figures.history = self.history.reach();
        inbox.figures.history_bytes = self.history.bytes();
        inbox.figures.carried = self.carrier.carried();
        inbox.figures.sled_bytes = self.carrier.disk_bytes();
        inbox.figures.rebuilds = self.carrier.rebuilds();
        self.shared.done.notify_all();
    }
}
