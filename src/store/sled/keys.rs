//! The keys of the sled trees. Every key is order-preserving bytes; this table is the whole layout.
//!
//! | tree | key | value |
//! |---|---|---|
//! | `definitions` | id `u64be` · piece `u16be` | a piece of the definition |
//! | `configs` | definition id `u64be` · key · `00` · piece `u16be` | a piece of the config |
//! | `indexes` | definition id `u64be` · slot `u16be` · value, escaped · `00` · key | nothing |
//! | `requests` | revision `u64be` | the kept answer |
//! | `meta` | `position` | the position, revision, time and digest that all trees together hold |
//! | `meta` | `carrying` | there while the trees are between two positions; the position that they are carried to |
//!
//! A record is a form byte and its postcard bytes, cut into pieces of 64 KiB: sled keeps a larger value in a file
//! of its own and does not give the file back. Keys of configs have no `00`, so configs ascend by key. In a value
//! of an index `00` is written `00 FF`. A value of more than 256 bytes stands there as its first 240 and a hash of
//! all of it: a key of sled must stay small, and the state is built from the configs, never from this tree.
//!
//! **Invariant:** ids are never used twice, so a range of a deleted definition stays dead.

use serde::{Serialize, de::DeserializeOwned};
use xxhash_rust::xxh3::xxh3_128;

use crate::model::{key::Key, record::Revision};

/// The trees.
pub(in crate::store) const TREES: [&str; 5] = ["definitions", "configs", "indexes", "requests", "meta"];
/// What the trees hold together.
pub(in crate::store) const POSITION: &str = "position";
/// The trees are between two positions.
pub(in crate::store) const CARRYING: &str = "carrying";

/// Longest value of a row.
pub(in crate::store) const PIECE_BYTES: usize = 64 << 10;
/// Longest value that stands in an index key as it is.
const VALUE_BYTES_MAX: usize = 256;
/// How much of a longer one does.
const VALUE_BYTES_KEPT: usize = 240;
/// The form of a stored record; its first byte.
const FORM: u8 = 1;

/// The rows of one definition in `definitions`, of all its configs in `configs`, of all its entries in `indexes`.
pub(in crate::store) fn prefix(definition: Revision) -> [u8; 8] {
    definition.to_be_bytes()
}

/// The key of a definition's piece.
pub(in crate::store) fn definition(id: Revision, piece: u16) -> Vec<u8> {
    [&id.to_be_bytes()[..], &piece.to_be_bytes()].concat()
}

/// The key of a config's piece.
pub(in crate::store) fn config(definition: Revision, key: &Key, piece: u16) -> Vec<u8> {
    [&definition.to_be_bytes()[..], key.as_str().as_bytes(), &[0], &piece.to_be_bytes()].concat()
}

/// The key of an index entry.
pub(in crate::store) fn index(definition: Revision, slot: u16, value: &[u8], key: &Key) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + 2 + value.len().min(VALUE_BYTES_MAX) + 2 + key.as_str().len());
    bytes.extend_from_slice(&definition.to_be_bytes());
    bytes.extend_from_slice(&slot.to_be_bytes());
    if value.len() > VALUE_BYTES_MAX {
        escape(&value[..VALUE_BYTES_KEPT], &mut bytes);
        escape(&xxh3_128(value).to_be_bytes(), &mut bytes);
    } else {
        escape(value, &mut bytes);
    }
    bytes.push(0);
    bytes.extend_from_slice(key.as_str().as_bytes());
    bytes
}

/// The key of a kept answer.
pub(in crate::store) fn request(revision: Revision) -> [u8; 8] {
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

/// The id, the rest before the piece, and the piece of a row's key in `definitions` or `configs`.
pub(in crate::store) fn split(row: &[u8]) -> Option<(Revision, &[u8], u16)> {
    let (id, rest) = row.split_first_chunk::<8>()?;
    let (name, piece) = rest.split_last_chunk::<2>()?;
    Some((Revision::from_be_bytes(*id), name, u16::from_be_bytes(*piece)))
}

/// A record's stored bytes.
pub(in crate::store) fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    postcard::to_extend(record, vec![FORM]).expect("a record is plain data and memory grows")
}

/// The record that bytes of [`encode`] hold; `None` when they are not such bytes.
pub(in crate::store) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let rest = bytes.strip_prefix(&[FORM])?;
    postcard::take_from_bytes(rest).ok().and_then(|(record, rest)| rest.is_empty().then_some(record))
}

/// The pieces of a record's bytes with their numbers.
pub(in crate::store) fn pieces(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    (0..).zip(bytes.chunks(PIECE_BYTES))
}

/// How many pieces a record has; `rough_bytes` is no less than its length or well below a piece.
pub(in crate::store) fn piece_count<T: Serialize>(record: &T, rough_bytes: usize) -> u16 {
    if rough_bytes < PIECE_BYTES / 2 {
        return 1;
    }
    let length = postcard::experimental::serialized_size(record).expect("a record is plain data") + 1;
    u16::try_from(length.div_ceil(PIECE_BYTES)).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::parse(text).unwrap()
    }

    #[test]
    fn configs_ascend_by_definition_then_key_then_piece() {
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
    fn a_long_value_stays_a_small_key_and_another_one_another_key() {
        let (mut one, mut two) = (vec![1; 100_000], vec![1; 100_000]);
        one.push(1);
        two.push(2);
        let (one, two) = (index(1, 0, &one, &key("a")), index(1, 0, &two, &key("a")));
        assert!(one.len() < 600 && one != two);
    }

    #[test]
    fn pieces_are_counted_as_they_are_cut() {
        for length in [0, 1, PIECE_BYTES - 4, PIECE_BYTES - 3, PIECE_BYTES, 3 * PIECE_BYTES] {
            let record = "x".repeat(length);
            let bytes = encode(&record);
            assert_eq!(usize::from(piece_count(&record, length)), pieces(&bytes).count(), "{length}");
            assert_eq!(decode::<String>(&bytes), Some(record));
        }
        assert_eq!(decode::<String>(&[]), None);
        assert_eq!(decode::<String>(&[FORM, 0, 0]), None);
    }
}
