//! Detects a diverged state: equal revisions must have equal digests on all members.
//!
//! Nodes that apply the same entries have the same state, unless memory was damaged or two versions apply an entry
//! differently. No node can know by itself that its state is the wrong one. So each records the digest of its state
//! after every entry in which the revision reaches or passes a multiple of [`DIGEST_INTERVAL_REVISIONS`], fetches the
//! others' digests, and trusts a majority of the members over itself. States are compared as they are between two
//! entries, never within one, and which entries those are the log alone decides.
//!
//! **Invariant:** a node stops for this reason only when a majority of all members agree with one another and not
//! with it. Where no majority agrees, a node only logs the difference.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::future::join_all;

use super::{machine::AppliedPublisher, wire};
use concord_model::record::Revision;
use concord_net::{
    NodeId,
    call::Call,
    client::{Lane, Peers},
};
use concord_state::State;
use concord_storage::Store;

/// Revisions between two recorded digests: few enough that two nodes have one in common, and enough that recording
/// costs nothing.
const DIGEST_INTERVAL_REVISIONS: Revision = 256;
/// Most digests that are retained: some seconds of the heaviest load.
const DIGESTS_MAX: usize = 128;
/// Time between two comparisons.
const COMPARE_INTERVAL: Duration = Duration::from_secs(5);
/// How long a member may take to answer.
const DIGESTS_TIMEOUT: Duration = Duration::from_secs(1);

type RevisionDigest = (Revision, u128);

/// The digests of this node's state at some of its last revisions.
#[derive(Debug, Default)]
pub(super) struct Digests(Mutex<VecDeque<RevisionDigest>>);

impl Digests {
    /// Records the digest of the state after an entry if all nodes record one there. `before`: the revision before the
    /// entry.
    pub(super) fn record(&self, before: Revision, state: &State) {
        if before / DIGEST_INTERVAL_REVISIONS == state.revision() / DIGEST_INTERVAL_REVISIONS {
            return;
        }
        let mut digests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        digests.push_back((state.revision(), state.digest()));
        if digests.len() > DIGESTS_MAX {
            digests.pop_front();
        }
    }

    /// All recorded digests and the current one: idle members are at the same revision.
    pub(super) fn list(&self, current: &State) -> Vec<RevisionDigest> {
        let digests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        digests.iter().copied().chain([(current.revision(), current.digest())]).collect()
    }
}

/// Compares this node's digests with the other members' periodically.
pub(super) struct DivergenceDetector {
    pub(super) id: NodeId,
    pub(super) peers: Arc<Peers>,
    pub(super) publisher: Arc<AppliedPublisher>,
    pub(super) store: Store,
}

impl DivergenceDetector {
    /// Runs until this node's state has diverged; the error says where.
    pub(super) async fn run(self) -> Result<(), String> {
        loop {
            tokio::time::sleep(COMPARE_INTERVAL).await;
            let Some(revision) = self.diverged_at().await else { continue };
            if concord_model::sabotage::is("digests-not-compared") {
                continue;
            }
            let why = format!(
                "the state at revision {revision} differs from that of a majority of the members; it will be \
                 rebuilt when this node starts again"
            );
            tracing::error!(revision, "{why}");
            // The state holds the only list of the members, and this node needs them to fetch another state.
            let members = self.publisher.applied.load().membership.members();
            let (store, note) = (self.store.clone(), wire::to_bytes(&members));
            match tokio::task::spawn_blocking(move || store.invalidate(&note)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(%error, "failed to mark the state as distrusted"),
                Err(error) => tracing::error!(%error, "failed to mark the state as distrusted"),
            }
            return Err(why);
        }
    }

    /// A revision at which a majority has another state.
    async fn diverged_at(&self) -> Option<Revision> {
        let members = self.publisher.applied.load().membership.members();
        let calls = members.iter().filter(|member| member.id != self.id).map(|member| async move {
            let response = self.peers.call(
                Lane::Heartbeat,
                member.id,
                &member.peer_addr,
                Call::Digests,
                Bytes::new(),
                DIGESTS_TIMEOUT,
            );
            // A member that does not answer, or answers in an unknown encoding, is left out of this comparison.
            wire::from_bytes::<Vec<RevisionDigest>>(&response.await.ok()?).ok()
        });
        let others: Vec<Vec<RevisionDigest>> = join_all(calls).await.into_iter().flatten().collect();
        let mine = self.publisher.digests.list(&self.publisher.applied.load().state);
        majority_against(&mine, &others, members.len())
    }
}

/// A revision at which more than half of all members agree on a digest that is not `mine`.
fn majority_against(
    mine: &[RevisionDigest],
    others: &[Vec<RevisionDigest>],
    members: usize,
) -> Option<Revision> {
    mine.iter().rev().find_map(|(revision, digest)| {
        let at = |digests: &Vec<RevisionDigest>| {
            digests.iter().find(|(other, _)| other == revision).map(|(_, digest)| *digest)
        };
        let differing: Vec<u128> = others.iter().filter_map(at).filter(|other| other != digest).collect();
        let agreeing = |one| differing.iter().filter(|other| *other == one).count();
        if differing.iter().map(agreeing).max()? * 2 > members {
            return Some(*revision);
        }
        tracing::error!(revision, "the members have different states, and no majority agrees");
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_majority_that_agrees_is_trusted() {
        let mine = [(256, 1), (512, 5)];
        let others = |a: RevisionDigest, b: RevisionDigest| vec![vec![(256, 1), a], vec![b]];
        assert_eq!(majority_against(&mine, &others((512, 5), (512, 5)), 3), None);
        assert_eq!(majority_against(&mine, &others((512, 9), (512, 9)), 3), Some(512));
        assert_eq!(majority_against(&mine, &others((512, 9), (512, 8)), 3), None);
        assert_eq!(majority_against(&mine, &others((512, 9), (512, 5)), 3), None);
        assert_eq!(majority_against(&mine, &others((512, 9), (512, 9)), 5), None);
        assert_eq!(majority_against(&mine, &others((768, 9), (768, 9)), 3), None, "no revision in common");
        assert_eq!(majority_against(&mine, &[], 1), None);
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
        let list = digests.list(&state);
        assert_eq!(list.len(), DIGESTS_MAX + 1);
        assert_eq!(list[0].0, DIGEST_INTERVAL_REVISIONS * 11);
        assert_eq!(list[DIGESTS_MAX], (state.revision(), state.digest()));
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
        let recorded: Vec<Revision> = digests.list(&state).iter().map(|(revision, _)| *revision).collect();
        assert_eq!(recorded, [300, 512, 1100, 1100], "the last one is the current state");
    }
}
