//! Actions on change requests: each makes the next record from the one before and from what the state knows of the author.

use std::{collections::BTreeSet, sync::Arc};

use super::{KnownParty, records, time::expect_timing};
use crate::{Edit, State, apply::EntryContext, index::filed::Totals};
use concord_model::{
    command::{
        ChangeAction, EnvironmentChange, Expect, Outcome, Proposal, StepOutcome, SystemCommand, source::Guard,
    },
    error::{ChangeBound, ChangeQuota, Rejection},
    key::Key,
    limits::{
        CHANGE_AUTHORS_MAX, CHANGE_CONTENT_BYTES_MAX, CHANGE_CONTENTS_BYTES_MAX, CHANGE_DEFINITIONS_MAX,
        CHANGE_EDITION_BYTES_MAX, CHANGE_RECORD_BYTES_MAX, CHANGE_VOTES_MAX, CHANGES_SWEPT_PER_ENTRY_MAX,
        CLOSED_CHANGE_AGE_US_MAX, CLOSED_CHANGES_BYTES_MAX, CLOSED_CHANGES_MAX, FAILED_CHANGES_MAX,
        GUARDS_MAX, OPEN_CHANGE_BYTES_OF_PARTY_MAX, OPEN_CHANGES_OF_ENVIRONMENT_MAX,
        OPEN_CHANGES_OF_PARTY_MAX, UNREVIEWED_BYPASSES_MAX,
    },
    system::{
        SystemBody, SystemRecord,
        change::{
            Change, ChangeId, CloseReason, Content, Edition, NewEdition, NewVote, Opinion, Party, Phase,
            Scope, Vote,
        },
        person::PersonId,
    },
    time::Timestamp,
};

/// Bytes of a base in addition to its key.
const BYTES_PER_BASE: u64 = 32;

/// The bytes that a content takes, about.
fn content_bytes(edition: &NewEdition) -> u64 {
    let key = |base: &Guard| match base {
        Guard::Config { key, .. } | Guard::Definition { key, .. } | Guard::Environment { name: key, .. } => {
            key.as_str().len() as u64
        }
        Guard::Configs { .. } | Guard::AccessKey { .. } | Guard::Policy { .. } => 0,
    };
    let bases: u64 = edition.content.bases.iter().map(|base| BYTES_PER_BASE + key(base)).sum();
    bases + edition.operations.len() as u64
}

/// The bytes that an edition adds to the record of its change request, about.
pub(super) fn record_bytes(edition: &NewEdition) -> u64 {
    let scope: u64 = match &edition.scope {
        Scope::Definitions(definitions) => definitions.iter().map(|key| key.as_str().len() as u64).sum(),
        Scope::Environment(_) => 0,
    };
    scope + edition.text.len() as u64
}

/// What an action needs of the request for it.
#[derive(Clone, Copy)]
pub(super) struct ActionContext<'a> {
    pub(super) entry: EntryContext,
    pub(super) proposal: &'a Proposal,
    pub(super) id: &'a ChangeId,
}

impl ActionContext<'_> {
    /// The record of the change request after the action.
    fn record(&self, before: Option<&SystemRecord>, change: Change, text: &Arc<str>) -> SystemRecord {
        SystemRecord {
            name: self.id.key().clone(),
            body: SystemBody::Change(Box::new(change)),
            text: Arc::clone(text),
            created_at: before.map_or(self.entry.at, |before| before.created_at),
            modified_at: self.entry.at,
            revision: self.entry.revision,
        }
    }

    /// The record of a change request, if it is not too large. The first rejections of earlier editions make room: nobody
    /// keeps others from voting or sending an edition by what they say of each. Once it is applied, all but reviews do.
    pub(super) fn bounded(
        &self,
        before: Option<&SystemRecord>,
        mut change: Change,
        text: &Arc<str>,
    ) -> Result<SystemRecord, Rejection> {
        loop {
            let record = self.record(before, change.clone(), text);
            if records::stored_bytes(&record) <= CHANGE_RECORD_BYTES_MAX {
                return Ok(record);
            }
            let earlier = change.votes.iter().position(|vote| may_go(&change, vote));
            change.votes.remove(earlier.ok_or(Rejection::ChangeTooLarge(ChangeBound::Record))?);
        }
    }

    /// The record of an edition's content.
    fn content(&self, number: u32, edition: &NewEdition) -> SystemRecord {
        SystemRecord {
            name: self.id.content_name(number),
            body: SystemBody::Content(Content { before: Vec::new(), ..edition.content.clone() }),
            text: Arc::clone(&edition.operations),
            created_at: self.entry.at,
            modified_at: self.entry.at,
            revision: self.entry.revision,
        }
    }

    /// The edition, as this author sends it. `reverting`: the bytes that the cluster will need to take it back.
    fn edition(&self, number: u32, by: &KnownParty, edition: &NewEdition, reverting: u64) -> Edition {
        Edition {
            number,
            digest: edition.digest,
            scope: edition.scope.clone(),
            sender: by.party.clone(),
            is_attested: by.attestation.is_some(),
            sent_at: self.entry.at,
            content_bytes: content_bytes(edition) + record_bytes(edition) + reverting,
            timing: edition.timing,
        }
    }
}

fn expect_scope(scope: &Scope) -> Result<(), Rejection> {
    match scope {
        Scope::Definitions(definitions) if definitions.len() > CHANGE_DEFINITIONS_MAX => {
            Err(Rejection::ChangeTooLarge(ChangeBound::Definitions))
        }
        // The digest is of what a command touches, and that is in order.
        Scope::Definitions(_) if !is_in_order(scope) => Err(Rejection::ChangeDigest),
        Scope::Definitions(_) | Scope::Environment(_) => Ok(()),
    }
}

/// Whether what an edition touches ascends, so that it can be searched, and each definition is there once.
pub(super) fn is_in_order(scope: &Scope) -> bool {
    match scope {
        Scope::Definitions(definitions) => {
            !definitions.is_empty() && definitions.is_sorted_by(|one, other| one < other)
        }
        Scope::Environment(_) => true,
    }
}

/// Rejects an edition that no change request has. Returns the bytes that the cluster will need to take it back.
fn expect_edition(state: &State, at: Timestamp, edition: &NewEdition) -> Result<u64, Rejection> {
    expect_scope(&edition.scope)?;
    expect_timing(&edition.timing, at)?;
    if edition.content.bases.len() > GUARDS_MAX {
        return Err(Rejection::ChangeTooLarge(ChangeBound::Bases));
    }
    if record_bytes(edition) > CHANGE_EDITION_BYTES_MAX {
        return Err(Rejection::ChangeTooLarge(ChangeBound::Record));
    }
    if content_bytes(edition) > CHANGE_CONTENT_BYTES_MAX {
        return Err(Rejection::ChangeTooLarge(ChangeBound::Content));
    }
    state.expect_revertible_edition(edition)
}

impl State {
    /// Whether an action was made from another edition or record than the current one.
    pub(crate) fn is_change_stale(&self, id: &ChangeId, action: &ChangeAction) -> bool {
        if let ChangeAction::Schedule { edition, digest } = action {
            return self.is_schedule_stale(id, (*edition, digest));
        }
        if let ChangeAction::BeginRollout { edition, digest, .. } = action {
            return self.is_schedule_stale(id, (*edition, digest));
        }
        let (ChangeAction::Edit { after, expect, .. } | ChangeAction::EditStaged { after, expect, .. }) =
            action
        else {
            return false;
        };
        let Some(record) = self.change_record(id.as_str()) else { return false };
        let read = matches!(expect, Expect::Read(read) if *read != Some(record.revision));
        // One that has ended is rejected, whatever its edition.
        let is_pending = record.change().is_some_and(Change::is_pending);
        read || (is_pending && record.change().is_some_and(|change| change.edition.number != *after))
    }

    pub(crate) fn decide_change(
        &mut self,
        entry: EntryContext,
        proposal: &Proposal,
        command: (&ChangeId, &ChangeAction),
        edits: &mut Vec<Edit>,
    ) -> Outcome {
        let (id, action) = command;
        let context = ActionContext { entry, proposal, id };
        if let ChangeAction::Fail { edition, failure } = action {
            return self.fail_change(context, (*edition, failure), edits);
        }
        if let ChangeAction::FailRevert { edition, failure } = action {
            return self.fail_revert(context, (*edition, failure), edits);
        }
        if let ChangeAction::BeginRollout { edition, digest, candidates } = action {
            return self.begin_rollout(context, (*edition, digest), candidates, edits);
        }
        if let ChangeAction::AdvanceRollout { at, evidence } = action {
            return self.advance_rollout(context, *at, *evidence, edits);
        }
        if let ChangeAction::PauseRollout { at, comment } = action {
            return self.pause_rollout(context, *at, comment, edits);
        }
        let by = self.party(&proposal.author).ok_or(Rejection::Unauthored)?;
        let done = match action {
            ChangeAction::Fail { .. }
            | ChangeAction::FailRevert { .. }
            | ChangeAction::BeginRollout { .. }
            | ChangeAction::AdvanceRollout { .. }
            | ChangeAction::PauseRollout { .. } => return Err(Rejection::Unauthored),
            ChangeAction::ResumeRollout { at } => return self.resume_rollout(context, *at, edits),
            ChangeAction::CreateStaged(staged) => {
                staged.plan.check().map_err(Rejection::RolloutInvalid)?;
                let done = self.create_change(context, &by, &staged.edition, edits)?;
                self.plan_rollout(context, (1, &staged.plan), edits);
                done
            }
            ChangeAction::EditStaged { after, expect, edition: staged } => {
                staged.plan.check().map_err(Rejection::RolloutInvalid)?;
                let done = self.edit_change(context, &by, (*expect, &staged.edition), edits)?;
                self.plan_rollout(context, (after.saturating_add(1), &staged.plan), edits);
                done
            }
            ChangeAction::Schedule { edition, digest } => {
                self.schedule_change(context, by, (*edition, digest), edits)?
            }
            ChangeAction::Create(edition) => self.create_change(context, &by, edition, edits)?,
            ChangeAction::Edit { expect, edition, .. } => {
                self.edit_change(context, &by, (*expect, edition), edits)?
            }
            ChangeAction::Vote(vote) => self.vote_on_change(context, &by, vote, edits)?,
            ChangeAction::Keep { edition, digest, comment } => {
                self.keep_change(context, by, (*edition, digest, comment), edits)?
            }
            ChangeAction::Withdraw { comment } => {
                let before = self.expect_change(id)?;
                let change = before.change().ok_or(Rejection::ChangeNotFound)?;
                if !change.is_pending() {
                    return Err(Rejection::ChangeClosed);
                }
                let (reason, by) = (CloseReason::Withdrawn, Some(by.party));
                let phase = Phase::Closed { reason, at: entry.at, by, comment: comment.clone() };
                // To take back a change request always fits: the comment is short.
                let closed = context.record(Some(&before), Change { phase, ..change.clone() }, &before.text);
                self.end_change(&before, closed, edits);
                StepOutcome::Changed
            }
        };
        Ok(entry.applied(done))
    }

    pub(super) fn expect_change(&self, id: &ChangeId) -> Result<Arc<SystemRecord>, Rejection> {
        self.change_record(id.as_str()).cloned().ok_or(Rejection::ChangeNotFound)
    }

    fn create_change(
        &mut self,
        context: ActionContext<'_>,
        by: &KnownParty,
        edition: &NewEdition,
        edits: &mut Vec<Edit>,
    ) -> Result<StepOutcome, Rejection> {
        let fingerprint = context.proposal.request.map(|request| request.fingerprint);
        if let Some(known) = self.change(context.id) {
            let is_same = known.fingerprint == fingerprint;
            return Err(if is_same { Rejection::ChangeExists } else { Rejection::RequestReused });
        }
        let reverting = expect_edition(self, context.entry.at, edition)?;
        let sent = context.edition(1, by, edition, reverting);
        self.expect_room(&sent, None)?;
        let change = Change {
            edition: sent,
            authors: vec![by.party.clone()],
            votes: Vec::new(),
            phase: Phase::Open,
            revert: None,
            fingerprint,
        };
        let record = context.bounded(None, change, &edition.text)?;
        self.put_change(None, Some(record), edits);
        self.put_system_record(None, Some(context.content(1, edition)), edits);
        Ok(StepOutcome::Created)
    }

    fn edit_change(
        &mut self,
        context: ActionContext<'_>,
        by: &KnownParty,
        (expect, edition): (Expect, &NewEdition),
        edits: &mut Vec<Edit>,
    ) -> Result<StepOutcome, Rejection> {
        let before = self.expect_change(context.id)?;
        let change = before.change().ok_or(Rejection::ChangeNotFound)?;
        if matches!(expect, Expect::At(revision) if revision != before.revision) {
            return Err(Rejection::Precondition { current: before.revision });
        }
        if !change.is_pending() {
            return Err(Rejection::ChangeClosed);
        }
        if change.is_rolling() {
            return Err(Rejection::RolloutActive { change: context.id.clone() });
        }
        let reverting = expect_edition(self, context.entry.at, edition)?;
        let mut sent = context.edition(change.edition.number.saturating_add(1), by, edition, reverting);
        // Who sent an earlier one may be anybody: nobody makes up for that by sending the same again.
        sent.is_attested &= change.edition.is_attested;
        self.expect_room(&sent, Some(&before))?;
        let mut authors = change.authors.clone();
        if !authors.contains(&by.party) {
            authors.push(by.party.clone());
        }
        if authors.len() > CHANGE_AUTHORS_MAX {
            return Err(Rejection::ChangeTooLarge(ChangeBound::Authors));
        }
        // An approval ends with its edition. A rejection does as well, and is shown with later ones.
        let rejections = change.votes.iter().filter(|vote| vote.opinion == Opinion::Rejection);
        let kept = if concord_model::sabotage::is("approvals-outlive-edition") {
            let outlive = |vote: &Vote| Vote { edition: sent.number, digest: sent.digest, ..vote.clone() };
            change.votes.iter().map(outlive).collect()
        } else {
            rejections.cloned().collect()
        };
        let number = sent.number;
        let change = Change { edition: sent, authors, votes: kept, phase: Phase::Open, ..change.clone() };
        let record = context.bounded(Some(&before), change, &edition.text)?;
        self.drop_content(&before, edits);
        self.put_change(Some(before), Some(record), edits);
        self.put_system_record(None, Some(context.content(number, edition)), edits);
        Ok(StepOutcome::Changed)
    }

    fn vote_on_change(
        &mut self,
        context: ActionContext<'_>,
        by: &KnownParty,
        vote: &NewVote,
        edits: &mut Vec<Edit>,
    ) -> Result<StepOutcome, Rejection> {
        let before = self.expect_change(context.id)?;
        let change = before.change().ok_or(Rejection::ChangeNotFound)?;
        match (vote.opinion, &change.phase) {
            (
                Opinion::Approval | Opinion::Rejection,
                Phase::Open | Phase::Scheduled { .. } | Phase::Rolling { .. },
            ) => {}
            (Opinion::Approval | Opinion::Rejection, Phase::Held) => return Err(Rejection::ChangeHeld),
            (Opinion::Approval | Opinion::Rejection, Phase::Applied { .. } | Phase::Closed { .. }) => {
                return Err(Rejection::ChangeClosed);
            }
            (Opinion::Review, _) if change.bypassed_by().is_some() => {}
            (Opinion::Review, _) => return Err(Rejection::ChangeNotFound),
        }
        let NewVote { opinion, edition, digest, is_redacted, comment } = vote.clone();
        if (edition, digest) != (change.edition.number, change.edition.digest) {
            return Err(Rejection::ChangeDigest);
        }
        let attestation = by.attestation.filter(|_| by.party.person().is_some());
        let attestation = attestation.ok_or(Rejection::KeyNotAttested)?;
        let is_own = match vote.opinion {
            Opinion::Approval | Opinion::Rejection => change.is_author(&by.party),
            Opinion::Review => change.bypassed_by().is_some_and(|(writer, _)| writer.may_be(&by.party)),
        };
        if is_own {
            return Err(Rejection::OwnChange);
        }
        let (by, at) = (by.party.clone(), context.entry.at);
        let vote = Vote { opinion, edition, digest, by, attestation, is_redacted, comment, at };
        let votes = votes_with(change, vote)?;
        let text = Arc::clone(&before.text);
        let record = context.bounded(Some(&before), Change { votes, ..change.clone() }, &text)?;
        self.put_change(Some(before), Some(record), edits);
        self.drop_surplus(None, CHANGES_SWEPT_PER_ENTRY_MAX, edits);
        Ok(StepOutcome::Changed)
    }

    /// Rejects an edition where its sender, an environment or the cluster has too much of them. `before`: the record that it
    /// replaces, which does not count.
    fn expect_room(&self, edition: &Edition, before: Option<&Arc<SystemRecord>>) -> Result<(), Rejection> {
        let mut others = (*self.changes).clone();
        if let Some(before) = before {
            others.remove(before);
        }
        let too_many = |quota| Err(Rejection::TooManyChanges(quota));
        let of_sender = others.unfinished_of(edition);
        if of_sender.count >= OPEN_CHANGES_OF_PARTY_MAX {
            return too_many(ChangeQuota::OfParty);
        }
        if of_sender.bytes.saturating_add(edition.content_bytes) > OPEN_CHANGE_BYTES_OF_PARTY_MAX {
            return too_many(ChangeQuota::BytesOfParty);
        }
        // Who takes what all share leaves as much as they take: a few senders never keep all others out.
        let is_full = |name: &Key| {
            let (all, own) = others.unfinished_in(name, edition);
            own >= fair_part(OPEN_CHANGES_OF_ENVIRONMENT_MAX, all - own).max(1)
                || all >= OPEN_CHANGES_OF_ENVIRONMENT_MAX
        };
        if records::environments(&edition.scope).iter().any(is_full) {
            return too_many(ChangeQuota::OfEnvironment);
        }
        let of_others = others.content_bytes().saturating_sub(of_sender.bytes);
        let of_sender = of_sender.bytes.saturating_add(edition.content_bytes);
        if of_sender > fair_part(CHANGE_CONTENTS_BYTES_MAX, of_others) {
            return Err(Rejection::ChangesFull);
        }
        Ok(())
    }

    /// Rejects a bypass that can't have a record.
    pub(super) fn expect_bypass_room(&self, record: &SystemRecord) -> Result<(), Rejection> {
        let change = record.change().ok_or(Rejection::ChangeNotFound)?;
        expect_scope(&change.edition.scope)?;
        if records::stored_bytes(record) > CHANGE_RECORD_BYTES_MAX {
            return Err(Rejection::ChangeTooLarge(ChangeBound::Record));
        }
        self.expect_review_room(&change.edition.sender, change.edition.is_attested)
    }

    /// Rejects what others must review where too much of somebody is not reviewed.
    pub(super) fn expect_review_room(&self, by: &Party, is_attested: bool) -> Result<(), Rejection> {
        if self.changes.unreviewed_of(by, is_attested) >= UNREVIEWED_BYPASSES_MAX {
            return Err(Rejection::TooManyChanges(ChangeQuota::Unreviewed));
        }
        Ok(())
    }

    /// Replaces the record of a change request; one of the two may be absent. Persons that no record names any more go.
    pub(super) fn put_change(
        &mut self,
        before: Option<Arc<SystemRecord>>,
        after: Option<SystemRecord>,
        edits: &mut Vec<Edit>,
    ) {
        let let_go = self.replace_change(before, after, edits);
        self.drop_unnamed_persons(let_go, edits);
    }

    /// Replaces the record of a change request. Returns the persons that it no longer names. They go once for all records
    /// of an entry, because that looks at every access key.
    fn replace_change(
        &mut self,
        before: Option<Arc<SystemRecord>>,
        after: Option<SystemRecord>,
        edits: &mut Vec<Edit>,
    ) -> BTreeSet<PersonId> {
        let persons = |record: Option<&SystemRecord>| {
            record.and_then(SystemRecord::change).map(records::persons).unwrap_or_default()
        };
        let let_go = &persons(before.as_deref()) - &persons(after.as_ref());
        self.put_system_record(before, after, edits);
        let_go
    }

    /// Replaces the record of a change request that ends, and drops its content.
    pub(super) fn end_change(
        &mut self,
        before: &Arc<SystemRecord>,
        after: SystemRecord,
        edits: &mut Vec<Edit>,
    ) {
        let is_closed = after.change().is_some_and(|change| matches!(change.phase, Phase::Closed { .. }));
        if !(is_closed && concord_model::sabotage::is("candidate-after-abort")) {
            self.drop_content(before, edits);
        }
        self.put_change(Some(Arc::clone(before)), Some(after), edits);
        self.drop_surplus(None, CHANGES_SWEPT_PER_ENTRY_MAX, edits);
    }

    /// Drops the content of a change request, and its rollout.
    pub(super) fn drop_content(&mut self, of: &SystemRecord, edits: &mut Vec<Edit>) {
        self.drop_rollout(&of.name, edits);
        if let Some(content) = self.content_of(of).cloned() {
            self.put_system_record(Some(content), None, edits);
        }
    }

    /// Drops the change requests that ended first while there are too many, or they are too old at a time that is certain;
    /// and those that failed; at most so many.
    pub(super) fn drop_surplus(&mut self, now: Option<Timestamp>, most: usize, edits: &mut Vec<Edit>) {
        let mut let_go = BTreeSet::new();
        let surplus = |first: Option<&(Timestamp, Key)>, all: Totals, most: u64| {
            let (ended_at, id) = first?;
            let is_old = now.is_some_and(|now| now.0.saturating_sub(ended_at.0) >= CLOSED_CHANGE_AGE_US_MAX);
            let are_many = all.count > most || all.bytes > CLOSED_CHANGES_BYTES_MAX;
            (is_old || are_many).then(|| id.clone())
        };
        for _ in 0..most {
            let changes = &self.changes;
            let ended = surplus(changes.first_ended(), changes.ended(), CLOSED_CHANGES_MAX);
            let of_failed = |(first, all)| surplus(first, all, FAILED_CHANGES_MAX);
            let failed = || changes.first_failed().into_iter().find_map(of_failed);
            let Some(id) = ended.or_else(failed) else { break };
            let Some(record) = self.change_record(id.as_str()).cloned() else { break };
            let_go.extend(self.replace_change(Some(record), None, edits));
        }
        self.drop_unnamed_persons(let_go, edits);
    }

    /// Whether a sweep at a time that is certain would end or drop something.
    #[must_use]
    pub fn has_changes_to_sweep(&self, now: Timestamp) -> bool {
        let is_past = |place: Option<&(Timestamp, Key)>, age: u64| {
            place.is_some_and(|(since, _)| now.0 >= since.0.saturating_add(age))
        };
        is_past(self.changes.first_expiring(), 0)
            || is_past(self.changes.first_by_hand(), 0)
            || self.gone_definitions().next().is_some()
            || is_past(self.changes.first_ended(), CLOSED_CHANGE_AGE_US_MAX)
            || self
                .changes
                .first_failed()
                .into_iter()
                .any(|(first, _)| is_past(first, CLOSED_CHANGE_AGE_US_MAX))
    }

    /// Closes the change requests that have expired, and drops those that ended long ago, and what configs were before where
    /// nobody may take it back any more.
    pub(super) fn sweep_changes(&mut self, context: EntryContext, now: Timestamp, edits: &mut Vec<Edit>) {
        // Neither a clock nor the log's time alone ends anything.
        let now = now.min(context.at);
        let mut left = CHANGES_SWEPT_PER_ENTRY_MAX;
        while left > 0 {
            let Some((at, id)) = self.changes.first_expiring() else { break };
            if now < *at {
                break;
            }
            let Some(before) = self.change_record(id.as_str()).cloned() else { break };
            let Some(change) = before.change() else { break };
            let reason = CloseReason::Expired;
            let phase = Phase::Closed { reason, at: context.at, by: None, comment: String::new() };
            let after = succeeding(&before, Change { phase, ..change.clone() }, context);
            self.drop_content(&before, edits);
            self.put_change(Some(before), Some(after), edits);
            left -= 1;
        }
        while left > 0 && self.changes.first_by_hand().is_some_and(|(until, _)| *until <= now) {
            self.drop_first_before(context, edits);
            left -= 1;
        }
        for gone in self.gone_definitions().take(left).collect::<Vec<_>>() {
            while left > 0 && self.drop_before_of(context, gone, edits) {
                left -= 1;
            }
        }
        self.drop_surplus(Some(now), left, edits);
    }

    /// Drops contents that no change request has any more, closes change requests without the content of their edition, and
    /// takes none back without what the configs were: the history has the records alone.
    pub(crate) fn close_changes_without_content(&mut self) {
        let (context, edits) = (EntryContext::of_restored(self), &mut Vec::new());
        let stray = |content: &&Arc<SystemRecord>| !self.has_content_named(&content.name);
        for content in self.change_contents().filter(stray).cloned().collect::<Vec<_>>() {
            self.put_system_record(Some(content), None, edits);
        }
        self.end_reverts_without_content(context, edits);
        let bare = |record: &&Arc<SystemRecord>| self.content_of(record).is_none();
        for before in self.pending_changes().filter(bare).cloned().collect::<Vec<_>>() {
            let Some(change) = before.change() else { continue };
            let reason = CloseReason::Restored;
            let phase = Phase::Closed { reason, at: context.at, by: None, comment: String::new() };
            let after = succeeding(&before, Change { phase, ..change.clone() }, context);
            self.drop_rollout(&before.name, edits);
            self.put_change(Some(before), Some(after), edits);
        }
    }

    /// Holds every change request in the first state of a restored cluster.
    pub(crate) fn hold_restored_changes(&mut self) {
        self.hold_changes(EntryContext::of_restored(self), &mut Vec::new());
    }

    /// Holds every change request that is open or scheduled: its approvals are those of another cluster. And the cluster
    /// takes none back that is armed.
    pub(crate) fn hold_changes(&mut self, context: EntryContext, edits: &mut Vec<Edit>) {
        self.hold_reverts(context, edits);
        self.hold_rollouts(context, edits);
        let open = |record: &&Arc<SystemRecord>| {
            record.change().is_some_and(|change| change.is_pending() && change.phase != Phase::Held)
        };
        let all: Vec<Arc<SystemRecord>> = self.pending_changes().filter(open).cloned().collect();
        let mut let_go = BTreeSet::new();
        for before in all {
            let Some(change) = before.change() else { continue };
            let mut held = Change { phase: Phase::Held, ..change.clone() };
            held.votes.retain(|vote| vote.opinion != Opinion::Approval);
            let after = succeeding(&before, held, context);
            let_go.extend(self.replace_change(Some(before), Some(after), edits));
        }
        self.drop_unnamed_persons(let_go, edits);
    }
}

/// What one sender may take of something that all share: half of what the others leave.
pub(crate) fn fair_part(most: u64, of_others: u64) -> u64 {
    most.saturating_sub(of_others) / 2
}

/// The record of a change request after what the cluster itself does.
pub(super) fn succeeding(before: &SystemRecord, change: Change, context: EntryContext) -> SystemRecord {
    SystemRecord {
        body: SystemBody::Change(Box::new(change)),
        modified_at: context.at,
        revision: context.revision,
        ..before.clone()
    }
}

/// Whether a vote makes room for others: it is of an earlier edition, or of one that was applied and is no review. Who
/// approved it stays in the record.
fn may_go(change: &Change, vote: &Vote) -> bool {
    vote.edition != change.edition.number || (!change.is_pending() && vote.opinion != Opinion::Review)
}

/// The votes with another one, which replaces that of the same person on the same edition; a review replaces a review.
/// Rejections of earlier editions make room.
fn votes_with(change: &Change, vote: Vote) -> Result<Vec<Vote>, Rejection> {
    let mut votes = change.votes.clone();
    let is_review = |vote: &Vote| vote.opinion == Opinion::Review;
    votes.retain(|other| {
        other.edition != vote.edition || !other.by.may_be(&vote.by) || is_review(other) != is_review(&vote)
    });
    if votes.len() >= CHANGE_VOTES_MAX {
        let earlier = votes.iter().position(|other| may_go(change, other));
        votes.remove(earlier.ok_or(Rejection::ChangeTooLarge(ChangeBound::Votes))?);
    }
    votes.push(vote);
    Ok(votes)
}

impl State {
    /// Decides a command about system records.
    pub(crate) fn decide_system(
        &mut self,
        context: EntryContext,
        (proposal, command): (&Proposal, &SystemCommand),
        edits: &mut Vec<Edit>,
    ) -> Outcome {
        match command {
            SystemCommand::PutEnvironment { name, after, text, expect } => {
                let change = EnvironmentChange { name, after: Some(after), expect: *expect };
                self.put_environment(context, change, (after, text), edits)
            }
            SystemCommand::DeleteEnvironment { name, expect } => {
                let change = EnvironmentChange { name, after: None, expect: *expect };
                self.delete_environment(context, change, edits)
            }
            SystemCommand::Change { id, action } => {
                self.decide_change(context, proposal, (id, action), edits)
            }
            SystemCommand::SweepChanges { now } => {
                self.sweep_changes(context, *now, edits);
                Ok(context.applied(StepOutcome::NoRecord))
            }
            SystemCommand::HoldChanges => {
                self.hold_changes(context, edits);
                self.end_all_sessions(context, edits);
                Ok(context.applied(StepOutcome::NoRecord))
            }
            SystemCommand::Identity(command) => self.decide_identity(context, command, edits),
        }
    }
}
