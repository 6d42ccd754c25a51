//! The digest: one number by which two nodes check that they hold the same state.
//!
//! It is the sum, modulo 2^128, of an XXH3 hash of every stored record. So a change costs two hashes, whatever the size
//! of the state, and a deleted definition is one subtraction. It detects errors, not forgeries: the nodes trust each
//! other.
//!
//! **Invariant:** the digest covers every record with all its members, the time of the last change, the feature level
//! and whether the root key is disabled, and nothing else; an entry that changes none of them does not change it.

use std::cell::RefCell;

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::xxh3_128;

use super::{Collection, RememberedOutcome, State};
use concord_model::{
    access_key::AccessKey,
    audit::AuditAnchors,
    encoding,
    record::{Config, Definition, Revision},
    system::SystemRecord,
};

/// Bytes of the buffer that a thread keeps for the next record: more than most records have.
const BUFFER_BYTES_MAX: usize = 16 << 10;

/// What is hashed. The variant number is encoded first, so that no two kinds share an encoding.
#[derive(Serialize)]
enum DigestInput<'a> {
    Definition(&'a Definition),
    Config(Revision, &'a Config),
    Request(&'a RememberedOutcome),
    LastAt(u64),
    FeatureLevel(u32),
    AccessKey(&'a AccessKey),
    RootDisabled,
    AuditAnchors(&'a AuditAnchors),
    System(&'a SystemRecord),
}

thread_local! {
    /// The buffer for a record's bytes: two records are encoded for each change, on each node.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn hash(row: &DigestInput<'_>) -> u128 {
    BUFFER.with_borrow_mut(|buffer| {
        *buffer = encoding::append(std::mem::take(buffer), row);
        let hash = xxh3_128(buffer);
        buffer.clear();
        buffer.shrink_to(BUFFER_BYTES_MAX);
        hash
    })
}

pub(super) fn of_definition(definition: &Definition) -> u128 {
    hash(&DigestInput::Definition(definition))
}

pub(super) fn of_config(definition: Revision, config: &Config) -> u128 {
    hash(&DigestInput::Config(definition, config))
}

pub(super) fn of_access_key(key: &AccessKey) -> u128 {
    hash(&DigestInput::AccessKey(key))
}

pub(super) fn of_audit_anchors(anchors: &AuditAnchors) -> u128 {
    hash(&DigestInput::AuditAnchors(anchors))
}

pub(super) fn of_system_record(record: &SystemRecord) -> u128 {
    hash(&DigestInput::System(record))
}

pub(super) fn of_request(request: &RememberedOutcome) -> u128 {
    hash(&DigestInput::Request(request))
}

/// The digest of a state as people see it, in `GET /api/v1/cluster` and of a backup: equal for equal states, and
/// telling nothing else.
///
/// The digest itself is a sum of hashes that anybody can compute. A client that sees it before and after a write, and
/// may read the record without its secret values, could try values until the difference matches the two hashes.
#[must_use]
pub fn shown_digest(digest: u128) -> u128 {
    let hash = Sha256::new().chain_update(b"concord digest").chain_update(digest.to_be_bytes());
    let bytes: [u8; 32] = hash.finalize().into();
    bytes.iter().take(16).fold(0, |number, byte| (number << 8) | u128::from(*byte))
}

impl State {
    /// The digest of all stored records.
    #[must_use]
    pub fn digest(&self) -> u128 {
        let level = hash(&DigestInput::FeatureLevel(self.feature_level()));
        let root = if self.is_root_disabled() { hash(&DigestInput::RootDisabled) } else { 0 };
        self.sum
            .wrapping_add(hash(&DigestInput::LastAt(self.last_at.0)))
            .wrapping_add(level)
            .wrapping_add(root)
    }
}

impl Collection {
    /// The part of the digest that belongs to this definition's configs.
    #[must_use]
    pub fn digest(&self) -> u128 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::StateBuilder;
    use concord_model::time::Timestamp;

    #[test]
    fn the_digest_that_is_shown_is_no_sum() {
        let at = |level: u32| {
            let mut builder = StateBuilder::new();
            builder.feature_level(level);
            builder.finish(100, Timestamp(100)).unwrap()
        };
        let shown = |state: &State| shown_digest(state.digest());
        let (one, two) = (at(1), at(2));
        assert_ne!(shown(&one), one.digest());
        assert_eq!(shown(&one), shown(&at(1)), "equal states");
        assert_ne!(shown(&one), shown(&two));
    }
}
