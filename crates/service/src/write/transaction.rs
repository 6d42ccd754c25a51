//! What a transaction rests on: conditions that choose between two batches, checks, and reads.
//!
//! The leader evaluates the conditions on the state that it prepares the batch on, and notes the revision of each config
//! that it looked at. The command carries these; where one differs when the log decides, the verdict is *stale*, and the
//! leader reads and chooses again. Writes of the configs that are read wait for each other (`record_locks`), so that this
//! is rare. Data is compared here alone and not by the log: a revision says the same in eight bytes.
//!
//! All conditions, checks and reads see the state before the transaction, wherever they stand among the operations.
//!
//! A transaction that changes nothing is no entry of the log: it is answered as a read, confirmed by a read index.
//!
//! **Invariant:** what the answer says of a config is true of one state: that before the transaction's revision.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::{
    Prepared,
    prepare::{Preparation, parse_key},
};
use crate::{
    history::ConfigName,
    memory_budget::{Reservation, Share},
    request::{CheckCondition, Decision, Effect, Principal, Refusal, Target, Write, WriteRequest, Written},
    write::Writes,
};
use concord_model::{
    access_key::Verb,
    command::{Applied, Command, ConfigRead, Transaction},
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
pub(super) struct Reads {
    revisions: BTreeMap<(Key, Key), Option<Revision>>,
    /// Bytes of the data that the answer holds.
    answered_bytes: usize,
}

impl Reads {
    /// Finds a config and notes it.
    fn find<'a>(
        &mut self,
        state: &'a State,
        (definition, key): (&str, &str),
    ) -> Result<Option<(&'a Collection, &'a Arc<Config>)>, Refusal> {
        let definition = parse_key(definition, "config_definition_key")?;
        let key = parse_key(key, "config_key")?;
        let found = state.definition(definition.as_str());
        let found = found.and_then(|found| Some((found.as_ref(), found.config(key.as_str())?)));
        self.revisions.insert((definition, key), found.map(|(_, config)| config.revision));
        Ok(found)
    }

    /// Counts data that the answer holds.
    fn answer(&mut self, config: &Config) -> Result<(), Refusal> {
        self.answered_bytes = self.answered_bytes.saturating_add(config.data.len());
        if self.answered_bytes <= TRANSACTION_READ_BYTES_MAX {
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

/// Whether all conditions hold. Those after the first that does not are not looked at.
pub(super) fn all_hold(
    state: &State,
    conditions: &[Write],
    reads: &mut Reads,
    with: Preparation<'_>,
) -> Result<bool, (u32, Refusal)> {
    for (place, condition) in (0..).zip(conditions) {
        match read(state, condition, reads, with) {
            Ok(()) => {}
            Err(Refusal::Rejected(Rejection::CheckFailed { .. })) => return Ok(false),
            Err(refusal) => return Err((place, refusal)),
        }
    }
    Ok(true)
}

/// Notes what an operation reads; a check that does not hold is a rejection.
pub(super) fn read(
    state: &State,
    operation: &Write,
    reads: &mut Reads,
    with: Preparation<'_>,
) -> Result<(), Refusal> {
    let condition = if let Write::Check(check) = operation { Some(&check.condition) } else { None };
    let Target::Config { definition, key } = operation.target() else {
        return Err(Refusal::Internal("an operation that reads no config".into()));
    };
    let found = reads.find(state, (definition, key))?;
    let current = found.map(|(_, config)| config.revision);
    let holds = match condition {
        // So that whoever looks it up for the answer can tell a definition that is gone by then from one that never was.
        None if state.definition(definition).is_none() => return Err(Rejection::DefinitionNotFound.into()),
        None => {
            found.map_or(Ok(()), |(_, config)| reads.answer(config))?;
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

/// The data of a config as the caller is shown it: a comparison tells no more than a read.
fn as_shown(found: &Collection, config: &Config, with: Preparation<'_>) -> Result<Value, Refusal> {
    let mut shown = None;
    if found.may_have_secrets() && with.secrets().hides(&found.definition) {
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

/// Whether the conditions of a command hold that changes nothing, and that nobody may send again: it is answered without
/// the log.
pub(super) fn without_changes(command: &Command, request: &WriteRequest) -> Option<bool> {
    let Command::Transaction(Transaction { chosen: Ok(conditions_held), steps, .. }) = command else {
        return None;
    };
    (steps.is_empty() && request.caller.idempotency_key.is_none()).then_some(*conditions_held)
}

/// The decision on a transaction that changes nothing, of the state that it was prepared on.
pub(super) fn answered(applied: Applied) -> Decision {
    Decision::new(Ok(applied), None)
}

/// A rejection that the leader has confirmed, as a command: with an idempotency key it is remembered, as one of the log is.
/// A write whose command holds what it is rejected for is proposed itself; of these there is no command.
#[expect(clippy::wildcard_enum_match_arm, reason = "only what the log could decide is remembered")]
pub(super) fn remembered(request: &WriteRequest, refusal: Refusal) -> Result<Prepared, Refusal> {
    let has_no_command = matches!(request.write.effect(), Effect::Batch | Effect::Compute);
    let may_be = request.caller.idempotency_key.is_some() && !request.caller.dry_run;
    match refusal {
        Refusal::Rejected(rejection) if has_no_command && may_be => {
            let transaction = Transaction { reads: Vec::new(), chosen: Err(rejection), steps: Vec::new() };
            Ok(Prepared::Propose { command: Command::Transaction(transaction), definition_read: None })
        }
        refusal => Err(refusal),
    }
}

/// A config that a transaction has read.
#[derive(Debug)]
pub enum ReadConfig {
    /// As it was before the transaction.
    Found(Arc<Config>, RedactedPlaces),
    /// There was none.
    Absent,
    /// The history that holds it is compacted, or no member has it.
    Unknown,
}

impl Writes {
    /// Reserves what the answer to a transaction may take, by the size that the configs have now: once it is decided,
    /// it can't be refused any more.
    ///
    /// # Errors
    /// When there is no room.
    pub fn reserve_reads<'a>(
        &self,
        principal: &Principal,
        keys: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<Reservation, Refusal> {
        let state = self.cx.applied();
        // The transaction is refused if one of them may not be read.
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

    /// The configs as a transaction has read them, in the order of their keys; the answer to a request that is sent
    /// again shows the same as long as the history is retained. All together they have the time of one read; what was
    /// not found by then is unknown, and the transaction was carried out all the same.
    pub async fn reads_of<'a>(
        &self,
        principal: &Principal,
        keys: impl Iterator<Item = (&'a str, &'a str)>,
        written: &Written,
    ) -> Vec<ReadConfig> {
        let revision = written.applied.revision;
        let changes = !written.applied.steps().is_empty();
        let at = if changes && !written.dry_run { revision.saturating_sub(1) } else { revision };
        let deadline = Instant::now() + self.cx.options.read_timeout;
        let mut keys = keys.peekable();
        if keys.peek().is_some()
            && let Ok(consensus) = self.cx.consensus_or_refusal()
        {
            // A node that does not know the revision in time has not the configs of it either.
            let _late = timeout_at(deadline, consensus.wait_applied(revision)).await.is_err();
        }
        let mut read = Vec::new();
        for keys in keys {
            let found = timeout_at(deadline, self.read_before(principal, keys, at)).await;
            read.push(found.unwrap_or(ReadConfig::Unknown));
        }
        read
    }

    async fn read_before(
        &self,
        principal: &Principal,
        (definition, key): (&str, &str),
        at: Revision,
    ) -> ReadConfig {
        let state = self.cx.applied();
        let found = state.definition(definition);
        if found.is_none_or(|found| found.definition.created_revision() > at) {
            // It was deleted since.
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
            Err(Refusal::NotThere(_)) => ReadConfig::Absent,
            Err(_) => ReadConfig::Unknown,
        }
    }
}
