//! Decides a write: on this node when it leads, through the leader when it does not, and through changes of the leader
//! until the deadline.
//!
//! ```text
//! write ─ admission ─┬─ decide (this node leads): locks → prepare → propose → verdict
//!                    └─ forward (another node leads): one RPC, whose result is an attempt as well
//! ```
//!
//! | topic | file |
//! |---|---|
//! | validation of a write against a state, in the contract's order | `prepare` |
//! | how many writes are in progress, in all and of one key | `admission` |
//! | authorization of a write; changes of the access keys | `access` |
//! | idempotent retries | `idempotency` |
//! | several writes as one | `batch` |
//! | conditions, checks and reads | `transaction` |
//! | patches, and the content in their responses | `patch` |
//! | secret values in the data that a client writes | `secrets` |
//! | the order of writes that are computed from the same record | `record_locks` |
//! | a new schema or new unique paths, which all configs must satisfy | `redefine`, `config_check`, `config_scan`, `write_barrier` |
//! | dry runs | `dry_run` |
//! | rollbacks | `rollback` |
//! | undoing the deletion of a definition | `undelete` |
//! | changes of environments, and the writes that they refuse | `environment` |
//! | identity providers, roles, sessions | `identity` |
//! | change requests: editions, votes, the write that applies one; bypasses | `change` |
//! | what a refusal tells a client that may not read | `conceal` |
//! | writes that other nodes forward to this one | `forwarded` |
//!
//! **Invariants:** an attempt that certainly had no effect may be repeated. An attempt whose outcome is unknown is
//! repeated only with an idempotency key, by which the log decides both as one. A refusal that no log entry decided
//! rests on a read, so it is confirmed at a read index first: no client is refused because of a state that a newer
//! leader has replaced.
//!
//! Futures that only few writes await are boxed. The future of a write has space for everything that it awaits in
//! place, and that space is allocated, moved and freed for each write.

mod access;
pub(super) mod admission;
pub(super) mod batch;
mod change;
mod conceal;
mod config_check;
pub(super) mod config_scan;
mod dry_run;
pub(super) mod environment;
pub(super) mod forwarded;
pub(super) mod idempotency;
mod identity;
mod patch;
mod prepare;
pub(super) mod record_locks;
mod redefine;
pub(super) mod rollback;
mod secrets;
#[cfg(test)]
pub(crate) mod testing;
pub(super) mod transaction;
pub(super) mod undelete;
mod write_barrier;

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    audit,
    budget::{Budget, may_be_inline, weight_of},
    clock::Clock,
    context::Context,
    cpu_pool::Cancel,
    disk_space::DiskSpace,
    forward::Forwarder,
    freshness::Freshness,
    history::HistoryReader,
    login_pace::LoginPace,
    redaction::Redactor,
    request::{
        Caller, ChangeWrite, DecidedWrite, Decision, Effect, IdentityWrite, Refusal, Target, Transaction,
        Write, WriteRequest, check_words,
    },
    retry::{Attempt, AttemptError, Leader, Retry, confirm_leadership},
    schemas::Schemas,
    slowness::{SlowWrites, WriteClock},
};
use access::{Authorized, authorize};
use admission::WriteAdmission;
use change::Used;
use conceal::concealed;
use concord_consensus::Consensus;
use concord_model::{
    access_key::Author,
    command::{Applied, Verdict},
    feature::LEVEL_MIN,
    limits::REASON_BYTES_MAX,
};
use concord_state::State;
use config_check::{needs_config_check, set_configs_read};
use environment::check_environments;
use idempotency::{KeyedWrites, check_space, decided_before, on_unknown, rejecting_command, stored_decision};
use patch::{content_at, content_of};
use prepare::{Prepared, check_intake, prepare};
use record_locks::{LockSet, RecordLocks};
use write_barrier::WriteBarriers;

/// How often a write is prepared because the definition changed in the meantime. Each time another write was decided,
/// so only very frequent changes of one definition exhaust this.
const PREPARATIONS_MAX: u32 = 16;
/// How long a node waits until it has applied a write that the leader decided.
const APPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// A write with less time left is not proposed: a few fsyncs of busy disks.
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
    pub(crate) admission: WriteAdmission,
    pub(crate) record_locks: RecordLocks,
    pub(crate) keyed_writes: KeyedWrites,
    pub(crate) write_barriers: Arc<WriteBarriers>,
    pub(crate) slow: SlowWrites,
    pub(crate) logins: Arc<LoginPace>,
}

impl Writes {
    /// Carries out a write: success means that it is durable on a majority.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn write(
        self: &Arc<Self>,
        caller: Caller,
        write: Write,
    ) -> BoxFuture<'_, Result<DecidedWrite, Refusal>> {
        Box::pin(self.run_to_outcome(caller, write))
    }

    async fn run_to_outcome(self: &Arc<Self>, caller: Caller, write: Write) -> Result<DecidedWrite, Refusal> {
        audit::name(&write);
        let _permit = self.admission.admit(&caller.principal)?;
        caller.principal.authorize_write(&write)?;
        if caller.bypass.is_some() {
            caller.principal.authorize_bypass(&write)?;
            check_words("reason", caller.reason.as_deref().unwrap_or_default(), 1..=REASON_BYTES_MAX)?;
        }
        check_intake(&write, self.cx.limits())?;
        self.check_disk(&write)?;
        let consensus = self.cx.consensus_or_refusal()?;
        if write.feature_level() > LEVEL_MIN {
            Box::pin(self.freshness.expect_level(write.feature_level())).await?;
        }
        let deadline = Instant::now() + self.time_for(&write);
        let request = Arc::new(WriteRequest::new(caller, write));
        let retry = Retry::until(deadline, on_unknown(&request.caller), "no leader took the request in time");
        let concealed =
            |refusal: Refusal| concealed(refusal.answered(), &request.caller.principal, &request.write);
        let decided = retry.run(consensus, |deadline| self.attempt(consensus, &request, deadline)).await;
        let Decision { outcome, content } = decided.map_err(concealed)?;
        let applied = outcome.map_err(|rejection| concealed(rejection.into()))?;
        let revision = applied.revision;
        // What a node writes itself belongs to no key.
        if !request.caller.dry_run && !request.caller.principal.is_cluster() {
            self.cx.usage.written(&request.caller.principal.id, &request.write);
        }
        // Clients read their own writes on this node. If that takes too long, the write succeeds all the same.
        let _late = timeout(APPLY_TIMEOUT, consensus.wait_applied(revision)).await.is_err();
        if request.caller.dry_run {
            return Ok(self.shown(&request, DecidedWrite::new(applied, revision, true, content)).await);
        }
        let state = consensus.state();
        let mut content = content.or_else(|| content_at(&state, &request.write, revision));
        if content.is_none()
            && request.write.effect() == Effect::Compute
            && let Target::Config { definition, key } = request.write.target()
        {
            // The record was written again since. The history has the content that this request gave it.
            let earlier = Box::pin(self.history.config_written_at(definition, key, revision)).await;
            content = earlier.ok().map(|config| Arc::clone(&config.data));
        }
        Ok(self.shown(&request, DecidedWrite::new(applied, state.revision(), false, content)).await)
    }

    /// The result of a write as its client is shown it.
    async fn shown(&self, request: &WriteRequest, mut written: DecidedWrite) -> DecidedWrite {
        if let Some(content) = written.content.take() {
            let (principal, definition) = (&request.caller.principal, request.write.definition());
            let at = written.applied.revision;
            let shown = self.redactor.shown_data(principal, definition, at, content);
            let (content, redacted) = Box::pin(shown).await;
            (written.content, written.redacted) = (Some(content), redacted);
        }
        written
    }

    /// Refuses writes that need space on the disk while the reserve is used up.
    fn check_disk(&self, write: &Write) -> Result<(), Refusal> {
        // What ends a rollout that does harm must not wait for space, and is done once for each.
        if write.is_removal() || write.change().is_some_and(ChangeWrite::is_stop) {
            return self.disk_space.check_waiting_changes();
        }
        match write.environment().filter(|write| write.has_freeze()) {
            Some(freeze) => self.disk_space.check_incident(freeze.name()),
            None => self.disk_space.check(),
        }
    }

    async fn attempt(
        self: &Arc<Self>,
        consensus: &Consensus,
        request: &Arc<WriteRequest>,
        deadline: Instant,
    ) -> Attempt<Decision> {
        match self.cx.known_leader(consensus)? {
            Leader::ThisNode => self.decide(consensus, request, deadline).await,
            Leader::Other(leader) => {
                let begun = Instant::now();
                let decided = self.forwarder.forward(consensus, request, &leader, deadline).await;
                if is_decided(&decided) {
                    self.slow.note_forwarded(begun, leader.id);
                }
                decided
            }
        }
    }

    /// Decides a write on this node, which leads or did so a moment ago.
    async fn decide(
        self: &Arc<Self>,
        consensus: &Consensus,
        request: &Arc<WriteRequest>,
        deadline: Instant,
    ) -> Attempt<Decision> {
        if request.write.change().is_some_and(ChangeWrite::is_of_records) {
            return Box::pin(self.decide_edition(consensus, request, deadline)).await;
        }
        if request.caller.dry_run {
            return Box::pin(self.dry_run(consensus, request, deadline)).await;
        }
        if let Some(IdentityWrite::FetchKeys(provider)) = request.write.identity() {
            self.logins.want(*provider);
        }
        let mut clock = WriteClock::start();
        let decided = self.decide_timed(consensus, request, deadline, &mut clock).await;
        self.slow.note(&clock, is_decided(&decided));
        decided
    }

    /// Decides the write of the operations of a change request that is to be applied, or of what takes it back.
    pub(super) async fn decide_edition(
        self: &Arc<Self>,
        consensus: &Consensus,
        request: &Arc<WriteRequest>,
        deadline: Instant,
    ) -> Attempt<Decision> {
        let inner = match self.using(consensus, request, deadline).await? {
            Used::Write(inner) => Arc::from(inner),
            Used::Decided(outcome) => return Ok(Decision::new(outcome, None)),
            Used::Begun(applied) => return self.decide_begun(consensus, request, applied, deadline).await,
        };
        let mut clock = WriteClock::start();
        let decided = self.decide_timed(consensus, &inner, deadline, &mut clock).await;
        self.slow.note(&clock, is_decided(&decided));
        let is_refused = match &decided {
            Ok(decision) => decision.outcome.is_err(),
            Err(AttemptError::Refused(_)) => true,
            Err(AttemptError::Retry(_) | AttemptError::Unknown(_) | AttemptError::Begun(_)) => false,
        };
        if !is_refused {
            return decided;
        }
        // Another client may have done it in between.
        match self.using(consensus, request, deadline).await {
            Ok(Used::Decided(outcome)) => Ok(Decision::new(outcome, None)),
            Ok(Used::Begun(applied)) => self.decide_begun(consensus, request, applied, deadline).await,
            Ok(Used::Write(_)) | Err(_) => decided,
        }
    }

    /// Decides an apply of a change request that was left to the cluster before, or whose rollout was begun: a success. The
    /// log stores it for an idempotency key, because the change request may be withdrawn before a retry.
    async fn decide_begun(
        self: &Arc<Self>,
        consensus: &Consensus,
        request: &Arc<WriteRequest>,
        applied: Applied,
        deadline: Instant,
    ) -> Attempt<Decision> {
        if request.caller.idempotency_key.is_none() {
            return Ok(Decision::new(Ok(applied), None));
        }
        let nothing = Write::Transaction(Transaction::default());
        let storing = Arc::new(WriteRequest::new(request.caller.clone(), nothing));
        self.decide_timed(consensus, &storing, deadline, &mut WriteClock::start()).await
    }

    /// What a request to apply a change request, or to take it back, is. It rests on a state that was confirmed at a read
    /// index.
    async fn using(
        self: &Arc<Self>,
        consensus: &Consensus,
        request: &Arc<WriteRequest>,
        deadline: Instant,
    ) -> Attempt<Used> {
        confirm_leadership(consensus, deadline).await?;
        let state = consensus.state();
        if let Some(outcome) = decided_before(&state, &request.caller) {
            return Ok(Used::Decided(outcome));
        }
        let now = self.clock.log_time(&state);
        let Authorized { principal, .. } = authorize(&state, &self.cx.policies, request, || now)?;
        let request = Arc::clone(request);
        // Some megabytes of operations may have to be parsed.
        Ok(self.cx.run_long(move || change::using(&state, &request, (&principal, now))).await??)
    }

    /// Whether a state lets a change request be applied or taken back, as far as its preparation tells.
    ///
    /// # Errors
    /// Why it does not.
    pub(super) async fn try_edition(
        self: &Arc<Self>,
        state: &Arc<State>,
        request: &Arc<WriteRequest>,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let now = self.clock.log_time(state);
        let Authorized { principal, .. } = authorize(state, &self.cx.policies, request, || now)?;
        let (of, found) = (Arc::clone(state), Arc::clone(request));
        let using = self.cx.run_long(move || change::using(&of, &found, (&principal, now))).await??;
        let Used::Write(inner) = using else { return Ok(()) };
        self.prepare(Arc::clone(state), &Arc::from(inner), deadline).await.map(drop)
    }

    /// The same, with the parts of its time.
    async fn decide_timed(
        self: &Arc<Self>,
        consensus: &Consensus,
        request: &Arc<WriteRequest>,
        deadline: Instant,
        clock: &mut WriteClock,
    ) -> Attempt<Decision> {
        let locks = &self.record_locks;
        let is_computed = request.write.is_computed();
        let needed =
            if is_computed || locks.any_held() { LockSet::of(&request.write) } else { LockSet::default() };
        self.clock.clock_set(deadline).await;
        let Some(_locks) = locks.acquire(needed, deadline).await else {
            return retry("other writes of the same config took until the deadline");
        };
        clock.has_locks();
        // Counted after the first preparation: a request that was decided before gets its stored response, whatever the
        // count is.
        let (mut check, mut is_counted) = (None, false);
        for _ in 0..PREPARATIONS_MAX {
            let Ok(_admitted) = timeout_at(deadline, self.write_barriers.admit(&request.write)).await else {
                return retry("the schema of the definition is being changed");
            };
            let begun = Instant::now();
            let (prepared, author) = self.prepare_confirmed(consensus, request, deadline).await?;
            let mut prepared = match prepared {
                Prepared::Propose(prepared) => prepared,
                Prepared::Known(outcome) => {
                    return Ok(stored_decision(&consensus.state(), request, outcome));
                }
                Prepared::Read(applied) => return Ok(Decision::new(Ok(applied), None)),
            };
            if needs_config_check(&prepared.command) {
                let check = check.get_or_insert_with(|| self.new_config_check(request));
                match Box::pin(self.check_configs(consensus, check, &prepared, deadline)).await? {
                    Some(read) => set_configs_read(&mut prepared.command, read),
                    None => continue,
                }
            }
            clock.has_prepared(begun);
            let content = if is_computed { content_of(&prepared.command) } else { None };
            if !std::mem::replace(&mut is_counted, true) {
                self.keyed_writes.count(&request.caller)?;
                if let Some(write) = request.write.identity() {
                    self.logins.count(write)?;
                }
            }
            if Instant::now() + self.decision_time() >= deadline {
                // If it were proposed now, its outcome would probably not be known in time.
                return retry("the time was up before the write was proposed");
            }
            let at = self.clock.stamp(&consensus.state()).await;
            check_space(&consensus.state(), &request.caller, at)?;
            let proposal = request.proposal(at, prepared, author);
            let Ok((decided, times)) = timeout_at(deadline, consensus.write_timed(proposal)).await else {
                let text = "the write was proposed, but not decided in time";
                return Err(AttemptError::Unknown(text.into()));
            };
            clock.has_decided(times);
            match decided {
                // A rejection that the log has not stored says nothing of another attempt at this request.
                Ok(Verdict::Decided(Err(rejection)))
                    if request.caller.idempotency_key.is_some()
                        && decided_before(&consensus.state(), &request.caller).is_none() =>
                {
                    return Err(AttemptError::Refused(rejection.into()));
                }
                // The outcome may be that of another attempt at this request, which was computed from another record.
                // Then only the state has the content.
                Ok(Verdict::Decided(outcome)) if request.caller.idempotency_key.is_some() => {
                    return Ok(stored_decision(&consensus.state(), request, outcome));
                }
                Ok(Verdict::Decided(outcome)) => return Ok(Decision::new(outcome, content)),
                Ok(Verdict::Stale) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(AttemptError::Refused(Refusal::Unavailable(format!(
            "a definition or a config that the write rests on changed {PREPARATIONS_MAX} times while it was prepared"
        ))))
    }

    /// The time that a decision may take while the disks are busy; a small part of a short write timeout.
    fn decision_time(&self) -> Duration {
        DECISION_TIME.min(self.cx.options.write_timeout / 10)
    }

    /// Prepares against the applied state; a refusal is confirmed at a read index.
    async fn prepare_confirmed(
        self: &Arc<Self>,
        consensus: &Consensus,
        request: &Arc<WriteRequest>,
        deadline: Instant,
    ) -> Attempt<(Prepared, Author)> {
        let state = consensus.state();
        let revision = state.revision();
        let first = match self.prepare(state, request, deadline).await {
            // It does not rest on the state, so there is nothing to confirm; nothing was proposed.
            Err(refusal @ Refusal::Unavailable(_)) => return Err(refusal.into()),
            // Like a refusal, the response to a read must be confirmed.
            first @ (Ok((Prepared::Read(_), _)) | Err(_)) => first,
            Ok(prepared) => return Ok(prepared),
        };
        Box::pin(confirm_leadership(consensus, deadline)).await?;
        let state = consensus.state();
        let confirmed = if state.revision() == revision {
            // The state is the same, so another preparation would have the same result.
            first
        } else {
            self.prepare(Arc::clone(&state), request, deadline).await
        };
        match confirmed {
            Ok(prepared) => Ok(prepared),
            Err(refusal) => {
                let rejecting = rejecting_command(request, refusal)?;
                let Authorized { author, .. } =
                    authorize(&state, &self.cx.policies, request, || self.clock.log_time(&state))?;
                Ok((rejecting, author))
            }
        }
    }

    /// Authorizes and prepares a write: at once if that is cheap, else in the pool for long work, until the deadline
    /// at most.
    async fn prepare(
        self: &Arc<Self>,
        state: Arc<State>,
        request: &Arc<WriteRequest>,
        deadline: Instant,
    ) -> Result<(Prepared, Author), Refusal> {
        let now = || self.clock.log_time(&state);
        let Authorized { principal, author } = authorize(&state, &self.cx.policies, request, now)?;
        check_environments(&state, request, now)?;
        if may_be_inline(&request.write) {
            let budget = Budget::inline();
            let prepared = prepare(&state, request, self.preparation(&budget, &principal, &now));
            if !budget.is_abandoned() {
                return prepared.map(|prepared| (prepared, author));
            }
        }
        let weight = weight_of(&request.write);
        let (this, request) = (Arc::clone(self), Arc::clone(request));
        let work = move |cancel: &Cancel| {
            let budget = Budget::in_pool(&request.write, cancel.clone());
            let now = || this.clock.log_time(&state);
            prepare(&state, &request, this.preparation(&budget, &principal, &now))
        };
        let prepared = Box::pin(self.cx.cpu_pool.run(weight, deadline, work)).await?;
        prepared.map(|prepared| (prepared, author))
    }
}

/// Whether an attempt has decided its write, either way.
fn is_decided(attempt: &Attempt<Decision>) -> bool {
    match attempt {
        Ok(_) | Err(AttemptError::Refused(_)) => true,
        Err(AttemptError::Retry(_) | AttemptError::Unknown(_) | AttemptError::Begun(_)) => false,
    }
}

fn retry<T>(reason: &str) -> Attempt<T> {
    Err(AttemptError::Retry(reason.into()))
}
