//! What a watch tells of change requests.
//!
//! An event is about a change request as it was after it. Names of persons and environments are those of now: a watch of
//! old events is read by people of today.
//!
//! **Invariant:** an event shows a change request to those who may read everything that it then changed. When an edition
//! changes more than the client may read, one event says that it is gone, and nothing else.

use super::{
    rollout::party_of,
    view::{PartyView, close_reason, party_view, phase_name},
};
use crate::{
    authors::sees_labels,
    editions::{TextOf, environments_of},
    request::Principal,
};
use concord_model::system::{
    SystemRecord,
    change::{Change, ChangeDigest, CloseReason, Opinion, Party, Phase, Revert, RevertedBy},
};
use concord_state::{
    State,
    feed::{ChangeRequestEdit, Event, RolloutStep},
};

/// What happened to a change request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeRequestEvent {
    /// What happened: the type of the event.
    pub kind: &'static str,
    /// Its id.
    pub id: String,
    /// How it is since then. `None` if it is gone, or gone for this client.
    pub change: Option<ChangeRequestThen>,
}

/// The type of an event in which something has changed that no other type names.
const UPDATED: &str = "change_request_updated";
/// The type of an event in which it turns out that a change request can't be taken back. Who deletes a definition for good
/// may have done it, and need not be known to those who read the change request.
const REVERT_FAILED: &str = "change_request_revert_failed";

impl ChangeRequestEvent {
    /// Whether it may be what the author of the event did. An entry about one change request may also change others, of
    /// which a client sees some: of the author and their reason it must learn nothing then.
    #[must_use]
    pub fn is_of_its_author(&self) -> bool {
        self.change.is_some() && self.kind != UPDATED && self.kind != REVERT_FAILED
    }
}

/// A change request as it was after an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeRequestThen {
    /// What it is, in a line.
    pub title: String,
    /// `open`, `scheduled`, `rolling`, `held`, `applied` or `closed`.
    pub phase: &'static str,
    /// Whether it is a write that passed the rules.
    pub is_bypass: bool,
    /// The number of its edition.
    pub edition: u32,
    /// What an approval names.
    pub digest: ChangeDigest,
    /// The environments whose rules it is under.
    pub environments: Vec<String>,
    /// Who did it; `None` for the cluster.
    pub by: Option<PartyView>,
    /// What they wrote; empty for nothing.
    pub comment: String,
    /// Why it was closed.
    pub reason: Option<&'static str>,
}

/// What happened, who did it, and what they wrote.
struct Deed<'a> {
    kind: &'static str,
    by: Option<&'a Party>,
    comment: &'a str,
}

/// What a client may know of the change requests of an event. The state has the event.
pub(crate) fn events(state: &State, principal: &Principal, event: &Event) -> Vec<ChangeRequestEvent> {
    event.change_requests.iter().filter_map(|edit| seen(state, principal, edit)).collect()
}

fn seen(state: &State, principal: &Principal, edit: &ChangeRequestEdit) -> Option<ChangeRequestEvent> {
    let may_read = |change: &&Change| principal.may_see_change(&change.edition.scope);
    let [before, after] =
        [&edit.before, &edit.after].map(|record| record.as_deref().and_then(SystemRecord::change));
    let record = edit.after.as_ref().or(edit.before.as_ref())?;
    let gone = |kind| ChangeRequestEvent { kind, id: record.name.to_string(), change: None };
    match after {
        // That it can no longer be taken back is nobody's deed, and happens to each.
        Some(now) if before.is_some_and(|before| is_over_by_time(before, now)) => None,
        Some(now) if may_read(&now) => {
            let step = edit.rollout.as_ref().map(|step| rollout_deed(state, step));
            let deed = step.as_ref().map_or_else(|| deed(before, now), Step::deed);
            let with_labels = sees_labels(principal, &now.edition.scope);
            let then = ChangeRequestThen {
                title: TextOf::of(record).title,
                phase: phase_name(&now.phase),
                is_bypass: now.is_bypass(),
                edition: now.edition.number,
                digest: now.edition.digest,
                environments: environments_of(state, &now.edition.scope).into_iter().collect(),
                by: deed.by.map(|party| party_view(state, party, with_labels)),
                comment: deed.comment.to_owned(),
                reason: close_reason(&now.phase),
            };
            Some(ChangeRequestEvent { change: Some(then), ..gone(deed.kind) })
        }
        Some(_) => before.filter(may_read).map(|_| gone("change_request_hidden")),
        None => before.filter(may_read).map(|_| gone("change_request_dropped")),
    }
}

/// What was done to a rollout that runs, and by whom.
struct Step<'a> {
    kind: &'static str,
    by: Option<Party>,
    comment: &'a str,
}

impl Step<'_> {
    fn deed(&self) -> Deed<'_> {
        Deed { kind: self.kind, by: self.by.as_ref(), comment: self.comment }
    }
}

fn rollout_deed<'a>(state: &State, step: &'a RolloutStep) -> Step<'a> {
    match step {
        RolloutStep::Advanced(by) => {
            Step { kind: "change_request_advanced", by: party_of(state, by), comment: "" }
        }
        RolloutStep::Paused(paused) => {
            let by = party_of(state, &paused.by);
            Step { kind: "change_request_paused", by, comment: &paused.comment }
        }
        RolloutStep::Resumed(by) => {
            Step { kind: "change_request_resumed", by: party_of(state, by), comment: "" }
        }
    }
}

/// Whether the only difference is that it can no longer be taken back.
fn is_over_by_time(before: &Change, after: &Change) -> bool {
    let is_by_hand = matches!(before.revert, Some(Revert::ByHand { .. }));
    is_by_hand && after.revert.is_none() && *after == Change { revert: None, ..before.clone() }
}

/// What was done to a change request, by its record before and after.
fn deed<'a>(before: Option<&Change>, after: &'a Change) -> Deed<'a> {
    let sender = Some(&after.edition.sender);
    let done = |kind, by| Deed { kind, by, comment: "" };
    let Some(before) = before else {
        return done(
            if after.is_bypass() { "change_request_bypassed" } else { "change_request_created" },
            sender,
        );
    };
    if before.edition.number != after.edition.number {
        return done("change_request_edited", sender);
    }
    if before.phase != after.phase {
        return match &after.phase {
            // Only an edition opens one that was held or scheduled.
            Phase::Open => done("change_request_edited", sender),
            Phase::Scheduled { by, .. } => done("change_request_scheduled", Some(by)),
            // What is done to one that rolls is told by its rollout.
            Phase::Rolling { .. } if before.is_rolling() => done(UPDATED, None),
            Phase::Rolling { by, .. } => done("change_request_begun", by.as_ref()),
            Phase::Held => done("change_request_held", None),
            Phase::Applied { by, .. } => done("change_request_applied", by.as_ref()),
            Phase::Closed { by, comment, reason, .. } => {
                let comment = if let CloseReason::Failed(failure) = reason { &failure.text } else { comment };
                Deed { kind: "change_request_closed", by: by.as_ref(), comment }
            }
        };
    }
    if before.revert != after.revert {
        return match &after.revert {
            Some(Revert::Done { by, .. }) => {
                let by = match by {
                    RevertedBy::Cluster => None,
                    RevertedBy::Approver(by) | RevertedBy::Bypass { by, .. } => Some(by),
                };
                done("change_request_reverted", by)
            }
            Some(Revert::Failed { failure, .. }) => {
                Deed { kind: REVERT_FAILED, by: None, comment: &failure.text }
            }
            Some(Revert::Held { .. }) => done("change_request_held", None),
            Some(Revert::Ended { by, comment, .. }) => {
                Deed { kind: "change_request_kept", by: Some(by), comment }
            }
            // The time is over in which somebody could take it back, or there was no room for what that needs.
            Some(Revert::ByHand { .. } | Revert::Armed { .. }) | None => done(UPDATED, None),
        };
    }
    // A vote replaces that of the same person.
    match after.votes.iter().rev().find(|vote| !before.votes.contains(vote)) {
        Some(vote) => {
            let kind = match vote.opinion {
                Opinion::Approval => "change_request_approved",
                Opinion::Rejection => "change_request_rejected",
                Opinion::Review => "change_request_reviewed",
            };
            Deed { kind, by: Some(&vote.by), comment: &vote.comment }
        }
        None => done(UPDATED, None),
    }
}

#[cfg(test)]
mod tests;
