//! What a change request shows of its rollout.
//!
//! **Invariant:** nothing here shows data of a config.

use super::PartyView;
use crate::{request::WatchCount, rollouts::EvidenceView};
use concord_model::{
    system::{
        change::{Change, Party},
        pace::Actor,
        rollout::{Evidence, Plan, Rollout, Running},
    },
    time::Timestamp,
};
use concord_state::State;

/// A rollout as a client sees it.
#[derive(Debug, Clone)]
pub struct RolloutView {
    /// How the edition is released.
    pub plan: Plan,
    /// How far it is; `None` before it begins.
    pub status: Option<RolloutStatus>,
}

/// How far a rollout is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutStatus {
    /// The number of the present stage, from 0; `None` after the last one.
    pub stage: Option<usize>,
    /// When it began.
    pub begun_at: Timestamp,
    /// Since when the present stage lasts, or goes on after a pause.
    pub since: Timestamp,
    /// Whether it waits for somebody.
    pub paused: Option<PauseView>,
    /// The stages that have ended.
    pub passed: Vec<PassedView>,
    /// What readers and gates say, as the leader knows it; `None` if it did not say so in time, and in lists.
    pub evidence: Option<EvidenceView>,
    /// Whether the client is not shown what readers say of their failures.
    pub hides_details: bool,
    /// How many watches follow its configs, on all nodes; `None` if a node did not say so in time, and in lists.
    pub watches: Option<WatchCount>,
    /// What the present stage waits for: `resume`, `time`, `min_healthy`, `gates`; or `end` after the last stage.
    pub waits_for: Vec<&'static str>,
}

impl RolloutView {
    /// Adds what readers and gates say of it, and how many watches follow it.
    /// `hides_details`: what readers say of their failures may quote secret values that the client may not see.
    pub(crate) fn add_evidence(
        &mut self,
        evidence: Option<EvidenceView>,
        watches: Option<WatchCount>,
        hides_details: bool,
    ) {
        let Some(status) = &mut self.status else { return };
        (status.watches, status.hides_details) = (watches, hides_details);
        let Some(known) = &evidence else { return };
        if let Some(stage) = status.stage.and_then(|stage| self.plan.stages.get(stage)) {
            let is_good = known.gates.iter().all(|gate| gate.ok == Some(true));
            let waits = [("min_healthy", known.healthy < stage.min_healthy), ("gates", !is_good)];
            status.waits_for.extend(waits.into_iter().filter_map(|(name, is_so)| is_so.then_some(name)));
        }
        status.evidence = evidence;
    }
}

/// Why a rollout does not go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseView {
    /// Since when.
    pub at: Timestamp,
    /// Who paused it; `None` for the cluster.
    pub by: Option<PartyView>,
    /// Why.
    pub comment: String,
}

/// A stage that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedView {
    /// When.
    pub at: Timestamp,
    /// Who ended it; `None` for the cluster.
    pub by: Option<PartyView>,
    /// By what evidence; `None` if a person has ended it.
    pub evidence: Option<Evidence>,
}

/// Who did something to a rollout; `None` for the cluster.
pub(crate) fn party_of(state: &State, actor: &Actor) -> Option<Party> {
    match actor {
        Actor::Cluster => None,
        Actor::Root => Some(Party::Root),
        Actor::Key(id) => {
            let person = state.access_key(id).and_then(|key| key.person);
            Some(Party::Key { id: id.clone(), person })
        }
        Actor::Machine(machine) => Some(Party::Machine(machine.clone())),
    }
}

/// A rollout as a client sees it, by a time of the log. `party`: how the client sees somebody.
pub(crate) fn of(
    state: &State,
    (change, rollout): (&Change, &Rollout),
    now: Timestamp,
    party: &impl Fn(&Party) -> PartyView,
) -> RolloutView {
    let by = |actor: &Actor| party_of(state, actor).as_ref().map(party);
    let status = Running::of(change, rollout).map(|running| {
        let Running { progress, pace, .. } = running;
        let passed = progress.passed.iter().map(|passed| PassedView {
            at: passed.at,
            by: by(&passed.by),
            evidence: (passed.by == Actor::Cluster).then_some(passed.evidence),
        });
        let paused = pace.paused.as_ref().map(|paused| PauseView {
            at: paused.at,
            by: by(&paused.by),
            comment: paused.comment.clone(),
        });
        RolloutStatus {
            stage: rollout.stage(),
            begun_at: progress.begun_at,
            since: pace.since,
            paused,
            passed: passed.collect(),
            evidence: None,
            hides_details: false,
            watches: None,
            waits_for: waits_for(running, now),
        }
    });
    RolloutView { plan: rollout.plan.clone(), status }
}

/// What a rollout waits for, as far as the state tells.
fn waits_for(running: Running<'_>, now: Timestamp) -> Vec<&'static str> {
    let waits = [
        ("resume", running.pace.paused.is_some()),
        ("time", running.until().is_some_and(|until| now < until)),
        ("end", running.is_complete()),
    ];
    waits.into_iter().filter_map(|(name, is_so)| is_so.then_some(name)).collect()
}
