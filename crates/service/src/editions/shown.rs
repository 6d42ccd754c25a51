//! How much of the data of an edition a client is shown: decided once, for its preview and for what its vote says of it.
//!
//! **Invariant:** data is shown whole only to a client that may see secret values, and where nothing marks any.

use std::sync::Arc;

use super::{StoredEdition, content::StoredOperation, content::StoredText};
use crate::request::Principal;
use concord_model::{
    access_key::Verb,
    key::Key,
    schema::{Schema, StoredSchema},
};
use concord_state::State;

/// How the data of a definition's configs is shown.
pub(crate) enum Shown {
    /// As it is.
    Open,
    /// Without the values at the places of these schemas.
    Marked(Vec<Arc<Schema>>),
    /// Not at all.
    Hidden,
}

impl Shown {
    /// How a client is shown data of a definition in an edition.
    pub(crate) fn of(state: &State, principal: &Principal, stored: &StoredEdition, definition: &Key) -> Self {
        if principal.authorize(Verb::Reveal, Some(definition.as_str())).is_ok() {
            return Self::Open;
        }
        marking(state, stored, definition).map_or(Self::Hidden, Self::by)
    }

    /// Without the values that one of these schemas marks. What does not compile marks everything.
    pub(crate) fn by(schemas: impl IntoIterator<Item = StoredSchema>) -> Self {
        let compile = |schema: StoredSchema| {
            let value = serde_json::from_str(&schema.text).ok()?;
            Schema::compile(&value, schema.formats).ok().map(Arc::new)
        };
        let all: Option<Vec<_>> = schemas.into_iter().map(compile).collect();
        all.map_or(Self::Hidden, Self::Marked)
    }

    /// Whether nothing is left out.
    pub(crate) fn is_whole(&self) -> bool {
        match self {
            Self::Open => true,
            Self::Marked(schemas) => schemas.iter().all(|schema| schema.secrets().is_none()),
            Self::Hidden => false,
        }
    }
}

/// The schemas that mark the secret values of a definition: the current one, and those that the edition sets. `None` when
/// the definition was changed since the edition was sent: the marks of then are not known.
pub(super) fn marking(state: &State, stored: &StoredEdition, definition: &Key) -> Option<Vec<StoredSchema>> {
    let now = state.definition(definition.as_str());
    let then = stored.definitions.iter().find(|(key, _)| key == definition);
    if now.map(|found| found.definition.revision) != then.map(|(_, revision)| *revision) {
        return None;
    }
    let set = stored.operations.iter().filter_map(|operation| {
        if let StoredOperation::CreateDefinition { definition: key, schema, .. }
        | StoredOperation::SetSchema { definition: key, schema, .. } = operation
            && key == definition
        {
            schema.as_ref().map(StoredText::schema)
        } else {
            None
        }
    });
    let current = now.and_then(|found| found.definition.schema.clone());
    Some(current.into_iter().chain(set).collect())
}
