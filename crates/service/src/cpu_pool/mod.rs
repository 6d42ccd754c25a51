//! Runs work that takes longer than about a millisecond on threads of its own, as many at once as there are cores.
//!
//! A schema check, a dry run of a batch or a list without an index may take seconds. On the request threads it would
//! delay all other requests; on an unlimited number of threads it would take the CPU from them, and from Raft. These
//! threads have a lower priority than both.
//!
//! | question | file |
//! |---|---|
//! | Whose work runs next? | `fair_queue` |
//!
//! **Invariants:** at most as many pieces of work run at once as there are cores. A request waits for its turn and its
//! result until its deadline at most. Work whose request is gone sees that in its [`Cancel`], and keeps its turn until
//! it ends, so abandoned work still counts.

mod fair_queue;

use std::{sync::Arc, thread::available_parallelism};

use tokio::{
    runtime::{Builder, Handle, Runtime},
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    Refusal,
    origin::{Origin, RequestWork},
};
use concord_consensus::histogram::{Histogram, TimeCounts};
use concord_model::limits::CONFIG_SCANS_MAX;
pub(super) use fair_queue::{PoolFigures, PoolPermit, ScanPlace, Weight};
use fair_queue::{PoolQueue, Ticket};

/// How far the priority of the threads is below that of the others: one such thread gets a tenth of a core that another
/// thread competes for.
const NICENESS: i32 = 10;

/// Threads for long work.
#[derive(Debug)]
pub(super) struct CpuPool {
    /// Owns the threads and nothing else: no task runs on it. `None` only while this is dropped.
    threads: Option<Runtime>,
    turns: Arc<PoolQueue>,
    /// How long work has waited for its turn.
    waits: Histogram,
}

impl Drop for CpuPool {
    /// Does not wait for work in progress: a worker thread may drop this, and must not block.
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
    }
}

/// Tells a piece of work when its result is no longer needed. Long work checks it at least every few milliseconds.
#[derive(Debug, Clone)]
pub(super) struct Cancel {
    caller_gone: CancellationToken,
    deadline: Instant,
}

impl Cancel {
    /// For a piece of work whose result is needed until `deadline`, or until `caller_gone` is cancelled.
    pub(super) fn new(caller_gone: CancellationToken, deadline: Instant) -> Self {
        Self { caller_gone, deadline }
    }

    /// Whether the result is no longer needed.
    pub(super) fn is_over(&self) -> bool {
        self.caller_gone.is_cancelled() || Instant::now() >= self.deadline
    }
}

impl CpuPool {
    /// A pool with one turn per core, and at least two: one long piece of work does not hold up all others.
    pub(super) fn new() -> Self {
        let threads = available_parallelism().map_or(2, |cores| cores.get().max(2));
        let turns = if concord_model::sabotage::is("work-without-turns") { 64 } else { threads };
        // tokio's threads for blocking work: each starts when it is needed, and ends when it was idle for some seconds. A
        // scan that yields its turn keeps its thread, asleep.
        let mut builder = Builder::new_current_thread();
        builder.max_blocking_threads(turns + CONFIG_SCANS_MAX);
        builder.thread_name("concord-cpu").on_thread_start(lower_priority);
        let threads = builder.build().expect("a runtime without drivers needs nothing that could be missing");
        Self { threads: Some(threads), turns: PoolQueue::new(turns), waits: Histogram::default() }
    }

    /// The numbers of turns, of pieces of work that run, and of pieces that wait.
    pub(super) fn figures(&self) -> PoolFigures {
        self.turns.figures()
    }

    /// How long work has waited for its turn.
    pub(super) fn waits(&self) -> TimeCounts {
        self.waits.read()
    }

    /// Waits for a turn and runs `work` on one of the threads.
    ///
    /// # Errors
    /// [`Refusal::Unavailable`] when the deadline passes before the work ends. Its result is lost then, so the work must
    /// not change anything. [`Refusal::LimitReached`] when too many lists of the origin wait.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        weight: Weight,
        deadline: Instant,
        work: impl FnOnce(&Cancel) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let turn = self.turn(weight, deadline).await?;
        self.run_in(turn, deadline, |cancel, _| work(cancel)).await
    }

    /// Waits for a turn.
    ///
    /// # Errors
    /// [`Refusal::Unavailable`] when the deadline passes before; [`Refusal::LimitReached`] as for [`Self::run`].
    pub(super) async fn turn(&self, weight: Weight, deadline: Instant) -> Result<PoolPermit, Refusal> {
        let begun = Instant::now();
        let ticket = self.turns.enter(Origin::current(), weight)?;
        let late = || Refusal::Unavailable("timed out waiting for CPU on this node".into());
        let turn = wait_for(ticket, deadline).await;
        self.waits.observe(begun.elapsed());
        turn.ok_or_else(late)
    }

    /// A turn, if one is free now.
    pub(super) fn try_turn(&self, weight: Weight) -> Option<PoolPermit> {
        self.turns.enter(Origin::current(), weight).ok()?.turn.try_recv().ok()
    }

    /// Runs `work` in a turn.
    ///
    /// # Errors
    /// As for [`Self::run`].
    pub(super) async fn run_in<T: Send + 'static>(
        &self,
        turn: PoolPermit,
        deadline: Instant,
        work: impl FnOnce(&Cancel, &mut ScanYield) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let caller_gone = CancellationToken::new();
        let cancel = Cancel::new(caller_gone.clone(), deadline);
        let _gone_when_dropped = caller_gone.drop_guard();
        let mut scan_yield =
            ScanYield { turn: Some(turn), timers: Handle::current(), cancel: cancel.clone() };
        // The request is charged for the work, or for what it waited for it; a scan with its pauses.
        let _charged = ChargedUntilDropped(Instant::now());
        // The turn ends with the work, even if the request is long gone.
        let work = move || work(&cancel, &mut scan_yield);
        #[cfg(not(feature = "simulation"))]
        let running = self.threads.as_ref().expect("it is there until this is dropped").spawn_blocking(work);
        #[cfg(feature = "simulation")]
        let running = concord_consensus::blocking::blocking(work);
        let ended = timeout_at(deadline, running).await;
        ended
            .map_err(|_| late())?
            .map_err(|error| Refusal::Internal(format!("long work ended early: {error}")))
    }
}

/// Charges the request of this task for the time until it is dropped.
struct ChargedUntilDropped(Instant);

impl Drop for ChargedUntilDropped {
    fn drop(&mut self) {
        RequestWork::note_busy(self.0.elapsed());
    }
}

async fn wait_for(mut ticket: Ticket, deadline: Instant) -> Option<PoolPermit> {
    timeout_at(deadline, &mut ticket.turn).await.ok()?.ok()
}

/// Lets a long piece of work yield its turn to others and continue later, on its own thread.
#[derive(Debug)]
pub(super) struct ScanYield {
    turn: Option<PoolPermit>,
    /// The runtime of the request: the runtime of the pool has no timers.
    timers: Handle,
    cancel: Cancel,
}

impl ScanYield {
    /// Yields the turn when its slice is over and others wait, and waits for the next one. False when none comes until
    /// the deadline.
    pub(super) fn yield_turn(&mut self) -> bool {
        let Some(turn) = &mut self.turn else { return false };
        let Some(ticket) = turn.yield_turn() else { return true };
        let (begun, cancel) = (Instant::now(), &self.cancel);
        let turn = self.timers.block_on(async {
            tokio::select! {
                turn = wait_for(ticket, cancel.deadline) => turn,
                () = cancel.caller_gone.cancelled() => None,
            }
        });
        // The next slice is as long as the wait was, or the work might never end.
        self.turn = turn.map(|turn| turn.with_slice(begun.elapsed()));
        self.turn.is_some()
    }
}

/// The rejection of work that was not done in time. It had no effect.
pub(super) fn late() -> Refusal {
    Refusal::Unavailable("the work was not done in time".into())
}

/// Linux has a priority for each thread; "this process" means the calling thread.
fn lower_priority() {
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!(%error, "cannot lower the priority of a thread");
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            atomic::{AtomicBool, AtomicUsize, Ordering},
            mpsc,
        },
        time::Duration,
    };

    use futures::future::join_all;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn runs_no_more_than_its_threads_at_once() {
        let pool = CpuPool::new();
        let threads = available_parallelism().unwrap().get().max(2);
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let all = (0..threads * 4).map(|n| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            pool.run(Weight::Short, soon(), move |_| {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(5));
                running.fetch_sub(1, Ordering::SeqCst);
                n
            })
        });
        let results: Vec<usize> = join_all(all).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(results, (0..threads * 4).collect::<Vec<_>>());
        assert!(most.load(Ordering::SeqCst) <= threads);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn late_work_is_cancelled_and_keeps_its_turn_until_it_ends() {
        let pool = CpuPool::new();
        let threads = pool.turns.free();
        let (ended, wait) = mpsc::channel();
        let end = Instant::now() + Duration::from_millis(20);
        let refused = pool
            .run(Weight::Short, end, move |cancel| {
                // It continues beyond its deadline, until the request has given up.
                while !cancel.caller_gone.is_cancelled() {
                    std::thread::yield_now();
                }
                ended.send(cancel.is_over()).unwrap();
            })
            .await;
        assert!(matches!(refused, Err(Refusal::Unavailable(_))), "{refused:?}");
        assert!(wait.recv_timeout(Duration::from_secs(60)).unwrap());
        let all = join_all((0..threads).map(async |_| pool.turn(Weight::Short, soon()).await.unwrap())).await;
        assert_eq!((all.len(), pool.turns.free()), (threads, 0));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_scan_yields_its_turn_on_its_thread_and_continues() {
        let pool = CpuPool::new();
        let is_done = Arc::new(AtomicBool::new(false));
        let mut turn = pool.turn(Weight::Scan, soon()).await.unwrap();
        let place = turn.take_place();
        let done = Arc::clone(&is_done);
        let scan = pool.run_in(turn, soon(), move |_, scan_yield| {
            let _place = place;
            while !done.load(Ordering::SeqCst) {
                assert!(scan_yield.yield_turn());
                std::thread::yield_now();
            }
        });
        // Together with the scan they take all threads that long work may have. So the work that ends them waits until the
        // scan yields.
        let others = (0..pool.turns.free().saturating_sub(1)).map(|_| {
            let done = Arc::clone(&is_done);
            pool.run(Weight::Long, soon(), move |cancel| {
                while !done.load(Ordering::SeqCst) && !cancel.is_over() {
                    std::thread::yield_now();
                }
            })
        });
        let done = Arc::clone(&is_done);
        let last = pool.run(Weight::Long, soon(), move |_| done.store(true, Ordering::SeqCst));
        let (scan, others, last) = tokio::join!(scan, join_all(others), last);
        assert!(scan.is_ok() && others.iter().all(Result::is_ok) && last.is_ok());
    }

    #[tokio::test]
    async fn work_is_cancelled_when_its_request_is_dropped() {
        let pool = CpuPool::new();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (ended, has_ended) = tokio::sync::oneshot::channel();
        let work = pool.run(Weight::Short, soon(), move |cancel| {
            begun.send(()).unwrap();
            while !cancel.is_over() {
                std::thread::yield_now();
            }
            ended.send(()).unwrap();
        });
        tokio::select! {
            _ = work => panic!("it waits until its request is dropped"),
            _ = has_begun => {}
        }
        tokio::time::timeout(Duration::from_secs(60), has_ended).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn try_turn_takes_a_free_turn_and_never_queues() {
        let pool = CpuPool::new();
        let turns: Vec<PoolPermit> = std::iter::from_fn(|| pool.try_turn(Weight::Short)).collect();
        let PoolFigures { turns: all, running, waiting } = pool.figures();
        assert_eq!((turns.len(), running, waiting), (all, all, 0));
        drop(turns);
        assert!(pool.try_turn(Weight::Short).is_some());
    }

    #[tokio::test]
    async fn a_panic_in_the_work_frees_its_turn() {
        let pool = CpuPool::new();
        for _ in 0..pool.turns.free() * 2 {
            let result: Result<(), Refusal> = pool.run(Weight::Short, soon(), |_| panic!("on purpose")).await;
            assert!(matches!(result, Err(Refusal::Internal(_))), "{result:?}");
        }
    }
}
