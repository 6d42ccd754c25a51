//! Rows of an encrypted database.
//!
//! | tree | key |
//! |---|---|
//! | `definitions`, `requests` | as it is: numbers only |
//! | `configs` | definition id · 16 bytes that stand for the config's key · chunk `u16be` |
//! | `indexes` | definition id · slot `u16be` · 16 bytes that stand for value and key |
//! | `system` | kind · 16 bytes that stand for the name · chunk `u16be` |
//! | `access_keys`, `audit_anchors`, `meta` | as it is: no text of clients |
//!
//! Keys with text of clients are replaced by a keyed hash: the same key gives the same bytes, so that a row is found
//! and removed again. Rows of one definition stay together, and so do the chunks of one record. The state is loaded
//! from the values, which hold the whole records.
//!
//! A value is encrypted and bound to its tree and key. A value of `meta` begins with a byte of its own, which older
//! versions take for an unknown format.
//!
//! **Invariant:** no text of a client is in a row's key or, unencrypted, in its value.

use super::trees::TreeError;
use crate::at_rest::{AtRest, FileKey, KeyPurpose};

/// The first byte of an encrypted value of `meta`.
pub(super) const SEALED_META: u8 = 0xE1;
/// Bytes of a definition's id.
const ID_BYTES: usize = 8;
/// Bytes of a system record's kind.
const KIND_BYTES: usize = 1;

/// The trees whose rows are encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SealedTree {
    Definitions = 1,
    Configs = 2,
    Indexes = 3,
    Requests = 4,
    Meta = 5,
    AccessKeys = 6,
    AuditAnchors = 7,
    System = 8,
}

/// The keys of an encrypted database.
#[derive(Debug)]
pub(super) struct Sealing {
    values: FileKey,
    names: FileKey,
}

impl Sealing {
    /// `None` when what is written is not encrypted.
    pub(super) fn of(at_rest: &AtRest) -> Option<Self> {
        let key = |purpose| at_rest.sealing_key(purpose);
        Some(Self { values: key(KeyPurpose::SledValues)?, names: key(KeyPurpose::SledNames)? })
    }

    /// The key under which a row stands.
    pub(super) fn key(&self, kind: SealedTree, key: &[u8]) -> Vec<u8> {
        // What stays as it is: before and after the hashed part.
        let (before, after) = match kind {
            SealedTree::Definitions
            | SealedTree::Requests
            | SealedTree::Meta
            | SealedTree::AccessKeys
            | SealedTree::AuditAnchors => return key.to_vec(),
            SealedTree::Configs => (ID_BYTES, 2),
            SealedTree::System => (KIND_BYTES, 2),
            SealedTree::Indexes => (ID_BYTES + 2, 0),
        };
        let (before, rest) = key.split_at(before.min(key.len()));
        let (name, after) = rest.split_at(rest.len().saturating_sub(after));
        [before, &self.names.name(&[&[kind as u8], before, name]), after].concat()
    }

    /// A value as it is written, under the key that [`Self::key`] gave.
    pub(super) fn seal(&self, kind: SealedTree, key: &[u8], value: &[u8]) -> Vec<u8> {
        // A row of an index has no value.
        if kind == SealedTree::Indexes {
            return Vec::new();
        }
        let sealed = self.values.seal(&place(kind, key), value);
        if kind == SealedTree::Meta { [&[SEALED_META][..], &sealed].concat() } else { sealed }
    }

    pub(super) fn open(&self, kind: SealedTree, key: &[u8], value: &[u8]) -> Result<Vec<u8>, TreeError> {
        let sealed = if kind == SealedTree::Meta { value.strip_prefix(&[SEALED_META]) } else { Some(value) };
        let opened = sealed.and_then(|sealed| self.values.open(&place(kind, key), sealed));
        opened.ok_or_else(|| TreeError::new("a row of sled is not what was encrypted there"))
    }
}

fn place(kind: SealedTree, key: &[u8]) -> Vec<u8> {
    [&[kind as u8][..], key].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sled::keys;
    use concord_model::key::Key;

    #[test]
    fn sealed_keys_stay_grouped_and_reveal_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let at_rest = AtRest::for_tests(directory.path(), crate::at_rest::KEYS[0]);
        let sealing = Sealing::of(&at_rest).unwrap();
        let name = Key::parse("a-telling-name").unwrap();
        let rows = [keys::config(7, &name, 0), keys::config(7, &name, 1)]
            .map(|key| sealing.key(SealedTree::Configs, &key));
        assert_eq!(keys::split(&rows[0]).map(|(id, _, chunk)| (id, chunk)), Some((7, 0)));
        assert_eq!(rows[0][..24], rows[1][..24]);
        let index = sealing.key(SealedTree::Indexes, &keys::index(7, 2, b"a-telling-value", &name));
        for key in rows.iter().chain([&index]) {
            assert!(!key.windows(7).any(|part| part == b"telling"), "{key:?}");
        }
        let other = sealing.key(SealedTree::Configs, &keys::config(8, &name, 0));
        assert_ne!(rows[0][8..24], other[8..24], "the same name in two definitions");
    }

    #[test]
    fn a_value_is_read_in_its_own_row_only() {
        let directory = tempfile::tempdir().unwrap();
        let at_rest = AtRest::for_tests(directory.path(), crate::at_rest::KEYS[0]);
        let sealing = Sealing::of(&at_rest).unwrap();
        let sealed = sealing.seal(SealedTree::Configs, b"one", b"content");
        assert_eq!(sealing.open(SealedTree::Configs, b"one", &sealed).unwrap(), b"content");
        assert!(sealing.open(SealedTree::Configs, b"two", &sealed).is_err());
        assert!(sealing.open(SealedTree::Definitions, b"one", &sealed).is_err());
        for bit in 0..sealed.len() * 8 {
            let mut sealed = sealed.clone();
            sealed[bit / 8] ^= 1 << (bit % 8);
            assert!(sealing.open(SealedTree::Configs, b"one", &sealed).is_err(), "bit {bit}");
        }
        let meta = sealing.seal(SealedTree::Meta, b"position", b"here");
        assert_eq!(meta[0], SEALED_META);
        assert_eq!(sealing.open(SealedTree::Meta, b"position", &meta).unwrap(), b"here");
        assert!(sealing.open(SealedTree::Meta, b"position", b"here").is_err());
    }
}
