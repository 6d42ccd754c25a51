//! The queues of writes that the leader computes from a record.
//!
//! Such a write is worth nothing when another comes between its reading and its turn, so those of one record go one
//! after another: each holds the record's gate from its reading to its verdict. A plain write passes by where no
//! gate stands, and joins the queue where one does, or a stream of plain writes would make every computed one stale.
//!
//! **Invariants:** the gates of several records are taken in the order of their keys, so nobody waits in a circle.
//! A gate stands as long as somebody holds it or waits for it. Queues only save work: what is right is decided by
//! the log, on this leader and on the next one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    sync::OwnedMutexGuard,
    time::{Instant, timeout_at},
};

/// A record: its definition's key and its own.
type Place = (String, String);
type Gate = Arc<tokio::sync::Mutex<()>>;

/// The gates that stand.
#[derive(Debug, Default)]
pub(in crate::service) struct Queues {
    standing: Mutex<BTreeMap<Place, Gate>>,
    /// How many there are: most writes pass by without looking further.
    count: AtomicUsize,
}

/// The records of a write.
#[derive(Debug, Default, PartialEq)]
pub(in crate::service) struct Records {
    /// Those that it is computed from.
    pub(in crate::service) read: BTreeSet<Place>,
    /// Those that it writes without looking.
    pub(in crate::service) written: BTreeSet<Place>,
}

/// The gates that one write holds.
#[derive(Debug)]
pub(in crate::service) struct Turn<'a>(Vec<Held<'a>>);

/// A gate that is held or waited for. Dropping it gives it up, at whatever point.
#[derive(Debug)]
struct Held<'a> {
    queues: &'a Queues,
    place: Place,
    gate: Option<Gate>,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Queues {
    /// Whether any gate stands.
    pub(in crate::service) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Waits for the turn of a write; `None` when the time is up before.
    pub(in crate::service) async fn enter(&self, records: Records, deadline: Instant) -> Option<Turn<'_>> {
        let mut held = Vec::new();
        let places: BTreeSet<&Place> = records.read.union(&records.written).collect();
        for place in places {
            let Some(mut next) = self.stand(place, records.read.contains(place)) else { continue };
            let gate = next.gate.clone()?;
            next.guard = Some(timeout_at(deadline, gate.lock_owned()).await.ok()?);
            held.push(next);
        }
        Some(Turn(held))
    }

    /// Takes a place in the queue of a gate, which is put up when that is asked.
    fn stand(&self, place: &Place, put_up: bool) -> Option<Held<'_>> {
        let mut standing = self.lock();
        let gate = match standing.get(place) {
            Some(gate) => Arc::clone(gate),
            None if put_up => {
                let gate = Gate::default();
                standing.insert(place.clone(), Arc::clone(&gate));
                self.count.store(standing.len(), Ordering::Relaxed);
                gate
            }
            None => return None,
        };
        Some(Held { queues: self, place: place.clone(), gate: Some(gate), guard: None })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Place, Gate>> {
        // Nothing panics while it is held but for lack of memory.
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.clear();
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut standing = self.queues.lock();
        self.guard = None;
        self.gate = None;
        // Under the lock nobody else takes a place: the map's own is the last one when nobody waits.
        if standing.get(&self.place).is_some_and(|gate| Arc::strong_count(gate) == 1) {
            standing.remove(&self.place);
            self.queues.count.store(standing.len(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn place(key: &str) -> Place {
        ("d".into(), key.into())
    }

    fn reads(keys: &[&str]) -> Records {
        Records { read: keys.iter().map(|key| place(key)).collect(), ..Records::default() }
    }

    fn writes(keys: &[&str]) -> Records {
        Records { written: keys.iter().map(|key| place(key)).collect(), ..Records::default() }
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[tokio::test]
    async fn a_plain_write_joins_a_queue_only_where_one_stands() {
        let gates = Queues::default();
        assert!(!gates.any());
        assert_eq!(gates.enter(writes(&["a"]), later()).await.unwrap().0.len(), 0);
        let turn = gates.enter(reads(&["a"]), later()).await.unwrap();
        assert!(gates.any());
        assert_eq!(gates.enter(writes(&["b"]), later()).await.unwrap().0.len(), 0);
        assert!(gates.enter(writes(&["a"]), Instant::now()).await.is_none(), "it waits");
        drop(turn);
        assert!(!gates.any(), "no gate stands without a need");
    }

    #[tokio::test]
    async fn those_who_need_several_gates_do_not_wait_in_a_circle() {
        let gates = Arc::new(Queues::default());
        let mut tasks = Vec::new();
        for number in 0..20 {
            let gates = Arc::clone(&gates);
            tasks.push(tokio::spawn(async move {
                for _ in 0..50 {
                    let keys = if number % 2 == 0 { ["a", "b", "c"] } else { ["c", "a", "b"] };
                    let turn = gates.enter(reads(&keys), later()).await.unwrap();
                    tokio::task::yield_now().await;
                    drop(turn);
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert!(!gates.any());
    }

    #[tokio::test]
    async fn one_who_gives_up_waiting_leaves_nothing_behind() {
        let gates = Queues::default();
        let turn = gates.enter(reads(&["a"]), later()).await.unwrap();
        assert!(gates.enter(reads(&["a", "b"]), Instant::now()).await.is_none());
        let mut waiting = Box::pin(gates.enter(reads(&["a"]), later()));
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(waiting);
        drop(turn);
        assert!(!gates.any());
    }
}
