//! Detects a divergent state: equal revisions must have equal digests on all members.
//!
//! Nodes that apply the same entries have the same state, unless memory was damaged or two versions apply an entry
//! differently. No node can know by itself that its state is the wrong one. So each node records digests of its state:
//! after every entry in which the revision reaches or passes a multiple of [`DIGEST_INTERVAL_REVISIONS`], and after
//! each of the last entries. It fetches the digests of the others, and trusts a majority of the members over itself.
//! Only states between two entries are compared, and the log alone decides where an entry ends.
//!
//! At its next start, a node with a divergent state discards state and log, and fetches both from another member. It
//! serves only local reads and does not lead until its state agrees with that of a majority ([`Proof`]).
//!
//! The logs show divergence without a digest (`witness`): a node has diverged if the logs of a majority have other
//! entries where it has applied its own.
//!
//! **Invariant:** a node stops for this reason only if a majority of all members agree with each other and not with it.
//! If no majority agrees, the node only logs the difference.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::future::join_all;
use tokio::sync::watch;

use super::{machine::AppliedPublisher, wire};
use concord_model::record::Revision;
use concord_net::{
    Member, NodeId,
    call::Call,
    client::{Lane, Peers},
};
use concord_state::State;
use concord_storage::Store;

/// Revisions between two recorded digests: few enough that any two nodes have a common one, many enough that recording
/// costs nothing.
const DIGEST_INTERVAL_REVISIONS: Revision = 256;
/// Limit of retained digests: some seconds of the heaviest load.
const DIGESTS_MAX: usize = 128;
/// Limit of digests after the last entries. A node that lags by fewer entries can be compared.
const RECENT_DIGESTS_MAX: usize = 1024;
/// Time between two comparisons.
const COMPARE_INTERVAL: Duration = Duration::from_secs(5);
/// The same while the state is not proven, because the node then serves local reads only.
const PROVE_INTERVAL: Duration = Duration::from_millis(100);
/// How long a member may take to answer.
const DIGESTS_TIMEOUT: Duration = Duration::from_secs(1);

type RevisionDigest = (Revision, u128);

/// Whether this node's state is proven. A state that was distrusted is proven once it agrees with that of a majority;
/// any other state is proven from the start.
#[derive(Debug)]
pub(super) struct Proof {
    /// Every linearizable read asks, and the lock of a channel would move between the processors with each.
    is_given: AtomicBool,
    given: watch::Sender<bool>,
}

impl Proof {
    pub(super) fn new(is_given: bool) -> Self {
        Self { is_given: AtomicBool::new(is_given), given: watch::Sender::new(is_given) }
    }

    pub(super) fn is_given(&self) -> bool {
        self.is_given.load(Ordering::Acquire)
    }

    fn give(&self) {
        self.is_given.store(true, Ordering::Release);
        self.given.send_replace(true);
    }

    /// Waits until the state is proven.
    pub(super) async fn given(&self) {
        if !self.is_given() && self.given.subscribe().wait_for(|given| *given).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The digests of this node's state at some of its last revisions.
#[derive(Debug, Default)]
pub(super) struct Digests(Mutex<RecordedDigests>);

#[derive(Debug, Default)]
struct RecordedDigests {
    /// The digests that all nodes record.
    common: VecDeque<RevisionDigest>,
    /// The digests after the last entries.
    recent: VecDeque<RevisionDigest>,
}

fn push(digests: &mut VecDeque<RevisionDigest>, digest: RevisionDigest, most: usize) {
    digests.push_back(digest);
    if digests.len() > most {
        digests.pop_front();
    }
}

impl Digests {
    fn lock(&self) -> MutexGuard<'_, RecordedDigests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the digest of the state after an entry. `before` is the revision before the entry.
    pub(super) fn record(&self, before: Revision, state: &State) {
        let digest = (state.revision(), state.digest());
        let mut recorded = self.lock();
        push(&mut recorded.recent, digest, RECENT_DIGESTS_MAX);
        if before / DIGEST_INTERVAL_REVISIONS != state.revision() / DIGEST_INTERVAL_REVISIONS {
            push(&mut recorded.common, digest, DIGESTS_MAX);
        }
    }

    /// The digests that all nodes record, the current one, and the one at `asking`, the revision of a node that lags.
    pub(super) fn list_with(&self, current: &State, asking: Revision) -> Vec<RevisionDigest> {
        let recorded = self.lock();
        let common = recorded.common.iter().copied();
        let asked = recorded.recent.iter().copied().find(|(revision, _)| *revision == asking);
        common.chain(asked).chain([(current.revision(), current.digest())]).collect()
    }

    /// All digests, for a comparison with nodes that may lag.
    fn all(&self, current: &State) -> Vec<RevisionDigest> {
        let recorded = self.lock();
        let all = recorded.common.iter().chain(&recorded.recent).copied();
        let mut all: Vec<_> = all.chain([(current.revision(), current.digest())]).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Compares this node's digests with the other members' periodically.
pub(super) struct DivergenceDetector {
    pub(super) id: NodeId,
    pub(super) peers: Arc<Peers>,
    pub(super) publisher: Arc<AppliedPublisher>,
    pub(super) store: Store,
    pub(super) proof: Arc<Proof>,
}

/// The result of a comparison.
#[derive(Debug, PartialEq, Eq)]
enum Comparison {
    /// At this revision, a majority of all members has another state.
    Diverged(Revision),
    /// At this revision, a majority including this node has the same state, and no member has another state at any
    /// revision.
    Agrees(Revision),
    Unknown,
}

impl DivergenceDetector {
    /// Runs until this node's state has diverged; the error says where.
    pub(super) async fn run(self) -> Result<(), String> {
        loop {
            tokio::time::sleep(if self.proof.is_given() { COMPARE_INTERVAL } else { PROVE_INTERVAL }).await;
            let revision = match self.compare().await {
                Comparison::Diverged(revision) => revision,
                Comparison::Agrees(revision) if !self.proof.is_given() => {
                    let store = self.store.clone();
                    let trusted = crate::blocking::blocking(move || store.trust()).await;
                    trusted.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
                    tracing::info!(
                        revision,
                        "the rebuilt state agrees with that of a majority of the members"
                    );
                    self.proof.give();
                    continue;
                }
                Comparison::Agrees(_) | Comparison::Unknown => continue,
            };
            if concord_model::sabotage::is("digests-not-compared") {
                continue;
            }
            let place = format!("the state at revision {revision}");
            return Err(distrust(&self.publisher, &self.store, &place).await);
        }
    }

    async fn compare(&self) -> Comparison {
        let applied = self.publisher.applied.load_full();
        let members = applied.membership.members();
        let question = Bytes::from(wire::to_bytes(&applied.state.revision()));
        let calls = members.iter().filter(|member| member.id != self.id).map(|member| {
            let question = question.clone();
            async move {
                let response = self.peers.call(
                    Lane::Heartbeat,
                    member.id,
                    &member.peer_addr,
                    Call::Digests,
                    question,
                    DIGESTS_TIMEOUT,
                );
                // A member that does not answer, or answers in an unknown encoding, is left out of this comparison.
                wire::from_bytes::<Vec<RevisionDigest>>(&response.await.ok()?).ok()
            }
        });
        let others: Vec<Vec<RevisionDigest>> = join_all(calls).await.into_iter().flatten().collect();
        // Including what was applied meanwhile, because another member may be ahead.
        let mut mine = self.publisher.digests.all(&self.publisher.applied.load().state);
        mine.push((applied.state.revision(), applied.state.digest()));
        compared(&mine, &others, members.len())
    }
}

/// Marks the state of this node as wrong, so that its next start rebuilds it. Returns why the node has to end: where it
/// differs from a majority.
pub(super) async fn distrust(publisher: &AppliedPublisher, store: &Store, place: &str) -> String {
    // The state holds the only list of the members, and this node needs them to fetch another state.
    distrust_with(&publisher.applied.load().membership.members(), store, place).await
}

/// The same where the caller knows the members.
pub(super) async fn distrust_with(members: &[Member], store: &Store, place: &str) -> String {
    let why = format!(
        "{place} differs from that of a majority of the members; the state will be rebuilt when this node starts again"
    );
    tracing::error!("{why}");
    let (store, note) = (store.clone(), wire::to_bytes(&members));
    match crate::blocking::blocking(move || store.invalidate(&note)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%error, "failed to mark the state as distrusted"),
        Err(error) => tracing::error!(%error, "failed to mark the state as distrusted"),
    }
    why
}

/// Compares this node's digests with the others'. A result needs more than half of all members: they agree on another
/// state, or on this one.
fn compared(mine: &[RevisionDigest], others: &[Vec<RevisionDigest>], members: usize) -> Comparison {
    let (mut agrees, mut differs) = (None, false);
    for (revision, digest) in mine.iter().rev() {
        let at = |digests: &Vec<RevisionDigest>| {
            digests.iter().find(|(other, _)| other == revision).map(|(_, digest)| *digest)
        };
        let all: Vec<u128> = others.iter().filter_map(at).collect();
        let count = |one: &u128| all.iter().filter(|other| *other == one).count();
        if all.iter().any(|other| other != digest && count(other) * 2 > members) {
            return Comparison::Diverged(*revision);
        }
        if all.iter().any(|other| other != digest) {
            tracing::error!(revision, "the members have different states, and no majority agrees");
            differs = true;
        } else if agrees.is_none() && (count(digest) + 1) * 2 > members && !all.is_empty() {
            agrees = Some(*revision);
        }
    }
    agrees.filter(|_| !differs).map_or(Comparison::Unknown, Comparison::Agrees)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn who_waits_for_a_proof_goes_on_once_it_is_given() {
        let proof = Proof::new(false);
        assert!(!proof.is_given() && proof.given().now_or_never().is_none());
        let (waits, ()) = tokio::join!(proof.given().map(|()| proof.is_given()), async { proof.give() });
        assert!(waits && proof.given().now_or_never().is_some() && Proof::new(true).is_given());
    }

    #[test]
    fn only_a_majority_that_agrees_is_trusted() {
        let mine = [(256, 1), (512, 5)];
        let others = |a: RevisionDigest, b: RevisionDigest| vec![vec![(256, 1), a], vec![b]];
        use Comparison::{Agrees, Diverged, Unknown};
        assert_eq!(compared(&mine, &others((512, 5), (512, 5)), 3), Agrees(512));
        assert_eq!(compared(&mine, &others((512, 9), (512, 9)), 3), Diverged(512));
        assert_eq!(compared(&mine, &others((512, 9), (512, 8)), 3), Unknown);
        assert_eq!(compared(&mine, &others((512, 9), (512, 5)), 3), Unknown);
        assert_eq!(compared(&mine, &others((512, 9), (512, 9)), 5), Unknown);
        assert_eq!(
            compared(&mine, &others((768, 9), (768, 9)), 3),
            Agrees(256),
            "one is as far as this node was"
        );
        assert_eq!(compared(&mine, &others((768, 9), (768, 9)), 5), Unknown, "two are no majority of five");
        assert_eq!(compared(&mine, &[], 1), Unknown);
    }

    #[test]
    fn digests_are_bounded_and_end_with_the_current_one() {
        let digests = Digests::default();
        let mut state = State::new();
        for revision in 1..=DIGEST_INTERVAL_REVISIONS * (DIGESTS_MAX as u64 + 10) {
            state.advance(revision);
            digests.record(revision - 1, &state);
        }
        state.advance(state.revision() + 3);
        let list = digests.list_with(&state, 0);
        assert_eq!(list.len(), DIGESTS_MAX + 1);
        assert_eq!(list[0].0, DIGEST_INTERVAL_REVISIONS * 11);
        assert_eq!(list[DIGESTS_MAX], (state.revision(), state.digest()));
        let behind = state.revision() - 3 - DIGEST_INTERVAL_REVISIONS * 2;
        assert_eq!(digests.list_with(&state, behind).iter().filter(|(at, _)| *at == behind).count(), 2);
        assert_eq!(digests.lock().recent.len(), RECENT_DIGESTS_MAX);
    }

    #[test]
    fn an_entry_that_passes_a_multiple_is_recorded_at_its_end() {
        let (digests, mut state) = (Digests::default(), State::new());
        let mut before = 0;
        for revision in [255, 300, 511, 512, 513, 1100] {
            state.advance(revision);
            digests.record(before, &state);
            before = revision;
        }
        let recorded: Vec<Revision> =
            digests.list_with(&state, 0).iter().map(|(revision, _)| *revision).collect();
        assert_eq!(recorded, [300, 512, 1100, 1100], "the last one is the current state");
    }
}
