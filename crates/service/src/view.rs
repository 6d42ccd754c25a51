//! What a caller may see of a state, and nothing else of it.
//!
//! Records leave the service in one of these ways: a [`DefinitionView`], a page of a list, a part of the history, the
//! events of a watch, a backup, the answer to a write. Each of them names the principal and what it is for, and
//! [`Principal::authorize`] is asked before the state is looked at. So a refusal is the same, and takes as long, whether
//! or not the thing exists.
//!
//! **Invariant:** `http` can't reach a `State`: what returns one is visible within the service only, which
//! `tests/tidy/grants.rs` checks as well.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Service,
    redaction::is_shown_whole,
    request::{Consistency, Principal, Refusal},
};
use concord_model::{
    access_key::{KeyId, Verb},
    error::Rejection,
    key_set::{KeyRange, KeySet},
    limits::KEYS_UNCONFIRMED_MAX,
    record::{Config, Revision},
    redaction::RedactedPlaces,
    time::Timestamp,
};
use concord_state::{Collection, State};

/// How long a request may take to arrive, or to be answered, until its caller is judged again.
const JUDGED_AGAIN_AFTER: Duration = Duration::from_secs(1);

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
        service: &Service,
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
        Box::pin(service.redact_one(principal, &self.state, self.definition, config)).await
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

impl Service {
    /// A principal as it is now: what lasts longer than a request asks again whether it may go on.
    ///
    /// # Errors
    /// [`Refusal::KeyEnded`]; on a node that has lost the cluster, that it can't know.
    pub(super) fn renewed(&self, principal: &Principal) -> Result<Principal, Refusal> {
        if !principal.is_root() && self.staleness().is_none_or(|age| age > KEYS_UNCONFIRMED_MAX) {
            let text = "this node has lost the cluster, and can't know whether the key is still valid";
            return Err(Refusal::Unavailable(text.into()));
        }
        self.judged(principal)
    }

    /// The principal of a request that began at this time and is read only now: its body may have taken so long that its
    /// right has ended.
    ///
    /// # Errors
    /// That the key is not good any more, or that this node has lost the cluster and cannot tell.
    pub fn still(&self, principal: Principal, begin: Instant) -> Result<Principal, Refusal> {
        if begin.elapsed() < JUDGED_AGAIN_AFTER { Ok(principal) } else { self.renewed(&principal) }
    }

    /// Refuses the answer to a read that began at this time, where it took so long that the right to it has ended, or
    /// may have.
    ///
    /// # Errors
    /// The same; and that the key has lost a part of its grants meanwhile: whoever asks again is judged
    /// by those that are left.
    pub fn check_still(&self, principal: &Principal, begin: Instant) -> Result<(), Refusal> {
        if begin.elapsed() < JUDGED_AGAIN_AFTER {
            return Ok(());
        }
        let now = self.renewed(principal)?;
        let (Some(before), Some(now)) = (&principal.key, &now.key) else { return Ok(()) };
        if now.grants.covers(&before.grants) {
            return Ok(());
        }
        let text = "the grants of the access key were changed while the request was under way: send it again";
        Err(Refusal::Unavailable(text.into()))
    }

    /// A principal as it is by the state that this node has applied.
    ///
    /// # Errors
    /// [`Refusal::KeyEnded`].
    pub(super) fn judged(&self, principal: &Principal) -> Result<Principal, Refusal> {
        let state = self.applied();
        if principal.is_root() {
            let is_replaced = principal.secret != 0 && !self.inner.access.has_root(principal.secret);
            let has_ended = state.is_root_disabled() || is_replaced;
            return if has_ended { Err(Refusal::KeyEnded) } else { Ok(principal.clone()) };
        }
        let key =
            KeyId::parse(&principal.id).and_then(|id| state.access_key(&id)).ok_or(Refusal::KeyEnded)?;
        let at = if key.has_end() { self.log_time(&state) } else { Timestamp(0) };
        if !key.is_valid_at(at) || key.secret_at(principal.secret, at).is_none() {
            return Err(Refusal::KeyEnded);
        }
        Ok(Principal::of_key(Arc::clone(key), principal.secret))
    }
}

/// The definitions for which a principal has the right to a verb.
pub(super) fn visible(principal: &Principal, verb: Verb) -> KeySet {
    match &principal.key {
        _ if principal.is_root() => KeySet::ALL,
        None => KeySet::NONE,
        Some(key) => KeySet::of(key.grants.patterns(verb).filter_map(KeyRange::of)),
    }
}

#[cfg(test)]
pub(super) mod tests;
