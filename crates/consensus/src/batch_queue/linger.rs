//! How long a batch waits for others to join it.
//!
//! It waits for two kinds of items:
//!
//! - **Items of tasks that are ready to run.** The runtime runs a task that was just woken first, so it runs the sender
//!   before the tasks that are about to push. So the sender yields, and their requests get as far as the queue. If no
//!   other task is ready, a yield takes microseconds.
//! - **Items of callers that return.** A caller that got its answer often sends again. If the next batch did not wait for
//!   them, the callers would split into two or three parts that alternate, each with batches of its own. So a batch waits
//!   for as many items as were seen at once, at most twice the time that the batch before it was in flight.
//!
//! A batch stops waiting for callers where that brings nobody: callers that do not wait for their answers arrive while a
//! batch is in flight as well as after it, and a wait only makes them late. Then one batch of up to [`PAUSE_MAX`] tries
//! again.
//!
//! **Invariant:** the wait ends, however many items arrive: after a bounded number of passes over the ready tasks, and
//! after [`WAIT_MAX`].

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tokio::{sync::Notify, task::yield_now, time::timeout};

/// Most passes over the ready tasks. Twenty brought no more items.
const PASSES_MAX: u32 = 8;

/// Longest wait for callers that return. A timer may be late by a millisecond more.
const WAIT_MAX: Duration = Duration::from_millis(4);

/// Below this number of callers a batch does not wait: batching would save too little.
const RETURNING_MIN: usize = 8;

/// Most batches that do not wait because a wait brought nobody. They double from one such wait to the next.
const PAUSE_MAX: u32 = 64;

/// Wakes the sender that waits for callers.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// How many items the sender waits for; `usize::MAX` while it waits for none.
    awaited: AtomicUsize,
    reached: Notify,
}

impl Default for Arrivals {
    fn default() -> Self {
        Self { awaited: AtomicUsize::new(usize::MAX), reached: Notify::new() }
    }
}

impl Arrivals {
    /// So many items wait now. Called under the lock of the queue.
    pub(super) fn arrived(&self, waiting: usize) {
        if waiting >= self.awaited.load(Ordering::Relaxed) {
            self.reached.notify_one();
        }
    }
}

/// What a sender has seen of its callers.
#[derive(Debug, Default)]
pub(super) struct Linger {
    /// Passes over the ready tasks in which no item arrives, after which a batch leaves.
    patience: u32,
    /// Most callers that a batch waits for.
    returning_max: usize,
    /// How many items there were when the last batch was answered: its own, and those that had arrived meanwhile.
    returning: usize,
    /// How long the last batch was in flight.
    under_way: Duration,
    has_waited: bool,
    /// Batches that will not wait.
    pause: u32,
    /// How many did not, after the last wait that brought nobody; 0 after one that was worth it.
    last_pause: u32,
}

/// A batch that has left.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentBatch {
    /// How many items it had.
    pub(super) items: usize,
    /// Whether other items had to stay behind.
    pub(super) is_full: bool,
}

impl Linger {
    pub(super) fn new(patience: u32, returning_max: usize) -> Self {
        Self { patience, returning_max, ..Self::default() }
    }

    /// Lets others join the next batch. `waiting` is how many items wait; it takes the lock of the queue.
    pub(super) async fn wait(&mut self, arrivals: &Arrivals, waiting: impl Fn() -> usize) {
        self.await_returning(arrivals, &waiting).await;
        let_others_join(self.patience, waiting).await;
    }

    /// A batch was answered after this time, and so many items wait for the next one already.
    pub(super) fn answered(&mut self, batch: SentBatch, under_way: Duration, waiting: usize) {
        let SentBatch { items, is_full } = batch;
        self.under_way = under_way;
        let seen = if is_full { items } else { items + waiting };
        self.returning = seen.min(self.returning_max);
        // Nearly all callers that return were in it.
        if std::mem::take(&mut self.has_waited) && !is_full {
            self.judge(waiting <= items / 4);
        }
    }

    /// Whether so many callers return that the next batch waits for them.
    pub(super) fn expects_many(&self) -> bool {
        self.returning >= RETURNING_MIN
    }

    async fn await_returning(&mut self, arrivals: &Arrivals, waiting: impl Fn() -> usize) {
        let Some((returning, at_most)) = self.next_wait() else { return };
        arrivals.awaited.store(returning, Ordering::Relaxed);
        let all = async {
            while waiting() < returning {
                arrivals.reached.notified().await;
            }
        };
        let have_returned = timeout(at_most, all).await.is_ok();
        arrivals.awaited.store(usize::MAX, Ordering::Relaxed);
        self.waited(have_returned);
    }

    /// How many callers the next batch waits for, and how long; `None` if it does not wait.
    fn next_wait(&mut self) -> Option<(usize, Duration)> {
        if !self.expects_many() {
            return None;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        Some((self.returning, WAIT_MAX.min(2 * self.under_way)))
    }

    fn waited(&mut self, have_returned: bool) {
        self.has_waited = have_returned;
        if !have_returned {
            self.judge(false);
        }
    }

    /// Takes in whether a wait was worth it.
    fn judge(&mut self, is_worth_it: bool) {
        self.last_pause = if is_worth_it { 0 } else { (2 * self.last_pause).clamp(1, PAUSE_MAX) };
        self.pause = self.last_pause;
    }
}

/// Yields to the tasks that are ready to run. `waiting` is how many items wait. After `patience` passes in which none
/// arrives, it returns.
async fn let_others_join(patience: u32, waiting: impl Fn() -> usize) {
    let (mut before, mut quiet) = (waiting(), 0);
    for _ in 0..PASSES_MAX {
        yield_now().await;
        let now = waiting();
        quiet = if now > before { 0 } else { quiet + 1 };
        before = now;
        if quiet >= patience {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    /// Joins after so many passes.
    async fn joins(after: u32, joined: Arc<AtomicUsize>) {
        for _ in 0..after {
            yield_now().await;
        }
        joined.fetch_add(1, Ordering::SeqCst);
    }

    async fn joined_with(patience: u32, after: &[u32]) -> usize {
        let joined = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> =
            after.iter().map(|after| tokio::spawn(joins(*after, Arc::clone(&joined)))).collect();
        let_others_join(patience, || joined.load(Ordering::SeqCst)).await;
        let seen = joined.load(Ordering::SeqCst);
        for task in tasks {
            task.await.unwrap();
        }
        seen
    }

    /// Answers a batch after 2 ms, while so many other items have arrived. Returns how many the next batch waits for.
    fn next(linger: &mut Linger, items: usize, waiting: usize) -> Option<usize> {
        linger.answered(SentBatch { items, is_full: false }, Duration::from_millis(2), waiting);
        let wait = linger.next_wait();
        assert!(wait.is_none_or(|(_, at_most)| at_most == WAIT_MAX));
        wait.map(|(returning, _)| returning)
    }

    #[test]
    fn callers_that_return_share_one_batch() {
        let mut linger = Linger::new(1, 100);
        // Two parts that alternate become one, and stay one.
        assert_eq!(next(&mut linger, 10, 10), Some(20));
        for _ in 0..100 {
            linger.waited(true);
            assert_eq!(next(&mut linger, 20, 0), Some(20));
        }
        // One of them is late, and arrives in the end.
        linger.waited(false);
        assert_eq!(next(&mut linger, 19, 1), None);
        assert_eq!(next(&mut linger, 20, 0), Some(20));
    }

    #[test]
    fn waits_become_rarer_while_no_caller_returns() {
        let (mut linger, mut waits) = (Linger::new(1, 100), Vec::new());
        for batch in 0..190 {
            if next(&mut linger, 40, 0).is_some() {
                waits.push(batch);
                linger.waited(false);
            }
        }
        assert_eq!(waits, [0, 2, 5, 10, 19, 36, 69, 134]);
    }

    #[test]
    fn callers_that_arrive_all_the_time_are_rarely_waited_for() {
        let (mut linger, mut waits) = (Linger::new(1, 100), 0);
        for _ in 0..190 {
            if next(&mut linger, 40, 20).is_some() {
                waits += 1;
                linger.waited(true);
            }
        }
        assert_eq!(waits, 8, "although as many arrived as were waited for");
    }

    #[test]
    fn no_wait_for_few_callers_or_for_more_than_one_batch_holds() {
        let mut linger = Linger::new(1, 100);
        assert_eq!(next(&mut linger, RETURNING_MIN - 1, 0), None);
        assert!(!linger.expects_many());
        let under_way = Duration::from_micros(300);
        linger.answered(SentBatch { items: 70, is_full: true }, under_way, 150);
        assert_eq!(
            linger.next_wait(),
            Some((70, 2 * under_way)),
            "the rest has too many bytes for one batch"
        );
        linger.answered(SentBatch { items: 90, is_full: false }, under_way, 80);
        assert_eq!(linger.next_wait(), Some((100, 2 * under_way)));
    }

    #[tokio::test]
    async fn a_wait_ends_when_all_have_returned_or_at_its_time_limit() {
        let (arrivals, joined) = (Arc::<Arrivals>::default(), Arc::<AtomicUsize>::default());
        let mut linger = Linger::new(1, 100);
        let (batch, under_way) = (SentBatch { items: 20, is_full: false }, Duration::from_secs(1));
        linger.answered(batch, under_way, 0);
        let others = {
            let (arrivals, joined) = (Arc::clone(&arrivals), Arc::clone(&joined));
            tokio::spawn(async move {
                for now in 1..=20 {
                    yield_now().await;
                    joined.store(now, Ordering::SeqCst);
                    arrivals.arrived(now);
                }
            })
        };
        linger.wait(&arrivals, || joined.load(Ordering::SeqCst)).await;
        assert!(linger.has_waited && joined.load(Ordering::SeqCst) == 20);
        others.await.unwrap();
        linger.answered(batch, under_way, 0);
        joined.store(0, Ordering::SeqCst);
        linger.wait(&arrivals, || joined.load(Ordering::SeqCst)).await;
        assert!(!linger.has_waited && linger.pause == 1);
    }

    #[tokio::test]
    async fn only_ready_tasks_join_without_a_wait() {
        assert_eq!(joined_with(1, &[]).await, 0);
        assert_eq!(joined_with(1, &[0, 0, 0]).await, 3);
        assert_eq!(joined_with(1, &[0, 1, 2]).await, 3, "each pass brings one");
        assert_eq!(joined_with(1, &[0, 4]).await, 1, "a pass without one ends it");
        assert_eq!(joined_with(3, &[0, 3]).await, 2, "unless the sender is patient");
    }

    #[tokio::test]
    async fn the_wait_ends_although_more_and_more_join() {
        let after: Vec<u32> = (0..100).collect();
        let seen = joined_with(3, &after).await;
        assert!(seen <= PASSES_MAX as usize + 1, "{seen}");
    }
}
