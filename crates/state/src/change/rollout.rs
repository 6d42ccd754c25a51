//! Rollouts: which may begin and go on, what is rejected while one runs, and what a reader sees.
//!
//! | action | by | conditions, in addition to the stage that it names |
//! |---|---|---|
//! | begin | who may apply it; the cluster, if it is left to it | those of applying; configs that exist and are in no rollout |
//! | advance | the cluster | not paused, its time, its evidence, no freeze |
//! | advance | a person | no freeze |
//! | pause, resume | a person; the cluster only pauses | |
//!
//! It ends as any change request does: it is applied by the cluster after its last stage, or closed.
//!
//! **Invariants:** a rollout has a record of its own exactly while its change request is pending, and runs exactly while
//! that is rolling. The record, which has the candidates, is written when readers come in or go out, and no more often. A config is in one rollout at most, and nothing else changes it meanwhile, nor the schema, the unique
//! fields or the existence of its definition.

use std::sync::Arc;

use super::decide::{ActionContext, fair_part};
use crate::{Edit, State, apply::EntryContext, environment::ChangeTime};
use concord_model::{
    access_key::Author,
    command::{Command, Outcome, RolloutStage, StepOutcome, source::Guard},
    error::{Rejection, RolloutBound, RolloutWait},
    key::Key,
    limits::ROLLOUTS_MAX,
    sabotage,
    system::{
        SystemBody, SystemRecord,
        change::{Change, ChangeDigest, ChangeId, Party, Phase, Scope},
        pace::{Actor, Pace, RolloutPause},
        rollout::{Candidate, Evidence, PassedStage, Plan, Progress, Reader, Rollout, Running},
    },
    time::Timestamp,
};

/// The candidate of a config that a reader sees.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'s> {
    /// The name of the change request.
    pub change: &'s Key,
    /// Its edition.
    pub edition: u32,
    /// What the config will be.
    pub candidate: &'s Candidate,
}

/// Who somebody is in the record of a rollout.
fn actor(party: Option<Party>) -> Actor {
    match party {
        None => Actor::Cluster,
        Some(Party::Root) => Actor::Root,
        Some(Party::Key { id, .. }) => Actor::Key(id),
        Some(Party::Machine(machine)) => Actor::Machine(machine),
    }
}

/// Whether a reader is in the next stage and this node's clock says that the present one is over, for the bug
/// `stage-by-own-clock`.
#[cfg(feature = "sabotage")]
fn is_in_by_own_clock(running: Option<Running<'_>>, change: &ChangeId, reader: &Reader) -> bool {
    let Some(running) = running.filter(|_| sabotage::is("stage-by-own-clock")) else { return false };
    let is_over = running.until().is_some_and(|until| until <= sabotage::clock());
    let mut next = running.rollout.clone();
    if let (Some(progress), true) = (&mut next.progress, is_over) {
        let (at, evidence, by) = (running.pace.since, Evidence::default(), Actor::Cluster);
        progress.passed.push(PassedStage { at, evidence, by });
        return next.has(change, reader);
    }
    false
}

/// Never in this build.
#[cfg(not(feature = "sabotage"))]
const fn is_in_by_own_clock(_: Option<Running<'_>>, _: &ChangeId, _: &Reader) -> bool {
    false
}

/// Rejects the end of a stage that lacks its time or its evidence.
fn expect_evidence(running: Running<'_>, at: Timestamp, evidence: Evidence) -> Result<(), Rejection> {
    let plan = &running.rollout.plan;
    let (stage, until) = running.stage().zip(running.until()).ok_or(Rejection::RolloutStage)?;
    if running.pace.paused.is_some() {
        return Err(Rejection::RolloutWaits(RolloutWait::Paused));
    }
    if at < until && !sabotage::is("stage-early") {
        return Err(Rejection::RolloutWaits(RolloutWait::Time(until)));
    }
    let gates = u32::try_from(plan.gates.len()).unwrap_or(u32::MAX);
    let is_well = evidence.healthy >= stage.min_healthy
        && evidence.failed <= plan.max_failed
        && evidence.gates == gates;
    if !is_well && !sabotage::is("stage-without-evidence") {
        return Err(Rejection::RolloutWaits(RolloutWait::Evidence));
    }
    Ok(())
}

/// The configs and definitions that a command would write: a definition with `None` for its key.
fn written(command: &Command) -> Option<(&Key, Option<&Key>)> {
    match command {
        Command::WriteConfig { definition, key, .. } | Command::DeleteConfig { definition, key, .. } => {
            Some((definition, Some(key)))
        }
        Command::SetSchema { key, .. }
        | Command::SetUnique { key, .. }
        | Command::DeleteDefinition { key, .. } => Some((key, None)),
        // Index entries, protection and what is no content do no harm to a candidate.
        Command::CreateDefinition { .. }
        | Command::SetIndexes { .. }
        | Command::SetProtection { .. }
        | Command::Compact { .. }
        | Command::BuildIndex { .. }
        | Command::RaiseFeatureLevel { .. }
        | Command::Forget { .. }
        | Command::Access(_)
        | Command::UndeleteDefinition(_)
        | Command::SkipRevisions { .. }
        | Command::Audit(_)
        | Command::System(_) => None,
        // Their steps are looked at.
        Command::Batch(_) | Command::Transaction(_) => None,
    }
}

impl State {
    /// The record of the rollout of a change request.
    #[must_use]
    pub fn rollout_record(&self, change: &str) -> Option<&Arc<SystemRecord>> {
        self.changes.rollout(change)
    }

    /// The rollout of a change request.
    #[must_use]
    pub fn rollout(&self, change: &ChangeId) -> Option<&Rollout> {
        self.rollout_record(change.as_str())?.rollout()
    }

    /// The records of all rollouts, by the id of their change request.
    pub fn rollouts(&self) -> impl Iterator<Item = &Arc<SystemRecord>> {
        self.changes.rollouts()
    }

    /// Those that run, by the id of their change request.
    pub fn running_rollouts(&self) -> impl Iterator<Item = (&Key, Running<'_>)> {
        self.changes.running().filter_map(|id| {
            let change = self.change_record(id.as_str())?.change()?;
            Some((id, Running::of(change, self.rollout_record(id.as_str())?.rollout()?)?))
        })
    }

    /// The rollout of a change request, if it runs.
    #[must_use]
    pub fn running_rollout(&self, change: &ChangeId) -> Option<Running<'_>> {
        Running::of(self.change(change)?, self.rollout(change)?)
    }

    /// The candidate of a config that a reader sees. Costs one comparison while no rollout runs.
    #[must_use]
    pub fn seen_candidate(&self, definition: u64, key: &Key, reader: &Reader) -> Option<Seen<'_>> {
        let id = self.changes.rollout_with(definition, Some(key))?;
        let rollout = self.rollout_record(id.as_str())?.rollout()?;
        let change = ChangeId::parse(id.as_str())?;
        let is_in = rollout.has(&change, reader)
            || is_in_by_own_clock(self.running_rollout(&change), &change, reader);
        let candidate = rollout.candidate(definition, key).filter(|_| is_in)?;
        if sabotage::is("rollout-torn") && rollout.candidates.first() != Some(candidate) {
            return None;
        }
        Some(Seen { change: id, edition: rollout.edition, candidate })
    }

    /// Why a command may not write what it writes, if a rollout has it. `own`: the change request that is applied.
    pub(super) fn refused_by_rollout(&self, command: &Command, own: Option<&ChangeId>) -> Option<Rejection> {
        if self.changes.running_count() == 0 || sabotage::is("rollout-overwritten") {
            return None;
        }
        let of_part = |part: &Command| {
            let (definition, key) = written(part)?;
            let definition = self.definition(definition.as_str())?.definition.id;
            let change = ChangeId::parse(self.changes.rollout_with(definition, key)?.as_str())?;
            (own != Some(&change)).then_some(Rejection::RolloutActive { change })
        };
        let in_step = |index: u32, part: &Command| {
            of_part(part).map(|rejection| Rejection::InBatch { index, rejection: rejection.into() })
        };
        if let Command::Batch(steps) = command {
            return (0..).zip(steps).find_map(|(index, step)| in_step(index, &step.command));
        }
        if let Command::Transaction(transaction) = command {
            return transaction.steps.iter().find_map(|(index, step)| in_step(*index, &step.command));
        }
        of_part(command)
    }

    /// Whether a change request may be applied as far as its rollout is concerned.
    pub(super) fn expect_rolled_out(&self, id: &ChangeId, author: &Author) -> Result<(), Rejection> {
        match (self.rollout(id), self.running_rollout(id)) {
            (None, _) => Ok(()),
            (_, Some(running)) if running.is_complete() && *author == Author::Cluster => Ok(()),
            (_, Some(_)) => Err(Rejection::RolloutActive { change: id.clone() }),
            (Some(_), None) => Err(Rejection::RolloutStage),
        }
    }

    /// Puts the plan of an edition, which was checked.
    pub(super) fn plan_rollout(
        &mut self,
        context: ActionContext<'_>,
        (edition, plan): (u32, &Plan),
        edits: &mut Vec<Edit>,
    ) {
        self.put_rollout(context, Rollout::planned(edition, plan.clone()), edits);
    }

    fn put_rollout(&mut self, context: ActionContext<'_>, rollout: Rollout, edits: &mut Vec<Edit>) {
        let before = self.rollout_record(context.id.as_str()).cloned();
        let record = SystemRecord {
            name: context.id.key().clone(),
            body: SystemBody::Rollout(Box::new(rollout)),
            text: "{}".into(),
            created_at: before.as_ref().map_or(context.entry.at, |before| before.created_at),
            modified_at: context.entry.at,
            revision: context.entry.revision,
        };
        self.put_system_record(before, Some(record), edits);
    }

    /// Drops the rollout of a change request that has ended.
    pub(super) fn drop_rollout(&mut self, change: &Key, edits: &mut Vec<Edit>) {
        if let Some(record) = self.rollout_record(change.as_str()).cloned() {
            self.put_system_record(Some(record), None, edits);
        }
    }

    /// Rejects a rollout that can't begin at a time. Returns the record of its change request, and its plan.
    ///
    /// # Errors
    /// What the log would reject it with.
    pub fn expect_beginnable(
        &self,
        at: Timestamp,
        (id, edition, digest): (&ChangeId, u32, &ChangeDigest),
        candidates: &[Candidate],
        author: &Author,
    ) -> Result<(Arc<SystemRecord>, Rollout), Rejection> {
        let before = self.expect_change(id)?;
        let change = before.change().ok_or(Rejection::ChangeNotFound)?;
        self.expect_to_apply(change, (edition, digest))?;
        if change.is_rolling() {
            return Err(Rejection::RolloutActive { change: id.clone() });
        }
        let rollout = self.rollout(id).filter(|rollout| rollout.edition == edition);
        let rollout = rollout.ok_or(Rejection::RolloutStage)?.clone();
        let time = ChangeTime { first: at, last: at };
        self.expect_due(change, author, time)?;
        let Scope::Definitions(definitions) = &change.edition.scope else {
            return Err(Rejection::RolloutInvalid(RolloutBound::NotUpdates));
        };
        self.frozen_definitions(time, definitions).map_or(Ok(()), Err)?;
        let (all, own) = (self.changes.running_count(), self.changes.running_of(&change.edition));
        let most = ROLLOUTS_MAX as u64;
        if all >= most || own >= fair_part(most, all - own).max(1) {
            return Err(Rejection::TooManyRollouts);
        }
        self.expect_candidates(id, candidates)?;
        Ok((before, rollout))
    }

    /// Begins a rollout.
    pub(super) fn begin_rollout(
        &mut self,
        context: ActionContext<'_>,
        (edition, digest): (u32, &ChangeDigest),
        candidates: &[Candidate],
        edits: &mut Vec<Edit>,
    ) -> Outcome {
        let (entry, author) = (context.entry, &context.proposal.author);
        let of = (context.id, edition, digest);
        let (before, rollout) = self.expect_beginnable(entry.at, of, candidates, author)?;
        let change = before.change().ok_or(Rejection::ChangeNotFound)?;
        let scheduled_by = match &change.phase {
            Phase::Scheduled { by, .. } => Some(by.clone()),
            Phase::Open
            | Phase::Held
            | Phase::Rolling { .. }
            | Phase::Applied { .. }
            | Phase::Closed { .. } => None,
        };
        let begun_at = entry.at;
        let pace = Pace { since: begun_at, by: self.actor_of(context), paused: None };
        let by = self.party(author).map(|by| by.party);
        let phase = Phase::Rolling { by, at: begun_at, scheduled_by, pace };
        let text = Arc::clone(&before.text);
        let record = context.bounded(Some(&before), Change { phase, ..change.clone() }, &text)?;
        self.put_change(Some(before), Some(record), edits);
        let progress = Progress { begun_at, passed: Vec::new() };
        let running = Rollout { progress: Some(progress), candidates: candidates.to_vec(), ..rollout };
        self.put_rollout(context, running, edits);
        Ok(entry.applied(StepOutcome::Changed))
    }

    /// Rejects candidates that are not exactly the configs that the edition updates, or are in another rollout.
    fn expect_candidates(&self, id: &ChangeId, candidates: &[Candidate]) -> Result<(), Rejection> {
        Rollout::check_candidates(candidates).map_err(Rejection::RolloutInvalid)?;
        let (content, _) = self.change_content(id).ok_or(Rejection::ChangeNotFound)?;
        // The bases hold: so the configs exist.
        let is_updated = |candidate: &Candidate| {
            content.bases.iter().any(|base| {
                matches!(base, Guard::Config { definition, key, revision: Some(_) }
                    if (*definition, key) == (candidate.definition, &candidate.key))
            })
        };
        if candidates.len() != content.bases.len() || !candidates.iter().all(is_updated) {
            return Err(Rejection::RolloutInvalid(RolloutBound::NotUpdates));
        }
        let other = candidates
            .iter()
            .find_map(|candidate| self.changes.rollout_with(candidate.definition, Some(&candidate.key)));
        match other.and_then(|other| ChangeId::parse(other.as_str())) {
            Some(change) => Err(Rejection::RolloutActive { change }),
            None => Ok(()),
        }
    }

    /// The rollout that an action names, if it runs and is at that stage.
    fn expect_stage(&self, id: &ChangeId, at: RolloutStage) -> Result<Running<'_>, Rejection> {
        self.expect_change(id)?;
        self.running_rollout(id).filter(|running| running.at() == at).ok_or(Rejection::RolloutStage)
    }

    /// Lets a rollout go on in another way. Its change request gets the revision: who follows it learns of the step.
    fn set_pace(&mut self, context: ActionContext<'_>, pace: Pace, edits: &mut Vec<Edit>) -> Outcome {
        let before = self.expect_change(context.id)?;
        let mut change = before.change().ok_or(Rejection::ChangeNotFound)?.clone();
        let Phase::Rolling { pace: of_change, .. } = &mut change.phase else {
            return Err(Rejection::RolloutStage);
        };
        *of_change = pace;
        let record = context.bounded(Some(&before), change, &Arc::clone(&before.text))?;
        self.put_change(Some(before), Some(record), edits);
        Ok(context.entry.applied(StepOutcome::Changed))
    }

    fn actor_of(&self, context: ActionContext<'_>) -> Actor {
        actor(self.party(&context.proposal.author).map(|known| known.party))
    }

    /// Ends a stage.
    pub(super) fn advance_rollout(
        &mut self,
        context: ActionContext<'_>,
        at: RolloutStage,
        evidence: Evidence,
        edits: &mut Vec<Edit>,
    ) -> Outcome {
        let (entry, author) = (context.entry, &context.proposal.author);
        let running = self.expect_stage(context.id, at)?;
        running.stage().ok_or(Rejection::RolloutStage)?;
        let change = self.change(context.id).ok_or(Rejection::ChangeNotFound)?;
        // No more readers see what is rejected, or lacks an approval by now, whoever ends the stage.
        self.approvals(change).refused().map_or(Ok(()), Err)?;
        if let Scope::Definitions(definitions) = &change.edition.scope {
            let time = ChangeTime { first: entry.at, last: entry.at };
            self.frozen_definitions(time, definitions).map_or(Ok(()), Err)?;
        }
        if *author == Author::Cluster {
            expect_evidence(running, entry.at, evidence)?;
        }
        let mut progress = running.progress.clone();
        progress.passed.push(PassedStage { at: entry.at, evidence, by: self.actor_of(context) });
        let rollout = Rollout { progress: Some(progress), ..running.rollout.clone() };
        let pace = Pace { since: entry.at, by: self.actor_of(context), paused: None };
        let applied = self.set_pace(context, pace, edits)?;
        self.put_rollout(context, rollout, edits);
        Ok(applied)
    }

    /// Lets a rollout wait for somebody.
    pub(super) fn pause_rollout(
        &mut self,
        context: ActionContext<'_>,
        at: RolloutStage,
        comment: &str,
        edits: &mut Vec<Edit>,
    ) -> Outcome {
        let pace = self.expect_stage(context.id, at)?.pace.clone();
        if pace.paused.is_some() {
            return Err(Rejection::RolloutWaits(RolloutWait::Paused));
        }
        let (at, by) = (context.entry.at, self.actor_of(context));
        let paused = Some(RolloutPause { at, by, comment: comment.to_owned() });
        self.set_pace(context, Pace { paused, ..pace }, edits)
    }

    /// Lets a rollout that waits go on.
    pub(super) fn resume_rollout(
        &mut self,
        context: ActionContext<'_>,
        at: RolloutStage,
        edits: &mut Vec<Edit>,
    ) -> Outcome {
        if self.expect_stage(context.id, at)?.pace.paused.is_none() {
            return Err(Rejection::RolloutStage);
        }
        let change = self.change(context.id).ok_or(Rejection::ChangeNotFound)?;
        self.approvals(change).refused().map_or(Ok(()), Err)?;
        let by = self.actor_of(context);
        self.set_pace(context, Pace { since: context.entry.at, by, paused: None }, edits)
    }

    /// Ends every rollout that runs, without its change request: nobody sees a candidate any more. Their change requests are
    /// held by the same entry.
    pub(super) fn hold_rollouts(&mut self, context: EntryContext, edits: &mut Vec<Edit>) {
        let running = |record: &&Arc<SystemRecord>| record.rollout().is_some_and(Rollout::is_running);
        let running: Vec<Arc<SystemRecord>> = self.rollouts().filter(running).cloned().collect();
        for before in running {
            let Some(rollout) = before.rollout() else { continue };
            let planned = Rollout::planned(rollout.edition, rollout.plan.clone());
            let after = SystemRecord {
                body: SystemBody::Rollout(Box::new(planned)),
                modified_at: context.at,
                revision: context.revision,
                ..(*before).clone()
            };
            self.put_system_record(Some(before), Some(after), edits);
        }
    }

    /// A rollout that no state has: its change request is not pending, has another edition, or rolls although it does not
    /// run, or the other way round; or it lacks its candidates. Or a change request that rolls without a rollout.
    pub(crate) fn first_damaged_rollout(&self) -> Option<&Key> {
        let is_sound = |record: &&Arc<SystemRecord>| {
            let change = self.change_record(record.name.as_str()).and_then(|record| record.change());
            let (Some(rollout), Some(change)) = (record.rollout(), change) else { return false };
            let has_candidates = Rollout::check_candidates(&rollout.candidates).is_ok();
            let is_there = |candidate: &Candidate| {
                let found = self.definition_by_id(candidate.definition);
                found.is_some_and(|found| found.config(candidate.key.as_str()).is_some())
            };
            change.is_pending()
                && rollout.plan.check().is_ok()
                && rollout.edition == change.edition.number
                && rollout.is_running() == change.is_rolling()
                && rollout.is_running() == has_candidates
                && rollout.candidates.iter().all(is_there)
        };
        let damaged = self.rollouts().find(|record| !is_sound(record));
        let lacks = |record: &&Arc<SystemRecord>| {
            record.change().is_some_and(Change::is_rolling)
                && self.rollout_record(record.name.as_str()).is_none()
        };
        damaged.or_else(|| self.pending_changes().find(lacks)).map(|record| &record.name)
    }
}
