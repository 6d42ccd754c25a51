//! When the cluster itself applies change requests and takes them back: what is due, what leaves it to the cluster, and
//! what the cluster could not do.
//!
//! **Invariants:** the log's time decides, and not the leader's clock. What a leader finds out to be impossible ends only when
//! it is due, with a record that says why.

use std::sync::Arc;

use super::{
    KnownParty,
    decide::{ActionContext, succeeding},
};
use crate::{Edit, State};
use concord_model::{
    access_key::{Author, KeyId},
    command::{Outcome, StepOutcome, source::Source},
    error::{ChangeBound, NotDue, Rejection},
    key::Key,
    limits::{EDITION_AGE_US_MAX, FAILURE_BYTES_MAX, REVERT_AFTER_S_MAX},
    system::{
        SystemRecord,
        change::{
            ApplyMode, Change, ChangeDigest, ChangeId, CloseReason, Failure, Party, Phase, Revert, Timing,
        },
        environment::DEFAULT_ENVIRONMENT,
    },
    time::Timestamp,
};

/// What the cluster is to do with a change request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    /// Apply it.
    Apply,
    /// Take it back.
    Revert,
}

/// A change request whose time has come.
#[derive(Debug, Clone, Copy)]
pub struct Due<'s> {
    /// What is to be done.
    pub deed: Deed,
    /// Since when.
    pub at: Timestamp,
    /// Its record.
    pub record: &'s Arc<SystemRecord>,
}

/// Rejects times that no edition has. `at`: the time of the entry.
pub(super) fn expect_timing(timing: &Timing, at: Timestamp) -> Result<(), Rejection> {
    let is_window = timing.window.is_none_or(|window| {
        let last = Timestamp(at.0.saturating_add(EDITION_AGE_US_MAX));
        window.not_before < window.not_after && (at.0 + 1..=last.0).contains(&window.not_after.0)
    });
    if !is_window {
        return Err(Rejection::ChangeTooLarge(ChangeBound::Schedule));
    }
    if timing.revert_after_s.is_some_and(|seconds| !(1..=REVERT_AFTER_S_MAX).contains(&seconds)) {
        return Err(Rejection::ChangeTooLarge(ChangeBound::RevertAfter));
    }
    Ok(())
}

/// A failure whose text is not too long.
fn bounded(failure: &Failure) -> Failure {
    let cut = |text: &str, bytes: usize| {
        let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
        text[..end.unwrap_or(0)].to_owned()
    };
    let code = cut(&failure.code, FAILURE_BYTES_MAX / 8);
    Failure { text: cut(&failure.text, FAILURE_BYTES_MAX - code.len()), code }
}

impl State {
    /// What the cluster is to do by itself at a time: reverts, then applies, each by their time, then what has passed the last
    /// stage of its rollout. Of change requests that wait
    /// for approval it looks only at those that have one. The leader knows more: permissions, validation.
    pub fn due_changes(&self, now: Timestamp) -> impl Iterator<Item = Due<'_>> {
        let found = move |deed, at: Timestamp, id: &Key| {
            let record = self.change_record(id.as_str())?;
            (at <= now).then_some(Due { deed, at, record })
        };
        let reverts = self.changes.armed().map_while(move |(at, id)| found(Deed::Revert, *at, id));
        let applies = self.changes.due().map_while(move |(at, id)| found(Deed::Apply, *at, id));
        let is_free = |environments: &[Key]| {
            let rules = |name: &Key| {
                self.environment(name.as_str()).or_else(|| self.environment(DEFAULT_ENVIRONMENT))
            };
            let asks = |name: &Key| rules(name)?.environment().map(|rules| rules.approvals);
            environments.iter().all(|name| asks(name).unwrap_or(0) == 0)
        };
        let unasked = self.changes.due_unasked(now, is_free);
        let applies = applies.chain(unasked.filter_map(move |(_, at, id)| found(Deed::Apply, *at, id)));
        let complete = self.running_rollouts().filter(|(_, running)| running.is_complete());
        let rolled_out = complete.filter_map(move |(id, running)| found(Deed::Apply, running.pace.since, id));
        let is_ready = move |due: &Due<'_>| {
            let change = due.record.change();
            let is_over =
                |change: &Change| change.edition.timing.window.is_some_and(|window| window.not_after <= now);
            change.is_some_and(|change| match change.phase {
                // It expires.
                Phase::Open | Phase::Scheduled { .. } if is_over(change) => false,
                // Without its approvals it fails: somebody waits for it.
                Phase::Scheduled { .. } => true,
                Phase::Open => self.approvals(change).suffice(),
                Phase::Rolling { .. } | Phase::Held | Phase::Applied { .. } | Phase::Closed { .. } => false,
            })
        };
        reverts.chain(applies.filter(is_ready)).chain(rolled_out)
    }

    /// Whether the cluster may have something to do by itself some time, without anybody's doing.
    #[must_use]
    pub fn has_timed_changes(&self) -> bool {
        self.changes.has_timed() || self.changes.running_count() > 0
    }

    /// What the cluster could not apply or take back, and when it found out; the last first.
    pub fn failed_changes(&self) -> impl Iterator<Item = (Timestamp, &Arc<SystemRecord>)> {
        self.changes.failed().filter_map(|(at, id)| Some((*at, self.change_record(id.as_str())?)))
    }

    /// Whether the cluster may apply a change request at some time.
    pub(super) fn expect_left_to_cluster(&self, change: &Change) -> Result<(), Rejection> {
        match (&change.phase, change.edition.timing.apply) {
            (Phase::Scheduled { .. } | Phase::Rolling { .. }, _) | (Phase::Open, ApplyMode::WhenApproved) => {
            }
            (Phase::Open, ApplyMode::Manual) => return Err(Rejection::Unauthored),
            (Phase::Held, _) => return Err(Rejection::ChangeHeld),
            (Phase::Applied { .. } | Phase::Closed { .. }, _) => return Err(Rejection::ChangeClosed),
        }
        let is_there = match &change.edition.sender {
            Party::Root => !self.is_root_disabled(),
            Party::Key { id, .. } => self.access_key(id).is_some(),
            // Its session has ended long since. It is enough that its provider still trusts what it trusted then.
            Party::Machine(machine) => self.trusts_since(machine.provider, machine.opened),
        };
        if is_there { Ok(()) } else { Err(Rejection::SenderEnded) }
    }

    /// The access key of the sender of what the cluster applies.
    pub(crate) fn sender_of(&self, source: &Source) -> Option<&KeyId> {
        let Source::Change(of) = source else { return None };
        match &self.change(&of.id)?.edition.sender {
            Party::Root | Party::Machine(_) => None,
            Party::Key { id, .. } => Some(id),
        }
    }

    /// Whether a record that the edition would replace is another one by now.
    pub(super) fn is_schedule_stale(&self, id: &ChangeId, (edition, digest): (u32, &ChangeDigest)) -> bool {
        let can_be = |change: &&Change| matches!(change.phase, Phase::Open | Phase::Scheduled { .. });
        let Some(change) = self.change(id).filter(can_be) else { return false };
        let is_current = (edition, digest) == (change.edition.number, &change.edition.digest);
        let bases = self.change_content(id).map(|(content, _)| &content.bases[..]);
        is_current && bases.is_some_and(|bases| self.failed_guard(bases).is_some())
    }

    /// Leaves a change request to the cluster, which applies it in its window.
    pub(super) fn schedule_change(
        &mut self,
        context: ActionContext<'_>,
        by: KnownParty,
        (edition, digest): (u32, &ChangeDigest),
        edits: &mut Vec<Edit>,
    ) -> Result<StepOutcome, Rejection> {
        let before = self.expect_change(context.id)?;
        let change = before.change().ok_or(Rejection::ChangeNotFound)?;
        match change.phase {
            Phase::Open | Phase::Scheduled { .. } => {}
            Phase::Rolling { .. } => return Err(Rejection::RolloutActive { change: context.id.clone() }),
            Phase::Held => return Err(Rejection::ChangeHeld),
            Phase::Applied { .. } | Phase::Closed { .. } => return Err(Rejection::ChangeClosed),
        }
        if (edition, digest) != (change.edition.number, &change.edition.digest) {
            return Err(Rejection::ChangeDigest);
        }
        let window = match change.edition.timing {
            Timing { apply: ApplyMode::Manual, window: Some(window), .. } => window,
            Timing { .. } => return Err(Rejection::ChangeNotDue(NotDue::NoSchedule)),
        };
        if context.entry.at >= window.not_after {
            return Err(Rejection::ChangeNotDue(NotDue::After(window.not_after)));
        }
        self.approvals(change).refused().map_or(Ok(()), Err)?;
        let phase = Phase::Scheduled { by: by.party, at: context.entry.at };
        let text = Arc::clone(&before.text);
        let record = context.bounded(Some(&before), Change { phase, ..change.clone() }, &text)?;
        self.put_change(Some(before), Some(record), edits);
        Ok(StepOutcome::Changed)
    }

    /// Closes a change request that is due and that the cluster could not apply.
    pub(super) fn fail_change(
        &mut self,
        context: ActionContext<'_>,
        (edition, failure): (u32, &Failure),
        edits: &mut Vec<Edit>,
    ) -> Outcome {
        let entry = context.entry;
        let before = self.expect_change(context.id)?;
        let change = before.change().ok_or(Rejection::ChangeNotFound)?;
        if context.proposal.author != Author::Cluster {
            return Err(Rejection::Unauthored);
        }
        match self.expect_left_to_cluster(change) {
            // That is a reason to fail.
            Ok(()) | Err(Rejection::SenderEnded) => {}
            Err(rejection) => return Err(rejection),
        }
        if edition != change.edition.number {
            return Err(Rejection::ChangeDigest);
        }
        if change.phase == Phase::Open {
            self.approvals(change).refused().map_or(Ok(()), Err)?;
        }
        let begin = change.edition.timing.window.map(|window| window.not_before);
        if let Some(begin) = begin.filter(|begin| entry.at < *begin) {
            return Err(Rejection::ChangeNotDue(NotDue::Before(begin)));
        }
        let reason = CloseReason::Failed(bounded(failure));
        let phase = Phase::Closed { reason, at: entry.at, by: None, comment: String::new() };
        let after = succeeding(&before, Change { phase, ..change.clone() }, entry);
        self.end_change(&before, after, edits);
        Ok(entry.applied(StepOutcome::Changed))
    }

    /// Notes that the cluster can't take a change request back that is due.
    pub(super) fn fail_revert(
        &mut self,
        context: ActionContext<'_>,
        (edition, failure): (u32, &Failure),
        edits: &mut Vec<Edit>,
    ) -> Outcome {
        let entry = context.entry;
        let before = self.expect_change(context.id)?;
        let change = before.change().ok_or(Rejection::ChangeNotFound)?;
        if context.proposal.author != Author::Cluster {
            return Err(Rejection::Unauthored);
        }
        if edition != change.edition.number {
            return Err(Rejection::ChangeDigest);
        }
        let due = match &change.revert {
            Some(Revert::Armed { due, .. }) => *due,
            // A person decides, unless nobody can take it back any more.
            Some(Revert::Held { due, .. }) if !self.is_revert_possible(&before) => *due,
            Some(Revert::Held { .. }) => return Err(Rejection::ChangeHeld),
            Some(
                Revert::ByHand { .. } | Revert::Done { .. } | Revert::Failed { .. } | Revert::Ended { .. },
            )
            | None => {
                return Err(Rejection::ChangeClosed);
            }
        };
        if entry.at < due {
            return Err(Rejection::ChangeNotDue(NotDue::Before(due)));
        }
        let revert = Some(Revert::Failed { at: entry.at, failure: bounded(failure) });
        let after = succeeding(&before, Change { revert, ..change.clone() }, entry);
        self.end_change(&before, after, edits);
        Ok(entry.applied(StepOutcome::Changed))
    }
}
