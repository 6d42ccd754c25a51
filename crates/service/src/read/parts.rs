//! What of a record an answer has, and what decides it: parts of data, names of indexes, the revision that a condition
//! is judged by, and whether an answer may be compressed.
//!
//! **Invariant:** nothing here tells a caller of a definition that the caller may not read, or of a record that the
//! caller may neither read nor write.

use std::sync::Arc;

use crate::{Consistency, Level, Principal, Refusal, cpu_pool::Weight, read::Reads};
use concord_model::{
    access_key::Verb,
    projection::Projection,
    record::{Config, Revision},
};

impl Reads {
    /// Configs with the parts of their data that the caller asks for.
    ///
    /// # Errors
    /// When that was not done in time.
    pub async fn project(
        &self,
        projection: Arc<Projection>,
        configs: Vec<Arc<Config>>,
    ) -> Result<Vec<Arc<Config>>, Refusal> {
        let bytes = configs.iter().map(|config| config.data.len()).fold(0_usize, usize::saturating_add);
        let work = move || {
            let part = |config: &Arc<Config>| {
                let data = projection.of(&config.data).into();
                Arc::new(Config { data, entries: Box::default(), ..Config::clone(config) })
            };
            configs.iter().map(part).collect()
        };
        self.cx.work(bytes, Weight::List, self.cx.read_deadline(), work).await
    }

    /// Whether a definition that the principal may read has an index of this one member, so that a parameter of this
    /// name is a filter.
    #[must_use]
    pub fn has_index_named(&self, principal: &Principal, definition: &str, name: &str) -> bool {
        if principal.authorize(Verb::Read, Some(definition)).is_err() {
            return false;
        }
        let state = self.cx.applied();
        // The names of parameters have nothing in them that a path escapes.
        state
            .definition(definition)
            .is_some_and(|found| found.definition.indexes.iter().any(|path| path == name))
    }

    /// The revision of a definition or config, of a state that has every acknowledged write; `None` where there is no
    /// such record.
    ///
    /// # Errors
    /// When the principal does not have the verb for the definition, or no such state is available in time.
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

    /// Whether an answer with configs of a definition may be compressed for a principal: not where it may have secret
    /// values. The length of a compressed text tells what of it is repeated, and so whether a guess is in it.
    #[must_use]
    pub fn may_compress(&self, principal: &Principal, definition: &str) -> bool {
        principal.authorize(Verb::Read, Some(definition)).is_ok()
            && self.cx.applied().definition(definition).is_some_and(|found| !found.may_have_secrets())
    }
}
