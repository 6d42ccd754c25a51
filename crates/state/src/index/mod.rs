//! The indexes of a definition's configs: primary (by key), by time, and secondary (by the values of indexed paths).
//!
//! | file | what it holds |
//! |---|---|
//! | [`tree`] | the counted copy-on-write B+tree of every index |
//! | `entries` | the items of the trees |
//! | [`indexes`] | the indexes by time and by value: made of the configs, or edited |
//! | `deferred` | their updates, applied in batches |
//! | `filed` | orders of other records, by any key |
//! | [`backfill`] | changed indexed paths, and the index build that follows |
//!
//! **Invariant:** every index contains exactly the entries of the configs, at any time that it is read.

pub mod backfill;
pub(crate) mod deferred;
pub(crate) mod entries;
pub(crate) mod filed;
pub mod indexes;
pub mod tree;
