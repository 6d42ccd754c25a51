//! What the data is: definitions, configs, the commands that change them, the queries that find them.
//!
//! Everything here is pure: no I/O, no clock, no randomness, no async. The same text gives the same value on
//! every node and in every version, because what is made here is replicated.

pub mod command;
pub mod document;
pub mod error;
pub mod index;
pub mod key;
pub mod limits;
pub mod patch;
pub mod query;
pub mod record;
pub mod schema;
pub mod time;
