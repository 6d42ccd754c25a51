//! Limits the memory of the requests in flight with one budget of bytes.
//!
//! A limit on the number of requests would not limit memory: one body can have 8 MiB, and a page of a list far more. So
//! a request reserves bytes here before it allocates them. No request waits: if the bytes do not fit, it is rejected
//! with 429.
//!
//! | share | of the budget | for |
//! |---|---|---|
//! | pins | three eighths | states that are retained for cursors and watches (`read/pinned.rs`) |
//! | past | one eighth | earlier states that were rebuilt for lists (`read/earlier/states.rs`) |
//! | callers | three eighths | request bodies and what is made of them, responses, events that watches hold |
//! | peers | one eighth | peer RPCs: forwarded writes, pages, parts of the history |
//!
//! - Reservations above [`SMALL_BYTES`] can use three quarters of their share, so that a few large requests do not
//!   cause the rejection of many small ones.
//! - Clients can't use the share of the peers, so that a follower's write reaches an overloaded leader.
//! - A request above this limit is admitted if no other large request is in flight. It counts as three quarters of its
//!   share, so that small requests still fit.
//! - An access key can use half of the clients' share (`key_shares.rs`). A larger request is admitted if the key has no
//!   other request in flight.
//!
//! **Invariant:** the reservations of a share exceed its bytes by one request at most. Dropping a reservation releases
//! its bytes.

use std::sync::{Arc, atomic::Ordering};

use super::{
    Refusal,
    key_shares::{KeyShares, ShareAccount},
    origin::Origin,
};

/// Bytes up to which a reservation counts as small: larger than common configs, much smaller than a share.
pub const SMALL_BYTES: u64 = 64 << 10;

/// The share that bytes are reserved from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// Client requests.
    Callers,
    /// Peer RPCs.
    Peers,
}

/// The budget of a node.
#[derive(Debug)]
pub struct MemoryBudget {
    pins_max: u64,
    past_max: u64,
    callers: Arc<ShareAccount>,
    peers: Arc<ShareAccount>,
    /// The reservations of each access key in the clients' share.
    of_keys: KeyShares,
}

/// Reserved bytes. Dropping it releases them.
#[derive(Debug)]
pub struct Reservation {
    account: Arc<ShareAccount>,
    /// The account of the request's access key.
    of_key: Option<Arc<ShareAccount>>,
    bytes: u64,
}

impl MemoryBudget {
    /// A budget of this many bytes.
    pub fn new(bytes: u64) -> Self {
        let (callers, peers) = (ShareAccount::new(bytes / 8 * 3), ShareAccount::new(bytes / 8));
        let of_keys = KeyShares::of(callers.max);
        Self { pins_max: bytes / 8 * 3, past_max: bytes / 8, callers, peers, of_keys }
    }

    /// The bytes that all pinned states may keep in memory.
    pub(super) fn pins_max(&self) -> u64 {
        self.pins_max
    }

    /// The reserved bytes of a share, and their limit.
    pub(super) fn used(&self, share: Share) -> [u64; 2] {
        let account = match share {
            Share::Callers => &self.callers,
            Share::Peers => &self.peers,
        };
        [account.used.load(Ordering::Relaxed), account.max]
    }

    /// The bytes that all states at earlier revisions may keep in memory.
    pub(super) fn past_max(&self) -> u64 {
        self.past_max
    }

    /// The bytes of one response above which it is rejected, whatever else is in flight.
    pub(super) fn answer_max(&self) -> u64 {
        large_max(&self.callers)
    }

    /// An empty reservation, which can grow.
    pub fn begin(&self, share: Share) -> Reservation {
        let (account, of_key) = match share {
            Share::Callers => (&self.callers, Origin::current().key().map(|tag| self.of_keys.account(tag))),
            Share::Peers => (&self.peers, None),
        };
        Reservation { account: Arc::clone(account), of_key, bytes: 0 }
    }

    /// Reserves bytes.
    ///
    /// # Errors
    /// [`Refusal::LimitReached`] when they do not fit.
    pub fn reserve(&self, share: Share, bytes: u64) -> Result<Reservation, Refusal> {
        let mut reservation = self.begin(share);
        reservation.grow(bytes)?;
        Ok(reservation)
    }
}

/// How many bytes of a share can be filled by reservations that are not small.
fn large_max(share: &ShareAccount) -> u64 {
    share.max / 4 * 3
}

impl Reservation {
    /// Reserves more bytes. After an error the reservation is unchanged.
    ///
    /// # Errors
    /// [`Refusal::LimitReached`] when they do not fit.
    pub fn grow(&mut self, bytes: u64) -> Result<(), Refusal> {
        let all = self.bytes.saturating_add(bytes);
        let large_max = large_max(&self.account);
        let max = if all <= SMALL_BYTES { self.account.max } else { large_max };
        // The bytes of the reservation afterwards; `None` if they do not fit.
        let grown = |used: u64| {
            let is_alone = used <= self.bytes.saturating_add(SMALL_BYTES);
            if used.saturating_add(bytes) <= max || concord_model::sabotage::is("budget-ignored") {
                Some(all)
            } else {
                (is_alone && all > SMALL_BYTES).then(|| all.min(large_max).max(self.bytes))
            }
        };
        let add = |used: u64| Some(used.saturating_add(grown(used)? - self.bytes));
        let before = self.account.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        let after = before.ok().and_then(grown).ok_or_else(refusal)?;
        let more = after - self.bytes;
        if let Some(key) = &self.of_key
            && !key.add(more, self.bytes)
        {
            self.account.used.fetch_sub(more, Ordering::Relaxed);
            return Err(Refusal::LimitReached(
                "this access key has reached its limit of memory for requests in flight on this node".into(),
            ));
        }
        self.bytes = after;
        Ok(())
    }

    /// Reserves more bytes even if they do not fit, for a request that can no longer be rejected.
    pub fn grow_anyway(&mut self, bytes: u64) {
        for account in std::iter::once(&self.account).chain(&self.of_key) {
            account.used.fetch_add(bytes, Ordering::Relaxed);
        }
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Sets the reserved bytes, even if they do not fit.
    pub fn set(&mut self, bytes: u64) {
        self.grow_anyway(bytes.saturating_sub(self.bytes));
        drop(self.split(self.bytes.saturating_sub(bytes)));
    }

    /// Moves up to this many bytes to a new reservation.
    #[must_use]
    pub fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { account: Arc::clone(&self.account), of_key: self.of_key.clone(), bytes }
    }

    /// The reserved bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether more than half of the share is in use, so that slow clients may cause the rejection of other requests.
    #[must_use]
    pub fn is_share_scarce(&self) -> bool {
        self.account.used.load(Ordering::Relaxed) > self.account.max / 2
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        for account in std::iter::once(&self.account).chain(&self.of_key) {
            account.used.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// The rejection of bytes that do not fit.
pub fn refusal() -> Refusal {
    Refusal::LimitReached(
        "this node has reached its limit of memory for requests in flight (`--in-flight-bytes`)".into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn small_requests_fit_beside_large_ones() {
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
        assert!(budget.reserve(Share::Peers, MIB).is_ok(), "peers have a share of their own");
        drop(held);
        assert!(budget.reserve(Share::Callers, MIB).is_ok());
    }

    #[test]
    fn a_request_beyond_the_share_is_admitted_alone() {
        let budget = MemoryBudget::new(64 * MIB);
        let small = budget.reserve(Share::Callers, SMALL_BYTES).unwrap();
        let huge = budget.reserve(Share::Callers, 100 * MIB).unwrap();
        assert!(budget.reserve(Share::Callers, MIB).is_err(), "not beside it");
        let beside = budget.reserve(Share::Callers, SMALL_BYTES).expect("small ones fit beside it");
        drop((huge, beside));
        let mut grown = budget.reserve(Share::Callers, MIB).unwrap();
        grown.grow(100 * MIB).unwrap();
        drop((small, grown));
        let mut one = budget.reserve(Share::Callers, MIB).unwrap();
        let other = budget.reserve(Share::Callers, MIB).unwrap();
        assert!(one.grow(100 * MIB).is_err());
        one.grow(MIB).unwrap();
        drop((one, other));
        assert_eq!(budget.callers.used.load(Ordering::Relaxed), 0, "a rejected growth reserves nothing");
    }

    #[tokio::test]
    async fn a_stored_key_can_not_use_the_whole_share() {
        let budget = MemoryBudget::new(64 * MIB);
        let origin = |key: u8| Origin::Key([key; 12], [127, 0, 0, 1].into());
        let take = async |key: u8, bytes: u64| {
            origin(key).serve(async { budget.reserve(Share::Callers, bytes) }).await
        };
        let mut held = Vec::new();
        while let Ok(more) = take(1, MIB).await {
            held.push(more);
        }
        assert_eq!(held.len(), 12, "half of 24 MiB");
        assert!(take(1, 1).await.is_err());
        let other = take(2, MIB).await.expect("it fits for another key");
        budget.reserve(Share::Callers, MIB).expect("and for the root key");
        drop(held);
        let mut whole = take(1, 16 * MIB).await.expect("alone it may be larger than the limit of a key");
        assert!(take(1, 1).await.is_err(), "not beside it");
        let part = whole.split(10 * MIB);
        drop(whole);
        drop(take(1, MIB).await.expect("released bytes are available to the key"));
        drop((part, other));
        assert_eq!(budget.callers.used.load(Ordering::Relaxed), 0);
        assert_eq!(budget.of_keys.in_use(), 0);
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
    fn forced_reservations_count() {
        let budget = MemoryBudget::new(64 * MIB);
        let mut forced = budget.begin(Share::Callers);
        assert!(!forced.is_share_scarce());
        forced.grow_anyway(30 * MIB);
        assert!(forced.is_share_scarce() && budget.reserve(Share::Callers, 1).is_err());
        drop(forced);
        assert!(budget.reserve(Share::Callers, 1).is_ok());
    }
}
