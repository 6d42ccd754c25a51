//! Everything that is tested from outside, in one binary: it links once and runs in one process.
//!
//! | module | question |
//! |---|---|
//! | `spec` | does the service keep the contract? Black box over HTTP, on the leader and on a follower |
//! | `cluster` | does the cluster keep its promises? Real processes that are killed, stopped, emptied |
//! | `chaos` | does it keep them under faults, with every answer on record? |
//! | `client` | does the older service's client library work unchanged? |
//! | `document` | is the `OpenAPI` document one, and whole? Every answer in all tests is held against it |
//! | `format` | are the stored bytes the ones that were written before? |
//! | `replay` | do the same proposals give the same state, however they are cut into runs? |
//! | `tidy` | does the source keep its own rules? |
//!
//! **Invariant:** no test waits for a time; each waits for a condition, with a deadline that a slow machine keeps.

#[cfg(test)]
mod chaos;
#[cfg(test)]
mod client;
#[cfg(test)]
mod cluster;
#[cfg(test)]
mod document;
#[cfg(test)]
mod format;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod replay;
#[cfg(test)]
mod spec;
#[cfg(test)]
mod tidy;
