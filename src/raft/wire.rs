//! Our own forms of what openraft's types say: in the log, in the stamp of a snapshot, between nodes.
//!
//! openraft's types may gain a field with any release, and postcard has no names to survive that. So nothing of
//! openraft is serialised: these structs are, and they change only when we mean it.
//!
//! **Invariant:** what one version writes, every later version reads; enums grow only at the end.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use openraft::{
    EntryPayload,
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, TransferLeaderError, TransferLeaderRequest, VoteRequest,
        VoteResponse,
    },
    vote::RaftLeaderId,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::types::{Data, Entry, Kind, LeaderId, LogId, Membership, StoredMembership, Vote};
use crate::peer::{Member, NodeId, ReceiveError};

/// A place in the log. Ordered by index before term: within one log an index has one entry, and a snapshot of an
/// older term may reach further than a tail of a newer term that was never agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Id {
    pub(super) index: u64,
    pub(super) term: u64,
    pub(super) node: NodeId,
}

/// A vote as it is kept and sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Ballot {
    pub(super) term: u64,
    pub(super) node: NodeId,
    pub(super) committed: bool,
}

/// Who belongs to the cluster; more than one set of voters while it changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Members {
    pub(super) voters: Vec<Vec<NodeId>>,
    pub(super) nodes: Vec<(NodeId, Member)>,
}

/// What stands beside a state: the last entry it knows, the members, the entry that named them, and the greatest
/// id that any entry so far has named.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    pub(super) last: Option<Id>,
    pub(super) named_by: Option<Id>,
    pub(super) members: Members,
    greatest: NodeId,
}

/// A [`Stamp`] as it was before members could leave.
#[derive(Debug, Serialize, Deserialize)]
struct FirstStamp {
    last: Option<Id>,
    named_by: Option<Id>,
    members: Members,
}

/// What an entry holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Body {
    Blank,
    Proposal(Bytes),
    Members(Members),
}

/// Entries from the leader, or a heartbeat without any.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Append {
    vote: Ballot,
    previous: Option<Id>,
    entries: Vec<(Id, Body)>,
    committed: Option<Id>,
}

/// The answer to [`Append`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Appended {
    All,
    UpTo(Option<Id>),
    Conflict,
    HigherVote(Ballot),
}

/// A candidate's question.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ask {
    pub(super) vote: Ballot,
    last: Option<Id>,
    transfer: bool,
}

/// The answer to [`Ask`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Answer {
    vote: Ballot,
    granted: bool,
    last: Option<Id>,
}

/// The leader's wish that a follower takes over.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Transfer {
    from: Ballot,
    to: NodeId,
    last: Option<Id>,
}

/// The answer to [`Transfer`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Transferred {
    Taken,
    VoteChanged { expected: Ballot, actual: Ballot },
    LogBehind { expected: Option<Id>, actual: Option<Id> },
}

/// What goes before the bytes of a snapshot file. The vote is missing when the file was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) vote: Option<Ballot>,
    pub(super) index: u64,
    pub(super) stamp: Vec<u8>,
    pub(super) bytes: u64,
    pub(super) digest: u128,
}

/// Bytes of a form.
pub(super) fn to_bytes<T: Serialize>(form: &T) -> Vec<u8> {
    postcard::to_extend(form, Vec::new()).expect("a form is plain data and memory grows")
}

/// The form that the bytes hold, to their end.
pub(super) fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ReceiveError> {
    match postcard::take_from_bytes(bytes) {
        Ok((form, [])) => Ok(form),
        Ok((_, rest)) => Err(ReceiveError::Malformed(format!("{} bytes too many", rest.len()))),
        Err(error) => Err(ReceiveError::Malformed(error.to_string())),
    }
}

impl Head {
    /// As the value of a header: hexadecimal.
    pub(super) fn to_header(&self) -> String {
        to_bytes(self).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// From the value of a header.
    pub(super) fn from_header(value: &[u8]) -> Result<Self, ReceiveError> {
        let malformed = || ReceiveError::Malformed("the head of a snapshot is not hexadecimal".into());
        let text = std::str::from_utf8(value).map_err(|_| malformed())?;
        if !text.is_ascii() || text.len() % 2 != 0 {
            return Err(malformed());
        }
        let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| malformed());
        let bytes: Vec<u8> = (0..text.len()).step_by(2).map(byte).collect::<Result<_, _>>()?;
        from_bytes(&bytes)
    }
}

impl Stamp {
    /// What openraft says of a state.
    pub(super) fn new(last: Option<LogId>, membership: &StoredMembership, greatest: NodeId) -> Self {
        Self {
            last: last.map(Id::from),
            named_by: membership.log_id().map(Id::from),
            members: Members::from(membership.membership()),
            greatest,
        }
    }

    /// The stamp of a state that begins a cluster of one member.
    pub(super) fn of_first(last: Id, member: Member) -> Self {
        let greatest = member.id;
        let members = Members { voters: vec![vec![member.id]], nodes: vec![(member.id, member)] };
        Self { last: Some(last), named_by: Some(last), members, greatest }
    }

    /// The greatest id that any member has had so far.
    pub(super) fn greatest_id(&self) -> NodeId {
        self.members.nodes.iter().map(|(id, _)| *id).fold(self.greatest, NodeId::max)
    }

    /// In openraft's words.
    pub(super) fn parts(self) -> Result<(Option<LogId>, StoredMembership), String> {
        let members = Membership::try_from(self.members)?;
        let membership = StoredMembership::new(self.named_by.map(LogId::from), members);
        Ok((self.last.map(LogId::from), membership))
    }

    /// From the bytes beside a state; none at all is the state before the first entry.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        if let Ok(stamp) = from_bytes(bytes) {
            return Ok(stamp);
        }
        let FirstStamp { last, named_by, members } = from_bytes(bytes).map_err(|error| error.to_string())?;
        Ok(Self { last, named_by, members, greatest: 0 })
    }
}

impl From<LogId> for Id {
    fn from(id: LogId) -> Self {
        Self { index: id.index, term: id.leader_id.term, node: id.leader_id.node_id }
    }
}

impl From<Id> for LogId {
    fn from(id: Id) -> Self {
        Self::new(LeaderId::new(id.term, id.node), id.index)
    }
}

impl From<&Vote> for Ballot {
    fn from(vote: &Vote) -> Self {
        Self { term: vote.leader_id.term, node: vote.leader_id.node_id, committed: vote.committed }
    }
}

impl From<Ballot> for Vote {
    fn from(ballot: Ballot) -> Self {
        Self { leader_id: LeaderId::new(ballot.term, ballot.node), committed: ballot.committed }
    }
}

impl From<&Membership> for Members {
    fn from(membership: &Membership) -> Self {
        Self {
            voters: membership.get_joint_config().iter().map(|set| set.iter().copied().collect()).collect(),
            nodes: membership.nodes().map(|(id, member)| (*id, member.clone())).collect(),
        }
    }
}

impl TryFrom<Members> for Membership {
    type Error = String;

    fn try_from(members: Members) -> Result<Self, String> {
        if members.voters.is_empty() {
            return Ok(Self::default());
        }
        let voters: Vec<BTreeSet<NodeId>> =
            members.voters.into_iter().map(|set| set.into_iter().collect()).collect();
        let nodes: BTreeMap<NodeId, Member> = members.nodes.into_iter().collect();
        Self::new(voters, nodes).map_err(|error| error.to_string())
    }
}

impl From<&EntryPayload<Data, NodeId, Member>> for Body {
    fn from(payload: &EntryPayload<Data, NodeId, Member>) -> Self {
        match payload {
            EntryPayload::Blank => Self::Blank,
            EntryPayload::Normal(data) => Self::Proposal(data.0.clone()),
            EntryPayload::Membership(membership) => Self::Members(membership.into()),
        }
    }
}

impl TryFrom<Body> for EntryPayload<Data, NodeId, Member> {
    type Error = String;

    fn try_from(body: Body) -> Result<Self, String> {
        Ok(match body {
            Body::Blank => Self::Blank,
            Body::Proposal(bytes) => Self::Normal(Data(bytes)),
            Body::Members(members) => Self::Membership(members.try_into()?),
        })
    }
}

impl From<&AppendEntriesRequest<Kind>> for Append {
    fn from(rpc: &AppendEntriesRequest<Kind>) -> Self {
        Self {
            vote: (&rpc.vote).into(),
            previous: rpc.prev_log_id.map(Id::from),
            entries: rpc.entries.iter().map(|entry| (entry.log_id.into(), (&entry.payload).into())).collect(),
            committed: rpc.leader_commit.map(Id::from),
        }
    }
}

impl TryFrom<Append> for AppendEntriesRequest<Kind> {
    type Error = ReceiveError;

    fn try_from(form: Append) -> Result<Self, ReceiveError> {
        let entry = |(id, body): (Id, Body)| {
            let payload = body.try_into().map_err(ReceiveError::Malformed)?;
            Ok(Entry { log_id: id.into(), payload })
        };
        Ok(Self {
            vote: form.vote.into(),
            prev_log_id: form.previous.map(LogId::from),
            entries: form.entries.into_iter().map(entry).collect::<Result<_, ReceiveError>>()?,
            leader_commit: form.committed.map(LogId::from),
        })
    }
}

impl From<AppendEntriesResponse<Kind>> for Appended {
    fn from(answer: AppendEntriesResponse<Kind>) -> Self {
        match answer {
            AppendEntriesResponse::Success => Self::All,
            AppendEntriesResponse::PartialSuccess(id) => Self::UpTo(id.map(Id::from)),
            AppendEntriesResponse::Conflict => Self::Conflict,
            AppendEntriesResponse::HigherVote(vote) => Self::HigherVote((&vote).into()),
        }
    }
}

impl From<Appended> for AppendEntriesResponse<Kind> {
    fn from(form: Appended) -> Self {
        match form {
            Appended::All => Self::Success,
            Appended::UpTo(id) => Self::PartialSuccess(id.map(LogId::from)),
            Appended::Conflict => Self::Conflict,
            Appended::HigherVote(ballot) => Self::HigherVote(ballot.into()),
        }
    }
}

impl From<&VoteRequest<Kind>> for Ask {
    fn from(rpc: &VoteRequest<Kind>) -> Self {
        Self {
            vote: (&rpc.vote).into(),
            last: rpc.last_log_id.map(Id::from),
            transfer: rpc.leadership_transfer,
        }
    }
}

impl From<Ask> for VoteRequest<Kind> {
    fn from(form: Ask) -> Self {
        let mut rpc = Self::new(form.vote.into(), form.last.map(LogId::from));
        rpc.leadership_transfer = form.transfer;
        rpc
    }
}

impl From<VoteResponse<Kind>> for Answer {
    fn from(answer: VoteResponse<Kind>) -> Self {
        Self {
            vote: (&answer.vote).into(),
            granted: answer.vote_granted,
            last: answer.last_log_id.map(Id::from),
        }
    }
}

impl From<Answer> for VoteResponse<Kind> {
    fn from(form: Answer) -> Self {
        Self::new(Vote::from(form.vote), form.last.map(LogId::from), form.granted)
    }
}

impl From<&TransferLeaderRequest<Kind>> for Transfer {
    fn from(rpc: &TransferLeaderRequest<Kind>) -> Self {
        Self {
            from: rpc.from_leader().into(),
            to: *rpc.to_node_id(),
            last: rpc.last_log_id().copied().map(Id::from),
        }
    }
}

impl From<Transfer> for TransferLeaderRequest<Kind> {
    fn from(form: Transfer) -> Self {
        Self::new(form.from.into(), form.to, form.last.map(LogId::from))
    }
}

impl From<Result<(), TransferLeaderError<Kind>>> for Transferred {
    fn from(answer: Result<(), TransferLeaderError<Kind>>) -> Self {
        match answer {
            Ok(()) => Self::Taken,
            Err(TransferLeaderError::VoteChanged { expected, actual }) => {
                Self::VoteChanged { expected: (&expected).into(), actual: (&actual).into() }
            }
            Err(TransferLeaderError::LogNotFlushed { expected, actual }) => {
                Self::LogBehind { expected: expected.map(Id::from), actual: actual.map(Id::from) }
            }
        }
    }
}

impl From<Transferred> for Result<(), TransferLeaderError<Kind>> {
    fn from(form: Transferred) -> Self {
        match form {
            Transferred::Taken => Ok(()),
            Transferred::VoteChanged { expected, actual } => {
                Err(TransferLeaderError::VoteChanged { expected: expected.into(), actual: actual.into() })
            }
            Transferred::LogBehind { expected, actual } => Err(TransferLeaderError::LogNotFlushed {
                expected: expected.map(LogId::from),
                actual: actual.map(LogId::from),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: NodeId) -> Member {
        Member { id, api_addr: format!("a:{id}"), peer_addr: format!("p:{id}") }
    }

    #[test]
    fn a_stamp_remembers_the_greatest_id_when_its_member_is_gone() {
        let last = Id { index: 9, term: 2, node: 1 };
        let (_, membership) = Stamp::of_first(last, member(3)).parts().unwrap();
        let stamp = Stamp::new(Some(last.into()), &membership, 5);
        let read = Stamp::decode(&to_bytes(&stamp)).unwrap();
        assert_eq!((read.greatest_id(), &read), (5, &stamp));
        assert_eq!(Stamp::of_first(last, member(3)).greatest_id(), 3);
        assert_eq!(Stamp::decode(&[]).unwrap().greatest_id(), 0);
    }

    #[test]
    fn a_stamp_of_the_first_form_is_read() {
        let last = Id { index: 9, term: 2, node: 1 };
        let Stamp { last, named_by, members, .. } = Stamp::of_first(last, member(3));
        let first = to_bytes(&FirstStamp { last, named_by, members });
        let read = Stamp::decode(&first).unwrap();
        assert_eq!((read.last, read.greatest_id()), (last, 3));
        assert!(Stamp::decode(&first[..first.len() - 1]).is_err());
    }
}
