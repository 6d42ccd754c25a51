//! Lists of definitions and of configs: the first page, and the pages that cursors name.
//!
//! ```text
//! list ─┬─ at an earlier revision: `earlier`
//!       ├─ first page: a state as fresh as requested ─ run the query ─ pin the state if there is a next page
//!       └─ cursor ─ is it of this list? ─┬─ this node holds the state: `Lister::pinned_page`
//!                                        └─ another node holds it: `page`
//! ```
//!
//! A list that walks an index starts the walk at the page. Any other list is computed and sorted as a whole; from the
//! second page on, the sorted matches are retained with the pinned state.
//!
//! A short list runs inline, or on a free thread of the CPU pool while several lists are in progress. A long list runs in the CPU
//! pool, until the read deadline. The pool limits how many lists of one client wait, and never gives all of its threads
//! to lists.
//!
//! The records of a large page are not copied: they are rendered one by one while the response is sent. They stay in
//! memory until then, even if writes replace them. A page reserves memory before it is rendered, so a rejection costs
//! no more than finding the records.
//!
//! **Invariant:** every page after the first is of the state of the first page, on whichever node it is requested.
//! Otherwise the cursor is rejected as *expired*, and the client starts again with the first page.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::{task::yield_now, time::Instant};
use xxhash_rust::xxh3::xxh3_128;

use super::{
    cursor::{Cursor, Fingerprint},
    query::{Listed, Query, Wanted, late},
    records::ListRecords,
    retained::drop_deferred,
};
use crate::{
    Consistency, Principal, Refusal,
    cpu_pool::{Cancel, Weight},
    memory_budget::{Reservation, Share},
    read::Reads,
};
use concord_model::{
    access_key::{Pattern, Verb},
    error::Violation,
    key_set::{KeyRange, KeySet},
    query::{self, Page},
    record::{Definition, Revision},
    redaction::RedactedPlaces,
};
use concord_net::codec::encode;
use concord_state::{Collection, State};

/// Parameters that do not change which records a list contains: they choose the page and its freshness.
pub const PLACE_PARAMETERS: [&str; 5] = ["cursor", "page", "consistency", "max_staleness_ms", "min_revision"];

/// A short list has at most this many bytes of parameters: parsing and looking up a value takes a microsecond.
const SHORT_PARAMS_BYTES: usize = 2 << 10;
/// A page with at most this many bytes of records is rendered as a whole before it is sent.
pub const BUFFERED_PAGE_BYTES_MAX: u64 = 4 << 20;

/// What is listed. Sent between nodes: new variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListScope {
    /// All definitions.
    Definitions,
    /// The configs of a definition.
    Configs(String),
    /// The configs of all definitions that the patterns match; without patterns, of all definitions.
    Across(Vec<Pattern>),
    /// The definitions that the patterns match.
    DefinitionsOf(Vec<Pattern>),
}

/// A list as a client requests it. Sent between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListRequest {
    /// What is listed.
    pub scope: ListScope,
    /// The parameters of the query.
    pub params: Vec<(String, String)>,
}

/// The state that a page is read from.
#[derive(Debug, Clone, Copy)]
pub enum PageSource {
    /// A state that is as fresh as requested; the parameters name the page.
    Fresh(Consistency),
    /// The state that the cursor names, as well as the page.
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
    /// The revision of the state that was read.
    pub revision: Revision,
    /// The cursor of the next page; `None` for the last page.
    pub next: Option<Cursor>,
    /// The memory that the page holds until it is sent.
    pub reservation: Reservation,
    /// The paths of the redacted values.
    pub redacted: RedactedPlaces,
    /// For configs at an earlier revision: their definition at that revision.
    pub(super) definition: Option<Arc<Definition>>,
}

/// Why a list was rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListError {
    /// The rejection.
    pub refusal: Refusal,
    /// The revision of the state that was read, if the state is the reason.
    pub revision: Option<Revision>,
}

impl From<Refusal> for ListError {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, revision: None }
    }
}

/// The records of a page, whatever state and node they come from.
#[derive(Debug, PartialEq)]
pub(super) struct PageRecords {
    pub(super) records: ListRecords,
    /// The number of records on all pages.
    pub(super) total: u64,
    /// For configs at an earlier revision: their definition at that revision.
    pub(super) definition: Option<Arc<Definition>>,
}

impl ListPage {
    /// The page that the cursor names, with the records that were found for it.
    pub(super) fn new(cursor: Cursor, page: Page, found: PageRecords, reservation: Reservation) -> Self {
        let PageRecords { records, total, definition } = found;
        let page = Page { page: cursor.page, ..page };
        let next = next_page(&page, total).map(|page| Cursor { page, ..cursor });
        let (revision, redacted) = (cursor.revision, RedactedPlaces::default());
        Self { records, total, page, revision, next, reservation, redacted, definition }
    }
}

impl Reads {
    /// Returns a page of a list. `page` holds the parameters about pages.
    ///
    /// # Errors
    /// If the principal lacks a permission, the query is invalid, the definition does not exist, an index is being
    /// built, the cursor belongs to another list or has expired, the page is larger than a response may be, or no
    /// state is available in time.
    pub async fn list(
        &self,
        principal: &Principal,
        list: ListRequest,
        page: Page,
        source: PageSource,
    ) -> Result<ListPage, ListError> {
        principal.authorize(Verb::Read, list.definition())?;
        let keys = match &list.scope {
            ListScope::Configs(_) => KeySet::ALL,
            ListScope::Definitions => principal.visible(Verb::Read),
            ListScope::DefinitionsOf(patterns) | ListScope::Across(patterns) => {
                named_by(patterns).and(&principal.visible(Verb::Read))
            }
        };
        let fingerprint = self.fingerprint(&list, principal, &keys);
        if let Some(definition) = list.definition()
            && let Some(found) = self.cx.applied().definition(definition)
        {
            self.redactor.check_filters(principal, found, &list.params).await?;
        }
        if matches!(list.scope, ListScope::Across(_)) && !principal.is_unbounded() {
            Box::pin(self.redactor.check_filters_across(principal, &keys, &list.params)).await?;
        }
        let lister = Lister::new(self, list, keys);
        let page = match (lister.listing.list.earlier_revision(), source) {
            (Some(at), source) => lister.page_at(at, page, source, fingerprint).await?,
            (None, PageSource::Fresh(consistency)) => {
                lister.first_page(page, consistency, fingerprint).await?
            }
            (None, PageSource::Cursor(cursor)) if cursor.fingerprint == fingerprint => {
                lister.page_of_cursor(page, cursor).await?
            }
            (None, PageSource::Cursor(_)) => return Err(foreign_cursor().into()),
        };
        if principal.is_unbounded() {
            return Ok(page);
        }
        Ok(Box::pin(self.redact_page(principal, &lister.listing.list, page)).await?)
    }

    /// Reserves memory for a page before it is rendered. Fails if the page is too large or the memory limit is reached.
    pub(super) fn reserve_page(&self, records: &ListRecords) -> Result<Reservation, Refusal> {
        let bytes = records.bytes();
        self.check_page(bytes)?;
        self.cx.memory_budget.reserve(Share::Callers, bytes)
    }

    /// Rejects a page that is larger than a response may be, whatever else is in flight.
    pub(super) fn check_page(&self, bytes: u64) -> Result<(), Refusal> {
        let max = self.cx.memory_budget.answer_max();
        if bytes <= max {
            return Ok(());
        }
        let msg = format!(
            "the page has at least {bytes} bytes, more than the {max} that a response may have: set a lower `limit`"
        );
        Err(Refusal::Invalid(Violation::at(vec!["query".into(), "limit".into()], msg).into()))
    }

    /// The fingerprint of a list for a principal. It covers the access key and the definitions that the key may see:
    /// after a change of these a cursor no longer matches, so its pages never belong to two different lists.
    fn fingerprint(&self, list: &ListRequest, principal: &Principal, keys: &KeySet) -> Fingerprint {
        // A cursor belongs to one cluster. The order of parameters with different names has no meaning.
        let cluster = self.cx.cluster_id();
        let mut params: Vec<_> =
            list.params.iter().filter(|(name, _)| !PLACE_PARAMETERS.contains(&name.as_str())).collect();
        params.sort_by(|a, b| a.0.cmp(&b.0));
        let bytes = encode(&(cluster, &list.scope, params, principal.id.as_str(), keys));
        xxh3_128(&bytes).to_be_bytes()
    }
}

/// A list, and the keys of the definitions that its client may see.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) list: ListRequest,
    pub(super) keys: KeySet,
}

/// Answers one list until its deadline.
pub(super) struct Lister<'a> {
    pub(super) reads: &'a Reads,
    pub(super) listing: Arc<Listing>,
    pub(super) deadline: Instant,
}

impl<'a> Lister<'a> {
    pub(super) fn new(reads: &'a Reads, list: ListRequest, keys: KeySet) -> Self {
        let deadline = reads.cx.read_deadline();
        Self { reads, listing: Arc::new(Listing { list, keys }), deadline }
    }

    async fn first_page(
        &self,
        page: Page,
        consistency: Consistency,
        fingerprint: Fingerprint,
    ) -> Result<ListPage, ListError> {
        let (reads, cx) = (self.reads, &self.reads.cx);
        let state = reads.freshness.view(consistency).await?;
        let wanted = Wanted { page: page.page, limit: page.limit, all: false };
        let Listed { records, total, .. } = self.run(&state, wanted).await?;
        let reservation = reads.reserve_page(&records)?;
        let consensus = cx.consensus_or_refusal()?;
        let cursor = Cursor { node: cx.node_id(), revision: state.revision(), page: page.page, fingerprint };
        let found = PageRecords { records, total, definition: None };
        let page = ListPage::new(cursor, page, found, reservation);
        if page.next.is_some() {
            reads.pinned_states.pin(&state, consensus);
        }
        Ok(page)
    }

    async fn page_of_cursor(&self, page: Page, cursor: Cursor) -> Result<ListPage, Refusal> {
        let consensus = self.reads.cx.consensus_or_refusal()?;
        let (found, reservation) = if cursor.node == self.reads.cx.node_id() {
            let found = self.pinned_page(cursor, page.limit).await?;
            let reservation = self.reads.reserve_page(&found.records)?;
            (found, reservation)
        } else {
            self.fetch_page(consensus, cursor, page.limit).await?
        };
        Ok(ListPage::new(cursor, page, found, reservation))
    }

    /// A page of a state that this node holds. Fails with *expired* if it no longer holds the state.
    pub(super) async fn pinned_page(&self, cursor: Cursor, limit: u64) -> Result<PageRecords, Refusal> {
        let pinned_states = &self.reads.pinned_states;
        let pinned = pinned_states.find(cursor.revision, &cursor.fingerprint);
        let (state, matches) = pinned.ok_or_else(|| expired("this node no longer holds its state"))?;
        let found = |records, total| PageRecords { records, total, definition: None };
        if let Some(matches) = matches {
            return Ok(found(matches.page(cursor.page, limit), matches.len() as u64));
        }
        // The list may have to sort all matches. They are retained, so the next pages need not do it again.
        let wanted = Wanted { page: cursor.page, limit, all: true };
        let listed = self.run(&state, wanted).await;
        drop_deferred(state);
        let Listed { records, total, is_all } = listed.map_err(|error| error.refusal)?;
        if !is_all {
            return Ok(found(records, total));
        }
        let page = records.page(cursor.page, limit);
        let current = self.reads.cx.consensus_or_refusal()?.state();
        pinned_states.retain_matches(cursor.revision, cursor.fingerprint, Arc::new(records), &current);
        Ok(found(page, total))
    }

    /// Runs the list on a state: a long one in the CPU pool. A short one runs here, or on a free thread of the pool while
    /// other short lists are in progress: to find a page of a hundred configs takes as long as twenty gets, and consensus
    /// needs little of its core while a node lists. A list that is alone is not worth waking a thread.
    pub(super) async fn run(&self, state: &Arc<State>, wanted: Wanted) -> Result<Listed, ListError> {
        let (cx, short_lists, list) = (&self.reads.cx, &self.reads.short_lists, &self.listing.list);
        if list.is_short() && list.is_quick_to_parse(state) {
            let query = Query::new(state, &self.listing, cx.limits())?;
            let unindexed: Vec<_> = query.without_indexes().cloned().collect();
            if !unindexed.is_empty() {
                self.build_indexes(unindexed).await?;
            }
            let (query, in_progress) = (query.at(wanted), Arc::clone(short_lists));
            if query.is_worth_a_thread() {
                // A request thread looks at one request after the other. Lists that have arrived meanwhile count, too.
                yield_now().await;
                let is_alone = Arc::strong_count(&in_progress) <= 2;
                if !is_alone && let Some(turn) = cx.cpu_pool.try_turn(Weight::Short) {
                    let work = self.work(state, wanted);
                    let work = move |cancel: &Cancel, _: &mut _| work(&|| cancel.is_over());
                    return cx.cpu_pool.run_in(turn, self.deadline, work).await?;
                }
            }
            if let Some(listed) = query.run_if_short(cx.limits()) {
                return listed;
            }
        }
        let work = self.work(state, wanted);
        let work = move |cancel: &Cancel| work(&|| cancel.is_over());
        cx.cpu_pool.run(Weight::List, self.deadline, work).await?
    }

    /// The list as work for any thread. It ends early once its argument returns true: nobody waits for the result.
    fn work(
        &self,
        state: &Arc<State>,
        wanted: Wanted,
    ) -> impl FnOnce(&dyn Fn() -> bool) -> Result<Listed, ListError> + Send + 'static + use<> {
        let (state, listing) = (Arc::clone(state), Arc::clone(&self.listing));
        let limits = self.reads.cx.limits().clone();
        move |is_over| {
            let query = Query::new(&state, &listing, &limits)?.at(wanted);
            query.run(&limits, is_over).unwrap_or_else(|| Err(late().into()))
        }
    }

    /// Builds the missing indexes of a short list. That takes some milliseconds per definition, once for all lists that
    /// need them, so it does not count as a long list.
    async fn build_indexes(&self, collections: Vec<Arc<Collection>>) -> Result<(), Refusal> {
        let work = move |cancel: &Cancel| {
            let needed = collections.iter().take_while(|_| !cancel.is_over());
            needed.for_each(|collection| collection.build_indexes());
        };
        self.reads.cx.cpu_pool.run(Weight::Short, self.deadline, work).await
    }
}

/// The number of the next page; `None` after the last page.
pub(super) fn next_page(page: &Page, total: u64) -> Option<u64> {
    page.page.checked_add(1).filter(|_| page.page.saturating_mul(page.limit) < total)
}

/// The definitions that the patterns match; without patterns, all definitions.
pub(super) fn named_by(patterns: &[Pattern]) -> KeySet {
    if patterns.is_empty() { KeySet::ALL } else { KeySet::of(patterns.iter().filter_map(KeyRange::of)) }
}

impl ListRequest {
    /// Whether the types that the schema declares for its paths are read in less than about a millisecond.
    fn is_quick_to_parse(&self, state: &State) -> bool {
        let found = self.definition().and_then(|key| state.definition(key));
        found.is_none_or(|found| query::is_quick_to_parse(&self.params, &found.definition))
    }

    /// The definition whose configs are listed.
    pub(super) fn definition(&self) -> Option<&str> {
        match &self.scope {
            ListScope::Configs(definition) => Some(definition),
            ListScope::Definitions | ListScope::DefinitionsOf(_) | ListScope::Across(_) => None,
        }
    }

    /// The earlier revision that the list reads; `None` for a list of the current state.
    pub(super) fn earlier_revision(&self) -> Option<Revision> {
        let text = self.params.iter().rev().find(|(name, _)| name == query::PAST).map(|(_, text)| text)?;
        text.parse().ok()
    }

    /// Whether its parameters are parsed in less than about a millisecond.
    pub(super) fn is_short(&self) -> bool {
        let bytes: usize = self.params.iter().map(|(name, text)| name.len() + text.len()).sum();
        bytes <= SHORT_PARAMS_BYTES
    }
}

/// The rejection of a cursor that belongs to another list or another access key.
pub(super) fn foreign_cursor() -> Refusal {
    let msg = "the cursor belongs to another list: send it with the other parameters of its `Link`";
    Refusal::Invalid(Violation::at(vec!["query".into(), "cursor".into()], msg).into())
}

/// The rejection of a cursor whose state is no longer available.
pub(super) fn expired(why: &str) -> Refusal {
    Refusal::CursorExpired(format!("the cursor has expired, begin with the first page: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_scope_is_sent_as_an_optional_definition_key() {
        let params = vec![("n".to_owned(), "1".to_owned())];
        for (scope, key) in
            [(ListScope::Definitions, None), (ListScope::Configs("d".into()), Some("d".to_owned()))]
        {
            let list = ListRequest { scope, params: params.clone() };
            assert_eq!(encode(&list), encode(&(key, &params)));
        }
    }

    #[test]
    fn every_page_but_the_last_has_a_next_one() {
        let page = |page, limit| Page { page, limit, descending: false, search: String::new() };
        assert_eq!(next_page(&page(1, 10), 11), Some(2));
        assert_eq!(next_page(&page(2, 10), 20), None);
        assert_eq!(next_page(&page(1, 10), 0), None);
        assert_eq!(next_page(&page(u64::MAX, 10), u64::MAX), None, "the number of the next page overflows");
    }
}
