//! What holds for the state under any sequence of proposals, in one binary.
//!
//! | module | question |
//! |---|---|
//! | `attestation` | is every attested key attested by the right ones? |
//! | `replay` | do the same proposals give the same state, however they are cut into runs? |

#[cfg(test)]
mod attestation;
#[cfg(test)]
mod replay;
