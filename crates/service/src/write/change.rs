//! Change requests on the leader: their editions, the votes on them, and the write that applies one.
//!
//! The leader computes what the log can't: merges, validation, the digest of the data, and the permissions of people for
//! each definition. The command names what that rests on. The log decides everything else, and makes the record
//! (`crates/state/src/change`).
//!
//! To apply a change request is a write of its own operations. [`Writes::decide`](super::Writes) replaces the request
//! by that write before it is prepared, so locks, barriers and checks of all configs are those of any other write.
//!
//! **Invariants:** nothing here changes anything. A change request of which a client may not read every definition does
//! not exist for it. For each operation that is applied, the sender of the edition, an approver who counts or the
//! applier has every permission that the operation alone needs.

use std::sync::Arc;

use super::{
    batch::prepare_records,
    environment::{prepare_environment, sent_rules},
    prepare::{Preparation, Prepared, PreparedWrite, check_intake},
    undelete::prepare_undelete,
};
use crate::{
    approvers::check_approvers,
    editions::{
        FoundChange, StoredEdition, TextOf,
        content::{Doing, StoredOperation, bases_of, digest_of, doing, operations_of, scope_of},
        counted_approvers, find, rules_read, stale_base, stale_operation,
    },
    request::{
        AppliedEdition, BypassRequest, ChangeJudgement, ChangeWrite, Effect, EnvironmentWrite, NewEdition,
        Principal, ProposedOperations, Refusal, STORED_JSON_DEPTH_MAX, Undelete, Write, WriteRequest,
        check_words,
    },
};
use concord_model::{
    access_key::{AccessKey, Verb},
    command::{
        Applied, ChangeAction, Command, Done, Expect, StepOutcome, SystemCommand,
        source::{Bypass, ChangeUse, Guard, Source, Tail},
        touched::Touch,
    },
    document::{self, Document},
    error::{ChangeBound, Invalid, LocSegment, Rejection, Violation},
    limits::{
        CHANGE_COMMENT_BYTES_MAX, CHANGE_CONTENT_BYTES_MAX, CHANGE_DEFINITIONS_MAX,
        CHANGE_DESCRIPTION_BYTES_MAX, CHANGE_OPERATIONS_MAX, CHANGE_TITLE_BYTES_MAX, GUARDS_MAX, Limits,
    },
    patch::Patch,
    system::change::{self, ChangeId, NewVote, Opinion, Phase, Scope},
};
use concord_state::State;

/// Guards that an edition leaves for the access keys of people: one for each approval, and some.
const KEY_GUARDS_MAX: usize = 32;

/// Validates what needs no state.
pub(super) fn check_change(write: &ChangeWrite, limits: &Limits) -> Result<(), Invalid> {
    if let ChangeWrite::Judge { comment, .. } | ChangeWrite::Withdraw { comment, .. } = write {
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
    if let ChangeWrite::Create { edition, .. } = write {
        if let Some(found) = find(state, &id) {
            return known(&found, request, principal);
        }
        let edition = new_edition(state, (&id, 1), edition, with)?;
        return Ok(propose(id, ChangeAction::Create(Box::new(edition))));
    }
    let found = find(state, &id).filter(|found| principal.may_in(Verb::Read, found.scope()));
    let found = found.ok_or(Rejection::ChangeNotFound)?;
    let action = match write {
        ChangeWrite::Edit { edition, if_match, .. } => edit(state, &found, (*if_match, edition), with)?,
        ChangeWrite::Rebase { seal, if_match, .. } => {
            let edition = rebased(state, &found, *seal)?;
            edit(state, &found, (*if_match, &edition), with)?
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
        ChangeWrite::Withdraw { comment, .. } => {
            if !found.is_surely_of(principal) {
                principal.authorize_scope(Verb::Approve, found.scope())?;
            }
            ChangeAction::Withdraw { comment: comment.clone() }
        }
        // The leader has replaced it by the write of its operations.
        ChangeWrite::Create { .. } | ChangeWrite::Apply { .. } => {
            return Err(Refusal::Internal("a change request that is applied is a write of its own".into()));
        }
    };
    Ok(propose(id, action))
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
    if !is_same || !principal.may_in(Verb::Read, found.scope()) {
        return Err(Rejection::RequestReused.into());
    }
    let done = Done::Single(StepOutcome::Created);
    Ok(Prepared::Read(Applied { revision: found.record.revision, at: found.record.created_at, done }))
}

fn edit(
    state: &State,
    found: &FoundChange<'_>,
    (if_match, edition): (Option<u64>, &NewEdition),
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
    let edition = new_edition(state, (found.id(), after + 1), edition, with)?;
    let expect = if_match.map_or(Expect::Present, Expect::At);
    Ok(ChangeAction::Edit { after, expect, edition: Box::new(edition) })
}

/// The same operations as a new edition. A patch is applied again.
fn rebased(state: &State, found: &FoundChange<'_>, seal: [u8; 32]) -> Result<NewEdition, Refusal> {
    let (_, stored) = found.content(state).ok_or(Rejection::ChangeClosed)?;
    let TextOf { title, description } = TextOf::of(found.record);
    Ok(NewEdition { title, description, operations: proposed(&stored)?, seal })
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
    edition: &NewEdition,
    with: Preparation<'_>,
) -> Result<change::NewEdition, Refusal> {
    with.principal.authorize_edition(&edition.operations)?;
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
    let (scope, bases) = (scope_of(&operations), bases_of(state, &operations));
    let stored = StoredEdition::of(state, operations, &edition.operations);
    let text = stored.to_text();
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
    Ok(change::NewEdition {
        digest: digest_of(&edition.seal, (id, number), &bases, &stored.operations),
        scope,
        text: TextOf { title: edition.title.clone(), description: edition.description.clone() }.to_text(),
        operations: text,
        content: change::Content { bases, digest_key: edition.seal },
    })
}

/// The write that applies an edition, as a request of the same client; or what was decided before.
pub(super) fn applying(
    state: &State,
    request: &WriteRequest,
    principal: &Principal,
) -> Result<Result<WriteRequest, Applied>, Refusal> {
    let Some(ChangeWrite::Apply { id, digest }) = request.write.change() else {
        return Err(Refusal::Internal("only a change request is applied".into()));
    };
    let id = ChangeId::parse(id).ok_or(Rejection::ChangeNotFound)?;
    let found = find(state, &id).filter(|found| principal.may_in(Verb::Read, found.scope()));
    let found = found.ok_or(Rejection::ChangeNotFound)?;
    authorize_applier(principal, found.scope())?;
    let edition = &found.change.edition;
    match &found.change.phase {
        // A retry, or another applier: it was applied once.
        Phase::Applied { revision, at, .. } if edition.digest == *digest => {
            let done = Done::Single(StepOutcome::Changed);
            return Ok(Err(Applied { revision: *revision, at: *at, done }));
        }
        Phase::Applied { .. } | Phase::Closed { .. } => return Err(Rejection::ChangeClosed.into()),
        Phase::Held => return Err(Rejection::ChangeHeld.into()),
        Phase::Open => {}
    }
    if edition.digest != *digest {
        return Err(Rejection::ChangeDigest.into());
    }
    let (content, stored) = found.content(state).ok_or(Rejection::ChangeDigest)?;
    let (write, alone) = match doing(&stored.operations, &content.bases)? {
        Doing::Writes(writes) => (Write::Batch(writes), None),
        Doing::Alone(command) => (named_by(&command), Some(*command)),
    };
    let mut inner = WriteRequest::new(request.caller.clone(), write);
    inner.edition = Some(Box::new(AppliedEdition {
        id,
        number: edition.number,
        digest: *digest,
        seal: content.digest_key,
        bases: content.bases.clone(),
        alone,
    }));
    Ok(Ok(inner))
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

/// Who may apply: a client that may propose, approve or make such changes.
pub(super) fn authorize_applier(principal: &Principal, scope: &Scope) -> Result<(), Refusal> {
    let verbs = [Verb::Propose, Verb::Approve, Verb::Write, Verb::Define, Verb::Delete];
    if verbs.into_iter().any(|verb| principal.may_in(verb, scope)) {
        return Ok(());
    }
    Err(Refusal::Forbidden { verb: Verb::Propose })
}

/// Makes the command that applies an edition. `with`: of the applier.
pub(super) fn prepare_applied(
    state: &State,
    request: &WriteRequest,
    edition: &AppliedEdition,
    with: Preparation<'_>,
) -> Result<PreparedWrite, Refusal> {
    let found = find(state, &edition.id).filter(|found| with.principal.may_in(Verb::Read, found.scope()));
    let found = found.ok_or(Rejection::ChangeNotFound)?;
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
    let digest = digest_of(&edition.seal, (&edition.id, edition.number), &edition.bases, &operations);
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
    // How many approvals count for each definition rests on its rules, and on the keys of the people.
    let mut guards = rules_read(state, found.scope());
    let sender = found.sender_key(state);
    let people: Vec<&Arc<AccessKey>> = sender.into_iter().chain(approvers).collect();
    check_permissions(state, &operations, with.principal, &people)?;
    for key in people {
        let guard = Guard::AccessKey { id: key.id.clone(), revision: key.revision };
        if !guards.contains(&guard) {
            guards.push(guard);
        }
    }
    let used = ChangeUse { id: edition.id.clone(), edition: edition.number, digest };
    Ok(PreparedWrite { tail: Tail::of(Source::Change(used), guards), ..PreparedWrite::of(command) })
}

/// Nobody gains a permission: for each operation, one of the people has every permission that it needs.
fn check_permissions(
    state: &State,
    operations: &[StoredOperation],
    applier: &Principal,
    people: &[&Arc<AccessKey>],
) -> Result<(), Refusal> {
    let people: Vec<Principal> = people.iter().map(|key| Principal::of_key(Arc::clone(key), 0)).collect();
    for (place, operation) in (0..).zip(operations) {
        let needed = operation.needs(state);
        let may = |one: &Principal| operation.may(one, needed);
        if !may(applier) && !people.iter().any(may) {
            let verb = needed.first().copied().unwrap_or(Verb::Write);
            return Err(Refusal::Forbidden { verb }.of_operation(place));
        }
    }
    Ok(())
}

/// Where a write comes from that passes the rules of environments.
pub(super) fn bypassing(
    bypass: &BypassRequest,
    title: Option<&str>,
    command: &Command,
) -> Result<Source, Refusal> {
    let id = ChangeId::parse(&bypass.id).ok_or_else(|| Refusal::Internal("a bypass without an id".into()))?;
    let operations = operations_of(command)?;
    let digest = digest_of(&bypass.seal, (&id, 1), &[], &operations);
    let title = title.unwrap_or_default().to_owned();
    let text = TextOf { title, description: String::new() }.to_text();
    Ok(Source::Bypass(Box::new(Bypass { id, digest, text })))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        budget::Budget,
        request::{
            Check, CheckCondition, EnvironmentRules, LazySchema, NewProtection, NewSchema, Transaction,
        },
        schemas::Validators,
        testing::owner,
        write::{conceal::without_values, testing},
    };
    use concord_model::{
        access_key::{Author, Grant, Grants, KeyId, KeyUse, Pattern, Quota},
        command::{AccessCommand, IdempotencyKey, KeyTerms, Verdict},
        system::person::PersonLabel,
        time::Timestamp,
    };

    const ID: &str = "Abcdefghijkl";

    fn apply(state: &mut State, author: Author, prepared: PreparedWrite) {
        let proposal = testing::request(Write::Batch(Vec::new())).proposal(Timestamp(1), prepared, author);
        let verdict = state.apply(state.revision() + 1, &proposal).0;
        assert!(matches!(verdict, Verdict::Decided(Ok(_))), "{verdict:?}");
    }

    fn by_root(state: &mut State, command: Command) {
        apply(state, Author::Root, PreparedWrite::of(command));
    }

    fn write(state: &mut State, write: Write) {
        let prepared = testing::proposed(state, &testing::request(write));
        apply(state, Author::Root, prepared);
    }

    fn define(key: &str) -> Write {
        let (key, indexes) = (key.into(), Vec::new());
        Write::CreateDefinition { key, indexes, schema: None, format_assertion: None }
    }

    fn put(definition: &str, data: Value) -> Write {
        let (definition, key, data) = (definition.into(), "k".into(), Document::new(data));
        Write::WriteConfig { definition, key, data, expect: Expect::Any }
    }

    fn delete(key: &str, purge: bool) -> Write {
        Write::DeleteDefinition { key: key.into(), expect: Expect::Present, restrict: false, purge }
    }

    fn set_schema(key: &str, schema: Value) -> Write {
        Write::SetSchema(NewSchema {
            key: key.into(),
            schema: Some(Document::new(schema)),
            format_assertion: None,
            expect: Expect::Present,
            force: false,
            compiled: LazySchema::default(),
        })
    }

    /// A key with these permissions for everything, which the root key or a key has made.
    fn make_key(state: &mut State, author: Author, id: &str, person: &str, verbs: &[Verb]) -> Principal {
        let definitions = vec![Pattern::parse("*").unwrap()];
        let terms = KeyTerms {
            name: "k".into(),
            grants: Grants(vec![Grant { verbs: verbs.iter().copied().collect(), definitions }]),
            quota: Quota::default(),
            expires_at: None,
        };
        let id = KeyId::parse(id).unwrap();
        let person = PersonLabel::parse(person).ok();
        let create = AccessCommand::Create { id: id.clone(), terms, sha256: [1; 32], person };
        apply(state, author, PreparedWrite::of(Command::Access(create)));
        Principal::of_key(Arc::clone(state.access_key(&id).unwrap()), state.revision())
    }

    fn author(state: &State, principal: &Principal) -> Author {
        let Some(key) = &principal.key else { return Author::Root };
        let revision = state.access_key(&key.id).unwrap().revision;
        Author::Key(KeyUse { id: key.id.clone(), revision, secret: principal.secret })
    }

    fn change(principal: &Principal, write: ChangeWrite) -> WriteRequest {
        testing::request_by(principal.clone(), Write::Change(Box::new(write)))
    }

    fn propose(state: &mut State, principal: &Principal, operations: ProposedOperations) {
        let edition = NewEdition { title: "t".into(), description: String::new(), operations, seal: [7; 32] };
        let create = change(principal, ChangeWrite::Create { id: ID.into(), edition });
        let prepared = testing::proposed(state, &create);
        let author = author(state, principal);
        apply(state, author, prepared);
    }

    fn found(state: &State) -> FoundChange<'_> {
        find(state, &ChangeId::parse(ID).unwrap()).unwrap()
    }

    /// The request that applies it.
    fn begun(state: &State, principal: &Principal) -> WriteRequest {
        let digest = found(state).change.edition.digest;
        let request = change(principal, ChangeWrite::Apply { id: ID.into(), digest });
        applying(state, &request, principal).unwrap().unwrap()
    }

    /// What a later preparation makes of it.
    fn prepared(
        state: &State,
        request: &WriteRequest,
        principal: &Principal,
    ) -> Result<PreparedWrite, Refusal> {
        let (validators, limits) = (Validators::default(), Limits::default());
        let budget = &Budget::of_test(&request.write);
        let now = &|| Timestamp(1);
        let with = Preparation { validators: &validators, limits: &limits, budget, principal, now };
        prepare_applied(state, request, request.edition.as_ref().unwrap(), with)
    }

    fn with_change_of(definition: &str) -> State {
        let mut state = State::new();
        write(&mut state, define(definition));
        let operations = ProposedOperations::Records(vec![put(definition, json!({"n": 1}))]);
        propose(&mut state, &Principal::root(), operations);
        state
    }

    #[test]
    fn an_apply_rests_on_the_rules_by_which_approvals_were_counted() {
        let guards = |state: &State| {
            let root = Principal::root();
            prepared(state, &begun(state, &root), &root).unwrap().tail.unwrap().guards
        };
        let rules = |name: &str, approvals| {
            let (name, rules) = (name.into(), EnvironmentRules::default());
            let rules = EnvironmentRules { approvals: Some(approvals), ..rules };
            Write::Environment(EnvironmentWrite::Put { name, rules, expect: Expect::Any })
        };
        for (definition, changed) in [("prod.x", "prod"), ("prod.x", "default"), ("x", "default")] {
            let mut state = with_change_of(definition);
            let read = guards(&state);
            assert_eq!(state.failed_guard(&read), None);
            write(&mut state, rules("other", 0));
            assert_eq!(state.failed_guard(&read), None, "other environments do not matter");
            write(&mut state, rules(changed, 0));
            assert!(state.failed_guard(&read).is_some(), "{definition} {changed}");
        }
        let mut state = with_change_of("prod.x");
        write(&mut state, rules("prod", 0));
        let read = guards(&state);
        write(&mut state, rules("default", 0));
        assert_eq!(state.failed_guard(&read), None, "the default does not apply where there are own rules");
    }

    #[test]
    fn an_applier_is_authorized_by_each_preparation() {
        let state = with_change_of("d");
        let applier = owner(&[Verb::Read, Verb::Propose]);
        let begun = begun(&state, &applier);
        prepared(&state, &begun, &Principal::root()).unwrap();
        let refused = |verbs: &[Verb]| prepared(&state, &begun, &owner(verbs)).unwrap_err();
        assert_eq!(refused(&[]), Rejection::ChangeNotFound.into());
        assert_eq!(refused(&[Verb::Propose, Verb::Write]), Rejection::ChangeNotFound.into());
        assert_eq!(refused(&[Verb::Read]), Refusal::Forbidden { verb: Verb::Propose });
    }

    #[test]
    fn a_deletion_that_is_not_kept_any_more_is_not_undone() {
        let (mut state, root) = (State::new(), Principal::root());
        write(&mut state, define("d"));
        write(&mut state, delete("d", false));
        propose(&mut state, &root, ProposedOperations::Undelete { key: "d".into() });
        let begun = begun(&state, &root);
        prepared(&state, &begun, &root).unwrap();
        write(&mut state, Write::UndeleteDefinition(Undelete { key: "d".into(), then: None }));
        write(&mut state, delete("d", true));
        let refused = prepared(&state, &begun, &root).unwrap_err();
        assert!(matches!(refused, Refusal::ChangeStale(_)), "{refused:?}");
    }

    #[test]
    fn rules_that_nobody_can_approve_any_more_are_not_applied() {
        let (mut state, root) = (State::new(), Principal::root());
        let verbs = [Verb::Approve, Verb::Read];
        make_key(&mut state, Author::Root, "AAAAAAAAAAAA", "ada", &verbs);
        let bob = make_key(&mut state, Author::Root, "BBBBBBBBBBBB", "bob", &verbs);
        let rules = EnvironmentRules::default();
        let rules = EnvironmentRules { approvals: Some(1), ..rules };
        let put = EnvironmentWrite::Put { name: "prod".into(), rules, expect: Expect::Any };
        propose(&mut state, &root, ProposedOperations::Environment(put));
        let begun = begun(&state, &root);
        prepared(&state, &begun, &root).unwrap();
        let id = bob.key.as_ref().unwrap().id.clone();
        by_root(&mut state, Command::Access(AccessCommand::Revoke { id, expect: Expect::Any }));
        let refused = prepared(&state, &begun, &root).unwrap_err();
        assert!(matches!(refused, Refusal::Invalid(_)), "{refused:?}");
    }

    #[test]
    fn a_key_that_only_claims_its_person_withdraws_nothing() {
        let mut state = State::new();
        write(&mut state, define("d"));
        let (read, propose_read) = ([Verb::Read], [Verb::Read, Verb::Propose]);
        let maker = make_key(&mut state, Author::Root, "MMMMMMMMMMMM", "mia", &[Verb::Keys, Verb::Read]);
        let bob = make_key(&mut state, Author::Root, "BBBBBBBBBBBB", "bob", &propose_read);
        let bobs = make_key(&mut state, Author::Root, "CCCCCCCCCCCC", "bob", &read);
        let by_maker = author(&state, &maker);
        let claimed = make_key(&mut state, by_maker, "DDDDDDDDDDDD", "bob", &read);
        let operations = ProposedOperations::Records(vec![put("d", json!({}))]);
        propose(&mut state, &bob, operations);
        let withdraw = |principal: &Principal| {
            let withdraw = ChangeWrite::Withdraw { id: ID.into(), comment: String::new() };
            testing::prepared(&state, &change(principal, withdraw)).map(drop)
        };
        assert_eq!(withdraw(&claimed), Err(Refusal::Forbidden { verb: Verb::Approve }));
        assert_eq!(withdraw(&maker), Err(Refusal::Forbidden { verb: Verb::Approve }));
        assert_eq!((withdraw(&bob), withdraw(&bobs)), (Ok(()), Ok(())));
    }

    #[test]
    fn a_vote_says_whether_its_preview_hid_something() {
        let marked = json!({"properties": {"pw": {"x-concord-secret": true}}});
        let is_redacted = |state: &State, verbs: &[Verb]| {
            let budget = Budget::of_test(&put("d", json!({})));
            found(state).is_redacted_for(state, &owner(verbs), &budget).unwrap()
        };
        let (blind, seeing) = ([Verb::Read, Verb::Approve], [Verb::Read, Verb::Approve, Verb::Reveal]);
        let mut state = with_change_of("d");
        assert!(!is_redacted(&state, &blind), "nothing is marked");
        let protect = NewProtection { key: "d".into(), protected: true, expect: Expect::Present };
        write(&mut state, Write::SetProtection(protect));
        assert!(is_redacted(&state, &blind), "the marks of then are not known");
        assert!(!is_redacted(&state, &seeing));

        let mut state = State::new();
        write(&mut state, define("d"));
        let operations = vec![set_schema("d", marked), put("d", json!({"pw": "hunter2"}))];
        propose(&mut state, &Principal::root(), ProposedOperations::Records(operations));
        assert!(is_redacted(&state, &blind), "the edition marks it");
        assert!(!is_redacted(&state, &seeing));
    }

    #[test]
    fn an_applier_without_reveal_is_not_told_the_values_that_violate_a_schema() {
        let mut state = State::new();
        write(&mut state, define("open"));
        write(&mut state, define("d"));
        write(&mut state, set_schema("d", json!({"properties": {"pw": {"x-concord-secret": true}}})));
        let told = |definition: &str, verbs: &[Verb]| {
            let breaks =
                Refusal::Breaks { count: 1, violations: vec![Violation::new("'hunter2' is no number")] };
            let batch = Write::Batch(vec![set_schema(definition, json!({}))]);
            let shown = without_values(breaks.of_operation(0), &owner(verbs), &batch, &state);
            format!("{shown:?}").contains("hunter2")
        };
        assert!(!told("d", &[Verb::Read, Verb::Propose]));
        assert!(told("d", &[Verb::Read, Verb::Propose, Verb::Reveal]));
        assert!(told("open", &[Verb::Read, Verb::Propose]), "it has no secret values");
    }

    #[test]
    fn a_bypass_that_changes_nothing_makes_no_record() {
        let mut state = State::new();
        write(&mut state, define("d"));
        let tail = |exists: bool| {
            let condition = CheckCondition::Exists(exists);
            let check = Write::Check(Check { definition: "d".into(), key: "k".into(), condition });
            let operations = vec![check, put("d", json!({}))];
            let transaction = Transaction { operations, conditions: 1, then: 1 };
            let mut request = testing::request(Write::Transaction(transaction));
            request.caller.bypass = Some(BypassRequest { id: ID.into(), seal: [7; 32] });
            request.caller.idempotency_key = Some(IdempotencyKey { id: [1; 16], fingerprint: [2; 16] });
            testing::proposed(&state, &request).tail
        };
        assert!(tail(false).is_some());
        assert!(tail(true).is_none());
    }
}
