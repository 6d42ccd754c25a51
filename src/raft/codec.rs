//! How the records of the log are written.
//!
//! | what | bytes |
//! |---|---|
//! | place in the log | `A1`, index, term, node |
//! | vote | `B1`, term, node, committed |
//! | block | tag, length, crc32c of tag and length, the bytes, crc32c of the bytes |
//!
//! Numbers are big-endian. Blocks are the payloads (`C1` blank, `C2` proposal, `C3` members) and the log's mark
//! (`D1`). raft-log takes a record that ends too early for the torn end of the file and cuts the log there. So a
//! damaged length must never look like a short file, and a damaged record type must not read on as another kind:
//! hence the checksum behind the length and the tag before everything.
//!
//! **Invariant:** damage is [`io::ErrorKind::InvalidData`]; only a file that really ends early is an early end.

use std::io::{self, Read, Write};

use bytes::Bytes;
use raft_log::codeq::{Decode, Encode};
use serde::{Deserialize, Serialize};

use super::{
    types::Payload as RaftPayload,
    wire::{self, Ballot, Body, Id, Members},
};

const ID: u8 = 0xA1;
const VOTE: u8 = 0xB1;
const BLANK: u8 = 0xC1;
const PROPOSAL: u8 = 0xC2;
const MEMBERS: u8 = 0xC3;
const MARK: u8 = 0xD1;

/// Longest block: an entry is at most 16 MiB (`consensus.rs`), a membership far less.
const BLOCK_BYTES_MAX: u32 = 64 << 20;

/// An entry's payload as the log keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Payload {
    tag: u8,
    pub(super) bytes: Bytes,
}

/// What the log says of itself: whose it is, and the snapshot that was being adopted when it was written last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    pub(super) cluster: [u8; 16],
    pub(super) node: u64,
    /// A snapshot up to here is being installed: the state may be ahead of the log for that reason.
    pub(super) installing: Option<Id>,
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("damaged log: {what}"))
}

fn number<R: Read>(from: &mut R) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}

fn expect_tag<R: Read>(from: &mut R, tag: u8, what: &str) -> io::Result<()> {
    let mut byte = [0];
    from.read_exact(&mut byte)?;
    if byte[0] == tag { Ok(()) } else { Err(damaged(what)) }
}

fn write_block<W: Write>(mut to: W, tag: u8, bytes: &[u8]) -> io::Result<usize> {
    let length = u32::try_from(bytes.len())
        .ok()
        .filter(|length| *length <= BLOCK_BYTES_MAX)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "an entry is too long for the log"))?;
    let mut head = [0; 9];
    head[0] = tag;
    head[1..5].copy_from_slice(&length.to_be_bytes());
    let check = crc32c::crc32c(&head[..5]);
    head[5..].copy_from_slice(&check.to_be_bytes());
    to.write_all(&head)?;
    to.write_all(bytes)?;
    to.write_all(&crc32c::crc32c(bytes).to_be_bytes())?;
    Ok(head.len() + bytes.len() + 4)
}

fn read_block<R: Read>(mut from: R, tags: &[u8]) -> io::Result<(u8, Vec<u8>)> {
    // The tag is looked at before the rest is awaited: another record read as a block is damage, not an end.
    let mut head = [0; 9];
    from.read_exact(&mut head[..1])?;
    if !tags.contains(&head[0]) {
        return Err(damaged("not a block of this kind"));
    }
    from.read_exact(&mut head[1..])?;
    let [tag, a, b, c, d, check @ ..] = head;
    let length = u32::from_be_bytes([a, b, c, d]);
    let believed = crate::sabotage::is("damaged-log-accepted");
    if !believed && crc32c::crc32c(&head[..5]) != u32::from_be_bytes(check) || length > BLOCK_BYTES_MAX {
        return Err(damaged("the length of a block"));
    }
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| damaged("the length of a block"))?];
    from.read_exact(&mut bytes)?;
    let mut check = [0; 4];
    from.read_exact(&mut check)?;
    if !believed && crc32c::crc32c(&bytes) != u32::from_be_bytes(check) {
        return Err(damaged("the bytes of a block"));
    }
    Ok((tag, bytes))
}

impl Encode for Id {
    fn encode<W: Write>(&self, mut to: W) -> io::Result<usize> {
        to.write_all(&[ID])?;
        for number in [self.index, self.term, self.node] {
            to.write_all(&number.to_be_bytes())?;
        }
        Ok(25)
    }
}

impl Decode for Id {
    fn decode<R: Read>(mut from: R) -> io::Result<Self> {
        expect_tag(&mut from, ID, "not a place in the log")?;
        Ok(Self { index: number(&mut from)?, term: number(&mut from)?, node: number(&mut from)? })
    }
}

impl Encode for Ballot {
    fn encode<W: Write>(&self, mut to: W) -> io::Result<usize> {
        to.write_all(&[VOTE])?;
        for number in [self.term, self.node] {
            to.write_all(&number.to_be_bytes())?;
        }
        to.write_all(&[u8::from(self.committed)])?;
        Ok(18)
    }
}

impl Decode for Ballot {
    fn decode<R: Read>(mut from: R) -> io::Result<Self> {
        expect_tag(&mut from, VOTE, "not a vote")?;
        let (term, node) = (number(&mut from)?, number(&mut from)?);
        let mut committed = [0];
        from.read_exact(&mut committed)?;
        let committed = match committed[0] {
            0 => false,
            1 => true,
            _ => return Err(damaged("not a vote")),
        };
        Ok(Self { term, node, committed })
    }
}

impl Encode for Mark {
    fn encode<W: Write>(&self, to: W) -> io::Result<usize> {
        write_block(to, MARK, &wire::to_bytes(self))
    }
}

impl Decode for Mark {
    fn decode<R: Read>(from: R) -> io::Result<Self> {
        let (_, bytes) = read_block(from, &[MARK])?;
        wire::from_bytes(&bytes).map_err(|error| damaged(&error.to_string()))
    }
}

impl Encode for Payload {
    fn encode<W: Write>(&self, to: W) -> io::Result<usize> {
        write_block(to, self.tag, &self.bytes)
    }
}

impl Decode for Payload {
    fn decode<R: Read>(from: R) -> io::Result<Self> {
        let (tag, bytes) = read_block(from, &[BLANK, PROPOSAL, MEMBERS])?;
        Ok(Self { tag, bytes: bytes.into() })
    }
}

impl From<&RaftPayload> for Payload {
    fn from(payload: &RaftPayload) -> Self {
        match Body::from(payload) {
            Body::Blank => Self { tag: BLANK, bytes: Bytes::new() },
            Body::Proposal(bytes) => Self { tag: PROPOSAL, bytes },
            Body::Members(members) => Self { tag: MEMBERS, bytes: wire::to_bytes(&members).into() },
        }
    }
}

impl TryFrom<Payload> for RaftPayload {
    type Error = io::Error;

    fn try_from(payload: Payload) -> io::Result<Self> {
        let body = match payload.tag {
            BLANK => Body::Blank,
            PROPOSAL => Body::Proposal(payload.bytes),
            _ => Body::Members(
                wire::from_bytes::<Members>(&payload.bytes).map_err(|error| damaged(&error.to_string()))?,
            ),
        };
        body.try_into().map_err(|error: String| damaged(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{peer::Member, raft::types::Data};

    fn payloads() -> Vec<Payload> {
        let member = |id| (id, Member { id, api_addr: format!("a:{id}"), peer_addr: format!("p:{id}") });
        let members =
            Members { voters: vec![vec![1, 2], vec![2, 3]], nodes: vec![member(1), member(2), member(3)] };
        vec![
            (&RaftPayload::Blank).into(),
            (&RaftPayload::Normal(Data(Bytes::from(vec![7; 300])))).into(),
            (&RaftPayload::Membership(members.try_into().unwrap())).into(),
        ]
    }

    #[test]
    fn a_payload_comes_back() {
        for payload in payloads() {
            let mut bytes = Vec::new();
            let length = payload.encode(&mut bytes).unwrap();
            assert_eq!(length, bytes.len());
            let again = Payload::decode(bytes.as_slice()).unwrap();
            assert_eq!(again, payload);
            let raft = RaftPayload::try_from(again).unwrap();
            assert_eq!(Payload::from(&raft), payload);
        }
    }

    #[test]
    fn every_flipped_bit_of_a_payload_is_damage_and_never_an_early_end() {
        for payload in payloads() {
            let mut bytes = Vec::new();
            payload.encode(&mut bytes).unwrap();
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let error = Payload::decode(flipped.as_slice()).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidData, "bit {bit}");
            }
        }
    }

    #[test]
    fn a_payload_that_ends_early_is_an_early_end() {
        for payload in payloads() {
            let mut bytes = Vec::new();
            payload.encode(&mut bytes).unwrap();
            for length in 0..bytes.len() {
                let error = Payload::decode(&bytes[..length]).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            }
        }
    }

    #[test]
    fn one_kind_of_record_is_not_read_as_another() {
        let mut id = Vec::new();
        Id { index: 1, term: 1, node: 1 }.encode(&mut id).unwrap();
        assert_eq!(Ballot::decode(id.as_slice()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(Payload::decode(id.as_slice()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(Option::<Id>::decode(id.as_slice()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
