//! Known bugs, seeded on purpose, so that the checks can be shown to find them.
//!
//! Only a build with the feature `sabotage` can have one: it reads the name in `CONCORD_SABOTAGE` when it starts.
//! In every other build [`is`] is false at compile time, and nothing of a bug is left in the binary.
//! Several names are separated by commas. `scripts/sabotage.sh` runs a check for each and fails when one is not caught.
//!
//! | name | what is broken |
//! |---|---|
//! | `ack-before-commit` | the leader answers a write before anybody else has it |
//! | `skip-fsync` | entries count as durable before the fdatasync |
//! | `local-read` | a read asks no leader |
//! | `leader-restore` | a leader that restarts within its lease leads on; what was committed is not kept |
//! | `retry-twice` | a request that was decided before is decided again |
//! | `requests-not-in-snapshot` | a snapshot forgets the requests that were decided |
//! | `index-left-on-delete` | a deleted config stays in the indexes |
//! | `vote-not-persisted` | a vote is given and not written down |
//! | `clock-in-apply` | each node stamps a change with its own clock |
//! | `sled-beyond-log` | sled is carried beyond what the log holds durably |
//! | `state-ahead-of-log` | a state newer than the log is taken without a word |
//! | `damaged-log-accepted` | a log block is believed without its checksums |
//! | `purge-past-snapshot` | the log is purged beyond the snapshots |
//! | `unknown-told-as-503` | an unknown outcome is told as certainly not applied |
//! | `digest-ignored` | what sled holds is believed without its digest |
//! | `stale-check-skipped` | data is stored that was checked against an older definition |
//! | `blind-retry` | a write of unknown outcome is sent again without a request stamp |
//! | `precondition-ignored` | a guarded write overwrites any revision |
//! | `memory-damaged` | a node applies another value than the one that was agreed on, from time to time |
//! | `digests-not-compared` | a node never compares its state with the others' |
//! | `batch-torn` | of some batches only the first operation is done |
//! | `watch-skips` | a watch leaves out a change now and then |
//! | `past-is-now` | a read of the past shows the present |
//! | `unique-ignored` | a value of a unique path is given twice |
//!
//! **Invariant:** without the feature this file is one constant.

/// Whether this bug is in.
#[cfg(feature = "sabotage")]
pub(crate) fn is(name: &str) -> bool {
    static CHOSEN: std::sync::LazyLock<Vec<String>> = std::sync::LazyLock::new(|| {
        let names = std::env::var("CONCORD_SABOTAGE").unwrap_or_default();
        names.split(',').map(str::to_owned).collect()
    });
    CHOSEN.iter().any(|chosen| chosen == name)
}

/// Whether this bug is in: never.
#[cfg(not(feature = "sabotage"))]
pub(crate) const fn is(_name: &str) -> bool {
    false
}

/// Another value than the one that was agreed on, for the bug of a damaged memory; seldom, so that the node goes on.
#[cfg(feature = "sabotage")]
pub(crate) fn damaged(
    revision: crate::model::record::Revision,
    mut proposal: crate::model::command::Proposal,
) -> crate::model::command::Proposal {
    if is("memory-damaged")
        && revision % 128 == 100
        && let crate::model::command::Command::WriteConfig { data, .. } = &mut proposal.command
    {
        *data = "{\"damaged\":true}".into();
    }
    proposal
}

/// This node's clock, for the bug that reads it where no clock may be read.
#[cfg(feature = "sabotage")]
#[expect(clippy::disallowed_methods, reason = "that is the bug")]
pub(crate) fn clock() -> crate::model::time::Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    crate::model::time::Timestamp(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}
