//! Group commit with a simulated openraft.

use std::{sync::Mutex, time::Duration};

use futures::FutureExt as _;
use tokio::{sync::Semaphore, task::JoinHandle, time::timeout};

use super::*;
use concord_model::{
    access_key::Author,
    command::{Applied, Command, Done, Expect, Proposal, StepOutcome},
    error::Rejection,
    key::Key,
    time::Timestamp,
};

/// How long a test waits for what must happen.
const DEADLINE: Duration = Duration::from_secs(60);

/// Decides each entry once it is permitted.
#[derive(Debug, Clone)]
struct SimulatedLeader(Arc<Decisions>);

#[derive(Debug)]
struct Decisions {
    entries: Mutex<Vec<Bytes>>,
    permitted: Semaphore,
    /// The outcome of entries instead of verdicts; the inner `None` is a panic.
    failure: Mutex<Option<Option<WriteError>>>,
}

impl Proposer for SimulatedLeader {
    async fn propose(&self, entry: Bytes) -> ProposeResult {
        let proposals = entry::decode(&entry).unwrap();
        self.0.entries.lock().unwrap().push(entry);
        self.0.permitted.acquire().await.unwrap().forget();
        let failure = self.0.failure.lock().unwrap().clone();
        let decided = match failure {
            None => Ok(proposals.iter().map(verdict).collect()),
            Some(Some(error)) => Err(error),
            Some(None) => panic!("openraft panicked"),
        };
        (decided, WriteTimes::default())
    }
}

/// Verdicts of each kind, a different one for each proposal.
fn verdict(proposal: &Proposal) -> Verdict {
    match proposal.at.0 % 3 {
        0 => Verdict::Stale,
        1 => Verdict::Decided(Err(Rejection::Precondition { current: proposal.at.0 })),
        _ => Verdict::Decided(Ok(Applied {
            revision: proposal.at.0,
            at: proposal.at,
            done: Done::Single(StepOutcome::NoRecord),
        })),
    }
}

fn proposal(number: u64, bytes: usize) -> Proposal {
    let (definition, key) = (Key::parse("d").unwrap(), Key::parse("k").unwrap());
    let command = Command::DeleteConfig { definition, key, expect: Expect::Any };
    let reason = (bytes > 0).then(|| "x".repeat(bytes));
    Proposal {
        at: Timestamp(number),
        by: "root".into(),
        reason,
        request: None,
        definition_read: None,
        command,
        author: Author::Root,
        tail: None,
    }
}

struct GroupTest {
    groups: WriteGroups,
    leader: SimulatedLeader,
}

impl GroupTest {
    fn new() -> Self {
        let (entries, failure) = (Mutex::default(), Mutex::default());
        let decisions = Decisions { entries, permitted: Semaphore::new(0), failure };
        let groups = BatchQueue::new(BatchPolicy { alone_max: 1, ..GROUPS });
        Self { groups: WriteGroups(Arc::new(groups)), leader: SimulatedLeader(Arc::new(decisions)) }
    }

    /// A write in a task of its own.
    fn write(&self, number: u64) -> JoinHandle<WriteResult> {
        let (groups, leader) = (self.groups.clone(), self.leader.clone());
        tokio::spawn(async move {
            groups.write(&leader, WorkOwner::SHARED, proposal(number, 0).to_bytes()).await.0
        })
    }

    /// A write in flight, and others that wait.
    async fn begun(
        &self,
        waiting: std::ops::Range<u64>,
    ) -> (JoinHandle<WriteResult>, Vec<JoinHandle<WriteResult>>) {
        let first = self.write(1000);
        self.has_entries(1).await;
        let mut others = Vec::new();
        for number in waiting {
            others.push(self.write(number));
            // In this order.
            self.until(|| self.waiting() == others.len()).await;
        }
        (first, others)
    }

    fn waiting(&self) -> usize {
        self.groups.0.waiting()
    }

    async fn until(&self, holds: impl Fn() -> bool) {
        let wait = async {
            while !holds() {
                tokio::task::yield_now().await;
            }
        };
        timeout(DEADLINE, wait).await.expect("it happens");
    }

    async fn has_entries(&self, count: usize) {
        self.until(|| self.leader.0.entries.lock().unwrap().len() == count).await;
    }

    fn permit(&self, entries: usize) {
        self.leader.0.permitted.add_permits(entries);
    }

    fn fail(&self, failure: Option<WriteError>) {
        *self.leader.0.failure.lock().unwrap() = Some(failure);
    }

    /// The numbers of the writes of each entry.
    fn entries(&self) -> Vec<Vec<u64>> {
        let entries = self.leader.0.entries.lock().unwrap();
        let numbers = |entry: &Bytes| entry::decode(entry).unwrap().iter().map(|one| one.at.0).collect();
        entries.iter().map(numbers).collect()
    }

    fn is_idle(&self) -> bool {
        self.groups.0.is_idle()
    }
}

async fn answer(write: JoinHandle<WriteResult>) -> WriteResult {
    timeout(DEADLINE, write).await.expect("each write is answered").unwrap()
}

#[tokio::test]
async fn a_lone_write_is_proposed_at_once_as_a_plain_proposal() {
    let test = GroupTest::new();
    test.permit(10);
    for number in 0..5 {
        let written =
            test.groups.write(&test.leader, WorkOwner::SHARED, proposal(number, 0).to_bytes()).await.0;
        assert_eq!(written, Ok(verdict(&proposal(number, 0))));
        assert!(test.is_idle());
    }
    let entries = test.leader.0.entries.lock().unwrap().clone();
    assert!((0..5).zip(&entries).all(|(number, entry)| **entry == proposal(number, 0).to_bytes()));
    assert_eq!(entries.len(), 5);
}

#[tokio::test]
async fn writes_that_arrive_meanwhile_share_an_entry_and_each_gets_its_own_verdict() {
    let test = GroupTest::new();
    let (first, others) = test.begun(0..10).await;
    assert_eq!(test.entries(), [[1000]], "one is in flight at a time");
    test.permit(1);
    assert_eq!(answer(first).await, Ok(verdict(&proposal(1000, 0))));
    test.has_entries(2).await;
    let later = test.write(77);
    test.until(|| test.waiting() == 1).await;
    test.permit(2);
    for (number, other) in (0..).zip(others) {
        assert_eq!(answer(other).await, Ok(verdict(&proposal(number, 0))), "{number}");
    }
    assert_eq!(answer(later).await, Ok(verdict(&proposal(77, 0))));
    assert_eq!(test.entries(), [vec![1000], (0..10).collect(), vec![77]]);
    test.until(|| test.is_idle()).await;
}

#[tokio::test]
async fn writes_that_are_ready_join_the_group_that_leaves() {
    let test = GroupTest::new();
    let (first, others) = test.begun(0..1).await;
    test.permit(1);
    answer(first).await.unwrap();
    // The task that proposes the group is ready before the tasks of these writes.
    let ready: Vec<_> = (1..5).map(|number| test.write(number)).collect();
    test.permit(1);
    for write in others.into_iter().chain(ready) {
        answer(write).await.unwrap();
    }
    assert_eq!(test.entries(), [vec![1000], (0..5).collect()]);
}

#[tokio::test(start_paused = true)]
async fn every_write_of_busy_clients_is_answered() {
    const CALLERS: u64 = 20;
    let test = GroupTest::new();
    test.permit(10_000);
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (groups, leader) = (test.groups.clone(), test.leader.clone());
            tokio::spawn(async move {
                for number in 0..50 {
                    // The time for a response to reach its client, and for the next request.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    let number = number * CALLERS + caller;
                    let written =
                        groups.write(&leader, WorkOwner::SHARED, proposal(number, 0).to_bytes()).await.0;
                    assert_eq!(written, Ok(verdict(&proposal(number, 0))));
                }
            })
        })
        .collect();
    for caller in callers {
        timeout(DEADLINE, caller).await.expect("each write is answered").unwrap();
    }
    let writes: usize = test.entries().iter().map(Vec::len).sum();
    assert_eq!(writes as u64, CALLERS * 50);
    test.until(|| test.is_idle()).await;
}

/// The sizes of the entries of ten clients that were in a group, and write again one after the other.
async fn entries_of_clients_that_return() -> Vec<usize> {
    let test = GroupTest::new();
    let (first, others) = test.begun(0..10).await;
    test.permit(1);
    answer(first).await.unwrap();
    test.has_entries(2).await;
    // The wait is at most twice as long as this group is in flight, so it takes a while.
    tokio::time::sleep(Duration::from_millis(3)).await;
    test.permit(1);
    for write in others {
        answer(write).await.unwrap();
    }
    let mut again = Vec::new();
    for number in 10..20 {
        again.push(test.write(number));
        // More passes over the ready tasks than any group yields for.
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
    test.permit(100);
    for write in again {
        answer(write).await.unwrap();
    }
    test.entries().iter().map(Vec::len).collect()
}

#[tokio::test]
async fn the_next_group_waits_for_the_clients_of_the_one_before() {
    let mut sizes = Vec::new();
    let wait = async {
        // The wait is bounded by time, which may be up on a busy machine.
        while sizes != [1, 10, 10] {
            sizes = entries_of_clients_that_return().await;
        }
    };
    assert!(timeout(DEADLINE, wait).await.is_ok(), "{sizes:?}");
}

#[tokio::test]
async fn few_clients_never_wait_and_more_share_entries() {
    let test = GroupTest { groups: WriteGroups::default(), ..GroupTest::new() };
    let few: Vec<_> = (0..ALONE_MAX as u64).map(|number| test.write(number)).collect();
    test.has_entries(ALONE_MAX).await;
    let more: Vec<_> = (100..103).map(|number| test.write(number)).collect();
    test.until(|| test.waiting() == more.len()).await;
    // The end of any of them starts a group of the others.
    test.permit(1);
    test.has_entries(ALONE_MAX + 1).await;
    assert_eq!(test.entries()[ALONE_MAX].len(), more.len());
    // While a group is in flight all wait for the next, although fewer entries are in flight now.
    test.permit(ALONE_MAX - 1);
    for write in few {
        answer(write).await.unwrap();
    }
    let later = test.write(200);
    test.until(|| test.waiting() == 1).await;
    test.permit(2);
    for write in more.into_iter().chain([later]) {
        answer(write).await.unwrap();
    }
    test.until(|| test.is_idle()).await;
    let sizes: Vec<usize> = test.entries().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, 1, 1, 1, 3, 1]);
}

#[tokio::test]
async fn a_group_has_at_most_so_many_writes_and_bytes() {
    let test = GroupTest::new();
    let most = GROUP_PROPOSALS_MAX as u64;
    let (_, others) = test.begun(0..2 * most + 3).await;
    test.permit(4);
    for other in others {
        answer(other).await.unwrap();
    }
    let sizes: Vec<usize> = test.entries().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, GROUP_PROPOSALS_MAX, GROUP_PROPOSALS_MAX, 3]);

    let test = GroupTest::new();
    let (_first, _) = test.begun(0..0).await;
    let large: Vec<_> = (0..5)
        .map(|number| {
            let (groups, leader) = (test.groups.clone(), test.leader.clone());
            let bytes = proposal(number, 100 << 10).to_bytes();
            assert!(fits(bytes.len()) && !fits(proposal(number, 129 << 10).to_bytes().len()));
            tokio::spawn(async move { groups.write(&leader, WorkOwner::SHARED, bytes).await.0 })
        })
        .collect();
    test.until(|| test.waiting() == 5).await;
    test.permit(4);
    for write in large {
        answer(write).await.unwrap();
    }
    assert_eq!(test.entries().iter().map(Vec::len).collect::<Vec<_>>(), [1, 2, 2, 1]);
}

#[tokio::test]
async fn each_write_of_an_entry_gets_the_error_of_the_entry() {
    for error in [WriteError::NotLeader(Some(2)), WriteError::Undecided("discarded".into())] {
        let test = GroupTest::new();
        let (first, others) = test.begun(0..3).await;
        test.fail(Some(error.clone()));
        test.permit(2);
        assert_eq!(answer(first).await, Err(error.clone()));
        for other in others {
            assert_eq!(answer(other).await, Err(error.clone()));
        }
        test.until(|| test.is_idle()).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_withdraws_only_its_own_write() {
    let test = GroupTest::new();
    let (first, mut others) = test.begun(0..4).await;
    // A withdrawn write is not proposed.
    others.remove(1).abort();
    test.until(|| test.waiting() == 3).await;
    // The write in flight was proposed; the others do not wait for its verdict.
    first.abort();
    test.has_entries(2).await;
    assert_eq!(test.entries(), [vec![1000], vec![0, 2, 3]]);
    // A write whose group has left is decided, although nobody waits for its verdict.
    others.remove(0).abort();
    test.permit(2);
    for (number, other) in [2, 3].into_iter().zip(others) {
        assert_eq!(answer(other).await, Ok(verdict(&proposal(number, 0))));
    }
    test.until(|| test.is_idle()).await;
}

#[tokio::test]
async fn after_a_panic_each_write_has_the_right_error() {
    let test = GroupTest::new();
    let (first, others) = test.begun(0..3).await;
    test.permit(1);
    answer(first).await.unwrap();
    test.has_entries(2).await;
    let waits = test.write(9);
    test.until(|| test.waiting() == 1).await;
    test.fail(None);
    test.permit(1);
    for other in others {
        assert!(matches!(answer(other).await, Err(WriteError::Undecided(_))));
    }
    assert_eq!(answer(waits).await, Err(WriteError::NotLeader(None)), "it was not proposed");
    *test.leader.0.failure.lock().unwrap() = None;
    test.permit(1);
    assert_eq!(answer(test.write(11)).await, Ok(verdict(&proposal(11, 0))));
}

#[tokio::test]
async fn a_reset_gives_waiting_writes_back_and_waits_for_no_entry() {
    let test = GroupTest::new();
    let (first, others) = test.begun(0..3).await;
    test.groups.reset();
    for other in others {
        assert_eq!(answer(other).await, Err(WriteError::NotLeader(None)));
    }
    // The entry in flight may never end, and delays nobody.
    let next = test.write(5);
    test.has_entries(2).await;
    let waits = test.write(8);
    test.until(|| test.waiting() == 1).await;
    first.abort();
    let _aborted = first.await;
    assert_eq!(test.waiting(), 1, "the end of an entry from before the reset starts nothing");
    test.permit(2);
    assert_eq!(answer(next).await, Ok(verdict(&proposal(5, 0))));
    assert_eq!(answer(waits).await, Ok(verdict(&proposal(8, 0))));
    assert_eq!(test.entries(), [[1000], [5], [8]]);
}

#[test]
fn the_end_of_the_process_answers_every_write() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let test = GroupTest::new();
    let write = |number| {
        test.groups
            .write(&test.leader, WorkOwner::SHARED, proposal(number, 0).to_bytes())
            .map(|(decided, _)| decided)
            .boxed()
    };
    let (mut first, mut second, mut third) = (write(1), write(2), write(3));
    runtime.block_on(async {
        assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        drop(first);
        test.has_entries(2).await;
        assert!(third.as_mut().now_or_never().is_none());
    });
    drop(runtime);
    assert!(matches!(second.now_or_never(), Some(Err(WriteError::Undecided(_)))));
    assert_eq!(third.now_or_never(), Some(Err(WriteError::NotLeader(None))));
    // Without a runtime nobody can propose the waiting writes.
    let (mut first, mut second) = (write(1), write(2));
    assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
    drop(first);
    assert_eq!(second.now_or_never(), Some(Err(WriteError::NotLeader(None))));
}
