//! Lists of definitions and of configs: the first page, and the pages that cursors name.
//!
//! ```text
//! list ─┬─ first page: a state as fresh as requested ─ run the query ─ pin the state when there is a next page
//!       └─ cursor ─ is it of this list? ─┬─ this node holds the state: `page_of_pinned`
//!                                        └─ another node holds it: `page::fetch`
//! ```
//!
//! A list that is a walk along an index is walked to the page. A list with conditions is computed and sorted as a
//! whole; from its second page on the sorted matches are retained with the pinned state.
//!
//! **Invariant:** every page after the first is of the state of the first one, on whichever node it is requested, or
//! refused as *expired*: then the caller begins with the first page.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::{
    cursor::{Cursor, Fingerprint},
    records::ListRecords,
};
use crate::{
    model::{
        error::{Invalid, Rejection, Violation},
        limits::Limits,
        query::{self, ConfigQuery, DefinitionQuery, Page, QueryError},
        record::Revision,
    },
    peer::codec::encode,
    service::{Consistency, Refusal, Service, run_blocking},
    state::{Collection, State},
};

/// Parameters that do not decide which records a list has: the place in it, and how fresh its first page must be.
pub(crate) const PLACE_PARAMETERS: [&str; 5] =
    ["cursor", "page", "consistency", "max_staleness_ms", "min_revision"];

/// A list as a caller requests it. Sent between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListRequest {
    /// The definition whose configs are listed; `None` lists definitions.
    pub definition: Option<String>,
    /// The parameters of the query.
    pub params: Vec<(String, String)>,
}

/// Which state a page is read from.
#[derive(Debug, Clone, Copy)]
pub enum PageSource {
    /// One that is as fresh as requested; the parameters name the page.
    Fresh(Consistency),
    /// The one that a cursor names, with the page.
    Cursor(Cursor),
}

/// A page of a list.
#[derive(Debug)]
pub struct ListPage {
    /// The records of the page.
    pub records: ListRecords,
    /// The number of records on all pages.
    pub total: u64,
    /// The page's number and size.
    pub page: Page,
    /// The revision of the state that it was read from.
    pub revision: Revision,
    /// The cursor of the next page, where there is one.
    pub next: Option<Cursor>,
}

/// Why a list was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListError {
    /// The refusal.
    pub refusal: Refusal,
    /// The state that was read, when it is the reason.
    pub revision: Option<Revision>,
}

impl From<Refusal> for ListError {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, revision: None }
    }
}

impl Service {
    /// A page of a list. `page` is what the parameters say of pages.
    ///
    /// # Errors
    /// When the query is invalid, the definition does not exist, an index is still being built, the cursor is of
    /// another list or has expired, or no state is available in time.
    pub async fn list(
        &self,
        list: ListRequest,
        page: Page,
        source: PageSource,
    ) -> Result<ListPage, ListError> {
        match source {
            PageSource::Fresh(consistency) => self.first_page(&list, page, consistency).await,
            PageSource::Cursor(cursor) => Ok(self.page_of_cursor(list, page, cursor).await?),
        }
    }

    async fn first_page(
        &self,
        list: &ListRequest,
        page: Page,
        consistency: Consistency,
    ) -> Result<ListPage, ListError> {
        let state = self.view(consistency).await?;
        let (records, total) = Query::new(&state, list, self.limits())?.run(page.page, page.limit);
        let revision = state.revision();
        let next = next_page(&page, total).map(|page| {
            self.inner.pinned_states.pin(&state);
            Cursor { node: self.node_id(), revision, page, fingerprint: self.fingerprint(list) }
        });
        Ok(ListPage { records, total, page, revision, next })
    }

    async fn page_of_cursor(
        &self,
        list: ListRequest,
        page: Page,
        cursor: Cursor,
    ) -> Result<ListPage, Refusal> {
        if self.fingerprint(&list) != cursor.fingerprint {
            let msg = "the cursor was made for another list: its `Link` has the parameters that belong to it";
            return Err(Refusal::Invalid(Violation::at(vec!["query".into(), "cursor".into()], msg).into()));
        }
        let consensus = self.consensus_or_refusal()?;
        let (records, total) = if cursor.node == self.node_id() {
            self.page_of_pinned(cursor, list, page.limit).await?
        } else {
            self.fetch_page(consensus, cursor, list, page.limit).await?
        };
        let page = Page { page: cursor.page, ..page };
        let next = next_page(&page, total).map(|page| Cursor { page, ..cursor });
        Ok(ListPage { records, total, page, revision: cursor.revision, next })
    }

    /// A page of a state that this node holds, and the number of records on all pages.
    pub(super) async fn page_of_pinned(
        &self,
        cursor: Cursor,
        list: ListRequest,
        limit: u64,
    ) -> Result<(ListRecords, u64), Refusal> {
        let pinned = self.inner.pinned_states.find(cursor.revision, &cursor.fingerprint);
        let (state, matches) = pinned.ok_or_else(|| expired("its state is no longer held"))?;
        if let Some(matches) = matches {
            return Ok((matches.page(cursor.page, limit), matches.len() as u64));
        }
        let limits = self.limits().clone();
        // All matches may have to be sorted, which would hold a thread that serves requests.
        let (records, total, is_walk) = run_blocking(move || {
            let query = Query::new(&state, &list, &limits).map_err(|error| error.refusal)?;
            let is_walk = query.is_walk();
            let (page, limit) = if is_walk { (cursor.page, limit) } else { (1, u64::MAX) };
            let (records, total) = query.run(page, limit);
            Ok::<_, Refusal>((records, total, is_walk))
        })
        .await??;
        if is_walk {
            return Ok((records, total));
        }
        let page = records.page(cursor.page, limit);
        self.inner.pinned_states.retain_matches(cursor.revision, cursor.fingerprint, Arc::new(records));
        Ok((page, total))
    }

    fn fingerprint(&self, list: &ListRequest) -> Fingerprint {
        // A cursor belongs to one cluster. The order of parameters with different names has no meaning.
        let cluster = self.inner.peers.me.get().map(|me| me.cluster_id);
        let mut params: Vec<_> =
            list.params.iter().filter(|(name, _)| !PLACE_PARAMETERS.contains(&name.as_str())).collect();
        params.sort_by(|a, b| a.0.cmp(&b.0));
        xxh3_128(&encode(&(cluster, &list.definition, params))).to_be_bytes()
    }
}

/// The number of the page after this one, if there is one.
fn next_page(page: &Page, total: u64) -> Option<u64> {
    page.page.checked_add(1).filter(|_| page.page.saturating_mul(page.limit) < total)
}

/// The query of a list, for one state.
enum Query<'a> {
    Definitions(&'a State, DefinitionQuery),
    Configs(&'a Collection, ConfigQuery),
}

impl<'a> Query<'a> {
    fn new(state: &'a State, list: &ListRequest, limits: &Limits) -> Result<Self, ListError> {
        let Some(key) = &list.definition else {
            let query = query::definitions(&list.params, limits).map_err(invalid)?;
            return Ok(Self::Definitions(state, query));
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

    /// Whether a page is a walk from its place in an index, so that it costs the same at any depth.
    fn is_walk(&self) -> bool {
        match self {
            Self::Definitions(_, query) => query.page.search.is_empty(),
            Self::Configs(collection, query) => collection.is_positional(query),
        }
    }

    /// A page, and the number of records on all pages.
    fn run(self, page: u64, limit: u64) -> (ListRecords, u64) {
        match self {
            Self::Definitions(state, mut query) => {
                (query.page.page, query.page.limit) = (page, limit);
                let found = state.list(&query);
                (ListRecords::Definitions(found.results), found.total)
            }
            Self::Configs(collection, mut query) => {
                (query.page.page, query.page.limit) = (page, limit);
                let found = collection.list(&query);
                (ListRecords::Configs(found.results), found.total)
            }
        }
    }
}

fn being_built(path: &str, collection: &Collection) -> Refusal {
    let progress = collection.progress().map_or_else(String::new, |progress| {
        format!(" ({} of {} configs are done)", progress.done, progress.total)
    });
    Refusal::Conflict(format!(
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
            return Refusal::Conflict(format!("the index of `{path}` is being built")).into();
        }
    };
    Refusal::Invalid(violations).into()
}

/// The refusal of a cursor whose state is no longer available.
pub(super) fn expired(why: &str) -> Refusal {
    Refusal::Expired(format!("the cursor has expired, begin with the first page: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_before_another_has_a_next_one() {
        let page = |page, limit| Page { page, limit, descending: false, search: String::new() };
        assert_eq!(next_page(&page(1, 10), 11), Some(2));
        assert_eq!(next_page(&page(2, 10), 20), None);
        assert_eq!(next_page(&page(1, 10), 0), None);
        assert_eq!(next_page(&page(u64::MAX, 10), u64::MAX), None, "its number would not fit");
    }
}
