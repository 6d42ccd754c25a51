//! The program is tested from outside, in one binary: it links once and runs in one process. Tests that need no process
//! of the program stand in their crates, in `crates/*/tests`.
//!
//! | module | question |
//! |---|---|
//! | `spec` | does the service keep the contract? Black box over HTTP, on the leader and on a follower |
//! | `cluster` | does the cluster keep its promises? Real processes that are killed, stopped, emptied |
//! | `chaos` | does it keep them under faults? Every answer is recorded and checked |
//! | `hostile` | does it serve a good client beside callers, strangers, disks and clocks that are not good? |
//! | `tls` | who is spoken to, in which versions, and what happens when certificates change? |
//! | `command_line` | is the command line what people and pipelines need? Real processes against real nodes |
//! | `agent` | does `concord agent` keep files as configs say, with the cluster and without it? |
//! | `rust_client` | does the Rust client lose an update, miss a change, or call a stale value fresh? |
//! | `client` | does the older service's client library work unchanged? |
//! | `tidy` | does the source keep its own rules? |
//!
//! **Invariant:** a test waits for a condition, with a deadline that a slow machine meets, and never for a fixed time
//! instead. A fixed time is the length of a fault or of a load, the pace of a load, or the time in which something must not
//! happen that leaves no trace: each is a helper of `harness::time`, and `tidy` finds any other.

#[cfg(test)]
mod agent;
#[cfg(test)]
mod chaos;
#[cfg(test)]
mod client;
#[cfg(test)]
mod cluster;
#[cfg(test)]
mod command_line;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod rust_client;
#[cfg(test)]
mod spec;
#[cfg(test)]
mod tidy;
#[cfg(test)]
mod tls;
