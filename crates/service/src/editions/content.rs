//! The operations of a change request as they are stored, what they rest on, and the digest that an approval names.
//!
//! An edition is resolved when it is sent: a patch, a rollback and a kept secret value become the data that will be
//! stored. When it is applied, the same operations are validated again by the definitions of that moment, because an
//! index or a schema may have changed. The data stays what the reviewers have seen: the digest is computed again from
//! the new command.
//!
//! **Invariant:** nothing in here rests on index entries or on anything else that another release may compute
//! differently. A changed encoding has another [`VERSION`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::request::{NewProtection, NewSchema, NewUnique, Principal, Refusal, Write};
use concord_model::{
    access_key::Verb,
    command::{
        Command, Expect, SystemCommand, Undeletion,
        source::{DefinitionThen, Guard},
    },
    document::{self, Document},
    error::{Rejection, RolloutBound},
    key::Key,
    record::{DeletedId, Revision},
    schema::{Formats, StoredSchema},
    system::{
        change::{ChangeDigest, ChangeId, Scope, Timing},
        environment::{Environment, EnvironmentName},
        rollout::{Candidate, Plan, Rollout},
    },
};
use concord_state::State;

/// The version of the encoding below. It is the first thing that the digest covers.
const VERSION: u8 = 1;
/// The version with a plan: of an edition that is released in stages.
const VERSION_STAGED: u8 = 2;
/// Stored data was bounded when it was accepted, perhaps by a node with a higher limit.
const STORED_JSON_DEPTH_MAX: usize = crate::request::STORED_JSON_DEPTH_MAX;

/// An operation as it is stored. A new kind goes to the end: its place is in the digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StoredOperation {
    /// Creates a definition.
    CreateDefinition { definition: Key, indexes: Vec<String>, schema: Option<StoredText> },
    /// Replaces the indexed paths.
    SetIndexes { definition: Key, indexes: Vec<String> },
    /// Replaces the schema; `force`: even if configs violate it.
    SetSchema { definition: Key, schema: Option<StoredText>, force: bool },
    /// Replaces the unique fields.
    SetUnique { definition: Key, paths: Vec<String> },
    /// Protects the definition, or no longer.
    SetProtection { definition: Key, protected: bool },
    /// Deletes the definition with its configs.
    DeleteDefinition { definition: Key, restrict: bool },
    /// Writes the data of a config.
    PutConfig { definition: Key, config: Key, data: Arc<str> },
    /// Deletes a config.
    DeleteConfig { definition: Key, config: Key },
    /// Undoes this deletion.
    UndeleteDefinition { definition: Key, of: DeletedId },
    /// Creates or replaces an environment.
    PutEnvironment { environment: EnvironmentName, after: Environment, text: Arc<str> },
    /// Deletes an environment.
    DeleteEnvironment { environment: EnvironmentName },
}

/// A schema as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredText {
    /// Its text.
    pub(crate) text: Arc<str>,
    /// Whether `format` is asserted.
    pub(crate) asserts_formats: bool,
}

impl StoredText {
    fn of(schema: &StoredSchema) -> Self {
        Self { text: Arc::clone(&schema.text), asserts_formats: schema.formats.is_asserted() }
    }

    /// As a definition has it.
    pub(crate) fn schema(&self) -> StoredSchema {
        StoredSchema { text: Arc::clone(&self.text), formats: Formats::of(self.asserts_formats) }
    }
}

/// What an operation is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place<'a> {
    Definition(&'a Key),
    Config(&'a Key, &'a Key),
    Environment(&'a EnvironmentName),
}

impl StoredOperation {
    /// The operation that a command is.
    fn of(command: &Command) -> Result<Self, Refusal> {
        Ok(match command {
            Command::CreateDefinition { key, indexes, schema } => Self::CreateDefinition {
                definition: key.clone(),
                indexes: indexes.clone(),
                schema: schema.as_ref().map(StoredText::of),
            },
            Command::SetIndexes { key, indexes, .. } => {
                Self::SetIndexes { definition: key.clone(), indexes: indexes.clone() }
            }
            Command::SetSchema { key, schema, configs_read, .. } => Self::SetSchema {
                definition: key.clone(),
                schema: schema.as_ref().map(StoredText::of),
                force: configs_read.is_none(),
            },
            Command::SetUnique { key, paths, .. } => {
                Self::SetUnique { definition: key.clone(), paths: paths.clone() }
            }
            Command::SetProtection { key, protected, .. } => {
                Self::SetProtection { definition: key.clone(), protected: *protected }
            }
            Command::DeleteDefinition { key, restrict, .. } => {
                Self::DeleteDefinition { definition: key.clone(), restrict: *restrict }
            }
            Command::WriteConfig { definition, key, data, .. } => Self::PutConfig {
                definition: definition.clone(),
                config: key.clone(),
                data: Arc::clone(data),
            },
            Command::DeleteConfig { definition, key, .. } => {
                Self::DeleteConfig { definition: definition.clone(), config: key.clone() }
            }
            Command::UndeleteDefinition(Undeletion { key, of, .. }) => {
                Self::UndeleteDefinition { definition: key.clone(), of: *of }
            }
            Command::System(SystemCommand::PutEnvironment { name, after, text, .. }) => {
                Self::PutEnvironment {
                    environment: name.clone(),
                    after: after.clone(),
                    text: Arc::clone(text),
                }
            }
            Command::System(SystemCommand::DeleteEnvironment { name, .. }) => {
                Self::DeleteEnvironment { environment: name.clone() }
            }
            Command::Compact { .. }
            | Command::BuildIndex { .. }
            | Command::Batch(_)
            | Command::Transaction(_)
            | Command::RaiseFeatureLevel { .. }
            | Command::Forget { .. }
            | Command::Access(_)
            | Command::SkipRevisions { .. }
            | Command::Audit(_)
            | Command::System(_) => {
                return Err(Refusal::Internal("a change request has no such operation".into()));
            }
        })
    }

    /// What it is about.
    pub(crate) fn place(&self) -> Place<'_> {
        match self {
            Self::CreateDefinition { definition, .. }
            | Self::SetIndexes { definition, .. }
            | Self::SetSchema { definition, .. }
            | Self::SetUnique { definition, .. }
            | Self::SetProtection { definition, .. }
            | Self::DeleteDefinition { definition, .. }
            | Self::UndeleteDefinition { definition, .. } => Place::Definition(definition),
            Self::PutConfig { definition, config, .. } | Self::DeleteConfig { definition, config } => {
                Place::Config(definition, config)
            }
            Self::PutEnvironment { environment, .. } | Self::DeleteEnvironment { environment } => {
                Place::Environment(environment)
            }
        }
    }

    /// Its name, as in a batch.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::CreateDefinition { .. } => "create_definition",
            Self::SetIndexes { .. } => "set_indexes",
            Self::SetSchema { .. } => "set_schema",
            Self::SetUnique { .. } => "set_unique",
            Self::SetProtection { .. } => "set_protection",
            Self::DeleteDefinition { .. } => "delete_definition",
            Self::PutConfig { .. } => "put_config",
            Self::DeleteConfig { .. } => "delete_config",
            Self::UndeleteDefinition { .. } => "undelete_definition",
            Self::PutEnvironment { .. } => "put_environment",
            Self::DeleteEnvironment { .. } => "delete_environment",
        }
    }

    /// The write that does it; `None` for one that is alone in its change request. Its conditions are the bases.
    pub(crate) fn write(&self) -> Result<Option<Write>, Refusal> {
        let document = |text: &Arc<str>| {
            let value = document::parse(text.as_bytes(), STORED_JSON_DEPTH_MAX)
                .map_err(|error| Refusal::Internal(format!("a stored document is invalid: {error}")))?;
            Ok::<_, Refusal>(Document { text: Arc::clone(text), value })
        };
        let schema =
            |schema: &Option<StoredText>| schema.as_ref().map(|schema| document(&schema.text)).transpose();
        let asserts = |schema: &Option<StoredText>| schema.as_ref().map(|schema| schema.asserts_formats);
        let expect = Expect::Present;
        Ok(Some(match self {
            Self::CreateDefinition { definition, indexes, schema: text } => Write::CreateDefinition {
                key: definition.to_string(),
                indexes: indexes.clone(),
                schema: schema(text)?,
                format_assertion: asserts(text),
            },
            Self::SetIndexes { definition, indexes } => {
                Write::SetIndexes { key: definition.to_string(), indexes: indexes.clone(), expect }
            }
            Self::SetSchema { definition, schema: text, force } => Write::SetSchema(NewSchema {
                key: definition.to_string(),
                schema: schema(text)?,
                format_assertion: asserts(text),
                expect,
                force: *force,
                compiled: <_>::default(),
            }),
            Self::SetUnique { definition, paths } => {
                Write::SetUnique(NewUnique { key: definition.to_string(), paths: paths.clone(), expect })
            }
            Self::SetProtection { definition, protected } => Write::SetProtection(NewProtection {
                key: definition.to_string(),
                protected: *protected,
                expect,
            }),
            Self::DeleteDefinition { definition, restrict } => Write::DeleteDefinition {
                key: definition.to_string(),
                expect,
                restrict: *restrict,
                purge: false,
            },
            Self::PutConfig { definition, config, data } => Write::WriteConfig {
                definition: definition.to_string(),
                key: config.to_string(),
                data: document(data)?,
                expect: Expect::Any,
            },
            Self::DeleteConfig { definition, config } => {
                Write::DeleteConfig { definition: definition.to_string(), key: config.to_string(), expect }
            }
            Self::UndeleteDefinition { .. }
            | Self::PutEnvironment { .. }
            | Self::DeleteEnvironment { .. } => return Ok(None),
        }))
    }

    /// The permissions that the operation needs if it is requested alone.
    pub(crate) fn needs(&self, state: &State) -> &'static [Verb] {
        match self {
            Self::SetSchema { definition, .. } => {
                // The check of the configs would tell which secret values fit.
                let found = state.definition(definition.as_str());
                let has_secrets = found.is_some_and(|found| found.may_have_secrets());
                if has_secrets { &[Verb::Define, Verb::Reveal] } else { &[Verb::Define] }
            }
            Self::CreateDefinition { .. }
            | Self::SetIndexes { .. }
            | Self::SetUnique { .. }
            | Self::SetProtection { .. }
            | Self::PutEnvironment { .. }
            | Self::DeleteEnvironment { .. } => &[Verb::Define],
            Self::DeleteDefinition { .. } => &[Verb::Delete],
            Self::UndeleteDefinition { .. } => &[Verb::Define, Verb::Write],
            Self::PutConfig { .. } | Self::DeleteConfig { .. } => &[Verb::Write],
        }
    }

    /// Whether somebody has these permissions for what the operation is about.
    pub(crate) fn may(&self, one: &Principal, verbs: &[Verb]) -> bool {
        verbs.iter().all(|verb| match self.place() {
            Place::Definition(key) | Place::Config(key, _) => {
                one.authorize(*verb, Some(key.as_str())).is_ok()
            }
            Place::Environment(name) => one.authorize_environment(*verb, name.as_str()).is_ok(),
        })
    }

    /// The command of an operation that is alone in its change request. `bases`: those of the edition.
    fn alone(&self, bases: &[Guard]) -> Option<Command> {
        let read = bases.iter().find_map(|base| match base {
            Guard::Environment { revision, .. } => Some(*revision),
            Guard::Config { .. }
            | Guard::Definition { .. }
            | Guard::Configs { .. }
            | Guard::AccessKey { .. }
            | Guard::Policy { .. } => None,
        });
        let expect = Expect::Read(read.flatten());
        Some(match self {
            Self::UndeleteDefinition { definition, of } => {
                Command::UndeleteDefinition(Undeletion { key: definition.clone(), of: *of, back: Vec::new() })
            }
            Self::PutEnvironment { environment, after, text } => {
                Command::System(SystemCommand::PutEnvironment {
                    name: environment.clone(),
                    after: after.clone(),
                    text: Arc::clone(text),
                    expect,
                })
            }
            Self::DeleteEnvironment { environment } => {
                Command::System(SystemCommand::DeleteEnvironment { name: environment.clone(), expect })
            }
            Self::CreateDefinition { .. }
            | Self::SetIndexes { .. }
            | Self::SetSchema { .. }
            | Self::SetUnique { .. }
            | Self::SetProtection { .. }
            | Self::DeleteDefinition { .. }
            | Self::PutConfig { .. }
            | Self::DeleteConfig { .. } => return None,
        })
    }
}

/// The operations of a command.
pub(crate) fn operations_of(command: &Command) -> Result<Vec<StoredOperation>, Refusal> {
    if let Command::Batch(steps) = command {
        return steps.iter().map(|step| StoredOperation::of(&step.command)).collect();
    }
    if let Command::Transaction(transaction) = command {
        return transaction.steps.iter().map(|(_, step)| StoredOperation::of(&step.command)).collect();
    }
    Ok(vec![StoredOperation::of(command)?])
}

/// What does the operations: writes, or the command of one that is alone.
pub(crate) enum Doing {
    Writes(Vec<Write>),
    Alone(Box<Command>),
}

/// What does the operations.
///
/// # Errors
/// When what is stored can't be read.
pub(crate) fn doing(operations: &[StoredOperation], bases: &[Guard]) -> Result<Doing, Refusal> {
    if let [one] = operations
        && let Some(command) = one.alone(bases)
    {
        return Ok(Doing::Alone(Box::new(command)));
    }
    let mut writes = Vec::with_capacity(operations.len());
    for operation in operations {
        let write = operation.write()?;
        let mixed = || Refusal::Internal("an operation of its own among others".into());
        writes.push(write.ok_or_else(mixed)?);
    }
    Ok(Doing::Writes(writes))
}

/// What operations change.
pub(crate) fn scope_of(operations: &[StoredOperation]) -> Scope {
    let mut definitions = BTreeSet::new();
    for operation in operations {
        match operation.place() {
            Place::Definition(definition) | Place::Config(definition, _) => {
                definitions.insert(definition.clone());
            }
            Place::Environment(name) => return Scope::Environment(name.clone()),
        }
    }
    Scope::Definitions(definitions.into_iter().collect())
}

/// What operations rest on: each record that they change, as a state has it.
pub(crate) fn bases_of(state: &State, operations: &[StoredOperation]) -> Vec<Guard> {
    let mut definitions = BTreeSet::new();
    let mut emptied = BTreeSet::new();
    let mut configs: BTreeMap<(&Key, &Key), (u64, Option<Revision>)> = BTreeMap::new();
    let mut bases = Vec::new();
    for operation in operations {
        match operation.place() {
            Place::Definition(key) => {
                definitions.insert(key);
                if let StoredOperation::DeleteDefinition { .. } = operation {
                    emptied.insert(key);
                }
            }
            Place::Config(definition, key) => match state.definition(definition.as_str()) {
                Some(found) => {
                    let revision = found.config(key.as_str()).map(|config| config.revision);
                    configs.insert((definition, key), (found.definition.id, revision));
                }
                // An operation before it creates the definition.
                None => drop(definitions.insert(definition)),
            },
            Place::Environment(name) => {
                let revision = state.environment(name.as_str()).map(|record| record.revision);
                bases.push(Guard::Environment { name: name.key().clone(), revision });
            }
        }
    }
    for key in definitions {
        let found = state.definition(key.as_str());
        let was = found
            .map(|found| DefinitionThen { id: found.definition.id, revision: found.definition.revision });
        bases.push(Guard::Definition { key: key.clone(), was });
        if let Some(found) = found.filter(|_| emptied.contains(key)) {
            bases.push(Guard::Configs {
                definition: found.definition.id,
                newest: found.newest_config(),
                count: found.by_key.len(),
            });
        }
    }
    for ((_, key), (definition, revision)) in configs {
        bases.push(Guard::Config { definition, key: key.clone(), revision });
    }
    bases
}

/// An edition, as its digest names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named<'a> {
    /// The change request.
    pub(crate) id: &'a ChangeId,
    /// Its number.
    pub(crate) number: u32,
    /// When it is applied, and taken back.
    pub(crate) timing: &'a Timing,
    /// How it is released, if in stages.
    pub(crate) plan: Option<&'a Plan>,
}

/// Everything that the digest covers.
#[derive(Serialize)]
struct Digested<'a> {
    version: u8,
    id: &'a ChangeId,
    edition: u32,
    timing: &'a Timing,
    bases: &'a [Guard],
    operations: &'a [StoredOperation],
}

/// What an approval names: an HMAC of an edition. `seal`: the random key of the edition, which nobody is shown. So
/// nobody learns from a digest whether they have guessed a secret value.
pub(crate) fn digest_of(
    seal: &[u8; 32],
    named: Named<'_>,
    bases: &[Guard],
    operations: &[StoredOperation],
) -> ChangeDigest {
    let Named { id, number: edition, timing, plan } = named;
    let version = if plan.is_some() { VERSION_STAGED } else { VERSION };
    let digested = Digested { version, id, edition, timing, bases, operations };
    // Each part has its length before it, so no two editions have the same bytes.
    // A digest of nothing would be that of every edition.
    let mut bytes = postcard::to_stdvec(&digested).expect("postcard encodes all of these types");
    if let Some(plan) = plan {
        bytes = postcard::to_extend(plan, bytes).expect("postcard encodes all of these types");
    }
    let mut mac = Hmac::<Sha256>::new_from_slice(seal).expect("HMAC takes a key of any length");
    mac.update(&bytes);
    mac.finalize().into_bytes().into()
}

/// What the configs of an edition will be, in the order of a rollout's candidates.
///
/// # Errors
/// When it does anything but update configs that exist, or they are too many or too large for a rollout.
pub(crate) fn candidates_of(
    state: &State,
    operations: &[StoredOperation],
) -> Result<Vec<Candidate>, Rejection> {
    let mut last: BTreeMap<(u64, Key), Arc<str>> = BTreeMap::new();
    for operation in operations {
        let StoredOperation::PutConfig { definition, config, data } = operation else {
            return Err(Rejection::RolloutInvalid(RolloutBound::NotUpdates));
        };
        let found = state.definition(definition.as_str());
        let found = found.filter(|found| found.config(config.as_str()).is_some());
        let found = found.ok_or(Rejection::RolloutInvalid(RolloutBound::NotUpdates))?;
        last.insert((found.definition.id, config.clone()), Arc::clone(data));
    }
    let candidates: Vec<Candidate> =
        last.into_iter().map(|((definition, key), data)| Candidate { definition, key, data }).collect();
    Rollout::check_candidates(&candidates).map_err(Rejection::RolloutInvalid)?;
    Ok(candidates)
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::{
        command::Expect,
        system::rollout::{OnFail, Stage},
    };

    fn key(text: &str) -> Key {
        Key::parse(text).unwrap()
    }

    fn put(data: &str) -> StoredOperation {
        StoredOperation::PutConfig { definition: key("d"), config: key("k"), data: data.into() }
    }

    #[test]
    fn a_digest_is_of_the_edition_its_bases_and_its_data() {
        let id = |text: &str| ChangeId::parse(text).unwrap();
        let (one, other) = (id("AAAAAAAAAAAA"), id("BBBBBBBBBBBB"));
        let base = |revision| vec![Guard::Config { definition: 1, key: key("k"), revision }];
        let (at, absent) = (base(Some(7)), base(None));
        let (two, list) = (vec![put("2")], vec![put("1"), put("2")]);
        let (manual, timed) = (Timing::default(), Timing { revert_after_s: Some(7), ..Timing::default() });
        let of = |seal: u8, (id, edition), bases: &[Guard], operations: &[StoredOperation]| {
            let named = Named { id, number: edition, timing: &manual, plan: None };
            digest_of(&[seal; 32], named, bases, operations)
        };
        let stage = Stage { labels: Vec::new(), share: 500, for_s: 60, min_healthy: 1 };
        let plan = |max_failed| Plan {
            stages: vec![stage.clone()],
            max_failed,
            gates: Vec::new(),
            on_fail: OnFail::Abort,
            timeout_s: 60,
        };
        let with = |timing, plan| digest_of(&[1; 32], Named { id: &one, number: 1, timing, plan }, &at, &two);
        let (strict, lax) = (plan(0), plan(1));
        let first = of(1, (&one, 1), &at, &two);
        assert_eq!(first, of(1, (&one, 1), &at, &two));
        for different in [
            of(2, (&one, 1), &at, &two),
            of(1, (&other, 1), &at, &two),
            of(1, (&one, 2), &at, &two),
            of(1, (&one, 1), &absent, &two),
            of(1, (&one, 1), &at, &list),
            of(1, (&one, 1), &at, &[put("3")]),
            with(&timed, None),
            with(&manual, Some(&strict)),
        ] {
            assert_ne!(first, different);
        }
        assert_ne!(with(&manual, Some(&strict)), with(&manual, Some(&lax)), "it covers the plan");
    }

    #[test]
    fn index_entries_and_conditions_are_not_in_a_digest() {
        let entry = concord_model::record::IndexEntry { slot: 0, value: b"x"[..].into() };
        let write = |entries, expect| Command::WriteConfig {
            definition: key("d"),
            key: key("k"),
            data: "2".into(),
            entries,
            expect,
        };
        let plain = operations_of(&write(Vec::new().into(), Expect::Any)).unwrap();
        assert_eq!(plain, operations_of(&write(vec![entry].into(), Expect::At(7))).unwrap());
        assert_eq!(plain, [put("2")]);
    }

    #[test]
    fn what_is_stored_is_done_as_it_was_sent() {
        let schema = StoredText { text: r#"{"type":"object"}"#.into(), asserts_formats: false };
        let all = vec![
            StoredOperation::CreateDefinition {
                definition: key("d"),
                indexes: vec!["n".into()],
                schema: Some(schema.clone()),
            },
            StoredOperation::SetSchema { definition: key("d"), schema: None, force: true },
            StoredOperation::SetUnique { definition: key("d"), paths: vec!["n".into()] },
            StoredOperation::SetProtection { definition: key("d"), protected: true },
            put(r#"{"n":1.50}"#),
            StoredOperation::DeleteConfig { definition: key("d"), config: key("k") },
            StoredOperation::DeleteDefinition { definition: key("d"), restrict: true },
        ];
        let text = serde_json::to_string(&all).unwrap();
        let read: Vec<StoredOperation> = serde_json::from_str(&text).unwrap();
        assert_eq!(read, all);
        let Ok(Doing::Writes(writes)) = doing(&read, &[]) else { panic!("they are no command") };
        assert_eq!(writes.len(), all.len());
        let Write::WriteConfig { data, .. } = &writes[4] else { panic!("{writes:?}") };
        assert_eq!(&*data.text, r#"{"n":1.50}"#, "the digits stay");
        let of = DeletedId { deleted: 7, id: 3 };
        let alone = [StoredOperation::UndeleteDefinition { definition: key("d"), of }];
        assert!(matches!(doing(&alone, &[]), Ok(Doing::Alone(_))));
        let mixed = [alone[0].clone(), put("1")];
        assert!(doing(&mixed, &[]).is_err(), "what is alone is never mixed");
    }
}
