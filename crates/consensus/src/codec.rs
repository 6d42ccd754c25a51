//! The encoding of the log's records.
//!
//! | record | bytes |
//! |---|---|
//! | log id | `A1`, index, term, node |
//! | vote | `B1`, term, node, committed |
//! | block | tag, length, crc32c of tag and length, the bytes, crc32c of the bytes |
//!
//! | content of a sealed block | format `01`, tag of the payload, feature level, nonce, the encrypted payload, its tag |
//!
//! Numbers are big-endian. Blocks are the payloads (`C1` blank, `C2` proposal, `C3` membership, `C4` any of them,
//! encrypted) and the log's header (`D1`). raft-log takes a record that ends too early for the torn end of the file and
//! truncates the log there. So a damaged length must never look like a short file, and a damaged record type must never
//! be read as another type: hence the checksum after the length and the tag before everything else.
//!
//! **Invariant:** damage is [`io::ErrorKind::InvalidData`]; [`io::ErrorKind::UnexpectedEof`] means that the file
//! ends; [`io::ErrorKind::Unsupported`] is a whole entry of a feature level that this version does not know.

use std::io::{self, Read, Write};

use bytes::Bytes;
use raft_log::codeq::{Decode, Encode};
use serde::{Deserialize, Serialize};

use super::{
    directory_format::unknown_level,
    types::Payload,
    wire::{self, WireLogId, WireMembership, WirePayload, WireVote},
};
use concord_model::{
    entry,
    feature::{LEVEL_MIN, level_max},
};
use concord_storage::at_rest::FileKey;

const ID: u8 = 0xA1;
const VOTE: u8 = 0xB1;
const BLANK: u8 = 0xC1;
const PROPOSAL: u8 = 0xC2;
const MEMBERSHIP: u8 = 0xC3;
const SEALED: u8 = 0xC4;
const HEADER: u8 = 0xD1;
/// The format of an encrypted payload.
const SEALED_FORMAT: u8 = 1;
/// What of an encrypted payload is readable: format, tag, feature level.
const SEALED_HEAD_BYTES: usize = 6;

/// Most bytes of a block: an entry has at most 16 MiB (`consensus.rs`), a membership far less.
const BLOCK_BYTES_MAX: u32 = 64 << 20;

/// An entry's payload as the log stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogPayload {
    tag: u8,
    pub(super) bytes: Bytes,
}

impl LogPayload {
    /// The feature level that a node must know to apply it.
    pub(super) fn feature_level(&self) -> u32 {
        match self.tag {
            PROPOSAL => entry::feature_level_of(&self.bytes),
            SEALED => {
                let level = self.bytes.get(2..).and_then(|rest| rest.first_chunk::<4>());
                level.map_or(LEVEL_MIN, |level| u32::from_be_bytes(*level))
            }
            _ => LEVEL_MIN,
        }
    }

    /// Encrypts the payload of an entry.
    pub(super) fn seal(self, key: &FileKey, id: &WireLogId) -> Self {
        let level = self.feature_level().to_be_bytes();
        let head = [&[SEALED_FORMAT, self.tag][..], &level].concat();
        let sealed = key.seal(&place(&head, id), &self.bytes);
        Self { tag: SEALED, bytes: [head, sealed].concat().into() }
    }

    /// Decrypts the payload of an entry. With a key, an unencrypted entry is damage unless `allows_plain`.
    pub(super) fn open(self, key: Option<&FileKey>, id: &WireLogId, allows_plain: bool) -> io::Result<Self> {
        if self.tag != SEALED {
            let is_ours = key.is_none() || allows_plain;
            return if is_ours { Ok(self) } else { Err(damaged("an unencrypted entry")) };
        }
        let (head, sealed) = self
            .bytes
            .split_at_checked(SEALED_HEAD_BYTES)
            .filter(|(head, _)| head[0] == SEALED_FORMAT)
            .ok_or_else(|| damaged("an encrypted entry of an unknown format"))?;
        let key = key.ok_or_else(|| damaged("an entry is encrypted, but no key is configured"))?;
        let opened = key.open(&place(head, id), sealed);
        let bytes = opened.ok_or_else(|| damaged("an entry cannot be decrypted at its position"))?;
        Ok(Self { tag: head[1], bytes: bytes.into() })
    }
}

/// What an encrypted payload is bound to.
fn place(head: &[u8], id: &WireLogId) -> Vec<u8> {
    let id = [id.index, id.term, id.node].map(u64::to_be_bytes);
    [head, &id.concat()].concat()
}

/// The log's header: the member that it belongs to, and the snapshot that is being installed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LogHeader {
    pub(super) cluster: [u8; 16],
    pub(super) node: u64,
    /// A snapshot up to this entry is being installed, so the state may be ahead of the log.
    pub(super) installing: Option<WireLogId>,
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
    let checksum = crc32c::crc32c(&head[..5]);
    head[5..].copy_from_slice(&checksum.to_be_bytes());
    to.write_all(&head)?;
    to.write_all(bytes)?;
    to.write_all(&crc32c::crc32c(bytes).to_be_bytes())?;
    Ok(head.len() + bytes.len() + 4)
}

fn read_block<R: Read>(mut from: R, tags: &[u8]) -> io::Result<(u8, Vec<u8>)> {
    // The tag is checked before the rest is read: another record type in place of a block is damage, not an early
    // end.
    let mut head = [0; 9];
    from.read_exact(&mut head[..1])?;
    if !tags.contains(&head[0]) {
        return Err(damaged("not a block of an expected type"));
    }
    from.read_exact(&mut head[1..])?;
    let [tag, a, b, c, d, checksum @ ..] = head;
    let length = u32::from_be_bytes([a, b, c, d]);
    let unchecked = concord_model::sabotage::is("damaged-log-accepted");
    if !unchecked && crc32c::crc32c(&head[..5]) != u32::from_be_bytes(checksum) || length > BLOCK_BYTES_MAX {
        return Err(damaged("the length of a block"));
    }
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| damaged("the length of a block"))?];
    from.read_exact(&mut bytes)?;
    let mut checksum = [0; 4];
    from.read_exact(&mut checksum)?;
    if !unchecked && crc32c::crc32c(&bytes) != u32::from_be_bytes(checksum) {
        return Err(damaged("the bytes of a block"));
    }
    Ok((tag, bytes))
}

impl Encode for WireLogId {
    fn encode<W: Write>(&self, mut to: W) -> io::Result<usize> {
        to.write_all(&[ID])?;
        for number in [self.index, self.term, self.node] {
            to.write_all(&number.to_be_bytes())?;
        }
        Ok(25)
    }
}

impl Decode for WireLogId {
    fn decode<R: Read>(mut from: R) -> io::Result<Self> {
        expect_tag(&mut from, ID, "not a log id")?;
        Ok(Self { index: number(&mut from)?, term: number(&mut from)?, node: number(&mut from)? })
    }
}

impl Encode for WireVote {
    fn encode<W: Write>(&self, mut to: W) -> io::Result<usize> {
        to.write_all(&[VOTE])?;
        for number in [self.term, self.node] {
            to.write_all(&number.to_be_bytes())?;
        }
        to.write_all(&[u8::from(self.committed)])?;
        Ok(18)
    }
}

impl Decode for WireVote {
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

impl Encode for LogHeader {
    fn encode<W: Write>(&self, to: W) -> io::Result<usize> {
        write_block(to, HEADER, &wire::to_bytes(self))
    }
}

impl Decode for LogHeader {
    fn decode<R: Read>(from: R) -> io::Result<Self> {
        let (_, bytes) = read_block(from, &[HEADER])?;
        wire::from_bytes(&bytes).map_err(|error| damaged(&error.to_string()))
    }
}

impl Encode for LogPayload {
    fn encode<W: Write>(&self, to: W) -> io::Result<usize> {
        write_block(to, self.tag, &self.bytes)
    }
}

impl Decode for LogPayload {
    fn decode<R: Read>(from: R) -> io::Result<Self> {
        let (tag, bytes) = read_block(from, &[BLANK, PROPOSAL, MEMBERSHIP, SEALED])?;
        let payload = Self { tag, bytes: bytes.into() };
        match payload.feature_level() {
            level if level > level_max() => Err(unknown_level(level)),
            _ => Ok(payload),
        }
    }
}

impl From<&Payload> for LogPayload {
    fn from(payload: &Payload) -> Self {
        match WirePayload::from(payload) {
            WirePayload::Blank => Self { tag: BLANK, bytes: Bytes::new() },
            WirePayload::Proposal(bytes) => Self { tag: PROPOSAL, bytes },
            WirePayload::Membership(members) => {
                Self { tag: MEMBERSHIP, bytes: wire::to_bytes(&members).into() }
            }
        }
    }
}

impl TryFrom<LogPayload> for Payload {
    type Error = io::Error;

    fn try_from(payload: LogPayload) -> io::Result<Self> {
        let decoded = match payload.tag {
            BLANK => WirePayload::Blank,
            PROPOSAL => WirePayload::Proposal(payload.bytes),
            SEALED => return Err(damaged("an entry is encrypted, but no key is configured")),
            _ => WirePayload::Membership(
                wire::from_bytes::<WireMembership>(&payload.bytes)
                    .map_err(|error| damaged(&error.to_string()))?,
            ),
        };
        decoded.try_into().map_err(|error: String| damaged(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::EncodedProposal;
    use concord_net::Member;
    use concord_storage::at_rest::{AtRest, KEYS, KeyPurpose};

    fn payloads() -> Vec<LogPayload> {
        let member = |id| (id, Member { id, api_addr: format!("a:{id}"), peer_addr: format!("p:{id}") });
        let members = WireMembership {
            voters: vec![vec![1, 2], vec![2, 3]],
            nodes: vec![member(1), member(2), member(3)],
        };
        vec![
            (&Payload::Blank).into(),
            (&Payload::Normal(EncodedProposal(Bytes::from(vec![1; 300])))).into(),
            (&Payload::Membership(members.try_into().unwrap())).into(),
        ]
    }

    #[test]
    fn a_payload_is_decoded_as_it_was_encoded() {
        for payload in payloads() {
            let mut bytes = Vec::new();
            let length = payload.encode(&mut bytes).unwrap();
            assert_eq!(length, bytes.len());
            let decoded = LogPayload::decode(bytes.as_slice()).unwrap();
            assert_eq!(decoded, payload);
            let raft = Payload::try_from(decoded).unwrap();
            assert_eq!(LogPayload::from(&raft), payload);
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
                let error = LogPayload::decode(flipped.as_slice()).unwrap_err();
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
                let error = LogPayload::decode(&bytes[..length]).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
            }
        }
    }

    #[test]
    fn an_encrypted_payload_is_read_at_its_own_place_only() {
        let directory = tempfile::tempdir().unwrap();
        let at_rest = AtRest::for_tests(directory.path(), KEYS[0]);
        let key = at_rest.sealing_key(KeyPurpose::Log).unwrap();
        let id = WireLogId { index: 7, term: 2, node: 1 };
        for payload in payloads() {
            let sealed = payload.clone().seal(&key, &id);
            assert_eq!(sealed.feature_level(), payload.feature_level());
            let mut bytes = Vec::new();
            sealed.encode(&mut bytes).unwrap();
            let decoded = LogPayload::decode(bytes.as_slice()).unwrap();
            assert_eq!(decoded.clone().open(Some(&key), &id, false).unwrap(), payload);
            let refused = |payload: LogPayload, key: Option<&FileKey>, id: &WireLogId| {
                payload.open(key, id, false).unwrap_err().kind() == io::ErrorKind::InvalidData
            };
            for id in [WireLogId { index: 8, ..id }, WireLogId { term: 3, ..id }, WireLogId { node: 2, ..id }]
            {
                assert!(refused(decoded.clone(), Some(&key), &id));
            }
            assert!(refused(decoded.clone(), None, &id), "no key");
            assert!(refused(payload.clone(), Some(&key), &id), "not encrypted");
            assert_eq!(payload.clone().open(Some(&key), &id, true).unwrap(), payload);
            assert!(Payload::try_from(decoded.clone()).is_err());
            // What the checksum does not find: somebody wrote it.
            for bit in 0..decoded.bytes.len() * 8 {
                let mut bytes = decoded.bytes.to_vec();
                bytes[bit / 8] ^= 1 << (bit % 8);
                let changed = LogPayload { tag: SEALED, bytes: bytes.into() };
                assert!(refused(changed, Some(&key), &id), "bit {bit}");
            }
            for cut in 0..decoded.bytes.len() {
                let cut = LogPayload { tag: SEALED, bytes: decoded.bytes.slice(..cut) };
                assert!(refused(cut, Some(&key), &id));
            }
        }
    }

    #[test]
    fn a_record_is_not_decoded_as_another_type() {
        let mut id = Vec::new();
        WireLogId { index: 1, term: 1, node: 1 }.encode(&mut id).unwrap();
        assert_eq!(WireVote::decode(id.as_slice()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(LogPayload::decode(id.as_slice()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(
            Option::<WireLogId>::decode(id.as_slice()).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }
}
