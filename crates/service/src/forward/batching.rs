//! Forwarding batches: small writes to the leader share a call.
//!
//! A call costs about as much as the decision that it asks for. So only a few calls of a node are in progress at once,
//! and the writes that arrive meanwhile share the next one. A single write is sent at once and alone; of many, each
//! costs a fraction of a call. Before a call is made, the writes whose tasks are ready to run join it, and those of the
//! callers who were just answered (`crates/consensus/src/joining.rs`). A write that is large, or may take long, has a
//! call of its own.
//!
//! **Invariants**
//! 1. A write is sent in one call at most. One that is still queued here was certainly not sent.
//! 2. A call continues although the callers of some of its writes have gone: the others wait for its answer. Each write
//!    is answered when it is decided; when the connection is lost, only those without an answer are unknown.
//! 3. No write waits long because of others: a call that is not answered within [`COUNTED_CALL_TIME`] makes room for
//!    the next one.

use std::{
    collections::{BTreeMap, VecDeque},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout, timeout_at},
};

use super::{
    INLINE_PARSE_BYTES_MAX, remaining,
    wire::{WireRequest, take_part},
};
use crate::{
    request::{Decision, Effect, Target, WriteRequest},
    retry::{Attempt, AttemptError},
};
use concord_consensus::{Arrivals, Departure, Joining};
use concord_net::{
    Member, NodeId,
    call::Call,
    client::{CallError, Lane, Peers},
    codec::encode,
    trace::{self, TraceParent, with_traces},
};

/// Calls to one leader in progress at once, while few writes come: with one, the second of two callers would wait for
/// the first. With four, the throughput of 64 callers on three nodes was a tenth lower; with eight, that of 256 callers
/// too. Callers who come back share one call, and with two they would fall into two halves that take turns.
const CALLS_MAX: usize = 2;
/// Passes over the ready tasks in which nobody joins, after which a call leaves.
const JOINING_PATIENCE: u32 = 3;
/// How long a call counts among [`CALLS_MAX`]. One that takes longer has a long way to the leader, or one of its writes
/// waits there for a lock.
const COUNTED_CALL_TIME: Duration = Duration::from_millis(20);
/// Most writes of one call.
pub(crate) const BATCH_WRITES_MAX: usize = 256;
/// Bytes of data of a write that may share a call.
const BATCHED_WRITE_BYTES_MAX: usize = 4 << 10;

/// The writes of this node that wait for a call, by the leader that they are sent to.
#[derive(Debug, Default)]
pub(crate) struct Batcher {
    queues: Mutex<BTreeMap<NodeId, Queue>>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Calls in progress that count.
    calls: usize,
    /// Whether so many callers come back that one call at a time is for all of them.
    is_shared: bool,
    /// Where the waiting writes are counted for the call that waits for them.
    arrivals: Arc<Arrivals>,
    waiting: VecDeque<Waiting>,
    /// The number of the write that was queued last.
    last_number: u64,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    leader: Member,
    request: Arc<WriteRequest>,
    deadline: Instant,
    trace: Option<TraceParent>,
    answer: oneshot::Sender<Attempt<Decision>>,
}

/// Whether a write may share a call: it is small and decided in the ordinary time.
pub(super) fn may_batch(request: &WriteRequest) -> bool {
    let write = &request.write;
    let is_ordinary =
        matches!((write.target(), write.effect()), (Target::Config { .. }, Effect::Store | Effect::Remove));
    is_ordinary && !request.caller.dry_run && write.document_bytes() <= BATCHED_WRITE_BYTES_MAX
}

impl Batcher {
    /// Writes that wait for a call.
    pub(crate) fn waiting(&self) -> usize {
        self.queues().values().map(|queue| queue.waiting.len()).sum()
    }

    /// Writes that wait for a call to this leader.
    fn waiting_for(&self, to: NodeId) -> usize {
        self.queues().get(&to).map_or(0, |queue| queue.waiting.len())
    }

    /// Sends a write in the next call.
    pub(super) async fn send(
        self: &Arc<Self>,
        peers: &Arc<Peers>,
        leader: &Member,
        request: &Arc<WriteRequest>,
        deadline: Instant,
    ) -> Attempt<Decision> {
        let (answer, answered) = oneshot::channel();
        let to = leader.id;
        let number = {
            let mut queues = self.queues();
            let queue = queues.entry(to).or_default();
            queue.last_number += 1;
            let (number, leader, request) = (queue.last_number, leader.clone(), Arc::clone(request));
            let trace = trace::at(0);
            queue.waiting.push_back(Waiting { number, leader, request, deadline, trace, answer });
            queue.arrivals.joined(queue.waiting.len());
            self.start_call(peers, to, queue);
            number
        };
        match timeout_at(deadline, answered).await {
            Ok(Ok(attempt)) => attempt,
            Ok(Err(_)) => Err(AttemptError::Unknown("the call to the leader was cut off".into())),
            Err(_) if self.withdraw(to, number) => {
                Err(AttemptError::Retry("the time was up before the write was sent to the leader".into()))
            }
            Err(_) => Err(AttemptError::Unknown("the leader did not answer in time".into())),
        }
    }

    /// Starts a call if a write waits and another call may be in progress.
    fn start_call(self: &Arc<Self>, peers: &Arc<Peers>, to: NodeId, queue: &mut Queue) {
        if queue.calls < queue.calls_max() && !queue.waiting.is_empty() {
            queue.calls += 1;
            tokio::spawn(Arc::clone(self).run_calls(Arc::clone(peers), to));
        }
    }

    /// Makes one call after another as long as writes wait.
    async fn run_calls(self: Arc<Self>, peers: Arc<Peers>, to: NodeId) {
        let mut place = Place { batcher: &self, to, is_held: true };
        let arrivals = Arc::clone(&self.queues().entry(to).or_default().arrivals);
        let mut joining = Joining::new(JOINING_PATIENCE, BATCH_WRITES_MAX);
        loop {
            joining.gather(&arrivals, || self.waiting_for(to)).await;
            let Some((batch, is_full)) = self.next_batch(to) else { return };
            let (members, left) = (batch.len(), Instant::now());
            let mut call = pin!(call(&peers, batch));
            if timeout(COUNTED_CALL_TIME, &mut call).await.is_err() {
                place.is_held = false;
                {
                    let mut queues = self.queues();
                    let queue = queues.entry(to).or_default();
                    queue.calls -= 1;
                    self.start_call(&peers, to, queue);
                }
                return call.await;
            }
            let mut queues = self.queues();
            let queue = queues.entry(to).or_default();
            let departure = Departure { members, is_full, under_way: left.elapsed() };
            joining.answered(departure, queue.waiting.len());
            queue.is_shared = joining.expects_many();
        }
    }

    /// The writes of the next call, and whether others have to wait for the one after it. When none waits, the call does
    /// not count any more.
    fn next_batch(&self, to: NodeId) -> Option<(Vec<Waiting>, bool)> {
        let mut queues = self.queues();
        let queue = queues.entry(to).or_default();
        if queue.calls > queue.calls_max() {
            // Another call takes what waits.
            queue.calls -= 1;
            return None;
        }
        let (mut batch, mut bytes): (Vec<Waiting>, usize) = (Vec::new(), 0);
        // The leader parses them on the threads that serve requests: no more than it would parse there of one write.
        while batch.len() < BATCH_WRITES_MAX && bytes + BATCHED_WRITE_BYTES_MAX <= INLINE_PARSE_BYTES_MAX {
            // A member's address may have changed since.
            let has_leader = |next: &Waiting| batch.first().is_none_or(|first| first.leader == next.leader);
            let Some(next) = queue.waiting.pop_front_if(|next| has_leader(next)) else { break };
            // A caller that has gone needs no answer, and their write need not be made.
            if !next.answer.is_closed() {
                bytes += next.request.write.document_bytes();
                batch.push(next);
            }
        }
        if batch.is_empty() {
            queue.calls -= 1;
            return None;
        }
        Some((batch, !queue.waiting.is_empty()))
    }

    /// Takes a write that was not sent out of the queue; whether it was there.
    fn withdraw(&self, to: NodeId, number: u64) -> bool {
        let mut queues = self.queues();
        let waiting = queues.get_mut(&to).map(|queue| &mut queue.waiting);
        waiting.is_some_and(|waiting| {
            let place = waiting.iter().position(|other| other.number == number);
            place.is_some_and(|place| waiting.remove(place).is_some())
        })
    }

    fn queues(&self) -> MutexGuard<'_, BTreeMap<NodeId, Queue>> {
        // Nothing panics while it is held, except for lack of memory.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// How many calls may be in progress.
    fn calls_max(&self) -> usize {
        if self.is_shared { 1 } else { CALLS_MAX }
    }
}

/// The place of a call that counts. A panic in the call gives it back: otherwise writes would wait for it for ever.
struct Place<'a> {
    batcher: &'a Batcher,
    to: NodeId,
    is_held: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.is_held && std::thread::panicking() {
            self.batcher.queues().entry(self.to).or_default().calls -= 1;
        }
    }
}

/// The callers of a call's writes, in its order; `None` once answered.
type Answers = Vec<Option<oneshot::Sender<Attempt<Decision>>>>;

/// Calls the leader and gives each caller the answer to their write when it comes.
async fn call(peers: &Peers, batch: Vec<Waiting>) {
    let Some(leader) = batch.first().map(|first| first.leader.clone()) else { return };
    let deadline = batch.iter().map(|waiting| waiting.deadline).max().unwrap_or_else(Instant::now);
    let requests: Vec<WireRequest<'_>> =
        batch.iter().map(|waiting| WireRequest::of(&waiting.request, remaining(waiting.deadline))).collect();
    let body = encode(&requests);
    drop(requests);
    let traces = batch.iter().map(|waiting| waiting.trace).collect();
    let mut answers: Answers = batch.into_iter().map(|waiting| Some(waiting.answer)).collect();
    let receiving = with_traces(traces, receive(peers, &leader, (body, deadline), &mut answers));
    if let Err(error) = receiving.await {
        let error = AttemptError::from(error);
        answers.into_iter().flatten().for_each(|answer| reply(answer, Err(error.clone())));
    }
}

/// Makes the call, and answers each write when it is decided. When the call fails, those without an answer are left.
async fn receive(
    peers: &Peers,
    leader: &Member,
    (body, deadline): (Bytes, Instant),
    answers: &mut Answers,
) -> Result<(), CallError> {
    let (lane, call) = (Lane::Forward, Call::Writes);
    let parts = peers.call_in_parts(lane, leader.id, &leader.peer_addr, call, body, remaining(deadline));
    let mut parts = parts.await?;
    let mut received = BytesMut::new();
    let late = |_| CallError::Unknown("the leader did not decide all writes in time".into());
    while answers.iter().any(Option::is_some) {
        let next = timeout_at(deadline, parts.next()).await.map_err(late)?;
        let cut_off = || CallError::Unknown("the leader's answer was cut off".into());
        received.extend_from_slice(&next.ok_or_else(cut_off)??);
        let unreadable = |error| CallError::Unknown(format!("the leader's answer is {error}"));
        while let Some(part) = take_part(&mut received).map_err(unreadable)? {
            for (place, attempt) in part {
                let answer = answers.get_mut(usize::from(place)).and_then(Option::take);
                answer.into_iter().for_each(|answer| reply(answer, attempt.clone().into()));
            }
        }
    }
    Ok(())
}

/// Answers a caller, unless they have gone.
fn reply(answer: oneshot::Sender<Attempt<Decision>>, attempt: Attempt<Decision>) {
    drop(answer.send(attempt));
}

#[cfg(test)]
mod tests;
