//! Bulk reads: many configs of one state, each authorized by itself.
//!
//! A config that the client may not read is reported as forbidden, whether it exists or not, with the message that a
//! read of it alone returns. If the client may read none of the configs, the request is rejected before the state is
//! read.
//!
//! A reader that is in a rollout gets the candidates of its configs.
//!
//! At an earlier revision, each config is looked up in the history by itself. So such a request may name fewer configs.
//!
//! **Invariant:** all configs of a response are of one revision. A requested config that is not among them did not
//! exist at that revision or is forbidden.

use std::{collections::BTreeMap, sync::Arc};

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
    system::rollout::Reader,
};
use concord_state::{
    State,
    seen::{SeenConfig, Variant},
};

/// A bulk read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BulkRequest {
    /// The names of the configs.
    pub configs: Vec<BulkConfig>,
    /// The earlier revision to read; `None` for the current state.
    pub at: Option<Revision>,
    /// Who reads, if the client says it. At an earlier revision it has no effect.
    pub reader: Option<Reader>,
}

/// The name of a config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BulkConfig {
    /// The key of its definition.
    pub definition: String,
    /// Its key.
    pub key: String,
}

/// The result for one requested config.
#[derive(Debug)]
pub enum ReadResult {
    /// The config, redacted for the principal.
    Found(Arc<Config>),
    /// The config does not exist, or the principal may not read it.
    Refused(Refusal),
}

/// The response to a bulk read.
#[derive(Debug)]
pub struct BulkRead {
    /// One result for each requested config, in the order of the request.
    pub results: Vec<ReadResult>,
    /// The change requests of whose rollouts the configs at these places are candidates.
    pub variants: BTreeMap<usize, Variant>,
    /// The paths of the redacted values.
    pub redacted: RedactedPlaces,
    /// The revision of the configs.
    pub revision: Revision,
    /// The revision of the state that was read.
    pub state_revision: Revision,
    /// The memory that the configs hold until they are sent.
    pub reservation: Reservation,
    /// Whether the response may be compressed.
    pub may_compress: bool,
}

impl Reads {
    /// Reads many configs of one state, current or at an earlier revision.
    ///
    /// # Errors
    /// If the principal may read none of them, the revision is compacted or does not exist yet, the configs are larger
    /// than a response may be, or no state is available in time.
    pub async fn read_bulk(
        &self,
        principal: &Principal,
        consistency: Consistency,
        request: BulkRequest,
    ) -> Result<BulkRead, Refusal> {
        let BulkRequest { configs: names, at, reader } = &request;
        self.name_in_audit_log(names.iter().map(|name| name.definition.as_str()));
        let mut allowed = Vec::with_capacity(names.len());
        for name in names {
            allowed.push(principal.authorize(Verb::Read, Some(&name.definition)));
        }
        if let Some(Err(refusal)) = allowed.first()
            && allowed.iter().all(Result::is_err)
        {
            return Err(refusal.clone());
        }
        let deadline = self.cx.read_deadline();
        let state = self.freshness.view(consistency).await?;
        if let Some(at) = at {
            HistoryReader::check_revision(&state, *at, "body")?;
        }
        let (mut results, mut variants) = (Vec::with_capacity(names.len()), BTreeMap::new());
        let mut reservation = self.cx.memory_budget.begin(Share::Callers);
        for (name, allowed) in names.iter().zip(allowed) {
            let found = match (allowed, at) {
                (Err(refusal), _) => Err(refusal),
                (Ok(()), None) => {
                    let (result, variant) = current_config(&state, name, reader.as_ref());
                    variants.extend(variant.map(|variant| (results.len(), variant)));
                    Ok(result)
                }
                (Ok(()), Some(at)) => self.earlier_config(&state, name, *at, deadline).await,
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
        let may_compress = names.iter().zip(&results).all(|(name, result)| {
            matches!(result, ReadResult::Refused(_))
                || state.definition(&name.definition).is_some_and(|found| !found.may_have_secrets())
        });
        let mut bulk = BulkRead {
            results,
            variants,
            redacted: RedactedPlaces::default(),
            revision: at.unwrap_or_else(|| state.revision()),
            state_revision: state.revision(),
            reservation,
            may_compress,
        };
        if !principal.is_unbounded() {
            Box::pin(self.redact_bulk(principal, &state, &request, &mut bulk)).await?;
        }
        Ok(bulk)
    }

    /// Names the requested definitions in the audit log. A line has a limited number of them, so those whose reads are
    /// recorded come first. Otherwise a client could hide such a read by naming other definitions before it.
    pub(super) fn name_in_audit_log<'a>(&self, definitions: impl Iterator<Item = &'a str> + Clone) {
        let audit = &self.cx.audit;
        if audit.has_reads() {
            definitions.clone().filter(|one| audit.records_reads_of(Some(one))).for_each(name_read);
        }
        definitions.for_each(name_read);
    }

    /// Rejects a response that is larger than a response may be, whatever else is in flight.
    fn check_answer(&self, bytes: u64) -> Result<(), Refusal> {
        let max = self.cx.memory_budget.answer_max();
        if bytes <= max {
            return Ok(());
        }
        let msg = format!(
            "the configs have at least {bytes} bytes, more than the {max} that a response may have: request fewer"
        );
        Err(Invalid::from(Violation::at(vec!["body".into(), "configs".into()], msg)).into())
    }

    /// A config at an earlier revision. Fails if its history can't be read in time.
    async fn earlier_config(
        &self,
        state: &Arc<State>,
        name: &BulkConfig,
        at: Revision,
        deadline: Instant,
    ) -> Result<ReadResult, Refusal> {
        let name = ConfigName { definition: &name.definition, key: &name.key };
        let read = self.history.config_as_of(state, name, at, "body");
        let Ok(found) = timeout_at(deadline, read).await else {
            return Err(Refusal::Unavailable("the configs were not read from the history in time".into()));
        };
        match found {
            Ok(config) => Ok(ReadResult::Found(config)),
            Err(refusal @ (Refusal::NotThere(_) | Refusal::DefinitionNotThere(_) | Refusal::Rejected(_))) => {
                Ok(ReadResult::Refused(refusal))
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Redacts the results for the principal.
    async fn redact_bulk(
        &self,
        principal: &Principal,
        state: &State,
        request: &BulkRequest,
        bulk: &mut BulkRead,
    ) -> Result<(), Refusal> {
        let mut to_redact: Vec<(usize, Redaction, Arc<Config>)> = Vec::new();
        for (index, (name, result)) in request.configs.iter().zip(&bulk.results).enumerate() {
            let ReadResult::Found(config) = result else { continue };
            let at = request.at.unwrap_or(Revision::MAX);
            let redaction = self.redactor.redaction(principal, state, &name.definition, at).await?;
            if !redaction.is_nothing() {
                to_redact.push((index, redaction, Arc::clone(config)));
            }
        }
        if to_redact.is_empty() {
            return Ok(());
        }
        let (configs, paths) = self.redactor.redact_each(to_redact).await?;
        for (index, config) in configs {
            if let Some(result) = bulk.results.get_mut(index) {
                *result = ReadResult::Found(config);
            }
        }
        bulk.redacted = paths;
        Ok(())
    }
}

/// A config of the current state as a reader sees it, and the change request whose candidate it is, if it is one.
fn current_config(
    state: &State,
    name: &BulkConfig,
    reader: Option<&Reader>,
) -> (ReadResult, Option<Variant>) {
    let Some(found) = state.definition(&name.definition) else {
        return (ReadResult::Refused(Rejection::DefinitionNotFound.into()), None);
    };
    let Some(config) = found.config(&name.key) else {
        return (ReadResult::Refused(Rejection::ConfigNotFound.into()), None);
    };
    match state.seen_by(found.definition.id, config, reader) {
        None => (ReadResult::Found(Arc::clone(config)), None),
        Some(SeenConfig { variant, config }) => (ReadResult::Found(config), Some(variant)),
    }
}
