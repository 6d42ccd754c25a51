//! Who waits until this node has applied a revision.
//!
//! Each waiter is woken once, when its revision is reached: a channel that all of them watch would wake hundreds of
//! forwarded writes at each of the runs before theirs. **Invariant:** a waiter of a revision that is reached is never
//! left waiting; one that gives up leaves nothing behind.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::oneshot;

use crate::model::record::Revision;

/// A waiter's revision, and a number that tells it from others of the same.
type Turn = (Revision, u64);

#[derive(Debug)]
pub(super) struct Turns {
    reached: AtomicU64,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: BTreeMap<Turn, oneshot::Sender<()>>,
    /// How many have waited so far.
    drawn: u64,
}

impl Turns {
    /// As of a revision that is reached.
    pub(super) fn from(reached: Revision) -> Self {
        Self { reached: AtomicU64::new(reached), queue: Mutex::default() }
    }

    /// Wakes those whose revision is reached now. Whoever is woken sees what was written before the call.
    pub(super) fn reach(&self, revision: Revision) {
        let due = {
            let mut queue = self.lock();
            self.reached.fetch_max(revision, Ordering::AcqRel);
            let later = queue.waiting.split_off(&(revision.saturating_add(1), 0));
            std::mem::replace(&mut queue.waiting, later)
        };
        for waiter in due.into_values() {
            // One that has just given up needs no wake.
            let _gone = waiter.send(());
        }
    }

    /// Waits until a revision is reached.
    pub(super) async fn wait(&self, revision: Revision) {
        if self.is_reached(revision) {
            return;
        }
        let Some((place, woken)) = self.queue_up(revision) else { return };
        // An error means that nothing will ever be reached again.
        if woken.await.is_err() {
            std::future::pending::<()>().await;
        }
        drop(place);
    }

    fn is_reached(&self, revision: Revision) -> bool {
        self.reached.load(Ordering::Acquire) >= revision
    }

    /// Takes a place in the queue; none when the revision was reached meanwhile.
    fn queue_up(&self, revision: Revision) -> Option<(Place<'_>, oneshot::Receiver<()>)> {
        let mut queue = self.lock();
        if self.is_reached(revision) {
            return None;
        }
        queue.drawn += 1;
        let turn = (revision, queue.drawn);
        let (wake, woken) = oneshot::channel();
        queue.waiting.insert(turn, wake);
        Some((Place { turns: self, turn }, woken))
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing between two consistent forms of the queue can panic.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the queue, given up when the waiter goes.
struct Place<'a> {
    turns: &'a Turns,
    turn: Turn,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.turns.is_reached(self.turn.0) {
            self.turns.lock().waiting.remove(&self.turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn each_waits_for_its_own_revision_and_no_longer() {
        let turns = Turns::from(5);
        assert_eq!(turns.wait(5).now_or_never(), Some(()));
        let (mut six, mut nine) = (Box::pin(turns.wait(6)), Box::pin(turns.wait(9)));
        assert_eq!((six.as_mut().now_or_never(), nine.as_mut().now_or_never()), (None, None));
        turns.reach(7);
        assert_eq!((six.as_mut().now_or_never(), nine.as_mut().now_or_never()), (Some(()), None));
        turns.reach(9);
        assert_eq!(nine.as_mut().now_or_never(), Some(()));
        assert!(turns.lock().waiting.is_empty());
    }

    #[tokio::test]
    async fn who_gives_up_leaves_nothing_behind() {
        let turns = Turns::from(0);
        for _ in 0..3 {
            assert_eq!(turns.wait(u64::MAX).now_or_never(), None);
        }
        assert!(turns.lock().waiting.is_empty());
        turns.reach(u64::MAX);
        assert_eq!(turns.wait(u64::MAX).now_or_never(), Some(()));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nobody_is_left_waiting_while_revisions_are_reached() {
        const LAST: u64 = 2000;
        let turns = Arc::new(Turns::from(0));
        let waiters: Vec<_> = (1..=LAST)
            .map(|revision| {
                let turns = Arc::clone(&turns);
                tokio::spawn(async move { turns.wait(revision).await })
            })
            .collect();
        for revision in 1..=LAST {
            turns.reach(revision);
        }
        for waiter in waiters {
            waiter.await.unwrap();
        }
        assert!(turns.lock().waiting.is_empty());
    }
}
