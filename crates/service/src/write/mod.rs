//! Decides a write: on this node when it leads, through the leader when it does not, and through changes of the
//! leader until the time is up.
//!
//! ```text
//! write ─ intake ─┬─ decide (this node leads): locks → prepare → propose → verdict
//!                 └─ forward (another node leads): one call, whose answer is an attempt as well
//! ```
//!
//! | to find | look in |
//! |---|---|
//! | validation of a write against a state, in the contract's order | `prepare` |
//! | what a preparation may cost, and on which threads it runs | `budget` |
//! | what a transaction rests on: conditions, checks and reads | `transaction` |
//! | compiled schemas | `validators` |
//! | in whose name a write is made; changes of the access keys | `access` |
//! | several writes as one | `batch` |
//! | what a refusal may say to a caller who may not read | `conceal` |
//! | a patch, and the content that its answer shows | `patch` |
//! | the order of writes that are computed from the same record | `record_locks` |
//! | another schema or other unique paths, which all configs must fit | `redefine`, `config_check`, `config_scan`, `write_barrier` |
//! | the answer without storing anything | `dry_run` |
//! | how many requests with an idempotency key one access key may make | `keyed_writes` |
//! | an earlier revision written again | `rollback` |
//! | secret values in what a caller writes, and in what they are answered | `secrets` |
//! | writes that other nodes forward to this one | `forwarded` |
//!
//! **Invariants:** an attempt that certainly came to nothing may be repeated. An attempt whose outcome is unknown is
//! repeated only with an idempotency key, by which the log decides both as one. A refusal that no log entry decided
//! rests on a read, so it is confirmed at a read index before it is answered: no caller is refused because of a state
//! that a newer leader has replaced.
//!
//! What few writes come to is awaited in a box: the future of a write has the space of all that it awaits in place, and
//! is made, moved and freed for each write.

pub(super) mod access;
pub(super) mod batch;
mod conceal;
mod config_check;
pub(super) mod config_scan;
mod dry_run;
pub(super) mod forwarded;
pub(super) mod keyed_writes;
mod patch;
mod prepare;
pub(super) mod record_locks;
pub(super) mod redefine;
pub(super) mod rollback;
pub(super) mod secrets;
pub(super) mod transaction;
pub(super) mod write_barrier;

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Semaphore,
    time::{Instant, timeout, timeout_at},
};

use super::budget::{Budget, may_be_inline, weight_of};
use super::{
    audit,
    clock::Clock,
    context::Context,
    cpu_pool::Cancel,
    disk_space::DiskSpace,
    forward::Forwarder,
    freshness::Freshness,
    history::HistoryReader,
    origin::key_tag,
    redaction::Redactor,
    request::{Caller, Decision, Effect, Refusal, Target, Write, WriteRequest, Written},
    retry::{Attempt, AttemptError, Leader, OnUnknown, Retry, confirm_leadership},
    schemas::Schemas,
};
use access::{Judged, judge};
use conceal::concealed;
use concord_consensus::Consensus;
use concord_model::{
    access_key::KeyUse,
    command::{Applied, Command, Outcome, Verdict},
    record::Revision,
    redaction::RedactedPlaces,
    time::Timestamp,
};
use concord_state::State;
use config_check::{needs_config_check, set_configs_read};
use patch::{content_at, lock_set};
use prepare::{Preparation, Prepared, check_intake, prepare};

/// How often a write is prepared because the definition changed in the meantime. Each time another write was decided,
/// so only a storm of changes to one definition exhausts this.
const PREPARATIONS_MAX: u32 = 16;
/// How long a node waits until it has applied a write that the leader decided.
const APPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// A write with less time left is not proposed: some rounds of busy disks.
const DECISION_TIME: Duration = Duration::from_millis(100);

/// Decides writes, here or through the leader.
#[derive(Debug)]
pub struct Writes {
    pub(crate) cx: Arc<Context>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) disk_space: Arc<DiskSpace>,
    pub(crate) schemas: Arc<Schemas>,
    pub(crate) freshness: Arc<Freshness>,
    pub(crate) redactor: Arc<Redactor>,
    pub(crate) history: Arc<HistoryReader>,
    pub(crate) forwarder: Forwarder,
    /// One permit for each write in progress.
    pub(crate) admission: Semaphore,
    pub(crate) record_locks: record_locks::RecordLocks,
    pub(crate) keyed_writes: keyed_writes::KeyedWrites,
    pub(crate) write_barriers: Arc<write_barrier::WriteBarriers>,
}

impl Writes {
    /// Carries a write out: success means that it is durable on a majority.
    ///
    /// # Errors
    /// Why it was refused; see [`Refusal`].
    pub async fn write(self: &Arc<Self>, caller: Caller, write: Write) -> Result<Written, Refusal> {
        audit::name(&write);
        let _permit = self.admission.try_acquire().map_err(|_| Refusal::Overloaded)?;
        caller.principal.authorize_write(&write)?;
        check_intake(&write, self.cx.limits())?;
        self.check_disk(&write)?;
        let consensus = self.cx.consensus_or_refusal()?;
        let deadline = Instant::now() + self.time_for(&write);
        let request = Arc::new(WriteRequest { caller, write });
        let retry = Retry::until(deadline, on_unknown(&request.caller), "no leader took the request in time");
        let concealed =
            |refusal: Refusal| concealed(refusal.answered(), &request.caller.principal, &request.write);
        let decided = retry.run(consensus, |deadline| self.attempt(consensus, &request, deadline)).await;
        let Decision { outcome, content } = decided.map_err(concealed)?;
        let applied = outcome.map_err(|rejection| concealed(rejection.into()))?;
        let revision = applied.revision;
        // Callers read their own writes on this node. Where that takes too long, the write succeeds all the same.
        let _late = timeout(APPLY_TIMEOUT, consensus.wait_applied(revision)).await.is_err();
        if request.caller.dry_run {
            return Ok(self.shown(&request, Written::new(applied, revision, true, content)).await);
        }
        let state = consensus.state();
        let mut content = content.or_else(|| content_at(&state, &request.write, revision));
        if content.is_none()
            && request.write.effect() == Effect::Compute
            && let Target::Config { definition, key } = request.write.target()
        {
            // The record was written again since: the retained history has the content that this request gave it.
            let earlier = Box::pin(self.history.config_written_at(definition, key, revision)).await;
            content = earlier.ok().map(|config| Arc::clone(&config.data));
        }
        Ok(self.shown(&request, Written::new(applied, state.revision(), false, content)).await)
    }

    /// The result of a write as its caller is shown it.
    async fn shown(&self, request: &WriteRequest, mut written: Written) -> Written {
        if let Some(content) = written.content.take() {
            let (principal, definition) = (&request.caller.principal, request.write.definition());
            let of = (definition, written.applied.revision);
            let (content, redacted) = Box::pin(self.redactor.shown_data(principal, of, content)).await;
            (written.content, written.redacted) = (Some(content), redacted);
        }
        written
    }

    /// Refuses writes that need space on the disk while the reserve is used up.
    fn check_disk(&self, write: &Write) -> Result<(), Refusal> {
        if write.is_removal() { self.disk_space.check_waiting_changes() } else { self.disk_space.check() }
    }

    async fn attempt(
        self: &Arc<Self>,
        consensus: &Consensus,
        request: &Arc<WriteRequest>,
        deadline: Instant,
    ) -> Attempt<Decision> {
        match self.cx.known_leader(consensus)? {
            Leader::ThisNode => self.decide(consensus, request, deadline).await,
            Leader::Other(leader) => self.forwarder.forward(consensus, request, &leader, deadline).await,
        }
    }

    /// Decides a write on this node, which leads or did so a moment ago.
    async fn decide(
        self: &Arc<Self>,
        consensus: &Consensus,
        request: &Arc<WriteRequest>,
        deadline: Instant,
    ) -> Attempt<Decision> {
        if request.caller.dry_run {
            return Box::pin(self.dry_run(consensus, request, deadline)).await;
        }
        let locks = &self.record_locks;
        let is_computed = request.write.is_computed();
        let needed = if is_computed || locks.any_held() { lock_set(&request.write) } else { <_>::default() };
        self.clock.clock_set(deadline).await;
        let Some(_locks) = locks.acquire(needed, deadline).await else {
            return retry("other writes of this config were decided first, and the time was up");
        };
        // One that was decided before is answered, however many its key has made.
        let (mut check, mut is_counted) = (None, false);
        for _ in 0..PREPARATIONS_MAX {
            let Ok(_admitted) = timeout_at(deadline, self.write_barriers.admit(&request.write)).await else {
                return retry("the schema of the definition is being changed");
            };
            let (prepared, key) = self.prepare_confirmed(consensus, request, deadline).await?;
            let (mut command, definition_read) = match prepared {
                Prepared::Propose { command, definition_read } => (command, definition_read),
                Prepared::Known(outcome) => return Ok(remembered(consensus, request, outcome)),
                Prepared::Read(applied) => return Ok(transaction::answered(applied)),
            };
            if needs_config_check(&command) {
                let check = check.get_or_insert_with(|| self.new_config_check(request));
                let made = (&command, definition_read);
                match Box::pin(self.check_configs(consensus, check, made, deadline)).await? {
                    Some(read) => set_configs_read(&mut command, read),
                    None => continue,
                }
            }
            let content = if is_computed { content_of(&command) } else { None };
            if !std::mem::replace(&mut is_counted, true) {
                self.check_keyed(&request.caller)?;
            }
            if Instant::now() + self.decision_time() >= deadline {
                // If it were proposed now, its outcome would hardly be known in time.
                return retry("the time was up before the write was proposed");
            }
            let at = self.clock.stamp(&consensus.state()).await;
            check_room(&consensus.state(), &request.caller, at)?;
            let proposal = request.proposal(at, command, definition_read, key);
            match timeout_at(deadline, consensus.write(proposal)).await {
                Err(_) => {
                    let text = "the write was proposed, but not decided in time";
                    return Err(AttemptError::Unknown(text.into()));
                }
                // Another copy of a request with an idempotency key may have been decided, computed from another
                // record. Then only the state knows the content.
                Ok(Ok(Verdict::Decided(outcome))) if request.caller.idempotency_key.is_some() => {
                    return Ok(remembered(consensus, request, outcome));
                }
                Ok(Ok(Verdict::Decided(outcome))) => return Ok(Decision::new(outcome, content)),
                Ok(Ok(Verdict::Stale)) => {}
                Ok(Err(error)) => return Err(error.into()),
            }
        }
        Err(AttemptError::Refused(Refusal::Unavailable(format!(
            "what it rests on changed {PREPARATIONS_MAX} times while the write was prepared"
        ))))
    }

    /// Refuses a request with an idempotency key of a stored key that has made as many as it may.
    fn check_keyed(&self, caller: &Caller) -> Attempt<()> {
        let key = caller.idempotency_key.and_then(|_| key_tag(&caller.principal));
        if key.is_none_or(|key| self.keyed_writes.count(key)) {
            return Ok(());
        }
        let text = "this access key has made as many requests with an idempotency key as one key may: wait, or send without one";
        Err(AttemptError::Refused(Refusal::LimitReached(text.into())))
    }

    /// What a decision may take while the disks are busy; a small part of a short time for writes.
    fn decision_time(&self) -> Duration {
        DECISION_TIME.min(self.cx.options.write_timeout / 10)
    }

    /// Prepares against the applied state; a refusal is confirmed at a read index.
    async fn prepare_confirmed(
        self: &Arc<Self>,
        consensus: &Consensus,
        request: &Arc<WriteRequest>,
        deadline: Instant,
    ) -> Attempt<(Prepared, Option<KeyUse>)> {
        let state = consensus.state();
        let revision = state.revision();
        let first = match self.prepare(state, request, deadline).await {
            // It says nothing about the state, and nothing was proposed.
            Err(refusal @ Refusal::Unavailable(_)) => return Err(refusal.into()),
            // It rests on a read, as a refusal does.
            first @ (Ok((Prepared::Read(_), _)) | Err(_)) => first,
            Ok(prepared) => return Ok(prepared),
        };
        Box::pin(confirm_leadership(consensus, deadline)).await?;
        let state = consensus.state();
        let confirmed = if state.revision() == revision {
            // It is the state that the first answer rests on: preparing again would only cost as much again.
            first
        } else {
            self.prepare(Arc::clone(&state), request, deadline).await
        };
        match confirmed {
            Ok(prepared) => Ok(prepared),
            Err(refusal) => {
                let proposed = transaction::remembered(request, refusal)?;
                let Judged { key, .. } = judge(&state, request, || self.clock.log_time(&state))?;
                Ok((proposed, key))
            }
        }
    }

    /// Judges in whose name a write is made, and prepares it: at once if that is cheap, else in the pool for long work,
    /// until the deadline at most.
    async fn prepare(
        self: &Arc<Self>,
        state: Arc<State>,
        request: &Arc<WriteRequest>,
        deadline: Instant,
    ) -> Result<(Prepared, Option<KeyUse>), Refusal> {
        let Judged { principal, key } = judge(&state, request, || self.clock.log_time(&state))?;
        if may_be_inline(&request.write) {
            let found = state.definition(request.write.definition());
            let budget = Budget::inline();
            let (validators, limits) = (&self.schemas.validators, self.cx.limits());
            let with = Preparation { validators, limits, budget: &budget, principal: &principal };
            let prepared = prepare(&state, found, request, with);
            if !budget.is_abandoned() {
                return prepared.map(|prepared| (prepared, key));
            }
        }
        let weight = weight_of(&request.write);
        let (this, request) = (Arc::clone(self), Arc::clone(request));
        let work = move |cancel: &Cancel| {
            let found = state.definition(request.write.definition());
            let budget = Budget::in_pool(&request.write, cancel.clone());
            let (validators, limits) = (&this.schemas.validators, this.cx.limits());
            let with = Preparation { validators, limits, budget: &budget, principal: &principal };
            prepare(&state, found, &request, with)
        };
        let prepared = Box::pin(self.cx.cpu_pool.run(weight, deadline, work)).await?;
        prepared.map(|prepared| (prepared, key))
    }
}

impl Written {
    fn new(applied: Applied, revision: Revision, dry_run: bool, content: Option<Arc<str>>) -> Self {
        Self { applied, revision, dry_run, content, redacted: RedactedPlaces::default() }
    }
}

fn on_unknown(caller: &Caller) -> OnUnknown {
    match (caller.dry_run, caller.idempotency_key) {
        (true, _) => OnUnknown::Ignore,
        (false, Some(_)) => OnUnknown::Repeat,
        (false, None) => OnUnknown::Stop,
    }
}

/// Refuses a request with an idempotency key while its outcome could be remembered only in place of one that is needed.
fn check_room(state: &State, caller: &Caller, at: Timestamp) -> Attempt<()> {
    if caller.idempotency_key.is_none() || state.has_room_to_remember(at) {
        return Ok(());
    }
    let text = format!(
        "the cluster remembers {} recent requests with an idempotency key, the most that it can: wait, or send without one",
        state.request_count()
    );
    Err(AttemptError::Refused(Refusal::LimitReached(text)))
}

fn retry<T>(reason: &str) -> Attempt<T> {
    Err(AttemptError::Retry(reason.into()))
}

/// A decision that was made before, or may have been, with the content that it gave its record if the state still
/// knows it.
fn remembered(consensus: &Consensus, request: &WriteRequest, outcome: Outcome) -> Decision {
    let content = match &outcome {
        Ok(applied) => content_at(&consensus.state(), &request.write, applied.revision),
        Err(_) => None,
    };
    Decision::new(outcome, content)
}

/// The content that a command writes.
fn content_of(command: &Command) -> Option<Arc<str>> {
    match command {
        Command::WriteConfig { data, .. } => Some(Arc::clone(data)),
        Command::CreateDefinition { .. }
        | Command::SetIndexes { .. }
        | Command::DeleteDefinition { .. }
        | Command::DeleteConfig { .. }
        | Command::Compact { .. }
        | Command::RaiseFeatureLevel { .. }
        | Command::Forget { .. }
        | Command::Access(_)
        | Command::SetSchema { .. }
        | Command::SetUnique { .. }
        | Command::BuildIndex { .. }
        | Command::Batch(_)
        | Command::Transaction(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Principal;
    use concord_model::command::IdempotencyKey;

    #[test]
    fn only_a_write_that_can_not_be_stored_twice_is_repeated() {
        let caller = |key: bool, dry_run| Caller {
            principal: Principal::root(),
            reason: None,
            idempotency_key: key.then_some(IdempotencyKey { id: [1; 16], fingerprint: [1; 16] }),
            dry_run,
        };
        for (key, dry_run, expected) in [
            (false, false, OnUnknown::Stop),
            (true, false, OnUnknown::Repeat),
            (false, true, OnUnknown::Ignore),
            (true, true, OnUnknown::Ignore),
        ] {
            let caller = caller(key, dry_run);
            assert_eq!(on_unknown(&caller), expected, "{caller:?}");
        }
    }
}
