//! Whether a proposal may change what it changes, by where it comes from; and the record of a change request that was
//! applied.
//!
//! | source | restricted environment | freeze | other conditions |
//! |---|---|---|---|
//! | direct | rejected | rejected | |
//! | change request | passes | rejected | its edition, its digest, its approvals, its bases, its window |
//! | bypass | passes | passes | an environment: only by the root key |
//! | revert | passes | passes | who does it, and when; the configs are as it has left them |
//!
//! **Invariants:** the record is made by the entry that changes the data, after everything that may reject it. A change
//! request that was applied is closed, so it is never applied again.

use std::sync::Arc;

use super::decide::succeeding;
use crate::{
    Edit, State,
    apply::EntryContext,
    environment::{ChangeTime, leaves_freeze},
};
use concord_model::{
    access_key::Author,
    command::{
        Command, Proposal,
        source::{Bypass, ChangeUse, Source},
        touched::Touch,
    },
    error::{NotDue, Rejection},
    key::Key,
    sabotage,
    system::{
        SystemBody, SystemRecord,
        change::{AppliedWith, Change, ChangeDigest, ChangeId, Content, Edition, Phase, Scope, Timing},
        environment::DEFAULT_ENVIRONMENT,
    },
    time::Timestamp,
};

/// What a proposal with a source needs once its command is decided.
pub(crate) enum RecordToMake {
    /// None.
    Nothing,
    /// The change request is applied.
    Applied(Arc<SystemRecord>),
    /// The change request of a bypass, as it will be, except its revision and time.
    Bypass(Box<SystemRecord>),
    /// The change request is taken back. Whether by a bypass.
    Reverted(Arc<SystemRecord>, bool),
}

/// What a command touches: definitions, or an environment and no definition.
fn scope_of(command: &Command) -> Option<Scope> {
    let mut definitions: Vec<Key> = Vec::new();
    for (_, touch) in command.touches() {
        match touch {
            Touch::Definition(key) => definitions.push(key.clone()),
            Touch::Environment(change) => return Some(Scope::Environment(change.name.clone())),
        }
    }
    definitions.sort_unstable();
    definitions.dedup();
    (!definitions.is_empty()).then_some(Scope::Definitions(definitions))
}

/// Whether a command touches something, and nothing outside a scope.
fn is_within(command: &Command, scope: &Scope) -> bool {
    let mut touches = command.touches().peekable();
    touches.peek().is_some()
        && touches.all(|(_, touch)| match (touch, scope) {
            (Touch::Definition(key), Scope::Definitions(definitions)) => {
                definitions.binary_search(key).is_ok()
            }
            (Touch::Environment(change), Scope::Environment(name)) => change.name == name,
            (Touch::Definition(_), Scope::Environment(_))
            | (Touch::Environment(_), Scope::Definitions(_)) => false,
        })
}

impl State {
    /// Why a proposal may not change what it changes in an entry of this time, if it may not; and otherwise which record of
    /// a change request it makes.
    pub(crate) fn expect_allowed(
        &self,
        at: Timestamp,
        proposal: &Proposal,
    ) -> Result<RecordToMake, Rejection> {
        let Proposal { command, author, .. } = proposal;
        let own = if let Source::Change(of) = proposal.source() { Some(&of.id) } else { None };
        if let Some(rejection) = self.refused_by_rollout(command, own) {
            return Err(rejection);
        }
        match proposal.source() {
            Source::Direct => match self.refused_by_environment(at, command) {
                Some(rejection) => Err(rejection),
                None => Ok(RecordToMake::Nothing),
            },
            Source::Change(of) => {
                self.expect_applicable(at, command, (author, of)).map(RecordToMake::Applied)
            }
            Source::Revert(of) => {
                let record = self.expect_revertible(at, command, (author, of))?;
                Ok(RecordToMake::Reverted(record, of.is_bypass))
            }
            Source::Bypass(bypass) => {
                let record = self.bypass_record(proposal, bypass)?;
                let rules = command.touches().find_map(|(_, touch)| match touch {
                    Touch::Environment(change) => Some(change.name),
                    Touch::Definition(_) => None,
                });
                match rules {
                    Some(name) if *author != Author::Root => {
                        Err(Rejection::ChangeRequired { environment: name.key().clone() })
                    }
                    Some(_) | None => Ok(RecordToMake::Bypass(record)),
                }
            }
        }
    }

    /// The change request that a command applies, if it may be applied in an entry of this time.
    ///
    /// # Errors
    /// Why it may not.
    pub fn expect_applicable(
        &self,
        at: Timestamp,
        command: &Command,
        (author, of): (&Author, &ChangeUse),
    ) -> Result<Arc<SystemRecord>, Rejection> {
        let record = self.change_record(of.id.as_str()).ok_or(Rejection::ChangeNotFound)?;
        let change = record.change().ok_or(Rejection::ChangeNotFound)?;
        let Edition { scope, timing, .. } = &change.edition;
        self.expect_rolled_out(&of.id, author)?;
        self.expect_to_apply(change, (of.edition, &of.digest))?;
        if !is_within(command, scope) {
            return Err(Rejection::ChangeDigest);
        }
        if timing.revert_after_s.is_some() {
            let content = self.content_of(record).and_then(|content| content.content());
            let is_reserved = |content: &Content| self.is_within_bases(command, &content.bases);
            if !content.is_some_and(is_reserved) {
                return Err(Rejection::ChangeDigest);
            }
        }
        let time = ChangeTime::of(at, command);
        self.expect_due(change, author, time)?;
        self.frozen_scope(time, command, scope).map_or(Ok(()), Err)?;
        Ok(Arc::clone(record))
    }

    /// Rejects an edition that is not the one to be applied.
    pub(super) fn expect_to_apply(
        &self,
        change: &Change,
        (edition, digest): (u32, &ChangeDigest),
    ) -> Result<(), Rejection> {
        match &change.phase {
            Phase::Open | Phase::Scheduled { .. } | Phase::Rolling { .. } => {}
            Phase::Held => return Err(Rejection::ChangeHeld),
            Phase::Applied { .. } | Phase::Closed { .. } => return Err(Rejection::ChangeClosed),
        }
        let is_current = (edition, digest) == (change.edition.number, &change.edition.digest);
        if is_current { Ok(()) } else { Err(Rejection::ChangeDigest) }
    }

    /// Rejects a change request that its author may not apply yet: it lacks an approval, or it is not the time. The window of
    /// one that rolls was that of its beginning.
    pub(super) fn expect_due(
        &self,
        change: &Change,
        author: &Author,
        time: ChangeTime,
    ) -> Result<(), Rejection> {
        if *author == Author::Cluster {
            self.expect_left_to_cluster(change)?;
        }
        if let Some(rejection) = self.approvals(change).refused()
            && !sabotage::is("approvals-not-counted")
        {
            return Err(rejection);
        }
        let window = change.edition.timing.window.filter(|_| !change.is_rolling());
        if let Some(window) = window.filter(|window| !window.has(time.first, time.last))
            && !sabotage::is("window-ignored")
        {
            let is_before = time.first < window.not_before;
            let not_due =
                if is_before { NotDue::Before(window.not_before) } else { NotDue::After(window.not_after) };
            return Err(Rejection::ChangeNotDue(not_due));
        }
        Ok(())
    }

    /// The freeze that one of these definitions is in.
    pub(super) fn frozen_definitions(&self, time: ChangeTime, definitions: &[Key]) -> Option<Rejection> {
        definitions.iter().find_map(|key| time.frozen(self.environment_of(key.as_str())?))
    }

    /// The freeze that a change request is in.
    fn frozen_scope(&self, time: ChangeTime, command: &Command, scope: &Scope) -> Option<Rejection> {
        match scope {
            Scope::Definitions(definitions) => self.frozen_definitions(time, definitions),
            Scope::Environment(name) if self.environment(name.as_str()).is_some() => None,
            Scope::Environment(_) => {
                let default = self.environment(DEFAULT_ENVIRONMENT)?;
                let after = command.touches().find_map(|(_, touch)| match touch {
                    Touch::Environment(change) => change.after,
                    Touch::Definition(_) => None,
                });
                leaves_freeze(default, after, time)
            }
        }
    }

    /// The record that a bypass makes.
    fn bypass_record(&self, proposal: &Proposal, bypass: &Bypass) -> Result<Box<SystemRecord>, Rejection> {
        if self.change(&bypass.id).is_some() {
            return Err(Rejection::ChangeExists);
        }
        let scope = scope_of(&proposal.command).ok_or(Rejection::ChangeDigest)?;
        let by = self.party(&proposal.author).ok_or(Rejection::Unauthored)?;
        let at = Timestamp(0);
        let edition = Edition {
            number: 1,
            digest: bypass.digest,
            scope,
            sender: by.party.clone(),
            is_attested: by.attestation.is_some(),
            sent_at: at,
            content_bytes: 0,
            timing: Timing::default(),
        };
        let change = Change {
            edition,
            authors: vec![by.party.clone()],
            votes: Vec::new(),
            phase: Phase::Applied {
                revision: 0,
                at,
                by: Some(by.party),
                with: AppliedWith::Bypass,
                scheduled_by: None,
            },
            revert: None,
            fingerprint: proposal.request.map(|request| request.fingerprint),
        };
        let record = SystemRecord {
            name: bypass.id.key().clone(),
            body: SystemBody::Change(Box::new(change)),
            text: Arc::clone(&bypass.text),
            created_at: at,
            modified_at: at,
            revision: 0,
        };
        self.expect_bypass_room(&record)?;
        Ok(Box::new(record))
    }

    /// Whether something that a proposal rests on is another one than the leader read, or than the base of the change
    /// request that is applied; or a config is not as the change request has left it that is taken back.
    pub(crate) fn is_guard_stale(&self, proposal: &Proposal, record: &RecordToMake) -> bool {
        let bases = match record {
            RecordToMake::Applied(record) | RecordToMake::Reverted(record, _) => self
                .content_of(record)
                .and_then(|content| content.content())
                .map(|content| &content.bases[..]),
            RecordToMake::Nothing | RecordToMake::Bypass(_) => Some(&[][..]),
        };
        let holds = |guards| self.failed_guard(guards).is_none() || sabotage::is("guards-ignored");
        !holds(proposal.guards()) || !bases.is_some_and(holds)
    }

    /// Makes the record of a change request whose command was just applied.
    pub(crate) fn make_change_record(
        &mut self,
        context: EntryContext,
        proposal: &Proposal,
        record: RecordToMake,
        edits: &mut Vec<Edit>,
    ) {
        let EntryContext { revision, at, .. } = context;
        match record {
            RecordToMake::Nothing => {}
            RecordToMake::Applied(_) if sabotage::is("change-stays-open") => {}
            RecordToMake::Bypass(_) if sabotage::is("bypass-without-record") => {}
            RecordToMake::Applied(before) => {
                let (Some(change), Some(id)) = (before.change(), ChangeId::parse(before.name.as_str()))
                else {
                    return;
                };
                let approvers = self.approvals(change).counted.into_iter().map(|vote| vote.by).collect();
                let with = AppliedWith::Approvals(approvers);
                let scheduled_by = match &change.phase {
                    Phase::Scheduled { by, .. } => Some(by.clone()),
                    Phase::Rolling { by, scheduled_by, .. } => scheduled_by.clone().or_else(|| by.clone()),
                    Phase::Open | Phase::Held | Phase::Applied { .. } | Phase::Closed { .. } => None,
                };
                let by = self.party(&proposal.author).map(|by| by.party);
                let revert = self.keep_before(context, (&id, change, &proposal.command), edits);
                let phase = Phase::Applied { revision, at, by, with, scheduled_by };
                let after = succeeding(&before, Change { phase, revert, ..change.clone() }, context);
                self.end_change(&before, after, edits);
                self.make_room_for_before(context, edits);
            }
            RecordToMake::Reverted(before, is_bypass) => {
                self.make_reverted(context, &before, (&proposal.author, is_bypass), edits);
            }
            RecordToMake::Bypass(mut record) => {
                if let SystemBody::Change(change) = &mut record.body {
                    change.edition.sent_at = at;
                    if let Phase::Applied { revision: of, at: when, .. } = &mut change.phase {
                        (*of, *when) = (revision, at);
                    }
                }
                let record = SystemRecord { created_at: at, modified_at: at, revision, ..*record };
                self.put_change(None, Some(record), edits);
            }
        }
    }
}
