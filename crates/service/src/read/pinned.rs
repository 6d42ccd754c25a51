//! The states that this node retains for its cursors, and for watches that begin with the initial state.
//!
//! A pinned state is a clone of persistent trees, which share their nodes with later states. So a page costs the same at
//! any depth, and writes continue. The cost of a pin is what later writes have replaced: texts and nodes
//! ([`State::bytes_kept_beside`]). What several pins share counts once, for the newest of them.
//!
//! Most clients never request the second page of a list. Their pins go first, so that clients that do page keep theirs
//! ([`super::retained`]).
//!
//! **Invariant:** a pin that a cursor or a watch needs is released only by a limit.

use std::{collections::BTreeMap, sync::Arc};

use tokio::time::Instant;

use super::{
    cursor::Fingerprint,
    records::ListRecords,
    retained::{Retainable, Retained, RetainedLimits, RetainedValue, RetainedValues},
};
use crate::{deferred_drop::DeferredDrop, origin::Origin};
use concord_consensus::Consensus;
use concord_model::{
    limits::{CURSOR_IDLE_MAX, PINNED_MATCHES_MAX, PINNED_STATES_MAX},
    record::Revision,
};
use concord_state::State;

/// Bytes of one retained match: a pointer.
const BYTES_PER_MATCH: u64 = 8;
/// Lists of one pin whose matches are retained. The matches of more lists are computed again for each page.
const LISTS_PER_PIN_MAX: usize = 16;

/// A retained state.
#[derive(Debug)]
struct Pin {
    state: Arc<State>,
    /// Whether a cursor names it.
    has_cursor: bool,
    /// Watches that read it.
    watches: usize,
    /// The matches of lists that are not a walk along an index.
    lists: BTreeMap<Fingerprint, Arc<ListRecords>>,
}

impl Retainable for Pin {
    type Key = Revision;

    fn bytes_kept<'a>(pins: impl Iterator<Item = &'a Self> + Clone, current: &State) -> u64 {
        let next = pins.clone().skip(1).map(|pin| &*pin.state).chain([current]);
        let bytes = |(pin, next): (&Self, &State)| {
            let matches: usize = pin.lists.values().map(|list| list.len()).sum();
            pin.state.bytes_kept_beside(next).saturating_add(BYTES_PER_MATCH * matches as u64)
        };
        pins.zip(next).map(bytes).fold(0, u64::saturating_add)
    }
}

/// The pinned states of a node.
#[derive(Debug)]
pub(crate) struct PinnedStates {
    pins: Arc<Retained<Pin>>,
}

/// Pins a state for a watch until it is dropped.
#[derive(Debug)]
pub(crate) struct WatchPin {
    pins: Arc<Retained<Pin>>,
    revision: Revision,
    /// The number of the pin.
    number: u64,
}

impl PinnedStates {
    /// Retains states that keep at most so many bytes in memory.
    pub(crate) fn new(bytes_max: u64) -> Self {
        let limits = RetainedLimits { values_max: PINNED_STATES_MAX, bytes_max, idle_max: CURSOR_IDLE_MAX };
        Self { pins: Arc::new(Retained::new(limits)) }
    }

    /// The number of retained states, and the bytes that they keep in memory in addition to the current one.
    pub(crate) fn figures(&self, current: &State) -> (usize, u64) {
        let pins = self.pins.lock();
        (pins.by_key.len(), pins.bytes_kept(current))
    }

    /// Retains a state from now on, for a cursor.
    pub(super) fn pin(&self, state: &Arc<State>, consensus: &Consensus) {
        self.pins.update(consensus, Some(&state.revision()), |pins| pin_for_cursor(pins, state));
    }

    /// Retains a state as long as a watch reads it, as far as the limits allow.
    pub(crate) fn hold(&self, state: &Arc<State>, consensus: &Consensus) -> WatchPin {
        let number = self.pins.update(consensus, Some(&state.revision()), |pins| pin_for_watch(pins, state));
        WatchPin { pins: Arc::clone(&self.pins), revision: state.revision(), number }
    }

    /// The state of a revision, if it is pinned, and the matches of a list in it, if they are retained.
    pub(super) fn find(
        &self,
        revision: Revision,
        list: &Fingerprint,
    ) -> Option<(Arc<State>, Option<Arc<ListRecords>>)> {
        let mut pins = self.pins.lock();
        let pin = &pins.find(&revision, Instant::now())?.value;
        Some((Arc::clone(&pin.state), pin.lists.get(list).cloned()))
    }

    /// Retains the matches of a list for its next pages, as far as the limits allow.
    pub(super) fn retain_matches(
        &self,
        revision: Revision,
        list: Fingerprint,
        matches: Arc<ListRecords>,
        current: &State,
    ) {
        let mut pins = self.pins.lock();
        let Some(pin) = pins.by_key.get_mut(&revision) else { return };
        if matches.len() <= PINNED_MATCHES_MAX && pin.value.lists.len() < LISTS_PER_PIN_MAX {
            pin.value.lists.insert(list, matches);
            let released = pins.enforce_limits(current, Some(&revision));
            drop(pins);
            drop(released);
        }
    }
}

impl WatchPin {
    /// The state, unless a limit has released it.
    pub(crate) fn state(&self) -> Option<Arc<State>> {
        self.pins.lock().find(&self.revision, Instant::now()).map(|pin| Arc::clone(&pin.value.state))
    }
}

impl Drop for WatchPin {
    fn drop(&mut self) {
        let mut pins = self.pins.lock();
        // A limit may have released its pin, and another watch or cursor pinned the state again.
        let Some(pin) = pins.by_key.get_mut(&self.revision).filter(|pin| pin.number == self.number) else {
            return;
        };
        pin.value.watches = pin.value.watches.saturating_sub(1);
        let is_unused = pin.value.watches == 0 && !pin.value.has_cursor;
        let released = if is_unused { pins.by_key.remove(&self.revision) } else { None };
        drop(pins);
        drop(DeferredDrop(released.into_iter().collect()));
    }
}

fn pin<'a>(pins: &'a mut RetainedValues<Pin>, state: &Arc<State>) -> &'a mut RetainedValue<Pin> {
    pins.insert_with(state.revision(), Origin::current().key(), Instant::now(), || Pin {
        state: Arc::clone(state),
        has_cursor: false,
        watches: 0,
        lists: BTreeMap::new(),
    })
}

fn pin_for_cursor(pins: &mut RetainedValues<Pin>, state: &Arc<State>) {
    pin(pins, state).value.has_cursor = true;
}

/// The number of the pin.
fn pin_for_watch(pins: &mut RetainedValues<Pin>, state: &Arc<State>) -> u64 {
    let pin = pin(pins, state);
    pin.value.watches += 1;
    pin.is_used = true;
    pin.number
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::records::tests::configs;
    use concord_model::{
        access_key::Author,
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

    /// Pins a state as a request does.
    fn pin_for_list(pinned: &PinnedStates, state: &Arc<State>) {
        let mut pins = pinned.pins.lock();
        pin_for_cursor(&mut pins, state);
        pins.enforce_limits(state, Some(&state.revision()));
    }

    #[tokio::test]
    async fn a_pin_belongs_to_the_access_key_of_the_request_that_made_it() {
        let pinned = PinnedStates::new(MIB);
        pin_for_list(&pinned, &state(1));
        let key = Origin::Key([7; 12], [127, 0, 0, 1].into());
        let pin_rest = async {
            for revision in 2..=PINNED_STATES_MAX as u64 + 100 {
                pin_for_list(&pinned, &state(revision));
                assert!(pinned.find(revision, &[1; 16]).is_some());
            }
        };
        key.serve(pin_rest).await;
        assert_eq!(pinned.figures(&state(1)).0, PINNED_STATES_MAX);
        assert!(
            pinned.find(1, &[1; 16]).is_some(),
            "the oldest pin, which nobody has used, has no such owner"
        );
        assert!(pinned.find(2, &[1; 16]).is_none());
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
            let proposal = Proposal {
                at,
                by,
                reason: None,
                request: None,
                definition_read,
                command,
                author: Author::Root,
                tail: None,
            };
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
        let pinned = PinnedStates::new(MIB);
        let mut writer = Rewritten::new();
        for _ in 0..20 {
            pin_for_list(&pinned, &writer.write(100_000));
        }
        let (count, bytes) = pinned.figures(&writer.0);
        assert!(bytes <= MIB);
        assert_eq!(count, 11, "ten that keep a text each, and the newest, which keeps none");
        let released = |current: &State| pinned.pins.lock().enforce_limits(current, None).0.len();
        assert_eq!(released(&writer.0), 0);
        writer.write(10);
        assert_eq!(released(&writer.0), 1, "now the newest keeps one, too");
        pin_for_list(&pinned, &writer.write(2_000_000));
        assert_eq!(released(&writer.0), 0);
        writer.write(10);
        assert_eq!(released(&writer.0), 11, "alone it exceeds the limit");
        assert_eq!(pinned.figures(&writer.0), (0, 0));
    }

    #[test]
    fn matches_are_retained_only_with_their_state() {
        let pinned = PinnedStates::new(MIB);
        let retain = || pinned.retain_matches(1, [1; 16], Arc::new(configs(2, 1)), &state(1));
        retain();
        assert!(pinned.find(1, &[1; 16]).is_none());
        pin(&mut pinned.pins.lock(), &state(1));
        assert!(pinned.find(1, &[1; 16]).unwrap().1.is_none());
        retain();
        let (found, matches) = pinned.find(1, &[1; 16]).unwrap();
        assert_eq!((found.revision(), matches.unwrap().len()), (1, 2));
        assert!(pinned.find(1, &[2; 16]).unwrap().1.is_none());
    }

    #[test]
    fn a_state_that_watches_read_is_released_with_the_last_of_them() {
        let pinned = PinnedStates::new(MIB);
        let hold = || {
            let number = pin_for_watch(&mut pinned.pins.lock(), &state(1));
            WatchPin { pins: Arc::clone(&pinned.pins), revision: 1, number }
        };
        let (one, two) = (hold(), hold());
        drop(one);
        assert_eq!(two.state().unwrap().revision(), 1);
        pin_for_cursor(&mut pinned.pins.lock(), &state(1));
        drop(two);
        assert!(pinned.find(1, &[1; 16]).is_some(), "a cursor names it");
        pinned.pins.lock().by_key.clear();
        let late = hold();
        pinned.pins.lock().by_key.clear();
        assert!(late.state().is_none());
        let again = hold();
        drop(late);
        assert!(again.state().is_some(), "it is another pin of the same revision");
    }
}
