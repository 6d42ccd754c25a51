//! Environments as clients manage them: created, read, replaced, deleted.
//!
//! A client sees the environments that have a definition which it may name, whether there is such a definition or not.
//!
//! **Invariant:** an environment that a client may not see does not exist for it.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    approvers::count_without_approvers,
    clock::Clock,
    context::Context,
    cpu_pool::Weight,
    freshness::{Freshness, Made},
    request::{
        Caller, Consistency, DecidedWrite, EnvironmentRules, EnvironmentWrite, Principal, Refusal, Write,
    },
    write::{
        Writes,
        environment::{freezes_of, rules_after},
    },
};
use concord_model::{
    access_key::Verb,
    command::Expect,
    error::Rejection,
    record::Revision,
    system::{
        SystemRecord,
        environment::{Direct, Environment},
    },
    time::Timestamp,
};
use concord_state::State;

/// How many persons could approve changes, by the name of the environment.
type Approvers = BTreeMap<String, u64>;

/// Bytes of data that take as long as comparing all grants of a key with an environment: some microseconds.
const BYTES_OF_CHECK: usize = 256;

/// An environment as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentView {
    /// Its name.
    pub name: String,
    /// Whether direct changes of its definitions and configs are rejected.
    pub refuses_direct: bool,
    /// How many persons must approve a change.
    pub approvals: u8,
    /// How many persons could approve all of its changes. `None` if no approval is needed, or for a client that may not
    /// change these rules.
    pub approvers: Option<u64>,
    /// Its freezes, by their begin.
    pub freezes: Vec<FreezeView>,
    /// Until when a freeze rejects changes, if one does now.
    pub frozen_until: Option<Timestamp>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was replaced last.
    pub modified_at: Timestamp,
    /// Its revision.
    pub revision: Revision,
}

/// A freeze as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreezeView {
    /// When it begins.
    pub from: Timestamp,
    /// When it ends.
    pub until: Timestamp,
    /// Why.
    pub reason: String,
    /// The id of the access key that set it.
    pub by: String,
    /// Whether it refuses changes now.
    pub is_active: bool,
}

/// An environment that a request stored, or would have stored.
#[derive(Debug)]
pub struct StoredEnvironment {
    /// The environment.
    pub environment: EnvironmentView,
    /// Whether the request created it.
    pub is_created: bool,
    /// The write.
    pub written: DecidedWrite,
}

/// The environments of the cluster, for clients that manage them.
#[derive(Debug)]
pub struct Environments {
    cx: Arc<Context>,
    clock: Arc<Clock>,
    freshness: Arc<Freshness>,
    writes: Arc<Writes>,
}

impl Environments {
    pub(crate) fn new(
        cx: &Arc<Context>,
        clock: &Arc<Clock>,
        freshness: &Arc<Freshness>,
        writes: &Arc<Writes>,
    ) -> Self {
        let (cx, clock) = (Arc::clone(cx), Arc::clone(clock));
        Self { cx, clock, freshness: Arc::clone(freshness), writes: Arc::clone(writes) }
    }

    /// The environments that the client may see, by name, and the revision of the state that they were read from.
    ///
    /// # Errors
    /// When no state is fresh enough, or the approvers are not counted in time.
    pub async fn environments(
        &self,
        principal: &Principal,
        consistency: Consistency,
    ) -> Result<(Vec<EnvironmentView>, Revision), Refusal> {
        let state = self.freshness.view(consistency).await?;
        let now = self.clock.log_time(&state);
        let seen = state.environments().filter(|record| may_see(principal, &state, record.name.as_str()));
        let seen: Vec<&Arc<SystemRecord>> = seen.collect();
        let rules = seen.iter().filter_map(|record| Some((record.name.as_str(), record.environment()?)));
        let names = names_to_count(principal, rules);
        let approvers = self.approvers(&state, names, now).await?;
        let seen = seen.into_iter().map(|record| shown(record, &approvers, now));
        Ok((seen.collect(), state.revision()))
    }

    /// An environment, and the revision of the state that it was read from.
    ///
    /// # Errors
    /// When there is no such environment that the client may see, no state is fresh enough, or the approvers are not
    /// counted in time.
    pub async fn environment(
        &self,
        principal: &Principal,
        name: &str,
        consistency: Consistency,
    ) -> Result<(EnvironmentView, Revision), Refusal> {
        let state = self.freshness.view(consistency).await?;
        let found = state.environment(name).filter(|_| may_see(principal, &state, name));
        let found = found.ok_or(Rejection::EnvironmentNotFound)?;
        let now = self.clock.log_time(&state);
        let rules = found.environment().map(|rules| (name, rules));
        let approvers = self.approvers(&state, names_to_count(principal, rules), now).await?;
        Ok((shown(found, &approvers, now), state.revision()))
    }

    /// Creates or replaces an environment.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn put(
        &self,
        caller: Caller,
        name: String,
        rules: EnvironmentRules,
        expect: Expect,
    ) -> Result<StoredEnvironment, Refusal> {
        caller.principal.authorize_environment(Verb::Define, &name)?;
        let principal = caller.principal.clone();
        let may_be_earlier = caller.idempotency_key.is_some();
        let write = EnvironmentWrite::Put { name: name.clone(), rules: rules.clone(), expect };
        let mut written = self.writes.write(caller, Write::Environment(write)).await?;
        let state =
            self.freshness.state_after(Made { revision: written.applied.revision, may_be_earlier }).await?;
        written.revision = state.revision();
        let now = self.clock.log_time(&state);
        let found = state.environment(&name);
        if let Some(record) = found.filter(|_| !written.dry_run) {
            let rules = record.environment().map(|rules| (name.as_str(), rules));
            let approvers = self.approvers_if_in_time(&state, names_to_count(&principal, rules), now).await;
            let is_created = written.applied.has_created();
            return Ok(StoredEnvironment {
                environment: shown(record, &approvers, now),
                is_created,
                written,
            });
        }
        // Not stored, or deleted since it was: what was asked for is what it is or was.
        let at = if written.dry_run { now } else { written.applied.at };
        let (environment, text) = rules_after(found.map(|record| &**record), &rules, &principal.id, at)?;
        let created_at = found.map_or(at, |record| record.created_at);
        let names = names_to_count(&principal, [(name.as_str(), &environment)]);
        let approvers = self.approvers_if_in_time(&state, names, now).await;
        let environment = EnvironmentView {
            created_at,
            modified_at: at,
            approvers: approvers.get(&name).copied(),
            ..view(&name, &environment, &text, now)
        };
        let is_created = if written.dry_run { found.is_none() } else { written.applied.has_created() };
        Ok(StoredEnvironment { environment, is_created, written })
    }

    /// How many persons could approve the changes of each of these environments.
    async fn approvers(
        &self,
        state: &Arc<State>,
        names: Vec<String>,
        now: Timestamp,
    ) -> Result<Approvers, Refusal> {
        let keys = usize::try_from(state.access_key_count()).unwrap_or(usize::MAX);
        let bytes = keys.saturating_mul(names.len()).saturating_mul(BYTES_OF_CHECK);
        let state = Arc::clone(state);
        let work = move || {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let found = state.approvers(&names, now).into_iter();
            found.map(|(name, count)| (name.to_owned(), count)).collect()
        };
        self.cx.work(bytes, Weight::Short, self.cx.read_deadline(), work).await
    }

    /// The same for the response to a write, which must not fail any more: no numbers if they are late.
    async fn approvers_if_in_time(
        &self,
        state: &Arc<State>,
        names: Vec<String>,
        now: Timestamp,
    ) -> Approvers {
        self.approvers(state, names, now).await.unwrap_or_default()
    }

    /// Deletes an environment. Its definitions belong to the environment `default` then.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn delete(
        &self,
        caller: Caller,
        name: String,
        expect: Expect,
    ) -> Result<DecidedWrite, Refusal> {
        caller.principal.authorize_environment(Verb::Define, &name)?;
        self.writes.write(caller, Write::Environment(EnvironmentWrite::Delete { name, expect })).await
    }

    /// How many environments a freeze closes to changes now, by this node's state.
    pub(crate) fn frozen_count(&self, state: &State) -> u64 {
        let now = self.clock.log_time(state);
        let is_frozen = |record: &&Arc<SystemRecord>| frozen_until(record, now).is_some();
        state.environments().filter(is_frozen).count() as u64
    }

    /// How many environments ask for more approvals than there are persons to give them, by this node's state.
    pub(crate) fn without_approvers_count(&self, state: &State) -> u64 {
        count_without_approvers(state, self.clock.log_time(state))
    }
}

fn may_see(principal: &Principal, state: &State, name: &str) -> bool {
    principal.may_see_environment(name, state.environments().map(|record| record.name.as_str()))
}

fn frozen_until(record: &SystemRecord, now: Timestamp) -> Option<Timestamp> {
    record.environment()?.frozen_until(now, now)
}

fn shown(record: &SystemRecord, approvers: &Approvers, now: Timestamp) -> EnvironmentView {
    let rules = record.environment().expect("it was found among the environments");
    EnvironmentView {
        created_at: record.created_at,
        modified_at: record.modified_at,
        revision: record.revision,
        approvers: approvers.get(record.name.as_str()).copied(),
        ..view(record.name.as_str(), rules, &record.text, now)
    }
}

/// The environments whose approvers the client is told: those that need some, and whose rules it may make. A rejection of
/// such rules says how many there are, too.
fn names_to_count<'a>(
    principal: &Principal,
    rules: impl IntoIterator<Item = (&'a str, &'a Environment)>,
) -> Vec<String> {
    let is_told = |(name, rules): &(&str, &Environment)| {
        rules.approvals > 0 && principal.authorize_environment(Verb::Define, name).is_ok()
    };
    rules.into_iter().filter(is_told).map(|(name, _)| name.to_owned()).collect()
}

/// The rules of an environment, without the times and the revision of its record, and without its approvers.
fn view(name: &str, environment: &Environment, text: &str, now: Timestamp) -> EnvironmentView {
    let freezes = freezes_of(environment, text).into_iter().map(|(freeze, text)| FreezeView {
        from: freeze.from,
        until: freeze.until,
        reason: text.reason,
        by: text.by,
        is_active: freeze.overlaps(now, now),
    });
    EnvironmentView {
        name: name.to_owned(),
        refuses_direct: environment.direct == Direct::Refuse,
        approvals: environment.approvals,
        approvers: None,
        freezes: freezes.collect(),
        frozen_until: environment.frozen_until(now, now),
        created_at: Timestamp(0),
        modified_at: Timestamp(0),
        revision: 0,
    }
}
