//! Where a request comes from, by which work that takes long is shared fairly, and what one caller may hold is bounded.
//!
//! The root key does not tell callers apart; their addresses do. A stored key is told apart by its id as well, so that
//! one greedy key leaves room to the others, from whichever address it comes. Of a write that another node has forwarded
//! only that node is known.
//!
//! It belongs to the task that serves the request, like the request's deadline: all layers below would only pass it on.
//!
//! **Invariant:** it decides the order of work, how much of it one caller may have under way, whose failed credentials
//! count together, and nothing else.

use std::{
    cell::Cell,
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::request::Principal;
use concord_model::access_key::ID_CHARS;
use concord_net::NodeId;

/// The id of a stored key.
pub(super) type KeyTag = [u8; ID_CHARS];

/// Where a request comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// This node, or a caller that is not known.
    Own,
    /// A caller's address; for IPv6 its network.
    Address(IpAddr),
    /// Another node.
    Node(NodeId),
    /// A stored key, at a caller's address.
    Key(KeyTag, IpAddr),
}

/// A caller's connection, as far as it says where a request comes from.
#[derive(Debug, Clone)]
pub struct CallerAddress {
    /// The address itself.
    pub address: IpAddr,
    /// What counts as one address: for IPv6 the network.
    pub group: IpAddr,
    /// A hash of the credential that was good on this connection last; 0 before there was one.
    good: Arc<AtomicU64>,
}

impl CallerAddress {
    /// A new connection.
    #[must_use]
    pub fn new(address: IpAddr, group: IpAddr) -> Self {
        Self { address, group, good: Arc::default() }
    }

    /// Notes the credential that was good.
    pub(super) fn note_good(&self, hash: u64) {
        self.good.store(hash, Ordering::Relaxed);
    }

    /// Whether this credential was good on this connection last.
    pub(super) fn was_good(&self, hash: u64) -> bool {
        self.good.load(Ordering::Relaxed) == hash
    }
}

tokio::task_local! {
    /// The origin is known better once the request's stored key is. Another scope for that would cost each such request a
    /// box, or all requests the space.
    static ORIGIN: (Cell<Origin>, Option<CallerAddress>);
}

impl Origin {
    /// That of the request that this task serves.
    pub(super) fn current() -> Self {
        ORIGIN.try_with(|(origin, _)| origin.get()).unwrap_or(Self::Own)
    }

    /// Says whose request this task serves, now that it is known. Requests of the root key come from their addresses.
    pub fn note(principal: &Principal) {
        let Some(tag) = key_tag(principal) else { return };
        let address = match Self::current() {
            Self::Address(address) | Self::Key(_, address) => address,
            Self::Own | Self::Node(_) => Ipv4Addr::UNSPECIFIED.into(),
        };
        // Without a scope the request has come over no connection, and is this node's own.
        let _ = ORIGIN.try_with(|(origin, _)| origin.set(Self::Key(tag, address)));
    }

    /// The stored key that it is.
    pub(super) fn key(self) -> Option<KeyTag> {
        match self {
            Self::Key(tag, _) => Some(tag),
            Self::Own | Self::Address(_) | Self::Node(_) => None,
        }
    }

    /// Serves a request that comes from here.
    pub fn serve<F: Future>(self, request: F) -> impl Future<Output = F::Output> {
        // A caller that is known better is where it was.
        ORIGIN.scope((Cell::new(self), CallerAddress::with_current(Clone::clone)), request)
    }
}

impl CallerAddress {
    /// That of the request that this task serves, where it came from a caller.
    pub(super) fn with_current<T>(ask: impl FnOnce(&Self) -> T) -> Option<T> {
        ORIGIN.try_with(|(_, caller)| caller.as_ref().map(ask)).ok().flatten()
    }

    /// The address of the caller whose request this task serves.
    #[must_use]
    pub fn current() -> Option<IpAddr> {
        Self::with_current(|caller| caller.address)
    }

    /// Serves a request that comes from here.
    pub fn serve<F: Future>(self, request: F) -> impl Future<Output = F::Output> {
        ORIGIN.scope((Cell::new(Origin::Address(self.group)), Some(self)), request)
    }
}

/// The id of a principal that is the owner of a stored key.
pub(super) fn key_tag(principal: &Principal) -> Option<KeyTag> {
    // No other id has this length.
    principal.id.as_bytes().try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stored_key_is_told_apart_at_its_address() {
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
