//! Transactions, and the reads of a batch: conditions that choose between two batches, checks, and reads.
//!
//! The leader evaluates the conditions on the state that it prepares the batch on, and notes the revision of each
//! config that it read. The command carries these revisions. If one differs when the log decides, the verdict is
//! *stale*, and the leader reads and chooses again. Writes of the configs that are read wait for each other
//! (`record_locks`), so this is rare. Only the leader compares data: the log compares revisions, which says the same
//! in eight bytes.
//!
//! All conditions, checks and reads see the state before the transaction, wherever they stand among the operations.
//!
//! A transaction that changes nothing is not an entry of the log: it is answered as a read, confirmed by a read index.
//!
//! **Invariant:** everything that the response says of configs is true of one state: the one before the transaction's
//! revision.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;
use tokio::time::timeout_at;

use super::prepare::{Preparation, parse_key};
use crate::{
    history::ConfigName,
    memory_budget::{Reservation, Share},
    request::{CheckCondition, DecidedWrite, Principal, Refusal, Target, Write, WriteRequest},
    write::Writes,
};
use concord_model::{
    access_key::Verb,
    command::{Command, ConfigRead, Transaction},
    error::{Invalid, Rejection},
    key::Key,
    limits::TRANSACTION_READ_BYTES_MAX,
    patch::equal,
    record::{Config, Revision},
    redaction::{RedactedPlaces, redacted},
};
use concord_state::{Collection, State};

/// The configs that were read, each once.
#[derive(Debug, Default)]
pub(super) struct ReadSet {
    /// By definition and key.
    revisions: BTreeMap<(Key, Key), Option<Revision>>,
    /// Bytes of data in the response.
    response_bytes: usize,
}

impl ReadSet {
    /// Finds a config and records its revision.
    fn find<'a>(
        &mut self,
        state: &'a State,
        definition: &str,
        key: &str,
    ) -> Result<Option<(&'a Collection, &'a Arc<Config>)>, Refusal> {
        let definition = parse_key(definition, "config_definition_key")?;
        let key = parse_key(key, "config_key")?;
        let found = state.definition(definition.as_str());
        let found = found.and_then(|found| Some((found.as_ref(), found.config(key.as_str())?)));
        self.revisions.insert((definition, key), found.map(|(_, config)| config.revision));
        Ok(found)
    }

    /// Counts the data of a config in the response.
    fn add_to_response(&mut self, config: &Config) -> Result<(), Refusal> {
        self.response_bytes = self.response_bytes.saturating_add(config.data.len());
        if self.response_bytes <= TRANSACTION_READ_BYTES_MAX {
            return Ok(());
        }
        let text = format!(
            "the configs that the batch reads have more than {TRANSACTION_READ_BYTES_MAX} bytes of data"
        );
        Err(Invalid::TooLarge(text).into())
    }

    pub(super) fn into_list(self) -> Vec<ConfigRead> {
        let read = |((definition, key), revision)| ConfigRead { definition, key, revision };
        self.revisions.into_iter().map(read).collect()
    }
}

/// Whether all conditions hold. Conditions after the first one that does not hold are not evaluated.
pub(super) fn all_hold(
    state: &State,
    conditions: &[Write],
    reads: &mut ReadSet,
    with: Preparation<'_>,
) -> Result<bool, Refusal> {
    for (place, condition) in (0..).zip(conditions) {
        match read(state, condition, reads, with) {
            Ok(()) => {}
            Err(Refusal::Rejected(Rejection::CheckFailed { .. })) => return Ok(false),
            Err(refusal) => return Err(refusal.of_operation(place)),
        }
    }
    Ok(true)
}

/// Reads the config of an operation. A check that does not hold is a rejection.
pub(super) fn read(
    state: &State,
    operation: &Write,
    reads: &mut ReadSet,
    with: Preparation<'_>,
) -> Result<(), Refusal> {
    let condition = if let Write::Check(check) = operation { Some(&check.condition) } else { None };
    let Target::Config { definition, key } = operation.target() else {
        return Err(Refusal::Internal("an operation reads no config".into()));
    };
    let found = reads.find(state, definition, key)?;
    let current = found.map(|(_, config)| config.revision);
    let holds = match condition {
        // Rejected here, so that `read_before` can take a missing definition for one that was deleted since.
        None if state.definition(definition).is_none() => return Err(Rejection::DefinitionNotFound.into()),
        None => {
            found.map_or(Ok(()), |(_, config)| reads.add_to_response(config))?;
            true
        }
        Some(CheckCondition::Exists(exists)) => found.is_some() == *exists,
        Some(CheckCondition::Revision(revision)) => current == Some(*revision),
        Some(CheckCondition::Value { pointer, equals }) => match found {
            None => false,
            Some((collection, config)) => {
                with.budget.charge_data(config.data.len(), 0)?;
                let data = as_shown(collection, config, with)?;
                match (data.pointer(pointer), equals) {
                    (Some(value), Some(expected)) => equal(value, &expected.value),
                    (None, None) => true,
                    (Some(_), None) | (None, Some(_)) => false,
                }
            }
        },
    };
    if holds { Ok(()) } else { Err(Rejection::CheckFailed { current }.into()) }
}

/// The data of a config as the client is shown it, so that a comparison tells no more than a read.
fn as_shown(found: &Collection, config: &Config, with: Preparation<'_>) -> Result<Value, Refusal> {
    let mut shown = None;
    if found.may_have_secrets() && with.check_reveal(&found.definition).is_err() {
        let validator = with.validators.of(&found.definition, with.budget)?;
        if let Some(places) = validator.secrets() {
            with.budget.charge_check(places.steps_max(config.data.len()))?;
            shown = redacted(places, &config.data).map(|(text, _)| text);
        }
    }
    serde_json::from_str(shown.as_deref().unwrap_or(&config.data)).map_err(|error| {
        Refusal::Internal(format!("the stored data of {:?} is not JSON: {error}", config.key))
    })
}

/// Whether the conditions of a transaction hold, if it is answered without the log: it changes nothing and has no
/// idempotency key. `None` for all others.
pub(super) fn without_changes(command: &Command, request: &WriteRequest) -> Option<bool> {
    let Command::Transaction(Transaction { chosen: Ok(conditions_held), steps, .. }) = command else {
        return None;
    };
    (steps.is_empty() && request.caller.idempotency_key.is_none()).then_some(*conditions_held)
}

/// A config that a transaction has read.
#[derive(Debug)]
pub enum ReadConfig {
    /// As it was before the transaction.
    Found(Arc<Config>, RedactedPlaces),
    /// It did not exist.
    Absent,
    /// Its history is compacted, or no member has it.
    Unknown,
}

impl Writes {
    /// Reserves memory for the response to a transaction, by the current size of the configs. It is reserved before the
    /// decision, because a decided transaction can no longer be rejected. `keys`: definitions and keys of the configs.
    ///
    /// # Errors
    /// When the memory for requests is used up.
    pub fn reserve_reads<'a>(
        &self,
        principal: &Principal,
        keys: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<Reservation, Refusal> {
        let state = self.cx.applied();
        // The transaction is rejected if the client may not read one of them.
        let keys = keys.filter(|(definition, _)| principal.authorize(Verb::Read, Some(definition)).is_ok());
        let size = |(definition, key): (&str, &str)| {
            state
                .definition(definition)
                .and_then(|found| found.config(key))
                .map_or(0, |config| config.data.len())
        };
        let bytes = keys.map(size).fold(0_usize, usize::saturating_add).min(TRANSACTION_READ_BYTES_MAX);
        self.cx.memory_budget.reserve(Share::Callers, bytes as u64)
    }

    /// The configs as a transaction has read them, in the order of `keys` (definitions and keys). The response to a
    /// retry shows the same configs as long as their history is retained. All of them share the time of one read. A
    /// config that was not found by then is unknown; the transaction was carried out all the same.
    pub async fn reads_of<'a>(
        &self,
        principal: &Principal,
        keys: impl Iterator<Item = (&'a str, &'a str)>,
        written: &DecidedWrite,
    ) -> Vec<ReadConfig> {
        let revision = written.applied.revision;
        let changes = !written.applied.steps().is_empty();
        let at = if changes && !written.dry_run { revision.saturating_sub(1) } else { revision };
        let deadline = self.cx.read_deadline();
        let mut keys = keys.peekable();
        if keys.peek().is_some()
            && let Ok(consensus) = self.cx.consensus_or_refusal()
        {
            // If this node has not applied the revision in time, it does not find the configs either: they are unknown.
            let _late = timeout_at(deadline, consensus.wait_applied(revision)).await.is_err();
        }
        let mut read = Vec::new();
        for (definition, key) in keys {
            let found = timeout_at(deadline, self.read_before(principal, definition, key, at)).await;
            read.push(found.unwrap_or(ReadConfig::Unknown));
        }
        read
    }

    async fn read_before(
        &self,
        principal: &Principal,
        definition: &str,
        key: &str,
        at: Revision,
    ) -> ReadConfig {
        let state = self.cx.applied();
        let found = state.definition(definition);
        if found.is_none_or(|found| found.definition.created_revision() > at) {
            // The definition was deleted since.
            return ReadConfig::Unknown;
        }
        match self.history.config_as_of(&state, ConfigName { definition, key }, at, "body").await {
            Ok(config) => match self.redactor.redact_one(principal, &state, definition, &config).await {
                Ok(shown) => {
                    let (config, redacted) = shown.unwrap_or((config, RedactedPlaces::default()));
                    ReadConfig::Found(config, redacted)
                }
                Err(_) => ReadConfig::Unknown,
            },
            Err(Refusal::NotThere(_) | Refusal::DefinitionNotThere(_)) => ReadConfig::Absent,
            Err(_) => ReadConfig::Unknown,
        }
    }
}
