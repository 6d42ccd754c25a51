//! What holds for the state under any sequence of proposals, in one binary.
//!
//! | module | question |
//! |---|---|
//! | `replay` | do the same proposals give the same state, however they are cut into runs? |

#[cfg(test)]
mod replay;
