//! Every RPC between nodes: `POST /peer/{name}` on the peer listener.
//!
//! | name | body | response | answered by |
//! |---|---|---|---|
//! | `vote`, `pre-vote` | a candidate's request | granted or not | consensus |
//! | `stream` | none; the connection is upgraded | frames with entries of the log, back how far they match | consensus |
//! | `heartbeats` | none; the connection is upgraded | the same without entries | consensus |
//! | `transfer` | the member that becomes leader | whether it is accepted | consensus |
//! | `snapshot` | a snapshot file, its header in [`SNAPSHOT_HEADER`](super::client::SNAPSHOT_HEADER) | the receiver's vote | consensus |
//! | `fetch-snapshot` | none | the newest snapshot file, its header as above | consensus |
//! | `digests` | the revision of the asking node | digests of recent states | consensus |
//! | `witness` | what the asking node remembers of the members, and where its log ends | the same of the node that answers | consensus |
//! | `read-index` | none; the connection is upgraded | empty frames, back the index that a linearizable read waits for | the leader's service |
//! | `write` | one write | its outcome | the leader's service |
//! | `writes` | several small writes | the outcome of each as soon as it is decided, in parts | the leader's service |
//! | `page` | a cursor and a list | a part of that page | the service of the node that pins the cursor's state |
//! | `history` | a query of the history | a part of the history | the service, from its own disk |
//! | `audit` | which lines of the audit log | a page of it | the service, from its own disk |
//! | `report` | what a reader or a gate says of a rollout, or the question what was said of one | what was made of it | the leader's service, from feature level 2 on |
//! | `change` | a change of the membership | the entry that makes it | the leader's service |
//! | `clock` | none | the node's wall clock | the service |
//! | `room` | none | whether the free space of the node's volume is below its reserve | the service |
//! | `levels` | none | the feature levels that the node knows; also from a node without an identity | the service |
//! | `prove` | none; the headers have a nonce | the proof that the called node knows the cluster secret: the first RPC on each unencrypted connection | the listener |
//! | `join` | none, or the identity for a node without one | the node's identity, whether it has a log | the service; the credential is for the address, the id and the digest of the body, since there may be no cluster yet |
//!
//! A node that does not know an RPC responds with 404 and has done nothing.
//!
//! **Invariant:** nodes of all versions use these names, so none is ever renamed or reused. An RPC that a
//! version adds is sent only in a cluster of its feature level.

/// An RPC between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// A candidate requests a vote.
    Vote,
    /// A node asks whether it would get a vote.
    PreVote,
    /// Opens a connection for entries.
    Stream,
    /// Transfers leadership.
    Transfer,
    /// Sends a snapshot.
    Snapshot,
    /// Fetches a snapshot.
    FetchSnapshot,
    /// Fetches the digests of recent states.
    Digests,
    /// Opens a connection for requests for the index that a linearizable read waits for.
    ReadIndex,
    /// Forwards a write.
    Write,
    /// Forwards several small writes, each of which is answered when it is decided.
    Writes,
    /// Fetches the page of a cursor.
    Page,
    /// Fetches a part of the history.
    History,
    /// Forwards a change of the membership.
    Change,
    /// Asks a node for its identity, or gives it one.
    Join,
    /// Asks a member for its wall clock.
    Clock,
    /// Asks a voter whether its volume is below its reserve.
    Room,
    /// Asks a node which feature levels it knows.
    Levels,
    /// Opens a connection for heartbeats.
    Heartbeats,
    /// Asks a node to prove that it knows the cluster secret.
    Prove,
    /// Exchanges what two members remember of all.
    Witness,
    /// Fetches a page of the audit log.
    Audit,
    /// Forwards what is said of a rollout, or asks for it.
    Report,
}

impl Call {
    /// All RPCs.
    pub const ALL: [Self; 22] = [
        Self::Vote,
        Self::PreVote,
        Self::Stream,
        Self::Transfer,
        Self::Snapshot,
        Self::FetchSnapshot,
        Self::Digests,
        Self::ReadIndex,
        Self::Write,
        Self::Writes,
        Self::Page,
        Self::History,
        Self::Change,
        Self::Join,
        Self::Clock,
        Self::Room,
        Self::Levels,
        Self::Heartbeats,
        Self::Prove,
        Self::Witness,
        Self::Audit,
        Self::Report,
    ];

    /// The last segment of the path.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vote => "vote",
            Self::PreVote => "pre-vote",
            Self::Stream => "stream",
            Self::Transfer => "transfer",
            Self::Snapshot => "snapshot",
            Self::FetchSnapshot => "fetch-snapshot",
            Self::Digests => "digests",
            Self::ReadIndex => "read-index",
            Self::Write => "write",
            Self::Writes => "writes",
            Self::Page => "page",
            Self::History => "history",
            Self::Change => "change",
            Self::Join => "join",
            Self::Room => "room",
            Self::Clock => "clock",
            Self::Levels => "levels",
            Self::Heartbeats => "heartbeats",
            Self::Prove => "prove",
            Self::Witness => "witness",
            Self::Audit => "audit",
            Self::Report => "report",
        }
    }

    /// The RPC with a name; `None` for a name that this version does not know.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|call| call.name() == name)
    }
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_found_by_its_name() {
        for call in Call::ALL {
            assert_eq!(Call::from_name(call.name()), Some(call));
        }
        assert_eq!(Call::from_name("append "), None);
        assert_eq!(Call::from_name(""), None);
    }
}
