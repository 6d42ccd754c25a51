//! The write that applies an edition of a change request.
//!
//! To apply a change request is a write of its own operations. [`Writes::decide`](crate::write::Writes) replaces the
//! request by that write before it is prepared, so locks, barriers and checks of all configs are those of any other
//! write. Before the window of its schedule, the same preparation ends in the command that leaves it to the cluster.
//!
//! **Invariant:** for each operation that is applied, the sender of the edition, an approver who counts, who left it to
//! the cluster, or the applier has every permission that the operation alone needs.

use std::sync::Arc;

use super::{
    super::{
        batch::prepare_records,
        prepare::{Preparation, PreparedWrite},
    },
    Used, found_for,
};
use crate::{
    approvers::check_approvers,
    editions::{
        FoundChange, approvers as approvers_of_parts,
        content::{Doing, Named, StoredOperation, candidates_of, digest_of, doing, operations_of},
        counted_approvers, rules_read, stale_base, stale_operation,
    },
    policy::Policy,
    request::{EditionUse, EnvironmentWrite, Principal, Refusal, Undelete, UsedEdition, Write, WriteRequest},
};
use concord_model::{
    access_key::{AccessKey, Author, Verb},
    command::{
        Applied, ChangeAction, Command, Done, Expect, StepOutcome, SystemCommand,
        source::{ChangeUse, Guard, Source, Tail},
        touched::Touch,
    },
    error::Rejection,
    system::change::{ApplyMode, ChangeDigest, Party, Phase, Scope},
    time::Timestamp,
};
use concord_state::State;

/// Who applies a change request, and when.
#[derive(Clone, Copy)]
pub(super) struct Applier<'a> {
    pub(super) principal: &'a Principal,
    /// The time of the log.
    pub(super) now: Timestamp,
}

/// What an apply of an edition is.
pub(super) fn applying(
    state: &State,
    request: &WriteRequest,
    (id, digest): (&str, &ChangeDigest),
    applier: Applier<'_>,
) -> Result<Used, Refusal> {
    let found = found_for(state, id, applier.principal)?;
    authorize_applier(applier.principal, found.scope())?;
    let edition = &found.change.edition;
    let is_early = edition.timing.apply == ApplyMode::Manual
        && edition.timing.window.is_some_and(|window| applier.now < window.not_before);
    let done = |revision, at| Applied { revision, at, done: Done::Single(StepOutcome::Changed) };
    match &found.change.phase {
        // A retry, or another applier: it was applied once, or left to the cluster once.
        Phase::Applied { revision, at, .. } if edition.digest == *digest => {
            return Ok(Used::Decided(Ok(done(*revision, *at))));
        }
        Phase::Scheduled { at, .. } if edition.digest == *digest && is_early => {
            return Ok(Used::Begun(done(found.record.revision, *at)));
        }
        // Its rollout has begun once. The cluster applies it at its end.
        Phase::Rolling { at, .. } if edition.digest == *digest && !applier.principal.is_cluster() => {
            return Ok(Used::Begun(done(found.record.revision, *at)));
        }
        Phase::Applied { .. } | Phase::Closed { .. } => return Err(Rejection::ChangeClosed.into()),
        Phase::Held => return Err(Rejection::ChangeHeld.into()),
        Phase::Open | Phase::Scheduled { .. } | Phase::Rolling { .. } => {}
    }
    if edition.digest != *digest {
        return Err(Rejection::ChangeDigest.into());
    }
    let (content, stored) = found.content(state).ok_or(Rejection::ChangeDigest)?;
    let (write, alone) = match doing(&stored.operations, &content.bases)? {
        Doing::Writes(writes) => (Write::Batch(writes), None),
        Doing::Alone(command) => (named_by(&command), Some(*command)),
    };
    let is_left = is_early && !applier.principal.is_cluster();
    let mut inner = WriteRequest::new(request.caller.clone(), write);
    inner.edition = Some(Box::new(UsedEdition {
        purpose: match state.rollout(&found.id) {
            _ if is_left => EditionUse::Schedule,
            Some(rollout) if !rollout.is_running() => EditionUse::Begin,
            Some(_) | None => EditionUse::Apply,
        },
        id: found.id.clone(),
        number: edition.number,
        digest: *digest,
        seal: content.digest_key,
        bases: content.bases.clone(),
        alone,
    }));
    Ok(Used::Write(Box::new(inner)))
}

/// A write that is about the same record as a command that is alone in its change request.
fn named_by(command: &Command) -> Write {
    let name = command.touches().find_map(|(_, touch)| match touch {
        Touch::Definition(key) => Some(key.to_string()),
        Touch::Environment(_) => None,
    });
    match (name, command) {
        (Some(key), _) => Write::UndeleteDefinition(Undelete { key, then: None }),
        (None, Command::System(command)) => {
            let name = command.environment().map(|change| change.name.to_string()).unwrap_or_default();
            Write::Environment(EnvironmentWrite::Delete { name, expect: Expect::Any })
        }
        (None, _) => Write::Batch(Vec::new()),
    }
}

/// Who may apply: a client that may propose, approve or make such changes; and the cluster what was left to it, which the
/// log decides.
fn authorize_applier(principal: &Principal, scope: &Scope) -> Result<(), Refusal> {
    let verbs = [Verb::Propose, Verb::Approve, Verb::Write, Verb::Define, Verb::Delete];
    if principal.is_cluster() || verbs.into_iter().any(|verb| principal.may_in(verb, scope)) {
        return Ok(());
    }
    Err(Refusal::Forbidden { verb: Verb::Propose })
}

/// Makes the command that applies an edition, or leaves it to the cluster. `with`: of the applier.
pub(super) fn prepare_applied(
    state: &State,
    request: &WriteRequest,
    edition: &UsedEdition,
    with: Preparation<'_>,
) -> Result<PreparedWrite, Refusal> {
    let found = found_for(state, edition.id.as_str(), with.principal)?;
    // The applier's key may have changed since the change request was found.
    authorize_applier(with.principal, found.scope())?;
    let approvers = counted_approvers(state, &found)?;
    if let Some(text) = stale_base(state, &edition.bases) {
        return Err(Refusal::ChangeStale(text));
    }
    // The data was checked against the secret values that its sender may see. The permissions are checked below.
    let root = Principal::root();
    let of_edition = Preparation { principal: &root, ..with };
    let command = match &edition.alone {
        Some(command) => command.clone(),
        None => prepare_records(state, request.write.operations(), of_edition)?,
    };
    let operations = operations_of(&command)?;
    let timing = &found.change.edition.timing;
    let plan = state.rollout(&edition.id).map(|rollout| &rollout.plan);
    let named = Named { id: &edition.id, number: edition.number, timing, plan };
    let digest = digest_of(&edition.seal, named, &edition.bases, &operations);
    if digest != edition.digest {
        return Err(Rejection::ChangeDigest.into());
    }
    if let Some(text) = operations.iter().find_map(|operation| stale_operation(state, operation)) {
        return Err(Refusal::ChangeStale(text));
    }
    if let Some(Command::System(SystemCommand::PutEnvironment { name, after, .. })) = &edition.alone {
        // There were enough of them when it was sent.
        check_approvers(state, name, after, (with.now)())?;
    }
    let policy = with.policies.of(state);
    let people = People::of(state, (&found, &policy), with.principal, approvers)?;
    people.check_permissions(state, &operations)?;
    // How many approvals count for each definition rests on its rules, and on the keys of the people.
    let mut guards = rules_read(state, found.scope());
    let of_parts = approvers_of_parts(state, found.change).into_iter().map(|(_, key)| key);
    for key in people.keys.iter().copied().chain(of_parts) {
        let guard = Guard::AccessKey { id: key.id.clone(), revision: key.revision };
        if !guards.contains(&guard) {
            guards.push(guard);
        }
    }
    if people.rests_on_roles {
        guards.push(Guard::Policy { revision: policy.revision() });
    }
    let id = edition.id.clone();
    if edition.purpose == EditionUse::Schedule {
        let action = ChangeAction::Schedule { edition: edition.number, digest };
        let command = Command::System(SystemCommand::Change { id, action });
        return Ok(PreparedWrite { tail: Tail::of(Source::Direct, guards), ..PreparedWrite::of(command) });
    }
    // The log decides. What it would reject now need not be written into it, perhaps every half a minute during a freeze.
    let author = if with.principal.is_cluster() { Author::Cluster } else { Author::Root };
    if edition.purpose == EditionUse::Begin {
        let candidates = candidates_of(state, &operations)?;
        state.expect_beginnable((with.now)(), (&id, edition.number, &digest), &candidates, &author)?;
        let action = ChangeAction::BeginRollout { edition: edition.number, digest, candidates };
        let command = Command::System(SystemCommand::Change { id, action });
        return Ok(PreparedWrite { tail: Tail::of(Source::Direct, guards), ..PreparedWrite::of(command) });
    }
    let used = ChangeUse { id, edition: edition.number, digest };
    state.expect_applicable((with.now)(), &command, (&author, &used))?;
    Ok(PreparedWrite { tail: Tail::of(Source::Change(used), guards), ..PreparedWrite::of(command) })
}

/// Those who together hold every permission that an apply needs.
struct People<'a> {
    all: Vec<Principal>,
    /// Their keys, except the applier's.
    keys: Vec<&'a Arc<AccessKey>>,
    /// Whether one of them is a machine, whose permissions follow from the roles of now.
    rests_on_roles: bool,
}

impl<'a> People<'a> {
    /// The sender, the approvers and the applier. When the cluster applies it, the sender must still be there, and who left
    /// it to the cluster or began its rollout takes the place of the applier.
    fn of(
        state: &'a State,
        (found, policy): (&FoundChange<'_>, &Policy),
        applier: &Principal,
        approvers: Vec<&'a Arc<AccessKey>>,
    ) -> Result<Self, Refusal> {
        let mut all = vec![applier.clone()];
        let sender = found.sender_key(state);
        let machine = sender_machine(state, found, policy);
        let rests_on_roles = machine.is_some();
        let mut keys: Vec<&Arc<AccessKey>> = sender.into_iter().chain(approvers).collect();
        if applier.is_cluster() {
            let (scheduler, beginner) = (found.scheduler(), found.beginner());
            let parties = [Some(&found.change.edition.sender), scheduler, beginner];
            let is_of_root = parties.contains(&Some(&Party::Root));
            if is_of_root && !state.is_root_disabled() {
                all.push(Principal::root());
            }
            expect_sender(state, found, machine.as_ref())?;
            let askers = [scheduler, beginner].into_iter().flatten();
            keys.extend(askers.filter_map(|party| party_key(state, party)));
        }
        all.extend(machine);
        all.extend(keys.iter().map(|key| Principal::of_key(Arc::clone(key), 0)));
        Ok(Self { all, keys, rests_on_roles })
    }

    /// Nobody gains a permission: for each operation, one of the people has every permission that it needs.
    fn check_permissions(&self, state: &State, operations: &[StoredOperation]) -> Result<(), Refusal> {
        for (place, operation) in (0..).zip(operations) {
            let needed = operation.needs(state);
            if !self.all.iter().any(|one| operation.may(one, needed)) {
                let verb = needed.first().copied().unwrap_or(Verb::Write);
                return Err(Refusal::Forbidden { verb }.of_operation(place));
            }
        }
        Ok(())
    }
}

/// The machine that has sent an edition, with the permissions that its claims give by the roles of now. What its provider
/// trusts no more gives none.
fn sender_machine(state: &State, found: &FoundChange<'_>, policy: &Policy) -> Option<Principal> {
    let Party::Machine(machine) = &found.change.edition.sender else { return None };
    if !state.trusts_since(machine.provider, machine.opened) {
        return None;
    }
    let (_, stored) = found.content(state)?;
    Some(Principal::with_grants(stored.machine?.grants(policy)?))
}

/// What the cluster applies needs its sender: the key exists and may still propose it, whether it has expired or not; a
/// machine still has a role.
fn expect_sender(state: &State, found: &FoundChange<'_>, machine: Option<&Principal>) -> Result<(), Refusal> {
    if found.change.edition.sender == Party::Root {
        return if state.is_root_disabled() { Err(Rejection::SenderEnded.into()) } else { Ok(()) };
    }
    let key = found.sender_key(state).map(|key| Principal::of_key(Arc::clone(key), 0));
    let sender = key.as_ref().or(machine).ok_or(Rejection::SenderEnded)?;
    [Verb::Propose, Verb::Read].into_iter().try_for_each(|verb| sender.authorize_scope(verb, found.scope()))
}

fn party_key<'a>(state: &'a State, party: &Party) -> Option<&'a Arc<AccessKey>> {
    match party {
        Party::Root | Party::Machine(_) => None,
        Party::Key { id, .. } => state.access_key(id),
    }
}
