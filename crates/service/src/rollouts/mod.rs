//! Readers and rollouts on this node: what readers and gates say, which readers a config has, and what the leader does by
//! itself.
//!
//! | topic | file |
//! |---|---|
//! | reports of readers and words of gates: received, forwarded to the leader | `reports` |
//! | what they say of a rollout or a config | `evidence` |
//! | the readers of a config, on all nodes | `readers` |
//! | the memory that has them, and its bounds | `memory` |
//! | pause, end and next stage of the rollouts that run | `task` |
//!
//! The log decides (`crates/state/src/change/rollout.rs`).

pub(crate) mod evidence;
mod memory;
pub(crate) mod readers;
pub(crate) mod reports;
pub(crate) mod task;

#[cfg(test)]
mod tests;

pub(crate) use evidence::EvidenceStore;
pub use evidence::{EvidenceView, FailureReport, GateView};
pub use readers::{ConfigReader, ConfigReaders, NodeReaders, ReaderWatch};
pub(crate) use reports::Reports;
pub use reports::{GateWord, ReaderReport, ReaderState, ReportAbout, Reported};
