//! Reads of one definition and its configs, authorized for a principal.
//!
//! Records leave the service in one of these ways: a [`DefinitionView`], a page of a list, a bulk read, a part of the
//! history, the events of a watch, a backup, the response to a write. Each of them names the principal and the
//! permission that it needs, and calls [`Principal::authorize`] before it reads the state. So a rejection is the
//! same, and takes as long, whether or not the record exists.
//!
//! **Invariant:** `http` can't reach a `State`: a function that returns one is visible within the service only.
//! `tests/tidy/grants.rs` checks that as well.

use std::sync::Arc;

use crate::read::{Reads, list::named_by};
use crate::{
    memory_budget::{Reservation, Share},
    redaction::may_see_all,
    request::{Consistency, Principal, Refusal},
};
use concord_model::{
    access_key::{Pattern, Verb},
    error::Rejection,
    record::{Config, Deletion, Revision},
    redaction::RedactedPlaces,
    sabotage,
    system::rollout::Reader,
};
use concord_state::{Collection, State, seen::SeenConfig};

/// One definition of a state, with its configs, for a principal who may see it.
#[derive(Debug)]
pub struct DefinitionView<'a> {
    state: Arc<State>,
    definition: &'a str,
}

impl DefinitionView<'_> {
    /// The definition with its configs.
    ///
    /// # Errors
    /// If the state has no definition with this key.
    pub fn collection(&self) -> Result<&Collection, Rejection> {
        self.state.definition(self.definition).map(|found| &**found).ok_or(Rejection::DefinitionNotFound)
    }

    /// A config of this definition as a reader sees it that is in its rollout; `None` where the client sees the proven one.
    #[must_use]
    pub fn seen(&self, config: &Config, reader: Option<&Reader>) -> Option<SeenConfig> {
        // Most requests end here: they look nothing up.
        if reader.is_none() && !sabotage::is("candidate-for-all") {
            return None;
        }
        let definition = self.state.definition(self.definition)?.definition.id;
        self.state.seen_by(definition, config, reader)
    }

    /// A config of this definition redacted for a principal, with the paths of the redacted values; `None` if there is
    /// nothing to redact.
    ///
    /// # Errors
    /// If it was not redacted before the read deadline.
    pub async fn shown(
        &self,
        reads: &Reads,
        principal: &Principal,
        config: &Arc<Config>,
    ) -> Result<Option<(Arc<Config>, RedactedPlaces)>, Refusal> {
        let is_unredacted = || {
            let found = self.state.definition(self.definition);
            found.is_some_and(|found| may_see_all(principal, found))
        };
        if principal.is_unbounded() || is_unredacted() {
            return Ok(None);
        }
        Box::pin(reads.redactor.redact_one(principal, &self.state, self.definition, config)).await
    }

    /// The revision of the state.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.state.revision()
    }
}

/// A deleted definition that is kept, so that its deletion can be undone.
#[derive(Debug, PartialEq, Eq)]
pub struct DeletedDefinition {
    /// Its key.
    pub key: String,
    /// When it was deleted.
    pub deletion: Deletion,
    /// How many configs would return with it.
    pub configs: u64,
    /// The bytes of their keys and data.
    pub bytes: u64,
}

impl DeletedDefinition {
    /// About the bytes that it takes in a list: its members, and its key.
    #[must_use]
    pub fn listed_bytes(&self) -> usize {
        256 + self.key.len()
    }
}

/// A list of deleted definitions.
#[derive(Debug)]
pub struct DeletedList {
    /// The definitions.
    pub results: Vec<DeletedDefinition>,
    /// The memory that the response may take.
    pub reservation: Reservation,
    /// The revision of the state.
    pub revision: Revision,
}

impl Reads {
    /// The deleted definitions that are kept, match the patterns and that the principal may read, those that were deleted
    /// last first; without patterns, all. At most
    /// [`DELETED_DEFINITIONS_MAX`](concord_model::limits::DELETED_DEFINITIONS_MAX).
    ///
    /// # Errors
    /// If no state that is as fresh as requested is available in time, or this node has no memory for the response.
    pub async fn deleted(
        &self,
        principal: &Principal,
        patterns: &[Pattern],
        consistency: Consistency,
    ) -> Result<DeletedList, Refusal> {
        let visible = named_by(patterns).and(&principal.visible(Verb::Read));
        let state = self.freshness.view(consistency).await?;
        let shown = |kept: &Arc<Collection>| {
            let deletion = kept.definition.standing.deleted?;
            let key = kept.definition.key.to_string();
            let (configs, bytes) = (kept.by_key.len(), kept.content_bytes());
            visible.contains(&key).then_some(DeletedDefinition { key, deletion, configs, bytes })
        };
        let results: Vec<DeletedDefinition> = state.deleted().rev().filter_map(shown).collect();
        let bytes = results.iter().map(DeletedDefinition::listed_bytes).sum::<usize>() as u64;
        let reservation = self.cx.memory_budget.reserve(Share::Callers, bytes)?;
        Ok(DeletedList { results, reservation, revision: state.revision() })
    }

    /// A view of a definition, from a state that is as fresh as requested.
    ///
    /// # Errors
    /// If the principal lacks the permission `verb` on the definition, or if no such state is available in time.
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

    /// A view of a definition, from the state that this node has applied, however old.
    ///
    /// # Errors
    /// If the principal lacks the permission `verb` on the definition.
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
