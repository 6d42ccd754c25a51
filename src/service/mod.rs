//! STUB
pub mod access;

use crate::{
    model::{
        command::{Applied, Expect, RequestStamp},
        document::Document,
        error::{Invalid, Rejection},
        limits::Limits,
        record::Revision,
    },
    raft::{Member, NodeId},
    state::State,
};
pub use access::Principal;
use std::{sync::Arc, time::Duration};

/// Who asks for a write, and what rides with it.
#[derive(Debug, Clone)]
pub struct Caller {
    pub principal: Principal,
    pub reason: Option<String>,
    pub request: Option<RequestStamp>,
}

/// A write as a caller asks it. Keys are raw texts: they are checked in the contract's order
/// (definition key → definition exists → config key → exists already → precondition → data).
#[derive(Debug, Clone)]
pub enum Write {
    CreateDefinition {
        key: String,
        indexes: Vec<String>,
        schema: Option<Document>,
    },
    SetIndexes {
        key: String,
        indexes: Vec<String>,
        expect: Expect,
    },
    DeleteDefinition {
        key: String,
        expect: Expect,
        restrict: bool,
    },
    /// expect: Absent = POST, Present/At = PUT, None = PUT with If-None-Match: *
    WriteConfig {
        definition: String,
        key: String,
        data: Document,
        expect: Expect,
    },
    DeleteConfig {
        definition: String,
        key: String,
        expect: Expect,
    },
}

/// A decided write: what it did and the state it was answered from (this node's, at least the write's revision unless the wait ran out).
#[derive(Debug, Clone)]
pub struct Written {
    pub applied: Applied,
    pub revision: Revision,
}

/// Why a request was not done.
#[derive(Debug, Clone)]
pub enum Refusal {
    Rejected(Rejection),
    Invalid(Invalid),
    /// Certainly not applied; no leader or quorum.
    Unavailable(String),
    /// May or may not be applied (writes); could not be confirmed in time (reads with min_revision).
    Undecided(String),
    /// This node works on as many writes as it may.
    Overloaded,
    StorageFull(String),
    /// A fault of ours: logged, never shown.
    Fault(String),
}

/// How fresh a read must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Consistency {
    pub level: Level,
    /** wait until this node has applied it */
    pub min_revision: Option<Revision>,
}
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Linearizable,
    Local { max_staleness: Option<Duration> },
}

/// What `GET /api/v1/cluster` shows.
#[derive(Debug, Clone)]
pub struct ClusterView {
    pub cluster_id: Option<uuid::Uuid>,
    pub node_id: NodeId,
    pub leader_id: Option<NodeId>,
    pub term: u64,
    pub revision: Revision,
    pub digest: u128,
    pub members: Vec<MemberView>,
}
#[derive(Debug, Clone)]
pub struct MemberView {
    pub id: NodeId,
    /** `leader`, `follower`, `learner` */
    pub role: &'static str,
    pub api_addr: String,
    pub peer_addr: String,
    pub lag: Option<u64>,
}

/// What a node does for its callers. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Service;
impl Service {
    pub fn limits(&self) -> &Limits {
        todo!()
    }
    pub fn node_id(&self) -> NodeId {
        todo!()
    }
    /// The principal of a credential (the header's value without `Bearer `); None: 401.
    pub fn authenticate(&self, _credential: &[u8]) -> Option<Principal> {
        todo!()
    }
    pub async fn write(&self, _caller: Caller, _write: Write) -> Result<Written, Refusal> {
        todo!()
    }
    /// A state that is as fresh as asked.
    pub async fn view(&self, _c: Consistency) -> Result<Arc<State>, Refusal> {
        todo!()
    }
    /// The applied state as it is (for headers of errors); revision 0 before the node has an identity.
    pub fn revision(&self) -> Revision {
        todo!()
    }
    pub fn cluster(&self) -> ClusterView {
        todo!()
    }
    /// Forms the cluster from this node: writes identities here and on every member, then initialises. Idempotent.
    pub async fn init(&self, _members: Vec<Member>) -> Result<ClusterView, Refusal> {
        todo!()
    }
    /// Caught up with a live leader? Err says why not.
    pub fn ready(&self) -> Result<(), String> {
        todo!()
    }
}
