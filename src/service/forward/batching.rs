//! Small writes travel to the leader together.
//!
//! A call costs about as much as the decision that it asks for. So few calls of a node are under way at once, and the
//! writes that come meanwhile go with the next one: a write that comes alone travels at once and alone, and of many
//! each costs a fraction of a call. What is long, or may take long, goes by itself (`forward.rs`).
//!
//! **Invariants**
//! 1. A write goes with one call at most. One that waits here was certainly not sent.
//! 2. A call goes on whoever of its writes' callers has gone: its outcome is that of the others too.
//! 3. Nobody waits for long because of others: a call that is not answered soon makes room for the next.

use std::{
    collections::{BTreeMap, VecDeque},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt as _, stream::FuturesOrdered};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout, timeout_at},
};

use super::{Carried, LONG};
use crate::peer::call::Call;
use crate::{
    peer::{
        Member, NodeId, ReceiveError,
        client::{Lane, Peers},
        codec::{decode, encode},
    },
    service::{
        Service, Write,
        write::{Attempt, prepare::Asked},
    },
};

/// Calls to one leader that are under way at once: while it decides the writes of these, those of the next gather. With
/// four 64 callers of three nodes got a tenth less done, with eight 256 callers too.
const CALLS_MAX: usize = 2;
/// After so long a call counts no more: it is far to the leader, or one of its writes waits there for its turn.
const SOON: Duration = Duration::from_millis(20);
/// Writes of one call.
const WRITES_MAX: usize = 64;
/// Bytes of data of a write that travels with others.
const SMALL: usize = 4 << 10;

/// The writes of this node that wait for a call, by the leader that they go to.
#[derive(Debug, Default)]
pub(in crate::service) struct Convoys {
    queues: Mutex<BTreeMap<NodeId, Queue>>,
}

#[derive(Debug, Default)]
struct Queue {
    calls: usize,
    waiting: VecDeque<Waiting>,
    /// The number of the next one that waits.
    next: u64,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    leader: Member,
    carried: Carried,
    /// Of its data.
    bytes: usize,
    answer: oneshot::Sender<Attempt>,
}

/// Whether a write may travel with others.
pub(in crate::service) fn may_join(asked: &Asked) -> bool {
    !asked.caller.dry_run && bytes_of(&asked.write).is_some_and(|bytes| bytes <= SMALL)
}

/// Bytes of the data of a write that is decided in the ordinary time.
fn bytes_of(write: &Write) -> Option<usize> {
    match write {
        Write::WriteConfig { data, .. } => Some(data.text.len()),
        Write::DeleteConfig { .. } => Some(0),
        Write::CreateDefinition { .. }
        | Write::SetIndexes { .. }
        | Write::DeleteDefinition { .. }
        | Write::PatchConfig { .. }
        | Write::Rollback(_)
        | Write::SetSchema(_)
        | Write::SetUnique(_)
        | Write::Batch(_) => None,
    }
}

impl Convoys {
    /// Sends a write with the next call.
    pub(in crate::service) async fn send(
        self: &Arc<Self>,
        peers: &Arc<Peers>,
        leader: &Member,
        asked: &Asked,
        deadline: Instant,
    ) -> Attempt {
        let (answer, answered) = oneshot::channel();
        let carried = Carried::of(asked, deadline.saturating_duration_since(Instant::now()));
        let to = leader.id;
        let number = {
            let mut queues = self.queues();
            let queue = queues.entry(to).or_default();
            queue.next += 1;
            let bytes = bytes_of(&asked.write).unwrap_or(0);
            let (number, leader) = (queue.next, leader.clone());
            queue.waiting.push_back(Waiting { number, leader, carried, bytes, answer });
            self.begin(peers, to, queue);
            queue.next
        };
        match timeout_at(deadline, answered).await {
            Ok(Ok(attempt)) => attempt,
            Ok(Err(_)) => Attempt::Unknown("the call to the leader was cut off".into()),
            Err(_) if self.take_back(to, number) => {
                Attempt::Later("the time was up before the write was sent to the leader".into())
            }
            Err(_) => Attempt::Unknown("the leader did not answer in time".into()),
        }
    }

    /// Begins a call where somebody waits and there is room for one.
    fn begin(self: &Arc<Self>, peers: &Arc<Peers>, to: NodeId, queue: &mut Queue) {
        if queue.calls < CALLS_MAX && !queue.waiting.is_empty() {
            queue.calls += 1;
            tokio::spawn(Arc::clone(self).work(Arc::clone(peers), to));
        }
    }

    /// Makes one call after another for as long as somebody waits.
    async fn work(self: Arc<Self>, peers: Arc<Peers>, to: NodeId) {
        while let Some(convoy) = self.next(to) {
            let mut call = pin!(call(&peers, convoy));
            if timeout(SOON, &mut call).await.is_err() {
                {
                    let mut queues = self.queues();
                    let queue = queues.entry(to).or_default();
                    queue.calls -= 1;
                    self.begin(&peers, to, queue);
                }
                return call.await;
            }
        }
    }

    /// The writes of the next call. When nobody waits the call is over, and counts no more.
    fn next(&self, to: NodeId) -> Option<Vec<Waiting>> {
        let mut queues = self.queues();
        let queue = queues.entry(to).or_default();
        let (mut convoy, mut bytes): (Vec<Waiting>, usize) = (Vec::new(), 0);
        // The leader parses them where it serves requests: no more than it would parse there of one write.
        while convoy.len() < WRITES_MAX && bytes + SMALL <= LONG {
            // A member may have got another address since.
            let goes_along = |next: &Waiting| convoy.first().is_none_or(|first| first.leader == next.leader);
            let Some(next) = queue.waiting.pop_front_if(|next| goes_along(next)) else { break };
            // Who has gone need not be told, and his write need not be made.
            if !next.answer.is_closed() {
                bytes += next.bytes;
                convoy.push(next);
            }
        }
        if convoy.is_empty() {
            queue.calls -= 1;
            return None;
        }
        Some(convoy)
    }

    /// Takes a write back that was not sent; whether it was there.
    fn take_back(&self, to: NodeId, number: u64) -> bool {
        let mut queues = self.queues();
        let waiting = queues.get_mut(&to).map(|queue| &mut queue.waiting);
        waiting.is_some_and(|waiting| {
            let place = waiting.iter().position(|other| other.number == number);
            place.is_some_and(|place| waiting.remove(place).is_some())
        })
    }

    fn queues(&self) -> MutexGuard<'_, BTreeMap<NodeId, Queue>> {
        // Nothing panics while it is held but for lack of memory.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls the leader and tells each caller what became of his write.
async fn call(peers: &Peers, convoy: Vec<Waiting>) {
    let Some(leader) = convoy.first().map(|first| first.leader.clone()) else { return };
    let most = convoy.iter().map(|waiting| waiting.carried.remaining()).max().unwrap_or_default();
    let (carried, answers): (Vec<Carried>, Vec<_>) =
        convoy.into_iter().map(|waiting| (waiting.carried, waiting.answer)).unzip();
    let body = encode(&carried);
    drop(carried);
    let answer = peers.call(Lane::Forward, leader.id, &leader.peer_addr, Call::Writes, body, most).await;
    let attempts = answer.map_err(Attempt::from).and_then(|answer| {
        let attempts =
            decode::<Vec<Attempt>>(&answer).ok().filter(|attempts| attempts.len() == answers.len());
        attempts.ok_or_else(|| Attempt::Unknown("the leader's answer is none to these writes".into()))
    });
    match attempts {
        Ok(attempts) => answers.into_iter().zip(attempts).for_each(|(answer, attempt)| tell(answer, attempt)),
        Err(attempt) => answers.into_iter().for_each(|answer| tell(answer, attempt.clone())),
    }
}

/// Tells a caller, unless he has gone.
fn tell(answer: oneshot::Sender<Attempt>, attempt: Attempt) {
    drop(answer.send(attempt));
}

impl Service {
    /// Decides the writes that another node carried here together.
    ///
    /// # Errors
    /// When the body is none of this version's, or holds more than goes with one call. Everything else is an answer.
    pub(crate) async fn answer_writes(&self, body: Bytes) -> Result<Bytes, ReceiveError> {
        let carried: Vec<Carried> = decode(&body)?;
        drop(body);
        if carried.len() > WRITES_MAX {
            return Err(ReceiveError::Malformed(format!("{} writes in one call", carried.len())));
        }
        let depth = self.limits().json_depth;
        let decide = async |carried: Carried| match carried.open(depth) {
            Ok((remaining, asked)) => self.answer(asked, remaining).await,
            // Refused by itself: those that came with it are none the worse.
            Err(error) => Attempt::Later(format!("the leader: {error}")),
        };
        let decisions: FuturesOrdered<_> = carried.into_iter().map(decide).collect();
        Ok(encode(&decisions.collect::<Vec<_>>().await))
    }
}

#[cfg(test)]
mod tests;
