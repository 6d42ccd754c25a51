//! The origin of a request. Long work is shared fairly between origins, and each origin's use of resources is limited.
//!
//! Clients with the root key are distinguished by their addresses. Clients with a stored key are also distinguished by its
//! id, so that one key can't take the resources of others by using many addresses. For a forwarded write, only the
//! forwarding node is known.
//!
//! The origin belongs to the task that serves the request, like the deadline: all layers between would only pass it on.
//!
//! **Invariant:** the origin decides the order of work, the limits of one client, and which failed credentials count
//! together, and nothing else.

use std::{
    cell::Cell,
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{request::Principal, usage::UsageCounts};
use concord_consensus::fair_queue::WorkOwner;
use concord_model::access_key::ID_CHARS;
use concord_net::NodeId;

/// The id of a stored key.
pub(super) type KeyTag = [u8; ID_CHARS];

/// Where a request comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// This node, or an unknown client.
    Own,
    /// The address of a client; for IPv6 its network.
    Address(IpAddr),
    /// Another node.
    Node(NodeId),
    /// A stored key, at the address of a client.
    Key(KeyTag, IpAddr),
}

/// The address of a client connection, and its last valid credential.
#[derive(Debug, Clone)]
pub struct CallerAddress {
    /// The address itself.
    pub address: IpAddr,
    /// The address for limits: for IPv6 the network.
    pub group: IpAddr,
    last: Arc<LastCredential>,
}

/// The last valid credential on a connection.
#[derive(Debug)]
struct LastCredential {
    /// Its hash; 0 before the first.
    hash: AtomicU64,
    /// The owner of the connection's work: who has shown it, and before it the unknown clients of the address.
    owner: AtomicU64,
    /// Those unknown clients.
    unknown: u64,
    /// Whether it was shown.
    is_known: AtomicBool,
}

impl CallerAddress {
    /// A new connection.
    #[must_use]
    pub fn new(address: IpAddr, group: IpAddr) -> Self {
        let unknown = WorkOwner::of(&("unknown", group)).to_bits();
        Self {
            address,
            group,
            last: Arc::new(LastCredential {
                hash: AtomicU64::new(0),
                owner: unknown.into(),
                unknown,
                is_known: AtomicBool::new(false),
            }),
        }
    }

    /// Whose work is done on this connection.
    #[must_use]
    pub fn owner(&self) -> WorkOwner {
        WorkOwner::from_bits(self.last.owner.load(Ordering::Relaxed))
    }

    /// Whether a valid credential was shown on this connection.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.last.is_known.load(Ordering::Relaxed)
    }

    /// Notes who has shown a valid credential, on the connection of the request that this task serves.
    pub fn note_owner(principal: &Principal) {
        /// Of the stored keys, whose owner is the same at each address.
        static STORED: LazyLock<u64> = LazyLock::new(|| WorkOwner::of("stored").to_bits());
        Self::with_current(|caller| {
            let seed = if key_tag(principal).is_some() { *STORED } else { caller.last.unknown };
            // Not the hash of `WorkOwner`, which each request would calculate: nobody chooses the id of a key.
            let owner = xxh3_64_with_seed(principal.owner().as_bytes(), seed);
            caller.last.owner.store(owner, Ordering::Relaxed);
            caller.last.is_known.store(true, Ordering::Relaxed);
        });
    }

    /// Notes a valid credential.
    pub(super) fn note_good(&self, hash: u64) {
        self.last.hash.store(hash, Ordering::Relaxed);
    }

    /// Whether this was the last valid credential on this connection.
    pub(super) fn was_good(&self, hash: u64) -> bool {
        self.last.hash.load(Ordering::Relaxed) == hash
    }
}

tokio::task_local! {
    /// A cell, because the stored key of a request is known later than its address. A second scope would cost each such
    /// request an allocation, or all requests its space.
    static ORIGIN: (Cell<Origin>, Option<CallerAddress>, RequestWork);
}

impl Origin {
    /// The origin of the request that this task serves.
    #[must_use]
    pub fn current() -> Self {
        ORIGIN.try_with(|(origin, ..)| origin.get()).unwrap_or(Self::Own)
    }

    /// Notes the stored key of the request that this task serves. A request with the root key keeps its address.
    pub fn note(principal: &Principal) {
        let Some(tag) = key_tag(principal) else { return };
        let address = match Self::current() {
            Self::Address(address) | Self::Key(_, address) => address,
            Self::Own | Self::Node(_) => Ipv4Addr::UNSPECIFIED.into(),
        };
        // Without a scope the request is this node's own.
        let _ = ORIGIN.try_with(|(origin, ..)| origin.set(Self::Key(tag, address)));
    }

    /// The stored key, if it has one.
    pub(super) fn key(self) -> Option<KeyTag> {
        match self {
            Self::Key(tag, _) => Some(tag),
            Self::Own | Self::Address(_) | Self::Node(_) => None,
        }
    }

    /// Serves a request with this origin.
    pub fn serve<F: Future>(self, request: F) -> impl Future<Output = F::Output> {
        // The address of the client stays.
        let work = RequestWork::default();
        ORIGIN.scope((Cell::new(self), CallerAddress::with_current(Clone::clone), work), request)
    }
}

impl CallerAddress {
    /// The address of the client whose request this task serves, if it is a client's.
    pub(super) fn with_current<T>(ask: impl FnOnce(&Self) -> T) -> Option<T> {
        ORIGIN.try_with(|(_, caller, _)| caller.as_ref().map(ask)).ok().flatten()
    }

    /// The address of the client whose request this task serves.
    #[must_use]
    pub fn current() -> Option<IpAddr> {
        Self::with_current(|caller| caller.address)
    }

    /// Serves a request with this origin.
    pub fn serve<F: Future>(self, request: F) -> impl Future<Output = F::Output> {
        ORIGIN.scope((Cell::new(Origin::Address(self.group)), Some(self), RequestWork::default()), request)
    }
}

/// What this node has done for the request that this task serves. Without a request, nothing is noted.
#[derive(Debug, Default)]
pub struct RequestWork {
    busy_ns: Cell<u64>,
    bytes_in: Cell<u64>,
    records_read: Cell<u64>,
}

impl RequestWork {
    fn note(figure: impl FnOnce(&Self) -> &Cell<u64>, more: u64) {
        // Without a scope there is no request that it belongs to.
        let _ = ORIGIN.try_with(|(_, _, work)| {
            let figure = figure(work);
            figure.set(figure.get().saturating_add(more));
        });
    }

    /// A thread has worked for it for so long.
    pub fn note_busy(time: Duration) {
        Self::note(|work| &work.busy_ns, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// So many bytes more of its body were received.
    pub fn note_received(bytes: usize) {
        Self::note(|work| &work.bytes_in, bytes as u64);
    }

    /// The response has so many records more.
    pub fn note_read(records: usize) {
        Self::note(|work| &work.records_read, records as u64);
    }

    /// What was done so far. It is counted from zero again.
    #[must_use]
    pub fn take() -> UsageCounts {
        let mut taken = UsageCounts::default();
        let _ = ORIGIN.try_with(|(_, _, work)| {
            taken.busy_ns = work.busy_ns.take();
            taken.bytes_in = work.bytes_in.take();
            taken.records_read = work.records_read.take();
        });
        taken
    }
}

/// The id of a principal with a stored key; of a session, that of its owner.
pub(super) fn key_tag(principal: &Principal) -> Option<KeyTag> {
    // Neither that of the root key nor that of a node has this length.
    principal.owner().as_bytes().try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stored_key_is_distinguished_by_its_address() {
        let address = |last| IpAddr::from([127, 0, 0, last]);
        let stored = Principal::named("abcdefghijkl", 1);
        let known = |principal: Principal| async move {
            Origin::note(&principal);
            Origin::current()
        };
        assert_eq!(Origin::Node(1).serve(known(Principal::root())).await, Origin::Node(1));
        assert_eq!(key_tag(&Principal::cluster()), None);
        let at = |last| Origin::Address(address(last)).serve(known(stored.clone()));
        assert_eq!(at(1).await, Origin::Key(*b"abcdefghijkl", address(1)));
        assert_ne!(at(1).await, at(2).await);
        let again = Origin::Key(*b"abcdefghijkl", address(3)).serve(known(stored.clone()));
        assert_eq!(again.await, Origin::Key(*b"abcdefghijkl", address(3)));
        assert_eq!(known(stored).await, Origin::Own);
    }
}
