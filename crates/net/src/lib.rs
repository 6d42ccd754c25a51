//! The peer protocol: calls between the nodes of a cluster, whatever they are about.
//!
//! | where is … | file |
//! |---|---|
//! | the list of all calls | [`call`] |
//! | the client that sends calls | [`client`] |
//! | which received calls are let in | [`admission`] |
//! | the headers of a call | `proof` |
//! | certificates, and TLS between nodes and for callers | [`tls`] |
//! | what proves the secret of the cluster in a plain call | `credential` |
//! | calls as frames on a connection that stays open | `framed` |
//! | the encoding of the bodies of the service's calls | `codec` |
//! | the trace that a request belongs to | [`trace`] |
//! | which node of which cluster a data directory belongs to | [`identity`] |
//!
//! `consensus` and `service` make and answer the calls; `crates/http/src/peer/mod.rs` serves them over HTTP. The bodies of
//! consensus's calls are encoded in `crates/consensus/src/wire.rs`.
//!
//! **Invariant:** this crate depends neither on `state` nor on `storage`: it does not know what a call is about.

pub mod admission;
pub mod call;
pub mod client;
pub mod codec;
pub mod credential;
pub mod framed;
pub mod identity;
mod proof;
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
    /// The address of its API listener, for callers.
    pub api_addr: String,
    /// The address of its peer listener, for the other members.
    pub peer_addr: String,
}

/// Why a received call failed.
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
