//! The places of a listener's connections: how many there are, how many one address may have, and which connection is
//! evicted if all are taken.
//!
//! A new connection evicts the oldest unauthenticated one (see `connection.rs`). So a client that opens connections
//! without a key delays no authenticated client, and takes places from unauthenticated ones only. Eviction begins
//! before the last place is taken, so the accept loop seldom waits for it.
//!
//! **Invariants**
//! 1. No more connections are open than there are places, and no address has more than its share ([`ShareOf`]).
//! 2. The queues hold at most about twice as many entries as there are places.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::{sync::Notify, time::timeout};

use super::connection::ServedConnection;

/// Entries of ended connections are removed from a queue once it has this many more entries than twice the places.
const SPARE_ENTRIES: usize = 64;
/// One in this many places is kept free while there is a connection that can be evicted.
const SPARE_SHARE: usize = 16;
/// The minimum age of a connection that is evicted. By then a request that arrived with it was read.
const EVICTION_AGE_MIN: Duration = Duration::from_millis(100);
/// How long to wait for a place before another connection is evicted: the first may have been authenticated since.
const EVICTION_PATIENCE: Duration = Duration::from_millis(20);
/// How long a connection waits for a place in the share of its address.
const SHARE_PATIENCE: Duration = Duration::from_secs(2);

/// Unauthenticated connections, the oldest first. Some of them may have ended or been authenticated since.
#[derive(Debug, Default)]
struct Unknown(VecDeque<Weak<ServedConnection>>);

impl Unknown {
    fn push(&mut self, connection: &Arc<ServedConnection>, places: usize) {
        if self.0.len() >= places.saturating_mul(2).saturating_add(SPARE_ENTRIES) {
            self.count();
        }
        self.0.push_back(Arc::downgrade(connection));
    }

    /// How many connections are still unauthenticated.
    fn count(&mut self) -> usize {
        self.0.retain(|one| one.upgrade().is_some_and(|one| !one.is_known()));
        self.0.len()
    }

    /// Evicts the oldest connection, if it has had the time to send its credential. Returns whether there was one.
    fn evict_oldest(&mut self) -> bool {
        while let Some(oldest) = self.0.front() {
            match oldest.upgrade().filter(|connection| !connection.is_known()) {
                Some(connection) if connection.age() < EVICTION_AGE_MIN => return false,
                Some(connection) => {
                    connection.evict();
                    self.0.pop_front();
                    return true;
                }
                None => drop(self.0.pop_front()),
            }
        }
        false
    }
}

/// Which connections the share of an address limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareOf {
    /// All connections, because authenticated clients share the node as well.
    All,
    /// Unauthenticated connections only. A node opens one connection for each concurrent RPC, and several nodes may
    /// have the same address. If such a connection were closed, a write would be left without a response.
    Unknown,
}

/// The connections of one address.
#[derive(Debug, Default)]
struct AddressShare {
    open: usize,
    unknown: Unknown,
}

/// The error of an address that has used up its share.
#[derive(Debug)]
pub(super) struct ShareTaken;

#[derive(Debug, Default)]
struct Occupied {
    open: usize,
    unknown: Unknown,
    shares: BTreeMap<IpAddr, AddressShare>,
}

/// The places of a listener.
#[derive(Debug)]
pub(super) struct ConnectionPlaces {
    max: usize,
    share_max: usize,
    share_of: ShareOf,
    occupied: Mutex<Occupied>,
    freed: Notify,
}

impl ConnectionPlaces {
    pub(super) fn new(max: usize, share_max: usize, share_of: ShareOf) -> Self {
        Self { max, share_max, share_of, occupied: Mutex::default(), freed: Notify::new() }
    }

    /// Waits while all places are taken.
    ///
    /// # Errors
    /// If the address has used up its share.
    pub(super) async fn take(
        self: &Arc<Self>,
        address: IpAddr,
        connection: &Arc<ServedConnection>,
    ) -> Result<ConnectionPlace, ShareTaken> {
        loop {
            if let Some(taken) = self.try_take(group(address), connection) {
                return taken;
            }
            self.wait_until_freed().await;
        }
    }

    /// Waits a while for a place in the share of an address.
    pub(super) async fn take_later(
        self: &Arc<Self>,
        address: IpAddr,
        connection: &Arc<ServedConnection>,
    ) -> Option<ConnectionPlace> {
        let taken = async {
            loop {
                if let Some(Ok(place)) = self.try_take(group(address), connection) {
                    return place;
                }
                self.wait_until_freed().await;
            }
        };
        timeout(SHARE_PATIENCE, taken).await.ok()
    }

    async fn wait_until_freed(&self) {
        // After this time the next oldest connection is evicted, which may be old enough by then.
        let _waited_in_vain = timeout(EVICTION_PATIENCE, self.freed.notified()).await.is_err();
    }

    /// Takes a place, and evicts another connection if places are scarce. `None` if all places are taken.
    fn try_take(
        self: &Arc<Self>,
        address: IpAddr,
        connection: &Arc<ServedConnection>,
    ) -> Option<Result<ConnectionPlace, ShareTaken>> {
        let mut occupied = self.lock();
        let Occupied { open, unknown, shares } = &mut *occupied;
        let share = shares.entry(address).or_default();
        let taken = match self.share_of {
            ShareOf::All => share.open,
            // Counted only where it matters, because a node may have thousands of authenticated connections.
            ShareOf::Unknown if is_scarce(share.open, self.share_max) => share.unknown.count(),
            ShareOf::Unknown => 0,
        };
        let has_evicted = is_scarce(taken, self.share_max) && share.unknown.evict_oldest();
        if taken >= self.share_max {
            return Some(Err(ShareTaken));
        }
        // If all connections of this address are authenticated, an unauthenticated one of another address is evicted.
        if !has_evicted && is_scarce(*open, self.max) {
            unknown.evict_oldest();
        }
        if *open >= self.max {
            if share.open == 0 {
                shares.remove(&address);
            }
            return None;
        }
        *open += 1;
        share.open += 1;
        unknown.push(connection, self.max);
        share.unknown.push(connection, self.share_max);
        Some(Ok(ConnectionPlace { places: Arc::clone(self), address }))
    }

    fn lock(&self) -> MutexGuard<'_, Occupied> {
        self.occupied.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether so many places are taken that one should be freed.
fn is_scarce(taken: usize, places: usize) -> bool {
    taken >= places - places / SPARE_SHARE
}

/// A taken place. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct ConnectionPlace {
    places: Arc<ConnectionPlaces>,
    address: IpAddr,
}

impl ConnectionPlace {
    /// The address that has the place, or the network that counts as one address.
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut occupied = self.places.lock();
        occupied.open -= 1;
        if let Some(share) = occupied.shares.get_mut(&self.address) {
            share.open -= 1;
            if share.open == 0 {
                occupied.shares.remove(&self.address);
            }
        }
        drop(occupied);
        self.places.freed.notify_one();
    }
}

/// What counts as one address. For IPv6 it is a network of 64 bits, because a single host usually has all its
/// addresses.
fn group(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & (u128::MAX << 64);
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::connection::{CallerConnection, ConnectionEnd, HeadBudget, Times};
    use http::Extensions;

    fn connection() -> Arc<ServedConnection> {
        Arc::new(ServedConnection::new(Arc::new(HeadBudget::new(0))))
    }

    fn make_known(connection: &Arc<ServedConnection>) {
        let mut extensions = Extensions::new();
        drop(connection.begin(&mut extensions));
        CallerConnection::mark_known(&extensions);
    }

    fn known() -> Arc<ServedConnection> {
        let connection = connection();
        make_known(&connection);
        connection
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    async fn take(
        places: &Arc<ConnectionPlaces>,
        last: u8,
        connection: &Arc<ServedConnection>,
    ) -> Option<ConnectionPlace> {
        timeout(Duration::from_secs(30), places.take(address(last), connection)).await.unwrap().ok()
    }

    #[tokio::test]
    async fn one_address_can_not_take_all_places() {
        let places = Arc::new(ConnectionPlaces::new(4, 2, ShareOf::All));
        let mine = [known(), known(), known()];
        let _one = take(&places, 1, &mine[0]).await.unwrap();
        let two = take(&places, 1, &mine[1]).await.unwrap();
        assert!(take(&places, 1, &mine[2]).await.is_none());
        let _other = take(&places, 2, &known()).await.unwrap();
        let later = places.take_later(address(1), &mine[2]);
        let (place, ()) = tokio::join!(later, async { drop(two) });
        assert!(place.is_some());
    }

    #[tokio::test]
    async fn the_oldest_unknown_connection_makes_way() {
        for (max, share_max) in [(2, 2), (8, 2)] {
            let places = Arc::new(ConnectionPlaces::new(max, share_max, ShareOf::All));
            let (keyed, stranger) = (known(), connection());
            let _keyed = take(&places, 1, &keyed).await.unwrap();
            let taken = take(&places, 1, &stranger).await.unwrap();
            let ends = async {
                let day = Duration::from_secs(24 * 60 * 60);
                let times = Times { header: day, idle: day, send: day };
                assert_eq!(stranger.ending(times, || false).await, ConnectionEnd::Evicted);
                drop(taken);
            };
            let newcomer = connection();
            let (place, ()) = tokio::join!(places.take_later(address(1), &newcomer), ends);
            assert!(place.is_some(), "{max} {share_max}");
        }
    }

    #[tokio::test]
    async fn an_address_with_almost_its_share_takes_the_place_of_a_stranger_elsewhere() {
        let places = Arc::new(ConnectionPlaces::new(32, 16, ShareOf::All));
        let mut taken = Vec::new();
        for _ in 0..15 {
            let keyed = known();
            taken.push((take(&places, 1, &keyed).await.unwrap(), keyed));
        }
        let strangers: Vec<_> = (0..17).map(|_| connection()).collect();
        for (turn, stranger) in strangers.iter().enumerate() {
            let from = if turn % 2 == 0 { 2 } else { 3 };
            taken.push((take(&places, from, stranger).await.unwrap(), Arc::clone(stranger)));
        }
        let day = Duration::from_secs(24 * 60 * 60);
        let ends = async {
            let ending = strangers[0].ending(Times { header: day, idle: day, send: day }, || false).await;
            assert_eq!(ending, ConnectionEnd::Evicted);
            drop(taken.remove(15));
        };
        let newcomer = known();
        let both = async { tokio::join!(places.take(address(1), &newcomer), ends) };
        let (place, ()) = timeout(Duration::from_secs(30), both).await.unwrap();
        let place = place.unwrap();
        // With its share full it is rejected, and nobody is evicted for nothing.
        let before = places.lock().unknown.0.len();
        assert!(take(&places, 1, &known()).await.is_none());
        assert_eq!(places.lock().unknown.0.len(), before);
        drop(place);
    }

    #[tokio::test]
    async fn known_nodes_are_bound_by_no_share_and_unknown_ones_are() {
        let places = Arc::new(ConnectionPlaces::new(8, 2, ShareOf::Unknown));
        let nodes: Vec<_> = (0..5).map(|_| known()).collect();
        let mut taken = Vec::new();
        for node in &nodes {
            taken.push(take(&places, 1, node).await.unwrap());
        }
        let strangers = [connection(), connection(), connection()];
        for stranger in &strangers[..2] {
            taken.push(take(&places, 1, stranger).await.unwrap());
        }
        assert!(take(&places, 1, &strangers[2]).await.is_none());
        make_known(&strangers[0]);
        assert!(take(&places, 1, &strangers[2]).await.is_some());
    }

    #[tokio::test]
    async fn the_queues_do_not_grow_with_connections_that_ended() {
        let places = Arc::new(ConnectionPlaces::new(2, 2, ShareOf::All));
        let stays = connection();
        let _stays = take(&places, 1, &stays).await.unwrap();
        for _ in 0..1000 {
            drop(take(&places, 1, &connection()).await.unwrap());
        }
        let occupied = places.lock();
        assert!(occupied.unknown.0.len() <= 4 + SPARE_ENTRIES);
        assert!(occupied.shares[&address(1)].unknown.0.len() <= 4 + SPARE_ENTRIES);
        assert_eq!(occupied.open, 1);
    }

    #[test]
    fn hosts_of_one_network_of_64_bits_count_as_one() {
        let group = |text: &str| group(text.parse().unwrap());
        assert_eq!(group("2001:db8::1"), group("2001:db8::ffff:1"));
        assert_ne!(group("2001:db8::1"), group("2001:db8:0:1::1"));
        assert_eq!(group("::ffff:10.0.0.1"), group("10.0.0.1"));
        assert_ne!(group("10.0.0.1"), group("10.0.0.2"));
    }
}
