//! Rollback: writes the data that a config had at an earlier revision, as a new change.
//!
//! The data comes from the history of this node or of another one. It is validated against the current definition, like
//! the data of any other write.
//!
//! **Invariant:** a retry of a decided request gets its stored response, whatever the history retains.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::idempotency::decided_before;
use crate::{
    cpu_pool::{Weight, late},
    history::ConfigName,
    memory_budget::{Reservation, Share},
    request::{
        Caller, Consistency, DecidedWrite, Principal, Refusal, Restored, Rollback, STORED_JSON_DEPTH_MAX,
        Write,
    },
    write::Writes,
};
use concord_model::{
    access_key::Verb,
    document::{self, Document},
    error::{Invalid, Rejection},
    limits::ENTRY_BYTES_MAX,
    record::{Config, Revision},
};
use concord_state::State;

/// Bytes in memory of a text and its parsed values per byte of the text, for common data.
const PARSED_BYTES_PER_BYTE: usize = 8;

/// The rollbacks of one batch: all are looked up in one state and share the time of one read.
#[derive(Debug)]
pub struct Rollbacks {
    caller: Caller,
    state: Option<Arc<State>>,
    deadline: Instant,
    bytes: usize,
    /// For the texts and their parsed values, until the batch is decided.
    reservation: Reservation,
}

impl Rollbacks {
    /// Counts the data of another config, before it is parsed.
    fn add(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > ENTRY_BYTES_MAX {
            let text = format!("the configs of the rollbacks have more than {ENTRY_BYTES_MAX} bytes of data");
            return Err(Invalid::TooLarge(text).into());
        }
        self.reservation.grow(bytes.saturating_mul(PARSED_BYTES_PER_BYTE) as u64)
    }
}

impl Writes {
    /// Writes the data that a config had at a revision ([`Restored::At`]), and creates a deleted config again. The
    /// result has the data.
    ///
    /// # Errors
    /// The write's refusals; when the history does not have the data.
    pub async fn rollback(
        self: &Arc<Self>,
        caller: Caller,
        rollback: Rollback,
    ) -> Result<DecidedWrite, Refusal> {
        let Rollback { definition, key, restored: Restored::At(to), .. } = &rollback else {
            return Err(Refusal::Internal("a rollback without a revision".into()));
        };
        // Authorized before anything is looked up; the write itself authorizes again.
        for verb in [Verb::Write, Verb::Read] {
            caller.principal.authorize(verb, Some(definition))?;
        }
        let principal = caller.principal.clone();
        let state = self.freshness.view(Consistency::LINEARIZABLE).await?;
        if let Some(outcome) = decided_before(&state, &caller) {
            let applied = outcome?;
            let revision = applied.revision;
            let written = DecidedWrite::new(applied, state.revision(), false, None);
            // The history may no longer have the data. The write was done all the same.
            return Ok(match self.history.config_written_at(definition, key, revision).await {
                Ok(config) => self.with_data(&principal, definition, written, &config).await,
                Err(_) => written,
            });
        }
        let config = self.history.config_as_of(&state, ConfigName { definition, key }, *to, "body").await?;
        let restored = self.restored_of(&state, definition, &config).await?;
        let definition = definition.clone();
        let written = self.write(caller, Write::Rollback(Rollback { restored, ..rollback })).await?;
        Ok(self.with_data(&principal, &definition, written, &config).await)
    }

    /// Begins to look up the data of the rollbacks of one batch.
    #[must_use]
    pub fn begin_rollbacks(&self, caller: &Caller) -> Rollbacks {
        Rollbacks {
            caller: caller.clone(),
            state: None,
            deadline: self.cx.read_deadline(),
            bytes: 0,
            reservation: self.cx.memory_budget.begin(Share::Callers),
        }
    }

    /// Looks up the data of one of the rollbacks of a batch.
    ///
    /// # Errors
    /// As for [`Self::rollback`]; when all of them together have too much data.
    pub async fn restored(
        self: &Arc<Self>,
        batch: &mut Rollbacks,
        definition: &str,
        key: &str,
        to: Revision,
    ) -> Result<Restored, Refusal> {
        for verb in [Verb::Write, Verb::Read] {
            batch.caller.principal.authorize(verb, Some(definition))?;
        }
        let state = match &batch.state {
            Some(state) => Arc::clone(state),
            None => Arc::clone(batch.state.insert(self.freshness.view(Consistency::LINEARIZABLE).await?)),
        };
        if decided_before(&state, &batch.caller).is_some() {
            // The write is not prepared again, and its response does not show the data.
            return Ok(Restored::At(to));
        }
        let config = self.history.config_as_of(&state, ConfigName { definition, key }, to, "body");
        let config = timeout_at(batch.deadline, config).await.map_err(|_| late())??;
        batch.add(config.data.len())?;
        self.restored_of(&state, definition, &config).await
    }

    /// The data of an earlier config, parsed.
    async fn restored_of(
        self: &Arc<Self>,
        state: &State,
        definition: &str,
        config: &Config,
    ) -> Result<Restored, Refusal> {
        let found = state.definition(definition).ok_or(Rejection::DefinitionNotFound)?;
        let text = Arc::clone(&config.data);
        let parse = move || {
            document::parse(text.as_bytes(), STORED_JSON_DEPTH_MAX)
                .map(|value| Document { text: Arc::clone(&text), value })
        };
        let deadline = Instant::now() + self.cx.options.write_timeout;
        let data = self.cx.work(config.data.len(), Weight::Short, deadline, parse).await?;
        let data = data.map_err(|error| Refusal::Internal(format!("stored data: {error}")))?;
        Ok(Restored::Found { id: found.definition.id, data })
    }

    async fn with_data(
        self: &Arc<Self>,
        principal: &Principal,
        definition: &str,
        written: DecidedWrite,
        config: &Config,
    ) -> DecidedWrite {
        let at = written.applied.revision;
        let (data, redacted) =
            self.redactor.shown_data(principal, definition, at, Arc::clone(&config.data)).await;
        DecidedWrite { content: Some(data), redacted, ..written }
    }
}
