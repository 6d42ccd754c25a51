//! Turning pages: a page behind a cursor, from the node that holds its state.
//!
//! A list that is a walk through an order is walked to the page's place. One with conditions is looked up and sorted
//! once, when its second page is asked for, and the matches are kept beside the pinned state. A cursor that another
//! node has made is answered by that node: the page comes in pieces, because a page of the largest records is larger
//! than a call may be.
//!
//! **Invariants:** the page is of the state that the cursor names, on whichever node it is asked for; one hop. Where the
//! state is held no longer, or its node is gone, the caller is told so (*expired*) and begins anew.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_128;

use super::cursor::{Cursor, Fingerprint, Records};
use crate::peer::call::Call;
use crate::{
    model::{
        error::{Invalid, Rejection, Violation},
        limits::Limits,
        query::{self, Page, QueryError},
        record::{Config, Definition, Revision},
    },
    peer::{
        ReceiveError,
        client::{CallError, Lane},
        codec::{decode, encode},
    },
    service::{Refusal, Service, run_blocking},
    state::{State, query::Found},
};

/// Parameters that say nothing of which records a list has: the place in it, and how fresh its first page had to be.
pub(crate) const ASIDE: [&str; 5] = ["cursor", "page", "consistency", "max_staleness_ms", "min_revision"];

/// A list as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Whose configs; `None` lists definitions.
    pub definition: Option<String>,
    /// The pairs of the query.
    pub params: Vec<(String, String)>,
}

/// A page behind a cursor, asked of the node that holds its state.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Turn {
    cursor: Cursor,
    list: Listed,
    limit: u64,
    /// Records of the page that the asking node has already.
    skip: u64,
}

/// The answer. New variants go to the end.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Turned {
    Piece { records: Records, left: u64, total: u64 },
    Refused(Refusal),
}

/// A page, and what goes with it.
#[derive(Debug)]
pub struct Leaf<T> {
    /// The records of the page, and how many there are on all.
    pub found: Found<Arc<T>>,
    /// Which page it is, of which size.
    pub page: Page,
    /// The state that it is of.
    pub revision: Revision,
    /// The cursor of the next page, where there is one.
    pub next: Option<Cursor>,
}

impl Service {
    /// What a list was asked by.
    #[must_use]
    pub fn fingerprint(&self, list: &Listed) -> Fingerprint {
        // A cursor belongs to one cluster, and the order of different parameters means nothing.
        let cluster = self.inner.peers.me.get().map(|me| me.cluster_id);
        let mut params: Vec<_> =
            list.params.iter().filter(|(name, _)| !ASIDE.contains(&name.as_str())).collect();
        params.sort_by(|a, b| a.0.cmp(&b.0));
        xxh3_128(&encode(&(cluster, &list.definition, params))).to_be_bytes()
    }

    /// The cursor of the page behind this one, when there is one; its state is held from now on.
    pub fn next(&self, state: &Arc<State>, list: &Listed, page: &Page, total: u64) -> Option<Cursor> {
        let next = page.page.checked_add(1).filter(|_| page.page.saturating_mul(page.limit) < total)?;
        self.inner.pins.hold(state);
        let (node, revision) = (self.node_id(), state.revision());
        Some(Cursor { node, revision, page: next, fingerprint: self.fingerprint(list) })
    }

    /// The page of definitions behind a cursor.
    ///
    /// # Errors
    /// When it is no cursor of this list, or its state can't be had.
    pub async fn turn_definitions(&self, cursor: Cursor, list: Listed) -> Result<Leaf<Definition>, Refusal> {
        let page = query::definitions(&list.params, self.limits()).map_err(unlisted)?.page;
        let (records, total) = self.turn(cursor, list, page.limit).await?;
        match records {
            Records::Definitions(results) => Ok(Leaf::of(cursor, page, Found { results, total })),
            Records::Configs(_) => Err(Refusal::Internal("a page of definitions holds configs".into())),
        }
    }

    /// The page of configs behind a cursor. `page` is what the query says of pages.
    ///
    /// # Errors
    /// When it is no cursor of this list, or its state can't be had.
    pub async fn turn_configs(
        &self,
        cursor: Cursor,
        list: Listed,
        page: Page,
    ) -> Result<Leaf<Config>, Refusal> {
        let (records, total) = self.turn(cursor, list, page.limit).await?;
        match records {
            Records::Configs(results) => Ok(Leaf::of(cursor, page, Found { results, total })),
            Records::Definitions(_) => Err(Refusal::Internal("a page of configs holds definitions".into())),
        }
    }

    async fn turn(&self, cursor: Cursor, list: Listed, limit: u64) -> Result<(Records, u64), Refusal> {
        if self.fingerprint(&list) != cursor.fingerprint {
            let msg = "the cursor was made for another list: its `Link` has the parameters that belong to it";
            return Err(Refusal::Invalid(Violation::at(vec!["query".into(), "cursor".into()], msg).into()));
        }
        let consensus = self.consensus_or_refusal()?;
        if cursor.node == self.node_id() {
            return self.turn_here(cursor, list, limit).await;
        }
        let members = consensus.status().members;
        let Some(holder) = members.into_iter().map(|status| status.member).find(|m| m.id == cursor.node)
        else {
            return Err(expired(&format!("node {} is no member any more", cursor.node)));
        };
        let deadline = Instant::now() + self.inner.options.read_timeout;
        let mut all = Records::default();
        loop {
            let turn = encode(&Turn { cursor, list: list.clone(), limit, skip: all.len() as u64 });
            let time = deadline.saturating_duration_since(Instant::now());
            let peers = &self.inner.peers;
            let answer =
                peers.call(Lane::Forward, holder.id, &holder.peer_addr, Call::Page, turn, time).await;
            let (records, left, total) = piece(answer)?;
            let is_last = left == 0 || records.len() == 0;
            all.append(records);
            if is_last {
                return Ok((all, total));
            }
        }
    }

    /// A page of a state that this node holds.
    async fn turn_here(&self, cursor: Cursor, list: Listed, limit: u64) -> Result<(Records, u64), Refusal> {
        let held = self.inner.pins.find(cursor.revision, &cursor.fingerprint);
        let (state, matches) = held.ok_or_else(|| expired("its state is no longer held"))?;
        if let Some(matches) = matches {
            return Ok((matches.cut(cursor.page, limit), matches.len() as u64));
        }
        let limits = self.limits().clone();
        // All of the matches may have to be sorted, off the threads that serve requests.
        let (records, total, is_all) =
            run_blocking(move || listed(&state, &list, cursor.page, limit, &limits)).await??;
        if !is_all {
            return Ok((records, total));
        }
        let page = records.cut(cursor.page, limit);
        self.inner.pins.keep(cursor.revision, cursor.fingerprint, Arc::new(records));
        Ok((page, total))
    }

    /// A page of a state that this node holds, for another node. Never asks a third one.
    ///
    /// # Errors
    /// When the body is none of this version's. Everything else is an answer.
    pub(crate) async fn answer_page(&self, body: Bytes) -> Result<Bytes, ReceiveError> {
        let Turn { cursor, list, limit, skip } = decode(&body)?;
        let turned = match self.turn_here(cursor, list, limit).await {
            Ok((records, total)) => {
                let (records, left) = records.piece(usize::try_from(skip).unwrap_or(usize::MAX));
                Turned::Piece { records, left, total }
            }
            Err(refusal) => Turned::Refused(refusal),
        };
        Ok(encode(&turned))
    }
}

impl<T> Leaf<T> {
    fn of(cursor: Cursor, page: Page, found: Found<Arc<T>>) -> Self {
        let page = Page { page: cursor.page, ..page };
        let next = page.page.checked_add(1).filter(|_| page.page.saturating_mul(page.limit) < found.total);
        let next = next.map(|page| Cursor { page, ..cursor });
        Self { found, page, revision: cursor.revision, next }
    }
}

/// The page of a list in a state, and the number of all that match; or all that match (the flag), where a page costs
/// as much as all.
fn listed(
    state: &State,
    list: &Listed,
    page: u64,
    limit: u64,
    limits: &Limits,
) -> Result<(Records, u64, bool), Refusal> {
    let span = |is_walk: bool| if is_walk { (page, limit) } else { (1, u64::MAX) };
    let Some(key) = &list.definition else {
        let mut query = query::definitions(&list.params, limits).map_err(unlisted)?;
        let is_walk = query.page.search.is_empty();
        (query.page.page, query.page.limit) = span(is_walk);
        let found = state.list(&query);
        return Ok((Records::Definitions(found.results), found.total, !is_walk));
    };
    let collection = state.definition(key).ok_or(Rejection::DefinitionNotFound)?;
    let mut query = query::configs(&list.params, &collection.definition, limits).map_err(unlisted)?;
    let is_walk = collection.is_walked(&query);
    (query.page.page, query.page.limit) = span(is_walk);
    let found = collection.list(&query);
    Ok((Records::Configs(found.results), found.total, !is_walk))
}

/// What another node says of a page.
fn piece(answer: Result<Bytes, CallError>) -> Result<(Records, u64, u64), Refusal> {
    let answer = match answer {
        Ok(answer) => answer,
        // A node that does not run has lost what it held.
        Err(CallError::NotSent(text)) => {
            return Err(expired(&format!("the node that held its state is gone: {text}")));
        }
        Err(error @ (CallError::Unknown(_) | CallError::Refused { .. })) => {
            return Err(Refusal::Unavailable(format!("the node that holds the page: {error}")));
        }
    };
    match decode(&answer) {
        Ok(Turned::Piece { records, left, total }) => Ok((records, left, total)),
        Ok(Turned::Refused(refusal)) => Err(refusal),
        Err(error) => Err(Refusal::Internal(format!("the page of another node is {error}"))),
    }
}

fn expired(why: &str) -> Refusal {
    Refusal::Expired(format!("the cursor has expired, begin with the first page: {why}"))
}

/// A query that its first page was answered by, so only other limits of another node can refuse it.
fn unlisted(error: QueryError) -> Refusal {
    match error {
        QueryError::Violations(faults) => Refusal::Invalid(Invalid::Violations(faults)),
        QueryError::NotIntegers(names) => {
            Refusal::Invalid(Violation::new(format!("not integers: {}", names.join(", "))).into())
        }
        // A pinned state does not change: a path that was complete at its first page is so at the next.
        QueryError::Building(path) => Refusal::Conflict(format!("the index of `{path}` is being built")),
    }
}
