//! Editions of change requests: their stored content, what it rests on, and whose approvals count.
//!
//! | topic | file |
//! |---|---|
//! | stored operations, what they rest on, the digest | `content` |
//! | how much of their data a client is shown | `shown` |
//!
//! The log decides whether the approvals suffice (`crates/state/src/change/mod.rs`). What is here in addition is what the
//! leader alone knows: the permissions of the people for each definition.
//!
//! **Invariant:** an edition names what it rests on by revisions. Nothing here changes anything.

pub(crate) mod content;
pub(crate) mod shown;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::{
    budget::Budget,
    policy::{Policy, texts::SessionText},
    request::{Principal, ProposedOperations, Refusal, Write},
};
use concord_identity::Claims;
use concord_model::{
    access_key::{AccessKey, Grants, Verb},
    command::source::Guard,
    error::Rejection,
    key::Key,
    patch::PatchFormat,
    record::Revision,
    sabotage,
    system::{
        SystemRecord,
        change::{Change, ChangeId, Content, Opinion, Party, Phase, Scope},
        environment::{DEFAULT_ENVIRONMENT, EnvironmentName, environment_name},
        person::PersonId,
    },
};
use concord_state::State;

use content::{Place, StoredOperation};
use shown::{Shown, marking};

/// The text of a change request's record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TextOf {
    /// What it is, in a line.
    pub(crate) title: String,
    /// Why; empty for nothing.
    pub(crate) description: String,
}

impl TextOf {
    pub(crate) fn to_text(&self) -> Arc<str> {
        serde_json::to_string(self).expect("two texts are JSON").into()
    }

    pub(crate) fn of(record: &SystemRecord) -> Self {
        // Services of this release wrote it.
        serde_json::from_str(&record.text).unwrap_or_default()
    }
}

/// The text of an edition's content.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredEdition {
    /// The operations, resolved.
    pub(crate) operations: Vec<StoredOperation>,
    /// For each of them the patch that it was made of: a rebase applies the patch to the current record.
    pub(crate) patches: Vec<Option<StoredPatch>>,
    /// The revisions of the definitions that exist: while a definition is the same, its schema is that of the base.
    pub(crate) definitions: Vec<(Key, Revision)>,
    /// What is kept of the claims of the machine that has sent it. Its session will have ended when it is applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) machine: Option<SenderClaims>,
}

/// A machine that has sent an edition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SenderClaims {
    /// The name of its provider.
    provider: Key,
    /// What was kept of its claims: the text of a JSON object.
    claims: String,
}

impl SenderClaims {
    /// Those of a client; `None` if it is no machine.
    fn of(state: &State, principal: &Principal) -> Option<Self> {
        let session = principal.session()?;
        let record = state.session_record(session.machine.session.as_str())?;
        let claims = SessionText::of(&record.text)?.claims.to_text();
        Some(Self { provider: session.provider.clone(), claims })
    }

    /// What the machine may do by the roles of now, as if it had just logged in; `None` if it has none.
    pub(crate) fn grants(&self, policy: &Policy) -> Option<Grants> {
        let claims = Claims::from_text(&self.claims).ok()?;
        Some(policy.permissions(&self.provider, &claims, 0)?.grants)
    }
}

/// A patch that an operation was made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredPatch {
    /// How it is read.
    pub(crate) format: PatchFormat,
    /// Its text.
    pub(crate) text: Arc<str>,
}

impl StoredEdition {
    /// What is stored of an edition. `proposed`: the operations as they were sent.
    pub(crate) fn of(state: &State, operations: Vec<StoredOperation>, proposed: &ProposedOperations) -> Self {
        let patch = |write: &Write| {
            let Write::PatchConfig { patch, .. } = write else { return None };
            Some(StoredPatch { format: patch.format, text: Arc::clone(&patch.document.text) })
        };
        let patches = match proposed {
            ProposedOperations::Records(writes) => writes.iter().map(patch).collect(),
            ProposedOperations::Undelete { .. } | ProposedOperations::Environment(_) => Vec::new(),
        };
        let mut definitions: BTreeMap<Key, Revision> = BTreeMap::new();
        for operation in &operations {
            if let Place::Definition(key) | Place::Config(key, _) = operation.place()
                && let Some(found) = state.definition(key.as_str())
            {
                definitions.insert(key.clone(), found.definition.revision);
            }
        }
        let definitions = definitions.into_iter().collect();
        Self { operations, patches, definitions, machine: None }
    }

    /// The same, sent by a client.
    pub(crate) fn sent_by(self, state: &State, sender: &Principal) -> Self {
        Self { machine: SenderClaims::of(state, sender), ..self }
    }

    /// The text, with so many blanks behind it.
    pub(crate) fn to_text_with(&self, blanks: usize) -> Arc<str> {
        // An edition without operations must never take the place of one that has some.
        let text =
            serde_json::to_string(self).expect("operations are JSON: no map has keys that are no texts");
        (text + &" ".repeat(blanks)).into()
    }
}

/// A change request in a state.
pub(crate) struct FoundChange<'a> {
    /// Its record.
    pub(crate) record: &'a Arc<SystemRecord>,
    /// What the log decides by.
    pub(crate) change: &'a Change,
    pub(crate) id: ChangeId,
}

/// A change request by its id.
pub(crate) fn find<'a>(state: &'a State, id: &ChangeId) -> Option<FoundChange<'a>> {
    let record = state.change_record(id.as_str())?;
    Some(FoundChange { record, change: record.change()?, id: id.clone() })
}

impl FoundChange<'_> {
    /// Its id.
    pub(crate) fn id(&self) -> &ChangeId {
        &self.id
    }

    /// What it changes.
    pub(crate) fn scope(&self) -> &Scope {
        &self.change.edition.scope
    }

    /// The content of its edition, while it is pending.
    pub(crate) fn content<'s>(&self, state: &'s State) -> Option<(&'s Content, StoredEdition)> {
        let (content, text) = state.change_content(&self.id).filter(|_| self.change.is_pending())?;
        // Another release may have written what this one does not know.
        Some((content, serde_json::from_str(text).ok()?))
    }

    /// Whether a client may do what only an author may: its key has sent an edition, or its key is attested and is of the
    /// person who has. Who has made a key may have named anybody as its person.
    pub(crate) fn is_surely_of(&self, principal: &Principal) -> bool {
        let Some(own) = principal.party() else { return false };
        let attested = principal.key().filter(|key| key.attestation.is_some()).and_then(|key| key.person);
        self.change.authors.iter().any(|author| match (author, &own) {
            (Party::Root, Party::Root) => true,
            (Party::Machine(author), Party::Machine(own)) => author.owner == own.owner,
            (Party::Key { id, person }, Party::Key { id: own, .. }) => {
                id == own || (person.is_some() && *person == attested)
            }
            (Party::Root | Party::Machine(_) | Party::Key { .. }, _) => false,
        })
    }

    /// Whether a client is shown less than what will be stored. It may take a while, so it is charged to a budget.
    ///
    /// # Errors
    /// When the budget is used up.
    pub(crate) fn is_redacted_for(
        &self,
        state: &State,
        principal: &Principal,
        budget: &Budget,
    ) -> Result<bool, Refusal> {
        let Scope::Definitions(keys) = self.scope() else { return Ok(false) };
        let may_not_reveal = |key: &Key| principal.authorize(Verb::Reveal, Some(key.as_str())).is_err();
        if !keys.iter().any(may_not_reveal) {
            return Ok(false);
        }
        let Some((_, text)) = state.change_content(&self.id).filter(|_| self.change.is_pending()) else {
            // It was applied before it was seen, and the history shows it by the marks of the definition.
            let has_secrets =
                |key: &Key| state.definition(key.as_str()).is_none_or(|found| found.may_have_secrets());
            return Ok(keys.iter().any(|key| may_not_reveal(key) && has_secrets(key)));
        };
        budget.charge_data(text.len(), 0)?;
        let Some((_, stored)) = self.content(state) else { return Ok(true) };
        let with_data = stored.operations.iter().filter_map(|operation| match operation.place() {
            Place::Config(definition, _) => Some(definition),
            Place::Definition(_) | Place::Environment(_) => None,
        });
        for definition in with_data.collect::<BTreeSet<&Key>>() {
            if !may_not_reveal(definition) {
                continue;
            }
            for schema in marking(state, &stored, definition).iter().flatten() {
                budget.charge_compilation(&schema.text)?;
            }
            if !Shown::of(state, principal, &stored, definition).is_whole() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a client may not see some of the data of a definition that may have secret fields.
    pub(crate) fn may_hide_data_from(&self, state: &State, principal: &Principal) -> bool {
        let Scope::Definitions(keys) = self.scope() else { return false };
        keys.iter().any(|key| {
            principal.authorize(Verb::Reveal, Some(key.as_str())).is_err()
                && state.definition(key.as_str()).is_some_and(|found| found.may_have_secrets())
        })
    }

    /// Who has left it to the cluster to apply it.
    pub(crate) fn scheduler(&self) -> Option<&Party> {
        match &self.change.phase {
            Phase::Scheduled { by, .. } => Some(by),
            Phase::Rolling { scheduled_by, .. } => scheduled_by.as_ref(),
            Phase::Open | Phase::Held | Phase::Applied { .. } | Phase::Closed { .. } => None,
        }
    }

    /// Who has begun its rollout, while it rolls; `None` for the cluster.
    pub(crate) fn beginner(&self) -> Option<&Party> {
        if let Phase::Rolling { by, .. } = &self.change.phase { by.as_ref() } else { None }
    }

    /// The key of the sender of the current edition, while it exists.
    pub(crate) fn sender_key<'s>(&self, state: &'s State) -> Option<&'s Arc<AccessKey>> {
        key_of(state, &self.change.edition.sender)
    }
}

fn key_of<'s>(state: &'s State, party: &Party) -> Option<&'s Arc<AccessKey>> {
    match party {
        Party::Root | Party::Machine(_) => None,
        Party::Key { id, .. } => state.access_key(id),
    }
}

/// The access keys whose approvals count in general: they exist, and have the attestation that they had.
pub(crate) fn approvers<'s>(state: &'s State, change: &Change) -> Vec<(PersonId, &'s Arc<AccessKey>)> {
    let approvals = change.current_votes().filter(|vote| vote.opinion == Opinion::Approval);
    let counted = approvals.filter(|vote| !change.is_author(&vote.by)).filter_map(|vote| {
        let key = key_of(state, &vote.by)?;
        let is_same = key.attestation.as_ref().is_some_and(|now| now.at == vote.attestation);
        Some((key.person.filter(|_| is_same)?, key))
    });
    counted.collect()
}

/// How many approvals each part of a change request needs, and how many of those that it has count there.
pub(crate) fn approvals_of(state: &State, change: &Change) -> Vec<(u8, u8)> {
    let approvers = approvers(state, change);
    let counted = |may: &dyn Fn(&Principal) -> bool| {
        let persons: BTreeSet<PersonId> = approvers
            .iter()
            .filter(|(_, key)| may(&Principal::of_key(Arc::clone(key), 0)))
            .map(|(person, _)| *person)
            .collect();
        u8::try_from(persons.len()).unwrap_or(u8::MAX)
    };
    let asked = |record: Option<&Arc<SystemRecord>>| {
        let rules = record.and_then(|record| record.environment());
        change.approvals_needed(rules.map_or(0, |rules| rules.approvals))
    };
    match &change.edition.scope {
        Scope::Definitions(keys) => {
            let part = |key: &Key| {
                let may = |one: &Principal| {
                    [Verb::Approve, Verb::Read]
                        .into_iter()
                        .all(|verb| one.authorize(verb, Some(key.as_str())).is_ok())
                };
                (asked(state.environment_of(key.as_str())), counted(&may))
            };
            keys.iter().map(part).collect()
        }
        Scope::Environment(name) => {
            let may = |one: &Principal| {
                [Verb::Approve, Verb::Read]
                    .into_iter()
                    .all(|verb| one.authorize_environment(verb, name.as_str()).is_ok())
            };
            let record = state.environment(name.as_str()).or_else(|| state.environment(DEFAULT_ENVIRONMENT));
            vec![(asked(record), counted(&may))]
        }
    }
}

/// Whether a person has rejected the current edition.
pub(crate) fn is_rejected(change: &Change) -> bool {
    change.current_votes().any(|vote| vote.opinion == Opinion::Rejection)
}

/// The access keys of those whose approvals count, if they are enough for everything that a change request changes.
///
/// # Errors
/// When they are not.
pub(crate) fn counted_approvers<'s>(
    state: &'s State,
    found: &FoundChange<'_>,
) -> Result<Vec<&'s Arc<AccessKey>>, Refusal> {
    if is_rejected(found.change) {
        return Err(Rejection::EditionRejected.into());
    }
    let missing = approvals_of(state, found.change).into_iter().find(|(needed, counted)| counted < needed);
    if let Some((needed, counted)) = missing
        && !sabotage::is("approvals-not-counted")
    {
        return Err(Rejection::NotApproved { needed, counted }.into());
    }
    let counts = |key: &&Arc<AccessKey>| {
        let one = Principal::of_key(Arc::clone(key), 0);
        [Verb::Approve, Verb::Read].into_iter().all(|verb| one.authorize_scope(verb, found.scope()).is_ok())
    };
    Ok(approvers(state, found.change).into_iter().map(|(_, key)| key).filter(counts).collect())
}

/// The records of environments by which [`approvals_of`] counts, as they are: the own one of each definition, and
/// [`DEFAULT_ENVIRONMENT`] where it has none.
pub(crate) fn rules_read(state: &State, scope: &Scope) -> Vec<Guard> {
    let names: BTreeSet<Option<EnvironmentName>> = match scope {
        Scope::Definitions(keys) => keys
            .iter()
            .map(|key| environment_name(key.as_str()).and_then(|name| EnvironmentName::parse(name).ok()))
            .collect(),
        Scope::Environment(name) => [Some(name.clone())].into(),
    };
    let mut read: BTreeMap<Key, Option<Revision>> = BTreeMap::new();
    for name in names {
        let own = name.as_ref().and_then(|name| state.environment(name.as_str()));
        if let Some(name) = name {
            read.insert(name.key().clone(), own.map(|record| record.revision));
        }
        if own.is_none()
            && let Ok(default) = EnvironmentName::parse(DEFAULT_ENVIRONMENT)
        {
            let found = state.environment(DEFAULT_ENVIRONMENT);
            read.insert(default.key().clone(), found.map(|record| record.revision));
        }
    }
    read.into_iter().map(|(name, revision)| Guard::Environment { name, revision }).collect()
}

/// What says that an operation can't be carried out any more, whatever its bases are.
pub(crate) fn stale_operation(state: &State, operation: &StoredOperation) -> Option<String> {
    let StoredOperation::UndeleteDefinition { definition, of } = operation else { return None };
    let is_kept = state.deleted().any(|kept| kept.deleted_id() == *of && kept.definition.key == *definition);
    (!is_kept).then(|| {
        format!("the deletion of definition `{definition}` can't be undone: it is not kept any more")
    })
}

/// What says that a record is no longer what an edition rests on; `None` when all are.
pub(crate) fn stale_base(state: &State, bases: &[Guard]) -> Option<String> {
    let failed = state.failed_guard(bases).filter(|_| !sabotage::is("guards-ignored"));
    failed.map(|base| stale_text(state, base))
}

/// What says that a record is no longer what an edition rests on.
pub(crate) fn stale_text(state: &State, base: &Guard) -> String {
    let now = |revision: Option<Revision>| match revision {
        Some(revision) => format!("is at revision {revision} by now"),
        None => "does not exist any more".into(),
    };
    let then = |revision: Option<Revision>| match revision {
        Some(revision) => format!("rests on its revision {revision}"),
        None => "rests on its absence".into(),
    };
    let rebase = "rebase the change request, and let it be approved again";
    match base {
        Guard::Config { definition, key, revision } => {
            let found = state.definition_by_id(*definition);
            let current = found.and_then(|found| found.config(key.as_str())).map(|config| config.revision);
            let name = found.map_or_else(String::new, |found| format!("{}/", found.definition.key));
            format!(
                "config `{name}{key}` {}, and the change request {}: {rebase}",
                now(current),
                then(*revision)
            )
        }
        Guard::Definition { key, was } => {
            let current = state.definition(key.as_str()).map(|found| found.definition.revision);
            let was = was.map(|was| was.revision);
            format!("definition `{key}` {}, and the change request {}: {rebase}", now(current), then(was))
        }
        Guard::Configs { definition, .. } => {
            let key = state.definition_by_id(*definition).map(|found| found.definition.key.to_string());
            let key = key.unwrap_or_default();
            format!(
                "a config of definition `{key}` was written or deleted since the change request was sent: {rebase}"
            )
        }
        Guard::Environment { name, revision } => {
            let current = state.environment(name.as_str()).map(|record| record.revision);
            format!(
                "environment `{name}` {}, and the change request {}: {rebase}",
                now(current),
                then(*revision)
            )
        }
        Guard::AccessKey { .. } => "an access key changed meanwhile: send the request again".into(),
        Guard::Policy { .. } => {
            "an identity provider or a role changed meanwhile: send the request again".into()
        }
    }
}

/// The names of the environments whose rules something is under.
pub(crate) fn environments_of(state: &State, scope: &Scope) -> BTreeSet<String> {
    match scope {
        Scope::Environment(name) => [name.to_string()].into(),
        Scope::Definitions(keys) => {
            let rules = keys.iter().map(|key| state.environment_of(key.as_str()));
            rules.map(|found| found.map_or(DEFAULT_ENVIRONMENT, |rules| rules.name.as_str()).into()).collect()
        }
    }
}

/// What says that a record is no longer what a change request has left; `None` when all are.
pub(crate) fn stale_revert(state: &State, left: &[Guard]) -> Option<String> {
    state.failed_guard(left).map(|changed| stale_revert_text(state, changed))
}

/// What says that a record is no longer what a change request has left.
pub(crate) fn stale_revert_text(state: &State, changed: &Guard) -> String {
    let Guard::Config { definition, key, .. } = changed else {
        return "a record of the change request is another one by now".into();
    };
    let found = state.definition_by_id(*definition);
    let name = found.map_or_else(String::new, |found| format!("{}/", found.definition.key));
    format!(
        "config `{name}{key}` was changed since the change request was applied: nothing is taken back; create a change \
         request that does it"
    )
}

/// All change requests of a state.
pub(crate) fn changes(state: &State) -> impl Iterator<Item = FoundChange<'_>> {
    state.changes().filter_map(|record| {
        Some(FoundChange { record, change: record.change()?, id: ChangeId::parse(record.name.as_str())? })
    })
}
