//! Repeats a request until it is decided: on this node if it leads, through the leader if another node leads, and
//! through changes of the leader until the deadline.
//!
//! ```text
//! run ─ attempt ─┬─ Ok                      → the result
//!                ├─ Refused                 → the refusal
//!                ├─ Retry                   → pause (random, growing; cut short when the leader changes), then again
//!                ├─ Begun                   → again; only a decision ends the uncertainty
//!                └─ Unknown ─┬ Stop         → undecided
//!                            ├ Repeat       → again; only a decision ends the uncertainty
//!                            └ Ignore       → again
//! ```
//!
//! Writes, changes of the members and confirmations of a read all run through [`Retry::run`].
//!
//! **Invariants:** an attempt whose outcome is unknown is repeated only if a second one can do no harm. Once an
//! outcome was unknown, the request ends as *undecided* unless an attempt succeeds: a copy that is still in progress
//! may be applied after a later attempt was rejected.

use std::{future::Future, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout_at};

use super::{budget::entry_too_large, request::Refusal};
use concord_consensus::{Confirmation, Consensus, ReadError, WriteError};
use concord_model::limits::RESEND_TIME_MAX;
use concord_net::{Member, client::CallError};

/// The longest first pause between two attempts; it doubles [`PAUSE_DOUBLINGS_MAX`] times.
const FIRST_PAUSE_MS: u64 = 5;
/// Up to 160 ms: a fraction of an election.
const PAUSE_DOUBLINGS_MAX: u32 = 5;

/// The result of one attempt at a request.
pub(super) type Attempt<T> = Result<T, AttemptError>;

/// Why an attempt had no result. Sent between nodes: new variants go to the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum AttemptError {
    /// Rejected; certainly not done.
    Refused(Refusal),
    /// Certainly not done; another attempt may succeed.
    Retry(String),
    /// It may be done, or partly done.
    Unknown(String),
    /// Partly done; another attempt continues it.
    Begun(String),
}

impl From<Refusal> for AttemptError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<WriteError> for AttemptError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::NotLeader(_) => Self::Retry("this node does not lead, or not yet".into()),
            WriteError::Undecided(text) => Self::Unknown(text),
            WriteError::TooLarge => Self::Refused(entry_too_large()),
        }
    }
}

impl From<CallError> for AttemptError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::NotSent(_) => Self::Retry(format!("the leader was not reached: {error}")),
            CallError::Refused { .. } => Self::Retry(format!("the leader: {error}")),
            // The leader may have failed after it proposed the request.
            CallError::Unknown(_) => Self::Unknown(format!("the leader did not answer: {error}")),
        }
    }
}

/// What follows an attempt whose outcome is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnUnknown {
    /// The request ends as undecided: another attempt could apply it twice.
    Stop,
    /// Another attempt: the log decides all of them as one.
    Repeat,
    /// Another attempt: none of them stores anything.
    Ignore,
}

/// The leader, seen from this node.
#[derive(Debug)]
pub(super) enum Leader {
    ThisNode,
    Other(Member),
}

/// Confirms that this node leads and has applied every entry that was committed before the call.
pub(super) async fn confirm_leadership(consensus: &Consensus, deadline: Instant) -> Attempt<()> {
    let confirmed = async {
        let index = consensus.read_index(Confirmation::Quorum).await?;
        consensus.wait_read(index).await;
        Ok::<(), ReadError>(())
    };
    match timeout_at(deadline, confirmed).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(ReadError::NotLeader(_))) => {
            Err(AttemptError::Retry("this node does not lead any more".into()))
        }
        Ok(Err(ReadError::NoQuorum(text))) => Err(AttemptError::Retry(text)),
        Err(_) => Err(AttemptError::Retry("a quorum did not confirm the leader in time".into())),
    }
}

/// The attempts at one request.
#[derive(Debug)]
pub(super) struct Retry {
    deadline: Instant,
    on_unknown: OnUnknown,
    /// The message when the time is up and certainly nothing was done; the reason of the last attempt follows it.
    timed_out: &'static str,
    /// The deadline of an attempt that repeats one of unknown outcome: until then the log certainly decides both as
    /// one.
    repeat_until: Instant,
    /// Set once an attempt may have been applied.
    unknown: Option<String>,
    /// Why the last attempt had no result.
    reason: String,
    pauses: u32,
}

impl Retry {
    pub(super) fn until(deadline: Instant, on_unknown: OnUnknown, timed_out: &'static str) -> Self {
        let repeat_until = Instant::now() + RESEND_TIME_MAX;
        Self {
            deadline,
            on_unknown,
            timed_out,
            repeat_until,
            unknown: None,
            reason: String::new(),
            pauses: 0,
        }
    }

    /// Makes attempts until there is a result, a refusal or no time left. Each gets its deadline.
    pub(super) async fn run<T, F>(
        mut self,
        consensus: &Consensus,
        mut attempt: impl FnMut(Instant) -> F,
    ) -> Result<T, Refusal>
    where
        F: Future<Output = Attempt<T>>,
    {
        loop {
            if let Some(end) = self.take(attempt(self.deadline()).await) {
                return end;
            }
            if !self.pause(consensus.leader_changed()).await {
                return Err(self.out_of_time());
            }
        }
    }

    /// The deadline of the next attempt.
    fn deadline(&self) -> Instant {
        let repeats = self.unknown.is_some() && self.on_unknown == OnUnknown::Repeat;
        if repeats { self.deadline.min(self.repeat_until) } else { self.deadline }
    }

    /// Takes the result of an attempt; `Some` when it ends the request.
    fn take<T>(&mut self, attempt: Attempt<T>) -> Option<Result<T, Refusal>> {
        match attempt {
            Ok(answer) => Some(Ok(answer)),
            Err(AttemptError::Refused(refusal)) => {
                Some(Err(self.unknown.take().map_or(refusal, Refusal::Undecided)))
            }
            Err(AttemptError::Retry(text)) => {
                self.reason = text;
                None
            }
            Err(AttemptError::Begun(text)) => {
                self.reason.clone_from(&text);
                self.unknown = Some(text);
                None
            }
            Err(AttemptError::Unknown(text)) => self.take_unknown(text).map(Err),
        }
    }

    fn take_unknown(&mut self, text: String) -> Option<Refusal> {
        match self.on_unknown {
            OnUnknown::Ignore => self.reason = text,
            OnUnknown::Stop | OnUnknown::Repeat if concord_model::sabotage::is("unknown-as-503") => {
                return Some(Refusal::Unavailable(text));
            }
            OnUnknown::Stop if !concord_model::sabotage::is("blind-retry") => {
                return Some(Refusal::Undecided(text));
            }
            OnUnknown::Stop | OnUnknown::Repeat => self.unknown = Some(text),
        }
        None
    }

    fn out_of_time(self) -> Refusal {
        match self.unknown {
            Some(text) => Refusal::Undecided(text),
            None => Refusal::Unavailable(format!("{}: {}", self.timed_out, self.reason)),
        }
    }

    /// Pauses before the next attempt, and ends the pause early when `changed` completes. Returns `false` if the time
    /// is up before. Pauses grow, and they are random, so that the requests that waited for a lost leader do not all
    /// return at once.
    async fn pause(&mut self, changed: impl Future<Output = ()>) -> bool {
        let longest_ms = FIRST_PAUSE_MS << self.pauses.min(PAUSE_DOUBLINGS_MAX);
        let pause = Duration::from_millis(fastrand::u64(longest_ms / 2..=longest_ms));
        self.pauses = self.pauses.saturating_add(1);
        if Instant::now() + pause >= self.deadline() {
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
    use std::sync::Arc;

    use super::*;
    use crate::testing::Scripted;
    use concord_model::error::Rejection;

    fn retry(on_unknown: OnUnknown) -> Retry {
        Retry::until(Instant::now(), on_unknown, "no leader in time")
    }

    fn unknown() -> Attempt<u8> {
        Err(AttemptError::Unknown("lost".into()))
    }

    fn later() -> Attempt<u8> {
        Err(AttemptError::Retry("lease".into()))
    }

    #[test]
    fn a_write_that_was_certainly_not_applied_is_unavailable() {
        for on_unknown in [OnUnknown::Stop, OnUnknown::Repeat, OnUnknown::Ignore] {
            let mut retry = retry(on_unknown);
            assert_eq!(retry.take(later()), None);
            assert_eq!(retry.out_of_time(), Refusal::Unavailable("no leader in time: lease".into()));
        }
    }

    #[test]
    fn an_unknown_outcome_ends_a_request_that_must_not_be_repeated() {
        let end = retry(OnUnknown::Stop).take(unknown());
        assert_eq!(end, Some(Err(Refusal::Undecided("lost".into()))));
    }

    #[test]
    fn an_unknown_outcome_stays_unknown_until_an_attempt_succeeds() {
        let refused = Err(AttemptError::Refused(Refusal::Rejected(Rejection::ConfigExists)));
        let mut one = retry(OnUnknown::Repeat);
        assert_eq!(one.take(unknown()), None);
        assert_eq!(one.take(later()), None);
        assert_eq!(one.take::<u8>(refused), Some(Err(Refusal::Undecided("lost".into()))));

        let mut two = retry(OnUnknown::Repeat);
        assert_eq!(two.take(unknown()), None);
        assert_eq!(two.take(Ok(7)), Some(Ok(7)));

        let mut three = retry(OnUnknown::Repeat);
        assert_eq!(three.take(unknown()), None);
        assert_eq!(three.out_of_time(), Refusal::Undecided("lost".into()));
    }

    #[test]
    fn a_change_that_was_begun_is_continued_and_never_unavailable() {
        let begun = || Err::<u8, _>(AttemptError::Begun("half done".into()));
        let mut one = retry(OnUnknown::Stop);
        assert_eq!((one.take(begun()), one.take(later())), (None, None));
        assert_eq!(one.out_of_time(), Refusal::Undecided("half done".into()));

        let mut two = retry(OnUnknown::Stop);
        assert_eq!(two.take(begun()), None);
        let refused = Err(AttemptError::Refused(Refusal::Conflict("no majority".into())));
        assert_eq!(two.take::<u8>(refused), Some(Err(Refusal::Undecided("half done".into()))));

        let mut three = retry(OnUnknown::Stop);
        assert_eq!((three.take(begun()), three.take(Ok(7))), (None, Some(Ok(7))));
    }

    #[test]
    fn the_outcome_of_a_request_that_stores_nothing_is_never_unknown() {
        let mut retry = retry(OnUnknown::Ignore);
        assert_eq!(retry.take(unknown()), None);
        assert_eq!(retry.out_of_time(), Refusal::Unavailable("no leader in time: lost".into()));
    }

    #[test]
    fn a_failed_rpc_tells_whether_the_request_may_have_been_applied() {
        let refused = CallError::Refused { status: 421, text: "no".into() };
        assert!(matches!(CallError::NotSent("refused".into()).into(), AttemptError::Retry(_)));
        assert!(matches!(refused.into(), AttemptError::Retry(_)));
        assert!(matches!(CallError::Unknown("time-out".into()).into(), AttemptError::Unknown(_)));
    }

    #[tokio::test]
    async fn a_request_is_repeated_only_while_its_idempotency_record_is_certainly_retained() {
        let hour = Instant::now() + Duration::from_secs(3600);
        let mut retry = Retry::until(hour, OnUnknown::Repeat, "no leader in time");
        assert_eq!(retry.deadline(), hour);
        assert_eq!(retry.take(unknown()), None);
        assert!(retry.deadline() <= Instant::now() + RESEND_TIME_MAX);
        assert!(retry.pause(std::future::pending()).await);
        retry.repeat_until = Instant::now();
        assert!(!retry.pause(std::future::pending()).await);
        assert_eq!(retry.out_of_time(), Refusal::Undecided("lost".into()));
    }

    /// What attempts did, for the checks after a request.
    #[derive(Debug, Default)]
    struct Seen {
        attempts: usize,
        applied: usize,
        unknown: usize,
    }

    /// 40,000 requests through leaders that come and go: some 100 hours.
    #[tokio::test]
    async fn a_request_ends_in_time_and_never_says_less_or_more_than_is_known() {
        let node = Scripted::start().await;
        let consensus = node.service.cx.consensus().unwrap();
        let mut rng = fastrand::Rng::with_seed(5);
        let (fake, mut moments) = (Arc::clone(&node.fake), rng.fork());
        let leaders = tokio::spawn(async move {
            loop {
                sleep(Duration::from_millis(moments.u64(1..60_000))).await;
                fake.lead([None, Some(1), Some(2)][moments.usize(..3)]);
            }
        });
        let mut ends = std::collections::BTreeMap::<&str, usize>::new();
        for _ in 0..40_000 {
            let on_unknown = [OnUnknown::Stop, OnUnknown::Repeat, OnUnknown::Ignore][rng.usize(..3)];
            let limit = Duration::from_millis(rng.u64(1..60_000));
            let (begin, seen) = (Instant::now(), std::cell::RefCell::new(Seen::default()));
            let fates = std::cell::RefCell::new(rng.fork());
            let attempt = |deadline: Instant| {
                let mut drawn = fates.borrow_mut();
                let (fate, takes) = (drawn.u32(..12), Duration::from_millis(drawn.u64(..400)));
                drop(drawn);
                let seen = &seen;
                async move {
                    let unknown = seen.borrow().unknown;
                    assert!(unknown == 0 || on_unknown != OnUnknown::Stop, "it was retried");
                    assert!(deadline <= begin + limit, "an attempt has no more time than its request");
                    assert!(
                        unknown == 0
                            || on_unknown == OnUnknown::Ignore
                            || deadline <= begin + RESEND_TIME_MAX
                    );
                    seen.borrow_mut().attempts += 1;
                    if timeout_at(deadline, sleep(takes)).await.is_err() {
                        return Err(AttemptError::Retry("no time".into()));
                    }
                    let mut now = seen.borrow_mut();
                    match fate {
                        0 => Err(AttemptError::Refused(Refusal::Rejected(Rejection::ConfigExists))),
                        1 | 2 => {
                            now.unknown += 1;
                            now.applied += usize::from(fate == 1);
                            Err(AttemptError::Unknown("lost".into()))
                        }
                        3 => {
                            now.applied += 1;
                            Ok(())
                        }
                        _ => Err(AttemptError::Retry("no leader".into())),
                    }
                }
            };
            let ended = Retry::until(begin + limit, on_unknown, "not in time").run(consensus, attempt).await;
            let (took, seen) = (begin.elapsed(), seen.into_inner());
            // Timers have a resolution of a millisecond.
            assert!(took <= limit + Duration::from_millis(1), "{took:?} of {limit:?}");
            // After the first ones, pauses are at least 80 ms, or end with a change of the leader.
            assert!(seen.attempts as u128 <= 8 + took.as_millis() / 80 + 60, "{seen:?} in {took:?}");
            let is_unknown = seen.unknown > 0 && on_unknown != OnUnknown::Ignore;
            let end = match &ended {
                Ok(()) => "done",
                Err(Refusal::Undecided(_)) => "unknown",
                Err(Refusal::Unavailable(_)) => "not done",
                Err(Refusal::Rejected(_)) => "rejected",
                Err(other) => panic!("{other:?}"),
            };
            *ends.entry(end).or_default() += 1;
            match end {
                "done" => assert!(seen.applied > 0),
                "unknown" => assert!(is_unknown, "{seen:?}"),
                _ => assert!(!is_unknown, "{ended:?} after {seen:?}"),
            }
        }
        assert_eq!(ends.len(), 4, "{ends:?}");
        leaders.abort();
        node.stop().await;
    }

    #[tokio::test]
    async fn pauses_end_with_the_time() {
        assert!(!retry(OnUnknown::Stop).pause(std::future::pending()).await);
        let hour = Instant::now() + Duration::from_secs(3600);
        let mut retry = Retry::until(hour, OnUnknown::Stop, "no leader in time");
        assert!(retry.pause(std::future::ready(())).await);
    }
}
