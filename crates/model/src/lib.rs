//! The data model: definitions, configs, the commands that change them, the queries that find them.
//!
//! | file | what it holds |
//! |---|---|
//! | [`key`], [`record`], [`time`] | keys, the two stored records, timestamps |
//! | [`document`] | JSON text of a client: bounded, parsed, stored as written |
//! | [`schema`] | JSON Schema: what is compiled, what a check may cost |
//! | [`index`] | indexed paths, their slots, values as bytes that sort |
//! | [`query`] | list queries: page, sort, search, filters |
//! | [`projection`] | field selection: the members of data that a request names |
//! | [`key_set`] | the definitions that a client may see, as ranges of keys |
//! | [`patch`] | JSON Merge Patch and JSON Patch |
//! | [`redaction`] | secret values: hidden from clients without `reveal`, kept when these write the rest |
//! | [`host`] | names of hosts |
//! | [`unseen`] | characters that a reader does not see |
//! | [`access_key`] | access keys: what each may do, and how it is written down |
//! | [`audit`] | anchors of the audit logs: how many are kept |
//! | [`system`] | system records: environments, change requests |
//! | [`command`] | what is proposed, what the log decides |
//! | `decimal` | numbers, compared exactly |
//! | [`entry`] | the bytes of a log entry: one proposal, or several |
//! | `encoding` | the encoding of what is stored or sent between nodes |
//! | `flat` | decoding of types that contain themselves, to a depth of one |
//! | [`feature`] | feature levels: what versions of this program have in common |
//! | [`sabotage`] | seeded bugs, in builds that verify the tests only |
//! | [`error`] | rejections of the log, violations of a request |
//! | [`limits`] | the limits that a client or an operator can reach |
//!
//! **Invariant:** everything here is pure: no I/O, no clock, no randomness, no async. The same text gives the same
//! value on every node and in every version, because what is computed here is replicated.

pub mod access_key;
pub mod audit;
pub mod command;
mod decimal;
pub mod document;
pub mod encoding;
pub mod entry;
pub mod error;
pub mod feature;
pub mod flat;
pub mod host;
pub mod index;
pub mod key;
pub mod key_set;
pub mod limits;
pub mod patch;
pub mod projection;
pub mod query;
pub mod record;
pub mod redaction;
pub mod sabotage;
pub mod schema;
pub mod system;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod time;
pub mod unseen;
