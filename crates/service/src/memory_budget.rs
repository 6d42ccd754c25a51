//! One budget of bytes for what the requests in flight hold in memory.
//!
//! A count of requests bounds nothing: one body may have 8 MiB, one page of a list a hundred. So what a request holds
//! is weighed, and reserved here before it is allocated. Nothing waits: what does not fit is refused with 429.
//!
//! | share | of | for |
//! |---|---|---|
//! | pins | three eighths | states that are retained for cursors and watches (`read/pinned.rs`) |
//! | past | one eighth | earlier states that lists have made again (`read/earlier/retained.rs`) |
//! | callers | three eighths | bodies of requests and what is made of them, answers, events that watches hold |
//! | peers | one eighth | calls of other nodes: forwarded writes, pages, parts of the history |
//!
//! What is larger than [`SMALL_BYTES`] may use three quarters of its share, so that few large requests never refuse the
//! many small ones; and the callers can't use the share of the peers, so that a follower's write reaches a leader that
//! is under attack. A request that is larger than all this is admitted while no other large one is,
//! and counts as three quarters of its share, so that the small ones beside it find their room.
//!
//! Of the share of the callers a stored key may use one half (`KEY_PART`), so that one greedy key leaves room to the
//! others; a request of its own that is larger is admitted while it has no other.
//!
//! **Invariant:** a share holds at most its bytes and one request beyond; what is reserved is released when its holder
//! is dropped.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    Refusal,
    origin::{KeyTag, Origin},
};

/// Bytes up to which a reservation counts as small: above common configs, below what could fill a share soon.
pub const SMALL_BYTES: u64 = 64 << 10;

/// The part of the callers' share that one stored key may use.
const KEY_PART: u64 = 2;

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
pub struct MemoryBudget {
    pins_max: u64,
    past_max: u64,
    callers: Arc<ShareAccount>,
    peers: Arc<ShareAccount>,
    /// What stored keys have reserved of the callers' share.
    of_keys: Mutex<BTreeMap<KeyTag, Weak<ShareAccount>>>,
}

/// What one share has reserved.
#[derive(Debug)]
struct ShareAccount {
    max: u64,
    used: AtomicU64,
}

/// Reserved bytes. Dropping it releases them.
#[derive(Debug)]
pub struct Reservation {
    account: Arc<ShareAccount>,
    /// That of the stored key which it is for.
    of_key: Option<Arc<ShareAccount>>,
    bytes: u64,
}

impl MemoryBudget {
    /// A budget of so many bytes.
    pub fn new(bytes: u64) -> Self {
        let account = |max| Arc::new(ShareAccount { max, used: AtomicU64::new(0) });
        let (callers, peers) = (account(bytes / 8 * 3), account(bytes / 8));
        Self { pins_max: bytes / 8 * 3, past_max: bytes / 8, callers, peers, of_keys: Mutex::default() }
    }

    /// The bytes that all pins may keep in memory.
    pub(super) fn pins_max(&self) -> u64 {
        self.pins_max
    }

    /// What a share has reserved, and what it may.
    pub(super) fn used(&self, share: Share) -> [u64; 2] {
        let account = match share {
            Share::Callers => &self.callers,
            Share::Peers => &self.peers,
        };
        [account.used.load(Ordering::Relaxed), account.max]
    }

    /// The bytes that all earlier states may keep in memory.
    pub(super) fn past_max(&self) -> u64 {
        self.past_max
    }

    /// The bytes of one answer above which it is refused whatever else is in flight.
    pub(super) fn answer_max(&self) -> u64 {
        self.callers.large_max()
    }

    /// An empty reservation, which grows.
    pub fn begin(&self, share: Share) -> Reservation {
        let (account, of_key) = match share {
            Share::Callers => (&self.callers, Origin::current().key().map(|tag| self.of_key(tag))),
            Share::Peers => (&self.peers, None),
        };
        Reservation { account: Arc::clone(account), of_key, bytes: 0 }
    }

    /// The account of a stored key, which lives as long as a reservation of it.
    fn of_key(&self, tag: KeyTag) -> Arc<ShareAccount> {
        // Nothing panics while it is held, and an account that is lost counts from zero again.
        let mut accounts = self.of_keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = accounts.get(&tag).and_then(Weak::upgrade) {
            return found;
        }
        accounts.retain(|_, account| account.strong_count() > 0);
        let new = Arc::new(ShareAccount { max: self.callers.max / KEY_PART, used: AtomicU64::new(0) });
        accounts.insert(tag, Arc::downgrade(&new));
        new
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

impl ShareAccount {
    /// What a reservation that is not small may use.
    fn large_max(&self) -> u64 {
        self.max / 4 * 3
    }

    /// Adds bytes to those that one holder has, if they fit or if it is the only holder.
    fn add(&self, bytes: u64, held: u64) -> bool {
        let fits = |used: u64| used.saturating_add(bytes) <= self.max || used <= held;
        let add = |used: u64| fits(used).then(|| used.saturating_add(bytes));
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
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
                "the requests of this access key in flight hold as much memory as this node gives one key"
                    .into(),
            ));
        }
        self.bytes = after;
        Ok(())
    }

    /// Reserves more bytes although they may not fit: for what can't be refused any more.
    pub fn grow_anyway(&mut self, bytes: u64) {
        for account in std::iter::once(&self.account).chain(&self.of_key) {
            account.used.fetch_add(bytes, Ordering::Relaxed);
        }
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
        Self { account: Arc::clone(&self.account), of_key: self.of_key.clone(), bytes }
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
        for account in std::iter::once(&self.account).chain(&self.of_key) {
            account.used.fetch_sub(self.bytes, Ordering::Relaxed);
        }
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

    #[tokio::test]
    async fn a_stored_key_leaves_room_to_others() {
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
        let other = take(2, MIB).await.expect("there is room for another key");
        budget.reserve(Share::Callers, MIB).expect("and for the root key");
        drop(held);
        let mut whole = take(1, 16 * MIB).await.expect("alone it may be larger than the part of a key");
        assert!(take(1, 1).await.is_err(), "not beside it");
        let part = whole.split(10 * MIB);
        drop(whole);
        drop(take(1, MIB).await.expect("what was given back counts for the key"));
        drop((part, other));
        assert_eq!(budget.callers.used.load(Ordering::Relaxed), 0);
        assert!(budget.of_keys.lock().unwrap().values().all(|account| account.strong_count() == 0));
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
