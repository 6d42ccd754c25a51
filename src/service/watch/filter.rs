//! Which changes a watcher is told: a scope of keys, and perhaps a filter.
//!
//! A filtered watcher keeps what the filtered list shows. A change is told when its new record is in the filter;
//! when only the old one was, the watcher is told that the config has left. Records are tested by their data and
//! not by their stored index entries: an old change has the entries of the indexes of its time.
//!
//! **Invariant:** a watcher that applies what it is told to what it has, holds what the list with the same filter
//! gives at that revision.

use std::{collections::BTreeSet, sync::Arc};

use super::hub::Topic;
use crate::{
    feed::{Before, BeforeAndAfter, Event, Indexed, RecordChange},
    model::{
        error::{Invalid, Rejection},
        index,
        key::Key,
        limits::Limits,
        query::{self, ConfigQuery, QueryError},
        record::{Config, Definition, Revision},
    },
    service::Refusal,
    state::{State, query::finds},
};

/// The keys that a watcher asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Scope {
    All,
    /// These definitions with all their configs.
    Definitions(BTreeSet<Key>),
    /// These configs of one definition, and the definition itself.
    Configs(Key, BTreeSet<Key>),
}

impl Scope {
    pub(super) fn topics(&self) -> Vec<Topic> {
        match self {
            Self::All => vec![Topic::All],
            Self::Definitions(keys) => keys.iter().cloned().map(Topic::Definition).collect(),
            Self::Configs(definition, keys) => {
                let config = |key: &Key| Topic::Config(definition.clone(), key.clone());
                std::iter::once(Topic::Itself(definition.clone())).chain(keys.iter().map(config)).collect()
            }
        }
    }

    pub(super) fn holds_definition(&self, key: &Key) -> bool {
        match self {
            Self::All => true,
            Self::Definitions(keys) => keys.contains(key),
            Self::Configs(definition, _) => definition == key,
        }
    }

    pub(super) fn holds(&self, item: &RecordChange) -> bool {
        match item {
            RecordChange::Definition { key, .. } => self.holds_definition(key),
            RecordChange::Config { definition, key, .. } => match self {
                Self::Configs(of, keys) => of == definition && keys.contains(key),
                Self::All | Self::Definitions(_) => self.holds_definition(definition),
            },
        }
    }
}

/// A condition on the configs of one definition.
#[derive(Debug)]
struct Filter {
    params: Vec<(String, String)>,
    limits: Limits,
    /// The version of the definition that the query was read for.
    definition: Arc<Definition>,
    query: ConfigQuery,
}

/// What a watcher is told.
#[derive(Debug)]
pub(super) struct Selection {
    scope: Arc<Scope>,
    filter: Option<Filter>,
    /// Why it can't go on: the definition does not have the filter's indexes any more.
    broken: Option<Refusal>,
}

/// What of an event a watcher is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Picked {
    /// All of it.
    All,
    /// These items; one that is marked has left the filter.
    Some(Vec<(usize, bool)>),
}

impl Filter {
    fn new(
        params: Vec<(String, String)>,
        definition: &Arc<Definition>,
        limits: &Limits,
    ) -> Result<Self, Refusal> {
        let query = read(&params, definition, limits)?;
        Ok(Self { params, limits: limits.clone(), definition: Arc::clone(definition), query })
    }

    /// The definition has changed.
    fn update(&mut self, definition: &Arc<Definition>) -> Result<(), Refusal> {
        if definition.revision > self.definition.revision {
            self.query = read(&self.params, definition, &self.limits)?;
            self.definition = Arc::clone(definition);
        }
        Ok(())
    }

    /// The configs of an event with the entries of this definition's indexes.
    fn indexed(&self, event: &Event) -> Arc<Indexed> {
        event.indexed(&self.definition.key, self.definition.revision, || {
            let paths = index::stored_paths(&self.definition);
            let item = |item: &RecordChange| match item {
                RecordChange::Config { definition, before, after, .. }
                    if *definition == self.definition.key =>
                {
                    let before = match before {
                        Before::Known(config) => Some(anew(&paths, config)),
                        Before::Nothing | Before::Unknown => None,
                    };
                    (before, after.as_ref().map(|config| anew(&paths, config)))
                }
                RecordChange::Config { .. } | RecordChange::Definition { .. } => (None, None),
            };
            let items = event.items.iter().map(item).collect();
            Indexed { definition: self.definition.key.clone(), revision: self.definition.revision, items }
        })
    }

    /// Whether a config's change is told, and whether it has left.
    fn pick(&self, item: &RecordChange, (before, after): &BeforeAndAfter) -> Option<bool> {
        if after.as_ref().is_some_and(|config| finds(&self.query, config)) {
            return Some(false);
        }
        let was_in = match item {
            RecordChange::Definition { .. } => return Some(false),
            RecordChange::Config { before: Before::Nothing, .. } => false,
            // It may have been: to be told of a leave that was none changes nothing for the watcher.
            RecordChange::Config { before: Before::Unknown, .. } => true,
            RecordChange::Config { before: Before::Known(_), .. } => {
                before.as_ref().is_some_and(|config| finds(&self.query, config))
            }
        };
        was_in.then_some(after.is_some())
    }
}

fn read(
    params: &[(String, String)],
    definition: &Definition,
    limits: &Limits,
) -> Result<ConfigQuery, Refusal> {
    query::configs(params, definition, limits).map_err(|error| match error {
        QueryError::Violations(faults) => Invalid::Violations(faults).into(),
        QueryError::Building(path) => Refusal::Conflict(format!("the index of `{path}` is being built")),
        // Pages are not asked for.
        QueryError::NotIntegers(names) => Refusal::Internal(format!("a filter of a watch has {names:?}")),
    })
}

/// A config with the entries that the paths find in its data.
fn anew(paths: &[index::StoredPath], config: &Arc<Config>) -> Arc<Config> {
    // What was stored was checked when it was taken in.
    let data = serde_json::from_str(&config.data).unwrap_or_default();
    let entries = index::all_entries(paths, &data);
    if entries == config.entries {
        return Arc::clone(config);
    }
    Arc::new(Config { entries, ..Config::clone(config) })
}

impl Selection {
    /// `params` are those of a list that may filter; `state` is where the watcher begins or later.
    pub(super) fn new(
        scope: Scope,
        params: Vec<(String, String)>,
        state: &State,
        limits: &Limits,
    ) -> Result<Self, Refusal> {
        let filter = match &scope {
            _ if params.is_empty() => None,
            Scope::Configs(key, _) => Some(key),
            Scope::Definitions(keys) if keys.len() == 1 => keys.first(),
            Scope::All | Scope::Definitions(_) => {
                return Err(Refusal::Invalid(super::fault("definition", NO_DEFINITION).into()));
            }
        };
        let filter = filter
            .map(|key| {
                let found = state.definition(key.as_str()).ok_or(Rejection::DefinitionNotFound)?;
                Filter::new(params, &found.definition, limits)
            })
            .transpose()?;
        Ok(Self { scope: Arc::new(scope), filter, broken: None })
    }

    pub(super) fn scope(&self) -> &Arc<Scope> {
        &self.scope
    }

    pub(super) fn broken(&mut self) -> Option<Refusal> {
        self.broken.take()
    }

    /// Whether there is such a refusal.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Whether a config of the state that the watcher begins with is shown.
    pub(super) fn shows(&self, config: &Config) -> bool {
        self.filter.as_ref().is_none_or(|filter| finds(&filter.query, config))
    }

    /// What of an event the watcher is told; nothing of most.
    pub(super) fn pick(&mut self, event: &Event) -> Option<Picked> {
        let mut picked = Vec::new();
        let mut indexed: Option<(Revision, Arc<Indexed>)> = None;
        for (place, item) in event.items.iter().enumerate().filter(|(_, item)| self.scope.holds(item)) {
            let Some(filter) = &mut self.filter else {
                picked.push((place, false));
                continue;
            };
            if let RecordChange::Definition { after: Some(definition), .. } = item
                && let Err(refusal) = filter.update(definition)
            {
                self.broken = Some(refusal);
            }
            let version = filter.definition.revision;
            if indexed.as_ref().is_none_or(|(of, _)| *of != version) {
                indexed = Some((version, filter.indexed(event)));
            }
            let configs = indexed.as_ref().and_then(|(_, indexed)| indexed.items.get(place));
            picked.extend(
                configs.and_then(|configs| filter.pick(item, configs)).map(|has_left| (place, has_left)),
            );
        }
        let is_all = picked.len() == event.items.len() && picked.iter().all(|(_, has_left)| !has_left);
        match picked.is_empty() {
            true => None,
            false if is_all => Some(Picked::All),
            false => Some(Picked::Some(picked)),
        }
    }
}

/// Said of a filter without one.
pub(super) const NO_DEFINITION: &str = "a filter and `config_key` need exactly one `definition`";

#[cfg(test)]
mod tests;
