//! Short aliases of openraft's generic types with the parameters of this crate.
//!
//! **Invariant:** only this crate uses these aliases: no other crate names openraft.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{log::Log, machine::Machine, term::Term};
use concord_model::{command::Verdict, record::Revision};
use concord_net::{Member, NodeId};

openraft::declare_raft_types!(
    /// The parameters of openraft's generic types.
    pub(super) TypeConfig: D = EncodedProposal, R = ApplyResponse, Term = Term, NodeId = NodeId, Node = Member
);

/// The encoded proposals of an entry (`crates/model/src/entry.rs`). The log, its cache and the calls to members share
/// one copy; only applying decodes it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EncodedProposal(pub(super) Bytes);

/// What applying an entry returns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ApplyResponse {
    /// The state's revision after the entry.
    pub(super) revision: Revision,
    /// The verdicts on its proposals, in their order.
    pub(super) verdicts: Vec<Verdict>,
}

impl fmt::Display for EncodedProposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "proposals of {} bytes", self.0.len())
    }
}

impl fmt::Debug for EncodedProposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ApplyResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "revision {}: {:?}", self.revision, self.verdicts)
    }
}

pub(super) type Raft = openraft::Raft<TypeConfig, Machine>;
pub(super) type LeaderId = openraft::impls::leader_id_adv::LeaderId<Term, NodeId>;
pub(super) type LogId = openraft::LogId<LeaderId>;
pub(super) type Vote = openraft::Vote<LeaderId>;
pub(super) type Payload = openraft::EntryPayload<EncodedProposal, NodeId, Member>;
pub(super) type Entry = openraft::Entry<LeaderId, Payload>;
pub(super) type Membership = openraft::Membership<NodeId, Member>;
pub(super) type StoredMembership = openraft::StoredMembership<LeaderId, NodeId, Member>;
pub(super) type SnapshotMeta = openraft::SnapshotMeta<LeaderId, NodeId, Member>;
pub(super) type Snapshot = openraft::Snapshot<LeaderId, NodeId, Member, concord_storage::SnapshotFile>;
pub(super) type Metrics = openraft::RaftMetrics<TypeConfig>;
pub(super) type LogReader = Log;
