//! Change requests as clients see them: listed, read with a preview, and everything that is done to them.
//!
//! | topic | file |
//! |---|---|
//! | stored operations, what they rest on, the digest | `crates/service/src/editions/mod.rs` |
//! | what a client is shown | `view` |
//! | what it shows of its rollout | `rollout` |
//! | before and after, the fields that differ | `preview` |
//! | what it waits for, whose vote it needs | `waits` |
//! | what a watch tells of them | `events` |
//! | who has made a change of a record, and by which of them | `crates/service/src/authors.rs` |
//! | what the leader applies and takes back by itself | `due`, `failure` |
//! | what the leader makes of a request | `crates/service/src/write/change/mod.rs` |
//!
//! **Invariant:** a change request is seen by keys that may read every definition that it changes, and by no others: for
//! them it does not exist, and is not counted.

pub(crate) mod due;
mod events;
mod failure;
mod preview;
mod rollout;
mod view;
mod waits;

use std::sync::Arc;

use crate::{
    clock::Clock,
    context::Context,
    editions::{FoundChange, TextOf, changes, environments_of, find},
    freshness::{Freshness, Made},
    memory_budget::Reservation,
    request::{BypassRequest, Caller, ChangeWrite, Consistency, DecidedWrite, Principal, Refusal, Write},
    rollouts::Reports,
    write::Writes,
};
use concord_model::{
    command::IdempotencyKey,
    error::Rejection,
    query::Page,
    record::Revision,
    system::change::{ChangeId, ID_CHARS},
};
use concord_state::{State, query::QueryResult};

pub(crate) use events::events;
pub use events::{ChangeRequestEvent, ChangeRequestThen};
pub use preview::{ChangePreview, DefinitionOperation, EnvironmentEffect, RecordPreview};
pub use rollout::{PassedView, PauseView, RolloutStatus, RolloutView};
use view::ViewDepth;
pub use view::{
    AppliedView, ChangeView, ClosedView, FailureView, OperationView, PartyView, RevertView, ScheduledView,
    VoteView,
};
pub use waits::WaitView;

/// The random key of a digest.
///
/// # Errors
/// When the system gives no random bytes.
pub fn random_seal() -> Result<[u8; 32], Refusal> {
    random()
}

/// The id of a new change request: that of its idempotency key, so that a retry finds it, or a random one.
///
/// # Errors
/// When the system gives no random bytes.
pub fn new_change_id(request: Option<IdempotencyKey>) -> Result<String, Refusal> {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let bytes = match request {
        Some(request) => request.id,
        None => random()?,
    };
    let mut left = u128::from_le_bytes(bytes);
    let mut id = String::with_capacity(ID_CHARS);
    for _ in 0..ID_CHARS {
        id.push(char::from(DIGITS[usize::try_from(left % 62).unwrap_or(0)]));
        left /= 62;
    }
    Ok(id)
}

/// What makes a write a bypass.
///
/// # Errors
/// When the system gives no random bytes.
pub fn bypass(request: Option<IdempotencyKey>) -> Result<BypassRequest, Refusal> {
    Ok(BypassRequest { id: new_change_id(request)?, seal: random()? })
}

/// Random bytes that cannot be guessed.
fn random<const N: usize>() -> Result<[u8; N], Refusal> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Refusal::Internal(format!("the system gives no random bytes: {error}")))?;
    Ok(bytes)
}

/// Which change requests a list has.
#[derive(Debug, Clone)]
pub struct ChangeQuery {
    /// Page and direction, by time of creation; the search looks in titles and ids.
    pub page: Page,
    /// Only those in this phase: `open`, `scheduled`, `rolling`, `held`, `applied`, `closed`.
    pub phase: Option<String>,
    /// Only those that this environment's rules are for.
    pub environment: Option<String>,
    /// Only bypasses that wait for a review.
    pub unreviewed: bool,
    /// Only those whose revert is in this state: `possible`, `armed`, `held`, `done`, `failed`, `kept`.
    pub revert: Option<String>,
    /// Only those of which the client has sent an edition.
    pub mine: bool,
    /// Only those that wait for a vote which the client may give and has not given.
    pub needs_me: bool,
}

/// A change request after a request about it.
#[derive(Debug)]
pub struct StoredChange {
    /// The change request.
    pub change: ChangeView,
    /// The write.
    pub written: DecidedWrite,
}

/// The change requests of the cluster, for clients.
#[derive(Debug)]
pub struct ChangeRequests {
    cx: Arc<Context>,
    clock: Arc<Clock>,
    freshness: Arc<Freshness>,
    writes: Arc<Writes>,
    reports: Arc<Reports>,
}

impl ChangeRequests {
    pub(crate) fn new(
        (cx, clock): (&Arc<Context>, &Arc<Clock>),
        freshness: &Arc<Freshness>,
        writes: &Arc<Writes>,
        reports: &Arc<Reports>,
    ) -> Self {
        let (cx, clock) = (Arc::clone(cx), Arc::clone(clock));
        let (freshness, writes, reports) = (Arc::clone(freshness), Arc::clone(writes), Arc::clone(reports));
        Self { cx, clock, freshness, writes, reports }
    }

    /// A page of the change requests that the client may see, and the revision of the state that it was read from.
    ///
    /// # Errors
    /// When no state is fresh enough.
    pub async fn list(
        &self,
        principal: &Principal,
        query: ChangeQuery,
        consistency: Consistency,
    ) -> Result<(QueryResult<ChangeView>, Revision), Refusal> {
        let state = self.freshness.view(consistency).await?;
        let (revision, principal) = (state.revision(), principal.clone());
        let now = self.clock.log_time(&state);
        // All of them are looked at: up to some milliseconds.
        let found = self.cx.run_long(move || {
            let mut seen: Vec<FoundChange<'_>> = changes(&state)
                .filter(|found| principal.may_see_change(found.scope()))
                .filter(|found| query.selects(&state, &principal, found))
                .collect();
            seen.sort_unstable_by(|a, b| {
                let order = a.record.created_at.cmp(&b.record.created_at).then_with(|| a.id.cmp(&b.id));
                if query.page.descending { order.reverse() } else { order }
            });
            let total = seen.len() as u64;
            let before = query.page.page.saturating_sub(1).saturating_mul(query.page.limit);
            let before = usize::try_from(before).unwrap_or(usize::MAX);
            let limit = usize::try_from(query.page.limit).unwrap_or(usize::MAX);
            let page = seen.iter().skip(before).take(limit);
            let results =
                page.map(|found| view::of(&state, &principal, found, ViewDepth::List(now))).collect();
            QueryResult { results, total }
        });
        Ok((found.await?, revision))
    }

    /// A change request, and the revision of the state that it was read from. `held`: the memory of the request, which
    /// is to be kept until the response is made.
    ///
    /// # Errors
    /// When there is no such change request that the client may see, or no state is fresh enough, or this node has no
    /// memory for its preview.
    pub async fn get(
        &self,
        principal: &Principal,
        id: &str,
        with_preview: bool,
        (consistency, held): (Consistency, &mut Reservation),
    ) -> Result<(ChangeView, Revision), Refusal> {
        let state = self.freshness.view(consistency).await?;
        let id = ChangeId::parse(id).ok_or(Rejection::ChangeNotFound)?;
        let revision = state.revision();
        let found = find(&state, &id).filter(|found| principal.may_see_change(found.scope()));
        if found.is_some_and(|_| with_preview) {
            held.grow(preview::bytes_of(&state, &id))?;
        }
        Ok((self.shown(state, principal, id, with_preview).await?, revision))
    }

    /// Carries out a request about a change request.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn write(&self, caller: Caller, write: ChangeWrite) -> Result<StoredChange, Refusal> {
        let principal = caller.principal.clone();
        let id = ChangeId::parse(write.id()).ok_or(Rejection::ChangeNotFound)?;
        self.freshness.expect_level(write.feature_level()).await?;
        // Another one may have applied it, or taken it back: that is answered as the own request is.
        let may_be_earlier = caller.idempotency_key.is_some() || write.is_of_records();
        let mut written = self.writes.write(caller, Write::Change(Box::new(write))).await?;
        let made = Made { revision: written.applied.revision, may_be_earlier };
        let state = self.freshness.state_after(made).await?;
        written.revision = state.revision();
        // By the time of a retry it may be gone, or of definitions that the key may not read.
        let change = self.shown(state, &principal, id, false).await.map_err(Refusal::after_done)?;
        Ok(StoredChange { change, written })
    }

    /// A change request as a client sees it, if the client may.
    async fn shown(
        &self,
        state: Arc<State>,
        principal: &Principal,
        id: ChangeId,
        with_preview: bool,
    ) -> Result<ChangeView, Refusal> {
        let (principal, now) = (principal.clone(), self.clock.log_time(&state));
        // Some megabytes of operations may have to be parsed.
        let of = id.clone();
        let work = move || {
            let found = find(&state, &of).filter(|found| principal.may_see_change(found.scope()));
            let found = found.ok_or(Rejection::ChangeNotFound)?;
            let mut shown = view::of(&state, &principal, &found, ViewDepth::Whole(now));
            if with_preview {
                shown.preview = preview::of(&state, &principal, &found);
            }
            let hides = found.may_hide_data_from(&state, &principal);
            Ok::<_, Refusal>((shown, hides))
        };
        let (mut shown, hides) = self.cx.run_long(work).await??;
        if let Some(rollout) = shown.rollout.as_mut().filter(|rollout| rollout.status.is_some()) {
            let (evidence, watches) = tokio::join!(self.reports.shown(&id), self.reports.watches(&id));
            rollout.add_evidence(evidence, watches, hides);
        }
        Ok(shown)
    }
}

impl ChangeQuery {
    fn selects(&self, state: &State, principal: &Principal, found: &FoundChange<'_>) -> bool {
        let is_of = |environment: &String| environments_of(state, found.scope()).contains(environment);
        let search = &self.page.search;
        self.phase.as_deref().is_none_or(|phase| phase == view::phase_name(&found.change.phase))
            && self.environment.as_ref().is_none_or(is_of)
            && (!self.unreviewed || found.change.reviews_missing() > 0)
            && (!self.mine || waits::is_mine(found.change, principal))
            && (!self.needs_me || waits::needs_vote_of(state, found, principal))
            && self.revert.as_deref().is_none_or(|wanted| {
                found.change.revert.as_ref().is_some_and(|revert| wanted == view::revert_name(revert))
            })
            && (search.is_empty()
                || found.id.as_str().to_lowercase().contains(search.as_str())
                || TextOf::of(found.record).title.to_lowercase().contains(search.as_str()))
    }
}

#[cfg(test)]
mod tests;
