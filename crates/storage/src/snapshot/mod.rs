//! Snapshot files: the whole state at one revision, in one file.
//!
//! A snapshot lets the Raft log be purged, is what another node installs, and is what a backup is: all three
//! use the same bytes, and equal states at one position give equal files.
//!
//! ```text
//! snapshot/snapshot-<index>.concord       the two newest, complete and fsynced
//!          snapshot-<index>.concord.tmp   one that is being written; removed at the next start
//!          snapshot-<index>.damaged       one that was found damaged
//!          ahead                          a snapshot may be newer than the log: its index, the log's last entry
//! ```
//!
//! | where | what it does |
//! |---|---|
//! | `file` | the format: a header, the records in blocks, a footer |
//! | `retained` | the two snapshots that are retained: written, installed, validated |
//! | [`envelope`] | an encrypted and signed backup |
//! | `transfer` | its content on the way between the disk and a connection |
//! | [`backup`] | a snapshot file outside a store: inspected, or restored into a new store |
//!
//! **Invariant:** a snapshot counts only when all of it is durable, and only if its records have the digest
//! that its header names.

pub mod backup;
pub mod envelope;
pub(super) mod file;
pub(super) mod retained;
pub(super) mod transfer;
