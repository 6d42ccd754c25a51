//! Which parts of a record a response has, and what decides it: field selection, index names, the revision that a
//! precondition is evaluated against, and whether the response may be compressed.
//!
//! **Invariant:** nothing here reveals a definition that the client may not read, or a record that the client may
//! neither read nor write.

use std::sync::Arc;

use crate::{Consistency, Level, Principal, Refusal, cpu_pool::Weight, read::Reads};
use concord_model::{
    access_key::Verb,
    projection::Projection,
    record::{Config, Revision},
};

impl Reads {
    /// Returns the configs with only the selected fields of their data.
    ///
    /// # Errors
    /// If that was not done before the read deadline.
    pub async fn project(
        &self,
        projection: Arc<Projection>,
        configs: Vec<Arc<Config>>,
    ) -> Result<Vec<Arc<Config>>, Refusal> {
        let bytes = configs.iter().map(|config| config.data.len()).fold(0_usize, usize::saturating_add);
        let work = move || {
            let project = |config: &Arc<Config>| {
                let data = projection.of(&config.data).into();
                Arc::new(Config { data, entries: Box::default(), ..Config::clone(config) })
            };
            configs.iter().map(project).collect()
        };
        self.cx.work(bytes, Weight::List, self.cx.read_deadline(), work).await
    }

    /// Whether a definition has an index on the top-level field `name`, which makes a parameter of this name a filter.
    /// False if the principal may not read the definition.
    #[must_use]
    pub fn has_index_named(&self, principal: &Principal, definition: &str, name: &str) -> bool {
        if principal.authorize(Verb::Read, Some(definition)).is_err() {
            return false;
        }
        let state = self.cx.applied();
        // These names contain no character that an index path escapes.
        state
            .definition(definition)
            .is_some_and(|found| found.definition.indexes.iter().any(|path| path == name))
    }

    /// The revision of a definition or config in a state that has every acknowledged write; `None` if the record does
    /// not exist.
    ///
    /// # Errors
    /// If the principal lacks the permission `verb` on the definition, or if no such state is available in time.
    pub async fn current_revision(
        &self,
        principal: &Principal,
        verb: Verb,
        definition: &str,
        config: Option<&str>,
    ) -> Result<Option<Revision>, Refusal> {
        principal.authorize(verb, Some(definition))?;
        let state =
            self.freshness.view(Consistency { level: Level::Linearizable, min_revision: None }).await?;
        let Some(found) = state.definition(definition) else { return Ok(None) };
        Ok(match config {
            None => Some(found.definition.revision),
            Some(key) => found.config(key).map(|config| config.revision),
        })
    }

    /// Whether a response with configs of a definition may be compressed for a principal: only if the principal may
    /// read the definition and it has no secret fields. The length of a compressed text reveals repetitions, and so
    /// whether a guess occurs in it.
    #[must_use]
    pub fn may_compress(&self, principal: &Principal, definition: &str) -> bool {
        principal.authorize(Verb::Read, Some(definition)).is_ok()
            && self.cx.applied().definition(definition).is_some_and(|found| !found.may_have_secrets())
    }
}
