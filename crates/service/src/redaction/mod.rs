//! Redacts secret values in the data of configs.
//!
//! For a client without the permission `reveal`, `null` replaces each secret value. The *current* schema decides
//! which fields are secret, also in data of an earlier revision. So a write that removes a mark reveals the earlier
//! values as well, and needs `reveal` for that (`write/secrets.rs`). The schema of a deleted definition is unknown,
//! so the data of its configs is redacted as a whole.
//!
//! The root key sees everything, and a definition without marks has nothing to redact. A flag decides each of the two
//! cases, and the stored text is sent as it is.
//!
//! `redaction/filters.rs` rejects lists that filter or sort by secret fields.
//!
//! The current schema is that of the state that this node has applied. The data may be newer: a page from another node,
//! or a change in the feed that is not applied yet. It is redacted only after this node has applied its revision
//! (`Freshness::state_to_show`).
//!
//! **Invariant:** if the secret fields are not known in time, everything is redacted. They are never taken from a state
//! that is older than the data.

mod filters;

use std::{collections::BTreeMap, sync::Arc};

use super::{
    authors::AuthorView,
    context::Context,
    cpu_pool::Weight,
    request::{Principal, Refusal},
    schemas::Schemas,
    schemas::Validator,
};
use concord_model::{
    access_key::Verb,
    index::{IndexPath, PathStep},
    record::{Config, Definition, Revision},
    redaction::{RedactedPlaces, redacted},
    schema::secret::{Secrecy, SecretPlaces, SecretStep},
};
use concord_state::{
    Collection, State,
    feed::{Before, Event, RecordChange},
};

/// How to redact the configs of a definition.
#[derive(Debug, Clone)]
pub(super) enum Redaction {
    /// Not at all.
    Nothing,
    /// The fields that this schema marks as secret.
    Places(Arc<Validator>),
    /// The data as a whole.
    Whole,
}

/// The redacted paths of records, by the index of the record.
pub type RedactedRecords = BTreeMap<usize, RedactedPlaces>;

/// What a client is shown of an event beside its records: the redacted paths of its configs, by the index of the item, and
/// its author.
#[derive(Debug, Default)]
pub struct RedactedEvent {
    /// Who has made it, and by which change request. Names are in lists alone.
    pub author: AuthorView,
    /// In the configs after the event.
    pub after: RedactedRecords,
    /// In the configs before the event.
    pub before: RedactedRecords,
}

/// The client that wrote data and gets it back in the response.
#[derive(Debug)]
pub struct ShownTo {
    principal: Principal,
    definition: String,
}

impl ShownTo {
    /// The client and the definition that it writes to; `None` for the root key, whose response is not redacted.
    #[must_use]
    pub fn of(principal: &Principal, definition: &str) -> Option<Self> {
        let is_bounded = !principal.is_unbounded();
        is_bounded.then(|| Self { principal: principal.clone(), definition: definition.to_owned() })
    }
}

/// Whether a principal sees all data of a definition unredacted.
pub(super) fn may_see_all(principal: &Principal, found: &Collection) -> bool {
    // A request with the root key costs only the first check.
    principal.is_unbounded()
        || !found.may_have_secrets()
        || principal.authorize(Verb::Reveal, Some(found.definition.key.as_str())).is_ok()
}

/// Whether a path leads to a secret field, or to a value inside or around one: an object is indexed by its whole value.
pub(crate) fn is_secret_path(places: &SecretPlaces, path: &IndexPath) -> bool {
    let steps = path.steps.iter();
    let way: Vec<SecretStep<'_>> = steps
        .map(|step| match step {
            PathStep::Member(name) => SecretStep::Member(name),
            PathStep::AnyMember => SecretStep::AnyMember,
            PathStep::Elements => SecretStep::AnyElement,
        })
        .collect();
    places.at_any(&way) != Secrecy::Open
}

/// Whether a state is older than data of revision `at`, and so may lack a mark that the data was written with.
/// [`Revision::MAX`] stands for data that is not newer than any state.
fn is_late(state: &State, at: Revision) -> bool {
    at != Revision::MAX && state.revision() < at
}

impl Redaction {
    /// Redacts data, and adds the redacted paths to `places`.
    fn data(&self, text: &Arc<str>, places: &mut RedactedPlaces) -> Arc<str> {
        match self {
            Self::Nothing => Arc::clone(text),
            Self::Whole => {
                places.extend(RedactedPlaces::whole());
                "null".into()
            }
            Self::Places(validator) => {
                match validator.secrets().and_then(|secrets| redacted(secrets, text)) {
                    None => Arc::clone(text),
                    Some((redacted, more)) => {
                        places.extend(more);
                        redacted.into()
                    }
                }
            }
        }
    }

    fn config(&self, config: &Arc<Config>, places: &mut RedactedPlaces) -> Arc<Config> {
        let data = self.data(&config.data, places);
        if Arc::ptr_eq(&data, &config.data) {
            return Arc::clone(config);
        }
        Arc::new(Config { data, ..Config::clone(config) })
    }

    pub(super) fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }
}

/// Redacts data for principals without the permission `reveal`.
#[derive(Debug)]
pub struct Redactor {
    pub(crate) cx: Arc<Context>,
    pub(crate) schemas: Arc<Schemas>,
}

impl Redactor {
    /// How to redact configs that the definition with this key had at revision `at`; [`Revision::MAX`] for configs of
    /// `state` itself.
    ///
    /// # Errors
    /// If its schema was not compiled in time.
    pub(super) async fn redaction(
        &self,
        principal: &Principal,
        state: &State,
        definition: &str,
        at: Revision,
    ) -> Result<Redaction, Refusal> {
        let may_reveal =
            principal.is_unbounded() || principal.authorize(Verb::Reveal, Some(definition)).is_ok();
        if may_reveal || (at != Revision::MAX && concord_model::sabotage::is("past-not-redacted")) {
            return Ok(Redaction::Nothing);
        }
        if is_late(state, at) {
            return Ok(Redaction::Whole);
        }
        let found = state.definition(definition);
        match found.filter(|found| found.definition.created_revision() <= at) {
            None => Ok(Redaction::Whole),
            Some(found) if found.may_have_secrets() => {
                Ok(Redaction::Places(self.schemas.validator(&found.definition).await?))
            }
            Some(_) => Ok(Redaction::Nothing),
        }
    }

    /// How to redact configs by the schema of this version of a definition, which may have been replaced since.
    ///
    /// # Errors
    /// If its schema was not compiled in time.
    pub(super) async fn redaction_of(
        &self,
        principal: &Principal,
        definition: &Arc<Definition>,
    ) -> Result<Redaction, Refusal> {
        let may_reveal = || principal.authorize(Verb::Reveal, Some(definition.key.as_str())).is_ok();
        if principal.is_unbounded() || !definition.may_have_secrets() || may_reveal() {
            return Ok(Redaction::Nothing);
        }
        Ok(Redaction::Places(self.schemas.validator(definition).await?))
    }

    /// Redacts configs of one definition. Returns them with the redacted paths.
    ///
    /// # Errors
    /// If they were not redacted before the read deadline.
    pub(super) async fn redact(
        &self,
        redaction: Redaction,
        configs: Vec<Arc<Config>>,
    ) -> Result<(Vec<Arc<Config>>, RedactedPlaces), Refusal> {
        if redaction.is_nothing() {
            return Ok((configs, RedactedPlaces::default()));
        }
        let bytes = configs.iter().map(|config| config.data.len()).fold(0_usize, usize::saturating_add);
        let work = move || {
            let mut places = RedactedPlaces::default();
            let redacted = configs.iter().map(|config| redaction.config(config, &mut places)).collect();
            (redacted, places)
        };
        self.cx.work(bytes, Weight::List, self.cx.read_deadline(), work).await
    }

    /// Redacts configs of several definitions. Returns each with its number, and the redacted paths of all.
    ///
    /// # Errors
    /// If they were not redacted before the read deadline.
    pub(super) async fn redact_each(
        &self,
        configs: Vec<(usize, Redaction, Arc<Config>)>,
    ) -> Result<(Vec<(usize, Arc<Config>)>, RedactedPlaces), Refusal> {
        let bytes =
            configs.iter().map(|(_, _, config)| config.data.len()).fold(0_usize, usize::saturating_add);
        let work = move || {
            let mut places = RedactedPlaces::default();
            let redact = |(number, redaction, config): &(usize, Redaction, Arc<Config>)| {
                (*number, redaction.config(config, &mut places))
            };
            (configs.iter().map(redact).collect(), places)
        };
        self.cx.work(bytes, Weight::List, self.cx.read_deadline(), work).await
    }

    /// Redacts a config by the schema in `state`, for a principal who may read it; `None` if there is nothing to
    /// redact.
    ///
    /// # Errors
    /// If it was not redacted before the read deadline.
    pub(super) async fn redact_one(
        &self,
        principal: &Principal,
        state: &State,
        definition: &str,
        config: &Arc<Config>,
    ) -> Result<Option<(Arc<Config>, RedactedPlaces)>, Refusal> {
        let redaction = self.redaction(principal, state, definition, Revision::MAX).await?;
        if redaction.is_nothing() {
            return Ok(None);
        }
        let (mut redacted, places) = self.redact(redaction, vec![Arc::clone(config)]).await?;
        Ok(redacted.pop().filter(|_| !places.is_empty()).map(|config| (config, places)))
    }

    /// Redacts data that a client wrote, for the response. It never fails, because the write is already applied.
    pub async fn echo(&self, to: Option<ShownTo>, data: Arc<str>) -> (Arc<str>, RedactedPlaces) {
        match to {
            None => (data, RedactedPlaces::default()),
            Some(ShownTo { principal, definition }) => {
                // The revision does not matter: the client knows what it sent.
                Box::pin(self.shown_data(&principal, &definition, Revision::MAX, data)).await
            }
        }
    }

    /// Redacts stored data for the response to a write at revision `at`. It never fails, because the write is already
    /// applied. The data is redacted as a whole if the definition was deleted since, even if it was created again, or
    /// if this node's state is older than the write and may lack a mark.
    pub(super) async fn shown_data(
        &self,
        principal: &Principal,
        definition: &str,
        at: Revision,
        data: Arc<str>,
    ) -> (Arc<str>, RedactedPlaces) {
        if principal.is_unbounded() {
            return (data, RedactedPlaces::default());
        }
        let (state, bytes) = (self.cx.applied(), data.len());
        let redaction = self.redaction(principal, &state, definition, at).await.unwrap_or(Redaction::Whole);
        if redaction.is_nothing() {
            return (data, RedactedPlaces::default());
        }
        let work = move || {
            let mut places = RedactedPlaces::default();
            let redacted = redaction.data(&data, &mut places);
            (redacted, places)
        };
        let redacted = self.cx.work(bytes, Weight::Short, self.cx.read_deadline(), work).await;
        redacted.unwrap_or_else(|_| ("null".into(), RedactedPlaces::whole()))
    }

    /// Whether an event may have data to redact for a principal.
    pub(super) fn is_to_be_redacted(&self, principal: &Principal, event: &Event) -> bool {
        if principal.is_unbounded() {
            return false;
        }
        let state = self.cx.applied();
        let is_unredacted = |definition: &str| {
            let found = state.definition(definition).filter(|_| !is_late(&state, event.revision));
            found.filter(|found| found.definition.created_revision() <= event.revision).map_or_else(
                || principal.authorize(Verb::Reveal, Some(definition)).is_ok(),
                |found| may_see_all(principal, found),
            )
        };
        event.items.iter().any(|item| match item {
            RecordChange::Config { definition, .. } => !is_unredacted(definition.as_str()),
            RecordChange::Definition { .. } => false,
        })
    }

    /// Redacts an event. With `has_prev`, its previous values are redacted as well; otherwise those that might have
    /// secret values are removed.
    ///
    /// # Errors
    /// If it was not redacted before the read deadline.
    pub(super) async fn redact_event(
        &self,
        principal: &Principal,
        event: &Event,
        has_prev: bool,
    ) -> Result<(Arc<Event>, RedactedEvent), Refusal> {
        let state = self.cx.applied();
        let (mut items, mut redacted) = (event.items.clone(), RedactedEvent::default());
        for (number, item) in items.iter_mut().enumerate() {
            let RecordChange::Config { definition, before, after, .. } = item else { continue };
            let redaction = self.redaction(principal, &state, definition.as_str(), event.revision).await?;
            if redaction.is_nothing() {
                continue;
            }
            if let Before::Known(config) = before {
                if has_prev {
                    self.redact_record(&redaction, config, number, &mut redacted.before).await?;
                } else {
                    *before = Before::Unknown;
                }
            }
            if let Some(after) = after {
                self.redact_record(&redaction, after, number, &mut redacted.after).await?;
            }
        }
        let shown = event.of_items(items, Vec::new()).with_variants(event.variants.clone());
        Ok((Arc::new(shown), redacted))
    }

    /// Redacts a config of an event, and adds its redacted paths under the index of its item.
    async fn redact_record(
        &self,
        redaction: &Redaction,
        record: &mut Arc<Config>,
        number: usize,
        redacted: &mut RedactedRecords,
    ) -> Result<(), Refusal> {
        let (mut configs, places) = self.redact(redaction.clone(), vec![Arc::clone(record)]).await?;
        if let Some(config) = configs.pop().filter(|_| !places.is_empty()) {
            *record = config;
            redacted.insert(number, places);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
