//! What readers and gates say of the rollouts that run, while this node leads.
//!
//! A word of a gate counts for a rollout only if its key may `report` everything that the change request changes. So nobody
//! ends the rollout of others by the name of their gate, and two keys that use one name do not disturb each other.
//!
//! **Invariants:** only a leader remembers anything, and only of its term. Nothing here is in the log or on a disk: what
//! follows from it is, with the counts.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use smol_str::SmolStr;
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

use super::memory::{About, Full, Memory, Moment, Run, Said, Subject, Taken, Version, Word};
use crate::{access::Authentication, context::Context, request::Principal};
use concord_model::{
    access_key::Verb,
    key::Key,
    record::Revision,
    system::{
        change::{Change, ChangeId, Scope},
        rollout::{Evidence, GateRule, Reader, Rollout},
    },
    time::Timestamp,
};
use concord_state::State;

/// How long a leader waits after something bad for more of it: then one look at the counts is for all.
const GATHER_TIME: Duration = Duration::from_millis(50);

/// What is known of a rollout that runs. Sent between nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvidenceView {
    /// Readers that run well.
    pub healthy: u32,
    /// Readers that say that something is wrong.
    pub failed: u32,
    /// Some of those, the newest first.
    pub failures: Vec<FailureReport>,
    /// The gates of its plan.
    pub gates: Vec<GateView>,
}

/// A reader that says that something is wrong. Sent between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureReport {
    /// Its name.
    pub reader: String,
    /// Which of the programs with this name; empty if it has not said so.
    pub instance: String,
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// What it says of it.
    pub detail: String,
    /// The revision that it is about; 0 of a candidate, which has none.
    pub revision: Revision,
    /// When.
    pub at: Timestamp,
}

/// A gate of a plan. Sent between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateView {
    /// Its name.
    pub name: String,
    /// Whether all is well; `None` if it has said nothing for as long as its word counts.
    pub ok: Option<bool>,
    /// What it has seen, as it said last.
    pub evidence: String,
    /// When it has said something last.
    pub at: Option<Timestamp>,
}

/// What readers say of a config, as the leader knows it. Sent between nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ConfigSaid {
    /// Readers that run well with its proven data.
    pub(super) healthy: u32,
    /// Readers that say that something is wrong with them.
    pub(super) failed: u32,
    /// A failure of each of those, of a thousand at most.
    pub(super) failures: Vec<FailureReport>,
    /// What each of the named readers says, in their order.
    pub(super) said: Vec<Option<Said>>,
}

/// What the leader knows of the rollouts that run.
#[derive(Debug)]
pub(crate) struct EvidenceStore {
    cx: Arc<Context>,
    authentication: Arc<Authentication>,
    memory: Mutex<Memory>,
    has_changed: Notify,
}

/// The run of a rollout that has begun.
fn run_of(rollout: &Rollout) -> Option<Run> {
    rollout.progress.as_ref().map(|progress| (rollout.edition, progress.begun_at))
}

/// What a change request changes.
fn scope_of<'s>(state: &'s State, change: &ChangeId) -> Option<&'s Scope> {
    state.change(change).map(|change: &Change| &change.edition.scope)
}

/// Whether a word counts for a gate.
fn is_fresh(rule: &GateRule, word: &Word, now: Instant) -> bool {
    now.saturating_duration_since(word.at.now) < Duration::from_secs(u64::from(rule.fresh_s))
}

impl EvidenceStore {
    pub(crate) fn new(cx: &Arc<Context>, authentication: &Arc<Authentication>) -> Self {
        let (cx, authentication) = (Arc::clone(cx), Arc::clone(authentication));
        Self { cx, authentication, memory: Mutex::default(), has_changed: Notify::new() }
    }

    /// What this node remembers of the term in which it leads; nothing if it does not lead.
    fn memory(&self) -> MutexGuard<'_, Memory> {
        let own_term = self.cx.consensus().map_or(0, |consensus| {
            let leadership = consensus.leadership();
            let known = leadership.borrow();
            if known.leader_id == Some(self.cx.node_id()) { known.term } else { 0 }
        });
        // Nothing panics while it is held.
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.begin_term(own_term);
        memory
    }

    /// Whether a key counts for a rollout: it may report everything that the change request changes.
    fn counts(&self, by: &Principal, scope: Option<&Scope>) -> bool {
        let known = self.authentication.current(by);
        known.is_ok_and(|known| scope.is_some_and(|scope| known.may_in(Verb::Report, scope)))
    }

    /// The evidence for a rollout that runs: nothing on a node that does not lead.
    pub(crate) fn counted(&self, change: &ChangeId, rollout: &Rollout) -> Evidence {
        let Some(run) = run_of(rollout) else { return Evidence::default() };
        let (state, now) = (self.cx.applied(), Instant::now());
        let scope = scope_of(&state, change);
        let mut memory = self.memory();
        let (healthy, failed) = memory.count(change, run, now);
        let is_good = |rule: &&GateRule| {
            let word = memory.word(&rule.name, |by| self.counts(by, scope));
            word.is_some_and(|word| word.is_ok && is_fresh(rule, word, now))
        };
        let gates = rollout.plan.gates.iter().filter(is_good).count();
        Evidence { healthy, failed, gates: u32::try_from(gates).unwrap_or(u32::MAX) }
    }

    /// A gate of a rollout's plan that says that something is wrong, as long as its word counts. One whose word is older
    /// is not good either, so nothing advances, but it ends nothing.
    pub(crate) fn bad_gate(&self, change: &ChangeId, rollout: &Rollout) -> Option<String> {
        let (state, now) = (self.cx.applied(), Instant::now());
        let scope = scope_of(&state, change);
        let memory = self.memory();
        let is_bad = |rule: &&GateRule| {
            let word = memory.word(&rule.name, |by| self.counts(by, scope));
            word.is_some_and(|word| !word.is_ok && is_fresh(rule, word, now))
        };
        rollout.plan.gates.iter().find(is_bad).map(|rule| rule.name.clone())
    }

    /// The evidence for a rollout that runs, as a client is shown it.
    pub(crate) fn shown(&self, change: &ChangeId, rollout: &Rollout) -> EvidenceView {
        let (state, now) = (self.cx.applied(), Instant::now());
        let scope = scope_of(&state, change);
        let mut memory = self.memory();
        let gate = |rule: &GateRule| {
            let word = memory.word(&rule.name, |by| self.counts(by, scope));
            GateView {
                name: rule.name.clone(),
                ok: word.filter(|word| is_fresh(rule, word, now)).map(|word| word.is_ok),
                evidence: word.map(|word| word.evidence.clone()).unwrap_or_default(),
                at: word.map(|word| word.at.time),
            }
        };
        let gates = rollout.plan.gates.iter().map(gate).collect();
        let Some(run) = run_of(rollout) else { return EvidenceView { gates, ..EvidenceView::default() } };
        let (healthy, failed) = memory.count(change, run, now);
        EvidenceView { healthy, failed, failures: memory.failures(change, run, now), gates }
    }

    /// Waits until a reader has failed, or a gate says that something is wrong, and some milliseconds more for others. What
    /// came while nobody waited ends the next wait.
    pub(crate) async fn changed(&self) {
        self.has_changed.notified().await;
        sleep(GATHER_TIME).await;
    }

    /// Takes the report of an instance of a reader about a rollout that runs; `failure`: what it says of it, if it does not run
    /// well. It is dropped if the reader does not see the candidates, so that it says nothing about them.
    ///
    /// # Errors
    /// When there is no room.
    pub(super) fn report(
        &self,
        (change, rollout): (&ChangeId, &Rollout),
        (reader, instance): (&Reader, &SmolStr),
        failure: Option<&str>,
        time: Timestamp,
    ) -> Result<Taken, Full> {
        let Some(run) = run_of(rollout) else { return Ok(Taken::Dropped) };
        if !rollout.has(change, reader) {
            return Ok(Taken::Dropped);
        }
        let at = Moment { now: Instant::now(), time };
        let taken = self.memory().report(About::Rollout(change, run), (reader, instance), failure, at)?;
        if taken == Taken::News {
            self.has_changed.notify_one();
        }
        Ok(taken)
    }

    /// Takes the report of an instance of a reader about the current revision of a config, outside rollouts.
    ///
    /// # Errors
    /// When there is no room, or the key that sends it has used up its part.
    pub(super) fn report_of_config(
        &self,
        (definition, key, revision): (u64, &Key, Revision),
        by: &Principal,
        (reader, instance): (&Reader, &SmolStr),
        (failure, time): (Option<&str>, Timestamp),
    ) -> Result<Taken, Full> {
        let about = About::Config { definition, key, revision, by: &by.id };
        let at = Moment { now: Instant::now(), time };
        self.memory().report(about, (reader, instance), failure, at)
    }

    /// What readers have said of the current revision of a config. Those that see a candidate, of that.
    pub(super) fn said(
        &self,
        (definition, key, revision): (u64, &Key, Revision),
        rollout: Option<(&ChangeId, &Rollout)>,
        readers: &[(String, bool)],
    ) -> ConfigSaid {
        let now = Instant::now();
        let mut memory = self.memory();
        let (healthy, failed, failures) = memory.of_config((definition, key, revision), now);
        let on = |side: bool| {
            let of_side = readers.iter().filter(move |(_, sees_candidate)| *sees_candidate == side);
            of_side.map(|(reader, _)| reader.as_str())
        };
        let subject = Subject::Config(definition, key.clone());
        let mut proven = memory.said(&subject, Version::Revision(revision), on(false), now).into_iter();
        let candidate = rollout.and_then(|(change, rollout)| {
            let (subject, run) = (Subject::Rollout(change.clone()), run_of(rollout)?);
            Some(memory.said(&subject, Version::Run(run), on(true), now))
        });
        let mut candidate = candidate.unwrap_or_default().into_iter();
        let said = readers.iter().map(|(_, sees_candidate)| {
            let side = if *sees_candidate { &mut candidate } else { &mut proven };
            side.next().flatten()
        });
        ConfigSaid { healthy, failed, failures, said: said.collect() }
    }

    /// Takes what a key says of a gate. Returns whether it is something else than it has said before.
    ///
    /// # Errors
    /// When there is no room.
    pub(super) fn say(
        &self,
        gate: &str,
        (by, is_ok, evidence): (&Principal, bool, String),
        time: Timestamp,
    ) -> Result<bool, Full> {
        let state = self.cx.applied();
        let is_needed =
            |gate: &str, by: &Principal| is_waited_for(&state, gate, |scope| self.counts(by, scope));
        let at = Moment { now: Instant::now(), time };
        let is_news = self.memory().say(gate, (by, is_ok, evidence), at, is_needed)?;
        if !is_ok {
            self.has_changed.notify_one();
        }
        Ok(is_news)
    }

    /// Forgets what counts no more, and what is about rollouts that do not run; everything on a node that does not lead.
    pub(crate) fn tidy(&self, state: &State) {
        let runs = |change: &ChangeId| state.rollout(change).is_some_and(Rollout::is_running);
        self.memory().tidy(Instant::now(), runs);
    }
}

/// Whether a rollout that runs has a gate of this name, and counts the key of a word.
fn is_waited_for(state: &State, gate: &str, counts: impl Fn(Option<&Scope>) -> bool) -> bool {
    state.running_rollouts().any(|(id, running)| {
        running.rollout.plan.gates.iter().any(|rule| rule.name == gate)
            && ChangeId::parse(id.as_str()).is_some_and(|change| counts(scope_of(state, &change)))
    })
}
