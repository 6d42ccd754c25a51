//! The places of a listener's connections: how many there are, how many one address may have, and whose is taken when
//! there are no more.
//!
//! A new connection takes the place of the oldest one that is not known (see `connection.rs`). So whoever opens
//! connections without a key delays nobody, and takes places from others without a key only. It is done before the last
//! place is taken, so that the accept loop as a rule does not wait for the one that goes.
//!
//! **Invariants**
//! 1. No more connections are open than there are places, and no more of one address than its share.
//! 2. The queues hold at most twice as many entries as there are places, and some.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::{sync::Notify, time::timeout};

use super::connection::Connection;

/// Entries of a queue beyond those of open connections before it is cleared of ended ones.
const SPARE_ENTRIES: usize = 64;
/// Of how many places one is kept free while there is a connection that can make way.
const SPARE_SHARE: usize = 16;
/// How old a connection is before it makes way: a request that came with it is read by then.
const EVICTION_AGE_MIN: Duration = Duration::from_millis(100);
/// How long to wait for a place before another connection is asked: the first may have become known.
const EVICTION_PATIENCE: Duration = Duration::from_millis(20);
/// How long a connection waits for a place in its address's share.
const SHARE_PATIENCE: Duration = Duration::from_secs(2);

/// Unknown connections, the oldest first; among them some that have ended or become known since.
#[derive(Debug, Default)]
struct Unknown(VecDeque<Weak<Connection>>);

impl Unknown {
    fn push(&mut self, connection: &Arc<Connection>, places: usize) {
        if self.0.len() >= places.saturating_mul(2).saturating_add(SPARE_ENTRIES) {
            self.0.retain(|one| one.upgrade().is_some_and(|one| !one.is_known()));
        }
        self.0.push_back(Arc::downgrade(connection));
    }

    /// Asks the oldest one to end, if it has had the time to show its credential.
    fn evict_oldest(&mut self) {
        while let Some(oldest) = self.0.front() {
            match oldest.upgrade().filter(|connection| !connection.is_known()) {
                Some(connection) if connection.age() < EVICTION_AGE_MIN => return,
                Some(connection) => {
                    connection.evict();
                    self.0.pop_front();
                    return;
                }
                None => drop(self.0.pop_front()),
            }
        }
    }
}

/// What one address has.
#[derive(Debug, Default)]
struct Share {
    open: usize,
    unknown: Unknown,
}

/// An address has as many connections as one may have.
#[derive(Debug)]
pub(super) struct ShareTaken;

#[derive(Debug, Default)]
struct Occupied {
    open: usize,
    unknown: Unknown,
    shares: BTreeMap<IpAddr, Share>,
}

/// The places of a listener.
#[derive(Debug)]
pub(super) struct Places {
    max: usize,
    share_max: usize,
    occupied: Mutex<Occupied>,
    freed: Notify,
}

impl Places {
    pub(super) fn new(max: usize, share_max: usize) -> Self {
        Self { max, share_max, occupied: Mutex::default(), freed: Notify::new() }
    }

    /// Waits while all places are taken.
    ///
    /// # Errors
    /// When the address has its share.
    pub(super) async fn take(
        self: &Arc<Self>,
        address: IpAddr,
        connection: &Arc<Connection>,
    ) -> Result<Place, ShareTaken> {
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
        connection: &Arc<Connection>,
    ) -> Option<Place> {
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
        // After the time the next oldest is asked, which may be old enough by then.
        let _waited_in_vain = timeout(EVICTION_PATIENCE, self.freed.notified()).await.is_err();
    }

    /// Takes a place, and asks another connection to make way when places are scarce. `None` when all are taken.
    fn try_take(
        self: &Arc<Self>,
        address: IpAddr,
        connection: &Arc<Connection>,
    ) -> Option<Result<Place, ShareTaken>> {
        let mut occupied = self.lock();
        let Occupied { open, unknown, shares } = &mut *occupied;
        let share = shares.entry(address).or_default();
        if is_scarce(share.open, self.share_max) {
            share.unknown.evict_oldest();
        } else if is_scarce(*open, self.max) {
            unknown.evict_oldest();
        }
        if share.open >= self.share_max {
            return Some(Err(ShareTaken));
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
        Some(Ok(Place { places: Arc::clone(self), address }))
    }

    fn lock(&self) -> MutexGuard<'_, Occupied> {
        self.occupied.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether so many of the places are taken that one should become free.
fn is_scarce(taken: usize, places: usize) -> bool {
    taken >= places - places / SPARE_SHARE
}

/// A taken place; dropping it frees it.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    address: IpAddr,
}

impl Place {
    /// Whose it is: an address, or the network that counts as one.
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }
}

impl Drop for Place {
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

/// What counts as one address: a network of 64 bits for IPv6, because a single host has at least that many.
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
    use crate::api::server::connection::{CallerConnection, Ending, HeadBudget, Times};
    use http::Extensions;

    fn connection() -> Arc<Connection> {
        Arc::new(Connection::new(Arc::new(HeadBudget::new(0))))
    }

    fn known() -> Arc<Connection> {
        let (connection, mut extensions) = (connection(), Extensions::new());
        drop(connection.begin(&mut extensions));
        CallerConnection::mark_known(&extensions);
        connection
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    async fn take(places: &Arc<Places>, last: u8, connection: &Arc<Connection>) -> Option<Place> {
        timeout(Duration::from_secs(30), places.take(address(last), connection)).await.unwrap().ok()
    }

    #[tokio::test]
    async fn one_address_can_not_take_all_places() {
        let places = Arc::new(Places::new(4, 2));
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
            let places = Arc::new(Places::new(max, share_max));
            let (keyed, stranger) = (known(), connection());
            let _keyed = take(&places, 1, &keyed).await.unwrap();
            let taken = take(&places, 1, &stranger).await.unwrap();
            let ends = async {
                let day = Duration::from_secs(24 * 60 * 60);
                let times = Times { header: day, idle: day, send: day };
                assert_eq!(stranger.ending(times).await, Ending::Evicted);
                drop(taken);
            };
            let newcomer = connection();
            let (place, ()) = tokio::join!(places.take_later(address(1), &newcomer), ends);
            assert!(place.is_some(), "{max} {share_max}");
        }
    }

    #[tokio::test]
    async fn the_queues_do_not_grow_with_connections_that_ended() {
        let places = Arc::new(Places::new(2, 2));
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
