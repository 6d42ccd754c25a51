//! Runs work that takes longer than about a millisecond on threads of its own, as many at once as there are processors.
//!
//! A schema check, a dry run of a batch or a list without an index may take seconds. On the threads that serve callers it
//! would delay all others; on threads without a bound it would take the processor from them, and from Raft. The threads
//! here have a lower priority than both, so what competes for a processor loses. Whose turn it is `fair_queue` decides.
//!
//! **Invariants:** at most as many pieces of work run at once as there are processors, and a caller waits for its turn and for its
//! result until its deadline at most. Work whose caller is gone sees it in its [`Cancel`], and holds its thread until
//! it has ended: giving up never makes room for more than the threads carry.

mod fair_queue;

use std::{sync::Arc, thread::available_parallelism};

use tokio::{
    runtime::Handle,
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{Refusal, origin::Origin, own_threads::OwnThreads};
use concord_model::limits::CONFIG_SCANS_MAX;
pub(super) use fair_queue::{PoolPermit, ScanPlace, Weight};
use fair_queue::{PoolQueue, Ticket};

/// How far the priority of the threads is below that of the others: one such thread gets a tenth of a processor that
/// another thread competes for.
const NICENESS: i32 = 10;

/// Threads for long work.
#[derive(Debug)]
pub(super) struct CpuPool {
    threads: OwnThreads,
    turns: Arc<PoolQueue>,
}

/// Tells a piece of work when nobody waits for it any more. Long work looks at it at least every few milliseconds.
#[derive(Debug, Clone)]
pub(super) struct Cancel {
    caller_gone: CancellationToken,
    deadline: Instant,
}

impl Cancel {
    /// A piece of work whose caller waits until `deadline`, or until `caller_gone` is cancelled.
    pub(super) fn new(caller_gone: CancellationToken, deadline: Instant) -> Self {
        Self { caller_gone, deadline }
    }

    /// Whether the result is not needed any more.
    pub(super) fn is_over(&self) -> bool {
        self.caller_gone.is_cancelled() || Instant::now() >= self.deadline
    }
}

impl CpuPool {
    /// A pool with a thread for each processor, and at least two: one long piece of work does not hold up all others.
    pub(super) fn new() -> Self {
        let threads = available_parallelism().map_or(2, |processors| processors.get().max(2));
        let turns = if concord_model::sabotage::is("work-without-turns") { 64 } else { threads };
        // A scan that makes way keeps its thread, asleep.
        let threads = OwnThreads::new("concord-cpu", turns + CONFIG_SCANS_MAX, lower_priority);
        Self { threads, turns: PoolQueue::new(turns) }
    }

    /// Threads, pieces of work that run, pieces that wait for a thread.
    pub(super) fn figures(&self) -> [usize; 3] {
        self.turns.figures()
    }

    /// Waits for a turn and runs `work` on one of the threads.
    ///
    /// # Errors
    /// [`Refusal::Unavailable`] when the deadline passes before the work has ended. Then its result is lost, so it must
    /// not have changed anything. [`Refusal::LimitReached`] when too many lists of the origin wait.
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
        let ticket = self.turns.enter(Origin::current(), weight)?;
        let late = || Refusal::Unavailable("the processors were busy until the time was up".into());
        wait_for(ticket, deadline).await.ok_or_else(late)
    }

    /// Runs `work` in a turn that was waited for.
    ///
    /// # Errors
    /// As for [`Self::run`].
    pub(super) async fn run_in<T: Send + 'static>(
        &self,
        turn: PoolPermit,
        deadline: Instant,
        work: impl FnOnce(&Cancel, &mut Way) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let caller_gone = CancellationToken::new();
        let cancel = Cancel::new(caller_gone.clone(), deadline);
        let _gone_when_dropped = caller_gone.drop_guard();
        let mut way = Way { turn: Some(turn), timers: Handle::current(), cancel: cancel.clone() };
        // The turn ends with the work, however long after its caller.
        let running = self.threads.run(move || work(&cancel, &mut way));
        let ended = timeout_at(deadline, running).await;
        ended
            .map_err(|_| late())?
            .map_err(|error| Refusal::Internal(format!("long work ended early: {error}")))
    }
}

async fn wait_for(mut ticket: Ticket, deadline: Instant) -> Option<PoolPermit> {
    timeout_at(deadline, &mut ticket.turn).await.ok()?.ok()
}

/// By which a long piece of work makes way for others and goes on later, on its own thread.
#[derive(Debug)]
pub(super) struct Way {
    turn: Option<PoolPermit>,
    /// The runtime of the caller: the pool's has no timers.
    timers: Handle,
    cancel: Cancel,
}

impl Way {
    /// Lets others have a turn after each slice. False when there is no other turn until the deadline.
    pub(super) fn make(&mut self) -> bool {
        let Some(turn) = &mut self.turn else { return false };
        let Some(ticket) = turn.make_way() else { return true };
        let (begun, cancel) = (Instant::now(), &self.cancel);
        let turn = self.timers.block_on(async {
            tokio::select! {
                turn = wait_for(ticket, cancel.deadline) => turn,
                () = cancel.caller_gone.cancelled() => None,
            }
        });
        // It works as long as it has waited, or it might never end.
        self.turn = turn.map(|turn| turn.with_slice(begun.elapsed()));
        self.turn.is_some()
    }
}

/// The refusal of work that was not done in time: certainly without effect.
pub(super) fn late() -> Refusal {
    Refusal::Unavailable("the work was not done when the time was up".into())
}

/// Linux has a priority for each thread; "this process" means the calling thread.
fn lower_priority() {
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!(%error, "the priority of a thread could not be lowered");
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
    async fn work_that_is_late_is_told_and_keeps_its_turn() {
        let pool = CpuPool::new();
        let threads = pool.turns.free();
        let (ended, wait) = mpsc::channel();
        let end = Instant::now() + Duration::from_millis(20);
        let refused = pool
            .run(Weight::Short, end, move |cancel| {
                // It goes on beyond its deadline, until the caller has given up.
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
    async fn a_scan_makes_way_on_its_thread_and_goes_on() {
        let pool = CpuPool::new();
        let is_done = Arc::new(AtomicBool::new(false));
        let mut turn = pool.turn(Weight::Scan, soon()).await.unwrap();
        let place = turn.take_place();
        let done = Arc::clone(&is_done);
        let scan = pool.run_in(turn, soon(), move |_, way| {
            let _place = place;
            while !done.load(Ordering::SeqCst) {
                assert!(way.make());
                std::thread::yield_now();
            }
        });
        // With the scan they take all threads that long work may have, so what ends them waits for the scan.
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
    async fn work_of_a_caller_that_is_gone_is_told() {
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
            _ = work => panic!("it waits for its caller to leave"),
            _ = has_begun => {}
        }
        tokio::time::timeout(Duration::from_secs(60), has_ended).await.unwrap().unwrap();
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
