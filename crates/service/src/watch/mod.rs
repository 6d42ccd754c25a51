//! Watches: the changes as they are applied, in order, each once, from any retained revision on.
//!
//! A watch is a position and nothing that could overflow: it reads the changes after the position from the feed of
//! recent changes, and older ones from the history. A watch can continue on any node where it ended on another,
//! because a position is a revision and revisions are the same everywhere.
//!
//! | question | file |
//! |---|---|
//! | When does a watch read, what does it return, when does it end? | this one |
//! | Which watches are woken by a change, and when? | `hub`, `topics` |
//! | Which keys is a watch for, and may its caller read them? | `scope` |
//! | Which part of a change does a watch return? | `filter` |
//! | How are older changes read from the history? | `replay` |
//! | How is the initial state read? | `initial` |
//! | How does a watch end whose key was revoked? | `permissions` |
//! | What of an event may the caller see? | `redacted` |
//! | How does a caller get changes without a stream? | `poll` |
//!
//! **Invariants:** the position only grows, and everything requested up to (and including) it has been returned. Where
//! this node lacks changes, or has lost the cluster, the watch ends with a refusal that sends the caller to another
//! node: no change is skipped, and a silent node is not mistaken for an idle cluster.

mod filter;
mod hub;
mod initial;
mod permissions;
mod poll;
mod redacted;
mod replay;
mod scope;
mod topics;

use crate::{
    access::Authentication,
    context::Context,
    freshness::Freshness,
    read::{Reads, pinned::PinnedStates},
    redaction::Redactor,
};
use std::{
    collections::VecDeque,
    fmt::Display,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{Consistency, Level, Principal, RedactedEvent, Refusal, Reservation, Share};
use concord_consensus::Consensus;
use concord_model::{error::Violation, limits::WATCH_UNCONFIRMED_MAX, record::Revision};
use concord_state::{
    State,
    feed::{Event, EventPage, Feed},
};
use concord_storage::HistoryError;
pub use filter::Selected;
use filter::WatchSelection;
pub use hub::WatchHub;
use hub::WatchRegistration;
pub use initial::InitialChunk;
use initial::{CHUNK_BYTES, Initial};
use permissions::{WatchPermission, judge_periodically};
pub use poll::{PolledChanges, PolledEvent};
use replay::Replay;

use scope::WatchScope;

/// How often a node with watches confirms that it follows the cluster: one read index for all of them.
const WATCH_CONFIRM_INTERVAL: Duration = Duration::from_secs(10);
/// Bytes of events that each watch may hold beside the memory budget.
const UNWEIGHED_EVENTS_BYTES: usize = 8 << 10;
/// The pause of a watch for whose events there is no memory.
const MEMORY_PAUSE: Duration = Duration::from_millis(100);

/// Where a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchStart {
    /// After the state that the request was accepted at.
    Now,
    /// With that state itself.
    InitialState,
    /// After a revision.
    After(Revision),
}

/// A watch as a caller requests it.
#[derive(Debug, Clone)]
pub struct WatchRequest {
    /// Keys of definitions, and patterns of keys; none for all.
    pub definitions: Vec<String>,
    /// Keys of configs of the one definition; none for all.
    pub configs: Vec<String>,
    /// The parameters that filter, as a list of configs has them.
    pub filters: Vec<(String, String)>,
    /// Whether configs are returned as they were before a change, too.
    pub has_prev: bool,
    /// Where it begins.
    pub start: WatchStart,
    /// How fresh the state must be that the request is accepted at.
    pub consistency: Consistency,
}

/// What a watch returns.
#[derive(Debug)]
pub enum Notice {
    /// A part of the initial state.
    State(InitialChunk),
    /// The part of an event that was requested, and what of its items is redacted.
    Changes(Arc<Event>, Selected, RedactedEvent),
    /// Everything up to (and including) this revision has been returned.
    Progress(Revision),
    /// The watch ends, and why.
    End(Refusal),
}

/// An open watch.
#[derive(Debug)]
pub struct OpenWatch {
    watches: Arc<Watches>,
    consensus: Consensus,
    feed: Arc<Feed>,
    registration: WatchRegistration,
    right: WatchPermission,
    _permit: OwnedSemaphorePermit,
    selection: WatchSelection,
    has_prev: bool,
    /// Everything up to (and including) this revision has been returned.
    position: Revision,
    /// Events that were read and not returned yet.
    events: VecDeque<Arc<Event>>,
    /// What they hold in memory, where that is much.
    held: Option<Reservation>,
    /// The position once they are returned.
    upto: Revision,
    initial: Option<Initial>,
    /// Set while changes are read from the history.
    replay: Option<Replay>,
    last_notice: Instant,
    /// When a poll ends; a stream does not.
    poll_until: Option<Instant>,
    /// The revision of the state that it began at.
    begun_at: Revision,
    is_new: bool,
    /// The caller accepts this node's state, however old.
    is_local: bool,
    has_ended: bool,
}

/// Opens watches.
#[derive(Debug)]
pub struct Watches {
    pub(crate) cx: Arc<Context>,
    pub(crate) freshness: Arc<Freshness>,
    pub(crate) authentication: Arc<Authentication>,
    pub(crate) redactor: Arc<Redactor>,
    pub(crate) pinned_states: Arc<PinnedStates>,
    pub(crate) hub: Arc<WatchHub>,
}

impl Watches {
    pub(crate) fn new(
        cx: &Arc<Context>,
        freshness: &Arc<Freshness>,
        authentication: &Arc<Authentication>,
        redactor: &Arc<Redactor>,
        reads: &Reads,
    ) -> Self {
        Self {
            cx: Arc::clone(cx),
            freshness: Arc::clone(freshness),
            authentication: Arc::clone(authentication),
            redactor: Arc::clone(redactor),
            pinned_states: Arc::clone(&reads.pinned_states),
            hub: Arc::new(WatchHub::new(cx.options.limits.watches)),
        }
    }

    /// Opens a watch.
    ///
    /// # Errors
    /// When the principal may not read what it asks for; when the changes are no longer retained, or not on this node;
    /// when the request is invalid; when this node or the key has as many watches as it may.
    pub async fn watch(
        self: &Arc<Self>,
        principal: Principal,
        request: WatchRequest,
    ) -> Result<OpenWatch, Refusal> {
        let scope = WatchScope::of(&principal, &request.definitions, &request.configs)?;
        scope.authorize(&principal)?;
        let hub = &self.hub;
        let right = hub.rights.register(&principal, hub.watches_max_of(&principal))?;
        let permit = Arc::clone(&hub.permits).try_acquire_owned().map_err(|_| {
            Refusal::LimitReached(format!(
                "this node has {} watches open, as many as it may",
                hub.watches_max()
            ))
        })?;
        let requested_at = Instant::now();
        let state = self.view_to_watch(request.consistency, request.start).await?;
        let consensus = self.cx.consensus_or_refusal()?;
        if self.cx.stopping.is_cancelled() {
            return Err(Refusal::Unavailable("this node is stopping".into()));
        }
        redacted::check(&self.redactor, &principal, (&scope, &request.filters, request.start), &state)
            .await?;
        let selection = WatchSelection::new(scope, request.filters, &state, self.cx.limits())?;
        let feed = consensus.feed();
        if hub.begin(&feed) {
            let confirm = confirm_periodically(Arc::downgrade(self), self.cx.stopping.clone());
            consensus.supervise("confirm-watches", confirm);
            let judge = judge_periodically(Arc::downgrade(self), self.cx.stopping.clone());
            consensus.supervise("judge-watches", judge);
            consensus
                .supervise("wake-watches", Arc::clone(hub).follow(Arc::clone(&feed), consensus.revisions()));
        }
        let is_local = matches!(request.consistency.level, Level::Local { .. });
        if !is_local {
            hub.confirm(requested_at);
        }
        let registration = hub.register(selection.scope().topics());
        // What was acknowledged before the request is there at the first look, which may be the only one.
        hub.catch_up(&feed);
        let position = match request.start {
            WatchStart::Now | WatchStart::InitialState => state.revision(),
            WatchStart::After(revision) if revision > state.revision() => {
                return Err(Refusal::Expired(format!(
                    "revision {revision} is not known here: the cluster is at {}; begin anew",
                    state.revision()
                )));
            }
            WatchStart::After(revision) if revision < state.compaction_revision() => {
                return Err(expired(revision, state.compaction_revision()));
            }
            WatchStart::After(revision) => revision,
        };
        let pinned = &self.pinned_states;
        let is_initial = request.start == WatchStart::InitialState;
        let initial = is_initial.then(|| Initial::new(pinned.hold(&state, consensus)));
        let mut watch = OpenWatch {
            watches: Arc::clone(self),
            consensus: consensus.clone(),
            feed,
            registration,
            right,
            _permit: permit,
            selection,
            has_prev: request.has_prev,
            position,
            events: VecDeque::new(),
            held: None,
            upto: position,
            initial,
            replay: None,
            last_notice: Instant::now(),
            poll_until: None,
            begun_at: state.revision(),
            is_new: true,
            is_local,
            has_ended: false,
        };
        if watch.initial.is_none() {
            // A refusal to read is returned before the watch begins.
            watch.read().await?;
        }
        Ok(watch)
    }

    /// The state that a watch begins at. A caller who goes on from another node's state may be ahead of this node, if
    /// they accept an old one: it waits.
    async fn view_to_watch(&self, mut wanted: Consistency, start: WatchStart) -> Result<Arc<State>, Refusal> {
        let (WatchStart::After(seen), Level::Local { .. }) = (start, wanted.level) else {
            return self.freshness.view(wanted).await;
        };
        let is_behind = seen > self.cx.revision() && wanted.min_revision.is_none_or(|least| least < seen);
        if !is_behind {
            return self.freshness.view(wanted).await;
        }
        wanted.min_revision = Some(seen);
        let text = format!("this node has not applied revision {seen} yet; go on at another");
        self.freshness.view(wanted).await.map_err(|_| Refusal::Unavailable(text))
    }
}

/// Confirms periodically, while there is a watch, that this node still follows the cluster.
async fn confirm_periodically(watches: Weak<Watches>, stopping: CancellationToken) -> Result<(), String> {
    loop {
        let Some(watches) = watches.upgrade() else { return Ok(()) };
        let (hub, requested_at) = (&watches.hub, Instant::now());
        let is_confirmed = match watches.cx.consensus() {
            Some(consensus) if hub.has_watches() => {
                matches!(
                    timeout(WATCH_CONFIRM_INTERVAL, watches.freshness.confirm(consensus)).await,
                    Ok(Ok(()))
                )
            }
            Some(_) | None => true,
        };
        if is_confirmed {
            hub.confirm(requested_at);
        }
        drop(watches);
        tokio::select! {
            () = sleep(WATCH_CONFIRM_INTERVAL) => {}
            () = stopping.cancelled() => return Ok(()),
        }
    }
}

fn expired(position: Revision, compaction_revision: Revision) -> Refusal {
    Refusal::Expired(format!(
        "the changes after revision {position} are no longer retained, only those after {compaction_revision}; \
         begin anew"
    ))
}

fn invalid(parameter: &str, msg: impl Into<String>) -> Refusal {
    Refusal::Invalid(Violation::at(vec!["query".into(), parameter.into()], msg).into())
}

impl OpenWatch {
    /// Where it began: the state's revision, or the requested position.
    #[must_use]
    pub fn position(&self) -> Revision {
        self.position
    }

    /// The id of the cluster that the changes are of.
    #[must_use]
    pub fn cluster(&self) -> Option<uuid::Uuid> {
        self.watches.cx.cluster_id()
    }

    /// The next notice; waits for it. `None` after the end.
    pub async fn next(&mut self) -> Option<Notice> {
        if self.has_ended {
            return None;
        }
        let notice = match self.wait_for_shown().await {
            Ok(notice) => notice,
            Err(refusal) => self.end(Notice::End(refusal)),
        };
        self.last_notice = Instant::now();
        Some(notice)
    }

    /// The next notice of changes, if it was read already.
    pub fn try_next(&mut self) -> Option<Notice> {
        // A refusal is returned by `next`.
        if self.has_ended
            || self.initial.is_some()
            || self.selection.is_broken()
            || self.right.is_to_be_checked()
            || self.events.front().is_some_and(|event| self.is_to_be_redacted(event))
        {
            return None;
        }
        self.next_read().ok().flatten()
    }

    fn end(&mut self, notice: Notice) -> Notice {
        self.has_ended = true;
        notice
    }

    /// This node stops, and the caller continues at another one. Within the initial state it begins anew there.
    fn stop(&mut self) -> Notice {
        let notice = match self.initial {
            Some(_) => Notice::End(Refusal::Unavailable("this node is stopping".into())),
            None => Notice::Progress(self.position),
        };
        self.end(notice)
    }

    async fn wait(&mut self) -> Result<Notice, Refusal> {
        let stopping = self.watches.cx.stopping.clone();
        if stopping.is_cancelled() {
            return Ok(self.stop());
        }
        self.right.check(self.selection.scope())?;
        if self.initial.is_some() {
            self.held = None;
            self.held = Some(self.reserve_initial_chunk().await?);
        }
        if let Some(initial) = &mut self.initial {
            let too_late = || Refusal::Unavailable("the state was not read in time; begin anew".into());
            let chunk = initial.next_chunk(&self.selection).ok_or_else(too_late)?;
            if let Some(held) = &mut self.held {
                // One large record may exceed what was reserved, and most chunks take less.
                held.set(chunk.bytes as u64);
            }
            if chunk.is_last {
                self.initial = None;
                self.is_new = false;
            }
            return Ok(Notice::State(chunk));
        }
        if std::mem::take(&mut self.is_new) {
            // A caller that is disconnected before the first change knows where to continue.
            return Ok(Notice::Progress(self.position));
        }
        let heartbeat_due =
            self.poll_until.unwrap_or(self.last_notice + self.watches.cx.options.watch_heartbeat);
        loop {
            self.right.check(self.selection.scope())?;
            if let Some(notice) = self.next_read()? {
                return Ok(notice);
            }
            let left = self.watches.cx.peers.left.clone();
            if left.is_cancelled() {
                return Err(Refusal::Unavailable("this node was taken out of the cluster".into()));
            }
            if stopping.is_cancelled() {
                return Ok(self.stop());
            }
            if self.is_due(heartbeat_due) {
                if !self.is_local && self.watches.hub.unconfirmed() > WATCH_UNCONFIRMED_MAX {
                    return Err(Refusal::Unavailable(
                        "this node has lost the cluster; go on at another".into(),
                    ));
                }
                return Ok(Notice::Progress(self.position));
            }
            if self.read().await? {
                tokio::task::yield_now().await;
                continue;
            }
            tokio::select! {
                () = self.registration.notify.notified() => {}
                () = self.right.changed() => {}
                () = sleep_until(heartbeat_due) => {}
                () = stopping.cancelled() => {}
                () = left.cancelled() => {}
            }
        }
    }

    /// Reserves a part of the initial state, which a slow caller holds until it has read it; waits for the memory.
    async fn reserve_initial_chunk(&self) -> Result<Reservation, Refusal> {
        let (begin, watches) = (Instant::now(), &self.watches);
        loop {
            match watches.cx.memory_budget.reserve(Share::Callers, CHUNK_BYTES as u64) {
                Err(refusal) if begin.elapsed() > WATCH_UNCONFIRMED_MAX => return Err(refusal),
                Err(_) if watches.cx.stopping.is_cancelled() => {
                    return Err(Refusal::Unavailable("this node is stopping".into()));
                }
                Err(_) => sleep(MEMORY_PAUSE).await,
                Ok(held) => return Ok(held),
            }
        }
    }

    /// The next of the events that were read of which the watch returns something.
    fn next_read(&mut self) -> Result<Option<Notice>, Refusal> {
        if let Some(refusal) = self.selection.take_broken() {
            return Err(refusal);
        }
        while let Some(event) = self.events.pop_front() {
            self.position = event.revision;
            if event.revision.is_multiple_of(64) && concord_model::sabotage::is("watch-skips") {
                continue;
            }
            if let Some(selected) = self.selection.select(&event) {
                return Ok(Some(Notice::Changes(event, selected, RedactedEvent::default())));
            }
        }
        self.position = self.position.max(self.upto);
        Ok(None)
    }

    /// Reads changes after the position; whether to continue at once, without waiting for a change.
    async fn read(&mut self) -> Result<bool, Refusal> {
        if self.replay.is_none() {
            if let Some(piece) = self.registration.read(&self.feed, self.position) {
                let has_events = !piece.events.is_empty();
                if !has_events {
                    self.position = self.position.max(piece.upto);
                }
                self.take(piece).await;
                return Ok(has_events);
            }
            self.replay =
                Some(Replay::new(&self.consensus, self.selection.scope(), self.position, self.has_prev));
        }
        let Some(replay) = self.replay.take() else { return Ok(true) };
        let start = replay.start();
        let piece = self.read_history(replay).await?;
        let upto = piece.upto;
        if self.replay.is_none() && upto <= start && upto < self.feed.compaction_revision() {
            // The history ends at the position, and the feed begins after it.
            return Err(self.gap(&"the changes that follow are not known"));
        }
        self.take(piece).await;
        Ok(true)
    }

    /// Takes what was read, if there is memory for it: a slow caller holds it until it has read it. Otherwise it is
    /// read again after a pause, from the same position.
    async fn take(&mut self, piece: EventPage) {
        let prev = |event: &Event| if self.has_prev { event.bytes_before() } else { 0 };
        let bytes: usize = piece.events.iter().map(|event| event.bytes() + prev(event)).sum();
        self.held = None;
        if bytes > UNWEIGHED_EVENTS_BYTES {
            match self.watches.cx.memory_budget.reserve(Share::Callers, bytes as u64) {
                Ok(held) => self.held = Some(held),
                Err(_) => {
                    self.replay = None;
                    drop(piece);
                    sleep(MEMORY_PAUSE).await;
                    return;
                }
            }
        }
        self.events = piece.events.into();
        self.upto = piece.upto;
    }

    async fn read_history(&mut self, replay: Replay) -> Result<EventPage, Refusal> {
        let closed = |_| Refusal::Internal("the readers of the history are never closed".into());
        let permit = self.watches.hub.history_readers.acquire().await.map_err(closed)?;
        let read = tokio::task::spawn_blocking(move || replay.read()).await;
        drop(permit);
        let read = read.map_err(|error| Refusal::Internal(format!("reading the history: {error}")))?;
        let (piece, rest) = read.map_err(|error| match error {
            HistoryError::Compacted { compaction_revision } => expired(self.position, compaction_revision),
            HistoryError::Gap { .. } | HistoryError::Failed(_) => self.gap(&error),
        })?;
        self.replay = rest;
        Ok(piece)
    }

    /// This node lacks changes that another node may have.
    fn gap(&self, why: &dyn Display) -> Refusal {
        tracing::debug!("a watch after revision {} ends: {why}", self.position);
        Refusal::Unavailable(format!(
            "this node does not have the changes after revision {}; go on at another",
            self.position
        ))
    }
}
