//! Where a request comes from, by which work that takes long is shared fairly.
//!
//! There is one credential, so it does not tell callers apart; their addresses do. Of a write that another node has
//! forwarded only that node is known.
//!
//! It belongs to the task that serves the request, like the request's deadline: all layers below would only pass it on.
//!
//! **Invariant:** it decides the order of work and nothing else.

use std::net::IpAddr;

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

tokio::task_local! {
    static ORIGIN: Origin;
}

impl Origin {
    /// That of the request that this task serves.
    pub(super) fn current() -> Self {
        ORIGIN.try_with(|origin| *origin).unwrap_or(Self::Own)
    }

    /// Serves a request that comes from here.
    pub fn serve<F: Future>(self, request: F) -> impl Future<Output = F::Output> {
        ORIGIN.scope(self, request)
    }
}
