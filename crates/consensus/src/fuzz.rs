//! Targets of the fuzzer: what is read from other members and from the log (`fuzz_targets`).

use std::fmt::Debug;

use bytes::Bytes;
use openraft::raft::AppendEntriesRequest;
use raft_log::codeq::{Decode, Encode};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    codec::{LogHeader, LogPayload},
    term_starts::TermStarts,
    types::{EncodedProposal, Membership, Payload, TypeConfig},
    wire::{
        self, MembershipMetadata, SnapshotHeader, StateMetadata, WireAppendRequest, WireAppendResponse,
        WireConfirmation, WireLogId, WireMembership, WireTransferRequest, WireTransferResponse, WireVote,
        WireVoteRequest, WireVoteResponse,
    },
};
use concord_net::{Member, NodeId};
use concord_state::testing::samples;

/// What is decoded is encoded to bytes that decode to the same encoding.
fn stable<T: Serialize + DeserializeOwned + Debug>(bytes: &[u8]) -> Option<T> {
    let value: T = wire::from_bytes(bytes).ok()?;
    let encoded = wire::to_bytes(&value);
    let again: T = wire::from_bytes(&encoded).expect("an encoding is decoded");
    assert_eq!(wire::to_bytes(&again), encoded, "{value:?}");
    Some(value)
}

/// The body of a call between members, or its response: the first byte says of which.
pub fn peer_call(bytes: &[u8]) -> bool {
    let Some((kind, bytes)) = bytes.split_first() else { return false };
    match kind % 9 {
        // A membership that openraft does not accept is refused.
        0 => stable::<WireAppendRequest>(bytes)
            .is_some_and(|request| AppendEntriesRequest::<TypeConfig>::try_from(request).is_ok()),
        1 => stable::<WireConfirmation>(bytes).is_some(),
        2 => stable::<WireVoteRequest>(bytes).is_some(),
        3 => stable::<WireVoteResponse>(bytes).is_some(),
        4 => stable::<WireTransferRequest>(bytes).is_some(),
        5 => stable::<WireTransferResponse>(bytes).is_some(),
        6 => stable::<SnapshotHeader>(bytes).is_some(),
        7 => stable::<WireMembership>(bytes).is_some_and(|members| Membership::try_from(members).is_ok()),
        _ => StateMetadata::decode(bytes).is_ok_and(|metadata| {
            let encoded = wire::to_bytes(&metadata);
            assert_eq!(StateMetadata::decode(&encoded).as_ref(), Ok(&metadata));
            metadata.into_raft().is_ok()
        }),
    }
}

/// The HTTP header of a snapshot in transfer.
pub fn snapshot_header(bytes: &[u8]) -> bool {
    let Ok(header) = SnapshotHeader::from_header(bytes) else { return false };
    let text = header.to_header();
    let again = SnapshotHeader::from_header(text.as_bytes()).expect("a header is decoded");
    assert_eq!(again, header);
    true
}

/// A record of the log: the first byte says of which type.
pub fn log_record(bytes: &[u8]) -> bool {
    let Some((kind, bytes)) = bytes.split_first() else { return false };
    match kind % 5 {
        0 => exact::<WireLogId>(bytes),
        1 => exact::<WireVote>(bytes),
        2 => exact::<LogHeader>(bytes),
        3 => exact::<LogPayload>(bytes),
        // A block with right checksums.
        _ => {
            let Some((tag, content)) = bytes.split_first() else { return false };
            let length = u32::try_from(content.len()).unwrap_or(u32::MAX).to_be_bytes();
            let head = [&[*tag][..], &length].concat();
            let check = crc32c::crc32c(&head).to_be_bytes();
            let block = [&head[..], &check, content, &crc32c::crc32c(content).to_be_bytes()].concat();
            let header = exact::<LogHeader>(&block);
            exact::<LogPayload>(&block)
                && LogPayload::decode(block.as_slice())
                    .is_ok_and(|payload| Payload::try_from(payload).is_ok())
                || header
        }
    }
}

/// Reads no more bytes than there are, and what was read is encoded in no more of them.
fn exact<T: Decode + Encode + Debug>(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    let Ok(value) = T::decode(&mut rest) else { return false };
    let mut encoded = Vec::new();
    value.encode(&mut encoded).expect("memory grows");
    let mut again = encoded.as_slice();
    let value = T::decode(&mut again).expect("an encoding is decoded");
    assert!(again.is_empty(), "{value:?} is encoded with bytes too many");
    assert!(encoded.len() <= bytes.len() - rest.len(), "{value:?} was read from fewer bytes");
    true
}

fn member(id: NodeId) -> Member {
    Member { id, api_addr: format!("10.0.0.{id}:8101"), peer_addr: format!("10.0.0.{id}:8201") }
}

fn membership() -> WireMembership {
    WireMembership {
        voters: vec![vec![1, 2], vec![2, 3]],
        nodes: (1..4).map(|id| (id, member(id))).collect(),
    }
}

fn payloads() -> Vec<Payload> {
    let entry = samples::all_proposals()[1].to_bytes();
    vec![
        Payload::Blank,
        Payload::Normal(EncodedProposal(Bytes::from(entry))),
        Payload::Membership(membership().try_into().expect("a sample's membership is valid")),
    ]
}

/// Real inputs of [`peer_call`].
pub fn peer_call_seeds() -> Vec<Vec<u8>> {
    let id = WireLogId { index: 300, term: 2, node: 1 };
    let vote = WireVote { term: 2, node: 1, committed: true };
    let entries: Vec<_> = payloads()
        .iter()
        .zip(301..)
        .map(|(payload, index)| (WireLogId { index, ..id }, wire::WirePayload::from(payload)))
        .collect();
    let metadata = StateMetadata::of_first_member(id, member(3));
    let header = SnapshotHeader {
        vote: Some(vote),
        index: 300,
        metadata: wire::to_bytes(&metadata),
        bytes: 1 << 20,
        digest: u128::MAX,
    };
    let seed = |kind: u8, bytes: Vec<u8>| [vec![kind], bytes].concat();
    let confirmation = |response| WireConfirmation { lease: Some(900), response };
    vec![
        // A structure is encoded as the tuple of its fields.
        seed(0, wire::to_bytes(&(vote, Some(id), entries, Some(id)))),
        seed(1, wire::to_bytes(&confirmation(WireAppendResponse::PartialSuccess(Some(id))))),
        seed(1, wire::to_bytes(&confirmation(WireAppendResponse::HigherVote(vote)))),
        seed(2, wire::to_bytes(&(vote, Some(id), true))),
        seed(3, wire::to_bytes(&(vote, false, Some(id)))),
        seed(4, wire::to_bytes(&(vote, 3_u64, Some(id)))),
        seed(5, wire::to_bytes(&WireTransferResponse::LogNotFlushed { expected: Some(id), actual: None })),
        seed(6, wire::to_bytes(&header)),
        seed(7, wire::to_bytes(&membership())),
        seed(8, wire::to_bytes(&metadata)),
        seed(8, wire::to_bytes(&(Some(id), MembershipMetadata::default(), TermStarts::default()))),
    ]
}

/// Real inputs of [`snapshot_header`].
pub fn header_seeds() -> Vec<Vec<u8>> {
    let header = |vote, metadata: &[u8]| SnapshotHeader {
        vote,
        index: 9,
        metadata: metadata.to_vec(),
        bytes: 7,
        digest: 1 << 100,
    };
    let vote = WireVote { term: 2, node: 1, committed: false };
    [header(None, &[]), header(Some(vote), b"metadata"), header(Some(vote), &[255; 40])]
        .map(|header| header.to_header().into_bytes())
        .into()
}

/// Real inputs of [`log_record`].
pub fn log_record_seeds() -> Vec<Vec<u8>> {
    fn seed(kind: u8, value: &impl Encode) -> Vec<u8> {
        let mut bytes = vec![kind];
        value.encode(&mut bytes).expect("memory grows");
        bytes
    }
    let id = WireLogId { index: 300, term: 2, node: 1 };
    let header = LogHeader { cluster: [7; 16], node: 3, installing: Some(id) };
    let mut seeds =
        vec![seed(0, &id), seed(1, &WireVote { term: 2, node: 1, committed: true }), seed(2, &header)];
    for payload in payloads() {
        let payload = LogPayload::from(&payload);
        let whole = seed(3, &payload);
        // Tag and content without the checksums.
        seeds.push([&[4, whole[1]][..], &payload.bytes].concat());
        seeds.push(whole);
    }
    seeds
}
