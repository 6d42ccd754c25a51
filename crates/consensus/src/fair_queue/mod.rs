//! Whose work is next where the work of many waits: fair queueing.
//!
//! In one line, ten thousand requests of one access key would be ahead of a single request of another. So each owner has
//! a line of its own, and the owner that has used least is next: J. Nagle, "On packet switches with infinite storage"
//! (RFC 970); A. Demers, S. Keshav and S. Shenker, "Analysis and simulation of a fair queueing algorithm" (1989). An
//! owner whose line was empty gets no credit for that: it begins where the others are, as in P. Goyal, H. Vin and
//! H. Cheng, "Start-time fair queueing" (1996). So one who asks for little is served next.
//!
//! What a piece of work uses is a number: one for each write of a batch, or a time. It may be known before
//! the work ([`FairQueue::pop`]) or after it ([`FairQueue::charge`]).
//!
//! **Invariants:** what one owner waits for leaves in the order of its arrival. Nothing of an owner is kept that waits for
//! nothing, except what up to [`IDLE_OWNERS`] owners, or as many as wait, have used.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{BuildHasher as _, Hash, RandomState},
    sync::LazyLock,
};

/// Owners that wait for nothing and whose use is remembered, beside as many as wait.
const IDLE_OWNERS: usize = 64;

/// Whose work it is: a hash of the id of an access key, or of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkOwner(u64);

impl WorkOwner {
    /// For items that nobody asks the owner of.
    pub const SHARED: Self = Self(0);

    /// The owner with this name. Each process has hashes of its own.
    #[must_use]
    pub fn of(name: &(impl Hash + ?Sized)) -> Self {
        /// Has a random key, so that nobody chooses an address by its hash.
        static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Self(HASHER.hash_one(name))
    }

    /// From [`Self::to_bits`].
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// For an atomic.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }
}

/// The place of an item in a [`FairQueue`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePlace {
    owner: WorkOwner,
    number: u64,
}

/// Items that wait, in a line for each owner.
#[derive(Debug)]
pub struct FairQueue<T> {
    lines: BTreeMap<WorkOwner, OwnerLine<T>>,
    /// The owners that wait, by what they have used.
    order: BTreeSet<(u64, WorkOwner)>,
    /// What the owner that was served last had used before.
    now: u64,
    last_number: u64,
    len: usize,
}

#[derive(Debug)]
struct OwnerLine<T> {
    used: u64,
    /// In the order of their numbers.
    waiting: VecDeque<(u64, T)>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { lines: BTreeMap::new(), order: BTreeSet::new(), now: 0, last_number: 0, len: 0 }
    }
}

impl<T> FairQueue<T> {
    /// How many items wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an item to its owner's line.
    pub fn push(&mut self, owner: WorkOwner, item: T) -> QueuePlace {
        self.last_number += 1;
        let (now, number) = (self.now, self.last_number);
        let line = self.line(owner);
        if line.waiting.is_empty() {
            line.used = line.used.max(now);
            let used = line.used;
            line.waiting.push_back((number, item));
            self.order.insert((used, owner));
        } else {
            line.waiting.push_back((number, item));
        }
        self.len += 1;
        QueuePlace { owner, number }
    }

    /// The item that is next.
    #[must_use]
    pub fn peek(&self) -> Option<&T> {
        let (_, owner) = self.order.first()?;
        self.lines.get(owner)?.waiting.front().map(|(_, item)| item)
    }

    /// Takes the item that is next; its owner has used so much more.
    pub fn pop(&mut self, cost: u64) -> Option<T> {
        let (used, owner) = self.order.pop_first()?;
        self.now = used;
        let line = self.lines.get_mut(&owner)?;
        let (_, item) = line.waiting.pop_front()?;
        line.used = used.saturating_add(cost);
        if !line.waiting.is_empty() {
            self.order.insert((line.used, owner));
        }
        self.len -= 1;
        Some(item)
    }

    /// Takes all items, those of each owner in the order of their arrival. Nobody waited for another, so it costs nothing.
    pub fn take_all(&mut self) -> Vec<T> {
        let mut all = Vec::with_capacity(std::mem::take(&mut self.len));
        // Nobody waits any more, so what the owners have used before does not count.
        self.now = self.order.last().map_or(self.now, |(used, _)| *used);
        self.order.clear();
        for line in self.lines.values_mut() {
            all.extend(line.waiting.drain(..).map(|(_, item)| item));
        }
        all
    }

    /// All items, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.lines.values().flat_map(|line| &line.waiting).map(|(_, item)| item)
    }

    /// An owner has used so much more. Where nobody waits, nobody has an advantage to remember.
    pub fn charge(&mut self, owner: WorkOwner, cost: u64) {
        if self.is_empty() {
            self.lines.clear();
            return;
        }
        let line = self.line(owner);
        let (before, is_waiting) = (line.used, !line.waiting.is_empty());
        line.used = before.saturating_add(cost);
        let used = line.used;
        if is_waiting {
            self.order.remove(&(before, owner));
            self.order.insert((used, owner));
        }
    }

    /// Takes an item out, if it still waits.
    pub fn remove(&mut self, place: QueuePlace) -> Option<T> {
        let line = self.lines.get_mut(&place.owner)?;
        let at = line.waiting.binary_search_by_key(&place.number, |(number, _)| *number).ok()?;
        let (_, item) = line.waiting.remove(at)?;
        if line.waiting.is_empty() {
            self.order.remove(&(line.used, place.owner));
        }
        self.len -= 1;
        Some(item)
    }

    /// All items, in no order.
    pub fn into_items(self) -> impl Iterator<Item = T> {
        self.lines.into_values().flat_map(|line| line.waiting).map(|(_, item)| item)
    }

    fn line(&mut self, owner: WorkOwner) -> &mut OwnerLine<T> {
        if self.lines.len() > 2 * self.order.len() + IDLE_OWNERS {
            self.lines.retain(|_, line| !line.waiting.is_empty());
        }
        let used = self.now;
        self.lines.entry(owner).or_insert_with(|| OwnerLine { used, waiting: VecDeque::new() })
    }
}
