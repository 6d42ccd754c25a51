//! Concord: a replicated service for typed configuration. Here is the program: the command line and the life of a node.
//!
//! The libraries that it is made of lie in `crates/`. `docs/internals/architecture.md` has the map of the tree and the
//! invariants of the whole.
//!
//! | module | what it does |
//! |---|---|
//! | [`cli`] | the command line: starts a node, queries running nodes, handles backups |
//! | [`node`] | the life of a node, from its settings to an orderly shutdown |
//! | [`settings`] | the settings of a node, from the environment |
//! | `fuzz_targets` | what reads foreign bytes, for fuzzers; in test builds and with the feature `fuzzing` only |
//!
//! **Invariant:** only [`node`] puts the libraries together. A command of [`cli`] that asks a running node does so over
//! HTTP, as any other client.

pub mod cli;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz_targets;
pub mod node;
pub mod settings;
