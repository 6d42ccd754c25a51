//! Rollback: writes the data that a config had at an earlier revision, as a new change.
//!
//! The history of this node or of another one has the data. It is validated against the definition as it is now, like
//! the data of any other write.
//!
//! **Invariant:** a request that was decided before gets its remembered answer, whatever the history still has.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::prepare::decided_before;
use crate::{
    cpu_pool::{Weight, late},
    forward::INLINE_PARSE_BYTES_MAX,
    history::ConfigName,
    memory_budget::{Reservation, Share},
    request::{
        Caller, Consistency, Principal, Refusal, Restored, Rollback, STORED_JSON_DEPTH_MAX, Write, Written,
    },
    write::Writes,
};
use concord_model::{
    access_key::Verb,
    command::Expect,
    document::{self, Document},
    error::{Invalid, Rejection},
    limits::ENTRY_BYTES_MAX,
    record::{Config, Revision},
};
use concord_state::State;

/// Bytes in memory of a text and its values, for each byte of the text: of common data.
const PARSED_PART: usize = 8;

/// What was looked up for the rollbacks of one batch: together they are of one state and have the time of one read.
#[derive(Debug)]
pub struct Rollbacks {
    caller: Caller,
    state: Option<Arc<State>>,
    deadline: Instant,
    bytes: usize,
    /// For the texts and their values, until the batch is decided.
    reservation: Reservation,
}

impl Rollbacks {
    /// Counts the data of one more, before it is parsed.
    fn add(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > ENTRY_BYTES_MAX {
            let text =
                format!("the configs that are rolled back have more than {ENTRY_BYTES_MAX} bytes of data");
            return Err(Invalid::TooLarge(text).into());
        }
        self.reservation.grow(bytes.saturating_mul(PARSED_PART) as u64)
    }
}

impl Writes {
    /// Writes the data that a config had at a revision; a deleted config is created again. The result has that data.
    ///
    /// # Errors
    /// The write's refusals, and those of [`Self::config_at`].
    pub async fn rollback(
        self: &Arc<Self>,
        caller: Caller,
        (definition, key): (&str, &str),
        to: Revision,
        expect: Expect,
    ) -> Result<Written, Refusal> {
        // Decided before anything is looked up; the write itself asks again.
        for verb in [Verb::Write, Verb::Read] {
            caller.principal.authorize(verb, Some(definition))?;
        }
        let principal = caller.principal.clone();
        let state = self.freshness.view(Consistency::LINEARIZABLE).await?;
        if let Some(outcome) = decided_before(&state, &caller) {
            let applied = outcome?;
            let revision = applied.revision;
            let written = Written::new(applied, state.revision(), false, None);
            // What it wrote may be no longer retained. That it was done is certain all the same.
            return Ok(match self.history.config_written_at(definition, key, revision).await {
                Ok(config) => self.with_data(&principal, definition, written, &config).await,
                Err(_) => written,
            });
        }
        let config = self.history.config_as_of(&state, ConfigName { definition, key }, to, "body").await?;
        let restored = self.restored_of(&state, definition, &config).await?;
        let rollback = Rollback { definition: definition.into(), key: key.into(), restored, expect };
        let written = self.write(caller, Write::Rollback(rollback)).await?;
        Ok(self.with_data(&principal, definition, written, &config).await)
    }

    /// Begins to look up what the rollbacks of one batch write.
    #[must_use]
    pub fn begin_rollbacks(&self, caller: &Caller) -> Rollbacks {
        Rollbacks {
            caller: caller.clone(),
            state: None,
            deadline: Instant::now() + self.cx.options.read_timeout,
            bytes: 0,
            reservation: self.cx.memory_budget.begin(Share::Callers),
        }
    }

    /// What a rollback of a batch writes; `found` is what was looked up for the ones before it.
    ///
    /// # Errors
    /// As for [`Self::rollback`]; when the data of all of them are too many bytes.
    pub async fn restored(
        self: &Arc<Self>,
        found: &mut Rollbacks,
        (definition, key): (&str, &str),
        to: Revision,
    ) -> Result<Restored, Refusal> {
        for verb in [Verb::Write, Verb::Read] {
            found.caller.principal.authorize(verb, Some(definition))?;
        }
        let state = match &found.state {
            Some(state) => Arc::clone(state),
            None => Arc::clone(found.state.insert(self.freshness.view(Consistency::LINEARIZABLE).await?)),
        };
        if decided_before(&state, &found.caller).is_some() {
            // The write is not prepared again, and its answer does not show the data.
            return Ok(Restored::At(to));
        }
        let config = self.history.config_as_of(&state, ConfigName { definition, key }, to, "body");
        let config = timeout_at(found.deadline, config).await.map_err(|_| late())??;
        found.add(config.data.len())?;
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
        let data = match config.data.len() {
            0..=INLINE_PARSE_BYTES_MAX => parse(),
            _ => self.cx.cpu_pool.run(Weight::Short, deadline, move |_| parse()).await?,
        };
        let data = data.map_err(|error| Refusal::Internal(format!("stored data: {error}")))?;
        Ok(Restored::Found { id: found.definition.id, data })
    }

    async fn with_data(
        self: &Arc<Self>,
        principal: &Principal,
        definition: &str,
        written: Written,
        config: &Config,
    ) -> Written {
        let of = (definition, written.applied.revision);
        let (data, redacted) = self.redactor.shown_data(principal, of, Arc::clone(&config.data)).await;
        Written { content: Some(data), redacted, ..written }
    }
}
