//! The earlier states that this node has made and retains, for those who ask for the same or an older one.
//!
//! A retained state keeps in memory what the present one does not hold, which grows as the present one goes on. That sum
//! is bounded by a share of the memory budget, as are their number and the time that they are unused. When a limit is
//! exceeded, the one that was used longest ago is released first.
//!
//! **Invariants:** no worker frees an earlier state. One is retained at most `PAST_IDLE_MAX` and [`CHECK_INTERVAL`]
//! after its last use, and what all keep exceeds its bound by no more than what is written within [`CHECK_INTERVAL`],
//! whether or not there are any requests.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use tokio::time::Instant;

use crate::deferred_drop::DeferredDrop;
use concord_consensus::Consensus;
use concord_model::{
    limits::{PAST_IDLE_MAX, PAST_STATES_MAX},
    record::Revision,
};
use concord_state::{State, earlier::EarlierState};
use concord_storage::UndoScope;

/// How often the limits are applied while states are retained.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The earlier states of a node.
#[derive(Debug)]
pub(crate) struct EarlierStates {
    bytes_max: u64,
    kept: Mutex<Retained>,
}

type Name = (UndoScope, Revision);

#[derive(Debug, Default)]
struct Retained {
    states: BTreeMap<Name, Entry>,
    /// Counts the uses; the state with the least number was used longest ago.
    uses: u64,
    /// Who makes which state now.
    turns: BTreeMap<Name, Weak<tokio::sync::Mutex<()>>>,
    /// Whether the task that applies the limits is running.
    is_sweeping: bool,
}

#[derive(Debug)]
struct Entry {
    past: Arc<EarlierState>,
    last_use: u64,
    last_used: Instant,
}

/// Ends the use of an earlier state: it may be the last one.
pub(super) fn end_use(past: Arc<EarlierState>) {
    drop(DeferredDrop(Arc::into_inner(past).into_iter().collect()));
}

impl EarlierStates {
    /// Retains states that keep at most so many bytes in memory.
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, kept: Mutex::default() }
    }

    /// The state of a revision, if it is retained.
    pub(super) fn find(&self, scope: &UndoScope, at: Revision) -> Option<Arc<EarlierState>> {
        self.lock().used(&(scope.clone(), at), Instant::now())
    }

    /// The retained state from which the way back to a revision is the shortest.
    pub(super) fn nearest_after(&self, scope: &UndoScope, at: Revision) -> Option<Arc<EarlierState>> {
        let mut kept = self.lock();
        let later = kept.states.range((scope.clone(), at)..=(scope.clone(), Revision::MAX));
        let name = later.map(|(name, _)| name.clone()).next()?;
        kept.used(&name, Instant::now())
    }

    /// The right to make a state, which one has at a time.
    pub(super) fn turn(&self, scope: &UndoScope, at: Revision) -> Arc<tokio::sync::Mutex<()>> {
        let (mut kept, name) = (self.lock(), (scope.clone(), at));
        if let Some(turn) = kept.turns.get(&name).and_then(Weak::upgrade) {
            return turn;
        }
        kept.turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(tokio::sync::Mutex::new(()));
        kept.turns.insert(name, Arc::downgrade(&turn));
        turn
    }

    /// Retains a state, as far as the limits allow.
    pub(super) fn keep(
        self: &Arc<Self>,
        scope: UndoScope,
        at: Revision,
        past: &Arc<EarlierState>,
        consensus: &Consensus,
    ) {
        let now = consensus.state();
        let mut kept = self.lock();
        kept.insert((scope, at), past, Instant::now());
        let released = kept.enforce_limits(self.bytes_max, &now);
        if !std::mem::replace(&mut kept.is_sweeping, true) {
            tokio::spawn(Arc::clone(self).sweep(consensus.clone()));
        }
        drop(kept);
        drop(released);
    }

    /// Applies the limits until nothing is retained.
    async fn sweep(self: Arc<Self>, consensus: Consensus) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let now = consensus.state();
            let mut kept = self.lock();
            let released = kept.release_unused(Instant::now());
            let more_released = kept.enforce_limits(self.bytes_max, &now);
            let is_over = kept.states.is_empty();
            kept.is_sweeping = !is_over;
            drop(kept);
            drop((released, more_released));
            super::super::pinned::end_use(now);
            if is_over {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Retained> {
        // A panic between two consistent values leaves a state too many, which is released like any other.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Retained {
    fn used(&mut self, name: &Name, now: Instant) -> Option<Arc<EarlierState>> {
        self.uses += 1;
        let entry = self.states.get_mut(name)?;
        (entry.last_use, entry.last_used) = (self.uses, now);
        Some(Arc::clone(&entry.past))
    }

    fn insert(&mut self, name: Name, past: &Arc<EarlierState>, now: Instant) {
        self.uses += 1;
        let entry = Entry { past: Arc::clone(past), last_use: self.uses, last_used: now };
        self.states.insert(name, entry);
    }

    fn release_unused(&mut self, now: Instant) -> DeferredDrop<Entry> {
        let is_unused =
            |_: &Name, entry: &mut Entry| now.saturating_duration_since(entry.last_used) >= PAST_IDLE_MAX;
        DeferredDrop(self.states.extract_if(.., is_unused).map(|(_, entry)| entry).collect())
    }

    /// Releases states until the limits hold.
    fn enforce_limits(&mut self, bytes_max: u64, now: &State) -> DeferredDrop<Entry> {
        let mut released = Vec::new();
        let mut bytes: BTreeMap<u64, u64> = BTreeMap::new();
        for entry in self.states.values() {
            bytes.insert(entry.last_use, entry.past.bytes_kept_beside(now));
        }
        let mut all = bytes.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        while self.states.len() > PAST_STATES_MAX || all > bytes_max {
            let Some((oldest, freed)) = bytes.pop_first() else { break };
            all = all.saturating_sub(freed);
            released.extend(
                self.states.extract_if(.., |_, entry| entry.last_use == oldest).map(|(_, entry)| entry),
            );
        }
        DeferredDrop(released)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn past(revision: Revision) -> Arc<EarlierState> {
        let mut state = State::new();
        state.advance(revision);
        Arc::new(EarlierState::present(Arc::new(state)))
    }

    fn names(kept: &Retained) -> Vec<Revision> {
        kept.states.keys().map(|(_, at)| *at).collect()
    }

    #[test]
    fn the_state_that_was_used_longest_ago_is_released_first() {
        let (mut kept, now) = (Retained::default(), Instant::now());
        let name = |at| (UndoScope::Definitions, at);
        for at in 1..=PAST_STATES_MAX as u64 {
            kept.insert(name(at), &past(at), now);
        }
        assert!(kept.enforce_limits(0, &State::new()).0.is_empty(), "empty states keep nothing");
        assert!(kept.used(&name(1), now).is_some());
        kept.insert(name(99), &past(99), now);
        assert_eq!(kept.enforce_limits(0, &State::new()).0.len(), 1);
        let left = names(&kept);
        assert!(left.contains(&1) && !left.contains(&2) && left.contains(&99), "{left:?}");
        assert_eq!(kept.release_unused(now + PAST_IDLE_MAX).0.len(), PAST_STATES_MAX);
        assert!(kept.used(&name(1), now).is_none());
    }

    #[test]
    fn the_way_back_begins_at_the_nearest_later_state_of_the_same_records() {
        let pasts = EarlierStates::new(1 << 20);
        let key = concord_model::key::Key::parse("d").unwrap();
        let other = UndoScope::Configs { id: 1, key };
        for at in [10, 20, 30] {
            pasts.lock().insert((UndoScope::Definitions, at), &past(at), Instant::now());
        }
        pasts.lock().insert((other.clone(), 12), &past(12), Instant::now());
        let nearest =
            |scope: &UndoScope, at| pasts.nearest_after(scope, at).map(|found| found.state.revision());
        assert_eq!(nearest(&UndoScope::Definitions, 11), Some(20));
        assert_eq!(nearest(&UndoScope::Definitions, 20), Some(20));
        assert_eq!(nearest(&UndoScope::Definitions, 31), None);
        assert_eq!(nearest(&other, 5), Some(12));
        assert_eq!(nearest(&other, 13), None);
    }

    #[test]
    fn one_makes_a_state_at_a_time() {
        let pasts = EarlierStates::new(1 << 20);
        let first = pasts.turn(&UndoScope::Definitions, 1);
        assert!(Arc::ptr_eq(&first, &pasts.turn(&UndoScope::Definitions, 1)));
        assert!(!Arc::ptr_eq(&first, &pasts.turn(&UndoScope::Definitions, 2)));
        drop(first);
        drop(pasts.turn(&UndoScope::Definitions, 3));
        assert_eq!(pasts.lock().turns.len(), 1, "those that nobody has are forgotten");
    }
}
