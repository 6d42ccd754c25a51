//! The right of each open watch, while it is open.
//!
//! A watch may be open for weeks, and meanwhile its key may be revoked, expire or lose a grant. So the node judges the
//! keys again that have watches open here: every [`CHECK_INTERVAL`], and each key once, however many watches it has. A
//! watch learns of a change by a channel that it also waits for, so an idle watch ends as soon as a busy one.
//!
//! The state of a node that was cut off does not tell that a key was revoked. While stored keys have watches open, the
//! state is confirmed every few seconds, and where that fails, the judgement refuses them.
//!
//! **Invariants:** a watch of a key that was judged anew returns nothing more before it has asked whether its scope is
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

/// How often keys are judged again: a watch ends within a second of the end of its right.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// The age of the state from which on it is confirmed for that.
const CONFIRM_AGE: Duration = Duration::from_secs(2);
/// How long one confirmation may delay the judgement.
const CONFIRM_TIMEOUT: Duration = Duration::from_millis(500);

/// A principal as it is now, or why it is none any more.
type Standing = Result<Principal, Refusal>;
/// A key's id and the secret that was shown.
type Holder = (SmolStr, Revision);

/// The keys that have watches open on this node.
#[derive(Debug, Default)]
pub(super) struct WatchPermissions {
    holders: Mutex<BTreeMap<Holder, WatchingKey>>,
}

#[derive(Debug)]
struct WatchingKey {
    watches: u64,
    /// As it was when it last was one.
    principal: Principal,
    standing: watch::Sender<Standing>,
}

/// The right of one watch. Dropping it ends it.
#[derive(Debug)]
pub(super) struct WatchPermission {
    rights: Arc<WatchPermissions>,
    holder: Holder,
    standing: watch::Receiver<Standing>,
}

impl WatchPermissions {
    /// Registers a watch of a principal, who may have so many.
    pub(super) fn register(
        self: &Arc<Self>,
        principal: &Principal,
        most: u64,
    ) -> Result<WatchPermission, Refusal> {
        let (id, secret) = (principal.id.clone(), principal.secret);
        let mut holders = self.lock();
        let secrets = (id.clone(), Revision::MIN)..=(id.clone(), Revision::MAX);
        let open: u64 = holders.range(secrets).map(|(_, judged)| judged.watches).sum();
        if open >= most {
            return Err(Refusal::LimitReached(format!(
                "this key has {open} watches open on this node, as many as it may"
            )));
        }
        let holder = (id, secret);
        let judged = holders.entry(holder.clone()).or_insert_with(|| WatchingKey {
            watches: 0,
            principal: principal.clone(),
            standing: watch::Sender::new(Ok(principal.clone())),
        });
        judged.watches += 1;
        // What was judged before this watch opened counts for it as well.
        let mut standing = judged.standing.subscribe();
        standing.mark_changed();
        drop(holders);
        Ok(WatchPermission { rights: Arc::clone(self), holder, standing })
    }

    /// Judges every key again.
    fn judge(&self, judge: impl Fn(&Principal) -> Standing) {
        for judged in self.lock().values_mut() {
            let now = judge(&judged.principal);
            if let Ok(principal) = &now {
                judged.principal = principal.clone();
            }
            judged.standing.send_if_modified(|standing| {
                let is_new = now != *standing;
                *standing = now;
                is_new
            });
        }
    }

    /// Whether stored keys have watches open.
    fn has_stored_keys(&self) -> bool {
        self.lock().values().any(|judged| !judged.principal.is_root())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Holder, WatchingKey>> {
        // Nothing panics while it is held, and a count too high would only refuse a watch.
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchPermission {
    /// Whether the key was judged anew since the last [`Self::check`].
    pub(super) fn is_to_be_checked(&self) -> bool {
        self.standing.has_changed().unwrap_or(true)
    }

    /// The principal as it was judged last; `None` when it is none any more.
    pub(super) fn principal(&self) -> Option<Principal> {
        self.standing.borrow().as_ref().ok().cloned()
    }

    /// Whether a scope is still allowed, if the key was judged anew.
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

    /// Waits until the key is judged anew.
    pub(super) async fn changed(&mut self) {
        // The sender lives as long as its watches.
        let _is_closed = self.standing.changed().await.is_err();
        self.standing.mark_changed();
    }
}

impl Drop for WatchPermission {
    fn drop(&mut self) {
        let mut holders = self.rights.lock();
        if let Some(judged) = holders.get_mut(&self.holder) {
            judged.watches -= 1;
            if judged.watches == 0 {
                holders.remove(&self.holder);
            }
        }
    }
}

/// Judges the keys of open watches again and again, until the node stops.
pub(super) async fn judge_periodically(
    watches: Weak<Watches>,
    stopping: CancellationToken,
) -> Result<(), String> {
    loop {
        tokio::select! {
            () = sleep(CHECK_INTERVAL) => {}
            () = stopping.cancelled() => return Ok(()),
        }
        let Some(watches) = watches.upgrade() else { return Ok(()) };
        let rights = Arc::clone(&watches.hub.rights);
        if rights.has_stored_keys()
            && watches.freshness.staleness().is_none_or(|age| age >= CONFIRM_AGE)
            && let Some(consensus) = watches.cx.consensus()
        {
            // Where it fails, the judgement sees how old the state is.
            let _failed = timeout(CONFIRM_TIMEOUT, watches.freshness.confirm(consensus)).await.is_err();
        }
        rights.judge(|principal| watches.authentication.renewed(principal));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone() -> Refusal {
        Refusal::KeyEnded
    }

    #[tokio::test]
    async fn a_watch_learns_that_its_key_has_ended() {
        let rights = Arc::new(WatchPermissions::default());
        let all = WatchScope::Visible(concord_model::key_set::KeySet::ALL);
        let mut right = rights.register(&Principal::root(), 2).unwrap();
        right.check(&all).unwrap();
        rights.judge(|principal| Ok(principal.clone()));
        assert!(!right.is_to_be_checked(), "nothing has changed");
        rights.judge(|_| Err(gone()));
        right.changed().await;
        assert!(right.is_to_be_checked(), "waiting does not check");
        assert_eq!(right.check(&all), Err(gone()));
        let mut late = rights.register(&Principal::root(), 2).unwrap();
        assert_eq!(late.check(&all), Err(gone()), "it was authenticated before the key ended");
        rights.judge(|principal| Ok(principal.clone()));
        assert_eq!(late.check(&all), Ok(()), "it could not be known for a moment only");
        drop((right, late));
        assert!(
            rights.register(&Principal::root(), 2).unwrap().check(&all).is_ok(),
            "a new one is judged anew"
        );
    }

    #[test]
    fn a_key_has_only_so_many_watches() {
        let rights = Arc::new(WatchPermissions::default());
        let other = Principal { secret: 7, ..Principal::root() };
        let held = [rights.register(&Principal::root(), 2).unwrap(), rights.register(&other, 2).unwrap()];
        assert!(matches!(rights.register(&other, 2), Err(Refusal::LimitReached(_))), "of all its secrets");
        let stranger = Principal { id: "stranger".into(), ..Principal::root() };
        rights.register(&stranger, 2).unwrap();
        drop(held);
        assert!(rights.lock().is_empty());
    }
}
