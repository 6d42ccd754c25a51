//! Waiters for a number that only grows: the applied revision, or the index of the last applied entry.
//!
//! Each waiter is woken once, when its number is reached. A channel that all of them watch would wake hundreds of
//! forwarded writes at every apply batch before theirs. Writes and reads at a revision wait for revisions, reads after
//! a read index for entries of the log; each registry has its own numbers, so neither wakes the waiters of the other.
//!
//! **Invariants**
//! 1. No waiter stays asleep once its number is reached.
//! 2. A waiter that is dropped leaves no registration behind.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::oneshot;

/// What a waiter waits for, and a number that distinguishes waiters for the same.
type WaiterKey = (u64, u64);

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
    /// Starts at a number that is reached.
    pub(super) fn new(applied: u64) -> Self {
        Self { applied: AtomicU64::new(applied), registry: Mutex::default() }
    }

    /// Marks a number as reached and wakes the waiters up to it. They see what was written before the call.
    pub(super) fn advance(&self, applied: u64) {
        let due = {
            let mut registry = self.lock();
            self.applied.fetch_max(applied, Ordering::AcqRel);
            let later = registry.wakers.split_off(&(applied.saturating_add(1), 0));
            std::mem::replace(&mut registry.wakers, later)
        };
        for waker in due.into_values() {
            // An error means that the waiter was dropped meanwhile.
            let _dropped = waker.send(());
        }
    }

    /// Waits until a number is reached.
    pub(super) async fn wait(&self, number: u64) {
        if self.is_applied(number) {
            return;
        }
        let Some((registration, woken)) = self.register(number) else { return };
        // An error means that nothing will ever be applied again.
        if woken.await.is_err() {
            std::future::pending::<()>().await;
        }
        drop(registration);
    }

    fn is_applied(&self, number: u64) -> bool {
        self.applied.load(Ordering::Acquire) >= number
    }

    /// Registers a waiter; `None` when the number was reached meanwhile.
    fn register(&self, number: u64) -> Option<(WaiterRegistration<'_>, oneshot::Receiver<()>)> {
        let mut registry = self.lock();
        if self.is_applied(number) {
            return None;
        }
        registry.registered += 1;
        let key = (number, registry.registered);
        let (wake, woken) = oneshot::channel();
        registry.wakers.insert(key, wake);
        Some((WaiterRegistration { waiters: self, key }, woken))
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        // No code that holds the lock can panic between two consistent states of the registry.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A registered waiter; dropping it removes the registration.
struct WaiterRegistration<'a> {
    waiters: &'a AppliedWaiters,
    key: WaiterKey,
}

impl Drop for WaiterRegistration<'_> {
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
    async fn each_waiter_is_woken_at_its_own_revision() {
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
