//! One budget of bytes for what the requests in flight hold in memory.
//!
//! A count of requests bounds nothing: one body may have 8 MiB, one page of a list a hundred. So what a request holds
//! is weighed, and reserved here before it is allocated. Nothing waits: what does not fit is refused with 429.
//!
//! | share | of | for |
//! |---|---|---|
//! | pins | one half | states that are retained for cursors and watches (`read/pinned.rs`) |
//! | callers | three eighths | bodies of requests and what is made of them, answers, events that watches hold |
//! | peers | one eighth | calls of other nodes: forwarded writes, pages, parts of the history |
//!
//! What is larger than [`SMALL_BYTES`] may use three quarters of its share, so that few large requests never refuse the
//! many small ones; and the callers can't use the share of the peers, so that a follower's write reaches a leader that
//! is under attack. A request that is larger than all this is admitted while no other large one is,
//! and counts as three quarters of its share, so that the small ones beside it find their room.
//!
//! **Invariant:** a share holds at most its bytes and one request beyond; what is reserved is released when its holder
//! is dropped.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::Refusal;

/// Bytes up to which a reservation counts as small: above common configs, below what could fill a share soon.
pub const SMALL_BYTES: u64 = 64 << 10;

/// For whom bytes are reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// Requests of callers.
    Callers,
    /// Calls of other nodes.
    Peers,
}

/// The budget of a node.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    pins_max: u64,
    callers: Arc<Account>,
    peers: Arc<Account>,
}

/// What one share has reserved.
#[derive(Debug)]
struct Account {
    max: u64,
    used: AtomicU64,
}

/// Reserved bytes. Dropping it releases them.
#[derive(Debug)]
pub struct Reservation {
    account: Arc<Account>,
    bytes: u64,
}

impl MemoryBudget {
    /// A budget of so many bytes.
    pub(crate) fn new(bytes: u64) -> Self {
        let account = |max| Arc::new(Account { max, used: AtomicU64::new(0) });
        Self { pins_max: bytes / 2, callers: account(bytes / 8 * 3), peers: account(bytes / 8) }
    }

    /// The bytes that all pins may keep in memory.
    pub(super) fn pins_max(&self) -> u64 {
        self.pins_max
    }

    /// The bytes of one answer above which it is refused whatever else is in flight.
    pub(super) fn answer_max(&self) -> u64 {
        self.callers.large_max()
    }

    /// An empty reservation, which grows.
    pub(crate) fn begin(&self, share: Share) -> Reservation {
        let account = match share {
            Share::Callers => &self.callers,
            Share::Peers => &self.peers,
        };
        Reservation { account: Arc::clone(account), bytes: 0 }
    }

    /// Reserves bytes.
    ///
    /// # Errors
    /// [`Refusal::LimitReached`] when they do not fit.
    pub(crate) fn reserve(&self, share: Share, bytes: u64) -> Result<Reservation, Refusal> {
        let mut reservation = self.begin(share);
        reservation.grow(bytes)?;
        Ok(reservation)
    }
}

impl Account {
    /// What a reservation that is not small may use.
    fn large_max(&self) -> u64 {
        self.max / 4 * 3
    }
}

impl Reservation {
    /// Reserves more bytes. A refusal leaves it as it was.
    ///
    /// # Errors
    /// [`Refusal::LimitReached`] when they do not fit.
    pub fn grow(&mut self, bytes: u64) -> Result<(), Refusal> {
        let all = self.bytes.saturating_add(bytes);
        let large_max = self.account.large_max();
        let max = if all <= SMALL_BYTES { self.account.max } else { large_max };
        // What it has afterwards.
        let grown = |used: u64| {
            let is_alone = used <= self.bytes.saturating_add(SMALL_BYTES);
            if used.saturating_add(bytes) <= max || crate::sabotage::is("budget-ignored") {
                Some(all)
            } else {
                (is_alone && all > SMALL_BYTES).then(|| all.min(large_max).max(self.bytes))
            }
        };
        let add = |used: u64| Some(used.saturating_add(grown(used)? - self.bytes));
        let before = self.account.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        self.bytes = before.ok().and_then(grown).ok_or_else(refusal)?;
        Ok(())
    }

    /// Reserves more bytes although they may not fit: for what can't be refused any more.
    pub fn grow_anyway(&mut self, bytes: u64) {
        self.account.used.fetch_add(bytes, Ordering::Relaxed);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Makes it so many bytes, although they may not fit.
    pub fn set(&mut self, bytes: u64) {
        self.grow_anyway(bytes.saturating_sub(self.bytes));
        drop(self.split(self.bytes.saturating_sub(bytes)));
    }

    /// Takes so many of its bytes, at most all, as a reservation of their own.
    #[must_use]
    pub fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { account: Arc::clone(&self.account), bytes }
    }

    /// The reserved bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether half of the share is in use, so that slow holders are in the way of others.
    #[must_use]
    pub fn is_share_scarce(&self) -> bool {
        self.account.used.load(Ordering::Relaxed) > self.account.max / 2
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.account.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The refusal of what does not fit.
pub fn refusal() -> Refusal {
    Refusal::LimitReached(
        "the requests in flight hold as much memory as this node gives them (`--in-flight-bytes`)".into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn large_requests_leave_room_for_small_ones() {
        let budget = MemoryBudget::new(64 * MIB);
        let mut held = Vec::new();
        while let Ok(more) = budget.reserve(Share::Callers, MIB) {
            held.push(more);
        }
        assert_eq!(held.len(), 18, "three quarters of 24 MiB");
        let mut small = Vec::new();
        while let Ok(more) = budget.reserve(Share::Callers, SMALL_BYTES) {
            small.push(more);
        }
        assert_eq!(small.len(), 6 * 16);
        assert!(budget.reserve(Share::Callers, 1).is_err());
        assert!(budget.reserve(Share::Peers, MIB).is_ok(), "it has a share of its own");
        drop(held);
        assert!(budget.reserve(Share::Callers, MIB).is_ok());
    }

    #[test]
    fn a_request_beyond_the_share_is_admitted_alone() {
        let budget = MemoryBudget::new(64 * MIB);
        let small = budget.reserve(Share::Callers, SMALL_BYTES).unwrap();
        let huge = budget.reserve(Share::Callers, 100 * MIB).unwrap();
        assert!(budget.reserve(Share::Callers, MIB).is_err(), "not beside it");
        let beside = budget.reserve(Share::Callers, SMALL_BYTES).expect("small ones find room beside it");
        drop((huge, beside));
        let mut grown = budget.reserve(Share::Callers, MIB).unwrap();
        grown.grow(100 * MIB).unwrap();
        drop((small, grown));
        let mut one = budget.reserve(Share::Callers, MIB).unwrap();
        let other = budget.reserve(Share::Callers, MIB).unwrap();
        assert!(one.grow(100 * MIB).is_err());
        one.grow(MIB).unwrap();
        drop((one, other));
        assert_eq!(budget.callers.used.load(Ordering::Relaxed), 0, "a refused growth reserves nothing");
    }

    #[test]
    fn a_reservation_is_given_back_in_parts() {
        let budget = MemoryBudget::new(64 * MIB);
        let used = || budget.callers.used.load(Ordering::Relaxed);
        let mut whole = budget.reserve(Share::Callers, 10 * MIB).unwrap();
        let part = whole.split(4 * MIB);
        assert_eq!((whole.bytes(), part.bytes(), used()), (6 * MIB, 4 * MIB, 10 * MIB));
        drop(part);
        assert_eq!(used(), 6 * MIB);
        whole.set(MIB);
        assert_eq!((whole.bytes(), used()), (MIB, MIB));
        whole.set(100 * MIB);
        assert_eq!(used(), 100 * MIB);
        assert_eq!(whole.split(u64::MAX).bytes(), 100 * MIB);
        assert_eq!(used(), 0);
    }

    #[test]
    fn what_can_not_be_refused_counts_all_the_same() {
        let budget = MemoryBudget::new(64 * MIB);
        let mut forced = budget.begin(Share::Callers);
        assert!(!forced.is_share_scarce());
        forced.grow_anyway(30 * MIB);
        assert!(forced.is_share_scarce() && budget.reserve(Share::Callers, 1).is_err());
        drop(forced);
        assert!(budget.reserve(Share::Callers, 1).is_ok());
    }
}
