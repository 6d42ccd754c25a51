//! Takes a write to its verdict: on this node when it leads, through the leader when it does not, and through
//! changes of the leader until the time is up.
//!
//! ```text
//! write ─ intake ─┬─ decide (this node leads): prepare → propose → verdict
//!                 └─ forward (another leads): one call; its answer is an Attempt as well
//! ```
//!
//! **Invariants:** a try that came to nothing for certain may be repeated. A try whose outcome is unknown is
//! repeated only with a request stamp, by which the log decides both as one; and from then on only a verdict ends
//! the uncertainty. A refusal that no entry decided rests on a read, so it is judged at a read index before it is
//! told: nobody is told of a state that a newer leader has left behind.

mod batch;
pub(in crate::service) mod config_scan;
mod dry_run;
mod patch;
pub(in crate::service) mod prepare;
pub(in crate::service) mod record_locks;
pub(in crate::service) mod redefine;
pub(in crate::service) mod validators;
pub(in crate::service) mod write_barrier;

use std::{future::Future, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{Caller, Refusal, Service, Write, Written};
use crate::{
    model::{
        command::{Applied, Command, Outcome, Verdict},
        error::Invalid,
    },
    raft::{Consensus, ReadError, WriteError},
    state::State,
};
use patch::{content_at, records};
use prepare::{Asked, Prepared, check_intake, is_long, prepare};
use record_locks::Records;
use redefine::{needs_check, set_configs_read};

/// How often a write is prepared again because its definition changed meanwhile. Each time somebody else's write
/// was decided, so only a storm of changes to one definition gets here.
const PREPARATIONS_MAX: u32 = 16;
/// How long a node waits for a write that it carried to the leader to arrive in its own state.
const CATCH_UP: Duration = Duration::from_secs(1);
/// The first pause between two tries, in milliseconds; it doubles [`PAUSE_DOUBLINGS`] times.
const PAUSE_MS: u64 = 5;
/// Up to 160 ms: a fraction of an election.
const PAUSE_DOUBLINGS: u32 = 5;

/// What one try at a write came to. Rides between nodes: new variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Attempt {
    /// The log decided.
    Decided(Outcome),
    /// Refused, certainly not applied.
    Refused(Refusal),
    /// Certainly not applied; another try may succeed.
    Later(String),
    /// It may be applied.
    Unknown(String),
    /// The log decided well, and this is the content that the leader computed.
    Made(Applied, Arc<str>),
}

impl Service {
    /// Does a write: success means that it is durable on a majority.
    ///
    /// # Errors
    /// What the write was refused with; see [`Refusal`].
    pub async fn write(&self, caller: Caller, write: Write) -> Result<Written, Refusal> {
        let _permit = self.inner.admission.try_acquire().map_err(|_| Refusal::Overloaded)?;
        check_intake(&write, self.limits())?;
        self.check_room(&write)?;
        let consensus = self.consensus_or_refusal()?;
        let deadline = Instant::now() + self.time_for(&write);
        let asked = Arc::new(Asked { caller, write });
        let (outcome, content) = self.settle(consensus, &asked, deadline).await?;
        let applied = outcome?;
        if asked.caller.dry_run {
            return Ok(Written { applied, revision: applied.revision, dry_run: true, content });
        }
        // The caller reads its own write on this node; where that takes too long it is a success all the same.
        let _late = timeout(CATCH_UP, consensus.wait_applied(applied.revision)).await.is_err();
        let state = consensus.state();
        let mut content = content.or_else(|| content_at(&state, &asked.write, applied.revision));
        if content.is_none()
            && let Write::PatchConfig { definition, key, .. } = &asked.write
        {
            // Written again since: the history has what this request made of it, for as long as it reaches.
            let was = self.config_written_at(definition, key, applied.revision).await;
            content = was.ok().map(|config| Arc::clone(&config.data));
        }
        Ok(Written { applied, revision: state.revision(), dry_run: false, content })
    }

    /// Refuses writes that need room while there is none.
    pub(super) fn check_room(&self, write: &Write) -> Result<(), Refusal> {
        if write.is_removal() { Ok(()) } else { self.inner.disk.room() }
    }

    /// Tries until there is a verdict, a refusal, or no time left.
    async fn settle(
        &self,
        consensus: &Consensus,
        asked: &Arc<Asked>,
        deadline: Instant,
    ) -> Result<(Outcome, Option<Arc<str>>), Refusal> {
        let mut pauses = Pauses::until(deadline);
        let (repeatable, dry_run) = (asked.may_repeat(), asked.caller.dry_run);
        let mut course = Course { repeatable, dry_run, ..Course::default() };
        loop {
            let attempt = match consensus.leader() {
                None => Attempt::Later("no leader is known".into()),
                Some(leader) if leader.id == self.node_id() => self.decide(consensus, asked, deadline).await,
                Some(leader) => self.forward(consensus, asked, &leader, deadline).await,
            };
            if let Some(end) = course.take(attempt) {
                return end.map(|outcome| (outcome, course.content));
            }
            if !pauses.pause(consensus.leader_changed()).await {
                return Err(course.out_of_time());
            }
        }
    }

    /// Decides a write on this node, which leads or did so a moment ago.
    pub(super) async fn decide(
        &self,
        consensus: &Consensus,
        asked: &Arc<Asked>,
        deadline: Instant,
    ) -> Attempt {
        let mut check = None;
        if asked.caller.dry_run {
            return self.try_out(consensus, asked, deadline).await;
        }
        let is_computed = asked.write.is_computed();
        let queues = &self.inner.queues;
        let needed = if is_computed || queues.any() { records(&asked.write) } else { Records::default() };
        let Some(_turn) = queues.enter(needed, deadline).await else {
            return Attempt::Later(
                "the writes of this config queue, and the time was up before its turn".into(),
            );
        };
        for _ in 0..PREPARATIONS_MAX {
            let Ok(_passed) = timeout_at(deadline, self.inner.gates.pass(&asked.write)).await else {
                return Attempt::Later("the schema of the definition is being changed".into());
            };
            let (mut command, definition_read) = match self.judge(consensus, asked, deadline).await {
                Ok(Prepared::Propose { command, definition_read }) => (command, definition_read),
                Ok(Prepared::Known(outcome)) => return recalled(consensus, asked, outcome),
                Err(attempt) => return attempt,
            };
            if needs_check(&command) {
                let check = check.get_or_insert_with(|| self.new_check(asked));
                match self.check_configs(consensus, check, definition_read, deadline).await {
                    Ok(Some(read)) => set_configs_read(&mut command, read),
                    Ok(None) => continue,
                    Err(attempt) => return attempt,
                }
            }
            let made = if is_computed { content_of(&command) } else { None };
            if Instant::now() >= deadline {
                // Proposed now, its outcome could not be told.
                return Attempt::Later("the time was up before the write was proposed".into());
            }
            let proposal = asked.proposal(command, definition_read);
            match timeout_at(deadline, consensus.write(proposal)).await {
                Err(_) => return Attempt::Unknown("the write was proposed, but not decided in time".into()),
                // Of a request that may be sent again another copy may have been decided, which was computed from
                // another record: then only the state tells.
                Ok(Ok(Verdict::Decided(outcome))) if asked.caller.request.is_some() => {
                    return recalled(consensus, asked, outcome);
                }
                Ok(Ok(Verdict::Decided(outcome))) => return decided(outcome, made),
                Ok(Ok(Verdict::Stale)) => {}
                Ok(Err(error)) => return error.into(),
            }
        }
        Attempt::Refused(Refusal::Unavailable(format!(
            "what it rests on changed {PREPARATIONS_MAX} times while the write was prepared"
        )))
    }

    /// Prepares against the applied state; a refusal is judged again at a read index.
    async fn judge(
        &self,
        consensus: &Consensus,
        asked: &Arc<Asked>,
        deadline: Instant,
    ) -> Result<Prepared, Attempt> {
        if let Ok(prepared) = self.prepare(consensus.state(), asked).await {
            return Ok(prepared);
        }
        Self::confirm_lead(consensus, deadline).await?;
        self.prepare(consensus.state(), asked).await.map_err(Attempt::Refused)
    }

    /// Makes sure that this node leads and has applied what was agreed on before.
    pub(super) async fn confirm_lead(consensus: &Consensus, deadline: Instant) -> Result<(), Attempt> {
        let confirmed = async {
            let index = consensus.read_index().await?;
            consensus.wait_applied(index).await;
            Ok::<(), ReadError>(())
        };
        match timeout_at(deadline, confirmed).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(ReadError::NotLeader(_))) => {
                Err(Attempt::Later("this node does not lead any more".into()))
            }
            Ok(Err(ReadError::NoQuorum(text))) => Err(Attempt::Later(text)),
            Err(_) => Err(Attempt::Later("a quorum did not confirm the leader in time".into())),
        }
    }

    pub(super) async fn prepare(&self, state: Arc<State>, asked: &Arc<Asked>) -> Result<Prepared, Refusal> {
        let inner = &self.inner;
        if !is_long(&state, &asked.write, &inner.validators) {
            return prepare(&state, asked, &inner.validators, self.limits());
        }
        let (service, asked) = (self.clone(), Arc::clone(asked));
        run_blocking(move || prepare(&state, &asked, &service.inner.validators, service.limits())).await?
    }

    /// Waits until this node has applied a revision.
    pub(super) async fn reach(
        consensus: &Consensus,
        revision: Revision,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        timeout_at(deadline, consensus.wait_applied(revision)).await.map_err(|_| {
            let applied = consensus.state().revision();
            Refusal::Undecided(format!("this node has applied revision {applied}, not yet {revision}"))
        })
    }
}

/// A decision that was made before, or may have been, with the content that it gave its record where the state still
/// knows it.
fn recalled(consensus: &Consensus, asked: &Asked, outcome: Outcome) -> Attempt {
    let content = match &outcome {
        Ok(applied) => content_at(&consensus.state(), &asked.write, applied.revision),
        Err(_) => None,
    };
    decided(outcome, content)
}

pub(super) fn decided(outcome: Outcome, content: Option<Arc<str>>) -> Attempt {
    match (outcome, content) {
        (Ok(applied), Some(content)) => Attempt::Made(applied, content),
        (outcome, _) => Attempt::Decided(outcome),
    }
}

/// The content that a command writes.
pub(super) fn content_of(command: &Command) -> Option<Arc<str>> {
    match command {
        Command::WriteConfig { data, .. } => Some(Arc::clone(data)),
        Command::CreateDefinition { .. }
        | Command::SetIndexes { .. }
        | Command::DeleteDefinition { .. }
        | Command::DeleteConfig { .. }
        | Command::Compact { .. }
        | Command::SetSchema { .. }
        | Command::SetUnique { .. }
        | Command::BuildIndex { .. }
        | Command::Batch(_) => None,
    }
}

/// Runs what takes long on a thread for such work.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Refusal::Internal(format!("a check ended: {error}")))
}

impl From<WriteError> for Attempt {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::NotLeader(_) => Self::Later("this node does not lead, or not yet".into()),
            WriteError::Undecided(text) => Self::Unknown(text),
            WriteError::TooLarge => Self::Refused(
                Invalid::TooLarge("the write takes more bytes than an entry of the log may".into()).into(),
            ),
        }
    }
}

/// What the tries at one write have come to so far.
#[derive(Debug, Default)]
struct Course {
    /// Whether the write bears a stamp by which the log decides its copies as one.
    repeatable: bool,
    /// Whether nothing is stored, whatever becomes of a try.
    dry_run: bool,
    /// Set once a try may have been applied.
    unknown: Option<String>,
    /// Why the last try came to nothing.
    reason: String,
    /// What the leader computed.
    content: Option<Arc<str>>,
}

impl Course {
    /// Takes what a try came to; `Some` when it is the end.
    fn take(&mut self, attempt: Attempt) -> Option<Result<Outcome, Refusal>> {
        match attempt {
            Attempt::Decided(outcome) => Some(Ok(outcome)),
            Attempt::Made(applied, content) => {
                self.content = Some(content);
                Some(Ok(Ok(applied)))
            }
            // A copy that is still under way may be applied after this refusal was judged.
            Attempt::Refused(refusal) => Some(Err(self.unknown.take().map_or(refusal, Refusal::Undecided))),
            Attempt::Unknown(text) if self.dry_run => {
                self.reason = text;
                None
            }
            Attempt::Unknown(text) if crate::sabotage::is("unknown-as-503") => {
                Some(Err(Refusal::Unavailable(text)))
            }
            Attempt::Unknown(text) if self.repeatable || crate::sabotage::is("blind-retry") => {
                self.unknown = Some(text);
                None
            }
            Attempt::Unknown(text) => Some(Err(Refusal::Undecided(text))),
            Attempt::Later(text) => {
                self.reason = text;
                None
            }
        }
    }

    fn out_of_time(self) -> Refusal {
        match self.unknown {
            Some(text) => Refusal::Undecided(text),
            None => Refusal::Unavailable(format!("no leader took the request in time: {}", self.reason)),
        }
    }
}

/// The pauses between the tries at one request: they grow, and they are drawn, so that the callers of a lost
/// leader do not all come at once.
#[derive(Debug)]
pub(super) struct Pauses {
    deadline: Instant,
    made: u32,
}

impl Pauses {
    pub(super) fn until(deadline: Instant) -> Self {
        Self { deadline, made: 0 }
    }

    /// Pauses until it is worth another try, at the latest when something `changed`; `false` when the time is up.
    pub(super) async fn pause(&mut self, changed: impl Future<Output = ()>) -> bool {
        let longest = PAUSE_MS << self.made.min(PAUSE_DOUBLINGS);
        let pause = Duration::from_millis(fastrand::u64(longest / 2..=longest));
        self.made = self.made.saturating_add(1);
        if Instant::now() + pause >= self.deadline {
            return false;
        }
        tokio::select! {
            () = sleep(pause) => {}
            () = changed => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{command::Applied, error::Rejection, time::Timestamp};

    const APPLIED: Applied = Applied { revision: 4, at: Timestamp(1), created: true };

    fn course(repeatable: bool) -> Course {
        Course { repeatable, ..Course::default() }
    }

    #[test]
    fn what_was_certainly_not_applied_is_unavailable() {
        let mut course = course(false);
        assert_eq!(course.take(Attempt::Later("lease".into())), None);
        assert!(matches!(course.out_of_time(), Refusal::Unavailable(text) if text.contains("lease")));
    }

    #[test]
    fn an_unknown_outcome_is_told_at_once_without_a_stamp() {
        let end = course(false).take(Attempt::Unknown("lost".into()));
        assert_eq!(end, Some(Err(Refusal::Undecided("lost".into()))));
    }

    #[test]
    fn unknown_stays_unknown_until_the_log_decides() {
        let refused = Attempt::Refused(Refusal::Rejected(Rejection::ConfigExists));
        let mut one = course(true);
        assert_eq!(one.take(Attempt::Unknown("lost".into())), None);
        assert_eq!(one.take(Attempt::Later("no leader".into())), None);
        assert_eq!(one.take(refused), Some(Err(Refusal::Undecided("lost".into()))));

        let mut two = course(true);
        assert_eq!(two.take(Attempt::Unknown("lost".into())), None);
        assert_eq!(two.take(Attempt::Decided(Ok(APPLIED))), Some(Ok(Ok(APPLIED))));

        let mut three = course(true);
        assert_eq!(three.take(Attempt::Unknown("lost".into())), None);
        assert_eq!(three.out_of_time(), Refusal::Undecided("lost".into()));
    }

    #[test]
    fn of_a_dry_run_nothing_is_ever_unknown() {
        let mut course = Course { repeatable: true, dry_run: true, ..Course::default() };
        assert_eq!(course.take(Attempt::Unknown("lost".into())), None);
        assert!(matches!(course.out_of_time(), Refusal::Unavailable(_)));
    }

    #[tokio::test]
    async fn pauses_end_with_the_time() {
        let mut pauses = Pauses::until(Instant::now());
        assert!(!pauses.pause(std::future::pending()).await);
        let mut pauses = Pauses::until(Instant::now() + Duration::from_secs(3600));
        assert!(pauses.pause(std::future::ready(())).await);
    }
}
