//! Concurrent reads share requests for a read index.
//!
//! A request costs a round trip, whatever the number of reads that wait for it. So a node has at most one request
//! in flight and one waiting. A read that arrives while one is in flight joins the waiting one: the leader may
//! have taken the index of the one in flight before the write that the read must see.
//!
//! Before a request is sent, the readers that are ready to run join it: a task that was just started, or woken, would
//! otherwise run before them, and each would wait for the request after it.
//!
//! **Invariant:** a caller's index is requested after the caller has joined.

use std::{
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use concord_consensus::{ReadError, ReadIndex, let_others_join};

/// The outcome of a request; `None` until there is one.
type Outcome = Option<Result<ReadIndex, ReadError>>;

/// Passes over the ready tasks in which nobody joins, after which a request is sent. With one reader a third pass cost
/// it 3 % more processor time; with 64 it brought nothing.
const JOINING_PATIENCE: u32 = 2;

/// The requests for a read index of one node.
#[derive(Debug, Default)]
pub(crate) struct SharedReadIndex {
    requests: Mutex<Requests>,
}

#[derive(Debug, Default)]
struct Requests {
    /// Whether a task sends requests.
    is_running: bool,
    /// The next request. The readers that joined it hold its receivers.
    waiting: Option<watch::Sender<Outcome>>,
}

impl SharedReadIndex {
    /// A read index that `fetch` requests after this call.
    pub(super) async fn get<F, R>(self: &Arc<Self>, fetch: F) -> Result<ReadIndex, ReadError>
    where
        F: Fn() -> R + Send + 'static,
        R: Future<Output = Result<ReadIndex, ReadError>> + Send + 'static,
    {
        let mut request = self.join(fetch);
        let outcome = request.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        outcome.ok().flatten().unwrap_or_else(|| Err(ReadError::NoQuorum("the request was given up".into())))
    }

    /// Joins the waiting request; starts a task that sends it when none is running.
    fn join<F, R>(self: &Arc<Self>, fetch: F) -> watch::Receiver<Outcome>
    where
        F: Fn() -> R + Send + 'static,
        R: Future<Output = Result<ReadIndex, ReadError>> + Send + 'static,
    {
        let mut requests = self.lock();
        if let Some(waiting) = &requests.waiting {
            return waiting.subscribe();
        }
        let (sender, receiver) = watch::channel(None);
        requests.waiting = Some(sender);
        if !requests.is_running {
            requests.is_running = true;
            tokio::spawn(Sender(Arc::clone(self)).run(fetch));
        }
        receiver
    }

    fn lock(&self) -> MutexGuard<'_, Requests> {
        // No code that holds the lock can panic between two consistent values.
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that sends requests, one after another, while any is waiting.
struct Sender(Arc<SharedReadIndex>);

impl Sender {
    async fn run<F, R>(self, fetch: F)
    where
        F: Fn() -> R + Send + 'static,
        R: Future<Output = Result<ReadIndex, ReadError>> + Send + 'static,
    {
        loop {
            let_others_join(JOINING_PATIENCE, || self.joined()).await;
            let Some(request) = self.next() else { return };
            request.send_replace(Some(fetch().await));
        }
    }

    /// How many have joined the next request.
    fn joined(&self) -> usize {
        self.0.lock().waiting.as_ref().map_or(0, watch::Sender::receiver_count)
    }

    /// The request to send now. Readers that arrive from now on join the one after it.
    fn next(&self) -> Option<watch::Sender<Outcome>> {
        let mut requests = self.0.lock();
        let next = requests.waiting.take();
        requests.is_running = next.is_some();
        next
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // After a panic the waiting readers see their sender dropped, and the next reader starts another task. After
        // a regular end another task may be running already, so nothing is reset.
        if std::thread::panicking() {
            *self.0.lock() = Requests::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures::future::BoxFuture;
    use tokio::{sync::Semaphore, task::yield_now};

    use super::*;

    /// A leader that counts requests and answers as many as the test permits.
    #[derive(Debug)]
    struct Leader {
        requests: AtomicU64,
        permitted: Semaphore,
    }

    impl Leader {
        fn new() -> Arc<Self> {
            Arc::new(Self { requests: AtomicU64::new(0), permitted: Semaphore::new(0) })
        }

        /// Requests an index: the number of the request.
        fn fetch(
            self: &Arc<Self>,
        ) -> impl Fn() -> BoxFuture<'static, Result<ReadIndex, ReadError>> + Send + 'static {
            let leader = Arc::clone(self);
            move || {
                let leader = Arc::clone(&leader);
                Box::pin(async move {
                    let number = leader.requests.fetch_add(1, Ordering::SeqCst) + 1;
                    leader.permitted.acquire().await.unwrap().forget();
                    Ok(ReadIndex(number))
                })
            }
        }

        async fn has_requests(&self, number: u64) {
            while self.requests.load(Ordering::SeqCst) < number {
                yield_now().await;
            }
        }
    }

    async fn outcome(mut request: watch::Receiver<Outcome>) -> Result<ReadIndex, ReadError> {
        request.wait_for(Option::is_some).await.unwrap().clone().unwrap()
    }

    /// Waits until the task that has sent requests has ended: it would send the next one, too.
    async fn no_task_runs(shared: &SharedReadIndex) {
        while shared.lock().is_running {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn readers_that_arrive_during_a_request_share_the_next_one() {
        let (shared, leader) = (Arc::new(SharedReadIndex::default()), Leader::new());
        let first = shared.join(leader.fetch());
        leader.has_requests(1).await;
        let later: Vec<_> = (0..100).map(|_| shared.join(leader.fetch())).collect();
        assert_eq!(leader.requests.load(Ordering::SeqCst), 1, "one in flight");
        leader.permitted.add_permits(1);
        assert_eq!(outcome(first).await, Ok(ReadIndex(1)));
        leader.permitted.add_permits(1);
        for reader in later {
            assert_eq!(outcome(reader).await, Ok(ReadIndex(2)), "never the request that was in flight");
        }
        assert_eq!(leader.requests.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn readers_before_the_request_is_sent_share_it() {
        let (shared, leader) = (Arc::new(SharedReadIndex::default()), Leader::new());
        leader.permitted.add_permits(10);
        let readers: Vec<_> = (0..10).map(|_| shared.join(leader.fetch())).collect();
        for reader in readers {
            assert_eq!(outcome(reader).await, Ok(ReadIndex(1)));
        }
        assert_eq!(
            shared.get(leader.fetch()).await,
            Ok(ReadIndex(2)),
            "the next reader has a request of its own"
        );
    }

    /// The runtime runs a task that another one has just started before the others that are ready.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn readers_that_are_ready_to_run_share_the_first_request() {
        let (shared, leader) = (Arc::new(SharedReadIndex::default()), Leader::new());
        leader.permitted.add_permits(10);
        let readers = tokio::spawn({
            let (shared, leader) = (Arc::clone(&shared), Arc::clone(&leader));
            async move {
                let reader = || {
                    let (shared, leader) = (Arc::clone(&shared), Arc::clone(&leader));
                    tokio::spawn(async move { shared.get(leader.fetch()).await })
                };
                (0..10).map(|_| reader()).collect::<Vec<_>>()
            }
        });
        for reader in readers.await.unwrap() {
            assert!(reader.await.unwrap().is_ok());
        }
        assert_eq!(leader.requests.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_failed_request_is_reported_and_the_next_one_is_sent() {
        let shared = Arc::new(SharedReadIndex::default());
        let failed = shared.get(|| async { Err(ReadError::NotLeader(Some(2))) }).await;
        no_task_runs(&shared).await;
        assert_eq!(failed, Err(ReadError::NotLeader(Some(2))));
        assert_eq!(shared.get(|| async { Ok(ReadIndex(9)) }).await, Ok(ReadIndex(9)));
    }

    #[tokio::test]
    async fn a_request_that_panics_leaves_no_reader_waiting() {
        let shared = Arc::new(SharedReadIndex::default());
        let crashed = shared.get(|| async { panic!("crash") }).await;
        assert!(matches!(crashed, Err(ReadError::NoQuorum(_))));
        assert_eq!(shared.get(|| async { Ok(ReadIndex(9)) }).await, Ok(ReadIndex(9)));
    }
}
