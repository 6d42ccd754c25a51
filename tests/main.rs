//! Everything that is tested from outside, in one binary: it links once and runs in one process.
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
//! | `document` | is the `OpenAPI` document one, and whole? Every answer in all tests is validated against it |
//! | `format` | are the stored and sent bytes the ones of earlier versions? |
//! | `real_schemas` | are the schemas that libraries write definitions as they are, and are their paths found? |
//! | `replay` | do the same proposals give the same state, however they are cut into runs? |
//! | `schema_suite` | are the verdicts those of the JSON Schema test suite? |
//! | `tidy` | does the source keep its own rules? |
//!
//! **Invariant:** no test waits for a fixed time; each waits for a condition, with a deadline that a slow machine
//! meets.

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
mod document;
#[cfg(test)]
mod format;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod real_schemas;
#[cfg(test)]
mod replay;
#[cfg(test)]
mod rust_client;
#[cfg(test)]
mod schema_suite;
#[cfg(test)]
mod spec;
#[cfg(test)]
mod tidy;
#[cfg(test)]
mod tls;
