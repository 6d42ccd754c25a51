//! Concord: a replicated service for typed configuration.
//!
//! ```text
//! main → cli → node → api → service → raft → store → state → model        calls go down only
//! ```
//!
//! | room | what it holds |
//! |---|---|
//! | [`model`] | what the data is: keys, records, schemas, index values, queries, commands. Pure |
//! | [`state`] | what the cluster has agreed on, as one immutable value. Pure |
//! | [`store`] | where it is kept between starts: snapshot files, history segments (the past is read from them), sled |
//! | [`raft`] | how the nodes agree: openraft, the log, the peers |
//! | [`service`] | who may do what, on which node; the only clock |
//! | [`api`] | how a caller says it: axum |
//! | [`node`], [`settings`] | a node's life, from its settings to an orderly end |
//! | [`cli`], [`client`], [`backup`] | the command line, and what it asks of running nodes and of backups |
//! | `sabotage` | known bugs, in builds that try the checks only |
//!
//! **Invariants**
//! 1. [`state::State::apply`] is the only function that decides a change, and it is a pure function of its
//!    arguments. Everything else carries its result somewhere.
//! 2. Nothing in `model`, `state` or on the way of applying reads a clock, draws a random number or depends on
//!    hash order. Time, request id and the definition revision that the data was checked against ride in the
//!    [`model::command::Proposal`].
//! 3. A verdict ([`model::error::Rejection`]) is replicated and the same on all nodes. A failure is this node's:
//!    an error of the log, a snapshot or the history stops the node and is never skipped; sled's are mended by
//!    rebuilding it.
//! 4. If a write may have happened, the caller is told so (504, *undecided*); 503 means that it certainly has not.
//! 5. Only `api/reply.rs` knows status codes. A handler has one await on the service.
//! 6. Every queue, body, page, batch, retry and wait has a limit, with its reason.
//! 7. Replicated enums grow only at the end; `tests/format.rs` pins every stored form.

pub mod api;
pub mod cli;
pub mod feed;
pub mod model;
pub mod node;
pub mod peer;
pub mod raft;
mod sabotage;
pub mod service;
pub mod settings;
pub mod state;
pub mod store;
