//! Lists of definitions and of configs: the first page, and the pages that cursors name.
//!
//! ```text
//! list ─┬─ at an earlier revision: `past`
//!       ├─ first page: a state as fresh as requested ─ run the query ─ pin the state when there is a next page
//!       └─ cursor ─ is it of this list? ─┬─ this node holds the state: `page_of_pinned`
//!                                        └─ another node holds it: `page::fetch`
//! ```
//!
//! A list that is a walk along an index is walked to the page. A list with conditions is computed and sorted as a
//! whole; from its second page on the sorted matches are retained with the pinned state.
//!
//! A list that tests few configs is answered where it arrives, or by a free thread of the pool while several lists are
//! in progress.
//! A long one runs on the threads for long work, until the read's deadline; only so many of one caller wait at once, and
//! they never take all of those threads.
//!
//! The records of a page are not copied: they are rendered one by one as the answer is sent. But an answer keeps them
//! in memory while they are replaced, so a page of large records is weighed against the memory budget.
//!
//! **Invariant:** every page after the first is of the state of the first one, on whichever node it is requested, or
//! refused as *expired*: then the caller begins with the first page.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::{task::yield_now, time::Instant};
use xxhash_rust::xxh3::xxh3_128;

use super::{
    cursor::{Cursor, Fingerprint},
    pinned::end_use,
    query::{Listed, Query, Wanted, late},
    records::ListRecords,
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

/// Parameters that do not decide which records a list has: the place in it, and how fresh its first page must be.
pub const PLACE_PARAMETERS: [&str; 5] = ["cursor", "page", "consistency", "max_staleness_ms", "min_revision"];

/// Bytes of parameters up to which a list is answered on the thread that took the request: a value takes a microsecond to
/// parse and to look up.
const SHORT_PARAMS_BYTES: usize = 2 << 10;
/// Bytes of records up to which a page is rendered as a whole before it is sent.
pub const BUFFERED_PAGE_BYTES_MAX: u64 = 4 << 20;

/// What is listed. Sent between nodes: new variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListScope {
    /// Definitions.
    Definitions,
    /// The configs of a definition.
    Configs(String),
    /// The configs of those definitions that the patterns name; of all, if there are none.
    Across(Vec<Pattern>),
}

/// A list as a caller requests it. Sent between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListRequest {
    /// What is listed.
    pub scope: ListScope,
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
    /// What the page may keep in memory until it is sent.
    pub reservation: Reservation,
    /// The places of what is not shown of its configs.
    pub redacted: RedactedPlaces,
    /// The definition of the configs of an earlier revision, as it was then.
    pub(super) then: Option<Arc<Definition>>,
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

impl Reads {
    /// A page of a list. `page` is what the parameters say of pages.
    ///
    /// # Errors
    /// When the principal may not read it, the query is invalid, the definition does not exist, an index is still being built, the cursor is of
    /// another list or has expired, or no state is available in time.
    pub async fn list(
        &self,
        principal: &Principal,
        list: ListRequest,
        page: Page,
        source: PageSource,
    ) -> Result<ListPage, ListError> {
        principal.authorize(Verb::Read, list.definition())?;
        let keys = match &list.scope {
            ListScope::Definitions => principal.visible(Verb::Read),
            ListScope::Configs(_) => KeySet::ALL,
            ListScope::Across(patterns) => named_by(patterns).and(&principal.visible(Verb::Read)),
        };
        let fingerprint = self.fingerprint(&list, principal, &keys);
        if let Some(definition) = list.definition()
            && let Some(found) = self.cx.applied().definition(definition)
        {
            self.redactor.check_filters(principal, found, &list.params).await?;
        }
        if matches!(list.scope, ListScope::Across(_)) {
            if principal.key.is_some() {
                Box::pin(self.redactor.check_filters_across(principal, &keys, &list.params)).await?;
            }
            let page = self.page(list, (keys, fingerprint), page, source).await?;
            return if principal.key.is_none() {
                Ok(page)
            } else {
                Ok(Box::pin(self.redact_across(principal, page)).await?)
            };
        }
        let definition = list.definition().map(str::to_owned);
        let params = if list.past().is_some() { list.params.clone() } else { Vec::new() };
        let page = self.page(list, (keys, fingerprint), page, source).await?;
        match definition.filter(|_| principal.key.is_some()) {
            Some(definition) => {
                Ok(Box::pin(self.redact_page(principal, (&definition, &params), page)).await?)
            }
            None => Ok(page),
        }
    }

    async fn page(
        &self,
        list: ListRequest,
        (keys, fingerprint): (KeySet, Fingerprint),
        page: Page,
        source: PageSource,
    ) -> Result<ListPage, ListError> {
        if let Some(at) = list.past() {
            return self.page_of_past((list, keys, fingerprint), at, page, source).await;
        }
        match source {
            PageSource::Fresh(consistency) => {
                self.first_page((&list, &keys, fingerprint), page, consistency).await
            }
            PageSource::Cursor(cursor) if cursor.fingerprint == fingerprint => {
                Ok(self.page_of_cursor(list, keys, page, cursor).await?)
            }
            PageSource::Cursor(_) => Err(foreign_cursor().into()),
        }
    }

    async fn first_page(
        &self,
        (list, keys, fingerprint): (&ListRequest, &KeySet, Fingerprint),
        page: Page,
        consistency: Consistency,
    ) -> Result<ListPage, ListError> {
        let deadline = Instant::now() + self.cx.options.read_timeout;
        let state = self.freshness.view(consistency).await?;
        let wanted = Wanted { page: page.page, limit: page.limit, all: false };
        let Listed { records, total, .. } = self.run_list(&state, (list, keys), wanted, deadline).await?;
        let reservation = self.reserve_page(&records)?;
        let (revision, consensus) = (state.revision(), self.cx.consensus_or_refusal()?);
        let next = next_page(&page, total).map(|page| {
            self.pinned_states.pin(&state, consensus);
            Cursor { node: self.cx.node_id(), revision, page, fingerprint }
        });
        Ok(ListPage {
            records,
            total,
            page,
            revision,
            next,
            reservation,
            redacted: RedactedPlaces::default(),
            then: None,
        })
    }

    /// Reserves what a page of large records may keep in memory.
    pub(super) fn reserve_page(&self, records: &ListRecords) -> Result<Reservation, Refusal> {
        let (budget, bytes) = (&self.cx.memory_budget, records.bytes());
        self.check_page(bytes)?;
        // A smaller one is rendered as a whole, and weighed with all answers.
        let bytes = if bytes > BUFFERED_PAGE_BYTES_MAX { bytes } else { 0 };
        budget.reserve(Share::Callers, bytes)
    }

    /// Refuses a page of more bytes than an answer may have, whatever else is in flight.
    pub(super) fn check_page(&self, bytes: u64) -> Result<(), Refusal> {
        let max = self.cx.memory_budget.answer_max();
        if bytes <= max {
            return Ok(());
        }
        let msg = format!(
            "the page has {bytes} bytes or more, and an answer has at most {max}: a lower `limit` makes it smaller"
        );
        Err(Refusal::Invalid(Violation::at(vec!["query".into(), "limit".into()], msg).into()))
    }

    /// Runs a list on a state: a long one in the CPU pool. A short one runs here, or on a free thread of the pool if other
    /// short lists are in progress: finding a page of a hundred configs takes as long as twenty gets, and consensus
    /// needs little of its core while a node lists. A list that is alone is not worth waking a thread.
    pub(super) async fn run_list(
        &self,
        state: &Arc<State>,
        (list, keys): (&ListRequest, &KeySet),
        wanted: Wanted,
        deadline: Instant,
    ) -> Result<Listed, ListError> {
        if list.is_short() && list.is_quick_to_parse(state) {
            let query = Query::new(state, (list, keys), self.cx.limits())?;
            let unindexed: Vec<_> = query.without_indexes().cloned().collect();
            if !unindexed.is_empty() {
                self.build_indexes(unindexed, deadline).await?;
            }
            let (query, in_progress) = (query.at(wanted), Arc::clone(&self.short_lists));
            if query.is_worth_a_thread() {
                // A request thread looks at one request after the other. Lists that have arrived meanwhile count, too.
                yield_now().await;
                let is_alone = Arc::strong_count(&in_progress) <= 2;
                if !is_alone && let Some(turn) = self.cx.cpu_pool.try_turn(Weight::Short) {
                    let work = self.list_work(state, (list, keys), wanted);
                    let work = move |cancel: &Cancel, _: &mut _| work(&|| cancel.is_over());
                    return self.cx.cpu_pool.run_in(turn, deadline, work).await?;
                }
            }
            if let Some(listed) = query.run_if_short(self.cx.limits()) {
                return listed;
            }
        }
        let work = self.list_work(state, (list, keys), wanted);
        self.cx.cpu_pool.run(Weight::List, deadline, move |cancel| work(&|| cancel.is_over())).await?
    }

    /// A list as work for any thread, which is told when nobody waits for it any more.
    fn list_work(
        &self,
        state: &Arc<State>,
        (list, keys): (&ListRequest, &KeySet),
        wanted: Wanted,
    ) -> impl FnOnce(&dyn Fn() -> bool) -> Result<Listed, ListError> + Send + 'static {
        let (state, list, keys, limits) =
            (Arc::clone(state), list.clone(), keys.clone(), self.cx.limits().clone());
        move |is_over| {
            let query = Query::new(&state, (&list, &keys), &limits)?.at(wanted);
            query.run(&limits, is_over).unwrap_or_else(|| Err(late().into()))
        }
    }

    /// Builds the indexes that a short list reads and that are not there. It takes some milliseconds for each definition,
    /// once for all lists that want them, and counts as no long list.
    async fn build_indexes(&self, of: Vec<Arc<Collection>>, deadline: Instant) -> Result<(), Refusal> {
        let work = move |cancel: &Cancel| {
            of.iter().take_while(|_| !cancel.is_over()).for_each(|collection| collection.build_indexes());
        };
        self.cx.cpu_pool.run(Weight::Short, deadline, work).await
    }

    async fn page_of_cursor(
        &self,
        list: ListRequest,
        keys: KeySet,
        page: Page,
        cursor: Cursor,
    ) -> Result<ListPage, Refusal> {
        let consensus = self.cx.consensus_or_refusal()?;
        let (records, total, reservation) = if cursor.node == self.cx.node_id() {
            let (records, total) = self.page_of_pinned(cursor, (&list, &keys), page.limit).await?;
            let reservation = self.reserve_page(&records)?;
            (records, total, reservation)
        } else {
            self.fetch_page(consensus, cursor, (list, keys), page.limit).await?
        };
        let page = Page { page: cursor.page, ..page };
        let next = next_page(&page, total).map(|page| Cursor { page, ..cursor });
        Ok(ListPage {
            records,
            total,
            page,
            revision: cursor.revision,
            next,
            reservation,
            redacted: RedactedPlaces::default(),
            then: None,
        })
    }

    /// A page of a state that this node holds, and the number of records on all pages.
    pub(super) async fn page_of_pinned(
        &self,
        cursor: Cursor,
        list: (&ListRequest, &KeySet),
        limit: u64,
    ) -> Result<(ListRecords, u64), Refusal> {
        let deadline = Instant::now() + self.cx.options.read_timeout;
        let pinned = self.pinned_states.find(cursor.revision, &cursor.fingerprint);
        let (state, matches) = pinned.ok_or_else(|| expired("its state is no longer held"))?;
        if let Some(matches) = matches {
            return Ok((matches.page(cursor.page, limit), matches.len() as u64));
        }
        // All matches may have to be sorted, which the next pages then need not.
        let wanted = Wanted { page: cursor.page, limit, all: true };
        let listed = self.run_list(&state, list, wanted, deadline).await;
        end_use(state);
        let Listed { records, total, is_all } = listed.map_err(|error| error.refusal)?;
        if !is_all {
            return Ok((records, total));
        }
        let page = records.page(cursor.page, limit);
        let now = self.cx.consensus_or_refusal()?.state();
        self.pinned_states.retain_matches(cursor.revision, cursor.fingerprint, Arc::new(records), &now);
        Ok((page, total))
    }

    /// The name of a list. A cursor belongs to the key that it was made for; one of a list of definitions also to what
    /// that key may see of them, so that its pages are of one list although the grants change.
    fn fingerprint(&self, list: &ListRequest, principal: &Principal, keys: &KeySet) -> Fingerprint {
        // A cursor belongs to one cluster. The order of parameters with different names has no meaning.
        let cluster = self.cx.peers.me.get().map(|me| me.cluster_id);
        let mut params: Vec<_> =
            list.params.iter().filter(|(name, _)| !PLACE_PARAMETERS.contains(&name.as_str())).collect();
        params.sort_by(|a, b| a.0.cmp(&b.0));
        let bytes = encode(&(cluster, &list.scope, params, principal.id.as_str(), keys));
        xxh3_128(&bytes).to_be_bytes()
    }
}

/// The number of the page after this one, if there is one.
pub(super) fn next_page(page: &Page, total: u64) -> Option<u64> {
    page.page.checked_add(1).filter(|_| page.page.saturating_mul(page.limit) < total)
}

/// The definitions that patterns name.
fn named_by(patterns: &[Pattern]) -> KeySet {
    if patterns.is_empty() { KeySet::ALL } else { KeySet::of(patterns.iter().filter_map(KeyRange::of)) }
}

impl ListRequest {
    /// Whether it takes no longer than about a millisecond to read the types that the schema declares for its paths.
    fn is_quick_to_parse(&self, state: &State) -> bool {
        let found = self.definition().and_then(|key| state.definition(key));
        found.is_none_or(|found| query::is_quick_to_parse(&self.params, &found.definition))
    }

    /// The definition whose configs are listed.
    pub(super) fn definition(&self) -> Option<&str> {
        match &self.scope {
            ListScope::Configs(definition) => Some(definition),
            ListScope::Definitions | ListScope::Across(_) => None,
        }
    }

    /// The earlier revision whose state is listed.
    pub(super) fn past(&self) -> Option<Revision> {
        let text = self.params.iter().rev().find(|(name, _)| name == query::PAST).map(|(_, text)| text)?;
        text.parse().ok()
    }

    /// Whether its parameters are read in less than about a millisecond.
    pub(super) fn is_short(&self) -> bool {
        let bytes: usize = self.params.iter().map(|(name, text)| name.len() + text.len()).sum();
        bytes <= SHORT_PARAMS_BYTES
    }
}

/// The refusal of a cursor that was made for another list, or for another key.
pub(super) fn foreign_cursor() -> Refusal {
    let msg = "the cursor was made for another list: its `Link` has the parameters that belong to it";
    Refusal::Invalid(Violation::at(vec!["query".into(), "cursor".into()], msg).into())
}

/// The refusal of a cursor whose state is no longer available.
pub(super) fn expired(why: &str) -> Refusal {
    Refusal::CursorExpired(format!("the cursor has expired, begin with the first page: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_version_0_1_lists_is_sent_as_it_sends_it() {
        let params = vec![("n".to_owned(), "1".to_owned())];
        for (scope, before) in
            [(ListScope::Definitions, None), (ListScope::Configs("d".into()), Some("d".to_owned()))]
        {
            let list = ListRequest { scope, params: params.clone() };
            assert_eq!(encode(&list), encode(&(before, &params)));
        }
    }

    #[test]
    fn a_page_before_another_has_a_next_one() {
        let page = |page, limit| Page { page, limit, descending: false, search: String::new() };
        assert_eq!(next_page(&page(1, 10), 11), Some(2));
        assert_eq!(next_page(&page(2, 10), 20), None);
        assert_eq!(next_page(&page(1, 10), 0), None);
        assert_eq!(next_page(&page(u64::MAX, 10), u64::MAX), None, "its number would not fit");
    }
}
