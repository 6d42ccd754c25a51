//! STUB
pub mod identity;
pub mod peers;

use crate::{
    model::{
        command::{Proposal, Verdict},
        record::Revision,
    },
    state::State,
    store,
};
use bytes::Bytes;
use peers::Peers;
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, sync::Arc, time::Duration};

pub type NodeId = u64;

/// A member of the cluster with the two addresses it is reached by (`host:port`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub id: NodeId,
    pub api_addr: String,
    pub peer_addr: String,
}

/// A member as the status shows it.
#[derive(Debug, Clone)]
pub struct MemberStatus {
    pub member: Member,
    pub voter: bool,
    /** entries behind the leader's log; known on the leader only */
    pub lag: Option<u64>,
}

/// What this node knows of the cluster.
#[derive(Debug, Clone)]
pub struct Status {
    pub leader_id: Option<NodeId>,
    pub term: u64,
    pub applied: Revision,
    pub members: Vec<MemberStatus>,
    /** on the leader: age of the last quorum acknowledgement */
    pub quorum_age: Option<Duration>,
    pub running: bool,
}

/// Timers (tests shorten them).
#[derive(Debug, Clone)]
pub struct Timers {
    pub heartbeat_ms: u64,
    pub election_min_ms: u64,
    pub election_max_ms: u64,
}

/// What a node's part in consensus is started with. The identity has been checked against the directory.
#[derive(Debug)]
pub struct Start {
    pub me: identity::Identity,
    pub directory: PathBuf,
    pub store: store::Options,
    pub peers: Arc<Peers>,
    pub timers: Timers,
    /** bytes of log after which a snapshot is due */
    pub snapshot_log_bytes: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Store(#[from] store::StoreError),
    #[error("{0}")]
    Failed(String),
}

/// Why a write has no verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteError {
    /// Certainly not appended here: the leader, if one is known. `LeaseExpired` and transfer come as `NotLeader(None)`; the caller retries.
    NotLeader(Option<NodeId>),
    /// It may or may not be decided (discarded, stopped).
    Undecided(String),
    /// Larger than an entry may be. Not appended.
    TooLarge,
}
/// Why a read can't be confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadError {
    NotLeader(Option<NodeId>),
    NoQuorum(String),
}

/// This node's part in the agreement: the only door to openraft. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Consensus;

impl Consensus {
    /// Opens log and store, checks that they belong together, starts openraft. (Fetches a snapshot from a peer first when the store has nothing whole.)
    pub async fn start(_s: Start) -> Result<Self, StartError> {
        todo!()
    }
    /// Whether the cluster was formed (log not pristine).
    pub async fn is_initialized(&self) -> bool {
        todo!()
    }
    /// Forms the cluster, once, on one pristine node.
    pub async fn initialize(&self, _members: Vec<Member>) -> Result<(), String> {
        todo!()
    }
    /// Proposes on the leader and waits for the verdict (no time limit of its own).
    pub async fn write(&self, _p: Arc<Proposal>) -> Result<Verdict, WriteError> {
        todo!()
    }
    /// On the leader: an index such that a state that has applied it holds every write acknowledged before the call. Bounded by the election time-out.
    pub async fn read_index(&self) -> Result<Revision, ReadError> {
        todo!()
    }
    /// The newest applied state. One pointer read.
    pub fn state(&self) -> Arc<State> {
        todo!()
    }
    /// Waits until `state().revision() >= at_least`. Never returns when the node stops: bound it.
    pub async fn applied(&self, _at_least: Revision) {
        todo!()
    }
    pub fn leader(&self) -> Option<Member> {
        todo!()
    }
    /// Resolves when the known leader changes.
    pub async fn leader_changed(&self) {
        todo!()
    }
    pub fn status(&self) -> Status {
        todo!()
    }
    pub fn figures(&self) -> store::Figures {
        todo!()
    }
    /// Answers a peer's call. `kind`: the last segment of the peer path (`append`, `vote`, ...). The caller has checked secret and identity headers.
    pub async fn receive(&self, _kind: &str, _body: Bytes) -> Result<Bytes, ReceiveError> {
        todo!()
    }
    /// A snapshot that a leader sends: `head` from the header, the file as a stream of chunks.
    pub async fn receive_snapshot(
        &self,
        _head: Bytes,
        _body: futures::stream::BoxStream<'static, Result<Bytes, std::io::Error>>,
    ) -> Result<Bytes, ReceiveError> {
        todo!()
    }
    /// A snapshot file to send to a member that has lost its state: opens the newest.
    pub async fn current_snapshot(&self) -> Option<(Bytes, tokio::fs::File)> {
        todo!()
    }
    /// Hands leadership to the freshest live voter, if this node leads; waits (bounded) until it is taken.
    pub async fn hand_over(&self) {
        todo!()
    }
    /// Stops openraft, then closes log and store.
    pub async fn shutdown(&self) {
        todo!()
    }
    /// Completes when this node can't go on (storage failure, panic while applying): the process must end.
    pub async fn failed(&self) -> String {
        todo!()
    }
}
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    #[error("malformed: {0}")]
    Malformed(String),
    #[error("unknown call `{0}`")]
    Unknown(String),
    #[error("{0}")]
    Failed(String),
}
