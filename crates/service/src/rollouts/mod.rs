//! Rollouts on this node: what the leader does by itself, and what a client is shown.
//!
//! | topic | file |
//! |---|---|
//! | pause, end and next stage of the rollouts that run | `task` |
//! | what a change request shows of its rollout | `view` |
//!
//! The log decides (`crates/state/src/change/rollout.rs`).

pub(crate) mod evidence;
pub(crate) mod task;
pub(crate) mod view;

#[cfg(test)]
mod tests;
