//! Batching: items that arrive while a batch is in flight leave with the next one.
//!
//! ```text
//! push ──▶ waiting items ──▶ BatchSender::next ──▶ one batch in flight ──▶ an answer for each item
//!               ▲                                          │
//!               └── items that arrive meanwhile ◀──────────┘
//! ```
//!
//! A batch costs about as much with one item as with many. Group commit on the leader, forwarding batches and requests for
//! a read index use this queue. They differ in their [`BatchPolicy`] and in the loop around [`BatchSender::next`], which
//! sends a batch and answers its items.
//!
//! | where is … | file |
//! |---|---|
//! | how long a batch waits for others to join it | `linger` |
//!
//! The client requests that a node admits bound the queue: each waiting item belongs to one of them, and is withdrawn
//! when that request ends.
//!
//! **Invariants**
//! 1. An item leaves in at most one batch. Those of one owner leave in the order of their arrival, and no owner waits
//!    until all items of another have left.
//! 2. [`Unanswered::NotSent`] means that the item was certainly never part of a batch. In doubt the caller gets
//!    [`Unanswered::CutOff`].
//! 3. No item waits for ever: a sender takes it, or the last sender to end, even by a panic or with the process, gives it
//!    back to its caller.
//! 4. The end of one caller withdraws only its own item, and does not end a batch that has left.

mod linger;
#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{
    fair_queue::{FairQueue, QueuePlace, WorkOwner},
    histogram::{Histogram, TimeCounts},
};
use linger::{Arrivals, Linger, SentBatch};

/// The limits and the timing of a [`BatchQueue`].
#[derive(Debug, Clone, Copy)]
pub struct BatchPolicy {
    /// Most items of a batch.
    pub items_max: usize,
    /// Most bytes of a batch, in the sizes that the items are pushed with. A larger item leaves in a batch of its own.
    pub bytes_max: usize,
    /// Most senders at once while few callers return for another item. When many do, one sender takes all their items:
    /// with two, the callers would split into two halves that alternate.
    pub senders_max: usize,
    /// Most items in flight that their callers send themselves ([`BatchQueue::push_unless_idle`]).
    pub alone_max: usize,
    /// Passes over the ready tasks in which no item arrives, after which a batch leaves: a request takes some passes from
    /// its socket to the queue.
    pub patience: u32,
    /// Most callers of the batch before it that a batch waits for: most of them send again.
    pub returning_max: usize,
    /// Whether it is measured how long items wait: each costs two looks at the clock.
    pub measures_waits: bool,
}

/// Items of type `T` that wait for the next batch. Each gets an answer of type `A`.
#[derive(Debug)]
pub struct BatchQueue<T, A> {
    policy: BatchPolicy,
    state: Mutex<QueueState<T, A>>,
    arrivals: Arrivals,
    /// How long the items of batches have waited, if that is measured.
    waits: Arc<Histogram>,
}

#[derive(Debug)]
struct QueueState<T, A> {
    waiting: FairQueue<BatchItem<T, A>>,
    senders: usize,
    /// Items in flight that their callers send themselves.
    alone: usize,
    /// Whether so many callers return that one sender takes all their items.
    is_shared: bool,
    /// Senders and lone items of an earlier epoch are no longer counted.
    epoch: QueueEpoch,
}

/// An item that has left the queue. If it is dropped, its caller gets [`Unanswered::CutOff`].
#[derive(Debug)]
pub struct BatchItem<T, A> {
    /// What the caller pushed.
    pub item: T,
    /// How long it has waited in the queue, once it has left; zero if that is not measured.
    pub waited: Duration,
    arrived: Option<Instant>,
    bytes: usize,
    caller: oneshot::Sender<Result<A, Unanswered>>,
}

impl<T, A> BatchItem<T, A> {
    /// Answers the caller, unless it no longer waits.
    pub fn answer(self, answer: A) {
        // An error means that the caller has left; the other items of the batch have answers of their own.
        let _left = self.caller.send(Ok(answer));
    }
}

/// Why an item has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// The queue was reset or lost its senders before the item left.
    NotSent,
    /// Its batch was dropped before it was answered, by a panic or by the end of the process.
    CutOff,
}

/// What [`BatchQueue::push_unless_idle`] did with an item.
#[derive(Debug)]
pub enum Pushed<'a, T, A> {
    /// Little is in flight: the caller sends the item itself.
    Alone(T, QueueEpoch),
    /// The item waits for the next batch.
    Waits(PendingItem<'a, T, A>),
}

/// The time between two resets of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueEpoch(u64);

impl<T, A> BatchQueue<T, A> {
    /// An empty queue.
    #[must_use]
    pub fn new(policy: BatchPolicy) -> Self {
        Self::measured(policy, Arc::default())
    }

    /// An empty queue whose waits are counted here: several queues in turn count together.
    #[must_use]
    pub fn measured(policy: BatchPolicy, waits: Arc<Histogram>) -> Self {
        let state = QueueState {
            waiting: FairQueue::default(),
            senders: 0,
            alone: 0,
            is_shared: false,
            epoch: QueueEpoch(0),
        };
        Self { policy, state: Mutex::new(state), arrivals: Arrivals::default(), waits }
    }

    /// Adds an item of so many bytes to the next batch. If a sender comes back, the caller spawns a task that drives it.
    pub fn push(
        self: &Arc<Self>,
        owner: WorkOwner,
        item: T,
        bytes: usize,
    ) -> (PendingItem<'_, T, A>, Option<BatchSender<T, A>>) {
        let mut state = self.state();
        let pending = self.enqueue(&mut state, owner, item, bytes);
        (pending, self.start_sender(&mut state))
    }

    /// Adds an item to the next batch, unless fewer than `alone_max` items and no batch are in flight. Then the caller
    /// sends the item itself, and calls [`Self::end_alone`] however that ends.
    pub fn push_unless_idle(&self, owner: WorkOwner, item: T, bytes: usize) -> Pushed<'_, T, A> {
        let mut state = self.state();
        if state.senders == 0 && state.waiting.is_empty() && state.alone < self.policy.alone_max {
            state.alone += 1;
            return Pushed::Alone(item, state.epoch);
        }
        // Something is in flight; its end starts the next batch.
        Pushed::Waits(self.enqueue(&mut state, owner, item, bytes))
    }

    /// A lone item is no longer in flight. If a sender comes back, items arrived meanwhile: the caller spawns a task that
    /// drives it. A sender that is dropped gives them back.
    pub fn end_alone(self: &Arc<Self>, epoch: QueueEpoch) -> Option<BatchSender<T, A>> {
        let mut state = self.state();
        if state.epoch != epoch {
            return None;
        }
        state.alone -= 1;
        self.start_sender(&mut state)
    }

    /// Gives all waiting items back, and waits for nothing that is in flight: that may never end.
    pub fn reset(&self) {
        let unsent = {
            let mut state = self.state();
            (state.senders, state.alone, state.is_shared) = (0, 0, false);
            state.epoch.0 += 1;
            std::mem::take(&mut state.waiting)
        };
        give_back(unsent);
    }

    /// How long the items of batches have waited, if that is measured.
    pub fn waits(&self) -> TimeCounts {
        self.waits.read()
    }

    /// How many items wait.
    pub fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    /// Whether nothing waits and nothing is in flight.
    pub fn is_idle(&self) -> bool {
        let state = self.state();
        state.senders == 0 && state.alone == 0 && state.waiting.is_empty()
    }

    fn enqueue(
        &self,
        state: &mut QueueState<T, A>,
        owner: WorkOwner,
        item: T,
        bytes: usize,
    ) -> PendingItem<'_, T, A> {
        let (caller, answered) = oneshot::channel();
        let (arrived, waited) = (self.policy.measures_waits.then(Instant::now), Duration::ZERO);
        let place = state.waiting.push(owner, BatchItem { item, waited, arrived, bytes, caller });
        self.arrivals.arrived(state.waiting.len());
        PendingItem { queue: self, place, answered, is_over: false }
    }

    fn start_sender(self: &Arc<Self>, state: &mut QueueState<T, A>) -> Option<BatchSender<T, A>> {
        if state.waiting.is_empty() || state.senders >= self.senders_max(state) {
            return None;
        }
        state.senders += 1;
        let linger = Linger::new(self.policy.patience, self.policy.returning_max);
        let (queue, epoch) = (Arc::clone(self), state.epoch);
        Some(BatchSender { queue, epoch, is_counted: true, linger, in_flight: None })
    }

    fn senders_max(&self, state: &QueueState<T, A>) -> usize {
        if state.is_shared { 1 } else { self.policy.senders_max }
    }

    fn state(&self) -> MutexGuard<'_, QueueState<T, A>> {
        // No code that holds the lock can panic between two consistent states of the queue.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the callers of items that these were not sent.
fn give_back<T, A>(unsent: FairQueue<BatchItem<T, A>>) {
    for one in unsent.into_items() {
        // An error means that the caller has left.
        let _left = one.caller.send(Err(Unanswered::NotSent));
    }
}

/// A caller's item in the queue or in a batch. Dropping it withdraws the item, unless it has left.
#[derive(Debug)]
pub struct PendingItem<'a, T, A> {
    queue: &'a BatchQueue<T, A>,
    place: QueuePlace,
    answered: oneshot::Receiver<Result<A, Unanswered>>,
    /// It was answered or withdrawn, so it is not in the queue.
    is_over: bool,
}

impl<T, A> PendingItem<'_, T, A> {
    /// Waits for the answer, without a time limit.
    ///
    /// # Errors
    /// See [`Unanswered`].
    pub async fn answer(&mut self) -> Result<A, Unanswered> {
        let answered = (&mut self.answered).await;
        self.is_over = true;
        answered.unwrap_or(Err(Unanswered::CutOff))
    }

    /// Takes the item out of the queue. Whether it was still there: then it was certainly not sent.
    pub fn withdraw(&mut self) -> bool {
        self.is_over = true;
        let withdrawn = self.queue.state().waiting.remove(self.place);
        // It may be large: it is freed without the lock.
        withdrawn.is_some()
    }
}

impl<T, A> Drop for PendingItem<'_, T, A> {
    fn drop(&mut self) {
        if !self.is_over {
            self.withdraw();
        }
    }
}

/// Takes one batch after another out of a queue, as long as items wait. A task of its own drives it, because the
/// callers of a batch may leave.
#[derive(Debug)]
pub struct BatchSender<T, A> {
    queue: Arc<BatchQueue<T, A>>,
    epoch: QueueEpoch,
    /// Whether the queue counts it among its senders, or did before it was reset.
    is_counted: bool,
    linger: Linger,
    /// The batch that it has handed out last, and when.
    in_flight: Option<(SentBatch, Instant)>,
}

impl<T, A> BatchSender<T, A> {
    /// The next batch, never empty; `None` once this sender is not needed any more. A call also means that the batch
    /// before it has been answered.
    pub async fn next(&mut self) -> Option<Vec<BatchItem<T, A>>> {
        if !self.is_counted {
            return None;
        }
        if let Some((batch, left_at)) = self.in_flight.take() {
            let under_way = left_at.elapsed();
            let mut state = self.queue.state();
            self.linger.answered(batch, under_way, state.waiting.len());
            state.is_shared = self.linger.expects_many();
        }
        self.linger.wait(&self.queue.arrivals, || self.queue.waiting()).await;
        self.take()
    }

    fn take(&mut self) -> Option<Vec<BatchItem<T, A>>> {
        let BatchPolicy { items_max, bytes_max, .. } = self.queue.policy;
        let mut state = self.queue.state();
        // With more senders than allowed, another one takes what waits.
        let is_surplus = state.senders > self.queue.senders_max(&state);
        if state.epoch != self.epoch || state.waiting.is_empty() || is_surplus {
            self.is_counted = false;
            state.end_sender(self.epoch);
            return None;
        }
        let mut batch = state.take_batch(items_max, bytes_max);
        // Decided here: others arrive as soon as the lock is free.
        let sent = SentBatch { items: batch.len(), is_full: !state.waiting.is_empty() };
        drop(state);
        let now = Instant::now();
        self.in_flight = Some((sent, now));
        if self.queue.policy.measures_waits {
            for one in &mut batch {
                one.waited = one.arrived.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
                self.queue.waits.observe(one.waited);
            }
        }
        Some(batch)
    }

    /// Stops counting this sender, whose batch takes long, so that another may start: it takes no further batch. If a
    /// sender comes back, the caller spawns a task that drives it.
    pub fn retire(&mut self) -> Option<Self> {
        if !std::mem::take(&mut self.is_counted) {
            return None;
        }
        let mut state = self.queue.state();
        state.end_sender(self.epoch);
        self.queue.start_sender(&mut state)
    }
}

impl<T, A> QueueState<T, A> {
    /// Takes what fits into one batch, at least one item.
    fn take_batch(&mut self, items_max: usize, bytes_max: usize) -> Vec<BatchItem<T, A>> {
        let Self { waiting, .. } = self;
        // Usually everything leaves, and then there is no order to find.
        if waiting.len() <= items_max && waiting.iter().map(|one| one.bytes).sum::<usize>() <= bytes_max {
            return waiting.take_all();
        }
        let (mut batch, mut bytes) = (Vec::with_capacity(waiting.len().min(items_max)), 0);
        let fits = |bytes: usize, next: &BatchItem<T, A>| bytes == 0 || bytes + next.bytes <= bytes_max;
        while batch.len() < items_max
            && waiting.peek().is_some_and(|next| fits(bytes, next))
            && let Some(next) = waiting.pop(1)
        {
            bytes += next.bytes;
            batch.push(next);
        }
        batch
    }

    /// Counts a sender no longer. Whether it was the last one.
    fn end_sender(&mut self, epoch: QueueEpoch) -> bool {
        if self.epoch != epoch {
            return false;
        }
        self.senders -= 1;
        self.senders == 0
    }
}

impl<T, A> Drop for BatchSender<T, A> {
    fn drop(&mut self) {
        // After a regular end it is no longer counted. Otherwise a panic or the end of the process is the reason.
        if self.is_counted {
            let unsent = {
                let mut state = self.queue.state();
                if state.end_sender(self.epoch) {
                    std::mem::take(&mut state.waiting)
                } else {
                    FairQueue::default()
                }
            };
            give_back(unsent);
        }
    }
}
