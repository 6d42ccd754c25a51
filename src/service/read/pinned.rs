//! The states that this node retains for its cursors.
//!
//! A pinned state is a clone of persistent trees, which share their nodes with the states after it. So a page costs
//! the same at any depth, and writes continue. The cost of a pin is what later writes have replaced: for each entry
//! of the log at most one path through every index, and at most all indexes as a whole. That estimate is bounded
//! (`PINNED_BYTES_MAX`), as are the number of pins and the time that they are unused. When a limit is exceeded, the
//! least recently used pin of which no cursor was ever used is released first: most callers of a list never request
//! its second page, and those who do must not lose their state because of them.
//!
//! **Invariant:** a state is retained at most `CURSOR_IDLE_MAX` (and a tenth of it) after its last use, whether or not there
//! are any requests.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;

use super::{cursor::Fingerprint, records::ListRecords};
use crate::{
    model::{
        limits::{CURSOR_IDLE_MAX, PINNED_BYTES_MAX, PINNED_MATCHES_MAX, PINNED_STATES_MAX},
        record::Revision,
    },
    state::State,
};

/// Estimated bytes that an entry of the log replaces: the nodes on its path in four indexes, and the old record.
const REPLACED_BYTES_PER_ENTRY: u64 = 16 << 10;
/// Estimated bytes of a record in all indexes: its share of four leaves, and the record.
const BYTES_PER_RECORD: u64 = 512;
/// Bytes of one retained match: a pointer.
const BYTES_PER_MATCH: u64 = 8;
/// Lists of one pin whose matches are retained. The matches of more lists are computed again for each page.
const LISTS_PER_PIN_MAX: usize = 16;

/// A retained state.
#[derive(Debug)]
struct Pin {
    state: Arc<State>,
    last_used: Instant,
    /// Whether a cursor of this state was ever used.
    is_followed: bool,
    /// The matches of lists that are not a walk along an index.
    lists: BTreeMap<Fingerprint, Arc<ListRecords>>,
}

impl Pin {
    fn records(&self) -> u64 {
        self.state.config_count().saturating_add(self.state.definition_count())
    }
}

/// The pinned states of a node.
#[derive(Debug, Default)]
pub(in crate::service) struct PinnedStates {
    pins: Mutex<Pins>,
}

#[derive(Debug, Default)]
struct Pins {
    by_revision: BTreeMap<Revision, Pin>,
    /// Whether the task that releases unused pins is running.
    is_sweeping: bool,
}

impl PinnedStates {
    /// Retains a state from now on.
    pub(super) fn pin(self: &Arc<Self>, state: &Arc<State>) {
        let mut pins = self.lock();
        pins.pin(state, Instant::now());
        if !std::mem::replace(&mut pins.is_sweeping, true) {
            tokio::spawn(Arc::clone(self).sweep());
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
    pub(super) fn retain_matches(&self, revision: Revision, list: Fingerprint, matches: Arc<ListRecords>) {
        let mut pins = self.lock();
        let Some(pin) = pins.by_revision.get_mut(&revision) else { return };
        if matches.len() <= PINNED_MATCHES_MAX && pin.lists.len() < LISTS_PER_PIN_MAX {
            pin.lists.insert(list, matches);
            pins.enforce_limits(revision);
        }
    }

    /// Releases unused pins until there are none.
    async fn sweep(self: Arc<Self>) {
        loop {
            tokio::time::sleep(CURSOR_IDLE_MAX / 10).await;
            let mut pins = self.lock();
            pins.release_unused(Instant::now());
            if pins.by_revision.is_empty() {
                pins.is_sweeping = false;
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pins> {
        // A panic between two consistent values leaves a pin too many, which is released like any other.
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pins {
    fn pin(&mut self, state: &Arc<State>, now: Instant) {
        if let Some(pin) = self.by_revision.get_mut(&state.revision()) {
            pin.last_used = now;
            return;
        }
        let pin =
            Pin { state: Arc::clone(state), last_used: now, is_followed: false, lists: BTreeMap::new() };
        self.by_revision.insert(state.revision(), pin);
        self.enforce_limits(state.revision());
    }

    fn follow(&mut self, revision: Revision, now: Instant) -> Option<&Pin> {
        let pin = self.by_revision.get_mut(&revision)?;
        pin.last_used = now;
        pin.is_followed = true;
        Some(pin)
    }

    fn release_unused(&mut self, now: Instant) {
        self.by_revision.retain(|_, pin| now.saturating_duration_since(pin.last_used) < CURSOR_IDLE_MAX);
    }

    /// Estimated bytes that the pins keep from being freed.
    fn pinned_bytes(&self) -> u64 {
        let following = self.by_revision.keys().skip(1).map(Some).chain([None]);
        let bytes = |((revision, pin), next): ((&Revision, &Pin), Option<&Revision>)| {
            // The newest pin shares nearly everything with the node's own state. It costs once there is a newer one.
            let entries = next.map_or(0, |next| next.saturating_sub(*revision));
            let all_records = pin.records().saturating_mul(BYTES_PER_RECORD);
            let replaced = entries.saturating_mul(REPLACED_BYTES_PER_ENTRY).min(all_records);
            let matches: usize = pin.lists.values().map(|list| list.len()).sum();
            replaced.saturating_add(BYTES_PER_MATCH * matches as u64)
        };
        self.by_revision.iter().zip(following).map(bytes).fold(0, u64::saturating_add)
    }

    /// Releases pins until the limits hold; never the one of `except`.
    fn enforce_limits(&mut self, except: Revision) {
        while self.by_revision.len() > PINNED_STATES_MAX || self.pinned_bytes() > PINNED_BYTES_MAX {
            let others = self.by_revision.iter().filter(|(revision, _)| **revision != except);
            let first = others.min_by_key(|(_, pin)| (pin.is_followed, pin.last_used));
            let Some(first) = first.map(|(revision, _)| *revision) else { return };
            self.by_revision.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        model::{
            command::{Command, Proposal},
            key::Key,
            time::Timestamp,
        },
        service::read::records::tests::configs,
    };

    fn state(revision: Revision) -> Arc<State> {
        let mut state = State::new();
        state.advance(revision);
        Arc::new(state)
    }

    #[test]
    fn the_oldest_pin_that_nobody_has_followed_is_released_first() {
        let (mut pins, now) = (Pins::default(), Instant::now());
        for revision in 1..=PINNED_STATES_MAX as u64 {
            pins.pin(&state(revision), now + Duration::from_millis(revision));
        }
        assert!(pins.follow(1, now).is_some());
        pins.pin(&state(5000), now);
        let has = |pins: &Pins, revision| pins.by_revision.contains_key(&revision);
        assert!(has(&pins, 1) && !has(&pins, 2) && has(&pins, 5000));
        pins.pin(&state(3), now + Duration::from_secs(9));
        pins.pin(&state(5001), now);
        assert!(has(&pins, 3) && !has(&pins, 5000), "a state that is pinned again counts as used");
        assert_eq!(pins.by_revision.len(), PINNED_STATES_MAX);
    }

    #[test]
    fn unused_pins_are_released() {
        let (mut pins, now) = (Pins::default(), Instant::now());
        pins.pin(&state(1), now);
        pins.pin(&state(2), now);
        assert!(pins.follow(2, now + CURSOR_IDLE_MAX / 2).is_some());
        pins.release_unused(now + CURSOR_IDLE_MAX);
        assert_eq!(pins.by_revision.keys().copied().collect::<Vec<_>>(), [2]);
        pins.release_unused(now + CURSOR_IDLE_MAX + CURSOR_IDLE_MAX / 2);
        assert!(pins.by_revision.is_empty());
        assert!(pins.follow(2, now).is_none());
    }

    #[test]
    fn the_estimated_bytes_of_all_pins_are_bounded() {
        let (mut pins, now) = (Pins::default(), Instant::now());
        let mut state = State::new();
        let create = |number: u64| Proposal {
            at: Timestamp(number),
            by: "root".into(),
            reason: None,
            request: None,
            definition_read: None,
            command: Command::CreateDefinition {
                key: Key::parse(&format!("d{number}")).unwrap(),
                indexes: Vec::new(),
                schema: None,
            },
        };
        for number in 1..=1000 {
            state.apply(number, &create(number));
        }
        // So many entries lie between the pins that each may retain all of the thousand records.
        for round in 0..900 {
            state.advance(1000 + round * 1_000_000);
            pins.pin(&Arc::new(state.clone()), now + Duration::from_millis(round));
        }
        let each = 1000 * BYTES_PER_RECORD;
        assert!(pins.pinned_bytes() <= PINNED_BYTES_MAX);
        assert_eq!(
            pins.by_revision.len() as u64,
            PINNED_BYTES_MAX / each + 1,
            "the newest costs nothing yet"
        );
        assert!(pins.by_revision.contains_key(&(1000 + 899 * 1_000_000)));
    }

    #[tokio::test]
    async fn matches_are_retained_only_with_their_state() {
        let pinned = Arc::new(PinnedStates::default());
        pinned.retain_matches(1, [1; 16], Arc::new(configs(2, 1)));
        assert!(pinned.find(1, &[1; 16]).is_none());
        pinned.pin(&state(1));
        assert!(pinned.find(1, &[1; 16]).unwrap().1.is_none());
        pinned.retain_matches(1, [1; 16], Arc::new(configs(2, 1)));
        let (found, matches) = pinned.find(1, &[1; 16]).unwrap();
        assert_eq!((found.revision(), matches.unwrap().len()), (1, 2));
        assert!(pinned.find(1, &[2; 16]).unwrap().1.is_none());
    }
}
