//! How many logins and changes of roles the leader accepts, and which keys of providers nodes have asked it to fetch.
//!
//! A login is an entry of the log, and a change of a role makes the writes of all sessions that wait stale once. So both have
//! a rate, which the leader counts: a node alone could be one of many.
//!
//! **Invariant:** one owner, and one provider, never use up what all others have.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use tokio::time::Instant;

use crate::{
    quota::pace::{Pace, Rate, SECOND},
    request::{IdentityWrite, Refusal},
};
use concord_model::{
    limits::PROVIDERS_MAX,
    system::identity::{OwnerTag, ProviderId},
};

/// Logins of one owner: ten at once, then one a second.
const OWNER_RATE: Rate = Rate { count: 10, window: 10 * SECOND };
/// Logins of one provider: it leaves as many to the others.
const PROVIDER_RATE: Rate = Rate { count: 10, window: SECOND };
/// Logins in all: each is an entry of the log.
const RATE: Rate = Rate { count: 20, window: SECOND };
/// Changes of providers and roles: ten at once, then one a second.
const CHANGE_RATE: Rate = Rate { count: 10, window: 10 * SECOND };
/// Owners whose logins are counted.
const OWNERS_MAX: usize = 4096;

/// How many logins and changes of roles the leader accepts, and what nodes have asked it to fetch.
#[derive(Debug)]
pub(crate) struct LoginPace {
    begin: Instant,
    owners: Mutex<Pace<OwnerTag>>,
    providers: Mutex<Pace<ProviderId>>,
    all: Mutex<Pace<()>>,
    changes: Mutex<Pace<()>>,
    wanted: Mutex<BTreeSet<ProviderId>>,
}

impl Default for LoginPace {
    fn default() -> Self {
        Self {
            begin: Instant::now(),
            owners: Mutex::new(Pace::new(OWNER_RATE, OWNERS_MAX)),
            providers: Mutex::new(Pace::new(PROVIDER_RATE, PROVIDERS_MAX)),
            all: Mutex::new(Pace::new(RATE, 1)),
            changes: Mutex::new(Pace::new(CHANGE_RATE, 1)),
            wanted: Mutex::default(),
        }
    }
}

impl LoginPace {
    /// Counts a login, or a change of a provider or role: each makes the writes of all sessions that wait stale once.
    ///
    /// # Errors
    /// When there were too many in the last seconds; it counts for nothing then.
    pub(crate) fn count(&self, write: &IdentityWrite) -> Result<(), Refusal> {
        let now = u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let limited = |text: &str| Refusal::LimitReached(text.into());
        if write.changes_policy() {
            let text = "too many changes of identity providers and roles: one a second, and ten at once";
            return take(&self.changes, &(), now).map_err(|()| limited(text));
        }
        let IdentityWrite::OpenSession(new) = write else { return Ok(()) };
        take(&self.owners, &new.owner, now).map_err(|()| {
            limited(
                "too many logins of this machine: it has one a second, and ten at once; share the session between its \
                 processes",
            )
        })?;
        take(&self.providers, &new.provider, now).map_err(|()| {
            limited("too many logins of this identity provider: it has ten a second, half of those of the cluster")
        })?;
        let text = "too many logins: the cluster opens twenty sessions a second";
        take(&self.all, &(), now).map_err(|()| limited(text))
    }

    /// Notes that the keys of a provider are to be fetched soon.
    pub(crate) fn want(&self, provider: ProviderId) {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        // A provider that is gone is asked for no more, but may be among them.
        if wanted.len() >= 2 * PROVIDERS_MAX {
            wanted.clear();
        }
        wanted.insert(provider);
    }

    /// Whether they are; they are no more.
    pub(crate) fn take_wanted(&self, provider: ProviderId) -> bool {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner).remove(&provider)
    }
}

fn take<K: Ord + Clone>(pace: &Mutex<Pace<K>>, key: &K, now: u64) -> Result<(), ()> {
    pace.lock().unwrap_or_else(PoisonError::into_inner).take(key, now).map_err(drop)
}
