//! The earlier states that this node has made and retains, for lists at the same or at an older revision.
//!
//! **Invariant:** a state is made by one request at a time.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::time::Instant;

use crate::read::retained::{Retainable, Retained, RetainedLimits, RetainedValues};
use concord_consensus::Consensus;
use concord_model::{
    limits::{PAST_IDLE_MAX, PAST_STATES_MAX},
    record::Revision,
};
use concord_state::{State, earlier::EarlierState};
use concord_storage::UndoScope;

/// Identifies an earlier state.
type EarlierKey = (UndoScope, Revision);

impl Retainable for Arc<EarlierState> {
    type Key = EarlierKey;

    fn bytes_kept<'a>(states: impl Iterator<Item = &'a Self> + Clone, current: &State) -> u64 {
        states.map(|state| state.bytes_kept_beside(current)).fold(0, u64::saturating_add)
    }
}

/// The earlier states of a node.
#[derive(Debug)]
pub(crate) struct EarlierStates {
    retained: Arc<Retained<Arc<EarlierState>>>,
    /// The locks of the states that requests are making.
    turns: Mutex<BTreeMap<EarlierKey, Weak<tokio::sync::Mutex<()>>>>,
}

impl EarlierStates {
    /// Retains states that keep at most so many bytes in memory.
    pub(crate) fn new(bytes_max: u64) -> Self {
        let limits = RetainedLimits { values_max: PAST_STATES_MAX, bytes_max, idle_max: PAST_IDLE_MAX };
        Self { retained: Arc::new(Retained::new(limits)), turns: Mutex::default() }
    }

    /// The state of a revision, if it is retained.
    pub(super) fn find(&self, scope: &UndoScope, at: Revision) -> Option<Arc<EarlierState>> {
        let mut states = self.retained.lock();
        states.find(&(scope.clone(), at), Instant::now()).map(|found| Arc::clone(&found.value))
    }

    /// The retained state with the fewest changes between a revision and its own.
    pub(super) fn nearest_after(&self, scope: &UndoScope, at: Revision) -> Option<Arc<EarlierState>> {
        let mut states = self.retained.lock();
        let mut later = states.by_key.range((scope.clone(), at)..=(scope.clone(), Revision::MAX));
        let key = later.next()?.0.clone();
        states.find(&key, Instant::now()).map(|found| Arc::clone(&found.value))
    }

    /// The lock under which a request makes a state.
    pub(super) fn turn(&self, scope: &UndoScope, at: Revision) -> Arc<tokio::sync::Mutex<()>> {
        // A panic leaves a lock too many or too few: a state is made twice.
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (scope.clone(), at);
        if let Some(turn) = turns.get(&key).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(tokio::sync::Mutex::new(()));
        turns.insert(key, Arc::downgrade(&turn));
        turn
    }

    /// Retains a state, as far as the limits allow.
    pub(super) fn keep(
        &self,
        scope: UndoScope,
        at: Revision,
        state: &Arc<EarlierState>,
        consensus: &Consensus,
    ) {
        self.retained.update(consensus, None, |states| insert(states, (scope, at), state, Instant::now()));
    }
}

fn insert(
    states: &mut RetainedValues<Arc<EarlierState>>,
    key: EarlierKey,
    state: &Arc<EarlierState>,
    now: Instant,
) {
    // No key owns it, and it counts as used: an unused state would go before all others, as the limits spare none.
    states.insert_with(key, None, now, || Arc::clone(state)).is_used = true;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn state(revision: Revision) -> Arc<EarlierState> {
        let mut state = State::new();
        state.advance(revision);
        Arc::new(EarlierState::present(Arc::new(state)))
    }

    #[test]
    fn the_least_recently_used_state_is_released_first() {
        let (states, now) = (EarlierStates::new(0), Instant::now());
        let mut retained = states.retained.lock();
        let key = |at| (UndoScope::Definitions, at);
        for at in 1..=PAST_STATES_MAX as u64 {
            insert(&mut retained, key(at), &state(at), now + Duration::from_millis(at));
        }
        assert!(retained.enforce_limits(&State::new(), None).0.is_empty(), "empty states keep nothing");
        let later = now + Duration::from_secs(1);
        assert!(retained.find(&key(1), later).is_some());
        insert(&mut retained, key(99), &state(99), later + Duration::from_secs(1));
        assert_eq!(retained.enforce_limits(&State::new(), None).0.len(), 1);
        let has = |at| retained.by_key.contains_key(&key(at));
        assert!(has(1) && !has(2) && has(99));
    }

    #[test]
    fn going_back_begins_at_the_nearest_later_state_of_the_same_records() {
        let states = EarlierStates::new(1 << 20);
        let key = concord_model::key::Key::parse("d").unwrap();
        let other = UndoScope::Configs { id: 1, key };
        let retain = |scope: &UndoScope, at| {
            insert(&mut states.retained.lock(), (scope.clone(), at), &state(at), Instant::now());
        };
        for at in [10, 20, 30] {
            retain(&UndoScope::Definitions, at);
        }
        retain(&other, 12);
        let nearest =
            |scope: &UndoScope, at| states.nearest_after(scope, at).map(|found| found.state.revision());
        assert_eq!(nearest(&UndoScope::Definitions, 11), Some(20));
        assert_eq!(nearest(&UndoScope::Definitions, 20), Some(20));
        assert_eq!(nearest(&UndoScope::Definitions, 31), None);
        assert_eq!(nearest(&other, 5), Some(12));
        assert_eq!(nearest(&other, 13), None);
    }

    #[test]
    fn requests_for_the_same_state_share_one_lock() {
        let states = EarlierStates::new(1 << 20);
        let first = states.turn(&UndoScope::Definitions, 1);
        assert!(Arc::ptr_eq(&first, &states.turn(&UndoScope::Definitions, 1)));
        assert!(!Arc::ptr_eq(&first, &states.turn(&UndoScope::Definitions, 2)));
        drop(first);
        drop(states.turn(&UndoScope::Definitions, 3));
        assert_eq!(states.turns.lock().unwrap().len(), 1, "unused locks are removed");
    }
}
