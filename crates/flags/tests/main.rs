//! What this crate makes of flags, compared with flagd, in one binary.
//!
//! | module | question |
//! |---|---|
//! | `testbed` | are the results those of flagd's published test tables? |
//! | `oracle` | are the results of random flags those of `@openfeature/flagd-core`? |

#[cfg(test)]
mod oracle;
#[cfg(test)]
mod testbed;
