//! The past: what was done to a record, a config as it was, and bringing it back.
//!
//! The history lies on each node's disk. A member that was given a snapshot has a gap in it until the gap is filled
//! (`retention`); what it can't tell meanwhile it asks another member, the leader first. An answer is about what
//! the asked state holds: the history is read up to its revision and no further.
//!
//! **Invariant:** what is below the compaction revision, which is the same on every node, is *expired*, wherever it may still lie.

pub(super) mod retention;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use super::{
    Service,
    request::{Consistency, Refusal},
    run_blocking,
};
use crate::peer::call::Call;
use crate::{
    model::{
        error::{Invalid, Rejection, Violation},
        key::Key,
        record::{Config, Revision},
    },
    peer::{
        Member, ReceiveError,
        client::Lane,
        codec::{decode, encode},
    },
    raft::Consensus,
    state::State,
    store::{HistoryError, PastPage, Store, Subject, Was},
};

/// Reads of the history that this node does at once: each holds a thread and may hold some megabytes.
pub(super) const LOOKUPS_MAX: usize = 16;
/// How long the history may take to be written up to what was applied; milliseconds while the disk works.
const WRITTEN: Duration = Duration::from_secs(2);
/// How long another member may take to answer.
const ANSWER: Duration = Duration::from_secs(4);

/// What is asked of a history. Rides between nodes: new variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Query {
    /// Changes of a record.
    Page { subject: Subject, upto: Revision, limit: u64 },
    /// A config as it was at a revision.
    At { subject: Subject, at: Revision, upto: Revision },
    /// The config that a change left.
    Of { subject: Subject, revision: Revision },
    /// Changes for a gap.
    Piece { behind: Revision, upto: Revision },
}

/// What a history tells. Rides between nodes: new variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Told {
    Page(PastPage),
    At(Was),
    Of(Arc<Config>),
    Piece(Vec<u8>),
    /// It is gone everywhere; how far back the history goes.
    Compacted(Revision),
    /// It is not here, and why.
    Elsewhere(String),
}

impl Service {
    /// The changes of a config before a revision, newest first, and the revision that this is true of. A config
    /// that was deleted has its history as long as its definition is there.
    ///
    /// # Errors
    /// When there never was one, the revision is expired, or no member can tell.
    pub async fn config_history(
        &self,
        consistency: Consistency,
        (definition, key): (&str, &str),
        (before, limit): (Option<Revision>, usize),
    ) -> Result<(PastPage, Revision), Refusal> {
        let state = self.view(consistency).await?;
        let subject = subject(&state, definition, key)?;
        let page = self.past(&state, subject, before, limit).await?;
        let is_there = state.definition(definition).is_some_and(|found| found.config(key).is_some());
        if page.items.is_empty() && before.is_none() && !is_there {
            return Err(Rejection::ConfigNotFound.into());
        }
        Ok((page, state.revision()))
    }

    /// The changes of a definition before a revision, newest first, those of earlier definitions of the same key
    /// included, and the revision that this is true of.
    ///
    /// # Errors
    /// When there never was one, the revision is expired, or no member can tell.
    pub async fn definition_history(
        &self,
        consistency: Consistency,
        key: &str,
        (before, limit): (Option<Revision>, usize),
    ) -> Result<(PastPage, Revision), Refusal> {
        let state = self.view(consistency).await?;
        let page = self.past(&state, Subject::Definition(key.into()), before, limit).await?;
        if page.items.is_empty() && before.is_none() && state.definition(key).is_none() {
            return Err(Rejection::DefinitionNotFound.into());
        }
        Ok((page, state.revision()))
    }

    /// A config as it was at a revision, and the revision that this is known at.
    ///
    /// # Errors
    /// When it was not there, the revision is expired or not reached yet, or no member can tell.
    pub async fn config_at(
        &self,
        consistency: Consistency,
        (definition, key): (&str, &str),
        at: Revision,
    ) -> Result<(Arc<Config>, Revision), Refusal> {
        let state = self.view(consistency).await?;
        let config = self.config_then(&state, (definition, key), at, "query").await?;
        Ok((config, state.revision()))
    }

    /// The config that the write at a revision left: what the answer to a request that is sent again shows.
    ///
    /// # Errors
    /// When that is not kept any more, or no member can tell.
    pub async fn config_of(
        &self,
        definition: &str,
        key: &str,
        revision: Revision,
    ) -> Result<Arc<Config>, Refusal> {
        let consensus = self.consensus_or_refusal()?;
        let deadline = Instant::now() + self.inner.options.read_timeout;
        Self::wait_applied(consensus, revision, deadline).await?;
        let state = consensus.state();
        let gone =
            || Refusal::Expired(format!("what was written at revision {revision} is not kept any more"));
        let found = state.definition(definition).filter(|found| found.definition.born() <= revision);
        let found = found.ok_or_else(gone)?;
        if let Some(config) = found.config(key).filter(|config| config.revision == revision) {
            return Ok(Arc::clone(config));
        }
        let subject = Subject::Config { definition: found.definition.id, key: key.into() };
        match self.tell(Query::Of { subject, revision }).await? {
            Told::Of(config) => Ok(config),
            other @ (Told::Page(_)
            | Told::At(_)
            | Told::Piece(_)
            | Told::Compacted(_)
            | Told::Elsewhere(_)) => Err(unexpected(&other)),
        }
    }

    async fn past(
        &self,
        state: &State,
        subject: Subject,
        before: Option<Revision>,
        limit: usize,
    ) -> Result<PastPage, Refusal> {
        let upto = before.map_or(Revision::MAX, |before| before.saturating_sub(1)).min(state.revision());
        let limit = u64::try_from(limit).unwrap_or(u64::MAX);
        match self.tell(Query::Page { subject, upto, limit }).await? {
            Told::Page(page) => Ok(page),
            other
            @ (Told::At(_) | Told::Of(_) | Told::Piece(_) | Told::Compacted(_) | Told::Elsewhere(_)) => {
                Err(unexpected(&other))
            }
        }
    }

    /// A config as it was at a revision, by a state at or above it. `part`: where the request names the revision.
    pub(super) async fn config_then(
        &self,
        state: &State,
        (definition, key): (&str, &str),
        at: Revision,
        part: &str,
    ) -> Result<Arc<Config>, Refusal> {
        let subject = subject(state, definition, key)?;
        let now = state.revision();
        if at > now {
            let text =
                format!("the state is at revision {now}, not yet at {at}; `min_revision` waits for one");
            return Err(Invalid::from(Violation::at(vec![part.into(), "revision".into()], text)).into());
        }
        if at < state.compaction_revision() {
            return Err(expired(state.compaction_revision()));
        }
        let absent = || Refusal::NotThere(format!("the config did not exist at revision {at}"));
        let found = state.definition(definition).ok_or(Rejection::DefinitionNotFound)?;
        if at < found.definition.born() {
            return Err(absent());
        }
        let current = found.config(key).cloned();
        if let Some(current) =
            current.as_ref().filter(|current| current.revision <= at || crate::sabotage::is("past-is-now"))
        {
            return Ok(Arc::clone(current));
        }
        match self.tell(Query::At { subject, at, upto: now }).await? {
            Told::At(Was::Then(Some(config))) => Ok(config),
            Told::At(Was::Then(None)) => Err(absent()),
            // It is not there now and was not changed since.
            Told::At(Was::Unchanged) if current.is_none() => Err(absent()),
            other @ (Told::At(Was::Unchanged)
            | Told::Page(_)
            | Told::Of(_)
            | Told::Piece(_)
            | Told::Compacted(_)
            | Told::Elsewhere(_)) => Err(unexpected(&other)),
        }
    }

    /// What this node's history tells, or else another member's.
    async fn tell(&self, query: Query) -> Result<Told, Refusal> {
        let consensus = self.consensus_or_refusal()?;
        let deadline = Instant::now() + self.inner.options.read_timeout;
        let mut told = match timeout_at(deadline, self.look(consensus, query.clone())).await {
            Ok(told) => told?,
            Err(_) => return Err(Refusal::Overloaded),
        };
        for member in others(consensus, self.node_id()) {
            let Told::Elsewhere(why) = &told else { break };
            let remaining = deadline.saturating_duration_since(Instant::now()).min(ANSWER);
            if remaining.is_zero() {
                break;
            }
            tracing::debug!(why, member = member.id, "asking another member for the history");
            told = self.tell_from(&member, &query, Lane::Forward, remaining).await;
        }
        match told {
            Told::Compacted(compaction_revision) => Err(expired(compaction_revision)),
            Told::Elsewhere(why) => Err(Refusal::Unavailable(format!("no member can tell: {why}"))),
            told @ (Told::Page(_) | Told::At(_) | Told::Of(_) | Told::Piece(_)) => Ok(told),
        }
    }

    /// What another member's history tells.
    pub(super) async fn tell_from(&self, member: &Member, query: &Query, lane: Lane, time: Duration) -> Told {
        let call = self.peers().call(lane, member.id, &member.peer_addr, Call::History, encode(query), time);
        let elsewhere = |why: &dyn std::fmt::Display| Told::Elsewhere(format!("node {}: {why}", member.id));
        match call.await {
            Ok(answer) => decode(&answer).unwrap_or_else(|error: ReceiveError| elsewhere(&error)),
            Err(error) => elsewhere(&error),
        }
    }

    /// Tells another node what this one's history holds; never asks a third one.
    ///
    /// # Errors
    /// When the body is none of this version's. Everything else is an answer.
    pub(crate) async fn answer_history(&self, body: Bytes) -> Result<Bytes, ReceiveError> {
        let query: Query = decode(&body)?;
        let told = match self.consensus() {
            Some(consensus) => match self.look(consensus, query).await {
                Ok(told) => told,
                Err(refusal) => Told::Elsewhere(format!("{refusal:?}")),
            },
            None => Told::Elsewhere(self.absence()),
        };
        Ok(encode(&told))
    }

    async fn look(&self, consensus: &Consensus, query: Query) -> Result<Told, Refusal> {
        let permit = self.inner.lookups.acquire().await;
        let _permit = permit.map_err(|error| Refusal::Internal(error.to_string()))?;
        let store = consensus.store().clone();
        run_blocking(move || look(&store, &query)).await
    }
}

/// Reads a history. Blocking.
fn look(store: &Store, query: &Query) -> Told {
    let upto = match query {
        Query::Page { upto, .. } | Query::At { upto, .. } | Query::Piece { upto, .. } => *upto,
        Query::Of { revision, .. } => *revision,
    };
    if !store.history_reaches(upto, WRITTEN) {
        return Told::Elsewhere(format!("the history is not written up to revision {upto} yet"));
    }
    let told = match query {
        Query::Page { subject, upto, limit } => {
            let limit = usize::try_from(*limit).unwrap_or(usize::MAX);
            store.history_page(subject, *upto, limit).map(Told::Page)
        }
        Query::At { subject, at, upto } => store.config_at(subject, *at, *upto).map(Told::At),
        Query::Of { subject, revision } => store.config_of(subject, *revision).map(Told::Of),
        Query::Piece { behind, upto } => store.history_piece(*behind, *upto).map(Told::Piece),
    };
    told.unwrap_or_else(|error| match error {
        HistoryError::Compacted { compaction_revision } => Told::Compacted(compaction_revision),
        HistoryError::Gap { .. } => Told::Elsewhere(error.to_string()),
        HistoryError::Failed(_) => {
            tracing::error!(%error, ?query, "the history can't be read");
            Told::Elsewhere(error.to_string())
        }
    })
}

/// The other members, the leader first.
pub(super) fn others(consensus: &Consensus, me: u64) -> Vec<Member> {
    let status = consensus.status();
    let mut members: Vec<Member> =
        status.members.into_iter().map(|member| member.member).filter(|member| member.id != me).collect();
    members.sort_by_key(|member| (Some(member.id) != status.leader_id, member.id));
    members
}

fn subject(state: &State, definition: &str, key: &str) -> Result<Subject, Refusal> {
    let found = state.definition(definition).ok_or(Rejection::DefinitionNotFound)?;
    let wrong = |text: String| Invalid::from(Violation::at(vec!["config_key".into()], text));
    Key::parse(key).map_err(|error| wrong(error.to_string()))?;
    Ok(Subject::Config { definition: found.definition.id, key: key.into() })
}

fn expired(compaction_revision: Revision) -> Refusal {
    Refusal::Expired(format!("the history is kept from revision {compaction_revision} on"))
}

fn unexpected(told: &Told) -> Refusal {
    Refusal::Internal(format!("a member told of the history what was not asked: {told:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_come_back_as_they_were() {
        let subject = Subject::Config { definition: 3, key: "k".into() };
        for query in [
            Query::Page { subject: subject.clone(), upto: 9, limit: 10 },
            Query::At { subject: subject.clone(), at: 4, upto: 9 },
            Query::Of { subject, revision: 7 },
            Query::Page { subject: Subject::Definition("d".into()), upto: 9, limit: 10 },
            Query::Piece { behind: 0, upto: 5 },
        ] {
            assert_eq!(decode::<Query>(&encode(&query)).unwrap(), query);
        }
        let page = PastPage { items: Vec::new(), next_before: Some(3), compaction_revision: 1 };
        for told in [
            Told::Page(page),
            Told::At(Was::Unchanged),
            Told::At(Was::Then(None)),
            Told::Piece(vec![1, 2]),
            Told::Compacted(7),
            Told::Elsewhere("a gap".into()),
        ] {
            assert_eq!(decode::<Told>(&encode(&told)).unwrap(), told);
        }
    }
}
