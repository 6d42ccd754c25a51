//! What the leader does by itself with the rollouts that run: it takes them back or pauses them when readers or gates say
//! that something is wrong, ends their stages, and pauses those that wait for too long.
//!
//! Whether a stage may end, the log decides by the time of the entry and by the counts that the entry names
//! (`crates/state/src/change/rollout.rs`). A rollout that has passed its last stage is applied as any change request that is
//! due (`change_requests/due`).
//!
//! **Invariants:** without a confirmed time no stage ends. A leader ends no stage that began before it led until it has
//! heard the readers for a while: it has no evidence of before. To take back needs neither.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, timeout};

use super::EvidenceStore;
use crate::{
    clock::Clock,
    context::Context,
    editions::{counted_approvers, find},
};
use concord_consensus::Consensus;
use concord_model::{
    access_key::Author,
    command::{ChangeAction, Command, Proposal, RolloutStage, SystemCommand, Verdict},
    sabotage,
    system::{
        change::{ChangeId, Failure},
        rollout::{Evidence, OnFail, Rollout, Running},
    },
    time::Timestamp,
};
use concord_state::State;

/// How often the rollouts are looked at. A failure is looked at when it is reported.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long a majority must agree on the time.
const CONFIRM: Duration = Duration::from_secs(5);
/// How long a new leader hears the readers of a stage that began before it led: clients report each 20 seconds.
const HEAR: Duration = Duration::from_secs(30);
/// How long the log may take to decide a step, before the next look tries again.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// The author of these steps in the log: no access key has this id.
const AUTHOR: &str = "cluster";
/// The code of a change request that was closed because its rollout failed.
const FAILED: &str = "rollout_failed";

/// What the leader does with a rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    /// Takes it back.
    Abort(String),
    /// Lets it wait for somebody.
    Pause(String),
    /// Ends its stage.
    Advance(Evidence),
}

/// What is known of a rollout besides its record.
#[derive(Debug, Clone)]
struct Known {
    evidence: Evidence,
    /// A gate that says that something is wrong.
    bad_gate: Option<String>,
    /// The time of the log, if it is confirmed.
    now: Option<Timestamp>,
    /// Whether the readers have been heard for as long as they need to report.
    is_heard: bool,
    /// Whether the change request still has its approvals, and no rejection.
    is_approved: bool,
}

/// What this node knows while it leads.
#[derive(Debug, Default)]
struct Progress {
    /// Whether it led at the last look.
    leads: bool,
    /// Those that ran when it began to lead, with their stage then, and until when it only hears their readers.
    inherited: BTreeMap<ChangeId, (Timestamp, Instant)>,
}

/// Looks after the rollouts that run.
#[derive(Debug)]
pub(crate) struct RolloutTask {
    cx: Arc<Context>,
    clock: Arc<Clock>,
    evidence: Arc<EvidenceStore>,
    progress: Mutex<Progress>,
}

impl RolloutTask {
    pub(crate) fn new(cx: &Arc<Context>, clock: &Arc<Clock>, evidence: &Arc<EvidenceStore>) -> Self {
        let (cx, clock, evidence) = (Arc::clone(cx), Arc::clone(clock), Arc::clone(evidence));
        Self { cx, clock, evidence, progress: Mutex::default() }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        // Nothing panics while it is held.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks after them until the node stops.
    pub(crate) async fn keep_looking(self: Arc<Self>) -> Result<(), String> {
        let Some(consensus) = self.cx.consensus() else { return Ok(()) };
        while !self.cx.is_over() {
            self.look(consensus).await;
            tokio::select! {
                () = self.cx.pause(INTERVAL) => {}
                () = self.evidence.changed() => {}
            }
        }
        Ok(())
    }

    /// Does what is to be done now, if this node leads: what harms goes first.
    pub(crate) async fn look(&self, consensus: &Consensus) {
        let state = consensus.state();
        self.evidence.tidy(&state);
        if !self.cx.leads(consensus) {
            *self.progress() = Progress::default();
            return;
        }
        let running = self.running(&state);
        let mut steps: Vec<(ChangeId, RolloutStage, Step)> = running
            .iter()
            .filter_map(|(id, running, is_heard)| {
                let known = self.known(&state, id, running.rollout, *is_heard);
                Some((id.clone(), running.at(), next_step(*running, &known)?))
            })
            .collect();
        steps.sort_by_key(|(.., step)| match step {
            Step::Abort(_) => 0,
            Step::Pause(_) => 1,
            Step::Advance(_) => 2,
        });
        for (id, at, step) in steps {
            if !self.cx.leads(consensus) {
                return;
            }
            self.take(consensus, (&id, at), step).await;
        }
    }

    /// Those that run, and whether their readers have been heard.
    fn running<'s>(&self, state: &'s State) -> Vec<(ChangeId, Running<'s>, bool)> {
        let mut progress = self.progress();
        let is_new = !std::mem::replace(&mut progress.leads, true);
        let now = Instant::now();
        let mut running = Vec::new();
        for (id, one) in state.running_rollouts() {
            let Some(id) = ChangeId::parse(id.as_str()) else { continue };
            if is_new {
                progress.inherited.insert(id.clone(), (one.pace.since, now + HEAR));
            }
            let of_before = progress.inherited.get(&id).filter(|(since, _)| *since == one.pace.since);
            let is_heard = of_before.is_none_or(|(_, until)| *until <= now);
            running.push((id, one, is_heard));
        }
        progress.inherited.retain(|id, _| running.iter().any(|(running, ..)| running == id));
        running
    }

    /// What is known of one now.
    fn known(&self, state: &State, id: &ChangeId, rollout: &Rollout, is_heard: bool) -> Known {
        let is_approved = find(state, id).is_some_and(|found| counted_approvers(state, &found).is_ok());
        Known {
            evidence: self.evidence.counted(id, rollout),
            bad_gate: self.evidence.bad_gate(id, rollout),
            now: self.clock.confirmed_time(CONFIRM),
            is_heard,
            is_approved,
        }
    }

    /// Takes a step at the stage for which it was found: the evidence of one stage ends no later one.
    async fn take(&self, consensus: &Consensus, (id, at): (&ChangeId, RolloutStage), step: Step) {
        let (what, action) = match step {
            Step::Abort(text) => {
                let failure = Failure { code: FAILED.into(), text };
                ("taken back", ChangeAction::Fail { edition: at.edition, failure })
            }
            Step::Pause(comment) => ("paused", ChangeAction::PauseRollout { at, comment }),
            Step::Advance(evidence) => ("advanced", ChangeAction::AdvanceRollout { at, evidence }),
        };
        let log_time = self.clock.stamp(&consensus.state()).await;
        let command = Command::System(SystemCommand::Change { id: id.clone(), action });
        let proposal = Proposal::new(log_time, AUTHOR, Author::Cluster, command);
        match timeout(STEP_TIMEOUT, consensus.write(proposal)).await {
            Ok(Ok(Verdict::Decided(Ok(_)))) => {
                tracing::info!(change_request = %id, "the rollout of change request {id} was {what}");
            }
            // It is at another stage by now, or nobody knows: the next look sees it.
            Ok(Ok(verdict)) => tracing::debug!(change_request = %id, ?verdict, "a rollout was not {what}"),
            Ok(Err(error)) => tracing::debug!(change_request = %id, ?error, "a rollout was not {what}"),
            Err(_) => tracing::debug!(change_request = %id, "a rollout was not {what} in time"),
        }
    }
}

/// What is to be done with a rollout. A person's pause does not keep a failure from taking it back.
fn next_step(running: Running<'_>, known: &Known) -> Option<Step> {
    let (plan, pace) = (&running.rollout.plan, running.pace);
    let Known { evidence, bad_gate, now, is_heard, is_approved } = known;
    let failure = if evidence.failed > plan.max_failed {
        Some(format!("{} readers have failed, more than `max_failed`, {}", evidence.failed, plan.max_failed))
    } else {
        bad_gate.as_ref().map(|gate| format!("gate `{gate}` is bad"))
    };
    if let Some(text) = failure {
        return match plan.on_fail {
            OnFail::Abort => Some(Step::Abort(text)),
            OnFail::Pause => pace.paused.is_none().then_some(Step::Pause(text)),
        };
    }
    if pace.paused.is_some() {
        return None;
    }
    if !is_approved {
        return Some(Step::Pause("the change request is rejected, or lacks an approval".into()));
    }
    let (stage, until) = (running.stage()?, running.until()?);
    let now = now.filter(|now| *now >= until || sabotage::is("stage-early"))?;
    let gates = u32::try_from(plan.gates.len()).unwrap_or(u32::MAX);
    let is_well = (evidence.healthy >= stage.min_healthy && evidence.gates == gates)
        || sabotage::is("stage-without-evidence");
    if is_well && *is_heard {
        return Some(Step::Advance(*evidence));
    }
    let latest = Timestamp(until.0.saturating_add(u64::from(plan.timeout_s) * 1_000_000));
    (now >= latest).then(|| {
        let Evidence { healthy, gates: good, .. } = *evidence;
        Step::Pause(format!(
            "the stage has waited too long: {healthy} of {} readers are healthy, {good} of {gates} gates are good",
            stage.min_healthy
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::system::{
        pace::{Actor, Pace, RolloutPause},
        rollout::{GateRule, PassedStage, Plan, Progress as RolloutProgress, Stage},
    };

    const SECOND: u64 = 1_000_000;

    struct One {
        rollout: Rollout,
        pace: Pace,
    }

    fn step(one: &One, known: &Known) -> Option<Step> {
        let progress = one.rollout.progress.as_ref().unwrap();
        next_step(Running { rollout: &one.rollout, progress, pace: &one.pace }, known)
    }

    fn rollout(on_fail: OnFail) -> One {
        let stage = |share| Stage { labels: Vec::new(), share, for_s: 10, min_healthy: 2 };
        let gates = vec![GateRule { name: "errors".into(), fresh_s: 60 }];
        let plan =
            Plan { stages: vec![stage(500), stage(10_000)], max_failed: 1, gates, on_fail, timeout_s: 100 };
        let at = Timestamp(5 * SECOND);
        let progress = RolloutProgress { begun_at: at, passed: Vec::new() };
        let rollout = Rollout { progress: Some(progress), ..Rollout::planned(1, plan) };
        One { rollout, pace: Pace { since: at, by: Actor::Root, paused: None } }
    }

    fn known(now_s: u64, healthy: u32, failed: u32, gates: u32) -> Known {
        let evidence = Evidence { healthy, failed, gates };
        let now = Some(Timestamp(now_s * SECOND));
        Known { evidence, bad_gate: None, now, is_heard: true, is_approved: true }
    }

    fn is_advance(step: Option<Step>) -> bool {
        matches!(step, Some(Step::Advance(_)))
    }

    #[test]
    fn a_stage_ends_after_its_time_with_its_evidence_and_a_confirmed_time() {
        let one = rollout(OnFail::Abort);
        assert!(is_advance(step(&one, &known(15, 2, 1, 1))));
        assert_eq!(step(&one, &known(14, 2, 0, 1)), None, "its time");
        assert_eq!(step(&one, &known(15, 1, 0, 1)), None, "its readers");
        assert_eq!(step(&one, &known(15, 2, 0, 0)), None, "its gate");
        assert_eq!(step(&one, &Known { now: None, ..known(15, 2, 0, 1) }), None, "no confirmed time");
        assert_eq!(step(&one, &Known { is_heard: false, ..known(15, 2, 0, 1) }), None, "a new leader");
        assert!(matches!(step(&one, &known(115, 1, 0, 1)), Some(Step::Pause(_))), "for too long");
        let rejected = Known { is_approved: false, ..known(6, 2, 0, 1) };
        assert!(matches!(step(&one, &rejected), Some(Step::Pause(_))), "somebody has rejected it");
    }

    #[test]
    fn failures_end_it_at_once_whatever_the_time_is_and_whether_it_is_paused() {
        let mut paused = rollout(OnFail::Abort);
        let by_person = RolloutPause { at: Timestamp(1), by: Actor::Root, comment: String::new() };
        paused.pace.paused = Some(by_person);
        let unconfirmed = |known: Known| Known { now: None, is_heard: false, ..known };
        for one in [&rollout(OnFail::Abort), &paused] {
            assert!(matches!(step(one, &unconfirmed(known(0, 0, 2, 0))), Some(Step::Abort(_))));
            let gate = Known { bad_gate: Some("errors".into()), ..unconfirmed(known(0, 9, 0, 0)) };
            assert!(matches!(step(one, &gate), Some(Step::Abort(_))));
        }
        assert_eq!(step(&paused, &known(500, 9, 0, 1)), None, "a paused one waits");
        let mut pausing = rollout(OnFail::Pause);
        assert!(matches!(step(&pausing, &known(6, 0, 2, 0)), Some(Step::Pause(_))));
        pausing.pace = paused.pace;
        assert_eq!(step(&pausing, &known(6, 0, 2, 0)), None, "once");
    }

    #[test]
    fn a_rollout_whose_stages_have_ended_is_left_to_the_apply() {
        let mut one = rollout(OnFail::Abort);
        let passed = PassedStage { at: Timestamp(1), evidence: Evidence::default(), by: Actor::Cluster };
        one.rollout.progress.as_mut().unwrap().passed = vec![passed.clone(), passed];
        assert_eq!(step(&one, &known(500, 9, 0, 1)), None);
        assert!(matches!(step(&one, &known(500, 9, 2, 1)), Some(Step::Abort(_))), "until it is applied");
    }
}
