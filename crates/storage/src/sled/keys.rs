//! The layout of the sled trees. The bytes of every key sort as its parts do; this table is the whole layout.
//!
//! | tree | key | value |
//! |---|---|---|
//! | `definitions` | id `u64be` · chunk `u16be` | a chunk of the definition |
//! | `configs` | definition id `u64be` · key · `00` · chunk `u16be` | a chunk of the config |
//! | `indexes` | definition id `u64be` · slot `u16be` · value, escaped · `00` · key | nothing |
//! | `requests` | revision `u64be` | the retained outcome of the request |
//! | `access_keys` | id | the access key |
//! | `audit_anchors` | cluster id, 16 bytes · node id `u64be` | the anchors of the node's audit log |
//! | `system` | kind `u8` · name · `00` · chunk `u16be` | a chunk of the system record |
//! | `meta` | `position` | the checkpoint: position, revision, time and digest of what all trees hold together |
//! | `meta` | `carrying` | present while a merge is being written; the log entry that the merge ends at |
//!
//! A record is a format byte and its postcard bytes, cut into chunks of 64 KiB: sled stores a larger value in
//! a file of its own and never frees that file. Keys of configs and names contain no `00`, so they ascend. In
//! a value of an index, `00` is written as `00 FF`. A value of more than 256 bytes is written as its first
//! 240 bytes and a hash of all of it: a key of sled must stay small, and the state is loaded from the
//! configs, never from this tree.
//!
//! **Invariant:** ids are never used twice, so no new row falls into the range of a deleted definition.

use serde::{Serialize, de::DeserializeOwned};
use xxhash_rust::xxh3::xxh3_128;

use concord_model::{
    access_key::KeyId, audit::AnchoredLog, encoding, key::Key, record::Revision, system::SystemKey,
};

/// The names of the trees.
pub(super) const TREES: [&str; 8] =
    ["definitions", "configs", "indexes", "requests", "access_keys", "audit_anchors", "system", "meta"];
/// The key of the checkpoint in `meta`.
pub(super) const POSITION: &str = "position";
/// The key of the interrupted merge's target in `meta`.
pub(super) const MERGE_TARGET: &str = "carrying";

/// Longest value of a row, in bytes.
pub(super) const CHUNK_BYTES: usize = 64 << 10;
/// Longest value that is written in an index key as it is, in bytes.
const VALUE_BYTES_MAX: usize = 256;
/// Bytes of a longer value that are written before its hash.
const VALUE_PREFIX_BYTES: usize = 240;
/// The format of a stored record; its first byte.
const RECORD_FORMAT: u8 = 1;

/// The rows of one definition in `definitions`, of all its configs in `configs`, of all its entries in
/// `indexes`.
pub(super) fn prefix(definition: Revision) -> [u8; 8] {
    definition.to_be_bytes()
}

/// The key of a definition's chunk.
pub(crate) fn definition(id: Revision, chunk: u16) -> Vec<u8> {
    [&id.to_be_bytes()[..], &chunk.to_be_bytes()].concat()
}

/// The key of a config's chunk.
pub(crate) fn config(definition: Revision, key: &Key, chunk: u16) -> Vec<u8> {
    [&definition.to_be_bytes()[..], key.as_str().as_bytes(), &[0], &chunk.to_be_bytes()].concat()
}

/// The key of an index entry.
pub(crate) fn index(definition: Revision, slot: u16, value: &[u8], key: &Key) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + 2 + value.len().min(VALUE_BYTES_MAX) + 2 + key.as_str().len());
    bytes.extend_from_slice(&definition.to_be_bytes());
    bytes.extend_from_slice(&slot.to_be_bytes());
    if value.len() > VALUE_BYTES_MAX {
        escape(&value[..VALUE_PREFIX_BYTES], &mut bytes);
        escape(&xxh3_128(value).to_be_bytes(), &mut bytes);
    } else {
        escape(value, &mut bytes);
    }
    bytes.push(0);
    bytes.extend_from_slice(key.as_str().as_bytes());
    bytes
}

/// The key of an access key. Limits keep its value below [`CHUNK_BYTES`].
pub(crate) fn access_key(id: &KeyId) -> Vec<u8> {
    id.as_str().into()
}

/// The key of the anchors of an audit log. Thinning keeps their value below [`CHUNK_BYTES`].
pub(crate) fn anchored_log(log: &AnchoredLog) -> Vec<u8> {
    [&log.cluster[..], &log.node.to_be_bytes()].concat()
}

/// The key of a system record's chunk.
pub(crate) fn system(key: &SystemKey, chunk: u16) -> Vec<u8> {
    [&[key.kind as u8][..], key.name.as_str().as_bytes(), &[0], &chunk.to_be_bytes()].concat()
}

/// The key of a request's retained outcome.
pub(crate) fn request(revision: Revision) -> [u8; 8] {
    revision.to_be_bytes()
}

fn escape(value: &[u8], to: &mut Vec<u8>) {
    for &byte in value {
        to.push(byte);
        if byte == 0 {
            to.push(0xFF);
        }
    }
}

/// The id, the bytes between, and the chunk number of a row's key in `definitions` or `configs`.
pub(super) fn split(row: &[u8]) -> Option<(Revision, &[u8], u16)> {
    let (id, rest) = row.split_first_chunk::<8>()?;
    let (name, chunk) = rest.split_last_chunk::<2>()?;
    Some((Revision::from_be_bytes(*id), name, u16::from_be_bytes(*chunk)))
}

/// The kind, the name and the chunk number of a row's key in `system`.
pub(super) fn split_system(row: &[u8]) -> Option<(u64, &[u8], u16)> {
    let (kind, rest) = row.split_first()?;
    let (name, chunk) = rest.split_last_chunk::<2>()?;
    Some((u64::from(*kind), name, u16::from_be_bytes(*chunk)))
}

/// A record's stored bytes.
pub(crate) fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    encoding::append(vec![RECORD_FORMAT], record)
}

/// Decodes the bytes of [`encode`]; `None` when they are invalid.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let rest = bytes.strip_prefix(&[RECORD_FORMAT])?;
    postcard::take_from_bytes(rest).ok().and_then(|(record, rest)| rest.is_empty().then_some(record))
}

/// The chunks of a record's bytes with their numbers.
pub(crate) fn chunks(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    (0..).zip(bytes.chunks(CHUNK_BYTES))
}

/// The number of chunks of a record. `rough_bytes` is at least its length, or far below a chunk.
pub(super) fn chunk_count<T: Serialize>(record: &T, rough_bytes: usize) -> u16 {
    if rough_bytes < CHUNK_BYTES / 2 {
        return 1;
    }
    let length = postcard::experimental::serialized_size(record).expect("a record is plain data") + 1;
    u16::try_from(length.div_ceil(CHUNK_BYTES)).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::parse(text).unwrap()
    }

    #[test]
    fn configs_ascend_by_definition_then_key_then_chunk() {
        let rows = [
            config(1, &key("a"), 0),
            config(1, &key("a"), 1),
            config(1, &key("a-"), 0),
            config(1, &key("aa"), 0),
            config(2, &key("a"), 0),
            config(256, &key("0"), 0),
        ];
        assert!(rows.is_sorted());
        assert_eq!(split(&rows[1]), Some((1, &b"a\0"[..], 1)));
    }

    #[test]
    fn entries_ascend_by_slot_then_value_then_key() {
        let rows = [
            index(1, 0, b"", &key("z")),
            index(1, 0, b"\0", &key("a")),
            index(1, 0, b"\0\x01", &key("a")),
            index(1, 0, b"a", &key("a")),
            index(1, 0, b"a", &key("b")),
            index(1, 0, b"a\0", &key("a")),
            index(1, 0, b"ab", &key("a")),
            index(1, 1, b"", &key("a")),
        ];
        assert!(rows.is_sorted());
    }

    #[test]
    fn long_values_give_small_keys_that_differ() {
        let (mut one, mut two) = (vec![1; 100_000], vec![1; 100_000]);
        one.push(1);
        two.push(2);
        let (one, two) = (index(1, 0, &one, &key("a")), index(1, 0, &two, &key("a")));
        assert!(one.len() < 600 && one != two);
    }

    #[test]
    fn chunk_count_agrees_with_chunks() {
        for length in [0, 1, CHUNK_BYTES - 4, CHUNK_BYTES - 3, CHUNK_BYTES, 3 * CHUNK_BYTES] {
            let record = "x".repeat(length);
            let bytes = encode(&record);
            assert_eq!(usize::from(chunk_count(&record, length)), chunks(&bytes).count(), "{length}");
            assert_eq!(decode::<String>(&bytes), Some(record));
        }
        assert_eq!(decode::<String>(&[]), None);
        assert_eq!(decode::<String>(&[RECORD_FORMAT, 0, 0]), None);
    }
}
