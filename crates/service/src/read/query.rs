//! A list as a query of one state: which it is, what of it is wanted, what was found.
//!
//! **Invariant:** a query that is not refused when it is made is answered, unless it is given up.

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

/// The price of a list, in tests of a config, up to which it is answered on the thread that took the request, or on the
/// one beside for such lists: less than a millisecond.
const SHORT_LIST_PRICE: u64 = 4096;
/// The definitions of a list across definitions up to which it is.
const SHORT_LIST_DEFINITIONS: u64 = 64;
/// The price from which the thread beside may find the page: waking it takes some microseconds.
const LIST_ELSEWHERE_PRICE: u64 = 64;

/// The query of a list, for one state.
pub(super) enum Query<'a> {
    Definitions(&'a State, &'a KeySet, DefinitionQuery),
    Configs(&'a Arc<Collection>, ConfigQuery),
    Across(&'a State, &'a KeySet, AcrossQuery),
}

impl<'a> Query<'a> {
    pub(super) fn new(state: &'a State, listing: &'a Listing, limits: &Limits) -> Result<Self, ListError> {
        let Listing { list, keys } = listing;
        let key = match &list.scope {
            ListScope::Definitions => {
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

    /// The definitions whose indexes it reads, if it is short, and which do not have them.
    pub(super) fn without_indexes(&self) -> impl Iterator<Item = &'a Arc<Collection>> {
        let (one, all) = match self {
            Self::Definitions(..) => (None, None),
            Self::Configs(collection, query) => {
                (Some(*collection).filter(|_| !query.is_by_key_alone()), None)
            }
            Self::Across(state, keys, _) => {
                let is_short = state.definitions_in(keys) <= SHORT_LIST_DEFINITIONS;
                (None, is_short.then(|| state.collections_in(keys)))
            }
        };
        one.into_iter().chain(all.into_iter().flatten()).filter(|collection| !collection.has_indexes())
    }

    /// The same for the wanted page.
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

    /// Whether the page takes so long that another thread is worth waking, and less than about a millisecond.
    pub(super) fn is_worth_a_thread(&self) -> bool {
        match self {
            Self::Configs(collection, query) => {
                (LIST_ELSEWHERE_PRICE..=SHORT_LIST_PRICE).contains(&collection.plan(query).price())
            }
            Self::Definitions(..) | Self::Across(..) => false,
        }
    }

    /// The page, when that takes no longer than about a millisecond.
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
            // To plan it takes a look at each of the definitions, and with filters at its schema.
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

    /// The page; `None` when `is_over` has said that it is not needed any more.
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

    /// The refusal of a list across definitions.
    fn refused(&self, error: QueryError) -> ListError {
        match (self, error) {
            (Self::Across(state, ..), QueryError::Building(path)) => {
                let text = format!(
                    "the index of `{path}` is being built in one of the definitions; the list can be had when it is ready"
                );
                ListError { refusal: Refusal::Building(text), revision: Some(state.revision()) }
            }
            (_, error) => invalid(error),
        }
    }
}

/// Which records of a list are wanted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) page: u64,
    pub(super) limit: u64,
    /// All records, unless the list is a walk from its place in an index, which costs the same at any depth.
    pub(super) all: bool,
}

/// The records of a list that were found.
pub(super) struct Listed {
    pub(super) records: ListRecords,
    /// The number of records on all pages.
    pub(super) total: u64,
    /// Whether these are all of them.
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

/// The refusal of a list that was not done in time.
pub(super) fn late() -> Refusal {
    Refusal::Unavailable("the list was not done in time: it tests too many records, or others do".into())
}

fn being_built(path: &str, collection: &Collection) -> Refusal {
    let progress = collection.progress().map_or_else(String::new, |progress| {
        format!(" ({} of {} configs are done)", progress.done, progress.total)
    });
    Refusal::Building(format!(
        "the index of `{path}` is being built{progress}; the list can be had when it is ready"
    ))
}

/// What is wrong with the parameters.
fn invalid(error: QueryError) -> ListError {
    let violations = match error {
        QueryError::Violations(violations) => Invalid::Violations(violations),
        // Callers check the parameters of pages before; only another node with other limits gets here.
        QueryError::NotIntegers(names) => {
            Violation::new(format!("not integers: {}", names.join(", "))).into()
        }
        QueryError::Building(path) => {
            return Refusal::Building(format!("the index of `{path}` is being built")).into();
        }
    };
    Refusal::Invalid(violations).into()
}
