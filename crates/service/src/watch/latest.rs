//! Lists the latest changes, newest first: of everything that the client may read, or of a part of it.
//!
//! The history is stored oldest first. So a list reads it in windows, from the newest back, each as a watch that begins
//! there and ends with it: a list shows what the watch would have shown, to the same clients. A window that holds more
//! than the page has room for keeps its newest changes. Windows grow while they are read quickly, because the changes of
//! one definition may be far apart.
//!
//! A page examines a limited number of revisions, for a limited time. So it may have few changes, or none, although there
//! are older ones: it names the revision to go on before.
//!
//! **Invariant:** a page has every requested change between the revision that it goes on before and the one before which
//! it was requested, as far as the history is retained.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Notice, OpenWatch, PolledEvent, WatchRequest, WatchStart, Watches, scope::WatchScope};
use crate::{
    Consistency, Level, Principal, Refusal, Reservation, Share, authors::AuthorFilter, run_blocking,
};
use concord_model::{limits::POLL_BYTES_MAX, record::Revision, time::Timestamp};
use concord_state::{State, feed::Event};

/// Revisions of the first window.
const WINDOW_MIN: u64 = 256;
/// Revisions of the largest window: some ten milliseconds of a blocking thread.
const WINDOW_MAX: u64 = 16 << 10;
/// Windows grow while one takes less time than this.
const QUICK: Duration = Duration::from_millis(50);
/// Revisions that a page examines at most.
const EXAMINED_MAX: u64 = 128 << 10;

/// Which changes a list has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedChanges {
    /// Only those of this author: the id or the name of an access key, or the label of its person.
    pub by: Option<String>,
    /// Only those from this time on.
    pub since: Option<Timestamp>,
}

/// Which changes a list has, for the client that has asked for it.
#[derive(Debug, Clone)]
pub(super) struct ChangesFilter {
    by: Option<Arc<AuthorFilter>>,
    since: Option<Timestamp>,
}

impl ChangesFilter {
    pub(super) fn has(&self, event: &Event) -> bool {
        self.by.as_ref().is_none_or(|by| by.has(event)) && self.since.is_none_or(|since| event.at >= since)
    }
}

/// A list of the latest changes as a client requests it.
#[derive(Debug, Clone)]
pub struct LatestRequest {
    /// Keys of definitions, and patterns of keys. Empty for all.
    pub definitions: Vec<String>,
    /// Keys of configs of the one definition. Empty for all.
    pub configs: Vec<String>,
    /// Whether changes have the previous values of configs.
    pub has_prev: bool,
    /// How fresh the list must be.
    pub consistency: Consistency,
    /// Only changes before this revision; all if `None`.
    pub before: Option<Revision>,
    /// The number of revisions at most.
    pub limit: usize,
    /// Which changes it has.
    pub listed: ListedChanges,
}

/// A page of the latest changes.
#[derive(Debug)]
pub struct LatestChanges {
    /// The changes, newest first.
    pub events: Vec<PolledEvent>,
    /// The revision before which older changes may be; `None` if there are none.
    pub next_before: Option<Revision>,
    /// The revision of the state that the page belongs to.
    pub revision: Revision,
    /// Changes up to (and including) this revision are compacted.
    pub compaction_revision: Revision,
    /// The id of the cluster.
    pub cluster: Option<uuid::Uuid>,
    /// The memory that the changes hold.
    held: Reservation,
}

/// Revisions after one, up to (and including) another.
#[derive(Debug, Clone, Copy)]
struct ChangesWindow {
    after: Revision,
    upto: Revision,
}

/// The newest changes of a window, oldest first.
#[derive(Debug)]
struct NewestChanges {
    events: VecDeque<PolledEvent>,
    bytes: usize,
    /// How many have room, and their bytes.
    events_max: usize,
    bytes_max: usize,
    /// Whether one change has room whatever its size.
    takes_any: bool,
    /// The newest revision that had no room.
    dropped: Option<Revision>,
}

impl NewestChanges {
    fn add(&mut self, event: PolledEvent, has_prev: bool) {
        self.bytes += bytes_of(&event.0, has_prev);
        self.events.push_back(event);
        let has_room = |this: &Self| {
            let is_small = this.bytes <= this.bytes_max || (this.takes_any && this.events.len() == 1);
            this.events.len() <= this.events_max && is_small
        };
        while !has_room(self)
            && let Some((event, ..)) = self.events.pop_front()
        {
            self.bytes -= bytes_of(&event, has_prev);
            self.dropped = Some(event.revision);
        }
    }
}

fn bytes_of(event: &Event, has_prev: bool) -> usize {
    event.bytes() + if has_prev { event.bytes_before() } else { 0 }
}

impl Watches {
    /// Lists the latest changes.
    ///
    /// # Errors
    /// Those of [`Self::watch`], except that an undone deletion is a change like any other; when not even one window was
    /// read in time.
    pub async fn latest(
        self: &Arc<Self>,
        principal: Principal,
        request: LatestRequest,
    ) -> Result<LatestChanges, Refusal> {
        WatchScope::of(&principal, &request.definitions, &request.configs)?.authorize(&principal)?;
        let deadline = self.cx.read_deadline();
        let state = self.freshness.view(request.consistency).await?;
        let mut oldest = self.oldest(&state, &request.listed).await?;
        let by = request.listed.by.as_ref();
        let by = by.map(|by| Arc::new(AuthorFilter::new(&state, &principal, by)));
        let filter = ChangesFilter { by, since: request.listed.since };
        let mut page = LatestChanges {
            events: Vec::new(),
            next_before: None,
            revision: state.revision(),
            compaction_revision: state.compaction_revision(),
            cluster: self.cx.cluster_id(),
            held: self.cx.memory_budget.reserve(Share::Callers, POLL_BYTES_MAX as u64)?,
        };
        let last = request.before.map_or(Revision::MAX, |before| before.saturating_sub(1));
        let (mut upto, mut width, mut examined, mut bytes) = (last.min(state.revision()), WINDOW_MIN, 0, 0);
        while upto > oldest {
            page.next_before = Some(upto.saturating_add(1));
            let is_late = examined > 0 && Instant::now() >= deadline;
            if page.events.len() >= request.limit || examined >= EXAMINED_MAX || is_late {
                break;
            }
            if let Some(void) = state.void_at(upto) {
                upto = void.first.saturating_sub(1);
                page.next_before = None;
                continue;
            }
            let after = upto.saturating_sub(width).max(oldest);
            let after = state.void_at(after).map_or(after, |void| void.last);
            let mut newest = NewestChanges {
                events: VecDeque::new(),
                bytes: 0,
                events_max: request.limit - page.events.len(),
                bytes_max: POLL_BYTES_MAX.saturating_sub(bytes),
                takes_any: page.events.is_empty(),
                dropped: None,
            };
            let begun = Instant::now();
            let window = ChangesWindow { after, upto };
            match self.read_window(&principal, (&request, &filter), window, &mut newest).await {
                Ok(true) => {}
                Ok(false) if examined == 0 => return Err(Refusal::Overloaded),
                // The next page begins with this window.
                Ok(false) => break,
                Err(Refusal::Expired(why)) => {
                    // The oldest changes may have been compacted meanwhile.
                    let compacted = self.cx.consensus_or_refusal()?.state().compaction_revision();
                    if compacted <= oldest {
                        return Err(Refusal::Expired(why));
                    }
                    (oldest, page.compaction_revision, page.next_before) = (compacted, compacted, None);
                    continue;
                }
                Err(error) => return Err(error),
            }
            bytes += newest.bytes;
            page.held.set(bytes.max(POLL_BYTES_MAX) as u64);
            page.events.extend(newest.events.into_iter().rev());
            page.next_before = newest.dropped.map(|dropped| dropped.saturating_add(1));
            if page.next_before.is_some() {
                break;
            }
            examined += upto - after;
            upto = after;
            if begun.elapsed() < QUICK {
                width = (width * 4).min(WINDOW_MAX);
            }
        }
        page.held.set(bytes as u64);
        Ok(page)
    }

    /// The revision after which the list begins.
    async fn oldest(&self, state: &State, listed: &ListedChanges) -> Result<Revision, Refusal> {
        let Some(since) = listed.since else { return Ok(state.compaction_revision()) };
        let store = self.cx.consensus_or_refusal()?.store().clone();
        let earlier = Timestamp(since.0.saturating_sub(1));
        let found = run_blocking(move || store.history().last_revision_at(earlier)).await?;
        let found =
            found.map_err(|error| Refusal::Unavailable(format!("the history can't be read: {error}")))?;
        Ok(found.max(state.compaction_revision()))
    }

    /// Reads the changes of a window. False if the time was over before its end.
    async fn read_window(
        self: &Arc<Self>,
        principal: &Principal,
        (request, filter): (&LatestRequest, &ChangesFilter),
        window: ChangesWindow,
        newest: &mut NewestChanges,
    ) -> Result<bool, Refusal> {
        let wanted = WatchRequest {
            of_change_requests: false,
            definitions: request.definitions.clone(),
            configs: request.configs.clone(),
            filters: Vec::new(),
            has_prev: request.has_prev,
            start: WatchStart::After(window.after),
            // This node has applied the state of the list.
            consistency: Consistency { level: Level::Local { max_staleness: None }, min_revision: None },
            reader: None,
        };
        let mut watch = self.watch(principal.clone(), wanted).await?;
        watch.list(filter.clone(), window.upto);
        while let Some(notice) = watch.next().await {
            match notice {
                Notice::Changes(event, ..) if event.revision > window.upto => return Ok(true),
                Notice::Changes(event, selected, redacted) => {
                    newest.add((event, selected, redacted), request.has_prev);
                }
                Notice::Progress(revision) => return Ok(revision >= window.upto),
                Notice::End(refusal) => return Err(refusal),
                Notice::State(_) => {
                    return Err(Refusal::Internal("a list does not begin with the initial state".into()));
                }
            }
        }
        Ok(false)
    }
}

impl OpenWatch {
    /// Makes it a list of the changes up to a revision.
    fn list(&mut self, listed: ChangesFilter, upto: Revision) {
        self.is_new = false;
        self.begun_at = upto;
        self.listed = Some(listed);
        self.poll_until = Some(Instant::now());
    }
}
