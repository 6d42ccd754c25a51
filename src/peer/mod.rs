//! What the nodes say to each other, whatever it is about: who is called, by which call, how it is sent and admitted.
//!
//! | file | what it holds |
//! |---|---|
//! | [`call`] | the list of all calls |
//! | `codec` | the bytes of a body and of an answer |
//! | [`client`] | how a call is sent, and the check of one that arrives |
//! | [`identity`] | which node of which cluster a data directory belongs to |
//!
//! `raft` and `service` make the calls and answer them; `api/peer.rs` serves them.
//!
//! **Invariant:** this layer names neither `raft` nor `service`: it does not know what a call is about.

pub mod call;
pub mod client;
pub(crate) mod codec;
pub mod identity;

use serde::{Deserialize, Serialize};

/// A member's number. Never used twice in a cluster.
pub type NodeId = u64;

/// A member of the cluster with the two addresses it is reached by (`host:port`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its number.
    pub id: NodeId,
    /// Where callers reach it.
    pub api_addr: String,
    /// Where the other members reach it.
    pub peer_addr: String,
}

/// Why a peer's call was not answered.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The body is not what the call carries.
    #[error("malformed: {0}")]
    Malformed(String),
    /// No such call.
    #[error("unknown call `{0}`")]
    Unknown(String),
    /// This node could not do it.
    #[error("{0}")]
    Failed(String),
}
