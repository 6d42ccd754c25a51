//! The states that this node retains: for its cursors, and for watches that begin with the state.
//!
//! A pinned state is a clone of persistent trees, which share their nodes with the states after it. So a page costs
//! the same at any depth, and writes continue. The cost of a pin is what later writes have replaced, texts and nodes
//! ([`State::bytes_kept_beside`]); what several pins share counts once, for the newest of them. That sum is bounded by a
//! share of the memory budget, as are the number of pins and the time that they are unused. When a limit is
//! exceeded, the least recently used pin of which no cursor was ever used is released first: most callers of a list
//! never request its second page, and those who do must not lose their state because of them.
//!
//! A state that is released may be the last one that holds a million records, and freeing them takes as long as it takes
//! to read them. So it is freed on a thread for blocking work, after the lock was released.
//!
//! A stored key that has more than half of the pins makes room with its own first, so that it does not take the cursors
//! of others away.
//!
//! **Invariants:** no worker frees a pinned state. A state is retained at most `CURSOR_IDLE_MAX` and [`CHECK_INTERVAL`] after its last use, and what
//! the pins keep in memory exceeds its bound by no more than what is written within [`CHECK_INTERVAL`], whether or not
//! there are any requests.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{cursor::Fingerprint, records::ListRecords};
use crate::{
    deferred_drop::DeferredDrop,
    origin::{KeyTag, Origin},
};
use concord_consensus::Consensus;
use concord_model::{
    limits::{CURSOR_IDLE_MAX, PINNED_MATCHES_MAX, PINNED_STATES_MAX},
    record::Revision,
};
use concord_state::State;

/// How often the limits are applied while there are pins: writes make them grow.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Bytes of one retained match: a pointer.
const BYTES_PER_MATCH: u64 = 8;
/// Lists of one pin whose matches are retained. The matches of more lists are computed again for each page.
const LISTS_PER_PIN_MAX: usize = 16;

/// A retained state.
#[derive(Debug)]
struct Pin {
    /// Distinguishes it from an earlier pin of the same revision.
    number: u64,
    state: Arc<State>,
    last_used: Instant,
    /// Whether a cursor of this state was ever used, or a watch reads it.
    is_followed: bool,
    /// Whether a cursor names it.
    has_cursor: bool,
    /// Watches that read it.
    watches: usize,
    /// The stored key whose request has pinned it first.
    owner: Option<KeyTag>,
    /// The matches of lists that are not a walk along an index.
    lists: BTreeMap<Fingerprint, Arc<ListRecords>>,
}

/// The pinned states of a node.
#[derive(Debug)]
pub(crate) struct PinnedStates {
    bytes_max: u64,
    pins: Mutex<Pins>,
}

#[derive(Debug, Default)]
struct Pins {
    by_revision: BTreeMap<Revision, Pin>,
    /// How many there have been.
    count: u64,
    /// Whether the task that applies the limits is running.
    is_sweeping: bool,
}

/// A watch's hold on a pinned state. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Held {
    pinned: Arc<PinnedStates>,
    revision: Revision,
    /// The pin's number.
    number: u64,
}

/// Ends the use of a state that was pinned: its pin may have been released in the meantime.
pub(super) fn end_use(state: Arc<State>) {
    drop(DeferredDrop(Arc::into_inner(state).into_iter().collect()));
}

impl PinnedStates {
    /// Retains states that keep at most so many bytes in memory.
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, pins: Mutex::default() }
    }

    /// How many states are retained, and the bytes that they keep in memory beside the newest one.
    pub(crate) fn figures(&self, now: &State) -> (usize, u64) {
        let pins = self.lock();
        (pins.by_revision.len(), pins.pinned_bytes(now))
    }

    /// Retains a state from now on, for a cursor.
    pub(super) fn pin(self: &Arc<Self>, state: &Arc<State>, consensus: &Consensus) {
        let now = consensus.state();
        let mut pins = self.lock();
        pins.pin(state, Instant::now()).has_cursor = true;
        let released = pins.enforce_limits(self.bytes_max, &now, Some(state.revision()));
        self.sweep_from_now_on(&mut pins, consensus);
        drop(pins);
        drop(released);
    }

    /// Retains a state as long as a watch reads it, as far as the limits allow.
    pub(crate) fn hold(self: &Arc<Self>, state: &Arc<State>, consensus: &Consensus) -> Held {
        let now = consensus.state();
        let mut pins = self.lock();
        let number = pins.watch(state, Instant::now());
        let released = pins.enforce_limits(self.bytes_max, &now, Some(state.revision()));
        self.sweep_from_now_on(&mut pins, consensus);
        drop(pins);
        drop(released);
        Held { pinned: Arc::clone(self), revision: state.revision(), number }
    }

    fn sweep_from_now_on(self: &Arc<Self>, pins: &mut Pins, consensus: &Consensus) {
        if !std::mem::replace(&mut pins.is_sweeping, true) {
            tokio::spawn(Arc::clone(self).sweep(consensus.clone()));
        }
    }

    /// The state of a revision, if it is pinned, and the matches of a list in it, if they are retained.
    pub(super) fn find(
        &self,
        revision: Revision,
        list: &Fingerprint,
    ) -> Option<(Arc<State>, Option<Arc<ListRecords>>)> {
        let mut pins = self.lock();
        let pin = pins.follow(revision, Instant::now())?;
        Some((Arc::clone(&pin.state), pin.lists.get(list).cloned()))
    }

    /// Retains the matches of a list for its next pages, as far as the limits allow.
    pub(super) fn retain_matches(
        &self,
        revision: Revision,
        list: Fingerprint,
        matches: Arc<ListRecords>,
        now: &State,
    ) {
        let mut pins = self.lock();
        let Some(pin) = pins.by_revision.get_mut(&revision) else { return };
        if matches.len() <= PINNED_MATCHES_MAX && pin.lists.len() < LISTS_PER_PIN_MAX {
            pin.lists.insert(list, matches);
            let released = pins.enforce_limits(self.bytes_max, now, Some(revision));
            drop(pins);
            drop(released);
        }
    }

    /// Applies the limits until there are no pins.
    async fn sweep(self: Arc<Self>, consensus: Consensus) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let now = consensus.state();
            let mut pins = self.lock();
            let released = pins.release_unused(Instant::now());
            let more_released = pins.enforce_limits(self.bytes_max, &now, None);
            let is_over = pins.by_revision.is_empty();
            pins.is_sweeping = !is_over;
            drop(pins);
            drop((released, more_released));
            end_use(now);
            if is_over {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pins> {
        // A panic between two consistent values leaves a pin too many, which is released like any other.
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// The state, unless a limit has released it.
    pub(crate) fn state(&self) -> Option<Arc<State>> {
        let mut pins = self.pinned.lock();
        pins.follow(self.revision, Instant::now()).map(|pin| Arc::clone(&pin.state))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut pins = self.pinned.lock();
        let released = pins.unwatch(self.revision, self.number);
        drop(pins);
        drop(released);
    }
}

impl Pins {
    fn pin(&mut self, state: &Arc<State>, now: Instant) -> &mut Pin {
        let count = &mut self.count;
        let pin = self.by_revision.entry(state.revision()).or_insert_with(|| Pin {
            number: std::mem::replace(count, count.wrapping_add(1)),
            state: Arc::clone(state),
            last_used: now,
            is_followed: false,
            has_cursor: false,
            watches: 0,
            owner: Origin::current().key(),
            lists: BTreeMap::new(),
        });
        pin.last_used = now;
        pin
    }

    fn follow(&mut self, revision: Revision, now: Instant) -> Option<&Pin> {
        let pin = self.by_revision.get_mut(&revision)?;
        pin.last_used = now;
        pin.is_followed = true;
        Some(pin)
    }

    /// Pins a state for a watch. The pin's number.
    fn watch(&mut self, state: &Arc<State>, now: Instant) -> u64 {
        let pin = self.pin(state, now);
        pin.watches += 1;
        pin.is_followed = true;
        pin.number
    }

    /// A watch that pinned a state has ended.
    fn unwatch(&mut self, revision: Revision, number: u64) -> DeferredDrop<Pin> {
        // A limit may have released its pin, and another watch or cursor pinned the state again.
        let Some(pin) = self.by_revision.get_mut(&revision).filter(|pin| pin.number == number) else {
            return DeferredDrop(Vec::new());
        };
        pin.watches = pin.watches.saturating_sub(1);
        let is_unused = pin.watches == 0 && !pin.has_cursor;
        DeferredDrop(if is_unused {
            self.by_revision.remove(&revision).into_iter().collect()
        } else {
            Vec::new()
        })
    }

    fn release_unused(&mut self, now: Instant) -> DeferredDrop<Pin> {
        let is_unused =
            |_: &Revision, pin: &mut Pin| now.saturating_duration_since(pin.last_used) >= CURSOR_IDLE_MAX;
        DeferredDrop(self.by_revision.extract_if(.., is_unused).map(|(_, pin)| pin).collect())
    }

    /// At most how many bytes the pins keep in memory beside the state of now.
    fn pinned_bytes(&self, now: &State) -> u64 {
        let next = self.by_revision.values().skip(1).map(|pin| &*pin.state).chain([now]);
        let bytes = |(pin, next): (&Pin, &State)| {
            let matches: usize = pin.lists.values().map(|list| list.len()).sum();
            pin.state.bytes_kept_beside(next).saturating_add(BYTES_PER_MATCH * matches as u64)
        };
        self.by_revision.values().zip(next).map(bytes).fold(0, u64::saturating_add)
    }

    /// The stored key that has more than half of the pins: its own make room first, however often they were used.
    fn greedy_key(&self) -> Option<KeyTag> {
        let mut counts = BTreeMap::new();
        for key in self.by_revision.values().filter_map(|pin| pin.owner) {
            *counts.entry(key).or_insert(0_usize) += 1;
        }
        counts.into_iter().find(|(_, count)| count * 2 > self.by_revision.len()).map(|(key, _)| key)
    }

    /// Releases pins until the limits hold; never the one of `except`.
    fn enforce_limits(&mut self, bytes_max: u64, now: &State, except: Option<Revision>) -> DeferredDrop<Pin> {
        let mut released = Vec::new();
        while self.by_revision.len() > PINNED_STATES_MAX || self.pinned_bytes(now) > bytes_max {
            let greedy = self.greedy_key();
            let others = self.by_revision.iter().filter(|(revision, _)| Some(**revision) != except);
            let order = |pin: &Pin| (greedy.is_none() || pin.owner != greedy, pin.is_followed, pin.last_used);
            let first = others.min_by_key(|(_, pin)| order(pin));
            let Some(first) = first.map(|(revision, _)| *revision) else { break };
            released.extend(self.by_revision.remove(&first));
        }
        DeferredDrop(released)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::records::tests::configs;
    use concord_model::{
        command::{Command, Expect, Proposal},
        key::Key,
        time::Timestamp,
    };

    const MIB: u64 = 1 << 20;

    fn state(revision: Revision) -> Arc<State> {
        let mut state = State::new();
        state.advance(revision);
        Arc::new(state)
    }

    fn pin(pins: &mut Pins, state: &Arc<State>, at: Instant) {
        pins.pin(state, at).has_cursor = true;
        pins.enforce_limits(MIB, state, Some(state.revision()));
    }

    #[test]
    fn the_oldest_pin_that_nobody_has_followed_is_released_first() {
        let (mut pins, now) = (Pins::default(), Instant::now());
        for revision in 1..=PINNED_STATES_MAX as u64 {
            pin(&mut pins, &state(revision), now + Duration::from_millis(revision));
        }
        assert!(pins.follow(1, now).is_some());
        pin(&mut pins, &state(5000), now);
        let has = |pins: &Pins, revision| pins.by_revision.contains_key(&revision);
        assert!(has(&pins, 1) && !has(&pins, 2) && has(&pins, 5000));
        pin(&mut pins, &state(3), now + Duration::from_secs(9));
        pin(&mut pins, &state(5001), now);
        assert!(has(&pins, 3) && !has(&pins, 5000), "a state that is pinned again counts as used");
        assert_eq!(pins.by_revision.len(), PINNED_STATES_MAX);
    }

    #[tokio::test]
    async fn a_greedy_key_makes_room_with_its_own_pins() {
        let (mut pins, now) = (Pins::default(), Instant::now());
        pin(&mut pins, &state(1), now);
        let greedy = Origin::Key([7; 12], [127, 0, 0, 1].into());
        greedy
            .serve(async {
                for revision in 2..=PINNED_STATES_MAX as u64 + 100 {
                    pin(&mut pins, &state(revision), now + Duration::from_millis(revision));
                    pins.follow(revision, now + Duration::from_millis(revision));
                }
            })
            .await;
        assert_eq!(pins.by_revision.len(), PINNED_STATES_MAX);
        assert!(
            pins.by_revision.contains_key(&1),
            "the oldest, which nobody has followed, is another caller's"
        );
        assert!(!pins.by_revision.contains_key(&2));
    }

    #[test]
    fn unused_pins_are_released() {
        let (mut pins, now) = (Pins::default(), Instant::now());
        pin(&mut pins, &state(1), now);
        pin(&mut pins, &state(2), now);
        assert!(pins.follow(2, now + CURSOR_IDLE_MAX / 2).is_some());
        assert_eq!(pins.release_unused(now + CURSOR_IDLE_MAX).0.len(), 1);
        assert_eq!(pins.by_revision.keys().copied().collect::<Vec<_>>(), [2]);
        assert_eq!(pins.release_unused(now + CURSOR_IDLE_MAX + CURSOR_IDLE_MAX / 2).0.len(), 1);
        assert!(pins.by_revision.is_empty());
        assert!(pins.follow(2, now).is_none());
    }

    /// A state that goes on, with one config whose text is rewritten.
    struct Rewritten(State);

    impl Rewritten {
        fn new() -> Self {
            let mut this = Self(State::new());
            this.apply(Command::CreateDefinition {
                key: Key::parse("d").unwrap(),
                indexes: Vec::new(),
                schema: None,
            });
            this
        }

        fn apply(&mut self, command: Command) {
            let revision = self.0.revision() + 1;
            let definition_read = (revision > 1).then_some(1);
            let (by, at) = ("root".into(), Timestamp(revision));
            let proposal =
                Proposal { at, by, reason: None, request: None, definition_read, command, key: None };
            assert!(self.0.apply(revision, &proposal).1.is_some());
        }

        fn write(&mut self, bytes: usize) -> Arc<State> {
            let (definition, key) = (Key::parse("d").unwrap(), Key::parse("k").unwrap());
            let (data, entries) = ("x".repeat(bytes).into(), Box::default());
            self.apply(Command::WriteConfig { definition, key, data, entries, expect: Expect::Any });
            Arc::new(self.0.clone())
        }
    }

    #[test]
    fn the_bytes_that_pins_keep_in_memory_are_bounded() {
        let (mut pins, now) = (Pins::default(), Instant::now());
        let mut writer = Rewritten::new();
        for round in 0..20 {
            pin(&mut pins, &writer.write(100_000), now + Duration::from_millis(round));
        }
        assert!(pins.pinned_bytes(&writer.0) <= MIB);
        assert_eq!(pins.by_revision.len(), 11, "ten that keep a text each, and the newest, which keeps none");
        assert!(pins.enforce_limits(MIB, &writer.0, None).0.is_empty());
        writer.write(10);
        assert_eq!(pins.enforce_limits(MIB, &writer.0, None).0.len(), 1, "now the newest keeps one, too");
        let large = writer.write(2_000_000);
        pin(&mut pins, &large, now + Duration::from_secs(1));
        assert!(pins.enforce_limits(MIB, &writer.0, None).0.is_empty());
        writer.write(10);
        assert_eq!(pins.enforce_limits(MIB, &writer.0, None).0.len(), 11, "alone it exceeds the limit");
        assert!(pins.by_revision.is_empty());
    }

    #[test]
    fn matches_are_retained_only_with_their_state() {
        let pinned = PinnedStates::new(MIB);
        let retain = || pinned.retain_matches(1, [1; 16], Arc::new(configs(2, 1)), &state(1));
        retain();
        assert!(pinned.find(1, &[1; 16]).is_none());
        pinned.lock().pin(&state(1), Instant::now());
        assert!(pinned.find(1, &[1; 16]).unwrap().1.is_none());
        retain();
        let (found, matches) = pinned.find(1, &[1; 16]).unwrap();
        assert_eq!((found.revision(), matches.unwrap().len()), (1, 2));
        assert!(pinned.find(1, &[2; 16]).unwrap().1.is_none());
    }

    #[test]
    fn a_state_that_watches_read_is_released_with_the_last_of_them() {
        let pinned = Arc::new(PinnedStates::new(MIB));
        let hold = || {
            let number = pinned.lock().watch(&state(1), Instant::now());
            Held { pinned: Arc::clone(&pinned), revision: 1, number }
        };
        let (one, two) = (hold(), hold());
        drop(one);
        assert_eq!(two.state().unwrap().revision(), 1);
        pinned.lock().pin(&state(1), Instant::now()).has_cursor = true;
        drop(two);
        assert!(pinned.find(1, &[1; 16]).is_some(), "a cursor names it");
        pinned.lock().by_revision.clear();
        let late = hold();
        pinned.lock().by_revision.clear();
        assert!(late.state().is_none());
        let again = hold();
        drop(late);
        assert!(again.state().is_some(), "it is another pin of the same revision");
    }
}
