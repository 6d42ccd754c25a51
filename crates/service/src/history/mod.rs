//! Reads the history: the changes of a record, and a config at a revision.
//!
//! | question | file |
//! |---|---|
//! | What is read, from which node, and what does a client get? | this one |
//! | How long is the history retained, and how are gaps filled? | `retention` |
//!
//! The history is on the disk of each node. A member that caught up from a snapshot has a gap until the gap is filled.
//! Meanwhile it requests the missing part from another member, the leader first. A response belongs to the state that the
//! request was validated against: the history is read up to (and including) its revision.
//!
//! **Invariant:** revisions below the compaction revision, which is the same on every node, are *expired*, even if the
//! disk of a node still has them.

pub(super) mod retention;

use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use super::{
    AuthorView, Consistency, Principal, Refusal, authors, clock::Clock, context::Context, cpu_pool::Weight,
    freshness::Freshness, freshness::wait_until_applied, redaction::Redactor, run_blocking,
};
use concord_consensus::Consensus;
use concord_model::{
    access_key::Verb,
    error::{Invalid, Rejection, Violation},
    key::Key,
    limits::HISTORY_READS_MAX,
    record::{Config, Revision, VoidRevisions},
    redaction::RedactedPlaces,
};
use concord_net::{
    Member, NodeId, ReceiveError,
    call::Call,
    client::Lane,
    codec::{decode, encode},
};
use concord_state::State;
use concord_storage::{AfterImage, AsOf, HistoryError, HistoryPage, Store, Subject};

/// How long a read waits until the history holds what this node has applied: milliseconds while the disk works.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(2);
/// Changes of a page from which it is read in the pool: a page of a thousand takes five milliseconds.
const LONG_PAGE: u64 = 200;
/// How long another member may take to respond.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(4);

/// A request to a node's history. Sent between nodes: new variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum HistoryRequest {
    /// The newest changes of a record, up to a revision.
    Page { subject: Subject, upto: Revision, limit: u64 },
    /// A config at a revision, by its changes up to `upto`.
    AsOf { subject: Subject, at: Revision, upto: Revision },
    /// The config that the change at a revision wrote.
    WrittenAt { subject: Subject, revision: Revision },
    /// Stored changes that fill a gap of the requesting node.
    Transfer { after: Revision, upto: Revision },
}

/// The response of a node's history. Sent between nodes: new variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum HistoryResponse {
    Page(HistoryPage),
    AsOf(AsOf),
    WrittenAt(Arc<Config>),
    Transfer(Vec<u8>),
    /// It is compacted on all nodes. The compaction revision.
    Compacted(Revision),
    /// This node does not have it, for this reason. Another node may.
    Unavailable(String),
}

/// Names a config.
#[derive(Debug, Clone, Copy)]
pub struct ConfigName<'a> {
    /// The key of its definition.
    pub definition: &'a str,
    /// Its own key.
    pub key: &'a str,
}

/// Which changes of a record are read.
#[derive(Debug, Clone, Copy)]
pub struct HistoryRange {
    /// Only changes before this revision; all if `None`.
    pub before: Option<Revision>,
    /// The number of changes at most.
    pub limit: usize,
}

/// What a client is shown of the history of a config or a definition.
#[derive(Debug)]
pub struct RedactedHistory {
    /// The changes, newest first.
    pub page: HistoryPage,
    /// The revision of the state that the page belongs to.
    pub revision: Revision,
    /// The secret fields that are not shown.
    pub redacted: RedactedPlaces,
    /// Who has made each change.
    pub authors: Vec<AuthorView>,
}

/// What a client is shown of a config at a revision.
#[derive(Debug)]
pub struct RedactedConfig {
    /// The config as it was.
    pub config: Arc<Config>,
    /// The revision of the state that the request was validated against.
    pub revision: Revision,
    /// The secret fields that are not shown.
    pub redacted: RedactedPlaces,
}

/// Reads the history of this node and of the other members.
#[derive(Debug)]
pub struct HistoryReader {
    pub(crate) cx: Arc<Context>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) freshness: Arc<Freshness>,
    pub(crate) redactor: Arc<Redactor>,
    pub(crate) permits: Semaphore,
}

impl HistoryReader {
    pub(crate) fn new(
        cx: &Arc<Context>,
        clock: &Arc<Clock>,
        freshness: &Arc<Freshness>,
        redactor: &Arc<Redactor>,
    ) -> Self {
        Self {
            cx: Arc::clone(cx),
            clock: Arc::clone(clock),
            freshness: Arc::clone(freshness),
            redactor: Arc::clone(redactor),
            permits: Semaphore::new(HISTORY_READS_MAX),
        }
    }

    /// The changes of a config, newest first. A deleted config has its history as long as its definition exists.
    ///
    /// # Errors
    /// When the config never existed, the revision is expired, or no member has the history.
    pub async fn config_history(
        &self,
        principal: &Principal,
        consistency: Consistency,
        name: ConfigName<'_>,
        range: HistoryRange,
    ) -> Result<RedactedHistory, Refusal> {
        principal.authorize(Verb::Read, Some(name.definition))?;
        let state = self.freshness.view(consistency).await?;
        let page = self.changes_of(&state, subject(&state, name)?, range).await?;
        let exists = state.definition(name.definition).is_some_and(|found| found.config(name.key).is_some());
        if page.items.is_empty() && range.before.is_none() && !exists {
            return Err(Rejection::ConfigNotFound.into());
        }
        let (page, redacted) = self.redact_history(principal, &state, name.definition, page).await?;
        let (page, authors) = self.with_authors(principal, &state, name.definition, page).await?;
        Ok(RedactedHistory { page, revision: state.revision(), redacted, authors })
    }

    /// A page, and who has made its changes.
    async fn with_authors(
        &self,
        principal: &Principal,
        state: &Arc<State>,
        definition: &str,
        page: HistoryPage,
    ) -> Result<(HistoryPage, Vec<AuthorView>), Refusal> {
        if state.changes().next().is_none() {
            let authors = authors::of_history(state, principal, definition, &page.items);
            return Ok((page, authors));
        }
        // Some thousand change requests may have to be looked at: a millisecond or more.
        let (principal, state, definition) = (principal.clone(), Arc::clone(state), definition.to_owned());
        let work = move || {
            let authors = authors::of_history(&state, &principal, &definition, &page.items);
            (page, authors)
        };
        self.cx.run_long(work).await
    }

    /// The changes of a definition's configs, as a client may see them.
    async fn redact_history(
        &self,
        principal: &Principal,
        state: &State,
        definition: &str,
        mut page: HistoryPage,
    ) -> Result<(HistoryPage, RedactedPlaces), Refusal> {
        let redaction = self.redactor.redaction(principal, state, definition, Revision::MAX).await?;
        let images = page.items.iter_mut().map(|item| &mut item.after);
        let mut configs: Vec<&mut Arc<Config>> = images
            .filter_map(|image| match image {
                AfterImage::Config(config) => Some(config),
                AfterImage::Deleted | AfterImage::Definition(_) => None,
            })
            .collect();
        let stored = configs.iter().map(|config| Arc::clone(config)).collect();
        let (shown, redacted) = self.redactor.redact(redaction, stored).await?;
        for (config, shown) in configs.iter_mut().zip(shown) {
            **config = shown;
        }
        Ok((page, redacted))
    }

    /// The changes of a definition, newest first, including those of earlier definitions with the same key.
    ///
    /// # Errors
    /// When the definition never existed, the revision is expired, or no member has the history.
    pub async fn definition_history(
        &self,
        principal: &Principal,
        consistency: Consistency,
        key: &str,
        range: HistoryRange,
    ) -> Result<RedactedHistory, Refusal> {
        principal.authorize(Verb::Read, Some(key))?;
        let state = self.freshness.view(consistency).await?;
        let page = self.changes_of(&state, Subject::Definition(key.into()), range).await?;
        if page.items.is_empty() && range.before.is_none() && state.definition(key).is_none() {
            return Err(Rejection::DefinitionNotFound.into());
        }
        let (page, authors) = self.with_authors(principal, &state, key, page).await?;
        let redacted = RedactedPlaces::default();
        Ok(RedactedHistory { page, revision: state.revision(), redacted, authors })
    }

    /// A config at a revision.
    ///
    /// # Errors
    /// When it did not exist then, the revision is expired or not yet applied, or no member has the history.
    pub async fn config_at(
        &self,
        principal: &Principal,
        consistency: Consistency,
        name: ConfigName<'_>,
        at: Revision,
    ) -> Result<RedactedConfig, Refusal> {
        principal.authorize(Verb::Read, Some(name.definition))?;
        let state = self.freshness.view(consistency).await?;
        let config = self.config_as_of(&state, name, at, "query").await?;
        let shown = self.redactor.redact_one(principal, &state, name.definition, &config).await?;
        let (config, redacted) = shown.unwrap_or((config, RedactedPlaces::default()));
        Ok(RedactedConfig { config, revision: state.revision(), redacted })
    }

    /// The config that the write at a revision stored, for the stored response of a retry.
    ///
    /// # Errors
    /// When it is compacted, or no member has the history.
    pub(crate) async fn config_written_at(
        &self,
        definition: &str,
        key: &str,
        revision: Revision,
    ) -> Result<Arc<Config>, Refusal> {
        let consensus = self.cx.consensus_or_refusal()?;
        let deadline = self.cx.read_deadline();
        wait_until_applied(consensus, revision, deadline).await?;
        let state = consensus.state();
        let gone = || Refusal::Expired(format!("the data written at revision {revision} is compacted"));
        let found =
            state.definition(definition).filter(|found| found.definition.created_revision() <= revision);
        let found = found.ok_or_else(gone)?;
        if let Some(config) = found.config(key).filter(|config| config.revision == revision) {
            return Ok(Arc::clone(config));
        }
        let subject = Subject::Config { definition: found.definition.id, key: key.into() };
        match self.read_history(HistoryRequest::WrittenAt { subject, revision }).await? {
            HistoryResponse::WrittenAt(config) => Ok(config),
            other @ (HistoryResponse::Page(_)
            | HistoryResponse::AsOf(_)
            | HistoryResponse::Transfer(_)
            | HistoryResponse::Compacted(_)
            | HistoryResponse::Unavailable(_)) => Err(unexpected(&other)),
        }
    }

    async fn changes_of(
        &self,
        state: &State,
        subject: Subject,
        range: HistoryRange,
    ) -> Result<HistoryPage, Refusal> {
        let upto =
            range.before.map_or(Revision::MAX, |before| before.saturating_sub(1)).min(state.revision());
        let limit = u64::try_from(range.limit).unwrap_or(u64::MAX);
        match self.read_history(HistoryRequest::Page { subject, upto, limit }).await? {
            HistoryResponse::Page(page) => Ok(page),
            other @ (HistoryResponse::AsOf(_)
            | HistoryResponse::WrittenAt(_)
            | HistoryResponse::Transfer(_)
            | HistoryResponse::Compacted(_)
            | HistoryResponse::Unavailable(_)) => Err(unexpected(&other)),
        }
    }

    /// A config at a revision, according to a state. `part` is the part of the request that names the revision.
    pub(crate) async fn config_as_of(
        &self,
        state: &State,
        name: ConfigName<'_>,
        at: Revision,
        part: &str,
    ) -> Result<Arc<Config>, Refusal> {
        let now = state.revision();
        Self::check_revision(state, at, part)?;
        let absent = || Refusal::NotThere(format!("the config did not exist at revision {at}"));
        if let Some(text) = absence(state, name.definition, at) {
            return Err(Refusal::DefinitionNotThere(text));
        }
        let subject = subject(state, name)?;
        let found = state.definition(name.definition).ok_or(Rejection::DefinitionNotFound)?;
        let current = found.config(name.key).cloned();
        if let Some(current) = current.as_ref().filter(|current| {
            current.revision <= at || concord_model::sabotage::is("history-returns-current")
        }) {
            return Ok(Arc::clone(current));
        }
        match self.read_history(HistoryRequest::AsOf { subject, at, upto: now }).await? {
            HistoryResponse::AsOf(AsOf::Value(Some(config))) => Ok(config),
            HistoryResponse::AsOf(AsOf::Value(None)) => Err(absent()),
            // It does not exist now, and has not changed since that revision.
            HistoryResponse::AsOf(AsOf::Unchanged) if current.is_none() => Err(absent()),
            other @ (HistoryResponse::AsOf(AsOf::Unchanged)
            | HistoryResponse::Page(_)
            | HistoryResponse::WrittenAt(_)
            | HistoryResponse::Transfer(_)
            | HistoryResponse::Compacted(_)
            | HistoryResponse::Unavailable(_)) => Err(unexpected(&other)),
        }
    }

    /// Rejects a revision that does not exist yet, is compacted, or is void. `part` is the part of the request that names it.
    pub(crate) fn check_revision(state: &State, at: Revision, part: &str) -> Result<(), Refusal> {
        let now = state.revision();
        if at > now {
            // Only reads can wait.
            let hint = if part == "query" { "; `min_revision` waits for one" } else { "" };
            let text = format!("the state is at revision {now}, not yet at {at}{hint}");
            return Err(Invalid::from(Violation::at(vec![part.into(), "revision".into()], text)).into());
        }
        if at < state.compaction_revision() {
            return Err(expired(state.compaction_revision()));
        }
        match state.void_at(at) {
            None => Ok(()),
            Some(void) => Err(Refusal::Expired(skipped(at, void))),
        }
    }

    /// The rejection of a revision whose history is compacted.
    pub(crate) fn compacted(compaction_revision: Revision) -> Refusal {
        expired(compaction_revision)
    }

    /// The other members, in the order in which this node requests a part of the history from them.
    pub(crate) fn members_to_ask(&self, consensus: &Consensus) -> Vec<Member> {
        other_members(consensus, self.cx.node_id())
    }

    /// Reads this node's history. If it lacks a part, reads the histories of the other members.
    async fn read_history(&self, request: HistoryRequest) -> Result<HistoryResponse, Refusal> {
        let consensus = self.cx.consensus_or_refusal()?;
        let deadline = self.cx.read_deadline();
        let local = timeout_at(deadline, self.read_local_history(consensus, request.clone())).await;
        let mut response = local.map_err(|_| Refusal::Overloaded)??;
        for member in other_members(consensus, self.cx.node_id()) {
            let HistoryResponse::Unavailable(why) = &response else { break };
            let timeout = deadline.saturating_duration_since(Instant::now()).min(MEMBER_TIMEOUT);
            if timeout.is_zero() {
                break;
            }
            tracing::debug!(why, member = member.id, "requesting the history from another member");
            response = self.request_history(&member, &request, Lane::Forward, timeout).await;
        }
        match response {
            HistoryResponse::Compacted(compaction_revision) => Err(expired(compaction_revision)),
            HistoryResponse::Unavailable(why) => {
                Err(Refusal::Unavailable(format!("no member has this part of the history: {why}")))
            }
            response @ (HistoryResponse::Page(_)
            | HistoryResponse::AsOf(_)
            | HistoryResponse::WrittenAt(_)
            | HistoryResponse::Transfer(_)) => Ok(response),
        }
    }

    /// The response of another member's history.
    async fn request_history(
        &self,
        member: &Member,
        request: &HistoryRequest,
        lane: Lane,
        timeout: Duration,
    ) -> HistoryResponse {
        let body = encode(request);
        let call = self.cx.peers().call(lane, member.id, &member.peer_addr, Call::History, body, timeout);
        let unavailable =
            |why: &dyn std::fmt::Display| HistoryResponse::Unavailable(format!("node {}: {why}", member.id));
        match call.await {
            Ok(body) => decode(&body).unwrap_or_else(|error: ReceiveError| unavailable(&error)),
            Err(error) => unavailable(&error),
        }
    }

    /// Responds to another node's request to this node's history. Never forwards it.
    ///
    /// # Errors
    /// When the body is not one of this version. Everything else is a response.
    pub async fn answer_history(&self, body: Bytes) -> Result<Bytes, ReceiveError> {
        let request: HistoryRequest = decode(&body)?;
        let response = match self.cx.consensus() {
            Some(consensus) => match self.read_local_history(consensus, request).await {
                Ok(response) => response,
                Err(refusal) => HistoryResponse::Unavailable(format!("{refusal:?}")),
            },
            None => HistoryResponse::Unavailable(self.cx.absence()),
        };
        Ok(encode(&response))
    }

    async fn read_local_history(
        &self,
        consensus: &Consensus,
        request: HistoryRequest,
    ) -> Result<HistoryResponse, Refusal> {
        let store = consensus.store().clone();
        let permit = self.permits.acquire().await;
        let permit = permit.map_err(|error| Refusal::Internal(error.to_string()))?;
        if !matches!(request, HistoryRequest::Page { limit: LONG_PAGE.., .. }) {
            return run_blocking(move || {
                wait_until_written(&store, &request).map_or_else(|late| late, |()| read(&store, &request))
            })
            .await;
        }
        // The wait is outside the pool: a history that lags behind must not hold threads of the pool.
        let (waiting, awaited) = (store.clone(), request.clone());
        if let Err(late) = run_blocking(move || wait_until_written(&waiting, &awaited)).await? {
            return Ok(late);
        }
        drop(permit);
        // In turns with the work of other clients, at a low priority: many at once would take the processors.
        self.cx.cpu_pool.run(Weight::Short, self.cx.read_deadline(), move |_| read(&store, &request)).await
    }
}

/// Waits until the history of a store has what a request needs. Blocking.
///
/// # Errors
/// The response when it is not written in time.
fn wait_until_written(store: &Store, request: &HistoryRequest) -> Result<(), HistoryResponse> {
    let needed = match request {
        HistoryRequest::Page { upto, .. }
        | HistoryRequest::AsOf { upto, .. }
        | HistoryRequest::Transfer { upto, .. } => *upto,
        HistoryRequest::WrittenAt { revision, .. } => *revision,
    };
    if !store.wait_for_history(needed, CATCH_UP_TIMEOUT) {
        let text = format!("the history is not written up to revision {needed} yet");
        return Err(HistoryResponse::Unavailable(text));
    }
    Ok(())
}

/// Reads the history of a store, which has what the request needs. Blocking.
fn read(store: &Store, request: &HistoryRequest) -> HistoryResponse {
    let response = match request {
        HistoryRequest::Page { subject, upto, limit } => {
            let limit = usize::try_from(*limit).unwrap_or(usize::MAX);
            store.history().page(subject, *upto, limit).map(HistoryResponse::Page)
        }
        HistoryRequest::AsOf { subject, at, upto } => {
            store.history().config_as_of(subject, *at, *upto).map(HistoryResponse::AsOf)
        }
        HistoryRequest::WrittenAt { subject, revision } => {
            store.history().config_written_at(subject, *revision).map(HistoryResponse::WrittenAt)
        }
        HistoryRequest::Transfer { after, upto } => {
            store.history().export(*after, *upto).map(HistoryResponse::Transfer)
        }
    };
    response.unwrap_or_else(|error| match error {
        HistoryError::Compacted { compaction_revision } => HistoryResponse::Compacted(compaction_revision),
        HistoryError::Gap { .. } => HistoryResponse::Unavailable(error.to_string()),
        HistoryError::Failed(_) => {
            tracing::error!(%error, ?request, "the history can't be read");
            HistoryResponse::Unavailable(error.to_string())
        }
    })
}

/// The other members, the leader first.
fn other_members(consensus: &Consensus, me: NodeId) -> Vec<Member> {
    let status = consensus.status();
    let mut members: Vec<Member> =
        status.members.into_iter().map(|member| member.member).filter(|member| member.id != me).collect();
    members.sort_by_key(|member| (Some(member.id) != status.leader_id, member.id));
    members
}

/// Why a definition can't be read at a revision that the history retains, although it may have existed then; `None` when
/// it can be read, or when nothing is known of one with this key.
pub(crate) fn absence(state: &State, key: &str, at: Revision) -> Option<String> {
    let found = state.definition(key).map(|found| &found.definition);
    if found.is_some_and(|definition| definition.existed_at(at)) {
        return None;
    }
    if let Some(kept) = state.deleted_since(key, at)
        && let Some(deletion) = kept.definition.standing.deleted
    {
        let then = if found.is_some() { "; another definition has its key now" } else { "" };
        return Some(format!(
            "the definition existed at revision {at}, but was deleted at revision {}{then}: its records can't be read \
             unless the deletion is undone (`concord definition undelete {key}`)",
            deletion.revision
        ));
    }
    let definition = found?;
    Some(match definition.absent_at(at) {
        Some(absence) => format!(
            "the definition did not exist at revision {at}: it was deleted at revision {}, and that was undone at \
             revision {}",
            absence.deleted, absence.undeleted
        ),
        None => format!(
            "the definition was created at revision {}, after revision {at}; if an earlier one had its key then, its \
             records are gone",
            definition.created_revision()
        ),
    })
}

fn subject(state: &State, name: ConfigName<'_>) -> Result<Subject, Refusal> {
    let ConfigName { definition, key } = name;
    let found = state.definition(definition).ok_or(Rejection::DefinitionNotFound)?;
    let invalid = |text: String| Invalid::from(Violation::at(vec!["config_key".into()], text));
    Key::parse(key).map_err(|error| invalid(error.to_string()))?;
    Ok(Subject::Config { definition: found.definition.id, key: key.into() })
}

fn expired(compaction_revision: Revision) -> Refusal {
    Refusal::Expired(format!("the history is retained from revision {compaction_revision} on"))
}

/// Why there is no state of a void revision.
pub(crate) fn skipped(at: Revision, VoidRevisions { first, last }: VoidRevisions) -> String {
    format!(
        "revision {at} is one of {first} to {last}, which a recovery of the cluster has skipped: a change that had it is \
         lost; the last revision before them is {}",
        first.saturating_sub(1)
    )
}

fn unexpected(response: &HistoryResponse) -> Refusal {
    // The content may be secret, and this text is logged.
    let kind = match response {
        HistoryResponse::Page(_) => "a page",
        HistoryResponse::AsOf(_) | HistoryResponse::WrittenAt(_) => "a config",
        HistoryResponse::Transfer(_) => "changes",
        HistoryResponse::Compacted(_) => "`compacted`",
        HistoryResponse::Unavailable(_) => "`unavailable`",
    };
    Refusal::Internal(format!("a member's response, {kind}, does not match the request"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_responses_decode_to_what_was_encoded() {
        let subject = Subject::Config { definition: 3, key: "k".into() };
        for request in [
            HistoryRequest::Page { subject: subject.clone(), upto: 9, limit: 10 },
            HistoryRequest::AsOf { subject: subject.clone(), at: 4, upto: 9 },
            HistoryRequest::WrittenAt { subject, revision: 7 },
            HistoryRequest::Page { subject: Subject::Definition("d".into()), upto: 9, limit: 10 },
            HistoryRequest::Transfer { after: 0, upto: 5 },
        ] {
            assert_eq!(decode::<HistoryRequest>(&encode(&request)).unwrap(), request);
        }
        let page = HistoryPage { items: Vec::new(), next_before: Some(3), compaction_revision: 1 };
        for response in [
            HistoryResponse::Page(page),
            HistoryResponse::AsOf(AsOf::Unchanged),
            HistoryResponse::AsOf(AsOf::Value(None)),
            HistoryResponse::Transfer(vec![1, 2]),
            HistoryResponse::Compacted(7),
            HistoryResponse::Unavailable("a gap".into()),
        ] {
            assert_eq!(decode::<HistoryResponse>(&encode(&response)).unwrap(), response);
        }
    }
}
