//! Feature levels: what a version of this program can read, apply and write.
//!
//! The level of a cluster is part of its state (`State::feature_level`). It rises only by an entry of the log
//! ([`Command::RaiseFeatureLevel`](super::command::Command::RaiseFeatureLevel)), and the leader proposes that entry
//! only when every member can. Until then a newer version behaves, byte for byte, as the version before it does, so an
//! upgrade can be undone node by node.
//!
//! | level | the versions that know it | what it adds |
//! |---|---|---|
//! | 1 | 1.0 | everything |
//! | 2 | 1.1 | [rollouts](ROLLOUTS), and the verb `report` |
//! | 3 | 1.1 | [identity](IDENTITY) |
//!
//! A command, a change of what applying does and a change of a stored or sent byte each follow a level: they are used
//! when `state.feature_level()` is at least that. Until a level is released, more may be added to it.
//!
//! **Invariant:** what a level means never changes once a version that knows it was released. The level of a cluster
//! rises by one at a time and never falls.

/// The level of a cluster that was never raised.
pub const LEVEL_MIN: u32 = 1;

/// The level of rollouts (`system/rollout.rs`).
pub const ROLLOUTS: u32 = 2;

/// The level of identity providers, roles and sessions (`system/identity.rs`).
pub const IDENTITY: u32 = 3;

/// The highest level that this version knows.
const LEVEL_MAX: u32 = 3;

/// A level that only tests have, and that adds nothing but itself (`sabotage.rs`).
pub const TEST_LEVEL: u32 = LEVEL_MAX + 1;

/// The highest level that this version knows.
#[must_use]
pub fn level_max() -> u32 {
    if crate::sabotage::knows_test_level() { TEST_LEVEL } else { LEVEL_MAX }
}
