//! Compares this node's state with the other members': equal revisions must have equal digests.
//!
//! What applies the same entries has the same state, unless memory was damaged or two versions apply differently. No
//! single node can know that it is the one; so each notes the digest at every [`EVERY`]th revision, asks the
//! others for theirs, and believes a majority of the members against itself.
//!
//! **Invariant:** a node gives itself up only when a majority of all members agree with one another and not with
//! it; where no majority is found, nothing happens but a line in the log.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::future::join_all;

use super::{machine::AppliedPublisher, wire};
use crate::peer::call::Call;
use crate::{
    model::record::Revision,
    peer::{
        NodeId,
        client::{Lane, Peers},
    },
    state::State,
    store::Store,
};

/// Revisions between two notes: often enough that two nodes have one in common, seldom enough to cost nothing.
const EVERY: Revision = 256;
/// Notes that are kept: some seconds of the heaviest load.
const KEPT: usize = 128;
/// Between two comparisons.
const PERIOD: Duration = Duration::from_secs(5);
/// How long a member may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(1);

type Note = (Revision, u128);

/// The digests of this node's state at some of its last revisions.
#[derive(Debug, Default)]
pub(super) struct Digests(Mutex<VecDeque<Note>>);

impl Digests {
    /// Notes the state if it stands at a revision that all nodes note.
    pub(super) fn note(&self, state: &State) {
        if !state.revision().is_multiple_of(EVERY) {
            return;
        }
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        notes.push_back((state.revision(), state.digest()));
        if notes.len() > KEPT {
            notes.pop_front();
        }
    }

    /// All notes and the state as it is now: members at rest stand at the same revision.
    pub(super) fn list(&self, now: &State) -> Vec<Note> {
        let notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        notes.iter().copied().chain([(now.revision(), now.digest())]).collect()
    }
}

/// Compares from time to time.
pub(super) struct Comparer {
    pub(super) id: NodeId,
    pub(super) peers: Arc<Peers>,
    pub(super) publisher: Arc<AppliedPublisher>,
    pub(super) store: Store,
}

impl Comparer {
    /// Goes on until this node has to give itself up.
    pub(super) async fn work(self) {
        loop {
            tokio::time::sleep(PERIOD).await;
            let Some(revision) = self.differs().await else { continue };
            if crate::sabotage::is("digests-not-compared") {
                continue;
            }
            let why = format!(
                "the state at revision {revision} differs from that of a majority of the members; it will be \
                 rebuilt when this node starts again"
            );
            tracing::error!(revision, "{why}");
            // With the state goes all that this node knows of the members, who alone can give it another.
            let members = self
                .publisher
                .applied
                .load()
                .membership
                .membership()
                .nodes()
                .map(|(_, member)| member.clone())
                .collect::<Vec<_>>();
            let (store, note) = (self.store.clone(), wire::to_bytes(&members));
            match tokio::task::spawn_blocking(move || store.invalidate(&note)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(%error, "the state could not be marked"),
                Err(error) => tracing::error!(%error, "the state could not be marked"),
            }
            self.publisher.failure.send_if_modified(|failure| {
                let first = failure.is_none();
                if first {
                    *failure = Some(why);
                }
                first
            });
            return;
        }
    }

    /// A revision at which a majority has another state.
    async fn differs(&self) -> Option<Revision> {
        let applied = self.publisher.applied.load_full();
        let members: Vec<_> =
            applied.membership.membership().nodes().map(|(_, member)| member.clone()).collect();
        let calls = members.iter().filter(|member| member.id != self.id).map(|member| async move {
            let answer = self.peers.call(
                Lane::Pulse,
                member.id,
                &member.peer_addr,
                Call::Digests,
                Bytes::new(),
                ANSWER_TIME,
            );
            // A member that does not answer, or not in this version's words, has no say this time.
            wire::from_bytes::<Vec<Note>>(&answer.await.ok()?).ok()
        });
        let others: Vec<Vec<Note>> = join_all(calls).await.into_iter().flatten().collect();
        let mine = self.publisher.digests.list(&self.publisher.applied.load().state);
        minority(&mine, &others, members.len())
    }
}

/// A revision at which more than half of all members agree on a digest that is not `mine`.
fn minority(mine: &[Note], others: &[Vec<Note>], members: usize) -> Option<Revision> {
    mine.iter().rev().find_map(|(revision, digest)| {
        let at =
            |notes: &Vec<Note>| notes.iter().find(|(other, _)| other == revision).map(|(_, digest)| *digest);
        let found: Vec<u128> = others.iter().filter_map(at).filter(|other| other != digest).collect();
        let most = found.iter().map(|one| found.iter().filter(|other| *other == one).count()).max()?;
        if most * 2 > members {
            return Some(*revision);
        }
        tracing::error!(revision, "members have different states, and no majority says which is right");
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_majority_that_agrees_is_believed() {
        let mine = [(256, 1), (512, 5)];
        let others = |a: Note, b: Note| vec![vec![(256, 1), a], vec![b]];
        assert_eq!(minority(&mine, &others((512, 5), (512, 5)), 3), None);
        assert_eq!(minority(&mine, &others((512, 9), (512, 9)), 3), Some(512));
        assert_eq!(minority(&mine, &others((512, 9), (512, 8)), 3), None);
        assert_eq!(minority(&mine, &others((512, 9), (512, 5)), 3), None);
        assert_eq!(minority(&mine, &others((512, 9), (512, 9)), 5), None);
        assert_eq!(minority(&mine, &others((768, 9), (768, 9)), 3), None, "no revision in common");
        assert_eq!(minority(&mine, &[], 1), None);
    }

    #[test]
    fn notes_are_bounded_and_end_with_the_present() {
        let digests = Digests::default();
        let mut state = State::new();
        for revision in 1..=EVERY * (KEPT as u64 + 10) {
            state.advance(revision);
            digests.note(&state);
        }
        state.advance(state.revision() + 3);
        let list = digests.list(&state);
        assert_eq!(list.len(), KEPT + 1);
        assert_eq!(list[0].0, EVERY * 11);
        assert_eq!(list[KEPT], (state.revision(), state.digest()));
    }
}
