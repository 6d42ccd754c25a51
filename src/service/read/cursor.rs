//! Cursors: the next page of the state that the first page was made from.
//!
//! A cursor names the node that holds the state, its revision, a page and the list that it belongs to. The node keeps
//! the state itself, *pinned*: a clone of a tree of shared nodes, so that a page costs the same at any depth and
//! writes go on beside it. What a pin costs is what writes have replaced since: at most a path through every order
//! for each entry behind it, and at most all orders anew. That estimate is what bounds the pins (`BUDGET`), beside
//! their number and the time that they lie unused. When there is no room, the oldest goes that nobody has followed
//! yet: most callers of a list never ask for its next page, and those who do must not suffer from them.
//!
//! **Invariants:** a cursor's page is of exactly the state that it names, or refused; a state is held no longer than
//! `IDLE` after its last use, whether anybody asks or not.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::{
    model::record::{Config, Definition, Revision},
    peer::NodeId,
    state::State,
};

/// How long a state is held unused: a person who reads a page, a job that works on one.
pub(in crate::service) const IDLE: Duration = Duration::from_secs(5 * 60);
/// States that are held at most.
const PINS_MAX: usize = 1024;
/// Bytes that all pins may keep from being freed, as estimated.
const BUDGET: u64 = 256 << 20;
/// What an entry leaves behind, about: the nodes on its way in four orders, and the record that it replaced.
const ENTRY_BYTES: u64 = 16 << 10;
/// What a record takes in all orders, about: its share of four leaves and the record itself.
const RECORD_BYTES: u64 = 512;
/// Sorted matches that are kept for a list with conditions; a longer list is looked up again for each page.
const MATCHES_MAX: usize = 1 << 20;
/// Lists whose matches one pin keeps; more share what they find of the state only.
const LISTS_MAX: usize = 16;
/// Bytes of records from which on a piece of a page ends.
const PIECE_BYTES: usize = 4 << 20;
/// The form of a cursor; the first byte of each.
const FORM: u8 = 1;

/// What a list was asked by: a hash of all that decides its records and their order.
pub(crate) type Fingerprint = [u8; 16];

/// The place of a page in a list of one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Who holds the state.
    pub node: NodeId,
    /// Which state.
    pub revision: Revision,
    /// Which page.
    pub page: u64,
    /// Of which list.
    pub fingerprint: Fingerprint,
}

impl Cursor {
    /// The text that a caller gives back.
    #[must_use]
    pub fn text(&self) -> String {
        let mut bytes =
            postcard::to_extend(self, vec![FORM]).expect("a cursor is plain data and memory grows");
        let sum = crc32c::crc32c(&bytes).to_be_bytes();
        bytes.extend(sum);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The cursor that a text is.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (head, sum) = bytes.split_last_chunk::<4>()?;
        if crc32c::crc32c(head).to_be_bytes() != *sum {
            return None;
        }
        let (form, rest) = head.split_first()?;
        let (cursor, rest): (Self, _) = postcard::take_from_bytes(rest).ok()?;
        // There is a page before each that a cursor was made for.
        Some(cursor).filter(|cursor| *form == FORM && rest.is_empty() && cursor.page > 1)
    }
}

/// The records of a list, sorted, or of a page of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Records {
    /// Definitions.
    Definitions(Vec<Arc<Definition>>),
    /// Configs.
    Configs(Vec<Arc<Config>>),
}

impl Default for Records {
    fn default() -> Self {
        Self::Definitions(Vec::new())
    }
}

impl Records {
    pub(in crate::service) fn len(&self) -> usize {
        match self {
            Self::Definitions(records) => records.len(),
            Self::Configs(records) => records.len(),
        }
    }

    /// A page of them.
    pub(in crate::service) fn cut(&self, page: u64, limit: u64) -> Self {
        let from = page.saturating_sub(1).saturating_mul(limit);
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX).min(self.len());
        let (from, to) = (size(from), size(from.saturating_add(limit)));
        match self {
            Self::Definitions(records) => Self::Definitions(records[from..to].to_vec()),
            Self::Configs(records) => Self::Configs(records[from..to].to_vec()),
        }
    }

    /// As many as one call carries, from a place on, and how many are left behind them.
    pub(in crate::service) fn piece(self, from: usize) -> (Self, u64) {
        match self {
            Self::Definitions(records) => {
                let size = |record: &Arc<Definition>| record.schema.as_ref().map_or(0, |text| text.len());
                let (taken, left) = take(records, from, size);
                (Self::Definitions(taken), left)
            }
            Self::Configs(records) => {
                let (taken, left) = take(records, from, |record| record.data.len());
                // What it is found by is of no interest to who shows it.
                let bare =
                    |config: Arc<Config>| Arc::new(Config { entries: Box::default(), ..(*config).clone() });
                (Self::Configs(taken.into_iter().map(bare).collect()), left)
            }
        }
    }

    /// More of the same kind.
    pub(in crate::service) fn append(&mut self, more: Self) {
        match (self, more) {
            (Self::Definitions(records), Self::Definitions(more)) => records.extend(more),
            (Self::Configs(records), Self::Configs(more)) => records.extend(more),
            // Nothing yet, of whichever kind.
            (all @ (Self::Definitions(_) | Self::Configs(_)), more) => *all = more,
        }
    }
}

/// At least one record, and no more once they are long.
fn take<R>(records: Vec<R>, from: usize, size: impl Fn(&R) -> usize) -> (Vec<R>, u64) {
    let mut bytes = 0_usize;
    let rest = records.len().saturating_sub(from);
    let fits = |record: &R| {
        let had = bytes;
        bytes = bytes.saturating_add(size(record));
        had < PIECE_BYTES
    };
    let taken: Vec<R> = records.into_iter().skip(from).take_while(fits).collect();
    let left = rest.saturating_sub(taken.len()) as u64;
    (taken, left)
}

/// A state that is held.
#[derive(Debug)]
struct Pin {
    state: Arc<State>,
    used: Instant,
    /// Whether a cursor of it was ever followed.
    followed: bool,
    /// The matches of lists that can't be walked to a place.
    lists: BTreeMap<Fingerprint, Arc<Records>>,
}

impl Pin {
    fn records(&self) -> u64 {
        self.state.config_count().saturating_add(self.state.definition_count())
    }
}

/// The states that this node holds for its cursors.
#[derive(Debug, Default)]
pub(in crate::service) struct Pins {
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    pins: BTreeMap<Revision, Pin>,
    /// Whether somebody looks after the pins that nobody uses.
    swept: bool,
}

impl Pins {
    /// Holds a state from now on.
    pub(in crate::service) fn hold(self: &Arc<Self>, state: &Arc<State>) {
        let mut held = self.lock();
        held.hold(state, Instant::now());
        if !std::mem::replace(&mut held.swept, true) {
            tokio::spawn(Arc::clone(self).sweep());
        }
    }

    /// The state of a revision, if it is held, and the matches of a list in it, if they are kept.
    pub(in crate::service) fn find(
        &self,
        revision: Revision,
        print: &Fingerprint,
    ) -> Option<(Arc<State>, Option<Arc<Records>>)> {
        let mut held = self.lock();
        let pin = held.follow(revision, Instant::now())?;
        Some((Arc::clone(&pin.state), pin.lists.get(print).cloned()))
    }

    /// Keeps the matches of a list for its next pages, where there is room.
    pub(in crate::service) fn keep(
        &self,
        revision: Revision,
        fingerprint: Fingerprint,
        matches: Arc<Records>,
    ) {
        let mut held = self.lock();
        let Some(pin) = held.pins.get_mut(&revision) else { return };
        if matches.len() <= MATCHES_MAX && pin.lists.len() < LISTS_MAX {
            pin.lists.insert(fingerprint, matches);
            held.fit(revision);
        }
    }

    /// Lets go of what has lain unused, until nothing is held.
    async fn sweep(self: Arc<Self>) {
        loop {
            tokio::time::sleep(IDLE / 10).await;
            let mut held = self.lock();
            held.expire(Instant::now());
            if held.pins.is_empty() {
                held.swept = false;
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        // Whatever panics between two consistent forms leaves pins, which are only ever taken away.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn hold(&mut self, state: &Arc<State>, now: Instant) {
        if let Some(known) = self.pins.get_mut(&state.revision()) {
            known.used = now;
            return;
        }
        let pin = Pin { state: Arc::clone(state), used: now, followed: false, lists: BTreeMap::new() };
        self.pins.insert(state.revision(), pin);
        self.fit(state.revision());
    }

    fn follow(&mut self, revision: Revision, now: Instant) -> Option<&Pin> {
        let pin = self.pins.get_mut(&revision)?;
        pin.used = now;
        pin.followed = true;
        Some(pin)
    }

    fn expire(&mut self, now: Instant) {
        self.pins.retain(|_, pin| now.saturating_duration_since(pin.used) < IDLE);
    }

    /// What the pins keep from being freed, as estimated.
    fn cost(&self) -> u64 {
        let behind = self.pins.keys().skip(1).map(Some).chain([None]);
        let cost = |((revision, pin), next): ((&Revision, &Pin), Option<&Revision>)| {
            // The newest is what the node itself holds, more or less; it costs once the next one is there.
            let entries = next.map_or(0, |next| next.saturating_sub(*revision));
            let replaced =
                entries.saturating_mul(ENTRY_BYTES).min(pin.records().saturating_mul(RECORD_BYTES));
            let matches: usize = pin.lists.values().map(|list| list.len()).sum();
            replaced.saturating_add(8 * matches as u64)
        };
        self.pins.iter().zip(behind).map(cost).fold(0, u64::saturating_add)
    }

    /// Lets go until what is held has room; never of `keep`.
    fn fit(&mut self, keep: Revision) {
        while self.pins.len() > PINS_MAX || self.cost() > BUDGET {
            let others = || self.pins.iter().filter(|(revision, _)| **revision != keep);
            let oldest =
                others().min_by_key(|(_, pin)| (pin.followed, pin.used)).map(|(revision, _)| *revision);
            let Some(oldest) = oldest else { return };
            self.pins.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        command::{Command, Proposal},
        key::Key,
        time::Timestamp,
    };

    fn cursor() -> Cursor {
        Cursor { node: 3, revision: u64::MAX, page: 7, fingerprint: [9; 16] }
    }

    fn state(revision: Revision) -> Arc<State> {
        let mut state = State::new();
        state.advance(revision);
        Arc::new(state)
    }

    fn configs(number: usize, bytes: usize) -> Records {
        let config = |place: usize| Config {
            key: Key::parse(&format!("k{place}")).unwrap(),
            data: "x".repeat(bytes).into(),
            entries: Box::default(),
            created_at: Timestamp(1),
            modified_at: Timestamp(1),
            revision: 1,
        };
        Records::Configs((0..number).map(|place| Arc::new(config(place))).collect())
    }

    #[test]
    fn a_cursor_comes_back_from_its_text_and_nothing_else_is_one() {
        let text = cursor().text();
        assert_eq!(Cursor::parse(&text), Some(cursor()));
        assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{text}");
        for place in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[place] = if bytes[place] == b'A' { b'B' } else { b'A' };
            assert_eq!(Cursor::parse(&String::from_utf8(bytes).unwrap()), None, "{place}");
        }
        assert_eq!(Cursor::parse(&Cursor { page: 0, ..cursor() }.text()), None);
        for bad in [
            "",
            "A",
            "AAAA",
            "ä",
            &text[1..],
            &text[..text.len() - 1],
            &format!("{text}A"),
            &format!("{text}="),
        ] {
            assert_eq!(Cursor::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_oldest_that_nobody_follows_goes_first() {
        let (mut held, now) = (Held::default(), Instant::now());
        for revision in 1..=PINS_MAX as u64 {
            held.hold(&state(revision), now + Duration::from_millis(revision));
        }
        assert!(held.follow(1, now).is_some());
        held.hold(&state(5000), now);
        assert!(held.pins.contains_key(&1) && !held.pins.contains_key(&2) && held.pins.contains_key(&5000));
        held.hold(&state(3), now + Duration::from_secs(9));
        held.hold(&state(5001), now);
        assert!(
            held.pins.contains_key(&3) && !held.pins.contains_key(&5000),
            "what was asked for again is newer"
        );
        assert_eq!(held.pins.len(), PINS_MAX);
    }

    #[test]
    fn what_lies_unused_is_let_go() {
        let (mut held, now) = (Held::default(), Instant::now());
        held.hold(&state(1), now);
        held.hold(&state(2), now);
        assert!(held.follow(2, now + IDLE / 2).is_some());
        held.expire(now + IDLE);
        assert_eq!(held.pins.keys().copied().collect::<Vec<_>>(), [2]);
        held.expire(now + IDLE + IDLE / 2);
        assert!(held.pins.is_empty());
        assert!(held.follow(2, now).is_none());
    }

    #[test]
    fn pins_keep_no_more_than_their_budget() {
        let (mut held, now) = (Held::default(), Instant::now());
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
        // Each pin may keep all of the thousand records.
        for round in 0..900 {
            state.advance(1000 + round * 1_000_000);
            held.hold(&Arc::new(state.clone()), now + Duration::from_millis(round));
        }
        let each = 1000 * RECORD_BYTES;
        assert!(held.cost() <= BUDGET);
        assert_eq!(held.pins.len() as u64, BUDGET / each + 1, "the newest costs nothing yet");
        assert!(held.pins.contains_key(&(1000 + 899 * 1_000_000)));
    }

    #[tokio::test]
    async fn matches_are_kept_with_their_state_and_only_there() {
        let pins = Arc::new(Pins::default());
        pins.keep(1, [1; 16], Arc::new(configs(2, 1)));
        assert!(pins.find(1, &[1; 16]).is_none());
        pins.hold(&state(1));
        assert!(pins.find(1, &[1; 16]).unwrap().1.is_none());
        pins.keep(1, [1; 16], Arc::new(configs(2, 1)));
        let (found, matches) = pins.find(1, &[1; 16]).unwrap();
        assert_eq!((found.revision(), matches.unwrap().len()), (1, 2));
        assert!(pins.find(1, &[2; 16]).unwrap().1.is_none());
    }

    #[test]
    fn pages_and_pieces_meet_without_gap_or_overlap() {
        let all = configs(10, PIECE_BYTES / 2);
        let mut cut = all.cut(1, 4);
        for page in 2..=4 {
            cut.append(all.cut(page, 4));
        }
        assert_eq!(cut, all);
        assert_eq!(all.cut(u64::MAX, u64::MAX).len(), 0);
        let (mut got, mut left) = all.clone().piece(0);
        assert_eq!((got.len(), left), (2, 8));
        while left > 0 {
            let (more, rest) = all.clone().piece(got.len());
            got.append(more);
            left = rest;
        }
        assert_eq!(got, all);
        assert_eq!(configs(1, PIECE_BYTES * 2).piece(0).0.len(), 1, "one record always goes");
        assert_eq!(configs(1, 1).piece(5), (Records::Configs(Vec::new()), 0));
    }
}
