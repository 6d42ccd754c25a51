//! Feature flags: what a flag is, and which variant of it a reader gets.
//!
//! A flag is written in the format of flagd (its schema `flags.json`, version 0): a state, variants, a default variant,
//! and a targeting rule in `JsonLogic`. The bodies of requests and responses are those of OFREP, the `OpenFeature` Remote Evaluation Protocol.
//!
//! | file | what it holds |
//! |---|---|
//! | [`set`] | the flags of a definition, compiled once; the evaluation of one of them or of all |
//! | `definition` | one flag: its parts, and what of it can't be used |
//! | `references` | the shared rules (`$evaluators`) in the place of `$ref` |
//! | `cost` | what an evaluation can take, computed before it begins |
//! | `rules` | the engine of `JsonLogic`, and one evaluation of a rule |
//! | `operators` | the operators that flagd adds: `fractional`, `sem_ver`, `starts_with`, `ends_with` |
//! | [`context`] | the context of an evaluation: who reads |
//! | [`ofrep`] | request and response bodies of OFREP |
//! | [`sync`] | all flags as one document, as flagd fetches it |
//!
//! **Invariant:** everything here is pure: no I/O, no clock, no randomness. An evaluation depends on the flags, the
//! context and the given time. It takes at most [`concord_model::limits::FLAG_STEPS_MAX`] steps, and
//! no text of a client makes it panic.

pub mod context;
mod cost;
mod definition;
pub mod ofrep;
mod operators;
mod references;
mod rules;
pub mod set;
pub mod sync;

pub use context::{Context, ContextError};
pub use set::{ErrorCode, Evaluation, FlagSet, Outcome, Reason};

/// The key of the config that holds what the flags of a definition share: `$evaluators` and `metadata`. It is no flag.
/// Its last character is allowed in keys and unusual in names of flags.
pub const SHARED_KEY: &str = "shared~";
