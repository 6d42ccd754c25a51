//! Waiters for a revision: each waits until this node has applied it.
//!
//! Each waiter is woken once, when its revision is applied. A channel that all of them watch would wake hundreds of
//! forwarded writes at every apply batch before theirs.
//!
//! **Invariants**
//! 1. No waiter stays asleep once its revision is applied.
//! 2. A waiter that is dropped leaves no registration behind.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::oneshot;

use crate::model::record::Revision;

/// A waiter's revision, and a number that distinguishes waiters for the same revision.
type WaiterKey = (Revision, u64);

#[derive(Debug)]
pub(super) struct AppliedWaiters {
    applied: AtomicU64,
    registry: Mutex<Registry>,
}

#[derive(Debug, Default)]
struct Registry {
    wakers: BTreeMap<WaiterKey, oneshot::Sender<()>>,
    /// How many waiters have registered so far.
    registered: u64,
}

impl AppliedWaiters {
    /// Starts at a revision that is applied.
    pub(super) fn new(applied: Revision) -> Self {
        Self { applied: AtomicU64::new(applied), registry: Mutex::default() }
    }

    /// Marks a revision as applied and wakes the waiters up to it. They see what was written before the call.
    pub(super) fn advance(&self, revision: Revision) {
        let due = {
            let mut registry = self.lock();
            self.applied.fetch_max(revision, Ordering::AcqRel);
            let later = registry.wakers.split_off(&(revision.saturating_add(1), 0));
            std::mem::replace(&mut registry.wakers, later)
        };
        for waker in due.into_values() {
            // An error means that the waiter was dropped meanwhile.
            let _dropped = waker.send(());
        }
    }

    /// Waits until a revision is applied.
    pub(super) async fn wait(&self, revision: Revision) {
        if self.is_applied(revision) {
            return;
        }
        let Some((registration, woken)) = self.register(revision) else { return };
        // An error means that nothing will ever be applied again.
        if woken.await.is_err() {
            std::future::pending::<()>().await;
        }
        drop(registration);
    }

    fn is_applied(&self, revision: Revision) -> bool {
        self.applied.load(Ordering::Acquire) >= revision
    }

    /// Registers a waiter; `None` when the revision was applied meanwhile.
    fn register(&self, revision: Revision) -> Option<(Registration<'_>, oneshot::Receiver<()>)> {
        let mut registry = self.lock();
        if self.is_applied(revision) {
            return None;
        }
        registry.registered += 1;
        let key = (revision, registry.registered);
        let (wake, woken) = oneshot::channel();
        registry.wakers.insert(key, wake);
        Some((Registration { waiters: self, key }, woken))
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        // No code that holds the lock can panic between two consistent states of the registry.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registered waiter; dropping it removes the registration.
struct Registration<'a> {
    waiters: &'a AppliedWaiters,
    key: WaiterKey,
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        if !self.waiters.is_applied(self.key.0) {
            self.waiters.lock().wakers.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn each_waiter_waits_for_its_own_revision_and_no_longer() {
        let waiters = AppliedWaiters::new(5);
        assert_eq!(waiters.wait(5).now_or_never(), Some(()));
        let (mut six, mut nine) = (Box::pin(waiters.wait(6)), Box::pin(waiters.wait(9)));
        assert_eq!((six.as_mut().now_or_never(), nine.as_mut().now_or_never()), (None, None));
        waiters.advance(7);
        assert_eq!((six.as_mut().now_or_never(), nine.as_mut().now_or_never()), (Some(()), None));
        waiters.advance(9);
        assert_eq!(nine.as_mut().now_or_never(), Some(()));
        assert!(waiters.lock().wakers.is_empty());
    }

    #[tokio::test]
    async fn a_dropped_waiter_leaves_no_registration() {
        let waiters = AppliedWaiters::new(0);
        for _ in 0..3 {
            assert_eq!(waiters.wait(u64::MAX).now_or_never(), None);
        }
        assert!(waiters.lock().wakers.is_empty());
        waiters.advance(u64::MAX);
        assert_eq!(waiters.wait(u64::MAX).now_or_never(), Some(()));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_waiter_is_woken_while_revisions_are_applied() {
        const LAST: u64 = 2000;
        let waiters = Arc::new(AppliedWaiters::new(0));
        let tasks: Vec<_> = (1..=LAST)
            .map(|revision| {
                let waiters = Arc::clone(&waiters);
                tokio::spawn(async move { waiters.wait(revision).await })
            })
            .collect();
        for revision in 1..=LAST {
            waiters.advance(revision);
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert!(waiters.lock().wakers.is_empty());
    }
}
