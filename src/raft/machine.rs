//! Applies what was agreed on.
//!
//! openraft hands over a stream of committed entries. They are taken in runs: each entry is decided by
//! [`State::apply`], the new state is published with one pointer swap, the applied index is announced, the
//! proposers are answered, and the changes go to the store's thread. One swap for many entries, and nobody is
//! answered before the state that holds his write can be read.
//!
//! **Invariants**
//! 1. Applying never waits for a disk: openraft's core stops behind 1024 entries that were not taken.
//! 2. Every responder is answered. Entries without a proposal advance the state and are announced too, or the
//!    first read of a new term would hang.
//! 3. A panic while applying is a failure of the node, not of an entry: it stops, and nothing of it is published.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use futures::{Stream, StreamExt};
use openraft::{
    EntryPayload, RaftSnapshotBuilder,
    storage::{ApplyResponder, EntryResponder, RaftStateMachine},
};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    applied_waiters::Turns,
    divergence::Digests,
    log::Log,
    types::{Entry, Kind, LogId, Reply, Snapshot, SnapshotMeta, StoredMembership},
    wire::{self, Id, Stamp},
};
use crate::{
    feed::{self, Feed},
    model::{command::Proposal, record::Revision},
    peer::NodeId,
    state::{Change, Edit, State},
    store::{Batch, Position, SnapshotFile, Store},
};

/// Entries that are applied before their state is published: some 100 µs of work.
const RUN_ENTRIES_MAX: usize = 256;

/// What was applied last, as one picture.
#[derive(Debug)]
pub(super) struct Applied {
    pub(super) state: Arc<State>,
    pub(super) last: Option<LogId>,
    pub(super) membership: StoredMembership,
    /// The greatest id that any member has had.
    pub(super) greatest_id: NodeId,
}

impl Applied {
    /// Where the state stands in the log, in the store's words.
    pub(super) fn position(&self) -> Position {
        let index = self.last.map_or(0, |id| id.index);
        let stamp = Stamp::new(self.last, &self.membership, self.greatest_id);
        Position { index, raft_meta: wire::to_bytes(&stamp) }
    }

    /// Whether a node was a member, or could have been, and never will be again: ids ascend. What is true once
    /// stays true, so a node that lags may say it too.
    pub(super) fn has_left(&self, id: NodeId) -> bool {
        id <= self.greatest_id && self.membership.membership().get_node(&id).is_none()
    }
}

/// What the machine shows to the rest of the node.
#[derive(Debug)]
pub(super) struct AppliedPublisher {
    pub(super) applied: ArcSwap<Applied>,
    /// Those who wait for a revision.
    pub(super) turns: Turns,
    /// For those who follow every one.
    pub(super) index: watch::Sender<Revision>,
    /// Set once, when applying has failed.
    pub(super) failure: watch::Sender<Option<String>>,
    /// Bytes of proposals applied since the process started.
    pub(super) bytes: AtomicU64,
    /// What the other members' states are compared with.
    pub(super) digests: Digests,
    /// The recent changes, for watchers.
    pub(super) feed: Arc<Feed>,
}

/// openraft's state machine.
#[derive(Debug)]
pub(super) struct Machine {
    state: State,
    last: Option<LogId>,
    membership: StoredMembership,
    greatest_id: NodeId,
    publisher: Arc<AppliedPublisher>,
    store: Store,
    log: Log,
    /// Tells, when openraft drops the machine, that nothing is applied any more.
    going: DropGuard,
}

impl Machine {
    /// A machine that stands where the store does.
    pub(super) fn new(state: State, position: &Position, store: Store, log: Log) -> io::Result<Self> {
        let stamp = Stamp::decode(&position.raft_meta).map_err(io::Error::other)?;
        let greatest_id = stamp.greatest_id();
        let (last, membership) = stamp.parts().map_err(io::Error::other)?;
        let applied =
            Applied { state: Arc::new(state.clone()), last, membership: membership.clone(), greatest_id };
        let publisher = Arc::new(AppliedPublisher {
            applied: ArcSwap::from_pointee(applied),
            turns: Turns::from(state.revision()),
            index: watch::Sender::new(state.revision()),
            failure: watch::Sender::new(None),
            bytes: AtomicU64::new(0),
            digests: Digests::default(),
            feed: Arc::new(Feed::new(state.revision())),
        });
        let going = CancellationToken::new().drop_guard();
        Ok(Self { state, last, membership, greatest_id, publisher, store, log, going })
    }

    pub(super) fn publisher(&self) -> Arc<AppliedPublisher> {
        Arc::clone(&self.publisher)
    }

    /// Cancelled once the machine is gone.
    pub(super) fn gone(&self) -> CancellationToken {
        self.going.token().clone()
    }

    /// Decides one entry.
    fn decide(&mut self, entry: Entry, changes: &mut Vec<Arc<Change>>) -> Result<Reply, String> {
        let revision = entry.log_id.index;
        let verdict = match entry.payload {
            EntryPayload::Normal(data) => {
                let proposal = Proposal::from_bytes(&data.0)
                    .map_err(|error| format!("entry {revision} can't be applied: it is {error}"))?;
                let length = u64::try_from(data.0.len()).unwrap_or(u64::MAX);
                self.publisher.bytes.fetch_add(length, Ordering::Relaxed);
                #[cfg(feature = "sabotage")]
                let proposal = crate::sabotage::damaged(revision, proposal);
                #[cfg(feature = "sabotage")]
                let proposal = if crate::sabotage::is("clock-in-apply") {
                    Proposal { at: crate::sabotage::clock(), ..proposal }
                } else {
                    proposal
                };
                let (verdict, change) = self.state.apply(revision, &proposal);
                changes.extend(change.map(Arc::new));
                Some(verdict)
            }
            EntryPayload::Blank => {
                self.advance(revision);
                None
            }
            EntryPayload::Membership(members) => {
                self.greatest_id = members.nodes().map(|(id, _)| *id).fold(self.greatest_id, NodeId::max);
                self.membership = StoredMembership::new(Some(entry.log_id), members);
                self.advance(revision);
                None
            }
        };
        self.last = Some(entry.log_id);
        self.publisher.digests.note(&self.state);
        Ok(Reply(verdict))
    }

    /// The first entry of a cluster has index 0, which is the revision of the empty state already.
    fn advance(&mut self, revision: Revision) {
        if revision > self.state.revision() {
            self.state.advance(revision);
        }
    }

    /// Decides a run of entries, then publishes, announces, answers and hands on, in this order.
    fn run(&mut self, entries: Vec<EntryResponder<Kind>>) -> Result<(), String> {
        let mut changes = Vec::new();
        let mut answers: Vec<(Option<ApplyResponder<Kind>>, Reply)> = Vec::with_capacity(entries.len());
        for (entry, responder) in entries {
            let reply = self.decide(entry, &mut changes)?;
            answers.push((responder, reply));
        }
        let events = feed::events(&changes, &self.state);
        // Before the announcement, which wakes those who read it.
        self.publisher.feed.publish(events, self.state.revision(), self.store.figures().history);
        let position =
            self.publish(changes.iter().flat_map(|change| &change.edits).any(Edit::is_costly_to_free));
        for (responder, reply) in answers {
            if let Some(responder) = responder {
                responder.send(reply);
            }
        }
        self.store.enqueue(Batch { state: self.state.clone(), position, changes });
        Ok(())
    }

    fn publish(&self, frees_much: bool) -> Position {
        let state = Arc::new(self.state.clone());
        let (last, membership) = (self.last, self.membership.clone());
        let applied = Applied { state, last, membership, greatest_id: self.greatest_id };
        let position = applied.position();
        let before = self.publisher.applied.swap(Arc::new(applied));
        let revision = self.state.revision();
        self.publisher.turns.reach(revision);
        self.publisher.index.send_replace(revision);
        if frees_much {
            // The old state may be the last to hold a million records.
            drop(tokio::task::spawn_blocking(move || drop(before)));
        }
        position
    }

    fn fail(&self, why: String) -> io::Error {
        tracing::error!(%why, "applying has failed");
        self.publisher.failure.send_if_modified(|failure| {
            let first = failure.is_none();
            if first {
                *failure = Some(why.clone());
            }
            first
        });
        io::Error::other(why)
    }
}

impl RaftStateMachine<Kind> for Machine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok((self.last, self.membership.clone()))
    }

    async fn apply<S>(&mut self, entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Kind>>> + Unpin + Send,
    {
        let mut runs = entries.ready_chunks(RUN_ENTRIES_MAX);
        while let Some(run) = runs.next().await {
            let run = run.into_iter().collect::<io::Result<Vec<_>>>()?;
            // After a panic the working state may be torn, but it was not published and the node ends.
            let result = catch_unwind(AssertUnwindSafe(|| self.run(run)));
            match result {
                Ok(Ok(())) => {}
                Ok(Err(why)) => return Err(self.fail(why)),
                Err(panic) => return Err(self.fail(format!("panicked while applying: {}", text_of(&*panic)))),
            }
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<Builder> {
        if !force && self.store.current_snapshot().is_none() {
            return None;
        }
        Some(Builder { publisher: self.publisher(), store: self.store.clone(), fresh: force })
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder { publisher: self.publisher(), store: self.store.clone(), fresh: true }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, file: SnapshotFile) -> io::Result<()> {
        if self.last >= meta.last_log_id && self.last.is_some() {
            return Ok(());
        }
        let (store, log) = (self.store.clone(), self.log.clone());
        // From here the state may be ahead of the log, and the log says so, should the power fail between.
        log.set_installing(meta.last_log_id.map(Id::from)).await?;
        let installed = tokio::task::spawn_blocking(move || install(&store, &file)).await;
        let (state, file) = installed.map_err(io::Error::other)?.map_err(|error| self.fail(error))?;
        let stamp = Stamp::decode(&file.position.raft_meta);
        let greatest_id = stamp.as_ref().map_or(0, Stamp::greatest_id);
        let (last, membership) = stamp
            .and_then(Stamp::parts)
            .map_err(|error| self.fail(format!("the snapshot's stamp: {error}")))?;
        self.state = state;
        self.last = last;
        self.membership = membership;
        self.greatest_id = self.greatest_id.max(greatest_id);
        self.publisher.feed.reset(self.state.revision());
        self.publish(true);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        self.store.current_snapshot().map(snapshot_of).transpose()
    }
}

/// Adopts a snapshot. One that is the store's own is copied first: adopting takes the file away. Blocking.
fn install(store: &Store, file: &SnapshotFile) -> Result<(State, SnapshotFile), String> {
    let own = store.current_snapshot().is_some_and(|own| own.path == file.path);
    let path = if own {
        let copy = store.incoming().map_err(|error| error.to_string())?;
        std::fs::copy(&file.path, &copy)
            .and_then(|_| std::fs::File::open(&copy)?.sync_all())
            .map_err(|error| format!("{}: {error}", copy.display()))?;
        copy
    } else {
        file.path.clone()
    };
    store.install(&path).map_err(|error| error.to_string())
}

/// A snapshot file in openraft's words.
pub(super) fn snapshot_of(file: SnapshotFile) -> io::Result<Snapshot> {
    let (last_log_id, last_membership) =
        Stamp::decode(&file.position.raft_meta).and_then(Stamp::parts).map_err(io::Error::other)?;
    Ok(Snapshot { meta: SnapshotMeta { last_log_id, last_membership }, snapshot: file })
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

/// Tells openraft of the newest snapshot. While the node runs, `snapshot.rs` has built it: here its failure would
/// be fatal. Only at start, when the log is purged and there is none, does openraft insist on one.
#[derive(Debug)]
pub(super) struct Builder {
    publisher: Arc<AppliedPublisher>,
    store: Store,
    /// Whether it must hold all that is applied now.
    fresh: bool,
}

impl RaftSnapshotBuilder<Kind> for Builder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let applied = self.publisher.applied.load_full();
        let wanted = if self.fresh { applied.last.map_or(0, |id| id.index) } else { 0 };
        if let Some(file) = self.store.current_snapshot().filter(|file| file.position.index >= wanted) {
            return snapshot_of(file);
        }
        let store = self.store.clone();
        let build = move || store.build_snapshot(&applied.state, &applied.position());
        let file = tokio::task::spawn_blocking(build).await.map_err(io::Error::other)?;
        snapshot_of(file.map_err(io::Error::other)?)
    }
}
