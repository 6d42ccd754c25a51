//! Feature levels: what a version of this program can read, apply and write.
//!
//! The level of a cluster is part of its state (`State::feature_level`). It rises only by an entry of the log
//! ([`Command::RaiseFeatureLevel`](super::command::Command::RaiseFeatureLevel)), and the leader proposes that entry only
//! when every member can. Until then a newer version behaves, byte for byte, as the version before it does, so an upgrade
//! can be undone node by node.
//!
//! | level | the versions that know it | what it adds |
//! |---|---|---|
//! | 1 | 0.1 | everything that is not named below |
//! | 2 | this one | the level itself: in the state, in its digest, in snapshots (format 3) and in sled; outcomes of requests are forgotten by `Command::Forget` and never while they may still be needed; one entry reindexes at most 1 MiB of data at once, more in steps (`state/index/backfill.rs`); calls between nodes no longer name the secret; a schema is stored with what `format` means in it, recursive unions, patterns that backtrack and larger ones are admitted (`model/schema`); an entry of the log may hold several proposals (`model/entry.rs`), and from the first such entry on the state's revision is ahead of the log's index; access keys (`model/access_key`, `state/access.rs`): in the state, its digest, snapshots and sled, a proposal names the key in whose name it is made after everything else, and the root key may be disabled; quotas of what the definitions of an access key hold (`state/stored.rs`); `x-concord-secret` has a meaning (`service/write/secrets.rs`), and a patch may be data with markers (`PatchFormat::Replace`); the history tells how many configs were deleted with their definition (`Edit::Deleted`), and stores the definitions that were replaced (`store/history/format.rs`); a batch may change schemas and unique paths (`state/apply/redefine.rs`); indexed paths may be patterns, whose slots have the highest bit (`model/index/slots.rs`); a data directory may be encrypted, whatever the cluster's level: its format is 2 then (`store/at_rest/`) |
//!
//! A command, a change of what applying does and a change of a stored or sent byte each follow a level: they are used
//! when `state.feature_level()` is at least that. Until a level is released, more may be added to it.
//!
//! **Invariant:** what a level means never changes once a version that knows it was released. The level of a cluster
//! rises by one at a time and never falls.

/// The level of a cluster that was never raised.
pub const LEVEL_MIN: u32 = 1;

/// The level that a version must know to use an encrypted data directory.
pub const AT_REST_LEVEL: u32 = 2;

/// The highest level that this version knows.
pub const LEVEL_MAX: u32 = 2;
