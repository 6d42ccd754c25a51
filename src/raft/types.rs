//! openraft's types as this room uses them. They end here: no other room names openraft.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{log::Log, machine::Machine};
use crate::{
    model::command::Verdict,
    peer::{Member, NodeId},
};

openraft::declare_raft_types!(
    /// Which types openraft works with here.
    pub(super) Kind: D = Data, R = Reply, NodeId = NodeId, Node = Member
);

/// A proposal as its bytes. The log, the peers and the memory between them share one copy; only applying needs
/// the proposal itself.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Data(pub(super) Bytes);

/// What applying an entry answers: nothing for entries without a proposal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Reply(pub(super) Option<Verdict>);

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a proposal of {} bytes", self.0.len())
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

pub(super) type Raft = openraft::Raft<Kind, Machine>;
pub(super) type LeaderId = openraft::impls::leader_id_adv::LeaderId<u64, NodeId>;
pub(super) type LogId = openraft::LogId<LeaderId>;
pub(super) type Vote = openraft::Vote<LeaderId>;
pub(super) type Payload = openraft::EntryPayload<Data, NodeId, Member>;
pub(super) type Entry = openraft::Entry<LeaderId, Payload>;
pub(super) type Membership = openraft::Membership<NodeId, Member>;
pub(super) type StoredMembership = openraft::StoredMembership<LeaderId, NodeId, Member>;
pub(super) type SnapshotMeta = openraft::SnapshotMeta<LeaderId, NodeId, Member>;
pub(super) type Snapshot = openraft::Snapshot<LeaderId, NodeId, Member, crate::store::SnapshotFile>;
pub(super) type Metrics = openraft::RaftMetrics<Kind>;
pub(super) type LogReader = Log;
