//! Change requests as clients see them: listed, read with a preview, and everything that is done to them.
//!
//! | topic | file |
//! |---|---|
//! | stored operations, what they rest on, the digest | `crates/service/src/editions/mod.rs` |
//! | what a client is shown | `view` |
//! | before and after, the fields that differ | `preview` |
//! | what the leader makes of a request | `crates/service/src/write/change.rs` |
//!
//! **Invariant:** a change request is seen by keys that may read every definition that it changes, and by no others: for
//! them it does not exist, and is not counted.

mod preview;
mod view;

use std::sync::Arc;

use crate::{
    context::Context,
    editions::{FoundChange, TextOf, changes, find},
    freshness::Freshness,
    request::{
        BypassRequest, Caller, ChangeWrite, Consistency, DecidedWrite, Level, Principal, Refusal, Write,
    },
    write::Writes,
};
use concord_model::{
    access_key::Verb,
    command::IdempotencyKey,
    error::Rejection,
    query::Page,
    record::Revision,
    system::{
        change::{ChangeId, ID_CHARS, Scope},
        environment::DEFAULT_ENVIRONMENT,
    },
};
use concord_state::{State, query::QueryResult};

pub use preview::{ChangePreview, DefinitionOperation, EnvironmentEffect, RecordPreview};
pub use view::{AppliedView, ChangeView, ClosedView, OperationView, PartyView, VoteView};

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
    /// Only those in this phase: `open`, `held`, `applied`, `closed`.
    pub phase: Option<String>,
    /// Only those that this environment's rules are for.
    pub environment: Option<String>,
    /// Only bypasses that wait for a review.
    pub unreviewed: bool,
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
    freshness: Arc<Freshness>,
    writes: Arc<Writes>,
}

impl ChangeRequests {
    pub(crate) fn new(cx: &Arc<Context>, freshness: &Arc<Freshness>, writes: &Arc<Writes>) -> Self {
        Self { cx: Arc::clone(cx), freshness: Arc::clone(freshness), writes: Arc::clone(writes) }
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
        // All of them are looked at: up to some milliseconds.
        let found = self.cx.run_long(move || {
            let mut seen: Vec<FoundChange<'_>> = changes(&state)
                .filter(|found| principal.may_in(Verb::Read, found.scope()))
                .filter(|found| query.selects(&state, found))
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
            let results = page.map(|found| view::of(&state, &principal, found, false)).collect();
            QueryResult { results, total }
        });
        Ok((found.await?, revision))
    }

    /// A change request, and the revision of the state that it was read from.
    ///
    /// # Errors
    /// When there is no such change request that the client may see, or no state is fresh enough.
    pub async fn get(
        &self,
        principal: &Principal,
        id: &str,
        with_preview: bool,
        consistency: Consistency,
    ) -> Result<(ChangeView, Revision), Refusal> {
        let state = self.freshness.view(consistency).await?;
        let id = ChangeId::parse(id).ok_or(Rejection::ChangeNotFound)?;
        let revision = state.revision();
        Ok((self.shown(state, principal, id, with_preview).await?, revision))
    }

    /// Carries out a request about a change request.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn write(&self, caller: Caller, write: ChangeWrite) -> Result<StoredChange, Refusal> {
        let principal = caller.principal.clone();
        let id = ChangeId::parse(write.id()).ok_or(Rejection::ChangeNotFound)?;
        let mut written = self.writes.write(caller, Write::Change(Box::new(write))).await?;
        let state = self.state_at_least(written.applied.revision).await?;
        written.revision = state.revision();
        // By the time of a retry it may be gone, or of definitions that the key may not read.
        Ok(StoredChange { change: self.shown(state, &principal, id, false).await?, written })
    }

    /// A change request as a client sees it, if the client may.
    async fn shown(
        &self,
        state: Arc<State>,
        principal: &Principal,
        id: ChangeId,
        with_preview: bool,
    ) -> Result<ChangeView, Refusal> {
        let principal = principal.clone();
        // Some megabytes of operations may have to be parsed.
        let work = move || {
            let found = find(&state, &id).filter(|found| principal.may_in(Verb::Read, found.scope()));
            let found = found.ok_or(Rejection::ChangeNotFound)?;
            let mut shown = view::of(&state, &principal, &found, true);
            if with_preview {
                shown.preview = preview::of(&state, &principal, &found);
            }
            Ok(shown)
        };
        self.cx.run_long(work).await?
    }

    /// This node's state once it has applied a revision.
    async fn state_at_least(&self, revision: Revision) -> Result<Arc<State>, Refusal> {
        self.freshness
            .view(Consistency { level: Level::Local { max_staleness: None }, min_revision: Some(revision) })
            .await
    }
}

impl ChangeQuery {
    fn selects(&self, state: &State, found: &FoundChange<'_>) -> bool {
        let is_of = |environment: &String| match found.scope() {
            Scope::Environment(name) => name.as_str() == environment,
            Scope::Definitions(keys) => keys.iter().any(|key| {
                let name = state.environment_of(key.as_str()).map(|record| record.name.as_str());
                name.unwrap_or(DEFAULT_ENVIRONMENT) == environment
            }),
        };
        let search = &self.page.search;
        self.phase.as_deref().is_none_or(|phase| phase == view::phase_name(&found.change.phase))
            && self.environment.as_ref().is_none_or(is_of)
            && (!self.unreviewed || found.change.reviews_missing() > 0)
            && (search.is_empty()
                || found.id.as_str().to_lowercase().contains(search.as_str())
                || TextOf::of(found.record).title.to_lowercase().contains(search.as_str()))
    }
}
