//! How the nodes agree: openraft, its log, and the calls between members.
//!
//! ```text
//! write ──▶ consensus ──▶ openraft ──▶ log (fsync) ──▶ network ──▶ the other members
//!                             │
//!                             └──▶ machine: decide, publish, announce, answer ──▶ store
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | [`identity`] | whose directory this is |
//! | [`peers`] | calls between nodes and the check of such calls |
//! | `types`, `form`, `codec` | openraft's types, our forms of them, their bytes in the log |
//! | `log`, `machine` | openraft's two storage traits (`suite` tries them with openraft's own tests) |
//! | `network`, `receive` | both ends of openraft's calls |
//! | `stream` | both ends of the connection that entries go over |
//! | [`feed`] | the recent changes, for watchers |
//! | `snapshot` | when a snapshot is built, how one is received |
//! | `start`, `consensus` | how a node's part begins, what it does for the room above |
//! | `turns` | who waits until this node has applied a revision |
//! | `compare` | this node's state against the other members' |
//! | `members` | changes of the members, on the leader |
//! | [`restore`] | makes a backup the beginning of a new cluster |
//!
//! **Invariants**
//! 1. openraft's types end in this room, and nothing of openraft is serialised: [`Consensus`] is the only door.
//! 2. Nothing is acknowledged that is not durable on a majority.
//! 3. A write whose fate is not certain is [`WriteError::Undecided`], never a refusal.

mod applied_waiters;
mod codec;
mod consensus;
mod divergence;
mod log;
mod machine;
mod membership;
mod network;
mod receive;
pub mod restore;
mod snapshot;
mod start;
pub(crate) mod stream;
#[cfg(test)]
mod suite;
mod types;
mod wire;

use std::{path::PathBuf, sync::Arc, time::Duration};

use crate::{
    model::record::Revision,
    peer::{Member, NodeId, client::Peers, identity::Identity},
    store,
};
pub(crate) use consensus::ENTRY_BYTES_MAX;

/// A member as the status shows it.
#[derive(Debug, Clone)]
pub struct MemberStatus {
    /// Who it is.
    pub member: Member,
    /// Whether it votes.
    pub voter: bool,
    /// Entries behind the leader's log; known on the leader only.
    pub lag: Option<u64>,
}

/// What this node knows of the cluster.
#[derive(Debug, Clone)]
pub struct Status {
    /// The leader, if one is known.
    pub leader_id: Option<NodeId>,
    /// Raft's term.
    pub term: u64,
    /// The last entry applied here.
    pub applied: Revision,
    /// All members.
    pub members: Vec<MemberStatus>,
    /// On the leader: age of the last quorum acknowledgement.
    pub quorum_age: Option<Duration>,
    /// Whether this node takes part.
    pub running: bool,
}

/// Timers (tests shorten them).
#[derive(Debug, Clone)]
pub struct Timers {
    /// Between two heartbeats of the leader.
    pub heartbeat_ms: u64,
    /// Least wait of a follower before it stands for election.
    pub election_min_ms: u64,
    /// Longest; also the leader's lease.
    pub election_max_ms: u64,
}

impl Default for Timers {
    fn default() -> Self {
        Self { heartbeat_ms: 200, election_min_ms: 600, election_max_ms: 900 }
    }
}

/// What a node's part in consensus is started with. The identity has been read from the directory.
#[derive(Debug)]
pub struct Start {
    /// Who this node is.
    pub me: Identity,
    /// The data directory: the log goes to `log`, the store to `store` below it.
    pub directory: PathBuf,
    /// Settings of the store.
    pub store: store::Options,
    /// Calls to the other members.
    pub peers: Arc<Peers>,
    /// Raft's timers.
    pub timers: Timers,
    /// Bytes of log after which a snapshot is due.
    pub snapshot_log_bytes: u64,
    /// Members that may be asked for a snapshot when this node has nothing whole: the settings' list, itself
    /// included or not. May be empty; members that the log names are asked too.
    pub rescue: Vec<Member>,
}

/// Why a node's part could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It must not start: what is on disk does not fit.
    #[error("{0}")]
    Refused(String),
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] store::StoreError),
    /// Something failed that may work another time.
    #[error("{0}")]
    Failed(String),
}

/// Why a write has no verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteError {
    /// Certainly not appended here: the leader, if one is known. An expired lease and a transfer come without a
    /// leader; the caller retries.
    NotLeader(Option<NodeId>),
    /// It may or may not be decided (discarded, stopped).
    Undecided(String),
    /// Larger than an entry may be. Not appended.
    TooLarge,
}

/// Why the members were not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeError {
    /// Certainly not done: this node does not lead, or may not change the members yet.
    NotYet(String),
    /// Certainly not done, and it will not be.
    Refused(String),
    /// It may be done.
    Undecided(String),
}

/// Why a read can't be confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadError {
    /// Ask this one, if it is known.
    NotLeader(Option<NodeId>),
    /// No majority has answered in time.
    NoQuorum(String),
}

/// This node's part in the agreement: the only door to openraft. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Consensus {
    inner: Arc<consensus::Inner>,
}
