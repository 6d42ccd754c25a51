//! The digest: one number that two nodes compare to know that they hold the same.
//!
//! It is the sum, modulo 2^128, of an XXH3 hash of every stored record, so a change costs two hashes whatever the
//! size of the state, and the sum of a deleted definition goes in one subtraction. It protects against faults, not
//! against forgers: the nodes trust each other.
//!
//! **Invariant:** the digest covers every record with all its members and the time of the last change, and nothing
//! else; entries that change nothing leave it as it is.

use serde::Serialize;
use xxhash_rust::xxh3::xxh3_128;

use super::{Collection, Remembered, State};
use crate::model::record::{Config, Definition, Revision};

/// What is hashed; the number goes first, so that no two kinds share an encoding.
#[derive(Serialize)]
enum Row<'a> {
    Definition(&'a Definition),
    Config(Revision, &'a Config),
    Request(&'a Remembered),
    LastAt(u64),
}

fn hash(row: &Row<'_>, about: usize) -> u128 {
    let bytes = postcard::to_extend(row, Vec::with_capacity(about + 256));
    xxh3_128(&bytes.expect("a record is plain data and memory grows"))
}

pub(super) fn of_definition(definition: &Definition) -> u128 {
    hash(&Row::Definition(definition), definition.schema.as_ref().map_or(0, |schema| schema.len()))
}

pub(super) fn of_config(definition: Revision, config: &Config) -> u128 {
    hash(&Row::Config(definition, config), config.data.len())
}

pub(super) fn of_request(request: &Remembered) -> u128 {
    hash(&Row::Request(request), 0)
}

impl State {
    /// The digest of everything that is stored.
    #[must_use]
    pub fn digest(&self) -> u128 {
        self.sum.wrapping_add(hash(&Row::LastAt(self.last_at.0), 0))
    }
}

impl Collection {
    /// The part of the digest that this definition's configs make.
    #[must_use]
    pub fn digest(&self) -> u128 {
        self.sum
    }
}
