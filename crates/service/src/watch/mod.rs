//! Watches return changes as they are applied, in order, each once, from any retained revision on.
//!
//! A watch has a position and no queue that could overflow. It reads the changes after its position from the feed of
//! recent changes, and older ones from the history. A position is a revision, and revisions are the same on all nodes.
//! So a watch that ends on one node can resume on any other.
//!
//! | question | file |
//! |---|---|
//! | When does a watch read, what does it return, when does it end? | this one |
//! | Which watches are woken by a change, and when? | `hub`, `topics` |
//! | Which keys is a watch for, and may its client read them? | `scope` |
//! | Which part of a change does a watch return? | `filter` |
//! | How are older changes read from the history? | `replay` |
//! | How is the initial state read? | `initial` |
//! | What does a reader see that is in a rollout? | `seen` |
//! | How does a watch end when its access key is revoked? | `permissions` |
//! | Which values of an event may the client see? | `redacted` |
//! | How does a client get changes without a stream? | `poll` |
//! | How are the latest changes listed, newest first? | `latest` |
//!
//! **Invariants:** the position only grows, and everything requested up to (and including) it has been returned. If this
//! node lacks changes, or is isolated from the quorum, the watch ends with a rejection that sends the client to another
//! node. So no change is skipped, and a silent node is not mistaken for an idle cluster.

mod filter;
mod hub;
mod initial;
mod latest;
mod permissions;
mod poll;
mod redacted;
mod replay;
mod scope;
mod seen;
mod topics;

use crate::{
    access::Authentication,
    context::Context,
    cpu_pool::Weight,
    freshness::Freshness,
    history::skipped,
    origin::Origin,
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
use concord_model::{
    access_key::Verb, error::Violation, limits::WATCH_UNCONFIRMED_MAX, record::Revision,
    system::rollout::Reader,
};
use concord_state::{
    State,
    feed::{Event, EventPage, Feed, RecordChange},
};
use concord_storage::HistoryError;
pub use filter::Selected;
use filter::WatchSelection;
pub use hub::WatchHub;
use hub::WatchRegistration;
pub use initial::InitialChunk;
use initial::{CHUNK_BYTES, Initial};
use latest::ChangesFilter;
pub use latest::{LatestChanges, LatestRequest, ListedChanges};
use permissions::{WatchPermission, renew_periodically};
pub use poll::{PolledChanges, PolledEvent};
use replay::Replay;

use scope::WatchScope;

/// How often a node with watches confirms that it follows the cluster: one read index for all of them.
const WATCH_CONFIRM_INTERVAL: Duration = Duration::from_secs(10);
/// Bytes of events that each watch may hold without counting toward the memory budget.
const UNWEIGHED_EVENTS_BYTES: usize = 8 << 10;
/// The pause of a watch when the memory budget has no room for its events.
const MEMORY_PAUSE: Duration = Duration::from_millis(100);

/// Where a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchStart {
    /// After the state at which the request was accepted.
    Now,
    /// With the initial state: the state at which the request was accepted.
    InitialState,
    /// After a revision.
    After(Revision),
}

/// A watch as a client requests it.
#[derive(Debug, Clone)]
pub struct WatchRequest {
    /// Whether the watch is for change requests, and not for records. Then it has no keys and no filters.
    pub of_change_requests: bool,
    /// Keys of definitions, and patterns of keys. Empty for all.
    pub definitions: Vec<String>,
    /// Keys of configs of the one definition. Empty for all.
    pub configs: Vec<String>,
    /// The filter parameters, like those of a list of configs.
    pub filters: Vec<(String, String)>,
    /// Whether changes have the previous values of configs.
    pub has_prev: bool,
    /// Where the watch begins.
    pub start: WatchStart,
    /// How fresh the state must be at which the request is accepted.
    pub consistency: Consistency,
    /// Who reads, if the client says it. A watch of change requests is the same for all.
    pub reader: Option<Reader>,
    /// Whether the watch returns each step of a rollout in its scope, for all readers. Not with a reader.
    pub follows_rollouts: bool,
}

/// What a watch returns.
#[derive(Debug)]
pub enum Notice {
    /// A chunk of the initial state.
    State(InitialChunk),
    /// The requested part of an event, and the redacted fields of its items.
    Changes(Arc<Event>, Selected, RedactedEvent),
    /// Everything up to (and including) this revision has been returned.
    Progress(Revision),
    /// The watch ends, for this reason.
    End(Refusal),
}

/// Which events are taken of those that were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventLook {
    /// All: what the client may not see is redacted then.
    Any,
    /// Those that are returned as they are.
    OnlyOpen,
}

/// An open watch.
#[derive(Debug)]
pub struct OpenWatch {
    watches: Arc<Watches>,
    consensus: Consensus,
    feed: Arc<Feed>,
    registration: WatchRegistration,
    permission: WatchPermission,
    _permit: OwnedSemaphorePermit,
    selection: WatchSelection,
    has_prev: bool,
    /// Who sees what it returns.
    reader: Option<Arc<Reader>>,
    /// Whether it returns the steps of rollouts as they are.
    follows_rollouts: bool,
    /// What its reader sees is not known from the position on.
    has_lost_view: bool,
    /// Everything up to (and including) this revision has been returned.
    position: Revision,
    /// Events that were read and not yet returned.
    events: VecDeque<Arc<Event>>,
    /// The memory that they hold, if it is much.
    held: Option<Reservation>,
    /// The position after they are returned.
    upto: Revision,
    initial: Option<Initial>,
    /// Set while the watch reads changes from the history.
    replay: Option<Replay>,
    last_notice: Instant,
    /// When the poll ends. `None` for a stream.
    poll_until: Option<Instant>,
    /// Set if it is a list of changes: which ones it has.
    listed: Option<ChangesFilter>,
    /// The revision of the state at which it began. Of a list, the last revision that it has.
    begun_at: Revision,
    is_new: bool,
    /// The client accepts this node's state, however old.
    is_local: bool,
    has_ended: bool,
    /// Whose memory and whose turns in the pool it uses.
    origin: Origin,
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
    /// When the principal may not read the requested records; when the changes are compacted, or missing on this node; when
    /// the request is invalid; when this node or the key has reached its limit of watches.
    pub async fn watch(
        self: &Arc<Self>,
        principal: Principal,
        request: WatchRequest,
    ) -> Result<OpenWatch, Refusal> {
        let scope = if request.of_change_requests {
            WatchScope::ChangeRequests(principal.visible(Verb::Read))
        } else {
            WatchScope::of(&principal, &request.definitions, &request.configs)?
        };
        scope.authorize(&principal)?;
        let reader = seen::reader_of(&request)?;
        let hub = &self.hub;
        let permission = hub.permissions.register(&principal, hub.watches_max_of(&principal))?;
        let permit = Arc::clone(&hub.permits).try_acquire_owned().map_err(|_| {
            Refusal::LimitReached(format!(
                "watch limit reached: this node has {} open watches; connect to another node",
                hub.watches_max()
            ))
        })?;
        let requested_at = Instant::now();
        let state = self.view_to_watch(request.consistency, request.start).await?;
        let consensus = self.cx.consensus_or_refusal()?;
        if self.cx.stopping.is_cancelled() {
            return Err(Refusal::Unavailable("this node is stopping".into()));
        }
        self.check_filters(&principal, &scope, &request, &state).await?;
        let selection = WatchSelection::new(scope, request.filters, &state, self.cx.limits())?;
        let feed = consensus.feed();
        if hub.begin(&feed) {
            let confirm = confirm_periodically(Arc::downgrade(self), self.cx.stopping.clone());
            consensus.supervise("confirm-watches", confirm);
            let renew = renew_periodically(Arc::downgrade(self), self.cx.stopping.clone());
            consensus.supervise("renew-watch-permissions", renew);
            consensus
                .supervise("wake-watches", Arc::clone(hub).follow(Arc::clone(&feed), consensus.revisions()));
        }
        let is_local = matches!(request.consistency.level, Level::Local { .. });
        if !is_local {
            hub.confirm(requested_at);
        }
        let mut registration = hub.register(selection.scope(), reader.is_some() || request.follows_rollouts);
        if let Some(reader) = &reader {
            registration.name(selection.scope(), reader, crate::now());
        }
        // The first read, which may be the only one, finds every change that was acknowledged before the request.
        hub.catch_up(&feed);
        let position = position_of(request.start, &state)?;
        let pinned = &self.pinned_states;
        let is_initial = request.start == WatchStart::InitialState;
        let initial = is_initial.then(|| Initial::new(pinned.hold(&state, consensus)));
        let mut watch = OpenWatch {
            watches: Arc::clone(self),
            consensus: consensus.clone(),
            feed,
            registration,
            permission,
            _permit: permit,
            selection,
            has_prev: request.has_prev,
            reader,
            follows_rollouts: request.follows_rollouts,
            has_lost_view: false,
            position,
            events: VecDeque::new(),
            held: None,
            upto: position,
            initial,
            replay: None,
            last_notice: Instant::now(),
            poll_until: None,
            listed: None,
            begun_at: state.revision(),
            is_new: true,
            is_local,
            has_ended: false,
            origin: Origin::current(),
        };
        if watch.initial.is_none() {
            // It has everything up to there.
            watch.note_told();
            // An error of the first read is returned before the watch begins.
            watch.read().await?;
        }
        Ok(watch)
    }

    /// The state at which a watch begins. A client that resumes from another node's state with local consistency may be
    /// ahead of this node. Then the watch waits until this node has applied that revision.
    async fn view_to_watch(&self, mut wanted: Consistency, start: WatchStart) -> Result<Arc<State>, Refusal> {
        let (WatchStart::After(seen), Level::Local { .. }) = (start, wanted.level) else {
            return self.freshness.view(wanted).await;
        };
        let is_behind = seen > self.cx.revision() && wanted.min_revision.is_none_or(|least| least < seen);
        if !is_behind {
            return self.freshness.view(wanted).await;
        }
        wanted.min_revision = Some(seen);
        let text =
            format!("this node has not applied revision {seen} yet; reconnect to another node and resume");
        self.freshness.view(wanted).await.map_err(|_| Refusal::Unavailable(text))
    }
}

/// While there are watches, confirms periodically that this node still follows the cluster.
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

/// The revision after which a watch begins.
fn position_of(start: WatchStart, state: &State) -> Result<Revision, Refusal> {
    let revision = match start {
        WatchStart::Now | WatchStart::InitialState => return Ok(state.revision()),
        WatchStart::After(revision) => revision,
    };
    if revision > state.revision() {
        return Err(Refusal::Expired(format!(
            "revision {revision} is not known here: the cluster is at {}; resync from the current state",
            state.revision()
        )));
    }
    if revision < state.compaction_revision() {
        return Err(expired(revision, state.compaction_revision()));
    }
    // A client may also begin with the first revision after void ones.
    match state.void_at(revision).filter(|void| revision < void.last) {
        None => Ok(revision),
        Some(void) => {
            Err(Refusal::Expired(format!("{}; resync from the current state", skipped(revision, void))))
        }
    }
}

fn expired(position: Revision, compaction_revision: Revision) -> Refusal {
    Refusal::Expired(format!(
        "the changes after revision {position} are compacted, only those after {compaction_revision} are retained; \
         resync from the current state"
    ))
}

fn invalid(parameter: &str, msg: impl Into<String>) -> Refusal {
    Refusal::Invalid(Violation::at(vec!["query".into(), parameter.into()], msg).into())
}

impl OpenWatch {
    /// Where the watch began: the revision of the state, or the requested position.
    #[must_use]
    pub fn position(&self) -> Revision {
        self.position
    }

    /// The id of the cluster whose changes it returns.
    #[must_use]
    pub fn cluster(&self) -> Option<uuid::Uuid> {
        self.watches.cx.cluster_id()
    }

    /// Waits for the next notice. `None` after the end.
    pub async fn next(&mut self) -> Option<Notice> {
        if self.has_ended {
            return None;
        }
        // What it holds and has worked out counts for its client, although the response is sent outside the request.
        let notice = match self.origin.serve(self.wait_redacted()).await {
            Ok(notice) => notice,
            Err(refusal) => self.fail(refusal),
        };
        self.note_told();
        self.last_notice = Instant::now();
        Some(notice)
    }

    /// Runs work that takes longer than about a millisecond in the CPU pool, in the turns of the client.
    ///
    /// # Errors
    /// If it was not done in time.
    pub fn run_long<T, W>(&self, work: W) -> impl Future<Output = Result<T, Refusal>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce() -> T + Send + 'static,
    {
        let cx = Arc::clone(&self.watches.cx);
        self.origin.serve(async move { cx.run_long(work).await })
    }

    /// Ends the watch, and returns its last notice.
    pub fn fail(&mut self, refusal: Refusal) -> Notice {
        self.end(Notice::End(refusal))
    }

    /// The next notice of changes, if it has been read already.
    pub fn try_next(&mut self) -> Option<Notice> {
        // `next` returns the errors.
        if self.has_ended
            || self.initial.is_some()
            || self.selection.is_broken()
            || self.permission.is_to_be_checked()
            || self.selection.scope().is_of_change_requests()
            || self.listed.is_some()
        {
            return None;
        }
        let mut notice = self.next_read(EventLook::OnlyOpen).ok().flatten()?;
        self.name_request(&mut notice);
        self.note_told();
        Some(notice)
    }

    fn end(&mut self, notice: Notice) -> Notice {
        self.has_ended = true;
        notice
    }

    /// This node stops, and the client resumes on another one. Within the initial state it must resync.
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
        self.permission.check(self.selection.scope())?;
        if self.initial.is_some() {
            self.held = None;
            self.held = Some(self.reserve_initial_chunk().await?);
        }
        if let Some(initial) = &mut self.initial {
            let too_late = || {
                Refusal::Unavailable(
                    "the initial state was not read in time; resync from the current state".into(),
                )
            };
            let chunk = initial.next_chunk(&self.selection, self.reader.as_deref()).ok_or_else(too_late)?;
            if let Some(held) = &mut self.held {
                // One large record may exceed the reservation, and most chunks take less.
                held.set(chunk.bytes as u64);
            }
            if chunk.is_last {
                self.initial = None;
                self.is_new = false;
            }
            return Ok(Notice::State(chunk));
        }
        if std::mem::take(&mut self.is_new) {
            // A client that is disconnected before the first change knows where to resume.
            return Ok(Notice::Progress(self.position));
        }
        let heartbeat_due = self.notice_due();
        loop {
            self.permission.check(self.selection.scope())?;
            if let Some(notice) = self.next_read(EventLook::Any)? {
                return Ok(notice);
            }
            let left = self.watches.cx.peers.left.clone();
            if left.is_cancelled() {
                return Err(Refusal::Unavailable("this node was removed from the cluster".into()));
            }
            if stopping.is_cancelled() {
                return Ok(self.stop());
            }
            if self.is_due(heartbeat_due) {
                if !self.is_local && self.watches.hub.unconfirmed() > WATCH_UNCONFIRMED_MAX {
                    return Err(Refusal::Unavailable(
                        "this node is isolated from the quorum; reconnect to another node".into(),
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
                () = self.permission.changed() => {}
                () = sleep_until(heartbeat_due) => {}
                () = stopping.cancelled() => {}
                () = left.cancelled() => {}
            }
        }
    }

    /// When a notice without changes is due.
    fn notice_due(&self) -> Instant {
        self.poll_until.unwrap_or(self.last_notice + self.watches.cx.options.watch_heartbeat)
    }

    /// Reserves the memory of one chunk of the initial state, and waits for it. A slow client holds the chunk until it has
    /// read it.
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

    /// The next event among those read of which the watch returns at least a part. Each one that it comes to is looked at:
    /// the first may be none that the watch returns.
    fn next_read(&mut self, look: EventLook) -> Result<Option<Notice>, Refusal> {
        if let Some(refusal) = self.selection.take_broken() {
            return Err(refusal);
        }
        while let Some(event) = self.events.front() {
            if look == EventLook::OnlyOpen && (self.is_ahead(event) || self.is_to_be_redacted(event)) {
                return Ok(None);
            }
            // A list has no records that would have to be read again.
            if self.listed.is_none() {
                self.check_undeleted(event)?;
            }
            let Some(event) = self.events.pop_front() else { break };
            self.position = event.revision;
            if self.listed.as_ref().is_some_and(|listed| !listed.has(&event)) {
                continue;
            }
            if event.revision.is_multiple_of(64) && concord_model::sabotage::is("watch-skips") {
                continue;
            }
            if let Some(selected) = self.selection.select(&event) {
                return Ok(Some(Notice::Changes(event, selected, RedactedEvent::default())));
            }
            if self.follows_rollouts && self.selection.scope().contains_any_of(&event) {
                let none = Selected::Items(Vec::new());
                return Ok(Some(Notice::Changes(event, none, RedactedEvent::default())));
            }
        }
        self.position = self.position.max(self.upto);
        if self.has_lost_view { Err(self.lost_view()) } else { Ok(None) }
    }

    /// Rejects an event that configs of the scope returned with: they are no items of it, so the client must resync. Its
    /// position stays before the event, and resuming there is rejected as well.
    fn check_undeleted(&self, event: &Event) -> Result<(), Refusal> {
        for item in event.items.iter().filter(|item| self.selection.scope().contains(item)) {
            if let RecordChange::Definition { key, undeleted_configs: Some(1..), .. } = item {
                return Err(Refusal::Expired(format!(
                    "the deletion of definition `{key}` was undone at revision {0}, and its configs returned; resync \
                     from the current state, or resume after revision {0}",
                    event.revision
                )));
            }
        }
        Ok(())
    }

    /// Reads changes after the position. Returns whether to continue at once, without waiting for a change.
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
            let scope = self.selection.scope();
            let replay = Replay::new(&self.consensus, scope, self.position, self.has_prev);
            self.replay = Some(replay.with_rollouts(self.reader.clone(), self.follows_rollouts));
        }
        let Some(replay) = self.replay.take() else { return Ok(true) };
        let start = replay.start();
        let piece = self.read_history(replay).await?;
        let upto = piece.upto;
        if self.replay.is_none() && upto <= start && upto < self.feed.compaction_revision() {
            // The history ends at the position, and the feed begins later.
            return Err(self.gap(&"the following changes are unknown"));
        }
        self.take(piece).await;
        Ok(true)
    }

    /// Takes the events, if the memory budget has room for them: a slow client holds them until it has read them.
    /// Otherwise drops them and pauses; the watch then reads again from the same position.
    async fn take(&mut self, piece: EventPage) {
        let piece = self.as_seen(piece);
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
        let cx = &self.watches.cx;
        // In turns with the work of other clients: one that resumes thousands of watches delays its own.
        let read = cx.cpu_pool.run(Weight::Short, cx.read_deadline(), move |_| replay.read()).await?;
        let (piece, rest) = read.map_err(|error| match error {
            HistoryError::Compacted { compaction_revision } => expired(self.position, compaction_revision),
            HistoryError::Gap { .. } | HistoryError::Failed(_) => self.gap(&error),
        })?;
        self.replay = rest;
        Ok(piece)
    }

    /// The rejection when this node lacks changes that another node may have.
    fn gap(&self, why: &dyn Display) -> Refusal {
        tracing::debug!("a watch after revision {} ends: {why}", self.position);
        Refusal::Unavailable(format!(
            "this node does not have the changes after revision {}; reconnect to another node and resume",
            self.position
        ))
    }
}
