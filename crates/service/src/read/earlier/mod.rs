//! Lists at an earlier revision, from a reconstructed state.
//!
//! ```text
//! list?revision=N ─ this node retains the state of revision N: run the query
//!                 ├ its history suffices: go back from the nearest later state by the previous values in the history
//!                 └ its history has a gap: another member makes the page (`Call::Page`)
//! ```
//!
//! A state is reconstructed backwards from a later state, not forwards from a snapshot. There are only two snapshots,
//! and the history reaches much further back. Where both ways lead to a revision, reading the changes since is
//! cheaper, because a snapshot has every record of every definition. The reconstructed state has only what the list
//! needs ([`EarlierState`]) and shares what did not change with the current state. It is retained (`states`) for
//! further lists, and as the start for still earlier revisions.
//!
//! | topic | file |
//! |---|---|
//! | making a page of an earlier state, and choosing the node that makes it | this one |
//! | which earlier states are retained, and for how long | `states` |
//!
//! A page is named by its revision and number alone. So its cursor is valid on every node, also after a restart, until
//! the revision is compacted.
//!
//! A list uses the definition at its revision: the indexed fields, and the types that the schema declared for them. A
//! field is redacted if that schema *or the current one* marks it as secret, and no list may filter or sort by it
//! (`list`). Permissions are the current ones.
//!
//! **Invariants:** reconstruction runs in the CPU pool, until the read deadline. What it reads into memory is reserved
//! first. One state is reconstructed once, however many requests need it at the same time.

mod states;

use crate::read::Reads;
use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::{
    cursor::{Cursor, Fingerprint},
    list::{ListError, ListPage, Lister, PageRecords, PageSource, foreign_cursor},
    query::Wanted,
    retained::drop_deferred,
};
use crate::{
    Refusal,
    cpu_pool::{Cancel, Weight, late},
    freshness::wait_until_applied,
    history::{self, HistoryReader},
    memory_budget::{Reservation, Share},
    run_blocking,
};
use concord_consensus::Consensus;
use concord_model::{error::Rejection, limits::PAST_RESERVED_AT_ONCE, query::Page, record::Revision};
use concord_state::{State, earlier::EarlierState};
use concord_storage::{HistoryError, Undo, UndoError, UndoScope};
pub(crate) use states::EarlierStates;

/// How long a list waits until the history holds what this node has applied. It takes milliseconds while the disk
/// works.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(2);

/// Why this node has no page of an earlier state.
#[derive(Debug)]
pub(super) enum NotMade {
    /// The list is rejected; no other node is tried.
    Refused(ListError),
    /// This node's history is incomplete; another member may have the page.
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

impl Lister<'_> {
    /// A page of the list at a revision, made by this node or by another member.
    pub(super) async fn page_at(
        &self,
        at: Revision,
        page: Page,
        source: PageSource,
        fingerprint: Fingerprint,
    ) -> Result<ListPage, ListError> {
        let (reads, cx) = (self.reads, &self.reads.cx);
        let consensus = cx.consensus_or_refusal()?;
        let (state, number) = match source {
            PageSource::Fresh(consistency) => (reads.freshness.view(consistency).await?, page.page),
            PageSource::Cursor(cursor) if cursor.fingerprint == fingerprint && cursor.revision == at => {
                // The node that made the cursor may have applied the revision before this one.
                wait_until_applied(consensus, at, self.deadline).await?;
                (consensus.state(), cursor.page)
            }
            PageSource::Cursor(_) => return Err(foreign_cursor().into()),
        };
        HistoryReader::check_revision(&state, at, "query")?;
        drop(state);
        let cursor = Cursor { node: cx.node_id(), revision: at, page: number, fingerprint };
        let (found, reservation) = match self.earlier_page(at, number, page.limit, Share::Callers).await {
            Ok(found) => {
                let reservation = reads.reserve_page(&found.records)?;
                (found, reservation)
            }
            Err(NotMade::Refused(error)) => return Err(error),
            Err(NotMade::Elsewhere(why)) => {
                self.fetch_earlier_page(consensus, cursor, page.limit, &why).await?
            }
        };
        Ok(ListPage::new(cursor, page, found, reservation))
    }

    /// A page of the list at a revision that this node has applied. Its memory is reserved from `share`.
    pub(super) async fn earlier_page(
        &self,
        at: Revision,
        page: u64,
        limit: u64,
        share: Share,
    ) -> Result<PageRecords, NotMade> {
        let list = &self.listing.list;
        let rewind = Rewind {
            reads: self.reads,
            consensus: self.reads.cx.consensus_or_refusal()?,
            scope: self.undo_scope(at)?,
            at,
            deadline: self.deadline,
        };
        let (earlier, _reservation) = rewind.state(share).await?;
        let wanted = Wanted { page, limit, all: false };
        let listed = self.run(&earlier.state, wanted).await;
        let definition = list.definition().and_then(|key| earlier.state.definition(key));
        let definition = definition.map(|found| Arc::clone(&found.definition));
        drop_deferred(earlier);
        let listed = listed?;
        Ok(PageRecords { records: listed.records, total: listed.total, definition })
    }

    /// The part of the state that the list needs. A deleted definition has no earlier revisions, as in reads of one
    /// config.
    fn undo_scope(&self, at: Revision) -> Result<UndoScope, ListError> {
        let Some(key) = self.listing.list.definition() else { return Ok(UndoScope::Definitions) };
        let state = self.reads.cx.consensus_or_refusal()?.state();
        let found = state.definition(key).map(|found| &found.definition);
        let found = found.filter(|definition| definition.existed_at(at));
        let found = found.ok_or_else(|| definition_not_there(&state, key, at))?;
        Ok(UndoScope::Configs { id: found.id, key: found.key.clone() })
    }
}

/// The error of a definition that a list can't show at a revision.
fn definition_not_there(state: &State, key: &str, at: Revision) -> ListError {
    let refusal = match history::absence(state, key, at) {
        Some(text) => Refusal::DefinitionNotThere(text),
        None => Rejection::DefinitionNotFound.into(),
    };
    ListError { refusal, revision: Some(state.revision()) }
}

fn definition_not_found(state: &State) -> ListError {
    ListError { refusal: Rejection::DefinitionNotFound.into(), revision: Some(state.revision()) }
}

/// Reconstructs a part of the state at a revision, until a deadline.
struct Rewind<'a> {
    reads: &'a Reads,
    consensus: &'a Consensus,
    scope: UndoScope,
    at: Revision,
    deadline: Instant,
}

impl Rewind<'_> {
    /// The part of the state. If this call reconstructed it, also the reservation of its memory, to hold while it is
    /// used.
    async fn state(&self, share: Share) -> Result<(Arc<EarlierState>, Option<Reservation>), NotMade> {
        let (states, Self { scope, at, .. }) = (&self.reads.earlier_states, self);
        if let Some(found) = states.find(scope, *at) {
            return Ok((found, None));
        }
        // Other lists wait for the first one. If its client disconnects, one of them takes over.
        let turn = states.turn(scope, *at);
        let _turn = timeout_at(self.deadline, turn.lock()).await.map_err(|_| late())?;
        if let Some(found) = states.find(scope, *at) {
            return Ok((found, None));
        }
        let later = match states.nearest_after(scope, *at) {
            Some(later) => later,
            None => self.present().await?,
        };
        let reservation = self.reads.cx.memory_budget.begin(share);
        let (earlier, reservation) = self.go_back(later, reservation).await?;
        states.keep(scope.clone(), *at, &earlier, self.consensus);
        Ok((earlier, Some(reservation)))
    }

    /// The applied state, once the history holds every change up to it.
    async fn present(&self) -> Result<Arc<EarlierState>, NotMade> {
        let (state, store) = (self.consensus.state(), self.consensus.store().clone());
        if let UndoScope::Configs { id, key } = &self.scope {
            let found = state.definition(key.as_str());
            // The definition may have been deleted since it was looked up.
            found.filter(|found| found.definition.id == *id).ok_or_else(|| definition_not_found(&state))?;
        }
        let (upto, permit) = (state.revision(), self.reads.history.permits.acquire());
        let permit = timeout_at(self.deadline, permit).await.map_err(|_| late())?;
        let _permit = permit.map_err(|error| Refusal::Internal(error.to_string()))?;
        let timeout = self.deadline.saturating_duration_since(Instant::now()).min(CATCH_UP_TIMEOUT);
        let is_written = run_blocking(move || store.wait_for_history(upto, timeout)).await?;
        if is_written {
            Ok(Arc::new(EarlierState::present(state)))
        } else {
            Err(NotMade::Elsewhere(format!("the history is not written up to revision {upto} yet")))
        }
    }

    /// Reconstructs the state from a later one.
    async fn go_back(
        &self,
        later: Arc<EarlierState>,
        mut reservation: Reservation,
    ) -> Result<(Arc<EarlierState>, Reservation), NotMade> {
        let (store, present) = (self.consensus.store().clone(), self.consensus.state());
        let (scope, at) = (self.scope.clone(), self.at);
        let work = move |cancel: &Cancel| {
            let mut weight = Weighed { reservation: &mut reservation, pending: 0, refused: None };
            let from = later.state.revision();
            let go_on = &mut |bytes| weight.add(bytes) && !cancel.is_over();
            let undone = store.history().undo(&scope, at, from, go_on);
            let (pending, refused) = (weight.pending, weight.refused);
            let undo = undone.map_err(|error| not_undone(error, refused))?;
            reservation.grow(pending)?;
            tracing::debug!(at, from, changes = undo.changes, "reconstructed an earlier state");
            let earlier = undo_changes(&later, &scope, at, undo, cancel)?;
            // This reservation counts the state while the list uses it, the limit of the retained states afterwards.
            let bytes = earlier.bytes_kept_beside(&present);
            reservation.grow(bytes.saturating_sub(reservation.bytes()))?;
            drop_deferred(later);
            Ok((Arc::new(earlier), reservation))
        };
        self.reads.cx.cpu_pool.run(Weight::List, self.deadline, work).await?
    }
}

/// The earlier state, from a later one and the previous values of what was changed since.
fn undo_changes(
    later: &EarlierState,
    scope: &UndoScope,
    at: Revision,
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
    // The definition was created before `at`. So if it is missing, the history does not belong to this state.
    let not_there = || Refusal::Internal(format!("the history has no definition `{key}` at revision {at}"));
    let definition = definition.ok_or_else(not_there)?;
    let earlier = later.configs_at(at, &definition, undo.configs, &|| cancel.is_over());
    Ok(earlier.ok_or_else(late)?)
}

/// Reserves memory for the changes that are read from the history, in steps.
struct Weighed<'a> {
    reservation: &'a mut Reservation,
    pending: u64,
    refused: Option<Refusal>,
}

impl Weighed<'_> {
    /// Counts more bytes. False once a reservation was rejected.
    fn add(&mut self, bytes: u64) -> bool {
        self.pending = self.pending.saturating_add(bytes);
        if self.pending >= PAST_RESERVED_AT_ONCE {
            self.refused = self.reservation.grow(std::mem::take(&mut self.pending)).err();
        }
        self.refused.is_none()
    }
}

fn not_undone(error: UndoError, refused: Option<Refusal>) -> NotMade {
    match error {
        UndoError::GivenUp => refused.unwrap_or_else(late).into(),
        UndoError::History(HistoryError::Compacted { compaction_revision }) => {
            HistoryReader::compacted(compaction_revision).into()
        }
        UndoError::History(HistoryError::Gap { .. }) => NotMade::Elsewhere(error.to_string()),
        UndoError::History(HistoryError::Failed(_)) => {
            tracing::error!(%error, "the history can't be read");
            NotMade::Elsewhere(error.to_string())
        }
    }
}
