//! What a caller may see of a state, and nothing else of it.
//!
//! Records leave the service in one of these ways: a [`DefinitionView`], a page of a list, a part of the history, the
//! events of a watch, a backup, the answer to a write. Each of them names the principal and what it is for, and
//! [`Principal::authorize`] is asked before the state is looked at. So a refusal is the same, and takes as long, whether
//! or not the thing exists.
//!
//! **Invariant:** `api` can't reach a `State`: what returns one is visible within the service only, which
//! `tests/tidy/grants.rs` checks as well.

use std::sync::Arc;

use super::{
    Service,
    request::{Consistency, Effect, Principal, Refusal, Target, Write},
};
use crate::{
    model::{
        access_key::Verb,
        error::Rejection,
        key_set::{KeyRange, KeySet},
        record::Revision,
    },
    state::{Collection, State},
};

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

    /// The state's revision.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.state.revision()
    }
}

impl Service {
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
        Ok(DefinitionView { state: self.view(consistency).await?, definition })
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
        Ok(DefinitionView { state: self.applied(), definition })
    }
}

impl Write {
    /// What a caller must have the right to for its definition; of a batch each operation is asked.
    ///
    /// A patch and a rollback answer with data that the caller did not send, and a patch can ask for a value, so they
    /// need the right to read as well.
    fn verbs(&self) -> &'static [Verb] {
        match (self.effect(), self.target()) {
            (Effect::Define | Effect::Constrain, _) | (Effect::Remove, Target::Definition(_)) => &[Verb::Define],
            (Effect::Store | Effect::Remove, _) => &[Verb::Write],
            (Effect::Compute | Effect::Restore, _) => &[Verb::Write, Verb::Read],
            (Effect::Batch, _) => &[],
        }
    }

    /// Whether the principal may do every operation of it.
    ///
    /// # Errors
    /// [`Refusal::Forbidden`] when there is one that the principal may not do.
    pub(super) fn authorize(&self, principal: &Principal) -> Result<(), Refusal> {
        let is_batch = self.effect() == Effect::Batch;
        for (place, operation) in (0_u32..).zip(self.operations()) {
            for verb in operation.verbs() {
                principal.authorize(*verb, Some(operation.definition())).map_err(|refusal| match refusal {
                    Refusal::Forbidden { verb, .. } if is_batch => Refusal::Forbidden { verb, operation: Some(place) },
                    other => other,
                })?;
            }
        }
        Ok(())
    }
}

/// The definitions for which a principal has the right to a verb.
pub(super) fn visible(principal: &Principal, verb: Verb) -> KeySet {
    match &principal.key {
        None => KeySet::ALL,
        Some(key) => KeySet::of(key.grants.patterns(verb).filter_map(KeyRange::of)),
    }
}
