//! Seeded bugs, which show that the tests find them, and a feature level that only tests have.
//!
//! Only a build with the feature `sabotage` has them. It reads their names, separated by commas, from
//! `CONCORD_SABOTAGE`. In every other build [`is`] is false at compile time, and nothing of a bug is in the binary.
//! `scripts/sabotage.sh` runs a test for each bug and fails when the test does not.
//!
//! | name | the bug |
//! |---|---|
//! | `ack-before-commit` | the leader responds to a write before any other member has it |
//! | `skip-fsync` | entries count as durable before the fdatasync |
//! | `local-read` | a linearizable read does not ask the leader |
//! | `lease-age-ignored` | a leader answers by its lease however long ago a quorum has acknowledged it |
//! | `leader-restore` | a leader that restarts within its lease resumes its term; the commit index is not stored |
//! | `retry-twice` | a request that was decided already is decided again |
//! | `requests-not-in-snapshot` | a snapshot omits the requests that were decided |
//! | `index-left-on-delete` | a deleted config stays in the indexes |
//! | `vote-not-persisted` | a vote is granted and not stored |
//! | `clock-in-apply` | each node takes a change's time from its own clock |
//! | `sled-beyond-log` | sled is written beyond what the log holds durably |
//! | `state-ahead-of-log` | a state newer than the log is accepted |
//! | `damaged-log-accepted` | the checksums of log blocks are not checked |
//! | `purge-beyond-snapshot` | the log is purged beyond the snapshots |
//! | `unknown-as-503` | an unknown outcome is reported as certainly not applied |
//! | `digest-ignored` | the digest of what sled holds is not checked |
//! | `stale-check-skipped` | data that was validated against an older definition is stored |
//! | `blind-retry` | a write of unknown outcome is repeated without an idempotency key |
//! | `precondition-ignored` | a conditional write overwrites any revision |
//! | `memory-damaged` | at times a node applies a value other than the committed one |
//! | `digests-not-compared` | a node never compares its state with the other members' |
//! | `batch-torn` | only the first operation of some batches is applied |
//! | `transaction-reads-unchecked` | a transaction is applied although what it has read has changed |
//! | `config-check-trusted` | a definition changes although a config was written after all were checked |
//! | `watch-skips` | at times a watch omits a change |
//! | `history-returns-current` | a read of the history returns the current state |
//! | `task-end-ignored` | a node continues although one of its tasks has panicked |
//! | `unique-ignored` | a value of a unique field is accepted twice |
//! | `wall-clock-trusted` | the leader's wall clock alone is the time of the log |
//! | `level-raised-alone` | a leader raises the feature level without asking the members |
//! | `directory-not-marked` | a directory keeps its format although it is written at a higher feature level |
//! | `tail-not-flushed` | what a start reads at the log's end counts as durable unflushed |
//! | `stall-ignored` | a node continues although its log does not move |
//! | `full-voters-ignored` | the leader accepts writes although a majority of the voters has no room for them |
//! | `budget-ignored` | requests hold as much memory as they ask for |
//! | `work-without-turns` | long work runs on more threads than there are processors |
//! | `later-request-confirmed` | the response to an append confirms a later one with the same last entry |
//! | `verdicts-shifted` | the writes that share an entry get one another's verdicts |
//! | `young-outcome-forgotten` | an idempotency record expires while the request may be retried |
//! | `author-not-decided-again` | a write in the name of a revoked key is decided |
//! | `batch-grant-skipped` | only the first operation of a batch is authorized |
//! | `past-not-redacted` | secret values of earlier revisions are shown to everybody |
//! | `good-key-throttled` | failed credentials lock out the keys of others at the same address |
//! | `audit-line-lost` | a rejected write has no line in the audit log |
//! | `nonce-reused` | all pieces of a file are encrypted with one nonce |
//! | `witness-ignored` | a member with a rolled-back disk votes and confirms entries without restrictions |
//! | `term-repeated` | a leader that has forgotten its last term has it again |
//! | `distrusted-replayed` | a state that was found to be wrong is made again from the member's own log |
//! | `contradiction-ignored` | a member takes entries that contradict a committed entry of its log |
//! | `read-index-without-term` | a read waits for the index of an entry, whichever entry has it |
//! | `leases-of-others-ignored` | a leader takes its own lease for that of the other voters |
//! | `freeze-by-proposal-time` | a freeze is compared with the time of the proposal instead of that of its entry |
//! | `approvals-not-counted` | a change request is applied without its approvals |
//! | `approvals-outlive-edition` | a new edition keeps the approvals of the one before |
//! | `change-stays-open` | a change request that was applied can be applied again |
//! | `guards-ignored` | a change request replaces records other than its bases |
//! | `hidden-change-shown` | everybody sees a change request of definitions that they may not read |
//! | `bypass-without-record` | a bypass makes no record of a change request |
//! | `window-ignored` | a change request is applied outside its window |
//! | `revert-early` | the cluster takes a change request back before its time |
//! | `armed-after-restore` | a restored or recovered cluster takes back what the one before was to take back |
//! | `steps-not-touched` | an environment judges only the first operation of a batch |
//! | `attested-by-one` | one person attests a key alone |
//! | `stage-early` | a stage of a rollout ends before its time |
//! | `stage-without-evidence` | a stage of a rollout ends without readers that run well |
//! | `rollout-overwritten` | something else changes a config that is in a rollout |
//! | `reader-leaves-stage` | a reader that is in by an earlier stage is out when the present one is not for it |
//! | `stage-by-own-clock` | each node takes a stage for ended by its own clock |
//! | `rollout-torn` | a reader sees one candidate of a rollout only |
//! | `candidate-after-abort` | readers see candidates after the abort |
//! | `candidate-for-all` | a client that does not say who it is sees candidates |
//! | `watch-misses-rollout` | a watch of a reader learns nothing of rollouts |
//! | `trust-ignored` | a session counts although its provider trusts others since |
//! | `session-outlives-its-end` | a session counts after its time |
//! | `policy-ignored` | a write in the name of a session is decided by the roles of an earlier time |
//! | `key-set-ignored` | a token opens a session although its key was withdrawn |
//! | `late-token-accepted` | a token opens a session after its end, or that of all sessions |
//! | `plain-file-accepted` | an encrypted directory accepts unencrypted files |
//!
//! No version knows a feature level after the newest one. So that tests can still upgrade a cluster, a build with debug
//! assertions or with the feature `sabotage` knows one level more when `CONCORD_TEST_FEATURE_LEVEL` is set
//! ([`knows_test_level`]): one binary is both versions.
//!
//! **Invariant:** in a build for use this file is two constants.

/// Whether this bug is enabled.
#[cfg(feature = "sabotage")]
pub fn is(name: &str) -> bool {
    static ENABLED: std::sync::LazyLock<Vec<String>> = std::sync::LazyLock::new(|| {
        #[expect(clippy::disallowed_methods, reason = "no setting: no program that is used has this feature")]
        let names = std::env::var("CONCORD_SABOTAGE").unwrap_or_default();
        names.split(',').map(str::to_owned).collect()
    });
    ENABLED.iter().any(|enabled| enabled == name)
}

/// Whether this bug is enabled: never in this build.
#[cfg(not(feature = "sabotage"))]
pub const fn is(_name: &str) -> bool {
    false
}

/// Whether this program knows [`TEST_LEVEL`](crate::feature::TEST_LEVEL).
#[cfg(any(debug_assertions, feature = "sabotage"))]
pub(crate) fn knows_test_level() -> bool {
    static KNOWS: std::sync::LazyLock<bool> =
        std::sync::LazyLock::new(|| std::env::var_os("CONCORD_TEST_FEATURE_LEVEL").is_some());
    *KNOWS
}

/// Whether this program knows the feature level of the tests: never in this build.
#[cfg(not(any(debug_assertions, feature = "sabotage")))]
pub(crate) const fn knows_test_level() -> bool {
    false
}

/// A proposal with another value, for the bug `memory-damaged`; rarely, so that the node continues for a while.
#[cfg(feature = "sabotage")]
pub fn damaged(
    revision: crate::record::Revision,
    mut proposal: crate::command::Proposal,
) -> crate::command::Proposal {
    if is("memory-damaged")
        && revision % 128 == 100
        && let crate::command::Command::WriteConfig { data, .. } = &mut proposal.command
    {
        *data = "{\"damaged\":true}".into();
    }
    proposal
}

/// This node's clock, for the bug `clock-in-apply`.
#[cfg(feature = "sabotage")]
#[expect(clippy::disallowed_methods, reason = "reading it is the bug")]
pub fn clock() -> crate::time::Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    crate::time::Timestamp(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}
