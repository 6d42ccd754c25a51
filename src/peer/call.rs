//! Every call that one node makes to another: `POST /peer/{name}` on the peer listener.
//!
//! | name | body | answer | who answers | a node that does not know it |
//! |---|---|---|---|---|
//! | `vote`, `pre-vote` | a candidate's request | granted or not | consensus | – (since the first version) |
//! | `append` | entries of the log | how far they match | consensus | – |
//! | `stream` | none; the connection is upgraded | frames of `append`, both ways | consensus | 404: the sender fails, it has no other way to send entries |
//! | `transfer` | who takes leadership over | whether it was taken in | consensus | – |
//! | `snapshot` | a snapshot file, its header in [`HEAD`](super::client::HEAD) | the receiver's vote | consensus | – |
//! | `fetch-snapshot` | none | the newest snapshot file, its header in `HEAD` | consensus | 404: another member is asked |
//! | `digests` | none | digests of recent states | consensus | 404: the node is not compared |
//! | `read-index` | none | the index that a linearizable read waits for | the leader's service | – |
//! | `write` | one write | what became of it | the leader's service | – |
//! | `writes` | several small writes | what became of each | the leader's service | 404: certainly not applied, the sender tries again until its time is up |
//! | `page` | a cursor and a list | a part of that page | the service that holds the cursor's state | 404: the cursor is expired |
//! | `history` | a question about the past | a part of the history | the service, from its own disk | 404: the next member is asked |
//! | `change` | a change of the members | the entry that says so | the leader's service | 404: certainly not done |
//! | `join` | a question before the cluster is formed | the node's identity | the service; admitted by the secret alone | – |
//!
//! **Invariant:** the names are what older and newer nodes call each other by: one is never renamed or reused.

/// A call by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// A candidate asks for a vote.
    Vote,
    /// A node asks whether it would get votes.
    PreVote,
    /// Entries of the log.
    Append,
    /// A connection that entries are sent over.
    Stream,
    /// Leadership is handed over.
    Transfer,
    /// A snapshot is sent.
    Snapshot,
    /// A snapshot is asked for.
    FetchSnapshot,
    /// The digests of recent states are asked for.
    Digests,
    /// The leader is asked for the index that a linearizable read waits for.
    ReadIndex,
    /// A write is forwarded.
    Write,
    /// Several small writes are forwarded.
    Writes,
    /// A page behind a cursor is asked for.
    Page,
    /// The history is asked for.
    History,
    /// A change of the members is forwarded.
    Change,
    /// A node is asked whose it is, or told.
    Join,
}

impl Call {
    /// All of them.
    pub const ALL: [Self; 15] = [
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
        Self::Page,
        Self::History,
        Self::Change,
        Self::Join,
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
            Self::Page => "page",
            Self::History => "history",
            Self::Change => "change",
            Self::Join => "join",
        }
    }

    /// The call of a name; `None` for a name that this version does not know.
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
