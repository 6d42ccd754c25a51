//! Concord: a replicated service for typed configuration.
//!
//! Each layer calls only the layers to its right; `peer` calls none of `store`, `feed` and `state`:
//!
//! ```text
//! cli → node → api → service → raft → peer → store → feed → state → model
//! ```
//!
//! | layer | what it does |
//! |---|---|
//! | [`cli`] | the command line: starts a node, queries running nodes, handles backups |
//! | [`node`], [`settings`] | the life of a node, from its settings to an orderly shutdown |
//! | [`api`] | HTTP: requests, responses, status codes, the description of the interface (axum) |
//! | [`service`] | the operations: access, writes, reads, history, watches, membership; reads the clock |
//! | [`raft`] | consensus: openraft, the log, replication, snapshots between nodes |
//! | [`peer`] | the protocol between nodes: call names, encoding, client, node identity |
//! | [`store`] | persistent data: snapshot files, history segments, the sled mirror |
//! | [`feed`] | recent changes in memory, for watchers |
//! | [`state`] | what the cluster has agreed on, as one immutable value; the transition function. Pure |
//! | [`model`] | the data: keys, records, schemas, index values, queries, commands, limits. Pure |
//! | `sabotage` | seeded bugs, in builds that verify the tests only |
//! | `fuzz_targets` | what reads foreign bytes, for fuzzers; in test builds and with the feature `fuzzing` only |
//!
//! **Invariants**
//! 1. [`state::State::apply`] is the only function that decides a change, and its result depends on the state and its
//!    arguments alone. All other code transports or stores the result.
//! 2. Nothing in `model`, in `state` or on the path that applies log entries reads a clock, draws a random number or
//!    depends on hash order. The time, the idempotency key and the revision of the definition that the data were
//!    validated against are part of the [`model::command::Proposal`].
//! 3. A rejection ([`model::error::Rejection`]) is replicated and the same on all nodes. A failure belongs to one node: an
//!    error of the log, of a snapshot or of the history stops that node and is never skipped; sled is rebuilt.
//! 4. If a write may have been applied, the caller is told so (504, *undecided*); 503 means that it certainly was not.
//! 5. Only `api/reply.rs` knows status codes. A handler awaits the service once.
//! 6. Every queue, body, page, batch, retry and wait has a limit. Those that a caller or an operator can meet are in
//!    [`model::limits`]; the others stand where they are used, each with its reason.
//! 7. Replicated enums grow only at the end; `tests/format.rs` pins every stored format.

pub mod cli;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz_targets;
pub mod node;
pub mod settings;
