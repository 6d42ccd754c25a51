//! What a change request waits for besides its approvals.
//!
//! A freeze and a schedule are in the state. That a limit is reached, or that the clocks do not agree, only the leader
//! knows, and its alarm says so; from the state one sees that the cluster should have applied it by now.
//!
//! **Invariant:** what is shown is decided by the log again when it is applied: nothing relies on it.

use super::view::PartyView;
use crate::{
    editions::{FoundChange, approvals_of, approvers, is_rejected},
    request::Principal,
};
use concord_model::{
    access_key::Verb,
    system::change::{ApplyMode, Change, Opinion, Party, Phase, Scope},
    time::Timestamp,
};
use concord_state::State;

/// The cluster applies what is due within a second or two.
const OVERDUE_US: u64 = 5_000_000;

/// What a change request waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitView {
    /// `freeze`, `schedule` or `cluster`.
    pub reason: &'static str,
    /// The environment that is frozen.
    pub environment: Option<String>,
    /// Since when the cluster should have applied it.
    pub since: Option<Timestamp>,
    /// Until when it waits; of the cluster, until when it may be applied.
    pub until: Option<Timestamp>,
}

/// What a pending change request waits for, by a time of the log. `is_ready`: it has its approvals, and is not stale.
pub(super) fn waits(state: &State, change: &Change, is_ready: bool, now: Timestamp) -> Option<WaitView> {
    if !matches!(change.phase, Phase::Open | Phase::Scheduled { .. }) {
        return None;
    }
    let window = change.edition.timing.window;
    let begin = window.map(|window| window.not_before).filter(|begin| *begin > now);
    let at = begin.unwrap_or(now);
    if let Some((environment, until)) = frozen(state, &change.edition.scope, at) {
        let until = Some(until);
        return Some(WaitView { reason: "freeze", environment: Some(environment), since: None, until });
    }
    if begin.is_some() {
        return Some(WaitView { reason: "schedule", environment: None, since: None, until: begin });
    }
    let is_left = change.edition.timing.apply == ApplyMode::WhenApproved
        || matches!(change.phase, Phase::Scheduled { .. });
    let since = due_since(state, change, now);
    let is_overdue = now.0.saturating_sub(since.0) > OVERDUE_US;
    (is_left && is_ready && is_overdue).then(|| WaitView {
        reason: "cluster",
        environment: None,
        since: Some(since),
        until: window.map(|window| window.not_after),
    })
}

/// Since when nothing in the state has kept it from being applied: a vote, its time, the end of a freeze, or other rules.
fn due_since(state: &State, change: &Change, now: Timestamp) -> Timestamp {
    let edition = &change.edition;
    let votes = change.current_votes().map(|vote| vote.at);
    let begin = edition.timing.window.map(|window| window.not_before);
    let keys = if let Scope::Definitions(keys) = &edition.scope { &keys[..] } else { &[] };
    let rules = keys.iter().filter_map(|key| state.environment_of(key.as_str())).flat_map(|record| {
        let freezes = record.environment().map_or(&[][..], |rules| rules.freezes.as_slice());
        let ends = freezes.iter().map(|freeze| freeze.until).filter(move |until| *until <= now);
        ends.chain([record.modified_at])
    });
    votes.chain(begin).chain(rules).fold(edition.sent_at, Timestamp::max)
}

/// The environment whose freeze ends last of those that refuse it at a time. A freeze refuses no change of the environment
/// itself.
fn frozen(state: &State, scope: &Scope, at: Timestamp) -> Option<(String, Timestamp)> {
    let Scope::Definitions(keys) = scope else { return None };
    let until = keys.iter().filter_map(|key| {
        let record = state.environment_of(key.as_str())?;
        Some((record.name.to_string(), record.environment()?.frozen_until(at, at)?))
    });
    until.max_by_key(|(_, until)| *until)
}

/// Whether a client has sent an edition of it, with this key or with another one of the same person.
pub(super) fn is_mine(change: &Change, principal: &Principal) -> bool {
    principal.party().is_some_and(|party| change.is_author(&party))
}

/// Whether it waits for a vote that the client may give: an approval that is missing, or the review of a bypass.
pub(super) fn needs_vote_of(state: &State, found: &FoundChange<'_>, principal: &Principal) -> bool {
    let change = found.change;
    let Some(key) = principal.key() else { return false };
    let Some(own) = principal.party() else { return false };
    let may_vote = key.attestation.is_some()
        && key.person.is_some()
        && [Verb::Approve, Verb::Read].into_iter().all(|verb| principal.may_in(verb, &change.edition.scope));
    if !may_vote {
        return false;
    }
    // What was done without approval: the change, or that it was taken back.
    if let Some((by, _)) = change.bypassed_by() {
        let mut reviews = change.current_votes().filter(|vote| vote.opinion == Opinion::Review);
        return change.reviews_missing() > 0 && !by.may_be(&own) && !reviews.any(|vote| vote.by.may_be(&own));
    }
    let is_open = matches!(change.phase, Phase::Open | Phase::Scheduled { .. });
    is_open
        && !change.is_author(&own)
        && !is_rejected(change)
        // An approval that does not count any more is to be given again.
        && !approvers(state, change).iter().any(|(person, _)| key.person == Some(*person))
        && approvals_of(state, change).iter().any(|(needed, counted)| counted < needed)
        // It must be rebased first, and that ends all approvals.
        && state
            .change_content(found.id())
            .is_none_or(|(content, _)| state.failed_guard_at_hand(&content.bases).is_none())
}

/// The authors because of whom one more person may have to approve it: by now their keys are not attested, or revoked.
/// What they were when the edition was sent is not stored for each.
pub(super) fn unattested(
    state: &State,
    change: &Change,
    party: &impl Fn(&Party) -> PartyView,
) -> Vec<PartyView> {
    if change.edition.is_attested {
        return Vec::new();
    }
    let is_attested = |author: &&Party| match author {
        Party::Root | Party::Machine(_) => false,
        Party::Key { id, .. } => state.access_key(id).is_some_and(|key| key.attestation.is_some()),
    };
    change.authors.iter().filter(|author| !is_attested(author)).map(party).collect()
}
