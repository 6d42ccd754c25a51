//! The mirror of the state in sled, write-behind: no response waits for it.
//!
//! A start loads the newest whole state from here instead of from an older snapshot, and applies only the log
//! after it. The log makes a write durable, so that sled may lag behind by seconds, is never fsynced for a
//! write and is rebuilt whenever it can't be used.
//!
//! ```text
//! sled/CURRENT     the name of the current database
//!      state-<n>/  one sled database; a rebuild writes the next one and then switches `CURRENT`
//! ```
//!
//! | where | what it does |
//! |---|---|
//! | `mirror` | decides when changes are merged, written or the database is rebuilt |
//! | `merge` | merges changes by key, and writes them in bounded steps |
//! | `rows` | the rows of a record that changes |
//! | `trees` | one sled database and the directory of databases |
//! | `load` | the state of a database, when a node starts |
//! | `current` | the current database, which is closed while nothing is written |
//! | `checkpoint` | what all trees hold together: its place in the log and its digest |
//! | `sealing` | keys and values of rows in an encrypted directory |
//! | `keys` | the layout of keys and rows |
//!
//! **Invariants:** sled never holds what the local log does not hold durably. It is loaded only if no merge
//! was interrupted and its records have the digest of its checkpoint. An error of sled never stops the node.

pub(super) mod checkpoint;
mod current;
pub(super) mod keys;
mod load;
mod merge;
pub(super) mod mirror;
mod rows;
mod sealing;
pub(super) mod trees;
