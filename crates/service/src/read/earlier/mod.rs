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
//! not change with the present one, and is retained (`retained`) for those who ask next, and to go back further from.
//!
//! | question | file |
//! |---|---|
//! | How is a page of an earlier state made, and by which node? | this one |
//! | Which earlier states are retained, and for how long? | `retained` |
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

mod retained;

use crate::read::Reads;
use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::{
    cursor::{Cursor, Fingerprint},
    list::{ListError, ListPage, Lister, PageRecords, PageSource, foreign_cursor},
    query::Wanted,
};
use crate::{
    Refusal,
    cpu_pool::{Cancel, Weight, late},
    freshness::wait_until_applied,
    history::HistoryReader,
    memory_budget::{Reservation, Share},
    run_blocking,
};
use concord_consensus::Consensus;
use concord_model::{error::Rejection, limits::PAST_RESERVED_AT_ONCE, query::Page, record::Revision};
use concord_state::{State, earlier::EarlierState};
use concord_storage::{HistoryError, Undo, UndoError, UndoScope};
pub(crate) use retained::EarlierStates;

/// How long a list waits until the history holds what this node has applied: milliseconds while the disk works.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(2);

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

impl Lister<'_> {
    /// A page of the list as of a revision, which this node makes or another member.
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
                // Another node may have applied it first.
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

    /// A page of the list as of a revision, which this node has applied. What it reads is reserved from `share`.
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
        retained::end_use(earlier);
        let listed = listed?;
        Ok(PageRecords { records: listed.records, total: listed.total, definition })
    }

    /// What of the state the list needs. The past of a definition ends with its deletion, as for reads of one config.
    fn undo_scope(&self, at: Revision) -> Result<UndoScope, ListError> {
        let Some(key) = self.listing.list.definition() else { return Ok(UndoScope::Definitions) };
        let state = self.reads.cx.consensus_or_refusal()?.state();
        let found = state.definition(key).map(|found| &found.definition);
        let found = found.filter(|definition| definition.created_revision() <= at);
        let found = found.ok_or_else(|| definition_not_found(&state))?;
        Ok(UndoScope::Configs { id: found.id, key: found.key.clone() })
    }
}

fn definition_not_found(state: &State) -> ListError {
    ListError { refusal: Rejection::DefinitionNotFound.into(), revision: Some(state.revision()) }
}

/// Makes a part of the state as it was at a revision, until a deadline.
struct Rewind<'a> {
    reads: &'a Reads,
    consensus: &'a Consensus,
    scope: UndoScope,
    at: Revision,
    deadline: Instant,
}

impl Rewind<'_> {
    /// That part of the state; and for who has made it, what it holds until it is used.
    async fn state(&self, share: Share) -> Result<(Arc<EarlierState>, Option<Reservation>), NotMade> {
        let (states, Self { scope, at, .. }) = (&self.reads.earlier_states, self);
        if let Some(found) = states.find(scope, *at) {
            return Ok((found, None));
        }
        // The others wait for the first, and one of them goes on if its caller leaves.
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

    /// The state that this node has applied, once its history holds all that led to it.
    async fn present(&self) -> Result<Arc<EarlierState>, NotMade> {
        let (state, store) = (self.consensus.state(), self.consensus.store().clone());
        if let UndoScope::Configs { id, key } = &self.scope {
            let found = state.definition(key.as_str());
            // It was deleted since it was looked up.
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

    /// Goes back from a later state.
    async fn go_back(
        &self,
        later: Arc<EarlierState>,
        mut reservation: Reservation,
    ) -> Result<(Arc<EarlierState>, Reservation), NotMade> {
        let (store, present) = (self.consensus.store().clone(), self.consensus.state());
        let (scope, at) = (self.scope.clone(), self.at);
        let work = move |cancel: &Cancel| {
            let mut weight = Weighed { reservation: &mut reservation, pending: 0, refused: None };
            let range = (at, later.state.revision());
            let go_on = &mut |bytes| weight.add(bytes) && !cancel.is_over();
            let undone = store.history().undo(&scope, range, go_on);
            let (pending, refused) = (weight.pending, weight.refused);
            let undo = undone.map_err(|error| not_undone(error, refused))?;
            reservation.grow(pending)?;
            tracing::debug!(at, from = range.1, changes = undo.changes, "made an earlier state again");
            let earlier = made(&later, &scope, at, undo, cancel)?;
            // What it is weighed with while it is used; then its place among those that are kept is.
            let bytes = earlier.bytes_kept_beside(&present);
            reservation.grow(bytes.saturating_sub(reservation.bytes()))?;
            retained::end_use(later);
            Ok((Arc::new(earlier), reservation))
        };
        self.reads.cx.cpu_pool.run(Weight::List, self.deadline, work).await?
    }
}

/// The earlier state, from a later one and what was replaced since.
fn made(
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
    // It was created before: the history says otherwise only if it is not that of this state.
    let not_there = || Refusal::Internal(format!("the history has no definition `{key}` at revision {at}"));
    let definition = definition.ok_or_else(not_there)?;
    let earlier = later.configs_at(at, &definition, undo.configs, &|| cancel.is_over());
    Ok(earlier.ok_or_else(late)?)
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
