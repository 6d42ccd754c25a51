//! Many configs at once: of one state, each judged by itself.
//!
//! A caller who may read some of what they ask for is told of each of the others that it is forbidden, whether it exists
//! or not, and in the words of a read of it alone. Who may read none of it is refused as a whole, before the state is
//! looked at.
//!
//! Of the past each config is found in the history by itself, so fewer of them can be asked for; all are of the
//! requested revision.
//!
//! **Invariant:** all configs of an answer are of one revision, and one that is not among them was not there, or is
//! forbidden, or the caller has it.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use crate::{
    Consistency, Principal, Refusal,
    audit::target::name_read,
    history::{ConfigName, HistoryReader},
    memory_budget::{Reservation, Share},
    read::Reads,
    redaction::Redaction,
};
use concord_model::{
    access_key::Verb,
    error::{Invalid, Rejection, Violation},
    record::{Config, Revision},
    redaction::RedactedPlaces,
};
use concord_state::State;

/// A config that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The key of its definition.
    pub definition: String,
    /// Its key.
    pub key: String,
}

/// What is answered to one of them.
#[derive(Debug)]
pub enum ReadResult {
    /// The config as the caller is shown it.
    Found(Arc<Config>),
    /// It was not read, or not there.
    Refused(Refusal),
}

/// The configs that were asked for, in that order.
#[derive(Debug)]
pub struct ReadMany {
    /// One for each.
    pub results: Vec<ReadResult>,
    /// The places of what is not shown of them.
    pub redacted: RedactedPlaces,
    /// The revision that they are of.
    pub revision: Revision,
    /// The revision of the state that was read.
    pub state_revision: Revision,
    /// What they may keep in memory until they are sent.
    pub reservation: Reservation,
    /// Whether the answer may be compressed.
    pub may_compress: bool,
}

impl Reads {
    /// Many configs of one state, or as of a revision.
    ///
    /// # Errors
    /// When the principal may read none of them; when the revision is expired or does not exist yet; when no state is
    /// available in time.
    pub async fn read_many(
        &self,
        principal: &Principal,
        consistency: Consistency,
        asked: Vec<Asked>,
        at: Option<Revision>,
    ) -> Result<ReadMany, Refusal> {
        self.name_in_audit_log(&asked);
        let mut allowed = Vec::with_capacity(asked.len());
        for one in &asked {
            allowed.push(principal.authorize(Verb::Read, Some(&one.definition)));
        }
        if let Some(Err(refusal)) = allowed.first()
            && allowed.iter().all(Result::is_err)
        {
            return Err(refusal.clone());
        }
        let deadline = Instant::now() + self.cx.options.read_timeout;
        let state = self.freshness.view(consistency).await?;
        if let Some(at) = at {
            HistoryReader::check_revision(&state, at, "body")?;
        }
        let mut results = Vec::with_capacity(asked.len());
        let mut reservation = self.cx.memory_budget.begin(Share::Callers);
        for (one, allowed) in asked.iter().zip(allowed) {
            let found = match (allowed, at) {
                (Err(refusal), _) => Err(refusal),
                (Ok(()), None) => Ok(now(&state, one)),
                (Ok(()), Some(at)) => self.then(&state, one, at, deadline).await,
            };
            let result = match found {
                Ok(result) => result,
                Err(refusal @ Refusal::Forbidden { .. }) => ReadResult::Refused(refusal),
                Err(refusal) => return Err(refusal),
            };
            if let ReadResult::Found(config) = &result {
                reservation.grow(config.data.len() as u64)?;
                self.check_answer(reservation.bytes())?;
            }
            results.push(result);
        }
        let may_compress = asked.iter().zip(&results).all(|(one, result)| {
            matches!(result, ReadResult::Refused(_))
                || state.definition(&one.definition).is_some_and(|found| !found.may_have_secrets())
        });
        let mut made = ReadMany {
            results,
            redacted: RedactedPlaces::default(),
            revision: at.unwrap_or_else(|| state.revision()),
            state_revision: state.revision(),
            reservation,
            may_compress,
        };
        if principal.key.is_some() {
            Box::pin(self.redact_many(principal, &state, (&asked, at), &mut made)).await?;
        }
        Ok(made)
    }

    /// Names what is read in the audit log. A line names only so many definitions, so those whose reads are recorded come
    /// first: nobody reads one of these unnoticed by naming others before it.
    fn name_in_audit_log(&self, asked: &[Asked]) {
        let audit = &self.cx.audit;
        if audit.has_reads() {
            let is_recorded = |one: &&Asked| audit.records_reads_of(Some(&one.definition));
            asked.iter().filter(is_recorded).for_each(|one| name_read(&one.definition));
        }
        asked.iter().for_each(|one| name_read(&one.definition));
    }

    /// Refuses an answer of more bytes than one may have, whatever else is in flight.
    fn check_answer(&self, bytes: u64) -> Result<(), Refusal> {
        let max = self.cx.memory_budget.answer_max();
        if bytes <= max {
            return Ok(());
        }
        let msg =
            format!("the configs have {bytes} bytes or more, and an answer has at most {max}: ask for fewer");
        Err(Invalid::from(Violation::at(vec!["body".into(), "configs".into()], msg)).into())
    }

    /// A config as of a revision.
    async fn then(
        &self,
        state: &Arc<State>,
        asked: &Asked,
        at: Revision,
        deadline: Instant,
    ) -> Result<ReadResult, Refusal> {
        let name = ConfigName { definition: &asked.definition, key: &asked.key };
        let read = self.history.config_as_of(state, name, at, "body");
        let Ok(found) = timeout_at(deadline, read).await else {
            return Err(Refusal::Unavailable("the configs were not found in the history in time".into()));
        };
        match found {
            Ok(config) => Ok(ReadResult::Found(config)),
            Err(refusal @ (Refusal::NotThere(_) | Refusal::Rejected(_))) => Ok(ReadResult::Refused(refusal)),
            Err(refusal) => Err(refusal),
        }
    }

    /// Takes from the results what the principal is not shown.
    async fn redact_many(
        &self,
        principal: &Principal,
        state: &State,
        (asked, at): (&[Asked], Option<Revision>),
        made: &mut ReadMany,
    ) -> Result<(), Refusal> {
        let mut hidden: Vec<(usize, Redaction, Arc<Config>)> = Vec::new();
        for (place, (one, result)) in asked.iter().zip(&made.results).enumerate() {
            let ReadResult::Found(config) = result else { continue };
            let of = (one.definition.as_str(), at.unwrap_or(Revision::MAX));
            let redaction = self.redactor.redaction(principal, state, of).await?;
            if !redaction.is_nothing() {
                hidden.push((place, redaction, Arc::clone(config)));
            }
        }
        if hidden.is_empty() {
            return Ok(());
        }
        let (shown, places) = self.redactor.redact_each(hidden).await?;
        for (place, config) in shown {
            if let Some(result) = made.results.get_mut(place) {
                *result = ReadResult::Found(config);
            }
        }
        made.redacted = places;
        Ok(())
    }
}

/// A config of the state.
fn now(state: &State, asked: &Asked) -> ReadResult {
    let Some(found) = state.definition(&asked.definition) else {
        return ReadResult::Refused(Rejection::DefinitionNotFound.into());
    };
    match found.config(&asked.key) {
        Some(config) => ReadResult::Found(Arc::clone(config)),
        None => ReadResult::Refused(Rejection::ConfigNotFound.into()),
    }
}
