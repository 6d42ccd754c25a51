//! The idempotency records: which outcomes of requests with an idempotency key are stored, and for how long.
//!
//! | outcomes that are | rule |
//! |---|---|
//! | too old | expired by [`Command::Forget`](concord_model::command::Command::Forget); the leader proposes it when the clocks of a majority agree that an outcome is older than a day |
//! | too many | the oldest expires if no node retries its request any longer; younger ones stay, and the leader rejects requests with a key while there is no room ([`State::has_room_to_remember`]) |
//!
//! **Invariant:** no outcome expires while a node may still retry its request.

use std::sync::Arc;

use super::EntryContext;
use crate::{ByAge, ById, Edit, RememberedOutcome, State, digest};
use concord_model::{
    command::{Applied, StepOutcome},
    limits::{FORGOTTEN_PER_ENTRY_MAX, REMEMBERED_AT_LEAST_US, remembered_max},
    record::Revision,
    time::Timestamp,
};

/// Outcomes that one entry expires at most, in addition to its own change. An entry adds one, so the surplus drains.
const FORGOTTEN_BESIDE_MAX: usize = 16;

impl State {
    /// Whether one more outcome can be stored without expiring one that is still needed. The leader checks this before
    /// it proposes; what is in the log is always remembered, so what it has proposed meanwhile may exceed the limit.
    #[must_use]
    pub fn has_room_to_remember(&self, now: Timestamp) -> bool {
        self.requests.len() < remembered_max() || self.may_forget_oldest(now)
    }

    /// The newest entry whose outcome, and all before it, was decided at this time or earlier.
    #[must_use]
    pub fn decided_upto(&self, at: Timestamp) -> Option<Revision> {
        let (mut low, mut high) = (0, self.requests_by_age.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.requests_by_age.at(middle).is_some_and(|found| found.0.at <= at) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        self.requests_by_age.at(low.checked_sub(1)?).map(|found| found.0.revision)
    }

    /// Forgets the oldest outcomes, up to a revision.
    pub(super) fn forget_upto(
        &mut self,
        context: EntryContext,
        upto: Revision,
        edits: &mut Vec<Edit>,
    ) -> Applied {
        for _ in 0..FORGOTTEN_PER_ENTRY_MAX {
            let oldest = self.requests_by_age.at(0).map(|oldest| Arc::clone(&oldest.0));
            let Some(oldest) = oldest.filter(|oldest| oldest.revision <= upto) else { break };
            self.forget_one((*oldest).clone(), edits);
        }
        context.applied(StepOutcome::NoRecord)
    }

    /// Forgets what the outcome that is about to be remembered replaces.
    pub(super) fn make_room(&mut self, now: Timestamp, id: &[u8; 16], edits: &mut Vec<Edit>) {
        if let Some(old) = self.remembered(id).cloned() {
            self.forget_one(old, edits);
        }
        for _ in 0..FORGOTTEN_BESIDE_MAX {
            if self.requests.len() < remembered_max() || !self.may_forget_oldest(now) {
                return;
            }
            let Some(oldest) = self.requests_by_age.at(0).map(|oldest| Arc::clone(&oldest.0)) else { return };
            self.forget_one((*oldest).clone(), edits);
        }
    }

    fn may_forget_oldest(&self, now: Timestamp) -> bool {
        let oldest = self.requests_by_age.at(0).map(|oldest| oldest.0.at.0);
        let is_old = |at| {
            now.0.saturating_sub(at) > REMEMBERED_AT_LEAST_US
                || concord_model::sabotage::is("young-outcome-forgotten")
        };
        oldest.is_some_and(is_old)
    }

    fn forget_one(&mut self, old: RememberedOutcome, edits: &mut Vec<Edit>) {
        self.remove_remembered(&old);
        edits.push(Edit::Forget(old));
    }

    fn remove_remembered(&mut self, old: &RememberedOutcome) {
        self.requests.remove(&old.request.id);
        self.requests_by_age.remove(old.revision);
        self.sum = self.sum.wrapping_sub(digest::of_request(old));
    }

    /// Forgets the outcome of a revision, if it is remembered.
    pub(crate) fn forget_of(&mut self, revision: Revision) {
        if let Some(old) = self.requests_by_age.get(revision).map(|found| Arc::clone(&found.0)) {
            self.remove_remembered(&old);
        }
    }

    pub(crate) fn remember(&mut self, remembered: RememberedOutcome) {
        self.sum = self.sum.wrapping_add(digest::of_request(&remembered));
        let remembered = Arc::new(remembered);
        self.requests.insert(ById(Arc::clone(&remembered)));
        self.requests_by_age.insert(ByAge(remembered));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use concord_model::{
        access_key::Author,
        command::{Command, IdempotencyKey, Proposal, Verdict},
        key::Key,
        limits::{REMEMBERED_MAX, REMEMBERED_REQUEST_AGE_US},
    };

    const SECOND: u64 = 1_000_000;

    fn proposal(at: u64, request: Option<u64>, command: Command) -> Proposal {
        let request = request.map(|number| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&number.to_be_bytes());
            IdempotencyKey { id, fingerprint: [2; 16] }
        });
        Proposal {
            at: Timestamp(at),
            by: "root".into(),
            reason: None,
            request,
            definition_read: None,
            command,
            author: Author::Root,
            tail: None,
        }
    }

    /// A request that is rejected, which is remembered like any other.
    fn refused(at: u64, number: u64) -> Proposal {
        let (definition, key) = (Key::parse("d").unwrap(), Key::parse("k").unwrap());
        let expect = concord_model::command::Expect::Present;
        proposal(at, Some(number), Command::DeleteConfig { definition, key, expect })
    }

    fn apply(state: &mut State, proposal: &Proposal) -> bool {
        let revision = state.revision() + 1;
        let (verdict, change) = state.apply(revision, proposal);
        assert!(matches!(verdict, Verdict::Decided(_)));
        change.is_some_and(|change| change.edits.iter().any(|edit| matches!(edit, Edit::Remember(_))))
    }

    /// A state with as many outcomes as are remembered, `apart` microseconds from one another.
    fn full(apart: u64) -> (State, u64) {
        let mut state = State::new();
        let mut at = SECOND;
        for number in 0..REMEMBERED_MAX {
            at += apart;
            apply(&mut state, &refused(at, number));
        }
        (state, at)
    }

    #[test]
    fn a_flood_of_requests_expires_no_record_that_a_retry_may_need() {
        // 10,000 a second.
        let (mut state, at) = full(100);
        let now = Timestamp(at);
        assert!(!state.has_room_to_remember(now), "the leader refuses");
        apply(&mut state, &refused(at, u64::MAX));
        assert!(!apply(&mut state, &refused(at, 0)), "what was in flight makes nothing forgotten");
        assert_eq!(state.request_count(), REMEMBERED_MAX + 1);

        let later = at + REMEMBERED_AT_LEAST_US;
        assert!(state.has_room_to_remember(Timestamp(later)));
        apply(&mut state, &refused(later, u64::MAX - 1));
        assert_eq!(state.request_count(), REMEMBERED_MAX, "the surplus drains");
    }

    #[test]
    fn only_the_forget_command_expires_idempotency_records() {
        let month = 31 * REMEMBERED_REQUEST_AGE_US;
        let mut state = State::new();
        for number in 0..700 {
            apply(&mut state, &refused(SECOND + number, number));
        }
        apply(&mut state, &refused(month, 1000));
        assert!(!apply(&mut state, &refused(month, 1)));
        assert_eq!(state.decided_upto(Timestamp(SECOND - 1)), None);
        let upto = state.decided_upto(Timestamp(month - 1)).unwrap();
        let digest = state.digest();
        let mut left = vec![];
        for _ in 0..4 {
            apply(&mut state, &proposal(month, None, Command::Forget { upto }));
            left.push(state.request_count());
        }
        assert_eq!(left, [445, 189, 1, 1]);
        assert_ne!(state.digest(), digest);
        assert!(apply(&mut state, &refused(month, 1)), "a request is decided anew after its day");
        assert!(!apply(&mut state, &refused(month, 1000)));
    }
}
