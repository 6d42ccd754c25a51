//! What a caller is shown of the data of configs.
//!
//! Records leave the service as they are stored, or with `null` in place of each secret value, for a caller who has no
//! right to `reveal` them. What is secret is what the schema of *now* says, also of a revision of the past: whoever takes
//! a mark away opens the place, in the past as well, and needs the right to reveal for that
//! (`write/secrets.rs`). Of a definition that was deleted since, the schema is not known any more, so of its configs no
//! data are shown at all.
//!
//! The owner of the root key is shown everything, and a definition without a mark has nothing to hide: both are decided
//! by a look at a flag, and the stored text goes out as it is.
//!
//! Lists that are filtered or sorted by what is secret are in `redaction/filters.rs`.
//!
//! The schema of now is that of the state that this node has applied. What is shown may be newer than that: a page that
//! another node has sent, or a change that is in the feed and not applied yet. Whoever shows it waits until it is applied
//! (`Service::state_to_show`).
//!
//! **Invariant:** where it can't be told in time what is secret, everything is; and it is never told by a state that is
//! older than the data.

mod filters;

use std::{collections::BTreeMap, sync::Arc};

use tokio::time::Instant;

use super::{
    Service,
    cpu_pool::Weight,
    request::{Principal, Refusal},
    write::validators::Validator,
};
use concord_model::{
    access_key::Verb,
    record::{Config, Definition, Revision},
    redaction::{RedactedPlaces, redacted},
};
use concord_state::{
    Collection, State,
    feed::{Before, Event, RecordChange},
};

/// Bytes of data that are redacted on the threads that serve requests; they are parsed.
const INLINE_BYTES_MAX: usize = 64 << 10;

/// How the data of a definition's configs are shown.
#[derive(Debug, Clone)]
pub(super) enum Redaction {
    /// As they are stored.
    Nothing,
    /// Without what this says is secret.
    Places(Arc<Validator>),
    /// Not at all.
    Whole,
}

/// The redacted places of some of the records that are shown, by their numbers.
pub type RedactedRecords = BTreeMap<usize, RedactedPlaces>;

/// The redacted places of an event's configs, by the numbers of its items.
#[derive(Debug, Default)]
pub struct RedactedEvent {
    /// As they are after it.
    pub after: RedactedRecords,
    /// As they were before it.
    pub before: RedactedRecords,
}

/// Who is shown data that they wrote.
#[derive(Debug)]
pub struct ShownTo {
    principal: Principal,
    definition: String,
}

/// A definition, and the revision at which it had the data that are shown.
pub(super) type Of<'a> = (&'a str, Revision);

/// Whether a caller is shown all data of a definition as they are stored.
pub(super) fn is_shown_whole(principal: &Principal, found: &Collection) -> bool {
    // The first is all that the owner of the root key costs.
    principal.key.is_none()
        || !found.may_have_secrets()
        || principal.authorize(Verb::Reveal, Some(found.definition.key.as_str())).is_ok()
}

/// Whether a state is older than data of a revision, and may lack a mark that was there when they were written.
fn is_late(state: &State, at: Revision) -> bool {
    at != Revision::MAX && state.revision() < at
}

impl Redaction {
    /// Data as they are shown; the places of what is not shown are added to `places`.
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
                    Some((shown, more)) => {
                        places.extend(more);
                        shown.into()
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

impl Service {
    /// How a caller is shown the configs that a definition of this key had at a revision.
    ///
    /// # Errors
    /// When its schema was not compiled in time.
    pub(super) async fn redaction(
        &self,
        principal: &Principal,
        state: &State,
        (definition, at): (&str, Revision),
    ) -> Result<Redaction, Refusal> {
        let may_all = principal.key.is_none() || principal.authorize(Verb::Reveal, Some(definition)).is_ok();
        if may_all || (at != Revision::MAX && concord_model::sabotage::is("past-not-redacted")) {
            return Ok(Redaction::Nothing);
        }
        if is_late(state, at) {
            return Ok(Redaction::Whole);
        }
        let found = state.definition(definition);
        match found.filter(|found| found.definition.created_revision() <= at) {
            None => Ok(Redaction::Whole),
            Some(found) if found.may_have_secrets() => {
                Ok(Redaction::Places(self.validator(&found.definition).await?))
            }
            Some(_) => Ok(Redaction::Nothing),
        }
    }

    /// How a caller is shown what was written by the schema of a definition that may have been replaced since.
    ///
    /// # Errors
    /// When its schema was not compiled in time.
    pub(super) async fn redaction_of(
        &self,
        principal: &Principal,
        definition: &Arc<Definition>,
    ) -> Result<Redaction, Refusal> {
        let may_reveal = || principal.authorize(Verb::Reveal, Some(definition.key.as_str())).is_ok();
        if principal.key.is_none() || !definition.may_have_secrets() || may_reveal() {
            return Ok(Redaction::Nothing);
        }
        Ok(Redaction::Places(self.validator(definition).await?))
    }

    /// Configs as a caller is shown them, and the places of what is not shown.
    ///
    /// # Errors
    /// When they were not redacted in time.
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
            let shown = configs.iter().map(|config| redaction.config(config, &mut places)).collect();
            (shown, places)
        };
        if bytes <= INLINE_BYTES_MAX {
            return Ok(work());
        }
        let deadline = Instant::now() + self.inner.options.read_timeout;
        self.inner.cpu_pool.run(Weight::List, deadline, move |_| work()).await
    }

    /// Configs of several definitions as a caller is shown them, each with the number that it was given with, and the
    /// places of what is not shown.
    ///
    /// # Errors
    /// When they were not redacted in time.
    pub(super) async fn redact_each(
        &self,
        configs: Vec<(usize, Redaction, Arc<Config>)>,
    ) -> Result<(Vec<(usize, Arc<Config>)>, RedactedPlaces), Refusal> {
        let bytes =
            configs.iter().map(|(_, _, config)| config.data.len()).fold(0_usize, usize::saturating_add);
        let work = move || {
            let mut places = RedactedPlaces::default();
            let shown = |(number, redaction, config): &(usize, Redaction, Arc<Config>)| {
                (*number, redaction.config(config, &mut places))
            };
            (configs.iter().map(shown).collect(), places)
        };
        if bytes <= INLINE_BYTES_MAX {
            return Ok(work());
        }
        let deadline = Instant::now() + self.inner.options.read_timeout;
        self.inner.cpu_pool.run(Weight::List, deadline, move |_| work()).await
    }

    /// A config as a caller is shown it who may read it, by the schema of a state; `None` when it is shown as it is
    /// stored.
    ///
    /// # Errors
    /// When it was not redacted in time.
    pub(super) async fn redact_one(
        &self,
        principal: &Principal,
        state: &State,
        definition: &str,
        config: &Arc<Config>,
    ) -> Result<Option<(Arc<Config>, RedactedPlaces)>, Refusal> {
        let redaction = self.redaction(principal, state, (definition, Revision::MAX)).await?;
        if redaction.is_nothing() {
            return Ok(None);
        }
        let (mut shown, places) = self.redact(redaction, vec![Arc::clone(config)]).await?;
        Ok(shown.pop().filter(|_| !places.is_empty()).map(|config| (config, places)))
    }

    /// Who is to be shown what they write, and of which definition; `None` for the owner of the root key, who is shown
    /// it as it is.
    #[must_use]
    pub fn shown_to(principal: &Principal, definition: &str) -> Option<ShownTo> {
        let is_any = principal.key.is_some();
        is_any.then(|| ShownTo { principal: principal.clone(), definition: definition.to_owned() })
    }

    /// Data that a caller wrote, as they are shown in the answer. The write has been done, so it never fails.
    pub async fn echo(&self, to: Option<ShownTo>, data: Arc<str>) -> (Arc<str>, RedactedPlaces) {
        match to {
            None => (data, RedactedPlaces::default()),
            Some(ShownTo { principal, definition }) => {
                // Whatever the definition was then: the caller has sent them.
                Box::pin(self.shown_data(&principal, (&definition, Revision::MAX), data)).await
            }
        }
    }

    /// Stored data, as they are shown in the answer to a write. The write has been done, so it never fails. Meanwhile the
    /// definition may have been deleted and created again: what was written to the one before is not shown by the schema
    /// of the new one. Nor is it shown by a state that is older than the write, which may lack a mark.
    pub(super) async fn shown_data(
        &self,
        principal: &Principal,
        of: Of<'_>,
        data: Arc<str>,
    ) -> (Arc<str>, RedactedPlaces) {
        if principal.key.is_none() {
            return (data, RedactedPlaces::default());
        }
        let state = self.applied();
        let redaction = self.redaction(principal, &state, of).await.unwrap_or(Redaction::Whole);
        let mut places = RedactedPlaces::default();
        if redaction.is_nothing() || data.len() <= INLINE_BYTES_MAX {
            let shown = redaction.data(&data, &mut places);
            return (shown, places);
        }
        let deadline = Instant::now() + self.inner.options.read_timeout;
        let work = move |_: &_| {
            let shown = redaction.data(&data, &mut places);
            (shown, places)
        };
        let shown = self.inner.cpu_pool.run(Weight::Short, deadline, work).await;
        shown.unwrap_or_else(|_| ("null".into(), RedactedPlaces::whole()))
    }

    /// Whether an event has data that a caller may not be shown.
    pub(super) fn is_to_be_redacted(&self, principal: &Principal, event: &Event) -> bool {
        if principal.key.is_none() {
            return false;
        }
        let state = self.applied();
        let is_whole = |definition: &str| {
            let found = state.definition(definition).filter(|_| !is_late(&state, event.revision));
            found.filter(|found| found.definition.created_revision() <= event.revision).map_or_else(
                || principal.authorize(Verb::Reveal, Some(definition)).is_ok(),
                |found| is_shown_whole(principal, found),
            )
        };
        event.items.iter().any(|item| match item {
            RecordChange::Config { definition, .. } => !is_whole(definition.as_str()),
            RecordChange::Definition { .. } => false,
        })
    }

    /// An event as a caller is shown it; without the configs before it, unless they ask for them.
    ///
    /// # Errors
    /// When it was not redacted in time.
    pub(super) async fn redact_event(
        &self,
        principal: &Principal,
        event: &Event,
        has_prev: bool,
    ) -> Result<(Arc<Event>, RedactedEvent), Refusal> {
        let state = self.applied();
        let (mut items, mut redacted) = (event.items.clone(), RedactedEvent::default());
        for (number, item) in items.iter_mut().enumerate() {
            let RecordChange::Config { definition, before, after, .. } = item else { continue };
            let redaction = self.redaction(principal, &state, (definition.as_str(), event.revision)).await?;
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
        let shown = Event::new(event.revision, event.at, &event.by, event.reason.as_ref(), items);
        let shown = shown.ok_or_else(|| Refusal::Internal("an event without items".into()))?;
        Ok((Arc::new(shown), redacted))
    }

    /// Redacts one of several records, and notes the places by its number.
    async fn redact_record(
        &self,
        redaction: &Redaction,
        record: &mut Arc<Config>,
        number: usize,
        redacted: &mut RedactedRecords,
    ) -> Result<(), Refusal> {
        let (mut shown, places) = self.redact(redaction.clone(), vec![Arc::clone(record)]).await?;
        if let Some(shown) = shown.pop().filter(|_| !places.is_empty()) {
            *record = shown;
            redacted.insert(number, places);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
