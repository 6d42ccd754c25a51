//! openraft's state machine: applies committed entries.
//!
//! openraft passes a stream of committed entries. They are applied in batches: [`State::apply`] decides each of their
//! proposals, then one pointer swap publishes the new state, the waiters for its revision are woken, the proposers get
//! their responses, and the changes go to the store's thread. One swap serves many proposals, and no proposer has its
//! response before the state that holds its write can be read.
//!
//! **Invariants**
//! 1. Applying never waits for a disk: openraft's core stops when 1024 entries are waiting to be applied. Nor does it keep
//!    the core from its thread for long.
//! 2. Every responder gets a response. Entries without a proposal advance the revision and are announced too:
//!    otherwise the first read of a new term would never return.
//! 3. A panic while applying is a failure of the node, not of an entry: the node stops, and nothing of the batch is
//!    published.
//! 4. The revision is the state's own count and follows from the log alone: an entry raises it by the number of its
//!    proposals, one without proposals by one, and only the log's first entry does not. The entry by which a recovered
//!    cluster skips revisions raises it by more (`recover`). The entry's index is a place in the log and no revision.
//! 5. Only states between two entries are published: nobody sees a part of an entry applied.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use arc_swap::ArcSwap;
use futures::{Stream, StreamExt};
use openraft::{
    EntryPayload, RaftSnapshotBuilder,
    storage::{ApplyResponder, EntryResponder, RaftStateMachine},
};
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::watch,
    task::block_in_place,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    applied_waiters::AppliedWaiters,
    blocking::{blocking, drop_elsewhere},
    directory_format::DirectoryFormat,
    divergence::Digests,
    histogram::Histogram,
    log::Log,
    supervisor::Supervisor,
    term_starts::{AppliedTerms, TermStarts},
    types::{ApplyResponse, Entry, LogId, Payload, Snapshot, SnapshotMeta, StoredMembership, TypeConfig},
    wire::{self, MembershipMetadata, StateMetadata, WireLogId},
};
use concord_model::{
    command::{Proposal, Verdict},
    entry,
    record::Revision,
};
use concord_net::{Member, NodeId, admission::Members, client::Peers};
use concord_state::{
    Change, Edit, State,
    feed::{self, Feed},
};
use concord_storage::{Batch, LogIndex, Position, SnapshotFile, Store};

/// Most entries of an apply batch.
const APPLY_BATCH_ENTRIES_MAX: usize = 256;
/// With so many proposals an apply batch ends at the end of the entry: some 100 µs of work, and that of an entry more.
const APPLY_BATCH_PROPOSALS_MAX: usize = 256;
/// Entries of more bytes, which may take tens of milliseconds to apply, are applied while another thread continues the
/// other tasks of consensus. From 256 KiB on, updates of 8 KiB by 64 clients had a p99 of 64 to 74 ms instead of 45 to 53:
/// the tasks wait for the other thread.
const INLINE_APPLY_BYTES_MAX: usize = 2 << 20;

/// The membership as of an entry. States share it until the next membership entry.
#[derive(Debug)]
pub(super) struct AppliedMembership {
    pub(super) stored: StoredMembership,
    /// The greatest id that any member has had.
    pub(super) greatest_id: NodeId,
    /// The encoded [`MembershipMetadata`]. It is part of each batch's position, and encoding all addresses anew for
    /// each batch would be for nothing.
    encoded: Vec<u8>,
}

/// Applies an entry to a state; `decided` gets what each of its proposals led to.
pub(super) fn apply_to(
    state: &mut State,
    index: LogIndex,
    payload: &Payload,
    mut decided: impl FnMut(Verdict, Option<Change>),
) -> Result<(), String> {
    let EntryPayload::Normal(data) = payload else {
        // The first entry of a cluster, which names its members, has index 0; the revision stays that of the empty state.
        if index > 0 {
            state.advance(state.revision() + 1);
        }
        return Ok(());
    };
    let proposals =
        entry::decode(&data.0).map_err(|error| format!("entry {index} can't be applied: it is {error}"))?;
    for proposal in proposals {
        let (verdict, change) = apply_proposal(state, proposal);
        decided(verdict, change);
    }
    Ok(())
}

/// Decides a proposal at the next revision.
fn apply_proposal(state: &mut State, proposal: Proposal) -> (Verdict, Option<Change>) {
    let revision = state.revision() + 1;
    #[cfg(feature = "sabotage")]
    let proposal = concord_model::sabotage::damaged(revision, proposal);
    #[cfg(feature = "sabotage")]
    let proposal = if concord_model::sabotage::is("clock-in-apply") {
        Proposal { at: concord_model::sabotage::clock(), ..proposal }
    } else {
        proposal
    };
    state.apply(revision, &proposal)
}

impl AppliedMembership {
    fn new(stored: StoredMembership, greatest_id: NodeId) -> Self {
        let encoded = wire::to_bytes(&MembershipMetadata::new(&stored, greatest_id));
        Self { stored, greatest_id, encoded }
    }

    /// All members, with and without a vote.
    pub(super) fn members(&self) -> Vec<Member> {
        self.stored.membership().nodes().map(|(_, member)| member.clone()).collect()
    }

    /// The same as the calls between nodes need them.
    fn agreed(&self) -> Members {
        self.stored.membership().nodes().map(|(id, member)| (*id, member.peer_addr.clone())).collect()
    }

    /// Whether a node was a member, or could have been, and never will be again: ids ascend. Once true it stays
    /// true, so a node that lags may rely on it too.
    pub(super) fn has_left(&self, id: NodeId) -> bool {
        id <= self.greatest_id && self.stored.membership().get_node(&id).is_none()
    }
}

/// The applied state with its place in the log, as one immutable value.
#[derive(Debug)]
pub(super) struct AppliedState {
    pub(super) state: Arc<State>,
    pub(super) last_log_id: Option<LogId>,
    pub(super) membership: Arc<AppliedMembership>,
    pub(super) terms: Arc<AppliedTerms>,
}

impl AppliedState {
    /// The index of the last applied entry.
    pub(super) fn index(&self) -> LogIndex {
        index_of(self.last_log_id)
    }

    /// Its place in the log, as the store records it.
    pub(super) fn position(&self) -> Position {
        let raft_meta =
            StateMetadata::encode_with(self.last_log_id, &self.membership.encoded, &self.terms.encoded);
        Position { index: self.index(), raft_meta }
    }

    /// The id of an applied entry, also of one that the log does not hold any more. `None` if it is not applied, or too
    /// old to be known.
    pub(super) fn id_at(&self, index: LogIndex) -> Option<WireLogId> {
        (index <= self.index()).then(|| self.terms.starts.id_at(index)).flatten()
    }

    /// The entry of this state where one that was applied before `last` has another: the two states are of different
    /// histories. `starts` are those of the state that ends with `last`.
    pub(super) fn contradicted_by(&self, last: WireLogId, starts: &TermStarts) -> Option<WireLogId> {
        let index = last.index.min(self.index());
        let (own, theirs) = (self.id_at(index)?, starts.id_at(index)?);
        (own != theirs).then_some(own)
    }
}

fn index_of(id: Option<LogId>) -> LogIndex {
    id.map_or(0, |id| id.index)
}

/// What the state machine publishes to the rest of the node.
#[derive(Debug)]
pub(super) struct AppliedPublisher {
    pub(super) applied: ArcSwap<AppliedState>,
    /// Those who wait for one revision.
    pub(super) revision_waiters: AppliedWaiters,
    /// Those who wait for one entry of the log: linearizable reads.
    pub(super) index_waiters: AppliedWaiters,
    /// The applied revision, for those who follow each new one.
    pub(super) revision: watch::Sender<Revision>,
    /// Owns this node's tasks, and records why it failed.
    pub(super) supervisor: Supervisor,
    /// Bytes of proposals applied since the process started.
    pub(super) applied_bytes: AtomicU64,
    /// How long batches of entries took to apply.
    pub(super) apply_times: Histogram,
    /// Digests of recent states, to compare with the other members'.
    pub(super) digests: Digests,
    /// The recent changes, for watchers.
    pub(super) feed: Arc<Feed>,
    /// The membership of [`Self::applied`], for those who wait for a change of it.
    pub(super) membership: watch::Sender<Arc<AppliedMembership>>,
}

/// openraft's state machine.
#[derive(Debug)]
pub(super) struct Machine {
    state: State,
    last_log_id: Option<LogId>,
    membership: Arc<AppliedMembership>,
    terms: Arc<AppliedTerms>,
    publisher: Arc<AppliedPublisher>,
    store: Store,
    log: Log,
    /// Gets the members: RPCs of other nodes are not admitted.
    peers: Arc<Peers>,
    /// Cancels its token when openraft drops the machine: from then on nothing is applied.
    drop_guard: DropGuard,
}

impl Machine {
    /// A state machine that continues from the store's state.
    pub(super) fn new(
        state: State,
        position: &Position,
        store: Store,
        log: Log,
        peers: Arc<Peers>,
    ) -> io::Result<Self> {
        let metadata = StateMetadata::decode(&position.raft_meta).map_err(io::Error::other)?;
        let greatest_id = metadata.membership.greatest_id();
        let terms = Arc::new(AppliedTerms::new(metadata.terms.clone()));
        let (last_log_id, membership) = metadata.into_raft().map_err(io::Error::other)?;
        let membership = Arc::new(AppliedMembership::new(membership, greatest_id));
        peers.set_members(membership.agreed());
        let applied = AppliedState {
            state: Arc::new(state.clone()),
            last_log_id,
            membership: Arc::clone(&membership),
            terms: Arc::clone(&terms),
        };
        let publisher = Arc::new(AppliedPublisher {
            applied: ArcSwap::from_pointee(applied),
            revision_waiters: AppliedWaiters::new(state.revision()),
            index_waiters: AppliedWaiters::new(index_of(last_log_id)),
            revision: watch::Sender::new(state.revision()),
            supervisor: Supervisor::default(),
            applied_bytes: AtomicU64::new(0),
            apply_times: Histogram::default(),
            digests: Digests::default(),
            feed: Arc::new(Feed::new(state.revision())),
            membership: watch::Sender::new(Arc::clone(&membership)),
        });
        let drop_guard = CancellationToken::new().drop_guard();
        Ok(Self { state, last_log_id, membership, terms, publisher, store, log, peers, drop_guard })
    }

    pub(super) fn publisher(&self) -> Arc<AppliedPublisher> {
        Arc::clone(&self.publisher)
    }

    /// Cancelled once the state machine is dropped.
    pub(super) fn dropped(&self) -> CancellationToken {
        self.drop_guard.token().clone()
    }

    /// Applies one entry.
    fn apply_entry(&mut self, entry: Entry, changes: &mut Vec<Arc<Change>>) -> Result<ApplyResponse, String> {
        let before = self.state.revision();
        let mut verdicts = Vec::new();
        apply_to(&mut self.state, entry.log_id.index, &entry.payload, |verdict, change| {
            verdicts.push(verdict);
            changes.extend(change.map(Arc::new));
        })?;
        match entry.payload {
            EntryPayload::Normal(data) => {
                let length = u64::try_from(data.0.len()).unwrap_or(u64::MAX);
                self.publisher.applied_bytes.fetch_add(length, Ordering::Relaxed);
            }
            EntryPayload::Blank => {}
            EntryPayload::Membership(members) => {
                let greatest_id =
                    members.nodes().map(|(id, _)| *id).fold(self.membership.greatest_id, NodeId::max);
                self.set_membership(StoredMembership::new(Some(entry.log_id), members), greatest_id);
            }
        }
        self.last_log_id = Some(entry.log_id);
        if let Some(terms) = self.terms.with(WireLogId::from(entry.log_id)) {
            self.terms = Arc::new(terms);
        }
        self.publisher.digests.record(before, &self.state);
        Ok(ApplyResponse { revision: self.state.revision(), verdicts })
    }

    /// Applies the next entries, at most a batch of them, then publishes, wakes, responds and passes the changes to the
    /// store, in this order.
    fn apply_batch(
        &mut self,
        entries: &mut impl ExactSizeIterator<Item = EntryResponder<TypeConfig>>,
    ) -> Result<(), String> {
        let (mut changes, mut proposals) = (Vec::new(), 0);
        let mut responses: Vec<(Option<ApplyResponder<TypeConfig>>, ApplyResponse)> =
            Vec::with_capacity(entries.len());
        while proposals < APPLY_BATCH_PROPOSALS_MAX
            && let Some((entry, responder)) = entries.next()
        {
            let response = self.apply_entry(entry, &mut changes)?;
            proposals += response.verdicts.len();
            responses.push((responder, response));
        }
        let position = self.publish_changes(&changes);
        for (responder, response) in responses {
            if let Some(responder) = responder {
                responder.send(response);
            }
        }
        self.store.enqueue(Batch { state: self.state.clone(), position, changes });
        Ok(())
    }

    /// Applies entries, batch after batch.
    fn apply_all(&mut self, entries: Vec<EntryResponder<TypeConfig>>) -> io::Result<()> {
        let mut entries = entries.into_iter();
        while entries.len() > 0 {
            // After a panic the working state may be inconsistent, but it is not published and the node ends.
            let result = catch_unwind(AssertUnwindSafe(|| self.apply_batch(&mut entries)));
            match result {
                Ok(Ok(())) => {}
                Ok(Err(why)) => return Err(self.fail(why)),
                Err(panic) => {
                    return Err(self.fail(format!("panicked while applying: {}", panic_message(&*panic))));
                }
            }
        }
        Ok(())
    }

    /// Applies one entry as openraft would have it applied.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn apply_alone(&mut self, entry: Entry) -> Result<ApplyResponse, String> {
        let mut changes = Vec::new();
        let response = self.apply_entry(entry, &mut changes)?;
        let position = self.publish_changes(&changes);
        let index = position.index;
        self.store.enqueue(Batch { state: self.state.clone(), position, changes });
        // It is in no log that could be flushed.
        self.store.flushed(index);
        Ok(response)
    }

    /// The last applied entry.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn last(&self) -> Option<LogId> {
        self.last_log_id
    }

    fn set_membership(&mut self, stored: StoredMembership, greatest_id: NodeId) {
        self.membership = Arc::new(AppliedMembership::new(stored, greatest_id));
        self.peers.set_members(self.membership.agreed());
    }

    fn publish_changes(&self, changes: &[Arc<Change>]) -> Position {
        let events = feed::events(changes, &self.state);
        // Before the revision is announced: the announcement wakes the readers of the feed.
        self.publisher.feed.publish(events, self.state.revision(), self.store.figures().history);
        self.publish(changes.iter().flat_map(|change| &change.edits).any(Edit::is_costly_to_free))
    }

    fn publish(&self, frees_much: bool) -> Position {
        let state = Arc::new(self.state.clone());
        let (membership, terms) = (Arc::clone(&self.membership), Arc::clone(&self.terms));
        let applied = AppliedState { state, last_log_id: self.last_log_id, membership, terms };
        let position = applied.position();
        let previous = self.publisher.applied.swap(Arc::new(applied));
        let revision = self.state.revision();
        self.publisher.revision_waiters.advance(revision);
        self.publisher.index_waiters.advance(position.index);
        self.publisher.revision.send_replace(revision);
        if frees_much {
            // This may be the last reference to a million records.
            drop_elsewhere(previous);
        }
        if !Arc::ptr_eq(&self.publisher.membership.borrow(), &self.membership) {
            self.publisher.membership.send_replace(Arc::clone(&self.membership));
        }
        position
    }

    fn fail(&self, why: String) -> io::Error {
        tracing::error!(%why, "failed to apply an entry");
        self.publisher.supervisor.fail(why.clone());
        io::Error::other(why)
    }
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = StateSnapshotBuilder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        Ok((self.last_log_id, self.membership.stored.clone()))
    }

    async fn apply<S>(&mut self, entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + Send,
    {
        let mut batches = entries.ready_chunks(APPLY_BATCH_ENTRIES_MAX);
        while let Some(batch) = batches.next().await {
            self.store.wait_for_room().await;
            let batch = batch.into_iter().collect::<io::Result<Vec<_>>>()?;
            let bytes = batch.iter().map(|(entry, _)| payload_bytes(entry)).fold(0, usize::saturating_add);
            let begun = Instant::now();
            let apply = || self.apply_all(batch);
            // Heartbeats don't wait for it. A runtime of one thread, as in a test, has no other to go on with.
            let is_long = bytes > INLINE_APPLY_BYTES_MAX
                && Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
            if is_long { block_in_place(apply) } else { apply() }?;
            self.publisher.apply_times.observe(begun.elapsed());
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<StateSnapshotBuilder> {
        if !force && self.store.current_snapshot().is_none() {
            return None;
        }
        Some(StateSnapshotBuilder {
            publisher: self.publisher(),
            store: self.store.clone(),
            must_be_current: force,
        })
    }

    async fn get_snapshot_builder(&mut self) -> StateSnapshotBuilder {
        StateSnapshotBuilder { publisher: self.publisher(), store: self.store.clone(), must_be_current: true }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, file: SnapshotFile) -> io::Result<()> {
        if self.last_log_id >= meta.last_log_id && self.last_log_id.is_some() {
            return Ok(());
        }
        let (store, log) = (self.store.clone(), self.log.clone());
        // From here on the state may be ahead of the log. The log records that first, in case the power fails.
        log.set_installing(meta.last_log_id.map(WireLogId::from)).await?;
        let format = log.format().clone();
        let installed = blocking(move || install(&store, &format, &file)).await;
        let (state, file) = installed.map_err(io::Error::other)?.map_err(|error| self.fail(error))?;
        let invalid = |error: String| self.fail(format!("the snapshot's metadata: {error}"));
        let metadata = StateMetadata::decode(&file.position.raft_meta).map_err(invalid)?;
        let greatest_id = self.membership.greatest_id.max(metadata.membership.greatest_id());
        let terms = Arc::new(AppliedTerms::new(metadata.terms.clone()));
        let (last_log_id, stored) = metadata.into_raft().map_err(invalid)?;
        self.state = state.in_place_of(&self.state);
        self.last_log_id = last_log_id;
        self.terms = terms;
        self.set_membership(stored, greatest_id);
        self.publisher.feed.reset(self.state.revision());
        self.publish(true);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        self.store.current_snapshot().map(snapshot_of).transpose()
    }
}

/// Installs a snapshot. The store's own one is copied first: installing moves the file. Blocking.
fn install(
    store: &Store,
    format: &DirectoryFormat,
    file: &SnapshotFile,
) -> Result<(State, SnapshotFile), String> {
    let level = store.feature_level_of(&file.path).map_err(|error| error.to_string())?;
    format.require(level).map_err(|error| error.to_string())?;
    let is_own = store.current_snapshot().is_some_and(|own| own.path == file.path);
    let path = if is_own {
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

/// A snapshot file as openraft's type.
pub(super) fn snapshot_of(file: SnapshotFile) -> io::Result<Snapshot> {
    let (last_log_id, last_membership) = StateMetadata::decode(&file.position.raft_meta)
        .and_then(StateMetadata::into_raft)
        .map_err(io::Error::other)?;
    Ok(Snapshot { meta: SnapshotMeta { last_log_id, last_membership }, snapshot: file })
}

fn payload_bytes(entry: &Entry) -> usize {
    if let EntryPayload::Normal(data) = &entry.payload { data.0.len() } else { 0 }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

/// Gives openraft the newest snapshot. While the node runs, `snapshot.rs` has built it already, because a failure
/// here would be fatal. openraft insists on a new one only at start, when the log is purged and there is none.
#[derive(Debug)]
pub(super) struct StateSnapshotBuilder {
    publisher: Arc<AppliedPublisher>,
    store: Store,
    /// Whether the snapshot must hold all that is applied now.
    must_be_current: bool,
}

impl RaftSnapshotBuilder<TypeConfig> for StateSnapshotBuilder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let applied = self.publisher.applied.load_full();
        let index_min = if self.must_be_current { applied.index() } else { 0 };
        if let Some(file) = self.store.current_snapshot().filter(|file| file.position.index >= index_min) {
            return snapshot_of(file);
        }
        let store = self.store.clone();
        let build = move || store.build_snapshot(&applied.state, &applied.position());
        let file = blocking(build).await.map_err(io::Error::other)?;
        snapshot_of(file.map_err(io::Error::other)?)
    }
}

#[cfg(test)]
mod tests;
