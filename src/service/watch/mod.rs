//! Watches: the changes as they come, in order, each once, from any revision that is kept.
//!
//! A watch is a position and nothing that could overflow: it reads what lies behind the position from the feed of
//! recent changes, and what is older from the history. Any node can go on where another has stopped, because a
//! position is a revision and revisions are the same everywhere.
//!
//! | file | what it does |
//! |---|---|
//! | `hub` | who is woken by which change |
//! | `selection` | which changes a watcher is told |
//! | `past` | older changes, from the history |
//! | `initial` | the state that a watcher may begin with |
//!
//! **Invariants:** the position only grows, and everything that is asked for up to it has been handed out. Where this
//! node lacks a part, or has lost the cluster, the watch ends with a refusal that sends the watcher elsewhere; nothing
//! is passed over, and silence is never taken for quiet.

mod filter;
mod hub;
mod initial;
mod replay;

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

pub use filter::Picked;
pub use hub::Hub;
pub use initial::Part;

use super::{Consistency, Level, Refusal, Service};
use crate::{
    feed::{Event, Feed},
    model::{error::Violation, key::Key, limits::WATCH_KEYS_MAX, record::Revision},
    raft::Consensus,
    store::HistoryError,
};
use filter::{NO_DEFINITION, Scope, Selection};
use hub::Place;
use initial::Initial;
use replay::Past;

/// How often a node with watches makes sure that it follows the cluster: one read index for all of them.
const CONFIRM_PERIOD: Duration = Duration::from_secs(10);
/// How long a node that has lost the cluster keeps its watches: long enough for elections, short enough that a
/// watcher does not take its silence for quiet.
const UNCONFIRMED_MAX: Duration = Duration::from_secs(30);

/// Where a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// Behind the state that the request was accepted at.
    Now,
    /// With that state itself.
    State,
    /// Behind a revision.
    Behind(Revision),
}

/// A watch as it is asked.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Keys of definitions; none for all.
    pub definitions: Vec<String>,
    /// Keys of configs of the one definition; none for all.
    pub configs: Vec<String>,
    /// The parameters that filter, as a list of configs takes them.
    pub filters: Vec<(String, String)>,
    /// Where it begins.
    pub begin: Begin,
    /// How fresh the state must be that it is accepted at.
    pub consistency: Consistency,
}

/// What a watcher is told.
#[derive(Debug)]
pub enum Notice {
    /// A part of the state that it begins with.
    State(Part),
    /// What of an event concerns it.
    Changes(Arc<Event>, Picked),
    /// It has been told everything up to here.
    Progress(Revision),
    /// The watch ends, and why.
    End(Refusal),
}

/// An open watch.
#[derive(Debug)]
pub struct Watch {
    service: Service,
    consensus: Consensus,
    feed: Arc<Feed>,
    place: Place,
    _permit: OwnedSemaphorePermit,
    selection: Selection,
    /// Everything up to here was handed out.
    seen: Revision,
    /// What comes next, and the position behind it.
    events: VecDeque<Arc<Event>>,
    upto: Revision,
    initial: Option<Initial>,
    past: Option<Past>,
    /// When it was last handed something.
    told: Instant,
    is_new: bool,
    /// Its caller takes what this node has, however old.
    is_local: bool,
    has_ended: bool,
}

impl Service {
    /// Opens a watch.
    ///
    /// # Errors
    /// When it asks for what is not kept any more, or not on this node; when something is wrong with it; when this
    /// node has as many as it may.
    pub async fn watch(&self, wanted: Wanted) -> Result<Watch, Refusal> {
        let scope = scope(&wanted.definitions, &wanted.configs)?;
        let hub = &self.inner.hub;
        let permit = Arc::clone(&hub.places).try_acquire_owned().map_err(|_| {
            Refusal::LimitReached(format!("this node has {} watches open, as many as it may", hub.most()))
        })?;
        let asked = Instant::now();
        let state = self.view(wanted.consistency).await?;
        let consensus = self.consensus_or_refusal()?;
        if self.inner.stopping.is_cancelled() {
            return Err(Refusal::Unavailable("this node is stopping".into()));
        }
        let selection = Selection::new(scope, wanted.filters, &state, self.limits())?;
        let feed = consensus.feed();
        if hub.run(Arc::clone(&feed), consensus.revisions()) {
            drop(tokio::spawn(attend(Arc::downgrade(&self.inner), self.inner.stopping.clone())));
        }
        let is_local = matches!(wanted.consistency.level, Level::Local { .. });
        if !is_local {
            hub.confirm(asked);
        }
        let place = hub.register(selection.scope().topics());
        let seen = match wanted.begin {
            Begin::Now | Begin::State => state.revision(),
            Begin::Behind(revision) if revision > state.revision() => {
                return Err(Refusal::Expired(format!(
                    "revision {revision} is not known here: the cluster is at {}; begin anew",
                    state.revision()
                )));
            }
            Begin::Behind(revision) if revision < state.compaction_revision() => {
                return Err(expired(revision, state.compaction_revision()));
            }
            Begin::Behind(revision) => revision,
        };
        let mut watch = Watch {
            service: self.clone(),
            consensus: consensus.clone(),
            feed,
            place,
            _permit: permit,
            selection,
            seen,
            events: VecDeque::new(),
            upto: seen,
            initial: (wanted.begin == Begin::State).then(|| Initial::new(state)),
            past: None,
            told: Instant::now(),
            is_new: true,
            is_local,
            has_ended: false,
        };
        if watch.initial.is_none() {
            // What can't be read is told before the watch begins.
            watch.read().await?;
        }
        Ok(watch)
    }
}

/// Asks from time to time whether this node still follows the cluster, while there is a watch.
async fn attend(inner: Weak<super::Inner>, stopping: CancellationToken) {
    loop {
        let Some(service) = inner.upgrade().map(|inner| Service { inner }) else { return };
        let (hub, asked) = (&service.inner.hub, Instant::now());
        let is_confirmed = match service.consensus() {
            Some(consensus) if hub.is_used() => {
                matches!(timeout(CONFIRM_PERIOD, service.confirm(consensus)).await, Ok(Ok(())))
            }
            Some(_) | None => true,
        };
        if is_confirmed {
            hub.confirm(asked);
        }
        drop(service);
        tokio::select! {
            () = sleep(CONFIRM_PERIOD) => {}
            () = stopping.cancelled() => return,
        }
    }
}

fn expired(seen: Revision, compaction_revision: Revision) -> Refusal {
    Refusal::Expired(format!(
        "the changes behind revision {seen} are not kept any more, only those behind {compaction_revision}; begin anew"
    ))
}

pub(super) fn fault(name: &str, msg: impl Into<String>) -> Violation {
    Violation::at(vec!["query".into(), name.into()], msg)
}

/// The keys that are asked for.
fn scope(definitions: &[String], configs: &[String]) -> Result<Scope, Refusal> {
    let keys = |name: &str, texts: &[String]| {
        if texts.len() > WATCH_KEYS_MAX {
            return Err(fault(name, format!("a watch names at most {WATCH_KEYS_MAX} keys")));
        }
        let key = |text: &String| Key::parse(text).map_err(|error| fault(name, error.to_string()));
        texts.iter().map(key).collect::<Result<std::collections::BTreeSet<Key>, _>>()
    };
    let wrong = |fault: Violation| Refusal::Invalid(fault.into());
    let (mut definitions, configs) =
        (keys("definition", definitions).map_err(wrong)?, keys("config_key", configs).map_err(wrong)?);
    match (definitions.len(), configs.is_empty()) {
        (0, true) => Ok(Scope::All),
        (_, true) => Ok(Scope::Definitions(definitions)),
        (1, false) => {
            let definition =
                definitions.pop_first().ok_or_else(|| wrong(fault("definition", NO_DEFINITION)))?;
            Ok(Scope::Configs(definition, configs))
        }
        (_, false) => Err(wrong(fault("definition", NO_DEFINITION))),
    }
}

impl Watch {
    /// Where it began: the state's revision, or the position that was asked for.
    #[must_use]
    pub fn position(&self) -> Revision {
        self.seen
    }

    /// The next thing to tell; waits for it. `None` behind the end.
    pub async fn next(&mut self) -> Option<Notice> {
        if self.has_ended {
            return None;
        }
        let notice = match self.find().await {
            Ok(notice) => notice,
            Err(refusal) => self.end(Notice::End(refusal)),
        };
        self.told = Instant::now();
        Some(notice)
    }

    /// The next thing to tell, if it lies ready.
    pub fn at_hand(&mut self) -> Option<Notice> {
        // A refusal is told when the next thing is waited for.
        if self.has_ended || self.initial.is_some() || self.selection.is_broken() {
            return None;
        }
        self.hand_out().ok().flatten()
    }

    fn end(&mut self, notice: Notice) -> Notice {
        self.has_ended = true;
        notice
    }

    /// The watcher goes on at another node; before the whole state was told it begins anew there.
    fn stop(&mut self) -> Notice {
        let notice = match self.initial {
            Some(_) => Notice::End(Refusal::Unavailable("this node is stopping".into())),
            None => Notice::Progress(self.seen),
        };
        self.end(notice)
    }

    async fn find(&mut self) -> Result<Notice, Refusal> {
        let stopping = self.service.inner.stopping.clone();
        if stopping.is_cancelled() {
            return Ok(self.stop());
        }
        if let Some(initial) = &mut self.initial {
            let late = || Refusal::Unavailable("the state was not read in time; begin anew".into());
            let part = initial.part(&self.selection).ok_or_else(late)?;
            if part.is_last {
                self.initial = None;
                self.is_new = false;
            }
            return Ok(Notice::State(part));
        }
        if std::mem::take(&mut self.is_new) {
            // So that a watcher who is cut off before the first change knows where he stood.
            return Ok(Notice::Progress(self.seen));
        }
        let beat = self.told + self.service.inner.options.watch_heartbeat;
        loop {
            if let Some(notice) = self.hand_out()? {
                return Ok(notice);
            }
            let left = self.service.inner.peers.left.clone();
            if left.is_cancelled() {
                return Err(Refusal::Unavailable("this node was taken out of the cluster".into()));
            }
            if stopping.is_cancelled() {
                return Ok(self.stop());
            }
            if Instant::now() >= beat {
                if !self.is_local && self.service.inner.hub.unconfirmed() > UNCONFIRMED_MAX {
                    return Err(Refusal::Unavailable(
                        "this node has lost the cluster; go on at another".into(),
                    ));
                }
                return Ok(Notice::Progress(self.seen));
            }
            if self.read().await? {
                tokio::task::yield_now().await;
                continue;
            }
            tokio::select! {
                () = self.place.notify.notified() => {}
                () = tokio::time::sleep_until(beat) => {}
                () = stopping.cancelled() => {}
                () = left.cancelled() => {}
            }
        }
    }

    /// The next of the events that were read which concerns the watcher.
    fn hand_out(&mut self) -> Result<Option<Notice>, Refusal> {
        if let Some(refusal) = self.selection.broken() {
            return Err(refusal);
        }
        while let Some(event) = self.events.pop_front() {
            self.seen = event.revision;
            if event.revision.is_multiple_of(64) && crate::sabotage::is("watch-skips") {
                continue;
            }
            if let Some(picked) = self.selection.pick(&event) {
                return Ok(Some(Notice::Changes(event, picked)));
            }
        }
        self.seen = self.seen.max(self.upto);
        Ok(None)
    }

    /// Reads what lies behind the position; whether it is worth while to go on at once.
    async fn read(&mut self) -> Result<bool, Refusal> {
        if self.past.is_none() {
            if let Some(piece) = self.place.read(&self.feed, self.seen) {
                let goes_on = !piece.events.is_empty();
                self.events = piece.events.into();
                self.upto = piece.upto;
                if !goes_on {
                    self.seen = self.seen.max(self.upto);
                }
                return Ok(goes_on);
            }
            self.past = Some(Past::new(&self.consensus, self.selection.scope(), self.seen));
        }
        let Some(past) = self.past.take() else { return Ok(true) };
        let begin = past.begin();
        let piece = self.read_past(past).await?;
        self.events = piece.events.into();
        self.upto = piece.upto;
        if self.past.is_none() && self.upto <= begin && self.upto < self.feed.compaction_revision() {
            // The history ends where the watch stands, and the feed begins behind it.
            return Err(self.gap(&"nothing is known of what followed"));
        }
        Ok(true)
    }

    async fn read_past(&mut self, past: Past) -> Result<crate::feed::Piece, Refusal> {
        let closed = |_| Refusal::Internal("the readers of the history are never closed".into());
        let reader = self.service.inner.hub.readers.acquire().await.map_err(closed)?;
        let read = tokio::task::spawn_blocking(move || past.read()).await;
        drop(reader);
        let read = read.map_err(|error| Refusal::Internal(format!("reading the history: {error}")))?;
        let found = read.map_err(|error| match error {
            HistoryError::Compacted { compaction_revision } => expired(self.seen, compaction_revision),
            HistoryError::Gap { .. } | HistoryError::Failed(_) => self.gap(&error),
        })?;
        self.past = found.rest;
        Ok(found.piece)
    }

    /// Another node may have what this one lacks.
    fn gap(&self, why: &dyn std::fmt::Display) -> Refusal {
        tracing::debug!("a watch behind revision {} ends: {why}", self.seen);
        Refusal::Unavailable(format!(
            "this node does not have the changes behind revision {}; go on at another",
            self.seen
        ))
    }
}
