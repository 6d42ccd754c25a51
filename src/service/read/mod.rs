//! How a read on any node sees every acknowledged write: it waits until this node has applied a *read index*, a
//! place in the log that the leader names after a quorum has confirmed that it still leads.
//!
//! Naming one costs a round trip, whatever the number of readers that rest on it, so they share it: one request
//! is in flight and one is waiting on a node. A reader that arrives while one is in flight waits for the next,
//! never for this one, because this one may have been taken before the reader's write.
//!
//! **Invariant:** a reader's index was asked for after the reader arrived.

pub(crate) mod cursor;
pub(crate) mod page;

use std::{
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::{
    Service,
    request::{Consistency, Level, Refusal},
    retry::{AttemptError, OnUnknown, Retry},
};
use crate::peer::call::Call;
use crate::{
    model::record::Revision,
    peer::{
        ReceiveError,
        client::{CallError, Lane},
        codec::{decode, encode},
    },
    raft::{Consensus, ReadError},
    state::State,
};

/// How long one request for a read index may take; a live leader answers within two round trips.
const FLIGHT: Duration = Duration::from_secs(1);

type Landed = Option<Result<Revision, ReadError>>;

/// The leader's answer to a request for a read index. New variants go to the end.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Named {
    Index(Revision),
    NotLeader,
    NoQuorum(String),
}

/// The shared requests for a read index: at most one in flight and one waiting.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    flying: bool,
    /// The next flight: those who wait for it hold its receivers.
    waiting: Option<watch::Sender<Landed>>,
}

impl Barrier {
    /// A read index that is asked for, by `fetch`, from now on.
    pub(super) async fn join<F, R>(self: &Arc<Self>, fetch: F) -> Result<Revision, ReadError>
    where
        F: Fn() -> R + Send + 'static,
        R: Future<Output = Result<Revision, ReadError>> + Send + 'static,
    {
        let mut landed = self.publisher(fetch);
        let landed = landed.wait_for(Option::is_some).await.map(|landed| landed.clone());
        landed.ok().flatten().unwrap_or_else(|| Err(ReadError::NoQuorum("the request was given up".into())))
    }

    /// Takes a place in the next flight, and starts it when none is in the air.
    fn publisher<F, R>(self: &Arc<Self>, fetch: F) -> watch::Receiver<Landed>
    where
        F: Fn() -> R + Send + 'static,
        R: Future<Output = Result<Revision, ReadError>> + Send + 'static,
    {
        let mut queue = self.lock();
        if let Some(waiting) = &queue.waiting {
            return waiting.subscribe();
        }
        let (sender, receiver) = watch::channel(None);
        queue.waiting = Some(sender);
        if !queue.flying {
            queue.flying = true;
            tokio::spawn(Grounded(Arc::clone(self)).fly(fetch));
        }
        receiver
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing between two consistent forms of the queue can panic.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The one who flies; however the flights end, the queue is left so that the next reader starts anew.
struct Grounded(Arc<Barrier>);

impl Grounded {
    async fn fly<F, R>(self, fetch: F)
    where
        F: Fn() -> R + Send + 'static,
        R: Future<Output = Result<Revision, ReadError>> + Send + 'static,
    {
        while let Some(flight) = self.next() {
            flight.send_replace(Some(fetch().await));
        }
    }

    /// The flight that starts now: whoever comes later waits for the one after it.
    fn next(&self) -> Option<watch::Sender<Landed>> {
        let mut queue = self.0.lock();
        let next = queue.waiting.take();
        queue.flying = next.is_some();
        next
    }
}

impl Drop for Grounded {
    fn drop(&mut self) {
        // After a panic or at the end of the runtime: who waits sees its sender go. After an ordinary end another
        // may be flying already, and it is not to be disturbed.
        let mut queue = self.0.lock();
        if std::thread::panicking() {
            *queue = Queue::default();
        }
    }
}

impl Service {
    /// A state that is as fresh as asked.
    ///
    /// # Errors
    /// When that can't be had in time.
    pub async fn view(&self, consistency: Consistency) -> Result<Arc<State>, Refusal> {
        let consensus = self.consensus_or_refusal()?;
        let deadline = Instant::now() + self.inner.options.read_timeout;
        match consistency.level {
            Level::Linearizable if crate::sabotage::is("local-read") => {}
            Level::Linearizable => self.confirm_until(consensus, deadline).await?,
            Level::Local { max_staleness: Some(most) } if self.staleness().is_none_or(|age| age > most) => {
                self.confirm_until(consensus, deadline).await?;
            }
            Level::Local { .. } => {}
        }
        if let Some(least) = consistency.min_revision {
            Self::wait_applied(consensus, least, deadline).await?;
        }
        Ok(consensus.state())
    }

    /// How old this node's state may be at most: the time since it was last known to hold every acknowledged
    /// write. `None` when that was never known.
    pub(super) fn staleness(&self) -> Option<Duration> {
        let fresh_since = self.inner.fresh_since.lock().unwrap_or_else(PoisonError::into_inner);
        fresh_since.map(|moment| moment.elapsed())
    }

    /// Confirms once that the applied state holds every write that was acknowledged before the call.
    pub(super) async fn confirm(&self, consensus: &Consensus) -> Result<(), ReadError> {
        let asked = Instant::now();
        let service = self.clone();
        let index = self.inner.barrier.join(move || service.clone().fetch_index()).await?;
        consensus.applied(index).await;
        let mut fresh_since = self.inner.fresh_since.lock().unwrap_or_else(PoisonError::into_inner);
        *fresh_since = (*fresh_since).max(Some(asked));
        Ok(())
    }

    /// Confirms through changes of the leader.
    pub(super) async fn confirm_until(
        &self,
        consensus: &Consensus,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        // Confirming stores nothing, so no outcome of it is uncertain.
        let retry = Retry::until(deadline, OnUnknown::Ignore, "the read was not confirmed in time");
        let confirm = async || {
            let reason = match timeout_at(deadline, self.confirm(consensus)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(ReadError::NotLeader(_))) => "no leader is known".into(),
                Ok(Err(ReadError::NoQuorum(text))) => text,
                Err(_) => "this node has not caught up with the leader".into(),
            };
            Err(AttemptError::Retry(reason))
        };
        retry.run(consensus, confirm).await
    }

    /// One read index, of this node when it leads, else of the leader.
    async fn fetch_index(self) -> Result<Revision, ReadError> {
        let Some(consensus) = self.consensus() else { return Err(ReadError::NotLeader(None)) };
        let Some(leader) = consensus.leader() else { return Err(ReadError::NotLeader(None)) };
        if leader.id == self.node_id() {
            return consensus.read_index().await;
        }
        let call = self.peers().call(
            Lane::Forward,
            leader.id,
            &leader.peer_addr,
            Call::ReadIndex,
            Bytes::new(),
            FLIGHT,
        );
        tokio::select! {
            answer = call => index_of(answer),
            // The call may hang on a dead leader for its whole time while a new one is known already.
            () = consensus.leader_changed() => Err(ReadError::NotLeader(None)),
        }
    }

    /// Names a read index to another node. Never asks a third one.
    pub(crate) async fn answer_read_index(&self) -> Bytes {
        let named = match self.consensus() {
            Some(consensus) => match consensus.read_index().await {
                Ok(index) => Named::Index(index),
                Err(ReadError::NotLeader(_)) => Named::NotLeader,
                Err(ReadError::NoQuorum(text)) => Named::NoQuorum(text),
            },
            None => Named::NotLeader,
        };
        encode(&named)
    }
}

/// What a leader's answer says.
fn index_of(answer: Result<Bytes, CallError>) -> Result<Revision, ReadError> {
    let named = answer.map_err(|error| error.to_string()).and_then(|bytes| {
        decode(&bytes).map_err(|error: ReceiveError| format!("the leader's answer is {error}"))
    });
    match named {
        Ok(Named::Index(index)) => Ok(index),
        Ok(Named::NotLeader) => Err(ReadError::NotLeader(None)),
        Ok(Named::NoQuorum(text)) | Err(text) => Err(ReadError::NoQuorum(text)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    /// Flights that count themselves and land when they are let.
    #[derive(Debug)]
    struct Field {
        started: AtomicU64,
        land: Semaphore,
    }

    impl Field {
        fn new() -> Arc<Self> {
            Arc::new(Self { started: AtomicU64::new(0), land: Semaphore::new(0) })
        }

        fn fetch(
            self: &Arc<Self>,
        ) -> impl Fn() -> futures::future::BoxFuture<'static, Result<Revision, ReadError>> + Send + 'static
        {
            let field = Arc::clone(self);
            move || {
                let field = Arc::clone(&field);
                Box::pin(async move {
                    let number = field.started.fetch_add(1, Ordering::SeqCst) + 1;
                    field.land.acquire().await.unwrap().forget();
                    Ok(number)
                })
            }
        }

        async fn flights_started(&self, number: u64) {
            while self.started.load(Ordering::SeqCst) < number {
                tokio::task::yield_now().await;
            }
        }
    }

    async fn landed(mut flight: watch::Receiver<Landed>) -> Result<Revision, ReadError> {
        flight.wait_for(Option::is_some).await.unwrap().clone().unwrap()
    }

    #[tokio::test]
    async fn readers_that_come_during_a_flight_share_the_next_one() {
        let (barrier, field) = (Arc::new(Barrier::default()), Field::new());
        let first = barrier.publisher(field.fetch());
        field.flights_started(1).await;
        let later: Vec<_> = (0..100).map(|_| barrier.publisher(field.fetch())).collect();
        assert_eq!(field.started.load(Ordering::SeqCst), 1, "one in flight");
        field.land.add_permits(1);
        assert_eq!(landed(first).await, Ok(1));
        field.land.add_permits(1);
        for reader in later {
            assert_eq!(landed(reader).await, Ok(2), "never the flight that was in the air");
        }
        assert_eq!(field.started.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn readers_before_the_request_is_sent_share_it() {
        let (barrier, field) = (Arc::new(Barrier::default()), Field::new());
        field.land.add_permits(10);
        let readers: Vec<_> = (0..10).map(|_| barrier.publisher(field.fetch())).collect();
        for reader in readers {
            assert_eq!(landed(reader).await, Ok(1));
        }
        assert_eq!(barrier.join(field.fetch()).await, Ok(2), "the next reader flies anew");
    }

    #[tokio::test]
    async fn a_failed_flight_is_told_and_the_next_one_flies() {
        let barrier = Arc::new(Barrier::default());
        let failed = barrier.join(|| async { Err(ReadError::NotLeader(Some(2))) }).await;
        assert_eq!(failed, Err(ReadError::NotLeader(Some(2))));
        assert_eq!(barrier.join(|| async { Ok(9) }).await, Ok(9));
    }

    #[tokio::test]
    async fn a_flight_that_panics_strands_nobody() {
        let barrier = Arc::new(Barrier::default());
        let crashed = barrier.join(|| async { panic!("crash") }).await;
        assert!(matches!(crashed, Err(ReadError::NoQuorum(_))));
        assert_eq!(barrier.join(|| async { Ok(9) }).await, Ok(9));
    }

    #[test]
    fn a_leaders_answer_comes_back_as_it_was() {
        for named in [Named::Index(7), Named::NotLeader, Named::NoQuorum("no".into())] {
            assert_eq!(decode::<Named>(&encode(&named)).unwrap(), named);
        }
        assert_eq!(index_of(Ok(encode(&Named::Index(7)))), Ok(7));
        assert_eq!(index_of(Ok(encode(&Named::NotLeader))), Err(ReadError::NotLeader(None)));
        assert!(matches!(index_of(Err(CallError::Unknown("lost".into()))), Err(ReadError::NoQuorum(_))));
    }
}
