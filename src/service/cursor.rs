//! Cursors: the next page of the state that the first page was made from.
//!
//! A cursor names the node that holds the state, its revision, a page and the list that it belongs to. The node keeps
//! the state itself, *pinned*: a clone of a tree of shared nodes, so that a page costs the same at any depth and
//! writes go on beside it. What a pin costs is what writes have replaced since: at most a path through every order
//! for each entry behind it, and at most all orders anew. That estimate is what bounds the pins ([`BUDGET`]), beside
//! their number and the time that they lie unused. When there is no room, the oldest goes that nobody has followed yet: most
//! callers of a list never ask for its next page, and those who do must not suffer from them.
//!
//! **Invariants:** a cursor's page is of exactly the state that it names, or refused; a state is held no longer than
//! [`IDLE`] after its last use, whether anybody asks or not.

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
    raft::NodeId,
    state::State,
};

/// How long a state is held unused: a person who reads a page, a job that works on one.
pub(super) const IDLE: Duration = Duration::from_secs(5 * 60);
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
pub type Print = [u8; 16];

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
    pub print: Print,
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
        let (cursor, rest) = postcard::take_from_bytes(rest).ok()?;
        Some(cursor).filter(|_| *form == FORM && rest.is_empty())
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
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Definitions(records) => records.len(),
            Self::Configs(records) => records.len(),
        }
    }

    /// A page of them.
    pub(super) fn cut(&self, page: u64, limit: u64) -> Self {
        let from = page.saturating_sub(1).saturating_mul(limit);
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX).min(self.len());
        let (from, to) = (size(from), size(from.saturating_add(limit)));
        match self {
            Self::Definitions(records) => Self::Definitions(records[from..to].to_vec()),
            Self::Configs(records) => Self::Configs(records[from..to].to_vec()),
        }
    }

    /// As many as one call carries, from a place on, and how many are left behind them.
    pub(super) fn piece(self, from: usize) -> (Self, u64) {
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
    pub(super) fn append(&mut self, more: Self) {
        match (self, more) {
            (Self::Definitions(records), Self::Definitions(more)) => records.extend(more),
            (Self::Configs(records), Self::Configs(more)) => records.extend(more),
            (Self::Definitions(_), Self::Configs(_)) | (Self::Configs(_), Self::Definitions(_)) => {}
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
    lists: BTreeMap<Print, Arc<Records>>,
}

impl Pin {
    fn records(&self) -> u64 {
        self.state.config_count().saturating_add(self.state.definition_count())
    }
}

/// The states that this node holds for its cursors.
#[derive(Debug, Default)]
pub(super) struct Pins {
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
    pub(super) fn hold(self: &Arc<Self>, state: &Arc<State>) {
        let mut held = self.lock();
        let now = Instant::now();
        let pin = held.pins.entry(state.revision());
        pin.or_insert_with(|| Pin {
            state: Arc::clone(state),
            used: now,
            followed: false,
            lists: BTreeMap::new(),
        })
        .used = now;
        held.fit(state.revision());
        if !std::mem::replace(&mut held.swept, true) {
            tokio::spawn(Arc::clone(self).sweep());
        }
    }

    /// The state of a revision, if it is held, and the matches of a list in it, if they are kept.
    pub(super) fn find(
        &self,
        revision: Revision,
        print: &Print,
    ) -> Option<(Arc<State>, Option<Arc<Records>>)> {
        let mut held = self.lock();
        let pin = held.pins.get_mut(&revision)?;
        pin.used = Instant::now();
        pin.followed = true;
        Some((Arc::clone(&pin.state), pin.lists.get(print).cloned()))
    }

    /// Keeps the matches of a list for its next pages, where there is room.
    pub(super) fn keep(&self, revision: Revision, print: Print, matches: Arc<Records>) {
        let mut held = self.lock();
        let Some(pin) = held.pins.get_mut(&revision) else { return };
        if matches.len() <= MATCHES_MAX && pin.lists.len() < LISTS_MAX {
            pin.lists.insert(print, matches);
            held.fit(revision);
        }
    }

    /// Lets go of what has lain unused, until nothing is held.
    async fn sweep(self: Arc<Self>) {
        loop {
            tokio::time::sleep(IDLE / 10).await;
            let mut held = self.lock();
            let now = Instant::now();
            held.pins.retain(|_, pin| now.saturating_duration_since(pin.used) < IDLE);
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
