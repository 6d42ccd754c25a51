//! Quotas on this node: rates, open watches, lists and cursors by access key; failed credentials by address.
//!
//! | to find | look in |
//! |---|---|
//! | token buckets | `bucket` |
//! | the use of a key's quota on this node | `account` |
//! | a rate for each of many keys | `pace` |
//! | failed credentials of an address | `throttle` |
//!
//! Each node counts only its own requests: cluster-wide counting would cost every request an RPC. The bytes and records that
//! a key may store are counted exactly, where writes are decided (`state`).
//!
//! The root key has no quota, so that an operator can always repair the cluster.
//!
//! **Invariant:** a request with the root key, or with a key without a quota, takes no lock and no memory here.

mod account;
mod bucket;
pub(crate) mod pace;
mod throttle;

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use tokio::time::Instant;

use super::{context::Context, request::Principal};
use account::KeyAccount;
pub use account::{Gauge, GaugeGuard};
use concord_consensus::Consensus;
use concord_model::access_key::{KeyId, Quota};
pub use throttle::CredentialAttempt;
use throttle::FailedCredentials;

/// The number of accounts above which unused ones are removed: their buckets are full anyway.
const ACCOUNTS_MAX: usize = 4096;

/// Failed logins of an address in a minute.
const FAILED_LOGINS: u64 = 60;

/// A limit that a request has reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exceeded {
    /// The message.
    pub text: String,
    /// Seconds after which it may be tried again.
    pub retry_after_s: u64,
    /// The rate, if the limit is one.
    pub rate: Option<RateLeft>,
}

/// The rest of a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLeft {
    /// What the rate counts.
    pub name: &'static str,
    /// Its quota per second.
    pub per_second: u64,
    /// How many are left now.
    pub left: u64,
    /// Seconds after which the rate is full again.
    pub reset_s: u64,
}

/// What a key has left on this node. `None` if it has no such limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuotaLeft {
    /// Requests now.
    pub requests: Option<u64>,
    /// Writes now.
    pub writes: Option<u64>,
    /// Stored bytes, according to the applied state of this node.
    pub bytes: Option<u64>,
    /// Stored records, likewise.
    pub records: Option<u64>,
    /// Watches.
    pub watches: Option<u64>,
    /// Cursors.
    pub cursors: Option<u64>,
    /// Lists.
    pub lists: Option<u64>,
}

/// The accounts of the keys with a quota.
#[derive(Debug)]
struct KeyAccounts {
    /// The quota of keys without one of their own.
    defaults: Quota,
    accounts: RwLock<BTreeMap<KeyId, Arc<KeyAccount>>>,
    begin: Instant,
}

impl KeyAccounts {
    fn new(defaults: Quota) -> Self {
        Self { defaults, accounts: RwLock::default(), begin: Instant::now() }
    }

    /// The quota of a principal on this node. `None` if it has none here.
    fn of(&self, principal: &Principal) -> Option<(Quota, KeyId)> {
        let key = principal.key()?;
        let (own, defaults) = (&key.quota, &self.defaults);
        let quota = Quota {
            requests_per_second: own.requests_per_second.or(defaults.requests_per_second),
            writes_per_second: own.writes_per_second.or(defaults.writes_per_second),
            watches: own.watches.or(defaults.watches),
            cursors: own.cursors.or(defaults.cursors),
            lists: own.lists.or(defaults.lists),
            // The log decides these with each write.
            bytes: None,
            records: None,
        };
        (quota != Quota::default()).then(|| (quota, key.id.clone()))
    }

    /// The number of accounts.
    fn count(&self) -> usize {
        self.accounts.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn account(&self, id: KeyId) -> Arc<KeyAccount> {
        let accounts = self.accounts.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = accounts.get(&id) {
            return Arc::clone(account);
        }
        drop(accounts);
        let mut accounts = self.accounts.write().unwrap_or_else(PoisonError::into_inner);
        if accounts.len() >= ACCOUNTS_MAX {
            let now = self.now();
            accounts.retain(|_, account| Arc::strong_count(account) > 1 || account.is_in_use(now));
        }
        Arc::clone(accounts.entry(id).or_default())
    }

    /// Nanoseconds since the node began.
    fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The quotas of access keys on this node, and the failed credentials of addresses.
#[derive(Debug)]
pub struct Quotas {
    cx: Arc<Context>,
    accounts: KeyAccounts,
    failed_credentials: FailedCredentials,
    failed_logins: FailedCredentials,
}

impl Quotas {
    pub(super) fn new(cx: &Arc<Context>) -> Self {
        let accounts = KeyAccounts::new(cx.options.quotas);
        let failed_credentials = FailedCredentials::new(cx.options.failed_credentials);
        let failed_logins = FailedCredentials::new(FAILED_LOGINS);
        Self { cx: Arc::clone(cx), accounts, failed_credentials, failed_logins }
    }

    /// The keys and the addresses that are counted.
    pub(super) fn counts(&self) -> [usize; 2] {
        [self.accounts.count(), self.failed_credentials.count()]
    }

    /// Counts a request of a key against its rates. What is left of the scarcest one, where there is any.
    ///
    /// # Errors
    /// When a rate is used up; the request counts for nothing then.
    pub fn admit_request(&self, principal: &Principal, is_write: bool) -> Result<Option<RateLeft>, Exceeded> {
        let quotas = &self.accounts;
        let Some((quota, id)) = quotas.of(principal) else { return Ok(None) };
        let writes = quota.writes_per_second.filter(|_| is_write);
        if quota.requests_per_second.is_none() && writes.is_none() {
            return Ok(None);
        }
        quotas.account(id).take(quota.requests_per_second, writes, quotas.now())
    }

    /// Takes one of a key's places for what stays open; `None` when the key has no limit of them.
    ///
    /// # Errors
    /// When all are taken.
    pub fn admit_open(&self, principal: &Principal, gauge: Gauge) -> Result<Option<GaugeGuard>, Exceeded> {
        let quotas = &self.accounts;
        let Some((quota, id)) = quotas.of(principal) else { return Ok(None) };
        let max = match gauge {
            Gauge::Watches => quota.watches,
            Gauge::Lists => quota.lists,
        };
        max.map(|max| quotas.account(id).open(gauge, max)).transpose()
    }

    /// Refuses the first page of a list while the key has as many cursors as it may.
    ///
    /// # Errors
    /// When it has.
    pub fn admit_cursor(&self, principal: &Principal) -> Result<(), Exceeded> {
        let quotas = &self.accounts;
        let Some((Quota { cursors: Some(max), .. }, id)) = quotas.of(principal) else { return Ok(()) };
        quotas.account(id).admit_cursor(max, quotas.now())
    }

    /// Notes that a list has begun a cursor, or that the last page of one was read.
    pub fn note_cursor(&self, principal: &Principal, has_begun: bool) {
        let quotas = &self.accounts;
        if let Some((Quota { cursors: Some(_), .. }, id)) = quotas.of(principal) {
            quotas.account(id).note_cursor(has_begun, quotas.now());
        }
    }

    /// What a principal has left on this node.
    #[must_use]
    pub fn quota_left(&self, principal: &Principal) -> QuotaLeft {
        let quotas = &self.accounts;
        let left = quotas.of(principal).map(|(quota, id)| quotas.account(id).left(&quota, quotas.now()));
        let left = left.unwrap_or_default();
        let Some(key) = principal.key() else { return left };
        let Quota { bytes, records, .. } = key.quota;
        let state =
            self.cx.consensus().filter(|_| bytes.is_some() || records.is_some()).map(Consensus::state);
        let stored = state.map(|state| state.stored_under(&key.grants)).unwrap_or_default();
        QuotaLeft {
            bytes: bytes.map(|most| most.saturating_sub(stored.bytes)),
            records: records.map(|most| most.saturating_sub(stored.records)),
            ..left
        }
    }

    /// Counts a login with a token that no provider has signed.
    ///
    /// # Errors
    /// When there were too many from the address of the client in the last minute: then it is told no reason.
    pub fn count_failed_login(&self) -> Result<(), Exceeded> {
        self.failed_logins.count_failure()
    }

    /// Admits a credential to be checked, unless too many from its address have failed in the last minute.
    ///
    /// # Errors
    /// When it may be tried again.
    pub fn admit_credential(&self, credential: &[u8]) -> Result<CredentialAttempt<'_>, Exceeded> {
        self.failed_credentials.admit(credential)
    }
}

#[cfg(test)]
mod tests;
