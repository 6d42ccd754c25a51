//! Runs work that takes longer than about a millisecond on threads of its own, as many at once as there are processors.
//!
//! A schema check, a dry run of a batch or a list without an index may take seconds. On the runtime's workers it would
//! delay the heartbeats and elections of Raft, which share them; on threads without a bound it would take the processor
//! from them. The threads here have a lower priority than the workers, so what competes for a processor loses to Raft.
//!
//! **Invariants:** at most [`CpuPool::threads`] pieces of work run at once, and a caller waits for its turn and for its
//! result until its deadline at most. Work whose caller is gone sees it in its [`Cancel`], and holds its thread until
//! it has ended: giving up never makes room for more than the threads carry.

use std::{sync::Arc, thread::available_parallelism};

use tokio::{
    runtime::{Builder, Runtime},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::Refusal;

/// How far the priority of the threads is below that of the others: one such thread gets a tenth of a processor that
/// another thread competes for.
const NICENESS: i32 = 10;

/// Threads for long work.
#[derive(Debug)]
pub(super) struct CpuPool {
    /// Owns the threads and nothing else: no task runs on it.
    runtime: Option<Runtime>,
    threads: usize,
    turns: Arc<Semaphore>,
}

/// The right to run on one of the threads.
#[derive(Debug)]
pub(super) struct PoolPermit {
    _place: OwnedSemaphorePermit,
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
        let turns = if crate::sabotage::is("work-without-turns") { 64 } else { threads };
        let runtime = Builder::new_current_thread()
            .max_blocking_threads(turns)
            .thread_name("concord-cpu")
            .on_thread_start(lower_priority)
            .build();
        let runtime = runtime.expect("a runtime without drivers needs nothing that could be missing");
        Self { runtime: Some(runtime), threads, turns: Arc::new(Semaphore::new(turns)) }
    }

    /// How many pieces of work run at once.
    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Waits for a turn and runs `work` on one of the threads.
    ///
    /// # Errors
    /// [`Refusal::Unavailable`] when the deadline passes before the work has ended. Then its result is lost, so it must
    /// not have changed anything.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce(&Cancel) -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let turn = self.turn(deadline).await?;
        self.run_in(turn, deadline, work).await.map(|(_turn, result)| result)
    }

    /// Waits for a turn, for work in several parts that must not wait for others in between.
    ///
    /// # Errors
    /// [`Refusal::Unavailable`] when the deadline passes before.
    pub(super) async fn turn(&self, deadline: Instant) -> Result<PoolPermit, Refusal> {
        let late = |_| Refusal::Unavailable("the processors were busy until the time was up".into());
        let turn = timeout_at(deadline, Arc::clone(&self.turns).acquire_owned()).await.map_err(late)?;
        turn.map(|place| PoolPermit { _place: place })
            .map_err(|_| Refusal::Unavailable("this node is stopping".into()))
    }

    /// Runs `work` in a turn that was waited for, and returns the turn with the result.
    ///
    /// # Errors
    /// As for [`Self::run`].
    pub(super) async fn run_in<T: Send + 'static>(
        &self,
        turn: PoolPermit,
        deadline: Instant,
        work: impl FnOnce(&Cancel) -> T + Send + 'static,
    ) -> Result<(PoolPermit, T), Refusal> {
        let caller_gone = CancellationToken::new();
        let cancel = Cancel::new(caller_gone.clone(), deadline);
        let _gone_when_dropped = caller_gone.drop_guard();
        let running = self.runtime.as_ref().map(|runtime| {
            runtime.spawn_blocking(move || {
                // The turn ends with the work, however long after its caller.
                let result = work(&cancel);
                (turn, result)
            })
        });
        let running = running.expect("the runtime is there until the pool is dropped");
        let ended = timeout_at(deadline, running).await;
        ended
            .map_err(|_| late())?
            .map_err(|error| Refusal::Internal(format!("long work ended early: {error}")))
    }
}

/// The refusal of work that was not done in time: certainly without effect.
pub(super) fn late() -> Refusal {
    Refusal::Unavailable("the work was not done when the time was up".into())
}

impl Drop for CpuPool {
    /// Does not wait for work in progress: the pool may be dropped on a worker, which must not block.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
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
            atomic::{AtomicUsize, Ordering},
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
        let threads = pool.threads();
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let all = (0..threads * 4).map(|n| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            pool.run(soon(), move |_| {
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
        let threads = pool.turns.available_permits();
        let (ended, wait) = mpsc::channel();
        let end = Instant::now() + Duration::from_millis(20);
        let refused = pool
            .run(end, move |cancel| {
                // It goes on beyond its deadline, until the caller has given up.
                while !cancel.caller_gone.is_cancelled() {
                    std::thread::yield_now();
                }
                ended.send(cancel.is_over()).unwrap();
            })
            .await;
        assert!(matches!(refused, Err(Refusal::Unavailable(_))), "{refused:?}");
        assert!(wait.recv_timeout(Duration::from_secs(60)).unwrap());
        let all = pool.turns.acquire_many(u32::try_from(threads).unwrap());
        drop(tokio::time::timeout(Duration::from_secs(60), all).await.unwrap().unwrap());
    }

    #[tokio::test]
    async fn work_of_a_caller_that_is_gone_is_told() {
        let pool = CpuPool::new();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let (ended, has_ended) = tokio::sync::oneshot::channel();
        let work = pool.run(soon(), move |cancel| {
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
        for _ in 0..pool.turns.available_permits() * 2 {
            let result: Result<(), Refusal> = pool.run(soon(), |_| panic!("on purpose")).await;
            assert!(matches!(result, Err(Refusal::Internal(_))), "{result:?}");
        }
    }
}
