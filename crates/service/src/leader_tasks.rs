//! Two background tasks of the leader: it builds indexes, and it expires idempotency records and change requests.
//!
//! Each runs on every node and proposes log entries only while the node leads, so a new leader continues the work.
//!
//! After a step of an index build the task pauses for as long as the step took, from the proposal to the verdict. So
//! other writes have at least half of the time, on a slow disk as well. The builds of several definitions alternate.
//!
//! **Invariant:** the progress is in the state alone. Two nodes that both assume that they lead do no harm: a step that
//! is proposed twice is applied once.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};

use super::{clock::Clock, context::Context, disk_space::DiskSpace};
use concord_consensus::Consensus;
use concord_model::{
    access_key::Author,
    command::{Command, Proposal, SystemCommand},
    key::Key,
    limits::REMEMBERED_REQUEST_AGE_US,
    record::{Definition, Revision},
    time::Timestamp,
};
use concord_state::State;

/// The author of the steps of index builds in the log: no access key has this id.
const BUILD_AUTHOR: &str = "concord";
/// The author of the expiry of idempotency records in the log: no access key has this id.
const EXPIRY_AUTHOR: &str = "cluster";
/// How often the state is checked for an index build.
const BUILD_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The shortest pause between two steps of an index build.
const BUILD_PAUSE_MIN: Duration = Duration::from_millis(2);
/// How often the state is checked for expired idempotency records.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long the log may take to decide an expiry, before the next check tries again.
const EXPIRY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a majority must agree on the time: no idempotency record expires because one clock jumps.
const EXPIRY_CONFIRM: Duration = Duration::from_secs(600);
/// Expiry begins when a record is this much older than a day, so that an idle cluster writes few entries for it.
const EXPIRY_STEP_US: u64 = REMEMBERED_REQUEST_AGE_US / 96;

/// What the background tasks of the leader need.
#[derive(Debug, Clone)]
pub(super) struct LeaderTasks {
    pub(super) cx: Arc<Context>,
    pub(super) clock: Arc<Clock>,
    pub(super) disk_space: Arc<DiskSpace>,
}

impl LeaderTasks {
    /// Builds indexes until the node stops.
    pub(super) async fn build_indexes(self) -> Result<(), String> {
        let Some(consensus) = self.cx.consensus() else { return Ok(()) };
        let mut last_built = None;
        while !self.cx.is_over() {
            let pause = self.build_step(consensus, &mut last_built).await.unwrap_or(BUILD_POLL_INTERVAL);
            self.cx.pause(pause).await;
        }
        Ok(())
    }

    /// Makes one step if this node leads and there is one. Returns how long to pause after it.
    async fn build_step(&self, consensus: &Consensus, last_built: &mut Option<Key>) -> Option<Duration> {
        // A build needs disk space, like any write that removes nothing.
        if !self.cx.leads(consensus) || self.disk_space.check().is_err() {
            return None;
        }
        let state = consensus.state();
        let next = state.building_after(last_built.as_ref()).cloned()?;
        let at = self.clock.stamp(&state).await;
        *last_built = Some(next.key.clone());
        let began = Instant::now();
        let proposal = next_step(&next, at)?;
        match timeout(self.cx.options.write_timeout, consensus.write(proposal)).await {
            Ok(Ok(_)) => Some(began.elapsed().max(BUILD_PAUSE_MIN)),
            // The state shows at the next poll whether the step was applied.
            Ok(Err(error)) => {
                tracing::debug!(definition = %next.key, ?error, "a step of an index build was not confirmed");
                None
            }
            Err(_) => None,
        }
    }

    /// Expires idempotency records that are older than a day, and change requests that are older than theirs, until the
    /// node stops.
    pub(super) async fn expire_records(self) -> Result<(), String> {
        let Some(consensus) = self.cx.consensus() else { return Ok(()) };
        // What one entry could not expire is due at once, without another step.
        let mut due = None;
        while !self.cx.is_over() {
            due = self.expire(consensus, due).await;
            self.sweep_changes(consensus).await;
            self.cx.pause(EXPIRY_INTERVAL).await;
        }
        Ok(())
    }

    /// Proposes the expiry that is due. Returns the revision up to which it was proposed.
    async fn expire(&self, consensus: &Consensus, due: Option<Revision>) -> Option<Revision> {
        if !self.cx.leads(consensus) {
            return None;
        }
        let state = consensus.state();
        let left = due.filter(|upto| state.requests().next().is_some_and(|oldest| oldest.revision <= *upto));
        let upto = left.or_else(|| too_old(&state, self.clock.confirmed_time(EXPIRY_CONFIRM)?))?;
        let at = self.clock.stamp(&state).await;
        self.propose_expiry(consensus, at, Command::Forget { upto }).await;
        Some(upto)
    }

    /// Proposes that change requests of too old an edition are closed, and that the oldest closed ones are dropped.
    async fn sweep_changes(&self, consensus: &Consensus) {
        let state = consensus.state();
        // Most clusters have none, and a majority is not asked for its clocks.
        if state.changes().next().is_none() || !self.cx.leads(consensus) {
            return;
        }
        let Some(now) = self.clock.confirmed_time(EXPIRY_CONFIRM) else { return };
        if state.has_changes_to_sweep(now) {
            let at = self.clock.stamp(&state).await;
            let command = Command::System(SystemCommand::SweepChanges { now });
            self.propose_expiry(consensus, at, command).await;
        }
    }

    async fn propose_expiry(&self, consensus: &Consensus, at: Timestamp, command: Command) {
        let proposal = Proposal::new(at, EXPIRY_AUTHOR, Author::Cluster, command);
        let text = proposal.to_string();
        match timeout(EXPIRY_TIMEOUT, consensus.write(proposal)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(proposal = text, ?error, "an expiry was not decided"),
            Err(_) => tracing::debug!(proposal = text, "an expiry was not decided in time"),
        }
    }
}

/// The next step of a definition's index build.
fn next_step(definition: &Definition, at: Timestamp) -> Option<Proposal> {
    let build = definition.indexing.build.as_ref()?;
    let (key, begun, cursor) = (definition.key.clone(), build.begun, build.cursor.clone());
    Some(Proposal::new(at, BUILD_AUTHOR, Author::Cluster, Command::BuildIndex { key, begun, cursor }))
}

/// The revision of the newest idempotency record that is too old, once one is too old by a step.
fn too_old(state: &State, now: Timestamp) -> Option<Revision> {
    let oldest = state.requests().next()?;
    let before = |age: u64| Timestamp(now.0.saturating_sub(age));
    if oldest.at > before(REMEMBERED_REQUEST_AGE_US + EXPIRY_STEP_US) {
        return None;
    }
    state.decided_upto(before(REMEMBERED_REQUEST_AGE_US))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fastrand::Rng;

    use super::*;
    use crate::testing::Scripted;
    use concord_consensus::fake::Fate;
    use concord_model::{
        command::{ChangeAction, Expect, IdempotencyKey},
        system::change::{Change, ChangeId, CloseReason, Content, NewEdition, Phase, Scope, Timing},
    };

    const MINUTE: Duration = Duration::from_secs(60);
    const MINUTE_US: u64 = 60_000_000;
    const DAY_US: u64 = 24 * 60 * MINUTE_US;

    /// The clocks of three members, which jump and are set right.
    struct Clocks {
        rng: Rng,
        /// How far each is ahead, in microseconds.
        ahead: [i64; 3],
        /// Since when all are right.
        right_since: u64,
    }

    impl Clocks {
        /// One clock jumps now and then, by up to 40 days, and is set right within some hours. Two are never wrong at
        /// once: nobody promises anything then.
        fn move_on(&mut self, now: u64) {
            if let Some(wrong) = self.ahead.iter_mut().find(|ahead| **ahead != 0) {
                if self.rng.u32(..200) == 0 {
                    (*wrong, self.right_since) = (0, now);
                }
            } else if self.rng.u32(..600) == 0 {
                let days = self.rng.i64(1..40) * if self.rng.bool() { 1 } else { -1 };
                self.ahead[self.rng.usize(..3)] = days * 86_400_000_000;
            }
        }

        fn is_right(&self) -> bool {
            self.ahead == [0; 3]
        }
    }

    fn keyed(at: Timestamp, number: u64) -> Proposal {
        let (definition, key) = (Key::parse("d").unwrap(), Key::parse("k").unwrap());
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_le_bytes());
        let request = Some(IdempotencyKey { id, fingerprint: [2; 16] });
        let command = Command::DeleteConfig { definition, key, expect: Expect::Present };
        Proposal { request, ..Proposal::new(at, "root", Author::Root, command) }
    }

    fn tasks(node: &Scripted) -> LeaderTasks {
        LeaderTasks {
            cx: node.service.cx.clone(),
            clock: node.service.clock.clone(),
            disk_space: node.service.disk_space.clone(),
        }
    }

    /// 4,000 hours in which leaders are lost, entries are lost, and clocks jump.
    #[tokio::test]
    async fn a_record_expires_after_its_day_and_never_before_whoever_leads_and_whatever_one_clock_shows() {
        const MINUTES: u64 = 4000 * 60;
        let node = Scripted::start().await;
        let tasks = tasks(&node);
        let consensus = node.service.cx.consensus().unwrap();
        let mut rng = Rng::with_seed(11);
        let mut clocks = Clocks { rng: rng.fork(), ahead: [0; 3], right_since: node.true_time().0 };
        let mut fates = rng.fork();
        node.fake.script(move || {
            let fate = match fates.u32(..10) {
                0 => Fate::NotAppended,
                1 => Fate::LostAndApplied,
                2 => Fate::LostAndGone,
                _ => Fate::Decided,
            };
            // Some take longer than an expiry waits.
            (Duration::from_millis(fates.u64(..6000)), fate)
        });
        let (mut due, mut led_since) = (None, None);
        // The records that must be there, by revision.
        let mut written = BTreeMap::new();
        let (mut expired, mut most_late) = (0, 0);
        for minute in 0..MINUTES {
            tokio::time::sleep(MINUTE).await;
            let now = node.true_time();
            clocks.move_on(now.0);
            let shown = |place: usize| Timestamp(now.0.saturating_add_signed(clocks.ahead[place]));
            node.set_wall(shown(0));
            node.hear_clocks(&[(2, shown(1)), (3, shown(2))]);
            if rng.u32(..400) == 0 || minute == 0 {
                let leader = [Some(1), Some(1), Some(2), None][rng.usize(..4)];
                led_since = (leader == Some(1)).then_some(now.0);
                node.fake.lead(leader);
            }
            if rng.u32(..20) == 0 {
                node.fake.decide(&keyed(now, minute));
                written.insert(consensus.state().revision(), now.0);
            }
            let before = consensus.state().request_count();
            due = tasks.expire(consensus, due).await;
            let state = consensus.state();
            if state.request_count() != before || minute % 100 == 0 {
                let oldest = state.requests().next().map_or(u64::MAX, |oldest| oldest.revision);
                let now = node.true_time().0;
                while let Some(first) = written.first_entry().filter(|first| *first.key() < oldest) {
                    let age = now - first.remove();
                    assert!(age > DAY_US, "one has expired after {} minutes", age / MINUTE_US);
                    expired += 1;
                }
                assert_eq!(state.request_count(), written.len() as u64);
            }
            // For an hour, all has been well.
            let is_well = |since: u64| now.0 - since > 60 * MINUTE_US;
            if clocks.is_right() && is_well(clocks.right_since) && led_since.is_some_and(is_well) {
                let age = written.first_key_value().map_or(0, |(_, at)| now.0 - at);
                most_late = most_late.max(age.saturating_sub(DAY_US));
                assert!(age < DAY_US + 100 * MINUTE_US, "one is {} minutes old", age / MINUTE_US);
            }
        }
        assert!(expired > 10_000 && most_late > 0, "{expired} expired, at most {most_late} µs late");
        node.stop().await;
    }

    fn change_request(at: Timestamp) -> Proposal {
        let edition = NewEdition {
            digest: [1; 32],
            scope: Scope::Definitions(vec![Key::parse("d").unwrap()]),
            text: "{}".into(),
            operations: "[]".into(),
            content: Content::new(Vec::new(), [2; 32]),
            timing: Timing::default(),
        };
        let (id, action) = (change_id(), ChangeAction::Create(edition.into()));
        let command = Command::System(SystemCommand::Change { id, action });
        Proposal::new(at, "root", Author::Root, command)
    }

    fn change_id() -> ChangeId {
        ChangeId::parse("AAAAAAAAAAAA").unwrap()
    }

    #[tokio::test]
    async fn change_requests_expire_at_their_age_and_by_no_wrong_clock() {
        const DAY: Duration = Duration::from_secs(24 * 60 * 60);
        let node = Scripted::start().await;
        let tasks = tasks(&node);
        let consensus = node.service.cx.consensus().unwrap();
        node.fake.lead(Some(1));
        node.fake.decide(&change_request(node.true_time()));
        // A quarter of an hour in which the own clock is so many days ahead, and the others are right.
        let sweep = async |days: u64| {
            for _ in 0..15 {
                tokio::time::sleep(MINUTE).await;
                let now = node.true_time();
                node.set_wall(Timestamp(now.0 + days * DAY_US));
                node.hear_clocks(&[(2, now), (3, now)]);
                tasks.sweep_changes(consensus).await;
            }
        };
        let is_open = || consensus.state().change(&change_id()).map(Change::is_pending);
        for days in [0, 31, 200, 0] {
            sweep(days).await;
            assert_eq!(is_open(), Some(true), "{days} days ahead");
        }
        tokio::time::sleep(29 * DAY).await;
        sweep(0).await;
        assert_eq!(is_open(), Some(true));
        tokio::time::sleep(DAY).await;
        // Who does not lead, and who can't know the time, closes nothing.
        node.fake.lead(Some(2));
        sweep(0).await;
        node.fake.lead(Some(1));
        sweep(31).await;
        assert_eq!(is_open(), Some(true));
        sweep(0).await;
        assert_eq!(is_open(), Some(false));
        let closed = consensus.state().change(&change_id()).unwrap().clone();
        assert!(matches!(closed.phase, Phase::Closed { reason: CloseReason::Expired, by: None, .. }));
        // What was closed goes as well, after 90 days.
        tokio::time::sleep(89 * DAY).await;
        sweep(0).await;
        assert_eq!(is_open(), Some(false));
        tokio::time::sleep(DAY).await;
        sweep(0).await;
        assert_eq!(is_open(), None);
        node.stop().await;
    }

    #[tokio::test]
    async fn a_node_whose_own_clock_is_wrong_decides_nothing_by_age() {
        let node = Scripted::start().await;
        let clock = &node.service.clock;
        let look = async |ahead_s: i64| {
            tokio::time::sleep(Duration::from_secs(5)).await;
            let now = node.true_time();
            node.set_wall(Timestamp(now.0.saturating_add_signed(ahead_s * 1_000_000)));
            node.hear_clocks(&[(2, now), (3, now)]);
            let time = clock.confirmed_time(EXPIRY_CONFIRM);
            assert!(time.is_none_or(|time| time.0.abs_diff(now.0) < 11_000_000), "{time:?} at {now:?}");
            time.is_some()
        };
        for _ in 0..120 {
            assert!(!look(0).await);
        }
        assert!(look(0).await);
        for ahead_s in [11, 3600, 86_400 * 30, -11, -86_400 * 30] {
            for _ in 0..1000 {
                assert!(!look(ahead_s).await, "{ahead_s} s ahead");
            }
            // The time of the cluster was agreed on all the while.
            assert!(look(0).await);
        }
        node.stop().await;
    }

    #[test]
    fn idempotency_records_expire_without_new_requests() {
        let mut state = State::new();
        let proposal = |at: u64, id: Option<u8>, command: Command| {
            let request = id.map(|id| IdempotencyKey { id: [id; 16], fingerprint: [2; 16] });
            let (at, by) = (Timestamp(at), "root".to_owned());
            Proposal {
                at,
                by,
                reason: None,
                request,
                definition_read: None,
                command,
                author: Author::Root,
                tail: None,
            }
        };
        let (definition, key) = (Key::parse("d").unwrap(), Key::parse("k").unwrap());
        let delete = Command::DeleteConfig { definition, key, expect: Expect::Present };
        state.apply(1, &proposal(1000, Some(1), delete.clone()));
        let late = Timestamp(10 * REMEMBERED_REQUEST_AGE_US);
        state.apply(3, &proposal(3000, Some(2), delete));
        assert_eq!(too_old(&state, Timestamp(REMEMBERED_REQUEST_AGE_US + EXPIRY_STEP_US)), None);
        let now = Timestamp(REMEMBERED_REQUEST_AGE_US + EXPIRY_STEP_US + 1000);
        assert_eq!(too_old(&state, now), Some(3));
        state.apply(4, &proposal(4000, None, Command::Forget { upto: 3 }));
        assert_eq!((state.request_count(), too_old(&state, late)), (0, None));
    }
}
