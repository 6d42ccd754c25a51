//! The order of a queue, and what it keeps.

use super::*;

fn owner(number: u32) -> WorkOwner {
    WorkOwner::of(&number)
}

/// Takes everything; each piece costs so much.
fn drained(queue: &mut FairQueue<(u32, u32)>, cost: u64) -> Vec<(u32, u32)> {
    std::iter::from_fn(|| queue.pop(cost)).collect()
}

#[test]
fn one_owner_is_served_in_the_order_of_arrival() {
    let mut queue = FairQueue::default();
    for item in 0..100 {
        queue.push(owner(1), (1, item));
    }
    assert_eq!(queue.len(), 100);
    assert_eq!(queue.peek(), Some(&(1, 0)));
    assert_eq!(drained(&mut queue, 1), (0..100).map(|item| (1, item)).collect::<Vec<_>>());
    assert!(queue.is_empty() && queue.peek().is_none() && queue.pop(1).is_none());
}

#[test]
fn a_single_item_is_not_behind_the_many_of_another_owner() {
    let mut queue = FairQueue::default();
    for item in 0..10_000 {
        queue.push(owner(1), (1, item));
    }
    for _ in 0..1000 {
        queue.pop(1);
    }
    queue.push(owner(2), (2, 0));
    let first_two = [queue.pop(1).unwrap(), queue.pop(1).unwrap()];
    assert!(first_two.contains(&(2, 0)), "{first_two:?}");
    // Who comes again and again has its part, and leaves the others theirs.
    let mut others = 0;
    for item in 0..100 {
        queue.push(owner(2), (2, item));
        others += (0..2).filter(|_| queue.pop(1).unwrap().0 == 1).count();
    }
    assert!((99..=101).contains(&others), "{others}");
}

#[test]
fn owners_that_always_wait_use_the_same_and_an_absent_one_gets_no_credit() {
    let mut queue = FairQueue::default();
    let mut used = [0_u64; 3];
    let serve = |queue: &mut FairQueue<usize>, used: &mut [u64; 3], present: usize| {
        for which in 0..present {
            queue.push(owner(u32::try_from(which).unwrap()), which);
        }
        for _ in 0..3000 {
            let which = queue.pop(0).unwrap();
            // What it uses is known afterwards. The pieces of the first are ten times as long.
            let cost = if which == 0 { 100 } else { 10 };
            used[which] += cost;
            queue.push(owner(u32::try_from(which).unwrap()), which);
            queue.charge(owner(u32::try_from(which).unwrap()), cost);
        }
        for _ in 0..present {
            queue.pop(0);
        }
    };
    serve(&mut queue, &mut used, 2);
    assert!(used[0].abs_diff(used[1]) <= 200, "{used:?}");
    let mut used = [0; 3];
    serve(&mut queue, &mut used, 3);
    assert!(used[0].abs_diff(used[1]) <= 300 && used[1].abs_diff(used[2]) <= 300, "{used:?}");
}

#[test]
fn a_removed_item_leaves_the_others_where_they_are() {
    let mut queue = FairQueue::default();
    let places: Vec<_> = (0..5).map(|item| queue.push(owner(1), (1, item))).collect();
    let alone = queue.push(owner(2), (2, 0));
    assert_eq!(queue.remove(places[2]), Some((1, 2)));
    assert_eq!(queue.remove(places[2]), None, "only once");
    assert_eq!(queue.remove(alone), Some((2, 0)));
    assert_eq!(queue.pop(1), Some((1, 0)));
    assert_eq!(queue.remove(places[0]), None, "it has left");
    assert_eq!(queue.len(), 3);
    let mut left: Vec<_> = queue.into_items().collect();
    left.sort_unstable();
    assert_eq!(left, [(1, 1), (1, 3), (1, 4)]);
}

#[test]
fn all_items_leave_together_and_nobody_has_an_advantage_afterwards() {
    let mut queue = FairQueue::default();
    let push = |queue: &mut FairQueue<(u32, u32)>, which, items: std::ops::Range<u32>| {
        for item in items {
            queue.push(owner(which), (which, item));
        }
    };
    // The first has used much more than the second.
    push(&mut queue, 1, 0..10);
    assert_eq!(queue.pop(100), Some((1, 0)));
    push(&mut queue, 2, 0..5);
    let mut seen: Vec<_> = queue.iter().copied().collect();
    let all = queue.take_all();
    for (which, items) in [(1, 1..10), (2, 0..5)] {
        let of_owner: Vec<_> = all.iter().filter(|(of, _)| *of == which).map(|(_, item)| *item).collect();
        assert_eq!(of_owner, items.collect::<Vec<_>>(), "in the order of their arrival");
    }
    seen.sort_unstable();
    assert_eq!((all.len(), seen.len(), queue.len()), (14, 14, 0));
    assert!(queue.peek().is_none() && queue.pop(1).is_none() && queue.take_all().is_empty());
    push(&mut queue, 2, 0..10);
    push(&mut queue, 1, 0..10);
    let first_four: Vec<_> = drained(&mut queue, 1).into_iter().take(4).filter(|(of, _)| *of == 1).collect();
    assert_eq!(first_four.len(), 2, "they take turns");
}

#[test]
fn owners_that_wait_for_nothing_are_forgotten() {
    let mut queue = FairQueue::default();
    queue.push(owner(0), 0);
    for number in 1..10_000 {
        queue.push(owner(number), number);
        // Either it or the one before, which has used less.
        queue.pop(1);
        queue.charge(owner(number), 1);
    }
    assert!(queue.lines.len() <= 3 + IDLE_OWNERS, "{}", queue.lines.len());
    assert_eq!((queue.len(), queue.order.len()), (1, 1));
    queue.pop(1);
    queue.charge(owner(1), 1);
    assert!(queue.lines.is_empty());
}
