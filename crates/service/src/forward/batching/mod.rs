//! Forwarding batches: small writes to the leader share a peer RPC.
//!
//! An RPC costs about as much as the decision that it requests. So only a few RPCs of a node are in flight at once, and
//! the writes that arrive meanwhile share the next one. A single write is sent at once and alone; of many, each costs a
//! fraction of an RPC. A write that is large, or may take long, has an RPC of its own.
//!
//! **Invariants**
//! 1. A write is sent in one RPC at most. One that is still queued here was certainly not sent.
//! 2. An RPC continues although the callers of some of its writes have left: the others wait for its response. Each write
//!    is answered when it is decided; when the connection is lost, only those without an answer are unknown.
//! 3. No write waits long because of others: an RPC without a response after [`COUNTED_CALL_TIME`] makes room for the
//!    next one.

use std::{
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::StreamExt as _;
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    remaining,
    wire::{WirePart, WireRequest},
};
use crate::{
    context::INLINE_BYTES_MAX,
    request::{Decision, Effect, Target, WriteRequest},
    retry::{Attempt, AttemptError},
};
use concord_consensus::{
    batch_queue::{BatchItem, BatchPolicy, BatchQueue, BatchSender, Unanswered},
    fair_queue::WorkOwner,
    histogram::{Histogram, TimeCounts},
};
use concord_net::{
    Member,
    call::Call,
    client::{CallError, Lane, Peers},
    codec::{decode, encode},
    framed::FrameStream,
    trace::{self, TraceParent, with_traces},
};

/// How long an RPC counts among those in flight. One that takes longer has a long way to the leader, or one of its writes
/// waits there for a lock.
const COUNTED_CALL_TIME: Duration = Duration::from_millis(20);
/// Most writes of one RPC.
pub(crate) const BATCH_WRITES_MAX: usize = 256;
/// Bytes of data of a write that may share an RPC.
const BATCHED_WRITE_BYTES_MAX: usize = 4 << 10;

const FORWARDING: BatchPolicy = BatchPolicy {
    items_max: BATCH_WRITES_MAX,
    // The leader parses them on the threads that serve requests: no more than it would parse there of one write.
    bytes_max: INLINE_BYTES_MAX,
    // With one, the second of two callers would wait for the first. With four, the throughput of 64 callers on three
    // nodes was a tenth lower; with eight, that of 256 callers too.
    senders_max: 2,
    alone_max: 0,
    patience: 3,
    returning_max: BATCH_WRITES_MAX,
    measures_waits: true,
};

/// The writes of this node that wait for an RPC to the leader.
#[derive(Debug)]
pub(crate) struct Batcher {
    policy: BatchPolicy,
    /// To the leader that a write was sent to last. An RPC to another one, or to an earlier address, finishes on its own queue.
    current: Mutex<Option<Arc<ForwardQueue>>>,
    /// How long writes have waited for an RPC, to whichever leader.
    pub(super) waits: Arc<Histogram>,
}

impl Default for Batcher {
    fn default() -> Self {
        Self { policy: FORWARDING, current: Mutex::default(), waits: Arc::default() }
    }
}

#[derive(Debug)]
struct ForwardQueue {
    leader: Member,
    writes: Arc<BatchQueue<QueuedWrite, Attempt<Decision>>>,
}

#[derive(Debug)]
struct QueuedWrite {
    request: Arc<WriteRequest>,
    deadline: Instant,
    trace: Option<TraceParent>,
}

type ForwardSender = BatchSender<QueuedWrite, Attempt<Decision>>;
type SentWrite = BatchItem<QueuedWrite, Attempt<Decision>>;

/// Whether a write may share an RPC: it is small and decided in the ordinary time.
pub(super) fn may_batch(request: &WriteRequest) -> bool {
    let write = &request.write;
    let is_ordinary =
        matches!((write.target(), write.effect()), (Target::Config { .. }, Effect::Store | Effect::Remove));
    is_ordinary && !request.caller.dry_run && write.document_bytes() <= BATCHED_WRITE_BYTES_MAX
}

impl Batcher {
    /// Writes that wait for an RPC.
    pub(crate) fn waiting(&self) -> usize {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().map_or(0, |queue| queue.writes.waiting())
    }

    /// How long writes have waited for an RPC.
    pub(crate) fn waits(&self) -> TimeCounts {
        self.waits.read()
    }

    /// Sends a write in the next RPC.
    pub(super) async fn send(
        &self,
        peers: &Arc<Peers>,
        leader: &Member,
        request: &Arc<WriteRequest>,
        deadline: Instant,
    ) -> Attempt<Decision> {
        let queue = self.queue_to(leader);
        let write = QueuedWrite { request: Arc::clone(request), deadline, trace: trace::at(0) };
        let owner = WorkOwner::of(request.caller.principal.owner());
        let (mut pending, sender) = queue.writes.push(owner, write, request.write.document_bytes());
        if let Some(sender) = sender {
            start(sender, Arc::clone(peers), Arc::clone(&queue));
        }
        let retry = |why: &str| Err(AttemptError::Retry(why.into()));
        let unknown = |why: &str| Err(AttemptError::Unknown(why.into()));
        match timeout_at(deadline, pending.answer()).await {
            Ok(Ok(attempt)) => attempt,
            Ok(Err(Unanswered::NotSent)) => retry("this node failed before the write was sent to the leader"),
            Ok(Err(Unanswered::CutOff)) => unknown("the call to the leader was cut off"),
            Err(_) if pending.withdraw() => retry("the time was up before the write was sent to the leader"),
            Err(_) => unknown("the leader did not answer in time"),
        }
    }

    fn queue_to(&self, leader: &Member) -> Arc<ForwardQueue> {
        // No code that holds the lock can panic between two consistent values.
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = match &mut *current {
            Some(queue) if queue.leader == *leader => queue,
            other => other.insert(Arc::new(ForwardQueue {
                leader: leader.clone(),
                writes: Arc::new(BatchQueue::measured(self.policy, Arc::clone(&self.waits))),
            })),
        };
        Arc::clone(queue)
    }
}

fn start(sender: ForwardSender, peers: Arc<Peers>, queue: Arc<ForwardQueue>) {
    tokio::spawn(send_batches(sender, peers, queue));
}

/// Sends one batch after another while writes wait.
async fn send_batches(mut sender: ForwardSender, peers: Arc<Peers>, queue: Arc<ForwardQueue>) {
    while let Some(batch) = sender.next().await {
        let mut call = pin!(call(&peers, &queue.leader, batch));
        if timeout(COUNTED_CALL_TIME, &mut call).await.is_err() {
            if let Some(next) = sender.retire() {
                start(next, Arc::clone(&peers), Arc::clone(&queue));
            }
            return call.await;
        }
    }
}

/// Calls the leader and gives each caller the answer to its write when it arrives.
async fn call(peers: &Peers, leader: &Member, batch: Vec<SentWrite>) {
    let writes = || batch.iter().map(|write| &write.item);
    let deadline = writes().map(|write| write.deadline).max().unwrap_or_else(Instant::now);
    let requests: Vec<WireRequest<'_>> =
        writes().map(|write| WireRequest::of(&write.request, remaining(write.deadline))).collect();
    let body = encode(&requests);
    drop(requests);
    let traces = writes().map(|write| write.trace).collect();
    let mut unanswered: Vec<Option<SentWrite>> = batch.into_iter().map(Some).collect();
    let (lane, timeout) = (Lane::Forward, remaining(deadline));
    let receiving = async {
        let parts = peers.call_in_frames(lane, leader.id, &leader.peer_addr, Call::Writes, body, timeout);
        receive(parts.await?, deadline, &mut unanswered).await
    };
    if let Err(error) = with_traces(traces, receiving).await {
        let error = AttemptError::from(error);
        unanswered.into_iter().flatten().for_each(|write| write.answer(Err(error.clone())));
    }
}

/// Answers each write when it is decided, and takes it out of `unanswered`, whose order is that of the RPC.
async fn receive(
    mut parts: FrameStream,
    deadline: Instant,
    unanswered: &mut [Option<SentWrite>],
) -> Result<(), CallError> {
    let late = |_| CallError::Unknown("the leader did not decide all writes in time".into());
    let cut_off = || CallError::Unknown("the leader's response was cut off".into());
    let unreadable = |error| CallError::Unknown(format!("the leader's response is {error}"));
    while unanswered.iter().any(Option::is_some) {
        let part = timeout_at(deadline, parts.next()).await.map_err(late)?.ok_or_else(cut_off)??;
        for (place, attempt) in decode::<WirePart>(&part).map_err(unreadable)? {
            if let Some(write) = unanswered.get_mut(usize::from(place)).and_then(Option::take) {
                write.answer(attempt.into());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
