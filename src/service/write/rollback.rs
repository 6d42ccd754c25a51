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
            let config = self.config_written_at(definition, key, applied.revision).await?;
            let written = Written::new(applied, state.revision(), false, None);
            return Ok(self.with_data(&principal, definition, written, &config).await);
        }
        let config = self.config_as_of(&state, (definition, key), to, "body").await?;
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
        let rollback = Rollback { definition: definition.into(), id, key, data, expect };
        let written = self.write(caller, Write::Rollback(rollback)).await?;
        Ok(self.with_data(&principal, definition, written, &config).await)
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
