//! Ends a watch when its access key loses the permission for it.
//!
//! A watch may be open for weeks. Meanwhile its key may be revoked, expire or lose a grant. So every [`CHECK_INTERVAL`]
//! the node authenticates the keys with open watches again, each key once, however many watches it has. A watch learns of
//! a change through a channel that it waits for, so an idle watch ends as soon as a busy one.
//!
//! The state of an isolated node does not show that a key was revoked. So while stored keys have open watches, the node
//! confirms its state every few seconds. If that fails, the keys are rejected.
//!
//! **Invariants:** after its key was authenticated again, a watch returns nothing before it has checked that its scope is
//! still allowed. One key never has all watches of a node.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use smol_str::SmolStr;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::Watches;
use super::scope::WatchScope;
use crate::{Principal, Refusal};
use concord_model::record::Revision;

/// How often keys are authenticated again: a watch ends within a second after its permission.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// A state that is older is confirmed first.
const CONFIRM_AGE: Duration = Duration::from_secs(2);
/// How long one confirmation may delay the check.
const CONFIRM_TIMEOUT: Duration = Duration::from_millis(500);

/// The current principal of a key, or why the key is no longer valid.
type Standing = Result<Principal, Refusal>;
/// The id of a key, and the revision of the secret that the client sent.
type Holder = (SmolStr, Revision);

/// The keys with open watches on this node.
#[derive(Debug, Default)]
pub(super) struct WatchPermissions {
    holders: Mutex<BTreeMap<Holder, WatchingKey>>,
}

#[derive(Debug)]
struct WatchingKey {
    watches: u64,
    /// As of the last successful authentication.
    principal: Principal,
    standing: watch::Sender<Standing>,
}

/// The permission of one watch. Dropping it unregisters the watch.
#[derive(Debug)]
pub(super) struct WatchPermission {
    permissions: Arc<WatchPermissions>,
    holder: Holder,
    standing: watch::Receiver<Standing>,
}

impl WatchPermissions {
    /// Registers a watch of a principal, which may have at most `most`.
    pub(super) fn register(
        self: &Arc<Self>,
        principal: &Principal,
        most: u64,
    ) -> Result<WatchPermission, Refusal> {
        let (id, secret) = (principal.id.clone(), principal.secret);
        let mut holders = self.lock();
        let secrets = (id.clone(), Revision::MIN)..=(id.clone(), Revision::MAX);
        let open: u64 = holders.range(secrets).map(|(_, watching)| watching.watches).sum();
        if open >= most {
            return Err(Refusal::LimitReached(format!(
                "watch limit reached: this key has {open} open watches on this node"
            )));
        }
        let holder = (id, secret);
        let watching = holders.entry(holder.clone()).or_insert_with(|| WatchingKey {
            watches: 0,
            principal: principal.clone(),
            standing: watch::Sender::new(Ok(principal.clone())),
        });
        watching.watches += 1;
        // The last check, before this watch opened, counts for it as well.
        let mut standing = watching.standing.subscribe();
        standing.mark_changed();
        drop(holders);
        Ok(WatchPermission { permissions: Arc::clone(self), holder, standing })
    }

    /// Authenticates every key again.
    fn renew_all(&self, renew: impl Fn(&Principal) -> Standing) {
        for watching in self.lock().values_mut() {
            let now = renew(&watching.principal);
            if let Ok(principal) = &now {
                watching.principal = principal.clone();
            }
            watching.standing.send_if_modified(|standing| {
                let is_new = now != *standing;
                *standing = now;
                is_new
            });
        }
    }

    /// Whether stored keys have open watches.
    fn has_stored_keys(&self) -> bool {
        self.lock().values().any(|watching| !watching.principal.is_root())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Holder, WatchingKey>> {
        // No code panics while it holds the lock, and a count that is too high would only reject a watch.
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchPermission {
    /// Whether the key has changed since the last [`Self::check`].
    pub(super) fn is_to_be_checked(&self) -> bool {
        self.standing.has_changed().unwrap_or(true)
    }

    /// The principal as of the last authentication. `None` if the key is no longer valid.
    pub(super) fn principal(&self) -> Option<Principal> {
        self.standing.borrow().as_ref().ok().cloned()
    }

    /// Checks that the scope is still allowed, if the key has changed.
    ///
    /// # Errors
    /// Why it is not.
    pub(super) fn check(&mut self, scope: &WatchScope) -> Result<(), Refusal> {
        if !self.is_to_be_checked() {
            return Ok(());
        }
        let standing = self.standing.borrow_and_update().clone();
        scope.authorize(&standing?)
    }

    /// Waits until the key changes.
    pub(super) async fn changed(&mut self) {
        // The sender lives as long as its watches.
        let _is_closed = self.standing.changed().await.is_err();
        self.standing.mark_changed();
    }
}

impl Drop for WatchPermission {
    fn drop(&mut self) {
        let mut holders = self.permissions.lock();
        if let Some(watching) = holders.get_mut(&self.holder) {
            watching.watches -= 1;
            if watching.watches == 0 {
                holders.remove(&self.holder);
            }
        }
    }
}

/// Authenticates the keys of open watches periodically, until the node stops.
pub(super) async fn renew_periodically(
    watches: Weak<Watches>,
    stopping: CancellationToken,
) -> Result<(), String> {
    loop {
        tokio::select! {
            () = sleep(CHECK_INTERVAL) => {}
            () = stopping.cancelled() => return Ok(()),
        }
        let Some(watches) = watches.upgrade() else { return Ok(()) };
        let permissions = Arc::clone(&watches.hub.permissions);
        if permissions.has_stored_keys()
            && watches.freshness.staleness().is_none_or(|age| age >= CONFIRM_AGE)
            && let Some(consensus) = watches.cx.consensus()
        {
            // If it fails, the authentication notices how old the state is.
            let _failed = timeout(CONFIRM_TIMEOUT, watches.freshness.confirm(consensus)).await.is_err();
        }
        permissions.renew_all(|principal| watches.authentication.renewed(principal));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone() -> Refusal {
        Refusal::KeyEnded
    }

    #[tokio::test]
    async fn a_watch_learns_that_its_key_has_expired() {
        let permissions = Arc::new(WatchPermissions::default());
        let all = WatchScope::Visible(concord_model::key_set::KeySet::ALL);
        let mut permission = permissions.register(&Principal::root(), 2).unwrap();
        permission.check(&all).unwrap();
        permissions.renew_all(|principal| Ok(principal.clone()));
        assert!(!permission.is_to_be_checked(), "nothing has changed");
        permissions.renew_all(|_| Err(gone()));
        permission.changed().await;
        assert!(permission.is_to_be_checked(), "waiting does not check");
        assert_eq!(permission.check(&all), Err(gone()));
        let mut late = permissions.register(&Principal::root(), 2).unwrap();
        assert_eq!(late.check(&all), Err(gone()), "it was authenticated before the key expired");
        permissions.renew_all(|principal| Ok(principal.clone()));
        assert_eq!(late.check(&all), Ok(()), "the key was unknown for a moment only");
        drop((permission, late));
        assert!(
            permissions.register(&Principal::root(), 2).unwrap().check(&all).is_ok(),
            "a new registration starts as valid"
        );
    }

    #[test]
    fn the_watches_of_a_key_are_bounded() {
        let permissions = Arc::new(WatchPermissions::default());
        let other = Principal::of_root(7);
        let held =
            [permissions.register(&Principal::root(), 2).unwrap(), permissions.register(&other, 2).unwrap()];
        assert!(
            matches!(permissions.register(&other, 2), Err(Refusal::LimitReached(_))),
            "over all its secrets"
        );
        let stranger = Principal::named("stranger", 0);
        permissions.register(&stranger, 2).unwrap();
        drop(held);
        assert!(permissions.lock().is_empty());
    }
}
