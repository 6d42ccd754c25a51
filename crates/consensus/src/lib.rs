//! Consensus: the Raft protocol (openraft), its log, the state machine and the RPCs between members.
//!
//! ```text
//! write ──▶ consensus ──▶ openraft ──▶ log (fsync) ──▶ network ──▶ the other members
//!                             │
//!                             └──▶ machine: apply, publish, wake waiters, respond ──▶ store
//! ```
//!
//! | where is … | file |
//! |---|---|
//! | what the service calls: write, read index, status, shutdown | `consensus` |
//! | group commit: many small writes in one entry | `group` |
//! | how items that many callers send are batched | `batch_queue` |
//! | whose item is next, where those of many wait | `fair_queue` |
//! | how a node opens log and store and starts openraft | `start` |
//! | openraft's log storage: append, vote, truncate, purge | `log`; its records' bytes in `codec` |
//! | openraft's state machine: applying entries, publishing the state | `machine` |
//! | the mark that keeps older versions out of a data directory | `directory_format` |
//! | the wait until this node has applied a revision, or a read index | `applied_waiters` |
//! | openraft's calls to other members: heartbeat, vote, append, snapshot | `network`, `stream` (append) |
//! | the answers to those calls | `receive`, `stream` (append) |
//! | when a snapshot is built and the log purged; how a snapshot is received | `snapshot` |
//! | changes of the membership, transfer of leadership | `membership` |
//! | the tasks that live as long as the node | `supervisor` |
//! | the leader, its term, and why it changed | `leadership` |
//! | the leases of the voters, on which lease reads depend | `lease` |
//! | which members respond to the leader | `contact` |
//! | counters and figures for metrics | `figures` |
//! | counts of times | `histogram` |
//! | where the time of a write went | `entry_times` |
//! | how long the fsyncs of the log take | `slow_flush` |
//! | whether this process itself stood still | `standstill` |
//! | the comparison of this node's state with the other members' | `divergence` |
//! | the records of each other's progress, by which members detect a rolled-back disk | `witness` |
//! | the start of a new cluster from a backup | `restore` |
//! | the recovery of a cluster that has lost its majority, from the disk of one member | `recover` |
//! | openraft's types as this crate uses them, and the types that are encoded in their place | `types`, `wire` |
//! | targets of the fuzzer | `fuzz` |
//! | openraft's storage suite, run on log, machine and store | `suite` |
//!
//! The calls themselves are in `net`, the recent changes for watchers in `state`.
//!
//! **Invariants**
//! 1. openraft's types do not leave this crate and are never serialised: [`Consensus`] is the only way in.
//! 2. A write is acknowledged only when it is durable on a majority.
//! 3. A write whose outcome is unknown is [`WriteError::Undecided`], never a rejection.
//! 4. The index of an entry stays in this crate, and in the places in the log that the store records. Everybody else
//!    knows the revision, which the state counts; a [`ReadIndex`] is passed on unread.

mod applied_waiters;
pub mod batch_queue;
pub mod blocking;
mod codec;
mod consensus;
mod contact;
mod directory_format;
mod divergence;
mod entry_times;
pub mod fair_queue;
#[cfg(any(test, feature = "testing"))]
pub mod fake;
mod figures;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
mod group;
pub mod histogram;
mod leadership;
mod lease;
mod log;
mod machine;
mod membership;
mod network;
mod receive;
pub mod recover;
pub mod restore;
mod slow_flush;
mod snapshot;
mod standstill;
mod start;
mod stream;
#[cfg(test)]
mod suite;
mod supervisor;
mod term;
mod term_starts;
mod types;
mod wire;
mod witness;

use std::{path::PathBuf, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

pub use consensus::node_list;
pub use contact::Contact;
pub use entry_times::WriteTimes;
pub use figures::{MemberFigures, RaftFigures, RaftTimes};
pub use leadership::{FLAPPING_CHANGES_MIN, Leadership};
pub use log::LogFigures;
pub use slow_flush::SlowFlushes;
pub use supervisor::end_process_later;
pub use witness::{Condition, Missing, RolledBack, vouch};

use concord_model::record::Revision;
use concord_net::{Member, NodeId, client::Peers, identity::Identity};
use concord_storage::{self as store, LogIndex};

/// The directory of the log, in the data directory.
const LOG_DIRECTORY: &str = "log";
/// The directory of the store, in the data directory.
const STORE_DIRECTORY: &str = "store";

/// A member in the [`Status`].
#[derive(Debug, Clone)]
pub struct MemberStatus {
    /// Its id and addresses.
    pub member: Member,
    /// Whether it votes.
    pub voter: bool,
    /// How many entries of the leader's log it lacks; known on the leader only.
    pub lag: Option<u64>,
    /// Whether it answers; known on the leader only.
    pub contact: Option<Contact>,
}

/// What this node knows of the cluster.
#[derive(Debug, Clone)]
pub struct Status {
    /// The leader, if one is known.
    pub leader_id: Option<NodeId>,
    /// Raft's term.
    pub term: u64,
    /// The last revision that this node has applied.
    pub applied: Revision,
    /// All members.
    pub members: Vec<MemberStatus>,
    /// On the leader: time since a quorum last acknowledged it.
    pub quorum_age: Option<Duration>,
    /// Whether openraft runs.
    pub running: bool,
}

/// Raft's timers. Tests shorten them.
#[derive(Debug, Clone)]
pub struct Timers {
    /// Interval between two heartbeats of the leader.
    pub heartbeat_ms: u64,
    /// Shortest election time-out of a follower.
    pub election_min_ms: u64,
    /// Longest election time-out; also the leader's lease.
    pub election_max_ms: u64,
    /// Whether reads may rest on the lease: then a member that has started votes only after one more lease.
    pub lease_reads: bool,
}

impl Timers {
    /// This node's lease, if reads may rest on it.
    fn lease(&self) -> lease::Lease {
        self.lease_reads.then_some(self.election_max_ms)
    }
}

impl Timers {
    /// How long a leader may be silent: by then every follower has begun an election, after the lease and the longest
    /// election time-out.
    fn silence_max(&self) -> Duration {
        Duration::from_millis(self.election_max_ms.saturating_mul(2))
    }
}

impl Default for Timers {
    fn default() -> Self {
        Self { heartbeat_ms: 200, election_min_ms: 600, election_max_ms: 900, lease_reads: false }
    }
}

/// What [`Consensus::start`] needs.
#[derive(Debug)]
pub struct Start {
    /// This node's identity, as read from the directory.
    pub me: Identity,
    /// The data directory: the log is in `log`, the store in `store` below it.
    pub directory: PathBuf,
    /// Settings of the store. Its keys are opened here.
    pub store: store::StoreOptions,
    /// The operator's file of data keys.
    pub data_key_file: Option<PathBuf>,
    /// Calls to the other members.
    pub peers: Arc<Peers>,
    /// Raft's timers.
    pub timers: Timers,
    /// Least bytes of log between two snapshots.
    pub snapshot_log_bytes: u64,
    /// The process ends once its log has not moved for so long.
    pub log_stall_timeout: Duration,
    /// Members to fetch a snapshot from when this node has no whole state: the settings' list, with or without this
    /// node. May be empty: the members that the log names are asked too.
    pub rescue: Vec<Member>,
    /// Where consensus runs: openraft with its tasks, and the connections to the other members that they open.
    pub runtime: Handle,
}

/// Why [`Consensus::start`] failed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It must not start: the files on disk do not belong together, or are damaged.
    #[error("{0}")]
    Refused(String),
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] store::StoreError),
    /// A failure that may not recur.
    #[error("{0}")]
    Failed(String),
}

/// Why a write has no verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteError {
    /// Certainly not appended here. Names the leader, if another one is known; there is none when the lease has
    /// expired or leadership is being transferred: the caller retries.
    NotLeader(Option<NodeId>),
    /// It may or may not be decided: openraft discarded the entry or stopped.
    Undecided(String),
    /// Longer than `ENTRY_BYTES_MAX`. Not appended.
    TooLarge,
}

/// Why a change of the membership was not confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeError {
    /// Certainly not done: this node does not lead, or may not change the membership yet.
    NotYet(String),
    /// Certainly not done: the change is not allowed.
    Refused(String),
    /// It may or may not be done.
    Undecided(String),
    /// The first of its two entries is in the log, the second is not: a leader completes it.
    Begun(String),
}

/// By what a leader knows that it still leads, before it names a read index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirmation {
    /// A quorum confirms it now. Holds whatever clocks do.
    Quorum,
    /// A quorum has acknowledged it within two thirds of the shortest lease of the voters: no other member can lead
    /// before that lease has ended by the clocks of that quorum. A quorum confirms it now where that is longer ago, and
    /// while a voter keeps no lease.
    Lease,
}

/// A place in the log that the leader named after a quorum had confirmed that it leads. A state that has applied it
/// holds every write that was acknowledged before. It is no revision: only [`Consensus::wait_read`] takes it, on any
/// member.
///
/// It names the entry, not its index alone: the log of a member may hold another entry there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadIndex {
    index: LogIndex,
    term: u64,
    node: NodeId,
}

impl ReadIndex {
    /// The entry with this index, of the leader `node` in this term.
    #[must_use]
    pub fn new(index: LogIndex, term: u64, node: NodeId) -> Self {
        Self { index, term, node }
    }

    fn of(id: Option<wire::WireLogId>) -> Self {
        id.map_or(Self::new(0, 0, 0), |id| Self::new(id.index, id.term, id.node))
    }

    /// Whether the log up to an applied entry holds this one. The terms of a log never fall, and a leader's log holds
    /// all that was committed before its term: an entry of no earlier term and no lower index comes after this one.
    fn is_in(self, applied: Option<wire::WireLogId>) -> bool {
        let Some(applied) = applied else { return self.term == 0 };
        let is_later = concord_model::sabotage::is("read-index-without-term")
            || (applied.term, applied.node) >= (self.term, self.node);
        applied.index >= self.index && is_later
    }
}

/// Why a linearizable read can't be confirmed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// This node does not lead. Holds the leader, if another one is known.
    #[error("no leader is known")]
    NotLeader(Option<NodeId>),
    /// No majority has answered in time.
    #[error("{0}")]
    NoQuorum(String),
}

/// This node's consensus module: the only access to openraft. Clones share one instance.
#[derive(Debug, Clone)]
pub struct Consensus {
    inner: Arc<consensus::ConsensusInner>,
}
