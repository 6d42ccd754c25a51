//! The shares of access keys in a resource of a node, so that no key can use all of it.
//!
//! **Invariant:** a key that uses nothing has no account, and dropping a part of a share releases it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use super::origin::KeyTag;

/// One access key may use this fraction of a resource: one divided by this number.
pub(super) const KEY_PART: u64 = 2;
/// Entries of ended accounts are removed once there are this many more than twice the accounts in use.
const SPARE_ACCOUNTS: usize = 64;

/// How much of a resource is in use, in total or by one key.
#[derive(Debug)]
pub(super) struct ShareAccount {
    pub(super) max: u64,
    pub(super) used: AtomicU64,
}

impl ShareAccount {
    pub(super) fn new(max: u64) -> Arc<Self> {
        Arc::new(Self { max, used: AtomicU64::new(0) })
    }

    /// Adds to the `held` units of a holder, if they fit or if nobody else holds any.
    pub(super) fn add(&self, more: u64, held: u64) -> bool {
        let fits = |used: u64| used.saturating_add(more) <= self.max || used <= held;
        let add = |used: u64| fits(used).then(|| used.saturating_add(more));
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// Takes one place, if one is free.
    pub(super) fn place(self: Arc<Self>) -> Option<Place> {
        self.add(1, 0).then(|| Place(self))
    }
}

/// A place of an account. Dropping it releases the place.
#[derive(Debug)]
pub(super) struct Place(Arc<ShareAccount>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The accounts of the access keys.
#[derive(Debug)]
pub(super) struct KeyShares {
    /// The share of one key.
    max: u64,
    accounts: Mutex<KeyAccounts>,
}

#[derive(Debug, Default)]
struct KeyAccounts {
    of_keys: BTreeMap<KeyTag, Weak<ShareAccount>>,
    /// How many accounts were in use when the entries of ended ones were last removed.
    in_use: usize,
}

impl KeyShares {
    /// The shares in a resource of this size.
    pub(super) fn of(size: u64) -> Self {
        Self { max: (size / KEY_PART).max(1), accounts: Mutex::default() }
    }

    /// The account of an access key. It lives as long as a reference to it.
    pub(super) fn account(&self, tag: KeyTag) -> Arc<ShareAccount> {
        // No code panics while it holds the lock, and a lost account would count from zero again.
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = accounts.of_keys.get(&tag).and_then(Weak::upgrade) {
            return found;
        }
        // Not for each new account, because this visits all of them.
        if accounts.of_keys.len() > 2 * accounts.in_use + SPARE_ACCOUNTS {
            accounts.of_keys.retain(|_, account| account.strong_count() > 0);
            accounts.in_use = accounts.of_keys.len();
        }
        let new = ShareAccount::new(self.max);
        accounts.of_keys.insert(tag, Arc::downgrade(&new));
        new
    }

    /// The accounts in use.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> usize {
        let accounts = self.accounts.lock().unwrap();
        accounts.of_keys.values().filter(|account| account.strong_count() > 0).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_its_part_and_leaves_the_rest() {
        let shares = KeyShares::of(4);
        let take = |key| shares.account([key; 12]).place();
        let (one, two) = (take(1), take(1));
        assert!(one.is_some() && two.is_some() && take(1).is_none(), "half of four");
        assert!(take(2).is_some());
        drop(one);
        assert!(take(1).is_some());
        drop(two);
        assert_eq!(shares.in_use(), 0);
        assert!(KeyShares::of(1).account([1; 12]).place().is_some(), "at least one");
    }

    #[test]
    fn accounts_that_have_ended_are_not_kept_for_ever() {
        let shares = KeyShares::of(4);
        let held = shares.account([0; 12]);
        for key in 1..=u32::from(u16::MAX) {
            let mut tag = [1; 12];
            tag[..4].copy_from_slice(&key.to_be_bytes());
            drop(shares.account(tag));
        }
        let count = shares.accounts.lock().unwrap().of_keys.len();
        assert!(count <= 2 + SPARE_ACCOUNTS + 1, "{count}");
        assert!(Arc::ptr_eq(&held, &shares.account([0; 12])));
    }
}
