//! What must stay the same from version to version, of this crate and of those below it, in one binary.
//!
//! | module | question |
//! |---|---|
//! | `format` | are the stored and sent bytes the ones of earlier versions? |

#[cfg(test)]
mod format;
