//! Locks on the records that the leader computes writes from.
//!
//! A computed write is useless if another write of its record is decided between its read and its own decision. So the
//! computed writes of one record follow one another: each holds the record's lock from its read to its verdict. A plain
//! write creates no lock, but waits for one that exists. Otherwise a stream of plain writes would make every computed
//! write stale.
//!
//! **Invariants:** the locks of several records are acquired in the order of their keys, so there is no deadlock. A
//! lock exists as long as a write holds it or waits for it. Locks only save work: the log decides what is correct, on
//! this leader and on the next one.

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

use crate::request::{Effect, Target, Write};

/// A config: its definition's key and its own.
type RecordId = (String, String);
type RecordLock = Arc<tokio::sync::Mutex<()>>;

/// The locks that exist.
#[derive(Debug, Default)]
pub(crate) struct RecordLocks {
    by_record: Mutex<BTreeMap<RecordId, RecordLock>>,
    /// Their number, so that most writes need not lock the map.
    count: AtomicUsize,
}

/// The records of a write.
#[derive(Debug, Default, PartialEq)]
pub(super) struct LockSet {
    /// The records that it is computed from: their locks are created if they do not exist.
    read: BTreeSet<RecordId>,
    /// The records that it writes without reading them: their locks are acquired only if they exist.
    written: BTreeSet<RecordId>,
}

impl LockSet {
    pub(super) fn of(write: &Write) -> Self {
        let mut locks = Self::default();
        for operation in write.operations() {
            if let Target::Config { definition, key } = operation.target() {
                let is_read = matches!(operation.effect(), Effect::Compute | Effect::Read);
                let records = if is_read { &mut locks.read } else { &mut locks.written };
                records.insert((definition.to_owned(), key.to_owned()));
            }
        }
        locks
    }
}

/// The locks that one write holds.
#[derive(Debug)]
pub(super) struct HeldLocks<'a>(Vec<HeldLock<'a>>);

/// A lock that is held or waited for. Dropping this releases the lock or stops waiting.
#[derive(Debug)]
struct HeldLock<'a> {
    locks: &'a RecordLocks,
    record: RecordId,
    lock: Option<RecordLock>,
    guard: Option<OwnedMutexGuard<()>>,
}

impl RecordLocks {
    /// Whether any lock exists.
    pub(super) fn any_held(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Waits for the locks of a write; `None` if the deadline passes first.
    pub(super) async fn acquire(&self, records: LockSet, deadline: Instant) -> Option<HeldLocks<'_>> {
        let mut held = Vec::new();
        let all: BTreeSet<&RecordId> = records.read.union(&records.written).collect();
        for record in all {
            let Some(mut next) = self.entry(record, records.read.contains(record)) else { continue };
            let lock = next.lock.clone()?;
            next.guard = Some(timeout_at(deadline, lock.lock_owned()).await.ok()?);
            held.push(next);
        }
        Some(HeldLocks(held))
    }

    /// The lock of a record. It is created if `create`.
    fn entry(&self, record: &RecordId, create: bool) -> Option<HeldLock<'_>> {
        let mut by_record = self.lock();
        let lock = match by_record.get(record) {
            Some(lock) => Arc::clone(lock),
            None if create => {
                let lock = RecordLock::default();
                by_record.insert(record.clone(), Arc::clone(&lock));
                self.count.store(by_record.len(), Ordering::Relaxed);
                lock
            }
            None => return None,
        };
        Some(HeldLock { locks: self, record: record.clone(), lock: Some(lock), guard: None })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<RecordId, RecordLock>> {
        // Nothing panics while it is held, except for lack of memory.
        self.by_record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HeldLocks<'_> {
    fn drop(&mut self) {
        self.0.clear();
    }
}

impl Drop for HeldLock<'_> {
    fn drop(&mut self) {
        let mut by_record = self.locks.lock();
        self.guard = None;
        self.lock = None;
        // No other write can take a reference while the map is locked. So if only the map's reference is left, nobody
        // holds the lock or waits for it.
        if by_record.get(&self.record).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            by_record.remove(&self.record);
            self.locks.count.store(by_record.len(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn record(key: &str) -> RecordId {
        ("d".into(), key.into())
    }

    fn reads(keys: &[&str]) -> LockSet {
        LockSet { read: keys.iter().map(|key| record(key)).collect(), ..LockSet::default() }
    }

    fn writes(keys: &[&str]) -> LockSet {
        LockSet { written: keys.iter().map(|key| record(key)).collect(), ..LockSet::default() }
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[tokio::test]
    async fn a_plain_write_waits_only_for_a_lock_that_exists() {
        let locks = RecordLocks::default();
        assert!(!locks.any_held());
        assert_eq!(locks.acquire(writes(&["a"]), later()).await.unwrap().0.len(), 0);
        let held = locks.acquire(reads(&["a"]), later()).await.unwrap();
        assert!(locks.any_held());
        assert_eq!(locks.acquire(writes(&["b"]), later()).await.unwrap().0.len(), 0);
        assert!(locks.acquire(writes(&["a"]), Instant::now()).await.is_none(), "it waits");
        drop(held);
        assert!(!locks.any_held(), "no lock exists without a holder");
    }

    #[tokio::test]
    async fn writes_that_need_several_locks_do_not_deadlock() {
        let locks = Arc::new(RecordLocks::default());
        let mut tasks = Vec::new();
        for number in 0..20 {
            let locks = Arc::clone(&locks);
            tasks.push(tokio::spawn(async move {
                for _ in 0..50 {
                    let keys = if number % 2 == 0 { ["a", "b", "c"] } else { ["c", "a", "b"] };
                    let held = locks.acquire(reads(&keys), later()).await.unwrap();
                    tokio::task::yield_now().await;
                    drop(held);
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert!(!locks.any_held());
    }

    #[tokio::test]
    async fn a_write_that_gives_up_waiting_leaves_no_lock() {
        let locks = RecordLocks::default();
        let held = locks.acquire(reads(&["a"]), later()).await.unwrap();
        assert!(locks.acquire(reads(&["a", "b"]), Instant::now()).await.is_none());
        let mut waiting = Box::pin(locks.acquire(reads(&["a"]), later()));
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(waiting);
        drop(held);
        assert!(!locks.any_held());
    }
}
