//! Snapshot files: the whole state at one revision.
//!
//! | file | what it does |
//! |---|---|
//! | `file` | the format: a header, the records in blocks, a footer |
//! | `retained` | which files are kept, and when the next one is written |
//! | `paced` | large files written with rests |
//! | [`backup`] | a snapshot file outside a store |

pub mod backup;
pub(in crate::store) mod file;
pub(in crate::store) mod paced;
pub(in crate::store) mod retained;
