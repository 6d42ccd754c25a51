//! The queue with senders that the tests drive.

use futures::FutureExt as _;

use super::*;

type TestQueue = Arc<BatchQueue<u32, u32>>;

const POLICY: BatchPolicy = BatchPolicy {
    items_max: 4,
    bytes_max: 10,
    senders_max: 2,
    alone_max: 0,
    patience: 1,
    returning_max: 0,
    measures_waits: false,
};

const OWNER: WorkOwner = WorkOwner::SHARED;

fn queue(policy: BatchPolicy) -> TestQueue {
    Arc::new(BatchQueue::new(policy))
}

async fn items(sender: &mut BatchSender<u32, u32>) -> Vec<u32> {
    let batch = sender.next().await.unwrap_or_default();
    batch.into_iter().map(|sent| sent.item).collect()
}

#[tokio::test]
async fn a_batch_is_bounded_by_items_and_bytes_and_keeps_the_order() {
    let queue = queue(POLICY);
    let sizes = [1, 1, 1, 1, 1, 6, 4, 11, 1];
    let (mut pending, mut senders) = (Vec::new(), Vec::new());
    for (item, bytes) in (0..).zip(sizes) {
        let (one, sender) = queue.push(OWNER, item, bytes);
        pending.push(one);
        senders.extend(sender);
    }
    assert_eq!(senders.len(), POLICY.senders_max, "no more senders than allowed");
    let mut sender = senders.swap_remove(0);
    let mut batches = Vec::new();
    while let Some(batch) = sender.next().await {
        batches.push(batch.iter().map(|sent| sent.item).collect::<Vec<_>>());
    }
    assert_eq!(batches, [vec![0, 1, 2, 3], vec![4, 5], vec![6], vec![7], vec![8]]);
}

#[tokio::test]
async fn waits_are_measured_only_where_the_policy_says_so() {
    for measures_waits in [false, true] {
        let queue = queue(BatchPolicy { measures_waits, ..POLICY });
        let (_pending, sender) = queue.push(OWNER, 1, 1);
        let batch = sender.unwrap().next().await.unwrap();
        assert_eq!(queue.waits().count(), u64::from(measures_waits));
        assert_eq!(batch[0].waited, queue.waits().sum);
    }
}

#[tokio::test]
async fn a_withdrawn_item_is_not_sent_and_the_others_are() {
    let queue = queue(POLICY);
    let (first, sender) = queue.push(OWNER, 1, 1);
    let (mut second, _) = queue.push(OWNER, 2, 1);
    let (third, _) = queue.push(OWNER, 3, 1);
    drop(first);
    let mut sender = sender.unwrap();
    let batch = sender.next().await.unwrap();
    assert_eq!(batch.iter().map(|sent| sent.item).collect::<Vec<_>>(), [2, 3]);
    assert!(!second.withdraw(), "it has left");
    drop(third);
    let (mut last, _) = queue.push(OWNER, 4, 1);
    assert!(last.withdraw() && !last.withdraw());
    batch.into_iter().for_each(|sent| sent.answer(0));
    assert!(sender.next().await.is_none());
}

#[tokio::test]
async fn the_last_sender_gives_waiting_items_back() {
    let queue = queue(POLICY);
    let (mut first, one) = queue.push(OWNER, 1, 1);
    let (_second, other) = queue.push(OWNER, 2, 1);
    let (mut one, other) = (one.unwrap(), other.unwrap());
    let batch = one.next().await.unwrap();
    let (mut third, none) = queue.push(OWNER, 3, 1);
    assert!(none.is_none());
    drop((batch, one));
    assert_eq!(first.answer().await, Err(Unanswered::CutOff));
    assert!(third.answer().now_or_never().is_none(), "the other sender takes it");
    drop(other);
    assert_eq!(third.answer().await, Err(Unanswered::NotSent));
    assert!(queue.is_idle());
}

#[tokio::test]
async fn a_retired_sender_makes_room_for_another() {
    let queue = queue(BatchPolicy { senders_max: 1, ..POLICY });
    let (mut first, sender) = queue.push(OWNER, 1, 1);
    let mut sender = sender.unwrap();
    let batch = sender.next().await.unwrap();
    let (mut second, none) = queue.push(OWNER, 2, 1);
    assert!(none.is_none());
    let mut next = sender.retire().unwrap();
    assert!(sender.retire().is_none() && sender.next().await.is_none());
    drop(sender);
    let later = next.next().await.unwrap();
    batch.into_iter().chain(later).for_each(|sent| {
        let answer = 10 * sent.item;
        sent.answer(answer);
    });
    assert_eq!((first.answer().await, second.answer().await), (Ok(10), Ok(20)));
    assert!(next.next().await.is_none() && queue.is_idle());
}

#[tokio::test]
async fn senders_and_lone_items_from_before_a_reset_do_not_count() {
    let queue = queue(BatchPolicy { senders_max: 1, alone_max: 1, ..POLICY });
    let Pushed::Alone(_, epoch) = queue.push_unless_idle(OWNER, 1, 1) else { panic!("nothing is in flight") };
    let Pushed::Waits(mut second) = queue.push_unless_idle(OWNER, 2, 1) else {
        panic!("one item is in flight")
    };
    let (mut third, sender) = queue.push(OWNER, 3, 1);
    let mut earlier = sender.unwrap();
    queue.reset();
    assert_eq!(second.answer().await, Err(Unanswered::NotSent));
    assert_eq!(third.answer().await, Err(Unanswered::NotSent));
    let (mut fourth, sender) = queue.push(OWNER, 4, 1);
    assert!(queue.end_alone(epoch).is_none() && earlier.next().await.is_none());
    drop(earlier);
    assert!(fourth.answer().now_or_never().is_none(), "it waits for its own sender");
    assert_eq!(items(&mut sender.unwrap()).await, [4]);
}

#[tokio::test]
async fn one_sender_serves_many_callers_that_return() {
    let many = 8;
    let queue = queue(BatchPolicy { items_max: many, bytes_max: many, returning_max: many, ..POLICY });
    let pushed: Vec<_> = (0..8).map(|item| queue.push(OWNER, item, 1)).collect();
    let (_pending, senders): (Vec<_>, Vec<_>) = pushed.into_iter().unzip();
    let mut senders = senders.into_iter().flatten();
    let (mut first, mut second) = (senders.next().unwrap(), senders.next().unwrap());
    assert_eq!(items(&mut first).await.len(), many);
    // All return at once.
    let again: Vec<_> = (0..8).map(|item| queue.push(OWNER, item, 1)).collect();
    assert!(again.iter().all(|(_, sender)| sender.is_none()));
    assert!(first.next().await.is_none(), "the other sender takes their items");
    assert_eq!(items(&mut second).await.len(), many);
    let (_late, none) = queue.push(OWNER, 9, 1);
    assert!(none.is_none(), "one sender is enough for them");
}

#[tokio::test]
async fn a_batch_has_the_items_of_all_owners() {
    let queue = queue(BatchPolicy { bytes_max: 100, ..POLICY });
    let many: Vec<_> = (0..100).map(|item| queue.push(WorkOwner::of("many"), item, 1)).collect();
    let (one, none) = queue.push(WorkOwner::of("one"), 1000, 1);
    assert!(none.is_none());
    let mut senders = many.iter().filter(|(_, sender)| sender.is_some());
    assert_eq!(senders.by_ref().count(), POLICY.senders_max);
    let (mut many, senders): (Vec<_>, Vec<_>) = many.into_iter().unzip();
    let mut sender = senders.into_iter().flatten().next().unwrap();
    let first = items(&mut sender).await;
    assert!(first.len() == POLICY.items_max && first.contains(&1000), "{first:?}");
    let of_many: Vec<u32> = first.into_iter().filter(|item| *item < 1000).collect();
    assert_eq!(of_many, [0, 1, 2]);
    assert_eq!(items(&mut sender).await, [3, 4, 5, 6]);
    assert!(many[7].withdraw());
    assert_eq!(items(&mut sender).await, [8, 9, 10, 11]);
    drop(one);
}
