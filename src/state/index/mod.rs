//! The indexes of a definition's configs: primary, by time, secondary.
//!
//! | file | what it holds |
//! |---|---|
//! | [`tree`] | the counted copy-on-write B+tree of every index |
//! | `entries`, `inline_bytes` | what stands in the trees |
//! | `deferred` | the indexes by time and by value, whose updates are applied in batches |
//! | [`backfill`] | changed indexed paths, and the build that brings configs up to them |
//! | `unique` | unique paths: whether a value is taken |

pub mod backfill;
pub(in crate::state) mod deferred;
pub(in crate::state) mod entries;
mod inline_bytes;
pub mod tree;
mod unique;
