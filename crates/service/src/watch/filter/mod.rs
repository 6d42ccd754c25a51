//! Selects the changes that a watch returns: those of its scope (`scope`) that match its filter, if it has one.
//!
//! A filtered watch keeps the client's records equal to the filtered list. The watch returns a change when its new record
//! matches the filter. When only the old record matched, the watch returns that the config no longer matches. It matches
//! the data of records, not their stored index entries: an old change has the entries of the indexes at that time.
//!
//! **Invariant:** a client that applies each returned change to its records has the records of the list with the same
//! filter at that revision.

use std::sync::Arc;

use super::{
    invalid,
    scope::{NEEDS_ONE_DEFINITION, WatchScope},
};
use crate::{Refusal, change_requests::ChangeRequestEvent};
use concord_model::{
    error::{Invalid, Rejection},
    index,
    limits::Limits,
    query::{self, ConfigQuery, QueryError},
    record::{Config, Definition, Revision},
};
use concord_state::{
    State,
    feed::{Before, BeforeAndAfter, Event, Indexed, RecordChange},
    query::finds,
};

/// A condition on the configs of one definition.
#[derive(Debug)]
struct WatchFilter {
    params: Vec<(String, String)>,
    limits: Limits,
    /// The version of the definition for which the query was parsed.
    definition: Arc<Definition>,
    query: ConfigQuery,
}

/// The changes that a watch returns.
#[derive(Debug)]
pub(super) struct WatchSelection {
    scope: Arc<WatchScope>,
    filter: Option<WatchFilter>,
    /// Why the watch can't continue: the definition no longer has the indexes of the filter.
    broken: Option<Refusal>,
}

/// The part of an event that a watch returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selected {
    /// All of it.
    All,
    /// The items at these positions. The flag says that the config no longer matches the filter.
    Items(Vec<(usize, bool)>),
    /// No items, and these change requests.
    ChangeRequests(Vec<ChangeRequestEvent>),
}

impl WatchFilter {
    fn new(
        params: Vec<(String, String)>,
        definition: &Arc<Definition>,
        limits: &Limits,
    ) -> Result<Self, Refusal> {
        let query = parse(&params, definition, limits)?;
        Ok(Self { params, limits: limits.clone(), definition: Arc::clone(definition), query })
    }

    /// Follows a newer version of the definition.
    fn update(&mut self, definition: &Arc<Definition>) -> Result<(), Refusal> {
        if definition.revision > self.definition.revision {
            self.query = parse(&self.params, definition, &self.limits)?;
            self.definition = Arc::clone(definition);
        }
        Ok(())
    }

    /// The configs of an event, with the entries of the current indexes of this definition.
    fn indexed(&self, event: &Event) -> Arc<Indexed> {
        event.indexed(&self.definition.key, self.definition.revision, || {
            let paths = index::stored_paths(&self.definition);
            let item = |item: &RecordChange| match item {
                RecordChange::Config { definition, before, after, .. }
                    if *definition == self.definition.key =>
                {
                    let before = match before {
                        Before::Known(config) => Some(reindexed(&paths, config)),
                        Before::Nothing | Before::Unknown => None,
                    };
                    (before, after.as_ref().map(|config| reindexed(&paths, config)))
                }
                RecordChange::Config { .. } | RecordChange::Definition { .. } => (None, None),
            };
            let items = event.items.iter().map(item).collect();
            Indexed { definition: self.definition.key.clone(), revision: self.definition.revision, items }
        })
    }

    /// `None` if the item is not returned. Otherwise whether it is returned because its config no longer matches.
    fn select(&self, item: &RecordChange, (before, after): &BeforeAndAfter) -> Option<bool> {
        if after.as_ref().is_some_and(|config| finds(&self.query, config)) {
            return Some(false);
        }
        let matched_before = match item {
            RecordChange::Definition { .. } => return Some(false),
            RecordChange::Config { before: Before::Nothing, .. } => false,
            // It may have matched. For a client that does not have the config, the notice changes nothing.
            RecordChange::Config { before: Before::Unknown, .. } => true,
            RecordChange::Config { before: Before::Known(_), .. } => {
                before.as_ref().is_some_and(|config| finds(&self.query, config))
            }
        };
        matched_before.then_some(after.is_some())
    }
}

fn parse(
    params: &[(String, String)],
    definition: &Definition,
    limits: &Limits,
) -> Result<ConfigQuery, Refusal> {
    query::configs(params, definition, limits).map_err(|error| match error {
        QueryError::Violations(violations) => Invalid::Violations(violations).into(),
        QueryError::Building(path) => Refusal::Building(format!("the index of `{path}` is being built")),
        // The filters of a watch contain no page parameters.
        QueryError::NotIntegers(names) => Refusal::Internal(format!("a filter of a watch has {names:?}")),
    })
}

/// A config with the index entries of these paths.
fn reindexed(paths: &[index::StoredPath], config: &Arc<Config>) -> Arc<Config> {
    // Stored data was parsed when it was written.
    let data = serde_json::from_str(&config.data).unwrap_or_default();
    let entries = index::all_entries(paths, &data);
    if entries == config.entries {
        return Arc::clone(config);
    }
    Arc::new(Config { entries, ..Config::clone(config) })
}

impl WatchSelection {
    /// `params` are filter parameters like those of a list. `state` is the state at which the watch begins, or a later one.
    pub(super) fn new(
        scope: WatchScope,
        params: Vec<(String, String)>,
        state: &State,
        limits: &Limits,
    ) -> Result<Self, Refusal> {
        let filtered = match &scope {
            _ if params.is_empty() => None,
            WatchScope::Configs(key, _) => Some(key),
            WatchScope::Definitions(keys) if keys.len() == 1 => keys.first(),
            WatchScope::Visible(_)
            | WatchScope::Matching(_)
            | WatchScope::Definitions(_)
            | WatchScope::ChangeRequests(_) => {
                return Err(invalid("definition", NEEDS_ONE_DEFINITION));
            }
        };
        let filter = filtered
            .map(|key| {
                let found = state.definition(key.as_str()).ok_or(Rejection::DefinitionNotFound)?;
                WatchFilter::new(params, &found.definition, limits)
            })
            .transpose()?;
        Ok(Self { scope: Arc::new(scope), filter, broken: None })
    }

    pub(super) fn scope(&self) -> &Arc<WatchScope> {
        &self.scope
    }

    /// Takes the error that ends the watch.
    pub(super) fn take_broken(&mut self) -> Option<Refusal> {
        self.broken.take()
    }

    /// Whether there is such an error.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Whether a config of the initial state is returned.
    pub(super) fn matches(&self, config: &Config) -> bool {
        self.filter.as_ref().is_none_or(|filter| finds(&filter.query, config))
    }

    /// The returned part of an event. `None` for most events.
    pub(super) fn select(&mut self, event: &Event) -> Option<Selected> {
        if self.scope.is_of_change_requests() {
            // Which of them the client may see is decided when they are sent (`redacted`).
            return self.scope.contains_any_of(event).then(|| Selected::ChangeRequests(Vec::new()));
        }
        let mut selected = Vec::new();
        let mut indexed: Option<(Revision, Arc<Indexed>)> = None;
        for (place, item) in event.items.iter().enumerate().filter(|(_, item)| self.scope.contains(item)) {
            let Some(filter) = &mut self.filter else {
                selected.push((place, false));
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
            let unmatched = configs.and_then(|configs| filter.select(item, configs));
            selected.extend(unmatched.map(|is_unmatched| (place, is_unmatched)));
        }
        let is_all =
            selected.len() == event.items.len() && selected.iter().all(|(_, is_unmatched)| !is_unmatched);
        match selected.is_empty() {
            true => None,
            false if is_all => Some(Selected::All),
            false => Some(Selected::Items(selected)),
        }
    }
}

#[cfg(test)]
mod tests;
