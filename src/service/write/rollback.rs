//! Rollback: writes the data that a config had at an earlier revision, as a new change.
//!
//! The history of this node or of another one has the data. It is validated against the definition as it is now, like
//! the data of any other write.
//!
//! **Invariant:** a request that was decided before gets its remembered answer, whatever the history still has.

use std::sync::Arc;

use tokio::time::Instant;

use super::prepare::decided_before;
use crate::{
    model::{
        access_key::Verb,
        command::Expect,
        document::{self, Document},
        error::Rejection,
        record::{Config, Revision},
    },
    service::{
        Service,
        cpu_pool::Weight,
        forward::INLINE_PARSE_BYTES_MAX,
        request::{Caller, Consistency, Principal, Refusal, Rollback, Write, Written},
    },
};

/// The depth to which stored data is parsed: it was accepted under whatever limit was set at that time.
const STORED_JSON_DEPTH_MAX: usize = 127;

impl Service {
    /// Writes the data that a config had at a revision; a deleted config is created again. The result has that data.
    ///
    /// # Errors
    /// The write's refusals, and those of [`Self::config_at`].
    pub async fn rollback(
        &self,
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
        let state = self.view(Consistency::LINEARIZABLE).await?;
        if let Some(outcome) = decided_before(&state, &caller) {
            let applied = outcome?;
            let written = Written::new(applied, state.revision(), false, None);
            // What it wrote may be no longer retained. That it was done is certain all the same.
            return Ok(match self.config_written_at(definition, key, applied.revision).await {
                Ok(config) => self.with_data(&principal, definition, written, &config).await,
                Err(_) => written,
            });
        }
        let config = self.config_as_of(&state, (definition, key), to, "body").await?;
        let rollback = self.rollback_to(&state, (definition, key), &config, expect).await?;
        let written = self.write(caller, Write::Rollback(rollback)).await?;
        Ok(self.with_data(&principal, definition, written, &config).await)
    }

    /// A rollback as an operation of a batch.
    ///
    /// # Errors
    /// As for [`Self::rollback`].
    pub async fn rollback_write(
        &self,
        caller: &Caller,
        (definition, key): (&str, &str),
        to: Revision,
        expect: Expect,
    ) -> Result<Write, Refusal> {
        for verb in [Verb::Write, Verb::Read] {
            caller.principal.authorize(verb, Some(definition))?;
        }
        let state = self.view(Consistency::LINEARIZABLE).await?;
        if decided_before(&state, caller).is_some() {
            // The write is not prepared again, and its answer does not show the data.
            let data = Document::new(serde_json::json!({}));
            let (definition, key) = (definition.into(), key.into());
            return Ok(Write::Rollback(Rollback { definition, id: 0, key, data, expect }));
        }
        let config = self.config_as_of(&state, (definition, key), to, "body").await?;
        Ok(Write::Rollback(self.rollback_to(&state, (definition, key), &config, expect).await?))
    }

    /// The write of what a config was.
    async fn rollback_to(
        &self,
        state: &crate::state::State,
        (definition, key): (&str, &str),
        config: &Config,
        expect: Expect,
    ) -> Result<Rollback, Refusal> {
        let found = state.definition(definition).ok_or(Rejection::DefinitionNotFound)?;
        let text = Arc::clone(&config.data);
        let parse = move || {
            document::parse(text.as_bytes(), STORED_JSON_DEPTH_MAX)
                .map(|value| Document { text: Arc::clone(&text), value })
        };
        let deadline = Instant::now() + self.inner.options.write_timeout;
        let data = match config.data.len() {
            0..=INLINE_PARSE_BYTES_MAX => parse(),
            _ => self.inner.cpu_pool.run(Weight::Short, deadline, move |_| parse()).await?,
        };
        let data = data.map_err(|error| Refusal::Internal(format!("stored data: {error}")))?;
        let (id, key) = (found.definition.id, key.into());
        Ok(Rollback { definition: definition.into(), id, key, data, expect })
    }

    async fn with_data(
        &self,
        principal: &Principal,
        definition: &str,
        written: Written,
        config: &Config,
    ) -> Written {
        let of = (definition, written.applied.revision);
        let (data, redacted) = self.shown_data(principal, of, Arc::clone(&config.data)).await;
        Written { content: Some(data), redacted, ..written }
    }
}
