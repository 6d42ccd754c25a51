//! The peer protocol: RPCs between the nodes of a cluster, whatever their content.
//!
//! | where is … | file |
//! |---|---|
//! | the list of all RPCs | [`call`] |
//! | the client that sends RPCs | [`client`] |
//! | which received RPCs are admitted | [`admission`] |
//! | the headers of an RPC | `proof` |
//! | certificates, and TLS between nodes and for clients | [`tls`] |
//! | the proof of the cluster secret in an unencrypted RPC | `credential` |
//! | RPCs as frames on a persistent connection | `framed` |
//! | the encoding of the bodies of the service's RPCs | `codec` |
//! | calls to identity providers | [`outgoing`] |
//! | the trace that a request belongs to | [`trace`] |
//! | the node and the cluster of a data directory | [`identity`] |
//!
//! `consensus` and `service` make and answer the calls; `crates/http/src/peer/mod.rs` serves them over HTTP. The bodies of
//! consensus's calls are encoded in `crates/consensus/src/wire.rs`.
//!
//! **Invariant:** this crate depends neither on `state` nor on `storage`: it does not know the content of an RPC.

pub mod admission;
pub mod call;
pub mod client;
pub mod codec;
pub mod credential;
pub mod framed;
pub mod identity;
pub mod outgoing;
mod proof;
pub mod socket;
pub mod tls;
pub mod trace;

use serde::{Deserialize, Serialize};

/// A member's id. Never reused in a cluster.
pub type NodeId = u64;

/// A member of the cluster with its two addresses (`host:port`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its id.
    pub id: NodeId,
    /// The address of its API listener, for clients.
    pub api_addr: String,
    /// The address of its peer listener, for the other members.
    pub peer_addr: String,
}

impl Member {
    /// The address of its peer listener.
    #[must_use]
    pub fn peer(&self) -> PeerAddress<'_> {
        PeerAddress { id: self.id, addr: &self.peer_addr }
    }
}

/// A node that is called, and where it is called.
#[derive(Debug, Clone, Copy)]
pub struct PeerAddress<'a> {
    /// Its id.
    pub id: NodeId,
    /// The address of its peer listener (`host:port`).
    pub addr: &'a str,
}

/// Why a received RPC failed.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The body can't be decoded.
    #[error("malformed: {0}")]
    Malformed(String),
    /// This version does not know the call.
    #[error("unknown call `{0}`")]
    Unknown(String),
    /// This node failed to execute the call.
    #[error("{0}")]
    Failed(String),
}
