//! The digest: one number that two nodes compare to know that they hold the same.
//!
//! It is the sum, modulo 2^128, of an XXH3 hash of every stored record, so a change costs two hashes whatever the
//! size of the state, and the sum of a deleted definition goes in one subtraction. It protects against faults, not
//! against forgers: the nodes trust each other.
//!
//! **Invariant:** the digest covers every record with all its members and the time of the last change, and nothing
//! else; entries that change nothing leave it as it is.

use std::cell::RefCell;

use serde::Serialize;
use xxhash_rust::xxh3::xxh3_128;

use super::{Collection, Remembered, State};
use crate::model::record::{Config, Definition, Revision};

/// Bytes that a thread keeps for the next record: more than most records have.
const KEPT_MAX: usize = 16 << 10;

/// What is hashed; the number goes first, so that no two kinds share an encoding.
#[derive(Serialize)]
enum Row<'a> {
    Definition(&'a Definition),
    Config(Revision, &'a Config),
    Request(&'a Remembered),
    LastAt(u64),
}

thread_local! {
    /// Where a record's bytes are laid out: two are hashed for each change, on each node.
    static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn hash(row: &Row<'_>) -> u128 {
    BYTES.with_borrow_mut(|kept| {
        let bytes = postcard::to_extend(row, std::mem::take(kept));
        *kept = bytes.expect("a record is plain data and memory grows");
        let hash = xxh3_128(kept);
        kept.clear();
        kept.shrink_to(KEPT_MAX);
        hash
    })
}

pub(super) fn of_definition(definition: &Definition) -> u128 {
    hash(&Row::Definition(definition))
}

pub(super) fn of_config(definition: Revision, config: &Config) -> u128 {
    hash(&Row::Config(definition, config))
}

pub(super) fn of_request(request: &Remembered) -> u128 {
    hash(&Row::Request(request))
}

impl State {
    /// The digest of everything that is stored.
    #[must_use]
    pub fn digest(&self) -> u128 {
        self.sum.wrapping_add(hash(&Row::LastAt(self.last_at.0)))
    }
}

impl Collection {
    /// The part of the digest that this definition's configs make.
    #[must_use]
    pub fn digest(&self) -> u128 {
        self.sum
    }
}
