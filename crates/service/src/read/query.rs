//! The query of a list on one state: making it, its cost, running it.
//!
//! **Invariant:** a query that [`Query::new`] accepts returns its page unless it is cancelled. The one exception is a
//! list across definitions, whose filters are matched with the definitions only when it runs.

use std::sync::Arc;

use super::{
    list::{ListError, ListScope, Listing},
    records::ListRecords,
};
use crate::Refusal;
use concord_model::{
    error::{Invalid, Rejection, Violation},
    key_set::KeySet,
    limits::Limits,
    query::{self, AcrossQuery, ConfigQuery, DefinitionQuery, QueryError},
    record::{Config, Definition},
};
use concord_state::{
    Collection, State,
    query::{AcrossRecord, QueryResult},
};

/// A short list costs at most this many tests of a config: less than a millisecond.
const SHORT_LIST_PRICE: u64 = 4096;
/// A short list across definitions covers at most this many definitions.
const SHORT_LIST_DEFINITIONS: u64 = 64;
/// A list that costs less than this is not worth waking another thread, which takes some microseconds.
const LIST_ELSEWHERE_PRICE: u64 = 64;

/// The query of a list on one state.
pub(super) enum Query<'a> {
    Definitions(&'a State, &'a KeySet, DefinitionQuery),
    Configs(&'a Arc<Collection>, ConfigQuery),
    Across(&'a State, &'a KeySet, AcrossQuery),
}

impl<'a> Query<'a> {
    pub(super) fn new(state: &'a State, listing: &'a Listing, limits: &Limits) -> Result<Self, ListError> {
        let Listing { list, keys } = listing;
        let key = match &list.scope {
            ListScope::Definitions | ListScope::DefinitionsOf(_) => {
                let query = query::definitions(&list.params, limits).map_err(invalid)?;
                return Ok(Self::Definitions(state, keys, query));
            }
            ListScope::Across(_) => {
                let query = query::across(&list.params, limits).map_err(invalid)?;
                return Ok(Self::Across(state, keys, query));
            }
            ListScope::Configs(key) => key,
        };
        let of_state = |refusal| ListError { refusal, revision: Some(state.revision()) };
        let collection =
            state.definition(key).ok_or_else(|| of_state(Rejection::DefinitionNotFound.into()))?;
        match query::configs(&list.params, &collection.definition, limits) {
            Ok(query) => Ok(Self::Configs(collection, query)),
            Err(QueryError::Building(path)) => Err(of_state(being_built(&path, collection))),
            Err(error @ (QueryError::Violations(_) | QueryError::NotIntegers(_))) => Err(invalid(error)),
        }
    }

    /// The definitions whose indexes have to be built first, if the list may be short.
    pub(super) fn without_indexes(&self) -> impl Iterator<Item = &'a Arc<Collection>> {
        let (single, several) = match self {
            Self::Definitions(..) => (None, None),
            Self::Configs(collection, query) => {
                (Some(*collection).filter(|_| !query.is_by_key_alone()), None)
            }
            Self::Across(state, keys, _) => {
                let is_short = state.definitions_in(keys) <= SHORT_LIST_DEFINITIONS;
                (None, is_short.then(|| state.collections_in(keys)))
            }
        };
        single.into_iter().chain(several.into_iter().flatten()).filter(|collection| !collection.has_indexes())
    }

    /// The same query for the wanted page.
    pub(super) fn at(mut self, wanted: Wanted) -> Self {
        let is_walk = match &self {
            Self::Definitions(_, keys, query) => query.is_walk(keys),
            Self::Configs(collection, query) => collection.is_positional(query),
            Self::Across(.., query) => query.is_of_all(),
        };
        let (Self::Definitions(.., DefinitionQuery { page, .. })
        | Self::Configs(_, ConfigQuery { page, .. })
        | Self::Across(.., AcrossQuery { page, .. })) = &mut self;
        let is_all = wanted.all && !is_walk;
        (page.page, page.limit) = if is_all { (1, u64::MAX) } else { (wanted.page, wanted.limit) };
        self
    }

    /// Whether the list is short and yet costs enough to wake another thread for it.
    pub(super) fn is_worth_a_thread(&self) -> bool {
        match self {
            Self::Configs(collection, query) => {
                (LIST_ELSEWHERE_PRICE..=SHORT_LIST_PRICE).contains(&collection.plan(query).price())
            }
            Self::Definitions(..) | Self::Across(..) => false,
        }
    }

    /// The page, if the list is short.
    pub(super) fn run_if_short(&self, limits: &Limits) -> Option<Result<Listed, ListError>> {
        match self {
            Self::Definitions(state, keys, query) => {
                let is_short = state.list_price(query, keys) <= SHORT_LIST_PRICE;
                let found = if is_short { state.list_until(query, keys, &|| false) } else { None };
                found.map(|found| Ok(Listed::definitions(found, query)))
            }
            Self::Configs(collection, query) => {
                let plan = collection.plan(query);
                let found = if plan.price() <= SHORT_LIST_PRICE { plan.run(&|| false) } else { None };
                found.map(|found| Ok(Listed::configs(found, query)))
            }
            // Planning it visits each definition, and with filters also its schema.
            Self::Across(state, keys, query) => {
                let is_short = query.is_of_all() && state.definitions_in(keys) <= SHORT_LIST_DEFINITIONS;
                if !is_short {
                    return None;
                }
                let plan = match state.across(query, keys, limits, &|| false)? {
                    Ok(plan) => plan,
                    Err(error) => return Some(Err(self.refused(error))),
                };
                let found = if plan.price() <= SHORT_LIST_PRICE { plan.run(&|| false) } else { None };
                found.map(|found| Ok(Listed::across(found, query)))
            }
        }
    }

    /// The page; `None` if `is_over` returned true before it was complete.
    pub(super) fn run(
        &self,
        limits: &Limits,
        is_over: &dyn Fn() -> bool,
    ) -> Option<Result<Listed, ListError>> {
        match self {
            Self::Definitions(state, keys, query) => {
                let found = state.list_until(query, keys, is_over)?;
                Some(Ok(Listed::definitions(found, query)))
            }
            Self::Configs(collection, query) => {
                let found = collection.plan(query).run(is_over)?;
                Some(Ok(Listed::configs(found, query)))
            }
            Self::Across(state, keys, query) => match state.across(query, keys, limits, is_over)? {
                Ok(plan) => Some(Ok(Listed::across(plan.run(is_over)?, query))),
                Err(error) => Some(Err(self.refused(error))),
            },
        }
    }

    /// The rejection of a list across definitions whose planning failed.
    fn refused(&self, error: QueryError) -> ListError {
        match (self, error) {
            (Self::Across(state, ..), QueryError::Building(path)) => {
                let text = format!(
                    "the index of `{path}` is being built in one of the definitions; retry when it is complete"
                );
                ListError { refusal: Refusal::Building(text), revision: Some(state.revision()) }
            }
            (_, error) => invalid(error),
        }
    }
}

/// The part of a list that a request needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) page: u64,
    pub(super) limit: u64,
    /// Whether to return all records, unless the list walks an index: a walk costs the same at any depth.
    pub(super) all: bool,
}

/// The result of a list.
pub(super) struct Listed {
    pub(super) records: ListRecords,
    /// The number of records on all pages.
    pub(super) total: u64,
    /// Whether `records` are the records of all pages.
    pub(super) is_all: bool,
}

impl Listed {
    fn definitions(found: QueryResult<Arc<Definition>>, query: &DefinitionQuery) -> Self {
        let is_all = query.page.limit == u64::MAX;
        Self { records: ListRecords::Definitions(found.results), total: found.total, is_all }
    }

    fn across(found: QueryResult<AcrossRecord>, query: &AcrossQuery) -> Self {
        let is_all = query.page.limit == u64::MAX;
        Self { records: ListRecords::Across(found.results), total: found.total, is_all }
    }

    fn configs(found: QueryResult<Arc<Config>>, query: &ConfigQuery) -> Self {
        let is_all = query.page.limit == u64::MAX;
        Self { records: ListRecords::Configs(found.results), total: found.total, is_all }
    }
}

/// The rejection of a list that was not done in time.
pub(super) fn late() -> Refusal {
    Refusal::Unavailable("the list was not done in time: this list or others test too many records".into())
}

fn being_built(path: &str, collection: &Collection) -> Refusal {
    let progress = collection.progress().map_or_else(String::new, |progress| {
        format!(" ({} of {} configs are done)", progress.done, progress.total)
    });
    Refusal::Building(format!("the index of `{path}` is being built{progress}; retry when it is complete"))
}

/// The rejection of invalid parameters.
fn invalid(error: QueryError) -> ListError {
    let violations = match error {
        QueryError::Violations(violations) => Invalid::Violations(violations),
        // The HTTP layer checks page parameters earlier. So the list comes from a node with other limits.
        QueryError::NotIntegers(names) => {
            Violation::new(format!("not integers: {}", names.join(", "))).into()
        }
        QueryError::Building(path) => {
            return Refusal::Building(format!("the index of `{path}` is being built")).into();
        }
    };
    Refusal::Invalid(violations).into()
}
