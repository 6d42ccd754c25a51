//! Change requests on the leader: their editions, the votes on them, and the write that applies one.
//!
//! The leader computes what the log can't: merges, validation, the digest of the data, and the permissions of people for
//! each definition. The command names what that rests on. The log decides everything else, and makes the record
//! (`crates/state/src/change`).
//!
//! | topic | file |
//! |---|---|
//! | editions, votes, withdrawals | this one |
//! | the write that applies an edition, or leaves it to the cluster | `applied` |
//! | the write that takes it back | `reverted` |
//!
//! **Invariants:** nothing here changes anything. A change request of which a client may not read every definition does
//! not exist for it.

mod applied;
mod reverted;

use std::sync::Arc;

use super::{
    batch::prepare_records,
    environment::{prepare_environment, sent_rules},
    prepare::{Preparation, Prepared, PreparedWrite, check_intake},
    undelete::prepare_undelete,
};
use crate::{
    editions::{
        FoundChange, StoredEdition, TextOf,
        content::{Named, StoredOperation, bases_of, candidates_of, digest_of, operations_of, scope_of},
        find,
    },
    request::{
        BypassRequest, ChangeJudgement, ChangeWrite, EditionUse, Effect, EnvironmentWrite, NewEdition,
        Principal, ProposedOperations, Refusal, RolloutSteer, STORED_JSON_DEPTH_MAX, Undelete, UsedEdition,
        Write, WriteRequest, check_words,
    },
};
use concord_model::{
    access_key::Verb,
    command::{
        Applied, ChangeAction, Command, Done, Expect, Outcome, StepOutcome, SystemCommand,
        source::{Bypass, Source},
    },
    document::{self, Document},
    error::{ChangeBound, Invalid, LocSegment, Rejection, Violation},
    limits::{
        CHANGE_COMMENT_BYTES_MAX, CHANGE_CONTENT_BYTES_MAX, CHANGE_DEFINITIONS_MAX,
        CHANGE_DESCRIPTION_BYTES_MAX, CHANGE_OPERATIONS_MAX, CHANGE_TITLE_BYTES_MAX, GUARDS_MAX, Limits,
    },
    patch::Patch,
    system::{
        change::{self, AppliedWith, ChangeId, NewVote, Opinion, Phase, Scope, Timing},
        rollout::{Evidence, Plan, StagedEdition},
    },
    time::Timestamp,
};
use concord_state::State;

use applied::{Applier, applying, prepare_applied};
use reverted::{prepare_reverted, taking_back};

/// Guards that an edition leaves for the access keys of people: one for each approval, and some.
const KEY_GUARDS_MAX: usize = 32;

/// Validates what needs no state.
pub(super) fn check_change(write: &ChangeWrite, limits: &Limits) -> Result<(), Invalid> {
    if let ChangeWrite::Judge { comment, .. }
    | ChangeWrite::Withdraw { comment, .. }
    | ChangeWrite::Steer { comment, .. }
    | ChangeWrite::Keep { comment, .. } = write
    {
        return check_words("comment", comment, 0..=CHANGE_COMMENT_BYTES_MAX);
    }
    let Some(edition) = write.edition() else { return Ok(()) };
    check_words("title", &edition.title, 1..=CHANGE_TITLE_BYTES_MAX)?;
    check_words("description", &edition.description, 0..=CHANGE_DESCRIPTION_BYTES_MAX)?;
    match &edition.operations {
        ProposedOperations::Records(operations) => {
            let most = CHANGE_OPERATIONS_MAX.min(limits.batch_operations);
            if operations.is_empty() || operations.len() > most {
                let msg = format!("a change request has 1 to {most} operations");
                return Err(Violation::at(vec!["operations".into()], msg).into());
            }
            let reads = |operation: &Write| operation.effect() == Effect::Read;
            if let Some(place) = operations.iter().position(reads) {
                let loc = vec!["operations".into(), LocSegment::Index(place as u64), "op".into()];
                let msg =
                    "a change request has no checks and no reads: `if_match` says what a record must be";
                return Err(Violation::at(loc, msg).into());
            }
            super::batch::check_operations(operations, limits)
        }
        ProposedOperations::Undelete { key } => {
            let write = Write::UndeleteDefinition(Undelete { key: key.clone(), then: None });
            check_intake(&write, limits)
        }
        ProposedOperations::Environment(write) => super::environment::check_environment(write),
    }
}

impl Principal {
    /// Whether it has a permission for everything that a change request changes.
    pub(crate) fn may_in(&self, verb: Verb, scope: &Scope) -> bool {
        self.authorize_scope(verb, scope).is_ok()
    }

    /// Authorizes a verb for everything that a change request changes.
    ///
    /// # Errors
    /// [`Refusal::Forbidden`].
    pub(crate) fn authorize_scope(&self, verb: Verb, scope: &Scope) -> Result<(), Refusal> {
        match scope {
            Scope::Definitions(keys) => {
                keys.iter().try_for_each(|key| self.authorize(verb, Some(key.as_str())))
            }
            Scope::Environment(name) => self.authorize_environment(verb, name.as_str()),
        }
    }

    /// Authorizes a new edition, whose definitions need not exist.
    pub(crate) fn authorize_edition(&self, operations: &ProposedOperations) -> Result<(), Refusal> {
        for verb in [Verb::Propose, Verb::Read] {
            match operations {
                ProposedOperations::Environment(write) => self.authorize_environment(verb, write.name())?,
                ProposedOperations::Records(_) | ProposedOperations::Undelete { .. } => {
                    operations.definitions().iter().try_for_each(|key| self.authorize(verb, Some(key)))?;
                }
            }
        }
        Ok(())
    }

    /// Authorizes the bypass of a write: `bypass` for each definition that it changes. The rules of an environment are
    /// bypassed with the root key only.
    pub(crate) fn authorize_bypass(&self, write: &Write) -> Result<(), Refusal> {
        if self.is_root() {
            return Ok(());
        }
        if write.environment().is_some() {
            return Err(Refusal::Forbidden { verb: Verb::Bypass });
        }
        // What is taken back is in the state, where the leader finds it.
        if write.change().is_some() {
            return Ok(());
        }
        let changes = |operation: &&Write| operation.effect() != Effect::Read;
        let mut definitions = write.operations().iter().filter(changes).map(Write::definition);
        definitions.try_for_each(|key| self.authorize(Verb::Bypass, Some(key)))
    }
}

/// Makes the command of a request about a change request, but not of one that applies it.
pub(super) fn prepare_change(
    state: &State,
    request: &WriteRequest,
    write: &ChangeWrite,
    with: Preparation<'_>,
) -> Result<Prepared, Refusal> {
    let id = ChangeId::parse(write.id()).ok_or(Rejection::ChangeNotFound)?;
    let principal = with.principal;
    if let ChangeWrite::Create { edition, .. } | ChangeWrite::CreateStaged { edition, .. } = write {
        if let Some(found) = find(state, &id) {
            return known(&found, request, principal);
        }
        let edition = new_edition(state, (&id, 1), (edition, write.plan()), with)?;
        let action = match write.plan() {
            None => ChangeAction::Create(Box::new(edition)),
            Some(plan) => ChangeAction::CreateStaged(Box::new(StagedEdition { edition, plan: plan.clone() })),
        };
        return Ok(propose(id, action));
    }
    let found = found_for(state, write.id(), principal)?;
    let action = match write {
        ChangeWrite::Edit { edition, if_match, .. } | ChangeWrite::EditStaged { edition, if_match, .. } => {
            edit(state, &found, (*if_match, edition, write.plan()), with)?
        }
        ChangeWrite::Rebase { seal, if_match, .. } => {
            let edition = rebased(state, &found, *seal)?;
            let plan = state.rollout(found.id()).map(|rollout| &rollout.plan);
            edit(state, &found, (*if_match, &edition, plan), with)?
        }
        ChangeWrite::Steer { steer, stage, comment, .. } => {
            steered(state, &found, (*steer, *stage, comment), principal)?
        }
        ChangeWrite::Judge { judgement, digest, comment, .. } => {
            principal.authorize_scope(Verb::Approve, found.scope())?;
            ChangeAction::Vote(Box::new(NewVote {
                opinion: match judgement {
                    ChangeJudgement::Approve => Opinion::Approval,
                    ChangeJudgement::Reject => Opinion::Rejection,
                    ChangeJudgement::Review => Opinion::Review,
                },
                edition: found.change.edition.number,
                digest: *digest,
                is_redacted: found.is_redacted_for(state, principal, with.budget)?,
                comment: comment.clone(),
            }))
        }
        ChangeWrite::Keep { digest, comment, .. } => {
            // Whether it is somebody whose approval counted, the log decides.
            let is_unasked = matches!(
                &found.change.phase,
                Phase::Applied { with: AppliedWith::Approvals(all), .. } if all.is_empty()
            );
            let verb = if is_unasked { Verb::Write } else { Verb::Approve };
            principal.authorize_scope(verb, found.scope())?;
            let (edition, digest) = (found.change.edition.number, *digest);
            ChangeAction::Keep { edition, digest, comment: comment.clone() }
        }
        ChangeWrite::Withdraw { comment, .. } => {
            if !found.is_surely_of(principal) {
                principal.authorize_scope(Verb::Approve, found.scope())?;
            }
            ChangeAction::Withdraw { comment: comment.clone() }
        }
        // The leader has replaced it by the write of its operations.
        ChangeWrite::Create { .. }
        | ChangeWrite::CreateStaged { .. }
        | ChangeWrite::Apply { .. }
        | ChangeWrite::Revert { .. } => {
            return Err(Refusal::Internal("a change request that is applied is a write of its own".into()));
        }
    };
    Ok(propose(id, action))
}

/// A change request that a client may read. The cluster reads what it applies.
fn found_for<'a>(state: &'a State, id: &str, principal: &Principal) -> Result<FoundChange<'a>, Refusal> {
    let found = ChangeId::parse(id).and_then(|id| find(state, &id));
    let sees = |found: &FoundChange<'_>| principal.is_cluster() || principal.may_see_change(found.scope());
    found.filter(sees).ok_or_else(|| Rejection::ChangeNotFound.into())
}

/// What a request to apply an edition, or to take it back, is by a state.
#[derive(Debug)]
pub(super) enum Used {
    /// The write of its operations, as a request of the same client.
    Write(Box<WriteRequest>),
    /// It was decided before. That stays so.
    Decided(Outcome),
    /// It was left to the cluster, or its rollout was begun. It may be withdrawn yet.
    Begun(Applied),
}

/// What a request to apply an edition, or to take it back, is by a state.
pub(super) fn using(
    state: &State,
    request: &WriteRequest,
    (principal, now): (&Principal, Timestamp),
) -> Result<Used, Refusal> {
    match request.write.change() {
        Some(ChangeWrite::Apply { id, digest }) => {
            applying(state, request, (id, digest), Applier { principal, now })
        }
        Some(ChangeWrite::Revert { id, digest }) => taking_back(state, request, (id, digest), principal),
        _ => Err(Refusal::Internal("only a change request is applied or taken back".into())),
    }
}

/// Makes the command that applies an edition, leaves it to the cluster, or takes it back.
pub(super) fn prepare_edition(
    state: &State,
    request: &WriteRequest,
    edition: &UsedEdition,
    with: Preparation<'_>,
) -> Result<PreparedWrite, Refusal> {
    match edition.purpose {
        EditionUse::Apply | EditionUse::Schedule | EditionUse::Begin => {
            prepare_applied(state, request, edition, with)
        }
        EditionUse::Revert { .. } => prepare_reverted(state, request, edition, with),
    }
}

fn propose(id: ChangeId, action: ChangeAction) -> Prepared {
    Prepared::Propose(PreparedWrite::of(Command::System(SystemCommand::Change { id, action })))
}

/// The response to a create whose change request exists: the same request has created it, perhaps days ago.
fn known(
    found: &FoundChange<'_>,
    request: &WriteRequest,
    principal: &Principal,
) -> Result<Prepared, Refusal> {
    let fingerprint = request.caller.idempotency_key.map(|key| key.fingerprint);
    let is_same = fingerprint.is_some() && found.change.fingerprint == fingerprint;
    if !is_same || !principal.may_see_change(found.scope()) {
        return Err(Rejection::RequestReused.into());
    }
    let done = Done::Single(StepOutcome::Created);
    Ok(Prepared::Read(Applied { revision: found.record.revision, at: found.record.created_at, done }))
}

fn edit(
    state: &State,
    found: &FoundChange<'_>,
    (if_match, edition, plan): (Option<u64>, &NewEdition, Option<&Plan>),
    with: Preparation<'_>,
) -> Result<ChangeAction, Refusal> {
    let principal = with.principal;
    principal.authorize_scope(Verb::Propose, found.scope())?;
    principal.authorize_edition(&edition.operations)?;
    let current = found.record.revision;
    if if_match.is_some_and(|revision| revision != current) {
        return Err(Rejection::Precondition { current }.into());
    }
    if !found.change.is_pending() {
        return Err(Rejection::ChangeClosed.into());
    }
    let after = found.change.edition.number;
    if found.change.is_rolling() {
        return Err(Rejection::RolloutActive { change: found.id.clone() }.into());
    }
    let edition = new_edition(state, (found.id(), after + 1), (edition, plan), with)?;
    let expect = if_match.map_or(Expect::Present, Expect::At);
    let Some(plan) = plan.cloned() else {
        return Ok(ChangeAction::Edit { after, expect, edition: Box::new(edition) });
    };
    let edition = Box::new(StagedEdition { edition, plan });
    Ok(ChangeAction::EditStaged { after, expect, edition })
}

/// What a person does with a rollout: at the stage that the person names, or at which the leader sees it. Who aborts it may
/// withdraw it, or write what it changes: who sees the harm must not wait for an approver.
fn steered(
    state: &State,
    found: &FoundChange<'_>,
    (steer, stage, comment): (RolloutSteer, Option<u32>, &str),
    principal: &Principal,
) -> Result<ChangeAction, Refusal> {
    let may_abort = found.is_surely_of(principal) || principal.may_in(Verb::Write, found.scope());
    if !(steer == RolloutSteer::Abort && may_abort) {
        principal.authorize_scope(Verb::Approve, found.scope())?;
    }
    if !found.change.is_pending() {
        return Err(Rejection::ChangeClosed.into());
    }
    let at = state.running_rollout(found.id()).map(|running| running.at());
    let at = at.filter(|at| stage.is_none_or(|stage| stage == at.passed));
    let at = at.ok_or(Rejection::RolloutStage)?;
    let comment = comment.to_owned();
    Ok(match steer {
        RolloutSteer::Pause => ChangeAction::PauseRollout { at, comment },
        RolloutSteer::Resume => ChangeAction::ResumeRollout { at },
        RolloutSteer::Advance => ChangeAction::AdvanceRollout { at, evidence: Evidence::default() },
        RolloutSteer::Abort => ChangeAction::Withdraw { comment },
    })
}

/// The same operations as a new edition. A patch is applied again.
fn rebased(state: &State, found: &FoundChange<'_>, seal: [u8; 32]) -> Result<NewEdition, Refusal> {
    let (_, stored) = found.content(state).ok_or(Rejection::ChangeClosed)?;
    let TextOf { title, description } = TextOf::of(found.record);
    let timing = found.change.edition.timing;
    Ok(NewEdition { title, description, operations: proposed(&stored)?, timing, seal })
}

/// The operations of an edition as a client would send them.
fn proposed(stored: &StoredEdition) -> Result<ProposedOperations, Refusal> {
    match &stored.operations[..] {
        [StoredOperation::UndeleteDefinition { definition, .. }] => {
            return Ok(ProposedOperations::Undelete { key: definition.to_string() });
        }
        [StoredOperation::PutEnvironment { environment, after, text }] => {
            let (name, rules) = (environment.to_string(), sent_rules(after, text));
            let write = EnvironmentWrite::Put { name, rules, expect: Expect::Any };
            return Ok(ProposedOperations::Environment(write));
        }
        [StoredOperation::DeleteEnvironment { environment }] => {
            let write = EnvironmentWrite::Delete { name: environment.to_string(), expect: Expect::Any };
            return Ok(ProposedOperations::Environment(write));
        }
        _ => {}
    }
    let mut writes = Vec::with_capacity(stored.operations.len());
    for (place, operation) in stored.operations.iter().enumerate() {
        let patch = stored.patches.get(place).and_then(Option::as_ref);
        writes.push(match (operation, patch) {
            (StoredOperation::PutConfig { definition, config, .. }, Some(patch)) => {
                let value = document::parse(patch.text.as_bytes(), STORED_JSON_DEPTH_MAX)
                    .map_err(|error| Refusal::Internal(format!("a stored patch is invalid: {error}")))?;
                let document = Document { text: Arc::clone(&patch.text), value };
                Write::PatchConfig {
                    definition: definition.to_string(),
                    key: config.to_string(),
                    patch: Patch { format: patch.format, document },
                    expect: Expect::Present,
                }
            }
            (operation, _) => {
                let mixed = || Refusal::Internal("an operation of its own among others".into());
                operation.write()?.ok_or_else(mixed)?
            }
        });
    }
    Ok(ProposedOperations::Records(writes))
}

/// Resolves an edition: validates its operations, and makes of them the data that will be stored.
fn new_edition(
    state: &State,
    (id, number): (&ChangeId, u32),
    (edition, plan): (&NewEdition, Option<&Plan>),
    with: Preparation<'_>,
) -> Result<change::NewEdition, Refusal> {
    with.principal.authorize_edition(&edition.operations)?;
    let kept_before = with.budget.kept_beyond();
    let command = match &edition.operations {
        ProposedOperations::Records(operations) => prepare_records(state, operations, with)?,
        ProposedOperations::Undelete { key } => {
            let prepared = prepare_undelete(state, &Undelete { key: key.clone(), then: None })?;
            prepared.precondition?;
            prepared.command
        }
        ProposedOperations::Environment(write) => {
            prepare_environment(state, with.principal, write, (with.now)())?.command
        }
    };
    let operations = operations_of(&command)?;
    if let Some(plan) = plan {
        plan.check().map_err(Rejection::RolloutInvalid)?;
        candidates_of(state, &operations)?;
    }
    let (scope, bases) = (scope_of(&operations), bases_of(state, &operations));
    let stored = StoredEdition::of(state, operations, &edition.operations).sent_by(state, with.principal);
    // Limits, and the figures of the cluster, count a kept secret value as what its sender may know of its length.
    let text = stored.to_text_with(with.budget.kept_beyond() - kept_before);
    let bound = |bound| Refusal::Rejected(Rejection::ChangeTooLarge(bound));
    if let Scope::Definitions(keys) = &scope
        && keys.len() > CHANGE_DEFINITIONS_MAX
    {
        return Err(bound(ChangeBound::Definitions));
    }
    if bases.len() > GUARDS_MAX - KEY_GUARDS_MAX {
        return Err(bound(ChangeBound::Bases));
    }
    if text.len() as u64 > CHANGE_CONTENT_BYTES_MAX {
        return Err(bound(ChangeBound::Content));
    }
    let named = Named { id, number, timing: &edition.timing, plan };
    Ok(change::NewEdition {
        digest: digest_of(&edition.seal, named, &bases, &stored.operations),
        scope,
        text: TextOf { title: edition.title.clone(), description: edition.description.clone() }.to_text(),
        operations: text,
        content: change::Content::new(bases, edition.seal),
        timing: edition.timing,
    })
}

/// Where a write comes from that passes the rules of environments.
pub(super) fn bypassing(
    bypass: &BypassRequest,
    title: Option<&str>,
    command: &Command,
) -> Result<Source, Refusal> {
    let id = ChangeId::parse(&bypass.id).ok_or_else(|| Refusal::Internal("a bypass without an id".into()))?;
    let operations = operations_of(command)?;
    let timing = Timing::default();
    let named = Named { id: &id, number: 1, timing: &timing, plan: None };
    let digest = digest_of(&bypass.seal, named, &[], &operations);
    let title = title.unwrap_or_default().to_owned();
    let text = TextOf { title, description: String::new() }.to_text();
    Ok(Source::Bypass(Box::new(Bypass { id, digest, text })))
}

#[cfg(test)]
mod tests;
