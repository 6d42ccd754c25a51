//! Counts failed credentials by address and minute, so that guessing does not fill the audit log.
//!
//! **Invariant:** at most [`ADDRESSES_MAX`] addresses are counted separately. All others are counted together.

use std::{collections::BTreeMap, net::IpAddr};

use super::line::AuditEvent;
use concord_model::time::Timestamp;

/// Addresses that are counted separately in a minute: some 100 kB.
const ADDRESSES_MAX: usize = 1024;
/// How long an address is counted before its line is written, in microseconds.
const WINDOW_US: u64 = 60 * 1_000_000;
/// The status of a request that was rejected before its credential was checked.
const THROTTLED: u16 = 429;

/// The failures of one address since its first one.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    since: Timestamp,
    /// Further failures. The first one has a line of its own.
    more: u64,
    /// The further failures whose credential was not checked.
    throttled: u64,
}

/// The counts of all addresses.
#[derive(Debug, Default)]
pub(super) struct FailedCredentialCounts {
    by_address: BTreeMap<Option<IpAddr>, Counted>,
    others: Counted,
}

impl FailedCredentialCounts {
    /// Counts a failure. True if it is the first of its address, which gets a line of its own.
    pub(super) fn note(&mut self, address: Option<IpAddr>, at: Timestamp, status: Option<u16>) -> bool {
        let throttled = u64::from(status == Some(THROTTLED));
        if !self.by_address.contains_key(&address) {
            if self.by_address.len() < ADDRESSES_MAX {
                self.by_address.insert(address, Counted { since: at, ..Counted::default() });
                return true;
            }
            if self.others.more == 0 {
                self.others.since = at;
            }
            self.others.more += 1;
            self.others.throttled += throttled;
            return false;
        }
        if let Some(counted) = self.by_address.get_mut(&address) {
            counted.more += 1;
            counted.throttled += throttled;
        }
        false
    }

    /// The lines that are due: of addresses whose minute is over, or of all addresses.
    pub(super) fn take_due(&mut self, now: Timestamp, all: bool) -> Vec<AuditEvent> {
        let is_due = |counted: &Counted| {
            // After a clock went back, an address is still kept for a minute at most.
            all || now < counted.since || now.0 - counted.since.0 >= WINDOW_US
        };
        let event = |address, Counted { more, throttled, .. }: Counted| {
            (more > 0).then_some(AuditEvent::FailedCredentials { address, count: more, throttled })
        };
        let mut events = Vec::new();
        self.by_address.retain(|address, counted| {
            if is_due(counted) {
                events.extend(event(*address, *counted));
            }
            !is_due(counted)
        });
        if self.others.more > 0 && is_due(&self.others) {
            events.extend(event(None, std::mem::take(&mut self.others)));
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn an_address_has_two_lines_a_minute() {
        let mut failed = FailedCredentialCounts::default();
        assert!(failed.note(Some(address(1)), Timestamp(0), Some(401)));
        for _ in 0..9 {
            assert!(!failed.note(Some(address(1)), Timestamp(1), Some(401)));
        }
        assert!(!failed.note(Some(address(1)), Timestamp(1), Some(429)));
        assert!(failed.note(Some(address(2)), Timestamp(WINDOW_US / 2), Some(401)));
        assert_eq!(failed.take_due(Timestamp(WINDOW_US - 1), false), []);
        let expected = AuditEvent::FailedCredentials { address: Some(address(1)), count: 10, throttled: 1 };
        assert_eq!(failed.take_due(Timestamp(WINDOW_US), false), [expected]);
        assert!(failed.note(Some(address(1)), Timestamp(WINDOW_US), Some(401)), "the next minute");
        assert_eq!(failed.take_due(Timestamp(WINDOW_US), true), [], "a single failure has its line already");
        assert!(failed.by_address.is_empty());
    }

    #[test]
    fn the_memory_for_addresses_is_bounded() {
        let mut failed = FailedCredentialCounts::default();
        let lines = (0..100_000)
            .filter(|number| failed.note(Some(address(*number)), Timestamp(5), Some(401)))
            .count();
        assert_eq!((lines, failed.by_address.len()), (ADDRESSES_MAX, ADDRESSES_MAX));
        let rest = 100_000 - ADDRESSES_MAX as u64;
        let expected = AuditEvent::FailedCredentials { address: None, count: rest, throttled: 0 };
        assert_eq!(failed.take_due(Timestamp(5), true), [expected]);
    }

    #[test]
    fn no_address_is_kept_after_the_clock_goes_back() {
        let mut failed = FailedCredentialCounts::default();
        failed.note(Some(address(1)), Timestamp(10 * WINDOW_US), Some(401));
        failed.take_due(Timestamp(WINDOW_US), false);
        assert!(failed.by_address.is_empty());
    }
}
