//! What holds for the state under any sequence of proposals, in one binary.
//!
//! | module | question |
//! |---|---|
//! | `attestation` | is every attested key attested by the right ones? |
//! | `changes` | is what a change request changes approved, and is nothing restricted changed otherwise? |
//! | `replay` | do the same proposals give the same state, however they are cut into runs? |
//! | `times` | does the cluster apply and take back by itself only what is left to it, at its time? |

#[cfg(test)]
mod attestation;
#[cfg(test)]
mod changes;
#[cfg(test)]
mod replay;
#[cfg(test)]
mod times;
