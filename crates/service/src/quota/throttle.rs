//! Limits failed credentials per address and minute. Above the limit, a credential is rejected before it is checked.
//!
//! For IPv6 an address is its 64-bit network. An attempt is taken before the credential is checked and given back if it is
//! valid. So concurrent guesses get no more attempts than sequential ones.
//!
//! Only a known failure counts. A credential that only a newer state can settle holds no attempt while it waits for that
//! state, and counts only if that state does not have it. Otherwise ten clients with a good key would lock out the root
//! key of their address while the node is isolated from the quorum. A guess of a root key never waits: the node knows at
//! once that it is wrong. A stored key has 256 random bits, so nobody guesses one by waiting.
//!
//! Many clients may share an address with one that guesses. So two kinds of credentials are not limited:
//!
//! - The last valid credential of a connection, on that connection. The connection keeps a keyed hash of it.
//! - A stored key of the applied state, however old that is (`Authentication::is_stored`), because it can't be guessed.
//!
//! Both reveal nothing to a guesser, who would have to have the credential. Only a root key on a new connection, and a key
//! that this node has not yet applied, are affected by other clients of their address.
//!
//! A login counts its failures in another instance, which rejects nothing before it is validated: a forged token is not a
//! guess, as no number of them helps.
//!
//! **Invariants:** an attempt is never held across an `await`. A request with the last valid credential of its connection
//! takes no lock.

use std::{
    net::IpAddr,
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{
    Exceeded,
    bucket::seconds,
    pace::{Pace, Rate, SECOND},
};
use crate::origin::CallerAddress;

/// Addresses that are kept at most: some 300 kB.
const ADDRESSES_MAX: usize = 4096;
/// The time in which failures are counted.
const WINDOW: u64 = 60 * SECOND;

/// The failed credentials of all addresses.
#[derive(Debug)]
pub(crate) struct FailedCredentials {
    rate: Rate,
    begin: Instant,
    addresses: Mutex<Pace<IpAddr>>,
}

/// A credential that may be checked. [`Self::was_good`] or [`Self::has_failed`] notes the result. If it is dropped, the
/// credential could not be checked.
#[derive(Debug)]
#[must_use]
pub struct CredentialAttempt<'a> {
    failed: &'a FailedCredentials,
    hash: u64,
    /// Whether it is new to its connection.
    is_new: bool,
    /// The address whose attempt it holds. `None` if it holds none.
    taken: Option<IpAddr>,
}

/// A hash of a credential, with a seed of this process. Never 0.
fn hash_of(credential: &[u8]) -> u64 {
    static SEED: LazyLock<u64> = LazyLock::new(|| uuid::Uuid::new_v4().as_u64_pair().1);
    xxh3_64_with_seed(credential, *SEED).max(1)
}

impl FailedCredentials {
    /// Allows this many failures a minute; 0 for no limit.
    pub(crate) fn new(per_minute: u64) -> Self {
        let rate = Rate { count: per_minute, window: WINDOW };
        Self { rate, begin: Instant::now(), addresses: Mutex::new(Pace::new(rate, ADDRESSES_MAX)) }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn addresses(&self) -> MutexGuard<'_, Pace<IpAddr>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of addresses whose failures are counted.
    pub(crate) fn count(&self) -> usize {
        self.addresses().len()
    }

    pub(super) fn admit(&self, credential: &[u8]) -> Result<CredentialAttempt<'_>, Exceeded> {
        let free = |hash| Ok(CredentialAttempt { failed: self, hash, is_new: false, taken: None });
        if self.rate.count == 0 {
            return free(0);
        }
        let hash = hash_of(credential);
        let known = CallerAddress::with_current(|caller| (caller.group, caller.was_good(hash)));
        match known {
            // Not a client connection, or its last valid credential.
            None | Some((_, true)) => free(hash),
            Some((address, false)) => {
                self.take(address, self.now())?;
                Ok(CredentialAttempt { failed: self, hash, is_new: true, taken: Some(address) })
            }
        }
    }

    fn take(&self, address: IpAddr, now: u64) -> Result<(), Exceeded> {
        self.addresses().take(&address, now).map_err(|wait| Exceeded {
            text: format!(
                "more than {} credentials from this address were not valid in a minute",
                self.rate.count
            ),
            retry_after_s: seconds(wait),
            rate: None,
        })
    }

    /// Counts a failure of the client whose request this task serves.
    pub(super) fn count_failure(&self) -> Result<(), Exceeded> {
        let address = CallerAddress::with_current(|caller| caller.group).filter(|_| self.rate.count > 0);
        address.map_or(Ok(()), |address| self.take(address, self.now()))
    }

    fn give_back(&self, address: IpAddr, now: u64) {
        self.addresses().give_back(&address, now);
    }
}

impl CredentialAttempt<'_> {
    /// The credential is valid.
    pub fn was_good(self) {
        if self.is_new {
            CallerAddress::with_current(|caller| caller.note_good(self.hash));
        }
        // Gives the attempt back.
        drop(self);
    }

    /// The credential can't be judged yet: it holds no attempt while it waits.
    pub fn waits(&mut self) {
        if let Some(address) = self.taken.take() {
            self.failed.give_back(address, self.failed.now());
        }
    }

    /// The credential is invalid: the attempt is used up.
    pub fn has_failed(mut self) {
        match self.taken.take() {
            Some(_) => {}
            // It was valid before on this connection, and the key was revoked or has expired; or the credential waited for
            // a newer state.
            None => {
                // An error means that no attempt is left to take.
                drop(self.failed.count_failure());
            }
        }
    }
}

impl Drop for CredentialAttempt<'_> {
    fn drop(&mut self) {
        self.waits();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn the_eleventh_failure_in_a_minute_is_not_checked() {
        let failed = FailedCredentials::new(10);
        for turn in 0..10 {
            assert_eq!(failed.take(address(1), turn), Ok(()), "{turn}");
        }
        let refused = failed.take(address(1), 10).unwrap_err();
        assert_eq!(refused.retry_after_s, 6);
        assert_eq!(failed.take(address(2), 10), Ok(()), "another address");
        assert_eq!(failed.take(address(1), 6 * SECOND + 10), Ok(()), "one is available again");
        assert!(failed.take(address(1), 6 * SECOND + 10).is_err());
        failed.give_back(address(1), 6 * SECOND + 10);
        assert_eq!(failed.take(address(1), 6 * SECOND + 10), Ok(()), "a valid one takes none");
        assert_eq!(failed.take(address(1), 3 * WINDOW), Ok(()));
    }

    #[test]
    fn the_memory_for_addresses_is_bounded_and_those_with_most_failures_stay() {
        let failed = FailedCredentials::new(10);
        for _ in 0..10 {
            failed.take(address(7), 1).unwrap();
        }
        for number in (100..).take(3 * ADDRESSES_MAX) {
            failed.take(address(number), 1).unwrap();
        }
        assert_eq!(failed.addresses().len(), ADDRESSES_MAX);
        assert!(failed.take(address(7), 2).is_err());
        let other = FailedCredentials::new(10);
        other.take(address(1), 1).unwrap();
        other.give_back(address(1), 2);
        assert_eq!(other.addresses().len(), 0);
    }

    #[tokio::test]
    async fn a_credential_that_waits_holds_no_attempt_and_counts_once_it_is_known_to_be_invalid() {
        let failed = FailedCredentials::new(2);
        let connection = || CallerAddress::new(address(1), address(1));
        let mut waiting = Vec::new();
        for _ in 0..20 {
            let wait = async {
                let mut attempt = failed.admit(b"unsettled").unwrap();
                attempt.waits();
                attempt
            };
            waiting.push(connection().serve(wait).await);
        }
        assert_eq!(failed.count(), 0, "none is held");
        let caller = connection();
        let later = async {
            waiting.pop().unwrap().was_good();
            assert!(failed.admit(b"unsettled").unwrap().taken.is_none(), "it is known on its connection");
            drop(waiting.pop());
            assert_eq!(failed.count(), 0);
            waiting.pop().unwrap().has_failed();
            waiting.pop().unwrap().has_failed();
            assert!(failed.admit(b"guessed").is_err());
        };
        caller.serve(later).await;
    }

    #[tokio::test]
    async fn a_limit_of_0_throttles_no_client() {
        let failed = FailedCredentials::new(0);
        let caller = CallerAddress::new(address(1), address(1));
        let guesses = async {
            for _ in 0..1000 {
                failed.admit(b"guessed").unwrap().has_failed();
            }
        };
        caller.serve(guesses).await;
    }

    #[tokio::test]
    async fn the_last_valid_credential_of_a_connection_is_not_throttled_there() {
        let failed = FailedCredentials::new(2);
        let connection = || CallerAddress::new(address(1), address(1));
        let caller = connection();
        let good = async {
            for _ in 0..100 {
                failed.admit(b"good").unwrap().was_good();
            }
        };
        caller.clone().serve(good).await;
        let at_once = async {
            let tries = [failed.admit(b"one"), failed.admit(b"two"), failed.admit(b"three")];
            assert_eq!(tries.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, true, false]);
            tries.into_iter().flatten().for_each(CredentialAttempt::has_failed);
        };
        connection().serve(at_once).await;
        let later = async {
            failed.admit(b"good").unwrap().was_good();
            assert!(failed.admit(b"guessed").is_err());
        };
        caller.clone().serve(later).await;
        connection().serve(async { assert!(failed.admit(b"good").is_err(), "a new connection") }).await;
    }
}
