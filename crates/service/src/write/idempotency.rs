//! Idempotent retries: a request with an idempotency key that was decided before gets its stored response.
//!
//! The idempotency records of all keys share one bounded space of the state. While it is full of records that may still
//! be needed, further requests with an idempotency key are rejected. So each stored access key may fill only half of what
//! the others leave: however many keys have filled their part, there is room for another one. The leader counts the requests that it decides, in two windows as long as a record is certainly retained. A new
//! leader starts from zero, so that a key can then make a few more.
//!
//! **Invariant:** a request that is rejected here was certainly not proposed.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{Prepared, patch::content_at, prepare::PreparedWrite};
use crate::{
    origin::{KeyTag, key_tag},
    request::{Caller, Decision, Effect, Refusal, Target, WriteRequest},
    retry::OnUnknown,
};
use concord_model::{
    command::{Command, Outcome, Transaction},
    error::Rejection,
    limits::{REMEMBERED_AT_LEAST_US, remembered_max},
    time::Timestamp,
};
use concord_state::State;

/// The length of a window.
const WINDOW: Duration = Duration::from_micros(REMEMBERED_AT_LEAST_US);

/// The outcome of a client's request that was decided before. Another request with the same idempotency key is
/// rejected.
pub(super) fn decided_before(state: &State, caller: &Caller) -> Option<Outcome> {
    let key = caller.idempotency_key.as_ref()?;
    state.remembered(&key.id).map(|known| known.answer_to(key))
}

/// The decision on a request that was decided before, or may have been. It has the content if the record has not been
/// written since.
pub(super) fn stored_decision(state: &State, request: &WriteRequest, outcome: Outcome) -> Decision {
    let content = match &outcome {
        Ok(applied) => content_at(state, &request.write, applied.revision),
        Err(_) => None,
    };
    Decision::new(outcome, content)
}

/// What follows an attempt at a client's request whose outcome is unknown.
pub(super) fn on_unknown(caller: &Caller) -> OnUnknown {
    match (caller.dry_run, caller.idempotency_key) {
        (true, _) => OnUnknown::Ignore,
        (false, Some(_)) => OnUnknown::Repeat,
        (false, None) => OnUnknown::Stop,
    }
}

/// Makes a command of a confirmed rejection, so that the log stores it for retries. A write whose command can be made
/// is proposed itself and rejected by the log. This is for the others: batches and patches that are rejected, and writes of
/// one record that is not as the client expects it. A rejection by an environment is not stored: the same request succeeds
/// once the freeze is over.
///
/// # Errors
/// The refusal, if the log could not decide it or there is no idempotency key.
#[expect(clippy::wildcard_enum_match_arm, reason = "the log stores no other refusal")]
pub(super) fn rejecting_command(request: &WriteRequest, refusal: Refusal) -> Result<Prepared, Refusal> {
    let is_of_one_record = match request.write.target() {
        Target::Definition(_) | Target::Config { .. } => request.write.effect() != Effect::Restore,
        Target::Keys | Target::Environment(_) | Target::Identity => true,
        // The log stores no rejection that is about a change request.
        Target::Batch | Target::Anchors | Target::Change(_) => false,
    };
    let has_no_command = |rejection: &Rejection| {
        matches!(request.write.effect(), Effect::Batch | Effect::Compute)
            || (is_of_one_record && is_of_record_state(rejection))
    };
    // A change request that can't be applied now may be applied by the same request later.
    let is_stored =
        request.caller.idempotency_key.is_some() && !request.caller.dry_run && request.edition.is_none();
    match refusal {
        Refusal::Rejected(rejection)
            if has_no_command(&rejection) && is_stored && !rejection.is_by_environment() =>
        {
            let transaction = Transaction { reads: Vec::new(), chosen: Err(rejection), steps: Vec::new() };
            Ok(Prepared::Propose(PreparedWrite::of(Command::Transaction(transaction))))
        }
        refusal => Err(refusal),
    }
}

/// Whether a rejection is of the state of the record that is written: its precondition is not met.
fn is_of_record_state(rejection: &Rejection) -> bool {
    matches!(
        rejection,
        Rejection::ConfigExists
            | Rejection::ConfigNotFound
            | Rejection::DefinitionExists
            | Rejection::Precondition { .. }
    )
}

/// Refuses a request with an idempotency key while its record could only be stored in place of one that may be needed.
pub(super) fn check_space(state: &State, caller: &Caller, at: Timestamp) -> Result<(), Refusal> {
    if caller.idempotency_key.is_none() || state.has_room_to_remember(at) {
        return Ok(());
    }
    Err(Refusal::LimitReached(format!(
        "the cluster has reached its limit of {} idempotency records: wait, or send without an idempotency key",
        state.request_count()
    )))
}

/// The recent requests with an idempotency key of each stored access key.
#[derive(Debug, Default)]
pub(crate) struct KeyedWrites(Mutex<KeyedWindows>);

#[derive(Debug, Default)]
struct KeyedWindows {
    begun: Option<Instant>,
    current: KeyedCounts,
    previous: KeyedCounts,
}

/// The requests of one window.
#[derive(Debug, Default)]
struct KeyedCounts {
    by_key: BTreeMap<KeyTag, u64>,
    total: u64,
}

impl KeyedCounts {
    fn of(&self, key: &KeyTag) -> u64 {
        self.by_key.get(key).copied().unwrap_or(0)
    }
}

impl KeyedWrites {
    /// Counts a request with an idempotency key of a stored access key.
    ///
    /// # Errors
    /// [`Refusal::LimitReached`] when the access key has made as many as half of what the others leave of
    /// [`remembered_max`].
    pub(super) fn count(&self, caller: &Caller) -> Result<(), Refusal> {
        let Some(key) = caller.idempotency_key.and_then(|_| key_tag(&caller.principal)) else {
            return Ok(());
        };
        // Nothing panics while it is held.
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if windows.count(key, Instant::now()) {
            return Ok(());
        }
        Err(Refusal::LimitReached(
            "this access key has reached its limit of requests with an idempotency key, half of what other keys leave: \
             wait, or send without one"
                .into(),
        ))
    }
}

impl KeyedWindows {
    /// Counts a request; false when the limit is reached.
    fn count(&mut self, key: KeyTag, now: Instant) -> bool {
        let age = now.saturating_duration_since(*self.begun.get_or_insert(now));
        if age >= WINDOW {
            let last = std::mem::take(&mut self.current);
            self.previous = if age < 2 * WINDOW { last } else { KeyedCounts::default() };
            self.begun = Some(now);
        }
        let own = self.previous.of(&key) + self.current.of(&key);
        let others = (self.previous.total + self.current.total).saturating_sub(own);
        if own >= remembered_max().saturating_sub(others) / 2 {
            return false;
        }
        *self.current.by_key.entry(key).or_insert(0) += 1;
        self.current.total += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Principal;
    use concord_model::command::IdempotencyKey;
    use concord_model::limits::REMEMBERED_MAX;

    #[test]
    fn only_a_write_that_can_not_be_stored_twice_is_repeated() {
        let caller = |key: bool, dry_run| Caller {
            principal: Principal::root(),
            reason: None,
            idempotency_key: key.then_some(IdempotencyKey { id: [1; 16], fingerprint: [1; 16] }),
            dry_run,
            listed_variants: concord_model::schema::ListedVariants::default(),
            bypass: None,
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

    #[test]
    fn an_access_key_fills_its_part_of_the_idempotency_records_and_no_more() {
        let (mut windows, begin) = (KeyedWindows::default(), Instant::now());
        let fill = |windows: &mut KeyedWindows, key: u8, now| {
            let mut count = 0_u64;
            while windows.count([key; 12], now) {
                count += 1;
            }
            count
        };
        let half = REMEMBERED_MAX / 2;
        assert_eq!(fill(&mut windows, 1, begin), half);
        assert_eq!(fill(&mut windows, 1, begin + WINDOW), 0, "their records may still be needed");
        assert_eq!(fill(&mut windows, 1, begin + 2 * WINDOW), half);
        assert_eq!(fill(&mut windows, 1, begin + 4 * WINDOW), half, "after a pause at once");
        let now = begin + 4 * WINDOW;
        assert_eq!((fill(&mut windows, 2, now), fill(&mut windows, 3, now)), (half / 2, half / 4));
        assert!((4..10).all(|key| fill(&mut windows, key, now) > 0), "there is room for other keys");
    }
}
