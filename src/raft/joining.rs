//! Letting others join what is about to leave: the next group of writes, the next call to the leader, the next request
//! for a read index.
//!
//! Whatever leaves costs about as much with one member as with many. Two kinds of others are let join:
//!
//! - **Those whose tasks are ready to run.** The task that sends is woken before them: the runtime runs a task that was
//!   just woken first. So the sender yields, and the requests that have arrived get as far as joining. Where nobody else
//!   is ready, yielding takes microseconds.
//! - **Those who come back.** A caller who is answered often sends again. If the next departure does not wait for them,
//!   the callers fall into two or three parts that take turns, and each departure has a part of them. So as many are
//!   waited for as were seen at once, at most twice the time that the departure before took.
//!
//! Waiting is given up where it brings nobody: callers that don't wait for their answers arrive while a departure is
//! under way as well as after it, and would only be late. Then one departure of up to [`PAUSE_MAX`] tries it again.
//!
//! **Invariant:** it ends, however many join: after a bounded number of passes over the tasks that are ready, and after
//! [`WAIT_MAX`].

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use tokio::{sync::Notify, task::yield_now, time::timeout};

/// Most passes over the tasks that are ready. Twenty brought no more.
const PASSES_MAX: u32 = 8;

/// Longest wait for those who come back, but for the millisecond by which a timer may be late.
const WAIT_MAX: Duration = Duration::from_millis(4);

/// Fewer are not waited for: so few have little to share.
const RETURNING_MIN: usize = 8;

/// Most departures that don't wait because waiting brought nobody. They double from one such wait to the next.
const PAUSE_MAX: u32 = 64;

/// Where those who join tell it to the sender that waits for them.
#[derive(Debug)]
pub(crate) struct Arrivals {
    /// How many the sender waits for; `usize::MAX` while it waits for none.
    awaited: AtomicUsize,
    reached: Notify,
}

impl Default for Arrivals {
    fn default() -> Self {
        Self { awaited: AtomicUsize::new(usize::MAX), reached: Notify::new() }
    }
}

impl Arrivals {
    /// So many have joined now. To be called under the lock under which they join.
    pub(crate) fn joined(&self, now: usize) {
        if now >= self.awaited.load(Ordering::Relaxed) {
            self.reached.notify_one();
        }
    }
}

/// What a sender has seen of those who join it.
#[derive(Debug, Default)]
pub(crate) struct Joining {
    /// Passes over the ready tasks in which nobody joins, after which a departure leaves: a request takes some passes
    /// from its socket to where it joins.
    patience: u32,
    /// Most members of a departure.
    members_max: usize,
    /// How many were there when the last departure was answered: its members, and those who joined meanwhile. Not more
    /// than leave at once.
    returning: usize,
    /// How long the last departure was under way.
    under_way: Duration,
    has_waited: bool,
    /// Departures that won't wait.
    pause: u32,
    /// How many did not, after the last wait that brought nothing; 0 after one that was worth it.
    last_pause: u32,
}

/// What left, when it has been answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Departure {
    /// How many left.
    pub(crate) members: usize,
    /// Whether others had to stay behind.
    pub(crate) is_full: bool,
    /// How long it took until it was answered.
    pub(crate) under_way: Duration,
}

impl Joining {
    pub(crate) fn new(patience: u32, members_max: usize) -> Self {
        Self { patience, members_max, ..Self::default() }
    }

    /// Lets others join what leaves next. `joined` is how many have; it takes the lock under which they join.
    pub(crate) async fn gather(&mut self, arrivals: &Arrivals, joined: impl Fn() -> usize) {
        self.await_returning(arrivals, &joined).await;
        let_others_join(self.patience, joined).await;
    }

    /// What left has been answered, and so many wait for the next departure already.
    pub(crate) fn answered(&mut self, departure: Departure, waiting: usize) {
        let Departure { members, is_full, under_way } = departure;
        self.under_way = under_way;
        self.returning = if is_full { members } else { self.members_max.min(members + waiting) };
        // Of callers who come back, nearly all were in it.
        if std::mem::take(&mut self.has_waited) && !is_full {
            self.judge(waiting <= members / 4);
        }
    }

    /// Whether so many come back that the next departure waits for them.
    pub(crate) fn expects_many(&self) -> bool {
        self.returning >= RETURNING_MIN
    }

    async fn await_returning(&mut self, arrivals: &Arrivals, joined: impl Fn() -> usize) {
        let Some((returning, at_most)) = self.wait() else { return };
        arrivals.awaited.store(returning, Ordering::Relaxed);
        let come = async {
            while joined() < returning {
                arrivals.reached.notified().await;
            }
        };
        let have_come = timeout(at_most, come).await.is_ok();
        arrivals.awaited.store(usize::MAX, Ordering::Relaxed);
        self.waited(have_come);
    }

    /// How many the next departure waits for, and how long; `None` if it waits for nobody.
    fn wait(&mut self) -> Option<(usize, Duration)> {
        if !self.expects_many() {
            return None;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        Some((self.returning, WAIT_MAX.min(2 * self.under_way)))
    }

    fn waited(&mut self, have_come: bool) {
        self.has_waited = have_come;
        if !have_come {
            self.judge(false);
        }
    }

    /// Whether waiting has brought those who were waited for.
    fn judge(&mut self, is_worth_it: bool) {
        self.last_pause = if is_worth_it { 0 } else { (2 * self.last_pause).clamp(1, PAUSE_MAX) };
        self.pause = self.last_pause;
    }
}

/// Yields to the tasks that are ready to run, for as long as that lets others join. `joined` is how many have. After
/// `patience` passes in which nobody did, it returns.
pub(crate) async fn let_others_join(patience: u32, joined: impl Fn() -> usize) {
    let (mut before, mut quiet) = (joined(), 0);
    for _ in 0..PASSES_MAX {
        yield_now().await;
        let now = joined();
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

    /// A departure that is answered after 2 ms, while so many others have joined; what the next one waits for.
    fn next(joining: &mut Joining, members: usize, waiting: usize) -> Option<usize> {
        let departure = Departure { members, is_full: false, under_way: Duration::from_millis(2) };
        joining.answered(departure, waiting);
        let wait = joining.wait();
        assert!(wait.is_none_or(|(_, at_most)| at_most == WAIT_MAX));
        wait.map(|(returning, _)| returning)
    }

    #[test]
    fn callers_who_come_back_leave_together() {
        let mut joining = Joining::new(1, 100);
        // Two parts that take turns become one, and stay one.
        assert_eq!(next(&mut joining, 10, 10), Some(20));
        for _ in 0..100 {
            joining.waited(true);
            assert_eq!(next(&mut joining, 20, 0), Some(20));
        }
        // One of them is late, and comes in the end.
        joining.waited(false);
        assert_eq!(next(&mut joining, 19, 1), None);
        assert_eq!(next(&mut joining, 20, 0), Some(20));
    }

    #[test]
    fn the_longer_callers_stay_away_the_fewer_departures_wait_for_them() {
        let (mut joining, mut waits) = (Joining::new(1, 100), Vec::new());
        for turn in 0..190 {
            if next(&mut joining, 40, 0).is_some() {
                waits.push(turn);
                joining.waited(false);
            }
        }
        assert_eq!(waits, [0, 2, 5, 10, 19, 36, 69, 134]);
    }

    #[test]
    fn callers_who_arrive_all_the_time_are_hardly_waited_for() {
        let (mut joining, mut waits) = (Joining::new(1, 100), 0);
        for _ in 0..190 {
            if next(&mut joining, 40, 20).is_some() {
                waits += 1;
                joining.waited(true);
            }
        }
        assert_eq!(waits, 8, "though as many have come as were waited for");
    }

    #[test]
    fn few_callers_are_not_waited_for_and_not_more_than_leave_at_once() {
        let mut joining = Joining::new(1, 100);
        assert_eq!(next(&mut joining, RETURNING_MIN - 1, 0), None);
        assert!(!joining.expects_many());
        let under_way = Duration::from_micros(300);
        joining.answered(Departure { members: 70, is_full: true, under_way }, 150);
        assert_eq!(joining.wait(), Some((70, 2 * under_way)), "more bytes than leave at once");
        joining.answered(Departure { members: 90, is_full: false, under_way }, 80);
        assert_eq!(joining.wait(), Some((100, 2 * under_way)));
    }

    #[tokio::test]
    async fn a_wait_ends_when_all_have_come_or_when_its_time_is_up() {
        let (arrivals, joined) = (Arc::<Arrivals>::default(), Arc::<AtomicUsize>::default());
        let mut joining = Joining::new(1, 100);
        let departure = Departure { members: 20, is_full: false, under_way: Duration::from_secs(1) };
        joining.answered(departure, 0);
        let others = {
            let (arrivals, joined) = (Arc::clone(&arrivals), Arc::clone(&joined));
            tokio::spawn(async move {
                for now in 1..=20 {
                    yield_now().await;
                    joined.store(now, Ordering::SeqCst);
                    arrivals.joined(now);
                }
            })
        };
        joining.gather(&arrivals, || joined.load(Ordering::SeqCst)).await;
        assert!(joining.has_waited && joined.load(Ordering::SeqCst) == 20);
        others.await.unwrap();
        joining.answered(departure, 0);
        joined.store(0, Ordering::SeqCst);
        joining.gather(&arrivals, || joined.load(Ordering::SeqCst)).await;
        assert!(!joining.has_waited && joining.pause == 1);
    }

    #[tokio::test]
    async fn those_that_are_ready_join_and_nobody_is_waited_for() {
        assert_eq!(joined_with(1, &[]).await, 0);
        assert_eq!(joined_with(1, &[0, 0, 0]).await, 3);
        assert_eq!(joined_with(1, &[0, 1, 2]).await, 3, "each pass brings one");
        assert_eq!(joined_with(1, &[0, 4]).await, 1, "a pass without one ends it");
        assert_eq!(joined_with(3, &[0, 3]).await, 2, "unless it is patient");
    }

    #[tokio::test]
    async fn it_ends_though_more_and_more_join() {
        let after: Vec<u32> = (0..100).collect();
        let seen = joined_with(3, &after).await;
        assert!(seen <= PASSES_MAX as usize + 1, "{seen}");
    }
}
