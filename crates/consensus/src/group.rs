//! Many writes as one entry: on the leader, small writes that arrive while others are under way leave together.
//!
//! ```text
//! write ─┬─ few are under way ──▶ an entry of its own, at once ──┐
//!        └─ waits ──▶ the next group, with all that wait ──▶ … ◀─┘ each end starts the next group
//! ```
//!
//! Few callers never wait, and hand their entries over themselves: the log and the members work on one entry while the
//! next one comes. With more, one group is under way at a time and everything else waits for the next: with two groups,
//! no more writes were decided in a second, and each cost as much again. Before a group leaves, the writes whose tasks
//! are ready to run join it, and those of callers who come back (`joining.rs`). What gathers meanwhile is carried by a
//! task, because its callers may leave: the others of the group need its verdicts all the same.
//!
//! What waits is bounded by the admission of requests: each waiting write belongs to a request that is still there, and
//! is removed when its caller leaves.
//!
//! **Invariants**
//! 1. A write that is still waiting here was certainly not handed to openraft: whatever ends the wait without a verdict
//!    says [`WriteError::NotLeader`]. From the moment its group is handed over, only openraft's own `NotLeader`, which is
//!    for the whole entry, means that it was not appended; everything else is [`WriteError::Undecided`].
//! 2. Writes leave in the order in which they came. When the leader changes, whatever waits is sent back: the entry
//!    under way may never end.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use tokio::{sync::oneshot, time::Instant};

use super::{
    WriteError,
    joining::{Arrivals, Departure, Joining},
};
use concord_model::{
    command::Verdict,
    entry::{self, GROUP_BYTES_MAX, GROUP_PROPOSALS_MAX, length_in_group},
};

/// The verdict on one write.
pub(super) type Written = Result<Verdict, WriteError>;

/// Hands entries to openraft.
pub(super) trait Proposer: Clone + Send + Sync + 'static {
    /// Proposes an entry and waits for the verdicts on its proposals.
    fn propose(&self, entry: Bytes) -> impl Future<Output = Result<Vec<Verdict>, WriteError>> + Send;
}

/// The small writes of this node, as its openraft gets them.
#[derive(Debug)]
pub(super) struct WriteGroups {
    queue: Mutex<Queue>,
    arrivals: Arrivals,
    alone_max: usize,
}

/// Entries of one write each that may be under way before others wait. With one, four callers had 0.85 of the rate that
/// they had with entries of their own.
const ALONE_MAX: usize = 4;

/// Passes over the ready tasks in which nobody joins, after which a group leaves. The callers of the group before are
/// answered in the first, and send again.
const JOINING_PATIENCE: u32 = 3;

impl Default for WriteGroups {
    fn default() -> Self {
        Self { queue: Mutex::default(), arrivals: Arrivals::default(), alone_max: ALONE_MAX }
    }
}

#[derive(Debug, Default)]
struct Queue {
    /// The task that hands groups over; `None` while there is none.
    turn: Option<u64>,
    last_turn: u64,
    /// Entries of one write each that are under way.
    alone: usize,
    /// Counts the resets: what was begun before one is not counted any more.
    resets: u64,
    /// The writes that wait for the next group, by their arrival.
    waiting: BTreeMap<u64, Waiting>,
    last_arrival: u64,
}

#[derive(Debug)]
struct Waiting {
    proposal: Vec<u8>,
    answer: oneshot::Sender<Written>,
}

/// Whether a proposal of so many bytes may be in a group: it has room for another one.
pub(super) fn fits(proposal_bytes: usize) -> bool {
    length_in_group(proposal_bytes) <= GROUP_BYTES_MAX / 2
}

/// Proposes one proposal as an entry of its own.
pub(super) async fn propose_alone(proposer: &impl Proposer, proposal: Vec<u8>) -> Written {
    let verdicts = proposer.propose(proposal.into()).await?;
    let [verdict]: [Verdict; 1] = verdicts.try_into().map_err(|_| mismatch())?;
    Ok(verdict)
}

fn mismatch() -> WriteError {
    WriteError::Undecided("an entry has another number of verdicts than of proposals".into())
}

impl WriteGroups {
    /// Proposes a proposal that may share an entry: alone and at once if none is under way.
    pub(super) async fn write<P: Proposer>(self: &Arc<Self>, proposer: &P, proposal: Vec<u8>) -> Written {
        match self.enter(proposal) {
            Entered::Goes { proposal, resets } => {
                // Its end starts the next group, also when this caller leaves before.
                let _under_way = AloneUnderWay { groups: self, proposer, resets };
                // In a box: those who wait need not have its space.
                Box::pin(propose_alone(proposer, proposal)).await
            }
            Entered::Waits { mut place, answered } => {
                let written = answered.await;
                place.is_left = true;
                // Every sender is used, but for a defect here: then it may have been handed over.
                written.unwrap_or_else(|_| Err(cut_off()))
            }
        }
    }

    /// Leaves, or takes a place among those that wait. Whatever waits, a group task or the end of an entry takes it.
    fn enter(&self, proposal: Vec<u8>) -> Entered<'_> {
        let mut queue = self.queue();
        if queue.turn.is_none() && queue.waiting.is_empty() && queue.alone < self.alone_max {
            queue.alone += 1;
            return Entered::Goes { proposal, resets: queue.resets };
        }
        queue.last_arrival += 1;
        let arrival = queue.last_arrival;
        let (answer, answered) = oneshot::channel();
        queue.waiting.insert(arrival, Waiting { proposal, answer });
        self.arrivals.joined(queue.waiting.len());
        Entered::Waits { place: Place { groups: self, arrival, is_left: false }, answered }
    }

    /// Sends everything that waits back to its callers, and waits for no entry that is under way: this node's place in
    /// the cluster has changed, and such an entry may never end.
    pub(super) fn reset(&self) {
        let waiting = {
            let mut queue = self.queue();
            (queue.turn, queue.alone) = (None, 0);
            queue.resets += 1;
            std::mem::take(&mut queue.waiting)
        };
        send_back(waiting);
    }

    /// The next group of a turn. Without one the turn is over.
    fn next_group(&self, turn: u64) -> Option<Group> {
        let mut queue = self.queue();
        if queue.turn != Some(turn) {
            return None;
        }
        let (mut proposals, mut answers, mut bytes) = (Vec::new(), Vec::new(), 0);
        while proposals.len() < GROUP_PROPOSALS_MAX
            && let Some(next) = queue.waiting.first_entry()
            && bytes + length_in_group(next.get().proposal.len()) <= GROUP_BYTES_MAX
        {
            let Waiting { proposal, answer } = next.remove();
            bytes += length_in_group(proposal.len());
            proposals.push(proposal);
            answers.push(answer);
        }
        if proposals.is_empty() {
            queue.turn = None;
            return None;
        }
        // Judged here: others join as soon as the lock is free.
        let is_full = !queue.waiting.is_empty();
        Some(Group { proposals, answers, is_full, is_handed_over: false })
    }

    /// Ends a turn that has not ended by itself; whoever waits is sent back.
    fn give_up(&self, turn: u64) {
        let waiting = {
            let mut queue = self.queue();
            if queue.turn != Some(turn) {
                return;
            }
            queue.turn = None;
            std::mem::take(&mut queue.waiting)
        };
        send_back(waiting);
    }

    /// How many wait for the next group.
    fn waiting(&self) -> usize {
        self.queue().waiting.len()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // No code that holds the lock can panic between two consistent states of the queue.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers writes that were not handed over.
fn send_back(waiting: BTreeMap<u64, Waiting>) {
    for waiting in waiting.into_values() {
        // An error means that the caller has gone.
        let _gone = waiting.answer.send(Err(WriteError::NotLeader(None)));
    }
}

fn cut_off() -> WriteError {
    WriteError::Undecided("the wait for the verdict was cut off".into())
}

/// What a write does first.
#[derive(Debug)]
enum Entered<'a> {
    /// It is an entry of its own.
    Goes { proposal: Vec<u8>, resets: u64 },
    /// Enough is under way.
    Waits { place: Place<'a>, answered: oneshot::Receiver<Written> },
}

/// A write's place among those that wait. Dropping it withdraws the write, unless its group has left.
#[derive(Debug)]
struct Place<'a> {
    groups: &'a WriteGroups,
    arrival: u64,
    /// It was answered, so it waits no more.
    is_left: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.is_left {
            let withdrawn = self.groups.queue().waiting.remove(&self.arrival);
            drop(withdrawn);
        }
    }
}

/// A write under way that is an entry of its own. Its end starts the groups of those that came meanwhile.
struct AloneUnderWay<'a, P: Proposer> {
    groups: &'a Arc<WriteGroups>,
    proposer: &'a P,
    resets: u64,
}

impl<P: Proposer> Drop for AloneUnderWay<'_, P> {
    fn drop(&mut self) {
        let turn = {
            let mut queue = self.groups.queue();
            if queue.resets != self.resets {
                return;
            }
            queue.alone -= 1;
            if queue.waiting.is_empty() || queue.turn.is_some() {
                return;
            }
            queue.last_turn += 1;
            queue.turn = Some(queue.last_turn);
            queue.last_turn
        };
        let task = GroupTask { groups: Arc::clone(self.groups), turn };
        // Without a runtime the process is ending: nobody carries what waits, and the task sends it back.
        if tokio::runtime::Handle::try_current().is_ok() {
            tokio::spawn(task.run(self.proposer.clone()));
        }
    }
}

/// Hands over one group after another while writes wait.
#[derive(Debug)]
struct GroupTask {
    groups: Arc<WriteGroups>,
    turn: u64,
}

impl GroupTask {
    async fn run<P: Proposer>(self, proposer: P) {
        let mut joining = Joining::new(JOINING_PATIENCE, GROUP_PROPOSALS_MAX);
        loop {
            joining.gather(&self.groups.arrivals, || self.groups.waiting()).await;
            let Some(group) = self.groups.next_group(self.turn) else { return };
            let (members, is_full, left) = (group.proposals.len(), group.is_full, Instant::now());
            group.hand_over(&proposer).await;
            let departure = Departure { members, is_full, under_way: left.elapsed() };
            joining.answered(departure, self.groups.waiting());
        }
    }
}

impl Drop for GroupTask {
    fn drop(&mut self) {
        // After a regular end the turn is over already. Otherwise a panic or the end of the process is the reason.
        self.groups.give_up(self.turn);
    }
}

/// Writes that leave as one entry.
#[derive(Debug)]
struct Group {
    proposals: Vec<Vec<u8>>,
    /// The callers of `proposals`, in the same order.
    answers: Vec<oneshot::Sender<Written>>,
    /// Whether others had to stay behind.
    is_full: bool,
    is_handed_over: bool,
}

impl Group {
    async fn hand_over(mut self, proposer: &impl Proposer) {
        let entry = entry::encode(std::mem::take(&mut self.proposals));
        self.is_handed_over = true;
        let decided = proposer.propose(entry.into()).await;
        let decided = decided.and_then(|verdicts| {
            if verdicts.len() == self.answers.len() { Ok(verdicts) } else { Err(mismatch()) }
        });
        match decided {
            Ok(mut verdicts) => {
                if concord_model::sabotage::is("verdicts-shifted") {
                    verdicts.rotate_left(1);
                }
                for (answer, verdict) in self.answers.drain(..).zip(verdicts) {
                    // An error means that the caller has gone; the others have their verdicts.
                    let _gone = answer.send(Ok(verdict));
                }
            }
            Err(error) => self.answer_all(&error),
        }
    }

    fn answer_all(&mut self, error: &WriteError) {
        for answer in self.answers.drain(..) {
            let _gone = answer.send(Err(error.clone()));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let error = if self.is_handed_over { cut_off() } else { WriteError::NotLeader(None) };
        self.answer_all(&error);
    }
}

#[cfg(test)]
mod tests;
