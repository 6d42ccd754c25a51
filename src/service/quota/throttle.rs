//! Failed credentials of an address: beyond some a minute, the next one is refused before it is looked at.
//!
//! For IPv6 an address is its network of 64 bits. A credential that was good on a connection goes on there whatever
//! others of the same address do: behind one address there may be many callers, of whom one guesses. That tells a
//! guesser nothing, since they would have to have it.
//!
//! **Invariants:** while no address is throttled, a request costs one look at a number. At most [`ADDRESSES_MAX`]
//! addresses are remembered; those that have failed least make way.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use sha2::{Digest as _, Sha256};

use super::{
    Exceeded,
    bucket::{Rate, SECOND, seconds},
};
use crate::service::origin::CallerAddress;

/// Addresses that are remembered: some 300 kB.
const ADDRESSES_MAX: usize = 4096;
/// The time in which they are counted.
const WINDOW: u64 = 60 * SECOND;

/// The failed credentials of all addresses.
#[derive(Debug)]
pub(in crate::service) struct FailedCredentials {
    rate: Rate,
    begin: Instant,
    /// The last time at which an address is throttled; 0 while there is none.
    until: AtomicU64,
    /// For each address when all of its tries are there again.
    addresses: Mutex<BTreeMap<IpAddr, u64>>,
}

/// A part of a credential's digest, never 0.
fn digest(credential: &[u8]) -> u64 {
    let digest: [u8; 32] = Sha256::digest(credential).into();
    let (first, _) = digest.split_first_chunk().expect("32 bytes have a first 8");
    u64::from_be_bytes(*first).max(1)
}

/// Notes that a credential was good on the connection of this request, where it is the first one.
pub(super) fn note_good(credential: &[u8]) {
    let is_first = CallerAddress::with_current(|caller| caller.was_good(0)).unwrap_or(false);
    if is_first {
        let digest = digest(credential);
        CallerAddress::with_current(|caller| caller.note_good(digest));
    }
}

impl FailedCredentials {
    /// Allows so many a minute; 0 for as many as come.
    pub(in crate::service) fn new(per_minute: u64) -> Self {
        Self {
            rate: Rate { count: per_minute, window: WINDOW },
            begin: Instant::now(),
            until: AtomicU64::new(0),
            addresses: Mutex::default(),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn admit(&self, credential: &[u8]) -> Result<(), Exceeded> {
        if self.until.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let Some((group, was_good)) = CallerAddress::with_current(|caller| {
            (caller.group, !caller.was_good(0) && caller.was_good(digest(credential)))
        }) else {
            return Ok(());
        };
        if was_good { Ok(()) } else { self.admit_from(group, self.now()) }
    }

    pub(super) fn note_failed(&self) {
        if let Some(group) = CallerAddress::with_current(|caller| caller.group) {
            self.note_failed_from(group, self.now());
        }
    }

    fn admit_from(&self, address: IpAddr, now: u64) -> Result<(), Exceeded> {
        let until = self.until.load(Ordering::Relaxed);
        if now >= until {
            // Who stores a later time meanwhile wins.
            let _ = self.until.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
            return Ok(());
        }
        let addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(full_at) = addresses.get(&address).copied() else { return Ok(()) };
        drop(addresses);
        self.rate.after_one(full_at, now).map(drop).map_err(|wait| Exceeded {
            text: format!(
                "more than {} credentials from this address were not valid in a minute",
                self.rate.count
            ),
            retry_after_s: seconds(wait),
            rate: None,
        })
    }

    fn note_failed_from(&self, address: IpAddr, now: u64) {
        if self.rate.count == 0 {
            return;
        }
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if addresses.len() >= ADDRESSES_MAX && !addresses.contains_key(&address) {
            addresses.retain(|_, full_at| *full_at > now);
            if addresses.len() >= ADDRESSES_MAX {
                let least =
                    addresses.iter().min_by_key(|(_, full_at)| **full_at).map(|(address, _)| *address);
                addresses.remove(&least.unwrap_or(address));
            }
        }
        let entry = addresses.entry(address).or_default();
        // Those that were looked at while the last token was taken add no time.
        let full_at = self.rate.after_one(*entry, now).unwrap_or(*entry);
        *entry = full_at;
        if self.rate.after_one(full_at, now).is_err() {
            self.until.fetch_max(full_at, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn the_eleventh_of_a_minute_is_not_looked_at() {
        let failed = FailedCredentials::new(10);
        for turn in 0..10 {
            assert_eq!(failed.admit_from(address(1), turn), Ok(()), "{turn}");
            failed.note_failed_from(address(1), turn);
        }
        assert!(failed.until.load(Ordering::Relaxed) > 0);
        let refused = failed.admit_from(address(1), 10).unwrap_err();
        assert_eq!(refused.retry_after_s, 6);
        assert_eq!(failed.admit_from(address(2), 10), Ok(()), "another address");
        assert_eq!(failed.admit_from(address(1), 6 * SECOND + 10), Ok(()), "one is there again");
        failed.note_failed_from(address(1), 6 * SECOND + 10);
        assert!(failed.admit_from(address(1), 6 * SECOND + 10).is_err());
        assert_eq!(failed.admit_from(address(1), 3 * WINDOW), Ok(()));
        assert_eq!(failed.until.load(Ordering::Relaxed), 0, "nothing is looked up any more");
    }

    #[test]
    fn the_memory_for_addresses_is_bounded_and_the_guilty_stay() {
        let failed = FailedCredentials::new(10);
        for _ in 0..10 {
            failed.note_failed_from(address(7), 1);
        }
        for number in 100..100 + 3 * ADDRESSES_MAX as u32 {
            failed.note_failed_from(address(number), 1);
        }
        assert_eq!(failed.addresses.lock().unwrap().len(), ADDRESSES_MAX);
        assert!(failed.admit_from(address(7), 2).is_err());
    }

    #[test]
    fn a_limit_of_none_throttles_nobody() {
        let failed = FailedCredentials::new(0);
        for _ in 0..1000 {
            failed.note_failed_from(address(1), 1);
        }
        assert_eq!(failed.admit_from(address(1), 1), Ok(()));
    }

    #[tokio::test]
    async fn a_credential_that_was_good_on_a_connection_goes_on_there() {
        let failed = FailedCredentials::new(1);
        let caller = CallerAddress::new(address(1), address(1));
        let other = CallerAddress::new(address(1), address(1));
        let good = async {
            assert_eq!(failed.admit(b"good"), Ok(()));
            note_good(b"good");
            note_good(b"good too");
        };
        caller.clone().serve(good).await;
        other.serve(async { failed.note_failed() }).await;
        let later = async {
            assert_eq!(failed.admit(b"good"), Ok(()), "the first one");
            assert!(failed.admit(b"good too").is_err(), "only the first one");
            assert!(failed.admit(b"guessed").is_err());
        };
        caller.serve(later).await;
        let elsewhere = CallerAddress::new(address(1), address(1));
        elsewhere.serve(async { assert!(failed.admit(b"good").is_err(), "a new connection") }).await;
    }
}
