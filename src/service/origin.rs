//! Where a request comes from, by which work that takes long is shared fairly, and what one caller may hold is bounded.
//!
//! The root key does not tell callers apart; their addresses do. A stored key is told apart by its id as well, so that
//! one greedy key leaves room to the others, from whichever address it comes. Of a write that another node has forwarded
//! only that node is known.
//!
//! It belongs to the task that serves the request, like the request's deadline: all layers below would only pass it on.
//!
//! **Invariant:** it decides the order of work and how much of it one caller may have under way, and nothing else.

use std::net::{IpAddr, Ipv4Addr};

use super::request::Principal;
use crate::{model::access_key::ID_CHARS, peer::NodeId};

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

tokio::task_local! {
    static ORIGIN: Origin;
}

impl Origin {
    /// That of the request that this task serves.
    pub(super) fn current() -> Self {
        ORIGIN.try_with(|origin| *origin).unwrap_or(Self::Own)
    }

    /// That of the request that this task serves once its stored key is known; `None` for the root key, whose requests
    /// come from their addresses.
    #[must_use]
    pub fn of(principal: &Principal) -> Option<Self> {
        let tag = key_tag(principal)?;
        let address = match Self::current() {
            Self::Address(address) | Self::Key(_, address) => address,
            Self::Own | Self::Node(_) => Ipv4Addr::UNSPECIFIED.into(),
        };
        Some(Self::Key(tag, address))
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
        ORIGIN.scope(self, request)
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
        assert_eq!(Origin::of(&Principal::root()), None);
        assert_eq!(key_tag(&Principal::cluster()), None);
        let at = |last| {
            Origin::Address(address(last)).serve(async { Origin::of(&Principal::named("abcdefghijkl", 1)) })
        };
        assert_eq!(at(1).await, Some(Origin::Key(*b"abcdefghijkl", address(1))));
        assert_ne!(at(1).await, at(2).await);
        let again = Origin::Key(*b"abcdefghijkl", address(3)).serve(async { Origin::of(&stored) });
        assert_eq!(again.await, Some(Origin::Key(*b"abcdefghijkl", address(3))));
    }
}
