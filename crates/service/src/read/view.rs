//! What a caller may see of a state, and nothing else of it.
//!
//! Records leave the service in one of these ways: a [`DefinitionView`], a page of a list, a part of the history, the
//! events of a watch, a backup, the answer to a write. Each of them names the principal and what it is for, and
//! [`Principal::authorize`] is asked before the state is looked at. So a refusal is the same, and takes as long, whether
//! or not the thing exists.
//!
//! **Invariant:** `http` can't reach a `State`: what returns one is visible within the service only, which
//! `tests/tidy/grants.rs` checks as well.

use std::sync::Arc;

use crate::read::Reads;
use crate::{
    redaction::is_shown_whole,
    request::{Consistency, Principal, Refusal},
};
use concord_model::{
    access_key::Verb,
    error::Rejection,
    record::{Config, Revision},
    redaction::RedactedPlaces,
};
use concord_state::{Collection, State};

/// One definition of a state, with its configs, for a caller who may see it.
#[derive(Debug)]
pub struct DefinitionView<'a> {
    state: Arc<State>,
    definition: &'a str,
}

impl DefinitionView<'_> {
    /// The definition with its configs.
    ///
    /// # Errors
    /// When the state has none of this key.
    pub fn collection(&self) -> Result<&Collection, Rejection> {
        self.state.definition(self.definition).map(|found| &**found).ok_or(Rejection::DefinitionNotFound)
    }

    /// A config of it as a caller is shown it, with the places of what is not shown; `None` when it is shown as it is
    /// stored.
    ///
    /// # Errors
    /// When it was not redacted in time.
    pub async fn shown(
        &self,
        reads: &Reads,
        principal: &Principal,
        config: &Arc<Config>,
    ) -> Result<Option<(Arc<Config>, RedactedPlaces)>, Refusal> {
        let is_whole = || {
            let found = self.state.definition(self.definition);
            found.is_some_and(|found| is_shown_whole(principal, found))
        };
        if principal.key.is_none() || is_whole() {
            return Ok(None);
        }
        Box::pin(reads.redactor.redact_one(principal, &self.state, self.definition, config)).await
    }

    /// The state's revision.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.state.revision()
    }
}

impl Reads {
    /// A definition for a principal who has the verb for it, from a state that is as fresh as requested.
    ///
    /// # Errors
    /// When the principal has not; when no such state is available in time.
    pub async fn read<'a>(
        &self,
        principal: &Principal,
        verb: Verb,
        definition: &'a str,
        consistency: Consistency,
    ) -> Result<DefinitionView<'a>, Refusal> {
        principal.authorize(verb, Some(definition))?;
        Ok(DefinitionView { state: self.freshness.view(consistency).await?, definition })
    }

    /// The same from the state that this node has applied, however old.
    ///
    /// # Errors
    /// When the principal does not have the verb for the definition.
    pub fn read_applied<'a>(
        &self,
        principal: &Principal,
        verb: Verb,
        definition: &'a str,
    ) -> Result<DefinitionView<'a>, Refusal> {
        principal.authorize(verb, Some(definition))?;
        Ok(DefinitionView { state: self.cx.applied(), definition })
    }
}
