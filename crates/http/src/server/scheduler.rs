//! Whose task runs next, where the tasks of many clients are ready to run.
//!
//! A thread of the runtime runs its tasks in the order in which they were woken. One access key that has 10,000 requests
//! ready would be ahead of everybody. So a task of a client is not woken as soon as it has something to do: it waits in a
//! fair queue ([`FairQueue`]), in the line of its client. Only as many such tasks are on their way through the runtime as
//! are expected to run within eight milliseconds ([`TURNS_NANOS`]), by their polls before. When one of them has been
//! polled, the next leaves the queue: one of the client whose tasks have run for the shortest time.
//!
//! ```text
//! waker ──▶ line of the client ──▶ the runtime's queue ──▶ poll
//!                    ▲                                        │
//!                    └──── if it was woken meanwhile ─────────┘
//! ```
//!
//! The next one is woken as a task that yields: after everything else that is ready, and after the runtime has looked for
//! new events. Otherwise a thread that always has a task would look only after every 61st, and tasks that another thread
//! has woken would wait as long.
//!
//! While one access key is alone, its tasks take no turns: the order of its own requests is its own affair, and what is
//! ready together is done for less. It is alone if no task of another key has run for a minute ([`RIVALS_TIME`]), and no
//! client without a key waits. Clients without a key always take turns.
//!
//! A task that waits for something else, as a write waits for Raft, has no turn. So nothing is limited but the order: as
//! long as a task is ready, all threads have work. While fewer tasks are ready than there are turns, each is woken at once.
//!
//! A client is an access key. Until one was good on a connection, it is the address, in a line apart from those of keys;
//! with the root key, it is the key and the address. Nodes take no turns.
//!
//! **Invariants**
//! 1. A task that was woken runs: it has a turn, waits for one while others have turns, or is of a key that is alone. A
//!    task gives its turn back when it was polled, when it panics, and when it is dropped.
//! 2. A future that takes turns is all of its task, or awaited by it with nothing beside it. Otherwise it could have a
//!    turn and not be polled.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use futures::task::AtomicWaker;
use tokio::task::yield_now;

use super::connection::millis;
use concord_service::{
    CallerAddress,
    fair_queue::{FairQueue, QueuePlace},
};

/// For how many nanoseconds the tasks that have turns run together, on each thread: what a client waits for whose task is
/// next. Fewer would be a loss, because requests that are ready together share RPCs and entries of the log.
const TURNS_NANOS: u64 = 8_000_000;
/// The most of it for one task, however long its polls take: each thread has a task that runs, and one that is next.
const TURN_NANOS_MAX: u64 = TURNS_NANOS / 2;
/// The least of it for one task, however short its polls are.
const TURN_NANOS_MIN: u64 = TURNS_NANOS / 1000;
/// How long after the last task of another access key the tasks of a key are limited.
const RIVALS_TIME: Duration = Duration::from_secs(60);
/// Of how many polls the last ones make the mean.
const MEAN_POLLS: u64 = 16;

/// The turns of all clients' tasks of a runtime.
///
/// While turns are free, a task takes one and gives it back by atomic counters. Only tasks that wait need the lock. Who
/// pushes a task into the queue looks for a free turn afterwards, and who gives a turn back looks for tasks that wait
/// afterwards. Both sides are sequentially consistent, so that one of the two sees the other.
#[derive(Debug)]
pub(super) struct FairScheduler {
    /// How many nanoseconds the tasks that have turns may run.
    limit: u64,
    /// How many nanoseconds the tasks that have turns are expected to run.
    taken: AtomicU64,
    /// The length of the queue. Changes under its lock only.
    waiting: AtomicUsize,
    /// Since when it counts time.
    begun: Instant,
    /// The access key whose task ran last: the bits of its owner.
    last_key: AtomicU64,
    /// Until when access keys are rivals, in milliseconds, and whether they are now.
    rivals_until: AtomicU64,
    has_rivals: AtomicBool,
    /// How many nanoseconds the poll of a request takes. Updates that get lost do not matter.
    mean: AtomicU64,
    queue: Mutex<FairQueue<Arc<ClientTask>>>,
}

/// A task of a client, and the waker of what it does.
#[derive(Debug)]
struct ClientTask {
    turns: Arc<FairScheduler>,
    client: CallerAddress,
    stage: TaskStage,
    /// A request of HTTP/2, not a connection.
    is_request: bool,
    /// How many nanoseconds its next poll is expected to take.
    expected: AtomicU64,
    /// How many nanoseconds its turn is counted as, if it has one. Changes before it gets a turn only.
    counted: AtomicU64,
    /// Its place in the queue. Changes under the lock of the queue only.
    place: Mutex<Option<QueuePlace>>,
    /// Wakes the task itself.
    task: AtomicWaker,
}

/// Where a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Stage {
    /// It was not woken since its last poll.
    Asleep,
    /// It was woken and has no turn yet. It is in the queue, or somebody is about to put it there or to give it a turn.
    Waiting,
    /// It has a turn, and the runtime is to poll it.
    Called,
    /// It has a turn, and is being polled.
    Polled,
    /// As before, and it was woken meanwhile.
    PolledWoken,
    /// Its future is gone.
    Ended,
}

/// A [`Stage`] that changes in single steps.
#[derive(Debug)]
struct TaskStage(AtomicU8);

impl TaskStage {
    fn new() -> Self {
        Self(AtomicU8::new(Stage::Asleep as u8))
    }

    /// Goes from one stage to another. Whether it was in the first.
    fn step(&self, from: Stage, to: Stage) -> bool {
        self.0.compare_exchange(from as u8, to as u8, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    fn is(&self, stage: Stage) -> bool {
        self.0.load(Ordering::SeqCst) == stage as u8
    }

    /// Ends. Whether it was called before.
    fn end(&self) -> bool {
        self.0.swap(Stage::Ended as u8, Ordering::SeqCst) == Stage::Called as u8
    }
}

impl FairScheduler {
    /// For a runtime with so many threads.
    pub(super) fn new(threads: usize) -> Arc<Self> {
        Arc::new(Self {
            limit: TURNS_NANOS * threads.max(1) as u64,
            taken: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            begun: Instant::now(),
            last_key: AtomicU64::new(0),
            rivals_until: AtomicU64::new(0),
            has_rivals: AtomicBool::new(false),
            mean: AtomicU64::new(0),
            queue: Mutex::default(),
        })
    }

    fn queue(&self) -> MutexGuard<'_, FairQueue<Arc<ClientTask>>> {
        // No code panics while it holds the lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a task of an access key runs now.
    fn note_key(&self, key: u64, now: Instant) {
        let now = millis(now - self.begun);
        if self.last_key.load(Ordering::Relaxed) != key
            && ![0, key].contains(&self.last_key.swap(key, Ordering::Relaxed))
        {
            self.rivals_until.store(now + millis(RIVALS_TIME), Ordering::Relaxed);
        }
        let has_rivals = now < self.rivals_until.load(Ordering::Relaxed);
        if self.has_rivals.load(Ordering::Relaxed) != has_rivals {
            self.has_rivals.store(has_rivals, Ordering::Relaxed);
        }
    }

    fn is_crowded(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Gives a turn back. Returns who has turns now instead.
    fn give_back(&self, nanos: u64) -> Vec<Arc<ClientTask>> {
        self.taken.fetch_sub(nanos, Ordering::SeqCst);
        if self.is_crowded() { self.call(&mut self.queue()) } else { Vec::new() }
    }

    /// Gives free turns to the tasks that are next.
    fn call(&self, queue: &mut FairQueue<Arc<ClientTask>>) -> Vec<Arc<ClientTask>> {
        let mut called = Vec::new();
        while let Some(next) = queue.peek()
            && let Some(nanos) = next.try_take()
            && let Some(task) = queue.pop(0)
        {
            *task.place() = None;
            if task.stage.step(Stage::Waiting, Stage::Called) {
                called.push(task);
            } else {
                self.taken.fetch_sub(nanos, Ordering::SeqCst);
            }
        }
        self.waiting.store(queue.len(), Ordering::SeqCst);
        called
    }
}

/// The turns of the tasks of one connection.
#[derive(Debug, Clone)]
pub(super) struct ClientTurns {
    pub(super) turns: Arc<FairScheduler>,
    pub(super) client: CallerAddress,
}

impl ClientTurns {
    /// Runs a connection: each poll takes a turn. What it will bring is not known, so its first poll may be long.
    pub(super) async fn serve<F: Future>(self, connection: F) -> F::Output {
        self.take(false, TURN_NANOS_MAX, connection).await
    }

    /// Runs a request of HTTP/2: each poll takes a turn.
    pub(super) async fn answer<F: Future>(self, request: F) -> F::Output {
        let mean = self.turns.mean.load(Ordering::Relaxed);
        self.take(true, mean, request).await
    }

    async fn take<F: Future>(self, is_request: bool, expected: u64, future: F) -> F::Output {
        let Self { turns, client } = self;
        let task = TaskInTurns(Arc::new(ClientTask {
            turns,
            client,
            stage: TaskStage::new(),
            is_request,
            expected: AtomicU64::new(expected),
            counted: AtomicU64::new(0),
            place: Mutex::default(),
            task: AtomicWaker::new(),
        }));
        let waker = Waker::from(Arc::clone(&task.0));
        let mut future = pin!(future);
        poll_fn(|context| {
            task.0.task.register(context.waker());
            if task.0.is_alone() && task.0.sleeps_without_turn() {
                // What wakes it by this waker finds it asleep, and it takes a turn then if it is not alone any more.
                return future.as_mut().poll(context);
            }
            if !task.0.begin() {
                return Poll::Pending;
            }
            let turn = RunningPoll { task: &task.0, begun: Instant::now() };
            let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
            drop(turn);
            polled
        })
        .await
    }
}

impl ClientTask {
    fn place(&self) -> MutexGuard<'_, Option<QueuePlace>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has nobody to take turns with: its key is the only one, and nobody waits.
    fn is_alone(&self) -> bool {
        let Self { turns, client, .. } = self;
        client.is_known()
            && !turns.has_rivals.load(Ordering::Relaxed)
            && turns.last_key.load(Ordering::Relaxed) == client.owner().to_bits()
            && turns.waiting.load(Ordering::Relaxed) == 0
    }

    /// Gives back the turn that it was woken with, if it has one: the waker of a poll in a turn takes another. Otherwise a
    /// task whose first poll had a turn, as that of each connection has, would take turns for ever. Whether it is asleep.
    fn sleeps_without_turn(&self) -> bool {
        if self.stage.is(Stage::Asleep) {
            return true;
        }
        let had_turn = self.stage.step(Stage::Called, Stage::Asleep);
        if had_turn {
            wake_all(self.turns.give_back(self.counted.load(Ordering::SeqCst)), Waker::wake);
        }
        had_turn
    }

    /// Takes a turn if there is time left. Returns how many nanoseconds it is counted as.
    fn try_take(&self) -> Option<u64> {
        let nanos = self.expected.load(Ordering::Relaxed).clamp(TURN_NANOS_MIN, TURN_NANOS_MAX);
        // One key alone has nobody to take turns with, and its requests that are ready together share entries of the log.
        let is_limited = !self.client.is_known() || self.turns.has_rivals.load(Ordering::Relaxed);
        let limit = if is_limited { self.turns.limit } else { u64::MAX };
        let more = |taken: u64| (taken < limit).then_some(taken + nanos);
        self.turns.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok()?;
        self.counted.store(nanos, Ordering::SeqCst);
        Some(nanos)
    }

    /// Notes how long a poll took. The next is expected to take about as long as the last few: one alone may be long
    /// because another process ran.
    fn note(&self, begun: Instant, took: u64) {
        if self.client.is_known() {
            self.turns.note_key(self.client.owner().to_bits(), begun);
        }
        let expected = self.expected.load(Ordering::Relaxed);
        self.expected.store(expected - expected / 4 + took / 4, Ordering::Relaxed);
        if self.is_request {
            let mean = self.turns.mean.load(Ordering::Relaxed);
            let mean = mean.saturating_mul(MEAN_POLLS - 1).saturating_add(took) / MEAN_POLLS;
            self.turns.mean.store(mean, Ordering::Relaxed);
        }
    }

    /// Begins a poll, if it has a turn.
    fn begin(self: &Arc<Self>) -> bool {
        // Its first poll, or somebody else has woken the task: it asks for a turn now.
        self.stage.step(Stage::Called, Stage::Polled)
            || (self.stage.step(Stage::Asleep, Stage::Waiting) && self.go_on(Stage::Polled))
    }

    /// A task that has begun to wait takes a free turn, unless others wait; else it waits in the queue. Whether it has a
    /// turn: then it is in the stage that is wanted.
    fn go_on(self: &Arc<Self>, stage: Stage) -> bool {
        let taken = if self.turns.is_crowded() { None } else { self.try_take() };
        let Some(nanos) = taken else {
            // Without the lock.
            let called = self.wait(&mut self.turns.queue());
            wake_all(called, Waker::wake);
            return false;
        };
        let has_turn = self.stage.step(Stage::Waiting, stage);
        if !has_turn {
            // It ended meanwhile.
            wake_all(self.turns.give_back(nanos), Waker::wake);
        }
        has_turn
    }

    /// Waits in the queue, unless it has ended. Returns who has turns now.
    fn wait(self: &Arc<Self>, queue: &mut FairQueue<Arc<Self>>) -> Vec<Arc<Self>> {
        if self.stage.is(Stage::Waiting) {
            *self.place() = Some(queue.push(self.client.owner(), Arc::clone(self)));
            self.turns.waiting.store(queue.len(), Ordering::SeqCst);
        }
        self.turns.call(queue)
    }

    /// Ends a poll. One that was woken meanwhile is woken again, and waits as others do.
    fn end_poll(self: &Arc<Self>, begun: Instant) {
        let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let nanos = self.counted.load(Ordering::SeqCst);
        self.note(begun, took);
        if !self.turns.is_crowded() {
            if self.stage.step(Stage::Polled, Stage::Asleep) {
                wake_all(self.turns.give_back(nanos), wake_later);
                return;
            }
            if self.stage.step(Stage::PolledWoken, Stage::Called) {
                self.task.wake();
                return;
            }
        }
        let mut queue = self.turns.queue();
        queue.charge(self.client.owner(), took);
        self.turns.taken.fetch_sub(nanos, Ordering::SeqCst);
        let called = if !self.stage.step(Stage::Polled, Stage::Asleep)
            && self.stage.step(Stage::PolledWoken, Stage::Waiting)
        {
            self.wait(&mut queue)
        } else {
            self.turns.call(&mut queue)
        };
        drop(queue);
        wake_all(called, wake_later);
    }

    /// The task has ended.
    fn end(&self) {
        if self.stage.end() {
            wake_all(self.turns.give_back(self.counted.load(Ordering::SeqCst)), Waker::wake);
        } else if self.place().is_some() {
            let mut queue = self.turns.queue();
            let place = self.place().take();
            let task = place.and_then(|place| queue.remove(place));
            self.turns.waiting.store(queue.len(), Ordering::SeqCst);
            drop(queue);
            drop(task);
        }
    }
}

impl Wake for ClientTask {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let wakes = if self.stage.step(Stage::Asleep, Stage::Waiting) {
            self.go_on(Stage::Called)
        } else {
            // It might have fallen asleep in between.
            !self.stage.step(Stage::Polled, Stage::PolledWoken)
                && self.stage.step(Stage::Asleep, Stage::Waiting)
                && self.go_on(Stage::Called)
        };
        if wakes {
            self.task.wake();
        }
    }
}

/// Wakes tasks that have turns now.
fn wake_all(called: Vec<Arc<ClientTask>>, wake: impl Fn(Waker)) {
    called.into_iter().filter_map(|task| task.task.take()).for_each(wake);
}

/// Wakes a task after the runtime has run everything that is ready now, and has looked for new events.
fn wake_later(task: Waker) {
    // This is the wake-up of a task that yields.
    let _pending = pin!(yield_now()).poll(&mut Context::from_waker(&task));
}

/// A poll. It ends when it is dropped, after a panic too.
struct RunningPoll<'a> {
    task: &'a Arc<ClientTask>,
    begun: Instant,
}

impl Drop for RunningPoll<'_> {
    fn drop(&mut self) {
        self.task.end_poll(self.begun);
    }
}

/// A task that takes turns. Dropped with its future, or after it.
struct TaskInTurns(Arc<ClientTask>);

impl Drop for TaskInTurns {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        net::IpAddr,
        panic::{AssertUnwindSafe, catch_unwind},
        sync::atomic::{AtomicUsize, Ordering},
    };

    use futures::{
        FutureExt as _,
        future::{BoxFuture, join_all, pending},
        task::noop_waker,
    };
    use tokio::sync::Semaphore;

    use super::*;
    use concord_service::Principal;

    /// How many tasks have turns on one thread, where each is expected to run long.
    const TURNS: usize = 2;

    fn client(last: u8) -> CallerAddress {
        let address = IpAddr::from([127, 0, 0, last]);
        CallerAddress::new(address, address)
    }

    fn figures(turns: &FairScheduler) -> (u64, usize) {
        let waiting = turns.queue().len();
        assert_eq!(turns.waiting.load(Ordering::SeqCst), waiting);
        (turns.taken.load(Ordering::SeqCst), waiting)
    }

    /// A runtime that polls by hand, in the order of the wake-ups.
    struct HandRuntime {
        turns: Arc<FairScheduler>,
        tasks: Vec<Option<BoxFuture<'static, ()>>>,
        woken: Arc<Mutex<VecDeque<usize>>>,
    }

    struct HandWaker(usize, Arc<Mutex<VecDeque<usize>>>);

    impl Wake for HandWaker {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push_back(self.0);
        }
    }

    impl HandRuntime {
        fn new() -> Self {
            let turns = FairScheduler::new(1);
            Self { turns, tasks: Vec::new(), woken: Arc::default() }
        }

        fn spawn(
            &mut self,
            client: CallerAddress,
            future: impl Future<Output = ()> + Send + 'static,
        ) -> usize {
            let turns = ClientTurns { turns: Arc::clone(&self.turns), client };
            self.tasks.push(Some(turns.serve(future).boxed()));
            let number = self.tasks.len() - 1;
            self.woken.lock().unwrap().push_back(number);
            number
        }

        /// Polls one task as often as a runtime may, woken or not. Whether it has ended.
        fn poll(&mut self, number: usize) -> bool {
            let waker = Waker::from(Arc::new(HandWaker(number, Arc::clone(&self.woken))));
            let Some(task) = &mut self.tasks[number] else { return true };
            let has_ended = task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
            if has_ended {
                self.tasks[number] = None;
            }
            has_ended
        }

        /// Polls those that were woken so far.
        fn pass(&mut self) {
            let woken = std::mem::take(&mut *self.woken.lock().unwrap());
            for number in woken {
                self.poll(number);
            }
        }

        fn passes(&mut self) {
            for _ in 0..10_000 {
                self.pass();
            }
            assert!(self.woken.lock().unwrap().is_empty());
        }

        /// How many nanoseconds are taken, and how many tasks wait for some.
        fn figures(&self) -> (u64, usize) {
            figures(&self.turns)
        }
    }

    /// Is ready when it was polled so often; notes each poll.
    async fn works(name: u8, polls: usize, log: Arc<Mutex<Vec<u8>>>) {
        for _ in 0..polls {
            log.lock().unwrap().push(name);
            yield_now().await;
        }
    }

    #[test]
    fn a_client_of_one_task_is_not_behind_the_tasks_of_another() {
        let (mut runtime, log) = (HandRuntime::new(), Arc::new(Mutex::new(Vec::new())));
        for _ in 0..1000 {
            runtime.spawn(client(1), works(1, 3, Arc::clone(&log)));
        }
        runtime.pass();
        assert_eq!(runtime.figures(), (TURNS_NANOS, 1000 - TURNS));
        let before = log.lock().unwrap().len();
        runtime.spawn(client(2), works(2, 3, Arc::clone(&log)));
        runtime.passes();
        let seen = log.lock().unwrap();
        let at: Vec<_> = seen.iter().enumerate().filter(|(_, name)| **name == 2).map(|(at, _)| at).collect();
        assert_eq!((seen.len(), at.len()), (3003, 3));
        assert!(at[2] - before <= 12 * TURNS, "{at:?} after {before}");
        drop(seen);
        assert_eq!(runtime.figures(), (0, 0));
    }

    #[test]
    fn there_are_as_many_turns_as_are_expected_to_run_within_eight_milliseconds() {
        for (micros, at_once) in [(0, 2000), (1, 2000), (20, 800), (100, 160), (1000, 16), (10_000, 4)] {
            let turns = FairScheduler::new(2);
            let task = ClientTask {
                turns: Arc::clone(&turns),
                client: client(1),
                stage: TaskStage::new(),
                is_request: true,
                expected: AtomicU64::new(micros * 1000),
                counted: AtomicU64::new(0),
                place: Mutex::default(),
                task: AtomicWaker::new(),
            };
            let taken = std::iter::from_fn(|| task.try_take()).count();
            assert_eq!(taken, at_once, "of {micros} us");
        }
    }

    #[test]
    fn a_key_has_rivals_until_no_other_has_run_for_a_minute() {
        let turns = FairScheduler::new(1);
        let runs = |key: u64, seconds: u64| {
            turns.note_key(key, turns.begun + Duration::from_secs(seconds));
            turns.has_rivals.load(Ordering::Relaxed)
        };
        let seen = [(7, 0), (7, 1), (8, 2), (8, 61), (8, 62), (7, 63), (7, 122), (7, 123)];
        assert_eq!(
            seen.map(|(key, seconds)| runs(key, seconds)),
            [false, false, true, true, false, true, true, false]
        );
    }

    /// A connection on which this key was good.
    fn client_with_key(id: &str) -> CallerAddress {
        let known = client(1);
        let principal = Principal::named(id, 0);
        let noted = known.clone().serve(async move { CallerAddress::note_owner(&principal) });
        noted.now_or_never().expect("it waits for nothing");
        known
    }

    #[test]
    fn a_key_takes_turns_only_while_it_is_not_alone() {
        let (mut runtime, last) = (HandRuntime::new(), Arc::new(Mutex::new(noop_waker())));
        // Each poll leaves its waker.
        let spawn = |runtime: &mut HandRuntime, key: &str| {
            let last = Arc::clone(&last);
            let keep = move |context: &mut Context<'_>| {
                *last.lock().unwrap() = context.waker().clone();
                Poll::<()>::Pending
            };
            runtime.spawn(client_with_key(key), poll_fn(keep));
            runtime.pass();
        };
        // Whether the task that was polled last takes a turn when it is woken.
        let takes_turn = |runtime: &mut HandRuntime| {
            let waker = last.lock().unwrap().clone();
            waker.wake();
            let taken = runtime.figures().0;
            runtime.pass();
            assert_eq!(runtime.figures(), (0, 0));
            taken > 0
        };
        spawn(&mut runtime, "a");
        assert!(takes_turn(&mut runtime), "nobody knew the key before");
        assert!(!takes_turn(&mut runtime), "it is alone, and its last poll has left another waker");
        spawn(&mut runtime, "a");
        assert!(!takes_turn(&mut runtime) && !takes_turn(&mut runtime), "it is alone");
        let alone = last.lock().unwrap().clone();
        spawn(&mut runtime, "b");
        assert!(takes_turn(&mut runtime));
        alone.wake();
        runtime.pass();
        assert!(takes_turn(&mut runtime), "the first key has a rival");
    }

    #[test]
    fn a_task_that_waits_for_something_else_has_no_turn() {
        let (mut runtime, permits) = (HandRuntime::new(), Arc::new(Semaphore::new(0)));
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..100 {
            let (permits, done) = (Arc::clone(&permits), Arc::clone(&done));
            runtime.spawn(client(1), async move {
                permits.acquire().await.unwrap().forget();
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        runtime.passes();
        assert_eq!((runtime.figures(), done.load(Ordering::SeqCst)), ((0, 0), 0));
        // All are woken at once, from outside.
        permits.add_permits(100);
        let (taken, waiting) = runtime.figures();
        assert!(taken >= TURNS_NANOS && waiting > 0, "{taken} {waiting}");
        runtime.passes();
        assert_eq!((runtime.figures(), done.load(Ordering::SeqCst)), ((0, 0), 100));
    }

    #[test]
    fn a_task_that_is_woken_while_it_is_polled_runs_again() {
        let mut runtime = HandRuntime::new();
        let polls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&polls);
        runtime.spawn(client(1), async move {
            poll_fn(|context| {
                context.waker().wake_by_ref();
                let kept = context.waker().clone();
                kept.wake_by_ref();
                if counted.fetch_add(1, Ordering::SeqCst) < 5 { Poll::Pending } else { Poll::Ready(()) }
            })
            .await;
        });
        runtime.passes();
        assert_eq!((polls.load(Ordering::SeqCst), runtime.figures()), (6, (0, 0)));
    }

    #[test]
    fn a_task_that_ends_or_is_dropped_leaves_its_turn_to_the_next() {
        let (mut runtime, log) = (HandRuntime::new(), Arc::new(Mutex::new(Vec::new())));
        let at_once = TURNS;
        let numbers: Vec<_> =
            (0..at_once + 3).map(|_| runtime.spawn(client(1), works(1, 2, Arc::clone(&log)))).collect();
        // The first have yielded and have turns again or wait; the others wait.
        runtime.pass();
        assert_eq!(runtime.figures().1, 3);
        // Dropped while they wait, and while they have a turn: whichever it is, none is lost.
        for number in [numbers[0], numbers[at_once], numbers[1]] {
            runtime.tasks[number] = None;
            assert!(runtime.figures().0 > 0);
        }
        runtime.passes();
        assert!(runtime.tasks.iter().all(Option::is_none) && runtime.figures() == (0, 0));
        assert_eq!(Arc::strong_count(&runtime.turns), 1, "nothing is kept");
    }

    #[test]
    fn a_panic_gives_the_turn_back() {
        let (mut runtime, log) = (HandRuntime::new(), Arc::new(Mutex::new(Vec::new())));
        let failing: Vec<_> =
            (0..5).map(|_| runtime.spawn(client(1), async { panic!("on purpose") })).collect();
        runtime.spawn(client(1), works(1, 2, Arc::clone(&log)));
        let mut panics = Vec::new();
        for _ in 0..20 {
            let woken = std::mem::take(&mut *runtime.woken.lock().unwrap());
            for number in woken {
                if catch_unwind(AssertUnwindSafe(|| runtime.poll(number))).is_err() {
                    // As a runtime does.
                    runtime.tasks[number] = None;
                    panics.push(number);
                }
            }
        }
        assert!(runtime.tasks.iter().all(Option::is_none));
        assert_eq!((panics, log.lock().unwrap().len()), (failing, 2));
        assert_eq!(runtime.figures(), (0, 0));
    }

    #[test]
    fn a_waker_that_outlives_its_task_does_nothing() {
        let mut runtime = HandRuntime::new();
        let kept = Arc::new(Mutex::new(noop_waker()));
        let keeps = Arc::clone(&kept);
        let number = runtime.spawn(client(1), async move {
            poll_fn(|context| {
                *keeps.lock().unwrap() = context.waker().clone();
                Poll::<()>::Pending
            })
            .await;
        });
        runtime.pass();
        assert!(!runtime.poll(number), "polled without a wake-up");
        runtime.tasks[number] = None;
        kept.lock().unwrap().wake_by_ref();
        assert_eq!(runtime.figures(), (0, 0));
        // Nor does one that is woken twice take two turns.
        runtime.spawn(client(1), pending());
        runtime.passes();
        assert_eq!(runtime.figures(), (0, 0));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_wake_up_is_lost_between_threads() {
        // Fewer turns than tasks at first, and about as many later, when the polls turn out to be short.
        let turns = FairScheduler::new(1);
        let (ping, pong) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let tasks = (0..200_u8).map(|number| {
            let turns = ClientTurns { turns: Arc::clone(&turns), client: client(number % 3) };
            let (own, other) = if number % 2 == 0 { (&ping, &pong) } else { (&pong, &ping) };
            let (own, other) = (Arc::clone(own), Arc::clone(other));
            tokio::spawn(turns.serve(async move {
                for _ in 0..500 {
                    other.add_permits(1);
                    own.acquire().await.unwrap().forget();
                    yield_now().await;
                }
            }))
        });
        let tasks: Vec<_> = tasks.collect();
        let aborted: Vec<_> = (0..100_u8)
            .map(|number| {
                let turns = ClientTurns { turns: Arc::clone(&turns), client: client(number % 3) };
                tokio::spawn(turns.serve(async {
                    loop {
                        yield_now().await;
                    }
                }))
            })
            .collect();
        tokio::time::timeout(Duration::from_secs(60), join_all(tasks)).await.expect("all end");
        aborted.iter().for_each(tokio::task::JoinHandle::abort);
        join_all(aborted).await;
        assert_eq!(figures(&turns), (0, 0));
    }
}
