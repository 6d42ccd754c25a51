//! Concurrent reads share requests for a read index.
//!
//! A request costs a round trip, whatever the number of reads that wait for it. So a node has at most one request in
//! flight. A read that arrives meanwhile waits for the next one: the leader may have taken the index of the one in flight
//! before the write that the read must see.
//!
//! **Invariant:** a caller's index is requested after the caller has joined.

use std::{future::Future, sync::Arc};

use concord_consensus::{
    ReadError, ReadIndex,
    batch_queue::{BatchPolicy, BatchQueue, BatchSender},
    fair_queue::WorkOwner,
};

type ReadIndexResult = Result<ReadIndex, ReadError>;

const READERS: BatchPolicy = BatchPolicy {
    // A request says nothing of its readers.
    items_max: usize::MAX,
    bytes_max: usize::MAX,
    senders_max: 1,
    alone_max: 0,
    // With one reader a third pass cost it 3 % more CPU time; with 64 it brought nothing.
    patience: 2,
    // A wait would delay a read for longer than the request takes.
    returning_max: 0,
    measures_waits: false,
};

/// The requests for a read index of one node.
#[derive(Debug)]
pub(crate) struct SharedReadIndex(Arc<BatchQueue<(), ReadIndexResult>>);

impl Default for SharedReadIndex {
    fn default() -> Self {
        Self(Arc::new(BatchQueue::new(READERS)))
    }
}

impl SharedReadIndex {
    /// A read index that `fetch` requests after this call.
    pub(super) async fn get<F, R>(&self, fetch: F) -> ReadIndexResult
    where
        F: Fn() -> R + Send + 'static,
        R: Future<Output = ReadIndexResult> + Send + 'static,
    {
        let (mut reader, sender) = self.0.push(WorkOwner::SHARED, (), 0);
        if let Some(sender) = sender {
            tokio::spawn(send_requests(sender, fetch));
        }
        let given_up = |_| Err(ReadError::NoQuorum("the request for a read index was given up".into()));
        reader.answer().await.unwrap_or_else(given_up)
    }
}

/// Sends one request after another while reads wait.
async fn send_requests<F, R>(mut sender: BatchSender<(), ReadIndexResult>, fetch: F)
where
    F: Fn() -> R + Send + 'static,
    R: Future<Output = ReadIndexResult> + Send + 'static,
{
    while let Some(readers) = sender.next().await {
        let index = fetch().await;
        readers.into_iter().for_each(|reader| reader.answer(index.clone()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures::future::{BoxFuture, join_all};
    use tokio::{sync::Semaphore, task::yield_now};

    use super::*;

    fn index(number: u64) -> ReadIndex {
        ReadIndex::new(number, 1, 1)
    }

    /// A leader that counts requests and answers as many as the test permits.
    #[derive(Debug)]
    struct CountingLeader {
        requests: AtomicU64,
        permitted: Semaphore,
    }

    impl CountingLeader {
        fn new(permitted: usize) -> Arc<Self> {
            Arc::new(Self { requests: AtomicU64::new(0), permitted: Semaphore::new(permitted) })
        }

        /// Requests an index: the number of the request.
        fn fetch(self: &Arc<Self>) -> impl Fn() -> BoxFuture<'static, ReadIndexResult> + Send + 'static {
            let leader = Arc::clone(self);
            move || {
                let leader = Arc::clone(&leader);
                Box::pin(async move {
                    let number = leader.requests.fetch_add(1, Ordering::SeqCst) + 1;
                    leader.permitted.acquire().await.unwrap().forget();
                    Ok(index(number))
                })
            }
        }

        async fn has_requests(&self, number: u64) {
            while self.requests.load(Ordering::SeqCst) < number {
                yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn readers_that_arrive_during_a_request_share_the_next_one() {
        let (shared, leader) = (SharedReadIndex::default(), CountingLeader::new(0));
        let later = async {
            leader.has_requests(1).await;
            let readers = join_all((0..100).map(|_| shared.get(leader.fetch())));
            let permit = async {
                while shared.0.waiting() < 100 {
                    yield_now().await;
                }
                assert_eq!(leader.requests.load(Ordering::SeqCst), 1, "one in flight");
                leader.permitted.add_permits(2);
            };
            tokio::join!(readers, permit).0
        };
        let (first, later) = tokio::join!(shared.get(leader.fetch()), later);
        assert_eq!(first, Ok(index(1)));
        assert!(later.iter().all(|answer| *answer == Ok(index(2))), "never the request that was in flight");
        assert_eq!(leader.requests.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn readers_before_the_request_is_sent_share_it() {
        let (shared, leader) = (SharedReadIndex::default(), CountingLeader::new(10));
        let readers = join_all((0..10).map(|_| shared.get(leader.fetch()))).await;
        assert!(readers.iter().all(|answer| *answer == Ok(index(1))), "{readers:?}");
        assert_eq!(shared.get(leader.fetch()).await, Ok(index(2)), "the next reader has its own request");
    }

    /// The runtime runs a task that another one has just started before the others that are ready.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn readers_that_are_ready_to_run_share_the_first_request() {
        let (shared, leader) = (Arc::new(SharedReadIndex::default()), CountingLeader::new(10));
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
        let shared = SharedReadIndex::default();
        let failed = shared.get(|| async { Err(ReadError::NotLeader(Some(2))) }).await;
        assert_eq!(failed, Err(ReadError::NotLeader(Some(2))));
        // A sender that runs would send the next request, too.
        while !shared.0.is_idle() {
            yield_now().await;
        }
        assert_eq!(shared.get(|| async { Ok(index(9)) }).await, Ok(index(9)));
    }

    #[tokio::test]
    async fn a_request_that_panics_leaves_no_reader_waiting() {
        let shared = SharedReadIndex::default();
        let crashed = shared.get(|| async { panic!("crash") }).await;
        assert!(matches!(crashed, Err(ReadError::NoQuorum(_))));
        assert_eq!(shared.get(|| async { Ok(index(9)) }).await, Ok(index(9)));
    }
}
