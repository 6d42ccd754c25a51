//! Compacts the history, and fills gaps in it.
//!
//! The leader proposes the compaction revision (`Command::Compact`), and the store of every node removes older revisions.
//! Age is computed from the log's time, and only while the clocks of the members agree. The compaction revision advances in
//! steps, so that an idle cluster writes nothing for it. A member that caught up from a snapshot fetches the history
//! before the snapshot from other members, part by part, with the lowest priority. So does one that has met damage in a
//! part of its history.
//!
//! **Invariant:** nothing waits for this task, and each failure is tried again.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{HistoryRequest, HistoryResponse, other_members};
use crate::{history::HistoryReader, run_blocking};
use concord_consensus::Consensus;
use concord_model::{
    access_key::Author,
    command::{Command, Proposal},
    record::Revision,
    time::Timestamp,
};
use concord_net::client::Lane;
use concord_state::State;

/// How often the task checks whether there is something to do.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long the log may take to decide a compaction revision, before the next check tries again.
const COMPACT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a part of the history may take to arrive.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause after no member could send a part.
const TRANSFER_RETRY_PAUSE: Duration = Duration::from_secs(5);
/// The compaction revision advances by at least this fraction of the retained history: one in 16.
const STEPS_OF_RETAINED: u64 = 16;
/// The compaction revision advances by at least this many revisions: the entry that does so is a revision itself.
const STEP_REVISIONS_MIN: u64 = 16;
/// How long a majority of the members must agree on the time before it decides about age, at most. For a long age, the step
/// of the compaction revision is longer than this.
const CONFIRM_MAX: Duration = Duration::from_secs(600);
/// The author of a compaction revision in the log.
const AUTHOR: &str = "cluster";

/// How much of the history is retained. Changes that exceed one of the two are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// The number of revisions. `None` for no limit.
    pub revisions: Option<u64>,
    /// The age of changes. `None` for no limit.
    pub age: Option<Duration>,
}

impl Default for Retention {
    fn default() -> Self {
        Self { revisions: Some(1_000_000), age: Some(Duration::from_secs(30 * 24 * 60 * 60)) }
    }
}

/// The times that decide which changes are removed for their age.
#[derive(Debug, PartialEq, Eq)]
struct AgeLimits {
    /// Removal begins once a change is older than this: a step before `remove`.
    start: Timestamp,
    /// Then changes before this time are removed.
    remove: Timestamp,
}

impl Retention {
    /// The compaction revision by the number of revisions. 0 while the step would be too small.
    fn by_count(&self, state: &State) -> Revision {
        let Some(retained) = self.revisions else { return 0 };
        let compaction_revision = state.compaction_revision();
        let wanted = state.revision_before(retained);
        let step = STEP_REVISIONS_MIN.max(retained / STEPS_OF_RETAINED);
        if wanted >= compaction_revision.saturating_add(step) { wanted } else { 0 }
    }

    fn age_limits(&self, now: Timestamp) -> Option<AgeLimits> {
        let age = u64::try_from(self.age?.as_micros()).unwrap_or(u64::MAX);
        let before = |age: u64| Timestamp(now.0.saturating_sub(age));
        let start = before(age.saturating_add(age / STEPS_OF_RETAINED));
        Some(AgeLimits { start, remove: before(age) })
    }
}

impl HistoryReader {
    /// Compacts the history and fills its gaps until this node stops.
    pub(crate) async fn maintain_history(self: Arc<Self>) -> Result<(), String> {
        while !self.cx.is_over() {
            let is_complete = self.fill_gaps().await;
            self.compact().await;
            self.cx.pause(if is_complete { CHECK_INTERVAL } else { TRANSFER_RETRY_PAUSE }).await;
        }
        Ok(())
    }

    /// On the leader: proposes a new compaction revision when a step is due.
    async fn compact(&self) {
        let Some(consensus) = self.cx.consensus().filter(|consensus| self.cx.leads(consensus)) else {
            return;
        };
        let (retention, state) = (self.cx.options.retention, consensus.state());
        let current = state.compaction_revision();
        let by_age = self.by_age(consensus, retention, current).await;
        let compaction_revision = retention.by_count(&state).max(by_age);
        if compaction_revision <= current {
            return;
        }
        let command = Command::Compact { compaction_revision };
        let at = self.clock.stamp(&state).await;
        let proposal = Proposal::new(at, AUTHOR, Author::Cluster, command);
        match timeout(COMPACT_TIMEOUT, consensus.write(proposal)).await {
            Ok(Ok(_)) => tracing::info!(
                compaction_revision,
                "the history is retained from revision {compaction_revision} on"
            ),
            Ok(Err(error)) => {
                tracing::debug!(?error, "the compaction revision was not decided");
            }
            Err(_) => tracing::debug!("the compaction revision was not decided in time"),
        }
    }

    /// The compaction revision by age: the last revision that is too old. 0 if there is none, or the step would be too
    /// small.
    async fn by_age(
        &self,
        consensus: &Consensus,
        retention: Retention,
        compaction_revision: Revision,
    ) -> Revision {
        let Some(limits) = self.age_limits(retention) else { return 0 };
        let store = consensus.store().clone();
        let found = run_blocking(move || match store.history().last_revision_at(limits.start) {
            Ok(revision) if revision > compaction_revision => store.history().last_revision_at(limits.remove),
            other => other.map(|_| 0),
        });
        match found.await {
            Ok(Ok(revision)) => revision,
            Ok(Err(error)) => {
                tracing::debug!(%error, "the age of the history is unknown");
                0
            }
            Err(refusal) => {
                tracing::debug!(?refusal, "the age of the history is unknown");
                0
            }
        }
    }

    /// The limits by a time that a majority of the members has agreed on for long enough, so that a wrong clock does not
    /// delete the history.
    fn age_limits(&self, retention: Retention) -> Option<AgeLimits> {
        let age = retention.age?;
        let confirm = (age / u32::try_from(STEPS_OF_RETAINED).unwrap_or(1)).min(CONFIRM_MAX);
        retention.age_limits(self.clock.confirmed_time(confirm)?)
    }

    /// Fills the gaps of this node's history, then replaces what is damaged. False if something remains.
    async fn fill_gaps(&self) -> bool {
        let Some(consensus) = self.cx.consensus() else { return true };
        let mut parts = 0;
        loop {
            let history = consensus.store().history();
            let gap = history.first_gap();
            let Some((after, upto)) = gap.or_else(|| history.first_damaged()) else { break };
            if self.cx.is_over() {
                return false;
            }
            // What is damaged stays until another member has sent at least a part of it.
            let Some(part) = self.fetch_history(consensus, after, upto).await else { return false };
            let store = consensus.store().clone();
            let replace = move || {
                if gap.is_none() {
                    store.history().set_aside(after)?;
                }
                store.history().import(after, &part)
            };
            match run_blocking(replace).await {
                Ok(Ok(filled_upto)) => {
                    parts += 1;
                    tracing::debug!(after, filled_upto, "fetched a part of the history");
                }
                Ok(Err(error)) => {
                    tracing::warn!(%error, after, "a fetched part of the history can't be used");
                    return false;
                }
                Err(refusal) => {
                    tracing::warn!(?refusal, after, "a fetched part of the history can't be used");
                    return false;
                }
            }
        }
        if parts > 0 {
            tracing::info!(parts, "fetched the history that was missing or damaged on this node");
        }
        true
    }

    /// Fetches the part of the history after a revision from the first member that has it.
    async fn fetch_history(&self, consensus: &Consensus, after: Revision, upto: Revision) -> Option<Vec<u8>> {
        let request = HistoryRequest::Transfer { after, upto };
        for member in other_members(consensus, self.cx.node_id()) {
            match self.request_history(&member, &request, Lane::Bulk, TRANSFER_TIMEOUT).await {
                HistoryResponse::Transfer(part) => return Some(part),
                HistoryResponse::Unavailable(why) => {
                    tracing::debug!(why, after, upto, "a member does not have this part of the history");
                }
                // The new compaction revision is in the log. Once it is applied, there is no gap below it.
                HistoryResponse::Compacted(_)
                | HistoryResponse::Page(_)
                | HistoryResponse::AsOf(_)
                | HistoryResponse::WrittenAt(_) => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scripted;
    use concord_model::{command::Expect, key::Key, record::VoidRevisions};
    use concord_state::builder::StateBuilder;

    const MINUTE: Duration = Duration::from_secs(60);
    const HOUR_US: u64 = 3_600_000_000;

    /// 400 hours, of which 20 are retained, under leaders that come and go and a clock that jumps.
    #[tokio::test]
    async fn history_is_removed_by_its_age_and_never_before() {
        const RETAINED_US: u64 = 20 * HOUR_US;
        let retention = Retention { revisions: None, age: Some(Duration::from_micros(RETAINED_US)) };
        let node = Scripted::start_with(|options| options.retention = retention).await;
        let consensus = node.service.cx.consensus().unwrap().clone();
        let mut rng = fastrand::Rng::with_seed(3);
        let (mut led_since, mut right_since, mut ahead_s) = (None, node.true_time().0, 0);
        // When each revision was made, the oldest first.
        let mut made = std::collections::VecDeque::new();
        let mut removed = 0;
        for minute in 0..400 * 60 {
            tokio::time::sleep(MINUTE).await;
            let now = node.true_time();
            if ahead_s != 0 && rng.u32(..100) == 0 {
                (ahead_s, right_since) = (0, now.0);
            } else if rng.u32(..600) == 0 {
                ahead_s = [30 * 86_400, -30 * 86_400][rng.usize(..2)];
            }
            node.set_wall(Timestamp(now.0.saturating_add_signed(ahead_s * 1_000_000)));
            node.hear_clocks(&[(2, now), (3, now)]);
            if minute == 0 || rng.u32(..400) == 0 {
                let leader = [Some(1), Some(1), Some(2), None][rng.usize(..4)];
                led_since = (leader == Some(1)).then_some(now.0);
                node.fake.lead(leader);
            }
            if minute == 0 || rng.u32(..30) == 0 {
                let key = Key::parse("d").unwrap();
                let command = if minute == 0 {
                    Command::CreateDefinition { key, indexes: Vec::new(), schema: None }
                } else {
                    let (data, entries) = (format!("{minute}").into(), Box::default());
                    let (definition, key) = (key, Key::parse("k").unwrap());
                    Command::WriteConfig { definition, key, data, entries, expect: Expect::Any }
                };
                node.fake.decide(&Proposal::new(now, "root", Author::Root, command));
                made.push_back((consensus.state().revision(), now.0));
            }
            if minute % 120 == 0 {
                // The thread of the store lives in real time.
                let (store, revision) = (consensus.store().clone(), consensus.state().revision());
                let is_there = run_blocking(move || store.wait_for_history(revision, MINUTE)).await;
                assert_eq!(is_there, Ok(true));
            }
            node.service.history.compact().await;
            let compacted = consensus.state().compaction_revision();
            // What is at the compaction revision itself is retained.
            while let Some((revision, at)) = made.front().copied().filter(|first| first.0 < compacted) {
                assert!(
                    now.0 - at > RETAINED_US,
                    "revision {revision} after {} minutes",
                    (now.0 - at) / 60_000_000
                );
                made.pop_front();
                removed += 1;
            }
            let is_well = |since: u64| now.0 - since > 3 * HOUR_US;
            if ahead_s == 0 && is_well(right_since) && led_since.is_some_and(is_well) {
                let age = now.0 - made.front().map_or(now.0, |first| first.1);
                // The last change before the retained time stays, and hours may be between two changes.
                assert!(age < RETAINED_US + 12 * HOUR_US, "{} hours", age / HOUR_US);
            }
        }
        assert!(removed > 400, "{removed}");
        node.stop().await;
    }

    #[test]
    fn the_compaction_revision_advances_in_steps_and_not_in_an_idle_cluster() {
        let by_count = |revisions, revision, compacted| {
            Retention { revisions, age: None }.by_count(&state(revision, compacted, &[]))
        };
        assert_eq!(by_count(Some(10), 20, 0), 0);
        assert_eq!(by_count(Some(10), 26, 0), 16);
        // The entry that raised it is a revision too.
        assert_eq!(by_count(Some(10), 27, 16), 0);
        assert_eq!(by_count(Some(10), 42, 16), 32);
        assert_eq!((by_count(Some(1600), 1699, 0), by_count(Some(1600), 1700, 0)), (0, 100));
        assert_eq!(by_count(None, 1 << 40, 0), 0);
    }

    #[test]
    fn revisions_that_a_recovery_has_skipped_do_not_count_as_history() {
        let retention = Retention { revisions: Some(100), age: None };
        let void = |first, last| VoidRevisions { first, last };
        // 60 revisions before the recovery, and 40 after it.
        assert_eq!(retention.by_count(&state(1_000_040, 0, &[void(61, 1_000_000)])), 0);
        assert_eq!(retention.by_count(&state(1_000_070, 0, &[void(61, 1_000_000)])), 30);
        let twice = [void(61, 1_000_000), void(1_000_041, 5_000_000)];
        assert_eq!(retention.by_count(&state(5_000_030, 0, &twice)), 30);
        assert_eq!(retention.by_count(&state(5_000_200, 0, &twice)), 5_000_100);
    }

    fn state(revision: Revision, compacted: Revision, void: &[VoidRevisions]) -> State {
        let mut builder = StateBuilder::new();
        builder.compaction_revision(compacted);
        builder.void_revisions(void);
        builder.finish(revision, Timestamp(1)).unwrap()
    }

    #[test]
    fn changes_are_removed_once_one_is_a_step_older_than_the_age() {
        let retention = Retention { revisions: None, age: Some(Duration::from_micros(1600)) };
        let limits = |start, remove| Some(AgeLimits { start: Timestamp(start), remove: Timestamp(remove) });
        assert_eq!(retention.age_limits(Timestamp(10_000)), limits(8300, 8400));
        assert_eq!(retention.age_limits(Timestamp(5)), limits(0, 0));
        assert_eq!(Retention { age: None, ..retention }.age_limits(Timestamp(5)), None);
    }
}
