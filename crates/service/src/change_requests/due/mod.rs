//! What the leader does by itself with change requests: it applies those that are due, and takes back those that are armed.
//!
//! Each second it looks at what is due by the confirmed time of the clocks, and does one after the other. To apply or take
//! back is the same write as a person's; the log decides it by the time of the entry.
//!
//! | rejection | what follows |
//! |---|---|
//! | it was a freeze, a limit, or nobody knows the outcome | another attempt, after a growing pause |
//! | another one was first | nothing |
//! | any other, of one that rolls | its rollout pauses |
//! | any other | the log notes that it failed, and an alarm says so |
//!
//! **Invariants:** without a confirmed time nothing is proposed. The progress is in the state alone: two nodes that both
//! assume that they lead do no harm, because the log lets one win.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, timeout};

use super::failure::{Next, next_of};
use crate::{
    clock::Clock,
    context::Context,
    editions::{FoundChange, approvals_of, find, is_rejected},
    request::{Alarm, Caller, ChangeWrite, Decision, Refusal, Write, WriteRequest},
    retry::{Attempt, AttemptError},
    write::Writes,
};
use concord_consensus::Consensus;
use concord_model::{
    access_key::Author,
    command::{ChangeAction, Command, Proposal, SystemCommand, Verdict},
    system::{
        SystemRecord,
        change::{ChangeId, Failure, Party, Phase},
    },
    time::Timestamp,
};
use concord_state::{
    State,
    change::time::{Deed, Due},
};

/// How often the state is looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long a majority must agree on the time: some rounds of questions, so that no single answer decides.
const CONFIRM: Duration = Duration::from_secs(5);
/// How long something that is due waits for a time before the alarm: longer than a new leader needs.
const WAIT_BEFORE_ALARM: Duration = Duration::from_secs(15);
/// How often it is looked whether what is armed can still be taken back.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// The first pause after an attempt that failed; each next one is twice as long.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause: a freeze is noticed to be over within it.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How often the pause is doubled until it is the longest.
const PAUSE_DOUBLINGS: u32 = 5;
/// How long a look goes on before the next one reads the state.
const LOOK_TIME: Duration = Duration::from_secs(2);
/// What is due for so long waits for something: an alarm says so.
const OVERDUE_US: u64 = 60 * 1_000_000;
/// How long the log may take to decide that one has failed.
const FAIL_TIMEOUT: Duration = Duration::from_secs(5);
/// The author of a note of failure in the log: no access key has this id.
const AUTHOR: &str = "cluster";
/// Alarms about failures end after this time: a day.
const FAILURE_ALARM_US: u64 = 24 * 60 * 60 * 1_000_000;

/// The pause of one whose last attempt failed.
#[derive(Debug, Clone, Copy)]
struct Pause {
    until: Instant,
    /// Attempts that failed in a row.
    failures: u32,
}

/// What this node knows while it leads.
#[derive(Debug, Default)]
struct Progress {
    /// Since when something that is due waits for a confirmed time.
    waits_since: Option<Instant>,
    paused: BTreeMap<ChangeId, Pause>,
    /// Those that are armed, and can't be taken back as things are.
    blocked: BTreeSet<ChangeId>,
    /// Those of them that are still to be looked at.
    unchecked: BTreeSet<ChangeId>,
    checked_at: Option<Instant>,
}

/// Applies what is due, and takes back what is armed.
#[derive(Debug)]
pub(crate) struct DueChanges {
    cx: Arc<Context>,
    clock: Arc<Clock>,
    writes: Arc<Writes>,
    progress: Mutex<Progress>,
}

impl DueChanges {
    pub(crate) fn new(cx: &Arc<Context>, clock: &Arc<Clock>, writes: &Arc<Writes>) -> Self {
        let progress = Mutex::default();
        Self { cx: Arc::clone(cx), clock: Arc::clone(clock), writes: Arc::clone(writes), progress }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        // Nothing panics while it is held.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what is due until the node stops.
    pub(crate) async fn keep_doing(self: Arc<Self>) -> Result<(), String> {
        let Some(consensus) = self.cx.consensus() else { return Ok(()) };
        while !self.cx.is_over() {
            self.look(consensus).await;
            self.cx.pause(INTERVAL).await;
        }
        Ok(())
    }

    /// Does what is due now, if this node leads, for some seconds at most.
    pub(crate) async fn look(&self, consensus: &Consensus) {
        let Some((state, now)) = self.state_to_look_at(consensus) else { return };
        let begun = Instant::now();
        for (deed, id) in self.due(&state, now) {
            // The one before may have taken long.
            if self.state_to_look_at(consensus).is_none() {
                return;
            }
            if begun.elapsed() >= LOOK_TIME {
                break;
            }
            self.do_one(consensus, deed, id).await;
        }
        self.check_reverts(consensus, &state, now).await;
    }

    /// The state, and the time by which something is due; `None` while there is nothing to do, or it can't be done.
    fn state_to_look_at(&self, consensus: &Consensus) -> Option<(Arc<State>, Timestamp)> {
        if !self.cx.leads(consensus) {
            *self.progress() = Progress::default();
            return None;
        }
        let state = consensus.state();
        if !state.has_timed_changes() && state.held_reverts().next().is_none() {
            // Most clusters have none, and a majority is not asked for its clocks.
            *self.progress() = Progress::default();
            return None;
        }
        let now = self.confirmed_time(&state)?;
        // Like a write of a client, it needs space on the disks.
        self.writes.disk_space.check().is_ok().then_some((state, now))
    }

    /// The time by which something is due, if it is confirmed.
    fn confirmed_time(&self, state: &State) -> Option<Timestamp> {
        let confirmed = self.clock.confirmed_time(CONFIRM);
        // Without a confirmed time nobody knows what is due. This one is good enough for an alarm.
        let waits = confirmed.is_none() && !self.due_since(state).is_empty();
        let mut progress = self.progress();
        if waits {
            progress.waits_since.get_or_insert_with(Instant::now);
        } else {
            progress.waits_since = None;
        }
        drop(progress);
        confirmed
    }

    /// What is due, and since when, by the log's time as far as this node knows it.
    fn due_since(&self, state: &State) -> Vec<(Deed, ChangeId, Timestamp)> {
        let now = self.clock.log_time(state);
        let since = |due: Due<'_>| {
            let found = found_due(state, &due, now)?;
            if due.deed == Deed::Revert {
                return Some((due.deed, found.id, due.at));
            }
            // It is due once it has the last approval.
            let votes = found.change.current_votes().map(|vote| vote.at);
            let last = votes.max().unwrap_or(found.change.edition.sent_at).max(due.at);
            Some((due.deed, found.id, last))
        };
        state.due_changes(now).filter_map(since).collect()
    }

    /// What is due and not paused: first what was tried least, then one of each sender before the second of anybody, then
    /// what is taken back, then by time. So nobody keeps others from theirs by many, or by some that fail again and again.
    fn due(&self, state: &State, now: Timestamp) -> Vec<(Deed, ChangeId)> {
        let due = state.due_changes(now);
        let due: Vec<(Deed, FoundChange<'_>)> =
            due.filter_map(|due| Some((due.deed, found_due(state, &due, now)?))).collect();
        let (moment, mut progress) = (Instant::now(), self.progress());
        let ids: BTreeSet<&ChangeId> = due.iter().map(|(_, found)| &found.id).collect();
        progress.paused.retain(|id, _| ids.contains(id));
        let mut turns: BTreeMap<String, u32> = BTreeMap::new();
        let mut all = Vec::new();
        for (deed, found) in &due {
            let pause = progress.paused.get(&found.id);
            if pause.is_some_and(|pause| moment < pause.until) {
                continue;
            }
            let sender = match &found.change.edition.sender {
                Party::Root => String::new(),
                Party::Key { person: Some(person), .. } => person.to_string(),
                Party::Key { id, person: None } => id.to_string(),
                Party::Machine(machine) => machine.name.clone(),
            };
            let turn = turns.entry(sender).or_default();
            all.push((pause.map_or(0, |pause| pause.failures), *turn, *deed, found.id.clone()));
            *turn += 1;
        }
        all.sort_by_key(|(failures, turn, ..)| (*failures, *turn));
        all.into_iter().map(|(_, _, deed, id)| (deed, id)).collect()
    }

    async fn do_one(&self, consensus: &Consensus, deed: Deed, id: ChangeId) {
        let state = consensus.state();
        let Some(found) = find(&state, &id) else { return };
        let edition = found.change.edition.number;
        match self.attempt(consensus, deed, &found).await {
            Ok(Decision { outcome: Ok(applied), .. }) => {
                let done = if deed == Deed::Apply { "applied" } else { "took back" };
                let revision = applied.revision;
                tracing::info!(change_request = %id, revision, "{done} change request {id}, which was due");
                self.progress().paused.remove(&id);
            }
            Ok(Decision { outcome: Err(rejection), .. }) => {
                self.refused(consensus, (deed, id, edition), &rejection.into()).await;
            }
            Err(AttemptError::Refused(refusal)) => {
                self.refused(consensus, (deed, id, edition), &refusal).await;
            }
            Err(AttemptError::Retry(text) | AttemptError::Unknown(text) | AttemptError::Begun(text)) => {
                self.note(&id, &text);
                self.pause(id);
            }
        }
    }

    /// One attempt at it on this node, as the cluster.
    async fn attempt(&self, consensus: &Consensus, deed: Deed, found: &FoundChange<'_>) -> Attempt<Decision> {
        let (id, digest) = (found.id.to_string(), found.change.edition.digest);
        let write = match deed {
            Deed::Apply => ChangeWrite::Apply { id, digest },
            Deed::Revert => ChangeWrite::Revert { id, digest },
        };
        let request = WriteRequest::new(Caller::cluster(None), Write::Change(Box::new(write)));
        let is_first = !self.progress().paused.contains_key(&found.id);
        let ordinary = self.cx.options.write_timeout;
        // One that checks many configs has more time, but not again and again.
        let time = if is_first { self.writes.time_for(&request.write) } else { ordinary };
        let deadline = Instant::now() + time;
        self.writes.decide_edition(consensus, &Arc::new(request), deadline).await
    }

    /// What follows a rejection.
    async fn refused(&self, consensus: &Consensus, one: (Deed, ChangeId, u32), why: &Refusal) {
        let (deed, id, edition) = one;
        match next_of(why) {
            Next::Later => {
                self.note(&id, &format!("{why:?}"));
                self.pause(id);
            }
            // The next look sees what the other one did.
            Next::Gone => self.pause(id),
            Next::Never(failure) => {
                self.fail(consensus, (deed, &id, edition), failure).await;
                // If the log did not decide it, the same is found again.
                self.pause(id);
            }
        }
    }

    /// Lets the log note that it failed.
    async fn fail(&self, consensus: &Consensus, one: (Deed, &ChangeId, u32), failure: Failure) {
        let (deed, id, edition) = one;
        let code = failure.code.clone();
        let state = consensus.state();
        let rolling = state.running_rollout(id).map(|running| running.at());
        let (what, action) = match (deed, rolling) {
            // Its readers run with it: somebody decides whether it is taken back.
            (Deed::Apply, Some(at)) => {
                let comment = format!("{}: {}", failure.code, failure.text);
                ("applied", ChangeAction::PauseRollout { at, comment })
            }
            (Deed::Apply, None) => ("applied", ChangeAction::Fail { edition, failure }),
            (Deed::Revert, _) => ("taken back", ChangeAction::FailRevert { edition, failure }),
        };
        let at = self.clock.stamp(&state).await;
        let command = Command::System(SystemCommand::Change { id: id.clone(), action });
        let proposal = Proposal::new(at, AUTHOR, Author::Cluster, command);
        match timeout(FAIL_TIMEOUT, consensus.write(proposal)).await {
            Ok(Ok(Verdict::Decided(Ok(_)))) => {
                tracing::warn!(change_request = %id, code, "change request {id} was due and can't be {what}: {code}");
            }
            // It is another one by now: the next look sees it.
            Ok(Ok(verdict)) => tracing::debug!(change_request = %id, ?verdict, "a failure was not noted"),
            Ok(Err(error)) => tracing::debug!(change_request = %id, ?error, "a failure was not noted"),
            Err(_) => tracing::debug!(change_request = %id, "a failure was not noted in time"),
        }
    }

    /// Logs why one has to wait: once as a warning.
    fn note(&self, id: &ChangeId, why: &str) {
        if self.progress().paused.contains_key(id) {
            tracing::debug!(change_request = %id, "change request {id} is due and still has to wait: {why}");
        } else {
            tracing::warn!(change_request = %id, "change request {id} is due and has to wait: {why}");
        }
    }

    fn pause(&self, id: ChangeId) {
        let mut progress = self.progress();
        let failures = progress.paused.get(&id).map_or(0, |pause| pause.failures);
        let length = (PAUSE_MIN * 2_u32.pow(failures.min(PAUSE_DOUBLINGS))).min(PAUSE_MAX);
        let pause = Pause { until: Instant::now() + length, failures: failures.saturating_add(1) };
        progress.paused.insert(id, pause);
    }

    /// Looks each minute which of those that are armed could not be taken back as things are, for some seconds at most, and
    /// goes on at the next look. One that is held until a person takes it back fails when it is due and nobody can do that
    /// any more.
    async fn check_reverts(&self, consensus: &Consensus, state: &Arc<State>, now: Timestamp) {
        let mut left = {
            let mut progress = self.progress();
            let is_time = progress.checked_at.is_none_or(|at| at.elapsed() >= CHECK_INTERVAL);
            if is_time && progress.unchecked.is_empty() {
                let ids =
                    state.armed_reverts().filter_map(|(_, record)| ChangeId::parse(record.name.as_str()));
                progress.unchecked = ids.collect();
                progress.blocked = &progress.blocked & &progress.unchecked;
                progress.checked_at = Some(Instant::now());
            }
            std::mem::take(&mut progress.unchecked)
        };
        let begun = Instant::now();
        while begun.elapsed() < LOOK_TIME
            && let Some(id) = left.pop_first()
        {
            let is_blocked = self.is_blocked(state, &id).await;
            let mut progress = self.progress();
            if is_blocked {
                progress.blocked.insert(id);
            } else {
                progress.blocked.remove(&id);
            }
        }
        self.progress().unchecked = left;
        let is_over = |(due, record): &(Timestamp, &Arc<SystemRecord>)| {
            *due <= now && !state.is_revert_possible(record)
        };
        for (_, record) in state.held_reverts().filter(is_over) {
            if let (Some(id), Some(change)) = (ChangeId::parse(record.name.as_str()), record.change()) {
                let text =
                    "a record was changed since, before a person has taken the change request back".into();
                let failure = Failure { code: "change_stale".into(), text };
                self.fail(consensus, (Deed::Revert, &id, change.edition.number), failure).await;
            }
        }
    }

    /// Whether one that is armed could not be taken back as things are.
    async fn is_blocked(&self, state: &Arc<State>, id: &ChangeId) -> bool {
        let Some(found) = find(state, id) else { return false };
        let digest = found.change.edition.digest;
        let write = ChangeWrite::Revert { id: id.to_string(), digest };
        let request = WriteRequest::new(Caller::cluster(None), Write::Change(Box::new(write)));
        let deadline = Instant::now() + self.cx.options.write_timeout;
        let tried = self.writes.try_edition(state, &Arc::new(request), deadline).await;
        matches!(tried.map_err(|refusal| next_of(&refusal)), Err(Next::Never(_)))
    }

    /// The alarms about change requests that the cluster applies and takes back. They have numbers and ids only: who sees
    /// alarms need not see what they change.
    pub(crate) fn alarms(&self, state: &State) -> Vec<Alarm> {
        let (waits, blocked) = {
            let progress = self.progress();
            let waits = progress.waits_since.is_some_and(|since| since.elapsed() >= WAIT_BEFORE_ALARM);
            (waits, progress.blocked.clone())
        };
        let mut alarms = Vec::new();
        let mut raise = |kind, message| alarms.push(Alarm { kind, node_id: None, message });
        if waits {
            raise(
                "schedule_waits_for_clock",
                "a change request is due, and the clocks of a majority do not agree on the time: nothing is applied or taken \
                 back until they do"
                    .into(),
            );
        }
        let after = Timestamp(self.clock.log_time(state).0.saturating_sub(FAILURE_ALARM_US));
        let (mut applies, mut reverts) = (Vec::new(), Vec::new());
        for (_, record) in state.failed_changes().take_while(|(at, _)| *at > after) {
            let is_revert =
                record.change().is_some_and(|change| matches!(change.phase, Phase::Applied { .. }));
            let list = if is_revert { &mut reverts } else { &mut applies };
            list.push(record.name.as_str().to_owned());
        }
        if !applies.is_empty() {
            let named = named(&applies);
            raise(
                "change_failed",
                format!(
                    "the cluster could not apply {named}: `concord change show ID` shows why; the alarm ends after a day"
                ),
            );
        }
        let (mut waiting, now) = (Vec::new(), self.clock.log_time(state));
        // Without a confirmed time all of them wait for that.
        let due = if waits { Vec::new() } else { self.due_since(state) };
        for (deed, id, since) in due {
            if now.0.saturating_sub(since.0) < OVERDUE_US {
                continue;
            }
            // Somebody counts on the end of a change that is to be taken back, whatever is in the way.
            let list = if deed == Deed::Revert { &mut reverts } else { &mut waiting };
            list.push(id.to_string());
        }
        if !waiting.is_empty() {
            let named = named(&waiting);
            raise(
                "change_waits",
                format!(
                    "due for more than a minute and not applied: {named}; a freeze or a limit is in the way, or the log of the \
                     leader says what. It is closed when its window ends"
                ),
            );
        }
        reverts.extend(
            blocked.iter().map(ToString::to_string).filter(|id| !reverts.contains(id)).collect::<Vec<_>>(),
        );
        if !reverts.is_empty() {
            let named = named(&reverts);
            raise(
                "revert_failed",
                format!(
                    "the cluster can't take back {named}: a record was changed since, its data is no longer valid, or a limit is \
                     in the way; create a change request that does it"
                ),
            );
        }
        let held: Vec<String> =
            state.held_reverts().map(|(_, record)| record.name.as_str().to_owned()).collect();
        if !held.is_empty() {
            let named = named(&held);
            raise(
                "revert_held",
                format!(
                    "since a restore or a recovery, only a person takes back {named}: `concord change revert ID`, or \
                     `concord change keep ID` if what it changed is to stay"
                ),
            );
        }
        alarms
    }

    /// For how many seconds the one that is due for the longest has been, by this node's state.
    pub(crate) fn overdue_s(&self, state: &State) -> u64 {
        let now = self.clock.log_time(state);
        let first = self.due_since(state).into_iter().map(|(_, _, since)| since).min();
        first.map_or(0, |since| now.0.saturating_sub(since.0) / 1_000_000)
    }
}

/// The change request that is to be done now. One whose window is over is closed soon.
fn found_due<'s>(state: &'s State, due: &Due<'s>, now: Timestamp) -> Option<FoundChange<'s>> {
    let found = find(state, &ChangeId::parse(due.record.name.as_str())?)?;
    // The window of one that rolls was that of its beginning.
    let window = found.change.edition.timing.window.filter(|_| !found.change.is_rolling());
    let is_in_time = window.is_none_or(|window| now < window.not_after);
    let is_to_be_done = due.deed == Deed::Revert || (is_in_time && is_to_be_applied(state, &found));
    is_to_be_done.then_some(found)
}

/// Whether the cluster is to apply it: it was left to the cluster, or it has the approvals that it needs.
fn is_to_be_applied(state: &State, found: &FoundChange<'_>) -> bool {
    match found.change.phase {
        Phase::Scheduled { .. } => true,
        Phase::Open => {
            let has = |(needed, counted): &(u8, u8)| counted >= needed;
            !is_rejected(found.change) && approvals_of(state, found.change).iter().all(has)
        }
        Phase::Rolling { .. } => {
            state.running_rollout(&found.id).is_some_and(|running| running.is_complete())
        }
        Phase::Held | Phase::Applied { .. } | Phase::Closed { .. } => false,
    }
}

/// Some change requests by their ids; how many there are if they are many.
pub(crate) fn named(ids: &[String]) -> String {
    const NAMED_MAX: usize = 5;
    let first = ids.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match ids.len() {
        1 => format!("change request {first}"),
        count if count <= NAMED_MAX => format!("change requests {first}"),
        count => format!("{count} change requests, as {first}"),
    }
}

#[cfg(test)]
pub(crate) mod tests;
