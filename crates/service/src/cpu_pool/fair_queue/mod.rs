//! Decides whose work runs next in the CPU pool.
//!
//! The next turn goes to the origin that has used the threads least. An origin that was absent gets no credit for that:
//! it begins where the others are. The work of one origin runs in its order of arrival.
//!
//! Work that may take seconds is *long*: a list, a batch, a scan. Long work never takes all threads. So a body is parsed,
//! and a single write is checked, as soon as another short piece ends. A scan of all configs may take most of a minute. It
//! yields its turn after each slice, and one origin has one scan at a time.
//!
//! **Invariants:** there are at most as many turns as threads. Dropping a turn gives it back. A dropped ticket never gets
//! one.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    sync::oneshot,
    time::{Duration, Instant},
};

use crate::{Refusal, origin::Origin};
use concord_model::limits::{CONFIG_SCANS_MAX, LONG_LISTS_MAX};

/// How long a scan works before it yields.
const SLICE: Duration = Duration::from_millis(100);

/// The kind of a piece of work, which says how long it is expected to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    /// The parse of a body, the check of one write, or a short page.
    Short,
    /// A batch.
    Long,
    /// A list. At most [`LONG_LISTS_MAX`] of one origin wait.
    List,
    /// The first slice of a scan of all configs of a definition: it takes a place among the scans.
    Scan,
    /// A further slice of a scan.
    Resumed,
    /// The last part of a scan: writes wait for it.
    Urgent,
}

impl Weight {
    fn is_long(self) -> bool {
        match self {
            Self::Long | Self::List | Self::Scan | Self::Resumed => true,
            Self::Short | Self::Urgent => false,
        }
    }
}

/// The turns of the pool, and the work that waits for them.
#[derive(Debug)]
pub(super) struct PoolQueue {
    threads: usize,
    queue: Mutex<OriginQueues>,
}

#[derive(Debug, Default)]
struct OriginQueues {
    running: usize,
    running_long: usize,
    scans: usize,
    /// The `used` of the origin that got the last turn.
    now: u64,
    /// The number of the next piece of work.
    number: u64,
    shares: BTreeMap<Origin, OriginShare>,
}

/// The work of one origin.
#[derive(Debug, Default)]
struct OriginShare {
    short: VecDeque<WaitingWork>,
    long: VecDeque<WaitingWork>,
    running: usize,
    scans: usize,
    /// Microseconds that it has used on the threads.
    used: u64,
}

#[derive(Debug)]
struct WaitingWork {
    number: u64,
    weight: Weight,
    turn: oneshot::Sender<PoolPermit>,
}

/// A piece of work that waits for its turn. Dropping it gives that up.
#[derive(Debug)]
pub(super) struct Ticket {
    turns: Arc<PoolQueue>,
    origin: Origin,
    number: u64,
    pub(super) turn: oneshot::Receiver<PoolPermit>,
}

/// A turn: the permission to run on one of the threads.
#[derive(Debug)]
pub(crate) struct PoolPermit {
    turns: Arc<PoolQueue>,
    origin: Origin,
    weight: Weight,
    begun: Instant,
    /// When it yields next.
    slice_ends: Instant,
    is_over: bool,
}

/// A place among the scans. A scan keeps it while it yields its turn.
#[derive(Debug)]
pub(crate) struct ScanPlace {
    turns: Arc<PoolQueue>,
    origin: Origin,
}

/// The load of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolFigures {
    /// Pieces of work that may run at once.
    pub(crate) turns: usize,
    /// Pieces of work that run.
    pub(crate) running: usize,
    /// Pieces of work that wait for a turn.
    pub(crate) waiting: usize,
}

impl PoolQueue {
    pub(super) fn new(threads: usize) -> Arc<Self> {
        Arc::new(Self { threads, queue: Mutex::default() })
    }

    /// The numbers of turns, of pieces of work that run, and of pieces that wait.
    pub(super) fn figures(&self) -> PoolFigures {
        let queue = self.lock();
        let waiting = queue.shares.values().map(|share| share.short.len() + share.long.len()).sum();
        PoolFigures { turns: self.threads, running: queue.running, waiting }
    }

    /// Waits in the queue.
    ///
    /// # Errors
    /// [`Refusal::LimitReached`] when [`LONG_LISTS_MAX`] lists of the origin wait.
    pub(super) fn enter(self: &Arc<Self>, origin: Origin, weight: Weight) -> Result<Ticket, Refusal> {
        let mut queue = self.lock();
        if weight == Weight::List && queue.waiting_lists(origin) >= LONG_LISTS_MAX {
            return Err(Refusal::LimitReached(format!(
                "this client already has {LONG_LISTS_MAX} list requests queued on this node, the limit"
            )));
        }
        let ticket = self.push(&mut queue, origin, weight);
        self.give(&mut queue);
        Ok(ticket)
    }

    fn push(self: &Arc<Self>, queue: &mut OriginQueues, origin: Origin, weight: Weight) -> Ticket {
        let (send, turn) = oneshot::channel();
        let (number, now) = (queue.number, queue.now);
        queue.number += 1;
        let share =
            queue.shares.entry(origin).or_insert_with(|| OriginShare { used: now, ..OriginShare::default() });
        let waiting = WaitingWork { number, weight, turn: send };
        match weight {
            Weight::Short => share.short.push_back(waiting),
            Weight::Long | Weight::List | Weight::Scan => share.long.push_back(waiting),
            // One other piece of its origin goes first.
            Weight::Resumed => share.long.insert(share.long.len().min(1), waiting),
            Weight::Urgent => share.short.push_front(waiting),
        }
        Ticket { turns: Arc::clone(self), origin, number, turn }
    }

    /// Gives the free turns away.
    fn give(self: &Arc<Self>, queue: &mut OriginQueues) {
        while let Some((origin, waiting)) = queue.take_next(self.threads) {
            let (turns, weight, begun) = (Arc::clone(self), waiting.weight, Instant::now());
            queue.begin(origin, weight);
            let turn = PoolPermit { turns, origin, weight, begun, slice_ends: begun + SLICE, is_over: false };
            if let Err(mut turn) = waiting.turn.send(turn) {
                // Its ticket was dropped. The turn is taken back here, because the queue is locked.
                turn.is_over = true;
                queue.end(origin, weight, Duration::ZERO);
            }
        }
        queue.remove_idle();
    }

    fn lock(&self) -> MutexGuard<'_, OriginQueues> {
        // No code panics while it holds the lock, and counters that are off by one would only delay a turn.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.threads - self.lock().running
    }
}

impl OriginQueues {
    /// The number of lists of an origin that wait. For a stored key, those from all its addresses.
    fn waiting_lists(&self, origin: Origin) -> usize {
        let lists = |share: &OriginShare| share.long.iter().filter(|one| one.weight == Weight::List).count();
        match origin.key() {
            None => self.shares.get(&origin).map_or(0, lists),
            key => self
                .shares
                .iter()
                .filter(|(other, _)| other.key() == key)
                .map(|(_, share)| lists(share))
                .sum(),
        }
    }

    /// Takes the next piece of work that is allowed to begin.
    fn take_next(&mut self, threads: usize) -> Option<(Origin, WaitingWork)> {
        if self.running >= threads {
            return None;
        }
        let may_be_long = self.running_long < threads.saturating_sub(1).max(1);
        let may_scan = self.scans < CONFIG_SCANS_MAX;
        let eligible = self.shares.iter().filter_map(|(origin, share)| {
            let next = share.next(may_be_long, may_scan)?;
            Some(((!next.is_urgent, share.used), *origin, next))
        });
        let (_, origin, next) = eligible.min_by_key(|(order, ..)| *order)?;
        let share = self.shares.get_mut(&origin)?;
        let waiting = if next.is_long { share.long.remove(next.place) } else { share.short.pop_front() };
        Some((origin, waiting?))
    }

    fn begin(&mut self, origin: Origin, weight: Weight) {
        self.running += 1;
        self.running_long += usize::from(weight.is_long());
        let is_scan = weight == Weight::Scan;
        self.scans += usize::from(is_scan);
        if let Some(share) = self.shares.get_mut(&origin) {
            share.running += 1;
            share.scans += usize::from(is_scan);
            self.now = self.now.max(share.used);
        }
    }

    fn end(&mut self, origin: Origin, weight: Weight, took: Duration) {
        self.running -= 1;
        self.running_long -= usize::from(weight.is_long());
        if let Some(share) = self.shares.get_mut(&origin) {
            share.running -= 1;
            let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
            share.used = share.used.saturating_add(took);
        }
        if weight == Weight::Scan {
            self.end_scan(origin);
        }
    }

    fn end_scan(&mut self, origin: Origin) {
        self.scans -= 1;
        if let Some(share) = self.shares.get_mut(&origin) {
            share.scans -= 1;
        }
    }

    /// Removes the origins that have no work and have used no more than the others.
    fn remove_idle(&mut self) {
        let now = self.now;
        self.shares.retain(|_, share| {
            let wants = share.running + share.scans + share.short.len() + share.long.len() > 0;
            wants || share.used > now
        });
        if self.running + self.scans == 0 {
            // No work runs, so no origin has an advantage to remember.
            self.shares.clear();
        }
    }
}

/// The next piece of work of an origin.
#[derive(Debug, Clone, Copy)]
struct NextWork {
    is_urgent: bool,
    is_long: bool,
    place: usize,
}

impl OriginShare {
    fn next(&self, may_be_long: bool, may_scan: bool) -> Option<NextWork> {
        let may_scan = may_scan && self.scans == 0;
        let may_begin = |one: &WaitingWork| one.weight != Weight::Scan || may_scan;
        let long = self.long.iter().position(may_begin).filter(|_| may_be_long);
        let short = self.short.front();
        let short_is_first = match (short, long.and_then(|place| self.long.get(place))) {
            (None, None) => return None,
            (Some(short), Some(long)) => short.weight == Weight::Urgent || short.number < long.number,
            (short, None) => short.is_some(),
            (None, Some(_)) => false,
        };
        let is_urgent = short.is_some_and(|one| one.weight == Weight::Urgent);
        Some(match long {
            Some(place) if !short_is_first => NextWork { is_urgent: false, is_long: true, place },
            _ => NextWork { is_urgent, is_long: false, place: 0 },
        })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut queue = self.turns.lock();
        if let Some(share) = queue.shares.get_mut(&self.origin) {
            share.short.retain(|one| one.number != self.number);
            share.long.retain(|one| one.number != self.number);
        }
        queue.remove_idle();
    }
}

impl PoolPermit {
    /// Takes the place among the scans out of the turn, so that it outlives the turn.
    pub(crate) fn take_place(&mut self) -> ScanPlace {
        self.weight = Weight::Resumed;
        ScanPlace { turns: Arc::clone(&self.turns), origin: self.origin }
    }

    /// If its slice is over and others wait: ends the turn, and returns the ticket of the next one.
    pub(super) fn yield_turn(&mut self) -> Option<Ticket> {
        let now = Instant::now();
        if now < self.slice_ends {
            return None;
        }
        let mut queue = self.turns.lock();
        let is_alone = queue.shares.values().all(|share| share.short.is_empty() && share.long.is_empty());
        if is_alone || self.is_over {
            drop(queue);
            self.slice_ends = now + SLICE;
            return None;
        }
        self.is_over = true;
        queue.end(self.origin, self.weight, self.begun.elapsed());
        let ticket = self.turns.push(&mut queue, self.origin, Weight::Resumed);
        self.turns.give(&mut queue);
        Some(ticket)
    }

    /// Makes its slice at least so long: a scan works as long as it has waited, or it would never end.
    pub(super) fn with_slice(mut self, slice: Duration) -> Self {
        self.slice_ends = self.begun + slice.max(SLICE);
        self
    }
}

impl Drop for PoolPermit {
    fn drop(&mut self) {
        if !self.is_over {
            let turns = Arc::clone(&self.turns);
            let mut queue = turns.lock();
            queue.end(self.origin, self.weight, self.begun.elapsed());
            turns.give(&mut queue);
        }
    }
}

impl Drop for ScanPlace {
    fn drop(&mut self) {
        let turns = Arc::clone(&self.turns);
        let mut queue = turns.lock();
        queue.end_scan(self.origin);
        turns.give(&mut queue);
    }
}

#[cfg(test)]
mod tests;
