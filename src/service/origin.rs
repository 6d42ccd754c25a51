//! Where a request comes from, by which work that takes long is shared fairly.
//!
//! Many callers may have one credential, so it does not tell them apart; their addresses do. Of a write that another
//! node has forwarded only that node is known.
//!
//! It belongs to the task that serves the request, like the request's deadline: all layers below would only pass it on.
//!
//! **Invariant:** it decides the order of work, whose failed credentials count together, and nothing else.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::peer::NodeId;

/// Where a request comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// This node, or a caller that is not known.
    Own,
    /// A caller's address; for IPv6 its network.
    Address(IpAddr),
    /// Another node.
    Node(NodeId),
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
    static ORIGIN: (Origin, Option<CallerAddress>);
}

impl Origin {
    /// That of the request that this task serves.
    pub(super) fn current() -> Self {
        ORIGIN.try_with(|(origin, _)| *origin).unwrap_or(Self::Own)
    }

    /// Serves a request that comes from here.
    pub fn serve<F: Future>(self, request: F) -> impl Future<Output = F::Output> {
        ORIGIN.scope((self, None), request)
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
        ORIGIN.scope((Origin::Address(self.group), Some(self)), request)
    }
}
