//! Rollback: writing a config's data of an earlier revision as a new change.
//!
//! The data are read from the history on the node that takes the request, and validated by the current definition as
//! those of any write. The config may have been deleted meanwhile.
//!
//! **Invariant:** the new data are, byte for byte, those of the earlier revision of the same definition.

use std::sync::Arc;

use crate::{
    model::{
        command::{Expect, Outcome},
        document::{self, Document},
        error::Rejection,
        record::{Config, Revision},
    },
    service::{Caller, Consistency, Level, Refusal, Service, Write, Written, run_blocking},
    state::State,
};

/// Nesting of stored data: they were accepted under whatever limit was set then, and the parser takes no more.
const STORED_JSON_DEPTH_MAX: usize = 127;

/// A write of data that a config had at an earlier revision.
#[derive(Debug, Clone)]
pub struct Rollback {
    /// The definition.
    pub definition: String,
    /// Its id: another definition of the same key never had the data.
    pub id: Revision,
    /// The config.
    pub key: String,
    /// The earlier data.
    pub data: Document,
    /// The precondition.
    pub expect: Expect,
}

impl Service {
    /// Writes a config's data of a revision as a new change; a deleted config is created again. Returns the config of
    /// that revision, too.
    ///
    /// # Errors
    /// Those of the write, and those of [`Self::config_at`].
    pub async fn rollback(
        &self,
        caller: Caller,
        (definition, key): (&str, &str),
        to: Revision,
        expect: Expect,
    ) -> Result<(Written, Arc<Config>), Refusal> {
        let linearizable = Consistency { level: Level::Linearizable, min_revision: None };
        let state = self.view(linearizable).await?;
        if let Some(outcome) = remembered_outcome(&state, &caller) {
            let applied = outcome?;
            let config = self.config_written_at(definition, key, applied.revision).await?;
            let written = Written { applied, revision: state.revision(), dry_run: false, content: None };
            return Ok((written, config));
        }
        let config = self.config_as_of(&state, (definition, key), to, "body").await?;
        let found = state.definition(definition).ok_or(Rejection::DefinitionNotFound)?;
        let text = Arc::clone(&config.data);
        let data = run_blocking(move || {
            let value = document::parse(text.as_bytes(), STORED_JSON_DEPTH_MAX);
            value.map(|value| Document { text, value })
        });
        let data = data.await?.map_err(|error| Refusal::Internal(format!("stored data: {error}")))?;
        let (id, definition, key) = (found.definition.id, definition.into(), key.into());
        let written =
            self.write(caller, Write::Rollback(Rollback { definition, id, key, data, expect })).await?;
        Ok((written, config))
    }
}

/// The outcome that the log decided for the same request before.
fn remembered_outcome(state: &State, caller: &Caller) -> Option<Outcome> {
    let request = caller.idempotency_key?;
    let known = state.remembered(&request.id)?;
    let is_same = known.request.fingerprint == request.fingerprint;
    Some(if is_same { known.outcome.clone() } else { Err(Rejection::RequestReused) })
}
