//! Which work gets the next turn.

use super::*;

const SMITH: Origin = Origin::Node(1);
const JONES: Origin = Origin::Node(2);

/// The queue for so many threads, without the threads.
struct TestQueue(Arc<PoolQueue>);

impl TestQueue {
    fn new(threads: usize) -> Self {
        Self(PoolQueue::new(threads))
    }

    fn enter(&self, origin: Origin, weight: Weight) -> Ticket {
        self.0.enter(origin, weight).unwrap()
    }

    /// A turn that is free at once.
    fn take(&self, origin: Origin, weight: Weight) -> PoolPermit {
        turn(&mut self.enter(origin, weight)).unwrap()
    }

    /// Counts time on the threads.
    fn use_up(&self, origin: Origin, micros: u64) {
        let mut queue = self.0.lock();
        queue.shares.entry(origin).or_default().used += micros;
    }
}

/// The turn, if it was given.
fn turn(ticket: &mut Ticket) -> Option<PoolPermit> {
    ticket.turn.try_recv().ok()
}

/// The positions of the tickets that got a turn, with the turns.
fn given(tickets: &mut [Ticket]) -> Vec<(usize, PoolPermit)> {
    let turns = tickets.iter_mut().enumerate();
    turns.filter_map(|(place, ticket)| Some((place, turn(ticket)?))).collect()
}

#[test]
fn another_origin_is_next_however_much_work_of_the_first_waits() {
    let world = TestQueue::new(1);
    let begun = world.take(SMITH, Weight::Short);
    let mut many: Vec<Ticket> = (0..64).map(|_| world.enter(SMITH, Weight::Short)).collect();
    world.use_up(SMITH, 1000);
    let mut other = world.enter(JONES, Weight::Short);
    assert!(turn(&mut other).is_none());
    drop(begun);
    let other = turn(&mut other).expect("it has used the threads least");
    assert!(given(&mut many).is_empty());
    world.use_up(JONES, 1_000_000);
    drop(other);
    let next = given(&mut many);
    assert_eq!(next.iter().map(|(place, _)| *place).collect::<Vec<_>>(), [0], "in their order");
}

#[test]
fn an_origin_gets_no_credit_for_its_absence() {
    let world = TestQueue::new(1);
    let begun = world.take(SMITH, Weight::Short);
    world.use_up(SMITH, 5000);
    let mut waiting = world.enter(SMITH, Weight::Short);
    drop(begun);
    let begun = turn(&mut waiting).unwrap();
    let (mut one, mut two) = (world.enter(JONES, Weight::Short), world.enter(SMITH, Weight::Short));
    assert!(world.0.lock().shares[&JONES].used >= 5000);
    drop(begun);
    let _one = turn(&mut one).expect("it has used less than the other");
    assert!(turn(&mut two).is_none());
}

#[test]
fn long_work_leaves_a_thread_to_short_work() {
    for threads in [2, 3, 8] {
        let world = TestQueue::new(threads);
        let mut long: Vec<Ticket> = [Weight::List, Weight::Long, Weight::Scan]
            .into_iter()
            .cycle()
            .take(3 * threads)
            .map(|weight| world.enter(SMITH, weight))
            .collect();
        let running = given(&mut long);
        assert_eq!(running.len(), threads - 1);
        drop(world.take(SMITH, Weight::Short));
        drop(world.take(JONES, Weight::Urgent));
        assert_eq!(world.0.free(), 1);
    }
}

#[test]
fn waiting_lists_of_one_origin_are_bounded() {
    let world = TestQueue::new(2);
    let _running = world.take(SMITH, Weight::List);
    let waiting: Vec<Ticket> = (0..LONG_LISTS_MAX).map(|_| world.enter(SMITH, Weight::List)).collect();
    assert!(matches!(world.0.enter(SMITH, Weight::List), Err(Refusal::LimitReached(_))));
    drop(world.enter(SMITH, Weight::Long));
    drop(world.enter(JONES, Weight::List));
    drop(waiting);
    drop(world.enter(SMITH, Weight::List));
}

#[test]
fn a_dropped_ticket_gets_no_turn() {
    let world = TestQueue::new(1);
    let begun = world.take(SMITH, Weight::Short);
    let gone = world.enter(SMITH, Weight::Short);
    let mut stays = world.enter(SMITH, Weight::Short);
    drop(gone);
    drop(begun);
    let stays = turn(&mut stays).expect("it is next");
    // It got a turn, and was dropped before the turn was taken out.
    let given = world.enter(JONES, Weight::Short);
    drop(stays);
    assert_eq!(world.0.free(), 0);
    drop(given);
    assert_eq!(world.0.free(), 1);
    assert!(world.0.lock().shares.is_empty(), "no idle origin is kept");
}

#[test]
fn one_origin_has_one_scan_at_a_time_and_other_origins_can_scan() {
    let world = TestQueue::new(8);
    let mut first = world.take(SMITH, Weight::Scan);
    let place = first.take_place();
    let mut second = world.enter(SMITH, Weight::Scan);
    let mut list = world.enter(SMITH, Weight::List);
    assert!(turn(&mut second).is_none());
    let _list = turn(&mut list).expect("work behind a waiting scan does not wait for it");
    let _other = world.take(JONES, Weight::Scan);
    drop(first);
    assert!(turn(&mut second).is_none(), "the first one continues later");
    let resumed = world.take(SMITH, Weight::Resumed);
    drop(resumed);
    drop(place);
    assert!(turn(&mut second).is_some());
}

#[test]
fn a_scan_yields_after_its_slice_and_continues_after_one_other() {
    let world = TestQueue::new(2);
    let mut scan = world.take(SMITH, Weight::Scan);
    let place = scan.take_place();
    assert!(scan.yield_turn().is_none(), "its slice is not over");
    scan.slice_ends = Instant::now();
    assert!(scan.yield_turn().is_none(), "no work waits");
    let mut lists = [world.enter(SMITH, Weight::List), world.enter(SMITH, Weight::List)];
    scan.slice_ends = Instant::now();
    let mut resumed = scan.yield_turn().unwrap();
    drop(scan);
    let mut running = given(&mut lists);
    assert_eq!(running.len(), 1);
    assert!(turn(&mut resumed).is_none());
    running.clear();
    let again = turn(&mut resumed).expect("before the second list").with_slice(Duration::from_secs(60));
    assert!(again.slice_ends > Instant::now() + Duration::from_secs(50));
    assert!(given(&mut lists).is_empty());
    drop((again, place));
    assert_eq!(given(&mut lists).len(), 1);
}

#[test]
fn work_that_writes_wait_for_is_next() {
    let world = TestQueue::new(1);
    let begun = world.take(SMITH, Weight::Short);
    let (mut other, mut urgent) = (world.enter(JONES, Weight::Short), world.enter(SMITH, Weight::Urgent));
    world.use_up(SMITH, 1_000_000);
    drop(begun);
    let _urgent = turn(&mut urgent).expect("writes wait for it");
    assert!(turn(&mut other).is_none());
}
