//! Lists of an earlier revision: the state of then, made again.
//!
//! ```text
//! list?revision=N ─ this node has made the state of N: run the query
//!                 ├ it can make it: back from the nearest later state by what the history says was replaced
//!                 └ its history has a gap: another member makes the page (`Call::Page`)
//! ```
//!
//! The way is back from a later state and not forward from a snapshot: there are two snapshots and a history that reaches
//! much further back, and where both ways lead to a revision, reading the changes since is the cheaper one, because a
//! snapshot has every record of every definition. The state holds only what the list needs ([`EarlierState`]), shares what did
//! not change with the present one, and is retained (`states`) for those who ask next, and to go back further from.
//!
//! | question | file |
//! |---|---|
//! | How is a page of an earlier state made, and by which node? | this one |
//! | Which earlier states are retained? | `states` |
//!
//! A page is named by its revision and number alone. So a cursor of such a list is good on every node, also after a
//! restart, until the revision is compacted.
//!
//! What counts of the definition is what it was at the revision: its indexed paths, and the types that its schema gave
//! them. What is secret then *or now* is redacted, and no list may be filtered or sorted by it (`list`). The caller's
//! rights are those of now.
//!
//! **Invariants:** the work runs on the threads for long work, until the read's deadline; what it reads into memory is
//! reserved before it is held; one state is made once, however many ask for it at the same time.

mod states;

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::{
    cursor::{Cursor, Fingerprint},
    list::{ListError, ListPage, ListRequest, PageSource, foreign_cursor, next_page},
    query::Wanted,
    records::ListRecords,
    retained::drop_deferred,
    wait_until_applied,
};
use crate::{
    Refusal, Service,
    cpu_pool::{Cancel, Weight, late},
    memory_budget::{Reservation, Share},
    run_blocking,
};
use concord_consensus::Consensus;
use concord_model::{
    error::Rejection,
    key_set::KeySet,
    limits::PAST_RESERVED_AT_ONCE,
    query::Page,
    record::{Definition, Revision},
    redaction::RedactedPlaces,
};
use concord_state::earlier::EarlierState;
use concord_storage::{HistoryError, Undo, UndoError, UndoScope};
pub(crate) use states::EarlierStates;

/// How long a list waits until the history holds what this node has applied: milliseconds while the disk works.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(2);

/// A page of an earlier state.
#[derive(Debug)]
pub(super) struct EarlierPage {
    pub(super) records: ListRecords,
    /// The number of records on all pages.
    pub(super) total: u64,
    /// The definition of then, whose configs these are.
    pub(super) definition: Option<Arc<Definition>>,
}

/// Why this node has no page of an earlier state.
#[derive(Debug)]
pub(super) enum NotMade {
    /// No node has.
    Refused(ListError),
    /// Its history lacks something; another member may have it.
    Elsewhere(String),
}

impl From<ListError> for NotMade {
    fn from(error: ListError) -> Self {
        Self::Refused(error)
    }
}

impl From<Refusal> for NotMade {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal.into())
    }
}

impl Service {
    /// A page of an earlier state, which this node makes or another member.
    pub(super) async fn page_of_past(
        &self,
        (list, keys, fingerprint): (ListRequest, KeySet, Fingerprint),
        at: Revision,
        page: Page,
        source: PageSource,
    ) -> Result<ListPage, ListError> {
        let consensus = self.consensus_or_refusal()?;
        let (state, number) = match source {
            PageSource::Fresh(consistency) => (self.view(consistency).await?, page.page),
            PageSource::Cursor(cursor) if cursor.fingerprint == fingerprint && cursor.revision == at => {
                // Another node may have applied it first.
                let deadline = Instant::now() + self.inner.options.read_timeout;
                wait_until_applied(consensus, at, deadline).await?;
                (consensus.state(), cursor.page)
            }
            PageSource::Cursor(_) => return Err(foreign_cursor().into()),
        };
        Self::check_revision(&state, at, "query")?;
        drop(state);
        let place = (number, page.limit);
        let (EarlierPage { records, total, definition }, reservation) =
            match self.past_page((&list, &keys), at, place, Share::Callers).await {
                Ok(found) => {
                    let reservation = self.reserve_page(&found.records)?;
                    (found, reservation)
                }
                Err(NotMade::Refused(error)) => return Err(error),
                Err(NotMade::Elsewhere(why)) => {
                    let cursor = Cursor { node: self.node_id(), revision: at, page: number, fingerprint };
                    self.fetch_past_page(consensus, (cursor, why), (list, keys), page.limit).await?
                }
            };
        let page = Page { page: number, ..page };
        let next = next_page(&page, total);
        let next = next.map(|page| Cursor { node: self.node_id(), revision: at, page, fingerprint });
        let redacted = RedactedPlaces::default();
        Ok(ListPage { records, total, page, revision: at, next, reservation, redacted, then: definition })
    }

    /// A page of the state as of a revision, which this node has applied.
    pub(super) async fn past_page(
        &self,
        (list, keys): (&ListRequest, &KeySet),
        at: Revision,
        (page, limit): (u64, u64),
        share: Share,
    ) -> Result<EarlierPage, NotMade> {
        let deadline = Instant::now() + self.inner.options.read_timeout;
        let scope = self.undo_scope(list, at)?;
        let (past, _reservation) = self.past(scope, at, (share, deadline)).await?;
        let wanted = Wanted { page, limit, all: false };
        let listed = self.run_list(&past.state, (list, keys), wanted, deadline).await;
        let definition = list.definition().and_then(|key| past.state.definition(key));
        let definition = definition.map(|found| Arc::clone(&found.definition));
        drop_deferred(past);
        let listed = listed?;
        Ok(EarlierPage { records: listed.records, total: listed.total, definition })
    }

    /// What of the state a list needs. The past of a definition ends with its deletion, as for reads of one config.
    fn undo_scope(&self, list: &ListRequest, at: Revision) -> Result<UndoScope, ListError> {
        let Some(key) = list.definition() else { return Ok(UndoScope::Definitions) };
        let state = self.consensus_or_refusal()?.state();
        let found = state.definition(key).map(|found| &found.definition);
        let found = found.filter(|definition| definition.created_revision() <= at);
        let not_found =
            || ListError { refusal: Rejection::DefinitionNotFound.into(), revision: Some(state.revision()) };
        let found = found.ok_or_else(not_found)?;
        Ok(UndoScope::Configs { id: found.id, key: found.key.clone() })
    }

    /// What of the state was there at a revision; and for who has made it, what it holds until it is used.
    async fn past(
        &self,
        scope: UndoScope,
        at: Revision,
        (share, deadline): (Share, Instant),
    ) -> Result<(Arc<EarlierState>, Option<Reservation>), NotMade> {
        let pasts = &self.inner.earlier_states;
        if let Some(found) = pasts.find(&scope, at) {
            return Ok((found, None));
        }
        // The others wait for the first, and one of them goes on if its caller leaves.
        let turn = pasts.turn(&scope, at);
        let _turn = timeout_at(deadline, turn.lock()).await.map_err(|_| late())?;
        if let Some(found) = pasts.find(&scope, at) {
            return Ok((found, None));
        }
        let consensus = self.consensus_or_refusal()?;
        let later = match pasts.nearest_after(&scope, at) {
            Some(later) => later,
            None => self.present(consensus, &scope, deadline).await?,
        };
        let reservation = self.inner.memory_budget.begin(share);
        let (past, reservation) =
            self.go_back(consensus, (&scope, at), later, (reservation, deadline)).await?;
        pasts.keep(scope, at, &past, consensus);
        Ok((past, Some(reservation)))
    }

    /// The state that this node has applied, once its history holds all that led to it.
    async fn present(
        &self,
        consensus: &Consensus,
        scope: &UndoScope,
        deadline: Instant,
    ) -> Result<Arc<EarlierState>, NotMade> {
        let (state, store) = (consensus.state(), consensus.store().clone());
        if let UndoScope::Configs { id, key } = scope {
            let found = state.definition(key.as_str());
            // It was deleted since it was looked up.
            found.filter(|found| found.definition.id == *id).ok_or_else(|| ListError {
                refusal: Rejection::DefinitionNotFound.into(),
                revision: Some(state.revision()),
            })?;
        }
        let (upto, permit) = (state.revision(), self.inner.history_reads.acquire());
        let permit = timeout_at(deadline, permit).await.map_err(|_| late())?;
        let _permit = permit.map_err(|error| Refusal::Internal(error.to_string()))?;
        let timeout = deadline.saturating_duration_since(Instant::now()).min(CATCH_UP_TIMEOUT);
        let is_written = run_blocking(move || store.wait_for_history(upto, timeout)).await?;
        if is_written {
            Ok(Arc::new(EarlierState::present(state)))
        } else {
            Err(NotMade::Elsewhere(format!("the history is not written up to revision {upto} yet")))
        }
    }

    /// Goes back from a later state.
    async fn go_back(
        &self,
        consensus: &Consensus,
        (scope, at): (&UndoScope, Revision),
        later: Arc<EarlierState>,
        (mut reservation, deadline): (Reservation, Instant),
    ) -> Result<(Arc<EarlierState>, Reservation), NotMade> {
        let (store, scope, present) = (consensus.store().clone(), scope.clone(), consensus.state());
        let work = move |cancel: &Cancel| {
            let mut weight = Weighed { reservation: &mut reservation, pending: 0, refused: None };
            let from = later.state.revision();
            let go_on = &mut |bytes| weight.add(bytes) && !cancel.is_over();
            let undone = store.history().undo(&scope, at, from, go_on);
            let (pending, refused) = (weight.pending, weight.refused);
            let undo = undone.map_err(|error| no_past(error, refused))?;
            reservation.grow(pending)?;
            tracing::debug!(at, from, changes = undo.changes, "made an earlier state again");
            let past = made(&later, (&scope, at), undo, cancel)?;
            // What it is weighed with while it is used; then its place among those that are kept is.
            let bytes = past.bytes_kept_beside(&present);
            reservation.grow(bytes.saturating_sub(reservation.bytes()))?;
            drop_deferred(later);
            Ok((Arc::new(past), reservation))
        };
        self.inner.cpu_pool.run(Weight::List, deadline, work).await?
    }
}

/// The earlier state, from a later one and what was replaced since.
fn made(
    later: &EarlierState,
    (scope, at): (&UndoScope, Revision),
    mut undo: Undo,
    cancel: &Cancel,
) -> Result<EarlierState, NotMade> {
    let UndoScope::Configs { key, .. } = scope else {
        return Ok(later.definitions_at(at, undo.definitions));
    };
    let definition = match undo.definitions.remove(key) {
        Some(before) => before,
        None => later.state.definition(key.as_str()).map(|found| Arc::clone(&found.definition)),
    };
    // It was created before: the history says otherwise only if it is not that of this state.
    let not_there = || Refusal::Internal(format!("the history has no definition `{key}` at revision {at}"));
    let definition = definition.ok_or_else(not_there)?;
    let past = later.configs_at(at, &definition, undo.configs, &|| cancel.is_over());
    Ok(past.ok_or_else(late)?)
}

/// Reserves what the history makes this node hold, in steps.
struct Weighed<'a> {
    reservation: &'a mut Reservation,
    pending: u64,
    refused: Option<Refusal>,
}

impl Weighed<'_> {
    /// Whether there is room for so many bytes more.
    fn add(&mut self, bytes: u64) -> bool {
        self.pending = self.pending.saturating_add(bytes);
        if self.pending >= PAST_RESERVED_AT_ONCE {
            self.refused = self.reservation.grow(std::mem::take(&mut self.pending)).err();
        }
        self.refused.is_none()
    }
}

fn no_past(error: UndoError, refused: Option<Refusal>) -> NotMade {
    match error {
        UndoError::GivenUp => refused.unwrap_or_else(late).into(),
        UndoError::History(HistoryError::Compacted { compaction_revision }) => {
            Service::compacted(compaction_revision).into()
        }
        UndoError::History(HistoryError::Gap { .. }) => NotMade::Elsewhere(error.to_string()),
        UndoError::History(HistoryError::Failed(_)) => {
            tracing::error!(%error, "the history can't be read");
            NotMade::Elsewhere(error.to_string())
        }
    }
}
