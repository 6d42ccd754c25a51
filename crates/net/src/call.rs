//! Every call that one node makes to another: `POST /peer/{name}` on the peer listener.
//!
//! The last column says what the sender does when the receiver is an older node that does not know the call and
//! answers 404; "–": every version knows it.
//!
//! | name | body | response | answered by | on 404 |
//! |---|---|---|---|---|
//! | `vote`, `pre-vote` | a candidate's request | granted or not | consensus | – |
//! | `append` | entries of the log | how far they match | consensus | – |
//! | `stream` | none; the connection is upgraded | frames of `append` in both directions | consensus | fails: there is no other way to send entries |
//! | `heartbeats` | none; the connection is upgraded | frames of `append` without entries in both directions | consensus | calls `append` for each |
//! | `transfer` | who takes leadership over | whether it is accepted | consensus | – |
//! | `snapshot` | a snapshot file, its header in [`SNAPSHOT_HEADER`](super::client::SNAPSHOT_HEADER) | the receiver's vote | consensus | – |
//! | `fetch-snapshot` | none | the newest snapshot file, its header as above | consensus | asks another member |
//! | `digests` | none | digests of recent states | consensus | leaves the node out of the comparison |
//! | `read-index` | none | the index that a linearizable read waits for | the leader's service | – |
//! | `read-indexes` | none; the connection is upgraded | empty frames, back answers to a `read-index` | the leader's service | calls `read-index` for each |
//! | `write` | one write | its outcome | the leader's service | – |
//! | `writes` | several small writes | the outcome of each | the leader's service | retries until the time is up: certainly not applied |
//! | `writes-each` | several small writes | the outcome of each as soon as it is decided, in frames | the leader's service | calls `writes` |
//! | `page` | a cursor and a list | a part of that page | the service of the node that pins the cursor's state | answers 503 |
//! | `history` | a query of the history | a part of the history | the service, from its own disk | asks the next member |
//! | `change` | a change of the membership | the entry that makes it | the leader's service | retries until the time is up: certainly not done |
//! | `clock` | none | the node's wall clock | the service | counts the node's clock as not known |
//! | `room` | none | whether the node's volume is below its reserve | the service | counts the node as one with room |
//! | `levels` | none | the feature levels that the node knows; a node without an identity answers, too | the service | it is a node of level 1 |
//! | `join` | none, or the identity that a node without one is to take | the node's identity, whether it has a log | the service; the credential is for the address, the id and the digest of the body, since there may be no cluster yet. At feature level 1 the secret alone admits it, too | – |
//!
//! **Invariant:** nodes of all versions use these names, so none is ever renamed or reused.

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// A candidate requests a vote.
    Vote,
    /// A node asks whether it would get a vote.
    PreVote,
    /// Entries of the log, in one request.
    Append,
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
    /// Asks the leader for the index that a linearizable read waits for.
    ReadIndex,
    /// Forwards a write.
    Write,
    /// Forwards several small writes, whose answers are batched.
    Writes,
    /// Forwards several small writes, each of which is answered when it is decided.
    WritesEach,
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
    /// Opens a connection for requests for a read index.
    ReadIndexes,
}

impl Call {
    /// All calls.
    pub const ALL: [Self; 21] = [
        Self::Vote,
        Self::PreVote,
        Self::Append,
        Self::Stream,
        Self::Transfer,
        Self::Snapshot,
        Self::FetchSnapshot,
        Self::Digests,
        Self::ReadIndex,
        Self::Write,
        Self::Writes,
        Self::WritesEach,
        Self::Page,
        Self::History,
        Self::Change,
        Self::Join,
        Self::Clock,
        Self::Room,
        Self::Levels,
        Self::Heartbeats,
        Self::ReadIndexes,
    ];

    /// The last segment of the path.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vote => "vote",
            Self::PreVote => "pre-vote",
            Self::Append => "append",
            Self::Stream => "stream",
            Self::Transfer => "transfer",
            Self::Snapshot => "snapshot",
            Self::FetchSnapshot => "fetch-snapshot",
            Self::Digests => "digests",
            Self::ReadIndex => "read-index",
            Self::Write => "write",
            Self::Writes => "writes",
            Self::WritesEach => "writes-each",
            Self::Page => "page",
            Self::History => "history",
            Self::Change => "change",
            Self::Join => "join",
            Self::Room => "room",
            Self::Clock => "clock",
            Self::Levels => "levels",
            Self::Heartbeats => "heartbeats",
            Self::ReadIndexes => "read-indexes",
        }
    }

    /// The call with a name; `None` for a name that this version does not know.
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
