//! The types that are encoded in place of openraft's: in the log, in the metadata of a state, between members.
//!
//! openraft's types may gain a field with any release, and postcard stores no field names by which an old record
//! could still be read. So no type of openraft is serialised. The types here are, and they change only on purpose.
//! A type named `Wire…` holds what openraft's type of the rest of that name holds.
//!
//! **Invariant:** every later version decodes what an earlier one has encoded. Fields keep their order; variants
//! are added at the end only.

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

use super::{
    lease::Lease,
    term::Term,
    term_starts::TermStarts,
    types::{EncodedProposal, Entry, LeaderId, LogId, Membership, StoredMembership, TypeConfig, Vote},
};
use concord_model::encoding;
use concord_net::{Member, NodeId, ReceiveError};

/// The id of a log entry. Ordered by index before term: within one log an index has one entry, and a snapshot of an
/// older term may end at a higher index than the uncommitted tail of a newer term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct WireLogId {
    pub(super) index: u64,
    pub(super) term: u64,
    pub(super) node: NodeId,
}

/// A vote: the term and node that were voted for, and whether a quorum did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct WireVote {
    pub(super) term: u64,
    pub(super) node: NodeId,
    pub(super) committed: bool,
}

/// The members of the cluster. While the voters change, there are two sets of them (joint consensus).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WireMembership {
    pub(super) voters: Vec<Vec<NodeId>>,
    pub(super) nodes: Vec<(NodeId, Member)>,
}

/// The metadata that is stored with a state: how far it has applied the log, with which membership, and whose entries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StateMetadata {
    /// The last applied entry.
    pub(super) last_log_id: Option<WireLogId>,
    pub(super) membership: MembershipMetadata,
    /// The ids of the applied entries.
    pub(super) terms: TermStarts,
}

/// The membership that a state was applied with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MembershipMetadata {
    /// The entry that set it.
    log_id: Option<WireLogId>,
    members: WireMembership,
    /// The greatest id that any membership entry has named so far.
    greatest_id: NodeId,
}

/// The payload of a log entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum WirePayload {
    Blank,
    Proposal(Bytes),
    Membership(WireMembership),
}

/// Room for what a request has beside its entries.
const REQUEST_HEAD_BYTES: usize = 96;
/// Room for what an entry has beside its proposals.
const ENTRY_HEAD_BYTES: usize = 40;

/// Entries from the leader; a heartbeat has none.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireAppendRequest {
    pub(super) vote: WireVote,
    previous: Option<WireLogId>,
    entries: Vec<(WireLogId, WirePayload)>,
    committed: Option<WireLogId>,
}

/// The response to [`WireAppendRequest`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WireAppendResponse {
    Success,
    PartialSuccess(Option<WireLogId>),
    Conflict,
    HigherVote(WireVote),
}

/// A member's response to [`WireAppendRequest`], in a frame: its lease, which comes with every confirmation.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireConfirmation {
    pub(super) lease: Lease,
    pub(super) response: WireAppendResponse,
}

/// A candidate's request for a vote.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireVoteRequest {
    pub(super) vote: WireVote,
    pub(super) last: Option<WireLogId>,
    transfer: bool,
}

/// The response to [`WireVoteRequest`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireVoteResponse {
    pub(super) vote: WireVote,
    pub(super) granted: bool,
    pub(super) last: Option<WireLogId>,
}

/// The leader's request that a follower takes leadership over.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireTransferRequest {
    pub(super) from: WireVote,
    to: NodeId,
    last: Option<WireLogId>,
}

/// The response to [`WireTransferRequest`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WireTransferResponse {
    Accepted,
    VoteChanged { expected: WireVote, actual: WireVote },
    LogNotFlushed { expected: Option<WireLogId>, actual: Option<WireLogId> },
}

/// The header of a snapshot in transfer. A snapshot that a member has fetched has no vote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SnapshotHeader {
    pub(super) vote: Option<WireVote>,
    pub(super) index: u64,
    /// The encoded [`StateMetadata`].
    pub(super) metadata: Vec<u8>,
    pub(super) bytes: u64,
    pub(super) digest: u128,
}

/// The encoding of a value.
pub(super) fn to_bytes<T: Serialize>(value: &T) -> Vec<u8> {
    encoding::append(Vec::new(), value)
}

/// The encoding of a request with entries, in one allocation: they are most of what a leader encodes.
pub(super) fn append_request(request: &AppendEntriesRequest<TypeConfig>) -> Vec<u8> {
    let room = |entry: &Entry| {
        let proposals = if let EntryPayload::Normal(data) = &entry.payload { data.0.len() } else { 0 };
        ENTRY_HEAD_BYTES + proposals
    };
    let room = REQUEST_HEAD_BYTES + request.entries.iter().map(room).sum::<usize>();
    encoding::append(Vec::with_capacity(room), &WireAppendRequest::from(request))
}

/// Decodes a value that takes up all of the bytes.
pub(super) fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ReceiveError> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(ReceiveError::Malformed(format!("{} bytes too many", rest.len()))),
        Err(error) => Err(ReceiveError::Malformed(error.to_string())),
    }
}

impl SnapshotHeader {
    /// The value of the HTTP header: hexadecimal.
    pub(super) fn to_header(&self) -> String {
        to_bytes(self).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Decodes the value of the HTTP header.
    pub(super) fn from_header(value: &[u8]) -> Result<Self, ReceiveError> {
        let malformed = || ReceiveError::Malformed("the header of a snapshot is not hexadecimal".into());
        let text = std::str::from_utf8(value).map_err(|_| malformed())?;
        if !text.is_ascii() || text.len() % 2 != 0 {
            return Err(malformed());
        }
        let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| malformed());
        let bytes: Vec<u8> = (0..text.len()).step_by(2).map(byte).collect::<Result<_, _>>()?;
        from_bytes(&bytes)
    }
}

impl StateMetadata {
    /// The metadata of the first state of a cluster of one member.
    pub(super) fn of_first_member(last: WireLogId, member: Member) -> Self {
        let greatest_id = member.id;
        let members = WireMembership { voters: vec![vec![member.id]], nodes: vec![(member.id, member)] };
        let membership = MembershipMetadata { log_id: Some(last), members, greatest_id };
        Self { last_log_id: Some(last), membership, terms: TermStarts::of_first(last) }
    }

    /// The encoding of metadata whose other fields are encoded already: fields follow one another without a separator.
    pub(super) fn encode_with(last: Option<LogId>, membership: &[u8], terms: &[u8]) -> Vec<u8> {
        let mut bytes = to_bytes(&last.map(WireLogId::from));
        bytes.extend_from_slice(membership);
        bytes.extend_from_slice(terms);
        bytes
    }

    /// Decodes what is stored with a state; no bytes at all belong to the state before the first entry.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        from_bytes(bytes).map_err(|error| error.to_string())
    }

    /// The same with other addresses of the members.
    pub(super) fn with_members(
        mut self,
        change: impl FnOnce(Membership) -> Membership,
    ) -> Result<Self, String> {
        self.membership.members = (&change(Membership::try_from(self.membership.members)?)).into();
        Ok(self)
    }

    /// The last log id and the membership as openraft's types.
    pub(super) fn into_raft(self) -> Result<(Option<LogId>, StoredMembership), String> {
        let members = Membership::try_from(self.membership.members)?;
        let membership = StoredMembership::new(self.membership.log_id.map(LogId::from), members);
        Ok((self.last_log_id.map(LogId::from), membership))
    }
}

impl MembershipMetadata {
    /// From openraft's membership and the greatest id so far.
    pub(super) fn new(membership: &StoredMembership, greatest_id: NodeId) -> Self {
        let (log_id, members) = (membership.log_id().map(WireLogId::from), membership.membership().into());
        Self { log_id, members, greatest_id }
    }

    /// The greatest id that any member has had so far.
    pub(super) fn greatest_id(&self) -> NodeId {
        self.members.nodes.iter().map(|(id, _)| *id).fold(self.greatest_id, NodeId::max)
    }
}

impl From<LogId> for WireLogId {
    fn from(id: LogId) -> Self {
        Self { index: id.index, term: id.leader_id.term.0, node: id.leader_id.node_id }
    }
}

impl From<WireLogId> for LogId {
    fn from(id: WireLogId) -> Self {
        Self::new(LeaderId::new(Term(id.term), id.node), id.index)
    }
}

impl From<&Vote> for WireVote {
    fn from(vote: &Vote) -> Self {
        Self { term: vote.leader_id.term.0, node: vote.leader_id.node_id, committed: vote.committed }
    }
}

impl From<WireVote> for Vote {
    fn from(vote: WireVote) -> Self {
        Self { leader_id: LeaderId::new(Term(vote.term), vote.node), committed: vote.committed }
    }
}

impl From<&Membership> for WireMembership {
    fn from(membership: &Membership) -> Self {
        Self {
            voters: membership.get_joint_config().iter().map(|set| set.iter().copied().collect()).collect(),
            nodes: membership.nodes().map(|(id, member)| (*id, member.clone())).collect(),
        }
    }
}

impl TryFrom<WireMembership> for Membership {
    type Error = String;

    fn try_from(members: WireMembership) -> Result<Self, String> {
        if members.voters.is_empty() {
            return Ok(Self::default());
        }
        let voters: Vec<BTreeSet<NodeId>> =
            members.voters.into_iter().map(|set| set.into_iter().collect()).collect();
        let nodes: BTreeMap<NodeId, Member> = members.nodes.into_iter().collect();
        Self::new(voters, nodes).map_err(|error| error.to_string())
    }
}

impl From<&EntryPayload<EncodedProposal, NodeId, Member>> for WirePayload {
    fn from(payload: &EntryPayload<EncodedProposal, NodeId, Member>) -> Self {
        match payload {
            EntryPayload::Blank => Self::Blank,
            EntryPayload::Normal(data) => Self::Proposal(data.0.clone()),
            EntryPayload::Membership(membership) => Self::Membership(membership.into()),
        }
    }
}

impl TryFrom<WirePayload> for EntryPayload<EncodedProposal, NodeId, Member> {
    type Error = String;

    fn try_from(payload: WirePayload) -> Result<Self, String> {
        Ok(match payload {
            WirePayload::Blank => Self::Blank,
            WirePayload::Proposal(bytes) => Self::Normal(EncodedProposal(bytes)),
            WirePayload::Membership(members) => Self::Membership(members.try_into()?),
        })
    }
}

impl From<&AppendEntriesRequest<TypeConfig>> for WireAppendRequest {
    fn from(rpc: &AppendEntriesRequest<TypeConfig>) -> Self {
        Self {
            vote: (&rpc.vote).into(),
            previous: rpc.prev_log_id.map(WireLogId::from),
            entries: rpc.entries.iter().map(|entry| (entry.log_id.into(), (&entry.payload).into())).collect(),
            committed: rpc.leader_commit.map(WireLogId::from),
        }
    }
}

impl TryFrom<WireAppendRequest> for AppendEntriesRequest<TypeConfig> {
    type Error = ReceiveError;

    fn try_from(request: WireAppendRequest) -> Result<Self, ReceiveError> {
        let entry = |(id, payload): (WireLogId, WirePayload)| {
            let payload = payload.try_into().map_err(ReceiveError::Malformed)?;
            Ok(Entry { log_id: id.into(), payload })
        };
        Ok(Self {
            vote: request.vote.into(),
            prev_log_id: request.previous.map(LogId::from),
            entries: request.entries.into_iter().map(entry).collect::<Result<_, ReceiveError>>()?,
            leader_commit: request.committed.map(LogId::from),
        })
    }
}

impl From<AppendEntriesResponse<TypeConfig>> for WireAppendResponse {
    fn from(response: AppendEntriesResponse<TypeConfig>) -> Self {
        match response {
            AppendEntriesResponse::Success => Self::Success,
            AppendEntriesResponse::PartialSuccess(id) => Self::PartialSuccess(id.map(WireLogId::from)),
            AppendEntriesResponse::Conflict => Self::Conflict,
            AppendEntriesResponse::HigherVote(vote) => Self::HigherVote((&vote).into()),
        }
    }
}

impl From<WireAppendResponse> for AppendEntriesResponse<TypeConfig> {
    fn from(response: WireAppendResponse) -> Self {
        match response {
            WireAppendResponse::Success => Self::Success,
            WireAppendResponse::PartialSuccess(id) => Self::PartialSuccess(id.map(LogId::from)),
            WireAppendResponse::Conflict => Self::Conflict,
            WireAppendResponse::HigherVote(vote) => Self::HigherVote(vote.into()),
        }
    }
}

impl From<&VoteRequest<TypeConfig>> for WireVoteRequest {
    fn from(rpc: &VoteRequest<TypeConfig>) -> Self {
        Self {
            vote: (&rpc.vote).into(),
            last: rpc.last_log_id.map(WireLogId::from),
            transfer: rpc.leadership_transfer,
        }
    }
}

impl From<WireVoteRequest> for VoteRequest<TypeConfig> {
    fn from(request: WireVoteRequest) -> Self {
        let mut rpc = Self::new(request.vote.into(), request.last.map(LogId::from));
        rpc.leadership_transfer = request.transfer;
        rpc
    }
}

impl From<VoteResponse<TypeConfig>> for WireVoteResponse {
    fn from(response: VoteResponse<TypeConfig>) -> Self {
        Self {
            vote: (&response.vote).into(),
            granted: response.vote_granted,
            last: response.last_log_id.map(WireLogId::from),
        }
    }
}

impl From<WireVoteResponse> for VoteResponse<TypeConfig> {
    fn from(response: WireVoteResponse) -> Self {
        Self::new(Vote::from(response.vote), response.last.map(LogId::from), response.granted)
    }
}

impl From<&TransferLeaderRequest<TypeConfig>> for WireTransferRequest {
    fn from(rpc: &TransferLeaderRequest<TypeConfig>) -> Self {
        Self {
            from: rpc.from_leader().into(),
            to: *rpc.to_node_id(),
            last: rpc.last_log_id().copied().map(WireLogId::from),
        }
    }
}

impl From<WireTransferRequest> for TransferLeaderRequest<TypeConfig> {
    fn from(request: WireTransferRequest) -> Self {
        Self::new(request.from.into(), request.to, request.last.map(LogId::from))
    }
}

impl From<Result<(), TransferLeaderError<TypeConfig>>> for WireTransferResponse {
    fn from(response: Result<(), TransferLeaderError<TypeConfig>>) -> Self {
        match response {
            Ok(()) => Self::Accepted,
            Err(TransferLeaderError::VoteChanged { expected, actual }) => {
                Self::VoteChanged { expected: (&expected).into(), actual: (&actual).into() }
            }
            Err(TransferLeaderError::LogNotFlushed { expected, actual }) => Self::LogNotFlushed {
                expected: expected.map(WireLogId::from),
                actual: actual.map(WireLogId::from),
            },
        }
    }
}

impl From<WireTransferResponse> for Result<(), TransferLeaderError<TypeConfig>> {
    fn from(response: WireTransferResponse) -> Self {
        match response {
            WireTransferResponse::Accepted => Ok(()),
            WireTransferResponse::VoteChanged { expected, actual } => {
                Err(TransferLeaderError::VoteChanged { expected: expected.into(), actual: actual.into() })
            }
            WireTransferResponse::LogNotFlushed { expected, actual } => {
                Err(TransferLeaderError::LogNotFlushed {
                    expected: expected.map(LogId::from),
                    actual: actual.map(LogId::from),
                })
            }
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
    fn metadata_holds_the_greatest_id_after_its_member_is_removed() {
        let last = WireLogId { index: 9, term: 2, node: 1 };
        let first = StateMetadata::of_first_member(last, member(3));
        assert_eq!(first.membership.greatest_id(), 3);
        let (_, membership) = first.into_raft().unwrap();
        let membership = MembershipMetadata::new(&membership, 5);
        let terms = TermStarts::of_first(last);
        let metadata = StateMetadata { last_log_id: Some(last), membership, terms };
        let decoded = StateMetadata::decode(&to_bytes(&metadata)).unwrap();
        assert_eq!((decoded.membership.greatest_id(), &decoded), (5, &metadata));
        assert_eq!(StateMetadata::decode(&[]).unwrap().membership.greatest_id(), 0);
    }

    #[test]
    fn metadata_is_encoded_as_its_fields_in_order() {
        let last = WireLogId { index: 300, term: 2, node: 1 };
        let metadata = StateMetadata::of_first_member(last, member(3));
        let bytes = to_bytes(&metadata);
        let MembershipMetadata { log_id, members, greatest_id } = &metadata.membership;
        let terms = &metadata.terms;
        assert_eq!(bytes, to_bytes(&(metadata.last_log_id, log_id, members, greatest_id, terms)));
        let membership = to_bytes(&metadata.membership);
        assert_eq!(bytes, StateMetadata::encode_with(Some(last.into()), &membership, &to_bytes(terms)));
    }
}
